/* Layers against what PyTorch computed (layer_cases.h): outputs, the loss, and the gradients of the input and
   of the parameters, on every backend. */
#include "graph/node.h"
#include "graph/program.h"
#include "graph/program_internal.h"
#include "graph/weights.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_embedding.h"
#include "ops/op_loss.h"
#include "ops/op_sample_norm.h"
#include "ops/op_shape.h"

#include "../graph/backends.h"

enum { MOST = 180 };
typedef struct layer_case {
    const char *name;
    int batch, dims, shape[4], outputs;
    float number[3]; /* the builder's */
    int p0_dims, p1_dims, p0_shape[2], p1_shape[2];
    float x[MOST], p0[MOST], p1[MOST], target[MOST], y[MOST], loss, dx[MOST], dp0[MOST], dp1[MOST];
} layer_case;
#include "layer_cases.h"
enum { CASES = sizeof layer_cases / sizeof layer_cases[0] };

static dml_shape shape_of(int dims, const int *at)
{
    dml_shape shape = { dims, { 0 } };
    for (int i = 0; i < dims; i++) shape.dims[i] = at[i];
    return shape;
}

static dml_node *build(const layer_case *c, dml_node *x, dml_node *p0, dml_node *p1)
{
    const int n[] = { (int)c->number[0], (int)c->number[1], (int)c->number[2] };
    const dml_sample_norm_options norm = { .epsilon = c->number[0] };
    if (strcmp(c->name, "layer_norm") == 0) return dml_layer_norm_with(x, p0, p1, &norm);
    if (strcmp(c->name, "rms_norm") == 0) return dml_rms_norm_with(x, p0, &norm);
    if (strcmp(c->name, "group_norm") == 0) return dml_group_norm_with(x, n[1], p0, p1, &norm);
    if (strcmp(c->name, "dense") == 0) return dml_dense_with(x, p0, p1);
    if (strcmp(c->name, "permute") == 0) return dml_permute(x, shape_of(c->dims, n));
    if (strcmp(c->name, "transpose") == 0) return dml_swap_axes(x, -1, -2);
    if (strcmp(c->name, "slice") == 0) return dml_slice(x, n[0], n[1], n[2]);
    if (strcmp(c->name, "pad") == 0) return dml_pad(x, n[0], n[1], n[2]);
    if (strcmp(c->name, "embedding") == 0) return dml_embedding_with(x, p0);
    if (strcmp(c->name, "concat") == 0) {
        const int size = c->shape[0];
        dml_node *const parts[] = { x, dml_slice(x, n[0], 1, size), dml_slice(x, n[0], 0, 1) };
        return dml_concat(parts, 3, n[0]);
    }
    return NULL;
}

/* Beside the tensor's largest. A mean of 100 is a float whose rounding is two digits more of a distance from
   it. */
static void check(const layer_case *c, const char *what, const float *got, const float *want, int n)
{
    double largest = 1e-3, error = 0;
    for (int i = 0; i < n; i++) largest = fmax(largest, fabs((double)want[i]));
    for (int i = 0; i < n; i++)
        error = fmax(error, isfinite(got[i]) ? fabs((double)got[i] - (double)want[i]) : HUGE_VAL);
    const double allowed = strcmp(c->name, "layer_norm") == 0 && fabs((double)c->x[0]) > 50 ? 1e-4 : 2e-6;
    CHECK_MESSAGE(error <= allowed * largest, "case %d, %s: %s differs by %.2g of %.2g",
                  (int)(c - layer_cases), c->name, what, error, largest);
}

/* Each sample of x is a column of a parameter, picked by a row that is one at its place: exactly, and so the
   gradient of x is the parameter's. */
static void one_case(const layer_case *c)
{
    dml_context *context = open_here(&(dml_options){ .threads = 2 });
    dml_graph *graph = dml_graph_create(context);
    const dml_initializer zero = dml_init_constant(0);
    const dml_shape shape = shape_of(c->dims, c->shape);
    const int each = (int)dml_shape_count(&shape);
    const bool indexed = strcmp(c->name, "embedding") == 0;
    dml_node *all = NULL, *p[2] = { NULL, NULL }, *x;
    float columns[MOST], pick[MOST] = { 0 }, y[MOST], loss = NAN, g[MOST], dx[MOST];
    int32_t index[MOST];
    if (indexed) {
        x = dml_input_shaped(graph, "x", DML_I32, shape);
    } else {
        all = dml_parameter(graph, "all", zero, each, c->batch);
        x = dml_reshape(dml_dense_with(dml_input(graph, "pick", DML_F32, c->batch), all, NULL), shape);
    }
    if (c->p0_dims) p[0] = dml_parameter_shaped(graph, "p0", zero, shape_of(c->p0_dims, c->p0_shape));
    if (c->p1_dims) p[1] = dml_parameter_shaped(graph, "p1", zero, shape_of(c->p1_dims, c->p1_shape));
    dml_node *out = build(c, x, p[0], p[1]);
    dml_node *flat = dml_flatten(out), *target = dml_input(graph, "target", DML_F32, c->outputs);
    dml_program *predict = dml_compile(out, &(dml_program_options){ .batch = c->batch });
    dml_program *train = dml_compile(dml_mean_squared_error(flat, target),
                                     &(dml_program_options){ .batch = c->batch, .training = true });
    CHECK_MESSAGE(predict && train, "case %d, %s: %s", (int)(c - layer_cases), c->name, dml_error(context));
    for (int b = 0; b < c->batch; b++) pick[b * c->batch + b] = 1;
    for (int i = 0; i < each * c->batch; i++) {
        columns[i % each * c->batch + i / each] = c->x[i];
        index[i] = (int32_t)c->x[i];
    }
    if (all) CHECK_INT(dml_parameter_write(all, columns, (size_t)(each * c->batch)), DML_OK);
    const float *const values[] = { c->p0, c->p1 }, *const wanted[] = { c->dp0, c->dp1 };
    for (int i = 0; i < 2; i++)
        if (p[i]) CHECK_INT(dml_parameter_write(p[i], values[i], dml_shape_count(&p[i]->shape)), DML_OK);
    const void *const first = indexed ? (const void *)index : pick;
    const dml__training training = { 0, 0, 1.0f, false, NULL };
    const void *const inputs[] = { first, c->target };
    CHECK_INT(dml_program_run(predict, c->batch, &first, 1, y), DML_OK);
    check(c, "its output", y, c->y, c->outputs * c->batch);
    CHECK_INT(dml__program_train(train, c->batch, inputs, &training, &loss), DML_OK);
    check(c, "the loss", &loss, &c->loss, 1);
    const size_t count = dml_graph_trained_count(graph);
    float *gradient = (float *)malloc(count * sizeof *gradient);
    read_floats(context, gradient, train->g, count);
    if (all) {
        memcpy(g, gradient + all->offset, (size_t)(each * c->batch) * sizeof *g);
        for (int i = 0; i < each * c->batch; i++) dx[i] = g[i % each * c->batch + i / each];
        check(c, "the input's gradient", dx, c->dx, each * c->batch);
    }
    for (int i = 0; i < 2; i++)
        if (p[i])
            check(c, i ? "the bias's gradient" : "the weight's gradient", gradient + p[i]->offset, wanted[i],
                  (int)dml_shape_count(&p[i]->shape));
    free(gradient);
    dml_close(context);
}

static void pytorch(void)
{
    for (int c = 0; c < CASES; c++) one_case(&layer_cases[c]);
}
EACH_BACKEND(pytorch)

int main(void)
{
    RUN_EACH(pytorch);
    return test_report("conformance/layer");
}
