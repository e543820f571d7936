#!/bin/sh
# run.sh BUILD [--quick]: runs the benchmarks that lie in BUILD/bench, keeps their rows in BUILD/bench/rows and writes
# BUILD/bench/report.md with a chart for each. A benchmark that fails is named, and the others go on. CC and CFLAGS, if
# they are set, are what they were compiled with; BENCH, which benchmarks to run ("gemm links"), otherwise all.
build=$1 quick=$2
rows=$build/bench/rows
pictures=$build/bench/strategies-pictures
BENCH=${BENCH:-gemm conv elementwise optimizer forkjoin train decode memory reduce_op allreduce choice links prices overlap ps ddp cut \
    gpu numerics strategies simulate strategies_links}
export DML_PEERS="${DML_PEERS:-$build/peers/run}"
failed=
load() { cut -d ' ' -f 1 /proc/loadavg 2>/dev/null || echo unknown; }

{
    echo "# run: system: $(uname -srm); processors to be used: $(nproc 2>/dev/null || echo unknown)"
    [ -z "$CC" ] || echo "# run: compiler: $($CC --version 2>/dev/null | head -n 1), $CFLAGS"
    commit=$(git describe --always --dirty --abbrev=12 2>/dev/null) && echo "# run: commit: $commit"
    echo "# run: load when it began (runnable processes, mean of a minute): $(load)"
    [ -z "$quick" ] || echo "# run: quick: a part of the cases, each for a short time"
} >"$rows" || exit 1

# Between network namespaces, as root.
between_hosts() { [ -z "$quick" ] && [ "$(id -u)" -eq 0 ]; }

# What the headers of TCP, IP and Ethernet leave of packets of 1500 bytes, and of 9000, as clusters have them.
links() { sh bench/links.sh "$build" && HOSTS_MTU=9000 sh bench/links.sh "$build"; }

# Each algorithm's price beside what it takes: 40 Mbit/s without those headers.
prices() {
    sh bench/prices.sh "$build" 40 >"$build/bench/prices-rows" &&
        "$build/bench/simulate" --check "$build/bench/prices-rows" --bandwidth 0.03824 --latency 100 --overhead 10
}

# Of three runs (of one, with --quick), each with new processes, the row of each case that is in the middle by the best
# peer (else by its time): where a system's processors are near to each other now and far in a moment, one run says which
# they were. A run that fails is the last; what there is until then counts.
in_the_middle() { # a command
    ended=0
    [ -n "$quick" ] && runs=1 || runs='1 2 3'
    for i in $runs; do
        [ $ended -ne 0 ] || "$@" || ended=$?
    done >"$rows.runs"
    awk '
        /^#/ { if (!said[$0]++) print; next }
        {
            split("", value)
            for (i = 1; i <= NF; i++) { at = index($i, "="); value[substr($i, 1, at - 1)] = substr($i, at + 1) }
            key = value["name"] " " value["transport"] " " value["ranks"] " " value["bytes"]
            if (!(key in runs)) order[++keys] = key
            n = ++runs[key]
            speed = "ratio_peer" in value ? value["ratio_peer"] : 1 / value["latency_us"]
            for (; n > 1 && speeds[key, n - 1] > speed + 0; n--) {
                speeds[key, n] = speeds[key, n - 1]
                lines[key, n] = lines[key, n - 1]
            }
            speeds[key, n] = speed + 0
            lines[key, n] = $0
        }
        END { for (k = 1; k <= keys; k++) print lines[order[k], int((runs[order[k]] + 1) / 2)] }
    ' "$rows.runs"
    rm -f "$rows.runs"
    return $ended
}

# Whose rows have no limit and no peer: they have tables and pictures of their own.
apart() { # the name of its rows, a command
    into=$build/bench/$1-rows
    shift
    "$@" >"$into"
}

run() {
    case $1 in
    links | prices) "$1" ;;
    allreduce) in_the_middle "$build/bench/allreduce" $quick ;;
    overlap) sh bench/overlap.sh "$build" ;;
    strategies) apart strategies "$build/bench/strategies" $quick --svg "$pictures" ;;
    simulate) apart simulate "$build/bench/simulate" --bytes 4194304 --ranks 2:1024 --svg "$pictures" ;;
    strategies_links) apart strategies_links sh bench/strategies_links.sh "$build" "$pictures/links.svg" ;;
    *) "$build/bench/$1" $quick ;;
    esac
}

for name in $BENCH; do
    case $name in
    links | prices | overlap | strategies_links)
        between_hosts || {
            echo "# left out: $name, whose hosts are network namespaces: not --quick, as root"
            continue
        }
        ;;
    esac
    echo "# $name $quick"
    # tee would hide how it ended
    { run "$name" || echo "$name" >"$rows.failed"; } | tee -a "$rows"
    [ -e "$rows.failed" ] && failed="$failed $name" && rm -f "$rows.failed"
done
"$build/bench/report" "$build/bench" bench/reasons.txt <"$rows" >"$build/bench/report.md" || exit 1
echo "see $build/bench/report.md"
[ -z "$failed" ] || {
    echo "failed:$failed" >&2
    exit 1
}
