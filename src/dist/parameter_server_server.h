/* parameter_server_server.h: the servers' side: what becomes of elements (parameter_server_apply.c), how they
   come and go (parameter_server_pieces.c), and who may do what when (parameter_server_serve.c). */
#ifndef DML_DIST_PARAMETER_SERVER_SERVER_H
#define DML_DIST_PARAMETER_SERVER_SERVER_H

#include "comm/job.h"
#include "dist/parameter_server_internal.h"
#include "dist/parameter_server_weights.h"

#define DML__PS_MOST_PULLS 64 /* of one worker, waiting */

/* A worker's requests of the server's communicator. */
enum {
    DML__PS_FOR_HEADER,
    DML__PS_FOR_UP,
    DML__PS_FOR_UP_2,
    DML__PS_FOR_DOWN,
    DML__PS_FOR_DOWN_2,
    DML__PS_FOR_ANSWER,
    DML__PS_FOR
};

typedef struct dml__ps_pull {
    int vector;
    size_t begin, end; /* of this server's range */
    uint64_t clock;    /* of the worker */
    double value;      /* what the answer says */
} dml__ps_pull;

typedef struct dml__ps_guest {
    int64_t header[DML__PS_HEADER], answer[DML__PS_ANSWER];
    bool present;   /* it may still ask for something */
    bool held;      /* what the header asks for has to wait */
    bool ticked;    /* its pushes of the clock that is being summed are complete */
    double rate;    /* of its last clock */
    uint64_t clock; /* as it said last */
    /* The push that is coming: elements of this server's range. */
    size_t asked, taken, push_end; /* up to where pieces are being received, or have been taken */
    size_t piece_begin[2], piece_end[2];
    bool came[2]; /* places and values of a push that has places */
    /* The pulls that wait, the first of which may be on its way. */
    dml__ps_pull pulls[DML__PS_MOST_PULLS];
    int first_pull, pull_count;
    bool answering;
    size_t sent;
    char *up[2], *down[2]; /* (longest piece) f32 each */
} dml__ps_guest;

typedef struct dml__ps_server {
    dml__memory memory;
    dml__ps_link link;
    dml_ps_rule rule;
    dml_ps_consistency consistency;
    int workers, needed;     /* how many have to tick */
    size_t count;            /* of the range */
    double rate;             /* of the clock's pushes, from the first worker that has ended it */
    uint64_t applied;        /* clocks */
    float *vectors;          /* (1 + vectors, count) */
    float *sum;              /* (count): synchronous: of the pushes of clock `applied` */
    dml__ps_weights weights; /* of what was added to it */
    float *line;             /* (longest piece): elements of a push, in f32 and each in its place */
    dml__reduction adding;
    dml__ps_guest *guests;  /* (workers) */
    dml_request **requests; /* (workers, DML__PS_FOR) */
    char *stages;           /* (workers, 4, longest piece) f32 */
    dml_ps_report report;
    dml_status status;
} dml__ps_server;

/* An error ends the serving, and the first one stays. */
DML__LOCAL void dml__ps_note(dml__ps_server *server, dml_status status);

/* Workers that are left. */
DML__LOCAL int dml__ps_living(const dml__ps_server *server);

/* ---- elements ---- */

/* The mean of a clock, where anybody pushed. */
DML__LOCAL void dml__ps_apply_clock(dml__ps_server *server);

/* A piece of a push, in f32; x may be changed. */
DML__LOCAL void dml__ps_take(dml__ps_server *server, dml__ps_guest *guest, size_t begin, size_t end,
                             float *x);

/* Work on vectors, which the header asks for; what the answer says. */
DML__LOCAL double dml__ps_work(dml__ps_server *server, const int64_t *header);

/* ---- pieces ---- */

/* Of a worker: for its next header; for what a push's header announced. */
DML__LOCAL void dml__ps_listen(dml__ps_server *server, dml__ps_guest *guest);
DML__LOCAL void dml__ps_begin_push(dml__ps_server *server, dml__ps_guest *guest);

/* One has come, of those that a push has under way at once. */
DML__LOCAL void dml__ps_piece_came(dml__ps_server *server, dml__ps_guest *guest, int which);

/* Another answer; and as far as a worker's can be given. */
DML__LOCAL void dml__ps_queue(dml__ps_server *server, dml__ps_guest *guest, int vector, size_t begin,
                              size_t end, double value);
DML__LOCAL void dml__ps_answer(dml__ps_server *server, dml__ps_guest *guest);

#endif
