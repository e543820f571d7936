/* A net that is applied once more: the same numbers on the same input, the same training as one that is
   written twice, and nothing left of what is refused. */
#include "graph/apply.h"

#include "ops/op_custom.h"
#include "train/trainer.h"

#include "random_graph.h"
#include "refused.h"

enum { ROWS = 3, GRAPHS = 60, STEPS = 3 };

static size_t predict(dml_context *context, dml_node *output, float **out)
{
    dml_program *p = dml_compile(output, &(dml_program_options){ .batch = ROWS });
    void *inputs[MAX_INPUTS];
    CHECK_MESSAGE(p, "graph %u: %s", graph_seed, dml_error(context));
    const size_t n = reference_count(output, ROWS);
    *out = (float *)calloc(n, sizeof **out);
    fill_inputs(p, ROWS, inputs);
    CHECK_INT(dml_program_run(p, ROWS, (const void *const *)inputs, dml_program_inputs(p), *out), DML_OK);
    for (int i = 0; i < dml_program_inputs(p); i++) free(inputs[i]);
    dml_program_destroy(p);
    return n;
}

/* To x itself, before anything is laid out and after. Where the graph makes nothing of x, nothing is applied.
 */
static void random_graphs(void)
{
    const unsigned graphs = slow_here() ? GRAPHS / 10 : GRAPHS;
    unsigned applied = 0;
    for (graph_seed = 1; graph_seed <= graphs; graph_seed++) {
        float *want, *got;
        dml_context *context = open_here(&(dml_options){ .threads = 1 });
        dml_graph *g = dml_graph_create(context);
        dml_node *y = random_graph(g), *x = dml_graph_find(g, "x"), *first = dml_apply(y, x, x);
        if (!first) {
            CHECK_CONTAINS(dml_error(context), "isn't made of 'x'");
            dml_close(context);
            continue;
        }
        applied++;
        const size_t parameters = dml_graph_parameter_count(g), n = predict(context, y, &want);
        dml_node *second = dml_apply(y, x, x);
        for (int i = 0; i < 2; i++) {
            dml_node *again = i ? second : first;
            CHECK_MESSAGE(again && again != y, "graph %u: %s", graph_seed, dml_error(context));
            CHECK(predict(context, again, &got) == n && again->batched == y->batched);
            CHECK_MESSAGE(memcmp(want, got, n * sizeof *got) == 0, "graph %u: other numbers", graph_seed);
            free(got);
        }
        CHECK(dml_graph_parameter_count(g) == parameters);
        free(want);
        dml_close(context);
    }
    CHECK_MESSAGE(applied > graphs * 3 / 4, "%u of %u", applied, graphs);
}
EACH_BACKEND(random_graphs)

/* ---- as if it were written twice ---- */

static dml_node *net(dml_node *x, dml_node *const w[3], dml_node *shift)
{
    return dml_dense_with(dml_add(dml_tanh(dml_dense_with(x, w[0], w[1])), shift), w[2], NULL);
}

static void train(bool applied, float loss[STEPS], float w[])
{
    float x[ROWS][4], z[ROWS][4], t[ROWS][2], s[ROWS][5];
    unsigned seed = 3;
    test_fill(&seed, x[0], ROWS * 4);
    test_fill(&seed, z[0], ROWS * 4);
    test_fill(&seed, t[0], ROWS * 2);
    test_fill(&seed, s[0], ROWS * 5);
    dml_context *context = open_here(&(dml_options){ .threads = 1 });
    dml_graph *g = dml_graph_create(context);
    dml_node *one = dml_input(g, "x", DML_F32, 4), *two = dml_input(g, "z", DML_F32, 4);
    dml_node *shift = dml_input(g, "s", DML_F32, 5);
    dml_node *const p[3] = { dml_parameter(g, "w", dml_init_he(4), 5, 4),
                             dml_parameter(g, "b", dml_init_constant(0), 5),
                             dml_parameter(g, "v", dml_init_he(5), 2, 5) };
    dml_node *a = net(one, p, shift), *b = applied ? dml_apply(a, one, two) : net(two, p, shift);
    CHECK_MESSAGE(b, "%s", dml_error(context));
    dml_node *end = dml_mean_squared_error(dml_sub(a, b), dml_input(g, "t", DML_F32, 2));
    dml_trainer *trainer =
        dml_trainer_create(end, &(dml_trainer_options){ .batch = ROWS, .optimizer = dml_sgd(0.1f, 0.5f) });
    for (int i = 0; i < STEPS; i++)
        CHECK_INT(dml_trainer_step(trainer, ROWS, DML_INPUTS(x, z, s, t), &loss[i]), DML_OK);
    memcpy(w, dml_graph_get(g, 0, dml_graph_parameter_count(g)), dml_graph_parameter_count(g) * sizeof *w);
    dml_close(context);
}

static void as_if_written_twice(void)
{
    float loss[2][STEPS], w[2][5 * 4 + 5 + 2 * 5];
    for (int applied = 0; applied < 2; applied++) train(applied, loss[applied], w[applied]);
    CHECK(memcmp(loss[0], loss[1], sizeof loss[0]) == 0);
    CHECK(memcmp(w[0], w[1], sizeof w[0]) == 0);
}
EACH_BACKEND(as_if_written_twice)

/* ---- refusals ---- */

static int calls_left;
static dml_status may_fail(const dml_custom_call *call)
{
    call->output[0] = 0;
    return DML_OK;
}

/* The call-th allocation from now on fails. */
static void *failing_allocate(void *user, size_t bytes)
{
    (void)user;
    return calls_left-- > 0 ? malloc(bytes) : NULL;
}
static void failing_release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static void refusals(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context), *elsewhere = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 4), *z = dml_input(graph, "z", DML_F32, 4);
    dml_node *wide = dml_input(graph, "wide", DML_F32, 5), *i = dml_input(graph, "i", DML_I32, 4);
    dml_node *p = dml_parameter(graph, "p", dml_init_constant(1), 4), *y = dml_relu(dml_dense(x, 3));
    dml_node *far = dml_input(elsewhere, "x", DML_F32, 4);
    CHECK(!dml_apply(NULL, x, z) && !dml_apply(y, NULL, z) && !dml_apply(y, x, NULL));
    CHECK_STRING(dml_error(context), "");
    REFUSED(dml_apply(y, x, wide), DML_ERROR_SHAPE,
            "apply: 'wide' is f32 5, and 'x', in whose place it is asked for, f32 4");
    REFUSED(dml_apply(y, x, i), DML_ERROR_SHAPE, "'i' is i32 4");
    REFUSED(dml_apply(y, x, p), DML_ERROR_SHAPE, "'p' is f32 4 for the whole batch");
    REFUSED(dml_apply(y, x, far), DML_ERROR_ARGUMENT, "of different graphs");
    REFUSED(dml_apply(y, z, x), DML_ERROR_ARGUMENT, "apply: 'relu_1' isn't made of 'z'");
    REFUSED(dml_apply(x, y, y), DML_ERROR_ARGUMENT, "apply: 'x' isn't made of 'relu_1'");
    CHECK(dml_apply(x, x, z) == z);
    const dml_custom_options own = { .forward = may_fail, .name = "own" };
    dml_node *c = dml_custom(&x, 1, &own), *again = dml_apply(c, x, z);
    CHECK_STRING(dml_node_name(again), "custom_2"); /* a name is given once */
    CHECK(dml_node_input(again, 0) == z && dml_node_input(c, 0) == x);
    dml_close(context);
}

/* Whatever allocation fails, the graph is as it was. */
static void no_memory(void)
{
    bool done = false;
    for (int calls = 0; !done && calls < 100; calls++) {
        calls_left = INT32_MAX;
        const dml_allocator failing = { failing_allocate, failing_release, NULL };
        dml_context *context = dml_open(&(dml_options){ .threads = 1, .allocator = failing });
        dml_graph *g = dml_graph_create(context);
        dml_node *x = dml_input(g, "x", DML_F32, 4), *y = dml_dense(dml_relu(dml_dense(x, 3)), 2);
        const dml_node *last = g->last;
        calls_left = calls;
        done = dml_apply(y, x, x) != NULL;
        calls_left = INT32_MAX;
        CHECK(done || (g->last == last && dml_status_of(context) == DML_ERROR_MEMORY));
        dml_close(context);
    }
    CHECK(done);
}

int main(void)
{
    RUN_EACH(random_graphs);
    RUN_EACH(as_if_written_twice);
    RUN(refusals);
    RUN(no_memory);
    return test_report("graph/apply");
}
