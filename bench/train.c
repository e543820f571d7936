/* train: how long does a training step take, beside PyTorch, JAX and kann and the machine's limits? And what
 * memory? */
#include "bench.h"

/* A network under construction, and what a training step costs for a sample: each weight's multiply-add is
   done once forward, once for the weights' gradient and once for the input's, which the first layer doesn't
   need. */
typedef struct network {
    dml_node *top;
    double operations;
} network;

static void count(network *n, double multiply_adds)
{
    n->operations += 2 * multiply_adds * (n->operations == 0 ? 2 : 3);
}

static void convolution(network *n, int filters, int kernel, int stride, int padding, bool no_bias)
{
    const int channels = dml_node_shape(n->top).dims[2];
    n->top = dml_conv2d(n->top, &(dml_conv2d_options){ .filters = filters,
                                                       .kernel = { kernel, kernel },
                                                       .stride = { stride, stride },
                                                       .padding = { padding, padding },
                                                       .no_bias = no_bias });
    const dml_shape out = dml_node_shape(n->top);
    count(n, (double)out.dims[0] * out.dims[1] * filters * kernel * kernel * channels);
}

static void dense(network *n, int units)
{
    count(n, (double)dml_node_shape(n->top).dims[0] * units);
    n->top = dml_dense(n->top, units);
}

/* 784-128-10 */
static void mlp(network *n)
{
    n->top = dml_flatten(n->top);
    dense(n, 128), n->top = dml_relu(n->top);
    dense(n, 10);
}

/* 784-1024-1024-10 */
static void mlp_wide(network *n)
{
    n->top = dml_flatten(n->top);
    dense(n, 1024), n->top = dml_relu(n->top);
    dense(n, 1024), n->top = dml_relu(n->top);
    dense(n, 10);
}

static void lenet5(network *n)
{
    convolution(n, 6, 5, 1, 2, false), n->top = dml_max_pool2d(dml_relu(n->top), NULL);
    convolution(n, 16, 5, 1, 0, false), n->top = dml_max_pool2d(dml_relu(n->top), NULL);
    n->top = dml_flatten(n->top);
    dense(n, 120), n->top = dml_relu(n->top);
    dense(n, 84), n->top = dml_relu(n->top);
    dense(n, 10);
}

/* Keras' examples/mnist_cnn.py, without its dropouts. */
static void keras_cnn(network *n)
{
    convolution(n, 32, 3, 1, 0, false), n->top = dml_relu(n->top);
    convolution(n, 64, 3, 1, 0, false), n->top = dml_max_pool2d(dml_relu(n->top), NULL);
    n->top = dml_flatten(n->top);
    dense(n, 128), n->top = dml_relu(n->top);
    dense(n, 10);
}

/* He, Zhang, Ren, Sun, "Deep residual learning for image recognition", section 4.2, with option A. */
static void resnet20(network *n)
{
    convolution(n, 16, 3, 1, 1, true), n->top = dml_relu(dml_batch_norm(n->top, NULL));
    for (int stage = 0; stage < 3; stage++)
        for (int block = 0; block < 3; block++) {
            const int filters = 16 << stage, stride = stage > 0 && block == 0 ? 2 : 1;
            dml_node *shortcut = dml_padded_shortcut2d(n->top, stride, filters);
            convolution(n, filters, 3, stride, 1, true), n->top = dml_relu(dml_batch_norm(n->top, NULL));
            convolution(n, filters, 3, 1, 1, true), n->top = dml_batch_norm(n->top, NULL);
            n->top = dml_relu(dml_add(n->top, shortcut));
        }
    n->top = dml_global_avg_pool2d(n->top);
    dense(n, 10);
}

typedef struct model {
    const char *name;
    void (*build)(network *n);
    int batch, size, channels; /* images (size, size, channels) */
    bool quick;                /* among the rows of --quick */
} model;

static const model models[] = {
    { "mlp", mlp, 64, 28, 1, true },
    { "mlp", mlp, 1, 28, 1, false },
    { "mlp_wide", mlp_wide, 128, 28, 1, false },
    { "lenet5", lenet5, 64, 28, 1, true },
    { "keras_cnn", keras_cnn, 64, 28, 1, false },
    { "resnet20", resnet20, 128, 32, 3, false },
};

/* --- a row --- */

typedef struct job {
    dml_trainer *trainer;
    int batch;
    const void *inputs[2];
} job;

static void step(void *argument)
{
    job *j = (job *)argument;
    dml_trainer_step(j->trainer, j->batch, j->inputs, 2, NULL);
}

static int measure(const model *m, int batch, double momentum, int threads, bench_peers *peers,
                   double seconds)
{
    bench_counter memory = { 0, 0 };
    char name[128];
    const size_t pixel_count = (size_t)batch * (size_t)m->size * (size_t)m->size * (size_t)m->channels;
    float *pixels = bench_floats("train", pixel_count); /* (batch, size, size, channels) */
    int32_t *labels = malloc((size_t)batch * sizeof *labels);
    if (!labels) {
        fprintf(stderr, "train: no memory for a batch of %d\n", batch);
        exit(1);
    }
    dml_context *ctx = dml_open(&(dml_options){
        .threads = threads, .allocator = { bench_count_allocate, bench_count_release, &memory } });
    dml_graph *g = dml_graph_create(ctx);
    dml_node *image = dml_input(g, "image", DML_F32, m->size, m->size, m->channels);
    network n = { image, 0 };
    m->build(&n);
    const dml_trainer_options options = { .batch = batch, .optimizer = dml_sgd(0.01f, (float)momentum) };
    job j = { dml_trainer_create(dml_softmax_cross_entropy(n.top, dml_input(g, "label", DML_I32)), &options),
              batch,
              { pixels, labels } };
    if (j.trainer) {
        const dml_random random = { 1, 0, 0 };
        for (size_t i = 0; i < pixel_count; i++) pixels[i] = dml_random_normal(&random, (uint64_t)i);
        for (int i = 0; i < batch; i++) labels[i] = i % 10;
        snprintf(name, sizeof name, "train %s %d %g", m->name, batch, momentum);
        /* Forward and backward read the weights, the update the weights, gradient and velocity; backward
           writes the gradient and the update the others. */
        const size_t vector = (size_t)dml_graph_parameter_count(g) * sizeof(float),
                     state = momentum > 0 ? 1 : 0;
        dml_pool *pool = dml_context_pool(ctx);
        const double before = bench_least_seconds(pool, n.operations * batch, (4 + state) * vector,
                                                  (2 + state) * vector, (2 + state) * vector);
        const double one = bench_beside(peers, name, step, &j, seconds);
        const double after = bench_least_seconds(pool, n.operations * batch, (4 + state) * vector,
                                                 (2 + state) * vector, (2 + state) * vector);
        if (dml_status_of(ctx) == DML_OK) {
            printf("name=train what=%s batch=%d momentum=%g ms=%.4g flops=%.4g of_peak=%.3f bytes=%zu",
                   m->name, batch, momentum, 1e3 * one, n.operations * batch,
                   1e-9 * n.operations * batch / one / bench_known_peak(dml_pool_threads(pool)), memory.peak);
            for (int i = 0; i < peers->count; i++) {
                const char *bytes = strstr(peers->list[i].said, "bytes=");
                if (peers->list[i].takes_case && bytes) printf(" %s_%s", peers->list[i].name, bytes);
            }
            bench_row(peers, dml_pool_threads(pool), one, before < after ? before : after, batch,
                      "samples/s");
        }
    }
    const dml_status status = dml_status_of(ctx);
    if (status != DML_OK) fprintf(stderr, "train: %s\n", dml_error(ctx));
    dml_close(ctx);
    free(pixels);
    free(labels);
    return status != DML_OK;
}

static const char usage[] =
    "usage: train [--model NAME] [--batch B] [--momentum M] [options]\n"
    "  --model NAME  only mlp (784-128-10), mlp_wide (784-1024-1024-10), lenet5, keras_cnn or resnet20\n"
    "  --batch B     samples of a step; otherwise what is usual for each model\n"
    "  --momentum M  of stochastic gradient descent; 0.9\n" BENCH_COMMON_USAGE
    "Prints a row for each model: ours is the samples/s of a training step (forward, backward, update), "
    "limit what\n"
    "its multiply-adds would take at the measured peak, or its weights at the bandwidth of where they lie. "
    "flops are\n"
    "a step's, of_peak the share of the peak that ours reaches, bytes the most memory that ours takes, "
    "beside a\n"
    "peer's where it can be had.\n";

int main(int argc, char **argv)
{
    static const char *const names[] = { "torch", "jax", "kann", NULL };
    bench_common common = { 0, 1, false, NULL };
    const char *only = NULL;
    int batch = 0, failed = 0;
    double momentum = 0.9;
    bool found = false;
    const bench_option options[] = { { "--model", BENCH_TEXT, &only, 0, 0 },
                                     { "--batch", BENCH_INT, &batch, 1, 1 << 20 },
                                     { "--momentum", BENCH_NUMBER, &momentum, 0, 0.999 },
                                     BENCH_COMMON_OPTIONS(common) };
    bench_parse(argc, argv, "train", usage, options);
    const int count = (int)(sizeof models / sizeof *models);
    for (int i = 0; i < count; i++) found |= !only || strcmp(only, models[i].name) == 0;
    if (!found) {
        fprintf(stderr, "train: --model is mlp, mlp_wide, lenet5, keras_cnn or resnet20, not \"%s\"\n", only);
        return 2;
    }
    if (common.quick && common.seconds > 0.1) common.seconds = 0.1;
    for (int round = 0, threads; (threads = bench_threads(&common, round)) > 0; round++) {
        bench_peers peers;
        bench_peers_start(&peers, "train", common.peers, names, threads);
        for (int i = 0; i < count && !failed; i++) {
            const model *m = &models[i];
            if (only ? strcmp(only, m->name) != 0 : common.quick && !m->quick) continue;
            if (batch && i > 0 && strcmp(m->name, models[i - 1].name) == 0) continue;
            failed = measure(m, batch ? batch : m->batch, momentum, threads, &peers, common.seconds);
        }
        bench_peers_end(&peers);
    }
    return failed;
}
