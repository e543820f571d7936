# The cifar10 sample: it learns, and what it has learned, running statistics included, is in its files.
. tests/build/check.sh
cifar10="$DML_BUILD/samples/cifar10 --depth 8 --batch 32"
dmlrun=$DML_BUILD/dmlrun
unset RANK WORLD_SIZE DML_THREADS DML_TERMINAL
mkdir "$WORK/files"
cd "$WORK/files" || exit 1

# refuses STATUS "part" flags...: it ends with the status, and in one sentence that has the part.
refuses() {
    want=$1 part=$2
    shift 2
    timeout 60 $cifar10 "$@" >"$WORK/out" 2>"$WORK/err" </dev/null
    status=$?
    cat "$WORK/err"
    echo "exit status $status, wanted $want and \"$part\""
    [ "$status" -eq "$want" ] && [ "$(wc -l <"$WORK/err")" -eq 1 ] && grep -q -e "^cifar10: .*$part" "$WORK/err"
}

# run NAME flags...: what it says is then in the file NAME, its log in NAME.log.
run() {
    name=$1
    shift
    timeout 300 $cifar10 --log "$name.log" "$@" >"$name" 2>&1 </dev/null
    status=$?
    cat "$name"
    return "$status"
}

# falls LOG: the mean loss of the last ten steps is well below that of the first ten.
falls() {
    awk '{ gsub(/,/, "") } $1 == "{\"step\":" { loss[++n] = $6 }
        END { for (i = 1; i <= 10; i++) { first += loss[i]; last += loss[n + 1 - i] }
              print first / 10 " to " last / 10; exit !(n == 50 && last < 0.85 * first) }' "$1"
}

# same_ends NAME NAME: the lines on the test are in both, and the same.
same_ends() {
    tail -n 2 "$1" >one && tail -n 2 "$2" | diff one - && grep -q '^test loss [0-9.]*$' one
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

check "--help" sh -c "$cifar10 --help | grep -q -e '--depth D'"
check "a depth that isn't 6 n + 2" refuses 2 '--depth 21: it takes 6 n + 2' --depth 21
check "no such device" refuses 1 "no device 'abacus'" --device abacus
check "no such folder" refuses 1 'none/data_batch_1.bin.: No such file' --data none
mkdir data
head -c 3074 /dev/zero >data/data_batch_1.bin
check "a file cut short" refuses 1 'data/data_batch_1.bin holds 3074 bytes' --data data
for part in 1 2 3 4 5; do
    head -c 30730 /dev/zero >data/data_batch_$part.bin
done
check "no images to test" refuses 1 'data/test_batch.bin.: No such file' --data data
{ printf '\012' && head -c 3072 /dev/zero; } >data/test_batch.bin
check "a label past 9" refuses 1 'data/test_batch.bin is no file of CIFAR-10: label 0 is 10' --data data
head -c 6146 /dev/zero >data/test_batch.bin
check "a run on files" run files --data data --steps 2
check "it has read them" grep -q ' 50 images to learn from, 2 to test;' files
check "no such strategy" refuses 2 '--strategy vote: it takes one of all_reduce' --strategy vote

check "it trains" run whole --steps 50 --seed 3
check "the loss falls" falls whole.log
check "its report" grep -qE '^test accuracy [0-9]+\.[0-9][0-9] % \([0-9]+/1000\)$' whole
check "half of it" run half --steps 25 --seed 3 --save checkpoint
check "the other half" run rest --steps 50 --load checkpoint --save end
check "it goes on as if it had never stopped" same_losses whole.log rest.log 0 25
check "and ends there" same_ends whole rest
check "predicting from a file" run again --steps 50 --load end
check "it tells the same" same_ends whole again
check "on one thread" run one_thread --steps 50 --load end --threads 1
check "it tells the same there" same_ends whole one_thread

check "one cycle" run cycle --drawn 320 --epochs 4 --one-cycle
check "the rate climbs for a quarter of it, and falls to 0" awk '{ gsub(/[,}]/, "") } $1 == "{\"step\":" { lr[++n] = $8 }
    END { for (i = 2; i <= n; i++) if (i <= 10 ? lr[i] <= lr[i - 1] : i > 11 && lr[i] >= lr[i - 1]) bad++
          exit bad || n != 40 || lr[1] > 0.011 || lr[10] < 0.097 || lr[40] > 0.001 }' cycle.log

# ranks STRATEGY: two of them train by it; the loss falls, and rank 0 alone reports.
ranks() {
    timeout 300 "$dmlrun" -n 2 $cifar10 --drawn 2000 --steps 50 --threads 1 --strategy "$1" --log ranks.log >ranks 2>&1 </dev/null
    status=$?
    cat ranks
    [ "$status" -eq 0 ] && falls ranks.log && [ "$(grep -c '^.0. test accuracy .*/200)$' ranks)" -eq 1 ] &&
        [ "$(grep -c 'test loss' ranks)" -eq 1 ]
}
check "two ranks that add up gradients" ranks all_reduce
check "two ranks that average parameters" ranks local_sgd
# Running statistics are those of what was found: the test's loss is near the training's.
whole_set() {
    timeout 300 "$dmlrun" -n 3 $cifar10 --drawn 500 --threads 1 --strategy sandblaster --steps 12 >whole_set 2>&1 </dev/null
    cat whole_set
    awk '/passes: loss/ { trained = $5 } /test loss/ { tested = $4 } END { exit !(trained < 2.1 && tested < 2.2) }' whole_set
}
check "a strategy that goes by the whole set" whole_set
if "$DML_BUILD/samples/mnist" --list-devices | grep -q "^opencl"; then
    check "a few steps on the CPU" run cpu --steps 4
    check "a few steps on OpenCL" run opencl --steps 4 --device opencl
    check "the same losses" same_losses cpu.log opencl.log 2e-3 4
else
    skip "OpenCL and CPU losses" "no OpenCL device"
fi
cd "$ROOT" || exit 1
report samples/cifar10
