/* Against a weight for each element. */
#include "dist/parameter_server_weights.h"

#include "../test.h"

enum { MOST = 300 };

static dml__memory memory;
static dml__ps_weights weights;
static double want[MOST];

static void check_runs(size_t count)
{
    size_t at = 0;
    for (size_t run = 0; run < weights.runs; run++) {
        const size_t end = dml__ps_weights_end(&weights, run);
        CHECK(weights.begin[run] == at && (end > at || count == 0));
        for (; at < end; at++) CHECK_NEAR(weights.weight[run], want[at], 0);
        if (run) CHECK(weights.weight[run] != weights.weight[run - 1]);
    }
    CHECK_INT(at, count);
}

static size_t below(unsigned *state, size_t most)
{
    *state = *state * 1664525u + 1013904223u;
    return (size_t)(*state >> 8) % most;
}

static void any_ranges(void)
{
    unsigned state = 7;
    for (size_t count = 0; count <= MOST; count += 1 + count / 3) {
        CHECK(dml__ps_weights_make(&weights, &memory, count));
        for (int clock = 0; clock < 3; clock++) {
            memset(want, 0, sizeof want);
            dml__ps_weights_clear(&weights);
            for (int push = 0; push < 60; push++) {
                const size_t begin = below(&state, count + 1);
                const size_t end = begin + below(&state, count - begin + 1);
                const double weight = 1 + (double)below(&state, 3);
                for (size_t i = begin; i < end; i++) want[i] += weight;
                CHECK(dml__ps_weights_add(&weights, begin, end, weight));
                check_runs(count);
            }
        }
        dml__ps_weights_release(&weights, &memory);
    }
}

/* As pieces of a push come, of one worker after the other. */
static void pieces_are_one_run(void)
{
    CHECK(dml__ps_weights_make(&weights, &memory, MOST));
    for (int worker = 0; worker < 2; worker++)
        for (size_t at = 0; at < MOST; at += 50) {
            CHECK(dml__ps_weights_add(&weights, at, at + 50, 2));
            CHECK_INT(weights.runs, at + 50 < MOST ? 2 : 1);
        }
    CHECK_NEAR(weights.weight[0], 4, 0);
    dml__ps_weights_release(&weights, &memory);
}

static void no_room(void)
{
    enum { COUNT = 6400, ROOM = COUNT / 64 + 1024 };
    CHECK(dml__ps_weights_make(&weights, &memory, COUNT));
    CHECK_INT(weights.room, ROOM);
    size_t at = 0;
    while (at < COUNT && dml__ps_weights_add(&weights, at, at + 1, 1)) at += 2;
    CHECK_INT(weights.runs, ROOM);
    CHECK(at < COUNT && !dml__ps_weights_add(&weights, 6000, 6001, 1));
    CHECK(dml__ps_weights_add(&weights, 0, COUNT, 1)); /* which needs none */
    dml__ps_weights_release(&weights, &memory);
}

int main(void)
{
    dml__memory_init(&memory, NULL, NULL, 0);
    RUN(any_ranges);
    RUN(pieces_are_one_run);
    RUN(no_room);
    return test_report("dist/parameter_server_weights");
}
