/* names.h: what nodes are called, in scopes, and finding them by it. Looking through all nodes for each new
   one took 7 s for a graph of 16,000. */
#ifndef DML_GRAPH_NAMES_H
#define DML_GRAPH_NAMES_H

#include "graph/node.h"

/* A node that was appended, in the table; and no node any more that is beyond the graph's last. */
DML__LOCAL void dml__names_add(dml_node *node);
DML__LOCAL void dml__names_drop(dml_graph *graph);

/* The full name of a new node: `given`, or, where that is NULL or "", the op's with a number. */
DML__LOCAL dml_status dml__make_name(dml_graph *graph, const struct dml__op *op, const char *given,
                                     char name[DML_NAME_BYTES]);

#endif
