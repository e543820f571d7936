/* cases_reduce.h: cases of reductions along axes, softmax (included by ops_cases.h). */
#ifndef DML_TESTS_GRAPH_CASES_REDUCE_H
#define DML_TESTS_GRAPH_CASES_REDUCE_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_embedding.h"
#include "ops/op_reduce.h"
#include "ops/op_shape.h"
#include "ops/op_softmax.h"

#include "case_nodes.h"

/* Each reduction over one axis, several, and some that aren't neighbours; of a parameter; and kept. */
#define REDUCE_CASES(name, call)                                                                             \
    static dml_node *name##_last(dml_graph *g)                                                               \
    {                                                                                                        \
        dml_node *x = row(g, 37);                                                                            \
        const dml_shape axes = dml_shape_of(-1);                                                             \
        const bool keep = true;                                                                              \
        return dml_mul(x, call);                                                                             \
    }                                                                                                        \
    static dml_node *name##_first(dml_graph *g)                                                              \
    {                                                                                                        \
        dml_node *x = image(g, 5, 3, 4);                                                                     \
        const dml_shape axes = dml_shape_of(0);                                                              \
        const bool keep = false;                                                                             \
        return dml_add(call, dml_slice(x, 0, 0, 1));                                                         \
    }                                                                                                        \
    static dml_node *name##_apart(dml_graph *g)                                                              \
    {                                                                                                        \
        dml_node *x = image(g, 4, 3, 5);                                                                     \
        const dml_shape axes = dml_shape_of(2, -3);                                                          \
        const bool keep = true;                                                                              \
        return dml_add(call, x);                                                                             \
    }                                                                                                        \
    static dml_node *name##_all(dml_graph *g)                                                                \
    {                                                                                                        \
        dml_node *x = image(g, 3, 4, 5), *all;                                                               \
        const dml_shape axes = dml_all_axes();                                                               \
        const bool keep = false;                                                                             \
        all = call;                                                                                          \
        x = parameter(g, 2, 7, 9);                                                                           \
        return dml_mul(row(g, 3), dml_add(all, call));                                                       \
    }
REDUCE_CASES(sum, dml_sum(x, axes, keep))
REDUCE_CASES(mean, dml_mean(x, axes, keep))
REDUCE_CASES(max, dml_max(x, axes, keep))
REDUCE_CASES(min, dml_min(x, axes, keep))
REDUCE_CASES(norm, dml_norm(x, 2, axes, keep))
static dml_node *norm_of_sizes(dml_graph *g)
{
    dml_node *x = image(g, 3, 4, 5);
    return dml_add(dml_norm(x, 1, dml_shape_of(1, 2), true), dml_norm(x, INFINITY, dml_shape_of(0), true));
}
/* Many columns, and more elements than fit into a strip. */
static dml_node *sum_wide(dml_graph *g)
{
    dml_node *x = dml_reshape(row(g, 1400), dml_shape_of(4, 350));
    return dml_add(dml_norm(x, 2, dml_shape_of(0), false),
                   dml_add(dml_max(x, dml_shape_of(0), false), dml_sum(x, dml_shape_of(0), false)));
}
/* Which must be in range by themselves. */
static dml_node *argmax_looked_up(dml_graph *g)
{
    dml_node *x = image(g, 4, 3, 5);
    dml_node *a = dml_embedding(dml_argmax(x, -1, false), 5, 2);
    dml_node *b = dml_embedding(dml_argmax(x, 0, true), 6, 2),
             *c = dml_embedding(dml_argmin(x, 1, false), 3, 2);
    return dml_add(dml_add(dml_slice(a, 1, 0, 1), dml_sum(b, dml_shape_of(0, 1), true)),
                   dml_slice(c, 1, 0, 1));
}

#define SOFTMAX_CASES(name)                                                                                  \
    static dml_node *name##_row(dml_graph *g)                                                                \
    {                                                                                                        \
        dml_node *h = row(g, 37);                                                                            \
        return dml_add(dml_##name(dml_##name(dml_tanh(h), 0), -1), h);                                       \
    }                                                                                                        \
    static dml_node *name##_middle(dml_graph *g)                                                             \
    {                                                                                                        \
        dml_node *x = image(g, 4, 3, 5);                                                                     \
        return dml_add(dml_##name(x, 1), dml_mul(dml_##name(x, -3), x));                                     \
    }                                                                                                        \
    static dml_node *name##_parameter(dml_graph *g)                                                          \
    {                                                                                                        \
        return dml_dense_with(row(g, 9), dml_##name(parameter(g, 2, 7, 9), -1), NULL);                       \
    }
SOFTMAX_CASES(softmax)
SOFTMAX_CASES(log_softmax)

/* X(op, what builds it, samples) */
#define REDUCE_CASE_LIST(X)                                                                                  \
    X(sum, sum_last, 5)                                                                                      \
    X(sum, sum_first, 3)                                                                                     \
    X(sum, sum_apart, 2)                                                                                     \
    X(sum, sum_all, 3)                                                                                       \
    X(mean, mean_last, 5)                                                                                    \
    X(mean, mean_first, 3)                                                                                   \
    X(mean, mean_apart, 2)                                                                                   \
    X(mean, mean_all, 3)                                                                                     \
    X(max, max_last, 5)                                                                                      \
    X(max, max_first, 3)                                                                                     \
    X(max, max_apart, 2)                                                                                     \
    X(max, max_all, 3)                                                                                       \
    X(min, min_last, 5)                                                                                      \
    X(min, min_first, 3)                                                                                     \
    X(min, min_apart, 2)                                                                                     \
    X(min, min_all, 3)                                                                                       \
    X(norm, norm_last, 5)                                                                                    \
    X(norm, norm_first, 3)                                                                                   \
    X(norm, norm_apart, 2)                                                                                   \
    X(norm, norm_all, 3)                                                                                     \
    X(norm, norm_of_sizes, 3)                                                                                \
    X(sum, sum_wide, 2)                                                                                      \
    X(argmax, argmax_looked_up, 3)                                                                           \
    X(softmax, softmax_row, 5)                                                                               \
    X(softmax, softmax_middle, 3)                                                                            \
    X(softmax, softmax_parameter, 2)                                                                         \
    X(log_softmax, log_softmax_row, 5)                                                                       \
    X(log_softmax, log_softmax_middle, 3)                                                                    \
    X(log_softmax, log_softmax_parameter, 2)

#endif
