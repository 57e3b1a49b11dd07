#!/usr/bin/env bash
# Checks the image in an OCI archive: an index with one image for each architecture. Each is small, has the binary and nothing else, and
# runs as no root. That of this machine starts at once. The same binaries give the same index again.
#
#   inspect.sh ARCHIVE ARCH...
set -euo pipefail
most_bytes=20000000 most_ms=100

archive=$1
image=$(mktemp -d)
trap 'rm -rf "$image"' EXIT
tar -xf "$archive" -C "$image"
blob() { echo "$image/blobs/sha256/${1#sha256:}"; }
digests() { grep -o 'sha256:[0-9a-f]*' "$1"; }
fail() { echo "inspect.sh: $archive: $*" >&2; exit 1; }

(cd "$image/blobs/sha256" && for name in *; do echo "$name  $name"; done | sha256sum --quiet --check) || fail 'a blob has another digest than its name says'
digest=$(digests "$image/index.json")
[ "$(wc -l <<< "$digest")" = 1 ] || fail 'it has more than one image'
index=$(blob "$digest")
mapfile -t manifests < <(digests "$index")
mapfile -t archs < <(grep -o '"platform":{"architecture":"[a-z0-9]*","os":"linux"}' "$index" | cut -d '"' -f 6)
[ "${archs[*]}" = "${*:2}" ] || fail "it is for '${archs[*]}', not for '${*:2}'"
[ "${#manifests[@]}" = "${#archs[@]}" ] || fail 'a manifest of the index names no platform'

own=$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
binaries=()
for i in "${!archs[@]}"; do
    arch=${archs[i]} root=$image/${archs[i]}
    mapfile -t parts < <(digests "$(blob "${manifests[i]}")") # the configuration, then the layers
    [ "${#parts[@]}" = 2 ] || fail "$arch has $((${#parts[@]} - 1)) layers, not 1"
    config=$(blob "${parts[0]}")
    grep -q "\"architecture\":\"$arch\"" "$config" || fail "the image for $arch says that it is for another architecture"
    grep -q '"User":"65532:65532"' "$config" || fail "$arch does not run as 65532:65532"
    mkdir "$root"
    tar -xzf "$(blob "${parts[1]}")" -C "$root"
    files=$(cd "$root" && find . -mindepth 1 | sort | paste -sd ' ')
    [ "$files" = ./scpol ] || fail "$arch has more files than the binary: $files"
    case $arch-$(od -An -tx1 -j18 -N1 "$root/scpol") in *amd64-*3e | *arm64-*b7) ;; *) fail "the binary for $arch is for another architecture" ;; esac
    ! readelf -lW "$root/scpol" | grep -q INTERP || fail "the binary for $arch is not static"
    bytes=$(stat -c %s "$root/scpol")
    ((bytes <= most_bytes)) || fail "the binary for $arch has $bytes bytes, more than $most_bytes"
    binaries+=("$root/scpol")
    says="$((bytes / 1000)) kB, $(stat -c %s "$(blob "${parts[1]}")" | awk '{ print int($1 / 1000) }') kB packed"
    [ "$arch" = "$own" ] || { echo "inspect.sh: $arch: 1 file, $says" >&2; continue; }

    # In a root of its own: without libraries, a shell or /proc. The best of five, because the machine does other things, too.
    best=''
    for _ in 1 2 3 4 5; do
        began=$(date +%s%N)
        if [ "$(id -u)" = 0 ]; then chroot --userspec=65532:65532 "$root" /scpol version > /dev/null; else "$root/scpol" version > /dev/null; fi
        took=$((($(date +%s%N) - began) / 1000000))
        [ -n "$best" ] && ((best <= took)) || best=$took
    done
    ((best < most_ms)) || fail "it starts in $best ms, not in $most_ms"
    echo "inspect.sh: $arch: 1 file, $says, starts in $best ms" >&2
done

name=$(grep -o '"org.opencontainers.image.ref.name":"[^"]*"' "$image/index.json" | cut -d '"' -f 4)
"$(dirname -- "${BASH_SOURCE[0]}")/image.sh" --archive "$image/again.tar" "$name" "${binaries[@]}" 2> "$image/log" || { cat "$image/log" >&2; fail 'it cannot be built again'; }
[ "$(tar -xOf "$image/again.tar" index.json | grep -o 'sha256:[0-9a-f]*')" = "$digest" ] || fail 'the same binaries give another digest'
