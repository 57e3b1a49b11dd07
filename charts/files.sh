#!/usr/bin/env bash
# Copies the files of config/ and crds/ that the chart renders into charts/sidecar-policy/files. `make install-files` calls it.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

files=${1:-charts/sidecar-policy/files}
rm -rf "$files"
mkdir -p "$files"/{crds,rbac/base,author,fence,prometheus,grafana}
cp crds/sidecarpolicies*.yaml "$files/crds"
cp config/rbac/*.yaml "$files/rbac/base"
cp -r config/rbac/{admission-policy,author-webhook,initializer,metrics-authorization,nodes,priority-lane,reports,rollout,secrets,webhook} "$files/rbac"
cp config/author/policy.yaml "$files/author"
cp config/author-record/policy.yaml "$files/author/record.yaml"
cp config/fence/policy.yaml "$files/fence"
cp config/manager/namespace.yaml "$files"
cp config/prometheus/*.yaml "$files/prometheus"
cp config/grafana/dashboard.json "$files/grafana"
find "$files" -name kustomization.yaml -delete
