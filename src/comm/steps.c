#ifndef DML_COMM_STEPS_C
#define DML_COMM_STEPS_C

#include "comm/schedule.h"

#include <inttypes.h>
#include <stdio.h>

/* Adding steps to a schedule, what `after` means, and a step in words. */

static int dml__add_step(dml__schedule *schedule, dml__step_kind kind, int peer, dml__space space,
                         uint64_t offset, uint64_t count)
{
    if (schedule->count >= schedule->capacity) {
        schedule->overflowed = true;
        return -1;
    }
    dml__step *const step = &schedule->steps[schedule->count];
    step->kind = (uint8_t)kind;
    step->space = step->source_space = (uint8_t)space;
    step->completes = false;
    step->peer = peer;
    for (int i = 0; i < DML__STEP_AFTER; i++) step->after[i] = -1;
    step->offset = offset;
    step->count = count;
    step->source = 0;
    return schedule->count++;
}

DML__LOCAL int dml__add_send(dml__schedule *schedule, int peer, dml__space space, uint64_t offset,
                             uint64_t count)
{
    return count ? dml__add_step(schedule, DML__STEP_SEND, peer, space, offset, count) : -1;
}

DML__LOCAL int dml__add_receive(dml__schedule *schedule, int peer, dml__step_kind kind, dml__space space,
                                uint64_t offset, uint64_t count)
{
    return count ? dml__add_step(schedule, kind, peer, space, offset, count) : -1;
}

DML__LOCAL int dml__add_local(dml__schedule *schedule, dml__step_kind kind, dml__space space, uint64_t offset,
                              uint64_t count, dml__space source_space, uint64_t source)
{
    const int index = dml__add_step(schedule, kind, -1, space, offset, count);
    if (index >= 0) {
        schedule->steps[index].source_space = (uint8_t)source_space;
        schedule->steps[index].source = source;
    }
    return index;
}

DML__LOCAL int dml__add_signal(dml__schedule *schedule, int peer)
{
    return dml__add_step(schedule, DML__STEP_SEND, peer, DML__SPACE_OUT, 0, 0);
}

DML__LOCAL int dml__add_wait_signal(dml__schedule *schedule, int peer)
{
    return dml__add_step(schedule, DML__STEP_RECEIVE, peer, DML__SPACE_OUT, 0, 0);
}

DML__LOCAL void dml__add_after(dml__schedule *schedule, int step, int earlier)
{
    if (step < 0 || earlier == -1) return;
    int32_t *const after = schedule->steps[step].after;
    int i = 0;
    while (i < DML__STEP_AFTER && after[i] != -1 && after[i] != earlier) i++;
    DML_ASSERT(i < DML__STEP_AFTER && earlier < step);
    after[i] = earlier;
}

DML__LOCAL void dml__set_completes(dml__schedule *schedule, int step)
{
    if (step >= 0) schedule->steps[step].completes = true;
}

typedef struct dml__touched {
    int space;
    uint64_t offset;
} dml__touched;

/* Which places a step touches: how many, at most 2. */
static int dml__touched_by(const dml__step *step, dml__touched touched[2])
{
    touched[0].space = step->space;
    touched[0].offset = step->offset;
    touched[1].space = step->source_space;
    touched[1].offset = step->source;
    return dml__has_source(step->kind) ? 2 : 1;
}

DML__LOCAL uint64_t dml__step_limit(const dml__step *step, const dml__step *earlier, uint64_t done,
                                    bool ended)
{
    if (ended) return UINT64_MAX;
    if (!step->count || !earlier->count) return 0;
    dml__touched now[2], before[2];
    const int now_count = dml__touched_by(step, now), before_count = dml__touched_by(earlier, before);
    bool meet = false;
    uint64_t limit = UINT64_MAX;
    for (int i = 0; i < now_count; i++) {
        for (int j = 0; j < before_count; j++) {
            const uint64_t from = now[i].offset, end = before[j].offset + earlier->count;
            if (now[i].space != before[j].space || from >= end || before[j].offset >= from + step->count)
                continue;
            meet = true;
            const uint64_t past = before[j].offset + done;
            if (past < end && past < from)
                limit = 0;
            else if (past < end && past - from < limit)
                limit = past - from;
        }
    }
    return meet ? limit : 0;
}

static int dml__print_range(char *text, size_t bytes, dml__space space, uint64_t offset, uint64_t count)
{
    static const char *const names[DML__SPACE_COUNT] = { "out", "in", "scratch", "shared" };
    return snprintf(text, bytes, " %s[%" PRIu64 ", %" PRIu64 ")", names[space], offset, offset + count);
}

DML__LOCAL const char *dml__step_text(const dml__schedule *schedule, int step, char text[DML__STEP_TEXT])
{
    static const char *const names[DML__STEP_KIND_COUNT] = { "send",      "receive", "receive_reduce",
                                                             "copy",      "reduce",  "reduce_both",
                                                             "reduce_out" };
    static const char *const peers[DML__STEP_KIND_COUNT] = {
        "to", "from", "from", "from", "by", "and", "by"
    };
    const dml__step *const s = &schedule->steps[step];
    const size_t size = DML__STEP_TEXT; /* the longest text has 183 characters */
    size_t at = (size_t)snprintf(text, size, "%d: %s", step, names[s->kind]);
    at += (size_t)dml__print_range(text + at, size - at, (dml__space)s->space, s->offset, s->count);
    at += (size_t)snprintf(text + at, size - at, " %s", peers[s->kind]);
    if (s->peer >= 0)
        at += (size_t)snprintf(text + at, size - at, " %d", (int)s->peer);
    else
        at +=
            (size_t)dml__print_range(text + at, size - at, (dml__space)s->source_space, s->source, s->count);
    for (int i = 0; i < DML__STEP_AFTER && s->after[i] != -1; i++) {
        at += (size_t)snprintf(text + at, size - at, i ? ", " : " after ");
        if (s->after[i] == DML__ALL_BEFORE)
            at += (size_t)snprintf(text + at, size - at, "all");
        else
            at += (size_t)snprintf(text + at, size - at, "%d", (int)s->after[i]);
    }
    if (s->completes) snprintf(text + at, size - at, ", completes");
    return text;
}

#endif
