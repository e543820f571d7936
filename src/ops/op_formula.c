#ifndef DML_OPS_OP_FORMULA_C
#define DML_OPS_OP_FORMULA_C

#include "ops/op_formula.h"

#include "base/memory.h"
#include "graph/node.h"
#include "kernels/formula.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int dml__formula_of(const dml_node *node)
{
    return (int)(node->op - dml__formula_op(0));
}

/* ---- shapes ---- */

/* Dimension d, counted from the last, which is 0; 1 where there is none. */
static int dml__dimension_from_last(const dml_shape *shape, int d)
{
    return d < shape->ndim ? shape->dims[shape->ndim - 1 - d] : 1;
}

static dml_status dml__formula_refuse_shapes(const dml_node *node)
{
    char text[256] = "";
    size_t used = 0;
    for (int i = 0; i < node->inputs && used < sizeof text; i++) {
        char shape[DML_SHAPE_TEXT];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s%s", i ? " and " : "",
                                 dml_shape_format(&node->input[i]->shape, shape),
                                 node->input[i]->batched ? "" : " for the whole batch");
    }
    return dml__node_fail(node, DML_ERROR_SHAPE,
                          "its inputs are %s: counted from the last, their dimensions must be the same or 1",
                          text);
}

static dml_status dml__formula_check_numbers(const dml_node *node)
{
    const dml__formula_numbers *number = (const dml__formula_numbers *)node->attributes;
    const double p = (double)number->p, q = (double)number->q;
    if (dml__formula_of(node) == DML__FORMULA_clamp)
        return p <= q
                   ? DML_OK
                   : dml__node_fail(node, DML_ERROR_ARGUMENT,
                                    "from %g to %g asked for; the first must not be above the second", p, q);
    return p - p == 0 && q - q == 0 ? DML_OK
                                    : dml__node_fail(node, DML_ERROR_ARGUMENT,
                                                     "its numbers are %g and %g, they must be finite", p, q);
}

static dml_status dml__formula_infer(dml_node *node)
{
    dml_shape *shape = &node->shape;
    for (int i = 0; i < node->inputs; i++) {
        const dml_node *input = node->input[i];
        if (input->dtype != DML_F32)
            return dml__node_fail(node, DML_ERROR_ARGUMENT, "its input %d is %s, it takes f32", i + 1,
                                  dml_dtype_name(input->dtype));
        if (input->shape.ndim > shape->ndim) shape->ndim = input->shape.ndim;
        node->batched = node->batched || input->batched;
    }
    for (int d = 0; d < shape->ndim; d++) {
        int size = 1;
        for (int i = 0; i < node->inputs; i++) {
            const int of_input = dml__dimension_from_last(&node->input[i]->shape, d);
            if (of_input != 1 && size != 1 && of_input != size) return dml__formula_refuse_shapes(node);
            if (of_input != 1) size = of_input;
        }
        shape->dims[shape->ndim - 1 - d] = size;
    }
    return dml__formula_check_numbers(node);
}

/* How input i lies in the result, for `rows` samples. */
static dml__broadcast dml__formula_layout(const dml_node *node, int i, int rows)
{
    const dml_node *input = node->input[i];
    const int dims = node->shape.ndim + 1;
    size_t result[DML_MAX_DIMS + 1], operand[DML_MAX_DIMS + 1];
    result[0] = node->batched ? (size_t)rows : 1;
    operand[0] = input->batched ? (size_t)rows : 1;
    for (int d = 1; d < dims; d++) {
        result[d] = (size_t)node->shape.dims[d - 1];
        operand[d] = (size_t)dml__dimension_from_last(&input->shape, dims - 1 - d);
    }
    return dml__broadcast_of(dims, result, operand);
}

/* Floats that a repeated input needs: the result's size, for its elements or their gradients, and what adding
   those up takes. */
static size_t dml__formula_spread(const dml_node *node, int i, int rows)
{
    const dml__broadcast layout = dml__formula_layout(node, i, rows);
    if (dml__broadcast_is_plain(&layout)) return 0;
    const size_t n = dml_shape_count(&node->shape) * (node->batched ? (size_t)rows : 1);
    return dml__align_up((n + dml__sum_broadcast_scratch(&layout)) * sizeof(float)) / sizeof(float);
}

/* ---- on the host ---- */

static dml__formula_call dml__formula_host_call(const dml__run *run, const dml_node *node, unsigned reads)
{
    const dml__formula_numbers *number = (const dml__formula_numbers *)node->attributes;
    dml__formula_call call;
    memset(&call, 0, sizeof call);
    call.formula = dml__formula_of(node);
    call.n = dml__count(run, node);
    call.p = number->p;
    call.q = number->q;
    for (int i = 0; i < node->inputs; i++) {
        call.layout[i] = dml__formula_layout(node, i, run->rows);
        if (reads & (1u << i)) call.in[i] = dml__host_value(run, node->input[i]);
    }
    return call;
}

static dml_status dml__formula_host_backward(const dml__run *run, const dml_node *node,
                                             const dml__formula_row *row, const bool *wanted)
{
    const dml__formula_call call = dml__formula_host_call(run, node, row->needs & DML__NEEDS_INPUTS);
    float *gradient[DML__FORMULA_GRADIENTS] = { NULL, NULL }, beta[DML__FORMULA_GRADIENTS] = { 0, 0 };
    float *spread = (float *)dml_pool_shared_scratch(run->pool),
          *spread_of[DML__FORMULA_GRADIENTS] = { NULL };
    size_t left = spread ? dml_pool_scratch_bytes(run->pool).shared / sizeof(float) : 0;
    for (int g = 0; g < row->gradients; g++) {
        const int i = row->first + g;
        const size_t floats = wanted[g] ? dml__formula_spread(node, i, run->rows) : 0;
        if (!wanted[g]) continue;
        gradient[g] = dml__host_gradient(run, node->input[i]);
        beta[g] = dml__beta(run, node, i);
        if (!floats) continue;
        if (floats > left)
            return dml_device_fail(
                run->device, DML_ERROR_MEMORY,
                "the pool's shared scratch of %zu bytes is too small, since it was lost when more "
                "was asked for and couldn't be had: dml_pool_reserve",
                dml_pool_scratch_bytes(run->pool).shared);
        left -= floats;
        gradient[g] = spread_of[g] = spread;
        beta[g] = 0;
        spread += floats;
    }
    const float *y = row->needs & DML__NEEDS_Y ? dml__host_value(run, node) : NULL;
    const float *dy = dml__host_gradient(run, node);
    dml__formula_chain *chain = dml__chain_of(run, node);
    if (chain) {
        dml__chain_backward(chain, &call, y, dy, gradient, beta);
        return DML_OK;
    }
    dml__formula_backward(run->pool, &call, y, dy, gradient, beta);
    for (int g = 0; g < row->gradients; g++)
        if (spread_of[g])
            dml__sum_broadcast(run->pool, &call.layout[row->first + g], spread_of[g], spread_of[g] + call.n,
                               dml__beta(run, node, row->first + g),
                               dml__host_gradient(run, node->input[row->first + g]));
    return DML_OK;
}

/* ---- on any other device ---- */

/* Where what dml__formula_spread counts for input i lies. */
static dml_ref dml__formula_spread_ref(const dml__run *run, const dml_node *node, int i)
{
    dml_ref ref = dml__saved(run, node);
    for (int k = 0; k < i; k++) ref.offset += dml__formula_spread(node, k, run->rows) * sizeof(float);
    return ref;
}

/* Input i in the result's shape; the forward pass writes it there. */
static dml_ref dml__formula_operand(const dml__run *run, const dml_node *node, int i)
{
    const dml__broadcast layout = dml__formula_layout(node, i, run->rows);
    return dml__broadcast_is_plain(&layout) ? dml__value(run, node->input[i])
                                            : dml__formula_spread_ref(run, node, i);
}

static dml_status dml__launch_broadcast(const dml__run *run, const dml_node *node, int i)
{
    const dml__broadcast layout = dml__formula_layout(node, i, run->rows);
    if (dml__broadcast_is_plain(&layout)) return DML_OK;
    dml_launch launch = dml__launch("broadcast", dml__count(run, node), 1);
    launch.buffer[0] = dml__value(run, node->input[i]);
    launch.buffer[1] = dml__formula_spread_ref(run, node, i);
    launch.integer[0] = (int32_t)dml__count(run, node);
    launch.integer[1] = layout.dims;
    for (int d = 0; d < layout.dims; d++) {
        launch.integer[2 + d] = (int32_t)layout.size[d];
        launch.integer[8 + d] = (int32_t)layout.stride[d];
    }
    return dml__submit(run->device, &launch);
}

static dml_launch dml__formula_launch(const dml__run *run, const dml_node *node, const char *kernel)
{
    const dml__formula_numbers *number = (const dml__formula_numbers *)node->attributes;
    dml_launch launch = dml__launch(kernel, dml__count(run, node), 1);
    launch.integer[0] = (int32_t)dml__count(run, node);
    launch.integer[1] = dml__formula_of(node);
    launch.real[0] = number->p;
    launch.real[1] = number->q;
    return launch;
}

static dml_status dml__launch_sums(const dml__run *run, const dml_node *node, int i)
{
    const dml__broadcast layout = dml__formula_layout(node, i, run->rows);
    dml__broadcast_sum sums[DML__BROADCAST_DIMS];
    const int count = dml__broadcast_sums(&layout, sums);
    dml_ref from = dml__formula_spread_ref(run, node, i), to = from;
    dml_status status = DML_OK;
    to.offset += dml__count(run, node) * sizeof(float);
    for (int s = 0; s < count && status == DML_OK; s++) {
        const bool last = s == count - 1;
        status = dml__launch_sum(run, from, sums[s].outer, sums[s].n, sums[s].inner,
                                 last ? dml__beta(run, node, i) : 0.0f,
                                 last ? dml__gradient(run, node->input[i]) : to);
        from = to;
        to.offset += sums[s].outer * sums[s].inner * sizeof(float);
    }
    return status;
}

static dml_status dml__formula_launch_backward(const dml__run *run, const dml_node *node,
                                               const dml__formula_row *row, const bool *wanted)
{
    dml_launch launch = dml__formula_launch(run, node, "formula_backward");
    bool spread[DML__FORMULA_GRADIENTS] = { false, false };
    for (int i = 0; i < 2; i++)
        if (row->needs & (1u << i)) launch.buffer[i] = dml__formula_operand(run, node, i);
    if (row->needs & DML__NEEDS_Y) launch.buffer[2] = dml__value(run, node);
    launch.buffer[3] = dml__gradient(run, node);
    for (int g = 0; g < row->gradients; g++) {
        const int i = row->first + g;
        if (!wanted[g]) continue;
        spread[g] = dml__formula_spread(node, i, run->rows) > 0;
        launch.buffer[4 + g] =
            spread[g] ? dml__formula_spread_ref(run, node, i) : dml__gradient(run, node->input[i]);
        launch.real[2 + g] = spread[g] ? 0.0f : dml__beta(run, node, i);
    }
    dml_status status = dml__submit(run->device, &launch);
    for (int g = 0; g < row->gradients && status == DML_OK; g++)
        if (spread[g]) status = dml__launch_sums(run, node, row->first + g);
    return status;
}

/* ---- the op ---- */

static dml_status dml__formula_op_forward(const dml__run *run, const dml_node *node)
{
    if (run->device->host_memory) {
        const dml__formula_call call = dml__formula_host_call(run, node, DML__NEEDS_INPUTS);
        const bool relu = dml__ends_in_relu(run, node);
        dml__formula_chain *chain = dml__chain_of(run, node);
        if (chain)
            dml__chain_forward(chain, &call, relu, dml__host_value(run, node));
        else
            dml__formula_forward(run->pool, &call, relu, dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__formula_launch(run, node, "formula_forward");
    dml_status status = DML_OK;
    for (int i = 0; i < node->inputs && status == DML_OK; i++) {
        status = dml__launch_broadcast(run, node, i);
        launch.buffer[i] = dml__formula_operand(run, node, i);
    }
    launch.buffer[3] = dml__value(run, node);
    return status == DML_OK ? dml__submit(run->device, &launch) : status;
}

/* Whether a sum's gradient lies already where that of input i belongs (DML__PASSES_GRADIENT). */
static bool dml__gradient_is_there(const dml__run *run, const dml_node *node, int i)
{
    const dml_ref from = dml__gradient(run, node), to = dml__gradient(run, node->input[i]);
    return (node->op->needs & DML__PASSES_GRADIENT) && dml__beta(run, node, i) == 0 &&
           from.buffer == to.buffer && from.offset == to.offset;
}

static dml_status dml__formula_op_backward(const dml__run *run, const dml_node *node)
{
    const dml__formula_row *row = dml__formula_row_of(dml__formula_of(node));
    bool wanted[DML__FORMULA_GRADIENTS] = { false, false }, any = false;
    for (int g = 0; g < row->gradients; g++) {
        const int i = row->first + g;
        wanted[g] = dml__wants_gradient(run, node, i) && !dml__gradient_is_there(run, node, i);
        any = any || wanted[g];
    }
    if (!any) return DML_OK;
    return (run->device->host_memory ? dml__formula_host_backward
                                     : dml__formula_launch_backward)(run, node, row, wanted);
}

static size_t dml__formula_saved_bytes(const dml_node *node, int rows)
{
    size_t floats = 0;
    if (dml__node_context(node)->device.host_memory) return 0;
    for (int i = 0; i < node->inputs; i++) floats += dml__formula_spread(node, i, rows);
    return floats * sizeof(float);
}

static dml_scratch dml__formula_op_scratch(const dml_node *node, int rows, bool training)
{
    const dml__formula_row *row = dml__formula_row_of(dml__formula_of(node));
    dml_scratch scratch = { 0, 0 };
    for (int g = 0; training && g < row->gradients; g++)
        scratch.shared += dml__formula_spread(node, row->first + g, rows) * sizeof(float);
    return scratch;
}

static void dml__formula_describe(const dml_node *node, char *text, size_t bytes)
{
    const dml__formula_numbers *number = (const dml__formula_numbers *)node->attributes;
    const double p = (double)number->p, q = (double)number->q;
    switch (dml__formula_of(node)) {
    case DML__FORMULA_leaky_relu: snprintf(text, bytes, "slope %g", p); break;
    case DML__FORMULA_elu: snprintf(text, bytes, "alpha %g", p); break;
    case DML__FORMULA_pow: snprintf(text, bytes, "exponent %g", p); break;
    case DML__FORMULA_clamp: snprintf(text, bytes, "%g .. %g", p, q); break;
    case DML__FORMULA_affine: snprintf(text, bytes, "times %g, plus %g", p, q); break;
    default: snprintf(text, bytes, "%s", ""); break;
    }
}

/* A relu may follow where backward doesn't read the output, which is then the relu's. */
#define DML__FORMULA_OP(name, needs, backward, more)                                                         \
    { #name,                                                                                                 \
      dml__formula_infer,                                                                                    \
      dml__formula_op_forward,                                                                               \
      backward,                                                                                              \
      ((needs)&DML__NEEDS_INPUTS & ~(unsigned)DML__NEEDS_Y) |                                                \
          ((needs)&DML__NEEDS_Y ? DML__NEEDS_OUTPUT : DML__TAKES_RELU) | DML__IS_ELEMENTWISE | (more),       \
      dml__formula_saved_bytes,                                                                              \
      false,                                                                                                 \
      true,                                                                                                  \
      dml__formula_describe,                                                                                 \
      NULL,                                                                                                  \
      dml__formula_op_scratch },
/* What is more in the word: the relu and the sum are known to the compiler of graphs, what gives the whole
   gradient to one side or the other must find in backward what forward found, as must what turns many times
   between two numbers of 16 bits, and what divides no 0 that wasn't one. */
#define DML__FORMULA_EXACT(formula)                                                                          \
    ((formula) == DML__FORMULA_maximum || (formula) == DML__FORMULA_minimum ||                               \
     (formula) == DML__FORMULA_clamp || (formula) == DML__FORMULA_where || (formula) == DML__FORMULA_sin ||  \
     (formula) == DML__FORMULA_cos)
#define DML__FORMULA_DIVIDES(formula)                                                                        \
    ((formula) == DML__FORMULA_div || (formula) == DML__FORMULA_log || (formula) == DML__FORMULA_sqrt ||     \
     (formula) == DML__FORMULA_pow)
#define DML__FORMULA_MORE(formula, first)                                                                    \
    (((formula) == DML__FORMULA_relu ? DML__IS_RELU : 0u) |                                                  \
     (DML__FORMULA_EXACT(formula) ? DML__READS_EXACTLY : 0u) |                                               \
     (DML__FORMULA_DIVIDES(formula) ? DML__DIVIDES : 0u) |                                                   \
     ((formula) == DML__FORMULA_add ? DML__PASSES_GRADIENT : 0u) | ((first) ? DML__CHOOSES_BY_FIRST : 0u))
#define DML__FORMULA_OP_1(name, needs, forward, gradient)                                                    \
    DML__FORMULA_OP(name, needs, dml__formula_op_backward, DML__FORMULA_MORE(DML__FORMULA_##name, 0))
#define DML__FORMULA_OP_2(name, inputs, first, needs, forward, gradient0, gradient1)                         \
    DML__FORMULA_OP(name, needs, dml__formula_op_backward, DML__FORMULA_MORE(DML__FORMULA_##name, first))
#define DML__FORMULA_OP_FLAT(name, forward) DML__FORMULA_OP(name, 0, NULL, 0)

DML__LOCAL const dml__op *dml__formula_op(int formula)
{
    static const dml__op ops[] = { DML__FORMULAS_1(DML__FORMULA_OP_1) DML__FORMULAS_2(DML__FORMULA_OP_2)
                                       DML__FORMULAS_FLAT(DML__FORMULA_OP_FLAT) };
    return formula >= 0 && formula < DML__FORMULA_OPS ? &ops[formula] : NULL;
}

#undef DML__FORMULA_OP
#undef DML__FORMULA_MORE
#undef DML__FORMULA_EXACT
#undef DML__FORMULA_DIVIDES
#undef DML__FORMULA_OP_1
#undef DML__FORMULA_OP_2
#undef DML__FORMULA_OP_FLAT

DML__LOCAL dml_node *dml__formula_node(int formula, dml_node *a, dml_node *b, dml_node *c, float p, float q)
{
    dml_node *const inputs[] = { a, b, c };
    const dml__formula_numbers numbers = { p, q };
    return dml__node_create(dml__formula_op(formula), dml__formula_row_of(formula)->inputs, inputs, &numbers,
                            sizeof numbers);
}

#endif
