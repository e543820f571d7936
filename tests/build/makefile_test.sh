# The Makefile's own promises.
. tests/build/check.sh

quiet_make() {
    "$MAKE" --no-print-directory BUILD="$WORK/build" "$@"
}
says() { # part, command...
    part=$1
    shift
    "$@" >"$WORK/text" 2>&1
    cat "$WORK/text"
    grep -q -e "$part" "$WORK/text"
}

for target in demo test bench amalgamate install data format clean; do
    check "make help names $target" says "make $target" quiet_make help
done
for variant in $(sed -n 's/^VARIANTS := //p' Makefile); do
    check "make help names the variant $variant" says " $variant\\b" quiet_make help
done
check "make says what it left out" says 'left out: the CUDA backend: ' quiet_make -n CUDA=no

# What was compiled with other backends is compiled anew, and nothing else.
library() {
    touch "$WORK/build/dml.o" && quiet_make -n -o dml.h -o dml_comm.h CUDA=no "$WORK/build/dml.o"
}
mkdir -p "$WORK/build" && echo other >"$WORK/build/devices" && touch -d '1 minute' "$WORK/build/devices"
check "a library with other backends is compiled anew" says 'CC .*dml.o' library
touch -d '1 minute ago' "$WORK/build/devices"
check "and else isn't" test -z "$(library | grep 'CC ')"

check "make demo compiles nothing for GPUs" sh -c "! '$MAKE' BUILD='$WORK/build' -n demo | grep -e 'dml_[a-z]*\\.o'"
check "make demo on a device does what it needs" says 'build/samples/mnist --device cpu' quiet_make -n demo DEMO='--device cpu'

check_fails "make data names a folder without MNIST" "make data: $WORK/none/mnist/train-images-idx3-ubyte.gz is not there" \
    quiet_make data DML_DATA="$WORK/none"
mkdir -p "$WORK/data/mnist"
echo 'not what it should be' | gzip >"$WORK/data/mnist/train-images-idx3-ubyte.gz"
check_fails "make data refuses another file" 'make data: train-images-idx3-ubyte has the MD5' \
    quiet_make data DML_DATA="$WORK/data"
echo 'no gzip' >"$WORK/data/mnist/train-images-idx3-ubyte.gz"
check_fails "make data refuses what gzip didn't write" 'make data: train-images-idx3-ubyte.gz is not a whole gzip file' \
    quiet_make data DML_DATA="$WORK/data"
check "make data leaves nothing half-written" test -z "$(ls "$WORK/build/data/mnist")"
if [ -n "$DML_DATA" ] && [ -d "$DML_DATA/mnist" ]; then
    check "make data unpacks" quiet_make data DML_DATA="$DML_DATA"
    check "make data unpacks all four" test "$(ls "$WORK/build/data/mnist" | wc -l)" -eq 4
else
    skip "unpacking MNIST" "DML_DATA names no folder with mnist/"
fi

# A name that there isn't is told, before anything is compiled.
check_fails "make test names an unknown variant" 'no such variant: nosuch. V takes .* scripts' quiet_make test V="normal nosuch"
check_fails "make test names an unknown test" 'no such test: base/nosuch nosuch. T takes' quiet_make test T="graph base/nosuch nosuch"
check_fails "make test names tests that no variant asked for runs" 'V=musl runs none of: kernels build/docs. ' quiet_make test \
    V=musl T="base kernels build/docs"
check_fails "make bench names an unknown benchmark" 'no such benchmark: nosuch. BENCH takes .* prices' quiet_make bench \
    BENCH="links nosuch"
check "make bench takes those that it has" says 'bench/run.sh' quiet_make -n bench BENCH="gemm prices transport"
check "nothing was compiled" test ! -e "$WORK/build/amalgamate"

# The runner that adds up: what fails, crashes, hangs or says nothing is a failure.
runner() { # line of the plan...
    printf '%b\n' "$@" >"$WORK/plan"
    DML_TEST_TIMEOUT=1 DML_BUILD=$WORK sh tests/run.sh "$WORK/plan"
}
check "the runner adds up" says '^3 passed, 0 failed, 2 skipped$' runner \
    'a\techo "# a: 1 passed, 0 failed, 0 skipped"' \
    ' b\techo "skip it: because"; echo "# b: 2 passed, 0 failed, 1 skipped"' 'skip\tpart\treason'
check "the runner names what was skipped" says '  part: reason' runner 'skip\tpart\treason'
check_fails "a failed test" '^1 passed, 2 failed$' runner 'a\techo "# a: 1 passed, 2 failed, 0 skipped"; exit 1'
check_fails "a crash" '^0 passed, 1 failed$' runner 'a\tkill -SEGV $$'
check_fails "a crash after the last test" '^4 passed, 1 failed$' runner \
    'a\techo "# a: 4 passed, 0 failed, 0 skipped"; exit 3'
check_fails "a program that isn't there" '^0 passed, 1 failed$' runner 'a\t/none/there'
check_fails "a silent program" '^0 passed, 1 failed$' runner 'a\ttrue'
has timeout && check_fails "a program that hangs" 'did not end within 1 s' runner 'a\tsleep 20'

# `make test` in a tree that was built before: what doesn't compile any more fails, though older programs are there.
tree=$WORK/tree
mkdir -p "$tree/src/base" "$tree/tests/base" "$tree/tools"
cp Makefile "$tree/" && cp tests/test.h tests/run.sh "$tree/tests/" && cp tools/amalgamate.c "$tree/tools/"
cp src/base/platform.h "$tree/src/base/"
echo 'int answer(void);' >"$tree/src/base/answer.h"
whole_tree() {
    printf '%s\n' '#include "base/answer.h"' 'int answer(void) { return 42; }' >"$tree/src/base/answer.c"
    for name in first second; do
        printf '%s\n' '#include "base/answer.h"' '#include "../test.h"' \
            'static void says_42(void) { CHECK_INT(answer(), 42); }' \
            "int main(void) { RUN(says_42); return test_report(\"base/$name\"); }" >"$tree/tests/base/${name}_test.c"
    done
}
test_tree() {
    (cd "$tree" && "$MAKE" BUILD=build OPENCL=no CUDA=no V=normal T=base test)
}
whole_tree
dry_run() {
    (cd "$tree" && "$MAKE" BUILD=build OPENCL=no CUDA=no V=normal T=base -n test)
}
check "a dry run says what it would compile" says '-o build/normal/tests/base/first_test' dry_run
check "a dry run runs no test" sh -c "! grep -e ' passed, ' '$WORK/text' && test ! -e '$tree/build/normal'"
check "a tree that compiles passes" says '^2 passed, 0 failed' test_tree
echo '#error broken' >>"$tree/src/base/answer.c"
check_fails "a source that no longer compiles" '^0 passed, 3 failed' test_tree
whole_tree
check "the source compiles again" says '^2 passed, 0 failed' test_tree
echo '#error broken' >>"$tree/tests/base/second_test.c"
check_fails "a test that no longer compiles" '^1 passed, 2 failed' test_tree
whole_tree
echo 'int missing(void);' >>"$tree/src/base/answer.h"
sed -i 's/answer()/missing()/' "$tree/tests/base/first_test.c"
check_fails "a test that no longer links" '^1 passed, 2 failed' test_tree
whole_tree
echo 'broken' >>"$tree/tools/amalgamate.c"
check_fails "a tool that no longer compiles" '^2 passed, 1 failed' test_tree

# Where no OpenCL driver is installed, its tests are skipped, not passed.
without_drivers() {
    mkdir -p "$WORK/none" && OCL_ICD_VENDORS=$WORK/none DML_TEST_DEVICES=opencl "$DML_BUILD/normal/tests/gpu/backend_test"
}
if [ -z "$NO_OPENCL" ] && [ -x "$DML_BUILD/normal/tests/gpu/backend_test" ]; then
    check "no OpenCL device: a skip" says '^skip everything_opencl: no opencl device here$' without_drivers
else
    skip "no OpenCL device" "tests/gpu is not built with OpenCL"
fi
report build/makefile
