#ifndef DML_GRAPH_OP_C
#define DML_GRAPH_OP_C

#include "graph/op.h"

#include "graph/program_internal.h"
#include "kernels/reduce.h"

#include <string.h>

DML__LOCAL double dml__no_flops(const dml_node *node)
{
    (void)node;
    return 0;
}

DML__LOCAL const dml__op *dml__input_op(void)
{
    static const dml__op op = { "input", NULL, NULL, NULL, 0, NULL, false, false, NULL, dml__no_flops, NULL };
    return &op;
}

DML__LOCAL const dml__op *dml__parameter_op(void)
{
    static const dml__op op = { "parameter", NULL,  NULL, NULL,          0,   NULL,
                                false,       false, NULL, dml__no_flops, NULL };
    return &op;
}

static const dml__slot *dml__slot_of(const dml__run *run, const dml_node *node)
{
    return &run->program->slot[run->program->slot_of_node[node->index]];
}

static const dml__slot *dml__root_of(const dml__run *run, const dml_node *node)
{
    return &run->program->slot[dml__slot_of(run, node)->root];
}

static dml_ref dml__parameter_ref(dml_buffer *vector, const dml_node *parameter)
{
    const dml_ref ref = { vector, parameter->offset * sizeof(float) };
    return ref;
}

static dml_ref dml__arena_ref(const dml__run *run, size_t offset)
{
    const dml_ref ref = { run->program->arena, offset };
    return ref;
}

DML__LOCAL dml_ref dml__value(const dml__run *run, const dml_node *node)
{
    const dml__slot *root = dml__root_of(run, node);
    if (root->node->op == dml__parameter_op()) return dml__parameter_ref(run->program->graph->w, root->node);
    if (root->node->op == dml__input_op() && run->program->given) {
        const dml_ref ref = { &run->program->given[root->given], 0 };
        return ref;
    }
    return dml__arena_ref(run, run->backward && root->narrowed ? root->again : root->value);
}

DML__LOCAL dml_ref dml__gradient(const dml__run *run, const dml_node *node)
{
    const dml__slot *root = dml__root_of(run, node);
    if (root->node->op == dml__parameter_op()) return dml__parameter_ref(run->program->g, root->node);
    return dml__arena_ref(run, root->gradient);
}

DML__LOCAL dml_ref dml__saved(const dml__run *run, const dml_node *node)
{
    return dml__arena_ref(run, dml__slot_of(run, node)->saved);
}

DML__LOCAL bool dml__wants_gradient(const dml__run *run, const dml_node *node, int i)
{
    return dml__slot_of(run, node->input[i])->has_gradient && !(node->op->needs & DML__NO_GRADIENT(i));
}

DML__LOCAL float dml__beta(const dml__run *run, const dml_node *node, int i)
{
    const bool adds = run->adds && dml__root_of(run, node->input[i])->node->op == dml__parameter_op();
    return adds || ((dml__slot_of(run, node)->accumulates >> i) & 1u) ? 1.0f : 0.0f;
}

DML__LOCAL bool dml__is_over_ranks(const dml__run *run, const dml_node *node)
{
    return node->over_ranks && run->training && run->program->ranks.sum;
}

DML__LOCAL dml_status dml__sum_over_ranks(const dml__run *run, double *values, size_t count)
{
    const dml__ranks *ranks = &run->program->ranks;
    return ranks->sum(ranks->user, values, count);
}

DML__LOCAL bool dml__ends_in_relu(const dml__run *run, const dml_node *node)
{
    return dml__slot_of(run, node)->ends_in_relu;
}

DML__LOCAL bool dml__begins_with_relu(const dml__run *run, const dml_node *node)
{
    return dml__slot_of(run, node)->begins_with_relu;
}

DML__LOCAL struct dml__formula_chain *dml__chain_of(const dml__run *run, const dml_node *node)
{
    return run->chain && dml__slot_of(run, node)->chained[run->backward] ? run->chain : NULL;
}

DML__LOCAL const dml__q8_parameter *dml__weights_in_q8(const dml__run *run, const dml_node *w,
                                                       bool transposed)
{
    for (int i = 0; i < run->program->q8_count; i++) {
        const dml__q8_parameter *q8 = &run->program->q8[i];
        if (q8->node == w && q8->transposed == transposed) return q8;
    }
    return NULL;
}

DML__LOCAL size_t dml__count(const dml__run *run, const dml_node *node)
{
    return dml_shape_count(&node->shape) * (node->batched ? (size_t)run->rows : 1);
}

DML__LOCAL dml_status dml__check_image_input(const dml_node *node)
{
    const dml_node *x = node->input[0];
    char text[DML_SHAPE_TEXT];
    if (x->dtype == DML_F32 && x->batched && x->shape.ndim == 3) return DML_OK;
    return dml__node_fail(node, DML_ERROR_SHAPE,
                          "its input is %s %s; it takes f32 images of height x width x channels",
                          dml_dtype_name(x->dtype), dml_shape_format(&x->shape, text));
}

DML__LOCAL dml_launch dml__launch(const char *kernel, size_t x, size_t y)
{
    dml_launch launch;
    memset(&launch, 0, sizeof launch);
    launch.kernel = kernel;
    launch.size[0] = x;
    launch.size[1] = y;
    return launch;
}

DML__LOCAL dml_status dml__submit(dml_device *device, const dml_launch *launch)
{
    if (launch->size[0] > INT32_MAX || launch->size[1] > INT32_MAX)
        return dml_device_fail(device, DML_ERROR_UNSUPPORTED,
                               "%s over %zu x %zu: the kernels count to %d; use smaller batches",
                               launch->kernel, launch->size[0], launch->size[1], INT32_MAX);
    if (launch->size[0] == 0 || launch->size[1] == 0) return DML_OK;
    return device->backend->launch(device, launch);
}

DML__LOCAL size_t dml__left_bytes(const dml_node *node, int rows)
{
    const bool leaves = node->op->saved_bytes && !(node->op->needs & DML__WORKS_IN_BACKWARD);
    return leaves ? node->op->saved_bytes(node, rows) : 0;
}

DML__LOCAL dml_status dml__launch_sum(const dml__run *run, dml_ref from, size_t outer, size_t n, size_t inner,
                                      float beta, dml_ref to)
{
    const size_t count = outer * inner;
    const bool alone =
        count >= 4096 && (outer == 1 || n <= 32); /* enough, and short enough, for an item each */
    dml_launch launch = dml__launch(alone ? "sum_few" : "sum_rows", alone ? count : inner, alone ? 1 : outer);
    launch.buffer[0] = from;
    launch.buffer[1] = to;
    launch.integer[0] = (int32_t)(alone ? count : n);
    launch.integer[1] = (int32_t)(alone ? n : inner);
    launch.integer[2] = (int32_t)(alone ? inner : outer);
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

DML__LOCAL int dml__row_lanes(size_t n)
{
    int lanes = 16;
    while (lanes < 256 && n > (size_t)lanes * 16) lanes *= 4;
    return lanes;
}

DML__LOCAL size_t dml__row_groups(size_t rows, int lanes)
{
    const size_t in_group = (size_t)(256 / lanes);
    return rows / in_group + (rows % in_group != 0);
}

/* Into how many parts rows are cut that are summed on a GPU, by the shape alone: columns are 16 a group, and
   it takes some 1000 groups to keep all of memory busy. */
static size_t dml__sum_parts(size_t rows, size_t columns)
{
    const size_t groups = (columns + 15) / 16, wanted = 1024 / groups;
    const size_t parts = rows / 256 < wanted ? rows / 256 : wanted;
    return parts > 1 ? parts : 1;
}

DML__LOCAL size_t dml__sum_parts_bytes(size_t rows, size_t columns)
{
    const size_t parts = dml__sum_parts(rows, columns);
    return parts > 1 ? parts * columns * sizeof(float) : 0;
}

DML__LOCAL dml_status dml__sum_rows_into_gradient(const dml__run *run, const dml_node *node, int i,
                                                  size_t rows, size_t columns, dml_ref parts)
{
    const float beta = dml__beta(run, node, i);
    const size_t count = parts.buffer && !run->device->host_memory ? dml__sum_parts(rows, columns) : 1;
    dml_ref from = dml__gradient(run, node);
    if (run->device->host_memory) {
        dml_sum_rows(run->pool, rows, columns, dml__host_gradient(run, node), beta,
                     dml__host_gradient(run, node->input[i]));
        return DML_OK;
    }
    if (rows > INT32_MAX)
        return dml_device_fail(run->device, DML_ERROR_UNSUPPORTED,
                               "sum_rows over %zu rows: the kernels count to %d; use smaller batches", rows,
                               INT32_MAX);
    if (count > 1) {
        dml_launch launch = dml__launch("sum_rows", columns, count);
        launch.buffer[0] = from;
        launch.buffer[1] = parts;
        launch.integer[0] = (int32_t)((rows + count - 1) / count);
        launch.integer[1] = (int32_t)columns;
        launch.integer[2] = (int32_t)count;
        launch.integer[3] = (int32_t)rows;
        const dml_status status = dml__submit(run->device, &launch);
        if (status != DML_OK) return status;
        from = parts;
    }
    return dml__launch_sum(run, from, 1, count > 1 ? count : rows, columns, beta,
                           dml__gradient(run, node->input[i]));
}

#endif
