/* tiles.cl: sums of products through local memory, for gemm and the convolutions.

   A group computes a tile of C = A B, TILE_K products at a time: its items fill a TILE_K x rows piece of A
   and a TILE_K x columns piece of B in local memory, then each adds up a piece of its own in registers. Item
   (tx, ty) of 16 x 16 owns the rows SPAN_ROWS ty and on, which its row of items reads as one broadcast, and
   of every 64 columns four neighbours, 4 tx and on: so both are read four floats at once. (Of 16 columns it
   owns one.) An output's products are added in the order of k, whatever the tile.

   While a piece is multiplied the next one is on its way from memory into registers: a loop over pieces
   loads one, then multiplies the one before it (TILES_MULTIPLY), then puts down what it loaded.

   Each kernel is there in TILE_SHAPES: large tiles read less, small ones waste less where there are few rows
   or columns, and are more groups where there are few of both (gpu/launch.h chooses). A tile larger than TILE
   is only for launches that are one product: of several, each begins at a multiple of TILE. */
#ifndef DML_GPU_TILES_CL
#define DML_GPU_TILES_CL

#define TILE 64 /* what launches of several products pad each to */
/* How many products at a time: the largest tile needs the registers. */
#define TILE_K_OF(columns) ((columns) > TILE ? 8 : 16)
#define TILE_K TILE_K_OF(tile_columns)
#define TILE_PAD 4 /* floats between rows, so that a column's stores spread over the banks */
#define SPAN (TILE / 16)
#define MOST_TILE 128 /* the largest; what launches of several shares pad each to */
#define MOST_SPAN (MOST_TILE / 16)

/* Rows and columns of a kernel's tile, constants wherever they are used, and its local memory. */
#define TILE_PARAMETERS                                                                                      \
    HERE_PARAMETER const int tile_rows, const int tile_columns, SHARED float *a_tile, SHARED float *b_tile
#define SPAN_ROWS (tile_rows / 16)
#define SPAN_COLUMNS (tile_columns / 16)
#define TAKES_ROWS (tile_rows * TILE_K / DML__GROUP_ITEMS) /* how many elements of a piece an item fills */
#define TAKES_COLUMNS (tile_columns * TILE_K / DML__GROUP_ITEMS)
#define A_TILE(k, row) a_tile[(k) * (tile_rows + TILE_PAD) + (row)]
#define B_TILE(k, column) b_tile[(k) * (tile_columns + TILE_PAD) + (column)]

/* Kernels NAME_64x64 ... that call BODY(TILE_ARGUMENTS ...), which the caller of this macro has as a helper.
 */
#define TILE_KERNEL(name, rows, columns, body)                                                               \
    KERNEL(name##_##rows##x##columns)                                                                        \
    {                                                                                                        \
        LOCAL_QUADS float a_tile[TILE_K_OF(columns) * (rows + TILE_PAD)];                                    \
        LOCAL_QUADS float b_tile[TILE_K_OF(columns) * (columns + TILE_PAD)];                                 \
        body(HERE rows, columns, a_tile, b_tile, TILE_BUFFERS, arguments);                                   \
    }
#define TILE_BUFFERS BUFFER(0, const float), BUFFER(1, const float), BUFFER(2, float), BUFFER(3, float)
#define TILE_SHAPES(name, body)                                                                              \
    TILE_KERNEL(name, 128, 128, body)                                                                        \
    TILE_KERNEL(name, 128, 64, body)                                                                         \
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
#define OWN_COLUMN(j) (SPAN_COLUMNS % 4 ? ITEM % 16 + (j)*16 : (j) / 4 * 64 + ITEM % 16 * 4 + (j) % 4)

/* Declares the sums and clears them, and what is loaded of the next piece. */
#define TILES_BEGIN()                                                                                        \
    float sum[MOST_SPAN][MOST_SPAN];                                                                         \
    UNROLL for (int i = 0; i < SPAN_ROWS; i++) UNROLL for (int j = 0; j < SPAN_COLUMNS; j++) sum[i][j] = 0.0f

#define TILES_NEXT() float a_next[MOST_SPAN], b_next[MOST_SPAN]

/* own[i] = what the item has of row kk of a filled piece. */
#define TILES_OWN(own, span, TILE_AT, OWN)                                                                   \
    do {                                                                                                     \
        if ((span) % 4 == 0) {                                                                               \
            UNROLL for (int q = 0; q < (span) / 4; q++)                                                      \
            {                                                                                                \
                const QUAD four = QUAD_AT(&TILE_AT(kk, OWN(4 * q)));                                         \
                own[4 * q] = four.x, own[4 * q + 1] = four.y, own[4 * q + 2] = four.z,                       \
                        own[4 * q + 3] = four.w;                                                             \
            }                                                                                                \
        } else {                                                                                             \
            UNROLL for (int q = 0; q < (span); q++) own[q] = TILE_AT(kk, OWN(q));                            \
        }                                                                                                    \
    } while (0)

/* Adds the products of the filled tiles to the sums, and waits until all items have. */
#define TILES_MULTIPLY()                                                                                     \
    do {                                                                                                     \
        BARRIER();                                                                                           \
        UNROLL for (int kk = 0; kk < TILE_K; kk++)                                                           \
        {                                                                                                    \
            float a_own[MOST_SPAN], b_own[MOST_SPAN];                                                        \
            TILES_OWN(a_own, SPAN_ROWS, A_TILE, OWN_ROW);                                                    \
            TILES_OWN(b_own, SPAN_COLUMNS, B_TILE, OWN_COLUMN);                                              \
            UNROLL for (int i = 0; i < SPAN_ROWS; i++) UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)         \
                sum[i][j] += a_own[i] * b_own[j];                                                            \
        }                                                                                                    \
        BARRIER();                                                                                           \
    } while (0)

/* Puts down what was loaded, in the order in which it was. */
#define TILES_FILL_A(across)                                                                                 \
    UNROLL for (int j = 0; j < TAKES_ROWS; j++)                                                              \
        A_TILE((across) ? ACROSS_K_K(j, tile_rows) : ALONG_K_K,                                              \
               (across) ? ACROSS_K_ROW(tile_rows) : ALONG_K_ROW(j)) = a_next[j]
#define TILES_FILL_B(across)                                                                                 \
    UNROLL for (int j = 0; j < TAKES_COLUMNS; j++)                                                           \
        B_TILE((across) ? ACROSS_K_K(j, tile_columns) : ALONG_K_K,                                           \
               (across) ? ACROSS_K_ROW(tile_columns) : ALONG_K_ROW(j)) = b_next[j]

/* Where a group works in many matrices of C, laid one after the other: `matrices` of them, each the sum over
   `terms` products; a group below all of them has nothing to do. The arguments are gemm's. */
typedef struct dml__gpu_matrix {
    int matrices, terms, matrix, row;
} dml__gpu_matrix;

HELPER dml__gpu_matrix dml__gpu_matrix_at(int tile, int tile_rows, const dml__kernel_arguments arguments)
{
    dml__gpu_matrix at;
    at.matrices = 1, at.terms = 1;
    at.matrix = 0, at.row = tile * tile_rows;
    if (tile_rows > TILE) return at;
    const int tiles = (INT(0) + TILE - 1) / TILE * (TILE / tile_rows);
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

/* A long sum's parts may be those of different groups, each with a C of its own, one after the other: which
   of these a group's is, its first column (or row), and its ks [from, to). A whole number of pieces each, so
   that it is the same sum in every kernel. */
#define SHARE_KS 64
typedef struct dml__gpu_share {
    int number, column, from, to;
} dml__gpu_share;

HELPER dml__gpu_share dml__gpu_share_at(int tile, int tile_columns, int columns, int depth, int shares)
{
    const int tiles = (columns + MOST_TILE - 1) / MOST_TILE * (MOST_TILE / tile_columns);
    const int ks = ((depth - 1) / shares / SHARE_KS + 1) * SHARE_KS;
    dml__gpu_share s;
    s.number = tile / tiles;
    s.column = tile % tiles * tile_columns;
    s.from = s.number < shares && depth / ks >= s.number ? s.number * ks : depth;
    s.to = depth - s.from > ks ? s.from + ks : depth;
    return s;
}

/* C = alpha op(A) op(B) + beta C, row-major, of one matrix or of all in up to four axes that they lie along,
   outermost first, each operand's one after the other. An axis that C hasn't is summed over, one that A or B
   hasn't repeats it. Buffers a, b, c, bias (of columns, or NULL), which is added; ints m, n, k, trans_a,
   trans_b, lda, ldb, ldc, 8 .. 11: the axes' sizes (0: no more), 12: for each three bits, whether A, B and C
   have it, 13: of one matrix, in how many shares of k (0 is 1), each with a C of its own; floats alpha, beta,
   1 with the relu; size{n, m}, of several matrices of C size{n, matrices * (m rounded up to TILE)}, in tiles
   of TILE at most; of several shares size{n, shares * (m rounded up to MOST_TILE)}. */
HELPER void dml__gemm_tile(TILE_PARAMETERS, GLOBAL const float *first_a, GLOBAL const float *first_b,
                           GLOBAL float *c, GLOBAL const float *bias, const dml__kernel_arguments arguments)
{
    const int m = INT(0), n = INT(1);
    const int trans_a = INT(3), trans_b = INT(4);
    const WIDE ldc = INT(7);
    const float alpha = REAL(0), beta = REAL(1);
    const int shares = INT(13) > 1 ? INT(13) : 1;
    const dml__gpu_matrix at = dml__gpu_matrix_at(shares > 1 ? 0 : GROUP_Y, tile_rows, arguments);
    dml__gpu_share share = { 0, at.row, 0, INT(2) };
    if (shares > 1) share = dml__gpu_share_at(GROUP_Y, tile_rows, m, INT(2), shares);
    const int row0 = share.column, column0 = GROUP_X * tile_columns, from = share.from, depth = share.to;
    const int is_one = at.matrix < at.matrices && share.number < shares && row0 < m;
    /* Of what the item fills: its first k and how many rows are left from its first on, then what it has to
       step in memory, in rows and in ks from one element to its next, and in memory from one piece to the
       next. */
    const int a_k = trans_a ? ACROSS_K_K(0, tile_rows) : ALONG_K_K;
    const int a_left = m - row0 - (trans_a ? ACROSS_K_ROW(tile_rows) : ALONG_K_ROW(0));
    const int b_k = trans_b ? ALONG_K_K : ACROSS_K_K(0, tile_columns);
    const int b_left = n - column0 - (trans_b ? ALONG_K_ROW(0) : ACROSS_K_ROW(tile_columns));
    const int a_rows = trans_a ? 0 : ALONG_K_ROW(1) - ALONG_K_ROW(0);
    const int a_ks = trans_a ? ACROSS_K_K(1, tile_rows) - ACROSS_K_K(0, tile_rows) : 0;
    const int b_rows = trans_b ? ALONG_K_ROW(1) - ALONG_K_ROW(0) : 0;
    const int b_ks = trans_b ? 0 : ACROSS_K_K(1, tile_columns) - ACROSS_K_K(0, tile_columns);
    const WIDE a_step = (WIDE)(a_rows + a_ks) * INT(5), a_piece = (WIDE)TILE_K * (trans_a ? INT(5) : 1);
    const WIDE b_step = (WIDE)(b_rows + b_ks) * INT(6), b_piece = (WIDE)TILE_K * (trans_b ? 1 : INT(6));
    TILES_BEGIN();
    TILES_NEXT();
    for (int term = 0; term < at.terms && is_one; term++) {
        const dml__gpu_factors of = dml__gpu_factors_of(at.matrix, term, arguments);
        GLOBAL const float *a =
            first_a + of.a +
            (trans_a ? (WIDE)(from + a_k) * INT(5) + (m - a_left) : (WIDE)(m - a_left) * INT(5) + from + a_k);
        GLOBAL const float *b =
            first_b + of.b +
            (trans_b ? (WIDE)(n - b_left) * INT(6) + from + b_k : (WIDE)(from + b_k) * INT(6) + (n - b_left));
        for (int k0 = from; k0 < depth + TILE_K; k0 += TILE_K) {
            UNROLL for (int j = 0; j < TAKES_ROWS; j++) a_next[j] =
                j * a_rows < a_left && k0 + a_k + j * a_ks < depth ? a[j * a_step] : 0.0f;
            UNROLL for (int j = 0; j < TAKES_COLUMNS; j++) b_next[j] =
                j * b_rows < b_left && k0 + b_k + j * b_ks < depth ? b[j * b_step] : 0.0f;
            a += a_piece, b += b_piece;
            if (k0 > from) TILES_MULTIPLY();
            TILES_FILL_A(trans_a);
            TILES_FILL_B(!trans_b);
        }
    }
    UNROLL for (int i = 0; i < SPAN_ROWS; i++)
    {
        UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)
        {
            const int row = row0 + OWN_ROW(i), column = column0 + OWN_COLUMN(j);
            if (is_one && row < m && column < n) {
                GLOBAL float *to = c + ((WIDE)(at.matrix + share.number) * m + row) * ldc + column;
                const float value = bias ? alpha * sum[i][j] + bias[column] : alpha * sum[i][j];
                *to = dml__with_relu(dml__with_beta(value, beta, to), REAL(2) != 0.0f);
            }
        }
    }
}
TILE_SHAPES(gemm, dml__gemm_tile)

#endif
