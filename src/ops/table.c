#ifndef DML_OPS_TABLE_C
#define DML_OPS_TABLE_C

#include "ops/table.h"

DML__LOCAL const dml__op *dml__op_at(int i)
{
    static const dml__op *(*const table[])(void) = {
#define DML__OP_ROW(name) dml__##name##_op,
        DML__OP_LIST(DML__OP_ROW)
#undef DML__OP_ROW
    };
    return i >= 0 && i < (int)(sizeof table / sizeof table[0]) ? table[i]() : NULL;
}

#endif
