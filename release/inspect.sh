#!/usr/bin/env bash
# Checks an image in an OCI archive: it is small, it has the binary and nothing else, it runs as no root, and it starts at once.
#
#   inspect.sh ARCHIVE
set -euo pipefail
most_bytes=20000000 most_ms=100

image=$(mktemp -d)
trap 'rm -rf "$image"' EXIT
tar -xf "$1" -C "$image"
blob() { echo "$image/blobs/sha256/${1#sha256:}"; }
field() { grep -o "\"$2\":$3" "$1" | head -n 1 | cut -d : -f 2-; }
digests() { grep -o 'sha256:[0-9a-f]*' "$1"; }
fail() { echo "inspect.sh: $1: $2" >&2; exit 1; }

manifest=$(blob "$(digests "$image/index.json" | head -n 1)")
mapfile -t parts < <(digests "$manifest") # the configuration, then the layers
[ "${#parts[@]}" = 2 ] || fail "$1" "it has $((${#parts[@]} - 1)) layers, not 1"
grep -q '"User":"65532:65532"' "$(blob "${parts[0]}")" || fail "$1" 'it does not run as 65532:65532'
mkdir "$image/root"
tar -xzf "$(blob "${parts[1]}")" -C "$image/root"
files=$(cd "$image/root" && find . -mindepth 1 | sort | paste -sd ' ')
[ "$files" = ./scpol ] || fail "$1" "it has more files than the binary: $files"
bytes=$(stat -c %s "$image/root/scpol")
((bytes <= most_bytes)) || fail "$1" "it has $bytes bytes, more than $most_bytes"

# In a root of its own: without libraries, a shell or /proc. The best of five, because the machine does other things, too.
best=''
for _ in 1 2 3 4 5; do
    began=$(date +%s%N)
    if [ "$(id -u)" = 0 ]; then chroot --userspec=65532:65532 "$image/root" /scpol version > /dev/null; else "$image/root/scpol" version > /dev/null; fi
    took=$((($(date +%s%N) - began) / 1000000))
    [ -n "$best" ] && ((best <= took)) || best=$took
done
((best < most_ms)) || fail "$1" "it starts in $best ms, not in $most_ms"
echo "inspect.sh: 1 file, $((bytes / 1000)) kB, $(stat -c %s "$1" | awk '{ print int($1 / 1000) }') kB packed, starts in $best ms" >&2
