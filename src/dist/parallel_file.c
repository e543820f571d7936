/* Whole models' files of graphs that are cut (dist/tensor_parallel.h). */
#ifndef DML_DIST_PARALLEL_FILE_C
#define DML_DIST_PARALLEL_FILE_C

#include "dist/tensor_parallel.h"

#ifndef DML_NO_STDIO

#include "base/memory.h"
#include "base/safetensors.h"
#include "dist/model_ranks.h"
#include "graph/node.h"
#include "graph/weights.h"
#include "graph/weights_file.h"

#include <stdio.h>
#include <string.h>

static size_t dml__whole_elements(const dml_node *p)
{
    return p->cut ? dml__part_whole(dml__shard_of(p)) : dml_shape_count(&p->shape);
}

static dml_shape dml__whole_shape(const dml_node *p)
{
    dml_shape shape = p->shape;
    const dml__shard *part = dml__shard_of(p);
    if (part) shape.dims[part->axis] = (int)(part->block[0] + part->block[1] + part->block[2]);
    return shape;
}

static size_t dml__largest_whole(const dml_graph *graph)
{
    size_t most = 1;
    for (const dml_node *p = graph->first_parameter; p; p = p->next_parameter)
        if (dml__whole_elements(p) > most) most = dml__whole_elements(p);
    return most;
}

/* ---- writing ---- */

/* What writes a file: on rank 0 all of the model, on the others nothing. */
typedef struct dml__whole_model {
    float *w, *parts;     /* (elements of the whole); (elements of the largest tensor) */
    dml_shape *shape;     /* (parameters) */
    dml__tensor *tensors; /* (parameters) */
} dml__whole_model;

static bool dml__allocate_whole(dml_graph *graph, dml__whole_model *whole)
{
    dml__memory *memory = &graph->context->memory;
    const size_t count = (size_t)dml_graph_parameters(graph);
    whole->w =
        (float *)dml__allocate_array(memory, graph->whole_count - graph->place_before, sizeof *whole->w);
    whole->parts = (float *)dml__allocate_array(memory, dml__largest_whole(graph), sizeof *whole->parts);
    whole->shape = (dml_shape *)dml__allocate_array(memory, count, sizeof *whole->shape);
    whole->tensors = (dml__tensor *)dml__allocate_array(memory, count, sizeof *whole->tensors);
    return whole->w && whole->parts && whole->shape && whole->tensors;
}

static void dml__release_whole(dml_graph *graph, const dml__whole_model *whole)
{
    dml__memory *memory = &graph->context->memory;
    dml__release(memory, whole->tensors);
    dml__release(memory, whole->shape);
    dml__release(memory, whole->parts);
    dml__release(memory, whole->w);
}

/* All ranks' parts of p to rank 0, and there to their places in `to` (elements of the whole). */
static dml_status dml__gather_parameter(dml_comm *comm, const dml_node *p, const float *own,
                                        const dml__whole_model *whole, float *to)
{
    const size_t count = dml_shape_count(&p->shape);
    const bool here = dml_comm_rank(comm) == 0;
    if (!p->cut) {
        if (here) memcpy(to, own, count * sizeof *to);
        return DML_OK;
    }
    dml__shard part = *dml__shard_of(p);
    const dml_status status = dml_comm_gather(comm, own, count, DML_F32, whole->parts, 0);
    for (part.rank = 0; here && status == DML_OK && part.rank < part.ranks; part.rank++)
        for (size_t i = 0; i < count; i++)
            to[dml__part_element(&part, i)] = whole->parts[(size_t)part.rank * count + i];
    return status;
}

static dml_status dml__gather_whole(dml_graph *graph, dml_comm *comm, dml__whole_model *whole)
{
    const float *w = dml_graph_get(graph, 0, graph->parameter_count);
    dml_status status = w ? DML_OK : dml_comm_abort(comm, dml_error(graph->context));
    float *to = whole->w;
    int i = 0;
    for (const dml_node *p = graph->first_parameter; p && status == DML_OK; p = p->next_parameter, i++) {
        status = dml__gather_parameter(comm, p, w + p->offset, whole, to);
        if (dml_comm_rank(comm) > 0) continue;
        whole->shape[i] = dml__whole_shape(p);
        whole->tensors[i].name = p->name;
        whole->tensors[i].dtype = DML_F32;
        whole->tensors[i].ndim = whole->shape[i].ndim;
        whole->tensors[i].dims = whole->shape[i].dims;
        whole->tensors[i].data = to;
        to += dml__whole_elements(p);
    }
    return status;
}

/* Every rank learns of the first that has failed, if one has, and what it says. */
static dml_status dml__agree_in_model(dml_graph *graph, dml_comm *comm, dml_status status)
{
    dml__error *error = &graph->context->error;
    const int32_t rank = dml_comm_rank(comm), ranks = dml_comm_world_size(comm);
    int32_t failed[2] = { status == DML_OK ? ranks : rank, (int32_t)status };
    char text[320];
    memset(text, 0, sizeof text);
    snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, error->text);
    if (dml_comm_all_reduce(comm, failed, 1, DML_I32, DML_MIN) == DML_OK && failed[0] == ranks) return DML_OK;
    if (dml_comm_broadcast(comm, &failed[1], 1, DML_I32, failed[0]) != DML_OK ||
        dml_comm_broadcast(comm, text, sizeof text, DML_U8, failed[0]) != DML_OK)
        return dml__fail(error, dml_comm_status(comm), "saving a model that is cut: %s",
                         dml_comm_error(comm));
    if (status != DML_OK) return status;
    return dml__fail(error, (dml_status)failed[1], "rank %d says: %s", failed[0], text);
}

static dml_status dml__parallel_save_in(dml_graph *graph, const char *path)
{
    dml_comm *comm = dml__model_comm(graph);
    dml_context *context = graph->context;
    const bool writes = dml_comm_rank(comm) == 0;
    dml__whole_model whole;
    memset(&whole, 0, sizeof whole);
    dml_status status = context->error.status;
    if (status == DML_OK && !path) status = dml__fail_null(&context->error, "dml_parallel_save", "path");
    if (status == DML_OK) status = dml__check_gathered(graph, &context->error);
    if (status == DML_OK && writes && !dml__allocate_whole(graph, &whole))
        status = dml__fail(&context->error, DML_ERROR_MEMORY,
                           "no memory left for the %zu parameters of a whole model",
                           graph->whole_count - graph->place_before);
    status = dml__agree_in_model(graph, comm, status);
    if (status == DML_OK) {
        status = dml__gather_whole(graph, comm, &whole);
        if (status == DML_OK && writes)
            status = dml__safetensors_save(&context->memory, path, whole.tensors, dml_graph_parameters(graph),
                                           NULL, 0, &context->error);
        status = dml__agree_in_model(graph, comm, status);
    }
    dml__release_whole(graph, &whole);
    return status;
}

DML_API dml_status dml_parallel_save(dml_graph *graph, const char *path)
{
    if (!graph || !graph->model.ranks) return graph ? dml_graph_save(graph, path) : DML_ERROR_ARGUMENT;
    const dml__entry entry = dml__enter(graph->context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__parallel_save_in(graph, path);
    dml__leave(graph->context, entry);
    return status;
}

/* ---- reading ---- */

/* What the file has for other stages is theirs. */
static dml_status dml__whole_fits(const dml_graph *graph, const dml__safetensors *file, const char *path)
{
    dml_status status = DML_OK;
    int found;
    for (const dml_node *p = graph->first_parameter; p && status == DML_OK; p = p->next_parameter) {
        const dml_shape shape = dml__whole_shape(p);
        status = dml__file_has(file, path, p->name, &shape, &found, &graph->context->error);
    }
    return status == DML_OK && !graph->stages.ranks ? dml__find_stranger(graph, file, path) : status;
}

/* `all` (elements of the largest tensor) is where a tensor is read to. */
static dml_status dml__read_parts(dml_graph *graph, dml__safetensors *file, float *all)
{
    float *w = dml__graph_host(graph);
    if (!w) return graph->context->error.status;
    dml_status status = DML_OK;
    for (dml_node *p = graph->first_parameter; p && status == DML_OK; p = p->next_parameter) {
        const size_t count = dml_shape_count(&p->shape);
        status = dml__safetensors_read_floats(file, dml__safetensors_find(file, p->name), all,
                                              &graph->context->error);
        for (size_t i = 0; i < count && status == DML_OK; i++)
            w[p->offset + i] = all[p->cut ? dml__part_element(dml__shard_of(p), i) : i];
        p->loaded = true;
    }
    if (status == DML_OK) status = dml_graph_put(graph, 0, graph->parameter_count);
    if (status == DML_OK) graph->spread = false;
    return status;
}

static dml_status dml__parallel_load_in(dml_graph *graph, const char *path)
{
    dml_context *context = graph->context;
    dml__safetensors *file = NULL;
    float *all = NULL;
    dml_status status = dml__graph_lay_out(graph);
    if (status == DML_OK) status = dml__safetensors_open_file(&context->memory, path, &file, &context->error);
    const char *part = status == DML_OK ? dml__safetensors_text(file, DML__PART_KEY) : NULL;
    if (part && strncmp(part, "part ", 5) == 0)
        status = dml__fail(&context->error, DML_ERROR_FORMAT,
                           "\"%s\" holds %.48s of a model that is cut over ranks; dml_graph_load reads it on "
                           "the rank that has it",
                           path, part);
    if (status == DML_OK) status = dml__whole_fits(graph, file, path);
    if (status == DML_OK) {
        all = (float *)dml__allocate_array(&context->memory, dml__largest_whole(graph), sizeof *all);
        if (!all)
            status = dml__fail(&context->error, DML_ERROR_MEMORY,
                               "no memory left to read a tensor of %zu elements", dml__largest_whole(graph));
    }
    if (status == DML_OK && (status = dml__graph_claim_writing(graph)) == DML_OK) {
        status = dml__read_parts(graph, file, all);
        dml__graph_release(graph, false);
    }
    dml__release(&context->memory, all);
    dml__safetensors_close(file);
    return status;
}

DML_API dml_status dml_parallel_load(dml_graph *graph, const char *path)
{
    if (!graph || !dml__graph_cuts(graph)) return graph ? dml_graph_load(graph, path) : DML_ERROR_ARGUMENT;
    if (!path) return dml__fail_null(&graph->context->error, "dml_parallel_load", "path");
    const dml__entry entry = dml__enter(graph->context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__parallel_load_in(graph, path);
    dml__leave(graph->context, entry);
    return status;
}

#endif

#endif
