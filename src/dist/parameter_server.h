/* parameter_server.h: a vector of floats that lies in even ranges on servers, which workers push changes to
   and pull values from.

   It knows no graph and needs no dml.h; for a dml_trainer see parameter_server_sync.h. All ranks:

       dml_cluster cluster = dml_cluster_from_environment();
       dml_comm *comm = dml_cluster_open(&cluster, NULL);
       if (dml_cluster_is_server(&cluster)) {
           dml_ps_serve(comm, &cluster, NULL, NULL);
       } else {
           dml_ps *ps = dml_ps_open(comm, &cluster, n, w, NULL);
           for (int step = 0; step < steps; step++) {
               compute(g, w, n);
               dml_ps_push(ps, g, 0, n, 1);
               dml_ps_clock(ps);
               dml_ps_wait(ps, dml_ps_pull(ps, w, 0, n));
           }
           dml_ps_close(ps);
       }
       return dml_comm_close(comm);

   Sources: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; Ho et al.,
   "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013; Chen et al.,
   "Revisiting distributed synchronous SGD", 2016. */
#ifndef DML_DIST_PARAMETER_SERVER_H
#define DML_DIST_PARAMETER_SERVER_H

#include "base/allocator.h"
#include "base/dtype.h"
#include "base/platform.h"
#include "base/status.h"
#include "comm/comm.h"
#include "dist/cluster.h"

/* What a pull waits for. A worker's clock is how often it has called dml_ps_clock. */
typedef enum dml_ps_consistency {
    /* That all workers' pushes of the clocks before the puller's have been averaged and applied, once for
       each clock. */
    DML_PS_SYNCHRONOUS,
    /* Nothing: pushes are applied as they come. */
    DML_PS_ASYNCHRONOUS,
    /* That the slowest worker is at most `staleness` clocks behind; pushes are applied as they come. */
    DML_PS_STALE
} dml_ps_consistency;

/* How a server changes elements [begin, begin + count) of the vector, which are w (count), by g (count): the
   mean of a clock's pushes (each by its weight), or one push times its weight. `step` is how many clocks were
   applied before (asynchronous, stale: how many of all workers have ended), `rate` what dml_ps_set_rate said
   at the worker that pushed. A status other than DML_OK ends the job. */
typedef dml_status (*dml_ps_apply)(void *user, size_t begin, size_t count, float *w, const float *g,
                                   uint64_t step, double rate);

/* What a server does with pushes; of NULL functions, `apply`: w += rate g. */
typedef struct dml_ps_rule {
    /* Once, before the first push: the server's range, what worker 0 said with options.setup, and of each
       vector from 1 on, one behind the other, this range, in which the rule may keep what workers can then
       push and pull. */
    dml_status (*prepare)(void *user, size_t begin, size_t count, const double *setup, size_t setup_count,
                          float *vectors);
    dml_ps_apply apply;
    void *user;
} dml_ps_rule;

/* Workers say all but the rule, and all of them the same (DML_ERROR_MISMATCH, at dml_ps_open). */
typedef struct dml_ps_options {
    dml_ps_consistency consistency;
    int staleness; /* of DML_PS_STALE */
    /* Of DML_PS_SYNCHRONOUS: a clock is applied when all workers but this many have ended it, of whom those
       that have left are the first; what the others push for it later is dropped, and they go on at the
       servers' clock (dml_ps_clocks), so they end clocks unlike numbers of times. A clock that some servers
       applied before a worker died, and the others can't any more, these apply with what came there. Less
       than there are workers. */
    int backup;
    /* A push sends only elements larger than this; the others wait at the worker and count with its next
       push of the same range. 0: all. */
    float threshold;
    dml_dtype push_dtype, pull_dtype; /* on their way: DML_F32 (0), DML_BF16 or DML_F16 */
    /* Servers end the job with DML_ERROR_TIMEOUT when no worker has asked for anything for so many seconds:
       the last one may be frozen, which nobody else waits for. 0: 60 times the communicator's timeout, half
       an hour by default; 1e9: whatever workers do takes as long as it takes. */
    double idle_s;
    int vectors; /* more vectors of the same length on the servers, numbered from 1; 0: none */
    /* For the servers' rule, from worker 0; at most 65536. */
    const double *setup; /* (setup_count) */
    size_t setup_count;
    dml_ps_rule rule;        /* the servers' */
    dml_allocator allocator; /* zero: malloc and free. Nothing is allocated after opening */
} dml_ps_options;

/* ---- servers ---- */

/* What a server has done, and who was lost. */
typedef struct dml_ps_report {
    uint64_t clocks;           /* applied; asynchronous, stale: ended by any worker */
    uint64_t pushes, pulls;    /* messages of this server's part of them */
    uint64_t dropped;          /* pushes that came after their clock (options.backup) */
    uint64_t elements, pushed; /* of all pushes' ranges; of these those that were sent (options.threshold) */
    int lost;                  /* workers that died, or left without dml_ps_close */
    int first_lost;            /* the first of them; -1: none */
} dml_ps_report;

/* Serves this rank's range until every worker has left, with dml_ps_close or by dying; the others then go on
   without it. Returns DML_OK, or the communicator's or the rule's error. `options` and `report` may be NULL.
   A job without a worker left is DML_ERROR_PEER. What a worker does between two requests has no deadline but
   the workers' idle_s, as long as no other worker waits for it. */
DML_API dml_status dml_ps_serve(dml_comm *comm, const dml_cluster *cluster, const dml_ps_options *options,
                                dml_ps_report *report);

/* ---- workers ---- */

typedef struct dml_ps dml_ps;

/* Returns when all ranks of the cluster have called it, or dml_ps_serve. The vector has `count` elements, on
   worker 0 w (count), which the servers begin with; w of the others isn't looked at (pull it). The
   communicator stays the caller's, who closes it later. NULL when there is no memory or the communicator has
   failed; whatever else is wrong is the communicator's error too. */
DML_API dml_ps *dml_ps_open(dml_comm *comm, const dml_cluster *cluster, size_t count, const float *w,
                            const dml_ps_options *options);

/* A push or pull that is under way; 0: it failed (dml_comm_error). Any number may be under way. */
typedef uint64_t dml_ps_ticket;

/* Adds weight times g (end - begin), elements [begin, end) of the vector, to this clock's pushes. Each
   element of a clock is pushed at most once (which isn't checked). In synchrony an element becomes the mean
   of those who pushed it; where pushes leave a server more than 1024 ranges of unlike weights, and one for
   each 64 elements, the job ends with DML_ERROR_ARGUMENT. g must stay until the push has been waited for. */
DML_API dml_ps_ticket dml_ps_push(dml_ps *ps, const float *g, size_t begin, size_t end, double weight);

/* w (end - begin) becomes elements [begin, end) of the vector, as options.consistency has it. */
DML_API dml_ps_ticket dml_ps_pull(dml_ps *ps, float *w, size_t begin, size_t end);

/* This worker's pushes of its clock are complete; the next ones belong to the next. */
DML_API dml_status dml_ps_clock(dml_ps *ps);

/* Waits for a push or pull and those before it; DML_PS_ALL: for all. Returns the communicator's status. */
#define DML_PS_ALL UINT64_MAX
DML_API dml_status dml_ps_wait(dml_ps *ps, dml_ps_ticket ticket);

/* What the rule is given with the pushes to come; 1 at first. In synchrony all workers say the same: else
   what the first of those says that have ended the clock. */
DML_API void dml_ps_set_rate(dml_ps *ps, double rate);

/* The clock: how often this worker has called dml_ps_clock, or, with backups, the servers', if it is later.
 */
DML_API uint64_t dml_ps_clocks(const dml_ps *ps);

/* How many workers the servers had, as far as the last pull said, or the last work on vectors; of several
   servers, the most. */
DML_API int dml_ps_workers(const dml_ps *ps);

/* A communicator of the workers alone, which belongs to ps. */
DML_API dml_comm *dml_ps_workers_comm(const dml_ps *ps);

/* Waits for all that is under way, tells the servers that this worker leaves, and frees. NULL is fine. */
DML_API dml_status dml_ps_close(dml_ps *ps);

/* ---- work on the servers' vectors, of which none leaves them ----

   Vector 0 is the one above. Each returns when all servers have done it. One worker at a time calls them. */

/* y = alpha x + beta y; x and y may be the same vector. */
DML_API dml_status dml_ps_axpby(dml_ps *ps, double alpha, int x, double beta, int y);

/* The sum of x[i] y[i], in double, of the ranges in their order. */
DML_API dml_status dml_ps_dot(dml_ps *ps, int x, int y, double *dot);

/* The largest |x[i]|; NaN if there is one. */
DML_API dml_status dml_ps_largest(dml_ps *ps, int x, double *largest);

/* As dml_ps_pull of vector `vector`, at once; and vector += g, at once. For vectors 1 and up. */
DML_API dml_ps_ticket dml_ps_pull_from(dml_ps *ps, int vector, float *x, size_t begin, size_t end);
DML_API dml_ps_ticket dml_ps_push_to(dml_ps *ps, int vector, const float *g, size_t begin, size_t end);

/* Returns when this worker's pushes are in the servers' vectors, where any worker's work and pulls find them;
   dml_ps_wait returns when g may change. Any number of workers at a time. */
DML_API dml_status dml_ps_fence(dml_ps *ps);

#endif
