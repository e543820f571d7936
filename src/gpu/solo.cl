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
    float *a, *b, *sum; /* b[k][TILE], sum[TILE][TILE] */
    int a_row, a_k;     /* the steps of rows and ks in a: SOLO_K and 1, or 1 and TILE */
    int rows, columns;
} dml__solo;

/* Declares a group's pieces; `by_k`: A lies by k. */
#define SOLO_BEGIN(by_k, row_count, column_count)                                                            \
    SOLO_LOCAL float a_piece[TILE * SOLO_K + VECTOR_LANES];                                                  \
    SOLO_LOCAL float b_piece[SOLO_K * TILE + VECTOR_LANES];                                                  \
    SOLO_LOCAL float sum_piece[TILE * TILE];                                                                 \
    dml__solo piece;                                                                                         \
    piece.a = a_piece, piece.b = b_piece, piece.sum = sum_piece;                                             \
    piece.a_row = (by_k) ? 1 : SOLO_K, piece.a_k = (by_k) ? TILE : 1;                                        \
    piece.rows = (row_count), piece.columns = (column_count);                                                \
    if (piece.rows > TILE) piece.rows = TILE;                                                                \
    if (piece.columns > TILE) piece.columns = TILE;                                                          \
    dml__solo_clear(piece)

/* Both may write up to a vector past their n floats: what comes next there is filled later, or doesn't count.
 */
HELPER void dml__solo_copy(float *to, GLOBAL const float *from, int n, GLOBAL const float *end)
{
    int i = 0;
    for (; i < n && end - (from + i) >= VECTOR_LANES; i += VECTOR_LANES)
        VECTOR_STORE(to + i, VECTOR_READ(from + i));
    for (; i < n; i++) to[i] = from[i]; /* within a vector of the end of its array */
}

HELPER void dml__solo_zero(float *to, int n)
{
    for (int i = 0; i < n; i += VECTOR_LANES) VECTOR_STORE(to + i, VECTOR_OF(0.0f));
}

/* Clears the sums, and what is read of A and B beyond their rows and columns. */
HELPER void dml__solo_clear(const dml__solo s)
{
    for (int row = 0; row < s.rows; row++) dml__solo_zero(s.sum + row * TILE, s.columns);
    if (s.columns % (2 * VECTOR_LANES))
        for (int k = 0; k < SOLO_K; k++) dml__solo_zero(s.b + k * TILE, s.columns);
    if (s.rows % SOLO_ROWS) {
        dml__solo_zero(s.a, TILE * SOLO_K);
        dml__solo_zero(s.sum + s.rows * TILE, (TILE - s.rows) * TILE);
    }
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
        const float *a = s.a + row * s.a_row;                                                                \
        const float *b = s.b + column;                                                                       \
        float *sum = s.sum + row * TILE + column;                                                            \
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

/* c = alpha sums + bias + beta c, and its relu. */
HELPER void dml__solo_write(const dml__solo s, GLOBAL float *c, WIDE step, float alpha, float beta,
                            GLOBAL const float *bias, int relu)
{
    for (int row = 0; row < s.rows; row++) {
        GLOBAL float *to = c + row * step;
        const float *sum = s.sum + row * TILE;
        if (bias)
            for (int j = 0; j < s.columns; j++)
                to[j] = dml__with_relu(dml__with_beta(alpha * sum[j] + bias[j], beta, to + j), relu);
        else
            for (int j = 0; j < s.columns; j++)
                to[j] = dml__with_relu(dml__with_beta(alpha * sum[j], beta, to + j), relu);
    }
}

/* What the tiles of gemm compute, of the same arguments. */
SOLO_KERNEL(gemm_solo)
{
    GLOBAL const float *first_a = BUFFER(0, const float);
    GLOBAL const float *first_b = BUFFER(1, const float);
    GLOBAL const float *bias = BUFFER(3, const float);
    const int m = INT(0), n = INT(1), depth = INT(2);
    const int trans_a = INT(3), trans_b = INT(4);
    const WIDE lda = INT(5), ldb = INT(6), ldc = INT(7);
    const int shares = INT(13) > 1 ? INT(13) : 1;
    const dml__gpu_matrix at = dml__gpu_matrix_at(shares > 1 ? 0 : GROUP_Y, TILE, arguments);
    dml__gpu_share share = { 0, at.row, 0, depth };
    if (shares > 1) share = dml__gpu_share_at(GROUP_Y, TILE, m, depth, shares);
    const int row0 = share.column, column0 = GROUP_X * TILE;
    if (at.matrix >= at.matrices || share.number >= shares || row0 >= m) return;
    SOLO_BEGIN(trans_a, m - row0, n - column0);
    for (int term = 0; term < at.terms; term++) {
        const dml__gpu_factors of = dml__gpu_factors_of(at.matrix, term, arguments);
        GLOBAL const float *a = first_a + of.a;
        GLOBAL const float *b = first_b + of.b;
        GLOBAL const float *a_end = a + (trans_a ? (depth - 1) * lda + m : (m - 1) * lda + depth);
        GLOBAL const float *b_end = b + (trans_b ? (n - 1) * ldb + depth : (depth - 1) * ldb + n);
        for (int k0 = share.from; k0 < share.to; k0 += SOLO_K) {
            const int ks = share.to - k0 < SOLO_K ? share.to - k0 : SOLO_K;
            if (trans_a)
                for (int k = 0; k < ks; k++)
                    dml__solo_copy(piece.a + k * TILE, a + (k0 + k) * lda + row0, piece.rows, a_end);
            else
                for (int row = 0; row < piece.rows; row++)
                    dml__solo_copy(piece.a + row * SOLO_K, a + (row0 + row) * lda + k0, ks, a_end);
            if (trans_b)
                dml__solo_turn(piece, b + column0 * ldb + k0, ldb, ks);
            else
                for (int k = 0; k < ks; k++)
                    dml__solo_copy(piece.b + k * TILE, b + (k0 + k) * ldb + column0, piece.columns, b_end);
            dml__solo_multiply(piece, ks);
        }
    }
    dml__solo_write(piece, BUFFER(2, float) + ((WIDE)(at.matrix + share.number) * m + row0) * ldc + column0,
                    ldc, REAL(0), REAL(1), bias ? bias + column0 : 0, REAL(2) != 0.0f);
}

/* Where in a patch (KH, KW, last) a piece begins: `from` floats into the run of a tap, or of a row of them.
 */
typedef struct dml__solo_start {
    int tap_h, tap_w, from;
} dml__solo_start;

HELPER dml__solo_start dml__solo_start_at(int k, int run, int taps_w)
{
    dml__solo_start start;
    start.from = k % run;
    start.tap_h = k / run / taps_w;
    start.tap_w = k / run % taps_w;
    return start;
}

/* Taps side by side are channels side by side, where all channels are the group's: then a row of them is one
   run. */
HELPER int dml__solo_joined(const dml__gpu_shape s)
{
    return s.dilation_w == 1 && s.channels == s.group_channels;
}

HELPER dml__solo_start dml__solo_patch_start(const dml__gpu_shape s, int k)
{
    return dml__solo_joined(s) ? dml__solo_start_at(k, s.kernel_w * s.channels, 1)
                               : dml__solo_start_at(k, s.group_channels, s.kernel_w);
}

/* n floats of the patch of x whose corner is `corner`. */
HELPER void dml__solo_patch(float *to, GLOBAL const float *x, GLOBAL const float *end, const dml__gpu_shape s,
                            int group, const dml__gpu_place corner, dml__solo_start start, int n)
{
    const int joined = dml__solo_joined(s), run = joined ? s.kernel_w * s.channels : s.group_channels;
    const int taps_w = joined ? 1 : s.kernel_w;
    const WIDE line = (WIDE)s.width * s.channels;
    GLOBAL const float *image = x + corner.image * s.height * line + group * s.group_channels;
    /* Most windows lie in the image, and then nothing is to be looked at: a row of taps after the other. */
    if (joined && corner.h >= 0 && corner.h + (s.kernel_h - 1) * s.dilation_h < s.height && corner.w >= 0 &&
        corner.w + s.kernel_w <= s.width) {
        GLOBAL const float *from =
            image + (corner.h + start.tap_h * s.dilation_h) * line + corner.w * s.channels + start.from;
        for (int k = 0; k < n;) {
            const int count = run - start.from < n - k ? run - start.from : n - k;
            dml__solo_copy(to + k, from, count, end);
            k += count;
            from += s.dilation_h * line - start.from;
            start.from = 0;
        }
        return;
    }
    for (int k = 0; k < n; start.from = 0) {
        const int h = corner.h + start.tap_h * s.dilation_h, w = corner.w + start.tap_w * s.dilation_w;
        const int count = run - start.from < n - k ? run - start.from : n - k;
        int low = 0, high = count; /* of these floats, what lies in the image */
        if (joined) {
            const int first = w * s.channels + start.from;
            if (first < 0) low = -first;
            if (high > line - first) high = (int)line - first;
        } else if (w < 0 || w >= s.width) {
            high = 0;
        }
        if (h < 0 || h >= s.height || high <= low) {
            dml__solo_zero(to + k, count);
        } else {
            GLOBAL const float *from = image + h * line + w * s.channels + start.from;
            if (low) dml__solo_zero(to + k, low);
            dml__solo_copy(to + k + low, from + low, high - low, end);
            if (high < count) dml__solo_zero(to + k + high, count - high);
        }
        k += count;
        if (++start.tap_w == taps_w) start.tap_w = 0, start.tap_h++;
    }
}

/* The place behind `place` in its batch of images of outputs, or of inputs (stride 1, moved by the pad). */
HELPER dml__gpu_place dml__solo_next(dml__gpu_place place, int height, int width, int stride_h, int stride_w,
                                     int move_h, int move_w)
{
    place.w += stride_w;
    if (place.w == width * stride_w + move_w) {
        place.w = move_w;
        place.h += stride_h;
        if (place.h == height * stride_h + move_h) place.h = move_h, place.image++;
    }
    return place;
}

/* What the tiles of conv2d_forward compute, of the same arguments. */
SOLO_KERNEL(conv2d_forward_solo)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *weights = BUFFER(1, const float);
    GLOBAL const float *bias = BUFFER(2, const float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    GLOBAL const float *end = x + (WIDE)s.batch * s.height * s.width * s.channels;
    const int pixels = s.batch * s.out_h * s.out_w, depth = s.kernel_h * s.kernel_w * s.group_channels;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, TILE, s.group_filters);
    const int row0 = GROUP_Y * TILE, filter0 = part.group * s.group_filters + part.first;
    const dml__gpu_place first = dml__gpu_pixel(row0, pixels, dml__gpu_images_of(s.out_h, s.out_w),
                                                s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
    SOLO_BEGIN(0, pixels - row0, s.group_filters - part.first);
    for (int k0 = 0; k0 < depth; k0 += SOLO_K) {
        const int ks = depth - k0 < SOLO_K ? depth - k0 : SOLO_K;
        const dml__solo_start start = dml__solo_patch_start(s, k0);
        dml__gpu_place corner = first;
        for (int row = 0; row < piece.rows; row++) {
            dml__solo_patch(piece.a + row * SOLO_K, x, end, s, part.group, corner, start, ks);
            corner = dml__solo_next(corner, s.out_h, s.out_w, s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
        }
        dml__solo_turn(piece, weights + (WIDE)filter0 * depth + k0, depth, ks);
        dml__solo_multiply(piece, ks);
    }
    dml__solo_write(piece, BUFFER(3, float) + (WIDE)row0 * s.filters + filter0, s.filters, 1.0f, REAL(0),
                    bias ? bias + filter0 : 0, REAL(1) != 0.0f);
}

/* n floats of what of dy meets the input `place`, (KH, KW, filters of the group). */
HELPER void dml__solo_outputs(float *to, GLOBAL const float *dy, GLOBAL const float *end,
                              const dml__gpu_shape s, int group, const dml__gpu_place place,
                              dml__solo_start start, int n)
{
    const WIDE line = (WIDE)s.out_w * s.filters;
    GLOBAL const float *image = dy + place.image * s.out_h * line + group * s.group_filters;
    for (int k = 0; k < n; start.from = 0) {
        const int count = s.group_filters - start.from < n - k ? s.group_filters - start.from : n - k;
        const int h = place.h - start.tap_h * s.dilation_h, w = place.w - start.tap_w * s.dilation_w;
        const int out_h = s.stride_h == 1 ? h : h / s.stride_h, out_w = s.stride_w == 1 ? w : w / s.stride_w;
        if (h < 0 || w < 0 || out_h * s.stride_h != h || out_w * s.stride_w != w || out_h >= s.out_h ||
            out_w >= s.out_w)
            dml__solo_zero(to + k, count);
        else
            dml__solo_copy(to + k, image + out_h * line + out_w * s.filters + start.from, count, end);
        k += count;
        if (++start.tap_w == s.kernel_w) start.tap_w = 0, start.tap_h++;
    }
}

/* What the tiles of conv2d_backward_input compute, of the same arguments. */
SOLO_KERNEL(conv2d_backward_input_solo)
{
    GLOBAL const float *dy = BUFFER(0, const float);
    GLOBAL const float *weights = BUFFER(1, const float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int pixels = s.batch * s.height * s.width;
    const int taps = s.kernel_h * s.kernel_w, depth = taps * s.group_filters;
    GLOBAL const float *dy_end = dy + (WIDE)s.batch * s.out_h * s.out_w * s.filters;
    GLOBAL const float *weights_end = weights + (WIDE)s.filters * taps * s.group_channels;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, TILE, s.group_channels);
    const int row0 = GROUP_Y * TILE;
    const dml__gpu_place first =
        dml__gpu_pixel(row0, pixels, dml__gpu_images_of(s.height, s.width), 1, 1, s.pad_h, s.pad_w);
    SOLO_BEGIN(0, pixels - row0, s.group_channels - part.first);
    for (int k0 = 0; k0 < depth; k0 += SOLO_K) {
        const int ks = depth - k0 < SOLO_K ? depth - k0 : SOLO_K;
        const dml__solo_start start = dml__solo_start_at(k0, s.group_filters, s.kernel_w);
        int tap = k0 / s.group_filters, filter = k0 % s.group_filters;
        dml__gpu_place place = first;
        for (int row = 0; row < piece.rows; row++) {
            dml__solo_outputs(piece.a + row * SOLO_K, dy, dy_end, s, part.group, place, start, ks);
            place = dml__solo_next(place, s.height, s.width, 1, 1, s.pad_h, s.pad_w);
        }
        for (int k = 0; k < ks; k++) {
            const WIDE row = (WIDE)(part.group * s.group_filters + filter) * taps + tap;
            dml__solo_copy(piece.b + k * TILE, weights + row * s.group_channels + part.first, piece.columns,
                           weights_end);
            if (++filter == s.group_filters) filter = 0, tap++;
        }
        dml__solo_multiply(piece, ks);
    }
    dml__solo_write(piece,
                    BUFFER(2, float) + (WIDE)row0 * s.channels + part.group * s.group_channels + part.first,
                    s.channels, 1.0f, REAL(0), 0, 0);
}

/* What the tiles of conv2d_backward_weights compute, of the same arguments. */
SOLO_KERNEL(conv2d_backward_weights_solo)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL float *db = BUFFER(3, float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int depth = s.batch * s.out_h * s.out_w, columns = s.kernel_h * s.kernel_w * s.group_channels;
    GLOBAL const float *x_end = x + (WIDE)s.batch * s.height * s.width * s.channels;
    GLOBAL const float *dy_end = dy + (WIDE)depth * s.filters;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_Y, TILE, s.group_filters);
    const int shares = REAL(1) > 1.0f ? (int)REAL(1) : 1;
    const dml__gpu_share share = dml__gpu_share_at(GROUP_X, TILE, columns + (db ? 1 : 0), depth, shares);
    const int column0 = share.column, filter0 = part.group * s.group_filters + part.first;
    const dml__solo_start start = dml__solo_patch_start(s, column0);
    const WIDE row0 = (WIDE)share.number * s.filters + filter0;
    if (column0 >= columns + (db ? 1 : 0)) return; /* of the surplus that shares are padded to */
    dml__gpu_place corner = dml__gpu_pixel(share.from, depth, dml__gpu_images_of(s.out_h, s.out_w),
                                           s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
    SOLO_BEGIN(1, s.group_filters - part.first, columns + (db ? 1 : 0) - column0);
    const int weights = columns - column0 < TILE ? columns - column0 : TILE; /* of the piece's columns */
    const int sums = weights < piece.columns;                                /* the last is dy's sums */
    for (int k0 = share.from; k0 < share.to; k0 += SOLO_K) {
        const int ks = share.to - k0 < SOLO_K ? share.to - k0 : SOLO_K;
        for (int k = 0; k < ks; k++) {
            dml__solo_copy(piece.a + k * TILE, dy + (WIDE)(k0 + k) * s.filters + filter0, piece.rows, dy_end);
            dml__solo_patch(piece.b + k * TILE, x, x_end, s, part.group, corner, start, weights);
            if (sums) piece.b[k * TILE + weights] = 1.0f;
            corner = dml__solo_next(corner, s.out_h, s.out_w, s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
        }
        dml__solo_multiply(piece, ks);
    }
    for (int row = 0; row < piece.rows && sums; row++)
        db[row0 + row] = dml__with_beta(piece.sum[row * TILE + weights], REAL(2), db + row0 + row);
    piece.columns = weights;
    dml__solo_write(piece, BUFFER(2, float) + row0 * columns + column0, columns, 1.0f, REAL(0), 0, 0);
}

#endif
#endif
