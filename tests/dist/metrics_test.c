/* A metric's state summed over ranks is the metric of all ranks' rows. */
#include "train/metrics.h"

#include "../comm/ranks.h"

enum { WORLD = 3, ROWS = 24, CLASSES = 4 };

static float outputs[WORLD * ROWS * CLASSES];
static int32_t labels[WORLD * ROWS];

static const dml_metric_options kinds[] = {
    { .kind = DML_METRIC_ACCURACY, .columns = CLASSES },
    { .kind = DML_METRIC_TOP_K, .columns = CLASSES, .k = 2 },
    { .kind = DML_METRIC_CONFUSION, .columns = CLASSES },
    { .kind = DML_METRIC_ROC_AUC, .bins = 50 },
    { .kind = DML_METRIC_RMSE, .columns = CLASSES },
    { .kind = DML_METRIC_MAE, .columns = CLASSES },
    { .kind = DML_METRIC_PERPLEXITY, .columns = CLASSES },
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* Rows [from, to) of the whole; values are compared with their neighbours. */
static void add_rows(dml_metric *metric, const dml_metric_options *options, int from, int to)
{
    const float *x = outputs + from * CLASSES;
    int32_t two[WORLD * ROWS];
    float score[WORLD * ROWS];
    dml_status status;
    for (int i = 0; i < WORLD * ROWS; i++) two[i] = labels[i] > 1, score[i] = fabsf(outputs[i * CLASSES]);
    if (options->kind == DML_METRIC_RMSE || options->kind == DML_METRIC_MAE)
        status = dml_metric_add_values(metric, to - from, x, outputs + (WORLD * ROWS - to) * CLASSES);
    else if (options->kind == DML_METRIC_ROC_AUC)
        status = dml_metric_add_labels(metric, to - from, score + from, two + from);
    else
        status = dml_metric_add_labels(metric, to - from, x, labels + from);
    CHECK_INT(status, DML_OK);
}

/* The last rank has no rows of its own, the others very different numbers of them. */
static void sum_on_rank(test_rank *me)
{
    static const int first[WORLD + 1] = { 0, 7, WORLD * ROWS, WORLD * ROWS };
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    for (int k = 0; k < KINDS; k++) {
        size_t count;
        dml_metric *mine = dml_metric_create(context, &kinds[k]),
                   *whole = dml_metric_create(context, &kinds[k]);
        add_rows(mine, &kinds[k], first[me->rank], first[me->rank + 1]);
        for (int r = 0; r < WORLD; r++) add_rows(whole, &kinds[k], first[r], first[r + 1]);
        double *state = dml_metric_state(mine, &count);
        dml_comm_all_reduce(me->comm, state, count, DML_F64, DML_SUM);
        const double got = dml_metric_value(mine), want = dml_metric_value(whole);
        me->bad += !(fabs(got - want) <= 1e-14 * fabs(want));
        me->bad += dml_metric_error_bound(mine) != dml_metric_error_bound(whole);
        ranks_digest(me, state, count * sizeof *state);
    }
    me->bad += dml_status_of(context) != DML_OK;
    dml_close(context);
}

static void ranks_add_up(void)
{
    test_rank ranks[WORLD];
    unsigned seed = 3;
    test_fill(&seed, outputs, WORLD * ROWS * CLASSES);
    for (int i = 0; i < WORLD * ROWS; i++) labels[i] = (int32_t)(test_random(&seed) % CLASSES);
    ranks_prepare(ranks, WORLD, 20, sum_on_rank, NULL);
    ranks_run(ranks, WORLD);
    check_ranks(ranks, WORLD);
}

int main(void)
{
    RUN(ranks_add_up);
    return test_report("dist/metrics");
}
