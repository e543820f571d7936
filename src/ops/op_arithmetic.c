#ifndef DML_OPS_OP_ARITHMETIC_C
#define DML_OPS_OP_ARITHMETIC_C

#include "ops/op_arithmetic.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/op_formula.h"
#include "ops/table.h"

#define DML__ARITHMETIC(name)                                                                                \
    DML_API dml_node *dml_##name(dml_node *a, dml_node *b)                                                   \
    {                                                                                                        \
        return dml__formula_node(DML__FORMULA_##name, a, b, NULL, 0, 0);                                     \
    }

DML__ARITHMETIC(add)
DML__ARITHMETIC(sub)
DML__ARITHMETIC(mul)
DML__ARITHMETIC(div)
DML__ARITHMETIC(maximum)
DML__ARITHMETIC(minimum)
DML__ARITHMETIC(equal)
DML__ARITHMETIC(not_equal)
DML__ARITHMETIC(less)
DML__ARITHMETIC(less_equal)

#undef DML__ARITHMETIC

DML_API dml_node *dml_where(dml_node *condition, dml_node *a, dml_node *b)
{
    return dml__formula_node(DML__FORMULA_where, condition, a, b, 0, 0);
}

static dml_status dml__flatten_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    node->dtype = x->dtype;
    node->batched = x->batched;
    node->shape.ndim = 1;
    node->shape.dims[0] = (int)dml_shape_count(&x->shape);
    return DML_OK;
}

DML__LOCAL const dml__op *dml__flatten_op(void)
{
    static const dml__op op = { "flatten", dml__flatten_infer, NULL, NULL, 0, NULL, true, false,
                                NULL,      dml__no_flops,      NULL };
    return &op;
}

DML_API dml_node *dml_flatten(dml_node *x)
{
    return dml__node_create(dml__flatten_op(), 1, &x, NULL, 0);
}

#endif
