# hosts.sh: hosts for a job, on this one: network namespaces with an address each, joined by a bridge, every link with a
# rate of its own. What needs them begins with `. tests/build/check.sh` and `. tests/comm/hosts.sh`, asks hosts_missing,
# and between hosts_up and hosts_down starts programs by hosts_run. Whatever ends the script, all of it is removed.
#
# Host I is 10.77.0.(I + 1), by its eth0, for which each has a number of its own; rates are tc's ("8mbit"). A link holds
# each way what goes in HOSTS_QUEUE (300ms) at its rate.
# (Queues that reorder or lose at random, netem, aren't in every kernel and not used.)

HOSTS_NAME=dmlhost-$$
HOSTS_COUNT=0

# Prints why there can be no hosts here, in one line; fails where there can be.
hosts_missing() {
    if [ "$(id -u)" -ne 0 ]; then
        echo "network namespaces need root"
    elif ! has ip || ! has tc; then
        echo "no ip or no tc (Debian: iproute2)"
    elif ! ip netns add "$HOSTS_NAME-try" 2>"$WORK/hosts"; then
        echo "no network namespaces: $(head -n 1 "$WORK/hosts")"
    else
        {
            ip -n "$HOSTS_NAME-try" link add name bridge0 type bridge &&
                ip -n "$HOSTS_NAME-try" link add name a type veth peer name b &&
                tc -n "$HOSTS_NAME-try" qdisc add dev a root tbf rate 8mbit burst 16kb latency 300ms
        } 2>"$WORK/hosts"
        hosts_status=$?
        ip netns del "$HOSTS_NAME-try"
        [ "$hosts_status" -ne 0 ] || return 1
        echo "no bridge, veth or tbf: $(head -n 1 "$WORK/hosts")"
    fi
}

# Ends what still runs in the hosts, and removes them. What is still sent to a removed link goes nowhere.
hosts_down() {
    for hosts_space in $(ip netns list 2>/dev/null | sed -n "s/^\($HOSTS_NAME-[a-z0-9]*\).*/\1/p"); do
        hosts_pids=$(ip netns pids "$hosts_space" 2>/dev/null)
        [ -z "$hosts_pids" ] || kill -9 $hosts_pids 2>/dev/null
        ip netns del "$hosts_space" 2>/dev/null
    done
    HOSTS_COUNT=0
}
trap 'hosts_down; rm -rf "$WORK"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# hosts_up COUNT RATE: so many hosts with such links, both ways. HOSTS_MTU: a packet's bytes (1500).
hosts_up() {
    hosts_down
    ip netns add "$HOSTS_NAME-net" && ip -n "$HOSTS_NAME-net" link add name bridge0 type bridge &&
        ip -n "$HOSTS_NAME-net" link set bridge0 up || return 1
    while [ "$HOSTS_COUNT" -lt "$1" ]; do
        host=$HOSTS_NAME-$HOSTS_COUNT port=port$HOSTS_COUNT
        ip netns add "$host" &&
            ip -n "$host" link set lo up &&
            ip -n "$host" link add name eth0 index $((HOSTS_COUNT + 2)) mtu "${HOSTS_MTU:-1500}" type veth peer name "$port" \
                mtu "${HOSTS_MTU:-1500}" netns "$HOSTS_NAME-net" &&
            ip -n "$host" address add 10.77.0.$((HOSTS_COUNT + 1))/24 dev eth0 &&
            ip -n "$host" link set eth0 up &&
            ip -n "$HOSTS_NAME-net" link set "$port" master bridge0 up || return 1
        HOSTS_COUNT=$((HOSTS_COUNT + 1))
        hosts_rate $((HOSTS_COUNT - 1)) "$2" || return 1
    done
}

# hosts_rate HOST RATE: a link's rate from now on, both ways. What goes at once is two milliseconds' bytes on a fast
# link: below 64 KiB the kernel cuts TCP's segments into packets of 1500 bytes, which network cards do in the world.
# HOSTS_BURST: the least, where a processor's time counts and a few milliseconds don't.
hosts_rate() {
    case "$2" in
    *mbit) hosts_burst=$((${2%mbit} * 250)) ;;
    *) hosts_burst=$((${2%bit} / 4000)) ;;
    esac
    [ "$hosts_burst" -ge "${HOSTS_BURST:-16384}" ] || hosts_burst=${HOSTS_BURST:-16384}
    tc -n "$HOSTS_NAME-$1" qdisc replace dev eth0 root tbf rate "$2" burst "$hosts_burst" \
        latency "${HOSTS_QUEUE:-300ms}" &&
        tc -n "$HOSTS_NAME-net" qdisc replace dev "port$1" root tbf rate "$2" burst "$hosts_burst" \
            latency "${HOSTS_QUEUE:-300ms}"
}

# hosts_cut HOST, hosts_mend HOST: nothing passes its link; no end is told.
hosts_cut() {
    ip -n "$HOSTS_NAME-net" link set "port$1" nomaster
}
hosts_mend() {
    ip -n "$HOSTS_NAME-net" link set "port$1" master bridge0
}

# hosts_run HOST command...
hosts_run() {
    hosts_space=$HOSTS_NAME-$1
    shift
    ip netns exec "$hosts_space" "$@"
}

# hosts_start NAME RANKS command...: starts the ranks of a job side by side, rank R on host R modulo their number; what
# they say goes to $WORK/NAME.R. A port of its own for each job that is started.
hosts_port=29500
hosts_start() {
    hosts_job=$1 hosts_ranks=$2
    shift 2
    hosts_port=$((hosts_port + 1))
    hosts_rank=0
    while [ "$hosts_rank" -lt "$hosts_ranks" ]; do
        (
            hosts_run $((hosts_rank % HOSTS_COUNT)) env RANK="$hosts_rank" WORLD_SIZE="$hosts_ranks" LOCAL_RANK=0 \
                MASTER_ADDR=10.77.0.1 MASTER_PORT="$hosts_port" DML_KEY=key-of-these-tests DML_THREADS=1 \
                timeout -k 1 "${HOSTS_LIMIT:-60}" "$@" >"$WORK/$hosts_job.$hosts_rank" 2>&1 </dev/null
            echo $? >"$WORK/$hosts_job.$hosts_rank.status"
        ) &
        echo $! >"$WORK/$hosts_job.$hosts_rank.pid"
        hosts_rank=$((hosts_rank + 1))
    done
}

# hosts_wait NAME RANKS: waits for all of them, prints what they said; true when all ended well.
hosts_wait() {
    hosts_rank=0 hosts_failed=0
    while [ "$hosts_rank" -lt "$2" ]; do
        wait "$(cat "$WORK/$1.$hosts_rank.pid")"
        hosts_status=$(cat "$WORK/$1.$hosts_rank.status")
        sed "s/^/[$hosts_rank] /" "$WORK/$1.$hosts_rank"
        if [ "$hosts_status" -ne 0 ]; then
            hosts_failed=1
            case $hosts_status in
            124 | 137) echo "[$hosts_rank] hung" ;;
            *) echo "[$hosts_rank] exit status $hosts_status" ;;
            esac
        fi
        hosts_rank=$((hosts_rank + 1))
    done
    [ "$hosts_failed" -eq 0 ]
}

# hosts_fails NAME RANKS PART...: all ranks end by themselves, none of them well, and each says all the parts.
hosts_fails() {
    hosts_job=$1 hosts_ranks=$2
    shift 2
    hosts_wait "$hosts_job" "$hosts_ranks" >"$WORK/$hosts_job.said"
    cat "$WORK/$hosts_job.said"
    hosts_rank=0 hosts_wrong=0
    while [ "$hosts_rank" -lt "$hosts_ranks" ]; do
        [ "$(cat "$WORK/$hosts_job.$hosts_rank.status")" -eq 1 ] || hosts_wrong=1
        for hosts_part in "$@"; do
            grep -q -e "$hosts_part" "$WORK/$hosts_job.$hosts_rank" || {
                echo "[$hosts_rank] does not say \"$hosts_part\""
                hosts_wrong=1
            }
        done
        hosts_rank=$((hosts_rank + 1))
    done
    [ "$hosts_wrong" -eq 0 ]
}

# hosts_build_job TEST: $job is hosts_job.c; where it doesn't build the test ends.
hosts_build_job() {
    job=$WORK/hosts_job
    check "the job builds" $QUICK -std=c99 $WARN -I. tests/comm/hosts_job.c -o "$job" -lm -lpthread
    [ -x "$job" ] && return
    report "$1"
    exit
}
