/* predict.c: predicts from a saved model. It has no trainer, label, loss or optimizer, and takes little more
   memory than the weights and one batch's activations: `allocate` counts.

       predict model.safetensors */
#include "dml.h"
#include "expect.h"

#include <stddef.h>

enum { BATCH = 32, IN = 64, CLASSES = 10, SHOWN = 5 };

typedef struct counter {
    size_t now, most;
} counter;

typedef union block {
    size_t bytes;
    double align[4];
} block;

static void *allocate(void *user, size_t bytes)
{
    counter *c = user;
    block *b = malloc(sizeof *b + bytes);
    if (!b) return NULL;
    b->bytes = bytes;
    c->now += bytes;
    if (c->now > c->most) c->most = c->now;
    return b + 1;
}

static void release(void *user, void *memory)
{
    counter *c = user;
    if (!memory) return;
    c->now -= ((block *)memory - 1)->bytes;
    free((block *)memory - 1);
}

int main(int argc, char **argv)
{
    static float point[SHOWN * IN], score[SHOWN * CLASSES];
    counter memory = { 0, 0 };
    EXPECT(argc == 2);
    for (int i = 0; i < SHOWN * IN; i++) point[i] = (float)(i * 31 % 101) / 101 - 0.5f;
    dml_context *ctx = dml_open(&(dml_options){ .threads = 1, .allocator = { allocate, release, &memory } });
    dml_graph *g = dml_graph_create(ctx);
    dml_node *x = dml_input(g, "point", DML_F32, IN);
    dml_node *y = dml_dense(dml_relu(dml_dense(dml_relu(dml_dense(x, 256)), 256)), CLASSES);
    dml_graph_load(g, argv[1]);
    dml_program *predict = dml_compile(y, &(dml_program_options){ .batch = SHOWN });
    dml_program_run(predict, SHOWN, DML_INPUTS(point), score);
    if (dml_status_of(ctx) != DML_OK) return fprintf(stderr, "%s\n", dml_error(ctx)), 1;
    for (int i = 0; i < SHOWN * CLASSES; i++)
        printf("%.9g%c", (double)score[i], (i + 1) % CLASSES ? ' ' : '\n');
    const size_t weights = dml_graph_parameter_count(g) * sizeof(float), arena = dml_program_bytes(predict);
    const dml_scratch scratch = dml_pool_scratch_bytes(dml_context_pool(ctx));
    fprintf(stderr, "at most %zu bytes: %zu of weights, %zu of activations, %zu of scratch\n", memory.most,
            weights, arena, scratch.worker + scratch.shared);
    EXPECT(memory.most < weights + arena + scratch.worker + scratch.shared + 16 * 1024);
    dml_close(ctx);
    EXPECT(memory.now == 0);
    return 0;
}
