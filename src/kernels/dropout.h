/* dropout.h: leaving elements out at random, on raw arrays.
   Source: Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov, "Dropout", JMLR 2014. */
#ifndef DML_KERNELS_DROPOUT_H
#define DML_KERNELS_DROPOUT_H

#include "base/philox.h"
#include "thread/pool.h"

/* y = what is kept of x, divided by 1 - p, else 0, + beta y. Element i is left out where
   dml_random_bits(random, first + i) is below p 2^32, rounded down, 0 <= p < 1: with probability p, the same
   ones in each call; `first` is a multiple of 4. y may be x; with beta = 0 it is not read. The gradient is
   the same function of dy. */
DML_API void dml_dropout_apply(dml_pool *pool, size_t n, const dml_random *random, uint64_t first, float p,
                               const float *x, float beta, float *y);

/* The bits below which an element is left out. */
DML_API uint32_t dml_dropout_threshold(float p);

#endif
