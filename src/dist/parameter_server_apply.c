#ifndef DML_DIST_PARAMETER_SERVER_APPLY_C
#define DML_DIST_PARAMETER_SERVER_APPLY_C

#include "dist/parameter_server_server.h"

#include <math.h>

#define DML__PS_BLOCK 65536 /* elements that are applied at once, and the rest of a row */

/* sum += weight x */
static void dml__ps_add_weighted(const dml__ps_server *server, size_t n, double weight, const float *x,
                                 float *sum)
{
    const float factor = (float)weight;
    if (factor == 1.0f)
        dml__reduce_elements(&server->adding, sum, sum, x, n);
    else
        for (size_t i = 0; i < n; i++) sum[i] += factor * x[i];
}

static void dml__ps_scale(size_t n, double factor, float *x)
{
    if (factor == 1) return;
    for (size_t i = 0; i < n; i++) x[i] = (float)factor * x[i];
}

/* Elements of the range follow g. */
static void dml__ps_apply_to(dml__ps_server *server, size_t begin, size_t count, const float *g,
                             uint64_t step, double rate)
{
    float *w = server->vectors + begin;
    dml_status status = DML_OK;
    if (server->rule.apply)
        status = server->rule.apply(server->rule.user, server->link.begin + begin, count, w, g, step, rate);
    else
        dml__ps_add_weighted(server, count, rate, g, w);
    if (status != DML_OK)
        dml__ps_note(server, dml__ps_fail(server->link.all, status,
                                          "the server's rule failed for elements %zu to %zu: %s",
                                          server->link.begin + begin, server->link.begin + begin + count,
                                          dml_status_string(status)));
}

DML__LOCAL void dml__ps_apply_clock(dml__ps_server *server)
{
    dml__ps_weights *weights = &server->weights;
    const size_t first = server->link.begin;
    for (size_t run = 0; run < weights->runs; run++) {
        const size_t end = dml__ps_weights_end(weights, run);
        if (!(weights->weight[run] > 0)) continue;
        for (size_t at = weights->begin[run], n; at < end; at += n) {
            const size_t block = dml__ps_between_rows(&server->link, first + at + DML__PS_BLOCK) - first;
            n = (block < end ? block : end) - at;
            dml__ps_scale(n, 1 / weights->weight[run], server->sum + at);
            dml__ps_apply_to(server, at, n, server->sum + at, server->applied, server->rate);
            memset(server->sum + at, 0, n * sizeof *server->sum);
        }
    }
    dml__ps_weights_clear(weights);
    server->applied++;
    server->report.clocks = server->applied;
}

static void dml__ps_add_to_clock(dml__ps_server *server, size_t begin, size_t end, double weight,
                                 const float *x)
{
    if (!(weight > 0)) return;
    dml__ps_add_weighted(server, end - begin, weight, x, server->sum + begin);
    if (!dml__ps_weights_add(&server->weights, begin, end, weight))
        dml__ps_note(server, dml__ps_fail(server->link.all, DML_ERROR_ARGUMENT,
                                          "the workers' pushes of a clock cut a server's %zu elements into "
                                          "more than %zu ranges that are unlike; push larger ones",
                                          server->count, server->weights.room));
}

DML__LOCAL void dml__ps_take(dml__ps_server *server, dml__ps_guest *guest, size_t begin, size_t end, float *x)
{
    const int64_t *header = guest->header;
    const int vector = (int)header[DML__PS_VECTOR];
    const double weight = dml__ps_real(header[DML__PS_REAL]), rate = dml__ps_real(header[DML__PS_REAL_2]);
    if (vector > 0) {
        dml__ps_add_weighted(server, end - begin, 1, x,
                             server->vectors + (size_t)vector * server->count + begin);
    } else if (server->consistency != DML_PS_SYNCHRONOUS) {
        dml__ps_scale(end - begin, weight, x);
        dml__ps_apply_to(server, begin, end - begin, x, server->report.clocks, rate);
    } else if ((uint64_t)header[DML__PS_AT] == server->applied) {
        dml__ps_add_to_clock(server, begin, end, weight, x);
    }
}

/* ---- work on vectors ---- */

static double dml__ps_dot_of(size_t n, const float *x, const float *y)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

static double dml__ps_largest_of(size_t n, const float *x)
{
    float largest = 0;
    for (size_t i = 0; i < n; i++)
        if (fabsf(x[i]) > largest || isnan(x[i])) largest = fabsf(x[i]); /* a NaN stays */
    return (double)largest;
}

DML__LOCAL double dml__ps_work(dml__ps_server *server, const int64_t *header)
{
    const size_t n = server->count;
    const float *x = server->vectors + (size_t)header[DML__PS_VECTOR] * n;
    float *y = server->vectors + (size_t)header[DML__PS_BEGIN] * n;
    const float alpha = (float)dml__ps_real(header[DML__PS_REAL]),
                beta = (float)dml__ps_real(header[DML__PS_REAL_2]);
    double value = 0;
    if (header[DML__PS_KIND] == DML__PS_DOT) value = dml__ps_dot_of(n, x, y);
    if (header[DML__PS_KIND] == DML__PS_LARGEST) value = dml__ps_largest_of(n, x);
    if (header[DML__PS_KIND] == DML__PS_AXPBY) /* of what isn't a number times 0 nothing is left */
        for (size_t i = 0; i < n; i++)
            y[i] = (alpha == 0.0f ? 0.0f : alpha * x[i]) + (beta == 0.0f ? 0.0f : beta * y[i]);
    return value;
}

#endif
