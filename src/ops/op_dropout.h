/* op_dropout.h: leaving activations out at random while training. */
#ifndef DML_OPS_OP_DROPOUT_H
#define DML_OPS_OP_DROPOUT_H

#include "graph/graph.h"

/* In a training pass each element of x becomes 0 with probability p, 0 <= p < 1, else it is divided by 1 - p;
   predicting, also by a program that was compiled to train, gives x. What is left out follows from the
   context's seed, the node's place in the graph, the training step, which of its passes and which rank it is,
   and the element alone: it is the same on every device and for any number of threads, and another in each
   pass and of each dropout. DML_ERROR_ARGUMENT for another p. Source: Srivastava, Hinton, Krizhevsky,
   Sutskever, Salakhutdinov, "Dropout", JMLR 2014. */
DML_API dml_node *dml_dropout(dml_node *x, float p);

#endif
