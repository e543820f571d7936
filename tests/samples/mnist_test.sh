# The mnist sample as its users meet it: flags, bad input, files, and ranks that die.
. tests/build/check.sh
mnist=$DML_BUILD/samples/mnist
dmlrun=$DML_BUILD/dmlrun
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT DML_TIMEOUT DML_THREADS DML_TERMINAL
mkdir "$WORK/files"
cd "$WORK/files" || exit 1
# Drawing the 20000 digits that it draws unasked takes each process longer than what is tested.
printf '#!/bin/sh\nexec "%s" --drawn 8000 "$@"\n' "$mnist" >"$WORK/mnist"
chmod +x "$WORK/mnist"
mnist=$WORK/mnist

# refuses STATUS "part" command...: it ends with the status, and in one sentence that has the part.
refuses() {
    want=$1 part=$2
    shift 2
    timeout 60 "$@" >"$WORK/out" 2>"$WORK/err" </dev/null
    status=$?
    cat "$WORK/err"
    echo "exit status $status, wanted $want and \"$part\""
    [ "$status" -eq "$want" ] && [ "$(wc -l <"$WORK/err")" -eq 1 ] && grep -q -e "^mnist: .*$part" "$WORK/err"
}

# same_losses LOG LOG TOLERANCE STEPS: so many steps are in both, with losses as close as that.
same_losses() {
    awk -v tolerance="$3" -v steps="$4" '
        { gsub(/[,}]/, "") }
        $1 != "{\"step\":" { next }
        FNR == NR { loss[$2] = $6; next }
        $2 in loss { d = $6 - loss[$2]; if (d < 0) d = -d; if (d > most) most = d; n++ }
        END { print n + 0 " steps, losses differ by up to " most + 0; exit n != steps || most > tolerance }' "$1" "$2"
}

# ---- flags ----

check "--help" sh -c "'$mnist' --help | grep -q -e '--batch B'"
check "--help lists the strategies" sh -c "'$mnist' --help | grep -q '^ *simu_parallel  *each rank trains alone'"
check "--list-devices" sh -c "'$mnist' --list-devices | grep -q '^cpu .* units, [1-9][0-9]* MiB'"
check "an unknown flag" refuses 2 '"--bach" is no flag' "$mnist" --bach 3
check "a stray word" refuses 2 '"lenet" is no flag' "$mnist" lenet
check "a flag without its value" refuses 2 '--batch wants a value' "$mnist" --batch
check "a flag with an empty one" refuses 2 '--data wants a value' "$mnist" --data ""
check "a number that is too large" refuses 2 'from 0 to 2147483647' "$mnist" --seed 2147483648
check "an empty value for dmlrun" sh -c "'$dmlrun' -n 2 --master-addr '' true 2>&1 | grep -q 'master-addr needs a value'"
check "a batch of 0" refuses 2 '--batch 0' "$mnist" --batch 0
check "a batch that is no number" refuses 2 '--batch 6x4' "$mnist" --batch 6x4
check "a learning rate that is not a number" refuses 2 '--lr nan' "$mnist" --lr nan
check "a momentum of 1" refuses 2 '--momentum 1' "$mnist" --momentum=1
check "no such model" refuses 2 '--model vgg: it takes one of mlp|lenet' "$mnist" --model vgg
check "all models" refuses 2 '--model mlp|lenet: it takes one of mlp|lenet' "$mnist" --model 'mlp|lenet'
check "two types" refuses 2 '--dtype bf16|f16: it takes one of' "$mnist" --dtype 'bf16|f16'
check "no such strategy" refuses 2 '--strategy vote: it takes one of all_reduce, local_sgd' "$mnist" --strategy vote
check "a device beside those of replicas" refuses 2 '--device opencl means nothing to --strategy mirrored' "$mnist" \
    --strategy mirrored --device opencl
check "a profile of several devices" refuses 2 '--profile measures one device' "$mnist" --strategy mirrored --profile \
    "$WORK/profile.json"
check "a flag of another strategy" refuses 2 '--tau means nothing to --strategy simu_parallel' "$mnist" \
    --strategy simu_parallel --tau 3
check "an average every 0 steps" refuses 2 '--tau 0' "$mnist" --strategy local_sgd --tau 0
check "no threads" refuses 2 '--threads 0' "$mnist" --threads 0
check "threads of the environment" refuses 2 'DML_THREADS many' env DML_THREADS=many "$mnist"
check "no such device" refuses 1 "no device 'abacus'" "$mnist" --device abacus
check "no such device of a backend" refuses 1 "cpu:7" "$mnist" --device cpu:7

# ---- data ----

# idx FILE BYTES HEADER: a file of zeros after the header.
idx() {
    { printf "$3" && head -c "$2" /dev/zero; } >"$1"
}
mkdir data
check "no such folder" refuses 1 "none/train-images-idx3-ubyte.*make data" "$mnist" --data none --save s --log l
idx data/train-images-idx3-ubyte 100 '\0\0\010\003\0\0\0\002\0\0\0\034\0\0\0\034'
check "images cut short" refuses 1 "data/train-images-idx3-ubyte" "$mnist" --data data --save s --log l
idx data/train-images-idx3-ubyte 1512 '\0\0\010\003\0\0\0\002\0\0\0\034\0\0\0\033'
check "images of another size" refuses 1 "data/train-images-idx3-ubyte.*28 x 27" "$mnist" --data data
idx data/train-images-idx3-ubyte 1568 '\0\0\010\003\0\0\0\002\0\0\0\034\0\0\0\034'
idx data/train-labels-idx1-ubyte 3 '\0\0\010\001\0\0\0\003'
check "labels of other images" refuses 1 "data/train-labels-idx1-ubyte holds 3 labels for 2 images" "$mnist" --data data
idx data/train-labels-idx1-ubyte 1 '\0\0\010\001\0\0\0\002\012'
check "a label past 9" refuses 1 "data/train-labels-idx1-ubyte: label 0 is 10" "$mnist" --data data
check "nothing half-written" test ! -e s -a ! -e l

# ---- files ----

# What a run says is then in the file said.
said() {
    timeout 120 "$@" >said 2>&1 </dev/null
    status=$?
    cat said
    return "$status"
}
mlp() {
    said "$mnist" --model mlp "$@"
}
json() {
    number='-?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?'
    step="\"step\": [0-9]+, \"epoch\": 1, \"loss\": $number, \"lr\": $number, \"samples_per_s\": $number"
    [ "$(grep -cE "^\{$step\}$" whole)" -eq 100 ] && [ "$(wc -l <whole)" -eq 101 ] &&
        tail -n 1 whole | grep -qE "^\{\"test_accuracy\": $number, \"correct\": [0-9]+, \"total\": 4000\}$"
}
check "a short run" mlp --steps 100 --log whole
check "its report" grep -qE '^test accuracy [0-9]+\.[0-9][0-9] % \([0-9]+/4000\)$' said
check "a line an epoch, and no bar, where there is no terminal" sh -c \
    "[ \$(grep -c '^epoch 1/5: ' said) -eq 1 ] && [ \$(wc -l <said) -eq 3 ]"
check "the log is JSON" json
check "a run of one epoch" mlp --drawn 20000 --epochs 1
check "it learns" awk -F '[ %]+' '$1 == "test" { ok = $3 > 90 } END { exit !ok }' said
check "saving" mlp --steps 50 --save checkpoint
check "loading" mlp --steps 100 --load checkpoint --log rest
check "it goes on as if it had never stopped" same_losses whole rest 0 50
check "a run of another seed" mlp --seed 7 --steps 40 --log seven
check "half of it" mlp --seed 7 --steps 20 --save seeded
check "the other half" mlp --steps 40 --load seeded --log rest
check "it goes on with that seed" same_losses seven rest 0 20
check "the other half of ranks" said "$dmlrun" -n 2 "$mnist" --model mlp --steps 40 --load seeded --log rest
check "they go on with that seed" same_losses seven rest 1e-3 20
# A run that has skipped steps for its loss scale; without the checksum, which would tell that it was made up.
LC_ALL=C sed 's/"dml\.crc32c"/"checksum_1"/; s/"dml\.skipped":"0"/"dml.skipped":"7"/' checkpoint >skipped
check "loading after skipped steps" mlp --steps 60 --load skipped --log rest
check "they count as steps of the data" sh -c 'head -n 1 rest | grep -q "{\"step\": 58,"'
check "nothing is left to do" mlp --steps 50 --load checkpoint --log none
check "it says so" grep -q '^nothing to train: ' said
head -c 5000 checkpoint >cut
check "a checkpoint cut short" refuses 1 cut "$mnist" --model mlp --load cut
check "a checkpoint of another model" refuses 1 checkpoint "$mnist" --model lenet --load checkpoint
check "no such checkpoint" refuses 1 nowhere/c "$mnist" --load nowhere/c
profiled() {
    mlp --steps 3 --profile profile.json >told && grep -q "in 3 calls: dense, backward of dense_1" told &&
        grep -q "all of [0-9]*, for ui.perfetto.dev" told && grep -q '"name":"dense_2"' profile.json &&
        [ "$(tail -c 3 profile.json)" = "]}" ]
}
check "a profile" profiled
check "a profile that can't be written" refuses 1 nowhere/p "$mnist" --profile nowhere/p
check "a log that can't be written" refuses 1 nowhere/l "$mnist" --log nowhere/l
check "a checkpoint that can't be written" refuses 1 nowhere/s "$mnist" --model mlp --steps 1 --save nowhere/s
check "it says so before it trains" [ ! -s "$WORK/out" ]

# cannot_save FILE: refused before training, and its folder is then as it was.
cannot_save() {
    folder=$(dirname "$1")
    before=$(ls -la "$folder" 2>&1)
    refuses 1 "can't [a-z]* .$1.: " $as "$mnist" --model mlp --steps 1 --save "$1" || return 1
    [ ! -s "$WORK/out" ] && [ "$before" = "$(ls -la "$folder" 2>&1)" ]
}
as=
mkdir kept
cp checkpoint kept/checkpoint
check "a checkpoint in no folder" cannot_save nowhere/s
check "a checkpoint below a plain file" cannot_save checkpoint/s
check "a checkpoint that is a folder" cannot_save kept
check "a checkpoint of a name that is too long" cannot_save "kept/$(printf '%0256d' 1)"
check "checking leaves an old checkpoint as it is" sh -c "'$mnist' --model mlp --steps 50 --load checkpoint \
    --save kept/checkpoint && cmp checkpoint kept/checkpoint && [ \"\$(ls kept)\" = checkpoint ]"
check "checking leaves no new one" sh -c "'$mnist' --model mlp --steps 50 --load checkpoint --save kept/new &&
    [ ! -e kept/new ]"
# Permissions bind everyone but root, who takes another name for this.
chmod 666 kept/checkpoint
chmod 555 kept
if [ "$(id -u)" -eq 0 ] && has setpriv; then
    as='setpriv --reuid=65534 --clear-groups'
    chmod 755 "$WORK" "$WORK/files"
fi
if [ "$(id -u)" -eq 0 ] && ! $as sh -c "[ -x '$mnist' ] && [ ! -w kept ]"; then
    skip "a folder that forbids it" "root may write anywhere, and can't become another user here"
else
    check "a folder that forbids a new checkpoint" cannot_save kept/s
    check "a folder that forbids it, though the file doesn't" cannot_save kept/checkpoint
fi
chmod 755 kept
as=
# in_mount OPTIONS command...: with a small file system, mounted so, as the folder mounted.
in_mount() {
    options=$1
    shift
    unshare -m sh -c 'mount -t tmpfs -o "$0" none mounted && "$@"' "$options" "$@"
}
mkdir mounted
if in_mount size=64k true 2>/dev/null; then
    check "a read-only file system" in_mount ro,size=64k sh -c '! "$0" --model mlp --steps 1 --save mounted/s >o 2>e &&
        grep -q "^mnist: can.t [a-z]* .mounted/s.: Read-only file system" e && [ ! -s o ]' "$mnist"
    check "a full file system" in_mount size=64k sh -c 'cat /dev/zero >mounted/zero 2>e
        ! "$0" --model mlp --steps 1 --save mounted/s >o 2>e &&
        grep -q "^mnist: can.t [a-z]* .mounted/s.: No space left on device" e && [ ! -s o ]' "$mnist"
    check "a log that fills the disk" in_mount size=4k sh -c '! "$0" --model mlp --steps 200 --log mounted/l >o 2>e &&
        grep -q "^mnist: can.t write the log mounted/l: No space left on device" e && ! grep -q accuracy o' "$mnist"
else
    skip "file systems that are full or read-only" "nothing can be mounted here"
fi

# full command...: with its standard output on a full disk.
full="sh -c '\"\$@\" >/dev/full' sh"
lost="can't write to the standard output: No space left on device"
if [ -w /dev/full ]; then
    check "a log on a full disk" refuses 1 "can't write the log /dev/full: No space left" "$mnist" --model mlp \
        --steps 3 --log /dev/full
    check "a help that is lost" eval refuses 1 '"$lost"' "$full" '"$mnist"' --help
    check "a list of devices that is lost" eval refuses 1 '"$lost"' "$full" '"$mnist"' --list-devices
    check "a report that is lost" eval refuses 1 '"$lost"' "$full" '"$mnist"' --model mlp --steps 3
    check "a report that is lost under dmlrun" sh -c "'$dmlrun' -n 2 '$mnist' --model mlp --steps 3 2>said >/dev/full
        [ \$? -eq 1 ] && grep -q \"^dmlrun: $lost\" said"
else
    skip "output to a full disk" "no /dev/full"
fi

check "a loss that explodes" refuses 1 'a smaller --lr may help' "$mnist" --model mlp --lr 1000 --steps 100

# ---- ranks ----

# one_complaint PART RANK command...: it fails with status 1, and only that rank says why.
one_complaint() {
    part=$1 by=$2
    shift 2
    timeout 60 "$@" >said 2>&1 </dev/null
    status=$?
    cat said
    [ "$status" -eq 1 ] && [ "$(grep -c 'mnist: ' said)" -eq 1 ] && grep -q "^\[$by\] mnist: .*$part" said
}
check "ranks without data" one_complaint none/train-images-idx3-ubyte 0 "$dmlrun" -n 4 "$mnist" --data none
check "ranks without a device" one_complaint abacus 0 "$dmlrun" -n 3 "$mnist" --device abacus

check "ranks whose checkpoint can't be written" one_complaint nowhere/s 0 "$dmlrun" -n 3 "$mnist" --model mlp \
    --save nowhere/s
check "ranks whose checkpoint isn't there" one_complaint nowhere/c 0 "$dmlrun" -n 3 "$mnist" --load nowhere/c
check "one rank without data" one_complaint "none" 1 "$dmlrun" -n 3 sh -c \
    '[ "$RANK" -eq 1 ] && exec "$0" --model mlp --data none; exec "$0" --model mlp' "$mnist"

check "four ranks" said "$dmlrun" -n 4 "$mnist" --model mlp --steps 100 --log four
check "one report" sh -c "[ \$(grep -c 'test accuracy' said) -eq 1 ]"
check "four ranks train as one does" same_losses whole four 1e-3 100
check "ranks of uneven shares" said "$dmlrun" -n 3 "$mnist" --model mlp --steps 20 --batch 2 --log three
check "one rank of such batches" mlp --steps 20 --batch 2 --log one
check "they train as one does" same_losses one three 1e-3 20
check "ranks that load" said "$dmlrun" -n 2 "$mnist" --model mlp --steps 100 --load checkpoint --log two
check "they go on as one does" same_losses whole two 1e-3 50
check "workers that load" said "$dmlrun" -n 3 "$mnist" --model mlp --steps 75 --load checkpoint --log served --save servers \
    --strategy parameter_server
check "their servers go on as one does" same_losses whole served 1e-3 25
check "one rank that loads what servers had" mlp --steps 100 --load servers --log after
check "it goes on as one does" same_losses whole after 1e-3 25
check "workers of Downpour that save" said "$dmlrun" -n 3 "$mnist" --model mlp --steps 10 --strategy downpour --save fetched
check "they go on, of whom the first alone loads" said "$dmlrun" -n 3 "$mnist" --model mlp --steps 20 --strategy downpour \
    --load fetched

# reaches NAME flags...: three ranks that train by that strategy read more than 90 % of the digits right.
reaches() {
    said "$dmlrun" -n 3 "$mnist" --model mlp --threads 1 --epochs 2 --strategy "$@" || return 1
    awk '$1 == "[0]" && $2 == "test" { ok = $4 > 90 } END { exit !ok }' said
}
check "all_reduce learns" reaches all_reduce
check "local_sgd learns" reaches local_sgd --save averaged
check "what it saves is the average of all ranks" sh -c "'$mnist' --model mlp --epochs 2 \
    --load averaged | grep '^test accuracy' >one; sed -n 's/^.0. //p' said | grep '^test accuracy' | diff one - && [ -s one ]"
for strategy in simu_parallel zero1 zero2 zero3 parameter_server downpour sandblaster mirrored central_storage data_parallel; do
    check "$strategy learns" reaches $strategy
done
check "all_reduce learns with compression" reaches all_reduce --compression 4bit
check "all_reduce learns across steps" reaches all_reduce --across-steps
check "all_reduce learns with a fraction of its own" reaches all_reduce --compression topk:0.1
check "downpour learns with momentum on the servers" reaches downpour --server-momentum 0.9
check "a parameter server with bounded staleness" reaches parameter_server --staleness 4
check "no such compression" refuses 2 '--compression zip: it takes bf16' "$mnist" --compression zip
check "a fraction of more than all" refuses 2 '--compression topk:2: it takes bf16' "$mnist" --compression topk:2
check "a rank of 0" refuses 2 '--compression powersgd:0: it takes bf16' "$mnist" --compression powersgd:0
check "a rank of one and a half" refuses 2 '--compression powersgd:1.5: .*a whole number' "$mnist" --compression powersgd:1.5
check "a number that means nothing" refuses 2 '--compression bf16:3: it takes bf16' "$mnist" --compression bf16:3
check "servers without workers" refuses 1 'of 1 rank 3 are to be servers.*start more ranks' "$mnist" \
    --strategy parameter_server --ps 3
check "no devices" refuses 1 "0 devices" "$mnist" --strategy mirrored --devices ,
check "17 devices" refuses 2 'devices cpu,cpu.*at most 16 devices' "$mnist" --strategy mirrored \
    --devices cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu
check "devices of endless names" refuses 2 '512 bytes, and it takes at most 511' "$mnist" --strategy mirrored --devices "$(printf '%0512d' 1)"
port=$((20000 + $$ % 12000)) # below those that systems give to who connects
check "a rank that never comes" refuses 1 'rank 1' env RANK=0 WORLD_SIZE=2 MASTER_PORT=$port "$mnist" --timeout 1

# loses SIGNAL: rank 2 of four gets the signal while they train; the run fails and names it.
loses() {
    rm -f pid.*
    timeout 60 "$dmlrun" -n 4 sh -c 'echo $$ >pid.$RANK; exec "$@"' sh "$mnist" --model mlp --epochs 1000 --timeout 3 \
        --log lost >"$WORK/lost" 2>&1 </dev/null &
    run=$!
    tries=0
    while [ ! -s lost ] && [ "$tries" -lt 300 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill -s "$1" "$(cat pid.2)"
    wait "$run"
    status=$?
    rm -f lost
    cat "$WORK/lost"
    echo "exit status $status"
    [ "$status" -ne 0 ] && [ "$status" -ne 124 ] && grep -q 'rank 2' "$WORK/lost"
}
check "a rank killed by SIGKILL" loses KILL
check "a rank frozen by SIGSTOP" loses STOP

# ---- devices ----

# digits NAME COUNT: images of noise with a bright bar whose place is the label; MNIST's two files of that name. The same
# each time, which rand() isn't: mawk's begins with the time of day.
digits() {
    LC_ALL=C awk -v count="$2" '
        function header(type, dims) {
            printf "%c%c%c%c%c%c%c%c", 0, 0, 8, dims, 0, 0, int(count / 256), count % 256 >type
        }
        function draw(most) {
            seed = seed * 16807 % 2147483647
            return int(seed / 2147483647 * most)
        }
        BEGIN {
            seed = '"${DIGITS_SEED:-2026}"'
            header("images", 3); printf "%c%c%c%c%c%c%c%c", 0, 0, 0, 28, 0, 0, 0, 28 >"images"
            header("labels", 1)
            for (i = 0; i < count; i++) {
                label = draw(10)
                printf "%c", label >"labels"
                for (p = 0; p < 784; p++) {
                    column = p % 28 - 2 * label - 4
                    printf "%c", draw(60) + (column == 0 || column == 1 ? 180 : 0) >"images"
                }
            }
        }'
    mv images "data/$1-images-idx3-ubyte"
    mv labels "data/$1-labels-idx1-ubyte"
}
digits train 640
digits t10k 100
if "$mnist" --list-devices | grep -q '^opencl'; then
    for model in mlp lenet; do
        check "$model on the CPU" said "$mnist" --data data --model $model --batch 8 --steps 100 --log cpu
        check "$model on OpenCL" said "$mnist" --data data --model $model --batch 8 --steps 100 --log opencl \
            --device opencl
        check "$model: the same losses" same_losses cpu opencl 1e-3 100
    done
    check "one rank on the CPU" said "$mnist" --data data --model mlp --batch 8 --steps 100 --log one
    check "two ranks on OpenCL" said "$dmlrun" -n 2 "$mnist" --data data --model mlp --batch 8 --steps 100 --log two \
        --device opencl
    check "they train as it does" same_losses one two 1e-3 100
else
    skip "OpenCL and CPU losses" "no OpenCL device"
fi
cd "$ROOT" || exit 1
report samples/mnist
