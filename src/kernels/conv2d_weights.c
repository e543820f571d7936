#ifndef DML_KERNELS_CONV2D_WEIGHTS_C
#define DML_KERNELS_CONV2D_WEIGHTS_C

#include "kernels/conv2d_weights.h"

#include "kernels/conv2d_pass.h"
#include "kernels/conv2d_tall.h"
#include "kernels/conv2d_weights_lanes.h"
#include "kernels/conv2d_weights_plan.h"
#include "kernels/finish.h"
#include "kernels/pack.h"
#include "thread/pool_internal.h"

/* The micro-kernel's rows are filters, its columns the channels under a tap (or, where there are few, the
   channels under a line of taps), its k pixels of dy, and its blocks lines of them. The sum over pixels is
   cut into strips, each of which is one chain of multiply-adds: a strip of x is copied into panels of
   channels with the padding's zeros around it, one of dy into panels of filters. A small dw has too few tiles
   to share among threads: the strips then are shared out in chunks, whose partial sums are added up in order.
   Strips and chunks depend on the shape alone.

   Few channels under a line of taps leave lanes empty, where filters may fill them: 9 floats take two vectors
   of 8. Then the roles change: rows are the elements of a patch, columns filters, and the sums are turned on
   their way to dw. Each is the same chain of multiply-adds, so the bits stay. Up to a vector of filters take
   tall tiles (conv2d_tall.h), for which the elements of a line of taps lie side by side as they are. */
#define DML__WGRAD_COPY_MOST 262144
#define DML__WGRAD_STACK_TILES 8

typedef struct dml__wgrad_part {
    ptrdiff_t chunk, panel0, panel1, tile0, tile1;
    float *dw; /* the caller's, or partial sums */
    float beta;
} dml__wgrad_part;

/* The lines of a strip whose taps of a line lie in the image: the others would add zeros. Turned, and of
   patches that are gathered, all. */
static int dml__wgrad_lines(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip, ptrdiff_t tap_h,
                            ptrdiff_t *lines)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t first = tap_h * j->dilation_h - j->pad_h;
    ptrdiff_t line = strip->line0 % j->out_h;
    const bool all = plan->patch_w || plan->turned;
    int count = 0;
    for (ptrdiff_t l = 0; l < strip->lines; l++) {
        const ptrdiff_t y = first + line * j->stride_h;
        if (all || (y >= 0 && y < j->in_h)) lines[count++] = l;
        if (++line == j->out_h) line = 0;
    }
    return count;
}

/* The same of the pixels of a line. */
typedef struct dml__wgrad_pixels {
    ptrdiff_t begin, end;
} dml__wgrad_pixels;

static dml__wgrad_pixels dml__wgrad_pixels_at(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                              const dml__wgrad_columns *columns)
{
    const dml__wgrad *j = plan->job;
    dml__wgrad_pixels in = { 0, strip->w };
    if (plan->lines_of_taps) return in;
    const ptrdiff_t x = strip->x0 * j->stride_w - j->pad_w + columns->tap_w * j->dilation_w;
    if (x < 0) in.begin = dml__smaller(strip->w, dml__quotient_up(-x, j->stride_w));
    const ptrdiff_t end = x < j->in_w ? dml__quotient_up(j->in_w - x, j->stride_w) : 0;
    in.end = dml__larger(in.begin, dml__smaller(strip->w, end));
    return in;
}

/* Floats of a pixel in a panel of so many columns. */
static ptrdiff_t dml__wgrad_width(const dml__wgrad_plan *plan, int count)
{
    return plan->in_place        ? 1
           : plan->patch_w       ? plan->patch_w
           : plan->lines_of_taps ? plan->job->channels
                                 : dml__round_up(count, plan->kernel->lanes);
}

/* Asks for a tile of dw: those of a large one are far from each other, and come from memory. */
static void dml__wgrad_ask(const dml__wgrad_plan *plan, float *dw, ptrdiff_t row,
                           const dml__wgrad_columns *columns)
{
    const float *ahead = dml__wgrad_element(plan, dw, row, columns);
    for (int i = 0; i < plan->rows && row + i < plan->job->filters; i++)
        DML__PREFETCH(ahead + i * plan->patch);
}

/* Where the lines of a strip lie in panels of so many floats a pixel. */
static void dml__wgrad_blocks(const dml__wgrad_plan *plan, const dml__wgrad_view *view,
                              const ptrdiff_t *lines, int blocks, ptrdiff_t width, ptrdiff_t *b_at)
{
    for (int i = 0; i < blocks; i++)
        b_at[i] = view->at[lines[i]] * (plan->in_place ? 1 : view->line_step * width);
}

/* One strip's share of some tiles of filters and panels, at a line of taps; dy is packed, or NULL. A tile of
   filters goes along the panels, so that it comes by the lines of dw, which may be far from each other, from
   end to end. */
static void dml__wgrad_multiply_line(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                     const dml__wgrad_view *view, const dml__wgrad_part *part,
                                     ptrdiff_t tap_h, const float *packed, float beta)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t across = dml__wgrad_tiles_across(plan), pixels = strip->lines * strip->w,
                    panels = part->panel1 - part->panel0, row0 = dml__wgrad_row(plan, part->tile0);
    ptrdiff_t lines[DML__WGRAD_STRIP], a_at[DML__WGRAD_STRIP], b_at[DML__WGRAD_STRIP], width = 0;
    dml__tile tile;
    dml__tile_init(&tile);
    tile.a_at = a_at;
    tile.b_at = b_at;
    tile.beta = beta;
    tile.stream = plan->stream;
    tile.blocks = dml__wgrad_lines(plan, strip, tap_h, lines);
    if (tile.blocks == 0 && beta == 1) return;
    dml__wgrad_columns next = dml__wgrad_columns_at(plan, part->panel0, tap_h, 0);
    for (ptrdiff_t t = part->tile0; t < part->tile1; t++) {
        const ptrdiff_t row = dml__wgrad_row(plan, t);
        tile.rows = (int)(dml__wgrad_row(plan, t + 1) - row);
        const float *a = packed;
        tile.a_step = tile.rows;
        tile.a_packed = true; /* or as good as that: filters lie side by side in dy too */
        if (packed)
            a += (row - row0) * pixels;
        else
            a = j->dy + (strip->line0 * j->out_w + strip->x0) * j->dy_pixel + row, tile.a_step = j->dy_pixel;
        const ptrdiff_t a_line = packed ? strip->w * tile.a_step : j->out_w * tile.a_step;
        for (int i = 0; i < tile.blocks; i++) a_at[i] = lines[i] * a_line;
        for (ptrdiff_t panel = 0, at = 0; panel < panels;) {
            const dml__wgrad_columns columns = next;
            const ptrdiff_t wide = dml__wgrad_width(plan, columns.count);
            if (wide != width) dml__wgrad_blocks(plan, view, lines, tile.blocks, width = wide, b_at);
            tile.b_step = view->pixel_step * width;
            const dml__wgrad_pixels in = dml__wgrad_pixels_at(plan, strip, &columns);
            tile.k = (int)(in.end - in.begin);
            tile.columns = dml__wgrad_tile_columns(plan, columns.count);
            tile.b = view->base + panel * view->panel_step +
                     (tap_h * j->dilation_h * view->line_step + columns.tap_w * view->dilation_step) * width +
                     (plan->lines_of_taps ? columns.first : 0) + in.begin * tile.b_step;
            float *c = dml__wgrad_element(plan, part->dw, row, &columns);
            for (int i = 0; i < tile.rows; i++) {
                tile.a[i] = a + in.begin * tile.a_step + i;
                tile.c[i] = c + i * plan->patch;
            }
            if (++at == across) at = 0, panel++;
            const bool more = panel < panels;
            next = dml__wgrad_columns_at(plan, part->panel0 + (more ? panel : 0), tap_h, at);
            if (more || t + 1 < part->tile1)
                dml__wgrad_ask(plan, part->dw, more ? row : row + tile.rows, &next);
            dml__conv_tile(plan->kernel, &tile, columns.count);
        }
    }
}

/* One strip's share of some panels' and tiles' dw. */
static void dml__wgrad_multiply(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                const dml__wgrad_view *view, const dml__wgrad_part *part, const float *packed,
                                float beta)
{
    const ptrdiff_t lines_of_taps = plan->patch_w ? 1 : plan->job->taps_h;
    for (ptrdiff_t tap_h = 0; tap_h < lines_of_taps; tap_h++)
        dml__wgrad_multiply_line(plan, strip, view, part, tap_h, packed, beta);
}

/* Packs a strip of dy as panels of filters, (pixels, columns) one behind the other. */
static void dml__wgrad_pack_turned(const dml__wgrad_plan *plan, const float *from, ptrdiff_t pixels,
                                   float *out)
{
    const dml__wgrad *j = plan->job;
    for (ptrdiff_t i = 0; i < pixels; i++, from += j->dy_pixel) /* which are best read from end to end */
        for (ptrdiff_t f = 0; f < j->filters; f += plan->full) {
            const ptrdiff_t count = dml__smaller(plan->full, j->filters - f);
            if (count == 16)
                memcpy(out + f * pixels + i * 16, from + f, 16 * sizeof *out);
            else
                dml__conv_copy(out + f * pixels + i * count, from + f, count);
        }
    dml__conv_round(plan->pool, j->rounds_to, pixels * j->filters, out);
}

/* One strip's share of dw turned, (patch, filters), in tall tiles. */
static void dml__wgrad_multiply_tall(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                     const dml__wgrad_view *view, float *packed, float beta, float *sums)
{
    const dml__wgrad *j = plan->job;
    const bool pack = j->rounds_to != DML_F32;
    const ptrdiff_t line = j->taps_w * j->channels, a_line = view->line_step * j->channels;
    ptrdiff_t a_at[DML__WGRAD_STRIP], b_at[DML__WGRAD_STRIP];
    dml__tall_tile tall;
    tall.columns = (int)j->filters;
    tall.b_narrow = j->filters < plan->kernel->lanes;
    tall.size = plan->tall;
    tall.blocks = (int)strip->lines;
    tall.k = (int)strip->w;
    tall.a_at = a_at, tall.b_at = b_at;
    tall.a_step = view->pixel_step * j->channels;
    tall.row_step = 1;
    tall.c_step = j->filters;
    tall.b = j->dy + (strip->line0 * j->out_w + strip->x0) * j->dy_pixel;
    tall.b_step = j->dy_pixel;
    if (pack) {
        dml__wgrad_pack_turned(plan, tall.b, strip->lines * strip->w, packed);
        tall.b = packed;
        tall.b_step = j->filters;
    }
    tall.beta = beta;
    tall.bias = NULL;
    tall.relu = false;
    tall.groups = 0;
    for (ptrdiff_t l = 0; l < strip->lines; l++)
        a_at[l] = view->at[l] * a_line, b_at[l] = l * strip->w * tall.b_step;
    for (ptrdiff_t tap = 0; tap < j->taps_h; tap++)
        dml__tall_add(&tall, view->base + tap * j->dilation_h * a_line, sums + tap * line * j->filters, line);
    dml__tall_end(&tall);
}

/* The same, in others. */
static void dml__wgrad_multiply_turned(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                                       const dml__wgrad_view *view, float *packed, float beta, float *sums)
{
    const dml__wgrad *j = plan->job;
    const ptrdiff_t pixels = strip->lines * strip->w, line = j->taps_w * j->channels,
                    tiles = dml__quotient_up(plan->patch, plan->rows);
    const float *dy = j->dy + (strip->line0 * j->out_w + strip->x0) * j->dy_pixel;
    const bool in_place = j->filters <= plan->full && j->rounds_to == DML_F32;
    ptrdiff_t a_at[DML__WGRAD_STRIP], b_at[DML__WGRAD_STRIP];
    dml__tile tile;
    dml__tile_init(&tile);
    tile.a_at = a_at;
    tile.b_at = b_at;
    tile.beta = beta;
    tile.k = (int)strip->w;
    tile.blocks = (int)strip->lines;
    tile.a_step = view->pixel_step * j->channels;
    for (ptrdiff_t l = 0; l < strip->lines; l++) a_at[l] = view->at[l] * view->line_step * j->channels;
    if (!in_place) dml__wgrad_pack_turned(plan, dy, pixels, packed);
    for (ptrdiff_t f = 0; f < j->filters; f += tile.columns) {
        tile.columns = (int)dml__smaller(plan->full, j->filters - f);
        tile.b = in_place ? dy : packed + f * pixels;
        tile.b_step = in_place ? j->dy_pixel : tile.columns;
        for (ptrdiff_t l = 0; l < strip->lines; l++) b_at[l] = l * strip->w * tile.b_step;
        for (ptrdiff_t t = 0; t < tiles; t++) {
            const ptrdiff_t row = t * plan->patch / tiles;
            tile.rows = (int)((t + 1) * plan->patch / tiles - row);
            for (int i = 0; i < tile.rows; i++) {
                const ptrdiff_t tap_h = (row + i) / line;
                tile.a[i] = view->base + tap_h * j->dilation_h * view->line_step * j->channels +
                            (row + i - tap_h * line);
                tile.c[i] = sums + (row + i) * j->filters + f;
            }
            plan->kernel->run(&tile);
        }
    }
}

/* All of a chunk; of several, its partial sums stay turned. */
static void dml__wgrad_turned_run(const dml__wgrad_plan *plan, const dml__wgrad_part *part, float *scratch)
{
    const dml__wgrad *j = plan->job;
    float *packed = scratch + dml__round_up(dml__wgrad_copy_floats(plan), 16);
    float *sums = plan->chunks > 1 ? part->dw : packed + DML__WGRAD_STRIP * j->filters;
    const ptrdiff_t end = (part->chunk + 1) * plan->strips / plan->chunks;
    dml__wgrad_view view;
    float beta = part->beta;
    if (beta != 0)
        dml__pack_transposed(part->dw, plan->patch, (int)j->filters, (int)plan->patch, (int)j->filters, sums);
    for (ptrdiff_t s = part->chunk * plan->strips / plan->chunks; s < end; s++, beta = 1) {
        const dml__wgrad_strip strip = dml__wgrad_strip_at(plan, s);
        dml__wgrad_view_strip(plan, &strip, 0, 1, scratch, &view);
        if (plan->tall)
            dml__wgrad_multiply_tall(plan, &strip, &view, packed, beta, sums);
        else
            dml__wgrad_multiply_turned(plan, &strip, &view, packed, beta, sums);
    }
    if (plan->chunks == 1)
        dml__pack_transposed(sums, j->filters, (int)plan->patch, (int)j->filters, (int)plan->patch, part->dw);
}

static void dml__wgrad_part_run(const dml__wgrad_plan *plan, const dml__wgrad_part *part, float *scratch)
{
    float *packed = scratch + dml__round_up(dml__wgrad_copy_floats(plan), 16);
    const ptrdiff_t row_tiles = plan->filters_at_once / plan->rows;
    const bool pack = dml__wgrad_packs_dy(plan);
    const ptrdiff_t end = (part->chunk + 1) * plan->strips / plan->chunks;
    dml__wgrad_view view;
    float beta = part->beta;
    for (ptrdiff_t s = part->chunk * plan->strips / plan->chunks; s < end; s++, beta = 1) {
        const dml__wgrad_strip strip = dml__wgrad_strip_at(plan, s);
        dml__wgrad_part some = *part;
        for (some.panel0 = part->panel0; some.panel0 < part->panel1; some.panel0 = some.panel1) {
            some.panel1 = dml__smaller(some.panel0 + plan->panels_at_once, part->panel1);
            dml__wgrad_view_strip(plan, &strip, some.panel0, some.panel1 - some.panel0, scratch, &view);
            for (some.tile0 = part->tile0; some.tile0 < part->tile1; some.tile0 = some.tile1) {
                some.tile1 = dml__smaller(some.tile0 + row_tiles, part->tile1);
                if (pack) dml__wgrad_pack_dy(plan, &strip, some.tile0, some.tile1, packed);
                dml__wgrad_multiply(plan, &strip, &view, &some, pack ? packed : NULL, beta);
            }
        }
    }
    if (plan->stream) DML__STREAM_FENCE();
}

/* A panel's tiles, counted through all lines of taps. */
static dml__wgrad_columns dml__wgrad_columns_of_tile(const dml__wgrad_plan *plan, ptrdiff_t panel,
                                                     ptrdiff_t tile)
{
    const ptrdiff_t across = dml__wgrad_tiles_across(plan);
    return dml__wgrad_columns_at(plan, panel, tile / across, tile % across);
}

/* The columns under the pixels of a strip, (pixels, width): what is computed on the stack gathers them. */
static void dml__wgrad_gather(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip,
                              const dml__wgrad_columns *columns, ptrdiff_t width, float *to)
{
    const dml__wgrad *j = plan->job;
    for (ptrdiff_t l = 0; l < strip->lines; l++) {
        const ptrdiff_t n = (strip->line0 + l) / j->out_h;
        const ptrdiff_t y0 = (strip->line0 + l) % j->out_h * j->stride_h - j->pad_h;
        for (ptrdiff_t i = 0; i < strip->w; i++, to += width) {
            const ptrdiff_t x0 = (strip->x0 + i) * j->stride_w - j->pad_w;
            for (ptrdiff_t done = 0; done < columns->count;) {
                const ptrdiff_t line = j->taps_w * j->channels, at = columns->first + done;
                const ptrdiff_t y = y0 + (columns->tap_h + at / line) * j->dilation_h;
                const ptrdiff_t tap = at % line / j->channels, c = at % j->channels;
                const ptrdiff_t count = dml__smaller(j->channels - c, columns->count - done);
                const ptrdiff_t x = x0 + tap * j->dilation_w;
                if (y < 0 || y >= j->in_h || x < 0 || x >= j->in_w)
                    dml__conv_zero(to + done, count);
                else
                    dml__conv_copy(to + done, j->x + ((n * j->in_h + y) * j->in_w + x) * j->x_pixel + c,
                                   count);
                done += count;
            }
            dml__conv_zero(to + columns->count, width - columns->count);
        }
    }
}

/* One chunk's sums of one tile of columns for some tiles of filters, with what the stack has room for. */
typedef struct dml__wgrad_piece {
    ptrdiff_t panel, at, tile0, tile1, chunk;
    float *c; /* (filters of the tiles, ldc), from the first column on */
    ptrdiff_t ldc;
    float beta;
} dml__wgrad_piece;

/* A tile's rows of dy, rounded, as (pixels, rows): the tile's factor where it can't be used in place. */
static void dml__wgrad_round_rows(const dml__wgrad_plan *plan, const dml__wgrad_strip *strip, ptrdiff_t row,
                                  dml__tile *tile, float *rounded)
{
    const dml__wgrad *j = plan->job;
    const float *from = j->dy + (strip->line0 * j->out_w + strip->x0) * j->dy_pixel + row;
    const ptrdiff_t pixels = strip->lines * strip->w;
    for (ptrdiff_t i = 0; i < pixels; i++, from += j->dy_pixel)
        dml__conv_copy(rounded + i * tile->rows, from, tile->rows);
    dml__conv_round(plan->pool, j->rounds_to, pixels * tile->rows, rounded);
    for (int i = 0; i < tile->rows; i++) tile->a[i] = rounded + i;
    tile->a_step = tile->rows;
}

DML__NOINLINE static void dml__wgrad_on_stack(const dml__wgrad_plan *plan, const dml__wgrad_piece *piece)
{
    const dml__wgrad *j = plan->job;
    const dml__wgrad_columns columns = dml__wgrad_columns_of_tile(plan, piece->panel, piece->at);
    const ptrdiff_t width = dml__round_up(columns.count, plan->kernel->lanes);
    const ptrdiff_t end = (piece->chunk + 1) * plan->strips / plan->chunks;
    const ptrdiff_t row0 = dml__wgrad_row(plan, piece->tile0);
    const bool rounds = j->rounds_to != DML_F32;
    float patches[DML__WGRAD_STRIP * DML__CONV_COLUMNS]; /* (pixels, width) */
    float rounded[DML__WGRAD_STRIP * DML__CONV_ROWS];    /* (pixels, rows) */
    ptrdiff_t lines[DML__WGRAD_STRIP], a_at[DML__WGRAD_STRIP], b_at[DML__WGRAD_STRIP];
    dml__tile tile;
    dml__tile_init(&tile);
    tile.a_at = a_at;
    tile.b_at = b_at;
    tile.a_step = j->dy_pixel;
    tile.b = patches;
    tile.b_step = width;
    tile.columns = (int)width;
    tile.beta = piece->beta;
    for (ptrdiff_t s = piece->chunk * plan->strips / plan->chunks; s < end; s++, tile.beta = 1) {
        const dml__wgrad_strip strip = dml__wgrad_strip_at(plan, s);
        dml__wgrad_gather(plan, &strip, &columns, width, patches);
        dml__conv_round(plan->pool, j->rounds_to, strip.lines * strip.w * width, patches);
        const dml__wgrad_pixels in = dml__wgrad_pixels_at(plan, &strip, &columns);
        tile.k = (int)(in.end - in.begin);
        tile.blocks = dml__wgrad_lines(plan, &strip, columns.tap_h, lines);
        for (int i = 0; i < tile.blocks; i++) {
            a_at[i] = (lines[i] * j->out_w + in.begin) * j->dy_pixel;
            b_at[i] = (lines[i] * strip.w + in.begin) * width;
        }
        for (ptrdiff_t t = piece->tile0; t < piece->tile1; t++) {
            const ptrdiff_t row = dml__wgrad_row(plan, t);
            tile.rows = (int)(dml__wgrad_row(plan, t + 1) - row);
            for (int i = 0; i < tile.rows; i++) {
                tile.a[i] = j->dy + (strip.line0 * j->out_w + strip.x0) * j->dy_pixel + row + i;
                tile.c[i] = piece->c + (row + i - row0) * piece->ldc;
            }
            if (rounds) dml__wgrad_round_rows(plan, &strip, row, &tile, rounded);
            for (int i = 0; i < tile.blocks && rounds; i++)
                a_at[i] = (lines[i] * strip.w + in.begin) * tile.a_step;
            dml__conv_tile(plan->kernel, &tile, columns.count);
        }
    }
}

/* The same of all chunks, whose sums are added in the order in which dml__wgrad_add_task adds them. */
static void dml__wgrad_stack_task(void *argument, int task, int worker)
{
    const dml__wgrad_plan *plan = (const dml__wgrad_plan *)argument;
    const dml__wgrad *j = plan->job;
    const ptrdiff_t tiles = dml__wgrad_tiles(plan), groups = plan->row_shares;
    const ptrdiff_t group = task % groups, column_tile = task / groups;
    float sums[2][DML__WGRAD_STACK_TILES * DML__CONV_ROWS * DML__CONV_COLUMNS]; /* (filters, columns) */
    dml__wgrad_piece piece;
    (void)worker;
    piece.panel = column_tile / tiles, piece.at = column_tile % tiles;
    piece.tile0 = group * plan->row_tiles / groups, piece.tile1 = (group + 1) * plan->row_tiles / groups;
    const dml__wgrad_columns columns = dml__wgrad_columns_of_tile(plan, piece.panel, piece.at);
    const ptrdiff_t row0 = dml__wgrad_row(plan, piece.tile0), row1 = dml__wgrad_row(plan, piece.tile1);
    float *dw = dml__wgrad_element(plan, j->dw, row0, &columns);
    const bool direct = plan->chunks == 1;
    piece.beta = direct ? j->beta : 0;
    piece.ldc = direct ? plan->patch : columns.count;
    for (piece.chunk = 0; piece.chunk < plan->chunks; piece.chunk++) {
        piece.c = direct ? dw : sums[piece.chunk > 0];
        dml__wgrad_on_stack(plan, &piece);
        for (ptrdiff_t i = 0; piece.chunk && i < (row1 - row0) * columns.count; i++) sums[0][i] += sums[1][i];
    }
    const dml__finish add = { 1, 0, 1, j->beta, NULL, false };
    for (ptrdiff_t row = 0; !direct && row < row1 - row0; row++)
        dml__finish_line(dml__pool_machine(plan->pool).isa, (size_t)columns.count, &add,
                         sums[0] + row * columns.count, dw + row * plan->patch);
}

/* Writes a tile's sums where those of a turned part lie. */
static void dml__wgrad_turn(const dml__wgrad_plan *plan, const dml__wgrad_piece *piece,
                            const dml__wgrad_columns *columns, float *dw)
{
    const ptrdiff_t filters = plan->job->filters, row0 = dml__wgrad_row(plan, piece->tile0);
    const ptrdiff_t rows = dml__wgrad_row(plan, piece->tile1) - row0;
    const ptrdiff_t first = dml__wgrad_element(plan, dw, 0, columns) - dw;
    dml__pack_transposed(piece->c, piece->ldc, (int)rows, columns->count, (int)filters,
                         dw + first * filters + row0);
}

static void dml__wgrad_part_on_stack(const dml__wgrad_plan *plan, const dml__wgrad_part *part)
{
    const ptrdiff_t tiles = dml__wgrad_tiles(plan);
    const bool turned = plan->turned && plan->chunks > 1;
    float sums[DML__CONV_ROWS * DML__CONV_COLUMNS];
    dml__wgrad_piece piece;
    piece.chunk = part->chunk;
    piece.beta = part->beta;
    for (piece.panel = part->panel0; piece.panel < part->panel1; piece.panel++)
        for (piece.at = 0; piece.at < tiles; piece.at++)
            for (piece.tile0 = part->tile0; piece.tile0 < part->tile1; piece.tile0 = piece.tile1) {
                const dml__wgrad_columns columns = dml__wgrad_columns_of_tile(plan, piece.panel, piece.at);
                piece.tile1 = turned ? piece.tile0 + 1 : part->tile1;
                piece.ldc = turned ? columns.count : plan->patch;
                piece.c =
                    turned ? sums
                           : dml__wgrad_element(plan, part->dw, dml__wgrad_row(plan, piece.tile0), &columns);
                dml__wgrad_on_stack(plan, &piece);
                if (turned) dml__wgrad_turn(plan, &piece, &columns, part->dw);
            }
}

static void dml__wgrad_task(void *argument, int task, int worker)
{
    const dml__wgrad_plan *plan = (const dml__wgrad_plan *)argument;
    const ptrdiff_t row_share = task % plan->row_shares, rest = task / plan->row_shares;
    const ptrdiff_t panel_share = rest % plan->panel_shares;
    dml__wgrad_part part;
    part.chunk = rest / plan->panel_shares;
    part.panel0 = panel_share * plan->panels / plan->panel_shares;
    part.panel1 = (panel_share + 1) * plan->panels / plan->panel_shares;
    part.tile0 = row_share * plan->row_tiles / plan->row_shares;
    part.tile1 = (row_share + 1) * plan->row_tiles / plan->row_shares;
    part.dw =
        plan->chunks > 1 ? plan->partial + part.chunk * plan->job->filters * plan->patch : plan->job->dw;
    part.beta = plan->chunks > 1 ? 0 : plan->job->beta;
    float *scratch = (float *)dml_pool_scratch(plan->pool, worker);
    if (scratch && plan->turned)
        dml__wgrad_turned_run(plan, &part, scratch);
    else if (scratch)
        dml__wgrad_part_run(plan, &part, scratch);
    else /* a host that numbers its workers wrongly */
        dml__wgrad_part_on_stack(plan, &part);
}

typedef struct dml__wgrad_sums {
    const dml__wgrad *job;
    dml_isa isa;
    ptrdiff_t chunks, all;
    const float *partial;
} dml__wgrad_sums;

/* Some of dw from partial sums. */
static void dml__wgrad_add_task(void *argument, int task, int worker)
{
    const dml__wgrad_sums *sums = (const dml__wgrad_sums *)argument;
    const ptrdiff_t first = (ptrdiff_t)task * DML__WGRAD_ADDED;
    const dml__finish add = { (int)sums->chunks, sums->all, 1, sums->job->beta, NULL, false };
    (void)worker;
    dml__finish_line(sums->isa, (size_t)dml__smaller(DML__WGRAD_ADDED, sums->all - first), &add,
                     sums->partial + first, sums->job->dw + first);
}

DML__LOCAL void dml__wgrad_add(dml_pool *pool, const dml__wgrad *job, ptrdiff_t chunks, const float *partial)
{
    dml__wgrad_sums sums = { job, dml__pool_machine(pool).isa, chunks,
                             job->filters * job->taps_h * job->taps_w * job->channels, partial };
    const int tasks = (int)dml__quotient_up(sums.all, DML__WGRAD_ADDED);
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__wgrad_add_task, &sums);
}

/* The same of sums that are turned: some elements of each filter's patch. */
static void dml__wgrad_add_turned_task(void *argument, int task, int worker)
{
    const dml__wgrad_plan *plan = (const dml__wgrad_plan *)argument;
    const dml__wgrad *j = plan->job;
    const dml_isa isa = dml__pool_machine(plan->pool).isa;
    const ptrdiff_t filters = j->filters, most = DML__WGRAD_ADDED / filters, first = task * most;
    const ptrdiff_t rows = dml__smaller(most, plan->patch - first);
    const dml__finish add = { (int)plan->chunks, filters * plan->patch, 1, 0, NULL, false };
    const dml__finish end = { 1, 0, 1, j->beta, NULL, false };
    float sums[DML__WGRAD_ADDED], across[DML__WGRAD_ADDED];
    (void)worker;
    dml__finish_line(isa, (size_t)(rows * filters), &add, plan->partial + first * filters, sums);
    dml__pack_transposed(sums, filters, (int)rows, (int)filters, (int)rows, across);
    for (ptrdiff_t f = 0; f < filters; f++)
        dml__finish_line(isa, (size_t)rows, &end, across + f * rows, j->dw + f * plan->patch + first);
}

static size_t dml__wgrad_partial_bytes(const dml__wgrad_plan *plan)
{
    return plan->chunks == 1 ? 0 : (size_t)(plan->chunks * plan->job->filters * plan->patch) * sizeof(float);
}

DML__LOCAL dml_scratch dml__wgrad_scratch(const dml__wgrad *job)
{
    dml_scratch scratch = { 0, 0 };
    if (job->batch < 1) return scratch;
    const dml__wgrad_plan plan = dml__wgrad_plan_of(NULL, job, 1);
    if (dml__wgrad_copy_floats(&plan) > DML__WGRAD_COPY_MOST) return scratch;
    scratch.worker = (size_t)dml__wgrad_most_floats(&plan) * sizeof(float);
    scratch.shared = dml__wgrad_partial_bytes(&plan);
    return scratch;
}

DML__LOCAL void dml__wgrad_run(dml_pool *pool, const dml__wgrad *job)
{
    if (dml__wgrad_lanes_fits(pool, job)) {
        dml__wgrad_lanes_run(pool, job);
        return;
    }
    dml__wgrad_plan plan = dml__wgrad_plan_of(pool, job, dml_pool_threads(pool));
    if (job->batch < 1) {
        for (ptrdiff_t i = 0; i < job->filters * plan.patch; i++)
            job->dw[i] = job->beta == 0 ? 0 : job->beta * job->dw[i];
        return;
    }
    const dml_scratch scratch = dml_pool_scratch_bytes(pool);
    if (scratch.worker < (size_t)dml__wgrad_worker_floats(&plan) * sizeof(float) ||
        scratch.shared < dml__wgrad_partial_bytes(&plan)) {
        const ptrdiff_t column_tiles = plan.panels * dml__wgrad_tiles(&plan);
        plan.row_shares = dml__quotient_up(plan.row_tiles, DML__WGRAD_STACK_TILES);
        dml_pool_run(pool, (int)(column_tiles * plan.row_shares), dml__wgrad_stack_task, &plan);
        return;
    }
    plan.partial = (float *)dml_pool_shared_scratch(pool);
    const ptrdiff_t tasks = plan.chunks * plan.panel_shares * plan.row_shares;
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__wgrad_task, &plan);
    if (plan.chunks == 1) return;
    if (!plan.turned) {
        dml__wgrad_add(pool, job, plan.chunks, plan.partial);
        return;
    }
    const int shares = (int)dml__quotient_up(plan.patch, DML__WGRAD_ADDED / job->filters);
    dml_pool_run(shares > 1 ? pool : NULL, shares, dml__wgrad_add_turned_task, &plan);
}

#endif
