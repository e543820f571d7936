/* dtype.h: the element types of tensors, files and messages. */
#ifndef DML_BASE_DTYPE_H
#define DML_BASE_DTYPE_H

#include "base/platform.h"

/* X(NAME, "name", bytes). The numbers are written to files and wires: append, never reorder. */
#define DML__DTYPE_LIST(X)                                                                                   \
    X(F32, "f32", 4)                                                                                         \
    X(F64, "f64", 8)                                                                                         \
    X(I32, "i32", 4)                                                                                         \
    X(I64, "i64", 8)                                                                                         \
    X(U8, "u8", 1)                                                                                           \
    X(BF16, "bf16", 2)                                                                                       \
    X(F16, "f16", 2)                                                                                         \
    X(I8, "i8", 1)

typedef enum dml_dtype {
#define DML__DTYPE_ENUM(NAME, name, bytes) DML_##NAME,
    DML__DTYPE_LIST(DML__DTYPE_ENUM)
#undef DML__DTYPE_ENUM
        DML__DTYPE_COUNT
} dml_dtype;

/* Bytes of one element; 0 for a number that is no dtype. */
DML_API size_t dml_dtype_size(dml_dtype dtype);

/* "f32", ...; "?" for a number that is no dtype. */
DML_API const char *dml_dtype_name(dml_dtype dtype);

#endif
