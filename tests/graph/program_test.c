/* Programs: any number of rows, shared parameters, what is run, and in which order gradients become final. */
#include "graph/program.h"

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_pool2d.h"
#include "graph/weights.h"

#include "subject.h"

static const dml_initializer normal = { DML_INIT_NORMAL, 0, 0.5f };
static const dml_program_options infer3 = { .batch = 3 }, train3 = { .batch = 3, .training = true };

/* ---- the order in which ranges of g become final ---- */

typedef struct announced {
    dml_context *context;
    dml_program *program;
    size_t count, at; /* g[at ..] was announced */
    int ranges;
    float *copy; /* each range as it was when announced */
    int fail_at; /* the call that returns an error; 0: none */
} announced;

static dml_status announce(void *user, size_t begin, size_t end)
{
    announced *a = (announced *)user;
    CHECK_INT(end, a->at);
    CHECK(begin < end);
    const dml_ref from = { a->program->g, begin * sizeof(float) };
    dml_device *device = &a->context->device;
    CHECK_INT(device->backend->read(device, a->copy + begin, from, (end - begin) * sizeof(float)), DML_OK);
    a->at = begin;
    return ++a->ranges == a->fail_at ? DML_ERROR_PEER : DML_OK;
}

/* Trains once; checks that the ranges cover g from its end to 0 and were final. Returns how many there were.
 */
static int check_announcements(dml_node *loss, const void *const *inputs, int rows)
{
    dml_program *program = dml_compile(loss, &train3);
    CHECK_MESSAGE(program, "%s", dml_error(dml_graph_context(dml_node_graph(loss))));
    if (!program) return 0;
    announced a = { .context = program->graph->context, .program = program };
    a.at = a.count = dml_graph_parameter_count(program->graph);
    a.copy = (float *)calloc(a.count, sizeof(float));
    float *g = (float *)calloc(a.count, sizeof(float));
    const dml__gradient_listener listener = { announce, &a };
    CHECK_INT(program_train(program, rows, inputs, 1.0f, &listener, NULL), DML_OK);
    CHECK_INT(a.at, 0);
    read_floats(a.context, g, program->g, a.count);
    CHECK(memcmp(g, a.copy, a.count * sizeof(float)) == 0);
    dml_program_destroy(program);
    free(a.copy);
    free(g);
    return a.ranges;
}

static const float some_floats[3 * 96] = {
    0.5f, -1, 0.25f, 2, -0.75f, 1.5f, 1, -2, 0.125f, 3, 1, 1, -1, 0.5f
};
static const int32_t some_labels[3] = { 1, 0, 3 };

static void ranges_of_a_chain(void)
{
    dml_context *context = open_here(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *h = dml_input(g, "x", DML_F32, 8), *t = dml_input(g, "t", DML_I32);
    for (int i = 0; i < 4; i++) h = dml_tanh(dml_dense(h, 5));
    const void *const inputs[] = { some_floats, some_labels };
    CHECK_INT(check_announcements(dml_softmax_cross_entropy(h, t), inputs, 3), 4); /* a range a layer */
    dml_close(context);
}

static void ranges_with_shared_weights(void)
{
    dml_context *context = open_here(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *w = dml_parameter(g, "w", normal, 8, 8), *bias = dml_parameter(g, "bias", normal, 8);
    dml_node *x = dml_input(g, "x", DML_F32, 8), *t = dml_input(g, "t", DML_I32);
    dml_node *h = dml_dense(x, 8);
    h = dml_tanh(dml_dense_with(h, w, bias));
    h = dml_tanh(dml_dense(h, 8));
    h = dml_tanh(dml_dense_with(h, w, NULL)); /* w again: its gradient is not final here */
    dml_node *loss = dml_softmax_cross_entropy(dml_dense_with(h, w, bias), t);
    const void *const inputs[] = { some_floats, some_labels };
    CHECK_INT(check_announcements(loss, inputs, 2), 3); /* the last dense; w and its bias; the first dense */
    dml_close(context);
}

static void ranges_through_views(void)
{
    dml_context *context = open_here(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "x", DML_F32, 4, 4, 2), *t = dml_input(g, "t", DML_I32);
    dml_node *c = dml_conv2d(x, &(dml_conv2d_options){ .filters = 3 });
    dml_node *flat = dml_flatten(c), *p = dml_parameter(g, "p", normal, 2, 2);
    dml_node *a = dml_dense(flat, 4),
             *b = dml_dense_with(dml_flatten(c), dml_parameter(g, "w", normal, 4, 12), dml_flatten(p));
    dml_node *pooled = dml_dense(dml_flatten(dml_max_pool2d(c, NULL)), 4);
    dml_node *unused = dml_dense(flat, 7); /* its parameters lie in the middle of w, its gradient is zero */
    dml_node *d = dml_dense_with(dml_tanh(dml_dense(flat, 4)),
                                 dml_flatten(p) ? dml_parameter(g, "v", normal, 4, 4) : NULL, dml_flatten(p));
    CHECK(unused);
    dml_node *loss = dml_add(dml_softmax_cross_entropy(dml_add(dml_add(a, b), dml_add(pooled, d)), t),
                             dml_mean_squared_error(dml_flatten(flat), dml_input(g, "y", DML_F32, 12)));
    const void *const inputs[] = { some_floats, some_labels, some_floats };
    CHECK(check_announcements(loss, inputs, 3) >= 4);
    dml_close(context);
}

/* A parameter that an elementwise op uses first and a layer uses again later is final after the former. */
static void ranges_with_computed_weights(void)
{
    dml_context *context = open_here(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *p = dml_parameter(g, "p", normal, 8, 8), *x = dml_input(g, "x", DML_F32, 8);
    dml_node *h = dml_dense_with(dml_dense(x, 8), dml_tanh(p), NULL);
    dml_node *loss = dml_softmax_cross_entropy(dml_dense_with(dml_tanh(dml_dense(h, 8)), p, NULL),
                                               dml_input(g, "t", DML_I32));
    const void *const inputs[] = { some_floats, some_labels };
    CHECK_INT(check_announcements(loss, inputs, 3),
              3); /* the second layer; p; the first, which w begins with */
    dml_close(context);
}

static void ranges_on_every_backend(void)
{
    ranges_with_computed_weights();
    ranges_of_a_chain();
    ranges_with_shared_weights();
    ranges_through_views();
}
EACH_BACKEND(ranges_on_every_backend)

static void a_listener_may_fail(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *h = dml_dense(dml_tanh(dml_dense(dml_input(g, "x", DML_F32, 4), 4)), 4);
    dml_program *program = dml_compile(dml_mean_squared_error(h, dml_input(g, "t", DML_F32, 4)), &train3);
    float copy[64];
    const void *const inputs[] = { some_floats, some_floats };
    announced a = { .context = context, .program = program, .at = 40, .copy = copy, .fail_at = 1 };
    const dml__gradient_listener listener = { announce, &a };
    CHECK_INT(program_train(program, 3, inputs, 1.0f, &listener, NULL), DML_ERROR_PEER);
    CHECK_INT(a.ranges, 1); /* nothing is announced after it */
    dml_close(context);
}

/* ---- what is run ---- */

/* Every number of rows gives what each sample gives alone. */
static void any_rows(void)
{
    enum { BATCH = 7 };
    dml_context *context = open_here(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "x", DML_F32, 5, 5, 2);
    dml_node *c = dml_relu(dml_conv2d(x, &(dml_conv2d_options){ .filters = 3, .padding = { 1, 1 } }));
    dml_node *y = dml_sigmoid(dml_dense(dml_flatten(dml_max_pool2d(c, NULL)), 3));
    dml_program *program = dml_compile(y, &(dml_program_options){ .batch = BATCH });
    CHECK_MESSAGE(program, "%s", dml_error(context));
    float in[BATCH * 50], alone[BATCH * 3], got[BATCH * 3 + 1];
    unsigned random = 3;
    test_fill(&random, in, BATCH * 50);
    for (int r = 0; r < BATCH; r++) {
        const void *const inputs[] = { in + r * 50 };
        CHECK_INT(dml_program_run(program, 1, inputs, 1, alone + r * 3), DML_OK);
    }
    const void *const inputs[] = { in };
    for (int rows = BATCH; rows >= 1; rows -= slow_here() ? 5 : 1) {
        got[rows * 3] = 42;
        poison(context, program->arena);
        CHECK_INT(dml_program_run(program, rows, inputs, 1, got), DML_OK);
        for (int i = 0; i < rows * 3; i++) CHECK_NEAR(got[i], alone[i], 1e-6);
        CHECK(got[rows * 3] == 42); /* no more is written than there is */
    }
    CHECK_INT(dml_program_run(program, 2, inputs, 1, NULL), DML_OK);
    dml_close(context);
}
EACH_BACKEND(any_rows)

/* A training and an inference program see the same w; two graphs and two contexts don't meet. */
static void shared_and_separate(void)
{
    dml_context *context[2] = { open_here(NULL), open_here(&(dml_options){ .seed = 1 }) };
    dml_program *forward[3];
    dml_graph *graph[3];
    float out[3][3];
    const void *const inputs[] = { some_floats };
    for (int i = 0; i < 3; i++) { /* graphs 0 and 1 in one context */
        graph[i] = dml_graph_create(context[i / 2]);
        dml_node *y = dml_dense(dml_input(graph[i], "x", DML_F32, 4), 1);
        dml_node *loss = dml_mean_squared_error(y, dml_input(graph[i], "t", DML_F32, 1));
        forward[i] = dml_compile(y, &infer3);
        dml_program *training = dml_compile(loss, &train3);
        CHECK_MESSAGE(forward[i] && training, "%s", dml_error(context[i / 2]));
        CHECK(training->g && !forward[i]->g && training->graph->w == forward[i]->graph->w);
        CHECK_INT(dml_program_run(forward[i], 3, inputs, 1, out[i]), DML_OK);
        const void *const both[] = { some_floats, some_floats };
        CHECK_INT(program_train(training, 3, both, 1.0f, NULL, NULL), DML_OK);
    }
    CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0); /* the same seed and model: the same w */
    CHECK(memcmp(out[0], out[2], sizeof out[0]) != 0); /* another seed */
    const float w[5] = { 1, 2, 3, 4, 5 };
    write_floats(context[0], graph[0]->w, w, 5);
    for (int i = 0; i < 3; i++) {
        float now[3];
        CHECK_INT(dml_program_run(forward[i], 3, inputs, 1, now), DML_OK);
        if (i == 0) CHECK_NEAR(now[0], 0.5 - 2 + 0.75 + 8 + 5, 1e-5);
        if (i > 0) CHECK(memcmp(now, out[i], sizeof now) == 0);
    }
    dml_close(context[0]);
    CHECK_INT(dml_program_run(forward[2], 3, inputs, 1, NULL), DML_OK);
    dml_close(context[1]);
}
EACH_BACKEND(shared_and_separate)

static void only_what_is_needed(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "x", DML_F32, 4), *other = dml_input(g, "other", DML_F32, 4);
    dml_node *unused = dml_softmax_cross_entropy(dml_dense(other, 3), dml_input(g, "label", DML_I32));
    dml_node *y = dml_dense(x, 2);
    dml_node *after = dml_tanh(dml_add(y, y));
    dml_program *program = dml_compile(y, &infer3),
                *train = dml_compile(dml_mean_squared_error(y, dml_input(g, "t", DML_F32, 2)), &train3);
    CHECK_MESSAGE(program && train && unused && after, "%s", dml_error(context));
    CHECK_INT(dml_program_inputs(program), 1); /* neither `other` nor `label` is asked for */
    CHECK(dml_program_input(program, 0) == x && !dml_program_input(program, 1) &&
          !dml_program_input(program, -1));
    CHECK_INT(dml_program_inputs(train), 2);
    CHECK_INT(program->slots, 4);
    CHECK_INT(dml_program_bytes(program), 64);
    const void *const inputs[] = { some_floats, some_floats };
    CHECK_INT(program_train(train, 3, inputs, 1, NULL, NULL), DML_OK);
    float gradient[25];
    read_floats(context, gradient, train->g, 25);
    for (int i = 0; i < 15; i++) CHECK(gradient[i] == 0); /* the unused layer's */
    for (int i = 15; i < 25; i++) CHECK(gradient[i] != 0);
    CHECK_INT(dml_program_inputs(NULL), 0);
    CHECK_INT(dml_program_bytes(NULL), 0);
    dml_program_destroy(NULL);
    dml_close(context);
}

/* Outputs that no op computed. */
static void leaves_and_views_as_outputs(void)
{
    dml_context *context = open_here(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "x", DML_F32, 2, 3), *t = dml_input(g, "t", DML_I32);
    dml_node *w = dml_parameter(g, "w", normal, 100, 6), *view = dml_flatten(w);
    float got[600], want[600];
    const void *const floats[] = { some_floats }, *const labels[] = { some_labels };
    dml_program *p = dml_compile(x, &infer3);
    CHECK_INT(dml_program_run(p, 3, floats, 1, got), DML_OK);
    CHECK(memcmp(got, some_floats, 18 * sizeof(float)) == 0);
    CHECK_INT(dml_program_run(dml_compile(dml_flatten(x), &infer3), 2, floats, 1, got), DML_OK);
    CHECK(memcmp(got, some_floats, 12 * sizeof(float)) == 0);
    CHECK_INT(dml_program_run(dml_compile(t, &infer3), 3, labels, 1, got), DML_OK);
    CHECK(memcmp(got, some_labels, sizeof some_labels) == 0);
    CHECK_INT(dml_program_run(dml_compile(w, &infer3), 1, NULL, 0, want), DML_OK);
    CHECK_INT(dml_program_run(dml_compile(view, &infer3), 1, NULL, 0, got), DML_OK);
    CHECK(memcmp(got, want, sizeof got) == 0 && got[599] != 0);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}
EACH_BACKEND(leaves_and_views_as_outputs)

/* A loss, twice and in several places, is a sum. */
static void losses_add_up(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *y = dml_dense(dml_input(g, "x", DML_F32, 4), 4), *t = dml_input(g, "t", DML_I32);
    dml_node *one = dml_softmax_cross_entropy(y, t), *three = dml_add(dml_add(one, one), one);
    dml_program *single = dml_compile(one, &train3), *triple = dml_compile(three, &train3);
    const void *const inputs[] = { some_floats, some_labels };
    float loss[2], gradient[2][20];
    CHECK_INT(program_train(single, 3, inputs, 1, NULL, &loss[0]), DML_OK);
    CHECK_INT(program_train(triple, 3, inputs, 1, NULL, &loss[1]), DML_OK);
    CHECK_NEAR(loss[1], 3 * loss[0], 1e-5);
    read_floats(context, gradient[0], single->g, 20);
    read_floats(context, gradient[1], triple->g, 20);
    for (int i = 0; i < 20; i++) CHECK_NEAR(gradient[1][i], 3 * gradient[0][i], 1e-6);
    dml_close(context);
}

int main(void)
{
    RUN_EACH(ranges_on_every_backend);
    RUN(a_listener_may_fail);
    RUN_EACH(any_rows);
    RUN_EACH(shared_and_separate);
    RUN(only_what_is_needed);
    RUN_EACH(leaves_and_views_as_outputs);
    RUN(losses_add_up);
    return test_report("graph/program");
}
