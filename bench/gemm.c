/* gemm: how fast is dml_sgemm, against the machine's peak of multiply-adds? */
#define DML_IMPLEMENTATION
#include "bench.h"

typedef struct product {
    const char *what;
    int m, n, k;
    dml_transpose trans_a, trans_b;
    dml_pool *pool;
    float *a, *b, *c;
} product;

static void run(void *argument)
{
    const product *p = (const product *)argument;
    const int lda = p->trans_a == DML_NO_TRANS ? p->k : p->m;
    const int ldb = p->trans_b == DML_NO_TRANS ? p->n : p->k;
    dml_sgemm(p->pool, DML_ROW_MAJOR, p->trans_a, p->trans_b, p->m, p->n, p->k, 1, p->a, lda, p->b, ldb, 0,
              p->c, p->n);
}

static float *random_floats(size_t count)
{
    float *x = (float *)malloc(count * sizeof *x);
    if (!x) {
        fprintf(stderr, "gemm: no memory for %zu floats\n", count);
        exit(1);
    }
    for (size_t i = 0; i < count; i++) x[i] = (float)(i * 7919 % 1000) * 0.002f - 1;
    return x;
}

static void measure(product p, dml_pool *pool, double seconds)
{
    p.pool = pool;
    p.a = random_floats((size_t)p.m * (size_t)p.k);
    p.b = random_floats((size_t)p.k * (size_t)p.n);
    p.c = random_floats((size_t)p.m * (size_t)p.n);
    if (dml_pool_reserve(pool, dml_sgemm_scratch(DML_NO_TRANS, DML_NO_TRANS, p.m, p.n, p.k)) != DML_OK) {
        fprintf(stderr, "gemm: no memory for the pool's scratch\n");
        exit(1);
    }
    const double limit_before = bench_fma_peak(pool);
    const double one = bench_time(run, &p, seconds);
    const double limit_after = bench_fma_peak(pool);
    printf("name=gemm what=%s m=%d n=%d k=%d isa=%s", p.what, p.m, p.n, p.k, dml_isa_name(dml_cpu_isa()));
    bench_row_end(dml_pool_threads(pool), 2e-9 * p.m * p.n * p.k / one, 0.5 * (limit_before + limit_after),
                  "GFLOP/s");
    free(p.a);
    free(p.b);
    free(p.c);
}

static const char usage[] =
    "usage: gemm [--threads T] [--seconds S]\n"
    "  --threads T  rows for T threads only; otherwise for 1 and for every processor\n"
    "  --seconds S  how long to measure each row; 0.15\n"
    "Prints a row for each size: ours is dml_sgemm's GFLOP/s, limit the measured peak of multiply-adds.\n"
    "DML_ISA=avx2 (scalar, ...) measures another instruction set.\n";

int main(int argc, char **argv)
{
    const dml_transpose no = DML_NO_TRANS, yes = DML_TRANS;
    const product products[] = {
        { "square", 64, 64, 64, no, no, NULL, NULL, NULL, NULL },
        { "square", 128, 128, 128, no, no, NULL, NULL, NULL, NULL },
        { "square", 256, 256, 256, no, no, NULL, NULL, NULL, NULL },
        { "square", 512, 512, 512, no, no, NULL, NULL, NULL, NULL },
        { "square", 1024, 1024, 1024, no, no, NULL, NULL, NULL, NULL },
        { "square_nt", 512, 512, 512, no, yes, NULL, NULL, NULL, NULL },
        { "square_tn", 512, 512, 512, yes, no, NULL, NULL, NULL, NULL },
        { "dense", 64, 120, 400, no, yes, NULL, NULL, NULL, NULL },
        { "dense", 64, 10, 84, no, yes, NULL, NULL, NULL, NULL },
        { "dense", 64, 256, 784, no, yes, NULL, NULL, NULL, NULL },
        { "dense_input_gradient", 64, 784, 256, no, no, NULL, NULL, NULL, NULL },
        { "dense_weight_gradient", 256, 784, 64, yes, no, NULL, NULL, NULL, NULL },
        { "conv_like", 6400, 16, 150, no, yes, NULL, NULL, NULL, NULL },
        { "narrow", 4096, 16, 256, no, no, NULL, NULL, NULL, NULL },
        { "long_k", 32, 32, 65536, yes, no, NULL, NULL, NULL, NULL },
        { "row_times_matrix", 1, 2048, 2048, no, no, NULL, NULL, NULL, NULL },
        { "matrix_times_column", 2048, 1, 2048, no, no, NULL, NULL, NULL, NULL },
    };
    int threads = 0;
    double seconds = 0.15;
    for (int i = 1; i < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            threads = (int)strtol(argv[++i], &end, 10);
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = strtod(argv[++i], &end);
        if (!end || *end || threads < 0 || !(seconds > 0)) {
            fprintf(stderr, "gemm: \"%s\" is not understood\n%s", argv[i], usage);
            return 2;
        }
    }
    const int all = dml_cpu_count();
    for (int round = 0; round < (threads || all == 1 ? 1 : 2); round++) {
        dml_pool_options options = { 0 };
        options.threads = threads ? threads : round ? all : 1;
        dml_pool *pool = dml_pool_create(&options);
        if (!pool) {
            fprintf(stderr, "gemm: no pool of %d threads can be had\n", options.threads);
            return 1;
        }
        for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) measure(products[i], pool, seconds);
        dml_pool_destroy(pool);
    }
    return 0;
}
