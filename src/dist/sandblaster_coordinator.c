#ifndef DML_DIST_SANDBLASTER_COORDINATOR_C
#define DML_DIST_SANDBLASTER_COORDINATOR_C

#include "dist/sandblaster_internal.h"

#include "comm/job.h"
#include "dist/parameter_server_internal.h"
#include "train/lbfgs_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- its helpers ---- */

/* -1: none, as far as this rank knows. */
static int dml__dead_server(const dml__sandblaster *s)
{
    for (int r = s->workers; r < s->comm->size; r++)
        if (s->comm->job->peers[s->comm->world_ranks[r]].gone ||
            s->comm->job->peers[s->comm->world_ranks[r]].goodbye)
            return r;
    return -1;
}

/* Whether nothing has failed yet. Servers that die fail nothing by themselves (dml_comm_outlive). */
static bool dml__sandblaster_works(dml__sandblaster *s, dml_status status)
{
    const char *text = dml_error(dml_trainer_context(s->trainer));
    if (s->status != DML_OK || status == DML_OK) return s->status == DML_OK;
    char who[48] = "a server";
    const int dead = dml__dead_server(s);
    if (dead >= 0) snprintf(who, sizeof who, "server rank %d", dead);
    if (*text)
        s->status = dml__ps_fail(s->comm, status, "Sandblaster's coordinator can't go on: %s", text);
    else
        s->status = dml__ps_fail(s->comm, status,
                                 "Sandblaster's coordinator can't go on: %s died, whose part of the vectors "
                                 "nobody else has",
                                 who);
    return false;
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

/* No report came for as long as the timeout is. Who moves data for longer answers; who neither reports nor
   answers, twice, has been away from the library for the whole timeout. */
static void dml__sandblaster_ask(dml__sandblaster *s)
{
    dml__ask_ranks(s->peers, s->answered);
    if (dml__ps_any_within(s->peers, s->reports, s->workers, 1e-9)) return; /* one came meanwhile */
    for (int w = 1; w < s->workers && s->status == DML_OK; w++) {
        dml__helper *helper = &s->helpers[w];
        const bool works = helper->state == DML__HELPER_BUSY || helper->state == DML__HELPER_PUSHING;
        const bool silent = works && !s->answered[w];
        if (silent && helper->silent)
            s->status = dml__ps_blame(s->comm, w, DML_ERROR_TIMEOUT,
                                      "worker %d of %d has neither reported nor answered for %g s: it is "
                                      "frozen, or a portion takes longer than the communicator's timeout",
                                      w, s->workers, s->comm->job->timeout);
        helper->silent = silent;
    }
}

static void dml__sandblaster_wait(dml__sandblaster *s)
{
    dml_message message;
    for (int w = 1; w < s->workers; w++) s->helpers[w].silent = false;
    while (s->status == DML_OK &&
           !dml__ps_any_within(s->peers, s->reports, s->workers, s->comm->job->timeout))
        dml__sandblaster_ask(s);
    if (s->status != DML_OK) return;
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

/* ---- all of it ---- */

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

DML__LOCAL dml_status dml__sandblaster_coordinate(dml__sandblaster *s, const dml_lbfgs_options *o)
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
    s->answered = (bool *)dml__allocate_array(&s->memory, (size_t)s->workers, sizeof *s->answered);
    s->progress = (dml__portion *)dml__allocate_array(&s->memory, (size_t)s->portions, sizeof *s->progress);
    if (s->helpers && s->reports && s->answered && s->progress) return dml__sandblaster_run(s, o);
    return dml__ps_fail(s->comm, DML_ERROR_MEMORY, "no memory for Sandblaster's coordinator");
}

#endif
