#ifndef DML_DIST_REPLICAS_C
#define DML_DIST_REPLICAS_C

#include "dist/replicas.h"

#include "base/checksum.h"
#include "graph/node.h"
#include "graph/program_internal.h"
#include "train/trainer_internal.h"

#include <stdio.h>
#include <string.h>

DML__LOCAL dml_status dml__sync_failed(dml_trainer *trainer, const dml_comm *comm)
{
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
    int64_t whole[5] = { (int64_t)o->kind, o->nesterov, (int64_t)run.seed, (int64_t)run.steps,
                         (int64_t)run.scaled_steps };
    float real[32] = { 0 };
    int numbers = 0;
    for (const float *number; (number = dml_optimizer_number(o, numbers, NULL)) != NULL; numbers++) {
        DML_ASSERT(numbers < 31);
        real[numbers] = *number;
    }
    real[numbers] = run.loss_scale;
    if (dml_comm_broadcast(comm, whole, 5, DML_I64, 0) != DML_OK ||
        dml_comm_broadcast(comm, real, (size_t)numbers + 1, DML_F32, 0) != DML_OK)
        return dml__sync_failed(trainer, comm);
    for (int i = 0; i < numbers; i++) *dml_optimizer_number(o, i, NULL) = real[i];
    o->kind = (dml_optimizer_kind)whole[0];
    o->nesterov = whole[1] != 0;
    run.seed = (uint64_t)whole[2];
    run.steps = (uint64_t)whole[3];
    run.scaled_steps = (uint64_t)whole[4];
    run.loss_scale = real[numbers];
    return dml_trainer_set_run(trainer, &run);
}

DML__LOCAL uint32_t dml__mark_numbers(uint32_t mark, const double *numbers, int count)
{
    for (int i = 0; i < count; i++) {
        char text[32]; /* which is the same in either byte order */
        const int length = snprintf(text, sizeof text, "%.9g ", numbers[i]);
        mark = dml__crc32c(mark, text, (size_t)length);
    }
    return mark;
}

static uint32_t dml__mark_parameter(uint32_t mark, const dml_node *p)
{
    const double more[4] = { (double)p->offset, p->frozen ? 1.0 : 0.0, (double)p->lr_scale,
                             (double)p->decay_scale };
    mark = dml__crc32c(mark, p->name, strlen(p->name) + 1);
    for (int i = 0; i < p->shape.ndim; i++) {
        const double size = p->shape.dims[i];
        mark = dml__mark_numbers(mark, &size, 1);
    }
    return dml__mark_numbers(mark, more, 4);
}

static uint32_t dml__mark_schedule(uint32_t mark, const dml_schedule *s)
{
    const double numbers[] = { (double)s->kind,    (double)s->lr,          (double)s->steps,
                               (double)s->factor,  (double)s->minimum,     (double)s->power,
                               (double)s->rise,    (double)s->start,       (double)s->end,
                               (double)s->warm_up, (double)s->warm_up_from };
    return dml__mark_numbers(mark, numbers, (int)(sizeof numbers / sizeof numbers[0]));
}

/* What a model is made of: the names, shapes and places of its parameters, and how each is trained; and what
   a trainer does to its gradient, and by which schedule. */
static uint32_t dml__model_mark(dml_trainer *trainer)
{
    const double how[3] = { (double)trainer->clip_norm, (double)trainer->clip_value,
                            trainer->loss_scale > 0.0f ? 1.0 : 0.0 };
    uint32_t mark = 0;
    for (const dml_node *p = dml_graph_first(dml_trainer_program(trainer)->graph); p; p = dml_node_next(p))
        if (strcmp(dml_node_op(p), "parameter") == 0) mark = dml__mark_parameter(mark, p);
    return dml__mark_schedule(dml__mark_numbers(mark, how, 3), &trainer->schedule);
}

/* Ranks with different models would exchange gradients of other parameters. */
static dml_status dml__compare_models(dml_comm *comm, dml_trainer *trainer)
{
    const double count = (double)dml_trainer_count(trainer, DML_PARAMETERS), mark = dml__model_mark(trainer);
    double most[4] = { count, -count, mark, -mark };
    if (dml_comm_all_reduce(comm, most, 4, DML_F64, DML_MAX) != DML_OK)
        return dml__sync_failed(trainer, comm);
    if (most[0] == -most[1] && most[2] == -most[3]) return DML_OK;
    return dml_trainer_fail(
        trainer, DML_ERROR_MISMATCH,
        "ranks have different models: this one's has %.0f parameters, others %.0f to %.0f; their names "
        "and shapes must be the same, what is frozen, their scales, and how trainers clip, scale the loss "
        "and "
        "schedule the learning rate",
        count, -most[1], most[0]);
}

DML__LOCAL dml_status dml__compare_options(dml_comm *comm, dml_trainer *trainer, uint32_t mark,
                                           const char *of)
{
    double most[2] = { (double)mark, -(double)mark };
    if (dml_comm_all_reduce(comm, most, 2, DML_F64, DML_MAX) != DML_OK)
        return dml__sync_failed(trainer, comm);
    if (most[0] == -most[1]) return DML_OK;
    return dml_trainer_fail(trainer, DML_ERROR_MISMATCH,
                            "ranks were given different options of %s; all need the same", of);
}

DML__LOCAL dml_status dml__start_run(dml_comm *comm, dml_trainer *trainer)
{
    const dml_status status = dml__compare_models(comm, trainer);
    return status == DML_OK ? dml__broadcast_run(comm, trainer) : status;
}

DML__LOCAL dml_status dml__start_replicas(dml_comm *comm, dml_trainer *trainer)
{
    dml_status status = dml__start_run(comm, trainer);
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
    call->sent[0] = samples;
    call->sent[1] = call->mark;
    call->sent[2] = call->mark * call->mark;
    call->request = dml_comm_all_reduce_start(comm, call->sent, 3, DML_F64, DML_SUM);
    return call->request ? DML_OK : dml__sync_failed(trainer, comm);
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
    if (call->sent[1] == ranks * call->mark && call->sent[2] == ranks * call->mark * call->mark)
        return DML_OK;
    return dml_trainer_fail(
        trainer, DML_ERROR_MISMATCH,
        "this rank is at step %llu and others aren't; every rank must make the same calls of "
        "step, backward, update and advance, with DML_MORE in the same places",
        (unsigned long long)dml_trainer_steps(trainer));
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
