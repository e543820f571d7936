/* callbacks.c: a host that gives dml its memory and hears what it has to say. Whichever request the host
   refuses, the error is in the context, nothing is lost, and the next attempt may succeed. */
#include "dml.h"
#include "expect.h"

#include <string.h>

typedef struct host {
    int requests, refuse; /* this one; 0: none */
    int live;
    size_t lines;
} host;

static void *allocate(void *user, size_t bytes)
{
    host *h = user;
    void *memory = ++h->requests == h->refuse ? NULL : malloc(bytes);
    if (memory) h->live++;
    return memory;
}

static void release(void *user, void *memory)
{
    host *h = user;
    if (memory) h->live--;
    free(memory);
}

static void hear(void *user, dml_log_level level, const char *message)
{
    host *h = user;
    EXPECT(level >= DML_LOG_DEBUG && level <= DML_LOG_ERROR);
    EXPECT(strlen(message) > 0 && !strchr(message, '\n'));
    h->lines++;
}

/* Builds, trains and closes; the status of all that. No return value is looked at before the end. */
static dml_status run(host *h)
{
    static const float x[2][3] = { { 1, 2, 3 }, { 4, 5, 6 } };
    static const int t[2] = { 0, 1 };
    const dml_options options = {
        .threads = 2, .allocator = { allocate, release, h }, .log = hear, .log_user = h
    };
    dml_context *ctx = dml_open(&options);
    dml_graph *g = dml_graph_create(ctx);
    dml_node *in = dml_input(g, "x", DML_F32, 3), *label = dml_input(g, "t", DML_I32);
    dml_node *y = dml_dense(dml_relu(dml_dense(in, 4)), 2);
    dml_trainer *trainer =
        dml_trainer_create(dml_softmax_cross_entropy(y, label),
                           &(dml_trainer_options){ .batch = 2, .optimizer = dml_sgd(0.1f, 0.9f) });
    const int before = h->requests;
    for (int i = 0; i < 3; i++) dml_trainer_step(trainer, 2, DML_INPUTS(x, t), NULL);
    EXPECT(h->requests == before); /* a step asks for nothing */
    const dml_status status = dml_status_of(ctx);
    EXPECT((status == DML_OK) == (strlen(dml_error(ctx)) == 0));
    EXPECT((status == DML_OK) == (trainer != NULL));
    dml_close(ctx);
    return status;
}

int main(void)
{
    host h = { 0, 0, 0, 0 };
    EXPECT(run(&h) == DML_OK && h.live == 0 && h.lines > 0);
    const int all = h.requests;
    for (int refuse = 1; refuse <= all; refuse++) {
        host poor = { .refuse = refuse };
        EXPECT(run(&poor) == DML_ERROR_MEMORY);
        EXPECT(poor.live == 0);
    }
    printf("%d requests, each refused once; %zu lines logged\n", all, h.lines);
    return 0;
}
