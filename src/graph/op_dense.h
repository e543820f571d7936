/* op_dense.h: the fully connected layer. */
#ifndef DML_GRAPH_OP_DENSE_H
#define DML_GRAPH_OP_DENSE_H

#include "graph/graph.h"

/* x w^T + bias for x (in), w (units, in), bias (units) or NULL: the op on parameters of your own. */
DML_API dml_node *dml_linear(dml_node *x, dml_node *w, dml_node *bias);

/* A layer with parameters of its own: dml_linear on x (in) -> (units), He-initialised, bias zero. */
DML_API dml_node *dml_dense(dml_node *x, int units);

#endif
