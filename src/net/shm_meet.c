#ifndef DML_NET_SHM_MEET_C
#define DML_NET_SHM_MEET_C

#include "net/shm_internal.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/cpu_internal.h"

/* How two ranks find out whether they share memory, in messages of one size over the data channel:

     both         HELLO   on which host they are
     lower rank   OFFER   where its memory is; only if they are on one host. No process: it has none
     upper rank   ANSWER  whether it has got it; only if there was some

   so that both know the same at the end, whatever has failed. In the memory itself each says where its own
   can be read, and each finds out by itself whether it can read the other's. */
enum { DML__SHM_HELLO = 1, DML__SHM_OFFER, DML__SHM_ANSWER, DML__SHM_DONE };

#define DML__SHM_MESSAGE 64
#define DML__SHM_MAGIC UINT32_C(0x326d6873)

/* What is going on with one rank. */
typedef struct dml__shm_talk {
    uint8_t out[DML__SHM_MESSAGE], in[DML__SHM_MESSAGE];
    size_t sent, got;
    int expects; /* the kind of message that comes next */
    bool made;   /* memory has been offered: */
    int fd;
    uint8_t *memory;
} dml__shm_talk;

typedef struct dml__shm_meeting {
    dml__shm *shm;
    const dml__shm_settings *settings;
    uint64_t identity; /* 0: this rank shares nothing */
    uint32_t ring;
    dml__shm_talk *talks; /* (world) */
} dml__shm_meeting;

static void dml__shm_say(dml__shm_talk *talk, int kind)
{
    memset(talk->out, 0, sizeof talk->out);
    dml__store32(talk->out, DML__SHM_MAGIC);
    dml__store32(talk->out + 4, (uint32_t)kind);
    talk->sent = 0;
}

static void dml__shm_close_talk(const dml__shm *shm, dml__shm_talk *talk, size_t bytes)
{
    if (!talk->made) return;
    if (talk->memory) shm->host->unmap(talk->memory, bytes);
    shm->host->close(talk->fd);
    talk->made = false;
}

/* Makes the memory of a pair and says where it is, or that there is none. */
static void dml__shm_offer(const dml__shm_meeting *meeting, int rank, dml__shm_talk *talk)
{
    dml__shm_say(talk, DML__SHM_OFFER);
    talk->expects = DML__SHM_DONE;
    talk->memory =
        dml__shm_make_memory(meeting->shm->host, dml__shm_bytes(meeting->ring), talk->out + 8, &talk->fd);
    talk->made = talk->memory != NULL;
    if (!talk->made) return;
    dml__shm_tell_reach(meeting->shm, rank, talk->memory);
    dml__store32(talk->out + 20, meeting->ring);
    talk->expects = DML__SHM_ANSWER;
}

/* On Intel's processors two pieces, which stay in the second caches: 1.1 to 2.3 times as fast as 2 MiB
   between two ranks of a Cascade Lake (one piece would let nobody write while it is read). On others, where
   ranks share processors, a segment of the engine's, which is used again and again, as near as the second
   cache: those of all ranks share the third with the arrays. Else rings go round beyond it: a line that the
   other processor's second cache still has comes slower from there than from what both share. Of many ranks,
   each has rings of 8 MiB for what comes to it while they are of 64 KiB or more: memory is taken at once. */
static uint32_t dml__shm_usual_ring(int world)
{
    uint32_t ring = dml__is_intel()           ? 2 * DML__SHM_PIECE
                    : world > dml_cpu_count() ? DML__SHM_RING_NEAR / 2
                                              : 4 * DML__SHM_RING_NEAR;
    while (ring > 64u * 1024 && (uint64_t)ring * (uint64_t)world > 8u * 1024 * 1024) ring /= 2;
    return ring;
}

static bool dml__shm_ring_ok(size_t ring)
{
    return ring >= DML__SHM_RING_LEAST && ring <= DML__SHM_RING_MOST && (ring & (ring - 1)) == 0;
}

static void dml__shm_answer(dml__shm *shm, int rank, dml__shm_talk *talk)
{
    dml__shm_say(talk, DML__SHM_ANSWER);
    talk->expects = DML__SHM_DONE;
    const uint32_t ring = dml__load32(talk->in + 20);
    uint8_t *memory =
        dml__shm_ring_ok(ring) ? dml__shm_find_memory(shm->host, dml__shm_bytes(ring), talk->in + 8) : NULL;
    if (!memory) return;
    dml__store32(talk->out + 8, 1);
    dml__shm_connect(shm, rank, memory, ring);
    dml__shm_tell_reach(shm, rank, memory);
    dml__shm_try_reach(shm, rank);
}

/* The lower rank hears whether the other has the memory. */
static void dml__shm_conclude(const dml__shm_meeting *meeting, int rank, dml__shm_talk *talk)
{
    dml__shm *shm = meeting->shm;
    talk->expects = DML__SHM_DONE;
    if (dml__load32(talk->in + 8) == 1) {
        dml__shm_connect(shm, rank, talk->memory, meeting->ring);
        dml__shm_try_reach(shm, rank);
        talk->memory = NULL;
    }
    dml__shm_close_talk(shm, talk, dml__shm_bytes(meeting->ring));
}

/* A whole message has come; false: it makes no sense. */
static bool dml__shm_hear(const dml__shm_meeting *meeting, int rank)
{
    dml__shm_talk *talk = &meeting->talks[rank];
    const bool lower = meeting->shm->rank < rank;
    talk->got = 0;
    if (dml__load32(talk->in) != DML__SHM_MAGIC || dml__load32(talk->in + 4) != (uint32_t)talk->expects)
        return false;
    if (talk->expects == DML__SHM_HELLO) {
        const uint64_t identity = dml__load64(talk->in + 8);
        talk->expects = DML__SHM_DONE;
        if (identity == 0 || identity != meeting->identity) return true;
        if (lower)
            dml__shm_offer(meeting, rank, talk);
        else
            talk->expects = DML__SHM_OFFER;
    } else if (talk->expects == DML__SHM_OFFER) {
        talk->expects = DML__SHM_DONE;
        if (dml__load64(talk->in + 8) != 0) dml__shm_answer(meeting->shm, rank, talk);
    } else {
        dml__shm_conclude(meeting, rank, talk);
    }
    return true;
}

/* As much of the talk with one rank as goes without waiting; false: the rank is gone, or makes no sense. */
static bool dml__shm_talk_on(const dml__shm_meeting *meeting, int rank, bool *moved)
{
    dml__transport *below = meeting->shm->below;
    dml__shm_talk *talk = &meeting->talks[rank];
    dml__span span;
    for (;;) {
        ptrdiff_t sent = 0, got = 0;
        span.data = talk->out + talk->sent;
        span.bytes = sizeof talk->out - talk->sent;
        if (span.bytes) sent = below->calls->send(below, rank, DML__CHANNEL_DATA, &span, 1);
        if (sent < 0) return false;
        talk->sent += (size_t)sent;
        /* An answer may need `out` anew. */
        if (talk->sent == sizeof talk->out && talk->expects != DML__SHM_DONE) {
            span.data = talk->in + talk->got;
            span.bytes = sizeof talk->in - talk->got;
            got = below->calls->receive(below, rank, DML__CHANNEL_DATA, &span, 1);
            if (got < 0) return false;
            talk->got += (size_t)got;
            if (talk->got == sizeof talk->in && !dml__shm_hear(meeting, rank)) return false;
        }
        if (sent == 0 && got == 0) return true;
        *moved = true;
    }
}

/* One round with everybody: who is not done yet (-1: all are), or *culprit. */
static int dml__shm_round(const dml__shm_meeting *meeting, bool *moved, int *culprit)
{
    dml__shm *shm = meeting->shm;
    int waits_for = -1;
    for (int rank = 0; rank < shm->world; rank++) {
        const dml__shm_talk *talk = &meeting->talks[rank];
        shm->wishes[rank] = 0;
        if (rank == shm->rank) continue;
        if (!dml__shm_talk_on(meeting, rank, moved)) *culprit = rank;
        if (talk->sent < sizeof talk->out)
            shm->wishes[rank] = DML__WISH_SEND;
        else if (talk->expects != DML__SHM_DONE)
            shm->wishes[rank] = DML__WISH_RECEIVE;
        if (shm->wishes[rank]) waits_for = rank;
    }
    return waits_for;
}

static bool dml__shm_talk_to_all(const dml__shm_meeting *meeting, int *culprit)
{
    dml__transport *below = meeting->shm->below;
    const dml__shm_settings *settings = meeting->settings;
    const double until = dml_seconds() + settings->seconds;
    for (;;) {
        bool moved = false;
        *culprit = -1;
        const int waits_for = dml__shm_round(meeting, &moved, culprit);
        if (*culprit >= 0) return false;
        if (waits_for < 0) return true;
        if (moved) continue;
        const double left = until - dml_seconds();
        *culprit = waits_for;
        if (left <= 0) return false;
        /* Control that nobody takes in would end every wait at once. */
        const int ready = below->calls->wait(below, meeting->shm->wishes, left);
        if (ready < 0) return false;
        *culprit = -1;
        if ((ready & DML__READY_CONTROL) && settings->control && !settings->control(settings->user))
            return false;
    }
}

DML__LOCAL bool dml__shm_meet(dml__shm *shm, const dml__shm_settings *settings, int *culprit)
{
    dml__shm_meeting meeting;
    meeting.shm = shm;
    meeting.settings = settings;
    meeting.ring = settings->ring_bytes ? (uint32_t)settings->ring_bytes : dml__shm_usual_ring(shm->world);
    if (settings->off || (settings->ring_bytes && !dml__shm_ring_ok(settings->ring_bytes)) ||
        !shm->host->identity(&meeting.identity))
        meeting.identity = 0;
    meeting.talks =
        (dml__shm_talk *)dml__allocate_array(shm->memory, (size_t)shm->world, sizeof *meeting.talks);
    *culprit = shm->rank;
    if (!meeting.talks) return false;
    for (int rank = 0; rank < shm->world; rank++) {
        dml__shm_say(&meeting.talks[rank], DML__SHM_HELLO);
        dml__store64(meeting.talks[rank].out + 8, meeting.identity);
        meeting.talks[rank].expects = DML__SHM_HELLO;
    }
    const bool met = dml__shm_talk_to_all(&meeting, culprit);
    for (int rank = 0; rank < shm->world; rank++)
        dml__shm_close_talk(shm, &meeting.talks[rank], dml__shm_bytes(meeting.ring));
    dml__release(shm->memory, meeting.talks);
    return met;
}

#endif
