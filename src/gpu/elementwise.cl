/* elementwise.cl: kernels with an item an element. Launches give size{n}. beta = 0 never reads the output. */
#ifndef DML_GPU_ELEMENTWISE_CL
#define DML_GPU_ELEMENTWISE_CL

/* new + beta old, where old is not read, and may hold anything, when beta is 0. */
HELPER float dml__with_beta(float value, float beta, GLOBAL const float *old)
{
    return beta == 0.0f ? value : value + beta * *old;
}

/* In the choice of a largest element, whether `value` comes before `best`: a NaN counts as the largest. */
HELPER int dml__beats(float value, float best)
{
    return value > best || (value != value && best == best);
}

/* y = alpha x + beta y. Buffers x, y; ints n; floats alpha, beta. */
KERNEL(axpby)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0);
    const float alpha = REAL(0), beta = REAL(1);
    const unsigned i = ELEMENT;
    if (i < n) y[i] = dml__with_beta(alpha * x[i], beta, y + i);
}

/* y = a + b. Buffers a, b, y; ints n. */
KERNEL(add)
{
    GLOBAL const float *a = BUFFER(0, const float);
    GLOBAL const float *b = BUFFER(1, const float);
    GLOBAL float *y = BUFFER(2, float);
    const unsigned n = (unsigned)INT(0);
    const unsigned i = ELEMENT;
    if (i < n) y[i] = a[i] + b[i];
}

/* y = f(x). Buffers x, y; ints n. The relu of a NaN is NaN, so that it gets through. */
#define DML__UNARY_FORWARD(name, value)                                                                      \
    KERNEL(name)                                                                                             \
    {                                                                                                        \
        GLOBAL const float *source = BUFFER(0, const float);                                                 \
        GLOBAL float *y = BUFFER(1, float);                                                                  \
        const unsigned n = (unsigned)INT(0);                                                                 \
        const unsigned i = ELEMENT;                                                                          \
        if (i < n) {                                                                                         \
            const float x = source[i];                                                                       \
            y[i] = value;                                                                                    \
        }                                                                                                    \
    }
DML__UNARY_FORWARD(relu_forward, x <= 0.0f ? 0.0f : x)
DML__UNARY_FORWARD(tanh_forward, TANH(x))
DML__UNARY_FORWARD(sigmoid_forward, 1.0f / (1.0f + EXP(-x)))

/* dx = f'(x) dy + beta dx, from y = f(x). Buffers y, dy, dx; ints n; floats beta. */
#define DML__UNARY_BACKWARD(name, value)                                                                     \
    KERNEL(name)                                                                                             \
    {                                                                                                        \
        GLOBAL const float *output = BUFFER(0, const float);                                                 \
        GLOBAL const float *gradient = BUFFER(1, const float);                                               \
        GLOBAL float *dx = BUFFER(2, float);                                                                 \
        const unsigned n = (unsigned)INT(0);                                                                 \
        const float beta = REAL(0);                                                                          \
        const unsigned i = ELEMENT;                                                                          \
        if (i < n) {                                                                                         \
            const float y = output[i], dy = gradient[i];                                                     \
            dx[i] = dml__with_beta(value, beta, dx + i);                                                     \
        }                                                                                                    \
    }
DML__UNARY_BACKWARD(relu_backward, y > 0.0f ? dy : 0.0f)
DML__UNARY_BACKWARD(tanh_backward, (1.0f - y * y) * dy)
DML__UNARY_BACKWARD(sigmoid_backward, y *(1.0f - y) * dy)

/* y[r][c] += bias[c]. Buffers bias, y; ints rows, columns; size{rows * columns}. */
KERNEL(bias_add)
{
    GLOBAL const float *bias = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned rows = (unsigned)INT(0), columns = (unsigned)INT(1);
    const unsigned i = ELEMENT;
    if (i < rows * columns) y[i] += bias[i % columns];
}

#endif
