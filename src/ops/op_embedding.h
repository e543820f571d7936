/* op_embedding.h: vectors looked up by number. */
#ifndef DML_OPS_OP_EMBEDDING_H
#define DML_OPS_OP_EMBEDDING_H

#include "graph/graph.h"

/* indices (...), an i32 input, or that under another shape, or what dml_argmax gives, of at most `count`
   places -> (..., width): for each index that row of a table of `count` rows, which is the parameter
   "embedding_1.weight" (count, width), standard normal at first. An index outside 0 .. count - 1 is found
   before anything is run (DML_ERROR_ARGUMENT). A row's gradient is the sum over all places where it was
   looked up, in their order.

   A learned embedding of positions is a parameter (T, width) that is added to (T, width). */
DML_API dml_node *dml_embedding(dml_node *indices, int count, int width);

/* The same on a table (count, width) of the caller's: begun in another way, shared, as with a language
   model's output layer, or frozen. Of a table of which each rank has some rows (dml_parallel_parameter along
   axis 0) the indices number all rows, and those of other ranks are zeros here: dml_parallel_embedding_with
   adds them up. */
DML_API dml_node *dml_embedding_with(dml_node *indices, dml_node *table);

#endif
