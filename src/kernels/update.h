/* update.h: optimizer steps as one fused pass over a range of the flat vectors. */
#ifndef DML_KERNELS_UPDATE_H
#define DML_KERNELS_UPDATE_H

#include "thread/pool.h"

/* The rules, per element, as PyTorch documents them; t counts updates from 1. In all but AdamW the gradient
   is d = g + weight_decay w.

   SGD       v = momentum v + d;  w -= lr (nesterov ? d + momentum v : v)
   Adam      m = beta1 m + (1 - beta1) d;  v = beta2 v + (1 - beta2) d^2
             w -= lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)
   AdamW     w *= 1 - lr weight_decay;  then Adam's with d = g
   RMSProp   v = alpha v + (1 - alpha) d^2;  b = momentum b + d / (sqrt(v) + epsilon);  w -= lr b
   Adagrad   v += d^2;  w -= lr d / (sqrt(v) + epsilon)

   LARS      v = momentum v + f d, f = trust |w| / (|g| + weight_decay |w| + epsilon);  w -= lr v
   LAMB      m and v as Adam's, of g;  r = Adam's step with lr 1, + weight_decay w;  w -= lr |w| / |r| r

   with the Euclidean norms of a parameter as a whole. On x86 numbers below 1.2e-38 count as 0: a state that
   fades away would else make every later update fifty times as slow. dml_optimizer_update (train/optimizer.h)
   does one of the others on any arrays. */

/* SGD, over n elements. v may be NULL when momentum is 0. Source: Sutskever et al., "On the importance of
   initialization and momentum in deep learning", ICML 2013, section 2, in the form without dampening that
   PyTorch's SGD documents. */
DML_API void dml_sgd_update(dml_pool *pool, size_t n, float *w, const float *g, float *v, float lr,
                            float momentum, float weight_decay, bool nesterov);

/* x cut to -most .. most; a NaN stays one. */
DML_API void dml_clip_values(dml_pool *pool, size_t n, float most, float *x);

#endif
