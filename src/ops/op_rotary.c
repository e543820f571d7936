#ifndef DML_OPS_OP_ROTARY_C
#define DML_OPS_OP_ROTARY_C

#include "ops/op_rotary.h"

#include "base/memory.h"
#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_rotary_internal.h"
#include "ops/table.h"
#include "kernels/rotary.h"

#include <stdio.h>
#include <string.h>

static const dml__rotary *dml__rotary_of(const dml_node *node)
{
    return (const dml__rotary *)node->attributes;
}

static int dml__rotary_width(const dml_node *x, int heads)
{
    const int width = x->shape.ndim == 2 && heads > 0 && x->dtype == DML_F32 ? x->shape.dims[1] / heads : 0;
    return width % 2 == 0 && width * heads == x->shape.dims[1] ? width : 0;
}

static dml_status dml__rotary_infer(dml_node *node)
{
    const dml__rotary *o = dml__rotary_of(node);
    const dml_node *x = node->input[0];
    char text[DML_SHAPE_TEXT];
    if (!dml__rotary_width(x, o->heads))
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its input is %s %s; it takes f32 positions x %d heads beside each other, each of an "
            "even width",
            dml_dtype_name(x->dtype), dml_shape_format(&x->shape, text), o->heads);
    if (o->rotated < 1 || o->rotated > o->heads)
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "%d of %d heads are to be turned; it takes 1 to all",
                              o->rotated, o->heads);
    if (!(o->base > 0 && o->base <= 1e30f))
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "a base of %g asked for; it must be above 0",
                              (double)o->base);
    if (node->inputs > 1) node->limit = o->positions;
    node->shape = x->shape;
    node->batched = x->batched;
    return DML_OK;
}

static size_t dml__rotary_table_bytes(const dml__rotary *o, int width)
{
    return (size_t)o->positions * (size_t)width * sizeof(float);
}

static size_t dml__rotary_bytes_of(const dml_node *node)
{
    const dml__rotary *o = dml__rotary_of(node);
    return dml__rotary_table_bytes(o, node->shape.dims[1] / o->heads);
}

/* On a GPU, the table. */
static size_t dml__rotary_saved_bytes(const dml_node *node, int rows)
{
    (void)rows;
    if (dml__node_context(node)->device.host_memory) return 0;
    return dml__rotary_bytes_of(node);
}

/* to = from turned + beta to */
static dml_status dml__rotary_run(const dml__run *run, const dml_node *node, bool back, dml_ref from,
                                  float beta, dml_ref to)
{
    const dml__rotary *o = dml__rotary_of(node);
    const size_t heads = (size_t)o->heads, width = (size_t)node->shape.dims[1] / heads;
    const size_t positions = (size_t)node->shape.dims[0];
    const size_t rows = positions * (node->batched ? (size_t)run->rows : 1);
    if (run->device->host_memory) {
        const int32_t *places =
            node->inputs > 1 ? (const int32_t *)dml__host(dml__value(run, node->input[1])) : NULL;
        const dml_rotary_shape shape = { rows,           positions, heads, width, (size_t)o->rotated,
                                         o->interleaved, places };
        dml_rotary_apply(run->pool, &shape, dml__rotary_table_of(o), back, (const float *)dml__host(from),
                         beta, (float *)dml__host(to));
        return DML_OK;
    }
    dml_launch launch = dml__launch("rotary", rows * heads * (width / 2), 1);
    const int32_t integers[] = { (int32_t)launch.size[0], (int32_t)positions, (int32_t)heads,  (int32_t)width,
                                 (int32_t)o->rotated,     o->interleaved,     node->inputs > 1 };
    for (int i = 0; i < 7; i++) launch.integer[i] = integers[i];
    if (node->inputs > 1) launch.buffer[3] = dml__value(run, node->input[1]);
    launch.buffer[0] = from;
    launch.buffer[1] = dml__saved(run, node);
    launch.buffer[2] = to;
    launch.real[0] = back ? -1.0f : 1.0f;
    launch.real[1] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__rotary_op_forward(const dml__run *run, const dml_node *node)
{
    dml_status status = DML_OK;
    if (!run->device->host_memory)
        status = run->device->backend->write(run->device, dml__saved(run, node),
                                             dml__rotary_table_of(dml__rotary_of(node)),
                                             dml__rotary_bytes_of(node));
    if (status != DML_OK) return status;
    return dml__rotary_run(run, node, false, dml__value(run, node->input[0]), 0, dml__value(run, node));
}

static dml_status dml__rotary_op_backward(const dml__run *run, const dml_node *node)
{
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    return dml__rotary_run(run, node, true, dml__gradient(run, node), dml__beta(run, node, 0),
                           dml__gradient(run, node->input[0]));
}

static void dml__rotary_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml__rotary *o = dml__rotary_of(node);
    snprintf(text, bytes, "%d of %d heads, base %g%s", o->rotated, o->heads, (double)o->base,
             o->interleaved ? ", interleaved" : "");
}

static double dml__rotary_flops(const dml_node *node)
{
    const dml__rotary *o = dml__rotary_of(node);
    return 3.0 * (double)dml_shape_count(&node->shape) * o->rotated / o->heads;
}

DML__LOCAL const dml__op *dml__rotary_op(void)
{
    static const dml__op op = { "rotary",
                                dml__rotary_infer,
                                dml__rotary_op_forward,
                                dml__rotary_op_backward,
                                0,
                                dml__rotary_saved_bytes,
                                false,
                                true,
                                dml__rotary_describe,
                                dml__rotary_flops,
                                NULL };
    return &op;
}

/* The node's attributes are the numbers and, behind them, the table. */
static dml_node *dml__rotary_create(const dml__rotary *o, dml_node *x, dml_node *places)
{
    dml_context *context = dml__node_context(x);
    dml_node *const input[] = { x, places };
    const int width = dml__rotary_width(x, o->heads), inputs = places ? 2 : 1;
    if (!width) return dml__node_create(dml__rotary_op(), inputs, input, o, sizeof *o); /* which refuses it */
    const size_t bytes = sizeof *o + dml__rotary_table_bytes(o, width);
    dml__rotary *attributes = (dml__rotary *)dml__allocate(&context->memory, bytes);
    if (!attributes) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "rotary: no memory left for a table of %zu bytes",
                  bytes);
        return NULL;
    }
    *attributes = *o;
    dml_rotary_table((size_t)o->positions, (size_t)width, o->offset, (double)o->base,
                     (float *)(attributes + 1));
    dml_node *node = dml__node_create(dml__rotary_op(), inputs, input, attributes, bytes);
    dml__release(&context->memory, attributes);
    return node;
}

DML_API dml_node *dml_rotary(dml_node *x, int heads, const dml_rotary_options *options)
{
    if (!x) return NULL;
    dml__rotary o;
    memset(&o, 0, sizeof o);
    o.heads = heads;
    o.rotated = options && options->rotated ? options->rotated : heads;
    o.base = options && options->base != 0 ? options->base : 10000.0f;
    o.positions = x->shape.dims[0];
    if (options) {
        o.offset = options->offset;
        o.interleaved = options->interleaved;
    }
    return dml__rotary_create(&o, x, NULL);
}

DML__LOCAL dml_node *dml__rotary_at(const dml_node *like, dml_node *x, dml_node *places, int positions)
{
    if (!x || !places) return NULL;
    dml__rotary o = *dml__rotary_of(like);
    o.positions = positions;
    return dml__rotary_create(&o, x, places);
}

#endif
