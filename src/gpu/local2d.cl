/* local2d.cl: convolution whose weights differ from place to place, an item an output (forward), an input or
   a weight (backward). The ints are those of conv2d.cl, without pads; the meaning is that of
   src/kernels/local2d.h. */
#ifndef DML_GPU_LOCAL2D_CL
#define DML_GPU_LOCAL2D_CL

/* y = the sums of the windows' products. Buffers x, w, y; size{batch * out_h * out_w * filters}. */
KERNEL(local2d_forward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *weights = BUFFER(1, const float);
    GLOBAL float *y = BUFFER(2, float);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.filters;
    const unsigned i = ELEMENT;
    if (i < n) {
        const dml__gpu_element e = dml__gpu_element_at(i, s.out_h, s.out_w, s.filters);
        const int run = s.kernel_w * s.channels;
        GLOBAL const float *w =
            weights + (((WIDE)e.h * s.out_w + e.w) * s.filters + e.channel) * s.kernel_h * run;
        float sum = 0.0f;
        for (int row = 0; row < s.kernel_h; row++) {
            GLOBAL const float *line =
                x + (((WIDE)e.image * s.height + e.h * s.stride_h + row) * s.width + e.w * s.stride_w) *
                        s.channels;
            for (int k = 0; k < run; k++) sum += line[k] * w[(WIDE)row * run + k];
        }
        y[i] = sum;
    }
}

/* dx = each covering window's dy times its weights + beta dx. Buffers dy, w, dx; floats beta;
   size{batch * height * width * channels}. */
KERNEL(local2d_backward_input)
{
    GLOBAL const float *dy = BUFFER(0, const float);
    GLOBAL const float *weights = BUFFER(1, const float);
    GLOBAL float *dx = BUFFER(2, float);
    const float beta = REAL(0);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned n = (unsigned)s.batch * (unsigned)s.height * (unsigned)s.width * (unsigned)s.channels;
    const unsigned i = ELEMENT;
    if (i < n) {
        const dml__gpu_element e = dml__gpu_element_at(i, s.height, s.width, s.channels);
        const dml__gpu_range h = dml__gpu_windows_over(e.h, s.out_h, s.kernel_h, s.stride_h, 0);
        const dml__gpu_range w = dml__gpu_windows_over(e.w, s.out_w, s.kernel_w, s.stride_w, 0);
        const WIDE taps = (WIDE)s.kernel_h * s.kernel_w * s.channels;
        float sum = 0.0f;
        for (int row = h.from; row < h.to; row++) {
            for (int column = w.from; column < w.to; column++) {
                const int tap = (e.h - row * s.stride_h) * s.kernel_w + e.w - column * s.stride_w;
                const WIDE place = (WIDE)row * s.out_w + column;
                GLOBAL const float *d = dy + ((WIDE)e.image * s.out_h * s.out_w + place) * s.filters;
                GLOBAL const float *by =
                    weights + place * s.filters * taps + (WIDE)tap * s.channels + e.channel;
                for (int f = 0; f < s.filters; f++) sum += d[f] * by[(WIDE)f * taps];
            }
        }
        dx[i] = dml__with_beta(sum, beta, dx + i);
    }
}

/* dw = the sums over the batch of dy times x + beta dw. Buffers x, dy, dw; floats beta; size{out_h * out_w *
   filters * kernel_h * kernel_w * channels}. */
KERNEL(local2d_backward_weights)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL float *dw = BUFFER(2, float);
    const float beta = REAL(0);
    const dml__gpu_shape s = dml__gpu_shape_of(arguments);
    const unsigned run = (unsigned)s.kernel_w * (unsigned)s.channels, taps = (unsigned)s.kernel_h * run;
    const unsigned outs = (unsigned)s.out_h * (unsigned)s.out_w * (unsigned)s.filters;
    const unsigned i = ELEMENT;
    if (i < outs * taps) {
        const unsigned out = i / taps, tap = i % taps, place = out / (unsigned)s.filters;
        const int h = (int)(place / (unsigned)s.out_w) * s.stride_h + (int)(tap / run);
        const int w = (int)(place % (unsigned)s.out_w) * s.stride_w;
        GLOBAL const float *from = x + ((WIDE)h * s.width + w) * s.channels + tap % run;
        float sum = 0.0f;
        for (int image = 0; image < s.batch; image++)
            sum += dy[(WIDE)image * outs + out] * from[(WIDE)image * s.height * s.width * s.channels];
        dw[i] = dml__with_beta(sum, beta, dw + i);
    }
}

#endif
