/* Schedules in virtual time against what can be said of them on paper. */
#include "base/clock.h"
#include "comm/algorithms.h"
#include "comm/choice_table.h"
#include "comm/measure.h"
#include "comm/price.h"

#include "../test.h"
#include "price_schedules.h"

#include <math.h>
#include <stdlib.h>

/* ---- pricing them ---- */

static const double ALPHA = 50e-6, BETA = 8e-9; /* 1 Gbit/s */

static dml__price_model flat(void)
{
    dml__price_model model;
    memset(&model, 0, sizeof model);
    model.between.latency = ALPHA;
    model.between.bandwidth = 1 / BETA;
    model.inside = model.between;
    model.ranks_per_host = 1;
    model.reduce = model.copy = 1e30;
    model.segment = model.eager = UINT64_C(1) << 40;
    model.most_segments = 1 << 22;
    return model;
}

static dml__price last;

static dml_status price_status(const dml__price_model *model, int algorithm, int size, uint64_t count,
                               double *ends)
{
    dml__collective call;
    memset(&call, 0, sizeof call);
    call.operation = algorithms[algorithm].operation;
    call.size = size;
    call.count = count;
    const int most_steps = 4 * size + 64;
    size_t bytes = dml__price_work_bytes(model, size, most_steps);
    if (bytes > (size_t)64 << 20) bytes = (size_t)64 << 20;
    void *work = malloc(bytes);
    memset(&last, 0, sizeof last);
    last.ends = ends;
    const dml_status status =
        work ? dml__price_collective(model, &algorithms[algorithm], &call, 4, most_steps, work, bytes, &last)
             : DML_ERROR_MEMORY;
    free(work);
    return status;
}

static double price(const dml__price_model *model, int algorithm, int size, uint64_t count)
{
    const dml_status status = price_status(model, algorithm, size, count, NULL);
    CHECK_MESSAGE(status == DML_OK, "%s of %d: %s", algorithms[algorithm].name, size,
                  dml_status_string(status));
    return last.seconds;
}

#define CHECK_PRICE(got, want)                                                                               \
    do {                                                                                                     \
        const double near__got = (got), near__want = (want);                                                 \
        CHECK_MESSAGE(fabs(near__got - near__want) <= 1e-9 * near__want, "%s is %.9g, not %.9g", #got,       \
                      near__got, near__want);                                                                \
    } while (0)

static int log2_up(int m)
{
    int k = 0;
    while (1 << k < m) k++;
    return k;
}

/* ---- tests ---- */

static void test_ring(void)
{
    const dml__price_model model = flat();
    for (int m = 2; m <= 64; m = m < 8 ? m + 1 : 2 * m) {
        const uint64_t n = 1000 * (uint64_t)m;
        CHECK_PRICE(price(&model, RING, m, n), 2 * (m - 1) * (ALPHA + 4000 * BETA));
        CHECK(last.distinct == 1); /* a ring's ranks are all alike */
    }
    /* Chunks that differ by an element: the longest sets the pace. */
    price(&model, RING, 7, 7004);
    CHECK(last.seconds <= 12 * (ALPHA + 4004 * BETA) * (1 + 1e-9));
    CHECK(last.seconds >= 12 * (ALPHA + 4000 * BETA));
    CHECK(last.distinct > 1);
    /* A single element is one that walks from rank to rank, once round and then all but once more. */
    CHECK_PRICE(price(&model, RING, 5, 1), 8 * (ALPHA + 4 * BETA));
}

/* Sums and overheads of each step, when it is one segment. */
static void test_processor(void)
{
    dml__price_model model = flat();
    model.reduce = 1e9;
    model.between.overhead = 3e-6;
    const double step = ALPHA + 4000 * BETA + 2 * 3e-6;
    CHECK_PRICE(price(&model, RING, 4, 4000), 6 * step + 3 * 4000 / 1e9);
    CHECK_PRICE(price(&model, BUTTERFLY, 8, 1000), 3 * (step + 4000 / 1e9));
    /* Eight messages of nothing at once: their overheads are the processor's, one after the other. */
    CHECK_PRICE(price(&model, GATHER, 2, 1), ALPHA + 4 * BETA + 2 * 3e-6);
    model.between.bandwidth = 1e18;
    CHECK_PRICE(price(&model, GATHER, 9, 1), ALPHA + 3e-6 + 8 * 3e-6);
}

static void test_trees(void)
{
    const dml__price_model model = flat();
    for (int m = 2; m <= 300; m = m < 10 ? m + 1 : 2 * m + 1) {
        const double want = log2_up(m) * (ALPHA + 4000 * BETA);
        /* (A parent's next send starts as soon as the last has left, so only the deepest way counts.) */
        price(&model, TREE, m, 1000);
        CHECK(last.seconds <= want * (1 + 1e-9));
        CHECK(last.seconds >= log2_up(m) * 4000 * BETA + ALPHA);
        if ((m & (m - 1)) == 0) CHECK_PRICE(last.seconds, want);
    }
    for (int m = 2; m <= 64; m *= 2)
        CHECK_PRICE(price(&model, BUTTERFLY, m, 1000), log2_up(m) * (ALPHA + 4000 * BETA));
    for (int m = 2; m <= 64; m *= 2) {
        double want = 0;
        for (int k = 1; k <= log2_up(m); k++) want += 2 * (ALPHA + 4 * 6400.0 / (1 << k) * BETA);
        CHECK_PRICE(price(&model, HALVING, m, 6400), want);
    }
    for (int m = 2; m <= 40; m++) CHECK_PRICE(price(&model, BARRIER, m, 0), log2_up(m) * ALPHA);
}

/* p segments over m ranks: p + m - 2 steps of one, and m - 1 latencies. */
static void test_pipeline(void)
{
    dml__price_model model = flat();
    model.segment = 4096;
    for (int m = 2; m < 12; m++)
        for (int p = 1; p < 40; p += 3)
            CHECK_PRICE(price(&model, CHAIN, m, 1024 * (uint64_t)p),
                        (p + m - 2) * 4096 * BETA + (m - 1) * ALPHA);
    /* A last segment of one element. */
    CHECK_PRICE(price(&model, CHAIN, 2, 1025), 4100 * BETA + ALPHA);
    /* Coarser where there would be too many. */
    model.most_segments = 16;
    price(&model, CHAIN, 5, 1024 * 16);
    CHECK(last.segment == 4 * 4096);
}

/* A message above `eager` waits for the grant, which leaves when the receiver is ready. */
static void test_grant(void)
{
    dml__price_model model = flat();
    model.eager = 4000;
    CHECK_PRICE(price(&model, CHAIN, 2, 1000), ALPHA + 4000 * BETA);
    CHECK_PRICE(price(&model, CHAIN, 2, 1001), 2 * ALPHA + 4004 * BETA);
    /* Nobody along a chain has anything to wait for, so the grants are all there by the time. */
    CHECK_PRICE(price(&model, CHAIN, 4, 25000), 4 * ALPHA + 3 * 100000 * BETA);
}

/* All ranks to one: its port takes them in one after the other, its sender's one is free. */
static void test_ports(void)
{
    dml__price_model model = flat();
    double ends[9];
    CHECK_PRICE(price(&model, GATHER, 9, 1000), ALPHA + 8 * 4000 * BETA);
    CHECK(price_status(&model, GATHER, 9, 1000, ends) == DML_OK);
    for (int r = 1; r < 9; r++) CHECK_PRICE(ends[r], 4000 * BETA);
    CHECK(last.distinct == 9); /* each of them has a turn of its own */
}

static void test_hosts(void)
{
    dml__price_model model = flat();
    const double alone = price(&model, HALVES, 8, 250000);
    CHECK_PRICE(alone, ALPHA + 1e6 * BETA);
    /* Two ranks of a host share its way out, so both take twice as long. */
    model.ranks_per_host = 2;
    CHECK_PRICE(price(&model, HALVES, 8, 250000), ALPHA + 2e6 * BETA);
    /* Within a host it is that link's business. */
    model.ranks_per_host = 8;
    model.inside.latency = 1e-6;
    model.inside.bandwidth = 1e10;
    CHECK_PRICE(price(&model, HALVES, 8, 250000), 1e-6 + 1e6 / 1e10);
    CHECK_PRICE(price(&model, RING, 8, 8000), 14 * (1e-6 + 4000 / 1e10));
    /* Two hosts of four: two links of the ring are slow. They are always busy, as four chunks take longer
       than one and a latency; what comes before and behind is quick. */
    model.ranks_per_host = 4;
    price(&model, RING, 8, 8000);
    CHECK_MESSAGE(last.seconds >= ALPHA + 14 * 4000 * BETA && last.seconds < 1.2 * ALPHA + 14 * 4000 * BETA,
                  "%g s", last.seconds);
    CHECK(last.distinct == 4);
    CHECK(price_status(&model, RING, 7, 7000, NULL) == DML_OK); /* the last host has a rank less */
}

/* Four ranks of a host send a message to four others, which takes a processor 10 us and 8 ns a byte at each
   end: with one processor all eight stand in line, and all but the first find it with another rank. */
static void test_shared_processors(void)
{
    dml__price_model model = flat();
    model.ranks_per_host = 8;
    model.inside.latency = 1e-6;
    model.inside.bandwidth = 1e30;
    model.inside.overhead = 10e-6;
    model.inside.touch = 8e-9;
    const double handling = 10e-6 + 1000 * 8e-9;
    CHECK_PRICE(price(&model, HALVES, 8, 250), 1e-6 + 2 * handling);
    model.processors = 8;
    model.change = 1e-3;
    CHECK_PRICE(price(&model, HALVES, 8, 250), 1e-6 + 2 * handling);
    model.processors = 1;
    CHECK_PRICE(price(&model, HALVES, 8, 250), 8 * handling + 7 * 1e-3);
    model.change = 0;
    CHECK_PRICE(price(&model, HALVES, 8, 250), 8 * handling);
    model.processors = 2;
    CHECK_PRICE(price(&model, HALVES, 8, 250), 4 * handling);
    /* Another host has processors of its own, and works on the first two messages as the last are sent. */
    model.ranks_per_host = 4;
    model.between = model.inside;
    CHECK_PRICE(price(&model, HALVES, 8, 250), 1e-6 + 3 * handling);
}

/* Where an element's messages cost nothing but processors' time, and those are few, as few as possible are
   sent. */
static void test_few_processors_choice(void)
{
    enum { M = 8 };
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    dml__price_model model = flat();
    model.segment = 256 << 10;
    model.eager = 16 << 10;
    model.inside = dml__copied_link_of(5e-6, 6e9);
    CHECK_PRICE(dml__link_bandwidth(&model.inside), 6e9);
    CHECK_PRICE(model.inside.latency + 2 * model.inside.overhead, 5e-6);
    model.ranks_per_host = M;
    const size_t bytes = dml__choice_work_bytes(M, dml__most_steps(M));
    void *work = malloc(bytes);
    if (!work) return;
    dml__choice choice;
    dml__fill_choice(&model, M, table, count, dml__most_steps(M), false, 1e300, work, bytes, &choice);
    CHECK_STRING(table[dml__choice_of(&choice, DML__CALL_ALL_REDUCE, 1024, true)].name, "butterfly");
    model.processors = 2;
    model.change = 1e-6;
    dml__fill_choice(&model, M, table, count, dml__most_steps(M), false, 1e300, work, bytes, &choice);
    CHECK_STRING(table[dml__choice_of(&choice, DML__CALL_ALL_REDUCE, 1024, true)].name, "master_worker");
    free(work);
}

static void test_racks(void)
{
    dml__price_model model = flat();
    model.hosts_per_rack = 4;
    model.oversubscription = 1;
    CHECK_PRICE(price(&model, HALVES, 8, 250000), ALPHA + 1e6 * BETA + 3 * 1e6 * BETA / 4);
    model.segment = 10000; /* in pieces, what stands behind the others is short */
    price(&model, HALVES, 8, 250000);
    CHECK(last.seconds > ALPHA + 1e6 * BETA && last.seconds < ALPHA + 1.03e6 * BETA);
    model.oversubscription = 4; /* four hosts' traffic through as much as one of them has */
    model.rack_latency = ALPHA;
    price(&model, HALVES, 8, 250000);
    CHECK(last.seconds > 2 * ALPHA + 3.9e6 * BETA && last.seconds < 2 * ALPHA + 4.03e6 * BETA);
}

/* More bytes, more latency, less bandwidth don't come cheaper, but for what another order of segments may
   gain by chance. */
static void test_monotony(void)
{
    static const int kinds[] = { RING, BUTTERFLY, HALVING, TREE, CHAIN, GATHER };
    for (int k = 0; k < (int)(sizeof kinds / sizeof *kinds); k++) {
        double before = 0;
        dml__price_model model = flat();
        model.segment = 65536;
        model.eager = 32768;
        model.between.overhead = 2e-6;
        model.reduce = 5e9;
        for (uint64_t count = 64; count <= 1 << 20; count *= 4) {
            const double seconds = price(&model, kinds[k], 16, count);
            CHECK_MESSAGE(seconds >= before, "%s: %g elements", algorithms[kinds[k]].name, (double)count);
            before = seconds;
        }
        model.between.latency *= 2;
        CHECK_MESSAGE(price(&model, kinds[k], 16, 1 << 20) > 0.99 * before, "%s: %g s, not above %g",
                      algorithms[kinds[k]].name, last.seconds, before);
        model.between.latency /= 2;
        model.between.bandwidth /= 2;
        CHECK(price(&model, kinds[k], 16, 1 << 20) > 1.5 * before);
    }
}

static void test_faults(void)
{
    const dml__price_model model = flat();
    CHECK(price_status(&model, STUCK, 5, 100, NULL) == DML_ERROR_STATE);
    CHECK(last.stuck_rank == 0 && last.stuck_step == 0);
    CHECK(price_status(&model, LONELY, 5, 100, NULL) == DML_ERROR_MISMATCH);
    CHECK(last.stuck_rank == 1 && last.stuck_step == 0);

    dml__collective call;
    memset(&call, 0, sizeof call);
    call.size = 8, call.count = 800;
    double work[40];
    CHECK(dml__price_collective(&model, &algorithms[RING], &call, 4, 64, work, sizeof work, &last) ==
          DML_ERROR_MEMORY);
    CHECK(last.work_bytes > sizeof work);
    void *enough = malloc(dml__price_work_bytes(&model, 8, 64));
    if (!enough) return;
    CHECK(dml__price_collective(&model, &algorithms[RING], &call, 4, 10, enough, (size_t)1 << 16, &last) ==
          DML_ERROR_MEMORY);
    free(enough);
}

static uint64_t butterfly_scratch(int size, uint64_t count)
{
    return (uint64_t)log2_up(size) * count;
}

/* Less scratch: rounds. */
static void test_rounds(void)
{
    dml__price_model model = flat();
    dml__algorithm_info info = algorithms[BUTTERFLY];
    info.scratch = butterfly_scratch;
    model.scratch = 3 * 4 * 300; /* of three levels, four bytes: 300 elements, so 250 of 1000 */
    dml__collective call;
    memset(&call, 0, sizeof call);
    call.operation = DML__CALL_ALL_REDUCE;
    call.size = 8;
    call.count = 1000;
    const size_t bytes = dml__price_work_bytes(&model, 8, 64);
    void *work = malloc(bytes);
    if (!work) return;
    CHECK(dml__price_collective(&model, &info, &call, 4, 64, work, bytes, &last) == DML_OK);
    CHECK_PRICE(last.seconds, 4 * 3 * (ALPHA + 1000 * BETA));
    call.operation = info.operation = DML__CALL_ALL_GATHER;
    CHECK(dml__price_collective(&model, &info, &call, 4, 64, work, bytes, &last) == DML_ERROR_MEMORY);
    free(work);
}

/* A ring of thousands: one rank is run for all of them. */
static void test_large(void)
{
    const dml__price_model model = flat();
    const int m = TEST_EMULATOR ? 256 : 2048;
    CHECK_PRICE(price(&model, RING, m, 10 * (uint64_t)m), 2 * (m - 1) * (ALPHA + 40 * BETA));
    CHECK(last.events < 20 * (uint64_t)m);
    CHECK_PRICE(price(&model, BUTTERFLY, m, 10), log2_up(m) * (ALPHA + 40 * BETA));
    CHECK(last.distinct == 1);
    CHECK_PRICE(price(&model, TREE, m, 10), log2_up(m) * (ALPHA + 40 * BETA));
}

static void test_choice(void)
{
    dml__price_model model = flat();
    model.segment = 256 << 10;
    model.eager = 32 << 10;
    model.between.overhead = 2e-6;
    const size_t bytes = dml__choice_work_bytes(8, 64);
    void *work = malloc(bytes);
    if (!work) return;
    dml__choice choice;
    dml__fill_choice(&model, 8, algorithms, GATHER, 64, false, 1e300, work, bytes, &choice);
    CHECK(dml__choice_of(&choice, DML__CALL_ALL_REDUCE, 4, true) == BUTTERFLY);
    const int large = dml__choice_of(&choice, DML__CALL_ALL_REDUCE, 64 << 20, true);
    CHECK(large == RING || large == HALVING);
    CHECK(dml__choice_of(&choice, DML__CALL_BROADCAST, 1, true) == TREE);
    CHECK(dml__choice_of(&choice, DML__CALL_BROADCAST, UINT64_C(1) << 40, true) == CHAIN);
    CHECK(dml__choice_of(&choice, DML__CALL_BARRIER, 0, true) == BARRIER);
    CHECK(dml__choice_of(&choice, DML__CALL_SCATTER, 4, true) == DML__CHOICE_NONE);
    /* Without room nothing is priced, and the first of each operation is as good as any. */
    dml__fill_choice(&model, 8, algorithms, GATHER, 64, false, 1e300, work, 64, &choice);
    CHECK(dml__choice_of(&choice, DML__CALL_ALL_REDUCE, 4, true) == RING);
    free(work);
}

static void test_fit(void)
{
    double bytes[64], seconds[64], latency = 0, bandwidth = 0;
    unsigned state = 5;
    int n = 0;
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 7; k++, n++) {
            const double noise = 1 + 0.02 * ((double)(test_random(&state) % 1000) / 1000);
            bytes[n] = ldexp(1, 3 * i);
            seconds[n] = (ALPHA + bytes[n] * BETA) * noise * (k < 2 ? 5 + k : 1); /* two of seven delayed */
        }
    CHECK(dml__fit_link(bytes, seconds, n, &latency, &bandwidth));
    CHECK_MESSAGE(fabs(latency / ALPHA - 1.01) < 0.02, "latency %g", latency);
    CHECK_MESSAGE(fabs(bandwidth * BETA - 0.99) < 0.02, "bandwidth %g", bandwidth);
    CHECK(!dml__fit_link(bytes, seconds, 7, &latency, &bandwidth)); /* one size */
    CHECK(!dml__fit_link(bytes, seconds, 0, &latency, &bandwidth));
    seconds[3] = 0;
    CHECK(!dml__fit_link(bytes, seconds, n, &latency, &bandwidth));
    /* Latency alone, and bandwidth alone. */
    for (int i = 0; i < 6; i++) bytes[i] = 1 << i, seconds[i] = 1e-3;
    CHECK(dml__fit_link(bytes, seconds, 6, &latency, &bandwidth));
    CHECK(fabs(latency - 1e-3) < 1e-6 && bandwidth > 1e6);
    for (int i = 0; i < 6; i++) seconds[i] = 1e-6 * bytes[i];
    CHECK(dml__fit_link(bytes, seconds, 6, &latency, &bandwidth));
    CHECK(latency < 1e-9 && fabs(bandwidth - 1e6) < 1);
    /* A link of 100 Mbit/s that lets a burst of 16 KiB pass at once: what is large says how fast it is. */
    for (n = 0; n < 18; n++) {
        bytes[n] = n % 3 == 0 ? 0 : n % 3 == 1 ? 4096 : 32768;
        seconds[n] = (n % 3 == 0 ? 10e-6 : n % 3 == 1 ? 14e-6 : 16384 / 12.5e6) * (1 + 0.01 * (n / 3));
    }
    CHECK(dml__fit_link(bytes, seconds, n, &latency, &bandwidth));
    CHECK_MESSAGE(latency < 11e-6 && bandwidth > 12.5e6 && bandwidth < 50e6, "latency %g, bandwidth %g",
                  latency, bandwidth);
}

/* The library's own: none waits for ever, small or large, and none takes less time than what it sends. */
static void test_table(void)
{
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    dml__price_model model = flat();
    model.segment = 4096;
    model.eager = 1024;
    model.shared = 1 << 16;
    for (int m = 2; m <= 17; m = m < 9 ? m + 1 : m + 4) {
        const int most_steps = dml__most_steps(m);
        model.most_segments = 4096;
        const size_t bytes = dml__price_work_bytes(&model, m, most_steps);
        void *work = malloc(bytes);
        if (!work) return;
        for (int a = 0; a < count; a++)
            for (uint64_t n = 1; n < 100000; n = n * 40 + (uint64_t)m) {
                dml__collective call;
                memset(&call, 0, sizeof call);
                call.operation = table[a].operation;
                call.size = m;
                call.root = m / 2;
                call.count = n / (2 * (uint64_t)m) * 2 * (uint64_t)m;
                if (call.count == 0) call.count = n;
                dml__price result;
                memset(&result, 0, sizeof result);
                const dml_status status =
                    dml__price_collective(&model, &table[a], &call, 4, most_steps, work, bytes, &result);
                CHECK_MESSAGE(status == DML_OK,
                              "%s of operation %d, %d ranks, %g elements: %s at step %d of rank %d",
                              table[a].name, (int)table[a].operation, m, (double)call.count,
                              dml_status_string(status), result.stuck_step, result.stuck_rank);
                CHECK(result.work_bytes <= bytes);
                if (call.count != n)
                    CHECK_MESSAGE(result.seconds > 4 * (double)table[a].elements_sent(m, call.count) * BETA,
                                  "%s of operation %d, %d ranks: %g s", table[a].name,
                                  (int)table[a].operation, m, result.seconds);
            }
        free(work);
    }
}

/* What goes through memory that ranks share has no price where they share none. A round has as many elements
   as a rank has room for, and of reduce-scatter as are the others' besides. */
static void test_shared(void)
{
    static const dml__comm_operation operations[] = { DML__CALL_ALL_REDUCE, DML__CALL_ALL_GATHER,
                                                      DML__CALL_REDUCE_SCATTER };
    static char work[1 << 20] __attribute__((aligned(8)));
    int count;
    for (int o = 0; o < 3; o++) {
        const dml__algorithm_info *info =
            &dml__algorithms(&count)[dml__find_algorithm(operations[o], "shared")];
        dml__price_model model = flat();
        dml__collective call;
        dml__price one, three;
        memset(&call, 0, sizeof call);
        memset(&one, 0, sizeof one);
        memset(&three, 0, sizeof three);
        call.operation = operations[o];
        call.size = 4;
        call.count = o < 2 ? 1000 : 250;
        CHECK_INT(dml__price_collective(&model, info, &call, 4, 32, work, sizeof work, &one),
                  DML_ERROR_MEMORY);
        model.shared = 4000;
        CHECK_INT(dml__price_collective(&model, info, &call, 4, 32, work, sizeof work, &one), DML_OK);
        call.count *= 3;
        CHECK_INT(dml__price_collective(&model, info, &call, 4, 32, work, sizeof work, &three), DML_OK);
        CHECK_NEAR(three.seconds, 3 * one.seconds, 1e-9);
        model.shared = 12000;
        CHECK_INT(dml__price_collective(&model, info, &call, 4, 32, work, sizeof work, &three), DML_OK);
        CHECK(three.seconds < 2.9 * one.seconds);
    }
}

/* Where messages cost the processor as much as they do over TCP, and ranks are many, a butterfly is best for
   an element, and what sends the least for 64 MiB. */
static void test_table_choice(void)
{
    enum { M = 32 };
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    dml__price_model model = flat();
    model.segment = 256 << 10;
    model.eager = 32 << 10;
    model.between.overhead = 10e-6;
    const size_t bytes = dml__choice_work_bytes(M, dml__most_steps(M));
    void *work = malloc(bytes);
    if (!work) return;
    dml__choice choice;
    dml__fill_choice(&model, M, table, count, dml__most_steps(M), false, 1e300, work, bytes, &choice);
    CHECK_STRING(table[dml__choice_of(&choice, DML__CALL_ALL_REDUCE, 4, true)].name, "butterfly");
    const char *large = table[dml__choice_of(&choice, DML__CALL_ALL_REDUCE, 64 << 20, true)].name;
    CHECK_MESSAGE(strncmp(large, "ring", 4) == 0 || strcmp(large, "halving_doubling") == 0, "%s", large);
    for (int operation = 0; operation < DML__CHOICE_OPERATIONS; operation++)
        for (int power = 0; power < DML__CHOICE_SIZES; power++)
            for (int equal = 0; equal < 2; equal++) {
                const int a =
                    dml__choice_of(&choice, (dml__comm_operation)operation, UINT64_C(1) << power, equal != 0);
                if (operation == DML__CALL_BARRIER || operation == DML__CALL_ALL_TO_ALL) continue;
                CHECK_MESSAGE(a < count && (int)table[a].operation == operation &&
                                  (equal || !table[a].equal_parts),
                              "operation %d, 2^%d bytes: %d", operation, power, a);
            }
    free(work);
}

/* ---- the library's own algorithms where ranks share a machine ---- */

/* Ranks of one host, whose messages cost its processors what they touch. */
static dml__price_model shared(int size, int processors)
{
    dml__price_model model = flat();
    model.inside = dml__copied_link_of(20e-6, 4e9);
    model.ranks_per_host = size;
    model.processors = processors;
    model.change = 1e-6;
    model.segment = 256 << 10;
    model.eager = 128 << 10;
    model.scratch = 16 << 10;
    model.most_segments = 1 << 14;
    return model;
}

static double table_price(const dml__price_model *model, dml__comm_operation operation, const char *name,
                          int size, uint64_t count)
{
    int algorithm_count;
    const dml__algorithm_info *table = dml__algorithms(&algorithm_count);
    const int steps = dml__most_steps(size);
    const size_t bytes = dml__price_work_bytes(model, size, steps);
    dml__collective call;
    dml__price result;
    void *work = malloc(bytes);
    if (!work) return 0;
    memset(&call, 0, sizeof call);
    memset(&result, 0, sizeof result);
    call.operation = operation;
    call.size = size;
    call.count = count;
    CHECK_INT(dml__price_collective(model, &table[dml__find_algorithm(operation, name)], &call, 4, steps,
                                    work, bytes, &result),
              DML_OK);
    free(work);
    return result.seconds;
}

/* Four that have much to send and to receive keep two processors busy: none waits for one with another idle.
 */
static void test_keeps_processor(void)
{
    dml__price_model model = shared(4, 2);
    model.change = 0;
    model.inside.overhead = 0;
    model.inside.latency = 1e-9;
    model.inside.bandwidth = 1e30;
    model.copy = 1e30;
    const double all = 4 * 3 * 2 * 65536 * model.inside.touch;
    const double seconds = table_price(&model, DML__CALL_ALL_TO_ALL, "direct", 4, 16384);
    CHECK_MESSAGE(seconds > 0.49 * all && seconds < 0.6 * all, "%g of %g", seconds, all);
}

/* A call of four rounds of so many KiB. */
static void check_rounds(int ranks, size_t part, uint64_t kibibytes)
{
    dml__price_model model = shared(ranks, ranks);
    const uint64_t count = kibibytes << 8;
    const double once = table_price(&model, DML__CALL_ALL_REDUCE, "chain", ranks, count);
    const double whole = table_price(&model, DML__CALL_ALL_REDUCE, "chain", ranks, 4 * count);
    model.round_part = part;
    CHECK_PRICE(table_price(&model, DML__CALL_ALL_REDUCE, "chain", ranks, 4 * count), 4 * once);
    CHECK(whole < 3.9 * once); /* a pipeline that is filled once */
}

/* A part for each rank, and 512 KiB at least. */
static void test_cached_rounds(void)
{
    check_rounds(2, 512 << 10, 1024);
    check_rounds(8, 512 << 10, 4096);
    check_rounds(2, 128 << 10, 512);
    check_rounds(4, 128 << 10, 512);
    check_rounds(8, 128 << 10, 1024);
    /* Parts of other calls don't lie one after the other. */
    for (int i = 0; i < DML__CHOICE_OPERATIONS; i++)
        if (i != DML__CALL_ALL_REDUCE)
            CHECK_INT((long long)dml__cached_round((dml__comm_operation)i, 4, 1 << 20, 128 << 10, 4),
                      1 << 20);
}

/* Not over links slower than memory, nor where latencies count. */
static void test_who_has_rounds(void)
{
    dml__price_model model = dml__usual_model();
    model.copy = 4e10;
    CHECK_INT((long long)dml__round_part(&model, false), 128 << 10);
    model.inside = dml__copied_link_of(17e-6, 2.7e9);
    CHECK_INT((long long)dml__round_part(&model, true), 512 << 10);
    model.inside = dml__copied_link_of(100e-6, 2.7e9);
    CHECK_INT((long long)dml__round_part(&model, true), 0);
    model.inside = dml__copied_link_of(30e-6, 1.25e8);
    CHECK_INT((long long)dml__round_part(&model, true), 0);
    CHECK_INT((long long)dml__round_part(&model, false), 128 << 10);
}

static void test_local_steps(void)
{
    dml__price_model model = shared(4, 4);
    const double before = table_price(&model, DML__CALL_ALL_GATHER, "direct", 4, 1);
    model.local = 1e-3;
    CHECK(table_price(&model, DML__CALL_ALL_GATHER, "direct", 4, 1) >= before + 0.9e-3);
}

static const char *chosen_name(const dml__choice *choice, dml__comm_operation operation, uint64_t bytes)
{
    int count;
    return dml__algorithms(&count)[dml__choice_of(choice, operation, bytes, true)].name;
}

/* An algorithm that has room for 2 KiB a rank and no more is taken up to there; what a call of one element
   costs, most of whose ranks have none to send, says nothing of the next sizes. */
static void test_edges_of_choice(void)
{
    enum { M = 8 };
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    dml__price_model model = shared(M, 2);
    const size_t bytes = dml__choice_work_bytes(M, dml__most_steps(M));
    void *work = malloc(bytes);
    if (!work) return;
    dml__choice choice;
    dml__fill_choice(&model, M, table, count, dml__most_steps(M), false, 1e300, work, bytes, &choice);
    for (int power = 2; power <= 11; power++)
        CHECK_STRING(chosen_name(&choice, DML__CALL_ALL_GATHER, UINT64_C(1) << power), "bruck");
    CHECK(strcmp(chosen_name(&choice, DML__CALL_ALL_GATHER, 4096), "bruck") != 0);
    for (int power = 3; power <= 9; power++)
        CHECK_STRING(chosen_name(&choice, DML__CALL_ALL_REDUCE, UINT64_C(1) << power), "master_worker");
    free(work);
}

/* Four ranks on one processor that each send to the others do all they can in one turn: first all send, then
   each has what it waits for. */
static void test_turns_are_kept(void)
{
    dml__price_model model = shared(4, 1);
    model.change = 100;
    model.inside.latency = 1e-9;
    const double seconds = table_price(&model, DML__CALL_ALL_TO_ALL, "direct", 4, 16);
    CHECK_MESSAGE(seconds > 300 && seconds < 750, "%g", seconds);
}

/* Of ranks that take turns and have rounds the first in the list is taken within 12 % of the
   least price, of others the cheapest. */
static void test_as_good(void)
{
    enum { M = 4 };
    dml__algorithm_info two[2];
    dml__price_model model = shared(M, 2);
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    const size_t bytes = dml__choice_work_bytes(M, dml__most_steps(M));
    void *work = malloc(bytes);
    if (!work) return;
    dml__choice choice;
    const dml__price_model used = dml__choice_model(&model, M);
    const double direct = table_price(&used, DML__CALL_BROADCAST, "direct", M, 1);
    const double binomial = table_price(&used, DML__CALL_BROADCAST, "binomial", M, 1);
    CHECK(direct < binomial && binomial < 1.12 * direct);
    two[0] = table[dml__find_algorithm(DML__CALL_BROADCAST, "binomial")];
    two[1] = table[dml__find_algorithm(DML__CALL_BROADCAST, "direct")];
    dml__fill_choice(&model, M, two, 2, dml__most_steps(M), false, 1e300, work, bytes, &choice);
    CHECK_INT(dml__choice_of(&choice, DML__CALL_BROADCAST, 4, true), 1);
    model.round_part = 128 << 10;
    dml__fill_choice(&model, M, two, 2, dml__most_steps(M), false, 1e300, work, bytes, &choice);
    CHECK_INT(dml__choice_of(&choice, DML__CALL_BROADCAST, 4, true), 0);
    model.processors = M;
    CHECK(table_price(&model, DML__CALL_BROADCAST, "direct", M, 1) <
          table_price(&model, DML__CALL_BROADCAST, "binomial", M, 1));
    dml__fill_choice(&model, M, two, 2, dml__most_steps(M), false, 1e300, work, bytes, &choice);
    CHECK_INT(dml__choice_of(&choice, DML__CALL_BROADCAST, 4, true), 1);
    free(work);
}

/* Of reductions within 25 %: a tree is taken where nothing else is, or where direct costs more than that. */
static void test_as_good_to_reduce(void)
{
    enum { M = 8 };
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    dml__price_model model = shared(M, 2);
    const size_t bytes = dml__choice_work_bytes(M, dml__most_steps(M));
    void *work = malloc(bytes);
    if (!work) return;
    model.round_part = 512 << 10;
    for (int i = 0; i < 2; i++) {
        dml__choice choice;
        const uint64_t large = i ? 1 << 17 : 1 << 9;
        const dml__price_model used = dml__choice_model(&model, M);
        const double over = table_price(&used, DML__CALL_REDUCE, "direct", M, large / 4) /
                            table_price(&used, DML__CALL_REDUCE, "binomial", M, large / 4);
        CHECK_MESSAGE(i ? over > 1.26 : over > 1.13 && over < 1.24, "%g", over);
        dml__fill_choice(&model, M, table, count, dml__most_steps(M), false, 1e300, work, bytes, &choice);
        CHECK_STRING(chosen_name(&choice, DML__CALL_REDUCE, large), i ? "binomial" : "direct");
    }
    free(work);
}

/* What the table has for 2^power bytes costs no more than `most` times what any other algorithm does that it
   could have, each run by itself here. */
static void check_cheapest(const dml__price_model *model, const dml__choice *choice,
                           dml__comm_operation operation, int size, int power, double most)
{
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    const uint64_t bytes = UINT64_C(1) << power;
    const char *chosen = chosen_name(choice, operation, bytes);
    const double price = table_price(model, operation, chosen, size, bytes / 4);
    for (int a = 0; a < count; a++) {
        const dml__algorithm_info *info = &table[a];
        if (info->operation != operation || dml__is_in_place(info) || dml__is_shared(info)) continue;
        const double other = table_price(model, operation, info->name, size, bytes / 4);
        CHECK_MESSAGE(price <= most * other, "%d ranks, 2^%d bytes: %s takes %g, %s %g", size, power, chosen,
                      price, info->name, other);
    }
}

/* Whether the table runs its algorithms at that size; of others it takes a line between two of these, but of
   the fewest bytes. */
static bool table_runs_at(dml__comm_operation operation, int size, int power)
{
    static const int powers[] = { 2, 9, 12, 14, 17, 18, 20, 24 };
    int whole = power;
    if (!dml__is_elementwise(operation))
        for (int ranks = 2; ranks <= size; ranks *= 2) whole++;
    for (size_t i = 0; i < sizeof powers / sizeof *powers; i++)
        if (whole == powers[i] && power > 2 + (int)i) return true;
    return power == 2;
}

static void check_cheapest_choices(const dml__price_model *model, int size)
{
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    const int steps = dml__most_steps(size);
    const size_t bytes = dml__choice_work_bytes(size, steps);
    const dml__price_model used = dml__choice_model(model, size);
    void *work = malloc(bytes);
    dml__choice choice;
    if (!work) return;
    dml__fill_choice(model, size, table, count, steps, false, 1e300, work, bytes, &choice);
    for (int o = 0; o < DML__CALL_BARRIER; o++)
        for (int power = 2; power <= 21; power++) {
            const dml__comm_operation operation = (dml__comm_operation)o;
            const bool runs = table_runs_at(operation, size, power);
            if (runs || power > 8) check_cheapest(&used, &choice, operation, size, power, runs ? 1 : 1.25);
        }
    free(work);
}

static void test_choice_is_cheapest(void)
{
    static const int sizes[] = { 3, 4, 8 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int far = 0; far < 3; far++) {
            dml__price_model model = far ? flat() : shared(sizes[s], sizes[s]);
            model.segment = 256 << 10;
            model.eager = 128 << 10;
            model.scratch = 0;
            if (far == 2) model.between.overhead = 20e-6;
            check_cheapest_choices(&model, sizes[s]);
        }
}

/* Of two ranks a half that was scattered need not come back, though in the price both halves go side by side.
 */
static void test_broadcast_of_two(void)
{
    enum { M = 2 };
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    dml__price_model model = shared(M, M);
    const size_t bytes = dml__choice_work_bytes(M, dml__most_steps(M));
    void *work = malloc(bytes);
    if (!work) return;
    dml__choice choice;
    model.inside = dml__memory_link_of(2e10);
    model.segment = 64 << 10;
    CHECK(table_price(&model, DML__CALL_BROADCAST, "scatter_all_gather", M, 1 << 14) <
          table_price(&model, DML__CALL_BROADCAST, "direct", M, 1 << 14));
    dml__fill_choice(&model, M, table, count, dml__most_steps(M), false, 1e300, work, bytes, &choice);
    for (int power = 2; power <= 30; power++)
        CHECK(strcmp(chosen_name(&choice, DML__CALL_BROADCAST, UINT64_C(1) << power), "scatter_all_gather"));
    free(work);
}

/* Two processes that look for what comes, each on its processor, wait 0.2 us for a message: two of them and
   memory that both share are soon less than one that carries the bytes. Where they take turns they aren't. */
static void test_awake_ranks(void)
{
    enum { M = 2 };
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    const size_t bytes = dml__choice_work_bytes(M, dml__most_steps(M));
    void *work = malloc(bytes);
    if (!work) return;
    for (int processors = 1; processors <= M; processors++) {
        const bool awake = processors == M;
        dml__price_model model = shared(M, processors);
        dml__choice choice;
        model.inside = dml__memory_link_of(4e10);
        model.memory = true;
        model.shared = 1 << 20;
        const dml__price_model used = dml__choice_model(&model, M);
        CHECK((used.inside.latency + 2 * used.inside.overhead < 0.3e-6) == awake);
        CHECK((used.inside.latency < model.inside.latency) == awake);
        dml__fill_choice(&model, M, table, count, dml__most_steps(M), false, 1e300, work, bytes, &choice);
        CHECK(strcmp(chosen_name(&choice, DML__CALL_ALL_REDUCE, 1 << 8), "shared"));
        CHECK(!strcmp(chosen_name(&choice, DML__CALL_ALL_REDUCE, 1 << 12), "shared") == awake);
        /* Of two hosts, each of which has both of its ranks on these processors, it is the same. */
        model.ranks_per_host = M;
        CHECK((dml__choice_model(&model, 2 * M).inside.latency < model.inside.latency) == awake);
        model.memory = false;
        CHECK(dml__choice_model(&model, M).inside.latency == model.inside.latency);
    }
    free(work);
}

/* A barrier has no size, whenever the time to compute prices ends. */
static void test_barrier_without_time(void)
{
    enum { M = 9 };
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    const dml__algorithm_info *barriers = table + dml__find_algorithm(DML__CALL_BARRIER, "dissemination");
    const dml__price_model model = shared(M, 2);
    const size_t bytes = dml__choice_work_bytes(M, dml__most_steps(M));
    void *work = malloc(bytes);
    if (!work) return;
    dml__choice choice;
    for (int i = 0; i < 200; i++) {
        dml__fill_choice(&model, M, barriers, 2, dml__most_steps(M), false, dml_seconds() + i * 4e-6, work,
                         bytes, &choice);
        const uint8_t *chosen = choice.algorithm[0][DML__CALL_BARRIER];
        for (int power = 1; power < DML__CHOICE_SIZES; power++)
            CHECK_MESSAGE(chosen[power] == chosen[0], "of 2^%d bytes after %d us", power, 4 * i);
    }
    free(work);
}

int main(void)
{
    RUN(test_ring);
    RUN(test_processor);
    RUN(test_trees);
    RUN(test_pipeline);
    RUN(test_grant);
    RUN(test_ports);
    RUN(test_hosts);
    RUN(test_shared_processors);
    RUN(test_few_processors_choice);
    RUN(test_racks);
    RUN(test_monotony);
    RUN(test_faults);
    RUN(test_rounds);
    RUN(test_large);
    RUN(test_choice);
    RUN(test_fit);
    RUN(test_table);
    RUN(test_shared);
    RUN(test_table_choice);
    RUN(test_keeps_processor);
    RUN(test_cached_rounds);
    RUN(test_who_has_rounds);
    RUN(test_local_steps);
    RUN(test_edges_of_choice);
    RUN(test_turns_are_kept);
    RUN(test_as_good);
    RUN(test_as_good_to_reduce);
    RUN(test_choice_is_cheapest);
    RUN(test_broadcast_of_two);
    RUN(test_awake_ranks);
    RUN(test_barrier_without_time);
    return test_report("comm/price");
}
