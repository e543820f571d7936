/* cases_attention.h: cases of attention and rotary positions (included by ops_cases.h). */
#ifndef DML_TESTS_GRAPH_CASES_ATTENTION_H
#define DML_TESTS_GRAPH_CASES_ATTENTION_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_attention.h"
#include "ops/op_dense.h"
#include "ops/op_rotary.h"
#include "ops/op_shape.h"

#include "case_nodes.h"

/* Positions that depend on parameters. */
static dml_node *positions(dml_graph *g, int count, int width)
{
    return dml_dense(dml_input(g, NULL, DML_F32, count, 3), width);
}
static dml_node *attention_causal(dml_graph *g)
{
    return dml_attention(positions(g, 5, 6), positions(g, 5, 6), positions(g, 5, 6), 2,
                         &(dml_attention_options){ .causal = true });
}
/* Of 0 keys too, heads that share keys, other values than keys in number of positions from the queries. */
static dml_node *attention_lengths(dml_graph *g)
{
    const dml_attention_options o = { .lengths = dml_input(g, "lengths", DML_I32),
                                      .kv_heads = 2,
                                      .scale = 0.3f };
    return dml_attention(positions(g, 3, 12), positions(g, 7, 6), positions(g, 7, 6), 4, &o);
}
static dml_node *attention_of_itself(dml_graph *g)
{
    dml_node *x = dml_reshape(positions(g, 6, 4), dml_shape_of(6, 4));
    dml_node *y = dml_attention(x, x, x, 1, &(dml_attention_options){ .window = 2 });
    return dml_add(dml_attention(y, x, x, 2, NULL), x);
}
static dml_node *attention_packed(dml_graph *g)
{
    const dml_attention_options o = { .causal = true, .window = 3, .kv_heads = 1 };
    dml_node *x = dml_attention_packed(positions(g, 9, 20), 2, &o);
    return dml_dense(dml_attention_packed(dml_dense(x, 15), 5, NULL), 2);
}
static dml_node *attention_parameters(dml_graph *g)
{
    dml_node *k = parameter(g, 2, 4, 2);
    dml_node *w = dml_attention(parameter(g, 2, 3, 2), k, dml_tanh(k), 1, NULL);
    return dml_dense_with(dml_input(g, "x", DML_F32, 2), w, NULL);
}
static dml_node *attention_input(dml_graph *g)
{
    dml_node *kv = dml_input(g, "kv", DML_F32, 4, 6);
    return dml_attention(positions(g, 2, 6), kv, kv, 3, NULL);
}
/* More positions than a tile of a GPU has, and wider heads; few parameters to be varied. */
static dml_node *attention_large(dml_graph *g)
{
    const dml_attention_options o = { .causal = true, .lengths = dml_input(g, "lengths", DML_I32) };
    dml_node *w = parameter(g, 2, 3 * 66, 2);
    dml_parameter_train(w, false);
    dml_node *x = dml_attention_packed(dml_dense_with(positions(g, 67, 2), w, NULL), 1, &o);
    return dml_slice(x, 1, 61, 66);
}
static dml_node *heads_causal(dml_graph *g)
{
    const dml_multi_head_attention_options o = { .causal = true, .rotary = true };
    return dml_multi_head_attention(dml_learned_positions(positions(g, 5, 8)), 2, &o);
}
static dml_node *heads_memory(dml_graph *g)
{
    const dml_multi_head_attention_options o = { .memory = positions(g, 6, 8),
                                                 .kv_heads = 2,
                                                 .rotary = true,
                                                 .rotary_base = 50,
                                                 .lengths = dml_input(g, "lengths", DML_I32) };
    return dml_multi_head_attention(positions(g, 3, 8), 4, &o);
}
static dml_node *heads_bare(dml_graph *g)
{
    dml_node *w = parameter(g, 2, 12, 4), *out = parameter(g, 2, 4, 4), *x = positions(g, 4, 4);
    const dml_multi_head_attention_options o = { .window = 2 };
    x = dml_multi_head_attention_with(x, 1, w, NULL, out, NULL, &o);
    return dml_multi_head_attention_with(x, 2, w, NULL, out, NULL, &o);
}
static dml_node *rotary_halves(dml_graph *g)
{
    dml_node *x = positions(g, 7, 20);
    return dml_add(dml_rotary(x, 2, &(dml_rotary_options){ .offset = 1000 }), x);
}
static dml_node *rotary_pairs(dml_graph *g)
{
    dml_node *x = positions(g, 3, 24);
    const dml_rotary_options o = { .interleaved = true, .rotated = 3, .base = 20 };
    return dml_rotary(dml_rotary(dml_tanh(x), 4, &o), 6, &(dml_rotary_options){ .rotated = 2 });
}
static dml_node *rotary_parameter(dml_graph *g)
{
    return dml_dense_with(dml_input(g, "x", DML_F32, 2), dml_rotary(parameter(g, 2, 4, 2), 1, NULL), NULL);
}

/* X(op, what builds it, samples) */
#define ATTENTION_CASE_LIST(X)                                                                               \
    X(attention, attention_causal, 3)                                                                        \
    X(attention, attention_lengths, 5)                                                                       \
    X(attention, attention_of_itself, 2)                                                                     \
    X(attention, attention_packed, 2)                                                                        \
    X(attention, attention_parameters, 2)                                                                    \
    X(attention, attention_input, 2)                                                                         \
    X(attention, attention_large, 2)                                                                         \
    X(attention, heads_causal, 2)                                                                            \
    X(attention, heads_memory, 3)                                                                            \
    X(attention, heads_bare, 2)                                                                              \
    X(rotary, rotary_halves, 2)                                                                              \
    X(rotary, rotary_pairs, 3)                                                                               \
    X(rotary, rotary_parameter, 2)

#endif
