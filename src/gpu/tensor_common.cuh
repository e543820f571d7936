/* tensor_common.cuh: what the ways of multiplying rounded factors on tensor cores share.

   All of them compute C (m, n) = alpha A B^T + beta C + bias of f32, row-major, with f32 sums, or the relu of
   that, from copies of A (m, k) and B (n, k) in bf16, f16 or TF32 that gpu/tensor_pack.cuh made: k runs along
   memory, rows are padded to a multiple of DML__TENSOR_ROWS and their words of 16 bits to one of
   DML__TENSOR_WORDS, with zeros. So the ways load whole tiles, and only what writes C looks at its bounds. A
   number of TF32 is two words, those of a float: beside its instruction, which takes as many words, nothing
   differs. */
#ifndef DML_GPU_TENSOR_COMMON_CUH
#define DML_GPU_TENSOR_COMMON_CUH

#include "gpu/tensor_warp.cuh"

#include <stdbool.h>
#include <stdint.h>

enum { DML__TENSOR_ROWS = 128, DML__TENSOR_WORDS = 64 };

/* Where a product goes, and what is done to it on the way. */
typedef struct dml__tensor_out {
    float *c;          /* (m, n), ldc floats from each row to the next */
    const float *bias; /* (n), or NULL */
    int ldc, relu;     /* relu: what isn't above 0 becomes 0; a NaN stays one */
    float alpha, beta; /* beta 0: C isn't read */
} dml__tensor_out;

typedef struct dml__tensor_product {
    int type;          /* DML__TENSOR_BF16, DML__TENSOR_F16 or DML__TENSOR_TF32 */
    int m, n, words;   /* m and n of C; words of a row of the copies, padded */
    const uint16_t *a; /* (m padded, words) */
    const uint16_t *b; /* (n padded, words) */
    dml__tensor_out out;
    int pairs; /* two neighbours of C and of the bias may be read and written at once, at even columns */
} dml__tensor_product;

static inline int dml__tensor_padded(int size, int to)
{
    return size <= to ? to : (int)(((unsigned)size + (unsigned)to - 1) / (unsigned)to * (unsigned)to);
}

/* Words of a number. */
static __host__ __device__ __forceinline__ constexpr int dml__tensor_words_of(int type)
{
    return type == DML__TENSOR_TF32 ? 2 : 1;
}

/* Words of a copy's row of k numbers, of which there are at most DML__TENSOR_MOST_K. */
enum { DML__TENSOR_MOST_K = 1 << 29 };
static inline int dml__tensor_words(int type, int k)
{
    return dml__tensor_padded(k * dml__tensor_words_of(type), DML__TENSOR_WORDS);
}

/* A kernel's body is compiled only for cards that have its instructions; elsewhere the kernel is there, and
   empty. The registers tell: no way does with as few as an empty one. */
template <typename T> static inline bool dml__tensor_has_body(T *kernel)
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

static __device__ __forceinline__ float dml__tensor_relu(float x, int on)
{
    return on && x <= 0.0f ? 0.0f : x;
}

/* Writes a thread's part of a row of sums, as the tensor cores leave them: of each 8 columns it has two, the
   first at `column`; `half` picks the upper or lower of the two rows that it holds in each four. */
template <int blocks>
static __device__ __forceinline__ void dml__tensor_put(const float (&sum)[4 * blocks], int half, int row,
                                                       int column, const dml__tensor_product &p)
{
    enum { AHEAD = blocks < 8 ? blocks : 8 }; /* reads of C on their way before the first is used */
    const float alpha = p.out.alpha, beta = p.out.beta;
    const int left = p.n - column, relu = p.out.relu; /* left: columns of C that are there from this one on */
    if (row >= p.m) return;
    float *c = p.out.c + (size_t)row * (size_t)p.out.ldc + column;
    const float *bias = p.out.bias ? p.out.bias + column : NULL;
    if (p.pairs && left >= 8 * blocks - 6) {
#pragma unroll
        for (int j0 = 0; j0 < blocks; j0 += AHEAD) {
            float2 old[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                old[j] = beta == 0.0f ? make_float2(0.0f, 0.0f) : *(const float2 *)(c + 8 * (j0 + j));
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                const int at = 4 * (j0 + j) + 2 * half;
                const float2 add = bias ? *(const float2 *)(bias + 8 * (j0 + j)) : make_float2(0.0f, 0.0f);
                *(float2 *)(c + 8 * (j0 + j)) =
                    make_float2(dml__tensor_relu(alpha * sum[at] + beta * old[j].x + add.x, relu),
                                dml__tensor_relu(alpha * sum[at + 1] + beta * old[j].y + add.y, relu));
            }
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 2 * blocks; j++) {
        const int at = 8 * (j / 2) + j % 2;
        if (at < left) {
            float value = alpha * sum[4 * (j / 2) + 2 * half + j % 2];
            if (beta != 0.0f) value += beta * c[at];
            c[at] = dml__tensor_relu(bias ? value + bias[at] : value, relu);
        }
    }
}

#endif
