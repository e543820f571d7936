/* cluster.h: which ranks of a job compute gradients (workers), and which keep the parameters (servers). */
#ifndef DML_DIST_CLUSTER_H
#define DML_DIST_CLUSTER_H

#include "base/platform.h"
#include "base/status.h"
#include "comm/comm.h"

/* Ranks 0 .. workers - 1 are the workers, the next `servers` the servers. */
typedef struct dml_cluster {
    int workers, servers; /* at least 1 each */
    int rank;             /* this process's */
    /* Where rank 0 listens, from TF_CONFIG; "" and 0: as dml_comm_open finds it. */
    char master_addr[256];
    int master_port;
    dml_status status; /* DML_ERROR_ARGUMENT: there is no such cluster, for this reason: */
    char error[256];   /* one sentence, "" for a good one */
} dml_cluster;

/* One that the program itself knows. */
DML_API dml_cluster dml_cluster_of(int rank, int workers, int servers);

/* From TF_CONFIG, if it is set, in TensorFlow's form,

       {"cluster": {"worker": ["a:2222", "b:2222"], "ps": ["c:2222"]}, "task": {"type": "ps", "index": 0}}

   where a "chief" counts as the first worker and the first worker's address is where the ranks meet; else
   from RANK and WORLD_SIZE (or a launcher, see comm/comm.h), the last DML_PS of which are servers, as `dmlrun
   --workers 4 --ps 2` sets them. Nothing is started: what is wrong is in `status` and `error`. */
DML_API dml_cluster dml_cluster_from_environment(void);

DML_API bool dml_cluster_is_server(const dml_cluster *cluster);

/* dml_comm_open for this rank of the cluster; of `options` (NULL: defaults) rank and world_size don't count,
   nor does where the ranks meet if the cluster says it. A cluster with an error opens a communicator that has
   this error, on this rank alone. */
DML_API dml_comm *dml_cluster_open(const dml_cluster *cluster, const dml_comm_options *options);

#endif
