/* Sandblaster comes to where L-BFGS comes in one process: with any number of workers and servers, with slow
   workers, and without those that die; who freezes ends it. */
#include "dist/sandblaster.h"

#include "../comm/jobs.h"
#include "../comm/ranks.h"
#include "device/context.h"
#include "dist/parameter_server.h"
#include "dist/replicas.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"

#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { IN = 6, CLASSES = 3, COUNT = IN * CLASSES + CLASSES, SAMPLES = 120, BATCH = 24, MOST = 5 };

/* What the ranks of a job do, and what becomes of them; death tests have it in shared memory. */
typedef struct plan {
    int workers, servers, claimed_workers;            /* 0: as many as there are */
    dml_sandblaster_options options[MOST];            /* the workers' */
    bool not_finite;                                  /* the loss at the first parameters */
    enum { NOBODY_IS_SLOW, SLOW, SLOW_IN_TURN } slow; /* who computes some portion first */
    int fails;                                        /* its first portion does; 0: none */
    int dies, how;                                    /* 0: none; see below */
    bool with_others;                                 /* all workers but 0 die */
    int signal;                                       /* that they die of; 0: they do nothing any more */
    bool kills; /* who computes the tenth portion sends it to process `victim` */
    int victim;
    double timeout;
    pid_t pids[MOST];
    /* results */
    int computed[MOST], started[8], calls, stage, late, status[MOST], bad[MOST];
    dml_sandblaster_result results[MOST];
    dml_ps_report reports[MOST];
    float w[MOST][COUNT];
    char error[MOST][512], comm_error[MOST][512];
    int culprit[MOST];
} plan;

enum { IN_THE_FIRST_PORTION, IN_A_LATER_PORTION, IN_A_PUSH, IDLE, AT_THE_START, AFTER_A_LONG_CALL };

static bool is_mortal(const plan *p, int rank)
{
    return p->dies && rank && (rank == p->dies || (p->with_others && rank < p->workers));
}

static void die(const plan *p)
{
    if (p->signal) raise(p->signal);
    while (!p->signal) ranks_sleep(1);
}

typedef struct worker {
    plan *p;
    int me;
    float x[SAMPLES * IN];
    int32_t labels[SAMPLES];
} worker;

static void make_samples(worker *w)
{
    unsigned state = 77;
    test_fill(&state, w->x, SAMPLES * IN);
    for (int i = 0; i < SAMPLES; i++) {
        const float *x = w->x + i * IN;
        w->labels[i] = i % 5 == 0 ? i % 3 : x[0] > 0.3f ? 2 : x[1] > 0; /* no line parts them */
    }
}

static dml_trainer *make_trainer(int me)
{
    dml_options options;
    memset(&options, 0, sizeof options);
    options.threads = 1;
    options.seed = 5 + (uint64_t)me;
    dml_graph *graph = dml_graph_create(dml_open(&options));
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *t = dml_input(graph, "t", DML_I32);
    dml_trainer_options trainer_options;
    memset(&trainer_options, 0, sizeof trainer_options);
    trainer_options.batch = BATCH;
    return dml_trainer_create(dml_softmax_cross_entropy(dml_dense(x, CLASSES), t), &trainer_options);
}

static dml_status compute(worker *w, dml_trainer *trainer, int begin, int end, double *loss_sum)
{
    dml_status status = DML_OK;
    for (int at = begin, rows; at < end && status == DML_OK; at += rows) {
        float loss = 0;
        rows = end - at < BATCH ? end - at : BATCH;
        const int flags = (at > begin ? DML_ADD : 0) | (at + rows < end ? DML_MORE : 0);
        status =
            dml_trainer_backward(trainer, rows, DML_INPUTS(w->x + at * IN, w->labels + at), flags, &loss);
        *loss_sum += (double)loss * rows;
    }
    return status;
}

static int count_up(int *counter)
{
    return __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
}

static void wait_until(plan *p, const int *counter, int least)
{
    int tries = 0;
    while (__atomic_load_n(counter, __ATOMIC_SEQ_CST) < least && tries++ < 10000) ranks_sleep(0.001);
    if (tries >= 10000) count_up(&p->late);
}

/* The last of 8 portions is waited for until another evaluation has begun: its tenth call, since one was
   computed twice. */
static void be_slow(plan *p, int portion)
{
    const int calls = count_up(&p->calls);
    if (portion == 7 && count_up(&p->started[7]) == 1) wait_until(p, &p->calls, calls > 10 ? calls : 10);
}

/* Three helpers begin with one of three portions each. Who has portion 0 waits until another has done it,
   too, and the evaluation waits for portion 2 until that late result has been heard. */
static void be_slow_in_turn(plan *p, int portion)
{
    const int started = count_up(&p->started[portion]);
    if (portion == 0 && started == 1) {
        wait_until(p, &p->started[2], 2);
        count_up(&p->stage);
    } else if (portion == 2 && started <= 2) {
        wait_until(p, &p->stage, 1);
        ranks_sleep(0.05);
    }
}

static dml_status portion(void *user, dml_trainer *trainer, int p, int portions, double *loss_sum,
                          double *samples)
{
    worker *w = (worker *)user;
    plan *plan = w->p;
    const int begin = SAMPLES * p / portions, end = SAMPLES * (p + 1) / portions;
    const int before = __atomic_fetch_add(&plan->computed[w->me], 1, __ATOMIC_SEQ_CST);
    if (plan->slow == SLOW) be_slow(plan, p);
    if (plan->slow == SLOW_IN_TURN) be_slow_in_turn(plan, p);
    if (w->me && w->me == plan->fails) return DML_ERROR_IO;
    if (is_mortal(plan, w->me)) {
        if (plan->how == IN_THE_FIRST_PORTION || (plan->how == IN_A_LATER_PORTION && before == 2)) die(plan);
        ranks_sleep(0.002); /* there is something left to do when it dies */
    }
    /* However late it is, it gets a portion of the first evaluation. */
    if (plan->dies && plan->how == IN_A_PUSH && w->me > plan->dies) wait_until(plan, &plan->stage, 1);
    if (plan->kills && count_up(&plan->calls) == 10) {
        while (!__atomic_load_n(&plan->pids[plan->victim], __ATOMIC_SEQ_CST)) ranks_sleep(0.001);
        kill(plan->pids[plan->victim], plan->signal);
    }
    *samples = end - begin;
    return compute(w, trainer, begin, end, loss_sum);
}

/* A worker that tells its result, and dies having pushed something else than the gradient. */
static void die_in_a_push(worker *w, dml_comm *comm, const dml_cluster *cluster, dml_trainer *trainer)
{
    enum { WORDS = 10, REPORT = 11, ORDER = 12, COMPUTE = 0, PUSH = 1, RESULT = 1 };
    double words[WORDS] = { 0 };
    float g[COUNT];
    dml_ps_options options;
    memset(&options, 0, sizeof options);
    options.consistency = DML_PS_ASYNCHRONOUS;
    options.vectors = 4 + 2 * 10;
    dml_ps *ps =
        dml_ps_open(comm, cluster, COUNT, dml_trainer_get(trainer, DML_PARAMETERS, 0, COUNT), &options);
    dml__start_replicas(dml_ps_workers_comm(ps), trainer, "dml_sandblaster", 0);
    if (w->p->how == AFTER_A_LONG_CALL)
        dml_comm_probe(dml_ps_workers_comm(ps), 0, 77, 2.5 * w->p->timeout, NULL);
    if (w->p->how >= AT_THE_START) die(w->p);
    for (;;) {
        dml_comm_send(dml_ps_workers_comm(ps), words, WORDS, DML_F64, 0, REPORT);
        if (w->p->how == IDLE) die(w->p);
        dml_comm_receive(dml_ps_workers_comm(ps), words, WORDS, DML_F64, 0, ORDER, NULL);
        if (words[0] != COMPUTE) break;
        words[6] = words[7] = 1000;
        words[0] = RESULT;
    }
    for (int i = 0; i < COUNT; i++) g[i] = 1000;
    if (words[0] == PUSH) dml_ps_wait(ps, dml_ps_push_to(ps, (int)words[5], g, 0, COUNT - 1));
    count_up(&w->p->stage);
    if (words[0] == PUSH) die(w->p);
}

static void work(plan *p, int me, dml_comm *comm, const dml_cluster *cluster)
{
    worker w;
    w.p = p;
    w.me = me;
    make_samples(&w);
    dml_trainer *trainer = make_trainer(me);
    dml_context *context = dml_trainer_context(trainer);
    dml_sandblaster_options options = p->options[me];
    options.user = &w;
    if (p->not_finite && me == 0) dml_trainer_host(trainer, DML_PARAMETERS, 0, COUNT)[3] = INFINITY;
    if (is_mortal(p, me) && p->how >= IN_A_PUSH) die_in_a_push(&w, comm, cluster, trainer);
    p->status[me] = (int)dml_sandblaster_minimize(trainer, comm, cluster, &options, &p->results[me]);
    snprintf(p->error[me], sizeof p->error[me], "%s", dml_error(context));
    const float *parameters = dml_trainer_host(trainer, DML_PARAMETERS, 0, COUNT);
    double loss = 0;
    if (parameters) memcpy(p->w[me], parameters, sizeof p->w[me]);
    if (p->status[me] == DML_OK) { /* the result's value is that of the parameters */
        p->bad[me] += compute(&w, trainer, 0, SAMPLES, &loss) != DML_OK;
        p->bad[me] += !(fabs(loss / SAMPLES - p->results[me].lbfgs.value) < 1e-6);
    }
    dml_close(context);
}

static void take_part(plan *p, int rank, dml_comm *comm)
{
    const int workers = p->claimed_workers ? p->claimed_workers : p->workers;
    const dml_cluster cluster = dml_cluster_of(rank, workers, p->servers);
    if (dml_cluster_is_server(&cluster))
        p->status[rank] = (int)dml_ps_serve(comm, &cluster, NULL, &p->reports[rank]);
    else
        work(p, rank, comm, &cluster);
    snprintf(p->comm_error[rank], sizeof p->comm_error[rank], "%s", dml_comm_error(comm));
    p->culprit[rank] = dml_comm_culprit(comm);
}

static void body(test_rank *me)
{
    take_part((plan *)me->user, me->rank, me->comm);
}

static void run_plan(plan *p)
{
    test_rank ranks[MOST];
    ranks_prepare(ranks, p->workers + p->servers, 20, body, p);
    ranks_run_on(ranks, p->workers + p->servers, "local");
}

static plan usual(int workers, int servers)
{
    plan p;
    memset(&p, 0, sizeof p);
    p.workers = workers;
    p.servers = servers;
    p.signal = SIGKILL;
    p.timeout = 20;
    for (int w = 0; w < MOST; w++) {
        p.options[w].portion = portion;
        p.options[w].portions = 8;
        p.options[w].lbfgs.tolerance = 1e-4f;
    }
    return p;
}

/* ---- where one process comes to ---- */

typedef struct serial {
    worker w;
    dml_trainer *trainer;
} serial;

static double loss_of(void *user, const float *x, float *g)
{
    serial *s = (serial *)user;
    double sum = 0;
    memcpy(dml_trainer_host(s->trainer, DML_PARAMETERS, 0, COUNT), x, COUNT * sizeof *x);
    dml_trainer_put(s->trainer, DML_PARAMETERS, 0, COUNT);
    CHECK_INT(compute(&s->w, s->trainer, 0, SAMPLES, &sum), DML_OK);
    memcpy(g, dml_trainer_get(s->trainer, DML_GRADIENTS, 0, COUNT), COUNT * sizeof *g);
    return sum / SAMPLES;
}

static dml_lbfgs_result alone;
static float best[COUNT], first_gradient[COUNT];
static double first_loss;

static void minimise_alone(void)
{
    serial s;
    const dml_lbfgs_options options = { .tolerance = 1e-4f };
    make_samples(&s.w);
    s.trainer = make_trainer(0);
    memcpy(best, dml_trainer_get(s.trainer, DML_PARAMETERS, 0, COUNT), sizeof best);
    first_loss = loss_of(&s, best, first_gradient);
    CHECK_INT(dml_lbfgs_minimize(COUNT, best, loss_of, &s, &options, &alone), DML_OK);
    CHECK_MESSAGE(alone.end == DML_LBFGS_CONVERGED && alone.iterations > 10 && alone.value > 0.1,
                  "end %d after %d iterations: %g", (int)alone.end, alone.iterations, alone.value);
    dml_close(dml_trainer_context(s.trainer));
}

static void check_plan(const plan *p, const char *name)
{
    for (int r = 0; r < p->workers + p->servers; r++) {
        if (is_mortal(p, r)) continue;
        CHECK_MESSAGE(p->status[r] == DML_OK && !p->bad[r], "%s: rank %d of %d + %d: %d, %d wrong: %s %s",
                      name, r, p->workers, p->servers, p->status[r], p->bad[r], p->error[r],
                      p->comm_error[r]);
        if (r >= p->workers) continue;
        CHECK_INT(p->results[r].lbfgs.end, DML_LBFGS_CONVERGED);
        CHECK_NEAR(p->results[r].lbfgs.value, alone.value, 1e-6);
        CHECK(memcmp(&p->results[r], &p->results[0], sizeof p->results[r]) == 0);
        CHECK(memcmp(p->w[r], p->w[0], sizeof p->w[r]) == 0);
        for (int i = 0; i < COUNT; i++) CHECK_NEAR(p->w[r][i], best[i], 2e-2);
    }
}

static void comes_to_the_same_minimum(void)
{
    for (int workers = 1; workers <= 3; workers++)
        for (int servers = 1; servers <= 2; servers++) {
            plan p = usual(workers, servers);
            if (workers == 2) p.options[0].portions = servers == 1 ? 0 : 200; /* most of them empty */
            run_plan(&p);
            check_plan(&p, "usual");
            const int others = p.computed[1] + p.computed[2];
            CHECK(workers == 1 ? p.computed[0] > 0 : p.computed[0] == 0 && others > 0);
            CHECK_MESSAGE(abs(p.results[0].lbfgs.evaluations - alone.evaluations) < 10, "%d and %d",
                          p.results[0].lbfgs.evaluations, alone.evaluations);
            CHECK(p.results[0].lost == 0 && p.results[0].repeated == 0);
            for (int r = workers; r < workers + servers; r++) CHECK_INT(p.reports[r].lost, 0);
        }
}

/* A slow worker's portion is computed by another, too, and what comes of it later is nothing. */
static void waits_for_no_slow_worker(void)
{
    plan p = usual(3, 2);
    p.slow = SLOW;
    run_plan(&p);
    check_plan(&p, "slow");
    CHECK_INT(p.late, 0);
    CHECK(p.results[0].again > 0 && p.results[0].dropped > 0);
    CHECK_INT(p.computed[1] + p.computed[2], 8 * p.results[0].lbfgs.evaluations + p.results[0].dropped);
    p = usual(3, 2);
    p.slow = SLOW;
    p.options[0].lbfgs.iterations = 1;
    run_plan(&p);
    CHECK_INT(p.results[0].lbfgs.evaluations, 2); /* the late result came in the second */
    for (int r = 0; r < 3; r++) CHECK(p.status[r] == DML_OK && !p.bad[r]);
}

static void counts_a_portion_once(void)
{
    plan p = usual(4, 1);
    float largest = 0;
    for (int i = 0; i < COUNT; i++) largest = fmaxf(largest, fabsf(first_gradient[i]));
    p.slow = SLOW_IN_TURN;
    p.options[0].portions = 3;
    p.options[0].lbfgs.tolerance = 1e6f; /* one evaluation */
    run_plan(&p);
    CHECK_INT(p.late, 0);
    for (int r = 0; r < 4; r++) {
        CHECK_MESSAGE(p.status[r] == DML_OK, "%s", p.error[r]);
        CHECK_NEAR(p.results[r].lbfgs.value, first_loss, 1e-6);
        CHECK_NEAR(p.results[r].lbfgs.gradient, largest, 1e-6);
        CHECK_INT(p.results[r].again, 2);
        CHECK_INT(p.results[r].dropped, 2);
    }
}

/* ---- deaths ---- */

static plan *shared_plans(int count)
{
    return (plan *)mmap(NULL, (size_t)count * sizeof(plan), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void start_death(plan *p)
{
    test_rank ranks[MOST];
    const int world = p->workers + p->servers;
    fflush(stdout);
    ranks_prepare(ranks, world, p->timeout, NULL, NULL);
    for (int rank = 0; rank < world; rank++) {
        const pid_t pid = fork();
        if (pid) __atomic_store_n(&p->pids[rank], pid, __ATOMIC_SEQ_CST);
        if (pid) continue;
        alarm(300); /* should the test be killed */
        ranks[rank].options.transport = p->how % 2 ? "tcp" : "shm";
        dml_comm *comm = dml_comm_open(&ranks[rank].options);
        take_part(p, rank, comm);
        dml_comm_close(comm);
        _exit(0);
    }
}

/* Who neither dies nor is the victim comes to an end by itself. */
static void end_death(plan *p, const char *name, double until)
{
    const int world = p->workers + p->servers;
    for (int rank = 0; rank < world; rank++) {
        if (is_mortal(p, rank) || (p->kills && rank == p->victim)) continue;
        pid_t ended;
        while ((ended = waitpid(p->pids[rank], NULL, WNOHANG)) == 0 && dml_seconds() < until)
            ranks_sleep(0.001);
        CHECK_MESSAGE(ended > 0, "%s: rank %d of %d + %d hung", name, rank, p->workers, p->servers);
        if (ended > 0) p->pids[rank] = 0;
    }
    for (int rank = 0; rank < world; rank++) {
        if (!p->pids[rank]) continue;
        kill(p->pids[rank], SIGKILL);
        waitpid(p->pids[rank], NULL, 0);
    }
}

static void run_death(plan *p, const char *name)
{
    start_death(p);
    end_death(p, name, dml_seconds() + 60 * JOB_SLOW);
}

static void goes_on_without_the_dead(void)
{
    static const char *const names[] = { "first portion", "later portion", "push", "idle" };
    plan *p = shared_plans(1);
    for (int how = 0; how <= IDLE; how++)
        for (int workers = 2; workers <= 3; workers++) {
            *p = usual(workers, 2);
            p->dies = 1;
            p->how = how;
            run_death(p, names[how]);
            check_plan(p, names[how]);
            CHECK_INT(p->results[0].lost, 1);
            CHECK_INT(p->results[0].repeated, how == IN_A_PUSH);
            CHECK(workers == 3 ? p->computed[2] > 0 : p->computed[0] > 0);
            for (int r = workers; r < workers + 2; r++) CHECK_INT(p->reports[r].lost, 1);
        }
    munmap(p, sizeof *p);
}

/* Nobody else has what they have. */
static void ends_without_a_server_or_worker_0(void)
{
    plan *p = shared_plans(1);
    for (int victim = 0; victim < 5; victim += 4) {
        *p = usual(3, 2);
        p->kills = true;
        p->victim = victim;
        run_death(p, "kills");
        for (int r = 0; r < 5; r++) {
            if (r == victim) continue;
            CHECK_INT(p->status[r], DML_ERROR_PEER);
            if (r < 3) CHECK_CONTAINS(p->error[r], victim ? "rank 4" : "rank 0");
        }
    }
    munmap(p, sizeof *p);
}

/* ---- who freezes ---- */

typedef struct freeze {
    const char *name;
    int workers, signal;
    bool with_others;
    int how;
    const char *says; /* at all others; NULL: nothing, the job goes on */
} freeze;

/* Nobody waits without end for who is stopped or comes back from a portion no more; whoever is in a call for
   longer than the timeout does neither. All at once, since each takes as long as that. */
static void ends_with_the_frozen(void)
{
    static const freeze all[] = {
        { "stopped at the start", 2, SIGSTOP, false, AT_THE_START, "worker 1 " },
        { "stopped idle", 2, SIGSTOP, false, IDLE, "worker 1 " },
        { "stopped in the first portion", 2, SIGSTOP, false, IN_THE_FIRST_PORTION, "worker 1 " },
        { "stopped in a later portion", 2, SIGSTOP, false, IN_A_LATER_PORTION, "worker 1 " },
        { "hangs in a later portion", 2, 0, false, IN_A_LATER_PORTION, "worker 1 " },
        { "stopped in a push", 2, SIGSTOP, false, IN_A_PUSH, "worker 1 " },
        { "both stopped", 3, SIGSTOP, true, IN_A_LATER_PORTION, "worker " },
        { "one of two stopped", 3, SIGSTOP, false, IN_THE_FIRST_PORTION, "" },
        { "a server stopped", 1, SIGSTOP, false, 0, "rank 1" },
        { "killed after a long call", 2, SIGKILL, false, AFTER_A_LONG_CALL, NULL },
    };
    enum { JOBS = sizeof all / sizeof all[0] };
    plan *plans = shared_plans(JOBS);
    for (int i = 0; i < JOBS; i++) {
        plan *p = &plans[i];
        *p = usual(all[i].workers, 1);
        p->dies = all[i].workers > 1;
        p->kills = all[i].workers == 1;
        p->victim = 1;
        p->signal = all[i].signal;
        p->with_others = all[i].with_others;
        p->how = all[i].how;
        p->timeout = 2 * JOB_SLOW;
        start_death(p);
    }
    const double until = dml_seconds() + 60 * JOB_SLOW;
    for (int i = 0; i < JOBS; i++) {
        const plan *p = &plans[i];
        end_death(&plans[i], all[i].name, until);
        if (!all[i].says) check_plan(p, all[i].name);
        for (int r = 0; all[i].says && r <= p->workers; r++) {
            if (is_mortal(p, r) || (p->kills && r == p->victim)) continue;
            CHECK_MESSAGE(p->status[r] == DML_ERROR_TIMEOUT && strstr(p->comm_error[r], all[i].says),
                          "%s: rank %d: %d, %s", all[i].name, r, p->status[r], p->comm_error[r]);
            CHECK_MESSAGE(all[i].with_others ? is_mortal(p, p->culprit[r]) : p->culprit[r] == p->victim,
                          "%s: rank %d blames rank %d: %s", all[i].name, r, p->culprit[r], p->comm_error[r]);
        }
    }
    munmap(plans, JOBS * sizeof *plans);
}

/* ---- what is refused ---- */

static void check_refused(plan p, dml_status status, const char *says)
{
    run_plan(&p);
    for (int r = 0; r < p.workers; r++) {
        CHECK_INT(p.status[r], status);
        CHECK_CONTAINS(p.error[r], says);
        CHECK_CONTAINS(p.comm_error[r], says);
    }
    CHECK(p.status[p.workers] != DML_OK);
}

static void refused(void)
{
    for (int i = 0; i < 5; i++) {
        plan p = usual(2, 1);
        dml_sandblaster_options *o = &p.options[i % 2];
        switch (i) {
        case 0: o->portion = NULL; break;
        case 1: o->portions = -1; break;
        case 2: o->lbfgs.history = 101; break;
        case 3: o->lbfgs.tolerance = NAN; break;
        default: o->lbfgs.iterations = -1; break;
        }
        check_refused(p, DML_ERROR_ARGUMENT, "Sandblaster with portion");
    }
    plan p = usual(2, 1);
    p.claimed_workers = INT_MAX;
    check_refused(p, DML_ERROR_ARGUMENT, "a cluster of 2147483647 workers");
    p = usual(2, 1);
    p.options[1].lbfgs.history = 3;
    check_refused(p, DML_ERROR_MISMATCH, "with vectors 10, where worker 0 has 24");
    p = usual(3, 1);
    p.fails = 2;
    check_refused(p, DML_ERROR_IO, "of 8 failed: ");
    p = usual(2, 1);
    p.not_finite = true;
    check_refused(p, DML_ERROR_ARGUMENT, "can't begin where the loss is");
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    minimise_alone();
    RUN(comes_to_the_same_minimum);
    RUN(waits_for_no_slow_worker);
    RUN(counts_a_portion_once);
    RUN(goes_on_without_the_dead);
    RUN(ends_without_a_server_or_worker_0);
    RUN(ends_with_the_frozen);
    RUN(refused);
    return test_report("dist/sandblaster");
}
