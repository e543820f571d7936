#ifndef DML_GRAPH_CHAIN_C
#define DML_GRAPH_CHAIN_C

#include "graph/chain.h"

#include "graph/op.h"
#include "kernels/formula.h"

static bool dml__runs(const dml__slot *slot, bool backward)
{
    const dml__op *op = slot->node->op;
    return backward ? slot->has_gradient && op->backward && !slot->gone : op->forward && !slot->fused;
}

static bool dml__same_elements(const dml_node *a, const dml_node *b)
{
    return a->batched == b->batched && dml_shape_count(&a->shape) == dml_shape_count(&b->shape);
}

/* What such an op repeats is smaller than its result, and so than what others of its chain make. Parameters
   are left out: strategies are told before and after each op that reads one, and of gradients. */
static bool dml__goes_in_chain(const dml_program *program, const dml__slot *slot, bool backward)
{
    const dml_node *node = slot->node;
    if (!(node->op->needs & DML__IS_ELEMENTWISE)) return false;
    for (int i = 0; i < node->inputs; i++) {
        const dml__slot *root = dml__root_of_input(program, slot, i);
        if (root->node->op == dml__parameter_op()) return false;
        if (backward && root->has_gradient && !dml__same_elements(node, node->input[i])) return false;
    }
    return true;
}

static void dml__find_chains_of(dml_program *program, bool backward)
{
    int first = -1, last = -1, count = 0;
    for (int k = 0; k < program->slots; k++) {
        const int s = backward ? program->slots - 1 - k : k;
        dml__slot *slot = &program->slot[s];
        if (!dml__runs(slot, backward)) continue;
        const bool elementwise = dml__goes_in_chain(program, slot, backward);
        if (elementwise && first >= 0 && count < DML__CHAIN_CALLS &&
            dml__same_elements(slot->node, program->slot[first].node)) {
            program->slot[last].chained[backward] = slot->chained[backward] = true;
            program->slot[last].chain_ends[backward] = false;
            slot->chain_ends[backward] = true;
            count++;
        } else {
            first = elementwise ? s : -1;
            count = 1;
        }
        last = s;
    }
}

DML__LOCAL void dml__find_chains(dml_program *program)
{
    dml__find_chains_of(program, false);
    if (program->training) dml__find_chains_of(program, true);
}

DML__LOCAL bool dml__has_chains(const dml_program *program)
{
    for (int s = 0; s < program->slots; s++)
        if (program->slot[s].chained[0] || program->slot[s].chained[1]) return true;
    return false;
}

/* A chain as the memory plan has it: the times of its first and its last op. */
typedef struct dml__chain_time {
    int begin, end;
} dml__chain_time;

static bool dml__in_chain(const dml__chain_time *chain, int time)
{
    return time >= chain->begin && time <= chain->end;
}

static bool dml__is_of_values(int block)
{
    return block % 3 != 2; /* nor what an op saves */
}

/* Who had block `from` has `to`. */
static void dml__move_block(dml_program *program, int from, int to)
{
    for (int s = 0; s < program->slots; s++) {
        if (program->slot[s].value_at == from) program->slot[s].value_at = to;
        if (program->slot[s].gradient_at == from) program->slot[s].gradient_at = to;
    }
}

/* Gives block `part`, which begins in the chain, the place of one as large that an earlier op of the chain is
   the last to need: an element is written where only that element has been. */
static void dml__share_in_chain(dml_program *program, const dml__chain_time *chain, dml__block_life *blocks,
                                int part)
{
    if (!blocks[part].bytes || !dml__is_of_values(part) || !dml__in_chain(chain, blocks[part].first)) return;
    for (int b = 0; b < 3 * program->slots; b++) {
        dml__block_life *whole = &blocks[b];
        if (whole->bytes != blocks[part].bytes || !dml__is_of_values(b) ||
            whole->last >= blocks[part].first || !dml__in_chain(chain, whole->last))
            continue;
        whole->last = blocks[part].last;
        blocks[part].bytes = 0;
        dml__move_block(program, part, b);
        return;
    }
}

static void dml__plan_chain(dml_program *program, const dml__chain_time *chain, dml__block_life *blocks)
{
    const int count = 3 * program->slots;
    for (int b = 0; b < count; b++) dml__share_in_chain(program, chain, blocks, b);
    for (int b = 0; b < count; b++) {
        if (dml__in_chain(chain, blocks[b].first)) blocks[b].first = chain->begin;
        if (dml__in_chain(chain, blocks[b].last)) blocks[b].last = chain->end;
    }
}

DML__LOCAL void dml__plan_chains(dml_program *program, dml__block_life *blocks)
{
    const int slots = program->slots;
    for (int backward = 0; backward < 2; backward++)
        for (int time = 0, begin = -1; time < slots; time++) {
            const dml__slot *slot = &program->slot[backward ? slots - 1 - time : time];
            if (!slot->chained[backward]) continue;
            if (begin < 0) begin = time;
            if (!slot->chain_ends[backward]) continue;
            const dml__chain_time chain = { begin + backward * slots, time + backward * slots };
            dml__plan_chain(program, &chain, blocks);
            begin = -1;
        }
}

#endif
