#ifndef DML_TRAIN_METRICS_C
#define DML_TRAIN_METRICS_C

#include "train/metrics.h"

#include "base/memory.h"
#include "device/context_internal.h"

#include <math.h>
#include <string.h>

#define DML__MOST_COLUMNS (1 << 24) /* far above any that is meant: their bytes can be counted */
#define DML__DEFAULT_BINS 4096

struct dml_metric {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_metric_options options;
    int classes; /* labels are in 0 .. classes - 1; 0: it takes no labels */
    size_t count;
    double *state; /* (count) */
};

static const char *dml__metric_name(dml_metric_kind kind)
{
    static const char *const names[] = { "accuracy", "top k", "confusion", "ROC AUC",
                                         "RMSE",     "MAE",   "perplexity" };
    return (int)kind >= 0 && kind < DML__METRIC_KINDS ? names[kind] : "?";
}

static bool dml__takes_values(dml_metric_kind kind)
{
    return kind == DML_METRIC_RMSE || kind == DML_METRIC_MAE;
}

/* ---- making one ---- */

/* Fills in the defaults. */
static dml_status dml__complete_metric(dml_metric_options *o, dml__error *error)
{
    if ((int)o->kind < 0 || o->kind >= DML__METRIC_KINDS)
        return dml__fail(error, DML_ERROR_ARGUMENT, "a metric of kind %d asked for; there are 0 to %d",
                         (int)o->kind, (int)DML__METRIC_KINDS - 1);
    const char *name = dml__metric_name(o->kind);
    const bool classes_only = o->kind == DML_METRIC_TOP_K || o->kind == DML_METRIC_PERPLEXITY;
    if (o->columns == 0) o->columns = 1;
    if (o->columns < (classes_only ? 2 : 1) || o->columns > DML__MOST_COLUMNS ||
        (o->kind == DML_METRIC_ROC_AUC && o->columns != 1))
        return dml__fail(error, DML_ERROR_ARGUMENT, "a metric of %s over %d columns asked for; it takes %s",
                         name, o->columns,
                         classes_only                    ? "2 or more"
                         : o->kind == DML_METRIC_ROC_AUC ? "1"
                                                         : "1 or more");
    if (o->k == 0) o->k = o->columns < 5 ? o->columns : 5;
    if (o->kind == DML_METRIC_TOP_K && (o->k < 1 || o->k > o->columns))
        return dml__fail(error, DML_ERROR_ARGUMENT, "the top %d of %d classes asked for", o->k, o->columns);
    if (o->bins == 0) o->bins = DML__DEFAULT_BINS;
    const bool any_size = o->low == 0.0f && o->high == 0.0f;
    if (o->kind == DML_METRIC_ROC_AUC &&
        (o->bins < 1 || o->bins > DML__MOST_COLUMNS || !(any_size || o->high - o->low > 0.0f) ||
         !isfinite(o->low) || !isfinite(o->high)))
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "ROC AUC in %d bins from %g to %g asked for: there must be some, and low below high",
                         o->bins, (double)o->low, (double)o->high);
    if (o->threshold != o->threshold)
        return dml__fail(error, DML_ERROR_ARGUMENT, "a metric with a threshold of NaN asked for");
    return DML_OK;
}

static void dml__metric_destroy_owned(dml__owned *owned)
{
    dml_metric *metric = (dml_metric *)(void *)owned;
    dml_context *context = metric->context;
    dml__disown(context, owned);
    dml__release(&context->memory, metric->state);
    dml__release(&context->memory, metric);
}

DML_API void dml_metric_destroy(dml_metric *metric)
{
    if (metric) dml__metric_destroy_owned(&metric->owned);
}

static dml_metric *dml__metric_create_in(dml_context *context, const dml_metric_options *options)
{
    dml_metric_options o = *options;
    if (context->error.status != DML_OK || dml__complete_metric(&o, &context->error) != DML_OK) return NULL;
    const int classes = dml__takes_values(o.kind) ? 0 : o.columns > 1 ? o.columns : 2;
    const size_t rows = o.kind == DML_METRIC_CONFUSION ? (size_t)classes
                        : o.kind == DML_METRIC_ROC_AUC ? 2
                                                       : 1;
    const size_t columns = o.kind == DML_METRIC_CONFUSION ? (size_t)classes
                           : o.kind == DML_METRIC_ROC_AUC ? (size_t)o.bins
                                                          : 2;
    dml_metric *metric = (dml_metric *)dml__allocate(&context->memory, sizeof *metric);
    double *state = (double *)dml__allocate_array(&context->memory, rows, columns * sizeof(double));
    if (!metric || !state) {
        dml__release(&context->memory, metric);
        dml__release(&context->memory, state);
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a metric of %s: %zu x %zu sums",
                  dml__metric_name(o.kind), rows, columns);
        return NULL;
    }
    metric->context = context;
    metric->options = o;
    metric->classes = classes;
    metric->count = rows * columns;
    metric->state = state;
    dml__own(context, &metric->owned, dml__metric_destroy_owned);
    return metric;
}

DML_API dml_metric *dml_metric_create(dml_context *context, const dml_metric_options *options)
{
    if (!context) return NULL;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return NULL;
    dml_metric_options none;
    memset(&none, 0, sizeof none);
    dml_metric *metric = dml__metric_create_in(context, options ? options : &none);
    dml__leave(context, entry);
    return metric;
}

/* ---- adding ---- */

/* Before a batch is looked at. */
static dml_status dml__check_batch(const dml_metric *metric, int rows, const void *outputs,
                                   const void *targets, bool values)
{
    dml__error *error = &metric->context->error;
    const dml_metric_kind kind = metric->options.kind;
    if (error->status != DML_OK) return error->status;
    if (dml__takes_values(kind) != values)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a metric of %s compares with %s: it is dml_metric_add_%s", dml__metric_name(kind),
                         values ? "labels" : "values", values ? "labels" : "values");
    if (rows < 0 || (rows > 0 && (!outputs || !targets)))
        return dml__fail(error, DML_ERROR_ARGUMENT, "a metric of %s was given %d rows, %s",
                         dml__metric_name(kind), rows,
                         rows < 0   ? "it takes 0 or more"
                         : !outputs ? "but no outputs (NULL)"
                                    : "but nothing to compare them with (NULL)");
    return DML_OK;
}

static dml_status dml__check_numbers(const dml_metric *metric, int rows, const float *x, const char *what)
{
    const size_t columns = (size_t)metric->options.columns;
    for (size_t i = 0; i < (size_t)rows * columns; i++)
        if (x[i] != x[i])
            return dml__fail(&metric->context->error, DML_ERROR_ARGUMENT,
                             "a metric of %s was given %s with a NaN: element %zu of row %zu of %d",
                             dml__metric_name(metric->options.kind), what, i % columns, i / columns, rows);
    return DML_OK;
}

static bool dml__skipped(const dml_metric *metric, int32_t label)
{
    return label < 0 && metric->options.skip_negative;
}

static dml_status dml__check_metric_labels(const dml_metric *metric, int rows, const int32_t *labels)
{
    for (int i = 0; i < rows; i++)
        if ((labels[i] < 0 || labels[i] >= metric->classes) && !dml__skipped(metric, labels[i]))
            return dml__fail(&metric->context->error, DML_ERROR_ARGUMENT,
                             "a metric of %s: the label of row %d of %d is %d, it must be in 0 .. %d%s",
                             dml__metric_name(metric->options.kind), i, rows, (int)labels[i],
                             metric->classes - 1,
                             metric->options.skip_negative ? ", or below 0 to be left out" : "");
    return DML_OK;
}

/* The class that a row of outputs stands for. */
static int dml__predicted(const dml_metric *metric, const float *row)
{
    if (metric->options.columns == 1) return row[0] > metric->options.threshold;
    int best = 0;
    for (int c = 1; c < metric->options.columns; c++)
        if (row[c] > row[best]) best = c;
    return best;
}

static bool dml__in_top(const dml_metric *metric, const float *row, int label)
{
    int above = 0;
    for (int c = 0; c < metric->options.columns; c++)
        above += row[c] > row[label] || (row[c] == row[label] && c < label);
    return above < metric->options.k;
}

static int dml__bin_of(const dml_metric_options *o, float score)
{
    const double x = (double)score, low = (double)o->low, high = (double)o->high;
    const double share =
        low == high ? isinf(x) ? (x > 0 ? 1 : 0) : (x / (1 + fabs(x)) + 1) / 2 : (x - low) / (high - low);
    const double place = share * o->bins;
    return place <= 0 ? 0 : place >= o->bins ? o->bins - 1 : (int)place;
}

static float dml__largest_of_row(const dml_metric *metric, const float *row)
{
    float largest = row[0];
    for (int c = 1; c < metric->options.columns; c++)
        if (row[c] > largest) largest = row[c];
    return largest;
}

static double dml__minus_log_softmax(const dml_metric *metric, const float *row, int label)
{
    const double largest = (double)dml__largest_of_row(metric, row);
    double sum = 0;
    for (int c = 0; c < metric->options.columns; c++) sum += exp((double)row[c] - largest);
    return log(sum) + largest - (double)row[label];
}

static void dml__add_row(dml_metric *metric, const float *row, int label)
{
    double *state = metric->state;
    switch (metric->options.kind) {
    case DML_METRIC_CONFUSION:
        state[(size_t)label * (size_t)metric->classes + (size_t)dml__predicted(metric, row)] += 1;
        return;
    case DML_METRIC_ROC_AUC:
        state[(size_t)label * (size_t)metric->options.bins + (size_t)dml__bin_of(&metric->options, row[0])] +=
            1;
        return;
    case DML_METRIC_TOP_K: state[1] += dml__in_top(metric, row, label); break;
    case DML_METRIC_PERPLEXITY: state[1] += dml__minus_log_softmax(metric, row, label); break;
    default: state[1] += dml__predicted(metric, row) == label; break;
    }
    state[0] += 1;
}

DML_API dml_status dml_metric_add_labels(dml_metric *metric, int rows, const float *outputs,
                                         const int32_t *labels)
{
    if (!metric) return DML_ERROR_ARGUMENT;
    const size_t columns = (size_t)metric->options.columns;
    dml_status status = dml__check_batch(metric, rows, outputs, labels, false);
    if (status == DML_OK) status = dml__check_numbers(metric, rows, outputs, "outputs");
    if (status == DML_OK) status = dml__check_metric_labels(metric, rows, labels);
    for (int i = 0; i < rows && status == DML_OK && metric->options.kind == DML_METRIC_PERPLEXITY; i++)
        if (!isfinite(dml__largest_of_row(metric, outputs + (size_t)i * columns)))
            status = dml__fail(&metric->context->error, DML_ERROR_ARGUMENT,
                               "a perplexity was given outputs whose largest in row %d of %d is infinite", i,
                               rows);
    for (int i = 0; i < rows && status == DML_OK; i++)
        if (!dml__skipped(metric, labels[i])) dml__add_row(metric, outputs + (size_t)i * columns, labels[i]);
    return status;
}

DML_API dml_status dml_metric_add_values(dml_metric *metric, int rows, const float *outputs,
                                         const float *targets)
{
    if (!metric) return DML_ERROR_ARGUMENT;
    dml_status status = dml__check_batch(metric, rows, outputs, targets, true);
    if (status == DML_OK) status = dml__check_numbers(metric, rows, outputs, "outputs");
    if (status == DML_OK) status = dml__check_numbers(metric, rows, targets, "targets");
    if (status != DML_OK) return status;
    const size_t n = (size_t)rows * (size_t)metric->options.columns;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        const double error = (double)outputs[i] - (double)targets[i];
        sum += metric->options.kind == DML_METRIC_RMSE ? error * error : fabs(error);
    }
    metric->state[0] += (double)n;
    metric->state[1] += sum;
    return DML_OK;
}

DML_API dml_status dml_metric_add_loss(dml_metric *metric, double samples, double loss)
{
    if (!metric) return DML_ERROR_ARGUMENT;
    dml__error *error = &metric->context->error;
    if (error->status != DML_OK) return error->status;
    if (metric->options.kind != DML_METRIC_PERPLEXITY || !(samples >= 0) || loss != loss)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a metric of %s was given a loss of %g over %g samples: only a perplexity takes "
                         "losses, of 0 or more samples, and no NaN",
                         dml__metric_name(metric->options.kind), loss, samples);
    metric->state[0] += samples;
    if (samples > 0) metric->state[1] += samples * loss;
    return DML_OK;
}

/* ---- what came of it ---- */

/* Of (label 0, label 1) pairs: how many there are, how many are ordered well, ties as halves, and how many
   share a bin. */
static double dml__binned_pairs(const dml_metric *metric, double *ordered, double *shared)
{
    const int bins = metric->options.bins;
    const double *negative = metric->state, *positive = metric->state + bins;
    double below = 0, positives = 0;
    *ordered = *shared = 0;
    for (int b = 0; b < bins; b++) {
        *ordered += positive[b] * (below + 0.5 * negative[b]);
        *shared += positive[b] * negative[b];
        below += negative[b];
        positives += positive[b];
    }
    return below * positives;
}

static double dml__confusion_sum(const dml_metric *metric, bool diagonal)
{
    double sum = 0;
    for (size_t i = 0; i < metric->count; i += diagonal ? (size_t)metric->classes + 1 : 1)
        sum += metric->state[i];
    return sum;
}

DML_API double dml_metric_value(const dml_metric *metric)
{
    double ordered, shared;
    if (!metric) return NAN;
    double all = metric->state[0], part = metric->state[1];
    if (metric->options.kind == DML_METRIC_CONFUSION) {
        all = dml__confusion_sum(metric, false);
        part = dml__confusion_sum(metric, true);
    } else if (metric->options.kind == DML_METRIC_ROC_AUC) {
        all = dml__binned_pairs(metric, &ordered, &shared);
        part = ordered;
    }
    if (!(all > 0)) return NAN;
    if (metric->options.kind == DML_METRIC_RMSE) return sqrt(part / all);
    return metric->options.kind == DML_METRIC_PERPLEXITY ? exp(part / all) : part / all;
}

DML_API double dml_metric_error_bound(const dml_metric *metric)
{
    double ordered, shared;
    if (!metric || metric->options.kind != DML_METRIC_ROC_AUC) return 0;
    const double pairs = dml__binned_pairs(metric, &ordered, &shared);
    return pairs > 0 ? 0.5 * shared / pairs : 0;
}

DML_API void dml_metric_reset(dml_metric *metric)
{
    if (metric) memset(metric->state, 0, metric->count * sizeof *metric->state);
}

DML_API double *dml_metric_state(dml_metric *metric, size_t *count)
{
    if (count) *count = metric ? metric->count : 0;
    return metric ? metric->state : NULL;
}

static double dml__ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static dml_metric_scores dml__scores_of(double hits, double predicted, double labelled)
{
    dml_metric_scores scores;
    scores.precision = dml__ratio(hits, predicted);
    scores.recall = dml__ratio(hits, labelled);
    scores.f1 = dml__ratio(2 * hits, predicted + labelled);
    scores.support = labelled;
    return scores;
}

static dml_metric_scores dml__scores_of_class(const dml_metric *metric, int label)
{
    const size_t classes = (size_t)metric->classes, c = (size_t)label;
    double predicted = 0, labelled = 0;
    for (size_t i = 0; i < classes; i++) {
        predicted += metric->state[i * classes + c];
        labelled += metric->state[c * classes + i];
    }
    return dml__scores_of(metric->state[c * classes + c], predicted, labelled);
}

static dml_status dml__check_confusion(const dml_metric *metric, const char *what, int asked, int most,
                                       dml_metric_scores *scores)
{
    if (scores) memset(scores, 0, sizeof *scores);
    if (!metric) return DML_ERROR_ARGUMENT;
    dml__error *error = &metric->context->error;
    if (error->status != DML_OK) return error->status;
    if (metric->options.kind == DML_METRIC_CONFUSION && asked >= 0 && asked < most && scores) return DML_OK;
    return dml__fail(error, DML_ERROR_ARGUMENT,
                     "the scores of %s %d of a metric of %s asked for%s: a confusion has them, for 0 to %d",
                     what, asked, dml__metric_name(metric->options.kind),
                     scores ? "" : ", without a place for them (NULL)", most - 1);
}

DML_API dml_status dml_metric_class(const dml_metric *metric, int label, dml_metric_scores *scores)
{
    const dml_status status =
        dml__check_confusion(metric, "class", label, metric ? metric->classes : 0, scores);
    if (status == DML_OK) *scores = dml__scores_of_class(metric, label);
    return status;
}

DML_API dml_status dml_metric_average(const dml_metric *metric, dml_metric_mean mean,
                                      dml_metric_scores *scores)
{
    const dml_status status = dml__check_confusion(metric, "mean", (int)mean, DML_METRIC_MICRO + 1, scores);
    if (status != DML_OK) return status;
    const double all = dml__confusion_sum(metric, false);
    if (mean == DML_METRIC_MICRO) {
        *scores = dml__scores_of(dml__confusion_sum(metric, true), all, all);
        return DML_OK;
    }
    for (int c = 0; c < metric->classes; c++) {
        const dml_metric_scores one = dml__scores_of_class(metric, c);
        const double weight = mean == DML_METRIC_MACRO ? 1.0 / metric->classes : dml__ratio(one.support, all);
        scores->precision += weight * one.precision;
        scores->recall += weight * one.recall;
        scores->f1 += weight * one.f1;
    }
    scores->support = all;
    return DML_OK;
}

/* ---- exactly, of arrays ---- */

/* In the order of the scores, the label as its lowest bit: 33 bits. */
static uint64_t dml__auc_key(float score, int32_t label)
{
    uint32_t bits;
    score += 0.0f; /* the two zeros are equal */
    memcpy(&bits, &score, sizeof bits);
    bits ^= bits >> 31 ? 0xFFFFFFFFu : 0x80000000u;
    return (uint64_t)bits << 1 | (uint64_t)label;
}

/* By 11 bits from `shift` on, stable. */
static void dml__sort_keys_by(size_t n, const uint64_t *from, uint64_t *to, int shift)
{
    size_t start[2048] = { 0 }, sum = 0;
    for (size_t i = 0; i < n; i++) start[(from[i] >> shift) & 2047]++;
    for (int d = 0; d < 2048; d++) {
        const size_t count = start[d];
        start[d] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++) to[start[(from[i] >> shift) & 2047]++] = from[i];
}

/* Of sorted keys. */
static double dml__auc_of(size_t n, const uint64_t *key)
{
    double below = 0, positives = 0, ordered = 0;
    for (size_t i = 0; i < n;) {
        double negative = 0, positive = 0;
        const uint64_t score = key[i] >> 1;
        for (; i < n && key[i] >> 1 == score; i++) {
            if (key[i] & 1)
                positive++;
            else
                negative++;
        }
        ordered += positive * (below + 0.5 * negative);
        below += negative;
        positives += positive;
    }
    return below > 0 && positives > 0 ? ordered / below / positives : NAN;
}

DML_API dml_status dml_roc_auc(dml_context *context, size_t n, const float *scores, const int32_t *labels,
                               double *auc)
{
    if (auc) *auc = NAN;
    if (!context) return DML_ERROR_ARGUMENT;
    dml__error *error = &context->error;
    if (error->status != DML_OK) return error->status;
    if (!auc || (n && (!scores || !labels)))
        return dml__fail(error, DML_ERROR_ARGUMENT, "dml_roc_auc was given NULL for %s",
                         !auc      ? "the result"
                         : !scores ? "the scores"
                                   : "the labels");
    for (size_t i = 0; i < n; i++)
        if (scores[i] != scores[i] || labels[i] < 0 || labels[i] > 1)
            return dml__fail(error, DML_ERROR_ARGUMENT,
                             "dml_roc_auc: row %zu of %zu has the score %g and the label %d; it takes "
                             "numbers with labels 0 and 1",
                             i, n, (double)scores[i], (int)labels[i]);
    uint64_t *key = (uint64_t *)dml__allocate_array(&context->memory, n, 2 * sizeof *key);
    if (!key) return dml__fail(error, DML_ERROR_MEMORY, "no memory left to sort %zu scores", n);
    for (size_t i = 0; i < n; i++) key[i] = dml__auc_key(scores[i], labels[i]);
    for (int pass = 0; pass < 3; pass++)
        dml__sort_keys_by(n, key + (pass % 2 ? n : 0), key + (pass % 2 ? 0 : n), 11 * pass);
    *auc = dml__auc_of(n, key + n);
    dml__release(&context->memory, key);
    return DML_OK;
}

#endif
