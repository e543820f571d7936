/* Micro-batches on their way through a stage: one forward, one backward (dist/pipeline.h). */
#ifndef DML_DIST_PIPELINE_C
#define DML_DIST_PIPELINE_C

#include "dist/pipeline.h"

#include "base/memory.h"
#include "comm/job.h"
#include "dist/model_ranks.h"
#include "dist/pipeline_internal.h"
#include "graph/node.h"
#include "graph/program_internal.h"
#include "train/trainer_alike.h"
#include "train/trainer_internal.h"

#include <string.h>

struct dml_pipeline {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_trainer *trainer;
    dml_comm *comm;
    int stage, stages;
    dml__stage_pass *pass; /* (stages - stage); the first one has the program's own arena */
    const void **inputs;   /* (of the program) a micro-batch's */
};

static int dml__passes(const dml_pipeline *pipeline)
{
    return pipeline->stages - pipeline->stage;
}

/* ---- making one ---- */

static void dml__pipeline_destroy_owned(dml__owned *owned)
{
    dml_pipeline *pipeline = (dml_pipeline *)(void *)owned;
    dml_context *context = pipeline->context;
    dml__memory *memory = &context->memory;
    dml__disown(context, owned);
    for (int i = 0; pipeline->pass && i < dml__passes(pipeline); i++) {
        dml__stage_pass *pass = &pipeline->pass[i];
        dml__release(memory, pass->value_in);
        dml__release(memory, pass->gradient_in);
        dml__release(memory, pass->value_out);
        dml__release(memory, pass->gradient_out);
        if (i == 0) continue;
        dml__buffer_destroy(context, pass->arena);
        dml__release(memory, pass->given);
    }
    dml__release(memory, pipeline->pass);
    dml__release(memory, pipeline->inputs);
    dml__comm_let_go(pipeline->comm);
    dml__release(memory, pipeline);
}

DML_API void dml_pipeline_destroy(dml_pipeline *pipeline)
{
    if (pipeline) dml__pipeline_destroy_owned(&pipeline->owned);
}

static float *dml__allocate_message(dml_context *context, const dml_program *program, size_t elements)
{
    return (float *)dml__allocate_array(&context->memory, elements, (size_t)program->batch * sizeof(float));
}

/* Where there is one of another stage. */
static bool dml__allocate_messages(dml_context *context, const dml_program *program, dml__stage_pass *pass)
{
    if (pass->in) {
        pass->value_in = dml__allocate_message(context, program, pass->in);
        pass->gradient_out = dml__allocate_message(context, program, pass->in);
    }
    if (pass->out) {
        pass->value_out = dml__allocate_message(context, program, pass->out);
        pass->gradient_in = dml__allocate_message(context, program, pass->out);
    }
    return (!pass->in || (pass->value_in && pass->gradient_out)) &&
           (!pass->out || (pass->value_out && pass->gradient_in));
}

/* An arena of its own, but for the first one. */
static bool dml__allocate_pass(dml_context *context, dml_program *program, dml__stage_pass *pass, bool first)
{
    pass->arena = first ? program->arena : dml__buffer_create(context, program->bytes);
    pass->given = first ? program->given : NULL;
    if (!first && program->given)
        pass->given = (dml_buffer *)dml__allocate_array(&context->memory, (size_t)program->inputs + 1,
                                                        sizeof *pass->given);
    return pass->arena && (!program->given || pass->given) && dml__allocate_messages(context, program, pass);
}

static size_t dml__elements_between(const dml_program *program, const dml__op *op)
{
    for (int s = 0; s < program->slots; s++) {
        const dml_node *node = program->slot[s].node;
        if (node->op == op) return dml_shape_count(&(node->inputs ? node->input[0] : node)->shape);
    }
    return 0;
}

static dml_status dml__pipeline_allocate(dml_pipeline *pipeline)
{
    dml_context *context = pipeline->context;
    dml_program *program = pipeline->trainer->program;
    const int passes = dml__passes(pipeline);
    bool made = true;
    pipeline->pass =
        (dml__stage_pass *)dml__allocate_array(&context->memory, (size_t)passes, sizeof *pipeline->pass);
    pipeline->inputs = (const void **)dml__allocate_array(&context->memory, (size_t)program->inputs + 1,
                                                          sizeof *pipeline->inputs);
    if (pipeline->pass) memset(pipeline->pass, 0, (size_t)passes * sizeof *pipeline->pass);
    for (int i = 0; pipeline->pass && i < passes; i++) {
        dml__stage_pass *pass = &pipeline->pass[i];
        pass->in = dml__elements_between(program, dml__pipeline_input_op());
        pass->out = dml__elements_between(program, dml__pipeline_output_op());
        made = dml__allocate_pass(context, program, pass, i == 0) && made;
    }
    if (pipeline->pass && pipeline->inputs && made) return DML_OK;
    return dml__fail(&context->error, DML_ERROR_MEMORY,
                     "no memory left for a pipeline's %d micro-batches of %zu bytes each", passes,
                     program->bytes);
}

/* Whether the trainer's program is what the rank's place among the stages asks for. */
static dml_status dml__check_stage(const dml_trainer *trainer, const dml_comm *comm)
{
    const dml_program *program = trainer->program;
    dml__error *error = &trainer->context->error;
    const int stage = dml_comm_rank(comm), stages = dml_comm_world_size(comm);
    const bool takes = dml__elements_between(program, dml__pipeline_input_op()) > 0;
    const bool gives = program->output->op == dml__pipeline_output_op();
    if (stages > 1 && dml__stages_comm(program->graph) && dml__stages_comm(program->graph) != comm)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a pipeline on another communicator than that of its stage's nodes");
    if (takes != (stage > 0) || gives != (stage < stages - 1))
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a pipeline's trainer of '%s', on rank %d of %d stages: its program %s "
                         "dml_pipeline_input, and its node must be %s",
                         program->output->name, stage, stages, stage > 0 ? "needs" : "must be without",
                         stage < stages - 1 ? "dml_pipeline_output" : "the loss");
    for (int s = 0; s < program->slots; s++)
        if (program->slot[s].watched)
            return dml__fail(error, DML_ERROR_UNSUPPORTED,
                             "a pipeline of a trainer that watches '%s': its micro-batches have values of "
                             "their own, which aren't kept",
                             program->slot[s].node->name);
    return DML_OK;
}

static dml_pipeline *dml__pipeline_create_in(dml_trainer *trainer, dml_comm *comm)
{
    dml_context *context = trainer->context;
    if (context->error.status != DML_OK) return NULL;
    if (!comm || dml_comm_status(comm) != DML_OK) {
        dml__fail(&context->error, comm ? dml_comm_status(comm) : DML_ERROR_ARGUMENT, "a pipeline's %s",
                  comm ? dml_comm_error(comm) : "communicator is NULL");
        return NULL;
    }
    if (dml__check_stage(trainer, comm) != DML_OK) return NULL;
    dml_pipeline *pipeline = (dml_pipeline *)dml__allocate(&context->memory, sizeof *pipeline);
    if (!pipeline) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a pipeline");
        return NULL;
    }
    pipeline->context = context;
    pipeline->trainer = trainer;
    pipeline->comm = comm;
    pipeline->stage = dml_comm_rank(comm);
    pipeline->stages = dml_comm_world_size(comm);
    dml__comm_keep(comm);
    dml__own(context, &pipeline->owned, dml__pipeline_destroy_owned);
    if (dml__pipeline_allocate(pipeline) == DML_OK) return pipeline;
    dml_pipeline_destroy(pipeline);
    return NULL;
}

DML_API dml_pipeline *dml_pipeline_create(dml_trainer *trainer, dml_comm *comm)
{
    if (!trainer) return NULL;
    const dml__entry entry = dml__enter(trainer->context);
    if (entry == DML__REFUSED) return NULL;
    dml_pipeline *pipeline = dml__pipeline_create_in(trainer, comm);
    dml__leave(trainer->context, entry);
    return pipeline;
}

/* ---- a step's passes ---- */

/* A call: what all its micro-batches have. */
typedef struct dml__pipeline_call {
    dml_pipeline *pipeline;
    int rows, count, micro_batches;
    const void *const *inputs;
    double loss; /* the sum over the samples of this rank, if it is the last stage */
} dml__pipeline_call;

static int dml__micro_rows(const dml__pipeline_call *call, int i)
{
    const int batch = call->pipeline->trainer->program->batch, left = call->rows - i * batch;
    return left < batch ? left : batch;
}

static dml__stage_pass *dml__pass_for(const dml__pipeline_call *call, int i)
{
    return &call->pipeline->pass[i % dml__passes(call->pipeline)];
}

/* The program works in the pass's memory from now on. NULL: in its own. */
static void dml__work_in_pass(dml_pipeline *pipeline, dml__stage_pass *pass)
{
    dml_program *program = pipeline->trainer->program;
    const dml__stage_pass *place = pass ? pass : &pipeline->pass[0];
    program->arena = place->arena;
    program->given = place->given;
    dml__set_stage_pass(program->graph, pass);
    program->ahead = pass ? pass->rows : 0;
}

/* The micro-batch's part of the inputs; what can't be is left to the program to refuse. */
static const void *const *dml__micro_inputs(const dml__pipeline_call *call, int i)
{
    const dml_program *program = call->pipeline->trainer->program;
    if (call->count != program->inputs || !call->inputs) return call->inputs;
    for (int k = 0; k < program->inputs; k++) {
        const dml_node *input = program->input[k];
        const size_t bytes = dml_shape_count(&input->shape) * dml_dtype_size(input->dtype);
        const char *from = (const char *)call->inputs[k];
        call->pipeline->inputs[k] = from ? from + (size_t)i * (size_t)program->batch * bytes : NULL;
    }
    return call->pipeline->inputs;
}

/* What the stage before sends of micro-batch i, where there is room for it. */
static void dml__expect_value(const dml__pipeline_call *call, int i)
{
    const dml_pipeline *pipeline = call->pipeline;
    dml__stage_pass *pass = dml__pass_for(call, i);
    if (pipeline->stage == 0 || i >= call->micro_batches) return;
    pass->value_came =
        dml_comm_receive_start(pipeline->comm, pass->value_in, (size_t)dml__micro_rows(call, i) * pass->in,
                               DML_F32, pipeline->stage - 1, DML__STAGE_VALUE);
}

/* `done`: how many backward passes of this call have been made. */
static dml_status dml__micro_forward(dml__pipeline_call *call, int i, int done)
{
    dml_pipeline *pipeline = call->pipeline;
    dml__stage_pass *pass = dml__pass_for(call, i);
    pass->rows = 0;
    dml__work_in_pass(pipeline, pass);
    const int rows = dml__micro_rows(call, i);
    const dml_status status =
        dml__trainer_forward_in(pipeline->trainer, rows, dml__micro_inputs(call, i), (uint32_t)(i - done));
    if (status == DML_OK) pass->rows = rows;
    return status;
}

static dml_status dml__micro_backward(dml__pipeline_call *call, int i)
{
    dml_pipeline *pipeline = call->pipeline;
    dml__stage_pass *pass = dml__pass_for(call, i);
    const int flags = (i > 0 ? DML_ADD : 0) | (i < call->micro_batches - 1 ? DML_MORE : 0), rows = pass->rows;
    float loss = 0;
    dml__work_in_pass(pipeline, pass);
    pass->rows = 0;
    const dml_status status = dml__trainer_backward_in(pipeline->trainer, rows, dml__micro_inputs(call, i),
                                                       call->count, flags, &loss);
    call->loss += (double)loss * rows;
    if (status == DML_OK) dml__expect_value(call, i + dml__passes(pipeline));
    return status;
}

/* Whether all of them can be run: before others have begun to wait for them. */
static dml_status dml__check_micro_batches(const dml__pipeline_call *call)
{
    const int n =
        call->count > 0 ? call->micro_batches : call->micro_batches > 0; /* without inputs all are alike */
    dml_status status = DML_OK;
    for (int i = 0; i < n && status == DML_OK; i++)
        status = dml__program_check(call->pipeline->trainer->program, dml__micro_rows(call, i),
                                    dml__micro_inputs(call, i), call->count);
    return status;
}

/* As many forward as the stages behind need to begin, then one backward for each. */
static dml_status dml__make_passes(dml__pipeline_call *call)
{
    const dml_pipeline *pipeline = call->pipeline;
    const int passes = dml__passes(pipeline), n = call->micro_batches, warm = passes - 1 < n ? passes - 1 : n;
    dml_status status = DML_OK;
    for (int i = 0; i < passes; i++) dml__expect_value(call, i);
    for (int i = 0; i < warm && status == DML_OK; i++) status = dml__micro_forward(call, i, 0);
    for (int i = 0; i < n && status == DML_OK; i++) {
        if (i + warm < n) status = dml__micro_forward(call, i + warm, i);
        if (status == DML_OK) status = dml__micro_backward(call, i);
    }
    return status;
}

/* Nothing is on its way any more. */
static void dml__empty_passes(const dml_pipeline *pipeline)
{
    for (int i = 0; i < dml__passes(pipeline); i++) {
        dml__stage_pass *pass = &pipeline->pass[i];
        dml_request **request[] = { &pass->value_came, &pass->gradient_came, &pass->value_sent,
                                    &pass->gradient_sent };
        for (int k = 0; k < 4; k++) {
            if (*request[k]) dml_comm_wait(pipeline->comm, *request[k]);
            *request[k] = NULL;
        }
        pass->rows = 0;
    }
}

/* The last stage's, to all. */
static dml_status dml__share_loss(dml__pipeline_call *call)
{
    dml_pipeline *pipeline = call->pipeline;
    if (pipeline->stages == 1 ||
        dml_comm_broadcast(pipeline->comm, &call->loss, 1, DML_F64, pipeline->stages - 1) == DML_OK)
        return DML_OK;
    return dml__fail(&pipeline->context->error, dml_comm_status(pipeline->comm), "a pipeline's loss: %s",
                     dml_comm_error(pipeline->comm));
}

/* What this stage refuses before anybody waits for it. */
static dml_status dml__check_call(dml__pipeline_call *call)
{
    dml_pipeline *pipeline = call->pipeline;
    const dml_trainer *trainer = pipeline->trainer;
    const int batch = trainer->program->batch;
    if (call->rows < 0 || (call->rows == 0 && !dml__sync_attached(&trainer->sync)))
        return dml__fail(&pipeline->context->error, DML_ERROR_ARGUMENT,
                         "a pipeline's step of %d samples asked for; it takes 1 or more", call->rows);
    if (trainer->sync.use)
        return dml__fail(&pipeline->context->error, DML_ERROR_UNSUPPORTED,
                         "a pipeline beside a strategy that brings parameters when an op needs them (ZeRO's "
                         "stage 3): take stage 1 or 2");
    call->micro_batches = call->rows / batch + (call->rows % batch != 0);
    return dml__check_micro_batches(call);
}

/* All stages have the same samples, and none refuses its own: told before anything is sent, so that whoever
   is called wrongly can be called again. */
static dml_status dml__agree_on_call(const dml__pipeline_call *call, dml_status status)
{
    dml_pipeline *pipeline = call->pipeline;
    dml__error *error = &pipeline->context->error;
    int64_t most[3] = { call->rows, -(int64_t)call->rows, status == DML_OK ? 0 : pipeline->stage + 1 };
    if (pipeline->stages == 1) return status;
    if (dml_comm_all_reduce(pipeline->comm, most, 3, DML_I64, DML_MAX) != DML_OK)
        return status != DML_OK
                   ? status
                   : dml__fail(error, dml_comm_status(pipeline->comm),
                               "the beginning of a pipeline's step: %s", dml_comm_error(pipeline->comm));
    if (status != DML_OK) return status;
    if (most[2])
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "stage %d of %d refused what its step was given, and says what it is",
                         (int)most[2] - 1, pipeline->stages);
    if (most[0] == -most[1]) return DML_OK;
    return dml__fail(error, DML_ERROR_ARGUMENT,
                     "the stages' steps are of %d to %d samples, here of %d; all take the same",
                     (int)-most[1], (int)most[0], call->rows);
}

static dml_status dml__pipeline_backward_in(void *user)
{
    dml__pipeline_call *call = (dml__pipeline_call *)user;
    dml_pipeline *pipeline = call->pipeline;
    dml_trainer *trainer = pipeline->trainer;
    dml_status status = dml__check_model_alike(trainer);
    if (status == DML_OK) status = dml__agree_on_call(call, dml__check_call(call));
    if (status != DML_OK) return status;
    status = dml__trainer_begin_in(trainer, call->rows);
    if (status == DML_OK)
        status = call->rows > 0 ? dml__make_passes(call)
                                : dml__trainer_backward_in(trainer, 0, call->inputs, call->count, 0, NULL);
    dml__work_in_pass(pipeline, NULL);
    if (status != DML_OK && dml_comm_status(pipeline->comm) == DML_OK)
        dml_comm_abort(pipeline->comm, dml_error(pipeline->context));
    dml__empty_passes(pipeline);
    if (status == DML_OK) status = dml__share_loss(call);
    dml__trainer_end_in(trainer, status);
    return status;
}

DML_API dml_status dml_pipeline_backward(dml_pipeline *pipeline, int rows, const void *const *inputs,
                                         int count, float *loss)
{
    if (!pipeline) return DML_ERROR_ARGUMENT;
    dml__pipeline_call call;
    memset(&call, 0, sizeof call);
    call.pipeline = pipeline;
    call.rows = rows;
    call.inputs = inputs;
    call.count = count;
    const dml_status status = dml__trainer_part(pipeline->trainer, dml__pipeline_backward_in, &call,
                                                "the pipeline's backward passes");
    if (status == DML_OK && loss) *loss = rows > 0 ? (float)(call.loss / rows) : 0.0f;
    return status;
}

DML_API dml_status dml_pipeline_step(dml_pipeline *pipeline, int rows, const void *const *inputs, int count,
                                     float *loss)
{
    const dml_status status = dml_pipeline_backward(pipeline, rows, inputs, count, loss);
    return status == DML_OK ? dml_trainer_update(pipeline->trainer) : status;
}

#endif
