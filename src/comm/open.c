#ifndef DML_COMM_OPEN_C
#define DML_COMM_OPEN_C

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "comm/algorithms.h"
#include "comm/choice.h"
#include "comm/job.h"
#include "comm/nccl_engine.h"
#include "comm/trace.h"
#include "net/local.h"
#include "net/shm.h"

/* Opening, splitting and closing. */

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

static dml_comm *dml__new_comm(dml__comm_job *job, uint32_t id, int rank, int size)
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

static void dml__leave_beneath(dml__comm_job *job, dml_comm *comm)
{
    if (comm->beneath) job->engine->leave(job, comm);
    comm->beneath = NULL;
    dml__nccl_leave(job, comm);
}

static void dml__free_comm(dml__comm_job *job, dml_comm *comm)
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

/* What there is to know of each link. */
static void dml__look_at_links(dml__comm_job *job)
{
    const dml__transport_calls *calls = job->transport->calls;
    for (int rank = 0; rank < job->world; rank++) {
        dml__link *link = &job->links[rank];
        if (rank == job->rank) continue;
        const char *medium = calls->medium(job->transport, rank);
        link->at_once = strcmp(medium, "shm") == 0;
        link->traffic = strcmp(medium, "tcp") == 0   ? &job->stats.tcp
                        : strcmp(medium, "shm") == 0 ? &job->stats.shm
                                                     : &job->stats.local;
    }
}

/* The user of the rendezvous. */
static void dml__meeting_failed(void *user, dml__transport *transport, int culprit, dml_status status,
                                const char *text)
{
    dml__comm_job *job = (dml__comm_job *)user;
    job->transport = transport;
    dml__job_fail(job, culprit, status, "%s", text);
}

static void dml__meeting_words(void *user, dml__control *control)
{
    *control = dml__failure_message((const dml__comm_job *)user);
}

static bool dml__meeting_control(void *user, dml__transport *transport, dml__meeting *meeting)
{
    dml__comm_job *job = (dml__comm_job *)user;
    job->transport = transport;
    job->meeting = meeting;
    const dml_status status = dml__read_control(job);
    /* Nobody leaves a rendezvous in good order. */
    for (int rank = 0; rank < job->world && !job->error.status; rank++)
        if (job->peers[rank].gone)
            dml__job_fail(job, rank, DML_ERROR_PEER,
                          "rank %d of %d died: its connection ended without a goodbye", rank, job->world);
    job->meeting = NULL;
    return !status && !job->error.status;
}

static void dml__release_job(dml__comm_job *job)
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

static dml__comm_job *dml__new_job(const dml_comm_options *options)
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

static void dml__destroy_job(dml__comm_job *job)
{
    dml__cond_destroy(&job->changed);
    dml__mutex_destroy(&job->mutex);
    dml__mutex_destroy(&job->gate);
    dml__release_job(job);
}

static bool dml__equip_job(dml__comm_job *job, const dml__comm_settings *settings)
{
    job->rank = settings->net.rank;
    job->world = settings->net.world;
    job->timeout = settings->net.timeout;
    job->grace = settings->net.grace;
    job->progress_away = UINT64_MAX; /* never yet */
    job->segment_bytes = settings->net.segment_bytes;
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

static bool dml__sharing_control(void *user)
{
    return dml__read_control((dml__comm_job *)user) == DML_OK;
}

/* Ranks of one host find each other. */
static void dml__share_memory(dml__comm_job *job, const dml__comm_settings *settings)
{
    dml__shm_settings shm;
    int culprit;
    memset(&shm, 0, sizeof shm);
    shm.rank = job->rank;
    shm.world = job->world;
    shm.off = settings->only_tcp;
    shm.no_reads = settings->no_reads;
    shm.reads_if_fast = settings->reads_if_fast;
    shm.spin = -1;
    shm.seconds = job->timeout;
    shm.control = dml__sharing_control;
    shm.user = job;
    dml__transport *transport =
        dml__shm_open(job->transport, &shm, dml__system_host(), &job->memory, &culprit);
    if (transport)
        job->transport = transport;
    else if (culprit == job->rank)
        dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for its communicator",
                      job->rank);
    else if (culprit >= 0 && dml__hear_last_words(job, culprit) == DML_OK)
        dml__job_fail(job, culprit, DML_ERROR_PEER, "rank %d of %d left during the rendezvous", culprit,
                      job->world);
}

/* Who waits looks again for a while, about as long as it takes to sleep and be woken. Where ranks may have to
   share processors (those over TCP may be of this host too) it lets others have its own at each look. */
static void dml__plan_waits(dml__comm_job *job)
{
    int here = 1;
    for (int rank = 0; rank < job->world; rank++)
        if (rank != job->rank && strcmp(job->transport->calls->medium(job->transport, rank), "tcp") != 0)
            here++;
    job->yields = here < job->world || here > dml_cpu_count();
    job->spin = job->yields ? 100e-6 : 50e-6;
}

static void dml__meet_others(dml__comm_job *job, const dml__comm_settings *settings,
                             const dml__socket_calls *sockets)
{
    dml__net_user user;
    user.memory = &job->memory;
    user.logger = &job->logger;
    user.strangers = &job->strangers;
    user.user = job;
    user.fail = dml__meeting_failed;
    user.words = dml__meeting_words;
    user.control = dml__meeting_control;
    job->transport = dml__tcp_open(&settings->net, sockets, &user);
    if (job->transport) dml__share_memory(job, settings);
    if (job->transport) dml__plan_waits(job);
}

static void dml__open_engine(dml__comm_job *job, dml__comm_settings *settings)
{
    dml__transport *transport = settings->engine->open(job, settings);
    if (!transport) return;
    job->engine = settings->engine;
    if (dml__equip_job(job, settings))
        job->transport = transport;
    else
        transport->calls->close(transport);
}

DML__LOCAL dml_comm *dml__comm_open_on(const dml_comm_options *options, const dml__socket_calls *sockets)
{
    dml_comm_options defaults;
    memset(&defaults, 0, sizeof defaults);
    if (!options) options = &defaults;
    dml__comm_job *job = dml__new_job(options);
    if (!job) return NULL;
    dml__comm_settings settings;
    if (dml__read_comm_settings(options, &settings, &job->error)) {
        if (settings.engine)
            dml__open_engine(job, &settings);
        else if (dml__equip_job(job, &settings) && job->world > 1)
            dml__meet_others(job, &settings, sockets);
    }
    if (job->transport && !job->engine && !job->error.status) dml__look_at_links(job);
    dml_comm *comm = dml__new_comm(job, job->next_id++, job->rank, job->world);
    if (!comm) {
        if (job->transport) job->transport->calls->close(job->transport);
        dml__destroy_job(job);
        return NULL;
    }
    if (job->transport && !job->engine && !job->error.status) dml__agree_in_world(comm, settings.tune);
    if (settings.nccl && !job->error.status) dml__nccl_open(comm);
    memset(&job->stats, 0, sizeof job->stats); /* of what is called from now on */
    if (job->rank == 0 && !job->engine && !job->error.status) dml__log_description(comm);
    dml__open_trace(comm, &settings.trace);
    if (options->progress_thread && !job->error.status) dml_comm_start_progress_thread(comm);
    return comm;
}

/* ---- ranks of one process ---- */

/* What the ranks of a local job have in common; the last one to close releases it. */
typedef struct dml__local_job {
    dml__memory memory;
    dml__local_world *world;
    dml__mutex mutex;
    int open;
} dml__local_job;

static void dml__leave_local(dml__local_job *local)
{
    dml__mutex_lock(&local->mutex);
    const bool last = --local->open == 0;
    dml__mutex_unlock(&local->mutex);
    if (!last) return;
    dml__memory memory = local->memory;
    dml__local_world_destroy(local->world);
    dml__mutex_destroy(&local->mutex);
    dml__release(&memory, local);
}

static dml__local_job *dml__new_local_job(const dml_comm_options *options, int world)
{
    dml__memory memory;
    dml__memory_init(&memory, &options->allocator, NULL, 0);
    dml__local_job *local = (dml__local_job *)dml__allocate(&memory, sizeof *local);
    if (!local) return NULL;
    local->memory = memory;
    local->open = 1;
    if (!dml__mutex_init(&local->mutex)) {
        dml__release(&memory, local);
        return NULL;
    }
    local->world = dml__local_world_create(&local->memory, world, -1);
    if (local->world) return local;
    dml__mutex_destroy(&local->mutex);
    dml__release(&memory, local);
    return NULL;
}

static dml_comm *dml__open_local_rank(const dml_comm_options *options, const dml__comm_settings *settings,
                                      dml__local_job *local)
{
    dml__comm_job *job = dml__new_job(options);
    if (!job) return NULL;
    dml_comm *comm = NULL;
    if (dml__equip_job(job, settings)) comm = dml__new_comm(job, job->next_id++, job->rank, job->world);
    if (!comm) {
        dml__destroy_job(job);
        return NULL;
    }
    job->local = local;
    job->round_part = DML__ROUND_PART;
    job->transport = dml__local_open(local->world, job->rank);
    if (job->transport) dml__plan_waits(job);
    dml__look_at_links(job);
    dml__mutex_lock(&local->mutex);
    local->open++;
    dml__mutex_unlock(&local->mutex);
    dml__open_trace(comm, &settings->trace);
    if (options->progress_thread) dml_comm_start_progress_thread(comm);
    return comm;
}

DML_API dml_status dml_comm_open_local(dml_comm **comms, int world, const dml_comm_options *options)
{
    dml_comm_options own;
    dml__comm_settings settings;
    dml__error error;
    if (!comms || world < 1 || world > 4096) return DML_ERROR_ARGUMENT;
    memset(&own, 0, sizeof own);
    memset(&error, 0, sizeof error);
    if (options) own = *options;
    for (int rank = 0; rank < world; rank++) comms[rank] = NULL;
    own.rank = 0;
    own.world_size = world;
    if (!dml__read_comm_settings(&own, &settings, &error)) return error.status;
    dml__local_job *local = dml__new_local_job(&own, world);
    bool opened = local != NULL;
    for (int rank = 0; rank < world && opened; rank++) {
        settings.net.rank = rank;
        comms[rank] = dml__open_local_rank(&own, &settings, local);
        opened = comms[rank] != NULL;
    }
    opened = opened && dml__choose_alone(comms[0]);
    for (int rank = 1; rank < world && opened; rank++) {
        comms[rank]->choice = comms[0]->choice;
        comms[rank]->model = comms[0]->model; /* groups that have another first rank are priced by it */
    }
    if (opened) dml__log_description(comms[0]);
    for (int rank = 0; rank < world && !opened; rank++) {
        if (!comms[rank]) continue;
        comms[rank]->job->error.status = DML_ERROR_MEMORY; /* nothing to wait for when it closes */
        dml_comm_close(comms[rank]);
        comms[rank] = NULL;
    }
    if (local) dml__leave_local(local);
    return opened ? DML_OK : DML_ERROR_MEMORY;
}

DML_API dml_comm *dml_comm_open(const dml_comm_options *options)
{
    return dml__comm_open_on(options, dml__system_sockets());
}

DML_API dml_status dml_comm_start_progress_thread(dml_comm *comm)
{
    if (!comm) return DML_ERROR_ARGUMENT;
    if (dml__is_gone(comm)) return DML_ERROR_STATE;
    dml__enter_job(comm->job);
    const dml_status status = dml__start_helper(comm->job);
    dml__leave_job(comm->job);
    return status;
}

/* ---- groups ---- */

/* What each rank says of itself in a split; of those with one color the order is by key, then by rank. */
typedef struct dml__membership {
    int64_t color, key, next_id;
} dml__membership;

static bool dml__goes_before(const dml__membership *all, int a, int b)
{
    return all[a].key < all[b].key || (all[a].key == all[b].key && a < b);
}

static dml_comm *dml__make_group(dml_comm *comm, const dml__membership *all)
{
    dml__comm_job *job = comm->job;
    const int64_t color = all[comm->rank].color;
    uint32_t id = 0;
    int size = 0, rank = 0;
    for (int r = 0; r < comm->size; r++) {
        if ((uint32_t)all[r].next_id > id) id = (uint32_t)all[r].next_id;
        if (all[r].color != color) continue;
        size++;
        if (dml__goes_before(all, r, comm->rank)) rank++;
    }
    job->next_id = id + 1;
    if (color < 0) return NULL;
    dml_comm *group = dml__new_comm(job, id, rank, size);
    if (!group) {
        dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for a communicator",
                      job->rank);
        return NULL;
    }
    for (int r = 0; r < comm->size; r++) {
        if (all[r].color != color) continue;
        int place = 0;
        for (int o = 0; o < comm->size; o++)
            if (all[o].color == color && dml__goes_before(all, o, r)) place++;
        group->world_ranks[place] = comm->world_ranks[r];
    }
    memcpy(group->functions, comm->functions, sizeof comm->functions);
    memcpy(group->function_users, comm->function_users, sizeof comm->function_users);
    group->function_count = comm->function_count;
    return group;
}

DML_API dml_comm *dml_comm_split(dml_comm *comm, int color, int key)
{
    if (!comm || dml_comm_status(comm)) return NULL;
    dml__comm_job *job = comm->job;
    dml__membership *all =
        (dml__membership *)dml__allocate_array(&job->memory, (size_t)comm->size, sizeof *all);
    if (!all) {
        dml__enter_job(job);
        dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d has no memory for a communicator",
                      job->rank);
        dml__leave_job(job);
        return NULL;
    }
    all[comm->rank].color = color < 0 ? -1 : color;
    all[comm->rank].key = key;
    all[comm->rank].next_id = job->next_id;
    dml_comm *group = NULL;
    dml__go_within(comm, DML__IN_SPLIT);
    const dml_status status = dml_comm_all_gather(comm, &all[comm->rank], 3, DML_I64, all);
    dml__go_within(comm, DML__PLAIN);
    if (!status) {
        dml__enter_job(job);
        group = dml__make_group(comm, all);
        if (job->engine && !job->error.status && !job->engine->split(job, comm, group, color, key) && group) {
            dml__free_comm(job, group);
            group = NULL;
        }
        dml__leave_job(job);
        if (group && !job->engine) dml__agree_in_group(group, comm);
        if (group) dml__nccl_join(group);
    }
    dml__release(&job->memory, all);
    return group;
}

/* ---- closing ---- */

static bool dml__all_said_goodbye(dml__comm_job *job, void *user)
{
    const bool last = *(const bool *)user;
    for (int rank = 0; rank < job->world; rank++) {
        const dml__peer *peer = &job->peers[rank];
        if (rank != job->rank && !peer->gone && !(last ? peer->farewell : peer->goodbye)) return false;
    }
    return true;
}

/* False: the job has failed. */
static bool dml__take_leave(dml__comm_job *job, bool last, double until)
{
    if (job->error.status) return false;
    dml__say_goodbye(job, last);
    dml__wait_until(job, dml__all_said_goodbye, &last, until);
    return !job->error.status;
}

static void dml__judge_unreceived(dml__comm_job *job)
{
    dml_message message;
    if (job->engine->probe(job, NULL, DML_ANY_SOURCE, DML_ANY_TAG, &message))
        dml__job_fail(job, message.source, DML_ERROR_MISMATCH,
                      "rank %d called send(%s, %llu, to %d) with tag %d, which rank %d never received",
                      message.source, dml_dtype_name(message.dtype), (unsigned long long)message.count,
                      job->rank, message.tag, job->rank);
}

/* What came and was never asked for. */
static void dml__judge_leftovers(dml__comm_job *job)
{
    dml__frame frame;
    int rank;
    char text[DML__SIGNATURE_TEXT];
    if (job->engine) {
        dml__judge_unreceived(job);
        return;
    }
    if (!dml__find_stored(job, NULL, DML_ANY_SOURCE, DML_ANY_TAG, &rank, &frame)) return;
    dml__signature_text(&frame.signature, text);
    if (dml__is_pair(frame.signature.operation))
        dml__job_fail(job, rank, DML_ERROR_MISMATCH,
                      "rank %d called %s with tag %d, which rank %d never received", rank, text, frame.tag,
                      job->rank);
    else
        dml__job_fail(job, rank, DML_ERROR_MISMATCH,
                      "rank %d called %s and rank %d closed its communicator without calling it", rank, text,
                      job->rank);
}

static void dml__close_in_order(dml__comm_job *job)
{
    dml__wait_until(job, dml__none_active, NULL, -1);
    const double until = dml_seconds() + job->timeout;
    if (!dml__take_leave(job, false, until)) return;
    job->look_around = true;
    dml__make_progress(job);
    for (int rank = 0; job->outlives && !job->engine && rank < job->world; rank++)
        if (job->links[rank].gone) job->links[rank].store_used = 0; /* who died couldn't know */
    dml__judge_leftovers(job);
    dml__take_leave(job, true, until);
}

static bool dml__comm_is_idle(dml__comm_job *job, void *user)
{
    const dml_comm *comm = (const dml_comm *)user;
    for (const dml_request *r = job->active; r; r = r->next)
        if (r->comm == comm) return false;
    for (const dml_request *r = job->unmatched; r; r = r->next)
        if (r->comm == comm) return false;
    return true;
}

/* What was started on one of several communicators ends, and its requests are free again. */
static void dml__finish_comm(dml__comm_job *job, dml_comm *comm)
{
    dml__wait_until(job, dml__comm_is_idle, comm, -1);
    for (int i = 0; i < job->max_requests; i++) {
        dml_request *request = &job->requests[i];
        if (request->comm != comm || request->state == DML__REQUEST_FREE) continue;
        if (request->state == DML__REQUEST_ACTIVE) dml__end_request(job, request, job->error.status);
        dml__free_request(job, request);
    }
}

static bool dml__is_last_open(const dml__comm_job *job, const dml_comm *comm)
{
    for (const dml_comm *other = job->comms; other; other = other->next)
        if (other != comm && !other->closed) return false;
    return true;
}

static bool dml__is_kept(const dml__comm_job *job)
{
    return __atomic_load_n(&job->kept, __ATOMIC_ACQUIRE) > 0;
}

/* Of what is kept only the memory is left. */
static void dml__shut_comm(dml__comm_job *job, dml_comm *comm)
{
    if (!dml__is_kept(job)) {
        dml__free_comm(job, comm);
        return;
    }
    dml__leave_beneath(job, comm);
    comm->closed = true;
}

static void dml__shut_job(dml__comm_job *job, dml_comm *comm)
{
    if (!dml__is_kept(job)) {
        dml__destroy_job(job);
        return;
    }
    dml__shut_comm(job, comm);
    dml__nccl_close(job);
    job->transport = NULL;
    job->local = NULL;
    job->closed = true;
}

DML__LOCAL void dml__comm_keep(dml_comm *comm)
{
    if (comm) __atomic_fetch_add(&comm->job->kept, 1, __ATOMIC_RELAXED);
}

DML__LOCAL void dml__comm_let_go(dml_comm *comm)
{
    if (!comm || __atomic_sub_fetch(&comm->job->kept, 1, __ATOMIC_ACQ_REL) > 0) return;
    dml__comm_job *job = comm->job;
    if (job->closed) {
        dml__destroy_job(job);
    } else if (!dml__is_copy(job)) {
        dml__enter_job(job);
        for (dml_comm *each = job->comms, *next; each; each = next) {
            next = each->next;
            if (each->closed) dml__free_comm(job, each);
        }
        dml__leave_job(job);
    }
}

DML_API dml_status dml_comm_close(dml_comm *comm)
{
    return dml_comm_close_error(comm, NULL, 0);
}

DML_API dml_status dml_comm_close_error(dml_comm *comm, char *text, size_t bytes)
{
    if (!text) bytes = 0;
    if (bytes) text[0] = 0;
    if (!comm) return DML_OK;
    dml__comm_job *job = comm->job;
    if (comm->closed) {
        if (bytes) snprintf(text, bytes, "%s", dml_comm_error(comm));
        return DML_ERROR_STATE;
    }
    const bool last = dml__is_last_open(job, comm);
    if (dml__is_copy(job)) {
        if (bytes) snprintf(text, bytes, "%s", dml_comm_error(comm));
        /* Mutexes and the condition stay as the fork found them: destroying them would wait for threads. */
        if (last && job->transport) job->transport->calls->abandon(job->transport);
        if (last) job->transport = NULL;
        if (last && !dml__is_kept(job))
            dml__release_job(job);
        else
            dml__shut_comm(job, comm);
        return DML_ERROR_STATE;
    }
    dml__enter_job(job);
    if (!last) {
        if (job->requests) dml__finish_comm(job, comm);
        const dml_status status = job->error.status;
        if (bytes && status) snprintf(text, bytes, "%s", job->error.text);
        dml__shut_comm(job, comm);
        dml__leave_job(job);
        return status;
    }
    if (job->transport) dml__close_in_order(job);
    dml__error error = job->error;
    dml__stop_helper(job);
    if (job->trace) dml__write_trace(job, &error); /* which an error before goes before */
    if (bytes && error.status) snprintf(text, bytes, "%s", error.text);
    if (job->transport) job->transport->calls->close(job->transport);
    dml__mutex_unlock(&job->mutex);
    dml__local_job *local = job->local;
    dml__shut_job(job, comm);
    if (local) dml__leave_local(local);
    return error.status;
}

#endif
