/* shm_ring.h: one direction between two processes: a ring of bytes, and a row that says where in it pieces
   lie. The other process may write anything there at any time: whatever is read from it is read once, and
   checked before it is used. */
#ifndef DML_NET_SHM_RING_H
#define DML_NET_SHM_RING_H

#include "base/pause.h"
#include "base/platform.h"

#include <string.h>

#define DML__SHM_PIECES 128u        /* that may be on their way; a power of two */
#define DML__SHM_PIECE (64u * 1024) /* bytes of a piece at most: the other end begins to read after it */
#define DML__SHM_RING_LEAST 4096u   /* bytes of a ring */
#define DML__SHM_RING_MOST (1u << 30)

typedef struct dml__shm_piece {
    uint32_t at, bytes;
} dml__shm_piece;

/* In the shared memory, before the ring's bytes. */
typedef struct dml__shm_way {
    uint32_t head DML__OWN_LINE; /* the sender's: pieces published */
    uint32_t sender_sleeps;      /* until there is room; whoever rings it takes it back */
    uint32_t tail DML__OWN_LINE; /* the receiver's: pieces consumed */
    uint32_t receiver_sleeps;    /* until there is something */
    dml__shm_piece pieces[DML__SHM_PIECES] DML__OWN_LINE;
} dml__shm_way;

/* What each end knows by itself. Positions in the ring count on for ever, round and round. */
typedef struct dml__shm_sender {
    dml__shm_way *way;
    uint8_t *ring; /* (size) */
    uint32_t size, head, tail;
    uint32_t at, freed;             /* the end of what was written; the end of what was consumed of it */
    uint32_t ends[DML__SHM_PIECES]; /* of the pieces that are on their way */
} dml__shm_sender;

typedef struct dml__shm_receiver {
    dml__shm_way *way;
    const uint8_t *ring; /* (size) */
    uint32_t size, tail;
    dml__shm_piece piece; /* the one at tail, checked; 0 bytes: not looked at yet */
    uint32_t done;        /* bytes of it that are consumed */
    uint32_t quiet;       /* bytes consumed since the sender was told of room */
} dml__shm_receiver;

/* Whether `next` may follow an index of which the other end says `last` at most. */
static inline bool dml__shm_index_ok(uint32_t before, uint32_t next, uint32_t last)
{
    return next - before <= last - before;
}

/* ---- sending ---- */

/* Learns what the receiver has consumed; false: it has spoiled the ring. */
static inline bool dml__shm_learn(dml__shm_sender *s)
{
    const uint32_t tail = __atomic_load_n(&s->way->tail, __ATOMIC_SEQ_CST);
    if (!dml__shm_index_ok(s->tail, tail, s->head)) return false;
    if (tail != s->tail) s->freed = s->ends[(tail - 1) % DML__SHM_PIECES];
    s->tail = tail;
    if (tail == s->head) s->at = s->freed = 0; /* near what was last used */
    return true;
}

/* Whether something can be sent: as much as a piece of any alignment needs. */
static inline bool dml__shm_room(const dml__shm_sender *s)
{
    return s->head - s->tail < DML__SHM_PIECES && s->size - (s->at - s->freed) >= 256;
}

/* Sends the first bytes of `left`, as one piece at an address of the same alignment; how many. A piece that
   doesn't end with the data ends at a multiple of 64. */
static inline uint32_t dml__shm_send_piece(dml__shm_sender *s, const uint8_t *data, size_t left)
{
    const uint32_t used = s->at - s->freed, pad = (uint32_t)((uintptr_t)data - s->at) & 63;
    if (s->head - s->tail >= DML__SHM_PIECES || used + pad >= s->size) return 0;
    const uint32_t begin = (s->at + pad) & (s->size - 1);
    uint32_t bytes = s->size - used - pad;
    if (bytes > s->size - begin) bytes = s->size - begin;
    if (bytes > DML__SHM_PIECE) bytes = DML__SHM_PIECE;
    if (bytes >= left) {
        bytes = (uint32_t)left;
    } else {
        const uint32_t over = (begin + bytes) & 63;
        if (bytes <= over) return 0;
        bytes -= over;
    }
    const uint32_t slot = s->head % DML__SHM_PIECES;
    memcpy(s->ring + begin, data, bytes);
    s->at += pad + bytes;
    s->ends[slot] = s->at;
    __atomic_store_n(&s->way->pieces[slot].at, begin, __ATOMIC_RELAXED);
    __atomic_store_n(&s->way->pieces[slot].bytes, bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&s->way->head, ++s->head, __ATOMIC_SEQ_CST);
    return bytes;
}

/* ---- receiving ---- */

/* Looks at the piece at tail: how many bytes of it are left (0: there is none); -1: the sender has spoiled
   the ring. */
static inline ptrdiff_t dml__shm_look(dml__shm_receiver *r)
{
    if (r->piece.bytes) return (ptrdiff_t)(r->piece.bytes - r->done);
    const uint32_t head = __atomic_load_n(&r->way->head, __ATOMIC_SEQ_CST);
    if (head == r->tail) return 0;
    const dml__shm_piece *piece = &r->way->pieces[r->tail % DML__SHM_PIECES];
    const uint32_t at = __atomic_load_n(&piece->at, __ATOMIC_RELAXED);
    const uint32_t bytes = __atomic_load_n(&piece->bytes, __ATOMIC_RELAXED);
    if (!dml__shm_index_ok(r->tail, head, r->tail + DML__SHM_PIECES)) return -1;
    if (bytes == 0 || bytes > r->size || at > r->size - bytes) return -1;
    r->piece.at = at;
    r->piece.bytes = bytes;
    r->done = 0;
    return (ptrdiff_t)bytes;
}

/* Of the piece that was looked at. */
static inline void dml__shm_consume_piece(dml__shm_receiver *r, size_t bytes)
{
    DML_ASSERT(bytes <= r->piece.bytes - r->done);
    r->done += (uint32_t)bytes;
    if (!r->piece.bytes || r->done < r->piece.bytes) return;
    r->quiet += r->piece.bytes;
    r->piece.bytes = 0;
    r->done = 0;
    __atomic_store_n(&r->way->tail, ++r->tail, __ATOMIC_SEQ_CST);
}

/* ---- sleeping: who sleeps says so, and then looks once more; who moves an index looks at that after it ----
 */

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
    if (r->quiet < r->size / 2 && __atomic_load_n(&r->way->head, __ATOMIC_SEQ_CST) != r->tail) return false;
    r->quiet = 0;
    return __atomic_exchange_n(&r->way->sender_sleeps, 0, __ATOMIC_SEQ_CST) != 0;
}

#endif
