#!/usr/bin/env bash
# What only a real node shows. Runs inside node.sh, in a checkout:
#
#   checks.sh short|long|CHECK...
#
# SCPOL: the binary, the debug build by default. NODE_IMAGE: an OCI archive of the operator's image; without, SCPOL becomes the image.
# A check is a function of checks/. It begins and ends with the operator installed and without policies.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
source "$here/images.sh"
source "$here/support.sh"
for file in "$here"/checks/*.sh; do source "$file"; done
SCPOL=${SCPOL:-${CARGO_TARGET_DIR:-target}/debug/scpol}

short=(sidecar_runs job_ends job_with_plain_sidecar startup_order rolling_restart leader_deleted rolled_out_in_place agent_reads_log kubelet_would_refuse)
long=("${short[@]}" not_injected drained leader_killed answering_killed leader_frozen answering_frozen samples share_a_volume config_map planted)

check() { # name
    local began=$SECONDS
    "$1"
    echo "node: $1 ... ok ($((SECONDS - began)) s)"
}
# The exit code of a check that fails ends the script: what was going on then is shown.
explain() {
    local code=$?
    ((code)) || return 0
    echo "node: FAILED: ${FUNCNAME[*]:1}"
    kubectl get pods --all-namespaces -o wide || true
    kubectl get scpol -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{range .status.conditions[*]}  {.type}={.status} {.reason}: {.message}{"\n"}{end}{end}' || true
    kubectl get events --all-namespaces --sort-by=.metadata.creationTimestamp | tail -n 15 || true
    kubectl -n scpol-system logs -l app.kubernetes.io/name=scpol --tail=15 --prefix || true
} >&2
trap explain EXIT

case ${1:-} in
    short) before=(demo installed) checks=("${short[@]}") ;;
    long) before=(demo installed) checks=("${long[@]}") ;;
    *) before=(installed) checks=("$@") ;;
esac
checks=("${before[@]}" "${checks[@]}" uninstalled by_helm)
if [ -n "${NODE_IMAGE:-}" ]; then ctr images import --index-name docker.io/library/sidecar-policy:0.1.0 "$NODE_IMAGE" >> "$NODE_DIR/log/ctr.log" 2>&1; else image_of_binary sidecar-policy:0.1.0 "$SCPOL"; fi
for name in "${checks[@]}"; do check "$name"; done
echo "node: ${#checks[@]} checks passed"
