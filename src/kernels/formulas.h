/* formulas.h: the functions of one element, each a row: from it come the CPU's loops (kernels/formula.c), the
   case of the shared kernel (gpu/formula.cl) and the op (ops/op_formula.c).

   The words of a formula, which each of those defines for its own kind of number:

   VALUE              a number, for what is used twice: VALUE s = SIGMOID(a);
   a, b, c            the inputs; y the output, dy its gradient, d the gradient asked for
   P, Q               the op's own two numbers
   K(1.0f)            a constant, where a word takes a VALUE; beside an operator it may stand bare
   WHERE(m, x, y)     m ? x : y, both computed; m a comparison, or several joined by & and |
   EXP EXPM1 LOG LOG1P TANH SIGMOID ERF SQRT SIN COS ABS(x), POW(x, y); none inside itself

   `needs` is what the gradients read: A and B inputs, Y the output. */
#ifndef DML_KERNELS_FORMULAS_H
#define DML_KERNELS_FORMULAS_H

/* X(name, needs, forward, gradient of a). The relu of a NaN is NaN, so that it gets through. 0.7071 is
   sqrt(1/2), 0.3989 sqrt(1 / 2 pi), 1.5958 2 sqrt(2 / pi), 0.07135 0.044715 of that. From 10 on a gelu is as
   flat as at 10, where its square would else be infinite. The long ones are bound by arithmetic, not by
   memory: for them the CPU's loops are compiled for wider vectors, too. */
#define DML__FORMULAS_LONG(X)                                                                                \
    X(elu, DML__NEEDS_A, y = WHERE(a > 0.0f, a, P * EXPM1(a)), d = WHERE(a > 0.0f, dy, P * EXP(a) * dy))     \
    X(gelu, DML__NEEDS_A, y = 0.5f * a * (1.0f + ERF(a * 0.707106781f)),                                     \
      d = dy * (0.5f * (1.0f + ERF(a * 0.707106781f)) + a * (0.398942280f * EXP(-0.5f * a * a))))            \
    X(gelu_tanh, DML__NEEDS_A, y = a * SIGMOID(a * (1.59576912f + 0.0713548163f * a * a)),                   \
      VALUE t = WHERE(a > 10.0f, K(10.0f), WHERE(a < -10.0f, K(-10.0f), a));                                 \
      VALUE s = SIGMOID(t * (1.59576912f + 0.0713548163f * t * t));                                          \
      d = dy * s * (1.0f + (1.0f - s) * t * (1.59576912f + 0.214064449f * t * t)))                           \
    X(silu, DML__NEEDS_A, y = a * SIGMOID(a), VALUE s = SIGMOID(a); d = dy * s * (1.0f + a * (1.0f - s)))    \
    X(sigmoid, DML__NEEDS_Y, y = SIGMOID(a), d = dy * y * (1.0f - y))                                        \
    X(tanh, DML__NEEDS_Y, y = TANH(a), d = dy * (1.0f - y * y))                                              \
    X(softplus, DML__NEEDS_A, y = WHERE(a > 0.0f, a, K(0.0f)) + LOG1P(EXP(-ABS(a))), d = dy * SIGMOID(a))    \
    X(exp, DML__NEEDS_Y, y = EXP(a), d = dy * y)                                                             \
    X(log, DML__NEEDS_A, y = LOG(a), d = dy / a)

#define DML__FORMULAS_1(X)                                                                                   \
    X(relu, DML__NEEDS_Y, y = WHERE(a <= 0.0f, K(0.0f), a), d = WHERE(y > 0.0f, dy, K(0.0f)))                \
    X(leaky_relu, DML__NEEDS_A, y = WHERE(a > 0.0f, a, P * a), d = WHERE(a > 0.0f, dy, P * dy))              \
    DML__FORMULAS_LONG(X)                                                                                    \
    X(sqrt, DML__NEEDS_Y, y = SQRT(a), d = 0.5f * dy / y)                                                    \
    X(sin, DML__NEEDS_A, y = SIN(a), d = COS(a) * dy)                                                        \
    X(cos, DML__NEEDS_A, y = COS(a), d = -(SIN(a) * dy))                                                     \
    X(abs, DML__NEEDS_A, y = ABS(a), d = WHERE(a > 0.0f, dy, WHERE(a < 0.0f, -dy, K(0.0f))))                 \
    X(square, DML__NEEDS_A, y = a * a, d = 2.0f * a * dy)                                                    \
    X(pow, DML__NEEDS_A, y = POW(a, P), d = WHERE(P == 0.0f, K(0.0f), P * POW(a, P - 1.0f) * dy))            \
    X(clamp, DML__NEEDS_A, y = WHERE(a < P, P, WHERE(a > Q, Q, a)),                                          \
      d = WHERE((a >= P) & (a <= Q), dy, K(0.0f)))                                                           \
    X(affine, 0, y = P * a + Q, d = P * dy)

/* X(name, inputs, first, needs, forward, gradient of input `first`, of the next). Of equals, each is half
   the maximum; what is not a number is the largest and the smallest. */
#define DML__FORMULAS_2(X)                                                                                   \
    X(add, 2, 0, 0, y = a + b, d = dy, d = dy)                                                               \
    X(sub, 2, 0, 0, y = a - b, d = dy, d = -dy)                                                              \
    X(mul, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = a * b, d = dy * b, d = dy * a)                             \
    X(div, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = a / b, d = dy / b, d = -(dy / b) * (a / b))                \
    X(maximum, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = WHERE(a >= b, a, WHERE(a < b, b, a + b)),              \
      d = WHERE(a > b, dy, WHERE(a == b, 0.5f * dy, K(0.0f))),                                               \
      d = WHERE(a < b, dy, WHERE(a == b, 0.5f * dy, K(0.0f))))                                               \
    X(minimum, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = WHERE(a <= b, a, WHERE(a > b, b, a + b)),              \
      d = WHERE(a < b, dy, WHERE(a == b, 0.5f * dy, K(0.0f))),                                               \
      d = WHERE(a > b, dy, WHERE(a == b, 0.5f * dy, K(0.0f))))                                               \
    X(where, 3, 1, DML__NEEDS_A, y = WHERE(a != 0.0f, b, c), d = WHERE(a != 0.0f, dy, K(0.0f)),              \
      d = WHERE(a != 0.0f, K(0.0f), dy))

/* X(name, forward): of two inputs, 1 or 0, through which no gradient flows. */
#define DML__FORMULAS_FLAT(X)                                                                                \
    X(equal, y = WHERE(a == b, K(1.0f), K(0.0f)))                                                            \
    X(not_equal, y = WHERE(a != b, K(1.0f), K(0.0f)))                                                        \
    X(less, y = WHERE(a < b, K(1.0f), K(0.0f)))                                                              \
    X(less_equal, y = WHERE(a <= b, K(1.0f), K(0.0f)))

/* The same arguments: losses of a prediction a and a target b, which are summed where they are computed:
   their ops are those of ops/op_loss.c. */
#define DML__FORMULAS_LOSS(X)                                                                                \
    X(mean_squared_error, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = (a - b) * (a - b), d = 2.0f * (a - b) * dy, \
      d = 2.0f * (b - a) * dy)                                                                               \
    X(mean_absolute_error, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = ABS(a - b),                                \
      d = WHERE(a > b, dy, WHERE(a < b, -dy, K(0.0f))), d = WHERE(a > b, -dy, WHERE(a < b, dy, K(0.0f))))    \
    X(huber, 2, 0, DML__NEEDS_A | DML__NEEDS_B, VALUE e = ABS(a - b);                                        \
      y = Q * WHERE(e < P, 0.5f * e * e, P * (e - 0.5f * P)), VALUE e = a - b;                               \
      d = dy * Q * WHERE(e > P, P, WHERE(e < -P, -P, e)), VALUE f = b - a;                                   \
      d = dy * Q * WHERE(f > P, P, WHERE(f < -P, -P, f)))                                                    \
    X(binary_cross_entropy, 2, 0, DML__NEEDS_A | DML__NEEDS_B, VALUE s = LOG1P(EXP(-ABS(a)));                \
      y = (1.0f - b) * (s + WHERE(a > 0.0f, a, K(0.0f))) + P * b * (s - WHERE(a < 0.0f, a, K(0.0f))),        \
      d = dy * ((1.0f - b) * SIGMOID(a) - P * b * SIGMOID(-a)), VALUE s = LOG1P(EXP(-ABS(a)));               \
      d = dy * (P * (s - WHERE(a < 0.0f, a, K(0.0f))) - (s + WHERE(a > 0.0f, a, K(0.0f)))))                  \
    X(hinge, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = WHERE(a * b >= 1.0f, K(0.0f), 1.0f - a * b),             \
      d = WHERE(a * b < 1.0f, -b * dy, K(0.0f)), d = WHERE(a * b < 1.0f, -a * dy, K(0.0f)))                  \
    X(squared_hinge, 2, 0, DML__NEEDS_A | DML__NEEDS_B, VALUE s = 1.0f - a * b;                              \
      y = WHERE(s <= 0.0f, K(0.0f), s * s), VALUE s = 1.0f - a * b;                                          \
      d = -2.0f * dy * b * WHERE(s <= 0.0f, K(0.0f), s), VALUE r = 1.0f - a * b;                             \
      d = -2.0f * dy * a * WHERE(r <= 0.0f, K(0.0f), r))                                                     \
    X(kl_divergence, 2, 0, DML__NEEDS_A | DML__NEEDS_B, y = WHERE(b == 0.0f, K(0.0f), b * (LOG(b) - a)),     \
      d = -b * dy, d = WHERE(b == 0.0f, K(0.0f), (LOG(b) + 1.0f - a) * dy))                                  \
    X(batch_mean, 2, 0, 0, y = a, d = dy, d = K(0.0f))

#define DML__NEEDS_A 1u
#define DML__NEEDS_B 2u
#define DML__NEEDS_Y 4u

enum {
#define DML__FORMULA_ENUM_1(name, needs, forward, gradient) DML__FORMULA_##name,
#define DML__FORMULA_ENUM_2(name, inputs, first, needs, forward, gradient0, gradient1) DML__FORMULA_##name,
#define DML__FORMULA_ENUM_FLAT(name, forward) DML__FORMULA_##name,
    DML__FORMULAS_1(DML__FORMULA_ENUM_1) DML__FORMULAS_2(DML__FORMULA_ENUM_2)
        DML__FORMULAS_FLAT(DML__FORMULA_ENUM_FLAT) DML__FORMULAS_LOSS(DML__FORMULA_ENUM_2) DML__FORMULA_COUNT
#undef DML__FORMULA_ENUM_1
#undef DML__FORMULA_ENUM_2
#undef DML__FORMULA_ENUM_FLAT
};
#define DML__FORMULA_OPS DML__FORMULA_mean_squared_error /* as many have ops of one element */

#endif
