/* openmp.c: a program whose loops are OpenMP's lends its threads to dml, which then starts none of its own.
   However many threads there are, and however few of them dml wants, the trained weights are those of dml's
   own pool, bit for bit. */
#include "dml.h"
#include "expect.h"

#include <omp.h>
#include <string.h>

enum { BATCH = 16, SIDE = 12, CLASSES = 5, STEPS = 6, MOST_WEIGHTS = 20000 };

typedef struct team {
    int threads, loops, idle;
} team;

/* What dml calls for each of its loops. Worker numbers are those of the team's threads; a team that is larger
   than `workers` leaves the others idle. */
static void lend(void *host, int workers, int tasks, dml_pool_task run, void *argument)
{
    team *t = host;
    int next = 0;
    t->loops++;
#pragma omp parallel num_threads(t->threads)
    {
        const int worker = omp_get_thread_num();
        if (worker < workers) {
            for (;;) {
                int task;
#pragma omp atomic capture
                task = next++;
                if (task >= tasks) break;
                run(argument, task, worker);
            }
        } else {
#pragma omp atomic update
            t->idle++;
        }
    }
}

/* Trains a small convolution network and copies its weights out; `t` NULL: on dml's own threads. */
static size_t train(int workers, team *t, float *weights)
{
    static float image[BATCH * SIDE * SIDE];
    static int label[BATCH];
    for (int i = 0; i < BATCH * SIDE * SIDE; i++) image[i] = (float)(i * 37 % 101) / 101 - 0.5f;
    for (int i = 0; i < BATCH; i++) label[i] = i % CLASSES;
    const dml_pool_options pool = { .threads = workers, .host_parallel = lend, .host = t };
    dml_context *ctx = dml_open(&(dml_options){ .threads = workers, .seed = 7, .pool = t ? &pool : NULL });
    dml_graph *g = dml_graph_create(ctx);
    dml_node *x = dml_input(g, "image", DML_F32, SIDE, SIDE, 1), *y = dml_input(g, "label", DML_I32);
    dml_node *h = dml_relu(dml_conv2d(x, &(dml_conv2d_options){ .filters = 8, .kernel = { 3, 3 } }));
    h = dml_dense(dml_relu(dml_dense(dml_flatten(dml_max_pool2d(h, NULL)), 64)), CLASSES);
    dml_trainer *trainer =
        dml_trainer_create(dml_softmax_cross_entropy(h, y),
                           &(dml_trainer_options){ .batch = BATCH, .optimizer = dml_sgd(0.05f, 0.9f) });
    EXPECT_NO_ERROR(ctx);
    for (int i = 0; i < STEPS; i++)
        EXPECT(dml_trainer_step(trainer, BATCH, DML_INPUTS(image, label), NULL) == DML_OK);
    const size_t count = dml_graph_parameter_count(g);
    EXPECT(count <= MOST_WEIGHTS);
    memcpy(weights, dml_graph_get(g, 0, count), count * sizeof *weights);
    dml_close(ctx);
    return count;
}

int main(void)
{
    static float own[MOST_WEIGHTS], lent[MOST_WEIGHTS];
    static const int cases[][2] = { { 4, 4 }, { 2, 4 }, { 1, 4 }, { 4, 2 }, { 3, 8 } }; /* workers, threads */
    omp_set_dynamic(0);
    const size_t count = train(1, NULL, own);
    train(4, NULL, lent);
    EXPECT(memcmp(own, lent, count * sizeof *own) == 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        team t = { cases[i][1], 0, 0 };
        EXPECT(train(cases[i][0], &t, lent) == count);
        EXPECT(t.loops >= STEPS);
        EXPECT((t.idle > 0) == (t.threads > cases[i][0]));
        EXPECT(memcmp(own, lent, count * sizeof *own) == 0);
        printf("%d OpenMP threads, %d workers: %d loops, the same %zu weights\n", t.threads, cases[i][0],
               t.loops, count);
    }
    return 0;
}
