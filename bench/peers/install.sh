#!/bin/sh
# install.sh DIR: brings the libraries that the benchmarks time ours beside into DIR (build/peers) and writes
# DIR/run/NAME for each that works here. What can't be had is named and left out. Run again, it completes.
# Debian's libopenblas0, libblis4, openmpi-bin and libopenmpi-dev are found if they are installed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/run" && dir=$(cd "$1" && pwd) || exit 1
venv=$dir/venv
cc=${CC:-cc}

left_out() { # name, why
    rm -f "$dir/run/$1"
    echo "left out: $1: $2"
}

# peer NAME COMMAND: writes run/NAME, and keeps it if it says that it is ready.
peer() {
    printf '#!/bin/sh\nexec %s "$@"\n' "$2" >"$dir/run/$1"
    chmod +x "$dir/run/$1"
    said=$("$dir/run/$1" 1 </dev/null 2>&1 | head -n 1)
    case $said in
    ready*) echo "installed: $1: ${said#ready }" ;;
    *) left_out "$1" "${said:-it does not start}" ;;
    esac
}

first() { # path...: the first that is there
    for path; do [ -e "$path" ] && echo "$path" && return; done
}

pip() {
    "$venv/bin/pip" install -q --disable-pip-version-check "$@"
}

[ -x "$venv/bin/pip" ] || python3 -m venv "$venv" || echo "no Python packages: python3 -m venv does not work here"
if [ -x "$venv/bin/pip" ]; then
    pip scipy-openblas32 || echo "pip can't bring scipy-openblas32"
    pip mkl || echo "pip can't bring mkl"
fi
site=$(first "$venv"/lib/python3*/site-packages)

# ---- BLAS libraries: one program, which loads any ----
lib=/usr/lib/$(uname -m)-linux-gnu
if $cc -O2 "$here/blas.c" -o "$dir/blas" -ldl; then
    blas() { # name, library or nothing, what brings it
        if [ -n "$2" ]; then peer "$1" "$dir/blas $2"; else left_out "$1" "not found ($3)"; fi
    }
    blas openblas "$(first "$site"/scipy_openblas32/lib/libscipy_openblas.so)" 'PyPI: scipy-openblas32'
    blas openblas_debian "$(first $lib/openblas-pthread/libopenblas.so.0)" 'Debian: libopenblas0-pthread'
    blas blis "$(first $lib/blis-pthread/libblis.so.4 $lib/blis-openmp/libblis.so.4)" 'Debian: libblis4-pthread'
    blas mkl "$(first "$venv"/lib/libmkl_rt.so.*)" 'PyPI: mkl'
fi

# ---- CLBlast, on OpenCL's devices ----
if $cc -O2 "$here/clblast.c" -o "$dir/clblast" -lclblast -lOpenCL; then
    peer clblast "$dir/clblast"
else
    left_out clblast "it does not compile (Debian: libclblast-dev, ocl-icd-opencl-dev)"
fi

if $cc -O2 -fopenmp "$here/openmp.c" -o "$dir/openmp"; then
    peer openmp "$dir/openmp"
else
    left_out openmp "$cc has no OpenMP"
fi

# ---- oneDNN: the current release, whose threads are TBB's, and the last that PyPI has on OpenMP, with less to do a call ----
onednn() { # name, venv, packages...
    name=$1 from=$2
    shift 2
    [ -x "$from/bin/pip" ] || python3 -m venv "$from" || return
    "$from/bin/pip" install -q --disable-pip-version-check "$@" || echo "pip can't bring $*"
    if $cc -O2 "$here/onednn.c" -o "$dir/$name" -I"$from/include" -L"$from/lib" -ldnnl \
        -Wl,--allow-shlib-undefined,--disable-new-dtags,-rpath,"$from/lib"; then
        # Its engine for processors is SYCL's, which asks OpenCL for Intel's driver.
        peer "$name" "env ONEDNN_VERBOSE=none OCL_ICD_FILENAMES=$from/lib/libintelocl.so $dir/$name"
    else
        left_out "$name" "it does not compile"
    fi
}
onednn onednn "$venv" onednn onednn-devel
onednn onednn_omp "$dir/onednn_omp_venv" --no-deps onednn-cpu-gomp onednn-devel-cpu-gomp

# ---- PyTorch and JAX ----
if [ -n "$site" ]; then
    # All that `import torch` needs but CUDA's libraries, for which cuda_stubs.sh writes empty ones.
    pip --no-deps torch && pip numpy filelock typing-extensions sympy networkx jinja2 fsspec ||
        echo "pip can't bring torch"
    [ -d "$site/torch/lib" ] && CC=$cc sh "$here/cuda_stubs.sh" "$site/torch/lib"
    peer torch "$venv/bin/python $here/torch_peer.py"
    pip jax && peer jax "$venv/bin/python $here/jax_peer.py"
fi

# ---- collectives: Open MPI through shared memory and over TCP, and PyTorch's on Gloo; the argument is the number of ranks ----
if ! command -v mpirun >/dev/null || ! command -v mpicc >/dev/null; then
    left_out openmpi "not found (Debian: openmpi-bin, libopenmpi-dev)"
    left_out openmpi_tcp "not found (Debian: openmpi-bin, libopenmpi-dev)"
elif mpicc -O2 "$here/mpi.c" -o "$dir/mpi"; then
    root=
    [ "$(id -u)" -ne 0 ] || root=--allow-run-as-root
    ranks() { # more options
        echo "mpirun -q $root --oversubscribe --bind-to none $* -n \"\$1\" $dir/mpi"
    }
    peer openmpi "$(ranks)"
    peer openmpi_tcp "$(ranks --mca btl self,tcp --mca btl_tcp_if_include lo)"
else
    left_out openmpi "it does not compile"
    left_out openmpi_tcp "it does not compile"
fi
[ -z "$site" ] || peer gloo "$venv/bin/python $here/gloo_peer.py"
[ -z "$site" ] || peer ddp "$venv/bin/python $here/ddp_peer.py"
[ -z "$site" ] || peer cut "$venv/bin/python $here/cut_peer.py"

# ---- kann on OpenBLAS, compiled as fast as its compiler can make it ----
[ -e "$dir/kann_source/kann.c" ] || git clone -q --depth 1 https://github.com/attractivechaos/kann "$dir/kann_source" 2>/dev/null
if [ ! -e "$dir/kann_source/kann.c" ]; then
    left_out kann "git can't bring github.com/attractivechaos/kann (or put it into $dir/kann_source)"
elif $cc -O3 -march=native -ffast-math -w -DHAVE_CBLAS -DHAVE_PTHREAD -I"$dir/kann_source" "$here/kann.c" \
    "$dir/kann_source/kann.c" "$dir/kann_source/kautodiff.c" -o "$dir/kann" -lopenblas -lm -lpthread; then
    # It has threads of its own, each of which calls BLAS.
    peer kann "env OPENBLAS_NUM_THREADS=1 $dir/kann"
else
    left_out kann "it does not compile (Debian: libopenblas-dev)"
fi
