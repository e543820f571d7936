# The engine over NCCL, on no GPU: fake_nccl.c is put in the place of NCCL and the CUDA runtime.
. tests/build/check.sh
. tests/comm/nccl_ranks.sh

if [ "$(uname -s)" != Linux ]; then
    skip "NCCL" "there is none but for Linux"
    report comm/nccl
    exit
fi

job() { # RANKS what...
    on=$1
    shift
    ranks "$on" "$WORK/job" "$@"
}

aborted() { # HOW MANY: so many communicators were
    ls "$WORK/moved" | grep -c -e -aborted- | grep -qx "$1"
}

flags="-std=c99 -D_GNU_SOURCE $WARN -I."
check "the stand-in compiles" build_stand_in
check "a program for NCCL compiles" $QUICK $flags -DDML_NCCL tests/comm/nccl_job.c -o "$WORK/job" -lm -lpthread -ldl
printf '#define DML_IMPLEMENTATION\n#include "dml_comm.h"\n' >"$WORK/header.cc"
check "the header is C++11 with it" $CXX -std=c++11 $WARN -I. -DDML_NCCL -fsyntax-only "$WORK/header.cc"
check "one that has none" $QUICK $flags tests/comm/nccl_job.c -o "$WORK/without" -lm -lpthread -ldl
mkdir "$WORK/half" "$WORK/old"
cp "$WORK/lib/libnccl.so.2" "$WORK/half/libcudart.so.13"
cp "$WORK/lib/libnccl.so.2" "$WORK/old/libcudart.so.13"
echo 'int ncclGetUniqueId(void *id);int ncclGetUniqueId(void *id){return id?0:1;}' >"$WORK/old.c"
check "an old NCCL" $CC -shared -fPIC "$WORK/old.c" -o "$WORK/old/libnccl.so.2"

for ranks in 1 2 3 5; do
    check "all calls, $ranks ranks" job $ranks all
done
check "a thread that makes progress" job 3 thread
check "nothing was aborted" aborted 0

check_fails "a send" "NCCL's messages have no tags" job 2 send
check_fails "in place" "NCCL has it for two arrays only" job 2 in_place
check_fails "a function" "a function of the program's runs on the host" job 2 function
check_fails "a mean of integers" "means of integers are not ours" job 2 integers
check_fails "leaves" "all_reduce_leaves.*NCCL has nothing like it" job 2 leaves
check_fails "leaves, and their sum on the host" "one array in a GPU's memory and one in the host's" job 2 leaves_to_host
check_fails "one array of each" "one array in a GPU's memory and one in the host's" job 2 both
check_fails "host memory at one rank" "in the host's memory while rank" job 2 host
export DML_COMM_DETERMINISTIC=1
check_fails "sums in an order" "the job is deterministic" job 2 sum
unset DML_COMM_DETERMINISTIC

export FAKE_NCCL_FAULT=1:fail
check_fails "NCCL fails" "rank 1: NCCL failed in all_reduce(f32, 5003, sum): unhandled system error" job 3 sum
check "all gave up" aborted 3
FAKE_NCCL_FAULT=1:async
check_fails "NCCL fails later" "rank 1: NCCL failed in all_reduce(f32, 5003, sum): remote process exited" job 3 sum
check "all gave up" aborted 3
FAKE_NCCL_FAULT=1:event
check_fails "CUDA fails" "rank 1: CUDA failed in cudaEventQuery: unspecified launch failure" job 2 sum
limit=2
FAKE_NCCL_FAULT=1:hang
check_fails "NCCL stands still" "all_reduce(f32, 5003, sum) did not end .* NCCL stands still in it.*culprit -1" job 3 sum
check "all gave up" aborted 3
FAKE_NCCL_FAULT=1:init
check_fails "NCCL doesn't begin" "NCCL has not finished ncclCommInitRank between the ranks within 2 s.*culprit -1" job 2 sum
unset FAKE_NCCL_FAULT
check_fails "a rank that is elsewhere" "rank 1" job 3 missing
limit=20
check_fails "a rank that died" "rank 1 of 3 died.*culprit 1" job 3 dies

library=$WORK/half
check_fails "no NCCL" "can't open NCCL\|failed in" job 1 sum
library=$WORK/old
check_fails "NCCL is too old" "there is no ncclRecv" job 1 sum
check_fails "compiled without" "without -DDML_NCCL" env LD_LIBRARY_PATH="$WORK/lib" RANK=0 WORLD_SIZE=1 "$WORK/without"
report comm/nccl
