#!/bin/sh
# prices.sh BUILD [RATE]: an all-reduce by each algorithm, of 256 KiB and 1 MiB, between 2, 4 and 8 hosts (network
# namespaces, so as root) whose links are shaped to RATE megabits a second (40). Prints a row each, for simulate --check.
build=${1:-build}
rate=${2:-40}
bench=prices
. bench/hosts.sh
status=0
for ranks in 2 4 8; do
    bench_hosts_up "$ranks" "${rate}mbit"
    for algo in all_to_all master_worker tree round_robin butterfly halving_doubling ring ring_segmented direct chain; do
        for kib in 256 1024; do
            hosts_start prices "$ranks" "$build/bench/links" --algo "$algo" --kib "$kib" --mbit "$rate" --calls 3
            hosts_wait prices "$ranks" >"$WORK/said" || status=1 # no pipe: who waits has to be who started them
            sed 's/^\[[0-9]*\] //' "$WORK/said"
        done
    done
done
exit $status
