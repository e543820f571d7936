/* narrow.h: what a training program keeps from forward for backward, in 16 bits.

   A value that backward reads has three blocks of the arena: its f32 one from its op to its last reader in
   forward; half of that from there to its first reader in backward; and an f32 one again from there to its
   last. So what is kept through the turn from forward to backward takes half the bytes, and ops see f32
   alone. Forward reads what was computed, backward what was kept; norms read what is kept in both.
   In f16, which has neither f32's largest numbers nor its smallest, what they read is its largest number at
   most, and what is divided by stays f32. */
#ifndef DML_GRAPH_NARROW_H
#define DML_GRAPH_NARROW_H

#include "graph/op.h"
#include "graph/plan.h"
#include "graph/program_internal.h"

/* Blocks of a plan: three for each slot, as compile.c has them, then two more: its value in 16 bits, and
   again in 32. */
static inline int dml__plan_blocks(const dml_program *program)
{
    return 5 * program->slots;
}

/* The life of slot s's value in backward: of the last of its blocks. */
static inline dml__block_life *dml__again_block(const dml_program *program, dml__block_life *blocks, int s)
{
    return &blocks[3 * program->slots + 2 * s + 1];
}

/* Decides which values become narrow. Before, the life of a value in forward is in block 3 s, and in backward
   in dml__again_block, where `last` is -1 if there is none. A value that stays f32 gets one life of both. */
DML__LOCAL void dml__narrow_lives(dml_program *program, dml__block_life *blocks);

/* Takes over where the two blocks lie. */
DML__LOCAL void dml__place_narrow(dml_program *program, const dml__block_life *blocks);

/* What is to be done before slot s runs in a training pass: values that it is the last, in forward, to read
   become narrow, and those that it is the first to read in backward f32 again. */
DML__LOCAL dml_status dml__narrow_before_forward(const dml__run *run, int s);
DML__LOCAL dml_status dml__widen_before_backward(const dml__run *run, int s);

#endif
