/* Trains on the fake card (tests/gpu/cuda_host_test.sh) and prints the losses and parameters, which have to
   be the same with graphs and without, then what the card was asked for. */
#define DML_IMPLEMENTATION
#include "dml.h"

#include <stdio.h>
#include <stdlib.h>

int fake_cuda_graphs(void), fake_cuda_sent(void), fake_cuda_changes(void);
enum { BATCH = 3, STEPS = 8 };
static float image[BATCH][36], score[BATCH][4];
static int32_t label[BATCH];

static void print_parameters(dml_trainer *trainer)
{
    const size_t count = dml_trainer_count(trainer, DML_PARAMETERS);
    const float *w = dml_trainer_get(trainer, DML_PARAMETERS, 0, count);
    for (size_t i = 0; w && i < count; i++) printf("%a\n", (double)w[i]);
}

/* A rate that falls, samples that are fewer, an evaluation in between. */
static void train(dml_trainer *trainer, dml_program *predict)
{
    for (int step = 0; step < STEPS; step++) {
        float loss = 0;
        for (int i = 0; i < BATCH * 36; i++) image[i / 36][i % 36] = (float)((i * 7 + step) % 13) / 13;
        for (int i = 0; i < BATCH; i++) label[i] = (i + step) % 4;
        dml_trainer_set_lr(trainer, 0.01f / (float)(1 + step / 4));
        dml_trainer_step(trainer, step == 3 ? BATCH - 1 : BATCH, DML_INPUTS(image, label),
                         step == 5 ? &loss : NULL);
        printf("loss %a\n", (double)loss);
        if (step != 4) continue;
        dml_program_run(predict, BATCH, DML_INPUTS(image), score);
        for (int i = 0; i < BATCH; i++) printf("score %a\n", (double)score[i][0]);
    }
}

int main(void)
{
    const char *wanted = getenv("DML_CUDA_GRAPHS");
    const bool graphs = !wanted || strcmp(wanted, "0") != 0;
    dml_context *context = dml_open(&(dml_options){ .device = "cuda:0", .threads = 1, .seed = 7 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "image", DML_F32, 6, 6, 1), *t = dml_input(graph, "label", DML_I32);
    dml_node *h = dml_conv2d(x, &(dml_conv2d_options){ .filters = 2, .same = true });
    h = dml_dropout(dml_flatten(dml_max_pool2d(dml_relu(h), NULL)), 0.25f);
    dml_node *y = dml_dense(h, 4);
    dml_trainer_options how = { .batch = BATCH, .optimizer = dml_adam(0.01f), .clip_norm = 1 };
    dml_trainer *trainer = dml_trainer_create(dml_softmax_cross_entropy(y, t), &how);
    dml_program *predict = dml_compile(y, &(dml_program_options){ .batch = BATCH });
    train(trainer, predict);
    print_parameters(trainer);
    const int sent = fake_cuda_sent(), launched = fake_cuda_graphs();
    for (int step = 0; step < 3; step++) dml_trainer_step(trainer, BATCH, DML_INPUTS(image, label), NULL);
    print_parameters(trainer);
    const int more_sent = fake_cuda_sent() - sent, more_launched = fake_cuda_graphs() - launched;
    if (graphs ? more_sent != 0 || more_launched != 3 : more_launched != 0)
        return fprintf(stderr, "3 steps were %d launches and %d graphs\n", more_sent, more_launched), 1;
    if (dml_status_of(context) != DML_OK) return fprintf(stderr, "%s\n", dml_error(context)), 1;
    fprintf(stderr, "%d launches, %d graphs, %d changes of nodes\n", fake_cuda_sent(), fake_cuda_graphs(),
            fake_cuda_changes());
    dml_close(context);
    return 0;
}
