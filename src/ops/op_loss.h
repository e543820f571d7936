/* op_loss.h: losses, each one scalar for the whole batch. */
#ifndef DML_OPS_OP_LOSS_H
#define DML_OPS_OP_LOSS_H

#include "graph/graph.h"

/* The mean over the batch of -log softmax(logits)[label]: logits f32 (classes), labels an i32 scalar a
   sample, each in 0 .. classes - 1. */
DML_API dml_node *dml_softmax_cross_entropy(dml_node *logits, dml_node *labels);

/* The mean over all elements of the batch of (a - b)^2, of the same shape. */
DML_API dml_node *dml_mean_squared_error(dml_node *a, dml_node *b);

#endif
