/* tensor_wgmma.cuh: products of rounded factors by Hopper's warpgroup instructions (PTX ISA, "Asynchronous
   Warpgroup Level Matrix Instructions"), for sm_90a alone.

   A group is a producer and two consumers, of four warps each. One thread of the producer has the copy engine
   bring tiles of A (128 rows, 64 words) and of B (`columns` rows, 64 words) into a ring of stages; a consumer
   multiplies 64 of the rows of A by all of B's and keeps the (64, columns) sums in its registers, of which
   the producer gives it its own. Each stage has two barriers: `full`, which the engine completes when all
   bytes are there, and `empty`, where each consumer warp says that it has read them. Groups stay and take one
   tile of C after the other, so that the next tile's first stages are on their way while C is written.

   Where `cluster` is 2, two groups on neighbouring processors take tiles below each other: each loads its own
   A and half of their B, which the engine writes into the shared memory of both. A stage is empty then when
   the consumers of both groups have read it. */
#ifndef DML_GPU_TENSOR_WGMMA_CUH
#define DML_GPU_TENSOR_WGMMA_CUH

#include "gpu/tensor_common.cuh"

#if CUDART_VERSION >= 12000 && defined(__CUDACC__)
#define DML__WGMMA_INCLUDED
#include <cuda.h> /* types alone: nothing of the driver is linked */

enum {
    DML__WGMMA_ITEMS = 384,                      /* the producer and two consumers */
    DML__WGMMA_ROWS = 128,                       /* of a tile */
    DML__WGMMA_WORDS = 64,                       /* 128 bytes, the widest swizzle */
    DML__WGMMA_MEMORY = 196608,                  /* bytes of all stages together */
    DML__WGMMA_SHARED = DML__WGMMA_MEMORY + 1024 /* what a swizzle is aligned to */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Waits until the barrier's phase of this parity has ended. A fresh barrier's phase "before" has. Where
   DML__TENSOR_SPIN is defined, waiting for more clocks than that is an error of the kernel. */
static __device__ __forceinline__ uint32_t dml__wgmma_try(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred done;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n}\n"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

static __device__ __forceinline__ void dml__wgmma_wait(uint32_t barrier, uint32_t parity)
{
#ifdef DML__TENSOR_SPIN
    if (dml__wgmma_try(barrier, parity)) return;
    const long long begin = clock64();
    while (!dml__wgmma_try(barrier, parity))
        if (clock64() - begin > (long long)(DML__TENSOR_SPIN)) __trap();
#else
    while (!dml__wgmma_try(barrier, parity)) {
    }
#endif
}

static __device__ __forceinline__ void dml__wgmma_barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* The producer's arrival, and how many bytes are to come in this phase. */
static __device__ __forceinline__ void dml__wgmma_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Arrives at the barrier at this place in a group of the cluster. What is read was read by the tensor cores,
   for which has been waited, so nothing has to be fenced for the cluster: that would take long. */
static __device__ __forceinline__ void dml__wgmma_arrive(uint32_t barrier, int group)
{
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
                 "r"(group)
                 : "memory");
}

/* A box of the map, from word `word` of row `row` on, into shared memory of this group, or of both. */
static __device__ __forceinline__ void dml__wgmma_load(uint32_t to, const CUtensorMap *map, int word, int row,
                                                       uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(word), "r"(row), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void dml__wgmma_load_both(uint32_t to, const CUtensorMap *map, int word,
                                                            int row, uint32_t barrier)
{
    const uint16_t groups = 3;
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(word), "r"(row), "r"(barrier), "h"(groups)
                 : "memory");
}

static __device__ __forceinline__ void dml__wgmma_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* A tile in shared memory, rows of 128 swizzled bytes: its address in units of 16 bytes, 1024 bytes from each
   8 rows to the next, the 128-byte swizzle; 16 words further are 2 units on. */
static __device__ __forceinline__ uint64_t dml__wgmma_tile(uint32_t address)
{
    return (uint64_t)((address & 0x3FFFFu) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#define DML__WGMMA_8(d, i)                                                                                   \
    "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]), "+f"((d)[i + 5]),  \
        "+f"((d)[i + 6]), "+f"((d)[i + 7])
#define DML__WGMMA_32(d, i)                                                                                  \
    DML__WGMMA_8(d, i), DML__WGMMA_8(d, i + 8), DML__WGMMA_8(d, i + 16), DML__WGMMA_8(d, i + 24)

#define DML__WGMMA_128_COLUMNS(k, types, order)                                                              \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"                                          \
                 "wgmma.mma_async.sync.aligned.m64n128" k ".f32." types " {"                                 \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                    \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "          \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "          \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"            \
                 "}, %64, %65, adds, 1, 1" order ";\n}\n"                                                    \
                 : DML__WGMMA_32(d, 0), DML__WGMMA_32(d, 32)                                                 \
                 : "l"(a), "l"(b), "r"(adds))
#define DML__WGMMA_256_COLUMNS(k, types, order)                                                              \
    asm volatile(                                                                                            \
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %130, 0;\n"                                                  \
        "wgmma.mma_async.sync.aligned.m64n256" k ".f32." types " {"                                          \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                             \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                   \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                   \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                   \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                   \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                   \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "       \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"     \
        "}, %128, %129, adds, 1, 1" order ";\n}\n"                                                           \
        : DML__WGMMA_32(d, 0), DML__WGMMA_32(d, 32), DML__WGMMA_32(d, 64), DML__WGMMA_32(d, 96)              \
        : "l"(a), "l"(b), "r"(adds))

/* d (64, columns) = a b^T, added to d where `adds` isn't 0, of 16 words of k. Only factors of 16 bits may lie
   the other way round (`order`). */
template <int type>
static __device__ __forceinline__ void dml__wgmma_multiply(float (&d)[64], uint64_t a, uint64_t b, int adds)
{
    if (type == DML__TENSOR_BF16)
        DML__WGMMA_128_COLUMNS("k16", "bf16.bf16", ", 0, 0");
    else if (type == DML__TENSOR_F16)
        DML__WGMMA_128_COLUMNS("k16", "f16.f16", ", 0, 0");
    else
        DML__WGMMA_128_COLUMNS("k8", "tf32.tf32", "");
}

template <int type>
static __device__ __forceinline__ void dml__wgmma_multiply(float (&d)[128], uint64_t a, uint64_t b, int adds)
{
    if (type == DML__TENSOR_BF16)
        DML__WGMMA_256_COLUMNS("k16", "bf16.bf16", ", 0, 0");
    else if (type == DML__TENSOR_F16)
        DML__WGMMA_256_COLUMNS("k16", "f16.f16", ", 0, 0");
    else
        DML__WGMMA_256_COLUMNS("k8", "tf32.tf32", "");
}

template <int count> static __device__ __forceinline__ void dml__wgmma_keep(float (&d)[count])
{
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#endif

/* (Compilers refuse the word for cards before compute capability 7.0, for which the kernel is empty.) */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 700
#define DML__GRID_CONSTANT __grid_constant__
#else
#define DML__GRID_CONSTANT
#endif

/* Tiles of C in the order that the groups of a cluster take them: `cluster` below each other each time. */
template <int type, int columns, int cluster>
static __global__ void __launch_bounds__(DML__WGMMA_ITEMS, 1)
    dml__tensor_wgmma_kernel(const DML__GRID_CONSTANT CUtensorMap a_map,
                             const DML__GRID_CONSTANT CUtensorMap b_map, const dml__tensor_product p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    enum {
        A_BYTES = DML__WGMMA_ROWS * DML__WGMMA_WORDS * 2,
        B_BYTES = columns * DML__WGMMA_WORDS * 2,
        BYTES = A_BYTES + B_BYTES,
        STAGES = DML__WGMMA_MEMORY / BYTES,
        BAND = 16 / cluster
    };
    extern __shared__ char dml__wgmma_memory[];
    static __shared__ uint64_t full_barriers[STAGES], empty_barriers[STAGES];
    const uint32_t stages = (dml__tensor_shared(dml__wgmma_memory) + 1023u) & ~1023u;
    const uint32_t full = dml__tensor_shared(full_barriers), empty = dml__tensor_shared(empty_barriers);
    const int team = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 128, 0), lane = (int)threadIdx.x % 32;
    const int rank = cluster > 1 ? (int)blockIdx.x % cluster : 0;
    const int rows = (p.m + DML__WGMMA_ROWS * cluster - 1) / (DML__WGMMA_ROWS * cluster);
    const int across = (p.n + columns - 1) / columns, steps = p.words / DML__WGMMA_WORDS;
    const int tiles = rows * across, clusters = (int)gridDim.x / cluster;
    int stage = 0;
    uint32_t phase = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            dml__wgmma_barrier_init(full + 8 * i, 1);
            dml__wgmma_barrier_init(empty + 8 * i, 8 * cluster);
        }
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    if (cluster > 1) dml__wgmma_cluster_sync();
    if (team == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            for (int tile = (int)blockIdx.x / cluster; tile < tiles; tile += clusters) {
                const dml__tensor_place place = dml__tensor_place_of(tile, rows, across, BAND);
                const int row = (place.row * cluster + rank) * DML__WGMMA_ROWS;
                const int column = place.column * columns + rank * (columns / cluster);
                for (int step = 0; step < steps; step++) {
                    const uint32_t to = stages + (uint32_t)(stage * BYTES),
                                   ready = full + 8u * (uint32_t)stage;
                    dml__wgmma_wait(empty + 8u * (uint32_t)stage, phase ^ 1u);
                    dml__wgmma_expect(ready, BYTES);
                    dml__wgmma_load(to, &a_map, step * DML__WGMMA_WORDS, row, ready);
                    if (cluster > 1)
                        dml__wgmma_load_both(to + A_BYTES + (uint32_t)(rank * (B_BYTES / cluster)), &b_map,
                                             step * DML__WGMMA_WORDS, column, ready);
                    else
                        dml__wgmma_load(to + A_BYTES, &b_map, step * DML__WGMMA_WORDS, column, ready);
                    if (++stage == STAGES) stage = 0, phase ^= 1u;
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int top = (team - 1) * 64; /* this consumer's first row of the tile */
        float sum[columns / 2];
#pragma unroll
        for (int i = 0; i < columns / 2; i++) sum[i] = 0.0f;
        for (int tile = (int)blockIdx.x / cluster; tile < tiles; tile += clusters) {
            const dml__tensor_place place = dml__tensor_place_of(tile, rows, across, BAND);
            int before = 0; /* the stage that the products under way still read */
            for (int step = 0; step < steps; step++) {
                const uint32_t at = stages + (uint32_t)(stage * BYTES);
                const uint64_t a = dml__wgmma_tile(at + (uint32_t)(top * DML__WGMMA_WORDS * 2));
                const uint64_t b = dml__wgmma_tile(at + A_BYTES);
                dml__wgmma_wait(full + 8u * (uint32_t)stage, phase);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                dml__wgmma_multiply<type>(sum, a, b, step);
                dml__wgmma_multiply<type>(sum, a + 2, b + 2, 1);
                dml__wgmma_multiply<type>(sum, a + 4, b + 4, 1);
                dml__wgmma_multiply<type>(sum, a + 6, b + 6, 1);
                asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::
                                 : "memory");
                if (step > 0 && lane < cluster) dml__wgmma_arrive(empty + 8u * (uint32_t)before, lane);
                before = stage;
                if (++stage == STAGES) stage = 0, phase ^= 1u;
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (lane < cluster) dml__wgmma_arrive(empty + 8u * (uint32_t)before, lane);
            dml__wgmma_keep(sum);
            const int row = (place.row * cluster + rank) * DML__WGMMA_ROWS + top +
                            (int)threadIdx.x % 128 / 32 * 16 + lane / 4;
            const int column = place.column * columns + 2 * (lane % 4);
            dml__tensor_put<columns / 8>(sum, 0, row, column, p);
            dml__tensor_put<columns / 8>(sum, 1, row + 8, column, p);
        }
    }
    if (cluster > 1) dml__wgmma_cluster_sync(); /* the other may still write here, or arrive */
#else
    (void)a_map, (void)b_map, (void)p;
#endif
}

/* ---- on the host ---- */

/* The tiles there are: columns, and groups in a cluster. */
enum { DML__WGMMA_SHAPES = 4 };
typedef struct dml__wgmma_shape {
    int columns, cluster;
} dml__wgmma_shape;

static inline dml__wgmma_shape dml__wgmma_shape_of(int shape)
{
    static const dml__wgmma_shape shapes[DML__WGMMA_SHAPES] = {
        { 256, 2 }, { 256, 1 }, { 128, 2 }, { 128, 1 }
    };
    return shapes[shape];
}

typedef void (*dml__wgmma_kernel)(const CUtensorMap a_map, const CUtensorMap b_map,
                                  const dml__tensor_product p);

static inline dml__wgmma_kernel dml__wgmma_kernel_of(int type, int shape)
{
#define DML__WGMMA_KERNELS(type)                                                                             \
    {                                                                                                        \
        dml__tensor_wgmma_kernel<type, 256, 2>, dml__tensor_wgmma_kernel<type, 256, 1>,                      \
            dml__tensor_wgmma_kernel<type, 128, 2>, dml__tensor_wgmma_kernel<type, 128, 1>                   \
    }
    static const dml__wgmma_kernel kernels[3][DML__WGMMA_SHAPES] = { DML__WGMMA_KERNELS(DML__TENSOR_BF16),
                                                                     DML__WGMMA_KERNELS(DML__TENSOR_F16),
                                                                     DML__WGMMA_KERNELS(DML__TENSOR_TF32) };
#undef DML__WGMMA_KERNELS
    return kernels[type - DML__TENSOR_BF16][shape];
}

typedef CUresult(CUDAAPI *dml__wgmma_encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                             const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                             const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

typedef struct dml__wgmma {
    dml__wgmma_encode encode; /* NULL: there is no such way here */
    int units;                /* processors of the card */
} dml__wgmma;

/* For the current device. */
static inline void dml__wgmma_open(dml__wgmma *wgmma, int major, int minor, int units)
{
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    wgmma->encode = NULL, wgmma->units = units;
    if (major != 9 || minor != 0) return;
    for (int type = DML__TENSOR_BF16; type <= DML__TENSOR_TF32; type++)
        for (int shape = 0; shape < DML__WGMMA_SHAPES; shape++) {
            const dml__wgmma_kernel kernel = dml__wgmma_kernel_of(type, shape);
            if (!dml__tensor_has_body(kernel)) return;
            if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     DML__WGMMA_SHARED) != cudaSuccess) {
                (void)cudaGetLastError();
                return;
            }
        }
#if CUDART_VERSION >= 12050
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess) (void)cudaGetLastError();
    if (error == cudaSuccess && found == cudaDriverEntryPointSuccess)
        wgmma->encode = (dml__wgmma_encode)entry;
}

/* Of a packed factor (rows padded, words), in boxes of `box` rows of 64 words: what they mean, only the
   instruction says. */
static inline cudaError_t dml__wgmma_map(const dml__wgmma *wgmma, CUtensorMap *map, const uint16_t *factor,
                                         int rows, int words, int box)
{
    const cuuint64_t sizes[2] = { (cuuint64_t)words, (cuuint64_t)dml__tensor_padded(rows, DML__TENSOR_ROWS) };
    const cuuint64_t strides[1] = { (cuuint64_t)words * sizeof *factor };
    const cuuint32_t boxes[2] = { DML__WGMMA_WORDS, (cuuint32_t)box }, ones[2] = { 1, 1 };
    const CUresult result =
        wgmma->encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, (void *)factor, sizes, strides, boxes, ones,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* The shape that is thought to take the least time: rounds of tiles, each as long as it has columns, of which
   narrow ones take more for each, and tiles of a cluster that have no rows are paid for too. */
static inline int dml__wgmma_choose(const dml__wgmma *wgmma, int m, int n)
{
    int best = 0;
    double least = 0;
    for (int shape = 0; shape < DML__WGMMA_SHAPES; shape++) {
        const dml__wgmma_shape s = dml__wgmma_shape_of(shape);
        const double rows = (double)(((int64_t)m + 128 * s.cluster - 1) / (128 * s.cluster));
        const double tiles = rows * (double)(((int64_t)n + s.columns - 1) / s.columns);
        const double at_once = (double)(wgmma->units / s.cluster);
        const double rounds = (double)(int64_t)((tiles + at_once - 1) / at_once);
        const double took = rounds * (s.columns == 256 ? 1.0 : 0.6) * (s.cluster == 2 ? 1.0 : 1.05);
        if (shape == 0 || took < least) best = shape, least = took;
    }
    return best;
}

static inline cudaError_t dml__wgmma_run(const dml__wgmma *wgmma, cudaStream_t stream, int shape,
                                         const dml__tensor_product *product)
{
    const dml__wgmma_shape s = dml__wgmma_shape_of(shape);
    CUtensorMap a_map, b_map;
    dml__tensor_product p = *product;
    if (!wgmma->encode) return cudaErrorNotSupported;
    const int64_t tiles = (((int64_t)p.m + DML__WGMMA_ROWS * s.cluster - 1) / (DML__WGMMA_ROWS * s.cluster)) *
                          (((int64_t)p.n + s.columns - 1) / s.columns);
    if (tiles > INT32_MAX / 2) return cudaErrorInvalidValue;
    cudaError_t error = dml__wgmma_map(wgmma, &a_map, p.a, p.m, p.words, DML__WGMMA_ROWS);
    if (error == cudaSuccess) error = dml__wgmma_map(wgmma, &b_map, p.b, p.n, p.words, s.columns / s.cluster);
    if (error != cudaSuccess) return error;
    const int64_t at_once = wgmma->units / s.cluster > 0 ? wgmma->units / s.cluster : 1;
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)((tiles < at_once ? tiles : at_once) * s.cluster));
    config.blockDim = dim3(DML__WGMMA_ITEMS);
    config.dynamicSmemBytes = DML__WGMMA_SHARED;
    config.stream = stream;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = (unsigned)s.cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute, config.numAttrs = s.cluster > 1 ? 1 : 0;
    void *arguments[] = { &a_map, &b_map, &p };
    return cudaLaunchKernelExC(&config, (const void *)dml__wgmma_kernel_of(p.type, shape), arguments);
}

#endif
#endif
