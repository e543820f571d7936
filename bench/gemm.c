/* gemm: how fast are dml_sgemm and dml_bf16gemm, beside other BLAS libraries and the machine's limits? */
#include "bench.h"

typedef struct product {
    const char *what;
    int m, n, k;
    int trans_a, trans_b; /* 1: transposed */
    bool quick;           /* among the rows of --quick */
} product;

typedef struct job {
    product p;
    dml_pool *pool;
    float *a, *b, *c; /* op(a) (m, k), op(b) (k, n), c (m, n) */
    dml_bf16 *narrow_a, *narrow_b;
} job;

static void run(void *argument)
{
    const job *j = (const job *)argument;
    const product *p = &j->p;
    dml_sgemm(j->pool, DML_ROW_MAJOR, p->trans_a ? DML_TRANS : DML_NO_TRANS,
              p->trans_b ? DML_TRANS : DML_NO_TRANS, p->m, p->n, p->k, 1, j->a, p->trans_a ? p->m : p->k,
              j->b, p->trans_b ? p->k : p->n, 0, j->c, p->n);
}

static void run_bf16(void *argument)
{
    const job *j = (const job *)argument;
    const product *p = &j->p;
    dml_bf16gemm(j->pool, p->trans_a ? DML_TRANS : DML_NO_TRANS, p->trans_b ? DML_TRANS : DML_NO_TRANS, p->m,
                 p->n, p->k, 1, j->narrow_a, p->trans_a ? p->m : p->k, j->narrow_b, p->trans_b ? p->k : p->n,
                 0, j->c, p->n, NULL);
}

/* A dense layer of k inputs and n units asks for three products: forward (NT), weight gradient (TN) and input
   gradient (NN). */
static const product products[] = {
    { "square", 64, 64, 64, 0, 0, true },
    { "square", 128, 128, 128, 0, 0, false },
    { "square", 256, 256, 256, 0, 0, true },
    { "square", 512, 512, 512, 0, 0, false },
    { "square", 1024, 1024, 1024, 0, 0, true },
    { "square", 2048, 2048, 2048, 0, 0, false },
    { "dense", 64, 128, 784, 0, 0, false },
    { "dense", 64, 10, 128, 0, 0, false },
    { "dense", 784, 128, 64, 0, 0, false },
    { "row", 1, 1024, 1024, 0, 0, true },
    { "rows", 8, 1024, 1024, 0, 0, false },
    { "conv_like", 196, 64, 576, 0, 0, false },
    { "conv_like", 3136, 64, 576, 0, 0, true },
    { "long_k", 32, 32, 4096, 0, 0, true },
    { "forward", 64, 128, 784, 0, 1, true },
    { "weight_gradient", 128, 784, 64, 1, 0, true },
    { "input_gradient", 64, 784, 128, 0, 0, true },
    { "forward", 64, 10, 128, 0, 1, false },
    { "weight_gradient", 10, 128, 64, 1, 0, false },
    { "input_gradient", 64, 128, 10, 0, 0, false },
    { "forward", 128, 1024, 1024, 0, 1, false },
    { "weight_gradient", 1024, 1024, 128, 1, 0, false },
    { "input_gradient", 128, 1024, 1024, 0, 0, false },
    { "forward", 1, 1024, 1024, 0, 1, false },
    { "weight_gradient", 1024, 1024, 1, 1, 0, false },
    { "long_k", 32, 32, 4096, 1, 0, false },
    { "square", 512, 512, 512, 0, 1, false },
    { "square", 512, 512, 512, 1, 0, false },
};

static const product bf16_products[] = {
    { "square", 256, 256, 256, 0, 0, true },
    { "square", 1024, 1024, 1024, 0, 0, true },
    { "forward", 64, 128, 784, 0, 1, false },
    { "forward", 128, 1024, 1024, 0, 1, false },
    { "weight_gradient", 1024, 1024, 128, 1, 0, false },
};

static dml_bf16 *narrowed(const float *x, size_t count)
{
    dml_bf16 *narrow = malloc((count ? count : 1) * sizeof *narrow);
    if (!narrow) {
        fprintf(stderr, "gemm: no memory for %zu numbers of bf16\n", count);
        exit(1);
    }
    dml_bf16_from_f32(NULL, count, x, narrow);
    return narrow;
}

static void reserve(dml_pool *pool, dml_scratch scratch)
{
    if (dml_pool_reserve(pool, scratch) == DML_OK) return;
    fprintf(stderr, "gemm: no memory for the pool's scratch\n");
    exit(1);
}

static void measure_bf16(const product *p, bench_peers *peers, dml_pool *pool, double seconds)
{
    const size_t m = (size_t)p->m, n = (size_t)p->n, k = (size_t)p->k;
    const double operations = 2.0 * p->m * p->n * p->k;
    const char *isa = dml_bf16gemm_isa(pool);
    char name[128];
    job j = {
        *p,   pool, bench_floats("gemm", m * k), bench_floats("gemm", k * n), bench_floats("gemm", m * n),
        NULL, NULL
    };
    j.narrow_a = narrowed(j.a, m * k), j.narrow_b = narrowed(j.b, k * n);
    reserve(pool, dml_sgemm_scratch(p->trans_a ? DML_TRANS : DML_NO_TRANS,
                                    p->trans_b ? DML_TRANS : DML_NO_TRANS, p->m, p->n, p->k));
    reserve(pool, dml_bf16gemm_scratch(p->m, p->n, p->k));
    snprintf(name, sizeof name, "bf16gemm %d %d %d %d %d", p->m, p->n, p->k, p->trans_a, p->trans_b);
    /* What instructions on bf16 could do at best isn't known. */
    const double least = strcmp(isa, "widened") == 0 ? 1e-9 * operations / bench_fma_peak(pool) : 0;
    const double before = bench_time(run, &j, seconds / 2);
    const double one = bench_beside(peers, name, run_bf16, &j, seconds);
    const double after = bench_time(run, &j, seconds / 2), f32 = before < after ? before : after;
    printf("name=bf16gemm what=%s m=%d n=%d k=%d ta=%d tb=%d isa=%s of_f32=%.3f", p->what, p->m, p->n, p->k,
           p->trans_a, p->trans_b, isa, f32 / one);
    bench_row(peers, dml_pool_threads(pool), one, least, 1e-9 * operations, "GFLOP/s");
    free(j.a), free(j.b), free(j.c);
    free(j.narrow_a), free(j.narrow_b);
}

static void measure(const product *p, bench_peers *peers, dml_pool *pool, double seconds)
{
    const size_t m = (size_t)p->m, n = (size_t)p->n, k = (size_t)p->k;
    const double operations = 2.0 * p->m * p->n * p->k;
    char name[128];
    job j = {
        *p,   pool, bench_floats("gemm", m * k), bench_floats("gemm", k * n), bench_floats("gemm", m * n),
        NULL, NULL
    };
    reserve(pool, dml_sgemm_scratch(p->trans_a ? DML_TRANS : DML_NO_TRANS,
                                    p->trans_b ? DML_TRANS : DML_NO_TRANS, p->m, p->n, p->k));
    snprintf(name, sizeof name, "gemm %d %d %d %d %d", p->m, p->n, p->k, p->trans_a, p->trans_b);
    const size_t read = (m * k + k * n) * sizeof(float), written = m * n * sizeof(float);
    const double before = bench_least_seconds(pool, operations, read, written, read + written);
    const double one = bench_beside(peers, name, run, &j, seconds);
    const double after = bench_least_seconds(pool, operations, read, written, read + written);
    printf("name=gemm what=%s m=%d n=%d k=%d ta=%d tb=%d isa=%s", p->what, p->m, p->n, p->k, p->trans_a,
           p->trans_b, dml_isa_name(dml_cpu_isa()));
    bench_row(peers, dml_pool_threads(pool), one, before < after ? before : after, 1e-9 * operations,
              "GFLOP/s");
    free(j.a);
    free(j.b);
    free(j.c);
}

static const char usage[] =
    "usage: gemm [--m M] [--n N] [--k K] [--ta 0|1] [--tb 0|1] [--bf16] [--all] "
    "[options]\n"
    "  --m --n --k  the product of an M x K and a K x N matrix; a size that isn't "
    "given is the one before it\n"
    "  --ta --tb    1: the first or the second matrix is stored transposed; 0\n"
    "  --bf16       only products of bf16; otherwise, without sizes, they come after those of f32\n"
    "  --all        the usual products, as without sizes\n" BENCH_COMMON_USAGE
    "Prints a row for each product: ours is dml_sgemm's GFLOP/s, limit what the peak "
    "of multiply-adds and the\n"
    "bandwidth of where the matrices lie allow. DML_ISA=avx2 (scalar, ...) measures "
    "another instruction set.\n"
    "For bf16: isa is how (amx, avx512_bf16, or widened to f32), of_f32 the speed by "
    "that of dml_sgemm.\n";

int main(int argc, char **argv)
{
    /* The first is there for bf16 alone. */
    static const char *const names[] = {
        "torch", "openblas", "openblas_debian", "blis", "mkl", "onednn", NULL
    };
    bench_common common = { 0, 0.15, false, NULL };
    product asked = { "asked", 0, 0, 0, 0, 0, true };
    bool all = false, bf16 = false;
    const bench_option options[] = {
        { "--m", BENCH_INT, &asked.m, 1, 1 << 20 },  { "--n", BENCH_INT, &asked.n, 1, 1 << 20 },
        { "--k", BENCH_INT, &asked.k, 1, 1 << 20 },  { "--ta", BENCH_INT, &asked.trans_a, 0, 1 },
        { "--tb", BENCH_INT, &asked.trans_b, 0, 1 }, { "--bf16", BENCH_FLAG, &bf16, 0, 0 },
        { "--all", BENCH_FLAG, &all, 0, 0 },         BENCH_COMMON_OPTIONS(common)
    };
    bench_parse(argc, argv, "gemm", usage, options);
    if ((asked.n || asked.k || asked.trans_a || asked.trans_b) && !asked.m) {
        fprintf(stderr, "gemm: a product of one's own needs --m: see --help\n");
        return 2;
    }
    if (!asked.n) asked.n = asked.m;
    if (!asked.k) asked.k = asked.n;
    const bool any_bf16 = bf16 || !asked.m || all;
    if (common.quick && common.seconds > 0.03) common.seconds = 0.03;
    const int count = (int)(sizeof products / sizeof *products),
              bf16_count = (int)(sizeof bf16_products / sizeof *bf16_products);
    for (int round = 0, threads; (threads = bench_threads(&common, round)) > 0; round++) {
        dml_pool *pool = bench_pool("gemm", threads);
        bench_peers peers;
        bench_peers_start(&peers, "gemm", common.peers, names + !any_bf16, threads);
        if (asked.m) (bf16 ? measure_bf16 : measure)(&asked, &peers, pool, common.seconds);
        for (int i = 0; i < count && !bf16 && (!asked.m || all); i++)
            if (products[i].quick || !common.quick) measure(&products[i], &peers, pool, common.seconds);
        for (int i = 0; i < bf16_count && (!asked.m || all); i++)
            if (bf16_products[i].quick || !common.quick)
                measure_bf16(&bf16_products[i], &peers, pool, common.seconds);
        bench_peers_end(&peers);
        dml_pool_destroy(pool);
    }
    return 0;
}
