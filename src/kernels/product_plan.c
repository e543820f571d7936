#ifndef DML_KERNELS_PRODUCT_PLAN_C
#define DML_KERNELS_PRODUCT_PLAN_C

#include "kernels/product_plan.h"

/* Panels of B that are no larger than this stay in the first cache all together; and where a tile has fewer
   k's than this, writing C takes longer than reading them. (Rows of C are best written from end to end, so
   that where loads may come from the second cache it is enough that the panels take half of that.) */
#define DML__ACROSS_FLOATS 4096
#define DML__ACROSS_KC 64

/* A whose rows are side by side is used where it is for fewer columns than this; and with more floats than a
   second cache keeps, this many k's at a time. */
#define DML__PACKED_A_COLUMNS 64
#define DML__NEAR_FLOATS 131072
#define DML__LINES_KC 128

/* The same for a micro-kernel that asks between its multiply-adds: floats of a block, and k's at least. */
#define DML__ASKED_LINES_FLOATS 8192
#define DML__LEAST_ASKED_KC 32

/* Of lines of no more floats than this, which are asked for also where they are then packed, for fewer
 * columns. */
#define DML__ASKED_SHORT_LINE 96
#define DML__ASKED_COLUMNS 80

/* The same where loads may come from the second cache: for fewer columns than this, and where the lines take
   little more than a first cache, for fewer than that. */
#define DML__LINES_COLUMNS 144
#define DML__NEAR_LINES_COLUMNS 512
#define DML__NEAR_LINES_FLOATS 16384

/* Rows of A that meet in few sets of the first cache are copied for so many panels of B. */
#define DML__LINES_PANELS 8

/* Rows of A that come from far beyond the second cache, of more of its sizes than this, are asked for ahead
   where no more panels of B go over them: for more, or from nearer, the wait is a small part of the time, and
   asking a larger one. */
#define DML__ASKING_PANELS 8
#define DML__ASKING_SIZE 8

/* Panels of B that stay in the first cache as they lie are packed for more tiles below each other than this:
   packing one takes as long as computing 1.3 tiles. */
#define DML__IN_PLACE_TILES 12

/* A panel of B that few tiles go over need not stay in the first cache: blocks of k are longer. It goes by
   all rows of C and not those of a range, since where blocks begin shows in an element's bits. */
#define DML__FEW_ROWS_KC 512

/* Where loads may come from the second cache, any B is worth packing for more rows than this alone: fewer
   don't repay the copy, wherever B lies. */
#define DML__IN_PLACE_ROWS 240

/* A long B that is read in steps beside an A that is, too, comes from beyond the second cache, where only
   what is read from end to end is asked for in time: it is packed for so many rows, of lines of so many
   floats. */
#define DML__FAR_ROWS 48
#define DML__FAR_LINE 256

/* Whether (rows, columns) is more than so many floats; the sizes may be anything. */
static bool dml__holds_more(ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t floats)
{
    return columns > 0 && rows > floats / columns;
}

/* The share of a vector's lanes that `n` columns fill. */
static bool dml__fills_lanes(ptrdiff_t n, const dml__microkernel *kernel)
{
    return n * 4 > dml__round_up(n, kernel->lanes) * 3;
}

/* Lanes that are masked, or beyond one vector of columns some that are computed twice, cost less than turning
   an A whose lanes aren't side by side; unless masks leave many of them out, and A and its panels stay near.
 */
static bool dml__is_better_transposed(const dml__product *product, const dml__microkernel *kernel)
{
    if (product->n >= product->m || dml__fills_lanes(product->n, kernel)) return false;
    if (product->n < kernel->least_columns || dml__has_lanes(&product->a)) return true;
    const ptrdiff_t full = (ptrdiff_t)kernel->lanes * kernel->vectors;
    return kernel->least_columns == 1 && product->n < kernel->lanes &&
           dml__round_up(product->m, full) - product->m <= product->m / 8 &&
           product->a.pack == dml__pack_matrix && product->k <= DML__ACROSS_FLOATS / full &&
           !dml__holds_more(product->m, product->k, 8 * DML__ACROSS_FLOATS);
}

DML__LOCAL dml__job dml__plan_product(dml__machine machine, const dml__product *product)
{
    dml__job job;
    job.product = *product;
    job.isa = machine.isa;
    job.l1 = (ptrdiff_t)machine.caches.l1;
    job.l2 = (ptrdiff_t)machine.caches.l2;
    job.l3 = machine.caches.l3;
    job.kernel = product->kernel ? product->kernel : dml__microkernel_get(job.isa);
    job.transposed = !product->panels && dml__is_better_transposed(product, job.kernel);
    if (job.transposed) {
        job.product.m = product->n;
        job.product.n = product->m;
        job.product.a = product->b;
        job.product.b = product->a;
    }
    const dml__microkernel *threes = dml__microkernel_threes(job.isa, job.product.n);
    if (threes && !product->kernel && !product->panels) job.kernel = threes;
    job.rows = job.kernel->rows;
    job.full = (ptrdiff_t)job.kernel->lanes * job.kernel->vectors;
    return job;
}

/* Whether lines of A, whose rows are side by side, come from memory to be used where they are: their blocks
   are short, so that one stays near while the next is asked for. (A pixel's channels, summed over pixels.) */
static bool dml__asks_for_lines(const dml__job *job)
{
    const dml__product *product = &job->product;
    const bool short_lines = job->kernel->asks && product->m <= DML__ASKED_SHORT_LINE;
    const ptrdiff_t columns = short_lines ? DML__ASKED_COLUMNS : DML__PACKED_A_COLUMNS;
    return product->n < columns && dml__has_lanes(&product->a) &&
           dml__holds_more(product->m, product->k, DML__NEAR_FLOATS);
}

/* Whether a micro-kernel's vectors are whole lines of a cache: the second cache keeps up with such loads, so
   that factors need not be in the first one. */
static inline bool dml__loads_lines(const dml__job *job)
{
    return (size_t)job->kernel->lanes * sizeof(float) >= DML__ALIGNMENT;
}

/* Whether few rows go over a B whose lines, of two tiles each, follow each other: it is used where it is,
   since packing it takes longer than what that costs, unless both factors come from memory. (A Zen 3: 1.08
   to 1.25 for 16 to 64 rows; of wider lines it gains only where B comes from beyond the second cache.) */
static bool dml__b_is_narrow(const dml__job *job)
{
    const dml__product *product = &job->product;
    return !dml__loads_lines(job) && !dml__asks_for_lines(job) && dml__has_lanes(&product->b) &&
           product->n == 2 * job->full && ((const dml__matrix *)product->b.source)->k_step == product->n &&
           product->m <= DML__IN_PLACE_TILES * job->rows;
}

static ptrdiff_t dml__lines_kc(const dml__job *job)
{
    if (!job->kernel->asks) return DML__LINES_KC;
    return dml__smaller(DML__LINES_KC,
                        dml__larger(DML__LEAST_ASKED_KC, DML__ASKED_LINES_FLOATS / job->product.m));
}

/* The blocks of k: as many as needed, of about the same size, which the micro-kernel unrolls by 4, or fills
   up with zeros. */
static ptrdiff_t dml__k_block(const dml__job *job, ptrdiff_t k)
{
    const bool few_rows = job->product.m <= DML__IN_PLACE_TILES * job->rows;
    const ptrdiff_t tile = DML__PANEL_FLOATS / (job->rows + job->full); /* panels of more have no room */
    const ptrdiff_t most = dml__asks_for_lines(job)             ? dml__lines_kc(job)
                           : few_rows && !dml__b_is_narrow(job) ? dml__smaller(DML__FEW_ROWS_KC, tile)
                                                                : job->kernel->k_block;
    const ptrdiff_t whole = dml__larger(job->kernel->k_multiple, 4);
    return dml__smaller(k, dml__round_up(dml__quotient_up(k, dml__quotient_up(k, most)), whole));
}

/* --- what is packed, and where --- */

/* Whether a first cache of 64 sets of 8 lines holds a vector or two of each of so many lines. */
static bool dml__lines_stay(ptrdiff_t line_step, ptrdiff_t lines)
{
    const ptrdiff_t apart = line_step & -line_step, floats = 4096 / (ptrdiff_t)sizeof(float);
    return !dml__collides(line_step) && lines <= dml__smaller(64, floats / apart) * 8;
}

/* Lines of A, whose rows are side by side, are read by every tile, and packing them takes as long as so many
   columns. */
static ptrdiff_t dml__columns_worth_packing_lines(const dml__job *job, ptrdiff_t k_step, ptrdiff_t rows,
                                                  ptrdiff_t kc)
{
    const bool apart = k_step * (ptrdiff_t)sizeof(float) > 2 * DML__ALIGNMENT;
    if (!dml__loads_lines(job) || (apart && dml__collides(k_step))) return DML__PACKED_A_COLUMNS;
    return dml__holds_more(rows, kc, DML__NEAR_LINES_FLOATS) ? DML__LINES_COLUMNS : DML__NEAR_LINES_COLUMNS;
}

/* Rows of A whose k's are side by side are used where they are, except where few of them fit into a set of
   the first cache together and many panels of B go over them: then they are copied line by line. (A Zen 3,
   1,024 k's: 3 % and more. Turning them takes longer than what they cost: 1.06 to 1.33. Where a vector is a
   whole line the second cache keeps up.) */
static bool dml__lines_meet(const dml__job *job, const dml__matrix *a, ptrdiff_t rows, ptrdiff_t columns,
                            ptrdiff_t kc)
{
    return !dml__loads_lines(job) && dml__collides(2 * a->lane_step) && rows > job->rows &&
           columns >= DML__LINES_PANELS * job->full && kc > DML__ACROSS_KC;
}

/* A factor is packed when it is no matrix; when the micro-kernel wants lines; when its vectors don't lie
   ready; and when its lines are so far apart that a cache can't hold a block of them while it is used again
   and again, if it is used often enough. */
static bool dml__packs_a(const dml__job *job, ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t kc)
{
    if (job->product.a.pack != dml__pack_matrix || job->kernel->k_multiple) return true;
    const dml__matrix *a = (const dml__matrix *)job->product.a.source;
    if (a->k_step == 1) return dml__lines_meet(job, a, rows, columns, kc);
    return columns >= dml__columns_worth_packing_lines(job, a->k_step, rows, kc);
}

/* Whether what is packed of A are its lines of k's, and not panels. */
static bool dml__packs_lines_of_a(const dml__job *job)
{
    const dml__factor *a = &job->product.a;
    return job->kernel->k_multiple ||
           (a->pack == dml__pack_matrix && ((const dml__matrix *)a->source)->k_step == 1);
}

/* For how many rows of C vectors of B are loaded where they lie, from a second cache: for any where a block
   of them stays there and each is a line of it; loads that cross lines take two. */
static ptrdiff_t dml__rows_in_place(const dml__job *job, const dml__matrix *b, ptrdiff_t kc)
{
    const ptrdiff_t bytes = b->k_step * (ptrdiff_t)sizeof(float);
    const bool near = bytes <= job->l2 / kc, crosses = ((intptr_t)b->x | bytes) % DML__ALIGNMENT != 0;
    if (crosses) return near ? DML__IN_PLACE_ROWS : DML__IN_PLACE_TILES * job->rows;
    return near ? PTRDIFF_MAX : DML__IN_PLACE_ROWS;
}

static bool dml__b_is_far(const dml__job *job, const dml__matrix *b, ptrdiff_t rows)
{
    const dml__factor *a = &job->product.a;
    return rows >= DML__FAR_ROWS && b->k_step >= DML__FAR_LINE && a->pack == dml__pack_matrix &&
           ((const dml__matrix *)a->source)->k_step != 1 &&
           dml__holds_more(job->product.k, b->k_step, job->l2 / (ptrdiff_t)sizeof(float));
}

static bool dml__packs_b(const dml__job *job, ptrdiff_t rows, ptrdiff_t kc)
{
    if (!dml__has_lanes(&job->product.b)) return true;
    const dml__matrix *b = (const dml__matrix *)job->product.b.source;
    if (b->k_step == job->full || dml__b_is_narrow(job)) return false; /* it lies as if it were packed */
    if (dml__b_is_far(job, b, rows)) return true;
    if (dml__loads_lines(job) && rows <= dml__rows_in_place(job, b, kc) && !dml__collides(b->k_step))
        return false;
    return rows > (dml__lines_stay(b->k_step, kc) ? DML__IN_PLACE_TILES : 2) * job->rows;
}

/* Whether rows of A come from memory, one right behind the other, and are long enough: short ones follow each
   other so closely that the processor asks for them itself. */
static bool dml__asks_ahead(const dml__job *job, const dml__blocking *blocking, const dml__range *range)
{
    if (!job->kernel->asks || blocking->pack_a) return false;
    const dml__matrix *a = (const dml__matrix *)job->product.a.source;
    return a->k_step == 1 && a->lane_step == blocking->kc && blocking->kc > DML__ACROSS_KC &&
           blocking->kc % 4 == 0 && range->j1 - range->j0 <= DML__ASKING_PANELS * job->full &&
           dml__holds_more(range->i1 - range->i0, blocking->kc,
                           DML__ASKING_SIZE * job->l2 / (ptrdiff_t)sizeof(float));
}

/* So many rows of A that they take half of the second cache, which the rows of C and panels of B pass
 * through. */
static ptrdiff_t dml__rows_at_once(const dml__job *job, ptrdiff_t kc)
{
    const ptrdiff_t rows = job->kernel->tall_rows ? DML__HIGH_ROWS : job->rows;
    const ptrdiff_t fitting = job->l2 / 2 / (kc * (ptrdiff_t)sizeof(float)) / rows;
    return dml__smaller(dml__larger(fitting, 1) * rows, dml__most_rows_at_once(job));
}

DML__LOCAL bool dml__packs_one_panel(const dml__job *job, const dml__blocking *blocking, ptrdiff_t rows)
{
    const ptrdiff_t panel = job->full * blocking->kc * (ptrdiff_t)sizeof(float);
    return panel - panel / 4 <= job->l1 && !blocking->pack_a && job->product.b.pack == dml__pack_matrix &&
           (dml__loads_lines(job) || !dml__has_lanes(&job->product.b)) &&
           !dml__holds_more(rows, blocking->kc, job->l2 / 2 / (ptrdiff_t)sizeof(float));
}

/* Columns of B that are packed at once, at most: they take half of a second cache that loads may come from,
   or more where A is packed anew for each block of B; of lines, more for an A that comes from beyond the
   second cache, half of which B then takes. */
static ptrdiff_t dml__packed_columns(const dml__job *job, const dml__blocking *blocking,
                                     const dml__range *range)
{
    const ptrdiff_t rows = range->i1 - range->i0, columns = range->j1 - range->j0;
    if (!job->kernel->k_multiple) {
        const ptrdiff_t near = job->l2 / 2 / (ptrdiff_t)sizeof(float) / blocking->kc / job->full * job->full;
        if (columns >= 2 * job->full && dml__packs_one_panel(job, blocking, rows)) return job->full;
        if (!dml__loads_lines(job) || blocking->pack_a) return DML__PACK_COLUMNS;
        return dml__smaller(dml__larger(near, job->full), DML__PACK_COLUMNS);
    }
    const bool far = dml__holds_more(rows, range->k1 - range->k0, DML__PACK_FLOATS);
    return DML__PACK_FLOATS / (far ? 1 : 2) / dml__filled_k(job, blocking->kc) / job->full * job->full;
}

static bool dml__streams_c(const dml__job *job, const dml__blocking *blocking, const dml__range *range)
{
    const dml__product *p = &job->product;
    return !job->kernel->k_multiple && !job->transposed && p->beta == 0 &&
           blocking->kc >= range->k1 - range->k0 &&
           (p->n | p->ldc) % (DML__ALIGNMENT / (int)sizeof(float)) == 0 &&
           (intptr_t)p->c % DML__ALIGNMENT == 0 &&
           dml__microkernel_streams(job->isa, job->l3, (double)p->m * (double)p->n, p->k);
}

DML__LOCAL dml__blocking dml__plan_blocking(const dml__job *job, const dml__range *range)
{
    dml__blocking blocking;
    const ptrdiff_t rows = range->i1 - range->i0, columns = range->j1 - range->j0;
    const ptrdiff_t near = job->l2 / 2 / (ptrdiff_t)sizeof(float);
    blocking.kc = dml__k_block(job, range->k1 - range->k0);
    blocking.pack_a = dml__packs_a(job, rows, columns, blocking.kc);
    blocking.pack_b = job->product.panels || dml__packs_b(job, rows, blocking.kc);
    blocking.lines = dml__packs_lines_of_a(job);
    blocking.mc = dml__smaller(rows, dml__rows_at_once(job, blocking.kc));
    blocking.nc = columns;
    const ptrdiff_t most = dml__packed_columns(job, &blocking, range);
    if (blocking.pack_b && !job->product.panels && columns > most)
        blocking.nc = dml__round_up(dml__quotient_up(columns, dml__quotient_up(columns, most)), job->full);
    blocking.across = job->kernel->k_multiple || blocking.kc <= DML__ACROSS_KC ||
                      blocking.kc * blocking.nc <= DML__ACROSS_FLOATS ||
                      (dml__loads_lines(job) && !dml__holds_more(blocking.kc, blocking.nc, near));
    blocking.stream = dml__streams_c(job, &blocking, range);
    blocking.ask_k = dml__asks_for_lines(job) ? range->k1 : 0;
    blocking.ask_until = dml__asks_ahead(job, &blocking, range) ? range->i1 : 0;
    blocking.a = blocking.b = NULL;
    return blocking;
}

#endif
