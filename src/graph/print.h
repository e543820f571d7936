/* print.h: a graph for people to look at. */
#ifndef DML_GRAPH_PRINT_H
#define DML_GRAPH_PRINT_H

#include "base/platform.h"
#include "base/status.h"
#include "graph/graph.h"

#ifndef DML_NO_STDIO
#include <stdio.h>

/* Writes a table of the graph: a line for each node that isn't a parameter, with its name, what it does, its
   output for one sample, how many parameters are its own (those that an earlier line counted aren't counted
   again), and the floating-point operations of its forward pass for one sample; then the totals. (Parameters'
   names: dml_graph_first and dml_node_next go through all nodes, with dml_node_op "parameter".)
   DML_ERROR_IO, recorded on the context, when the file can't be written. */
DML_API dml_status dml_graph_print(const dml_graph *graph, FILE *file);

/* Writes the graph in the language of Graphviz: `dot -Tsvg` draws it. */
DML_API dml_status dml_graph_to_dot(const dml_graph *graph, FILE *file);

#endif

#endif
