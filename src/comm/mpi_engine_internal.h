/* mpi_engine_internal.h: what the engine over MPI (mpi_engine.c) is made of, and what its calls become in MPI
   (mpi_engine_calls.c). */
#ifndef DML_COMM_MPI_ENGINE_INTERNAL_H
#define DML_COMM_MPI_ENGINE_INTERNAL_H

#include "comm/engine.h"

#ifdef DML_MPI

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include "comm/job.h"

#define DML__MPI_DTYPES 8 /* an MPI tag is ours times this, plus the dtype */

typedef struct dml__mpi_group {
    MPI_Comm main; /* collectives, and messages of the calls */
    MPI_Comm aux;  /* checks, and the messages of collectives that MPI's own can't carry out */
} dml__mpi_group;

/* What there is to a request beside ours. */
typedef struct dml__mpi_call {
    int pending;                        /* MPI requests */
    bool checking, checked;             /* before it begins */
    uint8_t said[DML__SIGNATURE_BYTES]; /* what rank 0 of the group does */
    MPI_Datatype types[2];              /* to be released when it ends */
    int type_count;
    const char *result;    /* where it will be, if that isn't where it belongs */
    int *counts, *offsets; /* (world) */
    size_t *kept; /* (4 world): the caller's counts and places, who may change them once it has started */
} dml__mpi_call;

typedef struct dml__mpi {
    dml__transport transport; /* first */
    dml__comm_job *job;
    dml__memory *memory;
    int world;
    bool owned; /* we have initialised it */
    bool check; /* DML_COMM_CHECK */
    dml__mpi_group group;
    MPI_Comm control;
    MPI_Op op; /* dml__reduce_elements */
    int most_tag;
    double started_at;
    dml__mpi_call *calls; /* (max_requests + 1) */
    int *all_counts;
    size_t *all_kept;
    MPI_Request *handles; /* (most) */
    dml_request **owners; /* (most) */
    int *indices;         /* (most) */
    MPI_Status *statuses; /* (most) */
    int most, used;
    /* Control messages on their way. */
    uint8_t *outbox;    /* (letters, DML__CONTROL_BYTES) */
    MPI_Request *posts; /* (letters) */
    int letters;
} dml__mpi;

static inline dml__mpi *dml__mpi_of(const dml__comm_job *job)
{
    return (dml__mpi *)(void *)job->transport;
}

static inline dml__mpi_group *dml__mpi_group_of(const dml_comm *comm)
{
    return comm->beneath ? (dml__mpi_group *)comm->beneath : &dml__mpi_of(comm->job)->group;
}

static inline dml__mpi_call *dml__mpi_call_of(const dml_request *request)
{
    const dml__comm_job *job = request->comm->job;
    return &dml__mpi_of(job)->calls[request - job->requests];
}

/* False: MPI has failed, and with it the job. */
DML__LOCAL bool dml__mpi_ok(dml__comm_job *job, const char *doing, int code);
DML__LOCAL bool dml__mpi_call_ok(const dml_request *request, int code);

/* The place of the next MPI request of a call. */
DML__LOCAL MPI_Request *dml__mpi_handle(dml_request *request);

/* Posts all of a call, which ends here where there is nothing to wait for. */
DML__LOCAL void dml__mpi_begin(dml_request *request);
DML__LOCAL void dml__mpi_end(dml_request *request);

/* A receive has got its message; false: it isn't one of that dtype or length, and the job has failed. */
DML__LOCAL bool dml__mpi_take_message(dml_request *request, const MPI_Status *status, int code);
DML__LOCAL void dml__mpi_read_status(const MPI_Status *status, dml_message *message);

/* The function of dml__mpi.op. */
DML__LOCAL void dml__mpi_reduce(void *in, void *inout, int *count, MPI_Datatype *type);

#endif

#endif
