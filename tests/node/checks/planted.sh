# Checks that must fail, since something is wrong on purpose.

planted() {
    local writable=$NODE_DIR/writable.yaml
    sed 's/readOnlyRootFilesystem: true/readOnlyRootFilesystem: false/' config/install.yaml > "$writable"
    must_fail 'its root can be written' installed "$writable"
    quietly kubectl apply -f config/install.yaml
    quietly kubectl -n scpol-system rollout status deployment/scpol --timeout=90s
    must_fail 'timed out waiting for the condition on jobs/once' job_ends "$plain_sidecar" 10s
    must_fail 'not "1 Running true"' job_with_plain_sidecar ''
    must_fail 'not "open"' startup_order 's/initContainers/containers/; /restartPolicy/d'
    must_fail 'not "0 refused' creates_of_a_quota
    must_fail 'not "0 refused' creates_without_a_policy
}
must_fail() { # error check arguments..
    local code=0
    ((namespaces += 1)) # the check counts in a process of its own
    # Not after `if` or `||`, where bash forgets `set -e`.
    set +e
    (set -e && "${@:2}") > "$NODE_DIR/log/planted.log" 2>&1
    code=$?
    set -e
    ((code)) && grep -q "^error: $1" "$NODE_DIR/log/planted.log" || fail "$2 does not fail with \"$1\": $(tail -n 5 "$NODE_DIR/log/planted.log")"
    echo "    $2 fails: $(grep '^error' "$NODE_DIR/log/planted.log" | tail -n 1)"
    without_policies
    quietly kubectl delete job,pod --all --now
}
creates_of_a_quota() {
    under_creates Fail
    quietly kubectl -n "$namespace" create quota few --hard=count/deployments.apps=1
    creates_end 100
    nothing_lost
}
creates_without_a_policy() {
    under_creates Fail
    without_policies
    sleep 3
    creates_end $(($(created) + 100))
    nothing_lost
}
