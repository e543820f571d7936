/* op_formula.h: the ops of the functions in kernels/formulas.h. */
#ifndef DML_OPS_OP_FORMULA_H
#define DML_OPS_OP_FORMULA_H

#include "graph/op.h"
#include "kernels/formulas.h"

/* The attributes: the formula's P and Q. */
typedef struct dml__formula_numbers {
    float p, q;
} dml__formula_numbers;

DML__LOCAL dml_node *dml__formula_node(int formula, dml_node *a, dml_node *b, dml_node *c, float p, float q);

/* NULL for a formula that isn't there. */
DML__LOCAL const dml__op *dml__formula_op(int formula);

#endif
