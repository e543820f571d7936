/* finish.h: how a line of a product's result is made from sums that were formed on the side. */
#ifndef DML_KERNELS_FINISH_H
#define DML_KERNELS_FINISH_H

#include "kernels/vector.h"

/* line = alpha (x[0] + x[step] + ...) + beta line + bias, `terms` of them added in order, and then relu */
typedef struct dml__finish {
    int terms;
    ptrdiff_t step;
    float alpha, beta;
    const float *bias; /* (n), or NULL */
    bool relu;
} dml__finish;

DML__LOCAL void dml__finish_line(dml_isa isa, size_t n, const dml__finish *finish, const float *x,
                                 float *line);

#endif
