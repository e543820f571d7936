#ifndef DML_GRAPH_PROGRAM_C
#define DML_GRAPH_PROGRAM_C

#include "graph/program.h"

#include "base/os_thread.h"
#include "device/profile_internal.h"
#include "graph/finite.h"
#include "graph/narrow.h"
#include "graph/node.h"
#include "graph/op.h"
#include "graph/program_internal.h"
#include "kernels/formula.h"
#include "thread/pool_internal.h"

#include <stdio.h>

DML_API size_t dml_program_bytes(const dml_program *program)
{
    return program ? program->bytes : 0;
}

DML_API int dml_program_inputs(const dml_program *program)
{
    return program ? program->inputs : 0;
}

DML_API dml_node *dml_program_input(const dml_program *program, int i)
{
    return program && i >= 0 && i < program->inputs ? program->input[i] : NULL;
}

/* ---- running ---- */

static dml__error *dml__program_error_of(dml_program *program)
{
    return program->own_thread ? &program->error : &program->graph->context->error;
}

/* Values that some op indexes with must be inside its range: checked here, on the host, for every device. */
static dml_status dml__check_labels(const dml_node *input, const dml__slot *slot, int rows,
                                    const int32_t *values, dml__error *error)
{
    const size_t each = dml_shape_count(&input->shape);
    char or_ignored[32] = "";
    if (slot->ignored) snprintf(or_ignored, sizeof or_ignored, ", or %d", slot->ignored);
    for (size_t i = 0; i < each * (size_t)rows; i++)
        if ((values[i] < slot->lowest || values[i] >= slot->limit) && values[i] != slot->ignored)
            return dml__fail(error, DML_ERROR_ARGUMENT,
                             "input '%s': sample %d of the batch is %d, it must be in %d .. %d%s",
                             input->name, (int)(i / each), (int)values[i], slot->lowest, slot->limit - 1,
                             or_ignored);
    return DML_OK;
}

static dml_status dml__check_input_count(const dml_program *program, int count, dml__error *error)
{
    char names[256] = "";
    size_t used = 0;
    if (count == program->inputs) return DML_OK;
    for (int i = 0; i < program->inputs && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                 program->input[i]->name);
    return dml__fail(error, DML_ERROR_ARGUMENT, "%d inputs were given, the program takes %d: %s", count,
                     program->inputs, names);
}

DML__LOCAL dml_status dml__program_check(dml_program *program, int rows, const void *const *inputs, int count)
{
    dml__error *error = dml__program_error_of(program);
    if (error->status != DML_OK) return error->status;
    if (rows < 1 || rows > program->batch)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a run of %d samples asked for; this program takes 1 to %d", rows, program->batch);
    dml_status status = dml__check_input_count(program, count, error);
    for (int i = 0; i < program->inputs && status == DML_OK; i++) {
        const dml_node *input = program->input[i];
        if (!inputs || !inputs[i])
            return dml__fail(error, DML_ERROR_ARGUMENT, "input '%s': input %d of %d is NULL", input->name,
                             i + 1, program->inputs);
        if ((uintptr_t)inputs[i] % dml_dtype_size(input->dtype))
            return dml__fail(error, DML_ERROR_ARGUMENT,
                             "input '%s': its array must be aligned to %zu bytes, as an array of %s is",
                             input->name, dml_dtype_size(input->dtype), dml_dtype_name(input->dtype));
        const dml__slot *slot = &program->slot[program->slot_of_node[input->index]];
        if (slot->limit) status = dml__check_labels(input, slot, rows, (const int32_t *)inputs[i], error);
    }
    return status;
}

/* ---- the parameters that an op reads ---- */

/* Input i of the slot's op, where it is a trained parameter that the op reads in this half of a run. */
static const dml_node *dml__parameter_read(const dml_program *program, const dml__slot *slot, bool backward,
                                           int i)
{
    const dml__op *op = slot->node->op;
    const dml_node *node = dml__root_of_input(program, slot, i)->node;
    if (node->op != dml__parameter_op() || node->frozen) return NULL;
    const bool reads = backward ? slot->has_gradient && op->backward && (op->needs & DML__NEEDS_INPUT(i))
                                : op->forward != NULL;
    return reads ? node : NULL;
}

DML__LOCAL int dml__ranges_read(const dml_program *program, const dml__slot *slot, bool backward,
                                dml__w_range *range)
{
    int count = 0, last = 0;
    for (int i = 0; i < slot->node->inputs; i++) {
        const dml_node *p = dml__parameter_read(program, slot, backward, i);
        if (!p) continue;
        int at = count++;
        for (; at > 0 && range[at - 1].begin > p->offset; at--) range[at] = range[at - 1];
        range[at].begin = p->offset;
        range[at].end = p->offset + dml_shape_count(&p->shape);
    }
    for (int i = 1; i < count; i++) {
        if (range[i].begin > range[last].end)
            range[++last] = range[i];
        else if (range[i].end > range[last].end)
            range[last].end = range[i].end;
    }
    return count ? last + 1 : 0;
}

static dml_status dml__tell_of_ranges(const dml__run *run, const dml__slot *slot,
                                      dml_status (*tell)(void *user, size_t begin, size_t end))
{
    dml__w_range range[DML__MAX_INPUTS];
    dml_status status = DML_OK;
    if (!tell || !run->training) return DML_OK;
    const int count = dml__ranges_read(run->program, slot, run->backward, range);
    for (int i = 0; i < count && status == DML_OK; i++)
        status = tell(run->program->ranks.user, range[i].begin, range[i].end);
    return status;
}

static dml_status dml__use(const dml__run *run, const dml__slot *slot)
{
    return dml__tell_of_ranges(run, slot, run->program->ranks.use);
}

static dml_status dml__used(const dml__run *run, const dml__slot *slot)
{
    return dml__tell_of_ranges(run, slot, run->program->ranks.used);
}

/* ---- forward and backward ---- */

/* The chain is run by the last op that left work there. */
static dml_status dml__run_half(const dml__run *run, const dml__slot *slot)
{
    const dml__op *op = slot->node->op;
    const dml_status status = (run->backward ? op->backward : op->forward)(run, slot->node);
    if (status == DML_OK && run->chain && slot->chain_ends[run->backward])
        dml__chain_run(run->pool, run->chain);
    return status;
}

/* An op's half. The device knows whose it is meanwhile, for its errors and the profile; a program with a
   thread of its own keeps out of what others see. */
static dml_status dml__run_op(const dml__run *run, const dml__slot *slot)
{
    dml_device *device = run->device;
    if (run->program->own_thread) return dml__run_half(run, slot);
    device->node = slot->node->name;
    device->pass = run->backward ? "backward" : "forward";
    const double begin = dml__profile_now(device);
    const dml_status status = dml__run_half(run, slot);
    if (device->host_memory) dml__profile_ran(device, slot->node->op->name, begin);
    const dml__model_ranks *stages = &run->program->graph->stages;
    if (stages->calls) stages->calls->progress(stages->user);
    device->node = NULL;
    return status;
}

static dml_status dml__forward(const dml__run *run, const void *const *inputs)
{
    const dml_program *program = run->program;
    dml_status status = DML_OK;
    for (int i = 0; i < program->inputs && status == DML_OK; i++) {
        if (program->given) {
            program->given[i].host = (void *)(uintptr_t)inputs[i]; /* which no op writes */
            continue;
        }
        const size_t bytes = dml__count(run, program->input[i]) * dml_dtype_size(program->input[i]->dtype);
        status =
            run->device->backend->write(run->device, dml__value(run, program->input[i]), inputs[i], bytes);
    }
    for (int s = 0; s < program->slots && status == DML_OK; s++) {
        const dml__slot *slot = &program->slot[s];
        const dml_node *node = slot->node;
        if (run->training) status = dml__narrow_before_forward(run, s);
        if (status == DML_OK) status = dml__use(run, slot);
        if (status == DML_OK && node->op->forward && !slot->fused) status = dml__run_op(run, slot);
        if (program->check && status == DML_OK) status = dml__check_forward(run, node);
        if (status == DML_OK) status = dml__used(run, slot);
    }
    return status;
}

/* The gradient of a parameter that the output doesn't depend on: no op writes it, but an update or the caller
   may have. */
static dml_status dml__zero_unreached(const dml__run *run)
{
    const dml_program *program = run->program;
    dml_status status = DML_OK;
    for (const dml_node *p = program->graph->first_parameter; p && status == DML_OK; p = p->next_parameter) {
        if (p->frozen || dml__trains(program, p)) continue;
        const dml_ref g = { program->g, p->offset * sizeof(float) };
        status = run->device->backend->zero(run->device, g, dml_shape_count(&p->shape) * sizeof(float));
    }
    return status;
}

static dml_status dml__backward(const dml__run *run, const dml__training *training)
{
    const dml_program *program = run->program;
    const dml__gradient_listener *listener = training->listener;
    size_t final_from = program->graph->trained_count;
    dml_status status = run->device->backend->write(run->device, dml__gradient(run, program->output),
                                                    &training->loss_scale, sizeof training->loss_scale);
    if (status == DML_OK && !training->adds) status = dml__zero_unreached(run);
    for (int s = program->slots - 1; s >= 0 && status == DML_OK; s--) {
        const dml__slot *slot = &program->slot[s];
        status = dml__widen_before_backward(run, s);
        if (status == DML_OK) status = dml__use(run, slot);
        if (status == DML_OK && slot->has_gradient && slot->node->op->backward && !slot->gone)
            status = dml__run_op(run, slot);
        if (program->check && status == DML_OK) status = dml__check_backward(run, slot->node);
        if (status == DML_OK) status = dml__used(run, slot);
        if (status != DML_OK || slot->final_from >= final_from) continue;
        if (listener) status = listener->ready(listener->user, slot->final_from, final_from);
        final_from = slot->final_from;
    }
    return status;
}

/* NULL: to predict. */
static dml__run dml__begin_run(dml_program *program, int rows, const dml__training *training)
{
    dml_context *context = program->graph->context;
    const bool apart = !program->own_thread && context->device.profile; /* which times each op */
    dml__formula_chain *chain = apart ? NULL : program->chain;
    const dml__run run = { program,
                           context,
                           &context->device,
                           program->own_thread ? program->own_pool : context->pool,
                           dml__program_error_of(program),
                           rows,
                           training != NULL,
                           training && training->adds,
                           training ? training->step : 0,
                           training ? training->part : 0,
                           false,
                           chain };
    if (chain) chain->count = 0;
    return run;
}

static dml_status dml__read_node(const dml__run *run, const dml_node *node, void *values)
{
    const size_t bytes = dml__count(run, node) * dml_dtype_size(node->dtype);
    return run->device->backend->read(run->device, values, dml__value(run, node), bytes);
}

static dml_status dml__read_output(const dml__run *run, void *output)
{
    return dml__read_node(run, run->program->output, output);
}

/* For a kernel that fails without a word. */
static dml_status dml__explain_run(const dml__run *run, dml_status status)
{
    return status == DML_OK ? status
                            : dml__fail(run->error, status, "the run failed: %s", dml_status_string(status));
}

/* The same at the end of a pass: of a model that is cut other ranks are in it, too. */
static dml_status dml__end_pass(const dml__run *run, dml_status status)
{
    const dml_graph *graph = run->program->graph;
    status = dml__explain_run(run, status);
    if (status == DML_OK) return DML_OK;
    if (graph->model.calls) graph->model.calls->abort(graph->model.user, run->error->text);
    if (graph->stages.calls) graph->stages.calls->abort(graph->stages.user, run->error->text);
    return status;
}

/* What products round their factors to from now on. On the CPU many threads may be in programs of their own,
   each with a pool of its own, and all on the same device, which is left alone. */
static void dml__round_factors(const dml__run *run, dml_dtype dtype)
{
    dml__pool_round_to(run->pool, dtype);
    if (!run->device->host_memory) run->device->factors = (int)dtype;
}

static dml_status dml__predict(dml_program *program, int rows, const void *const *inputs, int count,
                               void *output)
{
    dml_status status = dml__program_check(program, rows, inputs, count);
    if (status == DML_OK) status = dml__check_gathered(program->graph, dml__program_error_of(program));
    if (status != DML_OK) return status;
    const dml__run run = dml__begin_run(program, rows, NULL);
    dml__round_factors(&run, program->dtype);
    status = dml__forward(&run, inputs);
    dml__round_factors(&run, DML_F32);
    if (status == DML_OK && output) status = dml__read_output(&run, output);
    status = dml__end_pass(&run, dml__flush(run.context, status));
    program->ran = status == DML_OK ? rows : 0;
    return status;
}

/* Whoever is refused by another's presence in the program leaves no sentence: its error is the other's. */
static bool dml__claim_own_thread(dml_program *program)
{
    if (__atomic_exchange_n(&program->running, 1, __ATOMIC_ACQUIRE)) {
        if (program->process == dml__process_id()) return false;
        program->process = dml__process_id(); /* of a fork: the run goes on in the parent alone */
    }
    return true;
}

static void dml__release_own_thread(dml_program *program)
{
    __atomic_store_n(&program->running, 0, __ATOMIC_RELEASE);
}

static dml_status dml__predict_on_own_thread(dml_program *program, int rows, const void *const *inputs,
                                             int count, void *output)
{
    if (!dml__claim_own_thread(program)) return DML_ERROR_STATE;
    dml_status status;
    if (dml__graph_claim(program->graph, true)) {
        status = dml__predict(program, rows, inputs, count, output);
        dml__graph_release(program->graph, true);
    } else {
        const dml__late *late = &program->graph->context->late;
        status = dml__fail(&program->error, DML_ERROR_STATE,
                           __atomic_load_n(&late->settle, __ATOMIC_RELAXED)
                               ? "the parameters wait for gradients of the trainer's last step; have its "
                                 "thread call dml_trainer_gather first"
                               : "the parameters are being written; predict between a trainer's steps");
    }
    dml__release_own_thread(program);
    return status;
}

static dml_status dml__read_watched(dml_program *program, const dml_node *node, void *values)
{
    dml__error *error = dml__program_error_of(program);
    if (error->status != DML_OK) return error->status;
    if (!node || !values || node->graph != program->graph)
        return dml__fail(error, DML_ERROR_ARGUMENT, "a value asked for %s",
                         !node     ? "of a node that is NULL"
                         : !values ? "with NULL for its place"
                                   : "of a node of another graph");
    const int slot = dml__node_slot(program, node);
    if (node != program->output && (slot < 0 || !program->slot[slot].watched))
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "the value of '%s' asked for, which this program doesn't keep: name it in .watch, "
                         "when that is compiled",
                         node->name);
    if (!program->ran)
        return dml__fail(error, DML_ERROR_STATE,
                         "the value of '%s' asked for, but there was no run of samples that ended well",
                         node->name);
    const dml__run run = dml__begin_run(program, program->ran, NULL);
    return dml__explain_run(&run, dml__read_node(&run, node, values));
}

DML_API dml_status dml_program_read(dml_program *program, const dml_node *node, void *values)
{
    if (!program) return DML_ERROR_ARGUMENT;
    if (program->own_thread) {
        if (!dml__claim_own_thread(program)) return DML_ERROR_STATE;
        const dml_status status = dml__read_watched(program, node, values);
        dml__release_own_thread(program);
        return status;
    }
    dml_context *context = program->graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__read_watched(program, node, values);
    dml__leave(context, entry);
    return status;
}

DML_API dml_status dml_program_run(dml_program *program, int rows, const void *const *inputs, int count,
                                   void *output)
{
    if (!program) return DML_ERROR_ARGUMENT;
    if (program->own_thread) return dml__predict_on_own_thread(program, rows, inputs, count, output);
    dml_context *context = program->graph->context;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    const dml_status status = dml__predict(program, rows, inputs, count, output);
    dml__leave(context, entry);
    return status;
}

DML__LOCAL dml_status dml__program_train(dml_program *program, int rows, const void *const *inputs,
                                         const dml__training *training, float *loss)
{
    dml__run run = dml__begin_run(program, rows, training);
    dml__round_factors(&run, program->dtype);
    DML_ASSERT(!program->ahead || program->ahead == rows);
    dml_status status = program->ahead ? DML_OK : dml__forward(&run, inputs);
    program->ahead = 0;
    run.backward = true;
    if (status == DML_OK && program->ranks.turn) status = program->ranks.turn(program->ranks.user);
    if (status == DML_OK) status = dml__backward(&run, training);
    dml__round_factors(&run, DML_F32);
    if (status == DML_OK && loss) status = dml__read_output(&run, loss);
    program->ran = status == DML_OK ? rows : 0;
    return dml__end_pass(&run, status);
}

DML__LOCAL dml_status dml__program_forward(dml_program *program, int rows, const void *const *inputs,
                                           const dml__training *training)
{
    const dml__run run = dml__begin_run(program, rows, training);
    dml__round_factors(&run, program->dtype);
    const dml_status status = dml__forward(&run, inputs);
    dml__round_factors(&run, DML_F32);
    program->ahead = status == DML_OK ? rows : 0;
    return dml__end_pass(&run, status);
}

DML__LOCAL dml_status dml__program_loss(dml_program *program, int rows, const void *const *inputs,
                                        const dml__training *training, float *loss)
{
    const dml__run run = dml__begin_run(program, rows, training);
    dml_status status = dml__forward(&run, inputs);
    if (status == DML_OK) status = dml__read_output(&run, loss);
    program->ran = status == DML_OK ? rows : 0;
    return dml__end_pass(&run, status);
}

DML__LOCAL dml_status dml__program_train_nothing(dml_program *program, const dml__training *training)
{
    dml__run run = dml__begin_run(program, 0, training);
    const dml__gradient_listener *listener = training->listener;
    size_t final_from = program->graph->trained_count;
    dml_status status = DML_OK;
    program->ran = 0;
    for (int s = 0; s < program->slots && status == DML_OK; s++) {
        const dml__slot *slot = &program->slot[s];
        status = dml__use(&run, slot);
        if (status == DML_OK && dml__is_over_ranks(&run, slot->node))
            status = slot->node->op->forward(&run, slot->node);
        if (status == DML_OK) status = dml__used(&run, slot);
    }
    run.backward = true;
    for (int s = program->slots - 1; s >= 0 && status == DML_OK; s--) {
        const dml__slot *slot = &program->slot[s];
        status = dml__use(&run, slot);
        if (status == DML_OK && slot->has_gradient && dml__is_over_ranks(&run, slot->node))
            status = slot->node->op->backward(&run, slot->node);
        if (status == DML_OK) status = dml__used(&run, slot);
        if (status != DML_OK || slot->final_from >= final_from) continue;
        if (listener) status = listener->ready(listener->user, slot->final_from, final_from);
        final_from = slot->final_from;
    }
    return dml__explain_run(&run, status);
}

DML_API const char *dml_program_error(const dml_program *program)
{
    if (!program) return "no program";
    return program->own_thread ? program->error.text : dml_error(program->graph->context);
}

DML_API dml_status dml_program_status(const dml_program *program)
{
    if (!program) return DML_ERROR_ARGUMENT;
    return program->own_thread ? program->error.status : dml_status_of(program->graph->context);
}

DML_API void dml_program_clear_error(dml_program *program)
{
    if (!program) return;
    if (!program->own_thread) {
        dml_clear_error(program->graph->context);
        return;
    }
    program->error.status = DML_OK;
    program->error.text[0] = '\0';
}

#endif
