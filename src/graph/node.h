/* node.h: what nodes and graphs are made of, for the files of this room and the trainer. */
#ifndef DML_GRAPH_NODE_H
#define DML_GRAPH_NODE_H

#include "base/dtype.h"
#include "base/platform.h"
#include "device/context_internal.h"
#include "graph/graph.h"
#include "graph/part.h"
#include "graph/shape.h"

#define DML__MAX_INPUTS 8
#define DML__NAME_PLACES 64

struct dml__op;

/* A node, its attributes and its name are one block of memory. */
struct dml_node {
    dml_graph *graph;
    dml_node *next; /* in order of creation, which is a topological order */
    int index;      /* in that order */
    int key;        /* of its random numbers: its number in the whole model, among what isn't extra */
    const struct dml__op *op;
    const char *name;
    /* In the graph's table of names (graph/names.h). */
    dml_node *before_named, *before_of_kind;
    int kind_number; /* from 1 on, of the nodes of its op in its scope */
    dml_dtype dtype;
    dml_shape shape;
    bool batched; /* one such tensor for each sample; parameters and losses are not */
    bool extra;   /* an input, or a node that a model has only where it is cut */
    bool partial; /* of a model that is cut: each rank has a value of its own */
    bool copies;  /* and it makes that of what all have alike (dist/tensor_parallel.h) */
    int inputs;
    dml_node *input[DML__MAX_INPUTS];
    void *attributes; /* the op's own */
    bool over_ranks;  /* its training passes sum over all ranks, also those of ranks without samples */
    bool sums;        /* what each rank of a model has, to what all have alike */
    bool again;       /* of a decoder, which makes nodes of the model again: no tables of the model have it */
    bool cut;         /* a parameter of which this rank has a part: its attributes, a dml__shard of its own */
    int limit;        /* an op that indexes: the values of its i32 input must be in 0 .. limit - 1; 0: any */
    int ignored;      /* or this one, which stands for no index; 0: none */
    int below;        /* an op that makes i32: its values are in 0 .. below - 1 */
    int lowest;       /* of these values, where it isn't 0: -1 is none */
    /* parameter: */
    dml_initializer init;
    bool used, frozen; /* by some op; gets no gradient */
    bool loaded;       /* the last file had it */
    bool sparse;       /* rows whose gradient is zero are left alone by updates */
    bool statistic;    /* a norm reads it as a running statistic: frozen for good */
    bool kept;         /* training passes change it: such a statistic, unless the norm is frozen */
    size_t place;      /* in the whole model, in the order of first use, in elements: what its initial values
                          depend on */
    size_t offset;     /* in w and g, in elements; set when w is laid out */
    float lr_scale, decay_scale; /* of the optimizer's learning rate and weight decay */
    dml_node *next_parameter;
};

struct dml_graph {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_node *first, *last;
    int nodes;
    dml_node *named[DML__NAME_PLACES], *of_kind[DML__NAME_PLACES]; /* by hash, the latest of each */
    char scope[DML_NAME_BYTES]; /* what names begin with: "block.3.attn." */
    int scopes;
    unsigned char scope_bytes[DML_MAX_SCOPES]; /* how long each nested scope's part of it is */
    /* Parameters in order of their first use. */
    dml_node *first_parameter, *last_parameter;
    size_t parameter_count, trained_count; /* elements of w; those at its start that are trained */
    /* Where the model is cut (graph/part.h): of stages before this one, and with them and all parts of this
       one's, which are what random numbers are keyed by. */
    size_t place_before, whole_count; /* elements */
    int keys_before, keys;            /* nodes */
    dml__model_ranks model, stages;   /* that have parts of each layer; layers of their own */
    dml_buffer *w;                    /* on the device; NULL until it is laid out */
    float *mirror;                    /* w on the host, where the device has memory of its own */
    int programs;                     /* compiled and not destroyed */
    bool spread;                      /* parts of w are on other ranks alone (dml_trainer_forget) */
    long process;                     /* whose threads `readers` counts */
    int readers; /* programs that predict on their own threads now; -1: w is being written */
};

/* Appends a node and lets its op check the inputs and set dtype, shape and batched; `attributes` are copied.
   NULL, with the error recorded, when an input is NULL or of another graph, or the op refuses. */
DML__LOCAL dml_node *dml__node_create(const struct dml__op *op, int inputs, dml_node *const *input,
                                      const void *attributes, size_t attribute_bytes);

/* The same with a name that was given; NULL: numbered, as of the others. */
DML__LOCAL dml_node *dml__named_node_create(const struct dml__op *op, const char *name, int inputs,
                                            dml_node *const *input, const void *attributes,
                                            size_t attribute_bytes);

/* A node of that op and with those attributes, on other inputs. */
DML__LOCAL dml_node *dml__node_like(const dml_node *node, dml_node *const *input);

/* Marks what y is made of; by index, `node` too. */
DML__LOCAL void dml__mark_needed(const dml_node *y, dml_node *const *node, bool *needed);

/* For infer: whether a shape that was given can be one, else an error that says why not. */
DML__LOCAL dml_status dml__check_dimensions(const dml_node *node, const dml_shape *shape);

/* A node without inputs; appended. */
DML__LOCAL dml_node *dml__leaf_create(dml_graph *graph, const struct dml__op *op, const char *name,
                                      dml_dtype dtype, dml_shape shape, const void *attributes,
                                      size_t attribute_bytes);

/* A parameter of the layer that `op` will be the next node of: named "conv2d_2.weight" if that node becomes
   "conv2d_2". NULL, with the error recorded, on failure. */
DML__LOCAL dml_node *dml__layer_parameter(dml_graph *graph, const struct dml__op *op, const char *part,
                                          dml_initializer init, dml_shape shape);

/* What the next node of `op` will be called, without the scope around it: "conv2d_2". The nodes that a layer
   is made of are built in a scope of its name, so that they don't count among those of its user. */
DML__LOCAL dml_status dml__layer_name(dml_graph *graph, const struct dml__op *op, char name[DML_NAME_BYTES]);

/* Appends a node that is complete. */
DML__LOCAL void dml__node_append(dml_node *node);

/* The node, which was built last, is none of the whole model's. */
DML__LOCAL void dml__node_is_extra(dml_node *node);

/* Takes back what was built after `last` (NULL: after nothing), which no other node may use: a layer's
   parameters when the layer itself is refused. */
DML__LOCAL void dml__graph_drop_after(dml_graph *graph, dml_node *last);

/* The node of that name, or NULL. */
DML__LOCAL dml_node *dml__graph_find(const dml_graph *graph, const char *name);

/* Records an error about building `node`, prefixed with its op and name. */
DML__LOCAL dml_status dml__node_fail(const dml_node *node, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);

/* Lays the parameters out in w, allocates and initialises it, unless that has been done. */
DML__LOCAL dml_status dml__graph_lay_out(dml_graph *graph);

/* w on the host as it was left: itself, or a copy where the device has memory of its own. NULL, with the
   error recorded, when it can't be had. */
DML__LOCAL float *dml__graph_host(dml_graph *graph);

/* Predicting on threads of their own (`reading`) and writing w exclude each other: whoever comes second is
   refused. What was claimed must be released. */
DML__LOCAL bool dml__graph_claim(dml_graph *graph, bool reading);
DML__LOCAL void dml__graph_release(dml_graph *graph, bool reading);

/* DML_ERROR_STATE while parts of w are on other ranks alone. */
DML__LOCAL dml_status dml__check_gathered(const dml_graph *graph, dml__error *error);

/* The claim to write w, with the error recorded on the context when it is refused. */
DML__LOCAL dml_status dml__graph_claim_writing(dml_graph *graph);

/* The part of a parameter that this rank has, of a model that is cut; NULL: it has all of it. */
static inline const dml__shard *dml__shard_of(const dml_node *node)
{
    return node->cut ? (const dml__shard *)node->attributes : NULL;
}

/* Over how many ranks the model is cut; 0: it is whole. */
static inline int dml__graph_cuts(const dml_graph *graph)
{
    return graph->model.ranks ? graph->model.ranks : graph->stages.ranks;
}

static inline dml_context *dml__node_context(const dml_node *node)
{
    return node->graph->context;
}

#endif
