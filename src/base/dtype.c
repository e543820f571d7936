#ifndef DML_BASE_DTYPE_C
#define DML_BASE_DTYPE_C

#include "base/dtype.h"

DML_API size_t dml_dtype_size(dml_dtype dtype)
{
    static const size_t size[] = {
#define DML__DTYPE_SIZE(NAME, name, bytes) bytes,
        DML__DTYPE_LIST(DML__DTYPE_SIZE)
#undef DML__DTYPE_SIZE
    };
    return (unsigned)dtype < DML__DTYPE_COUNT ? size[dtype] : 0;
}

DML_API const char *dml_dtype_name(dml_dtype dtype)
{
    static const char *const names[] = {
#define DML__DTYPE_NAME(NAME, name, bytes) name,
        DML__DTYPE_LIST(DML__DTYPE_NAME)
#undef DML__DTYPE_NAME
    };
    return (unsigned)dtype < DML__DTYPE_COUNT ? names[dtype] : "?";
}

#endif
