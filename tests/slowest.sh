#!/usr/bin/env bash
# Prints the 30 tests and starts of servers that took longest in the last `make test`, and the tests that ran twice because
# they had failed once; `make slowest` calls it.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../target/seconds"
{
    sed -n 's/^test \(.*\) \.\.\. ok <\([0-9.]*\)s>$/\2 s  test \1/p' offline.log 2>/dev/null || true
    cat servers.txt 2>/dev/null || true
} | sort --reverse --numeric-sort | sed -n 1,30p
cat retried.txt 2>/dev/null || true
