/* tiles.cl: sums of products through local memory, for gemm and the convolutions.

   A group computes a tile of C = A B, TILE_K products at a time: its items fill a TILE_K x rows piece of A
   and a TILE_K x columns piece of B in local memory, then each adds up a piece of its own in registers. Item
   (tx, ty) of 16 x 16 owns the rows SPAN_ROWS ty and on, which its row of items reads as one broadcast, and
   the columns tx, tx + 16, ..., so that neighbours read and write neighbours. An output's products are added
   in the order of k, whatever the tile.

   Each kernel is there in TILE_SHAPES: large tiles read less, small ones waste less where there are few rows
   or columns, and are more groups where there are few of both (gpu/launch.h chooses). */
#ifndef DML_GPU_TILES_CL
#define DML_GPU_TILES_CL

#define TILE 64 /* the largest; what launches pad to */
#define TILE_K 16
#define TILE_PAD 4 /* floats between rows, so that a column's stores spread over the banks */
#define SPAN (TILE / 16)

/* Rows and columns of a kernel's tile, constants wherever they are used, and its local memory. */
#define TILE_PARAMETERS                                                                                      \
    HERE_PARAMETER const int tile_rows, const int tile_columns, SHARED float *a_tile, SHARED float *b_tile
#define SPAN_ROWS (tile_rows / 16)
#define SPAN_COLUMNS (tile_columns / 16)
#define A_TILE(k, row) a_tile[(k) * (tile_rows + TILE_PAD) + (row)]
#define B_TILE(k, column) b_tile[(k) * (tile_columns + TILE_PAD) + (column)]

/* Kernels NAME_64x64 ... that call BODY(TILE_ARGUMENTS ...), which the caller of this macro has as a helper.
 */
#define TILE_KERNEL(name, rows, columns, body)                                                               \
    KERNEL(name##_##rows##x##columns)                                                                        \
    {                                                                                                        \
        LOCAL float a_tile[TILE_K * (rows + TILE_PAD)];                                                      \
        LOCAL float b_tile[TILE_K * (columns + TILE_PAD)];                                                   \
        body(HERE rows, columns, a_tile, b_tile, TILE_BUFFERS, arguments);                                   \
    }
#define TILE_BUFFERS BUFFER(0, const float), BUFFER(1, const float), BUFFER(2, float), BUFFER(3, float)
#define TILE_SHAPES(name, body)                                                                              \
    TILE_KERNEL(name, 64, 64, body)                                                                          \
    TILE_KERNEL(name, 64, 16, body)                                                                          \
    TILE_KERNEL(name, 16, 64, body)                                                                          \
    TILE_KERNEL(name, 16, 16, body)

/* The item fills its elements of a piece of `size` rows, or columns, in one of two orders, whichever reads
   memory in sequence: ALONG_K: its k is fixed, its rows are 16 apart; ACROSS_K: its row is fixed, its ks are
   apart. */
#define ALONG_K_K (ITEM % TILE_K)
#define ALONG_K_ROW(j) (ITEM / TILE_K + (j) * (DML__GROUP_ITEMS / TILE_K))
#define ACROSS_K_K(j, size) (ITEM / (size) + (j) * (DML__GROUP_ITEMS / (size)))
#define ACROSS_K_ROW(size) (ITEM % (size))

/* The rows and columns of the item's own piece. */
#define OWN_ROW(i) (ITEM / 16 * SPAN_ROWS + (i))
#define OWN_COLUMN(j) (ITEM % 16 + (j)*16)

/* Declares the sums and clears them. */
#define TILES_BEGIN()                                                                                        \
    float sum[SPAN][SPAN];                                                                                   \
    for (int i = 0; i < SPAN_ROWS; i++)                                                                      \
        for (int j = 0; j < SPAN_COLUMNS; j++) sum[i][j] = 0.0f

/* Adds the products of the filled tiles to the sums, and waits until all items have. */
#define TILES_MULTIPLY()                                                                                     \
    do {                                                                                                     \
        BARRIER();                                                                                           \
        for (int kk = 0; kk < TILE_K; kk++) {                                                                \
            float a_own[SPAN], b_own[SPAN];                                                                  \
            for (int i = 0; i < SPAN_ROWS; i++) a_own[i] = A_TILE(kk, OWN_ROW(i));                           \
            for (int j = 0; j < SPAN_COLUMNS; j++) b_own[j] = B_TILE(kk, OWN_COLUMN(j));                     \
            for (int i = 0; i < SPAN_ROWS; i++)                                                              \
                for (int j = 0; j < SPAN_COLUMNS; j++) sum[i][j] += a_own[i] * b_own[j];                     \
        }                                                                                                    \
        BARRIER();                                                                                           \
    } while (0)

/* Where a group works in many matrices of C, laid one after the other: `matrices` of them, each the sum over
   `terms` products; a group below all of them has nothing to do. The arguments are gemm's. */
typedef struct dml__gpu_matrix {
    int matrices, terms, matrix, row;
} dml__gpu_matrix;

HELPER dml__gpu_matrix dml__gpu_matrix_at(int tile, int tile_rows, const dml__kernel_arguments arguments)
{
    const int tiles = (INT(0) + TILE - 1) / TILE * (TILE / tile_rows);
    dml__gpu_matrix at;
    at.matrices = 1, at.terms = 1;
    at.matrix = tile / tiles, at.row = tile % tiles * tile_rows;
    for (int d = 0; d < 4 && INT(8 + d); d++) {
        if (INT(12) >> 3 * d & 4)
            at.matrices *= INT(8 + d);
        else
            at.terms *= INT(8 + d);
    }
    return at;
}

/* Where A and B of one of a matrix' terms begin, in floats. */
typedef struct dml__gpu_factors {
    WIDE a, b;
} dml__gpu_factors;

HELPER dml__gpu_factors dml__gpu_factors_of(int matrix, int term, const dml__kernel_arguments arguments)
{
    WIDE a_step = (WIDE)INT(0) * INT(2), b_step = (WIDE)INT(2) * INT(1);
    dml__gpu_factors of;
    of.a = 0, of.b = 0;
    for (int d = 3; d >= 0; d--) {
        const int size = INT(8 + d), has = INT(12) >> 3 * d;
        int at = 0;
        if (size == 0) continue;
        if (has & 4) {
            at = matrix % size;
            matrix /= size;
        } else {
            at = term % size;
            term /= size;
        }
        if (has & 1) {
            of.a += at * a_step;
            a_step *= size;
        }
        if (has & 2) {
            of.b += at * b_step;
            b_step *= size;
        }
    }
    return of;
}

/* C = alpha op(A) op(B) + beta C, row-major, of one matrix or of all in up to four axes that they lie along,
   outermost first, each operand's one after the other. An axis that C hasn't is summed over, one that A or B
   hasn't repeats it. Buffers a, b, c; ints m, n, k, trans_a, trans_b, lda, ldb, ldc, 8 .. 11: the axes' sizes
   (0: no more), 12: for each three bits, whether A, B and C have it; floats alpha, beta; size{n, m}, of
   several matrices of C size{n, matrices * (m rounded up to TILE)}. */
HELPER void dml__gemm_tile(TILE_PARAMETERS, GLOBAL const float *first_a, GLOBAL const float *first_b,
                           GLOBAL float *c, GLOBAL float *unused, const dml__kernel_arguments arguments)
{
    const int m = INT(0), n = INT(1), depth = INT(2);
    const int trans_a = INT(3), trans_b = INT(4);
    const WIDE a_row = trans_a ? 1 : INT(5), a_k = trans_a ? INT(5) : 1; /* the steps of rows and ks */
    const WIDE b_column = trans_b ? INT(6) : 1, b_k = trans_b ? 1 : INT(6);
    const WIDE ldc = INT(7);
    const float alpha = REAL(0), beta = REAL(1);
    const dml__gpu_matrix at = dml__gpu_matrix_at(GROUP_Y, tile_rows, arguments);
    const int row0 = at.row, column0 = GROUP_X * tile_columns;
    TILES_BEGIN();
    for (int term = 0; term < at.terms && at.matrix < at.matrices; term++) {
        const dml__gpu_factors of = dml__gpu_factors_of(at.matrix, term, arguments);
        GLOBAL const float *a = first_a + of.a;
        GLOBAL const float *b = first_b + of.b;
        for (int k0 = 0; k0 < depth; k0 += TILE_K) {
            for (int j = 0; j < SPAN_ROWS; j++) {
                const int k = trans_a ? ACROSS_K_K(j, tile_rows) : ALONG_K_K;
                const int i = trans_a ? ACROSS_K_ROW(tile_rows) : ALONG_K_ROW(j), row = row0 + i;
                A_TILE(k, i) = row < m && k0 + k < depth ? a[row * a_row + (k0 + k) * a_k] : 0.0f;
            }
            for (int j = 0; j < SPAN_COLUMNS; j++) {
                const int k = trans_b ? ALONG_K_K : ACROSS_K_K(j, tile_columns);
                const int i = trans_b ? ALONG_K_ROW(j) : ACROSS_K_ROW(tile_columns), column = column0 + i;
                B_TILE(k, i) = column < n && k0 + k < depth ? b[column * b_column + (k0 + k) * b_k] : 0.0f;
            }
            TILES_MULTIPLY();
        }
    }
    for (int i = 0; i < SPAN_ROWS && at.matrix < at.matrices; i++) {
        for (int j = 0; j < SPAN_COLUMNS; j++) {
            const int row = row0 + OWN_ROW(i), column = column0 + OWN_COLUMN(j);
            if (row < m && column < n) {
                GLOBAL float *to = c + ((WIDE)at.matrix * m + row) * ldc + column;
                *to = dml__with_beta(alpha * sum[i][j], beta, to);
            }
        }
    }
}
TILE_SHAPES(gemm, dml__gemm_tile)

#endif
