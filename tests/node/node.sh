#!/usr/bin/env bash
# A real Kubernetes node on this machine, with its control plane: etcd, kube-apiserver, controllers, scheduler, containerd and kubelet.
#
#   node.sh ASSETS COMMAND...      as root. `build.sh node` prints ASSETS
#
# Everything runs in namespaces of its own (PID, network, mount, cgroup, UTS, IPC). Nothing can be reached from outside, and two nodes
# can run at once. When node.sh ends, even by `kill -9`, its processes, mounts and network are gone. Its folder and its empty cgroups
# may be left then; the next start removes them.
#
# COMMAND runs inside, when the node is ready. It has KUBECONFIG of an administrator, PATH with ASSETS first, and NODE_DIR: logs are
# in $NODE_DIR/log, static pods go to $NODE_DIR/static. images.sh makes images.
#
# PROXY=1: with kube-proxy. Without, only the API server reaches Services, and 10.0.0.1 is the API server itself.
# KEEP_DIR=1: leaves $NODE_DIR.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
die() { echo "node.sh: $*" >&2; exit 2; }
[ "$(id -u)" = 0 ] || die 'needs root'
export ASSETS NODE_DIR FROM=$PWD
ASSETS=$(cd -- "$1" && pwd) && shift
for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet kube-proxy containerd containerd-shim-runc-v2 ctr; do
    [ -x "$ASSETS/$name" ] || die "there is no $ASSETS/$name"
done
source "$here/cgroups.sh"

mine=scpol-node.$$
alive() { kill -0 "${1##*.}" 2> /dev/null; } # the node.sh whose folder or cgroup has this name
for old in $(cgroups_named 'scpol-node.*'); do alive "$old" || cgroup_remove "$old"; done
for old in "${TMPDIR:-/tmp}"/scpol-node.*; do [ ! -d "$old" ] || alive "$old" || rm -rf "$old"; done
NODE_DIR=${TMPDIR:-/tmp}/$mine && mkdir "$NODE_DIR"
cgroups_make "$mine"

code=0
(
    cgroups_enter "$mine"
    # The cgroup namespace first: its root is the cgroup of the process that makes it.
    exec setpriv --pdeathsig KILL unshare --cgroup bash -c 'source "$1/cgroups.sh" && cgroups_settle "$2" &&
        exec unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc bash "$1/inside.sh" "${@:3}"' \
        node.sh "$here" "$mine" "$@"
) || code=$?
for _ in 1 2 3 4 5 6 7 8 9 10; do
    for dir in $(cgroups_named "$mine"); do cgroup_remove "$dir"; done
    sleep 0.1
done
[ "${KEEP_DIR:-0}" = 1 ] || rm -rf "$NODE_DIR"
exit "$code"
