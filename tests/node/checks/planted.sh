# Checks that must fail, since something is wrong on purpose.

planted() {
    local writable=$NODE_DIR/writable.yaml
    sed 's/readOnlyRootFilesystem: true/readOnlyRootFilesystem: false/' config/install.yaml > "$writable"
    must_fail installed "$writable"
    quietly kubectl apply -f config/install.yaml
    quietly kubectl -n scpol-system rollout status deployment/scpol --timeout=90s
    must_fail job_ends "$plain_sidecar" 10s
    must_fail job_with_plain_sidecar ''
    must_fail startup_order 's/initContainers/containers/; /restartPolicy/d'
    must_fail creates_of_a_quota
    must_fail creates_of_another_policy
}
must_fail() { # check arguments..
    if ("$@") > "$NODE_DIR/log/planted.log" 2>&1; then fail "$* passes"; fi
    echo "    $1 fails as it should: $(grep '^error' "$NODE_DIR/log/planted.log" | tail -n 1)"
    without_policies
    quietly kubectl delete job,pod --all --now
    quietly kubectl delete namespace creates --ignore-not-found
}
creates_of_a_quota() {
    under_creates Fail
    quietly kubectl -n creates create quota few --hard=count/deployments.apps=1
    creates_end 100
    nothing_lost
}
creates_of_another_policy() {
    under_creates Fail
    without_policies
    creates_end 200
    nothing_lost
}
