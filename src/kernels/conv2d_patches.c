#ifndef DML_KERNELS_CONV2D_PATCHES_C
#define DML_KERNELS_CONV2D_PATCHES_C

#include "kernels/conv2d_patches.h"

#include "kernels/isa_vectors.h"
#include "kernels/sizes.h"

#include <string.h>

#if defined(DML__HAS_AVX512_BF16)

/* Numbers of bf16 that are gathered at once, on the stack, before they are turned or put in pairs; and of how
   many lanes at most, so that those are of several pixels. */
#define DML__PATCH_NUMBERS 8192
#define DML__PATCH_LANES 1024

/* What does not change from tap to tap of a line of patches: the part of a patch that is wanted. */
typedef struct dml__patch_part {
    const dml__conv_patches *patches;
    ptrdiff_t begin, end; /* of (tap, channel) */
    bool together;        /* the taps of a line lie side by side in the image */
} dml__patch_part;

static inline void dml__zero_run(ptrdiff_t n, uint16_t *to)
{
    if (n > 0) memset(to, 0, (size_t)n * sizeof *to);
}

/* Numbers begin .. end - 1 of the taps of one line, which begins at `line`, for the grid's pixel x. */
DML__PAIRS_TARGET DML__INLINE void dml__gather_taps(const dml__conv_patches *p, bool together,
                                                    const float *line, ptrdiff_t x, ptrdiff_t begin,
                                                    ptrdiff_t end, uint16_t *to)
{
    const dml__conv_axis *h = &p->h;
    if (together) {
        const ptrdiff_t at = x * h->step + h->origin;
        const ptrdiff_t first = at < 0 ? -at : 0, behind = dml__smaller(h->taps, h->size - at);
        const ptrdiff_t low = dml__smaller(end, dml__larger(begin, first * p->depth)),
                        high = dml__larger(low, dml__smaller(end, behind * p->depth));
        dml__zero_run(low - begin, to);
        dml__narrow_run(line + at * h->stride + low, high - low, to + (low - begin));
        dml__zero_run(end - high, to + (high - begin));
        return;
    }
    for (ptrdiff_t tap = begin / p->depth; begin < end; tap++) {
        const ptrdiff_t at = dml__conv_meets(h, x, tap), channel = begin - tap * p->depth;
        const ptrdiff_t count = dml__smaller(end, (tap + 1) * p->depth) - begin;
        if (at < 0)
            dml__zero_run(count, to);
        else
            dml__narrow_run(line + at + channel, count, to);
        begin += count;
        to += count;
    }
}

/* The parts of `count` pixels' patches from pixel `first` on, rows of bf16 that lie `row` apart. */
DML__PAIRS_TARGET static void dml__gather_patches(const dml__patch_part *part, ptrdiff_t first,
                                                  ptrdiff_t count, ptrdiff_t row, uint16_t *out)
{
    const dml__conv_patches *p = part->patches;
    const ptrdiff_t line_of_taps = p->h.taps * p->depth;
    ptrdiff_t x = first % p->h.grid, y = first / p->h.grid % p->v.grid;
    const float *image = p->image + first / p->h.grid / p->v.grid * p->image_step;
    for (; count > 0; count--, out += row) {
        uint16_t *to = out;
        ptrdiff_t begin = part->begin;
        for (ptrdiff_t tap = begin / line_of_taps; begin < part->end; tap++) {
            const ptrdiff_t at = dml__conv_meets(&p->v, y, tap), skipped = tap * line_of_taps;
            const ptrdiff_t end = dml__smaller(part->end, skipped + line_of_taps);
            if (at < 0)
                dml__zero_run(end - begin, to);
            else
                dml__gather_taps(p, part->together, image + at, x, begin - skipped, end - skipped, to);
            to += end - begin;
            begin = end;
        }
        if (++x < p->h.grid) continue;
        x = 0;
        if (++y < p->v.grid) continue;
        y = 0;
        image += p->image_step;
    }
}

/* Numbers begin .. begin + count - 1 of patches, as far as there are so many. */
static dml__patch_part dml__part_of_patches(const dml__conv_patches *p, ptrdiff_t begin, ptrdiff_t count)
{
    const ptrdiff_t all = p->v.taps * p->h.taps * p->depth;
    const dml__patch_part part = { p, begin, dml__smaller(all, begin + count),
                                   p->h.divisor == 1 && p->h.tap == 1 && p->h.stride == p->depth };
    return part;
}

/* --- lanes are pixels --- */

static void dml__pack_patch_lines(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                  ptrdiff_t line, float *out)
{
    const dml__patch_part part = dml__part_of_patches((const dml__conv_patches *)source, 2 * k0, 2 * kc);
    const ptrdiff_t missing = 2 * kc - (part.end - part.begin);
    uint16_t *rows = (uint16_t *)(void *)out;
    dml__gather_patches(&part, first, lanes, 2 * line, rows);
    for (int lane = 0; lane < lanes && missing; lane++)
        dml__zero_run(missing, rows + 2 * (lane * line + kc) - missing);
}

static void dml__pack_patch_panel(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                  int width, float *out)
{
    uint16_t rows[DML__PATCH_NUMBERS]; /* (lanes, 2 most) */
    const int most = DML__PATCH_NUMBERS / 2 / lanes;
    for (int k = 0, count; k < kc; k += count, out += (ptrdiff_t)count * width) {
        count = kc - k < most ? kc - k : most;
        const dml__patch_part part =
            dml__part_of_patches((const dml__conv_patches *)source, 2 * (k0 + k), 2 * count);
        const dml__pairs_source gathered = { rows, false, 2 * count, 1, part.end - part.begin };
        const dml__factor factor = dml__factor_of_pairs(&gathered);
        dml__gather_patches(&part, first, lanes, 2 * count, rows);
        factor.pack(&gathered, 0, lanes, 0, count, width, out);
    }
}

/* --- across: lanes are taps and channels, and pixels k's --- */

/* Pixels 2 k0 .. of which a stack holds so many lanes, rounded down to pairs; gathered as a matrix. */
static dml__pairs_source dml__gather_across(const dml__conv_patches *p, ptrdiff_t first, ptrdiff_t lanes,
                                            ptrdiff_t k0, ptrdiff_t kc, uint16_t rows[DML__PATCH_NUMBERS])
{
    const dml__patch_part part = dml__part_of_patches(p, first, lanes);
    const ptrdiff_t count = dml__smaller(2 * kc, p->pixels - 2 * k0);
    const dml__pairs_source gathered = { rows, false, 1, lanes, count };
    dml__gather_patches(&part, 2 * k0, count, lanes, rows);
    return gathered;
}

static void dml__pack_across_panels(const void *source, ptrdiff_t first, ptrdiff_t panels, ptrdiff_t k0,
                                    int kc, int width, ptrdiff_t apart, float *out)
{
    const dml__conv_patches *p = (const dml__conv_patches *)source;
    uint16_t rows[DML__PATCH_NUMBERS];
    for (ptrdiff_t together; panels > 0; panels -= together, out += together * apart) {
        together = dml__smaller(panels, DML__PATCH_LANES / width);
        const ptrdiff_t lanes = together * width, most = DML__PATCH_NUMBERS / 2 / lanes;
        for (ptrdiff_t k = 0, count; k < kc; k += count) {
            count = dml__smaller(kc - k, most);
            const dml__pairs_source gathered = dml__gather_across(p, first, lanes, k0 + k, count, rows);
            const dml__factor factor = dml__factor_of_pairs(&gathered);
            factor.packers->pack_panels(&gathered, 0, together, 0, (int)count, width, apart, out + k * width);
        }
        first += lanes;
    }
}

static void dml__pack_across_panel(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                   int width, float *out)
{
    uint16_t rows[DML__PATCH_NUMBERS];
    const ptrdiff_t most = DML__PATCH_NUMBERS / 2 / lanes;
    for (ptrdiff_t k = 0, count; k < kc; k += count) {
        count = dml__smaller(kc - k, most);
        const dml__pairs_source gathered =
            dml__gather_across((const dml__conv_patches *)source, first, lanes, k0 + k, count, rows);
        const dml__factor factor = dml__factor_of_pairs(&gathered);
        factor.pack(&gathered, 0, lanes, 0, (int)count, width, out + k * width);
    }
}

static void dml__pack_across_lines(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                   ptrdiff_t line, float *out)
{
    uint16_t rows[DML__PATCH_NUMBERS];
    for (int together; lanes > 0; lanes -= together, first += together, out += together * line) {
        together = lanes < DML__PATCH_LANES ? lanes : DML__PATCH_LANES;
        const ptrdiff_t most = DML__PATCH_NUMBERS / 2 / together;
        for (ptrdiff_t k = 0, count; k < kc; k += count) {
            count = dml__smaller(kc - k, most);
            const dml__pairs_source gathered =
                dml__gather_across((const dml__conv_patches *)source, first, together, k0 + k, count, rows);
            const dml__factor factor = dml__factor_of_pairs(&gathered);
            factor.packers->pack_lines(&gathered, 0, together, 0, (int)count, line, out + k);
        }
    }
}

DML__LOCAL const dml__packers *dml__patches_as_pairs(bool across)
{
    static const dml__packers pixels = { dml__pack_patch_panel, dml__pack_patch_lines, NULL };
    static const dml__packers taps = { dml__pack_across_panel, dml__pack_across_lines,
                                       dml__pack_across_panels };
    return across ? &taps : &pixels;
}

#endif
#endif
