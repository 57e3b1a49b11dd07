#!/usr/bin/env bash
# Prints the licences of everything that the binary is made of, with their texts. A text that several crates share is printed once.
set -euo pipefail
export LC_ALL=C
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

sources=$(mktemp)
trap 'rm -f "$sources"' EXIT
# For every platform at once: package, version, licence.
cargo tree --quiet --locked --package sidecar-policy --edges normal --target all --prefix none --format '{p}|{l}' |
    sed -e 's/ (\*)$//' -e '/ (\/.*)|/d' -e 's/ (proc-macro)//' | sort -u > "$sources"
cargo fetch --quiet --locked
echo 'scpol is made of these packages of crates.io, and of the standard library of Rust (MIT OR Apache-2.0):'
echo
sed -E 's/^([^ ]+) v([^|]+)\|(.*)$/- \1 \2: \3/' "$sources"
declare -A names=() files=()
while IFS='|' read -r package _; do
    for file in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"${package/ v/-}"/{LICEN[CS]E,COPYING,NOTICE,COPYRIGHT}*; do
        [ -f "$file" ] || continue
        sum=$(tr -d '\r' < "$file" | sha256sum)
        names[$sum]+="${names[$sum]:+, }${package/ v/ }"
        files[$sum]=$file
    done
done < "$sources"
((${#files[@]} > 50)) || { echo 'licenses.sh: there are hardly any texts in the sources of the packages' >&2; exit 1; }
for sum in $(printf '%s\n' "${!files[@]}" | cut -d ' ' -f 1 | sort); do
    printf '\n==== %s\n\n' "${names["$sum  -"]}"
    tr -d '\r' < "${files["$sum  -"]}"
done
