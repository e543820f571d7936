# The products: that they are what src/ gives, at every level of optimisation, and what they bring into a program.
. tests/build/check.sh

for product in src/dml*; do
    name=${product#src/}
    check "$name is what amalgamate writes" \
        sh -c '"$0/amalgamate" "$1" -o "$2/regenerated" && cmp "$2/regenerated" "$3"' "$DML_BUILD" "$product" "$WORK" "$name"
done

# The shared kernels on host threads are for the tests alone.
every_file_ships() {
    for file in $(ls src/*/*.c src/*/*.cu src/*/*.cuh src/*/*.cl 2>/dev/null | sed 's|^src/||' | grep -v '^gpu/host_device.c$'); do
        case $file in
        *.cl) grep -q "$(basename "$file"):" dml_opencl.c ;;
        *) grep -q -F -e "/* ---- $file ---- */" dml* ;;
        esac || echo "$file is in no product" | tee -a "$WORK/missing"
    done
    [ ! -f "$WORK/missing" ]
}
check "every source file is in a product" every_file_ships
. tests/build/products.sh

# (-O0: the objects below, and tests/hosts/; -O2: what make builds, with AVX.)
check "$CC -O3" build "$CC -std=c99 -O3 -DDML_NO_AVX" program implement_both.c

# What the implementation brings into a program: not optimised, nothing has been left out; and as make builds it, with AVX.
write library.c "$implement" "$both"
check "an object of the implementation" $CC -std=c99 -O0 -DDML_NO_AVX -fno-pic $WARN -Wshadow -c library.c -o library.o
only_dml_names() {
    { nm -g --defined-only library.o && nm -g --defined-only "$DML_BUILD/dml.o"; } | awk '$3 !~ /^dml_/' >names
    cat names
    test ! -s names
}
check "no exported name without dml_" only_dml_names
no_globals() {
    nm library.o | awk 'NF == 3 && $2 ~ /[bBdDcC]/' >names
    cat names
    test ! -s names
}
check "no writable global" no_globals

# A function with vectors of AVX calls none of ours that adds floats without: such a call may take 100 ns.
no_change_of_vectors() {
    objdump -d --no-show-raw-insn "$DML_BUILD/dml.o" >code
    awk '/^[0-9a-f]+ <.*>:$/ { name = substr($2, 2, length($2) - 3) }
        / %[yz]mm|,%[yz]mm|\(%[yz]mm/ { wide[name] = 1 }
        $2 ~ /^[a-u]/ && /%xmm/ { narrow[name] = 1 }
        $2 == "call" && $4 !~ /[+@]/ { calls[name " " substr($4, 2, length($4) - 2)] = 1 }
        END { for (c in calls) { split(c, n, " "); if (wide[n[1]] && narrow[n[2]] && !wide[n[2]]) print n[1] " calls " n[2] }
            for (w in wide) found = 1; if (!found) print "no vectors of AVX were found" }' code >names
    cat names
    test ! -s names
}
case $(uname -m) in
x86_64) if has objdump; then
    check "no call from AVX to SSE" no_change_of_vectors
else
    skip "no call from AVX to SSE" "objdump is not installed"
fi ;;
esac

# A program of another project, with its own names beside ours.
write foreign.c '#include <stdio.h>' '#include "dml.h"' '#include "dml_comm.h"' \
    'enum { F32 = 3, OK = 1 };' \
    'typedef struct graph { int node; } graph;' \
    'typedef struct tensor { float *data; struct graph *graph; } tensor;' \
    'static int count(const graph *g) { return g->node; }' \
    'static float maximum(float a, float b) { return a > b ? a : b; }' \
    'int main(void) { graph pool = { F32 }; tensor device = { NULL, &pool }; int error = count(device.graph);' \
    '  dml_context *context = dml_open(NULL); dml_close(context);' \
    '  printf("%d %d %g\n", error, (int)OK, (double)maximum(1, 2)); return device.data != NULL; }'
check "a foreign program: $CC -std=c99" build "$CC -std=c99 -fno-pic -no-pie -Wshadow" program foreign.c library.o
check "a foreign program: $CC" build "$CC -fno-pic -no-pie -Wshadow" program foreign.c library.o
# Without AVX, in which there is no name. ($CXX: tests/hosts/modern_test.sh)
for compiler in "clang" "clang++ -xc++"; do
    if has "${compiler%% *}"; then
        check "a foreign program: $compiler" build "$compiler -Wshadow -DDML_NO_AVX" program foreign.c library.c
    else
        skip "a foreign program: $compiler" "${compiler%% *} is not installed"
    fi
done

# Each sample, alone in a folder with the products. (`make` compiles and links them.)
for sample in "$ROOT"/samples/*.c; do
    [ -f "$sample" ] || continue
    mkdir -p sample && cp "$sample" "$ROOT"/samples/*.h sample/ && cp dml.h dml_comm.h sample/
    name=$(basename "$sample" .c)
    check "sample $name against the shipped headers alone" \
        sh -c 'cd sample && $0 -Wall -Wextra -Werror -fsyntax-only "$1.c"' "$QUICK" "$name"
    rm -rf sample
done

if [ -f dml_opencl.c ] && [ -z "$NO_OPENCL" ]; then
    write opencl.c "$implement" '#include "dml.h"' '#include <stdio.h>' \
        'int main(void) { return dml_devices(NULL, 0) >= 1 ? 0 : 1; }'
    check "an implementation with DML_OPENCL" $QUICK $WARN -DDML_OPENCL -c opencl.c -o opencl.o
    check "one with DML_NO_STDIO" $QUICK $WARN -DDML_OPENCL -DDML_NO_STDIO -c opencl.c -o opencl_silent.o
    for compiler in "$CC -std=c99" "$CC -std=c11" "clang -std=c99"; do
        has "${compiler%% *}" || continue
        check "dml_opencl.c: $compiler" build "$compiler -O1 -DDML_OPENCL" program opencl.o dml_opencl.c
        check "dml_opencl.c with DML_NO_STDIO: $compiler" build "$compiler -O0 -DDML_OPENCL -DDML_NO_STDIO" program \
            opencl_silent.o dml_opencl.c
    done
elif [ -f dml_opencl.c ]; then
    skip "dml_opencl.c" "$NO_OPENCL"
fi
report build/products
