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
check "make says what it left out" says 'left out: the CUDA backend: ' quiet_make -n CUDA=no

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
report build/makefile
