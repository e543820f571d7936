/* tensor_lt.cuh: products of rounded factors by cuBLASLt, where the machine has it. It is opened when it is
   wanted, never linked, and nothing of its headers is needed: what is declared here is part of its interface
   since CUDA 11. */
#ifndef DML_GPU_TENSOR_LT_H
#define DML_GPU_TENSOR_LT_H

#include "gpu/tensor_common.cuh"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { /* of cublas_api.h, library_types.h and cublasLt.h */
       DML__LT_COMPUTE_32F = 68,
       DML__LT_COMPUTE_32F_FAST_TF32 = 77,
       DML__LT_R_32F = 0,
       DML__LT_R_16F = 2,
       DML__LT_R_16BF = 14,
       DML__LT_OP_T = 1,
       DML__LT_DESC_TRANSA = 3,
       DML__LT_DESC_EPILOGUE = 7, /* uint32_t */
       DML__LT_DESC_BIAS = 8,     /* a pointer */
       DML__LT_EPILOGUE_BIAS = 4,
       DML__LT_PREFERENCE_WORKSPACE = 1,   /* uint64_t */
       DML__LT_PREFERENCE_ALIGNMENT_A = 5, /* uint32_t, bytes */
       DML__LT_PREFERENCE_ALIGNMENT_B = 6,
       DML__LT_PREFERENCE_ALIGNMENT_C = 7,
       DML__LT_PREFERENCE_ALIGNMENT_D = 8
};
enum { DML__LT_WORKSPACE = 32 << 20 /* bytes */, DML__LT_PLANS = 64 };

typedef struct dml__lt_algorithm {
    uint64_t data[8];
} dml__lt_algorithm;

typedef struct dml__lt_found {
    dml__lt_algorithm algorithm;
    size_t workspace;
    int state; /* 0: it can be used */
    float waves;
    int reserved[4];
} dml__lt_found;

/* The functions: name, arguments; each gives 0 where all is well. */
#define DML__LT_FUNCTIONS(ROW)                                                                               \
    ROW(cublasLtCreate, (void **handle))                                                                     \
    ROW(cublasLtDestroy, (void *handle))                                                                     \
    ROW(cublasLtMatmulDescCreate, (void **desc, int compute, int scale))                                     \
    ROW(cublasLtMatmulDescDestroy, (void *desc))                                                             \
    ROW(cublasLtMatmulDescSetAttribute, (void *desc, int attribute, const void *value, size_t size))         \
    ROW(cublasLtMatrixLayoutCreate, (void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld))  \
    ROW(cublasLtMatrixLayoutDestroy, (void *layout))                                                         \
    ROW(cublasLtMatmulPreferenceCreate, (void **preference))                                                 \
    ROW(cublasLtMatmulPreferenceDestroy, (void *preference))                                                 \
    ROW(cublasLtMatmulPreferenceSetAttribute,                                                                \
        (void *preference, int attribute, const void *value, size_t size))                                   \
    ROW(cublasLtMatmulAlgoGetHeuristic, (void *handle, void *desc, void *a, void *b, void *c, void *d,       \
                                         void *preference, int wanted, dml__lt_found *found, int *count))    \
    ROW(cublasLtMatmul,                                                                                      \
        (void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,          \
         void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,           \
         const dml__lt_algorithm *algorithm, void *workspace, size_t workspace_size, cudaStream_t stream))

/* What a product's size and C's place lead to. */
typedef struct dml__lt_plan {
    int type, m, n, words, ldc; /* the key; type 0: none is here */
    int aligned, bias;          /* also the key: of how many bytes C's and the bias' places are multiples */
    void *desc, *a, *b, *c;
    bool refused; /* there is no algorithm */
    dml__lt_algorithm algorithm;
} dml__lt_plan;

typedef struct dml__lt {
    void *library, *handle; /* handle NULL: there is none */
#define DML__LT_MEMBER(function, arguments) int(*function) arguments;
    DML__LT_FUNCTIONS(DML__LT_MEMBER)
#undef DML__LT_MEMBER
    int next; /* the plan that gives way */
    dml__lt_plan plan[DML__LT_PLANS];
} dml__lt;

static inline void dml__lt_forget(dml__lt *lt, dml__lt_plan *plan)
{
    if (plan->desc) (void)lt->cublasLtMatmulDescDestroy(plan->desc);
    if (plan->a) (void)lt->cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b) (void)lt->cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->c) (void)lt->cublasLtMatrixLayoutDestroy(plan->c);
    memset(plan, 0, sizeof *plan);
}

/* The library stays open: other devices may use it, and it can't be unloaded under the driver's threads. */
static inline void dml__lt_close(dml__lt *lt)
{
    for (int i = 0; i < DML__LT_PLANS && lt->handle; i++) dml__lt_forget(lt, &lt->plan[i]);
    if (lt->handle) (void)lt->cublasLtDestroy(lt->handle);
    lt->handle = NULL;
}

/* For the current device. Without the library, or with one that is too new for the driver, there is no
   handle; DML_CUBLAS=0 in the environment leaves it out. */
static inline void dml__lt_open(dml__lt *lt)
{
    static const char *const names[] = {
        "libcublasLt.so.13",
        "libcublasLt.so.12",
        "libcublasLt.so.11",
        "libcublasLt.so",
        "/usr/local/cuda/lib64/libcublasLt.so",
    };
    const char *asked = getenv("DML_CUBLAS");
    memset(lt, 0, sizeof *lt);
    if (asked && strcmp(asked, "0") == 0) return;
    for (size_t i = 0; i < sizeof names / sizeof *names && !lt->handle; i++) {
        void *address;
        lt->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (!lt->library) continue;
        bool all = true;
#define DML__LT_FIND(function, arguments)                                                                    \
    address = dlsym(lt->library, #function);                                                                 \
    all = all && address != NULL;                                                                            \
    memcpy(&lt->function, &address, sizeof address);
        DML__LT_FUNCTIONS(DML__LT_FIND)
#undef DML__LT_FIND
        if (!all || lt->cublasLtCreate(&lt->handle) != 0) lt->handle = NULL;
    }
    (void)cudaGetLastError();
}

static inline bool dml__lt_set_bias(dml__lt *lt, dml__lt_plan *plan, const float *bias)
{
    return !bias ||
           lt->cublasLtMatmulDescSetAttribute(plan->desc, DML__LT_DESC_BIAS, &bias, sizeof bias) == 0;
}

/* Row-major C = A B^T is, by columns, C^T = B A^T: its first factor is B's copy, whose columns are its rows
   here, transposed, its second A's. Its rows are our columns, and the bias has one number for each. */
static inline bool dml__lt_make(dml__lt *lt, dml__lt_plan *plan, const float *bias)
{
    const bool tf32 = plan->type == DML__TENSOR_TF32;
    const int type = tf32 ? DML__LT_R_32F : plan->type == DML__TENSOR_F16 ? DML__LT_R_16F : DML__LT_R_16BF;
    const int compute = tf32 ? DML__LT_COMPUTE_32F_FAST_TF32 : DML__LT_COMPUTE_32F;
    const int32_t transposed = DML__LT_OP_T;
    const uint32_t aligned = (uint32_t)plan->aligned, packed = 256, epilogue = DML__LT_EPILOGUE_BIAS;
    const uint64_t workspace = DML__LT_WORKSPACE;
    const uint64_t m = (uint64_t)plan->m, n = (uint64_t)plan->n;
    const int k = plan->words / dml__tensor_words_of(plan->type);
    void *preference = NULL;
    dml__lt_found found;
    int count = 0;
    memset(&found, 0, sizeof found);
    bool ok = lt->cublasLtMatmulDescCreate(&plan->desc, compute, DML__LT_R_32F) == 0 &&
              lt->cublasLtMatmulDescSetAttribute(plan->desc, DML__LT_DESC_TRANSA, &transposed,
                                                 sizeof transposed) == 0 &&
              (!bias || lt->cublasLtMatmulDescSetAttribute(plan->desc, DML__LT_DESC_EPILOGUE, &epilogue,
                                                           sizeof epilogue) == 0) &&
              dml__lt_set_bias(lt, plan, bias) &&
              lt->cublasLtMatrixLayoutCreate(&plan->a, type, (uint64_t)k, n, k) == 0 &&
              lt->cublasLtMatrixLayoutCreate(&plan->b, type, (uint64_t)k, m, k) == 0 &&
              lt->cublasLtMatrixLayoutCreate(&plan->c, DML__LT_R_32F, n, m, plan->ldc) == 0 &&
              lt->cublasLtMatmulPreferenceCreate(&preference) == 0;
#define DML__LT_PREFER(attribute, value)                                                                     \
    ok = ok && lt->cublasLtMatmulPreferenceSetAttribute(preference, attribute, &(value), sizeof(value)) == 0
    DML__LT_PREFER(DML__LT_PREFERENCE_WORKSPACE, workspace);
    DML__LT_PREFER(DML__LT_PREFERENCE_ALIGNMENT_A, packed);
    DML__LT_PREFER(DML__LT_PREFERENCE_ALIGNMENT_B, packed);
    DML__LT_PREFER(DML__LT_PREFERENCE_ALIGNMENT_C, aligned);
    DML__LT_PREFER(DML__LT_PREFERENCE_ALIGNMENT_D, aligned);
#undef DML__LT_PREFER
    ok = ok &&
         lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, plan->desc, plan->a, plan->b, plan->c, plan->c,
                                            preference, 1, &found, &count) == 0 &&
         count == 1 && found.state == 0;
    if (preference) (void)lt->cublasLtMatmulPreferenceDestroy(preference);
    plan->algorithm = found.algorithm;
    plan->refused = !ok;
    return ok;
}

/* The largest power of two up to `most` that the address is a multiple of; 0 of none. */
static inline int dml__lt_aligned(const void *address, int most)
{
    while ((uintptr_t)address % (unsigned)most) most /= 2;
    return address ? most : 0;
}

static inline dml__lt_plan *dml__lt_plan_of(dml__lt *lt, const dml__tensor_product *p)
{
    const int aligned = dml__lt_aligned(p->out.c, 256), bias = dml__lt_aligned(p->out.bias, 16);
    for (int i = 0; i < DML__LT_PLANS; i++) {
        dml__lt_plan *plan = &lt->plan[i];
        if (plan->type == p->type && plan->m == p->m && plan->n == p->n && plan->words == p->words &&
            plan->ldc == p->out.ldc && plan->aligned == aligned && plan->bias == bias)
            return plan;
    }
    dml__lt_plan *plan = &lt->plan[lt->next];
    lt->next = (lt->next + 1) % DML__LT_PLANS;
    dml__lt_forget(lt, plan);
    plan->type = p->type, plan->m = p->m, plan->n = p->n, plan->words = p->words;
    plan->ldc = p->out.ldc, plan->aligned = aligned, plan->bias = bias;
    (void)dml__lt_make(lt, plan, p->out.bias);
    return plan;
}

/* `workspace`: DML__LT_WORKSPACE bytes of the device, for this stream. cudaErrorNotSupported: it has no way
   for this product, and nothing was queued. It has none for a relu: its own is said to be max(x, 0), which
   may lose a NaN. */
static inline cudaError_t dml__lt_run(dml__lt *lt, cudaStream_t stream, void *workspace,
                                      const dml__tensor_product *p)
{
    if (!lt->handle || p->out.relu) return cudaErrorNotSupported;
    dml__lt_plan *plan = dml__lt_plan_of(lt, p);
    if (plan->refused || !dml__lt_set_bias(lt, plan, p->out.bias)) return cudaErrorNotSupported;
    const int status = lt->cublasLtMatmul(lt->handle, plan->desc, &p->out.alpha, p->b, plan->a, p->a, plan->b,
                                          &p->out.beta, p->out.c, plan->c, p->out.c, plan->c,
                                          &plan->algorithm, workspace, DML__LT_WORKSPACE, stream);
    if (status == 0) return cudaSuccess;
    const cudaError_t error = cudaGetLastError(); /* of a device that is lost, perhaps */
    plan->refused = error == cudaSuccess;
    return error == cudaSuccess ? cudaErrorNotSupported : error;
}

#endif
