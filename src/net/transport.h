/* transport.h: how bytes get from one rank to another, whatever lies between them.

   A transport is pairs of byte streams, nothing more: two between each two ranks, one for data and one for
   control, so that an abort is never stuck behind a gigabyte of gradients. What the bytes mean is the
   business of the floor above. A transport is used by one thread at a time; only `wake` may be called by
   another. */
#ifndef DML_NET_TRANSPORT_H
#define DML_NET_TRANSPORT_H

#include "base/platform.h"

typedef enum dml__channel { DML__CHANNEL_CONTROL, DML__CHANNEL_DATA, DML__CHANNEL_COUNT } dml__channel;

typedef struct dml__span {
    void *data;
    size_t bytes;
} dml__span;

/* What send, receive, lend and wait return when the other end is gone for good, or waiting itself failed. */
#define DML__GONE (-1)
/* What lend returns for a rank from which nothing is lent: use receive. */
#define DML__LENDS_NOTHING (-2)

/* What to wait for on a data channel: */
#define DML__WISH_SEND 1    /* room to send */
#define DML__WISH_RECEIVE 2 /* something has come, or the other end is gone */

/* What wait returns: any of these; 0: none of them. */
#define DML__READY_DATA 1
#define DML__READY_CONTROL 2
#define DML__READY_WOKEN 4 /* somebody called wake */

#define DML__SHARED_PLACE 32 /* bytes */

typedef struct dml__transport dml__transport;

/* Memory that a rank shares with others of its host, zeroed; `place` is for them to find it by and means
   something to their transports alone. It can be found until that rank makes another. Each who has it drops
   it, before it closes. NULL: it can't be had. */
typedef struct dml__shared_calls {
    void *(*make)(dml__transport *transport, size_t bytes, uint8_t place[DML__SHARED_PLACE]);
    void *(*find)(dml__transport *transport, size_t bytes, const uint8_t place[DML__SHARED_PLACE]);
    void (*drop)(dml__transport *transport, void *memory, size_t bytes);
} dml__shared_calls;

typedef struct dml__transport_calls {
    const char *name;
    /* The spans one after the other, as many bytes as go without waiting: how many, or DML__GONE. What was
       not taken has to be offered again, at the same place in memory (a transport may let the other rank read
       it there), until it has gone or `withdraw` was called. On control a span is a message, of
       DML__CONTROL_BYTES: it goes as a whole or not at all. */
    ptrdiff_t (*send)(dml__transport *transport, int rank, dml__channel channel, const dml__span *spans,
                      int count);
    ptrdiff_t (*receive)(dml__transport *transport, int rank, dml__channel channel, const dml__span *spans,
                         int count);
    /* Lends what has come from `rank` on the data channel: as many bytes as lie in one piece (0: nothing
       now), to be read where they are until `consume` gives the first `bytes` of them back. Whatever the
       sender offered as one span is lent at an address of the same alignment up to 64 bytes (8 where little
       is lent), if each span is a multiple of 8 bytes. NULL, both: this transport lends nothing, use receive.
     */
    ptrdiff_t (*lend)(dml__transport *transport, int rank, const void **data);
    void (*consume)(dml__transport *transport, int rank, size_t bytes);
    /* Takes back whatever was offered and has not gone: afterwards nobody reads this rank's memory. The
       connections are of no use any more. NULL: nobody ever does. */
    void (*withdraw)(dml__transport *transport);
    /* Until one of the wishes (world; NULL: none), DML__WISH_... for each rank, has come true, or control has
       come from any rank, or somebody calls wake; at most `seconds` (0: only looks). It may return for
       nothing. */
    int (*wait)(dml__transport *transport, const uint8_t *wishes, double seconds);
    /* Makes the wait that is under way in another thread, or else the next one, return. */
    void (*wake)(dml__transport *transport);
    /* "tcp", "shm", "local": what lies between this rank and that one. */
    const char *(*medium)(const dml__transport *transport, int rank);
    void (*close)(dml__transport *transport);
    /* In a fork's child: lets go of what this process has. The connections, and what is under way on them,
       are the parent's. */
    void (*abandon)(dml__transport *transport);
    /* Whether that rank reads what `offer` offers it where it lies. NULL, both: no rank does, use send. */
    bool (*reads)(const dml__transport *transport, int rank);
    /* As send on the data channel, of what that rank will receive rather than have lent: it reads what is
       large from this rank's memory, once and in one piece, and until then it hasn't gone. */
    ptrdiff_t (*offer)(dml__transport *transport, int rank, const dml__span *spans, int count);
    /* Says to the other ranks which processor this one runs on; whether one of them was last there, too: who
       waits without giving it up then keeps that rank from doing what is waited for. NULL: nobody knows. */
    bool (*crowded)(dml__transport *transport);
    /* How many seconds ago that rank's system last confirmed anything, while something is on its way to it;
       -1: nothing is. NULL: nothing ever is for long, or nobody knows. */
    double (*confirmed)(const dml__transport *transport, int rank);
    /* From defer(true) to defer(false), what is sent and consumed wakes nobody; then who sleeps for it is
       woken. For short calls: to look whether somebody sleeps takes as long as a third of a message. NULL:
       nothing is deferred. */
    void (*defer)(dml__transport *transport, bool defers);
    const dml__shared_calls *shared; /* NULL: several ranks have no memory in common */
} dml__transport_calls;

struct dml__transport {
    const dml__transport_calls *calls;
};

#endif
