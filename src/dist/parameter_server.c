#ifndef DML_DIST_PARAMETER_SERVER_C
#define DML_DIST_PARAMETER_SERVER_C

#include "dist/parameter_server.h"

#include "dist/cluster_internal.h"
#include "dist/parameter_server_worker.h"

#include <math.h>

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
    const size_t servers = (size_t)ps->servers, pieces = (end - begin) / ps->link.piece + 1 + servers;
    dml__ps_operation *operation = dml__ps_begin(ps, true, buffered, begin, end, pieces + servers);
    if (!operation) return 0;
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
    return status == DML_OK ? dml_comm_status(ps->link.all) : status; /* what never began has no operation */
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
    dml__ps_operation *operation = dml__ps_begin(ps, true, false, 0, 0, (size_t)ps->servers);
    if (!operation) return dml_comm_status(ps->link.all);
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

static dml_status dml__ps_no_place(dml_ps *ps, const char *what)
{
    return ps ? dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT, "%s asked for, with NULL for its place", what)
              : DML_ERROR_ARGUMENT;
}

DML_API dml_status dml_ps_dot(dml_ps *ps, int x, int y, double *dot)
{
    dml__ps_operation *done = NULL;
    if (dot) *dot = 0;
    const dml_status status =
        dot ? dml__ps_command(ps, DML__PS_DOT, x, y, 0, 0, &done) : dml__ps_no_place(ps, "a dot product");
    for (int s = 0; status == DML_OK && s < ps->servers; s++)
        *dot += dml__ps_real(done->answers[s][DML__PS_VALUE]);
    return status;
}

DML_API dml_status dml_ps_largest(dml_ps *ps, int x, double *largest)
{
    dml__ps_operation *done = NULL;
    if (largest) *largest = 0;
    const dml_status status = largest ? dml__ps_command(ps, DML__PS_LARGEST, x, x, 0, 0, &done)
                                      : dml__ps_no_place(ps, "the largest element");
    for (int s = 0; status == DML_OK && s < ps->servers; s++) {
        const double one = dml__ps_real(done->answers[s][DML__PS_VALUE]);
        if (one > *largest || isnan(one)) *largest = one;
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
    if (!ps) return;
    if (rate - rate == 0)
        ps->rate = rate;
    else
        dml__ps_fail(ps->link.all, DML_ERROR_ARGUMENT, "a rate of %g asked of the servers", rate);
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

DML__LOCAL dml_ps *dml__ps_open_runs(dml_comm *comm, const dml_cluster *given, size_t count, const float *w,
                                     const dml_ps_options *options, size_t runs)
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
                            : dml__ps_meet(&ps->link, &ps->memory, comm, cluster, count, &o, runs);
    if (status == DML_OK) status = dml__ps_open_in(ps, cluster, w, &o);
    if (status == DML_OK) return ps;
    dml__ps_free(ps);
    return NULL;
}

DML_API dml_ps *dml_ps_open(dml_comm *comm, const dml_cluster *cluster, size_t count, const float *w,
                            const dml_ps_options *options)
{
    return dml__ps_open_runs(comm, cluster, count, w, options, 0);
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
