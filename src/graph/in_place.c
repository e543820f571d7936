#ifndef DML_GRAPH_IN_PLACE_C
#define DML_GRAPH_IN_PLACE_C

#include "graph/in_place.h"

#include "graph/op.h"

/* Gives `part`, a block that begins to live when `whole` has been used for the last time, the bytes of
 * `whole`. */
static bool dml__continue_block(dml__block_life *whole, dml__block_life *part)
{
    if (!whole->bytes || whole->bytes != part->bytes || whole->last != part->first) return false;
    whole->last = part->last;
    part->bytes = 0;
    return true;
}

/* Whether all that write the gradient of input `i` of slot s, in backward, come before the op of slot `until`
   runs, but for s itself. */
static bool dml__written_after(const dml_program *program, int s, int root, int until)
{
    for (int u = 0; u < program->slots; u++) {
        const dml__slot *slot = &program->slot[u];
        if (u == s || slot->gone || slot->node->op->view || u < until) continue;
        for (int k = 0; k < slot->node->inputs; k++)
            if (dml__input_slot(program, slot, k)->root == root) return false;
    }
    return true;
}

/* Gives the gradients of both inputs of an op that passes its own on the place of that: the later input's op
   reads it first, and only then do other ops add to the earlier's. */
static void dml__pass_gradient(dml_program *program, int s, dml__block_life *blocks)
{
    const dml__slot *slot = &program->slot[s];
    const int a = dml__input_slot(program, slot, 0)->root, b = dml__input_slot(program, slot, 1)->root;
    dml__slot *early = &program->slot[a < b ? a : b], *late = &program->slot[a < b ? b : a];
    dml__block_life *whole = &blocks[slot->gradient_at];
    dml__block_life *first = &blocks[3 * (a < b ? b : a) + 1], *last = &blocks[3 * (a < b ? a : b) + 1];
    if (!dml__gives_gradient(program, slot, 0) || !dml__gives_gradient(program, slot, 1)) return;
    if (a == b || slot->accumulates) return;
    if (!whole->bytes || whole->bytes != first->bytes || whole->bytes != last->bytes) return;
    if (whole->last != first->first || whole->last != last->first) return;
    if (!dml__written_after(program, s, a < b ? b : a, 0) ||
        !dml__written_after(program, s, a < b ? a : b, a < b ? b : a))
        return;
    whole->last = last->last;
    first->bytes = last->bytes = 0;
    early->gradient_at = late->gradient_at = slot->gradient_at;
}

/* Gives the gradient of input 0 of an op that can do so the place of that input's value, where nothing reads
   it after this op. */
static void dml__write_gradient_over_input(dml_program *program, int s, dml__block_life *blocks)
{
    const dml__slot *slot = &program->slot[s];
    const int input = dml__input_slot(program, slot, 0)->root;
    if (!dml__gives_gradient(program, slot, 0) || (slot->accumulates & 1u)) return;
    for (int i = 1; i < slot->node->inputs; i++)
        if (dml__input_slot(program, slot, i)->root == input) return;
    const int from = program->slot[input].value_at;
    if (dml__continue_block(&blocks[from], &blocks[3 * input + 1])) program->slot[input].gradient_at = from;
}

DML__LOCAL void dml__work_in_place(dml_program *program, dml__block_life *blocks)
{
    for (int s = 0; s < program->slots; s++) {
        dml__slot *slot = &program->slot[s];
        if (!slot->node->op->in_place) continue;
        const int from = program->slot[dml__input_slot(program, slot, 0)->root].value_at;
        if (dml__continue_block(&blocks[from], &blocks[3 * s])) slot->value_at = from;
    }
    for (int s = program->slots - 1; s >= 0; s--) {
        const dml__slot *slot = &program->slot[s];
        if (slot->has_gradient && (slot->node->op->needs & DML__PASSES_GRADIENT))
            dml__pass_gradient(program, s, blocks);
        if (slot->has_gradient && (slot->node->op->needs & DML__GRADIENT_OVER_INPUT))
            dml__write_gradient_over_input(program, s, blocks);
        if (!slot->node->op->in_place || (slot->accumulates & 1u)) continue;
        const int input = dml__input_slot(program, slot, 0)->root;
        if (!dml__gives_gradient(program, slot, 0)) continue;
        if (dml__continue_block(&blocks[slot->gradient_at], &blocks[3 * input + 1]))
            program->slot[input].gradient_at = slot->gradient_at;
    }
}

#endif
