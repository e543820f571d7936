#ifndef DML_GRAPH_COMPILE_C
#define DML_GRAPH_COMPILE_C

#include "graph/program.h"

#include "base/logger.h"
#include "base/memory.h"
#include "graph/chain.h"
#include "graph/gradient_rows.h"
#include "graph/in_place.h"
#include "graph/narrow.h"
#include "graph/node.h"
#include "graph/op.h"
#include "graph/plan.h"
#include "graph/program_internal.h"
#include "kernels/formula.h"
#include "kernels/rounded.h"
#include "thread/scratch.h"

#include <stdio.h>
#include <string.h>

static void dml__program_destroy_owned(dml__owned *owned)
{
    dml_program *program = (dml_program *)(void *)owned;
    dml_context *context = program->graph->context;
    dml__disown(context, owned);
    program->graph->programs--;
    dml__buffer_destroy(context, program->arena);
    dml__buffer_destroy(context, program->g);
    dml_pool_destroy(program->own_pool);
    dml__release_gradient_rows(program);
    dml__release(&context->memory, program->slot);
    dml__release(&context->memory, program->slot_of_node);
    dml__release(&context->memory, program->input);
    dml__release(&context->memory, program->given);
    dml__release(&context->memory, program->chain);
    dml__release(&context->memory, program);
}

DML_API void dml_program_destroy(dml_program *program)
{
    if (program) dml__program_destroy_owned(&program->owned);
}

static bool dml__takes_index(int lowest, int limit, int ignored, int value)
{
    return (value >= lowest && value < limit) || value == ignored;
}

/* What all the ops that index with a slot's values take. A value that one ignores counts where the others
   ignore it too, or have it in their range; of two such values only one can. */
static void dml__limit_slot(dml__slot *input, const dml_node *user)
{
    const bool first = !input->limit;
    const int ours = input->ignored, its = user->ignored; /* 0, which is in every range: none */
    if (first)
        input->ignored = its;
    else if (!ours || !dml__takes_index(user->lowest, user->limit, its, ours))
        input->ignored = dml__takes_index(input->lowest, input->limit, ours, its) ? its : 0;
    if (first || user->lowest > input->lowest) input->lowest = user->lowest;
    if (first || user->limit < input->limit) input->limit = user->limit;
}

/* What an op of the program indexes with must be in its range: of several, in the smallest. An input's values
   are checked in each run; those that another op makes must be in range whatever they are. */
static dml_status dml__limit_inputs(dml_program *program, const dml__slot *slot)
{
    const int limit = slot->node->limit;
    for (int i = 0; limit && i < slot->node->inputs; i++) {
        dml__slot *input = &program->slot[dml__input_slot(program, slot, i)->root];
        if (input->node->dtype != DML_I32) continue;
        dml__limit_slot(input, slot->node);
        if (input->node->op != dml__input_op() && (input->node->below < 1 || input->node->below > limit))
            return dml__node_fail(slot->node, DML_ERROR_ARGUMENT,
                                  "it indexes with '%s', up to %d; its indices must be in 0 .. %d",
                                  input->node->name, input->node->below - 1, limit - 1);
    }
    return DML_OK;
}

static int dml__last_node(const dml_node *output, const dml_program_options *options)
{
    int last = output->index;
    for (int i = 0; i < options->watch_count; i++)
        if (options->watch[i]->index > last) last = options->watch[i]->index;
    return last;
}

/* Who reads it after the run is one more user, whom no op may forestall. */
static void dml__watch_slots(dml_program *program, const dml_program_options *options)
{
    for (int i = 0; i < options->watch_count; i++) {
        dml__slot *slot = &program->slot[program->slot_of_node[options->watch[i]->index]];
        slot->watched = true;
        slot->uses++;
    }
}

/* Compiling, step 1: a slot for each node that the output or a watched node needs, in order of creation. */
static dml_status dml__collect_slots(dml_program *program, const dml_program_options *options)
{
    dml_context *context = program->graph->context;
    const int nodes = program->nodes = dml__last_node(program->output, options) + 1;
    dml_node **node = (dml_node **)dml__allocate_array(&context->memory, (size_t)nodes, sizeof *node);
    program->slot_of_node = (int *)dml__allocate_array(&context->memory, (size_t)nodes, sizeof(int));
    program->slot = (dml__slot *)dml__allocate_array(&context->memory, (size_t)nodes, sizeof(dml__slot));
    program->input = (dml_node **)dml__allocate_array(&context->memory, (size_t)nodes, sizeof(dml_node *));
    if (!node || !program->slot_of_node || !program->slot || !program->input) {
        dml__release(&context->memory, node);
        return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left to compile %d nodes", nodes);
    }
    dml_node *walk = program->graph->first;
    dml_status status = DML_OK;
    for (int i = 0; i < nodes; i++, walk = walk->next) node[i] = walk;

    int *needed = program->slot_of_node; /* 1 where needed, until it holds slots */
    needed[program->output->index] = 1;
    for (int i = 0; i < options->watch_count; i++) needed[options->watch[i]->index] = 1;
    for (int i = nodes - 1; i >= 0; i--)
        for (int k = 0; needed[i] && k < node[i]->inputs; k++) needed[node[i]->input[k]->index] = 1;
    for (int i = 0; i < nodes; i++) {
        if (!needed[i]) {
            program->slot_of_node[i] = -1;
            continue;
        }
        const int s = program->slots++;
        dml__slot *slot = &program->slot[s];
        slot->node = node[i];
        slot->value_at = 3 * s;
        slot->gradient_at = 3 * s + 1;
        program->slot_of_node[i] = s;
        for (int k = 0; k < node[i]->inputs; k++) {
            dml__slot *input = dml__input_slot(program, slot, k);
            if (input->uses++ == 0) input->first_use = s;
        }
        slot->root = node[i]->op->view ? dml__input_slot(program, slot, 0)->root : s;
        if (node[i]->op == dml__input_op()) {
            slot->given = program->inputs;
            program->input[program->inputs++] = node[i];
        }
        program->over_ranks = program->over_ranks || (program->training && node[i]->over_ranks);
        program->changes_w = program->changes_w || (program->training && node[i]->kept);
        if (status == DML_OK) status = dml__limit_inputs(program, slot);
    }
    dml__release(&context->memory, node);
    program->output_slot = program->slot_of_node[program->output->index];
    dml__watch_slots(program, options);
    return status;
}

/* The only op that reads a slot's node, where there is one that gates a relu; else NULL. */
static dml__slot *dml__gate_behind(dml_program *program, const dml__slot *slot)
{
    if (slot->uses != 1) return NULL;
    dml__slot *user = &program->slot[slot->first_use];
    const bool gates = (user->node->op->needs & DML__GATES_RELU) && user->node->input[0] == slot->node;
    return gates ? user : NULL;
}

/* Step 2: a relu and the op before it that nothing else reads become one. They share value and gradient,
   which the relu's backward, being the last to write there, makes that op's in place; unless it has nothing
   left to do, since the op before or behind it minds the relu. */
static void dml__fuse(dml_program *program)
{
    const bool on_host = program->graph->context->device.host_memory;
    const unsigned takes = on_host ? DML__TAKES_RELU : DML__TAKES_RELU_ANYWHERE;
    for (int s = 0; s < program->slots; s++) {
        dml__slot *slot = &program->slot[s];
        slot->root = program->slot[slot->root].root;
        if (!(slot->node->op->needs & DML__IS_RELU)) continue;
        dml__slot *input = dml__input_slot(program, slot, 0);
        if ((input->node->op->needs & takes) != takes || input->uses > 1) continue;
        slot->root = input->root;
        slot->fused = input->ends_in_relu = true;
        dml__slot *gate = dml__gate_behind(program, slot);
        slot->gone = (input->node->op->needs & DML__TAKES_RELU_BACK) || gate;
        if (gate && !(input->node->op->needs & DML__TAKES_RELU_BACK)) gate->begins_with_relu = true;
    }
}

/* Whether a gradient of the slot's node becomes one of its input i. */
static bool dml__flows_to(const dml__slot *slot, int i)
{
    const dml__op *op = slot->node->op;
    return (op->backward || op->view) && !(op->needs & DML__NO_GRADIENT(i));
}

DML__LOCAL bool dml__gives_gradient(const dml_program *program, const dml__slot *slot, int i)
{
    return slot->has_gradient && dml__flows_to(slot, i) && dml__input_slot(program, slot, i)->has_gradient;
}

/* Step 3: which gradients there are: those with a trained parameter behind them through which the output's
 * gradient flows. */
static void dml__find_gradients(dml_program *program)
{
    for (int s = 0; s < program->slots; s++) {
        dml__slot *slot = &program->slot[s];
        slot->has_gradient = (slot->node->op == dml__parameter_op() && !slot->node->frozen) ||
                             (slot->node->op->needs & DML__IS_SOURCE);
        for (int i = 0; i < slot->node->inputs; i++)
            slot->has_gradient = slot->has_gradient ||
                                 (dml__flows_to(slot, i) && dml__input_slot(program, slot, i)->has_gradient);
    }
    program->slot[program->output_slot].reached = true;
    for (int s = program->slots - 1; s >= 0; s--) {
        dml__slot *slot = &program->slot[s];
        for (int i = 0; slot->reached && i < slot->node->inputs; i++)
            if (dml__flows_to(slot, i)) dml__input_slot(program, slot, i)->reached = true;
        slot->has_gradient = slot->has_gradient && slot->reached;
    }
}

/* Step 4: who adds to a gradient that another op wrote before, and what is final after each op's backward. */
static void dml__order_gradients(dml_program *program)
{
    for (int s = program->slots - 1; s >= 0; s--) {
        dml__slot *slot = &program->slot[s];
        if (!slot->has_gradient || slot->node->op->view || slot->fused) continue;
        for (int i = 0; i < slot->node->inputs; i++) {
            if (!dml__gives_gradient(program, slot, i)) continue;
            dml__slot *root = &program->slot[dml__input_slot(program, slot, i)->root];
            if (root->written) slot->accumulates |= 1u << i;
            root->written = true;
        }
    }
    /* The first op in execution order that uses a parameter is the last to write its gradient. */
    for (int p = 0; p < program->slots; p++) {
        const dml__slot *parameter = &program->slot[p];
        if (parameter->node->op != dml__parameter_op() || !parameter->has_gradient) continue;
        const size_t end = parameter->node->offset + dml_shape_count(&parameter->node->shape);
        const int behind = parameter->first_use + 1;
        if (behind < program->slots && program->slot[behind].final_from < end)
            program->slot[behind].final_from = end;
    }
    for (int s = 1; s < program->slots; s++)
        if (program->slot[s].final_from < program->slot[s - 1].final_from)
            program->slot[s].final_from = program->slot[s - 1].final_from;
}

static size_t dml__value_bytes(const dml_program *program, const dml_node *node)
{
    return dml_shape_count(&node->shape) * (node->batched ? (size_t)program->batch : 1) *
           dml_dtype_size(node->dtype);
}

/* Stretches a block's life to include `time`. */
static void dml__live_at(dml__block_life *block, int time)
{
    if (time < block->first) block->first = time;
    if (time > block->last) block->last = time;
}

/* Step 5: when each value, gradient and saved block is needed. Slot s runs forward at time s and backward at
   time 2 slots - 1 - s. Block 3 s is its value, 3 s + 1 its gradient, 3 s + 2 what it saves; what is narrow
   (graph/narrow.h) comes behind those of all slots. */
static void dml__find_lives(dml_program *program, dml__block_life *blocks)
{
    const int end = 2 * program->slots - 1;
    for (int s = 0; s < program->slots; s++) {
        dml__again_block(program, blocks, s)->first = end + 1;
        dml__again_block(program, blocks, s)->last = -1;
    }
    for (int s = 0; s < program->slots; s++) {
        const dml__slot *slot = &program->slot[s];
        const dml_node *node = slot->node;
        dml__block_life *value = &blocks[3 * s], *gradient = &blocks[3 * s + 1], *saved = &blocks[3 * s + 2];
        value->first = value->last = node->op == dml__input_op() ? 0 : s;
        gradient->first = gradient->last = end - s;
        const bool works_backward = (node->op->needs & DML__WORKS_IN_BACKWARD) != 0;
        saved->first = works_backward ? end - s : s;
        saved->last = slot->has_gradient || works_backward ? end - s : s;
        if (node->op == dml__parameter_op()) continue;
        if (node->op == dml__input_op() && program->given) continue;
        if (slot->root == s) value->bytes = dml__value_bytes(program, node);
        if (slot->root == s && slot->has_gradient) gradient->bytes = value->bytes;
        if (node->op->saved_bytes && (slot->has_gradient || !works_backward))
            saved->bytes = node->op->saved_bytes(node, program->batch);

        /* In f16 what is divided by may become 0. */
        const bool divides = program->dtype == DML_F16 && (node->op->needs & DML__DIVIDES);
        const bool exactly = divides || (node->op->needs & DML__READS_EXACTLY);
        if ((node->op->needs & DML__COMPARES) == DML__COMPARES ||
            (divides && (node->op->needs & DML__NEEDS_OUTPUT)))
            program->slot[slot->root].exact = true;
        if (slot->has_gradient && (node->op->needs & DML__NEEDS_OUTPUT) && !slot->gone)
            dml__live_at(dml__again_block(program, blocks, slot->root), end - s);
        for (int i = 0; i < node->inputs; i++) {
            const int root = dml__input_slot(program, slot, i)->root;
            dml__live_at(&blocks[3 * root], s);
            if (exactly) program->slot[root].exact = true;
            if (i == 0 && (node->op->needs & DML__NORMALIZES) && !program->slot[root].normalized)
                program->slot[root].normalized = s;
            if (dml__gives_gradient(program, slot, i)) dml__live_at(&blocks[3 * root + 1], end - s);
            if (slot->has_gradient && (node->op->needs & DML__NEEDS_INPUT(i)))
                dml__live_at(dml__again_block(program, blocks, root), end - s);
        }
    }
    dml__live_at(&blocks[3 * program->slot[program->output_slot].root], end);
    dml__narrow_lives(program, blocks);
    /* Backward reads a watched value as it does without: from its copy in 16 bits, if there is one. */
    for (int s = 0; s < program->slots; s++)
        if (program->slot[s].watched) dml__live_at(&blocks[3 * program->slot[s].root], end);
}

/* Whether sizes can be counted: values, as many gradients, and what ops save; and values in 16 bits and again
   in 32. */
static bool dml__fits_in_memory(const dml_program *program)
{
    double bytes = 0;
    for (int s = 0; s < program->slots; s++) {
        const dml_node *node = program->slot[s].node;
        bytes += (program->dtype == DML_F32 ? 4.0 : 6.0) * (double)dml_shape_count(&node->shape) *
                 program->batch * (double)dml_dtype_size(node->dtype);
        if (node->op->saved_bytes) bytes += (double)node->op->saved_bytes(node, program->batch);
    }
    return bytes < (double)(SIZE_MAX / 2);
}

/* All at once, none in another's place: what every plan must agree with. */
static void dml__live_for_ever(const dml_program *program, dml__block_life *blocks, int count)
{
    for (int b = 0; b < count; b++) {
        blocks[b].first = 0;
        blocks[b].last = 2 * program->slots - 1;
    }
}

static dml_status dml__place_blocks(dml_program *program, bool disjoint)
{
    dml_context *context = program->graph->context;
    if (!dml__fits_in_memory(program))
        return dml__node_fail(program->output, DML_ERROR_MEMORY,
                              "a batch of %d needs more memory than there are addresses", program->batch);
    const int all = dml__plan_blocks(program), count = program->dtype == DML_F32 ? 3 * program->slots : all;
    dml__block_life *blocks =
        (dml__block_life *)dml__allocate_array(&context->memory, (size_t)all, sizeof *blocks);
    int *order = (int *)dml__allocate_array(&context->memory, (size_t)count, sizeof *order);
    dml_status status = DML_OK;
    if (blocks && order) {
        dml__find_lives(program, blocks);
        if (disjoint)
            dml__live_for_ever(program, blocks, count);
        else if (!program->check) /* which looks at what an op was given after it has run */
            dml__work_in_place(program, blocks);
        dml__plan_chains(program, blocks);
        program->bytes = dml__plan_memory(blocks, count, order);
        for (int s = 0; s < program->slots; s++) {
            program->slot[s].value = blocks[program->slot[s].value_at].offset;
            program->slot[s].gradient = blocks[program->slot[s].gradient_at].offset;
            program->slot[s].saved = blocks[3 * s + 2].offset;
        }
        dml__place_narrow(program, blocks);
    } else {
        status = dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left to plan %d blocks", count);
    }
    dml__release(&context->memory, blocks);
    dml__release(&context->memory, order);
    return status;
}

/* After an arena that couldn't be had: which layer needs most of it. */
static dml_status dml__say_which_is_large(const dml_program *program)
{
    dml__error *error = &program->graph->context->error;
    const dml_node *largest = program->output;
    for (int s = 0; s < program->slots; s++) {
        const dml_node *node = program->slot[s].node;
        const bool placed = program->slot[s].root == s && node->op != dml__parameter_op();
        if (placed && dml__value_bytes(program, node) > dml__value_bytes(program, largest)) largest = node;
    }
    const size_t used = strlen(error->text);
    if (error->status == DML_ERROR_MEMORY)
        snprintf(error->text + used, sizeof error->text - used, "; for a batch of %d '%s' alone takes %zu",
                 program->batch, largest->name, dml__value_bytes(program, largest));
    return error->status;
}

static dml_status dml__allocate_program(dml_program *program)
{
    dml_context *context = program->graph->context;
    program->arena = dml__buffer_create(context, program->bytes);
    if (!program->arena) return dml__say_which_is_large(program);
    if (dml__has_chains(program)) {
        program->chain = (dml__formula_chain *)dml__allocate(&context->memory, sizeof *program->chain);
        if (!program->chain)
            return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a program's loops");
    }
    if (!program->training) return DML_OK;
    program->g = dml__buffer_create_zeroed(context, program->graph->trained_count * sizeof(float));
    return program->g ? DML_OK : context->error.status;
}

static const dml_node *dml__viewed(const dml_node *node)
{
    while (node->op->view) node = node->input[0];
    return node;
}

static dml_status dml__check_watch(const dml_node *output, const dml_program_options *options)
{
    dml__error *error = &output->graph->context->error;
    if (options->watch_count < 0 || (options->watch_count > 0 && !options->watch))
        return dml__fail(error, DML_ERROR_ARGUMENT, "%d nodes to watch were named, in an array that is %s",
                         options->watch_count, options->watch ? "given" : "NULL");
    for (int i = 0; i < options->watch_count; i++) {
        const dml_node *node = options->watch[i];
        if (!node || node->graph != output->graph)
            return dml__fail(error, DML_ERROR_ARGUMENT, "node %d of the %d to watch is %s", i + 1,
                             options->watch_count, node ? "of another graph" : "NULL");
        const dml_node *viewed = dml__viewed(node);
        if (viewed->op == dml__input_op() || viewed->op == dml__parameter_op())
            return dml__fail(error, DML_ERROR_ARGUMENT, "'%s' can't be watched: %s", node->name,
                             viewed->op == dml__input_op() ? "it is what the caller gives as an input"
                                                           : "dml_parameter_read reads a parameter");
    }
    return DML_OK;
}

/* How a user gets from a number, or some, a sample to the loss. */
static const char *dml__way_to_a_loss(const dml_node *output)
{
    if (output->dtype != DML_F32) return "";
    if (!output->batched) return ": dml_mean or dml_sum over its axes makes it one";
    return output->shape.ndim ? ": dml_mean or dml_sum over its axes and then dml_batch_mean make it one"
                              : ": dml_batch_mean makes it one";
}

static dml_status dml__check_compile(dml_node *output, const dml_program_options *options)
{
    dml_context *context = output->graph->context;
    char text[DML_SHAPE_TEXT];
    if (context->error.status != DML_OK) return context->error.status;
    if (options && options->own_thread && (options->training || !context->device.host_memory))
        return dml__fail(
            &context->error, DML_ERROR_UNSUPPORTED,
            "a program with a thread of its own only predicts, and on the CPU: this one is %s on %s",
            options->training ? "to train" : "to predict", context->device.backend->name);
    if (options && options->own_thread && dml__graph_cuts(output->graph))
        return dml__fail(&context->error, DML_ERROR_UNSUPPORTED,
                         "a program with a thread of its own asked for, of a model that is cut over %d "
                         "ranks, which all run the same passes in the same order",
                         dml__graph_cuts(output->graph));
    if (!options || options->batch < 1)
        return dml__fail(&context->error, DML_ERROR_ARGUMENT,
                         "a batch of %d asked for: a program is compiled for 1 or more samples",
                         options ? options->batch : 0);
    if ((int)options->check < 0 || options->check > DML_CHECK_FINITE)
        return dml__fail(&context->error, DML_ERROR_ARGUMENT,
                         "a check of kind %d asked for; there are 0 to %d", (int)options->check,
                         (int)DML_CHECK_FINITE);
    if (options->dtype != DML_F32 && options->dtype != DML_BF16 && options->dtype != DML_F16)
        return dml__fail(&context->error, DML_ERROR_ARGUMENT,
                         "dtype %s (%d) asked for; a program computes in f32, bf16 or f16",
                         dml_dtype_name(options->dtype), (int)options->dtype);
    if (options->check && options->dtype != DML_F32)
        return dml__fail(&context->error, DML_ERROR_ARGUMENT,
                         "a check of all numbers asked for beside dtype %s; look for them in f32",
                         dml_dtype_name(options->dtype));
    if (output->op == dml__parameter_op() && !output->used)
        return dml__node_fail(output, DML_ERROR_ARGUMENT,
                              "no op uses it, so it has no place among the graph's parameters");
    if (options->training && output->partial)
        return dml__node_fail(
            output, DML_ERROR_ARGUMENT,
            "each rank has a value of its own here, and what is trained is one that all have "
            "alike: dml_parallel_sum or a row-parallel layer is missing before it");
    if (options->training && (output->batched || output->shape.ndim != 0 || output->dtype != DML_F32))
        return dml__node_fail(
            output, DML_ERROR_SHAPE, "it is %s%s %s; what is trained is one scalar loss for the batch%s",
            dml_shape_format(&output->shape, text), output->batched ? " a sample of" : " of",
            dml_dtype_name(output->dtype), dml__way_to_a_loss(output));
    const dml_node *viewed = dml__viewed(output);
    if (options->training && viewed->op == dml__parameter_op())
        return dml__node_fail(output, DML_ERROR_ARGUMENT,
                              "it is the parameter '%s', whose gradient is 1 whatever its samples are; what "
                              "is trained is the output of an op that computes a loss",
                              viewed->name);
    return dml__check_watch(output, options);
}

/* A pool of no thread but the caller's, which holds a program's scratch. */
static dml_status dml__make_own_pool(dml_program *program)
{
    dml_context *context = program->graph->context;
    dml_pool_options options;
    memset(&options, 0, sizeof options);
    options.threads = 1;
    options.allocator = dml__memory_allocator(&context->memory);
    program->own_pool = dml_pool_create(&options);
    if (program->own_pool) return DML_OK;
    return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a program's own scratch");
}

/* The scratch that the CPU's kernels work in: the largest need of any op. On a device with memory of its own
   it is where ops that work on the host lay what they read from there, which is nobody else's. */
static dml_status dml__reserve_scratch(dml_program *program)
{
    dml_context *context = program->graph->context;
    dml_scratch most = { 0, 0 };
    const bool on_host = context->device.host_memory;
    for (int s = 0; s < program->slots; s++) {
        const dml_node *node = program->slot[s].node;
        if (node->op->scratch && (on_host || (node->op->needs & DML__ON_HOST)))
            most = dml__larger_scratch(most, node->op->scratch(node, program->batch, program->training));
    }
    if (on_host && program->dtype != DML_F32) most = dml__larger_scratch(most, dml__rounded_scratch());
    if (!on_host && most.shared == 0) return DML_OK;
    const dml_status status = on_host ? DML_OK : dml__make_own_pool(program);
    if (status != DML_OK) return status;
    if (dml_pool_reserve(program->own_pool ? program->own_pool : context->pool, most) == DML_OK)
        return DML_OK;
    return dml__fail(&context->error, DML_ERROR_MEMORY,
                     "no memory left for scratch of %zu bytes for each thread and %zu for all", most.worker,
                     most.shared);
}

/* Where the device can, it reads inputs from the caller's arrays: no copies, and no places in the arena. */
static dml_status dml__read_inputs_in_place(dml_program *program)
{
    dml_context *context = program->graph->context;
    program->given = (dml_buffer *)dml__allocate_array(&context->memory, (size_t)program->inputs + 1,
                                                       sizeof *program->given);
    if (program->given) return DML_OK;
    return dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for %d inputs", program->inputs);
}

static dml_program *dml__compile_in(dml_node *output, const dml_program_options *options, bool disjoint)
{
    dml_graph *graph = output->graph;
    dml_context *context = graph->context;
    if (dml__check_compile(output, options) != DML_OK || dml__graph_lay_out(graph) != DML_OK) return NULL;
    dml_program *program = (dml_program *)dml__allocate(&context->memory, sizeof *program);
    if (!program) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a program");
        return NULL;
    }
    program->graph = graph;
    program->output = output;
    program->batch = options->batch;
    program->training = options->training;
    program->own_thread = options->own_thread;
    program->check = options->check;
    program->dtype = options->dtype;
    program->process = context->process;
    dml__own(context, &program->owned, dml__program_destroy_owned);
    graph->programs++;
    dml_status status = dml__collect_slots(program, options);
    if (status == DML_OK && !disjoint && !program->check) dml__fuse(program);
    if (status == DML_OK && context->device.host_memory && !disjoint)
        status = dml__read_inputs_in_place(program);
    if (status == DML_OK && program->training) {
        dml__find_gradients(program);
        dml__order_gradients(program);
        status = dml__make_gradient_rows(program);
        if (status == DML_OK && !program->slot[program->output_slot].has_gradient)
            status = dml__node_fail(output, DML_ERROR_ARGUMENT,
                                    "it depends on no trained parameter: there is nothing to train");
    }
    if (status == DML_OK && context->device.host_memory && program->dtype == DML_F32 && !disjoint &&
        !program->check)
        dml__find_chains(program);
    if (status == DML_OK) status = dml__place_blocks(program, disjoint);
    if (status == DML_OK) status = dml__allocate_program(program);
    if (status == DML_OK && program->own_thread) status = dml__make_own_pool(program);
    if (status == DML_OK) status = dml__reserve_scratch(program);
    if (status == DML_OK) {
        dml__log(&context->logger, DML_LOG_DEBUG, "compiled %d nodes for %d samples%s: %zu bytes",
                 program->slots, program->batch, program->training ? " to train" : "", program->bytes);
        return program;
    }
    dml_program_destroy(program);
    return NULL;
}

static dml_program *dml__compile_guarded(dml_node *output, const dml_program_options *options, bool disjoint)
{
    if (!output) return NULL;
    dml_context *context = output->graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return NULL;
    dml_program *program = dml__compile_in(output, options, disjoint);
    dml__leave(context, entry);
    return program;
}

DML_API dml_program *dml_compile(dml_node *output, const dml_program_options *options)
{
    return dml__compile_guarded(output, options, false);
}

DML__LOCAL dml_program *dml__compile_disjoint(dml_node *output, const dml_program_options *options)
{
    return dml__compile_guarded(output, options, true);
}

#endif
