/* node.h: what nodes and graphs are made of, for the files of this room and the trainer. */
#ifndef DML_GRAPH_NODE_H
#define DML_GRAPH_NODE_H

#include "base/dtype.h"
#include "base/platform.h"
#include "device/context_internal.h"
#include "graph/graph.h"
#include "graph/shape.h"

#define DML__MAX_INPUTS 4
#define DML__NAME_LENGTH 48

struct dml__op;

struct dml_node {
    dml_graph *graph;
    dml_node *next; /* in order of creation, which is a topological order */
    int index;      /* in that order */
    const struct dml__op *op;
    char name[DML__NAME_LENGTH];
    dml_dtype dtype;
    dml_shape shape;
    bool batched; /* one such tensor for each sample; parameters and losses are not */
    int inputs;
    dml_node *input[DML__MAX_INPUTS];
    void *attributes; /* the op's own */
    /* input: values must be in 0 .. limit - 1; 0: any (set by the op that indexes with them) */
    int limit;
    /* parameter: */
    dml_initializer init;
    bool used;     /* by some op */
    size_t offset; /* in w and g, in elements; set when the graph is frozen */
    dml_node *next_parameter;
};

struct dml_graph {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_node *first, *last;
    int nodes;
    /* Parameters in order of their first use, which is their order in w. */
    dml_node *first_parameter, *last_parameter;
    size_t parameter_count; /* elements of w */
    dml_buffer *w;          /* on the device; NULL until frozen */
};

/* Appends a node and lets its op check the inputs and set dtype, shape and batched; `attributes` are copied.
   NULL, with the error recorded, when an input is NULL or of another graph, or the op refuses. */
DML__LOCAL dml_node *dml__node_create(const struct dml__op *op, int inputs, dml_node *const *input,
                                      const void *attributes, size_t attribute_bytes);

/* Records an error about building `node`, prefixed with its op and name. */
DML__LOCAL dml_status dml__node_fail(const dml_node *node, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);

/* Lays the parameters out in w, allocates and initialises it; called by the first compile. */
DML__LOCAL dml_status dml__graph_freeze(dml_graph *graph);

static inline dml_context *dml__node_context(const dml_node *node)
{
    return node->graph->context;
}

#endif
