/* metrics.h: how good a model's outputs are, over a stream of batches and over ranks. */
#ifndef DML_TRAIN_METRICS_H
#define DML_TRAIN_METRICS_H

#include "base/platform.h"
#include "base/status.h"
#include "device/context.h"

typedef enum dml_metric_kind {
    DML_METRIC_ACCURACY,   /* the part of the rows whose label is the class with the largest output */
    DML_METRIC_TOP_K,      /* ... whose label is among the k classes with the largest */
    DML_METRIC_CONFUSION,  /* the table of labels and predictions: dml_metric_class, dml_metric_average */
    DML_METRIC_ROC_AUC,    /* the area under the ROC curve of one score a row against labels 0 and 1 */
    DML_METRIC_RMSE,       /* the root of the mean square error, over all elements */
    DML_METRIC_MAE,        /* the mean absolute error, over all elements */
    DML_METRIC_PERPLEXITY, /* exp of the mean of -log softmax(outputs)[label] */
    DML__METRIC_KINDS
} dml_metric_kind;

typedef struct dml_metric_options {
    dml_metric_kind kind;
    int columns; /* of the outputs: how many classes, or values of a row; 0: 1. ROC AUC has 1, a top k and a
                    perplexity 2 or more. An accuracy or confusion of 1 column is of the classes 0 and 1: */
    float threshold; /* 1 where the output is above this: 0 suits logits, 0.5 probabilities */
    int k;           /* of top k, 1 .. columns; 0: 5, or the columns where they are fewer */
    /* ROC AUC: scores are counted in so many equal bins (0: 4096) from low to high, those beyond in the first
       and the last. Both 0: in bins of x / (1 + |x|), which has room for logits and probabilities of any
       size. */
    int bins;
    float low, high;
    bool skip_negative; /* rows whose label is below 0 aren't counted; else such a label is refused */
} dml_metric_options;

/* An accumulator. Its memory is the context's, which closes it too; adding to it allocates nothing.

   Of equal outputs the lower class counts as the larger, as in argmax. Definitions are scikit-learn's
   (accuracy_score, confusion_matrix, precision_recall_fscore_support with all classes as its labels and
   zero_division=0, roc_auc_score, root_mean_squared_error and mean_absolute_error of flattened arrays).

   NULL, with DML_ERROR_ARGUMENT on the context for options that can't be, or DML_ERROR_MEMORY. */
typedef struct dml_metric dml_metric;
DML_API dml_metric *dml_metric_create(dml_context *context, const dml_metric_options *options);
DML_API void dml_metric_destroy(dml_metric *metric);

/* Adds a batch: outputs (rows, columns), on the host, with labels (rows), each in 0 .. columns - 1 (0 and 1
   for one column). For the kinds that compare with classes. DML_ERROR_ARGUMENT, with a sentence and nothing
   added, for an output that is NaN, a label out of range, or another kind; of a perplexity's rows the largest
   output must be finite. */
DML_API dml_status dml_metric_add_labels(dml_metric *metric, int rows, const float *outputs,
                                         const int32_t *labels);

/* The same for RMSE and MAE: outputs and targets, (rows, columns) both, neither with a NaN. */
DML_API dml_status dml_metric_add_values(dml_metric *metric, int rows, const float *outputs,
                                         const float *targets);

/* For a perplexity: `samples` more, whose mean cross-entropy is `loss`, as a program or a step returns it. */
DML_API dml_status dml_metric_add_loss(dml_metric *metric, double samples, double loss);

/* The metric over all that was added since it was made or reset. NaN where it isn't defined: of nothing, of
   ROC AUC with labels of one class alone, and for NULL. Of a confusion it is the accuracy. */
DML_API double dml_metric_value(const dml_metric *metric);
DML_API void dml_metric_reset(dml_metric *metric);

/* How far from the exact value a binned ROC AUC can be: half the part of the pairs (one row of each class)
   that share a bin. 0 for the other kinds. */
DML_API double dml_metric_error_bound(const dml_metric *metric);

/* All that a metric knows, *count sums: added up over ranks, they are the metric over all ranks' rows:

       size_t count;
       double *state = dml_metric_state(metric, &count);
       dml_comm_all_reduce(comm, state, count, DML_F64, DML_SUM);

   (then reset before the next epoch, else what was summed is summed again). They are counts, exact up to
   2^53, but for the last of RMSE, MAE and perplexity. Accuracy, top k: rows, hits. Confusion: (classes,
   classes), row the label, column the prediction. ROC AUC: (2, bins), labels 0, then labels 1. RMSE, MAE:
   elements, sum of errors. Perplexity: rows, sum of -log. */
DML_API double *dml_metric_state(dml_metric *metric, size_t *count);

/* Of a confusion: how one class was found, and the classes together. What would be divided by 0 is 0. */
typedef struct dml_metric_scores {
    double precision, recall, f1, support; /* support: rows with that label, or all */
} dml_metric_scores;

typedef enum dml_metric_mean {
    DML_METRIC_MACRO,    /* of all classes' scores, each alike, those without rows too */
    DML_METRIC_WEIGHTED, /* ... each by its support */
    DML_METRIC_MICRO     /* the scores of all rows together: where each has one label, all are the accuracy */
} dml_metric_mean;

/* DML_ERROR_ARGUMENT, with all scores 0, for another kind of metric, or a class or mean that isn't there. */
DML_API dml_status dml_metric_class(const dml_metric *metric, int label, dml_metric_scores *scores);
DML_API dml_status dml_metric_average(const dml_metric *metric, dml_metric_mean mean,
                                      dml_metric_scores *scores);

/* The exact area under the ROC curve of n scores with labels 0 and 1, equal scores counting a half: the
   chance that a row labelled 1 scores above one labelled 0. *auc is NaN where one class is missing. 16 n
   bytes of the context's memory are used meanwhile. DML_ERROR_ARGUMENT for a score that is NaN or another
   label. Source: Hanley, McNeil, "The meaning and use of the area under a ROC curve", Radiology 143, 1982. */
DML_API dml_status dml_roc_auc(dml_context *context, size_t n, const float *scores, const int32_t *labels,
                               double *auc);

#endif
