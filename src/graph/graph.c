#ifndef DML_GRAPH_GRAPH_C
#define DML_GRAPH_GRAPH_C

#include "graph/graph.h"

#include "base/memory.h"
#include "graph/names.h"
#include "graph/node.h"
#include "graph/op.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void dml__node_release(dml_node *node)
{
    dml__memory *memory = &dml__node_context(node)->memory;
    if (node->cut) dml__release(memory, node->attributes);
    dml__release(memory, node);
}

static void dml__graph_destroy_owned(dml__owned *owned)
{
    dml_graph *graph = (dml_graph *)(void *)owned;
    dml_context *context = graph->context;
    dml__disown(context, owned);
    for (dml_node *node = graph->first, *next; node; node = next) {
        next = node->next;
        dml__node_release(node);
    }
    if (graph->model.calls) graph->model.calls->leave(graph->model.user);
    if (graph->stages.calls) graph->stages.calls->leave(graph->stages.user);
    dml__buffer_destroy(context, graph->w);
    dml__release(&context->memory, graph->mirror);
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
    graph->process = context->process;
    dml__own(context, &graph->owned, dml__graph_destroy_owned);
    return graph;
}

DML_API void dml_graph_destroy(dml_graph *graph)
{
    if (!graph) return;
    if (graph->programs > 0)
        dml__fail(&graph->context->error, DML_ERROR_STATE,
                  "a graph can't be destroyed before the trainers, decoders and other programs made of it "
                  "(left: %d)",
                  graph->programs);
    else
        dml__graph_destroy_owned(&graph->owned);
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
    return dml__fail(&dml__node_context(node)->error, status, "%s '%s': %s", node->op->name, node->name,
                     text);
}

/* ---- building ---- */

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
                          "a new parameter, but the graph's parameters have been laid out, by the first "
                          "compile or the first use of their values; build the whole model first");
}

/* A node that nobody can see yet; NULL, with the error recorded, when its name or memory can't be had. */
static dml_node *dml__node_allocate(dml_graph *graph, const dml__op *op, const char *given,
                                    const void *attributes, size_t attribute_bytes)
{
    char name[DML_NAME_BYTES];
    if (dml__make_name(graph, op, given, name) != DML_OK) return NULL;
    const size_t attributes_at = (sizeof(dml_node) + 15) / 16 * 16;
    dml_node *node = (dml_node *)dml__allocate(&graph->context->memory,
                                               attributes_at + attribute_bytes + strlen(name) + 1);
    if (!node) {
        dml__fail(&graph->context->error, DML_ERROR_MEMORY, "no memory left for a node '%s'", name);
        return NULL;
    }
    char *behind = (char *)node + attributes_at;
    if (attribute_bytes) memcpy(behind, attributes, attribute_bytes);
    memcpy(behind + attribute_bytes, name, strlen(name) + 1);
    node->graph = graph;
    node->op = op;
    node->attributes = behind;
    node->name = behind + attribute_bytes;
    return node;
}

DML__LOCAL void dml__node_append(dml_node *node)
{
    dml_graph *graph = node->graph;
    node->index = graph->nodes++;
    node->extra = node->extra || node->op == dml__input_op() || node->op == dml__constant_op();
    node->key = graph->keys;
    graph->keys += !node->extra;
    if (graph->last)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    dml__names_add(node);
}

DML__LOCAL void dml__node_is_extra(dml_node *node)
{
    DML_ASSERT(node == node->graph->last && !node->extra);
    node->extra = true;
    node->graph->keys = node->key;
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
    const size_t count = dml_shape_count(&parameter->shape);
    parameter->place = graph->whole_count;
    graph->parameter_count += count;
    graph->whole_count += parameter->cut ? dml__part_whole(dml__shard_of(parameter)) : count;
}

/* Of a model that is cut: a node has a value of its own on each rank where an input has, or is a part of a
   parameter. Whatever else it reads needs the sum of all ranks' gradients, which dml_parallel_copy makes. */
static dml_status dml__check_partial(dml_node *node)
{
    for (int i = 0; i < node->inputs; i++)
        node->partial = node->partial || node->input[i]->partial || node->input[i]->cut;
    if (node->sums || !node->partial) {
        node->partial = false;
        return DML_OK;
    }
    for (int i = 0; i < node->inputs; i++) {
        const dml_node *input = node->input[i];
        const bool parameter = input->op == dml__parameter_op();
        if (node->copies || input->partial || input->cut || input->dtype != DML_F32 ||
            input->op == dml__input_op() || input->op == dml__constant_op())
            continue;
        return dml__node_fail(
            node, DML_ERROR_ARGUMENT,
            "it reads '%s', which all ranks have alike, where each has a part of its own: give "
            "it dml_parallel_copy of that%s, or first add the parts up by dml_parallel_sum",
            input->name, parameter ? ", or make it by dml_parallel_parameter, of which each has a part" : "");
    }
    return DML_OK;
}

DML__LOCAL dml_node *dml__named_node_create(const dml__op *op, const char *name, int inputs,
                                            dml_node *const *input, const void *attributes,
                                            size_t attribute_bytes)
{
    DML_ASSERT(inputs >= 1 && inputs <= DML__MAX_INPUTS);
    dml_graph *graph = NULL;
    int missing = -1;
    for (int i = inputs - 1; i >= 0; i--)
        if (input[i])
            graph = input[i]->graph;
        else
            missing = i;
    if (!graph || graph->context->error.status != DML_OK) return NULL;
    if (missing >= 0) {
        dml__fail(&graph->context->error, DML_ERROR_ARGUMENT, "%s: its input %d of %d is NULL", op->name,
                  missing + 1, inputs);
        return NULL;
    }
    dml_node *node = dml__node_allocate(graph, op, name, attributes, attribute_bytes);
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
    if (status == DML_OK) status = dml__check_partial(node);
    if (status == DML_OK) status = dml__check_count(node);
    if (status != DML_OK) {
        dml__release(&graph->context->memory, node);
        return NULL;
    }
    for (int i = 0; i < inputs; i++) dml__note_first_use(graph, input[i]);
    dml__node_append(node);
    return node;
}

DML__LOCAL dml_node *dml__node_create(const dml__op *op, int inputs, dml_node *const *input,
                                      const void *attributes, size_t attribute_bytes)
{
    return dml__named_node_create(op, NULL, inputs, input, attributes, attribute_bytes);
}

DML__LOCAL dml_status dml__check_dimensions(const dml_node *node, const dml_shape *shape)
{
    if (shape->ndim < 0 || shape->ndim > DML_MAX_DIMS)
        return dml__node_fail(node, DML_ERROR_SHAPE, "%d dimensions asked for, 0 to %d are possible",
                              shape->ndim, DML_MAX_DIMS);
    for (int i = 0; i < shape->ndim; i++)
        if (shape->dims[i] < 1)
            return dml__node_fail(node, DML_ERROR_SHAPE, "dimension %d is %d, it must be 1 or more", i,
                                  shape->dims[i]);
    return DML_OK;
}

DML__LOCAL dml_node *dml__leaf_create(dml_graph *graph, const dml__op *op, const char *name, dml_dtype dtype,
                                      dml_shape shape, const void *attributes, size_t attribute_bytes)
{
    if (!graph || graph->context->error.status != DML_OK) return NULL;
    dml_node *node = dml__node_allocate(graph, op, name, attributes, attribute_bytes);
    if (!node) return NULL;
    node->dtype = dtype;
    node->batched = op != dml__parameter_op() && op != dml__constant_op();
    dml_status status = dml__check_dimensions(node, &shape);
    if (status == DML_OK) {
        /* Dimensions past the last are zero, however the caller left them. */
        node->shape.ndim = shape.ndim;
        for (int i = 0; i < DML_MAX_DIMS; i++) node->shape.dims[i] = i < shape.ndim ? shape.dims[i] : 0;
        status = dml__check_count(node);
    }
    if (status == DML_OK && graph->w && op == dml__parameter_op()) status = dml__refuse_new_parameter(node);
    if (status != DML_OK) {
        dml__release(&graph->context->memory, node);
        return NULL;
    }
    dml__node_append(node);
    return node;
}

DML_API dml_node *dml_input_shaped(dml_graph *graph, const char *name, dml_dtype dtype, dml_shape shape)
{
    if (graph && dtype != DML_F32 && dtype != DML_I32) {
        dml__fail(&graph->context->error, DML_ERROR_UNSUPPORTED,
                  "input '%s': dtype %s asked for, f32 and i32 are possible", name ? name : "",
                  dml_dtype_name(dtype));
        return NULL;
    }
    return dml__leaf_create(graph, dml__input_op(), name, dtype, shape, NULL, 0);
}

static bool dml__can_initialize(const dml_initializer *init)
{
    const float a = init->a, b = init->b, width = b - a;
    if (!(a - a == 0) || !(b - b == 0)) return false;
    if (init->kind == DML_INIT_UNIFORM) return width >= 0 && width - width == 0;
    return init->kind != DML_INIT_NORMAL || b >= 0;
}

DML_API dml_node *dml_parameter_shaped(dml_graph *graph, const char *name, dml_initializer init,
                                       dml_shape shape)
{
    if (graph && (unsigned)init.kind > DML_INIT_NORMAL) {
        dml__fail(&graph->context->error, DML_ERROR_ARGUMENT, "parameter '%s': no initializer of kind %d",
                  name ? name : "", (int)init.kind);
        return NULL;
    }
    if (graph && !dml__can_initialize(&init)) {
        dml__fail(
            &graph->context->error, DML_ERROR_ARGUMENT,
            "parameter '%s': initial values by %g and %g asked for; they must be finite, a range from low to "
            "high, a deviation 0 or more",
            name ? name : "", (double)init.a, (double)init.b);
        return NULL;
    }
    dml_node *node = dml__leaf_create(graph, dml__parameter_op(), name, DML_F32, shape, NULL, 0);
    if (!node) return NULL;
    node->init = init;
    node->lr_scale = node->decay_scale = 1.0f;
    return node;
}

DML__LOCAL dml_status dml__layer_name(dml_graph *graph, const dml__op *op, char name[DML_NAME_BYTES])
{
    const size_t scope = strlen(graph->scope);
    dml_status status = graph->context->error.status;
    if (status == DML_OK) status = dml__make_name(graph, op, NULL, name);
    if (status == DML_OK) memmove(name, name + scope, strlen(name) - scope + 1);
    return status;
}

DML__LOCAL dml_node *dml__layer_parameter(dml_graph *graph, const dml__op *op, const char *part,
                                          dml_initializer init, dml_shape shape)
{
    char layer[DML_NAME_BYTES], name[2 * DML_NAME_BYTES];
    if (dml__layer_name(graph, op, layer) != DML_OK) return NULL;
    snprintf(name, sizeof name, "%s.%s", layer, part);
    return dml_parameter_shaped(graph, name, init, shape);
}

/* Once w is laid out no node can be a parameter's first use, so none that is dropped was. */
static void dml__note_first_uses_again(dml_graph *graph)
{
    if (graph->w) return;
    for (dml_node *p = graph->first_parameter, *next; p; p = next) {
        next = p->next_parameter;
        p->used = false;
        p->next_parameter = NULL;
    }
    graph->first_parameter = graph->last_parameter = NULL;
    graph->parameter_count = 0;
    graph->whole_count = graph->place_before;
    for (dml_node *node = graph->first; node; node = node->next)
        for (int i = 0; i < node->inputs; i++) dml__note_first_use(graph, node->input[i]);
}

DML__LOCAL void dml__graph_drop_after(dml_graph *graph, dml_node *last)
{
    dml_node *node = last ? last->next : graph->first;
    if (last)
        last->next = NULL;
    else
        graph->first = NULL;
    graph->last = last;
    graph->nodes = last ? last->index + 1 : 0;
    graph->keys = last ? last->key + !last->extra : graph->keys_before;
    dml__names_drop(graph);
    dml__note_first_uses_again(graph);
    while (node) {
        dml_node *next = node->next;
        dml__node_release(node);
        node = next;
    }
}

static dml_initializer dml__initializer(dml_initializer_kind kind, float a, float b)
{
    const dml_initializer init = { kind, a, b };
    return init;
}

DML_API dml_initializer dml_init_constant(float value)
{
    return dml__initializer(DML_INIT_CONSTANT, value, 0.0f);
}

DML_API dml_initializer dml_init_uniform(float low, float high)
{
    return dml__initializer(DML_INIT_UNIFORM, low, high);
}

DML_API dml_initializer dml_init_normal(float mean, float deviation)
{
    return dml__initializer(DML_INIT_NORMAL, mean, deviation);
}

DML_API dml_initializer dml_init_he(int fan_in)
{
    return dml__initializer(DML_INIT_NORMAL, 0.0f, sqrtf(2.0f / (float)(fan_in > 0 ? fan_in : 1)));
}

/* ---- walking ---- */

DML_API dml_node *dml_graph_first(const dml_graph *graph)
{
    return graph ? graph->first : NULL;
}

DML_API dml_node *dml_node_next(const dml_node *node)
{
    return node ? node->next : NULL;
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

DML_API bool dml_node_batched(const dml_node *node)
{
    return node && node->batched;
}

DML_API int dml_node_inputs(const dml_node *node)
{
    return node ? node->inputs : 0;
}

DML_API dml_node *dml_node_input(const dml_node *node, int i)
{
    return node && i >= 0 && i < node->inputs ? node->input[i] : NULL;
}

DML_API const char *dml_node_describe(const dml_node *node, char *text, size_t bytes)
{
    if (!text || !bytes) return "";
    text[0] = '\0';
    if (node && node->op->describe) node->op->describe(node, text, bytes);
    return text;
}

DML_API double dml_node_flops(const dml_node *node)
{
    if (!node) return 0;
    return node->op->flops ? node->op->flops(node) : (double)dml_shape_count(&node->shape);
}

#endif
