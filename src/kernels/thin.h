/* thin.h: products with a few rows or columns, which are bound by reading the larger factor: nothing is
   packed. */
#ifndef DML_KERNELS_THIN_H
#define DML_KERNELS_THIN_H

#include "kernels/product.h"

typedef enum dml__thin_form {
    DML__NOT_THIN,
    DML__THIN_DOTS,  /* both factors have their k's side by side: C's elements are dot products */
    DML__THIN_LINES, /* few rows of A, and B has its columns side by side: C's rows are sums of B's lines */
    DML__THIN_OUTER  /* one k: C's rows are multiples of B's only line */
} dml__thin_form;

/* Which form a product has on an instruction set; otherwise it depends on the sizes, of which none is 0, and
   on how the factors lie alone. Of bf16 it is the same on all. */
DML__LOCAL dml__thin_form dml__thin_kind(const dml__product *product, dml_isa isa);

/* Computes a product that has one of the forms. */
DML__LOCAL void dml__multiply_thin(dml_pool *pool, const dml__product *product);

#endif
