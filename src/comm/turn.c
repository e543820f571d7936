#ifndef DML_COMM_TURN_C
#define DML_COMM_TURN_C

#include "base/clock.h"
#include "comm/job.h"
#include "comm/nccl_engine.h"

/* Who makes progress. Everything of a job is under its mutex, which whoever waits gives up only while it
   sleeps in the transport; who wants in then wakes it. The gate is passed before the mutex is asked for, so
   that a thread that lets go of the mutex for a moment can't take it again before those who wait for it. The
   helper thread, if there is one, makes progress while no other thread does. */

static void dml__note_call(dml__comm_job *job)
{
    if (job->helper_started) job->called_at = dml_seconds();
}

DML__LOCAL void dml__enter_job(dml__comm_job *job)
{
    dml__mutex_lock(&job->gate);
    dml__mutex_lock(&job->mutex);
    while (job->sleeping) {
        job->transport->calls->wake(job->transport);
        dml__cond_wait(&job->changed, &job->mutex, -1);
    }
    dml__mutex_unlock(&job->gate);
    dml__note_call(job);
}

DML__LOCAL void dml__leave_job(dml__comm_job *job)
{
    dml__note_call(job);
    if (job->helper_started || job->waiting) dml__cond_signal_all(&job->changed);
    dml__mutex_unlock(&job->mutex);
}

/* Lets those in who wait. */
static void dml__give_way(dml__comm_job *job)
{
    dml__mutex_unlock(&job->mutex);
    dml__mutex_lock(&job->gate);
    dml__mutex_lock(&job->mutex);
    dml__mutex_unlock(&job->gate);
}

/* Seconds between two looks at what a GPU does, after as long in which it looks all the time. */
#define DML__NCCL_NAP 1e-3

static void dml__advance_all(dml__comm_job *job)
{
    bool again = true;
    while (again && !job->error.status) {
        again = false;
        for (dml_request *r = job->active, *next; r; r = next) {
            next = r->next;
            if (!r->dirty) continue;
            dml__advance_request(job, r);
            again = true;
        }
    }
}

DML__LOCAL bool dml__make_progress(dml__comm_job *job)
{
    const uint64_t before = job->progress;
    dml__advance_all(job);
    if (job->engine) job->engine->progress(job);
    dml__nccl_progress(job);
    for (int rank = 0; !job->engine && rank < job->world && !job->error.status; rank++) {
        dml__link *link = &job->links[rank];
        if (rank == job->rank) continue;
        if ((link->receiving || link->sending || link->out_total) && dml__send_on(job, rank)) break;
        if (!link->gone || link->receiving)
            if (dml__link_is_awaited(job, rank)) dml__receive_on(job, rank);
    }
    job->look_around = false;
    dml__advance_all(job);
    return job->progress != before;
}

/* Of an operation that moves or begins now. One that queues keeps nobody: what it queues behind has a
   deadline of its own. For a message of a rank that is there, who outlives others may have all the time. */
static double dml__deadline_from(const dml__comm_job *job, const dml_request *request, double now)
{
    const int root = request->call.signature.root;
    if (request->queues) return 1e300;
    if (!request->comm->patient || job->engine || request->flow_count ||
        !dml__is_pair(request->call.signature.operation))
        return now + job->timeout;
    return root >= 0 && job->peers[request->comm->world_ranks[root]].goodbye ? now + job->grace : 1e300;
}

static void dml__put_off(const dml__comm_job *job, dml_request *list, double now)
{
    for (dml_request *r = list; r; r = r->next) {
        if (r->moved) r->deadline = dml__deadline_from(job, r, now);
        r->moved = false;
    }
}

DML__LOCAL void dml__note_time(dml__comm_job *job, double now)
{
    if (job->progress != job->progress_seen)
        job->moved_at = now;
    else if (!job->started)
        return;
    job->progress_seen = job->progress;
    job->started = false;
    dml__put_off(job, job->active, now);
    dml__put_off(job, job->unmatched, now);
}

/* This process has been stopped for a while, and perhaps all of the job. */
static void dml__restart_clocks(dml__comm_job *job)
{
    const double now = dml_seconds();
    job->moved_at = now;
    job->answer_until = 0;
    for (dml_request *r = job->active; r; r = r->next) r->deadline = dml__deadline_from(job, r, now);
    for (dml_request *r = job->unmatched; r; r = r->next) r->deadline = dml__deadline_from(job, r, now);
}

/* Where there is a helper somebody looks at the clock at least every `grace`, as long as the process runs. */
static void dml__note_awake(dml__comm_job *job, double now)
{
    if (job->helper_started && now > job->awake_at + 2 * job->grace) dml__restart_clocks(job);
    job->awake_at = now;
}

DML__LOCAL void dml__come_back(dml__comm_job *job)
{
    if (!job->helper_started && job->clock > job->heard_at + job->grace) dml__restart_clocks(job);
    dml__note_awake(job, job->clock);
    dml__read_control(job);
}

/* Sleeps in the transport, at most `seconds`, without the mutex; then hears what came on control. Never for
   long, so that it shows when the process was stopped meanwhile. */
static void dml__sleep(dml__comm_job *job, double seconds)
{
    if (seconds > job->grace) seconds = job->grace;
    for (int rank = 0; rank < job->world; rank++)
        job->wishes[rank] = rank == job->rank || job->engine ? 0 : dml__link_wishes(job, rank);
    const double before = dml_seconds();
    dml__note_awake(job, before);
    job->sleeping = true;
    job->stats.slept++;
    dml__mutex_unlock(&job->mutex);
    const int ready = job->transport->calls->wait(job->transport, job->wishes, seconds);
    dml__mutex_lock(&job->mutex);
    job->sleeping = false;
    dml__cond_signal_all(&job->changed);
    dml__give_way(job);
    if (job->sleeping) return; /* another thread came in, and hears by itself what there is to hear */
    job->awake_at = dml_seconds();
    if (job->awake_at - before > seconds + job->grace) dml__restart_clocks(job);
    if (ready == DML__GONE)
        dml__job_fail(job, job->rank, DML_ERROR_NETWORK, "rank %d can't wait on its connections", job->rank);
    else if (ready & DML__READY_CONTROL)
        dml__read_control(job);
    if (ready > 0 && ready & DML__READY_DATA) job->look_around = true;
}

/* The first deadline among the operations; `until` if it is earlier. */
static double dml__next_deadline(const dml__comm_job *job, double until)
{
    double first = until < 0 ? dml_seconds() + 3600 : until;
    if (dml__nccl_is_busy(job)) return dml_seconds() + DML__NCCL_NAP; /* whose events wake nobody */
    if (job->answer_until > 0) return job->answer_until < first ? job->answer_until : first;
    for (const dml_request *r = job->active; r; r = r->next)
        if (r->deadline < first) first = r->deadline;
    for (const dml_request *r = job->unmatched; r; r = r->next)
        if (r->deadline < first) first = r->deadline;
    return first;
}

static dml_request *dml__first_late(dml_request *list, double now)
{
    while (list && now < list->deadline) list = list->next;
    return list;
}

/* Operations that have not moved for as long as they may. True if one has ended by it. */
static bool dml__watch_deadlines(dml__comm_job *job, double now)
{
    const uint64_t before = job->progress;
    dml_request *late = dml__first_late(job->active, now);
    if (!late) late = dml__first_late(job->unmatched, now);
    if (late)
        dml__look_for_culprit(job, late);
    else
        job->answer_until = 0;
    return job->progress != before;
}

/* A call had nothing to do from *idle_from (< 0: it had) until now. */
static void dml__count_idle(dml__comm_job *job, double *idle_from, double now)
{
    if (*idle_from >= 0 && now > *idle_from) job->stats.waited_s += now - *idle_from;
    *idle_from = -1;
}

DML__LOCAL void dml__keep_watch(dml__comm_job *job)
{
    const double now = dml_seconds(), quiet = now - job->heard_at;
    if (!job->transport || quiet < 2e-3) return;
    /* Who hasn't asked for long may have been away: then nobody else is to blame, and nobody is told that
       this one has waited. But whoever asks rarely isn't away each time. */
    const bool was_away = quiet > job->grace && job->progress != job->progress_away;
    if (was_away) {
        dml__restart_clocks(job);
        job->progress_away = job->progress;
    }
    dml__read_control(job);
    if (job->error.status) return;
    dml__note_time(job, job->clock = now);
    if (!was_away) dml__watch_deadlines(job, now);
}

DML__LOCAL bool dml__none_active(dml__comm_job *job, void *user)
{
    (void)user;
    return !job->active && !job->unmatched;
}

DML__LOCAL bool dml__look_for_crowd(dml__comm_job *job)
{
    const dml__transport_calls *calls = job->transport ? job->transport->calls : NULL;
    job->crowded = !job->yields && calls && calls->crowded && calls->crowded(job->transport);
    return job->crowded;
}

DML__LOCAL bool dml__wait_until(dml__comm_job *job, bool (*done)(dml__comm_job *job, void *user), void *user,
                                double until)
{
    bool result = true;
    double spin_until = -1, idle_from = -1;
    unsigned looks = 0;
    bool came = true;
    job->waiting++;
    while (!done(job, user)) {
        if (job->error.status) {
            result = false;
            break;
        }
        if (job->sleeping) { /* another thread makes progress */
            dml__cond_wait(&job->changed, &job->mutex, 0.1);
            continue;
        }
        if (job->helper_started) {
            dml__give_way(job);
            if (job->sleeping) continue; /* another thread came in, which has the transport now */
        }
        if (dml__make_progress(job)) {
            spin_until = -1;
            if (idle_from >= 0) dml__count_idle(job, &idle_from, job->clock = dml_seconds());
            continue;
        }
        /* The clock takes longer than a look. */
        if (!job->yields && !job->crowded && ++looks % 8) continue;
        const double before = job->clock, now = job->clock = dml_seconds();
        dml__note_time(job, now);
        dml__note_awake(job, now);
        /* What this rank didn't hear while it was away is nobody's fault. */
        if (came && !job->helper_started && now > before + job->grace) dml__restart_clocks(job);
        came = false;
        if (idle_from < 0) idle_from = now;
        if (until >= 0 && now >= until) {
            result = false;
            break;
        }
        if (spin_until < 0) {
            spin_until = now + (dml__nccl_is_busy(job) ? DML__NCCL_NAP : job->spin);
            dml__look_for_crowd(job);
        }
        if (now < spin_until) {
            if (job->yields || job->crowded) dml__thread_yield();
            continue;
        }
        if (now > spin_until + job->grace) dml__restart_clocks(job); /* stopped meanwhile, as in dml__sleep */
        if (dml__watch_deadlines(job, now)) continue;
        const double left = dml__next_deadline(job, until) - now;
        if (!job->error.status && job->transport) dml__sleep(job, left > 0 ? left : 0.001);
        spin_until = -1;
    }
    /* Where nothing is under way any more nobody needs to know to the microsecond when it ended, before the
       next call. But a helper may be asked between calls. */
    if (idle_from >= 0 || job->active || job->unmatched || job->helper_started) job->clock = dml_seconds();
    dml__note_time(job, job->clock);
    dml__count_idle(job, &idle_from, job->clock);
    job->waiting--;
    return result;
}

/* ---- the helper ---- */

#ifndef DML_NO_THREADS
/* Answers while nothing is under way, now and then rather than from the transport, whence each call would
   have to wake it first. (Another engine's calls may be the program's own at that time.) */
static void dml__listen(dml__comm_job *job)
{
    if (job->waiting || job->sleeping || job->error.status || job->engine) return;
    if (dml_seconds() > job->heard_at + job->grace / 5) dml__read_control(job);
}

static void dml__help(void *argument)
{
    dml__comm_job *job = (dml__comm_job *)argument;
    dml__mutex_lock(&job->mutex);
    while (!job->stop) {
        const bool nothing = !job->active && !job->unmatched;
        const bool stays_out = job->waiting || job->sleeping || job->error.status;
        if (nothing || stays_out) {
            dml__cond_wait(&job->changed, &job->mutex, stays_out || job->engine ? -1 : job->grace / 4);
            if (!stays_out) dml__note_awake(job, dml_seconds());
            if (!job->stop) dml__listen(job);
            continue;
        }
        dml__give_way(job);
        if (job->waiting || job->sleeping || dml__make_progress(job)) continue;
        const double now = dml_seconds();
        dml__note_time(job, now);
        dml__note_awake(job, now);
        if (dml__watch_deadlines(job, now)) continue;
        const double left = dml__next_deadline(job, -1) - now;
        if (!job->error.status) dml__sleep(job, left > 0 ? left : 0.001);
    }
    dml__mutex_unlock(&job->mutex);
}
#endif

DML__LOCAL dml_status dml__start_helper(dml__comm_job *job)
{
#ifndef DML_NO_THREADS
    if (job->alone)
        return dml__job_fail(
            job, job->rank, DML_ERROR_STATE,
            "rank %d can't have a progress thread: MPI was initialised for one thread only, not "
            "with MPI_THREAD_SERIALIZED",
            job->rank);
    job->called_at = job->awake_at = dml_seconds();
    if (!job->helper_started && job->transport)
        job->helper_started = dml__thread_start(&job->helper, dml__help, job);
    if (!job->helper_started && job->transport)
        return dml__job_fail(job, job->rank, DML_ERROR_MEMORY, "rank %d can't start its progress thread",
                             job->rank);
#else
    (void)job;
#endif
    return DML_OK;
}

DML__LOCAL void dml__stop_helper(dml__comm_job *job)
{
    if (!job->helper_started) return;
    job->stop = true;
    if (job->sleeping) job->transport->calls->wake(job->transport);
    dml__leave_job(job);
    dml__thread_join(&job->helper);
    dml__mutex_lock(&job->mutex);
}

#endif
