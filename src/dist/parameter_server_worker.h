/* parameter_server_worker.h: the workers' side: a queue of what is under way (parameter_server_queue.c), what
   is pushed and how (parameter_server_push.c), and the rest (parameter_server.c). */
#ifndef DML_DIST_PARAMETER_SERVER_WORKER_H
#define DML_DIST_PARAMETER_SERVER_WORKER_H

#include "comm/job.h"
#include "dist/parameter_server_internal.h"

/* The requests of each push and pull lie in a ring, one behind the other, and are waited for in that order.
 */
#define DML__PS_MOST_OPERATIONS 256 /* under way; another waits for the oldest */

typedef struct dml__ps_operation {
    size_t begin, end; /* of the vector */
    float *to;         /* of a pull that comes in 16 bits: where it belongs; else NULL */
    bool buffered;     /* a push out of ps->values: none of the same elements may begin */
    bool pull;
    size_t requests;                    /* in the ring */
    int64_t (*answers)[DML__PS_ANSWER]; /* (servers) */
} dml__ps_operation;

struct dml_ps {
    dml__memory memory;
    dml__ps_link link;
    int workers, servers, living;
    size_t count;
    double rate;
    uint64_t clock;
    float threshold;
    /* The queue: tickets first .. next - 1. */
    uint64_t first, next;
    dml__ps_operation operations[DML__PS_MOST_OPERATIONS];
    dml_request **ring; /* (room) */
    size_t room, oldest, used;
    int64_t (*answers)[DML__PS_ANSWER]; /* (operations, servers) */
    /* What goes or comes otherwise than it lies in the caller's memory. */
    float *residual;   /* (count): what was pushed and not sent; NULL: everything is */
    float *values;     /* (count): what of it is sent */
    int32_t *places;   /* (count): where it is, in its piece */
    uint16_t *narrow;  /* (count): of pushes */
    uint16_t *arrived; /* (count): of pulls */
};

static inline dml_isa dml__ps_isa(const dml_ps *ps)
{
    return ps->link.all->job->isa;
}

/* Waits for the oldest push or pull. */
DML__LOCAL dml_status dml__ps_finish_oldest(dml_ps *ps);

/* A place for another, of at most so many requests, which shares no buffer with one that is under way. */
DML__LOCAL dml__ps_operation *dml__ps_begin(dml_ps *ps, bool pull, bool buffered, size_t begin, size_t end,
                                            size_t requests);

/* Another request of the newest operation; false: it is NULL. */
DML__LOCAL bool dml__ps_add(dml_ps *ps, dml__ps_operation *operation, dml_request *request);

/* A header, and how it gets to a server. */
DML__LOCAL void dml__ps_header(const dml_ps *ps, int64_t header[DML__PS_HEADER], dml__ps_kind kind,
                               int vector, size_t begin, size_t end);
DML__LOCAL dml_status dml__ps_say(dml_ps *ps, int server, const int64_t *header);

/* What of [begin, end) is server s's. */
DML__LOCAL bool dml__ps_overlap(const dml_ps *ps, int s, size_t begin, size_t end, size_t *from, size_t *to);

/* False: the communicator has failed, or does now, since `call` asks for what there isn't. */
DML__LOCAL bool dml__ps_check_range(dml_ps *ps, const char *call, const void *data, int vector, size_t begin,
                                    size_t end);

#endif
