#ifndef DML_TRAIN_LBFGS_C
#define DML_TRAIN_LBFGS_C

#include "train/lbfgs.h"

#include "base/memory.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "train/lbfgs_internal.h"

#include <math.h>
#include <string.h>

#define DML__SEARCH_STEPS 25 /* evaluations of one line search, in each of its halves */
#define DML__ENOUGH_DECREASE 1e-4
#define DML__ENOUGH_FLATNESS 0.9

typedef struct dml__lbfgs {
    const dml__lbfgs_space *space;
    int history, pairs, next;                /* room for pairs; how many there are; where the next goes */
    double product[DML__LBFGS_MOST_HISTORY]; /* of a pair's two */
    int evaluations;
} dml__lbfgs;

static double dml__dot_of(const dml__lbfgs *l, int x, int y)
{
    return l->space->dot(l->space->user, x, y);
}

/* y += alpha x */
static void dml__add_to(const dml__lbfgs *l, double alpha, int x, int y)
{
    l->space->axpby(l->space->user, alpha, x, 1, y);
}

/* y = alpha x */
static void dml__set_to(const dml__lbfgs *l, double alpha, int x, int y)
{
    l->space->axpby(l->space->user, alpha, x, 0, y);
}

static int dml__step_of(int pair)
{
    return DML__LBFGS_PAIRS + 2 * pair;
}

static int dml__turn_of(int pair)
{
    return DML__LBFGS_PAIRS + 2 * pair + 1;
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
    const int d = DML__LBFGS_DIRECTION;
    double alpha[DML__LBFGS_MOST_HISTORY];
    dml__set_to(l, -1, DML__LBFGS_GRADIENT, d);
    for (int k = 0; k < l->pairs; k++) {
        const int p = dml__pair_at(l, k);
        alpha[k] = dml__dot_of(l, dml__step_of(p), d) / l->product[p];
        dml__add_to(l, -alpha[k], dml__turn_of(p), d);
    }
    if (l->pairs) {
        const int p = dml__pair_at(l, 0), turn = dml__turn_of(p);
        dml__set_to(l, l->product[p] / dml__dot_of(l, turn, turn), d, d);
    }
    for (int k = l->pairs - 1; k >= 0; k--) {
        const int p = dml__pair_at(l, k);
        dml__add_to(l, alpha[k] - dml__dot_of(l, dml__turn_of(p), d) / l->product[p], dml__step_of(p), d);
    }
}

/* From x and its gradient to trial and trial's, which take their place. A pair without curvature teaches
   nothing. */
static void dml__move(dml__lbfgs *l)
{
    const int p = l->next, step = dml__step_of(p), turn = dml__turn_of(p);
    dml__set_to(l, 1, DML__LBFGS_TRIAL, step);
    dml__add_to(l, -1, DML__LBFGS_X, step);
    dml__set_to(l, 1, DML__LBFGS_TRIAL_GRADIENT, turn);
    dml__add_to(l, -1, DML__LBFGS_GRADIENT, turn);
    l->product[p] = dml__dot_of(l, step, turn);
    if (l->product[p] > 1e-10 * dml__dot_of(l, turn, turn)) {
        l->next = (p + 1) % l->history;
        if (l->pairs < l->history) l->pairs++;
    } else if (l->pairs == l->history) {
        l->pairs--; /* the oldest lay there */
    }
    dml__set_to(l, 1, DML__LBFGS_TRIAL, DML__LBFGS_X);
    dml__set_to(l, 1, DML__LBFGS_TRIAL_GRADIENT, DML__LBFGS_GRADIENT);
}

/* ---- the line search ---- */

typedef struct dml__point {
    double at, value, slope;
} dml__point;

static dml__point dml__evaluate(dml__lbfgs *l, double at)
{
    dml__point point;
    dml__set_to(l, 1, DML__LBFGS_X, DML__LBFGS_TRIAL);
    dml__add_to(l, at, DML__LBFGS_DIRECTION, DML__LBFGS_TRIAL);
    point.at = at;
    point.value = l->space->evaluate(l->space->user, DML__LBFGS_TRIAL, DML__LBFGS_TRIAL_GRADIENT);
    point.slope = dml__dot_of(l, DML__LBFGS_TRIAL_GRADIENT, DML__LBFGS_DIRECTION);
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

static float dml__steepest(const dml__lbfgs *l)
{
    return (float)l->space->largest(l->space->user, DML__LBFGS_GRADIENT);
}

static dml_lbfgs_end dml__descend(dml__lbfgs *l, const dml_lbfgs_options *o, dml_lbfgs_result *result)
{
    for (; result->iterations < o->iterations; result->iterations++) {
        dml__point start, found;
        result->gradient = dml__steepest(l);
        if (result->gradient <= o->tolerance) return DML_LBFGS_CONVERGED;
        dml__find_direction(l);
        start.at = 0;
        start.value = result->value;
        start.slope = dml__dot_of(l, DML__LBFGS_GRADIENT, DML__LBFGS_DIRECTION);
        const double first = l->pairs ? 1 : fmin(1, 1 / sqrt(-start.slope)); /* at first no longer than 1 */
        if (!(start.slope < 0) || !dml__search(l, &start, first, &found)) {
            if (l->pairs == 0) return DML_LBFGS_STALLED;
            l->pairs = 0; /* once more, along the gradient alone */
            continue;
        }
        dml__move(l);
        result->value = found.value;
    }
    result->gradient = dml__steepest(l);
    return result->gradient <= o->tolerance ? DML_LBFGS_CONVERGED : DML_LBFGS_INTERRUPTED;
}

DML__LOCAL bool dml__lbfgs_complete(dml_lbfgs_options *o)
{
    if (!o->history) o->history = 10;
    if (!o->iterations) o->iterations = 100;
    if (o->tolerance == 0.0f) o->tolerance = 1e-5f;
    return o->history > 0 && o->history <= DML__LBFGS_MOST_HISTORY && o->iterations > 0 &&
           o->tolerance > 0.0f;
}

DML__LOCAL dml_status dml__lbfgs_minimise(const dml__lbfgs_space *space, const dml_lbfgs_options *options,
                                          dml_lbfgs_result *result)
{
    dml__lbfgs l;
    memset(&l, 0, sizeof l);
    memset(result, 0, sizeof *result);
    l.space = space;
    l.history = options->history;
    l.evaluations = 1;
    result->value = space->evaluate(space->user, DML__LBFGS_X, DML__LBFGS_GRADIENT);
    if (!isfinite(result->value)) return DML_ERROR_ARGUMENT;
    result->end = dml__descend(&l, options, result);
    result->evaluations = l.evaluations;
    return DML_OK;
}

/* ---- vectors in this process ---- */

typedef struct dml__lbfgs_here {
    size_t n;
    dml_pool *pool;
    dml_function function;
    void *user;
    float *x;       /* (n) */
    float *vectors; /* (2 history + 4, n): those from number 1 on */
} dml__lbfgs_here;

static float *dml__vector_here(const dml__lbfgs_here *here, int vector)
{
    return vector == DML__LBFGS_X ? here->x : here->vectors + (size_t)(vector - 1) * here->n;
}

static double dml__dot_here(void *user, int x, int y)
{
    const dml__lbfgs_here *h = (const dml__lbfgs_here *)user;
    return (double)dml_dot(h->pool, h->n, dml__vector_here(h, x), dml__vector_here(h, y));
}

static double dml__largest_here(void *user, int vector)
{
    const dml__lbfgs_here *h = (const dml__lbfgs_here *)user;
    const float *x = dml__vector_here(h, vector);
    float largest = 0;
    for (size_t i = 0; i < h->n; i++) {
        const float size = fabsf(x[i]);
        if (size > largest || isnan(size)) largest = size; /* which stays */
    }
    return (double)largest;
}

static void dml__axpby_here(void *user, double alpha, int x, double beta, int y)
{
    const dml__lbfgs_here *h = (const dml__lbfgs_here *)user;
    dml_axpby(h->pool, h->n, (float)alpha, dml__vector_here(h, x), (float)beta, dml__vector_here(h, y));
}

static double dml__evaluate_here(void *user, int x, int gradient)
{
    const dml__lbfgs_here *h = (const dml__lbfgs_here *)user;
    return h->function(h->user, dml__vector_here(h, x), dml__vector_here(h, gradient));
}

DML_API dml_status dml_lbfgs_minimize(size_t n, float *x, dml_function function, void *user,
                                      const dml_lbfgs_options *options, dml_lbfgs_result *result)
{
    dml_lbfgs_options o;
    dml_lbfgs_result ignored;
    dml__lbfgs_here here;
    dml__lbfgs_space space;
    dml__memory memory;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    if (!result) result = &ignored;
    memset(result, 0, sizeof *result);
    if (!x || !function || n == 0 || !dml__lbfgs_complete(&o)) return DML_ERROR_ARGUMENT;
    here.n = n;
    here.pool = o.pool;
    here.function = function;
    here.user = user;
    here.x = x;
    dml__memory_init(&memory, &o.allocator, NULL, 0);
    here.vectors = (float *)dml__allocate_array(&memory, n, (size_t)(2 * o.history + 4) * sizeof(float));
    if (!here.vectors) return DML_ERROR_MEMORY;
    space.user = &here;
    space.dot = dml__dot_here;
    space.largest = dml__largest_here;
    space.axpby = dml__axpby_here;
    space.evaluate = dml__evaluate_here;
    const dml_status status = dml__lbfgs_minimise(&space, &o, result);
    dml__release(&memory, here.vectors);
    return status;
}

#endif
