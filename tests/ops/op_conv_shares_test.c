/* Weights' gradients of convolutions with many pixels, which devices add up in shares: the CPU's, on each. */
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_loss.h"
#include "train/trainer.h"

#include "../graph/backends.h"

enum {
    BATCH = 5,
    HEIGHT = 24,
    WIDTH = 30,
    CHANNELS = 4,
    FILTERS = 6,
    IN = HEIGHT * WIDTH * CHANNELS,
    WEIGHTS = 1000
};

static float images[BATCH * IN], targets[BATCH];

/* g after a pass over all samples, and one over two of them that is added. */
static size_t gradients(dml_context *context, int groups, float *g)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, HEIGHT, WIDTH, CHANNELS),
             *t = dml_input(graph, "t", DML_F32, 1);
    dml_node *h = dml_conv2d(x, &(dml_conv2d_options){ .filters = FILTERS, .groups = groups });
    h = dml_conv2d(h, &(dml_conv2d_options){ .filters = 1, .kernel = { HEIGHT - 2, WIDTH - 2 } });
    dml_trainer *trainer =
        dml_trainer_create(dml_mean_squared_error(dml_flatten(h), t),
                           &(dml_trainer_options){ .batch = BATCH, .optimizer = dml_sgd(0.1f, 0) });
    CHECK_MESSAGE(trainer, "%s", dml_error(context));
    CHECK_INT(dml_trainer_backward(trainer, BATCH, DML_INPUTS(images, targets), 0, NULL), DML_OK);
    CHECK_INT(dml_trainer_backward(trainer, 2, DML_INPUTS(images, targets), DML_ADD, NULL), DML_OK);
    const size_t count = FILTERS * 9 * CHANNELS / (size_t)groups; /* the first layer's weights */
    memcpy(g, dml_trainer_get(trainer, DML_GRADIENTS, 0, count), count * sizeof *g);
    return count;
}

static void shares_add_up(void)
{
    static const int groups[] = { 1, 2 };
    unsigned seed = 7;
    test_fill(&seed, images, BATCH * IN);
    for (int i = 0; i < 2; i++) {
        float got[WEIGHTS], want[WEIGHTS], largest = 0;
        dml_context *here = open_here(&(dml_options){ .seed = 3 }),
                    *cpu = dml_open(&(dml_options){ .seed = 3 });
        const size_t count = gradients(here, groups[i], got);
        CHECK_INT(gradients(cpu, groups[i], want), count);
        for (size_t w = 0; w < count; w++) largest = fmaxf(largest, fabsf(want[w]));
        for (size_t w = 0; w < count; w++) CHECK_NEAR(got[w], want[w], 1e-5 * (double)largest);
        CHECK(largest > 0);
        dml_close(here);
        dml_close(cpu);
    }
}
EACH_BACKEND(shares_add_up)

int main(void)
{
    RUN_EACH(shares_add_up);
    return test_report("ops/op_conv_shares");
}
