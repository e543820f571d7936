/* trace.h: what a communicator did and when, kept in a ring of events and written as a timeline. */
#ifndef DML_COMM_TRACE_H
#define DML_COMM_TRACE_H

#include "base/platform.h"
#include "comm/job.h"

typedef enum dml__trace_kind { DML__TRACE_OPERATION, DML__TRACE_STEP, DML__TRACE_SPAN } dml__trace_kind;

typedef struct dml__trace_event {
    double begin, end, waited; /* seconds of this rank's clock */
    uint64_t sequence, count;
    const char *name; /* of a caller's span */
    dml__signature signature;
    dml__trace_kind kind;
    dml__step_kind step_kind;
    dml_status status;
    uint32_t communicator;
    int algorithm, lane, step, peer;
} dml__trace_event;

/* What overlaps lies in lanes of its own, the first that is free: rows of the timeline. */
typedef struct dml__trace_lanes {
    uint8_t *taken; /* (count) */
    int count;
} dml__trace_lanes;

#define DML__TRACE_PATH 1024

typedef struct dml__trace {
    dml__trace_event *events; /* (capacity): number i at i % capacity */
    uint64_t capacity, count;
    dml__trace_lanes operations, steps;
    bool with_steps;
    double behind;              /* how far rank 0's clock is behind this one's, in seconds */
    char path[DML__TRACE_PATH]; /* of this rank's file */
} dml__trace;

/* `settings` is that of all ranks or none: a communicator of the world lets them compare their clocks. The
   job's first operations; without the turn. */
DML__LOCAL dml_status dml__open_trace(dml_comm *comm, const dml__trace_settings *settings);

/* Writes what there is. With the turn. DML_ERROR_IO, which is logged and doesn't end the job; its sentence
   goes to `error` (NULL: nowhere), unless there is one already. */
DML__LOCAL dml_status dml__write_trace(dml__comm_job *job, dml__error *error);

DML__LOCAL void dml__release_trace(dml__comm_job *job);

/* The rest is called where job->trace isn't NULL, with the turn. */

DML__LOCAL void dml__trace_start(dml__comm_job *job, dml_request *request, double now);
DML__LOCAL void dml__trace_end(dml__comm_job *job, dml_request *request, dml_status status);

/* A call has waited so long for an operation, which may have ended. */
DML__LOCAL void dml__trace_waited(dml__comm_job *job, const dml_request *request, double seconds);

/* The first part of a flow's step moves; it is past. */
DML__LOCAL void dml__trace_step_begins(dml__comm_job *job, dml__flow *flow);
DML__LOCAL void dml__trace_step_past(dml__comm_job *job, dml__flow *flow, double now);

/* A part of a local step ran from `begin` until now. */
DML__LOCAL void dml__trace_local(dml__comm_job *job, const dml_request *request, int step, double begin);

#endif
