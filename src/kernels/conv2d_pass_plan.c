#ifndef DML_KERNELS_CONV2D_PASS_PLAN_C
#define DML_KERNELS_CONV2D_PASS_PLAN_C

#include "kernels/conv2d_pass_plan.h"

#include "base/memory.h"
#include "thread/pool_internal.h"

#include <string.h>

#define DML__CONV_BAND_PIXELS 96 /* of a band, no fewer: the weights are read again for each */

DML__LOCAL ptrdiff_t dml__conv_pass_source_lines(const dml__conv_pass *p, ptrdiff_t lines)
{
    return lines < 1 || p->taps_h < 1 ? 0 : (lines - 1) * p->stride_h + (p->taps_h - 1) * p->dilation_h + 1;
}

DML__LOCAL ptrdiff_t dml__conv_pass_band_floats(const dml__conv_pass_plan *plan, ptrdiff_t images,
                                                ptrdiff_t lines)
{
    return images * dml__conv_pass_source_lines(plan->pass, lines) * plan->copy_w * plan->pass->depth;
}

/* What a band keeps in the caches: its copy, or what a chunk meets of its source; and, where that is written
   at once, the target. */
static ptrdiff_t dml__conv_pass_footprint(const dml__conv_pass_plan *plan, ptrdiff_t images, ptrdiff_t lines)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t pixels = images * lines * p->grid_w;
    ptrdiff_t band = dml__conv_pass_band_floats(plan, images, lines);
    if (!plan->copy) band = dml__smaller(band, pixels * dml__smaller(plan->k, DML__CONV_KC));
    return band + (plan->chunks == 1 ? pixels * p->columns : 0);
}

static void dml__conv_pass_plan_bands(dml__conv_pass_plan *plan, int threads)
{
    const dml__conv_pass *p = plan->pass;
    const ptrdiff_t image = dml__conv_pass_footprint(plan, 1, p->grid_h);
    const ptrdiff_t most = plan->copy
                               ? DML__CONV_BAND
                               : (ptrdiff_t)(dml__pool_machine(plan->pool).caches.l2 / (2 * sizeof(float)));
    const double work =
        (double)p->batch * (double)(p->grid_h * p->grid_w) * (double)plan->k * (double)p->columns;
    ptrdiff_t wanted = 1;
    if (threads > 1 && work >= DML__CONV_SERIAL_WORK) {
        const double tasks = work / (DML__CONV_SERIAL_WORK / 2);
        wanted = tasks < 4.0 * threads ? (ptrdiff_t)tasks : 4 * threads;
    }
    plan->images = plan->most_images = 1, plan->lines = p->grid_h;
    if (2 * image <= most) {
        plan->images = plan->most_images = dml__smaller(p->batch, most / dml__larger(1, image));
        /* Pixels that lack the same taps fill tiles only in several images. */
        const ptrdiff_t parts = plan->exact ? dml__smaller(threads, wanted) : wanted;
        plan->images =
            dml__quotient_up(p->batch, dml__round_up(dml__quotient_up(p->batch, plan->images), parts));
    } else {
        while (plan->lines > 1 && plan->lines * p->grid_w >= 2 * DML__CONV_BAND_PIXELS &&
               dml__conv_pass_footprint(plan, 1, plan->lines) > most)
            plan->lines = dml__quotient_up(plan->lines, 2);
    }
    /* Panels are shared out before the lines of an image, whose copies overlap. */
    plan->bands = dml__quotient_up(p->batch, plan->images) * dml__quotient_up(p->grid_h, plan->lines);
    plan->groups =
        plan->bands >= wanted ? 1 : dml__smaller(plan->panels, dml__quotient_up(wanted, plan->bands));
    while (plan->images == 1 && plan->lines > 1 && plan->bands * plan->groups < wanted) {
        plan->lines = dml__quotient_up(plan->lines, 2);
        plan->bands = p->batch * dml__quotient_up(p->grid_h, plan->lines);
    }
}

static dml__conv_pass_taps dml__conv_pass_taps_of(ptrdiff_t first, ptrdiff_t size, ptrdiff_t taps,
                                                  ptrdiff_t dilation)
{
    dml__conv_pass_taps meets;
    meets.t0 = first >= 0 ? 0 : dml__smaller(taps, dml__quotient_up(-first, dilation));
    meets.t1 = first >= size ? 0 : dml__smaller(taps, dml__quotient_up(size - first, dilation));
    meets.t1 = dml__larger(meets.t0, meets.t1);
    return meets;
}

DML__LOCAL dml__conv_pass_taps dml__conv_pass_taps_of_line(const dml__conv_pass *p, ptrdiff_t y)
{
    return dml__conv_pass_taps_of(p->origin_y + y * p->stride_h, p->source_h, p->taps_h, p->dilation_h);
}

DML__LOCAL dml__conv_pass_taps dml__conv_pass_taps_of_column(const dml__conv_pass *p, ptrdiff_t x)
{
    return dml__conv_pass_taps_of(p->origin_x + x * p->stride_w, p->source_w, p->taps_w, p->dilation_w);
}

/* Whether so few pixels along an axis lack some of their taps that tiles of pixels that lack the same are
   hardly smaller. */
static bool dml__conv_pass_lacks_few(ptrdiff_t batch, ptrdiff_t origin, ptrdiff_t end, ptrdiff_t size,
                                     ptrdiff_t stride, ptrdiff_t grid)
{
    const ptrdiff_t lack = dml__quotient_up(dml__larger(0, -origin), stride) +
                           dml__quotient_up(dml__larger(0, end - size), stride);
    return lack * (batch >= DML__CONV_FEW_IMAGES ? 1 : 3) <= grid;
}

DML__LOCAL dml__conv_pass_plan dml__conv_pass_plan_of(dml_pool *pool, const dml__conv_pass *pass, int threads)
{
    dml__conv_pass_plan plan;
    const dml__conv_pass *p = pass;
    const dml__machine machine = dml__pool_machine(pool);
    memset(&plan, 0, sizeof plan);
    plan.pass = pass;
    plan.pool = pool;
    plan.kernel = dml__microkernel_get(machine.isa);
    plan.full = plan.kernel->lanes * plan.kernel->vectors;
    plan.panels = dml__quotient_up(p->columns, plan.full);
    plan.k = p->taps_h * p->taps_w * p->depth;
    const ptrdiff_t end_y = p->origin_y + dml__conv_pass_source_lines(p, p->grid_h);
    plan.copy_w = (p->grid_w - 1) * p->stride_w + (p->taps_w - 1) * p->dilation_w + 1;
    const bool rounds = p->rounds_to != DML_F32;
    plan.copy = plan.k > 0 && (rounds || p->origin_y < 0 || p->origin_x < 0 || end_y > p->source_h ||
                               p->origin_x + plan.copy_w > p->source_w);
    plan.exact =
        plan.copy && !rounds && p->source_pixel == p->depth &&
        dml__conv_pass_lacks_few(p->batch, p->origin_y, end_y, p->source_h, p->stride_h, p->grid_h) &&
        dml__conv_pass_lacks_few(p->batch, p->origin_x, p->origin_x + plan.copy_w, p->source_w, p->stride_w,
                                 p->grid_w);
    const bool side_by_side =
        p->taps_w == 1 || (p->dilation_w == 1 && (plan.copy || p->source_pixel == p->depth));
    plan.run = side_by_side ? p->taps_w * p->depth : p->depth;
    plan.runs = plan.k / (plan.run ? plan.run : 1);
    plan.pieces = 1, plan.chunks = 1;
    if (plan.k == 0) {
        plan.run = 0; /* a phase without taps: one chunk of nothing */
    } else if (plan.run > DML__CONV_KC) {
        plan.pieces = dml__quotient_up(plan.run, DML__CONV_KC);
        plan.chunks = plan.runs * plan.pieces;
    } else {
        plan.chunks = dml__quotient_up(plan.runs, DML__CONV_KC / plan.run);
    }
    plan.spill = plan.panels == 1 && plan.chunks == 1 && p->columns % plan.kernel->lanes &&
                 plan.kernel->least_columns > 1 && p->beta == 0 && p->target_pixel == p->columns &&
                 p->target_line == p->grid_w * p->target_pixel &&
                 p->target_image == p->grid_h * p->target_line;
    /* Pixels that spill are written in order, and lines of few columns are too short to go through alone. */
    plan.exact = plan.exact && !plan.spill;
    plan.copy = plan.copy && !plan.exact;
    plan.clips = plan.k > 0 && !plan.spill && (p->origin_y < 0 || end_y > p->source_h);
    plan.stream =
        plan.chunks == 1 && !plan.spill && p->beta == 0 && (intptr_t)p->target % DML__ALIGNMENT == 0 &&
        (p->columns | p->target_pixel | p->target_line | p->target_image) %
                (DML__ALIGNMENT / (ptrdiff_t)sizeof(float)) ==
            0 &&
        dml__microkernel_streams(machine.isa, machine.caches.l3,
                                 (double)p->batch * (double)(p->grid_h * p->grid_w) * (double)p->columns,
                                 plan.k);
    dml__conv_pass_plan_bands(&plan, threads);
    return plan;
}

DML__LOCAL dml__conv_pass_chunk dml__conv_pass_chunk_at(const dml__conv_pass_plan *plan, ptrdiff_t c)
{
    dml__conv_pass_chunk chunk;
    if (plan->pieces > 1) {
        const ptrdiff_t piece = c % plan->pieces;
        chunk.run0 = c / plan->pieces;
        chunk.runs = 1;
        chunk.offset = piece * plan->run / plan->pieces;
        chunk.length = (int)((piece + 1) * plan->run / plan->pieces - chunk.offset);
    } else {
        chunk.run0 = c * plan->runs / plan->chunks;
        chunk.runs = (int)((c + 1) * plan->runs / plan->chunks - chunk.run0);
        chunk.offset = 0;
        chunk.length = (int)plan->run;
    }
    chunk.k0 = chunk.run0 * plan->run + chunk.offset;
    chunk.k1 = chunk.k0 + (ptrdiff_t)chunk.runs * chunk.length;
    return chunk;
}

DML__LOCAL dml__conv_pass_chunk dml__conv_pass_chunk_of_line(const dml__conv_pass_plan *plan,
                                                             const dml__conv_pass_chunk *chunk,
                                                             ptrdiff_t line)
{
    const dml__conv_pass *p = plan->pass;
    dml__conv_pass_chunk clipped = *chunk;
    if (!plan->clips) return clipped;
    const dml__conv_pass_taps meets = dml__conv_pass_taps_of_line(p, line);
    const ptrdiff_t across = plan->runs / p->taps_h; /* runs of a line of taps */
    ptrdiff_t end = dml__smaller(chunk->run0 + chunk->runs, meets.t1 * across);
    clipped.run0 = dml__larger(chunk->run0, meets.t0 * across);
    if (clipped.run0 >= end) clipped.run0 = end = chunk->run0;
    clipped.runs = (int)(end - clipped.run0);
    clipped.k0 = clipped.run0 * plan->run + clipped.offset;
    clipped.k1 = clipped.k0 + (ptrdiff_t)clipped.runs * clipped.length;
    return clipped;
}

#endif
