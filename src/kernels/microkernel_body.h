/* microkernel_body.h: the loop that every micro-kernel is. Included by the files that make them. */
#ifndef DML_KERNELS_MICROKERNEL_BODY_H
#define DML_KERNELS_MICROKERNEL_BODY_H

#include "kernels/isa_vectors.h"
#include "kernels/microkernel.h"

/* One body, written over a vector type and a few functions on it (dml__<isa>_load, ...), makes the functions
   of each instruction set, with the numbers of rows and vectors and the form constant: all its loops but
   those over the blocks and over k are then unrolled, which puts the accumulators into registers. Each is a
   function of its own, since compilers run out of registers in one that holds them all. */
#define DML__EACH(statement)                                                                                 \
    {                                                                                                        \
        DML__UNROLL                                                                                          \
        for (int i = 0; i < rows; i++) {                                                                     \
            DML__UNROLL                                                                                      \
            for (int j = 0; j < vectors; j++) statement;                                                     \
        }                                                                                                    \
    }

/* Of one vector there is only the function of all rows. In a tile of fewer the last row stands for those that
   it lacks, and is computed and written as often, which takes no time: so few multiply-adds a step don't fill
   their own latency. */
#define DML__ROW(i) (vectors == 2 || form == DML__TALL || (i) == 0 || (i) < tile->rows ? (i) : tile->rows - 1)

#define DML__LOAD_OF(isa, from) (masked ? dml__##isa##_load_some(from, mask) : dml__##isa##_load(from))

/* For fewer k's than this, C is not asked for ahead: it would not come in time. */
#define DML__ASKING_K 32

/* The forms: any tile, above which there is none, so that it needs no distances; k a multiple of 4 and the
   columns whole vectors, which is unrolled; A a packed panel, of any k, which takes one pointer; and any
   tile. Fewer instructions beside the multiply-adds count where two threads share a core. Then those of one
   vector, whole or with a mask; and with a mask and more rows than there are registers for their pointers:
   there is a pointer for each five rows, and an index for each row of five. So has the last, which is
   otherwise unrolled as the second, of rows whose k's are side by side. The last two are the second and third
   of a tile that asks for lines meanwhile, which takes 1 to 5 % where nothing is asked for. */
enum {
    DML__ANY_TILE,
    DML__BY_FOURS,
    DML__A_PACKED,
    DML__ANY_BELOW,
    DML__ONE_VECTOR,
    DML__MASKED,
    DML__TALL,
    DML__HIGH,
    DML__ASKING,
    DML__ASKING_PACKED
};
#define DML__WIDE_FORMS 4
#define DML__ROWS_TOGETHER 5

/* So many steps of k. */
#define DML__STEPS(isa, vector, count, multiply_add)                                                         \
    {                                                                                                        \
        DML__UNROLL                                                                                          \
        for (int s = 0; s < (count); s++) {                                                                  \
            if (a_packed) {                                                                                  \
                DML__IN_ORDER(packed);                                                                       \
            } else {                                                                                         \
                DML__UNROLL                                                                                  \
                for (int i = 0; i < together; i++) DML__IN_ORDER(at[i]);                                     \
            }                                                                                                \
            DML__IN_ORDER(b);                                                                                \
            DML__UNROLL                                                                                      \
            for (int j = 0; j < vectors; j++) line[j] = DML__LOAD_OF(isa, b + second * j);                   \
            DML__UNROLL                                                                                      \
            for (int i = 0; i < rows; i++) {                                                                 \
                const vector value = dml__##isa##_splat(                                                     \
                    a_packed ? packed[i]                                                                     \
                             : a[i - i % together][at[i % together] + (form == DML__HIGH ? s : 0)]);         \
                DML__UNROLL                                                                                  \
                for (int j = 0; j < vectors; j++) sum[i][j] = multiply_add(value, line[j], sum[i][j]);       \
            }                                                                                                \
            b += b_step;                                                                                     \
            packed += a_step;                                                                                \
            if (!a_packed && (form != DML__HIGH || s + 1 == (count))) {                                      \
                DML__UNROLL                                                                                  \
                for (int i = 0; i < together; i++) at[i] += form == DML__HIGH ? (count) : a_step;            \
            }                                                                                                \
        }                                                                                                    \
    }

/* `keeps`: what the next block needs of the tile is in variables of their own, which gcc keeps nearer than
   the tile's address; where it has registers for them. (It puts what is too much into vector registers, from
   where it comes back behind the multiply-adds: 30 cycles between a block and the next.) */
#define DML__DEFINE_COMPUTE(isa, target, vector, lanes, most_rows, multiply_add)                             \
    target DML__INLINE void dml__compute_##isa(const dml__tile *tile, ptrdiff_t a_down, ptrdiff_t c_down,    \
                                               int panel, const int rows, const int vectors, const int form) \
    {                                                                                                        \
        vector sum[most_rows][3], line[3];                                                                   \
        const int together = form == DML__TALL || form == DML__HIGH ? DML__ROWS_TOGETHER : 1;                \
        const float *a[most_rows];                                                                           \
        const bool masked = form == DML__MASKED || form == DML__TALL;                                        \
        const bool a_packed = form == DML__A_PACKED || form == DML__ASKING_PACKED;                           \
        const bool asks = form == DML__ASKING || form == DML__ASKING_PACKED;                                 \
        const bool by_fours = form == DML__BY_FOURS || form == DML__HIGH || a_packed || asks;                \
        const int steps = by_fours ? 4 : 1;                                                                  \
        const ptrdiff_t a_step = tile->a_step;                                                               \
        const ptrdiff_t b_step = tile->b_step;                                                               \
        const ptrdiff_t column = (ptrdiff_t)panel * vectors * lanes, place = column + c_down;                \
        const ptrdiff_t second = by_fours || vectors == 3 ? lanes : tile->columns - lanes;                   \
        const uint32_t mask = (1u << (masked ? tile->columns : 0)) - 1;                                      \
        DML__UNROLL                                                                                          \
        for (int i = 0; i < rows; i += together) a[i] = tile->a[DML__ROW(i)];                                \
        if (tile->blocks * tile->k >= DML__ASKING_K && !tile->stream) {                                      \
            DML__UNROLL                                                                                      \
            for (int i = 0; i < rows; i++) {                                                                 \
                DML__PREFETCH(tile->c[DML__ROW(i)] + place + vectors * lanes - 1);                           \
                if (lanes == 16 && vectors == 2) DML__PREFETCH(tile->c[DML__ROW(i)] + place);                \
            }                                                                                                \
        }                                                                                                    \
        DML__EACH(sum[i][j] = dml__##isa##_splat(0))                                                         \
        const bool keeps = a_packed || (vectors == 1 && form != DML__TALL);                                  \
        const float *const first = tile->b + panel * tile->b_panel;                                          \
        const ptrdiff_t *const a_at = tile->a_at, *const b_at = tile->b_at;                                  \
        const int blocks = tile->blocks, k = tile->k;                                                        \
        const uintptr_t ask_step = panel ? 0 : (uintptr_t)tile->ask_step;                                    \
        uintptr_t ask = panel ? (uintptr_t)first : tile->ask;                                                \
        for (int t = 0; t < (keeps ? blocks : tile->blocks); t++) {                                          \
            const float *b = (keeps ? first + b_at[t] : tile->b + panel * tile->b_panel + tile->b_at[t]);    \
            ptrdiff_t at[DML__ROWS_TOGETHER]; /* one index for all rows, or for a fifth of them */           \
            DML__UNROLL                                                                                      \
            for (int i = 0; i < together; i++)                                                               \
                at[i] = (keeps ? a_at : tile->a_at)[t] + a_down + (i ? i * tile->row_step : 0);              \
            const float *packed = a[0] + at[0];                                                              \
            int p = keeps ? k : tile->k;                                                                     \
            for (; p >= steps; p -= steps) {                                                                 \
                if (asks) DML__PREFETCH((const void *)ask);                                                  \
                if (asks && rows > 4) DML__PREFETCH((const void *)(ask + 64));                               \
                ask += asks ? ask_step : 0;                                                                  \
                DML__STEPS(isa, vector, steps, multiply_add)                                                 \
            }                                                                                                \
            for (; a_packed && p > 0; p--) DML__STEPS(isa, vector, 1, multiply_add)                          \
        }                                                                                                    \
        if (tile->alpha != 1)                                                                                \
            DML__EACH(sum[i][j] = dml__##isa##_multiply(dml__##isa##_splat(tile->alpha), sum[i][j]))         \
        if (tile->beta != 0)                                                                                 \
            DML__EACH(sum[i][j] = dml__##isa##_fma(                                                          \
                          dml__##isa##_splat(tile->beta),                                                    \
                          DML__LOAD_OF(isa, tile->c[DML__ROW(i)] + place + second * j), sum[i][j]))          \
        if (tile->bias)                                                                                      \
            DML__EACH(sum[i][j] =                                                                            \
                          dml__##isa##_add(sum[i][j], DML__LOAD_OF(isa, tile->bias + column + second * j)))  \
        if (tile->relu) DML__EACH(sum[i][j] = dml__##isa##_relu(sum[i][j]))                                  \
        if (lanes * vectors >= 16 && !masked && tile->stream) {                                              \
            DML__EACH(dml__##isa##_stream(tile->c[DML__ROW(i)] + place + second * j, sum[i][j]))             \
            return;                                                                                          \
        }                                                                                                    \
        DML__UNROLL                                                                                          \
        for (int i = 0; i < rows; i++) {                                                                     \
            float *c = tile->c[DML__ROW(i)] + place;                                                         \
            DML__UNROLL                                                                                      \
            for (int j = 0; j < vectors; j++) {                                                              \
                if (masked)                                                                                  \
                    dml__##isa##_store_some(c, mask, sum[i][j]);                                             \
                else                                                                                         \
                    dml__##isa##_store(c + second * j, sum[i][j]);                                           \
            }                                                                                                \
        }                                                                                                    \
    }

/* Panels beside each other are one call where the smallest loop leaves registers for that. C is asked for
   ahead: where it lies in memory, the wait would otherwise be at the end of each tile. Its last line is
   enough: a line that it shares with the tile before it was asked for by that. (Two vectors of 16 lanes are
   two lines.) */
#define DML__DEFINE_TILE(isa, target, r, v, form)                                                            \
    target DML__PASSES_##isa DML__ALIGNED_LOOPS static void dml__tile_##isa##_##r##x##v##_##form(            \
        const dml__tile *tile, ptrdiff_t a_down, ptrdiff_t c_down, int panel)                                \
    {                                                                                                        \
        const bool first = form == DML__ANY_TILE, all = first || form == DML__ANY_BELOW;                     \
        do dml__compute_##isa(tile, first ? 0 : a_down, first ? 0 : c_down, panel, r, v, form);              \
        while (all && ++panel < tile->panels);                                                               \
    }
/* Tiles of fewer rows come once at the edge of a product, so one form is enough of them: the others would be
   40 % of what a compiler has to do here. (Of six, sixteen rows are two tiles of five beside one of six.) */
#define DML__DEFINE_EDGE(isa, target, r) DML__DEFINE_TILE(isa, target, r, 2, DML__ANY_BELOW)
#define DML__DEFINE_WHOLE(isa, target, r)                                                                    \
    DML__DEFINE_EDGE(isa, target, r)                                                                         \
    DML__DEFINE_TILE(isa, target, r, 2, DML__ANY_TILE)                                                       \
    DML__DEFINE_TILE(isa, target, r, 2, DML__BY_FOURS)                                                       \
    DML__DEFINE_TILE(isa, target, r, 2, DML__A_PACKED)
#define DML__DEFINE_TILES(isa, target, r)                                                                    \
    DML__DEFINE_TILE(isa, target, r, 1, DML__ONE_VECTOR) DML__DEFINE_WHOLE(isa, target, r)
typedef void (*dml__tile_function)(const dml__tile *tile, ptrdiff_t a_down, ptrdiff_t c_down, int panel);

/* Tiles below each other, and so many panels of each. */
static inline void dml__run_tiles(const dml__tile *tile, dml__tile_function function, int panels)
{
    ptrdiff_t a_down = 0, c_down = 0;
    for (int d = 0; d < tile->below; d++, a_down += tile->a_below, c_down += tile->c_below)
        for (int n = 0; n < panels; n++) function(tile, a_down, c_down, n);
}

/* Tiles of more than a vector; `functions` are those for their rows. */
static inline void dml__run_panels(const dml__tile *tile, int lanes, const dml__tile_function *functions)
{
    const int any = tile->below > 1 ? DML__ANY_BELOW : DML__ANY_TILE;
    const int form = tile->columns < 2 * lanes ? any
                     : tile->a_packed          ? DML__A_PACKED
                     : tile->k % 4 == 0        ? DML__BY_FOURS
                                               : any;
    const bool at_once = functions[form] == functions[any];
    dml__run_tiles(tile, functions[form], at_once ? 1 : tile->panels);
}

/* What each instruction set has, by its number of rows. */
#define DML__DEFINE_3(isa, target)                                                                           \
    DML__DEFINE_EDGE(isa, target, 1) DML__DEFINE_EDGE(isa, target, 2) DML__DEFINE_EDGE(isa, target, 3)
#define DML__DEFINE_4(isa, target) DML__DEFINE_3(isa, target) DML__DEFINE_TILES(isa, target, 4)
#define DML__DEFINE_5(isa, target)                                                                           \
    DML__DEFINE_3(isa, target) DML__DEFINE_EDGE(isa, target, 4) DML__DEFINE_EDGE(isa, target, 5)
#define DML__DEFINE_6(isa, target)                                                                           \
    DML__DEFINE_3(isa, target)                                                                               \
    DML__DEFINE_EDGE(isa, target, 4) DML__DEFINE_WHOLE(isa, target, 5) DML__DEFINE_TILES(isa, target, 6)
#define DML__DEFINE_8(isa, target)                                                                           \
    DML__DEFINE_5(isa, target)                                                                               \
    DML__DEFINE_EDGE(isa, target, 6) DML__DEFINE_EDGE(isa, target, 7) DML__DEFINE_TILES(isa, target, 8)

/* A tile of r rows by form. */
#define DML__TILE_OF(isa, r, any_tile, by_fours, a_packed)                                                   \
    {                                                                                                        \
        dml__tile_##isa##_##r##x2_##any_tile, dml__tile_##isa##_##r##x2_##by_fours,                          \
            dml__tile_##isa##_##r##x2_##a_packed, dml__tile_##isa##_##r##x2_DML__ANY_BELOW                   \
    }
#define DML__EDGE_OF(isa, r) DML__TILE_OF(isa, r, DML__ANY_BELOW, DML__ANY_BELOW, DML__ANY_BELOW)
#define DML__WHOLE_OF(isa, r) DML__TILE_OF(isa, r, DML__ANY_TILE, DML__BY_FOURS, DML__A_PACKED)
#define DML__ROWS_3(isa) DML__EDGE_OF(isa, 1), DML__EDGE_OF(isa, 2), DML__EDGE_OF(isa, 3)
#define DML__ROWS_5(isa) DML__ROWS_3(isa), DML__EDGE_OF(isa, 4), DML__EDGE_OF(isa, 5)
#define DML__ROWS_4(isa) DML__ROWS_3(isa), DML__WHOLE_OF(isa, 4)
#define DML__ROWS_6(isa) DML__ROWS_3(isa), DML__EDGE_OF(isa, 4), DML__WHOLE_OF(isa, 5), DML__WHOLE_OF(isa, 6)
#define DML__ROWS_8(isa) DML__ROWS_5(isa), DML__EDGE_OF(isa, 6), DML__EDGE_OF(isa, 7), DML__WHOLE_OF(isa, 8)

/* The micro-kernel's function, of up to 4, 6 or 8 rows; `narrow` is the form of less than a vector. */
#define DML__DEFINE_RUN(isa, target, lanes, most_rows, narrow)                                               \
    DML__DEFINE_##most_rows(isa, target) static void dml__run_##isa(const dml__tile *tile)                   \
    {                                                                                                        \
        static const dml__tile_function tiles[most_rows][DML__WIDE_FORMS] = { DML__ROWS_##most_rows(isa) };  \
        if (tile->columns > lanes)                                                                           \
            dml__run_panels(tile, lanes, tiles[tile->rows - 1]);                                             \
        else                                                                                                 \
            dml__run_tiles(tile,                                                                             \
                           tile->columns == lanes ? dml__tile_##isa##_##most_rows##x1_DML__ONE_VECTOR        \
                                                  : dml__tile_##isa##_##most_rows##x1_##narrow,              \
                           1);                                                                               \
    }

#endif
