# The switches that leave instruction sets out leave nothing of them behind.
. tests/build/check.sh

case $(uname -m) in
x86_64) ;;
*)
    skip "the switches for AVX" "this isn't an x86-64 machine"
    report kernels/isa_switches
    exit
    ;;
esac

for file in src/kernels/*.c src/base/cpu.c; do echo "#include \"${file#src/}\""; done >"$WORK/kernels.c"
compile_kernels() { # compiler, flags
    "$1" -std=c99 -O0 $WARN $2 -DDML__SEPARATE -Isrc -c "$WORK/kernels.c" -o "$WORK/kernels.o" || return 1
    nm "$WORK/kernels.o" >"$WORK/symbols" && objdump -d "$WORK/kernels.o" >"$WORK/code"
}

left() { # compiler, flags, what must be there, what must not
    compile_kernels "$1" "$2" || return 1
    { [ -z "$3" ] || grep -q -E "$3" "$WORK/symbols" "$WORK/code"; } || { echo "$3 is missing"; return 1; }
    ! grep -E "$4" "$WORK/symbols" "$WORK/code" | head -n 20 | grep .
}

best() { # flags, the names that dml_cpu_isa may say
    printf '%s\n' '#include "base/cpu.h"' '#include <stdio.h>' \
        'int main(void) { puts(dml_isa_name(dml_cpu_isa())); return 0; }' >"$WORK/best.c"
    $CC -std=c99 $WARN $1 -DDML__SEPARATE -Isrc "$WORK/best.c" src/base/cpu.c -o "$WORK/best" || return 1
    for asked in avx512 avx2 scalar; do
        DML_ISA=$asked "$WORK/best" | grep -x -E "$2" || return 1
    done
    "$WORK/best" | grep -x -E "$2"
}

if ! has nm || ! has objdump; then
    skip "the switches for AVX" "nm or objdump is not installed"
else
    for compiler in "$CC" clang; do
        if ! has "$compiler"; then
            skip "the switches for AVX: $compiler" "$compiler is not installed"
            continue
        fi
        # What a switch leaves out is the preprocessor's to say: one compiler does. (gcc has all instruction sets in what
        # products_test.sh looks at.)
        [ "$compiler" != "$QUICK_CC" ] ||
            check "all instruction sets: $compiler" left "$compiler" "" '_avx512.*|%zmm' 'no such text'
        [ "$compiler" != "$QUICK_CC" ] ||
            check "DML_NO_AVX512: $compiler" left "$compiler" -DDML_NO_AVX512 '%ymm' 'avx512|%zmm|%k[0-7]'
        check "DML_NO_AVX: $compiler" left "$compiler" -DDML_NO_AVX '' 'avx|%zmm|%ymm|%k[0-7]|vfmadd'
        [ "$compiler" != "$QUICK_CC" ] ||
            check "Windows: $compiler" left "$compiler" "-D_WIN64 -DDML_WINDOWS_AVX" '%zmm' 'no such text'
    done
    # What clang makes of it is for clang alone to say.
    case $($CC --version) in
    *clang*) ;;
    *) check "gcc for Windows" left "$CC" -D_WIN64 '' 'avx|%zmm|%ymm|%k[0-7]|vfmadd' ;;
    esac
    if has clang; then check "clang for Windows" left clang -D_WIN64 '%zmm' 'no such text'; fi
fi
check "dml_cpu_isa without AVX-512" best -DDML_NO_AVX512 'avx2|scalar'
check "dml_cpu_isa without AVX" best -DDML_NO_AVX 'scalar'
report kernels/isa_switches
