#ifndef DML_COMM_SHORT_C
#define DML_COMM_SHORT_C

#include <string.h>

#include "base/pause.h"
#include "comm/job.h"

/* Calls of few bytes. What is waited for at once while nothing else is under way, and moves in messages of
   one frame each through memory that two ranks share, goes without flows and links: its steps are run one by
   one, a message as soon as its frame is there. The frames are those of the engine, so the other ranks
   needn't go about it in the same way.

   Whatever isn't as it mostly is (a frame of another call or of none, no room, no answer for a while) is left
   where it lies, and the engine goes on with what is left of the steps. */

/* Passes over the steps without anything to do before the engine waits instead, which looks at the clock. */
#define DML__SHORT_LOOKS 256
#define DML__SHORT_YIELDS 32

/* Looks at one message before all of them are looked for, and before whoever sleeps is woken: the fence that
   this takes would wait until what was sent has left this processor. */
#define DML__SHORT_SOON 16

typedef struct dml__short_call {
    dml__comm_job *job;
    dml_request *request;
    uint64_t past;  /* a bit for each step */
    int unfinished; /* a step whose frame has gone in part; -1: none */
    bool irregular;
    dml__frame frame; /* of any of its messages, but for what differs */
} dml__short_call;

static bool dml__short_is_free(const dml__schedule *schedule, uint64_t past, int step)
{
    const dml__step *s = &schedule->steps[step];
    for (int i = 0; i < DML__STEP_AFTER && s->after[i] != -1; i++) {
        const uint64_t earlier =
            s->after[i] == DML__ALL_BEFORE ? ((uint64_t)1 << step) - 1 : (uint64_t)1 << s->after[i];
        if ((past & earlier) != earlier) return false;
    }
    return true;
}

static bool dml__short_receives(const dml__step *s)
{
    return s->peer >= 0 && s->kind != DML__STEP_SEND;
}

/* As a bit: the rank that a step sends to or receives from. */
static uint64_t dml__short_peer(const dml__step *s)
{
    return s->peer < 0 ? 0 : (uint64_t)1 << s->peer;
}

/* The first step from `from` on that can go, of the receives or of the others, in their order between each
   two ranks; -1: none. `waiting`: ranks whose earlier message is still to go, 0 at first. */
static int dml__short_next(const dml__schedule *schedule, uint64_t past, bool receives, int from,
                           uint64_t *waiting)
{
    for (int i = from; i < schedule->count; i++) {
        const dml__step *s = &schedule->steps[i];
        if ((past >> i & 1) || receives != dml__short_receives(s)) continue;
        if (!(*waiting & dml__short_peer(s)) && dml__short_is_free(schedule, past, i)) return i;
        *waiting |= dml__short_peer(s);
    }
    return -1;
}

/* The order in which the steps mostly go: what this rank has to say or to do goes as soon as it can, since a
   look at what may not have come yet takes as long as a message does; and then what comes first of what
   comes. */
static void dml__order_short_steps(dml_request *request)
{
    const dml__schedule *schedule = &request->schedule;
    uint64_t past = 0;
    for (int i = 0; i < schedule->count; i++) {
        uint64_t waiting[2] = { 0, 0 };
        int next = dml__short_next(schedule, past, false, 0, &waiting[0]);
        if (next < 0) next = dml__short_next(schedule, past, true, 0, &waiting[1]);
        request->written.order[i] = (uint8_t)next;
        past |= (uint64_t)1 << next;
    }
}

DML__LOCAL bool dml__has_short_steps(const dml__comm_job *job, dml_request *request)
{
    const dml__schedule *schedule = &request->schedule;
    if (schedule->count > DML__SHORT_STEPS || request->comm->size > 64) return false;
    for (int i = 0; i < schedule->count; i++) {
        const dml__step *s = &schedule->steps[i];
        uint32_t message = 0;
        if (s->peer < 0) continue;
        if (!job->links[request->comm->world_ranks[s->peer]].at_once ||
            dml__step_bytes(request, i) > DML__SHORT_BYTES || dml__step_bytes(request, i) > job->eager_bytes)
            return false;
        for (int j = 0; j < i; j++)
            message += schedule->steps[j].peer == s->peer &&
                       (schedule->steps[j].kind == DML__STEP_SEND) == (s->kind == DML__STEP_SEND);
        request->states[i].message = message;
    }
    dml__order_short_steps(request);
    return true;
}

static void dml__short_frame(dml__short_call *c, int step)
{
    c->frame.message = c->request->states[step].message;
    c->frame.bytes = (uint32_t)dml__step_bytes(c->request, step);
}

/* True: it has gone. */
static bool dml__short_send(dml__short_call *c, int step)
{
    dml__comm_job *job = c->job;
    const int rank = c->request->comm->world_ranks[c->request->schedule.steps[step].peer];
    dml__link *link = &job->links[rank];
    dml__short_frame(c, step);
    if (link->gone || link->swapped || link->out_total || job->peers[rank].goodbye ||
        !dml__charge_eager(job, link, c->frame.bytes)) {
        c->irregular = true;
        return false;
    }
    dml__put_frame(link, &c->frame, dml__step_data(c->request, step));
    dml__span span;
    span.data = link->out_header;
    span.bytes = link->out_total;
    const ptrdiff_t sent = job->transport->calls->send(job->transport, rank, DML__CHANNEL_DATA, &span, 1);
    if (sent != (ptrdiff_t)span.bytes) { /* or the other rank is gone, of which the engine hears too */
        link->out_done = sent > 0 ? (size_t)sent : 0;
        c->unfinished = step;
        c->irregular = true;
        return false;
    }
    link->out_total = 0;
    link->frames_sent++;
    link->traffic->bytes_sent += c->frame.bytes;
    link->traffic->messages_sent++;
    return true;
}

/* True: it has come. */
static bool dml__short_receive(dml__short_call *c, int step)
{
    dml__comm_job *job = c->job;
    const dml__step *s = &c->request->schedule.steps[step];
    const int rank = c->request->comm->world_ranks[s->peer];
    dml__link *link = &job->links[rank];
    uint8_t expected[DML__FRAME_BYTES];
    uint32_t consumed;
    const void *data;
    if (link->gone || link->swapped || link->header_bytes || link->payload_left || link->padding_left ||
        link->store_used) {
        c->irregular = true;
        return false;
    }
    const ptrdiff_t lent = job->transport->calls->lend(job->transport, rank, &data);
    if (!lent) return false;
    dml__short_frame(c, step);
    const size_t all = DML__FRAME_BYTES + dml__padded(c->frame.bytes);
    dml__encode_frame(&c->frame, expected);
    if (lent < (ptrdiff_t)all || !dml__same_frame(expected, (const uint8_t *)data, &consumed) ||
        consumed - link->credited > link->charged - link->credited ||
        ((uintptr_t)data & (sizeof(double) - 1))) {
        c->irregular = true;
        return false;
    }
    link->credited = consumed;
    link->consumed += (uint32_t)all;
    link->frames_come++;
    dml__apply(c->request, step, (const uint8_t *)data + DML__FRAME_BYTES, s->count);
    job->transport->calls->consume(job->transport, rank, all);
    link->traffic->bytes_received += c->frame.bytes;
    link->traffic->messages_received++;
    return true;
}

/* True: it is done. */
static bool dml__short_step(dml__short_call *c, int step)
{
    const dml__step *s = &c->request->schedule.steps[step];
    bool done = true;
    if (s->peer < 0)
        dml__apply_local(c->request, step, s->count);
    else
        done = s->kind == DML__STEP_SEND ? dml__short_send(c, step) : dml__short_receive(c, step);
    if (done) c->past |= (uint64_t)1 << step;
    return done;
}

/* Each receive that can be taken, or each other step that can go. True: something moved. */
static bool dml__short_pass(dml__short_call *c, bool receives)
{
    const dml__schedule *schedule = &c->request->schedule;
    const uint64_t before = c->past;
    uint64_t waiting = 0;
    for (int i = 0; !c->irregular; i++) {
        i = dml__short_next(schedule, c->past, receives, i, &waiting);
        if (i < 0) break;
        if (!dml__short_step(c, i)) waiting |= dml__short_peer(&schedule->steps[i]);
    }
    return c->past != before;
}

/* The steps in the order that was written down, as far as that goes without much waiting. */
static void dml__short_in_order(dml__short_call *c)
{
    for (int i = 0; i < c->request->schedule.count; i++) {
        const int step = c->request->written.order[i];
        int looks = DML__SHORT_SOON;
        while (!dml__short_step(c, step)) {
            if (c->irregular || !--looks) return;
            dml__pause();
        }
    }
}

/* The engine has the steps, as far as they have come. */
static void dml__short_leave(dml__short_call *c)
{
    dml__comm_job *job = c->job;
    dml_request *request = c->request;
    dml__begin_steps(job, request);
    for (int i = 0; i < request->schedule.count; i++)
        if (c->past >> i & 1) dml__step_moved(job, request, i, request->schedule.steps[i].count);
    if (c->unfinished < 0) return;
    dml__link *link = &job->links[request->comm->world_ranks[request->schedule.steps[c->unfinished].peer]];
    link->out_flow = link->sending;
    link->out_elements = request->schedule.steps[c->unfinished].count;
}

/* Whether those who sleep are left to be woken later. */
static bool dml__defer_telling(const dml__comm_job *job, bool defers)
{
    if (!job->transport || !job->transport->calls->defer) return false;
    job->transport->calls->defer(job->transport, defers);
    return defers;
}

DML__LOCAL void dml__run_short(dml__comm_job *job, dml_request *request)
{
    dml__short_call c;
    const uint64_t all = request->schedule.count ? UINT64_MAX >> (64 - request->schedule.count) : 0;
    bool yields = job->yields;
    int looks = yields ? DML__SHORT_YIELDS : DML__SHORT_LOOKS - DML__SHORT_SOON;
    c.job = job;
    c.request = request;
    c.past = 0;
    c.unfinished = -1;
    c.irregular = false;
    dml__describe_call(request, &c.frame);
    c.frame.kind = DML__FRAME_EAGER;
    for (int i = 0; i < request->schedule.count; i++) request->states[i].done = 0;
    const bool defers = dml__defer_telling(job, true);
    if (!yields) dml__short_in_order(&c);
    if (defers) dml__defer_telling(job, false);
    while (c.past != all && !c.irregular && looks) {
        if (dml__short_pass(&c, false) || dml__short_pass(&c, true)) continue;
        looks--;
        if (!yields && looks == DML__SHORT_LOOKS - DML__SHORT_YIELDS && dml__look_for_crowd(job)) {
            yields = true;
            looks = DML__SHORT_YIELDS;
        }
        if (yields)
            dml__thread_yield();
        else
            dml__pause();
    }
    if (c.past) job->progress++;
    if (c.past == all)
        dml__end_request(job, request, DML_OK);
    else
        dml__short_leave(&c);
}

#endif
