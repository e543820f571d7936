/* numerics: how far are the kernels' results from exact ones, what is the bound, and what do other libraries
   make of the same inputs? */
#include "bench.h"

#include "../tests/kernels/exact.h"

typedef enum input_kind { RANDOM, ILL_CONDITIONED, DENORMAL, SPECIAL, INPUTS } input_kind;
static const char *const input_names[INPUTS] = { "random", "ill_conditioned", "denormal", "special" };

enum { SIZES = 8, OPERANDS = 5 };

/* A kernel with its inputs, and what is exact. */
typedef struct problem {
    input_kind kind;
    int size[SIZES];
    const exact_function *function;
    dml_pool *pool;
    float *in[OPERANDS];
    size_t in_count[OPERANDS], out_count;
    float *out;
    double *want, *allowed; /* (out_count): the exact result, and what one may be off by */
    double bound;           /* the same in units of: */
    const char *unit;
    char words[128]; /* the sizes, for the row */
} problem;

/* --- inputs --- */

static unsigned random_state = 1;

static unsigned random_bits(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

/* In [-1, 1). */
static float random_float(void)
{
    return (float)random_bits() / 8388608.0f - 1;
}

static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void *memory(size_t bytes)
{
    void *got = malloc(bytes ? bytes : 1);
    if (got) return got;
    fprintf(stderr, "numerics: no memory for %zu bytes\n", bytes);
    exit(1);
}

static float *operand(problem *p, int i, size_t count)
{
    p->in[i] = memory(count * sizeof(float));
    p->in_count[i] = count;
    for (size_t k = 0; k < count; k++) p->in[i][k] = random_float();
    return p->in[i];
}

static void result(problem *p, size_t count, double bound, const char *unit)
{
    p->out_count = count;
    p->out = memory(count * sizeof(float));
    p->want = memory(count * sizeof(double));
    p->allowed = memory(count * sizeof(double));
    p->bound = bound;
    p->unit = unit;
    for (size_t i = 0; i < count; i++) p->out[i] = NAN;
}

/* Makes the terms of sums, products of `left` and `right` (NULL: 1), what is asked for. Ill conditioned: of a
   wide range of sizes, and neighbours in a line of left, and in a column, cancel each other up to that part
   of their size. */
static void make_terms(problem *p, float part, float *left, size_t count, size_t line, float *right,
                       size_t right_count)
{
    static const float specials[] = { INFINITY, -INFINITY, NAN };
    for (size_t i = 0; i < count; i++) {
        const size_t y = i / line, x = i % line;
        const int exponent = (int)((y / 2 * 31 + x / 2 * 17) % 12);
        if (p->kind == ILL_CONDITIONED)
            left[i] = ldexpf((y + x) % 2 ? -1 : 1, exponent) * (1 + part * left[i]);
        if (p->kind == DENORMAL) left[i] *= 1e-41f;
    }
    for (size_t i = 0; i < right_count && p->kind == ILL_CONDITIONED; i++) right[i] = 1 + part * right[i];
    for (int i = 0; i < 3 && p->kind == SPECIAL && count; i++) left[random_bits() % count] = specials[i];
}

/* --- products --- */

static void make_product(problem *p, float part)
{
    const size_t m = (size_t)p->size[0], n = (size_t)p->size[1], k = (size_t)p->size[2];
    const bool ta = p->size[3] != 0, tb = p->size[4] != 0;
    const size_t count = p->size[5] ? (size_t)p->size[5] : 1; /* of a batch, whose A is one */
    float *a = operand(p, 0, m * k), *b = operand(p, 1, count * k * n);
    make_terms(p, part, a, m * k, ta ? m : k, b, count * k * n);
    snprintf(p->words, sizeof p->words,
             p->size[5] ? "m=%d n=%d k=%d ta=%d tb=%d count=%d" : "m=%d n=%d k=%d ta=%d tb=%d", p->size[0],
             p->size[1], p->size[2], ta, tb, p->size[5]);
    result(p, count * m * n, 2 * ((double)k + 4) / (double)k, "k_epsilon");
}

static void exact_products(problem *p)
{
    const size_t m = (size_t)p->size[0], n = (size_t)p->size[1], k = (size_t)p->size[2];
    const exact_matrix a = { p->in[0], p->size[3] ? 1 : k, p->size[3] ? m : 1 };
    for (size_t at = 0; at < p->out_count; at++) {
        const exact_matrix b = { p->in[1] + at / (m * n) * (k * n), p->size[4] ? 1 : n, p->size[4] ? k : 1 };
        const exact_sum sum = exact_product(a, b, at / n % m, at % n, k);
        p->want[at] = sum.value;
        p->allowed[at] = exact_sum_bound(sum.size, (double)k);
    }
}

static void make_sgemm(problem *p)
{
    make_product(p, 1e-4f);
    exact_products(p);
}

static dml_transpose transpose(int trans)
{
    return trans ? DML_TRANS : DML_NO_TRANS;
}

static dml_status run_sgemm(problem *p)
{
    const int *s = p->size;
    dml_pool_reserve(p->pool, dml_sgemm_scratch(transpose(s[3]), transpose(s[4]), s[0], s[1], s[2]));
    return dml_sgemm(p->pool, DML_ROW_MAJOR, transpose(s[3]), transpose(s[4]), s[0], s[1], s[2], 1, p->in[0],
                     s[3] ? s[0] : s[2], p->in[1], s[4] ? s[2] : s[1], 0, p->out, s[1]);
}

static dml_status run_batched(problem *p)
{
    const int *s = p->size;
    return dml_sgemm_batched(p->pool, transpose(s[3]), transpose(s[4]), s[0], s[1], s[2], 1, p->in[0],
                             s[3] ? s[0] : s[2], 0, p->in[1], s[4] ? s[2] : s[1], (ptrdiff_t)s[2] * s[1], 0,
                             p->out, s[1], (ptrdiff_t)s[0] * s[1], s[5]);
}

/* The inputs are rounded to bf16 first: those floats are exact. */
static void make_bf16gemm(problem *p)
{
    make_product(p, 0.25f);
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; k < p->in_count[i]; k++) {
            dml_bf16 narrow;
            dml_bf16_from_f32(NULL, 1, &p->in[i][k], &narrow);
            dml_bf16_to_f32(NULL, 1, &narrow, &p->in[i][k]);
        }
    exact_products(p);
    if (p->kind == DENORMAL && strcmp(dml_bf16gemm_isa(p->pool), "widened") != 0)
        for (size_t i = 0; i < p->out_count; i++) p->allowed[i] += fabs(p->want[i]); /* as bf16.h says */
}

static dml_status run_bf16gemm(problem *p)
{
    const int *s = p->size;
    dml_bf16 *narrow[2];
    for (int i = 0; i < 2; i++) {
        narrow[i] = memory(p->in_count[i] * sizeof(dml_bf16));
        dml_bf16_from_f32(p->pool, p->in_count[i], p->in[i], narrow[i]);
    }
    dml_pool_reserve(p->pool, dml_bf16gemm_scratch(s[0], s[1], s[2]));
    const dml_status status =
        dml_bf16gemm(p->pool, transpose(s[3]), transpose(s[4]), s[0], s[1], s[2], 1, narrow[0],
                     s[3] ? s[0] : s[2], narrow[1], s[4] ? s[2] : s[1], 0, p->out, s[1], NULL);
    free(narrow[0]);
    free(narrow[1]);
    return status;
}

/* --- convolutions --- */

typedef enum direction { FORWARD, INPUT, WEIGHTS } direction;

/* batch, height = width, channels, filters, kernel, stride, pad, groups */
static dml_conv2d_shape conv_shape(const problem *p)
{
    const int *s = p->size;
    const dml_conv2d_shape shape = { s[0], s[1], s[1], s[2], s[3], s[4], s[4], s[5],
                                     s[5], s[6], s[6], 1,    1,    s[7], 0,    0 };
    return shape;
}

static void make_conv(problem *p, direction way)
{
    const dml_conv2d_shape s = conv_shape(p);
    const int out = exact_conv2d_output(s.height, s.kernel_h, s.stride_h, s.pad_h, 1);
    const int taps = s.kernel_h * s.kernel_w;
    const size_t pixels = (size_t)s.batch * (size_t)(out * out);
    const size_t counts[] = { pixels * (size_t)s.filters,
                              (size_t)s.batch * (size_t)(s.height * s.width) * (size_t)s.channels,
                              (size_t)s.filters * (size_t)(taps * (s.channels / s.groups)) };
    const double k = way == FORWARD ? taps * (s.channels / s.groups)
                     : way == INPUT ? taps * (s.filters / s.groups)
                                    : (double)pixels;
    /* The three arrays, of which two are read: each direction's terms are made of its left one. */
    float *arrays[3];
    exact_sum *sums[3];
    for (int i = 0; i < 3; i++) {
        arrays[i] = operand(p, i, counts[i]);
        sums[i] = memory(counts[i] * sizeof(exact_sum));
        memset(sums[i], 0, counts[i] * sizeof(exact_sum));
    }
    if (way == INPUT)
        make_terms(p, 1e-4f, arrays[0], counts[0], (size_t)s.filters, arrays[2], counts[2]);
    else
        make_terms(p, 1e-4f, arrays[1], counts[1], (size_t)s.channels, arrays[way == FORWARD ? 2 : 0],
                   counts[way == FORWARD ? 2 : 0]);
    snprintf(p->words, sizeof p->words,
             "batch=%d height=%d channels=%d filters=%d kernel=%d stride=%d pad=%d groups=%d", s.batch,
             s.height, s.channels, s.filters, s.kernel_h, s.stride_h, s.pad_h, s.groups);
    result(p, counts[way], 2 * (k + 4) / k, "k_epsilon");
    exact_conv2d(&s, arrays[1], arrays[2], arrays[0], sums[0], sums[1], sums[2]);
    for (size_t i = 0; i < counts[way]; i++) {
        p->want[i] = sums[way][i].value;
        p->allowed[i] = exact_sum_bound(sums[way][i].size, k);
    }
    for (int i = 0; i < 3; i++) free(sums[i]);
}

static void make_forward(problem *p)
{
    make_conv(p, FORWARD);
}

static void make_input(problem *p)
{
    make_conv(p, INPUT);
}

static void make_weights(problem *p)
{
    make_conv(p, WEIGHTS);
}

static dml_status run_forward(problem *p)
{
    const dml_conv2d_shape s = conv_shape(p);
    dml_pool_reserve(p->pool, dml_conv2d_scratch(&s, true));
    return dml_conv2d_forward(p->pool, &s, p->in[1], p->in[2], NULL, p->out);
}

static dml_status run_input(problem *p)
{
    const dml_conv2d_shape s = conv_shape(p);
    dml_pool_reserve(p->pool, dml_conv2d_scratch(&s, true));
    return dml_conv2d_backward_input(p->pool, &s, p->in[0], p->in[2], 0, p->out);
}

static dml_status run_weights(problem *p)
{
    const dml_conv2d_shape s = conv_shape(p);
    dml_pool_reserve(p->pool, dml_conv2d_scratch(&s, true));
    return dml_conv2d_backward_weights(p->pool, &s, p->in[1], p->in[0], 0, p->out);
}

/* --- functions --- */

/* Random: over what the function's results differ in; ill conditioned: floats beside those where something
   changes. */
static void make_function(problem *p)
{
    static const float near[] = {
        1,        0.5f,   0.70710678f,    2,           0.625f,      0.9f,         3.95f,
        9.01f,    17,     88.7228394f,    87.3365479f, 103.972076f, 0.346573591f, 0.693147182f,
        16777216, 1e-20f, 1.17549435e-38f
    };
    static const float specials[] = { 0, -0.0f, INFINITY, -INFINITY, NAN, 3.40282347e+38f, -3.40282347e+38f };
    enum { NEAR = sizeof near / sizeof *near, SPECIALS = sizeof specials / sizeof *specials };
    const size_t n = (size_t)p->size[0];
    const bool is_log = strcmp(p->function->name, "log") == 0, is_exp = strcmp(p->function->name, "exp") == 0;
    float *x = operand(p, 0, n);
    snprintf(p->words, sizeof p->words, "n=%zu", n);
    result(p, n, p->function->bound, "ulp");
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &near[i % NEAR], sizeof bits);
        if (p->kind == RANDOM) x[i] = is_log ? fabsf(x[i]) * 100 : is_exp ? x[i] * 90 : x[i] * 10;
        if (p->kind == ILL_CONDITIONED)
            x[i] = of_bits((bits + random_bits() % 601 - 300) | (is_log ? 0 : random_bits() << 31));
        if (p->kind == DENORMAL)
            x[i] = of_bits(random_bits() % 0x7FFFFF + 1) * (is_log || i % 2 ? 1.0f : -1.0f);
        if (p->kind == SPECIAL) x[i] = specials[i % SPECIALS];
        p->want[i] = p->function->want((double)x[i]);
        p->allowed[i] = p->bound * exact_unit(p->want[i]);
    }
}

static dml_status run_function(problem *p)
{
    p->function->run(p->pool, p->out_count, p->in[0], p->out);
    return DML_OK;
}

/* --- what is made of elements side by side, size[1] says how --- */

enum { ADD, AXPBY, TANH_GRADIENT, SIGMOID_GRADIENT, SGD };
static const float rate = 0.01f, momentum = 0.9f, decay = 0.1f, alpha = 0.5f, beta = -0.75f;

static void make_pointwise(problem *p)
{
    const size_t n = (size_t)p->size[0];
    const bool is_sgd = p->size[1] == SGD;
    float *x = operand(p, 0, n), *y = operand(p, 1, n), *z = operand(p, 2, is_sgd ? n : 0);
    make_terms(p, 1e-4f, x, n, n, y, n);
    snprintf(p->words, sizeof p->words, "n=%zu", n);
    result(p, is_sgd ? 2 * n : n, EXACT_POINTWISE, "epsilon");
    for (size_t i = 0; i < p->out_count; i++) {
        const double left = (double)x[i % n], right = (double)y[i % n];
        exact_sum sum = { 0, 0 };
        switch (p->size[1]) {
        case ADD: exact_add(&sum, left), exact_add(&sum, right); break;
        case AXPBY: exact_add(&sum, (double)alpha * left), exact_add(&sum, (double)beta * right); break;
        case TANH_GRADIENT: /* an infinite gradient stays one */
            sum.value = left * (1 - right * right), sum.size = fabs(left) * (1 + right * right);
            break;
        case SIGMOID_GRADIENT:
            sum.value = left * right * (1 - right), sum.size = fabs(left * right) * (1 + fabs(right));
            break;
        default: /* the velocity of w = y, of which x is the gradient; then w */
            exact_add(&sum, left), exact_add(&sum, (double)decay * right);
            exact_add(&sum, (double)momentum * (double)z[i % n]);
            if (i < n) {
                sum.value *= -(double)rate, sum.size *= (double)rate;
                exact_add(&sum, right);
            }
        }
        p->want[i] = sum.value;
        p->allowed[i] = exact_roundings(EXACT_POINTWISE, sum.size) + EXACT_POINTWISE * ldexp(1, -149);
    }
}

static dml_status run_pointwise(problem *p)
{
    const size_t n = p->in_count[0];
    const float *x = p->in[0], *y = p->in[1];
    if (p->size[1] == AXPBY || p->size[1] == SGD) memcpy(p->out, y, n * sizeof *y);
    switch (p->size[1]) {
    case ADD: dml_add_forward(p->pool, n, x, y, p->out); break;
    case AXPBY: dml_axpby(p->pool, n, alpha, x, beta, p->out); break;
    case TANH_GRADIENT: dml_tanh_backward(p->pool, n, y, x, 0, p->out); break;
    case SIGMOID_GRADIENT: dml_sigmoid_backward(p->pool, n, y, x, 0, p->out); break;
    default:
        memcpy(p->out + n, p->in[2], n * sizeof *y);
        dml_sgd_update(p->pool, n, p->out, x, p->out + n, rate, momentum, decay, false);
    }
    return DML_OK;
}

/* --- sums --- */

static void make_sum(problem *p)
{
    const size_t n = (size_t)p->size[0];
    float *x = operand(p, 0, n), *y = operand(p, 1, n);
    exact_sum sum = { 0, 0 };
    make_terms(p, 1e-4f, x, n, n, y, n);
    snprintf(p->words, sizeof p->words, "n=%zu", n);
    result(p, 1, EXACT_SUM, "epsilon");
    /* size[1]: whether it is the sum of products */
    for (size_t i = 0; i < n; i++) exact_add(&sum, (double)x[i] * (p->size[1] ? (double)y[i] : 1));
    p->want[0] = sum.value;
    p->allowed[0] = exact_roundings(EXACT_SUM, sum.size) + EXACT_SUM * ldexp(1, -149);
}

static dml_status run_sum(problem *p)
{
    p->out[0] = p->size[1] ? dml_dot(p->pool, p->in_count[0], p->in[0], p->in[1])
                           : dml_sum_all(p->pool, p->in_count[0], p->in[0]);
    return DML_OK;
}

static void make_sum_rows(problem *p)
{
    const size_t rows = (size_t)p->size[0], columns = (size_t)p->size[1];
    float *x = operand(p, 0, rows * columns);
    make_terms(p, 1e-4f, x, rows * columns, columns, NULL, 0);
    snprintf(p->words, sizeof p->words, "m=%zu n=%zu", rows, columns);
    result(p, columns, EXACT_SUM_ROWS, "epsilon");
    for (size_t c = 0; c < columns; c++) {
        exact_sum sum = { 0, 0 };
        for (size_t r = 0; r < rows; r++) exact_add(&sum, (double)x[r * columns + c]);
        p->want[c] = sum.value;
        p->allowed[c] = exact_roundings(EXACT_SUM_ROWS, sum.size) + EXACT_SUM_ROWS * ldexp(1, -149);
    }
}

static dml_status run_sum_rows(problem *p)
{
    dml_sum_rows(p->pool, (size_t)p->size[0], (size_t)p->size[1], p->in[0], 0, p->out);
    return DML_OK;
}

/* --- softmax: the probabilities, and each row's loss --- */

static int32_t label_of(const problem *p, size_t row)
{
    return (int32_t)(row % (size_t)p->size[1]);
}

static void make_softmax(problem *p)
{
    const size_t rows = (size_t)p->size[0], classes = (size_t)p->size[1], n = rows * classes;
    float *x = operand(p, 0, n);
    snprintf(p->words, sizeof p->words, "m=%zu n=%zu", rows, classes);
    result(p, n + rows, EXACT_SOFTMAX, "epsilon");
    for (size_t i = 0; i < n; i++)
        x[i] = p->kind == DENORMAL ? x[i] * 1e-40f : x[i] * 8 + (p->kind == ILL_CONDITIONED ? 1e4f : 0);
    /* An impossible class, and a row that isn't one. */
    if (p->kind == SPECIAL && classes > 1) x[1] = -INFINITY, x[n - 1] = NAN;
    for (size_t r = 0; r < rows; r++) {
        double *want = p->want + r * classes, *loss = p->want + n + r;
        *loss =
            exact_softmax(classes, x + r * classes, want) - (double)x[r * classes + (size_t)label_of(p, r)];
        for (size_t c = 0; c < classes; c++)
            p->allowed[r * classes + c] = exact_roundings(EXACT_SOFTMAX, want[c]) + ldexp(1, -149);
        p->allowed[n + r] = exact_roundings(EXACT_LOSS, 1 + *loss);
    }
}

static dml_status run_softmax(problem *p)
{
    const size_t rows = (size_t)p->size[0], n = p->in_count[0];
    dml_softmax_forward(p->pool, false, rows, (size_t)p->size[1], 1, p->in[0], p->out);
    for (size_t r = 0; r < rows; r++) {
        const int32_t label = label_of(p, r);
        float kept[DML_CROSS_ENTROPY_KEPT], scale;
        dml_cross_entropy row;
        memset(&row, 0, sizeof row);
        row.rows = row.each = 1, row.classes = (size_t)p->size[1], row.kept = kept;
        row.logits = p->in[0] + r * row.classes, row.labels = &label;
        p->out[n + r] = dml_cross_entropy_forward(p->pool, &row, true, &scale);
    }
    return DML_OK;
}

/* --- batch normalization --- */

static const float norm_epsilon = 1e-3f;

static void make_statistics(problem *p)
{
    const size_t rows = (size_t)p->size[0], channels = (size_t)p->size[1];
    float *x = operand(p, 0, rows * channels);
    snprintf(p->words, sizeof p->words, "m=%zu n=%zu", rows, channels);
    result(p, 2 * channels, EXACT_VARIANCE, "epsilon");
    for (size_t i = 0; i < rows * channels; i++) {
        if (p->kind == ILL_CONDITIONED) x[i] += (float)((int)(i % channels % 7) - 3) * 50;
        if (p->kind == DENORMAL) x[i] *= 1e-40f;
    }
    if (p->kind == SPECIAL && rows) x[rows / 2 * channels] = NAN;
    for (size_t c = 0; c < channels; c++) {
        double mean, variance;
        exact_statistics(rows, channels, x, c, &mean, &variance);
        p->want[c] = mean, p->want[channels + c] = variance;
        p->allowed[c] = exact_roundings(EXACT_MEAN, fabs(mean) + sqrt(variance)) + ldexp(2, -149);
        p->allowed[channels + c] = exact_roundings(EXACT_VARIANCE, variance) + 1e-37;
    }
}

static dml_status run_statistics(problem *p)
{
    const size_t channels = (size_t)p->size[1];
    dml_batch_statistics(p->pool, (size_t)p->size[0], channels, p->in[0], p->out, p->out + channels);
    return DML_OK;
}

static void make_norm(problem *p)
{
    const size_t rows = (size_t)p->size[0], channels = (size_t)p->size[1];
    float *x = operand(p, 0, rows * channels), *scale = operand(p, 1, channels),
          *shift = operand(p, 2, channels);
    float *mean = operand(p, 3, channels), *variance = operand(p, 4, channels);
    static const float specials[] = { INFINITY, -INFINITY, NAN };
    snprintf(p->words, sizeof p->words, "m=%zu n=%zu", rows, channels);
    result(p, rows * channels, EXACT_NORM, "epsilon");
    for (size_t c = 0; c < channels; c++) {
        variance[c] *= variance[c];
        if (p->kind == ILL_CONDITIONED) mean[c] += 1000;
    }
    for (size_t i = 0; i < rows * channels; i++) {
        const size_t c = i % channels;
        if (p->kind == ILL_CONDITIONED) x[i] += 1000;
        if (p->kind == DENORMAL) x[i] *= 1e-40f;
        if (p->kind == SPECIAL && i < 3) x[i] = specials[i];
        const double distance =
            ((double)x[i] - (double)mean[c]) / sqrt((double)variance[c] + (double)norm_epsilon);
        p->want[i] = (double)scale[c] * distance + (double)shift[c];
        p->allowed[i] = exact_roundings(EXACT_NORM, fabs(distance) + 1);
    }
}

static dml_status run_norm(problem *p)
{
    const dml_normalization by = {
        p->in[3], p->in[4], p->in[1], p->in[2], norm_epsilon, DML_ACTIVATION_NONE
    };
    dml_batch_norm_forward(p->pool, (size_t)p->size[0], (size_t)p->size[1], p->in[0], &by, p->out);
    return DML_OK;
}

/* --- pooling: batch, height = width, channels, kernel, stride, pad, whether it is the mean --- */

static dml_pool2d_shape pool_shape(const problem *p)
{
    const int *s = p->size;
    const dml_pool2d_shape shape = {
        s[0], s[1], s[1], s[2], s[3], s[3], s[4], s[4], s[5], s[5], 0, 0, false
    };
    return shape;
}

static void make_pool(problem *p)
{
    const dml_pool2d_shape s = pool_shape(p);
    const int out = dml_conv2d_output_size(s.height, s.kernel_h, s.stride_h, s.pad_h);
    const size_t in = (size_t)s.batch * (size_t)(s.height * s.width) * (size_t)s.channels;
    float *x = operand(p, 0, in);
    const double k = s.kernel_h * s.kernel_w;
    make_terms(p, 1e-4f, x, in, (size_t)s.channels, NULL, 0);
    snprintf(p->words, sizeof p->words, "batch=%d height=%d channels=%d kernel=%d stride=%d pad=%d", s.batch,
             s.height, s.channels, s.kernel_h, s.stride_h, s.pad_h);
    result(p, (size_t)s.batch * (size_t)(out * out) * (size_t)s.channels, p->size[6] ? 2 * (k + 4) / k : 0,
           p->size[6] ? "k_epsilon" : "ulp");
    for (size_t i = 0; i < p->out_count; i++) {
        const exact_window window = exact_pool2d(&s, x, i);
        p->want[i] = p->size[6] ? window.sum.value / window.size : window.largest;
        p->allowed[i] = p->size[6] ? exact_sum_bound(window.sum.size / window.size, k) : 0;
    }
}

static dml_status run_pool(problem *p)
{
    const dml_pool2d_shape s = pool_shape(p);
    return p->size[6] ? dml_avg_pool2d_forward(p->pool, &s, p->in[0], p->out)
                      : dml_max_pool2d_forward(p->pool, &s, p->in[0], p->out, NULL);
}

/* --- all of them --- */

typedef struct kernel {
    const char *what;
    int size[SIZES];
    bool quick;
    void (*make)(problem *p); /* the inputs, what is exact, and the words */
    dml_status (*run)(problem *p);
} kernel;

/* Every way through the products: tiles, tiles across, dot products, sums of lines, one line, chunks. */
static const kernel kernels[] = {
    { "sgemm", { 256, 256, 256, 0, 0 }, true, make_sgemm, run_sgemm },
    { "sgemm", { 130, 210, 300, 0, 1 }, false, make_sgemm, run_sgemm },
    { "sgemm", { 128, 784, 64, 1, 0 }, false, make_sgemm, run_sgemm },
    { "sgemm", { 1, 1024, 1024, 0, 0 }, false, make_sgemm, run_sgemm },
    { "sgemm", { 1, 1024, 1024, 0, 1 }, false, make_sgemm, run_sgemm },
    { "sgemm", { 8, 500, 1024, 0, 0 }, false, make_sgemm, run_sgemm },
    { "sgemm", { 64, 10, 784, 0, 1 }, false, make_sgemm, run_sgemm },
    { "sgemm", { 300, 5, 60, 0, 0 }, false, make_sgemm, run_sgemm },
    { "sgemm", { 200, 300, 1, 1, 0 }, false, make_sgemm, run_sgemm },
    { "sgemm", { 32, 32, 4096, 0, 0 }, true, make_sgemm, run_sgemm },
    { "sgemm", { 10, 40, 20000, 1, 0 }, false, make_sgemm, run_sgemm },
    { "sgemm_batched", { 17, 19, 64, 0, 0, 20 }, true, make_sgemm, run_batched },
    { "bf16gemm", { 128, 128, 512, 0, 0 }, true, make_bf16gemm, run_bf16gemm },
    { "bf16gemm", { 32, 32, 4096, 0, 1 }, false, make_bf16gemm, run_bf16gemm },
    { "conv_forward", { 2, 14, 64, 64, 3, 1, 1, 1 }, true, make_forward, run_forward },
    { "conv_forward", { 2, 28, 1, 6, 5, 1, 2, 1 }, false, make_forward, run_forward },
    { "conv_forward", { 2, 14, 64, 96, 1, 1, 0, 1 }, false, make_forward, run_forward },
    { "conv_forward", { 2, 28, 48, 48, 3, 1, 1, 48 }, true, make_forward, run_forward },
    { "conv_input", { 2, 14, 64, 64, 3, 1, 1, 1 }, true, make_input, run_input },
    { "conv_input", { 2, 28, 16, 32, 3, 2, 1, 1 }, false, make_input, run_input },
    { "conv_input", { 2, 28, 48, 48, 3, 1, 1, 48 }, true, make_input, run_input },
    { "conv_weights", { 8, 14, 32, 32, 3, 1, 1, 1 }, true, make_weights, run_weights },
    { "conv_weights", { 8, 28, 1, 6, 5, 1, 2, 1 }, false, make_weights, run_weights },
    { "conv_weights", { 8, 28, 48, 48, 3, 1, 1, 48 }, true, make_weights, run_weights },
    { "exp", { 65537 }, true, make_function, run_function },
    { "log", { 65537 }, true, make_function, run_function },
    { "erf", { 65537 }, true, make_function, run_function },
    { "tanh", { 65537 }, true, make_function, run_function },
    { "sigmoid", { 65537 }, true, make_function, run_function },
    { "add", { 65537, ADD }, true, make_pointwise, run_pointwise },
    { "axpby", { 65537, AXPBY }, true, make_pointwise, run_pointwise },
    { "tanh_gradient", { 65537, TANH_GRADIENT }, true, make_pointwise, run_pointwise },
    { "sigmoid_gradient", { 65537, SIGMOID_GRADIENT }, true, make_pointwise, run_pointwise },
    { "sgd", { 65537, SGD }, true, make_pointwise, run_pointwise },
    { "sum", { 1000003, 0 }, true, make_sum, run_sum },
    { "dot", { 1000003, 1 }, true, make_sum, run_sum },
    { "sum_rows", { 10000, 100 }, true, make_sum_rows, run_sum_rows },
    { "softmax", { 64, 10 }, true, make_softmax, run_softmax },
    { "softmax", { 100, 1000 }, false, make_softmax, run_softmax },
    { "batch_statistics", { 10000, 33 }, true, make_statistics, run_statistics },
    { "batch_norm", { 1000, 33 }, true, make_norm, run_norm },
    { "max_pool2d", { 4, 28, 20, 2, 2, 0, 0 }, true, make_pool, run_pool },
    { "avg_pool2d", { 4, 28, 20, 3, 2, 1, 1 }, true, make_pool, run_pool },
};
enum { KERNELS = sizeof kernels / sizeof *kernels };

/* --- peers: they read the inputs from a file and leave their result in it (peers.h) --- */

static bool write_inputs(const char *path, const problem *p)
{
    FILE *file = fopen(path, "wb");
    bool well = file != NULL;
    for (int i = 0; i < OPERANDS && well; i++)
        well = fwrite(p->in[i], sizeof(float), p->in_count[i], file) == p->in_count[i];
    return file && fclose(file) == 0 && well;
}

static bool read_result(const char *path, float *out, size_t count)
{
    FILE *file = fopen(path, "rb");
    const bool well = file && fread(out, sizeof(float), count, file) == count;
    if (file) fclose(file);
    return well;
}

/* The error of the worst element, in units of its bound. */
static double worst_ratio(const problem *p, const float *out)
{
    double worst = 0;
    for (size_t i = 0; i < p->out_count; i++) {
        const double ratio = exact_ratio(out[i], p->want[i], p->allowed[i]);
        if (!(ratio <= worst)) worst = ratio;
    }
    return worst;
}

/* The peer's worst_ratio; NaN: it doesn't know the kernel. */
static double peer_ratio(const bench_peers *peers, bench_peer *peer, const kernel *k, const problem *p,
                         const char *path)
{
    char line[512];
    int length = snprintf(line, sizeof line, "case compute %s %s", k->what, path);
    for (int i = 0; i < SIZES; i++)
        length += snprintf(line + length, sizeof line - (size_t)length, " %d", p->size[i]);
    snprintf(line + length, sizeof line - (size_t)length, "\n");
    float *out = memory(p->out_count * sizeof *out);
    const bool well = write_inputs(path, p) && bench_peer_ask(peers, peer, line) &&
                      strncmp(peer->answer, "ok", 2) == 0 && read_result(path, out, p->out_count);
    const double ratio = well ? worst_ratio(p, out) : NAN;
    free(out);
    return ratio;
}

/* Prints a row; false: the error is beyond its bound. */
static bool measure(const kernel *k, const int *size, input_kind kind, dml_pool *pool, bench_peers *peers,
                    const char *path)
{
    problem p;
    memset(&p, 0, sizeof p);
    p.kind = kind, p.pool = pool;
    memcpy(p.size, size, sizeof p.size);
    for (int f = 0; f < EXACT_FUNCTIONS; f++)
        if (strcmp(exact_functions[f].name, k->what) == 0) p.function = &exact_functions[f];
    random_state = 1;
    k->make(&p);
    if (k->run(&p) != DML_OK) {
        fprintf(stderr, "numerics: %s refuses %s\n", k->what, p.words);
        exit(1);
    }
    const double ratio = worst_ratio(&p, p.out), unit = p.bound > 0 ? p.bound : 1;
    double best = INFINITY, theirs[BENCH_PEERS_MAX];
    const char *best_name = "none";
    for (int i = 0; i < peers->count; i++) {
        theirs[i] = peers->list[i].process ? peer_ratio(peers, &peers->list[i], k, &p, path) : NAN;
        if (theirs[i] < best || (theirs[i] == best && best_name[0] == 'n'))
            best = theirs[i], best_name = peers->list[i].name;
    }
    const bool any = strcmp(best_name, "none") != 0;
    printf("name=numerics what=%s input=%s %s isa=%s threads=%d ours=%.3g best_peer=%.3g peer=%s limit=%.4g "
           "ratio_peer=%.3g ratio_limit=%.3g unit=%s",
           k->what, input_names[kind], p.words,
           k->run == run_bf16gemm ? dml_bf16gemm_isa(pool) : dml_isa_name(dml_cpu_isa()),
           dml_pool_threads(pool), ratio * unit, any ? best * unit : 0, best_name, p.bound,
           any && ratio > 0 ? best / ratio : 0, ratio, p.unit);
    for (int i = 0; i < peers->count; i++)
        if (!isnan(theirs[i])) printf(" %s=%.3g", peers->list[i].name, theirs[i] * unit);
    putchar('\n');
    fflush(stdout);
    for (int i = 0; i < OPERANDS; i++) free(p.in[i]);
    free(p.out), free(p.want), free(p.allowed);
    return ratio <= 1;
}

static const char usage[] =
    "usage: numerics [--what KERNEL] [--input KIND] [--m M] [--n N] [--k K] [--ta 0|1] [--tb 0|1] [options]\n"
    "  --what KERNEL  only sgemm, sgemm_batched, bf16gemm, conv_forward, conv_input, conv_weights, exp, log, "
    "erf, tanh,\n"
    "                 sigmoid, add, axpby, tanh_gradient, sigmoid_gradient, sgd, sum, dot, sum_rows, "
    "softmax,\n"
    "                 batch_statistics, batch_norm, max_pool2d or avg_pool2d\n"
    "  --input KIND   only random, ill_conditioned (terms that cancel, arguments where rounding counts), "
    "denormal "
    "or\n"
    "                 special (infinities and NaNs among the others) inputs\n"
    "  --m --n --k    a product of one's own, with --what sgemm or bf16gemm; a size that isn't given is the "
    "one "
    "before it\n"
    "  --ta --tb      1: its first or second matrix is stored transposed\n"
    "  --threads T    on T threads, which changes no bit; 1\n"
    "  --quick        fewer rows\n"
    "  --peers DIR    where the peers are; otherwise DML_PEERS or build/peers/run (make bench-peers)\n"
    "Prints a row for each kernel and kind of input: ours is the largest error against float64, limit the "
    "bound that "
    "the\n"
    "tests hold, ratio_limit the part of it that is reached; best_peer is the least error that a peer makes "
    "of the "
    "same\n"
    "inputs. Units: ulp, of the exact result; epsilon, 2^-24 of the size of what was added; k_epsilon, of k "
    "terms k "
    "such.\n"
    "Where a NaN or an infinity isn't where it should be, the error is infinite. It ends in 1 if a bound "
    "isn't "
    "kept.\n";

int main(int argc, char **argv)
{
    static const char *const names[] = { "openblas", "openblas_debian", "blis", "mkl", "torch", NULL };
    const char *what = NULL, *kind = NULL, *folder = NULL;
    int own[SIZES] = { 0 }, threads = 1, rows = 0, beyond = 0;
    bool quick = false;
    const bench_option options[] = {
        { "--what", BENCH_TEXT, &what, 0, 0 },     { "--input", BENCH_TEXT, &kind, 0, 0 },
        { "--m", BENCH_INT, &own[0], 1, 1 << 14 }, { "--n", BENCH_INT, &own[1], 1, 1 << 14 },
        { "--k", BENCH_INT, &own[2], 1, 1 << 20 }, { "--ta", BENCH_INT, &own[3], 0, 1 },
        { "--tb", BENCH_INT, &own[4], 0, 1 },      { "--threads", BENCH_INT, &threads, 1, 1024 },
        { "--quick", BENCH_FLAG, &quick, 0, 0 },   { "--peers", BENCH_TEXT, &folder, 0, 0 },
        { NULL, BENCH_FLAG, NULL, 0, 0 }
    };
    bench_parse(argc, argv, "numerics", usage, options);
    bool known = !what, known_kind = !kind, product = false;
    for (int i = 0; i < KERNELS && what; i++) known |= strcmp(what, kernels[i].what) == 0;
    for (int i = 0; i < INPUTS && kind; i++) known_kind |= strcmp(kind, input_names[i]) == 0;
    if (!known || !known_kind) {
        fprintf(stderr, "numerics: there is no %s \"%s\": see --help\n", known ? "kind of input" : "kernel",
                known ? kind : what);
        return 2;
    }
    for (int i = 0; i < SIZES; i++) product |= own[i] != 0;
    if (product && (!own[0] || !what || (strcmp(what, "sgemm") != 0 && strcmp(what, "bf16gemm") != 0))) {
        fprintf(stderr,
                "numerics: a product of one's own needs --what sgemm or bf16gemm, and --m: see --help\n");
        return 2;
    }
    if (!own[1]) own[1] = own[0];
    if (!own[2]) own[2] = own[1];
    dml_pool *pool = bench_pool("numerics", threads);
    bench_peers peers;
    bench_peers_start(&peers, "numerics", folder, names, threads);
    char path[] = "/tmp/dml_numerics_XXXXXX";
    const int file = mkstemp(path);
    if (file < 0) {
        fprintf(stderr, "numerics: no file can be made in /tmp: %s\n", strerror(errno));
        return 1;
    }
    close(file);
    for (int i = 0; i < KERNELS; i++) {
        if (what ? strcmp(what, kernels[i].what) != 0 : quick && !kernels[i].quick) continue;
        if (product && rows) continue;
        for (int input = 0; input < INPUTS; input++) {
            if (kind && strcmp(kind, input_names[input]) != 0) continue;
            beyond +=
                !measure(&kernels[i], product ? own : kernels[i].size, (input_kind)input, pool, &peers, path);
            rows++;
        }
    }
    remove(path);
    bench_peers_end(&peers);
    dml_pool_destroy(pool);
    if (beyond) fprintf(stderr, "numerics: %d of %d rows are beyond their bounds\n", beyond, rows);
    return beyond != 0;
}
