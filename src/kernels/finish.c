#ifndef DML_KERNELS_FINISH_C
#define DML_KERNELS_FINISH_C

#include "kernels/finish.h"

DML__BODY void dml__finish_some_body(size_t count, const dml__finish *finish, const float *x,
                                     const float *bias, float *line)
{
    dml__vf value, other = { 0 }; /* or gcc warns of it */
    dml__load_some(&value, x, count);
    for (int t = 1; t < finish->terms; t++) {
        dml__load_some(&other, x + t * finish->step, count);
        value = value + other;
    }
    value = value * finish->alpha;
    if (finish->beta != 0) {
        dml__load_some(&other, line, count);
        value = value + other * finish->beta;
    }
    if (bias) {
        dml__load_some(&other, bias, count);
        value = value + other;
    }
    if (finish->relu) value = (dml__vf)((dml__vi)value & ~(value <= 0.0f)); /* keeps a NaN */
    dml__store_some(line, &value, count);
}

DML__BODY void dml__finish_whole_body(size_t n, const dml__finish *finish, const float *x, float *line)
{
    size_t i = 0;
    if (finish->terms == 1 && finish->beta == 0 && !finish->bias && !finish->relu) {
        DML__BY_FOUR
        for (; i + DML__LANES <= n; i += DML__LANES) DML__STORE(line + i, DML__LOAD(x + i) * finish->alpha);
    }
    for (; i + DML__LANES <= n; i += DML__LANES)
        dml__finish_some_body(DML__LANES, finish, x + i, finish->bias ? finish->bias + i : NULL, line + i);
    if (i < n) dml__finish_some_body(n - i, finish, x + i, finish->bias ? finish->bias + i : NULL, line + i);
}
DML__PER_ISA(dml__finish_whole, (size_t n, const dml__finish *finish, const float *x, float *line),
             (n, finish, x, line))

DML__LOCAL void dml__finish_line(dml_isa isa, size_t n, const dml__finish *finish, const float *x,
                                 float *line)
{
    dml__finish_whole(isa, n, finish, x, line);
}

#endif
