#!/bin/sh
# accuracy.sh BUILD [mnist|cifar10 [flags of the sample...]]: a model under every strategy with settings that suit it,
# three ranks, or three devices in one process, beside one rank alone. Prints a row for each: the share of the test
# images that is told right, in percent, what is gained or lost against one rank, and whether that is within 0.3.
#   mnist     a perceptron, 10 epochs of MNIST's own digits (make data)
#   cifar10   ResNet-20, 8 epochs (EPOCHS) of CIFAR-10's binary files in BUILD/data/cifar10, along one cycle of the
#             learning rate. The first half is one rank's for all: its checkpoint is what the strategies begin with.
# Rows are kept in BUILD/accuracy/SAMPLE.txt, or SAMPLE-EPOCHS-FLAGS.txt: a run that was stopped goes on behind the last
# of them. ROWS, a pattern of grep's, takes the rows alone whose flags it finds.
build=${1:-build}
sample=${2:-mnist}
[ $# -eq 0 ] || shift
[ $# -eq 0 ] || shift
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
data=$build/data/$sample
case $sample in
mnist) needed=train-images-idx3-ubyte common="--model mlp --epochs 10" ;;
cifar10) needed=data_batch_1.bin common="--epochs ${EPOCHS:-8} --one-cycle --lr 0.2 --weight-decay 5e-4 --timeout 600" ;;
*)
    echo "accuracy: $sample isn't mnist or cifar10" >&2
    exit 2
    ;;
esac
[ -e "$data/$needed" ] || {
    echo "accuracy: there is no $data/$needed" >&2
    exit 1
}
common="--data $data --threads 1 $common $*"
kept=$build/accuracy/$sample$(echo "${EPOCHS:+-$EPOCHS}$*" | tr -d ' ')
rows=$kept.txt
half=$kept-half.dml
mkdir -p "$build/accuracy" && touch "$rows" || exit 1

percent() { # command...: of its last line about the test images
    "$@" | sed -n 's/.*test accuracy \([0-9.]*\) %.*/\1/p' | tail -n 1
}

row() { # ranks, strategy, flags...
    ranks=$1 what=$2
    shift 2
    key="name=accuracy sample=$sample strategy=$what ranks=$ranks flags=$(echo "$*" | tr ' ' ,)"
    echo "$key" | grep -q -e "${ROWS:-.}" || return 0
    old=$(grep -F "$key " "$rows") && {
        echo "$old"
        return 0
    }
    begin=$(date +%s)
    if [ "$what" = none ]; then
        ours=$(percent "$build/samples/$sample" $common "$@")
    elif [ "$ranks" -eq 1 ]; then
        ours=$(percent "$build/samples/$sample" $common $load --strategy "$what" "$@")
    else
        ours=$(percent "$build/dmlrun" -n "$ranks" "$build/samples/$sample" $common $load --strategy "$what" "$@")
    fi
    one=$(sed -n 's/.* strategy=none .* ours=\([0-9.]*\) .*/\1/p' "$rows" | head -n 1)
    [ -n "$ours" ] || {
        echo "$key ours=none"
        return 1
    }
    echo "$key ours=$ours one_rank=${one:-$ours}" \
        "$(awk "BEGIN { d = $ours - ${one:-$ours}; printf \"gain=%.2f within=%s\", d, (d >= -0.3) ? \"yes\" : \"no\" }")" \
        "seconds=$(($(date +%s) - begin)) unit=percent" | tee -a "$rows"
}

mnist_rows() {
    row 1 none || exit 1
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
}

cifar10_rows() {
    [ -e "$half" ] || {
        "$build/samples/$sample" $common --steps $((${EPOCHS:-8} * 391 / 2)) --save "$half.part" >/dev/null && mv "$half.part" "$half"
    } || exit 1
    load="--load $half"
    row 1 none $load || exit 1
    row 3 all_reduce
    row 3 parameter_server
    row 3 downpour --server-momentum 0.9 --lr 0.1
    row 1 none $load --seed 1
    row 3 zero3
    row 1 mirrored --devices cpu,cpu,cpu
    row 3 all_reduce --compression topk:0.2
    row 3 all_reduce --compression powersgd:16
    row 3 local_sgd --tau 4
    row 3 parameter_server --asynchronous --lr 0.1
    row 1 none $load --seed 2
    row 3 zero1
    row 3 zero2
    row 1 central_storage --devices cpu,cpu,cpu
    row 1 data_parallel --devices cpu,cpu,cpu
    row 3 local_sgd --outer-lr 0.15 --tau 4 --lr 0.15
    # One average at the end is of networks that are near each other: it takes the last eighth alone.
    late=$kept-late.dml
    [ -e "$late" ] || {
        "$build/samples/$sample" $common $load --steps $((${EPOCHS:-8} * 391 * 7 / 8)) --save "$late.part" >/dev/null &&
            mv "$late.part" "$late"
    } || exit 1
    load="--load $late"
    row 3 simu_parallel
}
"${sample}_rows"
