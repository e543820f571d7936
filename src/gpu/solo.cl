/* solo.cl: the kernels of tiles.cl and conv2d.cl where an item is a whole processor core: a group of one item
   computes the same TILE x TILE piece with vectors, and nobody waits at a barrier.

   It fills SOLO_K products' pieces of A and B, and adds them up in blocks of SOLO_ROWS x 2 vectors that stay
   in registers. A lies as it is read at least cost, by rows or by k; of each element all lanes take a copy. B
   lies by k, its columns in sequence. As in tiles.cl an output's products are added in the order of k. */
#ifndef DML_GPU_SOLO_CL
#define DML_GPU_SOLO_CL
#ifdef SOLO_KERNEL

#define SOLO_K 64
#define SOLO_ROWS 8

/* The pieces, and how many rows and columns of them count. */
typedef struct dml__solo {
    SHARED float *a, *b, *sum; /* b[k][TILE], sum[TILE][TILE] */
    int a_row, a_k;            /* the steps of rows and ks in a: SOLO_K and 1, or 1 and TILE */
    int rows, columns;
} dml__solo;

/* Declares a group's pieces; `by_k`: A lies by k. */
#define SOLO_BEGIN(by_k, row_count, column_count)                                                            \
    LOCAL ALIGNED float a_piece[TILE * SOLO_K];                                                              \
    LOCAL ALIGNED float b_piece[SOLO_K * TILE];                                                              \
    LOCAL ALIGNED float sum_piece[TILE * TILE];                                                              \
    dml__solo piece;                                                                                         \
    piece.a = a_piece, piece.b = b_piece, piece.sum = sum_piece;                                             \
    piece.a_row = (by_k) ? 1 : SOLO_K, piece.a_k = (by_k) ? TILE : 1;                                        \
    piece.rows = (row_count), piece.columns = (column_count);                                                \
    if (piece.rows > TILE) piece.rows = TILE;                                                                \
    if (piece.columns > TILE) piece.columns = TILE;                                                          \
    dml__solo_clear(piece)

HELPER int dml__solo_up(int n, int to)
{
    return (n + to - 1) / to * to;
}

/* Clears the sums, and what lies in A and B beyond their rows and columns, which is read with them. */
HELPER void dml__solo_clear(const dml__solo s)
{
    for (int i = 0; i < TILE * TILE; i++) s.sum[i] = 0.0f;
    if (s.columns < TILE)
        for (int i = 0; i < SOLO_K * TILE; i++) s.b[i] = 0.0f;
    if (s.rows < TILE)
        for (int i = 0; i < TILE * SOLO_K; i++) s.a[i] = 0.0f;
}

HELPER void dml__solo_copy(SHARED float *to, GLOBAL const float *from, int n)
{
    int i = 0;
    for (; i + VECTOR_LANES <= n; i += VECTOR_LANES) VECTOR_STORE(to + i, VECTOR_LOAD(from + i));
    for (; i < n; i++) to[i] = from[i];
}

HELPER void dml__solo_zero(SHARED float *to, int n)
{
    for (int i = 0; i < n; i++) to[i] = 0.0f;
}

/* B of rows that lie by k: b[k][column] = from[column * step + k]. */
HELPER void dml__solo_turn(const dml__solo s, GLOBAL const float *from, WIDE step, int depth)
{
    for (int column = 0; column < s.columns; column++)
        for (int k = 0; k < depth; k++) s.b[k * TILE + column] = from[column * step + k];
}

/* Adds `depth` products to SOLO_ROWS rows and VECTORS vectors of columns. */
#define SOLO_BLOCK(name, VECTORS)                                                                            \
    HELPER void name(const dml__solo s, int row, int column, int depth)                                      \
    {                                                                                                        \
        SHARED const float *a = s.a + row * s.a_row;                                                         \
        SHARED const float *b = s.b + column;                                                                \
        SHARED float *sum = s.sum + row * TILE + column;                                                     \
        VECTOR total[SOLO_ROWS][VECTORS];                                                                    \
        UNROLL for (int i = 0; i < SOLO_ROWS; i++) UNROLL for (int j = 0; j < VECTORS; j++) total[i][j] =    \
            VECTOR_LOAD(sum + i * TILE + j * VECTOR_LANES);                                                  \
        for (int k = 0; k < depth; k++) {                                                                    \
            VECTOR own[VECTORS];                                                                             \
            UNROLL for (int j = 0; j < VECTORS; j++) own[j] = VECTOR_LOAD(b + k * TILE + j * VECTOR_LANES);  \
            UNROLL for (int i = 0; i < SOLO_ROWS; i++)                                                       \
            {                                                                                                \
                const float factor = a[i * s.a_row + k * s.a_k];                                             \
                UNROLL for (int j = 0; j < VECTORS; j++) total[i][j] =                                       \
                    VECTOR_ADD_PRODUCT(total[i][j], factor, own[j]);                                         \
            }                                                                                                \
        }                                                                                                    \
        UNROLL for (int i = 0; i < SOLO_ROWS; i++) UNROLL for (int j = 0; j < VECTORS; j++)                  \
            VECTOR_STORE(sum + i * TILE + j * VECTOR_LANES, total[i][j]);                                    \
    }
SOLO_BLOCK(dml__solo_block, 2)
SOLO_BLOCK(dml__solo_last_block, 1)

/* Adds the `depth` products of the filled pieces to the sums. */
HELPER void dml__solo_multiply(const dml__solo s, int depth)
{
    for (int column = 0; column < s.columns; column += 2 * VECTOR_LANES)
        for (int row = 0; row < s.rows; row += SOLO_ROWS) {
            if (column + VECTOR_LANES < s.columns)
                dml__solo_block(s, row, column, depth);
            else
                dml__solo_last_block(s, row, column, depth);
        }
}

/* c = alpha sums + bias + beta c. */
HELPER void dml__solo_write(const dml__solo s, GLOBAL float *c, WIDE step, float alpha, float beta,
                            GLOBAL const float *bias)
{
    for (int row = 0; row < s.rows; row++) {
        GLOBAL float *to = c + row * step;
        SHARED const float *sum = s.sum + row * TILE;
        if (bias)
            for (int j = 0; j < s.columns; j++)
                to[j] = dml__with_beta(alpha * sum[j] + bias[j], beta, to + j);
        else
            for (int j = 0; j < s.columns; j++) to[j] = dml__with_beta(alpha * sum[j], beta, to + j);
    }
}

/* What gemm_tiles computes, of the same arguments. */
SOLO_KERNEL(gemm_solo)
{
    GLOBAL const float *first_a = BUFFER(0, const float);
    GLOBAL const float *first_b = BUFFER(1, const float);
    const int m = INT(0), n = INT(1), depth = INT(2);
    const int trans_a = INT(3), trans_b = INT(4);
    const WIDE lda = INT(5), ldb = INT(6), ldc = INT(7);
    const dml__gpu_matrix at = dml__gpu_matrix_at(GROUP_Y, arguments);
    const int row0 = at.row, column0 = GROUP_X * TILE;
    if (at.matrix >= at.matrices) return;
    SOLO_BEGIN(trans_a, m - row0, n - column0);
    for (int term = 0; term < at.terms; term++) {
        const dml__gpu_factors of = dml__gpu_factors_of(at.matrix, term, arguments);
        GLOBAL const float *a = first_a + of.a;
        GLOBAL const float *b = first_b + of.b;
        for (int k0 = 0; k0 < depth; k0 += SOLO_K) {
            const int ks = depth - k0 < SOLO_K ? depth - k0 : SOLO_K;
            if (trans_a)
                for (int k = 0; k < ks; k++)
                    dml__solo_copy(piece.a + k * TILE, a + (k0 + k) * lda + row0, piece.rows);
            else
                for (int row = 0; row < piece.rows; row++)
                    dml__solo_copy(piece.a + row * SOLO_K, a + (row0 + row) * lda + k0, ks);
            if (trans_b)
                dml__solo_turn(piece, b + column0 * ldb + k0, ldb, ks);
            else
                for (int k = 0; k < ks; k++)
                    dml__solo_copy(piece.b + k * TILE, b + (k0 + k) * ldb + column0, piece.columns);
            dml__solo_multiply(piece, ks);
        }
    }
    dml__solo_write(piece, BUFFER(2, float) + ((WIDE)at.matrix * m + row0) * ldc + column0, ldc, REAL(0),
                    REAL(1), 0);
}

/* Numbers k0 .. k0 + n - 1 of the patch of x whose corner is `corner`, (KH, KW, channels of the group). */
HELPER void dml__solo_patch(SHARED float *to, GLOBAL const float *x, const dml__gpu_shape s, int group,
                            const dml__gpu_place corner, int k0, int n)
{
    /* Taps side by side are channels side by side, where all channels are the group's. */
    const int joined = s.dilation_w == 1 && s.channels == s.group_channels;
    const int run = joined ? s.kernel_w * s.channels : s.group_channels;
    int number = k0 / run, from = k0 % run;
    for (int k = 0; k < n; number++, from = 0) {
        const int tap_h = joined ? number : number / s.kernel_w, tap_w = joined ? 0 : number % s.kernel_w;
        const int h = corner.h + tap_h * s.dilation_h, w = corner.w + tap_w * s.dilation_w;
        const int count = run - from < n - k ? run - from : n - k;
        int low = 0, high = count; /* of the run, what lies in the image */
        if (joined) {
            if (low < -w * s.channels - from) low = -w * s.channels - from;
            if (high > (s.width - w) * s.channels - from) high = (s.width - w) * s.channels - from;
        } else if (w < 0 || w >= s.width) {
            high = 0;
        }
        if (h < 0 || h >= s.height || high <= low) {
            dml__solo_zero(to + k, count);
        } else {
            GLOBAL const float *line = x + (((WIDE)corner.image * s.height + h) * s.width + w) * s.channels +
                                       group * s.group_channels + from;
            dml__solo_zero(to + k, low);
            dml__solo_copy(to + k + low, line + low, high - low);
            dml__solo_zero(to + k + high, count - high);
        }
        k += count;
    }
}

/* What conv2d_forward_tiles computes, of the same arguments. */
SOLO_KERNEL(conv2d_forward_solo)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *weights = BUFFER(1, const float);
    GLOBAL const float *bias = BUFFER(2, const float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int pixels = s.batch * s.out_h * s.out_w, depth = s.kernel_h * s.kernel_w * s.group_channels;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, s.group_filters);
    const int row0 = GROUP_Y * TILE, filter0 = part.group * s.group_filters + part.first;
    SOLO_BEGIN(0, pixels - row0, s.group_filters - part.first);
    for (int k0 = 0; k0 < depth; k0 += SOLO_K) {
        const int ks = depth - k0 < SOLO_K ? depth - k0 : SOLO_K;
        for (int row = 0; row < piece.rows; row++)
            dml__solo_patch(piece.a + row * SOLO_K, x, s, part.group,
                            dml__gpu_pixel(row0 + row, pixels, s.out_h, s.out_w, s.stride_h, s.stride_w,
                                           -s.pad_h, -s.pad_w),
                            k0, ks);
        dml__solo_turn(piece, weights + (WIDE)filter0 * depth + k0, depth, ks);
        dml__solo_multiply(piece, ks);
    }
    dml__solo_write(piece, BUFFER(3, float) + (WIDE)row0 * s.filters + filter0, s.filters, 1.0f, REAL(0),
                    bias ? bias + filter0 : 0);
}

/* Numbers k0 .. k0 + n - 1 of what of dy meets the input `place`, (KH, KW, filters of the group). */
HELPER void dml__solo_outputs(SHARED float *to, GLOBAL const float *dy, const dml__gpu_shape s, int group,
                              const dml__gpu_place place, int k0, int n)
{
    int number = k0 / s.group_filters, from = k0 % s.group_filters;
    for (int k = 0; k < n; number++, from = 0) {
        const int count = s.group_filters - from < n - k ? s.group_filters - from : n - k;
        const int h = place.h - number / s.kernel_w * s.dilation_h;
        const int w = place.w - number % s.kernel_w * s.dilation_w;
        const int out_h = h / s.stride_h, out_w = w / s.stride_w;
        if (h < 0 || w < 0 || out_h * s.stride_h != h || out_w * s.stride_w != w || out_h >= s.out_h ||
            out_w >= s.out_w)
            dml__solo_zero(to + k, count);
        else
            dml__solo_copy(to + k,
                           dy + (((WIDE)place.image * s.out_h + out_h) * s.out_w + out_w) * s.filters +
                               group * s.group_filters + from,
                           count);
        k += count;
    }
}

/* What conv2d_backward_input_tiles computes, of the same arguments. */
SOLO_KERNEL(conv2d_backward_input_solo)
{
    GLOBAL const float *dy = BUFFER(0, const float);
    GLOBAL const float *weights = BUFFER(1, const float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int pixels = s.batch * s.height * s.width;
    const int taps = s.kernel_h * s.kernel_w, depth = taps * s.group_filters;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, s.group_channels);
    const int row0 = GROUP_Y * TILE;
    SOLO_BEGIN(0, pixels - row0, s.group_channels - part.first);
    for (int k0 = 0; k0 < depth; k0 += SOLO_K) {
        const int ks = depth - k0 < SOLO_K ? depth - k0 : SOLO_K;
        int tap = k0 / s.group_filters, filter = k0 % s.group_filters;
        for (int row = 0; row < piece.rows; row++)
            dml__solo_outputs(piece.a + row * SOLO_K, dy, s, part.group,
                              dml__gpu_pixel(row0 + row, pixels, s.height, s.width, 1, 1, s.pad_h, s.pad_w),
                              k0, ks);
        for (int k = 0; k < ks; k++) {
            dml__solo_copy(
                piece.b + k * TILE,
                weights + ((WIDE)(part.group * s.group_filters + filter) * taps + tap) * s.group_channels +
                    part.first,
                piece.columns);
            if (++filter == s.group_filters) filter = 0, tap++;
        }
        dml__solo_multiply(piece, ks);
    }
    dml__solo_write(piece,
                    BUFFER(2, float) + (WIDE)row0 * s.channels + part.group * s.group_channels + part.first,
                    s.channels, 1.0f, REAL(0), 0);
}

/* What conv2d_backward_weights_tiles computes, of the same arguments. */
SOLO_KERNEL(conv2d_backward_weights_solo)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int depth = s.batch * s.out_h * s.out_w, columns = s.kernel_h * s.kernel_w * s.group_channels;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_Y, s.group_filters);
    const int column0 = GROUP_X * TILE, filter0 = part.group * s.group_filters + part.first;
    SOLO_BEGIN(1, s.group_filters - part.first, columns - column0);
    for (int k0 = 0; k0 < depth; k0 += SOLO_K) {
        const int ks = depth - k0 < SOLO_K ? depth - k0 : SOLO_K;
        for (int k = 0; k < ks; k++) {
            dml__solo_copy(piece.a + k * TILE, dy + (WIDE)(k0 + k) * s.filters + filter0, piece.rows);
            dml__solo_patch(
                piece.b + k * TILE, x, s, part.group,
                dml__gpu_pixel(k0 + k, depth, s.out_h, s.out_w, s.stride_h, s.stride_w, -s.pad_h, -s.pad_w),
                column0, piece.columns);
        }
        dml__solo_multiply(piece, ks);
    }
    dml__solo_write(piece, BUFFER(2, float) + (WIDE)filter0 * columns + column0, columns, 1.0f, REAL(0), 0);
}

#endif
#endif
