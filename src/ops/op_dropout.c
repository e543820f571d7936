#ifndef DML_OPS_OP_DROPOUT_C
#define DML_OPS_OP_DROPOUT_C

#include "ops/op_dropout.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/table.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"

#include <stdio.h>

static dml_status dml__dropout_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    const float p = *(const float *)node->attributes;
    if (x->dtype != DML_F32)
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "its input is %s, it takes f32",
                              dml_dtype_name(x->dtype));
    if (!(p >= 0 && p < 1))
        return dml__node_fail(node, DML_ERROR_ARGUMENT,
                              "a probability of %g asked for, to leave an element out; it is 0 or more and "
                              "below 1",
                              (double)p);
    node->shape = x->shape;
    node->batched = x->batched;
    return DML_OK;
}

/* to = what is kept of from + beta to; from itself where nothing is left out. */
static dml_status dml__dropout_run(const dml__run *run, const dml_node *node, dml_ref from, float beta,
                                   dml_ref to)
{
    const size_t n = dml__count(run, node);
    const float p = run->training ? *(const float *)node->attributes : 0;
    /* Weights' streams are small numbers. */
    const uint64_t apart =
        node->partial ? (uint64_t)node->graph->model.rank : 0; /* what each rank has alone */
    const dml_random random = { run->context->seed + (apart << 32), 0x80000000u | (uint32_t)node->key,
                                run->step };
    const uint32_t part = run->part & 0x3FFFFFFFu; /* whose numbers are 2^32 blocks of four */
    const uint64_t first = (uint64_t)part << 34;
    if (from.buffer == to.buffer && from.offset == to.offset && p == 0 && beta == 0) return DML_OK;
    if (run->device->host_memory) {
        if (p > 0)
            dml_dropout_apply(run->pool, n, &random, first, p, (const float *)dml__host(from), beta,
                              (float *)dml__host(to));
        else
            dml_axpby(run->pool, n, 1.0f, (const float *)dml__host(from), beta, (float *)dml__host(to));
        return DML_OK;
    }
    dml_launch launch = dml__launch("dropout", n / 4 + (n % 4 != 0), 1);
    launch.buffer[0] = from;
    launch.buffer[1] = to;
    launch.integer[0] = (int32_t)n;
    launch.integer[1] = (int32_t)(uint32_t)random.seed;
    launch.integer[2] = (int32_t)(uint32_t)(random.seed >> 32);
    launch.integer[3] = (int32_t)random.stream;
    launch.integer[4] = (int32_t)random.step;
    launch.integer[5] = (int32_t)dml_dropout_threshold(p);
    launch.integer[6] = (int32_t)part;
    launch.real[0] = 1 / (1 - p);
    launch.real[1] = beta;
    if (n > INT32_MAX) launch.size[0] = n; /* which is refused */
    return dml__submit(run->device, &launch);
}

static dml_status dml__dropout_op_forward(const dml__run *run, const dml_node *node)
{
    return dml__dropout_run(run, node, dml__value(run, node->input[0]), 0, dml__value(run, node));
}

static dml_status dml__dropout_op_backward(const dml__run *run, const dml_node *node)
{
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    return dml__dropout_run(run, node, dml__gradient(run, node), dml__beta(run, node, 0),
                            dml__gradient(run, node->input[0]));
}

static void dml__dropout_describe(const dml_node *node, char *text, size_t bytes)
{
    snprintf(text, bytes, "p %g", (double)*(const float *)node->attributes);
}

DML__LOCAL const dml__op *dml__dropout_op(void)
{
    static const dml__op op = { "dropout",
                                dml__dropout_infer,
                                dml__dropout_op_forward,
                                dml__dropout_op_backward,
                                0,
                                NULL,
                                false,
                                true,
                                dml__dropout_describe,
                                dml__no_flops,
                                NULL };
    return &op;
}

DML_API dml_node *dml_dropout(dml_node *x, float p)
{
    return dml__node_create(dml__dropout_op(), 1, &x, &p, sizeof p);
}

#endif
