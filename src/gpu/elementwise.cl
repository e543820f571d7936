/* elementwise.cl: kernels that do the same to each element. Launches give size{n}. beta = 0 never reads the
   output. */
#ifndef DML_GPU_ELEMENTWISE_CL
#define DML_GPU_ELEMENTWISE_CL

/* An item does RUN elements, which lie a group's items apart, so that as many of its loads are on their way:
   with one each a GPU waits for memory more than it reads. Hence a kernel reads all of an item's elements,
   then computes, and then writes, since an output may be an input. On OpenCL devices that are CPUs it is one
   element: they do the items of a group many at once in vectors (gpu/kernel_list.h). */
#ifdef DML__RUN
#define RUN DML__RUN
#else
#define RUN 4
#endif
#define RUN_BEGIN ((unsigned)GROUP_X * (RUN * DML__GROUP_ITEMS) + (unsigned)ITEM)
/* At a kernel's begin: where an item has one element, the compiler then knows that it is below n. */
#define RUN_BEGINS(n)                                                                                        \
    if (RUN == 1 && RUN_BEGIN >= (n)) return
/* Before a statement for each k below RUN, whose element, i, is below n. */
#define EACH_OF_RUN(k, i, n) EACH_OF(RUN, RUN_BEGIN, k, i, n)
#define EACH_OF(count, begin, k, i, n)                                                                       \
    UNROLL for (unsigned k = 0, i = (begin); k < (count); k++, i += DML__GROUP_ITEMS) if (i < (n))

/* Before a statement for each of what an item has in registers, also of what isn't there, where that does no
   harm: without a condition they are computed side by side. */
#define EACH_IN_REGISTERS(count, k) UNROLL for (int k = 0; k < (count); k++)
/* Before a statement for each of an item's elements, as the one of row r and column c of a matrix of so many
   columns; also of those that aren't there, whose rows are beyond the last. */
#define EACH_PLACE_OF_RUN(k, r, c, columns)                                                                  \
    const unsigned rows_on = DML__GROUP_ITEMS / (columns), columns_on = DML__GROUP_ITEMS % (columns);        \
    unsigned r = RUN_BEGIN / (columns), c = RUN_BEGIN % (columns);                                           \
    UNROLL for (int k = 0; k < RUN;                                                                          \
                k++, c += columns_on, r += rows_on + (c >= (columns)), c -= c >= (columns) ? (columns) : 0)

/* new + beta old, where old is not read, and may hold anything, when beta is 0. */
HELPER float dml__with_beta(float value, float beta, GLOBAL const float *old)
{
    return beta == 0.0f ? value : value + beta * *old;
}

/* The old output where it counts: it isn't read, and may hold anything, when beta is 0. */
HELPER float dml__old(float beta, GLOBAL const float *old)
{
    return beta == 0.0f ? 0.0f : *old;
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
    RUN_BEGINS(n);
    float from[RUN], old[RUN];
    EACH_OF_RUN(k, i, n)
    {
        from[k] = x[i];
        old[k] = dml__old(beta, y + i);
    }
    EACH_OF_RUN(k, i, n) y[i] = alpha * from[k] + beta * old[k];
}

/* y[o][c] = the sum of x[o][s][c] over few s, in their order, + beta y[o][c]. Buffers x, y; ints y's
   elements, how many s, how many c; floats beta; size{y's elements}. */
KERNEL(sum_few)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0);
    const int few = INT(1);
    const unsigned inner = (unsigned)INT(2), i = ELEMENT;
    if (i < n) {
        const unsigned o = i / inner;
        float sum = 0.0f;
        for (int s = 0; s < few; s++) sum += x[(o * (WIDE)few + s) * inner + (i - o * inner)];
        y[i] = dml__with_beta(sum, REAL(0), y + i);
    }
}

/* y[r][c] += bias[c], and its relu. Buffers bias (may be NULL), y; ints rows, columns, whether with the relu;
   size{rows * columns}. */
KERNEL(bias_add)
{
    GLOBAL const float *bias = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned columns = (unsigned)INT(1), n = (unsigned)INT(0) * columns;
    RUN_BEGINS(n);
    float value[RUN], more[RUN];
    EACH_OF_RUN(k, i, n) value[k] = y[i];
    if (bias) {
        EACH_PLACE_OF_RUN(k, row, c, columns) more[k] = bias[c];
    }
    EACH_OF_RUN(k, i, n) y[i] = dml__with_relu(bias ? value[k] + more[k] : value[k], INT(2));
}

#endif
