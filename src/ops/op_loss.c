#ifndef DML_OPS_OP_LOSS_C
#define DML_OPS_OP_LOSS_C

#include "ops/op_loss_internal.h"

#include "graph/node.h"
#include "kernels/formula.h"
#include "kernels/reduce.h"

#include <math.h>
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

/* ---- losses of elements ---- */

typedef struct dml__loss_attributes {
    float p, q; /* the formula's */
    dml_loss_reduction reduction;
    int unit; /* elements that count as one in a mean: 1, or a row's */
} dml__loss_attributes;

static const dml__loss_attributes *dml__loss_of(const dml_node *node)
{
    return (const dml__loss_attributes *)node->attributes;
}

static int dml__loss_formula(const dml_node *node)
{
    return DML__FORMULA_mean_squared_error + (int)(node->op - dml__loss_op(0));
}

static dml_status dml__loss_infer(dml_node *node)
{
    const dml_node *a = node->input[0], *b = node->input[1];
    char a_text[DML_SHAPE_TEXT], b_text[DML_SHAPE_TEXT];
    if (a->dtype != DML_F32 || b->dtype != DML_F32 || !dml_shape_equal(&a->shape, &b->shape) ||
        a->batched != b->batched)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its inputs are %s %s%s and %s %s%s; they must be f32 of one shape",
                              dml_dtype_name(a->dtype), dml_shape_format(&a->shape, a_text),
                              a->batched ? "" : " for the whole batch", dml_dtype_name(b->dtype),
                              dml_shape_format(&b->shape, b_text), b->batched ? "" : " for the whole batch");
    const dml_status status = dml__check_loss_reduction(node, dml__loss_of(node)->reduction);
    if (status != DML_OK || node->inputs < 3) return status;
    return dml__check_loss_weights(node, node->input[2], a,
                                   dml__loss_formula(node) == DML__FORMULA_kl_divergence ? a->shape.ndim - 1
                                                                                         : a->shape.ndim);
}

/* How many weights there are, 0 without. */
static size_t dml__loss_weights(const dml_node *node, int rows)
{
    if (node->inputs < 3) return 0;
    return dml_shape_count(&node->input[2]->shape) * (node->input[2]->batched ? (size_t)rows : 1);
}

/* Saved: what values are multiplied by beside their weights, and behind it what each gets of the gradient: on
   the host one number for each weight, elsewhere for each element, where the values are before. */
static size_t dml__loss_saved_bytes(const dml_node *node, int rows)
{
    const dml_node *a = node->input[0];
    size_t count = dml__loss_weights(node, rows);
    if (!dml__node_context(node)->device.host_memory)
        count = dml_shape_count(&a->shape) * (a->batched ? (size_t)rows : 1);
    return (2 + count) * sizeof(float);
}

static dml_ref dml__loss_values(const dml__run *run, const dml_node *node)
{
    dml_ref ref = dml__saved(run, node);
    ref.offset += sizeof(float);
    return ref;
}

static dml__formula_call dml__loss_call(const dml__run *run, const dml_node *node)
{
    dml__formula_call call =
        dml__formula_plain(dml__loss_formula(node), dml__count(run, node->input[0]),
                           dml__host_value(run, node->input[0]), dml__host_value(run, node->input[1]));
    call.p = dml__loss_of(node)->p;
    call.q = dml__loss_of(node)->q;
    return call;
}

/* How `count` weights lie among the elements. */
static dml__broadcast dml__loss_layout(size_t n, size_t count)
{
    const size_t result[2] = { count, n / count }, operand[2] = { count, 1 };
    return dml__broadcast_of(2, result, operand);
}

static void dml__loss_host_forward(const dml__run *run, const dml_node *node)
{
    const dml__formula_call call = dml__loss_call(run, node);
    const size_t count = dml__loss_weights(node, run->rows);
    const dml__broadcast layout = dml__loss_layout(call.n, count ? count : 1);
    const float *weights = count ? dml__host_value(run, node->input[2]) : NULL;
    const double total = dml__formula_total(run->pool, &call, weights, &layout);
    float *scale = (float *)dml__host(dml__saved(run, node));
    double divisor = (double)call.n;
    if (count) divisor = (double)dml_sum_all(run->pool, count, weights) * (double)(call.n / count);
    divisor = dml__loss_of(node)->reduction == DML_LOSS_SUM ? 1 : divisor / dml__loss_of(node)->unit;
    *scale = divisor == 0 ? 0 : (float)(1 / divisor);
    *dml__host_value(run, node) = divisor == 0 ? 0 : (float)(total / divisor);
}

static dml_launch dml__loss_launch(const dml__run *run, const dml_node *node, const char *kernel)
{
    dml_launch launch = dml__launch(kernel, dml__count(run, node->input[0]), 1);
    launch.buffer[0] = dml__value(run, node->input[0]);
    launch.buffer[1] = dml__value(run, node->input[1]);
    launch.integer[0] = (int32_t)dml__count(run, node->input[0]);
    launch.integer[1] = dml__loss_formula(node);
    launch.real[0] = dml__loss_of(node)->p;
    launch.real[1] = dml__loss_of(node)->q;
    return launch;
}

static dml_status dml__loss_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_ref none = { NULL, 0 };
    if (run->device->host_memory) {
        dml__loss_host_forward(run, node);
        return DML_OK;
    }
    dml_launch launch = dml__loss_launch(run, node, "formula_forward");
    launch.buffer[3] = dml__loss_values(run, node);
    const dml_status status = dml__submit(run->device, &launch);
    if (status != DML_OK) return status;
    const size_t n = dml__count(run, node->input[0]), count = dml__loss_weights(node, run->rows);
    const dml_ref weights = count ? dml__value(run, node->input[2]) : none;
    const size_t each = count ? n / count : 1;
    return dml__launch_loss_total(run, node, dml__loss_values(run, node), n, weights, each, weights, n / each,
                                  (float)each / (float)dml__loss_of(node)->unit,
                                  dml__loss_of(node)->reduction, dml__saved(run, node));
}

static void dml__loss_host_backward(const dml__run *run, const dml_node *node, float *const gradient[2],
                                    const float beta[2])
{
    dml__formula_call call = dml__loss_call(run, node);
    const size_t count = dml__loss_weights(node, run->rows);
    const dml__broadcast layout = dml__loss_layout(call.n, count ? count : 1);
    const float scale = *(const float *)dml__host(dml__saved(run, node)) * *dml__host_gradient(run, node);
    float *dy = (float *)dml__host(dml__loss_values(run, node));
    dy[0] = scale;
    for (size_t i = 0; i < count; i++) dy[i] = scale * dml__host_value(run, node->input[2])[i];
    call.repeated_dy = &layout;
    dml__formula_backward(run->pool, &call, NULL, dy, gradient, beta);
}

static dml_status dml__loss_op_backward(const dml__run *run, const dml_node *node)
{
    float *gradient[2] = { NULL, NULL }, beta[2] = { 0, 0 };
    const size_t n = dml__count(run, node->input[0]), count = dml__loss_weights(node, run->rows);
    dml_launch launch = dml__loss_launch(run, node, "formula_backward");
    for (int i = 0; i < 2; i++) {
        if (!dml__wants_gradient(run, node, i)) continue;
        if (run->device->host_memory) gradient[i] = dml__host_gradient(run, node->input[i]);
        launch.buffer[4 + i] = dml__gradient(run, node->input[i]);
        launch.real[2 + i] = beta[i] = dml__beta(run, node, i);
    }
    if (!launch.buffer[4].buffer && !launch.buffer[5].buffer) return DML_OK;
    if (run->device->host_memory) {
        dml__loss_host_backward(run, node, gradient, beta);
        return DML_OK;
    }
    dml_launch spread = dml__launch("loss_spread", n, 1);
    if (count) spread.buffer[0] = dml__value(run, node->input[2]);
    spread.buffer[1] = dml__saved(run, node);
    spread.buffer[2] = dml__gradient(run, node);
    spread.buffer[3] = launch.buffer[3] = dml__loss_values(run, node);
    spread.integer[0] = (int32_t)n;
    spread.integer[1] = (int32_t)(count ? n / count : 1);
    const dml_status status = dml__submit(run->device, &spread);
    return status == DML_OK ? dml__submit(run->device, &launch) : status;
}

static void dml__loss_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml__loss_attributes *o = dml__loss_of(node);
    char numbers[64] = "";
    if (dml__loss_formula(node) == DML__FORMULA_huber)
        snprintf(numbers, sizeof numbers, ", delta %g%s", (double)o->p, o->q != 1 ? ", smooth L1" : "");
    if (dml__loss_formula(node) == DML__FORMULA_binary_cross_entropy && o->p != 1)
        snprintf(numbers, sizeof numbers, ", pos_weight %g", (double)o->p);
    snprintf(text, bytes, "%s%s%s", o->reduction == DML_LOSS_SUM ? "sum" : "mean",
             node->inputs > 2 ? ", weighted" : "", numbers);
}

/* The formula's, counted as ops of one element count theirs, and the sum. */
static double dml__loss_flops(const dml_node *node)
{
    return 2.0 * (double)dml_shape_count(&node->input[0]->shape);
}

#define DML__LOSS_OP(name, inputs, first, needs, forward, gradient0, gradient1)                              \
    { #name,                                                                                                 \
      dml__loss_infer,                                                                                       \
      dml__loss_op_forward,                                                                                  \
      dml__loss_op_backward,                                                                                 \
      DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1) | DML__NEEDS_INPUT(2) | DML__NO_GRADIENT(2) |                \
          (DML__FORMULA_##name == DML__FORMULA_batch_mean ? DML__NO_GRADIENT(1) : 0),                        \
      dml__loss_saved_bytes,                                                                                 \
      false,                                                                                                 \
      false,                                                                                                 \
      dml__loss_describe,                                                                                    \
      dml__loss_flops,                                                                                       \
      NULL },

DML__LOCAL const dml__op *dml__loss_op(int i)
{
    static const dml__op ops[] = { DML__FORMULAS_LOSS(DML__LOSS_OP) };
    return i >= 0 && i < (int)(sizeof ops / sizeof ops[0]) ? &ops[i] : NULL;
}

#undef DML__LOSS_OP

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
        const bool divides = numbers[i].which == DML__TAKES_BETA;
        if (!(numbers[i].value > 0 && isfinite(numbers[i].value)) || (divides && isinf(1 / o->beta))) {
            dml__fail(&dml__node_context(at)->error, DML_ERROR_ARGUMENT,
                      "%s: its %s is %g; it must be finite and above 0%s", loss, numbers[i].name,
                      numbers[i].value, divides ? ", and so must 1 / beta" : "");
            return false;
        }
    }
    return true;
}

static dml_node *dml__element_loss(int formula, dml_node *a, dml_node *b, const dml_loss_options *options,
                                   int takes)
{
    dml_loss_options o;
    dml_node *const inputs[] = { a, b, options ? options->sample_weights : NULL };
    const dml__op *op = dml__loss_op(formula - DML__FORMULA_mean_squared_error);
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    if (a && dml__node_context(a)->error.status == DML_OK && !dml__loss_options_fit(a, op->name, &o, takes))
        return NULL;
    const float bend = o.delta != 0 ? o.delta : o.beta != 0 ? o.beta : 1;
    dml__loss_attributes attributes = { o.pos_weight != 0 ? o.pos_weight : 1, 0, o.reduction, 1 };
    if (formula == DML__FORMULA_huber) {
        attributes.p = bend;
        attributes.q = takes & DML__TAKES_BETA ? 1 / bend : 1;
    }
    if (formula == DML__FORMULA_kl_divergence && a && a->shape.ndim > 0)
        attributes.unit = a->shape.dims[a->shape.ndim - 1];
    return dml__node_create(op, inputs[2] ? 3 : 2, inputs, &attributes, sizeof attributes);
}

DML_API dml_node *dml_mean_squared_error(dml_node *a, dml_node *b)
{
    return dml__element_loss(DML__FORMULA_mean_squared_error, a, b, NULL, 0);
}

DML_API dml_node *dml_mean_squared_error_with(dml_node *a, dml_node *b, const dml_loss_options *options)
{
    return dml__element_loss(DML__FORMULA_mean_squared_error, a, b, options, 0);
}

DML_API dml_node *dml_mean_absolute_error(dml_node *a, dml_node *b, const dml_loss_options *options)
{
    return dml__element_loss(DML__FORMULA_mean_absolute_error, a, b, options, 0);
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
    return dml__element_loss(options && options->squared ? DML__FORMULA_squared_hinge : DML__FORMULA_hinge,
                             scores, target, options, DML__TAKES_SQUARED);
}

DML_API dml_node *dml_kl_divergence(dml_node *log_probabilities, dml_node *target,
                                    const dml_loss_options *options)
{
    return dml__element_loss(DML__FORMULA_kl_divergence, log_probabilities, target, options, 0);
}

/* A loss has two inputs: this one takes its own twice, and no gradient for the second. */
DML_API dml_node *dml_batch_mean(dml_node *x, const dml_loss_options *options)
{
    return dml__element_loss(DML__FORMULA_batch_mean, x, x, options, 0);
}

#endif
