# tools/gpu_check.sh as far as it goes without a GPU: what it says of itself, and when it can't begin.
. tests/build/check.sh
script=$ROOT/tools/gpu_check.sh

says() { # STATUS "part" command...
    want=$1 part=$2
    shift 2
    "$@" >"$WORK/told" 2>&1
    status=$?
    cat "$WORK/told"
    [ "$status" -eq "$want" ] && grep -q -e "$part" "$WORK/told"
}
nowhere() {
    mkdir -p "$WORK/empty" && cd "$WORK/empty" && sh "$script"
}
check "its help" says 0 'gpu_check.sh \[--quick\] \[--device D\]' sh "$script" --help
check "an unknown flag" says 2 'gpu_check.sh \[--quick\] \[--device D\]' sh "$script" --card
check "a device without a name" says 2 'gpu_check.sh \[--quick\] \[--device D\]' sh "$script" --device
check "outside the repository" says 2 'in the repository' nowhere
report tools/gpu_check
