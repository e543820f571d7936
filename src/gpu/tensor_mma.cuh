/* tensor_mma.cuh: products of rounded factors by the instructions of a warp (mma.sync), for sm_80 and later.

   A group of four warps makes a tile of C (128, 128), each warp (64, 64) of it in registers. Tiles of 32
   words of A and B are copied into a ring of three stages by cp.async, two ahead of the one that is
   multiplied; a row of 64 bytes is four chunks of 16, and two rows make a line of all banks, in which a chunk
   lies at its number xor half the row's: so eight rows of the same chunk, which ldmatrix reads, are in
   different banks.
 */
#ifndef DML_GPU_TENSOR_MMA_CUH
#define DML_GPU_TENSOR_MMA_CUH

#include "gpu/tensor_common.cuh"

enum {
    DML__MMA_ITEMS = 128,
    DML__MMA_SIZE = 128, /* rows and columns of a tile */
    DML__MMA_WORDS = 32,
    DML__MMA_STAGES = 3,
    DML__MMA_BYTES = DML__MMA_SIZE * DML__MMA_WORDS * 2, /* of a factor's tile */
    DML__MMA_BAND = 16
};

#ifdef DML__TENSOR_WARP

/* Where chunk `chunk` of a row lies in a tile, in bytes. */
static __device__ __forceinline__ uint32_t dml__mma_at(int row, int chunk)
{
    return (uint32_t)(row * 64 + (chunk ^ row / 2 % 4) * 16);
}

/* Brings a tile of 128 rows from `from` on, `words` between them: a thread every 32nd row's same chunk. */
static __device__ __forceinline__ void dml__mma_fetch(uint32_t to, const uint16_t *from, int words)
{
    const int row = (int)threadIdx.x / 4, chunk = (int)threadIdx.x % 4;
    from += (size_t)row * (size_t)words + 8 * chunk;
#pragma unroll
    for (int i = 0; i < DML__MMA_SIZE / 32; i++)
        dml__mma_copy(to + dml__mma_at(row + 32 * i, chunk), from + (size_t)(32 * i) * (size_t)words);
}

#endif

template <int type>
static __global__ void __launch_bounds__(DML__MMA_ITEMS, 2)
    dml__tensor_mma_kernel(const dml__tensor_product p)
{
#ifdef DML__TENSOR_WARP
    static __shared__ __align__(128) char memory[DML__MMA_STAGES * 2 * DML__MMA_BYTES];
    const uint32_t stages = dml__tensor_shared(memory);
    const int rows = (p.m + DML__MMA_SIZE - 1) / DML__MMA_SIZE,
              columns = (p.n + DML__MMA_SIZE - 1) / DML__MMA_SIZE;
    const dml__tensor_place place = dml__tensor_place_of((int)blockIdx.x, rows, columns, DML__MMA_BAND);
    const int row0 = place.row * DML__MMA_SIZE, column0 = place.column * DML__MMA_SIZE;
    const int steps = p.words / DML__MMA_WORDS; /* at least two */
    const uint16_t *a = p.a + (size_t)row0 * (size_t)p.words, *b = p.b + (size_t)column0 * (size_t)p.words;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int top = warp / 2 * 64, left = warp % 2 * 64;
    float sum[4][32]; /* of 16 rows each, 8 columns four by four */
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 32; j++) sum[i][j] = 0.0f;
    }
#pragma unroll
    for (int stage = 0; stage < DML__MMA_STAGES - 1; stage++) {
        const uint32_t to = stages + (uint32_t)(stage * 2 * DML__MMA_BYTES);
        dml__mma_fetch(to, a + stage * DML__MMA_WORDS, p.words);
        dml__mma_fetch(to + DML__MMA_BYTES, b + stage * DML__MMA_WORDS, p.words);
        dml__mma_commit();
    }
    int stage = 0, ahead = DML__MMA_STAGES - 1;
    for (int step = 0; step < steps; step++) {
        const uint32_t at = stages + (uint32_t)(stage * 2 * DML__MMA_BYTES);
        dml__mma_wait<DML__MMA_STAGES - 2>();
        __syncthreads(); /* all have this stage's copies, and have read the one that is filled next */
        if (step + DML__MMA_STAGES - 1 < steps) {
            const uint32_t to = stages + (uint32_t)(ahead * 2 * DML__MMA_BYTES);
            dml__mma_fetch(to, a + (step + DML__MMA_STAGES - 1) * DML__MMA_WORDS, p.words);
            dml__mma_fetch(to + DML__MMA_BYTES, b + (step + DML__MMA_STAGES - 1) * DML__MMA_WORDS, p.words);
        }
        dml__mma_commit(); /* an empty one too, so that the count stays right */
#pragma unroll
        for (int kk = 0; kk < DML__MMA_WORDS / 16; kk++) {
            uint32_t own_a[4][4], own_b[4][4];
#pragma unroll
            for (int i = 0; i < 4;
                 i++) /* 16 rows: its upper and lower 8 of the first 8 words, then of the others */
                dml__mma_load(own_a[i], at + dml__mma_at(top + 16 * i + lane % 16, 2 * kk + lane / 16));
#pragma unroll
            for (int j = 0; j < 4; j++) /* 16 columns: both 8 words of the first 8, then of the others */
                dml__mma_load(own_b[j], at + DML__MMA_BYTES +
                                            dml__mma_at(left + 16 * j + lane / 16 * 8 + lane % 8,
                                                        2 * kk + lane / 8 % 2));
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 8; j++)
                    dml__mma_multiply<type>(&sum[i][4 * j], own_a[i], own_b[j / 2][j % 2 * 2],
                                            own_b[j / 2][j % 2 * 2 + 1]);
            }
        }
        if (++stage == DML__MMA_STAGES) stage = 0;
        if (++ahead == DML__MMA_STAGES) ahead = 0;
    }
    const int column = column0 + left + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = row0 + top + 16 * i + lane / 4;
        dml__tensor_put<8>(sum[i], 0, row, column, p);
        dml__tensor_put<8>(sum[i], 1, row + 8, column, p);
    }
#else
    (void)p;
#endif
}

typedef void (*dml__mma_kernel)(const dml__tensor_product p);

static inline dml__mma_kernel dml__mma_kernel_of(int type)
{
    return type == DML__TENSOR_BF16  ? dml__tensor_mma_kernel<DML__TENSOR_BF16>
           : type == DML__TENSOR_F16 ? dml__tensor_mma_kernel<DML__TENSOR_F16>
                                     : dml__tensor_mma_kernel<DML__TENSOR_TF32>;
}

/* Whether the current device can. */
static inline bool dml__mma_has(int major)
{
    bool all = major >= 8;
    for (int type = DML__TENSOR_BF16; type <= DML__TENSOR_TF32; type++)
        all = all && dml__tensor_has_body(dml__mma_kernel_of(type));
    return all;
}

static inline cudaError_t dml__mma_run(cudaStream_t stream, const dml__tensor_product *product)
{
    dml__tensor_product p = *product;
    const int64_t tiles = (((int64_t)p.m + DML__MMA_SIZE - 1) / DML__MMA_SIZE) *
                          (((int64_t)p.n + DML__MMA_SIZE - 1) / DML__MMA_SIZE);
    if (tiles > INT32_MAX) return cudaErrorInvalidValue;
    void *arguments[] = { &p };
    return cudaLaunchKernel(dml__mma_kernel_of(p.type), dim3((unsigned)tiles), dim3(DML__MMA_ITEMS),
                            arguments, 0, stream);
}

#endif
