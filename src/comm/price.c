#ifndef DML_COMM_PRICE_C
#define DML_COMM_PRICE_C

#include "comm/price.h"

#include <string.h>

/* Four things happen, everything else is decided when one of them does: a port has sent a segment; a segment
   has come in; the processor has done with a segment of a step; a grant has come to a send, for one segment
   more or for all of them. */
enum {
    DML__PRICE_SENT, /* of a port; the others are of steps */
    DML__PRICE_CAME,
    DML__PRICE_DONE,
    DML__PRICE_GRANT,
    DML__PRICE_GRANT_ALL,
    DML__PRICE_KIND_BITS = 3
};

/* ---- the events, a binary heap ---- */

static bool dml__price_before(const dml__price_event *a, const dml__price_event *b)
{
    return a->time < b->time || (a->time == b->time && (int32_t)(a->order - b->order) < 0);
}

static void dml__price_plan(dml__price_run *run, double time, int kind, int index)
{
    DML_ASSERT(run->heap_count < run->heap_capacity);
    dml__price_event event;
    event.time = time;
    event.order = run->order++;
    event.what = (uint32_t)index << DML__PRICE_KIND_BITS | (uint32_t)kind;
    size_t at = run->heap_count++;
    while (at > 0 && dml__price_before(&event, &run->heap[(at - 1) / 2])) {
        run->heap[at] = run->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    run->heap[at] = event;
}

static dml__price_event dml__price_next(dml__price_run *run)
{
    const dml__price_event first = run->heap[0], last = run->heap[--run->heap_count];
    size_t at = 0;
    for (size_t child = 1; child < run->heap_count; child = 2 * at + 1) {
        if (child + 1 < run->heap_count && dml__price_before(&run->heap[child + 1], &run->heap[child]))
            child++;
        if (!dml__price_before(&run->heap[child], &last)) break;
        run->heap[at] = run->heap[child];
        at = child;
    }
    run->heap[at] = last;
    return first;
}

/* ---- how far a step may go ---- */

static uint64_t dml__price_elements(const dml__price_run *run, const dml__price_step *step, uint32_t segments)
{
    const uint64_t elements = (uint64_t)segments * run->segment;
    return elements < step->step.count ? elements : step->step.count;
}

/* Segments that what the step comes after leaves it. */
static uint32_t dml__price_allowed(const dml__price_run *run, const dml__price_step *step)
{
    uint64_t limit = UINT64_MAX;
    for (int i = 0; i < DML__STEP_AFTER; i++) {
        const int32_t after = step->step.after[i];
        if (after == DML__ALL_BEFORE && step != &run->steps[run->ranks[step->rank].open]) return 0;
        if (after < 0) continue;
        const dml__price_step *earlier = &run->steps[after];
        const uint64_t left =
            dml__step_limit(&step->step, &earlier->step, dml__price_elements(run, earlier, earlier->done),
                            earlier->done == earlier->total);
        if (left < limit) limit = left;
    }
    return limit > 0 && limit >= step->step.count ? step->total : (uint32_t)(limit / run->segment);
}

/* The processor of its host that can be with the rank soonest, from when on in *from, which is when the rank
   is free or later. Of several the one that it was with last: to take another would keep that one, idle, from
   the others. */
static dml__price_rank *dml__price_processor(const dml__price_run *run, int32_t rank, double *from)
{
    const int32_t first = run->ranks[rank].first_here;
    const double own = *from;
    dml__price_rank *processor = NULL;
    bool stays = false;
    for (int32_t i = first; i < first + run->model->processors && i < run->rank_count; i++) {
        dml__price_rank *at = &run->ranks[i];
        if (at->host != run->ranks[rank].host) break;
        const bool same = at->processor_of == rank;
        const double idle = at->processor_until > run->now ? at->processor_until : run->now;
        double free_at = idle + (same ? 0 : run->model->change);
        if (free_at < own) free_at = own;
        if (processor && (free_at > *from || (free_at == *from && (stays || !same)))) continue;
        processor = at;
        stays = same;
        *from = free_at;
    }
    return processor;
}

/* Takes a processor for so long; returns when it will be done. */
static double dml__price_compute(dml__price_run *run, const dml__price_step *step, double seconds)
{
    dml__price_rank *rank = &run->ranks[step->rank];
    double from = rank->busy_until > run->now ? rank->busy_until : run->now;
    if (run->model->processors) {
        dml__price_rank *processor = dml__price_processor(run, step->rank, &from);
        processor->processor_until = from + seconds;
        processor->processor_of = step->rank;
    }
    return rank->busy_until = from + seconds;
}

static const dml__price_link *dml__price_link_of(const dml__price_run *run, const dml__price_step *step)
{
    return step->path == DML__PATH_INSIDE ? &run->model->inside : &run->model->between;
}

static double dml__price_latency(const dml__price_run *run, const dml__price_step *step)
{
    return dml__price_link_of(run, step)->latency +
           (step->path == DML__PATH_RACKS ? run->model->rack_latency : 0);
}

/* Bytes of a step's next segment. */
static double dml__price_segment_bytes(const dml__price_run *run, const dml__price_step *step)
{
    return (double)(dml__price_elements(run, step, step->issued + 1) -
                    dml__price_elements(run, step, step->issued)) *
           (double)run->element_bytes;
}

/* What a processor does for it, at either end. */
static double dml__price_handling(const dml__price_run *run, const dml__price_step *step)
{
    const dml__price_link *link = dml__price_link_of(run, step);
    return link->overhead + dml__price_segment_bytes(run, step) * link->touch;
}

static bool dml__price_is_eager(const dml__price_run *run, const dml__price_step *step)
{
    return step->step.count * run->element_bytes <= run->model->eager;
}

static int dml__price_port_of(const dml__price_run *run, const dml__price_step *step)
{
    return step->path == DML__PATH_INSIDE ? step->rank : run->rank_count + run->ranks[step->rank].host;
}

/* ---- sends ---- */

/* When the last of so many bytes, that leave from `start` on, will have come in. */
static double dml__price_transfer(dml__price_run *run, const dml__price_step *send, double start,
                                  double bytes)
{
    const dml__price_link *link = dml__price_link_of(run, send);
    const dml__price_step *receive = &run->steps[send->partner];
    dml__price_port *port = &run->ports[dml__price_port_of(run, receive)];
    double at = start;
    if (send->path == DML__PATH_RACKS && run->model->oversubscription > 0) {
        const double rate = link->bandwidth * run->model->hosts_per_rack / run->model->oversubscription;
        double *ways[2];
        ways[0] = &run->uplinks[2 * run->ranks[send->rank].rack];
        ways[1] = &run->uplinks[2 * run->ranks[receive->rank].rack + 1];
        for (int i = 0; i < 2; i++) {
            if (*ways[i] > at) at = *ways[i];
            *ways[i] = at + bytes / rate;
        }
        /* (A rack's uplink that is slower than a port holds the segment up.) */
        if (rate < link->bandwidth) at += bytes / rate - bytes / link->bandwidth;
    }
    at += dml__price_latency(run, send);
    if (port->in_until > at) at = port->in_until;
    return port->in_until = at + bytes / link->bandwidth;
}

static void dml__price_try(dml__price_run *run, int index);

/* Lets a port that is idle send what waits longest. */
static void dml__price_serve(dml__price_run *run, int port_index)
{
    dml__price_port *port = &run->ports[port_index];
    if (port->current >= 0 || port->head < 0) return;
    dml__price_step *send = &run->steps[port->head];
    const double bytes = dml__price_segment_bytes(run, send);
    const double start = send->ready > run->now ? send->ready : run->now;
    port->current = port->head;
    port->head = send->queued_behind;
    send->queued = false;
    send->issued++;
    dml__price_plan(run, start + bytes / dml__price_link_of(run, send)->bandwidth, DML__PRICE_SENT,
                    port_index);
    dml__price_plan(run, dml__price_transfer(run, send, start, bytes), DML__PRICE_CAME, send->partner);
    dml__price_try(run, port->current); /* its next segment stands behind those of other messages */
}

static void dml__price_try_send(dml__price_run *run, int index)
{
    dml__price_step *send = &run->steps[index];
    if (send->queued || send->issued == send->total || send->issued >= send->came ||
        send->issued >= dml__price_allowed(run, send))
        return;
    const int port_index = dml__price_port_of(run, send);
    dml__price_port *port = &run->ports[port_index];
    send->ready = dml__price_compute(run, send, dml__price_handling(run, send));
    send->queued = true;
    send->queued_behind = -1;
    if (port->head >= 0)
        run->steps[port->tail].queued_behind = index;
    else
        port->head = index;
    port->tail = index;
    dml__price_serve(run, port_index);
}

/* ---- receives, copies and sums ---- */

/* Grants the sender of a large message what it may send. */
static void dml__price_grant(dml__price_run *run, dml__price_step *receive, uint32_t allowed)
{
    if (dml__price_is_eager(run, receive) || receive->granted >= allowed) return;
    const double time = run->now + dml__price_latency(run, receive);
    if (receive->granted == 0 && allowed == receive->total) {
        receive->granted = allowed;
        dml__price_plan(run, time, DML__PRICE_GRANT_ALL, receive->partner);
    }
    while (receive->granted < allowed) {
        receive->granted++;
        dml__price_plan(run, time, DML__PRICE_GRANT, receive->partner);
    }
}

static void dml__price_try_receive(dml__price_run *run, int index)
{
    dml__price_step *receive = &run->steps[index];
    const uint32_t allowed = dml__price_allowed(run, receive);
    dml__price_grant(run, receive, allowed);
    while (receive->issued < receive->came && receive->issued < allowed) {
        double seconds = dml__price_handling(run, receive);
        if (receive->step.kind == DML__STEP_RECEIVE_REDUCE)
            seconds += dml__price_segment_bytes(run, receive) / run->model->reduce;
        receive->issued++;
        dml__price_plan(run, dml__price_compute(run, receive, seconds), DML__PRICE_DONE, index);
    }
}

/* One segment at a time, so that the processor gets to what comes in meanwhile. */
static void dml__price_try_local(dml__price_run *run, int index)
{
    dml__price_step *step = &run->steps[index];
    if (step->issued > step->done || step->issued == step->total ||
        step->issued >= dml__price_allowed(run, step))
        return;
    const double rate = step->step.kind == DML__STEP_COPY ? run->model->copy : run->model->reduce;
    const double seconds = run->model->local + dml__price_segment_bytes(run, step) / rate;
    step->issued++;
    dml__price_plan(run, dml__price_compute(run, step, seconds), DML__PRICE_DONE, index);
}

/* Starts as much of a step as can be. */
static void dml__price_try(dml__price_run *run, int index)
{
    switch (run->steps[index].step.kind) {
    case DML__STEP_SEND: dml__price_try_send(run, index); break;
    case DML__STEP_RECEIVE:
    case DML__STEP_RECEIVE_REDUCE: dml__price_try_receive(run, index); break;
    default: dml__price_try_local(run, index);
    }
}

/* ---- the run ---- */

/* The step has ended; whoever waits for all before it may start if it was the last of them. */
static void dml__price_end(dml__price_run *run, int index)
{
    dml__price_rank *rank = &run->ranks[run->steps[index].rank];
    const int before = rank->open, past = rank->first + rank->steps;
    rank->end = run->now;
    while (rank->open < past && run->steps[rank->open].done == run->steps[rank->open].total) rank->open++;
    if (rank->open > before && rank->open < past) dml__price_try(run, rank->open);
}

/* A segment of the step is out of the way. */
static void dml__price_advance(dml__price_run *run, int index)
{
    dml__price_step *step = &run->steps[index];
    step->done++;
    if (step->done == step->total) dml__price_end(run, index);
    for (int32_t at = step->followers; at >= 0;) {
        const int follower = at / DML__STEP_AFTER;
        at = run->steps[follower].next[at % DML__STEP_AFTER];
        dml__price_try(run, follower);
    }
}

static void dml__price_happen(dml__price_run *run, const dml__price_event *event)
{
    const int index = (int)(event->what >> DML__PRICE_KIND_BITS);
    switch (event->what & ((1 << DML__PRICE_KIND_BITS) - 1)) {
    case DML__PRICE_SENT: {
        const int send = run->ports[index].current;
        run->ports[index].current = -1;
        dml__price_serve(run, index); /* before what follows the send may stand in line */
        dml__price_advance(run, send);
        break;
    }
    case DML__PRICE_CAME:
        run->steps[index].came++;
        dml__price_try(run, index);
        break;
    case DML__PRICE_DONE:
        dml__price_advance(run, index);
        dml__price_try(run, index);
        break;
    case DML__PRICE_GRANT_ALL: run->steps[index].came = run->steps[index].total - 1; /* fall through */
    default: run->steps[index].came++; dml__price_try(run, index);
    }
}

static uint32_t dml__price_total(const dml__price_step *step, uint64_t segment)
{
    return step->step.count == 0 ? 1 : (uint32_t)((step->step.count + segment - 1) / segment);
}

DML__LOCAL uint64_t dml__price_segments(const dml__price_run *run, uint64_t segment)
{
    uint64_t total = 0;
    for (int i = 0; i < run->step_count; i++)
        if (run->steps[i].step.kind == DML__STEP_SEND) total += dml__price_total(&run->steps[i], segment);
    return total;
}

static void dml__price_begin(dml__price_run *run)
{
    for (int i = 0; i < run->step_count; i++) {
        dml__price_step *step = &run->steps[i];
        step->total = dml__price_total(step, run->segment);
        step->issued = step->done = step->granted = step->came = 0;
        step->queued = false;
        step->followers = -1;
        if (step->step.kind == DML__STEP_SEND && dml__price_is_eager(run, step)) step->came = step->total;
    }
    for (int i = run->step_count - 1; i >= 0; i--) /* so that a list is in the order of the steps */
        for (int k = 0; k < DML__STEP_AFTER; k++)
            if (run->steps[i].step.after[k] >= 0) {
                dml__price_step *earlier = &run->steps[run->steps[i].step.after[k]];
                run->steps[i].next[k] = earlier->followers;
                earlier->followers = i * DML__STEP_AFTER + k;
            }
    for (int i = 0; i < run->rank_count; i++) {
        run->ranks[i].busy_until = run->ranks[i].processor_until = run->ranks[i].end = 0;
        run->ranks[i].open = run->ranks[i].first;
        run->ranks[i].processor_of = i; /* where there are enough, nobody ever changes */
    }
    for (int i = 0; i < run->rank_count + run->host_count; i++) {
        run->ports[i].in_until = 0;
        run->ports[i].current = run->ports[i].head = run->ports[i].tail = -1;
    }
    for (int i = 0; i < 2 * run->rack_count; i++) run->uplinks[i] = 0;
    run->heap_count = 0;
    run->events = 0;
    run->order = 0;
    run->now = 0;
}

DML__LOCAL int dml__price_run_steps(dml__price_run *run)
{
    dml__price_begin(run);
    for (int i = 0; i < run->step_count; i++) dml__price_try(run, i);
    while (run->heap_count > 0) {
        const dml__price_event event = dml__price_next(run);
        run->now = event.time;
        run->events++;
        dml__price_happen(run, &event);
    }
    for (int i = 0; i < run->step_count; i++)
        if (run->steps[i].done < run->steps[i].total) return i;
    return -1;
}

#endif
