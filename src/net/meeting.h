/* meeting.h: the rendezvous' own files between themselves. */
#ifndef DML_NET_MEETING_H
#define DML_NET_MEETING_H

#include "net/handshake.h"
#include "net/tcp.h"
#include "net/unlike.h"

#define DML__MASTERS 8 /* addresses of master_addr that are tried */

struct dml__meeting {
    dml__tcp *tcp;
    const dml__net_settings *settings;
    const dml__net_user *user;
    dml__identity me;
    double deadline, patience; /* the second: how long a visitor may take to prove itself */
    int listener;
    double listen_after; /* accept has failed: not before then */
    dml__address listens_at;
    dml__address masters[DML__MASTERS];
    int master_count, tries;
    dml__address bind_address;
    bool bound;
    dml__address *addresses; /* (world); 0 bytes: unknown */
    bool addresses_done;     /* all sent (rank 0) or received (others) */
    dml__handshake *shakes;  /* (shake_count): to each rank below twice, then visitors */
    int outgoing, shake_count;
    struct pollfd *polls; /* (1 + shake_count + world); some have no fd */
    struct pollfd *waits; /* those that have */
    int to_connect;       /* connections that are still missing */
    bool failed;          /* whoever still comes is told so */
    int refused;          /* ranks of this job that were sent away */
    int expected;         /* ranks, by the largest world that somebody who came has */
    double judge_at;      /* when those that are held are told what is wrong; 0: there are none */
    dml__comer *comers;   /* (3 world + DML__VISITORS) */
    double doubted_at;    /* when somebody first refused this rank without a proof; 0: nobody did */
    char note[256];       /* why the last visitor, or this rank, was turned away, if worth a sentence */
    int shortage;         /* what this process lacked when it last tried to connect; 0: nothing */
    double short_since;   /* when that began */
};

/* ---- where ranks meet (place.c): false, the job has failed ---- */

/* The addresses of master_addr and bind_addr. */
DML__LOCAL bool dml__find_master(dml__meeting *meeting);

/* Whether this rank may go where it is to go without a key, if it has none. */
DML__LOCAL bool dml__check_trust(dml__meeting *meeting);

/* Rank 0: on bind_addr, on the loopback address that was named, or on all. */
DML__LOCAL bool dml__listen_as_master(dml__meeting *meeting);

/* dml__identity.port: the other ranks listen on the address by which they reached rank 0. */
DML__LOCAL int dml__own_port(void *user, int fd);

/* ---- who didn't come (missing.c) ---- */

/* Ends the job when its time is up. */
DML__LOCAL void dml__meet_too_late(dml__meeting *meeting);

#endif
