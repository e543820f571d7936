/* predict_threads.c (C11): a server's threads predict at once on one set of weights, each with a program of
   its own. What would spoil their numbers is refused: training meanwhile, and two threads in one program. */
#include "dml.h"
#include "expect.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { THREADS = 4, BATCH = 64, IN = 32, CLASSES = 10, RUNS = 60 };
static float point[BATCH * IN], want[BATCH * CLASSES];
static int label[BATCH];
static atomic_int running, refused_runs, enough;

typedef struct server {
    pthread_t thread;
    dml_program *program;
    int rows;
} server;

/* As the weights stay what they are, each run gives either the numbers of one thread or no numbers. */
static void check_run(const server *s)
{
    float got[BATCH * CLASSES];
    const dml_status status = dml_program_run(s->program, s->rows, DML_INPUTS(point), got);
    EXPECT(status == DML_OK || status == DML_ERROR_STATE);
    if (status == DML_OK)
        EXPECT(memcmp(got, want, (size_t)s->rows * CLASSES * sizeof *got) == 0);
    else
        refused_runs++;
}

static void *serve(void *argument)
{
    const server *s = argument;
    running++;
    for (int i = 0; i < RUNS || !enough; i++) {
        check_run(s);
        dml_program_clear_error(s->program); /* its own: "the parameters are being written; ..." */
    }
    return NULL;
}

static void *share(void *argument)
{
    running++;
    while (!enough) check_run(argument);
    return NULL;
}

static void start(server *s, void *(*work)(void *))
{
    EXPECT(pthread_create(&s->thread, NULL, work, s) == 0);
}

int main(void)
{
    for (int i = 0; i < BATCH * IN; i++) point[i] = (float)(i * 31 % 103) / 103 - 0.5f;
    for (int i = 0; i < BATCH; i++) label[i] = i % CLASSES;
    dml_context *ctx = dml_open(&(dml_options){ .threads = 2, .seed = 5 });
    dml_graph *g = dml_graph_create(ctx);
    dml_node *x = dml_input(g, "x", DML_F32, IN), *t = dml_input(g, "t", DML_I32);
    dml_node *y = dml_dense(dml_relu(dml_dense(x, 48)), CLASSES);
    dml_trainer *trainer =
        dml_trainer_create(dml_softmax_cross_entropy(y, t), &(dml_trainer_options){ .batch = BATCH });
    dml_program *predict = dml_compile(y, &(dml_program_options){ .batch = BATCH });
    dml_program *other = dml_compile(y, &(dml_program_options){ .batch = BATCH });
    server servers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        servers[i].program = dml_compile(y, &(dml_program_options){ .batch = BATCH, .own_thread = true });
        servers[i].rows = BATCH - 9 * i;
    }
    EXPECT_NO_ERROR(ctx);
    dml_trainer_step(trainer, BATCH, DML_INPUTS(point, label), NULL);
    dml_program_run(predict, BATCH, DML_INPUTS(point), want);
    EXPECT_NO_ERROR(ctx);

    /* Four at once, and a trainer beside them: its rate of 0 leaves the weights as they are where it gets
     * through. */
    dml_trainer_set_lr(trainer, 0);
    for (int i = 0; i < THREADS; i++) start(&servers[i], serve);
    while (running < THREADS) continue;
    const double begun = dml_seconds();
    dml_status status = DML_OK;
    while (status == DML_OK && dml_seconds() - begun < 60)
        status = dml_trainer_step(trainer, BATCH, DML_INPUTS(point, label), NULL);
    EXPECT(status == DML_ERROR_STATE);
    EXPECT(strstr(dml_error(ctx), "while programs predict on other threads"));
    dml_clear_error(ctx);
    enough = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(servers[i].thread, NULL);
    const int beside_training = refused_runs;
    dml_trainer_set_lr(trainer, 0.1f);
    EXPECT(dml_trainer_step(trainer, BATCH, DML_INPUTS(point, label), NULL) == DML_OK);
    EXPECT(dml_program_run(predict, BATCH, DML_INPUTS(point), want) == DML_OK);

    /* Two threads in one program, which no program allows, and a third in another of the same context. */
    running = enough = refused_runs = 0;
    server a = { .program = predict, .rows = BATCH }, b = a, c = { .program = other, .rows = BATCH };
    start(&a, share);
    start(&b, share);
    start(&c, share);
    for (const double again = dml_seconds(); refused_runs == 0 && dml_seconds() - again < 60;) continue;
    enough = 1;
    pthread_join(a.thread, NULL);
    pthread_join(b.thread, NULL);
    pthread_join(c.thread, NULL);
    EXPECT(refused_runs > 0);
    EXPECT(dml_program_run(predict, BATCH, DML_INPUTS(point), want) == DML_OK);
    printf("refused: a step, %d runs beside steps, %d runs in another's program\n", beside_training,
           refused_runs);
    dml_close(ctx);
    return 0;
}
