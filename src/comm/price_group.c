/* From an algorithm to the steps of a run: who sends what to whom, and who does the same as somebody else. */
#ifndef DML_COMM_PRICE_GROUP_C
#define DML_COMM_PRICE_GROUP_C

#include "comm/price.h"

#include <string.h>

#include "comm/algorithms.h"

/* A unit is consecutive ranks that share a port: a host, or a rack. Units are of one class if their ranks
   have equal steps and, step by step, peers of one class: then all of a class are at every moment in the same
   state, whatever their peers are called, and one of them stands for all (what colour refinement finds in a
   graph). */
typedef struct dml__price_group {
    const dml__price_model *model;
    const dml__algorithm_info *algorithm;
    dml__collective call;
    uint64_t element_bytes;
    int size, unit, unit_count, class_count;
    dml__schedule mine, theirs; /* a rank's, and a peer's */
    uint64_t *alike;            /* (size) what a rank's steps are like; then also its peers' */
    uint64_t *of_unit;          /* (unit_count) */
    int32_t *class_of;          /* (unit_count) the first unit of its class */
    int32_t *table;             /* (table_size) of units, by what they are like */
    int32_t *first_step;        /* (size + 1) in the run; of ranks of units that stand for none: unused */
    int32_t *run_rank;          /* (size) */
    uint32_t table_size;        /* a power of two */
} dml__price_group;

/* ---- work ---- */

typedef struct dml__price_arena {
    char *base;
    size_t used, bytes; /* used may come to more than there are */
} dml__price_arena;

static void *dml__price_take(dml__price_arena *arena, size_t count, size_t size)
{
    if (count > (SIZE_MAX / 2 - arena->used) / size) {
        arena->used = SIZE_MAX / 2;
        return NULL;
    }
    void *memory = arena->base ? arena->base + arena->used : NULL;
    arena->used += (count * size + 7) / 8 * 8;
    return arena->used <= arena->bytes ? memory : NULL;
}

static void dml__price_group_take(dml__price_group *group, dml__price_arena *arena, int most_steps)
{
    const size_t size = (size_t)group->size, steps = (size_t)most_steps;
    for (group->table_size = 4; group->table_size < 2 * (uint32_t)group->size;) group->table_size *= 2;
    group->mine.steps = (dml__step *)dml__price_take(arena, steps, sizeof(dml__step));
    group->theirs.steps = (dml__step *)dml__price_take(arena, steps, sizeof(dml__step));
    group->mine.capacity = group->theirs.capacity = most_steps;
    group->alike = (uint64_t *)dml__price_take(arena, size, sizeof *group->alike);
    group->of_unit = (uint64_t *)dml__price_take(arena, size, sizeof *group->of_unit);
    group->class_of = (int32_t *)dml__price_take(arena, size, sizeof *group->class_of);
    group->table = (int32_t *)dml__price_take(arena, group->table_size, sizeof *group->table);
    group->first_step = (int32_t *)dml__price_take(arena, size + 1, sizeof *group->first_step);
    group->run_rank = (int32_t *)dml__price_take(arena, size, sizeof *group->run_rank);
}

static void dml__price_run_take(dml__price_run *run, dml__price_arena *arena, size_t steps)
{
    const size_t ranks = (size_t)run->rank_count, hosts = (size_t)run->host_count;
    run->steps = (dml__price_step *)dml__price_take(arena, steps, sizeof *run->steps);
    run->ranks = (dml__price_rank *)dml__price_take(arena, ranks, sizeof *run->ranks);
    run->ports = (dml__price_port *)dml__price_take(arena, ranks + hosts, sizeof *run->ports);
    run->uplinks = (double *)dml__price_take(arena, 2 * (size_t)run->rack_count, sizeof *run->uplinks);
}

/* An event for each segment that is granted, under way or being worked on, and for what goes on in each step
   of the processor's and each port. */
static size_t dml__price_heap_size(const dml__price_run *run, uint64_t segments)
{
    return (size_t)segments + (size_t)run->step_count + (size_t)(run->rank_count + run->host_count);
}

DML__LOCAL size_t dml__price_work_bytes(const dml__price_model *model, int size, int most_steps)
{
    dml__price_arena arena = { NULL, 0, 0 };
    dml__price_group group;
    dml__price_run run;
    memset(&group, 0, sizeof group);
    memset(&run, 0, sizeof run);
    group.size = run.rank_count = run.host_count = run.rack_count = size;
    dml__price_group_take(&group, &arena, most_steps);
    const size_t steps = (size_t)size * (size_t)most_steps;
    dml__price_run_take(&run, &arena, steps);
    /* At least a segment a message, whatever the most may be. */
    const size_t segments = model->most_segments > steps ? (size_t)model->most_segments : steps;
    dml__price_take(&arena, segments + steps + 2 * (size_t)size, sizeof(dml__price_event));
    return arena.used;
}

/* ---- which units are alike ---- */

static uint64_t dml__price_mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static bool dml__price_write(const dml__price_group *group, int rank, dml__schedule *schedule)
{
    dml__collective call = group->call;
    call.rank = rank;
    schedule->count = 0;
    schedule->overflowed = false;
    group->algorithm->write(&call, schedule);
    for (int i = 0; i < schedule->count; i++)
        DML_ASSERT(schedule->steps[i].kind > DML__STEP_RECEIVE_REDUCE ||
                   (schedule->steps[i].peer >= 0 && schedule->steps[i].peer < group->size));
    return !schedule->overflowed;
}

static bool dml__price_is_message(const dml__step *step)
{
    return step->kind <= DML__STEP_RECEIVE_REDUCE;
}

static dml__price_path dml__price_path_of(const dml__price_group *group, int rank, int peer)
{
    const dml__price_model *model = group->model;
    const int host = rank / model->ranks_per_host, other = peer / model->ranks_per_host;
    if (host == other) return DML__PATH_INSIDE;
    if (model->hosts_per_rack == 0 || host / model->hosts_per_rack == other / model->hosts_per_rack)
        return DML__PATH_BETWEEN;
    return DML__PATH_RACKS;
}

/* Where a step's places are behind those of an earlier one that they overlap: all that a wait depends on. */
static uint64_t dml__price_wait_alike(uint64_t hash, const dml__step *step, const dml__step *earlier)
{
    for (int i = 0; i < 4; i++) {
        const bool source = (i & 1) && dml__has_source(step->kind);
        const bool earlier_source = (i & 2) && dml__has_source(earlier->kind);
        const uint64_t from = source ? step->source : step->offset;
        const uint64_t before = earlier_source ? earlier->source : earlier->offset;
        const bool meet = (source ? step->source_space : step->space) ==
                              (earlier_source ? earlier->source_space : earlier->space) &&
                          from < before + earlier->count && before < from + step->count;
        hash = dml__price_mix(hash, meet ? from - before : UINT64_MAX / 2);
    }
    return hash;
}

/* All of a rank's steps that the run sees, but for whom they are with. */
static uint64_t dml__price_steps_alike(const dml__price_group *group, int rank)
{
    const dml__schedule *s = &group->mine;
    uint64_t hash = (uint64_t)s->count;
    for (int i = 0; i < s->count; i++) {
        const dml__step *step = &s->steps[i];
        const bool message = dml__price_is_message(step);
        hash =
            dml__price_mix(hash, step->count << 6 | (uint64_t)step->kind << 3 |
                                     (message ? (uint64_t)dml__price_path_of(group, rank, step->peer) : 7));
        for (int k = 0; k < DML__STEP_AFTER; k++) {
            if (step->after[k] == -1) continue;
            hash = dml__price_mix(hash, (uint64_t)(step->after[k] + 3));
            if (step->after[k] >= 0) hash = dml__price_wait_alike(hash, step, &s->steps[step->after[k]]);
        }
    }
    return hash;
}

/* Adds to what a rank is like who its peers are: of which class, and which of the class's ranks. */
static uint64_t dml__price_peers_alike(const dml__price_group *group, uint64_t hash)
{
    for (int i = 0; i < group->mine.count; i++) {
        const dml__step *step = &group->mine.steps[i];
        if (!dml__price_is_message(step)) continue;
        const uint64_t of_class = (uint64_t)group->class_of[step->peer / group->unit];
        hash = dml__price_mix(hash, of_class << 32 | (uint64_t)(step->peer % group->unit));
    }
    return hash;
}

/* Puts the units that are alike into one class, called by the first of them. */
static void dml__price_classify(dml__price_group *group)
{
    for (int u = 0; u < group->unit_count; u++) group->of_unit[u] = 1;
    for (int r = 0; r < group->size; r++)
        group->of_unit[r / group->unit] = dml__price_mix(group->of_unit[r / group->unit], group->alike[r]);
    for (uint32_t i = 0; i < group->table_size; i++) group->table[i] = -1;
    group->class_count = 0;
    for (int u = 0; u < group->unit_count; u++) {
        uint32_t at = (uint32_t)(group->of_unit[u] >> 32) & (group->table_size - 1);
        while (group->table[at] >= 0 && group->of_unit[group->table[at]] != group->of_unit[u])
            at = (at + 1) & (group->table_size - 1);
        if (group->table[at] < 0) {
            group->table[at] = u;
            group->class_count++;
        }
        group->class_of[u] = group->table[at];
    }
}

static void dml__price_tell_apart(dml__price_group *group)
{
    for (int u = 0; u < group->unit_count; u++) group->class_of[u] = u;
    group->class_count = group->unit_count;
}

/* Ranks that differ by where they are in a chain are told apart one a round; whose steps those are, they are
   few, and it is quicker to run them all. */
enum { DML__PRICE_ROUNDS = 6 };

static bool dml__price_find_classes(dml__price_group *group, int *where)
{
    for (int r = 0; r < group->size; r++) {
        *where = r;
        if (!dml__price_write(group, r, &group->mine)) return false;
        group->alike[r] = dml__price_steps_alike(group, r);
    }
    dml__price_classify(group);
    int before = 0;
    for (int round = 0; before < group->class_count && group->class_count < group->unit_count; round++) {
        if (round == DML__PRICE_ROUNDS) {
            dml__price_tell_apart(group);
            break;
        }
        before = group->class_count;
        for (int r = 0; r < group->size; r++) {
            dml__price_write(group, r, &group->mine);
            group->alike[r] = dml__price_peers_alike(group, group->alike[r]);
        }
        dml__price_classify(group);
    }
    return true;
}

static bool dml__price_stands(const dml__price_group *group, int rank)
{
    return group->class_of[rank / group->unit] == rank / group->unit;
}

/* The rank that is run for this one. */
static int dml__price_stand_in(const dml__price_group *group, int rank)
{
    return group->class_of[rank / group->unit] * group->unit + rank % group->unit;
}

/* ---- the run's steps ---- */

/* Numbers the ranks, hosts, racks and steps that are run. */
static void dml__price_number(dml__price_group *group, dml__price_run *run)
{
    int steps = 0, host = -1, last_host = -1, rack = -1, last_rack = -1, first_here = 0;
    const int per_rack = group->model->hosts_per_rack;
    run->rank_count = 0;
    for (int r = 0; r < group->size; r++) {
        if (!dml__price_stands(group, r)) continue;
        const int real = r / group->model->ranks_per_host;
        const int real_rack = per_rack ? real / per_rack : real;
        if (real != last_host) host++, first_here = run->rank_count;
        if (real_rack != last_rack) rack++;
        last_host = real, last_rack = real_rack;
        dml__price_write(group, r, &group->mine);
        if (run->ranks) {
            dml__price_rank *to = &run->ranks[run->rank_count];
            to->host = host, to->rack = rack, to->first_here = first_here;
            to->first = steps, to->steps = group->mine.count;
        }
        group->run_rank[r] = run->rank_count++;
        group->first_step[r] = steps;
        steps += group->mine.count;
    }
    run->step_count = steps;
    run->host_count = host + 1;
    run->rack_count = rack + 1;
}

static void dml__price_fill(dml__price_group *group, dml__price_run *run, int rank)
{
    const int first = group->first_step[rank];
    dml__price_write(group, rank, &group->mine);
    for (int i = 0; i < group->mine.count; i++) {
        const dml__step *from = &group->mine.steps[i];
        dml__price_step *to = &run->steps[first + i];
        const bool message = dml__price_is_message(from);
        to->step = *from;
        to->rank = group->run_rank[rank];
        to->partner = -1;
        for (int k = 0; k < DML__STEP_AFTER; k++)
            if (from->after[k] >= 0) to->step.after[k] += first;
        to->path = (uint8_t)(message ? dml__price_path_of(group, rank, from->peer) : DML__PATH_INSIDE);
    }
}

/* Steps of one rank, each `stride` bytes behind the one before. */
typedef struct dml__price_list {
    const char *steps;
    size_t stride;
    int count, first; /* first: in the run */
} dml__price_list;

static const dml__step *dml__price_step_at(const dml__price_list *list, int index)
{
    return (const dml__step *)(const void *)(list->steps + (size_t)index * list->stride);
}

static dml__price_list dml__price_list_of(dml__price_group *group, const dml__price_run *run, int rank)
{
    dml__price_list list;
    list.first = group->first_step[dml__price_stand_in(group, rank)];
    if (dml__price_stands(group, rank)) {
        list.steps = (const char *)&run->steps[list.first].step;
        list.stride = sizeof *run->steps;
        list.count = run->ranks[group->run_rank[rank]].steps;
    } else {
        dml__price_write(group, rank, &group->theirs);
        list.steps = (const char *)group->theirs.steps;
        list.stride = sizeof *group->theirs.steps;
        list.count = group->theirs.count;
    }
    return list;
}

/* The next step from `at` on that sends to, or receives from, that peer, or -1. */
static int dml__price_seek(const dml__price_list *list, int at, int peer, bool send)
{
    for (; at < list->count; at++) {
        const dml__step *step = dml__price_step_at(list, at);
        if (step->peer == peer && dml__price_is_message(step) && (step->kind == DML__STEP_SEND) == send)
            return at;
    }
    return -1;
}

/* Pairs the messages that the rank sends to `peer`, or those that it receives, from its step `from` on, with
   the peer's own: the k-th with the k-th. Returns a step that has no partner of its size, or -1. */
static int dml__price_pair(const dml__price_list *mine, const dml__price_list *theirs, dml__price_run *run,
                           int rank, int peer, int from, bool send)
{
    int at = from, other = 0;
    while ((at = dml__price_seek(mine, at, peer, send)) >= 0) {
        other = dml__price_seek(theirs, other, rank, !send);
        if (other < 0 || dml__price_step_at(theirs, other)->count != dml__price_step_at(mine, at)->count)
            return at;
        run->steps[mine->first + at++].partner = theirs->first + other++;
    }
    return -1;
}

/* Where every rank is run, all messages are paired in one go: sends stand in a hash table by who they are
   between, each bucket a list in the order of the steps, and each receive takes the first that is its own.
   Returns a step that has no partner of its size, or -1. */
static int dml__price_pair_all(dml__price_run *run, const dml__price_group *group, int32_t *buckets,
                               uint32_t bucket_count)
{
    for (uint32_t i = 0; i < bucket_count; i++) buckets[i] = -1;
    const uint64_t size = (uint64_t)group->size;
    for (int i = run->step_count - 1; i >= 0; i--) {
        dml__price_step *send = &run->steps[i];
        if (send->step.kind != DML__STEP_SEND) continue;
        const uint64_t between = (uint64_t)send->rank * size + (uint64_t)send->step.peer;
        int32_t *bucket = &buckets[(uint32_t)(dml__price_mix(0, between) >> 32) & (bucket_count - 1)];
        send->queued_behind = *bucket;
        *bucket = i;
    }
    for (int i = 0; i < run->step_count; i++) {
        dml__price_step *receive = &run->steps[i];
        if (!dml__price_is_message(&receive->step) || receive->step.kind == DML__STEP_SEND) continue;
        const uint64_t between = (uint64_t)receive->step.peer * size + (uint64_t)receive->rank;
        int32_t *at = &buckets[(uint32_t)(dml__price_mix(0, between) >> 32) & (bucket_count - 1)];
        while (*at >= 0 &&
               (run->steps[*at].rank != receive->step.peer || run->steps[*at].step.peer != receive->rank))
            at = &run->steps[*at].queued_behind;
        if (*at < 0 || run->steps[*at].step.count != receive->step.count) return i;
        receive->partner = *at;
        run->steps[*at].partner = i;
        *at = run->steps[*at].queued_behind;
    }
    for (int i = 0; i < run->step_count; i++)
        if (run->steps[i].step.kind == DML__STEP_SEND && run->steps[i].partner < 0) return i;
    return -1;
}

/* Pairs all messages of a rank that is run. Returns as dml__price_pair does. */
static int dml__price_connect(dml__price_group *group, dml__price_run *run, int rank)
{
    const dml__price_list mine = dml__price_list_of(group, run, rank);
    for (int i = 0; i < mine.count; i++) {
        const dml__step *step = dml__price_step_at(&mine, i);
        if (!dml__price_is_message(step) || run->steps[mine.first + i].partner >= 0) continue;
        const dml__price_list theirs = dml__price_list_of(group, run, step->peer);
        int lonely = dml__price_pair(&mine, &theirs, run, rank, step->peer, i, true);
        if (lonely < 0) lonely = dml__price_pair(&mine, &theirs, run, rank, step->peer, i, false);
        if (lonely >= 0) return lonely;
    }
    return -1;
}

/* Who stands for others has to be its partner's partner. */
static bool dml__price_is_mutual(const dml__price_run *run)
{
    for (int i = 0; i < run->step_count; i++) {
        const int partner = run->steps[i].partner;
        if (dml__price_is_message(&run->steps[i].step) &&
            (run->steps[partner].partner != i || run->steps[partner].step.count != run->steps[i].step.count))
            return false;
    }
    return true;
}

static int dml__price_connect_all(dml__price_group *group, dml__price_run *run, dml__price_arena rest)
{
    if (group->class_count == group->unit_count) { /* a rank's number is that in the run, too */
        uint32_t buckets = 1;
        const size_t room = (rest.bytes - rest.used) / sizeof(int32_t);
        while (buckets < (uint32_t)run->step_count && 2 * (size_t)buckets <= room) buckets *= 2;
        int32_t *table = (int32_t *)dml__price_take(&rest, buckets, sizeof *table);
        if (table) return dml__price_pair_all(run, group, table, buckets);
    }
    for (int r = 0; r < group->size; r++) {
        const int lonely = dml__price_stands(group, r) ? dml__price_connect(group, run, r) : -1;
        if (lonely >= 0) return group->first_step[r] + lonely;
    }
    return -1;
}

/* ---- all of it ---- */

/* Whose step of the run that is. */
static void dml__price_name(const dml__price_group *group, int step, dml__price *price)
{
    for (int r = 0; r < group->size; r++)
        if (dml__price_stands(group, r) && step >= group->first_step[r]) {
            price->stuck_rank = r;
            price->stuck_step = step - group->first_step[r];
        }
}

static void dml__price_report(const dml__price_group *group, const dml__price_run *run, dml__price *price,
                              int stuck)
{
    price->seconds = 0;
    price->events = run->events;
    price->segment = run->segment * run->element_bytes;
    price->distinct = run->rank_count;
    for (int r = 0; r < group->size; r++) {
        const int stand_in = dml__price_stand_in(group, r);
        const double end = run->ranks[group->run_rank[stand_in]].end;
        if (price->ends) price->ends[r] = end;
        if (end > price->seconds) price->seconds = end;
    }
    if (stuck >= 0) dml__price_name(group, stuck, price);
}

static dml_status dml__price_group_run(dml__price_group *group, dml__price_arena arena, dml__price *price)
{
    dml__price_run run;
    memset(&run, 0, sizeof run);
    run.model = group->model;
    run.element_bytes = group->element_bytes;
    run.segment = group->model->segment / group->element_bytes;
    if (run.segment == 0) run.segment = 1;
    dml__price_number(group, &run);
    dml__price_run_take(&run, &arena, (size_t)run.step_count);
    price->work_bytes = arena.used;
    if (arena.used > arena.bytes) return DML_ERROR_MEMORY;
    dml__price_number(group, &run);
    for (int r = 0; r < group->size; r++)
        if (dml__price_stands(group, r)) dml__price_fill(group, &run, r);
    const int lonely = dml__price_connect_all(group, &run, arena);
    if (lonely >= 0) {
        dml__price_name(group, lonely, price);
        return DML_ERROR_MISMATCH;
    }
    if (!dml__price_is_mutual(&run)) return DML_ERROR_UNSUPPORTED;
    uint64_t segments = dml__price_segments(&run, run.segment), fewer;
    while (segments > group->model->most_segments) {
        fewer = dml__price_segments(&run, 2 * run.segment);
        if (fewer == segments) break; /* a segment a message */
        segments = fewer;
        run.segment *= 2;
    }
    run.heap_capacity = dml__price_heap_size(&run, segments);
    run.heap = (dml__price_event *)dml__price_take(&arena, run.heap_capacity, sizeof *run.heap);
    price->work_bytes = arena.used;
    if (arena.used > arena.bytes) return DML_ERROR_MEMORY;
    const int stuck = dml__price_run_steps(&run);
    dml__price_report(group, &run, price, stuck);
    return stuck >= 0 ? DML_ERROR_STATE : DML_OK;
}

static dml_status dml__price_round(const dml__price_model *model, const dml__algorithm_info *algorithm,
                                   const dml__collective *collective, size_t element_bytes, int most_steps,
                                   void *work, size_t work_bytes, dml__price *price)
{
    dml__price_arena arena = { (char *)work, 0, work_bytes };
    dml__price_group group;
    memset(&group, 0, sizeof group);
    group.model = model;
    group.algorithm = algorithm;
    group.call = *collective;
    group.element_bytes = element_bytes;
    group.size = collective->size;
    group.unit =
        model->hosts_per_rack ? model->hosts_per_rack * model->ranks_per_host : model->ranks_per_host;
    group.unit_count = (group.size + group.unit - 1) / group.unit;
    price->stuck_rank = price->stuck_step = -1;
    price->seconds = 0;
    dml__price_group_take(&group, &arena, most_steps);
    price->work_bytes = arena.used;
    if (arena.used > arena.bytes) return DML_ERROR_MEMORY;
    int where = 0;
    if (!dml__price_find_classes(&group, &where)) {
        price->stuck_rank = where;
        return DML_ERROR_MEMORY;
    }
    dml_status status = dml__price_group_run(&group, arena, price);
    if (status == DML_ERROR_UNSUPPORTED) { /* (Ranks that are alike and yet are not: all are run.) */
        dml__price_tell_apart(&group);
        status = dml__price_group_run(&group, arena, price);
    }
    return status;
}

/* Elements of a round, found as the engine does it. */
static uint64_t dml__price_round_count(const dml__price_model *model, const dml__algorithm_info *algorithm,
                                       const dml__collective *collective, size_t element_bytes)
{
    uint64_t most = dml__cached_round(collective->operation, collective->size, collective->count,
                                      model->round_part, element_bytes);
    if (algorithm->scratch && model->scratch)
        while (most > 1 && algorithm->scratch(collective->size, most) > model->scratch / element_bytes)
            most /= 2;
    return dml__shared_round(algorithm, collective->size, most, model->shared / element_bytes);
}

DML__LOCAL dml_status dml__price_collective(const dml__price_model *model,
                                            const dml__algorithm_info *algorithm,
                                            const dml__collective *collective, size_t element_bytes,
                                            int most_steps, void *work, size_t work_bytes, dml__price *price)
{
    const uint64_t most = dml__price_round_count(model, algorithm, collective, element_bytes);
    dml__collective round = *collective;
    round.count = most;
    round.shared = model->shared / element_bytes;
    const bool none = dml__is_shared(algorithm) && model->shared < element_bytes * (size_t)collective->size;
    if (none || (most < collective->count && !dml__goes_in_rounds(algorithm))) {
        price->stuck_rank = price->stuck_step = -1;
        return DML_ERROR_MEMORY;
    }
    const dml_status status =
        dml__price_round(model, algorithm, &round, element_bytes, most_steps, work, work_bytes, price);
    if (status != DML_OK || most == collective->count) return status;
    const double rounds =
        (double)collective->count / (double)most; /* (a shorter last one's latency is small) */
    price->seconds *= rounds;
    for (int r = 0; price->ends && r < collective->size; r++) price->ends[r] *= rounds;
    return DML_OK;
}

#endif
