/* Programs of 16-bit factors: what a device multiplies then is close to what it multiplies in 32 bits, and on
   a card with tensor cores it is something else. */
#include "base/dtype.h"
#include "base/float16.h"

#include "devices.h"

#include <limits.h>
#include <math.h>

/* Floats on the device, at a place that wide reads may begin at; NaN, or drawn from -1 to 1. */
enum { LEAD = 16 };
static bool none, quick; /* nothing is run; or the least that has every part: DML_TEST_QUICK=1 */
static uint32_t state = 1;
static float draw(void)
{
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static dml_buffer *floats(size_t n, bool drawn)
{
    dml_buffer *buffer = calloc(1, sizeof *buffer);
    float *x = malloc((n + LEAD) * sizeof *x);
    for (size_t i = 0; i < n + LEAD; i++) x[i] = drawn ? draw() : NAN;
    buffer->bytes = (n + LEAD) * sizeof *x;
    CHECK_INT(device.backend->buffer_create(&device, buffer), DML_OK);
    CHECK_INT(device.backend->write(&device, (dml_ref){ buffer, 0 }, x, buffer->bytes), DML_OK);
    free(x);
    return buffer;
}

static dml_ref in(dml_buffer *buffer)
{
    return (dml_ref){ buffer, LEAD * sizeof(float) };
}

static float *take(dml_buffer *buffer, size_t n)
{
    float *x = malloc(n * sizeof *x);
    CHECK_INT(device.backend->read(&device, x, in(buffer), n * sizeof *x), DML_OK);
    return x;
}

static void drop(dml_buffer *buffer)
{
    device.backend->buffer_destroy(&device, buffer);
    free(buffer);
}

static bool has_tensor_cores(void)
{
    dml_device_info info;
    int major = 0;
    memset(&info, 0, sizeof info);
    device.backend->describe(device.index, &info);
    return strcmp(device.backend->name, "cuda") == 0 &&
           sscanf(info.features, "compute capability %d", &major) == 1 && major >= 8;
}

/* What the factors of products may be rounded to, and how far off the result is then at most. */
typedef struct rounding {
    const char *name;
    dml_dtype factors;
    bool allow_tf32;
    double most;
} rounding;

static const rounding to_f32 = { "f32", DML_F32, false, 0 };
static const rounding roundings[] = { { "bf16", DML_BF16, false, 2e-2 },
                                      { "f16", DML_F16, false, 3e-3 },
                                      { "tf32", DML_F32, true, 3e-3 } };
enum { ROUNDINGS = sizeof roundings / sizeof *roundings };

/* What a launch leaves at buffer `out`, with factors of the type; of `old` where it adds to it. */
static float *with_factors(const dml_launch *launch, int out, size_t n, const rounding *to_what,
                           const float *old)
{
    dml_launch own = *launch;
    dml_buffer *to = floats(n, false);
    if (old) CHECK_INT(device.backend->write(&device, in(to), old, n * sizeof *old), DML_OK);
    own.buffer[out] = in(to);
    device.factors = (int)to_what->factors;
    device.allow_tf32 = to_what->allow_tf32;
    launch_ok(own);
    device.factors = (int)DML_F32;
    device.allow_tf32 = false;
    float *got = take(to, n);
    drop(to);
    return got;
}

/* The largest difference, in shares of the largest number. */
static double apart(const float *x, const float *y, size_t n)
{
    double most = 0, largest = 1e-30;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)x[i] - (double)y[i]), size = fabs((double)y[i]);
        if (!(d <= most)) most = d; /* NaN too */
        if (size > largest) largest = size;
    }
    return most / largest;
}

static void compare(const dml_launch *launch, int out, size_t n, const float *old, bool is_rounded)
{
    const bool is_product = strcmp(launch->kernel, "gemm") == 0;
    float *whole = with_factors(launch, out, n, &to_f32, old);
    for (const rounding *r = roundings; r < roundings + ROUNDINGS; r++) {
        float *rounded = with_factors(launch, out, n, r, old);
        const double d = apart(rounded, whole, n);
        const bool differs = has_tensor_cores() && is_rounded && (is_product || !r->allow_tf32);
        CHECK_MESSAGE(d < r->most, "%s of %s factors is %g off", launch->kernel, r->name, d);
        CHECK_MESSAGE(d > 0 || !differs, "%s of %s factors is that of f32", launch->kernel, r->name);
        free(rounded);
    }
    free(whole);
}

/* To nearest: to TF32 ties go away from zero. */
static void round_to(const rounding *r, float *x, size_t n)
{
    if (!r->allow_tf32) dml__round_line(DML_ISA_SCALAR, r->factors, n, x);
    for (size_t i = 0; i < n && r->allow_tf32; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits = (bits + 0x1000u) & ~0x1fffu;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

/* On tensor cores nothing but the factors is rounded, and these no more than that: C = 1.5 op(A) op(B)
   is that of rounded factors, but for what sums of f32 lose. */
static void exactly_rounded(const dml_launch *launch, dml_buffer *a, dml_buffer *b)
{
    const int32_t *of = launch->integer;
    const int m = of[0], n = of[1], k = of[2], ta = of[3], tb = of[4];
    const size_t as = (size_t)m * (size_t)k, bs = (size_t)k * (size_t)n;
    for (const rounding *r = roundings; r < roundings + ROUNDINGS; r++) {
        float *x = take(a, as), *y = take(b, bs);
        float *got = with_factors(launch, 2, (size_t)m * (size_t)n, r, NULL);
        round_to(r, x, as), round_to(r, y, bs);
        for (int i = 0; i < m && test__ok; i += 7)
            for (int j = 0; j < n && test__ok; j += 5) {
                double sum = 0, size = 0;
                for (int l = 0; l < k; l++) {
                    const double one = (double)x[ta ? l * m + i : i * k + l] * y[tb ? j * k + l : l * n + j];
                    sum += one, size += fabs(one);
                }
                const double c = got[i * n + j];
                CHECK_MESSAGE(fabs(c - 1.5 * sum) <= 2e-6 * size, "C(%d, %d) of %s factors is %g, not %g", i,
                              j, r->name, c, 1.5 * sum);
            }
        free(x), free(y), free(got);
    }
}

static void products(void)
{
    if (none) {
        SKIP("%s", "it takes too long where each access is looked at");
        return;
    }
    static const int sizes[][3] = { { 256, 192, 320 }, { 130, 257, 200 }, { 1, 65, 70 },
                                    { 600, 70, 1000 }, { 380, 129, 100 }, { 258, 130, 126 } };
    for (int s = 0; s < (int)(sizeof sizes / sizeof *sizes); s++)
        for (int t = 0; t < 4; t++) {
            if (quick ? s != (t % 3 ? 5 : 4) : TEST_SLOW && s != 2) continue; /* 2 is of one tile */
            const int m = sizes[s][0], n = sizes[s][1], k = sizes[s][2], ta = t & 1, tb = t >> 1;
            const size_t all = (size_t)m * (size_t)n;
            dml_buffer *a = floats((size_t)m * (size_t)k, true), *b = floats((size_t)k * (size_t)n, true);
            dml_buffer *bias = floats((size_t)n, true), *c = floats(all, true);
            float *old = take(c, all);
            dml_launch launch = { .kernel = "gemm",
                                  .size = { (size_t)n, (size_t)m },
                                  .buffer = { in(a), in(b) },
                                  .integer = { m, n, k, ta, tb, ta ? m : k, tb ? k : n, n },
                                  .real = { 1.5f, 0.5f * (float)(t & 1) } };
            if (t > 1) launch.buffer[3] = in(bias), launch.real[2] = 1;
            const bool is_rounded = (double)m * n * k > 1 << 22;
            compare(&launch, 2, all, t & 1 ? old : NULL, is_rounded);
            if (t == 0 && is_rounded && has_tensor_cores()) exactly_rounded(&launch, a, b);
            free(old);
            drop(a), drop(b), drop(bias), drop(c);
        }
}

/* samples, queries, keys, heads, kv_heads, width, before, after */
static void attend(const int s[8])
{
    const size_t nq = (size_t)(s[0] * s[1] * s[3] * s[5]), nk = (size_t)(s[0] * s[2] * s[4] * s[5]);
    const size_t lines = (size_t)(s[0] * s[1] * s[3]), saved = 2 * lines + (size_t)s[0];
    const size_t pieces = (size_t)(s[5] + 63) / 64;
    const bool is_rounded = s[5] % 8 == 0;
    dml_buffer *q = floats(nq, true), *k = floats(nk, true), *v = floats(nk, true), *dy = floats(nq, true);
    dml_buffer *left = floats(saved, true), *y = floats(nq, false);
    dml_launch launch = { .kernel = "attention_forward",
                          .size = { (size_t)s[1], (size_t)(s[0] * s[3]) * pieces },
                          .buffer = { in(q), in(k), in(v), in(left) },
                          .integer = { s[0], s[1], s[2], s[3], s[4], s[5], s[3] * s[5], s[4] * s[5],
                                       s[4] * s[5], s[6], s[7], 0 },
                          .real = { 0.125f } };
    compare(&launch, 4, nq, NULL, is_rounded);
    launch.buffer[4] = in(y);
    launch_ok(launch);
    dml_launch levels = launch;
    levels.kernel = "attention_levels";
    levels.size[0] = lines, levels.size[1] = 1;
    levels.buffer[0] = in(y), levels.buffer[1] = in(dy);
    launch_ok(levels);
    launch.kernel = "attention_backward";
    launch.buffer[4] = in(dy);
    for (int part = 0; part < 3; part++) {
        launch.size[0] = (size_t)s[part ? 2 : 1];
        launch.size[1] = (size_t)(s[0] * s[part ? 4 : 3]) * pieces;
        launch.integer[12] = part;
        compare(&launch, 5, part ? nk : nq, NULL, is_rounded);
    }
    drop(q), drop(k), drop(v), drop(dy), drop(left), drop(y);
}

static void attention(void)
{
    if (none) {
        SKIP("%s", "it takes too long where each access is looked at");
        return;
    }
    static const int shapes[][8] = { { 2, 70, 70, 4, 2, 64, INT_MAX, 0 },
                                     { 1, 130, 150, 2, 2, 40, INT_MAX, INT_MAX },
                                     { 1, 100, 100, 1, 1, 128, 20, 0 },
                                     { 1, 20, 30, 2, 1, 5, INT_MAX, 0 } };
    for (int s = quick ? 1 : TEST_SLOW ? 3 : 0; s < (int)(sizeof shapes / sizeof *shapes); s++)
        attend(shapes[s]);
}

int main(void)
{
    none = UNDER_TSAN || getenv("OCLGRIND_DATA_RACES") != NULL;
    quick = getenv("DML_TEST_QUICK") != NULL;
    RUN_ON_EVERY_DEVICE(products);
    RUN_ON_EVERY_DEVICE(attention);
    return test_report("gpu/tensor");
}
