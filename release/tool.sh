#!/usr/bin/env bash
# Prints the path of a program of crates.io, which it builds the first time.
#
#   tool.sh PROGRAM OPTION...      the options of `cargo install`, with the package and its version
#
# The binary stays in ${SCPOL_CACHE:-${XDG_CACHE_HOME:-~/.cache}/scpol}/PROGRAM, in a folder named after the hash of the options.
set -euo pipefail
program=$1
recipe=("${@:2}")
key=$(printf '%s\n' "${recipe[@]}" | sha256sum)
tool=${SCPOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/scpol}/$program/${key:0:16}
if [ ! -x "$tool/bin/$program" ]; then
    echo "tool.sh: building $program" >&2
    # No debug information: nobody debugs it, and it is four fifths of the binary.
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --root "$tool" "${recipe[@]}" >&2
fi
echo "$tool/bin/$program"
