#!/usr/bin/env bash
# Runs the targets under libFuzzer, one after the other; `make fuzz` calls it.
#
#   FUZZ_SECONDS=60                 for each target
#   FUZZ_RUNS=10000000              so many inputs for each target, however long it takes
#   FUZZ_TARGETS='inject policy'    instead of all
#
# Works with a stable compiler and g++: what cargo-fuzz does with a nightly one is a pass of LLVM, and stable flags switch it on.
# What an input has reached for the first time is kept as corpus in ${SCPOL_CACHE:-${XDG_CACHE_HOME:-~/.cache}/scpol}/fuzz, so that
# the next run goes on from there.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

targets=${FUZZ_TARGETS:-policy selector expression inject parameters review request object registered schema manifest}
limit=(-max_total_time="${FUZZ_SECONDS:-60}")
[ -z "${FUZZ_RUNS:-}" ] || limit=(-runs="$FUZZ_RUNS")
corpus=${SCPOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/scpol}/fuzz
out=${CARGO_TARGET_DIR:-target}/fuzz

# Assertions and checks for overflow stay on. Crates of others are not instrumented, but for what is compiled into ours: it would take
# a third more time, and guide to what they have fuzzed themselves.
CARGO_TARGET_DIR=$out CARGO_PROFILE_DEV_OPT_LEVEL=3 CARGO_PROFILE_DEV_DEBUG=1 CARGO_INCREMENTAL=0 \
    RUSTC_WORKSPACE_WRAPPER=$PWD/tests/fuzz/instrument.sh cargo build --locked -p fuzz --features libfuzzer
fuzz=$out/debug/fuzz

# Longer inputs reach nothing that shorter ones do not, and take as much longer.
longest=2048

failed=0
for target in $targets; do
    folder=$out/$target
    mkdir -p "$folder/seeds" "$folder/broken" "$corpus/$target"
    log=$folder/log
    if FUZZ_TARGET=$target FUZZ_SEEDS=$folder/seeds "$fuzz" "$corpus/$target" "$folder/seeds" "${limit[@]}" \
        -timeout=10 -rss_limit_mb=2048 -max_len="$longest" -dict=tests/fuzz/words.dict -artifact_prefix="$folder/broken/" \
        -print_final_stats=1 >"$log" 2>&1; then
        awk -v target="$target" '/^stat::number_of_executed_units/ { runs = $2 } /cov: / { cov = $0; sub(/.* cov: /, "", cov); sub(/ .*/, "", cov) }
            END { printf "%-10s nothing found in %d inputs, which reach %d places\n", target, runs, cov }' "$log"
        continue
    fi
    failed=1
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n1)
    echo "$target breaks. See $log" >&2
    grep -m1 -A2 -E "panicked at|ERROR: libFuzzer" "$log" >&2 || tail -n3 "$log" >&2
    [ -z "$input" ] || echo "again:  FUZZ_TARGET=$target $fuzz $input
keep:   cp $input tests/fuzz/inputs/$target/   # every \`make test\` tries it then" >&2
done
exit "$failed"
