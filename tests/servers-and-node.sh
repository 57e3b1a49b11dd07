#!/usr/bin/env bash
# Runs the tests on real servers and, beside them, the short checks on a real node. `make test` calls it. Without 10 GB of free memory one
# runs after the other.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
least_kb=10000000
log=target/seconds/node.log
mkdir -p "${log%/*}"

available_kb=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2> /dev/null || true)
if ((${available_kb:-0} < least_kb)); then
    make --no-print-directory test-servers
    exec make --no-print-directory node-short
fi
set -m # the node gets a process group of its own
make --no-print-directory node-short > "$log" 2>&1 < /dev/null &
set +m
node=$! code=0
trap 'kill -- -"$node" 2> /dev/null || true' EXIT
make --no-print-directory test-servers || code=$?
wait "$node" || code=$?
cat "$log"
exit "$code"
