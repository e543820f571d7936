/* What the table chooses for each size, against prices of the same algorithms one by one. */
#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "comm/choice_table.h"

#include "price_models.h"

/* The table for `size` ranks, of `count` algorithms from `list` on; those that can't be priced until then
   cost what they must at least. */
static dml__choice table_of(const dml__price_model *model, int size, const dml__algorithm_info *list,
                            int count, double until)
{
    const int steps = dml__most_steps(size);
    const size_t bytes = dml__choice_work_bytes(size, steps);
    void *work = malloc(bytes);
    dml__choice choice;
    memset(&choice, DML__CHOICE_NONE, sizeof choice);
    CHECK(work != NULL);
    if (work) dml__fill_choice(model, size, list, count, steps, false, until, work, bytes, &choice);
    free(work);
    return choice;
}

static dml__choice whole_table(const dml__price_model *model, int size)
{
    int count;
    const dml__algorithm_info *all = dml__algorithms(&count);
    return table_of(model, size, all, count, 1e300);
}

static const char *chosen_name(const dml__choice *choice, dml__comm_operation operation, uint64_t bytes)
{
    int count;
    return dml__algorithms(&count)[dml__choice_of(choice, operation, bytes, true)].name;
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
    dml__choice choice = whole_table(&model, M);
    CHECK_STRING(table[dml__choice_of(&choice, DML__CALL_ALL_REDUCE, 1024, true)].name, "butterfly");
    model.processors = 2;
    model.change = 1e-6;
    choice = whole_table(&model, M);
    CHECK_STRING(table[dml__choice_of(&choice, DML__CALL_ALL_REDUCE, 1024, true)].name, "master_worker");
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
    dml__choice choice = whole_table(&model, M);
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
}

/* An algorithm that has room for 2 KiB a rank and no more is taken up to there; what a call of one element
   costs, most of whose ranks have none to send, says nothing of the next sizes. */
static void test_edges_of_choice(void)
{
    enum { M = 8 };
    dml__price_model model = shared(M, 2);
    dml__choice choice = whole_table(&model, M);
    for (int power = 2; power <= 11; power++)
        CHECK_STRING(chosen_name(&choice, DML__CALL_ALL_GATHER, UINT64_C(1) << power), "bruck");
    CHECK(strcmp(chosen_name(&choice, DML__CALL_ALL_GATHER, 4096), "bruck") != 0);
    for (int power = 3; power <= 9; power++)
        CHECK_STRING(chosen_name(&choice, DML__CALL_ALL_REDUCE, UINT64_C(1) << power), "master_worker");
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
    dml__choice choice;
    const dml__price_model used = dml__choice_model(&model, M);
    const double direct = table_price(&used, DML__CALL_BROADCAST, "direct", M, 1);
    const double binomial = table_price(&used, DML__CALL_BROADCAST, "binomial", M, 1);
    CHECK(direct < binomial && binomial < 1.12 * direct);
    two[0] = table[dml__find_algorithm(DML__CALL_BROADCAST, "binomial")];
    two[1] = table[dml__find_algorithm(DML__CALL_BROADCAST, "direct")];
    choice = table_of(&model, M, two, 2, 1e300);
    CHECK_INT(dml__choice_of(&choice, DML__CALL_BROADCAST, 4, true), 1);
    model.memory = true;
    choice = table_of(&model, M, two, 2, 1e300);
    CHECK_INT(dml__choice_of(&choice, DML__CALL_BROADCAST, 4, true), 0);
    model.processors = M;
    CHECK(table_price(&model, DML__CALL_BROADCAST, "direct", M, 1) <
          table_price(&model, DML__CALL_BROADCAST, "binomial", M, 1));
    choice = table_of(&model, M, two, 2, 1e300);
    CHECK_INT(dml__choice_of(&choice, DML__CALL_BROADCAST, 4, true), 1);
}

/* Of reductions within 25 %: a tree is taken where nothing else is, or where direct costs more than that. */
static void test_as_good_to_reduce(void)
{
    enum { M = 8 };
    dml__price_model model = shared(M, 2);
    model.memory = true;
    for (int i = 0; i < 2; i++) {
        dml__choice choice;
        const uint64_t large = i ? 1 << 17 : 1 << 9;
        const dml__price_model used = dml__choice_model(&model, M);
        const double over = table_price(&used, DML__CALL_REDUCE, "direct", M, large / 4) /
                            table_price(&used, DML__CALL_REDUCE, "binomial", M, large / 4);
        CHECK_MESSAGE(i ? over > 1.26 : over > 1.13 && over < 1.24, "%g", over);
        choice = whole_table(&model, M);
        CHECK_STRING(chosen_name(&choice, DML__CALL_REDUCE, large), i ? "binomial" : "direct");
    }
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
    const dml__price_model used = dml__choice_model(model, size);
    dml__choice choice = whole_table(model, size);
    for (int o = 0; o < DML__CALL_BARRIER; o++)
        for (int power = 2; power <= 21; power++) {
            const dml__comm_operation operation = (dml__comm_operation)o;
            const bool runs = table_runs_at(operation, size, power);
            if (runs || power > 8) check_cheapest(&used, &choice, operation, size, power, runs ? 1 : 1.25);
        }
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

/* Of two ranks a half that was scattered need not come back, though in the price both halves go side by side;
   nor does a half that was summed go on before the whole; and nothing is for more than one to read. */
static void test_two_ranks(void)
{
    static const struct {
        dml__comm_operation operation;
        const char *never, *than;
        uint64_t count;
    } rules[] = { { DML__CALL_BROADCAST, "scatter_all_gather", "direct", 1 << 14 },
                  { DML__CALL_REDUCE, "ring", "binomial", 1 << 16 },
                  { DML__CALL_ALL_GATHER, "shared", "direct", 1 << 16 } };
    enum { M = 2 };
    dml__price_model model = shared(M, M);
    model.inside = dml__memory_link_of(6e10);
    model.segment = 256 << 10;
    model.shared = 1 << 20;
    model.reduce = 3e10;
    model.copy = 6e10;
    const dml__choice choice = whole_table(&model, M);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        CHECK(table_price(&model, rules[i].operation, rules[i].never, M, rules[i].count) <
              table_price(&model, rules[i].operation, rules[i].than, M, rules[i].count));
        for (int power = 2; power <= 30; power++)
            CHECK(strcmp(chosen_name(&choice, rules[i].operation, UINT64_C(1) << power), rules[i].never));
    }
}

/* Two processes that look for what comes, each on its processor, wait 0.2 us for a message: two of them and
   memory that both share are soon less than one that carries the bytes. Where they take turns they aren't. */
static void test_awake_ranks(void)
{
    enum { M = 2 };
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
        choice = whole_table(&model, M);
        CHECK(strcmp(chosen_name(&choice, DML__CALL_ALL_REDUCE, 1 << 8), "shared"));
        CHECK(!strcmp(chosen_name(&choice, DML__CALL_ALL_REDUCE, 1 << 12), "shared") == awake);
        /* Of two hosts, each of which has both of its ranks on these processors, it is the same. */
        model.ranks_per_host = M;
        CHECK((dml__choice_model(&model, 2 * M).inside.latency < model.inside.latency) == awake);
        model.memory = false;
        CHECK(dml__choice_model(&model, M).inside.latency == model.inside.latency);
    }
}

/* A barrier has no size, whenever the time to compute prices ends. */
static void test_barrier_without_time(void)
{
    enum { M = 9 };
    int count;
    const dml__algorithm_info *table = dml__algorithms(&count);
    const dml__algorithm_info *barriers = table + dml__find_algorithm(DML__CALL_BARRIER, "dissemination");
    const dml__price_model model = shared(M, 2);
    dml__choice choice;
    for (int i = 0; i < 200; i++) {
        choice = table_of(&model, M, barriers, 2, dml_seconds() + i * 4e-6);
        const uint8_t *chosen = choice.algorithm[0][DML__CALL_BARRIER];
        for (int power = 1; power < DML__CHOICE_SIZES; power++)
            CHECK_MESSAGE(chosen[power] == chosen[0], "of 2^%d bytes after %d us", power, 4 * i);
    }
}

int main(void)
{
    RUN(test_few_processors_choice);
    RUN(test_table_choice);
    RUN(test_edges_of_choice);
    RUN(test_as_good);
    RUN(test_as_good_to_reduce);
    RUN(test_choice_is_cheapest);
    RUN(test_two_ranks);
    RUN(test_awake_ranks);
    RUN(test_barrier_without_time);
    return test_report("comm/choice_table");
}
