#ifndef DML_OPS_OP_LOCAL2D_C
#define DML_OPS_OP_LOCAL2D_C

#include "ops/op_local2d.h"

#include "graph/op.h"
#include "kernels/conv2d.h"
#include "kernels/elementwise.h"
#include "kernels/local2d.h"
#include "ops/op_conv_internal.h"
#include "ops/table.h"

#include <stdio.h>
#include <string.h>

/* Of options with their defaults set; false where there is none. */
static bool dml__local2d_output(const dml_shape *x, const dml_local2d_options *o, int out[2])
{
    for (int axis = 0; axis < 2; axis++)
        out[axis] = dml_conv2d_output_size(x->dims[axis], o->kernel[axis], o->stride[axis], 0);
    return out[0] && out[1];
}

static dml_status dml__local2d_check_sizes(const dml_node *node)
{
    const dml_local2d_options *o = (const dml_local2d_options *)node->attributes;
    for (int axis = 0; axis < 2; axis++)
        if (o->kernel[axis] < 1 || o->stride[axis] < 1 || o->filters < 1)
            return dml__node_fail(node, DML_ERROR_ARGUMENT,
                                  "%d filters, kernel %d and stride %d asked for, each must be 1 or more",
                                  o->filters, o->kernel[axis], o->stride[axis]);
    return DML_OK;
}

static dml_status dml__local2d_infer(dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->inputs > 2 ? node->input[2] : NULL;
    const dml_local2d_options *o = (const dml_local2d_options *)node->attributes;
    char text[DML_SHAPE_TEXT];
    int out[2];
    dml_status status =
        dml__check_conv_input(node, 3, "output height x output width x filters x weights of one");
    if (status == DML_OK) status = dml__local2d_check_sizes(node);
    if (status != DML_OK) return status;
    if (!dml__local2d_output(&x->shape, o, out))
        return dml__node_fail(node, DML_ERROR_SHAPE, "a kernel of %d x %d doesn't fit an input of %s",
                              o->kernel[0], o->kernel[1], dml_shape_format(&x->shape, text));
    const int taps = o->kernel[0] * o->kernel[1] * x->shape.dims[2]; /* no more than an image has */
    const int want[] = { out[0], out[1], o->filters, taps };
    if (w->dtype != DML_F32 || w->batched || memcmp(w->shape.dims, want, sizeof want) != 0)
        return dml__node_fail(node, DML_ERROR_SHAPE, "its weights are %s%s, they must be %d x %d x %d x %d",
                              dml_shape_format(&w->shape, text), w->batched ? " a sample" : "", out[0],
                              out[1], o->filters, taps);
    if (bias && (bias->dtype != DML_F32 || bias->batched || bias->shape.ndim != 3 ||
                 memcmp(bias->shape.dims, want, 3 * sizeof want[0]) != 0))
        return dml__node_fail(node, DML_ERROR_SHAPE, "its bias is %s%s, it must be %d x %d x %d",
                              dml_shape_format(&bias->shape, text), bias->batched ? " a sample" : "", out[0],
                              out[1], o->filters);
    node->batched = true;
    node->shape = dml_shape_of(out[0], out[1], o->filters);
    return DML_OK;
}

static dml_local2d_shape dml__local2d_shape_of(const dml_node *node, int rows)
{
    const int *x = node->input[0]->shape.dims;
    const dml_local2d_options *o = (const dml_local2d_options *)node->attributes;
    const dml_local2d_shape shape = { rows,         x[0],         x[1],         x[2],        o->filters,
                                      o->kernel[0], o->kernel[1], o->stride[0], o->stride[1] };
    return shape;
}

static dml_launch dml__local2d_launch(const dml__run *run, const dml_node *node, const char *kernel,
                                      size_t size)
{
    const dml_local2d_shape s = dml__local2d_shape_of(node, run->rows);
    const dml_conv2d_shape as = { s.batch,
                                  s.height,
                                  s.width,
                                  s.channels,
                                  s.filters,
                                  s.kernel_h,
                                  s.kernel_w,
                                  s.stride_h,
                                  s.stride_w,
                                  0,
                                  0,
                                  1,
                                  1,
                                  1,
                                  node->shape.dims[0],
                                  node->shape.dims[1] };
    return dml__conv_launch(&as, kernel, size, 1);
}

static dml_status dml__local2d_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1], *bias = node->inputs > 2 ? node->input[2] : NULL;
    const dml_local2d_shape s = dml__local2d_shape_of(node, run->rows);
    const size_t sample = dml_shape_count(&node->shape);
    dml_status status;
    if (run->device->host_memory) {
        status = dml_local2d_forward(run->pool, &s, dml__host_value(run, x), dml__host_value(run, w),
                                     dml__host_value(run, node));
        if (status == DML_OK && bias)
            dml_bias_add(run->pool, (size_t)run->rows, sample, dml__host_value(run, bias),
                         dml__host_value(run, node));
        return status;
    }
    dml_launch launch = dml__local2d_launch(run, node, "local2d_forward", dml__count(run, node));
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__value(run, w);
    launch.buffer[2] = dml__value(run, node);
    status = dml__submit(run->device, &launch);
    if (status != DML_OK || !bias) return status;
    launch = dml__launch("bias_add", dml__count(run, node), 1);
    launch.buffer[0] = dml__value(run, bias);
    launch.buffer[1] = dml__value(run, node);
    launch.integer[0] = (int32_t)run->rows;
    launch.integer[1] = (int32_t)sample;
    return dml__submit(run->device, &launch);
}

static dml_status dml__local2d_input_gradient(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1];
    const dml_local2d_shape s = dml__local2d_shape_of(node, run->rows);
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory)
        return dml_local2d_backward_input(run->pool, &s, dml__host_gradient(run, node),
                                          dml__host_value(run, w), beta, dml__host_gradient(run, x));
    dml_launch launch = dml__local2d_launch(run, node, "local2d_backward_input", dml__count(run, x));
    launch.buffer[0] = dml__gradient(run, node);
    launch.buffer[1] = dml__value(run, w);
    launch.buffer[2] = dml__gradient(run, x);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__local2d_weight_gradient(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0], *w = node->input[1];
    const dml_local2d_shape s = dml__local2d_shape_of(node, run->rows);
    const float beta = dml__beta(run, node, 1);
    if (run->device->host_memory)
        return dml_local2d_backward_weights(run->pool, &s, dml__host_value(run, x),
                                            dml__host_gradient(run, node), beta, dml__host_gradient(run, w));
    dml_launch launch = dml__local2d_launch(run, node, "local2d_backward_weights", dml__count(run, w));
    launch.buffer[0] = dml__value(run, x);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = dml__gradient(run, w);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__local2d_op_backward(const dml__run *run, const dml_node *node)
{
    dml_status status = DML_OK;
    if (dml__wants_gradient(run, node, 0)) status = dml__local2d_input_gradient(run, node);
    if (status == DML_OK && dml__wants_gradient(run, node, 1))
        status = dml__local2d_weight_gradient(run, node);
    if (status == DML_OK && node->inputs > 2 && dml__wants_gradient(run, node, 2))
        status = dml__sum_rows_into_gradient(run, node, 2, (size_t)run->rows, dml_shape_count(&node->shape),
                                             dml__no_parts);
    return status;
}

static void dml__local2d_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml_local2d_options *o = (const dml_local2d_options *)node->attributes;
    snprintf(text, bytes, "%d filters, kernel %d x %d, stride %d x %d%s", o->filters, o->kernel[0],
             o->kernel[1], o->stride[0], o->stride[1], node->inputs > 2 ? "" : ", no bias");
}

static double dml__local2d_flops(const dml_node *node)
{
    return 2.0 * (double)dml_shape_count(&node->input[1]->shape) +
           (node->inputs > 2 ? (double)dml_shape_count(&node->shape) : 0);
}

static dml_scratch dml__local2d_scratch_of(const dml_node *node, int rows, bool training)
{
    const dml_local2d_shape shape = dml__local2d_shape_of(node, rows);
    (void)training;
    return dml_local2d_scratch(&shape);
}

DML__LOCAL const dml__op *dml__local2d_op(void)
{
    static const dml__op op = { "local2d",
                                dml__local2d_infer,
                                dml__local2d_op_forward,
                                dml__local2d_op_backward,
                                DML__NEEDS_INPUT(0) | DML__NEEDS_INPUT(1),
                                NULL,
                                false,
                                false,
                                dml__local2d_describe,
                                dml__local2d_flops,
                                dml__local2d_scratch_of };
    return &op;
}

static dml_local2d_options dml__local2d_defaults(const dml_local2d_options *options)
{
    dml_local2d_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    dml__default_pair(false, o.kernel, 3);
    dml__default_pair(false, o.stride, 1);
    return o;
}

DML_API dml_node *dml_local2d_with(dml_node *x, dml_node *w, dml_node *bias,
                                   const dml_local2d_options *options)
{
    dml_local2d_options o = dml__local2d_defaults(options);
    if (w && !o.filters) o.filters = w->shape.dims[2];
    o.no_bias = !bias;
    dml_node *const inputs[] = { x, w, bias };
    return dml__node_create(dml__local2d_op(), bias ? 3 : 2, inputs, &o, sizeof o);
}

DML_API dml_node *dml_local2d(dml_node *x, const dml_local2d_options *options)
{
    if (!x) return NULL;
    const dml_local2d_options o = dml__local2d_defaults(options);
    int out[2];
    if (o.filters < 1 || x->shape.ndim != 3 || !dml__local2d_output(&x->shape, &o, out)) {
        char text[DML_SHAPE_TEXT];
        dml__fail(&dml__node_context(x)->error, o.filters < 1 ? DML_ERROR_ARGUMENT : DML_ERROR_SHAPE,
                  "local2d: %d filters of %d x %d with stride %d x %d asked for over %s; each must be 1 or "
                  "more, and "
                  "fit images of height x width x channels",
                  o.filters, o.kernel[0], o.kernel[1], o.stride[0], o.stride[1],
                  dml_shape_format(&x->shape, text));
        return NULL;
    }
    const int taps = o.kernel[0] * o.kernel[1] * x->shape.dims[2];
    dml_node *last = x->graph->last, *layer = NULL, *bias = NULL;
    dml_node *w = dml__layer_parameter(x->graph, dml__local2d_op(), "weight", dml_init_he(taps),
                                       dml_shape_of(out[0], out[1], o.filters, taps));
    if (w && !o.no_bias)
        bias = dml__layer_parameter(x->graph, dml__local2d_op(), "bias", dml_init_constant(0),
                                    dml_shape_of(out[0], out[1], o.filters));
    if (w && (bias || o.no_bias)) layer = dml_local2d_with(x, w, bias, &o);
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

#endif
