/* op_cross_entropy_internal.h: what softmax cross-entropy shares with the one whose classes are cut over
   ranks (dist/vocabulary_parallel.h): the same op, of which a rank has a part of the classes where its node
   `sums`.
 */
#ifndef DML_OPS_OP_CROSS_ENTROPY_INTERNAL_H
#define DML_OPS_OP_CROSS_ENTROPY_INTERNAL_H

#include "graph/op.h"
#include "kernels/cross_entropy.h"
#include "ops/op_loss.h"

/* A node of that op with these options, which may be NULL. */
DML__LOCAL dml_node *dml__cross_entropy_node(const dml__op *op, dml_node *logits, dml_node *target,
                                             const dml_cross_entropy_options *options);
DML__LOCAL dml_status dml__softmax_cross_entropy_infer(dml_node *node);
DML__LOCAL bool dml__cross_entropy_is_mean(const dml_node *node);

/* Of one whose classes are cut, what all ranks need alike: how many classes there are, the smoothing, the
   reduction, and the label that is ignored, or infinity. False: it is another node. */
enum { DML__CUT_LOSS_NUMBERS = 4 };
DML__LOCAL bool dml__cut_loss_numbers(const dml_node *node, double number[DML__CUT_LOSS_NUMBERS]);

/* Rows of so many samples, each of as many classes as are here. */
DML__LOCAL size_t dml__cross_entropy_rows(const dml_node *node, int samples);
DML__LOCAL int dml__classes_of(const dml_node *logits);

/* What is saved: (DML_CROSS_ENTROPY_KEPT, rows) and, behind them, the scale. */
DML__LOCAL size_t dml__softmax_cross_entropy_saved_bytes(const dml_node *node, int rows);
DML__LOCAL dml_ref dml__cross_entropy_scale(const dml__run *run, const dml_node *node);

/* In the host's memory; elsewhere the launch that leaves what a row keeps. */
DML__LOCAL dml_cross_entropy dml__cross_entropy_problem(const dml__run *run, const dml_node *node);
DML__LOCAL dml_status dml__cross_entropy_launch_rows(const dml__run *run, const dml_node *node);

DML__LOCAL dml_status dml__softmax_cross_entropy_op_backward(const dml__run *run, const dml_node *node);
DML__LOCAL double dml__softmax_cross_entropy_flops(const dml_node *node);
DML__LOCAL void dml__softmax_cross_entropy_describe(const dml_node *node, char *text, size_t bytes);

/* What an op of the kind reads in backward, and how. */
#define DML__CROSS_ENTROPY_NEEDS                                                                             \
    (DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1) | DML__NO_GRADIENT(2) | DML__READS_EXACTLY |                  \
     DML__GRADIENT_OVER_INPUT)

#endif
