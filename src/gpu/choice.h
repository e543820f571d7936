/* choice.h: which kernel of a family (gpu/kernel_list.h) is best on a device for how many rows and columns.
 */
#ifndef DML_GPU_CHOICE_H
#define DML_GPU_CHOICE_H

#include <stdbool.h>
#include <stddef.h>

/* The shapes of tiles, in the order of DML__TILE_KERNELS. */
typedef enum dml__tile_shape {
    DML__TILE_64x64,
    DML__TILE_64x16,
    DML__TILE_16x64,
    DML__TILE_16x16,
    DML__TILE_SHAPES
} dml__tile_shape;

/* Whether a device has the solo kernels, and whether they are its best. */
typedef enum dml__solo_use { DML__SOLO_NONE, DML__SOLO_BY_NAME, DML__SOLO_BEST } dml__solo_use;

/* Classes of sizes of columns or rows: up to 16, 64, 256, 1024, and more. */
enum { DML__TUNE_CLASSES = 5 };

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

/* Of size{columns, rows}. Unless it was measured: few rows or columns take tiles with few, and so does what
   is else fewer groups than the device has units. */
static inline dml__tile_shape dml__choose_tile(const dml__choice *choice, const size_t size[2])
{
    bool few_columns = size[0] <= 16, few_rows = size[1] <= 16;
    const size_t units = (size_t)choice->units, columns = (size[0] + 63) / 64, rows = (size[1] + 63) / 64;
    if (choice->measured)
        return (dml__tile_shape)choice->tile[dml__tune_class(size[1])][dml__tune_class(size[0])];
    if (columns * rows < units) few_columns = true;
    if ((few_columns ? (size[0] + 15) / 16 : columns) * rows < units) few_rows = true;
    if (few_columns) return few_rows ? DML__TILE_16x16 : DML__TILE_64x16;
    return few_rows ? DML__TILE_16x64 : DML__TILE_64x64;
}

#endif
