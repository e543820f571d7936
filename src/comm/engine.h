/* engine.h: who carries the operations out. Ours runs schedules over a transport (operation.c, link_out.c,
   link_in.c); another takes its place behind the same calls, so that a job that outgrows a machine runs on
   what its cluster has.

   What stays ours whoever the engine is: checking a call, requests and their order, taking turns, deadlines,
   and failing together, for which an engine brings a transport of which only the control channel is used. So
   a rank that is missing has a name there too.

   What takes ours' place for some calls only, as NCCL does for a GPU's memory (nccl_engine.h), is no engine
   of this kind but stands beside ours. */
#ifndef DML_COMM_ENGINE_H
#define DML_COMM_ENGINE_H

#include "comm/comm.h"
#include "net/transport.h"

struct dml__comm_job;
struct dml__comm_settings;

/* All but `open` with the turn. */
typedef struct dml__engine {
    const char *name;
    /* Says in the settings who this rank is. What it returns becomes job->transport, whose `wait` may return
       before anything has come, and whose `close` ends the engine. NULL: the job has failed. */
    dml__transport *(*open)(struct dml__comm_job *job, struct dml__comm_settings *settings);
    /* Begins request->call; dml__end_request ends it, here or in `progress`. */
    void (*start)(struct dml__comm_job *job, dml_request *request);
    void (*progress)(struct dml__comm_job *job); /* whatever needs no waiting */
    /* Takes back a receive; false: its message has come. */
    bool (*cancel)(struct dml__comm_job *job, dml_request *request);
    /* `comm` NULL: of the world's communicator. `from` and `tag` may be any. */
    bool (*probe)(struct dml__comm_job *job, dml_comm *comm, int from, int tag, dml_message *message);
    /* A collective of all of `comm`. `group` is what this rank's part became, or NULL. False: the job failed.
     */
    bool (*split)(struct dml__comm_job *job, dml_comm *comm, dml_comm *group, int color, int key);
    void (*leave)(struct dml__comm_job *job, dml_comm *comm); /* releases comm->beneath */
} dml__engine;

#ifdef DML_MPI
DML__LOCAL const dml__engine *dml__mpi_engine(void);
#endif

#endif
