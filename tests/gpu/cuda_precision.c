/* Trains layers large enough for tensor cores on the first fake card, which has some
   (tests/gpu/cuda_host_test.sh): in f32, where products may round to TF32, and in bf16. */
#define DML_IMPLEMENTATION
#include "dml.h"

#include <math.h>
#include <stdio.h>

enum { BATCH = 260, IN = 16, FILTERS = 8, OUT = 130, STEPS = 2 };

/* The losses of the steps; false: it said why. */
static bool train(bool allow_tf32, dml_dtype dtype, float losses[STEPS])
{
    static float x[BATCH][IN];
    static int32_t label[BATCH];
    dml_context *context =
        dml_open(&(dml_options){ .device = "cuda:0", .threads = 1, .seed = 7, .allow_tf32 = allow_tf32 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *input = dml_input(graph, "x", DML_F32, 4, 4, 1), *t = dml_input(graph, "label", DML_I32);
    dml_trainer_options how = { .batch = BATCH, .optimizer = dml_sgd(0.5f, 0), .dtype = dtype };
    dml_node *h = dml_relu(dml_conv2d(input, &(dml_conv2d_options){ .filters = FILTERS, .same = true }));
    dml_node *loss = dml_softmax_cross_entropy(dml_dense(dml_flatten(h), OUT), t);
    dml_trainer *trainer = dml_trainer_create(loss, &how);
    for (int i = 0; i < BATCH * IN; i++) x[i / IN][i % IN] = (float)((i * 7919) % 101) / 50 - 1;
    for (int i = 0; i < BATCH; i++) label[i] = i * 31 % OUT;
    for (int step = 0; step < STEPS; step++)
        dml_trainer_step(trainer, BATCH, DML_INPUTS(x, label), &losses[step]);
    const bool ok = dml_status_of(context) == DML_OK;
    if (!ok) fprintf(stderr, "%s\n", dml_error(context));
    dml_close(context);
    return ok;
}

/* Off by something, and by no more than that. */
static bool near(const char *name, const float *loss, const float *whole, double most)
{
    double apart = 0;
    for (int step = 0; step < STEPS; step++)
        apart = fmax(apart, fabs((double)loss[step] - (double)whole[step]));
    printf("%s: %.6f, then %.6f, %g apart\n", name, (double)loss[0], (double)loss[1], apart);
    return apart > 0 && apart < most;
}

int main(void)
{
    float whole[STEPS], tf32[STEPS], bf16[STEPS];
    if (!train(false, DML_F32, whole) || !train(true, DML_F32, tf32) || !train(false, DML_BF16, bf16))
        return 1;
    const bool tf32_near = near("tf32", tf32, whole, 1e-3), bf16_near = near("bf16", bf16, whole, 2e-2);
    return tf32_near && bf16_near && whole[1] < whole[0] ? 0 : 1;
}
