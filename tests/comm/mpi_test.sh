# Jobs under an MPI launcher: through MPI (-DDML_MPI), and through our own sockets, which find each other by what the
# launcher tells its processes.
. tests/build/check.sh
unset RANK WORLD_SIZE MASTER_ADDR DML_TIMEOUT DML_THREADS DML_KEY DML_COMM_ENGINE DML_COMM_CHECK DML_COMM_TRANSPORT
export MASTER_PORT=$((20000 + $$ % 20000))

if ! has mpicc || ! has mpirun; then
    skip "MPI" "mpicc and mpirun are not installed"
    report comm/mpi
    exit
fi
case $(mpirun --version 2>&1) in
*"Open MPI"*) run="mpirun --allow-run-as-root --oversubscribe" ;;
*) run=mpirun ;;
esac

job() { # ranks, program, arguments...
    ranks=$1
    shift
    timeout 120 $run -n "$ranks" "$@" 2>&1
}
job_says() { # sentence, ranks, program, arguments...: it fails, saying so
    sentence=$1
    shift
    if job "$@" >"$WORK/sentences"; then return 1; fi
    cat "$WORK/sentences"
    grep -q -e "$sentence" "$WORK/sentences"
}

flags="-std=c99 -O1 -D_GNU_SOURCE $WARN -I."
libs="-lm -lpthread -ldl"
check "a program for MPI compiles" mpicc $flags -DDML_MPI tests/comm/mpi_job.c -o "$WORK/mpi" $libs
check "one whose MPI has small counts" mpicc $flags -DDML_MPI -DDML__MPI_LARGEST=1000 tests/comm/mpi_job.c \
    -o "$WORK/small" $libs
check "one for sockets" $CC $flags tests/comm/mpi_job.c -o "$WORK/sockets" $libs

check "a program that trains" mpicc -std=c99 -O0 -DDML_NO_AVX -D_GNU_SOURCE $WARN -I. -DDML_MPI \
    tests/comm/mpi_train.c -o "$WORK/train" $libs

for ranks in 1 2 3 4; do
    check "all calls, $ranks ranks" job $ranks "$WORK/mpi"
done
# trains_by ENGINE RANKS STRATEGY: and says that it was this engine.
trains_by() {
    job "$2" env DML_PS=1 "$WORK/train" "$3" >"$WORK/trained"
    status=$?
    cat "$WORK/trained"
    [ $status -eq 0 ] && grep -q "^$3, rank 0 of $2 on 1 host, by $1:" "$WORK/trained"
}
for ranks in 1 2 3; do
    check "training, $ranks ranks" trains_by mpi $ranks all_reduce
done
for strategy in local_sgd zero1 zero2 zero3 parameter_server; do
    check "training by $strategy" trains_by mpi 3 $strategy
done
check "training through sockets" env DML_COMM_ENGINE=dml $run -n 2 "$WORK/train"

# A sample, as it is: the strategies whose losses are not one rank's. (Our own sockets would not find that address.)
check "a sample for MPI compiles" mpicc -std=c99 -O0 -DDML_NO_AVX -D_GNU_SOURCE $WARN -I. -DDML_MPI \
    samples/mnist.c -o "$WORK/mnist" $libs
learns_by() { # strategy, flags...
    job 3 env MASTER_ADDR=192.0.2.1 "$WORK/mnist" --model mlp --drawn 400 --epochs 1 --threads 1 --strategy "$@" >"$WORK/learned"
    status=$?
    cat "$WORK/learned"
    [ $status -eq 0 ] && grep -q '^test accuracy' "$WORK/learned"
}
check "the sample by simu_parallel" learns_by simu_parallel
check "the sample by downpour" learns_by downpour
check "the sample by mirrored" learns_by mirrored --devices cpu,cpu
check "the sample by sandblaster" learns_by sandblaster --steps 2
check "the sample by all_reduce, compressed" learns_by all_reduce --compression powersgd
check "in blocks" job 3 "$WORK/small"
check "a thread that makes progress" job 3 "$WORK/mpi" thread
check "a program that initialised MPI" job 2 "$WORK/mpi" mine
check "all calls, with checks" env DML_COMM_CHECK=1 timeout 120 $run -n 3 "$WORK/mpi"
check "sockets that MPI's launcher placed" job 3 "$WORK/sockets"
check "sockets where there is MPI" env DML_COMM_ENGINE=dml timeout 120 $run -n 2 "$WORK/mpi"
check_fails "MPI where there is none" "without -DDML_MPI" env DML_COMM_ENGINE=mpi "$WORK/sockets"
check_fails "an engine that there isn't" 'not "dml", "mpi" or "nccl"' env DML_COMM_ENGINE=smoke "$WORK/sockets"
check_fails "hosts of which none is said to be rank 0's" "MASTER_ADDR must say" env SLURM_PROCID=1 \
    SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 "$WORK/sockets"

check "an argument" job_says "rank 1 called broadcast(f32, 1, root 99): it must be" 3 "$WORK/mpi" argument
check "a frozen rank" job_says "rank 2 of 3 took no part in all_reduce(f32, 100, sum) within 1 s" 3 "$WORK/mpi" \
    frozen 1
check "a rank that closes" job_says "rank 2 closed its communicator while rank [01] was in all_reduce" 3 "$WORK/mpi" \
    closes 1
check "other calls" job_says "(f32, 100, sum).*: they wait for each other" 3 "$WORK/mpi" \
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
