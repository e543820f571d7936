#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "net/shm.h"
#include "net/shm_internal.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include "sockets.h"
#include "traffic.h"

/* ---- a host whose calls can be made to fail ---- */

static struct {
    int identity, create, open, map, random; /* 1: fails from now on */
    int read;                                /* the same, and counts what didn't */
    bool other_token, other_seal;
} fails;
static size_t bytes_read;         /* by process_vm_readv, in all but seals */
static __thread uint64_t my_host; /* added to the identity */

static bool host_identity(uint64_t *identity)
{
    const bool known = dml__system_host()->identity(identity);
    *identity += my_host;
    return known && !fails.identity;
}

static int host_create(size_t bytes)
{
    return fails.create ? -1 : dml__system_host()->create(bytes);
}

static int host_open(long process, int fd, size_t bytes)
{
    return fails.open ? -1 : dml__system_host()->open(process, fd, bytes);
}

static void *host_map(int fd, size_t bytes)
{
    if (fails.map) return NULL;
    uint8_t *memory = (uint8_t *)dml__system_host()->map(fd, bytes);
    if (memory && fails.other_token) memory[3] ^= 1;
    return memory;
}

static bool host_random(void *out, size_t bytes)
{
    return !fails.random && dml__system_host()->random(out, bytes);
}

static bool host_read(long process, const dml__span *into, const uint64_t *from, int count)
{
    if (fails.read || !dml__system_host()->read(process, into, from, count)) return false;
    if (count > 1) __atomic_fetch_add(&bytes_read, into[0].bytes, __ATOMIC_RELAXED);
    if (fails.other_seal) ((uint8_t *)into[count - 1].data)[0] ^= 1;
    return true;
}

static dml__host_calls calls; /* filled in before a thread runs */

static const dml__host_calls *host_calls(void)
{
    return &calls;
}

static void prepare_calls(void)
{
    calls = *dml__system_host();
    calls.identity = host_identity;
    calls.create = host_create;
    calls.open = host_open;
    calls.map = host_map;
    calls.random = host_random;
    calls.read = host_read;
}

static bool can_share(void)
{
    uint64_t identity;
    const int fd = dml__system_host()->identity(&identity) ? dml__system_host()->create(4096) : -1;
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* ---- ranks ---- */

typedef struct rank {
    dml__transport *below, *transport;
    dml__shm_settings settings;
    dml__memory memory;
    uint64_t host;
    int culprit;
    const traffic *traffic;
    const char *wrong;
    char media[TRAFFIC_RANKS][16];
} rank;

static void rank_prepare(rank *ranks, int world, size_t ring, int spin)
{
    dml__transport *below[SOCKETS_RANKS];
    sockets_open(below, world, sockets_pair);
    memset(ranks, 0, (size_t)world * sizeof *ranks);
    for (int i = 0; i < world; i++) {
        ranks[i].below = below[i];
        ranks[i].settings.rank = i;
        ranks[i].settings.world = world;
        ranks[i].settings.ring_bytes = ring;
        ranks[i].settings.spin = spin;
        ranks[i].settings.seconds = 60;
        dml__memory_init(&ranks[i].memory, NULL, NULL, 0);
    }
}

static void *rank_open(void *argument)
{
    rank *me = (rank *)argument;
    my_host = me->host;
    me->transport = dml__shm_open(me->below, &me->settings, host_calls(), &me->memory, &me->culprit);
    return NULL;
}

static void *rank_main(void *argument)
{
    rank *me = (rank *)argument;
    rank_open(me);
    if (!me->transport) {
        me->wrong = "not opened";
        me->below->calls->close(me->below);
        return NULL;
    }
    for (int r = 0; r < me->settings.world; r++)
        snprintf(me->media[r], sizeof me->media[r], "%s", me->transport->calls->medium(me->transport, r));
    me->wrong = traffic_run(me->transport, me->settings.rank, me->settings.world, me->traffic);
    me->transport->calls->close(me->transport);
    return NULL;
}

static void run_threads(rank *ranks, int world, const traffic *t, void *(*run)(void *))
{
    pthread_t threads[TRAFFIC_RANKS];
    for (int i = 0; i < world; i++) ranks[i].traffic = t;
    for (int i = 0; i < world; i++) pthread_create(&threads[i], NULL, run, &ranks[i]);
    for (int i = 0; i < world; i++) pthread_join(threads[i], NULL);
}

static void check_ranks(const rank *ranks, int world, const char *what)
{
    for (int i = 0; i < world; i++)
        CHECK_MESSAGE(!ranks[i].wrong, "%s: rank %d of %d, spans of %zu, ring %zu: %s", what, i, world,
                      ranks[i].traffic->most, ranks[i].settings.ring_bytes, ranks[i].wrong);
}

static traffic traffic_of(size_t most, int world)
{
    const traffic t = { 20 * most > 400000 ? 1000000 : 20 * most + 1000, 20000 / (size_t)world, most,
                        (unsigned)(world * 10 + (int)most) };
    return t;
}

/* Whether this system lets a process read another's memory, or at least its own. */
static bool can_read(void)
{
    uint64_t here = 7, there = 0;
    const uint64_t from = (uint64_t)(uintptr_t)&here;
    dml__span into = { &there, sizeof there };
    return can_share() && dml__system_host()->read((long)getpid(), &into, &from, 1) && there == 7;
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
        CHECK_INT(names_in_dev_shm(), 0);
    }
}

/* ---- who shares memory with whom ---- */

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
    }
    memset(&fails, 0, sizeof fails);
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
    }
}

/* ---- two ranks that one thread plays ---- */

static rank two[2];
static dml__transport *a, *b;

static bool two_open(size_t ring)
{
    if (!can_share()) {
        SKIP("no memory can be shared");
        return false;
    }
    rank_prepare(two, 2, ring, -1);
    run_threads(two, 2, NULL, rank_open);
    a = two[0].transport;
    b = two[1].transport;
    return a && b;
}

static void two_close(void)
{
    a->calls->close(a);
    b->calls->close(b);
}

static ptrdiff_t send_bytes(dml__transport *t, int to, dml__channel channel, const void *data, size_t bytes)
{
    const dml__span span = { (void *)(uintptr_t)data, bytes };
    return t->calls->send(t, to, channel, &span, 1);
}

static ptrdiff_t offer_bytes(dml__transport *t, int to, void *data, size_t bytes)
{
    const dml__span span = { data, bytes };
    return t->calls->offer(t, to, &span, 1);
}

static ptrdiff_t receive_bytes(dml__transport *t, int from, void *data, size_t bytes)
{
    const dml__span span = { data, bytes };
    return t->calls->receive(t, from, DML__CHANNEL_DATA, &span, 1);
}

/* 300,000 bytes of x are on offer, of which the receiver has what it read when `what` happens to them. */
static void check_taken_back(int what)
{
    static uint8_t x[300000], got[300000];
    uint8_t wishes[2] = { 0, DML__WISH_SEND };
    const void *lent;
    if (!two_open(0)) return;
    memset(x, 1, sizeof x);
    CHECK_INT(offer_bytes(a, 1, x, sizeof x), 0);
    CHECK_INT(a->calls->wait(a, wishes, 0.01), 0);
    CHECK_INT(receive_bytes(b, 0, got, 1000), 1000);
    CHECK_INT(offer_bytes(a, 1, x, sizeof x), 0); /* none of its pieces is read in full */
    CHECK_INT(b->calls->lend(b, 0, &lent), 32768);
    b->calls->consume(b, 0, 32768);
    CHECK(got[999] == 1 && ((const uint8_t *)lent)[32767] == 1);
    if (what == 0) { /* nothing */
        CHECK_INT(receive_bytes(b, 0, got, sizeof got), sizeof x - 33768);
        CHECK_INT(a->calls->wait(a, wishes, 10), DML__READY_DATA);
        CHECK_INT(offer_bytes(a, 1, x, sizeof x), sizeof x);
        CHECK_INT(receive_bytes(b, 0, got, 1), 0);
        for (size_t i = 0; i < sizeof x - 33768; i++) CHECK(got[i] == 1);
        two_close();
        return;
    }
    if (what == 1) a->calls->withdraw(a);
    if (what == 2) fails.read = 1;          /* as when the process is gone */
    if (what == 3) fails.other_seal = true; /* or is another one of the same number */
    memset(x, 2, sizeof x);
    CHECK_INT(receive_bytes(b, 0, got, 5000), DML__GONE);
    CHECK_INT(b->calls->lend(b, 0, &lent), DML__GONE);
    memset(&fails, 0, sizeof fails);
    two_close();
}

static void what_is_taken_back_is_not_received(void)
{
    if (!can_read()) {
        SKIP("no memory can be read");
        return;
    }
    for (int what = 0; what < 4; what++) check_taken_back(what);
}

/* What the receiver had read has gone, even if it left at once. */
static void who_leaves_has_taken_what_it_read(void)
{
    static uint8_t x[100000], got[100000];
    if (!can_read()) {
        SKIP("no memory can be read");
        return;
    }
    if (!two_open(0)) return;
    CHECK_INT(offer_bytes(a, 1, x, sizeof x), 0);
    CHECK_INT(receive_bytes(b, 0, got, sizeof got), sizeof got);
    b->calls->close(b);
    uint8_t wishes[2] = { 0, DML__WISH_RECEIVE };
    a->calls->wait(a, wishes, 10);
    CHECK_INT(offer_bytes(a, 1, x, sizeof x), sizeof x);
    CHECK_INT(offer_bytes(a, 1, x, sizeof x), DML__GONE);
    a->calls->close(a);
}

/* `past`: as to a far processor, past the caches where a piece is large enough. */
static void check_offsets(size_t ring, size_t large, bool past)
{
    static uint8_t memory[16384] __attribute__((aligned(64)));
    if (!two_open(ring)) return;
    size_t sent = 0, got = 0;
    unsigned random = 7;
    /* The first span stays on its way while the next ones go around, so that the ring is never empty. */
    for (int round = 0; round < 20000; round++) {
        const size_t bytes = 1 + test_random(&random) % (round % 8 ? 80 : large);
        uint8_t *data = memory + test_random(&random) % 128;
        const void *lent = NULL;
        if (past) ((dml__shm *)(uintptr_t)a)->pairs[1].out.far_lines = 2 * DML__SHM_FAR;
        traffic_fill(data, 0, 1, DML__CHANNEL_DATA, sent, bytes);
        const ptrdiff_t now = send_bytes(a, 1, DML__CHANNEL_DATA, data, bytes);
        CHECK(now >= 0 && now <= (ptrdiff_t)bytes);
        sent += (size_t)now;
        while (sent - got > (round % 100 ? 700u : 0u)) {
            const ptrdiff_t piece = b->calls->lend(b, 0, &lent);
            if (piece <= 0) {
                CHECK(piece > 0);
                break;
            }
            CHECK(traffic_is((const uint8_t *)lent, 0, 1, DML__CHANNEL_DATA, got, (size_t)piece));
            b->calls->consume(b, 0, (size_t)piece);
            got += (size_t)piece;
        }
    }
    two_close();
}

static void pieces_lie_at_every_offset(void)
{
    check_offsets(4096, 1500, false);
    check_offsets(16384, 6000, true);
    check_offsets(2 * DML__SHM_RING_NEAR, 6000, true);
}

/* A line now and then that took long says nothing. */
static void far_is_who_is_far_for_a_while(void)
{
    int lines = 0;
    for (int i = 0; i < 100; i++) {
        lines = dml__shm_judge(lines, i % 2 ? DML__SHM_FAR_TICKS : DML__SHM_FAR_TICKS - 1);
        CHECK(lines < DML__SHM_FAR);
    }
    for (int i = 0; i < 100; i++) lines = dml__shm_judge(lines, 10 * DML__SHM_FAR_TICKS);
    CHECK_INT(lines, 2 * DML__SHM_FAR);
    for (int i = 0; i < 100; i++) lines = dml__shm_judge(lines, 0);
    CHECK_INT(lines, 0);
}

static void waits_know_what_they_wait_for(void)
{
    static char x[8192], got[8192];
    uint8_t wishes[2] = { 0, 0 };
    const void *lent;
    if (!two_open(4096)) return;
    const double begin = dml_seconds();
    wishes[0] = DML__WISH_RECEIVE;
    CHECK_INT(b->calls->wait(b, wishes, 0), 0);
    CHECK_INT(b->calls->wait(b, wishes, 0.02), 0);
    CHECK(dml_seconds() - begin >= 0.02);
    CHECK_INT(b->calls->wait(b, NULL, 0.001), 0);
    wishes[0] = DML__WISH_SEND;
    CHECK_INT(b->calls->wait(b, wishes, 10), DML__READY_DATA);
    CHECK_INT(send_bytes(a, 1, DML__CHANNEL_DATA, x, sizeof x), 4096);
    wishes[0] = 0, wishes[1] = DML__WISH_SEND;
    CHECK_INT(a->calls->wait(a, wishes, 0.01), 0);
    CHECK_INT(b->calls->wait(b, wishes, 0.01), 0);
    wishes[0] = DML__WISH_RECEIVE;
    CHECK_INT(b->calls->wait(b, wishes, 10), DML__READY_DATA);
    CHECK(b->calls->lend(b, 0, &lent) > 0);
    b->calls->consume(b, 0, 10);
    const dml__span span = { got, sizeof got };
    CHECK_INT(b->calls->receive(b, 0, DML__CHANNEL_DATA, &span, 1), 4086);
    CHECK_INT(a->calls->wait(a, wishes, 10), DML__READY_DATA);
    CHECK_INT(send_bytes(a, 1, DML__CHANNEL_CONTROL, x, 8), 8);
    CHECK_INT(b->calls->wait(b, wishes, 10), DML__READY_CONTROL);
    send_bytes(a, 1, DML__CHANNEL_DATA, x, 8);
    usleep(2000); /* control is seen while there is data, too, after a while */
    CHECK_INT(b->calls->wait(b, wishes, 10), DML__READY_CONTROL | DML__READY_DATA);
    b->calls->wake(b);
    wishes[0] = 0;
    CHECK_INT(b->calls->receive(b, 0, DML__CHANNEL_CONTROL, &span, 1), 8);
    CHECK_INT(b->calls->wait(b, wishes, 60), DML__READY_WOKEN);
    CHECK_STRING(b->calls->medium(b, 0), "shm");
    two_close();
}

static void ranks_of_one_processor_know_it(void)
{
    if (!two_open(4096)) return;
    traffic_crowd(a, b);
    two_close();
}

/* Who is woken returns, also when a bell for what it has taken already is all that came beside. */
static void a_late_bell_hides_no_wake(void)
{
    uint8_t wishes[2] = { DML__WISH_RECEIVE, 0 };
    if (!two_open(4096)) return;
    CHECK_INT(send_bytes(two[0].below, 1, DML__CHANNEL_DATA, "", 1), 1);
    b->calls->wake(b);
    CHECK_INT(b->calls->wait(b, wishes, 20), DML__READY_WOKEN);
    CHECK_INT(send_bytes(two[0].below, 1, DML__CHANNEL_DATA, "", 1), 1);
    CHECK_INT(b->calls->wait(b, wishes, 0.02), 0);
    two_close();
}

static void who_has_closed_is_gone(void)
{
    char x[500] = "last words", got[600];
    const void *lent;
    uint8_t wishes[2] = { 0, 0 };
    if (!two_open(0)) return;
    send_bytes(a, 1, DML__CHANNEL_DATA, x, sizeof x);
    a->calls->close(a);
    CHECK_INT(b->calls->wait(b, wishes, 60), DML__READY_CONTROL);
    const dml__span span = { got, 100 };
    CHECK_INT(b->calls->receive(b, 0, DML__CHANNEL_CONTROL, &span, 1), DML__GONE);
    CHECK_INT(b->calls->receive(b, 0, DML__CHANNEL_DATA, &span, 1), 100);
    CHECK_INT(b->calls->lend(b, 0, &lent), 400);
    CHECK(memcmp(lent, x + 100, 400) == 0);
    b->calls->consume(b, 0, 400);
    wishes[0] = DML__WISH_RECEIVE;
    CHECK_INT(b->calls->wait(b, wishes, 60), DML__READY_DATA);
    CHECK_INT(b->calls->lend(b, 0, &lent), DML__GONE);
    CHECK_INT(b->calls->wait(b, wishes, 60), DML__READY_DATA);
    CHECK_INT(send_bytes(b, 0, DML__CHANNEL_DATA, x, 8), DML__GONE);
    b->calls->close(b);
}

/* The other end may write anything anywhere at any time. */
static void a_spoiled_ring_is_survived(void)
{
    unsigned random = 99;
    if (!can_share()) {
        SKIP("no memory can be shared");
        return;
    }
    for (int round = 0; round < 400; round++) {
        static char x[20000], got[20000];
        const uint8_t wishes[2] = { DML__WISH_RECEIVE | DML__WISH_SEND, 0 };
        if (!two_open(4096)) return;
        dml__shm_pair *pair = &((dml__shm *)(void *)b)->pairs[0];
        uint32_t *words = (uint32_t *)(void *)pair->memory;
        const uint32_t count = (uint32_t)(pair->bytes / 4);
        for (int turn = 0; turn < 60; turn++) {
            const void *lent;
            send_bytes(a, 1, DML__CHANNEL_DATA, x, test_random(&random) % sizeof x);
            send_bytes(b, 0, DML__CHANNEL_DATA, x, test_random(&random) % sizeof x);
            for (int i = 0; i < 8; i++) { /* the indices of both directions, small and large changes */
                const bool first = test_random(&random) % 2;
                uint32_t *way = (uint32_t *)(void *)(first ? pair->in.way : pair->out.way);
                uint32_t *word = test_random(&random) % 2
                                     ? way + test_random(&random) % (sizeof(dml__shm_way) / 4)
                                     : words + test_random(&random) % count;
                const unsigned kind = test_random(&random) % 4;
                *word = kind == 0 ? test_random(&random) : kind == 1 ? *word + 1 : kind == 2 ? *word - 1 : 64;
            }
            const ptrdiff_t n = b->calls->lend(b, 0, &lent);
            if (n > 0) {
                const uint8_t *begin = (const uint8_t *)lent;
                CHECK(begin >= pair->memory && begin + n <= pair->memory + pair->bytes);
                memcpy(got, lent, (size_t)n);
                b->calls->consume(b, 0, 1 + test_random(&random) % (size_t)n);
            }
            b->calls->wait(b, wishes, 0);
        }
        two_close();
    }
}

static void indices_that_make_no_sense_end_it(void)
{
    static const uint32_t off[] = { 5, DML__SHM_PIECES - 1, DML__SHM_PIECES + 1, 0x80000000u, 0xffffffffu };
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        for (int which = 0; which < 2; which++) {
            char x[2000] = ""; /* so many that it needs to know what was consumed */
            const void *lent;
            const uint8_t wishes[2] = { which ? DML__WISH_RECEIVE : DML__WISH_SEND, 0 };
            if (!two_open(4096)) return;
            dml__shm_pair *pair = &((dml__shm *)(void *)b)->pairs[0];
            send_bytes(b, 0, DML__CHANNEL_DATA, x, 8);
            *(which ? &pair->in.way->pieces[0].number : &pair->out.way->tail) += off[i];
            if (!which) {
                CHECK_INT(send_bytes(b, 0, DML__CHANNEL_DATA, x, sizeof x), DML__GONE);
            } else {
                CHECK_INT(b->calls->lend(b, 0, &lent), DML__GONE);
            }
            CHECK_INT(b->calls->wait(b, wishes, 60), DML__READY_DATA);
            two_close();
        }
}

/* ---- who sleeps is rung ---- */

enum { HANDS = 20000 };

static void *hand_back_and_forth(void *argument)
{
    rank *me = (rank *)argument;
    const int other = 1 - me->settings.rank;
    dml__transport *t = me->transport;
    uint8_t wishes[2] = { 0, 0 };
    const void *lent;
    wishes[other] = DML__WISH_RECEIVE;
    for (int i = 0; i < HANDS && !me->wrong; i++) {
        if (i % 2 == me->settings.rank) {
            send_bytes(t, other, DML__CHANNEL_DATA, "12345678", 8);
            continue;
        }
        /* Looks a few times more or less, so that the byte comes at every moment of falling asleep. */
        for (int look = i % 50; look > 0 && t->calls->lend(t, other, &lent) == 0;) look--;
        while (t->calls->lend(t, other, &lent) == 0 && !me->wrong)
            if (t->calls->wait(t, wishes, 20) == 0) me->wrong = "nobody has rung";
        if (!me->wrong) t->calls->consume(t, other, 8);
    }
    return NULL;
}

static void who_sleeps_is_rung(void)
{
    static const traffic none = { 0, 0, 0, 0 };
    if (!two_open(0)) return;
    run_threads(two, 2, &none, hand_back_and_forth);
    check_ranks(two, 2, "sleeping");
    two_close();
}

static int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void nothing_stays_open(void)
{
    const int before = open_descriptors();
    if (!two_open(0)) return;
    const int sockets = 2 * 2 + 4; /* two connections, and what wakes each */
    CHECK_INT(open_descriptors() - before, sockets);
    two_close();
    CHECK_INT(open_descriptors(), before);
}

int main(void)
{
    prepare_calls();
    RUN(nothing_stays_open);
    RUN(pieces_lie_at_every_offset);
    RUN(far_is_who_is_far_for_a_while);
    RUN(waits_know_what_they_wait_for);
    RUN(ranks_of_one_processor_know_it);
    RUN(a_late_bell_hides_no_wake);
    RUN(who_has_closed_is_gone);
    RUN(a_spoiled_ring_is_survived);
    RUN(indices_that_make_no_sense_end_it);
    RUN(what_is_taken_back_is_not_received);
    RUN(who_leaves_has_taken_what_it_read);
    RUN(what_is_large_is_read_where_it_is);
    RUN(who_sleeps_is_rung);
    RUN(namespaces_are_hosts);
    RUN(hosts_are_told_apart);
    RUN(whatever_fails_leaves_the_sockets);
    RUN(who_does_not_answer_is_named);
    RUN(who_is_killed_leaves_nothing);
    RUN(threads_send_each_other_all);
    RUN(processes_send_each_other_all);
    return test_report("net/shm");
}
