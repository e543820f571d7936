/* Metrics against numbers worked out by hand, and against their definitions in float64 on random batches. */
#include "train/metrics.h"

#include "../test.h"

#include <stdint.h>

enum { ROWS = 60, COLUMNS = 5 };

static dml_context *context;

static dml_metric *metric_of(dml_metric_options options)
{
    dml_metric *metric = dml_metric_create(context, &options);
    CHECK_MESSAGE(metric, "%s", dml_error(context));
    return metric;
}

static void open_context(void)
{
    context = dml_open(&(dml_options){ .threads = 1 });
}

/* Rows of outputs that are multiples of 1/4, so that ties happen, and labels. */
static void make_rows(unsigned seed, float *x, int32_t *labels, int classes)
{
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(test_random(&seed) % 9) / 4 - 1;
    for (int i = 0; i < ROWS; i++) labels[i] = (int32_t)(test_random(&seed) % (unsigned)classes);
}

/* In batches of 0 to 9 rows. */
static void add_in_batches(dml_metric *metric, const float *x, int columns, const int32_t *labels)
{
    for (int i = 0, size = 0; i < ROWS; i += size, size = (size + 3) % 10) {
        if (size > ROWS - i) size = ROWS - i;
        CHECK_INT(dml_metric_add_labels(metric, size, x + i * columns, labels + i), DML_OK);
    }
}

/* Three classes, by hand: rows of labels 0 0 1 1 2, predictions 0 1 1 1 0. */
static void by_hand(void)
{
    static const float x[] = { 3, 1, 2, 0, 2, 1, -1, 4, 0, 1, 1.5f, 1, 2, 0, 1 };
    static const int32_t labels[] = { 0, 0, 1, 1, 2 };
    dml_metric_scores s;
    open_context();
    dml_metric *accuracy = metric_of((dml_metric_options){ DML_METRIC_ACCURACY, .columns = 3 });
    dml_metric *top = metric_of((dml_metric_options){ DML_METRIC_TOP_K, .columns = 3, .k = 2 });
    dml_metric *table = metric_of((dml_metric_options){ DML_METRIC_CONFUSION, .columns = 3 });
    dml_metric *const all[] = { accuracy, top, table };
    for (int i = 0; i < 3; i++) CHECK_INT(dml_metric_add_labels(all[i], 5, x, labels), DML_OK);
    CHECK_NEAR(dml_metric_value(accuracy), 3.0 / 5, 0);
    CHECK_NEAR(dml_metric_value(top), 4.0 / 5, 0);
    CHECK_NEAR(dml_metric_value(table), 3.0 / 5, 0);
    CHECK_INT(dml_metric_class(table, 0, &s), DML_OK);
    CHECK(s.precision == 0.5 && s.recall == 0.5 && s.f1 == 0.5 && s.support == 2);
    CHECK_INT(dml_metric_class(table, 1, &s), DML_OK);
    CHECK_NEAR(s.precision, 2.0 / 3, 1e-15);
    CHECK(s.recall == 1 && fabs(s.f1 - 0.8) < 1e-15 && s.support == 2);
    CHECK_INT(dml_metric_class(table, 2, &s), DML_OK); /* never predicted: 0, not NaN */
    CHECK(s.precision == 0 && s.recall == 0 && s.f1 == 0 && s.support == 1);
    CHECK_INT(dml_metric_average(table, DML_METRIC_MACRO, &s), DML_OK);
    CHECK_NEAR(s.precision, (0.5 + 2.0 / 3) / 3, 1e-15);
    CHECK_NEAR(s.recall, 0.5, 1e-15);
    CHECK_NEAR(s.f1, 1.3 / 3, 1e-15);
    CHECK(s.support == 5);
    CHECK_INT(dml_metric_average(table, DML_METRIC_WEIGHTED, &s), DML_OK);
    CHECK_NEAR(s.precision, 0.4 * 0.5 + 0.4 * 2 / 3, 1e-15);
    CHECK_NEAR(s.recall, 0.6, 1e-15);
    CHECK_INT(dml_metric_average(table, DML_METRIC_MICRO, &s), DML_OK);
    CHECK(s.precision == 0.6 && s.recall == 0.6 && s.f1 == 0.6 && s.support == 5);
    dml_metric_destroy(top);
    dml_close(context);
}

/* scikit-learn's own example of roc_auc_score, and ties. */
static void auc_by_hand(void)
{
    static const float scores[] = { 0.1f, 0.4f, 0.35f, 0.8f }, tied[] = { 0.5f, 0.5f, 0.5f, 0.7f },
                       zeros[] = { -0.0f, 0.0f };
    static const int32_t labels[] = { 0, 0, 1, 1 }, one[] = { 0, 1 };
    double auc;
    open_context();
    CHECK_INT(dml_roc_auc(context, 4, scores, labels, &auc), DML_OK);
    CHECK_NEAR(auc, 0.75, 0);
    CHECK_INT(dml_roc_auc(context, 4, tied, labels, &auc), DML_OK);
    CHECK_NEAR(auc, 0.75, 0); /* 2 pairs of 4 won, 2 tied */
    CHECK_INT(dml_roc_auc(context, 2, zeros, one, &auc), DML_OK);
    CHECK_NEAR(auc, 0.5, 0);
    CHECK_INT(dml_roc_auc(context, 2, scores, labels, &auc), DML_OK);
    CHECK(isnan(auc)); /* one class alone */
    CHECK_INT(dml_roc_auc(context, 0, NULL, NULL, &auc), DML_OK);
    CHECK(isnan(auc));
    dml_metric *binned = metric_of((dml_metric_options){ .kind = DML_METRIC_ROC_AUC });
    CHECK_INT(dml_metric_add_labels(binned, 4, scores, labels), DML_OK);
    CHECK_NEAR(dml_metric_value(binned), 0.75, 0);
    CHECK_NEAR(dml_metric_error_bound(binned), 0, 0);
    dml_close(context);
}

/* The area by its definition, over pairs. */
static double pairs_auc(int n, const float *scores, const int32_t *labels)
{
    double won = 0, pairs = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            if (labels[i] != 1 || labels[k] != 0) continue;
            pairs++;
            won += scores[i] > scores[k] ? 1 : scores[i] == scores[k] ? 0.5 : 0;
        }
    return won / pairs;
}

static void auc_of_random_scores(void)
{
    float scores[ROWS];
    int32_t labels[ROWS];
    unsigned seed = 5;
    double auc;
    open_context();
    for (int trial = 0; trial < 20; trial++) {
        for (int i = 0; i < ROWS; i++) {
            test_fill(&seed, &scores[i], 1);
            if (trial % 3 == 0) scores[i] = (float)(int)(scores[i] * 5);
            if (trial % 3 == 1) scores[i] *= powf(10, (float)(i % 60) - 30);
            labels[i] = scores[i] + (float)(test_random(&seed) % 3) > 1;
        }
        labels[0] = 0, labels[1] = 1;
        const double want = pairs_auc(ROWS, scores, labels);
        CHECK_INT(dml_roc_auc(context, ROWS, scores, labels, &auc), DML_OK);
        CHECK_NEAR(auc, want, 1e-14);
        for (int bins = 1; bins <= 1000; bins *= 10) {
            dml_metric *metric = metric_of((dml_metric_options){ DML_METRIC_ROC_AUC, .bins = bins, .low = -1,
                                                                 .high = trial % 2 ? 0.5f : 1 });
            add_in_batches(metric, scores, 1, labels);
            const double bound = dml_metric_error_bound(metric);
            CHECK(bound <= 0.5 && (bins > 1 || bound == 0.5));
            CHECK_NEAR(dml_metric_value(metric), want, bound + 1e-14);
            dml_metric_destroy(metric);
        }
    }
    scores[0] = INFINITY, labels[0] = 1;
    CHECK_INT(dml_roc_auc(context, ROWS, scores, labels, &auc), DML_OK);
    CHECK_NEAR(auc, pairs_auc(ROWS, scores, labels), 1e-14);
    dml_close(context);
}

/* By sorting: the rank of the label among the classes. */
static int place_of(const float *row, int label)
{
    int place = 0;
    for (int c = 0; c < COLUMNS; c++) place += row[c] > row[label] || (row[c] == row[label] && c < label);
    return place;
}

static void classes_of_random_rows(void)
{
    float x[ROWS * COLUMNS];
    int32_t labels[ROWS];
    size_t count;
    double hits[COLUMNS] = { 0 }, nll = 0;
    open_context();
    make_rows(9, x, labels, COLUMNS);
    for (int i = 0; i < ROWS; i++) {
        double sum = 0;
        for (int k = place_of(x + i * COLUMNS, labels[i]); k < COLUMNS; k++) hits[k]++;
        for (int c = 0; c < COLUMNS; c++) sum += exp((double)x[i * COLUMNS + c]);
        nll -= log(exp((double)x[i * COLUMNS + labels[i]]) / sum);
    }
    for (int k = 1; k <= COLUMNS; k++) {
        dml_metric *top = metric_of((dml_metric_options){ DML_METRIC_TOP_K, .columns = COLUMNS, .k = k });
        add_in_batches(top, x, COLUMNS, labels);
        CHECK_NEAR(dml_metric_value(top), hits[k - 1] / ROWS, 1e-15);
    }
    dml_metric *accuracy = metric_of((dml_metric_options){ DML_METRIC_ACCURACY, .columns = COLUMNS });
    dml_metric *table = metric_of((dml_metric_options){ DML_METRIC_CONFUSION, .columns = COLUMNS });
    dml_metric *perplexity = metric_of((dml_metric_options){ DML_METRIC_PERPLEXITY, .columns = COLUMNS });
    add_in_batches(accuracy, x, COLUMNS, labels);
    add_in_batches(table, x, COLUMNS, labels);
    add_in_batches(perplexity, x, COLUMNS, labels);
    CHECK_NEAR(dml_metric_value(accuracy), hits[0] / ROWS, 1e-15);
    CHECK_NEAR(dml_metric_value(table), hits[0] / ROWS, 1e-15);
    CHECK_NEAR(dml_metric_value(perplexity), exp(nll / ROWS), 1e-12);
    const double *state = dml_metric_state(table, &count);
    CHECK_INT(count, COLUMNS * COLUMNS);
    for (int t = 0; t < COLUMNS; t++)
        for (int p = 0; p < COLUMNS; p++) {
            double want = 0;
            for (int i = 0; i < ROWS; i++) want += labels[i] == t && place_of(x + i * COLUMNS, p) == 0;
            CHECK_NEAR(state[t * COLUMNS + p], want, 0);
        }
    /* the same from losses; a label of a masked class is infinitely unlikely */
    dml_metric_reset(perplexity);
    CHECK(isnan(dml_metric_value(perplexity)));
    CHECK_INT(dml_metric_add_loss(perplexity, 3, 0.5), DML_OK);
    CHECK_INT(dml_metric_add_loss(perplexity, 1, 1.5), DML_OK);
    CHECK_INT(dml_metric_add_loss(perplexity, 0, INFINITY), DML_OK);
    CHECK_NEAR(dml_metric_value(perplexity), exp(0.75), 1e-15);
    const float masked[COLUMNS] = { 0, -INFINITY, 0, -INFINITY, -INFINITY };
    const int32_t label[] = { 2, 1 };
    dml_metric_reset(perplexity);
    CHECK_INT(dml_metric_add_labels(perplexity, 1, masked, label), DML_OK);
    CHECK_NEAR(dml_metric_value(perplexity), 2, 1e-15);
    CHECK_INT(dml_metric_add_labels(perplexity, 1, masked, label + 1), DML_OK);
    CHECK(isinf(dml_metric_value(perplexity)));
    dml_close(context);
}

static void two_classes_and_skipped_rows(void)
{
    static const float x[] = { -1, 0.25f, 2, 0, 3 };
    static const int32_t labels[] = { 0, 0, 1, -1, -7 };
    open_context();
    dml_metric *m = metric_of((dml_metric_options){ DML_METRIC_ACCURACY, .skip_negative = true });
    CHECK_INT(dml_metric_add_labels(m, 5, x, labels), DML_OK);
    CHECK_NEAR(dml_metric_value(m), 2.0 / 3, 1e-15);
    m = metric_of((dml_metric_options){ DML_METRIC_CONFUSION, .threshold = 0.5f, .skip_negative = true });
    CHECK_INT(dml_metric_add_labels(m, 5, x, labels), DML_OK);
    CHECK_NEAR(dml_metric_value(m), 1, 0);
    dml_close(context);
}

static void errors_of_values(void)
{
    static const float x[] = { 1, 2, 3, 4 }, y[] = { 1, 4, 3, 0 };
    open_context();
    dml_metric *rmse = metric_of((dml_metric_options){ DML_METRIC_RMSE, .columns = 2 });
    dml_metric *mae = metric_of((dml_metric_options){ .kind = DML_METRIC_MAE });
    CHECK(isnan(dml_metric_value(rmse)));
    CHECK_INT(dml_metric_add_values(rmse, 1, x, y), DML_OK);
    CHECK_INT(dml_metric_add_values(rmse, 0, NULL, NULL), DML_OK);
    CHECK_INT(dml_metric_add_values(rmse, 1, x + 2, y + 2), DML_OK);
    CHECK_NEAR(dml_metric_value(rmse), sqrt(20.0 / 4), 1e-15);
    CHECK_INT(dml_metric_add_values(mae, 4, x, y), DML_OK);
    CHECK_NEAR(dml_metric_value(mae), 6.0 / 4, 0);
    dml_close(context);
}

/* ---- refused ---- */

static void refused_options(void)
{
    static const struct {
        dml_metric_options options;
        const char *says;
    } bad[] = {
        { { .kind = DML__METRIC_KINDS }, "a metric of kind 7" },
        { { .kind = (dml_metric_kind)-1 }, "a metric of kind -1" },
        { { .columns = -1 }, "accuracy over -1 columns" },
        { { DML_METRIC_TOP_K, .columns = 1 }, "top k over 1 columns asked for; it takes 2 or more" },
        { { .kind = DML_METRIC_PERPLEXITY }, "perplexity over 1 columns" },
        { { DML_METRIC_ROC_AUC, .columns = 2 }, "ROC AUC over 2 columns asked for; it takes 1" },
        { { DML_METRIC_TOP_K, .columns = 4, .k = 5 }, "the top 5 of 4 classes" },
        { { DML_METRIC_TOP_K, .columns = 4, .k = -1 }, "the top -1 of 4 classes" },
        { { DML_METRIC_ROC_AUC, .bins = -1 }, "in -1 bins" },
        { { DML_METRIC_ROC_AUC, .low = 1, .high = 1 }, "from 1 to 1" },
        { { DML_METRIC_ROC_AUC, .low = NAN, .high = 1 }, "low below high" },
        { { DML_METRIC_ROC_AUC, .low = 0, .high = INFINITY }, "low below high" },
        { { .threshold = NAN }, "a threshold of NaN" },
    };
    open_context();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(!dml_metric_create(context, &bad[i].options));
        CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), bad[i].says);
        CHECK(!dml_metric_create(context, NULL)); /* the context has an error */
        dml_clear_error(context);
    }
    CHECK(!dml_metric_create(NULL, NULL));
    CHECK(dml_metric_create(context, NULL));
    dml_close(context);
}

#define REFUSED(call, says)                                                                                  \
    do {                                                                                                     \
        CHECK_INT(call, DML_ERROR_ARGUMENT);                                                                 \
        CHECK_CONTAINS(dml_error(context), says);                                                            \
        dml_clear_error(context);                                                                            \
    } while (0)

static void refused_batches(void)
{
    static const float x[] = { 1, 2, 3, NAN, 0, 1 }, infinite[] = { INFINITY, 0, 0 };
    static const int32_t labels[] = { 0, 3 }, negative[] = { 0, -1 };
    double auc;
    dml_metric_scores s;
    size_t count;
    open_context();
    dml_metric *m = metric_of((dml_metric_options){ DML_METRIC_ACCURACY, .columns = 3 });
    dml_metric *skips =
        metric_of((dml_metric_options){ DML_METRIC_ACCURACY, .columns = 3, .skip_negative = true });
    dml_metric *p = metric_of((dml_metric_options){ DML_METRIC_PERPLEXITY, .columns = 3 });
    dml_metric *v = metric_of((dml_metric_options){ DML_METRIC_MAE, .columns = 3 });
    dml_metric *table = metric_of((dml_metric_options){ DML_METRIC_CONFUSION, .columns = 3 });
    REFUSED(dml_metric_add_labels(m, 2, x, labels), "outputs with a NaN: element 0 of row 1 of 2");
    REFUSED(dml_metric_add_labels(m, 1, infinite, labels + 1),
            "the label of row 0 of 1 is 3, it must be in 0 .. 2");
    REFUSED(dml_metric_add_labels(m, 1, x, negative + 1), "the label of row 0 of 1 is -1");
    REFUSED(dml_metric_add_labels(skips, 1, infinite, labels + 1),
            "it must be in 0 .. 2, or below 0 to be left out");
    REFUSED(dml_metric_add_labels(m, -1, x, labels), "-1 rows, it takes 0 or more");
    REFUSED(dml_metric_add_labels(m, 1, NULL, labels), "1 rows, but no outputs (NULL)");
    REFUSED(dml_metric_add_labels(m, 1, x, NULL), "nothing to compare them with (NULL)");
    REFUSED(dml_metric_add_values(m, 1, x, x), "accuracy compares with labels: it is dml_metric_add_labels");
    REFUSED(dml_metric_add_labels(v, 1, x, labels), "a metric of MAE");
    REFUSED(dml_metric_add_values(v, 1, x, x + 3), "targets with a NaN: element 0 of row 0 of 1");
    REFUSED(dml_metric_add_labels(p, 1, infinite, labels), "largest in row 0 of 1 is infinite");
    REFUSED(dml_metric_add_loss(m, 1, 1), "only a perplexity takes losses");
    REFUSED(dml_metric_add_loss(p, 1, NAN), "no NaN");
    REFUSED(dml_metric_add_loss(p, -1, 1), "-1 samples");
    REFUSED(dml_metric_class(m, 0, &s), "a confusion has them");
    REFUSED(dml_metric_class(table, 3, &s), "for 0 to 2");
    REFUSED(dml_metric_class(table, -1, &s), "class -1");
    REFUSED(dml_metric_class(table, 0, NULL), "without a place for them");
    REFUSED(dml_metric_average(table, (dml_metric_mean)3, &s), "mean 3");
    CHECK(s.precision == 0 && s.support == 0);
    REFUSED(dml_roc_auc(context, 1, x, labels, NULL), "NULL for the result");
    REFUSED(dml_roc_auc(context, 1, NULL, labels, &auc), "NULL for the scores");
    REFUSED(dml_roc_auc(context, 1, x, NULL, &auc), "NULL for the labels");
    REFUSED(dml_roc_auc(context, 2, x, labels, &auc), "the label 3");
    REFUSED(dml_roc_auc(context, 1, x + 3, labels, &auc), "the score");
    CHECK(isnan(auc));
    CHECK(isnan(dml_metric_value(m)) && isnan(dml_metric_value(p)) && isnan(dml_metric_value(v)));
    CHECK_INT(dml_metric_average(table, DML_METRIC_MACRO, &s), DML_OK); /* of nothing: 0 */
    CHECK(s.precision == 0 && s.f1 == 0);
    CHECK_INT(dml_metric_add_labels(NULL, 1, x, labels), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_metric_add_values(NULL, 1, x, x), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_metric_add_loss(NULL, 1, 1), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_metric_class(NULL, 0, &s), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_metric_average(NULL, DML_METRIC_MACRO, &s), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_roc_auc(NULL, 1, x, labels, &auc), DML_ERROR_ARGUMENT);
    CHECK(isnan(dml_metric_value(NULL)) && dml_metric_error_bound(NULL) == 0);
    CHECK(!dml_metric_state(NULL, &count) && count == 0);
    dml_metric_reset(NULL);
    dml_metric_destroy(NULL);
    dml_close(context);
}

/* Memory that is too short is said to be. */
static void no_memory(void)
{
    static char memory[1 << 16];
    double auc;
    static float scores[10000];
    static int32_t labels[10000];
    context = dml_open(&(dml_options){ .threads = 1, .memory = memory, .memory_bytes = sizeof memory });
    CHECK_STRING(dml_error(context), "");
    CHECK(!dml_metric_create(context, &(dml_metric_options){ DML_METRIC_CONFUSION, .columns = 1000 }));
    CHECK_CONTAINS(dml_error(context), "no memory left for a metric of confusion: 1000 x 1000 sums");
    dml_clear_error(context);
    CHECK(!dml_metric_create(context, &(dml_metric_options){ DML_METRIC_CONFUSION, .columns = 1 << 24 }));
    CHECK_INT(dml_status_of(context), DML_ERROR_MEMORY);
    dml_clear_error(context);
    CHECK_INT(dml_roc_auc(context, 10000, scores, labels, &auc), DML_ERROR_MEMORY);
    dml_close(context);
}

/* Logits of any size, infinite ones too, by default. */
static void auc_of_logits(void)
{
    const float score[6] = { -3000, -2, 0.25f, 0.5f, 40, INFINITY };
    const int32_t label[6] = { 0, 1, 0, 0, 1, 1 };
    open_context();
    dml_metric *metric = metric_of((dml_metric_options){ .kind = DML_METRIC_ROC_AUC });
    CHECK_INT(dml_metric_add_labels(metric, 6, score, label), DML_OK);
    CHECK_NEAR(dml_metric_value(metric), 7.0 / 9.0, 1e-12);
    CHECK(dml_metric_error_bound(metric) == 0);
    dml_close(context);
}

int main(void)
{
    RUN(by_hand);
    RUN(auc_by_hand);
    RUN(auc_of_random_scores);
    RUN(classes_of_random_rows);
    RUN(two_classes_and_skipped_rows);
    RUN(errors_of_values);
    RUN(refused_options);
    RUN(auc_of_logits);
    RUN(refused_batches);
    RUN(no_memory);
    return test_report("train/metrics");
}
