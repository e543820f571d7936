#ifndef DML_GRAPH_GRAPH_C
#define DML_GRAPH_GRAPH_C

#include "graph/graph.h"

#include "base/memory.h"
#include "base/philox.h"
#include "graph/node.h"
#include "graph/op.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void dml__graph_destroy_owned(dml__owned *owned)
{
    dml_graph *graph = (dml_graph *)(void *)owned;
    dml_context *context = graph->context;
    dml__disown(context, owned);
    while (graph->first) {
        dml_node *node = graph->first;
        graph->first = node->next;
        dml__release(&context->memory, node->attributes);
        dml__release(&context->memory, node);
    }
    dml__buffer_destroy(context, graph->w);
    dml__release(&context->memory, graph);
}

DML_API dml_graph *dml_graph_create(dml_context *context)
{
    if (!context || context->error.status != DML_OK) return NULL;
    dml_graph *graph = (dml_graph *)dml__allocate(&context->memory, sizeof *graph);
    if (!graph) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a graph");
        return NULL;
    }
    graph->context = context;
    dml__own(context, &graph->owned, dml__graph_destroy_owned);
    return graph;
}

DML_API void dml_graph_destroy(dml_graph *graph)
{
    if (graph) dml__graph_destroy_owned(&graph->owned);
}

DML_API dml_context *dml_graph_context(const dml_graph *graph)
{
    return graph ? graph->context : NULL;
}

DML__LOCAL dml_status dml__node_fail(const dml_node *node, dml_status status, const char *format, ...)
{
    char text[384];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return dml__fail(&dml__node_context(node)->error, status, "%s%s%s%s: %s", node->op->name,
                     node->name[0] ? " '" : "", node->name, node->name[0] ? "'" : "", text);
}

static void dml__note_first_use(dml_graph *graph, dml_node *parameter)
{
    if (parameter->used || parameter->op != dml__parameter_op()) return;
    parameter->used = true;
    if (graph->last_parameter)
        graph->last_parameter->next_parameter = parameter;
    else
        graph->first_parameter = parameter;
    graph->last_parameter = parameter;
    parameter->offset = graph->parameter_count;
    graph->parameter_count += dml_shape_count(&parameter->shape);
}

/* Kernels count the elements of a sample with 32 bits. */
static dml_status dml__check_count(const dml_node *node)
{
    char text[DML_SHAPE_TEXT];
    size_t count = 1;
    for (int i = 0; i < node->shape.ndim; i++) {
        if (count > (size_t)INT32_MAX / (size_t)node->shape.dims[i])
            return dml__node_fail(node, DML_ERROR_SHAPE, "%s are more than %d elements",
                                  dml_shape_format(&node->shape, text), INT32_MAX);
        count *= (size_t)node->shape.dims[i];
    }
    return DML_OK;
}

static dml_status dml__refuse_new_parameter(const dml_node *node)
{
    return dml__node_fail(node, DML_ERROR_STATE,
                          "a new parameter, but the graph's parameters were laid out by its first compile; "
                          "build the whole model first");
}

/* A node that nobody can see yet. */
static dml_node *dml__node_allocate(dml_graph *graph, const dml__op *op, const void *attributes,
                                    size_t attribute_bytes)
{
    dml__memory *memory = &graph->context->memory;
    dml_node *node = (dml_node *)dml__allocate(memory, sizeof *node);
    void *copy = attribute_bytes ? dml__allocate(memory, attribute_bytes) : NULL;
    if (!node || (attribute_bytes && !copy)) {
        dml__release(memory, node);
        dml__release(memory, copy);
        dml__fail(&graph->context->error, DML_ERROR_MEMORY, "no memory left for a node '%s'", op->name);
        return NULL;
    }
    if (copy) memcpy(copy, attributes, attribute_bytes);
    node->graph = graph;
    node->op = op;
    node->attributes = copy;
    return node;
}

static void dml__node_append(dml_node *node)
{
    dml_graph *graph = node->graph;
    node->index = graph->nodes++;
    if (graph->last)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
}

static void dml__node_release(dml_node *node)
{
    dml__memory *memory = &node->graph->context->memory;
    dml__release(memory, node->attributes);
    dml__release(memory, node);
}

DML__LOCAL dml_node *dml__node_create(const dml__op *op, int inputs, dml_node *const *input,
                                      const void *attributes, size_t attribute_bytes)
{
    DML_ASSERT(inputs >= 1 && inputs <= DML__MAX_INPUTS);
    for (int i = 0; i < inputs; i++)
        if (!input[i]) return NULL;
    dml_graph *graph = input[0]->graph;
    if (graph->context->error.status != DML_OK) return NULL;
    dml_node *node = dml__node_allocate(graph, op, attributes, attribute_bytes);
    if (!node) return NULL;
    node->inputs = inputs;
    bool same_graph = true, new_parameter = false;
    for (int i = 0; i < inputs; i++) {
        node->input[i] = input[i];
        same_graph = same_graph && input[i]->graph == graph;
        new_parameter = new_parameter || (input[i]->op == dml__parameter_op() && !input[i]->used);
    }
    dml_status status = DML_OK;
    if (!same_graph)
        status = dml__node_fail(node, DML_ERROR_ARGUMENT, "its inputs are of different graphs");
    else if (new_parameter && graph->w)
        status = dml__refuse_new_parameter(node);
    if (status == DML_OK) status = op->infer(node);
    if (status == DML_OK) status = dml__check_count(node);
    if (status != DML_OK) {
        dml__node_release(node);
        return NULL;
    }
    for (int i = 0; i < inputs; i++) dml__note_first_use(graph, input[i]);
    dml__node_append(node);
    return node;
}

/* A node without inputs: an input or a parameter. */
static dml_node *dml__leaf_create(dml_graph *graph, const dml__op *op, const char *name, dml_dtype dtype,
                                  int ndim, va_list dims)
{
    if (!graph || graph->context->error.status != DML_OK) return NULL;
    dml_node *node = dml__node_allocate(graph, op, NULL, 0);
    if (!node) return NULL;
    snprintf(node->name, sizeof node->name, "%s", name ? name : "");
    node->dtype = dtype;
    node->batched = op == dml__input_op();
    dml_status status = DML_OK;
    if (ndim < 0 || ndim > DML_MAX_DIMS) {
        status = dml__node_fail(node, DML_ERROR_SHAPE, "%d dimensions asked for, 0 to %d are possible", ndim,
                                DML_MAX_DIMS);
        ndim = 0;
    }
    node->shape.ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        const int dim = va_arg(dims, int);
        node->shape.dims[i] = dim;
        if (dim < 1 && status == DML_OK)
            status =
                dml__node_fail(node, DML_ERROR_SHAPE, "dimension %d is %d, it must be 1 or more", i, dim);
    }
    if (status == DML_OK) status = dml__check_count(node);
    if (status == DML_OK && graph->w && op == dml__parameter_op()) status = dml__refuse_new_parameter(node);
    if (status == DML_OK) {
        dml__node_append(node);
        return node;
    }
    dml__node_release(node);
    return NULL;
}

DML_API dml_node *dml_input(dml_graph *graph, const char *name, dml_dtype dtype, int ndim, ...)
{
    if (graph && dtype != DML_F32 && dtype != DML_I32) {
        dml__fail(&graph->context->error, DML_ERROR_UNSUPPORTED,
                  "input '%s': dtype %s asked for, f32 and i32 are possible", name ? name : "",
                  dml_dtype_name(dtype));
        return NULL;
    }
    va_list dims;
    va_start(dims, ndim);
    dml_node *node = dml__leaf_create(graph, dml__input_op(), name, dtype, ndim, dims);
    va_end(dims);
    return node;
}

DML_API dml_node *dml_parameter(dml_graph *graph, const char *name, dml_initializer init, int ndim, ...)
{
    if (graph && (unsigned)init.kind > DML_INIT_NORMAL) {
        dml__fail(&graph->context->error, DML_ERROR_ARGUMENT, "parameter '%s': no initializer of kind %d",
                  name ? name : "", (int)init.kind);
        return NULL;
    }
    va_list dims;
    va_start(dims, ndim);
    dml_node *node = dml__leaf_create(graph, dml__parameter_op(), name, DML_F32, ndim, dims);
    va_end(dims);
    if (node) node->init = init;
    return node;
}

DML_API dml_initializer dml_init_he(int fan_in)
{
    const dml_initializer init = { DML_INIT_NORMAL, 0.0f, sqrtf(2.0f / (float)(fan_in > 0 ? fan_in : 1)) };
    return init;
}

/* Stream numbers of the parameters' initial values: the place in w, so that a parameter's numbers depend on
   the seed and the model alone. */
static void dml__initialise(const dml_node *parameter, uint64_t seed, float *w)
{
    const dml_random random = { seed, 0x57u /* 'W' */, 0 };
    const dml_initializer *init = &parameter->init;
    const size_t count = dml_shape_count(&parameter->shape);
    for (size_t i = 0; i < count; i++) {
        const uint64_t element = (uint64_t)(parameter->offset + i);
        switch (init->kind) {
        case DML_INIT_CONSTANT: w[i] = init->a; break;
        case DML_INIT_UNIFORM:
            w[i] = init->a + (init->b - init->a) * dml_random_uniform(&random, element);
            break;
        case DML_INIT_NORMAL: w[i] = init->a + init->b * dml_random_normal(&random, element); break;
        }
    }
}

DML__LOCAL dml_status dml__graph_freeze(dml_graph *graph)
{
    if (graph->w) return DML_OK;
    dml_context *context = graph->context;
    dml_device *device = &context->device;
    size_t largest = 1;
    for (const dml_node *p = graph->first_parameter; p; p = p->next_parameter)
        if (dml_shape_count(&p->shape) > largest) largest = dml_shape_count(&p->shape);
    if (graph->parameter_count > SIZE_MAX / sizeof(float) / 2)
        return dml__fail(&context->error, DML_ERROR_MEMORY,
                         "%zu parameters are more than there are addresses for", graph->parameter_count);
    dml_buffer *w = dml__buffer_create(context, graph->parameter_count * sizeof(float));
    if (!w) return context->error.status;
    float *host = (float *)dml__allocate_array(&context->memory, largest, sizeof *host);
    dml_status status = DML_OK;
    if (!host)
        status = dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left to initialise %zu parameters",
                           largest);
    for (const dml_node *p = graph->first_parameter; p && status == DML_OK; p = p->next_parameter) {
        dml__initialise(p, context->seed, host);
        const dml_ref to = { w, p->offset * sizeof(float) };
        status = device->backend->write(device, to, host, dml_shape_count(&p->shape) * sizeof(float));
    }
    dml__release(&context->memory, host);
    if (status == DML_OK)
        graph->w = w;
    else
        dml__buffer_destroy(context, w);
    return status;
}

DML_API dml_graph *dml_node_graph(const dml_node *node)
{
    return node ? node->graph : NULL;
}

DML_API const char *dml_node_name(const dml_node *node)
{
    return node ? node->name : "";
}

DML_API const char *dml_node_op(const dml_node *node)
{
    return node ? node->op->name : "";
}

DML_API dml_shape dml_node_shape(const dml_node *node)
{
    static const dml_shape none = { 0, { 0, 0, 0, 0, 0 } };
    return node ? node->shape : none;
}

DML_API dml_dtype dml_node_dtype(const dml_node *node)
{
    return node ? node->dtype : DML_F32;
}

DML_API size_t dml_graph_parameter_count(const dml_graph *graph)
{
    return graph ? graph->parameter_count : 0;
}

#endif
