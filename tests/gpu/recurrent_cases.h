/* recurrent_cases.h: the kernels of recurrent.cl, for kernels_test.c: a step of each cell in float64, and its
   gradients by central differences. */
#ifndef DML_TESTS_GPU_RECURRENT_CASES_H
#define DML_TESTS_GPU_RECURRENT_CASES_H

#include "kernel_cases.h"

/* h and c become those behind a step whose gates' sums, in the order of the work, are z. */
static void recurrent_step(int cell, const double z[4], double *h, double *c)
{
    if (cell < 2) {
        *h = cell ? fmax(z[0], 0) : tanh(z[0]);
    } else if (cell == 2) {
        *c = *c / (1 + exp(-z[1])) + tanh(z[2]) / (1 + exp(-z[0]));
        *h = tanh(*c) / (1 + exp(-z[3]));
    } else {
        const double u = 1 / (1 + exp(-z[2]));
        *h = (1 - u) * tanh(z[0] + z[3] / (1 + exp(-z[1]))) + u * *h;
    }
}

/* cell, batch, steps, units, step, next, lengths, biases, y */
static const int recurrents[][9] = {
    { 0, 1, 1, 1, 0, 1, 0, 0, 0 }, { 0, 3, 4, 5, 1, 2, 1, 1, 1 },    { 1, 2, 3, 300, 2, 1, 0, 1, 1 },
    { 2, 3, 4, 5, 1, 2, 1, 1, 1 }, { 2, 2, 3, 130, 0, -1, 1, 0, 0 }, { 2, 2, 2, 3, 1, 2, 0, 1, 1 },
    { 3, 3, 4, 5, 1, 2, 1, 1, 1 }, { 3, 2, 3, 130, 0, -1, 1, 0, 0 }, { 3, 2, 2, 3, 1, 0, 0, 1, 1 },
};
enum { RECURRENTS = sizeof recurrents / sizeof recurrents[0] };

typedef struct recurrent_data {
    size_t gates, width, states, n, ny;
    float *z, *state, *y, *carried, *b_ih, *b_hh;
    int32_t lengths[3];
} recurrent_data;

static recurrent_data recurrent_open(const int *r)
{
    const size_t batch = (size_t)r[1], steps = (size_t)r[2], units = (size_t)r[3];
    recurrent_data d;
    d.width = r[0] > 1 ? 4 : 1;
    d.n = batch * units;
    d.gates = d.n * steps * d.width;
    d.states = d.n * (steps + 1) * (r[0] == 2 ? 2 : 1);
    d.ny = batch * (steps + 2) * units;
    d.z = numbers(d.gates), d.state = numbers(d.states), d.y = numbers(d.ny), d.carried = numbers(2 * d.n);
    d.b_ih = numbers(4 * units), d.b_hh = numbers(4 * units);
    for (int b = 0; b < 3; b++) d.lengths[b] = (r[4] + b) % (r[2] + 1);
    return d;
}

static void recurrent_close(recurrent_data *d)
{
    free(d->z), free(d->state), free(d->y), free(d->carried), free(d->b_ih), free(d->b_hh);
}

/* Where the state before a step of a sample lies, and how far behind it its c. */
static size_t recurrent_place(const int *r, int step, size_t b, size_t j, size_t *c)
{
    const size_t batch = (size_t)r[1], steps = (size_t)r[2], units = (size_t)r[3];
    const bool last = step < 0 || step >= r[2];
    *c = batch * units * (last ? 1 : steps);
    return last ? batch * steps * units * (r[0] == 2 ? 2 : 1) + b * units + j
                : (b * steps + (size_t)step) * units + j;
}

static void recurrent_case(const int *r, bool back)
{
    const size_t units = (size_t)r[3];
    recurrent_data d = recurrent_open(r);
    double *z = malloc(d.gates * sizeof *z), *state = malloc(d.states * sizeof *state);
    double *y = malloc(d.ny * sizeof *y), *carried = malloc(2 * d.n * sizeof *carried);
    array ay = upload(d.y, d.ny), ac = upload(d.carried, 2 * d.n), al = upload(d.lengths, 3);
    for (size_t i = 0; i < d.ny; i++) y[i] = (double)d.y[i];
    for (size_t i = 0; i < 2 * d.n; i++) carried[i] = (double)d.carried[i];
    for (size_t i = 0; i < d.gates; i++) z[i] = (double)d.z[i];
    float *state_now = malloc(d.states * sizeof *state_now);
    memcpy(state_now, d.state, d.states * sizeof *state_now);
    for (size_t i = 0; i < d.n; i++) {
        const size_t b = i / units, j = i % units;
        const size_t gate = (b * (size_t)r[2] + (size_t)r[4]) * d.width * units + j;
        size_t c_before, c_behind;
        const size_t before = recurrent_place(r, r[4], b, j, &c_before);
        const size_t behind = recurrent_place(r, r[5], b, j, &c_behind);
        const bool counts = !r[6] || r[4] < d.lengths[b], lstm = r[0] == 2;
        double sums[4] = { 0 }, h = (double)d.state[before],
               c = lstm ? (double)d.state[before + c_before] : 0;
        const double h0 = h, c0 = c;
        for (size_t g = 0; g < d.width; g++) { /* of gru, the sums are n r z and the state's part of n */
            const size_t of_ih = r[0] == 3 ? (g == 0 ? 2 : g - 1) : g, of_hh = r[0] == 3 ? g - 1 : g;
            sums[g] = z[gate + g * units];
            if (back || !r[7]) continue;
            if (r[0] != 3 || g < 3) sums[g] += (double)d.b_ih[of_ih * units + j];
            if (r[0] != 3 || g > 0) sums[g] += (double)d.b_hh[of_hh * units + j];
        }
        if (counts) recurrent_step(r[0], sums, &h, &c);
        state_now[behind] = (float)h;
        if (lstm) state_now[behind + c_behind] = (float)c;
        if (!back) y[b * (size_t)(r[2] + 2) * units + (size_t)r[4] * units + j] = counts ? h : 0;
        const double dh =
            carried[i] + (back && r[8] ? y[b * (size_t)(r[2] + 2) * units + (size_t)r[4] * units + j] : 0);
        const double dc = lstm ? carried[d.n + i] : 0;
        for (size_t g = 0; g < d.width; g++) {
            const double sigmoid = 1 / (1 + exp(-sums[g]));
            double gate_now = r[0] < 2 ? h : sigmoid;
            if (r[0] == 2 && g == 2) gate_now = tanh(sums[g]);
            if (r[0] == 3 && g == 0) gate_now = tanh(sums[0] + sums[3] / (1 + exp(-sums[1])));
            if (r[0] == 3 && g == 3) gate_now = sums[3];
            if (!back && counts) z[gate + g * units] = gate_now;
            if (!back) continue;
            d.z[gate + g * units] = (float)gate_now;
            double loss[2];
            for (int side = 0; side < 2; side++) {
                double at[4], hh = h0, cc = c0;
                memcpy(at, sums, sizeof at);
                at[g] += side ? -1e-5 : 1e-5;
                recurrent_step(r[0], at, &hh, &cc);
                loss[side] = dh * hh + dc * cc;
            }
            z[gate + g * units] = counts ? (loss[0] - loss[1]) / 2e-5 : 0;
        }
        if (counts && back) {
            carried[i] = r[0] == 3 ? dh / (1 + exp(-sums[2])) : 0;
            if (lstm)
                carried[d.n + i] =
                    (dc + dh / (1 + exp(-sums[3])) * (1 - tanh(c) * tanh(c))) / (1 + exp(-sums[1]));
        }
    }
    for (size_t i = 0; i < d.states; i++) state[i] = (double)state_now[i];
    array az = upload(d.z, d.gates), as = upload(back ? state_now : d.state, d.states);
    array bi = upload(d.b_ih, 4 * units), bh = upload(d.b_hh, 4 * units);
    const dml_ref none = { NULL, 0 };
    dml_launch launch = { .kernel = back ? "recurrent_backward" : "recurrent_forward",
                          .size = { d.n, 1 },
                          .buffer = { at(az), at(as), r[8] ? at(ay) : none, r[6] ? at(al) : none, none,
                                      none },
                          .integer = { r[0], r[1], r[2], r[3], r[4], r[5], (r[2] + 2) * r[3] } };
    if (back)
        launch.buffer[4] = at(ac);
    else if (r[7])
        launch.buffer[4] = at(bi), launch.buffer[5] = at(bh);
    launch_ok(launch);
    float *got_y = malloc(d.ny * sizeof *got_y);
    download(az, d.z), download(as, d.state), download(ay, got_y), download(ac, d.carried),
        download(al, NULL);
    download(bi, NULL), download(bh, NULL);
    check(launch.kernel, d.z, z, d.gates, 1);
    check(launch.kernel, d.state, state, d.states, 1);
    if (r[8]) check(launch.kernel, got_y, y, d.ny, 1);
    check(launch.kernel, d.carried, carried, 2 * d.n, 1);
    free(z), free(state), free(y), free(carried), free(state_now), free(got_y);
    recurrent_close(&d);
}

static void test_recurrent_forward(void)
{
    for (int s = quick; s < RECURRENTS; s += quick ? 4 : 1) recurrent_case(recurrents[s], false);
}

static void test_recurrent_backward(void)
{
    for (int s = quick; s < RECURRENTS; s += quick ? 4 : 1) recurrent_case(recurrents[s], true);
}

static void test_recurrent_copy(void)
{
    enum { BATCH = 7, UNITS = 41, FROM = 50, TO = 43 };
    for (int k = 0; k < 3; k++) { /* rows, the same row, zeros */
        float *from = numbers(BATCH * FROM), *to = numbers(BATCH * TO);
        double want[BATCH * TO];
        for (int i = 0; i < BATCH * TO; i++)
            want[i] = i % TO >= UNITS ? (double)to[i]
                      : k == 2        ? 0
                                      : (double)from[(k ? 0 : i / TO * FROM) + i % TO];
        array af = upload(from, BATCH * FROM), at_to = upload(to, BATCH * TO);
        const dml_ref none = { NULL, 0 };
        launch_ok((dml_launch){ .kernel = "recurrent_copy",
                                .size = { BATCH * UNITS, 1 },
                                .buffer = { k == 2 ? none : at(af), at(at_to) },
                                .integer = { BATCH, UNITS, k ? 0 : FROM, TO } });
        download(af, NULL), download(at_to, to);
        check("recurrent_copy", to, want, BATCH * TO, 0);
        free(from), free(to);
    }
}

#endif
