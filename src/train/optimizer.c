#ifndef DML_TRAIN_OPTIMIZER_C
#define DML_TRAIN_OPTIMIZER_C

#include "train/optimizer.h"

#include "device/profile_internal.h"
#include "graph/op.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "train/optimizer_internal.h"
#include "train/update_rows.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* ---- the numbers ---- */

enum {
    DML__LR,
    DML__MOMENTUM,
    DML__WEIGHT_DECAY,
    DML__BETA1,
    DML__BETA2,
    DML__ALPHA,
    DML__EPSILON,
    DML__TRUST,
    DML__OPTIMIZER_NUMBERS
};

typedef struct dml__optimizer_field {
    const char *name;
    size_t offset;
    float most;
    bool below; /* that; else it may be reached */
    float otherwise;
} dml__optimizer_field;

static const dml__optimizer_field *dml__optimizer_field_at(int i)
{
    static const dml__optimizer_field fields[DML__OPTIMIZER_NUMBERS] = {
        { "lr", offsetof(dml_optimizer, lr), DML__MAX_LR, false, 0.0f },
        { "momentum", offsetof(dml_optimizer, momentum), 1.0f, true, 0.0f },
        { "weight_decay", offsetof(dml_optimizer, weight_decay), 1e6f, false, 0.0f },
        { "beta1", offsetof(dml_optimizer, beta1), 1.0f, true, 0.9f },
        { "beta2", offsetof(dml_optimizer, beta2), 1.0f, true, 0.999f },
        { "alpha", offsetof(dml_optimizer, alpha), 1.0f, true, 0.99f },
        { "epsilon", offsetof(dml_optimizer, epsilon), 1e6f, false, 0.0f },
        { "trust", offsetof(dml_optimizer, trust), 1e6f, false, 0.001f },
    };
    return &fields[i];
}

DML_API float *dml_optimizer_number(dml_optimizer *optimizer, int i, const char **name)
{
    if (!optimizer || i < 0 || i >= DML__OPTIMIZER_NUMBERS) return NULL;
    if (name) *name = dml__optimizer_field_at(i)->name;
    return (float *)(void *)((char *)optimizer + dml__optimizer_field_at(i)->offset);
}

/* ---- the rows ---- */

static int dml__no_states_without_momentum(const dml_optimizer *optimizer)
{
    return optimizer->momentum != 0.0f ? 1 : 0;
}

static int dml__another_state_with_momentum(const dml_optimizer *optimizer)
{
    return optimizer->momentum != 0.0f ? 2 : 1;
}

static int dml__one_state(const dml_optimizer *optimizer)
{
    (void)optimizer;
    return 1;
}

static int dml__two_states(const dml_optimizer *optimizer)
{
    (void)optimizer;
    return 2;
}

static void dml__sgd_numbers(const dml_optimizer *o, double t, float number[DML__UPDATE_NUMBERS])
{
    (void)t;
    number[0] = o->lr;
    number[1] = o->momentum;
    number[2] = o->weight_decay;
    number[3] = o->nesterov ? 1.0f : 0.0f;
}

/* lr m / c1 / (sqrt(v) / c2 + epsilon) is lr c2 / c1 times m / (sqrt(v) + epsilon c2). */
static void dml__adam_numbers(const dml_optimizer *o, double t, float number[DML__UPDATE_NUMBERS])
{
    const double beta1 = (double)o->beta1, beta2 = (double)o->beta2;
    const double c1 = 1 - pow(beta1, t), c2 = sqrt(1 - pow(beta2, t));
    number[0] = (float)((double)o->lr * c2 / c1);
    number[1] = (float)((double)o->epsilon * c2);
    number[2] = (float)(1 - beta1);
    number[3] = o->beta2;
    number[4] = (float)(1 - beta2);
    number[5] = o->weight_decay;
    number[6] = 1.0f;
}

static void dml__adamw_numbers(const dml_optimizer *o, double t, float number[DML__UPDATE_NUMBERS])
{
    dml__adam_numbers(o, t, number);
    number[5] = 0.0f;
    number[6] = (float)(1 - (double)o->lr * (double)o->weight_decay);
}

static void dml__rmsprop_numbers(const dml_optimizer *o, double t, float number[DML__UPDATE_NUMBERS])
{
    (void)t;
    number[0] = o->lr;
    number[1] = o->epsilon;
    number[2] = o->weight_decay;
    number[3] = o->alpha;
    number[4] = (float)(1 - (double)o->alpha);
    number[5] = o->momentum;
}

static void dml__adagrad_numbers(const dml_optimizer *o, double t, float number[DML__UPDATE_NUMBERS])
{
    (void)t;
    number[0] = o->lr;
    number[1] = o->epsilon;
    number[2] = o->weight_decay;
}

/* Once the gradient is the step. */
static void dml__lars_numbers(const dml_optimizer *o, double t, float number[DML__UPDATE_NUMBERS])
{
    dml__sgd_numbers(o, t, number);
    number[2] = number[3] = 0.0f;
}

static void dml__lamb_numbers(const dml_optimizer *o, double t, float number[DML__UPDATE_NUMBERS])
{
    (void)t;
    number[0] = o->lr;
}

#define DML__USES(field) (1u << DML__##field)
#define DML__USES_ALWAYS (DML__USES(LR) | DML__USES(WEIGHT_DECAY))
#define DML__USES_BETAS (DML__USES(BETA1) | DML__USES(BETA2) | DML__USES(EPSILON))

DML__LOCAL const dml__optimizer_row *dml__optimizer_row_of(dml_optimizer_kind kind)
{
    static const dml__optimizer_row rows[] = {
        { "sgd",
          { "velocity", NULL },
          DML__USES_ALWAYS | DML__USES(MOMENTUM),
          0.01f,
          0.0f,
          DML__UPDATE_SGD,
          "sgd_update",
          false,
          dml__no_states_without_momentum,
          dml__sgd_numbers },
        { "adam",
          { "mean", "square" },
          DML__USES_ALWAYS | DML__USES_BETAS,
          0.001f,
          1e-8f,
          DML__UPDATE_ADAM,
          "adam_update",
          false,
          dml__two_states,
          dml__adam_numbers },
        { "adamw",
          { "mean", "square" },
          DML__USES_ALWAYS | DML__USES_BETAS,
          0.001f,
          1e-8f,
          DML__UPDATE_ADAM,
          "adam_update",
          false,
          dml__two_states,
          dml__adamw_numbers },
        { "rmsprop",
          { "square", "velocity" },
          DML__USES_ALWAYS | DML__USES(MOMENTUM) | DML__USES(ALPHA) | DML__USES(EPSILON),
          0.01f,
          1e-8f,
          DML__UPDATE_RMSPROP,
          "rmsprop_update",
          false,
          dml__another_state_with_momentum,
          dml__rmsprop_numbers },
        { "adagrad",
          { "squares", NULL },
          DML__USES_ALWAYS | DML__USES(EPSILON),
          0.01f,
          1e-10f,
          DML__UPDATE_ADAGRAD,
          "adagrad_update",
          false,
          dml__one_state,
          dml__adagrad_numbers },
        { "lars",
          { "velocity", NULL },
          DML__USES_ALWAYS | DML__USES(MOMENTUM) | DML__USES(EPSILON) | DML__USES(TRUST),
          0.01f,
          1e-8f,
          DML__UPDATE_SGD,
          "sgd_update",
          true,
          dml__no_states_without_momentum,
          dml__lars_numbers },
        { "lamb",
          { "mean", "square" },
          DML__USES_ALWAYS | DML__USES_BETAS,
          0.001f,
          1e-6f,
          DML__UPDATE_SGD,
          "sgd_update",
          true,
          dml__two_states,
          dml__lamb_numbers },
    };
    return (unsigned)kind < sizeof rows / sizeof rows[0] ? &rows[kind] : NULL;
}

/* ---- checks ---- */

static dml_status dml__check_number(const dml__optimizer_row *row, dml_optimizer *optimizer, int i,
                                    dml__error *error)
{
    const dml__optimizer_field *field = dml__optimizer_field_at(i);
    const float value = *dml_optimizer_number(optimizer, i, NULL);
    /* Written so that a NaN is refused too. */
    if (value >= 0.0f && (field->below ? value < field->most : value <= field->most)) return DML_OK;
    return dml__fail(error, DML_ERROR_ARGUMENT, "%s with %s %g: it must be 0 or more, and %s %g", row->name,
                     field->name, (double)value, field->below ? "below" : "at most", (double)field->most);
}

DML__LOCAL dml_status dml__complete_optimizer(dml_optimizer *o, dml__error *error)
{
    const dml__optimizer_row *row = dml__optimizer_row_of(o->kind);
    if (!row) return dml__fail(error, DML_ERROR_ARGUMENT, "no optimizer of kind %d", (int)o->kind);
    for (int i = 0; i < DML__OPTIMIZER_NUMBERS; i++) {
        float *number = dml_optimizer_number(o, i, NULL);
        if (!(row->uses & 1u << i)) continue;
        if (*number == 0.0f)
            *number = i == DML__EPSILON ? row->epsilon : dml__optimizer_field_at(i)->otherwise;
        const dml_status status = dml__check_number(row, o, i, error);
        if (status != DML_OK) return status;
    }
    if (o->kind == DML_SGD && o->nesterov && o->momentum == 0.0f)
        return dml__fail(error, DML_ERROR_ARGUMENT, "Nesterov momentum needs a momentum above 0");
    return DML_OK;
}

/* ---- the update ---- */

/* g becomes Adam's step from w, with the decay: LAMB's direction. */
static dml_status dml__find_lamb_direction(const dml_optimizer *optimizer, const dml__update *update)
{
    dml_optimizer unit = *optimizer;
    float number[DML__UPDATE_NUMBERS] = { 0 };
    unit.lr = 1.0f;
    dml__adam_numbers(&unit, (double)update->step + 1, number);
    if (update->device->host_memory) {
        dml__lamb_direction(update->pool, update->n, (const float *)dml__host(update->w),
                            (float *)dml__host(update->g), (float *)dml__host(update->state[0]),
                            (float *)dml__host(update->state[1]), number);
        return DML_OK;
    }
    dml_launch launch = dml__launch("lamb_direction", update->n, 1);
    launch.buffer[0] = update->w;
    launch.buffer[1] = update->g;
    launch.buffer[2] = update->state[0];
    launch.buffer[3] = update->state[1];
    launch.integer[0] = (int32_t)update->n;
    memcpy(launch.real, number, sizeof number);
    return dml__submit(update->device, &launch);
}

/* The factor of a parameter, by the norms of it and of its gradient. */
static double dml__trust_of(double w, double g, double trust, double decay, double epsilon)
{
    return w == 0 || g == 0 ? 1 : trust * w / (g + decay * w + epsilon);
}

static dml_status dml__submit_squares(const dml__update *update, dml_ref x, dml_ref sums)
{
    const size_t groups = dml__squares_of(update->n);
    dml_launch launch = dml__launch("sum_squares", groups, 1);
    launch.buffer[0] = x;
    launch.buffer[1] = sums;
    launch.integer[0] = (int32_t)update->n;
    launch.integer[1] = (int32_t)groups;
    return dml__submit(update->device, &launch);
}

DML__LOCAL double dml__sum_of_squares(dml_pool *pool, size_t n, const float *x)
{
    double sum = (double)dml_dot(pool, n, x, x);
    if (isfinite(sum) && sum > 0) return sum;
    sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* g = factor (g + decay w) */
static dml_status dml__apply_trust(const dml__update *update, float trust, float decay, float epsilon)
{
    if (update->device->host_memory) {
        const float *w = (const float *)dml__host(update->w);
        float *g = (float *)dml__host(update->g);
        double factor = 1;
        if (update->adapts)
            factor = dml__trust_of(sqrt(dml__sum_of_squares(update->pool, update->n, w)),
                                   sqrt(dml__sum_of_squares(update->pool, update->n, g)), (double)trust,
                                   (double)decay, (double)epsilon);
        dml_axpby(update->pool, update->n, (float)(factor * (double)decay), w, (float)factor, g);
        return DML_OK;
    }
    dml_status status = DML_OK;
    if (update->adapts) status = dml__submit_squares(update, update->w, update->norms_at[0]);
    if (update->adapts && status == DML_OK)
        status = dml__submit_squares(update, update->g, update->norms_at[1]);
    if (status != DML_OK) return status;
    dml_launch launch = dml__launch("trust", update->n, 1);
    launch.buffer[0] = update->w;
    launch.buffer[1] = update->g;
    launch.buffer[2] = update->norms_at[0];
    launch.buffer[3] = update->norms_at[1];
    launch.integer[0] = (int32_t)update->n;
    launch.integer[1] = update->adapts ? (int32_t)dml__squares_of(update->n) : 0;
    launch.real[0] = trust;
    launch.real[1] = decay;
    launch.real[2] = epsilon;
    return dml__submit(update->device, &launch);
}

/* Before the rule of a row with `whole`: g becomes the step, but for the learning rate and the momentum. */
static dml_status dml__prepare_whole(const dml_optimizer *o, const dml__update *update)
{
    if (o->kind == DML_LARS) return dml__apply_trust(update, o->trust, o->weight_decay, o->epsilon);
    const dml_status status = dml__find_lamb_direction(o, update);
    return status == DML_OK ? dml__apply_trust(update, 1.0f, 0.0f, 0.0f) : status;
}

static void dml__update_rows_of(const dml__optimizer_row *row, const dml__update *update,
                                float *const state[DML__MAX_STATES], const float *number)
{
    dml__rows_update rows;
    rows.rule = row->rule;
    rows.number = number;
    rows.width = update->width;
    rows.begin = update->begin;
    rows.end = update->begin + update->n;
    rows.row = update->row;
    rows.count = update->rows;
    rows.w = (float *)dml__host(update->w) - update->begin;
    rows.g = (const float *)dml__host(update->g) - update->begin;
    for (int s = 0; s < DML__MAX_STATES; s++) rows.state[s] = state[s] ? state[s] - update->begin : NULL;
    dml__update_rows(update->pool, &rows);
}

DML__LOCAL dml_status dml__optimizer_step(const dml_optimizer *optimizer, const dml__update *update)
{
    const dml__optimizer_row *row = dml__optimizer_row_of(optimizer->kind);
    /* What the rule itself keeps: LAMB's vectors are its direction's. */
    const int states = optimizer->kind == DML_LAMB ? 0 : row->states(optimizer);
    float number[DML__UPDATE_NUMBERS] = { 0 };
    if (row->whole) {
        const dml_status status = dml__prepare_whole(optimizer, update);
        if (status != DML_OK) return status;
    }
    row->numbers(optimizer, (double)update->step + 1, number);
    if (update->device->host_memory) {
        float *state[DML__MAX_STATES] = { NULL };
        const double begin = dml__profile_now(update->device);
        for (int s = 0; s < states; s++) state[s] = (float *)dml__host(update->state[s]);
        if (update->width)
            dml__update_rows_of(row, update, state, number);
        else
            dml__update_by(row->rule, update->pool, update->n, (float *)dml__host(update->w),
                           (const float *)dml__host(update->g), state, number);
        dml__profile_ran(update->device, row->kernel, begin);
        return DML_OK;
    }
    dml_launch launch = dml__launch(row->kernel, update->n, 1);
    launch.buffer[0] = update->w;
    launch.buffer[1] = update->g;
    for (int s = 0; s < states; s++) launch.buffer[2 + s] = update->state[s];
    launch.integer[0] = (int32_t)update->n;
    launch.integer[1] = (int32_t)update->width;
    launch.integer[2] = update->width ? (int32_t)(update->begin % update->width) : 0;
    memcpy(launch.real, number, sizeof number);
    return dml__submit(update->device, &launch);
}

DML_API int dml_optimizer_states(const dml_optimizer *optimizer)
{
    const dml__optimizer_row *row = optimizer ? dml__optimizer_row_of(optimizer->kind) : NULL;
    return row ? row->states(optimizer) : 0;
}

DML__LOCAL dml_status dml__optimizer_update_rows(const dml_optimizer *optimizer, dml_pool *pool,
                                                 uint64_t step, size_t width, size_t n, float *w,
                                                 const float *g, float *const *state)
{
    if (!optimizer) return DML_ERROR_ARGUMENT;
    dml_optimizer o = *optimizer;
    const dml_status status = dml__complete_optimizer(&o, NULL);
    if (status != DML_OK) return status;
    const dml__optimizer_row *row = dml__optimizer_row_of(o.kind);
    if (row->whole || (n && (!w || !g)) || (row->states(&o) && !state)) return DML_ERROR_ARGUMENT;
    float number[DML__UPDATE_NUMBERS] = { 0 }, *vector[DML__UPDATE_STATES] = { NULL };
    for (int s = 0; s < row->states(&o); s++) {
        if (n && !state[s]) return DML_ERROR_ARGUMENT;
        vector[s] = state[s];
    }
    row->numbers(&o, (double)step + 1, number);
    if (!width) {
        dml__update_by(row->rule, pool, n, w, g, vector, number);
        return DML_OK;
    }
    dml__rows_update rows;
    memset(&rows, 0, sizeof rows);
    rows.rule = row->rule;
    rows.number = number;
    rows.width = width;
    rows.end = n;
    rows.count = n / width;
    rows.w = w;
    rows.g = g;
    for (int s = 0; s < DML__UPDATE_STATES; s++) rows.state[s] = vector[s];
    dml__update_rows(pool, &rows);
    return DML_OK;
}

DML_API dml_status dml_optimizer_update(const dml_optimizer *optimizer, dml_pool *pool, uint64_t step,
                                        size_t n, float *w, const float *g, float *const *state)
{
    return dml__optimizer_update_rows(optimizer, pool, step, 0, n, w, g, state);
}

static dml_optimizer dml__optimizer_with(dml_optimizer_kind kind, float lr)
{
    dml_optimizer optimizer;
    memset(&optimizer, 0, sizeof optimizer);
    optimizer.kind = kind;
    optimizer.lr = lr;
    return optimizer;
}

DML_API dml_optimizer dml_sgd(float lr, float momentum)
{
    dml_optimizer optimizer = dml__optimizer_with(DML_SGD, lr);
    optimizer.momentum = momentum;
    return optimizer;
}

DML_API dml_optimizer dml_adam(float lr)
{
    return dml__optimizer_with(DML_ADAM, lr);
}

DML_API dml_optimizer dml_adamw(float lr, float weight_decay)
{
    dml_optimizer optimizer = dml__optimizer_with(DML_ADAMW, lr);
    optimizer.weight_decay = weight_decay;
    return optimizer;
}

DML_API dml_optimizer dml_rmsprop(float lr)
{
    return dml__optimizer_with(DML_RMSPROP, lr);
}

DML_API dml_optimizer dml_adagrad(float lr)
{
    return dml__optimizer_with(DML_ADAGRAD, lr);
}

DML_API dml_optimizer dml_lars(float lr, float momentum)
{
    dml_optimizer optimizer = dml__optimizer_with(DML_LARS, lr);
    optimizer.momentum = momentum;
    return optimizer;
}

DML_API dml_optimizer dml_lamb(float lr, float weight_decay)
{
    dml_optimizer optimizer = dml__optimizer_with(DML_LAMB, lr);
    optimizer.weight_decay = weight_decay;
    return optimizer;
}

#endif
