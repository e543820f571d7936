#ifndef DML_OPS_OP_CONV2D_C
#define DML_OPS_OP_CONV2D_C

#include "ops/op_conv2d.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_conv_internal.h"
#include "ops/table.h"
#include "kernels/conv2d.h"
#include "kernels/conv2d_internal.h"
#include "kernels/epilogue.h"

#include <stdio.h>
#include <string.h>

/* ---- for all layers of this kind ---- */

DML__LOCAL dml_status dml__check_conv_input(const dml_node *node, int ndim, const char *weights)
{
    const dml_node *x = node->input[0];
    char text[DML_SHAPE_TEXT];
    if (x->dtype != DML_F32 || !x->batched || x->shape.ndim != ndim)
        return dml__node_fail(
            node, DML_ERROR_SHAPE, "its input is %s %s%s; it takes f32 %s", dml_dtype_name(x->dtype),
            dml_shape_format(&x->shape, text), x->batched ? "" : ", the same for all samples",
            ndim == 3 ? "images of height x width x channels" : "lines of length x channels");
    if (!weights || node->input[1]->shape.ndim == ndim + 1) return DML_OK;
    return dml__node_fail(node, DML_ERROR_SHAPE, "its weights are %s; they need %d dimensions: %s",
                          dml_shape_format(&node->input[1]->shape, text), ndim + 1, weights);
}

DML__LOCAL dml_status dml__check_conv_parameters(const dml_node *node, int first, const int kernel[2],
                                                 int last, int units)
{
    const dml_node *w = node->input[1], *bias = node->inputs > 2 ? node->input[2] : NULL;
    const int ndim = node->input[0]->shape.ndim + 1;
    char text[DML_SHAPE_TEXT];
    if (w->dtype != DML_F32 || w->batched || w->shape.dims[0] != first ||
        dml__image_dim(&w->shape, 1, 0) != kernel[0] || dml__image_dim(&w->shape, 1, 1) != kernel[1] ||
        dml__image_dim(&w->shape, 1, 2) != last) {
        char size[32] = "";
        if (ndim == 4) snprintf(size, sizeof size, "%d x ", kernel[0]);
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its weights are %s%s; for %d filters of %s%d over %d channels they must be %d x %s%d x %d",
            dml_shape_format(&w->shape, text), w->batched ? " a sample" : "", units, size, kernel[1],
            dml__image_dim(&node->input[0]->shape, 0, 2), first, size, kernel[1], last);
    }
    if (bias &&
        (bias->dtype != DML_F32 || bias->batched || bias->shape.ndim != 1 || bias->shape.dims[0] != units))
        return dml__node_fail(node, DML_ERROR_SHAPE, "its bias is %s%s, it must be %d",
                              dml_shape_format(&bias->shape, text), bias->batched ? " a sample" : "", units);
    return DML_OK;
}

DML__LOCAL dml_status dml__check_conv_steps(const dml_node *node, const int stride[2], const int padding[2],
                                            const int dilation[2])
{
    for (int axis = 0; axis < 2; axis++) {
        if (stride[axis] < 1 || padding[axis] < 0)
            return dml__node_fail(
                node, DML_ERROR_ARGUMENT,
                "stride %d and padding %d asked for; a stride is 1 or more, a padding 0 or more",
                stride[axis], padding[axis]);
        if (dilation[axis] < 1)
            return dml__node_fail(node, DML_ERROR_ARGUMENT, "dilation %d asked for; it is 1 or more",
                                  dilation[axis]);
    }
    return DML_OK;
}

DML__LOCAL dml_status dml__check_conv_reach(const dml_node *node, const dml_conv2d_shape *shape)
{
    char text[DML_SHAPE_TEXT], stride[32], padding[32];
    const int ndim = node->shape.ndim, strides[2] = { shape->stride_h, shape->stride_w };
    const int pads[2] = { shape->pad_h, shape->pad_w };
    double count = 1;
    for (int i = 0; i < ndim; i++) count *= node->shape.dims[i];
    if (count > INT32_MAX || dml__conv2d_takes(shape)) return DML_OK;
    return dml__node_fail(
        node, DML_ERROR_SHAPE,
        "with padding %s and stride %s an input of %s is more than there are addresses for; "
        "make one of them smaller",
        dml__conv_pair(ndim, pads, padding), dml__conv_pair(ndim, strides, stride),
        dml_shape_format(&node->input[0]->shape, text));
}

DML__LOCAL size_t dml__conv_tiled(int size, int groups)
{
    const size_t of_group = (size_t)(size / groups);
    return groups == 1 ? of_group : (size_t)groups * ((of_group + 63) / 64 * 64);
}

DML__LOCAL dml_launch dml__conv_launch(const dml_conv2d_shape *s, const char *kernel, size_t size_x,
                                       size_t size_y)
{
    const int32_t integers[] = { s->batch,    s->height,     s->width,      s->channels,
                                 s->filters,  s->kernel_h,   s->kernel_w,   s->stride_h,
                                 s->stride_w, s->pad_h,      s->pad_w,      s->out_h,
                                 s->out_w,    s->dilation_h, s->dilation_w, s->groups };
    dml_launch launch = dml__launch(kernel, size_x, size_y);
    memcpy(launch.integer, integers, sizeof integers);
    return launch;
}

DML__LOCAL bool dml__conv_parameters(dml_graph *graph, const dml__op *op, dml_shape weights, double fan_in,
                                     int units, bool no_bias, dml_node *parameter[2])
{
    const int fan = fan_in > INT32_MAX ? INT32_MAX : fan_in > 1 ? (int)fan_in : 1;
    parameter[0] = dml__layer_parameter(graph, op, "weight", dml_init_he(fan), weights);
    parameter[1] = NULL;
    if (!no_bias)
        parameter[1] = dml__layer_parameter(graph, op, "bias", dml_init_constant(0), dml_shape_of(units));
    return parameter[0] && (no_bias || parameter[1]);
}

/* ---- conv2d and conv1d ---- */

static int dml__conv_pads(const dml_conv2d_options *o, int axis)
{
    const int *sides = o->padding_sides;
    const bool by_side = sides[0] || sides[1] || sides[2] || sides[3];
    return by_side ? -1 : o->padding[axis];
}

/* Zeros on both sides, where that isn't "same". */
static int64_t dml__conv_padding(const dml_conv2d_options *o, int axis)
{
    const int both = dml__conv_pads(o, axis);
    if (both >= 0) return 2 * (int64_t)both;
    return (int64_t)o->padding_sides[2 * axis] + o->padding_sides[2 * axis + 1];
}

DML__LOCAL int dml__conv_pad_before(const dml_node *node, int axis)
{
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    const int both = dml__conv_pads(o, axis);
    if (!o->same) return both >= 0 ? both : o->padding_sides[2 * axis];
    const int64_t extent = dml_conv2d_extent(o->kernel[axis], o->dilation[axis]);
    const int64_t reach = (int64_t)(dml__image_dim(&node->shape, 0, axis) - 1) * o->stride[axis] + extent;
    const int64_t missing = reach - dml__image_dim(&node->input[0]->shape, 0, axis);
    return missing > 0 ? (int)(missing / 2) : 0;
}

DML__LOCAL const char *dml__conv_pair(int ndim, const int size[2], char text[32])
{
    if (ndim == 3)
        snprintf(text, 32, "%d x %d", size[0], size[1]);
    else
        snprintf(text, 32, "%d", size[1]);
    return text;
}

static const char *dml__conv_padding_words(const dml_conv2d_options *o, int ndim, char text[64])
{
    const int *sides = o->padding_sides;
    char pair[32];
    if (dml__conv_pads(o, 0) < 0 && ndim == 3)
        snprintf(text, 64, "%d + %d x %d + %d", sides[0], sides[1], sides[2], sides[3]);
    else if (dml__conv_pads(o, 0) < 0)
        snprintf(text, 64, "%d + %d", sides[2], sides[3]);
    else
        snprintf(text, 64, "%s", o->same ? "same" : dml__conv_pair(ndim, o->padding, pair));
    return text;
}

static dml_status dml__check_conv_padding(const dml_node *node)
{
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    const int *sides = o->padding_sides;
    for (int side = 0; side < 4; side++)
        if (sides[side] < 0)
            return dml__node_fail(node, DML_ERROR_ARGUMENT, "padding %d asked for on a side; it is 0 or more",
                                  sides[side]);
    const bool by_axis = o->padding[0] || o->padding[1], by_side = dml__conv_pads(o, 0) < 0;
    if ((int)by_axis + (int)by_side + (int)o->same > 1)
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "padding asked for in more than one way; it is one of padding, padding_sides "
                              "and same");
    return DML_OK;
}

/* What comes out along an axis; 0: nothing. */
static int dml__conv_size(const dml_node *node, int axis)
{
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    const int in = dml__image_dim(&node->input[0]->shape, 0, axis), stride = o->stride[axis];
    const int extent = dml_conv2d_extent(o->kernel[axis], o->dilation[axis]);
    if (extent < 1) return 0;
    if (o->same) return (in - 1) / stride + 1;
    const int64_t room = in + dml__conv_padding(o, axis) - extent;
    return room < 0 || room / stride >= INT32_MAX ? 0 : (int)(room / stride + 1);
}

static dml_conv2d_shape dml__conv2d_shape_of(const dml_node *node, int rows)
{
    const dml_shape *x = &node->input[0]->shape, *y = &node->shape;
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    const dml_conv2d_shape shape = { rows,
                                     dml__image_dim(x, 0, 0),
                                     dml__image_dim(x, 0, 1),
                                     dml__image_dim(x, 0, 2),
                                     o->filters,
                                     o->kernel[0],
                                     o->kernel[1],
                                     o->stride[0],
                                     o->stride[1],
                                     dml__conv_pad_before(node, 0),
                                     dml__conv_pad_before(node, 1),
                                     o->dilation[0],
                                     o->dilation[1],
                                     o->groups,
                                     dml__image_dim(y, 0, 0),
                                     dml__image_dim(y, 0, 1) };
    return shape;
}

static dml_status dml__conv2d_infer(dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1];
    const dml_conv2d_options *options = (const dml_conv2d_options *)node->attributes;
    const int ndim = node->op == dml__conv1d_op() ? 2 : 3;
    char x_text[DML_SHAPE_TEXT], kernel[32], dilation[32], padding[64];
    dml_status status =
        dml__check_conv_input(node, ndim,
                              ndim == 2 ? "filters x kernel x channels / groups"
                                        : "filters x kernel height x kernel width x channels / groups");
    if (status != DML_OK) return status;
    const int channels = x->shape.dims[ndim - 1];
    if (options->groups < 1 || channels % options->groups || options->filters % options->groups)
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "%d groups asked for, of %d channels and %d filters: groups must divide both",
                              options->groups, channels, options->filters);
    status = dml__check_conv_parameters(node, options->filters, options->kernel, channels / options->groups,
                                        options->filters);
    if (status == DML_OK)
        status = dml__check_conv_steps(node, options->stride, options->padding, options->dilation);
    if (status == DML_OK) status = dml__check_conv_padding(node);
    if (status != DML_OK) return status;
    node->batched = true;
    node->shape.ndim = ndim;
    node->shape.dims[ndim - 1] = w->shape.dims[0];
    for (int axis = 3 - ndim; axis < 2; axis++) {
        const int size = dml__conv_size(node, axis);
        node->shape.dims[dml__image_axis(ndim, axis)] = size;
        if (size < 1)
            return dml__node_fail(
                node, DML_ERROR_SHAPE,
                "a kernel of %s doesn't fit an input of %s (%s) with padding %s and dilation %s",
                dml__conv_pair(ndim, options->kernel, kernel), dml_shape_format(&x->shape, x_text),
                ndim == 3 ? "height x width x channels" : "length x channels",
                dml__conv_padding_words(options, ndim, padding),
                dml__conv_pair(ndim, options->dilation, dilation));
    }
    const dml_conv2d_shape one = dml__conv2d_shape_of(node, 1);
    return dml__check_conv_reach(node, &one);
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
    dml_launch launch = dml__conv_launch(&s, "conv2d_forward", dml__conv_tiled(s.filters, s.groups),
                                         dml__count(run, node) / (size_t)s.filters);
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, w);
    if (bias) launch.buffer[2] = dml__value(run, bias);
    launch.buffer[3] = dml__value(run, node);
    launch.real[1] = dml__ends_in_relu(run, node) ? 1.0f : 0.0f;
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
    dml_launch launch = dml__conv_launch(&s, "conv2d_backward_input", dml__conv_tiled(s.channels, s.groups),
                                         dml__count(run, x) / (size_t)s.channels);
    launch.buffer[0] = dml__gradient(run, node);
    launch.buffer[1] = dml__value(run, w);
    launch.buffer[2] = dml__gradient(run, x);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

/* Into how many shares of its pixels a weights' gradient is cut, so that layers with few weights are enough
   groups: by its size alone. None has less than 256 of them, and together they are not more than 256 tiles.
 */
static int dml__conv_shares(const dml_conv2d_shape *s)
{
    const double pixels = (double)s->batch * s->out_h * s->out_w;
    const size_t columns = (size_t)s->kernel_h * (size_t)s->kernel_w * (size_t)(s->channels / s->groups);
    const size_t rows = (size_t)s->groups * (((size_t)(s->filters / s->groups) + 63) / 64);
    const double tiles = (double)((columns + 63) / 64) * (double)rows;
    const double most = 256 / tiles < pixels / 256 ? 256 / tiles : pixels / 256;
    return most > 1 ? (int)most : 1;
}

/* Of a device with memory of its own: gradients of the weights for each share, and then of the bias. */
static size_t dml__conv2d_saved_bytes(const dml_node *node, int rows)
{
    const dml_conv2d_shape s = dml__conv2d_shape_of(node, rows);
    const int shares = dml__conv_shares(&s);
    if (dml__node_context(node)->device.host_memory || shares == 1) return 0;
    return (size_t)shares * (dml_shape_count(&node->input[1]->shape) + (size_t)s.filters) * sizeof(float);
}

/* On a device with memory of its own, and with the bias' gradient, if that is wanted. */
static dml_status dml__conv_weights_on_device(const dml__run *run, const dml_node *node,
                                              const dml_conv2d_shape *s, dml_ref x, dml_ref dy, bool bias)
{
    const int shares = node->op->saved_bytes ? dml__conv_shares(s) : 1;
    const size_t count = dml__count(run, node->input[1]);
    const size_t columns = count / (size_t)s->filters + (bias ? 1 : 0);
    dml_launch launch = dml__conv_launch(
        s, "conv2d_backward_weights", shares == 1 ? columns : (size_t)shares * ((columns + 127) / 128 * 128),
        dml__conv_tiled(s->filters, s->groups));
    const dml_ref none = { NULL, 0 };
    dml_ref weights = shares == 1 ? dml__gradient(run, node->input[1]) : dml__saved(run, node), sums = none;
    if (bias && shares == 1) sums = dml__gradient(run, node->input[2]);
    if (bias && shares > 1) sums = weights, sums.offset += (size_t)shares * count * sizeof(float);
    launch.buffer[0] = x;
    launch.buffer[1] = dy;
    launch.buffer[2] = weights;
    launch.buffer[3] = sums;
    launch.real[0] = shares == 1 ? dml__beta(run, node, 1) : 0.0f;
    launch.real[1] = (float)shares;
    launch.real[2] = bias && shares == 1 ? dml__beta(run, node, 2) : 0.0f;
    dml_status status = dml__submit(run->device, &launch);
    if (status == DML_OK && shares > 1)
        status = dml__launch_sum(run, weights, 1, (size_t)shares, count, dml__beta(run, node, 1),
                                 dml__gradient(run, node->input[1]));
    if (status == DML_OK && shares > 1 && bias)
        status = dml__launch_sum(run, sums, 1, (size_t)shares, (size_t)s->filters, dml__beta(run, node, 2),
                                 dml__gradient(run, node->input[2]));
    return status;
}

DML__LOCAL dml_status dml__conv_weight_gradient(const dml__run *run, const dml_node *node,
                                                const dml_conv2d_shape *s, dml_ref x, dml_ref dy)
{
    if (run->device->host_memory)
        return dml_conv2d_backward_weights(run->pool, s, (const float *)dml__host(x),
                                           (const float *)dml__host(dy), dml__beta(run, node, 1),
                                           dml__host_gradient(run, node->input[1]));
    return dml__conv_weights_on_device(run, node, s, x, dy, false);
}

static dml_status dml__conv2d_op_backward(const dml__run *run, const dml_node *node)
{
    dml_status status = DML_OK;
    const dml_conv2d_shape s = dml__conv2d_shape_of(node, run->rows);
    const dml_ref x = dml__value(run, node->input[0]);
    const bool weights = dml__wants_gradient(run, node, 1);
    const bool bias = node->input[2] && dml__wants_gradient(run, node, 2);
    const bool together = weights && bias && !run->device->host_memory;
    if (dml__wants_gradient(run, node, 0)) status = dml__conv2d_input_gradient(run, node);
    if (status == DML_OK && together)
        return dml__conv_weights_on_device(run, node, &s, x, dml__gradient(run, node), true);
    if (status == DML_OK && weights)
        status = dml__conv_weight_gradient(run, node, &s, x, dml__gradient(run, node));
    if (status == DML_OK && bias)
        status = dml__sum_rows_into_gradient(run, node, 2, dml__count(run, node) / (size_t)s.filters,
                                             (size_t)s.filters, dml__no_parts);
    return status;
}

static void dml__conv2d_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml_conv2d_options *o = (const dml_conv2d_options *)node->attributes;
    const int ndim = node->shape.ndim;
    char dilation[48] = "", groups[24] = "", padding[64], kernel[32], stride[32], pair[32];
    if (o->dilation[0] != 1 || o->dilation[1] != 1)
        snprintf(dilation, sizeof dilation, ", dilation %s", dml__conv_pair(ndim, o->dilation, pair));
    if (o->groups != 1) snprintf(groups, sizeof groups, ", %d groups", o->groups);
    snprintf(text, bytes, "%d filters, kernel %s, stride %s, padding %s%s%s%s", o->filters,
             dml__conv_pair(ndim, o->kernel, kernel), dml__conv_pair(ndim, o->stride, stride),
             dml__conv_padding_words(o, ndim, padding), dilation, groups, node->input[2] ? "" : ", no bias");
}

static double dml__conv2d_flops(const dml_node *node)
{
    const double outputs = (double)dml_shape_count(&node->shape);
    const double taps = (double)dml_shape_count(&node->input[1]->shape) / node->input[1]->shape.dims[0];
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
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1) | DML__TAKES_RELU_ANYWHERE |
                                    DML__WORKS_IN_BACKWARD,
                                dml__conv2d_saved_bytes,
                                false,
                                false,
                                dml__conv2d_describe,
                                dml__conv2d_flops,
                                dml__conv2d_scratch_of };
    return &op;
}

DML__LOCAL const dml__op *dml__conv1d_op(void)
{
    static const dml__op op = { "conv1d",
                                dml__conv2d_infer,
                                dml__conv2d_op_forward,
                                dml__conv2d_op_backward,
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1) | DML__TAKES_RELU_ANYWHERE |
                                    DML__WORKS_IN_BACKWARD,
                                dml__conv2d_saved_bytes,
                                false,
                                false,
                                dml__conv2d_describe,
                                dml__conv2d_flops,
                                dml__conv2d_scratch_of };
    return &op;
}

static void dml__conv2d_defaults(const dml__op *op, dml_conv2d_options *o, const dml_conv2d_options *options)
{
    const bool lines = op == dml__conv1d_op();
    memset(o, 0, sizeof *o);
    if (options) *o = *options;
    dml__default_pair(lines, o->stride, 1);
    dml__default_pair(lines, o->dilation, 1);
    if (!o->groups) o->groups = 1;
}

DML__LOCAL dml_node *dml__conv_with(const dml__op *op, dml_node *x, dml_node *w, dml_node *bias,
                                    const dml_conv2d_options *options)
{
    dml_conv2d_options o;
    dml__conv2d_defaults(op, &o, options);
    const int ndim = op == dml__conv1d_op() ? 3 : 4;
    if (w && !o.filters) o.filters = w->shape.dims[0];
    for (int axis = 0; w && axis < 2; axis++)
        if (!o.kernel[axis]) o.kernel[axis] = w->shape.dims[1 + axis - (ndim == 3)];
    o.no_bias = !bias;
    dml_node *const inputs[] = { x, w, bias };
    return dml__node_create(op, bias ? 3 : 2, inputs, &o, sizeof o);
}

DML__LOCAL dml_node *dml__conv_create(const dml__op *op, dml_node *x, const dml_conv2d_options *options)
{
    if (!x) return NULL;
    dml_conv2d_options o;
    dml__conv2d_defaults(op, &o, options);
    const int ndim = op == dml__conv1d_op() ? 2 : 3;
    dml__default_pair(ndim == 2, o.kernel, 3);
    if (o.filters < 1 || o.kernel[0] < 1 || o.kernel[1] < 1) {
        char kernel[32];
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "%s: %d filters of %s asked for, each must be 1 or more%s", op->name, o.filters,
                  dml__conv_pair(ndim, o.kernel, kernel),
                  o.filters == 0 ? "; .filters has no default"
                  : ndim == 3 && (o.kernel[0] == 0 || o.kernel[1] == 0)
                      ? "; .kernel is height and width, both or neither"
                      : "");
        return NULL;
    }
    const int all = x->shape.ndim == ndim ? x->shape.dims[ndim - 1] : 1;
    const int channels =
        o.groups > 0 && all >= o.groups ? all / o.groups : all; /* dml__conv2d_infer complains */
    dml_node *last = x->graph->last, *parameter[2], *layer = NULL;
    const dml_shape weights = ndim == 3 ? dml_shape_of(o.filters, o.kernel[0], o.kernel[1], channels)
                                        : dml_shape_of(o.filters, o.kernel[1], channels);
    if (dml__conv_parameters(x->graph, op, weights, (double)o.kernel[0] * o.kernel[1] * channels, o.filters,
                             o.no_bias, parameter))
        layer = dml__conv_with(op, x, parameter[0], parameter[1], &o);
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

DML_API dml_node *dml_conv2d_with(dml_node *x, dml_node *w, dml_node *bias, const dml_conv2d_options *options)
{
    return dml__conv_with(dml__conv2d_op(), x, w, bias, options);
}

DML_API dml_node *dml_conv2d(dml_node *x, const dml_conv2d_options *options)
{
    return dml__conv_create(dml__conv2d_op(), x, options);
}

#endif
