/* table.h: the op table: the ops that have code of their own, and after them those of one element, which are
   rows of kernels/formulas.h. Adding an op is its own file, a row here, and its shared kernels for the GPUs.
 */
#ifndef DML_OPS_TABLE_H
#define DML_OPS_TABLE_H

#include "graph/op.h"

/* X(name): dml__<name>_op() in the op's file gives its table. The tests check every row on every backend. */
#define DML__OP_LIST(X)                                                                                      \
    X(flatten)                                                                                               \
    X(dense)                                                                                                 \
    X(conv2d)                                                                                                \
    X(conv1d)                                                                                                \
    X(conv_transpose2d)                                                                                      \
    X(conv_transpose1d)                                                                                      \
    X(local2d)                                                                                               \
    X(max_pool2d)                                                                                            \
    X(avg_pool2d)                                                                                            \
    X(max_pool1d)                                                                                            \
    X(avg_pool1d)                                                                                            \
    X(batch_norm)                                                                                            \
    X(layer_norm)                                                                                            \
    X(rms_norm)                                                                                              \
    X(group_norm)                                                                                            \
    X(embedding)                                                                                             \
    X(embedding_bag)                                                                                         \
    X(matmul)                                                                                                \
    X(attention)                                                                                             \
    X(rotary)                                                                                                \
    X(rnn)                                                                                                   \
    X(lstm)                                                                                                  \
    X(gru)                                                                                                   \
    X(dropout)                                                                                               \
    X(reshape)                                                                                               \
    X(stop_gradient)                                                                                         \
    X(permute)                                                                                               \
    X(slice)                                                                                                 \
    X(pad)                                                                                                   \
    X(concat)                                                                                                \
    X(sum)                                                                                                   \
    X(mean)                                                                                                  \
    X(max)                                                                                                   \
    X(min)                                                                                                   \
    X(norm)                                                                                                  \
    X(argmax)                                                                                                \
    X(softmax)                                                                                               \
    X(log_softmax)                                                                                           \
    X(take)                                                                                                  \
    X(gather)                                                                                                \
    X(slice2d)                                                                                               \
    X(custom)                                                                                                \
    X(softmax_cross_entropy)

#define DML__OP_DECLARE(name) DML__LOCAL const dml__op *dml__##name##_op(void);
DML__OP_LIST(DML__OP_DECLARE)
#undef DML__OP_DECLARE

/* Row i of the table, NULL past the last. */
DML__LOCAL const dml__op *dml__op_at(int i);

#endif
