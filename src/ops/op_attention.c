#ifndef DML_OPS_OP_ATTENTION_C
#define DML_OPS_OP_ATTENTION_C

#include "ops/op_attention.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_arithmetic.h"
#include "ops/op_attention_internal.h"
#include "ops/op_dense.h"
#include "ops/op_formula.h"
#include "ops/op_rotary.h"
#include "ops/op_shape.h"
#include "ops/table.h"
#include "kernels/attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const dml__attention *dml__attention_of(const dml_node *node)
{
    return (const dml__attention *)node->attributes;
}

/* How many heads lie beside each other in a node's input that is no length. */
static int64_t dml__attention_heads_in(const dml__attention *o, int input)
{
    const int64_t kv = o->kv_heads;
    if (o->packing == DML__ATTENTION_QKV) return o->heads + 2 * kv;
    if (input == 0) return o->heads;
    return o->packing == DML__ATTENTION_KV ? 2 * kv : kv;
}

static dml_status dml__attention_check_input(const dml_node *node, int i)
{
    static const char *const what[3][3] = { { "queries are", "keys are", "values are" },
                                            { "queries are", "keys and values are", "" },
                                            { "queries, keys and values are", "", "" } };
    const dml__attention *o = dml__attention_of(node);
    const dml_node *x = node->input[i], *first = node->input[0];
    const int64_t heads = dml__attention_heads_in(o, i), of_first = dml__attention_heads_in(o, 0);
    char text[DML_SHAPE_TEXT], first_text[DML_SHAPE_TEXT];
    if (x->dtype != DML_F32 || x->shape.ndim != 2 || x->shape.dims[1] % heads)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its %s %s %s; they must be f32 positions x %lld heads beside each other",
                              what[o->packing][i], dml_dtype_name(x->dtype),
                              dml_shape_format(&x->shape, text), (long long)heads);
    if (x->shape.dims[1] / heads != first->shape.dims[1] / of_first)
        return dml__node_fail(
            node, DML_ERROR_SHAPE,
            "its %s %s, %lld heads of %lld numbers, and its queries %s, %lld heads of %lld; "
            "heads must be of one width",
            what[o->packing][i], dml_shape_format(&x->shape, text), (long long)heads,
            (long long)(x->shape.dims[1] / heads), dml_shape_format(&first->shape, first_text),
            (long long)of_first, (long long)(first->shape.dims[1] / of_first));
    if (x->batched != first->batched)
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its queries are %s and its %s %s; all or none must be of each sample",
                              first->batched ? "of each sample" : "the same for each", what[o->packing][i],
                              x->batched ? "of each sample" : "the same for each");
    return DML_OK;
}

static dml_status dml__attention_infer(dml_node *node)
{
    const dml__attention *o = dml__attention_of(node);
    const int k = dml__attention_input(o, 1), v = dml__attention_input(o, 2);
    const dml_node *lengths = dml__attention_lengths(node);
    char text[DML_SHAPE_TEXT], v_text[DML_SHAPE_TEXT];
    if (o->heads < 1 || o->kv_heads < 1 || o->heads % o->kv_heads)
        return dml__node_fail(
            node, DML_ERROR_ARGUMENT,
            "%d heads asked for, with %d of keys and values; it takes 1 or more, and so many "
            "of the queries' as the others divide",
            o->heads, o->kv_heads);
    if (o->window < 0 || !(o->scale > -HUGE_VALF && o->scale < HUGE_VALF))
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "a window of %d and a scale of %g asked for; a window is 0, for none, or more, "
                              "and a scale finite",
                              o->window, (double)o->scale);
    for (int i = 0; i <= v; i++) {
        const dml_status status = dml__attention_check_input(node, i);
        if (status != DML_OK) return status;
    }
    const dml_node *q = node->input[0];
    const int keys = node->input[k]->shape.dims[0];
    if (node->input[v]->shape.dims[0] != keys)
        return dml__node_fail(node, DML_ERROR_SHAPE, "its keys are %s and its values %s: one value for a key",
                              dml_shape_format(&node->input[k]->shape, text),
                              dml_shape_format(&node->input[v]->shape, v_text));
    if (lengths && (lengths->dtype != DML_I32 || lengths->shape.ndim || lengths->batched != q->batched))
        return dml__node_fail(node, DML_ERROR_SHAPE,
                              "its lengths are %s %s%s; they must be an input of i32, one number a sample",
                              dml_dtype_name(lengths->dtype), dml_shape_format(&lengths->shape, text),
                              lengths->batched ? "" : " for all samples");
    if (lengths) node->limit = keys < INT32_MAX ? keys + 1 : keys;
    node->batched = q->batched;
    node->shape = q->shape;
    node->shape.dims[1] = (int)(q->shape.dims[1] / dml__attention_heads_in(o, 0) * o->heads);
    return DML_OK;
}

DML__LOCAL dml_attention_shape dml__attention_shape_of(const dml_node *node, int rows)
{
    const dml__attention *o = dml__attention_of(node);
    dml_attention_shape s;
    const dml_node *part[3];
    for (int i = 0; i < 3; i++) part[i] = node->input[dml__attention_input(o, i)];
    s.samples = node->batched ? (size_t)rows : 1;
    s.queries = (size_t)node->shape.dims[0];
    s.keys = (size_t)part[1]->shape.dims[0];
    s.heads = (size_t)o->heads;
    s.kv_heads = (size_t)o->kv_heads;
    s.width = (size_t)node->shape.dims[1] / s.heads;
    s.q_step = (size_t)part[0]->shape.dims[1];
    s.k_step = (size_t)part[1]->shape.dims[1];
    s.v_step = (size_t)part[2]->shape.dims[1];
    s.causal = o->causal;
    s.past = false;
    s.kv_head_step = 0;
    s.window = (size_t)o->window;
    s.scale = o->scale != 0 ? o->scale : (float)(1 / sqrt((double)s.width));
    return s;
}

/* Where a part begins in its input's value or gradient. */
static dml_ref dml__attention_part(const dml_node *node, int part, dml_ref of_input)
{
    const dml__attention *o = dml__attention_of(node);
    const int width = node->shape.dims[1] / o->heads;
    of_input.offset += (size_t)dml__attention_column(o, part, width) * sizeof(float);
    return of_input;
}

DML__LOCAL dml_ref dml__attention_value(const dml__run *run, const dml_node *node, int part)
{
    const dml__attention *o = dml__attention_of(node);
    return dml__attention_part(node, part, dml__value(run, node->input[dml__attention_input(o, part)]));
}

static const float *dml__attention_host(const dml__run *run, const dml_node *node, int part)
{
    return (const float *)dml__host(dml__attention_value(run, node, part));
}

static const int32_t *dml__attention_host_lengths(const dml__run *run, const dml_node *node)
{
    const dml_node *lengths = dml__attention_lengths(node);
    return lengths ? (const int32_t *)dml__host(dml__value(run, lengths)) : NULL;
}

/* Left for backward: log_sums, and on a GPU behind them what each query's slopes are measured from, and the
   lengths: (samples, heads, queries) twice, (samples). */
static size_t dml__attention_lines(const dml_node *node, int rows)
{
    return (node->batched ? (size_t)rows : 1) * (size_t)dml__attention_of(node)->heads *
           (size_t)node->shape.dims[0];
}

DML__LOCAL size_t dml__attention_saved_bytes(const dml_node *node, int rows)
{
    const size_t lines = dml__attention_lines(node, rows);
    if (dml__node_context(node)->device.host_memory) return lines * sizeof(float);
    return (2 * lines + (node->batched ? (size_t)rows : 1)) * sizeof(float);
}

/* ---- on a GPU ---- */

enum { DML__ATTENTION_TILE = 64 }; /* of the kernels: columns of the output that a group does */

/* With the numbers that all kernels take; buffers 0 to 3 are q, k, v and what was saved. */
static dml_launch dml__attention_launch(const dml__run *run, const dml_node *node,
                                        const dml_attention_shape *s, const char *kernel, size_t x,
                                        size_t heads)
{
    const size_t pieces = (s->width + DML__ATTENTION_TILE - 1) / DML__ATTENTION_TILE;
    const int32_t before = s->window ? (int32_t)s->window - 1 : INT32_MAX;
    dml_launch launch = dml__launch(kernel, x, s->samples * heads * pieces);
    const int32_t integers[] = { (int32_t)s->samples,    (int32_t)s->queries,
                                 (int32_t)s->keys,       (int32_t)s->heads,
                                 (int32_t)s->kv_heads,   (int32_t)s->width,
                                 (int32_t)s->q_step,     (int32_t)s->k_step,
                                 (int32_t)s->v_step,     before,
                                 s->causal ? 0 : before, dml__attention_lengths(node) != NULL };
    for (int i = 0; i < 12; i++) launch.integer[i] = integers[i];
    for (int i = 0; i < 3; i++) launch.buffer[i] = dml__attention_value(run, node, i);
    launch.buffer[3] = dml__saved(run, node);
    launch.integer[13] = s->past;
    launch.integer[14] = (int32_t)s->kv_head_step;
    launch.real[0] = s->scale;
    return launch;
}

static dml_status dml__attention_forward_launch(const dml__run *run, const dml_node *node,
                                                const dml_attention_shape *s, const dml_ref part[3])
{
    const dml_node *lengths = dml__attention_lengths(node);
    if (lengths) {
        dml_ref to = dml__saved(run, node);
        to.offset += 2 * dml__attention_lines(node, run->rows) * sizeof(float);
        const dml_status status = run->device->backend->copy(run->device, to, dml__value(run, lengths),
                                                             dml__count(run, lengths) * sizeof(int32_t));
        if (status != DML_OK) return status;
    }
    dml_launch launch = dml__attention_launch(run, node, s, "attention_forward", s->queries, s->heads);
    for (int i = 0; i < 3; i++) launch.buffer[i] = part[i];
    launch.buffer[4] = dml__value(run, node);
    return dml__submit(run->device, &launch);
}

/* One gradient after the other: each makes the scores again. */
static dml_status dml__attention_backward_launch(const dml__run *run, const dml_node *node)
{
    const dml__attention *o = dml__attention_of(node);
    const dml_attention_shape s = dml__attention_shape_of(node, run->rows);
    dml_launch launch =
        dml__attention_launch(run, node, &s, "attention_levels", dml__attention_lines(node, run->rows), 1);
    launch.size[1] = 1;
    launch.buffer[0] = dml__value(run, node);
    launch.buffer[1] = dml__gradient(run, node);
    dml_status status = dml__submit(run->device, &launch);
    for (int part = 0; part < 3 && status == DML_OK; part++) {
        const int i = dml__attention_input(o, part);
        if (!dml__wants_gradient(run, node, i)) continue;
        launch = dml__attention_launch(run, node, &s, "attention_backward", part ? s.keys : s.queries,
                                       part ? s.kv_heads : s.heads);
        launch.integer[12] = part;
        launch.buffer[4] = dml__gradient(run, node);
        launch.buffer[5] = dml__attention_part(node, part, dml__gradient(run, node->input[i]));
        launch.real[1] = dml__beta(run, node, i);
        status = dml__submit(run->device, &launch);
    }
    return status;
}

/* ---- both passes ---- */

DML__LOCAL dml_status dml__attention_forward(const dml__run *run, const dml_node *node,
                                             const dml_attention_shape *s, const dml_ref part[3])
{
    if (!run->device->host_memory) return dml__attention_forward_launch(run, node, s, part);
    dml_attention_forward(run->pool, s, (const float *)dml__host(part[0]), (const float *)dml__host(part[1]),
                          (const float *)dml__host(part[2]), dml__attention_host_lengths(run, node),
                          (float *)dml__host(dml__saved(run, node)), dml__host_value(run, node));
    return DML_OK;
}

static dml_status dml__attention_op_forward(const dml__run *run, const dml_node *node)
{
    const dml_attention_shape s = dml__attention_shape_of(node, run->rows);
    dml_ref part[3];
    for (int i = 0; i < 3; i++) part[i] = dml__attention_value(run, node, i);
    return dml__attention_forward(run, node, &s, part);
}

static void dml__attention_backward_host(const dml__run *run, const dml_node *node,
                                         const dml_attention_gradients *gradients)
{
    const dml_attention_shape s = dml__attention_shape_of(node, run->rows);
    dml_attention_backward(run->pool, &s, dml__attention_host(run, node, 0),
                           dml__attention_host(run, node, 1), dml__attention_host(run, node, 2),
                           dml__attention_host_lengths(run, node),
                           (const float *)dml__host(dml__saved(run, node)), dml__host_value(run, node),
                           dml__host_gradient(run, node), gradients);
}

static dml_status dml__attention_op_backward(const dml__run *run, const dml_node *node)
{
    const dml__attention *o = dml__attention_of(node);
    dml_attention_gradients all, one;
    bool shared = false;
    if (!run->device->host_memory) return dml__attention_backward_launch(run, node);
    memset(&all, 0, sizeof all);
    for (int part = 0; part < 3; part++) {
        const int i = dml__attention_input(o, part);
        if (!dml__wants_gradient(run, node, i)) continue;
        all.of[part] =
            (float *)dml__host(dml__attention_part(node, part, dml__gradient(run, node->input[i])));
        all.beta[part] = dml__beta(run, node, i);
        for (int other = 0; other < part; other++) shared = shared || all.of[other] == all.of[part];
    }
    if (!shared) {
        dml__attention_backward_host(run, node, &all);
        return DML_OK;
    }
    for (int part = 0; part < 3; part++) { /* of one tensor that is two or three of them */
        memset(&one, 0, sizeof one);
        one.of[part] = all.of[part];
        one.beta[part] = all.beta[part];
        if (one.of[part]) dml__attention_backward_host(run, node, &one);
    }
    return DML_OK;
}

static dml_scratch dml__attention_op_scratch(const dml_node *node, int rows, bool training)
{
    const dml_attention_shape s = dml__attention_shape_of(node, rows);
    return dml_attention_scratch(&s, training);
}

DML__LOCAL void dml__attention_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml__attention *o = dml__attention_of(node);
    int used = snprintf(text, bytes, "%d heads", o->heads);
    if (o->kv_heads != o->heads && used < (int)bytes)
        used += snprintf(text + used, bytes - (size_t)used, " on %d", o->kv_heads);
    if (o->causal && used < (int)bytes) used += snprintf(text + used, bytes - (size_t)used, ", causal");
    if (o->window && used < (int)bytes) snprintf(text + used, bytes - (size_t)used, ", window %d", o->window);
}

/* Two products, and of each score its exponential, difference and sum, for the keys that a query sees. */
static double dml__attention_flops(const dml_node *node)
{
    const dml_attention_shape s = dml__attention_shape_of(node, 1);
    double pairs = 0;
    for (size_t t = 0; t < s.queries; t++) {
        const size_t first = s.window && t + 1 > s.window ? t + 1 - s.window : 0;
        size_t end = s.causal ? t + 1 : s.window ? t + s.window : s.keys;
        if (end > s.keys) end = s.keys;
        if (end > first) pairs += (double)(end - first);
    }
    return pairs * (double)s.heads * (4.0 * (double)s.width + 3);
}

DML__LOCAL const dml__op *dml__attention_op(void)
{
    static const dml__op op = { "attention",
                                dml__attention_infer,
                                dml__attention_op_forward,
                                dml__attention_op_backward,
                                DML__NEEDS_INPUTS | DML__NEEDS_OUTPUT | DML__READS_EXACTLY,
                                dml__attention_saved_bytes,
                                false,
                                false,
                                dml__attention_describe,
                                dml__attention_flops,
                                dml__attention_op_scratch };
    return &op;
}

/* ---- builders ---- */

static dml_node *dml__attention_create(dml__attention_packing packing, int heads, dml_node *a, dml_node *b,
                                       dml_node *c, const dml_attention_options *options)
{
    dml_node *inputs[4] = { a, b, c, NULL };
    const int parts = packing == DML__ATTENTION_APART ? 3 : packing == DML__ATTENTION_KV ? 2 : 1;
    dml__attention o;
    memset(&o, 0, sizeof o);
    o.packing = packing;
    o.heads = o.kv_heads = heads;
    if (options) {
        if (options->kv_heads) o.kv_heads = options->kv_heads;
        o.causal = options->causal;
        o.window = options->window;
        o.scale = options->scale;
        inputs[parts] = options->lengths;
    }
    return dml__node_create(dml__attention_op(), parts + (options && options->lengths ? 1 : 0), inputs, &o,
                            sizeof o);
}

DML_API dml_node *dml_attention(dml_node *q, dml_node *k, dml_node *v, int heads,
                                const dml_attention_options *options)
{
    return dml__attention_create(DML__ATTENTION_APART, heads, q, k, v, options);
}

DML_API dml_node *dml_attention_packed(dml_node *qkv, int heads, const dml_attention_options *options)
{
    return dml__attention_create(DML__ATTENTION_QKV, heads, qkv, NULL, NULL, options);
}

/* ---- the layer ---- */

/* The sizes of a layer, and the parameters that it makes or takes: of q, k and v, and behind them. */
typedef struct dml__heads {
    int heads, kv_heads, width, channels, rows; /* rows: of the weights of q, k and v */
    dml_multi_head_attention_options o;
    dml_node *parameter[4];
    char layer[DML_NAME_BYTES];
} dml__heads;

static dml__heads dml__heads_of(const dml_node *x, int heads, const dml_multi_head_attention_options *options)
{
    dml__heads h;
    memset(&h, 0, sizeof h);
    if (options) h.o = *options;
    h.heads = heads;
    h.kv_heads = h.o.kv_heads ? h.o.kv_heads : heads;
    h.channels = x->shape.ndim == 2 && x->shape.dims[1] <= INT32_MAX / 3 ? x->shape.dims[1] : 0;
    if (heads > 0 && h.kv_heads > 0 && heads % h.kv_heads == 0 && h.channels % heads == 0)
        h.width = h.channels / heads;
    h.rows = h.width ? h.width * (heads + 2 * h.kv_heads) : 0;
    return h;
}

DML__LOCAL const char *dml__heads_name(int i)
{
    static const char *const name[] = { "in_proj_weight", "in_proj_bias", "out_proj.weight",
                                        "out_proj.bias" };
    return name[i];
}

/* As PyTorch's: by Glorot, within 1 / sqrt(channels), and zeros. */
DML__LOCAL dml_initializer dml__heads_init(int i, int rows, int channels)
{
    const double glorot = sqrt(6.0 / ((double)rows + channels)), plain = 1 / sqrt((double)channels);
    const float bound = (float)(i == 0 ? glorot : plain);
    return i % 2 ? dml_init_constant(0) : dml_init_uniform(-bound, bound);
}

/* All that may be wrong is found before anything is built, since what uses parameters can't be taken back. */
static dml_status dml__heads_check(const dml_node *x, const dml__heads *h)
{
    const int first[] = { h->rows, h->rows, h->channels, h->channels };
    const dml_node *memory = h->o.memory, *lengths = h->o.lengths;
    dml__error *error = &dml__node_context(x)->error;
    char text[DML_SHAPE_TEXT];
    if (x->dtype != DML_F32 || x->shape.ndim != 2)
        return dml__fail(error, DML_ERROR_SHAPE,
                         "multi_head_attention: its input is %s %s; it takes f32 positions x channels",
                         dml_dtype_name(x->dtype), dml_shape_format(&x->shape, text));
    if (!h->width)
        return dml__fail(
            error, DML_ERROR_ARGUMENT,
            "multi_head_attention: %d channels, %d heads and %d of keys and values asked for; the "
            "heads must divide the channels, and those of keys and values the heads",
            h->channels, h->heads, h->kv_heads);
    if (h->o.window < 0 || (h->o.rotary && (h->width % 2 || h->o.rotary_base < 0)))
        return dml__fail(
            error, DML_ERROR_ARGUMENT,
            "multi_head_attention: a window of %d, rotary positions in heads of width %d with a base "
            "of %g; a window and a base are 0 or more, and such heads of an even width",
            h->o.window, h->width, (double)h->o.rotary_base);
    if (!h->o.rotary && h->o.rotary_base != 0)
        return dml__fail(
            error, DML_ERROR_ARGUMENT,
            "multi_head_attention: a rotary_base of %g asked for, but rotary is false; set rotary "
            "too, or leave both out",
            (double)h->o.rotary_base);
    if (memory && (memory->dtype != DML_F32 || memory->shape.ndim != 2 || memory->batched != x->batched ||
                   memory->shape.dims[1] != h->channels))
        return dml__fail(
            error, DML_ERROR_SHAPE,
            "multi_head_attention: its memory is %s %s%s; it must be f32 positions x %d, of each sample like "
            "the input, or of none",
            dml_dtype_name(memory->dtype), dml_shape_format(&memory->shape, text),
            memory->batched ? " a sample" : "", h->channels);
    if (lengths && (lengths->dtype != DML_I32 || lengths->shape.ndim || lengths->batched != x->batched))
        return dml__fail(
            error, DML_ERROR_SHAPE,
            "multi_head_attention: its lengths are %s %s; they must be an input of i32, one number a "
            "sample",
            dml_dtype_name(lengths->dtype), dml_shape_format(&lengths->shape, text));
    for (int i = 0; i < 4; i++) {
        const dml_node *p = h->parameter[i];
        if (!p) continue;
        const int dims = i % 2 ? 1 : 2;
        if (p->dtype == DML_F32 && !p->batched && p->shape.ndim == dims && p->shape.dims[0] == first[i] &&
            (dims == 1 || p->shape.dims[1] == h->channels))
            continue;
        return dml__fail(error, DML_ERROR_SHAPE,
                         "multi_head_attention: its %s is %s %s%s; it must be f32 %d%s", dml__heads_name(i),
                         dml_dtype_name(p->dtype), dml_shape_format(&p->shape, text),
                         p->batched ? " a sample" : "", first[i], i % 2 ? "" : " x channels");
    }
    return DML_OK;
}

/* A projection by rows first .. end - 1 of a weight and a bias. */
static dml_node *dml__heads_project(dml_node *x, const dml__heads *h, int first, int end)
{
    dml_node *weight = h->parameter[0], *bias = h->parameter[1];
    if (end - first < h->rows) {
        weight = dml_slice(weight, 0, first, end);
        if (bias) bias = dml_slice(bias, 0, first, end);
    }
    return weight ? dml_dense_with(x, weight, bias) : NULL;
}

static dml_node *dml__heads_turn(dml_node *x, const dml__heads *h, int heads, int rotated)
{
    dml_rotary_options rotary;
    memset(&rotary, 0, sizeof rotary);
    rotary.base = h->o.rotary_base;
    rotary.rotated = rotated;
    return h->o.rotary ? dml_rotary(x, heads, &rotary) : x;
}

/* The rows first .. end - 1, of so many heads of which some are turned, as nodes of the layer's own scope. */
static dml_node *dml__heads_begin(dml_node *x, const dml__heads *h, int first, int end, int heads, int turned)
{
    if (dml_push_scope(x->graph, "%s", h->layer) != DML_OK) return NULL;
    dml_node *begun = dml__heads_turn(dml__heads_project(x, h, first, end), h, heads, turned);
    dml_pop_scope(x->graph);
    return begun;
}

static dml_node *dml__heads_end(dml_node *mixed, const dml__heads *h)
{
    if (!mixed || dml_push_scope(mixed->graph, "%s", h->layer) != DML_OK) return NULL;
    dml_node *ended = dml_dense_with(mixed, h->parameter[2], h->parameter[3]);
    dml_pop_scope(mixed->graph);
    return ended;
}

static dml_node *dml__heads_mix(dml_node *x, const dml__heads *h)
{
    dml_attention_options attention;
    memset(&attention, 0, sizeof attention);
    attention.kv_heads = h->kv_heads;
    attention.causal = h->o.causal;
    attention.window = h->o.window;
    attention.lengths = h->o.lengths;
    if (h->o.memory) {
        dml_node *q = dml__heads_begin(x, h, 0, h->channels, h->heads, 0);
        dml_node *kv = dml__heads_begin(h->o.memory, h, h->channels, h->rows, 2 * h->kv_heads, h->kv_heads);
        return dml__attention_create(DML__ATTENTION_KV, h->heads, q, kv, NULL, &attention);
    }
    const int turned = h->heads + h->kv_heads;
    return dml_attention_packed(dml__heads_begin(x, h, 0, h->rows, turned + h->kv_heads, turned), h->heads,
                                &attention);
}

/* Of what can't be built nothing is left that came after `last`. */
static dml_node *dml__heads_build(dml_node *x, dml__heads *h, dml_node *last)
{
    dml_node *built = NULL;
    if (dml__layer_name(x->graph, dml__attention_op(), h->layer) == DML_OK)
        built = dml__heads_end(dml__heads_mix(x, h), h);
    if (!built) dml__graph_drop_after(x->graph, last);
    return built;
}

DML_API dml_node *dml_multi_head_attention_with(dml_node *x, int heads, dml_node *in_weight,
                                                dml_node *in_bias, dml_node *out_weight, dml_node *out_bias,
                                                const dml_multi_head_attention_options *options)
{
    if (!x) return NULL;
    dml__heads h = dml__heads_of(x, heads, options);
    dml_node *const parameters[] = { in_weight, in_bias, out_weight, out_bias };
    for (int i = 0; i < 4; i++) h.parameter[i] = parameters[i];
    if (dml__heads_check(x, &h) != DML_OK) return NULL;
    if (in_weight && out_weight) return dml__heads_build(x, &h, x->graph->last);
    dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
              "multi_head_attention: its in_proj_weight or out_proj.weight is NULL; only biases may be");
    return NULL;
}

DML_API dml_node *dml_multi_head_attention(dml_node *x, int heads,
                                           const dml_multi_head_attention_options *options)
{
    if (!x) return NULL;
    dml__heads h = dml__heads_of(x, heads, options);
    if (dml__heads_check(x, &h) != DML_OK) return NULL;
    dml_node *last = x->graph->last;
    bool made = true;
    for (int i = 0; i < 4 && made; i++) {
        const int rows = i < 2 ? h.rows : h.channels;
        if (i % 2 && h.o.no_bias) continue;
        h.parameter[i] = dml__layer_parameter(x->graph, dml__attention_op(), dml__heads_name(i),
                                              dml__heads_init(i, h.rows, h.channels),
                                              i % 2 ? dml_shape_of(rows) : dml_shape_of(rows, h.channels));
        made = h.parameter[i] != NULL;
    }
    if (made) return dml__heads_build(x, &h, last);
    dml__graph_drop_after(x->graph, last);
    return NULL;
}

DML_API dml_node *dml_learned_positions(dml_node *x)
{
    if (!x) return NULL;
    dml_node *last = x->graph->last;
    dml_node *positions = dml__layer_parameter(x->graph, dml__formula_op(DML__FORMULA_add), "positions",
                                               dml_init_normal(0, 0.02f), x->shape);
    dml_node *sum = positions ? dml_add(x, positions) : NULL;
    if (!sum) dml__graph_drop_after(x->graph, last);
    return sum;
}

#endif
