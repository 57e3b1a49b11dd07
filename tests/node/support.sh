# What the checks share: comparing, waiting, and creating workloads while something happens to the operator.

fail() { echo "error: $*" >&2; exit 1; }
is() { [ "$1" = "$2" ] || fail "not \"$1\" but \"$2\""; } # expected actual
becomes() { # seconds expected command..
    local until=$((SECONDS + $1)) expected=$2 printed=
    shift 2
    until printed=$("$@" 2>&1) && [ "$printed" = "$expected" ]; do
        ((SECONDS < until)) || fail "not \"$expected\" but \"$printed\": $*"
        sleep 0.2
    done
}
quietly() { "$@" > /dev/null; }

pods() { kubectl get pods -l "$1" -o "jsonpath=$2"; }                 # label path
operator() { kubectl -n scpol-system get pods -o "jsonpath=$1"; }     # path
replicas_ready() { operator '{.items[*].status.containerStatuses[*].ready}'; }
leader() { kubectl -n scpol-system get lease scpol -o 'jsonpath={.spec.holderIdentity}'; }
process_of() { # replica
    local pid
    for pid in $(pgrep -x scpol); do
        ! tr '\0' '\n' < "/proc/$pid/environ" | grep -q "^SCPOL_POD_NAME=$1\$" || echo "$pid"
    done
}

# policy FILE [SED]: applies the file, changed by a script for sed, and waits until its policy is in effect.
policy() {
    local name
    name=$(sed "${2:-}" "$1" | kubectl apply -o name -f - | grep sidecarpolicy)
    quietly kubectl wait --for=condition=Ready "$name" --timeout=30s
}
without_policies() { quietly kubectl delete scpol --all; }

# ---- creates -------------------------------------------------------------------------------------------------------------------
# Two clients create Deployments in $namespace, each one after the other, until `creates_end`. A paused Deployment makes
# no pods. The API server answers with what it stored.
creates_begin() { # the sidecar that each must get
    expected_sidecar=$1 creates=$NODE_DIR/creates clients=()
    rm -rf "$creates" && mkdir "$creates"
    cat > "$creates/deployment.json" << 'J'
{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"generateName": "web-"}, "spec": {"paused": true,
 "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
 "spec": {"containers": [{"name": "web", "image": "nginx:1.8.1"}]}}}}
J
    client 1 & clients+=($!)
    client 2 & clients+=($!)
}
client() { # number
    local server token
    server=$(sed -n 's/.*server: "\([^"]*\)".*/\1/p' "$KUBECONFIG") token=$(sed -n 's/.*token: \([^}]*\)}.*/\1/p' "$KUBECONFIG")
    # The API server indents its answers to curl, so this is another user agent. Ten creates use one connection.
    until [ -e "$creates/end" ]; do
        curl --silent --show-error --user-agent creates --cacert "$NODE_DIR/tls/ca.crt" --header "Authorization: Bearer $token" \
            --header 'Content-Type: application/json' --data-binary "@$creates/deployment.json" --write-out '\n%{http_code} %{time_total}\n' \
            "$server/apis/apps/v1/namespaces/$namespace/deployments?fieldManager=client-$1-[1-10]" >> "$creates/$1.log" 2>&1 || true
    done
}
created() { cat "$creates"/?.log 2> /dev/null | grep -c '^[0-9]\{3\} ' || true; }
# Waits for that many creates, ends the clients, prints the counts and sets made, refused, missed and slowest (in seconds).
creates_end() { # count
    local until=$((SECONDS + 120))
    while (($(created) < $1)); do
        ((SECONDS < until)) || fail "only $(created) creates in 120 s"
        sleep 0.2
    done
    touch "$creates/end"
    wait "${clients[@]}"
    read -r made refused missed slowest < <(cat "$creates"/?.log | awk -v sidecar="\"name\":\"$expected_sidecar\"" -v answers="$creates/refused.txt" '
        /^[0-9][0-9][0-9] / {
            made++
            if ($1 != 201) { refused++; print body > answers } else if (!index(body, sidecar)) missed++
            if ($2 > slowest) slowest = $2
        }
        /./ { body = $0 }
        END { printf "%d %d %d %.1f\n", made, refused, missed, slowest }')
    echo "    $made creates: $refused refused, $missed without sidecar, slowest $slowest s"
    ((refused == 0)) || sort "$creates/refused.txt" | uniq -c | sort -rn | sed -n 1,3p
}
