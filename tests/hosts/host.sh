# host.sh: what the scripts of tests/hosts/ share: host programs compiled against the products, and the implementation
# of dml.h and dml_comm.h, compiled once for each set of flags and kept in the build folder. A script begins with
# `. tests/hosts/host.sh` and ends with `report hosts/NAME`.
. tests/build/check.sh
HOSTS=$DML_BUILD/hosts
mkdir -p "$HOSTS"

# implement "compiler and flags": makes $IMPLEMENTATION. Of several scripts that want the same at once one compiles it.
implement() {
    IMPLEMENTATION=$HOSTS/$(echo "$1" | tr -cs 'A-Za-z0-9\n' _).o
    (
        if has flock; then flock 9; fi
        [ -f "$IMPLEMENTATION" ] && [ -z "$(find dml.h dml_comm.h -newer "$IMPLEMENTATION")" ] && exit 0
        $1 $WARN -I. -c tests/hosts/implementation.c -o "$WORK/implementation.o" &&
            mv "$WORK/implementation.o" "$IMPLEMENTATION"
    ) 9>"$IMPLEMENTATION.lock"
}

# host PROGRAM "compiler and flags" ["those of the implementation"] [library...]: makes $WORK/PROGRAM of PROGRAM.c.
host() {
    program=$1 compiler=$2 theirs=${3:-$QUICK}
    implement "$theirs" || return 1
    shift 2
    [ $# -eq 0 ] || shift
    $compiler $WARN -I. "tests/hosts/$program.c" "$IMPLEMENTATION" -o "$WORK/$program" -lm -lpthread -ldl "$@"
}

# has_flag "compiler" flag: whether a program can be built and run so.
has_flag() {
    echo 'int main(void) { return 0; }' | $1 "$2" -x c - -o "$WORK/has_flag" >/dev/null 2>&1 && "$WORK/has_flag"
}
