/* conv: how fast are dml_conv2d_forward and its gradients, beside oneDNN and PyTorch and the machine's
 * limits? */
#include "bench.h"

enum { FORWARD, INPUT, WEIGHTS, DIRECTIONS };
static const char *const directions[DIRECTIONS] = { "forward", "input", "weights" };

typedef struct layer {
    const char *model;
    int height, width, channels, filters, kernel, stride, pad, groups;
    bool quick; /* among the rows of --quick */
} layer;

/* The different convolutions of each model; ResNet-50 strides in its 3x3 (v1.5), as PyTorch and Keras' later
 * ones do. */
static const layer layers[] = {
    { "lenet5", 28, 28, 1, 6, 5, 1, 2, 1, true },
    { "lenet5", 14, 14, 6, 16, 5, 1, 0, 1, true },
    { "resnet20", 32, 32, 3, 16, 3, 1, 1, 1, false },
    { "resnet20", 32, 32, 16, 16, 3, 1, 1, 1, true },
    { "resnet20", 32, 32, 16, 32, 3, 2, 1, 1, true },
    { "resnet20", 16, 16, 32, 32, 3, 1, 1, 1, false },
    { "resnet20", 16, 16, 32, 64, 3, 2, 1, 1, false },
    { "resnet20", 8, 8, 64, 64, 3, 1, 1, 1, true },
    { "resnet50", 224, 224, 3, 64, 7, 2, 3, 1, false },
    { "resnet50", 56, 56, 64, 64, 1, 1, 0, 1, false },
    { "resnet50", 56, 56, 64, 64, 3, 1, 1, 1, true },
    { "resnet50", 56, 56, 64, 256, 1, 1, 0, 1, false },
    { "resnet50", 56, 56, 256, 64, 1, 1, 0, 1, false },
    { "resnet50", 56, 56, 256, 128, 1, 1, 0, 1, false },
    { "resnet50", 56, 56, 128, 128, 3, 2, 1, 1, false },
    { "resnet50", 56, 56, 256, 512, 1, 2, 0, 1, false },
    { "resnet50", 28, 28, 128, 512, 1, 1, 0, 1, true },
    { "resnet50", 28, 28, 512, 128, 1, 1, 0, 1, false },
    { "resnet50", 28, 28, 128, 128, 3, 1, 1, 1, false },
    { "resnet50", 28, 28, 512, 256, 1, 1, 0, 1, false },
    { "resnet50", 28, 28, 256, 256, 3, 2, 1, 1, false },
    { "resnet50", 28, 28, 512, 1024, 1, 2, 0, 1, false },
    { "resnet50", 14, 14, 256, 1024, 1, 1, 0, 1, false },
    { "resnet50", 14, 14, 1024, 256, 1, 1, 0, 1, false },
    { "resnet50", 14, 14, 256, 256, 3, 1, 1, 1, false },
    { "resnet50", 14, 14, 1024, 512, 1, 1, 0, 1, false },
    { "resnet50", 14, 14, 512, 512, 3, 2, 1, 1, false },
    { "resnet50", 14, 14, 1024, 2048, 1, 2, 0, 1, false },
    { "resnet50", 7, 7, 512, 2048, 1, 1, 0, 1, false },
    { "resnet50", 7, 7, 2048, 512, 1, 1, 0, 1, false },
    { "resnet50", 7, 7, 512, 512, 3, 1, 1, 1, false },
    { "mobilenet2", 224, 224, 3, 32, 3, 2, 1, 1, false },
    { "mobilenet2", 112, 112, 32, 32, 3, 1, 1, 32, false },
    { "mobilenet2", 112, 112, 32, 16, 1, 1, 0, 1, false },
    { "mobilenet2", 112, 112, 16, 96, 1, 1, 0, 1, false },
    { "mobilenet2", 112, 112, 96, 96, 3, 2, 1, 96, false },
    { "mobilenet2", 56, 56, 96, 24, 1, 1, 0, 1, false },
    { "mobilenet2", 56, 56, 24, 144, 1, 1, 0, 1, false },
    { "mobilenet2", 56, 56, 144, 144, 3, 1, 1, 144, false },
    { "mobilenet2", 56, 56, 144, 24, 1, 1, 0, 1, false },
    { "mobilenet2", 56, 56, 144, 144, 3, 2, 1, 144, false },
    { "mobilenet2", 28, 28, 144, 32, 1, 1, 0, 1, false },
    { "mobilenet2", 28, 28, 32, 192, 1, 1, 0, 1, false },
    { "mobilenet2", 28, 28, 192, 192, 3, 1, 1, 192, true },
    { "mobilenet2", 28, 28, 192, 32, 1, 1, 0, 1, true },
    { "mobilenet2", 28, 28, 192, 192, 3, 2, 1, 192, false },
    { "mobilenet2", 14, 14, 192, 64, 1, 1, 0, 1, false },
    { "mobilenet2", 14, 14, 64, 384, 1, 1, 0, 1, false },
    { "mobilenet2", 14, 14, 384, 384, 3, 1, 1, 384, false },
    { "mobilenet2", 14, 14, 384, 64, 1, 1, 0, 1, false },
    { "mobilenet2", 14, 14, 384, 96, 1, 1, 0, 1, false },
    { "mobilenet2", 14, 14, 96, 576, 1, 1, 0, 1, false },
    { "mobilenet2", 14, 14, 576, 576, 3, 1, 1, 576, false },
    { "mobilenet2", 14, 14, 576, 96, 1, 1, 0, 1, false },
    { "mobilenet2", 14, 14, 576, 576, 3, 2, 1, 576, false },
    { "mobilenet2", 7, 7, 576, 160, 1, 1, 0, 1, false },
    { "mobilenet2", 7, 7, 160, 960, 1, 1, 0, 1, false },
    { "mobilenet2", 7, 7, 960, 960, 3, 1, 1, 960, false },
    { "mobilenet2", 7, 7, 960, 160, 1, 1, 0, 1, false },
    { "mobilenet2", 7, 7, 960, 320, 1, 1, 0, 1, false },
    { "mobilenet2", 7, 7, 320, 1280, 1, 1, 0, 1, false },
};

typedef struct job {
    dml_conv2d_shape shape;
    int direction;
    dml_pool *pool;
    float *x, *w, *y; /* (N, H, W, C), (F, KH, KW, C / groups), (N, OH, OW, F) */
} job;

static void run(void *argument)
{
    const job *j = (const job *)argument;
    switch (j->direction) {
    case FORWARD: dml_conv2d_forward(j->pool, &j->shape, j->x, j->w, NULL, j->y); break;
    case INPUT: dml_conv2d_backward_input(j->pool, &j->shape, j->y, j->w, 0, j->x); break;
    default: dml_conv2d_backward_weights(j->pool, &j->shape, j->x, j->y, 0, j->w); break;
    }
}

/* False: we can't do it; the reason is printed. */
static bool measure(const layer *l, int batch, int dilation, int direction, bench_peers *peers,
                    dml_pool *pool, double seconds)
{
    job j;
    char name[192];
    memset(&j, 0, sizeof j);
    dml_conv2d_shape *s = &j.shape;
    s->batch = batch, s->height = l->height, s->width = l->width, s->channels = l->channels;
    s->filters = l->filters, s->kernel_h = s->kernel_w = l->kernel;
    s->stride_h = s->stride_w = l->stride, s->pad_h = s->pad_w = l->pad;
    s->dilation_h = s->dilation_w = dilation, s->groups = l->groups;
    const int span = dilation * (l->kernel - 1) + 1;
    const int out_h = dml_conv2d_output_size(l->height, span, l->stride, l->pad);
    const int out_w = dml_conv2d_output_size(l->width, span, l->stride, l->pad);
    const size_t x_count = (size_t)batch * (size_t)l->height * (size_t)l->width * (size_t)l->channels;
    const size_t w_count =
        (size_t)l->filters * (size_t)l->kernel * (size_t)l->kernel * (size_t)(l->channels / l->groups);
    const size_t y_count = (size_t)batch * (size_t)out_h * (size_t)out_w * (size_t)l->filters;
    snprintf(name, sizeof name, "conv %s %d %d %d %d %d %d %d %d %d %d %d", directions[direction], batch,
             l->height, l->width, l->channels, l->filters, l->kernel, l->kernel, l->stride, l->pad, dilation,
             l->groups);
    const char *why = NULL;
    if (l->channels % l->groups || l->filters % l->groups)
        why = "the groups don't divide channels and filters";
    else if (out_h < 1 || out_w < 1)
        why = "the kernel doesn't fit";
    if (why) {
        fprintf(stderr, "conv: left out %s: %s\n", name, why);
        return false;
    }
    j.direction = direction, j.pool = pool;
    j.x = bench_floats("conv", x_count), j.w = bench_floats("conv", w_count),
    j.y = bench_floats("conv", y_count);
    if (dml_pool_reserve(pool, dml_conv2d_scratch(s, true)) != DML_OK) {
        fprintf(stderr, "conv: no memory for the pool's scratch\n");
        exit(1);
    }
    const double operations = 2.0 * (double)y_count * (double)(w_count / (size_t)l->filters);
    const size_t counts[DIRECTIONS] = { y_count, x_count, w_count };
    const size_t written = sizeof(float) * counts[direction];
    const size_t read = sizeof(float) * (x_count + w_count + y_count) - written;
    const double least = bench_least_seconds(pool, operations, read, written, read + written);
    const double one = bench_beside(peers, name, run, &j, seconds);
    printf("name=conv what=%s model=%s batch=%d height=%d width=%d channels=%d filters=%d kernel=%d "
           "stride=%d pad=%d "
           "dilation=%d groups=%d isa=%s",
           directions[direction], l->model, batch, l->height, l->width, l->channels, l->filters, l->kernel,
           l->stride, l->pad, dilation, l->groups, dml_isa_name(dml_cpu_isa()));
    bench_row(peers, dml_pool_threads(pool), one, least, 1e-9 * operations, "GFLOP/s");
    free(j.x);
    free(j.w);
    free(j.y);
    return true;
}

static const char usage[] =
    "usage: conv [--model NAME] [--batch N] [--what forward|input|weights] [a layer] [options]\n"
    "  --model NAME  only the layers of lenet5, resnet20, resnet50 or mobilenet2\n"
    "  --batch N     only batches of N; otherwise of 1, 8 and 64\n"
    "  --what WHAT   only forward, the gradient of the input, or that of the weights\n"
    "  --height H [--width W] --channels C --filters F [--kernel K] [--stride S] [--pad P] [--dilation D] "
    "[--groups G]\n"
    "                a layer of one's own; W: H, K: 3, S: 1, P: K / 2, D: 1, G: 1\n" BENCH_COMMON_USAGE
    "Prints a row for each layer, batch and direction: ours is the GFLOP/s of dml_conv2d, limit what the "
    "peak of\n"
    "multiply-adds and the bandwidth of where the arrays lie allow.\n";

int main(int argc, char **argv)
{
    static const char *const names[] = { "onednn", "onednn_omp", "torch", NULL };
    static const int batches[] = { 1, 8, 64 };
    bench_common common = { 0, 0.08, false, NULL };
    layer asked = { "asked", 0, 0, 0, 0, 3, 1, -1, 1, true };
    const char *model = NULL, *what = NULL;
    int batch = 0, dilation = 1, found = 0;
    const bench_option options[] = { { "--model", BENCH_TEXT, &model, 0, 0 },
                                     { "--batch", BENCH_INT, &batch, 1, 1 << 16 },
                                     { "--what", BENCH_TEXT, &what, 0, 0 },
                                     { "--height", BENCH_INT, &asked.height, 1, 1 << 14 },
                                     { "--width", BENCH_INT, &asked.width, 1, 1 << 14 },
                                     { "--channels", BENCH_INT, &asked.channels, 1, 1 << 16 },
                                     { "--filters", BENCH_INT, &asked.filters, 1, 1 << 16 },
                                     { "--kernel", BENCH_INT, &asked.kernel, 1, 64 },
                                     { "--stride", BENCH_INT, &asked.stride, 1, 64 },
                                     { "--pad", BENCH_INT, &asked.pad, 0, 64 },
                                     { "--dilation", BENCH_INT, &dilation, 1, 64 },
                                     { "--groups", BENCH_INT, &asked.groups, 1, 1 << 16 },
                                     BENCH_COMMON_OPTIONS(common) };
    bench_parse(argc, argv, "conv", usage, options);
    const bool own = asked.height || asked.width || asked.channels || asked.filters;
    if (own && (!asked.height || !asked.channels || !asked.filters)) {
        fprintf(stderr, "conv: a layer of one's own needs --height, --channels and --filters: see --help\n");
        return 2;
    }
    if (!asked.width) asked.width = asked.height;
    if (asked.pad < 0) asked.pad = asked.kernel / 2;
    for (int d = 0; d < DIRECTIONS; d++) found |= !what || strcmp(what, directions[d]) == 0;
    if (!found) {
        fprintf(stderr, "conv: --what is forward, input or weights, not \"%s\"\n", what);
        return 2;
    }
    const int count = own ? 1 : (int)(sizeof layers / sizeof *layers);
    found = 0;
    for (int i = 0; i < count; i++) found |= own || !model || strcmp(model, layers[i].model) == 0;
    if (!found) {
        fprintf(stderr, "conv: --model is lenet5, resnet20, resnet50 or mobilenet2, not \"%s\"\n", model);
        return 2;
    }
    if (common.quick && common.seconds > 0.02) common.seconds = 0.02;
    bool done = false;
    for (int round = 0, threads; (threads = bench_threads(&common, round)) > 0; round++) {
        dml_pool *pool = bench_pool("conv", threads);
        bench_peers peers;
        bench_peers_start(&peers, "conv", common.peers, names, threads);
        for (int i = 0; i < count; i++) {
            const layer *l = own ? &asked : &layers[i];
            if (!own && model && strcmp(model, l->model) != 0) continue;
            if (common.quick && !l->quick) continue;
            for (int b = 0; b < 3; b++) {
                const int size = batch ? batch : batches[b];
                if (batch ? b > 0 : common.quick && size != 8) continue;
                for (int d = 0; d < DIRECTIONS; d++)
                    if (!what || strcmp(what, directions[d]) == 0)
                        done |= measure(l, size, dilation, d, &peers, pool, common.seconds);
            }
        }
        bench_peers_end(&peers);
        dml_pool_destroy(pool);
    }
    return done ? 0 : 1;
}
