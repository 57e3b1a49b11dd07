#!/usr/bin/env bash
# Prints in one line the Debian packages that `make dist` and `make docs` lack here. Prints nothing if they lack nothing.
#
#   needs.sh              looks
#   needs.sh --install    first installs them, if it may
set -euo pipefail

packages() {
    command -v buildah > /dev/null || command -v podman > /dev/null || echo buildah
    command -v chromium > /dev/null || echo chromium
}

source "$(dirname -- "${BASH_SOURCE[0]}")/packages.sh"
find_missing "${1:-}"
((${#missing[@]} == 0)) || echo "${missing[*]}"
