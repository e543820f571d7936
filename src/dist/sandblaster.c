#ifndef DML_DIST_SANDBLASTER_C
#define DML_DIST_SANDBLASTER_C

#include "dist/sandblaster.h"

#include "base/memory.h"
#include "comm/job.h"
#include "dist/parameter_server.h"
#include "dist/parameter_server_internal.h"
#include "dist/replicas.h"
#include "train/lbfgs_internal.h"

#include <math.h>
#include <string.h>

/* A worker reports, and waits for the order that answers it. */
enum { DML__SB_READY, DML__SB_RESULT };              /* reports */
enum { DML__SB_COMPUTE, DML__SB_PUSH, DML__SB_END }; /* orders */
enum { DML__SB_TAG_REPORT = 11, DML__SB_TAG_ORDER };

/* The numbers of both, as DML_F64. */
enum {
    DML__SB_KIND,
    DML__SB_EVALUATION, /* counted from 1, each attempt by itself */
    DML__SB_PORTION,
    DML__SB_PORTIONS,
    DML__SB_X, /* vectors of the servers */
    DML__SB_GRADIENT,
    DML__SB_LOSS, /* of a result */
    DML__SB_SAMPLES,
    DML__SB_WORDS = 10 /* of an end, too: the whole result */
};

#define DML__SB_MOST_PORTIONS (1 << 20)

typedef enum dml__helper_state {
    DML__HELPER_BUSY, /* what it reports next may be a result */
    DML__HELPER_PUSHING,
    DML__HELPER_IDLE, /* waits for an order */
    DML__HELPER_GONE
} dml__helper_state;

typedef struct dml__helper {
    dml__helper_state state;
    int evaluation, portion; /* that it was given last */
    double report[DML__SB_WORDS];
} dml__helper;

typedef struct dml__portion {
    int holders; /* how many compute it */
    bool accepted, given;
} dml__portion;

typedef struct dml__sandblaster {
    dml__memory memory;
    dml_trainer *trainer;
    dml_comm *comm, *peers;
    dml_ps *ps;
    dml_portion_function portion;
    void *user;
    size_t n;
    int portions;
    int fetched; /* the evaluation whose x is in w */
    dml_sandblaster_result result;
    /* The coordinator's. */
    int workers, helping;   /* worker 0 counts; doesn't */
    dml__helper *helpers;   /* (workers): 0 is not one */
    dml_request **reports;  /* (workers) */
    dml__portion *progress; /* (portions): of the evaluation */
    int evaluation, x, gradient;
    int accepted, pushing;
    bool spoilt; /* part of a dead worker's push may be in the gradient */
    double loss, samples;
    dml_status status;
} dml__sandblaster;

/* ---- portions ---- */

static dml_status dml__sandblaster_fetch(dml__sandblaster *s, int vector)
{
    float *w = dml_trainer_host(s->trainer, DML_PARAMETERS, 0, s->n);
    if (!w) return dml_status_of(dml_trainer_context(s->trainer));
    const dml_status status = dml_ps_wait(s->ps, dml_ps_pull_from(s->ps, vector, w, 0, s->n));
    return status == DML_OK ? dml_trainer_put(s->trainer, DML_PARAMETERS, 0, s->n) : status;
}

static dml_status dml__sandblaster_compute(dml__sandblaster *s, int evaluation, int portion, int x,
                                           double *loss, double *samples)
{
    *loss = *samples = 0;
    dml_status status = s->fetched == evaluation ? DML_OK : dml__sandblaster_fetch(s, x);
    if (status != DML_OK) return status;
    s->fetched = evaluation;
    status = s->portion(s->user, s->trainer, portion, s->portions, loss, samples);
    if (status == DML_OK && *samples >= 0 && *samples <= 1e15) return DML_OK;
    if (status == DML_OK)
        return dml__ps_fail(s->comm, DML_ERROR_ARGUMENT,
                            "portion %d of %d has %g samples, it says: it must be 0 or more", portion,
                            s->portions, *samples);
    const char *text = dml_error(dml_trainer_context(s->trainer));
    return dml__ps_fail(s->comm, status, "portion %d of %d failed: %s", portion, s->portions,
                        *text ? text : dml_status_string(status));
}

/* To the servers' sum, of samples' gradients. */
static dml_status dml__sandblaster_push(dml__sandblaster *s, int gradient, double samples)
{
    if (samples == 0) return DML_OK;
    float *g = dml_trainer_get(s->trainer, DML_GRADIENTS, 0, s->n);
    if (!g) return dml_status_of(dml_trainer_context(s->trainer));
    for (size_t i = 0; i < s->n; i++) g[i] *= (float)samples;
    dml_ps_push_to(s->ps, gradient, g, 0, s->n);
    return dml_ps_fence(s->ps);
}

/* ---- the coordinator and its helpers ---- */

/* Whether nothing has failed yet. Servers that die fail nothing by themselves (dml_comm_outlive). */
static bool dml__sandblaster_works(dml__sandblaster *s, dml_status status)
{
    const char *text = dml_error(dml_trainer_context(s->trainer));
    if (s->status == DML_OK && status != DML_OK)
        s->status = dml__ps_fail(s->comm, status, "Sandblaster's coordinator can't go on: %s",
                                 *text ? text : "a server died, whose part of the vectors nobody else has");
    return s->status == DML_OK;
}

/* If the helper is dead, its next report says so. */
static void dml__sandblaster_order(dml__sandblaster *s, int w, int kind)
{
    dml__helper *helper = &s->helpers[w];
    double order[DML__SB_WORDS];
    memset(order, 0, sizeof order);
    order[DML__SB_KIND] = kind;
    order[DML__SB_EVALUATION] = helper->evaluation;
    order[DML__SB_PORTION] = helper->portion;
    order[DML__SB_PORTIONS] = s->portions;
    order[DML__SB_X] = s->x;
    order[DML__SB_GRADIENT] = s->gradient;
    dml_comm_send(s->peers, order, DML__SB_WORDS, DML_F64, w, DML__SB_TAG_ORDER);
}

static void dml__sandblaster_listen(dml__sandblaster *s, int w)
{
    s->reports[w] =
        dml_comm_receive_start(s->peers, s->helpers[w].report, DML__SB_WORDS, DML_F64, w, DML__SB_TAG_REPORT);
    if (!s->reports[w]) dml__sandblaster_works(s, dml_comm_status(s->peers));
}

/* The next that nobody has; else one that one other computes, still; -1: none. */
static int dml__sandblaster_pick(const dml__sandblaster *s)
{
    for (int holders = 0; holders < 2; holders++)
        for (int p = 0; p < s->portions; p++)
            if (!s->progress[p].accepted && s->progress[p].holders == holders) return p;
    return -1;
}

static void dml__sandblaster_deal(dml__sandblaster *s)
{
    for (int w = 1; w < s->workers && !s->spoilt; w++) {
        dml__helper *helper = &s->helpers[w];
        if (helper->state != DML__HELPER_IDLE) continue;
        const int p = dml__sandblaster_pick(s);
        if (p < 0) return;
        s->result.again += s->progress[p].given;
        s->progress[p].given = true;
        s->progress[p].holders++;
        helper->state = DML__HELPER_BUSY;
        helper->evaluation = s->evaluation;
        helper->portion = p;
        dml__sandblaster_order(s, w, DML__SB_COMPUTE);
        dml__sandblaster_listen(s, w);
    }
}

/* A portion's first result. */
static void dml__sandblaster_accept(dml__sandblaster *s, int portion, double loss, double samples)
{
    s->progress[portion].accepted = true;
    s->accepted++;
    s->loss += loss;
    s->samples += samples;
}

/* What a helper does was done, or it died of it. */
static void dml__sandblaster_hear(dml__sandblaster *s, int w, bool lost)
{
    dml__helper *helper = &s->helpers[w];
    const bool pushed = helper->state == DML__HELPER_PUSHING;
    const bool current = helper->evaluation == s->evaluation;
    helper->state = lost ? DML__HELPER_GONE : DML__HELPER_IDLE;
    if (pushed)
        s->pushing--;
    else if (current)
        s->progress[helper->portion].holders--;
    if (lost) {
        s->helping--;
        s->result.lost++;
        s->spoilt = s->spoilt || pushed;
    } else if (helper->report[DML__SB_KIND] == DML__SB_RESULT) {
        if (!current || s->spoilt || s->progress[helper->portion].accepted) {
            s->result.dropped++;
            return;
        }
        dml__sandblaster_accept(s, helper->portion, helper->report[DML__SB_LOSS],
                                helper->report[DML__SB_SAMPLES]);
        s->pushing++;
        helper->state = DML__HELPER_PUSHING;
        dml__sandblaster_order(s, w, DML__SB_PUSH);
        dml__sandblaster_listen(s, w);
    }
}

static void dml__sandblaster_wait(dml__sandblaster *s)
{
    dml_message message;
    const int w = dml_comm_wait_any_message(s->peers, s->reports, s->workers, &message);
    if (w >= 0)
        dml__sandblaster_hear(s, w, message.source < 0);
    else
        dml__sandblaster_works(s, dml_comm_status(s->peers) ? dml_comm_status(s->peers) : DML_ERROR_STATE);
}

static void dml__sandblaster_compute_alone(dml__sandblaster *s)
{
    double loss, samples;
    const int p = dml__sandblaster_pick(s);
    dml_status status = dml__sandblaster_compute(s, s->evaluation, p, s->x, &loss, &samples);
    if (status == DML_OK) status = dml__sandblaster_push(s, s->gradient, samples);
    if (dml__sandblaster_works(s, status)) dml__sandblaster_accept(s, p, loss, samples);
}

/* ---- what L-BFGS calls ---- */

static double dml__sandblaster_dot(void *user, int x, int y)
{
    dml__sandblaster *s = (dml__sandblaster *)user;
    double dot = NAN;
    return s->status == DML_OK && dml__sandblaster_works(s, dml_ps_dot(s->ps, x, y, &dot)) ? dot : NAN;
}

static double dml__sandblaster_largest(void *user, int x)
{
    dml__sandblaster *s = (dml__sandblaster *)user;
    double size = NAN;
    return s->status == DML_OK && dml__sandblaster_works(s, dml_ps_largest(s->ps, x, &size)) ? size : NAN;
}

static void dml__sandblaster_axpby(void *user, double alpha, int x, double beta, int y)
{
    dml__sandblaster *s = (dml__sandblaster *)user;
    if (s->status == DML_OK) dml__sandblaster_works(s, dml_ps_axpby(s->ps, alpha, x, beta, y));
}

/* One attempt at the sums over all portions. */
static void dml__sandblaster_add_up(dml__sandblaster *s)
{
    dml__sandblaster_axpby(s, 0, s->gradient, 0, s->gradient);
    s->evaluation++;
    s->accepted = s->pushing = 0;
    s->loss = s->samples = 0;
    s->spoilt = false;
    memset(s->progress, 0, (size_t)s->portions * sizeof *s->progress);
    while (s->status == DML_OK && (s->pushing > 0 || (!s->spoilt && s->accepted < s->portions))) {
        if (s->helping == 0) {
            dml__sandblaster_compute_alone(s);
        } else {
            dml__sandblaster_deal(s);
            dml__sandblaster_wait(s);
        }
    }
}

static double dml__sandblaster_evaluate(void *user, int x, int gradient)
{
    dml__sandblaster *s = (dml__sandblaster *)user;
    s->x = x;
    s->gradient = gradient;
    dml__sandblaster_add_up(s);
    while (s->status == DML_OK && s->spoilt) {
        /* The servers have to know of the death, too: what the worker pushed may still be on its way. */
        while (dml__sandblaster_works(s, dml_ps_fence(s->ps)) && dml_ps_workers(s->ps) > s->helping + 1) {
        }
        s->result.repeated++;
        dml__sandblaster_add_up(s);
    }
    if (s->status == DML_OK && !(s->samples > 0))
        s->status = dml__ps_fail(s->comm, DML_ERROR_ARGUMENT,
                                 "the %d portions of the training set have no samples", s->portions);
    dml__sandblaster_axpby(s, 0, gradient, 1 / s->samples, gradient);
    return s->status == DML_OK ? s->loss / s->samples : NAN;
}

/* ---- the end ---- */

static void dml__sandblaster_write_result(const dml_sandblaster_result *r, double words[DML__SB_WORDS])
{
    words[DML__SB_KIND] = DML__SB_END;
    words[1] = (double)r->lbfgs.end;
    words[2] = r->lbfgs.value;
    words[3] = (double)r->lbfgs.gradient;
    words[4] = r->lbfgs.iterations;
    words[5] = r->lbfgs.evaluations;
    words[6] = r->again;
    words[7] = r->dropped;
    words[8] = r->repeated;
    words[9] = r->lost;
}

static void dml__sandblaster_read_result(dml_sandblaster_result *r, const double words[DML__SB_WORDS])
{
    r->lbfgs.end = (dml_lbfgs_end)words[1];
    r->lbfgs.value = words[2];
    r->lbfgs.gradient = (float)words[3];
    r->lbfgs.iterations = (int)words[4];
    r->lbfgs.evaluations = (int)words[5];
    r->again = (int)words[6];
    r->dropped = (int)words[7];
    r->repeated = (int)words[8];
    r->lost = (int)words[9];
}

/* Once all have reported, so that all are told the same. */
static void dml__sandblaster_dismiss(dml__sandblaster *s)
{
    double words[DML__SB_WORDS];
    s->spoilt = true; /* nothing counts any more */
    for (int w = 1; w < s->workers; w++)
        while (s->status == DML_OK && s->helpers[w].state == DML__HELPER_BUSY) dml__sandblaster_wait(s);
    dml__sandblaster_write_result(&s->result, words);
    for (int w = 1; w < s->workers && s->status == DML_OK; w++)
        if (s->helpers[w].state == DML__HELPER_IDLE)
            dml_comm_send(s->peers, words, DML__SB_WORDS, DML_F64, w, DML__SB_TAG_ORDER);
}

static dml_status dml__sandblaster_run(dml__sandblaster *s, const dml_lbfgs_options *o)
{
    dml__lbfgs_space space;
    space.user = s;
    space.dot = dml__sandblaster_dot;
    space.largest = dml__sandblaster_largest;
    space.axpby = dml__sandblaster_axpby;
    space.evaluate = dml__sandblaster_evaluate;
    dml_comm_outlive(s->peers);
    for (int w = 1; w < s->workers; w++) dml__sandblaster_listen(s, w);
    const dml_status status = dml__lbfgs_minimise(&space, o, &s->result.lbfgs);
    if (s->status == DML_OK && status != DML_OK)
        s->status = dml__ps_fail(s->comm, status,
                                 "Sandblaster can't begin where the loss is %g: begin with other parameters",
                                 s->result.lbfgs.value);
    dml__sandblaster_dismiss(s);
    return s->status == DML_OK ? dml__sandblaster_fetch(s, DML__LBFGS_X) : s->status;
}

static dml_status dml__sandblaster_coordinate(dml__sandblaster *s, const dml_lbfgs_options *o)
{
    const int most = s->comm->job->max_requests / 4; /* a quarter isn't the parameter server's */
    if (s->workers > most)
        return dml__ps_fail(s->comm, DML_ERROR_ARGUMENT,
                            "Sandblaster with %d workers needs a communicator with max_requests of %d; it "
                            "has %d",
                            s->workers, 4 * s->workers, s->comm->job->max_requests);
    s->helping = s->workers - 1;
    s->helpers = (dml__helper *)dml__allocate_array(&s->memory, (size_t)s->workers, sizeof *s->helpers);
    s->reports = (dml_request **)dml__allocate_array(&s->memory, (size_t)s->workers, sizeof *s->reports);
    s->progress = (dml__portion *)dml__allocate_array(&s->memory, (size_t)s->portions, sizeof *s->progress);
    if (s->helpers && s->reports && s->progress) return dml__sandblaster_run(s, o);
    return dml__ps_fail(s->comm, DML_ERROR_MEMORY, "no memory for Sandblaster's coordinator");
}

/* Does what the coordinator orders. */
static dml_status dml__sandblaster_help(dml__sandblaster *s)
{
    double report[DML__SB_WORDS], order[DML__SB_WORDS];
    memset(report, 0, sizeof report);
    for (;;) {
        dml_status status = dml_comm_send(s->peers, report, DML__SB_WORDS, DML_F64, 0, DML__SB_TAG_REPORT);
        if (status == DML_OK)
            status = dml_comm_receive(s->peers, order, DML__SB_WORDS, DML_F64, 0, DML__SB_TAG_ORDER, NULL);
        if (status != DML_OK) return status;
        if (order[DML__SB_KIND] == DML__SB_END) {
            dml__sandblaster_read_result(&s->result, order);
            return dml__sandblaster_fetch(s, DML__LBFGS_X);
        }
        s->portions = (int)order[DML__SB_PORTIONS];
        if (order[DML__SB_KIND] == DML__SB_COMPUTE) {
            report[DML__SB_KIND] = DML__SB_RESULT;
            status = dml__sandblaster_compute(s, (int)order[DML__SB_EVALUATION], (int)order[DML__SB_PORTION],
                                              (int)order[DML__SB_X], &report[DML__SB_LOSS],
                                              &report[DML__SB_SAMPLES]);
        } else {
            report[DML__SB_KIND] = DML__SB_READY;
            status = dml__sandblaster_push(s, (int)order[DML__SB_GRADIENT], report[DML__SB_SAMPLES]);
        }
        if (status != DML_OK) return status;
    }
}

/* The vectors of L-BFGS beside x. */
static dml_status dml__sandblaster_open(dml__sandblaster *s, const dml_cluster *cluster,
                                        const dml_lbfgs_options *lbfgs)
{
    dml_ps_options o;
    memset(&o, 0, sizeof o);
    o.consistency = DML_PS_ASYNCHRONOUS;
    o.vectors = DML__LBFGS_PAIRS - 1 + 2 * lbfgs->history;
    o.allocator = lbfgs->allocator;
    const float *w = dml_trainer_get(s->trainer, DML_PARAMETERS, 0, s->n);
    if (!w) return dml__ps_fail(s->comm, DML_ERROR_ARGUMENT, "Sandblaster needs parameters to train");
    s->ps = dml_ps_open(s->comm, cluster, s->n, w, &o);
    if (!s->ps) return dml_comm_status(s->comm);
    s->peers = dml_ps_workers_comm(s->ps);
    return dml__start_replicas(s->peers, s->trainer, "dml_sandblaster", 0);
}

DML_API dml_status dml_sandblaster_minimize(dml_trainer *trainer, dml_comm *comm, const dml_cluster *cluster,
                                            const dml_sandblaster_options *options,
                                            dml_sandblaster_result *result)
{
    dml__sandblaster s;
    if (!trainer) return DML_ERROR_ARGUMENT;
    if (!comm || !cluster || !options)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "Sandblaster without %s: it needs a communicator, a cluster and options",
                                !comm      ? "a communicator"
                                : !cluster ? "a cluster"
                                           : "options");
    dml_lbfgs_options lbfgs = options->lbfgs;
    memset(&s, 0, sizeof s);
    dml__memory_init(&s.memory, &lbfgs.allocator, NULL, 0);
    s.trainer = trainer;
    s.comm = comm;
    s.portion = options->portion;
    s.user = options->user;
    s.workers = cluster->workers;
    s.portions = options->portions ? options->portions : 4 * cluster->workers;
    s.n = dml_trainer_count(trainer, DML_GRADIENTS);
    dml_status status = dml_comm_status(comm);
    if (status == DML_OK &&
        (!dml__lbfgs_complete(&lbfgs) || !s.portion || s.portions < 1 || s.portions > DML__SB_MOST_PORTIONS))
        status = dml__ps_fail(comm, DML_ERROR_ARGUMENT,
                              "Sandblaster with portion %s, %d portions, a history of %d, %d iterations and "
                              "tolerance %g: it needs the function, 0 to 2^20 portions, a history of 0 to "
                              "%d, and nothing less than 0",
                              s.portion ? "given" : "NULL", options->portions, options->lbfgs.history,
                              options->lbfgs.iterations, (double)options->lbfgs.tolerance,
                              DML__LBFGS_MOST_HISTORY);
    if (status == DML_OK) status = dml__sandblaster_open(&s, cluster, &lbfgs);
    if (status == DML_OK) {
        status = cluster->rank == 0 ? dml__sandblaster_coordinate(&s, &lbfgs) : dml__sandblaster_help(&s);
        if (status != DML_OK) /* nobody is left waiting for this worker */
            dml__ps_fail(comm, status, "Sandblaster failed: %s", dml_error(dml_trainer_context(trainer)));
    }
    const dml_status closed = dml_ps_close(s.ps);
    if (status == DML_OK) status = closed;
    dml__release(&s.memory, s.helpers);
    dml__release(&s.memory, s.reports);
    dml__release(&s.memory, s.progress);
    if (dml_comm_status(comm) != DML_OK) return dml__sync_failed(trainer, comm);
    if (result) *result = s.result;
    return status;
}

#endif
