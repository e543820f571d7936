/* One rank of a job that an MPI launcher started: trains a small model on its share of each batch, and beside
   that the same model alone on all of it. Their losses are the same. */
#define DML_IMPLEMENTATION
#include "dml.h"
#include "dml_comm.h"

#include <math.h>
#include <stdio.h>

enum { BATCH = 37, STEPS = 20 };

static float point[BATCH][2];
static int spiral[BATCH];

/* The loss of each step, of the whole batch; false: it failed, and said so. */
static bool train(dml_comm *comm, double losses[STEPS])
{
    const int rank = dml_comm_rank(comm), world = dml_comm_world_size(comm);
    const int first = BATCH * rank / world, rows = BATCH * (rank + 1) / world - first;
    dml_context *context = dml_open(NULL);
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "point", DML_F32, 2), *t = dml_input(graph, "spiral", DML_I32);
    dml_node *y = dml_dense(dml_tanh(dml_dense(x, 16)), 2);
    dml_trainer_options how = { .batch = BATCH, .optimizer = dml_sgd(0.3f, 0.9f) };
    dml_trainer *trainer = dml_trainer_create(dml_softmax_cross_entropy(y, t), &how);
    if (comm) dml_trainer_sync(trainer, dml_all_reduce_sync(comm, NULL));
    for (int i = 0; i < STEPS; i++) {
        float loss = 0;
        dml_trainer_step(trainer, rows, DML_INPUTS(point[first], spiral + first), &loss);
        losses[i] = (double)loss * rows / BATCH;
        if (comm) dml_comm_all_reduce(comm, &losses[i], 1, DML_F64, DML_SUM);
    }
    const bool ok = dml_status_of(context) == DML_OK;
    if (!ok) printf("rank %d: %s\n", rank, dml_error(context));
    dml_close(context);
    return ok;
}

int main(void)
{
    double together[STEPS], alone[STEPS], most = 0;
    for (int i = 0; i < BATCH; i++) {
        const float radius = 0.1f + 0.9f * (float)i / BATCH, angle = 9 * radius + 3.14159f * (float)(i % 2);
        point[i][0] = radius * cosf(angle), point[i][1] = radius * sinf(angle), spiral[i] = i % 2;
    }
    dml_comm *comm = dml_comm_open(NULL);
    const bool ok = !dml_comm_status(comm) && train(comm, together) && train(NULL, alone);
    if (dml_comm_status(comm)) printf("rank %d: %s\n", dml_comm_rank(comm), dml_comm_error(comm));
    for (int i = 0; ok && i < STEPS; i++) most = fmax(most, fabs(together[i] - alone[i]));
    if (ok && dml_comm_rank(comm) == 0)
        printf("%d ranks: loss %.6f to %.6f, at most %.1e from one rank's\n", dml_comm_world_size(comm),
               together[0], together[STEPS - 1], most);
    const bool good = ok && most < 1e-5 && together[STEPS - 1] < together[0];
    return dml_comm_close(comm) == DML_OK && good ? 0 : 1;
}
