/* cases_custom.h: cases of ops that the program brings along (included by ops_cases.h). */
#ifndef DML_TESTS_GRAPH_CASES_CUSTOM_H
#define DML_TESTS_GRAPH_CASES_CUSTOM_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_custom.h"
#include "ops/op_loss.h"
#include "ops/op_reduce.h"

#include "case_nodes.h"

static dml_node *custom_one(dml_graph *g)
{
    dml_node *x = dml_tanh(row(g, 5));
    return custom_sums(&x, 1);
}
static dml_node *custom_three(dml_graph *g)
{
    dml_node *of[] = { dml_tanh(row(g, 6)), parameter(g, 1, 6, 0), dml_input(g, NULL, DML_F32, 2, 3) };
    return dml_relu(custom_sums(of, 3));
}
/* A node that is there twice, and is used elsewhere; what is behind backward of it is added to. */
static dml_node *custom_twice(dml_graph *g)
{
    dml_node *x = row(g, 4), *of[] = { x, parameter(g, 1, 4, 0), x, x };
    return dml_add(custom_sums(of, 4), dml_mul(x, dml_sigmoid(x)));
}
static dml_node *custom_parameters(dml_graph *g)
{
    dml_node *p = parameter(g, 1, 7, 0), *of[] = { p, parameter(g, 1, 7, 0) };
    return dml_add(dml_dense(dml_input(g, NULL, DML_F32, 3), 2), custom_sums(of, 2));
}
static dml_node *custom_eight(dml_graph *g)
{
    dml_node *x = row(g, 3), *of[] = { x, row(g, 3), dml_tanh(x), x, row(g, 3), parameter(g, 1, 3, 0), x, x };
    return custom_sums(of, 8);
}
static dml_node *custom_whole_batch(dml_graph *g)
{
    dml_node *of[] = { dml_tanh(image(g, 3, 2, 2)), parameter(g, 2, 2, 3) };
    return dml_add(custom_squares(of, 2), dml_batch_mean(dml_sum(row(g, 2), dml_all_axes(), false), NULL));
}

/* X(op, what builds it, samples) */
#define CUSTOM_CASE_LIST(X)                                                                                  \
    X(custom, custom_one, 1)                                                                                 \
    X(custom, custom_three, 4)                                                                               \
    X(custom, custom_twice, 3)                                                                               \
    X(custom, custom_parameters, 3)                                                                          \
    X(custom, custom_eight, 2)                                                                               \
    X(custom, custom_whole_batch, 5)

#endif
