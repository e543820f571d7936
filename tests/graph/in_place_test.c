/* Memory that is used again, ops that write over their inputs, and ops done together, change no number: each
   program is compared with one whose blocks share nothing, both starting from an arena full of NaN. */
#include "graph/program.h"

#include "graph/weights.h"

#include "ops/op_conv2d.h"

#include "ops_cases.h"
#include "random_graph.h"

/* ---- the same numbers, bit for bit ---- */

/* Runs a program of `loss` and of `output` on an arena full of NaN; all that comes out, one after another. */
static size_t run_poisoned(subject *s, dml_program *forward, dml_program *training, int rows,
                           void *const *inputs, float *out)
{
    const size_t n = reference_count(s->output, rows);
    poison(s->context, forward->arena);
    poison(s->context, training->arena);
    reset_parameters(s);
    CHECK_INT(dml_program_run(forward, rows, (const void *const *)inputs, forward->inputs, out), DML_OK);
    CHECK_INT(program_train(training, rows, (const void *const *)inputs, 2.0f, NULL, out + n), DML_OK);
    read_floats(s->context, out + n + 1, training->g, s->count);
    return n + 1 + s->count;
}

/* A sum over what the caller's arrays hold: programs read them where they lie. */
static uint32_t bits_of(const dml_program *p, int rows, void *const *inputs)
{
    uint32_t sum = 0;
    for (int i = 0; i < p->inputs; i++) {
        const uint32_t *bits = (const uint32_t *)inputs[i];
        for (size_t k = 0; k < reference_count(p->input[i], rows); k++) sum = sum * 31 + bits[k];
    }
    return sum;
}

static void compare_with_disjoint(const model *which)
{
    subject s;
    if (open_subject(&s, which)) {
        const int batch = which->batch;
        dml_program *forward = dml__compile_disjoint(s.output, &(dml_program_options){ .batch = batch });
        dml_program *training =
            dml__compile_disjoint(s.loss, &(dml_program_options){ .batch = batch, .training = true });
        CHECK(dml_program_bytes(forward) >= dml_program_bytes(s.forward));
        CHECK(dml_program_bytes(training) >= dml_program_bytes(s.training));
        const size_t most = reference_count(s.output, batch) + 1 + s.count;
        float *got = (float *)malloc(most * sizeof *got), *want = (float *)malloc(most * sizeof *want);
        for (int rows = batch; rows >= 1; rows -= batch > 1 && !slow_here() ? batch - 1 : batch) {
            void *inputs[MAX_INPUTS] = { NULL };
            reference r;
            reference_open(&r, s.loss->graph, rows, s.w64);
            make_inputs(&s, s.training, rows, &r, inputs);
            const uint32_t before = bits_of(s.training, rows, inputs);
            const size_t n = run_poisoned(&s, s.forward, s.training, rows, inputs, got);
            CHECK_MESSAGE(bits_of(s.training, rows, inputs) == before, "%s: inputs changed", which->name);
            run_poisoned(&s, forward, training, rows, inputs, want);
            CHECK_MESSAGE(memcmp(got, want, n * sizeof *got) == 0, "%s, %d rows: the plan changes numbers",
                          which->name, rows);
            for (size_t i = 0; i < n; i++) CHECK_MESSAGE(isfinite(got[i]), "%s: a NaN", which->name);
            for (int i = 0; i < MAX_INPUTS; i++) free(inputs[i]);
            reference_close(&r);
        }
        free(got);
        free(want);
    }
    close_subject(&s);
}

static void every_case(void)
{
    for (int c = 0; c < CASES; c += slow_here() || TEST_EMULATOR ? 12 : 1)
        compare_with_disjoint(&cases[c].model);
}

static void random_graphs_of_all_ops(void)
{
    const model m = { "random graph", random_graph, 3 };
    for (graph_seed = 1; graph_seed <= (slow_here() || TEST_EMULATOR ? 1
                                        : cpu_here()                 ? 40
                                                                     : 4);
         graph_seed++) {
        compare_with_disjoint(&m);
        if (!test__ok) printf("that was graph %u\n", graph_seed);
    }
}

/* Of one kind of op: a launch takes long where it isn't the CPU's. */
static unsigned random_graphs_here(void)
{
    return slow_here() || TEST_EMULATOR ? 2 : cpu_here() ? 100 : 10;
}

/* Mostly ops that may work in place, on inputs, parameters and each other, views between them; what comes out
   is sometimes such an op itself. */
static dml_node *random_elementwise(dml_graph *g)
{
    enum { NODES = 20 };
    unsigned random = graph_seed * 6151 + 5;
    dml_node *node[NODES], *w = dml_parameter(g, NULL, normal, 4, 4), *p = dml_parameter(g, NULL, normal, 4);
    node[0] = dml_input(g, "x", DML_F32, 4);
    node[1] = dml_input(g, "y", DML_F32, 2, 2);
    node[2] = dml_dense_with(node[0], w, dml_tanh(dml_add(p, dml_flatten(p))));
    node[3] = dml_flatten(node[1]);
    for (int i = 4; i < NODES; i++) {
        /* Near ones, so that chains arise, and now and then one from far back. */
        const unsigned back = test_random(&random) % 8 ? 1 + test_random(&random) % 3 : 1 + (unsigned)i / 2;
        dml_node *a = node[back < (unsigned)i - 2 ? (unsigned)i - back : 2],
                 *b = node[2 + test_random(&random) % (unsigned)(i - 2)];
        switch (test_random(&random) % 15) {
        case 9: node[i] = dml_tanh(dml_mul(a, b)); break;
        case 10: node[i] = dml_sub(b, a); break;
        case 11: node[i] = dml_where(dml_less(a, b), a, dml_sigmoid(b)); break;
        case 12: node[i] = dml_gelu(a); break;
        case 13: node[i] = dml_mul(a, p); break;
        case 14: node[i] = dml_relu(dml_maximum(dml_affine(a, -0.5f, 0.25f), b)); break;
        case 0: node[i] = dml_relu(a); break;
        case 1: node[i] = dml_tanh(a); break;
        case 2: node[i] = dml_sigmoid(a); break;
        case 3: node[i] = dml_add(a, a); break;
        case 4: node[i] = dml_add(a, dml_flatten(a)); break;
        case 5: node[i] = dml_add(a, b); break;
        case 6: node[i] = dml_add(b, dml_relu(a)); break;
        case 7: node[i] = dml_tanh(dml_flatten(a)); break;
        default: node[i] = dml_dense_with(a, w, NULL);
        }
    }
    dml_node *y = dml_add(node[NODES - 1], dml_add(node[2], node[NODES - 2]));
    switch (graph_seed % 4) {
    case 0: return y;
    case 1: return dml_relu(dml_flatten(y));
    case 2: return dml_flatten(dml_tanh(y));
    default: return dml_add(dml_mean_squared_error(y, node[3]), dml_mean_squared_error(dml_tanh(y), y));
    }
}

static void random_graphs_of_elements(void)
{
    const model m = { "random elementwise graph", random_elementwise, 3 };
    for (graph_seed = 1; graph_seed <= random_graphs_here(); graph_seed++) {
        compare_with_disjoint(&m);
        if (!test__ok) printf("that was graph %u\n", graph_seed);
    }
}

/* Images through what residual networks are made of, in any order: relus behind each op that takes one, pools
   behind them, sums whose parts others read or don't. */
static dml_node *random_residual(dml_graph *g)
{
    enum { NODES = 14 };
    unsigned random = graph_seed * 4801 + 11;
    const dml_conv2d_options layer = { .filters = 5, .padding = { 1, 1 }, .no_bias = true };
    const dml_pool2d_options same = { .kernel = { 3, 3 }, .stride = { 1, 1 }, .padding = { 1, 1 } };
    const dml_batch_norm_options even = { .epsilon = 0.1f };
    dml_node *node[NODES];
    node[0] = dml_conv2d(dml_input(g, "x", DML_F32, 4, 5, 2), &layer);
    node[1] = dml_batch_norm(node[0], &even);
    for (int i = 2; i < NODES; i++) {
        dml_node *a = node[i - 1], *b = node[test_random(&random) % (unsigned)i];
        switch (test_random(&random) % 8) {
        case 0: node[i] = dml_conv2d(a, &layer); break;
        case 1: node[i] = dml_batch_norm(a, &even); break;
        case 2:
        case 3: node[i] = dml_relu(a); break;
        case 4: node[i] = dml_max_pool2d(a, &same); break;
        case 5: node[i] = dml_add(b, a); break;
        default: node[i] = dml_add(a, b);
        }
    }
    return dml_max_pool2d(dml_relu(dml_add(node[NODES - 1], node[NODES - 2])), NULL);
}

static void random_residual_networks(void)
{
    const model m = { "random residual network", random_residual, 3 };
    for (graph_seed = 1; graph_seed <= random_graphs_here(); graph_seed++) {
        compare_with_disjoint(&m);
        if (!test__ok) printf("that was graph %u\n", graph_seed);
    }
}

static void plans_change_nothing(void)
{
    random_residual_networks();
    every_case();
    random_graphs_of_all_ops();
    random_graphs_of_elements();
}
EACH_BACKEND(plans_change_nothing)

/* ---- where in place, and where not ---- */

typedef dml_node *row_model(dml_graph *g);
enum { WIDTH = 16, BATCH = 4, ROWS_BYTES = WIDTH * BATCH * sizeof(float) }; /* of one tensor */

static dml_node *rows_of(dml_graph *g)
{
    return dml_input(g, NULL, DML_F32, WIDTH);
}

static dml_node *dense_alone(dml_graph *g)
{
    return dml_dense(rows_of(g), WIDTH);
}
static dml_node *relu_of_dense(dml_graph *g)
{
    return dml_relu(dense_alone(g));
}
static dml_node *chain_of_dense(dml_graph *g)
{
    dml_node *h = dense_alone(g);
    for (int i = 0; i < 5; i++) h = dml_add(dml_sigmoid(dml_tanh(h)), h);
    return h;
}
static dml_node *relu_of_input(dml_graph *g)
{
    return dml_relu(rows_of(g));
}
static dml_node *relu_of_view(dml_graph *g)
{
    return dml_relu(dml_flatten(dml_input(g, NULL, DML_F32, 4, 4)));
}
static dml_node *relu_of_what_is_needed(dml_graph *g)
{
    dml_node *x = rows_of(g);
    return dml_add(dml_relu(x), x);
}
static dml_node *relu_of_a_view_that_is_needed(dml_graph *g)
{
    dml_node *x = rows_of(g);
    return dml_add(dml_relu(dml_flatten(x)), x);
}
static dml_node *add_with_itself(dml_graph *g)
{
    dml_node *x = rows_of(g);
    return dml_add(x, x);
}
static dml_node *add_of_two(dml_graph *g)
{
    return dml_add(rows_of(g), rows_of(g));
}

static row_model *const row_models[] = { dense_alone,
                                         relu_of_dense,
                                         chain_of_dense,
                                         relu_of_input,
                                         relu_of_view,
                                         relu_of_what_is_needed,
                                         relu_of_a_view_that_is_needed,
                                         add_with_itself,
                                         add_of_two };

/* How many tensors of rows a program takes, in inference, beside its inputs, which stay where they are. */
static void bytes_to_predict(void)
{
    static const int tensors[] = { 1, 1, 2, 1, 1, 1, 1, 1, 1 };
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        dml_context *context = dml_open(NULL);
        dml_program *p =
            dml_compile(row_models[i](dml_graph_create(context)), &(dml_program_options){ .batch = BATCH });
        CHECK_MESSAGE(dml_program_bytes(p) == (size_t)tensors[i] * ROWS_BYTES,
                      "model %zu: %zu bytes, not %d x %zu", i, dml_program_bytes(p), tensors[i],
                      (size_t)ROWS_BYTES);
        dml_close(context);
    }
}

/* Whether `node` has its value, or its input its gradient, in the other's place. */
static bool value_in_place(const dml_program *p, const dml_node *node)
{
    const dml__slot *slot = &p->slot[p->slot_of_node[node->index]];
    return slot->value_at != 3 * p->slot_of_node[node->index];
}
static bool gradient_in_place(const dml_program *p, const dml_node *input)
{
    const dml__slot *slot = &p->slot[p->slot_of_node[input->index]];
    return slot->gradient_at != 3 * p->slot_of_node[input->index] + 1;
}

static dml_program *train(dml_node *output)
{
    dml_node *loss =
        dml_mean_squared_error(output, dml_input_shaped(output->graph, NULL, DML_F32, output->shape));
    return dml_compile(loss, &(dml_program_options){ .batch = BATCH, .training = true });
}

static void values_to_train(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *d = dense_alone(g), *r = dml_sigmoid(d), *t = dml_tanh(r), *y = dml_dense(t, WIDTH);
    dml_node *beside = dml_dense(d, WIDTH), *a = dml_add(d, beside), *twice = dml_tanh(dml_add(a, a));
    dml_node *late = dml_add(dml_relu(d), beside), *later = dml_add(late, d);

    dml_program *p = train(y);    /* dense needs its input in backward, not its output; sigmoid its output */
    CHECK(value_in_place(p, r));  /* over the dense layer's output */
    CHECK(!value_in_place(p, t)); /* sigmoid's backward reads its own */
    CHECK(gradient_in_place(p, d) && gradient_in_place(p, r) && !gradient_in_place(p, t));

    p = train(twice);             /* an add needs neither; its output may be needed by others */
    CHECK(!value_in_place(p, a)); /* the layer beside it needs d */
    CHECK(value_in_place(p, twice->input[0]) && value_in_place(p, twice));
    CHECK(gradient_in_place(p, a));
    CHECK(gradient_in_place(p, d)); /* the layer adds to it only afterwards */

    p = train(later); /* whose gradient is that of both, until the others add to d's */
    CHECK(gradient_in_place(p, d) && gradient_in_place(p, late));
    CHECK(!gradient_in_place(p, late->input[0]) && !gradient_in_place(p, beside)); /* d's is still to come */

    dml_node *w = dml_parameter(dml_graph_create(context), "w", normal, WIDTH), *v = dml_relu(w);
    p = dml_compile(dml_mean_squared_error(v, v), &(dml_program_options){ .batch = 1, .training = true });
    CHECK(p && !value_in_place(p, v) && !gradient_in_place(p, w)); /* parameters are not in the arena */
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

/* Whether the relu is done by the op before it. */
static bool is_fused(const dml_program *p, const dml_node *relu)
{
    const int s = p->slot_of_node[relu->index], input = p->slot_of_node[relu->input[0]->index];
    CHECK_INT(p->slot[s].fused, p->slot[input].ends_in_relu);
    CHECK_INT(p->slot[s].root, p->slot[s].fused ? p->slot[input].root : s);
    return p->slot[s].fused;
}

/* A relu that alone reads a product is part of it. */
static void relu_with_its_product(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *c = dml_conv2d(dml_input(g, NULL, DML_F32, 8, 8, 2),
                             &(dml_conv2d_options){ .filters = 3, .kernel = { 3, 3 } });
    dml_node *rc = dml_relu(c), *flat = dml_flatten(rc), *d = dml_dense(flat, WIDTH), *rd = dml_relu(d);
    dml_node *rr = dml_relu(rd), *e = dml_dense(rr, WIDTH), *re = dml_relu(e), *ve = dml_flatten(re);
    dml_node *y = dml_add(ve, re), *both = dml_add(y, e);
    dml_node *view = dml_relu(dml_flatten(dml_dense(rr, WIDTH)));
    dml_node *twice = dml_dense(rr, WIDTH), *r1 = dml_relu(twice), *r2 = dml_relu(twice);
    dml_node *two = dml_add(r1, r2);
    for (int training = 0; training < 2; training++) {
        const dml_program_options predict = { .batch = BATCH };
        dml_program *p = training ? train(y) : dml_compile(y, &predict);
        CHECK(is_fused(p, rc) && is_fused(p, rd) && is_fused(p, re));
        CHECK(!is_fused(p, rr)); /* no product */
        p = training ? train(both) : dml_compile(both, &predict);
        CHECK(is_fused(p, rd) && !is_fused(p, re)); /* another op reads e */
        p = training ? train(view) : dml_compile(view, &predict);
        CHECK(!is_fused(p, view));
        p = training ? train(two) : dml_compile(two, &predict);
        CHECK(!is_fused(p, r1) && !is_fused(p, r2));
    }
    dml_program *p = dml_compile(re, &(dml_program_options){ .batch = BATCH }); /* as the output */
    CHECK(is_fused(p, re));
    p = dml__compile_disjoint(re, &(dml_program_options){ .batch = BATCH });
    CHECK(!is_fused(p, re) && !is_fused(p, rc));
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

/* Whether the relu of which nothing is left, forward and backward. */
static bool is_gone(const dml_program *p, const dml_node *relu)
{
    CHECK(!p->slot[p->slot_of_node[relu->index]].gone || is_fused(p, relu));
    return p->slot[p->slot_of_node[relu->index]].gone;
}

/* The backward of a relu by the batch norm before it, or by the pool behind it. */
static void relu_with_its_neighbours(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    const dml_pool2d_options same = { .kernel = { 3, 3 }, .stride = { 1, 1 }, .padding = { 1, 1 } };
    dml_node *n1 = dml_batch_norm(dml_conv2d(dml_input(g, NULL, DML_F32, 8, 8, 2),
                                             &(dml_conv2d_options){ .filters = 3, .no_bias = true }),
                                  NULL);
    dml_node *r1 = dml_relu(n1), *p1 = dml_max_pool2d(r1, &same), *r2 = dml_relu(p1);
    dml_node *c3 = dml_conv2d(r2, &(dml_conv2d_options){ .filters = 3, .padding = { 1, 1 } });
    dml_node *r3 = dml_relu(c3), *p3 = dml_max_pool2d(r3, &same);
    dml_node *a4 = dml_add(p3, r2), *r4 = dml_relu(a4), *p4 = dml_max_pool2d(r4, NULL);
    dml_program *p = train(dml_flatten(p4));
    CHECK(is_gone(p, r1) && !p->slot[p->slot_of_node[p1->index]].begins_with_relu);
    CHECK(!is_fused(p, r2) && !is_gone(p, r2)); /* a pool takes none, and two read it */
    CHECK(is_gone(p, r3) && p->slot[p->slot_of_node[p3->index]].begins_with_relu);
    CHECK(is_gone(p, r4) && p->slot[p->slot_of_node[p4->index]].begins_with_relu);
    CHECK(gradient_in_place(p, p3) && gradient_in_place(p, r2));   /* a4's is both's */
    p = train(dml_flatten(dml_add(p4, dml_max_pool2d(r4, NULL)))); /* two pools: neither */
    CHECK(is_fused(p, r4) && !is_gone(p, r4) && !p->slot[p->slot_of_node[p4->index]].begins_with_relu);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

/* A disjoint build keeps every block apart. */
static void disjoint_is_disjoint(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *y = dml_tanh(dml_relu(dense_alone(g)));
    dml_program *p = dml__compile_disjoint(y, &(dml_program_options){ .batch = BATCH });
    CHECK_INT(dml_program_bytes(p), 4 * ROWS_BYTES);
    CHECK_INT(dml_program_bytes(dml_compile(y, &(dml_program_options){ .batch = BATCH })), ROWS_BYTES);
    dml_close(context);
}

/* The logits' gradient takes the place of the logits, unless they are read later, or their gradient is
   written before. */
static void gradients_over_logits(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, NULL, DML_F32, 5), *labels = dml_input(g, NULL, DML_I32);
    dml_node *plain = dml_dense(x, WIDTH), *read = dml_sigmoid(dml_dense(x, WIDTH));
    dml_node *chain = dml_affine(dml_dense(x, WIDTH), 2, 0);
    dml_node *target = dml_input(g, NULL, DML_F32, WIDTH);
    const dml_program_options training = { .batch = BATCH, .training = true };
    dml_program *p = dml_compile(dml_softmax_cross_entropy(plain, labels), &training);
    CHECK(gradient_in_place(p, plain));
    const dml__slot *slot = &p->slot[p->slot_of_node[plain->index]];
    CHECK(slot->gradient == slot->value);
    p = dml_compile(dml_softmax_cross_entropy_with(plain, target, NULL), &training);
    CHECK(gradient_in_place(p, plain));
    p = dml_compile(dml_softmax_cross_entropy_with(plain, plain, NULL), &training);
    CHECK(!gradient_in_place(p, plain));
    p = dml_compile(
        dml_add(dml_softmax_cross_entropy(plain, labels), dml_softmax_cross_entropy(plain, labels)),
        &training);
    CHECK(!gradient_in_place(p, plain));
    p = dml_compile(dml_softmax_cross_entropy(read, labels), &training);
    CHECK(!gradient_in_place(p, read));
    p = dml_compile(dml_softmax_cross_entropy(chain, labels), &training);
    CHECK(gradient_in_place(p, chain) && gradient_in_place(p, chain->input[0])); /* which goes on there */
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

int main(void)
{
    RUN(bytes_to_predict);
    RUN(values_to_train);
    RUN(gradients_over_logits);
    RUN(relu_with_its_product);
    RUN(relu_with_its_neighbours);
    RUN(disjoint_is_disjoint);
    RUN_EACH(plans_change_nothing);
    return test_report("graph/in_place");
}
