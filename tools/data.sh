#!/bin/sh
# data.sh OUT [DML_DATA]: the four MNIST files, uncompressed, into OUT: unpacked from DML_DATA/mnist/*.gz, or
# downloaded. Each is checked and written aside before it gets its name.
out=$1
from=$2
mirrors='https://ossci-datasets.s3.amazonaws.com/mnist https://storage.googleapis.com/cvdf-datasets/mnist'

fail() {
    echo "make data: $1" >&2
    rm -f "$out"/*.new "$out"/*.new.gz
    exit 1
}

md5() {
    if command -v md5sum >/dev/null; then md5sum <"$1" | cut -d ' ' -f 1; else command md5 -q "$1"; fi
}

download() { # URL, file
    if command -v curl >/dev/null; then
        curl -fsSL --connect-timeout 20 -o "$2" "$1"
    elif command -v wget >/dev/null; then
        wget -q -T 20 -O "$2" "$1"
    else
        fail 'neither curl nor wget is installed; give a folder with mnist/*.gz as DML_DATA=dir'
    fi
}

# Leaves the packed file as $out/NAME.new.gz.
bring() { # name
    if [ -n "$from" ]; then
        [ -f "$from/mnist/$1.gz" ] || fail "$from/mnist/$1.gz is not there"
        cp "$from/mnist/$1.gz" "$out/$1.new.gz" || fail "can't copy $from/mnist/$1.gz to $out"
        return
    fi
    for mirror in $mirrors; do
        echo "downloading $mirror/$1.gz"
        download "$mirror/$1.gz" "$out/$1.new.gz" && return
    done
    fail "can't download $1.gz; give a folder with mnist/*.gz as DML_DATA=dir"
}

get() { # name, MD5 of the unpacked file
    if [ -f "$out/$1" ] && [ "$(md5 "$out/$1")" = "$2" ]; then return; fi
    bring "$1"
    gzip -dc "$out/$1.new.gz" >"$out/$1.new" 2>/dev/null || fail "$1.gz is not a whole gzip file"
    found=$(md5 "$out/$1.new")
    [ "$found" = "$2" ] || fail "$1 has the MD5 $found, not $2: it is damaged or another file"
    mv "$out/$1.new" "$out/$1" || fail "can't write $out/$1"
    rm -f "$out/$1.new.gz"
}

mkdir -p "$out" || fail "can't make the folder $out"
get train-images-idx3-ubyte 6bbc9ace898e44ae57da46a324031adb
get train-labels-idx1-ubyte a25bea736e30d166cdddb491f175f624
get t10k-images-idx3-ubyte 2646ac647ad5339dbf082846283269ea
get t10k-labels-idx1-ubyte 27ae3e4e09519cfbb04c329615203637
echo "MNIST is in $out"
