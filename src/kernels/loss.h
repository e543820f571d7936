/* loss.h: losses and their gradients on raw arrays. */
#ifndef DML_KERNELS_LOSS_H
#define DML_KERNELS_LOSS_H

#include "thread/pool.h"

/* The mean over rows of -log softmax(logits)[label]. logits (rows, classes); labels (rows), each in
   0 .. classes - 1 (the caller checks); probabilities (rows, classes) = softmax(logits), kept for the
   backward pass; row_loss (rows) is scratch. Returns the mean, 0 for no rows. The maximum is subtracted
   first, so no row of finite logits overflows unless its loss does, and the mean only where the rows' sum
   does. */
DML_API float dml_softmax_cross_entropy_forward(dml_pool *pool, size_t rows, size_t classes,
                                                const float *logits, const int32_t *labels,
                                                float *probabilities, float *row_loss);

#endif
