/* in_place.h: ops that write over what nobody needs after them, so that it takes no bytes of its own. */
#ifndef DML_GRAPH_IN_PLACE_H
#define DML_GRAPH_IN_PLACE_H

#include "graph/plan.h"
#include "graph/program_internal.h"

/* Step 6 of compiling: where an op may write over what nobody needs after it, it does: its value over its
   input's, and in backward its input's gradient, which it is the first to write, over its own. The lives of
   `blocks` are as compile.c has them. */
DML__LOCAL void dml__work_in_place(dml_program *program, dml__block_life *blocks);

#endif
