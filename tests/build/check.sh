# check.sh: what the scripts of tests/build/ share; they start with `. tests/build/check.sh` and end with
# `report build/NAME`. They run from the project's root with DML_BUILD, CC and MAKE set.
DML_BUILD=${DML_BUILD:-build}
CC=${CC:-cc}
CXX=${CXX:-g++}
MAKE=${MAKE:-make}
ROOT=$(pwd)
WARN='-Wall -Wextra -Wpedantic -Werror'
case $DML_BUILD in /*) ;; *) DML_BUILD=$ROOT/$DML_BUILD ;; esac
WORK=$(mktemp -d) || exit 1
trap 'rm -rf "$WORK"' EXIT
passed=0 failed=0 skipped=0
unset MAKEFLAGS MAKELEVEL MFLAGS MAKEOVERRIDES

has() {
    command -v "$1" >/dev/null
}

# What any compiler will do for: clang takes a quarter of gcc's time for what isn't optimised, and leaving the copies for
# AVX out saves half of the rest.
QUICK_CC=$CC
if has clang; then QUICK_CC=clang; fi
QUICK="$QUICK_CC -O0 -DDML_NO_AVX"

pass() { # what
    passed=$((passed + 1))
}

fail() { # what, and what was said in $WORK/said
    failed=$((failed + 1))
    head -n 60 "$WORK/said"
    echo "FAIL $1"
}

skip() { # what, why
    skipped=$((skipped + 1))
    echo "skip $1: $2"
}

# check "what" command...: the command ends well.
check() {
    what=$1
    shift
    if "$@" >"$WORK/said" 2>&1; then pass; else fail "$what"; fi
}

# check_fails "what" "part" command...: it ends with a failure and says `part`.
check_fails() {
    what=$1 part=$2
    shift 2
    if "$@" >"$WORK/said" 2>&1; then
        echo "it should have failed" >>"$WORK/said"
        fail "$what"
    elif grep -q -e "$part" "$WORK/said"; then
        pass
    else
        echo "it didn't say \"$part\"" >>"$WORK/said"
        fail "$what"
    fi
}

report() {
    echo "# $1: $passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}
