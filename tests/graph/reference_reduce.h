/* reference_reduce.h: reductions, softmax and gather in float64; included by reference_ops.h. */
#ifndef DML_TESTS_GRAPH_REFERENCE_REDUCE_H
#define DML_TESTS_GRAPH_REFERENCE_REDUCE_H

#include "ops/op_reduce_internal.h"

/* For each result, all elements of the sample are looked through for those that are its own. */
static void reference_reduce(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml__reduced_axes *o = (const dml__reduced_axes *)node->attributes;
    const dml_node *x = node->input[0];
    const char *op = node->op->name;
    size_t inner = 1, n = 1;
    const size_t each = dml_shape_count(&x->shape), results = dml_shape_count(&node->shape);
    for (int i = 0; i < x->shape.ndim; i++) {
        if (i >= o->first + o->count) inner *= (size_t)x->shape.dims[i];
        if (i >= o->first && i < o->first + o->count) n *= (size_t)x->shape.dims[i];
    }
    const size_t samples = node->batched ? (size_t)rows : 1;
    CHECK(results * n == each);
    for (size_t r = 0; r < samples * results; r++) {
        double sum = 0, sizes = 0, squares = 0, largest = -HUGE_VAL, smallest = HUGE_VAL, place = 0;
        for (size_t k = 0; k < n; k++) {
            const double v = in[0][(r / inner * n + k) * inner + r % inner];
            sum += v, sizes += fabs(v), squares += v * v;
            if (v > largest) largest = v, place = (double)k;
            if (v < smallest) smallest = v;
        }
        out[r] = strcmp(op, "sum") == 0    ? sum
                 : strcmp(op, "mean") == 0 ? sum / (double)n
                 : strcmp(op, "max") == 0  ? largest
                 : strcmp(op, "min") == 0  ? smallest
                 : strcmp(op, "norm") == 0 ? (o->kind == DML_REDUCE_NORM1 ? sizes : sqrt(squares))
                                           : place;
    }
}

static void reference_softmax(const dml_node *node, int rows, double *const *in, double *out)
{
    const int axis = *(const int *)node->attributes, n = node->shape.dims[axis];
    const bool is_softmax = strcmp(node->op->name, "softmax") == 0;
    const size_t each = dml_shape_count(&node->shape);
    size_t inner = 1;
    for (int i = axis + 1; i < node->shape.ndim; i++) inner *= (size_t)node->shape.dims[i];
    for (size_t i = 0; i < each * (node->batched ? (size_t)rows : 1); i++) {
        const double *x = in[0] + i / inner / (size_t)n * (size_t)n * inner + i % inner;
        double sum = 0, largest = -HUGE_VAL;
        for (int k = 0; k < n; k++) largest = fmax(largest, x[(size_t)k * inner]);
        for (int k = 0; k < n; k++) sum += exp(x[(size_t)k * inner] - largest);
        const double log_of = in[0][i] - largest - log(sum);
        out[i] = is_softmax ? exp(log_of) : log_of;
    }
}

/* For each result, where along the axis its index says. */
static void reference_gather(const dml_node *node, int rows, double *const *in, double *out)
{
    const int axis = *(const int *)node->attributes;
    const dml_shape *x = &node->input[0]->shape, *indices = &node->input[1]->shape;
    const bool takes = strcmp(node->op->name, "take") == 0;
    const size_t each = dml_shape_count(&node->shape), samples = node->batched ? (size_t)rows : 1;
    for (size_t r = 0; r < each * samples; r++) {
        int at[DML_MAX_DIMS] = { 0 }, from[DML_MAX_DIMS] = { 0 }, list[DML_MAX_DIMS] = { 0 };
        reference_indices(&node->shape, r % each, at);
        for (int d = 0; d < node->shape.ndim; d++) {
            const int behind = d - axis - (takes ? indices->ndim : 1);
            if (d < axis || behind >= 0) from[behind >= 0 ? axis + 1 + behind : d] = at[d];
            if (takes && d >= axis && behind < 0) list[d - axis] = at[d];
        }
        const size_t place = reference_place(indices, takes ? list : at);
        from[axis] = (int)in[1][r / each * dml_shape_count(indices) + place];
        out[r] = in[0][r / each * dml_shape_count(x) + reference_place(x, from)];
    }
}

#endif
