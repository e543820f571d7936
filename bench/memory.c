/* memory: what a context takes of the host's memory to train a model, and to predict with it. */
#include "dml.h"

#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The mnist sample's MLP, whose weights take 0.94 MB. */
static int measure(bool train, int batch, int threads)
{
    bench_counter c = { 0, 0 };
    const dml_options options = { .threads = threads,
                                  .allocator = { bench_count_allocate, bench_count_release, &c } };
    dml_context *ctx = dml_open(&options);
    dml_graph *g = dml_graph_create(ctx);
    dml_node *x = dml_input(g, "image", DML_F32, 784);
    dml_node *y = dml_dense(dml_relu(dml_dense(dml_relu(dml_dense(x, 256)), 128)), 10);
    if (train)
        dml_trainer_create(dml_softmax_cross_entropy(y, dml_input(g, "label", DML_I32)),
                           &(dml_trainer_options){ .batch = batch, .optimizer = dml_sgd(0.1f, 0.9f) });
    else
        dml_compile(y, &(dml_program_options){ .batch = batch });
    const dml_status status = dml_status_of(ctx);
    const double weights = (double)dml_graph_parameter_count(g) * sizeof(float);
    if (status == DML_OK)
        printf("name=memory model=mlp use=%s batch=%d threads=%d ours=%.0f limit=%.0f ratio_limit=%.3f "
               "unit=bytes\n",
               train ? "train" : "predict", batch, threads, (double)c.peak, weights,
               (double)c.peak / weights);
    else
        fprintf(stderr, "memory: %s\n", dml_error(ctx));
    dml_close(ctx);
    return status != DML_OK;
}

static const char usage[] = "usage: memory [--quick]\n"
                            "Prints a row for training and for predicting with batches of 1, 16 and 256: "
                            "ours is the most memory that the\n"
                            "context had at once, limit what the model's weights take.\n";

int main(int argc, char **argv)
{
    if (argc > 1 && (argc > 2 || strcmp(argv[1], "--quick") != 0)) {
        const bool help = strcmp(argv[1], "--help") == 0;
        fputs(usage, help ? stdout : stderr);
        return help ? 0 : 2;
    }
    for (int batch = 1; batch <= 256; batch *= 16)
        if (measure(false, batch, 1) || measure(true, batch, 1)) return 1;
    return 0;
}
