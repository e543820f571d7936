#ifndef DML_DIST_ZERO_AHEAD_C
#define DML_DIST_ZERO_AHEAD_C

#include "dist/zero_internal.h"

#include "train/trainer_internal.h"

/* Lists what a pass will use; with `to` NULL it is only counted. */
static size_t dml__zero_list_uses(const dml_program *program, dml__zero_range *to)
{
    dml__w_range range[DML__MAX_INPUTS];
    size_t uses = 0;
    for (int i = 0; i < 2 * program->slots; i++) {
        const bool backward = i >= program->slots;
        const int slot = backward ? 2 * program->slots - 1 - i : i;
        const int count = dml__ranges_read(program, &program->slot[slot], backward, range);
        for (int r = 0; r < count; r++, uses++) {
            if (!to) continue;
            to[uses].begin = range[r].begin;
            to[uses].end = range[r].end;
        }
    }
    return uses;
}

DML__LOCAL dml_status dml__zero_foresee(dml__zero_state *state, dml_trainer *trainer)
{
    if (state->stage != 3) return DML_OK;
    state->uses = dml__zero_list_uses(trainer->program, NULL);
    state->use = (dml__zero_range *)dml__allocate_array(&state->memory, state->uses + 1, sizeof *state->use);
    if (!state->use) return dml_trainer_fail(trainer, DML_ERROR_MEMORY, "no memory left for a sync strategy");
    dml__zero_list_uses(trainer->program, state->use);
    return DML_OK;
}

DML__LOCAL dml_status dml__zero_drop_ahead(dml__zero_state *state, dml_trainer *trainer)
{
    dml_status status = DML_OK;
    for (size_t i = state->held; i < state->ahead; i++) {
        dml__zero_range *use = &state->use[i];
        if (use->request) dml_comm_wait(state->comm, use->request);
        use->request = NULL;
        if (trainer && status == DML_OK)
            status = dml__zero_forget(state, trainer, DML_PARAMETERS, use->begin, use->end);
    }
    state->held = state->next = state->ahead = 0;
    return status;
}

/* Whether one more range can come while others are in use or on their way: it is apart from them, and what
   comes before its time is at most a bucket, or this range alone. */
static bool dml__zero_has_room(const dml__zero_state *state)
{
    const dml__zero_range *more = &state->use[state->ahead];
    size_t early = more->end - more->begin;
    for (size_t i = state->held; i < state->ahead; i++) {
        const dml__zero_range *other = &state->use[i];
        if (more->begin < other->end && other->begin < more->end) return false;
        if (i > state->next) early += other->end - other->begin;
    }
    return state->ahead <= state->next + 1 || early <= state->filling.elements;
}

static dml_status dml__zero_ask(dml__zero_state *state, dml_trainer *trainer)
{
    dml__zero_range *use = &state->use[state->ahead];
    use->request = dml__zero_collect_start(state, trainer, DML_PARAMETERS, use->begin, use->end);
    if (!use->request) return dml_status_of(dml_trainer_context(trainer));
    state->ahead++;
    return DML_OK;
}

/* A pass that failed has left off anywhere. */
static dml_status dml__zero_find_place(dml__zero_state *state, dml_trainer *trainer, size_t begin, size_t end)
{
    const uint64_t pass = (dml__trainer_tried(trainer) << 32) + trainer->passes;
    const dml__zero_range *use = &state->use[state->next];
    if (pass == state->pass && state->next < state->uses && use->begin == begin && use->end == end)
        return DML_OK;
    state->pass = pass;
    return dml__zero_drop_ahead(state, trainer);
}

DML__LOCAL dml_status dml__zero_use_range(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    dml__zero_state *state = (dml__zero_state *)user;
    const size_t count = dml_trainer_count(trainer, DML_GRADIENTS);
    dml_status status = dml__zero_find_place(state, trainer, begin, end);
    if (status == DML_OK && state->whole) status = dml__zero_forget(state, trainer, DML_PARAMETERS, 0, count);
    state->whole = false;
    if (status == DML_OK && state->ahead == state->next) status = dml__zero_ask(state, trainer);
    while (status == DML_OK && state->ahead < state->uses && dml__zero_has_room(state))
        status = dml__zero_ask(state, trainer);
    if (status != DML_OK) return status;
    dml_request *request = state->use[state->next].request;
    state->use[state->next++].request = NULL;
    return request ? dml__zero_collect_end(state, trainer, DML_PARAMETERS, begin, end, request) : DML_OK;
}

/* What the next op uses again stays. */
DML__LOCAL dml_status dml__zero_used_range(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    dml__zero_state *state = (dml__zero_state *)user;
    const dml__zero_range *next = &state->use[state->next];
    const bool again = state->next < state->uses && next->begin >= begin && next->end <= end;
    state->held++;
    if (!again || state->ahead > state->next)
        return dml__zero_forget(state, trainer, DML_PARAMETERS, begin, end);
    state->ahead++;
    const dml_status status = dml__zero_forget(state, trainer, DML_PARAMETERS, begin, next->begin);
    return status == DML_OK ? dml__zero_forget(state, trainer, DML_PARAMETERS, next->end, end) : status;
}

#endif
