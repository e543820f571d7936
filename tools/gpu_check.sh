#!/bin/sh
# gpu_check.sh [--quick] [--device D]... [OUT]: checks the backends on this machine's GPUs, in one command, without a
# network; each part has a limit of time. What it printed lies in OUT (build/gpu_check), with its figures; at the end
# comes "N passed, N failed, N skipped". D (cuda:0, opencl:1, ...): what is trained on; otherwise all devices but the
# CPU. --quick: without compute-sanitizer. To be run in the repository's folder.
usage() {
    sed -n '2,5s/^# //p' "$0"
    exit "$1"
}
devices='' quick='' out=build/gpu_check build=${DML_BUILD:-build}
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage 0 ;;
    --quick) quick=yes ;;
    --device) [ $# -gt 1 ] || usage 2 >&2 && devices="$devices $2" && shift ;;
    -*) usage 2 >&2 ;;
    *) out=$1 ;;
    esac
    shift
done
if [ ! -f src/dml.h ]; then
    echo 'gpu_check: it is run in the repository' >&2
    exit 2
fi
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
jobs=$(nproc 2>/dev/null || echo 2)
passed=0 failed=0 skipped=0
: >"$out/summary"

say() {
    echo "$1" | tee -a "$out/summary"
}

# part NAME SECONDS command...: takes so long at most, and writes into a log of its own, of which the last line is shown.
part() {
    name=$1 limit=$2 start=$(date +%s) word=ok
    shift 2
    timeout "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null
    status=$?
    [ $status -ne 124 ] || echo "it did not end within $limit s" >>"$out/$name.log"
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1)) word=FAIL
    fi
    say "$(printf '%-5s' $word) $name, $(($(date +%s) - start)) s: $(grep . "$out/$name.log" | tail -n 1)"
    return $status
}

skip() { # NAME REASON
    skipped=$((skipped + 1))
    say "skip  $1: $2"
}

finish() {
    say "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ]
    exit
}

# OpenCL's drivers of CPUs are what make test is for, and NVIDIA's is found through a file that containers often lack.
if [ -z "$OCL_ICD_VENDORS" ]; then
    rm -rf "$out/icd"
    mkdir -p "$out/icd"
    for icd in /etc/OpenCL/vendors/*.icd; do
        [ ! -f "$icd" ] || grep -q 'pocl\|intelocl\|oclgrind' "$icd" || cp "$icd" "$out/icd/"
    done
    if ldconfig -p 2>/dev/null | grep -q 'libnvidia-opencl\.so\.1' && ! grep -qs nvidia "$out"/icd/*.icd; then
        echo libnvidia-opencl.so.1 >"$out/icd/nvidia.icd"
    fi
    export OCL_ICD_VENDORS="$out/icd"
fi

mnist=$build/samples/mnist
part build 300 make -j"$jobs" BUILD="$build" "$mnist" "$build/dmlrun" "$build/bench/gpu" || finish
part devices 30 "$mnist" --list-devices
if command -v nvidia-smi >/dev/null; then part nvidia_smi 30 nvidia-smi; else skip nvidia_smi 'there is none'; fi
[ -n "$devices" ] || devices=$(sed -n 's/^\([a-z]*:[0-9]*\) .*/\1/p' "$out/devices.log")
if [ -z "$devices" ]; then
    say 'FAIL  there is no device but the CPU'
    failed=$((failed + 1))
    finish
fi

# What has to do with devices, on all of them; where there is none of a kind, the tests say so.
part tests 400 make -j"$jobs" test BUILD="$build" V=normal \
    T='gpu/kernels gpu/tensor gpu/backend gpu/tune device graph/in_place graph/narrow ops/ops decode/decoder train/trainer_update dist/mirrored dist/buckets'
case $devices in
*cuda*)
    # Where cuBLASLt is there, dml's own products of 16-bit factors don't run otherwise.
    part own_products 100 env DML_CUBLAS=0 DML_TEST_DEVICES=cuda "$build/normal/tests/gpu/tensor_test"
    for tool in memcheck racecheck initcheck; do
        for test in kernels tensor; do
            if [ -n "$quick" ]; then
                skip ${tool}_$test 'left out by --quick'
            elif command -v compute-sanitizer >/dev/null; then
                part ${tool}_$test 100 env DML_TEST_DEVICES=cuda compute-sanitizer --tool $tool --error-exitcode 1 \
                    "$build/normal/tests/gpu/${test}_test"
            else
                skip ${tool}_$test 'compute-sanitizer, of the CUDA Toolkit, is not installed'
            fi
        done
    done
    ;;
*) skip compute-sanitizer 'there is no CUDA device' ;;
esac

# same_losses LOG: its 100 losses are the CPU's within 1e-4; how fast the last steps were.
same_losses() {
    awk '{ gsub(/[,}]/, "") }
        $1 != "{\"step\":" { next }
        FNR == NR { loss[$2] = $6; next }
        $2 in loss { d = $6 - loss[$2]; if (d < 0) d = -d; if (d > most) most = d; n++; rate = $10 }
        END { print n + 0 " steps, losses differ by up to " most + 0 ", " rate " samples/s"; exit n != 100 || most > 1e-4 }' \
        "$out/cpu.jsonl" "$1" >"$1.compared"
}
follows() {
    if same_losses "$1"; then passed=$((passed + 1)) word=ok; else failed=$((failed + 1)) word=FAIL; fi
    say "$(printf '%-5s' $word) $(basename "$1" .jsonl) follows the CPU: $(cat "$1.compared")"
}
part cpu 120 "$mnist" --steps 100 --log "$out/cpu.jsonl"
for device in $devices; do
    id=$(echo "$device" | tr : _)
    part "$id" 120 "$mnist" --steps 100 --device "$device" --log "$out/$id.jsonl" && follows "$out/$id.jsonl"
    part "${id}_profile" 120 "$mnist" --steps 20 --device "$device" --profile "$out/$id.json"
    part "${id}_ranks" 180 "$build/dmlrun" -n 4 "$mnist" --steps 100 --device "$device" --log "$out/${id}_ranks.jsonl" &&
        follows "$out/${id}_ranks.jsonl"
    case $device in
    opencl:*) part "${id}_products" 120 "$build/bench/gpu" --device "$device" --part products --seconds 0.1 ;;
    *) part "${id}_bench" 240 "$build/bench/gpu" --device "$device" --quick --profile "$out/$id.kernels" ;;
    esac
done
# A rank for each card, whose gradients go by NCCL.
cards=$(grep -c '^cuda:' "$out/devices.log")
if [ "$cards" -eq 0 ]; then
    skip nccl 'there is no CUDA device'
elif ! ldconfig -p 2>/dev/null | grep -q 'libnccl\.so\.2'; then
    skip nccl 'libnccl.so.2 is not installed'
else
    for strategy in all_reduce zero2; do
        part nccl_$strategy 180 env DML_COMM_ENGINE=nccl "$build/dmlrun" -n "$cards" "$mnist" --steps 100 --device cuda:local \
            --strategy $strategy --log "$out/nccl_$strategy.jsonl" && follows "$out/nccl_$strategy.jsonl"
    done
fi
finish
