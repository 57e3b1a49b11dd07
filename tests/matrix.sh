#!/usr/bin/env bash
# Runs the conformance checks (tests/apiserver/conformance.rs) on versions of Kubernetes, one after the other, and writes what they saw
# into the tables of README.md and docs/versions.md.
#
#   matrix.sh              every version of tests/controlplane/versions.txt
#   matrix.sh 1.28 1.33    some of them; --table none: only the tables
#
# A version that has passed with these sources does not run again, so an interrupted run goes on where it was; AGAIN=1 runs all.
set -euo pipefail
cd "$(dirname "$0")/.."
results=$PWD/target/matrix
mkdir -p "$results"
versions=$(awk '/^1\./ { print $1 }' tests/controlplane/versions.txt)
case ${1:-} in
    '') chosen=$versions ;;
    --table) chosen='' ;;
    *) chosen=$* ;;
esac

sources=$({ git rev-parse HEAD; git diff HEAD -- . ':!README.md' ':!docs'; } | sha256sum | cut -c 1-16)
failed=''
if [ -n "$chosen" ]; then
    cargo build --locked --quiet --workspace --bins --tests
    program=$(cargo test --locked --quiet --workspace --test apiserver --no-run --message-format=json \
        | sed -n 's/.*"executable":"\([^"]*\/apiserver-[^"]*\)".*/\1/p')
fi
for version in $chosen; do
    result=$results/$version
    if [ -z "${AGAIN:-}" ] && [ "$(head -n 1 "$result/passed" 2> /dev/null)" = "$sources" ]; then
        echo "matrix: $version has passed"
        continue
    fi
    rm -rf "$result" && mkdir "$result"
    if ! tests/controlplane/build.sh "$version" > /dev/null; then
        echo "matrix: $version cannot be built" | tee "$result/unbuilt"
        failed+=" $version"
        continue
    fi
    since=$SECONDS
    if SCPOL_MATRIX=$version "$program" conformance:: > "$result/log" 2>&1; then
        checks=$(grep -c '^test .* ok$' "$result/log")
        printf '%s\n%s\n%s\n' "$sources" "$checks" "$((SECONDS - since))" > "$result/passed"
        echo "matrix: $version has passed: $checks checks in $((SECONDS - since)) s"
    else
        echo "matrix: $version has FAILED, see $result/log:"
        grep '^FAILED' "$result/log" | cut -c 1-300 | sort -u
        failed+=" $version"
    fi
done

# The row of a version: version, engine, what refuses, native sidecars, limits, result.
row() { # version
    local of=$results/$1 limits=''
    if [ ! -f "$of/passed" ]; then
        echo "$1|not run||||"
        return
    fi
    [[ $(cat "$of/refuses") != nothing* ]] || limits='no `failurePolicy: Fail`; '
    [ "$(cat "$of/native")" = yes ] || limits+='Jobs only with `jobs: Inject`; '
    echo "$1|$(cat "$of/version")|$(cat "$of/engine")|$(cat "$of/refuses")|$(cat "$of/native")|${limits%; }|$(sed -n 2p "$of/passed") checks, $(sed -n 3p "$of/passed") s"
}

# Puts a table between the markers of a page.
put() { # page table
    local begin='<!-- begin: make matrix -->' end='<!-- end: make matrix -->'
    grep -qF "$begin" "$1" || { echo "matrix: $1 has no place for the table" >&2; exit 2; }
    awk -v begin="$begin" -v end="$end" -v table="$2" '
        index($0, end) { inside = 0 } !inside { print } index($0, begin) { inside = 1; while ((getline line < table) > 0) print line }' \
        "$1" > "$results/page"
    cat "$results/page" > "$1"
}

rows=$(for version in $versions; do row "$version"; done)
{
    echo '| Kubernetes | engine of `Auto` | refuses | native sidecars | limits | seen |'
    echo '|---|---|---|---|---|---|'
    awk -F '|' '$2 == "not run" { print "| " $1 " | not run | | | | |"; next } { print "| " $2 " | " $3 " | " $4 " | " $5 " | " $6 " | " $7 " |" }' <<< "$rows"
} > "$results/table"
put docs/versions.md "$results/table"
# Neighbours with the same row are one row.
{
    echo '| tested on | engine of `Auto` | refuses | native sidecars | limits |'
    echo '|---|---|---|---|---|'
    awk -F '|' 'function show() { if (what != "") print "| " list " |" what }
        $2 == "not run" { next }
        { now = " " $3 " | " $4 " | " $5 " | " $6 " |" }
        now == what { list = list ", " $2; next }
        { show(); what = now; list = $2 }
        END { show() }' <<< "$rows"
} > "$results/table"
put README.md "$results/table"
[ -z "$failed" ] || { echo "matrix: these have not passed:$failed" >&2; exit 1; }
