#!/usr/bin/env bash
# Builds what a release has, into target/dist (or the folder that DIST names). `make dist` calls it.
#
#   scpol-VERSION-linux-ARCH.tar.gz       the command, as scpol and as plugins of kubectl, with completions and man pages
#   sidecar-policy-VERSION.oci.tar        the image; IMAGE-DIGEST has its digest
#   install.yaml, install-older.yaml, install-legacy.yaml, author-check.yaml, author-record.yaml  the install files, with the image by digest
#   sidecar-policy-VERSION.tgz            the Helm chart, with the image by digest
#   scpol.yaml                            the manifest for krew
#   sbom.cdx.json                         what the binary is made of, as CycloneDX
#   RELEASE-NOTES.md, SHA256SUMS
#
# IMAGE: where the image will be, without a tag. RELEASE_URL: where these files will be. The same sources give the same files.
set -euo pipefail
export LC_ALL=C TZ=UTC
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
dist=${DIST:-target/dist}
image=${IMAGE:-sidecar-policy}
image=${image%:"$version"}
url=${RELEASE_URL:-https://example.com/sidecar-policy/releases/download/v$version}
# Every date in an archive: that of the commit, or of SOURCE_DATE_EPOCH.
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || echo 0)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "dist: $*" >&2; }
archive() { # FILE FOLDER NAME...
    tar -C "$2" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' -cf - "${@:3}" | gzip -9n > "$1"
}
sum() { sha256sum < "$1" | cut -d ' ' -f 1; }

rm -rf "$dist"
mkdir -p "$dist"
dist=$(cd "$dist" && pwd)

# ---- the command ---------------------------------------------------------------------------------------------------------------
declare -A sums=()
own=$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
for arch in "$own" $([ "$own" = arm64 ] && echo amd64 || echo arm64); do
    if ! binary=$(release/binary.sh "$arch"); then
        [ "$arch" != "$own" ] || exit 1
        say "no command for $arch: see above"
        continue
    fi
    [ "$arch" != "$own" ] || scpol=$binary
    folder=scpol-$version-linux-$arch
    mkdir -p "$work/$folder"/{completions,man/man1}
    install -m 0755 "$binary" "$work/$folder/scpol"
    ln -s scpol "$work/$folder/kubectl-scpol"
    ln -s scpol "$work/$folder/kubectl_complete-scpol"
    for shell in bash elvish fish powershell zsh; do "$scpol" completions "$shell" > "$work/$folder/completions/scpol.$shell"; done
    "$scpol" man --folder "$work/$folder/man/man1"
    cp LICENSE "$work/$folder/"
    archive "$dist/$folder.tar.gz" "$work" "$folder"
    sums[$arch]=$(sum "$dist/$folder.tar.gz")
    say "$folder.tar.gz"
done

{
    cat << Y
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: scpol
spec:
  version: v$version
  shortDescription: Inject sidecars by policy, and explain who got one
  description: |
    Shows which workloads have the sidecar of a SidecarPolicy and why others do not, checks policies in
    files before they are in effect, and finds what keeps them from working in a cluster.
  platforms:
Y
    for arch in $(printf '%s\n' "${!sums[@]}" | sort); do
        cat << Y
  - selector:
      matchLabels: {os: linux, arch: $arch}
    uri: $url/scpol-$version-linux-$arch.tar.gz
    sha256: ${sums[$arch]}
    bin: scpol
    files:
    - from: scpol-$version-linux-$arch/scpol
      to: .
    - from: scpol-$version-linux-$arch/LICENSE
      to: .
Y
    done
} > "$dist/scpol.yaml"

# ---- the image, and what names it ----------------------------------------------------------------------------------------------
release/image.sh "$scpol" "$image:$version" "$dist/sidecar-policy-$version.oci.tar" > /dev/null
digest=$(tar -xOf "$dist/sidecar-policy-$version.oci.tar" index.json | grep -o 'sha256:[0-9a-f]*' | head -n 1)
echo "$image@$digest" > "$dist/IMAGE-DIGEST"
release/inspect.sh "$dist/sidecar-policy-$version.oci.tar"

for file in install install-older install-legacy author-check author-record; do
    sed "s#^\( *image: \)sidecar-policy:.*#\1$image@$digest#" "config/$file.yaml" > "$dist/$file.yaml"
done
cp -r charts/sidecar-policy "$work/"
sed -i "s/^\(version\|appVersion\): .*/\1: $version/" "$work/sidecar-policy/Chart.yaml"
sed -i -e "/^image:/,/^[^ #]/ { s#^  repository: .*#  repository: $image#; s#^  digest: .*#  digest: $digest# }" "$work/sidecar-policy/values.yaml"
archive "$dist/sidecar-policy-$version.tgz" "$work" sidecar-policy
say "the image is $image@$digest"

# ---- papers --------------------------------------------------------------------------------------------------------------------
# The text of the version in CHANGELOG.md, and what was checked by whoever downloads it.
awk -v "version=$version" '/^## / { if (found) exit; found = $2 == version; next } found' CHANGELOG.md | sed -e '/./,$!d' > "$dist/RELEASE-NOTES.md"
[ -s "$dist/RELEASE-NOTES.md" ] || { say "CHANGELOG.md has no section '## $version'"; exit 1; }
SOURCE_DATE_EPOCH=$epoch release/sbom.sh > "$dist/sbom.cdx.json"
(cd "$dist" && sha256sum -- * > "$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
ls -l "$dist" | awk 'NR > 1 { printf "dist: %9d  %s\n", $5, $9 }' >&2
