/* op_attention.h: attention, and the layer around it. */
#ifndef DML_OPS_OP_ATTENTION_H
#define DML_OPS_OP_ATTENTION_H

#include "graph/graph.h"

typedef struct dml_attention_options {
    int kv_heads;      /* heads of keys and values, each shared by as many of the queries'; 0: heads */
    bool causal;       /* query t sees keys 0 .. t */
    int window;        /* query t sees only keys less than this far from t; 0: any */
    float scale;       /* of the products of queries and keys; 0: 1 / sqrt(width of a head) */
    dml_node *lengths; /* i32, one number a sample: so many keys, of 0 .. S, are there, the others are padding
                          that is not seen; NULL: all */
} dml_attention_options;

/* Scaled dot-product attention of `heads` heads beside each other: q (T, heads D), k and v (S, kv_heads D) ->
   (T, heads D), for each head softmax(scale q k^T) v over the keys that a query sees. A query that sees none
   gets zeros. No T x S array is stored. Sources: Vaswani et al., "Attention is all you need", NeurIPS 2017;
   Ainslie et al., "GQA", 2023; Dao, "FlashAttention-2", 2023. NULL options: all defaults. DML_ERROR_SHAPE
   when the heads don't divide the last dimensions, or these don't fit together. */
DML_API dml_node *dml_attention(dml_node *q, dml_node *k, dml_node *v, int heads,
                                const dml_attention_options *options);

/* The same of q, k and v beside each other in one tensor (T, (heads + 2 kv_heads) D), as one dense layer
   makes them: they are read where they are. */
DML_API dml_node *dml_attention_packed(dml_node *qkv, int heads, const dml_attention_options *options);

typedef struct dml_multi_head_attention_options {
    int kv_heads;      /* heads of keys and values; 0: heads */
    bool causal;       /* position t sees positions 0 .. t */
    int window;        /* position t sees only positions less than this far from t; 0: any */
    bool no_bias;      /* of neither projection */
    bool rotary;       /* queries and keys are turned by their positions: dml_rotary */
    float rotary_base; /* 0: 10000; without `rotary` it is 0 */
    dml_node *lengths; /* as in dml_attention_options */
    dml_node *memory;  /* (S, C), where keys and values come from: cross attention; NULL: from x */
} dml_multi_head_attention_options;

/* A layer with parameters of its own: x (T, C) -> (T, C), a dense layer to q, k and v, attention of `heads`
   heads of width C / heads, and a dense layer after it. The parameters have PyTorch's names and first values:
   "attention_1.in_proj_weight" (C + 2 kv_heads C / heads, C), of q, k and v, uniform as by Glorot, and
   ".in_proj_bias", zero; "attention_1.out_proj.weight" (C, C), uniform within 1 / sqrt(C), and
   ".out_proj.bias", zero. DML_ERROR_ARGUMENT when C can't be cut so. NULL options: all defaults. */
DML_API dml_node *dml_multi_head_attention(dml_node *x, int heads,
                                           const dml_multi_head_attention_options *options);

/* The same on parameters of the caller's; the biases may be NULL. */
DML_API dml_node *dml_multi_head_attention_with(dml_node *x, int heads, dml_node *in_weight,
                                                dml_node *in_bias, dml_node *out_weight, dml_node *out_bias,
                                                const dml_multi_head_attention_options *options);

/* Positions that are learned: x (T, C) plus a parameter of that shape, normal with deviation 0.02 at first,
   named after the sum: "add_1.positions". */
DML_API dml_node *dml_learned_positions(dml_node *x);

#endif
