#ifndef DML_GRAPH_WEIGHTS_FILE_C
#define DML_GRAPH_WEIGHTS_FILE_C

#include "graph/weights_file.h"

#include "base/json.h"
#include "base/memory.h"
#include "graph/weights.h"

#include <stdio.h>
#include <string.h>

/* ---- writing ---- */

DML__LOCAL void dml__graph_tensors(const dml_graph *graph, const float *w, dml__tensor *tensors)
{
    for (const dml_node *p = graph->first_parameter; p; p = p->next_parameter, tensors++) {
        tensors->name = p->name;
        tensors->dtype = DML_F32;
        tensors->ndim = p->shape.ndim;
        tensors->dims = p->shape.dims;
        tensors->data = w + p->offset;
    }
}

DML__LOCAL const char *dml__part_text(const dml_graph *graph, char text[DML__PART_BYTES])
{
    const dml__model_ranks *model = &graph->model, *stages = &graph->stages;
    text[0] = '\0';
    if (model->ranks) snprintf(text, DML__PART_BYTES, "part %d/%d", model->rank, model->ranks);
    if (stages->ranks)
        snprintf(text + strlen(text), DML__PART_BYTES - strlen(text), "%sstage %d/%d",
                 model->ranks ? ", " : "", stages->rank, stages->ranks);
    return text;
}

/* Where a graph is written to: a file, or, where `path` is NULL, memory. */
typedef struct dml__weights_target {
    const char *path;
    void *to;
    size_t capacity, *bytes;
} dml__weights_target;

static dml_status dml__graph_write(dml_graph *graph, const dml__weights_target *target)
{
    dml_context *context = graph->context;
    const int count = dml_graph_parameters(graph);
    const float *w = dml_graph_get(graph, 0, graph->parameter_count);
    if (!w) return context->error.status;
    dml__tensor *tensors =
        (dml__tensor *)dml__allocate_array(&context->memory, (size_t)count, sizeof *tensors);
    if (!tensors)
        return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left to list %d parameters", count);
    dml__graph_tensors(graph, w, tensors);
    char part[DML__PART_BYTES];
    const dml__metadata pair = { DML__PART_KEY, dml__part_text(graph, part) };
    const int pairs = part[0] != '\0';
    dml_status status;
#ifndef DML_NO_STDIO
    if (target->path)
        status = dml__safetensors_save(&context->memory, target->path, tensors, count, &pair, pairs,
                                       &context->error);
    else
#endif
        status = dml__safetensors_store(&context->memory, target->to, target->capacity, target->bytes,
                                        tensors, count, &pair, pairs, &context->error);
    dml__release(&context->memory, tensors);
    return status;
}

static dml_status dml__graph_write_guarded(dml_graph *graph, const dml__weights_target *target)
{
    const dml__entry entry = dml__enter(graph->context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__graph_write(graph, target);
    dml__leave(graph->context, entry);
    return status;
}

#ifndef DML_NO_STDIO
DML_API dml_status dml_graph_save(dml_graph *graph, const char *path)
{
    if (!graph) return DML_ERROR_ARGUMENT;
    if (!path) return dml__fail_null(&graph->context->error, "dml_graph_save", "path");
    const dml__weights_target target = { path, NULL, 0, NULL };
    return dml__graph_write_guarded(graph, &target);
}
#endif

DML_API dml_status dml_graph_store(dml_graph *graph, void *to, size_t capacity, size_t *bytes)
{
    if (!graph) return DML_ERROR_ARGUMENT;
    if (!bytes)
        return dml__fail_null(&graph->context->error, "dml_graph_store", "place for the number of bytes");
    const dml__weights_target target = { NULL, to, capacity, bytes };
    return dml__graph_write_guarded(graph, &target);
}

/* ---- reading ---- */

static bool dml__entry_has_shape(const dml__safetensors_entry *entry, const dml_shape *shape)
{
    if (entry->ndim != shape->ndim) return false;
    for (int i = 0; i < shape->ndim; i++)
        if (entry->dims[i] != (uint64_t)shape->dims[i]) return false;
    return true;
}

/* "3 x 4" of a file's tensor, whose dimensions may be any. */
static const char *dml__entry_shape(const dml__safetensors_entry *entry, char text[DML_SHAPE_TEXT])
{
    dml_shape shape;
    memset(&shape, 0, sizeof shape);
    if (entry->ndim > DML_MAX_DIMS) return "more dimensions";
    shape.ndim = entry->ndim;
    for (int i = 0; i < entry->ndim; i++)
        shape.dims[i] = entry->dims[i] < INT32_MAX ? (int)entry->dims[i] : INT32_MAX;
    return dml_shape_format(&shape, text);
}

#ifdef DML_NO_STDIO
#define DML__WAY_OUT ""
#else
#define DML__WAY_OUT "; dml_graph_load_matching takes what fits"
#endif

DML__LOCAL dml_status dml__file_has(const dml__safetensors *file, const char *path, const char *name,
                                    const dml_shape *shape, int *found, dml__error *error)
{
    char want[DML_SHAPE_TEXT], got[DML_SHAPE_TEXT];
    *found = dml__safetensors_find(file, name);
    if (*found < 0 && dml__is_own_name(name))
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" holds a run that trained other parameters: it has no '%s', which this one "
                         "keeps as %s; dml_graph_load takes the model without the optimizer's state",
                         path, name, dml_shape_format(shape, want));
    if (*found < 0)
        return dml__fail(
            error, DML_ERROR_FORMAT,
            "\"%s\" holds another model: it has no '%s', which this model has as %s" DML__WAY_OUT, path, name,
            dml_shape_format(shape, want));
    const dml__safetensors_entry *entry = dml__safetensors_at(file, *found);
    if (!dml__entry_has_shape(entry, shape))
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" holds another model: its '%s' is %s, this model's is %s" DML__WAY_OUT, path,
                         name, dml__entry_shape(entry, got), dml_shape_format(shape, want));
    if (!dml__safetensors_is_float(file, *found))
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" has '%s' as %.16s; convert it to F32 before loading", path, name,
                         entry->dtype_text);
    return DML_OK;
}

/* Parts of one model have the same names and shapes. */
static dml_status dml__check_part_of_file(const dml_graph *graph, const dml__safetensors *file,
                                          const char *path)
{
    char part[DML__PART_BYTES];
    const char *has = dml__safetensors_text(file, DML__PART_KEY), *wanted = dml__part_text(graph, part);
    if (!has && graph->model.ranks)
        return dml__fail(
            &graph->context->error, DML_ERROR_FORMAT,
            "\"%s\" holds a whole model, or one that isn't cut as this one: dml_parallel_load takes "
            "this rank's part of it, %s",
            path, wanted);
    if (!has || strcmp(has, wanted) == 0) return DML_OK;
    return dml__fail(&graph->context->error, DML_ERROR_FORMAT,
                     "\"%s\" holds %.48s of a model that is cut over ranks, and this rank has %s", path, has,
                     wanted[0] ? wanted : "a whole one");
}

DML__LOCAL dml_status dml__find_stranger(const dml_graph *graph, const dml__safetensors *file,
                                         const char *path)
{
    char shown[DML__SHOWN_BYTES];
    for (int i = 0; i < dml__safetensors_count(file); i++) {
        const char *name = dml__safetensors_at(file, i)->name;
        const dml_node *node = dml__graph_find(graph, name);
        if (dml__is_own_name(name) || (node && node->used)) continue;
        return dml__fail(&graph->context->error, DML_ERROR_FORMAT,
                         "\"%s\" holds another model: its '%s' is no parameter of this one" DML__WAY_OUT,
                         path, dml__shown(name, strlen(name), shown));
    }
    return DML_OK;
}

DML__LOCAL dml_status dml__graph_fits_file(const dml_graph *graph, const dml__safetensors *file,
                                           const char *path)
{
    dml_status status = dml__check_part_of_file(graph, file, path);
    int found;
    for (const dml_node *p = graph->first_parameter; p && status == DML_OK; p = p->next_parameter)
        status = dml__file_has(file, path, p->name, &p->shape, &found, &graph->context->error);
    return status == DML_OK ? dml__find_stranger(graph, file, path) : status;
}

/* Which tensor of the file has the parameter's name and shape; -1: none. */
static int dml__find_fitting(const dml__safetensors *file, const dml_node *p)
{
    const int found = dml__safetensors_find(file, p->name);
    return found >= 0 && dml__entry_has_shape(dml__safetensors_at(file, found), &p->shape) ? found : -1;
}

/* Whether some of the file's tensors fit, and can be read. */
static dml_status dml__graph_matches_file(const dml_graph *graph, const dml__safetensors *file,
                                          const char *path)
{
    dml__error *error = &graph->context->error;
    const dml_node *first = graph->first_parameter;
    char shown[DML__SHOWN_BYTES], want[DML_SHAPE_TEXT];
    dml_status status = dml__check_gathered(graph, error);
    if (status == DML_OK && graph->model.ranks) status = dml__check_part_of_file(graph, file, path);
    bool any = first == NULL;
    for (const dml_node *p = first; p && status == DML_OK; p = p->next_parameter) {
        int found = dml__find_fitting(file, p);
        if (found < 0) continue;
        any = true;
        status = dml__file_has(file, path, p->name, &p->shape, &found, error);
    }
    if (any || status != DML_OK) return status;
    if (!dml__safetensors_count(file))
        return dml__fail(error, DML_ERROR_FORMAT,
                         "\"%s\" has no tensors at all, and so none of this model's parameters", path);
    const char *name = dml__safetensors_at(file, 0)->name;
    return dml__fail(
        error, DML_ERROR_FORMAT,
        "\"%s\" has none of this model's parameters by name and shape: its first tensor is '%s', "
        "this model's first parameter '%s' of %s",
        path, dml__shown(name, strlen(name), shown), first->name, dml_shape_format(&first->shape, want));
}

DML__LOCAL dml_status dml__graph_read_file(dml_graph *graph, dml__safetensors *file)
{
    float *w = dml__graph_host(graph);
    if (!w) return graph->context->error.status;
    dml_status status = DML_OK;
    for (dml_node *p = graph->first_parameter; p && status == DML_OK; p = p->next_parameter) {
        const int found = dml__find_fitting(file, p);
        p->loaded = found >= 0;
        if (found >= 0)
            status = dml__safetensors_read_floats(file, found, w + p->offset, &graph->context->error);
    }
    for (const dml_node *p = graph->first_parameter; p && status == DML_OK; p = p->next_parameter)
        if (p->loaded) status = dml_graph_put(graph, p->offset, p->offset + dml_shape_count(&p->shape));
    if (status == DML_OK) graph->spread = false;
    return status;
}

/* Whether a file can be taken, all of it or what fits. */
typedef dml_status (*dml__file_check)(const dml_graph *graph, const dml__safetensors *file, const char *path);

/* The open file into the graph; closes it. */
static dml_status dml__graph_load_open(dml_graph *graph, dml__safetensors *file, const char *path,
                                       dml__file_check check)
{
    dml_status status = dml__graph_lay_out(graph);
    if (status == DML_OK) status = check(graph, file, path);
    if (status == DML_OK && (status = dml__graph_claim_writing(graph)) == DML_OK) {
        status = dml__graph_read_file(graph, file);
        dml__graph_release(graph, false);
    }
    dml__safetensors_close(file);
    return status;
}

#ifndef DML_NO_STDIO
static dml_status dml__graph_load_path(dml_graph *graph, const char *path, const char *call,
                                       dml__file_check check)
{
    if (!graph) return DML_ERROR_ARGUMENT;
    if (!path) return dml__fail_null(&graph->context->error, call, "path");
    dml_context *context = graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    dml__safetensors *file = NULL;
    dml_status status = context->error.status;
    if (status == DML_OK) status = dml__safetensors_open_file(&context->memory, path, &file, &context->error);
    if (status == DML_OK) status = dml__graph_load_open(graph, file, path, check);
    dml__leave(context, entry);
    return status;
}

DML_API dml_status dml_graph_load(dml_graph *graph, const char *path)
{
    return dml__graph_load_path(graph, path, "dml_graph_load", dml__graph_fits_file);
}

DML_API dml_status dml_graph_load_matching(dml_graph *graph, const char *path)
{
    return dml__graph_load_path(graph, path, "dml_graph_load_matching", dml__graph_matches_file);
}
#endif

static dml_status dml__graph_load_bytes(dml_graph *graph, const char *name, const void *bytes, size_t size,
                                        const char *call, dml__file_check check)
{
    if (!graph) return DML_ERROR_ARGUMENT;
    if (!bytes && size) return dml__fail_null(&graph->context->error, call, "bytes");
    dml_context *context = graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    if (!name) name = "the model in memory";
    dml__safetensors *file = NULL;
    dml_status status = context->error.status;
    if (status == DML_OK)
        status = dml__safetensors_open_memory(&context->memory, name, bytes, size, &file, &context->error);
    if (status == DML_OK) status = dml__graph_load_open(graph, file, name, check);
    dml__leave(context, entry);
    return status;
}

DML_API dml_status dml_graph_load_memory(dml_graph *graph, const char *name, const void *bytes, size_t size)
{
    return dml__graph_load_bytes(graph, name, bytes, size, "dml_graph_load_memory", dml__graph_fits_file);
}

DML_API dml_status dml_graph_load_matching_memory(dml_graph *graph, const char *name, const void *bytes,
                                                  size_t size)
{
    return dml__graph_load_bytes(graph, name, bytes, size, "dml_graph_load_matching_memory",
                                 dml__graph_matches_file);
}

#endif
