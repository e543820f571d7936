/* Ranks are threads of this process, and compared with one trainer for each of them that knows no strategy,
   whose parameters are averaged here, in float64. */
#include "dist/local_sgd.h"

#include "../comm/ranks.h"
#include "../graph/backends.h"
#include "dist/all_reduce_sync.h"
#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_norm.h"
#include "train/checkpoint.h"

enum { MOST_RANKS = 4, IN = 5, CLASSES = 3, MOST_BATCH = 23, MOST_PARAMETERS = 512, MOST_STATES = 3 };
enum { NEVER = 1000 };

typedef enum strategy { LOCAL_SGD, SIMU_PARALLEL, ALL_REDUCE } strategy;

/* What a rank is to do, and what came of it. */
typedef struct rank_job {
    int rank, world;
    strategy strategy;
    dml_local_sgd_options options;
    dml_optimizer optimizer;
    int steps, batch; /* of all ranks */
    bool uneven;      /* of each second step ranks get very different shares, some of a small batch none */
    bool norms;       /* the model has a batch norm */
    bool over_ranks;  /* over all ranks */
    bool frozen;      /* the first layer's weight */
    float average;    /* the trainer's moving average */
    bool pieces;      /* each step's gradient comes in two pieces */
    bool at_the_end;  /* dml_local_sgd_average after the last step, twice */
    int own_steps;    /* that rank 0 took before the strategy was attached */
    uint64_t own_skipped; /* and that it skipped */
    bool loads; /* the own steps come from a checkpoint, under the strategy and after a step with it */
    int stray;  /* steps more on the last rank */
    bool skips; /* the last rank skips its second step for its loss scale */
    int unlike; /* what the last rank has of its own (unlike_ranks_are_refused); 0: nothing */
    /* results */
    size_t parameters, trained;
    int vectors;
    float w[MOST_PARAMETERS], state[MOST_STATES][MOST_PARAMETERS];
    uint64_t steps_taken;
    dml_status status;
    char error[512];
} rank_job;

static rank_job world[MOST_RANKS], emulated[MOST_RANKS];

static void make_batch(int step, int batch, float *x, int32_t *t)
{
    unsigned state = 77u + (unsigned)step;
    test_fill(&state, x, (size_t)(batch * IN));
    for (int i = 0; i < batch; i++) t[i] = x[i * IN] > 0.3f ? 2 : x[i * IN + 1] > 0 ? 1 : 0;
}

/* Where the share of `rank` begins. */
static int first_row(const rank_job *job, int step, int rank)
{
    const int rows = job->batch, ranks = job->world;
    return job->uneven && step % 2 == 0 ? rows * rank * (rank + 1) / (ranks * (ranks + 1))
                                        : rows * rank / ranks;
}

static dml_trainer *build(dml_context *context, const rank_job *job)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *t = dml_input(graph, "t", DML_I32);
    dml_node *h = dml_tanh(dml_dense(x, 12));
    const dml_batch_norm_options norm = { .all_ranks = job->over_ranks, .momentum = 0.3f };
    if (job->norms) h = dml_batch_norm(h, &norm);
    h = dml_dense(h, 8);
    dml_node *loss = dml_softmax_cross_entropy(dml_dense(dml_relu(h), CLASSES), t);
    if (job->frozen) CHECK_INT(dml_parameter_train(dml_graph_find(graph, "dense_1.weight"), false), DML_OK);
    const dml_schedule schedule = { .kind = job->unlike == 5 && job->rank ? DML_SCHEDULE_CONSTANT
                                                                          : DML_SCHEDULE_NONE,
                                    .lr = 0.1f };
    return dml_trainer_create(loss, &(dml_trainer_options){ .batch = MOST_BATCH,
                                                            .schedule = schedule,
                                                            .optimizer = job->optimizer,
                                                            .average = job->average,
                                                            .loss_scale = job->skips ? 1024 : 0 });
}

/* This rank's share of a step's batch. A trainer without a strategy takes no step without samples: a rank
   without any is one whose gradient is 0. */
static dml_status step_of(const rank_job *job, dml_trainer *trainer, int step, bool alone)
{
    float x[MOST_BATCH * IN];
    int32_t t[MOST_BATCH];
    make_batch(step, job->batch, x, t);
    const int begin = first_row(job, step, job->rank), rows = first_row(job, step, job->rank + 1) - begin;
    const float *mine = x + begin * IN;
    if (alone && rows == 0) {
        const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
        memset(dml_trainer_get(trainer, DML_GRADIENTS, 0, n), 0, n * sizeof(float));
        dml_trainer_put(trainer, DML_GRADIENTS, 0, n);
        return dml_trainer_update(trainer);
    }
    if (job->skips && step == 1 && job->rank == job->world - 1) {
        dml_status status = dml_trainer_backward(trainer, rows, DML_INPUTS(mine, t + begin), 0, NULL);
        if (status != DML_OK) return status;
        dml_trainer_get(trainer, DML_GRADIENTS, 0, 1)[0] = INFINITY;
        dml_trainer_put(trainer, DML_GRADIENTS, 0, 1);
        return dml_trainer_update(trainer);
    }
    if (!job->pieces || alone) return dml_trainer_step(trainer, rows, DML_INPUTS(mine, t + begin), NULL);
    const int part = rows / 2;
    dml_status status =
        dml_trainer_backward(trainer, part, DML_INPUTS(mine, t + begin), DML_ADD | DML_MORE, NULL);
    if (status == DML_OK)
        status = dml_trainer_backward(trainer, rows - part, DML_INPUTS(mine + part * IN, t + begin + part),
                                      DML_ADD, NULL);
    return status == DML_OK ? dml_trainer_update(trainer) : status;
}

static void keep_results(rank_job *job, dml_trainer *trainer)
{
    job->parameters = dml_trainer_count(trainer, DML_PARAMETERS);
    job->trained = dml_trainer_count(trainer, DML_GRADIENTS);
    job->vectors = dml_trainer_vectors(trainer);
    CHECK(job->parameters <= MOST_PARAMETERS && job->vectors <= DML_OPTIMIZER_STATE + MOST_STATES);
    memcpy(job->w, dml_trainer_get(trainer, DML_PARAMETERS, 0, job->parameters),
           job->parameters * sizeof(float));
    for (int v = DML_OPTIMIZER_STATE; v < job->vectors; v++)
        memcpy(job->state[v - DML_OPTIMIZER_STATE], dml_trainer_get(trainer, v, 0, job->trained),
               job->trained * sizeof(float));
    job->steps_taken = dml_trainer_steps(trainer);
}

static dml_context *open_rank(int rank)
{
    dml_options options;
    memset(&options, 0, sizeof options);
    options.threads = 1;
    options.seed = 5 + (uint64_t)rank; /* other initial values on each rank: rank 0's must win */
    return open_here(&options);
}

/* What rank 0 did before, in the share of a rank that is alone. */
static void train_before(const rank_job *job, dml_trainer *trainer)
{
    rank_job one = *job;
    one.rank = 0;
    one.world = 1;
    one.skips = false;
    for (int step = 0; step < job->own_steps; step++)
        CHECK_INT(step_of(&one, trainer, 100 + step, true), DML_OK);
    dml_trainer_run run = dml_trainer_get_run(trainer);
    run.skipped += job->own_skipped;
    CHECK_INT(dml_trainer_set_run(trainer, &run), DML_OK);
}

static char checkpoint_path[300]; /* which ranks that are threads only read */

static dml_status train(rank_job *job, dml_trainer *trainer, dml_comm *comm)
{
    const dml_sync sync = job->strategy == ALL_REDUCE      ? dml_all_reduce_sync(comm, NULL)
                          : job->strategy == SIMU_PARALLEL ? dml_simu_parallel_sync(comm, &job->options)
                                                           : dml_local_sgd_sync(comm, &job->options);
    const int steps = job->steps + (job->rank == job->world - 1 ? job->stray : 0);
    dml_status status = dml_trainer_sync(trainer, sync);
    if (job->loads && status == DML_OK) status = step_of(job, trainer, 50, false);
    if (job->loads && status == DML_OK) status = dml_trainer_load(trainer, checkpoint_path);
    for (int step = 0; step < steps && status == DML_OK; step++) status = step_of(job, trainer, step, false);
    for (int i = 0; i < 2 && job->at_the_end && status == DML_OK; i++)
        status = dml_local_sgd_average(trainer);
    return status;
}

static void run_rank(test_rank *me)
{
    rank_job *job = (rank_job *)me->user + me->rank;
    dml_context *context = open_rank(job->rank);
    dml_trainer *trainer = build(context, job);
    if (job->rank == 0 && !job->loads) train_before(job, trainer);
    job->status = train(job, trainer, me->comm);
    snprintf(job->error, sizeof job->error, "%s", dml_error(context));
    if (job->status == DML_OK) keep_results(job, trainer);
    dml_close(context);
}

static void make_unlike(rank_job *job)
{
    if (job->unlike == 1) job->options.tau++;
    if (job->unlike == 2) job->options.outer.momentum += 0.25f;
    if (job->unlike == 3) job->options.outer.nesterov = !job->options.outer.nesterov;
    if (job->unlike == 4) job->options.average_state = !job->options.average_state;
}

static void run_world(const rank_job *like)
{
    test_rank ranks[MOST_RANKS];
    for (int r = 0; r < like->world; r++) {
        world[r] = *like;
        world[r].rank = r;
    }
    make_unlike(&world[like->world - 1]);
    ranks_prepare(ranks, like->world, 10, run_rank, world);
#ifdef DML_NO_THREADS /* without locks, ranks of one process don't share memory */
    ranks_run_on(ranks, like->world, "tcp");
#else
    ranks_run_on(ranks, like->world, "local");
#endif
}

/* ---- the same without any strategy ---- */

typedef struct emulation {
    const rank_job *like;
    dml_context *context[MOST_RANKS];
    dml_trainer *trainer[MOST_RANKS];
    double anchor[MOST_PARAMETERS], velocity[MOST_PARAMETERS];
    int rows[MOST_RANKS], steps; /* since the last average */
    double share[MOST_RANKS];    /* of all rows */
} emulation;

static void copy_from_rank_0(emulation *e, int vector)
{
    const size_t n = dml_trainer_count(e->trainer[0], vector);
    const float *from = dml_trainer_get(e->trainer[0], vector, 0, n);
    for (int r = 1; r < e->like->world; r++) {
        memcpy(dml_trainer_get(e->trainer[r], vector, 0, n), from, n * sizeof *from);
        dml_trainer_put(e->trainer[r], vector, 0, n);
    }
}

static void begin_emulation(emulation *e, const rank_job *like)
{
    memset(e, 0, sizeof *e);
    e->like = like;
    for (int r = 0; r < like->world; r++) {
        emulated[r] = *like;
        emulated[r].rank = r;
        e->context[r] = open_rank(r);
        e->trainer[r] = build(e->context[r], &emulated[r]);
        if (r == 0) train_before(like, e->trainer[0]);
        const dml_trainer_run run = dml_trainer_get_run(e->trainer[0]);
        CHECK_INT(dml_trainer_set_run(e->trainer[r], &run), DML_OK);
    }
    for (int v = 0; v < dml_trainer_vectors(e->trainer[0]); v++)
        if (v != DML_GRADIENTS) copy_from_rank_0(e, v);
    const size_t n = dml_trainer_count(e->trainer[0], DML_GRADIENTS);
    const float *w = dml_trainer_get(e->trainer[0], DML_PARAMETERS, 0, n);
    for (size_t i = 0; i < n; i++) e->anchor[i] = (double)w[i];
}

static void average_vector(emulation *e, int vector, size_t begin, size_t end, bool outer)
{
    const dml_optimizer *o = &e->like->options.outer;
    float *x[MOST_RANKS];
    for (int r = 0; r < e->like->world; r++) x[r] = dml_trainer_get(e->trainer[r], vector, begin, end);
    for (size_t i = 0; i < end - begin; i++) {
        double mean = 0;
        for (int r = 0; r < e->like->world; r++) mean += e->share[r] * (double)x[r][i];
        if (outer) { /* SGD with momentum, as PyTorch has it */
            const double change = e->anchor[i] - mean;
            e->velocity[i] = (double)o->momentum * e->velocity[i] + change;
            e->anchor[i] -= (double)o->lr *
                            (o->nesterov ? change + (double)o->momentum * e->velocity[i] : e->velocity[i]);
            mean = e->anchor[i];
        }
        for (int r = 0; r < e->like->world; r++) x[r][i] = (float)mean;
    }
    for (int r = 0; r < e->like->world; r++) dml_trainer_put(e->trainer[r], vector, begin, end);
}

static void average_all(emulation *e)
{
    const size_t all = dml_trainer_count(e->trainer[0], DML_PARAMETERS),
                 trained = dml_trainer_count(e->trainer[0], DML_GRADIENTS);
    const int vectors = dml_trainer_vectors(e->trainer[0]),
              states = dml_optimizer_states(&e->like->optimizer);
    if (!e->steps) return;
    for (int r = 0; r < e->like->world; r++) {
        e->share[r] = (double)e->rows[r] / (e->steps * e->like->batch);
        e->rows[r] = 0;
    }
    e->steps = 0;
    average_vector(e, DML_PARAMETERS, 0, trained, e->like->options.outer.lr != 0);
    average_vector(e, DML_PARAMETERS, trained, all, false);
    for (int v = DML_OPTIMIZER_STATE; v < vectors; v++)
        if (e->like->options.average_state || v - DML_OPTIMIZER_STATE >= states)
            average_vector(e, v, 0, trained, false);
}

static void emulate(const rank_job *like)
{
    static emulation e;
    begin_emulation(&e, like);
    for (int step = 0; step < like->steps; step++) {
        for (int r = 0; r < like->world; r++) {
            CHECK_INT(step_of(&emulated[r], e.trainer[r], step, true), DML_OK);
            e.rows[r] += first_row(like, step, r + 1) - first_row(like, step, r);
        }
        e.steps++;
        if (like->strategy == LOCAL_SGD && (like->own_steps + step + 1) % like->options.tau == 0)
            average_all(&e);
    }
    if (like->at_the_end) average_all(&e);
    for (int r = 0; r < like->world; r++) {
        keep_results(&emulated[r], e.trainer[r]);
        dml_close(e.context[r]);
    }
}

/* Only the worst of many wrong elements is shown. */
static void check_vector(const char *name, int rank, int ranks, const float *got, const float *want,
                         size_t count, double tolerance)
{
    size_t worst = 0;
    for (size_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want[i]) <= fabs(got[worst] - want[worst]))) worst = i;
    if (count)
        CHECK_MESSAGE(fabs(got[worst] - want[worst]) <= tolerance, "rank %d of %d: %s[%zu] is %.9g, not %.9g",
                      rank, ranks, name, worst, (double)got[worst], (double)want[worst]);
}

static void check_no_errors(const rank_job *like)
{
    for (int r = 0; r < like->world; r++) {
        CHECK_STRING(world[r].error, "");
        CHECK_INT(world[r].status, DML_OK);
    }
}

static void compare(const rank_job *like, double tolerance)
{
    emulate(like);
    run_world(like);
    check_no_errors(like);
    for (int r = 0; r < like->world; r++) {
        CHECK_INT(world[r].steps_taken, emulated[r].steps_taken);
        check_vector("w", r, like->world, world[r].w, emulated[r].w, emulated[r].parameters, tolerance);
        for (int v = DML_OPTIMIZER_STATE; v < emulated[r].vectors; v++)
            check_vector("a state", r, like->world, world[r].state[v - DML_OPTIMIZER_STATE],
                         emulated[r].state[v - DML_OPTIMIZER_STATE], emulated[r].trained, 10 * tolerance);
    }
}

static bool ranks_have_the_same(void)
{
    return memcmp(world[0].w, world[1].w, sizeof world[0].w) == 0;
}

static rank_job usual(int ranks, int tau)
{
    rank_job like;
    memset(&like, 0, sizeof like);
    backend_here = find_backend("cpu");
    like.world = ranks;
    like.batch = MOST_BATCH;
    like.steps = 12;
    like.options.tau = tau;
    like.optimizer = dml_sgd(0.1f, 0.9f);
    return like;
}

/* ---- the tests ---- */

static void any_ranks_average_as_one_by_one(void)
{
    static const int taus[] = { 1, 3, 5, NEVER };
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
        for (int i = 0; i < 4; i++) {
            rank_job like = usual(ranks, taus[i]);
            like.norms = i % 2; /* of other statistics in pieces, and of hardly any in small shares */
            compare(&like, 2e-6);
            CHECK(ranks == 1 || ranks_have_the_same() == (12 % taus[i] == 0));
            like.norms = false;
            like.uneven = like.pieces = true;
            compare(&like, 2e-6);
            like.at_the_end = true;
            compare(&like, 2e-6);
            CHECK(ranks == 1 || ranks_have_the_same());
        }
}

static void ranks_without_samples_count_for_nothing(void)
{
    rank_job like = usual(4, 3);
    like.batch = 4;
    like.uneven = true;
    compare(&like, 2e-6);
}

static void with_the_optimizers_state(void)
{
    for (int ranks = 2; ranks <= 3; ranks++) {
        rank_job like = usual(ranks, 4);
        like.options.average_state = true;
        compare(&like, 2e-6);
        CHECK(memcmp(world[0].state, world[1].state, sizeof world[0].state) == 0);
        like.options.average_state = false;
        compare(&like, 2e-6);
        CHECK(memcmp(world[0].state, world[1].state, sizeof world[0].state) != 0);
    }
}

/* Which is of the model, not of the optimizer: it follows w. */
static void with_a_moving_average(void)
{
    rank_job like = usual(3, 4);
    like.average = 0.8f;
    like.frozen = true;
    compare(&like, 2e-6);
    CHECK(memcmp(world[0].state[1], world[2].state[1], sizeof world[0].state[1]) == 0);
    CHECK(memcmp(world[0].state[0], world[2].state[0], sizeof world[0].state[0]) != 0);
}

static void with_an_outer_optimizer(void)
{
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        rank_job like = usual(ranks, 2);
        like.options = dml_diloco_options(2);
        CHECK_INT(like.options.tau, 2);
        like.optimizer = dml_adamw(0.01f, 0.01f);
        like.norms = true;
        like.at_the_end = true;
        compare(&like, 1e-5);
        like.options.outer.nesterov = false;
        like.options.outer.momentum = 0.5f;
        like.steps = 11;
        compare(&like, 1e-5);
        like.options.outer = dml_sgd(1, 0); /* w becomes the average */
        compare(&like, 1e-5);
    }
}

static void one_average_at_the_end(void)
{
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        rank_job like = usual(ranks, 1); /* which it doesn't look at */
        like.strategy = SIMU_PARALLEL;
        compare(&like, 2e-6);
        CHECK(ranks == 1 || !ranks_have_the_same());
        like.at_the_end = true;
        compare(&like, 2e-6);
        CHECK(ranks == 1 || ranks_have_the_same());
    }
}

/* Averaged after every step of plain SGD, parameters are what averaged gradients make of them. */
static void after_every_step_it_is_an_all_reduce(void)
{
    static rank_job other[MOST_RANKS];
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
        for (int uneven = 0; uneven < 2; uneven++) {
            rank_job like = usual(ranks, 1);
            like.uneven = uneven;
            like.batch = uneven ? 23 : 12;
            like.optimizer = dml_sgd(0.1f, 0);
            run_world(&like);
            check_no_errors(&like);
            memcpy(other, world, sizeof other);
            like.strategy = ALL_REDUCE;
            run_world(&like);
            check_no_errors(&like);
            check_vector("w", 0, ranks, other[0].w, world[0].w, world[0].parameters, 1e-6);
            CHECK(world[0].w[0] != 0);
        }
}

/* A run that goes on from a checkpoint averages at the same steps as one that never stopped. */
static void rank_0_brings_what_it_trained_before(void)
{
    rank_job like = usual(3, 4);
    like.own_steps = 3;
    like.steps = 6; /* averages after the first and the fifth */
    compare(&like, 2e-6);
    CHECK_INT(world[2].steps_taken, 9);
}

static void save_what_was_trained_before(const rank_job *like)
{
    dml_context *context = open_rank(0);
    dml_trainer *trainer = build(context, like);
    train_before(like, trainer);
    CHECK_INT(dml_trainer_save(trainer, checkpoint_path), DML_OK);
    dml_close(context);
}

/* So does one that takes a checkpoint up on every rank, whatever was there before. */
static void every_rank_loads_what_was_trained_before(void)
{
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int simu = 0; simu < 2; simu++) {
            rank_job like = usual(ranks, 4);
            like.strategy = simu ? SIMU_PARALLEL : LOCAL_SGD;
            like.own_steps = 3;
            like.steps = 7; /* averages after the first, the fifth and the last */
            like.loads = like.uneven = like.at_the_end = true;
            save_what_was_trained_before(&like);
            compare(&like, 2e-6);
            CHECK_INT(world[0].steps_taken, 10);
        }
    remove(checkpoint_path);
}

#ifdef HOST_C
static void ranks_on_a_device_with_memory_of_its_own(void)
{
    rank_job like = usual(2, 2);
    backend_here = host_c_for_threads();
    like.batch = 5;
    like.steps = 3;
    like.norms = true;
    like.average = 0.5f;
    like.uneven = true;
    like.at_the_end = true;
    compare(&like, 5e-6);
    like.options.outer = dml_sgd(0.7f, 0.9f);
    compare(&like, 5e-6);
}
#else
static void ranks_on_a_device_with_memory_of_its_own(void)
{
    SKIP("no shared kernels as host C here");
}
#endif

/* Whoever skips a step is at the same call as the others when they meet. */
static void steps_that_are_skipped_count(void)
{
    rank_job like = usual(3, 4);
    like.skips = true;
    run_world(&like);
    check_no_errors(&like);
    CHECK(ranks_have_the_same());
    CHECK_INT(world[0].steps_taken, 12);
    CHECK_INT(world[2].steps_taken, 11);
    for (int loads = 0; loads < 2;
         loads++) { /* those before it was attached, or that a checkpoint has, too */
        like = usual(2, 3);
        like.own_steps = 1; /* and one skipped, so that one step more brings an average */
        like.own_skipped = 1;
        like.steps = 1;
        like.loads = loads > 0;
        if (loads) save_what_was_trained_before(&like);
        run_world(&like);
        check_no_errors(&like);
        CHECK(ranks_have_the_same());
        CHECK_INT(world[0].steps_taken, 2);
    }
    remove(checkpoint_path);
}

/* All ranks say so, whether they meet in a step or at the end. */
static void ranks_at_other_steps_are_told(void)
{
    for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
        rank_job like = usual(ranks, 20);
        like.at_the_end = true;
        like.stray = 3;
        run_world(&like);
        for (int r = 0; r < ranks; r++) {
            char want[64];
            snprintf(want, sizeof want, "rank %d is at step 15 and rank 0 at 12", ranks - 1);
            CHECK_INT(world[r].status, DML_ERROR_MISMATCH);
            CHECK_CONTAINS(world[r].error, want);
        }
        like.options.tau = 14; /* the last one gets there, the others are at the end */
        run_world(&like);
        for (int r = 0; r < ranks; r++) {
            CHECK_INT(world[r].status, DML_ERROR_MISMATCH);
            CHECK_CONTAINS(world[r].error, "every rank must take as many steps");
        }
    }
}

static void refused(const rank_job *like, dml_status status, const char *says)
{
    run_world(like);
    for (int r = 0; r < like->world; r++) {
        CHECK_INT(world[r].status, status);
        CHECK_CONTAINS(world[r].error, says);
    }
}

static void bad_options_are_refused(void)
{
    for (int tau = -1; tau <= 0; tau++) {
        rank_job like = usual(2, tau);
        refused(&like, DML_ERROR_ARGUMENT, tau ? "every -1 steps" : "every 0 steps");
        like.strategy = SIMU_PARALLEL;
        run_world(&like);
        check_no_errors(&like);
    }
    rank_job like = usual(2, 3);
    like.options.outer = dml_sgd(0.7f, 1.5f);
    refused(&like, DML_ERROR_ARGUMENT, "momentum");
    like.options.outer = dml_sgd(-1, 0);
    refused(&like, DML_ERROR_ARGUMENT, "-1");
    like.options.outer = dml_lamb(1, 0);
    refused(&like, DML_ERROR_ARGUMENT, "lamb asked for as the outer optimizer");
    like = usual(2, 3);
    like.norms = like.over_ranks = true;
    like.steps = 0; /* when it is attached */
    for (int way = LOCAL_SGD; way <= SIMU_PARALLEL; way++) {
        like.strategy = (strategy)way;
        refused(&like, DML_ERROR_UNSUPPORTED,
                "the model has a batch norm over all ranks, and the sync strategy has no all_reduce");
    }
}

static void unlike_ranks_are_refused(void)
{
    rank_job like = usual(2, 3);
    like.options.outer = dml_sgd(0.7f, 0.5f);
    run_world(&like);
    check_no_errors(&like);
    static const char *const says[] = {
        "tau (4, where rank 0 has 3)",
        "outer.momentum (0.75, where rank 0 has 0.5)",
        "outer.nesterov (1, where rank 0 has 0)",
        "average_state (1, where rank 0 has 0)",
    };
    for (like.unlike = 1; like.unlike < 5; like.unlike++) {
        char want[192];
        snprintf(want, sizeof want,
                 "rank 1 differs from rank 0 in the strategy's %s; all ranks need the same. This one has "
                 "dml_local_sgd_sync",
                 says[like.unlike - 1]);
        refused(&like, DML_ERROR_MISMATCH, want);
    }
    refused(&like, DML_ERROR_MISMATCH, "rank 1 differs from rank 0 in the learning rate's schedule;");
}

static void other_trainers_have_no_average(void)
{
    rank_job like = usual(2, 3);
    like.strategy = ALL_REDUCE;
    like.at_the_end = true;
    refused(&like, DML_ERROR_STATE, "the trainer's strategy is another");
    CHECK_INT(dml_local_sgd_average(NULL), DML_ERROR_ARGUMENT);
}

static void no_average_while_the_moving_one_is_in_place(void)
{
    rank_job like = usual(1, 3);
    like.average = 0.5f;
    dml_context *context = open_rank(0);
    dml_trainer *trainer = build(context, &like);
    dml_comm *comm;
    CHECK_INT(dml_comm_open_local(&comm, 1, NULL), DML_OK);
    CHECK_INT(dml_trainer_sync(trainer, dml_local_sgd_sync(comm, &like.options)), DML_OK);
    CHECK_INT(step_of(&like, trainer, 0, false), DML_OK);
    CHECK_INT(dml_trainer_swap_average(trainer), DML_OK);
    CHECK_INT(dml_local_sgd_average(trainer), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "swap_average");
    dml_close(context);
    dml_comm_close(comm);
}

/* An outer optimizer would go back to where the last average left it. */
static void checkpoints_are_refused_under_an_outer_optimizer(void)
{
    rank_job like = usual(1, 3);
    dml_context *context = open_rank(0);
    dml_trainer *trainer = build(context, &like);
    dml_comm *comm;
    const char *path = checkpoint_path;
    CHECK_INT(dml_comm_open_local(&comm, 1, NULL), DML_OK);
    CHECK_INT(dml_trainer_sync(trainer, dml_local_sgd_sync(comm, &like.options)), DML_OK);
    CHECK_INT(dml_trainer_save(trainer, path), DML_OK);
    CHECK_INT(dml_trainer_load(trainer, path), DML_OK);
    like.options.outer = dml_sgd(0.7f, 0.5f);
    CHECK_INT(dml_trainer_sync(trainer, dml_local_sgd_sync(comm, &like.options)), DML_OK);
    CHECK_INT(dml_trainer_load(trainer, path), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "load it before the strategy is attached");
    remove(path);
    dml_close(context);
    dml_comm_close(comm);
}

int main(int argc, char **argv)
{
    (void)argc;
    snprintf(checkpoint_path, sizeof checkpoint_path, "%s.checkpoint", argv[0]);
    RUN(any_ranks_average_as_one_by_one);
    RUN(ranks_without_samples_count_for_nothing);
    RUN(with_the_optimizers_state);
    RUN(with_a_moving_average);
    RUN(with_an_outer_optimizer);
    RUN(one_average_at_the_end);
    RUN(after_every_step_it_is_an_all_reduce);
    RUN(rank_0_brings_what_it_trained_before);
    RUN(every_rank_loads_what_was_trained_before);
    RUN(ranks_on_a_device_with_memory_of_its_own);
    RUN(steps_that_are_skipped_count);
    RUN(ranks_at_other_steps_are_told);
    RUN(bad_options_are_refused);
    RUN(unlike_ranks_are_refused);
    RUN(other_trainers_have_no_average);
    RUN(no_average_while_the_moving_one_is_in_place);
    RUN(checkpoints_are_refused_under_an_outer_optimizer);
    return test_report("dist/local_sgd");
}
