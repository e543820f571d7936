#ifndef DML_COMM_TUNE_C
#define DML_COMM_TUNE_C

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "comm/algorithms.h"
#include "comm/choice.h"
#include "comm/job.h"
#include "comm/settings.h"

/* The choice of algorithms by trials. What decides how a trial goes on, the times and how much of the budget
   is gone, are the largest of all ranks, so that all go on alike. */

/* Powers of two of bytes, of what a call's `count` counts, at which there are trials; in between it is the
   geometric mean that counts. From the last on it is the last that does. */
enum { DML__TUNE_FIRST = 2, DML__TUNE_STEP = 2, DML__TUNE_SIZES = 12, DML__TUNE_MOST_POWER = 24 };
enum { DML__TUNE_ALGORITHMS = 16 }; /* of an operation, at most */

#define DML__TUNE_BLOCK 5e-4 /* seconds of calls that are timed as one: clocks and waking up count little */
#define DML__TUNE_ROUNDS 25

/* What takes so many times as long as the fastest by its first calls has no further ones; what takes less
   than this part of the time of the one by prices is taken for it; a size whose first calls take more than a
   part of what is left, one in so many, isn't tried. */
#define DML__TUNE_SLOW 3.0
#define DML__TUNE_GAIN 0.93
#define DML__TUNE_AHEAD 8.0

typedef struct dml__trials {
    int algorithm;
    double seconds[DML__TUNE_SIZES]; /* of a call; infinite: it can't run */
    double turn;                     /* of one with what goes before it, of the size that is tried */
} dml__trials;

typedef struct dml__tuning {
    dml_comm *comm;
    double begun, budget, elapsed; /* seconds; the last as all ranks know it */
    double left;                   /* shares of what is left of the budget: one a size of an operation */
    char *in, *out;                /* (1 << DML__TUNE_MOST_POWER) or a float for each rank */
    dml__choice before, found;
    dml__trials trials[DML__TUNE_ALGORITHMS]; /* (count): of one operation */
    int count, sizes;                         /* those that were tried */
} dml__tuning;

static int dml__tune_power(int size)
{
    return DML__TUNE_FIRST + size * DML__TUNE_STEP;
}

/* Sums of zeros are zeros, however often. */
static dml_status dml__tune_call(const dml__tuning *t, dml__comm_operation operation, size_t count)
{
    dml_comm *comm = t->comm;
    switch (operation) {
    case DML__CALL_ALL_REDUCE: return dml_comm_all_reduce(comm, t->out, count, DML_F32, DML_SUM);
    case DML__CALL_REDUCE: return dml_comm_reduce(comm, t->out, count, DML_F32, DML_SUM, 0);
    case DML__CALL_BROADCAST: return dml_comm_broadcast(comm, t->out, count, DML_F32, 0);
    case DML__CALL_SCATTER: return dml_comm_scatter(comm, t->in, count, DML_F32, t->out, 0);
    case DML__CALL_GATHER: return dml_comm_gather(comm, t->in, count, DML_F32, t->out, 0);
    case DML__CALL_ALL_GATHER: return dml_comm_all_gather(comm, t->in, count, DML_F32, t->out);
    case DML__CALL_REDUCE_SCATTER:
        return dml_comm_reduce_scatter(comm, t->in, count, DML_F32, DML_SUM, t->out);
    case DML__CALL_ALL_TO_ALL: return dml_comm_all_to_all(comm, t->in, count, DML_F32, t->out);
    default: return dml_comm_barrier(comm);
    }
}

static void dml__tune_set(const dml__tuning *t, dml__comm_operation operation, int algorithm)
{
    t->comm->choice = t->before;
    memset(t->comm->choice.algorithm[0][operation], algorithm, DML__CHOICE_SIZES);
    t->comm->job->choices++;
}

/* Seconds of one of so many calls; those with a root, which would overlap, one by one behind barriers. */
static dml_status dml__tune_several(const dml__tuning *t, dml__comm_operation operation, size_t count,
                                    int calls, double *seconds)
{
    const bool apart = dml__has_root(operation);
    const int at_once = apart ? 1 : calls;
    dml_status status = DML_OK;
    *seconds = 0;
    for (int done = 0; done < calls && !status; done += at_once) {
        if (apart) status = dml_comm_barrier(t->comm);
        const double begin = dml_seconds();
        for (int i = 0; i < at_once && !status; i++) status = dml__tune_call(t, operation, count);
        *seconds += (dml_seconds() - begin) / calls;
    }
    return status;
}

/* Of a block of calls, behind one that isn't counted: what the algorithm before has left in the caches isn't
   this one's affair. */
static dml_status dml__tune_block(dml__tuning *t, dml__comm_operation operation, dml__trials *trials,
                                  size_t count, int calls, double *seconds)
{
    double known[3] = { 0, 0, 0 }; /* of all ranks */
    dml_status status = dml_comm_barrier(t->comm);
    dml__tune_set(t, operation, trials->algorithm);
    if (!status) status = dml__tune_call(t, operation, count);
    const double begin = dml_seconds();
    if (!status) status = dml__tune_several(t, operation, count, calls, &known[0]);
    const double end = dml_seconds();
    known[1] = (end - begin) / calls;
    known[2] = end - t->begun;
    t->comm->choice = t->before;
    t->comm->job->choices++;
    if (!status) status = dml_comm_all_reduce(t->comm, known, 3, DML_F64, DML_MAX);
    *seconds = known[0];
    trials->turn = known[1];
    t->elapsed = known[2];
    return status;
}

static bool dml__tune_can_run(const dml__tuning *t, dml__comm_operation operation, int algorithm,
                              size_t count)
{
    dml__comm_call call;
    memset(&call, 0, sizeof call);
    call.signature.operation = operation;
    call.signature.dtype = DML_F32;
    call.signature.count = count;
    dml__tune_set(t, operation, algorithm);
    return dml__choose_algorithm(t->comm, &call) == algorithm;
}

static double dml__tune_median(double *samples, int count)
{
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && samples[j] < samples[j - 1]; j--) {
            const double larger = samples[j - 1];
            samples[j - 1] = samples[j];
            samples[j] = larger;
        }
    return samples[count / 2];
}

static int dml__tune_calls(double seconds)
{
    return seconds < DML__TUNE_BLOCK ? (int)(DML__TUNE_BLOCK / (seconds + 1e-8)) + 1 : 1;
}

/* First calls of each: a few where they are short. Returns how long a round of those takes that are worth
   one. */
static dml_status dml__tune_first(dml__tuning *t, dml__comm_operation operation, int size, size_t count,
                                  double *least, double *round)
{
    dml_status status = DML_OK;
    *least = INFINITY;
    *round = 0;
    for (int i = 0; i < t->count && !status; i++) {
        double *seconds = &t->trials[i].seconds[size], again;
        *seconds = INFINITY;
        if (!dml__tune_can_run(t, operation, t->trials[i].algorithm, count)) continue;
        status = dml__tune_block(t, operation, &t->trials[i], count, 1, seconds);
        if (!status && *seconds < DML__TUNE_BLOCK) {
            status = dml__tune_block(t, operation, &t->trials[i], count, 4, &again);
            if (again < *seconds) *seconds = again;
        }
        if (*seconds < *least) *least = *seconds;
    }
    for (int i = 0; i < t->count; i++) {
        const double seconds = t->trials[i].seconds[size];
        if (seconds <= DML__TUNE_SLOW * *least) *round += t->trials[i].turn * (dml__tune_calls(seconds) + 1);
    }
    return status;
}

/* Rounds in which each that isn't slow has its turn, within `share` seconds; one at least. */
static dml_status dml__tune_rounds(dml__tuning *t, dml__comm_operation operation, int size, size_t count,
                                   double least, double round, double share)
{
    double samples[DML__TUNE_ALGORITHMS][DML__TUNE_ROUNDS];
    const double fit = share / round;
    const int rounds = fit >= DML__TUNE_ROUNDS ? DML__TUNE_ROUNDS : fit < 1 ? 1 : (int)fit;
    int calls[DML__TUNE_ALGORITHMS];
    dml_status status = DML_OK;
    for (int i = 0; i < t->count; i++) {
        const double seconds = t->trials[i].seconds[size];
        calls[i] = seconds <= DML__TUNE_SLOW * least ? dml__tune_calls(seconds) : 0;
    }
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < t->count && !status; i++)
            if (calls[i])
                status = dml__tune_block(t, operation, &t->trials[i], count, calls[i], &samples[i][r]);
    for (int i = 0; i < t->count && !status; i++)
        if (calls[i]) t->trials[i].seconds[size] = dml__tune_median(samples[i], rounds);
    return status;
}

/* What a call of 2^power bytes takes, or its square: the product of what calls of the sizes around it take.
 */
static double dml__tune_score(const dml__tuning *t, const dml__trials *trials, int power)
{
    int low = (power - DML__TUNE_FIRST) / DML__TUNE_STEP;
    if (power < DML__TUNE_FIRST) low = 0;
    if (low >= t->sizes) low = t->sizes - 1;
    const bool between = power > dml__tune_power(low) && low + 1 < t->sizes;
    return trials->seconds[low] * trials->seconds[between ? low + 1 : low];
}

/* The fastest, if it is clearly faster than the one by prices. */
static uint8_t dml__tune_best(const dml__tuning *t, int power, bool unequal, uint8_t before)
{
    int count;
    const dml__algorithm_info *algorithms = dml__algorithms(&count);
    double least = INFINITY, of_before = INFINITY;
    uint8_t best = before;
    for (int i = 0; i < t->count; i++) {
        const int algorithm = t->trials[i].algorithm;
        const double score = dml__tune_score(t, &t->trials[i], power);
        if (unequal && algorithms[algorithm].equal_parts) continue;
        if (algorithm == before) of_before = score;
        if (!(score < least)) continue;
        least = score;
        best = (uint8_t)algorithm;
    }
    return least < DML__TUNE_GAIN * DML__TUNE_GAIN * of_before ? best : before;
}

static void dml__tune_fill(dml__tuning *t, dml__comm_operation operation, bool all)
{
    for (int i = 0; i < DML__CHOICE_SIZES && t->sizes; i++)
        for (int unequal = 0; unequal < 2 && (all || i <= dml__tune_power(t->sizes - 1)); unequal++) {
            uint8_t *choice = &t->found.algorithm[unequal][operation][i];
            *choice = dml__tune_best(t, i, unequal != 0, *choice);
        }
}

static void dml__tune_list(dml__tuning *t, dml__comm_operation operation)
{
    int count;
    const dml__algorithm_info *algorithms = dml__algorithms(&count);
    t->count = 0;
    for (int a = 0; a < count && t->count < DML__TUNE_ALGORITHMS; a++)
        if (algorithms[a].operation == operation && !dml__is_in_place(&algorithms[a]))
            t->trials[t->count++].algorithm = a;
}

/* Size after size, as long as there is time; what a size doesn't need of its share is left to the next. */
static dml_status dml__tune_operation(dml__tuning *t, dml__comm_operation operation)
{
    const int sizes = operation == DML__CALL_BARRIER ? 1 : DML__TUNE_SIZES;
    const double parts = dml__is_elementwise(operation) ? 1 : t->comm->size;
    dml_status status = DML_OK;
    double first = 0; /* seconds that the next size's first calls will take, about */
    bool all = true;
    dml__tune_list(t, operation);
    t->left -= DML__TUNE_SIZES;
    for (t->sizes = 0; t->sizes < sizes && !status; t->sizes++) {
        const int size = t->sizes;
        const size_t bytes = (size_t)1 << dml__tune_power(size);
        const double rest = t->budget - t->elapsed;
        const size_t count = operation == DML__CALL_BARRIER ? 0 : bytes / sizeof(float);
        double least, round;
        if (size && (double)bytes * parts > (double)(1 << DML__TUNE_MOST_POWER)) break;
        if (first >= rest / DML__TUNE_AHEAD) {
            all = false;
            break;
        }
        status = dml__tune_first(t, operation, size, count, &least, &round);
        if (!status)
            status =
                dml__tune_rounds(t, operation, size, count, least, round, rest / (t->left + sizes - size));
        first = 0;
        for (int i = 0; i < t->count; i++)
            if (t->trials[i].seconds[size] < INFINITY) first += t->trials[i].turn * 2 * (1 << DML__TUNE_STEP);
    }
    if (!status) dml__tune_fill(t, operation, all);
    return status;
}

static dml_status dml__tune_failed(dml_comm *comm, dml_status status, const char *format, double seconds)
{
    dml__enter_job(comm->job);
    status = dml__job_fail(comm->job, comm->job->rank, status, format, comm->job->rank, seconds);
    dml__leave_job(comm->job);
    return status;
}

static dml_status dml__tune_all(dml__tuning *t)
{
    dml_comm *comm = t->comm;
    dml__go_within(comm, DML__IN_TUNE);
    dml_status status = dml_comm_all_reduce(comm, &t->budget, 1, DML_F64, DML_MAX);
    t->begun = dml_seconds();
    t->left = DML__CHOICE_OPERATIONS * DML__TUNE_SIZES;
    for (int i = 0; i < DML__CHOICE_OPERATIONS && !status; i++)
        status = dml__tune_operation(t, (dml__comm_operation)i);
    dml__go_within(comm, DML__PLAIN);
    if (status) return status;
    comm->choice = t->found;
    comm->tuned = true;
    comm->job->choices++;
    return DML_OK;
}

DML_API dml_status dml_comm_tune(dml_comm *comm, double seconds)
{
    dml__tuning t;
    if (!comm) return DML_ERROR_ARGUMENT;
    if (dml__is_gone(comm)) return DML_ERROR_STATE;
    dml__comm_job *job = comm->job;
    if (dml_comm_status(comm)) return dml_comm_status(comm);
    if (!(seconds > 0) || seconds > DML__LONGEST_TUNE)
        return dml__tune_failed(
            comm, DML_ERROR_ARGUMENT,
            "rank %d called dml_comm_tune for %g s: it takes more than 0 and at most 3600", seconds);
    if (comm->size == 1 || job->engine) return DML_OK;
    const size_t parts = (size_t)comm->size * sizeof(float), most = (size_t)1 << DML__TUNE_MOST_POWER;
    const size_t bytes = parts > most ? parts : most;
    memset(&t, 0, sizeof t);
    t.comm = comm;
    t.budget = seconds;
    t.before = t.found = comm->choice;
    t.in = (char *)dml__allocate_unset(&job->memory, bytes);
    t.out = (char *)dml__allocate_unset(&job->memory, bytes);
    dml_status status = DML_OK;
    if (t.in && t.out) {
        memset(t.in, 0, bytes);
        memset(t.out, 0, bytes);
        status = dml__tune_all(&t);
    } else {
        status = dml__tune_failed(comm, DML_ERROR_MEMORY, "rank %d has no memory for dml_comm_tune (%g s)",
                                  seconds);
    }
    dml__release(&job->memory, t.out);
    dml__release(&job->memory, t.in);
    return status;
}

#endif
