#ifndef DML_KERNELS_CONV2D_C
#define DML_KERNELS_CONV2D_C

#include "kernels/conv2d.h"

#include "kernels/blocks.h"
#include "kernels/conv2d_amx.h"
#include "kernels/conv2d_depthwise.h"
#include "kernels/conv2d_internal.h"
#include "kernels/conv2d_pass.h"
#include "kernels/conv2d_planes.h"
#include "kernels/conv2d_product.h"
#include "kernels/conv2d_ring.h"
#include "kernels/conv2d_weights.h"
#include "kernels/product.h"
#include "thread/pool_internal.h"
#include "thread/scratch.h"

#include <string.h>

DML__DRIVERS_BEGIN

DML_API int dml_conv2d_output_size(int in, int kernel, int stride, int pad)
{
    if (in < 1 || kernel < 1 || stride < 1 || pad < 0) return 0;
    const int64_t room = (int64_t)in + 2 * (int64_t)pad - kernel;
    const int64_t size = room < 0 ? 0 : room / stride + 1;
    return size > INT32_MAX ? 0 : (int)size;
}

DML_API int dml_conv2d_extent(int kernel, int dilation)
{
    if (kernel < 1 || dilation < 0) return 0;
    if (dilation == 0) dilation = 1;
    const int64_t extent = (int64_t)(kernel - 1) * dilation + 1;
    return extent > INT32_MAX ? 0 : (int)extent;
}

/* A shape whose zeros are replaced, and what follows from it. */
typedef struct dml__conv {
    dml_conv2d_shape shape;
    ptrdiff_t out_h, out_w;
    ptrdiff_t channels, filters; /* of a group */
    ptrdiff_t taps;
} dml__conv;

/* What the windows reach, or the padding on both sides, if that is more. */
static int64_t dml__conv_padded(int in, int pad, int out, int stride, int extent)
{
    const int64_t both = (int64_t)in + 2 * (int64_t)pad, reach = (int64_t)(out - 1) * stride + extent;
    return both > reach ? both : reach;
}

/* Whether x, y, w, every place in a padded image of x or y, and what a weights' gradient copies of x at once
   can be addressed. */
static bool dml__conv_fits(const dml__conv *conv)
{
    const dml_conv2d_shape *s = &conv->shape;
    const int64_t padded_h = dml__conv_padded(s->height, s->pad_h, s->out_h, s->stride_h,
                                              dml_conv2d_extent(s->kernel_h, s->dilation_h));
    const int64_t padded_w = dml__conv_padded(s->width, s->pad_w, s->out_w, s->stride_w,
                                              dml_conv2d_extent(s->kernel_w, s->dilation_w));
    const int64_t depth = s->channels > s->filters ? s->channels : s->filters;
    const ptrdiff_t strip = dml__larger(1, DML__WGRAD_STRIP / conv->out_w);
    const int64_t apart = dml__larger(s->stride_h, dml_conv2d_extent(s->kernel_h, s->dilation_h));
    return dml__floats_fit(s->batch, s->height, s->width, s->channels) &&
           dml__floats_fit(s->batch, conv->out_h, conv->out_w, s->filters) &&
           dml__floats_fit(s->filters, s->kernel_h, s->kernel_w, conv->channels) &&
           dml__floats_fit(padded_h, padded_w, depth, 1) &&
           dml__floats_fit(dml__smaller(strip, s->batch * conv->out_h), apart, padded_w,
                           s->channels + DML__CONV_COLUMNS);
}

/* The size of y along an axis, or 0. */
static int dml__conv_out(int in, int extent, int stride, int pad, int given)
{
    if (given == 0) return dml_conv2d_output_size(in, extent, stride, pad);
    return in < 1 || extent < 1 || stride < 1 || pad < 0 || given < 0 ? 0 : given;
}

static dml_status dml__conv_init(dml__conv *conv, const dml_conv2d_shape *shape)
{
    if (!shape || shape->batch < 0 || shape->channels < 1 || shape->filters < 1 || shape->groups < 0 ||
        shape->dilation_h < 0 || shape->dilation_w < 0)
        return DML_ERROR_ARGUMENT;
    dml_conv2d_shape *s = &conv->shape;
    *s = *shape;
    if (!s->dilation_h) s->dilation_h = 1;
    if (!s->dilation_w) s->dilation_w = 1;
    if (!s->groups) s->groups = 1;
    if (s->channels % s->groups || s->filters % s->groups) return DML_ERROR_ARGUMENT;
    conv->channels = s->channels / s->groups;
    conv->filters = s->filters / s->groups;
    s->out_h = dml__conv_out(s->height, dml_conv2d_extent(s->kernel_h, s->dilation_h), s->stride_h, s->pad_h,
                             s->out_h);
    s->out_w = dml__conv_out(s->width, dml_conv2d_extent(s->kernel_w, s->dilation_w), s->stride_w, s->pad_w,
                             s->out_w);
    conv->out_h = s->out_h, conv->out_w = s->out_w;
    if (!conv->out_h || !conv->out_w || !dml__conv_fits(conv)) return DML_ERROR_ARGUMENT;
    conv->taps = (ptrdiff_t)s->kernel_h * s->kernel_w;
    return DML_OK;
}

DML__LOCAL bool dml__conv2d_takes(const dml_conv2d_shape *shape)
{
    dml__conv conv;
    return dml__conv_init(&conv, shape) == DML_OK;
}

DML__LOCAL bool dml__conv2d_is_rounded(const dml_pool *pool, const dml_conv2d_shape *shape)
{
    return dml__pool_rounds_to(pool) != DML_F32 && shape->channels / shape->groups >= DML__ROUNDED_CHANNELS;
}

/* Whether each channel makes one filter. */
static bool dml__conv_is_depthwise(const dml__conv *conv)
{
    const dml_conv2d_shape *s = &conv->shape;
    return conv->channels == 1 && conv->filters == 1 && s->groups > 1 && conv->taps <= DML__DEPTHWISE_TAPS;
}

/* The loops over groups: depthwise, all of them at once. */
static int dml__conv_groups(const dml__conv *conv)
{
    return dml__conv_is_depthwise(conv) ? 1 : conv->shape.groups;
}

/* Makes the pass of a channel one of all channels. */
static void dml__conv_widen(const dml__conv *conv, dml__conv_pass *pass)
{
    pass->columns = conv->shape.channels;
    pass->weights_column = conv->taps;
}

/* Passes that go together share a source. */
#define DML__CONV_PASSES DML__DEPTHWISE_PASSES

/* How factors that are rounded are multiplied: by AMX, whose own loops they take; as pairs, gathered into a
   product's panels; or widened again, by the loops for f32. */
static bool dml__conv_is_by_amx(dml_pool *pool, const dml__conv *conv)
{
    return dml__conv2d_is_rounded(pool, &conv->shape) && dml__conv_has_amx(pool);
}

static bool dml__conv_is_by_pairs(dml_pool *pool, const dml__conv *conv)
{
    return dml__conv2d_is_rounded(pool, &conv->shape) && dml__pool_rounds_to(pool) == DML_BF16 &&
           dml__pool_bf16(pool) == DML__BF16_AVX512;
}

static void dml__conv_run(dml_pool *pool, const dml__conv *conv, dml__conv_pass *passes, int count)
{
    if (dml__conv_is_depthwise(conv)) {
        for (int i = 0; i < count; i++) dml__conv_widen(conv, &passes[i]);
        dml__depthwise_passes(pool, passes, count);
        return;
    }
    if (dml__conv_is_by_amx(pool, conv)) {
        for (int i = 0; i < count; i++) dml__amx_pass_run(pool, &passes[i]);
        return;
    }
    if (dml__conv2d_is_rounded(pool, &conv->shape))
        for (int i = 0; i < count; i++) passes[i].rounds_to = dml__pool_rounds_to(pool);
    for (int i = 0, fit; i < count; i += fit ? fit : 1) {
        fit = dml__conv_planes_fit(pool, passes + i, count - i);
        if (fit)
            dml__conv_planes_run(pool, passes + i, fit);
        else
            dml__conv_pass_run(pool, &passes[i]);
    }
}

static dml_scratch dml__conv_run_scratch(const dml__conv_pass *passes, int count)
{
    dml_scratch scratch = { 0, 0 };
    for (int i = 0, fit; i < count; i += fit ? fit : 1) {
        fit = dml__conv_planes_fit(NULL, passes + i, count - i);
        scratch = dml__larger_scratch(scratch, fit ? dml__conv_planes_scratch(passes + i, fit)
                                                   : dml__conv_pass_scratch(&passes[i]));
    }
    return scratch;
}

/* --- one tap, no padding: matrix products --- */

/* With P pixels: y (P, F) = x (P, C) w^T; dx = dy w; dw = dy^T x. */
typedef enum dml__conv_direction {
    DML__CONV_FORWARD,
    DML__CONV_INPUT,
    DML__CONV_WEIGHTS
} dml__conv_direction;

/* Whether to take the loops that know any kernels of single channels (conv2d_ring.h). Those with one filter
   each and few taps and strides are faster unrolled. */
static bool dml__conv_is_ring(const dml__conv *conv)
{
    const dml_conv2d_shape *s = &conv->shape;
    const bool unrolled = conv->filters == 1 && s->stride_w <= 2 &&
                          (s->kernel_w <= 3 || (s->kernel_w == 5 && s->stride_w == 1));
    return !unrolled && dml__conv2d_ring_fits(s);
}

/* With strides, the pixels of dx are no matrix' rows. */
static bool dml__conv_is_product(const dml__conv *conv, dml__conv_direction direction)
{
    const dml_conv2d_shape *s = &conv->shape;
    const bool whole = s->out_h == dml_conv2d_output_size(s->height, 1, s->stride_h, 0) &&
                       s->out_w == dml_conv2d_output_size(s->width, 1, s->stride_w, 0);
    return conv->taps == 1 && s->groups == 1 && s->pad_h == 0 && s->pad_w == 0 && whole &&
           (direction != DML__CONV_INPUT || (s->stride_h == 1 && s->stride_w == 1));
}

/* The pixels of x that strides leave, as a factor. */
typedef struct dml__conv_pixels {
    const float *x;
    ptrdiff_t out_h, out_w; /* of an image */
    ptrdiff_t image, line, pixel;
} dml__conv_pixels;

DML__DRIVERS_END

static const float *dml__conv_pixel(const dml__conv_pixels *p, ptrdiff_t index)
{
    const ptrdiff_t line = index / p->out_w;
    return p->x + line / p->out_h * p->image + line % p->out_h * p->line + index % p->out_w * p->pixel;
}

/* Lanes are pixels, k channels. */
static void dml__conv_pack_rows(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                int width, float *out)
{
    const dml__conv_pixels *p = (const dml__conv_pixels *)source;
    if (lanes < width) dml__conv_zero(out, (ptrdiff_t)kc * width);
    for (ptrdiff_t lane = 0, count; lane < lanes; lane += count) {
        count = dml__smaller(lanes - lane, p->out_w - (first + lane) % p->out_w);
        dml__pack_transposed(dml__conv_pixel(p, first + lane) + k0, p->pixel, (int)count, kc, width,
                             out + lane);
    }
}

/* Lanes are channels, k pixels. */
static void dml__conv_pack_columns(const void *source, ptrdiff_t first, int lanes, ptrdiff_t k0, int kc,
                                   int width, float *out)
{
    const dml__conv_pixels *p = (const dml__conv_pixels *)source;
    for (ptrdiff_t k = 0; k < kc; k++, out += width) {
        dml__conv_copy(out, dml__conv_pixel(p, k0 + k) + first, lanes);
        dml__conv_zero(out + lanes, width - lanes);
    }
}

typedef struct dml__conv_factors {
    dml__matrix a, b;
    dml__conv_pixels x; /* in the place of one of them */
} dml__conv_factors;

DML__DRIVERS_BEGIN

static dml__product dml__conv_product(const dml__conv *conv, dml__conv_direction direction, const float *left,
                                      const float *right, dml__conv_factors *factors)
{
    const dml_conv2d_shape *s = &conv->shape;
    const ptrdiff_t pixels = s->batch * conv->out_h * conv->out_w, channels = s->channels,
                    filters = s->filters, line = s->width * channels;
    const dml__matrix rows = { left, direction == DML__CONV_FORWARD ? channels : filters, 1 };
    const dml__matrix columns = { left, 1, filters };
    const dml__matrix plain = { right, 1, channels }, transposed = { right, channels, 1 };
    const dml__conv_pixels x = { direction == DML__CONV_FORWARD ? left : right,
                                 conv->out_h,
                                 conv->out_w,
                                 s->height * line,
                                 s->stride_h * line,
                                 s->stride_w * channels };
    dml__product product;
    memset(&product, 0, sizeof product);
    factors->a = direction == DML__CONV_WEIGHTS ? columns : rows;
    factors->b = direction == DML__CONV_FORWARD ? transposed : plain;
    factors->x = x;
    product.m = direction == DML__CONV_WEIGHTS ? filters : pixels;
    product.n = direction == DML__CONV_FORWARD ? filters : channels;
    product.k = direction == DML__CONV_FORWARD ? channels : direction == DML__CONV_INPUT ? filters : pixels;
    product.a.pack = product.b.pack = dml__pack_matrix;
    product.a.source = &factors->a;
    product.b.source = &factors->b;
    if (s->stride_h > 1 || s->stride_w > 1) {
        dml__factor *strided = direction == DML__CONV_FORWARD ? &product.a : &product.b;
        strided->pack = direction == DML__CONV_FORWARD ? dml__conv_pack_rows : dml__conv_pack_columns;
        strided->source = &factors->x;
    }
    product.alpha = 1;
    product.ldc = product.n;
    return product;
}

static void dml__conv_multiply(dml_pool *pool, const dml__conv *conv, dml__conv_direction direction,
                               const float *left, const float *right, float beta,
                               const dml_epilogue *epilogue, float *c)
{
    dml__conv_factors factors;
    dml__product product = dml__conv_product(conv, direction, left, right, &factors);
    product.beta = beta;
    product.c = c;
    if (epilogue) product.epilogue = *epilogue;
    dml__multiply(pool, &product);
}

static dml_scratch dml__conv_product_scratch(const dml__conv *conv, dml__conv_direction direction)
{
    dml__conv_factors factors;
    const dml__product product = dml__conv_product(conv, direction, NULL, NULL, &factors);
    return dml__product_scratch(&product);
}

/* --- forward --- */

static dml__conv_pass dml__conv_forward_pass(const dml__conv *conv, int group, const float *x, const float *w,
                                             float beta, const dml_epilogue *epilogue, float *y)
{
    const dml_conv2d_shape *s = &conv->shape;
    dml__conv_pass p;
    memset(&p, 0, sizeof p);
    p.batch = s->batch, p.grid_h = conv->out_h, p.grid_w = conv->out_w, p.columns = conv->filters;
    p.stride_h = s->stride_h, p.stride_w = s->stride_w, p.dilation_h = s->dilation_h,
    p.dilation_w = s->dilation_w;
    p.taps_h = s->kernel_h, p.taps_w = s->kernel_w, p.depth = conv->channels;
    p.origin_y = -s->pad_h, p.origin_x = -s->pad_w;
    p.source = x ? x + group * conv->channels : NULL;
    p.source_h = s->height, p.source_w = s->width, p.source_pixel = s->channels;
    p.weights_column = conv->taps * conv->channels;
    p.weights_tap_h = (ptrdiff_t)s->kernel_w * conv->channels, p.weights_tap_w = conv->channels,
    p.weights_depth = 1;
    p.weights = w ? w + group * conv->filters * p.weights_column : NULL;
    p.target_pixel = s->filters, p.target_line = conv->out_w * s->filters;
    p.target_image = conv->out_h * p.target_line;
    p.target = y ? y + group * conv->filters : NULL;
    p.beta = beta;
    if (epilogue) {
        p.bias = epilogue->bias ? epilogue->bias + group * conv->filters : NULL;
        p.relu = epilogue->activation == DML_ACTIVATION_RELU;
    }
    return p;
}

/* An empty batch has no images. */
static bool dml__conv_has_arrays(const dml_conv2d_shape *shape, const float *a, const float *b,
                                 const float *c)
{
    return shape->batch == 0 || (a && b && c);
}

DML_API dml_status dml_conv2d_forward_fused(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                            const float *w, float beta, const dml_epilogue *epilogue,
                                            float *y)
{
    dml__conv conv;
    const dml_status status = dml__conv_init(&conv, shape);
    if (status == DML_OK && (!dml__conv_has_arrays(shape, x, w, y) || !dml__epilogue_is_known(epilogue)))
        return DML_ERROR_ARGUMENT;
    if (status == DML_OK && dml__conv_is_product(&conv, DML__CONV_FORWARD)) {
        dml__conv_multiply(pool, &conv, DML__CONV_FORWARD, x, w, beta, epilogue, y);
        return DML_OK;
    }
    if (status == DML_OK && dml__conv_is_by_pairs(pool, &conv)) {
        dml__conv2d_product_forward(pool, &conv.shape, x, w, beta, epilogue, y);
        return DML_OK;
    }
    if (status == DML_OK && dml__conv_is_ring(&conv)) {
        dml__conv2d_ring_forward(pool, &conv.shape, x, w, beta, epilogue, y);
        return DML_OK;
    }
    for (int group = 0; status == DML_OK && group < dml__conv_groups(&conv); group++) {
        dml__conv_pass pass = dml__conv_forward_pass(&conv, group, x, w, beta, epilogue, y);
        dml__conv_run(pool, &conv, &pass, 1);
    }
    return status;
}

DML_API dml_status dml_conv2d_forward(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                      const float *w, const float *bias, float *y)
{
    const dml_epilogue epilogue = { bias, DML_ACTIVATION_NONE };
    return dml_conv2d_forward_fused(pool, shape, x, w, 0, &epilogue, y);
}

/* --- the input gradient --- */

/* Along one axis, every stride-th input from `first` on. The outputs that they have gone into are those of
   every tap_step-th tap, and lie source_step apart. So each phase is a convolution of dy without strides. */
typedef struct dml__phase {
    ptrdiff_t count;          /* of the inputs */
    ptrdiff_t taps, last_tap; /* the taps, and the last of them, which meets the first output */
    ptrdiff_t tap_step, source_step;
    ptrdiff_t origin; /* the output that the first input meets at the last tap */
} dml__phase;

static dml__phase dml__phase_at(ptrdiff_t first, ptrdiff_t in, ptrdiff_t kernel, ptrdiff_t stride,
                                ptrdiff_t pad, ptrdiff_t dilation)
{
    dml__phase result;
    const ptrdiff_t divisor = dml__common_divisor(dilation, stride), phase = (first + pad) % stride;
    result.count = (in - 1 - first) / stride + 1;
    result.tap_step = stride / divisor;
    result.source_step = dilation / divisor;
    ptrdiff_t tap = 0;
    while (tap < kernel && tap < result.tap_step && tap * dilation % stride != phase) tap++;
    const bool none = tap >= kernel || tap >= result.tap_step;
    result.taps = none ? 0 : (kernel - 1 - tap) / result.tap_step + 1;
    result.last_tap = none ? 0 : tap + (result.taps - 1) * result.tap_step;
    result.origin = none ? 0 : (first + pad - result.last_tap * dilation) / stride; /* whole */
    return result;
}

static dml__conv_pass dml__conv_input_pass(const dml__conv *conv, int group, int y, int x, const float *dy,
                                           const float *w, float beta, float *dx)
{
    const dml_conv2d_shape *s = &conv->shape;
    const dml__phase v = dml__phase_at(y, s->height, s->kernel_h, s->stride_h, s->pad_h, s->dilation_h);
    const dml__phase h = dml__phase_at(x, s->width, s->kernel_w, s->stride_w, s->pad_w, s->dilation_w);
    const ptrdiff_t tap_h = (ptrdiff_t)s->kernel_w * conv->channels;
    dml__conv_pass p;
    memset(&p, 0, sizeof p);
    p.batch = s->batch, p.grid_h = v.count, p.grid_w = h.count, p.columns = conv->channels;
    p.stride_h = p.stride_w = 1, p.dilation_h = v.source_step, p.dilation_w = h.source_step;
    p.taps_h = v.taps, p.taps_w = h.taps, p.depth = conv->filters;
    p.origin_y = v.origin, p.origin_x = h.origin;
    p.source = dy ? dy + group * conv->filters : NULL;
    p.source_h = conv->out_h, p.source_w = conv->out_w, p.source_pixel = s->filters;
    p.weights_tap_h = -v.tap_step * tap_h, p.weights_tap_w = -h.tap_step * conv->channels;
    p.weights_depth = conv->taps * conv->channels, p.weights_column = 1;
    p.weights =
        w ? w + group * conv->filters * p.weights_depth + v.last_tap * tap_h + h.last_tap * conv->channels
          : NULL;
    p.target_pixel = (ptrdiff_t)s->stride_w * s->channels;
    const ptrdiff_t line = (ptrdiff_t)s->width * s->channels;
    p.target_line = s->stride_h * line, p.target_image = s->height * line;
    p.target = dx ? dx + y * line + (ptrdiff_t)x * s->channels + group * conv->channels : NULL;
    p.beta = beta;
    return p;
}

/* The phases from number `at` on that go together, since pixels beside each other, which belong to different
   phases, come and go with the same lines of dy: all, unless they are too many. Returns how many, 0 behind
   the last. */
static int dml__conv_input_passes(const dml__conv *conv, int group, ptrdiff_t at, const float *dy,
                                  const float *w, float beta, float *dx, dml__conv_pass *passes)
{
    const dml_conv2d_shape *s = &conv->shape;
    const ptrdiff_t across = dml__smaller(s->stride_w, s->width),
                    all = across * dml__smaller(s->stride_h, s->height);
    const int count = all <= DML__CONV_PASSES ? (int)all : 1;
    if (at >= all) return 0;
    for (int i = 0; i < count; i++)
        passes[i] = dml__conv_input_pass(conv, group, (int)((at + i) / across), (int)((at + i) % across), dy,
                                         w, beta, dx);
    return count;
}

DML_API dml_status dml_conv2d_backward_input(dml_pool *pool, const dml_conv2d_shape *shape, const float *dy,
                                             const float *w, float beta, float *dx)
{
    dml__conv conv;
    const dml_status status = dml__conv_init(&conv, shape);
    if (status != DML_OK) return status;
    if (!dml__conv_has_arrays(shape, dy, w, dx)) return DML_ERROR_ARGUMENT;
    if (dml__conv_is_product(&conv, DML__CONV_INPUT)) {
        dml__conv_multiply(pool, &conv, DML__CONV_INPUT, dy, w, beta, NULL, dx);
        return DML_OK;
    }
    if (dml__conv_is_by_pairs(pool, &conv)) {
        dml__conv2d_product_input(pool, &conv.shape, dy, w, beta, dx);
        return DML_OK;
    }
    if (dml__conv_is_ring(&conv)) {
        dml__conv2d_ring_input(pool, &conv.shape, dy, w, beta, dx);
        return DML_OK;
    }
    dml__conv_pass passes[DML__CONV_PASSES];
    for (int group = 0; group < dml__conv_groups(&conv); group++) {
        ptrdiff_t at = 0;
        for (int n; (n = dml__conv_input_passes(&conv, group, at, dy, w, beta, dx, passes)) > 0; at += n)
            dml__conv_run(pool, &conv, passes, n);
    }
    return DML_OK;
}

/* --- the weight gradient --- */

static dml__wgrad dml__conv_weights_job(const dml__conv *conv, int group, const float *x, const float *dy,
                                        float beta, float *dw)
{
    const dml_conv2d_shape *s = &conv->shape;
    dml__wgrad job;
    job.batch = s->batch, job.out_h = conv->out_h, job.out_w = conv->out_w;
    job.filters = conv->filters, job.taps_h = s->kernel_h, job.taps_w = s->kernel_w,
    job.channels = conv->channels;
    job.stride_h = s->stride_h, job.stride_w = s->stride_w;
    job.dilation_h = s->dilation_h, job.dilation_w = s->dilation_w;
    job.pad_h = s->pad_h, job.pad_w = s->pad_w;
    job.x = x ? x + group * conv->channels : NULL;
    job.in_h = s->height, job.in_w = s->width, job.x_pixel = s->channels;
    job.dy = dy ? dy + group * conv->filters : NULL;
    job.dy_pixel = s->filters;
    job.dw = dw ? dw + group * conv->filters * conv->taps * conv->channels : NULL;
    job.beta = beta;
    job.rounds_to = DML_F32;
    return job;
}

/* Of a group that has more than one channel. */
static void dml__conv_weights_run(dml_pool *pool, const dml__conv *conv, dml__wgrad *job)
{
    if (dml__conv_is_by_amx(pool, conv) && dml__amx_wgrad_run(pool, job)) return;
    if (dml__conv2d_is_rounded(pool, &conv->shape)) job->rounds_to = dml__pool_rounds_to(pool);
    dml__wgrad_run(pool, job);
}

DML_API dml_status dml_conv2d_backward_weights(dml_pool *pool, const dml_conv2d_shape *shape, const float *x,
                                               const float *dy, float beta, float *dw)
{
    dml__conv conv;
    const dml_status status = dml__conv_init(&conv, shape);
    if (status == DML_OK && (!dw || !dml__conv_has_arrays(shape, x, dy, dw))) return DML_ERROR_ARGUMENT;
    if (status == DML_OK && dml__conv_is_product(&conv, DML__CONV_WEIGHTS)) {
        dml__conv_multiply(pool, &conv, DML__CONV_WEIGHTS, dy, x, beta, NULL, dw);
        return DML_OK;
    }
    if (status == DML_OK && dml__conv_is_by_pairs(pool, &conv)) {
        dml__conv2d_product_weights(pool, &conv.shape, x, dy, beta, dw);
        return DML_OK;
    }
    if (status == DML_OK && dml__conv_is_ring(&conv)) {
        dml__conv2d_ring_weights(pool, &conv.shape, x, dy, beta, dw);
        return DML_OK;
    }
    for (int group = 0; status == DML_OK && group < dml__conv_groups(&conv); group++) {
        dml__wgrad job = dml__conv_weights_job(&conv, group, x, dy, beta, dw);
        if (dml__conv_is_depthwise(&conv)) {
            job.filters = job.channels = conv.shape.channels;
            dml__depthwise_weights(pool, &job);
        } else {
            dml__conv_weights_run(pool, &conv, &job);
        }
    }
    return status;
}

DML_API dml_scratch dml_conv2d_scratch(const dml_conv2d_shape *shape, bool training)
{
    dml_scratch scratch = { 0, 0 };
    dml__conv conv;
    if (dml__conv_init(&conv, shape) != DML_OK) return scratch;
    if (dml__conv_is_ring(&conv)) return scratch;
    if (dml__conv_is_depthwise(&conv)) {
        dml__wgrad job = dml__conv_weights_job(&conv, 0, NULL, NULL, 0, NULL);
        job.filters = job.channels = conv.shape.channels;
        if (training) scratch.shared = dml__depthwise_weights_scratch(&job);
        return scratch;
    }
    const dml__conv_pass forward = dml__conv_forward_pass(&conv, 0, NULL, NULL, 0, NULL, NULL);
    scratch = dml__conv_is_product(&conv, DML__CONV_FORWARD)
                  ? dml__conv_product_scratch(&conv, DML__CONV_FORWARD)
                  : dml__conv_run_scratch(&forward, 1);
    if (!training) return scratch;
    const dml__wgrad weights = dml__conv_weights_job(&conv, 0, NULL, NULL, 0, NULL);
    scratch = dml__larger_scratch(scratch, dml__conv_is_product(&conv, DML__CONV_WEIGHTS)
                                               ? dml__conv_product_scratch(&conv, DML__CONV_WEIGHTS)
                                               : dml__wgrad_scratch(&weights));
    if (dml__conv_is_product(&conv, DML__CONV_INPUT))
        return dml__larger_scratch(scratch, dml__conv_product_scratch(&conv, DML__CONV_INPUT));
    dml__conv_pass passes[DML__CONV_PASSES];
    ptrdiff_t at = 0;
    for (int n; (n = dml__conv_input_passes(&conv, 0, at, NULL, NULL, 0, NULL, passes)) > 0; at += n)
        scratch = dml__larger_scratch(scratch, dml__conv_run_scratch(passes, n));
    return scratch;
}

DML__DRIVERS_END

#endif
