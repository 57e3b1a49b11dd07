#!/usr/bin/env bash
# Breaks the rollouts of the core on purpose, in a copy, and demands that the model finds each defect of `defects/` in as many states as
# `make test` explores. `defects.sh NAME..` tries some of them.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
work=$root/target/defects/model
mkdir -p "$work"

[ $# -gt 0 ] || set -- $(cd tests/model/defects && ls ./*.patch | sed 's|./||; s|\.patch$||')
missed=0
for defect; do
    log=$work/$defect.log
    rm -rf "$work/copy"
    mkdir -p "$work/copy"
    git ls-files -z | tar --create --null --files-from=- | tar --extract --directory "$work/copy"
    if ! patch --quiet --strip=1 --fuzz=3 --directory "$work/copy" < "tests/model/defects/$defect.patch" > /dev/null; then
        echo "$defect: does not apply any more: make it anew"
        missed=1
        continue
    fi
    # Files that are whole again may be older than the build with the defect before.
    touch "$work"/copy/crates/core/src/lib.rs "$work"/copy/tests/model/src/lib.rs
    cd "$work/copy"
    export CARGO_TARGET_DIR=$work/build
    if ! cargo test --locked --quiet --package model --no-run 2> "$log"; then
        echo "$defect: does not build any more: make it anew; see $log"
        missed=1
    elif cargo test --locked --quiet --package model > "$log" 2>&1; then
        echo "$defect: NOT FOUND"
        missed=1
    elif grep -q 'is untrue after\|test result: FAILED' "$log"; then
        echo "$defect: found: $(grep 'is untrue after' "$log" | sort -u | head -3 | tr '\n' ' ')"
    else
        echo "$defect: the model could not run; see $log"
        missed=1
    fi
    cd "$root"
done
exit $missed
