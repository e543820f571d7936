/* tensor_pack.cuh: rounded copies of factors, laid out for tensor cores (gpu/tensor_common.cuh).

   What is copied is a source: numbers in rows, of which four neighbours are read at once. A matrix is one;
   the patches of a convolution, which are nowhere in memory, are another (gpu/tensor_conv2d.cuh). A source
   has

       prepare()            what a thread finds out before it reads
       whole(rows, columns) whether it has so many, read at once, so that no read needs a bound
       read(row, column)    four numbers, where it is whole
       some(row, column)    the same anywhere, zeros outside. */
#ifndef DML_GPU_TENSOR_PACK_CUH
#define DML_GPU_TENSOR_PACK_CUH

#include "gpu/tensor_common.cuh"

enum { DML__TENSOR_PACK_ITEMS = 256 };

/* Four floats from p on, of which `left` are there; zeros for the others. Four: p is a multiple of 16 bytes.
 */
static __device__ __forceinline__ __attribute__((unused)) float4 dml__tensor_read(const float *p, int left,
                                                                                  bool four)
{
    if (four && left >= 4) return *(const float4 *)p;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (left > 0) x.x = p[0];
    if (left > 1) x.y = p[1];
    if (left > 2) x.z = p[2];
    if (left > 3) x.w = p[3];
    return x;
}

/* (rows, columns), `step` floats from each row to the next. */
struct dml__tensor_matrix {
    const float *x;
    int rows, columns, step;
    bool four; /* each row begins at a multiple of 16 bytes */

    __device__ __forceinline__ void prepare()
    {
    }
    __device__ __forceinline__ bool whole(int some_rows, int some_columns) const
    {
        return four && some_rows <= rows && some_columns <= columns;
    }
    __device__ __forceinline__ float4 read(int row, int column) const
    {
        return *(const float4 *)(x + (size_t)row * (size_t)step + column);
    }
    __device__ __forceinline__ float4 some(int row, int column) const
    {
        return dml__tensor_read(x + (size_t)row * (size_t)step + column, row < rows ? columns - column : 0,
                                four);
    }
};

static inline bool dml__tensor_fours(const float *x, int step)
{
    return (uintptr_t)x % 16 == 0 && step % 4 == 0;
}

static inline dml__tensor_matrix dml__tensor_matrix_of(const float *x, int rows, int columns, int step)
{
    dml__tensor_matrix matrix;
    matrix.x = x, matrix.rows = rows, matrix.columns = columns, matrix.step = step;
    matrix.four = dml__tensor_fours(x, step);
    return matrix;
}

#ifdef DML__TENSOR_WARP

/* 16 bytes of a copy: eight numbers, or the first four where they are of TF32. */
template <int type> static __device__ __forceinline__ uint4 dml__tensor_chunk(float4 low, float4 high)
{
    if (type == DML__TENSOR_TF32)
        return make_uint4(dml__tensor_narrow_tf32(low.x), dml__tensor_narrow_tf32(low.y),
                          dml__tensor_narrow_tf32(low.z), dml__tensor_narrow_tf32(low.w));
    return make_uint4(dml__tensor_narrow<type>(low.x, low.y), dml__tensor_narrow<type>(low.z, low.w),
                      dml__tensor_narrow<type>(high.x, high.y), dml__tensor_narrow<type>(high.z, high.w));
}

/* 4 bytes of it: two neighbours in k, or the first of them. */
template <int type> static __device__ __forceinline__ uint32_t dml__tensor_pair(float even, float odd)
{
    return type == DML__TENSOR_TF32 ? dml__tensor_narrow_tf32(even) : dml__tensor_narrow<type>(even, odd);
}

#endif

/* y (rows padded, words) = source (rows, k). A group copies 128 rows of 64 words: 8 threads write the 128
   bytes of a row. */
template <int type, typename Source>
static __global__ void __launch_bounds__(DML__TENSOR_PACK_ITEMS)
    dml__tensor_pack_rows(const Source source, uint16_t *__restrict__ y, int words)
{
#ifdef DML__TENSOR_WARP
    enum {
        STEPS = 4, /* rows a thread copies, and between them: */
        STEP = DML__TENSOR_PACK_ITEMS / 8,
        EACH = 8 / dml__tensor_words_of(type), /* numbers it copies of a row */
        HIGH = EACH == 8,                      /* those from the fifth on are read */
        KS = 8 * EACH
    };
    const int across = words / DML__TENSOR_WORDS, part = (int)threadIdx.x % 8;
    const int tile = (int)(blockIdx.x % (unsigned)across), column = tile * KS + part * EACH;
    const int row0 = (int)(blockIdx.x / (unsigned)across) * DML__TENSOR_ROWS;
    const int row = row0 + (int)threadIdx.x / 8;
    float4 low[STEPS], high[STEPS];
    Source own = source;
    own.prepare();
    if (own.whole(row0 + DML__TENSOR_ROWS, (tile + 1) * KS)) { /* no branch between the loads */
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            low[i] = own.read(row + i * STEP, column);
            high[i] = HIGH ? own.read(row + i * STEP, column + 4) : low[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            low[i] = own.some(row + i * STEP, column);
            high[i] = HIGH ? own.some(row + i * STEP, column + 4) : low[i];
        }
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        *(uint4 *)(y + (size_t)(row + i * STEP) * (size_t)words + tile * DML__TENSOR_WORDS + 8 * part) =
            dml__tensor_chunk<type>(low[i], high[i]);
#else
    (void)source, (void)y, (void)words;
#endif
}

/* y (rows padded, words) = the transpose of source (k, rows). A group transposes 64 words of 128 rows through
   shared memory, as 128 rows of 32 pairs of words, each two neighbours in k, or one. A warp reads the ks of
   four pairs of 32 rows, a thread four rows of one pair; the eight chunks of four pairs of a row lie in an
   order of its own, so that neither the stores of a warp, a pair for each of 8 rows apart and 4 pairs, nor
   its loads, a chunk each, meet in a bank. */
template <int type, typename Source>
static __global__ void __launch_bounds__(DML__TENSOR_PACK_ITEMS)
    dml__tensor_pack_columns(const Source source, uint16_t *__restrict__ y, int words)
{
#ifdef DML__TENSOR_WARP
    enum { EACH = 2 / dml__tensor_words_of(type), KS = 32 * EACH, ODD = EACH == 2 };
    static __shared__ uint4 chunks[DML__TENSOR_ROWS * 8];
    uint32_t *pairs = (uint32_t *)chunks;
    const int across = words / DML__TENSOR_WORDS, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int tile = (int)(blockIdx.x % (unsigned)across);
    const int row0 = (int)(blockIdx.x / (unsigned)across) * DML__TENSOR_ROWS;
    const int k = tile * KS + EACH * (4 * warp + lane / 8), first = row0 + lane % 8 * 4;
    float4 even[4], odd[4];
    Source own = source;
    own.prepare();
    if (own.whole((tile + 1) * KS, row0 + DML__TENSOR_ROWS)) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            even[i] = own.read(k, first + 32 * i);
            odd[i] = ODD ? own.read(k + 1, first + 32 * i) : even[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            even[i] = own.some(k, first + 32 * i);
            odd[i] = ODD ? own.some(k + 1, first + 32 * i) : even[i];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = 32 * i + lane % 8 * 4; /* row / 4 % 8 is lane % 8 for all four */
        uint32_t *to = pairs + row * 32 + (warp ^ lane % 8) * 4 + lane / 8;
        to[0] = dml__tensor_pair<type>(even[i].x, odd[i].x);
        to[32] = dml__tensor_pair<type>(even[i].y, odd[i].y);
        to[64] = dml__tensor_pair<type>(even[i].z, odd[i].z);
        to[96] = dml__tensor_pair<type>(even[i].w, odd[i].w);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = (int)threadIdx.x / 8 + 32 * i, chunk = (int)threadIdx.x % 8;
        *(uint4 *)(y + (size_t)(row0 + row) * (size_t)words + tile * DML__TENSOR_WORDS + 8 * chunk) =
            chunks[row * 8 + (chunk ^ row / 4 % 8)];
    }
#else
    (void)source, (void)y, (void)words;
#endif
}

/* Where a copy of a source is to lie, and of how many rows and ks. */
typedef struct dml__tensor_copy {
    int type, rows, k;
    uint16_t *to; /* dml__tensor_copy_bytes */
} dml__tensor_copy;

static inline size_t dml__tensor_copy_bytes(int type, int rows, int k)
{
    return (size_t)dml__tensor_padded(rows, DML__TENSOR_ROWS) * (size_t)dml__tensor_words(type, k) *
           sizeof(uint16_t);
}

template <typename Source>
static inline cudaError_t dml__tensor_launch_pack(void (*const (&kernels)[3])(const Source, uint16_t *, int),
                                                  cudaStream_t stream, const dml__tensor_copy &copy,
                                                  Source source)
{
    int words = dml__tensor_words(copy.type, copy.k);
    uint16_t *to = copy.to;
    const size_t groups = (size_t)(dml__tensor_padded(copy.rows, DML__TENSOR_ROWS) / DML__TENSOR_ROWS) *
                          (size_t)(words / DML__TENSOR_WORDS);
    if (groups > INT32_MAX) return cudaErrorInvalidValue;
    void *arguments[] = { &source, &to, &words };
    return cudaLaunchKernel(kernels[copy.type - DML__TENSOR_BF16], dim3((unsigned)groups),
                            dim3(DML__TENSOR_PACK_ITEMS), arguments, 0, stream);
}

/* Makes it, of source (rows, k). */
template <typename Source>
static inline cudaError_t dml__tensor_pack(cudaStream_t stream, const dml__tensor_copy &copy, Source source)
{
    void (*const kernels[3])(const Source, uint16_t *,
                             int) = { dml__tensor_pack_rows<DML__TENSOR_BF16, Source>,
                                      dml__tensor_pack_rows<DML__TENSOR_F16, Source>,
                                      dml__tensor_pack_rows<DML__TENSOR_TF32, Source> };
    return dml__tensor_launch_pack(kernels, stream, copy, source);
}

/* Makes it, of the transpose of source (k, rows). */
template <typename Source>
static inline cudaError_t dml__tensor_pack_transpose(cudaStream_t stream, const dml__tensor_copy &copy,
                                                     Source source)
{
    void (*const kernels[3])(const Source, uint16_t *,
                             int) = { dml__tensor_pack_columns<DML__TENSOR_BF16, Source>,
                                      dml__tensor_pack_columns<DML__TENSOR_F16, Source>,
                                      dml__tensor_pack_columns<DML__TENSOR_TF32, Source> };
    return dml__tensor_launch_pack(kernels, stream, copy, source);
}

#endif
