/* blas: a peer of bench/gemm and bench/numerics: cblas_sgemm of any BLAS that can be loaded, and its product
   of bf16. usage: blas LIBRARY THREADS */
#define _GNU_SOURCE
#include "peer.h"

#include <dlfcn.h>

typedef void (*sgemm_function)(int layout, int trans_a, int trans_b, int m, int n, int k, float alpha,
                               const float *a, int lda, const float *b, int ldb, float beta, float *c,
                               int ldc);

/* MKL's and OpenBLAS's have the same arguments. */
typedef void (*bf16gemm_function)(int layout, int trans_a, int trans_b, int m, int n, int k, float alpha,
                                  const unsigned short *a, int lda, const unsigned short *b, int ldb,
                                  float beta, float *c, int ldc);

static sgemm_function sgemm;
static bf16gemm_function bf16gemm; /* NULL: it has none */
static int narrow;                 /* the case is one of bf16 */
static unsigned short *narrow_a, *narrow_b;
static int m, n, k, trans_a, trans_b;
static float *a, *b, *c;

static void run(void)
{
    enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
    const int ta = trans_a ? TRANS : NO_TRANS, tb = trans_b ? TRANS : NO_TRANS;
    const int lda = trans_a ? m : k, ldb = trans_b ? k : n;
    if (narrow)
        bf16gemm(ROW_MAJOR, ta, tb, m, n, k, 1, narrow_a, lda, narrow_b, ldb, 0, c, n);
    else
        sgemm(ROW_MAJOR, ta, tb, m, n, k, 1, a, lda, b, ldb, 0, c, n);
}

/* The product of the matrices in a file, which it replaces. */
static const char *compute(const char *path)
{
    FILE *file = fopen(path, "r+b");
    size_t a_count = (size_t)m * (size_t)k, b_count = (size_t)k * (size_t)n, c_count = (size_t)m * (size_t)n;
    if (!file) return "such file";
    if (fread(a, sizeof *a, a_count, file) == a_count && fread(b, sizeof *b, b_count, file) == b_count) {
        run();
        rewind(file);
        c_count -= fwrite(c, sizeof *c, c_count, file);
    }
    return fclose(file) == 0 && c_count == 0 ? NULL : "product in the file";
}

static const char *prepare(const char *words)
{
    char path[128] = "";
    narrow = strncmp(words, "bf16", 4) == 0;
    if (narrow && !bf16gemm) return "product of bf16";
    if (narrow) words += 4;
    if (sscanf(words, "compute sgemm %127s %d %d %d %d %d", path, &m, &n, &k, &trans_a, &trans_b) != 6 &&
        sscanf(words, "gemm %d %d %d %d %d", &m, &n, &k, &trans_a, &trans_b) != 5)
        return "such case";
    free(a), free(b), free(c), free(narrow_a), free(narrow_b);
    narrow_a = narrow_b = NULL;
    a = peer_floats((size_t)m * (size_t)k);
    b = peer_floats((size_t)k * (size_t)n);
    c = peer_floats((size_t)m * (size_t)n);
    if (narrow)
        narrow_a = peer_bf16(a, (size_t)m * (size_t)k), narrow_b = peer_bf16(b, (size_t)k * (size_t)n);
    return path[0] ? compute(path) : NULL;
}

/* What the library says of itself; its path, where it says nothing. */
static const char *version(void *library, const char *path)
{
    static const char *const names[] = { "openblas_get_config", "scipy_openblas_get_config",
                                         "bli_info_get_version_str" };
    static char text[200];
    const char *(*ask)(void) = NULL;
    void (*ask_mkl)(char *text, int size) = NULL;
    size_t i;
    for (i = 0; i < sizeof names / sizeof *names && !ask; i++) *(void **)&ask = dlsym(library, names[i]);
    if (ask) return ask();
    *(void **)&ask_mkl = dlsym(library, "MKL_Get_Version_String");
    if (!ask_mkl) return path;
    ask_mkl(text, sizeof text);
    return text;
}

int main(int argc, char **argv)
{
    /* scipy's OpenBLAS has its own names. */
    static const char *const names[] = { "cblas_sgemm", "scipy_cblas_sgemm" };
    static const char *const narrow_names[] = { "cblas_gemm_bf16bf16f32", "cblas_sbgemm",
                                                "scipy_cblas_sbgemm" };
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    size_t i;
    if (!library) {
        peer_say("no", argc > 1 ? dlerror() : "library was named");
        return 1;
    }
    for (i = 0; i < sizeof names / sizeof *names && !sgemm; i++) *(void **)&sgemm = dlsym(library, names[i]);
    for (i = 0; i < sizeof narrow_names / sizeof *narrow_names && !bf16gemm; i++)
        *(void **)&bf16gemm = dlsym(library, narrow_names[i]);
    if (!sgemm) {
        peer_say("no", "cblas_sgemm in the library");
        return 1;
    }
    return peer_serve(version(library, argv[1]), prepare, run);
}
