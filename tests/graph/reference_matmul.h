/* reference_matmul.h: products of matrices and bags of rows, in float64. */
#ifndef DML_TESTS_GRAPH_REFERENCE_MATMUL_H
#define DML_TESTS_GRAPH_REFERENCE_MATMUL_H

#include "ops/op_embedding_bag.h"
#include "ops/op_matmul.h"

/* Where in input i the matrix begins that result element `at` is made of. */
static size_t reference_matrix(const dml_node *node, int i, size_t at)
{
    const dml_shape *in = &node->input[i]->shape, *out = &node->shape;
    size_t matrix = 0, step = 1;
    at /= (size_t)out->dims[out->ndim - 1] * (size_t)out->dims[out->ndim - 2];
    for (int d = 3; d <= out->ndim; d++) {
        const size_t size = d <= in->ndim ? (size_t)in->dims[in->ndim - d] : 1;
        if (size > 1) matrix += at % size * step;
        at /= (size_t)out->dims[out->ndim - d];
        step *= size;
    }
    if (node->input[i]->batched) matrix += at * step;
    return matrix * (size_t)in->dims[in->ndim - 2] * (size_t)in->dims[in->ndim - 1];
}

static void reference_matmul(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml_matmul_options *o = (const dml_matmul_options *)node->attributes;
    const dml_shape *a = &node->input[0]->shape, *b = &node->input[1]->shape;
    const int n = node->shape.dims[node->shape.ndim - 1], m = node->shape.dims[node->shape.ndim - 2];
    const int a_columns = a->dims[a->ndim - 1], b_columns = b->dims[b->ndim - 1];
    const int depth = o->transpose_a ? a->dims[a->ndim - 2] : a_columns;
    for (size_t at = 0; at < reference_count(node, rows); at++) {
        const int row = (int)(at / (size_t)n % (size_t)m), column = (int)(at % (size_t)n);
        const double *x = in[0] + reference_matrix(node, 0, at), *y = in[1] + reference_matrix(node, 1, at);
        double sum = 0;
        for (int k = 0; k < depth; k++)
            sum += x[o->transpose_a ? k * a_columns + row : row * a_columns + k] *
                   y[o->transpose_b ? column * b_columns + k : k * b_columns + column];
        out[at] = sum * (o->scale != 0 ? (double)o->scale : 1);
    }
}

static void reference_embedding_bag(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml_embedding_bag_options *o = (const dml_embedding_bag_options *)node->attributes;
    const dml_shape *indices = &node->input[0]->shape;
    const size_t width = (size_t)node->input[1]->shape.dims[1],
                 length = (size_t)indices->dims[indices->ndim - 1];
    for (size_t at = 0; at < reference_count(node, rows); at++) {
        const size_t first = at / width * length;
        double sum = 0, count = 0;
        for (size_t i = first; i < first + length; i++) {
            if (in[0][i] < 0) continue;
            count++;
            sum += in[1][(size_t)in[0][i] * width + at % width] * (node->input[2] ? in[2][i] : 1);
        }
        out[at] = o->mode == DML_BAG_MEAN && count > 0 ? sum / count : sum;
    }
}

#endif
