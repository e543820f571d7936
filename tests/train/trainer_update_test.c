/* What an update does besides the optimizer's rule: clipping, and parameters with scales of their own. */
#include "train/parameter_group.h"

#include "graph/weights.h"
#include "train/checkpoint.h"

#include "small_model.h"
#include "update_reference.h"

#define STEP_GRADIENT(t, g)                                                                                  \
    do {                                                                                                     \
        CHECK_INT(dml_trainer_backward(t, 2, inputs, 2, DML_OVERWRITE, NULL), DML_OK);                       \
        put_gradient(t, g);                                                                                  \
    } while (0)

static void put_gradient(dml_trainer *t, const float from[COUNT])
{
    float *g = dml_trainer_get(t, DML_GRADIENTS, 0, COUNT);
    CHECK(g);
    memcpy(g, from, COUNT * sizeof *g);
    CHECK_INT(dml_trainer_put(t, DML_GRADIENTS, 0, COUNT), DML_OK);
}

static dml_trainer *trainer_on(dml_node *loss, dml_trainer_options options)
{
    options.batch = BATCH;
    dml_trainer *t = dml_trainer_create(loss, &options);
    CHECK_MESSAGE(t, "%s", dml_error(context));
    return t;
}

/* ---- scales ---- */

/* The first layer's bias without decay, the second's weight with half the learning rate, its bias not at
   all. */
static dml_node *scaled_loss(void)
{
    dml_node *loss = small_loss();
    dml_graph *graph = dml_node_graph(loss);
    dml_parameter_set_decay_scale(dml_graph_find(graph, "dense_1.bias"), 0);
    dml_parameter_set_lr_scale(dml_graph_find(graph, "dense_2.weight"), 0.5f);
    dml_parameter_set_lr_scale(dml_graph_find(graph, "dense_2.bias"), 0);
    return loss;
}

static void check_scales(const dml_optimizer *optimizer)
{
    double w[COUNT], state[2][COUNT] = { { 0 } };
    float g[COUNT], got[COUNT];
    unsigned random = 3;
    context = open_here(NULL);
    dml_node *loss = scaled_loss();
    dml_trainer *t = trainer_on(loss, (dml_trainer_options){ .optimizer = *optimizer });
    copy_vector(t, DML_PARAMETERS, got);
    for (int i = 0; i < COUNT; i++) w[i] = (double)got[i];
    for (int step = 0; step < 3; step++) {
        test_fill(&random, g, COUNT);
        STEP_GRADIENT(t, g);
        CHECK_INT(dml_trainer_update(t), DML_OK);
        for (int i = 0; i < dml_graph_parameters(dml_node_graph(loss)); i++) {
            const dml_node *p = dml_graph_parameter(dml_node_graph(loss), i);
            const dml_shape shape = dml_node_shape(p);
            const size_t at = dml_parameter_offset(p);
            dml_optimizer own = *optimizer;
            own.lr *= dml_parameter_lr_scale(p);
            own.weight_decay *= dml_parameter_decay_scale(p);
            reference_update(&own, step + 1, dml_shape_count(&shape), w + at, state[0] + at, state[1] + at,
                             g + at);
        }
        copy_vector(t, DML_PARAMETERS, got);
        for (int i = 0; i < COUNT; i++) CHECK_NEAR(got[i], w[i], 2e-6 * fmax(1, fabs(w[i])));
    }
    dml_close(context);
}

static void scales(void)
{
    for (int v = 1; v < UPDATE_VARIANTS; v += slow_here() ? 6 : 2) check_scales(&update_variants[v]);
}
EACH_BACKEND(scales)

/* Wherever a range is cut, inside of parameters too, and clipped or not. */
static void ranges_of_scaled_parameters(void)
{
    float g[COUNT], want[COUNT], got[COUNT];
    unsigned random = 4;
    const dml_trainer_options options = { .optimizer = dml_adamw(0.1f, 0.2f), .clip_norm = 0.5f };
    test_fill(&random, g, COUNT);
    for (size_t cut = 0; cut <= COUNT; cut += slow_here() ? 9 : 1) {
        context = open_here(NULL);
        dml_trainer *t = trainer_on(scaled_loss(), options);
        STEP_GRADIENT(t, g);
        CHECK_INT(dml_trainer_update_range(t, cut, COUNT), DML_OK);
        CHECK_INT(dml_trainer_update_range(t, cut / 2, cut), DML_OK);
        CHECK_INT(dml_trainer_update_range(t, 0, cut / 2), DML_OK);
        CHECK_INT(dml_trainer_advance(t), DML_OK);
        copy_vector(t, DML_PARAMETERS, cut ? got : want);
        if (cut) CHECK_MESSAGE(memcmp(got, want, sizeof got) == 0, "cut at %zu", cut);
        dml_close(context);
    }
}
EACH_BACKEND(ranges_of_scaled_parameters)

static void scales_are_set_and_refused(void)
{
    backend_here = find_backend("cpu");
    context = open_here(NULL);
    dml_node *loss = small_loss();
    dml_graph *graph = dml_node_graph(loss);
    dml_node *bias = dml_graph_find(graph, "dense_1.bias"), *weight = dml_graph_find(graph, "dense_1.weight");
    CHECK(dml_parameter_lr_scale(bias) == 1 && dml_parameter_decay_scale(bias) == 1);
    CHECK_INT(dml_graph_decay_matrices_only(graph), DML_OK);
    CHECK(dml_parameter_decay_scale(bias) == 0 && dml_parameter_decay_scale(weight) == 1);
    CHECK_INT(dml_parameter_set_decay_scale(bias, 0.25f), DML_OK);
    CHECK(dml_parameter_decay_scale(bias) == 0.25f && dml_parameter_lr_scale(bias) == 1);
    const float bad[] = { -1, NAN, INFINITY };
    for (int i = 0; i < 3; i++) {
        CHECK_INT(dml_parameter_set_lr_scale(bias, bad[i]), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "'dense_1.bias': a scale of its learning rate");
        dml_clear_error(context);
        CHECK_INT(dml_parameter_set_decay_scale(bias, bad[i]), DML_ERROR_ARGUMENT);
        dml_clear_error(context);
    }
    CHECK(dml_parameter_decay_scale(bias) == 0.25f && dml_parameter_lr_scale(bias) == 1);
    CHECK_INT(dml_parameter_set_lr_scale(loss, 1), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "only a parameter");
    dml_clear_error(context);
    CHECK_INT(dml_parameter_set_lr_scale(NULL, 1), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_parameter_set_decay_scale(NULL, 1), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_graph_decay_matrices_only(NULL), DML_ERROR_ARGUMENT);
    dml_close(context);
}

/* ---- factors of whole parameters ---- */

static double norm_over(const double *x, size_t n)
{
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += x[i] * x[i];
    return sqrt(squares);
}

static double norm_over_floats(const float g[COUNT])
{
    double x[COUNT];
    for (int i = 0; i < COUNT; i++) x[i] = (double)g[i];
    return norm_over(x, COUNT);
}

/* You et al., for one parameter; t from 1 on. */
static void reference_whole(const dml_optimizer *o, bool adapts, double t, size_t n, double *w, double *s0,
                            double *s1, const float *g)
{
    const double decay = (double)o->weight_decay, beta1 = (double)o->beta1, beta2 = (double)o->beta2;
    double r[COUNT], factor = 1;
    for (size_t i = 0; i < n; i++) {
        r[i] = (double)g[i];
        if (o->kind == DML_LARS) continue;
        s0[i] = beta1 * s0[i] + (1 - beta1) * r[i];
        s1[i] = beta2 * s1[i] + (1 - beta2) * r[i] * r[i];
        r[i] = s0[i] / (1 - pow(beta1, t)) / (sqrt(s1[i] / (1 - pow(beta2, t))) + (double)o->epsilon) +
               decay * w[i];
    }
    const double w_norm = norm_over(w, n), r_norm = norm_over(r, n);
    if (adapts && w_norm > 0 && r_norm > 0)
        factor = o->kind == DML_LARS
                     ? (double)o->trust * w_norm / (r_norm + decay * w_norm + (double)o->epsilon)
                     : w_norm / r_norm;
    for (size_t i = 0; i < n; i++) {
        double step = factor * (r[i] + (o->kind == DML_LARS ? decay * w[i] : 0));
        if (o->kind == DML_LARS) step = s0[i] = (double)o->momentum * s0[i] + step;
        w[i] -= (double)o->lr * step;
    }
}

static const dml_optimizer whole_variants[] = {
    { .kind = DML_LARS,
      .lr = 0.5f,
      .momentum = 0.9f,
      .weight_decay = 0.1f,
      .epsilon = 1e-8f,
      .trust = 0.02f },
    { .kind = DML_LARS, .lr = 10, .epsilon = 1e-3f, .trust = 0.001f },
    { .kind = DML_LAMB, .lr = 0.05f, .weight_decay = 0.2f, .beta1 = 0.8f, .beta2 = 0.95f, .epsilon = 1e-6f },
    { .kind = DML_LAMB, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-6f },
};

static void check_whole(const dml_optimizer *optimizer, bool scaled)
{
    const char *path = "trainer_update_test.tmp";
    double w[COUNT], state[2][COUNT] = { { 0 } };
    float g[COUNT], got[COUNT], again[COUNT];
    unsigned random = 3;
    context = open_here(NULL);
    dml_node *loss = scaled ? scaled_loss() : small_loss();
    dml_graph *graph = dml_node_graph(loss);
    dml_trainer *t = trainer_on(loss, (dml_trainer_options){ .optimizer = *optimizer });
    copy_vector(t, DML_PARAMETERS, got);
    for (int i = 0; i < COUNT; i++) w[i] = (double)got[i]; /* biases are zeros: their norms are 0 */
    for (int step = 0; step < 4; step++) {
        test_fill(&random, g, COUNT);
        if (step == 1) g[COUNT - 3] = g[COUNT - 2] = g[COUNT - 1] = 0; /* no gradient of the last bias */
        if (step == 3) CHECK_INT(dml_trainer_save(t, path), DML_OK);
        STEP_GRADIENT(t, g);
        const size_t cut = dml_parameter_offset(dml_graph_find(graph, "dense_2.weight"));
        CHECK_INT(dml_trainer_update_range(t, cut, COUNT), DML_OK);
        CHECK_INT(dml_trainer_update_range(t, 0, cut), DML_OK);
        CHECK_INT(dml_trainer_advance(t), DML_OK);
        for (int i = 0; i < dml_graph_parameters(graph); i++) {
            const dml_node *p = dml_graph_parameter(graph, i);
            const dml_shape shape = dml_node_shape(p);
            const size_t at = dml_parameter_offset(p);
            dml_optimizer own = *optimizer;
            own.lr *= dml_parameter_lr_scale(p);
            own.weight_decay *= dml_parameter_decay_scale(p);
            reference_whole(&own, dml_parameter_decay_scale(p) > 0, step + 1, dml_shape_count(&shape), w + at,
                            state[0] + at, state[1] + at, g + at);
        }
        copy_vector(t, DML_PARAMETERS, got);
        for (int i = 0; i < COUNT; i++)
            CHECK_MESSAGE(fabs((double)got[i] - w[i]) <= 4e-6 * fmax(1, fabs(w[i])),
                          "kind %d, step %d: w[%d] is %g, not %g", (int)optimizer->kind, step, i,
                          (double)got[i], w[i]);
    }
    CHECK_INT(dml_trainer_load(t, path), DML_OK); /* the last step again */
    STEP_GRADIENT(t, g);
    CHECK_INT(dml_trainer_update(t), DML_OK);
    copy_vector(t, DML_PARAMETERS, again);
    CHECK(memcmp(again, got, sizeof got) == 0);
    remove(path);
    CHECK_INT(dml_trainer_update(t), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "used up");
    dml_clear_error(context);
    STEP_GRADIENT(t, g);
    CHECK_INT(dml_trainer_update_range(t, 0, 3), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "updates whole parameters, and 'dense_1.weight' is elements 0 to 10");
    dml_clear_error(context);
    CHECK_INT(dml_trainer_update_range(t, 12, COUNT), DML_ERROR_ARGUMENT);
    dml_clear_error(context);
    CHECK_INT(dml_trainer_update_range(t, 3, 3), DML_OK);
    CHECK_INT(dml_trainer_update(t), DML_OK);
    dml_close(context);
}

#define NO_GRADIENT(call, says)                                                                              \
    do {                                                                                                     \
        CHECK_INT(call, DML_ERROR_STATE);                                                                    \
        CHECK_CONTAINS(dml_error(context), says);                                                            \
        dml_clear_error(context);                                                                            \
    } while (0)

/* An update by lars or lamb leaves no gradient behind: neither to update by once more, nor to measure. */
static void gradients_are_used_up(void)
{
    float g[COUNT], w[COUNT], again[COUNT];
    unsigned random = 8;
    test_fill(&random, g, COUNT);
    for (int k = 0; k < 2; k++) {
        context = open_here(NULL);
        dml_node *loss = small_loss();
        dml_trainer *t =
            trainer_on(loss, (dml_trainer_options){ .optimizer = k ? dml_lamb(0.1f, 0) : dml_lars(0.1f, 0) });
        const size_t cut = dml_parameter_offset(dml_graph_find(dml_node_graph(loss), "dense_2.weight"));
        STEP_GRADIENT(t, g);
        CHECK_NEAR(dml_trainer_gradient_norm(t), norm_over_floats(g), 1e-5);
        CHECK_INT(dml_trainer_update_range(t, cut, COUNT), DML_OK);
        copy_vector(t, DML_PARAMETERS, w);
        NO_GRADIENT(dml_trainer_update_range(t, cut, COUNT), "used the gradient of 'dense_2.weight' up");
        NO_GRADIENT(dml_trainer_update(t), "used the gradient of 'dense_2.weight' up");
        CHECK(isnan(dml_trainer_gradient_norm(t)));
        CHECK_CONTAINS(dml_error(context), "the gradient's norm (a trainer with clip_norm keeps it), but");
        dml_clear_error(context);
        copy_vector(t, DML_PARAMETERS, again);
        CHECK(memcmp(w, again, sizeof w) == 0); /* nothing was done */
        CHECK_INT(dml_trainer_update_range(t, 0, cut), DML_OK);
        CHECK_INT(dml_trainer_put(t, DML_GRADIENTS, cut, COUNT), DML_OK); /* the caller's own */
        CHECK_INT(dml_trainer_update_range(t, cut, COUNT), DML_OK);
        CHECK_INT(dml_trainer_advance(t), DML_OK);
        CHECK(isnan(dml_trainer_gradient_norm(t)));
        dml_clear_error(context);
        STEP_GRADIENT(t, g);
        CHECK_INT(dml_trainer_update(t), DML_OK);
        dml_close(context);
        /* with clip_norm it is kept */
        context = open_here(NULL);
        t = trainer_on(small_loss(),
                       (dml_trainer_options){ .optimizer = k ? dml_lamb(0.1f, 0) : dml_lars(0.1f, 0),
                                              .clip_norm = 1e6f });
        STEP_GRADIENT(t, g);
        CHECK_INT(dml_trainer_update(t), DML_OK);
        CHECK_NEAR(dml_trainer_gradient_norm(t), norm_over_floats(g), 1e-5);
        dml_close(context);
    }
}
EACH_BACKEND(gradients_are_used_up)

static void whole_parameters(void)
{
    for (int v = 0; v < 4; v++) {
        if (!slow_here() || v % 2 == 0) check_whole(&whole_variants[v], false);
        if (!slow_here() || v == 2) check_whole(&whole_variants[v], true);
    }
}
EACH_BACKEND(whole_parameters)

static void what_makes_them(void)
{
    const dml_optimizer lars = dml_lars(0.5f, 0.9f), lamb = dml_lamb(0.25f, 0.125f);
    float w = 1, g = 1, *state[] = { &g, &g };
    CHECK(lars.kind == DML_LARS && lars.lr == 0.5f && lars.momentum == 0.9f);
    CHECK(lamb.kind == DML_LAMB && lamb.lr == 0.25f && lamb.weight_decay == 0.125f);
    CHECK_INT(dml_optimizer_states(&lars), 1);
    CHECK_INT(dml_optimizer_states(&lamb), 2);
    CHECK_INT(dml_optimizer_update(&lamb, NULL, 0, 1, &w, &g, state), DML_ERROR_ARGUMENT);
    const dml_optimizer adam = dml_adam(0.1f);
    float *none[] = { &g, NULL };
    CHECK_INT(dml_optimizer_update(&adam, NULL, 0, 1, &w, &g, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_optimizer_update(&adam, NULL, 0, 1, &w, &g, none), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_optimizer_update(&adam, NULL, 0, 1, NULL, &g, state), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_optimizer_update(&adam, NULL, 0, 1, &w, NULL, state), DML_ERROR_ARGUMENT);
    CHECK(w == 1);
}

/* ---- clipping ---- */

static double norm_of(const float *g)
{
    double squares = 0;
    for (int i = 0; i < COUNT; i++) squares += (double)g[i] * (double)g[i];
    return sqrt(squares);
}

static void check_clipping(float clip_norm, float clip_value)
{
    float g[COUNT], before[COUNT], after[COUNT], cut[COUNT];
    unsigned random = 5;
    context = open_here(NULL);
    dml_trainer *t = trainer_on(small_loss(), (dml_trainer_options){ .optimizer = dml_sgd(1, 0),
                                                                     .clip_norm = clip_norm,
                                                                     .clip_value = clip_value });
    for (int step = 0; step < 3; step++) {
        test_fill(&random, g, COUNT);
        STEP_GRADIENT(t, g);
        copy_vector(t, DML_PARAMETERS, before);
        CHECK_NEAR(dml_trainer_gradient_norm(t), norm_of(g), 1e-5);
        CHECK_INT(dml_trainer_update_range(t, 0, COUNT), DML_OK);
        for (int i = 0; i < COUNT; i++)
            cut[i] = clip_value > 0 ? fmaxf(-clip_value, fminf(clip_value, g[i])) : g[i];
        const double norm = norm_of(cut), factor = clip_norm > 0 ? fmin(1, clip_norm / (norm + 1e-6)) : 1;
        CHECK_NEAR(dml_trainer_gradient_norm(t), norm, 1e-5); /* of before the scaling */
        copy_vector(t, DML_GRADIENTS, g);
        copy_vector(t, DML_PARAMETERS, after);
        for (int i = 0; i < COUNT; i++) {
            CHECK_NEAR(g[i], factor * (double)cut[i], 1e-6);
            CHECK_NEAR(after[i], (double)before[i] - factor * (double)cut[i], 2e-6);
        }
        CHECK_INT(dml_trainer_update_range(t, 0, COUNT), DML_OK); /* nothing is clipped twice */
        copy_vector(t, DML_GRADIENTS, cut);
        CHECK(memcmp(cut, g, sizeof g) == 0);
        CHECK_INT(dml_trainer_advance(t), DML_OK);
    }
    dml_close(context);
}

static void clipping(void)
{
    check_clipping(0, 0);
    check_clipping(0.5f, 0);
    check_clipping(100, 0);
    check_clipping(0, 0.3f);
    check_clipping(0.75f, 0.25f);
}
EACH_BACKEND(clipping)

/* What isn't finite isn't hidden. */
static void clipping_a_nan(void)
{
    float g[COUNT] = { 0 }, w[COUNT];
    context = open_here(NULL);
    dml_trainer *t = trainer_on(small_loss(), (dml_trainer_options){ .clip_norm = 1, .clip_value = 2 });
    g[3] = NAN;
    STEP_GRADIENT(t, g);
    CHECK_INT(dml_trainer_update(t), DML_OK);
    CHECK(isnan(dml_trainer_gradient_norm(t)));
    copy_vector(t, DML_PARAMETERS, w);
    for (int i = 0; i < COUNT; i++) CHECK(isnan(w[i]));
    dml_close(context);
}
EACH_BACKEND(clipping_a_nan)

/* The mean over all ranks is clipped, not what one of them adds to it; and a batch in pieces once. */
static void what_is_clipped(void)
{
    float g[3][COUNT];
    for (int how = 0; how < 3; how++) {
        mock m;
        context = open_here(NULL);
        dml_trainer *t = trainer_on(small_loss(), (dml_trainer_options){ .clip_norm = 1e-3f });
        if (how == 1) CHECK_INT(dml_trainer_sync(t, sync_with(&m)), DML_OK);
        if (how < 2) {
            CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
        } else {
            const void *rest[] = { rows + 2, labels + 1 };
            CHECK_INT(dml_trainer_backward(t, 1, inputs, 2, DML_MORE, NULL), DML_OK);
            CHECK_INT(dml_trainer_backward(t, BATCH - 1, rest, 2, DML_ADD, NULL), DML_OK);
            CHECK(dml_trainer_gradient_norm(t) > 1e-2f);
            CHECK_INT(dml_trainer_update(t), DML_OK);
        }
        CHECK(dml_trainer_gradient_norm(t) > 1e-2f);
        copy_vector(t, DML_GRADIENTS, g[how]);
        CHECK_NEAR(norm_of(g[how]), 1e-3, 2e-6); /* 1e-6 beside the norm */
        for (int i = 0; i < COUNT; i++) CHECK_NEAR(g[how][i], g[0][i], 1e-8);
        dml_close(context);
    }
}
EACH_BACKEND(what_is_clipped)

/* A norm over many blocks: the same bits for any number of threads. */
static void norm_for_any_threads(void)
{
    enum { MOST = 200003 };
    const int n = slow_here() ? 5003 : MOST;
    float norm[3], first[3], *g = malloc(MOST * sizeof *g);
    unsigned random = 6;
    double squares = 0;
    test_fill(&random, g, (size_t)n);
    for (int i = 0; i < n; i++) squares += (double)g[i] * (double)g[i];
    for (int threads = 1; threads <= 3; threads++) {
        dml_context *c = open_here(&(dml_options){ .threads = threads });
        dml_node *p = dml_parameter(dml_graph_create(c), "p", dml_init_constant(0), n);
        dml_trainer *t = dml_trainer_create(
            dml_mean_squared_error(p, p),
            &(dml_trainer_options){ .batch = 1, .optimizer = dml_sgd(1, 0), .clip_norm = 3 });
        CHECK_MESSAGE(t, "%s", dml_error(c));
        CHECK_INT(dml_trainer_backward(t, 1, NULL, 0, DML_OVERWRITE, NULL), DML_OK);
        memcpy(dml_trainer_get(t, DML_GRADIENTS, 0, (size_t)n), g, (size_t)n * sizeof *g);
        CHECK_INT(dml_trainer_put(t, DML_GRADIENTS, 0, (size_t)n), DML_OK);
        CHECK_INT(dml_trainer_update(t), DML_OK);
        norm[threads - 1] = dml_trainer_gradient_norm(t);
        first[threads - 1] = *dml_trainer_get(t, DML_PARAMETERS, 0, 1);
        CHECK_NEAR(norm[threads - 1], sqrt(squares), 1e-6 * sqrt(squares));
        CHECK_NEAR(first[threads - 1], -(double)g[0] * 3 / sqrt(squares), 1e-7);
        CHECK(norm[threads - 1] == norm[0] && first[threads - 1] == first[0]);
        dml_close(c);
    }
    free(g);
}
EACH_BACKEND(norm_for_any_threads)

static void bad_clipping(void)
{
    backend_here = find_backend("cpu");
    context = open_here(NULL);
    dml_node *loss = small_loss();
    const float bad[] = { -1, NAN, INFINITY };
    for (int i = 0; i < 6; i++) {
        dml_trainer_options options = { .batch = BATCH };
        *(i % 2 ? &options.clip_norm : &options.clip_value) = bad[i / 2];
        CHECK(!dml_trainer_create(loss, &options));
        CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), i % 2 ? "clip_norm" : "clip_value");
        dml_clear_error(context);
    }
    dml_trainer *t = trainer_on(loss, (dml_trainer_options){ .clip_norm = 1 });
    CHECK_INT(dml_trainer_backward(t, 99, inputs, 2, DML_OVERWRITE, NULL), DML_ERROR_ARGUMENT);
    CHECK(isnan(dml_trainer_gradient_norm(t))); /* the context has an error */
    CHECK(isnan(dml_trainer_gradient_norm(NULL)));
    dml_close(context);
}

/* A parameter that this loss doesn't reach has no gradient, whatever an update or a swap left in g, and stays
   as it is, whatever the optimizer's decay. */
static void unreached_parameters(void)
{
    const dml_optimizer kinds[] = { dml_lamb(0.01f, 0.1f), dml_lars(0.01f, 0.9f), dml_sgd(0.01f, 0),
                                    dml_sgd(0.01f, 0.9f),  dml_adam(0.01f),       dml_adamw(0.01f, 0.5f) };
    for (int k = 0; k < 6; k++) {
        dml_trainer_options options = { .optimizer = kinds[k], .average = 0.5f };
        if (k > 0) options.optimizer.weight_decay = 0.1f;
        context = open_here(NULL);
        dml_node *loss = small_loss();
        dml_node *head = dml_dense(dml_node_input(dml_node_input(loss, 0), 0), 2);
        CHECK(head);
        dml_trainer *t = trainer_on(loss, options);
        const size_t at = dml_parameter_offset(dml_graph_find(dml_node_graph(loss), "dense_3.weight"));
        float first[10], before[COUNT], after[COUNT];
        memcpy(first, dml_trainer_get(t, DML_PARAMETERS, at, at + 10), sizeof first);
        copy_vector(t, DML_PARAMETERS, before);
        CHECK_INT(dml_trainer_swap_average(t), DML_ERROR_STATE); /* of nothing yet */
        dml_clear_error(context);
        for (int step = 0; step < 3; step++) {
            CHECK_INT(dml_trainer_backward(t, BATCH, inputs, 2, DML_OVERWRITE, NULL), DML_OK);
            const float *g = dml_trainer_get(t, DML_GRADIENTS, at, at + 10);
            for (int i = 0; i < 10; i++) CHECK(g && g[i] == 0);
            CHECK_INT(dml_trainer_update(t), DML_OK);
            CHECK_INT(dml_trainer_swap_average(t), DML_OK);
            CHECK_INT(dml_trainer_advance(t), DML_ERROR_STATE);
            dml_clear_error(context);
            CHECK_INT(dml_trainer_swap_average(t), DML_OK);
        }
        CHECK_STRING(dml_error(context), "");
        const float *last = dml_trainer_get(t, DML_PARAMETERS, at, at + 10);
        CHECK(last && memcmp(last, first, sizeof first) == 0);
        copy_vector(t, DML_PARAMETERS, after);
        CHECK(memcmp(after, before, sizeof after) != 0);
        dml_close(context);
    }
}
EACH_BACKEND(unreached_parameters)

/* ---- the average ---- */

static void average(void)
{
    const char *path = "trainer_update_test.tmp";
    const dml_trainer_options options = { .batch = BATCH, .optimizer = dml_adam(0.05f), .average = 0.75f };
    float before[COUNT], w[COUNT], got[COUNT];
    double want[COUNT];
    context = open_here(NULL);
    dml_node *loss = small_loss();
    dml_trainer *t = trainer_on(loss, options);
    const int average = dml_trainer_vectors(t) - 1;
    CHECK_INT(average, DML_OPTIMIZER_STATE + 2);
    for (int step = 0; step < 4; step++) {
        if (step % 2) {
            CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
        } else {
            CHECK_INT(dml_trainer_backward(t, BATCH, inputs, 2, DML_OVERWRITE, NULL), DML_OK);
            CHECK_INT(dml_trainer_update_range(t, 5, COUNT), DML_OK);
            CHECK_INT(dml_trainer_update_range(t, 0, 5), DML_OK);
            CHECK_INT(dml_trainer_advance(t), DML_OK);
        }
        copy_vector(t, DML_PARAMETERS, w);
        copy_vector(t, average, got);
        for (int i = 0; i < COUNT; i++) {
            want[i] = step ? 0.75 * want[i] + 0.25 * (double)w[i] : (double)w[i];
            CHECK_NEAR(got[i], want[i], 1e-6);
        }
    }
    CHECK_INT(dml_trainer_save(t, path), DML_OK);
    memcpy(before, w, sizeof w);
    CHECK_INT(dml_trainer_swap_average(t), DML_OK);
    copy_vector(t, DML_PARAMETERS, w);
    CHECK(memcmp(w, got, sizeof w) == 0);
    copy_vector(t, average, w);
    CHECK(memcmp(w, before, sizeof w) == 0);
    for (int i = 0; i < 4; i++) { /* nothing that counts on w */
        mock m;
        CHECK_INT(i == 0   ? dml_trainer_step(t, BATCH, inputs, 2, NULL)
                  : i == 1 ? dml_trainer_save(t, path)
                  : i == 2 ? dml_trainer_load(t, path)
                           : dml_trainer_sync(t, sync_with(&m)),
                  DML_ERROR_STATE);
        CHECK_CONTAINS(dml_error(context), "swap_average again");
        dml_clear_error(context);
    }
    CHECK_INT(dml_trainer_swap_average(t), DML_OK);
    CHECK_INT(dml_trainer_update(t), DML_ERROR_STATE); /* g is lost */
    dml_clear_error(context);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
    copy_vector(t, average, got);
    copy_vector(t, DML_PARAMETERS, before);

    dml_trainer *again = trainer_on(loss, options); /* the average is in checkpoints */
    CHECK_INT(dml_trainer_load(again, path), DML_OK);
    CHECK_INT(dml_trainer_step(again, BATCH, inputs, 2, NULL), DML_OK);
    copy_vector(again, average, w);
    CHECK(memcmp(w, got, sizeof w) == 0);
    copy_vector(again, DML_PARAMETERS, w);
    CHECK(memcmp(w, before, sizeof w) == 0);
    dml_trainer *without = trainer_on(loss, (dml_trainer_options){ .optimizer = dml_adam(0.05f) });
    CHECK_INT(dml_trainer_load(without, path), DML_OK); /* who has no use for it leaves it */
    CHECK_INT(dml_trainer_save(without, path), DML_OK);
    CHECK_INT(dml_trainer_load(again, path), DML_OK); /* of a run without one it begins with w */
    copy_vector(again, DML_PARAMETERS, before);
    copy_vector(again, average, w);
    CHECK(memcmp(w, before, sizeof w) == 0);
    CHECK_INT(dml_trainer_step(again, BATCH, inputs, 2, NULL), DML_OK);
    copy_vector(again, DML_PARAMETERS, w);
    copy_vector(again, average, got);
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(got[i], 0.75 * before[i] + 0.25 * w[i], 1e-6);
    CHECK_INT(dml_trainer_swap_average(without), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "keeps none");
    dml_clear_error(context);
    CHECK_INT(dml_trainer_swap_average(NULL), DML_ERROR_ARGUMENT);
    remove(path);
    const float bad[] = { -0.5f, 1, NAN };
    for (int i = 0; i < 3; i++) {
        CHECK(!dml_trainer_create(loss, &(dml_trainer_options){ .batch = BATCH, .average = bad[i] }));
        CHECK_CONTAINS(dml_error(context), "an average that keeps");
        dml_clear_error(context);
    }
    dml_close(context);
}
EACH_BACKEND(average)

int main(void)
{
    RUN_EACH(average);
    RUN_EACH(unreached_parameters);
    RUN_EACH(scales);
    RUN_EACH(ranges_of_scaled_parameters);
    RUN(scales_are_set_and_refused);
    RUN_EACH(whole_parameters);
    RUN_EACH(gradients_are_used_up);
    RUN(what_makes_them);
    RUN_EACH(clipping);
    RUN_EACH(clipping_a_nan);
    RUN_EACH(what_is_clipped);
    RUN_EACH(norm_for_any_threads);
    RUN(bad_clipping);
    return test_report("train/trainer_update");
}
