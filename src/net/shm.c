#ifndef DML_NET_SHM_C
#define DML_NET_SHM_C

#include "net/shm.h"

#include "base/clock.h"
#include "base/copy.h"
#include "base/cpu.h"
#include "base/cpu_internal.h"
#include "net/shm_internal.h"

#define DML__SHM_SPIN 50         /* microseconds: about what it costs to sleep and be rung */
#define DML__SHM_LOOK_BELOW 1e-3 /* seconds: how long control may lie unseen while data keeps coming */

/* ---- bells: single bytes on the data connection below ---- */

static void dml__shm_bell(dml__shm *shm, int rank)
{
    char byte = 0;
    dml__span span;
    span.data = &byte;
    span.bytes = 1;
    /* Where there is no room for one more, there are enough. */
    shm->below->calls->send(shm->below, rank, DML__CHANNEL_DATA, &span, 1);
}

/* Takes in the bells that have come, and learns whether the other end is still there. */
static void dml__shm_take_bells(dml__shm *shm, int rank)
{
    char dust[64];
    dml__span span;
    ptrdiff_t got;
    span.data = dust;
    span.bytes = sizeof dust;
    do got = shm->below->calls->receive(shm->below, rank, DML__CHANNEL_DATA, &span, 1);
    while (got == (ptrdiff_t)sizeof dust);
    if (got == DML__GONE) shm->pairs[rank].gone = true;
}

/* Wakes the other end if it sleeps and waits for what was sent or consumed; with the fence. */
static void dml__shm_tell_now(dml__shm *shm, int rank)
{
    dml__shm_pair *pair = &shm->pairs[rank];
    const bool receiver = (pair->untold & DML__SHM_SENT) && dml__shm_receiver_to_ring(&pair->out);
    const bool sender = (pair->untold & DML__SHM_TAKEN) && dml__shm_sender_to_ring(&pair->in);
    pair->untold = 0;
    if (receiver || sender) dml__shm_bell(shm, rank);
}

static void dml__shm_tell(dml__shm *shm, int rank, int what)
{
    shm->pairs[rank].untold |= what;
    if (shm->defers) return;
    dml__shm_fence();
    dml__shm_tell_now(shm, rank);
}

static void dml__shm_defer(dml__transport *transport, bool defers)
{
    dml__shm *shm = dml__shm_of(transport);
    shm->defers = defers;
    if (defers) return;
    dml__shm_fence();
    for (int rank = 0; rank < shm->world; rank++)
        if (shm->pairs[rank].untold) dml__shm_tell_now(shm, rank);
}

/* ---- data ---- */

/* Of the spans without their first `sent` bytes as much as goes now: `sent` and that. */
static ptrdiff_t dml__shm_send_spans(dml__shm *shm, int rank, const dml__span *spans, int count, size_t sent,
                                     bool offered)
{
    dml__shm_sender *out = &shm->pairs[rank].out;
    const bool offers = offered && dml__shm_is_read(out);
    size_t skip = sent;
    for (int i = 0; i < count; i++) {
        const size_t skipped = skip < spans[i].bytes ? skip : spans[i].bytes;
        const uint8_t *data = (const uint8_t *)spans[i].data + skipped;
        skip -= skipped;
        const bool remote = offers && spans[i].bytes - skipped >= DML__SHM_REMOTE;
        for (size_t left = spans[i].bytes - skipped; left > 0;) {
            const uint32_t piece =
                remote ? dml__shm_send_remote(out, data, left) : dml__shm_send_piece(out, data, left);
            if (piece == 0) return (ptrdiff_t)sent;
            dml__shm_tell(shm, rank, DML__SHM_SENT);
            data += piece;
            left -= piece;
            if (!remote) sent += piece;
        }
        if (remote) return (ptrdiff_t)sent;
    }
    return (ptrdiff_t)sent;
}

static ptrdiff_t dml__shm_send_data(dml__shm *shm, int rank, const dml__span *spans, int count, bool offered)
{
    dml__shm_pair *pair = &shm->pairs[rank];
    size_t gone = 0;
    if (pair->out.remote ||
        (!pair->gone && !(count == 1 && dml__shm_knows_room(&pair->out, spans[0].data, spans[0].bytes)))) {
        if (spans[count - 1].bytes >= DML__SHM_PAST) dml__shm_time_line(&pair->out);
        if (dml__shm_learn(&pair->out))
            gone = dml__shm_remote_gone(&pair->out);
        else
            pair->gone = true;
    }
    if (gone == 0 && pair->gone) return DML__GONE; /* who is gone may have taken the piece before */
    if (pair->gone || pair->out.remote) return (ptrdiff_t)gone;
    return dml__shm_send_spans(shm, rank, spans, count, gone, offered);
}

/* As dml__shm_look; who is gone is so once all that it had sent is taken. */
static ptrdiff_t dml__shm_look_at(dml__shm_pair *pair)
{
    const ptrdiff_t bytes = dml__shm_look(&pair->in);
    if (bytes < 0) pair->gone = true;
    return bytes <= 0 && pair->gone ? DML__GONE : bytes;
}

/* The next bytes of the remote piece that was looked at; false: it is no more. The seal is read last: if it
   is there, the sender had not withdrawn the piece, and is no other process of the same number. */
static bool dml__shm_read(dml__shm *shm, dml__shm_pair *pair, void *to, size_t bytes)
{
    uint8_t seal[DML__SHM_TOKEN];
    const uint64_t from[2] = { pair->in.remote + pair->in.done, pair->reach.address };
    dml__span into[2];
    into[0].data = to;
    into[0].bytes = bytes;
    into[1].data = seal;
    into[1].bytes = sizeof seal;
    if (shm->host->read((long)pair->reach.process, into, from, 2) &&
        memcmp(seal, pair->reach.seal, sizeof seal) == 0)
        return true;
    pair->gone = true;
    return false;
}

static void dml__shm_consume_from(dml__shm *shm, int rank, size_t bytes)
{
    dml__shm_consume_piece(&shm->pairs[rank].in, bytes);
    dml__shm_tell(shm, rank, DML__SHM_TAKEN);
}

static ptrdiff_t dml__shm_lend(dml__transport *transport, int rank, const void **data)
{
    dml__shm *shm = dml__shm_of(transport);
    dml__shm_pair *pair = &shm->pairs[rank];
    if (!pair->memory)
        return shm->below->calls->lend ? shm->below->calls->lend(shm->below, rank, data) : DML__LENDS_NOTHING;
    ptrdiff_t bytes = dml__shm_look_at(pair);
    if (bytes <= 0) return bytes;
    if (pair->in.data) {
        *data = pair->in.data + pair->in.done;
        return bytes;
    }
    uint8_t *stage = shm->stage + ((pair->in.remote + pair->in.done - (uint64_t)(uintptr_t)shm->stage) & 63);
    if (bytes > (ptrdiff_t)DML__SHM_STAGE) bytes = DML__SHM_STAGE;
    if (!dml__shm_read(shm, pair, stage, (size_t)bytes)) return DML__GONE;
    *data = stage;
    return bytes;
}

/* Takes what has come to where there is room for it: as many bytes as lie in one piece. */
static ptrdiff_t dml__shm_take(dml__shm *shm, int rank, void *to, size_t room)
{
    dml__shm_pair *pair = &shm->pairs[rank];
    const ptrdiff_t come = dml__shm_look_at(pair);
    if (come <= 0) return come;
    const size_t bytes = (size_t)come < room ? (size_t)come : room;
    if (pair->in.data)
        dml__copy_bytes(to, pair->in.data + pair->in.done, bytes);
    else if (!dml__shm_read(shm, pair, to, bytes))
        return DML__GONE;
    dml__shm_consume_from(shm, rank, bytes);
    return (ptrdiff_t)bytes;
}

static ptrdiff_t dml__shm_receive_data(dml__shm *shm, int rank, const dml__span *spans, int count)
{
    size_t got = 0;
    for (int i = 0; i < count; i++)
        for (size_t filled = 0; filled < spans[i].bytes;) {
            const ptrdiff_t taken =
                dml__shm_take(shm, rank, (uint8_t *)spans[i].data + filled, spans[i].bytes - filled);
            if (taken <= 0) return got ? (ptrdiff_t)got : taken;
            filled += (size_t)taken;
            got += (size_t)taken;
        }
    return (ptrdiff_t)got;
}

static void dml__shm_consume(dml__transport *transport, int rank, size_t bytes)
{
    dml__shm *shm = dml__shm_of(transport);
    dml__shm_pair *pair = &shm->pairs[rank];
    if (!pair->memory) {
        shm->below->calls->consume(shm->below, rank, bytes);
        return;
    }
    dml__shm_consume_from(shm, rank, bytes);
}

static ptrdiff_t dml__shm_send(dml__transport *transport, int rank, dml__channel channel,
                               const dml__span *spans, int count)
{
    dml__shm *shm = dml__shm_of(transport);
    if (channel == DML__CHANNEL_DATA && shm->pairs[rank].memory)
        return dml__shm_send_data(shm, rank, spans, count, false);
    return shm->below->calls->send(shm->below, rank, channel, spans, count);
}

static ptrdiff_t dml__shm_offer_data(dml__transport *transport, int rank, const dml__span *spans, int count)
{
    dml__shm *shm = dml__shm_of(transport);
    if (!shm->pairs[rank].memory) return dml__shm_send(transport, rank, DML__CHANNEL_DATA, spans, count);
    return dml__shm_send_data(shm, rank, spans, count, true);
}

static ptrdiff_t dml__shm_receive(dml__transport *transport, int rank, dml__channel channel,
                                  const dml__span *spans, int count)
{
    dml__shm *shm = dml__shm_of(transport);
    if (channel == DML__CHANNEL_DATA && shm->pairs[rank].memory)
        return dml__shm_receive_data(shm, rank, spans, count);
    return shm->below->calls->receive(shm->below, rank, channel, spans, count);
}

/* ---- waiting ---- */

/* Whether a wish has come true that shared memory answers. */
static bool dml__shm_wish_is_true(dml__shm_pair *pair, int wish)
{
    if ((wish & DML__WISH_RECEIVE) && dml__shm_look_at(pair) != 0) return true;
    if (!(wish & DML__WISH_SEND)) return false;
    if (!dml__shm_learn(&pair->out)) pair->gone = true;
    return pair->gone || dml__shm_room(&pair->out);
}

static bool dml__shm_any_is_true(dml__shm *shm, const uint8_t *wishes)
{
    for (int rank = 0; wishes && rank < shm->world; rank++)
        if (shm->pairs[rank].memory && wishes[rank] && dml__shm_wish_is_true(&shm->pairs[rank], wishes[rank]))
            return true;
    return false;
}

/* While it spins, nobody looks below. */
static bool dml__shm_may_spin(const dml__shm *shm, const uint8_t *wishes)
{
    bool any = false;
    for (int rank = 0; wishes && rank < shm->world; rank++) {
        if (wishes[rank] && !shm->pairs[rank].memory) return false;
        any |= wishes[rank] != 0;
    }
    return any && shm->spin > 0;
}

static bool dml__shm_spin(dml__shm *shm, const uint8_t *wishes, double until)
{
    double end = 0;
    if (!dml__shm_may_spin(shm, wishes)) return false;
    for (int i = 1;; i++) {
        if (dml__shm_any_is_true(shm, wishes)) return true;
        dml__pause();
        if (i % 64) continue;
        const double now = dml_seconds();
        if (end == 0) end = now + shm->spin * 1e-6;
        if (now >= end || now >= until) return false;
    }
}

/* Tells the other ends of what is wished for that this rank sleeps, or no longer does. */
static void dml__shm_set_sleeping(dml__shm *shm, const uint8_t *wishes, uint32_t sleeping)
{
    for (int rank = 0; wishes && rank < shm->world; rank++) {
        dml__shm_pair *pair = &shm->pairs[rank];
        if (!pair->memory) continue;
        if (wishes[rank] & DML__WISH_RECEIVE)
            __atomic_store_n(&pair->in.way->receiver_sleeps, sleeping, __ATOMIC_SEQ_CST);
        if (wishes[rank] & DML__WISH_SEND)
            __atomic_store_n(&pair->out.way->sender_sleeps, sleeping, __ATOMIC_SEQ_CST);
    }
}

/* Waits below for the wishes that are answered there, and for bells from the others. */
static int dml__shm_wait_below(dml__shm *shm, const uint8_t *wishes, double seconds)
{
    for (int rank = 0; rank < shm->world; rank++) {
        const dml__shm_pair *pair = &shm->pairs[rank];
        const uint8_t wish = wishes ? wishes[rank] : 0;
        shm->wishes[rank] = !pair->memory ? wish : wish && !pair->gone ? DML__WISH_RECEIVE : 0;
    }
    const int told = shm->below->calls->wait(shm->below, shm->wishes, seconds);
    for (int rank = 0; told > 0 && (told & DML__READY_DATA) && rank < shm->world; rank++)
        if (shm->pairs[rank].memory && shm->wishes[rank]) dml__shm_take_bells(shm, rank);
    shm->looked_below = dml_seconds();
    return told;
}

/* Which of the wishes that are answered below have come true, now. */
static int dml__shm_ask_below(dml__shm *shm, const uint8_t *wishes)
{
    for (int rank = 0; rank < shm->world; rank++)
        shm->wishes[rank] = wishes && !shm->pairs[rank].memory ? wishes[rank] : 0;
    shm->looked_below = dml_seconds();
    return shm->below->calls->wait(shm->below, shm->wishes, 0);
}

/* Sleeps below, once, unless a wish comes true before. */
static int dml__shm_sleep(dml__shm *shm, const uint8_t *wishes, double seconds)
{
    if (seconds > 0) dml__shm_set_sleeping(shm, wishes, 1);
    const bool early = seconds > 0 && dml__shm_any_is_true(shm, wishes);
    const int told = dml__shm_wait_below(shm, wishes, early ? 0 : seconds);
    if (seconds > 0) dml__shm_set_sleeping(shm, wishes, 0);
    if (told < 0) return told;
    int ready = told & (DML__READY_CONTROL | DML__READY_WOKEN);
    if (dml__shm_any_is_true(shm, wishes))
        ready |= DML__READY_DATA;
    else if (told & DML__READY_DATA) /* a connection, or a bell that was late */
        ready |= dml__shm_ask_below(shm, wishes);
    return ready;
}

static int dml__shm_wait(dml__transport *transport, const uint8_t *wishes, double seconds)
{
    dml__shm *shm = dml__shm_of(transport);
    const double begin = dml_seconds(), until = begin + seconds;
    for (;;) {
        if (dml__shm_any_is_true(shm, wishes) || (seconds > 0 && dml__shm_spin(shm, wishes, until))) {
            if (begin - shm->looked_below < DML__SHM_LOOK_BELOW) return DML__READY_DATA;
            const int below = dml__shm_ask_below(shm, wishes);
            return below < 0 ? below : below | DML__READY_DATA;
        }
        const double left = seconds > 0 ? until - dml_seconds() : 0;
        const int ready = dml__shm_sleep(shm, wishes, left > 0 ? left : 0);
        if (ready || left <= 0) return ready;
    }
}

static void dml__shm_wake(dml__transport *transport)
{
    const dml__shm *shm = dml__shm_of(transport);
    shm->below->calls->wake(shm->below);
}

/* ---- the rest ---- */

static const char *dml__shm_medium(const dml__transport *transport, int rank)
{
    const dml__shm *shm = dml__shm_of(transport);
    return shm->pairs[rank].memory ? "shm" : shm->below->calls->medium(shm->below, rank);
}

static double dml__shm_confirmed(const dml__transport *transport, int rank)
{
    const dml__shm *shm = dml__shm_of(transport);
    const bool below = !shm->pairs[rank].memory && shm->below->calls->confirmed;
    return below ? shm->below->calls->confirmed(shm->below, rank) : -1;
}

static bool dml__shm_crowded(dml__transport *transport)
{
    const dml__shm *shm = dml__shm_of(transport);
    const uint32_t here = (uint32_t)(dml__processor_number() + 1);
    bool crowded = false;
    for (int rank = 0; rank < shm->world; rank++) {
        const dml__shm_pair *pair = &shm->pairs[rank];
        if (!pair->memory) continue;
        uint32_t *mine = &pair->in.way->receiver_processor;
        if (__atomic_load_n(mine, __ATOMIC_RELAXED) != here) __atomic_store_n(mine, here, __ATOMIC_RELAXED);
        crowded |= here && __atomic_load_n(&pair->out.way->receiver_processor, __ATOMIC_RELAXED) == here;
    }
    return crowded;
}

/* From now on nobody takes what was read here for something that was on offer. */
static void dml__shm_break_seal(dml__shm *shm)
{
    for (size_t i = 0; i < sizeof shm->seal; i++) __atomic_store_n(&shm->seal[i], 0, __ATOMIC_RELAXED);
    dml__shm_fence(); /* what is written next may not be seen before */
}

static bool dml__shm_reads(const dml__transport *transport, int rank)
{
    const dml__shm_pair *pair = &dml__shm_of(transport)->pairs[rank];
    return pair->memory && dml__shm_is_read(&pair->out);
}

static void dml__shm_withdraw(dml__transport *transport)
{
    dml__shm *shm = dml__shm_of(transport);
    dml__shm_break_seal(shm);
    if (shm->below->calls->withdraw) shm->below->calls->withdraw(shm->below);
}

/* Lets go of all but what is below. */
static void dml__shm_release(dml__shm *shm)
{
    dml__memory *memory = shm->memory;
    dml__shm_break_seal(shm);
    dml__shm_end_offer(shm);
    for (int rank = 0; shm->pairs && rank < shm->world; rank++)
        if (shm->pairs[rank].memory) shm->host->unmap(shm->pairs[rank].memory, shm->pairs[rank].bytes);
    dml__release(memory, shm->pairs);
    dml__release(memory, shm->wishes);
    dml__release(memory, shm->stage);
    dml__release(memory, shm);
}

static void dml__shm_close(dml__transport *transport)
{
    dml__shm *shm = dml__shm_of(transport);
    dml__transport *below = shm->below;
    dml__shm_release(shm);
    below->calls->close(below);
}

static void dml__shm_abandon(dml__transport *transport)
{
    dml__shm *shm = dml__shm_of(transport);
    dml__transport *below = shm->below;
    dml__shm_release(shm);
    below->calls->abandon(below);
}

DML__LOCAL void dml__shm_connect(dml__shm *shm, int rank, uint8_t *memory, uint32_t ring)
{
    dml__shm_pair *pair = &shm->pairs[rank];
    const size_t direction = sizeof(dml__shm_way) + (size_t)ring;
    uint8_t *lower = memory + sizeof(dml__shm_head), *upper = lower + direction;
    uint8_t *out = shm->rank < rank ? lower : upper, *in = shm->rank < rank ? upper : lower;
    pair->memory = memory;
    pair->bytes = dml__shm_bytes(ring);
    pair->out.way = (dml__shm_way *)(void *)out;
    pair->out.ring = out + sizeof(dml__shm_way);
    pair->in.way = (dml__shm_way *)(void *)in;
    pair->in.ring = in + sizeof(dml__shm_way);
    pair->out.size = pair->in.size = ring;
}

/* ---- whose memory can be read ---- */

DML__LOCAL void dml__shm_tell_reach(const dml__shm *shm, int rank, uint8_t *memory)
{
    dml__shm_reach *reach = &((dml__shm_head *)(void *)memory)->reach[shm->rank > rank];
    if (!shm->sealed) return;
    reach->process = (uint64_t)shm->host->process();
    reach->address = (uint64_t)(uintptr_t)shm->seal;
    memcpy(reach->seal, shm->seal, sizeof reach->seal);
}

DML__LOCAL void dml__shm_try_reach(dml__shm *shm, int rank)
{
    dml__shm_pair *pair = &shm->pairs[rank];
    uint8_t seal[DML__SHM_TOKEN];
    dml__span into;
    into.data = seal;
    into.bytes = sizeof seal;
    pair->reach = ((const dml__shm_head *)(const void *)pair->memory)->reach[shm->rank < rank];
    pair->in.reads = shm->reads && pair->reach.address && pair->reach.process <= INT32_MAX &&
                     shm->host->read((long)pair->reach.process, &into, &pair->reach.address, 1) &&
                     memcmp(seal, pair->reach.seal, sizeof seal) == 0;
    if (pair->in.reads) __atomic_store_n(&pair->in.way->receiver_reads, 1, __ATOMIC_RELEASE);
}

/* Whether reading another process's memory takes less than copying into a ring and out of it, which two
   processors do side by side: the system looks up each page, and copies as it does. In small pieces both take
   less than here; that the ratio is about the same was measured. */
static bool dml__shm_reading_is_fast(const dml__host_calls *host, dml__memory *memory)
{
    const size_t bytes = (size_t)256 << 10;
    char *from = (char *)dml__allocate_unset(memory, 2 * bytes), *to = from + bytes;
    double read = 1e9, copy = 1e9;
    if (!from) return true; /* nobody knows */
    const uint64_t address = (uint64_t)(uintptr_t)from;
    dml__span into;
    into.data = to;
    into.bytes = bytes;
    memset(from, 1, 2 * bytes);
    for (int i = 0; i < 5; i++) {
        const double begin = dml_seconds();
        memcpy(to, from, bytes);
        const double copied = dml_seconds();
        host->read(host->process(), &into, &address, 1);
        const double end = dml_seconds();
        if (copied - begin < copy) copy = copied - begin;
        if (end - copied < read) read = end - copied;
    }
    dml__release(memory, from);
    return read < 2 * copy;
}

static dml__shm *dml__shm_create(dml__transport *below, const dml__shm_settings *settings,
                                 const dml__host_calls *host, dml__memory *memory)
{
    static const dml__shared_calls shared = { dml__shm_make_shared, dml__shm_find_shared,
                                              dml__shm_drop_shared };
    static const dml__transport_calls calls = {
        "shm",
        dml__shm_send,
        dml__shm_receive,
        dml__shm_lend,
        dml__shm_consume,
        dml__shm_withdraw,
        dml__shm_wait,
        dml__shm_wake,
        dml__shm_medium,
        dml__shm_close,
        dml__shm_abandon,
        dml__shm_reads,
        dml__shm_offer_data,
        dml__shm_crowded,
        dml__shm_confirmed,
        dml__shm_defer,
        &shared,
    };
    dml__shm *shm = (dml__shm *)dml__allocate(memory, sizeof *shm);
    if (!shm) return NULL;
    shm->transport.calls = &calls;
    shm->below = below;
    shm->memory = memory;
    shm->host = host;
    shm->rank = settings->rank;
    shm->world = settings->world;
    shm->pairs = (dml__shm_pair *)dml__allocate_array(memory, (size_t)shm->world, sizeof *shm->pairs);
    shm->wishes = (uint8_t *)dml__allocate(memory, (size_t)shm->world);
    shm->stage = (uint8_t *)dml__allocate(memory, DML__SHM_STAGE + 64);
    shm->sealed = !settings->off && !settings->no_reads && host->random(shm->seal, sizeof shm->seal);
    shm->reads = shm->sealed && (!settings->reads_if_fast || dml__shm_reading_is_fast(host, memory));
    if (shm->pairs && shm->wishes && shm->stage) return shm;
    dml__shm_release(shm);
    return NULL;
}

DML__LOCAL dml__transport *dml__shm_open(dml__transport *below, const dml__shm_settings *settings,
                                         const dml__host_calls *host, dml__memory *memory, int *culprit)
{
    *culprit = settings->rank;
    dml__shm *shm = dml__shm_create(below, settings, host, memory);
    if (!shm) return NULL;
    const bool met = dml__shm_meet(shm, settings, culprit);
    int here = 1;
    for (int rank = 0; met && rank < shm->world; rank++) here += shm->pairs[rank].memory != NULL;
    if (!met || here == 1) {
        dml__shm_release(shm);
        return met ? below : NULL;
    }
    shm->spin = settings->spin < 0        ? 0
                : settings->spin          ? settings->spin
                : here <= dml_cpu_count() ? DML__SHM_SPIN
                                          : 0;
    return &shm->transport;
}

#endif
