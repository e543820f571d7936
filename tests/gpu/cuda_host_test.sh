# The CUDA host's own code where there is no NVIDIA card: compiled against a runtime of two cards that live in the
# process (tests/gpu/fake_cuda), under the address sanitizer where there is one, it must pass the tests that every
# other backend passes.
. tests/build/check.sh

if ! has "$CXX"; then
    skip "the CUDA host on a fake runtime" "no $CXX"
    report gpu/cuda_host
    exit
fi
flags="-O1 -g1 -DDML__SEPARATE -DDML_CUDA -Isrc $WARN"
sanitize='-fsanitize=address,undefined -fno-sanitize-recover=all'
echo 'int main(void){return 0;}' | $CC $sanitize -x c - -o "$WORK/probe" 2>/dev/null || sanitize=

check "cuda_host.cu compiles against the fake runtime" $CXX -std=c++11 $flags $sanitize -Itests/gpu/fake_cuda \
    -x c++ -c src/gpu/cuda_host.cu -o "$WORK/cuda.o"
for file in src/base/*.c src/thread/*.c src/device/*.c src/graph/*.c src/kernels/half.c src/kernels/blocks.c src/kernels/reduce.c src/kernels/broadcast.c \
    src/kernels/formula.c src/kernels/elementwise.c src/kernels/update.c src/train/optimizer.c src/train/update_rows.c tests/gpu/kernels_test.c tests/gpu/backend_test.c; do
    check "$file compiles" $CC -std=c99 $flags $sanitize -c "$file" -o "$WORK/$(echo "$file" | tr / _).o"
done
for test in kernels backend; do
    check "${test}_test links" $CXX $sanitize "$WORK/tests_gpu_${test}_test.c.o" "$WORK/cuda.o" "$WORK"/src_*.o \
        -o "$WORK/$test" -lm -lpthread
    check "${test}_test passes on the fake cards" env DML_TUNE=0 DML_TEST_QUICK=1 DML_TEST_DEVICES=cuda "$WORK/$test"
done
check "without a driver there is no device" sh -c 'FAKE_CUDA=none DML_TEST_DEVICES=cuda "$0" | tee "$1" &&
    grep -q "no cuda device here" "$1"' "$WORK/backend" "$WORK/none"
check_fails "a card without memory for the code says so" 'out of memory' \
    env FAKE_CUDA=full DML_TEST_DEVICES=cuda "$WORK/backend"
check_fails "a card for which there is no code says what to compile" 'add -gencode' \
    env FAKE_CUDA=other DML_TEST_DEVICES=cuda "$WORK/backend"
report gpu/cuda_host
