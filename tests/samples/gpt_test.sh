# The gpt sample: one model, however it is cut over ranks, and what it says of bad input.
. tests/build/check.sh
gpt=$DML_BUILD/samples/gpt
dmlrun=$DML_BUILD/dmlrun
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT DML_TIMEOUT DML_THREADS DML_TERMINAL
cd "$WORK" || exit 1

# refuses STATUS "part" command...: it ends with the status, and in one sentence that has the part.
refuses() {
    want=$1 part=$2
    shift 2
    timeout 60 "$@" >out 2>err </dev/null
    status=$?
    cat err
    echo "exit status $status, wanted $want and \"$part\""
    [ "$status" -eq "$want" ] && [ "$(wc -l <err)" -eq 1 ] && grep -q -e "gpt: .*$part" err
}

# same_losses LOG [OTHER]: its 20 steps' losses are within 1e-5 of those of one process.
same_losses() {
    awk '{ gsub(/[,}]/, "") }
        $1 != "{\"step\":" { next }
        FNR == NR { loss[$2] = $6; next }
        $2 in loss { d = $6 - loss[$2]; if (d < 0) d = -d; if (d > most) most = d; n++ }
        END { print n + 0 " steps, losses differ by up to " most + 0; exit n != 20 || most > 1e-5 }' "${2:-one.jsonl}" "$1"
}

check "--help" sh -c "'$gpt' --help | grep -q -e '--pipeline-parallel-size N'"
check "heads that don't divide the channels" refuses 2 '--channels 64 can.t be cut into --heads 3' "$gpt" --heads 3
check "ranks that don't divide the heads" refuses 2 '--heads 4 can.t be shared by --tensor-parallel-size 3' "$gpt" \
    --tensor-parallel-size 3
check "more stages than layers" refuses 2 '--layers 2 are too few' "$gpt" --pipeline-parallel-size 3
check "too few ranks" refuses 1 '1 ranks can.t have --tensor-parallel-size 2 and --pipeline-parallel-size 2: they must be a multiple of 4' \
    "$gpt" --tensor-parallel-size 2 --pipeline-parallel-size 2
check "no steps and no model" refuses 2 '--steps 0 takes a model from --load' "$gpt" --steps 0
check "no text" refuses 1 "can't read nothing: No such file" "$gpt" --data nothing
printf 'short\n' >short
check "too little text" refuses 1 '6 letters are too few' "$gpt" --data short
check "no model to load" refuses 1 'nothing.*No such file' "$gpt" --load nothing

# ---- however it is cut ----

small="--steps 20 --layers 4 --channels 32 --batch 24 --micro-batch-size 5"
check "one process" "$gpt" $small --log one.jsonl --save one
check "layers in two" "$dmlrun" -n 2 "$gpt" $small --tensor-parallel-size 2 --log tensor.jsonl --save tensor
check "has the same losses" same_losses tensor.jsonl
check "two stages" "$dmlrun" -n 2 "$gpt" $small --pipeline-parallel-size 2 --log pipeline.jsonl --save pipeline
check "have the same losses" same_losses pipeline.jsonl
check "two models of two stages in two parts" "$dmlrun" -n 8 "$gpt" $small --tensor-parallel-size 2 \
    --pipeline-parallel-size 2 --log all.jsonl --save all
check "have them too" same_losses all.jsonl
check "a model of one process in four parts" "$dmlrun" -n 4 "$gpt" $small --tensor-parallel-size 4 --load one --lr 1e-9
check "stages of parts without parts" "$dmlrun" -n 2 "$gpt" $small --pipeline-parallel-size 2 --load all --lr 1e-9
check "another model's file" sh -c "! '$gpt' --steps 1 --layers 1 --load one 2>err && grep -q 'another model' err"
thirds="--steps 20 --layers 1 --heads 3 --channels 24 --batch 12 --context 8"
check "three heads in one process" "$gpt" $thirds --log whole.jsonl
check "a layer in three, which have all letters" "$dmlrun" -n 3 "$gpt" $thirds --tensor-parallel-size 3 --log thirds.jsonl
check "has its losses" same_losses thirds.jsonl whole.jsonl
check "16 bits" "$dmlrun" -n 4 "$gpt" $small --dtype f16 --tensor-parallel-size 2 --pipeline-parallel-size 2

cat "$ROOT"/docs/*.md >text
check "text, and some of its own" sh -c "'$gpt' --data text $small >out && grep -q 'test accuracy' out && [ \$(wc -c <out) -gt 500 ]"
check "a model that is loaded writes" sh -c "'$gpt' --data text $small --save written >out && '$gpt' --data text $small --steps 0 --load written >again"
check "the same as when it was trained" sh -c "tail -n +3 out >a; tail -n +2 again >b; cmp a b && [ \$(wc -c <a) -gt 400 ]"
check "what goes on from a prompt" sh -c "'$gpt' --data text $small --steps 0 --load written --prompt 'A tensor ' --temperature 0.5 --top-k 5 | grep -q '^A tensor '"
check "the likeliest letters, whatever the seed" sh -c "for seed in 1 2; do '$gpt' --data text $small --steps 0 --load written --prompt A --temperature 0 --seed \$seed | tail -n +3 >likely\$seed; done; cmp likely1 likely2 && [ \$(wc -c <likely1) -gt 300 ]"
check "of which --top-p leaves one, too, and so many are written" sh -c "'$gpt' --data text $small --steps 0 --load written --prompt A --top-p 1e-6 --max-new-tokens 9 2>rate | tail -n +3 >few; [ \$(wc -c <few) -eq 11 ] && head -c 10 likely1 >a && head -c 10 few >b && cmp a b && grep -q 'letters a second' rate"
check "with weights in 8 bits" sh -c "'$gpt' --data text $small --channels 64 --heads 4 --weights i8 --temperature 0 | tail -n +3 >i8; [ \$(wc -c <i8) -gt 300 ]"
check_fails "weights that there aren't" "it takes one of f32|i8" "$gpt" --data text $small --weights i4
check "that several ranks write" sh -c "'$dmlrun' -n 2 '$gpt' --data text $small --pipeline-parallel-size 2 | grep -q 'test accuracy'"

# A rank that dies ends the others, which name it.
rm -f log.jsonl
"$dmlrun" -n 3 "$gpt" --layers 3 --pipeline-parallel-size 3 --log log.jsonl >out 2>err &
job=$!
for i in $(seq 100); do [ -s log.jsonl ] && break; sleep 0.1; done
pkill -KILL -P "$job" -o
wait "$job"
check "a stage that is killed" sh -c "cat err; grep -q 'gpt: .*rank [0-2]' err"
cd "$ROOT" || exit 1
report samples/gpt
