# The operator itself.

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
