/* clone.h: a graph again, on another context: a replica on another device. */
#ifndef DML_GRAPH_CLONE_H
#define DML_GRAPH_CLONE_H

#include "base/platform.h"
#include "graph/graph.h"

/* A graph of the same nodes on `context`: their names, shapes, ops with all that these were told, which
   parameters are frozen, sparse or scaled, and the scopes that are open. Find a node of it by its name, with
   dml_graph_find. If the parameters of `graph` have been laid out (graph/weights.h), so are the clone's, with
   the same values; else they begin as those of `context`'s seed. Programs and trainers aren't cloned.

   The clone belongs to `context`, which may be the graph's own. NULL, with the error recorded on `context`,
   when there is none, for `graph` or its device's error, and for a graph that is cut over ranks
   (dist/tensor_parallel.h, dist/pipeline.h); then nothing is left of it. Neither context may
   be in use by another thread meanwhile. */
DML_API dml_graph *dml_graph_clone(dml_graph *graph, dml_context *context);

#endif
