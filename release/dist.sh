#!/usr/bin/env bash
# Builds what a release has, into target/dist (or the folder that DIST names). `make dist` calls it.
#
#   scpol-VERSION-OS-ARCH.tar.gz          the command, as scpol and as plugins of kubectl, with completions and man pages
#   sidecar-policy-VERSION.oci.tar        the image for each architecture of linux; IMAGE-DIGEST names it
#   install.yaml, install-older.yaml, install-legacy.yaml, author-check.yaml, author-record.yaml  the install files, with the image by digest
#   sidecar-policy-VERSION.tgz            the Helm chart, with the image by digest
#   scpol.yaml                            the manifest for krew
#   sbom.cdx.json, THIRD-PARTY-LICENSES   what the binary is made of, as CycloneDX, and its licences
#   RELEASE-NOTES.md, SHA256SUMS
#
# IMAGE: where the image will be, without a tag. REPOSITORY: OWNER/NAME on GitHub. RELEASE_URL: where these files will be.
# PLATFORMS: what to build for; one that cannot be built fails. A release also has darwin, which a Mac builds: BINARIES is a folder with
# binaries that are built already, as OS-ARCH/scpol. The same sources give the same files.
set -euo pipefail
export LC_ALL=C TZ=UTC
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
dist=${DIST:-target/dist}
image=${IMAGE:-sidecar-policy}
image=${image%:"$version"}
repository=${REPOSITORY:-OWNER/REPOSITORY}
url=${RELEASE_URL:-https://github.com/$repository/releases/download/v$version}
read -ra platforms <<< "${PLATFORMS:-linux/amd64 linux/arm64 windows/amd64}"
# Every date in an archive: that of the commit, or of SOURCE_DATE_EPOCH.
epoch=${SOURCE_DATE_EPOCH:-}
[ -n "$epoch" ] || [ ! -e .git ] || epoch=$(git log -1 --format=%ct)
epoch=${epoch:-0}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "dist: $*" >&2; }
archive() { # FILE FOLDER NAME...
    tar -C "$2" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' -cf - "${@:3}" | gzip -9n > "$1"
}
sum() { sha256sum < "$1" | cut -d ' ' -f 1; }
binary_for() { # OS/ARCH
    local file=${BINARIES:-}/${1/\//-}/scpol
    [[ $1 != windows/* ]] || file+=.exe
    if [ -f "$file" ]; then echo "$file"; else release/binary.sh "$1"; fi
}

rm -rf "$dist"
mkdir -p "$dist"
dist=$(cd "$dist" && pwd)

# ---- the command ---------------------------------------------------------------------------------------------------------------
say "for ${platforms[*]}"
# Prints the completions and the man pages, which are the same for every platform.
scpol=$(binary_for "linux/$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')")
release/licenses.sh > "$dist/THIRD-PARTY-LICENSES"
images=() archs=()
for platform in "${platforms[@]}"; do
    file=scpol name=${platform/\//-}
    [[ $platform != windows/* ]] || file=scpol.exe
    binary=$(binary_for "$platform")
    [[ $platform != linux/* ]] || { images+=("$binary"); archs+=("${platform#*/}"); }
    folder=scpol-$version-$name
    mkdir -p "$work/$folder"/{completions,man/man1}
    install -m 0755 "$binary" "$work/$folder/$file"
    for plugin in kubectl-scpol kubectl_complete-scpol; do [ "$file" != scpol ] || ln -s scpol "$work/$folder/$plugin"; done
    for shell in bash elvish fish powershell zsh; do "$scpol" completions "$shell" > "$work/$folder/completions/scpol.$shell"; done
    "$scpol" man --folder "$work/$folder/man/man1"
    cp LICENSE "$dist/THIRD-PARTY-LICENSES" "$work/$folder/"
    archive "$dist/$folder.tar.gz" "$work" "$folder"
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
  homepage: https://github.com/$repository
  shortDescription: Inject sidecars by policy, and explain who got one
  description: |
    Shows which workloads have the sidecar of a SidecarPolicy and why others do not, checks policies in
    files before they are in effect, and finds what keeps them from working in a cluster.
  platforms:
Y
    for platform in "${platforms[@]}"; do
        folder=scpol-$version-${platform/\//-} file=scpol
        [[ $platform != windows/* ]] || file=scpol.exe
        cat << Y
  - selector:
      matchLabels: {os: ${platform%/*}, arch: ${platform#*/}}
    uri: $url/$folder.tar.gz
    sha256: $(sum "$dist/$folder.tar.gz")
    bin: $file
    files:
    - from: $folder/$file
      to: .
    - from: $folder/*LICENSE*
      to: .
Y
    done
} > "$dist/scpol.yaml"

# ---- the image, and what names it ----------------------------------------------------------------------------------------------
release/image.sh --archive "$dist/sidecar-policy-$version.oci.tar" "$image:$version" "${images[@]}"
digest=$(tar -xOf "$dist/sidecar-policy-$version.oci.tar" index.json | grep -o 'sha256:[0-9a-f]*' | head -n 1)
# With the tag, by which `scpol check` knows the release of the operator.
echo "$image:$version@$digest" > "$dist/IMAGE-DIGEST"
release/inspect.sh "$dist/sidecar-policy-$version.oci.tar" "${archs[@]}"

for file in install install-older install-legacy author-check author-record; do
    sed "s#^\( *image: \)sidecar-policy:.*#\1$image:$version@$digest#" "config/$file.yaml" > "$dist/$file.yaml"
done
REPOSITORY=$repository release/chart.sh "$work" "$image" "$digest"
archive "$dist/sidecar-policy-$version.tgz" "$work" sidecar-policy
say "the image is $(cat "$dist/IMAGE-DIGEST")"

# ---- papers --------------------------------------------------------------------------------------------------------------------
# The text of the version in CHANGELOG.md, and what was checked by whoever downloads it.
awk -v "version=$version" '/^## / { if (found) exit; found = $2 == version; next } found' CHANGELOG.md | sed -e '/./,$!d' > "$dist/RELEASE-NOTES.md"
[ -s "$dist/RELEASE-NOTES.md" ] || { say "CHANGELOG.md has no section '## $version'"; exit 1; }
SOURCE_DATE_EPOCH=$epoch release/sbom.sh > "$dist/sbom.cdx.json"
(cd "$dist" && sha256sum -- * > "$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
ls -l "$dist" | awk 'NR > 1 { printf "dist: %9d  %s\n", $5, $9 }' >&2
