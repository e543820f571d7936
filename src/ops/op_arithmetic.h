/* op_arithmetic.h: arithmetic, comparisons and choices, element by element, and changes of shape.

   Shapes are broadcast: counted from the last, dimensions must be the same or 1; a dimension of 1, or one
   that is missing, is repeated, and so is an operand without a batch (a parameter) for each sample. The
   gradient of what was repeated is the sum over its repetitions. DML_ERROR_SHAPE when dimensions differ. */
#ifndef DML_OPS_OP_ARITHMETIC_H
#define DML_OPS_OP_ARITHMETIC_H

#include "graph/graph.h"

DML_API dml_node *dml_add(dml_node *a, dml_node *b); /* a + b; also of losses */
DML_API dml_node *dml_sub(dml_node *a, dml_node *b); /* a - b */
DML_API dml_node *dml_mul(dml_node *a, dml_node *b); /* a b, element by element */
DML_API dml_node *dml_div(dml_node *a, dml_node *b); /* a / b */

/* The larger, the smaller; NaN if either is. Of equals, each gets half of the gradient. */
DML_API dml_node *dml_maximum(dml_node *a, dml_node *b);
DML_API dml_node *dml_minimum(dml_node *a, dml_node *b);

/* 1 where it is so, else 0; no gradient flows through them. */
DML_API dml_node *dml_equal(dml_node *a, dml_node *b);
DML_API dml_node *dml_not_equal(dml_node *a, dml_node *b);
DML_API dml_node *dml_less(dml_node *a, dml_node *b);       /* a < b */
DML_API dml_node *dml_less_equal(dml_node *a, dml_node *b); /* a <= b */

/* Where the condition is not 0 an element of a, else of b. What isn't chosen gets a gradient of 0, and 0
   times a NaN or an infinity is a NaN: of numbers that are missing the raw ones are replaced, before anything
   is made of them. */
DML_API dml_node *dml_where(dml_node *condition, dml_node *a, dml_node *b);

/* (d0, d1, ...) as (d0 d1 ...): no data moves. */
DML_API dml_node *dml_flatten(dml_node *x);

#endif
