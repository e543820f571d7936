#ifndef DML_OPS_OP_POOL2D_C
#define DML_OPS_OP_POOL2D_C

#include "ops/op_pool2d.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv_internal.h"
#include "ops/table.h"
#include "kernels/conv2d.h"
#include "kernels/pool2d.h"

#include <stdio.h>
#include <string.h>

static int dml__pool_ndim(const dml_node *node)
{
    return node->op == dml__max_pool1d_op() || node->op == dml__avg_pool1d_op() ? 2 : 3;
}

/* What comes out along an axis; 0: nothing. */
static int dml__pool_size(const dml_node *node, int axis)
{
    const dml_pool2d_options *o = (const dml_pool2d_options *)node->attributes;
    const int in = dml__image_dim(&node->input[0]->shape, 0, axis), stride = o->stride[axis];
    const int kernel = o->kernel[axis], padding = o->padding[axis];
    if (o->same) return (in - 1) / stride + 1;
    const int size = dml_conv2d_output_size(in, kernel, stride, padding);
    const int64_t next = (int64_t)size * stride;
    const bool more = o->ceil_mode && next + kernel < (int64_t)in + 2 * (int64_t)padding + stride;
    return more && next < (int64_t)in + padding && size < INT32_MAX ? size + 1 : size;
}

/* How far windows reach over the image's beginning. */
static int dml__pool_pad_before(const dml_node *node, int axis)
{
    const dml_pool2d_options *o = (const dml_pool2d_options *)node->attributes;
    if (!o->same) return o->padding[axis];
    const int64_t reach =
        (int64_t)(dml__image_dim(&node->shape, 0, axis) - 1) * o->stride[axis] + o->kernel[axis];
    const int64_t missing = reach - dml__image_dim(&node->input[0]->shape, 0, axis);
    return missing > 0 ? (int)(missing / 2) : 0;
}

static dml_status dml__check_pool_ways(const dml_node *node)
{
    const dml_pool2d_options *o = (const dml_pool2d_options *)node->attributes;
    const bool max = node->op == dml__max_pool2d_op() || node->op == dml__max_pool1d_op();
    if (o->same && (o->padding[0] || o->padding[1] || o->ceil_mode || o->count_include_pad))
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "same and padding, ceil_mode or count_include_pad asked for; same says where "
                              "the windows are, and counts what is in the image");
    if (max && o->count_include_pad)
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "count_include_pad asked for: it is about means, and padding never wins");
    return DML_OK;
}

static dml_status dml__pool2d_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    const dml_pool2d_options *options = (const dml_pool2d_options *)node->attributes;
    const int ndim = dml__pool_ndim(node);
    char x_text[DML_SHAPE_TEXT], kernel_text[32];
    dml_status status = dml__check_conv_input(node, ndim, NULL);
    if (status == DML_OK) status = dml__check_pool_ways(node);
    if (status != DML_OK) return status;
    node->batched = true;
    node->shape = x->shape;
    for (int axis = 3 - ndim; axis < 2; axis++) {
        const int kernel = options->kernel[axis], stride = options->stride[axis],
                  padding = options->padding[axis];
        if (kernel < 1 || stride < 1 || padding < 0 || padding >= kernel)
            return dml__node_fail(
                node, DML_ERROR_ARGUMENT,
                "kernel %d, stride %d and padding %d asked for; a kernel and a stride are 1 or more, "
                "a padding is smaller than its kernel",
                kernel, stride, padding);
        const int size = dml__pool_size(node, axis);
        node->shape.dims[dml__image_axis(ndim, axis)] = size;
        if (size < 1)
            return dml__node_fail(node, DML_ERROR_SHAPE, "a window of %s doesn't fit an input of %s",
                                  dml__conv_pair(ndim, options->kernel, kernel_text),
                                  dml_shape_format(&x->shape, x_text));
    }
    return DML_OK;
}

static void dml__pool2d_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml_pool2d_options *o = (const dml_pool2d_options *)node->attributes;
    const int ndim = node->shape.ndim;
    char kernel[32], stride[32], padding[32];
    snprintf(text, bytes, "kernel %s, stride %s, padding %s%s%s", dml__conv_pair(ndim, o->kernel, kernel),
             dml__conv_pair(ndim, o->stride, stride),
             o->same ? "same" : dml__conv_pair(ndim, o->padding, padding), o->ceil_mode ? ", rounded up" : "",
             o->count_include_pad ? ", padding counts" : "");
}

static double dml__avg_pool2d_flops(const dml_node *node)
{
    const dml_pool2d_options *o = (const dml_pool2d_options *)node->attributes;
    return (double)dml_shape_count(&node->shape) * o->kernel[0] * o->kernel[1];
}

static dml_pool2d_shape dml__pool2d_run_shape(const dml__run *run, const dml_node *node)
{
    const dml_shape *x = &node->input[0]->shape, *y = &node->shape;
    const dml_pool2d_options *o = (const dml_pool2d_options *)node->attributes;
    const dml_pool2d_shape shape = { run->rows,
                                     dml__image_dim(x, 0, 0),
                                     dml__image_dim(x, 0, 1),
                                     dml__image_dim(x, 0, 2),
                                     o->kernel[0],
                                     o->kernel[1],
                                     o->stride[0],
                                     o->stride[1],
                                     dml__pool_pad_before(node, 0),
                                     dml__pool_pad_before(node, 1),
                                     dml__image_dim(y, 0, 0),
                                     dml__image_dim(y, 0, 1),
                                     o->count_include_pad };
    return shape;
}

static dml_launch dml__pool2d_launch(const dml__run *run, const dml_node *node, const char *kernel,
                                     size_t size)
{
    const dml_pool2d_shape s = dml__pool2d_run_shape(run, node);
    const int32_t integers[] = { s.batch,    s.height,   s.width,    s.channels, s.count_padding,
                                 s.kernel_h, s.kernel_w, s.stride_h, s.stride_w, s.pad_h,
                                 s.pad_w,    s.out_h,    s.out_w };
    dml_launch launch = dml__launch(kernel, size, 1);
    memcpy(launch.integer, integers, sizeof integers);
    return launch;
}

static size_t dml__max_pool2d_saved_bytes(const dml_node *node, int rows)
{
    return dml_shape_count(&node->shape) * (size_t)rows * sizeof(int32_t);
}

static dml_status dml__max_pool2d_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0];
    if (run->device->host_memory) {
        const dml_pool2d_shape shape = dml__pool2d_run_shape(run, node);
        return (dml__begins_with_relu(run, node) ? dml_max_pool2d_of_relu_forward : dml_max_pool2d_forward)(
            run->pool, &shape, dml__host_value(run, x), dml__host_value(run, node),
            (int32_t *)dml__host(dml__saved(run, node)));
    }
    dml_launch launch = dml__pool2d_launch(run, node, "max_pool2d_forward", dml__count(run, node));
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, node);
    launch.buffer[2] = dml__saved(run, node);
    launch.integer[13] = dml__begins_with_relu(run, node);
    return dml__submit(run->device, &launch);
}

static dml_status dml__max_pool2d_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0];
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory) {
        const dml_pool2d_shape shape = dml__pool2d_run_shape(run, node);
        return dml_max_pool2d_backward(run->pool, &shape, (const int32_t *)dml__host(dml__saved(run, node)),
                                       dml__host_gradient(run, node), beta, dml__host_gradient(run, x));
    }
    const dml_pool2d_options *o = (const dml_pool2d_options *)node->attributes;
    const bool apart = o->stride[0] >= o->kernel[0] && o->stride[1] >= o->kernel[1];
    dml_launch launch =
        dml__pool2d_launch(run, node, apart ? "max_pool2d_backward_apart" : "max_pool2d_backward",
                           dml__count(run, apart ? node : x));
    launch.buffer[0] = dml__saved(run, node);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = dml__gradient(run, x);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

DML__LOCAL const dml__op *dml__max_pool2d_op(void)
{
    static const dml__op op = { "max_pool2d",
                                dml__pool2d_infer,
                                dml__max_pool2d_op_forward,
                                dml__max_pool2d_op_backward,
                                DML__GATES_RELU,
                                dml__max_pool2d_saved_bytes,
                                false,
                                false,
                                dml__pool2d_describe,
                                dml__no_flops,
                                NULL };
    return &op;
}

DML__LOCAL const dml__op *dml__max_pool1d_op(void)
{
    static const dml__op op = { "max_pool1d",
                                dml__pool2d_infer,
                                dml__max_pool2d_op_forward,
                                dml__max_pool2d_op_backward,
                                DML__GATES_RELU,
                                dml__max_pool2d_saved_bytes,
                                false,
                                false,
                                dml__pool2d_describe,
                                dml__no_flops,
                                NULL };
    return &op;
}

static dml_status dml__avg_pool2d_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0];
    if (run->device->host_memory) {
        const dml_pool2d_shape shape = dml__pool2d_run_shape(run, node);
        return dml_avg_pool2d_forward(run->pool, &shape, dml__host_value(run, x), dml__host_value(run, node));
    }
    dml_launch launch = dml__pool2d_launch(run, node, "avg_pool2d_forward", dml__count(run, node));
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

static dml_status dml__avg_pool2d_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0];
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory) {
        const dml_pool2d_shape shape = dml__pool2d_run_shape(run, node);
        return dml_avg_pool2d_backward(run->pool, &shape, dml__host_gradient(run, node), beta,
                                       dml__host_gradient(run, x));
    }
    dml_launch launch = dml__pool2d_launch(run, node, "avg_pool2d_backward", dml__count(run, x));
    launch.buffer[0] = dml__gradient(run, node);
    launch.buffer[1] = dml__gradient(run, x);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

DML__LOCAL const dml__op *dml__avg_pool2d_op(void)
{
    static const dml__op op = { "avg_pool2d",
                                dml__pool2d_infer,
                                dml__avg_pool2d_op_forward,
                                dml__avg_pool2d_op_backward,
                                0,
                                NULL,
                                false,
                                false,
                                dml__pool2d_describe,
                                dml__avg_pool2d_flops,
                                NULL };
    return &op;
}

DML__LOCAL const dml__op *dml__avg_pool1d_op(void)
{
    static const dml__op op = { "avg_pool1d",
                                dml__pool2d_infer,
                                dml__avg_pool2d_op_forward,
                                dml__avg_pool2d_op_backward,
                                0,
                                NULL,
                                false,
                                false,
                                dml__pool2d_describe,
                                dml__avg_pool2d_flops,
                                NULL };
    return &op;
}

static dml_node *dml__pool2d_create(const dml__op *op, dml_node *x, const dml_pool2d_options *options)
{
    dml_pool2d_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    const bool lines = op == dml__max_pool1d_op() || op == dml__avg_pool1d_op();
    dml__default_pair(lines, o.kernel, 2);
    if (!o.stride[0] && !o.stride[1]) memcpy(o.stride, o.kernel, sizeof o.stride);
    if (lines && !o.stride[1]) o.stride[1] = o.kernel[1];
    return dml__node_create(op, 1, &x, &o, sizeof o);
}

DML_API dml_node *dml_max_pool2d(dml_node *x, const dml_pool2d_options *options)
{
    return dml__pool2d_create(dml__max_pool2d_op(), x, options);
}

DML_API dml_node *dml_avg_pool2d(dml_node *x, const dml_pool2d_options *options)
{
    return dml__pool2d_create(dml__avg_pool2d_op(), x, options);
}

/* One window over all of x, in a row. */
static dml_node *dml__pool_globally(const dml__op *op, dml_node *x)
{
    dml_pool2d_options whole;
    memset(&whole, 0, sizeof whole);
    whole.kernel[0] = whole.kernel[1] = 1;
    for (int axis = 0; axis < 2 && x && (x->shape.ndim == 3 || x->shape.ndim == 2); axis++)
        whole.kernel[axis] = dml__image_dim(&x->shape, 0, axis);
    return dml_flatten(dml__pool2d_create(op, x, &whole));
}

DML_API dml_node *dml_global_avg_pool2d(dml_node *x)
{
    return dml__pool_globally(dml__avg_pool2d_op(), x);
}

DML_API dml_node *dml_global_max_pool2d(dml_node *x)
{
    return dml__pool_globally(dml__max_pool2d_op(), x);
}

DML_API dml_node *dml_global_avg_pool1d(dml_node *x)
{
    return dml__pool_globally(dml__avg_pool1d_op(), x);
}

DML_API dml_node *dml_global_max_pool1d(dml_node *x)
{
    return dml__pool_globally(dml__max_pool1d_op(), x);
}

static dml_node *dml__pool1d_create(const dml__op *op, dml_node *x, const dml_pool1d_options *options)
{
    dml_pool2d_options o;
    memset(&o, 0, sizeof o);
    o.kernel[0] = o.stride[0] = 1;
    if (options) {
        o.kernel[1] = options->kernel;
        o.stride[1] = options->stride;
        o.padding[1] = options->padding;
        o.ceil_mode = options->ceil_mode;
        o.count_include_pad = options->count_include_pad;
        o.same = options->same;
    }
    return dml__pool2d_create(op, x, &o);
}

DML_API dml_node *dml_max_pool1d(dml_node *x, const dml_pool1d_options *options)
{
    return dml__pool1d_create(dml__max_pool1d_op(), x, options);
}

DML_API dml_node *dml_avg_pool1d(dml_node *x, const dml_pool1d_options *options)
{
    return dml__pool1d_create(dml__avg_pool1d_op(), x, options);
}

#endif
