#!/usr/bin/env bash
# Prints in one line the Debian packages that `make dist` and `make docs` lack here. Prints nothing if they lack nothing.
#
#   needs.sh              looks
#   needs.sh --install    first installs them, if it may
set -euo pipefail

packages() {
    command -v buildah > /dev/null || command -v podman > /dev/null || echo buildah
    command -v chromium > /dev/null || echo chromium
    # The compilers and headers of release/binary.sh for the platforms that this machine is not.
    [ "$(uname -m)" = x86_64 ] || command -v x86_64-linux-gnu-gcc > /dev/null || echo gcc-x86-64-linux-gnu
    [ "$(uname -m)" = x86_64 ] || [ -f /usr/x86_64-linux-gnu/include/stdint.h ] || echo libc6-dev-amd64-cross
    [ "$(uname -m)" = aarch64 ] || command -v aarch64-linux-gnu-gcc > /dev/null || echo gcc-aarch64-linux-gnu
    [ "$(uname -m)" = aarch64 ] || [ -f /usr/aarch64-linux-gnu/include/stdint.h ] || echo libc6-dev-arm64-cross
    command -v x86_64-w64-mingw32-gcc > /dev/null || echo gcc-mingw-w64-x86-64
}

source "$(dirname -- "${BASH_SOURCE[0]}")/packages.sh"
find_missing "${1:-}"
((${#missing[@]} == 0)) || echo "${missing[*]}"
