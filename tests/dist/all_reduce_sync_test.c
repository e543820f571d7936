/* Ranks are threads of this process, each with a context and a communicator of its own, and compared with a
   trainer that knows no strategy. */
#include "dist/all_reduce_sync.h"
#include "dist/buckets.h"

#include "../comm/ranks.h"
#include "../graph/backends.h"
#include "dist/compress_sum.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_norm.h"
#include "ops/op_shape.h"
#include "graph/weights.h"
#include "train/checkpoint.h"
#include "train/parameter_group.h"

enum { MAX_RANKS = 5, IN = 6, CLASSES = 3, STEPS = 12, MAX_STEPS = 50, MAX_BATCH = 23 };
enum { MAX_PARAMETERS = 8192 };

/* How a global batch becomes a gradient. */
typedef enum way {
    IN_STEPS,   /* dml_trainer_step */
    IN_PIECES,  /* two backwards, the first with DML_MORE */
    EACH_PIECE, /* two backwards, each combined */
} way;

typedef enum stray { NO_STRAY, STRAY_BACKWARD, STRAY_ADVANCE, STRAY_RATE } stray;

/* What a rank is to do, and what came of it. */
typedef struct rank_job {
    int rank, world; /* world 0: alone, without a strategy */
    int batch;       /* global */
    int steps;
    size_t bucket_bytes;
    float lr;
    way way;
    bool uneven;     /* ranks get very different shares, the first few of a small batch none */
    bool frozen;     /* the first layer's weight */
    double clip;     /* the gradient's largest norm; 0: any */
    bool rich;       /* another optimizer, and all that a trainer can do to an update */
    int more_layers; /* small ones */
    bool differ;     /* ranks are given other optimizers */
    int other_model; /* of the last rank, all else the same: 1 a parameter's name, 2 which of two is frozen, 3
                        a scale, 4 clipping, 5 the schedule, 6 a wider layer, 7 buckets, 8 which is sparse,
                        9 which of two batch norms is over all ranks */
    int own_steps;   /* that rank 0 trained before the strategy was attached; others train others */
    int leaves_at;   /* this step; -1: never */
    stray stray;     /* what the last rank alone does before step 2 */
    int sabotage; /* every second step fails on all ranks at this call of the strategy, counted from begin */
    bool refused; /* rank 1 tries each step with bad input first */
    int requests; /* of the communicator; 0: the usual */
    bool norms;   /* the model has batch norms over all ranks */
    bool all_empty; /* every step is tried first with no sample on any rank */
    /* results */
    float loss[MAX_STEPS]; /* the mean of this rank's samples */
    int rows;
    size_t parameters, trained;
    float w[MAX_PARAMETERS], velocity[MAX_PARAMETERS];
    uint64_t steps_taken, skipped, seed;
    char note[16];
    dml_status status;
    char error[512];
} rank_job;

static void make_batch(int step, int batch, float *x, int32_t *t)
{
    unsigned state = 77u + (unsigned)step;
    test_fill(&state, x, (size_t)(batch * IN));
    for (int i = 0; i < batch; i++) t[i] = x[i * IN] > 0.3f ? 2 : x[i * IN + 1] > 0 ? 1 : 0;
}

/* Where the share of `rank` begins among `rows` samples. */
static int first_row(const rank_job *job, int rows, int rank)
{
    const int world = job->world ? job->world : 1;
    if (job->uneven) return rows * rank * (rank + 1) / (world * (world + 1));
    return rank * (rows / world) + (rank < rows % world ? rank : rows % world);
}

static dml_node *build_loss(dml_context *context, const rank_job *job)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *t = dml_input(graph, "t", DML_I32);
    dml_node *h = dml_tanh(dml_dense(x, job->more_layers ? 4 : 16));
    const bool apart = job->other_model == 9 && job->rank == job->world - 1;
    const dml_batch_norm_options all_ranks = { .all_ranks = true, .momentum = 0.3f };
    const dml_batch_norm_options second = { .all_ranks = !apart, .momentum = 0.3f };
    if (job->norms) { /* by channels of lines, and, behind a relu, by units */
        h = dml_batch_norm(dml_reshape(h, dml_shape_of(4, 4)), &all_ranks);
        h = dml_relu(dml_batch_norm(dml_dense(dml_flatten(dml_relu(h)), 300), &second));
        h = dml_dense(h, 3);
    }
    dml_node *first = h;
    for (int i = 0; i < job->more_layers; i++) h = dml_add(h, dml_tanh(dml_dense(first, 4)));
    const bool wide = job->other_model == 6 && job->rank == job->world - 1;
    if (!job->more_layers) h = dml_relu(dml_dense(h, wide ? 17 : 16));
    dml_node *loss = dml_softmax_cross_entropy(dml_dense(h, CLASSES), t);
    if (job->frozen) CHECK_INT(dml_parameter_train(dml_graph_find(graph, "dense_1.weight"), false), DML_OK);
    return loss;
}

/* ---- a strategy around the strategy, whose calls fail on command ---- */

typedef struct saboteur {
    dml_sync inner;
    int calls, fail_at; /* 0: never */
} saboteur;

static dml_status sabotage(saboteur *s, dml_trainer *trainer)
{
    return ++s->calls == s->fail_at ? dml_trainer_fail(trainer, DML_ERROR_DEVICE, "sabotage") : DML_OK;
}
static dml_status saboteur_start(void *state, dml_trainer *trainer)
{
    saboteur *s = (saboteur *)state;
    return s->inner.start(s->inner.state, trainer);
}
static dml_status saboteur_begin(void *state, dml_trainer *trainer, double samples)
{
    saboteur *s = (saboteur *)state;
    s->calls = 0;
    const dml_status status = s->inner.begin(s->inner.state, trainer, samples);
    return status == DML_OK ? sabotage(s, trainer) : status;
}
static dml_status saboteur_ready(void *state, dml_trainer *trainer, size_t begin, size_t end)
{
    saboteur *s = (saboteur *)state;
    const dml_status status = s->inner.ready(s->inner.state, trainer, begin, end);
    return status == DML_OK ? sabotage(s, trainer) : status;
}
static dml_status saboteur_finish(void *state, dml_trainer *trainer, double *samples)
{
    saboteur *s = (saboteur *)state;
    const dml_status status = sabotage(s, trainer);
    return status == DML_OK ? s->inner.finish(s->inner.state, trainer, samples) : status;
}
static dml_status saboteur_all_reduce(void *state, dml_trainer *trainer, double *values, size_t count)
{
    saboteur *s = (saboteur *)state;
    return s->inner.all_reduce(s->inner.state, trainer, values, count);
}
static void saboteur_failed(void *state, dml_trainer *trainer)
{
    saboteur *s = (saboteur *)state;
    s->inner.failed(s->inner.state, trainer);
}
static void saboteur_destroy(void *state, dml_trainer *trainer)
{
    saboteur *s = (saboteur *)state;
    s->inner.destroy(s->inner.state, trainer);
}
static dml_sync with_sabotage(saboteur *s, dml_sync inner)
{
    memset(s, 0, sizeof *s);
    s->inner = inner;
    return (dml_sync){ .state = s,
                       .start = saboteur_start,
                       .begin = saboteur_begin,
                       .ready = saboteur_ready,
                       .finish = saboteur_finish,
                       .failed = saboteur_failed,
                       .destroy = saboteur_destroy,
                       .ranks = inner.ranks,
                       .rank = inner.rank,
                       .all_reduce = saboteur_all_reduce };
}

/* ---- a rank ---- */

static void clip(dml_trainer *trainer, double most)
{
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    float *g = dml_trainer_get(trainer, DML_GRADIENTS, 0, n);
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)g[i] * g[i];
    if (squares <= most * most) return;
    for (size_t i = 0; i < n; i++) g[i] = (float)(g[i] * most / sqrt(squares));
    CHECK_INT(dml_trainer_put(trainer, DML_GRADIENTS, 0, n), DML_OK);
}

/* This rank's share of rows [from, to) of the global batch. */
static dml_status backward(rank_job *job, dml_trainer *trainer, int step, int from, int to, int flags)
{
    float x[MAX_BATCH * IN];
    int32_t t[MAX_BATCH];
    make_batch(step, job->batch, x, t);
    const int begin = from + first_row(job, to - from, job->rank);
    job->rows = from + first_row(job, to - from, job->rank + 1) - begin;
    float *loss = &job->loss[step % MAX_STEPS];
    if (flags < 0) return dml_trainer_step(trainer, job->rows, DML_INPUTS(x + begin * IN, t + begin), loss);
    return dml_trainer_backward(trainer, job->rows, DML_INPUTS(x + begin * IN, t + begin), flags, loss);
}

static dml_status one_step(rank_job *job, dml_trainer *trainer, int step)
{
    const int whole = job->batch, part = whole / 3;
    if (job->way == IN_STEPS && !job->clip) return backward(job, trainer, step, 0, whole, -1);
    dml_status status = DML_OK;
    if (job->way != IN_STEPS)
        status = backward(job, trainer, step, 0, part, DML_ADD | (job->way == IN_PIECES ? DML_MORE : 0));
    if (status == DML_OK)
        status = backward(job, trainer, step, job->way == IN_STEPS ? 0 : part, whole, DML_ADD);
    if (status != DML_OK) return status;
    if (job->clip) clip(trainer, job->clip);
    return dml_trainer_update(trainer);
}

/* What goes wrong before a step, on all ranks in the same way. */
static void one_step_that_fails(rank_job *job, dml_trainer *trainer, int step, saboteur *s)
{
    static const float zeros[IN];
    static const int32_t bad[] = { CLASSES };
    dml_context *context = dml_trainer_context(trainer);
    if (job->refused && job->rank == 1) {
        CHECK_INT(dml_trainer_step(trainer, 1, DML_INPUTS(zeros, bad), NULL), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "it must be in 0 .. 2");
        dml_clear_error(context);
    }
    if (job->all_empty) {
        CHECK_INT(dml_trainer_step(trainer, 0, NULL, 0, NULL), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "a global batch of 0 samples");
        dml_clear_error(context);
    }
    if (job->sabotage) {
        s->fail_at = job->sabotage;
        CHECK_INT(one_step(job, trainer, step), DML_ERROR_DEVICE);
        CHECK_CONTAINS(dml_error(context), "sabotage");
        s->fail_at = 0;
        dml_clear_error(context);
    }
}

static void keep_results(rank_job *job, dml_trainer *trainer)
{
    job->parameters = dml_trainer_count(trainer, DML_PARAMETERS);
    job->trained = dml_trainer_count(trainer, DML_GRADIENTS);
    CHECK(job->parameters <= MAX_PARAMETERS);
    memcpy(job->w, dml_trainer_get(trainer, DML_PARAMETERS, 0, job->parameters),
           job->parameters * sizeof(float));
    memcpy(job->velocity, dml_trainer_get(trainer, DML_OPTIMIZER_STATE, 0, job->trained),
           job->trained * sizeof(float));
    job->steps_taken = dml_trainer_steps(trainer);
    job->skipped = dml_trainer_skipped(trainer);
    const char *note = dml_trainer_note(trainer, "best");
    snprintf(job->note, sizeof job->note, "%s", note ? note : "");
    job->seed = dml_trainer_get_run(trainer).seed;
}

/* Steps that each rank takes before there is a strategy: other ones on other ranks. */
static void train_before(rank_job *job, dml_trainer *trainer)
{
    float x[MAX_BATCH * IN];
    int32_t t[MAX_BATCH];
    for (int s = 0; job->own_steps && s < job->own_steps + job->rank; s++) {
        make_batch(1000 + s + 10 * job->rank, 5, x, t);
        CHECK_INT(dml_trainer_step(trainer, 5, DML_INPUTS(x, t), NULL), DML_OK);
    }
}

static dml_context *open_rank(const rank_job *job);

static void train(rank_job *job, dml_comm *comm)
{
    dml_context *context = open_rank(job);
    saboteur s;
    dml_trainer_options trainer_options;
    memset(&trainer_options, 0, sizeof trainer_options);
    trainer_options.batch = MAX_BATCH;
    trainer_options.optimizer = dml_sgd(job->lr, 0.9f);
    if (job->differ) {
        const float rank = (float)job->rank;
        const dml_optimizer mine = { .kind = DML_SGD,
                                     .lr = job->lr / (1 + rank),
                                     .momentum = 0.9f - 0.1f * rank,
                                     .weight_decay = 0.01f * (1 + rank),
                                     .nesterov = job->rank == 0 };
        trainer_options.optimizer = mine;
    }
    dml_node *loss = build_loss(context, job);
    if (job->rich) {
        trainer_options.optimizer = dml_adamw(0, 0.5f);
        trainer_options.optimizer.epsilon = 0.05f;
        trainer_options.schedule = dml_schedule_warm_up(dml_schedule_cosine(job->lr, 20, 0), 3, 0.1f);
        trainer_options.clip_norm = 0.2f;
        trainer_options.clip_value = 0.1f;
        trainer_options.average = 0.5f;
        dml_graph_decay_matrices_only(dml_node_graph(loss));
    }
    if (loss && job->other_model) { /* parameters that no step needs */
        const int other = job->rank == job->world - 1 ? job->other_model : 0;
        dml_node *c = dml_parameter(dml_node_graph(loss), other == 1 ? "a" : "b", dml_init_constant(0), 2);
        dml_node *d = dml_parameter(dml_node_graph(loss), "d", dml_init_constant(1), 2);
        if (job->other_model == 2) dml_parameter_train(other ? c : d, false);
        if (other == 3) dml_parameter_set_lr_scale(d, 0.5f);
        if (other == 4) trainer_options.clip_norm = 3;
        if (other == 8) dml_parameter_set_sparse(d, true);
        if (other == 5) trainer_options.schedule = dml_schedule_cosine(job->lr, 20, 0);
    }
    dml_trainer *trainer = dml_trainer_create(loss, &trainer_options);
    train_before(job, trainer);
    if (job->differ) {
        dml_trainer_run run = dml_trainer_get_run(trainer);
        run.skipped = 3 + (uint64_t)job->rank;
        CHECK_INT(dml_trainer_set_run(trainer, &run), DML_OK);
        CHECK_INT(dml_trainer_set_note(trainer, "best", job->rank ? "another" : "rank 0's"), DML_OK);
    }
    if (comm) {
        dml_all_reduce_sync_options options;
        memset(&options, 0, sizeof options);
        const int other = job->rank == job->world - 1 ? job->other_model : 0;
        options.bucket_bytes = job->bucket_bytes + (other == 7);
        job->status = dml_trainer_sync(trainer, with_sabotage(&s, dml_all_reduce_sync(comm, &options)));
    }
    for (int step = 0; step < job->steps && step != job->leaves_at && job->status == DML_OK; step++) {
        if (comm) one_step_that_fails(job, trainer, step, &s);
        const stray what = step == 2 && job->rank == job->world - 1 ? job->stray : NO_STRAY;
        if (what == STRAY_ADVANCE) CHECK_INT(dml_trainer_advance(trainer), DML_OK);
        if (what == STRAY_BACKWARD) CHECK_INT(backward(job, trainer, step, 0, job->batch, 0), DML_OK);
        if (what == STRAY_RATE) dml_trainer_set_lr(trainer, 2 * dml_trainer_lr(trainer));
        job->status = one_step(job, trainer, step);
    }
    snprintf(job->error, sizeof job->error, "%s", dml_error(context));
    if (job->status == DML_OK) keep_results(job, trainer);
    dml_close(context);
}

static void run_rank(test_rank *me)
{
    train((rank_job *)me->user + me->rank, me->comm);
}

/* ---- where ranks run ---- */

static dml_context *open_rank(const rank_job *job)
{
    dml_options options;
    memset(&options, 0, sizeof options);
    options.threads = 1;
    options.seed = 5 + (uint64_t)job->rank; /* other initial values on each rank: rank 0's must win */
    return open_here(&options);
}

/* ---- worlds ---- */

static void run_world(rank_job *jobs, const rank_job *like)
{
    test_rank ranks[MAX_RANKS];
    for (int r = 0; r < like->world; r++) {
        jobs[r] = *like;
        jobs[r].rank = r;
        if (like->leaves_at >= 0 && r != like->world - 1) jobs[r].leaves_at = -1;
    }
    ranks_prepare(ranks, like->world, 30, run_rank, jobs);
    for (int r = 0; r < like->world; r++) ranks[r].options.max_requests = like->requests;
    ranks_run(ranks, like->world);
}

static rank_job alone;
static rank_job world[MAX_RANKS];

static rank_job usual(int ranks)
{
    rank_job like;
    memset(&like, 0, sizeof like);
    backend_here = find_backend("cpu");
    like.world = ranks;
    like.batch = MAX_BATCH;
    like.steps = STEPS;
    like.lr = 0.1f;
    like.leaves_at = -1;
    return like;
}

/* The mean over the global batch of a step's loss. */
static double global_loss(const rank_job *jobs, int ranks, int step)
{
    double sum = 0;
    for (int r = 0; r < ranks; r++) sum += (double)jobs[r].loss[step] * jobs[r].rows;
    return sum / jobs->batch;
}

/* Only the worst of many wrong elements is shown. */
static void check_vector(const char *name, int ranks, const float *got, const float *want, size_t count,
                         double tolerance)
{
    size_t worst = 0;
    for (size_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= fabs(got[worst] - want[worst]))) worst = i;
    if (count)
        CHECK_MESSAGE(fabs(got[worst] - want[worst]) <= tolerance, "%d ranks: %s[%zu] is %.9g, not %.9g",
                      ranks, name, worst, (double)got[worst], (double)want[worst]);
}

/* The same on `like->world` ranks and on one without a strategy, which gets each global batch whole. */
static void compare_with_one(const rank_job *like, double tolerance)
{
    alone = *like;
    alone.world = 0;
    alone.way = IN_STEPS;
    train(&alone, NULL);
    run_world(world, like);
    CHECK_STRING(alone.error, "");
    for (int r = 0; r < like->world; r++) {
        CHECK_STRING(world[r].error, "");
        CHECK_INT(world[r].parameters, alone.parameters);
        CHECK_INT(world[r].trained, alone.trained);
        CHECK_INT(world[r].steps_taken, alone.steps_taken);
        CHECK_INT(world[r].skipped, alone.skipped);
        CHECK_STRING(world[r].note, alone.note);
        CHECK_INT(world[r].seed, alone.seed);
        CHECK_MESSAGE(memcmp(world[r].w, world[0].w, sizeof world[0].w) == 0,
                      "rank %d of %d has other parameters", r, like->world);
        CHECK_MESSAGE(memcmp(world[r].velocity, world[0].velocity, sizeof world[0].velocity) == 0,
                      "rank %d of %d has another velocity", r, like->world);
    }
    check_vector("w", like->world, world[0].w, alone.w, alone.parameters, tolerance);
    check_vector("velocity", like->world, world[0].velocity, alone.velocity, alone.trained, 10 * tolerance);
    for (int s = 0; like->way == IN_STEPS && s < like->steps && s < MAX_STEPS; s++)
        CHECK_NEAR(global_loss(world, like->world, s), alone.loss[s], 2e-5);
}

/* ---- the tests ---- */

static void any_ranks_train_like_one_without(void)
{
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
        rank_job like = usual(ranks);
        compare_with_one(&like, 1e-5);
        CHECK_MESSAGE(alone.loss[STEPS - 1] < alone.loss[0], "it doesn't learn");
        like.uneven = true;
        compare_with_one(&like, 1e-5);
    }
}

static void losses_over_fifty_steps(void)
{
    for (int ranks = 2; ranks <= 4; ranks++) {
        rank_job like = usual(ranks);
        double worst = 0;
        like.steps = MAX_STEPS;
        alone = like;
        alone.world = 0;
        train(&alone, NULL);
        run_world(world, &like);
        for (int s = 0; s < MAX_STEPS; s++) {
            const double error = fabs(global_loss(world, ranks, s) / alone.loss[s] - 1);
            if (!(error <= worst)) worst = error;
        }
        CHECK_MESSAGE(worst <= 1e-5, "%d ranks: losses are up to %.2g away", ranks, worst);
        CHECK(alone.loss[MAX_STEPS - 1] < 0.8f * alone.loss[0]);
    }
}

/* Their gradients come through the host's copies. */
static void ranks_on_a_device_with_memory_of_its_own(void)
{
#ifdef HOST_C
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        rank_job like = usual(ranks);
        backend_here = host_c_for_threads();
        like.batch = 5;
        like.steps = 2;
        like.bucket_bytes = 200;
        like.own_steps = 1;
        like.frozen = true;
        like.uneven = true;
        like.way = ranks == 3 ? IN_PIECES : EACH_PIECE;
        like.clip = 0.5;
        compare_with_one(&like, 1e-5);
        like.norms = true;
        like.way = IN_STEPS;
        like.batch = ranks == 3 ? 2 : 5;
        compare_with_one(&like, 2e-5);
    }
#else
    SKIP("no shared kernels as host C here");
#endif
}

static void ranks_without_samples_take_part(void)
{
    rank_job like = usual(5);
    like.batch = 3;
    compare_with_one(&like, 1e-5);
    like.bucket_bytes = 1; /* what they send is cut as the others' is */
    compare_with_one(&like, 1e-5);
    like.batch = 2;
    like.uneven = true;
    compare_with_one(&like, 1e-5);
}

static void any_bucket_size_gives_the_same(void)
{
    static const size_t sizes[] = { 1, 3, 4, 200, 1000, 1 << 20 };
    static float first[MAX_PARAMETERS];
    for (int i = 0; i < 6; i++) {
        rank_job like = usual(2);
        like.batch = 8;
        like.bucket_bytes = sizes[i];
        compare_with_one(&like, 1e-5);
        if (i == 0) memcpy(first, world[0].w, sizeof first);
        CHECK(memcmp(first, world[0].w, sizeof first) == 0); /* two addends: no order to differ in */
    }
}

/* How many there are, seen by how many requests suffice: one more, for the number of samples. */
static void a_small_model_is_one_bucket(void)
{
    rank_job like = usual(2);
    like.requests = 2;
    compare_with_one(&like, 1e-5);
    like.bucket_bytes = 4 * 16 * 17; /* the last two layers make one, the first another */
    run_world(world, &like);
    CHECK_INT(world[1].status, DML_ERROR_STATE);
    CHECK_CONTAINS(world[1].error, "all 2 requests were out");
    like.requests = 3;
    compare_with_one(&like, 1e-5);
}

/* Two hosts, 50 us and 1 Gbit/s: 9 times the latency is 56 KB, of which each of two ranks' halves must be as
   large. */
static void buckets_follow_the_links(void)
{
    const dml__price_link link = { .latency = 25e-6, .bandwidth = 1.25e8, .overhead = 12.5e-6 };
    CHECK_NEAR(dml__bucket_elements(&link, true, 2, 4, 10000000), 9 * 50e-6 * 1.25e8 * 2 / 4, 1);
    CHECK_NEAR(dml__bucket_elements(&link, true, 2, 2, 10000000), 9 * 50e-6 * 1.25e8 * 2 / 2, 1);
    CHECK_NEAR(dml__bucket_elements(&link, true, 8, 4, 10000000), 3 * 9 * 50e-6 * 1.25e8 * 8 / 7 / 4, 1);
    CHECK_INT(dml__bucket_elements(&link, true, 2, 4, 80000), 10000); /* eight of them */
    CHECK_INT(dml__bucket_elements(&link, true, 2, 4, 8000), 4096);   /* but not of nothing */
    CHECK_INT(dml__bucket_elements(&link, true, 2, 4, 100), 100);
    CHECK_INT(dml__bucket_elements(&link, false, 2, 4, 10000000), 1 << 18);
    CHECK_INT(dml__bucket_elements(&link, true, 1, 4, 10000000), 1 << 18);
}

/* In a step each range of w follows its gradient when that has come; the same bits as in an update of all. */
static void ranges_follow_as_they_come(void)
{
    static float first[MAX_PARAMETERS], velocity[MAX_PARAMETERS];
    rank_job like = usual(2);
    like.bucket_bytes = 200;
    like.uneven = true;
    run_world(world, &like);
    CHECK_STRING(world[0].error, "");
    memcpy(first, world[0].w, sizeof first);
    memcpy(velocity, world[0].velocity, sizeof velocity);
    like.clip = 1e9; /* by hand, between backward and update; it is never so large */
    run_world(world, &like);
    CHECK_STRING(world[0].error, "");
    CHECK(memcmp(first, world[0].w, sizeof first) == 0);
    CHECK(memcmp(velocity, world[0].velocity, sizeof velocity) == 0);
}

static void more_ranges_than_buckets(void)
{
    rank_job like = usual(2);
    like.more_layers = 70;
    like.bucket_bytes = 1;
    like.steps = 3;
    like.lr = 1e-3f;
    compare_with_one(&like, 1e-5);
    CHECK(alone.trained > 70 * 20);
}

static void rank_0_brings_what_it_trained_before(void)
{
    for (int ranks = 1; ranks <= 3; ranks++) {
        rank_job like = usual(ranks);
        like.own_steps = 3;
        like.frozen = true;
        like.steps = 0; /* what is broadcast, to the bit */
        compare_with_one(&like, 0);
        CHECK_INT(world[ranks - 1].steps_taken, 3);
        CHECK(world[ranks - 1].velocity[0] != 0);
        like.steps = STEPS;
        compare_with_one(&like, 1e-5);
    }
}

/* As after a checkpoint that only rank 0 has loaded. */
static void rank_0_brings_its_optimizer(void)
{
    rank_job like = usual(3);
    like.differ = true;
    compare_with_one(&like, 1e-5);
}

static void frozen_parameters_stay(void)
{
    rank_job like = usual(3);
    like.frozen = true;
    compare_with_one(&like, 1e-5);
    CHECK_INT(alone.parameters - alone.trained, 16 * IN);
}

/* The statistics, the gradients that flow through them and the running ones are those of the global batch. */
static void batch_norms_over_all_ranks(void)
{
    for (int ranks = 1; ranks <= MAX_RANKS; ranks += ranks == 3 ? 2 : 1) {
        rank_job like = usual(ranks);
        like.norms = true;
        like.steps = 6;
        like.lr = 0.01f;
        compare_with_one(&like, 2e-5);
        like.uneven = true;
        like.bucket_bytes = 100;
        compare_with_one(&like, 2e-5);
        like.batch = 4; /* some ranks get nothing */
        compare_with_one(&like, 2e-5);
    }
}

static void batches_in_pieces(void)
{
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int v = 0; v < 8; v++) {
            rank_job like = usual(ranks);
            like.way = v % 2 ? IN_PIECES : EACH_PIECE;
            like.uneven = v & 2;
            like.clip = v & 4 ? 0.3 : 0;
            like.bucket_bytes = 100;
            like.steps = 6;
            if (v == 3) like.batch = 4; /* some ranks get nothing of some pieces */
            compare_with_one(&like, 1e-5);
        }
    }
}

static void clipped_gradients(void)
{
    static float first[MAX_PARAMETERS];
    for (int ranks = 1; ranks <= 3; ranks++) {
        rank_job like = usual(ranks);
        like.uneven = true;
        like.clip = ranks == 1 ? 100 : 0.2;
        compare_with_one(&like, 1e-5);
        if (ranks == 1) memcpy(first, alone.w, sizeof first);
    }
    CHECK(memcmp(first, alone.w, sizeof first) != 0); /* it made a difference */
}

static void updates_with_all_they_can_do(void)
{
    for (int ranks = 2; ranks <= 3; ranks++) {
        rank_job like = usual(ranks);
        like.rich = true;
        like.uneven = true;
        like.way = ranks == 2 ? IN_STEPS : IN_PIECES;
        compare_with_one(&like, 1e-5);
    }
}

/* Nothing is sent before a rank's input is known to be good, so the step can be made again, for ever. */
static void refused_input_can_be_tried_again(void)
{
    rank_job like = usual(3);
    like.steps = 300;
    like.refused = true;
    like.batch = 7;
    like.bucket_bytes = 1;
    like.lr = 0.01f;
    compare_with_one(&like, 1e-4);
}

static void a_global_batch_of_nothing(void)
{
    rank_job like = usual(3);
    like.all_empty = true;
    like.steps = 100;
    like.bucket_bytes = 1;
    like.lr = 0.01f;
    compare_with_one(&like, 1e-4);
}

/* Whatever was on its way is taken back before anybody writes g again, and its requests are given back. */
static void steps_that_fail_half_way(void)
{
    for (int call = 1; call <= 5; call++) { /* begin, three times ready, finish */
        rank_job like = usual(3);
        like.sabotage = call;
        like.steps = 100;
        like.batch = 7;
        like.bucket_bytes = 1;
        like.lr = 0.01f;
        like.way = call % 2 ? IN_PIECES : IN_STEPS;
        compare_with_one(&like, 1e-4);
    }
}

static void a_rank_that_leaves_is_named(void)
{
    rank_job like = usual(3);
    like.batch = 9;
    like.leaves_at = 4;
    run_world(world, &like);
    CHECK_INT(world[2].status, DML_OK);
    for (int r = 0; r < 2; r++) {
        CHECK(world[r].status != DML_OK);
        CHECK_CONTAINS(world[r].error, "rank 2");
    }
}

/* A call that one rank alone makes would else leave ranks with other weights, and no word of it. */
static void ranks_at_other_steps_are_told(void)
{
    for (int ranks = 2; ranks <= 3; ranks++)
        for (int kind = STRAY_BACKWARD; kind <= STRAY_RATE; kind++) {
            rank_job like = usual(ranks);
            like.stray = (stray)kind;
            run_world(world, &like);
            for (int r = 0; r < ranks; r++) {
                CHECK_MESSAGE(world[r].status == DML_ERROR_MISMATCH, "rank %d of %d: status %d, %s", r, ranks,
                              (int)world[r].status, world[r].error);
                CHECK_CONTAINS(world[r].error,
                               kind == STRAY_RATE ? "this rank's learning rate is" : "and others aren't");
            }
        }
}

/* Whose numbers would else be exchanged with those of other parameters. */
static void other_models_are_refused(void)
{
    static const char *const differs[] = {
        "",
        "the parameters' names or shapes;",
        "which parameters are frozen, sparse or used, or their scales;",
        "which parameters are frozen, sparse or used, or their scales;",
        "how the gradient is clipped;",
        "the learning rate's schedule;",
        "the number of parameters, the parameters' names or shapes;",
        "the strategy's bucket_bytes (1, where rank 0 has 0);",
        "which parameters are frozen, sparse or used, or their scales;",
        "which batch norms are over all ranks;",
    };
    for (int other = 1; other <= 9; other++) {
        char want[128];
        const int ranks = 2 + other % 2;
        rank_job like = usual(ranks);
        like.other_model = other;
        like.norms = other == 6 || other == 9;
        run_world(world, &like);
        for (int r = 0; r < ranks; r++) {
            CHECK_INT(world[r].status, DML_ERROR_MISMATCH);
            snprintf(want, sizeof want, "rank %d differs from rank 0 in %s", ranks - 1, differs[other]);
            CHECK_CONTAINS(world[r].error, want);
        }
    }
}

int main(void)
{
    RUN(other_models_are_refused);
    RUN(any_ranks_train_like_one_without);
    RUN(losses_over_fifty_steps);
    RUN(ranks_on_a_device_with_memory_of_its_own);
    RUN(ranks_without_samples_take_part);
    RUN(any_bucket_size_gives_the_same);
    RUN(a_small_model_is_one_bucket);
    RUN(buckets_follow_the_links);
    RUN(ranges_follow_as_they_come);
    RUN(more_ranges_than_buckets);
    RUN(rank_0_brings_what_it_trained_before);
    RUN(rank_0_brings_its_optimizer);
    RUN(frozen_parameters_stay);
    RUN(batch_norms_over_all_ranks);
    RUN(batches_in_pieces);
    RUN(clipped_gradients);
    RUN(updates_with_all_they_can_do);
    RUN(refused_input_can_be_tried_again);
    RUN(a_global_batch_of_nothing);
    RUN(steps_that_fail_half_way);
    RUN(a_rank_that_leaves_is_named);
    RUN(ranks_at_other_steps_are_told);
    return test_report("dist/all_reduce_sync");
}
