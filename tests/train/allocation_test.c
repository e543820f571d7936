/* Memory: every allocation may fail, a step makes none, and one buffer of the caller's is enough. */
#include "train/trainer.h"

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_pool2d.h"

#include "../test.h"

/* Counts, and refuses the call number `fail_at` (from 1). */
typedef struct counter {
    int calls, alive, fail_at;
} counter;

static void *count_allocate(void *user, size_t bytes)
{
    counter *c = (counter *)user;
    if (++c->calls == c->fail_at) return NULL;
    void *memory = malloc(bytes);
    c->alive += memory != NULL;
    return memory;
}

static void count_release(void *user, void *memory)
{
    counter *c = (counter *)user;
    c->alive -= memory != NULL;
    free(memory);
}

enum { BATCH = 3 };
static float images[BATCH * 6 * 6 * 2];
static const int32_t labels[BATCH] = { 0, 2, 1 };
static const void *const inputs[] = { images, labels };

/* Builds a small convolution network, trains it for two steps and runs it. The last loss, or -1. */
static float build_and_train(dml_context *context, counter *steps)
{
    float loss = -1, y[BATCH * 3];
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "image", DML_F32, 6, 6, 2);
    dml_node *h = dml_relu(dml_conv2d(x, &(dml_conv2d_options){ .filters = 4, .padding = { 1, 1 } }));
    h = dml_flatten(dml_add(dml_max_pool2d(h, NULL), dml_avg_pool2d(h, NULL)));
    dml_node *logits = dml_dense(dml_tanh(dml_dense(h, 7)), 3);
    dml_node *l = dml_softmax_cross_entropy(logits, dml_input(g, "label", DML_I32));
    dml_trainer *t =
        dml_trainer_create(l, &(dml_trainer_options){ .batch = BATCH, .optimizer = dml_sgd(0.1f, 0.9f) });
    dml_program *p = dml_compile(logits, &(dml_program_options){ .batch = BATCH });
    const int calls = steps ? steps->calls : 0;
    dml_status status = t && p ? DML_OK : DML_ERROR_MEMORY;
    for (int i = 0; i < 2 && status == DML_OK; i++) status = dml_trainer_step(t, BATCH - i, inputs, 2, &loss);
    if (status == DML_OK) status = dml_program_run(p, BATCH, inputs, 1, y);
    if (status == DML_OK && !(dml_trainer_get(t, DML_GRADIENTS, 0, 5))) status = DML_ERROR_MEMORY;
    if (steps) CHECK_INT(steps->calls, calls);
    return status == DML_OK ? loss : -1;
}

static void prepare(void)
{
    unsigned random = 11;
    test_fill(&random, images, sizeof images / sizeof images[0]);
}

static void a_step_allocates_nothing(void)
{
    counter c = { 0, 0, 0 };
    prepare();
    dml_context *context =
        dml_open(&(dml_options){ .threads = 2, .allocator = { count_allocate, count_release, &c } });
    CHECK(build_and_train(context, &c) > 0);
    CHECK(c.calls > 20);
    dml_close(context);
    CHECK_INT(c.alive, 0);
}

/* Allocation n alone fails, for every n: an error that says so, nothing lost, and the same context can go on.
 */
static void every_allocation_may_fail(void)
{
    prepare();
    dml_context *context = dml_open(NULL);
    const float want = build_and_train(context, NULL);
    CHECK(want > 0);
    dml_close(context);
    bool done = false;
    for (int n = 1; n < 1000 && !done; n++) {
        counter c = { 0, 0, n };
        const dml_options options = { .threads = 2, .allocator = { count_allocate, count_release, &c } };
        context = dml_open(&options);
        const bool opened = dml_context_device(context) != NULL;
        const float loss = build_and_train(context, NULL);
        done = c.calls < n; /* there were fewer: nothing failed */
        CHECK_MESSAGE((loss == want) == done, "allocation %d: loss %g", n, (double)loss);
        CHECK_MESSAGE(dml_status_of(context) == (done ? DML_OK : DML_ERROR_MEMORY), "allocation %d: %s", n,
                      dml_error(context));
        if (!done) CHECK_CONTAINS(dml_error(context), "no memory");
        dml_clear_error(context);
        if (opened && !done)
            CHECK_MESSAGE(build_and_train(context, NULL) == want, "after allocation %d failed", n);
        dml_close(context);
        CHECK_MESSAGE(c.alive == 0, "allocation %d: %d blocks leaked", n, c.alive);
    }
    CHECK(done);
}

/* From no byte to enough: an error until it suffices, the same training then, and no byte beside it changed.
 */
static void one_buffer(void)
{
    enum { MOST = 1300 * 1024, GUARD = 256 };
    prepare();
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    const float want = build_and_train(context, NULL);
    dml_close(context);
    unsigned char *memory = (unsigned char *)malloc(MOST + 2 * GUARD);
    int failed = 0, succeeded = 0;
    for (size_t bytes = 0; bytes <= MOST; bytes += bytes < 65536         ? 4093
                                                   : bytes < 1024 * 1024 ? 190003
                                                                         : 6011) {
        memset(memory, 0xA5, MOST + 2 * GUARD);
        unsigned char *start = memory + GUARD - (bytes % 7); /* not aligned */
        context = dml_open(&(dml_options){ .threads = 1, .memory = start, .memory_bytes = bytes });
        const float loss = build_and_train(context, NULL);
        if (loss == want) {
            succeeded++;
            CHECK_STRING(dml_error(context), "");
        } else {
            failed++;
            CHECK_MESSAGE(!succeeded, "%zu bytes are not enough, but fewer were", bytes);
            CHECK_INT(dml_status_of(context), DML_ERROR_MEMORY);
            CHECK_CONTAINS(dml_error(context), "no memory");
        }
        dml_close(context);
        for (unsigned char *at = memory; at < start; at++) CHECK_INT(*at, 0xA5);
        for (unsigned char *at = start + bytes; at < memory + MOST + 2 * GUARD; at++)
            if (*at != 0xA5) CHECK_INT(*at, 0xA5);
    }
    CHECK(failed > 3);
    CHECK(succeeded > 3);
    free(memory);
}

/* What is destroyed can be had again: a buffer that holds one model holds a thousand, one after another. */
static void a_buffer_is_reused(void)
{
    enum { BYTES = 1300 * 1024 };
    void *memory = malloc(BYTES);
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .memory = memory, .memory_bytes = BYTES });
    for (int i = 0; i < 1000; i++) {
        dml_graph *g = dml_graph_create(context);
        dml_node *y = dml_dense(dml_input(g, "x", DML_F32, 30), 100);
        dml_node *l = dml_mean_squared_error(y, dml_input(g, "t", DML_F32, 100));
        dml_trainer *t = dml_trainer_create(l, &(dml_trainer_options){ .batch = 10 });
        CHECK_MESSAGE(t, "model %d: %s", i, dml_error(context));
        if (!t) break;
        dml_trainer_destroy(t);
        dml_graph_destroy(g);
    }
    dml_close(context);
    free(memory);
}

int main(void)
{
    RUN(a_step_allocates_nothing);
    RUN(every_allocation_may_fail);
    RUN(one_buffer);
    RUN(a_buffer_is_reused);
    return test_report("train/allocation");
}
