#ifndef DML_NET_LOCAL_C
#define DML_NET_LOCAL_C

#include "net/local.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/cpu_internal.h"
#include "base/os_thread.h"
#include "base/pause.h"
#include "net/lent.h"
#include "net/ring.h"

#define DML__LOCAL_SPIN 50 /* microseconds: about what it costs to sleep and be woken */
#define DML__LOCAL_CONTROL                                                                                   \
    (8 * 512) /* bytes of control that may be on their way to a rank; a power of two                         \
               */

typedef struct dml__local_offer {
    const uint8_t *data;
    size_t bytes;
} dml__local_offer;

/* What is on its way from one rank to another. Each field has one writer, and what both look at is atomic.
   Positions count bytes, round and round; their differences are what counts. */
typedef struct dml__local_pair {
    /* The sender's. */
    size_t offered DML__OWN_LINE; /* position up to which the spans have been published */
    size_t reported;              /* up to which the caller knows that they have gone */
    unsigned head;                /* offers published */
    size_t control_in;
    /* The receiver's. */
    size_t consumed DML__OWN_LINE;
    size_t done;   /* bytes consumed of the offer at tail */
    unsigned tail; /* offers that are consumed */
    int reading;   /* the offer at tail is lent */
    bool ended;    /* the caller has been told that no more control comes */
    size_t control_out;
    dml__local_offer offers[DML__LOCAL_OFFERS] DML__OWN_LINE;
    uint8_t control[DML__LOCAL_CONTROL];
} dml__local_pair;

typedef enum dml__local_state { DML__LOCAL_OPEN, DML__LOCAL_WITHDRAWN, DML__LOCAL_CLOSED } dml__local_state;

typedef struct dml__local_rank {
    dml__transport transport;
    dml__local_world *world;
    int rank;
    int loans; /* how many pairs are marked `reading` */
    dml__mutex mutex;
    dml__cond cond;
    /* What others look at and write. Whatever happens to this rank counts the bell on, after it has happened,
       so that nothing is missed by who looks at the bell first. */
    unsigned bell DML__OWN_LINE;
    int sleeping; /* or about to */
    int woken;
    int state;     /* dml__local_state */
    int processor; /* 1 + that on which it waited last; 0: not known */
} dml__local_rank;

struct dml__local_world {
    dml__memory *memory;
    long process; /* whose threads the ranks are */
    int world;
    int made;               /* ranks that have a mutex and a condition */
    int spin;               /* microseconds */
    dml__local_rank *ranks; /* (world) */
    dml__local_pair *pairs; /* (world, world): from, to */
};

static dml__local_rank *dml__local_of(dml__transport *transport)
{
    return (dml__local_rank *)(void *)transport;
}

static dml__local_pair *dml__local_pair_of(const dml__local_world *world, int from, int to)
{
    return &world->pairs[(size_t)from * (size_t)world->world + (size_t)to];
}

static int dml__local_state_of(const dml__local_rank *rank)
{
    return __atomic_load_n(&rank->state, __ATOMIC_SEQ_CST);
}

/* ---- ringing and sleeping ---- */

/* Who sleeps says so before it looks at the bell for the last time, and who rings looks at that after having
   counted the bell on: one of the two sees the other. */
static void dml__local_ring(dml__local_rank *rank)
{
    __atomic_fetch_add(&rank->bell, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&rank->sleeping, __ATOMIC_SEQ_CST)) return;
    dml__mutex_lock(&rank->mutex);
    dml__cond_signal_all(&rank->cond);
    dml__mutex_unlock(&rank->mutex);
}

static bool dml__local_rang(const dml__local_rank *rank, unsigned bell)
{
    return __atomic_load_n(&rank->bell, __ATOMIC_SEQ_CST) != bell;
}

static bool dml__local_spin(const dml__local_rank *rank, unsigned bell, double until)
{
    double end = 0;
    for (int i = 1; rank->world->spin > 0; i++) {
        if (dml__local_rang(rank, bell)) return true;
        dml__pause();
        if (i % 64) continue;
        const double now = dml_seconds();
        if (end == 0) end = now + rank->world->spin * 1e-6;
        if (now >= end || now >= until) break;
    }
    return dml__local_rang(rank, bell);
}

/* Until the bell is no longer what it was; may return early. */
static void dml__local_doze(dml__local_rank *rank, unsigned bell, double until)
{
    if (dml__local_spin(rank, bell, until)) return;
    const double left = until - dml_seconds();
    if (left <= 0) return;
    __atomic_store_n(&rank->sleeping, 1, __ATOMIC_SEQ_CST);
    dml__mutex_lock(&rank->mutex);
    if (!dml__local_rang(rank, bell)) dml__cond_wait(&rank->cond, &rank->mutex, left < 1e6 ? left : 1e6);
    dml__mutex_unlock(&rank->mutex);
    __atomic_store_n(&rank->sleeping, 0, __ATOMIC_SEQ_CST);
}

/* ---- data ---- */

/* Publishes what of the spans isn't yet, as far as there are slots; whether it was anything. */
static bool dml__local_publish(dml__local_pair *out, const dml__span *spans, int count)
{
    const unsigned tail = __atomic_load_n(&out->tail, __ATOMIC_ACQUIRE), before = out->head;
    unsigned head = before;
    size_t known = out->offered - out->reported; /* of the spans' bytes */
    for (int i = 0; i < count && head - tail < DML__LOCAL_OFFERS; i++) {
        if (spans[i].bytes <= known) {
            known -= spans[i].bytes;
            continue;
        }
        dml__local_offer *offer = &out->offers[head++ % DML__LOCAL_OFFERS];
        offer->data = (const uint8_t *)spans[i].data + known;
        offer->bytes = spans[i].bytes - known;
        out->offered += offer->bytes;
        known = 0;
    }
    __atomic_store_n(&out->head, head, __ATOMIC_RELEASE);
    return head != before;
}

static ptrdiff_t dml__local_send_data(dml__local_rank *me, int rank, const dml__span *spans, int count)
{
    dml__local_pair *out = dml__local_pair_of(me->world, me->rank, rank);
    dml__local_rank *peer = &me->world->ranks[rank];
    if (dml__local_state_of(me) != DML__LOCAL_OPEN) return DML__GONE;
    const int state = dml__local_state_of(peer); /* before what it has consumed, which it did before */
    if (state == DML__LOCAL_OPEN && dml__local_publish(out, spans, count)) dml__local_ring(peer);
    const size_t consumed = __atomic_load_n(&out->consumed, __ATOMIC_ACQUIRE);
    const size_t gone = consumed - out->reported;
    out->reported = consumed;
    return gone == 0 && state != DML__LOCAL_OPEN ? DML__GONE : (ptrdiff_t)gone;
}

static bool dml__local_offers_wait(const dml__local_pair *in)
{
    return __atomic_load_n(&in->head, __ATOMIC_ACQUIRE) != in->tail;
}

/* Who marks the pair looks afterwards whether the sender has withdrawn, who withdraws looks afterwards at
   the mark. So too at the end: either the sender sees that the mark has gone, or it is rung. */
static void dml__local_end_loan(dml__local_rank *me, int rank)
{
    dml__local_pair *in = dml__local_pair_of(me->world, rank, me->rank);
    dml__local_rank *peer = &me->world->ranks[rank];
    if (!__atomic_load_n(&in->reading, __ATOMIC_RELAXED)) return;
    me->loans--;
    __atomic_store_n(&in->reading, 0, __ATOMIC_SEQ_CST);
    if (dml__local_state_of(peer) != DML__LOCAL_OPEN) dml__local_ring(peer);
}

static void dml__local_end_loans(dml__local_rank *me)
{
    for (int rank = 0; me->loans > 0 && rank < me->world->world; rank++) dml__local_end_loan(me, rank);
}

static ptrdiff_t dml__local_lend(dml__transport *transport, int rank, const void **data)
{
    dml__local_rank *me = dml__local_of(transport);
    dml__local_pair *in = dml__local_pair_of(me->world, rank, me->rank);
    const dml__local_rank *peer = &me->world->ranks[rank];
    if (dml__local_state_of(me) != DML__LOCAL_OPEN) return DML__GONE;
    if (!dml__local_offers_wait(in)) return dml__local_state_of(peer) == DML__LOCAL_OPEN ? 0 : DML__GONE;
    me->loans += !__atomic_load_n(&in->reading, __ATOMIC_RELAXED);
    __atomic_store_n(&in->reading, 1, __ATOMIC_SEQ_CST);
    if (dml__local_state_of(peer) != DML__LOCAL_OPEN) {
        dml__local_end_loan(me, rank);
        return DML__GONE;
    }
    const dml__local_offer *offer = &in->offers[in->tail % DML__LOCAL_OFFERS];
    *data = offer->data + in->done;
    return (ptrdiff_t)(offer->bytes - in->done);
}

static void dml__local_consume(dml__transport *transport, int rank, size_t bytes)
{
    dml__local_rank *me = dml__local_of(transport);
    dml__local_pair *in = dml__local_pair_of(me->world, rank, me->rank);
    if (bytes > 0) {
        const size_t all = in->offers[in->tail % DML__LOCAL_OFFERS].bytes;
        DML_ASSERT(bytes <= all - in->done);
        in->done += bytes;
        __atomic_store_n(&in->consumed, in->consumed + bytes, __ATOMIC_RELEASE);
        if (in->done == all) {
            in->done = 0;
            __atomic_store_n(&in->tail, in->tail + 1, __ATOMIC_RELEASE);
        }
    }
    dml__local_end_loan(me, rank);
    if (bytes > 0) dml__local_ring(&me->world->ranks[rank]);
}

/* ---- control ---- */

static ptrdiff_t dml__local_send_control(dml__local_rank *me, int rank, const dml__span *spans, int count)
{
    dml__local_pair *out = dml__local_pair_of(me->world, me->rank, rank);
    dml__local_rank *peer = &me->world->ranks[rank];
    if (dml__local_state_of(me) == DML__LOCAL_CLOSED || dml__local_state_of(peer) == DML__LOCAL_CLOSED)
        return DML__GONE;
    const size_t taken = __atomic_load_n(&out->control_out, __ATOMIC_ACQUIRE), begin = out->control_in;
    size_t at = begin;
    for (int i = 0; i < count; i++) {
        const size_t room = DML__LOCAL_CONTROL - (at - taken);
        const size_t bytes = spans[i].bytes < room ? spans[i].bytes : room;
        dml__ring_put(out->control, DML__LOCAL_CONTROL, at, spans[i].data, bytes);
        at += bytes;
    }
    if (at == begin) return 0;
    __atomic_store_n(&out->control_in, at, __ATOMIC_RELEASE);
    dml__local_ring(peer);
    return (ptrdiff_t)(at - begin);
}

static ptrdiff_t dml__local_receive_control(dml__local_rank *me, int rank, const dml__span *spans, int count)
{
    dml__local_pair *in = dml__local_pair_of(me->world, rank, me->rank);
    /* Before what it has sent, which it did before. */
    const bool closed = dml__local_state_of(&me->world->ranks[rank]) == DML__LOCAL_CLOSED;
    const size_t come = __atomic_load_n(&in->control_in, __ATOMIC_ACQUIRE), begin = in->control_out;
    if (come == begin && closed) {
        __atomic_store_n(&in->ended, true, __ATOMIC_RELAXED);
        return DML__GONE;
    }
    size_t at = begin;
    for (int i = 0; i < count; i++) {
        const size_t bytes = spans[i].bytes < come - at ? spans[i].bytes : come - at;
        dml__ring_get(in->control, DML__LOCAL_CONTROL, at, spans[i].data, bytes);
        at += bytes;
    }
    __atomic_store_n(&in->control_out, at, __ATOMIC_RELEASE);
    return (ptrdiff_t)(at - begin);
}

/* ---- the calls ---- */

static ptrdiff_t dml__local_send(dml__transport *transport, int rank, dml__channel channel,
                                 const dml__span *spans, int count)
{
    dml__local_rank *me = dml__local_of(transport);
    return channel == DML__CHANNEL_DATA ? dml__local_send_data(me, rank, spans, count)
                                        : dml__local_send_control(me, rank, spans, count);
}

static ptrdiff_t dml__local_receive(dml__transport *transport, int rank, dml__channel channel,
                                    const dml__span *spans, int count)
{
    return channel == DML__CHANNEL_DATA
               ? dml__receive_lent(transport, rank, spans, count)
               : dml__local_receive_control(dml__local_of(transport), rank, spans, count);
}

/* What of the wish has come true. Room to send is there when something of what was offered has gone, or when
   all has. */
static int dml__local_look_at(const dml__local_rank *me, int rank, int wish)
{
    const dml__local_pair *in = dml__local_pair_of(me->world, rank, me->rank);
    const dml__local_pair *out = dml__local_pair_of(me->world, me->rank, rank);
    const int state = dml__local_state_of(&me->world->ranks[rank]);
    const bool gone = state != DML__LOCAL_OPEN || dml__local_state_of(me) != DML__LOCAL_OPEN;
    int ready = 0;
    /* The rank's helper thread may be taking control off meanwhile. */
    const size_t taken = __atomic_load_n(&in->control_out, __ATOMIC_RELAXED);
    if (__atomic_load_n(&in->control_in, __ATOMIC_ACQUIRE) != taken ||
        (state == DML__LOCAL_CLOSED && !__atomic_load_n(&in->ended, __ATOMIC_RELAXED)))
        ready |= DML__READY_CONTROL;
    if ((wish & DML__WISH_RECEIVE) && (gone || dml__local_offers_wait(in))) ready |= DML__READY_DATA;
    if ((wish & DML__WISH_SEND) && (gone || out->offered == out->reported ||
                                    __atomic_load_n(&out->consumed, __ATOMIC_ACQUIRE) != out->reported))
        ready |= DML__READY_DATA;
    return ready;
}

static int dml__local_look(const dml__local_rank *me, const uint8_t *wishes)
{
    int ready = 0;
    for (int rank = 0; rank < me->world->world; rank++)
        if (rank != me->rank) ready |= dml__local_look_at(me, rank, wishes ? wishes[rank] : 0);
    return ready;
}

static int dml__local_wait(dml__transport *transport, const uint8_t *wishes, double seconds)
{
    dml__local_rank *me = dml__local_of(transport);
    const double until = seconds > 0 ? dml_seconds() + seconds : 0;
    dml__local_end_loans(me);
    for (;;) {
        const unsigned bell = __atomic_load_n(&me->bell, __ATOMIC_SEQ_CST);
        const bool woken = __atomic_load_n(&me->woken, __ATOMIC_RELAXED) &&
                           __atomic_exchange_n(&me->woken, 0, __ATOMIC_ACQ_REL);
        const int ready = dml__local_look(me, wishes);
        if (woken) return ready | DML__READY_WOKEN;
        if (ready || !(seconds > 0) || dml_seconds() >= until) return ready;
        dml__local_doze(me, bell, until);
    }
}

static void dml__local_wake(dml__transport *transport)
{
    dml__local_rank *me = dml__local_of(transport);
    __atomic_store_n(&me->woken, 1, __ATOMIC_RELEASE);
    dml__local_ring(me);
}

/* Changes the rank's state and tells the others. */
static void dml__local_leave(dml__local_rank *me, dml__local_state state)
{
    __atomic_store_n(&me->state, (int)state, __ATOMIC_SEQ_CST);
    for (int rank = 0; rank < me->world->world; rank++) dml__local_ring(&me->world->ranks[rank]);
}

static void dml__local_withdraw(dml__transport *transport)
{
    dml__local_rank *me = dml__local_of(transport);
    if (dml__local_state_of(me) != DML__LOCAL_OPEN) return;
    dml__local_end_loans(me); /* or two that withdraw could wait for each other */
    dml__local_leave(me, DML__LOCAL_WITHDRAWN);
    for (int rank = 0; rank < me->world->world; rank++) {
        const dml__local_pair *out = dml__local_pair_of(me->world, me->rank, rank);
        for (;;) {
            const unsigned bell = __atomic_load_n(&me->bell, __ATOMIC_SEQ_CST);
            if (!__atomic_load_n(&out->reading, __ATOMIC_SEQ_CST)) break;
            dml__local_doze(me, bell, dml_seconds() + 1);
        }
    }
}

static const char *dml__local_medium(const dml__transport *transport, int rank)
{
    (void)transport, (void)rank;
    return "local";
}

static void dml__local_close(dml__transport *transport)
{
    dml__local_withdraw(transport);
    dml__local_leave(dml__local_of(transport), DML__LOCAL_CLOSED);
}

static bool dml__local_crowded(dml__transport *transport)
{
    dml__local_rank *me = dml__local_of(transport);
    const int here = dml__processor_number() + 1;
    bool crowded = false;
    if (__atomic_load_n(&me->processor, __ATOMIC_RELAXED) != here)
        __atomic_store_n(&me->processor, here, __ATOMIC_RELAXED);
    for (int rank = 0; rank < me->world->world; rank++)
        crowded |= rank != me->rank && here &&
                   __atomic_load_n(&me->world->ranks[rank].processor, __ATOMIC_RELAXED) == here;
    return crowded;
}

/* What a fork's child has is a copy of the whole world, in which nobody else lives. */
static void dml__local_abandon(dml__transport *transport)
{
    (void)transport;
}

/* ---- the world ---- */

DML__LOCAL dml__transport *dml__local_open(dml__local_world *world, int rank)
{
    return &world->ranks[rank].transport;
}

static bool dml__local_make_rank(dml__local_world *world, int rank)
{
    static const dml__transport_calls calls = {
        "local",
        dml__local_send,
        dml__local_receive,
        dml__local_lend,
        dml__local_consume,
        dml__local_withdraw,
        dml__local_wait,
        dml__local_wake,
        dml__local_medium,
        dml__local_close,
        dml__local_abandon,
        NULL,
        NULL,
        dml__local_crowded,
        NULL,
        NULL,
        NULL,
    };
    dml__local_rank *me = &world->ranks[rank];
    me->transport.calls = &calls;
    me->world = world;
    me->rank = rank;
    if (!dml__mutex_init(&me->mutex)) return false;
    if (dml__cond_init(&me->cond)) return true;
    dml__mutex_destroy(&me->mutex);
    return false;
}

DML__LOCAL dml__local_world *dml__local_world_create(dml__memory *memory, int world, int spin)
{
    const size_t ranks = (size_t)world;
    if (world < 1 || ranks > SIZE_MAX / sizeof(dml__local_pair) / ranks) return NULL;
    dml__local_world *made = (dml__local_world *)dml__allocate(memory, sizeof *made);
    if (!made) return NULL;
    made->memory = memory;
    made->process = dml__process_id();
    made->world = world;
    made->spin = spin < 0 ? 0 : spin ? spin : world <= dml_cpu_count() ? DML__LOCAL_SPIN : 0;
    made->ranks = (dml__local_rank *)dml__allocate_array(memory, ranks, sizeof *made->ranks);
    made->pairs = (dml__local_pair *)dml__allocate_array(memory, ranks * ranks, sizeof *made->pairs);
    bool ok = made->ranks && made->pairs;
    while (ok && made->made < world) {
        ok = dml__local_make_rank(made, made->made);
        made->made += ok;
    }
    if (ok) return made;
    dml__local_world_destroy(made);
    return NULL;
}

DML__LOCAL void dml__local_world_destroy(dml__local_world *world)
{
    if (!world) return;
    /* In a fork's child a mutex may be held by a thread that isn't there. */
    for (int rank = 0; rank < world->made && world->process == dml__process_id(); rank++) {
        dml__cond_destroy(&world->ranks[rank].cond);
        dml__mutex_destroy(&world->ranks[rank].mutex);
    }
    dml__memory *memory = world->memory;
    dml__release(memory, world->pairs);
    dml__release(memory, world->ranks);
    dml__release(memory, world);
}

#endif
