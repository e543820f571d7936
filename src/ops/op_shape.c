#ifndef DML_OPS_OP_SHAPE_C
#define DML_OPS_OP_SHAPE_C

#include "ops/op_shape.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_shape_internal.h"
#include "ops/table.h"
#include "kernels/elementwise.h"
#include "kernels/strided.h"

#include <stdio.h>
#include <string.h>

/* ---- reshape ---- */

static dml_status dml__reshape_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    const dml_shape *to = (const dml_shape *)node->attributes;
    char text[DML_SHAPE_TEXT], to_text[DML_SHAPE_TEXT];
    double known = 1;
    int open = -1;
    bool fits = to->ndim >= 0 && to->ndim <= DML_MAX_DIMS;
    node->dtype = x->dtype;
    node->batched = x->batched;
    for (int i = 0; fits && i < to->ndim; i++) {
        node->shape.dims[i] = to->dims[i];
        if (to->dims[i] == -1 && open < 0)
            open = i;
        else if (to->dims[i] < 1)
            fits = false;
        else
            known *= to->dims[i];
    }
    const double count = (double)dml_shape_count(&x->shape), left = count / known;
    if (open >= 0) node->shape.dims[open] = (int)left;
    fits = fits && (open >= 0 ? left >= 1 && (int)left * known == count : known == count);
    node->shape.ndim = to->ndim;
    if (fits) return DML_OK;
    return dml__node_fail(node, DML_ERROR_SHAPE,
                          "its input is %s, %zu elements, and can't be %s; of a new shape of at most %d "
                          "dimensions one may be -1",
                          dml_shape_format(&x->shape, text), dml_shape_count(&x->shape),
                          to->ndim > DML_MAX_DIMS ? "of more dimensions" : dml_shape_format(to, to_text),
                          DML_MAX_DIMS);
}

DML__LOCAL const dml__op *dml__reshape_op(void)
{
    static const dml__op op = { "reshape", dml__reshape_infer, NULL, NULL, 0, NULL, true, false,
                                NULL,      dml__no_flops,      NULL };
    return &op;
}

DML__LOCAL const dml__op *dml__upsample2d_op(void)
{
    static const dml__op op = { "upsample2d", dml__reshape_infer, NULL, NULL, 0, NULL, true, false,
                                NULL,         dml__no_flops,      NULL };
    return &op;
}

DML_API dml_node *dml_reshape(dml_node *x, dml_shape shape)
{
    return dml__node_create(dml__reshape_op(), 1, &x, &shape, sizeof shape);
}

/* ---- stop_gradient ---- */

static dml_status dml__stop_gradient_infer(dml_node *node)
{
    node->dtype = node->input[0]->dtype;
    node->shape = node->input[0]->shape;
    node->batched = node->input[0]->batched;
    return DML_OK;
}

DML__LOCAL const dml__op *dml__stop_gradient_op(void)
{
    static const dml__op op = { "stop_gradient",
                                dml__stop_gradient_infer,
                                NULL,
                                NULL,
                                DML__NO_GRADIENT(0),
                                NULL,
                                true,
                                false,
                                NULL,
                                dml__no_flops,
                                NULL };
    return &op;
}

DML_API dml_node *dml_stop_gradient(dml_node *x)
{
    return dml__node_create(dml__stop_gradient_op(), 1, &x, NULL, 0);
}

/* ---- what the others share ---- */

static dml_status dml__check_movable(const dml_node *node)
{
    const dml_node *x = node->input[0];
    if (x->dtype == DML_F32) return DML_OK;
    return dml__node_fail(node, DML_ERROR_ARGUMENT, "its input is %s, it takes f32",
                          dml_dtype_name(x->dtype));
}

DML__LOCAL int dml__find_axis(const dml_node *node, int axis)
{
    const dml_shape *x = &node->input[0]->shape;
    char text[DML_SHAPE_TEXT];
    const int found = axis < 0 ? axis + x->ndim : axis;
    if (found >= 0 && found < x->ndim) return found;
    if (x->ndim == 0)
        dml__node_fail(node, DML_ERROR_ARGUMENT,
                       "axis %d asked for, of a scalar, which has no axis: dml_reshape to (1) gives it one",
                       axis);
    dml__node_fail(node, DML_ERROR_ARGUMENT, "axis %d asked for, of an input of %s: it must be in %d .. %d",
                   axis, dml_shape_format(x, text), -x->ndim, x->ndim - 1);
    return -1;
}

DML__LOCAL dml__axis_sizes dml__axis_sizes_of(const dml_node *x, int axis, int rows)
{
    dml__axis_sizes s = { x->batched ? (size_t)rows : 1, 1, 1 };
    for (int i = 0; i < x->shape.ndim; i++)
        *(i < axis ? &s.outer : i == axis ? &s.n : &s.inner) *= (size_t)x->shape.dims[i];
    return s;
}

/* The elements of `part`, each sample's beginning at `first`, where it is a part of `whole`. */
static dml_strided dml__part_of(size_t samples, const dml_shape *part, const dml_shape *whole)
{
    dml_strided s;
    size_t step = 1;
    for (int d = 0; d < DML_STRIDED_DIMS; d++) s.count[d] = 1, s.step[d] = 0;
    for (int i = part->ndim - 1, d = DML_STRIDED_DIMS - 1; i >= 0; i--, d--) {
        s.count[d] = (size_t)part->dims[i];
        s.step[d] = step;
        step *= (size_t)whole->dims[i];
    }
    s.count[0] = samples;
    s.step[0] = step;
    return s;
}

/* The elements before the first of a part that begins at place `at` of an axis. */
static size_t dml__elements_before(const dml_shape *whole, int axis, int at)
{
    size_t step = 1;
    for (int i = whole->ndim - 1; i > axis; i--) step *= (size_t)whole->dims[i];
    return (size_t)at * step;
}

/* Between `dense` and, `first` elements into it, `part`. */
static dml_status dml__move_strided(const dml__run *run, const dml_strided *s, bool unpacks, size_t first,
                                    dml_ref part, dml_ref dense, float beta)
{
    dml_ref from = unpacks ? dense : part, to = unpacks ? part : dense;
    (unpacks ? &to : &from)->offset += first * sizeof(float);
    if (run->device->host_memory) {
        (unpacks ? dml_strided_unpack : dml_strided_pack)(run->pool, s, (const float *)dml__host(from), beta,
                                                          (float *)dml__host(to));
        return DML_OK;
    }
    size_t n = 1;
    for (int d = 0; d < DML_STRIDED_DIMS; d++) n *= s->count[d];
    dml_launch launch = dml__launch(unpacks ? "strided_unpack" : "strided_pack", n, 1);
    launch.buffer[0] = from;
    launch.buffer[1] = to;
    launch.integer[0] = (int32_t)n;
    for (int d = 1; d < DML_STRIDED_DIMS; d++) launch.integer[d] = (int32_t)s->count[d];
    for (int d = 0; d < DML_STRIDED_DIMS; d++) launch.integer[6 + d] = (int32_t)s->step[d];
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

static size_t dml__samples_of(const dml__run *run, const dml_node *node)
{
    return node->batched ? (size_t)run->rows : 1;
}

static dml_status dml__zero_floats(const dml__run *run, dml_ref to, size_t n)
{
    if (!run->device->host_memory) return run->device->backend->zero(run->device, to, n * sizeof(float));
    dml_fill(run->pool, n, 0.0f, (float *)dml__host(to));
    return DML_OK;
}

static dml__axis_part dml__axis_part_of(const dml_node *node)
{
    return *(const dml__axis_part *)node->attributes;
}

#define DML__SHAPE_OP(name, describe)                                                                        \
    DML__LOCAL const dml__op *dml__##name##_op(void)                                                         \
    {                                                                                                        \
        static const dml__op op = { #name,                                                                   \
                                    dml__##name##_infer,                                                     \
                                    dml__##name##_op_forward,                                                \
                                    dml__##name##_op_backward,                                               \
                                    0,                                                                       \
                                    NULL,                                                                    \
                                    false,                                                                   \
                                    false,                                                                   \
                                    describe,                                                                \
                                    dml__no_flops,                                                           \
                                    NULL };                                                                  \
        return &op;                                                                                          \
    }

/* ---- permute ---- */

static dml_status dml__permute_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    const dml_shape *order = (const dml_shape *)node->attributes;
    char text[DML_SHAPE_TEXT], order_text[DML_SHAPE_TEXT];
    unsigned seen = 0;
    const dml_status status = dml__check_movable(node);
    if (status != DML_OK) return status;
    for (int i = 0; i < order->ndim && i < DML_MAX_DIMS; i++)
        if (order->dims[i] >= 0 && order->dims[i] < x->shape.ndim) seen |= 1u << order->dims[i];
    if (order->ndim != x->shape.ndim || seen != (1u << x->shape.ndim) - 1)
        return dml__node_fail(
            node, DML_ERROR_ARGUMENT,
            "its input is %s, and the order of its axes %s; it must name each axis from 0 to "
            "%d once",
            dml_shape_format(&x->shape, text),
            order->ndim > DML_MAX_DIMS ? "longer" : dml_shape_format(order, order_text), x->shape.ndim - 1);
    node->batched = x->batched;
    node->shape.ndim = order->ndim;
    for (int i = 0; i < order->ndim; i++) node->shape.dims[i] = x->shape.dims[order->dims[i]];
    return DML_OK;
}

/* The places of the result's elements in x. */
static dml_strided dml__permute_strided(const dml__run *run, const dml_node *node)
{
    const dml_shape *order = (const dml_shape *)node->attributes, *x = &node->input[0]->shape;
    dml_strided s = dml__part_of(dml__samples_of(run, node), &node->shape, x);
    for (int i = 0; i < order->ndim; i++)
        s.step[DML_STRIDED_DIMS - order->ndim + i] = dml__elements_before(x, order->dims[i], 1);
    return s;
}

static dml_status dml__permute_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_strided s = dml__permute_strided(run, node);
    return dml__move_strided(run, &s, false, 0, dml__value(run, node->input[0]), dml__value(run, node), 0);
}

static dml_status dml__permute_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_strided s = dml__permute_strided(run, node);
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    return dml__move_strided(run, &s, true, 0, dml__gradient(run, node->input[0]), dml__gradient(run, node),
                             dml__beta(run, node, 0));
}

static void dml__permute_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml_shape *order = (const dml_shape *)node->attributes;
    size_t used = (size_t)snprintf(text, bytes, "axes");
    for (int i = 0; i < order->ndim && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, " %d", order->dims[i]);
}
DML__SHAPE_OP(permute, dml__permute_describe)

DML_API dml_node *dml_permute(dml_node *x, dml_shape order)
{
    for (int d = 0; x && d < DML_MAX_DIMS; d++)
        if (order.dims[d] < 0) order.dims[d] += x->shape.ndim;
    return dml__node_create(dml__permute_op(), 1, &x, &order, sizeof order);
}

DML_API dml_node *dml_swap_axes(dml_node *x, int a, int b)
{
    if (!x) return NULL;
    dml_shape order = { x->shape.ndim, { 0, 1, 2, 3, 4 } };
    const int from = a < 0 ? a + x->shape.ndim : a, to = b < 0 ? b + x->shape.ndim : b;
    if (from < 0 || from >= x->shape.ndim || to < 0 || to >= x->shape.ndim) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "swap_axes: axes %d and %d of '%s' asked for, which has %d", a, b, x->name, x->shape.ndim);
        return NULL;
    }
    order.dims[from] = to;
    order.dims[to] = from;
    return dml_permute(x, order);
}

/* ---- slice ---- */

static dml_status dml__slice_infer(dml_node *node)
{
    dml__axis_part *o = (dml__axis_part *)node->attributes;
    const dml_node *x = node->input[0];
    const dml_status status = dml__check_movable(node);
    if (status != DML_OK) return status;
    const int axis = dml__find_axis(node, o->axis);
    if (axis < 0) return DML_ERROR_ARGUMENT;
    if (o->begin < 0 || o->end <= o->begin || o->end > x->shape.dims[axis])
        return dml__node_fail(
            node, DML_ERROR_ARGUMENT,
            "of an axis of %d, places from %d up to, without, %d asked for; there must be at "
            "least one, and all must be there",
            x->shape.dims[axis], o->begin, o->end);
    o->axis = axis;
    node->batched = x->batched;
    node->shape = x->shape;
    node->shape.dims[axis] = o->end - o->begin;
    return DML_OK;
}

static dml_status dml__slice_move(const dml__run *run, const dml_node *node, bool backward, float beta)
{
    const dml__axis_part o = dml__axis_part_of(node);
    const dml_node *x = node->input[0];
    const dml_strided s = dml__part_of(dml__samples_of(run, node), &node->shape, &x->shape);
    return dml__move_strided(run, &s, backward, dml__elements_before(&x->shape, o.axis, o.begin),
                             backward ? dml__gradient(run, x) : dml__value(run, x),
                             backward ? dml__gradient(run, node) : dml__value(run, node), beta);
}

static dml_status dml__slice_op_forward(const dml__run *run, const dml_node *node)
{
    return dml__slice_move(run, node, false, 0);
}

static dml_status dml__slice_op_backward(const dml__run *run, const dml_node *node)
{
    const dml_node *x = node->input[0];
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    dml_status status = DML_OK;
    if (dml__beta(run, node, 0) == 0)
        status = dml__zero_floats(run, dml__gradient(run, x), dml__count(run, x));
    return status == DML_OK ? dml__slice_move(run, node, true, 1) : status;
}

static void dml__slice_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml__axis_part o = dml__axis_part_of(node);
    snprintf(text, bytes, "axis %d, %d to %d", o.axis, o.begin, o.end - 1);
}
DML__SHAPE_OP(slice, dml__slice_describe)

DML_API dml_node *dml_slice(dml_node *x, int axis, int begin, int end)
{
    const dml__axis_part o = { axis, begin, end, 0, 0 };
    return dml__node_create(dml__slice_op(), 1, &x, &o, sizeof o);
}

DML_API dml_status dml_split(dml_node *x, int axis, int count, dml_node **parts)
{
    for (int i = 0; parts && i < count; i++) parts[i] = NULL;
    if (!x) return DML_ERROR_ARGUMENT;
    dml__error *error = &dml__node_context(x)->error;
    if (!parts)
        return dml__fail(error, DML_ERROR_ARGUMENT, "split of '%s': there is no array for its %d parts",
                         x->name, count);
    const int found = axis < 0 ? axis + x->shape.ndim : axis;
    const int size = found >= 0 && found < x->shape.ndim ? x->shape.dims[found] : 0;
    if (error->status != DML_OK) return error->status;
    if (count < 1 || size == 0 || size % count)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "split: axis %d of '%s', which is %d, can't be cut into %d equal parts", axis,
                         x->name, size, count);
    for (int i = 0; i < count; i++)
        parts[i] = dml_slice(x, found, i * (size / count), (i + 1) * (size / count));
    return error->status;
}

/* ---- pad ---- */

static dml_status dml__pad_infer(dml_node *node)
{
    dml__axis_part *o = (dml__axis_part *)node->attributes;
    const dml_node *x = node->input[0];
    const dml_status status = dml__check_movable(node);
    if (status != DML_OK) return status;
    const int axis = dml__find_axis(node, o->axis);
    if (axis < 0) return DML_ERROR_ARGUMENT;
    const int64_t size = (int64_t)o->before + o->after + x->shape.dims[axis];
    if (o->before < 0 || o->after < 0 || size > INT32_MAX)
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "%d zeros before and %d after %d places asked for; it takes 0 or more, and at "
                              "most %d places in all",
                              o->before, o->after, x->shape.dims[axis], INT32_MAX);
    o->axis = axis;
    node->batched = x->batched;
    node->shape = x->shape;
    node->shape.dims[axis] = (int)size;
    return DML_OK;
}

static dml_status dml__pad_move(const dml__run *run, const dml_node *node, bool backward, float beta)
{
    const dml__axis_part o = dml__axis_part_of(node);
    const dml_node *x = node->input[0];
    const dml_strided s = dml__part_of(dml__samples_of(run, node), &x->shape, &node->shape);
    return dml__move_strided(run, &s, !backward, dml__elements_before(&node->shape, o.axis, o.before),
                             backward ? dml__gradient(run, node) : dml__value(run, node),
                             backward ? dml__gradient(run, x) : dml__value(run, x), beta);
}

static dml_status dml__pad_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_status status = dml__zero_floats(run, dml__value(run, node), dml__count(run, node));
    return status == DML_OK ? dml__pad_move(run, node, false, 0) : status;
}

static dml_status dml__pad_op_backward(const dml__run *run, const dml_node *node)
{
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    return dml__pad_move(run, node, true, dml__beta(run, node, 0));
}

static void dml__pad_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml__axis_part o = dml__axis_part_of(node);
    snprintf(text, bytes, "axis %d, %d before, %d after", o.axis, o.before, o.after);
}
DML__SHAPE_OP(pad, dml__pad_describe)

DML_API dml_node *dml_pad(dml_node *x, int axis, int before, int after)
{
    const dml__axis_part o = { axis, 0, 0, before, after };
    return dml__node_create(dml__pad_op(), 1, &x, &o, sizeof o);
}

/* ---- concat ---- */

static dml_status dml__concat_infer(dml_node *node)
{
    dml__axis_part *o = (dml__axis_part *)node->attributes;
    const dml_node *first = node->input[0];
    char text[DML_SHAPE_TEXT], first_text[DML_SHAPE_TEXT];
    const int axis = dml__find_axis(node, o->axis);
    int64_t size = 0;
    if (axis < 0) return DML_ERROR_ARGUMENT;
    for (int i = 0; i < node->inputs; i++) {
        const dml_node *x = node->input[i];
        bool fits = x->shape.ndim == first->shape.ndim;
        if (x->dtype != DML_F32)
            return dml__node_fail(node, DML_ERROR_SHAPE, "its input %d is %s; all must be f32", i + 1,
                                  dml_dtype_name(x->dtype));
        if (x->batched != first->batched)
            return dml__node_fail(
                node, DML_ERROR_SHAPE,
                "its input %d, %s, is for %s and the first, %s, for %s; all must be for each sample, or none",
                i + 1, dml_shape_format(&x->shape, text), x->batched ? "each sample" : "the whole batch",
                dml_shape_format(&first->shape, first_text),
                first->batched ? "each sample" : "the whole batch");
        for (int k = 0; fits && k < x->shape.ndim; k++)
            fits = k == axis || x->shape.dims[k] == first->shape.dims[k];
        if (!fits)
            return dml__node_fail(
                node, DML_ERROR_SHAPE,
                "its input %d is %s and the first %s; they must be of one shape, but for axis %d", i + 1,
                dml_shape_format(&x->shape, text), dml_shape_format(&first->shape, first_text), axis);
        size += x->shape.dims[axis];
    }
    if (size > INT32_MAX)
        return dml__node_fail(node, DML_ERROR_SHAPE, "more than %d places along axis %d", INT32_MAX, axis);
    o->axis = axis;
    node->batched = first->batched;
    node->shape = first->shape;
    node->shape.dims[axis] = (int)size;
    return DML_OK;
}

static dml_status dml__concat_op_forward(const dml__run *run, const dml_node *node)
{
    const int axis = dml__axis_part_of(node).axis;
    dml_status status = DML_OK;
    int at = 0;
    for (int i = 0; i < node->inputs && status == DML_OK; i++) {
        const dml_node *x = node->input[i];
        const dml_strided s = dml__part_of(dml__samples_of(run, node), &x->shape, &node->shape);
        status = dml__move_strided(run, &s, true, dml__elements_before(&node->shape, axis, at),
                                   dml__value(run, node), dml__value(run, x), 0);
        at += x->shape.dims[axis];
    }
    return status;
}

static dml_status dml__concat_op_backward(const dml__run *run, const dml_node *node)
{
    const int axis = dml__axis_part_of(node).axis;
    dml_status status = DML_OK;
    int at = 0;
    for (int i = 0; i < node->inputs && status == DML_OK; i++) {
        const dml_node *x = node->input[i];
        const dml_strided s = dml__part_of(dml__samples_of(run, node), &x->shape, &node->shape);
        if (dml__wants_gradient(run, node, i))
            status =
                dml__move_strided(run, &s, false, dml__elements_before(&node->shape, axis, at),
                                  dml__gradient(run, node), dml__gradient(run, x), dml__beta(run, node, i));
        at += x->shape.dims[axis];
    }
    return status;
}

static void dml__concat_describe(const dml_node *node, char *text, size_t bytes)
{
    snprintf(text, bytes, "axis %d", dml__axis_part_of(node).axis);
}
DML__SHAPE_OP(concat, dml__concat_describe)
#undef DML__SHAPE_OP

DML_API dml_node *dml_concat(dml_node *const *nodes, int count, int axis)
{
    const dml__axis_part o = { axis, 0, 0, 0, 0 };
    dml_node *input[DML__MAX_INPUTS], *joined = NULL;
    if (!nodes) return NULL;
    for (int at = 0; at < count;) { /* of many, those that are there already are the first of the next */
        int inputs = 0;
        if (at > 0) input[inputs++] = joined;
        while (inputs < DML__MAX_INPUTS && at < count) input[inputs++] = nodes[at++];
        joined = dml__node_create(dml__concat_op(), inputs, input, &o, sizeof o);
        if (!joined) return NULL;
    }
    return joined;
}

#endif
