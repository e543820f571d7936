/* optimizer.h: how parameters follow their gradients. */
#ifndef DML_TRAIN_OPTIMIZER_H
#define DML_TRAIN_OPTIMIZER_H

#include "base/platform.h"
#include "base/status.h"
#include "thread/pool.h"

typedef enum dml_optimizer_kind {
    DML_SGD,
    DML_ADAM,
    DML_ADAMW,
    DML_RMSPROP,
    DML_ADAGRAD,
    DML_LARS,
    DML_LAMB
} dml_optimizer_kind;

/* For numbers of which 0 stands for a default, here and in other options: so small that it counts as 0, as
   with Adam's beta1 = DML_ZERO. */
#define DML_ZERO 1e-30f

/* An optimizer is its kind and its numbers; its state vectors live in the trainer. Fields that a kind doesn't
   name are ignored; those that have a default take it where they are 0. The formulas are in
   kernels/update.h. */
typedef struct dml_optimizer {
    dml_optimizer_kind kind;
    float lr;           /* learning rate; 0: 0.01, adam, adamw and lamb 0.001 */
    float momentum;     /* sgd, rmsprop, lars: 0 or more, below 1 */
    float weight_decay; /* added to the gradient, times the parameter; adamw: of the parameter itself, times
                           the learning rate; lamb: added to the step */
    bool nesterov;      /* sgd: look ahead along the velocity */
    float beta1, beta2; /* adam, adamw, lamb: what the means of gradients and of their squares keep; 0: 0.9,
                           0.999 */
    float alpha;        /* rmsprop: what the mean of squares keeps; 0: 0.99 */
    float epsilon;      /* all but sgd: beside what is divided by; 0: 1e-8, adagrad 1e-10, lamb 1e-6 */
    float trust;        /* lars: its coefficient; 0: 0.001 */
} dml_optimizer;

/* Stochastic gradient descent; momentum 0 keeps no velocity. An lr of 0 is the default, in all of these. */
DML_API dml_optimizer dml_sgd(float lr, float momentum);

/* Adam, with bias correction. Source: Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015.
   AdamW is Adam whose weight decay is apart from the gradient. Source: Loshchilov, Hutter, "Decoupled weight
   decay regularization", ICLR 2019. */
DML_API dml_optimizer dml_adam(float lr);
DML_API dml_optimizer dml_adamw(float lr, float weight_decay);

/* Source: Hinton, "Neural networks for machine learning", lecture 6e, 2012. Not centered. */
DML_API dml_optimizer dml_rmsprop(float lr);

/* Source: Duchi, Hazan, Singer, "Adaptive subgradient methods", JMLR 12, 2011. */
DML_API dml_optimizer dml_adagrad(float lr);

/* For large batches, with a factor for each parameter as a whole (a weight, a bias) from the norms of the
   parameter and of its gradient or step: 1 where a norm is 0, and for parameters whose decay scale is 0
   (train/parameter_group.h), as is usual for biases and norms. A range that such an optimizer updates has to
   be of whole parameters, and what g holds is used up. Sources: You, Gitman, Ginsburg, "Large batch training
   of convolutional networks", 2017, with the learning rate outside of the velocity; You et al., "Large batch
   optimization for deep learning", ICLR 2020. */
DML_API dml_optimizer dml_lars(float lr, float momentum);
DML_API dml_optimizer dml_lamb(float lr, float weight_decay);

/* The numbers of an optimizer one by one, for whoever sends or stores them: the address of the i-th, and its
   field's name if `name` isn't NULL; NULL past the last. Its kind and whether it is nesterov are apart. */
DML_API float *dml_optimizer_number(dml_optimizer *optimizer, int i, const char **name);

/* One update without a trainer: n elements of w, after `step` earlier ones. `state` holds as many vectors of
   n as dml_optimizer_states says, zeros at first. Each element depends on its own place alone, so any range
   may be updated by itself, with the same bits. A learning rate of 0 is one here. DML_ERROR_ARGUMENT, with
   nothing done, for numbers that a trainer would refuse, for arrays that are NULL, and for lars and lamb,
   which need a trainer. */
DML_API int dml_optimizer_states(const dml_optimizer *optimizer);
DML_API dml_status dml_optimizer_update(const dml_optimizer *optimizer, dml_pool *pool, uint64_t step,
                                        size_t n, float *w, const float *g, float *const *state);

#endif
