# The benchmarks: their options, the form of their rows, peers that work, fail or aren't there, and the report. No time
# is asserted.
. tests/build/check.sh
bench=$DML_BUILD/bench
unset DML_PEERS
mkdir -p "$WORK/none" "$WORK/peers"

# A peer that answers as bench/peers.h asks; how, its name says.
peer() { # name
    cat >"$WORK/peers/$1" <<'END'
#!/bin/sh
case ${0##*/} in
blis) echo 'no such processor'; exit 1 ;;
mkl) exit 1 ;;
esac
echo "ready 1.0 on $1 threads of $OMP_NUM_THREADS"
while read -r word rest; do
    case ${0##*/}$word in
    onednncase) echo 'no such case' ;;
    openblas_debiantime) exit 1 ;;
    *case) echo 'ok bytes=12345' ;;
    *time) echo 0.125 ;;
    esac
done
END
    chmod +x "$WORK/peers/$1"
}
for name in openblas openblas_debian blis mkl onednn torch openmp openmpi_tcp gloo; do peer $name; done

run() { # program, options...: rows into $WORK/rows, messages into $WORK/messages
    program=$1
    shift
    "$bench/$program" "$@" >"$WORK/rows" 2>"$WORK/messages"
    status=$?
    sed -i 's/ disturbed=1$//' "$WORK/rows" # whether they are is the machine's business
    cat "$WORK/rows" "$WORK/messages"
    return $status
}

# Every line is a comment or a row: name=, words of name=value, threads=, ours=, limit=, ratio_limit=, unit=.
rows_are_well() { # how many
    ! grep -v -e '^#' "$WORK/rows" | grep -v -E \
        '^name=[a-z0-9_]+( [a-z0-9_]+=[^ =]+)* threads=[0-9]+ ours=[^ ]+( best_peer=[^ ]+ peer=[a-z_]+)? limit=[^ ]+( ratio_peer=[^ ]+)? ratio_limit=[^ ]+ unit=[^ ]+( [a-z0-9_]+=[^ ]+)*$' &&
        [ "$(grep -c '^name=' "$WORK/rows")" -eq "$1" ]
}

tiny='--threads 1 --seconds 0.001'
for program in gemm gpu conv elementwise optimizer forkjoin train decode memory reduce_op lines allreduce choice ps ddp cut strategies numerics simulate report; do
    check "$program --help" run $program --help
    check "$program --help says how it is used" grep -q "^usage: $program" "$WORK/rows"
    check_fails "$program refuses an option that it doesn't have" "$program" "$bench/$program" --none
done
for words in 'gemm --m 0' 'gemm --m x' 'gemm --m 1.5' 'gemm --m' 'gemm --n 4' 'gpu --m 0' 'gpu --part none' 'gpu --dtype i32' 'gemm --threads -1' 'gemm --seconds 0' \
    'conv --what sideways' 'conv --model alexnet' 'conv --height 8' 'elementwise --what none' 'optimizer --what none' \
    'train --model none' 'train --batch 0' 'train --dtype i32' 'reduce_op --op none' 'allreduce --ranks 1' 'allreduce --op none' \
    'allreduce --algo none' 'allreduce --transport none' 'numerics --what none' 'numerics --input none' 'numerics --m 4' \
    'numerics --what sgemm --n 4' 'simulate --op none' 'simulate --algo none' 'simulate --ranks 1' 'simulate --bytes 8:4' \
    'simulate --topology none' 'simulate --check none' 'ps --steps 1' 'strategies --experiment none'; do
    check_fails "$words" '' "$bench"/$words
    check "$words: one sentence" test "$(wc -l <"$WORK/said")" -eq 1
done

# A ring of 4 over links of 1000 bytes/s: 6 steps of 1000 bytes.
printf '# a note\nranks=4 bytes=4000 algo=ring seconds=6 latency=0 overhead=0 bandwidth=8e-6\n' >"$WORK/measured"
check "simulate" run simulate --ranks 2:8 --bytes 4:64 --algo ring --svg "$WORK/svg"
check "a row for each case" test "$(grep -c '^name=simulate op=all_reduce algo=ring ranks=.* seconds=' "$WORK/rows")" -eq 9
check "charts" grep -q '>bytes</text>' "$WORK/svg/all_reduce_8_ranks.svg"
check "simulate beside what was measured" run simulate --check "$WORK/measured"
check "it agrees" grep -q '^# 1 of 1 cases (100 %) within 15 %' "$WORK/rows"

# No peers at all: each is named, and the rows come.
none="--peers $WORK/none"
check "gemm without peers" run gemm --m 5 --n 7 --k 9 --ta 1 $tiny $none
check "gemm's row" rows_are_well 1
check "gemm has no peer" grep -q 'm=5 n=7 k=9 ta=1 tb=0 .* best_peer=0 peer=none .* ratio_peer=0.000' "$WORK/rows"
check "gemm names what is missing" grep -q "left out the peer blis: there is no $WORK/none/blis (make bench-peers)" "$WORK/rows"
check "bf16" run gemm --bf16 --m 5 --n 7 --k 9 --tb 1 $tiny $none
check "its row" rows_are_well 1
check "its instructions" grep -q -E 'name=bf16gemm .* isa=(amx|avx512_bf16|widened) of_f32=' "$WORK/rows"
check "conv" run conv --height 6 --channels 3 --filters 4 --batch 2 $tiny $none
check "conv's rows" rows_are_well 3
check "conv with groups and dilation" run conv --height 6 --channels 4 --filters 4 --groups 4 --dilation 2 --batch 2 $tiny $none
check "a depthwise layer's rows" rows_are_well 3
check "its groups and dilation" grep -q 'what=forward .* dilation=2 groups=4 ' "$WORK/rows"
check "each missing peer is named once, not for each number of threads" \
    test "$(DML_PEERS=$WORK/none "$bench/elementwise" --what copy --n 300 --seconds 0.001 | grep -c 'left out the peer torch')" -eq 1
check "nor for each number of ranks" \
    test "$("$bench/allreduce" $none --bytes 4096 --seconds 0.001 | grep -c 'left out the peer gloo')" -eq 1
check "the quick layers" run conv --quick $tiny $none
check "nothing of them is left out" rows_are_well 27
check "nor said to be" sh -c "! grep 'conv: left out conv' '$WORK/messages'"
check_fails "a kernel that doesn't fit" "the kernel doesn't fit" run conv --height 2 --channels 1 --filters 1 --kernel 5 --pad 0 \
    --batch 1 $tiny $none
check "elementwise" run elementwise --n 300 $tiny $none
check "elementwise's rows, one for each kernel" rows_are_well 23
check "exp and log are among them" sh -c "grep -q ' what=exp ' '$WORK/rows' && grep -q ' what=log ' '$WORK/rows'"
check "gpu without such a device" run gpu --device opencl:63
check "says which there are" grep -q '^# gpu: there is no device opencl:63: this finds cpu' "$WORK/rows"
if ! "$bench/gpu" --device opencl:0 --m 1 --seconds 0.001 | grep -q 'there is no device'; then
    check "gpu's products" run gpu --device opencl:0 --m 5 --n 7 --k 9 --ta 1 $tiny $none
    check "their row" rows_are_well 1
    check "which names the product" grep -q '^name=gpu_products what=gemm dtype=f32 m=5 n=7 k=9 ta=1 tb=0 waits=' "$WORK/rows"
    check "gpu's other parts" run gpu --device opencl:0 --part memory,lenet,gpt --mib 1 --layers 1 --width 64 --context 8 --batch 2 \
        --vocabulary 50 --steps 5 --profile "$WORK/kernels" $tiny $none
    check "their rows" rows_are_well 39
    check "none is left out" sh -c "! grep 'left out' '$WORK/rows'"
    check "their kernels" grep -q '^| .* | backward | .* | dense_1 |$' "$WORK/kernels"
fi
check "optimizer" run optimizer --n 300 $tiny $none
check "optimizer's rows" rows_are_well 6
check "reduce_op" run reduce_op --dtype bf16 $tiny
check "reduce_op's rows, of three ops at two levels" rows_are_well 6
check "lines" run lines --bytes 200000 --ring 65536 --seconds 0.001
check "lines' rows" rows_are_well 4
check "of whole pieces" grep -q '^name=lines what=written bytes=196608 ring=65536 threads=2 ' "$WORK/rows"
check "decode" run decode --quick --threads 1 --seconds 0.001 $none
check "decode's rows" rows_are_well 16
check "forkjoin" run forkjoin --threads 2 --seconds 0.001 $none
check "forkjoin's rows" rows_are_well 3
check "allreduce" run allreduce --ranks 2 --transport tcp --bytes 4096 --seconds 0.001 $none
check "allreduce's row" rows_are_well 1
check "its time and bandwidth" grep -q '^name=all_reduce transport=tcp ranks=2 bytes=4096 algo=[a-z_]* chosen=1 latency_us=[^ ]* algbw=' "$WORK/rows"
check "allreduce names what is missing" grep -q 'left out the peer gloo: there is no' "$WORK/rows"
check "over each transport between processes, for each size" run allreduce --ranks 2 --min 4 --max 1024 --seconds 0.001 $none
check "their rows" rows_are_well 6
check "between threads" run allreduce --ranks 3 --transport local --bytes 4096 --seconds 0.001 $none
check "their row" rows_are_well 1
check "by every algorithm" run allreduce --ranks 2 --transport shm --bytes 4096 --algo all --seconds 0.001 $none
check "their rows" rows_are_well "$(grep -c '^name=' "$WORK/rows")"
check "a ring among them" grep -q ' algo=ring ' "$WORK/rows"
check "a ring's steps" run allreduce --ranks 4 --transport local --bytes 4096 --algo ring --explain --seconds 0.001 $none
check "what they should take" grep -q "^# predicted_us=[0-9]" "$WORK/rows"
check "are said" grep -q '^# all_reduce of 4096 bytes: ring; rank 0 of 4:$' "$WORK/rows"
check "one by one" test "$(grep -c '^#   [0-9]*: ' "$WORK/rows")" -eq 12
for op in reduce broadcast scatter gather all_gather reduce_scatter all_to_all; do
    check "$op" run allreduce --op $op --ranks 2 --transport local --bytes 4096 --seconds 0.001 $none
    check "its row" grep -q "^name=$op .* bytes=4096 " "$WORK/rows"
done
check "choice" run choice --op all_reduce --transport local --ranks 3 --min 1024 --max 1024 --seconds 0.002 --tune 0.1 --each
grep '^name=algorithm' "$WORK/rows" >"$WORK/algorithms"
grep -v '^name=algorithm' "$WORK/rows" >"$WORK/choice" && mv "$WORK/choice" "$WORK/rows"
check "choice's rows" rows_are_well 2
check "the algorithm chosen by trials" grep -q '^name=tuned op=all_reduce transport=local ranks=3 bytes=1024 chosen=[a-z_]* ' "$WORK/rows"
check "the chosen algorithm beside the best" grep -q '^name=choice op=all_reduce transport=local ranks=3 bytes=1024 chosen=[a-z_]* threads=1 ours=[^ ]* best_peer=[^ ]* peer=[a-z_]* ' "$WORK/rows"
check "by every algorithm, of which one is chosen" test "$(grep -c ' chosen=1 ' "$WORK/algorithms")" -eq 1
check "train" run train --model mlp --batch 2 $tiny $none
check "train's row" rows_are_well 1
check "train's flops" grep -q ' what=mlp batch=2 .* dtype=f32 .* flops=' "$WORK/rows"
for model in char_lstm gpt; do
    check "train --model $model" run train --model $model --batch 1 --dtype bf16 $tiny $none
    check "its row" rows_are_well 1
    check "its dtype" grep -q " what=$model batch=1 .* dtype=bf16 " "$WORK/rows"
done

# Errors: each kernel's, of each kind of inputs, within its bound (else the program fails).
check "numerics" run numerics --quick $none
check "numerics' rows" rows_are_well "$(grep -c '^name=' "$WORK/rows")"
for kind in random ill_conditioned denormal special; do
    check "numerics with $kind inputs" test "$(grep -c " input=$kind " "$WORK/rows")" -gt 15
done
check "numerics of one product" run numerics --what bf16gemm --m 3 --k 5 --input random $none
check "its row" rows_are_well 1
check "its sizes" grep -q 'what=bf16gemm input=random m=3 n=3 k=5 .* limit=3.6 .* unit=k_epsilon' "$WORK/rows"
check "its instructions, as gemm's row says them" grep -q -E ' isa=(amx|avx512_bf16|widened) ' "$WORK/rows"

# Peers: the best is taken, and who refuses, ends or doesn't know the case is left out.
check "gemm beside peers" run gemm --m 4 $tiny --peers "$WORK/peers"
cp "$WORK/rows" "$WORK/all"
check "gemm's row beside peers" rows_are_well 1
check "the best peer" grep -q 'best_peer=1.024e-06 peer=openblas .* unit=GFLOP/s openblas=1.024e-06$' "$WORK/rows"
check "the threads that a peer is told" grep -q '^# gemm: peer openblas: 1.0 on 1 threads of 1$' "$WORK/rows"
check "a peer that refuses" grep -q 'left out the peer blis: no such processor' "$WORK/rows"
check "a peer that doesn't start" grep -q "left out the peer mkl: it doesn't start" "$WORK/rows"
check "a peer that ends" grep -q 'left out the peer openblas_debian: it has ended' "$WORK/rows"
# Peers that leave the operands in the place of their product.
check "numerics beside peers" run numerics --what sgemm --m 1 --input random --peers "$WORK/peers"
check "a peer's error" grep -q 'ours=[^ ]* best_peer=[0-9.e+]* peer=openblas .* torch=[0-9.e+]*$' "$WORK/rows"
cat "$WORK/rows" >>"$WORK/all"
check "allreduce beside peers" run allreduce --ranks 3 --transport tcp --bytes 40000 --seconds 0.001 --peers "$WORK/peers"
check "allreduce's row beside peers" rows_are_well 1
check "the ranks that a peer is told" grep -q '^# allreduce: peer gloo: 1.0 on 3 threads of 3$' "$WORK/rows"
check "a peer's bandwidth" grep -q 'ranks=3 bytes=40000 .* best_peer=0.4267 peer=openmpi_tcp .* unit=MB/s openmpi_tcp=0.4267 gloo=0.4267$' "$WORK/rows"
DML_PEERS=$WORK/peers
export DML_PEERS
check "train beside a peer's memory" run train --model mlp --batch 1 $tiny
check "a peer's bytes" grep -q ' torch_bytes=12345 .* torch=8$' "$WORK/rows"
cat "$WORK/rows" >>"$WORK/all"
check "forkjoin beside a peer" run forkjoin --threads 2 --seconds 0.001
check "microseconds" grep -q 'best_peer=1.25e+05 peer=openmp' "$WORK/rows"
cat "$WORK/rows" >>"$WORK/all"
echo 'name=gemm what=a m=1 n=1 k=1 ta=0 tb=0 threads=1 ours=2 best_peer=1 peer=blis limit=4 ratio_peer=2 ratio_limit=0.5 unit=GFLOP/s blis=1' >>"$WORK/all"
echo 'name=gemm what=b m=1 n=2 k=1 ta=0 tb=0 threads=1 ours=2 best_peer=4 peer=blis limit=4 ratio_peer=0.5 ratio_limit=0.5 unit=GFLOP/s blis=4 disturbed=1' >>"$WORK/all"

for f32 in 5.5 4.5; do
    echo "name=bf16gemm what=square m=1024 n=1024 k=1024 ta=0 tb=0 isa=amx of_f32=$f32 threads=1 ours=1000 best_peer=1000 peer=torch limit=0 ratio_peer=1 ratio_limit=0 unit=GFLOP/s onednn=800 torch=1000"
done >>"$WORK/all"
echo 'name=numerics what=exp input=special n=9 threads=1 ours=inf best_peer=0.5 peer=torch limit=2 ratio_peer=0 ratio_limit=inf unit=ulp torch=0.5' >>"$WORK/all"
{
    echo '# run: compiler: cc 1.2, -O2'
    "$bench/memory" | sed -n 1,2p
    echo 'name=forkjoin what=spinning threads=2 ours=2 best_peer=1 peer=openmp limit=0 ratio_peer=0.5 ratio_limit=0 unit=us openmp=1'
    echo 'name=forkjoin what=asleep threads=2 ours=20 best_peer=0 peer=none limit=0 ratio_peer=0 ratio_limit=0 unit=us'
    echo 'name=optimizer what=sgd level=L2 threads=1 ours=2 best_peer=0 peer=none limit=4 ratio_peer=0 ratio_limit=0.5 unit=GB/s'
    echo 'name=optimizer what=sgd level=L2 threads=2 ours=2 best_peer=0 peer=none limit=4 ratio_peer=0 ratio_limit=0.5 unit=GB/s disturbed=1'
} >>"$WORK/all"

report_of() { # rows, reasons
    "$bench/report" "$WORK" $2 <"$1" >"$WORK/report.md"
}
check "the report" report_of "$WORK/all"
check "a kind's table" grep -q '^## gemm$' "$WORK/report.md"
check "a row of it" grep -q '^| a | 1 | 1 | 1 | | 1 | 2 | 1 (blis) | 4 | GFLOP/s | 2 | 0.5 | 2.00 of 0.97 |$' "$WORK/report.md"
check "a row that doesn't count" grep -q 'disturbed |$' "$WORK/report.md"
check "AMX meets its bar" grep -q '^| 5.5 | .* 1.00 of 0.90 |$' "$WORK/report.md"
check "AMX needs 5 times f32" grep -q '^| 4.5 | .* \*\*1.00 of 0.90: no\*\* |$' "$WORK/report.md"
check "an error beyond its bound" grep -q '^| exp .* | inf | 0.5 (torch) | 2 | ulp | .*\*\*inf of 1.00: no\*\* |$' "$WORK/report.md"
check "an error within it" grep -q '^| sgemm .* k_epsilon .* of 1.00 |$' "$WORK/report.md"
check "errors have no chart" test ! -e "$WORK/numerics.svg"
check "a mean" grep -q '^| the best of OpenBLAS, BLIS, oneDNN | 1 | 2 |' "$WORK/report.md"
check "a chart" grep -q '</svg>' "$WORK/gemm.svg"
check "of speeds" grep -q 'gemm: ours by the best peer; larger is faster<' "$WORK/gemm.svg"
check "of bytes" grep -q "memory: times the size of the model's weights; smaller is better<" "$WORK/memory.svg"
check "what their limit is" grep -q "the limit the size of the model's weights" "$WORK/report.md"
check "every label has a bar" test "$(grep -c '<rect' "$WORK/forkjoin.svg") $(grep -c 'text-anchor="end"' "$WORK/forkjoin.svg")" = '1 1'
check "how it was built" grep -q '^- compiler: cc 1.2, -O2$' "$WORK/report.md"
check "the peers" grep -q '^- peers: openblas: 1.0 on 1 threads of 1; .*; torch: 1.0 on 1 threads of 1; ' "$WORK/report.md"
check "each once" test "$(grep -o 'torch: 1.0 on 1 threads of 1' "$WORK/report.md" | wc -l)" -eq 1
check "those that are missing" grep -q "^- missing peers: .*blis: no such processor.*; jax; kann" "$WORK/report.md"
check "no peer is no failure" grep -q '^No peer was there to judge 1 row by: `make bench-peers` installs them.$' "$WORK/report.md"
check "nor are there 0 of 0" sh -c "! grep -q '^0 of 0' '$WORK/report.md'"
check "one row is one" grep -q '^During 1 row something else had the processors: it counts for nothing.$' "$WORK/report.md"
check "words of a few rows share a column" grep -q '^| sgemm | random | 1 | m=1 k=1 ta=0 tb=0 isa=[a-z0-9]* | 1 ' "$WORK/report.md"
check "what is asked of training" grep -q '1.15 for the MLPs, 2.5 for LeNet-5, 1.4 for' "$WORK/report.md"
row='threads=1 ours=2 best_peer=2 peer=openmpi limit=4 ratio_peer=1.2 ratio_limit=0.5 unit=MB/s openmpi=2'
for words in 'tcp ranks=2 bytes=4' 'tcp ranks=2 bytes=64' 'tcp ranks=2 bytes=262144' 'tcp ranks=2 bytes=67108864' 'shm ranks=2 bytes=4' \
    'shm ranks=2 bytes=1048576' 'local ranks=2 bytes=4'; do
    echo "name=all_reduce transport=$words algo=ring chosen=1 $row"
done >"$WORK/collectives"
check "collectives" report_of "$WORK/collectives"
check "their bars" test "$(sed -n 's/.*| \(tcp\|shm\|local\) | \([0-9]*\) |.* 0.5 | \(.*\) |$/\1 \2 \3/p' "$WORK/report.md" | tr -d '*' | tr '\n' ';')" = \
    'tcp 4 1.20 of 1.25: no;tcp 64 ;tcp 262144 1.20 of 1.00;tcp 67108864 1.20 of 1.30: no;shm 4 1.20 of 1.00;shm 1048576 1.20 of 1.50: no;local 4 ;'
echo 'name=choice op=all_reduce transport=tcp ranks=2 bytes=4 chosen=pair threads=1 ours=12 best_peer=10 peer=ring limit=0 ratio_peer=0.9 ratio_limit=0 unit=us' >"$WORK/chosen"
check "a choice" report_of "$WORK/chosen"
check "that takes more than a tenth longer" grep -q '\*\*0.90 of 0.91: no\*\* |$' "$WORK/report.md"
cat >"$WORK/between" <<'END'
name=links op=all_reduce algo=chosen ranks=4 bytes=67108864 mbit=1000 mtu=1500 threads=1 seconds=0.8 ours=850 limit=805 ratio_limit=0.947 unit=ms
name=links op=all_reduce algo=ring ranks=4 bytes=262144 mbit=40 mtu=1500 threads=1 seconds=0.8 ours=850 limit=400 ratio_limit=0.47 unit=ms
name=overlap what=in_steps ranks=2 threads=1 ours=1100 limit=1000 ratio_limit=0.91 unit=ms_per_step communication=500 share=0.5 loss=0.1
name=overlap what=across_steps ranks=2 threads=1 ours=1200 limit=1000 ratio_limit=0.83 unit=ms_per_step communication=500 share=0.5 loss=0.2
name=simulated op=all_reduce algo=ring ranks=4 threads=1 ours=1.1 limit=1 ratio_limit=1.1 unit=s
name=simulated op=all_reduce algo=tree ranks=4 threads=1 ours=1.3 limit=1 ratio_limit=1.3 unit=s
name=simulated op=all_reduce algo=chain ranks=4 threads=1 ours=0.8 limit=1 ratio_limit=0.8 unit=s
name=all_reduce transport=tcp ranks=2 bytes=1048576 algo=ring chosen=1 threads=1 ours=2 best_peer=1 peer=gloo limit=4 ratio_peer=2 ratio_limit=0.5 unit=MB/s gloo=1
END
check "between hosts" report_of "$WORK/between"
check "what of them is met" test "$(sed -n 's/^| .* | \(.*\) |$/\1/p' "$WORK/report.md" | grep ' of ' | tr -d '*' | tr '\n' ';')" = \
    '0.95 of 0.95: no;0.90 of 0.85;0.80 of 0.85: no;0.90 of 0.85;0.70 of 0.85: no;0.80 of 0.85: no;2.00 of 1.00: no;'
# The bar of convolutions is oneDNN's current release, whatever else there is.
echo 'name=conv what=input model=x batch=1 threads=1 ours=9 best_peer=20 peer=torch limit=30 ratio_peer=0.45 ratio_limit=0.3 unit=GFLOP/s onednn=10 torch=20' >"$WORK/layers"
check "a layer" report_of "$WORK/layers"
check "its bar" grep -q ' 0.90 of 0.80 |$' "$WORK/report.md"
check "its mean" grep -q "^| oneDNN's current release | 1 | 1 | 0.90 | 3.00 | 1.10 | " "$WORK/report.md"
check "and by what it computes" grep -q "^| oneDNN's current release: input | 1 | 1 | 0.90 | | | |$" "$WORK/report.md"
cat >"$WORK/reasons" <<'END'
# A comment.
name=optimizer | of another kind
name=bf16gemm of_f32=4.5 m=1024 | f32 is fast
name=bf16gemm of_f32=4.5 | never read
name=gemm mean=others | they are at the peak
END
check "reasons" report_of "$WORK/all" "$WORK/reasons"
check "a row's" grep -q '^| 4.5 | .* \*\*1.00 of 0.90: no\*\* (1) |$' "$WORK/report.md"
check "which stands below its table" grep -q '^1. f32 is fast$' "$WORK/report.md"
check "alone" sh -c "! grep -q 'never read\|of another kind' '$WORK/report.md'"
check "rows that have none" grep -q '^No reason has been measured for 1 that is short.$' "$WORK/report.md"
echo 'name=gemm m=1 threads=1 ours=2 best_peer=2 peer=blis limit=4 ratio_peer=1 ratio_limit=0.5 unit=GFLOP/s blis=2' >"$WORK/slow"
check "a mean" report_of "$WORK/slow" "$WORK/reasons"
check "that is short" grep -q '^| the best of OpenBLAS, BLIS, oneDNN | 1 | 1 | 1.00 | 2.00 | 1.15 | \*\*no\*\* (1) |$' "$WORK/report.md"
check "and why" grep -q '^1. they are at the peak$' "$WORK/report.md"
check_fails "no file of reasons" "there is no file of reasons" report_of "$WORK/slow" "$WORK/nowhere"
echo 'gemm is slow' >"$WORK/reasons"
check_fails "a line that says nothing" 'isn.t "name=NAME' report_of "$WORK/slow" "$WORK/reasons"
check "the reasons that there are" report_of "$WORK/slow" bench/reasons.txt
echo 'name=gemm what=a threads=1 ours=2 best_peer=0 peer=none limit=4 ratio_peer=0 ratio_limit=0.5 unit=GFLOP/s' >"$WORK/alone"
check "a report without peers" report_of "$WORK/alone"
check "says so" grep -q '^- peers: none, so nothing is compared .*`make bench-peers` installs them$' "$WORK/report.md"
cat >"$WORK/program" <<'END'
#!/bin/sh
echo "name=${0##*/} threads=1 ours=1 limit=1 ratio_limit=1 unit=x"
END
mkdir -p "$WORK/build/bench"
for name in gemm conv elementwise optimizer forkjoin train decode memory reduce_op allreduce choice ps ddp cut gpu strategies numerics simulate; do
    cp "$WORK/program" "$WORK/build/bench/$name" && chmod +x "$WORK/build/bench/$name"
done
cp "$bench/report" "$WORK/build/bench/report"
check "all of them" env CC="$CC" CFLAGS=-Oxyz sh bench/run.sh "$WORK/build" --quick
for words in '^- system: [A-Z].*processors to be used: [1-9]' '^- compiler: .*, -Oxyz$' '^- load when it began' '^- quick: ' \
    '^## numerics$'; do
    check "their report has $words" grep -q "$words" "$WORK/build/bench/report.md"
done
cat >"$WORK/build/bench/allreduce" <<'END'
#!/bin/sh
echo x >>"$0.runs"
n=$(wc -l <"$0.runs")
echo '# allreduce: peer gloo: Gloo'
for bytes in 4 64; do
    [ $bytes -eq 4 ] && set -- 9 2 5 || set -- 5 19 2
    shift $((n - 1))
    echo "name=all_reduce transport=tcp ranks=2 bytes=$bytes algo=ring latency_us=$1 threads=1 ours=$1 best_peer=1 peer=gloo" \
        "limit=9 ratio_peer=$1.5 ratio_limit=0.5 unit=MB/s gloo=1"
done
[ ! -e "$0.fails" ] || exit 3
END
check "three runs" env BENCH=allreduce sh bench/run.sh "$WORK/build"
check "of which the one in the middle counts, for each case" test "$(sed -n 's/^name=all_reduce.* latency_us=\([0-9]*\) .*/\1/p' \
    "$WORK/build/bench/rows" | tr '\n' ' ')" = '5 5 '
check "and what they say once" test "$(grep -c '^# allreduce: peer' "$WORK/build/bench/rows")" -eq 1
rm "$WORK/build/bench/allreduce.runs"
check "one run, in a hurry" env BENCH=allreduce sh bench/run.sh "$WORK/build" --quick
check "is what counts" grep -q ' bytes=4 .* latency_us=9 ' "$WORK/build/bench/rows"
rm "$WORK/build/bench/allreduce.runs"
touch "$WORK/build/bench/allreduce.fails"
check_fails "a run that fails" 'failed: allreduce' env BENCH=allreduce sh bench/run.sh "$WORK/build"
check "what it said before counts" grep -q ' bytes=4 .* latency_us=9 ' "$WORK/build/bench/rows"
cp "$WORK/program" "$WORK/build/bench/allreduce"
check "one of them" env BENCH='ddp numerics' sh bench/run.sh "$WORK/build" --quick
check "alone" test "$(sed -n 's/^## //p' "$WORK/build/bench/report.md" | tr '\n' ' ')" = 'ddp numerics '
check "where there are no hosts" sh -c "BENCH='links ddp' sh bench/run.sh '$WORK/build' --quick | grep '^# left out: links, '"
check_fails "a report of nothing" 'there are no rows' report_of /dev/null
check "a parameter server beside sockets" run ps --bytes 65536 --steps 2
check "its row" rows_are_well 1
check "the experiments in virtual time" run strategies --experiment stragglers --quick --svg "$WORK/pictures"
check "a row for each policy" test "$(grep -c '^name=stragglers' "$WORK/rows")" -eq 4
check "their picture" grep -q '</svg>' "$WORK/pictures/stragglers.svg"
check "the peers' sources compile" sh -c "for p in blas openmp; do $CC $WARN -Wno-unknown-pragmas bench/peers/\$p.c -o $WORK/\$p -ldl || exit 1; done"
check "the installer is a script" sh -n bench/peers/install.sh
report build/bench
