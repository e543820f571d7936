/* Trainers whose communicator is closed before them, or whose strategy finds no memory. */
#include "dist/all_reduce_sync.h"
#include "dist/downpour_sync.h"
#include "dist/local_sgd.h"
#include "dist/parameter_server_sync.h"
#include "dist/zero_sync.h"

#include "../comm/ranks.h"
#include "device/context.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"

enum { WAYS = 6, ROWS = 4 };

/* malloc, so many times. */
typedef struct purse {
    int left, taken;
} purse;

static void *purse_allocate(void *user, size_t bytes)
{
    purse *p = (purse *)user;
    if (p->left-- <= 0) return NULL;
    p->taken++;
    return malloc(bytes);
}

static void purse_release(void *user, void *memory)
{
    ((purse *)user)->taken -= memory != NULL;
    free(memory);
}

static dml_sync sync_with(int way, dml_comm *comm, dml_allocator allocator)
{
    dml_all_reduce_sync_options across;
    dml_zero_options zero;
    dml_local_sgd_options local;
    memset(&across, 0, sizeof across);
    memset(&zero, 0, sizeof zero);
    memset(&local, 0, sizeof local);
    across.across_steps = way == 1;
    zero.stage = way - 1;
    local.tau = 1;
    local.outer = dml_sgd(1, 0.5f);
    across.allocator = zero.allocator = local.allocator = allocator;
    if (way < 2) return dml_all_reduce_sync(comm, &across);
    return way < 5 ? dml_zero_sync(comm, &zero) : dml_local_sgd_sync(comm, &local);
}

static dml_sync sync_of(int way, dml_comm *comm)
{
    dml_allocator usual;
    memset(&usual, 0, sizeof usual);
    return sync_with(way, comm, usual);
}

static dml_trainer *make_trainer(dml_context *context)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 3), *t = dml_input(graph, "t", DML_F32, 2);
    dml_trainer_options options;
    memset(&options, 0, sizeof options);
    options.batch = ROWS;
    return dml_trainer_create(dml_mean_squared_error(dml_dense(x, 2), t), &options);
}

static dml_status step(dml_trainer *trainer)
{
    static const float x[ROWS * 3] = { 1, 2, 3 }, t[ROWS * 2] = { 1 };
    return dml_trainer_step(trainer, ROWS, DML_INPUTS(x, t), NULL);
}

/* The step says so, and nothing is touched that isn't there any more. */
static void the_last_one(void)
{
    for (int way = 0; way < WAYS; way++) {
        dml_comm *comm = NULL;
        CHECK_INT(dml_comm_open_local(&comm, 1, NULL), DML_OK);
        dml_context *context = dml_open(NULL);
        dml_trainer *trainer = make_trainer(context);
        CHECK_INT(dml_trainer_sync(trainer, sync_of(way, comm)), DML_OK);
        CHECK_INT(step(trainer), DML_OK);
        CHECK_INT(dml_comm_close(comm), DML_OK);
        CHECK_INT(step(trainer), DML_ERROR_STATE);
        CHECK_CONTAINS(dml_error(context), "communicator is closed");
        dml_clear_error(context);
        CHECK_INT(step(trainer), DML_ERROR_STATE); /* and again */
        dml_clear_error(context);
        if (way != 1) dml_trainer_gather(trainer);
        dml_close(context);
    }
}

/* One of several of a job, whose others are open and go on. */
static void group_body(test_rank *me)
{
    for (int way = 0; way <= WAYS; way++) {
        const dml_cluster cluster = dml_cluster_of(me->rank, 1, 1);
        dml_comm *group = dml_comm_split(me->comm, 0, me->rank);
        if (way == WAYS && me->rank == 1) {
            CHECK_INT(dml_parameter_server_serve(group, &cluster, NULL), DML_OK);
            dml_comm_close(group);
            CHECK_INT(dml_comm_barrier(me->comm), DML_OK);
            continue;
        }
        dml_context *context = dml_open(NULL);
        dml_trainer *trainer = make_trainer(context);
        CHECK_INT(dml_trainer_sync(trainer, way < WAYS ? sync_of(way, group)
                                                       : dml_parameter_server_sync(group, &cluster, NULL)),
                  DML_OK);
        CHECK_INT(step(trainer), DML_OK);
        CHECK_INT(dml_comm_close(group), DML_OK);
        CHECK_INT(step(trainer), DML_ERROR_STATE);
        CHECK_CONTAINS(dml_error(context), "communicator is closed");
        dml_close(context);
        CHECK_INT(dml_comm_barrier(me->comm), DML_OK);
    }
}

static void one_of_several(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, group_body, NULL);
    ranks_run_on(ranks, 2, "local");
}

/* Wherever memory ends, the sentence says so, all is given back, and the trainer goes on without. */
static void no_memory(void)
{
    for (int way = 0; way < WAYS; way++) {
        dml_comm *comm = NULL;
        CHECK_INT(dml_comm_open_local(&comm, 1, NULL), DML_OK);
        dml_context *context = dml_open(NULL);
        dml_trainer *trainer = make_trainer(context);
        dml_status status = DML_ERROR_MEMORY;
        for (int most = 0; most < 20 && status != DML_OK; most++) {
            purse p = { most, 0 };
            const dml_allocator allocator = { purse_allocate, purse_release, &p };
            dml_sync none;
            memset(&none, 0, sizeof none);
            status = dml_trainer_sync(trainer, sync_with(way, comm, allocator));
            if (most == 0 || status != DML_OK) {
                CHECK_INT(status, DML_ERROR_MEMORY);
                CHECK_CONTAINS(dml_error(context), "no memory left");
                dml_clear_error(context);
                CHECK_INT(p.taken, 0);
            }
            CHECK_INT(step(trainer), DML_OK);
            CHECK_INT(dml_trainer_sync(trainer, none), DML_OK);
            CHECK_INT(p.taken, 0);
        }
        CHECK_INT(status, DML_OK);
        dml_close(context);
        CHECK_INT(dml_comm_close(comm), DML_OK);
    }
}

/* Which dml_comm_open gives when memory is short, and a program when it forgets to open one. */
static void no_communicator(void)
{
    const dml_cluster cluster = dml_cluster_of(0, 1, 1);
    dml_local_sgd_options local;
    memset(&local, 0, sizeof local);
    for (int way = 0; way < WAYS + 3; way++) {
        dml_context *context = dml_open(NULL);
        dml_trainer *trainer = make_trainer(context);
        const dml_sync sync = way < WAYS        ? sync_of(way, NULL)
                              : way == WAYS     ? dml_simu_parallel_sync(NULL, &local)
                              : way == WAYS + 1 ? dml_parameter_server_sync(NULL, &cluster, NULL)
                                                : dml_downpour_sync(NULL, &cluster, NULL);
        CHECK_INT(dml_trainer_sync(trainer, sync), DML_ERROR_MEMORY);
        CHECK_CONTAINS(dml_error(context),
                       "the sync strategy's communicator is NULL: none was given, or there "
                       "was no memory left to open one");
        dml_clear_error(context);
        CHECK_INT(step(trainer), DML_OK);
        dml_close(context);
    }
}

int main(void)
{
    RUN(no_communicator);
    RUN(no_memory);
    RUN(the_last_one);
    RUN(one_of_several);
    return test_report("dist/closed");
}
