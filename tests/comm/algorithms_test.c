/* What the algorithms of the collectives write: their figures, names, steps and what these wait for. */
#include "comm/algorithms.h"

#include "../test.h"

enum { MOST_FIGURED = 64 };

/* What the ranks of a group write, each figure of the rank that has most. */
typedef struct figures {
    int steps;
    uint64_t elements, messages, scratch;
} figures;

static void count_rank(const dml__schedule *s, figures *most)
{
    uint64_t elements = 0, messages = 0;
    for (int i = 0; i < s->count; i++) {
        const dml__step *const step = &s->steps[i];
        const uint64_t end = step->offset + step->count, source_end = step->source + step->count;
        if (step->kind == DML__STEP_SEND) {
            elements += step->count;
            messages++;
        }
        if (step->space == DML__SPACE_SCRATCH && end > most->scratch) most->scratch = end;
        if (step->peer < 0 && step->source_space == DML__SPACE_SCRATCH && source_end > most->scratch)
            most->scratch = source_end;
    }
    if (s->count > most->steps) most->steps = s->count;
    if (elements > most->elements) most->elements = elements;
    if (messages > most->messages) most->messages = messages;
}

static figures figures_of(const dml__algorithm_info *info, int size, int root, uint64_t count)
{
    static dml__step written[9 * MOST_FIGURED + 16];
    dml__collective c;
    figures most;
    memset(&c, 0, sizeof c);
    memset(&most, 0, sizeof most);
    c.operation = info->operation;
    c.size = size;
    c.root = root;
    c.count = count;
    for (c.rank = 0; c.rank < size; c.rank++) {
        dml__schedule s = { written, 0, dml__most_steps(size), false };
        CHECK(s.capacity <= (int)(sizeof written / sizeof *written));
        info->write(&c, &s);
        CHECK_MESSAGE(!s.overflowed, "%s of operation %d has more steps than %d", info->name,
                      (int)info->operation, s.capacity);
        count_rank(&s, &most);
    }
    return most;
}

/* What the ranks send is what the textbook says; nobody writes more steps than were reserved, nor uses more
   of SCRATCH, and somebody about as many and as much. */
static void figures_hold(void)
{
    int count;
    const dml__algorithm_info *const table = dml__algorithms(&count);
    for (int m = 1; m <= MOST_FIGURED; m++) {
        int steps_needed = 0;
        for (int i = 0; i < count; i++) {
            const dml__algorithm_info *const a = &table[i];
            const uint64_t n = a->operation == DML__CALL_BARRIER ? 0 : 6 * (uint64_t)m * 64;
            const figures most = figures_of(a, m, 0, n), other = figures_of(a, m, m - 1, n);
            const uint64_t used = most.scratch > other.scratch ? most.scratch : other.scratch;
            const uint64_t scratch = a->scratch ? a->scratch(m, n) : 0;
            CHECK_MESSAGE(most.elements == a->elements_sent(m, n) && most.messages == a->messages_sent(m),
                          "%s of operation %d, %d ranks: %llu elements in %llu messages, not %llu in %llu",
                          a->name, (int)a->operation, m, (unsigned long long)most.elements,
                          (unsigned long long)most.messages, (unsigned long long)a->elements_sent(m, n),
                          (unsigned long long)a->messages_sent(m));
            const bool exact = m >= 4 && (m & (m - 1)) == 0;
            CHECK_MESSAGE(exact ? used == scratch : used <= scratch,
                          "%s of operation %d, %d ranks: %llu elements of scratch, not %llu", a->name,
                          (int)a->operation, m, (unsigned long long)used, (unsigned long long)scratch);
            if (most.steps > steps_needed) steps_needed = most.steps;
            if (other.steps > steps_needed) steps_needed = other.steps;
            if (getenv("STEPS") && (m == 4 || m == 16))
                printf("%d ranks, operation %d, %s: %d steps\n", m, (int)a->operation, a->name, most.steps);
        }
        CHECK_MESSAGE(dml__most_steps(m) <= steps_needed + (m < 3 ? 2 : 0), "%d ranks: %d steps, room for %d",
                      m, steps_needed, dml__most_steps(m));
    }
}

/* Pairwise, each message but the first waits for what the one before it was exchanged for. */
static void pairwise_is_paced(void)
{
    int count;
    const dml__algorithm_info *const table = dml__algorithms(&count);
    dml__step room[16];
    dml__schedule s = { room, 0, 16, false };
    dml__collective c;
    memset(&c, 0, sizeof c);
    c.operation = DML__CALL_ALL_TO_ALL;
    c.size = 4;
    c.rank = 1;
    c.count = 3;
    table[dml__find_algorithm(c.operation, "pairwise")].write(&c, &s);
    int sends = 0, received = -1, last = -1;
    for (int i = 0; i < s.count; i++) {
        if (room[i].kind == DML__STEP_RECEIVE) {
            last = received;
            received = i;
        }
        if (room[i].kind != DML__STEP_SEND) continue;
        CHECK_INT(room[i].after[0], last);
        sends++;
    }
    CHECK_INT(sends, 3);
}

static void names_are_found(void)
{
    int count;
    const dml__algorithm_info *const table = dml__algorithms(&count);
    for (int i = 0; i < count; i++) {
        CHECK_INT(dml__find_algorithm(table[i].operation, table[i].name), i);
        CHECK(i == 0 || table[i].operation >= table[i - 1].operation);
    }
    CHECK_INT(dml__find_algorithm(DML__CALL_REDUCE, "round_robin"), -1);
    CHECK_INT(dml__find_algorithm(DML__CALL_ALL_REDUCE, "rin"), -1);
}

/* ---- steps ---- */

static void steps_in_words(void)
{
    dml__step room[3];
    dml__schedule s = { room, 0, 3, false };
    char text[DML__STEP_TEXT];
    const int send = dml__add_send(&s, 2, DML__SPACE_IN, 5, 10);
    CHECK_STRING(dml__step_text(&s, send, text), "0: send in[5, 15) to 2");
    const int got = dml__add_receive(&s, 1, DML__STEP_RECEIVE_REDUCE, DML__SPACE_OUT, 0, 3);
    dml__add_after(&s, got, send);
    dml__add_after(&s, got, send);
    dml__add_after(&s, got, -1);
    dml__add_after(&s, -1, send);
    dml__add_after(&s, got, DML__ALL_BEFORE);
    dml__set_completes(&s, got);
    dml__set_completes(&s, -1);
    CHECK_STRING(dml__step_text(&s, got, text), "1: receive_reduce out[0, 3) from 1 after 0, all, completes");
    CHECK_INT(room[1].after[2], -1);
    const int sum = dml__add_local(&s, DML__STEP_REDUCE, DML__SPACE_OUT, 1, 2, DML__SPACE_SCRATCH, 7);
    CHECK_STRING(dml__step_text(&s, sum, text), "2: reduce out[1, 3) by scratch[7, 9)");
    CHECK_INT(dml__add_send(&s, 1, DML__SPACE_OUT, 0, 0), -1);
    CHECK_INT(dml__add_receive(&s, 1, DML__STEP_RECEIVE, DML__SPACE_OUT, 0, 0), -1);
    CHECK(!s.overflowed);
    CHECK_INT(dml__add_signal(&s, 1), -1);
    CHECK(s.overflowed);
    CHECK_INT(s.count, 3);

    s.count = 0;
    CHECK_STRING(dml__step_text(&s, dml__add_signal(&s, 3), text), "0: send out[0, 0) to 3");
    CHECK_STRING(dml__step_text(&s, dml__add_wait_signal(&s, 0), text), "1: receive out[0, 0) from 0");
    dml__add_local(&s, DML__STEP_COPY, DML__SPACE_SCRATCH, 0, 0, DML__SPACE_IN, 4);
    CHECK_STRING(dml__step_text(&s, 2, text), "2: copy scratch[0, 0) from in[4, 4)");

    /* The longest there is. */
    s.count = 2;
    const uint64_t far = (uint64_t)1 << 63;
    dml__add_local(&s, DML__STEP_REDUCE_BOTH, DML__SPACE_SCRATCH, far, far - 1, DML__SPACE_SCRATCH, far);
    for (int i = 0; i < DML__STEP_AFTER; i++) room[2].after[i] = 2147483647;
    dml__set_completes(&s, 2);
    CHECK_STRING(dml__step_text(&s, 2, text),
                 "2: reduce_both scratch[9223372036854775808, 18446744073709551615) and "
                 "scratch[9223372036854775808, 18446744073709551615) after 2147483647, 2147483647, "
                 "2147483647, completes");
}

static dml__step step_on(dml__step_kind kind, dml__space space, uint64_t offset, uint64_t count)
{
    dml__step room;
    dml__schedule s = { &room, 0, 1, false };
    if (kind == DML__STEP_SEND)
        dml__add_send(&s, 0, space, offset, count);
    else
        dml__add_receive(&s, 0, kind, space, offset, count);
    return room;
}

static void limits(void)
{
    const uint64_t free_to_go = UINT64_MAX;
    const dml__step early = step_on(DML__STEP_SEND, DML__SPACE_OUT, 100, 50);
    dml__step step = step_on(DML__STEP_RECEIVE, DML__SPACE_OUT, 100, 50);
    CHECK(dml__step_limit(&step, &early, 0, false) == 0);
    CHECK(dml__step_limit(&step, &early, 20, false) == 20);
    CHECK(dml__step_limit(&step, &early, 50, false) == free_to_go);
    CHECK(dml__step_limit(&step, &early, 0, true) == free_to_go);
    step.offset = 90; /* it begins before the other */
    CHECK(dml__step_limit(&step, &early, 0, false) == 10);
    CHECK(dml__step_limit(&step, &early, 20, false) == 30);
    step.offset = 130; /* and later */
    CHECK(dml__step_limit(&step, &early, 29, false) == 0);
    CHECK(dml__step_limit(&step, &early, 30, false) == 0);
    CHECK(dml__step_limit(&step, &early, 31, false) == 1);
    step.offset = 149;
    CHECK(dml__step_limit(&step, &early, 49, false) == 0);
    CHECK(dml__step_limit(&step, &early, 50, false) == free_to_go);
    step.offset = 150; /* they don't meet */
    CHECK(dml__step_limit(&step, &early, 50, false) == 0);
    step.offset = 50;
    CHECK(dml__step_limit(&step, &early, 50, false) == 0);
    step.offset = 51;
    CHECK(dml__step_limit(&step, &early, 0, false) == 49);
    step.offset = 100;
    step.space = DML__SPACE_IN;
    CHECK(dml__step_limit(&step, &early, 50, false) == 0);

    /* Sources count on both sides, and the strictest of what meets. */
    dml__step sum = step_on(DML__STEP_RECEIVE, DML__SPACE_OUT, 100, 50);
    sum.kind = DML__STEP_REDUCE;
    sum.source_space = DML__SPACE_SCRATCH;
    sum.source = 7;
    dml__step got = step_on(DML__STEP_RECEIVE, DML__SPACE_SCRATCH, 7, 50);
    CHECK(dml__step_limit(&sum, &got, 13, false) == 13);
    CHECK(dml__step_limit(&got, &sum, 13, false) == 13);
    CHECK(dml__step_limit(&sum, &early, 14, false) == 14);
    CHECK(dml__step_limit(&sum, &sum, 15, false) == 15);
    dml__step next = sum;
    next.offset = 110; /* of OUT later than of SCRATCH */
    CHECK(dml__step_limit(&next, &sum, 15, false) == 5);
    CHECK(dml__step_limit(&sum, &next, 15, false) == 15);
    next.kind = DML__STEP_COPY;
    next.offset = 1000;
    CHECK(dml__step_limit(&next, &sum, 16, false) == 16);
    got.source_space = DML__SPACE_OUT; /* a receive has no source */
    got.source = 100;
    CHECK(dml__step_limit(&got, &early, 50, false) == 0);
    CHECK(dml__step_limit(&early, &got, 50, false) == 0);

    /* What has no elements waits for the end, and is waited for. */
    dml__step signal = early;
    signal.offset = 120;
    signal.count = 0;
    CHECK(dml__step_limit(&signal, &early, 50, false) == 0);
    CHECK(dml__step_limit(&signal, &early, 50, true) == free_to_go);
    CHECK(dml__step_limit(&early, &signal, 0, false) == 0);
}

int main(void)
{
    RUN(figures_hold);
    RUN(names_are_found);
    RUN(pairwise_is_paced);
    RUN(steps_in_words);
    RUN(limits);
    return test_report("comm/algorithms");
}
