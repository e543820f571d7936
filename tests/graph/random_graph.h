/* random_graph.h: models of random ops on random earlier nodes, over the whole op table: shared parameters,
   several readers of a node, sums of branches. */
#ifndef DML_TESTS_GRAPH_RANDOM_GRAPH_H
#define DML_TESTS_GRAPH_RANDOM_GRAPH_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_dropout.h"
#include "ops/op_embedding.h"
#include "ops/op_loss.h"
#include "ops/op_norm.h"
#include "ops/op_pool2d.h"
#include "ops/op_sample_norm.h"
#include "ops/op_shape.h"
#include "ops/op_slice2d.h"
#include "ops/op_attention.h"
#include "ops/op_conv_transpose2d.h"
#include "ops/op_embedding_bag.h"
#include "ops/op_matmul.h"
#include "ops/op_recurrent.h"
#include "ops/op_rotary.h"
#include "ops/op_gather.h"
#include "ops/op_local2d.h"
#include "ops/op_reduce.h"
#include "ops/op_softmax.h"
#include "graph/weights.h"

#include "subject.h"

static const dml_initializer normal = { DML_INIT_NORMAL, 0, 0.5f };

static unsigned graph_seed;

enum { MOST_MOVES = 30, MOST_ELEMENTS = 48 };

/* A graph in the making: its nodes, batched f32 of at most MOST_ELEMENTS, and parameters to be shared. */
typedef struct maker {
    dml_graph *graph;
    unsigned random;
    int nodes, parameters;
    bool read[MOST_MOVES + 4]; /* by a later one */
    dml_node *node[MOST_MOVES + 4], *parameter[64];
} maker;

static int below(maker *m, int limit)
{
    return (int)(test_random(&m->random) % (unsigned)limit);
}

static int elements_of(const dml_node *x)
{
    return (int)dml_shape_count(&x->shape);
}

/* A parameter of this shape: one that there is already, or a new one. */
static dml_node *weight_shaped(maker *m, dml_shape shape)
{
    for (int i = below(m, 2) * m->parameters; i < m->parameters; i++)
        if (dml_shape_equal(&m->parameter[i]->shape, &shape)) return m->parameter[i];
    dml_node *made = dml_parameter_shaped(m->graph, NULL, normal, shape);
    if (m->parameters < 64) m->parameter[m->parameters++] = made;
    return made;
}
#define weight(m, ...) weight_shaped(m, dml_shape_of(__VA_ARGS__))

/* A statistic of a batch norm, which no gradient reaches. */
static dml_node *statistic(maker *m, int channels)
{
    dml_node *made = dml_parameter(m->graph, NULL, normal, channels);
    dml_parameter_train(made, false);
    return made;
}

/* An earlier node, mostly a near one. */
static dml_node *any(maker *m)
{
    const int back = below(m, 3) ? 1 + below(m, 2) : 1 + below(m, m->nodes);
    const int at = back > m->nodes ? 0 : m->nodes - back;
    m->read[at] = true;
    return m->node[at];
}

/* A divisor of n, not always the same. */
static int divisor(maker *m, int n)
{
    for (;;) {
        const int d = 1 + below(m, n < 6 ? n : 6);
        if (n % d == 0) return d;
    }
}

/* An earlier node as rows (T, C) or as an image (H, W, C), or what has few enough numbers to grow. */
static dml_node *as_rows(maker *m, dml_node *x)
{
    const int n = elements_of(x), rows = divisor(m, n);
    return x->shape.ndim == 2 ? x : dml_reshape(x, dml_shape_of(rows, n / rows));
}

static dml_node *as_image(maker *m, dml_node *x)
{
    const int n = elements_of(x), channels = divisor(m, n), height = divisor(m, n / channels);
    return x->shape.ndim == 3 ? x : dml_reshape(x, dml_shape_of(height, n / channels / height, channels));
}

static dml_node *as_small(maker *m, dml_node *x)
{
    (void)m;
    return 2 * elements_of(x) <= MOST_ELEMENTS ? x : dml_slice(dml_flatten(x), 0, 1, 1 + MOST_ELEMENTS / 2);
}

/* A second operand that goes with x: an earlier node of its shape, itself, or a parameter that is repeated.
 */
static dml_node *beside(maker *m, dml_node *x)
{
    dml_node *b = any(m);
    const int last = x->shape.ndim ? x->shape.dims[x->shape.ndim - 1] : 1;
    if (elements_of(b) == elements_of(x)) return dml_reshape(b, x->shape);
    static const float numbers[] = { 0.75f, -0.5f, 0.25f, 1 };
    switch (below(m, 6)) {
    case 4: return dml_scalar(m->graph, 0.5f);
    case 5: return last <= 4 ? dml_constant(m->graph, numbers, dml_shape_of(last)) : dml_scalar(m->graph, -1);
    case 0: return weight(m, 1);
    case 1: return weight(m, last);
    case 2: return weight_shaped(m, x->shape);
    default: return x;
    }
}

/* What a comparison may see: numbers that float and double have alike. */
static dml_node *leaf(maker *m, dml_node *x)
{
    return below(m, 2) ? dml_input_shaped(m->graph, NULL, DML_F32, x->shape) : weight_shaped(m, x->shape);
}

/* In -1 .. 1; in 0.5 .. 1.5. */
static dml_node *calm(dml_node *x)
{
    return dml_tanh(x);
}

static dml_node *above_zero(dml_node *x)
{
    return dml_affine(dml_sigmoid(x), 1, 0.5f);
}

static int last_of(const dml_node *x)
{
    return x->shape.dims[x->shape.ndim - 1];
}

static dml_node *make_dense(maker *m, dml_node *x)
{
    return dml_dense_with(x, weight(m, 6, last_of(x)), weight(m, 6));
}

static dml_node *make_conv2d(maker *m, dml_node *x)
{
    x = as_image(m, as_small(m, x));
    const int c = last_of(x), filters = 1 + below(m, 3), groups = filters % c == 0 ? c : 1;
    const dml_conv2d_options o = { .padding = { 1, 1 },
                                   .stride = { 1 + below(m, 2), 1 },
                                   .dilation = { 1, 1 + below(m, 2) },
                                   .groups = groups };
    const int kernel = o.dilation[1] == 2 ? 1 + below(m, 2) : 1 + below(m, 3);
    if (x->shape.dims[1] + 2 < (kernel - 1) * o.dilation[1] + 1) return dml_tanh(x);
    dml_node *w = weight(m, filters, 1 + below(m, x->shape.dims[0] < 2 ? 2 : 3), kernel, c / groups);
    return dml_conv2d_with(x, w, below(m, 2) ? weight(m, filters) : NULL, &o);
}

static dml_node *make_pool(maker *m, dml_node *x, bool max)
{
    x = as_image(m, x);
    const dml_pool2d_options o = { .kernel = { 2, 2 },
                                   .stride = { 1 + below(m, 2), 1 },
                                   .padding = { 1, below(m, 2) } };
    if (x->shape.dims[1] < 2) return dml_global_avg_pool2d(x);
    return max ? dml_max_pool2d(x, &o) : dml_avg_pool2d(x, &o);
}

static dml_node *make_batch_norm(maker *m, dml_node *x)
{
    const int c = last_of(x);
    const dml_batch_norm_options o = { .epsilon = 0.1f, .frozen = below(m, 3) == 0 };
    return dml_batch_norm_with(x, weight(m, c), weight(m, c), statistic(m, c), statistic(m, c), &o);
}

static dml_node *make_norm(maker *m, dml_node *x, int kind)
{
    const int c = last_of(x);
    const dml_sample_norm_options o = { .epsilon = 0.1f };
    if (kind == 0) return dml_layer_norm_with(x, weight(m, c), below(m, 2) ? weight(m, c) : NULL, &o);
    if (kind == 1) return dml_rms_norm_with(x, below(m, 2) ? weight(m, c) : NULL, &o);
    return dml_group_norm_with(x, divisor(m, c), weight(m, c), weight(m, c), &o);
}

static dml_node *make_permute(maker *m, dml_node *x)
{
    x = as_image(m, x);
    return below(m, 2) ? dml_permute(x, dml_shape_of(2, 0, 1)) : dml_swap_axes(x, 0, -1);
}

/* Stopped values that come to nothing, since differences see what lies behind a stop. */
static dml_node *make_stop(maker *m, dml_node *x)
{
    dml_node *b = beside(m, x), *stopped = dml_stop_gradient(below(m, 2) ? b : calm(b));
    if (stopped->input[0] == b) return dml_add(x, dml_sub(stopped, dml_stop_gradient(b)));
    return dml_sub(stopped, dml_sub(stopped, x));
}

static dml_node *make_slice(maker *m, dml_node *x)
{
    const int n = last_of(x), begin = below(m, n);
    return dml_slice(x, -1, begin, begin + 1 + below(m, n - begin));
}

static dml_node *make_concat(maker *m, dml_node *x)
{
    x = as_small(m, x);
    dml_node *const parts[] = { x,
                                elements_of(x) <= MOST_ELEMENTS / 3 ? dml_tanh(x) : dml_slice(x, 0, 0, 1) };
    return dml_concat(parts, 2, 0);
}

static dml_node *make_slice2d(maker *m, dml_node *x)
{
    x = as_image(m, as_small(m, x));
    const dml_slice2d_options o = { .step = { 2, 1, 1 },
                                    .before = { 1, 0, 0 },
                                    .after = { 0, 0, below(m, 2) } };
    return dml_slice2d(x, &o);
}

static dml_node *make_embedding(maker *m, dml_node *x)
{
    dml_node *found = dml_embedding_with(dml_input(m->graph, NULL, DML_I32, 2), weight(m, 3, 4));
    return dml_concat(
        (dml_node *const[]){ dml_reshape(as_small(m, x), dml_shape_of(-1)), dml_flatten(found) }, 2, 0);
}

static dml_node *make_conv1d(maker *m, dml_node *x)
{
    x = as_rows(m, as_small(m, x));
    const dml_conv1d_options o = { .causal = true, .dilation = 1 + below(m, 2), .stride = 1 + below(m, 2) };
    return dml_conv1d_with(x, weight(m, 1 + below(m, 4), 1 + below(m, 3), last_of(x)), NULL, &o);
}

static dml_node *make_conv_transpose(maker *m, dml_node *x, bool images)
{
    x = dml_flatten(x);
    if (elements_of(x) > MOST_ELEMENTS / 4) x = dml_slice(x, 0, 1, 1 + MOST_ELEMENTS / 4);
    x = images ? as_image(m, x) : as_rows(m, x);
    const int c = last_of(x), filters = 1 + below(m, 2);
    const dml_conv_transpose2d_options o = { .stride = { 1, 1 + below(m, 2) }, .padding = { 1, 0 } };
    const dml_conv_transpose1d_options o1 = { .stride = 2, .padding = 1, .output_padding = 1 };
    if (images) return dml_conv_transpose2d_with(x, weight(m, c, 3, 2, filters), weight(m, filters), &o);
    return dml_conv_transpose1d_with(x, weight(m, c, 3, filters), NULL, &o1);
}

static dml_node *make_local2d(maker *m, dml_node *x)
{
    x = as_image(m, as_small(m, x));
    const dml_shape s = x->shape;
    const dml_local2d_options o = { .filters = 2, .kernel = { 1, s.dims[1] > 1 ? 2 : 1 } };
    const int oh = s.dims[0], ow = s.dims[1] - o.kernel[1] + 1;
    return dml_local2d_with(x, weight(m, oh, ow, 2, o.kernel[1] * s.dims[2]), NULL, &o);
}

static dml_node *make_pool1d(maker *m, dml_node *x, bool max)
{
    const dml_pool1d_options o = {
        .kernel = 2, .stride = 1, .padding = 1, .count_include_pad = !max && below(m, 2)
    };
    x = as_rows(m, x);
    return max ? dml_max_pool1d(x, &o) : dml_avg_pool1d(x, &o);
}

static dml_shape some_axes(maker *m, dml_node *x)
{
    return below(m, 3) == 0 ? dml_all_axes() : dml_shape_of(below(m, x->shape.ndim));
}

static dml_node *make_argmax(maker *m, dml_node *x)
{
    dml_node *at = dml_input_shaped(m->graph, NULL, DML_F32, dml_shape_of(elements_of(x)));
    return dml_add(x, dml_reshape(dml_take(dml_flatten(x), dml_argmax(at, 0, true), 0), dml_shape_of(1)));
}

static dml_node *make_gather(maker *m, dml_node *x)
{
    x = as_rows(m, x);
    return dml_gather(x, dml_input(m->graph, NULL, DML_I32, 2, last_of(x)), 0);
}

static dml_node *make_matmul(maker *m, dml_node *x)
{
    x = as_rows(m, x);
    dml_node *b = below(m, 2) ? weight(m, 3, last_of(x)) : x;
    return dml_matmul_with(calm(x), b, &(dml_matmul_options){ .transpose_b = true, .scale = 0.5f });
}

static dml_node *make_bag(maker *m, dml_node *x)
{
    dml_node *index = dml_input(m->graph, NULL, DML_I32, 2, 2);
    dml_node *bag = dml_embedding_bag_with(
        index, below(m, 2) ? dml_input(m->graph, NULL, DML_F32, 2, 2) : NULL, weight(m, 3, 2), NULL);
    return dml_concat((dml_node *const[]){ dml_flatten(as_small(m, x)), dml_flatten(bag) }, 2, 0);
}

/* Rows of two heads of width 2. */
static dml_node *heads_of(maker *m, dml_node *x)
{
    x = as_rows(m, as_small(m, x));
    return dml_dense_with(x, weight(m, 4, last_of(x)), NULL);
}

static dml_node *make_attention(maker *m, dml_node *x)
{
    dml_node *q = heads_of(m, x), *k = heads_of(m, any(m)), *v = dml_dense_with(k, weight(m, 4, 4), NULL);
    return dml_attention(q, k, v, 2, &(dml_attention_options){ .causal = below(m, 2) });
}

static dml_node *make_recurrent(maker *m, dml_node *x, int kind)
{
    x = as_rows(m, as_small(m, x));
    const int in = last_of(x), gates = kind == 0 ? 1 : kind == 1 ? 4 : 3;
    const dml_recurrent_options o = { .reverse = below(m, 2), .last_only = below(m, 3) == 0 };
    dml_node *w = weight(m, gates * 2, in), *u = weight(m, gates * 2, 2);
    dml_node *b = below(m, 2) ? weight(m, gates * 2) : NULL;
    if (kind == 0) return dml_rnn_with(x, w, u, b, b, &o);
    return kind == 1 ? dml_lstm_with(x, w, u, b, b, &o) : dml_gru_with(x, w, u, b, b, &o);
}

/* A scalar of the whole batch, added to each element. */
static dml_node *with_loss(dml_node *x, dml_node *loss)
{
    return dml_add(x, dml_tanh(loss));
}

static dml_node *make_entropy(maker *m, dml_node *x)
{
    const dml_cross_entropy_options o = { .label_smoothing = 0.1f };
    if (below(m, 2)) x = as_rows(m, x);
    dml_node *labels = x->shape.ndim == 2 ? dml_input(m->graph, NULL, DML_I32, x->shape.dims[0])
                                          : dml_input(m->graph, NULL, DML_I32);
    if (x->shape.ndim > 2) x = dml_flatten(x);
    return with_loss(x, dml_softmax_cross_entropy_with(x, below(m, 3) ? labels : dml_softmax(x, -1), &o));
}

/* Of x, an earlier node or a parameter, and now and then x again. */
static dml_node *make_custom(maker *m, dml_node *x)
{
    x = calm(dml_flatten(x));
    dml_node *of[] = { x, dml_flatten(dml_mul(x, beside(m, x))), x };
    if (below(m, 2)) of[1] = weight(m, elements_of(x));
    return below(m, 3) ? custom_sums(of, 1 + below(m, 3)) : with_loss(x, custom_squares(of, 2));
}

/* What losses of elements compare with. */
static dml_node *target_of(maker *m, dml_node *x)
{
    return dml_sub(beside(m, x), calm(x));
}

/* X(op, which of its moves, what makes it of x). Each op of the table has one or more. */
#define MOVES(X)                                                                                             \
    X(relu, 1, dml_relu(x))                                                                                  \
    X(relu, 2, dml_relu(dml_add(x, beside(m, x))))                                                           \
    X(leaky_relu, 1, dml_leaky_relu(x, 0.25f))                                                               \
    X(elu, 1, dml_elu(x, 0.5f))                                                                              \
    X(gelu, 1, dml_gelu(x))                                                                                  \
    X(gelu_tanh, 1, dml_gelu_tanh(x))                                                                        \
    X(silu, 1, dml_silu(x))                                                                                  \
    X(sigmoid, 1, dml_sigmoid(x))                                                                            \
    X(tanh, 1, dml_tanh(x))                                                                                  \
    X(softplus, 1, dml_softplus(x))                                                                          \
    X(exp, 1, dml_exp(calm(x)))                                                                              \
    X(log, 1, dml_log(above_zero(x)))                                                                        \
    X(sqrt, 1, dml_sqrt(above_zero(x)))                                                                      \
    X(sin, 1, dml_sin(x))                                                                                    \
    X(cos, 1, dml_cos(x))                                                                                    \
    X(abs, 1, dml_abs(x))                                                                                    \
    X(square, 1, dml_square(calm(x)))                                                                        \
    X(pow, 1, dml_pow(above_zero(x), 1.5f))                                                                  \
    X(clamp, 1, dml_clamp(x, -0.5f, 0.75f))                                                                  \
    X(affine, 1, dml_affine(x, -0.5f, 0.25f))                                                                \
    X(add, 1, dml_add(x, beside(m, x)))                                                                      \
    X(sub, 1, dml_sub(beside(m, x), x))                                                                      \
    X(mul, 1, dml_mul(calm(x), beside(m, x)))                                                                \
    X(div, 1, dml_div(beside(m, x), above_zero(x)))                                                          \
    X(maximum, 1, dml_maximum(x, beside(m, x)))                                                              \
    X(minimum, 1, dml_minimum(beside(m, x), x))                                                              \
    X(where, 1, dml_where(dml_less(leaf(m, x), leaf(m, x)), x, dml_add(x, beside(m, x))))                    \
    X(less, 1, dml_mul(dml_less(leaf(m, x), leaf(m, x)), x))                                                 \
    X(less_equal, 1, dml_sub(x, dml_less_equal(leaf(m, x), leaf(m, x))))                                     \
    X(equal, 1, dml_add(x, dml_equal(leaf(m, x), leaf(m, x))))                                               \
    X(not_equal, 1, dml_mul(x, dml_not_equal(leaf(m, x), leaf(m, x))))                                       \
    X(flatten, 1, dml_flatten(x))                                                                            \
    X(dense, 1, dml_dense_with(x, weight(m, 1 + below(m, 6), last_of(x)), NULL))                             \
    X(dense, 2, make_dense(m, as_rows(m, x)))                                                                \
    X(conv2d, 1, make_conv2d(m, x))                                                                          \
    X(max_pool2d, 1, make_pool(m, x, true))                                                                  \
    X(avg_pool2d, 1, make_pool(m, x, false))                                                                 \
    X(batch_norm, 1, make_batch_norm(m, x))                                                                  \
    X(layer_norm, 1, make_norm(m, x, 0))                                                                     \
    X(rms_norm, 1, make_norm(m, x, 1))                                                                       \
    X(group_norm, 1, make_norm(m, as_rows(m, x), 2))                                                         \
    X(embedding, 1, make_embedding(m, x))                                                                    \
    X(dropout, 1, dml_dropout(x, 0.25f))                                                                     \
    X(reshape, 1, as_rows(m, dml_reshape(x, dml_shape_of(1, -1, 1))))                                        \
    X(stop_gradient, 1, make_stop(m, x))                                                                     \
    X(permute, 1, make_permute(m, x))                                                                        \
    X(slice, 1, make_slice(m, x))                                                                            \
    X(pad, 1, dml_pad(as_small(m, x), 0, 1, below(m, 2)))                                                    \
    X(concat, 1, make_concat(m, x))                                                                          \
    X(slice2d, 1, make_slice2d(m, x))                                                                        \
    X(conv1d, 1, make_conv1d(m, x))                                                                          \
    X(conv_transpose2d, 1, make_conv_transpose(m, x, true))                                                  \
    X(conv_transpose1d, 1, make_conv_transpose(m, x, false))                                                 \
    X(local2d, 1, make_local2d(m, x))                                                                        \
    X(max_pool1d, 1, make_pool1d(m, x, true))                                                                \
    X(avg_pool1d, 1, make_pool1d(m, x, false))                                                               \
    X(sum, 1, dml_sub(x, dml_sum(x, some_axes(m, x), true)))                                                 \
    X(mean, 1, dml_sub(x, dml_mean(x, some_axes(m, x), true)))                                               \
    X(max, 1, dml_sub(x, dml_max(x, some_axes(m, x), true)))                                                 \
    X(min, 1, dml_add(x, dml_min(x, some_axes(m, x), true)))                                                 \
    X(norm, 1, dml_div(x, dml_affine(dml_norm(x, 1 + (float)below(m, 2), some_axes(m, x), true), 1, 1)))     \
    X(argmax, 1, make_argmax(m, x))                                                                          \
    X(softmax, 1, dml_softmax(x, below(m, x->shape.ndim)))                                                   \
    X(log_softmax, 1, dml_log_softmax(x, below(m, x->shape.ndim)))                                           \
    X(take, 1, dml_take(x, dml_input(m->graph, NULL, DML_I32, 2), 0))                                        \
    X(gather, 1, make_gather(m, x))                                                                          \
    X(matmul, 1, make_matmul(m, x))                                                                          \
    X(embedding_bag, 1, make_bag(m, x))                                                                      \
    X(attention, 1, make_attention(m, x))                                                                    \
    X(rnn, 1, make_recurrent(m, x, 0))                                                                       \
    X(lstm, 1, make_recurrent(m, x, 1))                                                                      \
    X(gru, 1, make_recurrent(m, x, 2))                                                                       \
    X(rotary, 1, dml_rotary(heads_of(m, x), 2, NULL))                                                        \
    X(custom, 1, make_custom(m, x))                                                                          \
    X(softmax_cross_entropy, 1, make_entropy(m, x))                                                          \
    X(mean_squared_error, 1, with_loss(x, dml_mean_squared_error(x, target_of(m, x))))                       \
    X(mean_absolute_error, 1, with_loss(x, dml_mean_absolute_error(x, target_of(m, x), NULL)))               \
    X(huber, 1, with_loss(x, dml_huber(x, target_of(m, x), NULL)))                                           \
    X(binary_cross_entropy, 1,                                                                               \
      with_loss(x, dml_binary_cross_entropy(x, dml_sigmoid(target_of(m, x)), NULL)))                         \
    X(hinge, 1, with_loss(x, dml_hinge(x, target_of(m, x), NULL)))                                           \
    X(squared_hinge, 1, with_loss(x, dml_hinge(x, target_of(m, x), &(dml_loss_options){ .squared = true }))) \
    X(batch_mean, 1, with_loss(x, dml_batch_mean(calm(x), NULL)))                                            \
    X(kl_divergence, 1,                                                                                      \
      with_loss(x, dml_kl_divergence(dml_log_softmax(x, -1), dml_softmax(target_of(m, x), -1), NULL)))

enum {
#define MOVE_ENUM(op, which, made) MOVE_##op##_##which,
    MOVES(MOVE_ENUM) MOVE_COUNT
#undef MOVE_ENUM
};

static dml_node *make_move(maker *m, int which, dml_node *x)
{
    switch (which) {
#define MOVE_CASE(op, which, made)                                                                           \
    case MOVE_##op##_##which: return made;
        MOVES(MOVE_CASE)
#undef MOVE_CASE
    default: return x;
    }
}

static void add_node(maker *m, dml_node *x)
{
    if (!x) {
        fprintf(stderr, "graph %u: %s\n", graph_seed, dml_error(m->graph->context));
        abort();
    }
    m->node[m->nodes++] =
        elements_of(x) <= MOST_ELEMENTS ? x : dml_slice(dml_flatten(x), 0, 1, 1 + MOST_ELEMENTS);
}

/* Each node that none reads has a part in the output: rows of three, or now and then a loss. */
static dml_node *random_graph(dml_graph *g)
{
    maker m = { .graph = g, .random = graph_seed * 7919 + 1 };
    for (int i = 0; i < 4; i++) test_random(&m.random); /* near seeds begin alike */
    add_node(&m, dml_dense(dml_input(g, "x", DML_F32, 2), 6));
    add_node(&m, dml_input(g, "y", DML_F32, 3, 2));
    const int moves = 3 + below(&m, MOST_MOVES - 2);
    for (int i = 0; i < moves; i++) {
        dml_node *x = any(&m);
        add_node(&m, make_move(&m, below(&m, MOVE_COUNT), x->shape.ndim ? x : dml_flatten(x)));
    }
    dml_node *sum = weight(&m, 3);
    for (int i = 0; i < m.nodes; i++) {
        if (m.read[i]) continue;
        dml_node *end = dml_flatten(m.node[i]);
        sum = dml_add(sum, dml_tanh(dml_dense_with(end, weight(&m, 3, elements_of(end)), NULL)));
    }
    switch (below(&m, 4)) {
    case 0: return dml_softmax_cross_entropy(sum, dml_input(g, NULL, DML_I32));
    default: return sum;
    }
}

/* For so many rows, to be freed by the caller: the same for programs that take the same. */
TEST__UNUSED static void fill_inputs(const dml_program *program, int rows, void *inputs[])
{
    unsigned random = 7;
    for (int i = 0; i < dml_program_inputs(program); i++) {
        const dml_node *input = dml_program_input(program, i);
        const size_t n = dml_shape_count(&input->shape) * (size_t)rows;
        const dml__slot *slot = &program->slot[program->slot_of_node[input->index]];
        inputs[i] = malloc(n * sizeof(float));
        if (input->dtype == DML_F32) test_fill(&random, (float *)inputs[i], n);
        for (size_t k = 0; k < n && input->dtype == DML_I32; k++)
            ((int32_t *)inputs[i])[k] =
                slot->lowest + (int32_t)(test_random(&random) % (unsigned)(slot->limit - slot->lowest));
    }
}

#endif
