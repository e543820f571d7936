/* parameter_server_internal.h: what workers and servers say to each other. */
#ifndef DML_DIST_PARAMETER_SERVER_INTERNAL_H
#define DML_DIST_PARAMETER_SERVER_INTERNAL_H

#include <string.h>

#include "base/memory.h"
#include "base/platform.h"
#include "dist/parameter_server.h"

/* A worker's requests to one server are headers, in an order that the server keeps. What a header asks for
   follows under tags of its own, in pieces: a push's elements to the server, a pull's from it behind an
   answer. */
typedef enum dml__ps_kind {
    DML__PS_NONE, /* none came: the worker is dead */
    DML__PS_PUSH,
    DML__PS_PULL,
    DML__PS_CLOCK,
    DML__PS_AXPBY,
    DML__PS_DOT,
    DML__PS_LARGEST,
    DML__PS_FENCE, /* nothing but an answer */
    DML__PS_LEAVE,
    DML__PS_KINDS
} dml__ps_kind;

enum { DML__PS_TAG_HEADER, DML__PS_TAG_UP, DML__PS_TAG_PLACES, DML__PS_TAG_DOWN, DML__PS_TAG_ANSWER };

/* Numbers of a header, which travels as DML_I64; reals by their bits. */
enum {
    DML__PS_KIND,
    DML__PS_VECTOR, /* x of the work on vectors */
    DML__PS_BEGIN,  /* elements of the whole vector; y of the work on vectors */
    DML__PS_END,
    DML__PS_AT,     /* the worker's clock */
    DML__PS_SENT,   /* of a push: how many elements come, with their places; -1: all of them, without */
    DML__PS_REAL,   /* weight, alpha */
    DML__PS_REAL_2, /* rate, beta */
    DML__PS_HEADER
};

/* And of an answer. */
enum { DML__PS_CLOCKS, DML__PS_LIVING, DML__PS_VALUE, DML__PS_ANSWER };

/* What worker 0 says before anything else. */
enum {
    DML__PS_COUNT,
    DML__PS_CONSISTENCY,
    DML__PS_STALENESS,
    DML__PS_BACKUP,
    DML__PS_THRESHOLD,
    DML__PS_IDLE,
    DML__PS_PUSH_DTYPE,
    DML__PS_PULL_DTYPE,
    DML__PS_VECTORS,
    DML__PS_SETUP,
    DML__PS_RUNS, /* the setup ends with so many */
    DML__PS_WORKERS,
    DML__PS_SERVERS,
    DML__PS_TERMS
};

/* A run of elements, of which the setup has some that don't overlap: its borders, the scales of the learning
   rate and of the decay, and the width of the rows that it consists of, of which none is cut between servers,
   nor in what the rule is given; 0: it has no rows. */
enum {
    DML__PS_RUN_BEGIN,
    DML__PS_RUN_END,
    DML__PS_RUN_LR,
    DML__PS_RUN_DECAY,
    DML__PS_RUN_WIDTH,
    DML__PS_RUN
};

#define DML__PS_IDLE_TIMEOUTS 60 /* of the communicator, where idle_s is 0 */
#define DML__PS_MOST_VECTORS 256
#define DML__PS_MOST_SETUP 65536
#define DML__PS_LEAST_PIECE 65536 /* elements */
#define DML__PS_MOST_PIECES 64    /* about, of a push or pull of the whole vector, all servers together */

static inline int64_t dml__ps_bits(double value)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double dml__ps_real(int64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Where server s's even range would begin (dml__ps_border). */
static inline size_t dml__ps_range(size_t count, int servers, int s)
{
    const size_t each = count / (size_t)servers, more = count % (size_t)servers, at = (size_t)s;
    return each * at + (at < more ? at : more);
}

/* Elements of a piece: all of a range from its first on, but for the last. A push's ends behind them where no
   row is cut. */
static inline size_t dml__ps_piece(size_t count)
{
    const size_t even = count / DML__PS_MOST_PIECES + 1;
    return even > DML__PS_LEAST_PIECE ? even : DML__PS_LEAST_PIECE;
}

/* What both sides begin with. */
typedef struct dml__ps_link {
    dml_comm *all, *peers; /* all ranks of the cluster; those with this one's job */
    int64_t terms[DML__PS_TERMS];
    double *setup;            /* (terms[DML__PS_SETUP]) */
    const double *runs;       /* (terms[DML__PS_RUNS], DML__PS_RUN): its end */
    size_t *counts;           /* (ranks): of the servers, elements of their ranges, else 0 */
    size_t begin, end, piece; /* of this server's range; of a worker's: 0, count */
    size_t longest;           /* piece of a push */
    dml_dtype push_dtype, pull_dtype;
} dml__ps_link;

/* Records an error for the whole job, of this rank, or of another; returns the status that stuck. */
DML__LOCAL dml_status dml__ps_fail(dml_comm *comm, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);
DML__LOCAL dml_status dml__ps_blame(dml_comm *comm, int rank, dml_status status, const char *format, ...)
    DML__PRINTF(4, 5);

/* A collective of all ranks of the cluster: all have worker 0's terms and setup. `count`, `options` and
   `runs` are the workers'. */
DML__LOCAL dml_status dml__ps_meet(dml__ps_link *link, dml__memory *memory, dml_comm *comm,
                                   const dml_cluster *cluster, size_t count, const dml_ps_options *options,
                                   size_t runs);

/* The first place from `at` on that cuts no row. */
DML__LOCAL size_t dml__ps_between_rows(const dml__ps_link *link, size_t at);

/* Where server s's range begins; it ends where the next one's begins, and may have no elements. */
DML__LOCAL size_t dml__ps_border(const dml__ps_link *link, int s);

/* Where a piece of a push that begins at `at` ends, which itself ends at `end`. */
DML__LOCAL size_t dml__ps_push_piece(const dml__ps_link *link, size_t at, size_t end);

/* dml_ps_open with a setup that ends with so many runs. */
DML__LOCAL dml_ps *dml__ps_open_runs(dml_comm *comm, const dml_cluster *cluster, size_t count, const float *w,
                                     const dml_ps_options *options, size_t runs);

/* Waits until one of the requests is done, or the job fails; false: that took longer than `seconds` (0: it
   may). */
DML__LOCAL bool dml__ps_any_within(dml_comm *comm, dml_request *const *requests, int count, double seconds);

DML__LOCAL void dml__ps_part(dml__ps_link *link, dml__memory *memory);

#endif
