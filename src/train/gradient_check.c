#ifndef DML_TRAIN_GRADIENT_CHECK_C
#define DML_TRAIN_GRADIENT_CHECK_C

#include "train/gradient_check.h"

#include "base/memory.h"
#include "base/philox.h"
#include "graph/node.h"
#include "graph/program_internal.h"
#include "graph/weights.h"

#include <math.h>
#include <string.h>

#define DML__CHECK_TRIES 3 /* each a quarter as far as the one before */

typedef struct dml__gradient_checker {
    dml_program *program;
    dml_graph *graph;
    dml_gradient_check_options options;
    int rows;
    const void *const *inputs;
    float *w;        /* (parameters) on the host, which is changed and put */
    float *w0, *g;   /* as they were before; the gradient by backward, (trained) */
    double loss;     /* at w0 */
    double steepest; /* the largest of g */
    dml_status status;
    double worst; /* error, in parts of what is allowed */
    dml_gradient_check *result;
} dml__gradient_checker;

static dml__training dml__one_step_of(void)
{
    dml__training training;
    memset(&training, 0, sizeof training);
    training.loss_scale = 1.0f;
    return training;
}

/* A parameter's element, or all of it along its gradient, whose norm is `norm`. */
typedef struct dml__direction {
    dml_node *parameter;
    size_t index; /* or DML_WHOLE_PARAMETER */
    double norm;
} dml__direction;

/* Moves from w0 by `t`, or back by 0. */
static void dml__move_along(dml__gradient_checker *c, const dml__direction *d, double t)
{
    const size_t n = dml_shape_count(&d->parameter->shape), at = d->parameter->offset;
    const bool whole = d->index == DML_WHOLE_PARAMETER;
    const size_t begin = whole ? at : at + d->index, end = whole ? at + n : begin + 1;
    for (size_t i = begin; i < end; i++)
        c->w[i] = (float)((double)c->w0[i] + t * (whole ? (double)c->g[i] / d->norm : 1));
    if (c->status == DML_OK) c->status = dml_graph_put(c->graph, begin, end);
}

static double dml__loss_at(dml__gradient_checker *c, const dml__direction *d, double t)
{
    const dml__training training = dml__one_step_of();
    float loss = NAN;
    dml__move_along(c, d, t);
    if (c->status == DML_OK) c->status = dml__program_loss(c->program, c->rows, c->inputs, &training, &loss);
    return (double)loss;
}

/* What has been found `h` to both sides. */
typedef struct dml__difference {
    double slope, bend; /* of first and of second order */
} dml__difference;

static dml__difference dml__difference_at(dml__gradient_checker *c, const dml__direction *d, double h)
{
    dml__difference found;
    const double above = dml__loss_at(c, d, h), below = dml__loss_at(c, d, -h);
    double moved = 2 * h;
    if (d->index != DML_WHOLE_PARAMETER) { /* as far as floats did */
        const double w = (double)c->w0[d->parameter->offset + d->index];
        moved = (double)(float)(w + h) - (double)(float)(w - h);
    }
    found.slope = (above - below) / moved;
    found.bend = (above - 2 * c->loss + below) / h;
    return found;
}

static void dml__keep_worst(dml__gradient_checker *c, const dml__direction *d, double backward,
                            double numeric, double allowed)
{
    dml_gradient_check *r = c->result;
    const double part = fabs(numeric - backward) / allowed;
    const bool fails = !(part <= 1); /* NaN too */
    r->checked++;
    r->failed += fails;
    if (r->parameter && !(part > c->worst) && !(fails && c->worst <= 1)) return;
    c->worst = part == part ? part : INFINITY;
    r->parameter = d->parameter;
    r->index = d->index;
    r->backward = backward;
    r->numeric = numeric;
    r->allowed = allowed;
}

/* What differences at some distance say of a derivative. */
typedef struct dml__estimate {
    double numeric, sure; /* and how far off that may be */
    double allowed;       /* for backward's */
    double h;             /* the distance */
    bool smooth;
} dml__estimate;

static dml__estimate dml__estimate_at(dml__gradient_checker *c, const dml__direction *d, double backward,
                                      double h)
{
    dml__estimate found;
    const dml__difference wide = dml__difference_at(c, d, h), near = dml__difference_at(c, d, h / 2);
    const double tolerance = (double)c->options.tolerance;
    /* each loss is off by a few units of its last place; the two slopes add up three of these over h */
    const double noise = 3 * 4 * 6e-8 * fabs(c->loss) / h + 1e-30;
    found.h = h;
    found.numeric = (4 * near.slope - wide.slope) / 3;
    found.allowed = tolerance * fmax(fabs(found.numeric), fabs(backward)) + noise;
    /* Measured by what they are themselves: a wrong, or a much steeper, gradient makes them no better. */
    found.sure = tolerance * fabs(found.numeric) + noise;
    /* A smooth loss bends half as much half as far; what doesn't shrink is a kink right here, of whose change
       of slope differences see a half. */
    const double kink = fabs(2 * near.bend - wide.bend) / 2;
    found.smooth = !(fabs(wide.slope - near.slope) > found.sure) && !(1.1 * kink > found.sure);
    return found;
}

static void dml__keep_estimate(dml__gradient_checker *c, const dml__direction *d, double backward,
                               const dml__estimate *estimate)
{
    dml__keep_worst(c, d, backward, estimate->numeric, estimate->allowed);
    dml__move_along(c, d, 0);
}

/* How far rounding throws the loss off, as it jumps between places that lie close together: by more than its
   own last places where something before it, such as a norm of values that are nearly alike, makes them
   larger. */
static double dml__roughness_at(dml__gradient_checker *c, const dml__direction *d, double h)
{
    double most = 0;
    for (int side = -1; side <= 1; side += 2) {
        double line[3] = { 0, 0, 0 };
        for (int i = 0; i < 6; i++) {
            line[0] = line[1], line[1] = line[2];
            line[2] = dml__loss_at(c, d, side * h * (1 + i / 4096.0));
            if (i >= 2) most = fmax(most, fabs(line[0] - 2 * line[1] + line[2]));
        }
    }
    return most;
}

/* Parts of the largest derivative that backward's own rounding may make of one that is 0, as before a norm,
   which takes out what was added. */
#define DML__CHECK_ROUNDING 2e-5

/* Whether an estimate that isn't backward's could be, but for the rounding of its losses, of which its slopes
   add up three over h. */
static bool dml__is_rough(dml__gradient_checker *c, const dml__direction *d, double backward,
                          const dml__estimate *estimate)
{
    const double off = fabs(estimate->numeric - backward) - estimate->allowed;
    return off <= 3 * dml__roughness_at(c, d, estimate->h) / estimate->h + DML__CHECK_ROUNDING * c->steepest;
}

/* The first smooth estimate counts; one that isn't backward's only if the next, closer by, is no nearer to
   it: some way off a kink looks smooth at one distance. */
static void dml__check_derivative(dml__gradient_checker *c, const dml__direction *d, double backward)
{
    dml__estimate other = { 0, 0, 0, 0, false }; /* than backward */
    double h = (double)c->options.epsilon;
    for (int i = 0; i < DML__CHECK_TRIES + other.smooth && c->status == DML_OK; i++, h /= 4) {
        const dml__estimate found = dml__estimate_at(c, d, backward, h);
        const double off = fabs(found.numeric - backward);
        if (other.smooth) {
            if (!found.smooth || off < 0.5 * fabs(other.numeric - backward)) break;
            if (dml__is_rough(c, d, backward, &other)) break;
            dml__keep_estimate(c, d, backward, &other);
            return;
        }
        if (found.smooth && off <= found.allowed) {
            dml__keep_estimate(c, d, backward, &found);
            return;
        }
        if (found.smooth) other = found;
    }
    dml__move_along(c, d, 0);
    c->result->unsure++;
}

static void dml__check_parameter(dml__gradient_checker *c, dml_node *parameter)
{
    const size_t n = dml_shape_count(&parameter->shape);
    const float *g = c->g + parameter->offset;
    const size_t samples = (size_t)c->options.samples;
    const dml_random random = { 0, 0x47u /* 'G' */, (uint32_t)parameter->index };
    dml__direction d = { parameter, 0, 0 };
    size_t largest = 0;
    double squares = 0;
    for (size_t i = 0; i < n; i++) {
        squares += (double)g[i] * (double)g[i];
        if (fabsf(g[i]) > fabsf(g[largest])) largest = i;
    }
    for (size_t s = 0; s < samples && s < n; s++) {
        d.index = n <= samples ? s : s == 0 ? largest : (size_t)(dml_random_bits(&random, s) % n);
        dml__check_derivative(c, &d, (double)g[d.index]);
    }
    d.index = DML_WHOLE_PARAMETER;
    d.norm = sqrt(squares);
    if (n > 1 && d.norm > 0) dml__check_derivative(c, &d, d.norm);
}

static dml_status dml__check_all(dml__gradient_checker *c)
{
    const dml__training training = dml__one_step_of();
    dml_context *context = c->graph->context;
    const size_t trained = c->graph->trained_count;
    const dml_ref g = { c->program->g, 0 };
    float loss;
    c->status = dml__program_train(c->program, c->rows, c->inputs, &training, &loss);
    if (c->status == DML_OK)
        c->status = context->device.backend->read(&context->device, c->g, g, trained * sizeof(float));
    if (c->status != DML_OK) return c->status;
    c->loss = (double)loss;
    for (size_t i = 0; i < trained; i++)
        if (c->g[i] - c->g[i] == 0) c->steepest = fmax(c->steepest, fabs((double)c->g[i]));
    for (dml_node *p = c->graph->first_parameter; p && c->status == DML_OK; p = p->next_parameter)
        if (!p->frozen) dml__check_parameter(c, p);
    return c->status;
}

/* With a program and w to itself. */
static dml_status dml__check_with(dml__gradient_checker *c)
{
    dml_context *context = c->graph->context;
    const size_t all = c->graph->parameter_count;
    c->w = dml_graph_get(c->graph, 0, all);
    if (!c->w) return context->error.status;
    c->w0 = (float *)dml__allocate_array(&context->memory, all, sizeof(float));
    c->g = (float *)dml__allocate_array(&context->memory, c->graph->trained_count, sizeof(float));
    dml_status status;
    if (c->w0 && c->g) {
        memcpy(c->w0, c->w, all * sizeof(float));
        status = dml__check_all(c);
        memcpy(c->w, c->w0, all * sizeof(float));
        const dml_status back = dml_graph_put(c->graph, 0, all);
        if (status == DML_OK) status = back;
    } else {
        status = dml__fail(&context->error, DML_ERROR_MEMORY,
                           "no memory left to check gradients: copies of %zu parameters", all);
    }
    dml__release(&context->memory, c->w0);
    dml__release(&context->memory, c->g);
    return status;
}

static dml_status dml__complete_check(dml_gradient_check_options *o, dml__error *error)
{
    if (o->epsilon == 0.0f) o->epsilon = 0.01f;
    if (o->tolerance == 0.0f) o->tolerance = 0.02f;
    if (o->samples == 0) o->samples = 8;
    if (o->epsilon > 0.0f && o->epsilon <= 1e6f && o->tolerance > 0.0f && o->tolerance < 1.0f &&
        o->samples > 0)
        return DML_OK;
    return dml__fail(error, DML_ERROR_ARGUMENT,
                     "a check of gradients with epsilon %g, tolerance %g and %d samples asked for: they must "
                     "be above 0, the tolerance below 1",
                     (double)o->epsilon, (double)o->tolerance, o->samples);
}

static dml_status dml__check_gradients_in(dml_node *loss, int rows, const void *const *inputs, int count,
                                          const dml_gradient_check_options *options,
                                          dml_gradient_check *result)
{
    dml_context *context = loss->graph->context;
    dml__gradient_checker c;
    dml_program_options program_options;
    memset(&c, 0, sizeof c);
    memset(&program_options, 0, sizeof program_options);
    if (context->error.status != DML_OK) return context->error.status;
    if (!result) return dml__fail_null(&context->error, "dml_check_gradients", "result");
    if (dml__graph_cuts(loss->graph))
        return dml__fail(&context->error, DML_ERROR_UNSUPPORTED,
                         "a check of gradients asked for, of a model that is cut over %d ranks; check it on "
                         "one",
                         dml__graph_cuts(loss->graph));
    memset(result, 0, sizeof *result);
    if (options) c.options = *options;
    dml_status status = dml__complete_check(&c.options, &context->error);
    if (status != DML_OK) return status;
    program_options.batch = rows;
    program_options.training = true;
    c.program = dml_compile(loss, &program_options);
    if (!c.program) return context->error.status;
    c.graph = loss->graph;
    c.rows = rows;
    c.inputs = inputs;
    c.result = result;
    status = dml__program_check(c.program, rows, inputs, count);
    if (status == DML_OK) status = dml__graph_claim_writing(c.graph);
    if (status == DML_OK) {
        status = dml__check_with(&c);
        dml__graph_release(c.graph, false);
    }
    dml_program_destroy(c.program);
    return status;
}

DML_API dml_status dml_check_gradients(dml_node *loss, int rows, const void *const *inputs, int count,
                                       const dml_gradient_check_options *options, dml_gradient_check *result)
{
    if (!loss) return DML_ERROR_ARGUMENT;
    dml_context *context = loss->graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__check_gradients_in(loss, rows, inputs, count, options, result);
    dml__leave(context, entry);
    return status;
}

#endif
