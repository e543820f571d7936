/* Recurrent layers beside the same made of small ops, what the builders make of options, and what they
   refuse. Values and gradients are ops_test's too. */
#include "ops/op_recurrent.h"

#include "graph/node.h"
#include "graph/program.h"
#include "graph/program_internal.h"
#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_shape.h"

#include "../graph/backends.h"
#include "../graph/refused.h"

/* ---- of small ops ---- */

/* A step: what becomes of h (1, hidden) and c. */
static void small_step(dml_cell cell, dml_node *x, dml_node *const *p, dml_node **h, dml_node **c)
{
    const int gates = cell == DML_CELL_LSTM ? 4 : cell == DML_CELL_GRU ? 3 : 1;
    dml_node *ih = dml_dense_with(x, p[0], p[2]), *hh = dml_dense_with(*h, p[1], p[3]), *i[4], *s[4];
    if (cell == DML_CELL_GRU) {
        dml_split(ih, -1, gates, i);
        dml_split(hh, -1, gates, s);
        dml_node *r = dml_sigmoid(dml_add(i[0], s[0])), *z = dml_sigmoid(dml_add(i[1], s[1]));
        dml_node *n = dml_tanh(dml_add(i[2], dml_mul(r, s[2])));
        *h = dml_add(n, dml_mul(z, dml_sub(*h, n)));
        return;
    }
    dml_node *sum = dml_add(ih, hh);
    if (cell != DML_CELL_LSTM) {
        *h = cell == DML_CELL_RELU ? dml_relu(sum) : dml_tanh(sum);
        return;
    }
    dml_split(sum, -1, gates, i);
    *c = dml_add(dml_mul(dml_sigmoid(i[1]), *c), dml_mul(dml_sigmoid(i[0]), dml_tanh(i[2])));
    *h = dml_mul(dml_sigmoid(i[3]), dml_tanh(*c));
}

static dml_node *of_small_ops(dml_cell cell, dml_node *x, bool reverse, dml_node *const *p, dml_node *h0,
                              dml_node *c0)
{
    const int steps = x->shape.dims[0], hidden = p[1]->shape.dims[1];
    dml_node *h = dml_reshape(h0, dml_shape_of(1, hidden)), *c = dml_reshape(c0, dml_shape_of(1, hidden));
    dml_node *out[8];
    for (int s = 0; s < steps; s++) {
        const int t = reverse ? steps - 1 - s : s;
        small_step(cell, dml_slice(x, 0, t, t + 1), p, &h, &c);
        out[t] = h;
    }
    return dml_concat(out, steps, 0);
}

static dml_node *of_one_op(dml_cell cell, dml_node *x, bool reverse, dml_node *const *p, dml_node *h0,
                           dml_node *c0)
{
    dml_recurrent_options o = { .reverse = reverse, .relu = cell == DML_CELL_RELU, .h0 = h0 };
    if (cell == DML_CELL_GRU) return dml_gru_with(x, p[0], p[1], p[2], p[3], &o);
    if (cell != DML_CELL_LSTM) return dml_rnn_with(x, p[0], p[1], p[2], p[3], &o);
    o.c0 = c0;
    return dml_lstm_with(x, p[0], p[1], p[2], p[3], &o);
}

static double largest_difference(const float *a, const float *b, size_t n, double *largest)
{
    double most = 0;
    *largest = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, isfinite(a[i]) ? fabs((double)a[i] - (double)b[i]) : HUGE_VAL);
        *largest = fmax(*largest, fabs((double)b[i]));
    }
    return most;
}

/* Both on the same parameters, of an input and of initial states that are parameters' too. */
static void compare_with_small_ops(dml_cell cell, bool reverse)
{
    enum { BATCH = 5, STEPS = 4, IN = 3, HIDDEN = 10 };
    dml_context *context = open_here(&(dml_options){ .threads = 2, .seed = 3 });
    dml_graph *graph = dml_graph_create(context);
    const dml_initializer some = dml_init_uniform(-0.7f, 0.7f);
    const int rows = HIDDEN * (cell == DML_CELL_LSTM ? 4 : cell == DML_CELL_GRU ? 3 : 1);
    dml_node *x = dml_dense(dml_input(graph, "x", DML_F32, STEPS, 2), IN);
    dml_node *state = dml_dense(dml_input(graph, "s", DML_F32, 3), 2 * HIDDEN), *parts[2];
    dml_split(state, 0, 2, parts);
    dml_node *const p[] = { dml_parameter(graph, NULL, some, rows, IN),
                            dml_parameter(graph, NULL, some, rows, HIDDEN),
                            dml_parameter(graph, NULL, some, rows), dml_parameter(graph, NULL, some, rows) };
    dml_node *target = dml_input(graph, "t", DML_F32, STEPS, HIDDEN), *out[2];
    out[0] = of_one_op(cell, x, reverse, p, parts[0], parts[1]);
    out[1] = of_small_ops(cell, x, reverse, p, parts[0], parts[1]);
    unsigned random = 5;
    float xs[BATCH * STEPS * 2], ss[BATCH * 3], ts[BATCH * STEPS * HIDDEN], y[2][BATCH * STEPS * HIDDEN];
    test_fill(&random, xs, BATCH * STEPS * 2);
    test_fill(&random, ss, BATCH * 3);
    test_fill(&random, ts, BATCH * STEPS * HIDDEN);
    float *g[2] = { NULL, NULL };
    size_t count = 0;
    for (int k = 0; k < 2; k++) {
        dml_node *loss = dml_mean_squared_error(out[k], target);
        dml_program *predict = dml_compile(out[k], &(dml_program_options){ .batch = BATCH });
        dml_program *train = dml_compile(loss, &(dml_program_options){ .batch = BATCH, .training = true });
        CHECK_MESSAGE(predict && train, "%s", dml_error(context));
        if (!predict || !train) break;
        count = dml_graph_trained_count(graph);
        g[k] = (float *)malloc(count * sizeof(float));
        const dml__training training = { 0, 0, 1.0f, false, NULL };
        const void *const inputs[] = { xs, ss, ts };
        CHECK_INT(dml_program_run(predict, BATCH, inputs, 2, y[k]), DML_OK);
        CHECK_INT(dml__program_train(train, BATCH, inputs, &training, NULL), DML_OK);
        read_floats(context, g[k], train->g, count);
    }
    double largest, difference = largest_difference(y[0], y[1], BATCH * STEPS * HIDDEN, &largest);
    CHECK_MESSAGE(difference <= 1e-6, "cell %d: the output differs by %.2g", (int)cell, difference);
    if (g[1]) {
        difference = largest_difference(g[0], g[1], count, &largest);
        CHECK_MESSAGE(difference <= 3e-6 * largest, "cell %d: gradients differ by %.2g of %.2g", (int)cell,
                      difference, largest);
    }
    free(g[0]), free(g[1]);
    dml_close(context);
}

static void small_ops_make_the_same(void)
{
    for (int cell = 0; cell < 4; cell++)
        if (!slow_here() || cell > 1) compare_with_small_ops((dml_cell)cell, cell % 2 == 0);
}
EACH_BACKEND(small_ops_make_the_same)

/* ---- several layers ---- */

/* Two layers in both directions are four of one, on the parameters of PyTorch's names. */
static void layers_are_made_of_one(void)
{
    enum { BATCH = 3, STEPS = 4, IN = 2, HIDDEN = 5, OUT = STEPS * 2 * HIDDEN + 4 * HIDDEN };
    dml_context *context = dml_open(&(dml_options){ .threads = 2 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, STEPS, IN), *lengths = dml_input(graph, "n", DML_I32);
    dml_node *h0 = dml_input(graph, "h0", DML_F32, 4, HIDDEN), *out[2], *h_n;
    const dml_recurrent_options two = {
        .layers = 2, .bidirectional = true, .lengths = lengths, .h0 = h0, .h_n = &h_n
    };
    dml_push_scope(graph, "encoder");
    out[0] = dml_gru(x, HIDDEN, &two);
    dml_pop_scope(graph);
    out[0] = dml_concat((dml_node *const[]){ dml_flatten(out[0]), dml_flatten(h_n) }, 2, 0);
    dml_node *y = x, *states[5];
    for (int i = 0; i < 4; i += 2) {
        dml_node *side[2];
        for (int d = 0; d < 2; d++) {
            dml_node *p[4];
            static const char *const parts[] = { "weight_ih", "weight_hh", "bias_ih", "bias_hh" };
            for (int k = 0; k < 4; k++) {
                char name[80];
                snprintf(name, sizeof name, "encoder.gru_1.%s_l%d%s", parts[k], i / 2, d ? "_reverse" : "");
                p[k] = dml_graph_find(graph, name);
                CHECK_MESSAGE(p[k], "%s", dml_error(context));
            }
            const dml_recurrent_options one = { .reverse = d == 1,
                                                .lengths = lengths,
                                                .h0 = dml_slice(h0, 0, i + d, i + d + 1),
                                                .h_n = &states[1 + i + d] };
            side[d] = dml_gru_with(y, p[0], p[1], p[2], p[3], &one);
        }
        y = dml_concat(side, 2, -1);
    }
    states[0] = dml_flatten(y);
    for (int i = 1; i < 5; i++) states[i] = dml_flatten(states[i]);
    out[1] = dml_concat(states, 5, 0);
    float xs[BATCH * STEPS * IN], hs[BATCH * 4 * HIDDEN], got[2][BATCH * OUT];
    const int32_t ns[BATCH] = { 4, 2, 0 };
    unsigned random = 9;
    test_fill(&random, xs, BATCH * STEPS * IN);
    test_fill(&random, hs, BATCH * 4 * HIDDEN);
    for (int k = 0; k < 2; k++) {
        dml_program *p = dml_compile(out[k], &(dml_program_options){ .batch = BATCH });
        CHECK_MESSAGE(p, "%s", dml_error(context));
        CHECK_INT(dml_program_run(p, BATCH, DML_INPUTS(xs, ns, hs), got[k]), DML_OK);
        CHECK_STRING(dml_error(context), "");
    }
    CHECK(memcmp(got[0], got[1], sizeof got[0]) == 0);
    for (int i = 0; i < STEPS * 2 * HIDDEN; i++) CHECK(got[0][2 * OUT + i] == 0); /* of no steps */
    for (int i = 0; i < 4 * HIDDEN; i++)
        CHECK(got[0][2 * OUT + STEPS * 2 * HIDDEN + i] == hs[2 * 4 * HIDDEN + i]);
    float w[3 * HIDDEN * IN];
    dml_node *first = dml_graph_find(graph, "encoder.gru_1.weight_ih_l0");
    CHECK_INT(dml_parameter_read(first, w, 3 * HIDDEN * IN), DML_OK);
    float least = 1, most = -1;
    for (int i = 0; i < 3 * HIDDEN * IN; i++) least = fminf(least, w[i]), most = fmaxf(most, w[i]);
    CHECK(least >= -0.4473f && most <= 0.4473f && least < -0.2f && most > 0.2f); /* 1 / sqrt(5) */
    dml_close(context);
}

/* ---- what is refused ---- */

#define OPTIONS(...) (&(dml_recurrent_options){ __VA_ARGS__ })

static void bad_layers(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    const dml_initializer zero = dml_init_constant(0);
    dml_node *x = dml_input(graph, "x", DML_F32, 6, 4), *row = dml_input(graph, "row", DML_F32, 4);
    dml_node *words = dml_input(graph, "words", DML_I32, 6, 4), *n = dml_input(graph, "n", DML_I32);
    dml_node *many = dml_input(graph, "many", DML_F32, 1000000, 1);
    dml_node *w = dml_parameter(graph, NULL, zero, 12, 4), *u = dml_parameter(graph, NULL, zero, 12, 3);
    dml_node *b = dml_parameter(graph, NULL, zero, 12), *h = dml_parameter(graph, NULL, zero, 3);
    dml_node *c = (dml_node *)(void *)&zero, *constant = dml_parameter(graph, NULL, zero, 6, 4);
    CHECK(!dml_lstm(NULL, 3, OPTIONS(.c_n = &c)) && !c);
    CHECK(!dml_gru_with(NULL, w, u, b, b, NULL));
    REFUSED(dml_lstm(row, 3, NULL), DML_ERROR_SHAPE,
            "lstm 'lstm_1': its input is f32 4; it takes sequences of f32, steps x features");
    REFUSED(dml_gru(words, 3, NULL), DML_ERROR_SHAPE, "its input is i32 6 x 4;");
    REFUSED(dml_rnn(constant, 3, NULL), DML_ERROR_SHAPE, "its input is f32 6 x 4 for the whole batch;");
    REFUSED(dml_lstm(x, 0, NULL), DML_ERROR_ARGUMENT, "lstm: 0 hidden units");
    REFUSED(dml_lstm(x, INT32_MAX / 4 + 1, NULL), DML_ERROR_ARGUMENT, "hidden units");
    REFUSED(dml_lstm(x, 30000, NULL), DML_ERROR_SHAPE, "more than 2147483647 elements");
    REFUSED(dml_lstm(many, 1000, NULL), DML_ERROR_SHAPE, "the gates of 1000000 steps x 1000 are more than");
    REFUSED(dml_gru(x, 3, OPTIONS(.layers = -1)), DML_ERROR_ARGUMENT, "gru: -1 layers asked for, 1 to 64");
    REFUSED(dml_gru(x, 3, OPTIONS(.layers = 33, .bidirectional = true)), DML_ERROR_ARGUMENT, "1 to 32");
    REFUSED(dml_rnn(x, 3, OPTIONS(.bidirectional = true, .reverse = true)), DML_ERROR_ARGUMENT,
            "in both directions and in reverse alone");
    REFUSED(dml_gru(x, 3, OPTIONS(.relu = true)), DML_ERROR_ARGUMENT, "gru: relu asked for");
    REFUSED(dml_gru(x, 3, OPTIONS(.layers = 2, .dropout = 1)), DML_ERROR_ARGUMENT, "below 1");
    REFUSED(dml_gru(x, 3, OPTIONS(.layers = 2, .dropout = NAN)), DML_ERROR_ARGUMENT, "below 1");
    REFUSED(dml_gru(x, 3, OPTIONS(.dropout = 0.5f)), DML_ERROR_ARGUMENT, "between layers, of one layer");
    REFUSED(dml_gru(x, 3, OPTIONS(.c0 = h)), DML_ERROR_ARGUMENT, "only an lstm has a state c");
    REFUSED(dml_rnn(x, 3, OPTIONS(.c_n = &c)), DML_ERROR_ARGUMENT, "only an lstm has a state c");
    REFUSED(dml_lstm(x, 4, OPTIONS(.h0 = h)), DML_ERROR_SHAPE, "its h0 is f32 3, it must be f32 4");
    REFUSED(dml_lstm(x, 4, OPTIONS(.c0 = n)), DML_ERROR_SHAPE, "its c0 'n' is scalar; for 1 layers");
    REFUSED(dml_lstm(x, 3, OPTIONS(.layers = 2, .c0 = h)), DML_ERROR_SHAPE,
            "is 3; for 2 layers in 1 directions it must be 2 x 3");
    REFUSED(dml_lstm(x, 3, OPTIONS(.lengths = row)), DML_ERROR_SHAPE, "its lengths are f32 4;");
    REFUSED(dml_lstm(x, 3, OPTIONS(.lengths = words)), DML_ERROR_SHAPE, "its lengths are i32 6 x 4;");
    REFUSED(dml_lstm_with(x, w, w, NULL, NULL, NULL), DML_ERROR_SHAPE,
            "its weights are 12 x 4 and 12 x 4; for an input of 4 features they must be 4 hidden x 4 and "
            "4 hidden x hidden");
    REFUSED(dml_gru_with(x, u, w, NULL, NULL, NULL), DML_ERROR_SHAPE, "they must be 3 hidden x 4");
    REFUSED(dml_lstm_with(x, w, x, NULL, NULL, NULL), DML_ERROR_SHAPE, "its weights are");
    REFUSED(dml_lstm_with(x, w, u, b, NULL, NULL), DML_ERROR_ARGUMENT, "one bias is given");
    REFUSED(dml_lstm_with(x, w, u, b, h, NULL), DML_ERROR_SHAPE, "its bias is 3, it must be 12");
    REFUSED(dml_lstm_with(x, NULL, u, NULL, NULL, NULL), DML_ERROR_ARGUMENT, "its input 2 of 3 is NULL");
    REFUSED(dml_lstm_with(x, w, NULL, NULL, NULL, NULL), DML_ERROR_ARGUMENT, "its input 3 of 3 is NULL");
    REFUSED(dml_lstm_with(x, w, u, NULL, NULL, OPTIONS(.layers = 2)), DML_ERROR_ARGUMENT,
            "parameters for one are given");
    CHECK(dml_lstm_with(x, w, u, b, b, OPTIONS(.h0 = h, .c0 = h, .lengths = n)));
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

/* Found before anything is run, on every backend. */
static int allocations_left; /* below 0: without end */

static void *scarce_allocate(void *user, size_t bytes)
{
    (void)user;
    if (allocations_left == 0) return NULL;
    if (allocations_left > 0) allocations_left--;
    return malloc(bytes);
}

static void scarce_release(void *user, void *memory)
{
    (void)user;
    free(memory);
}

/* Wherever the memory ends, nothing of the layer is left, nor a state of it. */
static void a_layer_is_whole_or_not_there(void)
{
    allocations_left = -1;
    dml_context *context =
        dml_open(&(dml_options){ .threads = 1, .allocator = { scarce_allocate, scarce_release, NULL } });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 6, 4), *y = NULL;
    for (int n = 0; !y && n < 100; n++) {
        dml_node *h_n = x, *c_n = x;
        allocations_left = n;
        y = dml_lstm(x, 3, OPTIONS(.layers = 2, .bidirectional = true, .h_n = &h_n, .c_n = &c_n));
        allocations_left = -1;
        CHECK(y ? h_n && c_n : !h_n && !c_n);
        CHECK_INT(dml_status_of(context), y ? DML_OK : DML_ERROR_MEMORY);
        CHECK_INT(dml_graph_parameters(graph), y ? 16 : 0);
        if (!y) CHECK_INT(graph->nodes, 1);
        dml_clear_error(context);
    }
    CHECK(y);
    dml_close(context);
}

static void lengths_out_of_range(void)
{
    enum { BATCH = 2, STEPS = 3 };
    dml_context *context = open_here(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, STEPS, 1), *n = dml_input(graph, "n", DML_I32);
    dml_node *y = dml_gru(x, 2, OPTIONS(.lengths = n, .last_only = true));
    dml_program *p = dml_compile(y, &(dml_program_options){ .batch = BATCH });
    CHECK_STRING(dml_error(context), "");
    const float xs[BATCH * STEPS] = { 1, 2, 3, 4, 5, 6 };
    float out[BATCH * 2];
    int32_t lengths[BATCH] = { 0, STEPS };
    CHECK_INT(dml_program_run(p, BATCH, DML_INPUTS(xs, lengths), out), DML_OK);
    CHECK(out[0] == 0 && out[1] == 0 && out[2] != 0);
    static const int32_t bad[] = { STEPS + 1, -1, INT32_MAX };
    for (int i = 0; i < 3; i++) {
        lengths[1] = bad[i];
        CHECK_INT(dml_program_run(p, BATCH, DML_INPUTS(xs, lengths), out), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "it must be in 0 .. 3");
        dml_clear_error(context);
    }
    dml_close(context);
}
EACH_BACKEND(lengths_out_of_range)

/* What the work would take is counted before it is asked for. */
static void more_than_there_is(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *y = dml_lstm(dml_input(graph, "x", DML_F32, 500000, 1), 1000, OPTIONS(.last_only = true));
    CHECK(y);
    CHECK(!dml_compile(y, &(dml_program_options){ .batch = INT32_MAX }));
    CHECK_INT(dml_status_of(context), DML_ERROR_MEMORY);
    dml_close(context);
}

int main(void)
{
    RUN_EACH(small_ops_make_the_same);
    RUN(layers_are_made_of_one);
    RUN(bad_layers);
    RUN(a_layer_is_whole_or_not_there);
    RUN_EACH(lengths_out_of_range);
    RUN(more_than_there_is);
    return test_report("ops/op_recurrent");
}
