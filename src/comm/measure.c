#ifndef DML_COMM_MEASURE_C
#define DML_COMM_MEASURE_C

#include "comm/measure.h"

#include <string.h>

#include "base/clock.h"
#include "comm/job.h"

/* ---- models ---- */

DML__LOCAL dml__price_link dml__link_of(double latency, double bandwidth)
{
    dml__price_link link;
    link.overhead = latency / 4;
    link.latency = latency / 2;
    link.bandwidth = bandwidth;
    return link;
}

DML__LOCAL dml__price_model dml__usual_model(void)
{
    dml__price_model model;
    memset(&model, 0, sizeof model);
    model.inside = dml__link_of(2e-6, 4e9);
    model.between = dml__link_of(25e-6, 1.25e9);
    model.reduce = 5e9;
    model.copy = 8e9;
    return model;
}

/* ---- the links ---- */

/* One weighted least squares of latency + bytes * gap to seconds, both by seconds. False: one of the two
   can't be told from the samples. */
static bool dml__fit_weighted(const double *bytes, const double *seconds, int count, double unit,
                              const double line[2], double result[2])
{
    double aa = 0, ab = 0, bb = 0, a1 = 0, b1 = 0;
    for (int i = 0; i < count; i++) {
        const double a = 1 / seconds[i], b = bytes[i] / unit / seconds[i];
        const double above = line[0] * a + line[1] * b - 1, error = above < 0 ? -above : above;
        const double weight = line[0] + line[1] > 0 ? 1 / (error > 1e-4 ? error : 1e-4) : 1;
        aa += weight * a * a, ab += weight * a * b, bb += weight * b * b;
        a1 += weight * a, b1 += weight * b;
    }
    const double determinant = aa * bb - ab * ab;
    if (!(determinant > 1e-12 * aa * bb)) return false;
    result[0] = (a1 * bb - b1 * ab) / determinant;
    result[1] = (b1 * aa - a1 * ab) / determinant;
    if (result[0] < 0) result[0] = 0, result[1] = b1 / bb;
    if (result[1] < 0) result[0] = a1 / aa, result[1] = 0;
    return true;
}

DML__LOCAL bool dml__fit_link(const double *bytes, const double *seconds, int count, double *latency,
                              double *bandwidth)
{
    double line[2] = { 0, 0 }, unit = 1; /* seconds, and seconds of `unit` bytes */
    for (int i = 0; i < count; i++) {
        if (!(seconds[i] > 0) || !(bytes[i] >= 0)) return false;
        if (bytes[i] > unit) unit = bytes[i];
    }
    for (int round = 0; round < 50; round++) {
        double next[2];
        if (!dml__fit_weighted(bytes, seconds, count, unit, line, next)) return false;
        line[0] = next[0], line[1] = next[1];
    }
    *latency = line[0];
    *bandwidth = line[1] > 0 ? unit / line[1] : 1e15; /* (too fast for these sizes to show) */
    return true;
}

/* ---- messages to and fro ---- */

enum { DML__PING_SIZES = 4, DML__PING_ROUNDS = 6, DML__PING_BYTES = 256 << 10 };
enum { DML__PING_TAG, DML__PING_OVER_TAG };

/* Elements are bytes; a segment of a few bytes would make of the largest thousands of frames. */
static size_t dml__ping_most(const dml__comm_job *job)
{
    return job->segment_bytes < DML__PING_BYTES / 4 ? job->segment_bytes * 4 : (size_t)DML__PING_BYTES;
}

static bool dml__same_host(const dml__comm_job *job, int rank)
{
    return rank == job->rank || strcmp(job->transport->calls->medium(job->transport, rank), "tcp") != 0;
}

/* One message there and back. */
static dml_status dml__ping(dml_comm *comm, int partner, uint8_t *data, size_t bytes, double *seconds)
{
    const double begin = dml_seconds();
    dml_status status = dml_comm_send(comm, data, bytes, DML_U8, partner, DML__PING_TAG);
    if (!status) status = dml_comm_receive(comm, data, bytes, DML_U8, partner, DML__PING_TAG, NULL);
    *seconds = (dml_seconds() - begin) / 2;
    return status;
}

/* Rank 0's part: fits the line as soon as the rounds, or the time, are over. A size that would take too long
   by what the one before it took is left out, and all above it. */
static dml_status dml__ping_rank(dml_comm *comm, int partner, uint8_t *data, double until,
                                 dml__price_link *link)
{
    double bytes[DML__PING_SIZES * DML__PING_ROUNDS], seconds[DML__PING_SIZES * DML__PING_ROUNDS];
    const size_t most = dml__ping_most(comm->job);
    int sizes = DML__PING_SIZES, count = 0;
    dml_status status = DML_OK;
    for (int round = 0; round <= DML__PING_ROUNDS && !status; round++) {
        double before = 0;
        if (round == 1) count = 0; /* the first round was to warm up, and to see how far it may go */
        for (int i = 0; i < sizes && !status; i++) {
            const size_t size = i ? most >> 3 * (DML__PING_SIZES - 1 - i) : 0;
            if (dml_seconds() + 2 * (round ? 1 : i < 2 ? 1 : 8) * before > until && i > 1) {
                sizes = i;
                break;
            }
            status = dml__ping(comm, partner, data, size, &seconds[count]);
            before = seconds[count];
            bytes[count++] = (double)size;
        }
        if (dml_seconds() > until) break;
    }
    double latency, bandwidth;
    if (!status) status = dml_comm_send(comm, NULL, 0, DML_U8, partner, DML__PING_OVER_TAG);
    if (!status && dml__fit_link(bytes, seconds, count, &latency, &bandwidth))
        *link = dml__link_of(latency > 1e-7 ? latency : 1e-7, bandwidth < 1e12 ? bandwidth : 1e12);
    return status;
}

/* The partner's: sends back what comes until there is nothing more. */
static dml_status dml__answer_pings(dml_comm *comm, uint8_t *data)
{
    for (;;) {
        dml_message message;
        dml_status status =
            dml_comm_receive(comm, data, dml__ping_most(comm->job), DML_U8, 0, DML_ANY_TAG, &message);
        if (status || message.tag == DML__PING_OVER_TAG) return status;
        status = dml_comm_send(comm, data, message.count, DML_U8, 0, DML__PING_TAG);
        if (status) return status;
    }
}

/* ---- sums and copies ---- */

static double dml__best_rate(double bytes, double seconds, double best)
{
    return seconds > 0 && bytes / seconds > best ? bytes / seconds : best;
}

/* The best of a few, of the size of a segment's quarter, as link.c does them. */
static void dml__measure_memory(const dml__comm_job *job, uint8_t *data, dml__price_model *model)
{
    const size_t half = DML__PING_BYTES / 2;
    dml__reduction sum;
    memset(&sum, 0, sizeof sum);
    sum.dtype = DML_F32;
    sum.op = DML_SUM;
    sum.isa = job->isa;
    memset(data, 0, 2 * half);
    double reduce = 1e6, copy = 1e6;
    for (int i = 0; i < 4; i++) {
        const double begin = dml_seconds();
        dml__reduce_elements(&sum, data, data, data + half, half / sizeof(float));
        const double middle = dml_seconds();
        memcpy(data + half, data, half);
        reduce = dml__best_rate((double)half, middle - begin, reduce);
        copy = dml__best_rate((double)half, dml_seconds() - middle, copy);
    }
    model->reduce = reduce;
    model->copy = copy;
}

/* ---- all together ---- */

/* What all must know before: who is measured with (0: nobody), and how many hosts there are, each rank
   counting for its part of one. */
typedef struct dml__survey {
    double hosts, inside, between;
} dml__survey;

static dml__survey dml__own_survey(const dml__comm_job *job)
{
    dml__survey survey;
    int here = 0;
    survey.inside = survey.between = 0;
    for (int rank = job->world - 1; rank >= 0; rank--) {
        const bool same = dml__same_host(job, rank);
        here += same;
        if (rank && job->rank == 0 && job->measures) *(same ? &survey.inside : &survey.between) = rank;
    }
    survey.hosts = 1.0 / here;
    return survey;
}

static dml_status dml__measure_with(dml_comm *comm, const dml__survey *survey)
{
    dml__comm_job *job = comm->job;
    const int inside = (int)survey->inside, between = (int)survey->between;
    if ((!inside && !between) || (job->rank && job->rank != inside && job->rank != between)) return DML_OK;
    uint8_t *data = (uint8_t *)dml__allocate(&job->memory, DML__PING_BYTES);
    if (!data) {
        dml__enter_job(job);
        dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator",
                      job->rank);
        dml__leave_job(job);
        return DML_ERROR_MEMORY;
    }
    dml_status status = DML_OK;
    const double share = job->timeout / 50, most = share < 0.02 ? share : 0.02, begin = dml_seconds();
    if (job->rank) status = dml__answer_pings(comm, data);
    if (!job->rank && inside)
        status = dml__ping_rank(comm, inside, data, begin + (between ? most / 2 : most), &comm->model.inside);
    if (!job->rank && between && !status)
        status = dml__ping_rank(comm, between, data, begin + most, &comm->model.between);
    if (!job->rank) dml__measure_memory(job, data, &comm->model);
    dml__release(&job->memory, data);
    return status;
}

/* Rank 0's numbers, as they are the same everywhere. */
static dml_status dml__tell_model(dml_comm *comm)
{
    dml__price_model *model = &comm->model;
    double *numbers[8], told[8];
    numbers[0] = &model->inside.latency;
    numbers[1] = &model->inside.bandwidth;
    numbers[2] = &model->inside.overhead;
    numbers[3] = &model->between.latency;
    numbers[4] = &model->between.bandwidth;
    numbers[5] = &model->between.overhead;
    numbers[6] = &model->reduce;
    numbers[7] = &model->copy;
    for (int i = 0; i < 8; i++) told[i] = *numbers[i];
    const dml_status status = dml_comm_broadcast(comm, told, 8, DML_F64, 0);
    for (int i = 0; i < 8; i++) *numbers[i] = told[i];
    return status;
}

DML__LOCAL dml_status dml__measure_model(dml_comm *comm)
{
    dml__survey survey = dml__own_survey(comm->job);
    dml_status status = dml_comm_all_reduce(comm, &survey, 3, DML_F64, DML_SUM);
    if (!status) status = dml__measure_with(comm, &survey);
    if (!status) status = dml__tell_model(comm);
    comm->measured = survey.inside > 0 || survey.between > 0;
    comm->hosts = (int)(survey.hosts + 0.5);
    if (comm->hosts < 1) comm->hosts = 1;
    comm->model.ranks_per_host = (comm->size + comm->hosts - 1) / comm->hosts;
    return status;
}

#endif
