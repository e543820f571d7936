/* elementwise: how fast are elementwise kernels, sums and softmax, beside PyTorch and the bandwidth of where
 * the arrays lie? */
#include "bench.h"

typedef struct job {
    dml_pool *pool;
    size_t rows, columns, n; /* n = rows columns */
    float *x, *z, *y;        /* (n); z has numbers above 0 */
    float *row_loss, sum;    /* (rows) */
    int32_t *labels;         /* (rows) */
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
    j->sum =
        dml_softmax_cross_entropy_forward(j->pool, j->rows, j->columns, j->x, j->labels, j->y, j->row_loss);
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
} kernel;

static const kernel kernels[] = {
    { "copy", run_copy, 1, 1, 2 },
    { "add", run_add, 2, 1, 1 },
    { "axpby", run_axpby, 2, 1, 0 },
    { "relu", run_relu, 1, 1, 0 },
    { "relu_gradient", run_relu_gradient, 2, 1, 0 },
    { "tanh", run_tanh, 1, 1, 1 },
    { "tanh_gradient", run_tanh_gradient, 2, 1, 0 },
    { "sigmoid", run_sigmoid, 1, 1, 0 },
    { "sigmoid_gradient", run_sigmoid_gradient, 2, 1, 0 },
    { "exp", run_exp, 1, 1, 0 },
    { "log", run_log, 1, 1, 0 },
    { "softmax", run_softmax, 1, 1, 1 }, /* with cross-entropy: PyTorch's row is softmax alone */
    { "sum", run_sum, 1, 0, 1 },
    { "sum_rows", run_sum_rows, 1, 0, 0 },
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
    j.n = j.rows * columns;
    j.x = bench_floats("elementwise", j.n), j.y = bench_floats("elementwise", j.n);
    j.z = bench_floats("elementwise", j.n);
    for (size_t i = 0; i < j.n; i++) j.z[i] = 0.5f * j.z[i] + 1;
    j.row_loss = bench_floats("elementwise", j.rows);
    j.labels = calloc(j.rows, sizeof *j.labels);
    if (!j.labels) {
        fprintf(stderr, "elementwise: no memory for %zu labels\n", j.rows);
        exit(1);
    }
    const double moved = (double)sizeof(float) * (double)j.n * arrays;
    bench_stream stream = bench_stream_begin(pool, (size_t)moved, k->writes ? BENCH_COPY : BENCH_READ);
    peers->limit = stream.block ? &stream : NULL;
    bench_fma_peak(pool); /* says whether the row is disturbed */
    snprintf(name, sizeof name, "elementwise %s %zu %zu", k->name, j.rows, j.columns);
    const double one = bench_beside(peers, name, k->run, &j, seconds);
    printf("name=elementwise what=%s level=%s n=%zu isa=%s", k->name, level, j.n,
           dml_isa_name(dml_cpu_isa()));
    bench_row(peers, dml_pool_threads(pool), one, stream.block ? moved / peers->limit_rate : 0, 1e-9 * moved,
              "GB/s");
    bench_stream_end(&stream);
    peers->limit = NULL;
    free(j.x);
    free(j.y);
    free(j.z);
    free(j.row_loss);
    free(j.labels);
}

static const char usage[] = "usage: elementwise [--what NAME] [--n N] [--columns C] [options]\n"
                            "  --what NAME  only copy, add, axpby, relu, tanh, sigmoid, exp, log, softmax, "
                            "sum, sum_rows, or the gradient\n"
                            "               relu_gradient, tanh_gradient, sigmoid_gradient\n"
                            "  --n N        arrays of N elements; otherwise such that all arrays together "
                            "fill half of each cache, and far\n"
                            "               beyond the last\n"
                            "  --columns C  for softmax and sum_rows; 128\n" BENCH_COMMON_USAGE
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
