#!/usr/bin/env bash
# Builds the operator's image from a static binary, with docker, podman or buildah, whichever works; no daemon and no registry is needed.
#
#   image.sh BINARY NAME               builds it as NAME into the store of that program
#   image.sh BINARY NAME ARCHIVE       also writes it as an OCI archive; needs podman or buildah
#
# ENGINE: the program to use. The image has no dates, so the same binary gives the same digest.
set -euo pipefail
binary=$(realpath -- "$1") name=$2 archive=${3:+$(realpath -- "$3")}
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

works() {
    command -v "$1" > /dev/null || return
    [ "$1" != docker ] || [ -z "$archive" ] || return
    [ "$1" != docker ] || docker info > /dev/null 2>&1
}
engine=${ENGINE:-}
for candidate in docker podman buildah; do [ -n "$engine" ] || ! works "$candidate" || engine=$candidate; done
[ -n "$engine" ] || { echo "image.sh: no docker with a daemon, no podman and no buildah: install one, such as Debian's package buildah" >&2; exit 2; }

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
install -m 0755 "$binary" "$context/scpol"
case $engine in
    docker) SOURCE_DATE_EPOCH=0 docker build --quiet --tag "$name" --file Dockerfile "$context" >&2 ;;
    *)
        # A host without containers has no list of trusted signatures. Nothing is pulled here.
        policy=$context.json
        trap 'rm -rf "$context" "$policy"' EXIT
        echo '{"default": [{"type": "insecureAcceptAnything"}]}' > "$policy"
        "$engine" build --quiet --pull=never --timestamp 0 --format oci --isolation chroot --signature-policy "$policy" \
            --tag "$name" --file Dockerfile "$context" >&2
        [ -z "$archive" ] || rm -f "$archive"
        [ -z "$archive" ] || "$engine" push --quiet --signature-policy "$policy" "$name" "oci-archive:$archive:$name" >&2
        ;;
esac
echo "image.sh: built $name with $engine" >&2
