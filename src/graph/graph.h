/* graph.h: a model is built as a graph of nodes, each one op on earlier nodes.

   A builder given NULL, or a graph whose context has an error, returns NULL; so a model is written without
   checks and checked once. Nodes belong to their graph, graphs to their context. The batch axis is implicit:
   shapes are those of one sample. */
#ifndef DML_GRAPH_GRAPH_H
#define DML_GRAPH_GRAPH_H

#include "base/dtype.h"
#include "base/platform.h"
#include "device/context.h"
#include "graph/shape.h"

typedef struct dml_graph dml_graph;
typedef struct dml_node dml_node;

DML_API dml_graph *dml_graph_create(dml_context *context);

/* Releases the graph, its parameters and nodes; programs and trainers on it must be destroyed first. */
DML_API void dml_graph_destroy(dml_graph *graph);
DML_API dml_context *dml_graph_context(const dml_graph *graph);

/* What a caller feeds, for each sample: DML_F32 data or DML_I32 labels of `ndim` dimensions, which follow as
   ints: dml_input(g, "image", DML_F32, 3, 28, 28, 1). The name is copied. DML_ERROR_SHAPE for a dimension
   below 1. */
DML_API dml_node *dml_input(dml_graph *graph, const char *name, dml_dtype dtype, int ndim, ...);

/* How a parameter begins. Random numbers are keyed by the context's seed and the parameter's place in the
   model, so they are the same on every device and rank. */
typedef enum dml_initializer_kind {
    DML_INIT_CONSTANT,
    DML_INIT_UNIFORM,
    DML_INIT_NORMAL
} dml_initializer_kind;
typedef struct dml_initializer {
    dml_initializer_kind kind;
    float a, b; /* constant: a; uniform: [a, b); normal: mean a, standard deviation b. Zero: zeros */
} dml_initializer;

/* Normal with standard deviation sqrt(2 / fan_in), for layers followed by a ReLU.
   Source: He, Zhang, Ren, Sun, "Delving deep into rectifiers", ICCV 2015, section 2.2. */
DML_API dml_initializer dml_init_he(int fan_in);

/* A trainable f32 tensor, the same for each sample; its dimensions follow as ints. Parameters lie in the flat
   vector w in the order in which the graph first uses them. The name is copied. DML_ERROR_STATE once a
   program of the graph has been compiled. */
DML_API dml_node *dml_parameter(dml_graph *graph, const char *name, dml_initializer init, int ndim, ...);

DML_API dml_graph *dml_node_graph(const dml_node *node);
DML_API const char *dml_node_name(const dml_node *node); /* "" when it has none */
DML_API const char *dml_node_op(const dml_node *node);   /* "conv2d", "input", "parameter", ... */
DML_API dml_shape dml_node_shape(const dml_node *node);
DML_API dml_dtype dml_node_dtype(const dml_node *node);

/* How many elements the flat vector w has: all parameters of the graph so far. */
DML_API size_t dml_graph_parameter_count(const dml_graph *graph);

#endif
