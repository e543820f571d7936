#ifndef DML_COMM_OPEN_C
#define DML_COMM_OPEN_C

#include <string.h>

#include "base/cpu.h"
#include "comm/algorithms.h"
#include "comm/choice.h"
#include "comm/job.h"
#include "comm/nccl_engine.h"
#include "comm/trace.h"
#include "net/local.h"
#include "net/shm.h"

/* Opening and splitting. */

/* ---- meeting the others ---- */

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

static bool dml__sharing_control(void *user)
{
    return dml__read_control((dml__comm_job *)user) == DML_OK;
}

/* Ranks of one host find each other. */
static void dml__meet_on_host(dml__comm_job *job, const dml__comm_settings *settings)
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
    if (job->transport) dml__meet_on_host(job, settings);
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

DML__LOCAL void dml__leave_local(dml__local_job *local)
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

DML__LOCAL dml_status dml__comm_open_local(dml_comm **comms, int world, const dml_comm_options *options,
                                           dml__error *error)
{
    dml_comm_options own;
    dml__comm_settings settings;
    memset(&own, 0, sizeof own);
    if (options) own = *options;
    for (int rank = 0; rank < world; rank++) comms[rank] = NULL;
    own.rank = 0;
    own.world_size = world;
    if (!dml__read_comm_settings(&own, &settings, error)) return error->status;
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
    return opened ? DML_OK : dml__fail(error, DML_ERROR_MEMORY, "no memory left for %d ranks", world);
}

DML_API dml_status dml_comm_open_local(dml_comm **comms, int world, const dml_comm_options *options)
{
    dml__error error;
    memset(&error, 0, sizeof error);
    if (!comms || world < 1 || world > 4096) return DML_ERROR_ARGUMENT;
    return dml__comm_open_local(comms, world, options, &error);
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

#endif
