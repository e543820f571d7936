/* print.h: a graph for people to look at. */
#ifndef DML_GRAPH_PRINT_H
#define DML_GRAPH_PRINT_H

#include "base/platform.h"
#include "base/status.h"
#include "graph/graph.h"
#include "graph/program.h"

/* What a program costs, for its largest batch. All zero for NULL. */
typedef struct dml_program_totals {
    int batch;
    bool training;
    size_t parameters, trained; /* elements that it uses */
    double forward_flops;       /* dml_node_flops of all its nodes and samples */
    /* Of a training program, else 0, and estimated: as many as forward for each gradient that an op computes
       of an input or a matrix of parameters, at most twice. */
    double backward_flops;
    size_t arena_bytes;    /* dml_program_bytes: all values and gradients, which share places */
    size_t weight_bytes;   /* w, which is the graph's */
    size_t gradient_bytes; /* g, of a training program. (An optimizer's vectors are as long each.) */
    size_t kept_bytes;     /* of the arena: what lives from forward to backward */
} dml_program_totals;

DML_API dml_program_totals dml_program_summary(const dml_program *program);

#ifndef DML_NO_STDIO
#include <stdio.h>

/* Writes a table of the graph: a line for each node that isn't a parameter, with its name, what it does, its
   output for one sample, how many parameters are its own (those that an earlier line counted aren't counted
   again), the floating-point operations of its forward pass for one sample, the bytes of its output and of
   what it saves for backward, one sample's too; then the totals. (Parameters' names: dml_graph_first and
   dml_node_next go through all nodes, with dml_node_op "parameter".) DML_ERROR_IO, recorded on the context,
   when the file can't be written. */
DML_API dml_status dml_graph_print(const dml_graph *graph, FILE *file);

/* The same of a program, for its largest batch: the nodes that it runs, flops forward and backward, the bytes
   that each output takes (0 where it lies in another's place or in the caller's) and how many of them, with
   what the op saves, are kept until backward; then the totals, as in dml_program_summary. */
DML_API dml_status dml_program_print(const dml_program *program, FILE *file);

/* Writes the graph in the language of Graphviz: `dot -Tsvg` draws it. */
DML_API dml_status dml_graph_to_dot(const dml_graph *graph, FILE *file);

#endif

#endif
