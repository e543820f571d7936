/* Every op of the table on every backend: forward against a float64 reference, backward against central
   finite differences of that reference. An op without a case fails the tests. */
#include "graph/ops.h"
#include "graph/op_activation.h"
#include "graph/op_arithmetic.h"
#include "graph/op_conv2d.h"
#include "graph/op_dense.h"
#include "graph/op_loss.h"
#include "graph/op_pool2d.h"
#include "graph/program.h"
#include "graph/program_internal.h"

#include "backends.h"
#include "reference_ops.h"

/* ---- the cases: each builds a graph on parameters and inputs and returns the node to check ---- */

static dml_node *parameter(dml_graph *g, int ndim, int a, int b)
{
    const dml_initializer zero = { DML_INIT_CONSTANT, 0, 0 };
    return dml_parameter(g, "p", zero, ndim, a, b);
}

/* Rows and images that depend on parameters, so that gradients flow through them. */
static dml_node *row(dml_graph *g, int width)
{
    return dml_dense(dml_input(g, "row", DML_F32, 1, 3), width);
}

static dml_node *image(dml_graph *g, int height, int width, int channels)
{
    const dml_conv2d_options one = { .filters = channels, .kernel = { 1, 1 } };
    return dml_conv2d(dml_input(g, "image", DML_F32, 3, height, width, 2), &one);
}

static dml_node *labels(dml_graph *g)
{
    return dml_input(g, "label", DML_I32, 0);
}

static dml_node *add_rows(dml_graph *g)
{
    return dml_add(row(g, 17), row(g, 17));
}
static dml_node *add_itself(dml_graph *g)
{
    dml_node *h = row(g, 5);
    return dml_add(h, h);
}
static dml_node *add_input(dml_graph *g)
{
    return dml_add(dml_input(g, "x", DML_F32, 3, 3, 5, 2), image(g, 3, 5, 2));
}
static dml_node *add_losses(dml_graph *g)
{
    dml_node *h = row(g, 4);
    return dml_add(dml_softmax_cross_entropy(h, labels(g)), dml_mean_squared_error(h, row(g, 4)));
}
static dml_node *add_parameters(dml_graph *g)
{
    dml_node *w = dml_add(parameter(g, 2, 5, 7), parameter(g, 2, 5, 7));
    return dml_linear(dml_input(g, "x", DML_F32, 1, 7), w, NULL);
}

static dml_node *flatten_image(dml_graph *g)
{
    return dml_dense(dml_flatten(image(g, 3, 4, 2)), 5);
}
static dml_node *flatten_output(dml_graph *g)
{
    return dml_flatten(image(g, 3, 3, 3));
}
static dml_node *flatten_twice(dml_graph *g)
{
    dml_node *x = image(g, 3, 3, 2);
    dml_node *a = dml_dense(dml_flatten(dml_flatten(x)), 4), *b = dml_dense(dml_flatten(x), 4);
    return dml_add(dml_add(a, b), dml_dense(dml_flatten(dml_max_pool2d(x, NULL)), 4));
}
static dml_node *flatten_parameter(dml_graph *g)
{
    dml_node *p = parameter(g, 2, 1, 5), *x = dml_input(g, "x", DML_F32, 1, 5);
    return dml_linear(dml_linear(x, p, NULL), parameter(g, 2, 5, 1), dml_flatten(p));
}

static dml_node *dense_small(dml_graph *g)
{
    return dml_dense(dml_dense(dml_input(g, "x", DML_F32, 1, 1), 1), 1);
}
static dml_node *dense_odd(dml_graph *g)
{
    return dml_dense(row(g, 13), 7);
}
static dml_node *dense_large(dml_graph *g)
{
    return dml_linear(row(g, 67), parameter(g, 2, 33, 67), NULL);
}
static dml_node *dense_shared_weights(dml_graph *g)
{
    dml_node *w = parameter(g, 2, 6, 6), *bias = parameter(g, 1, 6, 0);
    dml_node *h = dml_tanh(dml_linear(row(g, 6), w, bias));
    return dml_linear(dml_tanh(dml_linear(h, w, NULL)), w, bias);
}
static dml_node *dense_two_consumers(dml_graph *g)
{
    dml_node *h = row(g, 9);
    return dml_add(dml_dense(h, 5), dml_tanh(dml_dense(h, 5)));
}

static dml_node *conv(dml_node *x, dml_conv2d_options options)
{
    return dml_conv2d(x, &options);
}
static dml_node *conv_default(dml_graph *g)
{
    return conv(image(g, 6, 5, 3), (dml_conv2d_options){ .filters = 4 });
}
static dml_node *conv_padded_stride(dml_graph *g)
{
    return conv(image(g, 7, 8, 2),
                (dml_conv2d_options){ .filters = 5, .stride = { 2, 2 }, .padding = { 1, 1 } });
}
static dml_node *conv_uneven(dml_graph *g)
{
    return conv(
        image(g, 5, 9, 3),
        (dml_conv2d_options){
            .filters = 2, .kernel = { 2, 5 }, .stride = { 1, 3 }, .padding = { 0, 2 }, .no_bias = true });
}
static dml_node *conv_whole_image(dml_graph *g)
{
    return conv(image(g, 4, 3, 2), (dml_conv2d_options){ .filters = 3, .kernel = { 4, 3 } });
}
static dml_node *conv_gaps(dml_graph *g)
{
    return conv(image(g, 7, 7, 1),
                (dml_conv2d_options){ .filters = 1, .kernel = { 2, 2 }, .stride = { 3, 3 } });
}
static dml_node *conv_much_padding(dml_graph *g)
{
    return conv(image(g, 2, 1, 2), (dml_conv2d_options){ .filters = 3, .padding = { 4, 3 } });
}
static dml_node *conv_two_consumers(dml_graph *g)
{
    dml_node *x = image(g, 5, 5, 3);
    const dml_conv2d_options options = { .filters = 3, .padding = { 1, 1 } };
    return dml_add(dml_add(dml_conv2d(x, &options), dml_relu(dml_conv2d(x, &options))), x);
}

static dml_node *max_pool(dml_graph *g)
{
    return dml_max_pool2d(image(g, 7, 5, 3), NULL);
}
static dml_node *max_pool_overlapping(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 3, 3 }, .stride = { 2, 1 }, .padding = { 1, 2 } };
    return dml_max_pool2d(image(g, 6, 5, 2), &o);
}
static dml_node *max_pool_gaps(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 1, 2 }, .stride = { 3, 4 } };
    dml_node *x = image(g, 7, 9, 3);
    return dml_add(dml_max_pool2d(x, &o), dml_avg_pool2d(x, &o));
}
static dml_node *avg_pool(dml_graph *g)
{
    return dml_avg_pool2d(image(g, 5, 7, 3), NULL);
}
static dml_node *avg_pool_overlapping(dml_graph *g)
{
    const dml_pool2d_options o = { .kernel = { 3, 4 }, .stride = { 2, 1 }, .padding = { 2, 1 } };
    return dml_avg_pool2d(image(g, 6, 5, 2), &o);
}
static dml_node *avg_pool_two_consumers(dml_graph *g)
{
    dml_node *x = image(g, 4, 4, 3);
    const dml_pool2d_options whole = { .kernel = { 4, 4 } };
    return dml_add(dml_add(dml_avg_pool2d(x, &whole), dml_avg_pool2d(x, &whole)), dml_max_pool2d(x, &whole));
}

/* Each activation on a row, on an image, and on a node that another op uses too. */
#define ACTIVATION_CASES(name)                                                                               \
    static dml_node *name##_row(dml_graph *g)                                                                \
    {                                                                                                        \
        return dml_##name(row(g, 131));                                                                      \
    }                                                                                                        \
    static dml_node *name##_image(dml_graph *g)                                                              \
    {                                                                                                        \
        return dml_##name(image(g, 3, 5, 7));                                                                \
    }                                                                                                        \
    static dml_node *name##_two_consumers(dml_graph *g)                                                      \
    {                                                                                                        \
        dml_node *h = row(g, 6);                                                                             \
        return dml_add(dml_add(dml_##name(h), h), dml_##name(dml_##name(h)));                                \
    }                                                                                                        \
    static dml_node *name##_parameter(dml_graph *g)                                                          \
    {                                                                                                        \
        return dml_linear(row(g, 3), dml_##name(parameter(g, 2, 5, 3)), NULL);                               \
    }
ACTIVATION_CASES(relu)
ACTIVATION_CASES(tanh)
ACTIVATION_CASES(sigmoid)

static dml_node *cross_entropy(dml_graph *g)
{
    return dml_softmax_cross_entropy(row(g, 10), labels(g));
}
static dml_node *cross_entropy_one_class(dml_graph *g)
{
    return dml_softmax_cross_entropy(row(g, 1), labels(g));
}
static dml_node *cross_entropy_many_classes(dml_graph *g)
{
    return dml_softmax_cross_entropy(row(g, 133), labels(g));
}
static dml_node *cross_entropy_large_logits(dml_graph *g)
{
    dml_node *h = row(g, 3);
    for (int i = 0; i < 7; i++) h = dml_add(h, h); /* times 128 */
    return dml_softmax_cross_entropy(h, labels(g));
}
static dml_node *cross_entropy_twice(dml_graph *g)
{
    dml_node *h = row(g, 5), *t = labels(g);
    return dml_add(dml_softmax_cross_entropy(h, t), dml_softmax_cross_entropy(dml_tanh(h), t));
}

static dml_node *mse_of_both(dml_graph *g)
{
    return dml_mean_squared_error(row(g, 19), row(g, 19));
}
static dml_node *mse_images(dml_graph *g)
{
    return dml_mean_squared_error(dml_input(g, "x", DML_F32, 3, 5, 3, 2), image(g, 5, 3, 2));
}
static dml_node *mse_of_itself(dml_graph *g)
{
    dml_node *h = row(g, 3);
    return dml_add(dml_mean_squared_error(h, h), dml_mean_squared_error(h, dml_relu(h)));
}
static dml_node *mse_parameters(dml_graph *g)
{
    return dml_mean_squared_error(parameter(g, 2, 3, 5), parameter(g, 2, 3, 5));
}

typedef struct test_case {
    const char *op;
    dml_node *(*build)(dml_graph *g);
    const char *name;
    int batch;
} test_case;

#define CASE(op, build, batch)                                                                               \
    {                                                                                                        \
#op, build, #build, batch                                                                            \
    }
static const test_case cases[] = {
    CASE(add, add_rows, 5),
    CASE(add, add_itself, 3),
    CASE(add, add_input, 2),
    CASE(add, add_losses, 5),
    CASE(add, add_parameters, 3),
    CASE(flatten, flatten_image, 3),
    CASE(flatten, flatten_output, 2),
    CASE(flatten, flatten_twice, 3),
    CASE(flatten, flatten_parameter, 4),
    CASE(dense, dense_small, 1),
    CASE(dense, dense_odd, 5),
    CASE(dense, dense_large, 19),
    CASE(dense, dense_shared_weights, 7),
    CASE(dense, dense_two_consumers, 4),
    CASE(conv2d, conv_default, 3),
    CASE(conv2d, conv_padded_stride, 3),
    CASE(conv2d, conv_uneven, 2),
    CASE(conv2d, conv_whole_image, 5),
    CASE(conv2d, conv_gaps, 2),
    CASE(conv2d, conv_much_padding, 2),
    CASE(conv2d, conv_two_consumers, 3),
    CASE(max_pool2d, max_pool, 3),
    CASE(max_pool2d, max_pool_overlapping, 2),
    CASE(max_pool2d, max_pool_gaps, 2),
    CASE(avg_pool2d, avg_pool, 3),
    CASE(avg_pool2d, avg_pool_overlapping, 2),
    CASE(avg_pool2d, avg_pool_two_consumers, 3),
    CASE(relu, relu_row, 5),
    CASE(relu, relu_image, 2),
    CASE(relu, relu_two_consumers, 4),
    CASE(relu, relu_parameter, 2),
    CASE(tanh, tanh_row, 5),
    CASE(tanh, tanh_image, 2),
    CASE(tanh, tanh_two_consumers, 4),
    CASE(tanh, tanh_parameter, 2),
    CASE(sigmoid, sigmoid_row, 5),
    CASE(sigmoid, sigmoid_image, 2),
    CASE(sigmoid, sigmoid_two_consumers, 4),
    CASE(sigmoid, sigmoid_parameter, 2),
    CASE(softmax_cross_entropy, cross_entropy, 17),
    CASE(softmax_cross_entropy, cross_entropy_one_class, 3),
    CASE(softmax_cross_entropy, cross_entropy_many_classes, 5),
    CASE(softmax_cross_entropy, cross_entropy_large_logits, 5),
    CASE(softmax_cross_entropy, cross_entropy_twice, 6),
    CASE(mean_squared_error, mse_of_both, 7),
    CASE(mean_squared_error, mse_images, 3),
    CASE(mean_squared_error, mse_of_itself, 5),
    CASE(mean_squared_error, mse_parameters, 2),
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* ---- running a case ---- */

typedef struct subject {
    const test_case *which;
    dml_context *context;
    dml_node *output, *loss;
    dml_program *forward, *training;
    size_t count; /* of parameters */
    float *w, *g;
    double *w64;
    unsigned random;
    double tolerance, gradient_tolerance; /* the largest of its ops' */
} subject;

/* A scalar that depends on the whole of `output`. */
static dml_node *loss_of(dml_node *output)
{
    if (!output || output->shape.ndim == 0) return output;
    const dml_shape s = output->shape;
    return dml_mean_squared_error(
        output, dml_input(output->graph, "target", DML_F32, s.ndim, s.dims[0], s.dims[1], s.dims[2]));
}

static bool open_subject(subject *s, const test_case *which)
{
    memset(s, 0, sizeof *s);
    s->which = which;
    s->random = 7;
    s->context = open_here(&(dml_options){ .threads = 2 });
    dml_graph *graph = dml_graph_create(s->context);
    s->output = which->build(graph);
    s->loss = loss_of(s->output);
    s->forward = dml_compile(s->output, &(dml_program_options){ .batch = which->batch });
    s->training = dml_compile(s->loss, &(dml_program_options){ .batch = which->batch, .training = true });
    CHECK_MESSAGE(s->forward && s->training, "%s: %s", which->name, dml_error(s->context));
    if (!s->forward || !s->training) return false;
    bool there = false;
    for (const dml_node *n = graph->first; n; n = n->next) {
        const reference_row *row_of_op = n->inputs ? reference_of(n->op->name) : NULL;
        CHECK_MESSAGE(!n->inputs || row_of_op, "no float64 reference of '%s'", n->op->name);
        if (!row_of_op) continue;
        there = there || strcmp(n->op->name, which->op) == 0;
        s->tolerance = fmax(s->tolerance, row_of_op->tolerance);
        s->gradient_tolerance = fmax(s->gradient_tolerance, row_of_op->gradient_tolerance);
    }
    CHECK_MESSAGE(there, "%s is no case of '%s'", which->name, which->op);
    s->count = graph->parameter_count;
    s->w = (float *)malloc(s->count * sizeof(float));
    s->g = (float *)malloc(s->count * sizeof(float));
    s->w64 = (double *)malloc(s->count * sizeof(double));
    test_fill(&s->random, s->w, s->count);
    for (size_t i = 0; i < s->count; i++) s->w64[i] = s->w[i];
    write_floats(s->context, graph->w, s->w, s->count);
    return true;
}

static void close_subject(subject *s)
{
    free(s->w);
    free(s->g);
    free(s->w64);
    dml_close(s->context);
}

/* Random samples for a program's inputs, and the same for the reference. */
static void make_inputs(subject *s, const dml_program *program, int rows, reference *r, void *inputs[])
{
    for (int i = 0; i < dml_program_inputs(program); i++) {
        const dml_node *input = dml_program_input(program, i);
        const size_t n = reference_count(input, rows);
        inputs[i] = malloc(n * sizeof(float));
        if (input->dtype == DML_F32) test_fill(&s->random, (float *)inputs[i], n);
        for (size_t k = 0; k < n; k++) {
            if (input->dtype == DML_I32)
                ((int32_t *)inputs[i])[k] = (int32_t)(test_random(&s->random) % (unsigned)input->limit);
            r->value[input->index][k] =
                input->dtype == DML_I32 ? ((int32_t *)inputs[i])[k] : ((float *)inputs[i])[k];
        }
    }
}

/* The largest difference, relative to the largest element. */
static double relative_error(const float *got, const double *want, size_t n)
{
    double largest = 1e-3, error = 0;
    for (size_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(want[i]));
        error = fmax(error, isfinite(got[i]) ? fabs(got[i] - want[i]) : HUGE_VAL);
    }
    return error / largest;
}

static void check_forward(subject *s, const reference *r, void *const *inputs)
{
    const size_t n = reference_count(s->output, r->rows);
    float *got = (float *)malloc(n * sizeof *got);
    poison(s->context, s->forward->arena);
    CHECK_MESSAGE(dml_program_run(s->forward, r->rows, (const void *const *)inputs, got) == DML_OK, "%s: %s",
                  s->which->name, dml_error(s->context));
    const double error = relative_error(got, reference_run(r, s->output), n);
    CHECK_MESSAGE(error <= s->tolerance, "%s, %d rows: forward differs by %.2g", s->which->name, r->rows,
                  error);
    free(got);
}

static void check_backward(subject *s, const reference *r, void *const *inputs)
{
    const float loss_scale = 3.0f;
    float loss = NAN;
    poison(s->context, s->training->arena);
    poison(s->context, s->training->g);
    CHECK_MESSAGE(dml__program_train(s->training, r->rows, (const void *const *)inputs, 0, loss_scale, NULL,
                                     &loss) == DML_OK,
                  "%s: %s", s->which->name, dml_error(s->context));
    const double loss_error = relative_error(&loss, reference_run(r, s->loss), 1);
    CHECK_MESSAGE(loss_error <= 4 * s->tolerance, "%s, %d rows: loss differs by %.2g", s->which->name,
                  r->rows, loss_error);
    read_floats(s->context, s->g, s->training->g, s->count);
    double *want = (double *)malloc(s->count * sizeof *want);
    for (size_t i = 0; i < s->count; i++) {
        const double w = s->w64[i], h = 1e-5;
        s->w64[i] = w + h;
        const double above = *reference_run(r, s->loss);
        s->w64[i] = w - h;
        const double below = *reference_run(r, s->loss);
        s->w64[i] = w;
        want[i] = loss_scale * (above - below) / (2 * h);
    }
    const double error = relative_error(s->g, want, s->count);
    CHECK_MESSAGE(error <= s->gradient_tolerance, "%s, %d rows: gradient differs by %.2g", s->which->name,
                  r->rows, error);
    free(want);
}

static void check_rows(subject *s, int rows)
{
    void *inputs[8] = { NULL };
    reference r;
    reference_open(&r, s->loss->graph, rows, s->w64);
    make_inputs(s, s->training, rows, &r, inputs);
    if (!slow_here())
        check_forward(s, &r, inputs); /* the target is the last input, so the first are its own */
    check_backward(s, &r, inputs);
    for (int i = 0; i < 8; i++) free(inputs[i]);
    reference_close(&r);
}

static void every_op(void)
{
    for (int c = 0; c < CASES; c++) {
        subject s;
        const int batch = cases[c].batch;
        if (open_subject(&s, &cases[c])) {
            if (batch > 2) check_rows(&s, batch - 1);
            if (batch > 1 && !slow_here()) check_rows(&s, 1);
            if (batch <= 2 || !slow_here()) check_rows(&s, batch);
        }
        close_subject(&s);
    }
}
EACH_BACKEND(every_op)

static void the_table_has_cases(void)
{
    const dml__op *op;
    for (int i = 0; (op = dml__op_at(i)) != NULL; i++) {
        bool found = false;
        for (int c = 0; c < CASES; c++) found = found || strcmp(cases[c].op, op->name) == 0;
        CHECK_MESSAGE(found, "the op '%s' has no case", op->name);
        CHECK_MESSAGE(reference_of(op->name), "the op '%s' has no float64 reference", op->name);
    }
    CHECK(dml__op_at(-1) == NULL);
}

int main(void)
{
    RUN(the_table_has_cases);
    RUN_EACH(every_op);
    return test_report("graph/ops");
}
