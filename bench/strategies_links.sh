#!/bin/sh
# strategies_links.sh BUILD [SVG]: three hosts (network namespaces, so as root) of a rank each train together in each way,
# over links shaped to 100 and 1000 Mbit/s. Prints a row for each way and rate; SVG: draws what a step takes. Takes about
# a minute.
build=${1:-build} svg=$2
bench=strategies_links
. bench/hosts.sh
bench_hosts_up 3 1000mbit
status=0 jobs=0
# time_way LABEL flags...: at each rate.
time_way() {
    label=$1
    shift
    for rate in 100 1000; do
        for host in 0 1 2; do hosts_rate "$host" "${rate}mbit" || exit 1; done
        jobs=$((jobs + 1))
        hosts_start "job$jobs" 3 "$build/bench/strategies_links" --label "$label" --mbit "$rate" "$@"
        hosts_wait "job$jobs" 3 >"$WORK/said" || status=1 # no pipe: who waits has to be who started them
        sed 's/^\[[0-9]*\] //' "$WORK/said" | tee -a "$WORK/rows"
    done
}
time_way all_reduce --strategy all_reduce
time_way all_reduce,across_steps --strategy all_reduce --across-steps
for kind in bf16 8bit topk powersgd; do time_way "all_reduce,$kind" --strategy all_reduce --compression $kind; done
time_way zero1 --strategy zero1
time_way zero3 --strategy zero3
time_way parameter_server --strategy parameter_server
time_way local_sgd --strategy local_sgd
[ -n "$svg" ] || exit $status

# A bar for each row: the more to the right the longer a step, each tenfold as far.
awk -v left=210 -v decade=170 '
function log10(v) { return log(v) / log(10) }
{
    for (f = 1; f <= NF; f++) { split($f, pair, "="); field[pair[1]] = pair[2] }
    label[NR] = field["strategy"]; rate[NR] = field["mbit"]; ms[NR] = field["ours"]
}
END {
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 %d\" font-family=\"sans-serif\" ", 46 + NR * 17
    print "font-size=\"12\" fill=\"#7d8590\">"
    print "<text x=\"" left "\" y=\"14\">milliseconds of a step, three hosts; blue 100, orange 1000 Mbit/s</text>"
    for (v = 1; v <= 1000; v *= 10) {
        x = left + log10(v) * decade
        printf "<path d=\"M%.1f 36 V%d\" stroke=\"#808080\" stroke-opacity=\"0.4\"/>", x, 42 + NR * 17
        printf "<text x=\"%.1f\" y=\"31\" text-anchor=\"middle\">%d</text>\n", x, v
    }
    for (row = 1; row <= NR; row++) {
        y = 25 + row * 17
        width = log10(ms[row] < 1 ? 1 : ms[row]) * decade
        if (label[row] != label[row - 1])
            printf "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", left - 8, y + 17, label[row]
        printf "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"13\" fill=\"%s\"/>", left, y, width,
            rate[row] == 100 ? "#2f81f7" : "#e8702a"
        printf "<text x=\"%.1f\" y=\"%d\">%.0f</text>\n", left + width + 5, y + 11, ms[row]
    }
    print "</svg>"
}' "$WORK/rows" >"$svg" || status=1
exit $status
