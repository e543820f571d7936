#!/bin/sh
# Runs a plan that the Makefile wrote and adds up. A line of it is "LABEL<tab>COMMAND" or
# "skip<tab>LABEL<tab>REASON". A command prints "# NAME: N passed, N failed, N skipped" at its end; one that doesn't,
# or exits as it shouldn't, counts as a failed test.
plan=$1
limit=${DML_TEST_TIMEOUT:-600} # seconds
output=$DML_BUILD/test-output
tab=$(printf '\t')
passed=0 failed=0 skipped=0
skips=

run_limited() {
    if command -v timeout >/dev/null; then timeout "$limit" sh -c "$1"; else sh -c "$1"; fi
}

add_skip() { # what, why
    skips="$skips
  $1: $2"
}

run_one() { # label, command
    start=$(date +%s)
    run_limited "$2" >"$output" 2>&1 </dev/null
    status=$?
    seconds=$(($(date +%s) - start))
    set -- "$1" "$(sed -n 's/^# [^ ]*: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$output" |
        tail -n 1)"
    if [ -n "$2" ]; then
        label=$1
        set -- $2
        p=$1 f=$2 s=$3
    else
        label=$1 p=0 f=0 s=0
    fi
    if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1
        case $status in
        124) echo "did not end within $limit s" >>"$output" ;;
        *) echo "exit status $status" >>"$output" ;;
        esac
    elif [ $((p + f + s)) -eq 0 ]; then
        f=1
        echo "no test ran" >>"$output"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -gt 0 ]; then
        sed 's/^/    /' "$output" | tail -n 200
        echo "FAIL  $label: $p passed, $f failed, $s skipped ($seconds s)"
    else
        echo "ok    $label: $p passed, $s skipped ($seconds s)"
    fi
    if [ "$s" -gt 0 ]; then
        skips="$skips
$(sed -n "s|^skip |  $label/|p" "$output")"
    fi
}

while read -r line; do
    [ -n "$line" ] || continue
    label=${line%%"$tab"*}
    rest=${line#*"$tab"}
    if [ "$label" = skip ]; then
        skipped=$((skipped + 1))
        add_skip "${rest%%"$tab"*}" "${rest#*"$tab"}"
    else
        run_one "$label" "$rest"
    fi
done <"$plan"
rm -f "$output"

if [ -n "$skips" ]; then
    echo "skipped:"
    printf '%s\n' "$skips" | sed '/^$/d' | sort -u
fi
if [ "$skipped" -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ]
