#!/usr/bin/env bash
# Prints the software bill of materials of the binary, as CycloneDX JSON. SOURCE_DATE_EPOCH is its date.
#
# The first run builds cargo-cyclonedx.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

cyclonedx=$(release/tool.sh cargo-cyclonedx --quiet --locked --debug cargo-cyclonedx@0.5.9)
# It writes a file beside the Cargo.toml of each package of the workspace; only the binary's is for us.
name=sbom.scpol.$$
trap 'find . -name "$name.json" -not -path "./target/*" -delete' EXIT
"$cyclonedx" cyclonedx --quiet --format json --target x86_64-unknown-linux-musl --no-build-deps --override-filename "$name" >&2
# Its references name the folder of the checkout.
sed "s#path+file://$PWD#path+file:///build#g" "$name.json"
