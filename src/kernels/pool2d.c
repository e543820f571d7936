#ifndef DML_KERNELS_POOL2D_C
#define DML_KERNELS_POOL2D_C

#include "kernels/pool2d.h"

#include "kernels/blocks.h"
#include "kernels/conv2d.h"
#include "thread/pool_internal.h"

#include <string.h>

typedef struct dml__pool2d_job {
    dml_isa isa;
    const dml_pool2d_shape *shape;
    int out_height, out_width;
    const float *x;        /* forward: x; backward: dy */
    float *y;              /* forward: y; backward: dx */
    const int32_t *argmax; /* (N, OH, OW, C), for max_backward */
    int32_t *argmax_out;   /* the same for max_forward, or NULL */
    int32_t open;          /* of which a window counts whatever it holds: -1; if it is above 0: 0 */
    float beta;
    size_t rows, rows_per_task; /* a row is one (image, h) of the output: (W, C) floats */
} dml__pool2d_job;

#define DML__POOL_VECTORS 4 /* vectors of one pixel that are computed side by side */

/* Rows begin .. end - 1 of the output. */
typedef void (*dml__pool2d_kernel)(dml_isa isa, const dml__pool2d_job *job, size_t begin, size_t end);

typedef struct dml__window_span {
    int begin, end;
} dml__window_span;

/* The inputs that window `o` covers along one axis. Unsigned, since an input plus a pad need not fit an int.
 */
static inline dml__window_span dml__window(int o, int kernel, int stride, int pad, int in)
{
    dml__window_span span;
    const unsigned begin = (unsigned)o * (unsigned)stride, end = begin + (unsigned)(kernel - pad);
    span.begin = begin > (unsigned)pad ? (int)(begin - (unsigned)pad) : 0;
    span.end = end < (unsigned)in ? (int)end : in;
    return span;
}

/* The windows that cover input `i` along one axis: o * stride - pad <= i < o * stride - pad + kernel. */
static inline dml__window_span dml__windows_over(int i, int kernel, int stride, int pad, int out)
{
    dml__window_span span;
    const unsigned place = (unsigned)i + (unsigned)pad, size = (unsigned)kernel, step = (unsigned)stride;
    const unsigned last = place / step;
    span.begin = place < size ? 0 : (int)((place - size) / step + 1);
    span.end = last < (unsigned)out ? (int)last + 1 : out;
    return span;
}

/* Where the last of the windows ends, without pads. */
static inline int64_t dml__windows_end(int out, int kernel, int stride)
{
    return (int64_t)(out - 1) * stride + kernel;
}

/* How many places of window `o` are in the image, or in it and the pads. */
static inline float dml__window_places(const dml_pool2d_shape *s, int o, int kernel, int stride, int pad,
                                       int in)
{
    const dml__window_span span = dml__window(o, kernel, stride, pad, in);
    if (!s->count_padding) return (float)(span.end - span.begin);
    const int64_t left = (int64_t)in + 2 * (int64_t)pad - (int64_t)o * stride;
    return (float)(left < kernel ? left : kernel);
}

/* What the sum over a window is divided by. */
static inline float dml__window_size(const dml_pool2d_shape *s, int oh, int ow)
{
    return dml__window_places(s, oh, s->kernel_h, s->stride_h, s->pad_h, s->height) *
           dml__window_places(s, ow, s->kernel_w, s->stride_w, s->pad_w, s->width);
}

/* A pixel's channels go in whole vectors, the last of which may reach into the next pixel: what it leaves
   there is overwritten when that one's turn comes, since a task's pixels are written in order. `reach` is
   where a pixel's vectors end: its channels in whole vectors, or, where these would reach beyond the array or
   into another task's part, its channels alone; those that fill no vector then go one by one. */
static inline size_t dml__pixel_reach(size_t channels)
{
    return dml__divide_up(channels, DML__LANES) * DML__LANES;
}

/* Takes `value` where it is larger, or the first NaN. */
DML__BODY void dml__max_take(dml__vf *largest, dml__vi *place, const float *from, int32_t here)
{
    const dml__vi zero = { 0 };
    const dml__vf value = DML__LOAD(from), before = *largest;
    const dml__vi take = ~(value <= before) & (before == before);
    *largest = DML__SELECT(take, value, before);
    *place = DML__SELECT_INT(take, zero + here, *place);
}

/* The place of a window's largest, or none. */
DML__BODY void dml__max_place(const dml__vf *largest, int32_t open, dml__vi *place)
{
    const dml__vi zero = { 0 };
    *place |= ~((*largest > 0.0f) | (zero + open)); /* -1 */
}

/* `count` vectors of a pixel's channels, side by side, since each waits for its last comparison. `x` is the
   image from their first channel on, `h` and `w` the window. */
DML__BODY void dml__max_vectors(int count, const dml_pool2d_shape *s, const float *x, dml__window_span h,
                                dml__window_span w, int32_t open, float *y, int32_t *argmax)
{
    const size_t channels = (size_t)s->channels;
    const int32_t first = h.begin * s->width + w.begin;
    dml__vf largest[DML__POOL_VECTORS] = { { 0 } };
    dml__vi place[DML__POOL_VECTORS] = { { 0 } }; /* from the first on */
    DML__UNROLLED
    for (int v = 0; v < count; v++)
        largest[v] = DML__LOAD(x + (size_t)first * channels + (size_t)v * DML__LANES);
    for (int ih = h.begin; ih < h.end; ih++)
        for (int iw = w.begin; iw < w.end; iw++) {
            const int32_t here = ih * s->width + iw;
            const float *from = x + (size_t)here * channels;
            DML__UNROLLED
            for (int v = 0; v < count; v++)
                dml__max_take(&largest[v], &place[v], from + v * DML__LANES, here - first);
        }
    DML__UNROLLED
    for (int v = 0; v < count; v++) {
        DML__STORE(y + v * DML__LANES, largest[v]);
        if (!argmax) continue;
        place[v] += first;
        dml__max_place(&largest[v], open, &place[v]);
        DML__STORE_INT(argmax + v * DML__LANES, place[v]);
    }
}

DML__BODY void dml__max_pixel(const dml_pool2d_shape *s, const float *x, dml__window_span h,
                              dml__window_span w, size_t reach, int32_t open, float *y, int32_t *argmax)
{
    const size_t channels = (size_t)s->channels;
    size_t c = 0;
    for (; c + DML__POOL_VECTORS * DML__LANES <= reach; c += DML__POOL_VECTORS * DML__LANES)
        dml__max_vectors(DML__POOL_VECTORS, s, x + c, h, w, open, y + c, argmax ? argmax + c : NULL);
    for (; c + DML__LANES <= reach; c += DML__LANES)
        dml__max_vectors(1, s, x + c, h, w, open, y + c, argmax ? argmax + c : NULL);
    for (; c < channels; c++) {
        int32_t place = h.begin * s->width + w.begin;
        float largest = x[(size_t)place * channels + c];
        for (int ih = h.begin; ih < h.end; ih++)
            for (int iw = w.begin; iw < w.end; iw++) {
                const int32_t here = ih * s->width + iw;
                const float value = x[(size_t)here * channels + c];
                const bool take = !(value <= largest) && largest == largest;
                largest = take ? value : largest;
                place = take ? here : place;
            }
        y[c] = largest;
        if (argmax) argmax[c] = largest > 0 || open ? place : -1;
    }
}

DML__BODY void dml__avg_vectors(int count, const dml_pool2d_shape *s, const float *x, dml__window_span h,
                                dml__window_span w, float size, float *y)
{
    const size_t channels = (size_t)s->channels;
    dml__vf sum[DML__POOL_VECTORS] = { { 0 } };
    for (int ih = h.begin; ih < h.end; ih++)
        for (int iw = w.begin; iw < w.end; iw++) {
            const float *from = x + (size_t)(ih * s->width + iw) * channels;
            DML__UNROLLED
            for (int v = 0; v < count; v++) sum[v] += DML__LOAD(from + v * DML__LANES);
        }
    DML__UNROLLED
    for (int v = 0; v < count; v++) DML__STORE(y + v * DML__LANES, sum[v] / size);
}

DML__BODY void dml__avg_pixel(const dml_pool2d_shape *s, const float *x, dml__window_span h,
                              dml__window_span w, float size, size_t reach, float *y)
{
    const size_t channels = (size_t)s->channels;
    size_t c = 0;
    for (; c + DML__POOL_VECTORS * DML__LANES <= reach; c += DML__POOL_VECTORS * DML__LANES)
        dml__avg_vectors(DML__POOL_VECTORS, s, x + c, h, w, size, y + c);
    for (; c + DML__LANES <= reach; c += DML__LANES) dml__avg_vectors(1, s, x + c, h, w, size, y + c);
    for (; c < channels; c++) {
        float sum = 0;
        for (int ih = h.begin; ih < h.end; ih++)
            for (int iw = w.begin; iw < w.end; iw++) sum += x[(size_t)(ih * s->width + iw) * channels + c];
        y[c] = sum / size;
    }
}

/* `count` pixels of one row of windows of 2 x 2 without padding, in whole vectors. `x` is the first window,
   `below` its second line, `place` where it lies in the image; the next is `step` pixels on. `with_argmax` is
   constant, here and with_beta below: a branch in the loop would cost more than the arithmetic. */
DML__BODY void dml__pool_row_of_2x2(bool max, bool with_argmax, size_t count, size_t channels, int32_t step,
                                    const float *x, const float *below, int32_t place, int32_t width,
                                    int32_t open, float *y, int32_t *argmax)
{
    const dml__vi zero = { 0 };
    dml__vi here = zero + place;
    for (size_t i = 0; i < count; i++, here += step) {
        for (size_t c = 0; c < channels; c += DML__LANES) {
            dml__vf value = DML__LOAD(x + c);
            if (max) {
                dml__vi offset = zero;
                dml__max_take(&value, &offset, x + channels + c, 1);
                dml__max_take(&value, &offset, below + c, width);
                dml__max_take(&value, &offset, below + channels + c, width + 1);
                offset += here;
                dml__max_place(&value, open, &offset);
                if (with_argmax) DML__STORE_INT(argmax + c, offset);
            } else {
                value = value + DML__LOAD(x + channels + c) + DML__LOAD(below + c);
                value = (value + DML__LOAD(below + channels + c)) / 4.0f;
            }
            DML__STORE(y + c, value);
        }
        x += (size_t)step * channels, below += (size_t)step * channels, y += channels;
        if (with_argmax) argmax += channels;
    }
}

/* How many pixels of `channels` floats, each `step` floats after the one before it, may be taken in whole
   vectors: the last ends within `left` floats of the first's beginning. */
static inline size_t dml__pixels_that_fit(size_t count, size_t step, size_t channels, size_t left)
{
    const size_t wide = dml__pixel_reach(channels);
    if (left >= count * step + wide) return count; /* nearly always, and needs no division */
    return left < wide ? 0 : dml__minimum(count, (left - wide) / step + 1);
}

DML__BODY void dml__pool_forward_rows(bool max, const dml__pool2d_job *job, size_t begin, size_t end)
{
    const dml_pool2d_shape shape = *job->shape, *s = &shape; /* a copy, which no store can change */
    const size_t channels = (size_t)s->channels, line = (size_t)s->width * channels;
    const size_t row_floats = (size_t)job->out_width * channels, wide = dml__pixel_reach(channels);
    const bool is_2x2 = s->kernel_h == 2 && s->kernel_w == 2 && s->pad_h == 0 && s->pad_w == 0 &&
                        dml__windows_end(job->out_height, 2, s->stride_h) <= s->height &&
                        dml__windows_end(job->out_width, 2, s->stride_w) <= s->width;
    const float *x_end = job->x + (size_t)s->batch * (size_t)s->height * line;
    const float *y_end = job->y + end * row_floats;
    int oh = (int)(begin % (size_t)job->out_height);
    const float *x = job->x + begin / (size_t)job->out_height * (size_t)s->height * line;
    for (size_t row = begin; row < end; row++) {
        const dml__window_span h = dml__window(oh, s->kernel_h, s->stride_h, s->pad_h, s->height);
        float *y = job->y + row * row_floats;
        int32_t *argmax = job->argmax_out ? job->argmax_out + row * row_floats : NULL;
        int ow = 0;
        if (is_2x2) {
            const float *first = x + (size_t)h.begin * line, *last = first + line + channels;
            size_t count =
                dml__pixels_that_fit((size_t)job->out_width, channels, channels, (size_t)(y_end - y));
            count =
                dml__pixels_that_fit(count, (size_t)s->stride_w * channels, channels, (size_t)(x_end - last));
            if (max && argmax)
                dml__pool_row_of_2x2(true, true, count, channels, s->stride_w, first, first + line,
                                     h.begin * s->width, s->width, job->open, y, argmax);
            else
                dml__pool_row_of_2x2(max, false, count, channels, s->stride_w, first, first + line,
                                     h.begin * s->width, s->width, -1, y, NULL);
            ow = (int)count;
        }
        for (; ow < job->out_width; ow++) {
            const dml__window_span w = dml__window(ow, s->kernel_w, s->stride_w, s->pad_w, s->width);
            const size_t at = (size_t)ow * channels;
            const float *last = x + (size_t)(h.end - 1) * line + (size_t)(w.end - 1) * channels;
            const bool fits = (size_t)(y_end - y) >= at + wide && (size_t)(x_end - last) >= wide;
            if (max)
                dml__max_pixel(s, x, h, w, fits ? wide : channels, job->open, y + at,
                               argmax ? argmax + at : NULL);
            else
                dml__avg_pixel(s, x, h, w, dml__window_size(s, oh, ow), fits ? wide : channels, y + at);
        }
        if (++oh == job->out_height) oh = 0, x += (size_t)s->height * line;
    }
}

DML__BODY void dml__max_forward_rows_body(const dml__pool2d_job *job, size_t begin, size_t end)
{
    dml__pool_forward_rows(true, job, begin, end);
}
DML__PER_ISA(dml__max_forward_rows, (const dml__pool2d_job *job, size_t begin, size_t end), (job, begin, end))

DML__BODY void dml__avg_forward_rows_body(const dml__pool2d_job *job, size_t begin, size_t end)
{
    dml__pool_forward_rows(false, job, begin, end);
}
DML__PER_ISA(dml__avg_forward_rows, (const dml__pool2d_job *job, size_t begin, size_t end), (job, begin, end))

/* The backward passes gather: each input sums over the windows that cover it, so no two tasks write the same
   place. `max`: a window counts where it was won here; else its share is one over its size. `image` is the
   first of the image's pixels in dy. */
DML__BODY void dml__pool_gradient_pixel(bool max, const dml__pool2d_job *job, size_t image, int32_t here,
                                        dml__window_span h, dml__window_span w, float *dx)
{
    const size_t channels = (size_t)job->shape->channels;
    const float beta = job->beta;
    size_t c = 0;
    for (; c + DML__LANES <= channels; c += DML__LANES) {
        dml__vf sum = { 0 };
        for (int oh = h.begin; oh < h.end; oh++)
            for (int ow = w.begin; ow < w.end; ow++) {
                const size_t at = (image + (size_t)(oh * job->out_width + ow)) * channels + c;
                const dml__vf dy = DML__LOAD(job->x + at);
                if (max)
                    sum += (dml__vf)((dml__vi)dy & (DML__LOAD_INT(job->argmax + at) == here));
                else
                    sum += dy / dml__window_size(job->shape, oh, ow);
            }
        if (beta != 0) sum = sum + beta * DML__LOAD(dx + c);
        DML__STORE(dx + c, sum);
    }
    for (; c < channels; c++) {
        float sum = 0;
        for (int oh = h.begin; oh < h.end; oh++)
            for (int ow = w.begin; ow < w.end; ow++) {
                const size_t at = (image + (size_t)(oh * job->out_width + ow)) * channels + c;
                if (max)
                    sum += job->argmax[at] == here ? job->x[at] : 0;
                else
                    sum += job->x[at] / dml__window_size(job->shape, oh, ow);
            }
        dx[c] = beta != 0 ? sum + beta * dx[c] : sum;
    }
}

/* `count` windows of one row that lie side by side, in whole vectors: the line of inputs that begins at place
   `here`, each covered by one window. `size` inputs are in a window. */
DML__BODY void dml__pool_gradient_of_tiles(bool max, bool with_beta, size_t count, int kernel,
                                           size_t channels, const float *dy, const int32_t *argmax,
                                           float size, int32_t here, float beta, float *dx)
{
    const dml__vf none = { 0 };
    const dml__vi zero = { 0 };
    dml__vi place = zero + here;
    for (size_t i = 0; i < count; i++) {
        for (int k = 0; k < kernel; k++, dx += channels, place += 1)
            for (size_t c = 0; c < channels; c += DML__LANES) {
                dml__vf value = DML__LOAD(dy + c);
                if (max)
                    value = (dml__vf)((dml__vi)value & (DML__LOAD_INT(argmax + c) == place));
                else
                    value = value / size;
                value = none + value; /* makes 0 of -0, as a sum over windows does */
                if (with_beta) value = value + beta * DML__LOAD(dx + c);
                DML__STORE(dx + c, value);
            }
        dy += channels;
        if (max) argmax += channels;
    }
}

DML__BODY void dml__pool_gradient_rows(bool max, const dml__pool2d_job *job, size_t begin, size_t end)
{
    const dml_pool2d_shape shape = *job->shape, *s = &shape;
    const size_t channels = (size_t)s->channels, pixels = (size_t)job->out_height * (size_t)job->out_width;
    const size_t row_floats = (size_t)s->width * channels;
    const float *dy_end = job->x + (size_t)s->batch * pixels * channels, *dx_end = job->y + end * row_floats;
    /* Where it accumulates, a vector that reaches into the next pixel would spoil what is there. */
    const bool tiles = s->kernel_w == s->stride_w && s->pad_w == 0 &&
                       dml__windows_end(job->out_width, s->kernel_w, s->stride_w) <= s->width &&
                       (job->beta == 0 || channels % DML__LANES == 0);
    int ih = (int)(begin % (size_t)s->height);
    size_t image = begin / (size_t)s->height * pixels;
    for (size_t row = begin; row < end; row++) {
        const dml__window_span h = dml__windows_over(ih, s->kernel_h, s->stride_h, s->pad_h, job->out_height);
        float *dx = job->y + row * row_floats;
        int iw = 0;
        if (tiles && h.end - h.begin == 1) {
            const size_t at = (image + (size_t)h.begin * (size_t)job->out_width) * channels;
            const float *dy = job->x + at;
            size_t count =
                dml__pixels_that_fit((size_t)job->out_width, channels, channels, (size_t)(dy_end - dy));
            /* the last pixel of each tile */
            const size_t others = (size_t)(s->kernel_w - 1) * channels;
            count = dml__pixels_that_fit(count, others + channels, channels, (size_t)(dx_end - dx) - others);
            const int32_t *argmax = max ? job->argmax + at : NULL;
            const float size = dml__window_size(s, h.begin, 0);
            if (job->beta != 0)
                dml__pool_gradient_of_tiles(max, true, count, s->kernel_w, channels, dy, argmax, size,
                                            ih * s->width, job->beta, dx);
            else
                dml__pool_gradient_of_tiles(max, false, count, s->kernel_w, channels, dy, argmax, size,
                                            ih * s->width, 0, dx);
            iw = (int)count * s->kernel_w;
        } else if (job->beta == 0 && h.begin >= h.end) {
            memset(dx, 0, row_floats * sizeof *dx);
            iw = s->width;
        }
        for (; iw < s->width; iw++) {
            const dml__window_span w =
                dml__windows_over(iw, s->kernel_w, s->stride_w, s->pad_w, job->out_width);
            dml__pool_gradient_pixel(max, job, image, ih * s->width + iw, h, w, dx + (size_t)iw * channels);
        }
        if (++ih == s->height) ih = 0, image += pixels;
    }
}

DML__BODY void dml__max_backward_rows_body(const dml__pool2d_job *job, size_t begin, size_t end)
{
    dml__pool_gradient_rows(true, job, begin, end);
}
DML__PER_ISA(dml__max_backward_rows, (const dml__pool2d_job *job, size_t begin, size_t end),
             (job, begin, end))

DML__BODY void dml__avg_backward_rows_body(const dml__pool2d_job *job, size_t begin, size_t end)
{
    dml__pool_gradient_rows(false, job, begin, end);
}
DML__PER_ISA(dml__avg_backward_rows, (const dml__pool2d_job *job, size_t begin, size_t end),
             (job, begin, end))

DML__DRIVERS_BEGIN

/* The size of y along an axis, or 0. */
static int dml__pool2d_out(int in, int kernel, int stride, int pad, int given)
{
    if (given == 0) return dml_conv2d_output_size(in, kernel, stride, pad);
    return given > 0 && (int64_t)(given - 1) * stride < (int64_t)in + pad ? given : 0;
}

/* False for a shape that the header rules out. */
static bool dml__pool2d_start(const dml_pool *pool, dml__pool2d_job *job, const dml_pool2d_shape *s,
                              const void *in, const void *out)
{
    if (!s || (s->batch && (!in || !out))) return false;
    if (s->batch < 0 || s->height < 1 || s->width < 1 || s->channels < 1 || s->kernel_h < 1 ||
        s->kernel_w < 1 || s->stride_h < 1 || s->stride_w < 1 || s->pad_h < 0 || s->pad_w < 0 ||
        s->pad_h >= s->kernel_h || s->pad_w >= s->kernel_w)
        return false;
    if (s->height > INT32_MAX / s->width) return false;
    memset(job, 0, sizeof *job);
    job->isa = dml__pool_machine(pool).isa;
    job->shape = s;
    job->out_height = dml__pool2d_out(s->height, s->kernel_h, s->stride_h, s->pad_h, s->out_h);
    job->out_width = dml__pool2d_out(s->width, s->kernel_w, s->stride_w, s->pad_w, s->out_w);
    if (!job->out_height || !job->out_width || job->out_height > INT32_MAX / job->out_width) return false;
    return dml__floats_fit(s->batch, s->height, s->width, s->channels) &&
           dml__floats_fit(s->batch, job->out_height, job->out_width, s->channels);
}

typedef struct dml__pool2d_run {
    const dml__pool2d_job *job;
    dml__pool2d_kernel kernel;
} dml__pool2d_run;

static void dml__pool2d_task(void *argument, int task, int worker)
{
    const dml__pool2d_run *run = (const dml__pool2d_run *)argument;
    const dml__pool2d_job *job = run->job;
    const size_t begin = (size_t)task * job->rows_per_task;
    (void)worker;
    run->kernel(job->isa, job, begin, dml__minimum(begin + job->rows_per_task, job->rows));
}

/* Runs over the rows of an output of `height` rows an image; each reads and writes about one row of x. */
static dml_status dml__pool2d_over_rows(dml_pool *pool, dml__pool2d_job *job, int height,
                                        dml__pool2d_kernel kernel)
{
    const dml_pool2d_shape *s = job->shape;
    const size_t work = (size_t)s->height * (size_t)s->width * (size_t)s->channels / (size_t)height;
    dml__pool2d_run run;
    job->rows = (size_t)s->batch * (size_t)height;
    job->rows_per_task = dml__items_per_task(work);
    run.job = job;
    run.kernel = kernel;
    const int tasks = (int)dml__divide_up(job->rows, job->rows_per_task);
    dml_pool_run(tasks > 1 ? pool : NULL, tasks, dml__pool2d_task, &run);
    return DML_OK;
}

static dml_status dml__max_pool2d(dml_pool *pool, const dml_pool2d_shape *shape, const float *x, int32_t open,
                                  float *y, int32_t *argmax)
{
    dml__pool2d_job job;
    if (!dml__pool2d_start(pool, &job, shape, x, y)) return DML_ERROR_ARGUMENT;
    job.x = x;
    job.y = y;
    job.argmax_out = argmax;
    job.open = open;
    return dml__pool2d_over_rows(pool, &job, job.out_height, dml__max_forward_rows);
}

DML_API dml_status dml_max_pool2d_forward(dml_pool *pool, const dml_pool2d_shape *shape, const float *x,
                                          float *y, int32_t *argmax)
{
    return dml__max_pool2d(pool, shape, x, -1, y, argmax);
}

DML_API dml_status dml_max_pool2d_of_relu_forward(dml_pool *pool, const dml_pool2d_shape *shape,
                                                  const float *x, float *y, int32_t *argmax)
{
    return dml__max_pool2d(pool, shape, x, 0, y, argmax);
}

DML_API dml_status dml_max_pool2d_backward(dml_pool *pool, const dml_pool2d_shape *shape,
                                           const int32_t *argmax, const float *dy, float beta, float *dx)
{
    dml__pool2d_job job;
    if (!dml__pool2d_start(pool, &job, shape, dy, dx) || (shape->batch && !argmax)) return DML_ERROR_ARGUMENT;
    job.x = dy;
    job.y = dx;
    job.argmax = argmax;
    job.beta = beta;
    return dml__pool2d_over_rows(pool, &job, shape->height, dml__max_backward_rows);
}

DML_API dml_status dml_avg_pool2d_forward(dml_pool *pool, const dml_pool2d_shape *shape, const float *x,
                                          float *y)
{
    dml__pool2d_job job;
    if (!dml__pool2d_start(pool, &job, shape, x, y)) return DML_ERROR_ARGUMENT;
    job.x = x;
    job.y = y;
    return dml__pool2d_over_rows(pool, &job, job.out_height, dml__avg_forward_rows);
}

DML_API dml_status dml_avg_pool2d_backward(dml_pool *pool, const dml_pool2d_shape *shape, const float *dy,
                                           float beta, float *dx)
{
    dml__pool2d_job job;
    if (!dml__pool2d_start(pool, &job, shape, dy, dx)) return DML_ERROR_ARGUMENT;
    job.x = dy;
    job.y = dx;
    job.beta = beta;
    return dml__pool2d_over_rows(pool, &job, shape->height, dml__avg_backward_rows);
}

DML__DRIVERS_END

#endif
