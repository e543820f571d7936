/* net.h: ranks that meet over a network, for whoever then uses the connections. */
#ifndef DML_NET_NET_H
#define DML_NET_NET_H

#include "base/logger.h"
#include "base/memory.h"
#include "base/platform.h"
#include "base/status.h"
#include "net/socket.h"
#include "net/transport.h"
#include "net/wire.h"

typedef struct dml__net_settings {
    int rank, world;
    const char *master_addr;
    int master_port;
    double timeout, grace; /* seconds; the second: how much longer the others wait than rank 0 does */
    const char *key;       /* NULL: none */
    bool allow_insecure;
    const char *bind_addr; /* NULL: none */
    size_t segment_bytes;  /* which all ranks must agree on, */
    int max_requests;      /* and on this, whatever it means to the user */
} dml__net_settings;

/* Ranks that are meeting. */
typedef struct dml__meeting dml__meeting;

/* Who uses the connections: what it lends, and what it is called for while the ranks meet. The transport that
   it is given then (NULL: there is none yet) has the connections that have been made so far. */
typedef struct dml__net_user {
    dml__memory *memory; /* outlives the transport */
    const dml__logger *logger;
    int *strangers; /* how many were turned away is added to it */
    void *user;
    /* Records the error, if it is the first, and tells every rank that is connected that `culprit` has ended
       the job. */
    void (*fail)(void *user, dml__transport *transport, int culprit, dml_status status, const char *text);
    /* What a rank is told that has come since. */
    void (*words)(void *user, dml__control *control);
    /* Takes in what has come on the control channels; DML__ADDRESSES is for dml__take_addresses. False: that
       has ended the job, and `fail` needn't be called. */
    bool (*control)(void *user, dml__transport *transport, dml__meeting *meeting);
} dml__net_user;

#define DML__NET_TEXT 480 /* bytes of an error's sentence, its end included */

/* Meets the other ranks over TCP. NULL: `fail` has been called, or `control` was false. Only what needs no
   waiting is done after it: nothing is allocated. */
DML__LOCAL dml__transport *dml__tcp_open(const dml__net_settings *settings, const dml__socket_calls *sockets,
                                         const dml__net_user *user);

/* Takes the addresses that rank `from` has sent; false if they make no sense. */
DML__LOCAL bool dml__take_addresses(dml__meeting *meeting, int from, const dml__control *control);

/* Sends one message to one rank, waiting until `until` if there is no room; false if it can't be sent. */
DML__LOCAL bool dml__send_control(dml__transport *transport, int rank, const dml__control *control,
                                  double until);

#endif
