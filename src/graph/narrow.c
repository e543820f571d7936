#ifndef DML_GRAPH_NARROW_C
#define DML_GRAPH_NARROW_C

#include "graph/narrow.h"

#include "kernels/half_internal.h"

/* Not inputs, which some devices read where the caller has them: all shall compute the same. Nor what
   backward begins with. */
static bool dml__becomes_narrow(const dml_program *program, int s, const dml__block_life *value,
                                const dml__block_life *again)
{
    const dml__slot *slot = &program->slot[s];
    return program->dtype != DML_F32 && value->bytes && !slot->exact && slot->node->dtype == DML_F32 &&
           slot->node->op != dml__input_op() && s != program->slot[program->output_slot].root &&
           again->first - value->last > 1;
}

static void dml__narrow_life(dml_program *program, int s, dml__block_life *value, dml__block_life *again)
{
    dml__block_life *narrow = again - 1;
    dml__slot *slot = &program->slot[s], *last = &program->slot[value->last];
    dml__slot *first = &program->slot[2 * program->slots - 1 - again->first];
    slot->narrowed = true;
    again->bytes = value->bytes;
    narrow->bytes = value->bytes / 2;
    narrow->first = slot->normalized ? slot->normalized : value->last;
    narrow->last = again->first;
    slot->next_narrow = last->narrows;
    last->narrows = s + 1;
    slot->next_widen = first->widens;
    first->widens = s + 1;
}

DML__LOCAL void dml__narrow_lives(dml_program *program, dml__block_life *blocks)
{
    for (int s = 0; s < program->slots; s++) {
        dml__block_life *value = &blocks[3 * s], *again = dml__again_block(program, blocks, s);
        if (again->last >= 0 && dml__becomes_narrow(program, s, value, again)) {
            dml__narrow_life(program, s, value, again);
            continue;
        }
        if (again->last > value->last) value->last = again->last;
        again->first = again->last = 0;
    }
}

DML__LOCAL void dml__place_narrow(dml_program *program, const dml__block_life *blocks)
{
    const dml__block_life *block = blocks + 3 * program->slots;
    for (int s = 0; s < program->slots; s++, block += 2) {
        program->slot[s].narrow = block[0].offset;
        program->slot[s].again = block[1].offset;
    }
}

/* `at`: where the value is f32. What is normalized has f16's largest number for those beyond it: of infinite
   ones there is no mean. */
static dml_status dml__convert_value(const dml__run *run, const dml__slot *slot, bool narrows, size_t at)
{
    const dml_ref wide = { run->program->arena, at };
    const dml_ref narrow = { run->program->arena, slot->narrow };
    const size_t n = dml__count(run, slot->node);
    const dml_dtype dtype = run->program->dtype;
    if (run->device->host_memory) {
        if (narrows)
            (slot->normalized ? dml__saturate_floats : dml__narrow_floats)(
                run->pool, dtype, n, (const float *)dml__host(wide), (uint16_t *)dml__host(narrow));
        else
            dml__widen_floats(run->pool, dtype, n, (const uint16_t *)dml__host(narrow),
                              (float *)dml__host(wide));
        return DML_OK;
    }
    dml_launch launch = dml__launch(narrows ? "half_narrow" : "half_widen", n, 1);
    launch.buffer[0] = narrows ? wide : narrow;
    launch.buffer[1] = narrows ? narrow : wide;
    launch.integer[0] = (int32_t)n;
    launch.integer[1] = dtype == DML_F16;
    launch.integer[2] = slot->normalized != 0;
    run->device->node = slot->node->name;
    run->device->pass = run->backward ? "backward" : "forward";
    const dml_status status = dml__submit(run->device, &launch);
    run->device->node = NULL;
    return status;
}

/* What the op normalizes becomes what backward will see of it. */
static dml_status dml__read_as_kept(const dml__run *run, const dml__slot *reader)
{
    const dml__slot *slot = dml__root_of_input(run->program, reader, 0);
    if (!slot->narrowed) return DML_OK;
    const dml_status status = dml__convert_value(run, slot, true, slot->value);
    return status == DML_OK ? dml__convert_value(run, slot, false, slot->value) : status;
}

DML__LOCAL dml_status dml__narrow_before_forward(const dml__run *run, int s)
{
    const dml__slot *slots = run->program->slot;
    dml_status status = DML_OK;
    for (int i = slots[s].narrows; i && status == DML_OK; i = slots[i - 1].next_narrow)
        status = dml__convert_value(run, &slots[i - 1], true, slots[i - 1].value);
    if (status == DML_OK && (slots[s].node->op->needs & DML__NORMALIZES))
        status = dml__read_as_kept(run, &slots[s]);
    return status;
}

DML__LOCAL dml_status dml__widen_before_backward(const dml__run *run, int s)
{
    const dml__slot *slots = run->program->slot;
    dml_status status = DML_OK;
    for (int i = slots[s].widens; i && status == DML_OK; i = slots[i - 1].next_widen)
        status = dml__convert_value(run, &slots[i - 1], false, slots[i - 1].again);
    return status;
}

#endif
