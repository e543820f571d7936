/* Schedules in virtual time against what can be said of them on paper. */
#include "base/clock.h"
#include "comm/algorithms.h"
#include "comm/choice_table.h"
#include "comm/measure.h"
#include "comm/price.h"

#include "../test.h"
#include "price_models.h"
#include "price_schedules.h"

#include <math.h>
#include <stdlib.h>

/* ---- pricing them ---- */

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

/* What is under way to two hosts at once takes turns of a quarter of a segment: 4 KiB and 512 bytes, those
   end after the first KiB of the others. To two ranks of its own host, after a segment. */
static void test_streams(void)
{
    dml__price_model model = flat();
    double ends[3];
    model.segment = 4096;
    CHECK(price_status(&model, UNEQUAL, 3, 1024, ends) == DML_OK);
    CHECK_PRICE(ends[2], ALPHA + (1024 + 512) * BETA);
    CHECK_PRICE(ends[1], ALPHA + (4096 + 512) * BETA);
    CHECK(price_status(&model, UNEQUAL, 3, 8 * 1024, ends) == DML_OK);
    CHECK_PRICE(ends[2], ALPHA + 8 * 1024 * BETA);
    CHECK_PRICE(ends[1], ALPHA + 9 * 4096 * BETA);
    /* A segment of ten elements, of which a turn are two and a half: three elements end in the second one. */
    model.segment = 40;
    CHECK(price_status(&model, UNEQUAL, 3, 24, ends) == DML_OK);
    CHECK_PRICE(ends[2], ALPHA + (4 * 10 - 8) * BETA);
    CHECK_PRICE(ends[1], ALPHA + 108 * BETA);
    model.ranks_per_host = 3;
    model.segment = 4096;
    CHECK(price_status(&model, UNEQUAL, 3, 1024, ends) == DML_OK);
    CHECK_PRICE(ends[2], ALPHA + (4096 + 512) * BETA);
    CHECK_PRICE(ends[1], ALPHA + 4096 * BETA);
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
   as a rank has room for, of reduce-scatter what it gives to each of the three others. */
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
        call.count = o < 2 ? 1000 : 333;
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

/* ---- the library's own algorithms where ranks share a machine ---- */

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

/* Not where latencies count. */
static void test_who_has_rounds(void)
{
    dml__price_model model = dml__usual_model();
    model.copy = 4e10;
    CHECK_INT((long long)dml__round_part(&model, false), 128 << 10);
    model.inside = dml__copied_link_of(17e-6, 2.7e9);
    CHECK_INT((long long)dml__round_part(&model, true), 512 << 10);
    model.inside = dml__copied_link_of(100e-6, 2.7e9);
    CHECK_INT((long long)dml__round_part(&model, true), 0);
    CHECK_INT((long long)dml__round_part(&model, false), 128 << 10);
    model.inside = dml__copied_link_of(100e-6, 1.25e8);
    CHECK_INT((long long)dml__round_part(&model, true), 512 << 10);
}

static void test_whether_memory_moves(void)
{
    dml__price_model model = dml__usual_model();
    model.copy = 4e10;
    model.memory = false;
    model.inside = dml__copied_link_of(17e-6, 2.7e9);
    CHECK(dml__memory_moves(&model));
    model.inside = dml__copied_link_of(30e-6, 1.25e8);
    CHECK(!dml__memory_moves(&model));
    model.memory = true;
    CHECK(dml__memory_moves(&model));
}

static void test_local_steps(void)
{
    dml__price_model model = shared(4, 4);
    const double before = table_price(&model, DML__CALL_ALL_GATHER, "direct", 4, 1);
    model.local = 1e-3;
    CHECK(table_price(&model, DML__CALL_ALL_GATHER, "direct", 4, 1) >= before + 0.9e-3);
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

int main(void)
{
    RUN(test_ring);
    RUN(test_processor);
    RUN(test_trees);
    RUN(test_pipeline);
    RUN(test_grant);
    RUN(test_ports);
    RUN(test_streams);
    RUN(test_hosts);
    RUN(test_shared_processors);
    RUN(test_racks);
    RUN(test_monotony);
    RUN(test_faults);
    RUN(test_rounds);
    RUN(test_large);
    RUN(test_choice);
    RUN(test_fit);
    RUN(test_table);
    RUN(test_shared);
    RUN(test_keeps_processor);
    RUN(test_cached_rounds);
    RUN(test_who_has_rounds);
    RUN(test_whether_memory_moves);
    RUN(test_local_steps);
    RUN(test_turns_are_kept);
    return test_report("comm/price");
}
