/* Trains layers large enough for tensor cores on the fake cards (tests/gpu/cuda_host_test.sh), of which the
   first has some: in f32, where products may round to TF32, and in bf16. */
#define DML_IMPLEMENTATION
#include "dml.h"

#include <math.h>
#include <stdio.h>

int fake_cuda_sent(void);
enum { BATCH = 260, FEW = 4, IN = 16, FILTERS = 8, OUT = 130, STEPS = 2, MORE_STEPS = 4 };

typedef struct result {
    float loss[MORE_STEPS];
    int sent; /* launches of the last step that were in no graph */
} result;

/* A convolution and a dense layer, or attention and one that is small. */
static dml_node *build(dml_graph *graph, bool attends)
{
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 4, 1), *t = dml_input(graph, "label", DML_I32);
    dml_node *h = attends
                      ? dml_multi_head_attention(dml_reshape(x, (dml_shape){ 2, { 4, 4 } }), 2, NULL)
                      : dml_relu(dml_conv2d(x, &(dml_conv2d_options){ .filters = FILTERS, .same = true }));
    return dml_softmax_cross_entropy(dml_dense(dml_flatten(h), OUT), t);
}

/* False: it said why. */
static bool train(const char *device, bool attends, bool allow_tf32, dml_dtype dtype, int rows, int steps,
                  result *r)
{
    static float x[BATCH][IN];
    static int32_t label[BATCH];
    dml_context *context =
        dml_open(&(dml_options){ .device = device, .threads = 1, .seed = 7, .allow_tf32 = allow_tf32 });
    dml_trainer_options how = { .batch = rows, .optimizer = dml_sgd(0.5f, 0), .dtype = dtype };
    dml_trainer *trainer = dml_trainer_create(build(dml_graph_create(context), attends), &how);
    for (int i = 0; i < BATCH * IN; i++) x[i / IN][i % IN] = (float)((i * 7919) % 101) / 50 - 1;
    for (int i = 0; i < BATCH; i++) label[i] = i * 31 % OUT;
    for (int step = 0; step < steps; step++) {
        const int before = fake_cuda_sent();
        dml_trainer_step(trainer, rows, DML_INPUTS(x, label), &r->loss[step]);
        r->sent = fake_cuda_sent() - before;
    }
    const bool ok = dml_status_of(context) == DML_OK;
    if (!ok) fprintf(stderr, "%s\n", dml_error(context));
    dml_close(context);
    return ok;
}

/* Off by something, and by no more than that. */
static bool near(const char *name, const result *r, const result *whole, double most)
{
    double apart = 0;
    for (int step = 0; step < STEPS; step++)
        apart = fmax(apart, fabs((double)r->loss[step] - (double)whole->loss[step]));
    printf("%s: from %.6f to %.6f, %g apart\n", name, (double)r->loss[0], (double)r->loss[STEPS - 1], apart);
    return apart > 0 && apart < most;
}

/* Where tensor cores have nothing to do nothing is sent early for them: as much is in a graph as without. */
static bool is_whole(const char *device, bool attends)
{
    result plain, r;
    if (!train(device, attends, false, DML_F32, FEW, MORE_STEPS, &plain) ||
        !train(device, attends, true, DML_F32, FEW, MORE_STEPS, &r))
        return false;
    if (r.sent != plain.sent)
        printf("on %s a step sends %d launches beside graphs, and %d without TF32\n", device, r.sent,
               plain.sent);
    return r.sent == plain.sent;
}

int main(void)
{
    result whole, tf32, bf16;
    if (!train("cuda:0", false, false, DML_F32, BATCH, STEPS, &whole) ||
        !train("cuda:0", false, true, DML_F32, BATCH, STEPS, &tf32) || !near("tf32", &tf32, &whole, 1e-3) ||
        !train("cuda:0", false, false, DML_BF16, BATCH, STEPS, &bf16) || !near("bf16", &bf16, &whole, 2e-2))
        return 1;
    const bool one = is_whole("cuda:1", false), other = is_whole("cuda:0", true);
    return whole.loss[1] < whole.loss[0] && one && other ? 0 : 1;
}
