/* tensor_common.cuh: what the ways of multiplying 16-bit factors on tensor cores share.

   All of them compute C (m, n) = alpha A B^T + beta C of f32, row-major, with f32 sums, from copies of A (m,
   k) and B (n, k) in bf16 or f16 that gpu/tensor_pack.cuh made: k runs along memory, rows are padded to a
   multiple of DML__TENSOR_ROWS and k to one of DML__TENSOR_K, with zeros. So the ways load whole tiles, and
   only what writes C looks at its bounds. */
#ifndef DML_GPU_TENSOR_COMMON_CUH
#define DML_GPU_TENSOR_COMMON_CUH

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stdint.h>

enum { DML__TENSOR_BF16 = 1, DML__TENSOR_F16 = 2 };
enum { DML__TENSOR_ROWS = 128, DML__TENSOR_K = 64 };

typedef struct dml__tensor_product {
    int type;          /* DML__TENSOR_BF16 or DML__TENSOR_F16 */
    int m, n, k;       /* m and n of C; k padded */
    const uint16_t *a; /* (m padded, k) */
    const uint16_t *b; /* (n padded, k) */
    float *c;          /* (m, n) */
    int ldc, pairs;    /* pairs: two neighbours of C may be read and written at once, at even columns */
    float alpha, beta; /* beta 0: C isn't read */
} dml__tensor_product;

static inline int dml__tensor_padded(int size, int to)
{
    return size <= to ? to : (int)(((unsigned)size + (unsigned)to - 1) / (unsigned)to * (unsigned)to);
}

/* A kernel's body is compiled only for cards that have its instructions; elsewhere the kernel is there, and
   empty. The registers tell: no way does with as few as an empty one. */
static inline bool dml__tensor_has_body(const void *kernel)
{
    cudaFuncAttributes attributes;
    const bool has = cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.numRegs > 64;
    if (!has) (void)cudaGetLastError();
    return has;
}

/* Where tile `number` of rows x columns of them is: down `band` rows of tiles, then to the next column, so
   that what runs at the same time reads few rows of A and of B, and finds them in the L2 cache. */
typedef struct dml__tensor_place {
    int row, column;
} dml__tensor_place;

static __device__ __forceinline__ __attribute__((unused)) dml__tensor_place
dml__tensor_place_of(int number, int rows, int columns, int band)
{
    const int first = number / (band * columns) * band;
    const int height = rows - first < band ? rows - first : band;
    const int within = number - first * columns;
    dml__tensor_place place;
    place.row = first + within % height;
    place.column = within / height;
    return place;
}

/* Writes a thread's part of a row of sums, as the tensor cores leave them: of each 8 columns it has two, the
   first at c; `half` picks the upper or lower of the two rows that it holds in each four. `left` columns of C
   are there from c on. */
template <int blocks>
static __device__ __forceinline__ void dml__tensor_put(const float (&sum)[4 * blocks], int half, float *c,
                                                       int left, const dml__tensor_product &p)
{
    enum { AHEAD = blocks < 8 ? blocks : 8 }; /* reads of C on their way before the first is used */
    const float alpha = p.alpha, beta = p.beta;
    if (p.pairs && left >= 8 * blocks - 6) {
        if (beta == 0.0f) {
#pragma unroll
            for (int j = 0; j < blocks; j++)
                *(float2 *)(c + 8 * j) =
                    make_float2(alpha * sum[4 * j + 2 * half], alpha * sum[4 * j + 2 * half + 1]);
            return;
        }
#pragma unroll
        for (int j0 = 0; j0 < blocks; j0 += AHEAD) {
            float2 old[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++) old[j] = *(const float2 *)(c + 8 * (j0 + j));
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                const int at = 4 * (j0 + j) + 2 * half;
                *(float2 *)(c + 8 * (j0 + j)) =
                    make_float2(alpha * sum[at] + beta * old[j].x, alpha * sum[at + 1] + beta * old[j].y);
            }
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 2 * blocks; j++) {
        const int column = 8 * (j / 2) + j % 2;
        if (column < left) {
            const float value = alpha * sum[4 * (j / 2) + 2 * half + j % 2];
            c[column] = beta == 0.0f ? value : value + beta * c[column];
        }
    }
}

static __device__ __forceinline__ __attribute__((unused)) uint32_t dml__tensor_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

#endif
