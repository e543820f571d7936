#ifndef DML_DIST_PARAMETER_SERVER_OPTIMIZER_C
#define DML_DIST_PARAMETER_SERVER_OPTIMIZER_C

#include "dist/parameter_server_optimizer.h"

#include "dist/parameter_server_internal.h"
#include "dist/parameter_server_sync.h"
#include "dist/replicas.h"
#include "graph/node.h"
#include "graph/program_internal.h"
#include "train/optimizer_internal.h"
#include "train/trainer_internal.h"

/* The setup that worker 0 sends: the optimizer's kind, nesterov, the steps it has taken, its numbers, and
   runs of parameters with the same scales and, of sparse ones, rows of the same width. */
enum { DML__PS_OPT_KIND, DML__PS_OPT_NESTEROV, DML__PS_OPT_TAKEN, DML__PS_OPT_NUMBERS };

typedef struct dml__ps_optimizer {
    dml__memory memory;
    dml_optimizer optimizer;
    uint64_t taken; /* steps, before the servers' */
    size_t begin;   /* of the server's range */
    double *runs;   /* (run_count, DML__PS_RUN) */
    size_t run_count;
    float *state[DML__MAX_STATES]; /* the server's vectors 1 and up */
} dml__ps_optimizer;

/* ---- servers ---- */

static dml_status dml__ps_prepare_optimizer(void *user, size_t begin, size_t count, const double *setup,
                                            size_t setup_count, float *vectors)
{
    dml__ps_optimizer *o = (dml__ps_optimizer *)user;
    size_t at = DML__PS_OPT_NUMBERS;
    if (setup_count < at) return DML_ERROR_MISMATCH; /* the workers have no trainers */
    o->optimizer.kind = (dml_optimizer_kind)setup[DML__PS_OPT_KIND];
    o->optimizer.nesterov = setup[DML__PS_OPT_NESTEROV] != 0;
    o->taken = (uint64_t)setup[DML__PS_OPT_TAKEN];
    for (float *number;
         (number = dml_optimizer_number(&o->optimizer, (int)(at - DML__PS_OPT_NUMBERS), NULL)) != NULL;
         at++) {
        if (at >= setup_count) return DML_ERROR_MISMATCH;
        *number = (float)setup[at];
    }
    o->begin = begin;
    o->run_count = (setup_count - at) / DML__PS_RUN;
    o->runs = (double *)dml__allocate_array(&o->memory, o->run_count + 1, DML__PS_RUN * sizeof(double));
    if (!o->runs) return DML_ERROR_MEMORY;
    memcpy(o->runs, setup + at, DML__PS_RUN * o->run_count * sizeof(double));
    for (int s = 0; s < dml_optimizer_states(&o->optimizer); s++) o->state[s] = vectors + (size_t)s * count;
    return DML_OK;
}

/* One run at a time, of whole rows where it has some; `rate` is the learning rate. */
static dml_status dml__ps_apply_optimizer(void *user, size_t begin, size_t count, float *w, const float *g,
                                          uint64_t step, double rate)
{
    const dml__ps_optimizer *o = (const dml__ps_optimizer *)user;
    dml_status status = DML_OK;
    for (size_t r = 0; r < o->run_count && status == DML_OK; r++) {
        const double *run = o->runs + DML__PS_RUN * r;
        const size_t run_begin = (size_t)run[DML__PS_RUN_BEGIN], run_end = (size_t)run[DML__PS_RUN_END];
        const size_t first = run_begin > begin ? run_begin : begin;
        const size_t end = run_end < begin + count ? run_end : begin + count;
        if (first >= end) continue;
        dml_optimizer mine = o->optimizer;
        float *state[DML__MAX_STATES];
        mine.lr = (float)rate * (float)run[DML__PS_RUN_LR];
        mine.weight_decay *= (float)run[DML__PS_RUN_DECAY];
        for (int s = 0; s < DML__MAX_STATES; s++)
            state[s] = o->state[s] ? o->state[s] + (first - o->begin) : NULL;
        status = dml__optimizer_update_rows(&mine, NULL, o->taken + step, (size_t)run[DML__PS_RUN_WIDTH],
                                            end - first, w + (first - begin), g + (first - begin), state);
    }
    return status;
}

DML_API dml_status dml_parameter_server_serve(dml_comm *comm, const dml_cluster *cluster,
                                              dml_ps_report *report)
{
    dml__ps_optimizer optimizer;
    dml_ps_options options;
    memset(&optimizer, 0, sizeof optimizer);
    memset(&options, 0, sizeof options);
    dml__memory_init(&optimizer.memory, NULL, NULL, 0);
    options.rule.prepare = dml__ps_prepare_optimizer;
    options.rule.apply = dml__ps_apply_optimizer;
    options.rule.user = &optimizer;
    const dml_status status = dml_ps_serve(comm, cluster, &options, report);
    dml__release(&optimizer.memory, optimizer.runs);
    return status;
}

/* ---- workers ---- */

/* NULL, or why a trainer's step can't be the servers'. */
static const char *dml__ps_trainer_fault(const dml_trainer *trainer, const dml_optimizer *optimizer)
{
    const dml_trainer_run run = dml_trainer_get_run(trainer);
    if (optimizer->kind == DML_LARS || optimizer->kind == DML_LAMB)
        return "LARS and LAMB look at whole parameters, of which a server has parts: take another optimizer";
    if (run.loss_scale > 0.0f)
        return "a loss scale lets a worker skip a step for which the others wait: train in bf16, or in f16 "
               "with "
               "loss_scale -1";
    if (dml_trainer_vectors(trainer) > DML_OPTIMIZER_STATE + dml_optimizer_states(&run.optimizer))
        return "a moving average of parameters that servers update: take options.average out";
    return NULL;
}

/* Writes the setup into `to` (NULL: only counts); returns how many numbers it has. *runs: how many runs. */
static size_t dml__ps_write_setup(dml_trainer *trainer, const dml_optimizer *optimizer, uint64_t taken,
                                  double *to, size_t *runs)
{
    const dml_node *p = dml_trainer_program(trainer)->graph->first_parameter;
    dml_optimizer o = *optimizer;
    size_t at = DML__PS_OPT_NUMBERS, run = 0;
    if (to) {
        to[DML__PS_OPT_KIND] = (double)o.kind;
        to[DML__PS_OPT_NESTEROV] = o.nesterov;
        to[DML__PS_OPT_TAKEN] = (double)taken;
    }
    for (const float *number;
         (number = dml_optimizer_number(&o, (int)(at - DML__PS_OPT_NUMBERS), NULL)) != NULL; at++)
        if (to) to[at] = (double)*number;
    const dml_node *last = NULL;
    size_t last_width = 0;
    float last_decay = 0;
    *runs = 0;
    for (; p; p = p->next_parameter) {
        const size_t count = dml_shape_count(&p->shape);
        const size_t width = p->sparse ? count / (size_t)p->shape.dims[0] : 0;
        if (p->frozen) continue;
        const float decay = dml__decay_scale(trainer, p);
        const bool same = last && last->lr_scale == p->lr_scale && last_decay == decay && last_width == width;
        if (!same) {
            run = at;
            at += DML__PS_RUN;
            ++*runs;
        }
        last = p;
        last_width = width;
        last_decay = decay;
        if (!to) continue;
        if (!same) to[run + DML__PS_RUN_BEGIN] = (double)p->offset;
        to[run + DML__PS_RUN_END] = (double)(p->offset + count);
        to[run + DML__PS_RUN_LR] = (double)p->lr_scale;
        to[run + DML__PS_RUN_DECAY] = (double)decay;
        to[run + DML__PS_RUN_WIDTH] = (double)width;
    }
    return at;
}

DML__LOCAL dml_status dml__ps_attach(dml_ps **ps, dml_comm *comm, const dml_cluster *cluster,
                                     dml_trainer *trainer, const dml_optimizer *optimizer, uint64_t taken,
                                     const dml_ps_options *options)
{
    dml__memory memory;
    dml_ps_options o = *options;
    size_t runs;
    const char *fault = dml__ps_trainer_fault(trainer, optimizer);
    dml__memory_init(&memory, &o.allocator, NULL, 0);
    if (fault) {
        dml__ps_fail(comm, DML_ERROR_UNSUPPORTED, "training by a parameter server: %s", fault);
        return dml__sync_failed(trainer, comm);
    }
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    const float *w = dml_trainer_get(trainer, DML_PARAMETERS, 0, n);
    o.vectors = dml_optimizer_states(optimizer);
    o.setup_count = dml__ps_write_setup(trainer, optimizer, taken, NULL, &runs);
    double *setup = (double *)dml__allocate_array(&memory, o.setup_count, sizeof *setup);
    if (setup) dml__ps_write_setup(trainer, optimizer, taken, setup, &runs);
    o.setup = setup;
    if (!setup)
        dml__ps_fail(comm, DML_ERROR_MEMORY, "no memory for a parameter server's worker");
    else if (!w)
        dml__ps_fail(comm, dml_status_of(dml_trainer_context(trainer)),
                     "this worker has no parameters to begin with: %s",
                     dml_error(dml_trainer_context(trainer)));
    else
        *ps = dml__ps_open_runs(comm, cluster, n, w, &o, runs);
    dml__release(&memory, setup);
    return *ps ? DML_OK : dml__sync_failed(trainer, comm);
}

#endif
