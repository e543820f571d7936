/* lbfgs.h: a smooth function of a flat vector, minimised by itself. */
#ifndef DML_TRAIN_LBFGS_H
#define DML_TRAIN_LBFGS_H

#include "base/allocator.h"
#include "base/platform.h"
#include "base/status.h"
#include "thread/pool.h"

/* Returns the function's value at x and writes its gradient, both of n elements. A value that is no number
   says that x is outside of where the function is defined. */
typedef double (*dml_function)(void *user, const float *x, float *gradient);

typedef struct dml_lbfgs_options {
    int history;             /* pairs of steps that the curvature is learnt from; 0: 10 */
    int iterations;          /* at most; 0: 100 */
    float tolerance;         /* done when no element of the gradient is larger; 0: 1e-5 */
    dml_pool *pool;          /* for the vectors; NULL: the caller alone */
    dml_allocator allocator; /* zero: malloc and free; it takes 2 history + 4 vectors */
} dml_lbfgs_options;

typedef enum dml_lbfgs_end {
    DML_LBFGS_CONVERGED, /* the gradient is within the tolerance */
    DML_LBFGS_STALLED, /* no smaller value was found along the last direction: often, all that floats hold */
    DML_LBFGS_INTERRUPTED /* there were as many iterations as allowed */
} dml_lbfgs_end;

typedef struct dml_lbfgs_result {
    dml_lbfgs_end end;
    double value;   /* at x */
    float gradient; /* its largest element, without the sign */
    int iterations, evaluations;
} dml_lbfgs_result;

/* Minimises from x on, which becomes the best point found; `options` and `result` may be NULL. Each iteration
   goes along the two-loop recursion's direction to where the strong Wolfe conditions hold (of decrease 1e-4,
   of curvature 0.9). The same bits for any number of threads. DML_ERROR_ARGUMENT when an option is out of
   range or the value at the first x isn't finite, DML_ERROR_MEMORY. Source: Nocedal, Wright, "Numerical
   optimization", 2nd edition, algorithms 7.4, 7.5, 3.5 and 3.6. */
DML_API dml_status dml_lbfgs_minimize(size_t n, float *x, dml_function function, void *user,
                                      const dml_lbfgs_options *options, dml_lbfgs_result *result);

#endif
