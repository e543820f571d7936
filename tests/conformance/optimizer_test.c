/* What PyTorch computes, computed by ours on every backend: optimizers with their awkward options, clipping,
   parameters with scales of their own; learning-rate schedules. */
#include "train/trainer.h"

#include "graph/weights.h"
#include "ops/op_arithmetic.h"
#include "ops/op_loss.h"
#include "train/parameter_group.h"
#include "train/schedule.h"

#include "../graph/backends.h"

typedef struct optimizer_case {
    const char *name;
    int gradients; /* which */
    dml_optimizer optimizer;
    float lr_scale; /* of the second parameter; 0: 1 */
    bool no_decay;  /* of the second parameter */
    float clip_norm, clip_value;
    float norm[5], after[5][10]; /* before the norm is clipped; w */
} optimizer_case;

typedef struct plateau_case {
    int measures; /* which */
    dml_plateau plateau;
    float lr[16];
} plateau_case;

#include "optimizer_cases.h"

static void check_case(const optimizer_case *c)
{
    dml_context *context = open_here(NULL);
    dml_graph *graph = dml_graph_create(context);
    dml_node *p = dml_parameter(graph, "p", dml_init_constant(0), 2, 3),
             *q = dml_parameter(graph, "q", dml_init_constant(0), 4);
    if (c->lr_scale != 0) dml_parameter_set_lr_scale(q, c->lr_scale);
    if (c->no_decay) dml_graph_decay_matrices_only(graph);
    dml_node *first = dml_mean_squared_error(p, p), *second = dml_mean_squared_error(q, q);
    dml_node *loss = dml_add(first, second);
    dml_trainer *t = dml_trainer_create(loss, &(dml_trainer_options){ .batch = 1,
                                                                      .optimizer = c->optimizer,
                                                                      .clip_norm = c->clip_norm,
                                                                      .clip_value = c->clip_value });
    CHECK_MESSAGE(t, "%s", dml_error(context));
    if (!t) return;
    CHECK_INT(dml_parameter_write(p, case_start, 6), DML_OK);
    CHECK_INT(dml_parameter_write(q, case_start + 6, 4), DML_OK);
    for (int step = 0; step < CASE_STEPS; step++) {
        CHECK_INT(dml_trainer_backward(t, 1, NULL, 0, DML_OVERWRITE, NULL), DML_OK);
        float *g = dml_trainer_host(t, DML_GRADIENTS, 0, CASE_N);
        memcpy(g, case_gradients[c->gradients][step], CASE_N * sizeof *g);
        CHECK_INT(dml_trainer_put(t, DML_GRADIENTS, 0, CASE_N), DML_OK);
        CHECK_INT(dml_trainer_update(t), DML_OK);
        const double norm = (double)c->norm[step];
        CHECK_NEAR(dml_trainer_gradient_norm(t), norm, 1e-6 * norm);
        const float *w = dml_trainer_get(t, DML_PARAMETERS, 0, CASE_N);
        for (int i = 0; i < CASE_N; i++) {
            const double want = (double)c->after[step][i];
            CHECK_MESSAGE(fabs((double)w[i] - want) <= 1e-6 * fmax(1, fabs(want)),
                          "%s, gradients %d, step %d: w[%d] is %.9g, PyTorch's is %.9g", c->name,
                          c->gradients, step, i, (double)w[i], want);
        }
    }
    dml_close(context);
}

static void optimizers(void)
{
    for (size_t i = 0; i < sizeof optimizer_cases / sizeof optimizer_cases[0]; i++)
        check_case(&optimizer_cases[i]);
}
EACH_BACKEND(optimizers)

static dml_schedule one_cycle(float highest, uint64_t steps, float rise, float start, float end)
{
    dml_schedule schedule = dml_schedule_one_cycle(highest, steps);
    schedule.rise = rise;
    schedule.start = start;
    schedule.end = end;
    return schedule;
}

static void check_schedule(const char *what, dml_schedule schedule, const double *want)
{
    for (uint64_t step = 0; step < SCHEDULE_STEPS; step++) {
        const double lr = (double)dml_schedule_lr(&schedule, step);
        CHECK_MESSAGE(fabs(lr - want[step]) <= 1e-6 * want[step] + 1e-9,
                      "%s, step %d: %.9g, PyTorch's is %.9g", what, (int)step, lr, want[step]);
    }
}

static void schedules(void)
{
#define CHECK_SCHEDULE(schedule, ...) check_schedule(#schedule, schedule, (const double[]){ __VA_ARGS__ });
    SCHEDULE_CASES(CHECK_SCHEDULE)
}

static void plateaus(void)
{
    for (size_t i = 0; i < sizeof plateau_cases / sizeof plateau_cases[0]; i++) {
        dml_plateau plateau = plateau_cases[i].plateau;
        for (int m = 0; m < MEASURES; m++) {
            const float lr = dml_plateau_lr(&plateau, case_measures[plateau_cases[i].measures][m]);
            const double want = (double)plateau_cases[i].lr[m];
            CHECK_MESSAGE(fabs((double)lr - want) <= 1e-6 * want,
                          "case %d, measure %d: %.9g, PyTorch's is %.9g", (int)i, m, (double)lr, want);
        }
    }
}

int main(void)
{
    RUN_EACH(optimizers);
    RUN(schedules);
    RUN(plateaus);
    return test_report("conformance/optimizer");
}
