#ifndef DML_DIST_REPLICAS_C
#define DML_DIST_REPLICAS_C

#include "dist/replicas.h"

#include "base/checksum.h"
#include "comm/job.h"
#include "dist/same_strategy.h"
#include "graph/node.h"
#include "graph/program_internal.h"
#include "train/loss_scale.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static dml_status dml__start_without_memory(void *user, dml_trainer *trainer)
{
    (void)user;
    return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for a sync strategy");
}

DML__LOCAL dml_sync dml__make_strategy(dml_comm *comm, const dml_allocator *allocator, size_t bytes,
                                       dml__memory *memory)
{
    dml_sync sync;
    memset(&sync, 0, sizeof sync);
    dml__memory_init(memory, allocator, NULL, 0);
    sync.state = dml__allocate(memory, bytes);
    sync.start = dml__start_without_memory;
    sync.ranks = dml_comm_world_size(comm);
    sync.rank = dml_comm_rank(comm);
    if (sync.state) dml__comm_keep(comm);
    return sync;
}

DML__LOCAL void dml__end_strategy(void *state, dml__memory memory, dml_comm *comm)
{
    dml__comm_let_go(comm);
    dml__release(&memory, state);
}

DML__LOCAL dml_status dml__sync_failed(dml_trainer *trainer, const dml_comm *comm)
{
    if (!comm)
        return dml_trainer_fail(trainer, DML_ERROR_MEMORY,
                                "the sync strategy's communicator is NULL: none was given, or there was no "
                                "memory left to open one");
    return dml_trainer_fail(trainer, dml_comm_status(comm), "%s", dml_comm_error(comm));
}

DML__LOCAL dml_status dml__broadcast_vector(dml_comm *comm, dml_trainer *trainer, int vector)
{
    const size_t count = dml_trainer_count(trainer, vector);
    float *data = dml_trainer_get(trainer, vector, 0, count);
    if (!data) return dml_status_of(dml_trainer_context(trainer));
    if (dml_comm_broadcast(comm, data, count, DML_F32, 0) != DML_OK) return dml__sync_failed(trainer, comm);
    return dml_trainer_put(trainer, vector, 0, count);
}

/* Ranks that went on with other numbers than rank 0's would drift apart. */
static dml_status dml__broadcast_run(dml_comm *comm, dml_trainer *trainer)
{
    dml_trainer_run run = dml_trainer_get_run(trainer);
    dml_optimizer *o = &run.optimizer;
    int64_t whole[6] = { (int64_t)o->kind,          o->nesterov,
                         (int64_t)run.seed,         (int64_t)run.steps,
                         (int64_t)run.scaled_steps, (int64_t)run.skipped };
    float real[32] = { 0 };
    dml__note notes[DML__MOST_NOTES];
    int numbers = 0;
    for (const float *number; (number = dml_optimizer_number(o, numbers, NULL)) != NULL; numbers++) {
        DML_ASSERT(numbers < 30);
        real[numbers] = *number;
    }
    real[numbers] = run.loss_scale;
    dml__begin_sum_unit(trainer, dml_comm_world_size(comm));
    real[numbers + 1] = trainer->sum_unit;
    memset(notes, 0, sizeof notes);
    if (trainer->notes) memcpy(notes, trainer->notes, sizeof notes);
    if (dml_comm_broadcast(comm, whole, 6, DML_I64, 0) != DML_OK ||
        dml_comm_broadcast(comm, real, (size_t)numbers + 2, DML_F32, 0) != DML_OK ||
        dml_comm_broadcast(comm, notes, sizeof notes, DML_U8, 0) != DML_OK)
        return dml__sync_failed(trainer, comm);
    bool noted = false;
    for (int i = 0; i < DML__MOST_NOTES; i++) noted = noted || notes[i].name[0];
    if (noted && !dml__have_notes(trainer))
        return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for rank 0's notes");
    if (trainer->notes) memcpy(trainer->notes, notes, sizeof notes);
    for (int i = 0; i < numbers; i++) *dml_optimizer_number(o, i, NULL) = real[i];
    o->kind = (dml_optimizer_kind)whole[0];
    o->nesterov = whole[1] != 0;
    run.seed = (uint64_t)whole[2];
    run.steps = (uint64_t)whole[3];
    run.scaled_steps = (uint64_t)whole[4];
    run.skipped = (uint64_t)whole[5];
    run.loss_scale = real[numbers];
    trainer->sum_unit = real[numbers + 1];
    return dml_trainer_set_run(trainer, &run);
}

/* A checksum goes on over numbers, the same on every processor. It begins as 0. */
static uint32_t dml__mark_numbers(uint32_t mark, const double *numbers, int count)
{
    for (int i = 0; i < count; i++) {
        char text[32]; /* which is the same in either byte order */
        const int length = snprintf(text, sizeof text, "%.9g ", numbers[i]);
        mark = dml__crc32c(mark, text, (size_t)length);
    }
    return mark;
}

/* What all ranks need alike. */
enum {
    DML__ALIKE_OPTIONS,
    DML__ALIKE_COUNT,
    DML__ALIKE_SHAPES,
    DML__ALIKE_TRAINED,
    DML__ALIKE_PART,
    DML__ALIKE_OVER_RANKS,
    DML__ALIKE_CLIP,
    DML__ALIKE_SCALED,
    DML__ALIKE_SCHEDULE,
    DML__ALIKE_DTYPE,
    DML__ALIKE_OPTIMIZER,
    DML__ALIKE_AVERAGE,
    DML__ALIKE_REFUSED,
    DML__ALIKE
};
static const char *const dml__alike_names[DML__ALIKE] = {
    "the strategy's ", /* and the first option that differs */
    "the number of parameters",
    "the parameters' names or shapes",
    "which parameters are frozen, sparse or used, or their scales",
    "its part of a model that is cut, of which all need the same (dml_comm_split)",
    "which batch norms are over all ranks",
    "how the gradient is clipped",
    "whether the loss is scaled, as for f16",
    "the learning rate's schedule",
    "what is computed in, f32 or 16 bits",
    "the optimizer's kind, or what it keeps",
    "whether a moving average is kept, or how it moves",
    "whether it can do what was asked of it (it says why not)",
};

static uint32_t dml__mark_shapes(const dml_program *program)
{
    uint32_t mark = 0;
    for (const dml_node *p = dml_graph_first(program->graph); p; p = dml_node_next(p)) {
        if (strcmp(dml_node_op(p), "parameter") != 0) continue;
        mark = dml__crc32c(mark, p->name, strlen(p->name) + 1);
        for (int i = 0; i < p->shape.ndim; i++) {
            const double size = p->shape.dims[i];
            mark = dml__mark_numbers(mark, &size, 1);
        }
    }
    return mark;
}

static uint32_t dml__mark_trained(const dml_program *program)
{
    uint32_t mark = 0;
    for (const dml_node *p = dml_graph_first(program->graph); p; p = dml_node_next(p)) {
        const double how[4] = { p->frozen ? 1.0 : 0.0, (double)p->lr_scale, (double)p->decay_scale,
                                p->sparse ? 1.0 : 0.0 };
        if (strcmp(dml_node_op(p), "parameter") == 0) mark = dml__mark_numbers(mark, how, 4);
    }
    return mark;
}

/* Which part of a model that is cut. */
static uint32_t dml__mark_part(const dml_program *program)
{
    const dml__model_ranks *model = &program->graph->model, *stages = &program->graph->stages;
    const double part[4] = { (double)model->rank, (double)model->ranks, (double)stages->rank,
                             (double)stages->ranks };
    return dml__mark_numbers(0, part, 4);
}

/* By their parameters' names, which all ranks have alike. */
static uint32_t dml__mark_over_ranks(const dml_program *program)
{
    uint32_t mark = 0;
    for (int s = 0; s < program->slots; s++) {
        const dml_node *node = program->slot[s].node;
        for (int i = 0; node->over_ranks && i < node->inputs; i++) {
            const char *name = node->input[i]->name;
            if (strcmp(dml_node_op(node->input[i]), "parameter") == 0)
                mark = dml__crc32c(mark, name, strlen(name) + 1);
        }
    }
    return mark;
}

static uint32_t dml__mark_schedule(const dml_schedule *s)
{
    const double numbers[] = { (double)s->kind,    (double)s->lr,          (double)s->steps,
                               (double)s->factor,  (double)s->minimum,     (double)s->power,
                               (double)s->rise,    (double)s->start,       (double)s->end,
                               (double)s->warm_up, (double)s->warm_up_from };
    return dml__mark_numbers(0, numbers, (int)(sizeof numbers / sizeof numbers[0]));
}

/* What rank `rank` has otherwise than rank 0: all of them come here. */
static dml_status dml__name_option(dml_comm *comm, dml_trainer *trainer, const dml__option_list *options,
                                   int rank, char *text, size_t size)
{
    dml__option_list first = *options, other = *options;
    if (dml_comm_broadcast(comm, &first, sizeof first, DML_U8, 0) != DML_OK ||
        dml_comm_broadcast(comm, &other, sizeof other, DML_U8, rank) != DML_OK)
        return dml__sync_failed(trainer, comm);
    dml__option_difference(&other, &first, text, size);
    return DML_OK;
}

/* Tells the lowest rank that has anything else than rank 0: all ranks come here, as all have the same sums.
 */
static dml_status dml__explain_unlike(dml_comm *comm, dml_trainer *trainer, const char *strategy,
                                      const dml__option_list *options, const double mine[DML__ALIKE])
{
    double first[DML__ALIKE], other[DML__ALIKE], rank = dml_comm_world_size(comm);
    char what[384] = "", option[128] = "";
    memcpy(first, mine, sizeof first);
    memcpy(other, mine, sizeof other);
    if (dml_comm_broadcast(comm, first, DML__ALIKE, DML_F64, 0) != DML_OK)
        return dml__sync_failed(trainer, comm);
    if (memcmp(first, mine, sizeof first) != 0) rank = dml_comm_rank(comm);
    if (dml_comm_all_reduce(comm, &rank, 1, DML_F64, DML_MIN) != DML_OK ||
        dml_comm_broadcast(comm, other, DML__ALIKE, DML_F64, (int)rank) != DML_OK)
        return dml__sync_failed(trainer, comm);
    if (first[DML__ALIKE_OPTIONS] != other[DML__ALIKE_OPTIONS]) {
        const dml_status status = dml__name_option(comm, trainer, options, (int)rank, option, sizeof option);
        if (status != DML_OK) return status;
    }
    for (int i = 0; i < DML__ALIKE; i++) {
        const size_t used = strlen(what);
        const bool follows = i == DML__ALIKE_TRAINED; /* from what is before it */
        if (first[i] == other[i] || (follows && first[i - 1] != other[i - 1])) continue;
        snprintf(what + used, sizeof what - used, "%s%s%s", used ? ", " : "", dml__alike_names[i],
                 i == DML__ALIKE_OPTIONS ? option : "");
    }
    return dml_trainer_fail(trainer, DML_ERROR_MISMATCH,
                            "rank %d differs from rank 0 in %s; all ranks need the same. This one has %s and "
                            "%.0f parameters",
                            (int)rank, what, strategy, mine[DML__ALIKE_COUNT]);
}

/* Ranks with other models would exchange gradients of other parameters. */
static dml_status dml__compare_ranks(dml_comm *comm, dml_trainer *trainer, const char *strategy,
                                     const dml__option_list *options)
{
    const dml_program *program = dml_trainer_program(trainer);
    const double clip[2] = { (double)trainer->clip_norm, (double)trainer->clip_value };
    const double average = (double)trainer->average;
    double mine[DML__ALIKE], most[2 * DML__ALIKE];
    bool alike = true;
    mine[DML__ALIKE_OPTIONS] = (double)dml__option_mark(options);
    mine[DML__ALIKE_COUNT] = (double)dml_trainer_count(trainer, DML_PARAMETERS);
    mine[DML__ALIKE_SHAPES] = dml__mark_shapes(program);
    mine[DML__ALIKE_TRAINED] = dml__mark_trained(program);
    mine[DML__ALIKE_PART] = dml__mark_part(program);
    mine[DML__ALIKE_OVER_RANKS] = dml__mark_over_ranks(program);
    mine[DML__ALIKE_CLIP] = dml__mark_numbers(0, clip, 2);
    mine[DML__ALIKE_SCALED] = trainer->loss_scale > 0.0f ? 1.0 : 0.0;
    mine[DML__ALIKE_SCHEDULE] = dml__mark_schedule(&trainer->schedule);
    mine[DML__ALIKE_DTYPE] = (double)program->dtype;
    mine[DML__ALIKE_OPTIMIZER] = (double)trainer->optimizer.kind * 256 + trainer->states;
    mine[DML__ALIKE_AVERAGE] = dml__mark_numbers(0, &average, 1);
    mine[DML__ALIKE_REFUSED] = trainer->context->error.status;
    for (int i = 0; i < DML__ALIKE; i++) {
        most[i] = mine[i];
        most[DML__ALIKE + i] = -mine[i];
    }
    if (dml_comm_all_reduce(comm, most, 2 * DML__ALIKE, DML_F64, DML_MAX) != DML_OK)
        return dml__sync_failed(trainer, comm);
    for (int i = 0; i < DML__ALIKE; i++) alike = alike && most[i] == -most[DML__ALIKE + i];
    const dml_status own = trainer->context->error.status;
    const dml_status status = alike ? DML_OK : dml__explain_unlike(comm, trainer, strategy, options, mine);
    return own != DML_OK ? own : status;
}

DML__LOCAL dml_status dml__start_run(dml_comm *comm, dml_trainer *trainer, const char *strategy,
                                     const dml__option_list *options)
{
    dml__option_list none;
    char sentence[DML__SAME_STRATEGY_BYTES];
    dml_status status = dml__same_strategy(comm, strategy, sentence);
    if (sentence[0]) return dml_trainer_fail(trainer, status, "%s", sentence);
    if (status != DML_OK) return dml__sync_failed(trainer, comm);
    memset(&none, 0, sizeof none);
    (void)dml__check_over_ranks(trainer); /* whoever can't says so as all meet */
    status = dml__compare_ranks(comm, trainer, strategy, options ? options : &none);
    return status == DML_OK ? dml__broadcast_run(comm, trainer) : status;
}

DML__LOCAL dml_status dml__start_replicas(dml_comm *comm, dml_trainer *trainer, const char *strategy,
                                          const dml__option_list *options)
{
    dml_status status = dml__start_run(comm, trainer, strategy, options);
    for (int v = 0; v < dml_trainer_vectors(trainer) && status == DML_OK; v++)
        if (v != DML_GRADIENTS) status = dml__broadcast_vector(comm, trainer, v);
    return status;
}

/* Steps are told apart modulo this, whose square's sum over any number of ranks a double holds exactly. */
#define DML__STEP_MARKS 1048576u

DML__LOCAL dml_status dml__start_roll_call(dml_comm *comm, dml_trainer *trainer, double samples,
                                           dml__roll_call *call)
{
    call->mark = (double)(dml_trainer_steps(trainer) % DML__STEP_MARKS);
    call->lr = (double)dml_trainer_get_run(trainer).optimizer.lr;
    call->sent[0] = samples;
    call->sent[1] = call->mark;
    call->sent[2] = call->mark * call->mark;
    call->sent[3] = call->lr;
    call->sent[4] = call->lr * call->lr;
    call->request = dml_comm_all_reduce_start(comm, call->sent, 5, DML_F64, DML_SUM);
    return call->request ? DML_OK : dml__sync_failed(trainer, comm);
}

/* Whether the sum over n ranks is n times this one's, but for what differs between processors: cosines, say.
 */
static bool dml__is_everyones(double sum, double ranks, double mine)
{
    return fabs(sum - ranks * mine) <= 1e-5 * ranks * mine;
}

/* With n ranks at the same step the sums are n times this rank's, and only then: the sum of squares says so
   even to a rank that is at the mean of the others. */
DML__LOCAL dml_status dml__end_roll_call(dml_comm *comm, dml_trainer *trainer, dml__roll_call *call,
                                         double *samples)
{
    const double ranks = dml_comm_world_size(comm);
    dml_request *request = call->request;
    call->request = NULL;
    if (dml_comm_wait(comm, request) != DML_OK) return dml__sync_failed(trainer, comm);
    *samples = call->sent[0];
    if (call->sent[1] != ranks * call->mark || call->sent[2] != ranks * call->mark * call->mark)
        return dml_trainer_fail(
            trainer, DML_ERROR_MISMATCH,
            "this rank is at step %llu and others aren't; every rank must make the same calls of "
            "step, backward, update and advance, with DML_MORE in the same places",
            (unsigned long long)dml_trainer_steps(trainer));
    if (!dml__is_everyones(call->sent[3], ranks, call->lr) ||
        !dml__is_everyones(call->sent[4], ranks, call->lr * call->lr))
        return dml_trainer_fail(
            trainer, DML_ERROR_MISMATCH,
            "this rank's learning rate is %g at step %llu, and others' %g in the mean; where it follows a "
            "loss, every rank must be given the same one, such as the mean over all ranks",
            call->lr, (unsigned long long)dml_trainer_steps(trainer),
            (call->sent[3] - call->lr) / (ranks - 1));
    return DML_OK;
}

DML__LOCAL dml_status dml__sync_sum(dml_comm *comm, dml_trainer *trainer, double *values, size_t count)
{
    return dml_comm_all_reduce(comm, values, count, DML_F64, DML_SUM) == DML_OK
               ? DML_OK
               : dml__sync_failed(trainer, comm);
}

DML__LOCAL void dml__drop_roll_call(dml_comm *comm, dml__roll_call *call)
{
    if (call->request) dml_comm_wait(comm, call->request);
    call->request = NULL;
}

#endif
