# nccl_ranks.sh: what the scripts of jobs over a stand-in for NCCL share; they come here behind check.sh.
unset RANK WORLD_SIZE MASTER_ADDR DML_TIMEOUT DML_THREADS DML_KEY DML_COMM_ENGINE DML_COMM_TRANSPORT FAKE_NCCL_FAULT
unset DML_COMM_DETERMINISTIC NCCL_JOB_DEVICE FAKE_CUDA
port=$((20000 + $$ % 12000)) # below those that systems give to who connects

# One library under the names of both that are opened.
build_stand_in() {
    mkdir "$WORK/lib" && $CC -std=c99 -D_GNU_SOURCE $WARN -I. -shared -fPIC tests/comm/fake_nccl.c -o "$WORK/lib/libnccl.so.2" \
        -lpthread -ldl && ln "$WORK/lib/libnccl.so.2" "$WORK/lib/libcudart.so.13"
}

# ranks N command...: exit status 0 if all ranks end with 0. What rank R prints goes to $WORK/rankR, what all complain of
# to $WORK/complaints, and both are shown; what they send each other is in $WORK/moved.
ranks() {
    world=$1
    shift
    port=$((port + 1))
    rm -rf "$WORK/moved" "$WORK/complaints" "$WORK"/rank[0-9]*
    mkdir "$WORK/moved"
    rank=0 pids=
    while [ "$rank" -lt "$world" ]; do
        env RANK=$rank WORLD_SIZE="$world" MASTER_PORT=$port FAKE_NCCL_DIR="$WORK/moved" DML_TIMEOUT="${limit:-20}" \
            LD_LIBRARY_PATH="${library:-$WORK/lib}" timeout 60 "$@" >"$WORK/rank$rank" 2>>"$WORK/complaints" &
        pids="$pids $!"
        rank=$((rank + 1))
    done
    failed_ranks=0
    for pid in $pids; do wait "$pid" || failed_ranks=$((failed_ranks + 1)); done
    cat "$WORK/complaints" "$WORK"/rank[0-9]*
    [ "$failed_ranks" -eq 0 ]
}
