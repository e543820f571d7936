/* subject.h: a model whose forward is checked against float64 and whose gradient against central finite
   differences, on the backend under test. */
#ifndef DML_TESTS_GRAPH_SUBJECT_H
#define DML_TESTS_GRAPH_SUBJECT_H

#include "ops/op_loss.h"
#include "graph/program.h"
#include "graph/program_internal.h"

#include "backends.h"
#include "reference_ops.h"

/* A model under test: what builds its graph and returns the node to check, for how many samples. */
typedef struct model {
    const char *name;
    dml_node *(*build)(dml_graph *g);
    int batch;
} model;

enum { MAX_INPUTS = 32 };

typedef struct subject {
    const model *which;
    dml_context *context;
    dml_node *output, *loss;
    dml_program *forward, *training;
    size_t all, count; /* parameters; those that are trained, with which w begins */
    float *w, *g;
    double *w64;
    unsigned random;
    double tolerance, gradient_tolerance; /* the largest of its ops' */
    bool kinks; /* the random numbers may lie where a slope changes: any between both sides' is right */
} subject;

/* A scalar that depends on the whole of `output`. */
static dml_node *loss_of(dml_node *output)
{
    if (!output || output->shape.ndim == 0) return output;
    return dml_mean_squared_error(output, dml_input_shaped(output->graph, "target", DML_F32, output->shape));
}

TEST__UNUSED static bool open_subject(subject *s, const model *which)
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
    for (const dml_node *n = graph->first; n; n = n->next) {
        const reference_row *row_of_op = n->inputs ? reference_of(n->op->name) : NULL;
        CHECK_MESSAGE(!n->inputs || row_of_op, "no float64 reference of '%s'", n->op->name);
        if (!row_of_op) continue;
        s->tolerance = fmax(s->tolerance, row_of_op->tolerance);
        s->gradient_tolerance = fmax(s->gradient_tolerance, row_of_op->gradient_tolerance);
    }
    s->all = graph->parameter_count;
    s->count = graph->trained_count;
    s->w = (float *)malloc(s->all * sizeof(float));
    s->g = (float *)malloc(s->count * sizeof(float));
    s->w64 = (double *)malloc(s->all * sizeof(double));
    test_fill(&s->random, s->w, s->all);
    for (size_t i = s->count; i < s->all; i++) s->w[i] = fabsf(s->w[i]) + 0.25f; /* variances too */
    for (size_t i = 0; i < s->all; i++) s->w64[i] = s->w[i];
    write_floats(s->context, graph->w, s->w, s->all);
    return true;
}

/* w as it was: training passes move running statistics. */
static void reset_parameters(subject *s)
{
    write_floats(s->context, s->loss->graph->w, s->w, s->all);
}

TEST__UNUSED static void close_subject(subject *s)
{
    free(s->w);
    free(s->g);
    free(s->w64);
    dml_close(s->context);
}

/* Forward and backward, overwriting g. */
TEST__UNUSED static dml_status program_train(dml_program *program, int rows, const void *const *inputs,
                                             float loss_scale, const dml__gradient_listener *listener,
                                             float *loss)
{
    const dml__training training = { 0, 0, loss_scale, false, listener };
    return dml__program_train(program, rows, inputs, &training, loss);
}

/* Random samples for a program's inputs, and the same for the reference. */
static void make_inputs(subject *s, const dml_program *program, int rows, reference *r, void *inputs[])
{
    for (int i = 0; i < dml_program_inputs(program); i++) {
        const dml_node *input = dml_program_input(program, i);
        const size_t n = reference_count(input, rows);
        const dml__slot *slot = &program->slot[program->slot_of_node[input->index]];
        const int lowest = slot->lowest, limit = slot->limit;
        CHECK(i < MAX_INPUTS);
        inputs[i] = malloc(n * sizeof(float));
        if (input->dtype == DML_F32) test_fill(&s->random, (float *)inputs[i], n);
        for (size_t k = 0; k < n; k++) {
            if (input->dtype == DML_I32)
                ((int32_t *)inputs[i])[k] =
                    lowest + (int32_t)(test_random(&s->random) % (unsigned)(limit - lowest));
            r->value[input->index][k] =
                input->dtype == DML_I32 ? ((int32_t *)inputs[i])[k] : ((float *)inputs[i])[k];
        }
    }
}

static double largest_of(const double *x, size_t n)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs(x[i]));
    return largest;
}

/* The largest difference, relative to the tensor's largest element, or to `least` if that is more. */
static double relative_error(const float *got, const double *want, size_t n, double least)
{
    double error = 0;
    for (size_t i = 0; i < n; i++) error = fmax(error, isfinite(got[i]) ? fabs(got[i] - want[i]) : HUGE_VAL);
    return error / fmax(largest_of(want, n), least);
}

static void check_forward(subject *s, const reference *r, void *const *inputs)
{
    const size_t n = reference_count(s->output, r->rows);
    float *got = (float *)malloc(n * sizeof *got);
    poison(s->context, s->forward->arena);
    reference_training = false;
    CHECK_MESSAGE(dml_program_run(s->forward, r->rows, (const void *const *)inputs,
                                  dml_program_inputs(s->forward), got) == DML_OK,
                  "%s: %s", s->which->name, dml_error(s->context));
    const double error = relative_error(got, reference_run(r, s->output), n, 1e-3);
    if (getenv("SHOW")) printf("SHOW %s f %.3g / %g\n", s->which->name, error, s->tolerance);
    CHECK_MESSAGE(error <= s->tolerance, "%s, %d rows: forward differs by %.2g", s->which->name, r->rows,
                  error);
    free(got);
}

/* NaNs, since the program must write all of it: zeros for parameters that it doesn't use, or whose gradient
   stops at a comparison. */
static void poison_gradients(subject *s)
{
    for (size_t i = 0; i < s->count; i++) s->g[i] = NAN;
    write_floats(s->context, s->training->g, s->g, s->count);
}

/* The loss with element k of parameter p at w. */
static double loss_with(subject *s, const reference *r, const dml_node *p, size_t k, double w)
{
    s->w64[p->offset + k] = w;
    return *reference_run_after(r, p, s->loss);
}

/* slope[k] = the central difference of the loss by element k of parameter p */
static void slopes_of(subject *s, const reference *r, const dml_node *p, double loss_scale, double *slope)
{
    const double h = 1e-5;
    reference_run(r, s->loss);
    for (size_t k = 0; k < dml_shape_count(&p->shape); k++) {
        const double w = s->w64[p->offset + k];
        const double above = loss_with(s, r, p, k, w + h), below = loss_with(s, r, p, k, w - h);
        slope[k] = loss_scale * (above - below) / (2 * h);
        s->w64[p->offset + k] = w;
    }
}

/* As relative_error, where any gradient between the slopes to both sides is right. */
static double between_slopes(subject *s, const reference *r, const dml_node *p, float loss_scale,
                             const double *want, double least)
{
    const double h = 1e-5, at = *reference_run(r, s->loss);
    const size_t n = dml_shape_count(&p->shape);
    double error = 0;
    for (size_t k = 0; k < n; k++) {
        const size_t i = p->offset + k;
        const double w = s->w64[i], got = s->g[i];
        const double right = loss_scale * (loss_with(s, r, p, k, w + h) - at) / h;
        const double left = loss_scale * (at - loss_with(s, r, p, k, w - h)) / h;
        s->w64[i] = w;
        const double off = fmax(fmin(left, right) - got, got - fmax(left, right));
        error = fmax(error, isfinite(got) ? off : HUGE_VAL);
    }
    return error / fmax(largest_of(want, n), least);
}

/* Trained parameters are NaN but while an op that said that it reads them runs. */
static dml_status lend_parameters(void *user, size_t begin, size_t end)
{
    const subject *s = (const subject *)user;
    memcpy((float *)s->loss->graph->w->host + begin, s->w + begin, (end - begin) * sizeof(float));
    return DML_OK;
}
static dml_status hide_parameters(void *user, size_t begin, size_t end)
{
    const subject *s = (const subject *)user;
    for (size_t i = begin; i < end; i++) ((float *)s->loss->graph->w->host)[i] = NAN;
    return DML_OK;
}
static void lend_parameters_to_ops(subject *s)
{
    if (!s->context->device.host_memory || s->loss->op == dml__parameter_op()) return;
    s->training->ranks.use = lend_parameters;
    s->training->ranks.used = hide_parameters;
    s->training->ranks.user = s;
    hide_parameters(s, 0, s->count);
}

static void check_backward(subject *s, const reference *r, void *const *inputs)
{
    const float loss_scale = 3.0f;
    float loss = NAN;
    reference_training = true;
    reset_parameters(s);
    poison(s->context, s->training->arena);
    poison_gradients(s);
    lend_parameters_to_ops(s);
    CHECK_MESSAGE(program_train(s->training, r->rows, (const void *const *)inputs, loss_scale, NULL, &loss) ==
                      DML_OK,
                  "%s: %s", s->which->name, dml_error(s->context));
    const double loss_error = relative_error(&loss, reference_run(r, s->loss), 1, 1e-3);
    CHECK_MESSAGE(loss_error <= 2 * s->tolerance, "%s, %d rows: loss differs by %.2g", s->which->name,
                  r->rows, loss_error);
    read_floats(s->context, s->g, s->training->g, s->count);
    double *want = (double *)calloc(s->count, sizeof *want);
    for (const dml_node *p = r->graph->first_parameter; p; p = p->next_parameter)
        if (!p->frozen) slopes_of(s, r, p, loss_scale, want + p->offset);
    /* Each parameter's on its own; one that is small because what it adds up is large is allowed for. */
    const double least = 0.01 * largest_of(want, s->count) + 1e-4;
    for (const dml_node *p = r->graph->first_parameter; p; p = p->next_parameter) {
        if (p->frozen) continue;
        const size_t n = dml_shape_count(&p->shape);
        double error = relative_error(s->g + p->offset, want + p->offset, n, least);
        if (s->kinks && error > s->gradient_tolerance)
            error = between_slopes(s, r, p, loss_scale, want + p->offset, least);
        if (getenv("SHOW")) printf("SHOW %s g %.3g / %g\n", s->which->name, error, s->gradient_tolerance);
        CHECK_MESSAGE(error <= s->gradient_tolerance, "%s, %d rows: gradient of '%s' differs by %.2g",
                      s->which->name, r->rows, p->name, error);
    }
    free(want);
    reset_parameters(s);
}

TEST__UNUSED static void check_rows(subject *s, int rows)
{
    void *inputs[MAX_INPUTS] = { NULL };
    reference r;
    reference_open(&r, s->loss->graph, rows, s->w64);
    make_inputs(s, s->training, rows, &r, inputs);
    if (!slow_here())
        check_forward(s, &r, inputs); /* the target is the last input, so the first are its own */
    check_backward(s, &r, inputs);
    for (int i = 0; i < MAX_INPUTS; i++) free(inputs[i]);
    reference_close(&r);
}

TEST__UNUSED static bool has_op(const subject *s, const char *op)
{
    for (const dml_node *n = s->loss->graph->first; n; n = n->next)
        if (strcmp(n->op->name, op) == 0) return true;
    return false;
}

#endif
