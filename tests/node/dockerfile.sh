#!/usr/bin/env bash
# Builds a checkout's Dockerfile as it stands, without a registry, and writes the image as a docker-archive:
#
#   unshare --mount dockerfile.sh CHECKOUT IMAGE.tar      as root, on Debian 12, with Rust, buildah and `apt-get download`
#
# Its base images are made here, under their names: that of the first stage from this machine's own /usr and Rust, that of the second
# from the packages that distroless/cc consists of. STORE: where buildah keeps layers. With them a second build takes seconds.
set -euo pipefail
checkout=$(cd -- "$1" && pwd) out=$(realpath -- "$2")
store=${STORE:-${SCPOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/scpol}/buildah}
cargo=${CARGO_HOME:-$HOME/.cargo} rustup=${RUSTUP_HOME:-$HOME/.rustup}
mkdir -p "$store/debs" && cd "$store"
printf '{"default": [{"type": "insecureAcceptAnything"}]}' > policy.json
printf 'unqualified-search-registries = []\n' > registries.conf
build() { buildah --root "$store/root" --runroot "$store/runroot" --storage-driver overlay --registries-conf "$store/registries.conf" "$@"; }
export BUILDAH_ISOLATION=chroot
mount -t tmpfs run /run

base() { # name folder options of `buildah config`
    local container
    container=$(build from scratch)
    build copy -q "$container" "$2" / > /dev/null
    build config "${@:3}" "$container"
    build commit -q --signature-policy policy.json "$container" "$1" > /dev/null
    build rm "$container" > /dev/null
}
first_stage() {
    mkdir -p first/{usr,etc,root,proc,sys,dev,tmp,var/tmp,run}
    ln -s usr/bin usr/sbin usr/lib usr/lib64 first/
    chmod 1777 first/tmp
    base "$1" first --env PATH="$cargo/bin:/usr/local/bin:/usr/bin" --env CARGO_HOME="$cargo" --env RUSTUP_HOME="$rustup"
}
second_stage() {
    local deb
    mkdir -p second/{tmp,etc,home/nonroot}
    (cd debs && apt-get -qq download base-files netbase tzdata ca-certificates libc6 libssl3 libgcc-s1 libgomp1 libstdc++6)
    for deb in debs/*.deb; do dpkg -x "$deb" second; done
    echo 'nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin' > second/etc/passwd
    chmod 1777 second/tmp && chown 65532:65532 second/home/nonroot
    base "$1" second --user 65532 --workingdir /home/nonroot
}

mapfile -t bases < <(sed -n 's/^FROM \([^ ]*\).*/\1/p' "$checkout/Dockerfile")
if ! build inspect --type image "${bases[1]}" > /dev/null 2>&1; then
    rm -rf first second
    first_stage "${bases[0]}"
    second_stage "${bases[1]}"
fi
build bud --signature-policy policy.json --pull=never --format docker --layers --tag built \
    -v /usr:/usr:ro -v /etc:/etc:ro -v "$cargo:$cargo" -v "$rustup:$rustup:ro" -f "$checkout/Dockerfile" "$checkout"
rm -f "$out"
build push -q --signature-policy policy.json built "docker-archive:$out:sidecar-policy:0.1.0"
