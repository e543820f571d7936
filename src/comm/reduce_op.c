#ifndef DML_COMM_REDUCE_OP_C
#define DML_COMM_REDUCE_OP_C

#include "comm/comm_internal.h"

/* Integers are added and multiplied as unsigned ones, which wrap around. */
#define DML__WRAPPED(type, unsigned_type, a, operator, b)                                                    \
    ((type)((unsigned_type)(a) operator(unsigned_type)(b)))

/* b != b: a NaN, which wins. */
#define DML__LESSER(a, b) ((b) < (a) || (b) != (b) ? (b) : (a))
#define DML__GREATER(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))

/* into[i] = expression of a = into[i] and b = from[i]. The inner loop has a fixed length since that is what
   gcc's -O2 turns into vector instructions. */
#define DML__REDUCE_LOOP(type, expression)                                                                   \
    do {                                                                                                     \
        size_t i = 0;                                                                                        \
        for (; i + 16 <= count; i += 16)                                                                     \
            for (size_t j = i; j < i + 16; j++) {                                                            \
                const type a = into[j], b = from[j];                                                         \
                into[j] = expression;                                                                        \
            }                                                                                                \
        for (; i < count; i++) {                                                                             \
            const type a = into[i], b = from[i];                                                             \
            into[i] = expression;                                                                            \
        }                                                                                                    \
    } while (0)

#define DML__REDUCE_TYPE(suffix, type, sum, product)                                                         \
    static void dml__reduce_##suffix(type *DML__RESTRICT into, const type *DML__RESTRICT from, size_t count, \
                                     dml_reduce_op op)                                                       \
    {                                                                                                        \
        switch (op) {                                                                                        \
        case DML_SUM:                                                                                        \
        case DML_MEAN: DML__REDUCE_LOOP(type, sum); break;                                                   \
        case DML_PROD: DML__REDUCE_LOOP(type, product); break;                                               \
        case DML_MIN: DML__REDUCE_LOOP(type, DML__LESSER(a, b)); break;                                      \
        case DML_MAX: DML__REDUCE_LOOP(type, DML__GREATER(a, b)); break;                                     \
        default: break;                                                                                      \
        }                                                                                                    \
    }                                                                                                        \
    static void dml__mean_##suffix(type *data, size_t count, type ranks)                                     \
    {                                                                                                        \
        for (size_t i = 0; i < count; i++) data[i] = (type)(data[i] / ranks);                                \
    }

DML__REDUCE_TYPE(f32, float, a + b, a *b)
DML__REDUCE_TYPE(f64, double, a + b, a *b)
DML__REDUCE_TYPE(i32, int32_t, DML__WRAPPED(int32_t, uint32_t, a, +, b),
                 DML__WRAPPED(int32_t, uint32_t, a, *, b))
DML__REDUCE_TYPE(i64, int64_t, DML__WRAPPED(int64_t, uint64_t, a, +, b),
                 DML__WRAPPED(int64_t, uint64_t, a, *, b))

#undef DML__REDUCE_TYPE
#undef DML__REDUCE_LOOP
#undef DML__GREATER
#undef DML__LESSER
#undef DML__WRAPPED

DML__LOCAL void dml__reduce_into(void *into, const void *from, size_t count, dml_dtype dtype,
                                 dml_reduce_op op)
{
    switch (dtype) {
    case DML_F32: dml__reduce_f32((float *)into, (const float *)from, count, op); break;
    case DML_F64: dml__reduce_f64((double *)into, (const double *)from, count, op); break;
    case DML_I32: dml__reduce_i32((int32_t *)into, (const int32_t *)from, count, op); break;
    case DML_I64: dml__reduce_i64((int64_t *)into, (const int64_t *)from, count, op); break;
    default: DML_ASSERT(0 && "a dtype that can't be reduced"); break;
    }
}

DML__LOCAL void dml__finish_mean(void *data, size_t count, dml_dtype dtype, int ranks)
{
    switch (dtype) {
    case DML_F32: dml__mean_f32((float *)data, count, (float)ranks); break;
    case DML_F64: dml__mean_f64((double *)data, count, (double)ranks); break;
    case DML_I32: dml__mean_i32((int32_t *)data, count, (int32_t)ranks); break;
    case DML_I64: dml__mean_i64((int64_t *)data, count, (int64_t)ranks); break;
    default: DML_ASSERT(0 && "a dtype that can't be reduced"); break;
    }
}

#endif
