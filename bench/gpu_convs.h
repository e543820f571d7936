/* gpu_convs.h: convolutions of ResNet-50, forward and both gradients, in each precision. */
#ifndef DML_BENCH_GPU_CONVS_H
#define DML_BENCH_GPU_CONVS_H

#include "gpu_device.h"

typedef struct conv_layer {
    int size, channels, filters, kernel, stride, pad;
} conv_layer;

/* The gradient of the weights in as many shares as a training step cuts it into (ops/op_conv2d.c). */
static int conv_shares(const conv_layer *l, double pixels)
{
    const double columns = (double)l->kernel * l->kernel * l->channels;
    const double tiles = (double)(int)((columns + 63) / 64) * ((l->filters + 63) / 64);
    const double most = 256 / tiles < pixels / 256 ? 256 / tiles : pixels / 256;
    return most > 1 ? (int)most : 1;
}

/* The launch of a pass: 0 forward, 1 the input's gradient, 2 that of the weights. Arrays: x, w, y, and dw of
   all shares. */
static dml_launch conv_launch(const conv_layer *l, int batch, int pass, dml_buffer *const array[4])
{
    static const char *const kernels[] = { "conv2d_forward", "conv2d_backward_input",
                                           "conv2d_backward_weights" };
    const int out = (l->size + 2 * l->pad - l->kernel) / l->stride + 1;
    const size_t in = (size_t)batch * (size_t)(l->size * l->size),
                 pixels = (size_t)batch * (size_t)(out * out);
    const size_t columns = (size_t)(l->kernel * l->kernel * l->channels);
    const int shares = pass == 2 ? conv_shares(l, (double)pixels) : 1;
    dml_launch launch = { .kernel = kernels[pass],
                          .integer = { batch, l->size, l->size, l->channels, l->filters, l->kernel, l->kernel,
                                       l->stride, l->stride, l->pad, l->pad, out, out, 1, 1, 1 } };
    const int buffers[3][4] = { { 0, 1, -1, 2 }, { 2, 1, 0, -1 }, { 0, 2, 3, -1 } };
    for (int i = 0; i < 4; i++)
        if (buffers[pass][i] >= 0) launch.buffer[i] = gpu_at(array[buffers[pass][i]], 0);
    launch.size[0] = pass == 0    ? (size_t)l->filters
                     : pass == 1  ? (size_t)l->channels
                     : shares > 1 ? (size_t)shares * ((columns + 127) / 128 * 128)
                                  : columns;
    launch.size[1] = pass == 0 ? pixels : pass == 1 ? in : (size_t)l->filters;
    if (pass == 2) launch.real[1] = (float)shares;
    return launch;
}

static void conv_measure(gpu *g, const conv_layer *l, int batch, const gpu_precision *precision,
                         dml_buffer *const array[4])
{
    static const char *const passes[] = { "forward", "input", "weights" };
    const bench_peers none = { .count = 0 };
    const int out = (l->size + 2 * l->pad - l->kernel) / l->stride + 1;
    const double work = 2.0 * batch * out * out * l->filters * l->kernel * l->kernel * l->channels;
    g->device.factors = (int)precision->dtype, g->device.allow_tf32 = precision->allow_tf32;
    for (int pass = 0; pass < 3; pass++) {
        const dml_launch launch = conv_launch(l, batch, pass, array);
        const double one = gpu_time(g, launch.kernel, &launch, 1);
        if (!(one > 0)) continue;
        printf("name=gpu_convs what=%s dtype=%s batch=%d size=%d channels=%d filters=%d kernel=%d stride=%d",
               passes[pass], precision->name, batch, l->size, l->channels, l->filters, l->kernel, l->stride);
        bench_row(&none, g->threads, one, precision == gpu_precisions && g->peak > 0 ? work / g->peak : 0,
                  1e-9 * work, "GFLOP/s");
    }
}

static void convs(gpu *g)
{
    static const conv_layer layers[] = { { 224, 3, 64, 7, 2, 3 },   { 56, 64, 64, 3, 1, 1 },
                                         { 56, 64, 256, 1, 1, 0 },  { 28, 128, 128, 3, 1, 1 },
                                         { 14, 256, 256, 3, 1, 1 }, { 7, 512, 512, 3, 1, 1 } };
    const int batch = g->asked->batch ? g->asked->batch : g->info.gpu ? 64 : 1;
    const bool cuda = strcmp(g->backend->name, "cuda") == 0;
    gpu_open(g);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const conv_layer *l = &layers[i];
        const size_t out = (size_t)((l->size + 2 * l->pad - l->kernel) / l->stride + 1);
        const size_t weights = (size_t)(l->filters * l->kernel * l->kernel * l->channels);
        const double pixels = (double)batch * (double)(out * out);
        const size_t floats[4] = { (size_t)batch * (size_t)(l->size * l->size * l->channels), weights,
                                   (size_t)batch * out * out * (size_t)l->filters,
                                   weights * (size_t)conv_shares(l, pixels) };
        dml_buffer *array[4] = { NULL, NULL, NULL, NULL };
        bool room = true;
        for (int j = 0; j < 4 && room; j++) {
            array[j] = gpu_buffer(g, floats[j] * sizeof(float));
            room = array[j] != NULL;
            if (room) gpu_fill(g, &array[j], 1, floats[j]);
        }
        if (!room) {
            printf("# gpu: left out convs of batch %d: %s\n", batch, dml_error(g->device.context));
            dml_clear_error(g->device.context);
        }
        for (const gpu_precision *p = gpu_precisions; p < gpu_precisions + GPU_PRECISIONS && room; p++)
            if (g->asked->dtype ? p == gpu_precision_of(g->asked)
                                : p == gpu_precisions || (cuda && p->dtype != DML_F16))
                conv_measure(g, l, batch, p, array);
        for (int j = 0; j < 4; j++) gpu_release(g, array[j]);
    }
    gpu_close(g);
}

#endif
