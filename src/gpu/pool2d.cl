/* pool2d.cl: max and average pooling, an item an output (forward) or an input (backward, which gathers over
   the windows that cover the input, so it needs no atomics and repeats bitwise).

   The ints are those of conv2d.cl, but in the place of filters whether a mean counts padding; the meaning is
   that of src/kernels/pool2d.h. */
#ifndef DML_GPU_POOL2D_CL
#define DML_GPU_POOL2D_CL

/* The part of the axis 0 .. size - 1 that window `out` covers, [from, to). Unsigned, here and below, since a
   place plus a pad or a stride need not fit an int. */
typedef struct dml__gpu_range {
    int from, to;
} dml__gpu_range;

HELPER dml__gpu_range dml__gpu_window(int out, int size, int window, int stride, int pad)
{
    dml__gpu_range r;
    const unsigned padded = (unsigned)out * (unsigned)stride, to = padded + (unsigned)(window - pad);
    const int from = (int)(padded - (unsigned)pad); /* -pad .. size: fits, though its parts need not */
    r.from = from > 0 ? from : 0;
    r.to = to < (unsigned)size ? (int)to : size;
    return r;
}

/* How many of the places of window `out` are in the image, or in it and the pads. */
HELPER int dml__gpu_places(int out, int size, int window, int stride, int pad, int count_padding)
{
    const unsigned padded = (unsigned)out * (unsigned)stride, end = (unsigned)size + (unsigned)pad;
    const dml__gpu_range r = dml__gpu_window(out, size, window, stride, pad);
    if (!count_padding) return r.to - r.from;
    return padded + (unsigned)(window - pad) > end ? (int)(end + (unsigned)pad - padded) : window;
}

/* What the sum over a window is divided by. */
HELPER float dml__gpu_window_size(const dml__gpu_shape s, int out_h, int out_w)
{
    return (float)dml__gpu_places(out_h, s.height, s.kernel_h, s.stride_h, s.pad_h, s.filters) *
           (float)dml__gpu_places(out_w, s.width, s.kernel_w, s.stride_w, s.pad_w, s.filters);
}

/* The windows 0 .. outs - 1 that cover place `in` of the axis, [from, to). */
HELPER dml__gpu_range dml__gpu_windows_over(int in, int outs, int window, int stride, int pad)
{
    dml__gpu_range r;
    const unsigned place = (unsigned)in + (unsigned)pad, size = (unsigned)window;
    const dml__gpu_divisor step = dml__gpu_divisor_of(stride);
    const unsigned last = dml__gpu_quotient(place, step);
    r.from = place < size ? 0 : (int)(dml__gpu_quotient(place - size, step) + 1);
    r.to = last < (unsigned)outs ? (int)last + 1 : outs;
    return r;
}

/* Element i of a tensor (batch, height, width, channels) taken apart. */
typedef struct dml__gpu_element {
    int image, h, w, channel;
} dml__gpu_element;

HELPER dml__gpu_element dml__gpu_element_at(unsigned i, int height, int width, int channels)
{
    const unsigned rest = dml__gpu_quotient(i, dml__gpu_divisor_of(channels));
    const unsigned row = dml__gpu_quotient(rest, dml__gpu_divisor_of(width));
    const unsigned image = dml__gpu_quotient(row, dml__gpu_divisor_of(height));
    dml__gpu_element e;
    e.channel = (int)(i - rest * (unsigned)channels);
    e.w = (int)(rest - row * (unsigned)width);
    e.h = (int)(row - image * (unsigned)height);
    e.image = (int)image;
    return e;
}

/* y = the largest input of the window, a NaN if there is one; argmax = its place h * W + w, and -1 where int
   13 says that x is a relu's and nothing is above 0: backward is then that relu's too. Buffers x, y, argmax
   (int, may be NULL); size{batch * out_h * out_w * channels}. */
KERNEL(max_pool2d_forward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    GLOBAL int *argmax = BUFFER(2, int);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.channels;
    const unsigned i = ELEMENT;
    const dml__gpu_element e = dml__gpu_element_at(i, s.out_h, s.out_w, s.channels);
    const dml__gpu_range h = dml__gpu_window(e.h, s.height, s.kernel_h, s.stride_h, s.pad_h);
    const dml__gpu_range w = dml__gpu_window(e.w, s.width, s.kernel_w, s.stride_w, s.pad_w);
    if (i < n) {
        GLOBAL const float *image = x + (WIDE)e.image * s.height * s.width * s.channels + e.channel;
        int best = h.from * s.width + w.from;
        float largest = image[(WIDE)best * s.channels];
        for (int row = h.from; row < h.to; row++) {
            for (int column = w.from; column < w.to; column++) {
                const int place = row * s.width + column;
                const float value = image[(WIDE)place * s.channels];
                const int wins = dml__beats(value, largest); /* no branch: nobody can predict it */
                largest = wins ? value : largest;
                best = wins ? place : best;
            }
        }
        y[i] = largest;
        if (argmax) argmax[i] = largest > 0.0f || !INT(13) ? best : -1;
    }
}

/* dx = the dy of the windows that the input won + beta dx. Buffers argmax (int), dy, dx; floats beta;
   size{batch * height * width * channels}. */
KERNEL(max_pool2d_backward)
{
    GLOBAL const int *argmax = BUFFER(0, const int);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL float *dx = BUFFER(2, float);
    const float beta = REAL(0);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.height * (unsigned)s.width * (unsigned)s.channels;
    const unsigned i = ELEMENT;
    const dml__gpu_element e = dml__gpu_element_at(i, s.height, s.width, s.channels);
    const dml__gpu_range h = dml__gpu_windows_over(e.h, s.out_h, s.kernel_h, s.stride_h, s.pad_h);
    const dml__gpu_range w = dml__gpu_windows_over(e.w, s.out_w, s.kernel_w, s.stride_w, s.pad_w);
    if (i < n) {
        float sum = 0.0f;
        for (int row = h.from; row < h.to; row++) {
            for (int column = w.from; column < w.to; column++) {
                const WIDE out =
                    (((WIDE)e.image * s.out_h + row) * s.out_w + column) * s.channels + e.channel;
                const float won = dy[out]; /* read anyway: a branch on argmax would be mispredicted */
                sum += argmax[out] == e.h * s.width + e.w ? won : 0.0f;
            }
        }
        dx[i] = dml__with_beta(sum, beta, dx + i);
    }
}

/* What max_pool2d_backward computes, of the same buffers and floats, where no two windows have an input in
   common: an item an output, whose window's inputs and those up to the next window are its own, so that dy
   and argmax are read once. size{batch * out_h * out_w * channels}. */
KERNEL(max_pool2d_backward_apart)
{
    GLOBAL const int *argmax = BUFFER(0, const int);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL float *dx = BUFFER(2, float);
    const float beta = REAL(0);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.channels;
    const unsigned i = ELEMENT;
    const dml__gpu_element e = dml__gpu_element_at(i, s.out_h, s.out_w, s.channels);
    if (i < n) {
        const int top = e.h ? e.h * s.stride_h - s.pad_h : 0, left = e.w ? e.w * s.stride_w - s.pad_w : 0;
        const int bottom = e.h + 1 < s.out_h ? (e.h + 1) * s.stride_h - s.pad_h : s.height;
        const int right = e.w + 1 < s.out_w ? (e.w + 1) * s.stride_w - s.pad_w : s.width;
        const int best = argmax[i];
        const float won = dy[i];
        GLOBAL float *image = dx + (WIDE)e.image * s.height * s.width * s.channels + e.channel;
        for (int h = top; h < bottom; h++) {
            for (int w = left; w < right; w++) {
                const int place = h * s.width + w;
                GLOBAL float *to = image + (WIDE)place * s.channels;
                *to = dml__with_beta(place == best ? won : 0.0f, beta, to);
            }
        }
    }
}

/* y = the mean of the window's inputs. Buffers x, y;
   size{batch * out_h * out_w * channels}. */
KERNEL(avg_pool2d_forward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.channels;
    const unsigned i = ELEMENT;
    const dml__gpu_element e = dml__gpu_element_at(i, s.out_h, s.out_w, s.channels);
    const dml__gpu_range h = dml__gpu_window(e.h, s.height, s.kernel_h, s.stride_h, s.pad_h);
    const dml__gpu_range w = dml__gpu_window(e.w, s.width, s.kernel_w, s.stride_w, s.pad_w);
    if (i < n) {
        GLOBAL const float *image = x + (WIDE)e.image * s.height * s.width * s.channels + e.channel;
        float sum = 0.0f;
        for (int row = h.from; row < h.to; row++)
            for (int column = w.from; column < w.to; column++)
                sum += image[(WIDE)(row * s.width + column) * s.channels];
        y[i] = sum / dml__gpu_window_size(s, e.h, e.w);
    }
}

/* dx = each covering window's dy over its inputs + beta dx. Buffers dy, dx; floats beta;
   size{batch * height * width * channels}. */
KERNEL(avg_pool2d_backward)
{
    GLOBAL const float *dy = BUFFER(0, const float);
    GLOBAL float *dx = BUFFER(1, float);
    const float beta = REAL(0);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.height * (unsigned)s.width * (unsigned)s.channels;
    const unsigned i = ELEMENT;
    const dml__gpu_element e = dml__gpu_element_at(i, s.height, s.width, s.channels);
    const dml__gpu_range h = dml__gpu_windows_over(e.h, s.out_h, s.kernel_h, s.stride_h, s.pad_h);
    const dml__gpu_range w = dml__gpu_windows_over(e.w, s.out_w, s.kernel_w, s.stride_w, s.pad_w);
    if (i < n) {
        float sum = 0.0f;
        for (int row = h.from; row < h.to; row++) {
            for (int column = w.from; column < w.to; column++) {
                const WIDE out =
                    (((WIDE)e.image * s.out_h + row) * s.out_w + column) * s.channels + e.channel;
                sum += dy[out] / dml__gpu_window_size(s, row, column);
            }
        }
        dx[i] = dml__with_beta(sum, beta, dx + i);
    }
}

#endif
