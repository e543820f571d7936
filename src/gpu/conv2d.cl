/* conv2d.cl: convolution as products of matrices that are never stored (implicit GEMM).

   All three kernels take the ints batch, height, width, channels, filters, kernel_h, kernel_w, stride_h,
   stride_w, pad_h, pad_w, out_h, out_w, dilation_h, dilation_w, groups (the last three: 0 is 1), and the
   layouts of src/kernels/conv2d.h: x (N, H, W, C), w (F, KH, KW, C / groups), y (N, OH, OW, F). With groups a
   tile lies in one of them: where a size is said to be `padded`, it is groups * (the group's part, rounded up
   to TILE). */
#ifndef DML_GPU_CONV2D_CL
#define DML_GPU_CONV2D_CL

typedef struct dml__gpu_shape {
    int batch, height, width, channels, filters;
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, out_h, out_w;
    int dilation_h, dilation_w;
    int group_channels, group_filters; /* of one group */
} dml__gpu_shape;

HELPER dml__gpu_shape dml__gpu_shape_of(const dml__kernel_arguments arguments)
{
    dml__gpu_shape s;
    s.batch = INT(0), s.height = INT(1), s.width = INT(2), s.channels = INT(3), s.filters = INT(4);
    s.kernel_h = INT(5), s.kernel_w = INT(6), s.stride_h = INT(7), s.stride_w = INT(8);
    s.pad_h = INT(9), s.pad_w = INT(10), s.out_h = INT(11), s.out_w = INT(12);
    s.dilation_h = INT(13) ? INT(13) : 1, s.dilation_w = INT(14) ? INT(14) : 1;
    s.group_channels = s.channels / (INT(15) ? INT(15) : 1);
    s.group_filters = s.filters / (INT(15) ? INT(15) : 1);
    return s;
}

/* Where tile number `tile`, of that size, begins: which group of channels, and where in it. */
typedef struct dml__gpu_part {
    int group, first;
} dml__gpu_part;

HELPER dml__gpu_part dml__gpu_part_at(int tile, int size, int of_group)
{
    const int tiles = size > TILE ? tile + 1 : (of_group + TILE - 1) / TILE * (TILE / size);
    dml__gpu_part p;
    p.group = tile / tiles;
    p.first = tile % tiles * size;
    return p;
}

/* A place in a batch of images; the image is -1 where there is none. */
typedef struct dml__gpu_place {
    int image, h, w;
} dml__gpu_place;

/* Images of height x width, by whose sizes the number of a pixel in their batch is divided. */
typedef struct dml__gpu_images {
    dml__gpu_divisor height, width;
} dml__gpu_images;

HELPER dml__gpu_images dml__gpu_images_of(int height, int width)
{
    dml__gpu_images images;
    images.height = dml__gpu_divisor_of(height);
    images.width = dml__gpu_divisor_of(width);
    return images;
}

/* Pixel number `pixel` of `pixels` of them, scaled by a stride and moved by a pad. */
HELPER dml__gpu_place dml__gpu_pixel(int pixel, int pixels, const dml__gpu_images images, int stride_h,
                                     int stride_w, int move_h, int move_w)
{
    const int row = (int)dml__gpu_divide((unsigned)pixel, images.width);
    const int image = (int)dml__gpu_divide((unsigned)row, images.height);
    dml__gpu_place p;
    p.image = pixel < pixels ? image : -1;
    p.h = (row - image * (int)images.height.number) * stride_h + move_h;
    p.w = (pixel - row * (int)images.width.number) * stride_w + move_w;
    return p;
}

/* Far outside of every image, as its sum and difference with twice as much is. */
#define NOWHERE (1 << 28)

/* A weight's place in a window: number `k` of (KH, KW, last); `last` is channels or filters. h and w are
   dilated; h is twice NOWHERE behind the last. */
typedef struct dml__gpu_tap {
    int h, w, last;
} dml__gpu_tap;

/* What taps are found by, of which there are `depth`. */
typedef struct dml__gpu_taps {
    dml__gpu_divisor last, kernel_w;
    int depth, dilation_h, dilation_w;
} dml__gpu_taps;

HELPER dml__gpu_taps dml__gpu_taps_of(const dml__gpu_shape s, int last)
{
    dml__gpu_taps t;
    t.last = dml__gpu_divisor_of(last);
    t.kernel_w = dml__gpu_divisor_of(s.kernel_w);
    t.depth = s.kernel_h * s.kernel_w * last;
    t.dilation_h = s.dilation_h, t.dilation_w = s.dilation_w;
    return t;
}

HELPER dml__gpu_tap dml__gpu_tap_at(int k, const dml__gpu_taps taps)
{
    const int number = (int)dml__gpu_divide((unsigned)k, taps.last);
    const int h = (int)dml__gpu_divide((unsigned)number, taps.kernel_w);
    dml__gpu_tap t;
    t.last = k - number * (int)taps.last.number;
    t.h = k < taps.depth ? h * taps.dilation_h : 2 * NOWHERE;
    t.w = (number - h * (int)taps.kernel_w.number) * taps.dilation_w;
    return t;
}

/* Where a place and a tap meet is the sum or the difference of their h and w. `at`: the floats before the
   place, or before its image. */
typedef struct dml__gpu_corner {
    WIDE at;
    int h, w;
} dml__gpu_corner;

/* y = conv(x, w) + bias + beta y, and its relu. Buffers x, w, bias (may be NULL), y; floats beta, 1 with the
   relu; size{filters (padded), batch * out_h * out_w}. */
HELPER void dml__conv2d_forward_tile(TILE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *weights,
                                     GLOBAL const float *bias, GLOBAL float *y,
                                     const dml__kernel_arguments arguments)
{
    const float beta = REAL(0);
    const int relu = REAL(1) != 0.0f;
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int pixels = s.batch * s.out_h * s.out_w;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, tile_columns, s.group_filters);
    const int row0 = GROUP_Y * tile_rows, column0 = part.first; /* the first pixel and filter */
    const int filter0 = part.group * s.group_filters;           /* of the group */
    const dml__gpu_taps taps = dml__gpu_taps_of(s, s.group_channels);
    const int depth = taps.depth, left = s.group_filters - column0 - ALONG_K_ROW(0);
    GLOBAL const float *own = weights + (WIDE)(filter0 + s.group_filters - left) * depth;
    const dml__gpu_images outputs = dml__gpu_images_of(s.out_h, s.out_w);
    dml__gpu_corner corner[MOST_SPAN];
    TILES_BEGIN();
    TILES_NEXT();
    UNROLL for (int j = 0; j < TAKES_ROWS; j++)
    {
        const dml__gpu_place p = dml__gpu_pixel(row0 + ALONG_K_ROW(j), pixels, outputs, s.stride_h,
                                                s.stride_w, -s.pad_h, -s.pad_w);
        corner[j].h = p.image < 0 ? NOWHERE : p.h, corner[j].w = p.w;
        corner[j].at = (((WIDE)p.image * s.height + p.h) * s.width + p.w) * s.channels;
    }
    x += part.group * s.group_channels;
    for (int k0 = 0; k0 < depth + TILE_K; k0 += TILE_K) {
        const int k = k0 + ALONG_K_K;
        const dml__gpu_tap tap = dml__gpu_tap_at(k, taps);
        const WIDE from = ((WIDE)tap.h * s.width + tap.w) * s.channels + tap.last;
        UNROLL for (int j = 0; j < TAKES_ROWS; j++)
        {
            const int h = corner[j].h + tap.h, w = corner[j].w + tap.w;
            const int inside = (unsigned)h < (unsigned)s.height && (unsigned)w < (unsigned)s.width;
            a_next[j] = inside ? x[corner[j].at + from] : 0.0f;
        }
        UNROLL for (int j = 0; j < TAKES_COLUMNS; j++)
        {
            const int filter = ALONG_K_ROW(j) - ALONG_K_ROW(0);
            b_next[j] = k < depth && filter < left ? own[(WIDE)filter * depth + k] : 0.0f;
        }
        if (k0) TILES_MULTIPLY();
        TILES_FILL_A(0);
        TILES_FILL_B(0);
    }
    UNROLL for (int i = 0; i < SPAN_ROWS; i++)
    {
        UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)
        {
            const int pixel = row0 + OWN_ROW(i), filter = column0 + OWN_COLUMN(j);
            if (pixel < pixels && filter < s.group_filters) {
                GLOBAL float *to = y + (WIDE)pixel * s.filters + filter0 + filter;
                const float value = bias ? sum[i][j] + bias[filter0 + filter] : sum[i][j];
                *to = dml__with_relu(dml__with_beta(value, beta, to), relu);
            }
        }
    }
}

TILE_SHAPES(conv2d_forward, dml__conv2d_forward_tile)

/* dx = dconv/dx^T dy + beta dx. Buffers dy, w, dx; floats beta; size{channels (padded), batch *
   height * width}. */
HELPER void dml__conv2d_backward_input_tile(TILE_PARAMETERS, GLOBAL const float *dy,
                                            GLOBAL const float *weights, GLOBAL float *dx,
                                            GLOBAL float *unused, const dml__kernel_arguments arguments)
{
    const float beta = REAL(0);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int pixels = s.batch * s.height * s.width;
    const int tap_count = s.kernel_h * s.kernel_w;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, tile_columns, s.group_channels);
    const int row0 = GROUP_Y * tile_rows, column0 = part.first; /* the first pixel and channel */
    const dml__gpu_taps taps = dml__gpu_taps_of(s, s.group_filters);
    const dml__gpu_divisor stride_h = dml__gpu_divisor_of(s.stride_h);
    const dml__gpu_divisor stride_w = dml__gpu_divisor_of(s.stride_w);
    const unsigned end_h = (unsigned)(s.out_h * s.stride_h), end_w = (unsigned)(s.out_w * s.stride_w);
    const int channel = column0 + ACROSS_K_ROW(tile_columns), filter0 = part.group * s.group_filters;
    const dml__gpu_images inputs = dml__gpu_images_of(s.height, s.width);
    const int strides = s.stride_h > 1 || s.stride_w > 1;
    dml__gpu_corner place[MOST_SPAN];
    TILES_BEGIN();
    TILES_NEXT();
    UNROLL for (int j = 0; j < TAKES_ROWS; j++)
    {
        const dml__gpu_place p =
            dml__gpu_pixel(row0 + ALONG_K_ROW(j), pixels, inputs, 1, 1, s.pad_h, s.pad_w);
        place[j].h = p.image < 0 ? NOWHERE : p.h, place[j].w = p.w;
        place[j].at = (WIDE)p.image * s.out_h * s.out_w;
        if (!strides) place[j].at += (WIDE)p.h * s.out_w + p.w;
        place[j].at *= s.filters;
    }
    dy += filter0;
    for (int k0 = 0; k0 < taps.depth + TILE_K; k0 += TILE_K) {
        const dml__gpu_tap tap = dml__gpu_tap_at(k0 + ALONG_K_K, taps);
        if (strides) {
            UNROLL for (int j = 0; j < TAKES_ROWS; j++)
            {
                const unsigned h = (unsigned)(place[j].h - tap.h), w = (unsigned)(place[j].w - tap.w);
                const unsigned out_h = dml__gpu_divide(h, stride_h), out_w = dml__gpu_divide(w, stride_w);
                const int meets =
                    h < end_h && w < end_w && out_h * stride_h.number == h && out_w * stride_w.number == w;
                const WIDE from = ((WIDE)out_h * s.out_w + out_w) * s.filters + tap.last;
                a_next[j] = meets ? dy[place[j].at + from] : 0.0f;
            }
        } else {
            const WIDE back = ((WIDE)tap.h * s.out_w + tap.w) * s.filters - tap.last;
            UNROLL for (int j = 0; j < TAKES_ROWS; j++)
            {
                const unsigned h = (unsigned)(place[j].h - tap.h), w = (unsigned)(place[j].w - tap.w);
                a_next[j] = h < end_h && w < end_w ? dy[place[j].at - back] : 0.0f;
            }
        }
        UNROLL for (int j = 0; j < TAKES_COLUMNS; j++)
        {
            const int k = k0 + ACROSS_K_K(j, tile_columns);
            const int number = (int)dml__gpu_divide((unsigned)k, taps.last);
            const WIDE filter = filter0 + k - number * s.group_filters;
            b_next[j] = k < taps.depth && channel < s.group_channels
                            ? weights[(filter * tap_count + number) * s.group_channels + channel]
                            : 0.0f;
        }
        if (k0) TILES_MULTIPLY();
        TILES_FILL_A(0);
        TILES_FILL_B(1);
    }
    UNROLL for (int i = 0; i < SPAN_ROWS; i++)
    {
        UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)
        {
            const int pixel = row0 + OWN_ROW(i), channel = column0 + OWN_COLUMN(j);
            if (pixel < pixels && channel < s.group_channels) {
                GLOBAL float *to = dx + (WIDE)pixel * s.channels + part.group * s.group_channels + channel;
                *to = dml__with_beta(sum[i][j], beta, to);
            }
        }
    }
}

TILE_SHAPES(conv2d_backward_input, dml__conv2d_backward_input_tile)

/* dw = dconv/dw^T dy + beta dw, and the bias' gradient, the sums of dy, which are one more column of dw,
   whose x is 1. Buffers x, dy, dw (one for each share), db (likewise) or NULL; floats beta, shares (0 is 1),
   beta of db; size{kernel_h * kernel_w * channels / groups, and one more for db, of several shares rounded up
   to MOST_TILE and times them, filters (padded)}. */
HELPER void dml__conv2d_backward_weights_tile(TILE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *dy,
                                              GLOBAL float *dw, GLOBAL float *db,
                                              const dml__kernel_arguments arguments)
{
    const int shares = REAL(1) > 1.0f ? (int)REAL(1) : 1;
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const dml__gpu_taps taps = dml__gpu_taps_of(s, s.group_channels);
    const int depth = s.batch * s.out_h * s.out_w, columns = taps.depth, all = columns + (db ? 1 : 0);
    const dml__gpu_part part = dml__gpu_part_at(GROUP_Y, tile_rows, s.group_filters);
    const dml__gpu_share share = dml__gpu_share_at(GROUP_X, tile_columns, all, depth, shares);
    const int row0 = part.first, column0 = share.column;             /* the first filter and weight */
    const int filter0 = part.group * s.group_filters;                /* of the group */
    const int is_one = filter0 < s.filters && share.number < shares; /* groups may be more than there is */
    const int end = is_one && row0 < s.group_filters && column0 < all ? share.to : 0;
    const int filter = row0 + ACROSS_K_ROW(tile_rows), weight = column0 + ACROSS_K_ROW(tile_columns);
    const dml__gpu_tap tap = dml__gpu_tap_at(weight, taps);
    const float outside = weight == columns && db ? 1.0f : 0.0f; /* of the images */
    const dml__gpu_images outputs = dml__gpu_images_of(s.out_h, s.out_w);
    TILES_BEGIN();
    TILES_NEXT();
    UNROLL for (int j = 0; j < TAKES_COLUMNS; j++) b_next[j] = 0.0f;
    x += part.group * s.group_channels + tap.last;
    dy += filter0 + filter;
    for (int k0 = share.from; k0 < end + TILE_K; k0 += TILE_K) {
        UNROLL for (int j = 0; j < TAKES_ROWS; j++)
        {
            const int pixel = k0 + ACROSS_K_K(j, tile_rows);
            a_next[j] = pixel < end && filter < s.group_filters ? dy[(WIDE)pixel * s.filters] : 0.0f;
        }
        if (weight < all) { /* most items have nothing to read where weights are few */
            UNROLL for (int j = 0; j < TAKES_COLUMNS; j++)
            {
                const dml__gpu_place p = dml__gpu_pixel(k0 + ACROSS_K_K(j, tile_columns), end, outputs,
                                                        s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
                const int h = p.h + tap.h, w = p.w + tap.w;
                const int inside =
                    p.image >= 0 && (unsigned)h < (unsigned)s.height && (unsigned)w < (unsigned)s.width;
                b_next[j] = inside ? x[((WIDE)(p.image * s.height + h) * s.width + w) * s.channels] : outside;
            }
        }
        if (k0 > share.from) TILES_MULTIPLY();
        TILES_FILL_A(1);
        TILES_FILL_B(1);
    }
    UNROLL for (int i = 0; i < SPAN_ROWS; i++)
    {
        UNROLL for (int j = 0; j < SPAN_COLUMNS; j++)
        {
            const int row = row0 + OWN_ROW(i), column = column0 + OWN_COLUMN(j);
            const WIDE of_filter = (WIDE)share.number * s.filters + filter0 + row;
            if (is_one && row < s.group_filters && column < all) {
                GLOBAL float *to = column < columns ? dw + of_filter * columns + column : db + of_filter;
                *to = dml__with_beta(sum[i][j], column < columns ? REAL(0) : REAL(2), to);
            }
        }
    }
}
TILE_SHAPES(conv2d_backward_weights, dml__conv2d_backward_weights_tile)

#endif
