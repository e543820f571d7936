/* tensor_warp.cuh: the instructions of sm_80 and later that kernels on tensor cores are made of (PTX ISA,
   "Warp Level Matrix Instructions" and "Data Movement and Conversion Instructions"), and nothing else.

   Where they are there DML__TENSOR_WARP is defined, and elsewhere these kernels have no body. A runtime that
   has them as functions of its own defines it first: tests/gpu/fake_cuda does, in plain C++. */
#ifndef DML_GPU_TENSOR_WARP_CUH
#define DML_GPU_TENSOR_WARP_CUH

#include <cuda_runtime.h>
#include <stdint.h>

enum { DML__TENSOR_BF16 = 1, DML__TENSOR_F16 = 2, DML__TENSOR_TF32 = 3 };

#if !defined(DML__TENSOR_WARP) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define DML__TENSOR_WARP

/* ---- memory ---- */

/* An address in shared memory, as the instructions below name it. */
static __device__ __forceinline__ __attribute__((unused)) uint32_t dml__tensor_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Has 16 bytes copied into shared memory, both at multiples of 16, by when the group is waited for that
   dml__mma_commit ends next. */
static __device__ __forceinline__ void dml__mma_copy(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void dml__mma_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until the thread's groups but the last `left` are copied. */
template <int left> static __device__ __forceinline__ void dml__mma_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/* Four floats from *p on, a multiple of 16 bytes, or zeros where they aren't there; then *p is `on` bytes
   further. It stays where it is written, ahead of the products behind which its latency hides, and the
   compiler doesn't keep a row's distance in registers for each of many reads. */
static __device__ __forceinline__ float4 dml__tensor_take(const float **p, long long on, bool there)
{
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    asm volatile("{\n\t.reg .pred there;\n\tsetp.ne.b32 there, %6, 0;\n\t"
                 "@there ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n\tadd.s64 %4, %4, %5;\n\t}"
                 : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w), "+l"(*p)
                 : "l"(on), "r"((int)there)
                 : "memory");
    return x;
}

/* ---- numbers ---- */

/* Two floats rounded to bf16 or f16, to nearest, ties to even; `first` is the one at the lower address. */
template <int type> static __device__ __forceinline__ uint32_t dml__tensor_narrow(float first, float second)
{
    uint32_t both;
    if (type == DML__TENSOR_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

/* A float rounded to the 10 bits of TF32, to nearest, ties away from zero. */
static __device__ __forceinline__ uint32_t dml__tensor_narrow_tf32(float x)
{
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* 2^x, and 0 where that would be less than the least normal number. */
static __device__ __forceinline__ float dml__tensor_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- products, by all of a warp ---- */

/* Four 8 x 8 matrices of 16 bits, of which each thread names a row. */
static __device__ __forceinline__ void dml__mma_load(uint32_t (&x)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}

/* The same, transposed on the way: a thread gets two neighbours of a column. */
static __device__ __forceinline__ void dml__mma_load_across(uint32_t (&x)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}

/* d (16, 8) += a (16, k) b (8, k)^T, of 32 bytes of k: 16 numbers, or 8 of TF32. */
template <int type>
static __device__ __forceinline__ void dml__mma_multiply(float *d, const uint32_t (&a)[4], uint32_t b0,
                                                         uint32_t b1)
{
#define DML__MMA(shape, types)                                                                               \
    asm volatile("mma.sync.aligned." shape ".row.col.f32." types ".f32 "                                     \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                           \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if (type == DML__TENSOR_BF16)
        DML__MMA("m16n8k16", "bf16.bf16");
    else if (type == DML__TENSOR_F16)
        DML__MMA("m16n8k16", "f16.f16");
    else
        DML__MMA("m16n8k8", "tf32.tf32");
#undef DML__MMA
}

#endif

#endif
