/* Ranks over shared memory, as threads and as processes: who shares it with whom, and whatever fails. */
#include "shm_ranks.h"

#include <dirent.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#if defined(__linux__)
#include <sched.h>
#endif

static traffic traffic_of(size_t most, int world)
{
    const traffic t = { 20 * most > 400000 ? 1000000 : 20 * most + 1000, 20000 / (size_t)world, most,
                        (unsigned)(world * 10 + (int)most) };
    return t;
}

static void what_is_large_is_read_where_it_is(void)
{
    if (!can_read()) {
        SKIP("no memory can be read");
        return;
    }
    /* 0: read; the others find out that it can't be, and send it all the same. */
    for (int how = 0; how < 4; how++)
        for (int world = 2; world <= (TEST_SLOW ? 3 : 5); world++) {
            rank ranks[TRAFFIC_RANKS];
            const traffic t = traffic_of(how ? 50000 : 400000, world);
            memset(&fails, 0, sizeof fails);
            bytes_read = 0;
            rank_prepare(ranks, world, world % 2 ? 4096 : 0, world % 2 ? 1000 : -1);
            for (int i = 0; i < world; i++) ranks[i].settings.no_reads = how == 1;
            fails.read = how == 2;
            fails.other_seal = how == 3;
            run_threads(ranks, world, &t, rank_main);
            check_ranks(ranks, world, "reads");
            CHECK_STRING(ranks[0].media[1], "shm");
            CHECK((bytes_read > 0) == (how == 0));
        }
    memset(&fails, 0, sizeof fails);
}

static void threads_send_each_other_all(void)
{
    static const size_t most[] = { 8, 700, 9000, 300000 };
    static const size_t rings[] = { 4096, 65536, 0, 1 << 20 };
    for (int world = 2; world <= 5; world++)
        for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
            rank ranks[TRAFFIC_RANKS];
            const traffic t = traffic_of(most[i], world);
            rank_prepare(ranks, world, rings[(i + (size_t)world) % 4], world % 2 ? 1000 : -1);
            run_threads(ranks, world, &t, rank_main);
            check_ranks(ranks, world, "threads");
            if (can_share()) CHECK_STRING(ranks[0].media[1], "shm");
        }
}

/* ---- ranks as processes ---- */

static int names_in_dev_shm(void)
{
    int count = 0;
    DIR *folder = opendir("/dev/shm");
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;)
        count += strstr(entry->d_name, "dml") != NULL;
    if (folder) closedir(folder);
    return count;
}

/* Starts a child for each rank but the first `stay`. */
static void start_children(rank *ranks, int world, int stay, pid_t *children, void *(*run)(void *))
{
    for (int i = stay; i < world; i++) {
        children[i] = fork();
        if (children[i] != 0) continue;
        for (int other = 0; other < world; other++)
            if (other != i) ranks[other].below->calls->abandon(ranks[other].below);
        run(&ranks[i]);
        if (ranks[i].wrong) fprintf(stderr, "rank %d: %s\n", i, ranks[i].wrong);
        _exit(ranks[i].wrong ? 1 : 0);
    }
    for (int i = stay; i < world; i++) ranks[i].below->calls->abandon(ranks[i].below);
}

static void processes_send_each_other_all(void)
{
    static const size_t most[] = { 64, 9000, 300000 };
    for (int world = 2; world <= 4; world++)
        for (size_t i = 0; i < 3; i++) {
            rank ranks[TRAFFIC_RANKS];
            pid_t children[TRAFFIC_RANKS];
            const traffic t = traffic_of(most[i], world);
            rank_prepare(ranks, world, i == 1 ? 4096 : 0, i == 0 ? -1 : 0);
            for (int r = 0; r < world; r++) ranks[r].traffic = &t;
            start_children(ranks, world, 1, children, rank_main);
            rank_main(&ranks[0]);
            check_ranks(ranks, 1, "processes");
            for (int r = 1; r < world; r++) {
                int status = 1;
                waitpid(children[r], &status, 0);
                CHECK_INT(status, 0);
            }
        }
    CHECK_INT(names_in_dev_shm(), 0);
}

/* Sends and takes without end. */
static void *chatter(void *argument)
{
    rank *me = (rank *)argument;
    const int other = 1 - me->settings.rank;
    uint8_t wishes[2] = { 0, 0 };
    static uint64_t x[3000];
    dml__span span = { x, sizeof x };
    const void *lent;
    rank_open(me);
    if (!me->transport) {
        me->wrong = me->culprit == other ? NULL : "another culprit";
        return NULL;
    }
    dml__transport *t = me->transport;
    wishes[other] = DML__WISH_RECEIVE | DML__WISH_SEND;
    for (;;) {
        const ptrdiff_t sent = t->calls->offer(t, other, &span, 1);
        const ptrdiff_t got = t->calls->lend(t, other, &lent);
        if (got == DML__LENDS_NOTHING) break;
        for (ptrdiff_t i = 0; i < got; i++)
            if (((const char *)lent)[i]) me->wrong = "wrong data";
        if (got > 0) t->calls->consume(t, other, (size_t)got);
        if (got == DML__GONE) break;
        /* Where only sending says so, there may still be something to take. */
        if (sent == DML__GONE) wishes[other] = DML__WISH_RECEIVE;
        if (sent <= 0 && got == 0 && t->calls->wait(t, wishes, 20) == 0) {
            me->wrong = "nobody said that the other one has died";
            break;
        }
    }
    t->calls->close(t);
    return NULL;
}

static void who_is_killed_leaves_nothing(void)
{
    if (!can_share()) {
        SKIP("no memory can be shared");
        return;
    }
    for (int round = 0; round < 40; round++) {
        rank ranks[2];
        pid_t children[2];
        pthread_t thread;
        int status;
        rank_prepare(ranks, 2, round % 2 ? 4096 : 0, round % 3 ? -1 : 0);
        start_children(ranks, 2, 1, children, chatter);
        pthread_create(&thread, NULL, chatter, &ranks[0]);
        usleep((useconds_t)(round * 317 % 9000));
        kill(children[1], SIGKILL);
        waitpid(children[1], &status, 0);
        pthread_join(thread, NULL);
        CHECK_MESSAGE(!ranks[0].wrong, "round %d: %s", round, ranks[0].wrong);
        if (!ranks[0].transport) ranks[0].below->calls->close(ranks[0].below);
        check_nothing_is_held();
        CHECK_INT(names_in_dev_shm(), 0);
    }
}

/* ---- who shares memory with whom ---- */

static void nothing_happens(int number)
{
    (void)number;
}

/* A program that is profiled gets a signal every millisecond, say. (Kernels whose posix_fallocate a signal
   ends would fail here without the library's parts; newer ones take the memory all the same.) */
static void memory_is_had_in_spite_of_signals(void)
{
    const dml__host_calls *host = dml__system_host();
    const size_t bytes = (size_t)16 << 20;
    const int first = host->create(bytes);
    if (first < 0) {
        SKIP("no memory can be shared");
        return;
    }
    host->close(first);
    struct sigaction action, old;
    memset(&action, 0, sizeof action);
    action.sa_handler = nothing_happens; /* and no SA_RESTART */
    sigaction(SIGALRM, &action, &old);
    const struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, never = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &often, NULL);
    int missing = 0;
    for (int i = 0; i < 10; i++) {
        const int fd = host->create(bytes);
        missing += fd < 0;
        if (fd >= 0) host->close(fd);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &old, NULL);
    CHECK_INT(missing, 0);
}

static void hosts_are_told_apart(void)
{
    rank ranks[TRAFFIC_RANKS];
    const traffic t = traffic_of(9000, 4);
    if (!can_share()) {
        SKIP("no memory can be shared");
        return;
    }
    rank_prepare(ranks, 4, 0, 0);
    ranks[1].host = ranks[3].host = 1;
    ranks[2].settings.off = true;
    run_threads(ranks, 4, &t, rank_main);
    check_ranks(ranks, 4, "hosts");
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (i != j) CHECK_STRING(ranks[i].media[j], i + j == 4 && i != 2 ? "shm" : "sockets");
    CHECK(ranks[2].transport == ranks[2].below);
}

static void whatever_fails_leaves_the_sockets(void)
{
    for (int what = 0; what < 8; what++) {
        rank ranks[TRAFFIC_RANKS];
        const traffic t = traffic_of(700, 3);
        memset(&fails, 0, sizeof fails);
        fails.identity = what == 0;
        fails.create = what == 1;
        fails.open = what == 2;
        fails.map = what == 3;
        fails.random = what == 4;
        fails.other_token = what == 5;
        rank_prepare(ranks, 3, what == 6 ? 5000 : 0, 0);
        if (what == 7)
            for (int i = 0; i < 3; i++) ranks[i].settings.off = true;
        run_threads(ranks, 3, &t, rank_main);
        check_ranks(ranks, 3, "failures");
        for (int i = 0; i < 3; i++) CHECK_STRING(ranks[i].media[(i + 1) % 3], "sockets");
        check_nothing_is_held();
    }
    memset(&fails, 0, sizeof fails);
}

/* ---- memory of several ranks ---- */

enum { SHARED = 3, SHARED_BYTES = 300000 };

static void *open_in_thread(void *argument)
{
    rank_open((rank *)argument);
    return NULL;
}

static void open_three(rank ranks[SHARED])
{
    pthread_t threads[SHARED];
    rank_prepare(ranks, SHARED, 0, 0);
    for (int r = 0; r < SHARED; r++) pthread_create(&threads[r], NULL, open_in_thread, &ranks[r]);
    for (int r = 0; r < SHARED; r++) pthread_join(threads[r], NULL);
}

/* All see what each writes; whoever drops it leaves it to the others. */
static void all_have_the_same_memory(void)
{
    rank ranks[SHARED];
    uint8_t place[DML__SHARED_PLACE], *memory[SHARED], *second;
    if (!can_share()) {
        SKIP("no memory can be shared");
        return;
    }
    open_three(ranks);
    for (int r = 0; r < SHARED; r++) {
        dml__transport *t = ranks[r].transport;
        memory[r] = (uint8_t *)(r ? t->calls->shared->find(t, SHARED_BYTES, place)
                                  : t->calls->shared->make(t, SHARED_BYTES, place));
        CHECK(memory[r] && (uintptr_t)memory[r] % 64 == 0);
    }
    CHECK(memory[0] != memory[1]);
    for (int i = 0; i < SHARED_BYTES; i++) CHECK(memory[1][i] == 0);
    for (int r = 0; r < SHARED; r++) memory[r][r ? SHARED_BYTES - r : 0] = (uint8_t)(r + 1);
    for (int r = 0; r < SHARED; r++)
        CHECK(memory[r][0] == 1 && memory[r][SHARED_BYTES - 1] == 2 && memory[r][SHARED_BYTES - 2] == 3);
    /* What was made before can't be found by its place any more, nor by another size. */
    dml__transport *first = ranks[0].transport, *last = ranks[2].transport;
    CHECK(!last->calls->shared->find(last, SHARED_BYTES + 1, place));
    uint8_t other[DML__SHARED_PLACE];
    second = (uint8_t *)first->calls->shared->make(first, SHARED_BYTES, other);
    CHECK(second && second != memory[0]);
    CHECK(!last->calls->shared->find(last, SHARED_BYTES, place));
    other[DML__SHARED_PLACE - 1] ^= 1;
    CHECK(!last->calls->shared->find(last, SHARED_BYTES, other));
    first->calls->shared->drop(first, second, SHARED_BYTES);
    first->calls->shared->drop(first, memory[0], SHARED_BYTES);
    first->calls->close(first);
    CHECK(memory[1][0] == 1 && memory[2][SHARED_BYTES - 1] == 2);
    for (int r = 1; r < SHARED; r++) {
        ranks[r].transport->calls->shared->drop(ranks[r].transport, memory[r], SHARED_BYTES);
        ranks[r].transport->calls->close(ranks[r].transport);
    }
    check_nothing_is_held();
}

static void memory_of_all_may_fail(void)
{
    rank ranks[SHARED];
    uint8_t place[DML__SHARED_PLACE];
    if (!can_share()) {
        SKIP("no memory can be shared");
        return;
    }
    open_three(ranks);
    dml__transport *maker = ranks[0].transport, *finder = ranks[1].transport;
    for (int what = 0; what < 3; what++) {
        fails.create = what == 0;
        fails.map = what == 1;
        fails.random = what == 2;
        CHECK(!maker->calls->shared->make(maker, SHARED_BYTES, place));
        memset(&fails, 0, sizeof fails);
    }
    void *memory = maker->calls->shared->make(maker, SHARED_BYTES, place);
    CHECK(memory);
    for (int what = 0; what < 2; what++) {
        fails.open = what == 0;
        fails.map = what == 1;
        CHECK(!finder->calls->shared->find(finder, SHARED_BYTES, place));
        memset(&fails, 0, sizeof fails);
    }
    /* A process, or a descriptor of it, that there can't be. */
    for (int what = 0; what < 2; what++) {
        uint8_t nowhere[DML__SHARED_PLACE];
        memcpy(nowhere, place, sizeof nowhere);
        memset(nowhere + (what ? 8 : 0), 255, what ? 4 : 8);
        CHECK(!finder->calls->shared->find(finder, SHARED_BYTES, nowhere));
    }
    maker->calls->shared->drop(maker, memory, SHARED_BYTES);
    for (int r = 0; r < SHARED; r++) ranks[r].transport->calls->close(ranks[r].transport);
    check_nothing_is_held();
}

static void namespaces_are_hosts(void)
{
#if defined(__linux__)
    uint64_t mine = 0, childs = 0;
    int ends[2], status;
    if (!can_share() || pipe(ends) != 0) {
        SKIP("no memory can be shared");
        return;
    }
    dml__system_host()->identity(&mine);
    const pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWNET) != 0) _exit(2);
        dml__system_host()->identity(&childs);
        _exit(write(ends[1], &childs, sizeof childs) == sizeof childs ? 0 : 1);
    }
    waitpid(child, &status, 0);
    if (WEXITSTATUS(status) == 2) {
        SKIP("no network namespace can be made");
    } else {
        CHECK_INT(read(ends[0], &childs, sizeof childs), sizeof childs);
        CHECK(childs != mine);
    }
    close(ends[0]);
    close(ends[1]);
#endif
}

static bool count_control(void *user)
{
    char dust[64];
    dml__span span = { dust, sizeof dust };
    rank *me = (rank *)user;
    me->below->calls->receive(me->below, 1, DML__CHANNEL_CONTROL, &span, 1);
    return dust[0] != 'x';
}

static void who_does_not_answer_is_named(void)
{
    for (int how = 0; how < 5; how++) {
        rank ranks[2];
        dml__memory memory;
        char said[64] = "x";
        dml__span span = { said, sizeof said };
        rank_prepare(ranks, 2, 0, 0);
        ranks[0].settings.seconds = how == 0 ? 0.05 : 60;
        ranks[0].settings.control = count_control;
        ranks[0].settings.user = &ranks[0];
        dml__transport *other = ranks[1].below;
        if (how == 1) other->calls->close(other);
        if (how == 2) other->calls->send(other, 0, DML__CHANNEL_DATA, &span, 1);
        if (how == 3) other->calls->send(other, 0, DML__CHANNEL_CONTROL, &span, 1);
        if (how == 4) dml__memory_init(&ranks[0].memory, NULL, &memory, sizeof memory);
        rank_open(&ranks[0]);
        CHECK(!ranks[0].transport);
        CHECK_INT(ranks[0].culprit, how == 3 ? -1 : how == 4 ? 0 : 1);
        ranks[0].below->calls->close(ranks[0].below);
        if (how != 1) other->calls->close(other);
        check_nothing_is_held();
    }
}

int main(void)
{
    prepare_calls();
    RUN(what_is_large_is_read_where_it_is);
    RUN(namespaces_are_hosts);
    RUN(hosts_are_told_apart);
    RUN(memory_is_had_in_spite_of_signals);
    RUN(whatever_fails_leaves_the_sockets);
    RUN(all_have_the_same_memory);
    RUN(memory_of_all_may_fail);
    RUN(who_does_not_answer_is_named);
    RUN(who_is_killed_leaves_nothing);
    RUN(threads_send_each_other_all);
    RUN(processes_send_each_other_all);
    return test_report("net/shm");
}
