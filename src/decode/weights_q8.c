#ifndef DML_DECODE_WEIGHTS_Q8_C
#define DML_DECODE_WEIGHTS_Q8_C

#include "decode/weights_q8.h"

#include "graph/node.h"
#include "graph/weights.h"
#include "kernels/q8.h"
#include "ops/op_matmul_internal.h"
#include "ops/table.h"
#include "thread/scratch.h"

#include <string.h>

/* What the op of a node multiplies rows with, if that is a matrix of parameters in one of the two ways that
   dml_q8_from_f32 takes; without its numbers. False: it isn't. */
static bool dml__weights_q8_of(const dml_node *node, dml__q8_parameter *matrix)
{
    const bool dense = node->op == dml__dense_op(), product = node->op == dml__matmul_op();
    if (!dense && !product) return false;
    const dml_node *w = node->input[1];
    memset(matrix, 0, sizeof *matrix);
    matrix->node = w;
    matrix->transposed = dense;
    if (product && !dml__matmul_of_rows(node, &matrix->transposed)) return false;
    if (w->op != dml__parameter_op() || w->shape.ndim != 2) return false;
    matrix->n = w->shape.dims[matrix->transposed ? 0 : 1];
    matrix->k = w->shape.dims[matrix->transposed ? 1 : 0];
    return matrix->k >= DML_Q8_BLOCK;
}

static bool dml__weights_q8_has(const dml__weights_q8 *weights, const dml__q8_parameter *matrix)
{
    for (int i = 0; i < weights->count; i++)
        if (weights->matrix[i].node == matrix->node && weights->matrix[i].transposed == matrix->transposed)
            return true;
    return false;
}

static size_t dml__weights_q8_bytes(const dml__q8_parameter *matrix)
{
    const size_t bytes = dml_q8_bytes(matrix->n, matrix->k);
    return (bytes + DML__ALIGNMENT - 1) / DML__ALIGNMENT * DML__ALIGNMENT;
}

/* Where each has its numbers, and scratch for products of so many rows with it. */
static dml_status dml__weights_q8_lay_out(dml__weights_q8 *weights, dml_context *context, int rows)
{
    size_t bytes = 0;
    dml_scratch most = { 0, 0 };
    for (int i = 0; i < weights->count; i++) bytes += dml__weights_q8_bytes(&weights->matrix[i]);
    weights->numbers = (char *)dml__allocate(&context->memory, bytes);
    char *at = weights->numbers;
    for (int i = 0; i < weights->count && at; i++) {
        dml__q8_parameter *matrix = &weights->matrix[i];
        matrix->q8 = at;
        at += dml__weights_q8_bytes(matrix);
        most = dml__larger_scratch(most, dml_q8gemm_scratch(rows, matrix->n, matrix->k));
    }
    if (at && dml_pool_reserve(context->pool, most) == DML_OK) return DML_OK;
    return dml__fail(&context->error, DML_ERROR_MEMORY,
                     "decoder: no memory left for %zu bytes of weights in 8 bits", bytes);
}

DML__LOCAL dml_status dml__weights_q8_create(dml__weights_q8 *weights, const dml_program *program, int times)
{
    dml_context *context = program->graph->context;
    dml__q8_parameter matrix;
    size_t rows = 1;
    memset(weights, 0, sizeof *weights);
    weights->matrix = (dml__q8_parameter *)dml__allocate_array(&context->memory, (size_t)program->slots,
                                                               sizeof *weights->matrix);
    for (int i = 0; i < program->slots && weights->matrix; i++) {
        const dml_node *node = program->slot[i].node;
        if (!dml__weights_q8_of(node, &matrix)) continue;
        if (!dml__weights_q8_has(weights, &matrix)) weights->matrix[weights->count++] = matrix;
        const size_t own =
            dml_shape_count(&node->shape) / (size_t)matrix.n * (size_t)program->batch * (size_t)times;
        if (own > rows) rows = own;
    }
    if (weights->matrix)
        return dml__weights_q8_lay_out(weights, context, rows < INT32_MAX ? (int)rows : INT32_MAX);
    return dml__fail(&context->error, DML_ERROR_MEMORY, "decoder: no memory left for weights in 8 bits");
}

DML__LOCAL void dml__weights_q8_release(dml__weights_q8 *weights, dml__memory *memory)
{
    dml__release(memory, weights->matrix);
    dml__release(memory, weights->numbers);
}

DML__LOCAL void dml__weights_q8_take(const dml__weights_q8 *weights, const dml_graph *graph)
{
    const dml_ref at = { graph->w, 0 };
    const float *w = (const float *)dml__host(at);
    for (int i = 0; i < weights->count; i++) {
        const dml__q8_parameter *matrix = &weights->matrix[i];
        dml_q8_from_f32(graph->context->pool, matrix->transposed ? DML_TRANS : DML_NO_TRANS, matrix->n,
                        matrix->k, w + dml_parameter_offset(matrix->node),
                        matrix->transposed ? matrix->k : matrix->n, matrix->q8);
    }
}

#endif
