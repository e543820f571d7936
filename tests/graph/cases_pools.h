/* cases_pools.h: cases of pooling (included by ops_cases.h). */
#ifndef DML_TESTS_GRAPH_CASES_POOLS_H
#define DML_TESTS_GRAPH_CASES_POOLS_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_pool2d.h"

#include "case_nodes.h"

static dml_node *max_pool(dml_graph *g)
{
    return dml_max_pool2d(image(g, 7, 5, 3), NULL);
}
static dml_node *max_pool_overlapping(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 3, 3 }, .stride = { 2, 1 }, .padding = { 1, 2 } };
    return dml_max_pool2d(image(g, 6, 5, 2), &o);
}
static dml_node *max_pool_gaps(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 1, 2 }, .stride = { 3, 4 } };
    dml_node *x = image(g, 7, 9, 3);
    return dml_add(dml_max_pool2d(x, &o), dml_avg_pool2d(x, &o));
}
static dml_node *avg_pool(dml_graph *g)
{
    return dml_avg_pool2d(image(g, 5, 7, 3), NULL);
}
static dml_node *avg_pool_overlapping(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 3, 4 }, .stride = { 2, 1 }, .padding = { 2, 1 } };
    return dml_avg_pool2d(image(g, 6, 5, 2), &o);
}
static dml_node *avg_pool_two_consumers(dml_graph *g)
{
    dml_node *x = image(g, 4, 4, 3);
    const dml_pool2d_options whole = { .kernel = { 4, 4 } };
    return dml_add(dml_add(dml_avg_pool2d(x, &whole), dml_avg_pool2d(x, &whole)), dml_max_pool2d(x, &whole));
}

static dml_node *avg_pool_global(dml_graph *g)
{
    return dml_dense(dml_global_avg_pool2d(image(g, 5, 3, 7)), 4);
}

static dml_node *max_pool_rounded_up(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 2, 3 }, .stride = { 2, 2 }, .ceil_mode = true };
    const dml_pool2d_options p = { .kernel = { 3, 2 }, .padding = { 1, 1 }, .ceil_mode = true };
    return dml_max_pool2d(dml_max_pool2d(image(g, 9, 8, 3), &o), &p);
}
static dml_node *max_pool_same(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 3, 2 }, .stride = { 2, 3 }, .same = true };
    return dml_flatten(dml_max_pool2d(dml_relu(image(g, 6, 8, 3)), &o));
}
static dml_node *max_pool_global(dml_graph *g)
{
    return dml_dense(dml_global_max_pool2d(image(g, 5, 3, 7)), 4);
}
static dml_node *avg_pool_counted(dml_graph *g)
{
    const dml_pool2d_options o = {
        .kernel = { 3, 4 }, .stride = { 2, 3 }, .padding = { 1, 2 }, .count_include_pad = true
    };
    const dml_pool2d_options p = {
        .kernel = { 2, 2 }, .padding = { 1, 1 }, .ceil_mode = true, .count_include_pad = true
    };
    return dml_avg_pool2d(dml_avg_pool2d(image(g, 8, 9, 3), &o), &p);
}
static dml_node *avg_pool_same(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 3, 3 }, .stride = { 1, 2 }, .same = true };
    const dml_pool2d_options p = { .kernel = { 2, 2 }, .ceil_mode = true };
    dml_node *x = image(g, 5, 7, 2);
    return dml_avg_pool2d(dml_avg_pool2d(x, &o), &p);
}
static dml_node *max_pool1d_lines(dml_graph *g)
{
    const dml_pool1d_options o = { .kernel = 3, .stride = 2, .padding = 1, .ceil_mode = true };
    dml_node *x = dml_max_pool1d(dml_relu(line(g, 8, 5)), &o);
    return dml_max_pool1d(dml_max_pool1d(x, &(dml_pool1d_options){ .stride = 1, .same = true }), NULL);
}
static dml_node *max_pool1d_global(dml_graph *g)
{
    return dml_dense(dml_global_max_pool1d(line(g, 6, 3)), 2);
}
static dml_node *avg_pool1d_lines(dml_graph *g)
{
    const dml_pool1d_options o = { .kernel = 4, .stride = 2, .padding = 1, .count_include_pad = true };
    dml_node *x = line(g, 9, 5);
    return dml_add(
        dml_flatten(dml_avg_pool1d(x, &o)),
        dml_flatten(dml_avg_pool1d(x, &(dml_pool1d_options){ .kernel = 4, .stride = 2, .ceil_mode = true })));
}
static dml_node *avg_pool1d_global(dml_graph *g)
{
    return dml_dense(dml_global_avg_pool1d(line(g, 6, 3)), 2);
}

/* X(op, what builds it, samples) */
#define POOLS_CASE_LIST(X)                                                                                   \
    X(max_pool2d, max_pool, 3)                                                                               \
    X(max_pool2d, max_pool_overlapping, 2)                                                                   \
    X(max_pool2d, max_pool_gaps, 2)                                                                          \
    X(avg_pool2d, avg_pool, 3)                                                                               \
    X(avg_pool2d, avg_pool_overlapping, 2)                                                                   \
    X(avg_pool2d, avg_pool_two_consumers, 3)                                                                 \
    X(avg_pool2d, avg_pool_global, 3)                                                                        \
    X(max_pool2d, max_pool_rounded_up, 2)                                                                    \
    X(max_pool2d, max_pool_same, 3)                                                                          \
    X(max_pool2d, max_pool_global, 3)                                                                        \
    X(avg_pool2d, avg_pool_counted, 2)                                                                       \
    X(avg_pool2d, avg_pool_same, 2)                                                                          \
    X(max_pool1d, max_pool1d_lines, 3)                                                                       \
    X(max_pool1d, max_pool1d_global, 3)                                                                      \
    X(avg_pool1d, avg_pool1d_lines, 2)                                                                       \
    X(avg_pool1d, avg_pool1d_global, 2)

#endif
