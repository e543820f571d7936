#!/bin/sh
# cuda_stubs.sh FOLDER: PyPI's torch is built for CUDA and doesn't load without CUDA's libraries, some 3 GB, of which a
# processor's work needs none. This writes libraries of their names into torch's lib FOLDER that have the functions
# asked for, each of which says that there is no device.
set -eu
cd "$1"
cc=${CC:-cc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
torch=$(ls libtorch*.so libc10*.so)
for lib in $torch; do nm -D --undefined-only "$lib"; done | awk '{ print $2 }' | sort -u >"$work/symbols"
for lib in $torch; do objdump -p "$lib"; done >"$work/headers"
awk '$1 == "NEEDED" && $2 ~ /^lib(cu|nv|nccl)/ { print $2 }' "$work/headers" | sort -u | while read -r name; do
    {
        # Functions without a version are known by how they begin: cuFileRead of libcufile.so.0.
        prefix=$(echo "$name" | sed 's/^lib//; s/\.so.*//; s/_host$//')
        grep -i "^$prefix" "$work/symbols" | grep -v @ | sed 's/.*/int &(void) { return 100; }/' || true
        for version in $(awk -v name="$name:" '/required from/ { here = $3 == name; next } NF != 4 { here = 0 }
                here { print $4 }' "$work/headers" | sort -u); do
            echo "$version { global: stub_${#version};" >>"$work/map"
            echo "int stub_${#version}(void) { return 100; }"
            sed -n "s/@$version\$//p" "$work/symbols" | while read -r f; do
                echo "int $f(void) { return 100; }"
                echo "$f;" >>"$work/map"
            done
            echo '};' >>"$work/map"
        done
    } >"$work/stub.c"
    map=
    [ -e "$work/map" ] && map=-Wl,--version-script,$work/map
    $cc -w -shared -fPIC "$work/stub.c" -o "$name" -Wl,-soname,"$name" $map
    rm -f "$work/map"
done
