/* finite.h: looks through what an op has just computed (dml_program_options.check). */
#ifndef DML_GRAPH_FINITE_H
#define DML_GRAPH_FINITE_H

#include "base/status.h"
#include "graph/op.h"

/* The node's value; the gradients that its op has just written or added to. DML_ERROR_NUMBER, with the
   sentence on the run's error, for what the program looks for. Nothing is allocated. */
DML__LOCAL dml_status dml__check_forward(const dml__run *run, const dml_node *node);
DML__LOCAL dml_status dml__check_backward(const dml__run *run, const dml_node *node);

#endif
