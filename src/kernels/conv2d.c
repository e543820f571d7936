#ifndef DML_KERNELS_CONV2D_C
#define DML_KERNELS_CONV2D_C

#include "kernels/conv2d.h"

#include "kernels/blocks.h"
#include "kernels/product.h"
#include "thread/scratch.h"

#include <string.h>

/* Convolution as a matrix product whose factors are gathered from the images while they are packed, so that
   no patch matrix is ever stored. With P = N OH OW output pixels and K = KH KW C:

     forward           y  (P, F)         = patches of x (P, K)              w^T (K, F)
     backward_input    dx (N H W, C)     = patches of dy (N H W, KH KW F)   w (KH KW F, C)
     backward_weights  dw (F, K)         = dy^T (F, P)                      patches of x (P, K)  */

typedef struct dml__conv {
    dml_conv2d_shape shape;
    ptrdiff_t out_h, out_w;
    const float *image;   /* x (N, H, W, C), or dy (N, OH, OW, F) */
    const float *weights; /* (F, KH, KW, C) */
} dml__conv;

DML_API int dml_conv2d_output_size(int in, int kernel, int stride, int pad)
{
    if (in < 1 || kernel < 1 || stride < 1 || pad < 0) return 0;
    const int64_t room = (int64_t)in + 2 * (int64_t)pad - kernel;
    const int64_t size = room < 0 ? 0 : room / stride + 1;
    return size > INT32_MAX ? 0 : (int)size;
}

/* Whether x, y, w, and every place in a padded line of x or y, can be addressed. */
static bool dml__conv_fits(const dml__conv *conv)
{
    const dml_conv2d_shape *s = &conv->shape;
    const int64_t padded_h = (int64_t)s->height + 2 * (int64_t)s->pad_h;
    const int64_t padded_w = (int64_t)s->width + 2 * (int64_t)s->pad_w;
    return dml__floats_fit(s->batch, s->height, s->width, s->channels) &&
           dml__floats_fit(s->batch, conv->out_h, conv->out_w, s->filters) &&
           dml__floats_fit(s->filters, s->kernel_h, s->kernel_w, s->channels) &&
           dml__floats_fit(padded_w, s->channels, 1, 1) && dml__floats_fit(padded_w, s->filters, 1, 1) &&
           dml__floats_fit(padded_h, 1, 1, 1);
}

static dml_status dml__conv_init(dml__conv *conv, const dml_conv2d_shape *shape, const float *image,
                                 const float *weights)
{
    if (!shape || shape->batch < 0 || shape->channels < 1 || shape->filters < 1) return DML_ERROR_ARGUMENT;
    conv->shape = *shape;
    conv->out_h = dml_conv2d_output_size(shape->height, shape->kernel_h, shape->stride_h, shape->pad_h);
    conv->out_w = dml_conv2d_output_size(shape->width, shape->kernel_w, shape->stride_w, shape->pad_w);
    conv->image = image;
    conv->weights = weights;
    return conv->out_h && conv->out_w && dml__conv_fits(conv) ? DML_OK : DML_ERROR_ARGUMENT;
}

static void dml__copy_floats(float *to, const float *from, ptrdiff_t count)
{
    if (count >= 32) {
        memcpy(to, from, (size_t)count * sizeof *to);
        return;
    }
    /* A call costs more than such a copy. */
    for (; count >= 4; count -= 4, to += 4, from += 4) memcpy(to, from, 4 * sizeof *to);
    if (count > 0) to[0] = from[0];
    if (count > 1) to[1] = from[1];
    if (count > 2) to[2] = from[2];
}

static void dml__zero_floats(float *to, ptrdiff_t count)
{
    if (count > 0) memset(to, 0, (size_t)count * sizeof *to);
}

/* Where a pixel of an output lies. */
typedef struct dml__pixel {
    ptrdiff_t n, y, x;
} dml__pixel;

static dml__pixel dml__pixel_at(ptrdiff_t index, ptrdiff_t height, ptrdiff_t width)
{
    const dml__pixel pixel = { index / width / height, index / width % height, index % width };
    return pixel;
}

static void dml__pixel_next(dml__pixel *pixel, ptrdiff_t height, ptrdiff_t width)
{
    if (++pixel->x < width) return;
    pixel->x = 0;
    if (++pixel->y < height) return;
    pixel->y = 0;
    pixel->n++;
}

/* `length` elements of a line of an image from `begin` on, which may lie before or behind it: zeros there. */
static inline void dml__gather_line(const float *line, ptrdiff_t line_size, ptrdiff_t begin, ptrdiff_t length,
                                    float *to)
{
    if (begin >= 0 && begin + length <= line_size) {
        dml__copy_floats(to, line + begin, length);
    } else if (begin + length <= 0 || begin >= line_size) {
        dml__zero_floats(to, length);
    } else {
        const ptrdiff_t before = begin < 0 ? -begin : 0;
        const ptrdiff_t behind = begin + length > line_size ? begin + length - line_size : 0;
        dml__zero_floats(to, before);
        dml__copy_floats(to + before, line + begin + before, length - before - behind);
        dml__zero_floats(to + length - behind, behind);
    }
}

/* Elements first .. first + count - 1 of the patch (KH, KW, C) of x under an output pixel. A row of a patch
   is contiguous in x, up to the padding. */
static void dml__gather_x(const dml__conv *conv, dml__pixel out, ptrdiff_t first, ptrdiff_t count, float *to)
{
    const dml_conv2d_shape *s = &conv->shape;
    const ptrdiff_t row_size = (ptrdiff_t)s->kernel_w * s->channels;
    const ptrdiff_t line_size = (ptrdiff_t)s->width * s->channels;
    const ptrdiff_t left = (out.x * s->stride_w - s->pad_w) * s->channels;
    ptrdiff_t y = out.y * s->stride_h - s->pad_h + first / row_size;
    ptrdiff_t from = first % row_size;
    for (; count > 0; y++, from = 0) {
        const ptrdiff_t length = count < row_size - from ? count : row_size - from;
        if (y < 0 || y >= s->height)
            dml__zero_floats(to, length);
        else
            dml__gather_line(conv->image + (out.n * s->height + y) * line_size, line_size, left + from,
                             length, to);
        to += length;
        count -= length;
    }
}

/* `length` elements, from `from` on, of a row (KW, F) of the patch below, when only every stride_w-th tap
   falls on an output. `x` is where the row's first tap lies, in steps of which stride_w make an output. */
static void dml__gather_strided(const dml__conv *conv, const float *line, ptrdiff_t x, ptrdiff_t from,
                                ptrdiff_t length, float *to)
{
    const ptrdiff_t filters = conv->shape.filters, stride = conv->shape.stride_w;
    x += from / filters;
    from %= filters;
    for (; length > 0; x++, from = 0) {
        const ptrdiff_t run = length < filters - from ? length : filters - from;
        if (x < 0 || x % stride || x / stride >= conv->out_w)
            dml__zero_floats(to, run);
        else
            dml__copy_floats(to, line + x / stride * filters + from, run);
        to += run;
        length -= run;
    }
}

/* Elements first .. first + count - 1 of the patch (KH, KW, F) of dy that an input pixel has gone into. Under
   tap (kh, kw) lies the output (y + pad - kh) / stride, where that is whole. The taps are taken backwards, so
   that the outputs are met forwards: with stride_w = 1, a row of the patch is contiguous in dy. */
static void dml__gather_dy(const dml__conv *conv, dml__pixel in, ptrdiff_t first, ptrdiff_t count, float *to)
{
    const dml_conv2d_shape *s = &conv->shape;
    const ptrdiff_t row_size = (ptrdiff_t)s->kernel_w * s->filters;
    const ptrdiff_t line_size = conv->out_w * s->filters;
    const ptrdiff_t left = in.x + s->pad_w - (s->kernel_w - 1);
    ptrdiff_t y = in.y + s->pad_h - (s->kernel_h - 1) + first / row_size;
    ptrdiff_t from = first % row_size;
    for (; count > 0; y++, from = 0) {
        const ptrdiff_t length = count < row_size - from ? count : row_size - from;
        if (y < 0 || y % s->stride_h || y / s->stride_h >= conv->out_h) {
            dml__zero_floats(to, length);
        } else {
            const float *line = conv->image + (in.n * conv->out_h + y / s->stride_h) * line_size;
            if (s->stride_w == 1)
                dml__gather_line(line, line_size, left * s->filters + from, length, to);
            else
                dml__gather_strided(conv, line, left, from, length, to);
        }
        to += length;
        count -= length;
    }
}

/* Packs the patches of pixels as lanes: four are gathered side by side, then transposed. */
static void dml__pack_patches(const dml__conv *conv,
                              void (*gather)(const dml__conv *conv, dml__pixel pixel, ptrdiff_t first,
                                             ptrdiff_t count, float *to),
                              ptrdiff_t height, ptrdiff_t width, ptrdiff_t first, int lanes, ptrdiff_t k0,
                              int kc, int panel_width, float *out)
{
    float patch[4][DML__PRODUCT_KC];
    dml__pixel pixel = dml__pixel_at(first, height, width);
    for (int lane = 0; lane < lanes; lane += 4) {
        const int group = lanes - lane < 4 ? lanes - lane : 4;
        for (int l = 0; l < group; l++) {
            gather(conv, pixel, k0, kc, patch[l]);
            dml__pixel_next(&pixel, height, width);
        }
        dml__pack_transposed(patch[0], DML__PRODUCT_KC, group, kc, panel_width, out + lane);
    }
    for (int k = 0; k < kc; k++) dml__zero_floats(out + k * panel_width + lanes, panel_width - lanes);
}

/* --- the packers of the three products --- */

/* Lanes are output pixels, k runs over (KH, KW, C). */
static void dml__pack_x(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width,
                        float *out)
{
    const dml__conv *conv = (const dml__conv *)source;
    dml__pack_patches(conv, dml__gather_x, conv->out_h, conv->out_w, first, lanes, k0, kc, width, out);
}

/* Lanes are input pixels, k runs over (KH, KW, F), the taps backwards. */
static void dml__pack_dy(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width,
                         float *out)
{
    const dml__conv *conv = (const dml__conv *)source;
    dml__pack_patches(conv, dml__gather_dy, conv->shape.height, conv->shape.width, first, lanes, k0, kc,
                      width, out);
}

/* Lanes run over (KH, KW, C), k over output pixels. */
static void dml__pack_x_columns(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                int width, float *out)
{
    const dml__conv *conv = (const dml__conv *)source;
    dml__pixel pixel = dml__pixel_at(k0, conv->out_h, conv->out_w);
    for (int k = 0; k < kc; k++, out += width) {
        dml__gather_x(conv, pixel, first, lanes, out);
        dml__zero_floats(out + lanes, width - lanes);
        dml__pixel_next(&pixel, conv->out_h, conv->out_w);
    }
}

/* Lanes are input channels, k runs over (KH, KW, F), the taps backwards: row k of the factor is w[f][tap]. */
static void dml__pack_w(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc, int width,
                        float *out)
{
    const dml__conv *conv = (const dml__conv *)source;
    const dml_conv2d_shape *s = &conv->shape;
    const ptrdiff_t taps = (ptrdiff_t)s->kernel_h * s->kernel_w;
    ptrdiff_t tap = taps - 1 - k0 / s->filters, f = k0 % s->filters;
    for (int k = 0; k < kc; k++, out += width) {
        dml__copy_floats(out, conv->weights + (f * taps + tap) * s->channels + first, lanes);
        dml__zero_floats(out + lanes, width - lanes);
        if (++f == s->filters) f = 0, tap--;
    }
}

/* --- the three products --- */

DML_API dml_status dml_conv2d_forward(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                      const float *w, const float *bias, float *y)
{
    dml__conv conv;
    const dml_status status = dml__conv_init(&conv, shape, x, w);
    if (status != DML_OK) return status;
    const ptrdiff_t patch = (ptrdiff_t)shape->kernel_h * shape->kernel_w * shape->channels;
    const dml__matrix weights = { w, patch, 1 };
    const dml__product product = { (ptrdiff_t)shape->batch * conv.out_h * conv.out_w,
                                   shape->filters,
                                   patch,
                                   { dml__pack_x, &conv },
                                   { dml__pack_matrix, &weights },
                                   1,
                                   0,
                                   { bias, DML_ACTIVATION_NONE },
                                   y,
                                   shape->filters,
                                   NULL };
    dml__multiply(pool, &product);
    return DML_OK;
}

DML_API dml_status dml_conv2d_backward_input(dml_pool *pool, const dml_conv2d_shape *shape, const float *dy,
                                             const float *w, float beta, float *dx)
{
    dml__conv conv;
    const dml_status status = dml__conv_init(&conv, shape, dy, w);
    if (status != DML_OK) return status;
    const dml__product product = { (ptrdiff_t)shape->batch * shape->height * shape->width,
                                   shape->channels,
                                   (ptrdiff_t)shape->kernel_h * shape->kernel_w * shape->filters,
                                   { dml__pack_dy, &conv },
                                   { dml__pack_w, &conv },
                                   1,
                                   beta,
                                   { NULL, DML_ACTIVATION_NONE },
                                   dx,
                                   shape->channels,
                                   NULL };
    dml__multiply(pool, &product);
    return DML_OK;
}

DML_API dml_status dml_conv2d_backward_weights(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                               const float *dy, float beta, float *dw)
{
    dml__conv conv;
    const dml_status status = dml__conv_init(&conv, shape, x, NULL);
    if (status != DML_OK) return status;
    const ptrdiff_t patch = (ptrdiff_t)shape->kernel_h * shape->kernel_w * shape->channels;
    const dml__matrix gradient = { dy, 1, shape->filters };
    const dml__product product = { shape->filters,
                                   patch,
                                   (ptrdiff_t)shape->batch * conv.out_h * conv.out_w,
                                   { dml__pack_matrix, &gradient },
                                   { dml__pack_x_columns, &conv },
                                   1,
                                   beta,
                                   { NULL, DML_ACTIVATION_NONE },
                                   dw,
                                   patch,
                                   NULL };
    dml__multiply(pool, &product);
    return DML_OK;
}

static dml_scratch dml__gathered_scratch(ptrdiff_t m, ptrdiff_t n, ptrdiff_t k)
{
    dml__product product;
    memset(&product, 0, sizeof product);
    product.m = m;
    product.n = n;
    product.k = k;
    product.a.pack = dml__pack_x;
    product.b.pack = dml__pack_x;
    return dml__product_scratch(&product);
}

DML_API dml_scratch dml_conv2d_scratch(const dml_conv2d_shape *shape, bool training)
{
    const dml_scratch none = { 0, 0 };
    dml__conv conv;
    if (dml__conv_init(&conv, shape, NULL, NULL) != DML_OK) return none;
    const ptrdiff_t taps = (ptrdiff_t)shape->kernel_h * shape->kernel_w, patch = taps * shape->channels;
    const ptrdiff_t outputs = shape->batch * conv.out_h * conv.out_w;
    const ptrdiff_t inputs = (ptrdiff_t)shape->batch * shape->height * shape->width;
    const dml_scratch forward = dml__gathered_scratch(outputs, shape->filters, patch);
    if (!training) return forward;
    const dml_scratch input = dml__gathered_scratch(inputs, shape->channels, taps * shape->filters);
    const dml_scratch weights = dml__gathered_scratch(shape->filters, patch, outputs);
    return dml__larger_scratch(forward, dml__larger_scratch(input, weights));
}

#endif
