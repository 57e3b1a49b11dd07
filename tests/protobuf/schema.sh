#!/usr/bin/env bash
# Writes src/cluster/protobuf/schema.txt anew from the types of Kubernetes 1.13 and 1.36, as published: what either has. Where both have
# a field, it is as 1.36 has it.
set -euo pipefail
export LC_ALL=C

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for version in 1.36 1.13; do
    mkdir "$scratch/$version"
    cp "$here"/../controlplane/modules/v$version/go.* "$here/schema.go" "$scratch/$version/"
done
# CronJobs of 1.13 are v1beta1 alone.
cat >"$scratch/1.36/others.go" <<'GO'
package main

import batch "k8s.io/api/batch/v1"

var others = []interface{}{batch.CronJob{}}
GO
printf 'package main\n\nvar others []interface{}\n' >"$scratch/1.13/others.go"

for version in 1.36 1.13; do
    (cd "$scratch/$version" && GOFLAGS=-mod=mod go run .)
done | awk '!known[$1 " " $2]++' | sort -k1,1 -k2,2n >"$scratch/schema.txt"
{
    echo '# Written by tests/protobuf/schema.sh. Message, number of the field, its key in JSON, its form; see `schema.rs`.'
    cat "$scratch/schema.txt"
} >"$here/../../src/cluster/protobuf/schema.txt"
