#ifndef DML_OPS_OP_ACTIVATION_C
#define DML_OPS_OP_ACTIVATION_C

#include "ops/op_activation.h"

#include "ops/op_formula.h"

#define DML__ACTIVATION(name)                                                                                \
    DML_API dml_node *dml_##name(dml_node *x)                                                                \
    {                                                                                                        \
        return dml__formula_node(DML__FORMULA_##name, x, NULL, NULL, 0, 0);                                  \
    }

DML__ACTIVATION(relu)
DML__ACTIVATION(gelu)
DML__ACTIVATION(gelu_tanh)
DML__ACTIVATION(silu)
DML__ACTIVATION(sigmoid)
DML__ACTIVATION(tanh)
DML__ACTIVATION(softplus)
DML__ACTIVATION(exp)
DML__ACTIVATION(log)
DML__ACTIVATION(sqrt)
DML__ACTIVATION(sin)
DML__ACTIVATION(cos)
DML__ACTIVATION(abs)
DML__ACTIVATION(square)

#undef DML__ACTIVATION

DML_API dml_node *dml_leaky_relu(dml_node *x, float slope)
{
    return dml__formula_node(DML__FORMULA_leaky_relu, x, NULL, NULL, slope, 0);
}

DML_API dml_node *dml_elu(dml_node *x, float alpha)
{
    return dml__formula_node(DML__FORMULA_elu, x, NULL, NULL, alpha, 0);
}

DML_API dml_node *dml_pow(dml_node *x, float exponent)
{
    return dml__formula_node(DML__FORMULA_pow, x, NULL, NULL, exponent, 0);
}

DML_API dml_node *dml_clamp(dml_node *x, float low, float high)
{
    return dml__formula_node(DML__FORMULA_clamp, x, NULL, NULL, low, high);
}

DML_API dml_node *dml_affine(dml_node *x, float scale, float shift)
{
    return dml__formula_node(DML__FORMULA_affine, x, NULL, NULL, scale, shift);
}

#endif
