/* conformance.h: runs a case of a layer or a loss that PyTorch answered (cases.py): the output, the loss, and
   the gradients of all inputs and parameters, on every backend. */
#ifndef DML_TESTS_CONFORMANCE_CONFORMANCE_H
#define DML_TESTS_CONFORMANCE_CONFORMANCE_H

#include "graph/node.h"
#include "graph/program.h"
#include "graph/program_internal.h"
#include "graph/weights.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_shape.h"

#include "../graph/backends.h"

enum { MOST_TENSORS = 12 };

/* An input of kind "f32" takes a gradient; "input" and "i32" take none. Inputs have a tensor of this shape
   for each sample. */
typedef struct conformance_tensor {
    const char *kind; /* or "parameter" */
    int dims, shape[6];
    const float *value, *gradient;
} conformance_tensor;

typedef struct conformance_case {
    const char *name;
    int batch, tensors;
    float number[8]; /* the builder's */
    conformance_tensor tensor[MOST_TENSORS];
    int outputs;             /* of a sample; 0: a loss */
    const float *y, *target; /* (batch, outputs) */
    float loss;
} conformance_case;

/* The layer on its tensors, in the case's order. */
typedef dml_node *conformance_build(const conformance_case *c, dml_node *const *tensor);

static dml_shape conformance_shape(int dims, const int *at)
{
    dml_shape shape = { dims, { 0 } };
    for (int i = 0; i < dims; i++) shape.dims[i] = at[i];
    return shape;
}

/* Beside the tensor's largest. */
static void conformance_compare(const conformance_case *c, int index, const char *what, const float *got,
                                const float *want, size_t n, double allowed)
{
    double largest = 1e-3, error = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++)
        error = fmax(error, isfinite(got[i]) ? fabs((double)got[i] - (double)want[i]) : HUGE_VAL);
    CHECK_MESSAGE(error <= allowed * largest, "case %d, %s: %s differs by %.2g of %.2g", index, c->name, what,
                  error, largest);
}

/* Each sample of an input that takes a gradient is a column of a parameter, picked by a row that is one at
   its place: exactly, and so the gradient of the input is the parameter's. */
static void conformance_run(const conformance_case *c, int index, conformance_build *build, double allowed)
{
    dml_context *context = open_here(&(dml_options){ .threads = 2 });
    dml_graph *graph = dml_graph_create(context);
    const dml_initializer zero = dml_init_constant(0);
    dml_node *node[MOST_TENSORS], *leaf[MOST_TENSORS], *pick = NULL;
    const void *inputs[MOST_TENSORS + 2];
    void *owned[MOST_TENSORS + 2];
    size_t each[MOST_TENSORS];
    int given = 0;
    for (int t = 0; t < c->tensors; t++) {
        const conformance_tensor *at = &c->tensor[t];
        const dml_shape shape = conformance_shape(at->dims, at->shape);
        const size_t batch = (size_t)c->batch;
        each[t] = dml_shape_count(&shape);
        if (strcmp(at->kind, "parameter") == 0) {
            node[t] = leaf[t] = dml_parameter_shaped(graph, NULL, zero, shape);
        } else if (strcmp(at->kind, "f32") == 0) {
            if (!pick) {
                pick = dml_input(graph, "pick", DML_F32, c->batch);
                float *one = (float *)calloc(batch * batch, sizeof *one);
                for (size_t b = 0; b < batch; b++) one[b * batch + b] = 1;
                inputs[given] = owned[given] = one, given++;
            }
            leaf[t] = dml_parameter(graph, NULL, zero, (int)each[t], c->batch);
            node[t] = dml_reshape(dml_dense_with(pick, leaf[t], NULL), shape);
        } else {
            const bool integers = strcmp(at->kind, "i32") == 0;
            leaf[t] = NULL;
            node[t] = dml_input_shaped(graph, NULL, integers ? DML_I32 : DML_F32, shape);
            int32_t *whole = (int32_t *)calloc(each[t] * batch + 1, sizeof *whole);
            for (size_t i = 0; i < each[t] * batch; i++) whole[i] = (int32_t)at->value[i];
            owned[given] = whole;
            inputs[given++] = integers ? (const void *)whole : at->value;
        }
    }
    dml_node *out = build(c, node), *loss = out;
    const size_t outputs = (size_t)c->outputs * (size_t)c->batch;
    float *y = (float *)malloc((outputs + 1) * sizeof *y), got = NAN;
    const int predicting = given;
    dml_program *predict = NULL;
    if (c->outputs) {
        predict = dml_compile(out, &(dml_program_options){ .batch = c->batch });
        loss = dml_mean_squared_error(dml_flatten(out), dml_input(graph, "target", DML_F32, c->outputs));
        owned[given] = NULL, inputs[given++] = c->target;
    }
    dml_program *train = dml_compile(loss, &(dml_program_options){ .batch = c->batch, .training = true });
    CHECK_MESSAGE(train && (predict || !c->outputs), "case %d, %s: %s", index, c->name, dml_error(context));
    for (int t = 0; t < c->tensors; t++) {
        if (!leaf[t]) continue;
        const size_t batch = node[t] == leaf[t] ? 1 : (size_t)c->batch, n = each[t] * batch;
        float *values = (float *)malloc((n + 1) * sizeof *values); /* (each, batch) */
        for (size_t i = 0; i < n; i++) values[i % each[t] * batch + i / each[t]] = c->tensor[t].value[i];
        CHECK_INT(dml_parameter_write(leaf[t], values, n), DML_OK);
        free(values);
    }
    const dml__training training = { 0, 0, 1.0f, false, NULL };
    if (predict) {
        CHECK_INT(dml_program_run(predict, c->batch, inputs, predicting, y), DML_OK);
        conformance_compare(c, index, "its output", y, c->y, outputs, allowed);
    }
    CHECK_INT(dml__program_train(train, c->batch, inputs, &training, &got), DML_OK);
    conformance_compare(c, index, "the loss", &got, &c->loss, 1, allowed);
    const size_t count = dml_graph_trained_count(graph);
    float *g = (float *)malloc((count + 1) * sizeof *g);
    read_floats(context, g, train->g, count);
    for (int t = 0; t < c->tensors; t++) {
        if (!leaf[t] || !c->tensor[t].gradient) continue;
        const size_t batch = node[t] == leaf[t] ? 1 : (size_t)c->batch, n = each[t] * batch;
        float *dx = (float *)malloc((n + 1) * sizeof *dx);
        for (size_t i = 0; i < n; i++) dx[i] = g[leaf[t]->offset + i % each[t] * batch + i / each[t]];
        char what[40];
        snprintf(what, sizeof what, "the gradient of tensor %d", t);
        conformance_compare(c, index, what, dx, c->tensor[t].gradient, n, allowed);
        free(dx);
    }
    free(g), free(y);
    for (int i = 0; i < given; i++) free(owned[i]);
    dml_close(context);
}

#endif
