/* op_loss.h: losses, each one scalar for the whole batch.

   Every loss has a value for each element, or for each row along the last axis (softmax cross-entropy, KL
   divergence), and weights: the class' times the sample's, 1 where none is given, 0 where a label is ignored.
   Its scalar is the sum of weight x value, for DML_LOSS_MEAN divided by the sum of those weights: PyTorch's
   rule for class weights and ignored labels, and for sample weights what makes a mask a mask (PyTorch's and
   Keras' own functions divide by the count, also of what weighs nothing). A mean over nothing, all labels
   ignored or all weights 0, is 0 with gradients of 0, where PyTorch's is NaN. What weighs nothing isn't
   looked at by softmax cross-entropy; elsewhere its value must be finite.

   What comes in pieces (DML_ADD) and over ranks is averaged by samples, not by weights: a mean whose weights,
   or labels that aren't ignored, are not the same share of each piece is not exactly that of one large batch,
   and a sum is the mean of the pieces' sums. */
#ifndef DML_OPS_OP_LOSS_H
#define DML_OPS_OP_LOSS_H

#include "graph/graph.h"

typedef enum dml_loss_reduction { DML_LOSS_MEAN, DML_LOSS_SUM } dml_loss_reduction;

/* sample_weights: f32, batched as the predictions are, one a sample or of a shape that theirs begins with
   (for (T, V): none, (T), or for losses of elements (T, V)); no gradient flows to it. NULL: 1 each. The
   others are for the losses that name them, and refused by the rest: DML_ERROR_ARGUMENT. */
typedef struct dml_loss_options {
    dml_loss_reduction reduction;
    dml_node *sample_weights;
    float pos_weight; /* binary cross-entropy: what a target of 1 weighs; 0: 1 */
    float delta;      /* Huber: from where on it is linear, above 0; 0: 1 */
    float beta;       /* smooth L1: the same; 0: 1 */
    bool squared;     /* hinge */
} dml_loss_options;

/* Softmax cross-entropy has rows; the others are of elements: f32 of one shape, both batched or both not,
   gradients to both. `options` may be NULL. DML_ERROR_SHAPE when shapes differ. */

DML_API dml_node *dml_mean_squared_error(dml_node *a, dml_node *b); /* the mean of (a - b)^2 */
DML_API dml_node *dml_mean_squared_error_with(dml_node *a, dml_node *b, const dml_loss_options *options);
DML_API dml_node *dml_mean_absolute_error(dml_node *a, dml_node *b, const dml_loss_options *options);

/* With e = |a - b|: e^2 / 2 up to delta, then delta (e - delta / 2). Source: Huber, "Robust estimation of a
   location parameter", 1964. */
DML_API dml_node *dml_huber(dml_node *a, dml_node *b, const dml_loss_options *options);

/* Huber with delta = beta, divided by beta. */
DML_API dml_node *dml_smooth_l1(dml_node *a, dml_node *b, const dml_loss_options *options);

/* - pos_weight t log sigmoid(x) - (1 - t) log(1 - sigmoid(x)), of logits x and targets t in 0 .. 1, which is
   computed without overflow for any x. */
DML_API dml_node *dml_binary_cross_entropy(dml_node *logits, dml_node *target,
                                           const dml_loss_options *options);

/* max(0, 1 - x t), with `squared` its square, of scores x and targets t of -1 or 1. */
DML_API dml_node *dml_hinge(dml_node *scores, dml_node *target, const dml_loss_options *options);

/* x itself, for losses of one's own: what a loss is for each element, made of any ops, as one scalar for the
   batch. Beside others by dml_add: dml_add(dml_softmax_cross_entropy(y, t), dml_batch_mean(penalty, NULL)).
 */
DML_API dml_node *dml_batch_mean(dml_node *x, const dml_loss_options *options);

/* The sum of p (log p - x) along the last axis, for the mean over rows: for (classes) a sample that is
   PyTorch's "batchmean". x are logarithms of probabilities, p the target's probabilities; 0 log 0 is 0. */
DML_API dml_node *dml_kl_divergence(dml_node *log_probabilities, dml_node *target,
                                    const dml_loss_options *options);

/* The mean over rows of -log softmax(logits)[label]: logits f32 (..., classes) a sample, labels an i32 input
   of
   (...), one a row, each in 0 .. classes - 1: an i32 scalar for one row a sample. */
DML_API dml_node *dml_softmax_cross_entropy(dml_node *logits, dml_node *labels);

typedef struct dml_cross_entropy_options {
    dml_loss_reduction reduction;
    dml_node *sample_weights;   /* of one a sample, or of the rows' shape (...) */
    float label_smoothing;      /* in 0 .. 1: so much of each target is spread over all classes */
    bool ignores;               /* labels that are ignore_index, which may be any number, count for nothing */
    int ignore_index;           /* without `ignores` it is 0 */
    const float *class_weights; /* (classes), copied, finite and not below 0; NULL: 1 each */
} dml_cross_entropy_options;

/* The same with options, which may be NULL, and with `target` either labels or f32 probabilities of the
   logits' shape, which take a gradient where they are computed. A row's loss is
   - sum over c of class_weights[c] q[c] log softmax(logits)[c] with
   q = (1 - label_smoothing) target + label_smoothing / classes. Its weight in a mean is the sample's times
   the label's class weight; of probabilities, as in PyTorch, the sample's alone. Source of the smoothing:
   Szegedy et al., "Rethinking the inception architecture", 2016, section 7. DML_ERROR_ARGUMENT for options
   out of range, and for an ignored index beside probabilities. */
DML_API dml_node *dml_softmax_cross_entropy_with(dml_node *logits, dml_node *target,
                                                 const dml_cross_entropy_options *options);

typedef struct dml_distillation_options {
    float temperature; /* T, above 0; 0: 1 */
    float alpha;       /* how much the teacher counts, above 0 and at most 1; 0: 0.5 */
    dml_loss_reduction reduction;
    dml_node *sample_weights; /* of one a sample, or of the rows' shape (...) */
} dml_distillation_options;

/* alpha T^2 KL(softmax(teacher / T) || softmax(student / T)) + (1 - alpha) softmax_cross_entropy(student,
   labels), of logits f32 (..., classes) a sample, of which the teacher's take no gradient. labels: i32 of
   (...), or probabilities; not looked at, and may be NULL, where alpha is 1. Source: Hinton, Vinyals, Dean,
   "Distilling the knowledge in a neural network", 2015. `options` may be NULL. DML_ERROR_SHAPE when shapes
   differ, DML_ERROR_ARGUMENT for numbers out of range. */
DML_API dml_node *dml_distillation(dml_node *student, dml_node *teacher, dml_node *labels,
                                   const dml_distillation_options *options);

#endif
