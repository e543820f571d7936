/* Two ranks over shared memory, mostly played by one thread: the pieces between them, and who is woken. */
#include "shm_ranks.h"

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
    check_nothing_is_held();
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

/* Each in a thread of its own. */
static void run_two(void *(*run)(void *), const char *what)
{
    static const traffic none = { 0, 0, 0, 0 };
    if (!two_open(0)) return;
    run_threads(two, 2, &none, run);
    check_ranks(two, 2, what);
    two_close();
}

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
        if (i % 3 == 0) t->calls->defer(t, true);
        if (i % 2 == me->settings.rank) {
            send_bytes(t, other, DML__CHANNEL_DATA, "12345678", 8);
            t->calls->defer(t, false);
            continue;
        }
        /* Looks a few times more or less, so that the byte comes at every moment of falling asleep. */
        for (int look = i % 50; look > 0 && t->calls->lend(t, other, &lent) == 0;) look--;
        while (t->calls->lend(t, other, &lent) == 0 && !me->wrong)
            if (t->calls->wait(t, wishes, 20) == 0) me->wrong = "nobody has rung";
        if (!me->wrong) t->calls->consume(t, other, 8);
        t->calls->defer(t, false);
    }
    return NULL;
}

enum { FILLED = 500 };

/* Rank 0 sends until there is no room, and sleeps; rank 1 takes all that there is, and then says so. */
static void *fill_and_empty(void *argument)
{
    rank *me = (rank *)argument;
    dml__transport *t = me->transport;
    const uint8_t wishes[2] = { DML__WISH_RECEIVE, DML__WISH_SEND };
    const void *lent;
    for (int sent = 0, taken = 0; sent + taken < FILLED && !me->wrong;) {
        if (me->settings.rank == 0) {
            if (send_bytes(t, 1, DML__CHANNEL_DATA, "12345678", 8) == 8)
                sent++;
            else if (t->calls->wait(t, wishes, 20) == 0)
                me->wrong = "nobody has rung";
            continue;
        }
        if (t->calls->wait(t, wishes, 20) == 0) me->wrong = "nothing has come";
        t->calls->defer(t, true);
        while (t->calls->lend(t, 0, &lent) > 0) t->calls->consume(t, 0, 8), taken++;
        t->calls->defer(t, false);
    }
    return NULL;
}

static void who_sleeps_for_room_is_rung(void)
{
    run_two(fill_and_empty, "sleeping for room");
}

static void who_sleeps_is_rung(void)
{
    run_two(hand_back_and_forth, "sleeping");
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
    RUN(who_sleeps_is_rung);
    RUN(who_sleeps_for_room_is_rung);
    return test_report("net/shm_pair");
}
