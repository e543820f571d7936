/* Ranks are threads of this process, each with a context and a communicator of its own. */
#include "dist/all_reduce_sync.h"

#include "../comm/ranks.h"
#include "../test.h"
#include "graph/op_activation.h"
#include "graph/op_dense.h"
#include "graph/op_loss.h"

enum { MAX_RANKS = 5, IN = 6, CLASSES = 3, STEPS = 12, MAX_BATCH = 23, MAX_PARAMETERS = 512 };

typedef struct rank_job {
    int rank, world;
    int batch; /* global */
    size_t bucket_bytes;
    int leaves_at; /* this step; -1: never */
    float lr;
    /* results */
    float loss[STEPS]; /* the mean of this rank's samples */
    int rows;
    size_t parameters;
    float w[MAX_PARAMETERS];
    dml_status status;
    char error[512];
} rank_job;

static void make_batch(int step, int batch, float *x, int32_t *t)
{
    unsigned state = 77u + (unsigned)step;
    test_fill(&state, x, (size_t)(batch * IN));
    for (int i = 0; i < batch; i++) t[i] = x[i * IN] > 0.3f ? 2 : x[i * IN + 1] > 0 ? 1 : 0;
}

/* The first `batch % world` ranks get one sample more. */
static int first_row(const rank_job *job, int rank)
{
    return rank * (job->batch / job->world) +
           (rank < job->batch % job->world ? rank : job->batch % job->world);
}

static dml_node *build_loss(dml_context *context)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *t = dml_input(graph, "t", DML_I32);
    dml_node *h = dml_relu(dml_dense(dml_tanh(dml_dense(x, 16)), 16));
    return dml_softmax_cross_entropy(dml_dense(h, CLASSES), t);
}

static dml_status train(rank_job *job, dml_trainer *trainer)
{
    dml_status status = DML_OK;
    for (int s = 0; s < STEPS && s != job->leaves_at && status == DML_OK; s++) {
        float x[MAX_BATCH * IN];
        int32_t t[MAX_BATCH];
        make_batch(s, job->batch, x, t);
        const int begin = first_row(job, job->rank);
        job->rows = first_row(job, job->rank + 1) - begin;
        const void *inputs[] = { x + begin * IN, t + begin };
        status = dml_trainer_step(trainer, job->rows, inputs, 2, &job->loss[s]);
    }
    return status;
}

static void run_rank(test_rank *me)
{
    rank_job *job = (rank_job *)me->user + me->rank;
    dml_options options;
    memset(&options, 0, sizeof options);
    options.threads = 1;
    options.seed = 5 + (uint64_t)job->rank; /* other initial values on each rank: rank 0's must win */
    dml_trainer_options trainer_options;
    memset(&trainer_options, 0, sizeof trainer_options);
    trainer_options.batch = MAX_BATCH;
    trainer_options.optimizer = dml_sgd(job->lr, 0.9f);

    dml_context *context = dml_open(&options);
    dml_trainer *trainer = dml_trainer_create(build_loss(context), &trainer_options);
    dml_all_reduce_sync_options sync_options;
    memset(&sync_options, 0, sizeof sync_options);
    sync_options.bucket_bytes = job->bucket_bytes;
    job->status = dml_trainer_sync(trainer, dml_all_reduce_sync(me->comm, &sync_options));
    if (job->status == DML_OK) job->status = train(job, trainer);
    snprintf(job->error, sizeof job->error, "%s", dml_error(context));
    if (job->status == DML_OK) {
        job->parameters = dml_trainer_count(trainer, DML_PARAMETERS);
        memcpy(job->w, dml_trainer_get(trainer, DML_PARAMETERS, 0, job->parameters),
               job->parameters * sizeof(float));
    }
    dml_close(context);
}

static void run_world(rank_job *jobs, const rank_job *like)
{
    test_rank ranks[MAX_RANKS];
    for (int r = 0; r < like->world; r++) {
        jobs[r] = *like;
        jobs[r].rank = r;
        if (like->leaves_at >= 0 && r != like->world - 1) jobs[r].leaves_at = -1;
    }
    ranks_prepare(ranks, like->world, 20, run_rank, jobs);
    ranks_run(ranks, like->world);
}

static rank_job alone;
static rank_job world[MAX_RANKS];

/* The mean over the global batch of a step's loss. */
static double global_loss(const rank_job *jobs, int step)
{
    double sum = 0;
    for (int r = 0; r < jobs->world; r++) sum += (double)jobs[r].loss[step] * jobs[r].rows;
    return sum / jobs->batch;
}

static void compare_with_one_rank(int ranks, int batch, size_t bucket_bytes)
{
    rank_job like;
    memset(&like, 0, sizeof like);
    like.batch = batch;
    like.bucket_bytes = bucket_bytes;
    like.leaves_at = -1;
    like.lr = 0.1f;
    like.world = 1;
    run_world(&alone, &like);
    like.world = ranks;
    run_world(world, &like);
    CHECK_STRING(alone.error, "");
    for (int r = 0; r < ranks; r++) {
        CHECK_STRING(world[r].error, "");
        CHECK_INT(world[r].parameters, alone.parameters);
        CHECK_MESSAGE(memcmp(world[r].w, world[0].w, sizeof world[0].w) == 0,
                      "rank %d of %d has other parameters", r, ranks);
    }
    for (int s = 0; s < STEPS; s++) CHECK_NEAR(global_loss(world, s), global_loss(&alone, s), 1e-5);
    for (size_t i = 0; i < alone.parameters; i++) CHECK_NEAR(world[0].w[i], alone.w[i], 1e-4);
    CHECK_MESSAGE(global_loss(world, STEPS - 1) < global_loss(world, 0), "it doesn't learn");
}

static void any_ranks_train_like_one(void)
{
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++) compare_with_one_rank(ranks, MAX_BATCH, 0);
}

static void ranks_without_samples_take_part(void)
{
    compare_with_one_rank(5, 3, 0);
}

static void any_bucket_size_gives_the_same(void)
{
    static float first[MAX_PARAMETERS];
    compare_with_one_rank(2, 8, 1);
    memcpy(first, world[0].w, sizeof first);
    compare_with_one_rank(2, 8, 200);
    CHECK(memcmp(first, world[0].w, sizeof first) == 0); /* two addends: no order to differ in */
}

static void a_rank_that_leaves_is_named(void)
{
    rank_job like;
    memset(&like, 0, sizeof like);
    like.world = 3;
    like.batch = 9;
    like.leaves_at = 4;
    like.lr = 0.1f;
    run_world(world, &like);
    CHECK_INT(world[2].status, DML_OK);
    for (int r = 0; r < 2; r++) {
        CHECK(world[r].status != DML_OK);
        CHECK_CONTAINS(world[r].error, "rank 2");
    }
}

int main(void)
{
    RUN(any_ranks_train_like_one);
    RUN(ranks_without_samples_take_part);
    RUN(any_bucket_size_gives_the_same);
    RUN(a_rank_that_leaves_is_named);
    return test_report("dist/all_reduce_sync");
}
