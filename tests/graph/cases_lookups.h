/* cases_lookups.h: cases of ops that look up: embeddings, bags, take, gather (included by ops_cases.h). */
#ifndef DML_TESTS_GRAPH_CASES_LOOKUPS_H
#define DML_TESTS_GRAPH_CASES_LOOKUPS_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_embedding.h"
#include "ops/op_embedding_bag.h"
#include "ops/op_gather.h"
#include "ops/op_reduce.h"
#include "ops/op_shape.h"

#include "case_nodes.h"

static dml_node *bag_of(dml_node *indices, dml_node *by, dml_node *table, dml_bag_mode mode)
{
    return dml_embedding_bag_with(indices, by, table, &(dml_embedding_bag_options){ .mode = mode });
}
static dml_node *bag_sum(dml_graph *g)
{
    return dml_dense(dml_embedding_bag(dml_input(g, "words", DML_I32, 5), NULL, 4, 3, NULL), 4);
}
static dml_node *bag_mean(dml_graph *g)
{
    return bag_of(dml_input(g, "words", DML_I32, 2, 3), NULL, weights(g, dml_shape_of(2, 70)), DML_BAG_MEAN);
}
static dml_node *bag_values(dml_graph *g)
{
    return dml_add(
        dml_embedding_bag(dml_input(g, "index", DML_I32, 9), dml_input(g, "value", DML_F32, 9), 20, 1, NULL),
        weights(g, dml_shape_of(1)));
}
static dml_node *bag_computed_weights(dml_graph *g)
{
    dml_node *words = dml_input(g, "words", DML_I32, 4), *table = dml_tanh(weights(g, dml_shape_of(6, 3)));
    dml_node *by = matrices(g, dml_shape_of(4));
    return dml_add(bag_of(words, by, table, DML_BAG_SUM), bag_of(words, dml_tanh(by), table, DML_BAG_SUM));
}
/* One table for bags and single words, whose indices then have no -1. */
static dml_node *bag_shared(dml_graph *g)
{
    dml_node *table = weights(g, dml_shape_of(5, 4)), *words = dml_input(g, "words", DML_I32, 3);
    dml_node *a = dml_flatten(dml_embedding_with(words, table)),
             *b = bag_of(words, NULL, table, DML_BAG_MEAN);
    return dml_add(dml_dense(a, 2), dml_dense(b, 2));
}

static dml_node *embedding_words(dml_graph *g)
{
    return dml_dense(dml_embedding(dml_input(g, "words", DML_I32, 7), 5, 3), 4);
}
static dml_node *embedding_one(dml_graph *g)
{
    return dml_embedding(labels(g), 9, 70);
}
/* One table for words, for others of another shape, and as the weights of the last layer; a smaller one, so
   that the words must fit both. */
static dml_node *embedding_shared(dml_graph *g)
{
    dml_node *words = dml_input(g, "words", DML_I32, 2, 3), *table = parameter(g, 2, 11, 4);
    dml_node *a = dml_embedding_with(words, table), *b = dml_embedding(dml_flatten(words), 6, 4);
    dml_node *c = dml_embedding_with(dml_input(g, "word", DML_I32), table);
    a = dml_add(dml_flatten(a), dml_flatten(dml_tanh(b)));
    return dml_dense_with(dml_add(dml_dense(a, 4), c), table, NULL);
}
static dml_node *embedding_frozen(dml_graph *g)
{
    dml_node *table = parameter(g, 2, 6, 3);
    dml_parameter_train(table, false);
    return dml_dense(dml_embedding_with(dml_input(g, "words", DML_I32, 4), table), 2);
}
static dml_node *embedding_computed(dml_graph *g)
{
    return dml_embedding_with(dml_input(g, "words", DML_I32, 4), dml_tanh(parameter(g, 2, 6, 3)));
}

/* Lists shorter and longer than the axis, in which some come twice. */
static dml_node *take_rows(dml_graph *g)
{
    dml_node *x = image(g, 4, 3, 11);
    dml_node *a = dml_take(x, dml_input(g, "a", DML_I32, 7), 0);
    return dml_add(dml_slice(a, 0, 0, 4), dml_tanh(x));
}
static dml_node *take_last(dml_graph *g)
{
    return dml_take(image(g, 2, 3, 5), dml_input(g, "a", DML_I32, 2, 4), -1);
}
static dml_node *take_one(dml_graph *g)
{
    dml_node *x = image(g, 4, 3, 2), *i = dml_input(g, "i", DML_I32);
    return dml_add(dml_take(x, i, 0), dml_take(dml_tanh(x), i, 0));
}
static dml_node *gather_last(dml_graph *g)
{
    return dml_gather(row(g, 13), dml_input(g, "a", DML_I32, 20), -1);
}
static dml_node *gather_middle(dml_graph *g)
{
    dml_node *x = image(g, 2, 5, 3);
    return dml_add(dml_gather(x, dml_input(g, "a", DML_I32, 2, 5, 3), 1), x);
}
/* What is picked is the largest. */
static dml_node *gather_largest(dml_graph *g)
{
    dml_node *x = image(g, 3, 4, 5), *p = parameter(g, 2, 6, 4);
    dml_node *picked = dml_gather(x, dml_argmax(x, 0, true), 0);
    return dml_add(picked, dml_sum(dml_gather(p, dml_argmax(p, -1, true), -1), dml_all_axes(), false));
}

/* X(op, what builds it, samples) */
#define LOOKUPS_CASE_LIST(X)                                                                                 \
    X(embedding, embedding_words, 3)                                                                         \
    X(embedding, embedding_one, 7)                                                                           \
    X(embedding, embedding_shared, 3)                                                                        \
    X(embedding, embedding_frozen, 2)                                                                        \
    X(embedding, embedding_computed, 3)                                                                      \
    X(take, take_rows, 3)                                                                                    \
    X(take, take_last, 2)                                                                                    \
    X(take, take_one, 5)                                                                                     \
    X(gather, gather_last, 4)                                                                                \
    X(gather, gather_middle, 3)                                                                              \
    X(gather, gather_largest, 3)                                                                             \
    X(embedding_bag, bag_sum, 3)                                                                             \
    X(embedding_bag, bag_mean, 7)                                                                            \
    X(embedding_bag, bag_values, 5)                                                                          \
    X(embedding_bag, bag_computed_weights, 3)                                                                \
    X(embedding_bag, bag_shared, 3)

#endif
