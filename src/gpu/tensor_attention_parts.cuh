/* tensor_attention_parts.cuh: the instructions that attention on tensor cores (gpu/tensor_attention.cuh)
   needs beside those of the products (gpu/tensor_mma.cuh). */
#ifndef DML_GPU_TENSOR_ATTENTION_PARTS_CUH
#define DML_GPU_TENSOR_ATTENTION_PARTS_CUH

#include "gpu/tensor_mma.cuh"
#include "gpu/tensor_pack.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

/* Four 8 x 8 matrices, transposed on the way: a thread names a row and gets two neighbours of a column. */
static __device__ __forceinline__ void dml__mma_load_across(uint32_t (&x)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}

/* Four floats from *p on, a multiple of 16 bytes, or zeros where they aren't there; then *p is `on` bytes
   further. It stays where it is written, ahead of the products behind which its latency hides, and the
   compiler doesn't keep a row's distance in registers for each of many reads. */
static __device__ __forceinline__ float4 dml__flash_read(const float **p, long long on, bool there)
{
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    asm volatile("{\n\t.reg .pred there;\n\tsetp.ne.b32 there, %6, 0;\n\t"
                 "@there ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n\tadd.s64 %4, %4, %5;\n\t}"
                 : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w), "+l"(*p)
                 : "l"(on), "r"((int)there)
                 : "memory");
    return x;
}

/* 2^x, and 0 where that would be less than the least normal number. */
static __device__ __forceinline__ float dml__flash_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

#endif
