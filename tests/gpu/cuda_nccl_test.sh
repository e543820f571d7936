# Ranks that train on cards and sum their gradients by NCCL, on no GPU: the CUDA host on a runtime of two cards that
# live in the process (tests/gpu/fake_cuda), tests/comm/fake_nccl.c in NCCL's place.
. tests/build/check.sh
. tests/comm/nccl_ranks.sh

if [ "$(uname -s)" != Linux ] || ! has "$CXX"; then
    skip "training over NCCL" "there is none but for Linux, and the CUDA host needs a C++ compiler"
    report gpu/cuda_nccl
    exit
fi

# train RANKS ENGINE HOW WHERE: rank 0's parameters go to $WORK/ENGINE.
train() {
    ranks "$1" env DML_TUNE=0 DML_COMM_ENGINE="$2" "$WORK/train" "$3" "$4" >/dev/null
    trained=$?
    cat "$WORK/complaints"
    mv "$WORK/rank0" "$WORK/$2"
    return $trained
}

# The sum of two numbers is the same in any order, and so are the bits.
same() { # RANKS HOW
    train "$1" dml "$2" staged && train "$1" nccl "$2" lent && [ -s "$WORK/dml" ] && cmp "$WORK/dml" "$WORK/nccl"
}

flags="-D_GNU_SOURCE $WARN -I."
check "the stand-in compiles" build_stand_in
check "the CUDA host compiles" $CXX -std=c++11 -O1 -DDML_CUDA -I. -Isrc -Itests/gpu/fake_cuda -x c++ -c dml_cuda.cu -o "$WORK/cuda.o"
check "a program that trains compiles" $QUICK -std=c99 $flags -DDML_CUDA -DDML_NCCL -c tests/gpu/cuda_nccl.c -o "$WORK/train.o"
check "it links" $CXX -rdynamic "$WORK/train.o" "$WORK/cuda.o" -o "$WORK/train" -lm -lpthread -ldl

for how in plain large clip across adds zero1 zero2; do
    check "2 ranks, $how: the same bits as through the host" same 2 $how
done
# in_one_process WHERE: both cards are one process's; the first replica's parameters go to $WORK/WHERE.
in_one_process() {
    rm -rf "$WORK/moved" && mkdir "$WORK/moved"
    env FAKE_NCCL_DIR="$WORK/moved" DML_TUNE=0 LD_LIBRARY_PATH="${library-$WORK/lib}" timeout 60 "$WORK/train" mirrored "$1" \
        >"$WORK/$1"
}
check "replicas of one process, through the host" in_one_process staged
check "and by NCCL" in_one_process lent
check "the bits are the same" cmp "$WORK/staged" "$WORK/lent"
check "there are some" [ -s "$WORK/lent" ]
check_fails "by NCCL in several processes" 'for the replicas of one process' env RANK=0 WORLD_SIZE=1 "$WORK/train" mirrored 1
check_fails "by NCCL with parameters on one card" 'placement 1 keeps them on one' in_one_process 2
check_fails "by NCCL with a CPU" 'device 2 of 2 is cpu, which is no card' in_one_process 3
library=
check_fails "without NCCL" "replica [01] (cuda:[01]): .*\(can't open NCCL\|failed in\)" in_one_process lent
unset library
check "the sample compiles" $QUICK -std=c99 $flags -Isamples -DDML_CUDA -DDML_NCCL -c samples/mnist.c -o "$WORK/mnist.o"
check "it links with the cards" $CXX -rdynamic "$WORK/mnist.o" "$WORK/cuda.o" -o "$WORK/mnist" -lm -lpthread -ldl
mkdir "$WORK/sample"
check "the sample on a card for each rank" env FAKE_NCCL_DIR="$WORK/sample" DML_TUNE=0 DML_COMM_ENGINE=nccl \
    LD_LIBRARY_PATH="$WORK/lib" "$DML_BUILD/dmlrun" -n 2 "$WORK/mnist" --device cuda:local --model mlp \
    --drawn 64 --epochs 1 --batch 16
check "its gradients went by NCCL" sh -c 'ls "$0" | grep -q -e "-step-"' "$WORK/sample"
check "1 rank" same 1 plain
for how in plain across zero1 zero2; do
    check "3 ranks, $how" train 3 nccl $how lent
done
check "a rank on the CPU: all go through the host" train 2 nccl mixed staged
check "compressed gradients go through the host" train 2 nccl compressed staged
export DML_COMM_DETERMINISTIC=1
check "in a deterministic job, too" train 2 nccl plain staged
unset DML_COMM_DETERMINISTIC
check_fails "a communicator that was opened on another card" \
    "an array of GPU 1's, but GPU 0 was current when its communicator was opened" train 2 nccl early lent
check_fails "a rank with other buckets" "rank 1 differs from rank 0 in the strategy's bucket_bytes (1048576, where rank 0 has 0)" \
    train 2 nccl unlike lent
limit=3
export DIES=1
check_fails "a rank that dies" "rank 1 of 2 died" train 2 nccl plain lent
check_fails "a rank that dies under zero2" "rank 1 of 2 died" train 2 nccl zero2 lent
unset DIES
export FAKE_NCCL_FAULT=1:hang
check_fails "NCCL stands still" "all_reduce(f32, .* NCCL stands still in it" train 2 nccl plain lent
export FAKE_NCCL_FAULT=1:fail
check_fails "NCCL fails" "rank 1: NCCL failed in reduce_scatterv" train 2 nccl zero2 lent
report gpu/cuda_nccl
