#!/bin/sh
# accuracy.sh BUILD [flags of mnist...]: MNIST's own digits (make data) under every strategy with settings that suit
# it, three ranks, or three devices in one process, beside one rank alone. Prints a row for each: the share of the test
# digits that is read right, in percent, what is gained or lost against one rank, and whether that is within 0.3.
build=${1:-build}
[ $# -eq 0 ] || shift
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
[ -e "$build/data/mnist/train-images-idx3-ubyte" ] || {
    echo "accuracy: MNIST is not in $build/data/mnist (make data)" >&2
    exit 1
}
common="--data $build/data/mnist --model mlp --epochs 10 --threads 1 $*"

percent() { # command...: of its last line about the test digits
    "$@" | sed -n 's/.*test accuracy \([0-9.]*\) %.*/\1/p' | tail -n 1
}
one=$(percent "$build/samples/mnist" $common)
[ -n "$one" ] || exit 1
echo "name=accuracy strategy=none ranks=1 ours=$one unit=percent"

row() { # ranks, flags...
    ranks=$1
    shift
    if [ "$ranks" -eq 1 ]; then
        ours=$(percent "$build/samples/mnist" $common --strategy "$@")
    else
        ours=$(percent "$build/dmlrun" -n "$ranks" "$build/samples/mnist" $common --strategy "$@")
    fi
    what=$1
    shift
    echo "name=accuracy strategy=$what ranks=$ranks flags=$(echo "$*" | tr ' ' ,) ours=${ours:-none} one_rank=$one" \
        "$(awk "BEGIN { d = ${ours:-0} - $one; printf \"gain=%.2f within=%s\", d, d >= -0.3 ? \"yes\" : \"no\" }") unit=percent"
}
row 3 all_reduce
row 3 all_reduce --compression bf16
row 3 all_reduce --compression 8bit
row 3 all_reduce --compression topk
row 3 all_reduce --compression powersgd
row 3 zero1
row 3 zero2
row 3 zero3
row 1 mirrored --devices cpu,cpu,cpu
row 1 central_storage --devices cpu,cpu,cpu
row 1 data_parallel --devices cpu,cpu,cpu
row 3 parameter_server
row 3 parameter_server --asynchronous
row 3 parameter_server --staleness 4
row 3 downpour --epochs 15
row 3 local_sgd
row 3 local_sgd --outer-lr 0.7 --tau 50 --lr 0.005
row 3 simu_parallel --epochs 20
row 3 sandblaster --epochs 20
