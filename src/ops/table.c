#ifndef DML_OPS_TABLE_C
#define DML_OPS_TABLE_C

#include "ops/table.h"

#include "ops/op_formula.h"
#include "ops/op_loss_internal.h"

DML__LOCAL const dml__op *dml__op_at(int i)
{
    static const dml__op *(*const table[])(void) = {
#define DML__OP_ROW(name) dml__##name##_op,
        DML__OP_LIST(DML__OP_ROW)
#undef DML__OP_ROW
    };
    const int count = (int)(sizeof table / sizeof table[0]);
    if (i >= 0 && i < count) return table[i]();
    return i < count + DML__FORMULA_OPS ? dml__formula_op(i - count)
                                        : dml__loss_op(i - count - DML__FORMULA_OPS);
}

#endif
