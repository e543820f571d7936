#!/bin/sh
# overlap.sh BUILD [options of overlap...]: two hosts (network namespaces, so as root), joined by a link whose rate is
# such that communication alone takes half of what a step computes. Prints two rows, for steps that end when their
# gradients have come and across_steps: the step with both (ours), each alone, and what is lost of the step.
build=${1:-build}
[ $# -eq 0 ] || shift
bench=overlap
. bench/hosts.sh
HOSTS_LIMIT=${HOSTS_LIMIT:-300}
HOSTS_BURST=131072 # so that segments stay whole, as network cards take them
# Both at once, as in the job: they share memory and caches.
"$build/bench/overlap" "$@" >"$WORK/other" &
alone=$("$build/bench/overlap" "$@") || exit 1
wait $!
# Of two ranks each sends as many bytes as there are gradients; half of a step, and what TCP and Ethernet add.
rate=$(echo "$alone" | awk '{ printf "%d", $2 * 8 * 1.06 / ($1 / 2) }')
bench_hosts_up 2 "${rate}bit"
hosts_start overlap 2 "$build/bench/overlap" "$@"
hosts_wait overlap 2 >"$WORK/said" # no pipe: who waits has to be who started them
status=$?
sed "s/^\[[0-9]*\] //;/^name=/s/\$/ mbit=$((rate / 1000000))/" "$WORK/said"
exit $status
