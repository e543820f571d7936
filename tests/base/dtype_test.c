#include "base/dtype.h"

#include "../test.h"

static void sizes_and_names(void)
{
    CHECK_INT(dml_dtype_size(DML_F32), sizeof(float));
    CHECK_INT(dml_dtype_size(DML_F64), sizeof(double));
    CHECK_INT(dml_dtype_size(DML_I32), 4);
    CHECK_INT(dml_dtype_size(DML_I64), 8);
    CHECK_INT(dml_dtype_size(DML_U8), 1);
    CHECK_INT(dml_dtype_size(DML_BF16), 2);
    CHECK_INT(dml_dtype_size(DML_F16), 2);
    CHECK_INT(dml_dtype_size(DML_I8), 1);
    CHECK_STRING(dml_dtype_name(DML_F32), "f32");
    CHECK_STRING(dml_dtype_name(DML_U8), "u8");
    CHECK_STRING(dml_dtype_name(DML_BF16), "bf16");
    CHECK_STRING(dml_dtype_name(DML_F16), "f16");
    CHECK_STRING(dml_dtype_name(DML_I8), "i8");
}

/* They are in files and on wires. */
static void the_numbers_never_change(void)
{
    CHECK_INT(DML_F32, 0);
    CHECK_INT(DML_F64, 1);
    CHECK_INT(DML_I32, 2);
    CHECK_INT(DML_I64, 3);
    CHECK_INT(DML_U8, 4);
    CHECK_INT(DML_BF16, 5);
    CHECK_INT(DML_F16, 6);
    CHECK_INT(DML_I8, 7);
}

static void a_number_that_is_no_dtype(void)
{
    CHECK_INT(dml_dtype_size(DML__DTYPE_COUNT), 0);
    CHECK_INT(dml_dtype_size((dml_dtype)7777), 0);
    CHECK_STRING(dml_dtype_name(DML__DTYPE_COUNT), "?");
}

int main(void)
{
    RUN(sizes_and_names);
    RUN(the_numbers_never_change);
    RUN(a_number_that_is_no_dtype);
    return test_report("base/dtype");
}
