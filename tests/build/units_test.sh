# The products in programs of several translation units, which must agree about the switches.
. tests/build/check.sh
. tests/build/products.sh
# An implementation by g++: tests/hosts/modern_test.sh.
if has clang++; then CXX=clang++; fi
CXX="$CXX -O0 -DDML_NO_AVX"

write unit.c "$both" 'double unit(void);' 'double unit(void) { dml_close(dml_open(NULL)); return dml_seconds(); }'
write whole.c "$implement" "$both" '#ifdef __cplusplus' 'extern "C"' '#endif' 'double unit(void);' \
    'int main(void) { dml_close(dml_open(NULL)); return unit() >= 0 ? 0 : 1; }'
check "dml.h alone" build "$QUICK" program implement_dml.c
check "dml_comm.h alone" build "$QUICK" program implement_comm.c
# (The other orders of inclusion: languages_test.sh.)

static_units() {
    $QUICK $WARN -DDML_STATIC -DDML_IMPLEMENTATION -c unit.c -o unit.o &&
        $QUICK $WARN -DDML_STATIC -c whole.c -o whole.o &&
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
    check "an implementation with '$flags'" $QUICK $WARN $flags -c whole.c -o "whole$switches.o"
    for entry in $entries; do
        check "a unit with '$flags'" $QUICK $flags -DENTRY=$entry -c units.c -o "unit_$entry$switches.o"
    done
    check "two units with '$flags'" build "$QUICK $flags" program "whole$switches.o" unit.c
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

cxx_units() { # compiler and language of unit.c, of whole.c where that isn't whole.o
    $1 -c unit.c -o unit.o && { [ -z "$2" ] || $2 -c whole.c -o whole.o; } && $CXX unit.o whole.o -o program -lm -lpthread -ldl && ./program
}
sed -e 's/^double unit(void);/#ifdef __cplusplus\nextern "C"\n#endif\n&/' unit.c >unit.new && mv unit.new unit.c
if has "${CXX%% *}"; then
    check "C++ over a C implementation" cxx_units "$CXX -std=c++11 -xc++ $WARN" ""
    check "C over a C++ implementation" cxx_units "$QUICK -std=c99 $WARN" "$CXX -std=c++11 -xc++ -O1 $WARN"
fi
report build/units
