#ifndef DML_GRAPH_GRADIENT_ROWS_C
#define DML_GRAPH_GRADIENT_ROWS_C

#include "graph/gradient_rows.h"

#include "base/memory.h"
#include "graph/program_internal.h"
#include "kernels/elementwise.h"

#include <string.h>

/* How many rows one pass may reach, 0 where some op reads it in another way than by DML__LOOKS_UP's. */
static size_t dml__rows_reached(const dml_program *program, const dml_node *parameter)
{
    size_t reached = 0;
    for (int s = 0; s < program->slots; s++) {
        const dml_node *node = program->slot[s].node;
        for (int i = 0; i < node->inputs; i++) {
            if (node->input[i] != parameter) continue;
            if (i != 1 || !(node->op->needs & DML__LOOKS_UP)) return 0;
            const dml_node *indices = node->input[0];
            reached += dml_shape_count(&indices->shape) * (indices->batched ? (size_t)program->batch : 1);
        }
    }
    return reached;
}

static dml_status dml__make_rows_of(dml_program *program, dml__slot *slot)
{
    dml_context *context = program->graph->context;
    const size_t rows = (size_t)slot->node->shape.dims[0];
    const size_t reached = dml__rows_reached(program, slot->node);
    if (reached == 0) return DML_OK;
    dml__gradient_rows *list = (dml__gradient_rows *)dml__allocate(&context->memory, sizeof *list);
    if (list) {
        slot->rows = list;
        list->parameter = slot->node;
        list->capacity = reached < rows ? reached : rows;
        list->row = (int32_t *)dml__allocate_array(&context->memory, list->capacity, sizeof *list->row);
        list->met = (uint32_t *)dml__allocate_array(&context->memory, rows / 32 + 1, sizeof *list->met);
        if (list->row && list->met) return DML_OK;
    }
    return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a list of %zu rows of '%s'",
                     reached, slot->node->name);
}

DML__LOCAL dml_status dml__make_gradient_rows(dml_program *program)
{
    dml_status status = DML_OK;
    if (!program->graph->context->device.host_memory) return DML_OK;
    for (int s = 0; s < program->slots && status == DML_OK; s++)
        if (program->slot[s].node->sparse && program->slot[s].has_gradient)
            status = dml__make_rows_of(program, &program->slot[s]);
    return status;
}

DML__LOCAL void dml__release_gradient_rows(dml_program *program)
{
    dml__memory *memory = &program->graph->context->memory;
    for (int s = 0; program->slot && s < program->slots; s++) {
        dml__gradient_rows *list = program->slot[s].rows;
        if (!list) continue;
        dml__release(memory, list->row);
        dml__release(memory, list->met);
        dml__release(memory, list);
    }
}

DML__LOCAL const dml__gradient_rows *dml__gradient_rows_of(const dml_program *program,
                                                           const dml_node *parameter)
{
    const int slot = dml__node_slot(program, parameter);
    return slot >= 0 ? program->slot[slot].rows : NULL;
}

DML__LOCAL void dml__gradient_changed(dml_program *program)
{
    for (int s = 0; s < program->slots; s++)
        if (program->slot[s].rows) program->slot[s].rows->all = true;
}

#define DML__ROWS_AHEAD 16 /* that are asked for: they are anywhere in memory */

static void dml__clear_gradient_rows(dml_pool *pool, dml__gradient_rows *list, float *g)
{
    const dml_shape *shape = &list->parameter->shape;
    const size_t rows = (size_t)shape->dims[0], width = dml_shape_count(shape) / rows;
    if (list->all) {
        dml_fill(pool, rows * width, 0.0f, g);
        memset(list->met, 0, (rows / 32 + 1) * sizeof *list->met);
    }
    for (size_t i = 0; i < list->count && !list->all; i++) {
        const size_t row = (size_t)list->row[i];
        if (i + DML__ROWS_AHEAD < list->count)
            DML__PREFETCH(g + (size_t)list->row[i + DML__ROWS_AHEAD] * width);
        memset(g + row * width, 0, width * sizeof *g);
        list->met[row / 32] = 0; /* of all that are in the list */
    }
    list->count = 0;
    list->all = false;
}

static void dml__note_rows(dml__gradient_rows *list, size_t count, const int32_t *indices)
{
    for (size_t i = 0; i < count && !list->all; i++) {
        if (indices[i] < 0) continue;
        const uint32_t row = (uint32_t)indices[i], bit = 1u << row % 32;
        if (list->met[row / 32] & bit) continue;
        list->all = list->count == list->capacity;
        if (list->all) return;
        list->met[row / 32] |= bit;
        list->row[list->count++] = indices[i];
    }
}

DML__LOCAL void dml__begin_gradient_rows(const dml__run *run, const dml_node *node, int i, size_t count,
                                         const int32_t *indices)
{
    const dml_node *table = node->input[i];
    const dml_program *program = run->program;
    dml__gradient_rows *list = program->slot[program->slot_of_node[table->index]].rows;
    float *g = dml__host_gradient(run, table);
    if (dml__beta(run, node, i) == 0) {
        if (list)
            dml__clear_gradient_rows(run->pool, list, g);
        else
            dml_fill(run->pool, dml_shape_count(&table->shape), 0.0f, g);
    }
    if (list) dml__note_rows(list, count, indices);
}

#endif
