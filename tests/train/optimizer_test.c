/* Optimizers against their formulas in float64, over several steps, on every backend. */
#include "train/optimizer.h"

#include "ops/op_loss.h"
#include "train/trainer.h"

#include "../graph/backends.h"
#include "update_reference.h"

enum { MOST = 1037 };

/* Gradients of one's own between backward and update. */
static void put_gradient(dml_trainer *trainer, const float *from, size_t count)
{
    float *g = dml_trainer_get(trainer, DML_GRADIENTS, 0, count);
    CHECK(g);
    memcpy(g, from, count * sizeof *g);
    CHECK_INT(dml_trainer_put(trainer, DML_GRADIENTS, 0, count), DML_OK);
}

static void check_optimizer(const dml_optimizer *optimizer, int n)
{
    static double w[MOST], state[2][MOST];
    static float g[MOST];
    unsigned random = 9;
    dml_optimizer now = *optimizer;
    dml_context *context = open_here(NULL);
    dml_graph *graph = dml_graph_create(context);
    dml_node *p = dml_parameter(graph, "p", dml_init_uniform(-1, 1), n);
    dml_trainer *t = dml_trainer_create(dml_mean_squared_error(p, p),
                                        &(dml_trainer_options){ .batch = 1, .optimizer = *optimizer });
    CHECK_MESSAGE(t, "%s", dml_error(context));
    if (!t) return;
    const size_t count = (size_t)n;
    const int states = dml_optimizer_states(optimizer);
    CHECK_INT(dml_trainer_vectors(t), DML_OPTIMIZER_STATE + states);
    const float *got = dml_trainer_get(t, DML_PARAMETERS, 0, count);
    for (int i = 0; i < n; i++) w[i] = (double)got[i], state[0][i] = state[1][i] = 0;
    for (int step = 0; step < 6; step++) {
        test_fill(&random, g, count);
        if (step == 3) dml_trainer_set_lr(t, 0.01f);
        if (step == 4) dml_trainer_set_lr(t, 0); /* only the state moves */
        if (step == 5) dml_trainer_set_lr(t, 0.3f);
        CHECK_INT(dml_trainer_backward(t, 1, NULL, 0, DML_OVERWRITE, NULL), DML_OK);
        put_gradient(t, g, count);
        if (step % 2) {
            CHECK_INT(dml_trainer_update(t), DML_OK);
        } else { /* the same in three ranges, one of them empty */
            CHECK_INT(dml_trainer_update_range(t, count / 3, count), DML_OK);
            CHECK_INT(dml_trainer_update_range(t, 0, 0), DML_OK);
            CHECK_INT(dml_trainer_update_range(t, 0, count / 3), DML_OK);
            CHECK_INT(dml_trainer_steps(t), step);
            CHECK_INT(dml_trainer_advance(t), DML_OK);
        }
        now.lr = dml_trainer_lr(t);
        reference_update(&now, step + 1, count, w, state[0], state[1], g);
        got = dml_trainer_get(t, DML_PARAMETERS, 0, count);
        for (int i = 0; i < n; i++)
            CHECK_MESSAGE(fabs((double)got[i] - w[i]) <= 4e-6 * fmax(1, fabs(w[i])),
                          "kind %d, step %d: w[%d] is %.9g, not %.9g", (int)now.kind, step, i, (double)got[i],
                          w[i]);
        for (int s = 0; s < states; s++) {
            got = dml_trainer_get(t, DML_OPTIMIZER_STATE + s, 0, count);
            for (int i = 0; i < n; i++) CHECK_NEAR(got[i], state[s][i], 4e-6 * fmax(1, fabs(state[s][i])));
        }
    }
    CHECK_INT(dml_trainer_steps(t), 6);
    dml_close(context);
}

static void every_optimizer(void)
{
    for (int i = 0; i < UPDATE_VARIANTS; i++) {
        check_optimizer(&update_variants[i], 37);
        if (slow_here()) continue;
        check_optimizer(&update_variants[i], 1);
        check_optimizer(&update_variants[i], MOST);
    }
}
EACH_BACKEND(every_optimizer)

static dml_context *context;

static dml_trainer *trainer_with(dml_optimizer optimizer)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *p = dml_parameter(graph, "p", dml_init_constant(1), 3);
    return dml_trainer_create(dml_mean_squared_error(p, p),
                              &(dml_trainer_options){ .batch = 1, .optimizer = optimizer });
}

static void check_refused(dml_optimizer optimizer, const char *part)
{
    CHECK(!trainer_with(optimizer));
    CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), part);
    dml_clear_error(context);
}

static void bad_numbers(void)
{
    context = dml_open(NULL);
    check_refused((dml_optimizer){ .kind = DML_SGD, .lr = NAN }, "lr nan");
    check_refused((dml_optimizer){ .kind = DML_SGD, .lr = -0.1f }, "lr -0.1");
    check_refused((dml_optimizer){ .kind = DML_SGD, .lr = HUGE_VALF }, "lr inf");
    check_refused((dml_optimizer){ .kind = DML_SGD, .lr = 0.1f, .momentum = NAN }, "momentum nan");
    check_refused((dml_optimizer){ .kind = DML_SGD, .lr = 0.1f, .momentum = -0.5f }, "momentum -0.5");
    check_refused((dml_optimizer){ .kind = DML_SGD, .lr = 0.1f, .momentum = 1 }, "below 1");
    check_refused((dml_optimizer){ .kind = DML_SGD, .lr = 0.1f, .weight_decay = NAN }, "weight_decay nan");
    check_refused((dml_optimizer){ .kind = DML_SGD, .lr = 0.1f, .weight_decay = -1 }, "weight_decay -1");
    check_refused((dml_optimizer){ .kind = DML_SGD, .lr = 0.1f, .weight_decay = HUGE_VALF },
                  "weight_decay inf");
    check_refused((dml_optimizer){ .kind = DML_SGD, .lr = 0.1f, .nesterov = true }, "Nesterov");
    check_refused((dml_optimizer){ .kind = DML_ADAM, .beta1 = 1 }, "adam with beta1 1");
    check_refused((dml_optimizer){ .kind = DML_ADAMW, .beta2 = -0.5f }, "adamw with beta2 -0.5");
    check_refused((dml_optimizer){ .kind = DML_ADAM, .epsilon = NAN }, "adam with epsilon nan");
    check_refused((dml_optimizer){ .kind = DML_ADAMW, .weight_decay = -1 }, "adamw with weight_decay -1");
    check_refused((dml_optimizer){ .kind = DML_RMSPROP, .alpha = 1.5f }, "rmsprop with alpha 1.5");
    check_refused((dml_optimizer){ .kind = DML_RMSPROP, .momentum = 1 }, "rmsprop with momentum 1");
    check_refused((dml_optimizer){ .kind = DML_ADAGRAD, .epsilon = -1 }, "adagrad with epsilon -1");
    check_refused((dml_optimizer){ .kind = DML_LARS, .trust = -1 }, "lars with trust -1");
    check_refused((dml_optimizer){ .kind = DML_LAMB, .beta1 = NAN }, "lamb with beta1 nan");
    check_refused((dml_optimizer){ .kind = (dml_optimizer_kind)99, .lr = 0.1f }, "kind 99");

    dml_trainer *t = trainer_with((dml_optimizer){ 0 });
    CHECK_MESSAGE(t, "%s", dml_error(context));
    CHECK_NEAR(dml_trainer_lr(t), 0.01, 1e-9); /* the default */
    const float bad[] = { NAN, -0.1f, HUGE_VALF };
    for (int i = 0; i < 3; i++) {
        dml_trainer_set_lr(t, bad[i]);
        CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "learning rate");
        CHECK_NEAR(dml_trainer_lr(t), 0.01, 1e-9);
        dml_clear_error(context);
    }
    dml_close(context);
}

static void what_sgd_makes(void)
{
    const dml_optimizer o = dml_sgd(0.5f, 0.25f);
    CHECK(o.kind == DML_SGD && o.lr == 0.5f && o.momentum == 0.25f && o.weight_decay == 0 && !o.nesterov);
    context = dml_open(NULL);
    dml_trainer *t = trainer_with((dml_optimizer){ .kind = DML_SGD, .lr = 1e6f, .weight_decay = 1e6f });
    CHECK(t); /* the largest there are */
    dml_trainer_set_lr(t, 1);
    dml_trainer_set_lr(t, 1e6f);
    CHECK(dml_trainer_lr(t) == 1e6f && dml_status_of(context) == DML_OK);
    check_refused((dml_optimizer){ .kind = DML_SGD, .lr = 1.1e6f }, "lr 1.1e+06");
    check_refused((dml_optimizer){ .kind = DML_SGD, .lr = 0.1f, .weight_decay = 1.1e6f },
                  "weight_decay 1.1e+06");
    dml_close(context);
}

/* LARS' step has the length of w, however large g is. */
static void lars_of_a_large_gradient(void)
{
    float after[2];
    for (int i = 0; i < 2; i++) {
        const float g[3] = { i ? 1e25f : 1, 0, 0 };
        context = dml_open(NULL);
        dml_trainer *t = trainer_with(dml_lars(0.5f, 0));
        CHECK_INT(dml_trainer_backward(t, 1, NULL, 0, DML_OVERWRITE, NULL), DML_OK);
        put_gradient(t, g, 3);
        CHECK_INT(dml_trainer_update(t), DML_OK);
        after[i] = dml_trainer_get(t, DML_PARAMETERS, 0, 3)[0];
        dml_close(context);
    }
    CHECK(after[0] < 1);
    CHECK_NEAR(after[1], after[0], 1e-6);
}

/* Adam whose first moment is the gradient itself. */
static void zero_that_is_no_default(void)
{
    dml_optimizer o = dml_adam(0.1f);
    float w = 1, m = 0, v = 0, *const state[] = { &m, &v };
    double want = 1, squares = 0;
    o.beta1 = DML_ZERO;
    for (int step = 0; step < 4; step++) {
        const float g = 0.5f - 0.3f * (float)step;
        CHECK_INT(dml_optimizer_update(&o, NULL, (uint64_t)step, 1, &w, &g, state), DML_OK);
        squares = 0.999 * squares + 0.001 * (double)g * (double)g;
        want -= 0.1 * (double)g / (sqrt(squares / (1 - pow(0.999, step + 1))) + 1e-8);
        CHECK_NEAR(w, want, 1e-6);
    }
}

/* What a kind doesn't use is neither checked nor filled in. */
static void defaults(void)
{
    const dml_optimizer made[] = { dml_sgd(0, 0), dml_adam(0), dml_adamw(0, 0.5f), dml_rmsprop(0),
                                   dml_adagrad(0) };
    const dml_optimizer want[] = {
        { .kind = DML_SGD, .lr = 0.01f },
        { .kind = DML_ADAM, .lr = 0.001f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f },
        { .kind = DML_ADAMW,
          .lr = 0.001f,
          .weight_decay = 0.5f,
          .beta1 = 0.9f,
          .beta2 = 0.999f,
          .epsilon = 1e-8f },
        { .kind = DML_RMSPROP, .lr = 0.01f, .alpha = 0.99f, .epsilon = 1e-8f },
        { .kind = DML_ADAGRAD, .lr = 0.01f, .epsilon = 1e-10f },
    };
    context = dml_open(NULL);
    for (int k = 0; k < 5; k++) {
        dml_trainer *t = trainer_with(made[k]);
        CHECK_MESSAGE(t, "%s", dml_error(context));
        dml_optimizer got = dml_trainer_get_run(t).optimizer, all = want[k];
        CHECK(got.kind == want[k].kind && !got.nesterov);
        const char *name = NULL;
        float *number;
        int i = 0;
        for (; (number = dml_optimizer_number(&got, i, &name)) != NULL; i++)
            CHECK_MESSAGE(*number == *dml_optimizer_number(&all, i, NULL), "%s of kind %d is %g", name, k,
                          (double)*number);
        CHECK(i == 8 && !dml_optimizer_number(&got, -1, NULL) && !dml_optimizer_number(NULL, 0, NULL));
    }
    CHECK(trainer_with((dml_optimizer){ .kind = DML_SGD, .beta1 = -3, .epsilon = NAN }));
    dml_close(context);
}

int main(void)
{
    RUN(zero_that_is_no_default);
    RUN(defaults);
    RUN_EACH(every_optimizer);
    RUN(bad_numbers);
    RUN(what_sgd_makes);
    RUN(lars_of_a_large_gradient);
    return test_report("train/optimizer");
}
