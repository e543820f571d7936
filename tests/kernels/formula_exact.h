/* formula_exact.h: the functions of kernels/formulas.h in float64, by their definition and nothing else;
   their gradients are central differences. */
#ifndef DML_TESTS_KERNELS_FORMULA_EXACT_H
#define DML_TESTS_KERNELS_FORMULA_EXACT_H

#include "kernels/formulas.h"

#include "../test.h"

typedef double formula_function(double a, double b, double c, double p, double q);

#define FORMULA(name, value)                                                                                 \
    static double exact_##name(double a, double b, double c, double p, double q)                             \
    {                                                                                                        \
        (void)a, (void)b, (void)c, (void)p, (void)q;                                                         \
        return value;                                                                                        \
    }
FORMULA(relu, a > 0 ? a : 0)
FORMULA(leaky_relu, a > 0 ? a : p * a)
FORMULA(elu, a > 0 ? a : p * (exp(a) - 1))
FORMULA(gelu, a *(1 + erf(a / sqrt(2))) / 2)
FORMULA(gelu_tanh, a *(1 + tanh(sqrt(2 / 3.14159265358979324) * (a + 0.044715 * a * a * a))) / 2)
FORMULA(silu, a / (1 + exp(-a)))
FORMULA(sigmoid, 1 / (1 + exp(-a)))
FORMULA(tanh, tanh(a))
FORMULA(softplus, a > 30 ? a : log1p(exp(a)))
FORMULA(exp, exp(a))
FORMULA(log, log(a))
FORMULA(sqrt, sqrt(a))
FORMULA(sin, sin(a))
FORMULA(cos, cos(a))
FORMULA(abs, fabs(a))
FORMULA(square, a *a)
FORMULA(pow, pow(a, p))
FORMULA(clamp, a<p ? p : a> q ? q : a)
FORMULA(affine, p *a + q)
FORMULA(add, a + b)
FORMULA(sub, a - b)
FORMULA(mul, a *b)
FORMULA(div, a / b)
FORMULA(maximum, a > b ? a : b)
FORMULA(minimum, a < b ? a : b)
FORMULA(where, a != 0 ? b : c)
FORMULA(equal, a == b)
FORMULA(not_equal, a != b)
FORMULA(less, a < b)
FORMULA(less_equal, a <= b)
FORMULA(mean_squared_error, (a - b) * (a - b))
FORMULA(mean_absolute_error, fabs(a - b))
FORMULA(huber, q *(fabs(a - b) <= p ? (a - b) * (a - b) / 2 : p * (fabs(a - b) - p / 2)))
FORMULA(binary_cross_entropy, (1 - b) * log1p(exp(a)) + p * b * log1p(exp(-a)))
FORMULA(hinge, a *b < 1 ? 1 - a * b : 0)
FORMULA(squared_hinge, a *b < 1 ? (1 - a * b) * (1 - a * b) : 0)
FORMULA(batch_mean, a + 0 * b)
FORMULA(kl_divergence, b == 0 ? 0 : b * (log(b) - a))
#undef FORMULA

/* The numbers that tests give it; whether it takes only what is above 0; how close f32 comes, relative to the
   largest of 1 and the result. */
typedef struct formula_exact {
    const char *name;
    formula_function *of;
    float p, q;
    bool positive;
    double tolerance;
} formula_exact;

/* In the order of the formulas. */
static const formula_exact formulas[] = {
    { "relu", exact_relu, 0, 0, false, 1e-7 },
    { "leaky_relu", exact_leaky_relu, 0.01f, 0, false, 2e-7 },
    { "elu", exact_elu, 1.25f, 0, false, 5e-7 },
    { "gelu", exact_gelu, 0, 0, false, 5e-7 },
    { "gelu_tanh", exact_gelu_tanh, 0, 0, false, 5e-7 },
    { "silu", exact_silu, 0, 0, false, 5e-7 },
    { "sigmoid", exact_sigmoid, 0, 0, false, 3e-7 },
    { "tanh", exact_tanh, 0, 0, false, 3e-7 },
    { "softplus", exact_softplus, 0, 0, false, 5e-7 },
    { "exp", exact_exp, 0, 0, false, 3e-7 },
    { "log", exact_log, 0, 0, true, 3e-7 },
    { "sqrt", exact_sqrt, 0, 0, true, 2e-7 },
    { "sin", exact_sin, 0, 0, false, 2e-7 },
    { "cos", exact_cos, 0, 0, false, 2e-7 },
    { "abs", exact_abs, 0, 0, false, 1e-7 },
    { "square", exact_square, 0, 0, false, 2e-7 },
    { "pow", exact_pow, 1.75f, 0, true, 1e-6 },
    { "clamp", exact_clamp, -0.25f, 0.5f, false, 1e-7 },
    { "affine", exact_affine, -1.5f, 0.75f, false, 4e-7 },
    { "add", exact_add, 0, 0, false, 2e-7 },
    { "sub", exact_sub, 0, 0, false, 2e-7 },
    { "mul", exact_mul, 0, 0, false, 2e-7 },
    { "div", exact_div, 0, 0, true, 4e-7 },
    { "maximum", exact_maximum, 0, 0, false, 1e-7 },
    { "minimum", exact_minimum, 0, 0, false, 1e-7 },
    { "where", exact_where, 0, 0, false, 1e-7 },
    { "equal", exact_equal, 0, 0, false, 0 },
    { "not_equal", exact_not_equal, 0, 0, false, 0 },
    { "less", exact_less, 0, 0, false, 0 },
    { "less_equal", exact_less_equal, 0, 0, false, 0 },
    { "mean_squared_error", exact_mean_squared_error, 0, 0, false, 4e-7 },
    { "mean_absolute_error", exact_mean_absolute_error, 0, 0, false, 2e-7 },
    { "huber", exact_huber, 0.75f, 1.5f, false, 4e-7 },
    { "binary_cross_entropy", exact_binary_cross_entropy, 2.5f, 0, false, 1e-6 },
    { "hinge", exact_hinge, 0, 0, false, 2e-7 },
    { "squared_hinge", exact_squared_hinge, 0, 0, false, 6e-7 },
    { "kl_divergence", exact_kl_divergence, 0, 0, true, 1e-6 },
    { "batch_mean", exact_batch_mean, 0, 0, false, 1e-7 },
};
enum { FORMULAS = sizeof formulas / sizeof formulas[0] };

TEST__UNUSED static const formula_exact *formula_named(const char *name)
{
    for (int i = 0; i < FORMULAS; i++)
        if (strcmp(formulas[i].name, name) == 0) return &formulas[i];
    return NULL;
}

/* The derivative by input `i`, times dy. */
TEST__UNUSED static double formula_slope(const formula_exact *f, int i, double a, double b, double c,
                                         double dy)
{
    const double h = 1e-6;
    double in[2][3] = { { a, b, c }, { a, b, c } };
    in[0][i] -= h, in[1][i] += h;
    const double p = (double)f->p, q = (double)f->q;
    return dy * (f->of(in[1][0], in[1][1], in[1][2], p, q) - f->of(in[0][0], in[0][1], in[0][2], p, q)) /
           (2 * h);
}

#endif
