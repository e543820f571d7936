/* chain.h: neighbours among a program's ops that work on each element by itself run as one loop.

   Such ops, one behind the other, of as many elements each, are called one by one but leave their work in the
   program's chain; the last has it done block by block, all ops in one block before any in the next
   (kernels/formula.h). What one op writes the next reads from a cache, and threads meet once. The blocks of
   the arena that live anywhere in a chain live in all of it, since its ops run at once. */
#ifndef DML_GRAPH_CHAIN_H
#define DML_GRAPH_CHAIN_H

#include "graph/plan.h"
#include "graph/program_internal.h"

/* Finds the chains of forward, and of a training program's backward, where gradients are known already. */
DML__LOCAL void dml__find_chains(dml_program *program);

/* Whether there are any. */
DML__LOCAL bool dml__has_chains(const dml_program *program);

/* After it has been decided which ops work in place: lets blocks that chains are done with be those that
   begin there, and stretches the lives of blocks (3 x slots) over the chains in which they begin or end. */
DML__LOCAL void dml__plan_chains(dml_program *program, dml__block_life *blocks);

#endif
