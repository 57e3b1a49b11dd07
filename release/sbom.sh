#!/usr/bin/env bash
# Prints the software bill of materials of the binary, as CycloneDX JSON. SOURCE_DATE_EPOCH is its date.
#
# The first run builds cargo-cyclonedx. The binary stays in ${SCPOL_CACHE:-${XDG_CACHE_HOME:-~/.cache}/scpol}/cargo-cyclonedx, in a folder
# named after the hash of its recipe.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

recipe=(--quiet --locked --debug cargo-cyclonedx@0.5.9)
key=$(printf '%s\n' "${recipe[@]}" | sha256sum)
tool=${SCPOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/scpol}/cargo-cyclonedx/${key:0:16}
if [ ! -x "$tool/bin/cargo-cyclonedx" ]; then
    echo "sbom: building cargo-cyclonedx" >&2
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --root "$tool" "${recipe[@]}" >&2
fi
# It writes a file beside the Cargo.toml of each package of the workspace; only the binary's is for us.
name=sbom.scpol.$$
trap 'find . -name "$name.json" -not -path "./target/*" -delete' EXIT
"$tool/bin/cargo-cyclonedx" cyclonedx --quiet --format json --target x86_64-unknown-linux-musl --no-build-deps --override-filename "$name" >&2
# Its references name the folder of the checkout.
sed "s#path+file://$PWD#path+file:///build#g" "$name.json"
