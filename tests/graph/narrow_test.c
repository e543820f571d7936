/* Programs that keep values for backward in 16 bits: how much memory that takes, and what it does to
   gradients, for every op on every backend. */
#include "graph/program.h"

#include "ops_cases.h"

static const dml_dtype narrow_types[] = { DML_BF16, DML_F16 };

/* ---- memory ---- */

static dml_node *layers(dml_graph *g, int count, int units)
{
    dml_node *h = dml_input(g, "x", DML_F32, units);
    for (int i = 0; i < count; i++) h = dml_tanh(dml_dense(h, units));
    return dml_mean_squared_error(h, dml_input(g, "y", DML_F32, units));
}

static int narrowed_values(const dml_program *p)
{
    int count = 0;
    for (int s = 0; s < p->slots; s++) count += p->slot[s].narrowed;
    return count;
}

static void half_the_memory(void)
{
    dml_context *context = open_here(NULL);
    dml_node *loss = layers(dml_graph_create(context), 24, 64);
    dml_program_options options = { .batch = 32, .training = true };
    dml_program *wide = dml_compile(loss, &options);
    CHECK_INT(narrowed_values(wide), 0);
    for (int t = 0; t < 2; t++) {
        options.dtype = narrow_types[t];
        dml_program *narrow = dml_compile(loss, &options);
        CHECK_MESSAGE(narrow, "%s", dml_error(context));
        if (!narrow) continue;
        CHECK_INT(narrowed_values(narrow), 23); /* backward begins with the last at once */
        CHECK_MESSAGE(dml_program_bytes(narrow) * 100 < dml_program_bytes(wide) * 62,
                      "%d bytes instead of %d", (int)dml_program_bytes(narrow), (int)dml_program_bytes(wide));
    }
    options.training = false;
    dml_program *predict = dml_compile(loss, &options);
    CHECK_INT(narrowed_values(predict), 0);
    dml_close(context);
}
EACH_BACKEND(half_the_memory)

static void other_types_are_refused(void)
{
    dml_context *context = open_here(NULL);
    dml_node *loss = layers(dml_graph_create(context), 1, 4);
    const int refused[] = { DML_I32, DML_F64, DML__DTYPE_COUNT, -1 };
    for (int i = 0; i < 4; i++) {
        CHECK(dml_compile(loss, &(dml_program_options){ .batch = 1, .dtype = (dml_dtype)refused[i] }) ==
              NULL);
        CHECK_CONTAINS(dml_error(context), "computes in f32, bf16 or f16");
        dml_clear_error(context);
    }
    dml_close(context);
}
EACH_BACKEND(other_types_are_refused)

/* ---- numbers ---- */

/* Loss and gradient of one pass over an arena of NaNs. */
static float run_once(subject *s, dml_program *p, int rows, void *const *inputs, float *g)
{
    float loss = NAN;
    poison(s->context, p->arena);
    reset_parameters(s);
    CHECK_MESSAGE(program_train(p, rows, (const void *const *)inputs, 1, NULL, &loss) == DML_OK, "%s: %s",
                  s->which->name, dml_error(s->context));
    read_floats(s->context, g, p->g, s->count);
    return loss;
}

/* By how much a gradient may differ from f32's, relative to the largest of its tensor or a tenth of the
   largest of all: an op multiplies a few numbers, each off by up to half of a last bit, and sums of
   them cancel. */
static double bound_of(dml_dtype dtype)
{
    return dtype == DML_BF16 ? 24 * ldexp(1, -9) : 24 * ldexp(1, -12);
}

static void compare_gradients(subject *s, dml_dtype dtype, int rows, void *const *inputs)
{
    float *want = (float *)malloc(s->count * sizeof *want), *got = (float *)malloc(s->count * sizeof *got);
    double *exact = (double *)malloc(s->count * sizeof *exact);
    const dml_program_options options = { .batch = rows, .training = true, .dtype = dtype };
    dml_program *narrow = dml_compile(s->loss, &options);
    const float loss = run_once(s, s->training, rows, inputs, want);
    const float narrow_loss = run_once(s, narrow, rows, inputs, got);
    const double bound = bound_of(dtype);
    CHECK_MESSAGE(fabs((double)narrow_loss - (double)loss) <= bound * (fabs((double)loss) + 0.01),
                  "%s: a loss of %g instead of %g", s->which->name, (double)narrow_loss, (double)loss);
    for (size_t i = 0; i < s->count; i++) exact[i] = (double)want[i];
    const double least = 0.1 * largest_of(exact, s->count) + 1e-4;
    for (const dml_node *p = s->loss->graph->first_parameter; p; p = p->next_parameter) {
        if (p->frozen) continue;
        const double error =
            relative_error(got + p->offset, exact + p->offset, dml_shape_count(&p->shape), least);
        if (getenv("SHOW"))
            printf("SHOW %s %s %.3g / %g\n", s->which->name, dml_dtype_name(dtype), error, bound);
        CHECK_MESSAGE(error <= bound, "%s in %s: the gradient of '%s' differs by %.2g", s->which->name,
                      dml_dtype_name(dtype), p->name, error);
    }
    dml_program_destroy(narrow);
    free(want), free(got), free(exact);
}

static void every_op(void)
{
    for (int c = 0; c < CASES; c += slow_here() || TEST_EMULATOR ? 12 : 1) {
        subject s;
        if (open_subject(&s, &cases[c].model)) {
            void *inputs[MAX_INPUTS] = { NULL };
            reference r;
            reference_open(&r, s.loss->graph, cases[c].model.batch, s.w64);
            make_inputs(&s, s.training, cases[c].model.batch, &r, inputs);
            for (int t = 0; t < 2; t++) compare_gradients(&s, narrow_types[t], cases[c].model.batch, inputs);
            for (int i = 0; i < MAX_INPUTS; i++) free(inputs[i]);
            reference_close(&r);
        }
        close_subject(&s);
    }
}
EACH_BACKEND(every_op)

/* The plan changes no bit: blocks that share bytes, and ops in place, against blocks all apart. */
static dml_node *chain(dml_graph *g)
{
    dml_node *x = dml_input(g, "x", DML_F32, 6), *h = dml_dense(x, 8), *first = dml_tanh(h);
    h = dml_relu(dml_add(first, dml_dense(first, 8)));
    h = dml_mul(dml_sigmoid(dml_dense(h, 8)), dml_add(h, first));
    return dml_dense(dml_tanh(dml_flatten(dml_relu(dml_dense(h, 5)))), 3);
}

static void the_plan_changes_no_bit(void)
{
    static const model which = { "chain", chain, 5 };
    subject s;
    if (open_subject(&s, &which)) {
        void *inputs[MAX_INPUTS] = { NULL };
        reference r;
        reference_open(&r, s.loss->graph, which.batch, s.w64);
        make_inputs(&s, s.training, which.batch, &r, inputs);
        float *want = (float *)malloc(s.count * sizeof *want), *got = (float *)malloc(s.count * sizeof *got);
        for (int t = 0; t < 2; t++) {
            const dml_program_options options = { .batch = which.batch,
                                                  .training = true,
                                                  .dtype = narrow_types[t] };
            dml_program *shared = dml_compile(s.loss, &options),
                        *apart = dml__compile_disjoint(s.loss, &options);
            CHECK(narrowed_values(shared) > 4 && dml_program_bytes(shared) < dml_program_bytes(apart));
            for (int rows = which.batch; rows > 0; rows -= 4) {
                const float a = run_once(&s, shared, rows, inputs, got),
                            b = run_once(&s, apart, rows, inputs, want);
                CHECK(memcmp(&a, &b, sizeof a) == 0 && memcmp(got, want, s.count * sizeof *got) == 0);
            }
        }
        for (int i = 0; i < MAX_INPUTS; i++) free(inputs[i]);
        free(want), free(got);
        reference_close(&r);
    }
    close_subject(&s);
}
EACH_BACKEND(the_plan_changes_no_bit)

/* ---- what backward makes again from its inputs ---- */

/* Scores of thousands: were they another rounding's, e to the difference would not be near 1. */
static dml_node *large_scores(dml_graph *g)
{
    dml_node *h = dml_tanh(dml_dense(dml_input(g, "x", DML_F32, 16, 8), 8)), *w = parameter(g, 1, 8, 0);
    dml_node *q = dml_affine(dml_mul(h, w), 10000, 0), *k = dml_affine(dml_tanh(dml_mul(h, w)), 1, 0.125f);
    dml_node *y = dml_attention(q, k, h, 1, &(dml_attention_options){ .scale = 1 });
    return dml_mean_squared_error(y, dml_input(g, "t", DML_F32, 16, 8));
}
/* Two equal logits far above 0 and others that aren't, whose loss is computed before something else is. */
static dml_node *large_logits(dml_graph *g)
{
    dml_node *h = dml_tanh(dml_dense(dml_input(g, "x", DML_F32, 6, 3), 4));
    dml_node *logits = dml_affine(dml_concat((dml_node *const[]){ h, h }, 2, -1), 10000, 30000);
    dml_node *loss = dml_softmax_cross_entropy(logits, dml_input(g, "label", DML_I32, 6));
    dml_node *other = dml_mean_squared_error(dml_dense(dml_gelu(h), 4), dml_input(g, "t", DML_F32, 6, 4));
    return dml_add(dml_affine(loss, 1e-4f, 0), other);
}

/* The squares of their norms are within `apart` times those in f32. */
static void gradients_stay_near(const model *m, double apart)
{
    subject s;
    if (open_subject(&s, m)) {
        void *inputs[MAX_INPUTS] = { NULL };
        reference r;
        reference_open(&r, s.loss->graph, 2, s.w64);
        make_inputs(&s, s.training, 2, &r, inputs);
        float *g[3];
        for (int t = 0; t < 3; t++) {
            const dml_dtype dtype = t ? narrow_types[t - 1] : DML_F32;
            dml_program *p =
                dml_compile(s.loss, &(dml_program_options){ .batch = 2, .training = true, .dtype = dtype });
            g[t] = (float *)malloc(s.count * sizeof(float));
            CHECK_INT(program_train(p, 2, (const void *const *)inputs, 1, NULL, NULL), DML_OK);
            read_floats(s.context, g[t], p->g, s.count);
            double norm[2] = { 0, 0 };
            for (size_t i = 0; i < s.count; i++)
                norm[0] += (double)g[0][i] * (double)g[0][i], norm[1] += (double)g[t][i] * (double)g[t][i];
            CHECK_MESSAGE(norm[1] < apart * norm[0] && apart * norm[1] > norm[0],
                          "%s, %s: the gradient's norm is %g, in f32 %g", m->name, dml_dtype_name(dtype),
                          sqrt(norm[1]), sqrt(norm[0]));
        }
        for (int t = 0; t < 3; t++) free(g[t]);
        for (int i = 0; i < MAX_INPUTS; i++) free(inputs[i]);
        reference_close(&r);
    }
    close_subject(&s);
}

/* A norm of numbers that are the same for all samples, or alone in their group, has no gradient, however far
   from 0 they lie: 1 / sqrt(epsilon) times a rounding would be one of thousands. */
static dml_node *far_from_zero(dml_graph *g)
{
    dml_node *x = dml_input(g, "x", DML_F32, 8), *w = dml_parameter(g, "w", dml_init_constant(100.3f), 8);
    return dml_silu(dml_add(dml_affine(x, 0.3f, 0), w));
}
static dml_node *groups_of_one(dml_graph *g)
{
    return dml_group_norm(far_from_zero(g), 8, NULL);
}
static dml_node *batch_of_one(dml_graph *g)
{
    return dml_batch_norm(far_from_zero(g), NULL);
}
static dml_node *read_before(dml_graph *g)
{
    dml_node *h = far_from_zero(g), *early = dml_affine(h, 0, 1);
    dml_node *y = dml_mul(dml_group_norm(h, 8, NULL), early);
    return dml_add(y, dml_affine(h, 0, 1)); /* which reads it last */
}

static void norms_of_what_is_kept(void)
{
    dml_node *(*const build[])(dml_graph *) = { groups_of_one, batch_of_one, read_before };
    for (int i = 0; i < 3; i++)
        for (int t = 0; t < 2; t++) {
            dml_context *context = open_here(NULL);
            dml_node *y = build[i](dml_graph_create(context));
            dml_node *loss = dml_mean_squared_error(dml_tanh(y), dml_input(y->graph, "t", DML_F32, 8));
            const dml_program_options options = { .batch = 1, .training = true, .dtype = narrow_types[t] };
            dml_program *p = dml_compile(loss, &options);
            CHECK_MESSAGE(p, "%s", dml_error(context));
            float x[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, target[8] = { 0.5f, -0.5f, 1, 2, 3, 4, 5, 6 }, g[32];
            const void *const inputs[] = { x, target };
            CHECK(loss->graph->trained_count <= 32);
            CHECK_INT(program_train(p, 1, inputs, 1, NULL, NULL), DML_OK);
            read_floats(context, g, p->g, loss->graph->trained_count);
            const dml_node *w = loss->graph->first_parameter;
            for (int k = 0; k < 8; k++)
                CHECK_MESSAGE(fabsf(g[w->offset + (size_t)k]) < 1e-3f, "case %d, %s: gradient %g", i,
                              dml_dtype_name(narrow_types[t]), (double)g[w->offset + (size_t)k]);
            dml_close(context);
        }
}
EACH_BACKEND(norms_of_what_is_kept)

/* What is rounded to a bound, or to the other of two numbers, has the gradient of the side on which forward
 * saw it. */
static void backward_takes_the_side_that_forward_took(void)
{
    for (int i = 0; i < 9; i++) {
        const dml_dtype dtype = i % 3 ? narrow_types[i % 3 - 1] : DML_F32;
        dml_context *context = open_here(NULL);
        dml_graph *graph = dml_graph_create(context);
        dml_node *x = dml_input(graph, "x", DML_F32, 4);
        dml_node *w = dml_parameter(graph, "w", dml_init_constant(1.0001f), 4);
        dml_node *h = dml_add(x, w), *one = dml_affine(x, 0, 1);
        dml_node *y = i < 3 ? dml_clamp(h, 0, 1) : i < 6 ? dml_maximum(h, one) : dml_minimum(one, h);
        dml_node *loss = dml_mean_squared_error(dml_tanh(dml_tanh(y)), dml_input(graph, "t", DML_F32, 4));
        dml_program *p =
            dml_compile(loss, &(dml_program_options){ .batch = 1, .training = true, .dtype = dtype });
        CHECK_MESSAGE(p, "%s", dml_error(context));
        const float zeros[4] = { 0, 0, 0, 0 };
        const void *const inputs[] = { zeros, zeros };
        float g[4];
        CHECK_INT(program_train(p, 1, inputs, 1, NULL, NULL), DML_OK);
        read_floats(context, g, p->g, 4);
        for (int k = 0; k < 4; k++)
            CHECK_MESSAGE(i / 3 == 1 ? fabsf(g[k] - 0.07923f) < 1e-3f : g[k] == 0, "%s in %s: gradient %g",
                          y->op->name, dml_dtype_name(dtype), (double)g[k]);
        dml_close(context);
    }
}
EACH_BACKEND(backward_takes_the_side_that_forward_took)

/* A condition that is 0 in 16 bits, and isn't in f32. */
static void where_takes_the_side_that_forward_took(void)
{
    for (int i = 0; i < 3; i++) {
        const dml_dtype dtype = i ? narrow_types[i - 1] : DML_F32;
        dml_context *context = open_here(NULL);
        dml_graph *graph = dml_graph_create(context);
        dml_node *x = dml_input(graph, "x", DML_F32, 4);
        dml_node *h = dml_add(x, dml_parameter(graph, "w", dml_init_constant(0.5f), 4));
        dml_node *y = dml_where(dml_affine(h, 1e-9f, 0), h, dml_affine(x, 0, 1));
        dml_node *loss = dml_mean_squared_error(dml_tanh(dml_tanh(y)), dml_input(graph, "t", DML_F32, 4));
        dml_program *p =
            dml_compile(loss, &(dml_program_options){ .batch = 1, .training = true, .dtype = dtype });
        CHECK_MESSAGE(p, "%s", dml_error(context));
        const float zeros[4] = { 0, 0, 0, 0 };
        const void *const inputs[] = { zeros, zeros };
        float g[4];
        CHECK_INT(program_train(p, 1, inputs, 1, NULL, NULL), DML_OK);
        read_floats(context, g, p->g, 4);
        for (int k = 0; k < 4; k++)
            CHECK_MESSAGE(g[k] > 0.05f, "%s: gradient %g", dml_dtype_name(dtype), (double)g[k]);
        dml_close(context);
    }
}
EACH_BACKEND(where_takes_the_side_that_forward_took)

/* Numbers that f16 hasn't: quotients, roots and powers of what it rounds to 0; and norms of larger ones. */
static dml_node *products(dml_graph *g)
{
    dml_node *x = dml_input(g, "x", DML_F32, 8), *w = dml_parameter(g, "w", dml_init_constant(0.7f), 8);
    return dml_tanh(dml_mul(x, w));
}
static dml_node *small(dml_node *h)
{
    return dml_affine(dml_sigmoid(h), 1e-9f, 0);
}
static dml_node *logarithm(dml_graph *g)
{
    return dml_affine(dml_log(small(products(g))), 1, 21);
}
static dml_node *quotient(dml_graph *g)
{
    dml_node *h = products(g);
    return dml_affine(dml_div(h, small(h)), 5e-10f, 0);
}
static dml_node *root(dml_graph *g)
{
    return dml_affine(dml_sqrt(dml_affine(small(products(g)), 1e-9f, 0)), 1e9f, 0);
}
static dml_node *power(dml_graph *g)
{
    return dml_affine(dml_pow(small(products(g)), -0.5f), 2e-5f, 0);
}

static void what_f16_has_no_numbers_for(void)
{
    dml_node *(*const build[])(dml_graph *) = { logarithm, quotient, root, power };
    enum { ROWS = 6, N = 8 };
    float x[ROWS * N], target[ROWS * N], g[3][3 * N], losses[3];
    unsigned random = 7;
    test_fill(&random, x, ROWS * N);
    test_fill(&random, target, ROWS * N);
    for (int i = 0; i < 4; i++) {
        dml_context *context = open_here(NULL);
        dml_node *y = build[i](dml_graph_create(context));
        dml_node *loss = dml_mean_squared_error(dml_tanh(y), dml_input(y->graph, "t", DML_F32, N));
        const dml_node *w = loss->graph->first_parameter;
        for (int t = 0; t < 3; t++) {
            const dml_program_options options = { .batch = ROWS,
                                                  .training = true,
                                                  .dtype = t ? narrow_types[t - 1] : DML_F32 };
            dml_program *p = dml_compile(loss, &options);
            CHECK_MESSAGE(p, "%s", dml_error(context));
            CHECK_INT(program_train(p, ROWS, (const void *[]){ x, target }, 1, NULL, &losses[t]), DML_OK);
            read_floats(context, g[t], p->g, loss->graph->trained_count);
            CHECK_NEAR(losses[t], losses[0], 0.02 * fabs((double)losses[0]));
            double largest = 0;
            for (int k = 0; k < N; k++) largest = fmax(largest, fabs((double)g[0][w->offset + (size_t)k]));
            for (int k = 0; k < N; k++)
                CHECK_MESSAGE(fabsf(g[t][w->offset + (size_t)k] - g[0][w->offset + (size_t)k]) <=
                                  0.05 * largest,
                              "case %d, %s: gradient %g instead of %g", i, dml_dtype_name(options.dtype),
                              (double)g[t][w->offset + (size_t)k], (double)g[0][w->offset + (size_t)k]);
        }
        dml_close(context);
    }
}
EACH_BACKEND(what_f16_has_no_numbers_for)

/* Norms of numbers of which some are beyond f16's largest: as if they were that, but in f32 and bf16. */
static dml_node *norm_of_large(dml_graph *g, bool batch, bool clamped)
{
    dml_node *h = dml_affine(products(g), 1.5e5f, 0);
    if (clamped) h = dml_clamp(h, -65504, 65504);
    return batch ? dml_batch_norm(h, NULL) : dml_layer_norm(h, NULL);
}

static void f16_saturates_what_is_normalized(void)
{
    enum { ROWS = 6, N = 8 };
    float x[ROWS * N], target[ROWS * N], g[3 * N], loss[2];
    unsigned random = 7;
    test_fill(&random, x, ROWS * N);
    test_fill(&random, target, ROWS * N);
    for (int i = 0; i < 6; i++) {
        const dml_dtype dtype = i % 3 ? narrow_types[i % 3 - 1] : DML_F32;
        dml_context *context = open_here(NULL);
        for (int clamped = 0; clamped < 2; clamped++) {
            dml_graph *graph = dml_graph_create(context);
            dml_node *y = norm_of_large(graph, i >= 3, clamped && dtype == DML_F16);
            dml_node *mean = dml_mean_squared_error(dml_tanh(y), dml_input(graph, "t", DML_F32, N));
            const dml_program_options options = { .batch = ROWS,
                                                  .training = true,
                                                  .dtype = clamped ? DML_F32 : dtype };
            dml_program *p = dml_compile(mean, &options);
            CHECK_MESSAGE(p, "%s", dml_error(context));
            CHECK_INT(program_train(p, ROWS, (const void *[]){ x, target }, 1, NULL, &loss[clamped]), DML_OK);
            read_floats(context, g, p->g, graph->trained_count);
            for (size_t k = 0; k < graph->trained_count; k++) CHECK(isfinite(g[k]));
        }
        CHECK_NEAR(loss[0], loss[1], 0.01 * fabs((double)loss[1]));
        dml_close(context);
    }
}
EACH_BACKEND(f16_saturates_what_is_normalized)

static void probabilities_stay_such(void)
{
    const model scores = { "large scores", large_scores, 2 }, logits = { "large logits", large_logits, 2 };
    /* Where attention rounds its factors, as on cards with tensor cores, such scores are others, by tens; but
       in both passes alike. */
    const bool rounds = strcmp(backend_here->name, "cuda") == 0;
    gradients_stay_near(&scores, rounds ? 1000 : 2);
    gradients_stay_near(&logits, 2);
}
EACH_BACKEND(probabilities_stay_such)

int main(void)
{
    RUN_EACH(half_the_memory);
    RUN_EACH(other_types_are_refused);
    RUN_EACH(every_op);
    RUN_EACH(the_plan_changes_no_bit);
    RUN_EACH(probabilities_stay_such);
    RUN_EACH(norms_of_what_is_kept);
    RUN_EACH(backward_takes_the_side_that_forward_took);
    RUN_EACH(what_f16_has_no_numbers_for);
    RUN_EACH(f16_saturates_what_is_normalized);
    RUN_EACH(where_takes_the_side_that_forward_took);
    return test_report("graph/narrow");
}
