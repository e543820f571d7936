/* Ranks are threads of this process, and processes where one has to die. */
#include "dist/parameter_server.h"

#include "../comm/ranks.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { MOST = 8, STEPS = 12 };

/* What the ranks of a job do. */
typedef struct plan {
    int workers, servers;
    size_t count;
    int pieces; /* of which each push and pull is made */
    int steps;
    dml_ps_options options;
    bool shm, with_rule;
    int late; /* this worker begins late; -1: none */
    void (*check)(const struct plan *plan, int worker, uint64_t clock, const float *w);
    /* results */
    dml_ps_report reports[MOST];
    float *last[MOST]; /* of each worker (count), what it pulled last */
    int bad[MOST];
    uint64_t lag[MOST];    /* how far a worker was ever ahead of the slowest */
    uint64_t clocks[MOST]; /* of each worker, as it goes */
} plan;

static float gradient_at(int worker, uint64_t clock, size_t i)
{
    return (float)((int)((i * 7 + clock * 13 + (size_t)worker * 29) % 41) - 20) / 64;
}

static double weight_of(int worker)
{
    return 1 + worker;
}

/* The mean over the workers of a clock, as it is applied to w; sums of small fractions are exact. */
static float step_of(const plan *p, uint64_t clock, size_t i)
{
    double sum = 0, weights = 0;
    for (int w = 0; w < p->workers; w++) {
        sum += weight_of(w) * (double)gradient_at(w, clock, i);
        weights += weight_of(w);
    }
    return (float)(sum / weights);
}

static dml_status halved(void *user, size_t begin, size_t count, float *w, const float *g, uint64_t step,
                         double rate)
{
    int *calls = (int *)user;
    (void)begin;
    (*calls)++;
    for (size_t i = 0; i < count; i++) w[i] += (float)rate * 0.5f * g[i] + 0.0f * (float)step;
    return DML_OK;
}

static void push_and_pull(plan *p, int me, dml_ps *ps, float *w, float *g)
{
    const size_t n = p->count;
    const uint64_t clock = dml_ps_clocks(ps);
    for (size_t i = 0; i < n; i++) g[i] = gradient_at(me, clock, i);
    for (int k = 0; k < p->pieces; k++) {
        const size_t begin = n * (size_t)k / (size_t)p->pieces, end = n * (size_t)(k + 1) / (size_t)p->pieces;
        p->bad[me] += !dml_ps_push(ps, g + begin, begin, end, weight_of(me));
    }
    p->bad[me] += dml_ps_clock(ps) != DML_OK;
    for (int k = p->pieces - 1; k >= 0; k--) {
        const size_t begin = n * (size_t)k / (size_t)p->pieces, end = n * (size_t)(k + 1) / (size_t)p->pieces;
        p->bad[me] += !dml_ps_pull(ps, w + begin, begin, end);
    }
    p->bad[me] += dml_ps_wait(ps, DML_PS_ALL) != DML_OK;
    __atomic_store_n(&p->clocks[me], dml_ps_clocks(ps), __ATOMIC_SEQ_CST);
}

/* Until the others are far ahead, or as far as they can get. */
static void be_late(plan *p, int me)
{
    const uint64_t ahead = p->options.consistency == DML_PS_STALE ? (uint64_t)p->options.staleness : 6;
    for (int other = 0; other < p->workers; other++)
        while (other != me && __atomic_load_n(&p->clocks[other], __ATOMIC_SEQ_CST) < ahead)
            ranks_sleep(0.001);
}

static void work(plan *p, int me, dml_comm *comm, const dml_cluster *cluster)
{
    const size_t n = p->count;
    float *w = (float *)calloc(n + 1, sizeof *w), *g = (float *)calloc(n + 1, sizeof *g);
    for (size_t i = 0; i < n; i++) w[i] = me == 0 ? (float)(i % 5) : -1;
    dml_ps *ps = dml_ps_open(comm, cluster, n, w, &p->options);
    for (int step = 0; ps && (step < p->steps); step++) {
        if (me == p->late && step == 0) be_late(p, me);
        push_and_pull(p, me, ps, w, g);
        for (int other = 0; other < p->workers; other++) {
            const uint64_t theirs = __atomic_load_n(&p->clocks[other], __ATOMIC_SEQ_CST);
            if (dml_ps_clocks(ps) > theirs && dml_ps_clocks(ps) - theirs > p->lag[me])
                p->lag[me] = dml_ps_clocks(ps) - theirs;
        }
        if (p->check) p->check(p, me, dml_ps_clocks(ps), w);
    }
    p->bad[me] += !ps || dml_ps_workers(ps) < 1;
    p->last[me] = w;
    dml_ps_close(ps);
    free(g);
}

static void body(test_rank *me)
{
    plan *p = (plan *)me->user;
    const dml_cluster cluster = dml_cluster_of(me->rank, p->workers, p->servers);
    if (!dml_cluster_is_server(&cluster)) {
        work(p, me->rank, me->comm, &cluster);
        return;
    }
    dml_ps_options options;
    memset(&options, 0, sizeof options);
    int calls = 0;
    if (p->with_rule) {
        options.rule.apply = halved;
        options.rule.user = &calls;
    }
    me->bad += dml_ps_serve(me->comm, &cluster, &options, &p->reports[me->rank - p->workers]) != DML_OK;
    me->bad += p->with_rule && p->count && !calls;
}

static void run_plan(plan *p)
{
    test_rank ranks[MOST];
    const int world = p->workers + p->servers;
    memset(p->bad, 0, sizeof p->bad);
    memset(p->lag, 0, sizeof p->lag);
    memset(p->clocks, 0, sizeof p->clocks);
    ranks_prepare(ranks, world, 20, body, p);
    ranks_run_on(ranks, world, p->shm ? "shm" : "local");
    for (int r = 0; r < world; r++)
        CHECK_MESSAGE(!ranks[r].bad && !p->bad[r] && !ranks[r].status,
                      "rank %d of %d + %d: %d and %d wrong: %s", r, p->workers, p->servers, ranks[r].bad,
                      r < p->workers ? p->bad[r] : 0, ranks[r].error);
}

static void forget_plan(plan *p)
{
    for (int w = 0; w < p->workers; w++) {
        free(p->last[w]);
        p->last[w] = NULL;
    }
}

static plan usual(int workers, int servers, size_t count)
{
    plan p;
    memset(&p, 0, sizeof p);
    p.workers = workers;
    p.servers = servers;
    p.count = count;
    p.pieces = 1;
    p.steps = STEPS;
    p.late = -1;
    return p;
}

/* Of unlike rates the first worker's counts, whoever comes last. */
static void rates_body(test_rank *me)
{
    dml_cluster cluster;
    memset(&cluster, 0, sizeof cluster);
    cluster.workers = 2;
    cluster.servers = 1;
    cluster.rank = me->rank;
    if (me->rank == 2) {
        me->bad += dml_ps_serve(me->comm, &cluster, NULL, NULL) != DML_OK;
        return;
    }
    float w = 0, g = 1;
    dml_ps *ps = dml_ps_open(me->comm, &cluster, 1, &w, NULL);
    dml_ps_set_rate(ps, me->rank ? 100 : 1);
    for (int clock = 1; clock <= 6; clock++) {
        if (clock % 2 == me->rank) ranks_sleep(0.01);
        dml_ps_push(ps, &g, 0, 1, 1);
        dml_ps_clock(ps);
        me->bad += dml_ps_wait(ps, dml_ps_pull(ps, &w, 0, 1)) != DML_OK || w != (float)clock;
    }
    me->bad += dml_ps_close(ps) != DML_OK;
}

static void unlike_rates(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 20, rates_body, NULL);
    ranks_run_on(ranks, 3, "local");
    for (int r = 0; r < 3; r++)
        CHECK_MESSAGE(!ranks[r].bad, "rank %d: %d wrong: %s", r, ranks[r].bad, ranks[r].error);
}

static void check_synchronous(const plan *p, int worker, uint64_t clock, const float *w)
{
    int wrong = 0;
    for (size_t i = 0; i < p->count; i++) {
        float want = (float)(i % 5);
        for (uint64_t c = 0; c < clock; c++) want += step_of(p, c, i) * (p->with_rule ? 0.5f : 1);
        wrong += fabsf(w[i] - want) > 1e-4f;
    }
    ((plan *)(uintptr_t)p)->bad[worker] += wrong;
}

/* Any number of workers and servers, counts that divide or don't, in several pieces, over other transports.
 */
static void synchronous(void)
{
    static const size_t counts[] = { 1, 5, 1000, 70001, TEST_SLOW ? 131 : 200003 };
    for (int workers = 1; workers <= 3; workers++)
        for (int servers = 1; servers <= 3; servers += TEST_SLOW ? 2 : 1)
            for (int c = 0; c < 5; c++) {
                if (counts[c] < (size_t)servers) continue; /* which is refused */
                plan p = usual(workers, servers, counts[c]);
                p.pieces = 1 + (workers + servers + c) % 3;
                p.shm = c == 2;
                p.with_rule = c % 2;
                p.steps = c == 4 ? 3 : STEPS;
                p.check = check_synchronous;
                run_plan(&p);
                for (int s = 0; s < servers; s++) {
                    CHECK_INT(p.reports[s].lost, 0);
                    CHECK_INT(p.reports[s].first_lost, -1);
                    CHECK_INT(p.reports[s].elements, p.reports[s].pushed);
                }
                forget_plan(&p);
            }
}

/* In the end everything has been applied, in whatever order. */
static void check_sums(const plan *p, const float *w, float tolerance)
{
    int wrong = 0;
    for (size_t i = 0; i < p->count; i++) {
        double want = (double)(i % 5);
        for (int worker = 0; worker < p->workers; worker++)
            for (uint64_t c = 0; c < (uint64_t)p->steps; c++)
                want += weight_of(worker) * (double)gradient_at(worker, c, i);
        wrong += !(fabs((double)w[i] - want) <= (double)tolerance);
    }
    CHECK_INT(wrong, 0);
}

/* Nothing is lost: who pulls last has all, which somebody does after everybody's push. */
static const float *last_sums(const plan *p)
{
    for (int w = 0; w < p->workers; w++)
        if (w == p->late) return p->last[w];
    return p->last[0];
}

static void asynchronous_and_stale(void)
{
    for (int staleness = -1; staleness < 3; staleness++)
        for (int workers = 1; workers <= 3; workers++) {
            plan p = usual(workers, 2, 70001);
            p.pieces = 2;
            p.options.consistency = staleness < 0 ? DML_PS_ASYNCHRONOUS : DML_PS_STALE;
            p.options.staleness = staleness < 0 ? 0 : staleness;
            p.late = 0;
            run_plan(&p);
            if (workers == 1) check_sums(&p, last_sums(&p), 1e-4f);
            for (int w = 0; w < workers; w++) {
                /* One more than the staleness: the others' clocks are noted a little later than they are. */
                if (staleness >= 0)
                    CHECK_MESSAGE(p.lag[w] <= (uint64_t)staleness + 1, "staleness %d: worker %d was %d ahead",
                                  staleness, w, (int)p.lag[w]);
            }
            if (workers > 1) CHECK(p.lag[1] >= (uint64_t)(staleness < 0 ? 6 : staleness));
            for (int s = 0; s < 2; s++) CHECK_INT(p.reports[s].clocks, workers * STEPS);
            forget_plan(&p);
        }
}

/* Without the slow one the others go on; what it sends too late isn't there. */
static void backup_workers(void)
{
    plan p = usual(3, 2, 1000);
    p.options.backup = 1;
    p.late = 2;
    run_plan(&p);
    for (int s = 0; s < 2; s++) {
        CHECK(p.reports[s].clocks >= STEPS);
        CHECK(p.reports[s].clocks < 3 * STEPS);
    }
    CHECK(p.reports[0].dropped > 0 && p.reports[1].dropped > 0);
    forget_plan(&p);
}

static void halves_on_the_wire(void)
{
    for (int both = 0; both < 2; both++) {
        plan p = usual(1, 2, 70001);
        p.options.push_dtype = both ? DML_F16 : DML_BF16;
        p.options.pull_dtype = both ? DML_BF16 : DML_F32;
        p.pieces = 3;
        run_plan(&p);
        /* Gradients of so few bits are exact in both; w isn't. */
        int wrong = 0;
        for (size_t i = 0; i < p.count; i++) {
            float want = (float)(i % 5);
            for (uint64_t c = 0; c < STEPS; c++) want += gradient_at(0, c, i);
            wrong += fabsf(p.last[0][i] - want) > (both ? 0.02f : 1e-4f);
        }
        CHECK_INT(wrong, 0);
        forget_plan(&p);
    }
}

/* What is too small waits until there is enough of it: the servers are never further away than that. */
static void only_what_changed(void)
{
    for (int narrow = 0; narrow < 2; narrow++) {
        plan p = usual(1, 2, 150001);
        p.options.threshold = 0.31f;
        p.options.push_dtype = narrow ? DML_BF16 : DML_F32;
        p.pieces = 2;
        run_plan(&p);
        int wrong = 0;
        for (size_t i = 0; i < p.count; i++) {
            float want = (float)(i % 5);
            for (uint64_t c = 0; c < STEPS; c++) want += gradient_at(0, c, i);
            wrong += fabsf(p.last[0][i] - want) > (narrow ? 0.35f : 0.3101f);
        }
        CHECK_INT(wrong, 0);
        CHECK(p.reports[0].pushed < p.reports[0].elements);
        CHECK(p.reports[0].pushed > 0);
        forget_plan(&p);
        p.options.threshold = 0.01f; /* nearly all: it goes as it is */
        run_plan(&p);
        CHECK_INT(p.reports[0].pushed, p.reports[0].elements);
        forget_plan(&p);
    }
}

/* ---- parts of a clock ---- */

enum { PARTS_COUNT = 70000 };

/* Worker w pushes what comes behind its first w eighths, but for the last one, and one element by itself;
   each element is the mean of those who pushed it, whoever that is. */
static void parts_body(test_rank *me)
{
    const dml_cluster cluster = dml_cluster_of(me->rank, 3, 1);
    if (dml_cluster_is_server(&cluster)) {
        me->bad += dml_ps_serve(me->comm, &cluster, NULL, NULL) != DML_OK;
        return;
    }
    const size_t eighth = PARTS_COUNT / 8;
    float *w = (float *)calloc(PARTS_COUNT, sizeof *w), *g = (float *)calloc(PARTS_COUNT, sizeof *g);
    for (size_t i = 0; i < PARTS_COUNT; i++) g[i] = (float)(me->rank + 1);
    dml_ps *ps = dml_ps_open(me->comm, &cluster, PARTS_COUNT, w, NULL);
    for (int clock = 1; clock <= 3; clock++) {
        const size_t begin = (size_t)me->rank * eighth;
        dml_ps_push(ps, g + begin, begin, 7 * eighth, me->rank == 2 ? 2 : 1);
        if (me->rank == 1) dml_ps_push(ps, g, 8 * eighth - 1, 8 * eighth, 3);
        dml_ps_clock(ps);
        me->bad += dml_ps_wait(ps, dml_ps_pull(ps, w, 0, PARTS_COUNT)) != DML_OK;
        for (size_t i = 0; i < PARTS_COUNT; i++) {
            const float means[] = { 1, 1.5f, 2.25f, 2.25f, 2.25f, 2.25f, 2.25f, 0, 0 };
            const float mean = i == 8 * eighth - 1 ? 2 : means[i / eighth];
            me->bad += w[i] != (float)clock * mean;
        }
    }
    me->bad += dml_ps_close(ps) != DML_OK;
    free(w);
    free(g);
}

static void parts_of_a_clock(void)
{
    test_rank ranks[4];
    ranks_prepare(ranks, 4, 20, parts_body, NULL);
    ranks_run_on(ranks, 4, "local");
    for (int r = 0; r < 4; r++)
        CHECK_MESSAGE(!ranks[r].bad && !ranks[r].status, "rank %d: %d wrong: %s", r, ranks[r].bad,
                      ranks[r].error);
}

/* More of them than a server keeps: every other element. */
static void scattered_body(test_rank *me)
{
    const dml_cluster cluster = dml_cluster_of(me->rank, 1, 1);
    if (dml_cluster_is_server(&cluster)) {
        dml_ps_serve(me->comm, &cluster, NULL, NULL);
        return;
    }
    static float w[4000];
    dml_ps *ps = dml_ps_open(me->comm, &cluster, 4000, w, NULL);
    for (size_t i = 0; i < 4000 && !dml_comm_status(me->comm); i += 2) dml_ps_push(ps, w, i, i + 1, 1);
    dml_ps_clock(ps);
    dml_ps_wait(ps, dml_ps_pull(ps, w, 0, 4000));
    dml_ps_close(ps);
}

static void too_many_parts(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, scattered_body, NULL);
    ranks_run_on(ranks, 2, "local");
    for (int r = 0; r < 2; r++) CHECK_CONTAINS(ranks[r].error, "into more than 1086 ranges that are unlike");
}

/* ---- many under way, and the servers' other vectors ---- */

static void many_body(test_rank *me)
{
    enum { N = 3000 };
    const dml_cluster cluster = dml_cluster_of(me->rank, 2, 2);
    if (dml_cluster_is_server(&cluster)) {
        me->bad += dml_ps_serve(me->comm, &cluster, NULL, NULL) != DML_OK;
        return;
    }
    dml_ps_options options;
    memset(&options, 0, sizeof options);
    options.consistency = DML_PS_ASYNCHRONOUS;
    options.vectors = 2;
    float *w = (float *)calloc(N, sizeof *w), *g = (float *)calloc(N, sizeof *g),
          *x = (float *)calloc(N, sizeof *x);
    for (int i = 0; i < N; i++) g[i] = (float)(i % 7);
    dml_ps *ps = dml_ps_open(me->comm, &cluster, N, w, &options);
    dml_ps_ticket tickets[N / 3];
    for (int i = 0; i < N / 3; i++) { /* one by one, far more than there are requests */
        dml_ps_push(ps, g + i, (size_t)i, (size_t)i + 1, 1);
        tickets[i] = dml_ps_pull(ps, w + i, (size_t)i, (size_t)i + 1);
    }
    for (int i = N / 3 - 1; i >= 0; i--) {
        me->bad += dml_ps_wait(ps, tickets[i]) != DML_OK;
        me->bad += w[i] != g[i] && w[i] != 2 * g[i];
    }
    dml_comm_barrier(dml_ps_workers_comm(ps));
    if (me->rank == 0) {
        double value = 0;
        me->bad += !dml_ps_push_to(ps, 1, g, 0, N);
        me->bad += dml_ps_axpby(ps, 2, 1, 0, 2) != DML_OK;  /* v2 = 2 g */
        me->bad += dml_ps_axpby(ps, -3, 1, 1, 2) != DML_OK; /* v2 = - g */
        me->bad += dml_ps_dot(ps, 1, 2, &value) != DML_OK;
        double want = 0;
        for (int i = 0; i < N; i++) want -= (double)g[i] * (double)g[i];
        me->bad += value != want;
        me->bad += dml_ps_largest(ps, 2, &value) != DML_OK || value != 6;
        me->bad += dml_ps_wait(ps, dml_ps_pull_from(ps, 2, x, 10, N)) != DML_OK;
        for (int i = 10; i < N; i++) me->bad += x[i - 10] != -g[i];
        const float nan[1] = { NAN };
        me->bad += !dml_ps_push_to(ps, 1, nan, 1, 2);
        me->bad += dml_ps_largest(ps, 1, &value) != DML_OK || !isnan(value);
    }
    me->bad += dml_ps_close(ps) != DML_OK;
    free(w);
    free(g);
    free(x);
}

static void many_under_way(void)
{
    static const char *const transports[] = { "tcp", "shm", "local" };
    for (int t = 0; t < 3; t++) {
        test_rank ranks[4];
        ranks_prepare(ranks, 4, 20, many_body, NULL);
        ranks_run_on(ranks, 4, transports[t]);
        for (int r = 0; r < 4; r++)
            CHECK_MESSAGE(!ranks[r].bad && !ranks[r].status, "%s: rank %d: %d wrong: %s", transports[t], r,
                          ranks[r].bad, ranks[r].error);
    }
}

/* ---- what is refused ---- */

typedef struct refusal {
    dml_ps_options options[2]; /* of worker 0 and 1 */
    size_t counts[2];
    int bad_call; /* of worker 1, once it is open */
    bool servers_differ;
    const char *says;
} refusal;

static void refused_body(test_rank *me)
{
    const refusal *r = (const refusal *)me->user;
    const dml_cluster cluster = dml_cluster_of(me->rank, 2, 1);
    float w[8] = { 0 };
    if (dml_cluster_is_server(&cluster)) {
        const dml_cluster other = dml_cluster_of(2, 1, 2);
        dml_ps_serve(me->comm, r->servers_differ ? &other : &cluster, NULL, NULL);
        return;
    }
    dml_ps *ps = dml_ps_open(me->comm, &cluster, r->counts[me->rank], w, &r->options[me->rank]);
    if (ps && me->rank == 1) {
        switch (r->bad_call) {
        case 1: dml_ps_push(ps, w, 3, 9, 1); break;
        case 2: dml_ps_pull(ps, NULL, 0, 8); break;
        case 3: dml_ps_push(ps, w, 0, 8, -1); break;
        case 4: dml_ps_axpby(ps, 1, 0, 0, 1); break;
        case 5: dml_ps_push_to(ps, 0, w, 0, 8); break;
        case 6: dml_ps_wait(ps, 0); break;
        case 7: dml_ps_dot(ps, 0, 0, NULL); break;
        case 8: dml_ps_largest(ps, 0, NULL); break;
        default: break;
        }
    }
    if (ps && me->rank == 0) dml_ps_wait(ps, dml_ps_pull(ps, w, 0, 8));
    if (ps) dml_comm_barrier(dml_ps_workers_comm(ps)); /* where the others' errors are heard */
    dml_ps_close(ps);
}

static void bad_input(void)
{
    const refusal cases[] = {
        { .counts = { 8, 7 }, .says = "rank 1: a parameter server with count 7, where worker 0 has 8" },
        { .counts = { 8, 8 }, .options[1].backup = 1, .says = "with backup 1, where worker 0 has 0" },
        { .counts = { 8, 8 }, .options[1].threshold = 1, .says = "with threshold 1, where worker 0 has 0" },
        { .counts = { 8, 8 }, .options[1].idle_s = 3, .says = "with idle_s 3, where worker 0 has 0" },
        { .counts = { 8, 8 }, .options[1].push_dtype = DML_BF16, .says = "with push_dtype bf16, where" },
        { .counts = { 8, 8 },
          .options[1].consistency = DML_PS_ASYNCHRONOUS,
          .says = "with consistency asynchronous, where worker 0 has synchronous" },
        { .counts = { 8, 8 }, .options[0].idle_s = -1, .says = "idle_s must be 0 or more" },
        { .counts = { 8, 8 }, .options[0].backup = 2, .says = "fewer backup workers than workers" },
        { .counts = { 8, 8 }, .options[0].staleness = -2, .says = "staleness must be 0 or more" },
        { .counts = { 8, 8 }, .options[0].push_dtype = DML_I8, .says = "DML_F32, DML_BF16 or DML_F16" },
        { .counts = { 8, 8 }, .options[0].vectors = 400, .says = "0 to 256 more vectors" },
        { .counts = { 8, 8 }, .servers_differ = true, .says = "with workers 1, where worker 0 has 2" },
        { .counts = { 0, 0 }, .says = "1 servers for 0 elements: each keeps one at least" },
        { .counts = { 8, 8 }, .bad_call = 1, .says = "a push of elements 3 to 9 of vector 0; there are 8" },
        { .counts = { 8, 8 }, .bad_call = 2, .says = "a pull of elements 0 to 8 of vector 0 with NULL" },
        { .counts = { 8, 8 }, .bad_call = 3, .says = "a push of weight -1" },
        { .counts = { 8, 8 }, .bad_call = 4, .says = "vectors 0 and 1 asked for; there are 0 to 0" },
        { .counts = { 8, 8 }, .bad_call = 5, .says = "of vector -1" },
        { .counts = { 8, 8 }, .bad_call = 6, .says = "a push or pull that never began" },
        { .counts = { 8, 8 }, .bad_call = 7, .says = "a dot product asked for, with NULL for its place" },
        { .counts = { 8, 8 }, .bad_call = 8, .says = "the largest element asked for, with NULL" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_rank ranks[3];
        ranks_prepare(ranks, 3, 5, refused_body, (void *)(uintptr_t)&cases[i]);
        ranks_run_on(ranks, 3, "local");
        for (int r = 0; r < 3; r++) CHECK_CONTAINS(ranks[r].error, cases[i].says);
    }
}

/* ---- deaths ---- */

enum { DEATH_COUNT = 150000 };

/* Each process notes here what became of it. */
typedef struct note {
    int status, culprit, clocks, living, lost, first_lost;
    char error[256];
} note;

static void die_in_step(dml_ps *ps, float *g, int how)
{
    if (how == 1) dml_ps_push(ps, g, 0, DEATH_COUNT / 2, 1);
    if (how == 2) {
        dml_ps_push(ps, g, 0, DEATH_COUNT, 1);
        dml_ps_clock(ps);
        dml_ps_pull(ps, g, 0, DEATH_COUNT);
    }
    raise(SIGKILL);
}

static void live_or_die(int rank, int victim, int how, dml_comm *comm, note *mine)
{
    const dml_cluster cluster = dml_cluster_of(rank, 3, 2);
    dml_ps_report report;
    memset(&report, 0, sizeof report);
    if (dml_cluster_is_server(&cluster)) {
        if (rank == victim) alarm(1); /* kills it while it serves */
        mine->status = (int)dml_ps_serve(comm, &cluster, NULL, &report);
    } else {
        float *w = (float *)calloc(DEATH_COUNT, sizeof *w), *g = (float *)calloc(DEATH_COUNT, sizeof *g);
        dml_ps *ps = dml_ps_open(comm, &cluster, DEATH_COUNT, w, NULL);
        for (int step = 0; step < (victim >= 3 ? 1000000 : 30) && !dml_comm_status(comm); step++) {
            if (rank == victim && step == 3) die_in_step(ps, g, how);
            for (int i = 0; i < DEATH_COUNT; i++) g[i] = 1;
            dml_ps_push(ps, g, 0, DEATH_COUNT, 1);
            dml_ps_clock(ps);
            dml_ps_wait(ps, dml_ps_pull(ps, w, 0, DEATH_COUNT));
        }
        mine->clocks = (int)dml_ps_clocks(ps);
        mine->living = dml_ps_workers(ps);
        int wrong = 0; /* each clock adds 1, however many there were to say so */
        for (int i = 0; i < DEATH_COUNT; i++) wrong += fabsf(w[i] - (float)mine->clocks) > 1e-3f;
        if (victim < 3 && wrong) mine->clocks = -wrong;
        mine->status = (int)dml_comm_status(comm);
        snprintf(mine->error, sizeof mine->error, "%s", dml_comm_error(comm));
        dml_ps_close(ps);
    }
    mine->lost = report.lost;
    mine->first_lost = report.first_lost;
}

static void run_death(int victim, int how, const char *transport, note *notes)
{
    test_rank ranks[5];
    pid_t pids[5];
    memset(notes, 0, 5 * sizeof *notes);
    ranks_prepare(ranks, 5, 60, NULL, NULL);
    for (int rank = 0; rank < 5; rank++) {
        pids[rank] = fork();
        if (pids[rank]) continue;
        ranks[rank].options.transport = transport;
        dml_comm *comm = dml_comm_open(&ranks[rank].options);
        live_or_die(rank, victim, how, comm, &notes[rank]);
        dml_comm_close(comm);
        _exit(0);
    }
    for (int rank = 0; rank < 5; rank++) waitpid(pids[rank], NULL, 0);
}

static void deaths(void)
{
    note *notes =
        (note *)mmap(NULL, 5 * sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int how = 0; how < 3; how++)
        for (int victim = 0; victim < 2; victim++) {
            run_death(victim, how, how % 2 ? "tcp" : "shm", notes);
            for (int rank = 0; rank < 5; rank++) {
                if (rank == victim) continue;
                CHECK_MESSAGE(notes[rank].status == DML_OK, "how %d, worker %d: rank %d has %d: %s", how,
                              victim, rank, notes[rank].status, notes[rank].error);
                if (rank < 3) CHECK_INT(notes[rank].clocks, 30);
                if (rank < 3) CHECK_INT(notes[rank].living, 2);
                if (rank >= 3) CHECK_INT(notes[rank].lost, 1);
                if (rank >= 3) CHECK_INT(notes[rank].first_lost, victim);
            }
        }
    run_death(4, 0, "tcp", notes);
    for (int rank = 0; rank < 4; rank++) {
        CHECK_INT(notes[rank].status, DML_ERROR_PEER);
        if (rank < 3) CHECK_CONTAINS(notes[rank].error, "rank 4 of 5 died");
    }
    munmap(notes, 5 * sizeof *notes);
}

/* The last worker that is left does nothing more, and nobody waits for it but the server; or (`stays`) worker
   0, too, which answers for itself. */
static void wait_for_the_last_worker(double idle, bool stays, const char *says)
{
    note *notes =
        (note *)mmap(NULL, 3 * sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    test_rank ranks[3];
    pid_t pids[3];
    ranks_prepare(ranks, 3, 60, NULL, NULL);
    for (int rank = 0; rank < 3; rank++) {
        pids[rank] = fork();
        if (pids[rank]) continue;
        const dml_cluster cluster = dml_cluster_of(rank, 2, 1);
        dml_comm *comm = dml_comm_open(&ranks[rank].options);
        dml_ps_options options;
        float w[8] = { 0 };
        memset(&options, 0, sizeof options);
        options.idle_s = idle;
        if (rank == 2) {
            if (!(idle > 0)) comm->job->timeout = 0.05;
            notes[2].status = (int)dml_ps_serve(comm, &cluster, NULL, NULL);
            notes[2].culprit = dml_comm_culprit(comm);
            snprintf(notes[2].error, sizeof notes[2].error, "%s", dml_comm_error(comm));
        } else {
            dml_ps *ps = dml_ps_open(comm, &cluster, 8, w, &options);
            dml_ps_push(ps, w, 0, 8, 1);
            dml_ps_clock(ps);
            dml_ps_wait(ps, dml_ps_pull(ps, w, 0, 8));
            if (rank == 1) raise(SIGSTOP);
            for (int clock = 0; stays && clock < 2; clock++) {
                dml_ps_push(ps, w, 0, 8, 1);
                dml_ps_clock(ps);
                dml_ps_wait(ps, dml_ps_pull(ps, w, 0, 8));
            }
            notes[rank].culprit = dml_comm_culprit(comm);
            dml_ps_close(ps);
        }
        dml_comm_close(comm);
        _exit(0);
    }
    waitpid(pids[2], NULL, 0);
    kill(pids[1], SIGKILL);
    for (int rank = 0; rank < 2; rank++) waitpid(pids[rank], NULL, 0);
    CHECK_INT(notes[2].status, DML_ERROR_TIMEOUT);
    CHECK_INT(notes[2].culprit, 1);
    CHECK_CONTAINS(notes[2].error, says);
    CHECK_CONTAINS(notes[2].error, stays
                                       ? "of the 2 that are left, worker 1 is the first that doesn't answer"
                                       : "of the 1 that are left, worker 1 is the first that doesn't answer");
    if (stays) CHECK_INT(notes[0].culprit, 1);
    munmap(notes, 3 * sizeof *notes);
}

static void a_frozen_last_worker(void)
{
    wait_for_the_last_worker(0.5, false, "no worker has asked for anything for 0.5 s (idle_s)");
    wait_for_the_last_worker(0.5, true, "no worker has asked for anything for 0.5 s (idle_s)");
    wait_for_the_last_worker(0, false, "no worker has asked for anything for 3 s (idle_s)");
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    RUN(synchronous);
    RUN(unlike_rates);
    RUN(asynchronous_and_stale);
    RUN(backup_workers);
    RUN(halves_on_the_wire);
    RUN(only_what_changed);
    RUN(parts_of_a_clock);
    RUN(too_many_parts);
    RUN(many_under_way);
    RUN(bad_input);
    RUN(deaths);
    RUN(a_frozen_last_worker);
    return test_report("dist/parameter_server");
}
