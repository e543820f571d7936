#ifndef DML_GRAPH_CLONE_C
#define DML_GRAPH_CLONE_C

#include "graph/clone.h"

#include "base/memory.h"
#include "graph/node.h"
#include "graph/weights.h"

#include <string.h>

/* A node is one block of memory, and its op has put no pointer into it among its attributes: whatever an op
   was told, its bytes say it. */
static dml_node *dml__clone_node(const dml_node *node, dml_graph *to, dml_node *const *clones)
{
    const size_t bytes = (size_t)(node->name - (const char *)node) + strlen(node->name) + 1;
    dml_node *clone = (dml_node *)dml__allocate(&to->context->memory, bytes);
    if (!clone) return NULL;
    memcpy(clone, node, bytes);
    clone->graph = to;
    clone->attributes = (char *)clone + ((const char *)node->attributes - (const char *)node);
    clone->name = (const char *)clone + (node->name - (const char *)node);
    for (int i = 0; i < node->inputs; i++) clone->input[i] = clones[node->input[i]->index];
    clone->next = clone->next_parameter = NULL;
    return clone;
}

static dml_status dml__clone_nodes(const dml_graph *from, dml_graph *to)
{
    dml__memory *memory = &to->context->memory;
    dml__error *error = &to->context->error;
    dml_node **clones = (dml_node **)dml__allocate_array(memory, (size_t)from->nodes, sizeof(dml_node *));
    if (!clones) return dml__fail(error, DML_ERROR_MEMORY, "no memory left to clone %d nodes", from->nodes);
    for (const dml_node *node = from->first; node && error->status == DML_OK; node = node->next) {
        dml_node *clone = clones[node->index] = dml__clone_node(node, to, clones);
        if (!clone) {
            dml__fail(error, DML_ERROR_MEMORY, "no memory left to clone the node '%s'", node->name);
            break;
        }
        dml__node_append(clone);
    }
    for (const dml_node *p = from->first_parameter; p && error->status == DML_OK; p = p->next_parameter) {
        dml_node *clone = clones[p->index];
        if (to->last_parameter)
            to->last_parameter->next_parameter = clone;
        else
            to->first_parameter = clone;
        to->last_parameter = clone;
    }
    dml__release(memory, clones);
    return error->status;
}

static dml_status dml__clone_values(dml_graph *from, dml_graph *to)
{
    const size_t count = from->parameter_count;
    const float *values = dml_graph_get(from, 0, count);
    if (!values)
        return dml__fail(&to->context->error, dml_status_of(from->context),
                         "the parameters to clone can't be read: %s", dml_error(from->context));
    float *mine = dml__graph_host(to);
    if (!mine) return to->context->error.status;
    memcpy(mine, values, count * sizeof *mine);
    return dml_graph_put(to, 0, count);
}

static dml_graph *dml__graph_clone_in(dml_graph *graph, dml_context *context)
{
    dml_graph *clone = dml_graph_create(context);
    if (!clone) return NULL;
    memcpy(clone->scope, graph->scope, sizeof clone->scope);
    memcpy(clone->scope_bytes, graph->scope_bytes, sizeof clone->scope_bytes);
    clone->scopes = graph->scopes;
    clone->parameter_count = graph->parameter_count;
    clone->whole_count = graph->whole_count;
    dml_status status = dml__clone_nodes(graph, clone);
    if (status == DML_OK && graph->w) status = dml__clone_values(graph, clone);
    if (status == DML_OK) return clone;
    dml_graph_destroy(clone);
    return NULL;
}

DML_API dml_graph *dml_graph_clone(dml_graph *graph, dml_context *context)
{
    if (!context) return NULL;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return NULL;
    dml_graph *clone = NULL;
    if (!graph)
        dml__fail_null(&context->error, "dml_graph_clone", "graph");
    else if (dml_status_of(graph->context) != DML_OK)
        dml__fail(&context->error, dml_status_of(graph->context), "the graph to clone has an error: %s",
                  dml_error(graph->context));
    else if (dml__graph_cuts(graph))
        dml__fail(
            &context->error, DML_ERROR_UNSUPPORTED,
            "a clone asked for, of a model that is cut over %d ranks, with which only one graph of each "
            "exchanges anything",
            dml__graph_cuts(graph));
    else
        clone = dml__graph_clone_in(graph, context);
    dml__leave(context, entry);
    return clone;
}

#endif
