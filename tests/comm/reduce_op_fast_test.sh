# The reductions as a program with -Ofast gets them: NaNs still win minima and maxima, and nothing else changes but
# what that option asks for (sums and means of what is no number, quotients by reciprocals and, where it is linked with
# it, denormals).
. tests/build/check.sh

FLAGS="-std=c99 -D_GNU_SOURCE= -DDML__SEPARATE -Isrc $WARN"
fast() { # compiler: the subject, beside what isn't
    for file in comm/reduce_op base/float16; do
        $1 $FLAGS -Ofast -c "src/$file.c" -o "$WORK/$(basename $file).o" || return 1
    done
    for file in base/dtype base/cpu; do
        $1 $FLAGS -O1 -c "src/$file.c" -o "$WORK/$(basename $file).o" || return 1
    done
    $1 $FLAGS -O1 -DTEST_FAST_MATH -c tests/comm/reduce_op_test.c -o "$WORK/test.o"
}
linked() { # command
    $1 "$WORK"/*.o -o "$WORK/program" -lm && "$WORK/program"
}

for compiler in "$CC" clang; do
    if has "${compiler%% *}"; then
        check "$compiler -Ofast compiles" fast "$compiler"
        check "$compiler -Ofast: every dtype and op" linked "$compiler"
        check "$compiler -Ofast: where denormals are 0" linked "$compiler -Ofast"
    else
        skip "$compiler -Ofast" "$compiler is not installed"
    fi
done
report comm/reduce_op_fast
