# Sourced by .ci/run: steps with their seconds. `steps_end` prints a table of them.

ledger=$(mktemp -d)

# Runs a command, and records its seconds, those of processors and its exit code.
step() { # name command..
    printf '\n==== %s\n' "$1" >&2
    timed "$@"
}

# Starts a command beside the next steps. Its output is printed by `await`.
declare -A beside=() # name -> process
beside() { # name command..
    set -m # a process group of its own
    timed "$@" > "$ledger/$1.log" 2>&1 < /dev/null &
    set +m
    beside[$1]=$!
}

# Waits for a command that `beside` started, and fails if it has failed.
await() { # name
    local code=0
    wait "${beside[$1]}" || code=$?
    unset "beside[$1]"
    printf '\n==== %s\n' "$1" >&2
    cat "$ledger/$1.log" >&2
    return "$code"
}

timed() { # name command..
    local seconds code=0
    # What `time` prints goes into the variable, the rest where it went before.
    { seconds=$({ TIMEFORMAT='%0R %0U %0S' && time "${@:2}" >&3 2>&4 3>&- 4>&-; } 2>&1) || code=$?; } 3>&1 4>&2
    printf '%s %s\n' "$seconds" "$1" >> "$ledger/steps"
    return "$code"
}

steps_end() {
    local name
    for name in "${!beside[@]}"; do
        kill -- -"${beside[$name]}" 2> /dev/null || true
        await "$name" || true
    done
    printf '\n==== seconds   of processors\n' >&2
    awk '{ name = $4; for (i = 5; i <= NF; i++) name = name " " $i; printf "%12d %15d  %s\n", $1, $2 + $3, name; used += $2 + $3 }
        END { printf "%12d %15d  all\n", all, used }' all="$SECONDS" "$ledger/steps" >&2 || true
    rm -rf "$ledger"
}
