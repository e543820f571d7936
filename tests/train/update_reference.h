/* update_reference.h: the optimizers' rules in float64, as PyTorch's documentation writes them down. */
#ifndef DML_TESTS_TRAIN_UPDATE_REFERENCE_H
#define DML_TESTS_TRAIN_UPDATE_REFERENCE_H

#include "train/optimizer.h"
#include "train/optimizer_internal.h"

#include "../test.h"

/* Each rule with and without what it can do. All numbers are given: none is a default. */
static const dml_optimizer update_variants[] = {
    { .kind = DML_SGD, .lr = 0.1f },
    { .kind = DML_SGD, .lr = 0.1f, .weight_decay = 0.05f },
    { .kind = DML_SGD, .lr = 0.05f, .momentum = 0.9f },
    { .kind = DML_SGD, .lr = 0.05f, .momentum = 0.9f, .weight_decay = 0.01f },
    { .kind = DML_SGD, .lr = 0.05f, .momentum = 0.9f, .nesterov = true },
    { .kind = DML_SGD, .lr = 0.05f, .momentum = 0.5f, .weight_decay = 0.1f, .nesterov = true },
    { .kind = DML_ADAM, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f },
    { .kind = DML_ADAM, .lr = 0.1f, .weight_decay = 0.2f, .beta1 = 0.5f, .beta2 = 0.9f, .epsilon = 0.1f },
    { .kind = DML_ADAMW, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f },
    { .kind = DML_ADAMW, .lr = 0.1f, .weight_decay = 0.3f, .beta1 = 0.8f, .beta2 = 0.95f, .epsilon = 1e-3f },
    { .kind = DML_RMSPROP, .lr = 0.01f, .alpha = 0.99f, .epsilon = 1e-8f },
    { .kind = DML_RMSPROP,
      .lr = 0.01f,
      .momentum = 0.9f,
      .weight_decay = 0.1f,
      .alpha = 0.9f,
      .epsilon = 0.01f },
    { .kind = DML_ADAGRAD, .lr = 0.1f, .epsilon = 1e-10f },
    { .kind = DML_ADAGRAD, .lr = 0.1f, .weight_decay = 0.1f, .epsilon = 0.01f },
};
enum { UPDATE_VARIANTS = sizeof update_variants / sizeof update_variants[0] };

/* Update t, from 1 on. State vectors that the rule doesn't keep hold anything. */
TEST__UNUSED static void reference_update(const dml_optimizer *o, double t, size_t n, double *w, double *s0,
                                          double *s1, const float *g)
{
    const double lr = (double)o->lr, decay = (double)o->weight_decay, momentum = (double)o->momentum;
    const double beta1 = (double)o->beta1, beta2 = (double)o->beta2, alpha = (double)o->alpha;
    const double epsilon = (double)o->epsilon;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)g[i] + (o->kind == DML_ADAMW ? 0 : decay * w[i]);
        switch (o->kind) {
        case DML_SGD:
            s0[i] = momentum == 0 ? d : momentum * s0[i] + d;
            w[i] -= lr * (o->nesterov ? d + momentum * s0[i] : s0[i]);
            break;
        case DML_ADAMW: w[i] -= lr * decay * w[i]; /* fall through */
        case DML_ADAM:
            s0[i] = beta1 * s0[i] + (1 - beta1) * d;
            s1[i] = beta2 * s1[i] + (1 - beta2) * d * d;
            w[i] -= lr * (s0[i] / (1 - pow(beta1, t))) / (sqrt(s1[i] / (1 - pow(beta2, t))) + epsilon);
            break;
        case DML_RMSPROP:
            s0[i] = alpha * s0[i] + (1 - alpha) * d * d;
            s1[i] = (momentum == 0 ? 0 : momentum * s1[i]) + d / (sqrt(s0[i]) + epsilon);
            w[i] -= lr * s1[i];
            break;
        case DML_ADAGRAD:
            s0[i] += d * d;
            w[i] -= lr * d / (sqrt(s0[i]) + epsilon);
            break;
        default: break;
        }
    }
}

#endif
