/* cross_entropy.h: softmax cross-entropy and its gradients on raw arrays, without the probabilities: two
   numbers of each row give them again. */
#ifndef DML_KERNELS_CROSS_ENTROPY_H
#define DML_KERNELS_CROSS_ENTROPY_H

#include "thread/pool.h"

/* The loss of a row is - sum over c of class_weights[c] q[c] log softmax(logits)[c], with
   q[c] = (1 - smoothing) target[c] + smoothing / classes, where a label is a target of 1 at that class; but
   of a label only that class' weight counts for its own part: (1 - smoothing) class_weights[label]. The loss
   of all is the sum over rows of row weight x loss, for the mean divided by the sum of row weight x
   class_weights[label] (of row weight alone, for targets). A row of weight 0, whose label is the ignored
   one or, without smoothing, of a class of weight 0, is not looked at. */
typedef struct dml_cross_entropy {
    size_t rows, classes;
    const float *logits;   /* (rows, classes) */
    const int32_t *labels; /* (rows), each in 0 .. classes - 1 (the caller checks) or ignored; or NULL and */
    const float *target;   /* (rows, classes) probabilities */
    const float *class_weights; /* (classes); NULL: 1 */
    const float *row_weights;   /* (rows / each); NULL: 1 */
    size_t each;                /* rows of a row weight, at least 1 */
    float smoothing;
    bool ignores;
    int32_t ignored;
    size_t first, all; /* a part of the classes, from number `first` of `all` on, which the labels number; it
                          has no target and no class_weights. 0 and 0: they are all */
    float *kept;       /* (DML_CROSS_ENTROPY_KEPT, rows): what forward leaves for backward; it needs it in
                          any case */
} dml_cross_entropy;
#define DML_CROSS_ENTROPY_KEPT 6

/* The sum or the mean, and in *scale by what a row's loss was multiplied in it. A mean over nothing is 0, and
   so is its scale. The maximum is subtracted first, so no row of finite logits overflows unless its loss
   does. The same for any number of threads. */
DML_API float dml_cross_entropy_forward(dml_pool *pool, const dml_cross_entropy *problem, bool mean,
                                        float *scale);

/* The same of classes that are in several parts, each a problem of its own with the same rows: the first
   leaves in the first DML_CROSS_ENTROPY_PART rows of kept what is to be known of this part, and the second
   takes that of all `count` (count, DML_CROSS_ENTROPY_PART, rows), in any order that is the same for all.
   Backward then is each part's own. A part may be of -inf alone, as where a vocabulary was filled up. */
#define DML_CROSS_ENTROPY_PART 4
DML_API void dml_cross_entropy_forward_part(dml_pool *pool, const dml_cross_entropy *problem);
DML_API float dml_cross_entropy_join(dml_pool *pool, const dml_cross_entropy *problem, const float *parts,
                                     int count, bool mean, float *scale);

/* dlogits = scale x the gradient of each row's loss + beta dlogits; dlogits may be the logits where beta is
   0. scale is what forward gave, times dloss. */
DML_API void dml_cross_entropy_backward(dml_pool *pool, const dml_cross_entropy *problem, float scale,
                                        float beta, float *dlogits);

/* The same for dtarget (rows, classes), the gradient of the target. */
DML_API void dml_cross_entropy_backward_target(dml_pool *pool, const dml_cross_entropy *problem, float scale,
                                               float beta, float *dtarget);

#endif
