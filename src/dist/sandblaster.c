#ifndef DML_DIST_SANDBLASTER_C
#define DML_DIST_SANDBLASTER_C

#include "dist/sandblaster.h"

#include "dist/parameter_server_internal.h"
#include "dist/replicas.h"
#include "dist/sandblaster_internal.h"
#include "train/lbfgs_internal.h"
#include "train/trainer_internal.h"

#include <string.h>

/* ---- portions ---- */

DML__LOCAL dml_status dml__sandblaster_fetch(dml__sandblaster *s, int vector)
{
    float *w = dml_trainer_host(s->trainer, DML_PARAMETERS, 0, s->n);
    if (!w) return dml_status_of(dml_trainer_context(s->trainer));
    const dml_status status = dml_ps_wait(s->ps, dml_ps_pull_from(s->ps, vector, w, 0, s->n));
    return status == DML_OK ? dml_trainer_put(s->trainer, DML_PARAMETERS, 0, s->n) : status;
}

DML__LOCAL dml_status dml__sandblaster_compute(dml__sandblaster *s, int evaluation, int portion, int x,
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

DML__LOCAL dml_status dml__sandblaster_push(dml__sandblaster *s, int gradient, double samples)
{
    if (samples == 0) return DML_OK;
    float *g = dml_trainer_get(s->trainer, DML_GRADIENTS, 0, s->n);
    if (!g) return dml_status_of(dml_trainer_context(s->trainer));
    for (size_t i = 0; i < s->n; i++) g[i] *= (float)samples;
    dml_ps_push_to(s->ps, gradient, g, 0, s->n);
    return dml_ps_fence(s->ps);
}

/* ---- the end ---- */

DML__LOCAL void dml__sandblaster_write_result(const dml_sandblaster_result *r, double words[DML__SB_WORDS])
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

/* ---- workers ---- */

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
    const dml_context *context = dml_trainer_context(s->trainer);
    if (!w)
        return dml__ps_fail(s->comm, dml_status_of(context) ? dml_status_of(context) : DML_ERROR_ARGUMENT,
                            "Sandblaster has no parameters to begin with: %s", dml_error(context));
    if (dml__sync_attached(&s->trainer->sync))
        return dml__ps_fail(s->comm, DML_ERROR_STATE,
                            "Sandblaster by a trainer that has a sync strategy: it takes one without");
    if (dml__graph_cuts(s->trainer->program->graph))
        return dml__ps_fail(s->comm, DML_ERROR_UNSUPPORTED,
                            "Sandblaster by a trainer whose model is cut over ranks: it takes whole ones");
    s->ps = dml_ps_open(s->comm, cluster, s->n, w, &o);
    if (!s->ps) return dml_comm_status(s->comm);
    s->peers = dml_ps_workers_comm(s->ps);
    return dml__start_replicas(s->peers, s->trainer, "dml_sandblaster", NULL);
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
    s.n = dml_trainer_count(trainer, DML_GRADIENTS);
    dml_status status = dml_comm_status(comm);
    if (status == DML_OK && cluster->status != DML_OK)
        status = dml__ps_fail(comm, cluster->status, "%s", cluster->error);
    if (status == DML_OK) s.portions = options->portions ? options->portions : 4 * cluster->workers;
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
    dml__release(&s.memory, s.answered);
    dml__release(&s.memory, s.progress);
    if (result) *result = s.result;
    return dml_comm_status(comm) != DML_OK ? dml__sync_failed(trainer, comm) : status;
}

#endif
