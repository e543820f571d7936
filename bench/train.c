/* train: how many samples a second does a whole training step do, against the machine's peak of
 * multiply-adds? */
#define DML_IMPLEMENTATION
#include "dml.h"

#include "bench.h"

/* A network under construction, and what it costs: each weight's multiply-add is done once forward, once for
   the weights' gradient and once for the input's, which the first layer doesn't need. */
typedef struct network {
    dml_node *top;
    double operations; /* of one sample's training step */
} network;

static void count(network *n, double multiply_adds)
{
    n->operations += 2 * multiply_adds * (n->operations == 0 ? 2 : 3);
}

static void convolution(network *n, int filters, int kernel, int padding)
{
    const int channels = dml_node_shape(n->top).dims[2];
    n->top = dml_conv2d(n->top, &(dml_conv2d_options){ .filters = filters,
                                                       .kernel = { kernel, kernel },
                                                       .padding = { padding, padding } });
    const dml_shape out = dml_node_shape(n->top);
    count(n, (double)out.dims[0] * out.dims[1] * filters * kernel * kernel * channels);
    n->top = dml_max_pool2d(dml_relu(n->top), NULL);
}

static void dense(network *n, int units)
{
    count(n, (double)dml_node_shape(n->top).dims[0] * units);
    n->top = dml_dense(n->top, units);
}

/* The two networks of samples/mnist.c. */
static network build(const char *model, dml_node *image)
{
    network n = { image, 0 };
    if (strcmp(model, "mlp") == 0) {
        n.top = dml_flatten(n.top);
        dense(&n, 256), n.top = dml_relu(n.top);
        dense(&n, 128), n.top = dml_relu(n.top);
    } else {
        convolution(&n, 6, 5, 2);
        convolution(&n, 16, 5, 0);
        n.top = dml_flatten(n.top);
        dense(&n, 120), n.top = dml_relu(n.top);
        dense(&n, 84), n.top = dml_relu(n.top);
    }
    dense(&n, 10);
    return n;
}

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

static int measure(const char *model, int batch, int threads, double seconds)
{
    enum { PIXELS = 28 * 28 };
    dml_context *ctx = dml_open(&(dml_options){ .threads = threads });
    dml_graph *g = dml_graph_create(ctx);
    dml_node *image = dml_input(g, "image", DML_F32, 28, 28, 1);
    dml_node *label = dml_input(g, "label", DML_I32);
    const network n = build(model, image);
    dml_trainer_options options = { .batch = batch, .optimizer = dml_sgd(0.01f, 0.9f) };
    float *pixels = malloc((size_t)batch * PIXELS * sizeof *pixels);
    int32_t *labels = malloc((size_t)batch * sizeof *labels);
    job j = { dml_trainer_create(dml_softmax_cross_entropy(n.top, label), &options),
              batch,
              { pixels, labels } };
    if (pixels && labels && j.trainer) {
        const dml_random random = { 1, 0, 0 };
        for (int i = 0; i < batch * PIXELS; i++) pixels[i] = dml_random_normal(&random, (uint64_t)i);
        for (int i = 0; i < batch; i++) labels[i] = i % 10;
        const double before = bench_fma_peak(dml_context_pool(ctx));
        const double one = bench_time(step, &j, seconds);
        const double after = bench_fma_peak(dml_context_pool(ctx));
        if (dml_status_of(ctx) == DML_OK) {
            printf("name=train_step model=%s batch=%d", model, batch);
            bench_row_end(dml_pool_threads(dml_context_pool(ctx)), batch / one,
                          0.5e9 * (before + after) / n.operations, "samples/s");
        }
    }
    const dml_status status = dml_status_of(ctx);
    if (status != DML_OK)
        fprintf(stderr, "train: %s\n", dml_error(ctx));
    else if (!pixels || !labels)
        fprintf(stderr, "train: no memory for a batch of %d\n", batch);
    dml_close(ctx);
    free(pixels);
    free(labels);
    return status != DML_OK || !pixels || !labels;
}

static const char usage[] =
    "usage: train [--batch B] [--threads T] [--seconds S]\n"
    "  --batch B    samples of a step; 64\n"
    "  --threads T  rows for T threads only; otherwise for 1 and for every processor\n"
    "  --seconds S  how long to measure each row; 1\n"
    "Prints a row for each model of the mnist sample: ours is the median samples/s of a training step "
    "(forward,\n"
    "backward, update), limit what the model's multiply-adds would take at the measured peak.\n";

int main(int argc, char **argv)
{
    int batch = 64, threads = 0;
    double seconds = 1;
    for (int i = 1; i < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--batch") == 0 && i + 1 < argc)
            batch = (int)strtol(argv[++i], &end, 10);
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            threads = (int)strtol(argv[++i], &end, 10);
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = strtod(argv[++i], &end);
        if (!end || *end || batch < 1 || batch > 1 << 20 || threads < 0 || !(seconds > 0)) {
            fprintf(stderr, "train: \"%s\" is not understood\n%s", argv[i], usage);
            return 2;
        }
    }
    static const char *const models[] = { "mlp", "lenet" };
    const int all = dml_cpu_count();
    for (int m = 0; m < 2; m++)
        for (int round = 0; round < (threads || all == 1 ? 1 : 2); round++)
            if (measure(models[m], batch, threads ? threads : round ? all : 1, seconds)) return 1;
    return 0;
}
