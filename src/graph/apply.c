#ifndef DML_GRAPH_APPLY_C
#define DML_GRAPH_APPLY_C

#include "graph/apply.h"

#include "base/memory.h"
#include "graph/node.h"
#include "graph/op.h"

static dml_status dml__check_apply(const dml_node *y, const dml_node *x, const dml_node *other)
{
    dml__error *error = &dml__node_context(y)->error;
    char text[DML_SHAPE_TEXT], other_text[DML_SHAPE_TEXT];
    if (error->status != DML_OK) return error->status;
    if (x->graph != y->graph || other->graph != y->graph)
        return dml__fail(error, DML_ERROR_ARGUMENT, "apply: its nodes are of different graphs");
    if (other->dtype == x->dtype && other->batched == x->batched && dml_shape_equal(&other->shape, &x->shape))
        return DML_OK;
    return dml__fail(error, DML_ERROR_SHAPE,
                     "apply: '%s' is %s %s%s, and '%s', in whose place it is asked for, %s %s%s", other->name,
                     dml_dtype_name(other->dtype), dml_shape_format(&other->shape, other_text),
                     other->batched ? "" : " for the whole batch", x->name, dml_dtype_name(x->dtype),
                     dml_shape_format(&x->shape, text), x->batched ? "" : " for the whole batch");
}

/* The node once more, on the new ones of its inputs where there are such. */
static dml_node *dml__apply_node(dml_node *node, dml_node *const *made)
{
    dml_node *input[DML__MAX_INPUTS];
    if (node->op->needs & DML__IS_SOURCE) {
        dml__fail(&dml__node_context(node)->error, DML_ERROR_UNSUPPORTED,
                  "apply: asked for of what '%s' is part of, which ends a stage", node->name);
        return NULL;
    }
    for (int i = 0; i < node->inputs; i++)
        input[i] = made[node->input[i]->index] ? made[node->input[i]->index] : node->input[i];
    dml_node *again = dml__node_like(node, input);
    if (again && node->extra) dml__node_is_extra(again);
    return again;
}

DML__LOCAL dml_node *dml__node_like(const dml_node *node, dml_node *const *input)
{
    return dml__node_create(node->op, node->inputs, input, node->attributes,
                            (size_t)(node->name - (const char *)node->attributes));
}

DML__LOCAL void dml__mark_needed(const dml_node *y, dml_node *const *node, bool *needed)
{
    needed[y->index] = true;
    for (int n = y->index; n >= 0; n--)
        for (int i = 0; needed[n] && i < node[n]->inputs; i++) needed[node[n]->input[i]->index] = true;
}

/* `made` holds x's new one, and NULLs. */
static dml_node *dml__apply_between(const dml_node *y, const dml_node *x, dml_node *const *node,
                                    const bool *needed, dml_node **made)
{
    for (int n = x->index + 1; n <= y->index; n++) {
        bool moves = false;
        for (int i = 0; i < node[n]->inputs; i++) moves = moves || made[node[n]->input[i]->index];
        if (moves && needed[n] && !(made[n] = dml__apply_node(node[n], made))) return NULL;
    }
    if (!made[y->index])
        dml__fail(&dml__node_context(y)->error, DML_ERROR_ARGUMENT, "apply: '%s' isn't made of '%s'", y->name,
                  x->name);
    return made[y->index];
}

DML_API dml_node *dml_apply(dml_node *y, dml_node *x, dml_node *other)
{
    if (!y || !x || !other || dml__check_apply(y, x, other) != DML_OK) return NULL;
    dml_graph *graph = y->graph;
    dml_node *last = graph->last, *again = NULL;
    dml__memory *memory = &graph->context->memory;
    const size_t nodes = (size_t)graph->nodes;
    dml_node **node = (dml_node **)dml__allocate_array(memory, nodes, sizeof *node);
    dml_node **made = (dml_node **)dml__allocate_array(memory, nodes, sizeof *made);
    bool *needed = (bool *)dml__allocate_array(memory, nodes, sizeof *needed);
    if (node && made && needed) {
        for (dml_node *n = graph->first; n; n = n->next) node[n->index] = n;
        made[x->index] = other;
        dml__mark_needed(y, node, needed);
        again = dml__apply_between(y, x, node, needed, made);
    } else {
        dml__fail(&graph->context->error, DML_ERROR_MEMORY, "no memory left to apply %zu nodes", nodes);
    }
    dml__release(memory, needed);
    dml__release(memory, made);
    dml__release(memory, node);
    if (!again) dml__graph_drop_after(graph, last);
    return again;
}

#endif
