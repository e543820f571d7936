/* Programs with a thread of their own, and who may be in a program, a context and the parameters at once. */
#include "graph/program.h"

#include "base/os_thread.h"
#include "graph/node.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_pool2d.h"
#include "graph/program_internal.h"
#include "graph/weights.h"
#include "train/trainer.h"

#include "backends.h"

#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

enum { BATCH = 9, IN = 8 * 8 * 2, OUT = 5 };

typedef struct net {
    dml_context *context;
    dml_graph *graph;
    dml_node *y, *loss;
} net;

static net build(dml_context *context)
{
    net n = { .context = context, .graph = dml_graph_create(context) };
    dml_node *x = dml_input(n.graph, "image", DML_F32, 8, 8, 2);
    dml_node *c = dml_relu(dml_conv2d(x, &(dml_conv2d_options){ .filters = 6, .padding = { 1, 1 } }));
    dml_node *h = dml_tanh(dml_dense(dml_flatten(dml_max_pool2d(c, NULL)), 40));
    n.y = dml_sigmoid(dml_dense(dml_add(h, h), OUT));
    n.loss = dml_softmax_cross_entropy(n.y, dml_input(n.graph, "label", DML_I32));
    CHECK_STRING(dml_error(context), "");
    return n;
}

static net open_net(int threads)
{
    return build(dml_open(&(dml_options){ .threads = threads }));
}

static dml_program *compile_own(net n)
{
    dml_program *p = dml_compile(n.y, &(dml_program_options){ .batch = BATCH, .own_thread = true });
    CHECK_MESSAGE(p, "%s", dml_error(n.context));
    return p;
}

static dml_program *compile_ordinary(net n)
{
    dml_program *p = dml_compile(n.y, &(dml_program_options){ .batch = BATCH });
    CHECK_MESSAGE(p, "%s", dml_error(n.context));
    return p;
}

static const float *images(void)
{
    static float x[BATCH * IN];
    unsigned random = 11;
    if (x[0] == 0) test_fill(&random, x, BATCH * IN);
    return x;
}

static const int32_t labels[BATCH] = { 0, 1, 2, 3, 4, 0, 1, 2, 3 };

/* ---- the same results ---- */

static void bitwise_those_of_any_program(void)
{
    float first[BATCH * OUT];
    for (int threads = 1; threads <= 3; threads++) {
        net n = open_net(threads);
        dml_program *own = compile_own(n), *ordinary = compile_ordinary(n);
        CHECK_INT(dml_program_bytes(own), dml_program_bytes(ordinary));
        CHECK_INT(dml_pool_threads(own->own_pool), 1);
        for (int rows = BATCH; rows >= 1; rows--) {
            float want[BATCH * OUT], got[BATCH * OUT + 1];
            got[rows * OUT] = 42;
            poison(n.context, own->arena);
            CHECK_INT(dml_program_run(ordinary, rows, DML_INPUTS(images()), want), DML_OK);
            CHECK_INT(dml_program_run(own, rows, DML_INPUTS(images()), got), DML_OK);
            CHECK(memcmp(want, got, sizeof(float) * (size_t)rows * OUT) == 0 && got[rows * OUT] == 42);
            if (rows < BATCH) continue;
            if (threads == 1) memcpy(first, got, sizeof first);
            CHECK(memcmp(first, got, sizeof first) == 0);
        }
        CHECK_INT(dml_program_run(own, 2, DML_INPUTS(images()), NULL), DML_OK);
        dml_close(n.context);
    }
}

/* What was trained between two runs is seen by the second. */
static void between_the_steps_of_a_trainer(void)
{
    net n = open_net(2);
    dml_program *own = compile_own(n), *ordinary = compile_ordinary(n);
    dml_trainer *trainer =
        dml_trainer_create(n.loss, &(dml_trainer_options){ .batch = BATCH, .optimizer = dml_sgd(0.5f, 0) });
    float before[BATCH * OUT], got[BATCH * OUT], want[BATCH * OUT];
    CHECK_INT(dml_program_run(own, BATCH, DML_INPUTS(images()), before), DML_OK);
    CHECK_INT(dml_trainer_step(trainer, BATCH, DML_INPUTS(images(), labels), NULL), DML_OK);
    CHECK_INT(dml_program_run(own, BATCH, DML_INPUTS(images()), got), DML_OK);
    CHECK_INT(dml_program_run(ordinary, BATCH, DML_INPUTS(images()), want), DML_OK);
    CHECK(memcmp(got, want, sizeof got) == 0 && memcmp(got, before, sizeof got) != 0);
    CHECK_INT(n.graph->readers, 0);
    dml_close(n.context);
}

#ifndef DML_NO_THREADS
typedef struct worker {
    dml_program *program;
    float (*want)[BATCH * OUT]; /* of 1, 2, .. BATCH rows */
    int wrong;
} worker;

static void predict_often(void *argument)
{
    worker *w = (worker *)argument;
    for (int i = 0; i < 20; i++) {
        float got[BATCH * OUT];
        const int rows = 1 + i % BATCH;
        if (dml_program_run(w->program, rows, DML_INPUTS(images()), got) != DML_OK ||
            memcmp(got, w->want[rows - 1], sizeof(float) * (size_t)rows * OUT) != 0)
            w->wrong++;
    }
}

static void several_threads_at_once(void)
{
    enum { THREADS = 4 };
    net n = open_net(2);
    worker workers[THREADS];
    dml__thread thread[THREADS];
    float want[BATCH][BATCH * OUT];
    dml_program *ordinary = compile_ordinary(n);
    for (int rows = 1; rows <= BATCH; rows++)
        CHECK_INT(dml_program_run(ordinary, rows, DML_INPUTS(images()), want[rows - 1]), DML_OK);
    for (int i = 0; i < THREADS; i++) workers[i] = (worker){ compile_own(n), want, 0 };
    for (int i = 0; i < THREADS; i++) CHECK(dml__thread_start(&thread[i], predict_often, &workers[i]));
    for (int i = 0; i < 20; i++) { /* the context goes on meanwhile */
        float got[BATCH * OUT];
        CHECK_INT(dml_program_run(ordinary, BATCH, DML_INPUTS(images()), got), DML_OK);
        CHECK(memcmp(got, want[BATCH - 1], sizeof got) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        dml__thread_join(&thread[i]);
        CHECK_INT(workers[i].wrong, 0);
    }
    CHECK_INT(n.graph->readers, 0);
    dml_close(n.context);
}
#endif

/* ---- errors ---- */

static void errors_of_its_own(void)
{
    net n = open_net(1);
    dml_program *own = compile_own(n), *second = compile_own(n), *ordinary = compile_ordinary(n);
    float out[BATCH * OUT];
    CHECK_STRING(dml_program_error(own), "");
    CHECK_INT(dml_program_run(own, BATCH + 1, DML_INPUTS(images()), out), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_program_error(own), "a run of 10 samples asked for");
    CHECK_INT(dml_program_status(own), DML_ERROR_ARGUMENT);
    out[0] = 7;
    CHECK_INT(dml_program_run(own, 1, NULL, 0, out), DML_ERROR_ARGUMENT); /* the first error stands */
    CHECK_INT(dml_program_run(own, 1, DML_INPUTS(images()), out), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_program_error(own), "a run of 10 samples");
    CHECK(out[0] == 7);
    CHECK_STRING(dml_error(n.context), ""); /* nobody else hears of it */
    CHECK_STRING(dml_program_error(second), "");
    CHECK_INT(dml_program_run(second, 1, DML_INPUTS(images()), out), DML_OK);
    CHECK_INT(dml_program_run(ordinary, 1, DML_INPUTS(images()), out), DML_OK);
    dml_program_clear_error(own);
    CHECK_STRING(dml_program_error(own), "");
    CHECK_INT(dml_program_status(own), DML_OK);
    CHECK_INT(dml_program_run(own, 1, DML_INPUTS(images()), out), DML_OK);

    CHECK(!dml_relu(dml_graph_find(n.graph, "label"))); /* an error of the context */
    CHECK_INT(dml_program_run(own, 1, DML_INPUTS(images()), out), DML_OK);
    CHECK_INT(dml_program_run(ordinary, 1, DML_INPUTS(images()), out), DML_ERROR_ARGUMENT);
    CHECK_STRING(dml_program_error(ordinary), dml_error(n.context));
    CHECK_INT(dml_program_status(ordinary), DML_ERROR_ARGUMENT);
    CHECK_STRING(dml_program_error(own), "");
    dml_program_clear_error(own); /* isn't the context's */
    CHECK_INT(dml_status_of(n.context), DML_ERROR_ARGUMENT);
    dml_program_clear_error(ordinary);
    CHECK_INT(dml_status_of(n.context), DML_OK);
    CHECK_STRING(dml_program_error(NULL), "no program");
    CHECK_INT(dml_program_status(NULL), DML_ERROR_ARGUMENT);
    dml_program_clear_error(NULL);
    dml_close(n.context);
}

static void only_to_predict_on_the_cpu(void)
{
    net n = open_net(1);
    const dml_program_options train = { .batch = BATCH, .training = true, .own_thread = true };
    CHECK(!dml_compile(n.loss, &train));
    CHECK_INT(dml_status_of(n.context), DML_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(dml_error(n.context), "only predicts, and on the CPU: this one is to train on cpu");
    dml_close(n.context);
#ifdef HOST_C
    n = build(dml__open_on(dml__host_backend(), 0, NULL));
    CHECK(!dml_compile(n.y, &(dml_program_options){ .batch = 1, .own_thread = true }));
    CHECK_INT(dml_status_of(n.context), DML_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(dml_error(n.context), "this one is to predict on host-c");
    dml_close(n.context);
#endif
}

static void inputs_by_name(void)
{
    enum { INPUTS = 20 };
    char name[64];
    float values[INPUTS], sum = 0;
    const void *inputs[INPUTS];
    net n = open_net(1);
    dml_program *p = dml_compile(n.loss, &(dml_program_options){ .batch = BATCH });
    CHECK_INT(dml_program_run(p, 1, DML_INPUTS(images()), NULL), DML_ERROR_ARGUMENT);
    CHECK_STRING(dml_error(n.context), "1 inputs were given, the program takes 2: image, label");
    dml_clear_error(n.context);
    CHECK_INT(dml_program_run(p, 1, DML_INPUTS(images(), labels, labels), NULL), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(n.context), "3 inputs were given");
    dml_clear_error(n.context);
    CHECK_INT(dml_program_run(p, 1, NULL, -1, NULL), DML_ERROR_ARGUMENT);
    dml_clear_error(n.context);
    CHECK_INT(dml_program_run(p, 1, DML_INPUTS(images(), labels), NULL), DML_OK);

    dml_node *total = NULL; /* more than DML_INPUTS counts go in as an array */
    for (int i = 0; i < INPUTS; i++) {
        snprintf(name, sizeof name, "an_input_with_a_rather_long_name.%d", i);
        dml_node *x = dml_input(n.graph, name, DML_F32);
        total = i ? dml_add(total, x) : x;
        values[i] = (float)(1 << i);
        sum += values[i];
        inputs[i] = &values[i];
    }
    float got = 0;
    p = dml_compile(total, &(dml_program_options){ .batch = 1 });
    CHECK_INT(dml_program_run(p, 1, inputs, INPUTS, &got), DML_OK);
    CHECK_NEAR(got, sum, 0);
    CHECK_INT(dml_program_run(p, 1, inputs, INPUTS - 1, &got), DML_ERROR_ARGUMENT); /* as many as fit */
    CHECK_CONTAINS(dml_error(n.context),
                   "19 inputs were given, the program takes 20: an_input_with_a_rather");
    CHECK_CONTAINS(dml_error(n.context), "name.5");
    dml_clear_error(n.context);
    dml_close(n.context);
}

/* ---- who is inside ---- */

#define BESIDE "another thread is in a call of this context"

/* Running must be refused, and not touch the output. */
static void check_refused(dml_program *p, const char *error)
{
    float out[OUT] = { 7, 7, 7, 7, 7 };
    CHECK_INT(dml_program_run(p, 1, DML_INPUTS(images()), out), DML_ERROR_STATE);
    CHECK(out[0] == 7 && out[OUT - 1] == 7);
    CHECK_MESSAGE(strncmp(dml_program_error(p), error, strlen(error)) == 0 &&
                      (*error || !*dml_program_error(p)),
                  "%s", dml_program_error(p));
    dml_program_clear_error(p);
    CHECK_STRING(dml_program_error(p), "");
}

static void another_thread_in_the_program(void)
{
    net n = open_net(1);
    dml_program *own = compile_own(n), *second = compile_own(n);
    own->running = 1;
    check_refused(own, "");
    CHECK_INT(own->running, 1); /* the other one's, still */
    CHECK_INT(n.graph->readers, 0);
    CHECK_INT(dml_program_run(second, 1, DML_INPUTS(images()), NULL), DML_OK);
    own->running = 0;
    CHECK_INT(dml_program_run(own, 1, DML_INPUTS(images()), NULL), DML_OK);
    CHECK_INT(own->running, 0);
    CHECK_INT(dml_program_run(own, 0, DML_INPUTS(images()), NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(own->running, 0); /* also after an error */
    CHECK_INT(n.graph->readers, 0);
    dml_close(n.context);
}

static void parameters_being_written(void)
{
    net n = open_net(1);
    dml_program *own = compile_own(n);
    n.graph->readers = -1;
    check_refused(own, "the parameters are being written; predict between a trainer's steps");
    CHECK_INT(n.graph->readers, -1);
    CHECK_INT(own->running, 0);
    CHECK_STRING(dml_error(n.context), "");
    n.graph->readers = 0;
    CHECK_INT(dml_program_run(own, 1, DML_INPUTS(images()), NULL), DML_OK);
    dml_close(n.context);
}

static void parameters_being_read(void)
{
    static unsigned char image[65536];
    size_t bytes;
    net n = open_net(1);
    dml_program *own = compile_own(n);
    dml_node *bias = dml_graph_find(n.graph, "dense_2.bias");
    dml_trainer *trainer =
        dml_trainer_create(n.loss, &(dml_trainer_options){ .batch = BATCH, .optimizer = dml_sgd(0.5f, 0) });
    CHECK_MESSAGE(dml_graph_store(n.graph, image, sizeof image, &bytes) == DML_OK, "%s",
                  dml_error(n.context));
    const float ones[OUT] = { 1, 1, 1, 1, 1 };
    float got[OUT];
    n.graph->readers = 2;
    for (int way = 0; way < 3; way++) {
        dml_status status = DML_OK;
        if (way == 0) status = dml_parameter_write(bias, ones, OUT);
        if (way == 1) status = dml_graph_load_memory(n.graph, "image", image, bytes);
        if (way == 2) status = dml_trainer_step(trainer, BATCH, DML_INPUTS(images(), labels), NULL);
        CHECK_INT(status, DML_ERROR_STATE);
        CHECK_CONTAINS(dml_error(n.context), "while programs predict on other threads");
        CHECK_INT(n.graph->readers, 2);
        dml_clear_error(n.context);
    }
    CHECK_INT(dml_parameter_read(bias, got, OUT), DML_OK); /* reading may go on */
    for (int i = 0; i < OUT; i++) CHECK(got[i] == 0);
    CHECK_INT(dml_program_run(own, 1, DML_INPUTS(images()), NULL), DML_OK);
    CHECK_INT(n.graph->readers, 2);
    n.graph->readers = 0;
    CHECK_INT(dml_parameter_write(bias, ones, OUT), DML_OK);
    CHECK_INT(dml_graph_load_memory(n.graph, "image", image, bytes), DML_OK);
    CHECK_INT(dml_trainer_step(trainer, BATCH, DML_INPUTS(images(), labels), NULL), DML_OK);
    CHECK_INT(n.graph->readers, 0);
    dml_close(n.context);
}

static void another_thread_in_the_context(void)
{
    net n = open_net(1);
    dml_program *own = compile_own(n), *ordinary = compile_ordinary(n);
    const uintptr_t other = dml__thread_self() + 8;
    dml__owned *const newest = n.context->owned;
    n.context->inside = other;
    check_refused(ordinary, BESIDE);
    CHECK_INT(dml_status_of(n.context), DML_OK);
    CHECK(!dml_compile(n.y, &(dml_program_options){ .batch = 1 }));
    CHECK_CONTAINS(dml_error(n.context), BESIDE);
    CHECK(!dml_compile(n.y, NULL)); /* not even looked at */
    CHECK_INT(dml_status_of(n.context), DML_ERROR_STATE);
    CHECK(n.context->owned == newest && n.context->inside == other);
    CHECK_STRING(n.context->error.text, "");
    CHECK_INT(dml_program_run(own, 1, DML_INPUTS(images()), NULL), DML_OK); /* needs no context */
    n.context->inside = dml__thread_self();                                 /* a call inside of a call */
    CHECK_INT(dml_program_run(ordinary, 1, DML_INPUTS(images()), NULL), DML_OK);
    CHECK(dml_compile(n.y, &(dml_program_options){ .batch = 1 }));
    CHECK(n.context->inside == dml__thread_self());
    n.context->inside = 0;
    CHECK_INT(dml_program_run(ordinary, 1, DML_INPUTS(images()), NULL), DML_OK);
    CHECK(n.context->inside == 0);
    CHECK_STRING(dml_error(n.context), ""); /* who gets in wasn't refused in the end */
    dml_close(n.context);
}

#ifndef DML_NO_THREADS
typedef struct visitor {
    dml_context *context;
    dml_program *program;
    char error[256];
    dml_status status[3];
} visitor;

static void visit(void *argument)
{
    visitor *v = (visitor *)argument;
    v->status[0] = dml_program_run(v->program, 1, DML_INPUTS(images()), NULL);
    snprintf(v->error, sizeof v->error, "%s", dml_error(v->context));
    v->status[1] = dml_status_of(v->context);
    dml_clear_error(v->context);
    v->status[2] = dml_program_run(v->program, 1, DML_INPUTS(images()), NULL);
}

/* The refused thread reads its sentence while the other one is at the context's error. */
static void the_refused_thread_is_told(void)
{
    net n = open_net(1);
    visitor v = { .context = n.context, .program = compile_ordinary(n) };
    dml__thread thread;
    const dml__entry entry = dml__enter(n.context);
    CHECK(dml__thread_start(&thread, visit, &v));
    CHECK(!dml_relu(dml_graph_find(n.graph, "label")));
    dml__thread_join(&thread);
    CHECK_CONTAINS(v.error, BESIDE);
    for (int i = 0; i < 3; i++) CHECK_INT(v.status[i], DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(n.context), "relu"); /* which the other thread didn't clear */
    CHECK_INT(dml_status_of(n.context), DML_ERROR_ARGUMENT);
    dml__leave(n.context, entry);
    dml_close(n.context);
}
#endif

static void destroyed_in_any_order(void)
{
    static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                      { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
    for (int o = 0; o < 6; o++) {
        net n = open_net(2);
        dml_program *p[3] = { compile_own(n), compile_ordinary(n),
                              dml_compile(n.loss, &(dml_program_options){ .batch = 2, .training = true }) };
        for (int i = 0; i < 3; i++) {
            dml_program_destroy(p[orders[o][i]]);
            p[orders[o][i]] = NULL;
            for (int k = 0; k < 2; k++) /* what is left still runs */
                if (p[k]) CHECK_INT(dml_program_run(p[k], 3, DML_INPUTS(images()), NULL), DML_OK);
        }
        if (o % 2) dml_graph_destroy(n.graph);
        dml_close(n.context);
    }
}

#ifndef _WIN32
/* What the parent's other threads were in when it forked goes on in the parent alone: the child begins anew.
 */
static void a_child_of_a_busy_process(void)
{
    net n = open_net(1);
    dml_program *p = compile_own(n);
    dml_trainer *t = dml_trainer_create(n.loss, &(dml_trainer_options){ .batch = BATCH });
    float out[BATCH * OUT];
    n.graph->readers = 1;
    p->running = 1;
    const pid_t child = fork();
    if (child == 0) {
        const bool ok = dml_program_run(p, 2, DML_INPUTS(images()), out) == DML_OK &&
                        dml_trainer_step(t, 2, DML_INPUTS(images(), labels), NULL) == DML_OK &&
                        dml_program_run(p, 2, DML_INPUTS(images()), out) == DML_OK && n.graph->readers == 0;
        n.context->inside = 2; /* of a thread that isn't here */
        const bool told = dml_trainer_step(t, 2, DML_INPUTS(images(), labels), NULL) == DML_ERROR_STATE &&
                          strstr(dml_error(n.context), "forked while another thread was in the context");
        dml_close(n.context);
        _exit(ok && told ? 0 : 1);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_MESSAGE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %d", status);
    CHECK_INT(dml_program_run(p, 2, DML_INPUTS(images()), out), DML_ERROR_STATE); /* here it still runs */
    n.graph->readers = 0;
    p->running = 0;
    dml_close(n.context);
}
#endif

int main(void)
{
    RUN(bitwise_those_of_any_program);
    RUN(between_the_steps_of_a_trainer);
#ifndef DML_NO_THREADS
    RUN(several_threads_at_once);
#endif
    RUN(errors_of_its_own);
    RUN(only_to_predict_on_the_cpu);
    RUN(inputs_by_name);
    RUN(another_thread_in_the_program);
    RUN(parameters_being_written);
    RUN(parameters_being_read);
    RUN(another_thread_in_the_context);
#ifndef DML_NO_THREADS
    RUN(the_refused_thread_is_told);
#endif
    RUN(destroyed_in_any_order);
#ifndef _WIN32
    RUN(a_child_of_a_busy_process);
#endif
    return test_report("graph/own_thread");
}
