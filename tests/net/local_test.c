#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "net/local.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "traffic.h"

/* ---- ranks as threads ---- */

typedef struct rank {
    dml__transport *transport;
    int rank, world;
    const traffic *traffic;
    const char *wrong;
} rank;

static void *rank_main(void *argument)
{
    rank *me = (rank *)argument;
    me->wrong = traffic_run(me->transport, me->rank, me->world, me->traffic);
    me->transport->calls->close(me->transport);
    return NULL;
}

static dml__memory memory_of_malloc(void)
{
    dml__memory memory;
    dml__memory_init(&memory, NULL, NULL, 0);
    return memory;
}

static void check_traffic(int world, int spin, const traffic *t)
{
    dml__memory memory = memory_of_malloc();
    dml__local_world *all = dml__local_world_create(&memory, world, spin);
    pthread_t threads[TRAFFIC_RANKS];
    rank ranks[TRAFFIC_RANKS];
    for (int i = 0; i < world; i++) {
        ranks[i].transport = dml__local_open(all, i);
        ranks[i].rank = i, ranks[i].world = world, ranks[i].traffic = t;
        pthread_create(&threads[i], NULL, rank_main, &ranks[i]);
    }
    for (int i = 0; i < world; i++) {
        pthread_join(threads[i], NULL);
        CHECK_MESSAGE(!ranks[i].wrong, "rank %d of %d, spans of %zu, spin %d: %s", i, world, t->most, spin,
                      ranks[i].wrong);
    }
    dml__local_world_destroy(all);
}

static void random_traffic(void)
{
    static const size_t most[] = { 8, 700, 9000, 300000 };
    for (int world = 1; world <= 5; world++)
        for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
            const traffic t = { 20 * most[i] > 400000 ? 1000000 : 20 * most[i] + 1000, 30000 / (size_t)world,
                                most[i], (unsigned)(world * 10 + (int)i) };
            check_traffic(world, world % 2 ? 1000 : -1, &t);
        }
}

/* ---- two ranks that one thread plays ---- */

static dml__memory pair_memory;
static dml__local_world *pair_world;
static dml__transport *a, *b;

static void pair_open(int world)
{
    pair_memory = memory_of_malloc();
    pair_world = dml__local_world_create(&pair_memory, world, -1);
    a = dml__local_open(pair_world, 0);
    b = dml__local_open(pair_world, 1);
}

static void pair_close(void)
{
    a->calls->close(a);
    b->calls->close(b);
    dml__local_world_destroy(pair_world);
}

static ptrdiff_t send_bytes(dml__transport *t, int to, dml__channel channel, const void *data, size_t bytes)
{
    const dml__span span = { (void *)(uintptr_t)data, bytes };
    return t->calls->send(t, to, channel, &span, 1);
}

static ptrdiff_t receive_bytes(dml__transport *t, int from, dml__channel channel, void *data, size_t bytes)
{
    const dml__span span = { data, bytes };
    return t->calls->receive(t, from, channel, &span, 1);
}

static void data_is_lent_where_it_is(void)
{
    char x[100] = "hello", y[10] = "and more", got[100];
    const void *lent = NULL;
    const dml__span both[2] = { { x, sizeof x }, { y, sizeof y } };
    pair_open(2);
    CHECK_INT(b->calls->lend(b, 0, &lent), 0);
    CHECK_INT(send_bytes(a, 1, DML__CHANNEL_DATA, x, sizeof x), 0);
    CHECK_INT(send_bytes(a, 1, DML__CHANNEL_DATA, x, sizeof x), 0);
    CHECK_INT(b->calls->lend(b, 0, &lent), (long long)sizeof x);
    CHECK(lent == x);
    b->calls->consume(b, 0, 30);
    CHECK_INT(a->calls->send(a, 1, DML__CHANNEL_DATA, both, 2), 30); /* more follows what was offered */
    CHECK_INT(b->calls->lend(b, 0, &lent), 70);
    CHECK(lent == x + 30);
    b->calls->consume(b, 0, 0);
    CHECK_INT(receive_bytes(b, 0, DML__CHANNEL_DATA, got, 72), 72);
    CHECK(memcmp(got, x + 30, 70) == 0 && memcmp(got + 70, y, 2) == 0);
    const dml__span rest[2] = { { x + 30, 70 }, { y, sizeof y } };
    CHECK_INT(a->calls->send(a, 1, DML__CHANNEL_DATA, rest, 2), 72);
    CHECK_INT(b->calls->lend(b, 0, &lent), 8);
    CHECK(lent == y + 2);
    b->calls->consume(b, 0, 8);
    CHECK_INT(send_bytes(a, 1, DML__CHANNEL_DATA, y + 2, 8), 8);
    CHECK_INT(b->calls->lend(b, 0, &lent), 0);
    CHECK_STRING(a->calls->medium(a, 1), "local");
    pair_close();
}

static void offers_are_bounded(void)
{
    char x[40];
    dml__span spans[40];
    pair_open(2);
    for (int i = 0; i < 40; i++) x[i] = (char)i, spans[i].data = x + i, spans[i].bytes = 1;
    CHECK_INT(a->calls->send(a, 1, DML__CHANNEL_DATA, spans, 40), 0);
    int taken = 0;
    for (int sent = 0; sent < 40;) {
        char got[3];
        const ptrdiff_t n = receive_bytes(b, 0, DML__CHANNEL_DATA, got, 3);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) CHECK_INT(got[i], taken++);
        sent += (int)a->calls->send(a, 1, DML__CHANNEL_DATA, spans + sent, 40 - sent);
        CHECK_INT(sent, taken);
    }
    pair_close();
}

static void control_is_a_bounded_stream(void)
{
    uint8_t x[5000], got[5000];
    size_t at = 0;
    traffic_fill(x, 0, 1, DML__CHANNEL_CONTROL, 0, sizeof x);
    pair_open(2);
    CHECK_INT(receive_bytes(b, 0, DML__CHANNEL_CONTROL, got, 100), 0);
    CHECK_INT(send_bytes(a, 1, DML__CHANNEL_CONTROL, x, sizeof x), 4096);
    CHECK_INT(send_bytes(a, 1, DML__CHANNEL_CONTROL, x, 1), 0);
    CHECK_INT(receive_bytes(b, 0, DML__CHANNEL_CONTROL, got, sizeof got), 4096);
    CHECK(memcmp(got, x, 4096) == 0);
    for (int i = 0; i < 4096; i++) { /* messages that begin at every offset */
        const size_t bytes = 511 + (size_t)(i % 3);
        traffic_fill(x, 0, 1, DML__CHANNEL_CONTROL, at, bytes);
        CHECK_INT(send_bytes(a, 1, DML__CHANNEL_CONTROL, x, bytes), (long long)bytes);
        CHECK_INT(receive_bytes(b, 0, DML__CHANNEL_CONTROL, got, sizeof got), (long long)bytes);
        CHECK(traffic_is(got, 0, 1, DML__CHANNEL_CONTROL, at, bytes));
        at += bytes;
    }
    pair_close();
}

static void waits_know_what_they_wait_for(void)
{
    char x[8] = "x", got[8];
    const void *lent;
    uint8_t wishes[2] = { 0, 0 };
    pair_open(2);
    const double begin = dml_seconds();
    wishes[0] = DML__WISH_RECEIVE;
    CHECK_INT(b->calls->wait(b, wishes, 0), 0);
    CHECK_INT(b->calls->wait(b, wishes, 0.02), 0);
    CHECK(dml_seconds() - begin >= 0.02);
    wishes[0] = DML__WISH_SEND;
    CHECK_INT(b->calls->wait(b, wishes, 10), DML__READY_DATA);
    send_bytes(a, 1, DML__CHANNEL_DATA, x, 8);
    wishes[0] = 0, wishes[1] = DML__WISH_SEND;
    CHECK_INT(a->calls->wait(a, wishes, 0.01), 0); /* all is offered, nothing has gone */
    CHECK_INT(b->calls->wait(b, wishes, 0.01), 0); /* not wished for */
    wishes[0] = DML__WISH_RECEIVE;
    CHECK_INT(b->calls->wait(b, wishes, 10), DML__READY_DATA);
    CHECK_INT(b->calls->lend(b, 0, &lent), 8);
    b->calls->consume(b, 0, 1);
    CHECK_INT(a->calls->wait(a, wishes, 10), DML__READY_DATA);
    CHECK_INT(send_bytes(a, 1, DML__CHANNEL_DATA, x, 8), 1);
    send_bytes(a, 1, DML__CHANNEL_CONTROL, x, 8);
    wishes[0] = 0;
    CHECK_INT(b->calls->wait(b, wishes, 10), DML__READY_CONTROL);
    wishes[0] = DML__WISH_RECEIVE;
    CHECK_INT(b->calls->wait(b, wishes, 10), DML__READY_CONTROL | DML__READY_DATA);
    receive_bytes(b, 0, DML__CHANNEL_CONTROL, got, 8);
    CHECK_INT(b->calls->wait(b, wishes, 10), DML__READY_DATA);
    pair_close();
}

static void ranks_of_one_processor_know_it(void)
{
    pair_open(2);
    traffic_crowd(a, b);
    pair_close();
}

static void *wake_b(void *argument)
{
    (void)argument;
    usleep(20000);
    b->calls->wake(b);
    return NULL;
}

static void wake_ends_one_wait(void)
{
    const uint8_t wishes[2] = { DML__WISH_RECEIVE, 0 };
    pthread_t thread;
    pair_open(2);
    b->calls->wake(b);
    CHECK_INT(b->calls->wait(b, wishes, 60), DML__READY_WOKEN);
    const double begin = dml_seconds();
    CHECK_INT(b->calls->wait(b, wishes, 0.01), 0);
    CHECK(dml_seconds() - begin >= 0.01);
    pthread_create(&thread, NULL, wake_b, NULL);
    CHECK_INT(b->calls->wait(b, wishes, 60), DML__READY_WOKEN);
    CHECK(dml_seconds() - begin < 50);
    pthread_join(thread, NULL);
    pair_close();
}

static void who_has_closed_is_gone(void)
{
    char x[600] = "last words", got[600];
    const void *lent;
    uint8_t wishes[2] = { 0, 0 };
    pair_open(2);
    send_bytes(a, 1, DML__CHANNEL_CONTROL, x, 600);
    send_bytes(a, 1, DML__CHANNEL_DATA, x, 600);
    send_bytes(b, 0, DML__CHANNEL_DATA, got, 500);
    CHECK_INT(receive_bytes(a, 1, DML__CHANNEL_DATA, x, 300), 300);
    a->calls->close(a);
    CHECK_INT(b->calls->wait(b, wishes, 60), DML__READY_CONTROL);
    CHECK_INT(receive_bytes(b, 0, DML__CHANNEL_CONTROL, got, 400), 400);
    CHECK_INT(receive_bytes(b, 0, DML__CHANNEL_CONTROL, got, 400), 200);
    CHECK_INT(b->calls->wait(b, wishes, 60), DML__READY_CONTROL);
    CHECK_INT(receive_bytes(b, 0, DML__CHANNEL_CONTROL, got, 400), DML__GONE);
    CHECK_INT(b->calls->wait(b, NULL, 0.01), 0); /* it has been told */
    CHECK_INT(b->calls->lend(b, 0, &lent), DML__GONE);
    CHECK_INT(receive_bytes(b, 0, DML__CHANNEL_DATA, got, 1), DML__GONE);
    CHECK_INT(send_bytes(b, 0, DML__CHANNEL_CONTROL, x, 1), DML__GONE);
    CHECK_INT(send_bytes(b, 0, DML__CHANNEL_DATA, got, 500), 300); /* what it took before, it has */
    CHECK_INT(send_bytes(b, 0, DML__CHANNEL_DATA, got + 300, 200), DML__GONE);
    wishes[0] = DML__WISH_SEND;
    CHECK_INT(b->calls->wait(b, wishes, 60), DML__READY_DATA);
    wishes[0] = DML__WISH_RECEIVE;
    CHECK_INT(b->calls->wait(b, wishes, 60), DML__READY_DATA);
    b->calls->close(b);
    dml__local_world_destroy(pair_world);
}

/* ---- withdrawing ---- */

enum { WITHDRAWN_BYTES = 20000 };

typedef struct reader {
    dml__transport *transport;
    unsigned sum;
} reader;

static void *read_until_gone(void *argument)
{
    reader *r = (reader *)argument;
    const uint8_t wishes[3] = { DML__WISH_RECEIVE, 0, 0 };
    const void *lent;
    ptrdiff_t got;
    while ((got = r->transport->calls->lend(r->transport, 0, &lent)) != DML__GONE) {
        for (ptrdiff_t i = 0; i < got; i++) r->sum += ((const uint8_t *)lent)[i];
        if (got > 0) r->transport->calls->consume(r->transport, 0, (size_t)got > 1000 ? 1000 : (size_t)got);
        if (got == 0 && r->transport->calls->wait(r->transport, wishes, 60) == 0) break;
    }
    return NULL;
}

static void withdrawn_memory_is_read_by_nobody(void)
{
    for (int round = 0; round < 200; round++) {
        pthread_t threads[2];
        reader readers[2];
        uint8_t *x = (uint8_t *)calloc(1, WITHDRAWN_BYTES);
        pair_open(3);
        for (int i = 0; i < 2; i++) {
            readers[i].transport = dml__local_open(pair_world, i + 1);
            readers[i].sum = 0;
            pthread_create(&threads[i], NULL, read_until_gone, &readers[i]);
        }
        send_bytes(a, 1, DML__CHANNEL_DATA, x, WITHDRAWN_BYTES);
        send_bytes(a, 2, DML__CHANNEL_DATA, x, WITHDRAWN_BYTES);
        if (round % 4) usleep((useconds_t)(round * 7 % 300));
        a->calls->withdraw(a);
        memset(x, 1, WITHDRAWN_BYTES); /* ours again */
        free(x);
        CHECK_INT(send_bytes(a, 1, DML__CHANNEL_DATA, &round, sizeof round), DML__GONE);
        CHECK_INT(send_bytes(a, 1, DML__CHANNEL_CONTROL, &round, sizeof round), sizeof round);
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            CHECK_INT(readers[i].sum, 0);
            if (i == 1) readers[i].transport->calls->close(readers[i].transport);
        }
        pair_close();
    }
}

static void *withdraw_b(void *argument)
{
    (void)argument;
    b->calls->withdraw(b);
    return NULL;
}

static void two_that_withdraw_do_not_wait_for_each_other(void)
{
    for (int round = 0; round < 100; round++) {
        char x[64] = "", y[64] = "";
        const void *lent;
        pthread_t thread;
        pair_open(2);
        send_bytes(a, 1, DML__CHANNEL_DATA, x, sizeof x);
        send_bytes(b, 0, DML__CHANNEL_DATA, y, sizeof y);
        CHECK_INT(a->calls->lend(a, 1, &lent), sizeof y);
        CHECK_INT(b->calls->lend(b, 0, &lent), sizeof x);
        pthread_create(&thread, NULL, withdraw_b, NULL);
        a->calls->withdraw(a);
        pthread_join(thread, NULL);
        CHECK_INT(a->calls->lend(a, 1, &lent), DML__GONE);
        pair_close();
    }
}

/* ---- memory and forks ---- */

static void *allocate_some(void *user, size_t bytes)
{
    return (*(int *)user)-- > 0 ? malloc(bytes) : NULL;
}

static void release_it(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static void there_may_be_no_memory(void)
{
    for (int allowed = 0; allowed < 4; allowed++) {
        int left = allowed;
        const dml_allocator allocator = { allocate_some, release_it, &left };
        dml__memory memory;
        dml__memory_init(&memory, &allocator, NULL, 0);
        dml__local_world *world = dml__local_world_create(&memory, 3, 0);
        CHECK((world != NULL) == (allowed == 3));
        dml__local_world_destroy(world);
    }
    dml__memory memory = memory_of_malloc();
    CHECK(!dml__local_world_create(&memory, 0, 0));
    CHECK(!dml__local_world_create(&memory, 2000000000, 0));
}

static void a_child_lets_go(void)
{
    int status = 1;
    pair_open(2);
    const pid_t child = fork();
    if (child == 0) {
        a->calls->abandon(a);
        b->calls->abandon(b);
        dml__local_world_destroy(pair_world);
        _exit(0);
    }
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
    pair_close();
}

int main(void)
{
    RUN(data_is_lent_where_it_is);
    RUN(offers_are_bounded);
    RUN(control_is_a_bounded_stream);
    RUN(waits_know_what_they_wait_for);
    RUN(ranks_of_one_processor_know_it);
    RUN(wake_ends_one_wait);
    RUN(who_has_closed_is_gone);
    RUN(withdrawn_memory_is_read_by_nobody);
    RUN(two_that_withdraw_do_not_wait_for_each_other);
    RUN(there_may_be_no_memory);
    RUN(a_child_lets_go);
    RUN(random_traffic);
    return test_report("net/local");
}
