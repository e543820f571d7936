#ifndef DML_OPS_OP_SLICE2D_C
#define DML_OPS_OP_SLICE2D_C

#include "ops/op_slice2d.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_shape.h"
#include "ops/op_shape_internal.h"
#include "ops/table.h"
#include "kernels/slice2d.h"

#include <stdio.h>
#include <string.h>

/* With its defaults set. */
static int dml__slice2d_taken(const dml_slice2d_options *o, int axis)
{
    return (o->end[axis] - o->begin[axis] - 1) / o->step[axis] + 1;
}

static dml_status dml__slice2d_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    const dml_slice2d_options *o = (const dml_slice2d_options *)node->attributes;
    const dml_status status = dml__check_image_input(node);
    if (status != DML_OK) return status;
    node->batched = true;
    node->shape.ndim = 3;
    for (int axis = 0; axis < 3; axis++) {
        const int begin = o->begin[axis], end = o->end[axis], step = o->step[axis];
        const int before = o->before[axis], after = o->after[axis];
        if (begin < 0 || end <= begin || end > x->shape.dims[axis] || step < 1)
            return dml__node_fail(node, DML_ERROR_ARGUMENT,
                                  "of an axis of %d, places from %d to before %d by steps of %d asked for; "
                                  "there must be at least one, and steps are 1 or more",
                                  x->shape.dims[axis], begin, end, step);
        const int64_t size = (int64_t)before + after + dml__slice2d_taken(o, axis);
        if (before < 0 || after < 0 || size > INT32_MAX)
            return dml__node_fail(node, DML_ERROR_ARGUMENT,
                                  "%d zeros before and %d after %d places asked for; it takes 0 or more, and "
                                  "at most %d places in all",
                                  before, after, dml__slice2d_taken(o, axis), INT32_MAX);
        node->shape.dims[axis] = (int)size;
    }
    return DML_OK;
}

static dml_slice2d_shape dml__slice2d_shape_of(const dml__run *run, const dml_node *node)
{
    const dml_slice2d_options *o = (const dml_slice2d_options *)node->attributes;
    dml_slice2d_shape shape;
    shape.batch = run->rows;
    for (int axis = 0; axis < 3; axis++) {
        const dml_slice2d_axis a = {
            node->input[0]->shape.dims[axis], node->shape.dims[axis], o->begin[axis], o->step[axis],
            dml__slice2d_taken(o, axis),      o->before[axis]
        };
        shape.axis[axis] = a;
    }
    return shape;
}

/* Whose ints are set; `of_input` is then made to begin at the first place that is taken. */
static dml_launch dml__slice2d_launch(const dml_slice2d_shape *s, const char *kernel, size_t size,
                                      dml_ref *of_input)
{
    dml_launch launch = dml__launch(kernel, size, 1);
    size_t first = 0;
    launch.integer[0] = s->batch;
    for (int axis = 0; axis < 3; axis++) {
        const dml_slice2d_axis *a = &s->axis[axis];
        int32_t *integer = &launch.integer[1 + 5 * axis];
        integer[0] = a->in;
        integer[1] = a->out;
        integer[2] = a->step;
        integer[3] = a->count;
        integer[4] = a->before;
        first = first * (size_t)a->in + (size_t)a->begin;
    }
    of_input->offset += first * sizeof(float);
    return launch;
}

static dml_status dml__slice2d_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_slice2d_shape shape = dml__slice2d_shape_of(run, node);
    if (run->device->host_memory)
        return dml_slice2d_forward(run->pool, &shape, dml__host_value(run, node->input[0]),
                                   dml__host_value(run, node));
    dml_ref x = dml__value(run, node->input[0]);
    dml_launch launch = dml__slice2d_launch(&shape, "slice2d_forward", dml__count(run, node), &x);
    launch.buffer[0] = x;
    launch.buffer[1] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

static dml_status dml__slice2d_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_slice2d_shape shape = dml__slice2d_shape_of(run, node);
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory)
        return dml_slice2d_backward(run->pool, &shape, dml__host_gradient(run, node), beta,
                                    dml__host_gradient(run, node->input[0]));
    /* beta is 0 or 1; the kernel visits only what was taken. */
    dml_ref dx = dml__gradient(run, node->input[0]);
    dml_status status = DML_OK;
    if (beta == 0)
        status = run->device->backend->zero(run->device, dx, dml__count(run, node->input[0]) * sizeof(float));
    if (status != DML_OK) return status;
    size_t taken = (size_t)shape.batch;
    for (int axis = 0; axis < 3; axis++) taken *= (size_t)shape.axis[axis].count;
    dml_launch launch = dml__slice2d_launch(&shape, "slice2d_backward", taken, &dx);
    launch.buffer[0] = dml__gradient(run, node);
    launch.buffer[1] = dx;
    return dml__submit(run->device, &launch);
}

static void dml__slice2d_describe(const dml_node *node, char *text, size_t bytes)
{
    static const char *const name[] = { "height", "width", "channels" };
    const dml_slice2d_options *o = (const dml_slice2d_options *)node->attributes;
    size_t used = 0;
    for (int axis = 0; axis < 3 && used < bytes; axis++) {
        const int written = snprintf(text + used, bytes - used, "%s%s %d to %d", used ? ", " : "", name[axis],
                                     o->begin[axis], o->end[axis] - 1);
        used += written > 0 ? (size_t)written : 0;
        if (o->step[axis] > 1 && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, " by %d", o->step[axis]);
        if ((o->before[axis] || o->after[axis]) && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, " in %d + %d zeros", o->before[axis],
                                     o->after[axis]);
    }
}

DML__LOCAL const dml__op *dml__slice2d_op(void)
{
    static const dml__op op = { "slice2d",
                                dml__slice2d_infer,
                                dml__slice2d_op_forward,
                                dml__slice2d_op_backward,
                                0,
                                NULL,
                                false,
                                false,
                                dml__slice2d_describe,
                                dml__no_flops,
                                NULL };
    return &op;
}

DML_API dml_node *dml_slice2d(dml_node *x, const dml_slice2d_options *options)
{
    dml_slice2d_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    for (int axis = 0; axis < 3; axis++) {
        if (!o.step[axis]) o.step[axis] = 1;
        if (!o.end[axis] && x && x->shape.ndim == 3) o.end[axis] = x->shape.dims[axis];
    }
    return dml__node_create(dml__slice2d_op(), 1, &x, &o, sizeof o);
}

DML_API dml_node *dml_padded_shortcut2d(dml_node *x, int stride, int channels)
{
    if (!x) return NULL;
    const int there = x->shape.ndim == 3 ? x->shape.dims[2] : channels;
    if (stride < 1 || channels < there) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "a shortcut of stride %d to %d channels asked for, of %d; a stride is 1 or more, and "
                  "channels can't be left out",
                  stride, channels, there);
        return NULL;
    }
    const int more = channels - there;
    if (stride == 1 && more == 0 && x->shape.ndim == 3) return x;
    dml_slice2d_options o;
    memset(&o, 0, sizeof o);
    o.step[0] = o.step[1] = stride;
    o.before[2] = more / 2;
    o.after[2] = more - more / 2;
    return dml_slice2d(x, &o);
}

/* (outer, inner) as (outer, factor, inner). */
static dml_node *dml__repeat_inside(dml_node *x, int outer, int factor, int inner)
{
    dml_node *one = dml_reshape(x, dml_shape_of(outer, 1, inner)), *copies[DML__MAX_INPUTS];
    for (int i = 0; i < factor; i++) copies[i] = one;
    return dml_concat(copies, factor, 1);
}

DML_API dml_node *dml_upsample2d(dml_node *x, int factor)
{
    if (!x) return NULL;
    const int *d = x->shape.dims;
    char text[DML_SHAPE_TEXT];
    const bool images = x->dtype == DML_F32 && x->shape.ndim == 3,
               known = factor >= 1 && factor <= DML__MAX_INPUTS;
    if (!images || !known || (double)dml_shape_count(&x->shape) * factor * factor > INT32_MAX) {
        char wanted[64] = "f32 images of height x width x channels";
        if (images && !known) snprintf(wanted, sizeof wanted, "factors of 1 to %d", DML__MAX_INPUTS);
        if (images && known)
            snprintf(wanted, sizeof wanted, "images that become no more than %d elements", INT32_MAX);
        dml__fail(&dml__node_context(x)->error, DML_ERROR_SHAPE,
                  "upsample2d: %d times asked for, of %s %s; it takes %s", factor, dml_dtype_name(x->dtype),
                  dml_shape_format(&x->shape, text), wanted);
        return NULL;
    }
    if (factor == 1) return x;
    const dml_shape shape = dml_shape_of(factor * d[0], factor * d[1], d[2]);
    dml_graph *graph = x->graph;
    dml_node *last = graph->last;
    char layer[DML_NAME_BYTES];
    if (dml__layer_name(graph, dml__upsample2d_op(), layer) != DML_OK ||
        dml_push_scope(graph, "%s", layer) != DML_OK)
        return NULL;
    dml_node *whole = dml__repeat_inside(x, d[0] * d[1], factor, d[2]);
    if (whole) whole = dml__repeat_inside(whole, d[0], factor, d[1] * factor * d[2]);
    dml_pop_scope(graph);
    if (whole) whole = dml__node_create(dml__upsample2d_op(), 1, &whole, &shape, sizeof shape);
    if (!whole) dml__graph_drop_after(graph, last); /* nothing is left of what can't be built */
    return whole;
}

#endif
