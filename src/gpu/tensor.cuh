/* tensor.cuh: matrix products on tensor cores: factors rounded to bf16, f16 or TF32, sums, and C, in f32.

   The factors, which are f32 and lie anyhow, are first copied, rounded, into a workspace
   (gpu/tensor_pack.cuh); then cuBLASLt multiplies the copies, or the kernels of gpu/tensor_wgmma.cuh or
   gpu/tensor_mma.cuh do. Everything is queued in one stream, whose order the workspace relies on. */
#ifndef DML_GPU_TENSOR_H
#define DML_GPU_TENSOR_H

#include "gpu/tensor_lt.cuh"
#include "gpu/tensor_mma.cuh"
#include "gpu/tensor_pack.cuh"
#include "gpu/tensor_wgmma.cuh"

typedef enum dml__tensor_way {
    DML__TENSOR_ANY, /* the first of these that there is */
    DML__TENSOR_LT,
    DML__TENSOR_WGMMA, /* of the shape that dml__wgmma_choose chooses */
    DML__TENSOR_MMA,
    DML__TENSOR_WGMMA_SHAPE /* and on: shape 0, 1, ... of dml__wgmma_shape_of */
} dml__tensor_way;

typedef struct dml__tensor {
    int way;      /* a dml__tensor_way that is forced, for tests and benchmarks; else DML__TENSOR_ANY */
    bool has_mma; /* the least there is: without it there is no packing either */
    bool no_tf32; /* the environment forbids it, as it does NVIDIA's libraries */
#ifdef DML__WGMMA_INCLUDED
    dml__wgmma wgmma;
#endif
    dml__lt lt;
    void *workspace; /* of `bytes`: the copies of A and B */
    size_t bytes;
    void *lt_workspace; /* DML__LT_WORKSPACE bytes, from the first use on */
} dml__tensor;

/* Finds out what the current device can do; it doesn't fail, but there may be nothing. All zero is a closed
   one. */
static inline void dml__tensor_open(dml__tensor *tensor)
{
    int device = 0, major = 0, minor = 0, units = 0;
    memset(tensor, 0, sizeof *tensor);
    const bool known =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
        cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
    if (!known) {
        (void)cudaGetLastError();
        return;
    }
    tensor->has_mma = dml__mma_has(major);
    if (!tensor->has_mma) return;
#ifdef DML__WGMMA_INCLUDED
    dml__wgmma_open(&tensor->wgmma, major, minor, units);
#else
    (void)minor;
#endif
    const char *tf32 = getenv("NVIDIA_TF32_OVERRIDE");
    tensor->no_tf32 = tf32 && strcmp(tf32, "0") == 0;
    dml__lt_open(&tensor->lt);
}

/* After the stream has finished, the device being current. */
static inline void dml__tensor_close(dml__tensor *tensor)
{
    dml__lt_close(&tensor->lt);
    if (tensor->workspace) (void)cudaFree(tensor->workspace);
    if (tensor->lt_workspace) (void)cudaFree(tensor->lt_workspace);
    (void)cudaGetLastError();
    memset(tensor, 0, sizeof *tensor);
}

/* Makes the workspace large enough for copies, and cuBLASLt's, where it is wanted: what was queued is waited
   for when it grows. */
static inline cudaError_t dml__tensor_reserve(dml__tensor *tensor, cudaStream_t stream, size_t bytes)
{
    const size_t piece = (size_t)1 << 21;
    if (tensor->lt.handle && !tensor->lt_workspace) {
        const cudaError_t error = cudaMalloc(&tensor->lt_workspace, DML__LT_WORKSPACE);
        if (error != cudaSuccess) {
            tensor->lt_workspace = NULL;
            return error;
        }
    }
    if (bytes <= tensor->bytes) return cudaSuccess;
    cudaError_t error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) return error;
    if (tensor->workspace) (void)cudaFree(tensor->workspace);
    tensor->workspace = NULL, tensor->bytes = 0;
    const size_t whole = (bytes + piece - 1) / piece * piece;
    error = cudaMalloc(&tensor->workspace, whole);
    if (error == cudaSuccess)
        tensor->bytes = whole;
    else
        tensor->workspace = NULL;
    return error;
}

/* By the way that is wanted, or the first that there is, of copies that are made. */
static inline cudaError_t dml__tensor_multiply(dml__tensor *tensor, cudaStream_t stream,
                                               const dml__tensor_product *p)
{
    const int way = tensor->way;
    cudaError_t error = cudaErrorNotSupported;
    if (way == DML__TENSOR_ANY || way == DML__TENSOR_LT)
        error = dml__lt_run(&tensor->lt, stream, tensor->lt_workspace, p);
#ifdef DML__WGMMA_INCLUDED
    if ((error == cudaErrorNotSupported && way == DML__TENSOR_ANY) || way == DML__TENSOR_WGMMA)
        error = dml__wgmma_run(&tensor->wgmma, stream, dml__wgmma_choose(&tensor->wgmma, p->m, p->n), p);
    if (way >= DML__TENSOR_WGMMA_SHAPE && way < DML__TENSOR_WGMMA_SHAPE + DML__WGMMA_SHAPES)
        error = dml__wgmma_run(&tensor->wgmma, stream, way - DML__TENSOR_WGMMA_SHAPE, p);
#endif
    if ((error == cudaErrorNotSupported && way == DML__TENSOR_ANY) || way == DML__TENSOR_MMA)
        error = dml__mma_run(stream, p);
    return error;
}

/* Whether products of k such factors can be made here. */
static inline bool dml__tensor_can(const dml__tensor *tensor, int type, int k)
{
    return tensor->has_mma && k <= DML__TENSOR_MOST_K && !(type == DML__TENSOR_TF32 && tensor->no_tf32);
}

/* Of copies of A (m, k) and B (n, k). */
static inline dml__tensor_product dml__tensor_product_of(const dml__tensor_copy &a, const dml__tensor_copy &b,
                                                         const dml__tensor_out &out)
{
    dml__tensor_product p;
    p.type = a.type, p.m = a.rows, p.n = b.rows, p.words = dml__tensor_words(a.type, a.k);
    p.a = a.to, p.b = b.to, p.out = out;
    p.pairs = (uintptr_t)out.c % 8 == 0 && out.ldc % 2 == 0 && (uintptr_t)out.bias % 8 == 0;
    return p;
}

/* out.c (m, n) = alpha op(A) op(B) + beta out.c and what else is done to it, row-major, with ld floats from
   each row to the next: op(A) is (m, k), op(B) (k, n), and what is transposed lies the other way round. type:
   DML__TENSOR_BF16, DML__TENSOR_F16 or DML__TENSOR_TF32. cudaErrorNotSupported: there is no way here, and
   nothing was queued that matters. */
static inline cudaError_t dml__tensor_gemm(dml__tensor *tensor, cudaStream_t stream, int type, int m, int n,
                                           int k, bool trans_a, bool trans_b, const float *a, int lda,
                                           const float *b, int ldb, const dml__tensor_out &out)
{
    if (!dml__tensor_can(tensor, type, k)) return cudaErrorNotSupported;
    if (m <= 0 || n <= 0) return cudaSuccess;
    const size_t a_bytes = dml__tensor_copy_bytes(type, m, k);
    cudaError_t error = dml__tensor_reserve(tensor, stream, a_bytes + dml__tensor_copy_bytes(type, n, k));
    if (error != cudaSuccess) return error;
    const dml__tensor_copy left = { type, m, k, (uint16_t *)tensor->workspace };
    const dml__tensor_copy right = { type, n, k, (uint16_t *)((char *)tensor->workspace + a_bytes) };
    error = trans_a ? dml__tensor_pack_transpose(stream, left, dml__tensor_matrix_of(a, k, m, lda))
                    : dml__tensor_pack(stream, left, dml__tensor_matrix_of(a, m, k, lda));
    if (error == cudaSuccess)
        error = trans_b ? dml__tensor_pack(stream, right, dml__tensor_matrix_of(b, n, k, ldb))
                        : dml__tensor_pack_transpose(stream, right, dml__tensor_matrix_of(b, k, n, ldb));
    if (error != cudaSuccess) return error;
    const dml__tensor_product p = dml__tensor_product_of(left, right, out);
    return dml__tensor_multiply(tensor, stream, &p);
}

#endif
