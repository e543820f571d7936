/* tensor_attention.cuh: attention_forward_team and attention_backward_team of gpu/attention.cl on tensor
   cores, with the same buffers and numbers: factors rounded to bf16 or f16, sums and all else in f32, for
   sm_80 and later and heads of a width that is a multiple of 8, up to 128. Source: Dao, "FlashAttention-2",
   2023, section 3.1.

   A warp has 16 or 32 rows of a group's: of queries, or of keys where the gradient is of keys or values. They
   are its first factor, and the sums that it makes are in its registers. The group goes through the others
   (keys, or queries) in tiles of 64, which are its second factor: read as f32 while the tile before is
   multiplied, rounded, and stored in one of two places of shared memory. A row of WIDTH numbers of 16 bits is
   WIDTH / 8 chunks of 16 bytes, and chunk c of row r lies at c xor r % 8: so eight rows of the same chunk,
   which ldmatrix reads, are in different banks. Scores become the first factor of the second product where
   they are, since an accumulator's pairs lie in the threads that a factor's do.

   Narrower heads are padded with zeros, to a WIDTH of 64 or 128. A negative scale turns the first factor's
   sign, so that the largest score is always that with the largest product. */
#ifndef DML_GPU_TENSOR_ATTENTION_CUH
#define DML_GPU_TENSOR_ATTENTION_CUH

#include "gpu/tensor_attention_tiles.cuh"

/* Groups that a multiprocessor is to have at once, each with as many registers as that leaves. */
#define DML__FLASH_GROUPS(width, blocks, warps) ((width) * (blocks) * (warps) <= 64 * 8 ? 2 : 1)

/* Bytes of shared memory: two stages of a tile of each of two matrices, then of two numbers of each of its
   rows; and the first factor of `rows` rows. */
static inline unsigned dml__flash_bytes(int width, int rows)
{
    return (unsigned)(4 * DML__FLASH_TILE * (2 * width + 4) + rows * 2 * width);
}

/* y = softmax(scale q k^T) v, and log_sums. Blocks of 16 BLOCKS WARPS queries along x, the last first since
   it sees most where later keys aren't seen; samples * heads along y and z. Q_KEPT: q in registers. */
template <int type, int WIDTH, int BLOCKS, int WARPS, bool Q_KEPT>
static __global__ void __launch_bounds__(32 * WARPS, DML__FLASH_GROUPS(WIDTH, BLOCKS, WARPS))
    dml__flash_forward(char *buffer0, char *buffer1, char *buffer2, char *buffer3, char *buffer4,
                       char *buffer5, const dml__kernel_arguments arguments)
{
#ifdef DML__TENSOR_WARP
    enum {
        ROWS = 16 * BLOCKS * WARPS,
        BYTES = DML__FLASH_TILE * 2 * WIDTH,
        STRIDE = 128 * WARPS / WIDTH,
        QUADS = DML__FLASH_TILE / STRIDE
    };
    extern __shared__ __align__(1024) char dml__flash_memory[]; /* two of: keys, values; numbers; q */
    const dml__flash_sizes s = dml__flash_sizes_of(arguments);
    const int line = (int)(blockIdx.z * gridDim.y + blockIdx.y), sample = line / s.heads;
    const int head = line % s.heads, kv_head = head / s.group;
    if (sample >= s.samples) return; /* groups may be more than there is */
    const int lane = (int)threadIdx.x % 32, warp = dml__flash_warp();
    const int before = arguments.integer[9], after = arguments.integer[10];
    const int block = (int)(gridDim.x - 1 - blockIdx.x) * ROWS, row = block + warp * 16 * BLOCKS;
    const float *q =
        DML__FLASH_BUFFER(0, const float) + (long long)sample * s.queries * s.q_step + head * s.width;
    const float *k =
        DML__FLASH_BUFFER(1, const float) + (long long)sample * s.keys * s.k_step + kv_head * s.width;
    const float *v =
        DML__FLASH_BUFFER(2, const float) + (long long)sample * s.keys * s.v_step + kv_head * s.width;
    float *saved = DML__FLASH_BUFFER(3, float);
    float *y = DML__FLASH_BUFFER(4, float) + (long long)sample * s.queries * s.y_step + head * s.width;
    const int length = dml__flash_length(saved, s, sample, arguments.integer[11]);
    const int end = dml__flash_end(block + ROWS - 1, after, length);
    const float scale = fmaxf(fabsf(arguments.real[0]), 1e-30f); /* not 0, or what is hidden would be NaN */
    const float factor = scale * DML__FLASH_LOG2E;
    char *const q_at = dml__flash_memory + 4 * BYTES + 16 * DML__FLASH_TILE;
    const uint32_t along = dml__tensor_shared(dml__flash_memory) + dml__flash_along<WIDTH>(lane);
    const uint32_t across = dml__tensor_shared(dml__flash_memory) + BYTES + dml__flash_across<WIDTH>(lane);
    const uint32_t own_at =
        dml__tensor_shared(q_at) + (uint32_t)(warp * 32 * BLOCKS * WIDTH) + dml__flash_across<WIDTH>(lane);
    uint32_t own[WIDTH / 16][BLOCKS][4];
    float mixed[BLOCKS][WIDTH / 8][4], largest[BLOCKS][2], total[BLOCKS][2]; /* total: the thread's part */
    int column = dml__flash_first(block, before) / DML__FLASH_TILE * DML__FLASH_TILE, stage = 0;
    {
        float4 queries[ROWS / STRIDE], keys[QUADS], values[QUADS];
        const int left = column < end ? length : 0;
        dml__flash_fetch<WIDTH, STRIDE>(queries, q, s.q_step, block, s.queries, s.width);
        dml__flash_fetch<WIDTH, STRIDE>(keys, k, s.k_step, column, left, s.width);
        dml__flash_fetch<WIDTH, STRIDE>(values, v, s.v_step, column, left, s.width);
        dml__flash_store<type, WIDTH, STRIDE>(q_at, queries, arguments.real[0] < 0.0f ? 0x80008000u : 0);
        dml__flash_store<type, WIDTH, STRIDE>(dml__flash_memory, keys, 0);
        dml__flash_store<type, WIDTH, STRIDE>(dml__flash_memory + BYTES, values, 0);
    }
    dml__flash_clear<WIDTH, BLOCKS>(mixed);
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
        largest[i][0] = largest[i][1] = -DML__FLASH_INFINITY, total[i][0] = total[i][1] = 0.0f;
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < WIDTH / 16 && Q_KEPT; kk++) dml__flash_own<WIDTH, BLOCKS>(own[kk], own_at, kk);
    for (; column < end; column += DML__FLASH_TILE, stage ^= 1) {
        const int next = column + DML__FLASH_TILE, left = next < end ? length : 0;
        const uint32_t at = (uint32_t)(stage * 2 * BYTES);
        char *to = dml__flash_memory + (stage ^ 1) * 2 * BYTES;
        const int seen = dml__flash_seen(row, 16 * BLOCKS, column, DML__FLASH_TILE, before, after, s.queries,
                                         length); /* the same in all of a warp */
        float4 coming[QUADS];
        dml__flash_fetch<WIDTH, STRIDE>(coming, k, s.k_step, next, left, s.width);
        if (seen) {
            float sum[BLOCKS][DML__FLASH_TILE / 8][4];
            dml__flash_scores<type, WIDTH, BLOCKS>(sum, own, Q_KEPT, own_at, along + at);
            dml__flash_store<type, WIDTH, STRIDE>(to, coming, 0);
            dml__flash_fetch<WIDTH, STRIDE>(coming, v, s.v_step, next, left, s.width);
            if (seen == 1) dml__flash_hide(sum, row, column, before, after, s.queries, length);
            dml__flash_soften<WIDTH, BLOCKS>(sum, mixed, largest, total, factor);
            dml__flash_mix<type, WIDTH, BLOCKS>(mixed, sum, across + at);
        } else {
            dml__flash_store<type, WIDTH, STRIDE>(to, coming, 0);
            dml__flash_fetch<WIDTH, STRIDE>(coming, v, s.v_step, next, left, s.width);
        }
        dml__flash_store<type, WIDTH, STRIDE>(to + BYTES, coming, 0);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = row + 16 * i + 8 * half + lane / 4;
            const float all = dml__flash_sum(total[i][half]);
            total[i][half] = all == 0.0f ? 0.0f : __fdividef(1.0f, all);
            if (lane % 4 == 0 && t < s.queries)
                saved[(long long)line * s.queries + t] =
                    all == 0.0f ? DML__FLASH_INFINITY : largest[i][half] * scale + logf(all);
        }
    }
    dml__flash_put<WIDTH, BLOCKS>(mixed, y, s.y_step, row, s.queries, s.width, total, 0.0f);
    (void)buffer5;
#else
    (void)buffer0, (void)buffer1, (void)buffer2, (void)buffer3, (void)buffer4, (void)buffer5, (void)arguments;
#endif
}

/* The gradient of q, k or v, as `part` is 0, 1 or 2: += beta x what is there. Rows are queries, or keys, and
   then the scores are those of keys by queries, of all heads that share them. Blocks of 16 BLOCKS WARPS rows
   along x, those that see most first; samples * heads or kv_heads along y and z. Of the first factors that of
   the scores is kept in registers, that of the slopes, dy or v, stays in shared memory. */
template <int type, int part, int WIDTH, int BLOCKS, int WARPS>
static __global__ void __launch_bounds__(32 * WARPS, DML__FLASH_GROUPS(WIDTH, BLOCKS, WARPS))
    dml__flash_backward(char *buffer0, char *buffer1, char *buffer2, char *buffer3, char *buffer4,
                        char *buffer5, const dml__kernel_arguments arguments)
{
#ifdef DML__TENSOR_WARP
    enum {
        ROWS = 16 * BLOCKS * WARPS,
        BYTES = DML__FLASH_TILE * 2 * WIDTH,
        STRIDE = 128 * WARPS / WIDTH,
        QUADS = DML__FLASH_TILE / STRIDE,
        CHUNK8 = DML__FLASH_CHUNK / 8
    };
    constexpr bool OF_KEYS = part > 0;
    static_assert(ROWS <= 2 * DML__FLASH_TILE, "the scores' first factor passes through the second stage");
    /* Two of: q and dy, or k and v; two of: the queries' log_sums and levels; the slopes' first factor. */
    extern __shared__ __align__(1024) char dml__flash_memory[];
    const dml__flash_sizes s = dml__flash_sizes_of(arguments);
    const int own_heads = OF_KEYS ? s.heads / s.group : s.heads;
    const int line = (int)(blockIdx.z * gridDim.y + blockIdx.y), sample = line / own_heads;
    if (sample >= s.samples) return;
    const int head = OF_KEYS ? line % own_heads * s.group : line % own_heads, kv_head = head / s.group;
    const int lane = (int)threadIdx.x % 32, warp = dml__flash_warp();
    const int before = arguments.integer[OF_KEYS ? 10 : 9], after = arguments.integer[OF_KEYS ? 9 : 10];
    const int block = (int)(OF_KEYS ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * ROWS;
    const int row = block + warp * 16 * BLOCKS;
    const float *q =
        DML__FLASH_BUFFER(0, const float) + (long long)sample * s.queries * s.q_step + head * s.width;
    const float *k =
        DML__FLASH_BUFFER(1, const float) + (long long)sample * s.keys * s.k_step + kv_head * s.width;
    const float *v =
        DML__FLASH_BUFFER(2, const float) + (long long)sample * s.keys * s.v_step + kv_head * s.width;
    const float *saved = DML__FLASH_BUFFER(3, const float);
    const float *dy =
        DML__FLASH_BUFFER(4, const float) + (long long)sample * s.queries * s.y_step + head * s.width;
    const float *sums = saved + ((long long)sample * s.heads + head) * s.queries;
    const int length = dml__flash_length(saved, s, sample, arguments.integer[11]);
    const int rows = OF_KEYS ? length : s.queries, limit = OF_KEYS ? s.queries : length;
    const int first = dml__flash_first(block, before) / DML__FLASH_TILE * DML__FLASH_TILE;
    const int end = block < rows ? dml__flash_end(block + ROWS - 1, after, limit) : 0;
    const float scale = fmaxf(fabsf(arguments.real[0]), 1e-30f), factor = scale * DML__FLASH_LOG2E;
    const uint32_t memory = dml__tensor_shared(dml__flash_memory);
    const uint32_t along = memory + dml__flash_along<WIDTH>(lane);
    const uint32_t across = memory + (part == 2 ? BYTES : 0) + dml__flash_across<WIDTH>(lane);
    float *const numbers = (float *)(dml__flash_memory + 4 * BYTES); /* of a stage: log_sums, levels */
    char *const sloper = (char *)(numbers + 4 * DML__FLASH_TILE);
    const uint32_t own_at = (uint32_t)(warp * 32 * BLOCKS * WIDTH) + dml__flash_across<WIDTH>(lane);
    const uint32_t sloper_at = dml__tensor_shared(sloper) + own_at;
    uint32_t scorer[WIDTH / 16][BLOCKS][4];
    float mixed[BLOCKS][WIDTH / 8][4], sum_of[BLOCKS][2], level_of[BLOCKS][2];
    /* The thread's number of a tile of queries: a log_sum, to the base of 2, or a level. */
    const int own = (int)threadIdx.x % DML__FLASH_TILE, which = (int)threadIdx.x / DML__FLASH_TILE;
    const bool own_number = OF_KEYS && which < (part == 1 ? 2 : 1);
    float number = 0.0f;
    if (first < end) {
        float4 scorers[ROWS / STRIDE], slopers[ROWS / STRIDE], ones[QUADS], others[QUADS];
        dml__flash_fetch<WIDTH, STRIDE>(scorers, OF_KEYS ? k : q, OF_KEYS ? s.k_step : s.q_step, block, rows,
                                        s.width);
        if (part < 2)
            dml__flash_fetch<WIDTH, STRIDE>(slopers, OF_KEYS ? v : dy, OF_KEYS ? s.v_step : s.y_step, block,
                                            rows, s.width);
        dml__flash_fetch<WIDTH, STRIDE>(ones, OF_KEYS ? q : k, OF_KEYS ? s.q_step : s.k_step, first, limit,
                                        s.width);
        dml__flash_fetch<WIDTH, STRIDE>(others, OF_KEYS ? dy : v, OF_KEYS ? s.y_step : s.v_step, first, limit,
                                        s.width);
        if (own_number) numbers[threadIdx.x] = dml__flash_number(sums, s.lines, which, first + own, limit);
        dml__flash_store<type, WIDTH, STRIDE>(dml__flash_memory + 2 * BYTES, scorers,
                                              arguments.real[0] < 0.0f ? 0x80008000u : 0);
        if (part < 2) dml__flash_store<type, WIDTH, STRIDE>(sloper, slopers, 0);
        dml__flash_store<type, WIDTH, STRIDE>(dml__flash_memory, ones, 0);
        dml__flash_store<type, WIDTH, STRIDE>(dml__flash_memory + BYTES, others, 0);
    }
    dml__flash_clear<WIDTH, BLOCKS>(mixed);
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
        for (int half = 0; half < 2 && !OF_KEYS; half++) {
            const int t = row + 16 * i + 8 * half + lane / 4;
            sum_of[i][half] = dml__flash_number(sums, s.lines, 0, t, s.queries);
            level_of[i][half] = dml__flash_number(sums, s.lines, 1, t, s.queries);
        }
    }
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < WIDTH / 16; kk++)
        dml__flash_own<WIDTH, BLOCKS>(scorer[kk], memory + 2 * BYTES + own_at, kk);
    __syncthreads();                              /* all have it before its place is filled again */
    int heads = OF_KEYS ? s.group : 1, stage = 0; /* heads: to do, with this one */
    for (int column = first; column < end; stage ^= 1) {
        int next = column + DML__FLASH_TILE;
        if (next >= end && heads > 1) { /* to the next head of those that share these keys */
            next = first, heads--;
            q += s.width, dy += s.width, sums += s.queries;
        }
        const int left = next < end ? limit : 0;
        const uint32_t at = (uint32_t)(stage * 2 * BYTES);
        char *to = dml__flash_memory + (stage ^ 1) * 2 * BYTES;
        float4 coming[QUADS];
        dml__flash_fetch<WIDTH, STRIDE>(coming, OF_KEYS ? q : k, OF_KEYS ? s.q_step : s.k_step, next, left,
                                        s.width);
        if (own_number) number = dml__flash_number(sums, s.lines, which, next + own, left);
#pragma unroll
        for (int chunk = 0; chunk < DML__FLASH_TILE / DML__FLASH_CHUNK; chunk++) {
            const int from = chunk * DML__FLASH_CHUNK;
            const uint32_t skipped = at + (uint32_t)(from * 2 * WIDTH);
            const int seen = dml__flash_seen(row, 16 * BLOCKS, column + from, DML__FLASH_CHUNK, before, after,
                                             rows, limit);
            if (seen) {
                float sum[BLOCKS][CHUNK8][4], slope[BLOCKS][CHUNK8][4];
                dml__flash_scores<type, WIDTH, BLOCKS>(sum, scorer, true, 0, along + skipped);
                if (part < 2)
                    dml__flash_scores<type, WIDTH, BLOCKS>(slope, scorer, false, sloper_at,
                                                           along + BYTES + skipped);
                if (seen == 1) dml__flash_hide(sum, row, column + from, before, after, rows, limit);
#pragma unroll
                for (int j = 0; j < CHUNK8; j++) {
                    const float *two = numbers + stage * 2 * DML__FLASH_TILE + from + 8 * j + lane % 4 * 2;
                    float2 sums_of = make_float2(0.0f, 0.0f), levels_of = make_float2(0.0f, 0.0f);
                    if (OF_KEYS) sums_of = *(const float2 *)two;
                    if (part == 1) levels_of = *(const float2 *)(two + DML__FLASH_TILE);
#pragma unroll
                    for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
                        for (int c = 0; c < 4; c++) {
                            const float of_keys = c % 2 ? sums_of.y : sums_of.x;
                            const float level = c % 2 ? levels_of.y : levels_of.x;
                            sum[i][j][c] = dml__tensor_exp2(sum[i][j][c] * factor -
                                                            (OF_KEYS ? of_keys : sum_of[i][c / 2]));
                            if (part < 2)
                                sum[i][j][c] *= slope[i][j][c] - (OF_KEYS ? level : level_of[i][c / 2]);
                        }
                    }
                }
                dml__flash_mix<type, WIDTH, BLOCKS>(mixed, sum, across + skipped);
            }
            if (chunk == 0) {
                dml__flash_store<type, WIDTH, STRIDE>(to, coming, 0);
                if (own_number) numbers[(stage ^ 1) * 2 * DML__FLASH_TILE + (int)threadIdx.x] = number;
                dml__flash_fetch<WIDTH, STRIDE>(coming, OF_KEYS ? dy : v, OF_KEYS ? s.y_step : s.v_step, next,
                                                left, s.width);
            }
        }
        dml__flash_store<type, WIDTH, STRIDE>(to + BYTES, coming, 0);
        __syncthreads();
        column = next;
    }
    float factors[BLOCKS][2];
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) factors[i][0] = factors[i][1] = part == 2 ? 1.0f : arguments.real[0];
    const int step = part == 0 ? s.q_step : part == 1 ? s.k_step : s.v_step, all = OF_KEYS ? s.keys : rows;
    float *result =
        DML__FLASH_BUFFER(5, float) + (long long)sample * all * step + (OF_KEYS ? kv_head : head) * s.width;
    dml__flash_put<WIDTH, BLOCKS>(mixed, result, step, row, all, s.width, factors, arguments.real[1]);
#else
    (void)buffer0, (void)buffer1, (void)buffer2, (void)buffer3, (void)buffer4, (void)buffer5, (void)arguments;
#endif
}

typedef void (*dml__flash_kernel)(char *, char *, char *, char *, char *, char *,
                                  const dml__kernel_arguments);

/* A launch, but for its arguments: the six buffers and the numbers. */
typedef struct dml__flash_launch {
    dml__flash_kernel kernel;
    dim3 grid;
    unsigned block, shared; /* items; bytes of dynamic shared memory */
} dml__flash_launch;

/* Of forward, or of the gradient of q, k or v (which: 0, or 1, 2 or 3). */
static inline dml__flash_kernel dml__flash_kernel_of(int type, bool wide, int which)
{
#define DML__FLASH_KERNELS(type, kept, ...)                                                                  \
    {                                                                                                        \
        dml__flash_forward<type, __VA_ARGS__, kept>, dml__flash_backward<type, 0, __VA_ARGS__>,              \
            dml__flash_backward<type, 1, __VA_ARGS__>, dml__flash_backward<type, 2, __VA_ARGS__>             \
    }
    static const dml__flash_kernel kernels[2][2][4] = {
        { DML__FLASH_KERNELS(DML__TENSOR_BF16, false, 64, 2, 4),
          DML__FLASH_KERNELS(DML__TENSOR_BF16, true, 128, 1, 8) },
        { DML__FLASH_KERNELS(DML__TENSOR_F16, false, 64, 2, 4),
          DML__FLASH_KERNELS(DML__TENSOR_F16, true, 128, 1, 8) }
    };
#undef DML__FLASH_KERNELS
    return kernels[type == DML__TENSOR_F16][wide][which];
}

/* Whether `count` numbers may be read or written at once, at every row's beginning. */
static inline bool dml__flash_even(const char *buffer, int64_t offset, int step, int count)
{
    return ((uintptr_t)buffer + (uintptr_t)offset) % ((uintptr_t)count * sizeof(float)) == 0 &&
           step % count == 0;
}

/* The launch that does what the shared kernel does with these arguments; cudaErrorNotSupported: none does, as
   of TF32. It queues nothing, but tells the current device of the kernel's shared memory. */
static inline cudaError_t dml__tensor_attention_plan(int type, bool backward, char *const buffers[6],
                                                     const dml__kernel_arguments *arguments,
                                                     dml__flash_launch *launch)
{
    const int32_t *n = arguments->integer;
    const int part = backward ? n[12] : -1, width = n[5];
    const int rows = part > 0 ? n[2] : n[1], step[] = { n[6], n[7], n[8] };
    const int64_t lines = (int64_t)n[0] * (part > 0 ? n[4] : n[3]), most = 65535; /* of a grid's y and z */
    if (width <= 0 || width % 8 || width > 128 || n[1] <= 0 || n[2] <= 0 || lines <= 0 ||
        n[1] > INT32_MAX / 2 || n[2] > INT32_MAX / 2 || lines > INT32_MAX)
        return cudaErrorNotSupported;
    for (int i = 0; i < 6; i++) {
        const int of_row = i < 3 ? step[i] : i == 5 && backward ? step[part] : 4;
        if (i != 3 && (i != 5 || backward) &&
            !dml__flash_even(buffers[i], arguments->offset[i], of_row,
                             i == 5 || (i == 4 && !backward) ? 2 : 4))
            return cudaErrorNotSupported;
    }
    const bool wide = width > 64;
    const int64_t layers = (lines + most - 1) / most;
    launch->kernel = dml__flash_kernel_of(type, wide, part + 1);
    if (!dml__tensor_has_body(launch->kernel)) return cudaErrorNotSupported;
    launch->block = wide ? 256 : 128; /* both of 128 rows */
    launch->grid =
        dim3((unsigned)(rows + 127) / 128, (unsigned)((lines + layers - 1) / layers), (unsigned)layers);
    launch->shared = dml__flash_bytes(wide ? 128 : 64, 128);
    return cudaFuncSetAttribute(launch->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)launch->shared);
}

/* Queues it. */
static inline cudaError_t dml__tensor_attention(cudaStream_t stream, int type, bool backward,
                                                char *const buffers[6],
                                                const dml__kernel_arguments *arguments)
{
    dml__flash_launch launch;
    char *own[6];
    dml__kernel_arguments numbers = *arguments;
    void *all[7];
    const cudaError_t error = dml__tensor_attention_plan(type, backward, buffers, arguments, &launch);
    if (error != cudaSuccess) return error;
    for (int i = 0; i < 6; i++) own[i] = buffers[i], all[i] = &own[i];
    all[6] = &numbers;
    return cudaLaunchKernel(launch.kernel, launch.grid, dim3(launch.block), all, launch.shared, stream);
}

#endif
