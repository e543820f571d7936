#ifndef DML_DIST_LOCAL_SGD_C
#define DML_DIST_LOCAL_SGD_C

#include "dist/local_sgd.h"

#include "base/memory.h"
#include "comm/job.h"
#include "dist/local_sgd_outer.h"
#include "dist/replicas.h"
#include "graph/node.h"
#include "kernels/elementwise.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <string.h>

/* What ranks tell each other when they meet. */
typedef struct dml__local_sgd_word {
    double steps, samples; /* all steps; samples since the last average */
} dml__local_sgd_word;

typedef struct dml__local_sgd_state {
    dml__memory memory;
    dml_comm *comm;
    dml_local_sgd_options options;
    bool once;                /* no average until the end */
    uint64_t steps, averaged; /* taken, skipped ones too; at the last average */
    uint64_t runs;            /* the trainer's: those are steps of that one */
    double step_samples, samples;
    dml__local_sgd_word *words; /* (ranks) */
    dml__outer_optimizer outer;
} dml__local_sgd_state;

/* ---- the start ---- */

static dml_status dml__check_local_sgd(const dml__local_sgd_state *state, dml_trainer *trainer)
{
    if (!state->once && state->options.tau < 1)
        return dml_trainer_fail(trainer, DML_ERROR_ARGUMENT,
                                "local SGD with an average every %d steps asked for; tau must be at least 1",
                                state->options.tau);
    return dml__check_outer(&state->outer, trainer);
}

static dml_status dml__allocate_local_sgd(dml__local_sgd_state *state, dml_trainer *trainer)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const size_t ranks = (size_t)dml_comm_world_size(state->comm);
    state->words = (dml__local_sgd_word *)dml__allocate_array(&state->memory, ranks, sizeof *state->words);
    if (dml__allocate_outer(&state->outer, &state->memory, count) && state->words) return DML_OK;
    return dml_trainer_fail(trainer, DML_ERROR_MEMORY,
                            "no memory left for local SGD's vectors of %zu parameters", count);
}

/* What has to be the same on all ranks, whose averages would else wait for each other, or drift apart. */
static void dml__local_sgd_list(const dml__local_sgd_state *state, dml__option_list *list)
{
    memset(list, 0, sizeof *list);
    if (!state->once) dml__list_number(list, "tau", (double)state->options.tau);
    dml__list_number(list, "average_state", state->options.average_state ? 1.0 : 0.0);
    dml__list_optimizer(list, "outer", &state->outer.rule);
}

/* Of another run ranks have what they loaded: whether it is the same on all nobody knows. */
static void dml__local_sgd_follow_run(dml__local_sgd_state *state, const dml_trainer *trainer)
{
    if (state->runs == trainer->runs) return;
    state->runs = trainer->runs;
    state->steps = dml__trainer_tried(trainer);
    state->averaged = UINT64_MAX;
    state->samples = 0;
}

static dml_status dml__local_sgd_start(void *user, dml_trainer *trainer)
{
    dml__local_sgd_state *state = (dml__local_sgd_state *)user;
    dml_status status = dml__check_local_sgd(state, trainer);
    dml__option_list options;
    dml__local_sgd_list(state, &options);
    if (status == DML_OK) dml__allocate_local_sgd(state, trainer);
    /* Whoever can't says so as all meet. */
    status = dml__start_replicas(state->comm, trainer,
                                 state->once ? "dml_simu_parallel_sync" : "dml_local_sgd_sync", &options);
    if (status != DML_OK) return status;
    state->runs = trainer->runs;
    state->steps = state->averaged = dml__trainer_tried(trainer);
    return dml__begin_outer(&state->outer, trainer);
}

/* ---- an average ---- */

/* A part of a whole in 24 bits, which a float has. */
static double dml__weight_part(double part, double whole)
{
    return floor(16777216.0 * part / whole + 0.5) / 16777216.0;
}

/* *weight is this rank's part of the samples. All ranks' are 1 together, to the bit: else averages would make
   parameters grow or shrink, each by the same little. */
static dml_status dml__weigh_rank(dml__local_sgd_state *state, dml_trainer *trainer, double *weight)
{
    const int ranks = dml_comm_world_size(state->comm), rank = dml_comm_rank(state->comm);
    dml__local_sgd_word mine;
    mine.steps = (double)state->steps;
    mine.samples = state->samples;
    if (dml_comm_all_gather(state->comm, &mine, 2, DML_F64, state->words) != DML_OK)
        return dml__sync_failed(trainer, state->comm);
    double samples = 0, before = 0; /* of all ranks; of those before this one */
    for (int r = 0; r < ranks; r++) {
        if (r == rank) before = samples;
        samples += state->words[r].samples;
        if (state->words[r].steps != state->words[0].steps)
            return dml_trainer_fail(trainer, DML_ERROR_MISMATCH,
                                    "rank %d is at step %.0f and rank 0 at %.0f when their parameters are to "
                                    "be averaged; every rank must take as many steps (of 0 samples too)",
                                    r, state->words[r].steps, state->words[0].steps);
    }
    const bool any = samples > 0;
    if (!any) before = rank;
    const double mine_of_all = any ? state->samples : 1, all = any ? samples : ranks;
    *weight = dml__weight_part(before + mine_of_all, all) - dml__weight_part(before, all);
    return DML_OK;
}

/* Elements [begin, end) of a vector become the ranks' weighed mean. */
static dml_status dml__average_range(dml__local_sgd_state *state, dml_trainer *trainer, double weight,
                                     int vector, size_t begin, size_t end)
{
    float *x = dml_trainer_get(trainer, vector, begin, end);
    if (!x) return dml_status_of(trainer->context);
    if (weight != 1) dml_scale(trainer->context->pool, end - begin, (float)weight, x);
    if (dml_comm_all_reduce(state->comm, x, end - begin, DML_F32, DML_SUM) != DML_OK)
        return dml__sync_failed(trainer, state->comm);
    return dml_trainer_put(trainer, vector, begin, end);
}

/* Frozen parameters are the same on all ranks, and stay so; but for statistics that training moves. */
static dml_status dml__average_statistics(dml__local_sgd_state *state, dml_trainer *trainer, double weight)
{
    dml_status status = DML_OK;
    const dml_node *p = trainer->program->graph->first_parameter;
    for (; p && status == DML_OK; p = p->next_parameter)
        if (p->kept)
            status = dml__average_range(state, trainer, weight, DML_PARAMETERS, p->offset,
                                        p->offset + dml_shape_count(&p->shape));
    return status;
}

static dml_status dml__average_replicas(dml__local_sgd_state *state, dml_trainer *trainer)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    const int first = DML_OPTIMIZER_STATE + (state->options.average_state ? 0 : trainer->states);
    double weight = 0;
    dml_status status = dml__weigh_rank(state, trainer, &weight);
    if (status != DML_OK || state->averaged == state->steps) return status;
    status = dml__average_range(state, trainer, weight, DML_PARAMETERS, 0, count);
    if (status == DML_OK) status = dml__outer_update(&state->outer, trainer);
    if (status == DML_OK) status = dml__average_statistics(state, trainer, weight);
    for (int v = first; v < trainer->vectors && status == DML_OK; v++)
        status = dml__average_range(state, trainer, weight, v, 0, count);
    state->averaged = state->steps;
    state->samples = 0;
    return status;
}

/* ---- the strategy ---- */

/* Of several backward passes before an update the last is told of all their samples. */
static dml_status dml__local_sgd_begin(void *user, dml_trainer *trainer, double samples)
{
    dml__local_sgd_state *state = (dml__local_sgd_state *)user;
    dml__local_sgd_follow_run(state, trainer);
    state->step_samples = samples;
    return DML_OK;
}

static dml_status dml__local_sgd_updated(void *user, dml_trainer *trainer)
{
    dml__local_sgd_state *state = (dml__local_sgd_state *)user;
    state->steps++;
    state->samples += state->step_samples;
    const bool due = !state->once && state->steps % (uint64_t)state->options.tau == 0;
    return due ? dml__average_replicas(state, trainer) : DML_OK;
}

static void dml__local_sgd_destroy(void *user, dml_trainer *trainer)
{
    (void)trainer;
    dml__local_sgd_state *state = (dml__local_sgd_state *)user;
    dml__release_outer(&state->outer, &state->memory);
    dml__release(&state->memory, state->words);
    dml__end_strategy(state, state->memory, state->comm);
}

static dml_sync dml__local_sgd(dml_comm *comm, const dml_local_sgd_options *options, bool once)
{
    dml__memory memory;
    dml_sync sync =
        dml__make_strategy(comm, options ? &options->allocator : NULL, sizeof(dml__local_sgd_state), &memory);
    dml__local_sgd_state *state = (dml__local_sgd_state *)sync.state;
    if (!state) return sync;
    state->memory = memory;
    state->comm = comm;
    if (options) state->options = *options;
    state->outer.rule = state->options.outer;
    state->once = once;
    sync.start = dml__local_sgd_start;
    sync.begin = dml__local_sgd_begin;
    sync.updated = dml__local_sgd_updated;
    sync.destroy = dml__local_sgd_destroy;
    sync.keeps = options && options->outer.lr != 0.0f;
    return sync;
}

DML_API dml_sync dml_local_sgd_sync(dml_comm *comm, const dml_local_sgd_options *options)
{
    return dml__local_sgd(comm, options, false);
}

DML_API dml_sync dml_simu_parallel_sync(dml_comm *comm, const dml_local_sgd_options *options)
{
    return dml__local_sgd(comm, options, true);
}

DML_API dml_local_sgd_options dml_diloco_options(int tau)
{
    dml_local_sgd_options options;
    memset(&options, 0, sizeof options);
    options.tau = tau;
    options.outer = dml_sgd(0.7f, 0.9f);
    options.outer.nesterov = true;
    return options;
}

static dml_status dml__local_sgd_average_in(dml_trainer *trainer)
{
    dml_status status = trainer->context->error.status;
    if (status != DML_OK) return status;
    if (trainer->sync.updated != dml__local_sgd_updated)
        return dml_trainer_fail(trainer, DML_ERROR_STATE,
                                "an average of local SGD asked for, but the trainer's strategy is another; "
                                "attach dml_local_sgd_sync or dml_simu_parallel_sync first");
    status = dml__check_not_swapped(trainer);
    if (status == DML_OK) status = dml__graph_claim_writing(trainer->program->graph);
    if (status != DML_OK) return status;
    dml__local_sgd_state *state = (dml__local_sgd_state *)trainer->sync.state;
    dml__local_sgd_follow_run(state, trainer);
    status = dml__average_replicas(state, trainer);
    dml__graph_release(trainer->program->graph, false);
    return status;
}

DML_API dml_status dml_local_sgd_average(dml_trainer *trainer)
{
    if (!trainer) return DML_ERROR_ARGUMENT;
    const dml__entry entry = dml__enter(trainer->context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__local_sgd_average_in(trainer);
    dml__leave(trainer->context, entry);
    return status;
}

#endif
