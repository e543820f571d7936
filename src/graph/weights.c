#ifndef DML_GRAPH_WEIGHTS_C
#define DML_GRAPH_WEIGHTS_C

#include "graph/weights.h"

#include "base/memory.h"
#include "base/os_thread.h"
#include "base/philox.h"
#include "graph/node.h"
#include "graph/op.h"

#include <math.h>
#include <string.h>

/* ---- laying out ---- */

/* Stream numbers of the parameters' initial values: the place in the model, so that a parameter's numbers
   depend on the seed and the model alone. */
static void dml__initialise(const dml_node *parameter, uint64_t seed, float *w)
{
    const dml_random random = { seed, 0x57u /* 'W' */, 0 };
    const dml_initializer *init = &parameter->init;
    const size_t count = dml_shape_count(&parameter->shape);
    for (size_t i = 0; i < count; i++) {
        const size_t in_whole = parameter->cut ? dml__part_element(dml__shard_of(parameter), i) : i;
        const uint64_t element = (uint64_t)(parameter->place + in_whole);
        switch (init->kind) {
        case DML_INIT_CONSTANT: w[i] = init->a; break;
        case DML_INIT_UNIFORM:
            w[i] = init->a + (init->b - init->a) * dml_random_uniform(&random, element);
            if (w[i] >= init->b && init->b > init->a) w[i] = nextafterf(init->b, init->a); /* rounded up */
            break;
        case DML_INIT_NORMAL: w[i] = init->a + init->b * dml_random_normal(&random, element); break;
        }
    }
}

/* Trained parameters first, then the frozen ones. */
static void dml__give_offsets(dml_graph *graph)
{
    size_t offset = 0;
    for (int frozen = 0; frozen < 2; frozen++) {
        for (dml_node *p = graph->first_parameter; p; p = p->next_parameter) {
            if (p->frozen != (frozen == 1)) continue;
            p->offset = offset;
            offset += dml_shape_count(&p->shape);
        }
        if (!frozen) graph->trained_count = offset;
    }
}

/* Writes initial values; a device with memory of its own gets them by way of a piece of the host's. */
static dml_status dml__initialise_all(dml_graph *graph, dml_buffer *w)
{
    dml_context *context = graph->context;
    dml_device *device = &context->device;
    size_t largest = 1;
    for (const dml_node *p = graph->first_parameter; p; p = p->next_parameter)
        if (dml_shape_count(&p->shape) > largest) largest = dml_shape_count(&p->shape);
    float *piece = NULL;
    if (!device->host_memory) {
        piece = (float *)dml__allocate_array(&context->memory, largest, sizeof *piece);
        if (!piece)
            return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left to initialise %zu parameters",
                             largest);
    }
    dml_status status = DML_OK;
    for (const dml_node *p = graph->first_parameter; p && status == DML_OK; p = p->next_parameter) {
        const dml_ref to = { w, p->offset * sizeof(float) };
        dml__initialise(p, context->seed, piece ? piece : (float *)dml__host(to));
        if (piece)
            status = device->backend->write(device, to, piece, dml_shape_count(&p->shape) * sizeof(float));
    }
    dml__release(&context->memory, piece);
    return status;
}

DML__LOCAL dml_status dml__graph_lay_out(dml_graph *graph)
{
    dml_context *context = graph->context;
    if (context->error.status != DML_OK) return context->error.status;
    if (graph->w) return DML_OK;
    if (graph->parameter_count > SIZE_MAX / sizeof(float) / 2)
        return dml__fail(&context->error, DML_ERROR_MEMORY,
                         "%zu parameters are more than there are addresses for", graph->parameter_count);
    dml__give_offsets(graph);
    dml_buffer *w = dml__buffer_create(context, graph->parameter_count * sizeof(float));
    if (!w) return context->error.status;
    const dml_status status = dml__initialise_all(graph, w);
    if (status == DML_OK)
        graph->w = w;
    else
        dml__buffer_destroy(context, w);
    return status;
}

/* ---- who may write ---- */

/* In a child of fork() whoever was in a run or a step has stayed with the parent. */
static bool dml__forget_parents_claims(dml_graph *graph)
{
    const long process = dml__process_id();
    if (graph->process == process) return false;
    graph->process = process;
    __atomic_store_n(&graph->readers, 0, __ATOMIC_RELAXED);
    return true;
}

static bool dml__try_claim(dml_graph *graph, bool reading)
{
    int readers = __atomic_load_n(&graph->readers, __ATOMIC_RELAXED);
    do {
        if (reading ? readers < 0 : readers != 0) return false;
    } while (!__atomic_compare_exchange_n(&graph->readers, &readers, reading ? readers + 1 : -1, true,
                                          __ATOMIC_ACQUIRE, __ATOMIC_RELAXED));
    return true;
}

DML__LOCAL bool dml__graph_claim(dml_graph *graph, bool reading)
{
    return dml__try_claim(graph, reading) ||
           (dml__forget_parents_claims(graph) && dml__try_claim(graph, reading));
}

DML__LOCAL void dml__graph_release(dml_graph *graph, bool reading)
{
    int readers = __atomic_load_n(&graph->readers, __ATOMIC_RELAXED);
    int left;
    do { /* never below zero: a child may have forgotten its parent's claims in between */
        left = reading && readers > 0 ? readers - 1 : 0;
    } while (!__atomic_compare_exchange_n(&graph->readers, &readers, left, true, __ATOMIC_RELEASE,
                                          __ATOMIC_RELAXED));
}

DML__LOCAL dml_status dml__graph_claim_writing(dml_graph *graph)
{
    if (dml__graph_claim(graph, false)) return DML_OK;
    return dml__fail(&graph->context->error, DML_ERROR_STATE,
                     "the parameters can't be written while programs predict on other threads; wait until "
                     "their runs have ended");
}

DML__LOCAL dml_status dml__check_gathered(const dml_graph *graph, dml__error *error)
{
    if (!graph->spread) return DML_OK;
    return dml__fail(
        error, DML_ERROR_STATE,
        "the parameters are spread over the ranks that train them; call dml_trainer_gather on all "
        "ranks before they are used here");
}

/* ---- looking ---- */

DML_API size_t dml_graph_parameter_count(const dml_graph *graph)
{
    return graph ? graph->parameter_count : 0;
}

DML_API size_t dml_graph_trained_count(const dml_graph *graph)
{
    size_t count = 0;
    for (const dml_node *p = graph ? graph->first_parameter : NULL; p; p = p->next_parameter)
        if (!p->frozen) count += dml_shape_count(&p->shape);
    return count;
}

DML_API int dml_graph_parameters(const dml_graph *graph)
{
    int count = 0;
    for (const dml_node *p = graph ? graph->first_parameter : NULL; p; p = p->next_parameter) count++;
    return count;
}

DML_API dml_node *dml_graph_parameter(const dml_graph *graph, int i)
{
    dml_node *p = graph && i >= 0 ? graph->first_parameter : NULL;
    for (; p && i > 0; i--) p = p->next_parameter;
    return p;
}

DML_API size_t dml_parameter_offset(const dml_node *parameter)
{
    return parameter ? parameter->offset : 0;
}

DML_API bool dml_parameter_trained(const dml_node *parameter)
{
    return parameter && parameter->op == dml__parameter_op() && !parameter->frozen;
}

DML_API dml_status dml_parameter_train(dml_node *parameter, bool trained)
{
    if (!parameter) return DML_ERROR_ARGUMENT;
    if (parameter->op != dml__parameter_op())
        return dml__node_fail(parameter, DML_ERROR_ARGUMENT, "only a parameter can be trained or frozen");
    if (trained && parameter->statistic)
        return dml__node_fail(parameter, DML_ERROR_ARGUMENT,
                              "an op takes it as a running statistic, so it can't be trained");
    if (parameter->graph->w && parameter->frozen == trained)
        return dml__node_fail(parameter, DML_ERROR_STATE,
                              "whether it is trained must be said before the parameters are laid out, by the "
                              "first compile or the first use of their values%s",
                              trained ? "" : "; dml_parameter_set_lr_scale of 0 holds it from here on");
    parameter->frozen = !trained;
    return DML_OK;
}

DML_API bool dml_parameter_sparse(const dml_node *parameter)
{
    return parameter && parameter->sparse;
}

DML_API dml_status dml_parameter_set_sparse(dml_node *parameter, bool sparse)
{
    if (!parameter) return DML_ERROR_ARGUMENT;
    if (parameter->op != dml__parameter_op() || parameter->shape.ndim < 1)
        return dml__node_fail(parameter, DML_ERROR_ARGUMENT, "only a parameter that has rows can be sparse");
    parameter->sparse = sparse;
    return DML_OK;
}

DML_API bool dml_parameter_loaded(const dml_node *parameter)
{
    return parameter && parameter->loaded;
}

/* ---- values ---- */

static dml_status dml__reach_parameter(dml_node *parameter, size_t count)
{
    if (parameter->op != dml__parameter_op())
        return dml__node_fail(parameter, DML_ERROR_ARGUMENT, "only a parameter has values of its own");
    if (!parameter->used)
        return dml__node_fail(parameter, DML_ERROR_STATE, "no op uses it, so it has no place in w");
    char text[DML_SHAPE_TEXT];
    if (count != dml_shape_count(&parameter->shape))
        return dml__node_fail(parameter, DML_ERROR_SHAPE, "%zu values given or asked for, it has %s", count,
                              dml_shape_format(&parameter->shape, text));
    return dml__graph_lay_out(parameter->graph);
}

/* Where a parameter's values are copied: out to `to`, or in from `from`. */
static dml_status dml__copy_parameter(dml_node *parameter, float *to, const float *from, size_t count)
{
    dml_graph *graph = parameter->graph;
    dml_device *device = &graph->context->device;
    dml_status status = dml__reach_parameter(parameter, count);
    if (status == DML_OK) status = dml__check_gathered(graph, &graph->context->error);
    if (status == DML_OK && from) status = dml__graph_claim_writing(graph);
    if (status != DML_OK) return status;
    const dml_ref place = { graph->w, parameter->offset * sizeof(float) };
    if (to) return device->backend->read(device, to, place, count * sizeof *to);
    status = device->backend->write(device, place, from, count * sizeof *from);
    dml__graph_release(graph, false);
    return status;
}

static dml_status dml__copy_parameter_alone(dml_node *parameter, float *to, const float *from, size_t count)
{
    if (!parameter) return DML_ERROR_ARGUMENT;
    dml_context *context = parameter->graph->context;
    if (!to && !from)
        return dml__node_fail(parameter, DML_ERROR_ARGUMENT, "there is no array (NULL) for its values");
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__copy_parameter(parameter, to, from, count);
    dml__leave(context, entry);
    return status;
}

DML_API dml_status dml_parameter_read(dml_node *parameter, float *to, size_t count)
{
    return dml__copy_parameter_alone(parameter, to, NULL, count);
}

DML_API dml_status dml_parameter_write(dml_node *parameter, const float *from, size_t count)
{
    return dml__copy_parameter_alone(parameter, NULL, from, count);
}

/* w on the host as it was left: w itself, or its mirror, which the first call makes. */
DML__LOCAL float *dml__graph_host(dml_graph *graph)
{
    dml_context *context = graph->context;
    if (dml__graph_lay_out(graph) != DML_OK) return NULL;
    if (context->device.host_memory) return (float *)graph->w->host;
    if (!graph->mirror)
        graph->mirror = (float *)dml__allocate_array(&context->memory, graph->parameter_count, sizeof(float));
    if (!graph->mirror)
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for the host's copy of %zu parameters",
                  graph->parameter_count);
    return graph->mirror;
}

static bool dml__graph_range_ok(dml_graph *graph, size_t begin, size_t end)
{
    if (begin <= end && end <= graph->parameter_count) return true;
    dml__fail(&graph->context->error, DML_ERROR_ARGUMENT,
              "elements %zu to %zu of the parameters asked for; there are %zu", begin, end,
              graph->parameter_count);
    return false;
}

DML_API float *dml_graph_get(dml_graph *graph, size_t begin, size_t end)
{
    if (!graph || !dml__graph_range_ok(graph, begin, end)) return NULL;
    dml__settle(graph->context);
    float *host = dml__graph_host(graph);
    dml_device *device = &graph->context->device;
    if (dml__check_gathered(graph, &graph->context->error) != DML_OK) return NULL;
    if (!host || device->host_memory || begin == end) return host ? host + begin : NULL;
    const dml_ref from = { graph->w, begin * sizeof(float) };
    dml__entry entry;
    if (!dml__begin_transfer(graph->context, &entry)) return NULL;
    const dml_status status =
        device->backend->read(device, host + begin, from, (end - begin) * sizeof(float));
    dml__leave(graph->context, entry);
    return status == DML_OK ? host + begin : NULL;
}

DML_API dml_status dml_graph_put(dml_graph *graph, size_t begin, size_t end)
{
    if (!graph || !dml__graph_range_ok(graph, begin, end)) return DML_ERROR_ARGUMENT;
    dml__settle(graph->context);
    const float *host = dml__graph_host(graph);
    dml_device *device = &graph->context->device;
    if (!host) return graph->context->error.status;
    if (device->host_memory || begin == end) return DML_OK;
    const dml_ref to = { graph->w, begin * sizeof(float) };
    dml__entry entry;
    if (!dml__begin_transfer(graph->context, &entry)) return DML_ERROR_STATE;
    const dml_status status = device->backend->write(device, to, host + begin, (end - begin) * sizeof(float));
    dml__leave(graph->context, entry);
    return status;
}

#endif
