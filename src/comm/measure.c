#ifndef DML_COMM_MEASURE_C
#define DML_COMM_MEASURE_C

#include "comm/measure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "comm/algorithms.h"
#include "comm/choice.h"
#include "comm/job.h"

/* ---- models ---- */

DML__LOCAL dml__price_link dml__link_of(double latency, double bandwidth)
{
    dml__price_link link;
    link.overhead = latency / 4;
    link.latency = latency / 2;
    link.bandwidth = bandwidth;
    link.touch = 0;
    return link;
}

DML__LOCAL double dml__link_bandwidth(const dml__price_link *link)
{
    return 1 / (1 / link->bandwidth + link->touch);
}

/* What takes longer than this for a byte isn't copying. */
#define DML__MOST_TOUCH 5e-10
#define DML__MOST_OVERHEAD 1e-5

/* Both ends copy at the same time, so the rate of a large message is that of one of them. */

DML__LOCAL dml__price_link dml__copied_link_of(double latency, double bandwidth)
{
    dml__price_link link;
    link.overhead = 0.45 * latency < DML__MOST_OVERHEAD ? 0.45 * latency : DML__MOST_OVERHEAD;
    link.latency = latency - 2 * link.overhead;
    link.touch = 0.98 / bandwidth < DML__MOST_TOUCH ? 0.98 / bandwidth : DML__MOST_TOUCH;
    link.bandwidth = 1 / (1 / bandwidth - link.touch);
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
    model.local = 1e-7;
    return model;
}

/* What a frame through memory takes is less than can be measured where ranks take turns, and single messages
   go another way than collectives of few bytes do. A byte comes from the other processor's cache: by what was
   measured, 3.5 times as long as a copy within one. */
#define DML__MEMORY_OVERHEAD 1.5e-7
#define DML__MEMORY_LATENCY 1e-6
#define DML__MEMORY_TOUCH 3.5

DML__LOCAL dml__price_link dml__memory_link_of(double copy)
{
    dml__price_link link;
    link.overhead = DML__MEMORY_OVERHEAD;
    link.latency = DML__MEMORY_LATENCY;
    link.touch = DML__MEMORY_TOUCH / copy;
    link.bandwidth = 50 / link.touch;
    return link;
}

/* All-reduce of 64 bytes between two, a message, takes 0.18 us where their processors share a cache, and
   0.5 where they are far; through memory that both share, two messages, 0.25 and 0.95. */
DML__LOCAL void dml__suppose_awake(dml__price_model *model)
{
    model->inside.overhead = 5e-8;
    model->inside.latency = 1e-7;
    model->local = 3e-8;
}

/* About what it takes a processor to leave a rank for another, by who yields and looks again. */
#define DML__CHANGE 2e-6

DML__LOCAL void dml__suppose_threads(dml__price_model *model)
{
    model->reduce = 3e10;
    model->copy = 6e10;
    model->inside = dml__memory_link_of(model->copy);
    model->inside.latency = 3e-6; /* until another thread looks again */
    model->processors = dml_cpu_count();
    model->change = DML__CHANGE;
    model->threads = true;
}

/* ---- the links ---- */

/* By how much a line misses: the sum of |log(line / seconds)|, so that as far below is as bad as as far
   above, and a few messages that were delayed count little. */
static double dml__line_misses(const double *bytes, const double *seconds, int count, double latency,
                               double gap)
{
    double sum = 0;
    for (int i = 0; i < count; i++) sum += fabs(log((latency + gap * bytes[i]) / seconds[i]));
    return sum;
}

/* Of the lines through two samples the one that misses least. */
DML__LOCAL bool dml__fit_link(const double *bytes, const double *seconds, int count, double *latency,
                              double *bandwidth)
{
    double least = HUGE_VAL;
    for (int i = 0; i < count; i++)
        if (!(seconds[i] > 0) || !(bytes[i] >= 0)) return false;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            if (!(bytes[i] < bytes[j])) continue;
            double gap = (seconds[j] - seconds[i]) / (bytes[j] - bytes[i]),
                   rest = seconds[i] - gap * bytes[i];
            if (gap < 0) gap = 0, rest = seconds[i];
            if (rest < 0) gap = seconds[j] / bytes[j], rest = 0;
            const double misses = dml__line_misses(bytes, seconds, count, rest, gap);
            if (!(misses < least)) continue;
            least = misses;
            *latency = rest;
            *bandwidth = gap > 0 ? 1 / gap : 1e15; /* (too fast for these sizes to show) */
        }
    return least < HUGE_VAL;
}

static dml_status dml__no_memory_to_measure(dml__comm_job *job)
{
    dml__enter_job(job);
    dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator", job->rank);
    dml__leave_job(job);
    return DML_ERROR_MEMORY;
}

/* ---- messages to and fro ---- */

enum { DML__PING_SIZES = 4, DML__PING_ROUNDS = 6, DML__PING_BYTES = 256 << 10, DML__STREAM_BYTES = 2 << 20 };
enum { DML__PING_TAG, DML__PING_OVER_TAG, DML__STREAM_TAG };

/* Elements are bytes; a segment of a few bytes would make of the largest thousands of frames. */
static size_t dml__ping_most(const dml__comm_job *job)
{
    return job->segment_bytes < DML__PING_BYTES / 4 ? job->segment_bytes * 4 : (size_t)DML__PING_BYTES;
}

static bool dml__shares_memory(const dml__comm_job *job, int rank)
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

static double dml__best_rate(double bytes, double seconds, double best)
{
    return seconds > 0 && bytes / seconds > best ? bytes / seconds : best;
}

/* Messages that go one way, and a word back. */
static dml_status dml__send_stream(dml_comm *comm, int partner, uint8_t *data, size_t bytes, int messages,
                                   double *seconds)
{
    const double begin = dml_seconds();
    dml_status status = DML_OK;
    double answer;
    for (int i = 0; i < messages && !status; i++)
        status = dml_comm_send(comm, data, bytes, DML_U8, partner, DML__STREAM_TAG);
    if (!status) status = dml__ping(comm, partner, data, 0, &answer);
    *seconds = dml_seconds() - begin;
    return status;
}

/* The rate that goes on, where a shaped link lets a burst pass at once: of streams twice as long each, until
   two in turn took most of `time`, as one that is delayed does, too. The better of these two then, or what
   came last. */
static dml_status dml__lasting_rate(dml_comm *comm, int partner, uint8_t *data, size_t bytes, double time,
                                    double *rate)
{
    const double until = dml_seconds() + 4 * time;
    double seconds, before = 0;
    dml_status status = DML_OK;
    *rate = 0;
    for (int messages = 1, long_ones = 0; !status && long_ones < 2; messages *= 2) {
        status = dml__send_stream(comm, partner, data, bytes, messages, &seconds);
        before = *rate;
        *rate = dml__best_rate(messages * (double)bytes, seconds, 0);
        long_ones = seconds > time / 2 ? long_ones + 1 : 0;
        if (dml_seconds() > until) return status;
        if (messages * (double)bytes >= (double)DML__STREAM_BYTES) break;
    }
    if (before > *rate) *rate = before;
    return status;
}

/* Rank 0's part: fits the line as soon as the rounds, or half of the time, are over (bandwidth 0: there is
   none). A size that would take too long by what the one before it took is left out, and all above it. What a
   wire carries goes on afterwards: half of the fitted bandwidth or less was a burst. */
static dml_status dml__ping_rank(dml_comm *comm, int partner, uint8_t *data, double time, double *latency,
                                 double *bandwidth)
{
    const double until = dml_seconds() + time / 2;
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
    if (status || !dml__fit_link(bytes, seconds, count, latency, bandwidth)) *bandwidth = 0;
    if (!status && *bandwidth > 0 && !dml__shares_memory(comm->job, partner)) {
        double rate;
        status = dml__lasting_rate(comm, partner, data, (size_t)bytes[count - 1], time / 2, &rate);
        if (rate > 0 && rate < *bandwidth / 2) *bandwidth = rate;
    }
    return status;
}

/* The same, of ranks on one machine up to four times: while another program has the processors a message
   takes as long as the system lets that run, and most such moments are short. */
#define DML__HELD_UP 5e-4
static dml_status dml__ping_neighbour(dml_comm *comm, int partner, uint8_t *data, double time,
                                      double *latency, double *bandwidth)
{
    dml_status status = dml__ping_rank(comm, partner, data, time, latency, bandwidth);
    for (int i = 0; i < 3 && !status && (*bandwidth == 0 || *latency > DML__HELD_UP); i++) {
        double again, rate;
        status = dml__ping_rank(comm, partner, data, time, &again, &rate);
        if (status || rate == 0) continue;
        if (*bandwidth == 0 || again < *latency) *latency = again;
        if (rate > *bandwidth) *bandwidth = rate;
    }
    return status;
}

static dml_status dml__end_pings(dml_comm *comm, int partner)
{
    return dml_comm_send(comm, NULL, 0, DML_U8, partner, DML__PING_OVER_TAG);
}

/* The partner's: sends back what comes, but for streams, until there is nothing more. */
static dml_status dml__answer_pings(dml_comm *comm, uint8_t *data)
{
    for (;;) {
        dml_message message;
        dml_status status =
            dml_comm_receive(comm, data, dml__ping_most(comm->job), DML_U8, 0, DML_ANY_TAG, &message);
        if (status || message.tag == DML__PING_OVER_TAG) return status;
        if (message.tag == DML__STREAM_TAG) continue;
        status = dml_comm_send(comm, data, message.count, DML_U8, 0, DML__PING_TAG);
        if (status) return status;
    }
}

/* ---- sums and copies ---- */

/* The best of a few, of the size of a segment's quarter, as link_in.c does them. */
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

/* What each rank says of itself before: which machine it is on, the first rank that it shares memory with
   (itself, if no other), how many processors it may use, and whether it asks for links to be measured; and
   which algorithms by name (a hash), sums in the order of the ranks, and a timeline it was asked for, in
   which the ranks must agree. */
typedef struct dml__survey {
    int64_t machine, first, processors, measures, names, deterministic, traces;
} dml__survey;

#define DML__SURVEY_NUMBERS 7

static int64_t dml__text_number(const char *text)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const char *at = text; *at; at++) hash = (hash ^ (uint8_t)*at) * UINT64_C(1099511628211);
    return (int64_t)(hash >> 1);
}

/* One for all processes on one kernel, in whatever namespaces they are. */
static int64_t dml__machine_number(void)
{
    char text[256];
    memset(text, 0, sizeof text);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
    }
    if (!text[0] && gethostname(text, sizeof text - 1) != 0) return 0;
    return dml__text_number(text);
}

static dml__survey dml__own_survey(const dml__comm_job *job)
{
    dml__survey survey;
    survey.machine = dml__machine_number();
    survey.processors = dml_cpu_count();
    survey.measures = job->measures;
    survey.names = dml__text_number(job->algorithm);
    survey.deterministic = job->deterministic;
    survey.traces = job->traces;
    survey.first = 0;
    while (!dml__shares_memory(job, (int)survey.first)) survey.first++;
    return survey;
}

/* What follows from what all said. A host of the model is what shares memory; where rank 0 shares it with
   nobody, but its machine with others, it is the machine, whose ranks have the machine's own network between
   them: over TCP by demand, or in containers. */
typedef struct dml__layout {
    int hosts;
    int inside, between; /* whom rank 0 measures with; 0: nobody */
    int processors;      /* for the ranks of rank 0's host; 0: not known */
    bool copies;         /* the ranks of a host are joined by sockets */
    bool one_machine;
} dml__layout;

static bool dml__same_host(const dml__survey *a, const dml__survey *b, bool machines)
{
    return machines ? a->machine == b->machine : a->first == b->first;
}

static dml__layout dml__lay_out(const dml__survey *all, int size, int *host_of)
{
    dml__layout layout;
    int memory = 0, machine = 0;
    int64_t processors = 0;
    memset(&layout, 0, sizeof layout);
    for (int r = 0; r < size; r++) {
        memory += dml__same_host(&all[r], &all[0], false);
        if (!dml__same_host(&all[r], &all[0], true)) continue;
        machine++;
        processors += all[r].processors;
    }
    layout.one_machine = machine == size;
    layout.copies = memory == 1 && machine > 1;
    for (int r = 0; r < size; r++) {
        host_of[r] = 0;
        while (!dml__same_host(&all[r], &all[host_of[r]], layout.copies)) host_of[r]++;
        layout.hosts += host_of[r] == r;
        int *partner = host_of[r] == 0 ? &layout.inside : &layout.between;
        if (all[0].measures && *partner == 0) *partner = r;
    }
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (online > 0 && online < processors) processors = online;
    if (!layout.copies)
        processors = processors * memory / machine; /* the machine's other hosts have the rest */
    layout.processors = processors < 1 ? 1 : processors < 4096 ? (int)processors : 4096;
    return layout;
}

/* What a line through measured times says of a link. */
static dml__price_link dml__fitted_link(double latency, double bandwidth, bool copies)
{
    const double least = latency > 1e-7 ? latency : 1e-7, most = bandwidth < 1e12 ? bandwidth : 1e12;
    return copies ? dml__copied_link_of(least, most) : dml__link_of(least, most);
}

static dml_status dml__measure_with(dml_comm *comm, const dml__layout *layout)
{
    dml__comm_job *job = comm->job;
    const int inside = layout->copies ? layout->inside : 0, between = layout->between;
    if (!comm->measured || (job->rank && job->rank != inside && job->rank != between)) return DML_OK;
    uint8_t *data = (uint8_t *)dml__allocate(&job->memory, DML__PING_BYTES);
    if (!data) return dml__no_memory_to_measure(job);
    dml_status status = DML_OK;
    const double share = job->timeout / 50, most = share < 0.02 ? share : 0.02;
    const double time = inside && between ? most / 2 : most;
    double latency, bandwidth;
    if (job->rank) status = dml__answer_pings(comm, data);
    if (!job->rank && inside) {
        status = dml__ping_neighbour(comm, inside, data, time, &latency, &bandwidth);
        if (!status) status = dml__end_pings(comm, inside);
        if (bandwidth > 0) comm->model.inside = dml__fitted_link(latency, bandwidth, true);
    }
    if (!job->rank && between && !status) {
        status = dml__ping_rank(comm, between, data, time, &latency, &bandwidth);
        if (!status) status = dml__end_pings(comm, between);
        if (bandwidth > 0) comm->model.between = dml__fitted_link(latency, bandwidth, false);
    }
    if (!job->rank) dml__measure_memory(job, data, &comm->model);
    if (!job->rank && !layout->copies) comm->model.inside = dml__memory_link_of(comm->model.copy);
    dml__release(&job->memory, data);
    return status;
}

/* Rank 0's numbers, as they are the same everywhere. */
static dml_status dml__tell_model(dml_comm *comm)
{
    dml__price_model *model = &comm->model;
    double *const numbers[] = { &model->inside.latency,   &model->inside.bandwidth,
                                &model->inside.overhead,  &model->inside.touch,
                                &model->between.latency,  &model->between.bandwidth,
                                &model->between.overhead, &model->between.touch,
                                &model->reduce,           &model->copy };
    enum { NUMBERS = sizeof numbers / sizeof *numbers };
    double told[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) told[i] = *numbers[i];
    const dml_status status = dml_comm_broadcast(comm, told, NUMBERS, DML_F64, 0);
    for (int i = 0; i < NUMBERS; i++) *numbers[i] = told[i];
    return status;
}

DML__LOCAL size_t dml__round_part(const dml__price_model *model, bool copies)
{
    const dml__price_link *link = &model->inside;
    const double part = DML__ROUND_PART_COPIED / dml__link_bandwidth(link);
    if (!copies) return DML__ROUND_PART;
    return link->latency + 2 * link->overhead < part / 5 ? DML__ROUND_PART_COPIED : 0;
}

DML__LOCAL bool dml__memory_moves(const dml__price_model *model)
{
    return model->memory || dml__link_bandwidth(&model->inside) > model->copy / 50;
}

/* Over a loopback a rank's part of a round goes as a whole: what is cut in two takes 1.1 to 1.6 times as long
   between ranks of a Zen 4 (its first half is reduced and sent on while the second comes, and the system's
   buffers have more of either in them than the caches hold). */
static void dml__enlarge_segments(const dml_comm *comm)
{
    dml__comm_job *job = comm->job;
    if (job->usual_segments && comm->measured && job->round_part == DML__ROUND_PART_COPIED &&
        dml__memory_moves(&comm->model))
        job->segment_bytes = DML__ROUND_PART_COPIED;
}

/* Which option a rank was given that another wasn't; NULL: none. */
static const char *dml__unlike_option(const dml__survey *a, const dml__survey *b)
{
    if (a->names != b->names) return "algorithms (.algorithm, DML_COMM_ALGO)";
    if (a->deterministic != b->deterministic) return ".deterministic (DML_COMM_DETERMINISTIC)";
    return a->traces != b->traces ? "wishes for a timeline (.trace, DML_TRACE)" : NULL;
}

/* All find the same, each by itself: the first rank that is unlike rank 0, unless rank 0 is alone with it. */
static dml_status dml__compare_options(dml_comm *comm, const dml__survey *all)
{
    int unlike = 0, first = 0;
    for (int r = 1; r < comm->size; r++) {
        if (!dml__unlike_option(&all[0], &all[r])) continue;
        if (!unlike++) first = r;
    }
    if (!unlike) return DML_OK;
    const bool alone = 2 * unlike > comm->size;
    dml__comm_job *job = comm->job;
    dml__enter_job(job);
    const dml_status status =
        dml__job_fail(job, alone ? 0 : first, DML_ERROR_MISMATCH,
                      "rank %d and rank %d were opened with different %s: give all ranks the same",
                      alone ? 0 : first, alone ? first : 0, dml__unlike_option(&all[0], &all[first]));
    dml__leave_job(job);
    return status;
}

/* The algorithms' names are among what may differ, so this goes without them. */
static dml_status dml__survey_ranks(dml_comm *comm, dml__survey *all)
{
    dml__comm_job *job = comm->job;
    const dml__survey own = dml__own_survey(job);
    char names[sizeof job->algorithm];
    memcpy(names, job->algorithm, sizeof names);
    dml__ask_for_algorithm(job, "");
    const dml_status status = dml_comm_all_gather(comm, &own, DML__SURVEY_NUMBERS, DML_I64, all);
    dml__ask_for_algorithm(job, names);
    return status ? status : dml__compare_options(comm, all);
}

DML__LOCAL dml_status dml__measure_model(dml_comm *comm)
{
    dml__comm_job *job = comm->job;
    dml__survey *all = (dml__survey *)dml__allocate_array(&job->memory, (size_t)comm->size, sizeof *all);
    if (!all) return dml__no_memory_to_measure(job);
    dml_status status = dml__survey_ranks(comm, all);
    if (!status) {
        const dml__layout layout = dml__lay_out(all, comm->size, job->host_of);
        comm->measured = layout.inside > 0 || layout.between > 0;
        comm->hosts = layout.hosts;
        comm->model.ranks_per_host = (comm->size + comm->hosts - 1) / comm->hosts;
        if (comm->measured) {
            comm->model.processors = layout.processors;
            comm->model.change = DML__CHANGE;
            comm->model.memory = layout.inside > 0 && !layout.copies;
        }
        status = dml__measure_with(comm, &layout);
        if (!status) status = dml__tell_model(comm);
        job->round_part = layout.one_machine ? dml__round_part(&comm->model, layout.copies) : 0;
        dml__enlarge_segments(comm);
        job->choices++;
    }
    dml__release(&job->memory, all);
    return status;
}

#endif
