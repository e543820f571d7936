#ifndef DML_COMM_CHOICE_TABLE_C
#define DML_COMM_CHOICE_TABLE_C

#include "comm/choice_table.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "comm/algorithms.h"
#include "comm/measure.h"

DML__LOCAL uint8_t dml__choice_of(const dml__choice *choice, dml__comm_operation operation, uint64_t bytes,
                                  bool equal_parts)
{
    int i = 0;
    while (i < DML__CHOICE_SIZES - 1 && bytes > UINT64_C(1) << i) i++;
    return choice->algorithm[!equal_parts][operation][i];
}

/* Powers of two of bytes, of all ranks' data together, at which algorithms are run: closer where rounds,
   segments and grants set in. Beyond the last, pipelines are full, and prices grow by as much a byte. */
enum { DML__CHOICE_ANCHORS = 8, DML__CHOICE_MOST = 96 /* algorithms */ };
static const int dml__choice_anchors[DML__CHOICE_ANCHORS] = { 2, 9, 12, 14, 17, 18, 20, 24 };

/* The one of a call, which may be about one rank's part of the data. */
static int dml__choice_anchor(dml__comm_operation operation, int size, int index)
{
    int power = dml__choice_anchors[index];
    if (!dml__is_elementwise(operation))
        for (int ranks = 2; ranks <= size; ranks *= 2) power--;
    return power > 2 + index ? power : 2 + index;
}

static bool dml__choice_is_awake(const dml__price_model *model, int size)
{
    return model->processors >= (size < model->ranks_per_host ? size : model->ranks_per_host);
}

DML__LOCAL dml__price_model dml__choice_model(const dml__price_model *model, int size)
{
    dml__price_model coarse = *model;
    if (model->memory && dml__choice_is_awake(model, size)) dml__suppose_awake(&coarse);
    coarse.most_segments = 128 * (uint64_t)size; /* of 256 KiB, more than a chain's at 16 MiB */
    return coarse;
}

DML__LOCAL size_t dml__choice_work_bytes(int size, int most_steps)
{
    dml__price_model model;
    memset(&model, 0, sizeof model);
    model = dml__choice_model(&model, size);
    const size_t bytes = dml__price_work_bytes(&model, size, most_steps);
    const size_t most = ((size_t)4 << 20) + (size_t)most_steps * 2 * sizeof(dml__step) + (size_t)size * 64;
    return bytes < most ? bytes : most;
}

/* The seconds of a call of 2^power bytes; infinite where it can't be priced. */
static double dml__choice_price(const dml__price_model *model, int size, const dml__algorithm_info *algorithm,
                                int power, int most_steps, void *work, size_t work_bytes)
{
    dml__collective call;
    dml__price price;
    memset(&call, 0, sizeof call);
    memset(&price, 0, sizeof price);
    call.operation = algorithm->operation;
    call.size = size;
    call.count = (UINT64_C(1) << power) / sizeof(float);
    const dml_status status =
        dml__price_collective(model, algorithm, &call, sizeof(float), most_steps, work, work_bytes, &price);
    return status == DML_OK ? price.seconds : INFINITY;
}

/* The seconds of a byte among many, which its port sends while the processor has the next. */
static double dml__choice_byte(const dml__price_link *link)
{
    return link->touch > 1 / link->bandwidth ? link->touch : 1 / link->bandwidth;
}

/* No call takes less: what the rank that sends most sends, and its processor's share in that. */
static double dml__choice_bound(const dml__price_model *model, int size, const dml__algorithm_info *algorithm,
                                int power)
{
    const dml__price_link *inside = &model->inside, *between = &model->between;
    const double near = dml__choice_byte(inside), far = dml__choice_byte(between);
    const double overhead = inside->overhead < between->overhead ? inside->overhead : between->overhead;
    if (!algorithm->elements_sent || !algorithm->messages_sent) return 0;
    /* (The figures are of counts that are divisible.) */
    const uint64_t unit = 2 * (uint64_t)size, count = (UINT64_C(1) << power) / sizeof(float) / unit * unit;
    const double bytes =
        (double)(algorithm->elements_sent(size, count) * sizeof(float)) * (near < far ? near : far);
    const double messages = count == 0 ? 0 : (double)algorithm->messages_sent(size) * overhead;
    return bytes > messages ? bytes : messages;
}

/* What is priced, and how. */
typedef struct dml__choice_run {
    dml__price_model model;
    int size, count, most_steps;
    const dml__algorithm_info *algorithms; /* (count) */
    bool rank_order;
    double until;
    void *work;
    size_t work_bytes;
} dml__choice_run;

/* Where more ranks than processors take turns, the model knows by the mean only who is next: what was
   measured of algorithms whose prices differ by less than this was in any order. (Not where links are slow:
   what those take it knows.) And a tree that reduces waits for ranks that have to have their turn first,
   which makes up for a quarter more in a price: `direct`, of which only the root waits, takes 0.66 to 0.87 of
   the time up to 16 KiB between eight over TCP. */
#define DML__CHOICE_AS_GOOD 1.12
#define DML__CHOICE_AS_GOOD_REDUCED 1.25

static bool dml__choice_turns(const dml__price_model *model, int size)
{
    return model->processors && model->processors < size && model->ranks_per_host >= size;
}

/* How many times the least price is taken for the same. */
static double dml__choice_as_good(const dml__choice_run *run, dml__comm_operation operation)
{
    if (!dml__choice_turns(&run->model, run->size) || !dml__memory_moves(&run->model)) return 1;
    return operation == DML__CALL_REDUCE ? DML__CHOICE_AS_GOOD_REDUCED : DML__CHOICE_AS_GOOD;
}

static bool dml__choice_takes(const dml__choice_run *run, int algorithm, dml__comm_operation operation)
{
    const dml__algorithm_info *info = &run->algorithms[algorithm];
    if (dml__is_in_place(info) || (dml__is_shared(info) && !run->model.shared)) return false;
    /* Between two ranks both ways round are the same, and two rings are halving and doubling in twice as many
       messages; a half that was scattered need not come back, nor go before the whole sum does; and nothing
       is for more than one to read. */
    if (run->size == 2 &&
        (strcmp(info->name, "ring_segmented") == 0 || strcmp(info->name, "scatter_all_gather") == 0 ||
         info->write == dml__write_ring_reduce || info->write == dml__write_shared_all_gather))
        return false;
    /* Nobody need pass on what all can read where it is: a broadcast of 64 KiB to 4 MiB between eight threads
       took 1.5 to 5 times as long by any other way, which prices, that know no caches, don't see. */
    if (run->model.threads && operation == DML__CALL_BROADCAST && info->write != dml__write_direct_broadcast)
        return false;
    /* Threads that take turns and each of which waits for all others take 1.2 to 1.7 times as long
       (all-reduce of up to 4 KiB between four, reduce-scatter of up to 64 KiB between eight) as those that
       wait for one or a few, which prices have the other way round. */
    if (run->model.threads && dml__choice_turns(&run->model, run->size) &&
        (info->write == dml__write_all_to_all_all_reduce ||
         (info->write == dml__write_direct_reduce_scatter && !run->rank_order)))
        return false;
    return info->operation == operation && (info->rank_order || !run->rank_order || !dml__adds(operation));
}

/* Whether a call of 2^power bytes has room. */
static bool dml__choice_has_room(const dml__choice_run *run, int algorithm, int power)
{
    const dml__algorithm_info *info = &run->algorithms[algorithm];
    const uint64_t count = dml__goes_in_rounds(info) ? 1 : (UINT64_C(1) << power) / sizeof(float);
    if (!info->scratch || !run->model.scratch) return true;
    return info->scratch(run->size, count) <= run->model.scratch / sizeof(float);
}

/* Where an algorithm is run instead of an anchor at which it has no room: the last power at which it has. */
static int dml__choice_power(const dml__choice_run *run, int algorithm, int anchor)
{
    int power = dml__choice_anchor(run->algorithms[algorithm].operation, run->size, anchor);
    while (power > 2 && !dml__choice_has_room(run, algorithm, power)) power--;
    return power;
}

/* One after the other, as far as is known. */
static double dml__choice_messages(const dml__choice_run *run, int algorithm)
{
    const dml__algorithm_info *info = &run->algorithms[algorithm];
    return info->messages_sent ? (double)info->messages_sent(run->size) : 0;
}

/* The prices of an operation's algorithms at one anchor, in the order of their bounds: one whose bound is
   too far above the best that was found isn't run, and its bound stands for its price. */
static void dml__choice_prices(const dml__choice_run *run, dml__comm_operation operation, int anchor,
                               double (*seconds)[DML__CHOICE_ANCHORS])
{
    const int whole = dml__choice_anchor(operation, run->size, anchor);
    const double as_good = dml__choice_as_good(run, operation);
    double best[2] = { INFINITY, INFINITY }; /* of all; of those that take unequal parts */
    for (int a = 0; a < run->count; a++) seconds[a][anchor] = -1;
    for (;;) {
        int next = -1;
        double least = INFINITY;
        for (int a = 0; a < run->count; a++) {
            if (!dml__choice_takes(run, a, operation) || seconds[a][anchor] >= 0) continue;
            const double bound = dml__choice_bound(&run->model, run->size, &run->algorithms[a],
                                                   dml__choice_power(run, a, anchor));
            if (next < 0 || bound < least) next = a, least = bound;
        }
        if (next < 0) return;
        const bool equal = run->algorithms[next].equal_parts;
        const int power = dml__choice_power(run, next, anchor);
        double *price = &seconds[next][anchor];
        if (least > as_good * (equal ? best[0] : best[1]))
            *price = least;
        else if (anchor > 0 && seconds[next][anchor - 1] == INFINITY)
            *price = INFINITY;
        else if (dml_seconds() > run->until)
            *price = least + run->model.between.latency * dml__choice_messages(run, next);
        else
            *price = dml__choice_price(&run->model, run->size, &run->algorithms[next], power, run->most_steps,
                                       run->work, run->work_bytes);
        if (power < whole) continue; /* (of a smaller call) */
        if (*price < best[0]) best[0] = *price;
        if (!equal && *price < best[1]) best[1] = *price;
    }
}

static double dml__choice_bytes(int power)
{
    return (double)(UINT64_C(1) << power);
}

/* On the line through the two of the anchors around 2^power, or through the last two. */
static double dml__choice_between(const dml__choice_run *run, int algorithm,
                                  const double seconds[DML__CHOICE_ANCHORS], int power)
{
    const dml__comm_operation operation = run->algorithms[algorithm].operation;
    int i = 1;
    while (i < DML__CHOICE_ANCHORS - 1 && power > dml__choice_anchor(operation, run->size, i)) i++;
    const double low = dml__choice_bytes(dml__choice_power(run, algorithm, i - 1));
    const double high = dml__choice_bytes(dml__choice_power(run, algorithm, i));
    if (!(seconds[i] < INFINITY && seconds[i - 1] < INFINITY)) return INFINITY;
    if (!dml__choice_has_room(run, algorithm, power)) return INFINITY;
    /* (Of the fewest bytes some ranks have none to send, which is no measure of what lies above.) */
    if (i == 1 && power > dml__choice_anchor(operation, run->size, 0)) return seconds[1];
    const double part = high > low ? (dml__choice_bytes(power) - low) / (high - low) : 0;
    return part <= 0 ? seconds[i - 1] : seconds[i - 1] + part * (seconds[i] - seconds[i - 1]);
}

/* The first in the list that costs as good as the least. */
static uint8_t dml__choose_at(const dml__choice_run *run, dml__comm_operation operation,
                              double (*seconds)[DML__CHOICE_ANCHORS], int power, bool unequal)
{
    const double as_good = dml__choice_as_good(run, operation);
    double least = INFINITY;
    uint8_t chosen = DML__CHOICE_NONE;
    for (int pass = 0; pass < 2; pass++)
        for (int a = 0; a < run->count && (!pass || chosen == DML__CHOICE_NONE); a++) {
            if (!dml__choice_takes(run, a, operation)) continue;
            if (unequal && run->algorithms[a].equal_parts) continue;
            const double price = dml__choice_between(run, a, seconds[a], power);
            if (!pass && price < least) least = price;
            if (pass && price <= as_good * least) chosen = (uint8_t)a;
        }
    return chosen;
}

static void dml__choose_for(const dml__choice_run *run, dml__comm_operation operation,
                            double (*seconds)[DML__CHOICE_ANCHORS], dml__choice *choice)
{
    for (int i = 0; i < DML__CHOICE_SIZES; i++)
        for (int unequal = 0; unequal < 2; unequal++)
            choice->algorithm[unequal][operation][i] =
                dml__choose_at(run, operation, seconds, i, unequal != 0);
}

DML__LOCAL void dml__fill_choice(const dml__price_model *model, int size,
                                 const dml__algorithm_info *algorithms, int count, int most_steps,
                                 bool rank_order, double until, void *work, size_t work_bytes,
                                 dml__choice *choice)
{
    double seconds[DML__CHOICE_MOST][DML__CHOICE_ANCHORS];
    dml__choice_run run;
    run.model = dml__choice_model(model, size);
    run.size = size;
    run.count = count < DML__CHOICE_MOST ? count : (int)DML__CHOICE_MOST;
    run.most_steps = most_steps;
    run.algorithms = algorithms;
    run.rank_order = rank_order;
    run.until = until;
    run.work = work;
    run.work_bytes = work_bytes;
    memset(choice, DML__CHOICE_NONE, sizeof *choice);
    for (int i = 0; i < DML__CHOICE_OPERATIONS; i++) {
        const dml__comm_operation operation = (dml__comm_operation)i;
        for (int anchor = 0; anchor < DML__CHOICE_ANCHORS; anchor++) {
            if (anchor && operation == DML__CALL_BARRIER) { /* which has no size */
                for (int a = 0; a < run.count; a++) seconds[a][anchor] = seconds[a][0];
            } else {
                dml__choice_prices(&run, operation, anchor, seconds);
            }
        }
        dml__choose_for(&run, operation, seconds, choice);
    }
}

#endif
