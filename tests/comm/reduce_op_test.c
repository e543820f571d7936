/* What is done to the elements of two ranks: every dtype and op, by every instruction set, at every place in
   memory, against float64 and int64. What is NaN is told by the bits, since a script compiles the subject so
   that NaNs don't count (TEST_FAST_MATH). */
#include "comm/reduce_op.h"

#include "../test.h"

#ifdef TEST_FAST_MATH
enum { FAST_MATH = 1 };
#else
enum { FAST_MATH = 0 };
#endif

enum { MOST = 1100, PLACES = 4, ROOM = (MOST + PLACES + 8) * 8 };

static const size_t counts[] = {
    0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 511, 512, 513, MOST
};
#define COUNTS (sizeof counts / sizeof *counts)

/* --- floats as bits: (fraction bits, exponent bits) --- */

static int fraction_of(dml_dtype dtype) /* 0: it is an integer */
{
    return dtype == DML_F32 ? 23 : dtype == DML_F64 ? 52 : dtype == DML_BF16 ? 7 : dtype == DML_F16 ? 10 : 0;
}

static uint64_t infinity_of(dml_dtype dtype)
{
    const int fraction = fraction_of(dtype), width = 8 * (int)dml_dtype_size(dtype);
    return (((uint64_t)1 << (width - 1 - fraction)) - 1) << fraction;
}

static uint64_t sign_of(dml_dtype dtype)
{
    return (uint64_t)1 << (8 * dml_dtype_size(dtype) - 1);
}

static bool is_nan(dml_dtype dtype, uint64_t bits)
{
    return fraction_of(dtype) && (bits & ~sign_of(dtype)) > infinity_of(dtype);
}

static uint64_t load(const void *data, size_t i, dml_dtype dtype)
{
    const size_t size = dml_dtype_size(dtype);
    const char *at = (const char *)data + i * size;
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    if (size == 1) return memcpy(&u8, at, size), u8;
    if (size == 2) return memcpy(&u16, at, size), u16;
    if (size == 4) return memcpy(&u32, at, size), u32;
    return memcpy(&u64, at, size), u64;
}

static void store(void *data, size_t i, dml_dtype dtype, uint64_t bits)
{
    const size_t size = dml_dtype_size(dtype);
    char *at = (char *)data + i * size;
    const uint8_t u8 = (uint8_t)bits;
    const uint16_t u16 = (uint16_t)bits;
    const uint32_t u32 = (uint32_t)bits;
    if (size == 1) memcpy(at, &u8, size);
    if (size == 2) memcpy(at, &u16, size);
    if (size == 4) memcpy(at, &u32, size);
    if (size == 8) memcpy(at, &bits, size);
}

/* As IEEE 754 defines them. Not for NaNs. */
static double number(dml_dtype dtype, uint64_t bits)
{
    const int fraction = fraction_of(dtype), width = 8 * (int)dml_dtype_size(dtype);
    const uint64_t size = bits & ~sign_of(dtype);
    const int bias = (1 << (width - 2 - fraction)) - 1, exponent = (int)(size >> fraction);
    const uint64_t digits = size & (((uint64_t)1 << fraction) - 1);
    double x = exponent ? ldexp((double)(digits | (uint64_t)1 << fraction), exponent - bias - fraction)
                        : ldexp((double)digits, 1 - bias - fraction);
    if (size == infinity_of(dtype)) x = HUGE_VAL;
    return bits & sign_of(dtype) ? -x : x;
}

/* The nearest, of two as near the even one. */
static uint64_t rounded(dml_dtype dtype, double x)
{
    const int fraction = fraction_of(dtype), width = 8 * (int)dml_dtype_size(dtype);
    const int bias = (1 << (width - 2 - fraction)) - 1;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint64_t sign = bits >> 63 ? sign_of(dtype) : 0;
    if (dtype == DML_F64) return bits;
    if (fabs(x) == HUGE_VAL) return sign | infinity_of(dtype);
    int exponent = 0;
    if (x != 0) frexp(x, &exponent), exponent--;
    if (exponent < 1 - bias || x == 0) exponent = 1 - bias;
    const uint64_t digits = (uint64_t)nearbyint(ldexp(fabs(x), fraction - exponent));
    /* A carry out of the digits goes into the exponent. */
    const uint64_t size = digits + ((uint64_t)(exponent + bias - 1) << fraction);
    return sign | (size < infinity_of(dtype) ? size : infinity_of(dtype));
}

static int64_t whole(dml_dtype dtype, uint64_t bits)
{
    switch (dtype) {
    case DML_I8: return (int8_t)bits;
    case DML_U8: return (uint8_t)bits;
    case DML_I32: return (int32_t)bits;
    default: return (int64_t)bits;
    }
}

/* --- what comes out --- */

/* True: a NaN, whichever. */
static bool expected_float(dml_dtype dtype, dml_reduce_op op, uint64_t a, uint64_t b, uint64_t *want)
{
    if (is_nan(dtype, a) || is_nan(dtype, b)) return true;
    const bool below_a = a & sign_of(dtype), below_b = b & sign_of(dtype); /* 0 */
    const bool later = below_a != below_b ? below_a : below_a ? a > b : b > a;
    const double x = number(dtype, a), y = number(dtype, b);
    volatile double result = 0;
    if (op == DML_MAX || op == DML_MIN) {
        *want = later == (op == DML_MAX) ? b : a;
        if (a == b) *want = a;
        return false;
    }
    result = op == DML_PROD ? x * y : x + y;
    if (result != result) return true;
    *want = rounded(dtype, result);
    return false;
}

static uint64_t expected_whole(dml_dtype dtype, dml_reduce_op op, uint64_t a, uint64_t b)
{
    const int64_t x = whole(dtype, a), y = whole(dtype, b);
    switch (op) {
    case DML_PROD: return (uint64_t)x * (uint64_t)y;
    case DML_MIN: return (uint64_t)(x < y ? x : y);
    case DML_MAX: return (uint64_t)(x > y ? x : y);
    default: return (uint64_t)x + (uint64_t)y;
    }
}

/* A processor that takes denormals for 0, as programs linked with -Ofast ask it to, does so in sums. */
static bool flushes(void)
{
    volatile float tiny = 1.0e-39f;
    return tiny * 2.0f == 0.0f;
}

static bool denormal(dml_dtype dtype, uint64_t bits)
{
    const uint64_t size = bits & ~sign_of(dtype);
    return fraction_of(dtype) && dtype != DML_F16 && size && size <= (uint64_t)1 << fraction_of(dtype);
}

static void check_element(dml_dtype dtype, dml_reduce_op op, uint64_t a, uint64_t b, uint64_t got)
{
    const bool computes = op != DML_MIN && op != DML_MAX;
    uint64_t want = 0, mask = sign_of(dtype) - 1 + sign_of(dtype);
    if (!fraction_of(dtype))
        want = expected_whole(dtype, op, a, b) & mask;
    else if (expected_float(dtype, op, a, b, &want)) {
        if (FAST_MATH && computes) return;
        CHECK_MESSAGE(is_nan(dtype, got), "%s %d of %llx and %llx is %llx, not NaN", dml_dtype_name(dtype),
                      (int)op, (unsigned long long)a, (unsigned long long)b, (unsigned long long)got);
        return;
    }
    if (computes && flushes() &&
        (denormal(dtype, a) || denormal(dtype, b) || denormal(dtype, want) || denormal(dtype, got)))
        return;
    CHECK_MESSAGE(got == want, "%s %d of %llx and %llx is %llx, not %llx", dml_dtype_name(dtype), (int)op,
                  (unsigned long long)a, (unsigned long long)b, (unsigned long long)got,
                  (unsigned long long)want);
}

/* Extremes, zeros, denormals, infinities and NaNs of each sign, neighbours of the halves, and anything. */
static uint64_t element(dml_dtype dtype, unsigned *state)
{
    const uint64_t sign = sign_of(dtype), mask = sign - 1 + sign, infinity = infinity_of(dtype);
    const int fraction = fraction_of(dtype);
    const uint64_t any = ((uint64_t)test_random(state) << 32 | test_random(state)) & mask;
    const unsigned choice = test_random(state) >> 8;
    if (choice % 3) { /* near 1, so that sums need all digits */
        if (!fraction) return any;
        const uint64_t one = (infinity >> 1) & infinity;
        return (any & (sign | (((uint64_t)1 << fraction) - 1))) |
               (one + ((uint64_t)(test_random(state) >> 8) % 6 << fraction));
    }
    switch (choice / 3 % 10) {
    case 0: return any & sign;
    case 1: return (any & sign) | 1;
    case 2: return fraction ? (any & sign) | infinity : sign;
    case 3: return fraction ? (any & sign) | (infinity + 1) : sign - 1;
    case 4: return fraction ? (any & sign) | (sign - 1) : mask;
    case 5: return fraction ? (any & sign) | (infinity - 1) : 1;
    case 6: return fraction ? any & ~infinity : any;
    default: return any;
    }
}

static const dml_isa *isas(int *count)
{
    static dml_isa list[2];
    list[0] = DML_ISA_SCALAR;
    list[1] = dml_cpu_isa();
    *count = list[1] == DML_ISA_SCALAR ? 1 : 2;
    return list;
}

static void fill(char *data, dml_dtype dtype, unsigned seed)
{
    for (size_t i = 0; i < ROOM / dml_dtype_size(dtype); i++) store(data, i, dtype, element(dtype, &seed));
}

static char of_a[ROOM], of_b[ROOM], of_out[ROOM], was_a[ROOM], was_b[ROOM], was_out[ROOM];

/* out is a's place, b's, or its own; each array begins at a place of its own. */
static void one_case(const dml__reduction *how, size_t count, unsigned place, int form)
{
    const size_t size = dml_dtype_size(how->dtype), bytes = count * size;
    const size_t at[3] = { place % PLACES * size, place / 2 % PLACES * size, (place + 3) % PLACES * size };
    char *const a = of_a + at[0], *const b = of_b + at[1];
    char *const out = form == 0 ? a : form == 1 ? b : of_out + at[2];
    const char *const was = form == 0 ? was_a : form == 1 ? was_b : was_out;
    char *const whole_out = form == 0 ? of_a : form == 1 ? of_b : of_out;
    const size_t begin = (size_t)(out - whole_out);
    fill(of_a, how->dtype, 7 * place + 1), fill(of_b, how->dtype, 11 * place + 2);
    memset(of_out, 0x5a, sizeof of_out);
    memcpy(was_a, of_a, ROOM), memcpy(was_b, of_b, ROOM), memcpy(was_out, of_out, ROOM);
    dml__reduce_elements(how, out, a, b, count);
    for (size_t i = 0; i < count; i++)
        check_element(how->dtype, how->op, load(was_a + at[0], i, how->dtype),
                      load(was_b + at[1], i, how->dtype), load(out, i, how->dtype));
    CHECK(memcmp(whole_out, was, begin) == 0);
    CHECK(memcmp(whole_out + begin + bytes, was + begin + bytes, ROOM - begin - bytes) == 0);
    CHECK(out == a || memcmp(of_a, was_a, ROOM) == 0);
    CHECK(out == b || memcmp(of_b, was_b, ROOM) == 0);
}

static void every_dtype_and_op(void)
{
    int isa_count;
    const dml_isa *isa = isas(&isa_count);
    for (int k = 0; k < isa_count; k++)
        for (int dtype = 0; dtype < DML__DTYPE_COUNT; dtype++)
            for (int op = 0; op < DML__REDUCE_OP_COUNT; op++)
                for (size_t c = 0; c < COUNTS; c += TEST_EMULATOR ? 3 : 1)
                    for (int form = 0; form < 3; form++) {
                        const dml__reduction how = { (dml_dtype)dtype, (dml_reduce_op)op, isa[k], NULL,
                                                     NULL };
                        one_case(&how, counts[c], (unsigned)c * 3 + (unsigned)form, form);
                    }
}

/* Every pair of 8-bit numbers. */
static void all_bytes(void)
{
    static uint8_t a[65536], b[65536], out[65536];
    for (int i = 0; i < 65536; i++) a[i] = (uint8_t)i, b[i] = (uint8_t)(i >> 8);
    int isa_count;
    const dml_isa *isa = isas(&isa_count);
    for (int k = 0; k < isa_count; k++)
        for (int op = 0; op < DML__REDUCE_OP_COUNT; op++)
            for (int s = 0; s < 2; s++) {
                const dml__reduction how = { s ? DML_I8 : DML_U8, (dml_reduce_op)op, isa[k], NULL, NULL };
                dml__reduce_elements(&how, out, a, b, 65536);
                for (int i = 0; i < 65536; i++) check_element(how.dtype, how.op, a[i], b[i], out[i]);
            }
}

/* Bit by bit, and whichever NaNs there are. */
static void extremes_in_any_order(void)
{
    static char a[ROOM], b[ROOM], c[ROOM], one[ROOM], other[ROOM];
    for (int dtype = 0; dtype < DML__DTYPE_COUNT; dtype++)
        for (int op = DML_MIN; op <= DML_MAX; op++) {
            const dml__reduction how = { (dml_dtype)dtype, (dml_reduce_op)op, dml_cpu_isa(), NULL, NULL };
            const size_t bytes = MOST * dml_dtype_size(how.dtype);
            fill(a, how.dtype, 3), fill(b, how.dtype, 4), fill(c, how.dtype, 5);
            dml__reduce_elements(&how, one, a, b, MOST);
            dml__reduce_elements(&how, other, b, a, MOST);
            CHECK(memcmp(one, other, bytes) == 0);
            dml__reduce_elements(&how, one, one, c, MOST);
            dml__reduce_elements(&how, other, b, c, MOST);
            dml__reduce_elements(&how, other, a, other, MOST);
            CHECK(memcmp(one, other, bytes) == 0);
        }
}

static void means(void)
{
    static const int ranks[] = { 1, 2, 3, 7, 10, 127, 128, 129, 255, 256, 300, 1000, 65536 };
    static char data[ROOM], was[ROOM];
    int isa_count;
    const dml_isa *isa = isas(&isa_count);
    for (int k = 0; k < isa_count; k++)
        for (int d = 0; d < DML__DTYPE_COUNT; d++)
            for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
                const dml__reduction how = { (dml_dtype)d, DML_MEAN, isa[k], NULL, NULL };
                const size_t count = counts[(r + (size_t)d) % COUNTS];
                const uint64_t infinity = infinity_of(how.dtype);
                fill(was, how.dtype, (unsigned)(r + 1));
                memcpy(data, was, ROOM);
                dml__finish_mean(&how, data, count, ranks[r]);
                for (size_t i = 0; i < count; i++) {
                    const uint64_t x = load(was, i, how.dtype), got = load(data, i, how.dtype);
                    if (!fraction_of(how.dtype)) {
                        CHECK_INT(whole(how.dtype, got), whole(how.dtype, x) / ranks[r]);
                        continue;
                    }
                    if (is_nan(how.dtype, x)) CHECK(FAST_MATH || is_nan(how.dtype, got));
                    if (is_nan(how.dtype, x) || (FAST_MATH && (x & infinity) == infinity)) continue;
                    volatile double mean = number(how.dtype, x) / ranks[r];
                    const uint64_t want = rounded(how.dtype, mean);
                    if (flushes() &&
                        (denormal(how.dtype, x) || denormal(how.dtype, want) || denormal(how.dtype, got)))
                        continue;
                    CHECK_MESSAGE(got - want + FAST_MATH <= 2 * FAST_MATH,
                                  "the mean of %d ranks, %s %llx, is %llx, not %llx", ranks[r],
                                  dml_dtype_name(how.dtype), (unsigned long long)x, (unsigned long long)got,
                                  (unsigned long long)want);
                }
                CHECK(memcmp(data + count * dml_dtype_size(how.dtype),
                             was + count * dml_dtype_size(how.dtype),
                             ROOM - count * dml_dtype_size(how.dtype)) == 0);
            }
}

typedef struct users {
    int calls;
    size_t elements;
    dml_dtype dtype;
} users;

/* The bits that both have. */
static void and_function(void *into, const void *from, size_t count, dml_dtype dtype, void *user)
{
    users *u = (users *)user;
    u->calls++;
    u->elements += count;
    u->dtype = dtype;
    for (size_t i = 0; i < count * dml_dtype_size(dtype); i++)
        ((uint8_t *)into)[i] &= ((const uint8_t *)from)[i];
}

static void a_users_function(void)
{
    static char a[ROOM], b[ROOM], out[ROOM];
    for (int dtype = 0; dtype < DML__DTYPE_COUNT; dtype++)
        for (int form = 0; form < 3; form++) {
            users u = { 0, 0, DML_F32 };
            const dml__reduction how = { (dml_dtype)dtype, DML_SUM, dml_cpu_isa(), and_function, &u };
            const size_t bytes = MOST * dml_dtype_size(how.dtype);
            char *const into = form == 0 ? a : form == 1 ? b : out;
            fill(a, how.dtype, 3), fill(b, how.dtype, 4);
            memcpy(was_a, a, bytes), memcpy(was_b, b, bytes);
            dml__reduce_elements(&how, into, a, b, 0);
            CHECK_INT(u.calls, 0);
            dml__reduce_elements(&how, into, a, b, MOST);
            CHECK_INT(u.elements, MOST);
            CHECK_INT(u.dtype, dtype);
            for (size_t i = 0; i < bytes; i++) CHECK(into[i] == (char)(was_a[i] & was_b[i]));
        }
}

int main(void)
{
    RUN(every_dtype_and_op);
    RUN(all_bytes);
    RUN(extremes_in_any_order);
    RUN(means);
    RUN(a_users_function);
    return test_report("comm/reduce_op");
}
