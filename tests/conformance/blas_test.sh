# The reference BLAS's own test programs (Debian: libblas-test) call dml_sgemm through blas_shim.c. They check every
# argument that must be refused, and products in all layouts and transpositions to within 16 units of rounding.
. tests/build/check.sh
programs=$(echo /usr/lib/*/blas)
if [ ! -x "$programs/xblat3s" ] || [ ! -x "$programs/xscblat3" ]; then
    skip "the reference BLAS tests" "libblas-test is not installed"
    report conformance/blas
    exit
fi

shim() { # compiler and flags, file, options...
    compiler=$1 file=$2
    shift 2
    $compiler -std=c99 -Wall -Wextra -fPIC -shared -fvisibility=hidden -I. "$@" tests/conformance/blas_shim.c -o "$file" -lm -lpthread
}
check "the shim compiles" shim "$CC -O2" "$WORK/shim.so"
check "a wrong shim compiles" shim "$QUICK" "$WORK/wrong.so" -DBLAS_SHIM_WRONG

# Their input files, with SGEMM alone, and once with larger sizes (65 is their most) beside the usual ones.
only_sgemm() { # file
    sed -e 's/^\(cblas_s[a-z0-9]* *\)T PUT/\1F PUT/; s/^\(S[A-Z0-9]* *\)T PUT/\1F PUT/' \
        -e 's/^\(cblas_sgemm *\)F PUT/\1T PUT/; s/^\(SGEMM *\)F PUT/\1T PUT/' "$1"
}
larger() {
    sed -e 's/^[0-9]*\( *NUMBER OF VALUES OF N$\)/7\1/; s/^[0-9 ]*\(VALUES OF N$\)/0 1 4 7 17 32 65 \1/'
}
for p in sblat3.in sin3; do
    only_sgemm "$programs/$p" >"$WORK/$p"
    larger <"$WORK/$p" >"$WORK/large_$p"
done

run() { # program, input, shim, threads, instruction set
    cd "$WORK" && rm -f calls sblat3.out
    env LD_PRELOAD="$3" BLAS_SHIM_THREADS="$4" BLAS_SHIM_CALLS="$WORK/calls" DML_ISA="$5" "$programs/$1" <"$2" >out 2>&1
    status=$?
    cat out sblat3.out 2>/dev/null
    cd "$ROOT" || exit 1
    [ "$status" -eq 0 ] && [ "$(cat "$WORK/calls")" -gt 10000 ]
}
passes() { # program, input, threads, instruction set: it says so of the error exits and of the products
    run "$1" "$WORK/$2" "$WORK/shim.so" "$3" "$4" >"$WORK/text"
    status=$?
    cat "$WORK/text"
    [ "$status" -eq 0 ] || return 1
    ! grep -E 'FAIL|\*\*\*|SUSPECT|ILLEGAL|refuses' "$WORK/text" || return 1
    grep -q 'PASSED THE TESTS OF ERROR-EXITS' "$WORK/text" || return 1
    [ "$(grep -c 'PASSED THE .*COMPUTATION[A-Z]* TESTS' "$WORK/text")" -eq "$5" ]
}
for isa in '' scalar; do
    for threads in 1 3; do
        what="${isa:-this machine\'s best kernels}, $threads threads"
        check "xblat3s: $what" passes xblat3s sblat3.in $threads "$isa" 1
        check "xscblat3: $what" passes xscblat3 sin3 $threads "$isa" 2
    done
done
check "xblat3s: larger products" passes xblat3s large_sblat3.in 3 '' 1
check "xscblat3: larger products" passes xscblat3 large_sin3 3 '' 2
check "xblat3s finds a wrong product" sh -c "cd '$WORK' && rm -f sblat3.out
    LD_PRELOAD='$WORK/wrong.so' '$programs/xblat3s' <sblat3.in >/dev/null; grep -q 'FAILED' sblat3.out"
report conformance/blas
