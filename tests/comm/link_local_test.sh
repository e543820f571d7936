# Jobs between hosts that have link-local IPv6 addresses, which mean something on one link only: each host has a number
# of its own for it.
. tests/build/check.sh
. tests/comm/hosts.sh
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT DML_TIMEOUT DML_THREADS DML_KEY

# IPv6 may be switched off where all else of hosts.sh is there.
no_ipv6() {
    hosts_missing && return
    hosts_up 1 100mbit >"$WORK/said" 2>&1 && ip -n "$HOSTS_NAME-0" address add fe80::1/64 dev eth0 nodad 2>"$WORK/said" &&
        return 1
    echo "no IPv6: $(head -n 1 "$WORK/said")"
}
if why=$(no_ipv6); then
    skip "jobs between hosts" "$why"
    report comm/link_local
    exit
fi
hosts_build_job comm/link_local

# Host I has fe80::(I + 1), and another link, where nobody is, has the same network. (The addresses that the system
# makes take a second or two until they may be used.)
addresses() {
    host=0
    while [ "$host" -lt 3 ]; do
        ip -n "$HOSTS_NAME-$host" link add name other0 type veth peer name other1 &&
            ip -n "$HOSTS_NAME-$host" address add fe80::9/64 dev other0 nodad &&
            ip -n "$HOSTS_NAME-$host" link set other1 up &&
            ip -n "$HOSTS_NAME-$host" link set other0 up &&
            ip -n "$HOSTS_NAME-$host" address flush dev eth0 &&
            ip -n "$HOSTS_NAME-$host" address add fe80::$((host + 1))/64 dev eth0 nodad || return 1
        host=$((host + 1))
    done
}
check "three hosts" hosts_up 3 100mbit
check "link-local addresses" addresses
hosts_start two 2 env MASTER_ADDR=fe80::1%eth0 "$job" all 2
check "two ranks" hosts_wait two 2
hosts_start three 3 env MASTER_ADDR=fe80::1%eth0 "$job" all 2
check "three ranks" hosts_wait three 3
hosts_start five 5 env MASTER_ADDR=fe80::1%eth0 "$job" all 2
check "five ranks, two of them beside others" hosts_wait five 5

# Rank 0 may be reached in other ways too, and each rank tells the address by which it reached it.
others() {
    host=0
    while [ "$host" -lt 3 ]; do
        ip -n "$HOSTS_NAME-$host" address add 10.77.0.$((host + 1))/24 dev eth0 &&
            ip -n "$HOSTS_NAME-$host" address add fd77::$((host + 1))/64 dev eth0 nodad || return 1
        host=$((host + 1))
    done
}
check "more addresses" others
mixed() { # rank 1's way to rank 0, rank 2's
    hosts_start mixed 3 sh -c 'MASTER_ADDR=$(echo "$1" | cut -d " " -f $((RANK + 1))) && shift && exec "$@"' sh \
        "fe80::1%eth0 $1 $2" "$job" all 2
    hosts_wait mixed 3
}
check "one by IPv4, who is told a link-local address" mixed fe80::1%eth0 10.77.0.1
check "one by IPv4, whose address is told to a link-local one" mixed 10.77.0.1 fe80::1%eth0
check "one by IPv4 in IPv6, who is told a link-local address" mixed fe80::1%eth0 ::ffff:10.77.0.1
check "one by a global address, who is told a link-local one" mixed fe80::1%eth0 fd77::1
check "one by a global address, which a link-local one is told" mixed fd77::1 fe80::1%eth0
bound() { # what of its own rank 1 uses, what rank 2 does
    hosts_start bound 3 sh -c 'own=$(echo "$1" | cut -d " " -f $((RANK + 1))) && shift && exec "$@" "$own"' sh \
        "eth0 $1 $2" env MASTER_ADDR=fe80::1%eth0 "$job" all 2
    hosts_wait bound 3
}
check "all by their interfaces" bound eth0 eth0
check "a second IPv4 address" ip -n "$HOSTS_NAME-0" address add 10.77.0.101/24 dev eth0
hosts_start second 2 env MASTER_ADDR=10.77.0.101 "$job" all 2 eth0
check "an interface's second address, where rank 0 is looked for" hosts_wait second 2
check "one from a global address, which is told" bound fd77::2 fe80::3%eth0
check "one from a global address, who is told a link-local one" bound fe80::2%eth0 fd77::3
hosts_down
check "nothing is left" sh -c "! ip netns list | grep -q '$HOSTS_NAME'"
report comm/link_local
