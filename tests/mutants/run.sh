#!/usr/bin/env bash
# Changes the code that decides and injects, one small place at a time, and tells which changes no test notices; `make mutants`
# calls it. Arguments go to cargo-mutants:
#
#   --shard 3/20                    a twentieth of them
#   --in-diff my.diff               those in the lines of a diff
#   --re 'undo.rs.*remove_empty'    those of such a name; --list shows the names
#
# Each takes 10 to 30 seconds on two cores, all of them about three hours. What is mutated, what judges it, and what is left out
# stands in config.toml. It works on a copy, whose build is kept in ${SCPOL_CACHE:-${XDG_CACHE_HOME:-~/.cache}/scpol}/mutants;
# target/mutants/mutants.out has the result and every log.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

version=27.1.0
cache=${SCPOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/scpol}
tool=$cache/cargo-mutants/$version
copy=$cache/mutants/tree
if [ ! -x "$tool/bin/cargo-mutants" ]; then
    cargo install --quiet --locked --debug --root "$tool" "cargo-mutants@$version"
fi

mkdir -p "$copy" target/mutants
exec 9>"$cache/mutants/lock"
if ! flock --nonblock 9; then
    echo "error: another run uses $copy" >&2
    exit 2
fi
# At one place, so that what was built stays good. What a killed run has left there is built anew: hence the new time.
find "$copy" -mindepth 1 -delete
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    [ ! -e "$file" ] || printf '%s\0' "$file"
done | tar --create --null --files-from=- | tar --extract --directory="$copy"
touch "$copy/src/lib.rs" "$copy/crates/core/src/lib.rs"

# A build and a run of the tests for each mutant: no debug information to write, and few cases of each law.
CARGO_TARGET_DIR=$cache/mutants/target CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=0 PROPTEST_CASES=${PROPTEST_CASES:-64} \
    "$tool/bin/cargo-mutants" mutants --workspace --test-workspace=true --dir "$copy" --config tests/mutants/config.toml --in-place --output target/mutants "$@"
