/* handshake.h: one connection on its way from a stranger to a rank. It never waits: each step takes what has
   come and sends what there is room for, so that many go on side by side. */
#ifndef DML_NET_HANDSHAKE_H
#define DML_NET_HANDSHAKE_H

#include "base/platform.h"
#include "net/socket.h"
#include "net/wire.h"

typedef enum dml__handshake_stage {
    DML__SHAKE_UNUSED,
    DML__SHAKE_RESTING,    /* connecting side: until the next try */
    DML__SHAKE_CONNECTING, /* connecting side, then these three: */
    DML__SHAKE_GET_CHALLENGE,
    DML__SHAKE_SEND_HELLO,
    DML__SHAKE_GET_WELCOME,
    DML__SHAKE_SEND_CHALLENGE, /* accepting side */
    DML__SHAKE_GET_HELLO,
    DML__SHAKE_SEND_WELCOME,
    DML__SHAKE_HELD,    /* accepting side: it isn't answered yet (dml__identity.hold) */
    DML__SHAKE_REFUSED, /* accepting side said no; connecting side was told no */
    DML__SHAKE_BROKEN,  /* it ended, or what came isn't this protocol */
    DML__SHAKE_DONE
} dml__handshake_stage;

typedef struct dml__handshake dml__handshake;

/* What this end is, in every handshake of a rendezvous. */
typedef struct dml__identity {
    const dml__socket_calls *calls;
    const char *key; /* NULL: none */
    int rank, world;
    uint32_t segment_bytes, max_requests;
    bool has_session;
    uint8_t session[DML__SESSION_BYTES];
    /* Whether that rank has such a connection already; where this rank listens for others that come the way
       `fd` went, 0 for nowhere, or -1 and errno. */
    bool (*taken)(void *user, int rank, int channel);
    int (*port)(void *user, int fd);
    /* Whether a visitor who is about to be refused waits for dml__answer_held. NULL: none does. */
    bool (*hold)(void *user, const dml__handshake *shake);
    void *user;
} dml__identity;

struct dml__handshake {
    dml__handshake_stage stage;
    int fd;
    int rank; /* the other end's: known from the start on the connecting side */
    int channel;
    dml__address address; /* of the other end */
    double deadline;      /* of the accepting side: when a silent visitor is dropped */
    double retry_at, rest;
    int error; /* errno of the last failure; 0: closed by the other end, or nonsense came */
    dml__verdict verdict;
    dml__hello hello_in;
    dml__welcome welcome_in;
    size_t done; /* bytes of the stage's message that have moved */
    uint8_t challenge[DML__CHALLENGE_BYTES], hello[DML__HELLO_BYTES], welcome[DML__WELCOME_BYTES];
};

/* Begins on a socket: that has been accepted, or that is connecting. */
DML__LOCAL void dml__begin_accepted(dml__handshake *shake, const dml__identity *me, int fd,
                                    const dml__address *from, double deadline);
DML__LOCAL void dml__begin_connecting(dml__handshake *shake, int fd);

/* Which of POLLIN and POLLOUT it waits for; 0 when it waits for none. */
DML__LOCAL short dml__handshake_events(const dml__handshake *shake);

/* As far as it goes without waiting. */
DML__LOCAL void dml__handshake_step(dml__handshake *shake, const dml__identity *me);

/* Welcomes one that was held, as far as that goes without waiting. */
DML__LOCAL void dml__answer_held(dml__handshake *shake, const dml__identity *me);

/* Whether a refusal can come from anybody, with a key or without: nothing in it is proved, as one that comes
   from who has the same key is. */
DML__LOCAL bool dml__is_unproved(dml__verdict verdict);

/* Whether a refusal shows that something is wrong with the job, and not that a stranger came. */
DML__LOCAL bool dml__is_job_fault(dml__verdict verdict);

/* The sentence for a refused handshake, the same on both sides, in third person. */
DML__LOCAL void dml__refusal_text(const dml__handshake *shake, const dml__identity *me, bool accepting,
                                  char *text, size_t bytes);

#endif
