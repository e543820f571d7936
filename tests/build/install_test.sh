# `make install`, and another project's build against what it installed.
. tests/build/check.sh

install_to() { # variable assignments...
    "$MAKE" --no-print-directory BUILD="$DML_BUILD" CUDA=no OPENCL=no "$@" install
}
check "make install PREFIX=" install_to PREFIX="$WORK/prefix"
check "make install DESTDIR=" install_to DESTDIR="$WORK/stage" PREFIX=/opt/dml
for file in bin/dmlrun include/dml.h include/dml_comm.h share/pkgconfig/dml.pc share/cmake/dml/dmlConfig.cmake; do
    check "$file is installed" test -f "$WORK/prefix/$file" -a -f "$WORK/stage/opt/dml/$file"
done
for product in dml_*.c dml_*.cu; do
    [ -f "$product" ] || continue
    check "$product is installed" test -f "$WORK/prefix/share/dml/$product"
done

check "the installed dmlrun runs" "$WORK/prefix/bin/dmlrun" --help

mkdir -p "$WORK/project"
cat >"$WORK/project/main.c" <<'END'
#define _GNU_SOURCE
#include <dml.h>
#ifndef MOVED
#define DML_IMPLEMENTATION /* of the smaller one */
#endif
#include <dml_comm.h>
#include <stdio.h>

int main(void)
{
    printf("dml %s\n", DML_VERSION);
#ifdef MOVED /* only that it is found */
    return 0;
#else
    return dml_seconds() < 0;
#endif
}
END

with_pkg_config() { # folder with dml.pc, flags
    PKG_CONFIG_PATH=$1 pkg-config --exists dml &&
        $QUICK_CC $2 "$WORK/project/main.c" -o "$WORK/project/main" $(PKG_CONFIG_PATH=$1 pkg-config --cflags --libs dml) &&
        "$WORK/project/main"
}
if has pkg-config; then
    check "pkg-config" with_pkg_config "$WORK/prefix/share/pkgconfig"
    check "pkg-config from a moved tree" with_pkg_config "$WORK/stage/opt/dml/share/pkgconfig" -DMOVED
else
    skip "pkg-config" "it is not installed"
fi

cat >"$WORK/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.10)
project(user C)
find_package(dml 0.1 REQUIRED)
if(NOT EXISTS "${dml_OPENCL_SOURCE}" AND WANT_OPENCL)
  message(FATAL_ERROR "no ${dml_OPENCL_SOURCE}")
endif()
add_executable(user main.c)
target_link_libraries(user PRIVATE dml::dml)
END
with_cmake() { # prefix, flags
    rm -rf "$WORK/cmake"
    wanted=OFF
    [ -f dml_opencl.c ] && wanted=ON
    cmake -S "$WORK/project" -B "$WORK/cmake" -DCMAKE_PREFIX_PATH="$1" -DWANT_OPENCL=$wanted \
        -DCMAKE_C_COMPILER=$QUICK_CC -DCMAKE_C_FLAGS="$2" &&
        cmake --build "$WORK/cmake" && "$WORK/cmake/user"
}
if has cmake; then
    check "CMake" with_cmake "$WORK/prefix"
    check "CMake from a moved tree" with_cmake "$WORK/stage/opt/dml" -DMOVED
    sed 's/dml 0.1 REQUIRED/dml 99.0 REQUIRED/' "$WORK/project/CMakeLists.txt" >"$WORK/project/new" &&
        mv "$WORK/project/new" "$WORK/project/CMakeLists.txt"
    check_fails "CMake refuses another version" "99.0" with_cmake "$WORK/prefix"
else
    skip "CMake" "it is not installed"
fi

check "make uninstall" "$MAKE" BUILD="$DML_BUILD" PREFIX="$WORK/prefix" uninstall
check "nothing stays behind" test -z "$(find "$WORK/prefix" -type f)"
report build/install
