/* Attention on raw arrays against float64. */
#include "kernels/attention.h"

#include "kernel_test.h"

/* How q, k and v lie in memory. */
enum { APART, PACKED, LAYOUTS };

typedef struct situation {
    size_t samples, queries, keys, heads, kv_heads, width;
    bool causal;
    size_t window;
    int lengths; /* 0: none; 1: some of each sample's keys; 2: all, none and one; 3: what comes before its
                    queries */
    int layout;  /* PACKED: as many queries as keys */
} situation;

static const situation situations[] = {
    { 1, 1, 1, 1, 1, 1, false, 0, 0, APART },      { 2, 3, 5, 2, 2, 3, false, 0, 0, APART },
    { 3, 7, 7, 2, 1, 8, true, 0, 2, PACKED },      { 2, 64, 64, 2, 2, 32, true, 0, 0, PACKED },
    { 1, 65, 270, 4, 2, 17, false, 0, 1, APART },  { 2, 260, 131, 1, 1, 24, true, 0, 0, APART },
    { 1, 300, 300, 2, 1, 5, true, 33, 0, PACKED }, { 1, 140, 290, 1, 1, 36, false, 20, 1, APART },
    { 2, 5, 70, 3, 3, 1, true, 0, 1, APART },      { 1, 150, 5, 1, 1, 200, true, 2, 0, APART },
    { 1, 63, 67, 2, 2, 64, false, 1, 0, PACKED },  { 0, 3, 3, 1, 1, 4, false, 0, 0, APART },
    { 1, 20, 90, 2, 1, 140, false, 0, 1, APART },  { 3, 1, 300, 4, 2, 16, true, 0, 3, APART },
    { 3, 7, 270, 2, 1, 33, true, 40, 3, APART },   { 2, 150, 160, 2, 2, 20, true, 0, 3, APART },
    { 2, 131, 262, 1, 1, 8, true, 17, 3, APART },  { 3, 5, 5, 2, 2, 9, true, 0, 3, PACKED },
    { 3, 4, 140, 3, 1, 12, false, 0, 3, APART },   { 2, 6, 150, 1, 1, 4, false, 130, 3, APART },
};
enum { SITUATIONS = sizeof situations / sizeof situations[0] };

typedef struct data {
    dml_attention_shape s;
    size_t nq, nk, ny, nl; /* floats of q, of k and v together or of all, of y, of log_sums */
    float *memory, *of[3]; /* where q, k and v lie */
    size_t step[3], rows[3], each[3];
    int32_t *lengths;
    float *dy, *y, *log_sums;
    double *want_y, *want[3]; /* want: of the gradients, (samples, rows, each) */
    double size;              /* of the numbers that gradients are sums of */
} data;

static double *doubles(size_t n)
{
    return (double *)calloc(n + 1, sizeof(double));
}

static double at(const float *x, size_t sample, size_t rows, size_t row, size_t step, size_t head,
                 size_t width, size_t c)
{
    return (double)x[(sample * rows + row) * step + head * width + c];
}

/* One row of one head, by the definition. */
static void exact_row(data *d, size_t n, size_t h, size_t t, double *p)
{
    const dml_attention_shape *s = &d->s;
    const size_t w = s->width, kv = h / (s->heads / s->kv_heads);
    const size_t past = s->past ? (size_t)d->lengths[n] : 0, at_key = t + past;
    const size_t length = s->past ? past + s->queries : d->lengths ? (size_t)d->lengths[n] : s->keys;
    double most = -HUGE_VAL, sum = 0, level = 0;
    for (size_t k = 0; k < s->keys; k++) {
        const size_t far = k > at_key ? k - at_key : at_key - k;
        p[k] = -HUGE_VAL;
        if (k >= length || (s->causal && k > at_key) || (s->window && far >= s->window)) continue;
        p[k] = 0;
        for (size_t c = 0; c < w; c++)
            p[k] += at(d->of[0], n, s->queries, t, s->q_step, h, w, c) *
                    at(d->of[1], n, s->keys, k, s->k_step, kv, w, c) * (double)s->scale;
        if (p[k] > most) most = p[k];
    }
    for (size_t k = 0; k < s->keys; k++) p[k] = p[k] > -HUGE_VAL ? exp(p[k] - most) : 0, sum += p[k];
    const size_t row = ((n * s->queries + t) * s->heads + h) * w;
    for (size_t k = 0; k < s->keys; k++) {
        if (sum > 0) p[k] /= sum;
        for (size_t c = 0; c < w && p[k] > 0; c++) {
            const double v = at(d->of[2], n, s->keys, k, s->v_step, kv, w, c);
            d->want_y[row + c] += p[k] * v;
            level += (double)d->dy[row + c] * p[k] * v;
        }
    }
    for (size_t k = 0; k < s->keys; k++) {
        double slope = -level;
        if (p[k] == 0) continue;
        const size_t to = (n * s->keys + k) * d->each[1] + kv * w;
        for (size_t c = 0; c < w; c++)
            slope += (double)d->dy[row + c] * at(d->of[2], n, s->keys, k, s->v_step, kv, w, c);
        slope *= p[k] * (double)s->scale;
        for (size_t c = 0; c < w; c++) {
            d->want[0][row + c] += slope * at(d->of[1], n, s->keys, k, s->k_step, kv, w, c);
            d->want[1][to + c] += slope * at(d->of[0], n, s->queries, t, s->q_step, h, w, c);
            d->want[2][to + c] += p[k] * (double)d->dy[row + c];
        }
    }
}

static data data_create(const situation *in, float scale)
{
    data d;
    memset(&d, 0, sizeof d);
    unsigned state = 3 + (unsigned)in->queries;
    const size_t wide = in->heads * in->width, narrow = in->kv_heads * in->width;
    const size_t all = wide + 2 * narrow;
    const bool packed = in->layout == PACKED && in->queries == in->keys;
    const dml_attention_shape s = { in->samples,
                                    in->queries,
                                    in->keys,
                                    in->heads,
                                    in->kv_heads,
                                    in->width,
                                    packed ? all : wide,
                                    packed ? all : narrow + 3,
                                    packed ? all : narrow,
                                    in->causal,
                                    in->window,
                                    scale,
                                    0,
                                    in->lengths == 3 };
    d.s = s;
    d.nq = in->samples * in->queries * s.q_step;
    d.nk = packed ? d.nq : d.nq + in->samples * in->keys * (s.k_step + s.v_step);
    d.memory = kernel_array(d.nk, &state);
    d.of[0] = d.memory;
    d.of[1] = packed ? d.memory + wide : d.memory + d.nq;
    d.of[2] = packed ? d.memory + wide + narrow : d.of[1] + in->samples * in->keys * s.k_step;
    for (int i = 0; i < 3; i++) {
        d.step[i] = i == 0 ? s.q_step : i == 1 ? s.k_step : s.v_step;
        d.rows[i] = i ? s.keys : s.queries;
        d.each[i] = i ? narrow : wide;
        d.want[i] = doubles(s.samples * d.rows[i] * d.each[i]);
    }
    d.ny = s.samples * s.queries * wide;
    d.nl = s.samples * s.heads * s.queries;
    d.y = kernel_array(d.ny, &state), d.dy = kernel_array(d.ny, &state);
    d.log_sums = kernel_array(d.nl, &state);
    d.want_y = doubles(d.ny);
    if (in->lengths) {
        d.lengths = (int32_t *)calloc(s.samples + 1, sizeof *d.lengths);
        for (size_t n = 0; n < s.samples; n++)
            d.lengths[n] = in->lengths == 1 ? (int32_t)(s.keys * 2 / 3 + n)
                           : n == 1         ? 0
                           : s.past         ? (int32_t)((s.keys - s.queries) / (n + 1))
                                            : (int32_t)(n == 0 ? s.keys : 1);
        for (size_t n = 0; n < s.samples && !packed; n++) /* what is hidden isn't read */
            for (size_t k = (size_t)d.lengths[n] + (s.past ? s.queries : 0); k < s.keys; k++)
                for (size_t c = 0; c < narrow; c++)
                    d.of[1][(n * s.keys + k) * s.k_step + c] = d.of[2][(n * s.keys + k) * s.v_step + c] = NAN;
    }
    double *p = doubles(s.keys);
    for (size_t n = 0; n < s.samples; n++)
        for (size_t h = 0; h < s.heads; h++)
            for (size_t t = 0; t < s.queries; t++) exact_row(&d, n, h, t, p);
    free(p);
    return d;
}

static void data_destroy(data *d)
{
    kernel_free(d->memory), kernel_free(d->y), kernel_free(d->dy), kernel_free(d->log_sums);
    for (int i = 0; i < 3; i++) free(d->want[i]);
    free(d->want_y), free(d->lengths);
}

static void forward(dml_pool *pool, const data *d, float *log_sums, float *y)
{
    dml_attention_forward(pool, &d->s, d->of[0], d->of[1], d->of[2], d->lengths, log_sums, y);
}

/* `which`: bits of the gradients wanted; they lie in memory as what they are of. */
static void backward(dml_pool *pool, const data *d, int which, float beta, float *gradients)
{
    dml_attention_gradients to;
    for (int i = 0; i < 3; i++) {
        to.of[i] = which >> i & 1 ? gradients + (d->of[i] - d->memory) : NULL;
        to.beta[i] = beta;
    }
    dml_attention_backward(pool, &d->s, d->of[0], d->of[1], d->of[2], d->lengths, d->log_sums, d->y, d->dy,
                           &to);
}

static void reserve(dml_pool *pool, const data *d)
{
    CHECK_INT(dml_pool_reserve(pool, dml_attention_scratch(&d->s, true)), DML_OK);
}

static void situation_case(const situation *in, float beta)
{
    data d = data_create(in, 1 / sqrtf((float)in->width));
    unsigned state = 7;
    float *old = kernel_array(d.nk, &state), *first = NULL;
    for (size_t i = 0; i < d.nk && beta == 0; i++) old[i] = NAN;
    for (size_t i = 0; i < d.ny; i++) d.y[i] = NAN;
    for (int i = 0; i < KERNEL_POOLS; i++) { /* each without scratch, and then with it */
        dml_pool *pool = kernel_pools[i];
        if (TEST_EMULATOR && i && i != 3) continue;
        for (int with = 0; with < (pool ? 2 : 1); with++) {
            float *y = kernel_copy(d.y, d.ny), *log_sums = kernel_copy(d.log_sums, d.nl);
            float *dx = kernel_copy(old, d.nk), *alone = kernel_copy(old, d.nk);
            if (with) reserve(pool, &d);
            forward(pool, &d, log_sums, y);
            if (!first) {
                for (size_t k = 0; k < d.ny; k++) CHECK_NEAR(y[k], d.want_y[k], 2e-6);
                memcpy(d.y, y, d.ny * sizeof *y), memcpy(d.log_sums, log_sums, d.nl * sizeof *y);
            }
            CHECK(kernel_same(y, d.y, d.ny) && kernel_same(log_sums, d.log_sums, d.nl));
            backward(pool, &d, 7, beta, dx);
            for (int one = 0; one < 3; one++) backward(pool, &d, 1 << one, beta, alone);
            CHECK(kernel_same(dx, alone, d.nk));
            if (first) CHECK(kernel_same(dx, first, d.nk));
            for (int w = 0; w < 3 && !first; w++)
                for (size_t k = 0; k < in->samples * d.rows[w] * d.each[w]; k++) {
                    const size_t place =
                        (size_t)(d.of[w] - d.memory) + k / d.each[w] * d.step[w] + k % d.each[w];
                    const double base = beta == 0 ? 0 : (double)beta * (double)old[place];
                    CHECK_NEAR(dx[place], d.want[w][k] + base, 4e-6 * (4 + fabs(d.want[w][k])));
                }
            kernel_free(y), kernel_free(log_sums), kernel_free(alone);
            if (first) kernel_free(dx);
            if (!first) first = dx;
        }
    }
    kernel_free(first), kernel_free(old);
    data_destroy(&d);
}

static void every_situation(void)
{
    for (int i = 0; i < SITUATIONS; i++) {
        if (TEST_EMULATOR && i % 3 == 0) continue;
        kernel_pools_reopen(); /* without scratch */
        situation_case(&situations[i], i % 2 ? 0.5f : 0);
    }
}

/* Scores of 1e4 and more: the largest of a row alone counts, and nothing overflows; scores of -infinity give
   zeros, and a NaN spoils the rows that see it and no others. */
static void special_values(void)
{
    const situation in = { 1, 70, 70, 1, 1, 8, true, 0, 0, APART };
    data d = data_create(&in, 3e4f);
    float *dx = kernel_copy(d.memory, d.nk);
    forward(kernel_pools[1], &d, d.log_sums, d.y);
    backward(kernel_pools[1], &d, 7, 0, dx);
    for (size_t k = 0; k < d.ny; k++) CHECK_NEAR(d.y[k], d.want_y[k], 2e-2);
    for (size_t k = 0; k < 70 * 8; k++) CHECK(isfinite(dx[k]));
    d.s.scale = 1;
    for (size_t c = 0; c < 8; c++) d.of[0][c] = c ? 0 : -INFINITY, d.of[1][c] = c ? 0 : 1e38f;
    forward(kernel_pools[1], &d, d.log_sums, d.y);
    for (size_t k = 0; k < 8; k++) CHECK(d.y[k] == 0);
    for (size_t k = 8; k < d.ny; k++) CHECK(isfinite(d.y[k]));
    d.of[0][30 * 8 + 3] = NAN;
    forward(kernel_pools[1], &d, d.log_sums, d.y);
    for (size_t k = 0; k < d.ny; k++) CHECK(isnan(d.y[k]) == (k / 8 == 30));
    kernel_free(dx);
    data_destroy(&d);
}

/* k or v (samples, keys, heads x width), head by head (samples, heads, step), or back. */
static void turn_heads(const dml_attention_shape *s, size_t step, bool back, float *rows, float *heads)
{
    for (size_t n = 0; n < s->samples; n++)
        for (size_t k = 0; k < s->keys; k++)
            for (size_t i = 0; i < s->kv_heads * s->width; i++) {
                float *row = rows + (n * s->keys + k) * s->kv_heads * s->width + i;
                float *head = heads + (n * s->kv_heads + i / s->width) * step + k * s->width + i % s->width;
                *(back ? row : head) = *(back ? head : row);
            }
}

/* Keys and values that lie head by head: the same bits, forward and backward. */
static void by_heads(void)
{
    static const situation ins[] = { { 2, 5, 150, 4, 2, 6, true, 0, 3, APART },
                                     { 3, 1, 40, 2, 2, 17, true, 9, 3, APART },
                                     { 2, 140, 9, 3, 1, 8, false, 0, 0, APART } };
    for (int i = 0; i < 3; i++) {
        unsigned state = 77;
        dml_attention_shape s = { ins[i].samples,
                                  ins[i].queries,
                                  ins[i].keys,
                                  ins[i].heads,
                                  ins[i].kv_heads,
                                  ins[i].width,
                                  ins[i].heads * ins[i].width,
                                  ins[i].kv_heads * ins[i].width,
                                  ins[i].kv_heads * ins[i].width,
                                  ins[i].causal,
                                  ins[i].window,
                                  0.4f,
                                  0,
                                  ins[i].lengths == 3 };
        const size_t step = 2 * s.keys * s.width + 5, rows = s.samples * s.keys * s.k_step,
                     all = s.samples * s.kv_heads * step, nq = s.samples * s.queries * s.q_step;
        const size_t lines = s.samples * s.heads * s.queries;
        const int32_t lengths[3] = { 3, 0, 7 };
        float *q = kernel_array(nq, &state), *dy = kernel_array(nq, &state), *y[2], *sums[2], *dq[2];
        float *k[2] = { kernel_array(rows, &state), kernel_array(all, &state) }, *dk[2];
        float *v[2] = { kernel_array(rows, &state), kernel_array(all, &state) }, *dv[2];
        turn_heads(&s, step, false, k[0], k[1]);
        turn_heads(&s, step, false, v[0], v[1]);
        for (int how = 0; how < 2; how++) {
            y[how] = kernel_array(nq, &state), sums[how] = kernel_array(lines, &state);
            dq[how] = kernel_array(nq, &state);
            dk[how] = kernel_array(how ? all : rows, &state),
            dv[how] = kernel_array(how ? all : rows, &state);
            const dml_attention_gradients to = { { dq[how], dk[how], dv[how] }, { 0, 0, 0 } };
            const int32_t *given = s.past ? lengths : NULL;
            if (how) s.k_step = s.v_step = s.width, s.kv_head_step = step;
            dml_attention_forward(kernel_pools[1], &s, q, k[how], v[how], given, sums[how], y[how]);
            dml_attention_backward(kernel_pools[1], &s, q, k[how], v[how], given, sums[how], y[how], dy, &to);
        }
        CHECK(kernel_same(y[0], y[1], nq) && kernel_same(dq[0], dq[1], nq));
        turn_heads(&s, step, true, k[0], dk[1]);
        turn_heads(&s, step, true, v[0], dv[1]);
        CHECK(kernel_same(dk[0], k[0], rows) && kernel_same(dv[0], v[0], rows));
        for (int how = 0; how < 2; how++) {
            kernel_free(y[how]), kernel_free(sums[how]), kernel_free(dq[how]);
            kernel_free(k[how]), kernel_free(v[how]), kernel_free(dk[how]), kernel_free(dv[how]);
        }
        kernel_free(q), kernel_free(dy);
    }
}

static void all(void)
{
    every_situation();
    special_values();
    by_heads();
}

static void every_isa(void)
{
    kernel_each_isa(all);
}

int main(void)
{
    kernel_pools_open();
    RUN(every_isa);
    kernel_pools_close();
    return test_report("kernels/attention");
}
