#ifndef DML_KERNELS_POOL2D_C
#define DML_KERNELS_POOL2D_C

#include "kernels/pool2d.h"

#include "kernels/blocks.h"
#include "kernels/conv2d.h"

#include <string.h>

typedef struct dml__pool2d_job {
    dml_isa isa;
    const dml_pool2d_shape *shape;
    int out_height, out_width;
    const float *x;        /* forward: x; backward: dy */
    float *y;              /* forward: y; backward: dx */
    const int32_t *argmax; /* (N, OH, OW, C), for max_backward */
    int32_t *argmax_out;   /* the same for max_forward, or NULL */
    float beta;
    size_t rows, rows_per_task; /* a row is one (image, h) of the output: (W, C) floats */
} dml__pool2d_job;

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

/* How many inputs a window holds. */
static inline float dml__window_size(const dml__pool2d_job *job, int oh, int ow)
{
    const dml_pool2d_shape *s = job->shape;
    const dml__window_span h = dml__window(oh, s->kernel_h, s->stride_h, s->pad_h, s->height);
    const dml__window_span w = dml__window(ow, s->kernel_w, s->stride_w, s->pad_w, s->width);
    return (float)(h.end - h.begin) * (float)(w.end - w.begin);
}

/* One output pixel: `x` is its image, `h` and `w` its window. The channels that fill no vector go one by one.
 */
DML__BODY void dml__max_pixel(const dml_pool2d_shape *s, const float *x, dml__window_span h,
                              dml__window_span w, float *y, int32_t *argmax)
{
    const size_t channels = (size_t)s->channels;
    const int32_t first = h.begin * s->width + w.begin;
    const dml__vi zero = { 0 };
    size_t c = 0;
    for (; c + DML__LANES <= channels; c += DML__LANES) {
        dml__vf largest = DML__LOAD(x + (size_t)first * channels + c);
        dml__vi place = zero + first;
        for (int ih = h.begin; ih < h.end; ih++)
            for (int iw = w.begin; iw < w.end; iw++) {
                const int32_t here = ih * s->width + iw;
                const dml__vf value = DML__LOAD(x + (size_t)here * channels + c);
                /* the second term lets the first NaN in and keeps it */
                const dml__vi take = (value > largest) | ((value != value) & (largest == largest));
                largest = DML__SELECT(take, value, largest);
                place = DML__SELECT_INT(take, zero + here, place);
            }
        DML__STORE(y + c, largest);
        if (argmax) DML__STORE_INT(argmax + c, place);
    }
    for (; c < channels; c++) {
        float largest = x[(size_t)first * channels + c];
        int32_t place = first;
        for (int ih = h.begin; ih < h.end; ih++)
            for (int iw = w.begin; iw < w.end; iw++) {
                const int32_t here = ih * s->width + iw;
                const float value = x[(size_t)here * channels + c];
                const bool take = value > largest || (value != value && largest == largest);
                largest = take ? value : largest;
                place = take ? here : place;
            }
        y[c] = largest;
        if (argmax) argmax[c] = place;
    }
}

DML__BODY void dml__max_forward_rows_body(const dml__pool2d_job *job, size_t begin, size_t end)
{
    const dml_pool2d_shape *s = job->shape;
    const size_t image = (size_t)s->height * (size_t)s->width * (size_t)s->channels;
    for (size_t row = begin; row < end; row++) {
        const int oh = (int)(row % (size_t)job->out_height);
        const float *x = job->x + row / (size_t)job->out_height * image;
        const dml__window_span h = dml__window(oh, s->kernel_h, s->stride_h, s->pad_h, s->height);
        for (int ow = 0; ow < job->out_width; ow++) {
            const size_t out = (row * (size_t)job->out_width + (size_t)ow) * (size_t)s->channels;
            const dml__window_span w = dml__window(ow, s->kernel_w, s->stride_w, s->pad_w, s->width);
            dml__max_pixel(s, x, h, w, job->y + out, job->argmax_out ? job->argmax_out + out : NULL);
        }
    }
}
DML__PER_ISA(dml__max_forward_rows, (const dml__pool2d_job *job, size_t begin, size_t end), (job, begin, end))

DML__BODY void dml__avg_forward_rows_body(const dml__pool2d_job *job, size_t begin, size_t end)
{
    const dml_pool2d_shape *s = job->shape;
    const size_t channels = (size_t)s->channels, image = (size_t)s->height * (size_t)s->width * channels;
    for (size_t row = begin; row < end; row++) {
        const int oh = (int)(row % (size_t)job->out_height);
        const float *x = job->x + row / (size_t)job->out_height * image;
        const dml__window_span h = dml__window(oh, s->kernel_h, s->stride_h, s->pad_h, s->height);
        for (int ow = 0; ow < job->out_width; ow++) {
            const dml__window_span w = dml__window(ow, s->kernel_w, s->stride_w, s->pad_w, s->width);
            const float count = dml__window_size(job, oh, ow);
            float *y = job->y + (row * (size_t)job->out_width + (size_t)ow) * channels;
            size_t c = 0;
            for (; c + DML__LANES <= channels; c += DML__LANES) {
                dml__vf sum;
                dml__splat(&sum, 0);
                for (int ih = h.begin; ih < h.end; ih++)
                    for (int iw = w.begin; iw < w.end; iw++)
                        sum += DML__LOAD(x + (size_t)(ih * s->width + iw) * channels + c);
                DML__STORE(y + c, sum / count);
            }
            for (; c < channels; c++) {
                float sum = 0;
                for (int ih = h.begin; ih < h.end; ih++)
                    for (int iw = w.begin; iw < w.end; iw++)
                        sum += x[(size_t)(ih * s->width + iw) * channels + c];
                y[c] = sum / count;
            }
        }
    }
}
DML__PER_ISA(dml__avg_forward_rows, (const dml__pool2d_job *job, size_t begin, size_t end), (job, begin, end))

/* The backward passes gather: each input sums over the windows that cover it, so no two tasks write the same
   place. `max`: a window counts where it was won here; else its share is one over its size. */
DML__BODY void dml__pool_gradient_pixel(bool max, const dml__pool2d_job *job, size_t image, int32_t here,
                                        dml__window_span h, dml__window_span w, float *dx)
{
    const size_t channels = (size_t)job->shape->channels;
    const float beta = job->beta;
    size_t c = 0;
    for (; c + DML__LANES <= channels; c += DML__LANES) {
        dml__vf sum;
        dml__splat(&sum, 0);
        for (int oh = h.begin; oh < h.end; oh++)
            for (int ow = w.begin; ow < w.end; ow++) {
                const size_t at = (image + (size_t)(oh * job->out_width + ow)) * channels + c;
                const dml__vf dy = DML__LOAD(job->x + at);
                if (max)
                    sum += (dml__vf)((dml__vi)dy & (DML__LOAD_INT(job->argmax + at) == here));
                else
                    sum += dy / dml__window_size(job, oh, ow);
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
                    sum += job->x[at] / dml__window_size(job, oh, ow);
            }
        dx[c] = beta != 0 ? sum + beta * dx[c] : sum;
    }
}

DML__BODY void dml__pool_gradient_rows(bool max, const dml__pool2d_job *job, size_t begin, size_t end)
{
    const dml_pool2d_shape *s = job->shape;
    for (size_t row = begin; row < end; row++) {
        const int ih = (int)(row % (size_t)s->height);
        const size_t image = row / (size_t)s->height * (size_t)job->out_height * (size_t)job->out_width;
        const dml__window_span h = dml__windows_over(ih, s->kernel_h, s->stride_h, s->pad_h, job->out_height);
        for (int iw = 0; iw < s->width; iw++) {
            const dml__window_span w =
                dml__windows_over(iw, s->kernel_w, s->stride_w, s->pad_w, job->out_width);
            float *dx = job->y + (row * (size_t)s->width + (size_t)iw) * (size_t)s->channels;
            dml__pool_gradient_pixel(max, job, image, ih * s->width + iw, h, w, dx);
        }
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

/* False for a shape that the header rules out. */
static bool dml__pool2d_start(dml__pool2d_job *job, const dml_pool2d_shape *s)
{
    if (s->batch < 0 || s->height < 1 || s->width < 1 || s->channels < 1 || s->kernel_h < 1 ||
        s->kernel_w < 1 || s->stride_h < 1 || s->stride_w < 1 || s->pad_h < 0 || s->pad_w < 0 ||
        s->pad_h >= s->kernel_h || s->pad_w >= s->kernel_w)
        return false;
    if (s->height > INT32_MAX / s->width) return false;
    memset(job, 0, sizeof *job);
    job->isa = dml_cpu_isa();
    job->shape = s;
    job->out_height = dml_conv2d_output_size(s->height, s->kernel_h, s->stride_h, s->pad_h);
    job->out_width = dml_conv2d_output_size(s->width, s->kernel_w, s->stride_w, s->pad_w);
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

DML_API dml_status dml_max_pool2d_forward(dml_pool *pool, const dml_pool2d_shape *shape, const float *x,
                                          float *y, int32_t *argmax)
{
    dml__pool2d_job job;
    if (!dml__pool2d_start(&job, shape)) return DML_ERROR_ARGUMENT;
    job.x = x;
    job.y = y;
    job.argmax_out = argmax;
    return dml__pool2d_over_rows(pool, &job, job.out_height, dml__max_forward_rows);
}

DML_API dml_status dml_max_pool2d_backward(dml_pool *pool, const dml_pool2d_shape *shape,
                                           const int32_t *argmax, const float *dy, float beta, float *dx)
{
    dml__pool2d_job job;
    if (!dml__pool2d_start(&job, shape)) return DML_ERROR_ARGUMENT;
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
    if (!dml__pool2d_start(&job, shape)) return DML_ERROR_ARGUMENT;
    job.x = x;
    job.y = y;
    return dml__pool2d_over_rows(pool, &job, job.out_height, dml__avg_forward_rows);
}

DML_API dml_status dml_avg_pool2d_backward(dml_pool *pool, const dml_pool2d_shape *shape, const float *dy,
                                           float beta, float *dx)
{
    dml__pool2d_job job;
    if (!dml__pool2d_start(&job, shape)) return DML_ERROR_ARGUMENT;
    job.x = dy;
    job.y = dx;
    job.beta = beta;
    return dml__pool2d_over_rows(pool, &job, shape->height, dml__avg_backward_rows);
}

#endif
