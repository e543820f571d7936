#ifndef DML_COMM_JOB_C
#define DML_COMM_JOB_C

#include "comm/job.h"

#include <unistd.h>

#include "base/cpu.h"
#include "comm/choice.h"
#include "comm/nccl_engine.h"
#include "comm/shared_memory.h"
#include "comm/trace.h"

/* Jobs and communicators come and go. */

/* ---- memory ---- */

/* Bytes of early messages that a rank keeps of each other, in a small world. */
#define DML__EAGER_ROOM 524288
#define DML__SCRATCH_BYTES 16384

/* What is kept for a rank: half of it short messages, and behind that an announcement and a grant for each
   request that can be out. */
static void dml__size_store(dml__comm_job *job)
{
    size_t room = DML__EAGER_ROOM;
    while (room > 4096 && room * (size_t)job->world > (size_t)4 << 20) room /= 2;
    const size_t small = 2 * DML__FRAME_BYTES * ((size_t)job->max_requests + 1);
    job->store_bytes = room + small > 2 * small ? room + small : 2 * small;
    job->eager_bytes = room / 4;
    job->scratch_bytes = DML__SCRATCH_BYTES;
}

static bool dml__allocate_links(dml__comm_job *job)
{
    const size_t world = (size_t)job->world;
    dml__memory *memory = &job->memory;
    job->peers = (dml__peer *)dml__allocate_array(memory, world, sizeof *job->peers);
    job->links = (dml__link *)dml__allocate_array(memory, world, sizeof *job->links);
    job->wishes = (uint8_t *)dml__allocate(memory, world);
    job->host_of = (int *)dml__allocate_array(memory, world, sizeof *job->host_of);
    job->stage = (char *)dml__allocate_unset(memory, DML__STAGE_BYTES);
    if (!job->peers || !job->links || !job->wishes || !job->host_of || !job->stage) return false;
    for (int rank = 0; rank < job->world; rank++) {
        dml__link *link = &job->links[rank];
        if (rank == job->rank) continue;
        link->traffic = &job->stats.tcp;
        link->store = (uint8_t *)dml__allocate_unset(memory, job->store_bytes);
        if (!link->store) return false;
        if (dml__wire_is_native()) continue;
        link->swapped = (uint8_t *)dml__allocate_unset(memory, dml__swap_room(job));
        if (!link->swapped) return false;
    }
    return true;
}

static bool dml__allocate_requests(dml__comm_job *job)
{
    const size_t count = (size_t)job->max_requests + 1;
    dml__memory *memory = &job->memory;
    job->most_steps = dml__most_steps(job->world);
    job->most_flows = 2 * job->world;
    const size_t steps = (size_t)job->most_steps, flows = (size_t)job->most_flows;
    const double bytes = (double)steps * (sizeof *job->all_steps + sizeof *job->all_states) +
                         (double)flows * sizeof *job->all_flows + (double)job->scratch_bytes;
    if (bytes * (double)count > (double)(SIZE_MAX / 2)) return false;
    job->requests = (dml_request *)dml__allocate_array(memory, count, sizeof *job->requests);
    job->all_steps = (dml__step *)dml__allocate_unset(memory, count * steps * sizeof *job->all_steps);
    job->all_states = (dml__step_state *)dml__allocate_unset(memory, count * steps * sizeof *job->all_states);
    job->all_flows = (dml__flow *)dml__allocate_unset(memory, count * flows * sizeof *job->all_flows);
    job->all_scratch = (char *)dml__allocate_unset(memory, count * job->scratch_bytes);
    if (!job->requests || !job->all_steps || !job->all_states || !job->all_flows || !job->all_scratch)
        return false;
    for (size_t i = 0; i < count; i++) {
        dml_request *request = &job->requests[i];
        request->schedule.steps = job->all_steps + i * steps;
        request->schedule.capacity = job->most_steps;
        request->states = job->all_states + i * steps;
        request->flows = job->all_flows + i * flows;
        request->scratch = job->all_scratch + i * job->scratch_bytes;
        if (i + 1 < count) dml__free_request(job, request);
    }
    return true;
}

/* ---- communicators ---- */

DML__LOCAL dml_comm *dml__new_comm(dml__comm_job *job, uint32_t id, int rank, int size)
{
    dml_comm *comm = (dml_comm *)dml__allocate(&job->memory, sizeof *comm);
    if (!comm) return NULL;
    comm->world_ranks = (int *)dml__allocate_array(&job->memory, (size_t)size, sizeof(int));
    comm->offsets = (size_t *)dml__allocate_array(&job->memory, 2 * (size_t)size, sizeof(size_t));
    comm->said_counts = size < DML__SAID_COUNTS ? size : DML__SAID_COUNTS;
    comm->past_counts = (uint64_t *)dml__allocate_array(
        &job->memory, DML__REMEMBERED * (size_t)comm->said_counts, sizeof(uint64_t));
    if (!comm->world_ranks || !comm->offsets || !comm->past_counts) {
        dml__release(&job->memory, comm->past_counts);
        dml__release(&job->memory, comm->world_ranks);
        dml__release(&job->memory, comm->offsets);
        dml__release(&job->memory, comm);
        return NULL;
    }
    comm->job = job;
    comm->id = id;
    comm->rank = rank;
    comm->size = size;
    for (int r = 0; r < size; r++) comm->world_ranks[r] = r;
    dml__first_choice(comm);
    comm->next = job->comms;
    job->comms = comm;
    return comm;
}

DML__LOCAL void dml__leave_beneath(dml__comm_job *job, dml_comm *comm)
{
    dml__unshare_memory(comm);
    if (comm->beneath) job->engine->leave(job, comm);
    comm->beneath = NULL;
    dml__nccl_leave(job, comm);
}

DML__LOCAL void dml__free_comm(dml__comm_job *job, dml_comm *comm)
{
    dml_comm **at = &job->comms;
    while (*at && *at != comm) at = &(*at)->next;
    if (*at) *at = comm->next;
    dml__leave_beneath(job, comm);
    dml__release(&job->memory, comm->past_counts);
    dml__release(&job->memory, comm->offsets);
    dml__release(&job->memory, comm->world_ranks);
    dml__release(&job->memory, comm);
}

/* ---- jobs ---- */

DML__LOCAL void dml__release_job(dml__comm_job *job)
{
    dml__memory memory = job->memory;
    dml__release_trace(job);
    while (job->comms) dml__free_comm(job, job->comms);
    dml__nccl_close(job);
    for (int rank = 0; job->links && rank < job->world; rank++) {
        dml__release(&memory, job->links[rank].swapped);
        dml__release(&memory, job->links[rank].store);
    }
    dml__release(&memory, job->all_scratch);
    dml__release(&memory, job->all_flows);
    dml__release(&memory, job->all_states);
    dml__release(&memory, job->all_steps);
    dml__release(&memory, job->requests);
    dml__release(&memory, job->stage);
    dml__release(&memory, job->host_of);
    dml__release(&memory, job->wishes);
    dml__release(&memory, job->links);
    dml__release(&memory, job->peers);
    dml__unmark_process(job->mark);
    dml__release(&memory, job);
}

DML__LOCAL dml__comm_job *dml__new_job(const dml_comm_options *options)
{
    dml__memory memory;
    dml__memory_init(&memory, &options->allocator, NULL, 0);
    dml__comm_job *job = (dml__comm_job *)dml__allocate(&memory, sizeof *job);
    if (!job) return NULL;
    job->memory = memory;
    job->process = (long)getpid();
    job->mark = dml__mark_process();
    job->logger.callback = options->log;
    job->logger.user = options->log_user;
    job->isa = dml_cpu_isa();
    job->world = 1;
    const bool gate = dml__mutex_init(&job->gate), mutex = gate && dml__mutex_init(&job->mutex);
    if (mutex && dml__cond_init(&job->changed)) return job;
    if (mutex) dml__mutex_destroy(&job->mutex);
    if (gate) dml__mutex_destroy(&job->gate);
    dml__unmark_process(job->mark);
    dml__release(&memory, job);
    return NULL;
}

DML__LOCAL void dml__destroy_job(dml__comm_job *job)
{
    dml__cond_destroy(&job->changed);
    dml__mutex_destroy(&job->mutex);
    dml__mutex_destroy(&job->gate);
    dml__release_job(job);
}

DML__LOCAL bool dml__equip_job(dml__comm_job *job, const dml__comm_settings *settings)
{
    job->rank = settings->net.rank;
    job->world = settings->net.world;
    job->timeout = settings->net.timeout;
    job->grace = settings->net.grace;
    job->progress_away = UINT64_MAX; /* never yet */
    job->segment_bytes = settings->net.segment_bytes;
    job->usual_segments = settings->usual_segments && dml__wire_is_native();
    if (!dml__wire_is_native() && job->segment_bytes > DML__SWAP_BYTES) job->segment_bytes = DML__SWAP_BYTES;
    job->max_requests = settings->net.max_requests;
    if (settings->algorithm) dml__ask_for_algorithm(job, settings->algorithm);
    job->deterministic = settings->deterministic;
    job->traces = settings->trace.path != NULL;
    job->latency = settings->latency;
    job->bandwidth = settings->bandwidth;
    job->measures = !settings->algorithm && settings->latency == 0;
    dml__size_store(job);
    if (dml__allocate_links(job) && dml__allocate_requests(job)) return true;
    dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator", job->rank);
    return false;
}

#endif
