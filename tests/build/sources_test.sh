# Each file of src/ compiles alone, as C99 and as C++11, without a warning.
. tests/build/check.sh

files() {
    for file in src/*/*.h src/*/*.c; do
        [ -f "$file" ] || continue
        case $file in src/gpu/opencl*) [ -z "$NO_OPENCL" ] || continue ;; esac
        echo "$file"
    done
}

# Each as the only include of a source file, because a header is no translation unit.
mkdir -p "$WORK/src"
for file in $(files); do
    printf '#include "%s"\ntypedef int not_empty;\n' "${file#src/}" >"$WORK/src/$(echo "${file#src/}" | tr / _).c"
done

compile_alone() { # compiler, standard
    bad=
    for file in "$WORK"/src/*.c; do
        "$1" $2 $WARN -DDML__SEPARATE -Isrc -I"$DML_BUILD/gen" -fsyntax-only "$file" || bad=1
    done
    [ -z "$bad" ]
}

# Once in each language: of all of it together languages_test.sh asks the other compilers.
for compiler in "$CC -std=c99" "$CXX -std=c++11 -xc++"; do
    name=${compiler%% *}
    if has "$name"; then
        check "src/ compiles file by file: $compiler" compile_alone "$name" "${compiler#* }"
    else
        skip "src/ file by file: $compiler" "$name is not installed"
    fi
done
report build/sources
