#ifndef DML_OPS_OP_ACTIVATION_C
#define DML_OPS_OP_ACTIVATION_C

#include "ops/op_activation.h"

#include "graph/node.h"
#include "graph/op.h"
#include "ops/table.h"
#include "kernels/elementwise.h"

static dml_status dml__activation_infer(dml_node *node)
{
    const dml_node *x = node->input[0];
    if (x->dtype != DML_F32)
        return dml__node_fail(node, DML_ERROR_ARGUMENT, "its input is %s, it takes f32",
                              dml_dtype_name(x->dtype));
    node->shape = x->shape;
    node->batched = x->batched;
    return DML_OK;
}

typedef void dml__activation_forward_kernel(dml_pool *pool, size_t n, const float *x, float *y);
typedef void dml__activation_backward_kernel(dml_pool *pool, size_t n, const float *y, const float *dy,
                                             float beta, float *dx);

static dml_status dml__activation_forward(const dml__run *run, const dml_node *node, const char *kernel,
                                          dml__activation_forward_kernel *cpu)
{
    const size_t n = dml__count(run, node);
    if (run->device->host_memory) {
        cpu(run->pool, n, dml__host_value(run, node->input[0]), dml__host_value(run, node));
        return DML_OK;
    }
    dml_launch launch = dml__launch(kernel, n, 1);
    launch.buffer[0] = dml__value(run, node->input[0]);
    launch.buffer[1] = dml__value(run, node);
    launch.integer[0] = (int32_t)n;
    return dml__submit(run->device, &launch);
}

static dml_status dml__activation_backward(const dml__run *run, const dml_node *node, const char *kernel,
                                           dml__activation_backward_kernel *cpu)
{
    if (!dml__wants_gradient(run, node, 0)) return DML_OK;
    const size_t n = dml__count(run, node);
    const float beta = dml__beta(run, node, 0);
    if (run->device->host_memory) {
        cpu(run->pool, n, dml__host_value(run, node), dml__host_gradient(run, node), beta,
            dml__host_gradient(run, node->input[0]));
        return DML_OK;
    }
    dml_launch launch = dml__launch(kernel, n, 1);
    launch.buffer[0] = dml__value(run, node);
    launch.buffer[1] = dml__gradient(run, node);
    launch.buffer[2] = dml__gradient(run, node->input[0]);
    launch.integer[0] = (int32_t)n;
    launch.real[0] = beta;
    return dml__submit(run->device, &launch);
}

/* Each activation is a name: its op, its CPU kernels and its shared kernels follow from it. */
#define DML__ACTIVATION(name, fuses)                                                                         \
    static dml_status dml__##name##_op_forward(const dml__run *run, const dml_node *node)                    \
    {                                                                                                        \
        return dml__activation_forward(run, node, #name "_forward", dml_##name##_forward);                   \
    }                                                                                                        \
    static dml_status dml__##name##_op_backward(const dml__run *run, const dml_node *node)                   \
    {                                                                                                        \
        return dml__activation_backward(run, node, #name "_backward", dml_##name##_backward);                \
    }                                                                                                        \
    DML__LOCAL const dml__op *dml__##name##_op(void)                                                         \
    {                                                                                                        \
        static const dml__op op = { #name,                                                                   \
                                    dml__activation_infer,                                                   \
                                    dml__##name##_op_forward,                                                \
                                    dml__##name##_op_backward,                                               \
                                    DML__NEEDS_OUTPUT | (fuses),                                             \
                                    NULL,                                                                    \
                                    false,                                                                   \
                                    true,                                                                    \
                                    NULL,                                                                    \
                                    NULL,                                                                    \
                                    NULL };                                                                  \
        return &op;                                                                                          \
    }                                                                                                        \
    DML_API dml_node *dml_##name(dml_node *x)                                                                \
    {                                                                                                        \
        return dml__node_create(dml__##name##_op(), 1, &x, NULL, 0);                                         \
    }

DML__ACTIVATION(relu, DML__IS_RELU)
DML__ACTIVATION(tanh, 0)
DML__ACTIVATION(sigmoid, 0)

#undef DML__ACTIVATION

#endif
