# The operator itself.

# The demo shows what it says: `DEMO=node make demo`.
demo() {
    local log=$NODE_DIR/log/demo.log
    mkdir "$NODE_DIR/programs"
    ln -s "$(realpath "$SCPOL")" "$NODE_DIR/programs/scpol"
    KEEP='' SCPOL_PROGRAMS=$NODE_DIR/programs tests/demo/node.sh > "$log" 2>&1 || fail "$(tail -n 40 "$log")"
    quietly kubectl delete deployment/nginx job/once
    quietly kubectl wait --for=delete namespace/scpol-system --timeout=60s
}

# The shipped install file runs two replicas of the image, and the security context of the pods is in effect.
installed() { # [install file]
    local pod at pid
    quietly kubectl apply -f "${1:-config/install.yaml}"
    quietly kubectl -n scpol-system rollout status deployment/scpol --timeout=90s
    becomes 60 'true true' replicas_ready # those before are gone
    is '0 0' "$(operator '{.items[*].status.containerStatuses[*].restartCount}')"
    for pod in $(operator '{.items[*].metadata.name}'); do
        at=/api/v1/namespaces/scpol-system/pods/$pod:8080/proxy
        is ok "$(kubectl get --raw "$at/readyz")"
        is ok "$(kubectl get --raw "$at/livez")"
        is 1 "$(kubectl get --raw "$at/metrics" | grep -c '^scpol_build_info')"
    done
    for pid in $(pgrep -x scpol); do
        is '65532 0000000000000000 0000000000000000 1 2' \
            "$(awk '/^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):/ { printf "%s%s", gap, $2; gap = " " }' "/proc/$pid/status")"
        grep -q '^overlay / overlay ro,' "/proc/$pid/mounts" || fail 'its root can be written'
    done
}

# `scpol uninstall`: running pods go on, and new ones are as their authors wrote them.
uninstalled() {
    policy samples/09-pods.yaml
    quietly kubectl run before --image=busybox:1.36 -- sleep 1d
    quietly kubectl wait --for=condition=Ready pod/before --timeout=30s
    quietly "$SCPOL" uninstall --yes --crd
    quietly kubectl wait --for=delete namespace/scpol-system --timeout=60s
    is '' "$(pgrep -x scpol || true)"
    is 'true true' "$(kubectl get pod before -o 'jsonpath={.status.containerStatuses[*].ready}')"
    is after "$(kubectl run after --image=busybox:1.36 --dry-run=server -o 'jsonpath={.spec.containers[*].name}{.spec.initContainers[*].name}')"
}

# Helm installs the operator, its test passes, and `helm uninstall` leaves the definition, the policy and the Namespace.
by_helm() {
    local before after tested
    quietly kubectl delete crd sidecarpolicies.scpol.dev --ignore-not-found
    before=$(everything)
    quietly helm install scpol charts/sidecar-policy -n scpol-system --create-namespace --wait --timeout 90s
    becomes 60 'true true' replicas_ready
    policy samples/09-pods.yaml
    is 'app log-agent' "$(containers_of app)"
    tested=$(helm test scpol -n scpol-system --timeout 60s --logs 2>&1) || fail "$tested"
    quietly helm uninstall scpol -n scpol-system --wait --timeout 90s
    is '' "$(pgrep -x scpol || true)"
    is app "$(containers_of app)"
    after=$(everything)
    is 'customresourcedefinition.apiextensions.k8s.io/sidecarpolicies.scpol.dev namespace/scpol-system sidecarpolicy.scpol.dev/log-agent' \
        "$(comm -13 <(echo "$before") <(echo "$after") | paste -sd ' ')"
    quietly kubectl delete crd sidecarpolicies.scpol.dev
    quietly kubectl delete namespace scpol-system
}

# The containers that a pod of this name would get.
containers_of() {
    kubectl run "$1" --image=busybox:1.36 --dry-run=server -o 'jsonpath={.spec.containers[*].name}'
}

# Every object of every kind, but those that come and go by themselves.
everything() {
    local kinds
    kinds=$(kubectl api-resources --verbs=list -o name | grep -v '^events\|^leases\|^endpoints\|^componentstatuses\|metrics' | paste -sd ,)
    kubectl get "$kinds" --all-namespaces --ignore-not-found -o name | grep -v '^apiservice\|^endpoint\|kube-root-ca.crt$\|/default$' | LC_ALL=C sort
}
