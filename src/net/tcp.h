/* tcp.h: the TCP transport's own files between themselves. */
#ifndef DML_NET_TCP_H
#define DML_NET_TCP_H

#include "base/platform.h"
#include "net/net.h"

/* The end of a message that its connection took only a part of. */
typedef struct dml__tcp_rest {
    size_t bytes; /* at the end of data */
    uint8_t data[DML__CONTROL_BYTES];
} dml__tcp_rest;

typedef struct dml__tcp {
    dml__transport transport;
    const dml__socket_calls *calls;
    dml__memory *memory;
    const dml__net_user *user; /* while the ranks meet */
    int rank, world;
    int *fd[DML__CHANNEL_COUNT]; /* (world) each; -1: none */
    /* (2 world + 1): the control connections, what is woken, then the data connections of a wait's wishes. */
    struct pollfd *polls;
    dml__tcp_rest *rests; /* (world), of what was sent on control: before anything else goes there */
    int wake[2];          /* what is sent into the second comes out of the first; -1: none */
    bool met;             /* every connection has been made */
} dml__tcp;

/* Takes a connection that has proved itself. */
DML__LOCAL void dml__tcp_connected(dml__tcp *tcp, int rank, dml__channel channel, int fd);

/* Fills in the connections; false as dml__tcp_open says NULL. */
DML__LOCAL bool dml__meet(dml__tcp *tcp, const dml__net_settings *settings);

/* user->fail with a sentence made here. */
DML__LOCAL void dml__tcp_fail(dml__tcp *tcp, int culprit, dml_status status, const char *format, ...)
    DML__PRINTF(4, 5);

#endif
