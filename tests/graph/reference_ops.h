/* reference_ops.h: every op in float64, by its definition and nothing else, and a graph's value by them. */
#ifndef DML_TESTS_GRAPH_REFERENCE_OPS_H
#define DML_TESTS_GRAPH_REFERENCE_OPS_H

#include "base/philox.h"
#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_conv2d.h"
#include "ops/op_formula.h"
#include "ops/op_norm.h"
#include "ops/op_pool2d.h"
#include "ops/op_sample_norm_internal.h"
#include "ops/op_shape_internal.h"
#include "ops/op_slice2d.h"

#include "../kernels/formula_exact.h"
#include "../test.h"
#include "reference_attention.h"
#include "reference_custom.h"
#include "reference_recurrent.h"

#define MAX_NODES 256

typedef void reference_op(const dml_node *node, int rows, double *const *in, double *out);

/* A row for each op. The tolerances are relative to the largest element of the tensor, a few units of f32's
   last place: sums of a few hundred products, and functions that the CPU approximates to within 1e-6. */
typedef struct reference_row {
    const char *op;
    reference_op *forward;
    double tolerance, gradient_tolerance;
} reference_row;

/* The values of a graph's nodes, by index, for `rows` samples. Labels are doubles too. */
typedef struct reference {
    const dml_graph *graph;
    int rows;
    double *value[MAX_NODES];
    const reference_row *row[MAX_NODES]; /* NULL: inputs and parameters */
} reference;

static size_t reference_count(const dml_node *node, int rows)
{
    return dml_shape_count(&node->shape) * (node->batched ? (size_t)rows : 1);
}

/* Whether what follows is a training pass: some ops then compute something else. */
static bool reference_training;

/* The element of input i that element `at` of the result is made of. */
static size_t reference_operand(const dml_node *node, int i, int rows, size_t at)
{
    const dml_node *in = node->input[i];
    size_t from = 0, stride = 1;
    for (int d = 1; d <= node->shape.ndim; d++) {
        const int size = node->shape.dims[node->shape.ndim - d];
        const int of_input = d <= in->shape.ndim ? in->shape.dims[in->shape.ndim - d] : 1;
        if (of_input > 1) from += at % (size_t)size * stride;
        stride *= (size_t)of_input;
        at /= (size_t)size;
    }
    CHECK(at < (size_t)rows || !node->batched);
    return in->batched ? from + at * stride : from;
}

/* The functions of one element. */
static void reference_formula(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml__formula_numbers *number = (const dml__formula_numbers *)node->attributes;
    const formula_exact *formula = formula_named(node->op->name);
    const size_t n = reference_count(node, rows);
    for (size_t k = 0; k < n; k++) {
        double x[3] = { 0, 0, 0 };
        for (int i = 0; i < node->inputs; i++) x[i] = in[i][reference_operand(node, i, rows, k)];
        out[k] = formula->of(x[0], x[1], x[2], (double)number->p, (double)number->q);
    }
}

static void reference_flatten(const dml_node *node, int rows, double *const *in, double *out)
{
    memcpy(out, in[0], reference_count(node, rows) * sizeof *out);
}

static void reference_dense(const dml_node *node, int rows, double *const *in, double *out)
{
    const int units = node->input[1]->shape.dims[0], k = node->input[1]->shape.dims[1];
    const int count = (int)reference_count(node->input[0], rows) / k;
    for (int r = 0; r < count; r++)
        for (int u = 0; u < units; u++) {
            double sum = node->input[2] ? in[2][u] : 0;
            for (int i = 0; i < k; i++) sum += in[0][r * k + i] * in[1][u * k + i];
            out[r * units + u] = sum;
        }
}

#include "reference_convs.h"

static void reference_batch_norm(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml_batch_norm_options *o = (const dml_batch_norm_options *)node->attributes;
    const size_t channels = (size_t)node->shape.dims[node->shape.ndim - 1];
    const size_t n = reference_count(node, rows), each = n / channels;
    for (size_t c = 0; c < channels; c++) {
        double mean = in[3][c], variance = in[4][c];
        if (reference_training && !o->frozen) {
            mean = variance = 0;
            for (size_t i = c; i < n; i += channels) mean += in[0][i] / (double)each;
            for (size_t i = c; i < n; i += channels)
                variance += (in[0][i] - mean) * (in[0][i] - mean) / (double)each;
        }
        for (size_t i = c; i < n; i += channels)
            out[i] = in[1][c] * (in[0][i] - mean) / sqrt(variance + (double)o->epsilon) + in[2][c];
    }
}

/* Layer, RMS and group norm: for each sample and group, the places of its numbers are looked for. */
static void reference_sample_norm(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml__sample_norm *o = (const dml__sample_norm *)node->attributes;
    const size_t channels = (size_t)node->shape.dims[node->shape.ndim - 1], n = reference_count(node, rows);
    const size_t sample = o->groups ? dml_shape_count(&node->shape) : channels;
    const size_t groups = o->groups ? (size_t)o->groups : 1, width = channels / groups;
    for (size_t at = 0; at < n / sample * groups; at++) {
        const size_t first = at / groups * sample, count = sample / groups;
        double mean = 0, square = 0;
        for (int pass = 0; pass < 3; pass++)
            for (size_t i = first; i < first + sample; i++) {
                const size_t c = i % channels;
                if (c / width != at % groups) continue;
                if (pass == 0 && !o->by_square) mean += in[0][i] / (double)count;
                if (pass == 1) square += (in[0][i] - mean) * (in[0][i] - mean) / (double)count;
                if (pass == 2)
                    out[i] = (in[0][i] - mean) / sqrt(square + (double)o->epsilon) *
                                 (node->inputs > 1 ? in[1][c] : 1) +
                             (node->inputs > 2 ? in[2][c] : 0);
            }
    }
}

static void reference_embedding(const dml_node *node, int rows, double *const *in, double *out)
{
    const size_t width = (size_t)node->input[1]->shape.dims[1], n = reference_count(node, rows);
    for (size_t i = 0; i < n; i++) out[i] = in[1][(size_t)in[0][i / width] * width + i % width];
}

/* Of step 0, by each element's own number. */
static void reference_dropout(const dml_node *node, int rows, double *const *in, double *out)
{
    const float p = *(const float *)node->attributes;
    const dml_random random = { node->graph->context->seed, 0x80000000u | (uint32_t)node->key, 0 };
    const size_t n = reference_count(node, rows);
    for (size_t i = 0; i < n; i++) {
        const bool out_of_it = dml_random_bits(&random, i) < (double)p * 4294967296.0;
        out[i] = !reference_training ? in[0][i] : out_of_it ? 0 : in[0][i] / (1 - (double)p);
    }
}

/* The indices of element i of a shape, and back. */
static void reference_indices(const dml_shape *shape, size_t i, int at[DML_MAX_DIMS])
{
    for (int d = shape->ndim - 1; d >= 0; d--) {
        at[d] = (int)(i % (size_t)shape->dims[d]);
        i /= (size_t)shape->dims[d];
    }
}

static size_t reference_place(const dml_shape *shape, const int at[DML_MAX_DIMS])
{
    size_t place = 0;
    for (int d = 0; d < shape->ndim; d++) place = place * (size_t)shape->dims[d] + (size_t)at[d];
    return place;
}

/* Permute, slice, pad and concat: where each element of the result comes from. */
static void reference_move(const dml_node *node, int rows, double *const *in, double *out)
{
    const size_t n = reference_count(node, rows), each = dml_shape_count(&node->shape);
    const dml_shape *order = (const dml_shape *)node->attributes;
    const dml__axis_part *o = (const dml__axis_part *)node->attributes;
    const bool permutes = strcmp(node->op->name, "permute") == 0;
    for (size_t i = 0; i < n; i++) {
        int at[DML_MAX_DIMS] = { 0 }, from[DML_MAX_DIMS] = { 0 }, k = 0;
        reference_indices(&node->shape, i % each, at);
        memcpy(from, at, sizeof from);
        for (int d = 0; permutes && d < order->ndim; d++) from[order->dims[d]] = at[d];
        if (!permutes) from[o->axis] += o->begin - o->before;
        for (; k + 1 < node->inputs && from[o->axis] >= node->input[k]->shape.dims[o->axis]; k++)
            from[o->axis] -= node->input[k]->shape.dims[o->axis];
        const dml_shape *x = &node->input[k]->shape;
        const bool inside = permutes || (from[o->axis] >= 0 && from[o->axis] < x->dims[o->axis]);
        out[i] = inside ? in[k][i / each * dml_shape_count(x) + reference_place(x, from)] : 0;
    }
}

#include "reference_reduce.h"

static void reference_slice2d(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml_slice2d_options *o = (const dml_slice2d_options *)node->attributes;
    const int *d = node->input[0]->shape.dims, *size = node->shape.dims;
    const size_t n = reference_count(node, rows);
    for (int axis = 0; axis < 3; axis++) {
        int taken = 0;
        for (int at = o->begin[axis]; at < o->end[axis]; at += o->step[axis]) taken++;
        CHECK_INT(size[axis], o->before[axis] + taken + o->after[axis]);
    }
    for (size_t i = 0; i < n; i++) out[i] = 0;
    for (int r = 0; r < rows; r++)
        for (int h = o->begin[0], oh = o->before[0]; h < o->end[0]; h += o->step[0], oh++)
            for (int w = o->begin[1], ow = o->before[1]; w < o->end[1]; w += o->step[1], ow++)
                for (int c = o->begin[2], oc = o->before[2]; c < o->end[2]; c += o->step[2], oc++)
                    out[((r * size[0] + oh) * size[1] + ow) * size[2] + oc] =
                        in[0][((r * d[0] + h) * d[1] + w) * d[2] + c];
}

#include "reference_loss.h"

#include "reference_matmul.h"

static const reference_row *reference_of(const char *op)
{
    static const reference_row rows[] = {
        { "flatten", reference_flatten, 5e-7, 2e-6 },
        { "dense", reference_dense, 5e-7, 2e-6 },
        { "conv2d", reference_conv2d, 5e-7, 2e-6 },
        { "conv1d", reference_conv2d, 5e-7, 2e-6 },
        { "conv_transpose2d", reference_conv_transpose, 5e-7, 2e-6 },
        { "conv_transpose1d", reference_conv_transpose, 5e-7, 2e-6 },
        { "local2d", reference_local2d, 5e-7, 2e-6 },
        { "max_pool2d", reference_max_pool2d, 5e-7, 2e-6 },
        { "avg_pool2d", reference_avg_pool2d, 5e-7, 2e-6 },
        { "max_pool1d", reference_max_pool2d, 5e-7, 2e-6 },
        { "avg_pool1d", reference_avg_pool2d, 5e-7, 2e-6 },
        { "batch_norm", reference_batch_norm, 2e-6, 5e-6 },
        { "layer_norm", reference_sample_norm, 2e-6, 5e-6 },
        { "rms_norm", reference_sample_norm, 2e-6, 5e-6 },
        { "group_norm", reference_sample_norm, 2e-6, 5e-6 },
        { "embedding", reference_embedding, 5e-7, 2e-6 },
        { "embedding_bag", reference_embedding_bag, 1e-6, 3e-6 },
        { "matmul", reference_matmul, 1e-6, 3e-6 },
        { "attention", reference_attention, 2e-6, 8e-6 },
        { "rotary", reference_rotary, 1e-6, 3e-6 },
        { "rnn", reference_recurrent, 2e-6, 5e-6 },
        { "lstm", reference_recurrent, 2e-6, 5e-6 },
        { "gru", reference_recurrent, 2e-6, 5e-6 },
        { "dropout", reference_dropout, 5e-7, 2e-6 },
        { "reshape", reference_flatten, 5e-7, 2e-6 },
        { "upsample2d", reference_flatten, 5e-7, 2e-6 },
        { "stop_gradient", reference_flatten, 5e-7, 2e-6 },
        { "permute", reference_move, 5e-7, 2e-6 },
        { "slice", reference_move, 5e-7, 2e-6 },
        { "pad", reference_move, 5e-7, 2e-6 },
        { "concat", reference_move, 5e-7, 2e-6 },
        { "slice2d", reference_slice2d, 5e-7, 2e-6 },
        { "sum", reference_reduce, 1e-6, 2e-6 },
        { "mean", reference_reduce, 1e-6, 2e-6 },
        { "max", reference_reduce, 5e-7, 2e-6 },
        { "min", reference_reduce, 5e-7, 2e-6 },
        { "norm", reference_reduce, 1e-6, 3e-6 },
        { "argmax", reference_reduce, 5e-7, 2e-6 },
        { "take", reference_gather, 5e-7, 2e-6 },
        { "gather", reference_gather, 5e-7, 2e-6 },
        { "softmax", reference_softmax, 1e-6, 3e-6 },
        { "log_softmax", reference_softmax, 1e-6, 3e-6 },
        { "softmax_cross_entropy", reference_softmax_cross_entropy, 1e-6, 2e-6 },
        { "mean_squared_error", reference_element_loss, 1e-6, 3e-6 },
        { "mean_absolute_error", reference_element_loss, 1e-6, 3e-6 },
        { "huber", reference_element_loss, 1e-6, 3e-6 },
        { "binary_cross_entropy", reference_element_loss, 1e-6, 3e-6 },
        { "hinge", reference_element_loss, 1e-6, 3e-6 },
        { "squared_hinge", reference_element_loss, 1e-6, 3e-6 },
        { "kl_divergence", reference_element_loss, 1e-6, 3e-6 },
        { "batch_mean", reference_element_loss, 1e-6, 3e-6 },
        { "custom", reference_custom, 1e-6, 3e-6 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].op, op) == 0) return &rows[i];
    static const reference_row formula = { "of one element", reference_formula, 1e-6, 3e-6 };
    return formula_named(op) ? &formula : NULL;
}

/* For up to `rows` samples; inputs are filled by the caller, parameters point into w. What no output needs
   isn't filled, and is zeros. */
TEST__UNUSED static void reference_open(reference *r, const dml_graph *graph, int rows, double *w)
{
    memset(r, 0, sizeof *r);
    r->graph = graph;
    r->rows = rows;
    CHECK(graph->nodes <= MAX_NODES);
    for (const dml_node *n = graph->first; n; n = n->next) {
        r->value[n->index] = n->op == dml__parameter_op()
                                 ? w + n->offset
                                 : (double *)calloc(reference_count(n, rows), sizeof(double));
        if (n->inputs) r->row[n->index] = reference_of(n->op->name);
        for (size_t i = 0; n->op == dml__constant_op() && i < reference_count(n, rows); i++)
            r->value[n->index][i] = ((const float *)n->attributes)[i];
    }
}

TEST__UNUSED static void reference_close(reference *r)
{
    for (const dml_node *n = r->graph->first; n; n = n->next)
        if (n->op != dml__parameter_op()) free(r->value[n->index]);
}

/* The value of `output`. NULL for `changed`: everything is computed; else what depends on that node. */
static const double *reference_run_after(const reference *r, const dml_node *changed, const dml_node *output)
{
    bool stale[MAX_NODES] = { false };
    if (changed) stale[changed->index] = true;
    for (const dml_node *n = r->graph->first; n && n->index <= output->index; n = n->next) {
        double *in[DML__MAX_INPUTS] = { NULL };
        if (n->inputs == 0) continue;
        for (int i = 0; i < n->inputs; i++) {
            in[i] = r->value[n->input[i]->index];
            stale[n->index] |= !changed || stale[n->input[i]->index];
        }
        if (stale[n->index]) r->row[n->index]->forward(n, r->rows, in, r->value[n->index]);
    }
    return r->value[output->index];
}

TEST__UNUSED static const double *reference_run(const reference *r, const dml_node *output)
{
    return reference_run_after(r, NULL, output);
}

#endif
