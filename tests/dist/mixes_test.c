/* Ranks of which one was given another strategy, or another way to train: each is told so, in one sentence,
   before it trains. */
#include "dist/all_reduce_sync.h"
#include "dist/downpour_sync.h"
#include "dist/local_sgd.h"
#include "dist/mirrored.h"
#include "dist/parameter_server_sync.h"
#include "dist/sandblaster.h"
#include "dist/zero_sync.h"

#include "../comm/ranks.h"
#include "device/context.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"

enum { RANKS = 3, WORKERS = 2, ROWS = 4 };

typedef enum way {
    ALL_REDUCE,
    ACROSS_STEPS,
    ZERO_1,
    ZERO_3,
    LOCAL_SGD,
    SIMU_PARALLEL,
    MIRRORED,
    CENTRAL,
    PARAMETER_SERVER, /* these with the last rank for a server */
    DOWNPOUR,
    SANDBLASTER,
    WAYS
} way;

static const char *const way_names[WAYS] = {
    "all_reduce", "across_steps",     "zero1",    "zero3",       "local_sgd", "simu_parallel", "mirrored",
    "central",    "parameter_server", "downpour", "sandblaster",
};

/* What one rank's trainer has otherwise. */
typedef enum other { SAME, DTYPE, OPTIMIZER, MOMENTUM, AVERAGE, OTHERS, SAME_AVERAGE, REFUSED } other;

typedef struct rank_way {
    way way;
    other other;
    dml_status status;
    char error[512];
} rank_way;

static dml_status portion(void *user, dml_trainer *trainer, int index, int portions, double *sum,
                          double *samples)
{
    (void)user, (void)trainer, (void)index, (void)portions;
    *sum = *samples = 0;
    return DML_OK;
}

static dml_trainer_options options_of(other o)
{
    dml_trainer_options options;
    memset(&options, 0, sizeof options);
    options.batch = ROWS;
    options.optimizer = o == OPTIMIZER  ? dml_adam(0.01f)
                        : o == MOMENTUM ? dml_sgd(0.1f, 0)
                                        : dml_sgd(0.1f, 0.9f);
    if (o == DTYPE) options.dtype = DML_BF16;
    if (o == AVERAGE) options.average = 0.5f;
    if (o == SAME_AVERAGE) options.average = 0.75f;
    return options;
}

static dml_status mirror(dml_node *loss, const dml_trainer_options *trainer, way w, dml_comm *comm)
{
    static const char *const devices[] = { "cpu*1", "cpu*1" };
    dml_mirrored_options options;
    memset(&options, 0, sizeof options);
    options.trainer = *trainer;
    options.comm = comm;
    options.placement = w == CENTRAL ? DML_PLACE_CENTRAL : DML_PLACE_MIRRORED;
    dml_mirrored *m = dml_mirrored_create(loss, devices, 2, &options);
    dml_mirrored_destroy(m);
    return dml_status_of(dml_graph_context(dml_node_graph(loss)));
}

static dml_sync sync_of(way w, bool refused, dml_comm *comm, const dml_cluster *cluster)
{
    dml_all_reduce_sync_options across;
    dml_zero_options zero;
    dml_local_sgd_options local;
    memset(&across, 0, sizeof across);
    memset(&zero, 0, sizeof zero);
    memset(&local, 0, sizeof local);
    across.across_steps = w == ACROSS_STEPS;
    zero.stage = refused ? 4 : w == ZERO_3 ? 3 : 1;
    local.tau = refused ? 0 : 5;
    switch (w) {
    case ZERO_1:
    case ZERO_3: return dml_zero_sync(comm, &zero);
    case LOCAL_SGD: return dml_local_sgd_sync(comm, &local);
    case SIMU_PARALLEL: return dml_simu_parallel_sync(comm, NULL);
    case PARAMETER_SERVER: return dml_parameter_server_sync(comm, cluster, NULL);
    case DOWNPOUR: return dml_downpour_sync(comm, cluster, NULL);
    default: return dml_all_reduce_sync(comm, &across);
    }
}

static dml_status start(rank_way *mine, dml_trainer *trainer, dml_node *loss,
                        const dml_trainer_options *options, dml_comm *comm, const dml_cluster *cluster)
{
    dml_sandblaster_options sandblaster;
    if (mine->way == MIRRORED || mine->way == CENTRAL) return mirror(loss, options, mine->way, comm);
    if (mine->way != SANDBLASTER)
        return dml_trainer_sync(trainer, sync_of(mine->way, mine->other == REFUSED, comm, cluster));
    memset(&sandblaster, 0, sizeof sandblaster);
    sandblaster.portion = portion;
    return dml_sandblaster_minimize(trainer, comm, cluster, &sandblaster, NULL);
}

static void body(test_rank *me)
{
    rank_way *mine = (rank_way *)me->user + me->rank;
    const dml_cluster cluster = dml_cluster_of(me->rank, WORKERS, RANKS - WORKERS);
    if (mine->way >= PARAMETER_SERVER && dml_cluster_is_server(&cluster)) {
        mine->status = mine->way == SANDBLASTER ? dml_ps_serve(me->comm, &cluster, NULL, NULL)
                                                : dml_parameter_server_serve(me->comm, &cluster, NULL);
        snprintf(mine->error, sizeof mine->error, "%s", dml_comm_error(me->comm));
        return;
    }
    dml_options few;
    memset(&few, 0, sizeof few);
    few.threads = 1;
    dml_context *context = dml_open(&few);
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 3), *t = dml_input(graph, "t", DML_F32, 2);
    dml_node *loss = dml_mean_squared_error(dml_dense(x, 2), t);
    const dml_trainer_options options = options_of(mine->other);
    dml_trainer *trainer = dml_trainer_create(loss, &options);
    mine->status = start(mine, trainer, loss, &options, me->comm, &cluster);
    snprintf(mine->error, sizeof mine->error, "%s", dml_error(context));
    dml_close(context);
}

static void run_ways(rank_way *ways)
{
    test_rank ranks[RANKS];
    ranks_prepare(ranks, RANKS, 5, body, ways);
    ranks_run_on(ranks, RANKS, "local");
}

/* Two that the last rank serves in the same way. */
static bool served_alike(way a, way b)
{
    return (a == PARAMETER_SERVER && b == DOWNPOUR) || (a == DOWNPOUR && b == PARAMETER_SERVER);
}

static void one_rank_has_another_strategy(void)
{
    for (int usual = 0; usual < WAYS; usual++)
        for (int odd = 0; odd < WAYS; odd++)
            for (int rank = 0; rank < RANKS && odd != usual; rank++) {
                rank_way ways[RANKS];
                memset(ways, 0, sizeof ways);
                if (rank == RANKS - 1 && served_alike((way)usual, (way)odd)) continue;
                for (int r = 0; r < RANKS; r++) ways[r].way = (way)(r == rank ? odd : usual);
                run_ways(ways);
                for (int r = 0; r < RANKS; r++)
                    CHECK_MESSAGE(ways[r].status == DML_ERROR_MISMATCH &&
                                      strstr(ways[r].error, "all ranks need the same"),
                                  "rank %d has %s and the others %s: rank %d says %d, %s", rank,
                                  way_names[odd], way_names[usual], r, (int)ways[r].status, ways[r].error);
            }
}

static void one_rank_trains_otherwise(void)
{
    static const char *const says[OTHERS] = { "", "what is computed in, f32 or 16 bits;",
                                              "the optimizer's kind, or what it keeps;",
                                              "the optimizer's kind, or what it keeps;",
                                              "whether a moving average is kept, or how it moves;" };
    for (int w = 0; w < WAYS; w++)
        for (int o = SAME + 1; o < OTHERS; o++)
            for (int rank = 0; rank < WORKERS; rank++) {
                rank_way ways[RANKS];
                if (w >= PARAMETER_SERVER && o == AVERAGE) continue; /* which they refuse */
                memset(ways, 0, sizeof ways);
                for (int r = 0; r < RANKS; r++) ways[r].way = (way)w;
                ways[rank].other = (other)o;
                run_ways(ways);
                for (int r = 0; r < (w < PARAMETER_SERVER ? RANKS : WORKERS); r++)
                    CHECK_MESSAGE(ways[r].status == DML_ERROR_MISMATCH &&
                                      strstr(ways[r].error, "all ranks need the same") &&
                                      (w >= PARAMETER_SERVER || strstr(ways[r].error, says[o])),
                                  "%s, rank %d has another %d: rank %d says %d, %s", way_names[w], rank, o, r,
                                  (int)ways[r].status, ways[r].error);
            }
}

static void one_rank_has_another_average(void)
{
    rank_way ways[RANKS];
    memset(ways, 0, sizeof ways);
    for (int r = 0; r < RANKS; r++) ways[r].way = ALL_REDUCE, ways[r].other = r ? AVERAGE : SAME_AVERAGE;
    run_ways(ways);
    for (int r = 0; r < RANKS; r++) {
        CHECK_INT(ways[r].status, DML_ERROR_MISMATCH);
        CHECK_CONTAINS(ways[r].error, "how it moves;");
    }
}

/* The others hear of it as all meet, and don't wait for it. */
static void one_rank_is_refused(void)
{
    static const way refuse[] = { ZERO_1, LOCAL_SGD };
    for (int w = 0; w < 2; w++)
        for (int rank = 0; rank < RANKS; rank++) {
            rank_way ways[RANKS];
            memset(ways, 0, sizeof ways);
            for (int r = 0; r < RANKS; r++) ways[r].way = refuse[w];
            ways[rank].other = REFUSED;
            run_ways(ways);
            for (int r = 0; r < RANKS; r++) {
                CHECK_INT(ways[r].status, r == rank ? DML_ERROR_ARGUMENT : DML_ERROR_MISMATCH);
                CHECK_CONTAINS(ways[r].error, r != rank ? "whether it can do what was asked of it"
                                              : w       ? "tau must be at least 1"
                                                        : "stage 4 of ZeRO");
            }
        }
}

int main(void)
{
    RUN(one_rank_has_another_strategy);
    RUN(one_rank_trains_otherwise);
    RUN(one_rank_has_another_average);
    RUN(one_rank_is_refused);
    return test_report("dist/mixes");
}
