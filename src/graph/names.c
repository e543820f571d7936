#ifndef DML_GRAPH_NAMES_C
#define DML_GRAPH_NAMES_C

#include "graph/names.h"

#include "base/json.h"
#include "graph/op.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool dml__has_control(const char *name)
{
    while ((unsigned char)*name >= ' ' && *name != 0x7f) name++;
    return *name != '\0';
}

static dml_status dml__refuse_control(dml__error *error, const char *what, const char *name)
{
    return dml__fail(error, DML_ERROR_ARGUMENT,
                     "%s '%s': a name with control characters, which tables and sentences could not show",
                     what, name);
}

/* ---- scopes ---- */

DML_API dml_status dml_push_scope(dml_graph *graph, const char *format, ...)
{
    if (!graph) return DML_ERROR_ARGUMENT;
    dml__error *error = &graph->context->error;
    if (!format) return dml__fail_null(error, "dml_push_scope", "name");
    char name[DML_NAME_BYTES + 1];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    const size_t used = strlen(graph->scope);
    if (length < 1 || used + (size_t)length + 2 > sizeof graph->scope)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a scope '%.64s%s' inside '%s': names are of 1 to %d bytes, scopes included", name,
                         length > 64 ? "..." : "", graph->scope, DML_NAME_BYTES - 1);
    if (dml__has_control(name)) return dml__refuse_control(error, "a scope", name);
    if (graph->scopes == DML_MAX_SCOPES)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a scope '%.64s' inside '%s': they nest at most %d deep; is a pop missing?", name,
                         graph->scope, DML_MAX_SCOPES);
    memcpy(graph->scope + used, name, (size_t)length);
    memcpy(graph->scope + used + length, ".", 2);
    graph->scope_bytes[graph->scopes++] = (unsigned char)(length + 1);
    return DML_OK;
}

DML_API dml_status dml_pop_scope(dml_graph *graph)
{
    if (!graph) return DML_ERROR_ARGUMENT;
    if (graph->scopes == 0)
        return dml__fail(&graph->context->error, DML_ERROR_STATE,
                         "a scope is popped, but none has been pushed");
    graph->scope[strlen(graph->scope) - graph->scope_bytes[--graph->scopes]] = '\0';
    return DML_OK;
}

/* ---- the table ---- */

/* FNV-1a, of a name's place in the table. */
static unsigned dml__name_hash(const char *text, size_t length)
{
    unsigned hash = 2166136261u;
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    return (hash ^ hash >> 16) % DML__NAME_PLACES;
}

/* How much of a full name is its scope, with the point. */
static size_t dml__scope_length(const char *name)
{
    const char *point = strrchr(name, '.');
    return point ? (size_t)(point + 1 - name) : 0;
}

/* The place of an op's nodes that stand in a scope itself, not in one inside it. */
static unsigned dml__kind_hash(const dml__op *op, const char *scope, size_t length)
{
    return dml__name_hash(op->name, strlen(op->name)) ^ dml__name_hash(scope, length);
}

/* The last of those nodes; NULL: there is none. */
static dml_node *dml__last_of_kind(const dml_graph *graph, const dml__op *op, const char *scope,
                                   size_t length)
{
    dml_node *node = graph->of_kind[dml__kind_hash(op, scope, length)];
    for (; node; node = node->before_of_kind)
        if (node->op == op && dml__scope_length(node->name) == length &&
            memcmp(node->name, scope, length) == 0)
            return node;
    return NULL;
}

DML__LOCAL void dml__names_add(dml_node *node)
{
    dml_graph *graph = node->graph;
    const size_t length = dml__scope_length(node->name);
    const dml_node *last = dml__last_of_kind(graph, node->op, node->name, length);
    dml_node **named = &graph->named[dml__name_hash(node->name, strlen(node->name))];
    dml_node **of_kind = &graph->of_kind[dml__kind_hash(node->op, node->name, length)];
    node->kind_number = last ? last->kind_number + 1 : 1;
    node->before_named = *named;
    node->before_of_kind = *of_kind;
    *named = *of_kind = node;
}

DML__LOCAL void dml__names_drop(dml_graph *graph)
{
    for (int i = 0; i < DML__NAME_PLACES; i++) {
        while (graph->named[i] && graph->named[i]->index >= graph->nodes)
            graph->named[i] = graph->named[i]->before_named;
        while (graph->of_kind[i] && graph->of_kind[i]->index >= graph->nodes)
            graph->of_kind[i] = graph->of_kind[i]->before_of_kind;
    }
}

DML__LOCAL dml_node *dml__graph_find(const dml_graph *graph, const char *name)
{
    dml_node *node = graph->named[dml__name_hash(name, strlen(name))];
    while (node && strcmp(node->name, name) != 0) node = node->before_named;
    return node;
}

DML_API dml_node *dml_graph_find(const dml_graph *graph, const char *name)
{
    if (!graph) return NULL;
    dml_node *node = name ? dml__graph_find(graph, name) : NULL;
    if (!node)
        dml__fail(&graph->context->error, DML_ERROR_ARGUMENT,
                  "the graph has no node '%.*s'; names come with their scopes, as dml_graph_print shows "
                  "them, and a parameter's after its layer's, such as conv2d_1.weight",
                  DML_NAME_BYTES, name ? name : "NULL");
    return node;
}

/* ---- new names ---- */

/* The next free of "SCOPE.relu_1", "SCOPE.relu_2", ...; false when it is too long. */
static bool dml__next_name(const dml_graph *graph, const dml__op *op, char name[DML_NAME_BYTES])
{
    const dml_node *last = dml__last_of_kind(graph, op, graph->scope, strlen(graph->scope));
    int number = last ? last->kind_number : 0;
    do {
        const int length = snprintf(name, DML_NAME_BYTES, "%s%s_%d", graph->scope, op->name, ++number);
        if (length >= DML_NAME_BYTES) return false;
    } while (dml__graph_find(graph, name));
    return true;
}

DML__LOCAL dml_status dml__make_name(dml_graph *graph, const dml__op *op, const char *given,
                                     char name[DML_NAME_BYTES])
{
    dml__error *error = &graph->context->error;
    const bool numbered = !given || !*given;
    const bool fits = numbered ? dml__next_name(graph, op, name)
                               : snprintf(name, DML_NAME_BYTES, "%s%s", graph->scope, given) < DML_NAME_BYTES;
    if (!fits)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "%s '%.64s' in the scope '%s': the whole name may have %d bytes", op->name,
                         numbered ? op->name : given, graph->scope, DML_NAME_BYTES - 1);
    if (!dml__is_utf8(name))
        return dml__fail(error, DML_ERROR_ARGUMENT, "%s: a name that isn't UTF-8, which files could not hold",
                         op->name);
    if (dml__has_control(name)) return dml__refuse_control(error, op->name, name);
    if (strncmp(name, "dml.", 4) == 0 || strcmp(name, "__metadata__") == 0)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "%s '%s': names that begin with 'dml.', and '__metadata__', are the files' own",
                         op->name, name);
    if (dml__graph_find(graph, name))
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "%s '%s': the graph has a node of that name; give another one, or tell repeated "
                         "blocks apart with dml_push_scope",
                         op->name, name);
    return DML_OK;
}

#endif
