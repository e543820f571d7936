# dml.h on Windows, by mingw; Wine runs what comes out.
. tests/build/check.sh
. tests/build/products.sh

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
    case $compiler in
    *gcc) # as the compiler has it, what isn't C99
        check "implementation on Windows: $compiler" compile "$compiler" implement_dml.c
        continue
        ;;
    esac
    check "implementation on Windows: $compiler" run_on_windows "$compiler -O0 -static $WARN" windows implement_dml.c
    check "DML_NO_THREADS on Windows: $compiler" compile "$compiler -DDML_NO_THREADS" implement_dml.c
    check "DML_NO_STDIO on Windows: $compiler" compile "$compiler -DDML_NO_STDIO" implement_dml.c
    check_fails "dml_comm.h on Windows: $compiler" 'dml_comm.h needs POSIX sockets' compile "$compiler" declare_comm.c
done
if has $mingw-gcc; then
    check "sample hello on Windows" run_on_windows "$mingw-gcc -O0 -I." hello "$ROOT/samples/hello.c"
    [ -n "$WINE_RUN" ] || skip "running on Windows" "wine is not installed"
fi
report build/windows
