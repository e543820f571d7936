/* two_contexts.c: two libraries in one process that both use dml don't meet: seeds, threads, logs and errors
   are each context's own, whether one thread takes turns or two threads run at once. */
#include "dml.h"
#include "expect.h"

#include <pthread.h>
#include <string.h>

enum { BATCH = 16, IN = 12, STEPS = 40, MOST_WEIGHTS = 2000 };

typedef struct user {
    int threads, units;
    uint64_t seed;
    dml_context *ctx;
    dml_graph *g;
    dml_trainer *trainer;
    int said; /* lines of its log */
    float weights[MOST_WEIGHTS];
} user;

static void hear(void *self, dml_log_level level, const char *message)
{
    user *u = self;
    char mine[32];
    snprintf(mine, sizeof mine, "%d CPU threads", u->threads);
    if (level == DML_LOG_INFO && strstr(message, "opened")) EXPECT(strstr(message, mine));
    u->said++;
}

static void begin(user *u)
{
    u->said = 0;
    u->ctx = dml_open(&(dml_options){ .threads = u->threads, .seed = u->seed, .log = hear, .log_user = u });
    u->g = dml_graph_create(u->ctx);
    dml_node *x = dml_input(u->g, "x", DML_F32, IN), *t = dml_input(u->g, "t", DML_F32, 3);
    dml_node *loss = dml_mean_squared_error(dml_dense(dml_tanh(dml_dense(x, u->units)), 3), t);
    u->trainer = dml_trainer_create(loss, &(dml_trainer_options){ .batch = BATCH });
    EXPECT_NO_ERROR(u->ctx);
    EXPECT(u->said > 0);
}

static void step(user *u, int i)
{
    float x[BATCH * IN], t[BATCH * 3];
    for (int k = 0; k < BATCH * IN; k++) x[k] = (float)((k + i) * 17 % 31) / 31;
    for (int k = 0; k < BATCH * 3; k++) t[k] = x[k * 2] * (float)u->units / 20;
    EXPECT(dml_trainer_step(u->trainer, BATCH, DML_INPUTS(x, t), NULL) == DML_OK);
}

static void end(user *u, const user *want)
{
    const size_t count = dml_graph_parameter_count(u->g);
    EXPECT(count <= MOST_WEIGHTS);
    memcpy(u->weights, dml_graph_get(u->g, 0, count), count * sizeof(float));
    EXPECT(!want || memcmp(u->weights, want->weights, count * sizeof(float)) == 0);
    dml_close(u->ctx);
}

static void *work(void *argument)
{
    user *u = argument;
    begin(u);
    for (int i = 0; i < STEPS; i++) step(u, i);
    return NULL;
}

int main(void)
{
    static user a = { .threads = 1, .units = 20, .seed = 1 }, b = { .threads = 3, .units = 33, .seed = 2 };
    static user a_alone, b_alone;
    pthread_t thread;
    a_alone = a, b_alone = b;
    work(&a_alone), end(&a_alone, NULL);
    work(&b_alone), end(&b_alone, NULL);

    /* In turns; what one is refused, and forgets, is no concern of the other's. */
    begin(&a), begin(&b);
    for (int i = 0; i < STEPS; i++) {
        step(&a, i);
        EXPECT(!dml_graph_find(a.g, "nothing") && !dml_input(a.g, "x", DML_F32, i + 1));
        EXPECT(dml_status_of(a.ctx) == DML_ERROR_ARGUMENT);
        EXPECT(dml_status_of(b.ctx) == DML_OK && strlen(dml_error(b.ctx)) == 0);
        step(&b, i);
        dml_clear_error(a.ctx);
    }
    end(&a, &a_alone), end(&b, &b_alone);

    EXPECT(pthread_create(&thread, NULL, work, &b) == 0);
    work(&a);
    EXPECT(pthread_join(thread, NULL) == 0);
    end(&b, &b_alone), end(&a, &a_alone);
    printf("alone, in turns and at once: the same weights; %d and %d lines logged\n", a.said, b.said);
    return 0;
}
