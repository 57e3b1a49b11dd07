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

mapfile -t missing < <(packages)
if [ "${1:-}" = --install ] && ((${#missing[@]})) && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    {
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends --yes "${missing[@]}"
    } < /dev/null >&2 || echo 'needs.sh: apt-get could not install what is missing' >&2
    mapfile -t missing < <(packages)
fi
((${#missing[@]} == 0)) || echo "${missing[*]}"
