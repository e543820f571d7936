#ifndef DML_DIST_ZERO_SHARE_C
#define DML_DIST_ZERO_SHARE_C

#include "dist/zero_internal.h"

#include "dist/lent.h"
#include "graph/weights.h"
#include "train/trainer_internal.h"

/* Where a border near `at` may lie: an optimizer that looks at whole parameters must find them whole, and
   whether a row of a sparse one was met shows in all of its gradient. */
static size_t dml__zero_cut(const dml_trainer *trainer, size_t at)
{
    for (const dml_node *p = trainer->program->graph->first_parameter; p; p = p->next_parameter) {
        const size_t count = dml_shape_count(&p->shape);
        if (p->frozen || at < p->offset || at >= p->offset + count) continue;
        if (trainer->row->whole) return p->offset;
        return p->sparse ? at - (at - p->offset) % (count / (size_t)p->shape.dims[0]) : at;
    }
    return at;
}

DML__LOCAL dml_status dml__zero_make_room(dml__zero_state *state, dml_trainer *trainer)
{
    const size_t each = (size_t)state->ranks + 1;
    state->border = (size_t *)dml__allocate_array(&state->memory, 3 * each, sizeof *state->border);
    if (!state->border)
        return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for a sync strategy");
    state->counts = state->border + each;
    state->offsets = state->counts + each;
    return DML_OK;
}

DML__LOCAL dml_status dml__zero_share_out(dml__zero_state *state, dml_trainer *trainer)
{
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS), ranks = (size_t)state->ranks;
    for (size_t r = 0; r <= ranks; r++) {
        const size_t even = count / ranks * r + (r < count % ranks ? r : count % ranks);
        state->border[r] = dml__zero_cut(trainer, even);
    }
    return dml_trainer_own(trainer, state->border[state->rank], state->border[state->rank + 1]);
}

DML__LOCAL dml__zero_range dml__zero_part(const dml__zero_state *state, int r, size_t begin, size_t end)
{
    dml__zero_range part = { state->border[r], state->border[r + 1], NULL };
    if (part.begin < begin) part.begin = begin;
    if (part.begin > end) part.begin = end;
    if (part.end > end) part.end = end;
    if (part.end < part.begin) part.end = part.begin;
    return part;
}

DML__LOCAL dml__zero_range dml__zero_parts(dml__zero_state *state, size_t begin, size_t end)
{
    for (int r = 0; r < state->ranks; r++) {
        const dml__zero_range part = dml__zero_part(state, r, begin, end);
        state->counts[r] = part.end - part.begin;
        state->offsets[r] = part.begin - begin;
    }
    return dml__zero_part(state, state->rank, begin, end);
}

DML__LOCAL dml_status dml__zero_forget(dml__zero_state *state, dml_trainer *trainer, int vector, size_t begin,
                                       size_t end)
{
    const dml__zero_range own = dml__zero_part(state, state->rank, begin, end);
    const dml_status status = dml_trainer_forget(trainer, vector, begin, own.begin);
    return status == DML_OK ? dml_trainer_forget(trainer, vector, own.end, end) : status;
}

/* A vector's elements from `begin` on, of which `own` are as they are to be sent; NULL, with the error
   recorded. */
static float *dml__zero_at_hand(dml__zero_state *state, dml_trainer *trainer, int vector,
                                const dml__zero_range *own, size_t begin, size_t end)
{
    float *data = NULL;
    if (!state->filling.lends)
        return dml_trainer_get(trainer, vector, own->begin, own->end)
                   ? dml_trainer_host(trainer, vector, begin, end)
                   : NULL;
    return dml__lend(trainer, vector, begin, &data, &state->filling.stream) == DML_OK ? data : NULL;
}

DML__LOCAL dml_request *dml__zero_collect_start(dml__zero_state *state, dml_trainer *trainer, int vector,
                                                size_t begin, size_t end)
{
    const dml__zero_range own = dml__zero_parts(state, begin, end);
    float *all = dml__zero_at_hand(state, trainer, vector, &own, begin, end);
    if (!all) return NULL;
    void *const stream = dml__follow_stream(state->comm, state->filling.stream);
    dml_request *request = dml_comm_all_gatherv_start(state->comm, all + (own.begin - begin), state->counts,
                                                      state->offsets, DML_F32, all);
    dml__follow_stream(state->comm, stream);
    if (!request) dml__sync_failed(trainer, state->comm);
    return request;
}

DML__LOCAL dml_status dml__zero_collect_end(dml__zero_state *state, dml_trainer *trainer, int vector,
                                            size_t begin, size_t end, dml_request *request)
{
    const dml__zero_range own = dml__zero_part(state, state->rank, begin, end);
    if (dml_comm_wait(state->comm, request) != DML_OK) return dml__sync_failed(trainer, state->comm);
    if (state->filling.lends) return DML_OK;
    const dml_status status = dml_trainer_put(trainer, vector, begin, own.begin);
    return status == DML_OK ? dml_trainer_put(trainer, vector, own.end, end) : status;
}

DML__LOCAL dml_status dml__zero_collect(dml__zero_state *state, dml_trainer *trainer, int vector,
                                        size_t begin, size_t end)
{
    dml_request *request = dml__zero_collect_start(state, trainer, vector, begin, end);
    return request ? dml__zero_collect_end(state, trainer, vector, begin, end, request)
                   : dml_status_of(dml_trainer_context(trainer));
}

#endif
