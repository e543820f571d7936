/* elementwise.h: one output element from one element of each input, on raw arrays. */
#ifndef DML_KERNELS_ELEMENTWISE_H
#define DML_KERNELS_ELEMENTWISE_H

#include "thread/pool.h"

/* All arrays have n elements. An output may be the same array as an input, else they must not overlap. With
   beta = 0 the output is not read. Bitwise the same for any number of threads. */

DML_API void dml_fill(dml_pool *pool, size_t n, float value, float *y);  /* y = value */
DML_API void dml_scale(dml_pool *pool, size_t n, float alpha, float *y); /* y *= alpha */
DML_API void dml_axpby(dml_pool *pool, size_t n, float alpha, const float *x, float beta,
                       float *y); /* y = alpha x + beta y */
DML_API void dml_add_forward(dml_pool *pool, size_t n, const float *a, const float *b,
                             float *y); /* y = a + b */
DML_API void dml_add_relu_forward(dml_pool *pool, size_t n, const float *a, const float *b,
                                  float *y); /* y = max(a + b, 0) */

/* y = max(x, 0); dx = (y > 0 ? dy : 0) + beta dx */
DML_API void dml_relu_forward(dml_pool *pool, size_t n, const float *x, float *y);
DML_API void dml_relu_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                               float *dx);

/* y = e^x to within 1.25 units in the last place of the exact result, y = log(x) within 1, y = erf(x) within
   2, for every float: log(0) is -inf, log of what is below NaN, denormal results are kept. */
DML_API void dml_exp_forward(dml_pool *pool, size_t n, const float *x, float *y);
DML_API void dml_log_forward(dml_pool *pool, size_t n, const float *x, float *y);
DML_API void dml_erf_forward(dml_pool *pool, size_t n, const float *x, float *y);

/* y = tanh(x) to within 2 units in the last place; dx = (1 - y^2) dy + beta dx */
DML_API void dml_tanh_forward(dml_pool *pool, size_t n, const float *x, float *y);
DML_API void dml_tanh_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                               float *dx);

/* y = 1 / (1 + exp(-x)) to within 2.5 units in the last place; dx = y (1 - y) dy + beta dx */
DML_API void dml_sigmoid_forward(dml_pool *pool, size_t n, const float *x, float *y);
DML_API void dml_sigmoid_backward(dml_pool *pool, size_t n, const float *y, const float *dy, float beta,
                                  float *dx);

/* y[r][c] += bias[c], y (rows, columns) */
DML_API void dml_bias_add(dml_pool *pool, size_t rows, size_t columns, const float *bias, float *y);

#endif
