/* attention.h: scaled dot-product attention on raw arrays, in tiles: no array of queries x keys is stored.
   Sources: Vaswani et al., "Attention is all you need", NeurIPS 2017, section 3.2.1; Dao, "FlashAttention-2",
   2023, section 3.1, for the tiles of both passes; Ainslie et al., "GQA", 2023, for kv_heads. */
#ifndef DML_KERNELS_ATTENTION_H
#define DML_KERNELS_ATTENTION_H

#include "thread/pool.h"

typedef struct dml_attention_shape {
    size_t samples, queries, keys;
    size_t heads, kv_heads, width; /* kv_heads divides heads: so many heads share keys and values */
    size_t q_step, k_step, v_step; /* floats from one query, key or value of a sample to the next */
    bool causal;                   /* query t sees no key after t */
    size_t window;                 /* query t sees only keys less than this far from t; 0: any */
    float scale;                   /* of the products */
    size_t
        kv_head_step; /* floats from a head's keys, or values, to the next head's, which then follow all of
                         it, as a sample's first those of the last sample's; 0: heads lie beside each other */
    bool past;        /* the queries stand behind keys that are there already, whose number `lengths` gives */
} dml_attention_shape;

/* For each sample and head

       y = softmax(scale q k^T) v

   over the keys that a query sees, 0 where it sees none. q is (samples, queries, q_step), of which
   heads x width count; k and v are (samples, keys, k_step or v_step), kv_heads x width, or with a
   kv_head_step (samples, kv_heads, kv_head_step), keys x k_step or v_step; all three may be parts of one
   array. y is (samples, queries, heads, width). `lengths`, (samples) or NULL, hides each sample's keys from
   that number on, which must be in 0 .. keys; what they hold is not read. With shape->past query t of a
   sample stands at key lengths + t, from which `causal` and `window` count, and the keys behind the last
   query are hidden: lengths must be in 0 .. keys - queries. `log_sums`, (samples, heads, queries), gets the
   logarithm of the sum of exponentials. Bitwise the same for any number of threads and any scratch. */
DML_API void dml_attention_forward(dml_pool *pool, const dml_attention_shape *shape, const float *q,
                                   const float *k, const float *v, const int32_t *lengths, float *log_sums,
                                   float *y);

/* The gradients of q, k and v, in this order, each laid out as what it is the gradient of: += beta x what is
   there, which isn't read where beta is 0. One that is NULL isn't computed. They don't overlap. (Of
   a key that no query sees the sign of a zero may depend on the scratch.) */
typedef struct dml_attention_gradients {
    float *of[3];
    float beta[3];
} dml_attention_gradients;

DML_API void dml_attention_backward(dml_pool *pool, const dml_attention_shape *shape, const float *q,
                                    const float *k, const float *v, const int32_t *lengths,
                                    const float *log_sums, const float *y, const float *dy,
                                    const dml_attention_gradients *gradients);

/* What both use of the pool's scratch. */
DML_API dml_scratch dml_attention_scratch(const dml_attention_shape *shape, bool backward);

#endif
