#!/usr/bin/env bash
# Checks licences, duplicates and sources of all dependencies against deny.toml; `make lint` calls it.
#
# The first run builds cargo-deny, in one to two minutes on two cores.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

# Without default features: they are for advisories, which need a database from GitHub.
deny=$(release/tool.sh cargo-deny --quiet --locked --debug --no-default-features cargo-deny@0.20.2)
"$deny" --locked --workspace --all-features check --hide-inclusion-graph licenses bans sources
