/* gpu_cublas.h: cuBLAS as a peer of bench/gpu, on the same memory. It is looked for when the benchmark runs,
   so that none has to be there to build it. */
#ifndef DML_BENCH_GPU_CUBLAS_H
#define DML_BENCH_GPU_CUBLAS_H

#include "gpu_device.h"

#include <dlfcn.h>

typedef struct gpu_cublas {
    void *handle; /* NULL: there is none */
    int version;
    int (*sgemm)(void *handle, int trans_a, int trans_b, int m, int n, int k, const float *alpha,
                 const float *a, int lda, const float *b, int ldb, const float *beta, float *c, int ldc);
    /* Its stream is the default one, ours isn't, so it is the whole context that is waited for. */
    int (*synchronize)(void);
} gpu_cublas;

/* A function of a library, as an object pointer may not be cast to one in C. */
static bool gpu__symbol(void *library, const char *name, void *function)
{
    void *found = library ? dlsym(library, name) : NULL;
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

/* The newest there is; what it needs itself lies beside it, where the loader may not look. */
static void *gpu__open_cublas(void)
{
    static const char *const folders[] = { "", "/usr/local/cuda/lib64/", "/usr/lib/x86_64-linux-gnu/" };
    static const char *const ends[] = { "so.13", "so.12", "so" };
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++)
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
            char path[128];
            snprintf(path, sizeof path, "%slibcublasLt.%s", folders[f], ends[e]);
            (void)dlopen(path, RTLD_NOW | RTLD_GLOBAL);
            snprintf(path, sizeof path, "%slibcublas.%s", folders[f], ends[e]);
            void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
            if (library) return library;
        }
    return NULL;
}

/* On the device that is open, which is this thread's current one. */
static void gpu_cublas_open(gpu_cublas *c, bool allow_tf32)
{
    enum { DEFAULT_MATH = 0, TF32_TENSOR_OP_MATH = 3 }; /* by default f32 as it is: no sums of bf16 either */
    int (*create)(void **handle), (*get_version)(void *handle, int *version), (*math)(void *handle, int mode);
    void *library = gpu__open_cublas(), *driver = dlopen("libcuda.so.1", RTLD_NOW);
    memset(c, 0, sizeof *c);
    if (!library || !driver) {
        printf("# gpu: left out the peer cublas: there is no %s\n",
               library ? "libcuda.so.1" : "libcublas.so.13, .12 or .so");
        return;
    }
    if (!gpu__symbol(library, "cublasCreate_v2", &create) ||
        !gpu__symbol(library, "cublasGetVersion_v2", &get_version) ||
        !gpu__symbol(library, "cublasSetMathMode", &math) ||
        !gpu__symbol(library, "cublasSgemm_v2", &c->sgemm) ||
        !gpu__symbol(driver, "cuCtxSynchronize", &c->synchronize)) {
        printf("# gpu: left out the peer cublas: it lacks a function that is needed\n");
        return;
    }
    const int status = create(&c->handle);
    if (status != 0 || math(c->handle, allow_tf32 ? TF32_TENSOR_OP_MATH : DEFAULT_MATH) != 0) {
        printf("# gpu: left out the peer cublas: it fails with status %d\n", status);
        c->handle = NULL;
        return;
    }
    (void)get_version(c->handle, &c->version);
    printf("# gpu: peer cublas: %d.%d.%d\n", c->version / 10000, c->version / 100 % 100, c->version % 100);
}

static void gpu_cublas_close(gpu_cublas *c)
{
    int (*destroy)(void *handle);
    void *library = c->handle ? gpu__open_cublas() : NULL;
    if (gpu__symbol(library, "cublasDestroy_v2", &destroy)) (void)destroy(c->handle);
    c->handle = NULL;
}

/* A product of rows, which to cuBLAS, whose matrices are columns, is the transpose of B's by A's. */
typedef struct gpu_cublas_product {
    const gpu_cublas *cublas;
    int m, n, k, trans_a, trans_b;
    const float *a, *b; /* on the device */
    float *c;
} gpu_cublas_product;

static bool gpu_cublas_run(void *argument, int times)
{
    const gpu_cublas_product *p = (const gpu_cublas_product *)argument;
    const float one = 1, zero = 0;
    for (int i = 0; i < times; i++)
        if (p->cublas->sgemm(p->cublas->handle, p->trans_b, p->trans_a, p->n, p->m, p->k, &one, p->b,
                             p->trans_b ? p->k : p->n, p->a, p->trans_a ? p->m : p->k, &zero, p->c,
                             p->n) != 0)
            return false;
    return p->cublas->synchronize() == 0;
}

#endif
