#ifndef DML_DIST_PARAMETER_SERVER_C
#define DML_DIST_PARAMETER_SERVER_C

#include "dist/parameter_server.h"

#include "base/float16.h"
#include "comm/job.h"
#include "dist/cluster_internal.h"
#include "dist/parameter_server_internal.h"

#include <math.h>

/* The workers' side. What is under way is a queue: its requests lie in a ring, those of each push and pull
   one behind the other, and are waited for in that order. */

#define DML__PS_MOST_OPERATIONS 256 /* under way; another waits for the oldest */

typedef struct dml__ps_operation {
    size_t begin, end; /* of the vector */
    float *to;         /* of a pull that comes in 16 bits: where it belongs; else NULL */
    bool buffered;     /* a push out of ps->values: none of the same elements may begin */
    bool pull;
    size_t requests;                    /* in the ring */
    int64_t (*answers)[DML__PS_ANSWER]; /* (servers) */
} dml__ps_operation;

struct dml_ps {
    dml__memory memory;
    dml__ps_link link;
    int workers, servers, living;
    size_t count;
    double rate;
    uint64_t clock;
    float threshold;
    /* The queue: tickets first .. next - 1. */
    uint64_t first, next;
    dml__ps_operation operations[DML__PS_MOST_OPERATIONS];
    dml_request **ring; /* (room) */
    size_t room, oldest, used;
    int64_t (*answers)[DML__PS_ANSWER]; /* (operations, servers) */
    /* What goes or comes otherwise than it lies in the caller's memory. */
    float *residual;   /* (count): what was pushed and not sent; NULL: everything is */
    float *values;     /* (count): what of it is sent */
    int32_t *places;   /* (count): where it is, in its piece */
    uint16_t *narrow;  /* (count): of pushes */
    uint16_t *arrived; /* (count): of pulls */
};

/* ---- the queue ---- */

static dml_isa dml__ps_isa(const dml_ps *ps)
{
    return ps->link.all->job->isa;
}

static void dml__ps_take_answers(dml_ps *ps, const dml__ps_operation *operation)
{
    int living = 0;
    for (int s = 0; operation->pull && s < ps->servers; s++) {
        const int64_t *answer = operation->answers[s];
        if (answer[DML__PS_LIVING] == 0) continue; /* this server had no part of it */
        if ((uint64_t)answer[DML__PS_CLOCKS] > ps->clock && ps->link.terms[DML__PS_BACKUP])
            ps->clock = (uint64_t)answer[DML__PS_CLOCKS];
        if ((int)answer[DML__PS_LIVING] > living) living = (int)answer[DML__PS_LIVING];
    }
    if (living) ps->living = living;
}

/* Waits for the oldest push or pull. */
static dml_status dml__ps_finish_oldest(dml_ps *ps)
{
    dml__ps_operation *operation = &ps->operations[ps->first % DML__PS_MOST_OPERATIONS];
    dml_status status = DML_OK;
    for (size_t i = 0; i < operation->requests; i++) {
        const dml_status one = dml_comm_wait(ps->link.all, ps->ring[ps->oldest]);
        if (status == DML_OK) status = one;
        ps->oldest = (ps->oldest + 1) % ps->room;
        ps->used--;
    }
    ps->first++;
    if (status != DML_OK) return status;
    dml__ps_take_answers(ps, operation);
    if (operation->to)
        dml__widen_line(dml__ps_isa(ps), ps->link.pull_dtype, operation->end - operation->begin,
                        ps->arrived + operation->begin, operation->to);
    return DML_OK;
}

/* A place for another, which shares no buffer with one that is under way. */
static dml__ps_operation *dml__ps_begin(dml_ps *ps, bool pull, bool buffered, size_t begin, size_t end)
{
    for (uint64_t t = ps->next; buffered && t > ps->first; t--) {
        const dml__ps_operation *o = &ps->operations[(t - 1) % DML__PS_MOST_OPERATIONS];
        if (o->pull != pull || o->begin >= end || begin >= o->end) continue;
        while (ps->first < t)
            if (dml__ps_finish_oldest(ps) != DML_OK) return NULL;
        break;
    }
    while (ps->next - ps->first == DML__PS_MOST_OPERATIONS)
        if (dml__ps_finish_oldest(ps) != DML_OK) return NULL;
    dml__ps_operation *operation = &ps->operations[ps->next % DML__PS_MOST_OPERATIONS];
    int64_t(*answers)[DML__PS_ANSWER] = operation->answers;
    memset(operation, 0, sizeof *operation);
    operation->answers = answers;
    memset(answers, 0, (size_t)ps->servers * sizeof *answers);
    operation->pull = pull;
    operation->buffered = buffered;
    operation->begin = begin;
    operation->end = end;
    ps->next++;
    return operation;
}

/* Room for another request of the newest operation, whose own have to be waited for last. */
static bool dml__ps_add(dml_ps *ps, dml__ps_operation *operation, dml_request *request)
{
    if (!request) return false;
    ps->ring[(ps->oldest + ps->used) % ps->room] = request;
    ps->used++;
    operation->requests++;
    return true;
}

/* Until `requests` more fit into the ring; the newest operation is being made and has none yet. */
static bool dml__ps_make_room(dml_ps *ps, size_t requests)
{
    while (ps->room - ps->used < requests && ps->first + 1 < ps->next)
        if (dml__ps_finish_oldest(ps) != DML_OK) return false;
    return true;
}

static dml_status dml__ps_say(dml_ps *ps, int server, const int64_t *header)
{
    return dml_comm_send(ps->link.all, header, DML__PS_HEADER, DML_I64, ps->workers + server,
                         DML__PS_TAG_HEADER);
}

static void dml__ps_header(const dml_ps *ps, int64_t header[DML__PS_HEADER], dml__ps_kind kind, int vector,
                           size_t begin, size_t end)
{
    memset(header, 0, DML__PS_HEADER * sizeof *header);
    header[DML__PS_KIND] = (int64_t)kind;
    header[DML__PS_VECTOR] = vector;
    header[DML__PS_BEGIN] = (int64_t)begin;
    header[DML__PS_END] = (int64_t)end;
    header[DML__PS_AT] = (int64_t)ps->clock;
    header[DML__PS_SENT] = -1;
}

/* What of [begin, end) is server s's. */
static bool dml__ps_overlap(const dml_ps *ps, int s, size_t begin, size_t end, size_t *from, size_t *to)
{
    const size_t first = dml__ps_range(ps->count, ps->servers, s),
                 last = dml__ps_range(ps->count, ps->servers, s + 1);
    *from = begin > first ? begin : first;
    *to = end < last ? end : last;
    return *from < *to;
}

static bool dml__ps_check_range(dml_ps *ps, const char *call, const void *data, int vector, size_t begin,
                                size_t end)
{
    if (!ps || dml_comm_status(ps->link.all)) return false;
    if (begin <= end && end <= ps->count && (data || begin == end) && vector >= 0 &&
        vector <= (int)ps->link.terms[DML__PS_VECTORS])
        return true;
    dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT,
                 "%s of elements %zu to %zu of vector %d%s; there are %zu elements and vectors 0 to %d", call,
                 begin, end, vector, data ? "" : " with NULL", ps->count,
                 (int)ps->link.terms[DML__PS_VECTORS]);
    return false;
}

/* ---- pushes ---- */

/* The same elements, as they are. */
static bool dml__ps_push_all(dml_ps *ps, dml__ps_operation *operation, const void *data, dml_dtype dtype,
                             int64_t header[DML__PS_HEADER], int server, size_t from, size_t to)
{
    const size_t element = dml_dtype_size(dtype);
    header[DML__PS_BEGIN] = (int64_t)from;
    header[DML__PS_END] = (int64_t)to;
    header[DML__PS_SENT] = -1;
    for (size_t at = from; at < to; at += ps->link.piece) {
        const size_t count = to - at < ps->link.piece ? to - at : ps->link.piece;
        const char *piece = (const char *)data + (at - operation->begin) * element;
        if (!dml__ps_add(
                ps, operation,
                dml_comm_send_start(ps->link.all, piece, count, dtype, ps->workers + server, DML__PS_TAG_UP)))
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
    for (size_t at = from; at < to; at += ps->link.piece)
        if (!dml__ps_push_some(ps, operation, header, server, at,
                               to - at < ps->link.piece ? to : at + ps->link.piece))
            return false;
    return true;
}

static dml_ps_ticket dml__ps_push_in(dml_ps *ps, int vector, const float *g, size_t begin, size_t end,
                                     double weight)
{
    int64_t header[DML__PS_HEADER];
    size_t from, to;
    if (!dml__ps_check_range(ps, "a push", g, vector, begin, end)) return 0;
    const bool buffered = vector == 0 && (ps->residual || ps->link.push_dtype != DML_F32);
    dml__ps_operation *operation = dml__ps_begin(ps, false, buffered, begin, end);
    const size_t pieces = (end - begin) / ps->link.piece + 1 + (size_t)ps->servers;
    if (!operation || !dml__ps_make_room(ps, 2 * pieces)) return 0;
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

/* ---- pulls ---- */

static bool dml__ps_pull_range(dml_ps *ps, dml__ps_operation *operation, void *data, dml_dtype dtype,
                               int vector, int server, size_t from, size_t to)
{
    int64_t header[DML__PS_HEADER];
    const size_t element = dml_dtype_size(dtype);
    const int rank = ps->workers + server;
    if (!dml__ps_add(ps, operation,
                     dml_comm_receive_start(ps->link.all, operation->answers[server], DML__PS_ANSWER, DML_I64,
                                            rank, DML__PS_TAG_ANSWER)))
        return false;
    for (size_t at = from; at < to; at += ps->link.piece) {
        const size_t count = to - at < ps->link.piece ? to - at : ps->link.piece;
        char *piece = (char *)data + (at - operation->begin) * element;
        if (!dml__ps_add(ps, operation,
                         dml_comm_receive_start(ps->link.all, piece, count, dtype, rank, DML__PS_TAG_DOWN)))
            return false;
    }
    dml__ps_header(ps, header, DML__PS_PULL, vector, from, to);
    return dml__ps_say(ps, server, header) == DML_OK;
}

DML_API dml_ps_ticket dml_ps_pull_from(dml_ps *ps, int vector, float *x, size_t begin, size_t end)
{
    size_t from, to;
    if (!dml__ps_check_range(ps, "a pull", x, vector, begin, end)) return 0;
    const dml_dtype dtype = vector ? DML_F32 : ps->link.pull_dtype;
    const bool buffered = dtype != DML_F32;
    dml__ps_operation *operation = dml__ps_begin(ps, true, buffered, begin, end);
    const size_t pieces = (end - begin) / ps->link.piece + 1 + (size_t)ps->servers;
    if (!operation || !dml__ps_make_room(ps, pieces + (size_t)ps->servers)) return 0;
    operation->to = buffered ? x : NULL;
    void *data = buffered ? (void *)(ps->arrived + begin) : (void *)x;
    for (int s = 0; s < ps->servers; s++)
        if (dml__ps_overlap(ps, s, begin, end, &from, &to) &&
            !dml__ps_pull_range(ps, operation, data, dtype, vector, s, from, to))
            return 0;
    return ps->next;
}

DML_API dml_ps_ticket dml_ps_pull(dml_ps *ps, float *w, size_t begin, size_t end)
{
    return dml_ps_pull_from(ps, 0, w, begin, end);
}

/* ---- the rest ---- */

DML_API dml_status dml_ps_wait(dml_ps *ps, dml_ps_ticket ticket)
{
    if (!ps) return DML_ERROR_MEMORY;
    dml_status status = ticket ? DML_OK : dml_comm_status(ps->link.all);
    if (!ticket && status == DML_OK)
        return dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT, "waited for a push or pull that never began");
    while (ps->first < ps->next && ps->first < ticket) {
        const dml_status one = dml__ps_finish_oldest(ps);
        if (status == DML_OK) status = one;
    }
    return status;
}

static dml_status dml__ps_say_all(dml_ps *ps, const int64_t *header)
{
    dml_status status = DML_OK;
    for (int s = 0; s < ps->servers && status == DML_OK; s++) status = dml__ps_say(ps, s, header);
    return status;
}

DML_API dml_status dml_ps_clock(dml_ps *ps)
{
    int64_t header[DML__PS_HEADER];
    if (!ps) return DML_ERROR_MEMORY;
    dml__ps_header(ps, header, DML__PS_CLOCK, 0, 0, 0);
    header[DML__PS_REAL_2] = dml__ps_bits(ps->rate);
    ps->clock++;
    return dml__ps_say_all(ps, header);
}

/* All servers do one thing, and their answers are in order. */
static dml_status dml__ps_command(dml_ps *ps, dml__ps_kind kind, int x, int y, double alpha, double beta,
                                  dml__ps_operation **done)
{
    int64_t header[DML__PS_HEADER];
    if (!ps) return DML_ERROR_MEMORY;
    const int vectors = (int)ps->link.terms[DML__PS_VECTORS];
    if (x < 0 || x > vectors || y < 0 || y > vectors)
        return dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT,
                            "work on the servers' vectors %d and %d asked for; there are 0 to %d", x, y,
                            vectors);
    dml__ps_operation *operation = dml__ps_begin(ps, true, false, 0, 0);
    if (!operation || !dml__ps_make_room(ps, (size_t)ps->servers)) return dml_comm_status(ps->link.all);
    dml__ps_header(ps, header, kind, x, (size_t)y, (size_t)y);
    header[DML__PS_REAL] = dml__ps_bits(alpha);
    header[DML__PS_REAL_2] = dml__ps_bits(beta);
    for (int s = 0; s < ps->servers; s++)
        if (!dml__ps_add(ps, operation,
                         dml_comm_receive_start(ps->link.all, operation->answers[s], DML__PS_ANSWER, DML_I64,
                                                ps->workers + s, DML__PS_TAG_ANSWER)))
            return dml_comm_status(ps->link.all);
    *done = operation;
    const dml_status status = dml__ps_say_all(ps, header);
    return status == DML_OK ? dml_ps_wait(ps, ps->next) : status;
}

DML_API dml_status dml_ps_axpby(dml_ps *ps, double alpha, int x, double beta, int y)
{
    dml__ps_operation *done = NULL;
    return dml__ps_command(ps, DML__PS_AXPBY, x, y, alpha, beta, &done);
}

DML_API dml_status dml_ps_dot(dml_ps *ps, int x, int y, double *dot)
{
    dml__ps_operation *done = NULL;
    const dml_status status = dml__ps_command(ps, DML__PS_DOT, x, y, 0, 0, &done);
    *dot = 0;
    for (int s = 0; status == DML_OK && s < ps->servers; s++)
        *dot += dml__ps_real(done->answers[s][DML__PS_VALUE]);
    return status;
}

DML_API dml_status dml_ps_largest(dml_ps *ps, int x, double *largest)
{
    dml__ps_operation *done = NULL;
    const dml_status status = dml__ps_command(ps, DML__PS_LARGEST, x, x, 0, 0, &done);
    *largest = 0;
    for (int s = 0; status == DML_OK && s < ps->servers; s++) {
        const double one = dml__ps_real(done->answers[s][DML__PS_VALUE]);
        if (!(one <= *largest)) *largest = one;
    }
    return status;
}

DML_API dml_status dml_ps_fence(dml_ps *ps)
{
    dml__ps_operation *done = NULL;
    return dml__ps_command(ps, DML__PS_FENCE, 0, 0, 0, 0, &done);
}

DML_API void dml_ps_set_rate(dml_ps *ps, double rate)
{
    if (ps) ps->rate = rate;
}

DML_API uint64_t dml_ps_clocks(const dml_ps *ps)
{
    return ps ? ps->clock : 0;
}

DML_API int dml_ps_workers(const dml_ps *ps)
{
    return ps ? ps->living : 0;
}

DML_API dml_comm *dml_ps_workers_comm(const dml_ps *ps)
{
    return ps ? ps->link.peers : NULL;
}

/* ---- opening and closing ---- */

static void dml__ps_free(dml_ps *ps)
{
    dml__memory memory = ps->memory;
    void *const parts[] = { ps->ring,   ps->answers, ps->residual, ps->values,
                            ps->places, ps->narrow,  ps->arrived };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) dml__release(&memory, parts[i]);
    dml__ps_part(&ps->link, &memory);
    dml__release(&memory, ps);
}

static bool dml__ps_allocate(dml_ps *ps, const dml_ps_options *o)
{
    dml__memory *memory = &ps->memory;
    const size_t n = ps->count, servers = (size_t)ps->servers;
    ps->room = (size_t)ps->link.all->job->max_requests / 4 * 3; /* the rest is the caller's */
    ps->ring = (dml_request **)dml__allocate_array(memory, ps->room, sizeof *ps->ring);
    ps->answers = (int64_t(*)[DML__PS_ANSWER])dml__allocate_array(memory, servers * DML__PS_MOST_OPERATIONS,
                                                                  sizeof *ps->answers);
    bool got = ps->ring && ps->answers;
    if (got && o->threshold > 0.0f) {
        ps->residual = (float *)dml__allocate_array(memory, n, sizeof *ps->residual);
        ps->values = (float *)dml__allocate_array(memory, n, sizeof *ps->values);
        ps->places = (int32_t *)dml__allocate_array(memory, n, sizeof *ps->places);
        got = ps->residual && ps->values && ps->places;
    }
    if (got && ps->link.push_dtype != DML_F32) {
        ps->narrow = (uint16_t *)dml__allocate_array(memory, n, sizeof *ps->narrow);
        got = ps->narrow != NULL;
    }
    if (got && ps->link.pull_dtype != DML_F32) {
        ps->arrived = (uint16_t *)dml__allocate_array(memory, n, sizeof *ps->arrived);
        got = ps->arrived != NULL;
    }
    for (int i = 0; got && i < DML__PS_MOST_OPERATIONS; i++)
        ps->operations[i].answers = ps->answers + (size_t)i * servers;
    return got;
}

static dml_status dml__ps_open_in(dml_ps *ps, const dml_cluster *cluster, const float *w,
                                  const dml_ps_options *o)
{
    const size_t needed = 2 * (DML__PS_MOST_PIECES + 2 + 2 * (size_t)cluster->servers);
    float *none = NULL;
    if (cluster->rank == 0 && !w)
        return dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT,
                            "dml_ps_open needs w (NULL) of worker 0, which the servers begin with");
    if (!dml__ps_allocate(ps, o))
        return dml__ps_fail(ps->link.all, DML_ERROR_MEMORY, "no memory for a parameter server's worker");
    if (ps->room < needed)
        return dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT,
                            "a worker of %d servers needs a communicator with max_requests of %zu; it has %d",
                            cluster->servers, needed / 3 * 4 + 8, ps->link.all->job->max_requests);
    const dml_status status = dml_comm_scatterv(ps->link.all, cluster->rank == 0 ? w : none, ps->link.counts,
                                                NULL, DML_F32, none, 0);
    return status == DML_OK ? dml_comm_barrier(ps->link.all) : status; /* till the servers are ready */
}

DML_API dml_ps *dml_ps_open(dml_comm *comm, const dml_cluster *given, size_t count, const float *w,
                            const dml_ps_options *options)
{
    const dml_cluster own = dml__cluster_given(given), *const cluster = &own;
    dml__memory memory;
    dml_ps_options o;
    memset(&o, 0, sizeof o);
    if (options) o = *options;
    if (dml_comm_status(comm)) return NULL;
    dml__memory_init(&memory, &o.allocator, NULL, 0);
    dml_ps *ps = (dml_ps *)dml__allocate(&memory, sizeof *ps);
    if (!ps) {
        dml__ps_fail(comm, DML_ERROR_MEMORY, "no memory for a parameter server's worker");
        return NULL;
    }
    ps->memory = memory;
    ps->workers = ps->living = cluster->workers;
    ps->servers = cluster->servers;
    ps->count = count;
    ps->rate = 1;
    ps->threshold = o.threshold;
    dml_status status = dml_cluster_is_server(cluster)
                            ? dml__ps_fail(comm, DML_ERROR_ARGUMENT, "a server called dml_ps_open")
                            : dml__ps_meet(&ps->link, &ps->memory, comm, cluster, count, &o);
    if (status == DML_OK) status = dml__ps_open_in(ps, cluster, w, &o);
    if (status == DML_OK) return ps;
    dml__ps_free(ps);
    return NULL;
}

DML_API dml_status dml_ps_close(dml_ps *ps)
{
    int64_t header[DML__PS_HEADER];
    if (!ps) return DML_OK;
    dml_status status = dml_ps_wait(ps, DML_PS_ALL);
    dml__ps_header(ps, header, DML__PS_LEAVE, 0, 0, 0);
    if (status == DML_OK) status = dml__ps_say_all(ps, header);
    dml__ps_free(ps);
    return status;
}

#endif
