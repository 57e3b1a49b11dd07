# For scripts that need Debian packages: they define `packages`, which prints the missing ones, a line each, and call
# `find_missing "$1"`. It sets the array `missing`. With --install it first installs them, if it may.
find_missing() { # [--install]
    mapfile -t missing < <(packages)
    if [ "${1:-}" = --install ] && ((${#missing[@]})) && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
        {
            apt-get -qq update
            DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends --yes "${missing[@]}"
        } < /dev/null >&2 || echo 'needs.sh: apt-get could not install what is missing' >&2
        mapfile -t missing < <(packages)
    fi
}
