#ifndef DML_OPS_OP_CUSTOM_C
#define DML_OPS_OP_CUSTOM_C

#include "ops/op_custom.h"

#include "graph/node.h"
#include "graph/op.h"
#include "graph/program_internal.h"
#include "ops/table.h"

#include <stdio.h>
#include <string.h>

static const dml_custom_options *dml__custom_of(const dml_node *node)
{
    return (const dml_custom_options *)node->attributes;
}

static dml_status dml__custom_infer(dml_node *node)
{
    const dml_custom_options *options = dml__custom_of(node);
    const dml_status status = dml__check_dimensions(node, &options->shape);
    if (status != DML_OK) return status;
    node->shape.ndim = options->shape.ndim; /* (what lies behind its dimensions is the caller's) */
    memcpy(node->shape.dims, options->shape.dims, (size_t)node->shape.ndim * sizeof(int));
    node->dtype = DML_F32;
    for (int i = 0; i < node->inputs && !options->whole_batch; i++)
        node->batched = node->batched || node->input[i]->batched;
    return DML_OK;
}

/* What nobody can count is refused where a program's memory is planned. */
static size_t dml__custom_saved_bytes(const dml_node *node, int rows)
{
    const size_t bytes = dml__custom_of(node)->saved_bytes, samples = node->batched ? (size_t)rows : 1;
    return bytes > SIZE_MAX / samples ? SIZE_MAX : bytes * samples;
}

/* ---- where the arrays lie ---- */

static size_t dml__custom_room(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* On a device with memory of its own, all of them side by side in the program's own scratch. */
static dml_scratch dml__custom_scratch(const dml_node *node, int rows, bool training)
{
    dml_scratch scratch = { 0, 0 };
    if (dml__node_context(node)->device.host_memory) return scratch;
    const size_t arrays = training ? 2 : 1; /* gradients, too */
    for (int i = -1; i < node->inputs; i++) {
        const dml_node *of = i < 0 ? node : node->input[i];
        const size_t count = dml_shape_count(&of->shape) * (of->batched ? (size_t)rows : 1);
        scratch.shared += arrays * dml__custom_room(count * sizeof(float));
    }
    scratch.shared += dml__custom_room(dml__custom_saved_bytes(node, rows));
    return scratch;
}

/* A call in the making, and where the next array goes on the host. */
typedef struct dml__custom_run {
    const dml__run *run;
    char *next;
    dml_status status;
    dml_custom_call call;
} dml__custom_run;

/* The array behind `ref` on the host, with what it holds there if it is to be read. */
static void *dml__custom_array(dml__custom_run *r, dml_ref ref, size_t bytes, bool read)
{
    dml_device *device = r->run->device;
    if (!bytes) return NULL;
    if (device->host_memory) return dml__host(ref);
    void *here = r->next;
    r->next += dml__custom_room(bytes);
    if (read && r->status == DML_OK) r->status = device->backend->read(device, here, ref, bytes);
    return here;
}

static void dml__custom_write(dml__custom_run *r, dml_ref ref, const void *here, size_t bytes)
{
    dml_device *device = r->run->device;
    if (device->host_memory || !bytes || r->status != DML_OK) return;
    r->status = device->backend->write(device, ref, here, bytes);
}

/* The first of the inputs that is this node. */
static int dml__custom_first(const dml_node *node, int i)
{
    int first = 0;
    while (node->input[first] != node->input[i]) first++;
    return first;
}

static void dml__custom_begin(dml__custom_run *r, const dml__run *run, const dml_node *node)
{
    dml_custom_call *call = &r->call;
    const bool back = run->backward;
    memset(r, 0, sizeof *r);
    r->run = run;
    r->next = (char *)dml_pool_shared_scratch(run->program->own_pool);
    call->user = dml__custom_of(node)->user;
    call->pool = run->pool;
    call->rows = run->rows;
    call->training = run->training;
    call->inputs = node->inputs;
    call->output_count = dml__count(run, node);
    const size_t bytes = call->output_count * sizeof(float);
    call->output = (float *)dml__custom_array(r, dml__value(run, node), bytes, back);
    if (back) call->output_gradient = (float *)dml__custom_array(r, dml__gradient(run, node), bytes, true);
    call->saved = dml__custom_array(r, dml__saved(run, node), dml__custom_saved_bytes(node, run->rows), back);
    for (int i = 0; i < node->inputs; i++) {
        const dml_node *input = node->input[i];
        const int first = dml__custom_first(node, i);
        call->input_count[i] = dml__count(run, input);
        call->input[i] = first < i ? call->input[first]
                                   : dml__custom_array(r, dml__value(run, input),
                                                       call->input_count[i] * sizeof(float), true);
    }
}

/* Gradients to be added to: what is there, or zeros. */
static void dml__custom_begin_gradients(dml__custom_run *r, const dml_node *node)
{
    dml_custom_call *call = &r->call;
    for (int i = 0; i < node->inputs; i++) {
        const dml_node *input = node->input[i];
        const int first = dml__custom_first(node, i);
        const size_t bytes = call->input_count[i] * sizeof(float);
        if (!dml__wants_gradient(r->run, node, i)) continue;
        if (first < i) {
            call->input_gradient[i] = call->input_gradient[first];
            continue;
        }
        const bool adds = dml__beta(r->run, node, i) != 0.0f;
        call->input_gradient[i] = (float *)dml__custom_array(r, dml__gradient(r->run, input), bytes, adds);
        if (!adds) memset(call->input_gradient[i], 0, bytes);
    }
}

/* ---- the op ---- */

static void dml__custom_call_in(dml__custom_run *r, const dml_node *node)
{
    const dml_custom_options *options = dml__custom_of(node);
    const bool back = r->run->backward;
    if (r->status != DML_OK) return;
    const dml_status said = (back ? options->backward : options->forward)(&r->call);
    if (said == DML_OK) return;
    const bool known = (unsigned)said < (unsigned)DML__STATUS_COUNT;
    r->status = dml__fail(r->run->error, known ? said : DML_ERROR_STATE,
                          "custom '%s': its %s returned %d (%s)", node->name, back ? "backward" : "forward",
                          (int)said, known ? dml_status_string(said) : "which is no status");
}

static dml_status dml__custom_forward(const dml__run *run, const dml_node *node)
{
    dml__custom_run r;
    dml__custom_begin(&r, run, node);
    dml__custom_call_in(&r, node);
    dml__custom_write(&r, dml__value(run, node), r.call.output, r.call.output_count * sizeof(float));
    dml__custom_write(&r, dml__saved(run, node), r.call.saved, dml__custom_saved_bytes(node, run->rows));
    return r.status;
}

static dml_status dml__custom_backward(const dml__run *run, const dml_node *node)
{
    dml__custom_run r;
    dml__custom_begin(&r, run, node);
    dml__custom_begin_gradients(&r, node);
    dml__custom_call_in(&r, node);
    for (int i = 0; i < node->inputs; i++)
        if (r.call.input_gradient[i] && dml__custom_first(node, i) == i)
            dml__custom_write(&r, dml__gradient(run, node->input[i]), r.call.input_gradient[i],
                              r.call.input_count[i] * sizeof(float));
    return r.status;
}

/* What backward reads is what forward had, bit for bit: nobody here knows what it does with it. */
#define DML__CUSTOM_OP(function, backward)                                                                   \
    DML__LOCAL const dml__op *function(void)                                                                 \
    {                                                                                                        \
        static const dml__op op = { "custom",                                                                \
                                    dml__custom_infer,                                                       \
                                    dml__custom_forward,                                                     \
                                    backward,                                                                \
                                    DML__NEEDS_INPUTS | DML__NEEDS_OUTPUT | DML__COMPARES | DML__ON_HOST,    \
                                    dml__custom_saved_bytes,                                                 \
                                    false,                                                                   \
                                    false,                                                                   \
                                    NULL,                                                                    \
                                    NULL,                                                                    \
                                    dml__custom_scratch };                                                   \
        return &op;                                                                                          \
    }
DML__CUSTOM_OP(dml__custom_op, dml__custom_backward)
DML__CUSTOM_OP(dml__custom_constant_op, NULL)

DML_API dml_node *dml_custom(dml_node *const *inputs, int count, const dml_custom_options *options)
{
    int first = 0;
    while (inputs && first < count && first < DML_CUSTOM_INPUTS && !inputs[first]) first++;
    if (!inputs || first >= count || first == DML_CUSTOM_INPUTS) return NULL;
    dml__error *error = &dml__node_context(inputs[first])->error;
    if (count > DML_CUSTOM_INPUTS) {
        dml__fail(error, DML_ERROR_ARGUMENT, "custom: %d inputs asked for, it takes 1 to %d", count,
                  DML_CUSTOM_INPUTS);
        return NULL;
    }
    if (!options || !options->forward) {
        dml__fail(error, DML_ERROR_ARGUMENT, "custom: asked for without a forward");
        return NULL;
    }
    dml_custom_options kept = *options;
    kept.name = NULL; /* the node has it */
    return dml__named_node_create(options->backward ? dml__custom_op() : dml__custom_constant_op(),
                                  options->name, count, inputs, &kept, sizeof kept);
}

#endif
