# Jobs under an MPI launcher: through MPI (-DDML_MPI), and through our own sockets, which find each other by what the
# launcher tells its processes.
. tests/build/check.sh
unset RANK WORLD_SIZE MASTER_ADDR DML_TIMEOUT DML_THREADS DML_KEY DML_COMM_ENGINE DML_COMM_CHECK DML_COMM_TRANSPORT
export MASTER_PORT=$((20000 + $$ % 12000)) # below those that systems give to who connects

if ! has mpicc || ! has mpirun; then
    skip "MPI" "mpicc and mpirun are not installed"
    report comm/mpi
    exit
fi
case $(mpirun --version 2>&1) in
*"Open MPI"*) run="mpirun --allow-run-as-root --oversubscribe" ;;
*) run=mpirun ;;
esac

# Ranks that share a processor with others shall not keep it while they wait.
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none

job() { # ranks, program, arguments...
    ranks=$1
    shift
    timeout -k 10 120 $run -n "$ranks" "$@" 2>&1
}
alone() { # command...
    timeout -k 10 60 "$@"
}
job_says() { # sentence, ranks, program, arguments...: it fails, saying so
    sentence=$1
    shift
    if job "$@" >"$WORK/sentences"; then return 1; fi
    cat "$WORK/sentences"
    grep -q -e "$sentence" "$WORK/sentences"
}

# The library is compiled once, by the compiler that takes least, with an MPI whose counts are small, so that what is longer goes in blocks.
export OMPI_CC=$QUICK_CC MPICH_CC=$QUICK_CC
flags="-std=c99 -O0 -DDML_NO_AVX -D_GNU_SOURCE $WARN -I. -Isamples -DDML_MPI -DDML__MPI_LARGEST=1000"
printf '#define DML_IMPLEMENTATION\n#include "dml.h"\n#include "dml_comm.h"\n' >"$WORK/library.c"
program() { # source, name
    sed 's/^#define DML_IMPLEMENTATION$//' "$1" |
        mpicc $flags -x c - -x none "$WORK/library.o" -o "$WORK/$2" -lm -lpthread -ldl
}
check "the library compiles for MPI" mpicc $flags -c "$WORK/library.c" -o "$WORK/library.o"
check "a program for MPI" program tests/comm/mpi_job.c mpi
check "a program that trains" program tests/comm/mpi_train.c train
check "a sample for MPI" program samples/mnist.c mnist

check "all calls, 1 rank" job 1 "$WORK/mpi"
check "all calls, 2 ranks, of a program that initialised MPI" job 2 "$WORK/mpi" mine
check "all calls, 3 ranks, with a thread that makes progress" job 3 "$WORK/mpi" thread
check "all calls, 4 ranks, with checks" job 4 env DML_COMM_CHECK=1 "$WORK/mpi"

# trains_by ENGINE RANKS STRATEGY...: and says that it was this engine.
trains_by() {
    engine=$1 ranks=$2 by=', by mpi'
    [ "$engine" = mpi ] || by=', [0-9]* by '
    shift 2
    job "$ranks" env DML_PS=1 DML_COMM_ENGINE="$engine" "$WORK/train" "$@" >"$WORK/trained"
    status=$?
    cat "$WORK/trained"
    [ $status -eq 0 ] || return 1
    for strategy in "$@"; do
        grep -q "^$strategy, rank 0 of $ranks on 1 host$by" "$WORK/trained" || return 1
    done
}
check "training, 1 rank" trains_by mpi 1 all_reduce
check "training, 2 ranks" trains_by mpi 2 all_reduce
check "training, 3 ranks" trains_by mpi 3 all_reduce local_sgd zero1 zero2 zero3
check "training with a server" trains_by mpi 3 parameter_server
check "training through our sockets" trains_by dml 2 all_reduce zero3

# A sample, as it is: the strategies whose losses are not one rank's. (Our own sockets would not find that address.)
learns_by() { # strategy, flags...
    job 3 env MASTER_ADDR=192.0.2.1 "$WORK/mnist" --model mlp --drawn 200 --epochs 1 --threads 1 --strategy "$@" >"$WORK/learned"
    status=$?
    cat "$WORK/learned"
    [ $status -eq 0 ] && grep -q '^test accuracy' "$WORK/learned"
}
check "the sample by simu_parallel" learns_by simu_parallel
check "the sample by downpour" learns_by downpour
check "the sample by mirrored" learns_by mirrored --devices cpu,cpu
check "the sample by sandblaster" learns_by sandblaster --steps 2
check "the sample by all_reduce, compressed" learns_by all_reduce --compression powersgd

# Our own sockets, of a program without MPI too.
sockets="$DML_BUILD/samples/mnist --model mlp --drawn 200 --epochs 1 --threads 1 --strategy all_reduce"
check "sockets that MPI's launcher placed" job 3 $sockets
check "sockets where there is MPI" job 2 env DML_COMM_ENGINE=dml "$WORK/mpi"
check_fails "MPI where there is none" "without -DDML_MPI" alone env DML_COMM_ENGINE=mpi $sockets
check_fails "an engine that there isn't" 'not "dml", "mpi" or "nccl"' alone env DML_COMM_ENGINE=smoke $sockets
check_fails "hosts of which none is said to be rank 0's" "MASTER_ADDR must say" alone env SLURM_PROCID=1 \
    SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 $sockets

check "an argument" job_says "rank 1 called broadcast(f32, 1, root 99): it must be" 3 "$WORK/mpi" argument
check "a frozen rank" job_says "rank 2 of 3 took no part in all_reduce(f32, 100, sum) within 1 s" 3 "$WORK/mpi" \
    frozen 1
check "a rank that closes" job_says "rank 2 closed its communicator while rank [01] was in all_reduce" 3 "$WORK/mpi" \
    closes 1
check "other calls" job_says "rank 1 called barrier() while rank 0 called all_reduce(f32, 100, sum)" 3 "$WORK/mpi" \
    calls 1
check "a longer message" job_says "rank 1 sent more elements while rank 0 called receive(f32, 10, from 1)" 2 \
    "$WORK/mpi" longer 1
check "a message of another dtype" job_says "rank 1 sent f64 elements while rank 0 called receive(f32" 2 \
    "$WORK/mpi" dtype 1
check "a message that nobody receives" job_says "ranks made calls that don't match" 2 "$WORK/mpi" unreceived 1
export DML_COMM_CHECK=1
check "checked counts" job_says "rank 0 called all_reduce(f32, 100, sum) while rank 1 called all_reduce(f32, 101" 3 \
    "$WORK/mpi" counts 1
check "checked calls" job_says "rank 0 called all_reduce(f32, 100, sum) while rank 1 called barrier()" 3 \
    "$WORK/mpi" calls 1
unset DML_COMM_CHECK
report comm/mpi
