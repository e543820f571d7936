/* graph.h: a model is built as a graph of nodes, each one op on earlier nodes.

   A builder given NULL, or a graph whose context has an error, returns NULL; so a model is written without
   checks and checked once: whatever gave the first NULL has recorded why. Nodes belong to their graph, graphs
   to their context. The batch axis is implicit: shapes are those of one sample. */
#ifndef DML_GRAPH_GRAPH_H
#define DML_GRAPH_GRAPH_H

#include "base/dtype.h"
#include "base/platform.h"
#include "device/context.h"
#include "graph/shape.h"

typedef struct dml_graph dml_graph;
typedef struct dml_node dml_node;

DML_API dml_graph *dml_graph_create(dml_context *context);

/* Releases the graph, its parameters and nodes. Programs and trainers on it must have been destroyed, else it
   stays, and DML_ERROR_STATE is recorded. */
DML_API void dml_graph_destroy(dml_graph *graph);
DML_API dml_context *dml_graph_context(const dml_graph *graph);

/* What a caller feeds, for each sample: DML_F32 data or DML_I32 labels. The dimensions follow, counted by the
   compiler; none for one number a sample:

       dml_node *x = dml_input(g, "image", DML_F32, 28, 28, 1), *t = dml_input(g, "label", DML_I32);

   The name is copied and must be the only one of its kind in the graph (NULL: "input_1", ...).
   DML_ERROR_SHAPE for a dimension below 1 or more than DML_MAX_DIMS of them; DML_ERROR_ARGUMENT for a name
   that is taken, isn't UTF-8, or has control characters such as a newline. */
#define dml_input(graph, name, ...)                                                                          \
    dml_input_shaped(graph, name, DML__FIRST(__VA_ARGS__), DML__REST_SHAPE(__VA_ARGS__))
DML_API dml_node *dml_input_shaped(dml_graph *graph, const char *name, dml_dtype dtype, dml_shape shape);

/* Numbers that never change, the same for each sample: f32, `values` copied, in the order of the shape; or
   one number. No gradient flows to them, and no file has them.

       dml_node *levels = dml_constant(g, (float[]){ 0.1f, 0.5f, 0.9f }, dml_shape_of(3));
       dml_node *floor = dml_maximum(x, dml_scalar(g, 0.5f)); */
DML_API dml_node *dml_constant(dml_graph *graph, const float *values, dml_shape shape);
DML_API dml_node *dml_scalar(dml_graph *graph, float value);

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

DML_API dml_initializer dml_init_constant(float value);
DML_API dml_initializer dml_init_uniform(float low, float high); /* in [low, high) */
DML_API dml_initializer dml_init_normal(float mean, float deviation);

/* Normal with standard deviation sqrt(2 / fan_in), for layers followed by a ReLU.
   Source: He, Zhang, Ren, Sun, "Delving deep into rectifiers", ICCV 2015, section 2.2. */
DML_API dml_initializer dml_init_he(int fan_in);

/* A trained f32 tensor, the same for each sample: dml_parameter(g, "weight", dml_init_he(784), 10, 784). The
   name is copied and must be the only one of its kind in the graph (NULL: "parameter_1", ...). Parameters
   that some op uses lie in the flat vector w (graph/weights.h). DML_ERROR_STATE once w has been laid out. */
#define dml_parameter(graph, name, ...)                                                                      \
    dml_parameter_shaped(graph, name, DML__FIRST(__VA_ARGS__), DML__REST_SHAPE(__VA_ARGS__))
DML_API dml_node *dml_parameter_shaped(dml_graph *graph, const char *name, dml_initializer init,
                                       dml_shape shape);

/* Names of what is built from here on begin with "scope.", until the pop: repeated blocks are told apart by
   dml_push_scope(g, "block.%d", i). Scopes nest, at most DML_MAX_SCOPES deep: "block.3.attn.qkv.weight".
   DML_ERROR_ARGUMENT for an empty or too long name; DML_ERROR_STATE for a pop without its push. */
#define DML_MAX_SCOPES 16
DML_API dml_status dml_push_scope(dml_graph *graph, const char *format, ...) DML__PRINTF(2, 3);
DML_API dml_status dml_pop_scope(dml_graph *graph);

/* Every node in the order of building, in which each comes after its inputs: from dml_graph_first on until
   NULL. dml_graph_find gives the one of a name, scopes included; NULL, with DML_ERROR_ARGUMENT recorded, when
   there is none. */
DML_API dml_node *dml_graph_first(const dml_graph *graph);
DML_API dml_node *dml_node_next(const dml_node *node);
DML_API dml_node *dml_graph_find(const dml_graph *graph, const char *name);

/* What a node is. Its name is the only one in its graph: the caller's, or its op's with a number ("relu_1",
   "conv2d_2"; the parameters that a layer makes are then "conv2d_2.weight" and "conv2d_2.bias"). */
#define DML_NAME_BYTES 128 /* of any name, its scopes and its end included */
DML_API dml_graph *dml_node_graph(const dml_node *node);
DML_API const char *dml_node_name(const dml_node *node);
DML_API const char *dml_node_op(const dml_node *node); /* "conv2d", "input", "parameter", ... */
DML_API dml_shape dml_node_shape(const dml_node *node);
DML_API dml_dtype dml_node_dtype(const dml_node *node);
DML_API bool dml_node_batched(const dml_node *node); /* one such tensor for each sample of the batch */
DML_API int dml_node_inputs(const dml_node *node);   /* how many */
DML_API dml_node *dml_node_input(const dml_node *node, int i);

/* What the op was told, in words, such as "kernel 3 x 3, stride 1 x 1, padding 0 x 0"; "" when there is
   nothing to tell. Cut to `bytes`, its end included, and returned. */
DML_API const char *dml_node_describe(const dml_node *node, char *text, size_t bytes);

/* Floating-point operations of its forward pass for one sample, a multiply-add counted as two; those of ops
   that only move or compare are not counted. */
DML_API double dml_node_flops(const dml_node *node);

#endif
