#!/usr/bin/env bash
# Builds what the demo of a version needs: the API server with Go and the operator with Rust, side by side. `make demo` calls it.
#
#   build.sh 1.37
#
# Prints on stdout how many simulated nodes the demo can have. On stderr are the minutes that are left, as measured on two cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export SCPOL_TOOLS=no
version=$1 logs=target/demo operator_seconds=200
mkdir -p "$logs"

# With --workspace, because with fewer packages dependencies have fewer features, and later commands would compile them again.
cargo=(cargo build --locked --workspace --bin scpol --bin controlplane)
seconds=$(tests/controlplane/build.sh --seconds "$version")
[ -x "${CARGO_TARGET_DIR:-target}/debug/scpol" ] || seconds=$((seconds + operator_seconds))
seconds=$((seconds * 3 / 2)) # with what must be fetched

# The simulated nodes are those of the newest version. Servers that are given may come without what runs them.
nodes() {
    local folder
    folder=$(tests/controlplane/build.sh "$version")
    if [ -x "$folder/kwok" ] && [ -d "$folder/stages" ] && [ -x "$folder/kube-controller-manager" ] && [ -x "$folder/kube-scheduler" ]; then
        echo 2
    else
        echo 0
    fi
}
if ((seconds == 0)); then
    "${cargo[@]}" --quiet
    nodes
    exit
fi

minutes() { # seconds
    if (($1 > 0)); then echo "about $((($1 + 59) / 60)) min left"; else echo 'a moment left'; fi
}
declare -A builds=() # the log of each process
trap 'for pid in "${!builds[@]}"; do kill -- "-$pid" 2> /dev/null || true; done' EXIT
set -m # process groups of their own, which end whole
tests/controlplane/build.sh "$version" > /dev/null 2> "$logs/kubernetes.log" & builds[$!]=$logs/kubernetes.log
"${cargo[@]}" > "$logs/operator.log" 2>&1 & builds[$!]=$logs/operator.log
set +m
echo "Kubernetes $version and the operator are built from source, once: the next time takes seconds. Logs: ${builds[*]}" >&2

shown=''
until ((${#builds[@]} == 0)); do
    left=$(minutes $((seconds - SECONDS)))
    [ "$left" = "$shown" ] || echo "  $left" >&2
    shown=$left
    sleep 1
    for pid in "${!builds[@]}"; do
        if kill -0 "$pid" 2> /dev/null; then continue; fi
        code=0
        wait "$pid" || code=$?
        ((code == 0)) || { tail -n 20 "${builds[$pid]}" >&2; echo "error: that was the end of ${builds[$pid]}" >&2; exit "$code"; }
        unset "builds[$pid]"
    done
done
nodes
