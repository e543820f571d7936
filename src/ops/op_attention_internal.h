/* op_attention_internal.h: an attention node's attributes, for what tests them. */
#ifndef DML_OPS_OP_ATTENTION_INTERNAL_H
#define DML_OPS_OP_ATTENTION_INTERNAL_H

#include "graph/node.h"

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

/* The input of lengths, or NULL. */
static inline dml_node *dml__attention_lengths(const dml_node *node)
{
    const dml__attention *o = (const dml__attention *)node->attributes;
    const int last = dml__attention_input(o, 2);
    return node->inputs > last + 1 ? node->input[last + 1] : NULL;
}

#endif
