/* nccl_engine.h: collectives of arrays in a GPU's memory go through NCCL, in the same job in which those of
   host memory go through our own engine. Compiled in by -DDML_NCCL, asked for by engine "nccl"; NCCL and the
   CUDA runtime are opened when the communicator is, and need not be there to compile.

   The job meets as ever, rank 0's id of NCCL goes to all by a broadcast over it, and deadlines, deaths and
   abort messages are those of its control connections: NCCL waits for ever for a rank that is gone, so when
   the job fails its communicators are aborted before any call returns.

   A call begins behind what has been enqueued on the communicator's stream (dml_comm_set_stream), runs on a
   stream of the job's own, and is done when an event behind it has passed. */
#ifndef DML_COMM_NCCL_ENGINE_H
#define DML_COMM_NCCL_ENGINE_H

#include "comm/job.h"

#ifdef DML_NCCL

/* Opens the libraries and the world's communicator, on the device that is current. A collective; after an
   error the job has failed. */
DML__LOCAL void dml__nccl_open(dml_comm *world);

/* The same for a group that was split off. */
DML__LOCAL void dml__nccl_join(dml_comm *group);

/* Whether the call is about a device's memory. It may have failed the job: arrays in both, or on a device
   that isn't the job's. */
DML__LOCAL bool dml__nccl_takes(dml__comm_job *job, const dml__comm_call *call, const dml_comm *comm);

/* Whether collectives of this communicator take such an array from where it is, without the host. */
DML__LOCAL bool dml__nccl_reaches(const dml_comm *comm, const void *data);

/* Begins a collective that it takes, or fails the job where NCCL has nothing like it; dml__nccl_progress ends
   it. */
DML__LOCAL void dml__nccl_start(dml__comm_job *job, dml_request *request);
DML__LOCAL void dml__nccl_progress(dml__comm_job *job);
DML__LOCAL bool dml__nccl_is_busy(const dml__comm_job *job);

/* What is under way ends now, unfinished: nothing reads or writes the caller's arrays any more. */
DML__LOCAL void dml__nccl_abort(dml__comm_job *job);

/* A group that is closed: others may still read what it sent, so NCCL's part lives as long as the job. */
DML__LOCAL void dml__nccl_leave(dml__comm_job *job, dml_comm *comm);
DML__LOCAL void dml__nccl_close(dml__comm_job *job);

#else

static inline void dml__nccl_open(dml_comm *world)
{
    (void)world;
}

static inline void dml__nccl_join(dml_comm *group)
{
    (void)group;
}

static inline bool dml__nccl_takes(dml__comm_job *job, const dml__comm_call *call, const dml_comm *comm)
{
    (void)job, (void)call, (void)comm;
    return false;
}

static inline bool dml__nccl_reaches(const dml_comm *comm, const void *data)
{
    (void)comm, (void)data;
    return false;
}

static inline void dml__nccl_start(dml__comm_job *job, dml_request *request)
{
    (void)job, (void)request;
}

static inline void dml__nccl_progress(dml__comm_job *job)
{
    (void)job;
}

static inline bool dml__nccl_is_busy(const dml__comm_job *job)
{
    (void)job;
    return false;
}

static inline void dml__nccl_abort(dml__comm_job *job)
{
    (void)job;
}

static inline void dml__nccl_leave(dml__comm_job *job, dml_comm *comm)
{
    (void)job, (void)comm;
}

static inline void dml__nccl_close(dml__comm_job *job)
{
    (void)job;
}

#endif

#endif
