/* op_sample_norm_internal.h: the attributes of layer, RMS and group norm, for the tests' references. */
#ifndef DML_OPS_OP_SAMPLE_NORM_INTERNAL_H
#define DML_OPS_OP_SAMPLE_NORM_INTERNAL_H

#include "base/platform.h"

typedef struct dml__sample_norm {
    float epsilon;
    bool by_square; /* RMS norm */
    int groups;     /* of group norm; 0: each C numbers alone */
} dml__sample_norm;

#endif
