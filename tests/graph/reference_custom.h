/* reference_custom.h: functions that tests bring along for dml_custom, each with what it is in float64
   (included by reference_ops.h). Inputs are f32 of as many elements each, of a sample or for all. */
#ifndef DML_TESTS_GRAPH_REFERENCE_CUSTOM_H
#define DML_TESTS_GRAPH_REFERENCE_CUSTOM_H

#include "graph/node.h"
#include "ops/op_custom.h"

#include "../test.h"

static size_t reference_count(const dml_node *node, int rows);

/* Sample r of input i, or the one that is for all. */
static const float *custom_input(const dml_custom_call *call, int i, int r, size_t n)
{
    CHECK(call->input_count[i] == n || call->input_count[i] == n * (size_t)call->rows);
    return (const float *)call->input[i] + (call->input_count[i] == n ? 0 : (size_t)r * n);
}
static float *custom_gradient(const dml_custom_call *call, int i, int r, size_t n)
{
    if (!call->input_gradient[i]) return NULL;
    return call->input_gradient[i] + (call->input_count[i] == n ? 0 : (size_t)r * n);
}

/* ---- sums: of each input's elements times those of the next, all times a sum over the first ---- */

static double custom_product(const double *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double custom_dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

typedef struct custom_loop {
    const dml_custom_call *call;
    size_t n;
} custom_loop;

static void custom_sums_row(void *argument, int r, int worker)
{
    const custom_loop *loop = (const custom_loop *)argument;
    const dml_custom_call *call = loop->call;
    const int m = call->inputs;
    const float *first = custom_input(call, 0, r, loop->n);
    double *saved = (double *)call->saved + r;
    (void)worker;
    *saved = 1;
    for (size_t i = 0; i < loop->n; i++) *saved += 0.125 * first[i];
    for (int j = 0; j < m; j++)
        call->output[r * m + j] = (float)(custom_dot(custom_input(call, j, r, loop->n),
                                                     custom_input(call, (j + 1) % m, r, loop->n), loop->n) *
                                          *saved);
}

static dml_status custom_sums_forward(const dml_custom_call *call)
{
    custom_loop loop = { call, *(const size_t *)call->user };
    const int samples = (int)call->output_count / call->inputs;
    CHECK(samples == 1 || samples == call->rows);
    CHECK(!call->output_gradient);
    dml_pool_run(call->pool, samples, custom_sums_row, &loop);
    return DML_OK;
}

static dml_status custom_sums_backward(const dml_custom_call *call)
{
    const size_t n = *(const size_t *)call->user;
    const int m = call->inputs, samples = (int)call->output_count / m;
    CHECK(call->training);
    for (int r = 0; r < samples; r++)
        for (int j = 0; j < m; j++) {
            const double saved = ((const double *)call->saved)[r], g = call->output_gradient[r * m + j];
            const float *a = custom_input(call, j, r, n), *b = custom_input(call, (j + 1) % m, r, n);
            float *da = custom_gradient(call, j, r, n), *db = custom_gradient(call, (j + 1) % m, r, n);
            float *d0 = custom_gradient(call, 0, r, n);
            const double dot = custom_dot(a, b, n);
            CHECK((float)(dot * saved) == call->output[r * m + j]);
            for (size_t i = 0; i < n; i++) {
                const double to_a = g * b[i] * saved, to_b = g * a[i] * saved;
                if (da) da[i] += (float)to_a;
                if (db) db[i] += (float)to_b;
                if (d0) d0[i] += (float)(0.125 * g * dot);
            }
        }
    return DML_OK;
}

static void custom_sums_exact(const dml_node *node, int rows, double *const *in, double *out)
{
    const size_t n = dml_shape_count(&node->input[0]->shape);
    const int m = node->inputs;
    for (int r = 0; r < (node->batched ? rows : 1); r++) {
        const double *a[DML_CUSTOM_INPUTS + 1];
        double scale = 1;
        for (int j = 0; j <= m; j++) a[j] = in[j % m] + (node->input[j % m]->batched ? (size_t)r * n : 0);
        for (size_t i = 0; i < n; i++) scale += 0.125 * a[0][i];
        for (int j = 0; j < m; j++) out[r * m + j] = custom_product(a[j], a[j + 1], n) * scale;
    }
}

/* ---- squares: the mean over the batch of all inputs' squares, one for the whole batch ---- */

static dml_status custom_squares_forward(const dml_custom_call *call)
{
    double sum = 0;
    CHECK(call->output_count == 1 && !call->saved);
    for (int i = 0; i < call->inputs; i++)
        sum += custom_dot((const float *)call->input[i], (const float *)call->input[i], call->input_count[i]);
    *call->output = (float)(sum / call->rows);
    return DML_OK;
}

static dml_status custom_squares_backward(const dml_custom_call *call)
{
    for (int i = 0; i < call->inputs; i++)
        for (size_t k = 0; call->input_gradient[i] && k < call->input_count[i]; k++)
            call->input_gradient[i][k] +=
                2 * ((const float *)call->input[i])[k] * *call->output_gradient / (float)call->rows;
    return DML_OK;
}

static void custom_squares_exact(const dml_node *node, int rows, double *const *in, double *out)
{
    *out = 0;
    for (int i = 0; i < node->inputs; i++) {
        const size_t n = reference_count(node->input[i], rows);
        *out += custom_product(in[i], in[i], n) / rows;
    }
}

static void reference_custom(const dml_node *node, int rows, double *const *in, double *out)
{
    const dml_custom_options *options = (const dml_custom_options *)node->attributes;
    (options->whole_batch ? custom_squares_exact : custom_sums_exact)(node, rows, in, out);
}

/* ---- what makes them ---- */

/* Of up to 64 elements each; as many numbers a sample as there are inputs. */
TEST__UNUSED static dml_node *custom_sums(dml_node *const *inputs, int count)
{
    static size_t sizes[65];
    const dml_shape shape = dml_node_shape(inputs[0]);
    const size_t n = dml_shape_count(&shape);
    CHECK(n <= 64);
    sizes[n] = n;
    const dml_custom_options options = { .shape = dml_shape_of(count),
                                         .saved_bytes = sizeof(double),
                                         .forward = custom_sums_forward,
                                         .backward = custom_sums_backward,
                                         .user = &sizes[n] };
    return dml_custom(inputs, count, &options);
}

TEST__UNUSED static dml_node *custom_squares(dml_node *const *inputs, int count)
{
    const dml_custom_options options = { .whole_batch = true,
                                         .forward = custom_squares_forward,
                                         .backward = custom_squares_backward };
    return dml_custom(inputs, count, &options);
}

#endif
