/* optimizer.h: how parameters follow their gradients. */
#ifndef DML_TRAIN_OPTIMIZER_H
#define DML_TRAIN_OPTIMIZER_H

#include "base/platform.h"

typedef enum dml_optimizer_kind { DML_SGD } dml_optimizer_kind;

/* An optimizer is its kind and its numbers; its state vectors live in the trainer. Fields that a kind doesn't
   name are ignored. */
typedef struct dml_optimizer {
    dml_optimizer_kind kind;
    float lr;           /* learning rate; 0: 0.01 */
    float momentum;     /* sgd: 0 or more, below 1 */
    float weight_decay; /* sgd: added to the gradient, times the parameter */
    bool nesterov;      /* sgd: look ahead along the velocity */
} dml_optimizer;

/* Stochastic gradient descent; momentum 0 keeps no velocity. The update is that of dml_sgd_update. */
DML_API dml_optimizer dml_sgd(float lr, float momentum);

#endif
