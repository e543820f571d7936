/* elementwise: how fast are elementwise kernels, sums and softmax, and the layers that are made of such,
 * beside PyTorch and the bandwidth of where the arrays lie? */
#include "bench.h"

enum { STEPS = 64, HEAD = 64 };

typedef struct job {
    dml_pool *pool;
    size_t rows, columns, n; /* n = rows columns */
    size_t steps, heads;     /* rows are (rows / steps, steps), columns (heads, columns / heads) */
    float *x, *z, *y;        /* (n); z has numbers above 0 */
    float *of_rows, sum;     /* (rows, DML_CROSS_ENTROPY_KEPT + heads): what kernels keep */
    int32_t *labels, *index; /* (rows), below columns; below rows */
} job;

static void run_copy(void *argument)
{
    job *j = argument;
    dml_axpby(j->pool, j->n, 1, j->x, 0, j->y);
}

static void run_add(void *argument)
{
    job *j = argument;
    dml_add_forward(j->pool, j->n, j->x, j->z, j->y);
}

static void run_axpby(void *argument)
{
    job *j = argument;
    dml_axpby(j->pool, j->n, 0.5f, j->x, 0.5f, j->y);
}

static void run_relu(void *argument)
{
    job *j = argument;
    dml_relu_forward(j->pool, j->n, j->x, j->y);
}

static void run_relu_gradient(void *argument)
{
    job *j = argument;
    dml_relu_backward(j->pool, j->n, j->x, j->z, 0, j->y);
}

static void run_tanh(void *argument)
{
    job *j = argument;
    dml_tanh_forward(j->pool, j->n, j->x, j->y);
}

static void run_tanh_gradient(void *argument)
{
    job *j = argument;
    dml_tanh_backward(j->pool, j->n, j->x, j->z, 0, j->y);
}

static void run_sigmoid(void *argument)
{
    job *j = argument;
    dml_sigmoid_forward(j->pool, j->n, j->x, j->y);
}

static void run_sigmoid_gradient(void *argument)
{
    job *j = argument;
    dml_sigmoid_backward(j->pool, j->n, j->x, j->z, 0, j->y);
}

static void run_exp(void *argument)
{
    job *j = argument;
    dml_exp_forward(j->pool, j->n, j->x, j->y);
}

static void run_log(void *argument)
{
    job *j = argument;
    dml_log_forward(j->pool, j->n, j->z, j->y);
}

static void run_softmax(void *argument)
{
    job *j = argument;
    dml_softmax_forward(j->pool, false, j->rows, j->columns, 1, j->x, j->y);
}

static void run_softmax_axis(void *argument)
{
    job *j = argument;
    dml_softmax_forward(j->pool, false, j->rows / j->steps, j->steps, j->columns, j->x, j->y);
}

static void run_max_axis(void *argument)
{
    job *j = argument;
    dml_reduce_axis(j->pool, DML_REDUCE_MAX, j->rows / j->steps, j->steps, j->columns, j->x, 1, j->y);
}

static void run_sum_axis(void *argument)
{
    job *j = argument;
    dml_reduce_axis(j->pool, DML_REDUCE_SUM, j->rows / j->steps, j->steps, j->columns, j->x, 1, j->y);
}

static void run_sum_axis_gradient(void *argument)
{
    job *j = argument;
    dml_reduce_axis_backward(j->pool, DML_REDUCE_SUM, j->rows / j->steps, j->steps, j->columns, NULL, NULL,
                             NULL, j->x, 1, 0, j->y);
}

static void run_cross_entropy(void *argument)
{
    job *j = argument;
    float scale;
    dml_cross_entropy problem;
    memset(&problem, 0, sizeof problem);
    problem.rows = j->rows, problem.classes = j->columns, problem.each = 1;
    problem.logits = j->x, problem.labels = j->labels, problem.kept = j->of_rows;
    j->sum = dml_cross_entropy_forward(j->pool, &problem, true, &scale);
}

static void run_layer_norm(void *argument)
{
    job *j = argument;
    const dml_row_normalization by = { j->z, j->z, 1e-5f, false };
    dml_row_norm_forward(j->pool, j->rows, j->columns, j->x, &by, j->of_rows, j->y);
}

static void run_embedding(void *argument)
{
    job *j = argument;
    dml_embedding_forward(j->pool, j->rows, j->columns, j->index, j->x, j->y);
}

static void run_dropout(void *argument)
{
    job *j = argument;
    const dml_random random = { 1, 2, 3 };
    dml_dropout_apply(j->pool, j->n, &random, 0, 0.1f, j->x, 0, j->y);
}

static dml_attention_shape attention_of(const job *j)
{
    dml_attention_shape s;
    memset(&s, 0, sizeof s);
    s.samples = j->rows / j->steps, s.queries = s.keys = j->steps;
    s.heads = s.kv_heads = j->heads, s.width = j->columns / j->heads;
    s.q_step = s.k_step = s.v_step = j->columns;
    s.scale = 0.125f;
    return s;
}

static void run_attention(void *argument)
{
    job *j = argument;
    const dml_attention_shape shape = attention_of(j);
    dml_attention_forward(j->pool, &shape, j->x, j->z, j->x, NULL, j->of_rows, j->y);
}

static void run_sum(void *argument)
{
    job *j = argument;
    j->sum = dml_sum_all(j->pool, j->n, j->x);
}

static void run_sum_rows(void *argument)
{
    job *j = argument;
    dml_sum_rows(j->pool, j->rows, j->columns, j->x, 0, j->y);
}

typedef struct kernel {
    const char *name;
    void (*run)(void *argument);
    int reads, writes; /* arrays */
    int quick;         /* 1: among the rows of --quick; 2: in memory too */
    bool layer;        /* computes more than it moves: its rows are of another name */
} kernel;

static const kernel kernels[] = {
    { "copy", run_copy, 1, 1, 2, false },
    { "add", run_add, 2, 1, 1, false },
    { "axpby", run_axpby, 2, 1, 0, false },
    { "relu", run_relu, 1, 1, 0, false },
    { "relu_gradient", run_relu_gradient, 2, 1, 0, false },
    { "tanh", run_tanh, 1, 1, 1, false },
    { "tanh_gradient", run_tanh_gradient, 2, 1, 0, false },
    { "sigmoid", run_sigmoid, 1, 1, 0, false },
    { "sigmoid_gradient", run_sigmoid_gradient, 2, 1, 0, false },
    { "exp", run_exp, 1, 1, 0, false },
    { "log", run_log, 1, 1, 0, false },
    { "softmax", run_softmax, 1, 1, 1, false },
    { "sum", run_sum, 1, 0, 1, false },
    { "sum_rows", run_sum_rows, 1, 0, 0, false },
    { "sum_axis", run_sum_axis, 1, 0, 0, true },
    { "sum_axis_gradient", run_sum_axis_gradient, 0, 1, 0, true },
    { "max_axis", run_max_axis, 1, 0, 0, true },
    { "softmax_axis", run_softmax_axis, 1, 1, 0, true },
    { "cross_entropy", run_cross_entropy, 1, 0, 0, true },
    { "layer_norm", run_layer_norm, 1, 1, 0, true },
    { "embedding", run_embedding, 1, 1, 0, true },
    { "dropout", run_dropout, 1, 1, 0, true },
    { "attention", run_attention, 2, 1, 0, true }, /* keys are values too */
};

static void measure(const kernel *k, const char *level, size_t bytes, size_t columns, bench_peers *peers,
                    dml_pool *pool, double seconds)
{
    char name[128];
    const int arrays = k->reads + k->writes;
    job j;
    memset(&j, 0, sizeof j);
    j.pool = pool, j.columns = columns, j.rows = bytes / sizeof(float) / (size_t)arrays / columns;
    if (j.rows == 0) j.rows = 1;
    if (j.rows > STEPS) j.rows -= j.rows % STEPS;
    j.steps = j.rows < STEPS ? j.rows : STEPS;
    j.heads = columns % HEAD ? 1 : columns / HEAD;
    j.n = j.rows * columns;
    j.x = bench_floats("elementwise", j.n), j.y = bench_floats("elementwise", j.n);
    j.z = bench_floats("elementwise", j.n);
    for (size_t i = 0; i < j.n; i++) j.z[i] = 0.5f * j.z[i] + 1;
    j.of_rows = bench_floats("elementwise", j.rows * (DML_CROSS_ENTROPY_KEPT + j.heads));
    j.labels = (int32_t *)bench_floats("elementwise", j.rows);
    j.index = (int32_t *)bench_floats("elementwise", j.rows);
    for (size_t r = 0; r < j.rows; r++) {
        j.labels[r] = (int32_t)(r % columns);
        j.index[r] = (int32_t)(r * 7919 % j.rows);
    }
    const dml_attention_shape attention = attention_of(&j);
    if (dml_pool_reserve(pool, dml_attention_scratch(&attention, false)) != DML_OK) {
        fprintf(stderr, "elementwise: no memory for the pool's scratch\n");
        exit(1);
    }
    const double moved = (double)sizeof(float) * (double)j.n * arrays;
    bench_stream stream = bench_stream_begin(pool, (size_t)moved, k->writes ? BENCH_COPY : BENCH_READ);
    peers->limit = stream.block ? &stream : NULL;
    bench_fma_peak(pool); /* says whether the row is disturbed */
    snprintf(name, sizeof name, "elementwise %s %zu %zu", k->name, j.rows, j.columns);
    const double one = bench_beside(peers, name, k->run, &j, seconds);
    printf("name=%s what=%s level=%s n=%zu isa=%s", k->layer ? "layer" : "elementwise", k->name, level, j.n,
           dml_isa_name(dml_cpu_isa()));
    bench_row(peers, dml_pool_threads(pool), one, stream.block ? moved / peers->limit_rate : 0, 1e-9 * moved,
              "GB/s");
    bench_stream_end(&stream);
    peers->limit = NULL;
    free(j.x);
    free(j.y);
    free(j.z);
    free(j.of_rows);
    free(j.labels);
    free(j.index);
}

static const char usage[] =
    "usage: elementwise [--what NAME] [--n N] [--columns C] [options]\n"
    "  --what NAME  only copy, add, axpby, relu, tanh, sigmoid, exp, log, softmax, "
    "sum, sum_rows, the gradient\n"
    "               relu_gradient, tanh_gradient, sigmoid_gradient, or the layer "
    "sum_axis, sum_axis_gradient,\n"
    "               max_axis, softmax_axis, cross_entropy, layer_norm, embedding, "
    "dropout, attention\n"
    "  --n N        arrays of N elements; otherwise such that all arrays together "
    "fill half of each cache, and far\n"
    "               beyond the last\n"
    "  --columns C  for what has rows; 128. An axis that isn't the last is of 64\n" BENCH_COMMON_USAGE
    "Prints a row for each kernel and size: ours is the GB/s that are read and "
    "written, limit the measured bandwidth\n"
    "of a copy (of reading, for sums) within as many bytes.\n";

int main(int argc, char **argv)
{
    static const char *const names[] = { "torch", NULL };
    bench_common common = { 0, 0.1, false, NULL };
    const char *what = NULL;
    int n = 0, columns = 128;
    bool found = false;
    const bench_option options[] = { { "--what", BENCH_TEXT, &what, 0, 0 },
                                     { "--n", BENCH_INT, &n, 1, 1 << 30 },
                                     { "--columns", BENCH_INT, &columns, 1, 1 << 20 },
                                     BENCH_COMMON_OPTIONS(common) };
    bench_parse(argc, argv, "elementwise", usage, options);
    const int count = (int)(sizeof kernels / sizeof *kernels);
    for (int i = 0; i < count; i++) found |= !what || strcmp(what, kernels[i].name) == 0;
    if (!found) {
        fprintf(stderr, "elementwise: --what is none of the kernels in --help: \"%s\"\n", what);
        return 2;
    }
    if (common.quick && common.seconds > 0.02) common.seconds = 0.02;
    for (int round = 0, threads; (threads = bench_threads(&common, round)) > 0; round++) {
        dml_pool *pool = bench_pool("elementwise", threads);
        bench_peers peers;
        bench_peers_start(&peers, "elementwise", common.peers, names, threads);
        for (int i = 0; i < count; i++) {
            const kernel *k = &kernels[i];
            if (what ? strcmp(what, k->name) != 0 : common.quick && !k->quick) continue;
            for (int level = 0; level < (n ? 1 : BENCH_LEVELS); level++) {
                const size_t arrays = (size_t)(k->reads + k->writes);
                const bool beyond = level == BENCH_LEVELS - 1;
                if (common.quick && !n && level != 1 && !(beyond && k->quick == 2)) continue;
                measure(k, n ? "asked" : bench_levels[level],
                        n ? (size_t)n * arrays * sizeof(float) : bench_level_bytes(level), (size_t)columns,
                        &peers, pool, common.seconds);
            }
        }
        bench_peers_end(&peers);
        dml_pool_destroy(pool);
    }
    return 0;
}
