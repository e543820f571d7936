/* attention_cases.h: the kernels of gpu/attention.cl. */
#ifndef DML_TESTS_GPU_ATTENTION_CASES_H
#define DML_TESTS_GPU_ATTENTION_CASES_H

#include "kernel_cases.h"

/* samples, queries, keys, heads, kv_heads, width, before, after, lengths */
static const int attentions[][9] = { { 1, 1, 1, 1, 1, 1, INT32_MAX, INT32_MAX, 0 },
                                     { 1, 67, 70, 2, 1, 5, INT32_MAX, INT32_MAX, 1 },
                                     { 2, 67, 70, 4, 2, 5, INT32_MAX, INT32_MAX, 1 },
                                     { 2, 130, 66, 1, 1, 8, 70, 0, 0 },
                                     { 1, 5, 150, 2, 1, 70, 3, 3, 1 },
                                     { 1, 129, 129, 2, 2, 33, INT32_MAX, 0, 0 } };
enum { ATTENTIONS = sizeof attentions / sizeof attentions[0] };

typedef struct attention {
    size_t n[3], ny, lines, step[3], rows[3];
    float *of[3], *y, *dy, *saved;
    double *want_y, *want[3], *want_sums; /* want_sums: log_sums, levels */
} attention;

static size_t attention_place(const int *s, const attention *a, int part, size_t sample, size_t row,
                              size_t head)
{
    return (sample * a->rows[part] + row) * a->step[part] + head * (size_t)s[5];
}

/* One row of scores, and all that comes of it. */
static void attention_row(const int *s, attention *a, size_t sample, size_t head, size_t t, double *p)
{
    const size_t width = (size_t)s[5], keys = (size_t)s[2], kv = head / (size_t)(s[3] / s[4]);
    const size_t line = (sample * (size_t)s[3] + head) * (size_t)s[1] + t;
    const size_t length =
        s[8] ? (size_t)((const int32_t *)(const void *)a->saved)[2 * a->lines + sample] : keys;
    const size_t row = ((sample * (size_t)s[1] + t) * (size_t)s[3] + head) * width;
    const float *q = a->of[0] + attention_place(s, a, 0, sample, t, head);
    double sum = 0, level = 0;
    for (size_t k = 0; k < keys; k++) {
        const float *of_k = a->of[1] + attention_place(s, a, 1, sample, k, kv);
        const bool seen = k < length && (t < k || t - k <= (size_t)s[6]) && (k < t || k - t <= (size_t)s[7]);
        p[k] = 0;
        for (size_t c = 0; c < width; c++) p[k] += 0.5 * (double)q[c] * (double)of_k[c];
        p[k] = seen ? exp(p[k]) : 0;
        sum += p[k];
    }
    a->want_sums[line] = sum > 0 ? log(sum) : HUGE_VAL;
    for (size_t k = 0; k < keys; k++) {
        const float *v = a->of[2] + attention_place(s, a, 2, sample, k, kv);
        if (sum > 0) p[k] /= sum;
        for (size_t c = 0; c < width; c++) {
            a->want_y[row + c] += p[k] * (double)v[c];
            level += p[k] * (double)v[c] * (double)a->dy[row + c];
        }
    }
    a->want_sums[a->lines + line] = level;
    for (size_t k = 0; k < keys; k++) {
        const size_t at_k = attention_place(s, a, 1, sample, k, kv),
                     at_v = attention_place(s, a, 2, sample, k, kv);
        double slope = -level;
        for (size_t c = 0; c < width; c++) slope += (double)a->dy[row + c] * (double)a->of[2][at_v + c];
        slope *= 0.5 * p[k];
        for (size_t c = 0; c < width; c++) {
            a->want[0][(size_t)(q - a->of[0]) + c] += slope * (double)a->of[1][at_k + c];
            a->want[1][at_k + c] += slope * (double)q[c];
            a->want[2][at_v + c] += p[k] * (double)a->dy[row + c];
        }
    }
}

static attention attention_create(const int *s)
{
    attention a;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 3; i++) {
        a.rows[i] = (size_t)s[i ? 2 : 1];
        a.step[i] = (size_t)(s[i ? 4 : 3] * s[5]) + (i == 1 ? 3 : 0);
        a.n[i] = (size_t)s[0] * a.rows[i] * a.step[i];
        a.of[i] = numbers(a.n[i]);
        a.want[i] = calloc(a.n[i], sizeof(double));
    }
    a.lines = (size_t)(s[0] * s[1] * s[3]);
    a.ny = a.lines * (size_t)s[5];
    a.y = output(a.ny, 0), a.dy = numbers(a.ny), a.saved = output(2 * a.lines + (size_t)s[0], 0);
    a.want_y = calloc(a.ny, sizeof(double)), a.want_sums = calloc(2 * a.lines, sizeof(double));
    for (int i = 0; i < s[0]; i++) { /* some, and none */
        const int32_t length = i ? 0 : s[2] * 2 / 3;
        memcpy(a.saved + 2 * a.lines + i, &length, sizeof length);
    }
    double *p = calloc((size_t)s[2], sizeof *p);
    for (size_t i = 0; i < a.lines; i++)
        attention_row(s, &a, i / (size_t)(s[1] * s[3]), i / (size_t)s[1] % (size_t)s[3], i % (size_t)s[1], p);
    free(p);
    return a;
}

/* All four launches; what they are called with is in the order of the ints. */
static void attention_case(const char *forward, const char *backward, const int *s, float beta)
{
    attention a = attention_create(s);
    const size_t pieces = (size_t)(s[5] + 63) / 64, saved = 2 * a.lines + (size_t)s[0];
    array aq = upload(a.of[0], a.n[0]), ak = upload(a.of[1], a.n[1]), av = upload(a.of[2], a.n[2]);
    array as = upload(a.saved, saved), ay = upload(a.y, a.ny), ad = upload(a.dy, a.ny);
    dml_launch launch = { .kernel = forward,
                          .size = { (size_t)s[1], (size_t)(s[0] * s[3]) * pieces },
                          .buffer = { at(aq), at(ak), at(av), at(as), at(ay) },
                          .integer = { s[0], s[1], s[2], s[3], s[4], s[5], (int)a.step[0], (int)a.step[1],
                                       (int)a.step[2], s[6], s[7], s[8] },
                          .real = { 0.5f, beta } };
    launch_ok(launch);
    dml_launch levels = launch;
    levels.kernel = "attention_levels";
    levels.size[0] = a.lines, levels.size[1] = 1;
    levels.buffer[0] = at(ay), levels.buffer[1] = at(ad);
    launch_ok(levels);
    launch.kernel = backward;
    launch.buffer[4] = at(ad);
    for (int part = 0; part < 3; part++) {
        float *gradient = output(a.n[part], beta);
        const size_t each = (size_t)(s[part ? 4 : 3] * s[5]);
        for (size_t i = 0; i < a.n[part]; i++)
            if (i % a.step[part] < each)
                a.want[part][i] += kept(beta, gradient[i]);
            else /* beside the heads, where it must not write */
                gradient[i] = 3, a.want[part][i] = 3;
        array to = upload(gradient, a.n[part]);
        launch.size[0] = a.rows[part];
        launch.size[1] = (size_t)(s[0] * s[part ? 4 : 3]) * pieces;
        launch.integer[12] = part;
        launch.buffer[5] = at(to);
        launch_ok(launch);
        download(to, gradient);
        check(backward, gradient, a.want[part], a.n[part], 3);
        free(gradient);
    }
    download(aq, NULL), download(ak, NULL), download(av, NULL), download(ad, NULL);
    download(as, a.saved), download(ay, a.y);
    check(forward, a.y, a.want_y, a.ny, 2);
    for (size_t i = 0; i < a.lines; i++) /* infinite where nothing is seen */
        if (a.want_sums[i] == HUGE_VAL && a.saved[i] == HUGE_VALF) a.saved[i] = 0, a.want_sums[i] = 0;
    check("attention_levels", a.saved, a.want_sums, 2 * a.lines, 2);
    for (int i = 0; i < 3; i++) free(a.of[i]), free(a.want[i]);
    free(a.y), free(a.dy), free(a.saved), free(a.want_y), free(a.want_sums);
}

/* Queries behind as many keys as each sample has: rows of the whole, with those before left out. */
static void attention_behind(const char *forward, const int *s, int queries)
{
    attention a = attention_create(s);
    const int total = s[1], past[] = { total - queries, (total - queries) / 2 };
    const size_t row = (size_t)(s[3] * s[5]), lines = (size_t)(s[0] * s[3] * queries);
    float *q = output((size_t)(s[0] * queries) * row, 0), *y = output((size_t)(s[0] * queries) * row, 0);
    float *saved = output(2 * lines + (size_t)s[0], 0);
    double *want = malloc((size_t)(s[0] * queries) * row * sizeof *want);
    for (int n = 0; n < s[0]; n++) {
        memcpy(saved + 2 * lines + n, &past[n], sizeof past[n]);
        for (size_t i = 0; i < (size_t)queries * row; i++) {
            const size_t from = (size_t)(n * total + past[n]) * row + i, to = (size_t)(n * queries) * row + i;
            q[to] = a.of[0][from], want[to] = a.want_y[from];
        }
    }
    array aq = upload(q, (size_t)(s[0] * queries) * row), ak = upload(a.of[1], a.n[1]),
          av = upload(a.of[2], a.n[2]);
    array as = upload(saved, 2 * lines + (size_t)s[0]), ay = upload(y, (size_t)(s[0] * queries) * row);
    launch_ok((dml_launch){ .kernel = forward,
                            .size = { (size_t)queries, (size_t)(s[0] * s[3]) * (size_t)((s[5] + 63) / 64) },
                            .buffer = { at(aq), at(ak), at(av), at(as), at(ay) },
                            .integer = { s[0], queries, s[2], s[3], s[4], s[5], (int)row, (int)a.step[1],
                                         (int)a.step[2], s[6], s[7], 1, 0, 1 },
                            .real = { 0.5f } });
    download(aq, NULL), download(ak, NULL), download(av, NULL), download(as, NULL), download(ay, y);
    check(forward, y, want, (size_t)(s[0] * queries) * row, 2);
    free(q), free(y), free(saved), free(want);
    for (int i = 0; i < 3; i++) free(a.of[i]), free(a.want[i]);
    free(a.y), free(a.dy), free(a.saved), free(a.want_y), free(a.want_sums);
}

/* Either with the other pass of its kind. */
static void attention_forward_cases(const char *kernel)
{
    const bool solo = strcmp(kernel, "attention_forward_solo") == 0;
    attention_case(kernel, solo ? "attention_backward_solo" : "attention_backward_team",
                   attentions[quick ? 1 : 2], 0.5f);
    static const int behind[][9] = { { 2, 20, 20, 4, 2, 5, INT32_MAX, 0, 0 },
                                     { 2, 150, 150, 1, 1, 9, 70, 0, 0 } };
    attention_behind(kernel, behind[0], 1);
    if (!quick) attention_behind(kernel, behind[1], 67);
}
TEST_PAIR(attention_forward, attention_forward_cases)

static void test_attention_levels(void)
{
    if (!quick) attention_case("attention_forward_team", "attention_backward_team", attentions[0], 1);
}

static void attention_backward_cases(const char *kernel)
{
    const bool solo = strcmp(kernel, "attention_backward_solo") == 0;
    for (int i = 3; i < ATTENTIONS && !quick; i++)
        attention_case(solo ? "attention_forward_solo" : "attention_forward_team", kernel, attentions[i],
                       betas[i % BETAS]);
}
TEST_PAIR(attention_backward, attention_backward_cases)

/* Two heads of rows of seven, of two samples, behind what is there. */
static void test_keep_rows(void)
{
    enum { SAMPLES = 2, ROWS = 3, HEADS = 2, WIDTH = 3, STEP = 7, TO_STEP = 19 };
    const size_t nx = SAMPLES * ROWS * STEP, ny = SAMPLES * HEADS * TO_STEP;
    float *x = numbers(nx), *y = numbers(ny), *past = numbers(SAMPLES);
    const int32_t places[SAMPLES] = { 0, 3 };
    double *want = malloc(ny * sizeof *want);
    memcpy(past, places, sizeof places);
    for (size_t i = 0; i < ny; i++) want[i] = (double)y[i];
    for (int n = 0; n < SAMPLES; n++)
        for (int t = 0; t < ROWS; t++)
            for (int c = 0; c < HEADS * WIDTH; c++)
                want[(n * HEADS + c / WIDTH) * TO_STEP + (places[n] + t) * WIDTH + c % WIDTH] =
                    (double)x[(n * ROWS + t) * STEP + c];
    array ax = upload(x, nx), ap = upload(past, SAMPLES), ay = upload(y, ny);
    launch_ok(
        (dml_launch){ .kernel = "keep_rows",
                      .size = { SAMPLES * ROWS * HEADS * WIDTH, 1 },
                      .buffer = { at(ax), at(ap), at(ay) },
                      .integer = { SAMPLES * ROWS * HEADS * WIDTH, ROWS, HEADS, WIDTH, STEP, TO_STEP } });
    download(ax, NULL), download(ap, NULL), download(ay, y);
    check("keep_rows", y, want, ny, 0);
    free(x), free(y), free(past), free(want);
}

/* Rows, positions, heads, width, turned heads; pairs in both ways, and back again over itself. */
static void test_rotary(void)
{
    static const int shapes[][5] = { { 1, 1, 1, 2, 1 }, { 6, 3, 4, 10, 3 }, { 35, 5, 2, 6, 2 } };
    for (int i = quick; i < 3; i++) {
        const int *s = shapes[i], half = s[3] / 2;
        const size_t n = (size_t)(s[0] * s[2] * s[3]), nt = (size_t)(s[1] * s[3]);
        const float beta = betas[i];
        float *x = numbers(n), *y = output(n, beta), *table = numbers(nt), *places = numbers((size_t)s[0]);
        const bool placed = i == 2; /* the last position first */
        double *want = malloc(n * sizeof *want), *same = malloc(n * sizeof *same);
        for (int k = 0; k < s[1] * half; k++) {
            float *cosine = table + k / half * s[3] + k % half;
            cosine[half] = (float)sin((double)k), *cosine = (float)cos((double)k);
        }
        for (int32_t row = 0; row < s[0]; row++) {
            const int32_t place = s[1] - 1 - row % s[1];
            memcpy(places + row, &place, sizeof place);
        }
        for (size_t k = 0; k < n; k++) {
            const int c = (int)(k % (size_t)s[3]), h = (int)(k / (size_t)s[3]) % s[2];
            const int row = (int)(k / (size_t)(s[3] * s[2])), pair = i % 2 ? c / 2 : c % half;
            const bool second = i % 2 ? c % 2 : c >= half;
            const size_t apart = i % 2 ? 1 : (size_t)half, other = second ? k - apart : k + apart;
            const int position = placed ? s[1] - 1 - row % s[1] : row % s[1];
            const float *angle = table + position * s[3] + pair;
            const double turned =
                (double)x[k] * (double)angle[0] + (second ? 1 : -1) * (double)x[other] * (double)angle[half];
            want[k] = (h < s[4] ? turned : (double)x[k]) + kept(beta, y[k]);
            same[k] = x[k];
        }
        array ax = upload(x, n), at_table = upload(table, nt), ay = upload(y, n);
        array ap = upload(places, (size_t)s[0]);
        dml_launch launch = { .kernel = "rotary",
                              .size = { n / 2, 1 },
                              .buffer = { at(ax), at(at_table), at(ay), at(ap) },
                              .integer = { (int)n / 2, s[1], s[2], s[3], s[4], i % 2, placed },
                              .real = { 1, beta } };
        launch_ok(launch);
        launch.real[1] = 0, launch.buffer[2] = at(ax);
        launch_ok(launch);
        launch.real[0] = -1;
        launch_ok(launch);
        download(ax, x), download(at_table, NULL), download(ay, y), download(ap, NULL);
        check("rotary", y, want, n, 2);
        check("rotary", x, same, n, 2);
        free(x), free(y), free(table), free(places), free(want), free(same);
    }
}

#endif
