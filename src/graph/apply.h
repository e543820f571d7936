/* apply.h: a net once more, on another input: siamese nets, a decoder that is fed by itself, a critic of what
   is real and what is made. */
#ifndef DML_GRAPH_APPLY_H
#define DML_GRAPH_APPLY_H

#include "graph/graph.h"

/* What makes y of x, applied to `other`, which must be of x's kind: the same ops with the same parameters,
   whose gradients add up, between other nodes. What y is made of besides x is read again as it is; dropout
   leaves out others, and a batch norm's running statistics move for each. It may be called after the graph
   was compiled.

       dml_node *a = encoder(x);                    // made as ever
       dml_node *b = dml_apply(a, x, x2);           // the same on x2

   y itself where it is x: `other`. DML_ERROR_ARGUMENT when y isn't made of x, DML_ERROR_SHAPE for an `other`
   of another type, shape or batching, DML_ERROR_UNSUPPORTED when a pipeline's end lies between. NULL, and
   nothing is left of it, then. */
DML_API dml_node *dml_apply(dml_node *y, dml_node *x, dml_node *other);

#endif
