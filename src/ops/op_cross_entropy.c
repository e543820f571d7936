#ifndef DML_OPS_OP_CROSS_ENTROPY_C
#define DML_OPS_OP_CROSS_ENTROPY_C

#include "ops/op_cross_entropy_internal.h"

#include "base/memory.h"
#include "graph/node.h"
#include "kernels/cross_entropy.h"
#include "ops/op_loss_internal.h"
#include "ops/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The class weights lie behind it. */
typedef struct dml__cross_entropy_attributes {
    dml_loss_reduction reduction;
    float smoothing;
    bool ignores, class_weights;
    int32_t ignored;
} dml__cross_entropy_attributes;

static const dml__cross_entropy_attributes *dml__cross_entropy_of(const dml_node *node)
{
    return (const dml__cross_entropy_attributes *)node->attributes;
}

/* NULL: 1 each. */
static const float *dml__class_weights_of(const dml_node *node)
{
    const dml__cross_entropy_attributes *o = dml__cross_entropy_of(node);
    return o->class_weights ? (const float *)(const void *)(o + 1) : NULL;
}

DML__LOCAL bool dml__cross_entropy_is_mean(const dml_node *node)
{
    return dml__cross_entropy_of(node)->reduction == DML_LOSS_MEAN;
}

DML__LOCAL int dml__classes_of(const dml_node *logits)
{
    return logits->shape.ndim ? logits->shape.dims[logits->shape.ndim - 1] : 0;
}

/* Of all ranks, where each has a part; and the first of this one's. */
static int dml__all_classes_of(const dml_node *node)
{
    return dml__classes_of(node->input[0]) * (node->sums ? node->graph->model.ranks : 1);
}

static int dml__first_class_of(const dml_node *node)
{
    return dml__classes_of(node->input[0]) * (node->sums ? node->graph->model.rank : 0);
}

/* ---- what it takes ---- */

static bool dml__has_labels(const dml_node *node)
{
    return node->input[1]->dtype == DML_I32;
}

static dml_status dml__cross_entropy_check_options(const dml_node *node)
{
    const dml__cross_entropy_attributes *o = dml__cross_entropy_of(node);
    const float *weights = dml__class_weights_of(node);
    if (!(o->smoothing >= 0 && o->smoothing <= 1))
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "its label smoothing is %g; it must be in 0 .. 1",
                              (double)o->smoothing);
    for (int c = 0; weights && c < dml__classes_of(node->input[0]); c++)
        if (!(weights[c] >= 0 && weights[c] < HUGE_VALF))
            return dml__node_fail(node, DML_ERROR_ARGUMENT,
                                  "the weight of class %d is %g; it must be finite and not below 0", c,
                                  (double)weights[c]);
    if (!o->ignores && o->ignored != 0)
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "an ignore_index of %d asked for, but ignores is false; set ignores too, or "
                              "leave both out",
                              (int)o->ignored);
    if (o->ignores && !dml__has_labels(node))
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "label %d is to be ignored, but its target is probabilities; weigh the samples",
                              (int)o->ignored);
    return dml__check_loss_reduction(node, o->reduction);
}

DML__LOCAL dml_status dml__softmax_cross_entropy_infer(dml_node *node)
{
    dml_node *logits = node->input[0], *target = node->input[1];
    char logits_text[DML_SHAPE_TEXT], target_text[DML_SHAPE_TEXT];
    if (logits->dtype != DML_F32 || !logits->batched || logits->shape.ndim < 1)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its logits are %s %s; they must be one row or more of f32 a sample",
                              dml_dtype_name(logits->dtype), dml_shape_format(&logits->shape, logits_text));
    dml_shape rows = logits->shape;
    if (target->dtype == DML_I32) rows.dims[--rows.ndim] = 0;
    if (!target->batched || !dml_shape_equal(&target->shape, &rows) ||
        (target->dtype != DML_I32 && target->dtype != DML_F32))
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its target is %s %s%s; for logits of %s it must be an input of i32 labels, one a row%s",
            dml_dtype_name(target->dtype), dml_shape_format(&target->shape, target_text),
            target->batched ? "" : " for the whole batch", dml_shape_format(&logits->shape, logits_text),
            node->sums ? "" : ", or as many f32 probabilities");
    if (dml__has_labels(node)) {
        node->limit = dml__all_classes_of(node);
        node->ignored = dml__cross_entropy_of(node)->ignores ? (int)dml__cross_entropy_of(node)->ignored : 0;
    }
    dml_status status = dml__cross_entropy_check_options(node);
    if (status == DML_OK && node->inputs > 2)
        status = dml__check_loss_weights(node, node->input[2], logits, logits->shape.ndim - 1);
    return status; /* shape and batched are zero: one scalar */
}

DML__LOCAL bool dml__cut_loss_numbers(const dml_node *node, double number[DML__CUT_LOSS_NUMBERS])
{
    if (!node->sums || node->op->backward != dml__softmax_cross_entropy_op_backward) return false;
    const dml__cross_entropy_attributes *o = dml__cross_entropy_of(node);
    number[0] = (double)dml__all_classes_of(node);
    number[1] = (double)o->smoothing;
    number[2] = (double)o->reduction;
    number[3] = o->ignores ? (double)o->ignored : (double)HUGE_VALF;
    return true;
}

/* ---- running ---- */

DML__LOCAL size_t dml__cross_entropy_rows(const dml_node *node, int samples)
{
    const dml_node *logits = node->input[0];
    return dml_shape_count(&logits->shape) / (size_t)dml__classes_of(logits) * (size_t)samples;
}

/* Saved, in floats: what the kernels keep, the scale, and on a GPU the class weights. */
static size_t dml__cross_entropy_kept(const dml_node *node, int samples)
{
    return DML_CROSS_ENTROPY_KEPT * dml__cross_entropy_rows(node, samples);
}

DML__LOCAL size_t dml__softmax_cross_entropy_saved_bytes(const dml_node *node, int rows)
{
    const bool copied = dml__class_weights_of(node) && !dml__node_context(node)->device.host_memory;
    const size_t weights = copied ? (size_t)dml__classes_of(node->input[0]) : 0;
    return (dml__cross_entropy_kept(node, rows) + 1 + weights) * sizeof(float);
}

static dml_ref dml__cross_entropy_saved_at(const dml__run *run, const dml_node *node, size_t floats)
{
    dml_ref ref = dml__saved(run, node);
    ref.offset += floats * sizeof(float);
    return ref;
}

DML__LOCAL dml_ref dml__cross_entropy_scale(const dml__run *run, const dml_node *node)
{
    return dml__cross_entropy_saved_at(run, node, dml__cross_entropy_kept(node, run->rows));
}

/* On a GPU; none where there are none. */
static dml_ref dml__cross_entropy_class_weights(const dml__run *run, const dml_node *node)
{
    const dml_ref none = { NULL, 0 };
    if (!dml__class_weights_of(node)) return none;
    return dml__cross_entropy_saved_at(run, node, dml__cross_entropy_kept(node, run->rows) + 1);
}

static size_t dml__cross_entropy_each(const dml__run *run, const dml_node *node)
{
    const size_t rows = dml__cross_entropy_rows(node, run->rows);
    return node->inputs > 2 ? rows / dml__count(run, node->input[2]) : rows;
}

DML__LOCAL dml_cross_entropy dml__cross_entropy_problem(const dml__run *run, const dml_node *node)
{
    const dml__cross_entropy_attributes *o = dml__cross_entropy_of(node);
    dml_cross_entropy p;
    memset(&p, 0, sizeof p);
    p.rows = dml__cross_entropy_rows(node, run->rows);
    p.classes = (size_t)dml__classes_of(node->input[0]);
    p.logits = dml__host_value(run, node->input[0]);
    if (dml__has_labels(node))
        p.labels = (const int32_t *)dml__host(dml__value(run, node->input[1]));
    else
        p.target = dml__host_value(run, node->input[1]);
    p.class_weights = dml__class_weights_of(node);
    if (node->inputs > 2) p.row_weights = dml__host_value(run, node->input[2]);
    p.each = dml__cross_entropy_each(run, node);
    p.smoothing = o->smoothing;
    p.ignores = o->ignores;
    p.ignored = o->ignored;
    if (node->sums) {
        p.first = (size_t)dml__first_class_of(node);
        p.all = (size_t)dml__all_classes_of(node);
    }
    p.kept = (float *)dml__host(dml__saved(run, node));
    return p;
}

DML__LOCAL dml_status dml__cross_entropy_launch_rows(const dml__run *run, const dml_node *node)
{
    const dml__cross_entropy_attributes *o = dml__cross_entropy_of(node);
    const size_t rows = dml__cross_entropy_rows(node, run->rows);
    const dml_ref class_weights = dml__cross_entropy_class_weights(run, node);
    dml_status status = DML_OK;
    if (o->class_weights)
        status = run->device->backend->write(run->device, class_weights, dml__class_weights_of(node),
                                             (size_t)dml__classes_of(node->input[0]) * sizeof(float));
    if (status != DML_OK) return status;
    const int lanes = dml__row_lanes((size_t)dml__classes_of(node->input[0]));
    dml_launch launch = dml__launch("cross_entropy_forward", dml__row_groups(rows, lanes), 1);
    launch.buffer[0] = dml__value(run, node->input[0]);
    launch.buffer[1] = dml__value(run, node->input[1]);
    launch.buffer[2] = class_weights;
    if (node->inputs > 2) launch.buffer[3] = dml__value(run, node->input[2]);
    launch.buffer[4] = dml__saved(run, node);
    launch.integer[0] = (int32_t)rows;
    launch.integer[1] = dml__classes_of(node->input[0]);
    launch.integer[2] = (int32_t)dml__cross_entropy_each(run, node);
    launch.integer[3] = dml__has_labels(node);
    launch.integer[4] = o->ignores;
    launch.integer[5] = o->ignored;
    launch.integer[6] = lanes;
    launch.integer[7] = dml__first_class_of(node);
    launch.integer[8] = node->sums ? dml__all_classes_of(node) : 0;
    launch.real[0] = o->smoothing;
    return dml__submit(run->device, &launch);
}

static dml_status dml__cross_entropy_launch_forward(const dml__run *run, const dml_node *node)
{
    const size_t rows = dml__cross_entropy_rows(node, run->rows);
    const dml_ref none = { NULL, 0 };
    const dml_status status = dml__cross_entropy_launch_rows(run, node);
    if (status != DML_OK) return status;
    return dml__launch_loss_total(run, node, dml__cross_entropy_saved_at(run, node, 3 * rows), rows, none,
                                  rows, dml__cross_entropy_saved_at(run, node, 4 * rows), rows, 1,
                                  dml__cross_entropy_of(node)->reduction,
                                  dml__cross_entropy_scale(run, node));
}

static dml_status dml__softmax_cross_entropy_op_forward(const dml__run *run, const dml_node *node)
{
    if (!run->device->host_memory) return dml__cross_entropy_launch_forward(run, node);
    const dml_cross_entropy problem = dml__cross_entropy_problem(run, node);
    *dml__host_value(run, node) =
        dml_cross_entropy_forward(run->pool, &problem, dml__cross_entropy_is_mean(node),
                                  (float *)dml__host(dml__cross_entropy_scale(run, node)));
    return DML_OK;
}

static dml_status dml__cross_entropy_launch_backward(const dml__run *run, const dml_node *node, int i)
{
    const size_t rows = dml__cross_entropy_rows(node, run->rows);
    const size_t classes = (size_t)dml__classes_of(node->input[0]);
    const int lanes = dml__row_lanes(classes);
    dml_launch launch =
        i == 0 ? dml__launch("cross_entropy_backward", dml__row_groups(rows, lanes),
                             (classes + (size_t)lanes - 1) / (size_t)lanes)
               : dml__launch("cross_entropy_backward_target", dml__count(run, node->input[0]), 1);
    int b = 0, k = 0;
    launch.buffer[b++] = dml__value(run, node->input[0]);
    if (i == 0) launch.buffer[b++] = dml__value(run, node->input[1]);
    launch.buffer[b++] = dml__cross_entropy_class_weights(run, node);
    launch.buffer[b++] = dml__saved(run, node);
    launch.buffer[b++] = dml__gradient(run, node);
    launch.buffer[b] = dml__gradient(run, node->input[i]);
    launch.integer[k++] = (int32_t)rows;
    launch.integer[k++] = (int32_t)classes;
    launch.integer[k++] = dml__has_labels(node);
    launch.integer[k++] = lanes;
    launch.integer[k++] = dml__first_class_of(node);
    launch.integer[k] = node->sums ? dml__all_classes_of(node) : 0;
    launch.real[0] = dml__cross_entropy_of(node)->smoothing;
    launch.real[1] = dml__beta(run, node, i);
    return dml__submit(run->device, &launch);
}

static dml_status dml__cross_entropy_gradient_of(const dml__run *run, const dml_node *node, int i)
{
    if (!dml__wants_gradient(run, node, i)) return DML_OK;
    if (!run->device->host_memory) return dml__cross_entropy_launch_backward(run, node, i);
    const dml_cross_entropy problem = dml__cross_entropy_problem(run, node);
    const float scale =
        *(const float *)dml__host(dml__cross_entropy_scale(run, node)) * *dml__host_gradient(run, node);
    (i == 0 ? dml_cross_entropy_backward : dml_cross_entropy_backward_target)(
        run->pool, &problem, scale, dml__beta(run, node, i), dml__host_gradient(run, node->input[i]));
    return DML_OK;
}

/* Where the logits' gradient is written over the logits, it comes last. */
DML__LOCAL dml_status dml__softmax_cross_entropy_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_ref logits = dml__value(run, node->input[0]);
    int first = 0;
    if (dml__wants_gradient(run, node, 0)) {
        const dml_ref gradient = dml__gradient(run, node->input[0]);
        first = gradient.buffer == logits.buffer && gradient.offset == logits.offset;
    }
    const dml_status status = dml__cross_entropy_gradient_of(run, node, first);
    return status == DML_OK ? dml__cross_entropy_gradient_of(run, node, 1 - first) : status;
}

/* Of each logit: minus the largest, exp, plus the others; and as much for what it weighs. */
DML__LOCAL double dml__softmax_cross_entropy_flops(const dml_node *node)
{
    const bool weighs = !dml__has_labels(node) || dml__cross_entropy_of(node)->smoothing != 0;
    return (weighs ? 6.0 : 3.0) * (double)dml_shape_count(&node->input[0]->shape);
}

DML__LOCAL void dml__softmax_cross_entropy_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml__cross_entropy_attributes *o = dml__cross_entropy_of(node);
    char smoothing[40] = "", ignored[40] = "";
    if (o->smoothing != 0) snprintf(smoothing, sizeof smoothing, ", smoothing %g", (double)o->smoothing);
    if (o->ignores) snprintf(ignored, sizeof ignored, ", ignores %d", (int)o->ignored);
    char words[160];
    snprintf(words, sizeof words, "%s%s%s%s%s", o->reduction == DML_LOSS_SUM ? ", sum" : "",
             node->inputs > 2 ? ", weighted" : "", o->class_weights ? ", weighted classes" : "", smoothing,
             ignored);
    snprintf(text, bytes, "%s", words[0] ? words + 2 : words);
}

DML__LOCAL const dml__op *dml__softmax_cross_entropy_op(void)
{
    static const dml__op op = { "softmax_cross_entropy",
                                dml__softmax_cross_entropy_infer,
                                dml__softmax_cross_entropy_op_forward,
                                dml__softmax_cross_entropy_op_backward,
                                DML__CROSS_ENTROPY_NEEDS,
                                dml__softmax_cross_entropy_saved_bytes,
                                false,
                                false,
                                dml__softmax_cross_entropy_describe,
                                dml__softmax_cross_entropy_flops,
                                NULL };
    return &op;
}

DML__LOCAL dml_node *dml__cross_entropy_node(const dml__op *op, dml_node *logits, dml_node *target,
                                             const dml_cross_entropy_options *options)
{
    dml_node *const inputs[] = { logits, target, options ? options->sample_weights : NULL };
    const int count = inputs[2] ? 3 : 2;
    const float *weights = options && logits && target ? options->class_weights : NULL;
    const size_t classes = weights ? (size_t)dml__classes_of(logits) : 0;
    dml__cross_entropy_attributes own, *attributes = &own;
    const size_t bytes = sizeof own + classes * sizeof(float);
    memset(&own, 0, sizeof own);
    if (options) {
        own.reduction = options->reduction;
        own.smoothing = options->label_smoothing;
        own.ignores = options->ignores;
        own.ignored = options->ignore_index;
    }
    if (classes) {
        dml_context *context = dml__node_context(logits);
        own.class_weights = true;
        attributes = (dml__cross_entropy_attributes *)dml__allocate(&context->memory, bytes);
        if (!attributes) {
            dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for the weights of %zu classes",
                      classes);
            return NULL;
        }
        *attributes = own;
        memcpy(attributes + 1, weights, classes * sizeof(float));
    }
    dml_node *node = dml__node_create(op, count, inputs, attributes, bytes);
    if (attributes != &own) dml__release(&dml__node_context(logits)->memory, attributes);
    return node;
}

DML_API dml_node *dml_softmax_cross_entropy_with(dml_node *logits, dml_node *target,
                                                 const dml_cross_entropy_options *options)
{
    return dml__cross_entropy_node(dml__softmax_cross_entropy_op(), logits, target, options);
}

DML_API dml_node *dml_softmax_cross_entropy(dml_node *logits, dml_node *labels)
{
    return dml_softmax_cross_entropy_with(logits, labels, NULL);
}

#endif
