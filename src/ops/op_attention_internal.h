/* op_attention_internal.h: an attention node's attributes, for what tests them. */
#ifndef DML_OPS_OP_ATTENTION_INTERNAL_H
#define DML_OPS_OP_ATTENTION_INTERNAL_H

#include "graph/node.h"
#include "graph/op.h"
#include "kernels/attention.h"

/* How q, k and v lie in the node's first inputs: three, q and both beside each other, or one. */
typedef enum dml__attention_packing {
    DML__ATTENTION_APART,
    DML__ATTENTION_KV,
    DML__ATTENTION_QKV
} dml__attention_packing;

typedef struct dml__attention {
    dml__attention_packing packing;
    int heads, kv_heads, window;
    bool causal;
    float scale;
} dml__attention;

/* The layer's four parameters: in_proj_weight and _bias (`rows` of queries, keys and values), out_proj.weight
   and .bias; what number i is called, and how it begins. */
DML__LOCAL const char *dml__heads_name(int i);
DML__LOCAL dml_initializer dml__heads_init(int i, int rows, int channels);

/* q, k and v are parts 0 to 2: which input, from which column on. */
static inline int dml__attention_input(const dml__attention *o, int part)
{
    return o->packing == DML__ATTENTION_APART ? part : o->packing == DML__ATTENTION_KV ? part > 0 : 0;
}

static inline int dml__attention_column(const dml__attention *o, int part, int width)
{
    const int q = o->packing == DML__ATTENTION_QKV ? o->heads * width : 0;
    if (o->packing == DML__ATTENTION_APART || part == 0) return 0;
    return part == 1 ? q : q + o->kv_heads * width;
}

/* The same of an attention whose keys and values of earlier runs are kept: those that a run brings stand
   behind as many as its last input, i32, says of each sample. */
typedef struct dml__attention_kept {
    dml__attention attention; /* first, for what both kinds share */
    const dml_graph *graph;   /* that has it, and no clone */
    dml_ref kept; /* (samples, kv_heads, 2, positions, width): of each head the keys, then the values */
    int positions;
} dml__attention_kept;

/* `like`, an attention, on other inputs of fewer positions, which are kept there. For predicting alone. */
DML__LOCAL dml_node *dml__attention_keeping(const dml_node *like, dml_node *const *input, dml_node *past,
                                            dml_ref kept, int positions);
DML__LOCAL const dml__op *dml__attention_kept_op(void);

/* What it keeps is gone: it runs no more. Or sample `to` becomes the first positions of sample `from`. */
DML__LOCAL void dml__attention_forget(dml_node *node);
DML__LOCAL dml_status dml__attention_copy(const dml_node *node, int from, int to, int positions);

/* Bytes that it keeps, for so many samples. */
DML__LOCAL size_t dml__attention_kept_bytes(const dml_node *like, int samples, int positions);

/* What both kinds are made of: as a node's inputs say; where part 0 to 2 lies in them; y and what is saved of
   q, k and v; and how many bytes that is. */
DML__LOCAL dml_attention_shape dml__attention_shape_of(const dml_node *node, int rows);
DML__LOCAL dml_ref dml__attention_value(const dml__run *run, const dml_node *node, int part);
DML__LOCAL dml_status dml__attention_forward(const dml__run *run, const dml_node *node,
                                             const dml_attention_shape *s, const dml_ref part[3]);
DML__LOCAL size_t dml__attention_saved_bytes(const dml_node *node, int rows);
DML__LOCAL void dml__attention_describe(const dml_node *node, char *text, size_t bytes);

/* The input of lengths, or NULL. */
static inline dml_node *dml__attention_lengths(const dml_node *node)
{
    const dml__attention *o = (const dml__attention *)node->attributes;
    const int last = dml__attention_input(o, 2);
    return node->inputs > last + 1 ? node->input[last + 1] : NULL;
}

#endif
