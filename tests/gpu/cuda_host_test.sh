# The CUDA host's own code where there is no NVIDIA card: compiled against a runtime of two cards that live in the
# process (tests/gpu/fake_cuda), under the address sanitizer where there is one, it must pass the tests that every
# other backend passes. The first card has tensor cores: mma.sync and what belongs to it, in C++.
. tests/build/check.sh

if ! has "$CXX"; then
    skip "the CUDA host on a fake runtime" "no $CXX"
    report gpu/cuda_host
    exit
fi
flags="-O1 -g1 -DDML__SEPARATE -DDML_CUDA -DDML_NO_AVX -Isrc $WARN"
flags="$flags -DDML__TENSOR_CONV_LEAST=1 -DDML__TENSOR_PATCHES=65536" # so that small ones are in pieces, too
sanitize='-fsanitize=address,undefined -fno-sanitize-recover=all'
echo 'int main(void){return 0;}' | $CC $sanitize -x c - -o "$WORK/probe" 2>/dev/null || sanitize=

export DML_CUBLAS=0 # which may be installed, and can't know these cards
check "cuda_host.cu compiles against the fake runtime" $CXX -std=c++11 $flags $sanitize -Itests/gpu/fake_cuda \
    -Wno-unknown-pragmas \
    -x c++ -c src/gpu/cuda_host.cu -o "$WORK/cuda.o"
for file in src/base/*.c src/thread/*.c src/device/*.c src/graph/*.c src/kernels/half.c src/kernels/blocks.c src/kernels/cross_entropy.c src/kernels/reduce.c src/kernels/broadcast.c \
    src/kernels/formula.c src/kernels/elementwise.c src/kernels/update.c src/train/optimizer.c src/train/update_rows.c tests/gpu/kernels_test.c tests/gpu/backend_test.c \
    tests/gpu/tensor_test.c; do
    check "$file compiles" $CC -std=c99 $flags $sanitize -c "$file" -o "$WORK/$(echo "$file" | tr / _).o"
done
cat >"$WORK/open.c" <<'END'
#include "device/context.h"
#include <stdio.h>

int main(void)
{
    dml_context *context = dml_open(&(dml_options){ .device = "cuda:0" });
    puts(dml_error(context));
    dml_close(context);
    return 0;
}
END
check "a program that opens a card compiles" $CC -std=c99 $flags $sanitize -c "$WORK/open.c" -o "$WORK/open.o"
check "it links" $CXX $sanitize "$WORK/open.o" "$WORK/cuda.o" "$WORK"/src_*.o -o "$WORK/open" -lm -lpthread
cat >"$WORK/queue.c" <<'END'
/* Writes go through pieces of pinned memory: the host may use what it gave again, and waits for nothing but a
   piece that is still on its way. */
#include "device/backend.h"
#include "device/context.h"
#include "tests/test.h"

int fake_cuda_waits(void);
enum { MANY = 3 * (1 << 20) / 4 + 5, PIECES = 8, ROUNDS = 30 };
static float given[MANY], got[MANY];

static void writes_wait_for_nobody(void)
{
    dml_context *context = dml_open(&(dml_options){ .device = "cuda:1", .threads = 1 });
    dml_device device = *dml_context_device(context);
    const dml_backend *b = device.backend;
    dml_buffer x = { .bytes = sizeof given }, y = { .bytes = sizeof given };
    const dml_ref at_x = { &x, 0 }, at_y = { &y, 0 };
    const int waits = fake_cuda_waits();
    const bool pinned = getenv("FAKE_CUDA") == NULL;
    CHECK(b->buffer_create(&device, &x) == DML_OK && b->buffer_create(&device, &y) == DML_OK);
    CHECK(b->zero(&device, at_y, sizeof given) == DML_OK);
    dml_launch add = { .kernel = "axpby", .size = { 100, 1 }, .buffer = { at_x, at_y }, .integer = { 100 },
                       .real = { 1, 1 } };
    for (int round = 0; round < ROUNDS; round++) { /* y += x */
        for (int i = 0; i < 100; i++) given[i] = (float)(round + i);
        CHECK(b->write(&device, at_x, given, 400) == DML_OK && b->launch(&device, &add) == DML_OK);
        memset(given, 0xff, 400);
        if (round + 1 == PIECES) CHECK((fake_cuda_waits() == waits) == pinned);
    }
    CHECK(pinned ? fake_cuda_waits() <= waits + ROUNDS - PIECES : fake_cuda_waits() >= waits + ROUNDS);
    CHECK(b->read(&device, got, at_y, 400) == DML_OK);
    for (int i = 0; i < 100; i++) CHECK(got[i] == (float)(ROUNDS * (ROUNDS - 1) / 2 + ROUNDS * i));
    for (int i = 0; i < MANY; i++) given[i] = (float)i; /* three pieces and a part of one */
    CHECK(b->write(&device, at_x, given, sizeof given) == DML_OK);
    memset(given, 0xff, sizeof given);
    CHECK(b->read(&device, got, at_x, sizeof got) == DML_OK);
    for (int i = 0; i < MANY && test__ok; i++) CHECK(got[i] == (float)i);
    b->buffer_destroy(&device, &x), b->buffer_destroy(&device, &y);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

int main(void)
{
    RUN(writes_wait_for_nobody);
    return test_report("gpu/queue");
}
END
check "a program that writes compiles" $CC -std=c99 $flags -D_GNU_SOURCE -I. $sanitize -c "$WORK/queue.c" -o "$WORK/queue.o"
check "it links, too" $CXX $sanitize "$WORK/queue.o" "$WORK/cuda.o" "$WORK"/src_*.o -o "$WORK/queue" -lm -lpthread
check "writes wait for nobody" env DML_TUNE=0 "$WORK/queue"
check "where no memory can be pinned, they wait" env DML_TUNE=0 FAKE_CUDA=unpinned "$WORK/queue"
check "tests/gpu/cuda_queue.c compiles" $CC -std=c99 $flags -D_GNU_SOURCE -I. $sanitize -c tests/gpu/cuda_queue.c \
    -o "$WORK/cuda_queue.o"
check "it links with the host" $CXX $sanitize "$WORK/cuda_queue.o" "$WORK/cuda.o" "$WORK"/src_*.o -o "$WORK/cuda_queue" \
    -lm -lpthread
check "what comes again is sent as a graph" env DML_TUNE=0 "$WORK/cuda_queue"
check "with DML_CUDA_GRAPHS=0 nothing is held back" env DML_TUNE=0 DML_CUDA_GRAPHS=0 "$WORK/cuda_queue"
for mode in 'no graphs' 'fixed graphs' unpinned refused; do
    check "the queue where the driver is like this: $mode" env DML_TUNE=0 FAKE_CUDA="$mode" "$WORK/cuda_queue"
done
check "a program that trains compiles" $QUICK -std=c99 $WARN -DDML_CUDA -I. -c tests/gpu/cuda_training.c -o "$WORK/training.o"
check "it links with the fake card" $CXX $sanitize "$WORK/training.o" "$WORK/cuda.o" -o "$WORK/training" -lm -lpthread
check "a training step is one graph" sh -c 'DML_TUNE=0 "$0" >"$1"' "$WORK/training" "$WORK/graphs"
check "it trains to the same bits without" sh -c 'DML_TUNE=0 DML_CUDA_GRAPHS=0 "$0" >"$1"' "$WORK/training" "$WORK/launches"
check "the numbers are the same" cmp "$WORK/graphs" "$WORK/launches"
check "a program of several precisions compiles" $QUICK -std=c99 $WARN -DDML_CUDA -I. -c tests/gpu/cuda_precision.c \
    -o "$WORK/precision.o"
check "it links with the fake card, too" $CXX $sanitize "$WORK/precision.o" "$WORK/cuda.o" -o "$WORK/precision" -lm \
    -lpthread
check "TF32 and bf16 are rounded, and little" env DML_TUNE=0 "$WORK/precision"
check_fails "NVIDIA_TF32_OVERRIDE=0 leaves f32 as it is" 'tf32: .* 0 apart' \
    env DML_TUNE=0 NVIDIA_TF32_OVERRIDE=0 "$WORK/precision"
for test in kernels backend; do
    check "${test}_test links" $CXX $sanitize "$WORK/tests_gpu_${test}_test.c.o" "$WORK/cuda.o" "$WORK"/src_*.o \
        -o "$WORK/$test" -lm -lpthread
    check "${test}_test passes on the fake cards" env DML_TUNE=0 DML_TEST_QUICK=1 DML_TEST_DEVICES=cuda "$WORK/$test"
done
check "cuBLASLt's stand-in compiles" $CC -std=c99 -O1 -D_GNU_SOURCE $WARN -fPIC -shared tests/gpu/fake_cublaslt.c \
    -o "$WORK/libcublasLt.so.13" -lm -ldl
check "tensor_test links" $CXX $sanitize -rdynamic "$WORK/tests_gpu_tensor_test.c.o" "$WORK/cuda.o" "$WORK"/src_*.o \
    -o "$WORK/tensor" -lm -lpthread -ldl
tensor() { # MODE: of the stand-in
    env DML_CUBLAS=1 FAKE_CUBLASLT="$1" LD_LIBRARY_PATH="$WORK" DML_TUNE=0 DML_TEST_QUICK=1 DML_TEST_DEVICES=cuda "$WORK/tensor"
}
by_cublas() {
    tensor takes >"$WORK/cublas.log" || return 1
    grep -q '[1-9][0-9]* products, [1-9]' "$WORK/cublas.log"
}
check "products on tensor cores by cuBLASLt, with biases, too" by_cublas
check "and by our own kernels, where it has none" tensor refuses
echo '#include <cublasLt.h>' >"$WORK/header.cu"
if [ -n "$NVCC" ] && "$NVCC" -E "$WORK/header.cu" >"$WORK/header.log" 2>&1; then
    check "what is declared of cuBLASLt is what its header says" "$NVCC" -std=c++11 -Isrc -c tests/gpu/cublaslt_header.cu \
        -o "$WORK/header.o"
else
    skip "what is declared of cuBLASLt is what its header says" "no nvcc, or no cublasLt.h"
fi
check "without a driver there is no device" sh -c 'FAKE_CUDA=none DML_TEST_DEVICES=cuda "$0" | tee "$1" &&
    grep -q "no cuda device here" "$1"' "$WORK/backend" "$WORK/none"
check "groups beyond the last, of a grid cut into layers, write nothing" env DML_TUNE=0 DML_TEST_DEVICES=cuda \
    DML_TEST_KERNEL=conv2d_backward_weights_64x64 "$WORK/kernels"
for mode in 'none:there is no NVIDIA driver' 'old:the driver is one for CUDA 12.4, and this was compiled with 13.0' \
    'hidden:the driver shows no card'; do
    check "no device says why: $mode" sh -c 'FAKE_CUDA=${2%%:*} "$0" >"$1" && grep -q "${2#*:}" "$1"' "$WORK/open" \
        "$WORK/none" "$mode"
done
check_fails "a card in exclusive mode that is taken says so" 'compute mode is exclusive' \
    env FAKE_CUDA=taken DML_TEST_DEVICES=cuda "$WORK/backend"
check_fails "a device that is lost says so" 'the device is lost for this process' \
    env FAKE_CUDA=lost DML_TEST_DEVICES=cuda "$WORK/backend"
check_fails "a card without memory for the code says so" 'out of memory' \
    env FAKE_CUDA=full DML_TEST_DEVICES=cuda "$WORK/backend"
check_fails "a card for which there is no code says what to compile" 'add -gencode' \
    env FAKE_CUDA=other DML_TEST_DEVICES=cuda "$WORK/backend"
report gpu/cuda_host
