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
    const int tiles = (of_group + TILE - 1) / TILE * (TILE / size);
    dml__gpu_part p;
    p.group = tile / tiles;
    p.first = tile % tiles * size;
    return p;
}

/* A place in a batch of images; the image is -1 where there is none. Where a place and a tap meet is the sum
   or the difference of their h and w. */
typedef struct dml__gpu_place {
    int image, h, w;
} dml__gpu_place;

/* Pixel number `pixel` of a batch of height x width images, scaled by a stride and moved by a pad. */
HELPER dml__gpu_place dml__gpu_pixel(int pixel, int pixels, int height, int width, int stride_h, int stride_w,
                                     int move_h, int move_w)
{
    dml__gpu_place p;
    p.image = -1, p.h = 0, p.w = 0;
    if (pixel < pixels) {
        const int row = pixel / width;
        p.image = row / height;
        p.h = row % height * stride_h + move_h;
        p.w = pixel % width * stride_w + move_w;
    }
    return p;
}

/* A weight's place in a window: number `k` of (KH, KW, last); `last` is channels or filters. */
typedef struct dml__gpu_tap {
    int number, h, w, last; /* number = h * KW + w */
} dml__gpu_tap;

HELPER dml__gpu_tap dml__gpu_tap_at(int k, int last, int kernel_w)
{
    dml__gpu_tap t;
    t.number = k / last;
    t.last = k % last;
    t.h = t.number / kernel_w;
    t.w = t.number % kernel_w;
    return t;
}

/* x where the tap meets the window whose corner is `corner`, in the channels of a group; 0 in the padding. */
HELPER float dml__gpu_input_at(GLOBAL const float *x, const dml__gpu_shape s, int group,
                               const dml__gpu_place corner, const dml__gpu_tap tap)
{
    const int h = corner.h + tap.h * s.dilation_h, w = corner.w + tap.w * s.dilation_w;
    if (corner.image < 0 || h < 0 || h >= s.height || w < 0 || w >= s.width) return 0.0f;
    return x[(((WIDE)corner.image * s.height + h) * s.width + w) * s.channels + group * s.group_channels +
             tap.last];
}

/* dy of the output whose window meets the input `place` (moved by the pad) at the tap; 0 where none does. */
HELPER float dml__gpu_output_at(GLOBAL const float *dy, const dml__gpu_shape s, int group,
                                const dml__gpu_place place, const dml__gpu_tap tap)
{
    const int h = place.h - tap.h * s.dilation_h, w = place.w - tap.w * s.dilation_w;
    if (place.image < 0 || h < 0 || w < 0) return 0.0f;
    const int out_h = h / s.stride_h, out_w = w / s.stride_w;
    if (out_h * s.stride_h != h || out_w * s.stride_w != w || out_h >= s.out_h || out_w >= s.out_w)
        return 0.0f;
    return dy[(((WIDE)place.image * s.out_h + out_h) * s.out_w + out_w) * s.filters +
              group * s.group_filters + tap.last];
}

/* y = conv(x, w) + bias + beta y, and its relu. Buffers x, w, bias (may be NULL), y; floats beta, 1 with the
   relu; size{filters (padded), batch * out_h * out_w}. */
HELPER void dml__conv2d_forward_tile(TILE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *weights,
                                     GLOBAL const float *bias, GLOBAL float *y,
                                     const dml__kernel_arguments arguments)
{
    const float beta = REAL(0);
    const int relu = REAL(1) != 0.0f;
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int pixels = s.batch * s.out_h * s.out_w, depth = s.kernel_h * s.kernel_w * s.group_channels;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, tile_columns, s.group_filters);
    const int row0 = GROUP_Y * tile_rows, column0 = part.first; /* the first pixel and filter */
    const int filter0 = part.group * s.group_filters;           /* of the group */
    dml__gpu_place corner[SPAN];
    TILES_BEGIN();
    for (int j = 0; j < SPAN_ROWS; j++)
        corner[j] = dml__gpu_pixel(row0 + ALONG_K_ROW(j), pixels, s.out_h, s.out_w, s.stride_h, s.stride_w,
                                   -s.pad_h, -s.pad_w);
    for (int k0 = 0; k0 < depth; k0 += TILE_K) {
        const int k = k0 + ALONG_K_K;
        const dml__gpu_tap tap = dml__gpu_tap_at(k, s.group_channels, s.kernel_w);
        for (int j = 0; j < SPAN_ROWS; j++)
            A_TILE(ALONG_K_K, ALONG_K_ROW(j)) =
                k < depth ? dml__gpu_input_at(x, s, part.group, corner[j], tap) : 0.0f;
        for (int j = 0; j < SPAN_COLUMNS; j++) {
            const int filter = column0 + ALONG_K_ROW(j);
            B_TILE(ALONG_K_K, ALONG_K_ROW(j)) =
                k < depth && filter < s.group_filters ? weights[(WIDE)(filter0 + filter) * depth + k] : 0.0f;
        }
        TILES_MULTIPLY();
    }
    for (int i = 0; i < SPAN_ROWS; i++) {
        for (int j = 0; j < SPAN_COLUMNS; j++) {
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
    const int taps = s.kernel_h * s.kernel_w, depth = taps * s.group_filters;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_X, tile_columns, s.group_channels);
    const int row0 = GROUP_Y * tile_rows, column0 = part.first; /* the first pixel and channel */
    dml__gpu_place place[SPAN];
    TILES_BEGIN();
    for (int j = 0; j < SPAN_ROWS; j++)
        place[j] = dml__gpu_pixel(row0 + ALONG_K_ROW(j), pixels, s.height, s.width, 1, 1, s.pad_h, s.pad_w);
    for (int k0 = 0; k0 < depth; k0 += TILE_K) {
        const int ak = k0 + ALONG_K_K, channel = column0 + ACROSS_K_ROW(tile_columns);
        const dml__gpu_tap tap = dml__gpu_tap_at(ak, s.group_filters, s.kernel_w);
        for (int j = 0; j < SPAN_ROWS; j++)
            A_TILE(ALONG_K_K, ALONG_K_ROW(j)) =
                ak < depth ? dml__gpu_output_at(dy, s, part.group, place[j], tap) : 0.0f;
        for (int j = 0; j < SPAN_COLUMNS; j++) {
            const int bk = k0 + ACROSS_K_K(j, tile_columns);
            float weight = 0.0f;
            if (bk < depth && channel < s.group_channels) {
                const int filter = part.group * s.group_filters + bk % s.group_filters;
                weight = weights[((WIDE)filter * taps + bk / s.group_filters) * s.group_channels + channel];
            }
            B_TILE(ACROSS_K_K(j, tile_columns), ACROSS_K_ROW(tile_columns)) = weight;
        }
        TILES_MULTIPLY();
    }
    for (int i = 0; i < SPAN_ROWS; i++) {
        for (int j = 0; j < SPAN_COLUMNS; j++) {
            const int pixel = row0 + OWN_ROW(i), channel = column0 + OWN_COLUMN(j);
            if (pixel < pixels && channel < s.group_channels) {
                GLOBAL float *to = dx + (WIDE)pixel * s.channels + part.group * s.group_channels + channel;
                *to = dml__with_beta(sum[i][j], beta, to);
            }
        }
    }
}

TILE_SHAPES(conv2d_backward_input, dml__conv2d_backward_input_tile)

/* A weights' gradient is a sum over all pixels of all images, whose parts may be those of different groups,
   each with a dw of its own, one after the other; which of them a group's is, and its pixels [from, to). A
   whole number of TILE_Ks and SOLO_Ks each, so that it is the same sum in every kernel. */
#define SHARE_PIXELS 64
typedef struct dml__gpu_share {
    int number, column, from, to; /* column: the first weight */
} dml__gpu_share;

HELPER dml__gpu_share dml__gpu_share_at(int tile, int tile_columns, int columns, int depth, int shares)
{
    const int tiles = (columns + TILE - 1) / TILE * (TILE / tile_columns);
    const int pixels = ((depth - 1) / shares / SHARE_PIXELS + 1) * SHARE_PIXELS;
    dml__gpu_share s;
    s.number = tile / tiles;
    s.column = tile % tiles * tile_columns;
    s.from = s.number < shares && depth / pixels >= s.number ? s.number * pixels : depth;
    s.to = depth - s.from > pixels ? s.from + pixels : depth;
    return s;
}

/* dw = dconv/dw^T dy + beta dw. Buffers x, dy, dw (one for each share); floats beta, shares (0 is 1);
   size{kernel_h * kernel_w * channels / groups, of several shares rounded up to TILE and times them, filters
   (padded)}. */
HELPER void dml__conv2d_backward_weights_tile(TILE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *dy,
                                              GLOBAL float *dw, GLOBAL float *unused,
                                              const dml__kernel_arguments arguments)
{
    const float beta = REAL(0);
    const int shares = REAL(1) > 1.0f ? (int)REAL(1) : 1;
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const int depth = s.batch * s.out_h * s.out_w, columns = s.kernel_h * s.kernel_w * s.group_channels;
    const dml__gpu_part part = dml__gpu_part_at(GROUP_Y, tile_rows, s.group_filters);
    const dml__gpu_share share = dml__gpu_share_at(GROUP_X, tile_columns, columns, depth, shares);
    const int row0 = part.first, column0 = share.column;             /* the first filter and weight */
    const int filter0 = part.group * s.group_filters;                /* of the group */
    const int is_one = filter0 < s.filters && share.number < shares; /* groups may be more than there is */
    const int end = is_one && row0 < s.group_filters && column0 < columns ? share.to : 0;
    const int filter = row0 + ACROSS_K_ROW(tile_rows), weight = column0 + ACROSS_K_ROW(tile_columns);
    const dml__gpu_tap tap = dml__gpu_tap_at(weight, s.group_channels, s.kernel_w);
    TILES_BEGIN();
    for (int k0 = share.from; k0 < end; k0 += TILE_K) {
        for (int j = 0; j < SPAN_ROWS; j++) {
            const int pixel = k0 + ACROSS_K_K(j, tile_rows);
            A_TILE(ACROSS_K_K(j, tile_rows), ACROSS_K_ROW(tile_rows)) =
                pixel < end && filter < s.group_filters ? dy[(WIDE)pixel * s.filters + filter0 + filter]
                                                        : 0.0f;
        }
        for (int j = 0; j < SPAN_COLUMNS; j++) {
            const dml__gpu_place corner = dml__gpu_pixel(k0 + ACROSS_K_K(j, tile_columns), end, s.out_h,
                                                         s.out_w, s.stride_h, s.stride_w, -s.pad_h, -s.pad_w);
            B_TILE(ACROSS_K_K(j, tile_columns), ACROSS_K_ROW(tile_columns)) =
                weight < columns ? dml__gpu_input_at(x, s, part.group, corner, tap) : 0.0f;
        }
        TILES_MULTIPLY();
    }
    for (int i = 0; i < SPAN_ROWS; i++) {
        for (int j = 0; j < SPAN_COLUMNS; j++) {
            const int row = row0 + OWN_ROW(i), column = column0 + OWN_COLUMN(j);
            if (is_one && row < s.group_filters && column < columns) {
                GLOBAL float *to = dw + ((WIDE)share.number * s.filters + filter0 + row) * columns + column;
                *to = dml__with_beta(sum[i][j], beta, to);
            }
        }
    }
}
TILE_SHAPES(conv2d_backward_weights, dml__conv2d_backward_weights_tile)

#endif
