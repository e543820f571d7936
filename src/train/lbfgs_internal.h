/* lbfgs_internal.h: L-BFGS on vectors that may lie anywhere. */
#ifndef DML_TRAIN_LBFGS_INTERNAL_H
#define DML_TRAIN_LBFGS_INTERNAL_H

#include "base/platform.h"
#include "train/lbfgs.h"

#define DML__LBFGS_MOST_HISTORY 100

/* The vectors' numbers. Pair p of the history is vectors DML__LBFGS_PAIRS + 2 p and the next: a step of x,
   and the gradient's turn along it. */
enum {
    DML__LBFGS_X,
    DML__LBFGS_GRADIENT,
    DML__LBFGS_DIRECTION,
    DML__LBFGS_TRIAL,
    DML__LBFGS_TRIAL_GRADIENT,
    DML__LBFGS_PAIRS
};

/* What is done with vectors, by their numbers. Where something fails, numbers are NaN from then on, which
   ends the algorithm soon. */
typedef struct dml__lbfgs_space {
    void *user;
    double (*dot)(void *user, int x, int y);
    double (*largest)(void *user, int x);                               /* of |x[i]|; NaN if there is one */
    void (*axpby)(void *user, double alpha, int x, double beta, int y); /* y = alpha x + beta y; x may be y */
    double (*evaluate)(void *user, int x, int gradient);                /* the function's value */
} dml__lbfgs_space;

/* Fills in defaults; false for an option that is out of range. */
DML__LOCAL bool dml__lbfgs_complete(dml_lbfgs_options *options);

/* dml_lbfgs_minimize there, with complete options. */
DML__LOCAL dml_status dml__lbfgs_minimise(const dml__lbfgs_space *space, const dml_lbfgs_options *options,
                                          dml_lbfgs_result *result);

#endif
