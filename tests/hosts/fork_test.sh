# Programs of several processes: children of one that trains, and ranks with a loop of their own.
. tests/hosts/host.sh

PLAIN="$CC -std=c11 -O1" DMLRUN=$DML_BUILD/dmlrun
check "fork builds" host fork "$PLAIN"
check "children of a process alone" "$WORK/fork" alone
for ranks in 1 2; do check "children of $ranks ranks" "$DMLRUN" -n $ranks "$WORK/fork"; done

check "clip builds" host clip "$PLAIN"
for ranks in 1 2 3; do check "clipping on $ranks ranks" "$DMLRUN" -n $ranks "$WORK/clip"; done
report hosts/fork
