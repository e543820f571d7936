/* tensor_common.cuh: what the ways of multiplying rounded factors on tensor cores share.

   All of them compute C (m, n) = alpha A B^T + beta C of f32, row-major, with f32 sums, from copies of A (m,
   k) and B (n, k) in bf16, f16 or TF32 that gpu/tensor_pack.cuh made: k runs along memory, rows are padded to
   a multiple of DML__TENSOR_ROWS and their words of 16 bits to one of DML__TENSOR_WORDS, with zeros. So the
   ways load whole tiles, and only what writes C looks at its bounds. A number of TF32 is two words, those of
   a float: beside its instruction, which takes as many words, nothing differs. */
#ifndef DML_GPU_TENSOR_COMMON_CUH
#define DML_GPU_TENSOR_COMMON_CUH

#include "gpu/tensor_warp.cuh"

#include <stdbool.h>
#include <stdint.h>

enum { DML__TENSOR_ROWS = 128, DML__TENSOR_WORDS = 64 };

typedef struct dml__tensor_product {
    int type;          /* DML__TENSOR_BF16, DML__TENSOR_F16 or DML__TENSOR_TF32 */
    int m, n, words;   /* m and n of C; words of a row of the copies, padded */
    const uint16_t *a; /* (m padded, words) */
    const uint16_t *b; /* (n padded, words) */
    float *c;          /* (m, n) */
    int ldc, pairs;    /* pairs: two neighbours of C may be read and written at once, at even columns */
    float alpha, beta; /* beta 0: C isn't read */
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

#endif
