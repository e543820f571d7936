/* op_activation.h: functions of one element. The result has the input's shape. */
#ifndef DML_OPS_OP_ACTIVATION_H
#define DML_OPS_OP_ACTIVATION_H

#include "graph/graph.h"

DML_API dml_node *dml_relu(dml_node *x);                    /* max(x, 0) */
DML_API dml_node *dml_leaky_relu(dml_node *x, float slope); /* x above 0, else slope x */
DML_API dml_node *dml_elu(dml_node *x, float alpha);        /* x above 0, else alpha (e^x - 1) */
DML_API dml_node *dml_gelu(dml_node *x);                    /* x (1 + erf(x / sqrt(2))) / 2 */
DML_API dml_node *dml_silu(dml_node *x);                    /* x sigmoid(x), swish */
DML_API dml_node *dml_sigmoid(dml_node *x);                 /* 1 / (1 + exp(-x)) */
DML_API dml_node *dml_tanh(dml_node *x);                    /* tanh(x) */
DML_API dml_node *dml_softplus(dml_node *x);                /* log(1 + e^x) */

/* The gelu by which GPT-2 and BERT were trained:
   x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks, Gimpel, "Gaussian error linear units", 2016,
   section 2). */
DML_API dml_node *dml_gelu_tanh(dml_node *x);

DML_API dml_node *dml_exp(dml_node *x);
DML_API dml_node *dml_log(dml_node *x);  /* -infinity for 0, NaN below */
DML_API dml_node *dml_sqrt(dml_node *x); /* NaN below 0 */
DML_API dml_node *dml_sin(dml_node *x);  /* of radians, as many as there are */
DML_API dml_node *dml_cos(dml_node *x);
DML_API dml_node *dml_abs(dml_node *x); /* gradient 0 at 0 */
DML_API dml_node *dml_square(dml_node *x);
DML_API dml_node *dml_pow(dml_node *x, float exponent); /* NaN below 0, unless the exponent is whole */

/* x, but at least `low` and at most `high`, which may be infinite; gradient 0 outside. DML_ERROR_ARGUMENT
   where low is above high. */
DML_API dml_node *dml_clamp(dml_node *x, float low, float high);

DML_API dml_node *dml_affine(dml_node *x, float scale, float shift); /* scale x + shift */

#endif
