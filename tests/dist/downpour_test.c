/* Trainers whose parameters are updated by servers: in synchrony, as one rank would; and by Downpour. */
#include "dist/downpour_sync.h"
#include "dist/parameter_server_sync.h"

#include "../comm/ranks.h"
#include "device/context.h"
#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_embedding.h"
#include "ops/op_loss.h"
#include "ops/op_reduce.h"
#include "train/checkpoint.h"
#include "train/parameter_group.h"
#include "train/trainer_internal.h"

#include <time.h>

enum { IN = 6, CLASSES = 3, BATCH = 24, MOST_STEPS = 300, MOST = 6, MOST_PARAMETERS = 1000 };

typedef struct training {
    int workers, servers, steps; /* workers 0: alone */
    dml_trainer_options options;
    dml_ps_options ps;
    bool downpour;
    dml_downpour_options down;
    bool uneven, groups;
    int pieces;     /* of a batch */
    bool differ;    /* the workers' models have other parameters */
    int unlike;     /* of Downpour's options worker 1 has another: 1 .. 4; 0: none */
    uint64_t taken; /* steps before the strategy is attached */
    float others;   /* learning rate of the workers but the first, before; 0: the same */
    int slow;       /* a worker that takes its time; 0: none */
    bool loads;     /* a checkpoint, when the strategy is attached */
    int saves;      /* worker 0 a checkpoint, after so many steps; 0: never */
    bool resumes;   /* from that, which only worker 0 loads */
    int breaks;     /* after so many steps the workers end the job; 0: never */
    /* results */
    double loss[MOST][MOST_STEPS]; /* the sum over a worker's samples */
    int rows[MOST];
    size_t parameters;
    float w[MOST][MOST_PARAMETERS];
    char error[MOST][512];
    dml_status status[MOST];
    dml_ps_report reports[MOST];
    uint64_t ended[MOST]; /* at this step */
} training;

static void make_batch(int step, float *x, int32_t *t)
{
    unsigned state = 77u + (unsigned)step;
    test_fill(&state, x, BATCH * IN);
    for (int i = 0; i < BATCH; i++) t[i] = x[i * IN] > 0.3f ? 2 : x[i * IN + 1] > 0 ? 1 : 0;
}

static int first_row(const training *t, int rows, int worker)
{
    const int workers = t->workers ? t->workers : 1;
    if (t->uneven) return rows * worker * (worker + 1) / (workers * (workers + 1));
    return rows * worker / workers;
}

static dml_status step_of(training *t, int me, dml_trainer *trainer, int step)
{
    float x[BATCH * IN];
    int32_t labels[BATCH];
    dml_status status = DML_OK;
    const int pieces = t->pieces ? t->pieces : 1, part = BATCH / pieces;
    make_batch(step, x, labels);
    t->rows[me] = 0;
    for (int k = 0; k < pieces && status == DML_OK; k++) {
        const int begin = k * part + first_row(t, part, me), end = k * part + first_row(t, part, me + 1);
        float loss = 0;
        status = dml_trainer_backward(trainer, end - begin, DML_INPUTS(x + begin * IN, labels + begin),
                                      DML_ADD | (k < pieces - 1 ? DML_MORE : 0), &loss);
        t->loss[me][step] += (double)loss * (end - begin);
        t->rows[me] += end - begin;
    }
    return status == DML_OK ? dml_trainer_update(trainer) : status;
}

static dml_trainer *make_trainer(const training *t, dml_context *context, int me)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *labels = dml_input(graph, "t", DML_I32);
    dml_node *h = dml_tanh(dml_dense(x, t->differ && me == 1 ? 17 : 16));
    dml_node *loss = dml_softmax_cross_entropy(dml_dense(dml_tanh(dml_dense(h, 16)), CLASSES), labels);
    if (t->groups) dml_dense(h, 2); /* another head, which this loss doesn't train */
    if (t->groups) dml_graph_decay_matrices_only(graph);
    if (t->groups) dml_parameter_set_lr_scale(dml_graph_find(graph, "dense_2.weight"), 0.5f);
    dml_trainer_options options = t->options;
    options.batch = BATCH;
    return dml_trainer_create(loss, &options);
}

static const char *program;

/* What the servers have would be pulled over it. */
static void load_late(dml_trainer *trainer, int me)
{
    char path[300];
    dml_context *context = dml_trainer_context(trainer);
    snprintf(path, sizeof path, "%s.checkpoint.%d", program, me);
    CHECK_INT(dml_trainer_save(trainer, path), DML_OK);
    CHECK_INT(dml_trainer_load(trainer, path), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "load it before the strategy is attached");
    dml_clear_error(context);
    remove(path);
}

static void checkpoint_path(char path[300])
{
    snprintf(path, 300, "%s.run", program);
}

/* Without it a worker lacks what the servers keep; with it, it goes on as if it hadn't been asked. */
static void save_gathered(training *t, int me, dml_trainer *trainer)
{
    char path[300];
    checkpoint_path(path);
    if (me == 0 && t->workers && !t->downpour && dml_trainer_vectors(trainer) > DML_OPTIMIZER_STATE) {
        CHECK_INT(dml_trainer_save(trainer, path), DML_ERROR_STATE);
        CHECK_CONTAINS(dml_error(dml_trainer_context(trainer)), "call dml_trainer_gather");
        dml_clear_error(dml_trainer_context(trainer));
    }
    CHECK_INT(dml_trainer_gather(trainer), DML_OK);
    if (me == 0) CHECK_INT(dml_trainer_save(trainer, path), DML_OK);
}

static void train(training *t, int me, dml_comm *comm, const dml_cluster *cluster)
{
    dml_options options;
    memset(&options, 0, sizeof options);
    options.threads = 1;
    options.seed = 5 + (uint64_t)me;
    dml_context *context = dml_open(&options);
    dml_trainer *trainer = make_trainer(t, context, me);
    dml_status status = DML_OK;
    dml_trainer_run run = dml_trainer_get_run(trainer);
    run.steps = t->taken;
    dml_trainer_set_run(trainer, &run);
    if (t->resumes && me == 0) { /* steps are counted from before that */
        char path[300];
        checkpoint_path(path);
        CHECK_INT(dml_trainer_load(trainer, path), DML_OK);
    }
    if (t->others > 0 && me) dml_trainer_set_lr(trainer, t->others);
    dml_downpour_options down = t->down;
    if (me == 1 && t->unlike == 1) down.fetch_every = 3;
    if (me == 1 && t->unlike == 2) down.push_every = 3;
    if (me == 1 && t->unlike == 3) down.warm_steps = 3;
    if (me == 1 && t->unlike == 4) down.optimizer = dml_adagrad(0.3f);
    if (comm)
        status = dml_trainer_sync(trainer, t->downpour ? dml_downpour_sync(comm, cluster, &down)
                                                       : dml_parameter_server_sync(comm, cluster, &t->ps));
    if (t->others > 0 && status == DML_OK) CHECK_NEAR(dml_trainer_lr(trainer), t->options.optimizer.lr, 0);
    if (t->loads) load_late(trainer, me);
    while (dml_trainer_steps(trainer) < run.steps + (uint64_t)t->steps && status == DML_OK) {
        if (t->slow && me == t->slow) nanosleep(&(struct timespec){ .tv_nsec = 3000000 }, NULL);
        status = step_of(t, me, trainer, (int)(dml_trainer_steps(trainer) - run.steps));
        if (status == DML_OK && t->saves && dml_trainer_steps(trainer) == run.steps + (uint64_t)t->saves)
            save_gathered(t, me, trainer);
        if (t->breaks && dml_trainer_steps(trainer) == (uint64_t)t->breaks)
            dml_comm_probe(comm, -7, 0, 0, NULL); /* there is no such rank */
    }
    t->ended[me] = dml_trainer_steps(trainer);
    const size_t parameters = dml_trainer_count(trainer, DML_PARAMETERS);
    if (me == 0) t->parameters = parameters;
    t->status[me] = status;
    snprintf(t->error[me], sizeof t->error[me], "%s", dml_error(context));
    const float *w = dml_trainer_host(trainer, DML_PARAMETERS, 0, parameters);
    if (w && status == DML_OK && parameters <= MOST_PARAMETERS) memcpy(t->w[me], w, parameters * sizeof *w);
    dml_close(context);
}

static void body(test_rank *me)
{
    training *t = (training *)me->user;
    const dml_cluster cluster = dml_cluster_of(me->rank, t->workers, t->servers);
    if (dml_cluster_is_server(&cluster))
        t->status[me->rank] =
            dml_parameter_server_serve(me->comm, &cluster, &t->reports[me->rank - t->workers]);
    else
        train(t, me->rank, me->comm, &cluster);
}

static void run_training(training *t)
{
    test_rank ranks[MOST];
    memset(t->loss, 0, sizeof t->loss);
    if (!t->workers) {
        train(t, 0, NULL, NULL);
        return;
    }
    ranks_prepare(ranks, t->workers + t->servers, 20, body, t);
    ranks_run_on(ranks, t->workers + t->servers, "local");
}

static training alone, many;

static void check_status(const training *t)
{
    for (int r = 0; r < t->workers + t->servers; r++)
        CHECK_MESSAGE(t->status[r] == DML_OK, "rank %d of %d + %d: %d %s", r, t->workers, t->servers,
                      t->status[r], t->error[r]);
}

static double loss_of(const training *t, int step)
{
    double sum = 0;
    for (int w = 0; w < (t->workers ? t->workers : 1); w++) sum += t->loss[w][step];
    return sum / BATCH;
}

/* As one rank with all samples, whatever the optimizer. */
static void check_follows(const char *name, training like)
{
    memset(&alone, 0, sizeof alone);
    alone = like;
    alone.workers = 0;
    run_training(&alone);
    for (int workers = 1; workers <= 4; workers++) {
        many = like;
        many.workers = workers;
        many.servers = 1 + workers % 2;
        many.uneven = workers == 3;
        run_training(&many);
        check_status(&many);
        double worst = 0;
        for (int step = 0; step < like.steps; step++) {
            const double want = loss_of(&alone, step), error = fabs(loss_of(&many, step) - want) / want;
            if (!(error <= worst)) worst = error;
        }
        CHECK_MESSAGE(worst <= 1e-5, "%s: %d workers are %.2g away", name, workers, worst);
        for (int w = 1; w < workers; w++)
            CHECK(memcmp(many.w[0], many.w[w], many.parameters * sizeof(float)) == 0);
    }
    CHECK(loss_of(&alone, like.steps - 1) < 0.8 * loss_of(&alone, 0));
}

static training usual(dml_optimizer optimizer)
{
    training t;
    memset(&t, 0, sizeof t);
    t.steps = 50;
    t.options.optimizer = optimizer;
    return t;
}

static void follows_one_rank(void)
{
    check_follows("sgd", usual(dml_sgd(0.1f, 0.9f)));
    training t = usual(dml_adamw(0, 0.1f));
    t.options.schedule = dml_schedule_warm_up(dml_schedule_cosine(0.01f, 60, 0), 5, 0.1f);
    t.options.optimizer.epsilon = 0.01f;
    t.groups = true;
    check_follows("adamw", t);
    t = usual(dml_adagrad(0.1f));
    t.pieces = 3;
    check_follows("adagrad", t);
}

/* A gradient that is applied as it comes counts once, of however many samples it is the mean. */
static void asynchronous_with_one_worker(void)
{
    alone = usual(dml_sgd(0.05f, 0.9f));
    run_training(&alone);
    for (int stale = 0; stale < 2; stale++) {
        many = usual(dml_sgd(0.05f, 0.9f));
        many.workers = many.servers = 1;
        many.ps.consistency = stale ? DML_PS_STALE : DML_PS_ASYNCHRONOUS;
        run_training(&many);
        check_status(&many);
        for (int step = 0; step < 50; step++) CHECK_NEAR(loss_of(&many, step), loss_of(&alone, step), 1e-5);
    }
}

/* The servers' optimizer is at the step that worker 0's is at. */
static void servers_go_on_at_the_step(void)
{
    alone = usual(dml_adam(0.01f));
    alone.taken = 100;
    run_training(&alone);
    many = alone;
    many.workers = many.servers = 1;
    run_training(&many);
    check_status(&many);
    CHECK_INT(many.ended[0], 150);
    for (int step = 0; step < 50; step++) CHECK_NEAR(loss_of(&many, step), loss_of(&alone, step), 1e-5);
}

/* A run that goes on from a checkpoint of half of it has the losses of one that was never stopped: under
   servers to the bit, and, where one rank or servers take over from each other, as near as they are
   otherwise. */
static void goes_on_from_a_checkpoint(const training *like, int workers_before, int workers_after)
{
    static training whole, half;
    char path[300];
    const bool same = workers_before == workers_after;
    whole = *like;
    whole.workers = workers_before;
    whole.servers = workers_before ? 2 : 0;
    run_training(&whole);
    check_status(&whole);
    half = whole;
    half.steps = half.saves = like->steps / 2;
    run_training(&half);
    check_status(&half);
    many = half;
    many.saves = 0;
    many.resumes = true;
    many.workers = workers_after;
    many.servers = workers_after ? 2 : 0;
    many.steps = like->steps;
    run_training(&many);
    check_status(&many);
    for (int step = half.steps; step < like->steps; step++) {
        const double want = loss_of(&whole, step), got = loss_of(&many, step);
        CHECK_MESSAGE(same ? got == want : fabs(got - want) <= 1e-5 * want,
                      "%d workers, then %d: loss %.9g in step %d, unbroken %.9g", workers_before,
                      workers_after, got, step, want);
    }
    if (same) CHECK(memcmp(many.w[0], whole.w[0], whole.parameters * sizeof(float)) == 0);
    checkpoint_path(path);
    remove(path);
}

static void checkpoints_have_the_servers_state(void)
{
    const dml_optimizer optimizers[] = { dml_sgd(0.05f, 0.9f), dml_adam(0.01f), dml_adagrad(0.05f) };
    for (int i = 0; i < 3; i++) {
        training t = usual(optimizers[i]);
        t.options.optimizer.epsilon = i ? 0.01f : 0;
        t.steps = 40;
        goes_on_from_a_checkpoint(&t, 2, 2);
        goes_on_from_a_checkpoint(&t, 0, 3);
        goes_on_from_a_checkpoint(&t, 3, 0);
    }
    /* Without synchrony one worker has what the servers have. */
    training t = usual(dml_adam(0.01f));
    t.steps = 40;
    t.ps.consistency = DML_PS_ASYNCHRONOUS;
    goes_on_from_a_checkpoint(&t, 1, 1);
}

/* Downpour's servers have an optimizer of their own, whose state goes along under names of its own. */
static void checkpoints_have_downpours_sums(void)
{
    const dml_optimizer optimizers[] = { dml_adagrad(0.05f), dml_adam(0.01f), dml_sgd(0.02f, 0.9f) };
    for (int i = 0; i < 3; i++) {
        training t = usual(dml_sgd(0.05f, 0.9f));
        t.steps = 40;
        t.downpour = true;
        t.down.optimizer = optimizers[i];
        t.down.fetch_every = t.down.push_every = i + 1 == 3 ? 4 : 1;
        goes_on_from_a_checkpoint(&t, 1, 1);
    }
}

/* Which nobody goes on from elsewhere: the next step makes it out of date, and a file written then hasn't got
 * it. */
static void downpours_sums_stay_with_downpour(void)
{
    char path[300];
    dml_context *context = dml_open(NULL);
    many = usual(dml_sgd(0.05f, 0));
    many.workers = many.servers = 1;
    many.downpour = true;
    many.steps = many.saves = 3;
    run_training(&many);
    check_status(&many);
    dml_trainer *trainer = make_trainer(&many, context, 0);
    checkpoint_path(path);
    CHECK_INT(dml_trainer_load(trainer, path), DML_OK);
    CHECK(trainer->away.row && trainer->away.states == 1 && trainer->away.steps == 3 &&
          trainer->away.state[0] > 0);
    CHECK_INT(dml_trainer_save(trainer, path), DML_OK);
    CHECK_INT(dml_trainer_load(trainer, path), DML_OK); /* with it, and over what is there */
    CHECK(trainer->away.state && trainer->away.state[0] > 0);
    CHECK_INT(step_of(&many, 0, trainer, 0), DML_OK);
    CHECK(!trainer->away.row && !trainer->away.state);
    CHECK_INT(dml_trainer_save(trainer, path), DML_OK);
    CHECK_INT(dml_trainer_load(trainer, path), DML_OK);
    CHECK(!trainer->away.row);
    remove(path);
    dml_close(context);
}

/* Asking for the servers' state in the midst of a run changes nothing. */
static void gathering_disturbs_nothing(void)
{
    alone = usual(dml_sgd(0.05f, 0.9f));
    alone.workers = alone.servers = 2;
    run_training(&alone);
    many = alone;
    many.saves = 20;
    run_training(&many);
    check_status(&many);
    CHECK(memcmp(many.w[0], alone.w[0], many.parameters * sizeof(float)) == 0);
    char path[300];
    checkpoint_path(path);
    remove(path);
}

/* Nobody waits for the slow worker, which makes fewer steps, and ends with the others. */
static void backups_end_together(void)
{
    many = usual(dml_sgd(0.05f, 0.9f));
    many.workers = 3;
    many.servers = 1;
    many.ps.backup = 1;
    many.slow = 2;
    run_training(&many);
    check_status(&many);
    for (int w = 0; w < 3; w++) CHECK_INT(many.ended[w], 50);
    CHECK_INT(many.reports[0].clocks, 50);
    CHECK(many.reports[0].dropped > 0);
    CHECK(memcmp(many.w[0], many.w[1], many.parameters * sizeof(float)) == 0);
}

/* Without synchrony it learns all the same. */
static void learns_asynchronously(void)
{
    for (int stale = 0; stale < 2; stale++) {
        many = usual(dml_sgd(0.05f, 0));
        many.workers = 3;
        many.servers = 2;
        many.steps = 150;
        many.ps.consistency = stale ? DML_PS_STALE : DML_PS_ASYNCHRONOUS;
        many.ps.staleness = 2;
        many.ps.push_dtype = stale ? DML_BF16 : DML_F32;
        many.ps.threshold = stale ? 1e-4f : 0;
        run_training(&many);
        check_status(&many);
        CHECK(loss_of(&many, 149) < 0.6 * loss_of(&many, 0));
    }
}

static void downpour(void)
{
    static const int every[][2] = { { 0, 0 }, { 1, 1 }, { 5, 3 }, { 2, 7 } };
    for (int i = 0; i < 4; i++) {
        many = usual(dml_sgd(0.05f, 0));
        many.workers = 3;
        many.servers = 2;
        many.steps = 200;
        many.downpour = true;
        many.down.fetch_every = every[i][0];
        many.down.push_every = every[i][1];
        many.down.warm_steps = i == 2 ? 20 : 0;
        run_training(&many);
        check_status(&many);
        CHECK_MESSAGE(loss_of(&many, 199) < 0.6 * loss_of(&many, 0), "every %d and %d: from %g to %g",
                      every[i][0], every[i][1], loss_of(&many, 0), loss_of(&many, 199));
        CHECK_INT(many.reports[1].lost, 0);
    }
}

/* One worker that fetches and pushes in each step does what the servers' optimizer does alone. */
static void downpour_of_one(void)
{
    memset(&alone, 0, sizeof alone);
    alone = usual(dml_adagrad(0.05f));
    run_training(&alone);
    many = usual(dml_sgd(0.05f, 0));
    many.workers = many.servers = 1;
    many.downpour = true;
    run_training(&many);
    check_status(&many);
    for (int step = 0; step < 50; step++) CHECK_NEAR(loss_of(&many, step), loss_of(&alone, step), 1e-6);
}

/* The servers' learning rate is the trainer's, step by step; or else the one that was given. */
static void downpour_follows_a_schedule(void)
{
    for (int given = 0; given < 2; given++) {
        const dml_schedule warm = dml_schedule_warm_up(dml_schedule_cosine(0.05f, 50, 0), 5, 0.1f);
        memset(&alone, 0, sizeof alone);
        alone = usual(given ? dml_sgd(0.02f, 0.9f) : dml_adagrad(0));
        if (!given) alone.options.schedule = warm;
        run_training(&alone);
        many = usual(dml_sgd(0, 0));
        many.options.schedule = warm;
        if (given) many.down.optimizer = dml_sgd(0.02f, 0.9f);
        many.workers = many.servers = 1;
        many.downpour = true;
        run_training(&many);
        check_status(&many);
        for (int step = 0; step < 50; step++) CHECK_NEAR(loss_of(&many, step), loss_of(&alone, step), 1e-6);
    }
}

/* Where none is given to the servers, all take over worker 0's, such as a checkpoint's, whatever the others
   had: with theirs this would learn nothing. */
static void downpour_begins_with_the_first_workers_rate(void)
{
    for (int given = 0; given < 2; given++) {
        many = usual(dml_sgd(0.05f, 0));
        many.workers = 3;
        many.servers = 1;
        many.steps = 150;
        many.downpour = true;
        many.others = 1e4f;
        if (given) many.down.optimizer = dml_adagrad(0.05f);
        run_training(&many);
        check_status(&many);
        CHECK(loss_of(&many, 149) < 0.6 * loss_of(&many, 0));
    }
    many.down.optimizer = dml_adagrad(0);
    many.unlike = 4; /* of them one is given */
    run_training(&many);
    for (int r = 0; r < 2; r++) {
        CHECK_INT(many.status[r], DML_ERROR_MISMATCH);
        CHECK_CONTAINS(many.error[r], "optimizer.lr (0.3, where rank 0 has 0)");
    }
}

/* Warm: the others begin where worker 0 has come to. */
static void downpour_begins_warm(void)
{
    many = usual(dml_sgd(0.05f, 0));
    many.workers = 3;
    many.servers = 1;
    many.steps = 160;
    many.downpour = true;
    many.down.warm_steps = 150;
    run_training(&many);
    check_status(&many);
    CHECK_MESSAGE(many.loss[1][0] / many.rows[1] < 0.8 * many.loss[0][0] / many.rows[0], "%g and %g",
                  many.loss[1][0] / many.rows[1], many.loss[0][0] / many.rows[0]);
    many.down.warm_steps = 1000; /* more than there are: nobody waits for ever */
    run_training(&many);
    check_status(&many);
}

static void checkpoints_are_refused_when_servers_have_begun(void)
{
    for (int down = 0; down < 2; down++) {
        many = usual(dml_sgd(0.05f, 0));
        many.workers = 2;
        many.servers = 1;
        many.steps = 3;
        many.downpour = down;
        many.loads = true;
        run_training(&many);
        check_status(&many);
    }
}

/* A step has its error from the communicator also where none of its calls begins any more. */
static void a_job_that_failed_stays_failed(void)
{
    for (int down = 0; down < 2; down++) {
        many = usual(dml_sgd(0.05f, 0));
        many.workers = 2;
        many.servers = 1;
        many.downpour = down;
        many.breaks = 3;
        run_training(&many);
        for (int r = 0; r < 2; r++) {
            CHECK_INT(many.status[r], DML_ERROR_ARGUMENT);
            CHECK_CONTAINS(many.error[r], "asked for a message from -7");
            CHECK(many.ended[r] <= 3);
        }
    }
}

/* ---- tables ---- */

enum { TABLE_BATCH = 4, TABLE_STEPS = 7, TABLE_MET = 6 };

/* Steps of a trainer with a sparse table, of which each batch meets four of six rows. */
typedef struct table_run {
    int workers, servers, rows, width;
    bool downpour;
    dml_ps_options ps;
    dml_optimizer optimizer;
    float *w; /* (parameters): of worker 0, and how many there are */
    size_t parameters;
} table_run;

/* Rows that are cut by the border of two equal ranges, or by that behind 65536 elements, and their
   neighbours. */
static int32_t row_to_meet(const table_run *t, int k)
{
    const size_t n = t->parameters, border = k < 3 ? n - n / 2 : 65536;
    const int row = (int)((border - 1) / (size_t)t->width) + k % 3 - 1;
    return row < 0 ? 0 : row < t->rows ? row : t->rows - 1;
}

static void table_batch(const table_run *t, int step, int32_t *rows, float *v)
{
    for (int i = 0; i < TABLE_BATCH; i++) {
        const int k = (step + i) % TABLE_MET, kind = (step + k) % 3;
        rows[i] = row_to_meet(t, k);
        for (int j = 0; j < t->width; j++) /* of all elements, of the last, of the first */
            v[i * t->width + j] = kind == 0 || (kind == 1 && j == t->width - 1) || (kind == 2 && j == 0);
    }
}

static dml_status train_table(table_run *t, int me, dml_comm *comm, const dml_cluster *cluster)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *i = dml_input(graph, "i", DML_I32), *v = dml_input(graph, "v", DML_F32, t->width);
    dml_node *b = dml_parameter(graph, "b", dml_init_constant(1), 1);
    dml_node *table = dml_parameter(graph, "table", dml_init_constant(1), t->rows, t->width);
    dml_parameter_set_sparse(table, true);
    dml_node *y = dml_mul(dml_add(dml_embedding_with(i, table), b), v);
    dml_trainer *trainer =
        dml_trainer_create(dml_batch_mean(dml_sum(y, dml_all_axes(), false), NULL),
                           &(dml_trainer_options){ .batch = TABLE_BATCH, .optimizer = t->optimizer });
    const size_t n = dml_trainer_count(trainer, DML_PARAMETERS);
    const dml_downpour_options down = { .optimizer = t->optimizer };
    if (comm)
        dml_trainer_sync(trainer, t->downpour ? dml_downpour_sync(comm, cluster, &down)
                                              : dml_parameter_server_sync(comm, cluster, &t->ps));
    for (int step = 0; step < TABLE_STEPS; step++) {
        int32_t rows[TABLE_BATCH];
        float values[TABLE_BATCH * 8];
        const int each = TABLE_BATCH / (comm ? t->workers : 1), first = me * each;
        table_batch(t, step, rows, values);
        dml_trainer_step(trainer, each, DML_INPUTS(rows + first, values + first * t->width), NULL);
    }
    if (me == 0 && (t->w = (float *)malloc(n * sizeof *t->w)) != NULL) {
        dml_parameter_read(b, t->w, 1);
        dml_parameter_read(table, t->w + 1, n - 1);
    }
    const dml_status status = dml_status_of(context);
    dml_close(context);
    return status;
}

static void table_body(test_rank *me)
{
    table_run *t = (table_run *)me->user;
    const dml_cluster cluster = dml_cluster_of(me->rank, t->workers, t->servers);
    me->bad += (dml_cluster_is_server(&cluster) ? dml_parameter_server_serve(me->comm, &cluster, NULL)
                                                : train_table(t, me->rank, me->comm, &cluster)) != DML_OK;
}

/* To the bit: the means of these few numbers are exact. */
static void check_table(const char *name, table_run t)
{
    table_run one = t;
    test_rank ranks[MOST];
    const size_t n = t.parameters = one.parameters = 1 + (size_t)t.rows * (size_t)t.width;
    CHECK_INT(train_table(&one, 0, NULL, NULL), DML_OK);
    ranks_prepare(ranks, t.workers + t.servers, 20, table_body, &t);
    ranks_run_on(ranks, t.workers + t.servers, "local");
    for (int r = 0; r < t.workers + t.servers; r++)
        CHECK_MESSAGE(!ranks[r].bad && !ranks[r].status, "%s: rank %d: %s", name, r, ranks[r].error);
    size_t wrong = 0, first = n;
    for (size_t k = n; t.w && k-- > 0;)
        if (t.w[k] != one.w[k]) wrong++, first = k;
    CHECK_MESSAGE(t.w && !wrong, "%s: %d workers, %d servers, rows of %d: %zu of %zu differ, first %zu", name,
                  t.workers, t.servers, t.width, wrong, n, first);
    free(t.w);
    free(one.w);
}

/* Rows that no worker has met stay, as one trainer leaves them, and whether a row was met shows in all of it,
   wherever servers' ranges, blocks and pieces end. */
static void rows_of_tables_that_are_not_met_stay(void)
{
    dml_optimizer optimizers[3] = { dml_sgd(0.5f, 0.5f), dml_adam(0.25f), dml_adamw(0.25f, 0.5f) };
    optimizers[0].weight_decay = optimizers[1].weight_decay = 0.125f;
    for (int o = 0; o < 3; o++)
        for (int servers = 1; servers <= 2; servers++) {
            table_run t;
            memset(&t, 0, sizeof t);
            t.servers = servers;
            t.rows = 9501;
            t.width = 7;
            t.optimizer = optimizers[o];
            t.workers = 2;
            check_table("synchronous", t);
            t.ps.push_dtype = DML_BF16;
            t.ps.threshold = 0.01f;
            check_table("with a threshold", t);
            t.ps.push_dtype = DML_F32;
            t.ps.threshold = 0;
            t.workers = 1;
            t.ps.consistency = DML_PS_ASYNCHRONOUS;
            check_table("asynchronous", t);
            t.ps.consistency = DML_PS_STALE;
            check_table("stale", t);
            t.downpour = true;
            check_table("downpour", t);
            t.downpour = false;
            t.rows = 1; /* a server may have none of it */
            t.width = 8;
            check_table("one row", t);
        }
}

static void check_refused(const training *t, dml_status status, const char *says)
{
    for (int r = 0; r < t->workers; r++) {
        CHECK_INT(t->status[r], status);
        CHECK_CONTAINS(t->error[r], says);
    }
    CHECK(t->status[t->workers] != DML_OK);
}

static void refused(void)
{
    many = usual(dml_lamb(0.1f, 0));
    many.workers = 2;
    many.servers = 1;
    run_training(&many);
    check_refused(&many, DML_ERROR_UNSUPPORTED, "LARS and LAMB look at whole parameters");
    many.options.optimizer = dml_sgd(0.1f, 0);
    many.options.average = 0.5f;
    run_training(&many);
    check_refused(&many, DML_ERROR_UNSUPPORTED, "a moving average of parameters");
    many.options.average = 0;
    many.options.dtype = DML_F16;
    run_training(&many);
    check_refused(&many, DML_ERROR_UNSUPPORTED, "a loss scale lets a worker skip");
    many.options.dtype = DML_F32;
    many.differ = true;
    run_training(&many);
    check_refused(&many, DML_ERROR_MISMATCH, "all ranks need the same");
    many.differ = false;
    many.downpour = true;
    many.down.push_every = -1;
    run_training(&many);
    check_refused(&many, DML_ERROR_ARGUMENT, "push_every -1");
    many.down.push_every = 0;
    static const char *const says[] = { "fetch_every (3, where", "push_every (3, where",
                                        "warm_steps (3, where", "optimizer.lr (0.3, where" };
    for (many.unlike = 1; many.unlike <= 4; many.unlike++) {
        run_training(&many);
        for (int r = 0; r < 2; r++) {
            CHECK_INT(many.status[r], DML_ERROR_MISMATCH);
            CHECK_CONTAINS(many.error[r], "rank 1 differs from rank 0 in the strategy's ");
            CHECK_CONTAINS(many.error[r], says[many.unlike - 1]);
        }
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    program = argv[0];
    RUN(follows_one_rank);
    RUN(a_job_that_failed_stays_failed);
    RUN(asynchronous_with_one_worker);
    RUN(servers_go_on_at_the_step);
    RUN(checkpoints_have_the_servers_state);
    RUN(checkpoints_have_downpours_sums);
    RUN(downpours_sums_stay_with_downpour);
    RUN(gathering_disturbs_nothing);
    RUN(backups_end_together);
    RUN(learns_asynchronously);
    RUN(downpour);
    RUN(downpour_of_one);
    RUN(downpour_follows_a_schedule);
    RUN(downpour_begins_with_the_first_workers_rate);
    RUN(downpour_begins_warm);
    RUN(checkpoints_are_refused_when_servers_have_begun);
    RUN(rows_of_tables_that_are_not_met_stay);
    RUN(refused);
    return test_report("dist/downpour");
}
