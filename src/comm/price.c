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
    DML__PRICE_WORKED, /* as DONE, and its processor is free */
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

static const dml__price_link *dml__price_link_of(const dml__price_run *run, const dml__price_step *step)
{
    return step->path == DML__PATH_INSIDE ? &run->model->inside : &run->model->between;
}

static double dml__price_latency(const dml__price_run *run, const dml__price_step *step)
{
    return dml__price_link_of(run, step)->latency +
           (step->path == DML__PATH_RACKS ? run->model->rack_latency : 0);
}

static double dml__price_segment_bytes(const dml__price_run *run, const dml__price_step *step,
                                       uint32_t segment)
{
    return (double)(dml__price_elements(run, step, segment + 1) - dml__price_elements(run, step, segment)) *
           (double)run->element_bytes;
}

/* What a processor does for a segment of it. */
static double dml__price_work(const dml__price_run *run, const dml__price_step *step, uint32_t segment)
{
    const double bytes = dml__price_segment_bytes(run, step, segment);
    const dml__price_link *link = dml__price_link_of(run, step);
    const dml__price_model *model = run->model;
    switch (step->step.kind) {
    case DML__STEP_SEND:
    case DML__STEP_RECEIVE: return link->overhead + bytes * link->touch;
    case DML__STEP_RECEIVE_REDUCE: return link->overhead + bytes * link->touch + bytes / model->reduce;
    case DML__STEP_COPY: return model->local + bytes / model->copy;
    case DML__STEP_REDUCE: return model->local + bytes / model->reduce;
    default: return 2 * model->local + bytes / model->reduce; /* a sum, and a copy while it is in the cache */
    }
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
static void dml__price_queue(dml__price_run *run, int index, double ready);

/* ---- processors ---- */

/* A step stands last in its rank's line for a processor. */
static void dml__price_line_up(dml__price_run *run, int32_t index)
{
    dml__price_rank *rank = &run->ranks[run->steps[index].rank];
    run->steps[index].works_behind = -1;
    if (rank->works >= 0)
        run->steps[rank->last].works_behind = index;
    else
        rank->works = index;
    rank->last = index;
}

/* A processor of a host is with a rank until that has nothing left to do, since whoever waits gives way; then
   with the one that has waited longest. A rank's steps take turns by segments. */
static void dml__price_start(dml__price_run *run, dml__price_rank *processor, int32_t rank)
{
    dml__price_rank *owner = &run->ranks[rank];
    const int32_t index = owner->works;
    dml__price_step *step = &run->steps[index];
    const double from = run->now + (processor->processor_of == rank ? 0 : run->model->change);
    const uint32_t segment = step->step.kind == DML__STEP_SEND ? step->issued : step->done;
    processor->processor_of = rank;
    processor->processor_busy = true;
    owner->works = step->works_behind;
    if (--step->works) dml__price_line_up(run, index);
    dml__price_plan(run, from + dml__price_work(run, step, segment), DML__PRICE_WORKED, index);
}

/* The host's processor that is with the rank, or else one with nothing to do; NULL: neither. */
static dml__price_rank *dml__price_processor(dml__price_run *run, int32_t rank)
{
    const int32_t first = run->ranks[rank].first_here;
    dml__price_rank *idle = NULL;
    for (int32_t i = first; i < first + run->model->processors && i < run->rank_count; i++) {
        dml__price_rank *at = &run->ranks[i];
        if (at->host != run->ranks[rank].host) break;
        if (at->processor_of == rank) return at;
        if (!idle && !at->processor_busy) idle = at;
    }
    return idle;
}

/* Of a host's ranks that no processor is with, the one that has waited longest; -1: none waits. */
static int32_t dml__price_waiting(dml__price_run *run, const dml__price_rank *processor)
{
    int32_t longest = -1;
    for (int32_t i = processor->first_here; i < run->rank_count && run->ranks[i].host == processor->host;
         i++) {
        if (run->ranks[i].works < 0) continue;
        if (longest >= 0 && (int32_t)(run->ranks[i].since - run->ranks[longest].since) > 0) continue;
        const dml__price_rank *with = dml__price_processor(run, i);
        if (!with || with->processor_of != i) longest = i;
    }
    return longest;
}

/* A segment of a step is for its rank's processor, if it has one of its own, or waits for one of its host's.
 */
static void dml__price_compute(dml__price_run *run, int index, uint32_t segment)
{
    dml__price_step *step = &run->steps[index];
    dml__price_rank *rank = &run->ranks[step->rank];
    if (!run->model->processors) {
        const double from = rank->busy_until > run->now ? rank->busy_until : run->now;
        rank->busy_until = from + dml__price_work(run, step, segment);
        if (step->step.kind == DML__STEP_SEND)
            dml__price_queue(run, index, rank->busy_until);
        else
            dml__price_plan(run, rank->busy_until, DML__PRICE_DONE, index);
        return;
    }
    const bool first = rank->works < 0;
    if (first) rank->since = run->order;
    if (step->works++ == 0) dml__price_line_up(run, index);
    dml__price_rank *processor = first ? dml__price_processor(run, step->rank) : NULL;
    if (processor && !processor->processor_busy) dml__price_start(run, processor, step->rank);
}

/* A send stands last in a port's line. */
static void dml__price_stand(dml__price_run *run, dml__price_port *port, int index)
{
    dml__price_step *send = &run->steps[index];
    send->queued_behind = -1;
    if (port->head >= 0)
        run->steps[port->tail].queued_behind = index;
    else
        port->head = index;
    port->tail = index;
}

/* Bytes that a message sends before the others of its port have their turn. */
static double dml__price_turn(const dml__price_run *run)
{
    return (double)(run->segment * run->element_bytes) / 4;
}

/* Lets a port that is idle send what waits longest. */
static void dml__price_serve(dml__price_run *run, int port_index)
{
    dml__price_port *port = &run->ports[port_index];
    if (port->current >= 0 || port->head < 0) return;
    dml__price_step *send = &run->steps[port->head];
    const double left = dml__price_segment_bytes(run, send, send->issued) - send->gone;
    const double turn = send->path == DML__PATH_INSIDE ? left : dml__price_turn(run);
    const double bytes = left < turn ? left : turn;
    const double start = send->ready > run->now ? send->ready : run->now;
    port->current = port->head;
    port->head = send->queued_behind;
    dml__price_plan(run, start + bytes / dml__price_link_of(run, send)->bandwidth, DML__PRICE_SENT,
                    port_index);
    const double came = dml__price_transfer(run, send, start, bytes);
    send->gone += bytes;
    if (bytes < left) return;
    send->gone = 0;
    send->queued = false;
    send->issued++;
    dml__price_plan(run, came, DML__PRICE_CAME, send->partner);
    dml__price_try(run, port->current); /* its next segment stands behind those of other messages */
}

/* Its processor is done with a send's next segment at `ready`. */
static void dml__price_queue(dml__price_run *run, int index, double ready)
{
    dml__price_step *send = &run->steps[index];
    const int port_index = dml__price_port_of(run, send);
    send->ready = ready;
    dml__price_stand(run, &run->ports[port_index], index);
    dml__price_serve(run, port_index);
}

static void dml__price_try_send(dml__price_run *run, int index)
{
    dml__price_step *send = &run->steps[index];
    if (send->queued || send->issued == send->total || send->issued >= send->came ||
        send->issued >= dml__price_allowed(run, send))
        return;
    send->queued = true;
    dml__price_compute(run, index, send->issued);
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
    while (receive->issued < receive->came && receive->issued < allowed)
        dml__price_compute(run, index, receive->issued++);
}

/* One segment at a time, so that the processor gets to what comes in meanwhile. */
static void dml__price_try_local(dml__price_run *run, int index)
{
    dml__price_step *step = &run->steps[index];
    if (step->issued > step->done || step->issued == step->total ||
        step->issued >= dml__price_allowed(run, step))
        return;
    dml__price_compute(run, index, step->issued++);
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

/* A processor has done with a segment of the step. It is still its rank's while what follows begins. */
static void dml__price_worked(dml__price_run *run, int index)
{
    const int32_t rank = run->steps[index].rank;
    dml__price_rank *processor = dml__price_processor(run, rank);
    if (run->steps[index].step.kind == DML__STEP_SEND) {
        dml__price_queue(run, index, run->now);
    } else {
        dml__price_advance(run, index);
        dml__price_try(run, index);
    }
    processor->processor_busy = false;
    const int32_t next = run->ranks[rank].works >= 0 ? rank : dml__price_waiting(run, processor);
    if (next >= 0) dml__price_start(run, processor, next);
}

/* A port has sent a segment of a message, or a part of one. */
static void dml__price_sent(dml__price_run *run, int port_index)
{
    dml__price_port *port = &run->ports[port_index];
    const int index = port->current;
    const bool whole = run->steps[index].gone <= 0;
    port->current = -1;
    if (!whole) dml__price_stand(run, port, index);
    dml__price_serve(run, port_index); /* before what follows the send may stand in line */
    if (whole) dml__price_advance(run, index);
}

static void dml__price_happen(dml__price_run *run, const dml__price_event *event)
{
    const int index = (int)(event->what >> DML__PRICE_KIND_BITS);
    switch (event->what & ((1 << DML__PRICE_KIND_BITS) - 1)) {
    case DML__PRICE_SENT: dml__price_sent(run, index); break;
    case DML__PRICE_CAME:
        run->steps[index].came++;
        dml__price_try(run, index);
        break;
    case DML__PRICE_DONE:
        dml__price_advance(run, index);
        dml__price_try(run, index);
        break;
    case DML__PRICE_WORKED: dml__price_worked(run, index); break;
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
        step->issued = step->done = step->granted = step->came = step->works = 0;
        step->gone = 0;
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
        run->ranks[i].busy_until = run->ranks[i].end = 0;
        run->ranks[i].open = run->ranks[i].first;
        run->ranks[i].works = run->ranks[i].last = -1;
        run->ranks[i].processor_busy = false;
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
