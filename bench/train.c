/* train: how long does a training step take, beside PyTorch, JAX and kann and the machine's limits? And what
 * memory? */
#include "bench.h"
#include "models.h"

/* --- a model and its data --- */

typedef struct job {
    const model *model;
    int batch;
    dml_context *context;
    dml_graph *graph;
    dml_trainer *trainer;
    double operations; /* of a step and sample */
    void *input;       /* (batch, input_size): floats, or i32 tokens */
    int32_t *labels;   /* (batch, labels_size) */
    const void *inputs[2];
} job;

static void step(void *argument)
{
    job *j = (job *)argument;
    dml_trainer_step(j->trainer, j->batch, j->inputs, 2, NULL);
}

/* The batch of that number: noise on which each class leaves a mark of its own; sequences whose next token
   mostly follows from the last. */
static void fill_batch(job *j, int number)
{
    const model *m = j->model;
    const dml_random random = { 1, 0, (uint32_t)number };
    const size_t size = input_size(m);
    uint64_t at = 0;
    for (int b = 0; b < j->batch; b++) {
        if (m->channels) {
            float *pixel = (float *)j->input + (size_t)b * size;
            const int label = (int)(dml_random_bits(&random, (uint64_t)b) % (unsigned)m->classes);
            for (size_t i = 0; i < size; i++)
                pixel[i] =
                    dml_random_normal(&random, at++) + ((int)(i / 16) % m->classes == label ? 2.0f : 0.0f);
            j->labels[b] = label;
            continue;
        }
        int32_t *token = (int32_t *)j->input + (size_t)b * size, *next = j->labels + (size_t)b * size;
        token[0] = (int32_t)(dml_random_bits(&random, at++) % (unsigned)m->classes);
        for (size_t i = 0; i < size; i++) {
            const uint32_t draw = dml_random_bits(&random, at++);
            next[i] = draw % 8 ? (token[i] * 5 + 7) % m->classes : (int32_t)(draw / 8 % (unsigned)m->classes);
            if (i + 1 < size) token[i + 1] = next[i];
        }
    }
}

/* False, with the sentence printed, when it can't be had. */
static bool open_job(job *j, const model *m, int batch, double momentum, double lr, dml_dtype dtype,
                     const dml_options *options)
{
    memset(j, 0, sizeof *j);
    j->model = m, j->batch = batch;
    j->context = dml_open(options);
    j->graph = dml_graph_create(j->context);
    dml_node *loss = build_model(m, j->graph, &j->operations);
    const dml_trainer_options how = { .batch = batch,
                                      .optimizer = optimizer_of(m, momentum, lr),
                                      .dtype = dtype };
    j->trainer = dml_trainer_create(loss, &how);
    j->input = bench_floats("train", (size_t)batch * input_size(m));
    j->labels = (int32_t *)bench_floats("train", (size_t)batch * labels_size(m));
    j->inputs[0] = j->input, j->inputs[1] = j->labels;
    if (!j->trainer) fprintf(stderr, "train: %s\n", dml_error(j->context));
    return j->trainer != NULL;
}

static int close_job(job *j)
{
    const dml_status status = dml_status_of(j->context);
    if (status != DML_OK) fprintf(stderr, "train: %s\n", dml_error(j->context));
    dml_close(j->context);
    free(j->input);
    free(j->labels);
    return status != DML_OK;
}

/* --- a row --- */

static void measured_row(job *j, double momentum, dml_dtype dtype, bench_peers *peers, double seconds,
                         const bench_counter *memory)
{
    char name[128];
    const int batch = j->batch;
    if (dtype == DML_F32)
        snprintf(name, sizeof name, "train %s %d %g", j->model->name, batch, momentum);
    else
        snprintf(name, sizeof name, "mixed %s %d %g %s", j->model->name, batch, momentum,
                 dml_dtype_name(dtype));
    /* Forward and backward read the weights, the update the weights, gradient and state; backward writes the
       gradient and the update the others. */
    const size_t vector = (size_t)dml_graph_parameter_count(j->graph) * sizeof(float);
    const size_t state = (size_t)dml_trainer_vectors(j->trainer) - 2;
    dml_pool *pool = dml_context_pool(j->context);
    const double flops = j->operations * batch;
    const double before =
        bench_least_seconds(pool, flops, (4 + state) * vector, (2 + state) * vector, (2 + state) * vector);
    const double one = bench_beside(peers, name, step, j, seconds);
    const double after =
        bench_least_seconds(pool, flops, (4 + state) * vector, (2 + state) * vector, (2 + state) * vector);
    if (dml_status_of(j->context) != DML_OK) return;
    printf("name=train what=%s batch=%d momentum=%g dtype=%s ms=%.4g flops=%.4g of_peak=%.3f bytes=%zu",
           j->model->name, batch, momentum, dml_dtype_name(dtype), 1e3 * one, flops,
           1e-9 * flops / one / bench_known_peak(dml_pool_threads(pool)), memory->peak);
    for (int i = 0; i < peers->count; i++) {
        const char *bytes = strstr(peers->list[i].said, "bytes=");
        if (peers->list[i].takes_case && bytes) printf(" %s_%s", peers->list[i].name, bytes);
    }
    bench_row(peers, dml_pool_threads(pool), one, before < after ? before : after, batch, "samples/s");
}

static int measure(const model *m, int batch, double momentum, dml_dtype dtype, int threads,
                   bench_peers *peers, double seconds)
{
    bench_counter memory = { 0, 0 };
    const dml_options options = { .threads = threads,
                                  .allocator = { bench_count_allocate, bench_count_release, &memory } };
    job j;
    if (open_job(&j, m, batch, momentum, 0, dtype, &options)) {
        fill_batch(&j, 0);
        measured_row(&j, momentum, dtype, peers, seconds, &memory);
    }
    return close_job(&j);
}

/* --- a loss curve, for tests/conformance/curves.py to follow --- */

static bool write_all(const char *folder, const char *name, const char *mode, const void *data, size_t bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *out = fopen(path, mode);
    const bool written = out && fwrite(data, 1, bytes, out) == bytes;
    if ((out && fclose(out) != 0) || !written) {
        fprintf(stderr, "train: can't write %s\n", path);
        return false;
    }
    return true;
}

/* Trains that many steps and leaves in the folder the first weights, each step's batch and its loss. */
static int curve(const model *m, int batch, double momentum, double lr, dml_dtype dtype, int steps,
                 const char *folder)
{
    char path[1024], line[64];
    job j;
    bool going = open_job(&j, m, batch, momentum, lr, dtype, NULL);
    snprintf(path, sizeof path, "%s/weights.safetensors", folder);
    going = going && dml_graph_save(j.graph, path) == DML_OK;
    for (int i = 0; i < steps && going; i++) {
        const char *mode = i ? "ab" : "wb";
        float loss = 0;
        fill_batch(&j, i);
        going = dml_trainer_step(j.trainer, batch, j.inputs, 2, &loss) == DML_OK;
        snprintf(line, sizeof line, "%.9g\n", (double)loss);
        going = going && write_all(folder, "inputs", mode, j.input, (size_t)batch * input_size(m) * 4) &&
                write_all(folder, "labels", mode, j.labels, (size_t)batch * labels_size(m) * 4) &&
                write_all(folder, "losses", mode, line, strlen(line));
    }
    return close_job(&j) || !going;
}

static const char usage[] =
    "usage: train [--model NAME] [--batch B] [--momentum M] [--dtype T] [options]\n"
    "  --model NAME  only mlp (784-128-10), mlp_wide (784-1024-1024-10), lenet5, keras_cnn, resnet20, "
    "char_lstm (2 x 128),\n"
    "                gpt (4 layers of 128) or gpt2 (124M)\n"
    "  --batch B     samples of a step; otherwise what is usual for each model\n"
    "  --momentum M  of stochastic gradient descent on images; 0.9. Sequences are trained by AdamW\n"
    "  --dtype T     f32, or bf16 or f16: mixed precision; f32\n"
    "  --curve DIR   instead leaves the first weights, the batches and the losses of training --model there\n"
    "  --steps N     of the curve; 100\n"
    "  --lr LR       of the curve; 0.01 for images and 0.001 for sequences\n" BENCH_COMMON_USAGE
    "Prints a row for each model: ours is the samples/s of a training step (forward, backward, update), "
    "limit what\n"
    "its multiply-adds would take at the measured peak of f32, or its weights at the bandwidth of where they "
    "lie. "
    "flops are\n"
    "a step's, of_peak the share of the peak that ours reaches, bytes the most memory that ours takes, "
    "beside a\n"
    "peer's where it can be had.\n";

/* DML_I32: none of those that are trained in. */
static dml_dtype dtype_named(const char *name)
{
    static const dml_dtype known[] = { DML_F32, DML_BF16, DML_F16 };
    for (int i = 0; i < 3; i++)
        if (strcmp(name, dml_dtype_name(known[i])) == 0) return known[i];
    return DML_I32;
}

int main(int argc, char **argv)
{
    static const char *const names[] = { "torch", "jax", "kann", NULL };
    bench_common common = { 0, 1, false, NULL };
    const char *only = NULL, *folder = NULL, *type = "f32";
    int batch = 0, steps = 100, failed = 0;
    double momentum = 0.9, lr = 0;
    bool found = false;
    const bench_option options[] = { { "--model", BENCH_TEXT, &only, 0, 0 },
                                     { "--batch", BENCH_INT, &batch, 1, 1 << 20 },
                                     { "--momentum", BENCH_NUMBER, &momentum, 0, 0.999 },
                                     { "--dtype", BENCH_TEXT, &type, 0, 0 },
                                     { "--curve", BENCH_TEXT, &folder, 0, 0 },
                                     { "--lr", BENCH_NUMBER, &lr, 0, 100 },
                                     { "--steps", BENCH_INT, &steps, 1, 1 << 20 },
                                     BENCH_COMMON_OPTIONS(common) };
    bench_parse(argc, argv, "train", usage, options);
    for (int i = 0; i < MODELS; i++) found |= !only || strcmp(only, models[i].name) == 0;
    if (!found) {
        fprintf(stderr, "train: there is no --model %s (--help has a list)\n", only);
        return 2;
    }
    const dml_dtype dtype = dtype_named(type);
    if (dtype == DML_I32) {
        fprintf(stderr, "train: --dtype is f32, bf16 or f16, not \"%s\"\n", type);
        return 2;
    }
    if (folder && !only) {
        fprintf(stderr, "train: --curve needs the --model whose curve it is\n");
        return 2;
    }
    for (int i = 0; i < MODELS && folder; i++)
        if (strcmp(only, models[i].name) == 0)
            return curve(&models[i], batch ? batch : models[i].batch, momentum, lr, dtype, steps, folder);
    if (common.quick && common.seconds > 0.1) common.seconds = 0.1;
    for (int round = 0, threads; (threads = bench_threads(&common, round)) > 0; round++) {
        bench_peers peers;
        bench_peers_start(&peers, "train", common.peers, names, threads);
        for (int i = 0; i < MODELS && !failed; i++) {
            const model *m = &models[i];
            if (only ? strcmp(only, m->name) != 0 : common.quick && !m->quick) continue;
            if (batch && i > 0 && strcmp(m->name, models[i - 1].name) == 0) continue;
            failed = measure(m, batch ? batch : m->batch, momentum, dtype, threads, &peers, common.seconds);
        }
        bench_peers_end(&peers);
    }
    return failed;
}
