/* tensor_pack.cuh: rounded copies of f32 matrices, laid out for tensor cores (gpu/tensor_common.cuh). */
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

/* y (rows padded, words) = x (rows, k) with steps ldx between rows. A group copies 128 rows of 64 words: 8
   threads write the 128 bytes of a row. */
template <int type>
static __global__ void __launch_bounds__(DML__TENSOR_PACK_ITEMS)
    dml__tensor_pack_rows(const float *__restrict__ x, int rows, int k, int ldx, int four,
                          uint16_t *__restrict__ y, int words)
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
    const float *from = x + (size_t)row * (size_t)ldx + column;
    if (four && row0 + DML__TENSOR_ROWS <= rows &&
        (tile + 1) * KS <= k) { /* all of it: no branch between the loads */
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            low[i] = *(const float4 *)(from + (size_t)(i * STEP) * (size_t)ldx);
            high[i] = low[i];
            if (HIGH) high[i] = *(const float4 *)(from + (size_t)(i * STEP) * (size_t)ldx + 4);
        }
    } else {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int left = row + i * STEP < rows ? k - column : 0;
            low[i] = dml__tensor_read(from + (size_t)(i * STEP) * (size_t)ldx, left, four);
            high[i] = low[i];
            if (HIGH) high[i] = dml__tensor_read(from + (size_t)(i * STEP) * (size_t)ldx + 4, left - 4, four);
        }
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        *(uint4 *)(y + (size_t)(row + i * STEP) * (size_t)words + tile * DML__TENSOR_WORDS + 8 * part) =
            dml__tensor_chunk<type>(low[i], high[i]);
#else
    (void)x, (void)rows, (void)k, (void)ldx, (void)four, (void)y, (void)words;
#endif
}

/* y (rows padded, words) = x^T of x (k, rows) with steps ldx between ks. A group transposes 64 words of 128
   rows through shared memory, as 128 rows of 32 pairs of words, each two neighbours in k, or one. A warp
   reads the ks of four pairs of 32 rows, a thread four rows of one pair; the eight chunks of four pairs of a
   row lie in an order of its own, so that neither the stores of a warp, a pair for each of 8 rows apart and 4
   pairs, nor its loads, a chunk each, meet in a bank. */
template <int type>
static __global__ void __launch_bounds__(DML__TENSOR_PACK_ITEMS)
    dml__tensor_pack_columns(const float *__restrict__ x, int rows, int k, int ldx, int four,
                             uint16_t *__restrict__ y, int words)
{
#ifdef DML__TENSOR_WARP
    enum { EACH = 2 / dml__tensor_words_of(type), KS = 32 * EACH, ODD = EACH == 2 };
    static __shared__ uint4 chunks[DML__TENSOR_ROWS * 8];
    uint32_t *pairs = (uint32_t *)chunks;
    const int across = words / DML__TENSOR_WORDS, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int tile = (int)(blockIdx.x % (unsigned)across);
    const int row0 = (int)(blockIdx.x / (unsigned)across) * DML__TENSOR_ROWS;
    const int at = tile * KS + EACH * (4 * warp + lane / 8);
    float4 even[4], odd[4];
    const float *from = x + (size_t)at * (size_t)ldx + row0 + lane % 8 * 4;
    if (four && row0 + DML__TENSOR_ROWS <= rows && (tile + 1) * KS <= k) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            even[i] = *(const float4 *)(from + 32 * i);
            odd[i] = even[i];
            if (ODD) odd[i] = *(const float4 *)(from + 32 * i + ldx);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int left = rows - (row0 + 32 * i + lane % 8 * 4);
            even[i] = dml__tensor_read(from + 32 * i, at < k ? left : 0, four);
            odd[i] = even[i];
            if (ODD) odd[i] = dml__tensor_read(from + 32 * i + ldx, at + 1 < k ? left : 0, four);
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
    (void)x, (void)rows, (void)k, (void)ldx, (void)four, (void)y, (void)words;
#endif
}

typedef void (*dml__tensor_packer)(const float *x, int rows, int k, int ldx, int four, uint16_t *y,
                                   int words);

static inline dml__tensor_packer dml__tensor_packer_of(int type, bool transposed)
{
    static const dml__tensor_packer packers[3][2] = {
        { dml__tensor_pack_rows<DML__TENSOR_BF16>, dml__tensor_pack_columns<DML__TENSOR_BF16> },
        { dml__tensor_pack_rows<DML__TENSOR_F16>, dml__tensor_pack_columns<DML__TENSOR_F16> },
        { dml__tensor_pack_rows<DML__TENSOR_TF32>, dml__tensor_pack_columns<DML__TENSOR_TF32> },
    };
    return packers[type - DML__TENSOR_BF16][transposed];
}

/* y (rows padded, words) = op(x): x (rows, k), or (k, rows) where it is transposed, ldx between its rows. */
static inline cudaError_t dml__tensor_pack(cudaStream_t stream, int type, const float *x, int rows, int k,
                                           int ldx, bool transposed, uint16_t *y)
{
    int words = dml__tensor_words(type, k);
    int four = (uintptr_t)x % 16 == 0 && ldx % 4 == 0;
    const size_t groups = (size_t)(dml__tensor_padded(rows, DML__TENSOR_ROWS) / DML__TENSOR_ROWS) *
                          (size_t)(words / DML__TENSOR_WORDS);
    if (groups > INT32_MAX) return cudaErrorInvalidValue;
    void *arguments[] = { &x, &rows, &k, &ldx, &four, &y, &words };
    return cudaLaunchKernel(dml__tensor_packer_of(type, transposed), dim3((unsigned)groups),
                            dim3(DML__TENSOR_PACK_ITEMS), arguments, 0, stream);
}

#endif
