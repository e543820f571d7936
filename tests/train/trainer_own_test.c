/* Strategies whose ranks own parts of the gradient and have parts of the parameters: mock ones, of one rank.
 */
#include "train/trainer.h"

#include "graph/node.h"
#include "graph/weights.h"
#include "ops/op_arithmetic.h"
#include "ops/op_matmul.h"
#include "ops/op_shape.h"
#include "train/trainer_internal.h"

#include "small_model.h"

/* ---- parameters that are there only while they are used ---- */

enum { MOST = 200 };

typedef struct lender {
    char events[400];
    size_t trained;
    float w[MOST]; /* what was lent back */
    const char *fail;
} lender;

static void note(lender *l, const char *what, size_t begin, size_t end)
{
    snprintf(l->events + strlen(l->events), sizeof l->events - strlen(l->events), "%s%d-%d ", what,
             (int)begin, (int)end);
}

/* w[begin, end) from or to the copy; what isn't lent is NaN. */
static dml_status lend(void *state, dml_trainer *t, size_t begin, size_t end)
{
    lender *l = (lender *)state;
    float *w = dml_trainer_get(t, DML_PARAMETERS, begin, end);
    note(l, "", begin, end);
    for (size_t i = begin; i < end; i++) {
        CHECK(isnan(w[i - begin]));
        w[i - begin] = l->w[i];
    }
    if (l->fail) return dml_trainer_fail(t, DML_ERROR_PEER, "%s", l->fail);
    return dml_trainer_put(t, DML_PARAMETERS, begin, end);
}
static dml_status take_back(void *state, dml_trainer *t, size_t begin, size_t end)
{
    (void)state;
    float *w = dml_trainer_get(t, DML_PARAMETERS, begin, end);
    for (size_t i = begin; i < end; i++) w[i - begin] = NAN;
    return dml_trainer_put(t, DML_PARAMETERS, begin, end);
}
static dml_status all_taken_back(void *state, dml_trainer *t)
{
    lender *l = (lender *)state;
    l->trained = dml_trainer_count(t, DML_GRADIENTS);
    CHECK(l->trained <= MOST);
    memcpy(l->w, dml_trainer_get(t, DML_PARAMETERS, 0, l->trained), l->trained * sizeof(float));
    return take_back(state, t, 0, l->trained);
}
static dml_status add_nothing(void *state, dml_trainer *t, double *values, size_t count)
{
    (void)state, (void)t, (void)values, (void)count;
    return DML_OK;
}
static dml_status nothing_ready(void *state, dml_trainer *t, size_t begin, size_t end)
{
    (void)state, (void)t, (void)begin, (void)end;
    return DML_OK;
}
static dml_sync lending(lender *l)
{
    memset(l, 0, sizeof *l);
    return (dml_sync){ .state = l,
                       .start = all_taken_back,
                       .ready = nothing_ready,
                       .use = lend,
                       .used = take_back,
                       .all_reduce = add_nothing };
}

/* A table that two ops share, one op on two parameters that lie apart, frozen ones in between. */
static dml_node *model_that_shares(void)
{
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "x", DML_F32, 2);
    dml_node *shared = dml_parameter(g, "shared", dml_init_uniform(-1, 1), 2, 2);
    dml_node *frozen = dml_parameter(g, "frozen", dml_init_uniform(-1, 1), 2, 2);
    CHECK_INT(dml_parameter_train(frozen, false), DML_OK);
    dml_node *h = dml_matmul(dml_reshape(x, dml_shape_of(1, 2)), shared);
    h = dml_tanh(dml_dense(dml_flatten(dml_matmul(dml_tanh(h), frozen)), 2));
    h = dml_reshape(h, dml_shape_of(1, 2));
    dml_node *sum = dml_add(shared, dml_parameter(g, "last", dml_init_uniform(-1, 1), 2, 2));
    h = dml_flatten(dml_matmul(h, sum));
    return dml_softmax_cross_entropy(dml_dense(h, 3), dml_input(g, "label", DML_I32));
}

static void check_lent(dml_node *(*model)(void), const char *events)
{
    float loss[2], g[MOST];
    for (int lent = 0; lent < 2; lent++) {
        lender l;
        context = open_here(NULL);
        dml_trainer *t = dml_trainer_create(
            model(), &(dml_trainer_options){ .batch = BATCH, .optimizer = dml_sgd(0.1f, 0) });
        CHECK_MESSAGE(t, "%s", dml_error(context));
        const size_t n = dml_trainer_count(t, DML_GRADIENTS);
        if (lent) CHECK_INT(dml_trainer_sync(t, lending(&l)), DML_OK);
        CHECK_INT(dml_trainer_backward(t, BATCH, inputs, 2, 0, &loss[lent]), DML_OK);
        const float *now = dml_trainer_get(t, DML_GRADIENTS, 0, n);
        if (!lent) memcpy(g, now, n * sizeof *g);
        for (size_t i = 0; i < n; i++) CHECK_NEAR(now[i], g[i], 1e-6); /* a sum was divided, not its terms */
        if (lent) CHECK_STRING(l.events, events);
        for (int flags = 0; lent && flags < 2; flags++) { /* a rank without samples tells the same */
            l.events[0] = '\0';
            CHECK_INT(dml_trainer_backward(t, 0, NULL, 0, flags ? DML_MORE : DML_ADD, NULL), DML_OK);
            CHECK_STRING(l.events, events);
        }
        dml_close(context);
    }
    CHECK_NEAR(loss[1], loss[0], 0);
}

static void ops_tell_which_parameters_they_read(void)
{
    check_lent(small_loss, "0-15 15-33 15-30 0-10 ");
    check_lent(model_that_shares, "0-4 4-10 0-4 10-14 14-23 14-20 4-8 0-4 ");
}
EACH_BACKEND(ops_tell_which_parameters_they_read)

static void what_cannot_be_lent_ends_the_pass(void)
{
    lender l;
    dml_trainer *t = small_trainer(0.5f, 0);
    CHECK_INT(dml_trainer_sync(t, lending(&l)), DML_OK);
    l.fail = "nothing to lend";
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_ERROR_PEER);
    CHECK_STRING(dml_error(context), "nothing to lend");
    CHECK_STRING(l.events, "0-15 ");
    dml_close(context);
}
EACH_BACKEND(what_cannot_be_lent_ends_the_pass)

/* ---- a part of the gradient ---- */

enum { FROM = 7, TO = 21 };

/* The other ranks had gradients of 0, or of what `squares` says, for samples of their own. */
typedef struct owner {
    double samples, squares;
    int sums, gathers;
} owner;

static dml_status own_some(void *state, dml_trainer *t)
{
    (void)state;
    return dml_trainer_own(t, FROM, TO);
}
static dml_status leave_others_wrong(void *state, dml_trainer *t, double *samples)
{
    const owner *o = (owner *)state;
    float *g = dml_trainer_get(t, DML_GRADIENTS, 0, COUNT);
    for (int i = 0; i < COUNT; i++)
        if (i < FROM || i >= TO) g[i] = 1e30f;
    *samples = o->samples;
    return dml_trainer_put(t, DML_GRADIENTS, 0, COUNT);
}
static dml_status update_own(void *state, dml_trainer *t)
{
    (void)state;
    CHECK_INT(dml_trainer_update_range(t, 0, COUNT), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "elements 0 to 33 asked for; this rank owns 7 to 21");
    dml_clear_error(context);
    return dml_trainer_update_range(t, FROM, TO);
}
static dml_status add_others(void *state, dml_trainer *t, double *values, size_t count)
{
    owner *o = (owner *)state;
    (void)t;
    CHECK_INT(count, 1);
    values[0] += o->squares;
    o->sums++;
    return DML_OK;
}
static dml_status count_gathers(void *state, dml_trainer *t)
{
    (void)t;
    ((owner *)state)->gathers++;
    return DML_OK;
}
static dml_sync owning(owner *o, double samples)
{
    memset(o, 0, sizeof *o);
    o->samples = samples;
    return (dml_sync){ .state = o,
                       .start = own_some,
                       .finish = leave_others_wrong,
                       .update = update_own,
                       .all_reduce = add_others,
                       .gather = count_gathers,
                       .ranks = 2 };
}

static dml_trainer *owning_trainer(dml_trainer_options options, dml_sync sync)
{
    context = open_here(NULL);
    options.batch = BATCH;
    dml_trainer *t = dml_trainer_create(small_loss(), &options);
    CHECK_MESSAGE(t, "%s", dml_error(context));
    CHECK_INT(dml_trainer_sync(t, sync), DML_OK);
    return t;
}

/* The gradient of the whole batch, and of its first two samples. */
static void gradients(float g[COUNT], float first[COUNT])
{
    dml_trainer *t = small_trainer(0.5f, 0);
    CHECK_INT(dml_trainer_backward(t, BATCH, inputs, 2, 0, NULL), DML_OK);
    copy_vector(t, DML_GRADIENTS, g);
    CHECK_INT(dml_trainer_backward(t, 2, inputs, 2, 0, NULL), DML_OK);
    copy_vector(t, DML_GRADIENTS, first);
    dml_close(context);
}

static void a_part_is_clipped_and_applied(void)
{
    float g[COUNT], first[COUNT], before[COUNT], after[COUNT];
    owner o;
    gradients(g, first);
    for (int scaled = 0; scaled < 2; scaled++) {
        const dml_trainer_options options = { .optimizer = dml_sgd(0.5f, 0.9f),
                                              .clip_norm = 0.25f,
                                              .clip_value = 0.2f,
                                              .loss_scale = scaled ? 1024 : 0 };
        double squares = 0.5;
        dml_trainer *t = owning_trainer(options, owning(&o, BATCH));
        copy_vector(t, DML_PARAMETERS, before);
        o.squares = squares;
        CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
        CHECK_INT(o.sums, scaled ? 2 : 1);
        float want[COUNT];
        for (int i = 0; i < COUNT; i++) {
            want[i] = g[i] > 0.2f ? 0.2f : g[i] < -0.2f ? -0.2f : g[i];
            if (i >= FROM && i < TO) squares += (double)want[i] * want[i];
        }
        CHECK_NEAR(dml_trainer_gradient_norm(t), sqrt(squares), 1e-6);
        copy_vector(t, DML_PARAMETERS, after);
        for (int i = 0; i < COUNT; i++)
            CHECK_NEAR(after[i],
                       i < FROM || i >= TO ? before[i] : before[i] - 0.5 * want[i] * 0.25 / sqrt(squares),
                       1e-6);
        if (scaled) { /* another rank's overflow is everybody's */
            o.squares = INFINITY;
            CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
            CHECK_INT(dml_trainer_skipped(t), 1);
            CHECK_NEAR(dml_trainer_loss_scale(t), 512, 0);
            copy_vector(t, DML_PARAMETERS, want);
            CHECK(memcmp(want, after, sizeof want) == 0);
        }
        dml_close(context);
    }
}
EACH_BACKEND(a_part_is_clipped_and_applied)

/* What this rank holds of its range stands for all ranks; of the rest it holds nothing. */
static void adding_to_a_part(void)
{
    float g[COUNT], first[COUNT];
    owner o;
    gradients(g, first);
    dml_trainer *t = owning_trainer((dml_trainer_options){ 0 }, owning(&o, 5));
    CHECK_INT(dml_trainer_backward(t, BATCH, inputs, 2, 0, NULL), DML_OK);
    const float *now = dml_trainer_get(t, DML_GRADIENTS, FROM, TO);
    for (int i = FROM; i < TO; i++) CHECK_NEAR(now[i - FROM], g[i] * BATCH / 5, 2e-7);
    CHECK_INT(dml_trainer_backward(t, 2, inputs, 2, DML_ADD | DML_MORE, NULL), DML_OK);
    now = dml_trainer_get(t, DML_GRADIENTS, 0, COUNT);
    for (int i = 0; i < COUNT; i++)
        CHECK_NEAR(now[i], first[i] * 2 + (i >= FROM && i < TO ? g[i] * BATCH : 0), 1e-6);
    o.samples = 11;
    CHECK_INT(dml_trainer_backward(t, 0, NULL, 0, DML_ADD, NULL), DML_OK);
    now = dml_trainer_get(t, DML_GRADIENTS, FROM, TO);
    for (int i = FROM; i < TO; i++) CHECK_NEAR(now[i - FROM], (first[i] * 2 + g[i] * BATCH) / 11, 2e-7);
    CHECK_INT(dml_trainer_backward(t, 0, NULL, 0, 0, NULL), DML_OK);
    now = dml_trainer_get(t, DML_GRADIENTS, FROM, TO);
    for (int i = FROM; i < TO; i++) CHECK(now[i - FROM] == 0);
    dml_close(context);
}
EACH_BACKEND(adding_to_a_part)

/* Nobody takes zeros or old numbers for the model. */
static void what_is_elsewhere_is_refused(void)
{
    const dml_trainer_options options = { .optimizer = dml_adam(0.5f), .average = 0.5f };
    float out[3];
    owner o;
    dml_trainer *t = owning_trainer(options, owning(&o, BATCH));
    dml_node *loss = dml_trainer_program(t)->output;
    size_t begin, end;
    dml_trainer_owned(t, &begin, &end);
    CHECK(begin == FROM && end == TO);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
    CHECK_INT(dml_trainer_forget(t, DML_PARAMETERS, 0, FROM), DML_OK);
    CHECK_INT(dml_trainer_forget(t, DML_OPTIMIZER_STATE, TO, COUNT), DML_OK);
    for (int v = 0; v < dml_trainer_vectors(t); v++) {
        CHECK(dml_trainer_get(t, v, FROM, TO) && dml_trainer_get(t, v, 0, 0));
        CHECK(!dml_trainer_get(t, v, FROM - 1, TO));
        CHECK_CONTAINS(dml_error(context), "dml_trainer_gather on all ranks first");
        dml_clear_error(context);
        CHECK(!dml_trainer_get(t, v, FROM, TO + 1));
        dml_clear_error(context);
    }
    dml_node *bias = dml_graph_find(loss->graph, "dense_2.bias");
    for (int i = 0; i < 5; i++) {
        const dml_status got = i == 0   ? dml_program_run(dml_trainer_program(t), BATCH, inputs, 2, NULL)
                               : i == 1 ? dml_parameter_read(bias, out, 3)
                               : i == 2 ? dml_parameter_write(bias, out, 3)
                               : i == 3 ? dml_trainer_swap_average(t)
                               : dml_graph_get(loss->graph, 0, 1) ? DML_OK
                                                                  : dml_status_of(context);
        CHECK_INT(got, DML_ERROR_STATE);
        CHECK_CONTAINS(dml_error(context), "call dml_trainer_gather on all ranks");
        dml_clear_error(context);
    }
    CHECK_INT(dml_trainer_gather(t), DML_OK);
    CHECK_INT(o.gathers, 1);
    CHECK_INT(dml_parameter_read(bias, out, 3), DML_OK);
    CHECK(dml_trainer_get(t, dml_trainer_vectors(t) - 1, 0, COUNT));
    CHECK(dml_trainer_get(t, DML_PARAMETERS, 0, COUNT));
    CHECK_INT(dml_trainer_swap_average(t), DML_OK);
    CHECK_INT(dml_trainer_swap_average(t), DML_OK);

    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_OK);
    CHECK_INT(dml_trainer_sync(t, (dml_sync){ 0 }), DML_OK); /* the states were not gathered */
    dml_trainer_owned(t, &begin, &end);
    CHECK(begin == 0 && end == COUNT);
    CHECK_INT(dml_trainer_step(t, BATCH, inputs, 2, NULL), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "is gone");
    dml_clear_error(context);
    CHECK_INT(dml_trainer_gather(t), DML_ERROR_STATE);
    dml_clear_error(context);
    CHECK(!dml_trainer_get(t, DML_OPTIMIZER_STATE, FROM, TO)); /* nor what was its own */
    CHECK_CONTAINS(dml_error(context), "which a sync strategy that is gone has left spread over its ranks");
    dml_close(context);
    CHECK_INT(dml_trainer_gather(NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_own(NULL, 0, 0), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_forget(NULL, 0, 0, 0), DML_ERROR_ARGUMENT);
}
EACH_BACKEND(what_is_elsewhere_is_refused)

static void parts_that_cannot_be_owned(void)
{
    backend_here = find_backend("cpu");
    owner o;
    context = open_here(NULL);
    dml_trainer *t = dml_trainer_create(
        small_loss(), &(dml_trainer_options){ .batch = BATCH, .optimizer = { .kind = DML_LAMB } });
    CHECK_INT(dml_trainer_sync(t, owning(&o, BATCH)), DML_ERROR_ARGUMENT); /* 7 is inside of a weight */
    CHECK_CONTAINS(dml_error(context), "lamb updates whole parameters");
    dml_clear_error(context);
    CHECK_INT(dml_trainer_own(t, 0, 15), DML_ERROR_UNSUPPORTED); /* no strategy */
    dml_clear_error(context);
    CHECK_INT(dml_trainer_own(t, 0, COUNT), DML_OK);
    CHECK_INT(dml_trainer_own(t, 3, 2), DML_ERROR_ARGUMENT);
    dml_clear_error(context);
    CHECK_INT(dml_trainer_own(t, 3, COUNT + 1), DML_ERROR_ARGUMENT);
    dml_clear_error(context);
    CHECK_INT(dml_trainer_forget(t, 9, 0, 0), DML_ERROR_ARGUMENT);
    dml_clear_error(context);
    CHECK_INT(dml_trainer_forget(t, 0, 0, COUNT + 1), DML_ERROR_ARGUMENT);
    dml_close(context);
}

int main(void)
{
    RUN_EACH(ops_tell_which_parameters_they_read);
    RUN_EACH(what_cannot_be_lent_ends_the_pass);
    RUN_EACH(a_part_is_clipped_and_applied);
    RUN_EACH(adding_to_a_part);
    RUN_EACH(what_is_elsewhere_is_refused);
    RUN(parts_that_cannot_be_owned);
    return test_report("train/trainer_own");
}
