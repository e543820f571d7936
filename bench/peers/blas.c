/* blas: a peer of bench/gemm: cblas_sgemm of any BLAS that can be loaded. usage: blas LIBRARY THREADS */
#define _GNU_SOURCE
#include "peer.h"

#include <dlfcn.h>

typedef void (*sgemm_function)(int layout, int trans_a, int trans_b, int m, int n, int k, float alpha,
                               const float *a, int lda, const float *b, int ldb, float beta, float *c,
                               int ldc);

static sgemm_function sgemm;
static int m, n, k, trans_a, trans_b;
static float *a, *b, *c;

static const char *prepare(const char *words)
{
    if (sscanf(words, "gemm %d %d %d %d %d", &m, &n, &k, &trans_a, &trans_b) != 5) return "such case";
    free(a), free(b), free(c);
    a = peer_floats((size_t)m * (size_t)k);
    b = peer_floats((size_t)k * (size_t)n);
    c = peer_floats((size_t)m * (size_t)n);
    return NULL;
}

static void run(void)
{
    enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
    sgemm(ROW_MAJOR, trans_a ? TRANS : NO_TRANS, trans_b ? TRANS : NO_TRANS, m, n, k, 1, a, trans_a ? m : k,
          b, trans_b ? k : n, 0, c, n);
}

int main(int argc, char **argv)
{
    /* scipy's OpenBLAS has its own names. */
    static const char *const names[] = { "cblas_sgemm", "scipy_cblas_sgemm" };
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    size_t i;
    if (!library) {
        peer_say("no", argc > 1 ? dlerror() : "library was named");
        return 1;
    }
    for (i = 0; i < sizeof names / sizeof *names && !sgemm; i++) *(void **)&sgemm = dlsym(library, names[i]);
    if (!sgemm) {
        peer_say("no", "cblas_sgemm in the library");
        return 1;
    }
    return peer_serve(argv[1], prepare, run);
}
