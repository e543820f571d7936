/* choice.h: which kernel of a family (gpu/kernel_list.h) is best on a device for how many rows and columns.
 */
#ifndef DML_GPU_CHOICE_H
#define DML_GPU_CHOICE_H

#include <stdbool.h>
#include <stddef.h>

/* The shapes of tiles, in the order of DML__TILE_KERNELS. */
typedef enum dml__tile_shape {
    DML__TILE_128x128,
    DML__TILE_128x64,
    DML__TILE_64x64,
    DML__TILE_64x16,
    DML__TILE_16x64,
    DML__TILE_16x16,
    DML__TILE_SHAPES
} dml__tile_shape;

/* Whether a device has the solo kernels, and whether they are its best. */
typedef enum dml__solo_use { DML__SOLO_NONE, DML__SOLO_BY_NAME, DML__SOLO_BEST } dml__solo_use;

/* Classes of sizes of columns or rows: up to 16, 64, 256, ... 16384, and more. */
enum { DML__TUNE_CLASSES = 7 };

typedef struct dml__choice {
    dml__solo_use solo;
    int units;     /* how many groups it runs at once, at least */
    bool measured; /* then this is best for classes of rows and columns; else the rule below says */
    unsigned char tile[DML__TUNE_CLASSES][DML__TUNE_CLASSES];
} dml__choice;

static inline int dml__tune_class(size_t n)
{
    int c = 0;
    for (size_t most = 16; c + 1 < DML__TUNE_CLASSES && n > most; most *= 4) c++;
    return c;
}

/* What a shape is expected to take for `size`: its groups, as often as the device has to be filled with them,
   times what one takes, which isn't less in proportion where tiles are small. */
static inline double dml__tile_cost(const dml__choice *choice, const size_t size[2], dml__tile_shape shape)
{
    static const struct {
        size_t rows, columns;
        double cost;
    } of[DML__TILE_SHAPES] = { { 128, 128, 16 }, { 128, 64, 9 }, { 64, 64, 6 },
                               { 64, 16, 3 },    { 16, 64, 3 },  { 16, 16, 2 } };
    const size_t groups = ((size[0] + of[shape].columns - 1) / of[shape].columns) *
                          ((size[1] + of[shape].rows - 1) / of[shape].rows);
    const size_t units = choice->units > 0 ? (size_t)choice->units : 1;
    return (double)((groups + units - 1) / units) * of[shape].cost;
}

/* Of size{columns, rows}; `is_one`: larger tiles than 64 x 64 may be taken. */
static inline dml__tile_shape dml__choose_tile(const dml__choice *choice, const size_t size[2], bool is_one)
{
    const int first = is_one ? DML__TILE_128x128 : DML__TILE_64x64;
    int best = first;
    if (choice->measured) {
        best = choice->tile[dml__tune_class(size[1])][dml__tune_class(size[0])];
        return (dml__tile_shape)(best > first ? best : first);
    }
    for (int shape = first + 1; shape < DML__TILE_SHAPES; shape++)
        if (dml__tile_cost(choice, size, (dml__tile_shape)shape) <
            dml__tile_cost(choice, size, (dml__tile_shape)best))
            best = shape;
    return (dml__tile_shape)best;
}

#endif
