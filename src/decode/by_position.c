#ifndef DML_DECODE_BY_POSITION_C
#define DML_DECODE_BY_POSITION_C

#include "decode/by_position.h"

#include "base/memory.h"
#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_attention_internal.h"
#include "ops/op_embedding.h"
#include "ops/op_gather.h"
#include "ops/op_matmul.h"
#include "ops/op_rotary_internal.h"
#include "ops/op_shape.h"
#include "ops/op_shape_internal.h"
#include "ops/table.h"

#include <string.h>

/* Each node that the input goes through has one row for each position, and is made again for fewer of them.
   What only parameters go through stays as it is. Of several positions, what no attention is made of may be
   needed for the last alone, of a language model the last layer's perceptron and all scores: that is made
   twice. */

/* ---- which nodes ---- */

typedef struct dml__nodes {
    int count;
    dml_node **at;
    bool *goes;      /* the output is made of it, and the input goes through it */
    bool *wide;      /* an attention is made of it: of all positions, where the output needs one row */
    dml_node **made; /* again, for all positions; NULL: not yet, or not at all */
    dml_node **row;  /* again, for the row that is wanted */
} dml__nodes;

static void dml__nodes_release(dml__memory *memory, dml__nodes *nodes)
{
    dml__release(memory, nodes->row);
    dml__release(memory, nodes->made);
    dml__release(memory, nodes->wide);
    dml__release(memory, nodes->goes);
    dml__release(memory, nodes->at);
}

/* Marks what the output is made of, and of that keeps what is made of the input. */
static dml_status dml__nodes_mark(const dml__positions *p, dml__nodes *nodes)
{
    bool *goes = nodes->goes;
    dml__mark_needed(p->output, nodes->at, goes);
    const dml_node *other = NULL; /* another input that it is made of */
    for (int n = 0; n < nodes->count; n++) {
        const dml_node *node = nodes->at[n];
        bool of_input = node == p->input;
        if (goes[n] && node->op == dml__input_op() && !of_input) other = node;
        for (int i = 0; i < node->inputs; i++) of_input = of_input || goes[node->input[i]->index];
        goes[n] = goes[n] && of_input;
    }
    dml__error *error = &dml__node_context(p->output)->error;
    if (!goes[p->output->index])
        return dml__fail(error, DML_ERROR_ARGUMENT, "decoder: '%s' isn't made of '%s'", p->output->name,
                         p->input->name);
    if (other)
        return dml__fail(
            error, DML_ERROR_UNSUPPORTED,
            "decoder: '%s' is made of input '%s', too; it takes one of '%s' alone, of which other numbers "
            "may be columns (dml_slice)",
            p->output->name, other->name, p->input->name);
    for (int n = p->output->index; n >= 0; n--) {
        const dml_node *node = nodes->at[n];
        const bool attends = goes[n] && node->op == dml__attention_op();
        for (int i = 0; (attends || nodes->wide[n]) && i < node->inputs; i++)
            nodes->wide[node->input[i]->index] = true;
    }
    return DML_OK;
}

static dml_status dml__nodes_collect(const dml__positions *p, dml__nodes *nodes)
{
    dml_graph *graph = p->output->graph;
    dml__memory *memory = &graph->context->memory;
    memset(nodes, 0, sizeof *nodes);
    nodes->count = p->output->index + 1;
    nodes->at = (dml_node **)dml__allocate_array(memory, (size_t)nodes->count, sizeof *nodes->at);
    nodes->goes = (bool *)dml__allocate_array(memory, (size_t)nodes->count, sizeof *nodes->goes);
    nodes->wide = (bool *)dml__allocate_array(memory, (size_t)nodes->count, sizeof *nodes->wide);
    nodes->made = (dml_node **)dml__allocate_array(memory, (size_t)nodes->count, sizeof *nodes->made);
    nodes->row = (dml_node **)dml__allocate_array(memory, (size_t)nodes->count, sizeof *nodes->row);
    dml_status status = DML_OK;
    if (!nodes->at || !nodes->goes || !nodes->wide || !nodes->made || !nodes->row)
        status = dml__fail(&graph->context->error, DML_ERROR_MEMORY,
                           "decoder: no memory left to look at %d nodes", nodes->count);
    dml_node *node = graph->first;
    for (int n = 0; n < nodes->count && status == DML_OK; n++, node = node->next) nodes->at[n] = node;
    if (status == DML_OK) status = dml__nodes_mark(p, nodes);
    if (status != DML_OK) dml__nodes_release(memory, nodes);
    return status;
}

/* ---- one node again ---- */

/* How the rows of what a node makes depend on those of its inputs. */
typedef enum dml__dependence {
    DML__MIXES_POSITIONS,
    DML__ROW_BY_ROW,    /* of input 0; the others are the same for all */
    DML__ALONG_AN_AXIS, /* row by row, unless the first int of its attributes, an axis, is that of the
                           positions */
    DML__RESHAPES,      /* each row */
    DML__ELEMENTS,
    DML__ATTENDS,
    DML__TURNS, /* by angles of its position */
    DML__PASSES /* when predicting */
} dml__dependence;

static dml__dependence dml__dependence_of(const dml_node *node)
{
    const dml__op *op = node->op, *const by_row[] = { dml__dense_op(), dml__embedding_op(),
                                                      dml__layer_norm_op(), dml__rms_norm_op(),
                                                      dml__stop_gradient_op() };
    const dml__op *const along[] = { dml__softmax_op(), dml__log_softmax_op(), dml__slice_op(),
                                     dml__concat_op(),  dml__sum_op(),         dml__mean_op(),
                                     dml__max_op(),     dml__min_op(),         dml__norm_op(),
                                     dml__argmax_op() };
    if (op->needs & DML__IS_ELEMENTWISE) return DML__ELEMENTS;
    for (size_t i = 0; i < sizeof by_row / sizeof *by_row; i++)
        if (op == by_row[i]) return DML__ROW_BY_ROW;
    for (size_t i = 0; i < sizeof along / sizeof *along; i++)
        if (op == along[i]) return DML__ALONG_AN_AXIS;
    if (op == dml__matmul_op())
        return node->input[1]->shape.ndim == 2 && !((const dml_matmul_options *)node->attributes)->transpose_a
                   ? DML__ROW_BY_ROW
                   : DML__MIXES_POSITIONS;
    if (op == dml__permute_op())
        return ((const dml_shape *)node->attributes)->dims[0] ? DML__MIXES_POSITIONS : DML__ROW_BY_ROW;
    return op == dml__attention_op() ? DML__ATTENDS
           : op == dml__reshape_op() ? DML__RESHAPES
           : op == dml__rotary_op()  ? DML__TURNS
           : op == dml__dropout_op() ? DML__PASSES
                                     : DML__MIXES_POSITIONS;
}

static dml_status dml__cannot_decode(const dml_node *node, const char *why)
{
    return dml__fail(&dml__node_context(node)->error, DML_ERROR_UNSUPPORTED, "decoder: %s '%s' %s",
                     node->op->name, node->name, why);
}

/* Of one number a position a row's op would go along the positions. */
static dml_status dml__check_row(const dml_node *node, const dml__nodes *nodes)
{
    if (node->input[0]->shape.ndim < 2 && node->op != dml__embedding_op() &&
        node->op != dml__stop_gradient_op())
        return dml__cannot_decode(node, "works along the positions");
    for (int i = 1; i < node->inputs; i++)
        if (nodes->goes[node->input[i]->index])
            return dml__cannot_decode(node, "takes more than its first input from the net's");
    return DML_OK;
}

static dml_status dml__check_axis(const dml_node *node, const dml__nodes *nodes)
{
    if (*(const int *)node->attributes == 0) return dml__cannot_decode(node, "works along the positions");
    for (int i = 0; i < node->inputs; i++)
        if (!nodes->goes[node->input[i]->index])
            return dml__cannot_decode(node, "takes numbers that the net's input doesn't go through");
    return DML_OK;
}

/* Broadcasting counts dimensions from the last. */
static dml_status dml__check_elements(const dml_node *node, const dml__nodes *nodes)
{
    for (int i = 0; i < node->inputs; i++) {
        const dml_node *input = node->input[i];
        if (!nodes->goes[input->index] || input->shape.ndim == node->shape.ndim) continue;
        return dml__fail(&dml__node_context(node)->error, DML_ERROR_UNSUPPORTED,
                         "decoder: %s '%s' takes the positions of '%s' for another dimension", node->op->name,
                         node->name, input->name);
    }
    return DML_OK;
}

static dml_status dml__check_attention(const dml_node *node, const dml__nodes *nodes)
{
    const dml__attention *o = (const dml__attention *)node->attributes;
    if (!o->causal) return dml__cannot_decode(node, "lets a position see later ones; it has to be causal");
    if (dml__attention_lengths(node)) return dml__cannot_decode(node, "has lengths");
    for (int i = 0; i < node->inputs; i++)
        if (!nodes->goes[node->input[i]->index])
            return dml__cannot_decode(node, "has keys or values that the net's input doesn't go through");
    return DML_OK;
}

static dml_status dml__check_node(const dml__positions *p, const dml_node *node, const dml__nodes *nodes)
{
    if (!node->batched || node->shape.ndim < 1 || node->shape.dims[0] != p->positions)
        return dml__cannot_decode(node, "hasn't one row for each position of the input");
    switch (dml__dependence_of(node)) {
    case DML__ROW_BY_ROW: return dml__check_row(node, nodes);
    case DML__ELEMENTS: return dml__check_elements(node, nodes);
    case DML__ATTENDS: return dml__check_attention(node, nodes);
    case DML__ALONG_AN_AXIS: return dml__check_axis(node, nodes);
    case DML__MIXES_POSITIONS:
        return dml__cannot_decode(
            node, "is none of those that work position by position, which are listed at dml_decoder_create");
    default: return DML_OK;
    }
}

/* Rows of a table with one for each position, such as learned positions, for those that go through now. */
static dml_node *dml__rows_now(const dml_node *node, dml_node *table, dml_node *places)
{
    if (table->shape.ndim == 2 && !table->batched && table->dtype == DML_F32)
        return dml_embedding_with(places, table);
    dml__cannot_decode(node, "takes what has a row for each position, but isn't f32 positions x width");
    return NULL;
}

/* Of arithmetic, the inputs that the net's doesn't go through: one for each position, or broadcast. */
static bool dml__rows_of_tables(const dml__positions *p, const dml_node *node, const dml__nodes *nodes,
                                dml_node *places, dml_node **input)
{
    for (int i = 0; i < node->inputs; i++) {
        const dml_shape *shape = &input[i]->shape;
        if (nodes->goes[node->input[i]->index] || shape->ndim < node->shape.ndim ||
            shape->dims[0] != p->positions)
            continue;
        if (!(input[i] = dml__rows_now(node, input[i], places))) return false;
        dml__node_is_extra(input[i]);
    }
    return true;
}

/* The row that is wanted of what is there for all positions. */
static dml_node *dml__last_row(const dml__positions *p, dml__nodes *nodes, int n)
{
    nodes->row[n] = dml_take(nodes->made[n], p->given[DML__POSITIONS_ROW], 0);
    if (nodes->row[n]) dml__node_is_extra(nodes->row[n]);
    return nodes->row[n];
}

/* A node's inputs as they are for all positions, or for that row. */
static bool dml__inputs_again(const dml__positions *p, const dml_node *node, dml__nodes *nodes, bool wide,
                              dml_node **input)
{
    for (int i = 0; i < node->inputs; i++) {
        const int n = node->input[i]->index;
        input[i] = !nodes->goes[n] ? node->input[i] : wide ? nodes->made[n] : nodes->row[n];
        if (!input[i] && !(input[i] = dml__last_row(p, nodes, n))) return false;
    }
    return true;
}

/* `kept`: where this node's keys and values are to lie; moved on. */
static dml_node *dml__node_again(const dml__positions *p, const dml_node *node, dml__nodes *nodes, bool wide,
                                 dml_ref *kept)
{
    dml_node *input[DML__MAX_INPUTS], *again = NULL;
    dml_node *places = p->given[wide ? DML__POSITIONS_PLACES : DML__POSITIONS_PLACE];
    const dml__dependence how = dml__dependence_of(node);
    if (!dml__inputs_again(p, node, nodes, wide, input)) return NULL;
    if (how == DML__PASSES) return input[0];
    if (how == DML__ATTENDS) {
        again = dml__attention_keeping(node, input, p->given[DML__POSITIONS_PAST], *kept, p->positions);
        kept->offset += dml__attention_kept_bytes(node, p->samples, p->positions);
    } else if (how == DML__TURNS) {
        again = dml__rotary_at(node, input[0], places, p->positions);
    } else if (how == DML__RESHAPES) {
        dml_shape shape = node->shape;
        shape.dims[0] = input[0]->shape.dims[0];
        again = dml_reshape(input[0], shape);
    } else if (how != DML__ELEMENTS || dml__rows_of_tables(p, node, nodes, places, input)) {
        again = dml__node_like(node, input);
    }
    if (again) dml__node_is_extra(again);
    return again;
}

/* ---- all of them ---- */

DML__LOCAL dml_status dml__positions_bytes(const dml__positions *p, size_t *bytes)
{
    dml__nodes nodes;
    *bytes = 0;
    dml_status status = dml__nodes_collect(p, &nodes);
    if (status != DML_OK) return status;
    for (int n = p->input->index + 1; n < nodes.count && status == DML_OK; n++) {
        if (!nodes.goes[n]) continue;
        status = dml__check_node(p, nodes.at[n], &nodes);
        if (dml__dependence_of(nodes.at[n]) == DML__ATTENDS)
            *bytes += dml__attention_kept_bytes(nodes.at[n], p->samples, p->positions);
    }
    dml__nodes_release(&dml__node_context(p->output)->memory, &nodes);
    return status;
}

static bool dml__positions_give(dml__positions *p)
{
    dml_graph *graph = p->output->graph;
    dml_shape shape = p->input->shape, scalar;
    memset(&scalar, 0, sizeof scalar);
    shape.dims[0] = p->count;
    p->given[DML__POSITIONS_INPUT] = dml_input_shaped(graph, "input", p->input->dtype, shape);
    p->given[DML__POSITIONS_PAST] = dml_input_shaped(graph, "past", DML_I32, scalar);
    p->given[DML__POSITIONS_PLACES] = dml_input(graph, "places", DML_I32, p->count);
    p->given[DML__POSITIONS_ROW] = dml_input(graph, "row", DML_I32, 1);
    p->given[DML__POSITIONS_PLACE] = dml_input(graph, "place", DML_I32, 1);
    shape.dims[0] = 1;
    p->given[DML__POSITIONS_LAST] = dml_input_shaped(graph, "last", p->input->dtype, shape);
    for (int i = 0; i < DML__POSITIONS_GIVEN; i++)
        if (!p->given[i]) return false;
    return true;
}

/* Of one position, all is of the row that is wanted. */
static bool dml__positions_make(dml__positions *p, dml__nodes *nodes)
{
    dml_ref kept = { p->kept, 0 };
    const int output = p->output->index;
    if (!dml__positions_give(p)) return false;
    nodes->made[p->input->index] = p->given[DML__POSITIONS_INPUT];
    nodes->row[p->input->index] = p->given[DML__POSITIONS_LAST];
    for (int n = p->input->index + 1; n < nodes->count; n++) {
        if (!nodes->goes[n]) continue;
        const bool attends = nodes->at[n]->op == dml__attention_op();
        if (!(nodes->made[n] = dml__node_again(p, nodes->at[n], nodes, true, &kept))) return false;
        if (attends) p->attention[p->attentions++] = nodes->made[n];
        if (p->count == 1 || attends || nodes->wide[n]) continue;
        if (!(nodes->row[n] = dml__node_again(p, nodes->at[n], nodes, false, &kept))) return false;
    }
    p->rows = nodes->made[output];
    p->row = p->count == 1 ? p->rows : nodes->row[output];
    return p->row || (p->row = dml__last_row(p, nodes, output)) != NULL;
}

DML__LOCAL dml_status dml__positions_build(dml__positions *p)
{
    dml_graph *graph = p->output->graph;
    dml__memory *memory = &graph->context->memory;
    dml__nodes nodes;
    dml_node *last = graph->last;
    dml_status status = dml__nodes_collect(p, &nodes);
    if (status != DML_OK) return status;
    p->attentions = 0;
    p->attention = (dml_node **)dml__allocate_array(memory, (size_t)nodes.count, sizeof *p->attention);
    if (!p->attention)
        status = dml__fail(&graph->context->error, DML_ERROR_MEMORY, "decoder: no memory left for a list");
    if (status == DML_OK) status = dml_push_scope(graph, "decoder.%d.%d", p->number, p->count);
    if (status == DML_OK) {
        if (!dml__positions_make(p, &nodes)) status = graph->context->error.status;
        dml_pop_scope(graph);
    }
    for (dml_node *node = last->next; node; node = node->next) node->again = true;
    if (status != DML_OK) {
        dml__graph_drop_after(graph, last);
        dml__release(memory, p->attention);
        p->attention = NULL;
        p->attentions = 0;
    }
    dml__nodes_release(memory, &nodes);
    return status;
}

#endif
