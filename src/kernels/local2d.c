#ifndef DML_KERNELS_LOCAL2D_C
#define DML_KERNELS_LOCAL2D_C

#include "kernels/local2d.h"

#include "kernels/blocks.h"
#include "kernels/conv2d.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "thread/scratch.h"

/* A window's line is KW C numbers behind each other, of each image: so for a line of places and a line of
   their windows the products of all places are batches, with nothing gathered. Arrays are counted in floats.
 */
typedef struct dml__local2d {
    int out_h, out_w;
    int image, sample, taps; /* of an image of x, of y, and of a filter's weights */
    int run;                 /* of a window's line */
    ptrdiff_t line, place;   /* of an image's line, and of a place's weights */
} dml__local2d;

DML__DRIVERS_BEGIN

static bool dml__local2d_plan(dml__local2d *l, const dml_local2d_shape *s)
{
    if (!s || s->batch < 0 || s->channels < 1 || s->filters < 1) return false;
    l->out_h = dml_conv2d_output_size(s->height, s->kernel_h, s->stride_h, 0);
    l->out_w = dml_conv2d_output_size(s->width, s->kernel_w, s->stride_w, 0);
    if (!l->out_h || !l->out_w) return false;
    if (s->width > INT32_MAX / s->channels || s->height > INT32_MAX / (s->width * s->channels)) return false;
    if (l->out_w > INT32_MAX / s->filters || l->out_h > INT32_MAX / (l->out_w * s->filters)) return false;
    l->image = s->height * s->width * s->channels; /* of which a window is a part */
    l->sample = l->out_h * l->out_w * s->filters;
    l->run = s->kernel_w * s->channels;
    l->taps = s->kernel_h * l->run;
    l->line = (ptrdiff_t)s->width * s->channels;
    l->place = (ptrdiff_t)s->filters * l->taps;
    return dml__floats_fit(s->batch, l->image, 1, 1) && dml__floats_fit(s->batch, l->sample, 1, 1) &&
           dml__floats_fit(l->sample, l->taps, 1, 1);
}

DML_API dml_status dml_local2d_forward(dml_pool *pool, const dml_local2d_shape *shape, const float *x,
                                       const float *w, float *y)
{
    dml__local2d l;
    dml_status status = dml__local2d_plan(&l, shape) ? DML_OK : DML_ERROR_ARGUMENT;
    for (int oh = 0; status == DML_OK && oh < l.out_h; oh++)
        for (int i = 0; status == DML_OK && i < shape->kernel_h; i++)
            status = dml_sgemm_batched(pool, DML_NO_TRANS, DML_TRANS, shape->batch, shape->filters, l.run, 1,
                                       x + ((ptrdiff_t)oh * shape->stride_h + i) * l.line, l.image,
                                       (ptrdiff_t)shape->stride_w * shape->channels,
                                       w + oh * l.out_w * l.place + (ptrdiff_t)i * l.run, l.taps, l.place,
                                       i ? 1.0f : 0.0f, y + (ptrdiff_t)oh * l.out_w * shape->filters,
                                       l.sample, shape->filters, l.out_w);
    return status;
}

/* Windows overlap, so places take turns: those of a turn are so far apart that they don't. */
DML_API dml_status dml_local2d_backward_input(dml_pool *pool, const dml_local2d_shape *shape, const float *dy,
                                              const float *w, float beta, float *dx)
{
    dml__local2d l;
    dml_status status = dml__local2d_plan(&l, shape) ? DML_OK : DML_ERROR_ARGUMENT;
    if (status != DML_OK) return status;
    const size_t all = (size_t)shape->batch * (size_t)l.image;
    if (beta == 0)
        dml_fill(pool, all, 0, dx);
    else if (beta != 1)
        dml_scale(pool, all, beta, dx);
    const int turns = (shape->kernel_w - 1) / shape->stride_w + 1;
    const ptrdiff_t pixel = (ptrdiff_t)shape->stride_w * shape->channels;
    for (int oh = 0; oh < l.out_h; oh++)
        for (int i = 0; i < shape->kernel_h; i++)
            for (int turn = 0; status == DML_OK && turn < turns && turn < l.out_w; turn++)
                status = dml_sgemm_batched(
                    pool, DML_NO_TRANS, DML_NO_TRANS, shape->batch, l.run, shape->filters, 1,
                    dy + ((ptrdiff_t)oh * l.out_w + turn) * shape->filters, l.sample,
                    (ptrdiff_t)turns * shape->filters,
                    w + ((ptrdiff_t)oh * l.out_w + turn) * l.place + (ptrdiff_t)i * l.run, l.taps,
                    turns * l.place, 1, dx + ((ptrdiff_t)oh * shape->stride_h + i) * l.line + turn * pixel,
                    l.image, turns * pixel, (l.out_w - 1 - turn) / turns + 1);
    return status;
}

DML_API dml_status dml_local2d_backward_weights(dml_pool *pool, const dml_local2d_shape *shape,
                                                const float *x, const float *dy, float beta, float *dw)
{
    dml__local2d l;
    dml_status status = dml__local2d_plan(&l, shape) ? DML_OK : DML_ERROR_ARGUMENT;
    for (int oh = 0; status == DML_OK && oh < l.out_h; oh++)
        for (int i = 0; status == DML_OK && i < shape->kernel_h; i++)
            status = dml_sgemm_batched(pool, DML_TRANS, DML_NO_TRANS, shape->filters, l.run, shape->batch, 1,
                                       dy + (ptrdiff_t)oh * l.out_w * shape->filters, l.sample,
                                       shape->filters, x + ((ptrdiff_t)oh * shape->stride_h + i) * l.line,
                                       l.image, (ptrdiff_t)shape->stride_w * shape->channels, beta,
                                       dw + oh * l.out_w * l.place + (ptrdiff_t)i * l.run, l.taps, l.place,
                                       l.out_w);
    return status;
}

DML_API dml_scratch dml_local2d_scratch(const dml_local2d_shape *s)
{
    dml__local2d l;
    dml_scratch scratch = { 0, 0 };
    if (!dml__local2d_plan(&l, s)) return scratch;
    scratch = dml_sgemm_scratch(DML_NO_TRANS, DML_TRANS, s->batch, s->filters, l.run);
    scratch = dml__larger_scratch(scratch,
                                  dml_sgemm_scratch(DML_NO_TRANS, DML_NO_TRANS, s->batch, l.run, s->filters));
    return dml__larger_scratch(scratch,
                               dml_sgemm_scratch(DML_TRANS, DML_NO_TRANS, s->filters, l.run, s->batch));
}

DML__DRIVERS_END

#endif
