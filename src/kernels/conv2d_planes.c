#ifndef DML_KERNELS_CONV2D_PLANES_C
#define DML_KERNELS_CONV2D_PLANES_C

#include "kernels/conv2d_planes.h"

#include "kernels/pack.h"
#include "thread/pool_internal.h"

#include <string.h>

/* An image of 6 channels fills three quarters of one vector, and 6 sums of one vector wait for each other. So
   the roles change: the micro-kernel's rows are columns of the pass, whose weights are used where they are,
   its columns are pixels of a line, and its blocks taps; of a single plane lines of taps. For that the
   source's lines are transposed into (depth, pixels), with zeros on both sides; lines above and below the
   image are left out. Short lines of several images lie beside each other, with the zeros between them.
   Results are transposed on their way to the target. Chunks are whole lines of taps. Passes that share a
   source, an input gradient's phases, use the same planes. */
#define DML__PLANES_KC 256
#define DML__PLANES_BAND 65536 /* floats of a band's lines, about, which stay in a level-2 cache */
#define DML__PLANES_BAND_MOST 262144

/* Along an axis: the largest grid, and where in the source the first taps of its pixel 0 lie at the least,
   and the last ones end. */
typedef struct dml__planes_reach {
    ptrdiff_t grid, begin, end;
} dml__planes_reach;

typedef struct dml__planes_plan {
    const dml__conv_pass *passes; /* (count), which differ in origins, grids, taps, weights and targets */
    int count;
    dml_pool *pool;
    const dml__microkernel *kernel;
    dml__planes_reach rows, row; /* of all passes, down and across */
    ptrdiff_t images,
        apart;       /* lines beside each other, of which each begins so many pixels after the one before */
    ptrdiff_t width; /* pixels of a line of a plane */
    ptrdiff_t lines, bands; /* of the grids in a band; bands of an image */
} dml__planes_plan;

static void dml__planes_widen(dml__planes_reach *reach, bool first, ptrdiff_t grid, ptrdiff_t origin,
                              ptrdiff_t taps, ptrdiff_t dilation)
{
    const ptrdiff_t end = origin + dml__larger(0, taps - 1) * dilation + 1;
    reach->grid = first ? grid : dml__larger(reach->grid, grid);
    reach->begin = first ? origin : dml__smaller(reach->begin, origin);
    reach->end = first ? end : dml__larger(reach->end, end);
}

/* Floats that a band of so many lines takes at most. */
static ptrdiff_t dml__planes_floats(const dml__planes_plan *plan, ptrdiff_t lines)
{
    const dml__conv_pass *p = plan->passes;
    const ptrdiff_t of_source = (lines - 1) * p->stride_h + plan->rows.end - plan->rows.begin;
    return dml__smaller(of_source, p->source_h) * p->depth * plan->width;
}

static dml__planes_plan dml__planes_plan_of(dml_pool *pool, const dml__conv_pass *passes, int count,
                                            int threads)
{
    dml__planes_plan plan;
    double work = 0;
    ptrdiff_t bands = 1;
    plan.passes = passes;
    plan.count = count;
    plan.pool = pool;
    plan.kernel = dml__microkernel_get(dml__pool_machine(pool).isa);
    for (int i = 0; i < count; i++) {
        const dml__conv_pass *p = &passes[i];
        dml__planes_widen(&plan.rows, i == 0, p->grid_h, p->origin_y, p->taps_h, p->dilation_h);
        dml__planes_widen(&plan.row, i == 0, p->grid_w, p->origin_x, p->taps_w, p->dilation_w);
        work += (double)p->batch * (double)(p->grid_h * p->grid_w) * (double)p->columns *
                (double)(p->taps_h * p->taps_w * p->depth);
    }
    const ptrdiff_t zeros = plan.row.end - plan.row.begin - 1, batch = passes->batch,
                    full = plan.kernel->lanes * plan.kernel->vectors;
    plan.apart = dml__larger(1, plan.row.grid) + zeros;
    plan.images = dml__larger(1, dml__smaller(batch, (full + zeros) / plan.apart));
    plan.width = dml__round_up(plan.images * plan.apart - zeros, plan.kernel->lanes) + zeros;
    if (threads > 1 && work >= DML__CONV_SERIAL_WORK)
        bands = dml__quotient_up(2 * threads, dml__larger(1, dml__quotient_up(batch, plan.images)));
    plan.lines = plan.rows.grid;
    while (plan.lines > 1 && dml__planes_floats(&plan, plan.lines) > DML__PLANES_BAND)
        plan.lines = dml__quotient_up(plan.lines, 2);
    plan.lines =
        dml__smaller(plan.lines, dml__quotient_up(plan.rows.grid, bands)); /* more never for more threads */
    plan.bands = dml__quotient_up(plan.rows.grid, dml__larger(1, plan.lines));
    plan.lines = dml__quotient_up(plan.rows.grid, dml__larger(1, plan.bands)); /* as many in each */
    return plan;
}

/* Of fewer sums than the processor has under way at once, each step takes as long as of so many. */
static ptrdiff_t dml__planes_tile_cost(ptrdiff_t sums)
{
    return dml__larger(sums, 8);
}

static bool dml__planes_fits(dml_pool *pool, const dml__conv_pass *p)
{
    const dml__planes_plan plan = dml__planes_plan_of(pool, p, 1, 1);
    const dml__microkernel *kernel = plan.kernel;
    const ptrdiff_t full = kernel->lanes * kernel->vectors, run = p->taps_w * p->depth;
    if (p->rounds_to != DML_F32 || p->stride_w != 1 || p->columns > kernel->rows || p->taps_h < 1 ||
        run < 1 || run > DML__PLANES_KC || p->grid_w < 1 || p->grid_h < 1 ||
        dml__planes_floats(&plan, 1) > DML__PLANES_BAND_MOST)
        return false;
    const ptrdiff_t along = dml__quotient_up(p->columns, kernel->lanes);
    const ptrdiff_t pass =
        dml__quotient_up(p->grid_h * p->grid_w, kernel->rows) * dml__planes_tile_cost(kernel->rows * along);
    const ptrdiff_t pixels = plan.width - (plan.apart - p->grid_w);
    const ptrdiff_t rest = pixels % full / kernel->lanes * p->columns;
    const ptrdiff_t line = pixels / full * dml__planes_tile_cost(kernel->vectors * p->columns) +
                           (rest ? dml__planes_tile_cost(rest) : 0);
    return p->grid_h * line / plan.images < pass / 4 * 3; /* transposing is not free */
}

DML__LOCAL int dml__conv_planes_fit(dml_pool *pool, const dml__conv_pass *passes, int count)
{
    int fit = 0;
    while (fit < count && dml__planes_fits(pool, &passes[fit])) fit++;
    for (; fit > 1; fit--) {
        const dml__planes_plan plan = dml__planes_plan_of(pool, passes, fit, 1);
        if (dml__planes_floats(&plan, 1) <= DML__PLANES_BAND_MOST) break;
    }
    return fit;
}

/* The part of a batch that a task computes. */
typedef struct dml__planes_band {
    ptrdiff_t n0, images, y0, y1; /* of a grid that ends before y1, what there is */
    ptrdiff_t line0, line1;       /* of the source */
    const float *planes;          /* (lines, depth, width), from line `line0` on; NULL: no room for them */
} dml__planes_band;

/* A pass' share of it. */
typedef struct dml__planes_work {
    const dml__planes_plan *plan;
    const dml__conv_pass *pass;
    const dml__planes_band *band;
    ptrdiff_t chunks; /* of the lines of taps */
} dml__planes_work;

static void dml__planes_fill(const dml__planes_plan *plan, const dml__planes_band *band, float *planes)
{
    const dml__conv_pass *p = plan->passes;
    const ptrdiff_t lines = band->line1 - band->line0, left = plan->row.begin;
    const ptrdiff_t before = dml__smaller(dml__larger(0, -left), plan->apart);
    const ptrdiff_t end = dml__larger(before, dml__smaller(plan->apart, p->source_w - left));
    dml__conv_zero(planes, lines * p->depth * plan->width);
    if (end == before) return;
    for (ptrdiff_t line = 0; line < lines; line++, planes += p->depth * plan->width)
        for (ptrdiff_t i = 0; i < band->images; i++) {
            const ptrdiff_t of_source = (band->n0 + i) * p->source_h + band->line0 + line;
            const float *from = p->source + (of_source * p->source_w + left + before) * p->source_pixel;
            float *to = planes + i * plan->apart + before;
            if (p->source_pixel == 1)
                dml__conv_copy(to, from, end - before);
            else
                dml__pack_transposed(from, p->source_pixel, (int)(end - before), (int)p->depth,
                                     (int)plan->width, to);
        }
}

/* The same for the taps of lines tap0 .. tap1 - 1 at some pixels of a line, (taps, depth, width). */
static void dml__planes_gather(const dml__planes_work *work, ptrdiff_t y, ptrdiff_t x0, ptrdiff_t tap0,
                               ptrdiff_t tap1, ptrdiff_t width, float *to)
{
    const dml__conv_pass *p = work->pass;
    for (ptrdiff_t tap = tap0 * p->taps_w; tap < tap1 * p->taps_w; tap++) {
        const ptrdiff_t line = p->origin_y + y * p->stride_h + tap / p->taps_w * p->dilation_h;
        const float *from = p->source + (work->band->n0 * p->source_h + line) * p->source_w * p->source_pixel;
        for (ptrdiff_t d = 0; d < p->depth; d++)
            for (ptrdiff_t i = 0; i < width; i++) {
                const ptrdiff_t x = p->origin_x + x0 + i + tap % p->taps_w * p->dilation_w;
                *to++ = x >= 0 && x < p->source_w ? from[x * p->source_pixel + d] : 0;
            }
    }
}

/* Lines of taps before those of a chunk. (Divisions take as long as a line of a small image.) */
static ptrdiff_t dml__planes_chunk(const dml__planes_work *work, ptrdiff_t c)
{
    if (c == 0 || c == work->chunks) return c ? work->pass->taps_h : 0;
    return c * work->pass->taps_h / work->chunks;
}

/* Lines of taps that reach over so many lines of the image. */
static ptrdiff_t dml__planes_taps(const dml__conv_pass *p, ptrdiff_t lines)
{
    return lines <= 0 ? 0 : p->dilation_h == 1 ? lines : dml__quotient_up(lines, p->dilation_h);
}

/* A tile's sums over the lines of taps that line y meets. */
static void dml__planes_tile(const dml__planes_work *work, ptrdiff_t y, ptrdiff_t x0, float *sums,
                             dml__tile *tile, float *gathered)
{
    const dml__planes_plan *plan = work->plan;
    const dml__planes_band *band = work->band;
    const dml__conv_pass *p = work->pass;
    const ptrdiff_t top = p->origin_y + y * p->stride_h, below = p->source_h - top;
    const ptrdiff_t clip0 = dml__planes_taps(p, -top), clip1 = dml__planes_taps(p, below);
    const ptrdiff_t end = clip0 < clip1 && clip0 < p->taps_h ? dml__smaller(clip1, p->taps_h) : 0;
    ptrdiff_t a_at[DML__PLANES_KC], b_at[DML__PLANES_KC];
    tile->a_at = a_at;
    tile->b_at = b_at;
    tile->beta = p->bias ? 1 : p->beta;
    for (int i = 0; i < tile->rows; i++) tile->c[i] = sums + i * tile->columns;
    for (ptrdiff_t c = 0; c < work->chunks; c++) {
        const ptrdiff_t tap0 = dml__larger(dml__planes_chunk(work, c), clip0);
        const ptrdiff_t tap1 = dml__smaller(dml__planes_chunk(work, c + 1), clip1);
        if (tap1 <= tap0 && c > 0) continue;
        tile->blocks = 0;
        for (ptrdiff_t ty = tap0; ty < tap1; ty++)
            for (ptrdiff_t tx = 0; tx < (p->depth == 1 ? 1 : p->taps_w); tx++) {
                const int block = tile->blocks++;
                a_at[block] = ty * p->weights_tap_h + tx * p->weights_tap_w;
                b_at[block] = band->planes
                                  ? (top + ty * p->dilation_h - band->line0) * p->depth * plan->width +
                                        tx * p->dilation_w
                                  : (ptrdiff_t)block * tile->k * tile->columns;
            }
        tile->b = band->planes ? band->planes + x0 + p->origin_x - plan->row.begin : gathered;
        tile->b_step = !band->planes ? tile->columns : p->depth == 1 ? p->dilation_w : plan->width;
        if (!band->planes) dml__planes_gather(work, y, x0, tap0, tap1, tile->columns, gathered);
        tile->relu = p->relu && dml__planes_chunk(work, c + 1) >= end; /* of no taps: chunk 0 is the last */
        plan->kernel->run(tile);
        tile->beta = 1;
    }
}

/* What a tile's sums are added to: bias + beta sums. The micro-kernel's own bias goes along its columns. */
static void dml__planes_begin_with_bias(const dml__conv_pass *p, int width, float *sums)
{
    for (ptrdiff_t j = 0; j < p->columns; j++)
        for (int i = 0; i < width; i++, sums++) *sums = p->bias[j] + (p->beta != 0 ? p->beta * *sums : 0);
}

static void dml__planes_pass_run(const dml__planes_plan *plan, const dml__conv_pass *p,
                                 const dml__planes_band *band, float *gathered)
{
    const ptrdiff_t run = dml__larger(1, p->taps_w * p->depth);
    const dml__planes_work work = { plan, p, band,
                                    dml__quotient_up(p->taps_h, dml__larger(1, DML__PLANES_KC / run)) };
    const ptrdiff_t full = plan->kernel->lanes * plan->kernel->vectors;
    float sums[DML__CONV_ROWS * DML__CONV_COLUMNS]; /* (columns of the pass, pixels) */
    dml__tile tile;
    dml__tile_init(&tile);
    tile.rows = (int)p->columns;
    tile.k = (int)(p->depth == 1 ? p->taps_w : p->depth);
    tile.a_step = p->depth == 1 ? p->weights_tap_w : p->weights_depth;
    for (int i = 0; i < tile.rows; i++) tile.a[i] = p->weights + i * p->weights_column;
    const ptrdiff_t pixels = (band->images - 1) * plan->apart + p->grid_w; /* several images take one tile */
    for (ptrdiff_t y = band->y0; y < dml__smaller(band->y1, p->grid_h); y++)
        for (ptrdiff_t x = 0; x < pixels; x += full) {
            const int count = (int)dml__smaller(full, p->grid_w - x);
            float *to = p->target + band->n0 * p->target_image + y * p->target_line + x * p->target_pixel;
            tile.columns = (int)dml__round_up(dml__smaller(full, pixels - x), plan->kernel->lanes);
            if (p->beta != 0) {
                dml__conv_zero(sums, tile.rows * tile.columns);
                for (ptrdiff_t i = 0; i < band->images; i++)
                    dml__pack_transposed(to + i * p->target_image, p->target_pixel, count, tile.rows,
                                         tile.columns, sums + i * plan->apart);
            }
            if (p->bias) dml__planes_begin_with_bias(p, tile.columns, sums);
            dml__planes_tile(&work, y, x, sums, &tile, gathered);
            for (ptrdiff_t i = 0; i < band->images; i++)
                dml__pack_transposed(sums + i * plan->apart, tile.columns, tile.rows, count,
                                     (int)p->target_pixel, to + i * p->target_image);
        }
}

static void dml__planes_run(const dml__planes_plan *plan, const dml__planes_band *band, float *gathered)
{
    for (int i = 0; i < plan->count; i++) dml__planes_pass_run(plan, &plan->passes[i], band, gathered);
}

DML__NOINLINE static void dml__planes_on_stack(const dml__planes_plan *plan, const dml__planes_band *band)
{
    float gathered[DML__PLANES_KC * DML__CONV_COLUMNS];
    dml__planes_band image = *band;
    image.images = 1;
    for (; image.n0 < band->n0 + band->images; image.n0++) dml__planes_run(plan, &image, gathered);
}

static void dml__planes_task(void *argument, int task, int worker)
{
    const dml__planes_plan *plan = (const dml__planes_plan *)argument;
    const dml__conv_pass *p = plan->passes;
    float *planes = (float *)dml_pool_scratch(plan->pool, worker);
    dml__planes_band band;
    band.n0 = task / plan->bands * plan->images;
    band.images = dml__smaller(plan->images, p->batch - band.n0);
    band.y0 = task % plan->bands * plan->lines;
    band.y1 = dml__smaller(band.y0 + plan->lines, plan->rows.grid);
    band.line0 = dml__larger(0, plan->rows.begin + band.y0 * p->stride_h);
    const ptrdiff_t end = plan->rows.end + (band.y1 - 1) * p->stride_h;
    band.line1 = dml__larger(band.line0, dml__smaller(end, p->source_h));
    const size_t bytes = (size_t)dml__planes_floats(plan, plan->lines) * sizeof(float);
    band.planes = NULL;
    if (!planes || dml_pool_scratch_bytes(plan->pool).worker < bytes) {
        dml__planes_on_stack(plan, &band);
        return;
    }
    dml__planes_fill(plan, &band, planes);
    band.planes = planes;
    dml__planes_run(plan, &band, NULL);
}

DML__LOCAL dml_scratch dml__conv_planes_scratch(const dml__conv_pass *passes, int count)
{
    dml_scratch scratch = { 0, 0 };
    const dml__planes_plan plan = dml__planes_plan_of(NULL, passes, count, 1);
    const ptrdiff_t all = dml__planes_floats(&plan, plan.rows.grid), one = dml__planes_floats(&plan, 1);
    scratch.worker = (size_t)dml__smaller(all, dml__larger(one, DML__PLANES_BAND)) * sizeof(float);
    return scratch;
}

DML__LOCAL void dml__conv_planes_run(dml_pool *pool, const dml__conv_pass *passes, int count)
{
    const dml__planes_plan plan = dml__planes_plan_of(pool, passes, count, dml_pool_threads(pool));
    const ptrdiff_t tasks = dml__quotient_up(passes->batch, plan.images) * plan.bands;
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__planes_task, (void *)&plan);
}

#endif
