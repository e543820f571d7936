/* tiles.cl: sums of products through local memory, for gemm and the convolutions.

   A group computes a TILE x TILE piece of C = A B, TILE_K products at a time: its items fill a TILE_K x TILE
   piece of A and of B in local memory, then each adds up a SPAN x SPAN piece of its own in registers. Item
   (tx, ty) of 16 x 16 owns rows SPAN ty .. + SPAN - 1, which its row of items reads as one broadcast, and the
   columns tx, tx + 16, ..., so that neighbours read and write neighbours. An output's products are added in
   the order of k, whatever the group. */
#ifndef DML_GPU_TILES_CL
#define DML_GPU_TILES_CL

#define TILE 64
#define TILE_K 16
#define SPAN 4
#define TILE_PAD 4 /* floats between rows, so that a column's stores spread over the banks */

/* The item fills SPAN elements of each tile, in one of two orders, whichever reads memory in sequence:
   ALONG_K: its k is fixed, its rows are 16 apart; ACROSS_K: its row is fixed, its ks are 4 apart. */
#define ALONG_K_K (ITEM % TILE_K)
#define ALONG_K_ROW(j) (ITEM / TILE_K + (j) * (DML__GROUP_ITEMS / TILE_K))
#define ACROSS_K_K(j) (ITEM / TILE + (j) * (DML__GROUP_ITEMS / TILE))
#define ACROSS_K_ROW (ITEM % TILE)

/* The rows and columns of the item's own piece. */
#define OWN_ROW(i) (ITEM / 16 * SPAN + (i))
#define OWN_COLUMN(j) (ITEM % 16 + (j)*16)

/* Declares the tiles and clears the sums; local memory can't be passed to a function, hence macros. */
#define TILES_BEGIN()                                                                                        \
    LOCAL float a_tile[TILE_K][TILE + TILE_PAD];                                                             \
    LOCAL float b_tile[TILE_K][TILE + TILE_PAD];                                                             \
    float sum[SPAN][SPAN];                                                                                   \
    for (int i = 0; i < SPAN; i++)                                                                           \
        for (int j = 0; j < SPAN; j++) sum[i][j] = 0.0f

/* Adds the products of the filled tiles to the sums, and waits until all items have. */
#define TILES_MULTIPLY()                                                                                     \
    do {                                                                                                     \
        BARRIER();                                                                                           \
        for (int kk = 0; kk < TILE_K; kk++) {                                                                \
            float a_own[SPAN], b_own[SPAN];                                                                  \
            for (int i = 0; i < SPAN; i++) a_own[i] = a_tile[kk][OWN_ROW(i)];                                \
            for (int j = 0; j < SPAN; j++) b_own[j] = b_tile[kk][OWN_COLUMN(j)];                             \
            for (int i = 0; i < SPAN; i++)                                                                   \
                for (int j = 0; j < SPAN; j++) sum[i][j] += a_own[i] * b_own[j];                             \
        }                                                                                                    \
        BARRIER();                                                                                           \
    } while (0)

/* Where a group works in many matrices of C, laid one after the other: `matrices` of them, each the sum over
   `terms` products; a group below all of them has nothing to do. The arguments are gemm's. */
typedef struct dml__gpu_matrix {
    int matrices, terms, matrix, row;
} dml__gpu_matrix;

HELPER dml__gpu_matrix dml__gpu_matrix_at(int tile, const dml__kernel_arguments arguments)
{
    const int tiles = (INT(0) + TILE - 1) / TILE;
    dml__gpu_matrix at;
    at.matrices = 1, at.terms = 1;
    at.matrix = tile / tiles, at.row = tile % tiles * TILE;
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
KERNEL(gemm_tiles)
{
    GLOBAL float *c = BUFFER(2, float);
    const int m = INT(0), n = INT(1), depth = INT(2);
    const int trans_a = INT(3), trans_b = INT(4);
    const WIDE a_row = trans_a ? 1 : INT(5), a_k = trans_a ? INT(5) : 1; /* the steps of rows and ks */
    const WIDE b_column = trans_b ? INT(6) : 1, b_k = trans_b ? 1 : INT(6);
    const WIDE ldc = INT(7);
    const float alpha = REAL(0), beta = REAL(1);
    const dml__gpu_matrix at = dml__gpu_matrix_at(GROUP_Y, arguments);
    const int row0 = at.row, column0 = GROUP_X * TILE;
    TILES_BEGIN();
    for (int term = 0; term < at.terms && at.matrix < at.matrices; term++) {
        const dml__gpu_factors of = dml__gpu_factors_of(at.matrix, term, arguments);
        GLOBAL const float *a = BUFFER(0, const float) + of.a;
        GLOBAL const float *b = BUFFER(1, const float) + of.b;
        for (int k0 = 0; k0 < depth; k0 += TILE_K) {
            for (int j = 0; j < SPAN; j++) {
                const int ak = trans_a ? ACROSS_K_K(j) : ALONG_K_K,
                          ai = trans_a ? ACROSS_K_ROW : ALONG_K_ROW(j);
                const int bk = trans_b ? ALONG_K_K : ACROSS_K_K(j),
                          bi = trans_b ? ALONG_K_ROW(j) : ACROSS_K_ROW;
                const int row = row0 + ai, column = column0 + bi;
                a_tile[ak][ai] = row < m && k0 + ak < depth ? a[row * a_row + (k0 + ak) * a_k] : 0.0f;
                b_tile[bk][bi] =
                    column < n && k0 + bk < depth ? b[column * b_column + (k0 + bk) * b_k] : 0.0f;
            }
            TILES_MULTIPLY();
        }
    }
    for (int i = 0; i < SPAN && at.matrix < at.matrices; i++) {
        for (int j = 0; j < SPAN; j++) {
            const int row = row0 + OWN_ROW(i), column = column0 + OWN_COLUMN(j);
            if (row < m && column < n) {
                GLOBAL float *to = c + ((WIDE)at.matrix * m + row) * ldc + column;
                *to = dml__with_beta(alpha * sum[i][j], beta, to);
            }
        }
    }
}

#endif
