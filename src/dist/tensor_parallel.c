#ifndef DML_DIST_TENSOR_PARALLEL_C
#define DML_DIST_TENSOR_PARALLEL_C

#include "dist/tensor_parallel.h"

#include "base/memory.h"
#include "dist/model_ranks.h"
#include "graph/node.h"
#include "graph/op.h"
#include "kernels/elementwise.h"
#include "ops/op_attention_internal.h"
#include "ops/op_dense.h"
#include "ops/op_rotary.h"
#include "ops/table.h"

#include <stdio.h>
#include <string.h>

/* ---- the two nodes ---- */

static dml_status dml__parallel_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    char text[DML_SHAPE_TEXT];
    if (x->dtype != DML_F32)
        return dml__node_fail(node, DML_ERROR_SHAPE, "its input is %s %s; it takes f32",
                              dml_dtype_name(x->dtype), dml_shape_format(&x->shape, text));
    node->dtype = x->dtype;
    node->batched = x->batched;
    node->shape = x->shape;
    return DML_OK;
}

static dml_status dml__parallel_copy_infer(dml_node *node)
{
    node->partial = node->copies = true;
    return dml__parallel_infer(node);
}

static dml_status dml__parallel_sum_infer(dml_node *node)
{
    node->sums = true;
    return dml__parallel_infer(node);
}

/* to = from + beta what is there. */
static dml_status dml__parallel_pass_on(const dml__run *run, size_t n, dml_ref from, float beta, dml_ref to)
{
    if (beta == 0.0f && from.buffer == to.buffer && from.offset == to.offset) return DML_OK;
    if (run->device->host_memory) {
        dml_axpby(run->pool, n, 1.0f, (const float *)dml__host(from), beta, (float *)dml__host(to));
        return DML_OK;
    }
    dml_launch launch = dml__launch("axpby", n, 1);
    launch.buffer[0] = from;
    launch.buffer[1] = to;
    launch.integer[0] = (int32_t)n;
    launch.real[0] = 1.0f;
    launch.real[1] = beta;
    return dml__submit(run->device, &launch);
}

static dml_status dml__parallel_copy_forward(const dml__run *run, const dml_node *node)
{
    return dml__parallel_pass_on(run, dml__count(run, node), dml__value(run, node->input[0]), 0,
                                 dml__value(run, node));
}

static dml_status dml__parallel_copy_backward(const dml__run *run, const dml_node *node)
{
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    return dml__sum_over_model(run, node, dml__count(run, node), dml__gradient(run, node),
                               dml__beta(run, node, 0), dml__gradient(run, node->input[0]));
}

/* Columns of the bias of a layer whose parts are summed. */
static size_t dml__parallel_columns(const dml_node *node)
{
    return dml_shape_count(&node->input[1]->shape);
}

/* y (rows, columns) += bias */
static dml_status dml__parallel_add_bias(const dml__run *run, const dml_node *node)
{
    const size_t n = dml__count(run, node), columns = dml__parallel_columns(node);
    if (run->device->host_memory) {
        dml_bias_add(run->pool, n / columns, columns, dml__host_value(run, node->input[1]),
                     dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__launch("bias_add", n, 1);
    launch.buffer[0] = dml__value(run, node->input[1]);
    launch.buffer[1] = dml__value(run, node);
    launch.integer[0] = (int32_t)(n / columns);
    launch.integer[1] = (int32_t)columns;
    return dml__submit(run->device, &launch);
}

static dml_status dml__parallel_sum_forward(const dml__run *run, const dml_node *node)
{
    const dml_status status = dml__sum_over_model(run, node, dml__count(run, node),
                                                  dml__value(run, node->input[0]), 0, dml__value(run, node));
    return status == DML_OK && node->inputs > 1 ? dml__parallel_add_bias(run, node) : status;
}

static dml_status dml__parallel_sum_backward(const dml__run *run, const dml_node *node)
{
    const size_t n = dml__count(run, node);
    dml_status status = DML_OK;
    if (node->inputs > 1 && dml__wants_gradient(run, node, 1))
        status = dml__sum_rows_into_gradient(run, node, 1, n / dml__parallel_columns(node),
                                             dml__parallel_columns(node), dml__no_parts);
    if (status != DML_OK || !dml__wants_gradient(run, node, 0)) return status;
    return dml__parallel_pass_on(run, n, dml__gradient(run, node), dml__beta(run, node, 0),
                                 dml__gradient(run, node->input[0]));
}

static void dml__parallel_describe(const dml_node *node, char *text, size_t bytes)
{
    snprintf(text, bytes, "%d ranks", node->graph->model.ranks);
}

static const dml__op *dml__parallel_copy_op(void)
{
    static const dml__op op = { "parallel_copy",
                                dml__parallel_copy_infer,
                                dml__parallel_copy_forward,
                                dml__parallel_copy_backward,
                                0,
                                NULL,
                                false,
                                true,
                                dml__parallel_describe,
                                dml__no_flops,
                                NULL };
    return &op;
}

static const dml__op *dml__parallel_sum_op(void)
{
    static const dml__op op = { "parallel_sum",
                                dml__parallel_sum_infer,
                                dml__parallel_sum_forward,
                                dml__parallel_sum_backward,
                                0,
                                NULL,
                                false,
                                true,
                                dml__parallel_describe,
                                dml__no_flops,
                                NULL };
    return &op;
}

/* `bias`: of a layer whose parts are summed, or NULL. */
static dml_node *dml__parallel_node(const dml__op *op, dml_node *x, dml_node *bias, dml_comm *comm)
{
    dml_node *const inputs[] = { x, bias };
    if (!x || dml__join_model(x->graph, comm, op->name) != DML_OK) return NULL;
    if (dml_comm_world_size(comm) == 1) return x;
    dml_node *node = dml__node_create(op, bias ? 2 : 1, inputs, NULL, 0);
    if (node) dml__node_is_extra(node);
    return node;
}

DML_API dml_node *dml_parallel_copy(dml_node *x, dml_comm *comm)
{
    return dml__parallel_node(dml__parallel_copy_op(), x, NULL, comm);
}

DML_API dml_node *dml_parallel_sum(dml_node *x, dml_comm *comm)
{
    return dml__parallel_node(dml__parallel_sum_op(), x, NULL, comm);
}

/* The end of a layer by whose inputs it is cut; of one rank its dense layer has the bias. */
static dml_node *dml__parallel_dense_end(dml_node *x, dml_node *w, dml_node *bias, dml_comm *comm)
{
    if (dml_comm_world_size(comm) == 1) return dml_dense_with(x, w, bias);
    return dml__parallel_node(dml__parallel_sum_op(), dml_dense_with(x, w, NULL), bias, comm);
}

/* ---- parameters of which each rank has a part ---- */

/* How a parameter is cut: each of so many blocks of its rows, or all of its columns. */
typedef struct dml__cut {
    int block[3];
    bool columns;
} dml__cut;

/* The parameter, which nothing uses yet, is this rank's part of one; NULL: there is no memory. */
static dml_node *dml__set_part(dml_node *p, int axis, size_t outer, const int block[3], size_t inner)
{
    const dml_graph *graph = p->graph;
    if (!graph->model.ranks) return p;
    dml__shard *part = (dml__shard *)dml__allocate(&graph->context->memory, sizeof *part);
    if (!part) {
        dml__fail(&graph->context->error, DML_ERROR_MEMORY, "no memory left for a part of '%s'", p->name);
        return NULL;
    }
    part->rank = graph->model.rank;
    part->ranks = graph->model.ranks;
    part->axis = axis;
    part->outer = outer;
    part->inner = inner;
    for (int i = 0; i < 3; i++) part->block[i] = (size_t)block[i];
    p->cut = true;
    p->attributes = part;
    return p;
}

DML_API dml_node *dml_parallel_parameter(dml_graph *graph, const char *name, dml_initializer init,
                                         dml_shape shape, int axis, dml_comm *comm)
{
    static const char what[] = "parallel_parameter";
    char text[DML_SHAPE_TEXT];
    if (!graph || dml__join_model(graph, comm, what) != DML_OK) return NULL;
    const int ranks = dml_comm_world_size(comm);
    if (shape.ndim > DML_MAX_DIMS || axis < 0 || axis >= shape.ndim || shape.dims[axis] < 1 ||
        shape.dims[axis] % ranks) {
        dml__fail(&graph->context->error, DML_ERROR_ARGUMENT,
                  "%s '%s': %s asked for, cut along axis %d over %d ranks; the axis must be there, and a "
                  "multiple of the ranks",
                  what, name ? name : "",
                  shape.ndim <= DML_MAX_DIMS ? dml_shape_format(&shape, text) : "too many dimensions", axis,
                  ranks);
        return NULL;
    }
    const int block[3] = { shape.dims[axis], 0, 0 };
    size_t outer = 1, inner = 1;
    for (int i = 0; i < axis; i++) outer *= (size_t)shape.dims[i];
    for (int i = axis + 1; i < shape.ndim; i++) inner *= (size_t)shape.dims[i];
    shape.dims[axis] /= ranks;
    dml_node *p = dml_parameter_shaped(graph, name, init, shape);
    return p ? dml__set_part(p, axis, outer, block, inner) : NULL;
}

/* A layer's parameter, as dml__layer_parameter makes it of the whole shape, `columns` 0 for a bias. */
static dml_node *dml__parallel_parameter(dml_graph *graph, const dml__op *layer, const char *name,
                                         dml_initializer init, int rows, int columns, const dml__cut *cut)
{
    const int ranks = graph->model.ranks ? graph->model.ranks : 1;
    const int own_rows = cut && !cut->columns ? rows / ranks : rows;
    const int own_columns = cut && cut->columns ? columns / ranks : columns;
    dml_node *p = dml__layer_parameter(
        graph, layer, name, init, columns ? dml_shape_of(own_rows, own_columns) : dml_shape_of(own_rows));
    if (!p || !cut) return p;
    return dml__set_part(p, cut->columns, cut->columns ? (size_t)rows : 1, cut->block,
                         cut->columns || !columns ? 1 : (size_t)columns);
}

/* A copy that the layer's caller has made is the layer's. */
static dml_node *dml__parallel_copied(dml_node *x, dml_comm *comm)
{
    return x->op == dml__parallel_copy_op() ? x : dml_parallel_copy(x, comm);
}

/* x and what it is of, as the layers take it: its last dimension; 0, with the error recorded, where that
   isn't there. */
static int dml__parallel_width(const dml_node *x, const char *what)
{
    char text[DML_SHAPE_TEXT];
    if (x->dtype == DML_F32 && x->shape.ndim > 0) return x->shape.dims[x->shape.ndim - 1];
    dml__fail(&dml__node_context(x)->error, DML_ERROR_SHAPE,
              "%s: its input is %s %s; it takes f32 with at least one dimension", what,
              dml_dtype_name(x->dtype), dml_shape_format(&x->shape, text));
    return 0;
}

/* ---- dense layers ---- */

DML_API dml_node *dml_column_parallel_dense(dml_node *x, int units, dml_comm *comm)
{
    static const char what[] = "column_parallel_dense";
    if (!x || dml__join_model(x->graph, comm, what) != DML_OK) return NULL;
    const int ranks = dml_comm_world_size(comm), in = dml__parallel_width(x, what);
    if (!in) return NULL;
    if (units < 1 || units % ranks) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "%s: %d units asked for over %d ranks; they must be a multiple of that", what, units,
                  ranks);
        return NULL;
    }
    const dml__cut cut = { { units, 0, 0 }, false };
    dml_node *copy = dml__parallel_copied(x, comm), *last = x->graph->last;
    dml_node *w =
        copy ? dml__parallel_parameter(x->graph, dml__dense_op(), "weight", dml_init_he(in), units, in, &cut)
             : NULL;
    dml_node *bias =
        w ? dml__parallel_parameter(x->graph, dml__dense_op(), "bias", dml_init_constant(0), units, 0, &cut)
          : NULL;
    dml_node *layer = bias ? dml_dense_with(copy, w, bias) : NULL;
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

DML_API dml_node *dml_row_parallel_dense(dml_node *x, int units, dml_comm *comm)
{
    static const char what[] = "row_parallel_dense";
    if (!x || dml__join_model(x->graph, comm, what) != DML_OK) return NULL;
    const int ranks = dml_comm_world_size(comm), own = dml__parallel_width(x, what);
    if (!own) return NULL;
    if (units < 1 || own > INT32_MAX / ranks) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "%s: %d units of %d inputs on each of %d ranks asked for; it takes 1 unit or more, and %d "
                  "inputs in all",
                  what, units, own, ranks, INT32_MAX);
        return NULL;
    }
    if (ranks > 1 && !x->partial) {
        dml__fail(&dml__node_context(x)->error, DML_ERROR_ARGUMENT,
                  "%s: its input '%s' is alike on all ranks; it takes each one's part of the inputs, as a "
                  "column-parallel layer gives them",
                  what, x->name);
        return NULL;
    }
    const int in = own * ranks;
    const dml__cut cut = { { in, 0, 0 }, true };
    dml_node *last = x->graph->last;
    dml_node *w =
        dml__parallel_parameter(x->graph, dml__dense_op(), "weight", dml_init_he(in), units, in, &cut);
    dml_node *bias =
        w ? dml__parallel_parameter(x->graph, dml__dense_op(), "bias", dml_init_constant(0), units, 0, NULL)
          : NULL;
    dml_node *layer = bias ? dml__parallel_dense_end(x, w, bias, comm) : NULL;
    if (!layer) dml__graph_drop_after(x->graph, last);
    return layer;
}

/* ---- attention ---- */

static dml_status dml__parallel_attention_check(const dml_node *x, int heads, int kv_heads, int ranks,
                                                const dml_multi_head_attention_options *o)
{
    static const char what[] = "parallel_attention";
    dml__error *error = &dml__node_context(x)->error;
    char text[DML_SHAPE_TEXT];
    if (x->dtype != DML_F32 || x->shape.ndim != 2)
        return dml__fail(error, DML_ERROR_SHAPE, "%s: its input is %s %s; it takes f32 positions x channels",
                         what, dml_dtype_name(x->dtype), dml_shape_format(&x->shape, text));
    if (o->memory)
        return dml__fail(error, DML_ERROR_UNSUPPORTED,
                         "%s: cross attention (.memory) asked for; dml_multi_head_attention on all ranks "
                         "alike has it",
                         what);
    const int channels = x->shape.dims[1];
    if (heads < 1 || kv_heads < 1 || channels > INT32_MAX / 3 || channels % heads || heads % kv_heads ||
        heads % ranks || kv_heads % ranks)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "%s: %d channels, %d heads and %d of keys and values asked for over %d ranks; the "
                         "heads must divide the channels, those of keys and values the heads, and the ranks "
                         "both",
                         what, channels, heads, kv_heads, ranks);
    if (o->window < 0 || o->rotary_base < 0 || (o->rotary ? channels / heads % 2 != 0 : o->rotary_base != 0))
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "%s: a window of %d, %srotary positions in heads of width %d with a base of %g; a "
                         "window is 0 or more, a base too, of an even width, and 0 without rotary",
                         what, o->window, o->rotary ? "" : "no ", channels / heads, (double)o->rotary_base);
    return DML_OK;
}

/* The four parameters, as dml_multi_head_attention has them. */
static bool dml__parallel_heads_make(dml_graph *graph, int channels, const int block[3], bool no_bias,
                                     dml_node *parameter[4])
{
    const int rows = block[0] + block[1] + block[2];
    const dml__cut in = { { block[0], block[1], block[2] }, false }, out = { { channels, 0, 0 }, true };
    const dml__cut *const cut[] = { &in, &in, &out, NULL };
    for (int i = 0; i < 4; i++) {
        parameter[i] = NULL;
        if (i % 2 && no_bias) continue;
        parameter[i] = dml__parallel_parameter(graph, dml__attention_op(), dml__heads_name(i),
                                               dml__heads_init(i, rows, channels), i < 2 ? rows : channels,
                                               i % 2 ? 0 : channels, cut[i]);
        if (!parameter[i]) return false;
    }
    return true;
}

/* Of so many heads of this rank's own; in scopes as dml_multi_head_attention has them. */
static dml_node *dml__parallel_heads_build(dml_node *copy, int heads, int kv_heads,
                                           const dml_multi_head_attention_options *o, dml_node *const p[4],
                                           dml_comm *comm)
{
    char layer[DML_NAME_BYTES];
    dml_attention_options attention;
    dml_rotary_options rotary;
    dml_graph *graph = copy->graph;
    memset(&attention, 0, sizeof attention);
    memset(&rotary, 0, sizeof rotary);
    attention.kv_heads = kv_heads;
    attention.causal = o->causal;
    attention.window = o->window;
    attention.lengths = o->lengths;
    rotary.base = o->rotary_base;
    rotary.rotated = heads + kv_heads;
    if (dml__layer_name(graph, dml__attention_op(), layer) != DML_OK ||
        dml_push_scope(graph, "%s", layer) != DML_OK)
        return NULL;
    dml_node *qkv = dml_dense_with(copy, p[0], p[1]);
    if (o->rotary) qkv = dml_rotary(qkv, heads + 2 * kv_heads, &rotary);
    dml_pop_scope(graph);
    dml_node *mixed = dml_attention_packed(qkv, heads, &attention);
    if (!mixed || dml_push_scope(graph, "%s", layer) != DML_OK) return NULL;
    dml_node *ended = dml__parallel_dense_end(mixed, p[2], p[3], comm);
    dml_pop_scope(graph);
    return ended;
}

DML_API dml_node *dml_parallel_attention(dml_node *x, int heads,
                                         const dml_multi_head_attention_options *options, dml_comm *comm)
{
    dml_multi_head_attention_options o;
    dml_node *p[4], *built = NULL;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    if (!x || dml__join_model(x->graph, comm, "parallel_attention") != DML_OK) return NULL;
    const int ranks = dml_comm_world_size(comm), kv_heads = o.kv_heads ? o.kv_heads : heads;
    if (dml__parallel_attention_check(x, heads, kv_heads, ranks, &o) != DML_OK) return NULL;
    const int channels = x->shape.dims[1], width = channels / heads;
    const int block[3] = { channels, kv_heads * width, kv_heads * width };
    dml_node *copy = dml__parallel_copied(x, comm), *last = x->graph->last;
    if (copy && dml__parallel_heads_make(x->graph, channels, block, o.no_bias, p))
        built = dml__parallel_heads_build(copy, heads / ranks, kv_heads / ranks, &o, p, comm);
    if (copy && !built) dml__graph_drop_after(x->graph, last);
    return built;
}

#endif
