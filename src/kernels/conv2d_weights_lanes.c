#ifndef DML_KERNELS_CONV2D_WEIGHTS_LANES_C
#define DML_KERNELS_CONV2D_WEIGHTS_LANES_C

#include "kernels/conv2d_weights_lanes.h"

#include "base/memory.h"
#include "kernels/conv2d_pass.h"
#include "kernels/isa_vectors.h"
#include "kernels/pack.h"
#include "thread/pool_internal.h"

/* Six filters fill six lanes of eight or sixteen, and so do five taps of a line; pixels of a line fill them
   all. So lanes are pixels, and a tile is the products of a few filters and a few taps, each a vector of sums
   whose lanes are added up at the end of a piece: lines of an image that are copied, x with the padding's
   zeros, dy as a plane for each filter. Pieces are shared out in chunks, whose sums are added up in order;
   they depend on the shape alone. */
#if defined(DML__HAS_AVX2)

#define DML__LANES_FILTERS 6
#define DML__LANES_DY 6144 /* floats of a piece of dy, and of x: together they stay in a first cache */
#define DML__LANES_X 3072
#define DML__LANES_CHUNKS 16
#define DML__LANES_SUMS 384 /* of a chunk */

typedef struct dml__wgrad_lanes {
    const dml__wgrad *job;
    dml_isa isa;
    ptrdiff_t x_w, dy_w;           /* floats of a line that is copied */
    ptrdiff_t lines, of_image;     /* of dy in a piece, pieces of an image */
    ptrdiff_t pieces, chunks, all; /* all: elements of dw */
    float *sums;                   /* (chunks, filters, taps) */
} dml__wgrad_lanes;

static ptrdiff_t dml__lanes_x_lines(const dml__wgrad *j, ptrdiff_t lines)
{
    return (lines - 1) * j->stride_h + (j->taps_h - 1) * j->dilation_h + 1;
}

static dml__wgrad_lanes dml__wgrad_lanes_of(const dml__wgrad *j)
{
    dml__wgrad_lanes plan;
    plan.job = j;
    plan.x_w = j->out_w + (j->taps_w - 1) * j->dilation_w;
    plan.dy_w = dml__round_up(j->out_w, 16);
    plan.lines = dml__smaller(j->out_h, DML__LANES_DY / (DML__LANES_FILTERS * plan.dy_w));
    while (plan.lines > 0 && dml__lanes_x_lines(j, plan.lines) > DML__LANES_X / plan.x_w) plan.lines--;
    plan.of_image = plan.lines ? dml__quotient_up(j->out_h, plan.lines) : 0;
    plan.pieces = j->batch * plan.of_image;
    plan.chunks = dml__smaller(DML__LANES_CHUNKS, plan.pieces);
    plan.all = j->filters * j->taps_h * j->taps_w;
    return plan;
}

/* A piece of x and dy, as it is copied. */
typedef struct dml__lanes_piece {
    ptrdiff_t lines;
    float *dy, *x; /* (DML__LANES_FILTERS, plan's lines, dy_w), at a cache line, and (lines of x, x_w) */
    float room[DML__LANES_DY + DML__LANES_X + 32]; /* what aligns it, and a vector that reads behind a line */
} dml__lanes_piece;

static void dml__lanes_copy(const dml__wgrad_lanes *plan, ptrdiff_t index, dml__lanes_piece *piece)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t n = index / plan->of_image, line0 = index % plan->of_image * plan->lines;
    const ptrdiff_t plane = plan->lines * plan->dy_w, before = dml__smaller(j->pad_w, plan->x_w);
    const ptrdiff_t inside = dml__larger(0, dml__smaller(j->in_w, plan->x_w - before));
    piece->lines = dml__smaller(plan->lines, j->out_h - line0);
    const ptrdiff_t lines = dml__lanes_x_lines(j, piece->lines), y0 = line0 * j->stride_h - j->pad_h;
    for (ptrdiff_t l = 0; l < lines; l++) {
        float *to = piece->x + l * plan->x_w;
        const ptrdiff_t y = y0 + l, there = y >= 0 && y < j->in_h ? inside : 0;
        dml__conv_zero(to, plan->x_w);
        dml__conv_copy(to + before, j->x + (n * j->in_h + (there ? y : 0)) * j->in_w, there);
    }
    const float *dy = j->dy + (n * j->out_h + line0) * j->out_w * j->dy_pixel;
    const ptrdiff_t above =
        j->filters > 4 ? j->filters - 4 : 0; /* four are turned at once: two fours, then */
    for (ptrdiff_t l = 0; l < piece->lines; l++, dy += j->out_w * j->dy_pixel) {
        float *to = piece->dy + l * plan->dy_w;
        dml__pack_fours_transposed(plan->isa, dy, j->dy_pixel, (int)j->out_w,
                                   (int)dml__smaller(4, j->filters), plane, to);
        if (above)
            dml__pack_fours_transposed(plan->isa, dy + above, j->dy_pixel, (int)j->out_w, 4, plane,
                                       to + above * plane);
    }
}

/* The first `rest` lanes of a vector, zeros in the others. */
DML__AVX2 DML__INLINE __m256 dml__lanes_rest_avx2(const float *from, ptrdiff_t rest)
{
    static const int32_t masks[16] = { -1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0 };
    return _mm256_and_ps(_mm256_loadu_ps((const float *)(const void *)(masks + 8 - rest)),
                         _mm256_loadu_ps(from));
}

#if defined(DML__HAS_AVX512)
#define dml__lanes_rest_avx512(from, rest) dml__avx512_load_some(from, (1u << (rest)) - 1)
#endif

/* The products of a vector of pixels with so many taps; `load` leaves out those behind the line: zeros behind
   the others' dy would not do for an infinite x. */
#define DML__LANES_STEP(isa, vector, lanes, load)                                                            \
    {                                                                                                        \
        DML__UNROLL                                                                                          \
        for (int t = 0; t < count; t++) line[t] = load, x[t] += lanes;                                       \
        DML__UNROLL                                                                                          \
        for (int f = 0; f < DML__LANES_FILTERS; f++) {                                                       \
            const vector some = dml__##isa##_load((f < 3 ? dy : below) + f % 3 * plane);                     \
            DML__UNROLL                                                                                      \
            for (int t = 0; t < count; t++) sum[f][t] = dml__##isa##_fma(some, line[t], sum[f][t]);          \
        }                                                                                                    \
        dy += lanes, below += lanes;                                                                         \
    }

#define DML__DEFINE_LANES(isa, target_isa, vector, lanes, most)                                              \
    /* Adds all filters' products with `count` taps to sums (filters, taps). */                              \
    target_isa DML__INLINE void dml__lanes_tile_##isa(const dml__wgrad_lanes *plan,                          \
                                                      const dml__lanes_piece *piece, const ptrdiff_t *taps,  \
                                                      const int count, float *sums)                          \
    {                                                                                                        \
        const dml__wgrad *j = plan->job;                                                                     \
        const ptrdiff_t plane = plan->lines * plan->dy_w, whole = j->out_w / lanes, rest = j->out_w % lanes; \
        /* From behind a line to the next. */                                                                \
        const ptrdiff_t next = j->stride_h * plan->x_w - dml__round_up(j->out_w, lanes);                     \
        const ptrdiff_t next_dy = plan->dy_w - dml__round_up(j->out_w, lanes);                               \
        const float *dy = piece->dy, *below = dy + 3 * plane, *x[most];                                      \
        vector sum[DML__LANES_FILTERS][4], line[most];                                                       \
        DML__UNROLL                                                                                          \
        for (int t = 0; t < count; t++) x[t] = piece->x + taps[t];                                           \
        DML__UNROLL                                                                                          \
        for (int f = 0; f < DML__LANES_FILTERS; f++) {                                                       \
            DML__UNROLL                                                                                      \
            for (int t = 0; t < 4; t++) sum[f][t] = dml__##isa##_splat(0);                                   \
        }                                                                                                    \
        for (ptrdiff_t l = piece->lines; l > 0; l--, dy += next_dy, below += next_dy) {                      \
            for (ptrdiff_t v = whole; v > 0; v--)                                                            \
                DML__LANES_STEP(isa, vector, lanes, dml__##isa##_load(x[t]))                                 \
            if (rest) DML__LANES_STEP(isa, vector, lanes, dml__lanes_rest_##isa(x[t], rest))                 \
            DML__UNROLL                                                                                      \
            for (int t = 0; t < count; t++) x[t] += next;                                                    \
        }                                                                                                    \
        const ptrdiff_t all = j->taps_h * j->taps_w;                                                         \
        DML__UNROLL                                                                                          \
        for (int f = 0; f < DML__LANES_FILTERS; f++) {                                                       \
            float across[4];                                                                                 \
            dml__##isa##_sums(sum[f][0], sum[f][1], sum[f][2], sum[f][3], across);                           \
            for (int t = 0; t < count && f < j->filters; t++) sums[f * all + t] += across[t];                \
        }                                                                                                    \
    }                                                                                                        \
    target_isa static void dml__lanes_most_##isa(                                                            \
        const dml__wgrad_lanes *plan, const dml__lanes_piece *piece, const ptrdiff_t *taps, float *sums)     \
    {                                                                                                        \
        dml__lanes_tile_##isa(plan, piece, taps, most, sums);                                                \
    }                                                                                                        \
    target_isa static void dml__lanes_one_##isa(const dml__wgrad_lanes *plan, const dml__lanes_piece *piece, \
                                                const ptrdiff_t *taps, float *sums)                          \
    {                                                                                                        \
        dml__lanes_tile_##isa(plan, piece, taps, 1, sums);                                                   \
    }                                                                                                        \
    static void dml__lanes_tiles_##isa(const dml__wgrad_lanes *plan, const dml__lanes_piece *piece,          \
                                       const ptrdiff_t *taps, ptrdiff_t count, float *sums)                  \
    {                                                                                                        \
        ptrdiff_t t = 0;                                                                                     \
        for (; t + most <= count; t += most) dml__lanes_most_##isa(plan, piece, taps + t, sums + t);         \
        for (; t < count; t++) dml__lanes_one_##isa(plan, piece, taps + t, sums + t);                        \
    }

DML__DEFINE_LANES(avx2, DML__AVX2, __m256, 8, 2)
#if defined(DML__HAS_AVX512)
DML__DEFINE_LANES(avx512, DML__AVX512, __m512, 16, 4)
#endif

static void dml__lanes_task(void *argument, int task, int worker)
{
    const dml__wgrad_lanes *plan = (const dml__wgrad_lanes *)argument;
    const dml__wgrad *j = plan->job;
    const ptrdiff_t end = (task + 1) * plan->pieces / plan->chunks, count = j->taps_h * j->taps_w;
    float *sums = plan->sums + task * plan->all;
    ptrdiff_t taps[DML__LANES_SUMS];
    dml__lanes_piece piece;
    (void)worker;
    dml__conv_zero(sums, plan->all);
    piece.dy = (float *)dml__align_up((size_t)piece.room);
    piece.x = piece.dy + DML__LANES_DY;
    dml__conv_zero(piece.dy, DML__LANES_DY); /* the filters that there aren't */
    for (ptrdiff_t t = 0; t < count; t++)
        taps[t] = t / j->taps_w * j->dilation_h * plan->x_w + t % j->taps_w * j->dilation_w;
    for (ptrdiff_t p = task * plan->pieces / plan->chunks; p < end; p++) {
        dml__lanes_copy(plan, p, &piece);
#if defined(DML__HAS_AVX512)
        if (plan->isa == DML_ISA_AVX512) {
            dml__lanes_tiles_avx512(plan, &piece, taps, count, sums);
            continue;
        }
#endif
        dml__lanes_tiles_avx2(plan, &piece, taps, count, sums);
    }
}

DML__LOCAL bool dml__wgrad_lanes_fits(dml_pool *pool, const dml__wgrad *job)
{
    const dml_isa isa = dml__pool_machine(pool).isa;
    if ((isa != DML_ISA_AVX512 && isa != DML_ISA_AVX2) || job->batch < 1) return false;
    if (job->channels > 1 || job->x_pixel > 1 || job->stride_w > 1 || job->filters > DML__LANES_FILTERS ||
        job->taps_h * job->taps_w > DML__LANES_SUMS / job->filters || job->out_w > DML__LANES_DY)
        return false;
    return dml__wgrad_lanes_of(job).lines > 0;
}

DML__LOCAL void dml__wgrad_lanes_run(dml_pool *pool, const dml__wgrad *job)
{
    dml__wgrad_lanes plan = dml__wgrad_lanes_of(job);
    float sums[DML__LANES_CHUNKS * DML__LANES_SUMS];
    const double work = (double)job->batch * (double)(job->out_h * job->out_w) * (double)plan.all;
    plan.isa = dml__pool_machine(pool).isa;
    plan.sums = sums;
    dml_pool_run(work < DML__CONV_SERIAL_WORK ? NULL : pool, (int)plan.chunks, dml__lanes_task, &plan);
    for (ptrdiff_t i = 0; i < plan.all; i++) {
        float sum = 0;
        for (ptrdiff_t c = 0; c < plan.chunks; c++) sum += sums[c * plan.all + i];
        job->dw[i] = job->beta == 0 ? sum : job->beta * job->dw[i] + sum;
    }
}

#else

DML__LOCAL bool dml__wgrad_lanes_fits(dml_pool *pool, const dml__wgrad *job)
{
    return (void)pool, (void)job, false;
}

DML__LOCAL void dml__wgrad_lanes_run(dml_pool *pool, const dml__wgrad *job)
{
    (void)pool, (void)job;
}

#endif
#endif
