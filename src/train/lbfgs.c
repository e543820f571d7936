#ifndef DML_TRAIN_LBFGS_C
#define DML_TRAIN_LBFGS_C

#include "train/lbfgs.h"

#include "base/memory.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"

#include <math.h>
#include <string.h>

#define DML__MOST_HISTORY 100
#define DML__SEARCH_STEPS 25 /* evaluations of one line search, in each of its halves */
#define DML__ENOUGH_DECREASE 1e-4
#define DML__ENOUGH_FLATNESS 0.9

typedef struct dml__lbfgs {
    size_t n;
    dml_pool *pool;
    dml_function function;
    void *user;
    int history, pairs, next; /* room for pairs; how many there are; where the next goes */
    float *step[DML__MOST_HISTORY], *turn[DML__MOST_HISTORY]; /* of x, of the gradient; (n) each */
    double product[DML__MOST_HISTORY];                        /* of the two */
    float *x, *gradient, *direction, *trial, *trial_gradient; /* (n) */
    int evaluations;
} dml__lbfgs;

static double dml__dot_of(const dml__lbfgs *l, const float *a, const float *b)
{
    return (double)dml_dot(l->pool, l->n, a, b);
}

/* y += alpha x */
static void dml__add_to(const dml__lbfgs *l, double alpha, const float *x, float *y)
{
    dml_axpby(l->pool, l->n, (float)alpha, x, 1.0f, y);
}

static float dml__largest(size_t n, const float *x)
{
    float largest = 0;
    for (size_t i = 0; i < n; i++) {
        const float size = fabsf(x[i]);
        if (!(size <= largest)) largest = size; /* a NaN too */
    }
    return largest;
}

/* ---- the direction ---- */

/* The k-th newest pair. */
static int dml__pair_at(const dml__lbfgs *l, int k)
{
    return (l->next - 1 - k + 2 * l->history) % l->history;
}

/* direction = - (the inverse Hessian as the pairs have it) gradient */
static void dml__find_direction(const dml__lbfgs *l)
{
    double alpha[DML__MOST_HISTORY];
    float *d = l->direction;
    dml_axpby(l->pool, l->n, -1.0f, l->gradient, 0.0f, d);
    for (int k = 0; k < l->pairs; k++) {
        const int p = dml__pair_at(l, k);
        alpha[k] = dml__dot_of(l, l->step[p], d) / l->product[p];
        dml__add_to(l, -alpha[k], l->turn[p], d);
    }
    if (l->pairs) {
        const int p = dml__pair_at(l, 0);
        dml_scale(l->pool, l->n, (float)(l->product[p] / dml__dot_of(l, l->turn[p], l->turn[p])), d);
    }
    for (int k = l->pairs - 1; k >= 0; k--) {
        const int p = dml__pair_at(l, k);
        dml__add_to(l, alpha[k] - dml__dot_of(l, l->turn[p], d) / l->product[p], l->step[p], d);
    }
}

/* From x and its gradient to trial and trial's, which take their place. A pair without curvature teaches
   nothing. */
static void dml__move(dml__lbfgs *l)
{
    const int p = l->next;
    dml_axpby(l->pool, l->n, 1.0f, l->trial, 0.0f, l->step[p]);
    dml__add_to(l, -1, l->x, l->step[p]);
    dml_axpby(l->pool, l->n, 1.0f, l->trial_gradient, 0.0f, l->turn[p]);
    dml__add_to(l, -1, l->gradient, l->turn[p]);
    l->product[p] = dml__dot_of(l, l->step[p], l->turn[p]);
    if (l->product[p] > 1e-10 * dml__dot_of(l, l->turn[p], l->turn[p])) {
        l->next = (p + 1) % l->history;
        if (l->pairs < l->history) l->pairs++;
    }
    dml_axpby(l->pool, l->n, 1.0f, l->trial, 0.0f, l->x);
    dml_axpby(l->pool, l->n, 1.0f, l->trial_gradient, 0.0f, l->gradient);
}

/* ---- the line search ---- */

typedef struct dml__point {
    double at, value, slope;
} dml__point;

static dml__point dml__evaluate(dml__lbfgs *l, double at)
{
    dml__point point;
    dml_axpby(l->pool, l->n, 1.0f, l->x, 0.0f, l->trial);
    dml__add_to(l, at, l->direction, l->trial);
    point.at = at;
    point.value = l->function(l->user, l->trial, l->trial_gradient);
    point.slope = dml__dot_of(l, l->trial_gradient, l->direction);
    l->evaluations++;
    return point;
}

/* Also false for a value that is no number. */
static bool dml__decreases(const dml__point *start, const dml__point *now)
{
    return now->value <= start->value + DML__ENOUGH_DECREASE * now->at * start->slope;
}

static bool dml__flat(const dml__point *start, const dml__point *now)
{
    return fabs(now->slope) <= -DML__ENOUGH_FLATNESS * start->slope;
}

/* The minimum of the cubic through two points, kept from their neighbourhoods; the middle where there is
   none. */
static double dml__between(const dml__point *a, const dml__point *b)
{
    const double width = b->at - a->at;
    const double c = a->slope + b->slope - 3 * (a->value - b->value) / (a->at - b->at);
    const double square = c * c - a->slope * b->slope;
    double part = 0.5;
    if (square >= 0) {
        const double root = width > 0 ? sqrt(square) : -sqrt(square);
        const double found = 1 - (b->slope + root - c) / (b->slope - a->slope + 2 * root);
        if (found == found) part = fmin(0.9, fmax(0.1, found));
    }
    return a->at + part * width;
}

/* A point where both conditions hold lies between the two; `low` has the least value so far. */
static bool dml__narrow(dml__lbfgs *l, const dml__point *start, dml__point low, dml__point high,
                        dml__point *found)
{
    for (int i = 0; i < DML__SEARCH_STEPS; i++) {
        const dml__point now = dml__evaluate(l, dml__between(&low, &high));
        if (!dml__decreases(start, &now) || now.value >= low.value) {
            high = now;
            continue;
        }
        if (dml__flat(start, &now)) {
            *found = now;
            return true;
        }
        if (now.slope * (high.at - low.at) >= 0) high = low;
        low = now;
    }
    if (low.at == 0 || !(low.value < start->value)) return false;
    *found = dml__evaluate(l, low.at);
    return true;
}

/* Goes along the direction until the value rises or the slope turns. Leaves the point found in trial. */
static bool dml__search(dml__lbfgs *l, const dml__point *start, double at, dml__point *found)
{
    dml__point before = *start;
    for (int i = 0; i < DML__SEARCH_STEPS; i++, at *= 2) {
        const dml__point now = dml__evaluate(l, at);
        if (!dml__decreases(start, &now) || (i > 0 && now.value >= before.value))
            return dml__narrow(l, start, before, now, found);
        *found = now;
        if (dml__flat(start, &now)) return true;
        if (now.slope >= 0) return dml__narrow(l, start, now, before, found);
        before = now;
    }
    return true;
}

/* ---- all of it ---- */

static dml_lbfgs_end dml__minimise(dml__lbfgs *l, const dml_lbfgs_options *o, dml_lbfgs_result *result)
{
    for (; result->iterations < o->iterations; result->iterations++) {
        dml__point start, found;
        result->gradient = dml__largest(l->n, l->gradient);
        if (result->gradient <= o->tolerance) return DML_LBFGS_CONVERGED;
        dml__find_direction(l);
        start.at = 0;
        start.value = result->value;
        start.slope = dml__dot_of(l, l->gradient, l->direction);
        const double first = l->pairs ? 1 : fmin(1, 1 / sqrt(-start.slope)); /* at first no longer than 1 */
        if (!(start.slope < 0) || !dml__search(l, &start, first, &found)) {
            if (l->pairs == 0) return DML_LBFGS_STALLED;
            l->pairs = 0; /* once more, along the gradient alone */
            continue;
        }
        dml__move(l);
        result->value = found.value;
    }
    result->gradient = dml__largest(l->n, l->gradient);
    return result->gradient <= o->tolerance ? DML_LBFGS_CONVERGED : DML_LBFGS_INTERRUPTED;
}

static dml_status dml__minimise_in(dml__lbfgs *l, float *vectors, const dml_lbfgs_options *o,
                                   dml_lbfgs_result *result)
{
    float **const places[] = { &l->gradient, &l->direction, &l->trial, &l->trial_gradient };
    for (int i = 0; i < 4; i++, vectors += l->n) *places[i] = vectors;
    for (int i = 0; i < l->history; i++, vectors += 2 * l->n) {
        l->step[i] = vectors;
        l->turn[i] = vectors + l->n;
    }
    result->value = l->function(l->user, l->x, l->gradient);
    l->evaluations = 1;
    if (!isfinite(result->value)) return DML_ERROR_ARGUMENT;
    result->end = dml__minimise(l, o, result);
    result->evaluations = l->evaluations;
    return DML_OK;
}

DML_API dml_status dml_lbfgs_minimize(size_t n, float *x, dml_function function, void *user,
                                      const dml_lbfgs_options *options, dml_lbfgs_result *result)
{
    dml_lbfgs_options o;
    dml_lbfgs_result ignored;
    dml__lbfgs l;
    dml__memory memory;
    memset(&o, 0, sizeof o);
    memset(&l, 0, sizeof l);
    if (options) o = *options;
    if (!result) result = &ignored;
    memset(result, 0, sizeof *result);
    if (!o.history) o.history = 10;
    if (!o.iterations) o.iterations = 100;
    if (o.tolerance == 0.0f) o.tolerance = 1e-5f;
    if (!x || !function || n == 0 || o.history < 0 || o.history > DML__MOST_HISTORY || o.iterations < 0 ||
        !(o.tolerance > 0.0f))
        return DML_ERROR_ARGUMENT;
    l.n = n;
    l.pool = o.pool;
    l.function = function;
    l.user = user;
    l.history = o.history;
    l.x = x;
    dml__memory_init(&memory, &o.allocator, NULL, 0);
    float *vectors = (float *)dml__allocate_array(&memory, n, (size_t)(2 * o.history + 4) * sizeof(float));
    if (!vectors) return DML_ERROR_MEMORY;
    const dml_status status = dml__minimise_in(&l, vectors, &o, result);
    dml__release(&memory, vectors);
    return status;
}

#endif
