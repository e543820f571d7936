# The products in every language and with every switch that the guide names. Orders of inclusion and single switches are the
# preprocessor's: one compiler tries them, as C99: clang where it is, which looks at a product in a third of gcc's time.
. tests/build/check.sh
. tests/build/products.sh

for pair in "$CC $CXX" "clang clang++"; do
    cc=${pair% *} cxx=${pair##* }
    for language in "$cc -std=c99" "$cc -std=c11" "$cxx -std=c++11 -xc++"; do
        if ! has "${language%% *}"; then
            skip "the products with $language" "${language%% *} is not installed"
            continue
        fi
        check "declarations: $language" compile "$language -Wconversion" declare_*.c
        implementations=implement_both.c
        if [ "$language" = "$QUICK_CC -std=c99" ]; then implementations=$(echo implement_*.c); fi
        case $language in
        *c11) # what isn't there before C11; the switches are C99's
            check "implementation: $language" compile "$language -O1 -Wconversion" implement_both.c
            continue
            ;;
        *) check "implementation: $language" compile "$language" $implementations ;;
        esac
        if [ "$language" != "$QUICK_CC -std=c99" ]; then
            check "all switches at once: $language" compile "$language -DDML_STATIC -DDML_NO_THREADS -DDML_NO_STDIO \
                -DDML_NO_AVX" implement_both.c
            continue
        fi
        check "DML_STATIC: $language" compile "$language -DDML_STATIC" implement_both.c
        check "DML_NO_THREADS: $language" compile "$language -DDML_NO_THREADS" implement_both.c
        check "DML_NO_STDIO: $language" compile "$language -DDML_NO_STDIO" implement_both.c
        check "declarations with DML_NO_STDIO: $language" compile "$language -Wconversion -DDML_NO_STDIO" declare_*.c
        for switch in DML_NO_AVX512 DML_NO_AVX; do
            grep -q "$switch" dml.h || continue
            check "$switch: $language" compile "$language -D$switch" implement_both.c
        done
    done
    if has "$cc"; then
        # Sums and roundings that the compiler may order anew give wrong functions, without a word.
        check "no -ffast-math: $cc" sh -c "! $cc -ffast-math -fsyntax-only -w implement_dml.c 2>said && grep -q 'without -ffast-math' said"
        check "no -ffinite-math-only: $cc" sh -c "! $cc -ffinite-math-only -fsyntax-only -w implement_dml.c 2>said"
        check "the user's own files may have it: $cc" compile "$cc -std=c99 -ffast-math" declare_both.c
    fi
    if has "$cxx"; then
        check "declarations under every warning: $cxx" compile "$cxx -std=c++17 -xc++ -Wconversion -Wshadow \
            -Wold-style-cast" declare_*.c
    fi
done
report build/languages
