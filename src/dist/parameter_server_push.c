#ifndef DML_DIST_PARAMETER_SERVER_PUSH_C
#define DML_DIST_PARAMETER_SERVER_PUSH_C

#include "dist/parameter_server_worker.h"

#include "base/float16.h"

#include <math.h>

/* The same elements, as they are. */
static bool dml__ps_push_all(dml_ps *ps, dml__ps_operation *operation, const void *data, dml_dtype dtype,
                             int64_t header[DML__PS_HEADER], int server, size_t from, size_t to)
{
    const size_t element = dml_dtype_size(dtype);
    header[DML__PS_BEGIN] = (int64_t)from;
    header[DML__PS_END] = (int64_t)to;
    header[DML__PS_SENT] = -1;
    for (size_t at = from, end; at < to; at = end) {
        end = dml__ps_push_piece(&ps->link, at, to);
        const char *piece = (const char *)data + (at - operation->begin) * element;
        if (!dml__ps_add(ps, operation,
                         dml_comm_send_start(ps->link.all, piece, end - at, dtype, ps->workers + server,
                                             DML__PS_TAG_UP)))
            return false;
    }
    return dml__ps_say(ps, server, header) == DML_OK;
}

/* Moves what is large enough from residual to values, with its places; returns how many. */
static size_t dml__ps_pick(dml_ps *ps, size_t from, size_t to)
{
    float *residual = ps->residual, *values = ps->values + from;
    int32_t *places = ps->places + from;
    size_t sent = 0;
    for (size_t i = from; i < to; i++) {
        if (!(fabsf(residual[i]) <= ps->threshold)) { /* a NaN goes */
            values[sent] = residual[i];
            places[sent++] = (int32_t)(i - from);
            residual[i] = 0;
        }
    }
    return sent;
}

/* Where most is sent, all is, with zeros for the rest: that is less than the places. */
static void dml__ps_spread(dml_ps *ps, size_t from, size_t to, size_t sent)
{
    float *values = ps->values + from;
    size_t next = to - from;
    for (size_t k = sent; k-- > 0;) {
        const float value = values[k];
        const size_t place = (size_t)ps->places[from + k];
        while (next > place + 1) values[--next] = 0;
        values[--next] = value;
    }
    while (next > 0) values[--next] = 0;
}

/* One piece of those elements that are large enough. */
static bool dml__ps_push_some(dml_ps *ps, dml__ps_operation *operation, int64_t header[DML__PS_HEADER],
                              int server, size_t from, size_t to)
{
    const dml_dtype dtype = ps->link.push_dtype;
    const size_t element = dml_dtype_size(dtype), length = to - from;
    size_t sent = dml__ps_pick(ps, from, to);
    const bool dense = sent * (element + sizeof(int32_t)) >= length * element;
    if (dense) {
        dml__ps_spread(ps, from, to, sent);
        sent = length;
    }
    const void *values = ps->values + from;
    if (dtype != DML_F32) {
        dml__narrow_line(dml__ps_isa(ps), dtype, sent, ps->values + from, ps->narrow + from);
        values = ps->narrow + from;
    }
    header[DML__PS_BEGIN] = (int64_t)from;
    header[DML__PS_END] = (int64_t)to;
    header[DML__PS_SENT] = dense ? -1 : (int64_t)sent;
    const int to_rank = ps->workers + server;
    if (!dense && !dml__ps_add(ps, operation,
                               dml_comm_send_start(ps->link.all, ps->places + from, sent, DML_I32, to_rank,
                                                   DML__PS_TAG_PLACES)))
        return false;
    return dml__ps_add(ps, operation,
                       dml_comm_send_start(ps->link.all, values, sent, dtype, to_rank, DML__PS_TAG_UP)) &&
           dml__ps_say(ps, server, header) == DML_OK;
}

static bool dml__ps_push_range(dml_ps *ps, dml__ps_operation *operation, const float *g,
                               int64_t header[DML__PS_HEADER], int server, size_t from, size_t to)
{
    const dml_dtype dtype = ps->link.push_dtype;
    const float *mine = g + (from - operation->begin);
    if (header[DML__PS_VECTOR] != 0 || (!ps->residual && dtype == DML_F32))
        return dml__ps_push_all(ps, operation, g, DML_F32, header, server, from, to);
    if (!ps->residual) {
        dml__narrow_line(dml__ps_isa(ps), dtype, to - from, mine, ps->narrow + from);
        return dml__ps_push_all(ps, operation, ps->narrow + operation->begin, dtype, header, server, from,
                                to);
    }
    for (size_t i = 0; i < to - from; i++) ps->residual[from + i] += mine[i];
    for (size_t at = from, end; at < to; at = end) {
        end = dml__ps_push_piece(&ps->link, at, to);
        if (!dml__ps_push_some(ps, operation, header, server, at, end)) return false;
    }
    return true;
}

static dml_ps_ticket dml__ps_push_in(dml_ps *ps, int vector, const float *g, size_t begin, size_t end,
                                     double weight)
{
    int64_t header[DML__PS_HEADER];
    size_t from, to;
    if (!dml__ps_check_range(ps, "a push", g, vector, begin, end)) return 0;
    const bool buffered = vector == 0 && (ps->residual || ps->link.push_dtype != DML_F32);
    const size_t pieces = (end - begin) / ps->link.piece + 1 + (size_t)ps->servers;
    dml__ps_operation *operation = dml__ps_begin(ps, false, buffered, begin, end, 2 * pieces);
    if (!operation) return 0;
    for (int s = 0; s < ps->servers; s++) {
        if (!dml__ps_overlap(ps, s, begin, end, &from, &to)) continue;
        dml__ps_header(ps, header, DML__PS_PUSH, vector, from, to);
        header[DML__PS_REAL] = dml__ps_bits(weight);
        header[DML__PS_REAL_2] = dml__ps_bits(ps->rate);
        if (!dml__ps_push_range(ps, operation, g, header, s, from, to)) return 0;
    }
    return ps->next;
}

DML_API dml_ps_ticket dml_ps_push(dml_ps *ps, const float *g, size_t begin, size_t end, double weight)
{
    if (ps && (!(weight >= 0) || !(weight <= 1e30))) {
        dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT, "a push of weight %g; it must be 0 or more", weight);
        return 0;
    }
    return dml__ps_push_in(ps, 0, g, begin, end, weight);
}

DML_API dml_ps_ticket dml_ps_push_to(dml_ps *ps, int vector, const float *g, size_t begin, size_t end)
{
    return dml__ps_push_in(ps, vector < 1 ? -1 : vector, g, begin, end, 1);
}

#endif
