#!/usr/bin/env bash
# Writes the chart of a release into FOLDER/sidecar-policy: with the version, and the image by registry, repository and digest.
#
#   chart.sh FOLDER IMAGE DIGEST      IMAGE without a tag
#
# REPOSITORY: OWNER/NAME on GitHub.
set -euo pipefail
folder=$(realpath -- "$1") image=$2 digest=$3
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
chart=$folder/sidecar-policy
cp -r charts/sidecar-policy "$chart"
# As docker reads it: the first part is a registry if it has a dot or a port.
registry='' path=$image
case ${image%%/*} in
    "$image") ;;
    *.* | *:* | localhost) registry=${image%%/*} path=${image#*/} ;;
esac
sed -i -e "s/^\(version\|appVersion\): .*/\1: $version/" -e "s#^\(  scpol.dev/image-digest:\) .*#\1 $digest#" "$chart/Chart.yaml"
sed -i "/^image:/,/^[^ #]/ { s#^  registry: .*#  registry: \"$registry\"#; s#^  repository: .*#  repository: \"$path\"# }" "$chart/values.yaml"
grep -rlZ OWNER/REPOSITORY "$chart" | xargs -0 --no-run-if-empty sed -i "s#OWNER/REPOSITORY#${REPOSITORY:-OWNER/REPOSITORY}#g"
