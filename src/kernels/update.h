/* update.h: optimizer steps as one fused pass over a range of the flat vectors. */
#ifndef DML_KERNELS_UPDATE_H
#define DML_KERNELS_UPDATE_H

#include "thread/pool.h"

/* Stochastic gradient descent with momentum, over n elements:
       d = g + weight_decay w;  v = momentum v + d;  w -= lr (nesterov ? d + momentum v : v)
   v may be NULL when momentum is 0. Source: Sutskever et al., "On the importance of initialization and
   momentum in deep learning", ICML 2013, section 2, in the form without dampening that PyTorch's SGD
   documents. */
DML_API void dml_sgd_update(dml_pool *pool, size_t n, float *w, const float *g, float *v, float lr,
                            float momentum, float weight_decay, bool nesterov);

#endif
