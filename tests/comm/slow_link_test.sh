# Jobs on slow links: a correct program ends well, however long its operations take, since the deadline is of nothing
# that moves anywhere in the job; and what is wrong is told from what is slow.
. tests/build/check.sh
. tests/comm/hosts.sh
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT DML_TIMEOUT DML_THREADS DML_KEY

if why=$(hosts_missing); then
    skip "jobs between hosts" "$why"
    report comm/slow_link
    exit
fi
hosts_build_job comm/slow_link

# Side by side they would share the links; most of the time is the links'.
check "two hosts" hosts_up 2 8mbit
hosts_start broadcast 2 "$job" broadcast 2
check "2.5 MB at 8 Mbit/s, then a sum, with a timeout of 2 s" hosts_wait broadcast 2
hosts_start roots 2 "$job" roots 1
check "two roots of 4 MB" hosts_fails roots 2 "broadcast(f32, 1000000, root 0)" "broadcast(f32, 1000000, root 1)"

check "three hosts" hosts_up 3 16mbit
hosts_rate 1 6mbit
hosts_start all 3 "$job" all 1
check "long operations of every kind, one link slower, with a timeout of 1 s" hosts_wait all 3

# A host that is cut off: nobody is told by its network, so the deadline finds it, and names it.
hosts_start loop 3 "$job" loop 1
tries=0
while [ "$(cat "$WORK"/loop.[012] | grep -c begun)" -lt 3 ] && [ "$tries" -lt 100 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
hosts_cut 2
check "a host that is cut off" hosts_fails loop 3 "rank"
check "its rank is named" grep -q "rank 2 of 3" "$WORK/loop.0" "$WORK/loop.1"
hosts_mend 2

# What is measured of a link that lets a burst of 250,000 bytes pass at once, of a gigabit, and of 25,000 and a tenth.
# A busy machine may make it less.
measures() { # mbit
    hosts_up 2 "$1mbit" && hosts_start links 2 "$job" links 10 && hosts_wait links 2 >"$WORK/links" &&
        sed -n 's/^.* of a host [^ ]* us, \([^ ]*\) Gbit.*/\1/p' "$WORK/links" |
        awk -v rate="$1" '{ print $1 * 1000; ok = $1 * 1000 > rate / 500 && $1 * 1000 < rate * 4 } END { exit !ok }'
}
check "a gigabit is measured" measures 1000
check "a tenth of it" measures 100

# Who asks what a rank waits for asks behind 3 s of what it has sent.
HOSTS_QUEUE=3000ms
check "two hosts with long queues" hosts_up 2 1mbit
hosts_start queue 2 "$job" queue 1
check "questions that come late, with a timeout of 1 s" hosts_wait queue 2
unset HOSTS_QUEUE

# Who asks has sent nothing: the question comes behind what another has.
HOSTS_QUEUE=400ms
check "three hosts with longer queues" hosts_up 3 16mbit
hosts_rate 1 2mbit
hosts_start behind 3 "$job" behind 1
check "questions behind what another rank has sent, with a timeout of 1 s" hosts_wait behind 3
unset HOSTS_QUEUE

check "two slow hosts" hosts_up 2 2mbit
# Before the first broadcast, of 3.8 s, each rank draws its digits: so few that 2 s are enough on a busy machine too.
hosts_start mnist 2 "$DML_BUILD/samples/mnist" --model mlp --drawn 2000 --steps 2 --timeout 2
check "mnist at 2 Mbit/s with a timeout of 2 s" hosts_wait mnist 2
check "it trained" grep -q "^test accuracy" "$WORK/mnist.0"
hosts_down
check "nothing is left" sh -c "! ip netns list | grep -q '$HOSTS_NAME'"
report comm/slow_link
