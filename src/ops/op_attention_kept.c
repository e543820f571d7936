#ifndef DML_OPS_OP_ATTENTION_KEPT_C
#define DML_OPS_OP_ATTENTION_KEPT_C

#include "ops/op_attention_internal.h"
#include "ops/table.h"

#include <string.h>

/* Attention that keeps its keys and values from run to run: what a decoder (decode/decoder.h) has in place of
   one that sees all positions at once. */

static const dml__attention_kept *dml__attention_kept_of(const dml_node *node)
{
    return (const dml__attention_kept *)node->attributes;
}

static dml_status dml__attention_kept_infer(dml_node *node)
{
    const dml__attention_kept *o = dml__attention_kept_of(node);
    const dml_node *q = node->input[0];
    const int all = o->attention.packing == DML__ATTENTION_QKV
                        ? o->attention.heads + 2 * o->attention.kv_heads
                        : o->attention.heads;
    node->limit = o->positions - q->shape.dims[0] + 1;
    node->batched = q->batched;
    node->shape = q->shape;
    node->shape.dims[1] = q->shape.dims[1] / all * o->attention.heads;
    return DML_OK;
}

static dml_attention_shape dml__attention_kept_shape(const dml_node *node, int rows)
{
    dml_attention_shape s = dml__attention_shape_of(node, rows);
    s.keys = (size_t)dml__attention_kept_of(node)->positions;
    s.k_step = s.v_step = s.width;
    s.kv_head_step = 2 * s.keys * s.width;
    s.past = true;
    return s;
}

/* Of each row of x the heads, each behind what is kept of its. */
static void dml__keep_rows(const dml_attention_shape *s, const float *x, size_t x_step, const int32_t *past,
                           float *kept)
{
    for (size_t n = 0; n < s->samples; n++)
        for (size_t t = 0; t < s->queries; t++)
            for (size_t h = 0; h < s->kv_heads; h++)
                memcpy(kept + (n * s->kv_heads + h) * s->kv_head_step + ((size_t)past[n] + t) * s->width,
                       x + (n * s->queries + t) * x_step + h * s->width, s->width * sizeof *x);
}

/* The keys, or the values, of this run: kept. */
static dml_status dml__attention_store(const dml__run *run, const dml_node *node,
                                       const dml_attention_shape *s, int part, dml_ref to)
{
    const dml_ref x = dml__attention_value(run, node, part);
    const dml_ref past = dml__value(run, dml__attention_lengths(node));
    const int input = dml__attention_input(&dml__attention_kept_of(node)->attention, part);
    const size_t step = (size_t)node->input[input]->shape.dims[1];
    if (run->device->host_memory) {
        dml__keep_rows(s, (const float *)dml__host(x), step, (const int32_t *)dml__host(past),
                       (float *)dml__host(to));
        return DML_OK;
    }
    dml_launch launch = dml__launch("keep_rows", s->samples * s->queries * s->kv_heads * s->width, 1);
    const int32_t integers[] = { (int32_t)launch.size[0], (int32_t)s->queries, (int32_t)s->kv_heads,
                                 (int32_t)s->width,       (int32_t)step,       (int32_t)s->kv_head_step };
    for (int i = 0; i < 6; i++) launch.integer[i] = integers[i];
    launch.buffer[0] = x;
    launch.buffer[1] = past;
    launch.buffer[2] = to;
    return dml__submit(run->device, &launch);
}

static dml_status dml__attention_kept_forward(const dml__run *run, const dml_node *node)
{
    const dml_attention_shape s = dml__attention_kept_shape(node, run->rows);
    const dml__attention_kept *o = dml__attention_kept_of(node);
    dml_ref part[3];
    if (!o->kept.buffer || o->graph != node->graph)
        return dml__fail(run->error, DML_ERROR_STATE, "attention_kept '%s' is a decoder's, which is gone",
                         node->name);
    part[0] = dml__attention_value(run, node, 0);
    part[1] = part[2] = o->kept;
    part[2].offset += s.keys * s.width * sizeof(float);
    dml_status status = dml__attention_store(run, node, &s, 1, part[1]);
    if (status == DML_OK) status = dml__attention_store(run, node, &s, 2, part[2]);
    return status == DML_OK ? dml__attention_forward(run, node, &s, part) : status;
}

static dml_scratch dml__attention_kept_scratch(const dml_node *node, int rows, bool training)
{
    const dml_attention_shape s = dml__attention_kept_shape(node, rows);
    return dml_attention_scratch(&s, training);
}

/* Of a query that sees all positions. */
static double dml__attention_kept_flops(const dml_node *node)
{
    const dml_attention_shape s = dml__attention_kept_shape(node, 1);
    return (double)(s.queries * s.keys * s.heads) * (4.0 * (double)s.width + 3);
}

DML__LOCAL const dml__op *dml__attention_kept_op(void)
{
    static const dml__op op = { "attention_kept",
                                dml__attention_kept_infer,
                                dml__attention_kept_forward,
                                NULL,
                                0,
                                dml__attention_saved_bytes,
                                false,
                                false,
                                dml__attention_describe,
                                dml__attention_kept_flops,
                                dml__attention_kept_scratch };
    return &op;
}

DML__LOCAL size_t dml__attention_kept_bytes(const dml_node *like, int samples, int positions)
{
    const dml_attention_shape s = dml__attention_shape_of(like, samples);
    return (size_t)samples * (size_t)positions * 2 * s.kv_heads * s.width * sizeof(float);
}

DML__LOCAL void dml__attention_forget(dml_node *node)
{
    ((dml__attention_kept *)node->attributes)->kept.buffer = NULL;
}

/* Of each head the keys and the values lie in a row, as far as there are some. In a device's memory copies
   take their time, and so all goes at once. */
DML__LOCAL dml_status dml__attention_copy(const dml_node *node, int from, int to, int positions)
{
    const dml_attention_shape s = dml__attention_kept_shape(node, 1);
    const size_t all = s.kv_heads * s.kv_head_step * sizeof(float);
    dml_device *device = &dml__node_context(node)->device;
    const size_t pieces = device->host_memory ? 2 * s.kv_heads : 1, step = all / pieces;
    const size_t bytes = device->host_memory ? (size_t)positions * s.width * sizeof(float) : all;
    dml_ref source = dml__attention_kept_of(node)->kept, target = source;
    source.offset += (size_t)from * all;
    target.offset += (size_t)to * all;
    dml_status status = DML_OK;
    for (size_t i = 0; i < pieces && status == DML_OK && bytes; i++) {
        status = device->backend->copy(device, target, source, bytes);
        source.offset += step;
        target.offset += step;
    }
    return status;
}

DML__LOCAL dml_node *dml__attention_keeping(const dml_node *like, dml_node *const *input, dml_node *past,
                                            dml_ref kept, int positions)
{
    dml__attention_kept o;
    dml_node *all[4];
    memset(&o, 0, sizeof o);
    o.attention = *(const dml__attention *)like->attributes;
    o.graph = like->graph;
    o.kept = kept;
    o.positions = positions;
    const int parts = dml__attention_input(&o.attention, 2) + 1;
    for (int i = 0; i < parts; i++) all[i] = input[i];
    all[parts] = past;
    return dml__node_create(dml__attention_kept_op(), parts + 1, all, &o, sizeof o);
}

#endif
