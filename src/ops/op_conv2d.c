#ifndef DML_OPS_OP_CONV2D_C
#define DML_OPS_OP_CONV2D_C

#include "ops/op_conv2d.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/table.h"
#include "kernels/conv2d.h"
#include "kernels/epilogue.h"

#include <stdio.h>
#include <string.h>

static dml_status dml__check_conv2d_parameters(const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    const int *dims = w->shape.dims;
    char text[DML_SHAPE_TEXT];
    if (w->dtype != DML_F32 || w->batched || w->shape.ndim != 4 || dims[0] != o->filters ||
        dims[1] != o->kernel[0] || dims[2] != o->kernel[1] || dims[3] != x->shape.dims[2] / o->groups)
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its weights are %s%s; for %d filters of %d x %d over %d channels they must be %d x "
            "%d x %d x %d",
            dml_shape_format(&w->shape, text), w->batched ? " a sample" : "", o->filters, o->kernel[0],
            o->kernel[1], x->shape.dims[2], o->filters, o->kernel[0], o->kernel[1],
            x->shape.dims[2] / o->groups);
    if (bias && (bias->dtype != DML_F32 || bias->batched || bias->shape.ndim != 1 ||
                 bias->shape.dims[0] != o->filters))
        return dml__node_fail(node, DML_ERROR_SHAPE, "its bias is %s%s, it must be %d",
                              dml_shape_format(&bias->shape, text), bias->batched ? " a sample" : "",
                              o->filters);
    return DML_OK;
}

static dml_status dml__conv2d_infer(dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1];
    const dml_conv2d_options *options = (const dml_conv2d_options *)node->attributes;
    char x_text[DML_SHAPE_TEXT];
    dml_status status = dml__check_image_input(node);
    if (status != DML_OK) return status;
    if (options->groups < 1 || x->shape.dims[2] % options->groups || options->filters % options->groups)
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "%d groups asked for, of %d channels and %d filters: groups must divide both",
                              options->groups, x->shape.dims[2], options->filters);
    status = dml__check_conv2d_parameters(node);
    if (status != DML_OK) return status;
    node->batched = true;
    node->shape.ndim = 3;
    node->shape.dims[2] = w->shape.dims[0];
    for (int axis = 0; axis < 2; axis++) {
        const int stride = options->stride[axis], padding = options->padding[axis];
        if (stride < 1 || padding < 0)
            return dml__node_fail(
                node, DML_ERROR_ARGUMENT,
                "stride %d and padding %d asked for; a stride is 1 or more, a padding 0 or more", stride,
                padding);
        if (options->dilation[axis] < 1)
            return dml__node_fail(node, DML_ERROR_ARGUMENT, "dilation %d asked for; it is 1 or more",
                                  options->dilation[axis]);
        node->shape.dims[axis] = dml_conv2d_output_size(
            x->shape.dims[axis], dml_conv2d_extent(options->kernel[axis], options->dilation[axis]), stride,
            padding);
        if (node->shape.dims[axis] < 1)
            return dml__node_fail(
                node, DML_ERROR_SHAPE,
                "a kernel of %d x %d doesn't fit an input of %s with padding %d x %d and dilation %d x %d",
                options->kernel[0], options->kernel[1], dml_shape_format(&x->shape, x_text),
                options->padding[0], options->padding[1], options->dilation[0], options->dilation[1]);
    }
    return DML_OK;
}

static dml_conv2d_shape dml__conv2d_shape_of(const dml_node *node, int rows)
{
    const int *x = node->input[0]->shape.dims;
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    const dml_conv2d_shape shape = { rows,           x[0],          x[1],          x[2],
                                     o->filters,     o->kernel[0],  o->kernel[1],  o->stride[0],
                                     o->stride[1],   o->padding[0], o->padding[1], o->dilation[0],
                                     o->dilation[1], o->groups };
    return shape;
}

/* Along an axis of filters or channels, whose tiles of 64 (tiles.cl) don't reach from one group into another.
 */
static size_t dml__conv2d_tiled(int size, int groups)
{
    const size_t of_group = (size_t)(size / groups);
    return groups == 1 ? of_group : (size_t)groups * ((of_group + 63) / 64 * 64);
}

static dml_launch dml__conv2d_launch(const dml__run *run, const dml_node *node, const char *kernel,
                                     size_t size_x, size_t size_y)
{
    const dml_conv2d_shape s = dml__conv2d_shape_of(node, run->rows);
    const int32_t integers[] = {
        s.batch,      s.height,   s.width, s.channels, s.filters,           s.kernel_h,          s.kernel_w,
        s.stride_h,   s.stride_w, s.pad_h, s.pad_w,    node->shape.dims[0], node->shape.dims[1], s.dilation_h,
        s.dilation_w, s.groups
    };
    dml_launch launch = dml__launch(kernel, size_x, size_y);
    memcpy(launch.integer, integers, sizeof integers);
    return launch;
}

static dml_status dml__conv2d_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->input[2];
    const dml_conv2d_shape s = dml__conv2d_shape_of(node, run->rows);
    if (run->device->host_memory) {
        const dml_epilogue epilogue = { bias ? dml__host_value(run, bias) : NULL, dml__ends_in_relu(run, node)
                                                                                      ? DML_ACTIVATION_RELU
                                                                                      : DML_ACTIVATION_NONE };
        return dml_conv2d_forward_fused(run->pool, &s, dml__host_value(run, x), dml__host_value(run, w), 0,
                                        &epilogue, dml__host_value(run, node));
    }
    dml_launch launch =
        dml__conv2d_launch(run, node, "conv2d_forward", dml__conv2d_tiled(s.filters, s.groups),
                           dml__count(run, node) / (size_t)s.filters);
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, w);
    if (bias) launch.buffer[2] = dml__value(run, bias);
    launch.buffer[3] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

static dml_status dml__conv2d_input_gradient(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1];
    const dml_conv2d_shape s = dml__conv2d_shape_of(node, run->rows);
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory)
        return dml_conv2d_backward_input(run->pool, &s, dml__host_gradient(run, node),
                                         dml__host_value(run, w), beta, dml__host_gradient(run, x));
    dml_launch launch =
        dml__conv2d_launch(run, node, "conv2d_backward_input", dml__conv2d_tiled(s.channels, s.groups),
                           dml__count(run, x) / (size_t)s.channels);
    launch.buffer[0] = dml__gradient(run, node);
    launch.buffer[1] = dml__value(run, w);
    launch.buffer[2] = dml__gradient(run, x);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__conv2d_weight_gradient(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1];
    const dml_conv2d_shape s = dml__conv2d_shape_of(node, run->rows);
    const float beta = dml__beta(run, node, 1);
    if (run->device->host_memory)
        return dml_conv2d_backward_weights(run->pool, &s, dml__host_value(run, x),
                                           dml__host_gradient(run, node), beta, dml__host_gradient(run, w));
    dml_launch launch =
        dml__conv2d_launch(run, node, "conv2d_backward_weights", dml__count(run, w) / (size_t)s.filters,
                           dml__conv2d_tiled(s.filters, s.groups));
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = dml__gradient(run, w);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__conv2d_op_backward(const dml__run *run, const dml_node *node)
{
    dml_status status = DML_OK;
    const size_t filters = (size_t)node->shape.dims[2];
    if (dml__wants_gradient(run, node, 0)) status = dml__conv2d_input_gradient(run, node);
    if (status == DML_OK && dml__wants_gradient(run, node, 1))
        status = dml__conv2d_weight_gradient(run, node);
    if (status == DML_OK && node->input[2] && dml__wants_gradient(run, node, 2))
        status = dml__sum_rows_into_gradient(run, node, 2, dml__count(run, node) / filters, filters);
    return status;
}

static void dml__conv2d_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    char dilation[40] = "", groups[24] = "";
    if (o->dilation[0] != 1 || o->dilation[1] != 1)
        snprintf(dilation, sizeof dilation, ", dilation %d x %d", o->dilation[0], o->dilation[1]);
    if (o->groups != 1) snprintf(groups, sizeof groups, ", %d groups", o->groups);
    snprintf(text, bytes, "%d filters, kernel %d x %d, stride %d x %d, padding %d x %d%s%s%s", o->filters,
             o->kernel[0], o->kernel[1], o->stride[0], o->stride[1], o->padding[0], o->padding[1], dilation,
             groups, node->input[2] ? "" : ", no bias");
}

static double dml__conv2d_flops(const dml_node *node)
{
    const double outputs = (double)dml_shape_count(&node->shape);
    const double taps = (double)dml_shape_count(&node->input[1]->shape) / node->shape.dims[2];
    return outputs * (2 * taps + (node->input[2] ? 1 : 0));
}

static dml_scratch dml__conv2d_scratch_of(const dml_node *node, int rows, bool training)
{
    const dml_conv2d_shape shape = dml__conv2d_shape_of(node, rows);
    return dml_conv2d_scratch(&shape, training);
}

DML__LOCAL const dml__op *dml__conv2d_op(void)
{
    static const dml__op op = { "conv2d",
                                dml__conv2d_infer,
                                dml__conv2d_op_forward,
                                dml__conv2d_op_backward,
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1) | DML__TAKES_RELU,
                                NULL,
                                false,
                                false,
                                dml__conv2d_describe,
                                dml__conv2d_flops,
                                dml__conv2d_scratch_of };
    return &op;
}

static dml_initializer dml__conv2d_init(const dml_conv2d_options *options, int channels)
{
    const int64_t pixels = (int64_t)options->kernel[0] * options->kernel[1];
    return dml_init_he(pixels > INT32_MAX / channels ? INT32_MAX : (int)pixels * channels);
}

static void dml__conv2d_defaults(dml_conv2d_options *o, const dml_conv2d_options *options)
{
    memset(o, 0, sizeof *o);
    if (options) *o = *options;
    for (int axis = 0; axis < 2; axis++) {
        if (!o->stride[axis]) o->stride[axis] = 1;
        if (!o->dilation[axis]) o->dilation[axis] = 1;
    }
    if (!o->groups) o->groups = 1;
}

DML_API dml_node *dml_conv2d_with(dml_node *x, dml_node *w, dml_node *bias, const dml_conv2d_options *options)
{
    dml_conv2d_options o;
    dml__conv2d_defaults(&o, options);
    if (w && !o.filters) o.filters = w->shape.dims[0];
    for (int axis = 0; w && axis < 2; axis++)
        if (!o.kernel[axis]) o.kernel[axis] = w->shape.dims[1 + axis];
    o.no_bias = !bias;
    dml_node *const inputs[] = { x, w, bias };
    return dml__node_create(dml__conv2d_op(), bias ? 3 : 2, inputs, &o, sizeof o);
}

DML_API dml_node *dml_conv2d(dml_node *x, const dml_conv2d_options *options)
{
    if (!x) return NULL;
    dml_conv2d_options o;
    dml__conv2d_defaults(&o, options);
    for (int axis = 0; axis < 2; axis++)
        if (!o.kernel[axis]) o.kernel[axis] = 3;
    if (o.filters < 1 || o.kernel[0] < 1 || o.kernel[1] < 1) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "conv2d: %d filters of %d x %d asked for, each must be 1 or more", o.filters, o.kernel[0],
                  o.kernel[1]);
        return NULL;
    }
    const int all = x->shape.ndim == 3 ? x->shape.dims[2] : 1;
    const int channels =
        o.groups > 0 && all >= o.groups ? all / o.groups : all; /* dml__conv2d_infer complains */
    dml_node *last = x->graph->last;
    dml_node *w = dml__layer_parameter(x->graph, dml__conv2d_op(), "weight", dml__conv2d_init(&o, channels),
                                       dml_shape_of(o.filters, o.kernel[0], o.kernel[1], channels));
    dml_node *bias = NULL;
    if (!o.no_bias)
        bias = dml__layer_parameter(x->graph, dml__conv2d_op(), "bias", dml_init_constant(0),
                                    dml_shape_of(o.filters));
    dml_node *layer = o.no_bias || bias ? dml_conv2d_with(x, w, bias, &o) : NULL;
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

#endif
