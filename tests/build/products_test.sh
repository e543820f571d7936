# The products as users meet them: languages, compilers, optimisation, several translation units, the switches.
. tests/build/check.sh

for product in src/dml*; do
    name=${product#src/}
    check "$name is what amalgamate writes" \
        sh -c '"$0/amalgamate" "$1" -o "$2/regenerated" && cmp "$2/regenerated" "$3"' "$DML_BUILD" "$product" "$WORK" "$name"
done

# The shared kernels on host threads are for the tests alone.
every_file_ships() {
    for file in $(ls src/*/*.c src/*/*.cu src/*/*.cl 2>/dev/null | sed 's|^src/||' | grep -v '^gpu/host_device.c$'); do
        case $file in
        *.cl) grep -q "$(basename "$file"):" dml_opencl.c ;;
        *) grep -q -F -e "/* ---- $file ---- */" dml* ;;
        esac || echo "$file is in no product" | tee -a "$WORK/missing"
    done
    [ ! -f "$WORK/missing" ]
}
check "every source file is in a product" every_file_ships
cp dml* "$WORK/"
cd "$WORK" || exit 1

both='#include "dml.h"
#include "dml_comm.h"'
implement='#define DML_IMPLEMENTATION'
main='int main(void) { return dml_seconds() >= 0 && DML_VERSION_MAJOR >= 0 ? 0 : 1; }'

write() { # file, line...
    file=$1
    shift
    printf '%s\n' "$@" >"$file"
}

write declare_dml.c '#include "dml.h"' "$main"
write declare_comm.c '#include "dml_comm.h"' "$main"
write declare_both.c "$both" "$main"
write declare_twice.c "$both" "$both" "$main"
write implement_dml.c "$implement" '#include "dml.h"' "$main"
write implement_comm.c "$implement" '#include "dml_comm.h"' "$main"
write implement_both.c "$implement" "$both" "$main"
write implement_twice.c "$implement" "$both" "$both" "$main"
# System headers that came before have settled what they declare, so the program asks for all of it.
write implement_later.c '#ifndef _GNU_SOURCE' '#define _GNU_SOURCE' '#endif' "$both" "$implement" "$both" "$main"
write implement_reversed.c "$implement" '#include "dml_comm.h"' '#include "dml.h"' '#include "dml_comm.h"' "$main"

compile() { # compiler and flags, sources...: only looks
    flags=$1
    shift
    for source in "$@"; do $flags $WARN -fsyntax-only "$source" || return 1; done
}
build() { # compiler and flags, program, sources...
    flags=$1 program=$2
    shift 2
    $flags $WARN "$@" -o "$program" -lm -lpthread -ldl && "./$program"
}

for pair in "$CC $CXX" "clang clang++"; do
    cc=${pair% *} cxx=${pair#* }
    for language in "$cc -std=c99" "$cc -std=c11" "$cxx -std=c++11 -xc++"; do
        if ! has "${language%% *}"; then
            skip "the products with $language" "${language%% *} is not installed"
            continue
        fi
        check "declarations: $language" compile "$language -Wconversion" declare_*.c
        check "implementation: $language" compile "$language" implement_*.c
        check "DML_STATIC: $language" compile "$language -DDML_STATIC" implement_both.c
        check "DML_NO_THREADS: $language" compile "$language -DDML_NO_THREADS" implement_both.c
        check "DML_NO_STDIO: $language" build "$language -O0 -DDML_NO_STDIO" program implement_both.c
        check "declarations with DML_NO_STDIO: $language" compile "$language -Wconversion -DDML_NO_STDIO" declare_*.c
        for switch in DML_NO_AVX512 DML_NO_AVX; do
            grep -q "$switch" dml.h || continue
            check "$switch: $language" build "$language -O0 -D$switch" program implement_both.c
        done
    done
    if has "$cxx"; then
        check "declarations under every warning: $cxx" compile "$cxx -std=c++17 -xc++ -Wconversion -Wshadow \
            -Wold-style-cast" declare_*.c
    fi
    has "$cc" || continue
    for level in 0 1 2 3; do
        check "$cc -O$level" build "$cc -std=c99 -O$level" program implement_both.c
    done
done

# Several translation units.
write unit.c "$both" 'double unit(void);' 'double unit(void) { dml_close(dml_open(NULL)); return dml_seconds(); }'
write whole.c "$implement" "$both" '#ifdef __cplusplus' 'extern "C"' '#endif' 'double unit(void);' \
    'int main(void) { dml_close(dml_open(NULL)); return unit() >= 0 ? 0 : 1; }'
check "two units" build "$CC -O1" program whole.c unit.c
check "an implementation without threads" build "$CC -O1 -DDML_NO_THREADS" program whole.c unit.c
check "dml.h alone" build "$CC -O1" program implement_dml.c
check "dml_comm.h alone" build "$CC -O1" program implement_comm.c
check "everything included twice" build "$CC -O1" program implement_twice.c
check "declarations before the implementation" build "$CC -std=c99 -O1" program implement_later.c
check "dml_comm.h before dml.h" build "$CC -O1" program implement_reversed.c

static_units() {
    $CC -O1 $WARN -DDML_STATIC -DDML_IMPLEMENTATION -c unit.c -o unit.o &&
        $CC -O1 $WARN -DDML_STATIC -c whole.c -o whole.o &&
        $CC unit.o whole.o -o program -lm -lpthread -ldl && ./program &&
        test -z "$(nm -g --defined-only unit.o | grep dml)"
}
check "two units that are each whole (DML_STATIC)" static_units

# Two units must agree: the names they meet by say which switches each was compiled with.
threads=-DDML_NO_THREADS stdio=-DDML_NO_STDIO
entries='dml_open dml_comm_open dml_pool_create'
write units.c "$both" '#define UNIT(call) double unit(void); double unit(void) { return call(NULL) != NULL; }' 'UNIT(ENTRY)'
for switches in '' "$threads" "$stdio" "$threads$stdio"; do
    flags=$(echo "$switches" | sed 's/-D/ -D/g')
    check "an implementation with '$flags'" $CC -O0 $flags -c whole.c -o "whole$switches.o"
    for entry in $entries; do
        check "a unit with '$flags'" $CC -O0 $flags -DENTRY=$entry -c units.c -o "unit_$entry$switches.o"
    done
done
link_units() { # entry, switches of the unit, of the implementation
    $CC "unit_$1$2.o" "whole$3.o" -o program -lm -lpthread -ldl
}
for entry in $entries; do
    for mine in '' "$threads" "$stdio" "$threads$stdio"; do
        suffix=$(echo "$mine" | sed 's/-DDML//g; y/NOTHREADSI/nothreadsi/')
        for theirs in '' "$threads" "$stdio" "$threads$stdio"; do
            if [ "$mine" = "$theirs" ]; then
                check "$entry: both with '$mine'" link_units $entry "$mine" "$theirs"
            else
                check_fails "$entry: '$mine' does not link with '$theirs'" "undefined reference.*${entry}_v[0-9_]*$suffix'" \
                    link_units $entry "$mine" "$theirs"
            fi
        done
    done
done

cxx_units() { # compiler and language of unit.c, of whole.c
    $1 -c unit.c -o unit.o && $2 -c whole.c -o whole.o && $CXX unit.o whole.o -o program -lm -lpthread -ldl && ./program
}
sed -e 's/^double unit(void);/#ifdef __cplusplus\nextern "C"\n#endif\n&/' unit.c >unit.new && mv unit.new unit.c
if has "$CXX"; then
    check "C++ over a C implementation" cxx_units "$CXX -std=c++11 -xc++ $WARN" "$CC -std=c99 $WARN"
    check "C over a C++ implementation" cxx_units "$CC -std=c99 $WARN" "$CXX -std=c++11 -xc++ $WARN"
fi

# What the implementation brings into a program.
only_dml_names() {
    $CC -O1 -c implement_both.c -o names.o || return 1
    nm -g --defined-only names.o | awk '$3 != "main" && $3 !~ /^dml_/' >names
    cat names
    test ! -s names
}
check "no exported name without dml_" only_dml_names
no_globals() {
    $CC -O2 -fno-pic -c implement_both.c -o names.o || return 1
    nm names.o | awk 'NF == 3 && $2 ~ /[bBdDcC]/' >names
    cat names
    test ! -s names
}
check "no writable global" no_globals

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
write library.c "$implement" "$both"
for compiler in "$CC -std=c99" "$CC" "clang" "$CXX -xc++" "clang++ -xc++"; do
    if has "${compiler%% *}"; then
        check "a foreign program: $compiler" build "$compiler -Wshadow" program foreign.c library.c
    else
        skip "a foreign program: $compiler" "${compiler%% *} is not installed"
    fi
done

# Each sample, alone in a folder with the products.
for sample in "$ROOT"/samples/*.c; do
    [ -f "$sample" ] || continue
    mkdir -p sample && cp "$sample" "$ROOT"/samples/*.h sample/ && cp dml.h dml_comm.h sample/
    name=$(basename "$sample" .c)
    check "sample $name against the shipped headers alone" \
        sh -c 'cd sample && $0 -O2 -Wall -Wextra -Werror "$1.c" -o "$1" -lm -lpthread' "$CC" "$name"
    rm -rf sample
done

if [ -f dml_opencl.c ] && [ -z "$NO_OPENCL" ]; then
    write opencl.c "$implement" '#include "dml.h"' '#include <stdio.h>' \
        'int main(void) { return dml_devices(NULL, 0) >= 1 ? 0 : 1; }'
    for compiler in "$CC -std=c99" "$CC -std=c11" "clang -std=c99"; do
        has "${compiler%% *}" || continue
        check "dml_opencl.c: $compiler" build "$compiler -O1 -DDML_OPENCL" program opencl.c dml_opencl.c
        check "dml_opencl.c with DML_NO_STDIO: $compiler" build "$compiler -O0 -DDML_OPENCL -DDML_NO_STDIO" program \
            opencl.c dml_opencl.c
    done
elif [ -f dml_opencl.c ]; then
    skip "dml_opencl.c" "$NO_OPENCL"
fi

# Windows: dml.h alone, by mingw; Wine runs what comes out.
run_on_windows() { # compiler and flags, program, sources...
    flags=$1 program=$2
    shift 2
    $flags "$@" -o "$program.exe" && { [ -z "$WINE_RUN" ] || $WINE_RUN "$program.exe"; }
}
mingw=x86_64-w64-mingw32
for compiler in "$mingw-gcc -std=c99" "$mingw-gcc" "$mingw-g++ -std=c++11 -xc++"; do
    if ! has "${compiler%% *}"; then
        skip "dml.h on Windows: $compiler" "${compiler%% *} is not installed"
        continue
    fi
    check "declarations on Windows: $compiler" compile "$compiler -Wconversion" declare_dml.c
    check "implementation on Windows: $compiler" run_on_windows "$compiler -O2 -static $WARN" windows implement_dml.c
    check "DML_NO_THREADS on Windows: $compiler" compile "$compiler -DDML_NO_THREADS" implement_dml.c
    check "DML_NO_STDIO on Windows: $compiler" compile "$compiler -DDML_NO_STDIO" implement_dml.c
    check_fails "dml_comm.h on Windows: $compiler" 'dml_comm.h needs POSIX sockets' compile "$compiler" declare_comm.c
done
if has $mingw-gcc; then
    check "sample hello on Windows" run_on_windows "$mingw-gcc -O2 -I." hello "$ROOT/samples/hello.c"
    [ -n "$WINE_RUN" ] || skip "running on Windows" "wine is not installed"
fi
report build/products
