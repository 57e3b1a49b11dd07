#!/usr/bin/env bash
# Builds the operator's image from static binaries, with docker, podman or buildah, whichever works; no daemon and no registry is needed.
#
#   image.sh NAME BINARY                       builds it as NAME into the store of that program
#   image.sh --archive FILE NAME BINARY...     also writes an OCI archive: an index with an image for each binary; needs podman or buildah
#
# ENGINE: the program to use. The image has no dates, so the same binaries give the same digest.
set -euo pipefail
archive=''
if [ "$1" = --archive ]; then
    archive=$(realpath -- "$2")
    shift 2
fi
name=$1
paths=$(realpath -- "${@:2}")
mapfile -t binaries <<< "$paths"
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

works() {
    command -v "$1" > /dev/null || return
    [ "$1" != docker ] || [ -z "$archive" ] || return
    [ "$1" != docker ] || docker info > /dev/null 2>&1
}
engine=${ENGINE:-}
for candidate in docker podman buildah; do [ -n "$engine" ] || ! works "$candidate" || engine=$candidate; done
[ -n "$engine" ] || { echo "image.sh: no docker with a daemon, no podman and no buildah: install one, such as Debian's package buildah" >&2; exit 2; }

# A binary says itself what it is for.
architecture() {
    case $(od -An -tx1 -j18 -N1 "$1") in
        *3e) echo amd64 ;;
        *b7) echo arm64 ;;
        *) echo "image.sh: $1 is no binary for amd64 or arm64" >&2; return 1 ;;
    esac
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A host without containers has no list of trusted signatures. Nothing is pulled here.
echo '{"default": [{"type": "insecureAcceptAnything"}]}' > "$work/policy.json"
members=()
for binary in "${binaries[@]}"; do
    arch=$(architecture "$binary")
    mkdir "$work/$arch"
    install -m 0755 "$binary" "$work/$arch/scpol"
    options=(--quiet --platform "linux/$arch" --tag "$name" --file release/Dockerfile)
    if [ "$engine" = docker ]; then
        SOURCE_DATE_EPOCH=0 docker build "${options[@]}" "$work/$arch" >&2
        continue
    fi
    id=$("$engine" build "${options[@]}" --pull=never --timestamp 0 --format oci --isolation chroot --signature-policy "$work/policy.json" "$work/$arch")
    [ -n "$archive" ] || continue
    # By its ID: an image that was there already may keep its name of then.
    "$engine" push --quiet --signature-policy "$work/policy.json" "$id" "oci:$work/layout:$arch" >&2
    member=$(grep -o "{[^{}]*{[^{}]*ref.name\":\"$arch\"" "$work/layout/index.json")
    digest=$(grep -o 'sha256:[0-9a-f]*' <<< "$member")
    size=$(stat -c %s "$work/layout/blobs/sha256/${digest#*:}")
    members+=("{\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"digest\":\"$digest\",\"size\":$size,\"platform\":{\"architecture\":\"$arch\",\"os\":\"linux\"}}")
done
if [ -n "$archive" ]; then
    type=application/vnd.oci.image.index.v1+json
    printf '{"schemaVersion":2,"mediaType":"%s","manifests":[%s]}' "$type" "$(IFS=, && echo "${members[*]}")" > "$work/index"
    digest=$(sha256sum < "$work/index" | cut -d ' ' -f 1)
    mv "$work/index" "$work/layout/blobs/sha256/$digest"
    printf '{"schemaVersion":2,"manifests":[{"mediaType":"%s","digest":"sha256:%s","size":%s,"annotations":{"org.opencontainers.image.ref.name":"%s"}}]}' \
        "$type" "$digest" "$(stat -c %s "$work/layout/blobs/sha256/$digest")" "$name" > "$work/layout/index.json"
    tar -C "$work/layout" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' -cf "$archive" blobs index.json oci-layout
fi
echo "image.sh: built $name with $engine" >&2
