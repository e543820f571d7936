/* op_activation.h: functions of one element. */
#ifndef DML_OPS_OP_ACTIVATION_H
#define DML_OPS_OP_ACTIVATION_H

#include "graph/graph.h"

DML_API dml_node *dml_relu(dml_node *x);    /* max(x, 0) */
DML_API dml_node *dml_tanh(dml_node *x);    /* tanh(x) */
DML_API dml_node *dml_sigmoid(dml_node *x); /* 1 / (1 + exp(-x)) */

#endif
