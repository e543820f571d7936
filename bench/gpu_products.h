/* gpu_products.h: products of matrices, beside cuBLAS or CLBlast. */
#ifndef DML_BENCH_GPU_PRODUCTS_H
#define DML_BENCH_GPU_PRODUCTS_H

#include "gpu_cublas.h"

typedef struct product {
    int m, n, k, trans_a, trans_b;
} product;

/* What the products share. */
typedef struct product_bench {
    gpu *g;
    gpu_cublas cublas;
    bench_peers peers;        /* CLBlast's process, or cuBLAS as if it were one, for the row */
    dml_buffer *matrix[3];    /* A, B, C */
    size_t floats[3];         /* they have room for */
    const dml_launch *launch; /* of now */
} product_bench;

/* As CLBlast's are timed: launched and waited for. */
static void product_once(void *argument)
{
    product_bench *b = (product_bench *)argument;
    gpu_work work = { b->g, b->launch, 1 };
    if (!gpu_run_work(&work, 1)) gpu_stop(b->g);
}

/* Room for the product; false: there is none, which is noted. */
static bool product_room(product_bench *b, const product *p)
{
    const size_t needed[] = { (size_t)p->m * (size_t)p->k, (size_t)p->k * (size_t)p->n,
                              (size_t)p->m * (size_t)p->n };
    for (int i = 0; i < 3; i++) {
        if (needed[i] <= b->floats[i]) continue;
        gpu_release(b->g, b->matrix[i]);
        b->floats[i] = 0;
        b->matrix[i] = gpu_buffer(b->g, needed[i] * sizeof(float));
        if (!b->matrix[i]) {
            printf("# gpu: left out %d x %d x %d: %s\n", p->m, p->n, p->k, dml_error(b->g->device.context));
            dml_clear_error(b->g->device.context);
            return false;
        }
        b->floats[i] = needed[i];
        gpu_fill(b->g, &b->matrix[i], 1, needed[i]);
    }
    return true;
}

/* Ours and cuBLAS' are the same product. */
static void product_compare(product_bench *b, const product *p, gpu_cublas_product *theirs)
{
    enum { SOME = 256 };
    const float most = gpu_precision_of(b->g->asked)->allow_tf32 ? 1e-3f : 1e-5f;
    float ours[SOME], cublas[SOME];
    const size_t count = (size_t)p->m * (size_t)p->n, bytes = (count < SOME ? count : SOME) * sizeof(float);
    const dml_ref c = gpu_at(b->matrix[2], count - bytes / sizeof(float));
    product_once(b);
    if (b->g->backend->read(&b->g->device, ours, c, bytes) != DML_OK) gpu_stop(b->g);
    if (!gpu_cublas_run(theirs, 1)) return;
    if (b->g->backend->read(&b->g->device, cublas, c, bytes) != DML_OK) gpu_stop(b->g);
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        const float apart = ours[i] > cublas[i] ? ours[i] - cublas[i] : cublas[i] - ours[i];
        if (apart <= most * (float)p->k) continue;
        printf("# gpu: of %d x %d x %d ours is %g where cublas' is %g\n", p->m, p->n, p->k, (double)ours[i],
               (double)cublas[i]);
        return;
    }
}

/* Of ours; the peer's lie in the list. */
static double product_time(product_bench *b, const product *p, const char *kernel, int *calls)
{
    const double seconds = b->g->asked->common.seconds;
    if (!b->cublas.handle && b->peers.count && b->peers.list[0].process) {
        char name[128];
        snprintf(name, sizeof name, "gemm %d %d %d %d %d", p->m, p->n, p->k, p->trans_a, p->trans_b);
        *calls = 1;
        const double one = bench_beside(&b->peers, name, product_once, b, seconds);
        bench__share = 1; /* while it waits for the device, this thread has no need of a processor */
        return one;
    }
    if (!b->cublas.handle) return *calls = 0, gpu_time(b->g, kernel, b->launch, 1);
    gpu_cublas_product theirs = { &b->cublas,
                                  p->m,
                                  p->n,
                                  p->k,
                                  p->trans_a,
                                  p->trans_b,
                                  (const float *)b->matrix[0]->handle,
                                  (const float *)b->matrix[1]->handle,
                                  (float *)b->matrix[2]->handle };
    gpu_work work = { b->g, b->launch, 1 };
    gpu_turn turns[] = { { gpu_run_work, &work, 0, 0, { 0 } }, { gpu_cublas_run, &theirs, 0, 0, { 0 } } };
    product_compare(b, p, &theirs);
    gpu_beside(turns, 2, seconds);
    b->peers.list[0].takes_case = turns[1].seconds > 0;
    b->peers.list[0].seconds = turns[1].seconds;
    *calls = turns[0].times;
    if (!turns[0].seconds) gpu_stop(b->g);
    return turns[0].seconds;
}

static void product_measure(product_bench *b, const product *p)
{
    const char *kernel = b->g->asked->kernel;
    const double work = 2.0 * p->m * p->n * p->k;
    int calls = 0;
    if (!product_room(b, p)) return;
    const dml_launch launch = { .kernel = kernel,
                                .size = { (size_t)p->n, (size_t)p->m },
                                .buffer = { gpu_at(b->matrix[0], 0), gpu_at(b->matrix[1], 0),
                                            gpu_at(b->matrix[2], 0) },
                                .integer = { p->m, p->n, p->k, p->trans_a, p->trans_b,
                                             p->trans_a ? p->m : p->k, p->trans_b ? p->k : p->n, p->n },
                                .real = { 1 } };
    b->launch = &launch;
    const double one = product_time(b, p, kernel, &calls);
    if (!(one > 0)) return;
    printf("name=gpu_products what=%s dtype=%s m=%d n=%d k=%d ta=%d tb=%d waits=%s", kernel,
           gpu_precision_of(b->g->asked)->name, p->m, p->n, p->k, p->trans_a, p->trans_b,
           calls == 1 ? "each" : "many");
    bench_row(&b->peers, b->g->threads, one, gpu_limit(b->g, work), 1e-9 * work, "GFLOP/s");
}

/* Forward, and the gradients of the input and of the weights. */
static void product_layer(product_bench *b, int rows, int units, int in)
{
    const product passes[] = { { rows, units, in, 0, 1 },
                               { rows, in, units, 0, 0 },
                               { units, in, rows, 1, 0 } };
    for (int i = 0; i < 3; i++) product_measure(b, &passes[i]);
}

static void product_measure_all(product_bench *b)
{
    const gpu_asked *asked = b->g->asked;
    const bool gpu = b->g->info.gpu;
    if (asked->m) {
        const product p = { asked->m, asked->n, asked->k, asked->trans_a, asked->trans_b };
        product_measure(b, &p);
        return;
    }
    /* A CPU would take minutes for what a GPU is measured by. */
    for (int n = gpu ? 256 : 64; n <= (gpu ? 8192 : 1024); n *= 2)
        for (int trans = 0; trans < 3; trans++) {
            const product p = { n, n, n, trans == 1, trans == 2 };
            if (trans == 0 || (gpu ? n == 1024 || n == 4096 : !asked->common.quick)) product_measure(b, &p);
        }
    product_layer(b, 64, 120, 400);
    if (!gpu) return;
    product_layer(b, 16384, 768, 768);
    product_layer(b, 16384, 3072, 768);
}

static void products(gpu *g)
{
    static const char *const names[] = { "clblast", NULL };
    product_bench b;
    char number[16];
    memset(&b, 0, sizeof b);
    b.g = g;
    const bool f32 = gpu_precision_of(g->asked)->dtype == DML_F32; /* as the peers multiply */
    if (strcmp(g->backend->name, "opencl") == 0 && f32) {          /* before there are threads: it forks */
        snprintf(number, sizeof number, "%d", g->index);
        setenv("CLBLAST_DEVICE", number, 1);
        bench_peers_start(&b.peers, "gpu", g->asked->common.peers, names, g->threads);
    }
    gpu_open(g);
    if (strcmp(g->backend->name, "cuda") == 0 && f32)
        gpu_cublas_open(&b.cublas, gpu_precision_of(g->asked)->allow_tf32);
    if (b.cublas.handle) b.peers.count = 1, b.peers.list[0].name = "cublas";
    product_measure_all(&b);
    gpu_cublas_close(&b.cublas);
    bench_peers_end(&b.peers);
    for (int i = 0; i < 3; i++) gpu_release(g, b.matrix[i]);
    gpu_close(g);
}

#endif
