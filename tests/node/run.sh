#!/usr/bin/env bash
# Starts a real node and runs something in it. `make node`, `make node-short` and `DEMO=node make demo` call it.
#
#   run.sh short          the checks that `make test` takes
#   run.sh long           all checks, with the shipped image; then some of them on a node with kube-proxy
#   run.sh CHECK...       some checks (the functions in checks/)
#   run.sh -- COMMAND     something else, such as bash
#
# Where something is missing it prints one line that says so, runs nothing and exits with 0; with NODE_REQUIRED=1, with 2.
# SCPOL: the operator's binary, the debug build by default. NODE_IMAGE: an OCI archive of its image, such as `make dist` makes; without
# one the checks make an image of SCPOL. NODE_VERSION: the version of Kubernetes. SCPOL_ASSETS_1_36_NODE: a
# folder with its programs, instead of what build.sh builds.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
version=${NODE_VERSION:-1.37}

missing=$("$here/needs.sh")
if [ -n "$missing" ]; then
    echo "node: NOT RUN: a real node needs $missing" >&2
    exit $((${NODE_REQUIRED:-0} ? 2 : 0))
fi
assets=$(tests/controlplane/build.sh "$version-node")
[ -n "${SCPOL:-}" ] || cargo build --quiet --locked --workspace --bins
export SCPOL=${SCPOL:-${CARGO_TARGET_DIR:-target}/debug/scpol}

# The shipped image takes a release build, and podman or buildah.
build_image() {
    if [ -n "${NODE_IMAGE:-}" ]; then return; fi
    if ! command -v buildah > /dev/null && ! command -v podman > /dev/null; then
        echo 'node: the shipped image is NOT BUILT: there is no podman and no buildah. The checks take an image of the binary.' >&2
        return
    fi
    mkdir -p target/node
    NODE_IMAGE=$PWD/target/node/image.oci.tar
    export NODE_IMAGE
    release/image.sh --archive "$NODE_IMAGE" sidecar-policy:0.1.0 "$(release/binary.sh)" > target/node/image.log 2>&1 || { tail -n 20 target/node/image.log >&2; return 1; }
    echo "node: built the shipped image ($SECONDS s)"
}

case ${1:?short, long, a check, or -- and a command} in
    --) exec "$here/node.sh" "$assets" "${@:2}" ;;
    long)
        build_image
        "$here/node.sh" "$assets" "$here/checks.sh" long
        echo 'node: with kube-proxy'
        PROXY=1 "$here/node.sh" "$assets" "$here/checks.sh" rolling_restart leader_deleted answering_killed
        ;;
    *) "$here/node.sh" "$assets" "$here/checks.sh" "$@" ;;
esac
echo "node: Kubernetes $version, all in $SECONDS s"
