#ifndef DML_OPS_OP_LOSS_C
#define DML_OPS_OP_LOSS_C

#include "ops/op_loss_internal.h"

#include "graph/node.h"
#include "kernels/formula.h"
#include "kernels/loss.h"
#include "kernels/reduce.h"
#include "ops/op_activation.h"
#include "ops/op_formula.h"
#include "ops/table.h"

#include <stdio.h>
#include <string.h>

DML__LOCAL dml_status dml__check_loss_reduction(const dml_node *node, dml_loss_reduction reduction)
{
    if (reduction == DML_LOSS_MEAN || reduction == DML_LOSS_SUM) return DML_OK;
    return dml__node_fail(node, DML_ERROR_ARGUMENT,
                          "its reduction is %d; it must be DML_LOSS_MEAN or DML_LOSS_SUM", (int)reduction);
}

DML__LOCAL dml_status dml__check_loss_weights(const dml_node *node, const dml_node *weights,
                                              const dml_node *of, int dims)
{
    char text[DML_SHAPE_TEXT], of_text[DML_SHAPE_TEXT];
    bool fits = weights->dtype == DML_F32 && weights->batched == of->batched && weights->shape.ndim <= dims;
    for (int d = 0; fits && d < weights->shape.ndim; d++) fits = weights->shape.dims[d] == of->shape.dims[d];
    if (fits) return DML_OK;
    return dml__node_fail(
        node, DML_ERROR_SHAPE,
        "its sample weights are %s %s%s; of losses of %s%s they must be f32, one a sample or "
        "one for each of the first %d dimensions or fewer",
        dml_dtype_name(weights->dtype), dml_shape_format(&weights->shape, text),
        weights->batched ? "" : " for the whole batch", dml_shape_format(&of->shape, of_text),
        of->batched ? "" : " for the whole batch", dims);
}

DML__LOCAL dml_status dml__launch_loss_total(const dml__run *run, const dml_node *node, dml_ref x, size_t n,
                                             dml_ref weights, size_t each, dml_ref shares, size_t share_count,
                                             float factor, dml_loss_reduction reduction, dml_ref scale)
{
    if (n > INT32_MAX)
        return dml_device_fail(run->device, DML_ERROR_UNSUPPORTED,
                               "a loss of %zu values: the kernels count to %d; use smaller batches", n,
                               INT32_MAX);
    dml_launch launch = dml__launch("loss_total", 1, 1);
    launch.buffer[0] = x;
    launch.buffer[1] = weights;
    launch.buffer[2] = shares;
    launch.buffer[3] = dml__value(run, node);
    launch.buffer[4] = scale;
    launch.integer[0] = (int32_t)n;
    launch.integer[1] = (int32_t)each;
    launch.integer[2] = (int32_t)share_count;
    launch.integer[3] = reduction == DML_LOSS_MEAN;
    launch.real[0] = factor;
    return dml__submit(run->device, &launch);
}

/* ---- the op that makes one number of many ---- */

typedef struct dml__batch_loss_attributes {
    dml_loss_reduction reduction;
    int unit; /* elements that count as one in a mean: 1, or a row's */
} dml__batch_loss_attributes;

static const dml__batch_loss_attributes *dml__batch_loss_of(const dml_node *node)
{
    return (const dml__batch_loss_attributes *)node->attributes;
}

static dml_status dml__batch_loss_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    const dml_status status = dml__check_loss_reduction(node, dml__batch_loss_of(node)->reduction);
    if (status != DML_OK || node->inputs < 2) return status;
    return dml__check_loss_weights(node, node->input[1], x,
                                   dml__batch_loss_of(node)->unit > 1 ? x->shape.ndim - 1 : x->shape.ndim);
}

/* Elements that a weight is for. */
static size_t dml__batch_loss_each(const dml__run *run, const dml_node *node)
{
    const size_t n = dml__count(run, node->input[0]);
    return node->inputs > 1 ? n / dml__count(run, node->input[1]) : n;
}

/* Saved: what values were multiplied by beside their weights; the sums of what has one weight. */
static size_t dml__batch_loss_saved_bytes(const dml_node *node, int rows)
{
    const dml_node *weights = node->inputs > 1 ? node->input[1] : NULL;
    const size_t count =
        weights ? dml_shape_count(&weights->shape) * (weights->batched ? (size_t)rows : 1) : 0;
    return (1 + count) * sizeof(float);
}

static void dml__batch_loss_host_forward(const dml__run *run, const dml_node *node)
{
    const size_t n = dml__count(run, node->input[0]), each = dml__batch_loss_each(run, node);
    const float *x = dml__host_value(run, node->input[0]);
    float *scale = (float *)dml__host(dml__saved(run, node)), divisor = (float)n, total;
    if (node->inputs > 1) {
        const float *weights = dml__host_value(run, node->input[1]);
        if (each > 1) {
            dml_sum_axis(run->pool, n / each, each, 1, x, 0, scale + 1);
            x = scale + 1;
        }
        total = dml_dot(run->pool, n / each, x, weights);
        divisor = (float)each * dml_sum(run->pool, n / each, weights);
    } else {
        total = dml_sum(run->pool, n, x);
    }
    divisor = dml__batch_loss_of(node)->reduction == DML_LOSS_SUM
                  ? 1
                  : divisor / (float)dml__batch_loss_of(node)->unit;
    *scale = divisor == 0 ? 0 : 1 / divisor;
    *dml__host_value(run, node) = divisor == 0 ? 0 : total / divisor;
}

static dml_status dml__batch_loss_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_ref none = { NULL, 0 };
    const dml__batch_loss_attributes *o = dml__batch_loss_of(node);
    if (run->device->host_memory) {
        dml__batch_loss_host_forward(run, node);
        return DML_OK;
    }
    const size_t n = dml__count(run, node->input[0]), each = dml__batch_loss_each(run, node);
    const dml_ref weights = node->inputs > 1 ? dml__value(run, node->input[1]) : none;
    return dml__launch_loss_total(run, node, dml__value(run, node->input[0]), n, weights, each, weights,
                                  n / each, (float)each / (float)o->unit, o->reduction,
                                  dml__saved(run, node));
}

static dml_status dml__batch_loss_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *weights = node->inputs > 1 ? node->input[1] : NULL;
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    const size_t n = dml__count(run, x), each = dml__batch_loss_each(run, node);
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory) {
        const float scale = *(const float *)dml__host(dml__saved(run, node)) * *dml__host_gradient(run, node);
        dml_loss_spread(run->pool, n, each, weights ? dml__host_value(run, weights) : NULL, scale, beta,
                        dml__host_gradient(run, x));
        return DML_OK;
    }
    dml_launch launch = dml__launch("loss_spread", n, 1);
    if (weights) launch.buffer[0] = dml__value(run, weights);
    launch.buffer[1] = dml__saved(run, node);
    launch.buffer[2] = dml__gradient(run, node);
    launch.buffer[3] = dml__gradient(run, x);
    launch.integer[0] = (int32_t)n;
    launch.integer[1] = (int32_t)each;
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

static void dml__batch_loss_describe(const dml_node *node, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s%s", dml__batch_loss_of(node)->reduction == DML_LOSS_SUM ? "sum" : "mean",
             node->inputs > 1 ? ", weighted" : "");
}

static double dml__batch_loss_flops(const dml_node *node)
{
    return (double)dml_shape_count(&node->input[0]->shape) * node->inputs;
}

DML__LOCAL const dml__op *dml__batch_loss_op(void)
{
    static const dml__op op = { "batch_loss",
                                dml__batch_loss_infer,
                                dml__batch_loss_op_forward,
                                dml__batch_loss_op_backward,
                                DML__NEEDS_INPUT(1) | DML__NO_GRADIENT(1),
                                dml__batch_loss_saved_bytes,
                                false,
                                false,
                                dml__batch_loss_describe,
                                dml__batch_loss_flops,
                                NULL };
    return &op;
}

/* ---- losses of elements: a formula, and that op ---- */

/* What a loss takes of the options beyond those that all have. */
enum { DML__TAKES_POS_WEIGHT = 1, DML__TAKES_DELTA = 2, DML__TAKES_BETA = 4, DML__TAKES_SQUARED = 8 };

/* Refuses what it doesn't take, and numbers that are none. */
static bool dml__loss_options_fit(const dml_node *at, const char *loss, const dml_loss_options *o, int takes)
{
    const struct {
        const char *name;
        int which;
        double value;
        bool given;
    } numbers[] = { { "pos_weight", DML__TAKES_POS_WEIGHT, (double)o->pos_weight, o->pos_weight != 0 },
                    { "delta", DML__TAKES_DELTA, (double)o->delta, o->delta != 0 },
                    { "beta", DML__TAKES_BETA, (double)o->beta, o->beta != 0 },
                    { "squared", DML__TAKES_SQUARED, 1, o->squared } };
    for (int i = 0; i < 4; i++) {
        if (!numbers[i].given) continue;
        if (!(takes & numbers[i].which)) {
            dml__fail(&dml__node_context(at)->error, DML_ERROR_ARGUMENT, "%s: it has no option '%s'", loss,
                      numbers[i].name);
            return false;
        }
        if (!(numbers[i].value > 0 && numbers[i].value - numbers[i].value == 0)) {
            dml__fail(&dml__node_context(at)->error, DML_ERROR_ARGUMENT,
                      "%s: its %s is %g; it must be finite and above 0", loss, numbers[i].name,
                      numbers[i].value);
            return false;
        }
    }
    return true;
}

static dml_node *dml__element_loss(int formula, dml_node *a, dml_node *b, const dml_loss_options *options,
                                   int takes)
{
    dml_loss_options o;
    char a_text[DML_SHAPE_TEXT], b_text[DML_SHAPE_TEXT];
    const char *name = dml__formula_row_of(formula)->name;
    if (!a || !b) return dml__formula_node(formula, a, b, NULL, 0, 0); /* which says so */
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    if (dml__node_context(a)->error.status != DML_OK || !dml__loss_options_fit(a, name, &o, takes))
        return NULL;
    if (!dml_shape_equal(&a->shape, &b->shape) || a->batched != b->batched) {
        dml__fail(&dml__node_context(a)->error, DML_ERROR_SHAPE,
                  "%s: its inputs are %s %s%s and %s %s%s; they must be f32 of one shape", name,
                  dml_dtype_name(a->dtype), dml_shape_format(&a->shape, a_text),
                  a->batched ? "" : " for the whole batch", dml_dtype_name(b->dtype),
                  dml_shape_format(&b->shape, b_text), b->batched ? "" : " for the whole batch");
        return NULL;
    }
    dml__batch_loss_attributes attributes = { o.reduction, 1 };
    if (formula == DML__FORMULA_kl_divergence && a->shape.ndim > 0)
        attributes.unit = a->shape.dims[a->shape.ndim - 1];
    const float bend = o.delta != 0 ? o.delta : o.beta != 0 ? o.beta : 1;
    dml_node *values =
        formula == DML__FORMULA_huber
            ? dml__formula_node(formula, a, b, NULL, bend, takes & DML__TAKES_BETA ? 1 / bend : 1)
            : dml__formula_node(formula, a, b, NULL, o.pos_weight != 0 ? o.pos_weight : 1, 0);
    if (o.squared) values = dml_square(values);
    dml_node *const inputs[] = { values, o.sample_weights };
    return dml__node_create(dml__batch_loss_op(), o.sample_weights ? 2 : 1, inputs, &attributes,
                            sizeof attributes);
}

DML_API dml_node *dml_mean_squared_error(dml_node *a, dml_node *b)
{
    return dml__element_loss(DML__FORMULA_squared_error, a, b, NULL, 0);
}

DML_API dml_node *dml_mean_squared_error_with(dml_node *a, dml_node *b, const dml_loss_options *options)
{
    return dml__element_loss(DML__FORMULA_squared_error, a, b, options, 0);
}

DML_API dml_node *dml_mean_absolute_error(dml_node *a, dml_node *b, const dml_loss_options *options)
{
    return dml__element_loss(DML__FORMULA_absolute_error, a, b, options, 0);
}

DML_API dml_node *dml_huber(dml_node *a, dml_node *b, const dml_loss_options *options)
{
    return dml__element_loss(DML__FORMULA_huber, a, b, options, DML__TAKES_DELTA);
}

DML_API dml_node *dml_smooth_l1(dml_node *a, dml_node *b, const dml_loss_options *options)
{
    return dml__element_loss(DML__FORMULA_huber, a, b, options, DML__TAKES_BETA);
}

DML_API dml_node *dml_binary_cross_entropy(dml_node *logits, dml_node *target,
                                           const dml_loss_options *options)
{
    return dml__element_loss(DML__FORMULA_binary_cross_entropy, logits, target, options,
                             DML__TAKES_POS_WEIGHT);
}

DML_API dml_node *dml_hinge(dml_node *scores, dml_node *target, const dml_loss_options *options)
{
    return dml__element_loss(DML__FORMULA_hinge, scores, target, options, DML__TAKES_SQUARED);
}

DML_API dml_node *dml_kl_divergence(dml_node *log_probabilities, dml_node *target,
                                    const dml_loss_options *options)
{
    return dml__element_loss(DML__FORMULA_kl_divergence, log_probabilities, target, options, 0);
}

#endif
