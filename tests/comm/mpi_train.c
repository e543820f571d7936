/* One rank of a job that an MPI launcher started: trains a small model on its share of each batch by each
   strategy that is named, and beside that the same model alone on all of it. Their losses are the same. One
   that has servers stands alone. */
#define DML_IMPLEMENTATION
#include "dml.h"
#include "dml_comm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 37, STEPS = 20 };

static float point[BATCH][2];
static int spiral[BATCH];

static bool is(const char *strategy, const char *name)
{
    return strategy && strcmp(strategy, name) == 0;
}

/* The cluster is of those that have a server, the last rank. */
static dml_sync sync_of(const char *strategy, dml_comm *job, const dml_cluster *cluster)
{
    if (strncmp(strategy, "zero", 4) == 0)
        return dml_zero_sync(job, &(dml_zero_options){ .stage = strategy[4] - '0' });
    if (is(strategy, "local_sgd")) return dml_local_sgd_sync(job, &(dml_local_sgd_options){ .tau = 1 });
    if (is(strategy, "parameter_server")) return dml_parameter_server_sync(job, cluster, NULL);
    return dml_all_reduce_sync(job, NULL);
}

/* The loss of each step, of the whole batch; false: it failed, and said so. `strategy` NULL: alone; else
   `comm` are the ranks that train. */
static bool train(dml_comm *job, dml_comm *comm, const char *strategy, const dml_cluster *cluster,
                  double losses[STEPS])
{
    const int rank = strategy ? dml_comm_rank(comm) : 0, world = strategy ? dml_comm_world_size(comm) : 1;
    const int first = BATCH * rank / world, rows = BATCH * (rank + 1) / world - first;
    dml_context *context = dml_open(NULL);
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "point", DML_F32, 2), *t = dml_input(graph, "spiral", DML_I32);
    dml_node *y = dml_dense(dml_tanh(dml_dense(x, 16)), 2);
    dml_trainer_options how = { .batch = BATCH,
                                .optimizer = dml_sgd(0.3f, 0) }; /* local SGD's momentum is each rank's */
    dml_trainer *trainer = dml_trainer_create(dml_softmax_cross_entropy(y, t), &how);
    if (strategy) dml_trainer_sync(trainer, sync_of(strategy, job, cluster));
    for (int i = 0; i < STEPS; i++) {
        float loss = 0;
        dml_trainer_step(trainer, rows, DML_INPUTS(point[first], spiral + first), &loss);
        losses[i] = (double)loss * rows / BATCH;
        if (strategy) dml_comm_all_reduce(comm, &losses[i], 1, DML_F64, DML_SUM);
    }
    const bool ok = dml_status_of(context) == DML_OK;
    if (!ok) printf("rank %d: %s\n", rank, dml_error(context));
    dml_close(context);
    return ok;
}

/* All of the ranks by this strategy, and this rank alone; rank 0 says how they compare. */
static bool compare(dml_comm *job, dml_comm *comm, const char *strategy, const dml_cluster *cluster)
{
    double together[STEPS], alone[STEPS], most = 0;
    char described[2048];
    if (!train(job, comm, strategy, cluster, together) || !train(NULL, NULL, NULL, NULL, alone)) return false;
    for (int i = 0; i < STEPS; i++) most = fmax(most, fabs(together[i] - alone[i]));
    dml_comm_describe(job, described, sizeof described);
    if (dml_comm_rank(job) == 0)
        printf("%s, %.*s: loss %.6f to %.6f, at most %.1e from one rank's\n", strategy,
               (int)strcspn(described, "\n"), described, together[0], together[STEPS - 1], most);
    return most < 1e-5 && together[STEPS - 1] < together[0];
}

int main(int argc, char **argv)
{
    for (int i = 0; i < BATCH; i++) {
        const float radius = 0.1f + 0.9f * (float)i / BATCH, angle = 9 * radius + 3.14159f * (float)(i % 2);
        point[i][0] = radius * cosf(angle), point[i][1] = radius * sinf(angle), spiral[i] = i % 2;
    }
    const dml_cluster cluster = dml_cluster_from_environment();
    const bool with_server = is(argv[1], "parameter_server"),
               serves = with_server && dml_cluster_is_server(&cluster);
    dml_comm *job = with_server ? dml_cluster_open(&cluster, NULL) : dml_comm_open(NULL);
    dml_comm *comm = dml_comm_split(job, serves ? -1 : 0, 0);
    bool good = !dml_comm_status(job);
    if (serves)
        good = good && dml_parameter_server_serve(job, &cluster, NULL) == DML_OK;
    else
        for (int i = 1; i < argc && good; i++) good = compare(job, comm, argv[i], &cluster);
    if (dml_comm_status(job)) printf("rank %d: %s\n", dml_comm_rank(job), dml_comm_error(job));
    dml_comm_close(comm);
    return dml_comm_close(job) == DML_OK && good ? 0 : 1;
}
