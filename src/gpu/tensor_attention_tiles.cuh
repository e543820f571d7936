/* tensor_attention_tiles.cuh: what forward and backward of gpu/tensor_attention.cuh are made of. */
#ifndef DML_GPU_TENSOR_ATTENTION_TILES_CUH
#define DML_GPU_TENSOR_ATTENTION_TILES_CUH

#include "gpu/arguments.h"
#include "gpu/tensor_mma.cuh"
#include "gpu/tensor_pack.cuh"

#include <string.h>

enum {
    DML__FLASH_TILE = 64, /* others at a time */
    DML__FLASH_CHUNK = 32 /* scores of a row at a time, in backward */
};

#ifdef DML__TENSOR_WARP

#define DML__FLASH_LOG2E 1.4426950408889634f
#define DML__FLASH_INFINITY __int_as_float(0x7f800000)
#define DML__FLASH_BUFFER(i, type) ((type *)(buffer##i + arguments.offset[i]))

/* What a launch is about, from its numbers. */
typedef struct dml__flash_sizes {
    int samples, queries, keys, heads, group, width; /* group: heads that share one of keys and values */
    int q_step, k_step, v_step, y_step;
    long long lines;
} dml__flash_sizes;

static __device__ __forceinline__ dml__flash_sizes dml__flash_sizes_of(const dml__kernel_arguments &arguments)
{
    dml__flash_sizes s;
    s.samples = arguments.integer[0], s.queries = arguments.integer[1], s.keys = arguments.integer[2];
    s.heads = arguments.integer[3], s.group = s.heads / arguments.integer[4], s.width = arguments.integer[5];
    s.q_step = arguments.integer[6], s.k_step = arguments.integer[7], s.v_step = arguments.integer[8];
    s.y_step = s.heads * s.width;
    s.lines = (long long)s.samples * s.heads * s.queries;
    return s;
}

static __device__ __forceinline__ int dml__flash_length(const float *saved, const dml__flash_sizes &s,
                                                        int sample, int there)
{
    const int length = there ? ((const int *)saved)[2 * s.lines + sample] : s.keys;
    return length < s.keys ? length : s.keys;
}

/* Of query t of one head: the log_sum to the base of 2, or the level. Those that aren't there have no
   probabilities: 2^-infinity is 0. */
static __device__ __forceinline__ float dml__flash_number(const float *sums, long long lines, int which,
                                                          int t, int queries)
{
    if (t >= queries) return which ? 0.0f : DML__FLASH_INFINITY;
    return which ? sums[t + lines] : sums[t] * DML__FLASH_LOG2E;
}

/* The others from `first` to before `end` are what row `row` sees of `limit`, some before and some after it.
 */
static __device__ __forceinline__ int dml__flash_first(int row, int before)
{
    return row > before ? row - before : 0;
}

static __device__ __forceinline__ int dml__flash_end(int row, int after, int limit)
{
    return after < limit - row ? row + after + 1 : limit;
}

/* What `count` rows from `row` on see of others column .. column + columns - 1: 0 nothing, 1 some, 2 all. */
static __device__ __forceinline__ int dml__flash_seen(int row, int count, int column, int columns, int before,
                                                      int after, int rows, int limit)
{
    const int last = row + count - 1, end = column + columns - 1;
    if (row >= rows || column >= limit || column - last > after || row - end > before) return 0;
    return last < rows && end < limit && last - column <= before && end - row <= after ? 2 : 1;
}

/* Some of a matrix on its way: the thread's quads, STRIDE rows apart, of rows `row` and on of x (limit,
   step). WIDTH / 4 threads share a row. */
template <int WIDTH, int STRIDE, int QUADS>
static __device__ __forceinline__ void dml__flash_fetch(float4 (&quad)[QUADS], const float *x, int step,
                                                        int row, int limit, int width)
{
    const int own = (int)threadIdx.x / (WIDTH / 4), column = (int)threadIdx.x % (WIDTH / 4) * 4;
    const int left = column < width ? limit - row - own : 0;
    const float *from = x + (long long)(row + own) * step + column;
    const long long on = (long long)STRIDE * step * (long long)sizeof(float);
#pragma unroll
    for (int i = 0; i < QUADS; i++) quad[i] = dml__tensor_take(&from, on, i * STRIDE < left);
}

/* Stores them rounded, and their signs turned where `signs` are those of a pair. */
template <int type, int WIDTH, int STRIDE, int QUADS>
static __device__ __forceinline__ void dml__flash_store(char *tile, const float4 (&quad)[QUADS],
                                                        uint32_t signs)
{
    const int own = (int)threadIdx.x / (WIDTH / 4), column = (int)threadIdx.x % (WIDTH / 4) * 4;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const int row = own + i * STRIDE;
        *(uint2 *)(tile + row * 2 * WIDTH + (column / 8 ^ row % 8) * 16 + column % 8 * 2) =
            make_uint2(dml__tensor_narrow<type>(quad[i].x, quad[i].y) ^ signs,
                       dml__tensor_narrow<type>(quad[i].z, quad[i].w) ^ signs);
    }
}

/* Where a thread reads 16 rows of a tile for ldmatrix: first both 8 columns of the upper 8 rows, then of the
   others; or first both 8 rows of 8 columns, as a first factor has them, and a second one transposed. In
   bytes from the first row on: 16 columns on are 32 bytes, by an xor, and 16 rows on 32 WIDTH, by a sum. */
template <int WIDTH> static __device__ __forceinline__ uint32_t dml__flash_along(int lane)
{
    return (uint32_t)((lane / 16 * 8 + lane % 8) * 2 * WIDTH + (lane / 8 % 2 ^ lane % 8) * 16);
}

template <int WIDTH> static __device__ __forceinline__ uint32_t dml__flash_across(int lane)
{
    return (uint32_t)(lane % 16 * 2 * WIDTH + (lane / 16 ^ lane % 8) * 16);
}

template <int WIDTH, int BLOCKS>
static __device__ __forceinline__ void dml__flash_clear(float (&mixed)[BLOCKS][WIDTH / 8][4])
{
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j++)
            mixed[i][j][0] = 0.0f, mixed[i][j][1] = 0.0f, mixed[i][j][2] = 0.0f, mixed[i][j][3] = 0.0f;
    }
}

/* 16 columns of a warp's first factor (16 BLOCKS, WIDTH), of which the thread's place is `at`. */
template <int WIDTH, int BLOCKS>
static __device__ __forceinline__ void dml__flash_own(uint32_t (&own)[BLOCKS][4], uint32_t at, int kk)
{
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
        dml__mma_load(own[i], (at ^ (uint32_t)(32 * kk)) + (uint32_t)(i * 32 * WIDTH));
}

/* sum (16 BLOCKS, 8 COLUMNS8) = own (16 BLOCKS, WIDTH) times the transpose of a tile's rows at `at`. Own is
   in registers, or else in shared memory at own_at. */
template <int type, int WIDTH, int BLOCKS, int COLUMNS8>
static __device__ __forceinline__ void dml__flash_scores(float (&sum)[BLOCKS][COLUMNS8][4],
                                                         const uint32_t (&own)[WIDTH / 16][BLOCKS][4],
                                                         bool in_registers, uint32_t own_at, uint32_t at)
{
    dml__flash_clear<8 * COLUMNS8, BLOCKS>(sum);
#pragma unroll
    for (int kk = 0; kk < WIDTH / 16; kk++) {
        uint32_t mine[BLOCKS][4];
        if (in_registers)
            memcpy(mine, own[kk], sizeof mine);
        else
            dml__flash_own<WIDTH, BLOCKS>(mine, own_at, kk);
#pragma unroll
        for (int jj = 0; jj < COLUMNS8 / 2; jj++) {
            uint32_t other[4];
            dml__mma_load(other, (at ^ (uint32_t)(32 * kk)) + (uint32_t)(jj * 32 * WIDTH));
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                dml__mma_multiply<type>(sum[i][2 * jj], mine[i], other[0], other[1]);
                dml__mma_multiply<type>(sum[i][2 * jj + 1], mine[i], other[2], other[3]);
            }
        }
    }
}

/* mixed (16 BLOCKS, WIDTH) += score (16 BLOCKS, 8 COLUMNS8), rounded, times a tile's rows at `at`. */
template <int type, int WIDTH, int BLOCKS, int COLUMNS8>
static __device__ __forceinline__ void dml__flash_mix(float (&mixed)[BLOCKS][WIDTH / 8][4],
                                                      const float (&score)[BLOCKS][COLUMNS8][4], uint32_t at)
{
    uint32_t own[BLOCKS][COLUMNS8 / 2][4];
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int j = 0; j < COLUMNS8; j++) {
            own[i][j / 2][j % 2 * 2] = dml__tensor_narrow<type>(score[i][j][0], score[i][j][1]);
            own[i][j / 2][j % 2 * 2 + 1] = dml__tensor_narrow<type>(score[i][j][2], score[i][j][3]);
        }
    }
#pragma unroll
    for (int kk = 0; kk < COLUMNS8 / 2; kk++) {
#pragma unroll
        for (int jj = 0; jj < WIDTH / 16; jj++) {
            uint32_t other[4];
            dml__mma_load_across(other, (at ^ (uint32_t)(32 * jj)) + (uint32_t)(kk * 32 * WIDTH));
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                dml__mma_multiply<type>(mixed[i][2 * jj], own[i][kk], other[0], other[1]);
                dml__mma_multiply<type>(mixed[i][2 * jj + 1], own[i][kk], other[2], other[3]);
            }
        }
    }
}

/* Minus infinity for the scores of what isn't seen: of others `column` and on by rows `row` and on. */
template <int BLOCKS, int COLUMNS8>
static __device__ __forceinline__ void dml__flash_hide(float (&sum)[BLOCKS][COLUMNS8][4], int row, int column,
                                                       int before, int after, int rows, int limit)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = row + 16 * i + 8 * half + lane / 4;
            const int first = dml__flash_first(at, before);
            const int end = at < rows ? dml__flash_end(at, after, limit) : 0;
#pragma unroll
            for (int j = 0; j < 2 * COLUMNS8; j++) {
                const int other = column + 8 * (j / 2) + lane % 4 * 2 + j % 2;
                if (other < first || other >= end) sum[i][j / 2][2 * half + j % 2] = -DML__FLASH_INFINITY;
            }
        }
    }
}

/* The warp's number, as one that the compiler knows to be the same in all of a warp. */
static __device__ __forceinline__ int dml__flash_warp(void)
{
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
}

/* The largest, or the sum, of a row's four threads. */
static __device__ __forceinline__ float dml__flash_most(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

static __device__ __forceinline__ float dml__flash_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Scores become e^(scale score - the largest so far), and what was summed of a row fades as that grows. */
template <int WIDTH, int BLOCKS>
static __device__ __forceinline__ void
dml__flash_soften(float (&sum)[BLOCKS][DML__FLASH_TILE / 8][4], float (&mixed)[BLOCKS][WIDTH / 8][4],
                  float (&largest)[BLOCKS][2], float (&total)[BLOCKS][2], float factor)
{
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = largest[i][half], added = 0.0f;
#pragma unroll
            for (int j = 0; j < DML__FLASH_TILE / 8; j++)
                most = fmaxf(most, fmaxf(sum[i][j][2 * half], sum[i][j][2 * half + 1]));
            most = dml__flash_most(most);
            const float base = most > -DML__FLASH_INFINITY ? most * factor : 0.0f;
            const float faded = dml__tensor_exp2(largest[i][half] * factor - base);
#pragma unroll
            for (int j = 0; j < DML__FLASH_TILE / 4; j++) {
                float *score = &sum[i][j / 2][2 * half + j % 2];
                *score = dml__tensor_exp2(*score * factor - base);
                added += *score;
            }
            largest[i][half] = most;
            total[i][half] = total[i][half] * faded + added;
#pragma unroll
            for (int j = 0; j < WIDTH / 4; j++) mixed[i][j / 2][2 * half + j % 2] *= faded;
        }
    }
}

/* Rows `row` and on of to (rows, step) = factor mixed + beta to. */
template <int WIDTH, int BLOCKS>
static __device__ __forceinline__ void dml__flash_put(const float (&mixed)[BLOCKS][WIDTH / 8][4], float *to,
                                                      int step, int row, int rows, int width,
                                                      const float (&factor)[BLOCKS][2], float beta)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = row + 16 * i + 8 * half + lane / 4;
            if (at >= rows) continue;
            float *line = to + (long long)at * step + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < WIDTH / 8; j++) {
                float2 value = make_float2(factor[i][half] * mixed[i][j][2 * half],
                                           factor[i][half] * mixed[i][j][2 * half + 1]);
                if (8 * j >= width) continue;
                if (beta != 0.0f) {
                    const float2 old = *(const float2 *)(line + 8 * j);
                    value.x += beta * old.x, value.y += beta * old.y;
                }
                *(float2 *)(line + 8 * j) = value;
            }
        }
    }
}

#endif

#endif
