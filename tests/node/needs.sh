#!/usr/bin/env bash
# Prints in one line what this machine lacks for a real node, and how to get it. Prints nothing if it lacks nothing.
#
#   needs.sh              looks
#   needs.sh --install    first installs the missing Debian packages, if it may
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

cni() { [ -x /usr/lib/cni/bridge ] || [ -x /opt/cni/bin/bridge ]; }
# The image of busybox has no libraries.
busybox() { [ -x /bin/busybox ] && ! ldd /bin/busybox > /dev/null 2>&1; }
packages() {
    command -v runc > /dev/null || echo runc
    cni || echo containernetworking-plugins
    busybox || echo busybox-static
    command -v curl > /dev/null || echo curl
    command -v openssl > /dev/null || echo openssl
    command -v ip > /dev/null || echo iproute2
    command -v nft > /dev/null || echo nftables
}
go_or_assets() { command -v go > /dev/null || compgen -v | grep -q '^SCPOL_ASSETS_.*_NODE$'; }
namespaces() { unshare --cgroup --mount --net --uts --ipc --pid --fork true 2> /dev/null; }

source "$(dirname -- "${BASH_SOURCE[0]}")/../../release/packages.sh"
find_missing "${1:-}"
lacks=()
[ "$(uname -s)" = Linux ] || lacks+=('Linux')
[ "$(id -u)" = 0 ] || lacks+=('root')
((${#missing[@]} == 0)) || lacks+=("the Debian packages ${missing[*]}")
go_or_assets || lacks+=('Go, or SCPOL_ASSETS_1_36_NODE')
[ "$(id -u)" != 0 ] || namespaces || lacks+=('the right to make namespaces')
(IFS=';' && sed 's/;/; /g' <<< "${lacks[*]}" | grep . || true)
