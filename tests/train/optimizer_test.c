/* Optimizers against their formulas in float64, over several steps, on every backend. */
#include "train/optimizer.h"

#include "ops/op_loss.h"
#include "train/trainer.h"

#include "../graph/backends.h"

enum { MOST = 1037 };

/* Gradients of one's own between backward and update. */
static void put_gradient(dml_trainer *trainer, const float *from, size_t count)
{
    float *g = dml_trainer_get(trainer, DML_GRADIENTS, 0, count);
    CHECK(g);
    memcpy(g, from, count * sizeof *g);
    CHECK_INT(dml_trainer_put(trainer, DML_GRADIENTS, 0, count), DML_OK);
}

/* Sutskever et al., without dampening: d = g + decay w; v = momentum v + d; w -= lr (nesterov ? d + momentum
 * v : v) */
static void reference_step(const dml_optimizer *o, double lr, size_t n, double *w, double *v, const float *g)
{
    for (size_t i = 0; i < n; i++) {
        const double d = g[i] + (double)o->weight_decay * w[i];
        v[i] = (double)o->momentum * v[i] + d;
        w[i] -= lr * (o->nesterov ? d + (double)o->momentum * v[i] : v[i]);
    }
}

static void check_optimizer(dml_optimizer optimizer, int n)
{
    static double w[MOST], v[MOST];
    static float g[MOST];
    unsigned random = 9;
    dml_context *context = open_here(NULL);
    dml_graph *graph = dml_graph_create(context);
    dml_node *p = dml_parameter(graph, "p", dml_init_uniform(-1, 1), n);
    dml_trainer *t = dml_trainer_create(dml_mean_squared_error(p, p), &(dml_trainer_options){ 1, optimizer });
    CHECK_MESSAGE(t, "%s", dml_error(context));
    if (!t) return;
    const size_t count = (size_t)n;
    CHECK_INT(dml_trainer_vectors(t), optimizer.momentum != 0 ? 3 : 2);
    const float *got = dml_trainer_get(t, DML_PARAMETERS, 0, count);
    for (int i = 0; i < n; i++) w[i] = got[i], v[i] = 0;
    for (int step = 0; step < 6; step++) {
        test_fill(&random, g, count);
        if (step == 3) dml_trainer_set_lr(t, 0.01f);
        if (step == 4) dml_trainer_set_lr(t, 0); /* only the velocity moves */
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
        reference_step(&optimizer, dml_trainer_lr(t), count, w, v, g);
        got = dml_trainer_get(t, DML_PARAMETERS, 0, count);
        for (int i = 0; i < n; i++)
            CHECK_MESSAGE(fabs(got[i] - w[i]) <= 2e-6, "step %d: w[%d] is %.9g, not %.9g", step, i,
                          (double)got[i], w[i]);
        if (optimizer.momentum == 0) continue;
        got = dml_trainer_get(t, DML_OPTIMIZER_STATE, 0, count);
        for (int i = 0; i < n; i++) CHECK_NEAR(got[i], v[i], 4e-6);
    }
    CHECK_INT(dml_trainer_steps(t), 6);
    dml_close(context);
}

static void sgd(void)
{
    const dml_optimizer variants[] = {
        { DML_SGD, 0.1f, 0, 0, false },     { DML_SGD, 0.1f, 0, 0.05f, false },
        { DML_SGD, 0.05f, 0.9f, 0, false }, { DML_SGD, 0.05f, 0.9f, 0.01f, false },
        { DML_SGD, 0.05f, 0.9f, 0, true },  { DML_SGD, 0.05f, 0.5f, 0.1f, true },
    };
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        check_optimizer(variants[i], 37);
        if (slow_here()) continue;
        check_optimizer(variants[i], 1);
        check_optimizer(variants[i], MOST);
    }
}
EACH_BACKEND(sgd)

static dml_context *context;

static dml_trainer *trainer_with(dml_optimizer optimizer)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *p = dml_parameter(graph, "p", dml_init_constant(1), 3);
    return dml_trainer_create(dml_mean_squared_error(p, p), &(dml_trainer_options){ 1, optimizer });
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
    check_refused((dml_optimizer){ DML_SGD, NAN, 0, 0, false }, "lr nan");
    check_refused((dml_optimizer){ DML_SGD, -0.1f, 0, 0, false }, "lr -0.1");
    check_refused((dml_optimizer){ DML_SGD, HUGE_VALF, 0, 0, false }, "lr inf");
    check_refused((dml_optimizer){ DML_SGD, 0.1f, NAN, 0, false }, "momentum nan");
    check_refused((dml_optimizer){ DML_SGD, 0.1f, -0.5f, 0, false }, "momentum -0.5");
    check_refused((dml_optimizer){ DML_SGD, 0.1f, 1, 0, false }, "below 1");
    check_refused((dml_optimizer){ DML_SGD, 0.1f, 0, NAN, false }, "weight decay nan");
    check_refused((dml_optimizer){ DML_SGD, 0.1f, 0, -1, false }, "weight decay -1");
    check_refused((dml_optimizer){ DML_SGD, 0.1f, 0, HUGE_VALF, false }, "weight decay inf");
    check_refused((dml_optimizer){ DML_SGD, 0.1f, 0, 0, true }, "Nesterov");
    check_refused((dml_optimizer){ (dml_optimizer_kind)9, 0.1f, 0, 0, false }, "kind 9");

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
    dml_trainer *t = trainer_with((dml_optimizer){ DML_SGD, 1e6f, 0, 1e6f, false });
    CHECK(t); /* the largest there are */
    dml_trainer_set_lr(t, 1);
    dml_trainer_set_lr(t, 1e6f);
    CHECK(dml_trainer_lr(t) == 1e6f && dml_status_of(context) == DML_OK);
    check_refused((dml_optimizer){ DML_SGD, 1.1e6f, 0, 0, false }, "lr 1.1e+06");
    check_refused((dml_optimizer){ DML_SGD, 0.1f, 0, 1.1e6f, false }, "weight decay 1.1e+06");
    dml_close(context);
}

int main(void)
{
    RUN_EACH(sgd);
    RUN(bad_numbers);
    RUN(what_sgd_makes);
    return test_report("train/optimizer");
}
