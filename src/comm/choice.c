#ifndef DML_COMM_CHOICE_C
#define DML_COMM_CHOICE_C

#include "comm/choice.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/algorithms.h"
#include "comm/measure.h"
#include "comm/shared_memory.h"

/* ---- names ---- */

/* The next name of "operation=name,operation=name" or "name,name"; NULL: there is none left. `operation` is
   empty for a name alone. */
static const char *dml__next_algorithm_name(const char *text, char operation[DML__ALGORITHM_NAME],
                                            char name[DML__ALGORITHM_NAME])
{
    char *into = name;
    size_t used = 0;
    operation[0] = name[0] = 0;
    if (!text || !*text) return NULL;
    for (; *text && *text != ','; text++) {
        if (*text == '=') {
            memcpy(operation, name, DML__ALGORITHM_NAME);
            used = 0;
        } else if (used + 1 < DML__ALGORITHM_NAME) {
            into[used++] = *text;
        }
        into[used] = 0;
    }
    return *text ? text + 1 : text;
}

static bool dml__operation_has_name(dml__comm_operation operation, const char *name)
{
    char text[DML__SIGNATURE_TEXT];
    dml__signature signature;
    memset(&signature, 0, sizeof signature);
    signature.operation = operation;
    const size_t length = strlen(name);
    return strncmp(dml__signature_text(&signature, text), name, length) == 0 && text[length] == '(';
}

/* The algorithm that `text` names for an operation; -1: none. */
static int dml__named_algorithm(const char *text, dml__comm_operation operation)
{
    char of[DML__ALGORITHM_NAME], name[DML__ALGORITHM_NAME];
    int found = -1;
    while ((text = dml__next_algorithm_name(text, of, name)) != NULL)
        if (!of[0] || dml__operation_has_name(operation, of)) {
            const int index = dml__find_algorithm(operation, name);
            if (index >= 0) found = index;
        }
    return found;
}

DML__LOCAL bool dml__check_algorithm_names(const char *text, char unknown[DML__ALGORITHM_NAME])
{
    char of[DML__ALGORITHM_NAME], name[DML__ALGORITHM_NAME];
    while ((text = dml__next_algorithm_name(text, of, name)) != NULL) {
        bool known = false;
        for (int o = 0; o < DML__COMM_OPERATION_COUNT; o++)
            if ((!of[0] || dml__operation_has_name((dml__comm_operation)o, of)) &&
                dml__find_algorithm((dml__comm_operation)o, name) >= 0)
                known = true;
        if (known) continue;
        memcpy(unknown, name, DML__ALGORITHM_NAME);
        return false;
    }
    return true;
}

/* ---- what a call gets ---- */

DML__LOCAL uint64_t dml__largest_part(const dml_comm *comm, const dml__comm_call *call)
{
    uint64_t most = call->counts ? 0 : call->signature.count;
    for (int r = 0; call->counts && r < comm->size; r++)
        if (call->counts[r] > most) most = call->counts[r];
    return most;
}

/* Whether an algorithm can run the call: in one go, where it can't go in rounds (of one element at least),
   with parts like these, and in the order that was asked for. */
static bool dml__can_run(const dml_comm *comm, const dml__comm_call *call, int algorithm)
{
    int count;
    const dml__algorithm_info *info = &dml__algorithms(&count)[algorithm];
    const dml__comm_operation operation = call->signature.operation;
    if (info->operation != operation || (info->equal_parts && call->counts)) return false;
    if (dml__is_shared(info) && !comm->shared) return false;
    if (comm->job->deterministic && dml__adds(operation) && !info->rank_order) return false;
    if (!info->scratch) return true;
    return info->scratch(comm->size, dml__goes_in_rounds(info) ? 1 : dml__largest_part(comm, call)) <=
           comm->job->scratch_bytes / dml_dtype_size(call->signature.dtype);
}

DML__LOCAL void dml__ask_for_algorithm(dml__comm_job *job, const char *name)
{
    snprintf(job->algorithm, sizeof job->algorithm, "%s", name);
    job->choices++;
}

DML__LOCAL int dml__choose_algorithm(const dml_comm *comm, const dml__comm_call *call)
{
    int count, last = -1;
    dml__algorithms(&count);
    const dml__comm_operation operation = call->signature.operation;
    if (operation == DML__CALL_ALL_TO_ALL && call->in && call->in == call->out && call->signature.count)
        return dml__find_algorithm(operation, "in_place");
    if (call->in_counts) return dml__find_algorithm(operation, "pairwise"); /* no rank knows all the sizes */
    const int named = dml__named_algorithm(comm->job->algorithm, operation);
    if (named >= 0 && dml__can_run(comm, call, named)) return named;
    const uint64_t bytes = dml__largest_part(comm, call) * dml_dtype_size(call->signature.dtype);
    const int cheapest = dml__choice_of(&comm->choice, operation, bytes, !call->counts);
    if (cheapest < count && dml__can_run(comm, call, cheapest)) return cheapest;
    /* Of each operation one takes any parts, without scratch, in the order of the ranks. */
    for (int i = 0; i < count && last < 0; i++)
        if (dml__can_run(comm, call, i)) last = i;
    return last;
}

/* ---- what it is chosen by ---- */

static void dml__set_choice(dml_comm *comm, dml__comm_operation operation, const char *name)
{
    memset(comm->choice.algorithm[0][operation], dml__find_algorithm(operation, name), DML__CHOICE_SIZES);
}

DML__LOCAL void dml__first_choice(dml_comm *comm)
{
    comm->job->choices++;
    memset(&comm->choice, DML__CHOICE_NONE, sizeof comm->choice);
    dml__set_choice(comm, DML__CALL_ALL_REDUCE, comm->job->deterministic ? "chain" : "butterfly");
    dml__set_choice(comm, DML__CALL_BROADCAST, "binomial");
    dml__set_choice(comm, DML__CALL_ALL_GATHER, "bruck");
    comm->model = dml__usual_model();
    comm->model.ranks_per_host = comm->size;
    comm->hosts = 1;
    if (comm->job->latency > 0)
        comm->model.inside = comm->model.between = dml__link_of(comm->job->latency, comm->job->bandwidth);
}

static bool dml__price_choices(dml_comm *comm, dml__choice *choice)
{
    dml__comm_job *job = comm->job;
    int count;
    const dml__algorithm_info *algorithms = dml__algorithms(&count);
    const int steps = dml__most_steps(comm->size);
    const size_t bytes = dml__choice_work_bytes(comm->size, steps);
    void *work = dml__allocate_unset(&job->memory, bytes);
    if (!work) return false;
    const double share = job->timeout / 20;
    comm->model.segment = job->segment_bytes;
    comm->model.eager = job->eager_bytes;
    comm->model.scratch = job->scratch_bytes;
    comm->model.round_part = job->round_part;
    dml__fill_choice(&comm->model, comm->size, algorithms, count, steps, job->deterministic,
                     dml_seconds() + (share < 1 ? share : 1), work, bytes, choice);
    dml__release(&job->memory, work);
    return true;
}

static dml_status dml__no_memory_to_choose(dml__comm_job *job)
{
    dml__enter_job(job);
    dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for a communicator", job->rank);
    dml__leave_job(job);
    return DML_ERROR_MEMORY;
}

/* Rank 0 of the communicator computes its table and tells the others. */
static dml_status dml__agree_on_table(dml_comm *comm)
{
    dml__choice choice;
    memset(&choice, 0, sizeof choice);
    if (comm->rank == 0 && !dml__price_choices(comm, &choice)) return dml__no_memory_to_choose(comm->job);
    const dml_status status = dml_comm_broadcast(comm, &choice, sizeof choice, DML_U8, 0);
    if (!status) comm->choice = choice;
    comm->job->choices++;
    return status;
}

DML__LOCAL dml_status dml__agree_in_world(dml_comm *comm, double tune)
{
    dml_status status = dml__measure_model(comm);
    if (!status) status = dml__share_memory(comm);
    if (!status) status = dml__agree_on_table(comm);
    if (!status) status = dml_comm_broadcast(comm, &tune, 1, DML_F64, 0);
    return status || tune == 0 ? status : dml_comm_tune(comm, tune);
}

DML__LOCAL dml_status dml__agree_in_group(dml_comm *group, const dml_comm *parent)
{
    const dml__comm_job *job = group->job;
    group->model = parent->model;
    group->measured = parent->measured;
    const dml_status status = job->transport ? dml__share_memory(group) : DML_OK;
    if (status) return status;
    if (group->size == parent->size && !group->shared == !parent->shared) {
        group->choice = parent->choice;
        group->tuned = parent->tuned;
        group->job->choices++;
        group->hosts = parent->hosts;
        return DML_OK;
    }
    if (!job->transport || group->size == 1) return DML_OK;
    int here = 0; /* with rank 0, who computes */
    for (int r = 0; r < group->size; r++)
        here += job->host_of[group->world_ranks[r]] == job->host_of[group->world_ranks[0]];
    group->model.ranks_per_host = here;
    group->hosts = (group->size + here - 1) / here;
    return dml__agree_on_table(group);
}

DML__LOCAL bool dml__choose_alone(dml_comm *comm)
{
    comm->job->choices++;
    if (!(comm->job->latency > 0)) dml__suppose_threads(&comm->model);
    return dml__price_choices(comm, &comm->choice);
}

#endif
