/* Workers that die between what they say to one server and to the next, under servers with backup workers:
   these go on at a clock that some servers have ended and others can't any more. */
#include "dist/parameter_server.h"

#include "../comm/ranks.h"
#include "dist/parameter_server_worker.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { WORKERS = 4, SERVERS = 3, RANKS = WORKERS + SERVERS, COUNT = 3000, END = 8 };

/* The last worker is late: it goes on at a clock that it has from server 0. The others end `clocks` clocks at
   the first `reach` servers; who doesn't reach all of them dies then. */
typedef struct story {
    int workers, servers, backup, clocks;
    int reach[WORKERS - 1];
    int late_reach; /* of the late one's first clock; 0: it lives */
} story;

/* What the processes share. */
typedef struct notes {
    bool caught_up; /* the late worker has */
    int status[RANKS], wrong[RANKS];
    char error[RANKS][256];
    dml_ps_report reports[SERVERS];
} notes;

static bool dies(const story *s, int worker)
{
    if (worker < s->workers - 1) return s->reach[worker] < s->servers;
    return s->late_reach > 0;
}

/* Whether anybody ended the first clocks there. */
static bool is_reached(const story *s, int server)
{
    for (int w = 0; w < s->workers - 1; w++)
        if (s->reach[w] > server) return true;
    return false;
}

/* A clock of 1 for each element, as far as the first servers hear of it. */
static void end_clock(dml_ps *ps, const float *g, int servers)
{
    int64_t header[DML__PS_HEADER];
    dml_ps_wait(ps, dml_ps_push(ps, g, 0, dml__ps_border(&ps->link, servers), 1));
    dml__ps_header(ps, header, DML__PS_CLOCK, 0, 0, 0);
    header[DML__PS_REAL_2] = dml__ps_bits(1);
    for (int s = 0; s < servers; s++) dml__ps_say(ps, s, header);
    ps->clock++;
}

static void begin(const story *s, int me, dml_ps *ps, float *w, const float *g, notes *all)
{
    const bool late = me == s->workers - 1;
    while (late && !dml_ps_clocks(ps) && !dml_comm_status(ps->link.all))
        dml_ps_wait(ps, dml_ps_pull(ps, w, 0, COUNT));
    if (late) __atomic_store_n(&all->caught_up, true, __ATOMIC_SEQ_CST);
    for (int clock = 0; !late && clock < s->clocks; clock++) end_clock(ps, g, s->reach[me]);
    if (!dies(s, me)) return;
    if (late) end_clock(ps, g, s->late_reach);
    while (!__atomic_load_n(&all->caught_up, __ATOMIC_SEQ_CST)) ranks_sleep(0.001);
    raise(SIGKILL);
}

static void work(const story *s, int me, dml_comm *comm, const dml_cluster *cluster, notes *all)
{
    static float w[COUNT], g[COUNT];
    dml_ps_options options;
    memset(&options, 0, sizeof options);
    options.backup = s->backup;
    for (int i = 0; i < COUNT; i++) g[i] = 1;
    dml_ps *ps = dml_ps_open(comm, cluster, COUNT, w, &options);
    if (!ps) return;
    begin(s, me, ps, w, g, all);
    while (dml_ps_clocks(ps) < END && !dml_comm_status(comm)) {
        dml_ps_push(ps, g, 0, COUNT, 1);
        dml_ps_clock(ps);
        dml_ps_wait(ps, dml_ps_pull(ps, w, 0, COUNT));
    }
    dml_ps_wait(ps, dml_ps_pull(ps, w, 0, COUNT)); /* till all servers are there */
    for (int server = 0; server < s->servers; server++)
        for (size_t i = dml__ps_border(&ps->link, server); i < dml__ps_border(&ps->link, server + 1); i++)
            all->wrong[me] += w[i] != (float)(is_reached(s, server) ? END : END - s->clocks);
    dml_ps_close(ps);
}

static void run_rank(const story *s, test_rank *me, notes *all)
{
    const dml_cluster cluster = dml_cluster_of(me->rank, s->workers, s->servers);
    dml_comm *comm = dml_comm_open(&me->options);
    if (dml_cluster_is_server(&cluster))
        dml_ps_serve(comm, &cluster, NULL, &all->reports[me->rank - s->workers]);
    else
        work(s, me->rank, comm, &cluster, all);
    all->status[me->rank] = (int)dml_comm_status(comm);
    snprintf(all->error[me->rank], sizeof all->error[0], "%s", dml_comm_error(comm));
    dml_comm_close(comm);
}

static void tell(const story *s, const char *transport)
{
    const int world = s->workers + s->servers;
    test_rank ranks[RANKS];
    pid_t pids[RANKS];
    notes *all = (notes *)mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int dead = 0;
    ranks_prepare(ranks, world, TEST_SLOW ? 15 : 5, NULL, NULL);
    for (int r = 0; r < world; r++) {
        pids[r] = fork();
        if (pids[r]) continue;
        ranks[r].options.transport = transport;
        run_rank(s, &ranks[r], all);
        _exit(0);
    }
    for (int r = 0; r < world; r++) waitpid(pids[r], NULL, 0);
    for (int w = 0; w < s->workers; w++) dead += dies(s, w);
    for (int r = 0; r < world; r++)
        CHECK_MESSAGE((r < s->workers && dies(s, r)) || (!all->status[r] && !all->wrong[r]),
                      "%s: rank %d of %d + %d: %d wrong: %s", transport, r, s->workers, s->servers,
                      all->wrong[r], all->error[r]);
    for (int server = 0; server < s->servers; server++) {
        CHECK_INT(all->reports[server].clocks, END);
        CHECK_INT(all->reports[server].lost, dead);
    }
    munmap(all, sizeof *all);
}

static void tell_both(story s)
{
    tell(&s, "shm");
    tell(&s, "tcp");
}

static void one_dies(void)
{
    tell_both((story){ 3, 2, 1, 1, { 1, 2 }, 0 });
    tell_both((story){ 3, 3, 1, 1, { 2, 3 }, 0 });
    tell_both((story){ 4, 2, 2, 1, { 1, 2, 1 }, 0 });
}

/* Some servers have nothing of a clock, and go on without it. */
static void all_but_the_late_one_die(void)
{
    tell_both((story){ 3, 2, 1, 1, { 1, 1 }, 0 });
    tell_both((story){ 4, 3, 1, 1, { 2, 1, 1 }, 0 });
}

static void clocks_ahead(void)
{
    tell_both((story){ 2, 2, 1, 3, { 1 }, 0 });
}

static void the_late_one_dies(void)
{
    tell_both((story){ 3, 2, 1, 1, { 2, 2 }, 1 });
    tell_both((story){ 3, 3, 2, 1, { 3, 3 }, 2 });
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    RUN(one_dies);
    RUN(all_but_the_late_one_die);
    RUN(clocks_ahead);
    RUN(the_late_one_dies);
    return test_report("dist/parameter_server_backup");
}
