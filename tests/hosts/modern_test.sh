# A C++17 program under every warning, over a C implementation and over a C++ one.
. tests/hosts/host.sh
EVERY="-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wold-style-cast -Werror"

build() { # compiler
    $1 -std=c++17 -O1 $EVERY -I. tests/hosts/modern.cpp "$IMPLEMENTATION" -o "$WORK/modern" -lm -lpthread -ldl
}
for cxx in $CXX clang++; do
    if ! has $cxx; then
        skip "modern with $cxx" "$cxx is not installed"
        continue
    fi
    check "an implementation in C" implement "$QUICK"
    check "modern with $cxx" build $cxx
    check "it runs" "$WORK/modern"
    check "an implementation in C++ by $cxx" implement "$cxx -std=c++17 -O0 -DDML_NO_AVX -Wshadow -x c++"
    check "modern with that" build $cxx
    check "it runs, too" "$WORK/modern"
done
report hosts/modern
