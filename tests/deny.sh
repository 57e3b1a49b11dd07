#!/usr/bin/env bash
# Checks licences, duplicates and sources of all dependencies against deny.toml; `make lint` calls it.
#
# The first run builds cargo-deny, in one to two minutes on two cores. The binary stays in
# ${SCPOL_CACHE:-${XDG_CACHE_HOME:-~/.cache}/scpol}/cargo-deny, in a folder named after the hash of its recipe.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

# Without default features: they are for advisories, which need a database from GitHub.
recipe=(--quiet --locked --debug --no-default-features cargo-deny@0.20.2)
key=$(printf '%s\n' "${recipe[@]}" | sha256sum)
tool=${SCPOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/scpol}/cargo-deny/${key:0:16}
if [ ! -x "$tool/bin/cargo-deny" ]; then
    echo "deny: building cargo-deny" >&2
    # No debug information: nobody debugs it, and it is four fifths of the binary.
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --root "$tool" "${recipe[@]}"
fi
"$tool/bin/cargo-deny" --locked --workspace --all-features check --hide-inclusion-graph licenses bans sources
