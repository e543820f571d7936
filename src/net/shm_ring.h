/* shm_ring.h: one direction between two processes: a row of pieces, short ones with their bytes, and a ring
   that the bytes of the others lie in. What a short one costs is the lines that have to move from one
   processor to the other: so its number, which says that it is there, lies beside it, and what is written for
   each piece shares no line with what the other end seldom changes. The other process may write anything
   anywhere at any time: whatever is read is read once, and checked before it is used. */
#ifndef DML_NET_SHM_RING_H
#define DML_NET_SHM_RING_H

#include "base/pause.h"
#include "base/platform.h"
#include "net/shm_copy.h"

#include <string.h>

#define DML__SHM_PIECES 64u          /* that may be on their way; a power of two */
#define DML__SHM_PIECE (64u * 1024)  /* bytes of a piece at most: the other end begins to read after it */
#define DML__SHM_SHORT 440u          /* bytes of the row for one that lies in it */
#define DML__SHM_REMOTE (16u * 1024) /* bytes of a piece at least that stays where it is; at most: */
#define DML__SHM_REMOTE_MOST (128u * 1024) /* its sender sees that it moves before it would sleep */
#define DML__SHM_RING_LEAST 4096u          /* bytes of a ring */
#define DML__SHM_RING_MOST (1u << 30)
#define DML__SHM_RING_NEAR (512u * 1024) /* up to which one begins anew whenever it is empty, */
#define DML__SHM_FEW 4096u               /* and any if no more than these were in it */

typedef enum dml__shm_kind { DML__SHM_IS_SHORT, DML__SHM_IN_RING, DML__SHM_IS_REMOTE } dml__shm_kind;

/* Seven lines: of eight, those of all pieces would meet in few sets of a cache. */
typedef struct dml__shm_piece {
    uint32_t number; /* 1 + that of the piece, once it is there */
    uint32_t what;   /* its kind, + 4 where a short one begins in `data` (0 to 7), + 32 its bytes */
    union {
        uint8_t data[DML__SHM_SHORT];
        uint32_t at;      /* in the ring */
        uint64_t address; /* of a remote one, in the sender's own memory */
    } body;
} dml__shm_piece;

/* In the shared memory, before the ring's bytes. */
typedef struct dml__shm_way {
    uint32_t tail DML__OWN_LINE;            /* the receiver's: pieces consumed */
    uint32_t sender_sleeps DML__OWN_LINE;   /* until there is room; whoever rings it takes it back */
    uint32_t receiver_sleeps DML__OWN_LINE; /* until there is something */
    uint32_t receiver_reads;                /* 1: it can read the sender's own memory */
    uint32_t receiver_processor;            /* 1 + that on which it waited last; 0: not known */
    dml__shm_piece pieces[DML__SHM_PIECES] DML__OWN_LINE;
} dml__shm_way;

/* What each end knows by itself. Positions in the ring count on for ever, round and round. */
typedef struct dml__shm_sender {
    dml__shm_way *way;
    uint8_t *ring; /* (size) */
    uint32_t size, head, tail;
    uint32_t at, freed; /* the end of what was written; the end of what was consumed of it */
    uint32_t begun;     /* where it was when the ring was empty last */
    uint32_t remote;    /* how many of the pieces that are on their way are remote: the last */
    int far_lines;      /* see shm_copy.h */
    uint32_t ends[DML__SHM_PIECES], sizes[DML__SHM_PIECES]; /* of these pieces; bytes of the remote ones */
} dml__shm_sender;

typedef struct dml__shm_receiver {
    dml__shm_way *way;
    const uint8_t *ring; /* (size) */
    uint32_t size, tail;
    bool reads;          /* the sender's own memory may be read */
    const uint8_t *data; /* of the piece at tail, which was checked; NULL: it is a remote one, */
    uint64_t remote;     /* at this address */
    uint32_t bytes;      /* of it; 0: not looked at yet */
    uint32_t done;       /* of these, consumed */
    uint32_t quiet;      /* bytes consumed since the sender was told of room */
} dml__shm_receiver;

/* ---- sending ---- */

/* Before dml__shm_learn, if it is for a large piece: a small one would wait for what it needn't know. */
static inline void dml__shm_time_line(dml__shm_sender *s)
{
    const uint64_t begin = dml__shm_ticks();
    if (__atomic_load_n(&s->way->tail, __ATOMIC_SEQ_CST) != s->tail)
        s->far_lines = dml__shm_judge(s->far_lines, dml__shm_ticks_after_reads() - begin);
}

/* Learns what the receiver has consumed; false: it has spoiled the ring. */
static inline bool dml__shm_learn(dml__shm_sender *s)
{
    const uint32_t tail = __atomic_load_n(&s->way->tail, __ATOMIC_SEQ_CST);
    if (tail - s->tail > s->head - s->tail) return false;
    if (tail != s->tail) s->freed = s->ends[(tail - 1) % DML__SHM_PIECES];
    s->tail = tail;
    if (tail == s->head) {
        if (s->size > DML__SHM_RING_NEAR && s->at - s->begun >= DML__SHM_FEW) s->begun = s->at;
        s->at = s->freed = s->begun; /* few bytes, and all in a small ring: where the last ones were */
    }
    return true;
}

static inline bool dml__shm_fits_row(const void *data, size_t left)
{
    return left <= DML__SHM_SHORT - ((uintptr_t)data & 7);
}

/* Whether for the next `left` bytes it need not be known what the receiver has consumed since this end
   looked: the line that says so has to come from there. Until a few have been sent it isn't asked for. */
static inline bool dml__shm_knows_room(const dml__shm_sender *s, const void *data, size_t left)
{
    const bool few = left <= DML__SHM_FEW / 4 && s->at - s->freed + left <= DML__SHM_FEW - 128;
    return s->head - s->tail < DML__SHM_PIECES && (few || dml__shm_fits_row(data, left));
}

/* Whether something can be sent, as much as a piece of any alignment needs, or remote pieces have gone:
   behind them nothing goes before. */
static inline bool dml__shm_room(const dml__shm_sender *s)
{
    if (s->remote) return s->head - s->tail < s->remote;
    const uint32_t room = s->size - (s->at - s->freed);
    return s->head - s->tail < DML__SHM_PIECES && room >= 2 * DML__SHM_SHORT + 4 * 64;
}

/* Whether its receiver sleeps is for dml__shm_receiver_to_ring to see. */
static inline void dml__shm_publish(dml__shm_sender *s, dml__shm_kind kind, uint32_t begin, uint32_t bytes)
{
    dml__shm_piece *const piece = &s->way->pieces[s->head % DML__SHM_PIECES];
    s->ends[s->head % DML__SHM_PIECES] = s->at;
    __atomic_store_n(&piece->what, (uint32_t)kind + 4 * begin + 32 * bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&piece->number, ++s->head, __ATOMIC_RELEASE);
    /* The next one's lines, as many as this one took, come back while something else is done. */
    const uint8_t *const next = (const uint8_t *)&s->way->pieces[s->head % DML__SHM_PIECES];
    const uint32_t used = kind == DML__SHM_IS_SHORT ? begin + bytes : 0;
    for (uint32_t line = 0; line < offsetof(dml__shm_piece, body) + used; line += 64)
        dml__write_soon(next + line);
}

/* By two words: where gcc knows that there are few bytes it copies them by `rep movs`, which takes a while to
   begin. */
static inline void dml__shm_copy_few(uint8_t *to, const uint8_t *from, size_t bytes)
{
    uint64_t words[2];
    for (; bytes >= sizeof words; bytes -= sizeof words, from += sizeof words, to += sizeof words) {
        memcpy(words, from, sizeof words);
        memcpy(to, words, sizeof words);
    }
    for (; bytes >= sizeof *words; bytes -= sizeof *words, from += sizeof *words, to += sizeof *words) {
        memcpy(words, from, sizeof *words);
        memcpy(to, words, sizeof *words);
    }
    for (; bytes; bytes--) *to++ = *from++;
}

/* The bytes of a short piece, those that share a line with its number last: while they and it are written, a
   receiver that looks at it shall not take the line away. */
static inline void dml__shm_write_short(uint8_t *to, uint32_t at, const uint8_t *data, size_t bytes)
{
    const size_t rest = 64 - offsetof(dml__shm_piece, body) - at, first = bytes < rest ? bytes : rest;
    dml__shm_copy_few(to + at + first, data + first, bytes - first);
    dml__shm_copy_few(to + at, data, first);
}

/* Sends the first bytes of `left`, as one piece of the same alignment (up to 64, or 8 of a short one); how
   many. A piece that doesn't end with the data ends at a multiple of 64. */
static inline uint32_t dml__shm_send_piece(dml__shm_sender *s, const uint8_t *data, size_t left)
{
    dml__shm_piece *const piece = &s->way->pieces[s->head % DML__SHM_PIECES];
    if (s->head - s->tail < DML__SHM_PIECES && dml__shm_fits_row(data, left)) {
        const uint32_t at = (uint32_t)(uintptr_t)data & 7;
        dml__shm_write_short(piece->body.data, at, data, left);
        dml__shm_publish(s, DML__SHM_IS_SHORT, at, (uint32_t)left);
        return (uint32_t)left;
    }
    const uint32_t used = s->at - s->freed, to_end = s->size - (s->at & (s->size - 1));
    uint32_t pad = (uint32_t)((uintptr_t)data - s->at) & 63;
    if (to_end - pad <= DML__SHM_SHORT + 64) pad = to_end + ((uint32_t)(uintptr_t)data & 63);
    if (s->head - s->tail >= DML__SHM_PIECES || used + pad >= s->size) return 0;
    const uint32_t begin = (s->at + pad) & (s->size - 1);
    uint32_t bytes = s->size - used - pad;
    if (bytes > s->size - begin) bytes = s->size - begin;
    if (bytes > DML__SHM_PIECE) bytes = DML__SHM_PIECE;
    if (bytes >= left) {
        bytes = (uint32_t)left;
    } else {
        const uint32_t over = (begin + bytes) & 63;
        if (bytes <= over + DML__SHM_SHORT) return 0;
        bytes -= over;
    }
    if (s->far_lines < DML__SHM_FAR || bytes < DML__SHM_PAST)
        memcpy(s->ring + begin, data, bytes);
    else
        dml__shm_copy_past(s->ring + begin, data, bytes);
    s->at += pad + bytes;
    __atomic_store_n(&piece->body.at, begin, __ATOMIC_RELAXED);
    dml__shm_publish(s, DML__SHM_IN_RING, 0, bytes);
    for (uint32_t line = 0; bytes <= DML__SHM_FEW / 8 && line < bytes; line += 64)
        dml__write_soon(s->ring + ((s->at + line) & (s->size - 1)));
    return bytes;
}

/* Whether the receiver can read what it is told the place of. */
static inline bool dml__shm_is_read(const dml__shm_sender *s)
{
    return __atomic_load_n(&s->way->receiver_reads, __ATOMIC_RELAXED) == 1;
}

/* Tells the receiver where the first bytes of `left` are; how many. They have gone when it has consumed the
   piece. 0: there are too many. */
static inline uint32_t dml__shm_send_remote(dml__shm_sender *s, const uint8_t *data, size_t left)
{
    dml__shm_piece *const piece = &s->way->pieces[s->head % DML__SHM_PIECES];
    const uint32_t bytes = left < DML__SHM_REMOTE_MOST ? (uint32_t)left : DML__SHM_REMOTE_MOST;
    if (s->head - s->tail >= DML__SHM_PIECES) return 0;
    __atomic_store_n(&piece->body.address, (uint64_t)(uintptr_t)data, __ATOMIC_RELAXED);
    s->sizes[s->head % DML__SHM_PIECES] = bytes;
    s->remote++;
    dml__shm_publish(s, DML__SHM_IS_REMOTE, 0, bytes);
    return bytes;
}

/* After dml__shm_learn: bytes of remote pieces that have gone since. */
static inline size_t dml__shm_remote_gone(dml__shm_sender *s)
{
    size_t gone = 0;
    for (; s->remote > s->head - s->tail; s->remote--)
        gone += s->sizes[(s->head - s->remote) % DML__SHM_PIECES];
    return gone;
}

/* ---- receiving ---- */

/* Looks at the piece at tail: how many bytes of it are left (0: there is none); -1: the sender has spoiled
   the ring. */
static inline ptrdiff_t dml__shm_look(dml__shm_receiver *r)
{
    if (r->bytes) return (ptrdiff_t)(r->bytes - r->done);
    const dml__shm_piece *piece = &r->way->pieces[r->tail % DML__SHM_PIECES];
    const uint32_t number = __atomic_load_n(&piece->number, __ATOMIC_SEQ_CST);
    if (number != r->tail + 1) {                    /* what was here before, or nothing yet */
        DML__PREFETCH((const uint8_t *)piece + 64); /* both lines come together, not one after the other */
        return number == r->tail + 1 - DML__SHM_PIECES || number == 0 ? 0 : -1;
    }
    const uint32_t what = __atomic_load_n(&piece->what, __ATOMIC_RELAXED), bytes = what / 32;
    const uint32_t kind = what % 4, begin = what / 4 % 8;
    if (bytes == 0) return -1;
    if (kind == DML__SHM_IS_SHORT) {
        if (begin + bytes > DML__SHM_SHORT) return -1;
        r->data = piece->body.data + begin;
    } else if (kind == DML__SHM_IN_RING) {
        const uint32_t at = __atomic_load_n(&piece->body.at, __ATOMIC_RELAXED);
        if (bytes > r->size || at > r->size - bytes) return -1;
        r->data = r->ring + at;
    } else {
        if (!r->reads || bytes > DML__SHM_REMOTE_MOST) return -1;
        r->remote = __atomic_load_n(&piece->body.address, __ATOMIC_RELAXED);
        r->data = NULL;
    }
    r->done = 0;
    r->bytes = bytes;
    return (ptrdiff_t)bytes;
}

static inline bool dml__shm_is_empty(const dml__shm_receiver *r)
{
    return __atomic_load_n(&r->way->pieces[r->tail % DML__SHM_PIECES].number, __ATOMIC_SEQ_CST) !=
           r->tail + 1;
}

/* Of the piece that was looked at. */
static inline void dml__shm_consume_piece(dml__shm_receiver *r, size_t bytes)
{
    DML_ASSERT(bytes <= r->bytes - r->done);
    r->done += (uint32_t)bytes;
    if (!r->bytes || r->done < r->bytes) return;
    r->quiet += r->bytes;
    r->bytes = 0;
    r->done = 0;
    __atomic_store_n(&r->way->tail, ++r->tail, __ATOMIC_RELEASE);
}

/* ---- sleeping: who sleeps says so, and then looks once more; who sends or consumes looks at that after
   it, and after a dml__shm_fence between both ---- */

/* (ThreadSanitizer knows no fences.) */
static inline void dml__shm_fence(void)
{
#ifdef __SANITIZE_THREAD__
    uint32_t word = 0;
    __atomic_exchange_n(&word, 1, __ATOMIC_SEQ_CST);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

static inline bool dml__shm_receiver_to_ring(const dml__shm_sender *s)
{
    return __atomic_load_n(&s->way->receiver_sleeps, __ATOMIC_SEQ_CST) &&
           __atomic_exchange_n(&s->way->receiver_sleeps, 0, __ATOMIC_SEQ_CST);
}

/* A sender that sleeps is told when all has been consumed, or half a ring since it was told last: not for
   each piece, which would be two switches between processes each. */
static inline bool dml__shm_sender_to_ring(dml__shm_receiver *r)
{
    if (!__atomic_load_n(&r->way->sender_sleeps, __ATOMIC_SEQ_CST)) return false;
    if (r->quiet < r->size / 2 && !dml__shm_is_empty(r)) return false;
    r->quiet = 0;
    return __atomic_exchange_n(&r->way->sender_sleeps, 0, __ATOMIC_SEQ_CST) != 0;
}

#endif
