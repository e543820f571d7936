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
            dml_buffer *bias = floats((size_t)n + 1, true), *c = floats(all, true);
            float *old = take(c, all);
            dml_launch launch = { .kernel = "gemm",
                                  .size = { (size_t)n, (size_t)m },
                                  .buffer = { in(a), in(b) },
                                  .integer = { m, n, k, ta, tb, ta ? m : k, tb ? k : n, n },
                                  .real = { 1.5f, 0.5f * (float)(t & 1) } };
            if (t > 0) launch.buffer[3] = in(bias), launch.real[2] = (float)(t == 3); /* and the relu */
            if (t == 1) launch.buffer[3].offset += sizeof(float); /* where two can't be read at once */
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

/* Convolutions of fewer multiply-adds aren't for tensor cores (gpu/tensor_launch.cuh, where the fake card's
   test says how many). */
#ifndef DML__TENSOR_CONV_LEAST
#define DML__TENSOR_CONV_LEAST (1 << 27)
#endif

/* The sum of the shares that a launch leaves at a buffer; of `old` where it adds to that. */
static float *folded(const dml_launch *launch, int out, size_t n, int shares, const rounding *r,
                     const float *old)
{
    float *x = with_factors(launch, out, n * (size_t)shares, r, old);
    for (size_t i = n; i < n * (size_t)shares; i++) x[i % n] += x[i];
    return x;
}

static void compare_conv(const dml_launch *launch, int out, size_t n, int shares, const float *old,
                         double macs)
{
    float *whole = folded(launch, out, n, shares, &to_f32, old);
    for (const rounding *r = roundings; r < roundings + ROUNDINGS; r++) {
        float *rounded = folded(launch, out, n, shares, r, old);
        const double d = apart(rounded, whole, n);
        CHECK_MESSAGE(d < r->most, "%s of %s factors, %d shares, is %g off", launch->kernel, r->name, shares,
                      d);
        CHECK_MESSAGE(d > 0 || !has_tensor_cores() || macs < DML__TENSOR_CONV_LEAST,
                      "%s of %s factors is that of f32", launch->kernel, r->name);
        free(rounded);
    }
    free(whole);
}

/* Along an axis of channels or filters: tiles of 64 don't reach from one group into another. */
static size_t tiled(size_t size, size_t groups)
{
    return groups == 1 ? size : groups * ((size / groups + 63) / 64 * 64);
}

/* n, h, w, c, f, kh, kw, sh, sw, ph, pw, oh, ow, dh, dw, groups (0: 1), of which several aren't for tensor
   cores */
static void convolve(const int s[16])
{
    const size_t pixels = (size_t)(s[0] * s[1] * s[2]), out = (size_t)(s[0] * s[11] * s[12]);
    const size_t groups = s[15] ? (size_t)s[15] : 1, c = (size_t)s[3], f = (size_t)s[4];
    const size_t columns = (size_t)(s[5] * s[6]) * (c / groups);
    const double macs = groups > 1 ? 0 : (double)out * (double)f * (double)columns;
    dml_buffer *x = floats(pixels * c + 1, true), *w = floats(f * columns, true), *y = floats(out * f, true);
    dml_buffer *bias = floats(f, true), *none_yet = floats(3 * f * columns, false);
    float *old_x = take(x, pixels * c), *old_y = take(y, out * f), *old_w = take(w, f * columns);
    dml_launch launch = { .kernel = "conv2d_forward", .size = { tiled(f, groups), out } };
    for (int i = 0; i < 16; i++) launch.integer[i] = s[i];
    for (int fused = 0; fused < 2; fused++) { /* with the bias, the relu, and what y held */
        launch.buffer[0] = in(x), launch.buffer[1] = in(w);
        launch.buffer[2] = fused ? in(bias) : (dml_ref){ NULL, 0 };
        launch.real[0] = fused ? 0.5f : 0, launch.real[1] = (float)fused;
        compare_conv(&launch, 3, out * f, 1, fused ? old_y : NULL, macs);
    }
    launch = (dml_launch){ .kernel = "conv2d_backward_input", .size = { tiled(c, groups), pixels } };
    for (int i = 0; i < 16; i++) launch.integer[i] = s[i];
    launch.buffer[0] = in(y), launch.buffer[1] = in(w), launch.real[0] = 0.5f;
    compare_conv(&launch, 2, pixels * c, 1, old_x, macs);
    launch.kernel = "conv2d_backward_weights";
    launch.buffer[0] = in(x), launch.buffer[1] = in(y), launch.buffer[3] = in(bias);
    for (int shares = 1; shares < 4; shares += 2) {
        const bool adds = shares == 1;
        launch.size[0] = adds ? columns + 1 : (size_t)shares * ((columns + 1 + 127) / 128 * 128),
        launch.size[1] = tiled(f, groups);
        launch.real[0] = launch.real[2] = adds ? 0.5f : 0, launch.real[1] = (float)shares;
        launch.buffer[3] = (dml_ref){ NULL, 0 };
        if (!adds) launch.buffer[0].offset += sizeof(float); /* where four can't be read at once */
        compare_conv(&launch, 2, f * columns, shares, adds ? old_w : NULL, macs);
        launch.buffer[2] = in(none_yet);
        if (adds) CHECK_INT(device.backend->zero(&device, in(none_yet), f * columns * sizeof(float)), DML_OK);
        compare_conv(&launch, 3, f, shares, adds ? old_w : NULL, 0);
    }
    free(old_x), free(old_y), free(old_w);
    drop(x), drop(w), drop(y), drop(bias), drop(none_yet);
}

static void convolutions(void)
{
    static const int shapes[][16] = { { 2, 9, 8, 12, 20, 3, 3, 1, 1, 1, 1, 9, 8, 1, 1, 1 },
                                      { 2, 9, 8, 12, 20, 3, 3, 1, 1, 1, 1, 9, 8, 1, 1, 2 },
                                      { 3, 9, 8, 5, 7, 3, 2, 2, 3, 0, 1, 4, 3, 0, 0 },
                                      { 2, 9, 8, 4, 8, 3, 2, 2, 1, 2, 1, 5, 7, 2, 3 },
                                      { 2, 9, 8, 132, 136, 1, 1, 1, 1, 0, 0, 9, 8, 1, 1 },
                                      { 1, 2, 3, 20, 14, 2, 3, 1, 1, 0, 0, 1, 1, 1,
                                        1 }, /* fewer than shares */
                                      { 16, 30, 33, 64, 96, 3, 3, 1, 1, 1, 1, 30, 33, 1, 1 },
                                      { 24, 57, 55, 68, 72, 3, 3, 2, 2, 1, 1, 29, 28, 1, 1 } };
    const bool card = strcmp(device.backend->name, "cuda") == 0 && !quick;
    if (none) {
        SKIP("%s", "it takes too long where each access is looked at");
        return;
    }
    for (int s = 0; s < (card ? 8 : 6); s++) convolve(shapes[s]);
}

int main(void)
{
    none = UNDER_TSAN || getenv("OCLGRIND_DATA_RACES") != NULL;
    quick = getenv("DML_TEST_QUICK") != NULL;
    RUN_ON_EVERY_DEVICE(products);
    RUN_ON_EVERY_DEVICE(attention);
    RUN_ON_EVERY_DEVICE(convolutions);
    return test_report("gpu/tensor");
}
