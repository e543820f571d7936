/* cases_loss.h: cases of losses (included by ops_cases.h). */
#ifndef DML_TESTS_GRAPH_CASES_LOSS_H
#define DML_TESTS_GRAPH_CASES_LOSS_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_loss.h"
#include "ops/op_reduce.h"
#include "ops/op_shape.h"

#include "case_nodes.h"

static dml_node *cross_entropy(dml_graph *g)
{
    return dml_softmax_cross_entropy(row(g, 10), labels(g));
}
static dml_node *cross_entropy_one_class(dml_graph *g)
{
    return dml_softmax_cross_entropy(row(g, 1), labels(g));
}
static dml_node *cross_entropy_many_classes(dml_graph *g)
{
    return dml_softmax_cross_entropy(row(g, 133), labels(g));
}
static dml_node *cross_entropy_large_logits(dml_graph *g)
{
    dml_node *h = row(g, 3);
    for (int i = 0; i < 7; i++) h = dml_add(h, h); /* times 128 */
    return dml_softmax_cross_entropy(h, labels(g));
}
static dml_node *cross_entropy_twice(dml_graph *g)
{
    dml_node *h = row(g, 5), *t = labels(g);
    return dml_add(dml_softmax_cross_entropy(h, t), dml_softmax_cross_entropy(dml_tanh(h), t));
}

static dml_node *cross_entropy_shared_labels(dml_graph *g)
{
    dml_node *t = labels(g); /* which must then fit both */
    return dml_add(dml_softmax_cross_entropy(row(g, 7), t), dml_softmax_cross_entropy(row(g, 3), t));
}

static dml_node *mse_of_both(dml_graph *g)
{
    return dml_mean_squared_error(row(g, 19), row(g, 19));
}
static dml_node *mse_images(dml_graph *g)
{
    return dml_mean_squared_error(dml_input(g, "x", DML_F32, 5, 3, 2), image(g, 5, 3, 2));
}
static dml_node *mse_of_itself(dml_graph *g)
{
    dml_node *h = row(g, 3);
    return dml_add(dml_mean_squared_error(h, h), dml_mean_squared_error(h, dml_relu(h)));
}
static dml_node *mse_parameters(dml_graph *g)
{
    return dml_mean_squared_error(parameter(g, 2, 3, 5), parameter(g, 2, 3, 5));
}

/* Rows of (2, 3) a sample, and what a loss of them takes: an input, or what is computed. */
static dml_node *rows23(dml_graph *g)
{
    return dml_reshape(row(g, 6), dml_shape_of(2, 3));
}
static dml_node *targets23(dml_graph *g)
{
    return dml_sigmoid(rows23(g));
}
static dml_node *positive(dml_graph *g, dml_shape shape)
{
    return dml_square(dml_input_shaped(g, "weight", DML_F32, shape));
}
static dml_node *mse_sum(dml_graph *g)
{
    return dml_mean_squared_error_with(rows23(g), rows23(g),
                                       &(dml_loss_options){ .reduction = DML_LOSS_SUM });
}
static dml_node *mse_weighted_samples(dml_graph *g)
{
    return dml_mean_squared_error_with(
        rows23(g), rows23(g), &(dml_loss_options){ .sample_weights = positive(g, (dml_shape){ 0, { 0 } }) });
}
static dml_node *mse_weighted_rows(dml_graph *g)
{
    return dml_mean_squared_error_with(rows23(g), rows23(g),
                                       &(dml_loss_options){ .sample_weights = positive(g, dml_shape_of(2)) });
}
/* Weights that depend on a parameter are weights all the same. */
static dml_node *mse_weighted_elements(dml_graph *g)
{
    dml_node *h = rows23(g), *mask = dml_less(h, rows23(g));
    const dml_loss_options o = { .sample_weights = dml_affine(mask, 0.5f, 0.25f), .reduction = DML_LOSS_SUM };
    return dml_add(dml_mean_squared_error_with(h, rows23(g), &o), dml_mean_squared_error(h, dml_tanh(h)));
}
static dml_node *loss_absolute(dml_graph *g)
{
    return dml_mean_absolute_error(rows23(g), rows23(g), NULL);
}
static dml_node *loss_huber(dml_graph *g)
{
    return dml_huber(rows23(g), rows23(g), &(dml_loss_options){ .delta = 0.5f });
}
static dml_node *loss_smooth_l1(dml_graph *g)
{
    return dml_smooth_l1(rows23(g), rows23(g), &(dml_loss_options){ .beta = 0.75f });
}
static dml_node *loss_binary(dml_graph *g)
{
    return dml_binary_cross_entropy(rows23(g), targets23(g), &(dml_loss_options){ .pos_weight = 3 });
}
static dml_node *loss_hinge(dml_graph *g)
{
    return dml_hinge(rows23(g), rows23(g), NULL);
}
static dml_node *loss_squared_hinge(dml_graph *g)
{
    return dml_hinge(rows23(g), rows23(g), &(dml_loss_options){ .squared = true });
}
static dml_node *batch_mean_of_own(dml_graph *g)
{
    dml_node *h = rows23(g), *distance = dml_norm(dml_sub(h, rows23(g)), 2, dml_shape_of(-1), false);
    const dml_loss_options o = { .sample_weights = positive(g, dml_shape_of(2)), .reduction = DML_LOSS_SUM };
    return dml_add(dml_batch_mean(distance, &o), dml_batch_mean(dml_square(h), NULL));
}
static dml_node *batch_mean_beside(dml_graph *g)
{
    dml_node *h = rows23(g);
    return dml_add(h, dml_tanh(dml_batch_mean(dml_tanh(h), NULL)));
}
static dml_node *loss_kl(dml_graph *g)
{
    const dml_loss_options o = { .sample_weights = positive(g, dml_shape_of(2)) };
    return dml_kl_divergence(rows23(g), targets23(g), &o);
}
static dml_node *loss_distillation(dml_graph *g)
{
    const dml_distillation_options o = { .temperature = 2, .sample_weights = positive(g, dml_shape_of(2)) };
    return dml_distillation(rows23(g), dml_input(g, NULL, DML_F32, 2, 3), dml_input(g, "label", DML_I32, 2),
                            &o);
}
static dml_node *cross_entropy_sequence(dml_graph *g)
{
    return dml_softmax_cross_entropy(rows23(g), dml_input(g, "label", DML_I32, 2));
}
static dml_node *cross_entropy_options(dml_graph *g)
{
    static const float of_class[3] = { 0.5f, 2, 0.25f };
    return dml_softmax_cross_entropy_with(
        rows23(g), dml_input(g, "label", DML_I32, 2),
        &(dml_cross_entropy_options){ .ignores = true,
                                      .ignore_index = 1,
                                      .label_smoothing = 0.25f,
                                      .class_weights = of_class,
                                      .sample_weights = positive(g, dml_shape_of(2)) });
}
static dml_node *cross_entropy_classes(dml_graph *g)
{
    static const float of_class[19] = { 0.5f, 2, 0.25f, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3 };
    return dml_softmax_cross_entropy_with(
        row(g, 19), labels(g),
        &(dml_cross_entropy_options){ .class_weights = of_class, .reduction = DML_LOSS_SUM });
}
static dml_node *cross_entropy_targets(dml_graph *g)
{
    static const float of_class[3] = { 0.5f, 2, 0.25f };
    return dml_softmax_cross_entropy_with(
        rows23(g), targets23(g),
        &(dml_cross_entropy_options){ .label_smoothing = 0.1f,
                                      .class_weights = of_class,
                                      .sample_weights = positive(g, (dml_shape){ 0, { 0 } }) });
}
static dml_node *cross_entropy_target_input(dml_graph *g)
{
    return dml_softmax_cross_entropy_with(row(g, 37), dml_input(g, "p", DML_F32, 37), NULL);
}
static dml_node *cross_entropy_of_itself(dml_graph *g)
{
    dml_node *h = dml_sigmoid(row(g, 5));
    return dml_softmax_cross_entropy_with(h, h, NULL);
}
/* The target's gradient is added to, the logits' written over them. */
static dml_node *cross_entropy_target_twice(dml_graph *g)
{
    dml_node *t = dml_sigmoid(row(g, 9));
    dml_node *loss = dml_softmax_cross_entropy_with(row(g, 9), t, NULL);
    return dml_add(loss, dml_mean_squared_error(t, row(g, 9)));
}

/* X(op, what builds it, samples) */
#define LOSS_CASE_LIST(X)                                                                                    \
    X(softmax_cross_entropy, cross_entropy, 17)                                                              \
    X(softmax_cross_entropy, cross_entropy_one_class, 3)                                                     \
    X(softmax_cross_entropy, cross_entropy_many_classes, 5)                                                  \
    X(softmax_cross_entropy, cross_entropy_large_logits, 5)                                                  \
    X(softmax_cross_entropy, cross_entropy_twice, 6)                                                         \
    X(softmax_cross_entropy, cross_entropy_shared_labels, 6)                                                 \
    X(mean_squared_error, mse_of_both, 7)                                                                    \
    X(mean_squared_error, mse_images, 3)                                                                     \
    X(mean_squared_error, mse_of_itself, 5)                                                                  \
    X(mean_squared_error, mse_parameters, 2)                                                                 \
    X(mean_squared_error, mse_sum, 3)                                                                        \
    X(mean_squared_error, mse_weighted_samples, 5)                                                           \
    X(mean_squared_error, mse_weighted_rows, 3)                                                              \
    X(mean_squared_error, mse_weighted_elements, 3)                                                          \
    X(mean_absolute_error, loss_absolute, 3)                                                                 \
    X(huber, loss_huber, 3)                                                                                  \
    X(huber, loss_smooth_l1, 3)                                                                              \
    X(binary_cross_entropy, loss_binary, 3)                                                                  \
    X(hinge, loss_hinge, 5)                                                                                  \
    X(squared_hinge, loss_squared_hinge, 3)                                                                  \
    X(kl_divergence, loss_kl, 3)                                                                             \
    X(batch_mean, batch_mean_of_own, 3)                                                                      \
    X(batch_mean, batch_mean_beside, 3)                                                                      \
    X(kl_divergence, loss_distillation, 3)                                                                   \
    X(softmax_cross_entropy, cross_entropy_sequence, 5)                                                      \
    X(softmax_cross_entropy, cross_entropy_options, 7)                                                       \
    X(softmax_cross_entropy, cross_entropy_classes, 9)                                                       \
    X(softmax_cross_entropy, cross_entropy_targets, 5)                                                       \
    X(softmax_cross_entropy, cross_entropy_target_input, 3)                                                  \
    X(softmax_cross_entropy, cross_entropy_of_itself, 3)                                                     \
    X(softmax_cross_entropy, cross_entropy_target_twice, 3)

#endif
