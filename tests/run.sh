#!/bin/sh
# run.sh PLAN: runs a plan that the Makefile wrote and adds up: as many lines at once as there are processors
# (DML_TEST_JOBS), and beside them as many of the tests of ranks, which mostly wait for each other or for a clock. A line
# is "LABEL<tab>COMMAND" or "skip<tab>LABEL<tab>REASON". A command prints "# NAME: N passed, N failed, N skipped" at its
# end; one that doesn't, or exits as it shouldn't, is a failed test.
limit=${DML_TEST_TIMEOUT:-600} # seconds a command
tab=$(printf '\t') return=$(printf '\r')

run_limited() { # command
    if command -v timeout >/dev/null; then timeout "$limit" sh -c "$1"; else sh -c "$1"; fi
}

# One command; leaves "PASSED FAILED SKIPPED" in $result.totals and what was skipped in $result.skips.
run_one() { # label, command
    start=$(date +%s)
    mkdir "$result.tmp"
    TMPDIR=$result.tmp run_limited "$2" >"$result.output" 2>&1 </dev/null
    status=$?
    # Wine now and then ends with 1 before a program has begun: once more, where nothing at all was said.
    if [ "$status" -eq 1 ] && [ ! -s "$result.output" ] && [ "${1%% *}" = windows ]; then
        TMPDIR=$result.tmp run_limited "$2" >"$result.output" 2>&1 </dev/null
        status=$?
    fi
    rm -rf "$result.tmp"
    if grep -q "$return" "$result.output"; then # Windows programs end their lines so
        tr -d '\r' <"$result.output" >"$result.plain" && mv "$result.plain" "$result.output"
    fi
    seconds=$(($(date +%s) - start))
    label=$1
    set -- $(sed -n 's/^# [^ ]*: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$result.output" |
        tail -n 1)
    passed=${1:-0} failed=${2:-0} skipped=${3:-0}
    if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
        failed=1
        if [ "$status" -eq 124 ]; then why="did not end within $limit s"; else why="exit status $status"; fi
        echo "$why" >>"$result.output"
    elif [ $((passed + failed + skipped)) -eq 0 ]; then
        failed=1
        echo 'no test ran' >>"$result.output"
    fi
    echo "$passed $failed $skipped" >"$result.totals"
    sed -n "s|^skip |  $label/|p" "$result.output" >"$result.skips"
    if [ "$failed" -gt 0 ]; then
        text=$(tail -n 200 "$result.output" | sed 's/^/    /')
        printf '%s\nFAIL  %s: %s passed, %s failed, %s skipped (%s s)\n' "$text" "$label" "$passed" "$failed" \
            "$skipped" "$seconds"
    else
        echo "ok    $label: $passed passed, $skipped skipped ($seconds s)"
    fi
}

# Line NUMBER of the plan, in a process of its own.
if [ "$1" = --line ]; then
    [ -n "$4" ] || exit 0 # xargs of no lines
    result=$2/$4
    line=$(sed -n "$4s/^[ $tab]*//p" "$3")
    rest=${line#*"$tab"}
    case $line in
    '') ;;
    "skip$tab"*)
        echo '0 0 1' >"$result.totals"
        echo "  ${rest%%"$tab"*}: ${rest#*"$tab"}" >"$result.skips"
        ;;
    *) run_one "${line%%"$tab"*}" "$rest" ;;
    esac
    exit 0
fi

results=$(mktemp -d) || exit 1
trap 'rm -rf "$results"' EXIT
jobs=${DML_TEST_JOBS:-$(nproc 2>/dev/null || echo 2)}
run_lines() { # whether the label says that it has ranks: "$1 ~" or "$1 !~"
    awk -F "$tab" "$1 / (comm|net|dist)\\// { print NR }" "$plan" |
        xargs -P "$jobs" -n 1 sh "$0" --line "$results" "$plan"
}
plan=$1
run_lines '$1 ~' &
run_lines '$1 !~'
wait

if cat "$results"/*.skips 2>/dev/null | grep -q .; then
    echo 'skipped:'
    cat "$results"/*.skips | sort -u
fi
lines=$(grep -c "$tab" "$1")
ended=$(ls "$results" | grep -c 'totals$')
[ "$lines" -eq "$ended" ] || echo "0 $((lines - ended)) 0" >"$results/lost.totals" # a runner was killed
set -- $(cat "$results"/*.totals 2>/dev/null | awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }')
if [ "$3" -gt 0 ]; then
    echo "$1 passed, $2 failed, $3 skipped"
else
    echo "$1 passed, $2 failed"
fi
[ "$2" -eq 0 ]
