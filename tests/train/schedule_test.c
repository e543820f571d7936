/* Schedules at their ends and in a trainer; tests/conformance has their values. */
#include "train/schedule.h"

#include "train/checkpoint.h"

#include "small_model.h"

static void ends(void)
{
    dml_schedule s = dml_schedule_cosine(0.5f, 10, 0.125f);
    CHECK(dml_schedule_lr(&s, 0) == 0.5f && dml_schedule_lr(&s, 10) == 0.125f);
    CHECK(dml_schedule_lr(&s, UINT64_MAX) == 0.125f);
    s = dml_schedule_warm_up(dml_schedule_constant(2), 4, 0);
    CHECK(dml_schedule_lr(&s, 0) == 0 && dml_schedule_lr(&s, 3) == 1.5f && dml_schedule_lr(&s, 4) == 2);
    s = dml_schedule_polynomial(1, 4, 0); /* a line */
    CHECK(dml_schedule_lr(&s, 1) == 0.75f && dml_schedule_lr(&s, 4) == 0 && dml_schedule_lr(&s, 5) == 0);
    s = dml_schedule_exponential(1, 2); /* as for finding a learning rate */
    CHECK(dml_schedule_lr(&s, 3) == 8 && dml_schedule_lr(&s, 1000000) == 1e6f);
    s = dml_schedule_exponential(0, 2);
    CHECK(dml_schedule_lr(&s, 0) == 0 && dml_schedule_lr(&s, 1100) == 0);
    s = dml_schedule_step(0, 2, 10);
    CHECK(dml_schedule_lr(&s, 1100000) == 0);
    s = dml_schedule_one_cycle(1, 1);
    CHECK(dml_schedule_lr(&s, 0) >= 0 && dml_schedule_lr(&s, 9) >= 0);
    s = dml_schedule_one_cycle(1, 2); /* no step is left to rise */
    CHECK(isfinite(dml_schedule_lr(&s, 0)) && dml_schedule_lr(&s, 1) < 1e-5f);
    CHECK(isnan(dml_schedule_lr(NULL, 0)));
    s.kind = DML_SCHEDULE_NONE;
    CHECK(isnan(dml_schedule_lr(&s, 0)));
}

static void plateau_of_odd_measures(void)
{
    dml_plateau p = { .lr = 1, .minimum = 0.05f, .factor = 0.5f };
    CHECK(dml_plateau_lr(&p, NAN) == 0.5f); /* a bad measure, also as the first */
    CHECK(dml_plateau_lr(&p, -INFINITY) == 0.25f && dml_plateau_lr(&p, -3) == 0.25f);
    CHECK(dml_plateau_lr(&p, -3.5f) == 0.25f && dml_plateau_lr(&p, -3.25f) == 0.125f);
    CHECK(dml_plateau_lr(&p, NAN) == 0.0625f && dml_plateau_lr(&p, 1) == 0.05f);
    p.lr = 0.01f; /* it doesn't rise to the minimum */
    CHECK(dml_plateau_lr(&p, 1) == 0.01f);
    CHECK(isnan(dml_plateau_lr(NULL, 1)));
}

/* The learning rate of each step, and after a checkpoint of another trainer that follows the same. */
static void a_trainer_follows(void)
{
    const char *path = "schedule_test.tmp";
    dml_trainer_options options = { .batch = BATCH, .optimizer = dml_sgd(99, 0) };
    options.schedule = dml_schedule_warm_up(dml_schedule_linear(0.5f, 6, 0), 3, 0.125f);
    context = open_here(NULL);
    dml_node *loss = small_loss();
    dml_trainer *a = dml_trainer_create(loss, &options), *b = dml_trainer_create(loss, &options);
    CHECK_MESSAGE(a && b, "%s", dml_error(context));
    for (uint64_t step = 0; step < 10; step++) {
        float before[COUNT], after[COUNT], g[COUNT];
        const float lr = dml_schedule_lr(&options.schedule, step);
        CHECK(dml_trainer_lr(a) == lr);
        copy_vector(a, DML_PARAMETERS, before);
        CHECK_INT(dml_trainer_step(a, BATCH, inputs, 2, NULL), DML_OK);
        copy_vector(a, DML_PARAMETERS, after);
        copy_vector(a, DML_GRADIENTS, g);
        for (int i = 0; i < COUNT; i++)
            CHECK_NEAR(after[i], (double)before[i] - (double)lr * (double)g[i], 1e-6);
        if (step == 4) CHECK_INT(dml_trainer_save(a, path), DML_OK);
    }
    CHECK_INT(dml_trainer_load(b, path), DML_OK);
    CHECK(dml_trainer_steps(b) == 5 && dml_trainer_lr(b) == dml_schedule_lr(&options.schedule, 5));
    remove(path);
    dml_trainer_set_lr(a, 0.1f);
    CHECK_INT(dml_status_of(context), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "follows a schedule");
    dml_close(context);
}
EACH_BACKEND(a_trainer_follows)

static void bad_schedules(void)
{
    backend_here = find_backend("cpu");
    const struct {
        dml_schedule schedule;
        const char *part;
    } bad[] = {
        { dml_schedule_constant(-1), "lr -1" },
        { dml_schedule_constant(NAN), "lr nan" },
        { dml_schedule_step(1, 0, 0.5f), "0 steps; say in `steps` how many it has between drops" },
        { dml_schedule_step(1, 2, -0.5f), "factor -0.5" },
        { dml_schedule_cosine(1, 0, 0), "0 steps" },
        { dml_schedule_cosine(1, 5, INFINITY), "minimum inf" },
        { dml_schedule_polynomial(1, 5, -2), "power -2" },
        { dml_schedule_one_cycle(1, 0), "0 steps" },
        { dml_schedule_warm_up(dml_schedule_constant(1), 5, 1.5f), "warm_up_from 1.5" },
        { { .kind = (dml_schedule_kind)77 }, "kind 77" },
    };
    context = open_here(NULL);
    dml_node *loss = small_loss();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(isnan(dml_schedule_lr(&bad[i].schedule, 1)));
        const dml_trainer_options options = { .batch = BATCH, .schedule = bad[i].schedule };
        CHECK(!dml_trainer_create(loss, &options));
        CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), bad[i].part);
        dml_clear_error(context);
    }
    dml_close(context);
}

int main(void)
{
    RUN(ends);
    RUN(plateau_of_odd_measures);
    RUN_EACH(a_trainer_follows);
    RUN(bad_schedules);
    return test_report("train/schedule");
}
