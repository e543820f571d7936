#!/bin/sh
# run.sh BUILD [--quick]: runs the benchmarks that lie in BUILD/bench, keeps their rows in BUILD/bench/rows and writes
# BUILD/bench/report.md with a chart for each. A benchmark that fails is named, and the others go on. CC and CFLAGS, if
# they are set, are what they were compiled with.
build=$1 quick=$2
rows=$build/bench/rows
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
for name in gemm conv elementwise optimizer forkjoin train memory reduce_op allreduce choice ps ddp gpu numerics; do
    echo "# $name $quick"
    # tee would hide how it ended
    { "$build/bench/$name" $quick || echo "$name" >"$rows.failed"; } | tee -a "$rows"
    [ -e "$rows.failed" ] && failed="$failed $name" && rm -f "$rows.failed"
done
# What has no limit and no peer to be compared with: rows and pictures of its own.
pictures=$build/bench/strategies-pictures
echo "# strategies $quick"
"$build/bench/strategies" $quick --svg "$pictures" >"$build/bench/strategies-rows" || failed="$failed strategies"
echo "# simulate: all-reduce as ranks grow"
"$build/bench/simulate" --bytes 4194304 --ranks 2:1024 --svg "$pictures" >"$build/bench/simulate-rows" || failed="$failed simulate"
if [ -n "$quick" ] || [ "$(id -u)" -ne 0 ]; then
    echo "# left out: strategies_links.sh and overlap.sh, whose hosts are network namespaces: not --quick, as root"
else
    echo "# strategies_links, overlap"
    sh bench/strategies_links.sh "$build" "$pictures/links.svg" >"$build/bench/links-rows" || failed="$failed strategies_links"
    sh bench/overlap.sh "$build" >"$build/bench/overlap-rows" || failed="$failed overlap"
fi
"$build/bench/report" "$build/bench" bench/reasons.txt <"$rows" >"$build/bench/report.md" || exit 1
echo "see $build/bench/report.md"
[ -z "$failed" ] || {
    echo "failed:$failed" >&2
    exit 1
}
