/* warp.h: groups of threads that work together, and the instructions of gpu/tensor_warp.cuh, for the fake
   runtime. Each thread of a group has a stack of its own; they take turns, and whoever comes to something
   that all of a warp or of a group do waits there until the last has come. What is copied into shared memory
   in the background is there when it is waited for, and not before. */
#ifndef DML_TESTS_GPU_FAKE_CUDA_WARP_H
#define DML_TESTS_GPU_FAKE_CUDA_WARP_H

#include <deque>
#include <functional>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <ucontext.h>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

#define __global__
#define __host__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

/* As wide as they are aligned, so that the sanitizers look at where they are read. */
struct __align__(8) float2
{
    float x, y;
};
struct __align__(16) float4
{
    float x, y, z, w;
};
struct __align__(8) uint2
{
    uint32_t x, y;
};
struct __align__(16) uint4
{
    uint32_t x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

static inline float2 make_float2(float x, float y)
{
    return { x, y };
}

static inline float4 make_float4(float x, float y, float z, float w)
{
    return { x, y, z, w };
}

static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return { x, y };
}

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return { x, y, z, w };
}

/* ---- a group and its threads ---- */

enum { FAKE_ITEMS = 256, FAKE_WARP = 32, FAKE_STACK = 64 * 1024, FAKE_SHARED = 227 * 1024 };

struct fake_copy {
    uint32_t to;
    const void *from;
};
typedef std::vector<fake_copy> fake_copies;

struct fake_item {
    ucontext_t context;
    bool ended;
    const void *given;           /* what it brings to a meeting */
    fake_copies copies;          /* since the last commit */
    std::deque<fake_copies> way; /* what is on its way */
};

struct fake_meeting {
    const char *what;
    int arrived;
    uint64_t times;
};

static dim3 gridDim, blockIdx, threadIdx;
static char fake_base[1] __align__(4096); /* addresses in shared memory count from here */
char dml__flash_memory[FAKE_SHARED] __align__(4096);
static struct {
    fake_item item[FAKE_ITEMS];
    fake_meeting warp[FAKE_ITEMS / FAKE_WARP], all;
    int items, running;
    uint64_t steps; /* meetings and ends so far: without any, nobody can go on */
    ucontext_t caller;
    std::function<void()> kernel;
} fake_group;

[[noreturn]] static inline void fake_stop(const char *what)
{
    fprintf(stderr, "fake card: block %u, thread %d: %s\n", blockIdx.x, fake_group.running, what);
    abort();
}

static void fake_item_main(void)
{
    fake_group.kernel();
    fake_group.item[fake_group.running].ended = true;
    fake_group.steps++;
}

/* Waits for all `count` of a meeting; the last to come does `work`, for all. */
template <typename F> static void fake_meet(fake_meeting *meeting, int count, const char *what, F work)
{
    fake_item *own = &fake_group.item[fake_group.running];
    const uint64_t times = meeting->times;
    if (meeting->arrived && strcmp(meeting->what, what)) fake_stop("others of its warp are elsewhere");
    meeting->what = what;
    if (++meeting->arrived == count) {
        work();
        meeting->arrived = 0, meeting->times++, fake_group.steps++;
    }
    while (meeting->times == times) swapcontext(&own->context, &fake_group.caller);
}

/* The same of a warp, to which each thread brings something of this type. */
template <typename T, typename F> static void fake_warp_meet(const char *what, const T &given, F work)
{
    const int warp = fake_group.running / FAKE_WARP;
    fake_group.item[fake_group.running].given = &given;
    fake_meet(&fake_group.warp[warp], FAKE_WARP, what, [warp, &work]() {
        const T *all[FAKE_WARP];
        for (int i = 0; i < FAKE_WARP; i++) all[i] = (const T *)fake_group.item[warp * FAKE_WARP + i].given;
        work(all);
    });
}

static void fake_group_run(int items)
{
    static char stacks[FAKE_ITEMS][FAKE_STACK];
    if (items > FAKE_ITEMS || items % FAKE_WARP) fake_stop("a group of this size isn't foreseen");
    fake_group.items = items;
    for (int i = 0; i < items; i++) {
        fake_item *item = &fake_group.item[i];
        getcontext(&item->context);
        item->context.uc_stack.ss_sp = stacks[i];
        item->context.uc_stack.ss_size = FAKE_STACK;
        item->context.uc_link = &fake_group.caller;
        makecontext(&item->context, fake_item_main, 0);
        item->ended = false;
        item->copies.clear(), item->way.clear();
    }
    for (int left = items; left > 0;) {
        const uint64_t steps = fake_group.steps;
        left = 0;
        for (int i = 0; i < items; i++) {
            if (fake_group.item[i].ended) continue;
            fake_group.running = i, threadIdx = dim3((unsigned)i, 0, 0);
            swapcontext(&fake_group.caller, &fake_group.item[i].context);
            left += !fake_group.item[i].ended;
        }
        if (left && fake_group.steps == steps) fake_stop("waits for others that have ended");
    }
}

/* Shared memory is as long as was asked for, and starts as NaNs. */
static void fake_grid_run(dim3 grid, dim3 block, size_t shared, const std::function<void()> &kernel)
{
    fake_group.kernel = kernel;
    gridDim = grid;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = dim3(x, y, z);
                memset(dml__flash_memory, 0xff, sizeof dml__flash_memory);
                ASAN_POISON_MEMORY_REGION(dml__flash_memory + shared, sizeof dml__flash_memory - shared);
                fake_group_run((int)block.x);
                ASAN_UNPOISON_MEMORY_REGION(dml__flash_memory, sizeof dml__flash_memory);
            }
    fake_group.kernel = nullptr;
}

/* A kernel with arguments of its own types, copied as they are when it is launched. */
template <int... I> struct fake_indices {
};
template <int N, int... I> struct fake_count : fake_count<N - 1, N - 1, I...> {
};
template <int... I> struct fake_count<0, I...> {
    typedef fake_indices<I...> type;
};

template <typename... P, int... I>
static std::function<void()> fake_bind(void (*kernel)(P...), void **arguments, fake_indices<I...>)
{
    const std::tuple<typename std::decay<P>::type...> values(
        *(const typename std::decay<P>::type *)arguments[I]...);
    return [kernel, values]() { kernel(std::get<I>(values)...); };
}

/* ---- what a thread does alone ---- */

static inline int __float_as_int(float x)
{
    return (int)dml__host_bits(x);
}

static inline float __int_as_float(int bits)
{
    return dml__host_float((unsigned)bits);
}

static inline float __fdividef(float x, float y)
{
    return x / y;
}

/* ---- gpu/tensor_warp.cuh ---- */

#define DML__TENSOR_WARP

enum { FAKE_BF16 = 1, FAKE_F16 = 2, FAKE_TF32 = 3 };

static inline uint32_t dml__tensor_shared(const void *p)
{
    return (uint32_t)((const char *)p - fake_base);
}

static inline char *fake_shared(uint32_t address)
{
    return fake_base + (int32_t)address;
}

static inline void dml__mma_copy(uint32_t to, const void *from)
{
    if (to % 16 || (uintptr_t)from % 16) fake_stop("16 bytes that aren't aligned are copied");
    fake_group.item[fake_group.running].copies.push_back({ to, from });
}

static inline void dml__mma_commit(void)
{
    fake_item *own = &fake_group.item[fake_group.running];
    own->way.push_back(own->copies);
    own->copies.clear();
}

template <int left> static inline void dml__mma_wait(void)
{
    std::deque<fake_copies> &way = fake_group.item[fake_group.running].way;
    while ((int)way.size() > left) {
        for (const fake_copy &copy : way.front()) memcpy(fake_shared(copy.to), copy.from, 16);
        way.pop_front();
    }
}

static inline float4 dml__tensor_take(const float **p, long long on, bool there)
{
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (there && (uintptr_t)*p % 16) fake_stop("four floats that aren't aligned are read");
    if (there) memcpy(&x, *p, sizeof x);
    *p = (const float *)((uintptr_t)*p + (uintptr_t)on);
    return x;
}

/* The bits of a float in bf16, and in f16 by its value: 1024 to 2047 at its exponent, or fewer of the least.
 */
static inline uint16_t fake_to_bf16(float x)
{
    const uint32_t bits = dml__host_bits(x);
    return (uint16_t)(isnan(x) ? 0x7fff : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static inline uint16_t fake_to_f16(float x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const float size = fabsf(x);
    if (isnan(x)) return 0x7fff;
    if (size >= 65520.0f) return sign | 0x7c00;
    const int exponent = size < 6.103515625e-5f ? -14 : ilogbf(size);
    const int steps = (int)nearbyintf(ldexpf(size, 10 - exponent));
    return (uint16_t)(sign | (steps < 1024 ? steps : (exponent + 15) * 1024 + steps - 1024));
}

static inline float fake_from_f16(uint16_t x)
{
    const int exponent = x >> 10 & 31, steps = x & 1023;
    const float size = exponent == 31  ? (steps ? NAN : INFINITY)
                       : exponent == 0 ? ldexpf((float)steps, -24)
                                       : ldexpf((float)(1024 + steps), exponent - 25);
    return x & 0x8000 ? -size : size;
}

template <int type> static inline uint32_t dml__tensor_narrow(float first, float second)
{
    return type == FAKE_BF16 ? fake_to_bf16(first) | (uint32_t)fake_to_bf16(second) << 16
                             : fake_to_f16(first) | (uint32_t)fake_to_f16(second) << 16;
}

static inline uint32_t dml__tensor_narrow_tf32(float x)
{
    const uint32_t bits = dml__host_bits(x);
    return isfinite(x) ? (bits + 0x1000u) & ~0x1fffu : bits & ~0x1fffu;
}

static inline float dml__tensor_exp2(float x)
{
    const float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.0f : y;
}

template <typename T> static inline T __shfl_sync(unsigned, T x, int lane)
{
    T got = x;
    const std::pair<T *, int> given(&got, lane);
    fake_warp_meet("__shfl_sync", given, [](const std::pair<T *, int> *const *all) {
        T before[FAKE_WARP];
        for (int i = 0; i < FAKE_WARP; i++) before[i] = *all[i]->first;
        for (int i = 0; i < FAKE_WARP; i++) *all[i]->first = before[all[i]->second];
    });
    return got;
}

template <typename T> static inline T __shfl_xor_sync(unsigned all, T x, int mask)
{
    return __shfl_sync(all, x, (int)threadIdx.x % FAKE_WARP ^ mask);
}

static inline void __syncthreads(void)
{
    fake_meet(&fake_group.all, fake_group.items, "__syncthreads", []() {});
}

struct fake_load {
    uint32_t *to, from;
};

/* Matrix i has its 8 rows where lanes 8 i and on say; lane j gets numbers 2 (j % 4) and the next of row j / 4
   of each, or of its column. */
static inline void fake_load_matrices(const char *what, uint32_t (&x)[4], uint32_t from, bool across)
{
    const fake_load given = { x, from };
    if (from % 16) fake_stop("a matrix's row isn't aligned");
    fake_warp_meet(what, given, [across](const fake_load *const *all) {
        for (int i = 0; i < 4; i++) {
            uint16_t m[8][8];
            for (int row = 0; row < 8; row++) memcpy(m[row], fake_shared(all[8 * i + row]->from), 16);
            for (int lane = 0; lane < FAKE_WARP; lane++) {
                const int r = lane / 4, c = lane % 4 * 2;
                all[lane]->to[i] =
                    across ? m[c][r] | (uint32_t)m[c + 1][r] << 16 : m[r][c] | (uint32_t)m[r][c + 1] << 16;
            }
        }
    });
}

static inline void dml__mma_load(uint32_t (&x)[4], uint32_t from)
{
    fake_load_matrices("ldmatrix", x, from, false);
}

static inline void dml__mma_load_across(uint32_t (&x)[4], uint32_t from)
{
    fake_load_matrices("ldmatrix.trans", x, from, true);
}

/* The numbers in a register of a factor: two, or one of TF32, whose other bits count for nothing. */
template <int type> static inline void fake_widen(float *to, uint32_t word)
{
    if (type == FAKE_TF32) {
        to[0] = dml__host_float(word & ~0x1fffu);
    } else {
        to[0] = type == FAKE_BF16 ? dml__host_float(word << 16) : fake_from_f16((uint16_t)word);
        to[1] =
            type == FAKE_BF16 ? dml__host_float(word & 0xffff0000u) : fake_from_f16((uint16_t)(word >> 16));
    }
}

struct fake_factors {
    float *d;
    const uint32_t *a;
    uint32_t b[2];
};

/* PTX ISA, "Matrix Fragments for mma.m16n8k16" and "mma.m16n8k8": lane j has, of rows j / 4 and 8 further on,
   the (j % 4)th word of both halves of k; and of d columns 2 (j % 4) and the next. */
template <int type>
static inline void dml__mma_multiply(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    enum { EACH = type == FAKE_TF32 ? 1 : 2, K = 8 * EACH };
    const fake_factors given = { d, a, { b0, b1 } };
    fake_warp_meet("mma", given, [](const fake_factors *const *all) {
        static float left[16][K], right[8][K];
        for (int lane = 0; lane < FAKE_WARP; lane++) {
            const int row = lane / 4, k = lane % 4 * EACH;
            for (int half = 0; half < 2; half++) {
                fake_widen<type>(&left[row][k + half * K / 2], all[lane]->a[2 * half]);
                fake_widen<type>(&left[row + 8][k + half * K / 2], all[lane]->a[2 * half + 1]);
                fake_widen<type>(&right[row][k + half * K / 2], all[lane]->b[half]);
            }
        }
        for (int lane = 0; lane < FAKE_WARP; lane++)
            for (int i = 0; i < 4; i++) {
                const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
                float sum = all[lane]->d[i];
                for (int k = 0; k < K; k++) sum += left[row][k] * right[column][k];
                all[lane]->d[i] = sum;
            }
    });
}

#endif
