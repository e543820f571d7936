# hosts.sh: for benchmarks between hosts that are network namespaces (as root), which set `build` and their name,
# `bench`, before they take it in.
export DML_BUILD="$build"
. tests/build/check.sh
. tests/comm/hosts.sh
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT DML_TIMEOUT DML_KEY DML_PS

if why=$(hosts_missing); then
    echo "$bench: $why" >&2
    exit 1
fi

bench_hosts_up() { # how many, rate
    hosts_up "$@" >"$WORK/up" 2>&1 && return
    cat "$WORK/up" >&2
    exit 1
}
