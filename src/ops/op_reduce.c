#ifndef DML_OPS_OP_REDUCE_C
#define DML_OPS_OP_REDUCE_C

#include "ops/op_reduce.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_activation.h"
#include "ops/op_reduce_internal.h"
#include "ops/op_shape.h"
#include "ops/op_shape_internal.h"
#include "ops/table.h"
#include "kernels/reduce.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const dml__reduced_axes *dml__reduced_axes_of(const dml_node *node)
{
    return (const dml__reduced_axes *)node->attributes;
}

static dml_status dml__reduce_infer(dml_node *node)
{
    const dml__reduced_axes *o = dml__reduced_axes_of(node);
    const dml_node *x = node->input[0];
    if (x->dtype != DML_F32)
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "its input is %s, it takes f32",
                              dml_dtype_name(x->dtype));
    node->batched = x->batched;
    for (int i = 0; i < x->shape.ndim; i++) {
        const bool reduced = i >= o->first && i < o->first + o->count;
        if (!reduced || o->keep) node->shape.dims[node->shape.ndim++] = reduced ? 1 : x->shape.dims[i];
    }
    return DML_OK;
}

/* The input as (outer, n, inner), of which the middle is reduced. */
static dml__axis_sizes dml__reduced_sizes(const dml_node *node, int rows)
{
    const dml__reduced_axes *o = dml__reduced_axes_of(node);
    const dml_node *x = node->input[0];
    dml__axis_sizes s = dml__axis_sizes_of(x, o->first, rows);
    for (int i = o->first + 1; i < o->first + o->count; i++) {
        s.n *= (size_t)x->shape.dims[i];
        s.inner /= (size_t)x->shape.dims[i];
    }
    return s;
}

static float dml__reduced_scale(const dml_node *node, size_t n)
{
    return dml__reduced_axes_of(node)->mean ? 1.0f / (float)n : 1.0f;
}

static bool dml__is_extreme(const dml_node *node)
{
    const dml_reduction kind = dml__reduced_axes_of(node)->kind;
    return kind == DML_REDUCE_MAX || kind == DML_REDUCE_MIN;
}

/* ---- forward ---- */

enum { DML__REDUCE_TIES = DML_REDUCE_NORM2 + 1 }; /* the shared kernel's word */

static dml_status dml__launch_reduce(const dml__run *run, const dml_node *node, int kind, dml_ref to)
{
    const dml__axis_sizes s = dml__reduced_sizes(node, run->rows);
    dml_launch launch = dml__launch("reduce_axis", s.outer * s.inner, 1);
    launch.buffer[0] = dml__value(run, node->input[0]);
    launch.buffer[1] = to;
    if (kind == DML__REDUCE_TIES) launch.buffer[2] = dml__value(run, node);
    launch.integer[0] = (int32_t)kind;
    launch.integer[1] = (int32_t)s.n;
    launch.integer[2] = (int32_t)s.inner;
    launch.integer[3] = (int32_t)(s.outer * s.inner);
    launch.real[0] = dml__reduced_scale(node, s.n);
    return dml__submit(run->device, &launch);
}

static dml_status dml__reduce_op_forward(const dml__run *run, const dml_node *node)
{
    const dml__axis_sizes s = dml__reduced_sizes(node, run->rows);
    const dml_reduction kind = dml__reduced_axes_of(node)->kind;
    const bool ties = dml__is_extreme(node) && run->training && dml__wants_gradient(run, node, 0);
    if (!run->device->host_memory) {
        const dml_status status = dml__launch_reduce(run, node, (int)kind, dml__value(run, node));
        if (status != DML_OK || !ties) return status;
        return dml__launch_reduce(run, node, DML__REDUCE_TIES, dml__saved(run, node));
    }
    const float *x = dml__host_value(run, node->input[0]);
    float *y = dml__host_value(run, node);
    dml_reduce_axis(run->pool, kind, s.outer, s.n, s.inner, x, dml__reduced_scale(node, s.n), y);
    if (ties)
        dml_reduce_axis_ties(run->pool, s.outer, s.n, s.inner, x, y,
                             (float *)dml__host(dml__saved(run, node)));
    return DML_OK;
}

static size_t dml__reduce_saved_bytes(const dml_node *node, int rows)
{
    if (!dml__is_extreme(node)) return 0;
    return dml_shape_count(&node->shape) * (node->batched ? (size_t)rows : 1) * sizeof(float);
}

/* ---- backward ---- */

static dml_status dml__reduce_op_backward(const dml__run *run, const dml_node *node)
{
    const dml__axis_sizes s = dml__reduced_sizes(node, run->rows);
    const dml_node *input = node->input[0];
    const dml_reduction kind = dml__reduced_axes_of(node)->kind;
    const bool reads = kind != DML_REDUCE_SUM, extreme = dml__is_extreme(node);
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    if (run->device->host_memory) {
        dml_reduce_axis_backward(
            run->pool, kind, s.outer, s.n, s.inner, reads ? dml__host_value(run, input) : NULL,
            reads ? dml__host_value(run, node) : NULL,
            extreme ? (const float *)dml__host(dml__saved(run, node)) : NULL, dml__host_gradient(run, node),
            dml__reduced_scale(node, s.n), dml__beta(run, node, 0), dml__host_gradient(run, input));
        return DML_OK;
    }
    dml_launch launch = dml__launch("reduce_axis_backward", s.outer * s.n * s.inner, 1);
    if (reads) launch.buffer[0] = dml__value(run, input);
    if (reads) launch.buffer[1] = dml__value(run, node);
    if (extreme) launch.buffer[2] = dml__saved(run, node);
    launch.buffer[3] = dml__gradient(run, node);
    launch.buffer[4] = dml__gradient(run, input);
    launch.integer[0] = (int32_t)kind;
    launch.integer[1] = (int32_t)s.n;
    launch.integer[2] = (int32_t)s.inner;
    launch.integer[3] = (int32_t)(s.outer * s.n * s.inner);
    launch.real[0] = dml__reduced_scale(node, s.n);
    launch.real[1] = dml__beta(run, node, 0);
    return dml__submit(run->device, &launch);
}

/* ---- argmax ---- */

static dml_status dml__argmax_infer(dml_node *node)
{
    const dml__reduced_axes *o = dml__reduced_axes_of(node);
    const dml_status status = dml__reduce_infer(node);
    node->dtype = DML_I32;
    if (status == DML_OK) node->below = node->input[0]->shape.dims[o->first];
    return status;
}

static dml_status dml__argmax_op_forward(const dml__run *run, const dml_node *node)
{
    const dml__axis_sizes s = dml__reduced_sizes(node, run->rows); /* inner is 1 */
    if (run->device->host_memory) {
        dml_argmax_rows(run->pool, s.outer, s.n, dml__host_value(run, node->input[0]),
                        (int32_t *)dml__host(dml__value(run, node)));
        return DML_OK;
    }
    dml_launch launch = dml__launch("argmax", s.outer, 1);
    launch.buffer[0] = dml__value(run, node->input[0]);
    launch.buffer[1] = dml__value(run, node);
    launch.integer[0] = (int32_t)s.outer;
    launch.integer[1] = (int32_t)s.n;
    return dml__submit(run->device, &launch);
}

/* ---- the ops ---- */

static void dml__reduce_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml__reduced_axes *o = dml__reduced_axes_of(node);
    const char *order = o->kind == DML_REDUCE_NORM1   ? "order 1, "
                        : o->kind == DML_REDUCE_NORM2 ? "order 2, "
                                                      : "";
    if (o->count == 1)
        snprintf(text, bytes, "%saxis %d%s", order, o->first, o->keep ? ", kept" : "");
    else
        snprintf(text, bytes, "%saxes %d to %d%s", order, o->first, o->first + o->count - 1,
                 o->keep ? ", kept" : "");
}

static double dml__reduce_flops(const dml_node *node)
{
    const double n = (double)dml_shape_count(&node->input[0]->shape);
    if (dml__is_extreme(node)) return 0;
    return dml__reduced_axes_of(node)->kind == DML_REDUCE_NORM2 ? 2 * n : n;
}

#define DML__REDUCE_OP(name, needs)                                                                          \
    DML__LOCAL const dml__op *dml__##name##_op(void)                                                         \
    {                                                                                                        \
        static const dml__op op = { #name,                                                                   \
                                    dml__reduce_infer,                                                       \
                                    dml__reduce_op_forward,                                                  \
                                    dml__reduce_op_backward,                                                 \
                                    needs,                                                                   \
                                    dml__reduce_saved_bytes,                                                 \
                                    false,                                                                   \
                                    false,                                                                   \
                                    dml__reduce_describe,                                                    \
                                    dml__reduce_flops,                                                       \
                                    NULL };                                                                  \
        return &op;                                                                                          \
    }
DML__REDUCE_OP(sum, 0)
DML__REDUCE_OP(mean, 0)
DML__REDUCE_OP(max, DML__NEEDS_INPUT(0) | DML__NEEDS_OUTPUT | DML__COMPARES)
DML__REDUCE_OP(min, DML__NEEDS_INPUT(0) | DML__NEEDS_OUTPUT | DML__COMPARES)
DML__REDUCE_OP(norm, DML__NEEDS_INPUT(0) | DML__NEEDS_OUTPUT | DML__COMPARES)
#undef DML__REDUCE_OP

DML__LOCAL const dml__op *dml__argmax_op(void)
{
    static const dml__op op = { "argmax", dml__argmax_infer,    dml__argmax_op_forward, NULL, 0, NULL, false,
                                false,    dml__reduce_describe, dml__no_flops,          NULL };
    return &op;
}

/* ---- builders ---- */

/* A bit for each of the axes; 0, with the error recorded, when one isn't there or comes twice. */
static unsigned dml__reduced_mask(const dml__op *op, const dml_node *x, const dml_shape *axes)
{
    char text[DML_SHAPE_TEXT];
    unsigned mask = 0;
    bool fits = axes->ndim >= 0 && axes->ndim <= DML_MAX_DIMS;
    for (int i = 0; fits && i < axes->ndim; i++) {
        const int axis = axes->dims[i] < 0 ? axes->dims[i] + x->shape.ndim : axes->dims[i];
        fits = axis >= 0 && axis < x->shape.ndim && !(mask & (1u << axis));
        if (fits) mask |= 1u << axis;
    }
    if (fits) return axes->ndim ? mask : (1u << x->shape.ndim) - 1;
    if (!x->shape.ndim && axes->ndim > 0) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "%s: axis %d of '%s' asked for, which is a scalar and has no axis", op->name, axes->dims[0],
                  x->name);
        return 0;
    }
    dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
              "%s: of axes of '%s', which is %s, a list that names one twice, or one that isn't in %d .. %d",
              op->name, x->name, dml_shape_format(&x->shape, text), -x->shape.ndim, x->shape.ndim - 1);
    return 0;
}

/* x with the axes of the mask behind the others. */
static dml_node *dml__axes_last(dml_node *x, unsigned mask)
{
    dml_shape order = { x->shape.ndim, { 0, 0, 0, 0, 0 } };
    int to = 0;
    for (unsigned reduced = 0; reduced < 2; reduced++)
        for (int i = 0; i < x->shape.ndim; i++)
            if (((mask >> i) & 1u) == reduced) order.dims[to++] = i;
    return dml_permute(x, order);
}

/* `last`: the axes must be the last. */
static dml_node *dml__reduce_node(const dml__op *op, dml_node *x, dml_shape axes, bool keep,
                                  dml_reduction kind, bool last)
{
    dml__reduced_axes o;
    if (!x) return NULL;
    const unsigned mask = dml__reduced_mask(op, x, &axes);
    const int ndim = x->shape.ndim;
    dml_shape kept = x->shape;
    if (!mask && ndim > 0) return NULL;
    memset(&o, 0, sizeof o);
    o.kind = kind;
    o.mean = op == dml__mean_op();
    o.keep = keep;
    for (int i = 0; i < ndim; i++) {
        o.count += (int)(mask >> i & 1u);
        if (mask >> i & 1u) kept.dims[i] = 1;
    }
    while (o.first < ndim && !(mask >> o.first & 1u)) o.first++;
    const bool neighbours = mask >> o.first == (1u << o.count) - 1;
    if (x->dtype != DML_F32 || (neighbours && (!last || o.first + o.count == ndim)))
        return dml__node_create(op, 1, &x, &o, sizeof o);
    dml_node *before = x->graph->last;
    o.first = ndim - o.count;
    o.keep = false;
    dml_node *moved = dml__axes_last(x, mask);
    dml_node *reduced = moved ? dml__node_create(op, 1, &moved, &o, sizeof o) : NULL;
    if (reduced && keep) reduced = dml_reshape(reduced, kept);
    if (!reduced) dml__graph_drop_after(x->graph, before);
    return reduced;
}

DML_API dml_node *dml_sum(dml_node *x, dml_shape axes, bool keep_dims)
{
    return dml__reduce_node(dml__sum_op(), x, axes, keep_dims, DML_REDUCE_SUM, false);
}

DML_API dml_node *dml_mean(dml_node *x, dml_shape axes, bool keep_dims)
{
    return dml__reduce_node(dml__mean_op(), x, axes, keep_dims, DML_REDUCE_SUM, false);
}

DML_API dml_node *dml_max(dml_node *x, dml_shape axes, bool keep_dims)
{
    return dml__reduce_node(dml__max_op(), x, axes, keep_dims, DML_REDUCE_MAX, false);
}

DML_API dml_node *dml_min(dml_node *x, dml_shape axes, bool keep_dims)
{
    return dml__reduce_node(dml__min_op(), x, axes, keep_dims, DML_REDUCE_MIN, false);
}

DML_API dml_node *dml_norm(dml_node *x, float order, dml_shape axes, bool keep_dims)
{
    if (!x) return NULL;
    if (order == HUGE_VALF) {
        dml_node *before = x->graph->last, *largest = dml_max(dml_abs(x), axes, keep_dims);
        if (!largest) dml__graph_drop_after(x->graph, before);
        return largest;
    }
    if (order == 1 || order == 2)
        return dml__reduce_node(dml__norm_op(), x, axes, keep_dims,
                                order == 1 ? DML_REDUCE_NORM1 : DML_REDUCE_NORM2, false);
    dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
              "norm: of '%s' that of order %g asked for; it takes 1, 2 and INFINITY", x->name, (double)order);
    return NULL;
}

DML_API dml_node *dml_argmax(dml_node *x, int axis, bool keep_dims)
{
    const dml_shape axes = { 1, { axis, 0, 0, 0, 0 } };
    return dml__reduce_node(dml__argmax_op(), x, axes, keep_dims, DML_REDUCE_MAX, true);
}

DML_API dml_node *dml_argmin(dml_node *x, int axis, bool keep_dims)
{
    if (!x) return NULL;
    dml_node *before = x->graph->last, *place = dml_argmax(dml_affine(x, -1, 0), axis, keep_dims);
    if (!place) dml__graph_drop_after(x->graph, before);
    return place;
}

#endif
