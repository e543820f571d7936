/* tensor_pack.cuh: copies of f32 matrices in 16 bits, laid out for tensor cores (gpu/tensor_common.cuh). */
#ifndef DML_GPU_TENSOR_PACK_CUH
#define DML_GPU_TENSOR_PACK_CUH

#include "gpu/tensor_common.cuh"

enum { DML__TENSOR_PACK_ITEMS = 256 };

/* Two floats rounded to nearest, ties to even; `first` is the one at the lower address. */
template <int type> static __device__ __forceinline__ uint32_t dml__tensor_narrow(float first, float second)
{
    uint32_t both = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if (type == DML__TENSOR_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
#else
    (void)first, (void)second;
#endif
    return both;
}

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

/* y (rows padded, k padded) = x (rows, k) with steps ldx between rows. A group copies 128 rows of 64: 8
   threads read the 256 bytes of a row and write 128. */
template <int type>
static __global__ void __launch_bounds__(DML__TENSOR_PACK_ITEMS)
    dml__tensor_pack_rows(const float *__restrict__ x, int rows, int k, int ldx, int four,
                          uint16_t *__restrict__ y, int ldy)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    enum { STEPS = 4, STEP = DML__TENSOR_PACK_ITEMS / 8 }; /* rows a thread copies, and between them */
    const int across = ldy / DML__TENSOR_K;
    const int column = (int)(blockIdx.x % (unsigned)across) * DML__TENSOR_K + (int)threadIdx.x % 8 * 8;
    const int row = (int)(blockIdx.x / (unsigned)across) * DML__TENSOR_ROWS + (int)threadIdx.x / 8;
    float4 low[STEPS], high[STEPS];
    const float *from = x + (size_t)row * (size_t)ldx + column;
    if (four && row - (int)threadIdx.x / 8 + DML__TENSOR_ROWS <= rows &&
        column - (int)threadIdx.x % 8 * 8 + DML__TENSOR_K <= k) { /* all of it: no branch between the loads */
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            low[i] = *(const float4 *)(from + (size_t)(i * STEP) * (size_t)ldx);
            high[i] = *(const float4 *)(from + (size_t)(i * STEP) * (size_t)ldx + 4);
        }
    } else {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int left = row + i * STEP < rows ? k - column : 0;
            low[i] = dml__tensor_read(from + (size_t)(i * STEP) * (size_t)ldx, left, four);
            high[i] = dml__tensor_read(from + (size_t)(i * STEP) * (size_t)ldx + 4, left - 4, four);
        }
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        uint4 out;
        out.x = dml__tensor_narrow<type>(low[i].x, low[i].y);
        out.y = dml__tensor_narrow<type>(low[i].z, low[i].w);
        out.z = dml__tensor_narrow<type>(high[i].x, high[i].y);
        out.w = dml__tensor_narrow<type>(high[i].z, high[i].w);
        *(uint4 *)(y + (size_t)(row + i * STEP) * (size_t)ldy + column) = out;
    }
#else
    (void)x, (void)rows, (void)k, (void)ldx, (void)four, (void)y, (void)ldy;
#endif
}

/* y (rows padded, k padded) = x^T of x (k, rows) with steps ldx between ks. A group transposes 64 ks of 128
   rows through shared memory, as 128 rows of 32 words, each two neighbours in k. A warp reads four pairs of
   ks of 32 rows, a thread four rows of one pair; the eight chunks of four words of a row lie in an order of
   its own, so that neither the stores of a warp, a word for each of 8 rows apart and 4 pairs, nor its loads,
   a chunk each, meet in a bank. */
template <int type>
static __global__ void __launch_bounds__(DML__TENSOR_PACK_ITEMS)
    dml__tensor_pack_columns(const float *__restrict__ x, int rows, int k, int ldx, int four,
                             uint16_t *__restrict__ y, int ldy)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    __shared__ uint4 chunks[DML__TENSOR_ROWS * 8];
    uint32_t *words = (uint32_t *)chunks;
    const int across = ldy / DML__TENSOR_K, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int column0 = (int)(blockIdx.x % (unsigned)across) * DML__TENSOR_K;
    const int row0 = (int)(blockIdx.x / (unsigned)across) * DML__TENSOR_ROWS;
    const int pair = 4 * warp + lane / 8, at = column0 + 2 * pair;
    float4 even[4], odd[4];
    const float *from = x + (size_t)at * (size_t)ldx + row0 + lane % 8 * 4;
    if (four && row0 + DML__TENSOR_ROWS <= rows && column0 + DML__TENSOR_K <= k) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            even[i] = *(const float4 *)(from + 32 * i);
            odd[i] = *(const float4 *)(from + 32 * i + ldx);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int left = rows - (row0 + 32 * i + lane % 8 * 4);
            even[i] = dml__tensor_read(from + 32 * i, at < k ? left : 0, four);
            odd[i] = dml__tensor_read(from + 32 * i + ldx, at + 1 < k ? left : 0, four);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = 32 * i + lane % 8 * 4; /* row / 4 % 8 is lane % 8 for all four */
        uint32_t *to = words + row * 32 + (warp ^ lane % 8) * 4 + lane / 8;
        to[0] = dml__tensor_narrow<type>(even[i].x, odd[i].x);
        to[32] = dml__tensor_narrow<type>(even[i].y, odd[i].y);
        to[64] = dml__tensor_narrow<type>(even[i].z, odd[i].z);
        to[96] = dml__tensor_narrow<type>(even[i].w, odd[i].w);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = (int)threadIdx.x / 8 + 32 * i, chunk = (int)threadIdx.x % 8;
        *(uint4 *)(y + (size_t)(row0 + row) * (size_t)ldy + column0 + 8 * chunk) =
            chunks[row * 8 + (chunk ^ row / 4 % 8)];
    }
#else
    (void)x, (void)rows, (void)k, (void)ldx, (void)four, (void)y, (void)ldy;
#endif
}

/* y (rows padded, k padded) = op(x): x (rows, k), or (k, rows) where it is transposed, ldx between its rows.
 */
static inline cudaError_t dml__tensor_pack(cudaStream_t stream, int type, const float *x, int rows, int k,
                                           int ldx, bool transposed, uint16_t *y)
{
    const int ldy = dml__tensor_padded(k, DML__TENSOR_K);
    const int four = (uintptr_t)x % 16 == 0 && ldx % 4 == 0;
    const size_t groups = (size_t)(dml__tensor_padded(rows, DML__TENSOR_ROWS) / DML__TENSOR_ROWS) *
                          (size_t)(ldy / DML__TENSOR_K);
    if (groups > INT32_MAX) return cudaErrorInvalidValue;
    const unsigned grid = (unsigned)groups;
    if (type == DML__TENSOR_BF16 && transposed)
        dml__tensor_pack_columns<DML__TENSOR_BF16>
            <<<grid, DML__TENSOR_PACK_ITEMS, 0, stream>>>(x, rows, k, ldx, four, y, ldy);
    else if (type == DML__TENSOR_BF16)
        dml__tensor_pack_rows<DML__TENSOR_BF16>
            <<<grid, DML__TENSOR_PACK_ITEMS, 0, stream>>>(x, rows, k, ldx, four, y, ldy);
    else if (transposed)
        dml__tensor_pack_columns<DML__TENSOR_F16>
            <<<grid, DML__TENSOR_PACK_ITEMS, 0, stream>>>(x, rows, k, ldx, four, y, ldy);
    else
        dml__tensor_pack_rows<DML__TENSOR_F16>
            <<<grid, DML__TENSOR_PACK_ITEMS, 0, stream>>>(x, rows, k, ldx, four, y, ldy);
    return cudaGetLastError();
}

#endif
