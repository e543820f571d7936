#!/bin/sh
# links.sh BUILD [options of links...]: hosts (network namespaces, so as root) of a rank each, 2, 4 and 8 of them, whose
# links are shaped to a gigabit a second (--mbit N: another rate, given first). Prints a row for each number of hosts.
# Of 1500 bytes on the wire headers of TCP, IP and Ethernet leave 0.956; HOSTS_MTU=9000, as clusters have, 0.993.
build=${1:-build}
[ $# -eq 0 ] || shift
rate=1000
[ "$1" != --mbit ] || rate=$2
bench=links
. bench/hosts.sh
status=0
for ranks in 2 4 8; do
    bench_hosts_up "$ranks" "${rate}mbit"
    hosts_start links "$ranks" "$build/bench/links" "$@"
    hosts_wait links "$ranks" >"$WORK/said" || status=1 # no pipe: who waits has to be who started them
    sed 's/^\[[0-9]*\] //' "$WORK/said"
done
exit $status
