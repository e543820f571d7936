/* cases_matmul.h: cases of products of matrices: dense layers, matmul (included by ops_cases.h). */
#ifndef DML_TESTS_GRAPH_CASES_MATMUL_H
#define DML_TESTS_GRAPH_CASES_MATMUL_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_matmul.h"

#include "case_nodes.h"

static dml_node *dense_small(dml_graph *g)
{
    return dml_dense(dml_dense(dml_input(g, "x", DML_F32, 1), 1), 1);
}
static dml_node *dense_odd(dml_graph *g)
{
    return dml_dense(row(g, 13), 7);
}
static dml_node *dense_large(dml_graph *g)
{
    return dml_dense_with(row(g, 37), parameter(g, 2, 21, 37), NULL);
}
static dml_node *dense_shared_weights(dml_graph *g)
{
    dml_node *w = parameter(g, 2, 6, 6), *bias = parameter(g, 1, 6, 0);
    dml_node *h = dml_tanh(dml_dense_with(row(g, 6), w, bias));
    return dml_dense_with(dml_tanh(dml_dense_with(h, w, NULL)), w, bias);
}
static dml_node *dense_two_consumers(dml_graph *g)
{
    dml_node *h = row(g, 9);
    return dml_add(dml_dense(h, 5), dml_tanh(dml_dense(h, 5)));
}

static dml_node *dense_image(dml_graph *g)
{
    dml_node *x = dml_dense(image(g, 3, 5, 4), 6);
    return dml_add(dml_relu(dml_dense(dml_relu(dml_dense(x, 7)), 6)), x);
}
/* Of inputs that take no gradient, with two and four leading dimensions, weights shared. */
static dml_node *dense_leading(dml_graph *g)
{
    dml_node *w = parameter(g, 2, 3, 5);
    dml_node *a = dml_dense_with(dml_input(g, "a", DML_F32, 7, 5), w, NULL);
    dml_node *b = dml_dense_with(dml_input(g, "b", DML_F32, 1, 2, 2, 3, 5), w, parameter(g, 1, 3, 0));
    return dml_add(dml_dense(dml_flatten(a), 2), dml_dense(dml_flatten(b), 2));
}
/* One sum of products for all samples: weights made of other weights. */
static dml_node *dense_of_parameters(dml_graph *g)
{
    return dml_dense_with(row(g, 3), dml_dense_with(parameter(g, 2, 4, 2), parameter(g, 2, 3, 2), NULL),
                          NULL);
}
static dml_node *matmul_of(dml_node *a, dml_node *b, bool transpose_a, bool transpose_b, float scale)
{
    return dml_matmul_with(a, b, &(dml_matmul_options){ transpose_a, transpose_b, scale });
}
static dml_node *matmul_samples(dml_graph *g)
{
    dml_node *plain = dml_matmul(matrices(g, dml_shape_of(3, 5)), matrices(g, dml_shape_of(5, 2)));
    dml_node *a = matmul_of(matrices(g, dml_shape_of(4, 3)), matrices(g, dml_shape_of(4, 2)), true, false, 0);
    dml_node *b = matmul_of(plain, matrices(g, dml_shape_of(2, 2)), false, true, 2);
    dml_node *both =
        matmul_of(matrices(g, dml_shape_of(1, 3)), matrices(g, dml_shape_of(2, 1)), true, true, -0.5f);
    return dml_add(dml_add(plain, a), dml_add(b, both));
}
static dml_node *matmul_add_transposes(dml_graph *g, dml_shape a, dml_shape ta, dml_shape b, dml_shape tb,
                                       bool left, bool right)
{
    dml_node *sum = NULL;
    for (int t = 0; t < 4; t++) {
        dml_node *x = left ? matrices(g, t & 1 ? ta : a) : weights(g, t & 1 ? ta : a);
        dml_node *y = right ? matrices(g, t & 2 ? tb : b) : weights(g, t & 2 ? tb : b);
        dml_node *product = matmul_of(x, y, t & 1, t & 2, t == 3 ? 0.25f : 0);
        sum = sum ? dml_add(sum, product) : product;
    }
    return sum;
}
static dml_node *matmul_samples_by_weights(dml_graph *g)
{
    return matmul_add_transposes(g, dml_shape_of(3, 4), dml_shape_of(4, 3), dml_shape_of(4, 2),
                                 dml_shape_of(2, 4), true, false);
}
static dml_node *matmul_weights_by_samples(dml_graph *g)
{
    return matmul_add_transposes(g, dml_shape_of(3, 4), dml_shape_of(4, 3), dml_shape_of(4, 2),
                                 dml_shape_of(2, 4), false, true);
}
static dml_node *matmul_weights(dml_graph *g)
{
    dml_node *product = matmul_add_transposes(g, dml_shape_of(2, 3, 4), dml_shape_of(2, 4, 3),
                                              dml_shape_of(4, 2), dml_shape_of(2, 4), false, false);
    return dml_mul(product, matrices(g, dml_shape_of(2, 3, 2)));
}
static dml_node *matmul_heads(dml_graph *g)
{
    return matmul_add_transposes(g, dml_shape_of(2, 3, 2), dml_shape_of(2, 2, 3), dml_shape_of(2, 2, 5),
                                 dml_shape_of(2, 5, 2), true, true);
}
static dml_node *matmul_heads_of_weights(dml_graph *g)
{
    return matmul_add_transposes(g, dml_shape_of(2, 3), dml_shape_of(3, 2), dml_shape_of(4, 3, 2),
                                 dml_shape_of(4, 2, 3), true, false);
}
/* Both are repeated: a axis of one, an axis of the other, one that both have. */
static dml_node *matmul_repeated(dml_graph *g)
{
    return matmul_add_transposes(g, dml_shape_of(3, 1, 2, 3), dml_shape_of(3, 1, 3, 2),
                                 dml_shape_of(1, 2, 3, 1), dml_shape_of(3, 1, 1, 3), true, false);
}
static dml_node *matmul_itself(dml_graph *g)
{
    dml_node *x = matrices(g, dml_shape_of(3, 3)), *w = weights(g, dml_shape_of(3, 3));
    return dml_matmul(matmul_of(x, x, false, true, 0), matmul_of(dml_matmul(w, w), w, true, false, 0));
}
static dml_node *matmul_wide(dml_graph *g)
{
    return dml_matmul(dml_matmul(dml_input(g, "x", DML_F32, 2, 70, 3), weights(g, dml_shape_of(3, 65))),
                      weights(g, dml_shape_of(2, 65, 2)));
}

/* X(op, what builds it, samples) */
#define MATMUL_CASE_LIST(X)                                                                                  \
    X(dense, dense_small, 1)                                                                                 \
    X(dense, dense_odd, 5)                                                                                   \
    X(dense, dense_large, 9)                                                                                 \
    X(dense, dense_shared_weights, 7)                                                                        \
    X(dense, dense_two_consumers, 4)                                                                         \
    X(dense, dense_image, 3)                                                                                 \
    X(dense, dense_leading, 3)                                                                               \
    X(dense, dense_of_parameters, 3)                                                                         \
    X(matmul, matmul_samples, 3)                                                                             \
    X(matmul, matmul_samples_by_weights, 3)                                                                  \
    X(matmul, matmul_weights_by_samples, 3)                                                                  \
    X(matmul, matmul_weights, 2)                                                                             \
    X(matmul, matmul_heads, 3)                                                                               \
    X(matmul, matmul_heads_of_weights, 3)                                                                    \
    X(matmul, matmul_repeated, 3)                                                                            \
    X(matmul, matmul_itself, 2)                                                                              \
    X(matmul, matmul_wide, 2)

#endif
