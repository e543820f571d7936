/* elementwise.cl: kernels with an item an element. Launches give size{n}. beta = 0 never reads the output. */
#ifndef DML_GPU_ELEMENTWISE_CL
#define DML_GPU_ELEMENTWISE_CL

/* new + beta old, where old is not read, and may hold anything, when beta is 0. */
HELPER float dml__with_beta(float value, float beta, GLOBAL const float *old)
{
    return beta == 0.0f ? value : value + beta * *old;
}

/* The relu of formulas.h, where it is on. */
HELPER float dml__with_relu(float value, int on)
{
    return on && value <= 0.0f ? 0.0f : value;
}

/* In the choice of a largest element, whether `value` comes before `best`: a NaN counts as the largest. */
HELPER int dml__beats(float value, float best)
{
    return (value > best) | ((value != value) & (best == best));
}

/* A number that much is divided by, whose quotients are products with its reciprocal. */
typedef struct dml__gpu_divisor {
    unsigned number, reciprocal;
} dml__gpu_divisor;

HELPER dml__gpu_divisor dml__gpu_divisor_of(int number)
{
    dml__gpu_divisor d;
    d.number = (unsigned)number;
    d.reciprocal = 0xffffffffu / d.number;
    return d;
}

/* Where the reciprocal serves many quotients. */
HELPER unsigned dml__gpu_divide(unsigned n, const dml__gpu_divisor d)
{
    const unsigned q = MULTIPLY_HIGH(n, d.reciprocal); /* the quotient, or one less */
    return n - q * d.number >= d.number ? q + 1 : q;
}

/* Where an item has one quotient. On CPUs the reciprocal is the same for all items, so the compiler takes it
   out of their loop, if it isn't inside a condition. */
HELPER unsigned dml__gpu_quotient(unsigned n, const dml__gpu_divisor d)
{
#ifdef SOLO_KERNEL
    return dml__gpu_divide(n, d);
#else
    return n / d.number;
#endif
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

/* y[i] = the sum of x[s][i] over few s, in their order, + beta y[i]. Buffers x, y; ints n, how many; floats
   beta. */
KERNEL(sum_shares)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0);
    const int shares = INT(1);
    const unsigned i = ELEMENT;
    if (i < n) {
        float sum = 0.0f;
        for (int s = 0; s < shares; s++) sum += x[(WIDE)s * n + i];
        y[i] = dml__with_beta(sum, REAL(0), y + i);
    }
}

/* y[r][c] += bias[c], and its relu. Buffers bias (may be NULL), y; ints rows, columns, whether with the relu;
   size{rows * columns}. */
KERNEL(bias_add)
{
    GLOBAL const float *bias = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned rows = (unsigned)INT(0), columns = (unsigned)INT(1);
    const unsigned i = ELEMENT, column = i - dml__gpu_quotient(i, dml__gpu_divisor_of(INT(1))) * columns;
    if (i < rows * columns) y[i] = dml__with_relu(bias ? y[i] + bias[column] : y[i], INT(2));
}

#endif
