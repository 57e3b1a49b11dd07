#!/usr/bin/env bash
# Breaks the operator on purpose, in a copy, and demands that the case which each patch in `defects/` names fails, and that it does not
# fail without the patch.
# `defects.sh NAME..` tries some of them.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
copy=$root/target/defects/copy
export SCPOL_CHAOS_ALL=1
seed=${SCPOL_CHAOS_SEED:-1}
cargo build --locked --quiet --workspace
chaos=$(cargo test --locked --quiet --workspace --test apiserver --no-run --message-format=json \
    | sed -n 's/.*"executable":"\([^"]*\/apiserver-[^"]*\)".*/\1/p') || true
[ -x "$chaos" ] || { echo "error: the cases cannot be built: cargo test --test apiserver --no-run" >&2; exit 2; }

[ $# -gt 0 ] || set -- $(cd tests/chaos/defects && ls ./*.patch | sed 's|./||; s|\.patch$||')
missed=0
declare -A is_sound
for defect; do
    patch=$root/tests/chaos/defects/$defect.patch
    case=$(sed -n '1s/^case: //p' "$patch")
    log=$root/target/defects/$defect.log
    # The seeds of F01 share its requests among themselves: each alone has a third.
    case $case in
        F01*) unset SCPOL_CHAOS_SEED ;;
        *) export SCPOL_CHAOS_SEED=$seed ;;
    esac
    mkdir -p "$root/target/defects"
    if [ -z "${is_sound[$case]:-}" ] && ! "$chaos" "$case" > "$log" 2>&1; then
        echo "$defect: \`$case\` fails without it, too; see $log"
        missed=1
        continue
    fi
    is_sound[$case]=1
    rm -rf "$copy"
    mkdir -p "$copy"
    git ls-files -z | tar --create --null --files-from=- | tar --extract --directory "$copy"
    if ! (cd "$copy" && patch --quiet --strip=1 --fuzz=3 < "$patch" > /dev/null); then
        echo "$defect: does not apply any more: make it anew"
        missed=1
        continue
    fi
    # Files that are whole again may be older than the build with the defect before.
    touch "$copy/src/lib.rs" "$copy/src/main.rs" "$copy"/crates/*/src/lib.rs
    if ! (cd "$copy" && CARGO_TARGET_DIR="$root/target/defects/build" cargo build --locked --quiet --workspace --bins); then
        echo "$defect: does not build any more: make it anew"
        missed=1
        continue
    fi
    if SCPOL_BINARY="$root/target/defects/build/debug/scpol" "$chaos" "$case" > "$log" 2>&1; then
        echo "$defect: NOT FOUND by \`$case\`"
        missed=1
    elif grep -q 'test result: FAILED' "$log"; then
        echo "$defect: found by \`$case\`: $(grep -A2 'repeats this' "$log" | sed -n '2,3p' | tr -s ' \n' ' ' | cut -c 1-200)"
    else
        echo "$defect: \`$case\` could not run; see $log"
        missed=1
    fi
done
exit $missed
