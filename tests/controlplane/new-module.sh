#!/usr/bin/env bash
# Writes the Go module of a version of Kubernetes into modules/: upstream's go.mod, with the published staging modules.
#
#   new-module.sh 1.35.4
#   new-module.sh 1.27.16 -replace=k8s.io/legacy-cloud-providers=k8s.io/legacy-cloud-providers@v0.27.8      with flags of `go mod edit`
#   new-module.sh --newest 1.37.2      also for the controllers, kubectl, and a node
#
# If a staging module of that patch is not published, the command fails and names the module. Replace it with another patch then.
set -euo pipefail

commands=(k8s.io/kubernetes/cmd/kube-apiserver)
if [[ $1 == --newest ]]; then
    commands+=(k8s.io/kubernetes/cmd/{kube-controller-manager,kube-scheduler,kubectl,kubelet,kube-proxy})
    shift
fi
version=$1
shift
module=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/modules/v${version%.*}
export GOFLAGS=-buildvcs=false GOWORK=off GO111MODULE=on CGO_ENABLED=0

mkdir -p "$module" && cd "$module"
rm -f go.mod go.sum
field() { sed -n "s/^\t\"$1\": \"\(.*\)\",\$/\1/p"; }
published=$(cd /tmp && go mod download -json "k8s.io/kubernetes@v$version")
unpublished='(k8s\.io/sample-[a-z-]+|vbom\.ml/util)' # and not needed
upstream=$(grep -v '^//' "$(field GoMod <<<"$published")")
{
    sed -E -e '/./,$!d' -e 's/^module .*/module controlplane/' -e "\#^\t$unpublished #d" \
        -e "s#=> \./staging/src/(k8s\.io/[a-z-]+)#=> \1 v0.${version#1.}#" <<<"$upstream"
    printf '\nrequire k8s.io/kubernetes v%s\n' "$version"
    printf '\nexclude (\n'
    grep -oE "^\s$unpublished v[^ ]+" <<<"$upstream" || true
    printf ')\n'
} >go.mod
(($# == 0)) || go mod edit "$@"

# The build generates OpenAPI definitions that are not published. What generates them is in its vendor folder only as a tool.
if [[ ! -e $(field Dir <<<"$published")/pkg/generated/openapi/zz_generated.openapi.go ]]; then
    commands+=(k8s.io/kube-openapi/cmd/openapi-gen)
    for command in "${commands[@]}"; do go mod edit -tool "$command"; done
fi
go list -mod=mod -deps "${commands[@]}" >/dev/null
