#ifndef DML_OPS_TABLE_C
#define DML_OPS_TABLE_C

#include "ops/table.h"

#include "ops/op_formula.h"

DML__LOCAL const dml__op *dml__op_at(int i)
{
    static const dml__op *(*const table[])(void) = {
#define DML__OP_ROW(name) dml__##name##_op,
        DML__OP_LIST(DML__OP_ROW)
#undef DML__OP_ROW
    };
    const int count = (int)(sizeof table / sizeof table[0]);
    return i >= 0 && i < count ? table[i]() : dml__formula_op(i - count);
}

#endif
