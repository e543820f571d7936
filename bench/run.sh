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
for name in gemm conv elementwise optimizer forkjoin train memory reduce_op allreduce ps ddp opencl_gemm numerics; do
    echo "# $name $quick"
    # tee would hide how it ended
    { "$build/bench/$name" $quick || echo "$name" >"$rows.failed"; } | tee -a "$rows"
    [ -e "$rows.failed" ] && failed="$failed $name" && rm -f "$rows.failed"
done
# It has no limit and no peer to be compared with: rows and pictures of its own.
echo "# strategies $quick"
"$build/bench/strategies" $quick --svg "$build/bench/strategies-pictures" >"$build/bench/strategies-rows" || failed="$failed strategies"
"$build/bench/report" "$build/bench" bench/reasons.txt <"$rows" >"$build/bench/report.md" || exit 1
echo "see $build/bench/report.md"
[ -z "$failed" ] || {
    echo "failed:$failed" >&2
    exit 1
}
