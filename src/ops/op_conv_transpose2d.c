#ifndef DML_OPS_OP_CONV_TRANSPOSE2D_C
#define DML_OPS_OP_CONV_TRANSPOSE2D_C

#include "ops/op_conv_transpose2d.h"

#include "ops/op_conv_internal.h"
#include "ops/table.h"
#include "kernels/elementwise.h"

#include <stdio.h>
#include <string.h>

/* The convolution whose input's gradient this is: from y, of `filters` channels, to x, of which each channel
   is one of its filters. */

static int dml__conv_transpose_ndim(const dml_node *node)
{
    return node->op == dml__conv_transpose1d_op() ? 2 : 3;
}

/* What comes out along an axis; 0: nothing. */
static int dml__conv_transpose_size(const dml_node *node, int axis)
{
    const dml_conv_transpose2d_options *o = (const dml_conv_transpose2d_options *)node->attributes;
    const int in = dml__image_dim(&node->input[0]->shape, 0, axis);
    const int extent = dml_conv2d_extent(o->kernel[axis], o->dilation[axis]);
    const int64_t size = (int64_t)(in - 1) * o->stride[axis] - 2 * (int64_t)o->padding[axis] + extent +
                         o->output_padding[axis];
    return extent < 1 || size < 1 || size > INT32_MAX ? 0 : (int)size;
}

static dml_status dml__check_output_padding(const dml_node *node)
{
    const dml_conv_transpose2d_options *o = (const dml_conv_transpose2d_options *)node->attributes;
    for (int axis = 0; axis < 2; axis++) {
        const int more = o->output_padding[axis], stride = o->stride[axis], dilation = o->dilation[axis];
        if (more < 0 || (more >= stride && more >= dilation))
            return dml__node_fail(
                node, DML_ERROR_ARGUMENT,
                "output padding %d asked for; it is 0 or more, and less than the stride %d or "
                "the dilation %d",
                more, stride, dilation);
    }
    return DML_OK;
}

static dml_conv2d_shape dml__conv_transpose_shape(const dml_node *node, int rows)
{
    const dml_shape *x = &node->input[0]->shape, *y = &node->shape;
    const dml_conv_transpose2d_options *o = (const dml_conv_transpose2d_options *)node->attributes;
    const dml_conv2d_shape shape = { rows,
                                     dml__image_dim(y, 0, 0),
                                     dml__image_dim(y, 0, 1),
                                     o->filters,
                                     dml__image_dim(x, 0, 2),
                                     o->kernel[0],
                                     o->kernel[1],
                                     o->stride[0],
                                     o->stride[1],
                                     o->padding[0],
                                     o->padding[1],
                                     o->dilation[0],
                                     o->dilation[1],
                                     o->groups,
                                     dml__image_dim(x, 0, 0),
                                     dml__image_dim(x, 0, 1) };
    return shape;
}

static dml_status dml__conv_transpose_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    const dml_conv_transpose2d_options *o = (const dml_conv_transpose2d_options *)node->attributes;
    const int ndim = dml__conv_transpose_ndim(node);
    char text[DML_SHAPE_TEXT], pair[3][32];
    dml_status status =
        dml__check_conv_input(node, ndim,
                              ndim == 2 ? "channels x kernel x filters / groups"
                                        : "channels x kernel height x kernel width x filters / groups");
    if (status != DML_OK) return status;
    const int channels = x->shape.dims[ndim - 1];
    if (o->groups < 1 || o->filters < 1 || channels % o->groups || o->filters % o->groups)
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "%d groups asked for, of %d channels and %d filters: groups must divide both",
                              o->groups, channels, o->filters);
    status = dml__check_conv_parameters(node, channels, o->kernel, o->filters / o->groups, o->filters);
    if (status == DML_OK) status = dml__check_conv_steps(node, o->stride, o->padding, o->dilation);
    if (status == DML_OK) status = dml__check_output_padding(node);
    if (status != DML_OK) return status;
    node->batched = true;
    node->shape.ndim = ndim;
    node->shape.dims[ndim - 1] = o->filters;
    for (int axis = 3 - ndim; axis < 2; axis++) {
        const int size = dml__conv_transpose_size(node, axis);
        node->shape.dims[dml__image_axis(ndim, axis)] = size;
        if (size < 1)
            return dml__node_fail(
                node, DML_ERROR_SHAPE,
                "of an input of %s nothing is left, or more than can be counted, by a kernel of "
                "%s, stride %s and padding %s",
                dml_shape_format(&x->shape, text), dml__conv_pair(ndim, o->kernel, pair[0]),
                dml__conv_pair(ndim, o->stride, pair[1]), dml__conv_pair(ndim, o->padding, pair[2]));
    }
    const dml_conv2d_shape one = dml__conv_transpose_shape(node, 1);
    return dml__check_conv_reach(node, &one);
}

static dml_status dml__conv_transpose_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->inputs > 2 ? node->input[2] : NULL;
    const dml_conv2d_shape s = dml__conv_transpose_shape(node, run->rows);
    const size_t filters = (size_t)s.channels, pixels = dml__count(run, node) / filters;
    if (run->device->host_memory) {
        const dml_status status = dml_conv2d_backward_input(
            run->pool, &s, dml__host_value(run, x), dml__host_value(run, w), 0, dml__host_value(run, node));
        if (status == DML_OK && bias)
            dml_bias_add(run->pool, pixels, filters, dml__host_value(run, bias), dml__host_value(run, node));
        return status;
    }
    dml_launch launch =
        dml__conv_launch(&s, "conv2d_backward_input", dml__conv_tiled(s.channels, s.groups), pixels);
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, w);
    launch.buffer[2] = dml__value(run, node);
    const dml_status status = dml__submit(run->device, &launch);
    if (status != DML_OK || !bias) return status;
    launch = dml__launch("bias_add", dml__count(run, node), 1);
    launch.buffer[0] = dml__value(run, bias);
    launch.buffer[1] = dml__value(run, node);
    launch.integer[0] = (int32_t)pixels;
    launch.integer[1] = (int32_t)filters;
    return dml__submit(run->device, &launch);
}

/* dx is the convolution of dy. */
static dml_status dml__conv_transpose_input_gradient(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1];
    const dml_conv2d_shape s = dml__conv_transpose_shape(node, run->rows);
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory)
        return dml_conv2d_forward_fused(run->pool, &s, dml__host_gradient(run, node), dml__host_value(run, w),
                                        beta, NULL, dml__host_gradient(run, x));
    dml_launch launch = dml__conv_launch(&s, "conv2d_forward", dml__conv_tiled(s.filters, s.groups),
                                         dml__count(run, x) / (size_t)s.filters);
    launch.buffer[0] = dml__gradient(run, node);
    launch.buffer[1] = dml__value(run, w);
    launch.buffer[3] = dml__gradient(run, x);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

/* That of the convolution's weights, where dy is its input and x its output's gradient. */
static dml_status dml__conv_transpose_weight_gradient(const dml__run *run, const dml_node *node)
{
    const dml_conv2d_shape s = dml__conv_transpose_shape(node, run->rows);
    return dml__conv_weight_gradient(run, node, &s, dml__gradient(run, node),
                                     dml__value(run, node->input[0]));
}

static dml_status dml__conv_transpose_op_backward(const dml__run *run, const dml_node *node)
{
    dml_status status = DML_OK;
    const size_t filters = (size_t)dml__image_dim(&node->shape, 0, 2);
    if (dml__wants_gradient(run, node, 0)) status = dml__conv_transpose_input_gradient(run, node);
    if (status == DML_OK && dml__wants_gradient(run, node, 1))
        status = dml__conv_transpose_weight_gradient(run, node);
    if (status == DML_OK && node->inputs > 2 && dml__wants_gradient(run, node, 2))
        status = dml__sum_rows_into_gradient(run, node, 2, dml__count(run, node) / filters, filters,
                                             dml__no_parts);
    return status;
}

static void dml__conv_transpose_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml_conv_transpose2d_options *o = (const dml_conv_transpose2d_options *)node->attributes;
    const int *const pairs[] = { o->kernel, o->stride, o->padding, o->output_padding, o->dilation };
    static const char *const names[] = { "kernel", "stride", "padding", "output padding", "dilation" };
    static const int unsaid[] = { -1, -1, -1, 0, 1 };
    int used = snprintf(text, bytes, "%d filters", o->filters);
    for (int i = 0; i < 5 && used >= 0 && (size_t)used < bytes; i++) {
        char pair[32];
        if (pairs[i][0] == unsaid[i] && pairs[i][1] == unsaid[i]) continue;
        used += snprintf(text + used, bytes - (size_t)used, ", %s %s", names[i],
                         dml__conv_pair(node->shape.ndim, pairs[i], pair));
    }
    if (used >= 0 && (size_t)used < bytes && o->groups != 1)
        used += snprintf(text + used, bytes - (size_t)used, ", %d groups", o->groups);
    if (used >= 0 && (size_t)used < bytes && node->inputs < 3)
        snprintf(text + used, bytes - (size_t)used, ", no bias");
}

/* Each number of x goes into as many outputs as it has weights. */
static double dml__conv_transpose_flops(const dml_node *node)
{
    const double taps = (double)dml_shape_count(&node->input[1]->shape) / node->input[1]->shape.dims[0];
    return 2 * taps * (double)dml_shape_count(&node->input[0]->shape) +
           (node->inputs > 2 ? (double)dml_shape_count(&node->shape) : 0);
}

/* Forward is what a convolution does when it trains. */
static dml_scratch dml__conv_transpose_scratch(const dml_node *node, int rows, bool training)
{
    const dml_conv2d_shape shape = dml__conv_transpose_shape(node, rows);
    (void)training;
    return dml_conv2d_scratch(&shape, true);
}

DML__LOCAL const dml__op *dml__conv_transpose2d_op(void)
{
    static const dml__op op = { "conv_transpose2d",
                                dml__conv_transpose_infer,
                                dml__conv_transpose_op_forward,
                                dml__conv_transpose_op_backward,
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1),
                                NULL,
                                false,
                                false,
                                dml__conv_transpose_describe,
                                dml__conv_transpose_flops,
                                dml__conv_transpose_scratch };
    return &op;
}

DML__LOCAL const dml__op *dml__conv_transpose1d_op(void)
{
    static const dml__op op = { "conv_transpose1d",
                                dml__conv_transpose_infer,
                                dml__conv_transpose_op_forward,
                                dml__conv_transpose_op_backward,
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1),
                                NULL,
                                false,
                                false,
                                dml__conv_transpose_describe,
                                dml__conv_transpose_flops,
                                dml__conv_transpose_scratch };
    return &op;
}

static void dml__conv_transpose_defaults(const dml__op *op, dml_conv_transpose2d_options *o)
{
    const bool lines = op == dml__conv_transpose1d_op();
    dml__default_pair(lines, o->stride, 1);
    dml__default_pair(lines, o->dilation, 1);
    if (!o->groups) o->groups = 1;
}

static dml_node *dml__conv_transpose_with(const dml__op *op, dml_node *x, dml_node *w, dml_node *bias,
                                          dml_conv_transpose2d_options o)
{
    dml__conv_transpose_defaults(op, &o);
    if (w) {
        const int ndim = op == dml__conv_transpose1d_op() ? 3 : 4;
        const int64_t filters = (int64_t)w->shape.dims[ndim - 1] * o.groups;
        if (!o.filters && filters <= INT32_MAX) o.filters = (int)filters;
        for (int axis = 0; axis < 2; axis++)
            if (!o.kernel[axis]) o.kernel[axis] = w->shape.dims[1 + axis - (ndim == 3)];
    }
    o.no_bias = !bias;
    dml_node *const inputs[] = { x, w, bias };
    return dml__node_create(op, bias ? 3 : 2, inputs, &o, sizeof o);
}

static dml_node *dml__conv_transpose_create(const dml__op *op, dml_node *x, dml_conv_transpose2d_options o)
{
    if (!x) return NULL;
    dml__conv_transpose_defaults(op, &o);
    const int ndim = op == dml__conv_transpose1d_op() ? 2 : 3;
    dml__default_pair(ndim == 2, o.kernel, 3);
    if (o.filters < 1 || o.kernel[0] < 1 || o.kernel[1] < 1) {
        char kernel[32];
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "%s: %d filters of %s asked for, each must be 1 or more", op->name, o.filters,
                  dml__conv_pair(ndim, o.kernel, kernel));
        return NULL;
    }
    const int channels = x->shape.ndim == ndim ? x->shape.dims[ndim - 1] : 1;
    const int of_group = o.groups > 0 && o.filters >= o.groups ? o.filters / o.groups : o.filters;
    const dml_shape weights = ndim == 3 ? dml_shape_of(channels, o.kernel[0], o.kernel[1], of_group)
                                        : dml_shape_of(channels, o.kernel[1], of_group);
    double fan_in = channels / (o.groups > 0 ? (double)o.groups : 1.0);
    for (int axis = 0; axis < 2; axis++)
        fan_in *= o.kernel[axis] / (o.stride[axis] > 0 ? (double)o.stride[axis] : 1.0);
    dml_node *last = x->graph->last, *parameter[2], *layer = NULL;
    if (dml__conv_parameters(x->graph, op, weights, fan_in, o.filters, o.no_bias, parameter))
        layer = dml__conv_transpose_with(op, x, parameter[0], parameter[1], o);
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

static dml_conv_transpose2d_options dml__conv_transpose_options(const dml_conv_transpose2d_options *options)
{
    dml_conv_transpose2d_options o;
    memset(&o, 0, sizeof o);
    return options ? *options : o;
}

static dml_conv_transpose2d_options dml__conv_transpose_of_lines(const dml_conv_transpose1d_options *options)
{
    dml_conv_transpose2d_options o;
    memset(&o, 0, sizeof o);
    o.kernel[0] = o.stride[0] = o.dilation[0] = 1;
    if (!options) return o;
    o.filters = options->filters;
    o.kernel[1] = options->kernel;
    o.stride[1] = options->stride;
    o.padding[1] = options->padding;
    o.output_padding[1] = options->output_padding;
    o.no_bias = options->no_bias;
    o.dilation[1] = options->dilation;
    o.groups = options->groups;
    return o;
}

DML_API dml_node *dml_conv_transpose2d_with(dml_node *x, dml_node *w, dml_node *bias,
                                            const dml_conv_transpose2d_options *options)
{
    return dml__conv_transpose_with(dml__conv_transpose2d_op(), x, w, bias,
                                    dml__conv_transpose_options(options));
}

DML_API dml_node *dml_conv_transpose2d(dml_node *x, const dml_conv_transpose2d_options *options)
{
    return dml__conv_transpose_create(dml__conv_transpose2d_op(), x, dml__conv_transpose_options(options));
}

DML_API dml_node *dml_conv_transpose1d_with(dml_node *x, dml_node *w, dml_node *bias,
                                            const dml_conv_transpose1d_options *options)
{
    return dml__conv_transpose_with(dml__conv_transpose1d_op(), x, w, bias,
                                    dml__conv_transpose_of_lines(options));
}

DML_API dml_node *dml_conv_transpose1d(dml_node *x, const dml_conv_transpose1d_options *options)
{
    return dml__conv_transpose_create(dml__conv_transpose1d_op(), x, dml__conv_transpose_of_lines(options));
}

#endif
