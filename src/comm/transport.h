/* transport.h: how bytes get from one rank to another, whatever lies between them.

   A transport is pairs of byte streams, nothing more: two between each two ranks, one for the data of the
   collectives and one for control, so that an abort is never stuck behind a gigabyte of gradients. What the
   bytes mean is wire.h's business. TCP (tcp.c) is the first. In-process ranks and shared memory would be
   further tables of these calls, over ring buffers; MPI and NCCL are not transports but whole engines and
   plug in one floor higher, at dml__comm_engine in comm_internal.h. */
#ifndef DML_COMM_TRANSPORT_H
#define DML_COMM_TRANSPORT_H

#include "base/platform.h"

typedef enum dml__channel { DML__CHANNEL_CONTROL, DML__CHANNEL_DATA, DML__CHANNEL_COUNT } dml__channel;

typedef struct dml__span {
    void *data;
    size_t bytes;
} dml__span;

/* What send and receive return when the other end is gone for good. */
#define DML__GONE (-1)

/* What wait returns: any of these, or 0 when the time ran out, or DML__GONE when waiting itself failed. */
#define DML__READY_SEND 1
#define DML__READY_RECEIVE 2
#define DML__READY_CONTROL 4

typedef struct dml__transport dml__transport;

typedef struct dml__transport_calls {
    const char *name;
    /* The spans one after the other, as many bytes as go without waiting: how many, or DML__GONE. */
    ptrdiff_t (*send)(dml__transport *transport, int rank, dml__channel channel, const dml__span *spans,
                      int count);
    ptrdiff_t (*receive)(dml__transport *transport, int rank, dml__channel channel, const dml__span *spans,
                         int count);
    /* Until data can go to rank `to`, data has come from rank `from` (-1: don't care), or control has come
       from any rank; at most `seconds`. */
    int (*wait)(dml__transport *transport, int to, int from, double seconds);
    void (*close)(dml__transport *transport);
    /* In a fork's child: lets go of what this process has. The connections, and what is under way on them,
       are the parent's. */
    void (*abandon)(dml__transport *transport);
} dml__transport_calls;

struct dml__transport {
    const dml__transport_calls *calls;
};

#endif
