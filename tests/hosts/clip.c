/* clip.c: a training loop of the user's own, the same alone and on any number of ranks: a batch that comes in
   pieces, and a gradient whose global norm is clipped before it is applied.

       dmlrun -n 3 clip    each rank compares its weights with those that one process computes without
   dml_comm */
#include "dml.h"
#include "dml_comm.h"
#include "expect.h"

#include <math.h>
#include <string.h>

enum { BATCH = 24, PIECE = 5, IN = 6, OUT = 3, STEPS = 30, MOST_WEIGHTS = 500 };
static const double most_norm = 0.2;
static float point[BATCH * IN], target[BATCH * OUT];

static bool clip_gradient(dml_trainer *t, double most)
{
    const size_t count = dml_trainer_count(t, DML_GRADIENTS);
    float *g = dml_trainer_get(t, DML_GRADIENTS, 0, count);
    double squares = 0;
    for (size_t i = 0; i < count; i++) squares += (double)g[i] * g[i];
    if (sqrt(squares) <= most) return false;
    for (size_t i = 0; i < count; i++) g[i] *= (float)(most / sqrt(squares));
    dml_trainer_put(t, DML_GRADIENTS, 0, count);
    return true;
}

/* Rows [first, end) of the global batch, some at a time. Every rank makes the same number of calls, the ones
   of a rank that has no rows left with none. */
static void accumulate(dml_trainer *t, int first, int end)
{
    const int pieces = (BATCH + PIECE - 1) / PIECE;
    for (int i = 0; i < pieces; i++) {
        const int at = first + i * PIECE < end ? first + i * PIECE : end,
                  rows = end - at < PIECE ? end - at : PIECE;
        dml_trainer_backward(t, rows, DML_INPUTS(point + at * IN, target + at * OUT),
                             DML_ADD | (i < pieces - 1 ? DML_MORE : 0), NULL);
    }
}

/* Trains on this rank's share and copies the weights out; NULL: on the whole batch, without dml_comm. */
static size_t train(dml_comm *comm, float *weights, int *clipped)
{
    /* Rank 0 has the smallest share. */
    const int n = dml_comm_world_size(comm), r = dml_comm_rank(comm), all = n * (n + 1) / 2;
    const int first = BATCH * (r * (r + 1) / 2) / all, end = BATCH * ((r + 1) * (r + 2) / 2) / all;
    dml_context *ctx = dml_open(&(dml_options){ .threads = 1, .seed = 9 });
    dml_graph *g = dml_graph_create(ctx);
    dml_node *x = dml_input(g, "x", DML_F32, IN), *y = dml_input(g, "y", DML_F32, OUT);
    dml_node *loss = dml_mean_squared_error(dml_dense(dml_tanh(dml_dense(x, 16)), OUT), y);
    dml_trainer *t =
        dml_trainer_create(loss, &(dml_trainer_options){ .batch = PIECE, .optimizer = dml_sgd(0.1f, 0.9f) });
    if (comm) dml_trainer_sync(t, dml_all_reduce_sync(comm, NULL));
    for (int i = 0; i < STEPS; i++) {
        accumulate(t, first, end);
        EXPECT_NO_ERROR(ctx);
        *clipped += clip_gradient(t, most_norm);
        dml_trainer_update(t);
    }
    EXPECT_NO_ERROR(ctx);
    const size_t count = dml_graph_parameter_count(g);
    EXPECT(count <= MOST_WEIGHTS);
    memcpy(weights, dml_graph_get(g, 0, count), count * sizeof *weights);
    dml_close(ctx);
    return count;
}

int main(void)
{
    static float alone[MOST_WEIGHTS], together[MOST_WEIGHTS];
    int clipped[2] = { 0, 0 };
    for (int i = 0; i < BATCH * IN; i++) point[i] = (float)(i * 13 % 37) / 37 - 0.5f;
    for (int i = 0; i < BATCH * OUT; i++) target[i] = point[i * 2] - point[i * 2 + 1];
    dml_comm *comm = dml_comm_open(NULL);
    const size_t count = train(NULL, alone, &clipped[0]);
    EXPECT(train(comm, together, &clipped[1]) == count);
    double worst = 0;
    for (size_t i = 0; i < count; i++) worst = fmax(worst, fabs((double)alone[i] - together[i]));
    printf("%d and %d of %d steps clipped, alone and together; weights differ by %.1e at most\n", clipped[0],
           clipped[1], STEPS, worst);
    EXPECT(clipped[0] == clipped[1] && clipped[0] > 0 && clipped[0] < STEPS);
    EXPECT(worst < 1e-5);
    dml_comm_close(comm);
    return 0;
}
