# Each header of src/ compiles alone as C99 (each source file does in `make test` itself), and the source files as C++11,
# without a warning: of those in dml.h and dml_comm.h languages_test.sh asks that.
. tests/build/check.sh

files() { # those of a pattern
    for file in $1; do
        [ -f "$file" ] || continue
        case $file in src/gpu/opencl*) [ -z "$NO_OPENCL" ] || continue ;; esac
        echo "$file"
    done
}

# Each as the only include of a source file, because a header is no translation unit.
for pattern in 'src/*/*.h' 'src/gpu/*.c'; do
    ending=${pattern##*.}
    mkdir -p "$WORK/$ending"
    for file in $(files "$pattern"); do
        printf '#include "%s"\ntypedef int not_empty;\n' "${file#src/}" >"$WORK/$ending/$(echo "${file#src/}" | tr / _).c"
    done
done

compile_alone() { # compiler, standard, ending
    bad=
    for file in "$WORK/$3"/*.c; do
        "$1" $2 $WARN -DDML__SEPARATE -Isrc -I"$DML_BUILD/gen" -fsyntax-only "$file" || bad=1
    done
    [ -z "$bad" ]
}

# Once in each language: of the products languages_test.sh asks the other compilers.
check "headers one by one: $CC" compile_alone "$CC" -std=c99 h
if has "$CXX"; then
    check "source files for devices: $CXX" compile_alone "$CXX" "-std=c++11 -xc++" c
else
    skip "source files for devices: $CXX" "$CXX is not installed"
fi
report build/sources
