/* cases_elements.h: cases of functions of one element or two, and dropout (included by ops_cases.h). */
#ifndef DML_TESTS_GRAPH_CASES_ELEMENTS_H
#define DML_TESTS_GRAPH_CASES_ELEMENTS_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_dropout.h"
#include "ops/op_loss.h"

#include "case_nodes.h"

static dml_node *add_rows(dml_graph *g)
{
    return dml_add(row(g, 17), row(g, 17));
}
static dml_node *add_itself(dml_graph *g)
{
    dml_node *h = row(g, 5);
    return dml_add(h, h);
}
static dml_node *add_input(dml_graph *g)
{
    return dml_add(dml_input(g, "x", DML_F32, 3, 5, 2), image(g, 3, 5, 2));
}
static dml_node *add_losses(dml_graph *g)
{
    dml_node *h = row(g, 4);
    return dml_add(dml_softmax_cross_entropy(h, labels(g)), dml_mean_squared_error(h, row(g, 4)));
}
static dml_node *add_parameters(dml_graph *g)
{
    dml_node *w = dml_add(parameter(g, 2, 5, 7), parameter(g, 2, 5, 7));
    return dml_dense_with(dml_input(g, "x", DML_F32, 7), w, NULL);
}

static dml_node *dropout_row(dml_graph *g)
{
    return dml_dropout(row(g, 131), 0.5f);
}
static dml_node *dropout_image(dml_graph *g)
{
    dml_node *x = image(g, 3, 5, 7);
    return dml_add(dml_add(dml_dropout(x, 0.9f), x), dml_dropout(dml_relu(dml_dropout(x, 0.1f)), 0.25f));
}
static dml_node *dropout_nothing(dml_graph *g)
{
    dml_node *x = row(g, 6);
    return dml_add(dml_dropout(dml_dropout(x, 0), 0.3f), dml_dropout(x, 0));
}
static dml_node *dropout_parameter(dml_graph *g)
{
    return dml_dense_with(dml_dropout(dml_input(g, "x", DML_F32, 4), 0.4f),
                          dml_dropout(parameter(g, 2, 5, 4), 0.6f), NULL);
}

/* Each activation on a row, on an image, and on a node that another op uses too. */
#define ACTIVATION_CASES(name)                                                                               \
    static dml_node *name##_row(dml_graph *g)                                                                \
    {                                                                                                        \
        return dml_##name(row(g, 131));                                                                      \
    }                                                                                                        \
    static dml_node *name##_image(dml_graph *g)                                                              \
    {                                                                                                        \
        return dml_##name(image(g, 3, 5, 7));                                                                \
    }                                                                                                        \
    static dml_node *name##_two_consumers(dml_graph *g)                                                      \
    {                                                                                                        \
        dml_node *h = row(g, 6);                                                                             \
        return dml_add(dml_add(dml_##name(h), h), dml_##name(dml_##name(h)));                                \
    }                                                                                                        \
    static dml_node *name##_parameter(dml_graph *g)                                                          \
    {                                                                                                        \
        return dml_dense_with(row(g, 3), dml_##name(parameter(g, 2, 5, 3)), NULL);                           \
    }
ACTIVATION_CASES(relu)
ACTIVATION_CASES(tanh)
ACTIVATION_CASES(sigmoid)

/* The other functions of one element, on rows that other ops use too, which are above 0 where they have to
   be, and on a parameter. */
static dml_node *above_0(dml_node *x)
{
    return dml_affine(dml_sigmoid(x), 2, 0.5f);
}
#define FUNCTION_CASES(name, call)                                                                           \
    static dml_node *name##_rows(dml_graph *g)                                                               \
    {                                                                                                        \
        dml_node *h = row(g, 35), *x = above_0(h), *y = call;                                                \
        x = dml_abs(y);                                                                                      \
        return dml_add(dml_add(y, h), call);                                                                 \
    }                                                                                                        \
    static dml_node *name##_of_a_parameter(dml_graph *g)                                                     \
    {                                                                                                        \
        dml_node *x = above_0(parameter(g, 2, 5, 3));                                                        \
        return dml_dense_with(row(g, 3), call, NULL);                                                        \
    }
#define SIGNED_CASES(name, call)                                                                             \
    static dml_node *name##_rows(dml_graph *g)                                                               \
    {                                                                                                        \
        dml_node *h = row(g, 35), *x = h, *y = call;                                                         \
        x = y;                                                                                               \
        return dml_add(dml_add(call, h), y);                                                                 \
    }                                                                                                        \
    static dml_node *name##_of_a_parameter(dml_graph *g)                                                     \
    {                                                                                                        \
        dml_node *x = parameter(g, 2, 5, 3);                                                                 \
        return dml_dense_with(row(g, 3), call, NULL);                                                        \
    }
SIGNED_CASES(leaky_relu, dml_leaky_relu(x, 0.125f))
SIGNED_CASES(elu, dml_elu(x, 1.25f))
SIGNED_CASES(gelu, dml_gelu(x))
SIGNED_CASES(gelu_tanh, dml_gelu_tanh(x))
SIGNED_CASES(silu, dml_silu(x))
SIGNED_CASES(softplus, dml_softplus(x))
SIGNED_CASES(exp, dml_exp(x))
SIGNED_CASES(sin, dml_sin(dml_affine(x, 2, 0)))
SIGNED_CASES(cos, dml_cos(dml_affine(x, 2, 0)))
SIGNED_CASES(abs, dml_abs(x))
SIGNED_CASES(square, dml_square(x))
SIGNED_CASES(clamp, dml_clamp(x, -0.4f, 0.3f))
SIGNED_CASES(affine, dml_affine(x, -1.5f, 0.75f))
FUNCTION_CASES(log, dml_log(dml_affine(x, 1, 0.25f)))
FUNCTION_CASES(sqrt, dml_sqrt(dml_affine(x, 1, 0.25f)))
FUNCTION_CASES(pow, dml_pow(dml_affine(x, 1, 0.25f), 1.75f))

/* Two operands: of one shape, the same one, and each way in which one or both are repeated. The second is
   above 0. */
#define PAIR_CASES(name)                                                                                     \
    static dml_node *name##_rows(dml_graph *g)                                                               \
    {                                                                                                        \
        return dml_##name(row(g, 17), above_0(row(g, 17)));                                                  \
    }                                                                                                        \
    static dml_node *name##_itself(dml_graph *g)                                                             \
    {                                                                                                        \
        dml_node *h = above_0(row(g, 5));                                                                    \
        return dml_add(dml_##name(h, h), h);                                                                 \
    }                                                                                                        \
    static dml_node *name##_channels(dml_graph *g)                                                           \
    {                                                                                                        \
        return dml_##name(image(g, 3, 4, 5), above_0(parameter(g, 1, 5, 0)));                                \
    }                                                                                                        \
    static dml_node *name##_lines(dml_graph *g)                                                              \
    {                                                                                                        \
        dml_node *x = image(g, 3, 4, 5);                                                                     \
        return dml_add(dml_##name(parameter(g, 2, 4, 1), above_0(x)), x);                                    \
    }                                                                                                        \
    static dml_node *name##_outer(dml_graph *g)                                                              \
    {                                                                                                        \
        return dml_##name(image(g, 3, 1, 2), above_0(image(g, 1, 4, 2)));                                    \
    }                                                                                                        \
    static dml_node *name##_scalar(dml_graph *g)                                                             \
    {                                                                                                        \
        return dml_##name(row(g, 300), above_0(parameter(g, 1, 1, 0)));                                      \
    }
PAIR_CASES(sub)
PAIR_CASES(mul)
PAIR_CASES(div)
PAIR_CASES(maximum)
PAIR_CASES(minimum)
static dml_node *add_channels(dml_graph *g)
{
    return dml_relu(dml_add(image(g, 3, 4, 5), parameter(g, 1, 5, 0)));
}
static dml_node *add_outer(dml_graph *g)
{
    return dml_add(dml_add(image(g, 3, 1, 2), image(g, 1, 4, 2)), parameter(g, 2, 4, 1));
}
static dml_node *add_positions(dml_graph *g) /* as a transformer's */
{
    dml_node *x = dml_input(g, "x", DML_F32, 6, 4), *p = parameter(g, 2, 6, 4);
    return dml_mul(dml_add(x, p), dml_add(p, parameter(g, 2, 6, 1)));
}
static dml_node *where_rows(dml_graph *g)
{
    dml_node *a = row(g, 19), *b = row(g, 19);
    return dml_where(dml_less(a, b), dml_tanh(a), b);
}
static dml_node *where_repeated(dml_graph *g)
{
    dml_node *x = image(g, 3, 4, 5);
    dml_node *positive = dml_less(dml_input(g, "zero", DML_F32, 4, 1), image(g, 1, 4, 5));
    return dml_add(dml_where(positive, parameter(g, 1, 5, 0), x),
                   dml_where(positive, x, parameter(g, 2, 4, 1)));
}
static dml_node *where_itself(dml_graph *g)
{
    dml_node *h = row(g, 9);
    return dml_where(dml_less_equal(row(g, 9), h), h, h);
}
#define COMPARISON_CASE(name)                                                                                \
    static dml_node *name##_gates(dml_graph *g)                                                              \
    {                                                                                                        \
        dml_node *a = row(g, 21), *b = dml_input(g, "b", DML_F32, 21);                                       \
        return dml_mul(dml_##name(dml_clamp(a, 0, 9), dml_clamp(b, 0, 9)), dml_add(a, b));                   \
    }
COMPARISON_CASE(equal)
COMPARISON_CASE(not_equal)
COMPARISON_CASE(less)
COMPARISON_CASE(less_equal)

/* X(op, what builds it, samples) */
#define ELEMENTS_CASE_LIST(X)                                                                                \
    X(add, add_rows, 5)                                                                                      \
    X(add, add_itself, 3)                                                                                    \
    X(add, add_input, 2)                                                                                     \
    X(add, add_losses, 5)                                                                                    \
    X(add, add_parameters, 3)                                                                                \
    X(dropout, dropout_row, 5)                                                                               \
    X(dropout, dropout_image, 3)                                                                             \
    X(dropout, dropout_nothing, 2)                                                                           \
    X(dropout, dropout_parameter, 4)                                                                         \
    X(relu, relu_row, 5)                                                                                     \
    X(relu, relu_image, 2)                                                                                   \
    X(relu, relu_two_consumers, 4)                                                                           \
    X(relu, relu_parameter, 2)                                                                               \
    X(tanh, tanh_row, 5)                                                                                     \
    X(tanh, tanh_image, 2)                                                                                   \
    X(tanh, tanh_two_consumers, 4)                                                                           \
    X(tanh, tanh_parameter, 2)                                                                               \
    X(sigmoid, sigmoid_row, 5)                                                                               \
    X(sigmoid, sigmoid_image, 2)                                                                             \
    X(sigmoid, sigmoid_two_consumers, 4)                                                                     \
    X(sigmoid, sigmoid_parameter, 2)                                                                         \
    X(leaky_relu, leaky_relu_rows, 3)                                                                        \
    X(leaky_relu, leaky_relu_of_a_parameter, 2)                                                              \
    X(elu, elu_rows, 3)                                                                                      \
    X(elu, elu_of_a_parameter, 2)                                                                            \
    X(gelu, gelu_rows, 3)                                                                                    \
    X(gelu, gelu_of_a_parameter, 2)                                                                          \
    X(gelu_tanh, gelu_tanh_rows, 3)                                                                          \
    X(gelu_tanh, gelu_tanh_of_a_parameter, 2)                                                                \
    X(silu, silu_rows, 3)                                                                                    \
    X(silu, silu_of_a_parameter, 2)                                                                          \
    X(softplus, softplus_rows, 3)                                                                            \
    X(softplus, softplus_of_a_parameter, 2)                                                                  \
    X(exp, exp_rows, 3)                                                                                      \
    X(exp, exp_of_a_parameter, 2)                                                                            \
    X(sin, sin_rows, 3)                                                                                      \
    X(sin, sin_of_a_parameter, 2)                                                                            \
    X(cos, cos_rows, 3)                                                                                      \
    X(cos, cos_of_a_parameter, 2)                                                                            \
    X(abs, abs_rows, 3)                                                                                      \
    X(abs, abs_of_a_parameter, 2)                                                                            \
    X(square, square_rows, 3)                                                                                \
    X(square, square_of_a_parameter, 2)                                                                      \
    X(clamp, clamp_rows, 3)                                                                                  \
    X(clamp, clamp_of_a_parameter, 2)                                                                        \
    X(affine, affine_rows, 3)                                                                                \
    X(affine, affine_of_a_parameter, 2)                                                                      \
    X(log, log_rows, 3)                                                                                      \
    X(log, log_of_a_parameter, 2)                                                                            \
    X(sqrt, sqrt_rows, 3)                                                                                    \
    X(sqrt, sqrt_of_a_parameter, 2)                                                                          \
    X(pow, pow_rows, 3)                                                                                      \
    X(pow, pow_of_a_parameter, 2)                                                                            \
    X(sub, sub_rows, 5)                                                                                      \
    X(sub, sub_itself, 3)                                                                                    \
    X(sub, sub_channels, 3)                                                                                  \
    X(sub, sub_lines, 3)                                                                                     \
    X(sub, sub_outer, 3)                                                                                     \
    X(sub, sub_scalar, 3)                                                                                    \
    X(mul, mul_rows, 5)                                                                                      \
    X(mul, mul_itself, 3)                                                                                    \
    X(mul, mul_channels, 3)                                                                                  \
    X(mul, mul_lines, 3)                                                                                     \
    X(mul, mul_outer, 3)                                                                                     \
    X(mul, mul_scalar, 3)                                                                                    \
    X(div, div_rows, 5)                                                                                      \
    X(div, div_itself, 3)                                                                                    \
    X(div, div_channels, 3)                                                                                  \
    X(div, div_lines, 3)                                                                                     \
    X(div, div_outer, 3)                                                                                     \
    X(div, div_scalar, 3)                                                                                    \
    X(maximum, maximum_rows, 5)                                                                              \
    X(maximum, maximum_itself, 3)                                                                            \
    X(maximum, maximum_channels, 3)                                                                          \
    X(maximum, maximum_lines, 3)                                                                             \
    X(maximum, maximum_outer, 3)                                                                             \
    X(maximum, maximum_scalar, 3)                                                                            \
    X(minimum, minimum_rows, 5)                                                                              \
    X(minimum, minimum_itself, 3)                                                                            \
    X(minimum, minimum_channels, 3)                                                                          \
    X(minimum, minimum_lines, 3)                                                                             \
    X(minimum, minimum_outer, 3)                                                                             \
    X(minimum, minimum_scalar, 3)                                                                            \
    X(add, add_channels, 3)                                                                                  \
    X(add, add_outer, 3)                                                                                     \
    X(add, add_positions, 3)                                                                                 \
    X(where, where_rows, 3)                                                                                  \
    X(where, where_repeated, 3)                                                                              \
    X(where, where_itself, 3)                                                                                \
    X(equal, equal_gates, 3)                                                                                 \
    X(not_equal, not_equal_gates, 3)                                                                         \
    X(less, less_gates, 3)                                                                                   \
    X(less_equal, less_equal_gates, 3)

#endif
