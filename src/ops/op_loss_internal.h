/* op_loss_internal.h: what the files of losses share. */
#ifndef DML_OPS_OP_LOSS_INTERNAL_H
#define DML_OPS_OP_LOSS_INTERNAL_H

#include "graph/op.h"
#include "ops/op_loss.h"

/* The ops of DML__FORMULAS_LOSS, in that order; NULL past the last. */
DML__LOCAL const dml__op *dml__loss_op(int i);

/* Refuses weights that don't fit `of`, whose first `dims` dimensions are those that may be weighed one by
 * one. */
DML__LOCAL dml_status dml__check_loss_weights(const dml_node *node, const dml_node *weights,
                                              const dml_node *of, int dims);

DML__LOCAL dml_status dml__check_loss_reduction(const dml_node *node, dml_loss_reduction reduction);

/* On a GPU: y = the sum over n of x[i] weights[i / each], for the mean divided by `factor` x the sum of
   `shares` (of as many numbers of 1 where there is no buffer); and by what was multiplied. */
DML__LOCAL dml_status dml__launch_loss_total(const dml__run *run, const dml_node *node, dml_ref x, size_t n,
                                             dml_ref weights, size_t each, dml_ref shares, size_t share_count,
                                             float factor, dml_loss_reduction reduction, dml_ref scale);

#endif
