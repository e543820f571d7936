/* Replicas in one process: what is refused, and who is named when one fails. */
#include "mirrored_replicas.h"

static void refused(const char *const *devices, int count, const dml_mirrored_options *options,
                    const char *sentence)
{
    dml_context *context = open_seeded();
    CHECK(!dml_mirrored_create(build_loss(context, false), devices, count, options));
    CHECK_CONTAINS(dml_error(context), sentence);
    dml_close(context);
}

static void what_is_refused(void)
{
    dml_mirrored_options options = usual(2).options;
    refused(cpus, 0, &options, "0 devices given; 1 to 64 are possible");
    refused(NULL, 2, &options, "dml_mirrored_create was given no devices");
    refused(cpus, 2, NULL, "there is no default batch");
    const char *const hole[] = { "cpu", NULL };
    refused(hole, 2, &options, "device 2 of 2 is NULL");
    const char *const absent[] = { "cpu", "cpu:7" };
    refused(absent, 2, &options, "replica 1: no device 'cpu:7': 1 cpu device found");
    const char *const odd[] = { "cpu*1", "cpu*0" }, *const many[] = { "cpu*4097" }, *const no[] = { "cpu*" };
    refused(odd, 2, &options,
            "device 2 of 2 is 'cpu*0': behind the * stands how many threads it takes, a whole");
    refused(many, 1, &options, "device 1 of 1 is 'cpu*4097': behind the * stands");
    refused(no, 1, &options, "number from 1 to 4096");
    options.most_rows = 5;
    refused(cpus, 2, &options, "most_rows 5 asked for, but 2 replicas must have room for a batch of 23: 12");
    options.most_rows = 0;
    options.placement = (dml_placement)9;
    refused(cpus, 2, &options, "there is no placement 9");
    options = usual(2).options;
    options.trainer.batch = 0;
    refused(cpus, 2, &options, "a batch of 0 asked for");
    options.trainer.batch = 4;
    options.trainer.clip_norm = -1;
    refused(cpus, 2, &options, "replica 0 (cpu): clip_norm -1 asked for");
    options = usual(2).options;
    options.trainer.watch_count = 1;
    refused(cpus, 2, &options, "1 nodes to watch were named");
    options = usual(2).options;
    options.timeout_s = -1;
    refused(cpus, 2, &options,
            "no communicator of 2 replicas can be had: dml_comm_open: timeout_s is -1, not a "
            "number of seconds");
    CHECK(!dml_mirrored_create(NULL, cpus, 2, &options));
    CHECK_INT(dml_mirrored_step(NULL, 1, NULL, 0, NULL), DML_ERROR_ARGUMENT);
    dml_mirrored_destroy(NULL);
}

/* Nothing is run, and the step can be made again. */
static void refused_steps_can_be_tried_again(void)
{
    run like = usual(3);
    like.options.even = true;
    model s = open_model(&like);
    float x[IN] = { 0 };
    static const struct refusal {
        int rows, count, bad_label;
        const char *sentence;
    } refusals[] = { { 0, 2, -1, "a step of 0 samples asked for; these replicas take 1 to 23" },
                     { 24, 2, -1, "a step of 24 samples" },
                     { 23, 1, -1, "1 inputs were given, the program takes 2" },
                     { 23, 2, 3, "sample 3 of the batch is 9, it must be in 0 .. 2" },
                     { 23, 2, 22,
                       "sample 6 of the batch is 9, it must be in 0 .. 2; the first of these "
                       "samples is number 16" } };
    for (int i = 0; i < 5; i++) {
        int32_t t[24] = { 0 };
        if (refusals[i].bad_label >= 0) t[refusals[i].bad_label] = 9;
        CHECK_INT(
            dml_mirrored_step(s.m, refusals[i].rows, DML_INPUTS(s.x, t) - (2 - refusals[i].count), NULL),
            DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(s.context), refusals[i].sentence);
        dml_clear_error(s.context);
        CHECK_INT(dml_mirrored_step(s.m, MAX_BATCH, DML_INPUTS(s.x, s.t), NULL), DML_OK);
    }
    CHECK_INT(dml_mirrored_backward(s.m, 1, DML_INPUTS(x, s.t), 8, NULL), DML_ERROR_ARGUMENT);
    dml_clear_error(s.context);
    CHECK_INT(dml_mirrored_backward(s.m, 1, DML_INPUTS(x, s.t), DML_MORE, NULL), DML_OK);
    CHECK_INT(dml_mirrored_update(s.m), DML_ERROR_STATE);
    dml_clear_error(s.context);
    CHECK_INT(dml_mirrored_backward(s.m, 5, DML_INPUTS(s.x, s.t), DML_ADD, NULL), DML_OK);
    CHECK_INT(dml_mirrored_update(s.m), DML_OK);
    CHECK_INT(dml_trainer_steps(dml_mirrored_trainer(s.m, 2)), 6);
    dml_graph_destroy(s.graph);
    CHECK_CONTAINS(dml_error(s.context), "can't be destroyed before");
    dml_close(s.context);
}

/* An update that a trainer would refuse is refused before any replica moves, wherever the sums are. */
static void updates_without_a_gradient(void)
{
    for (int place = 0; place < 3; place++) {
        run like = usual(3);
        like.options.placement = (dml_placement)place;
        like.options.trainer.optimizer = dml_lars(0.05f, 0.9f); /* which uses a gradient up */
        model s = open_model(&like);
        if (!s.m) continue;
        for (int round = 0; round < 2; round++) {
            CHECK_INT(dml_mirrored_update(s.m), DML_ERROR_STATE);
            CHECK_CONTAINS(dml_error(s.context),
                           "an update, but there is no gradient: no backward pass was made");
            dml_clear_error(s.context);
            CHECK_INT(dml_mirrored_backward(s.m, MAX_BATCH, DML_INPUTS(s.x, s.t), DML_OVERWRITE, NULL),
                      DML_OK);
            CHECK_INT(dml_mirrored_update(s.m), DML_OK);
        }
        CHECK_INT(dml_trainer_steps(dml_mirrored_trainer(s.m, 2)), 2);
        dml_close(s.context);
    }
}

static void check_failure(const run *r, int broken, dml_status status, const char *sentence)
{
    model s = open_model(r);
    if (!s.m) return;
    dml_context *context = dml_trainer_context(dml_mirrored_trainer(s.m, broken));
    for (int step = 0; step < 3 && status != DML_ERROR_TIMEOUT; step++)
        CHECK_INT(dml_mirrored_step(s.m, MAX_BATCH, DML_INPUTS(s.x, s.t), NULL), DML_OK);
    broken_cpu = *context->device.backend;
    broken_cpu.write = broken_write;
    context->device.backend = &broken_cpu;
    const double before = dml_seconds();
    for (int again = 0; again < 3; again++) {
        CHECK_INT(dml_mirrored_step(s.m, MAX_BATCH, DML_INPUTS(s.x, s.t), NULL), status);
        CHECK_CONTAINS(dml_error(s.context), sentence);
        dml_clear_error(s.context);
    }
    CHECK(dml_seconds() - before < 20);
    if (broken) dml_mirrored_destroy(s.m);
    dml_close(s.context);
}

static void a_replica_that_fails_is_named(void)
{
    for (int broken = 0; broken < 3; broken++)
        for (int p = 0; p <= DML_PLACE_EACH_STEP; p++) {
            char sentence[96];
            run like = usual(3);
            like.options.placement = (dml_placement)p;
            like.norms = broken == 1;
            snprintf(sentence, sizeof sentence, "replica %d (cpu): %sout of order", broken,
                     like.norms ? "forward pass of 'batch_norm_1': " : "");
            hangs = 0;
            check_failure(&like, broken, DML_ERROR_DEVICE, sentence);
        }
}

static void a_replica_that_hangs_is_named(void)
{
    run like = usual(3);
    like.options.timeout_s = 1; /* of which other programs may take a part */
    hangs = 2.5;
    check_failure(&like, 1, DML_ERROR_TIMEOUT, "the ranks are cpu, cpu, cpu");
}

/* NaNs among the rows of one replica. */
static void a_number_that_is_none(void)
{
    run like = usual(2);
    like.options.even = true;
    like.options.trainer.check = DML_CHECK_FINITE;
    model s = open_model(&like);
    s.x[20 * IN] = NAN;
    CHECK_INT(dml_mirrored_step(s.m, MAX_BATCH, DML_INPUTS(s.x, s.t), NULL), DML_ERROR_NUMBER);
    CHECK_CONTAINS(dml_error(s.context), "replica 1 (cpu): ");
    dml_close(s.context);
}

/* A process whose replica fails takes the others along at once. */
static void fail_as_process(test_rank *me)
{
    run like = usual(2);
    like.options.comm = me->comm;
    like.options.trainer.check = DML_CHECK_FINITE;
    dml_context *context = open_seeded();
    dml_mirrored *m = dml_mirrored_create(build_loss(context, false), cpus, 2, &like.options);
    float x[MAX_BATCH * IN];
    int32_t t[MAX_BATCH];
    make_batch(0, MAX_BATCH, x, t);
    me->bad += dml_mirrored_step(m, MAX_BATCH, DML_INPUTS(x, t), NULL) != DML_OK;
    const double before = dml_seconds();
    if (me->rank == 1) x[MAX_BATCH * IN - 1] = NAN;
    me->bad += dml_mirrored_step(m, MAX_BATCH, DML_INPUTS(x, t), NULL) != DML_ERROR_NUMBER;
    me->bad += !strstr(dml_error(context), "replica 1 (cpu): ");
    if (me->bad) printf("rank %d: %s\n", me->rank, dml_error(context));
    me->bad += dml_seconds() - before > 20;
    dml_close(context);
}

static void a_replica_that_fails_elsewhere(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 30, fail_as_process, NULL);
    ranks_run_on(ranks, 2, "local");
    for (int r = 0; r < 2; r++) CHECK_INT(ranks[r].bad, 0);
}

static void open_unlike(test_rank *me)
{
    run like = usual(2);
    like.options.comm = me->comm;
    like.options.placement = me->rank ? DML_PLACE_CENTRAL : DML_PLACE_MIRRORED;
    dml_context *context = open_seeded();
    const dml_mirrored *m = dml_mirrored_create(build_loss(context, false), cpus, 2, &like.options);
    me->bad = m || dml_status_of(context) != DML_ERROR_MISMATCH ||
              !strstr(dml_error(context), "rank 1 differs from rank 0 in the strategy's placement (central, "
                                          "where rank 0 has mirrored); all ranks need the same");
    if (me->bad) printf("rank %d: %s\n", me->rank, dml_error(context));
    dml_close(context);
}

static void processes_place_alike(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 30, open_unlike, NULL);
    ranks_run_on(ranks, 2, "local");
    for (int r = 0; r < 2; r++) CHECK_INT(ranks[r].bad, 0);
}

static void without_threads(void)
{
    const dml_mirrored_options options = usual(2).options;
    refused(cpus, 2, &options, "replicas need threads, and this is built without");
}

int main(void)
{
    if (!THREADS) {
        RUN(without_threads);
        return test_report("dist/mirrored_failure");
    }
    RUN(what_is_refused);
    RUN(refused_steps_can_be_tried_again);
    RUN(updates_without_a_gradient);
    RUN(a_replica_that_fails_is_named);
    RUN(a_replica_that_hangs_is_named);
    RUN(a_number_that_is_none);
    RUN(a_replica_that_fails_elsewhere);
    RUN(processes_place_alike);
    return test_report("dist/mirrored_failure");
}
