/* update.cl: one step of an optimizer, an item an element. The rules are in src/kernels/update.h, what their
   floats are at the kernels of src/kernels/update.c. Buffers w, g, state vectors; ints n; launches give
   size{n}. */
#ifndef DML_GPU_UPDATE_CL
#define DML_GPU_UPDATE_CL

/* State v, which may be NULL. */
KERNEL(sgd_update)
{
    GLOBAL float *w = BUFFER(0, float);
    GLOBAL const float *g = BUFFER(1, const float);
    GLOBAL float *v = BUFFER(2, float);
    const unsigned n = (unsigned)INT(0);
    const float lr = REAL(0), momentum = REAL(1), weight_decay = REAL(2), nesterov = REAL(3);
    const unsigned i = ELEMENT;
    if (i < n) {
        const float d = g[i] + weight_decay * w[i];
        float step = d;
        if (v) {
            const float velocity = momentum * v[i] + d;
            v[i] = velocity;
            step = nesterov != 0.0f ? d + momentum * velocity : velocity;
        }
        w[i] -= lr * step;
    }
}

/* State m, v. */
KERNEL(adam_update)
{
    GLOBAL float *w = BUFFER(0, float);
    GLOBAL const float *g = BUFFER(1, const float);
    GLOBAL float *m = BUFFER(2, float);
    GLOBAL float *v = BUFFER(3, float);
    const unsigned n = (unsigned)INT(0);
    const float size = REAL(0), epsilon = REAL(1), follow = REAL(2), keep = REAL(3), add = REAL(4),
                decay = REAL(5), shrink = REAL(6);
    const unsigned i = ELEMENT;
    if (i < n) {
        const float d = g[i] + decay * w[i];
        const float mean = m[i] + follow * (d - m[i]), square = keep * v[i] + add * d * d;
        m[i] = mean;
        v[i] = square;
        w[i] = shrink * w[i] - size * mean / (SQRT(square) + epsilon);
    }
}

/* State v, b; b may be NULL. */
KERNEL(rmsprop_update)
{
    GLOBAL float *w = BUFFER(0, float);
    GLOBAL const float *g = BUFFER(1, const float);
    GLOBAL float *v = BUFFER(2, float);
    GLOBAL float *b = BUFFER(3, float);
    const unsigned n = (unsigned)INT(0);
    const float lr = REAL(0), epsilon = REAL(1), decay = REAL(2), keep = REAL(3), add = REAL(4),
                momentum = REAL(5);
    const unsigned i = ELEMENT;
    if (i < n) {
        const float d = g[i] + decay * w[i];
        const float square = keep * v[i] + add * d * d;
        float step = d / (SQRT(square) + epsilon);
        v[i] = square;
        if (b) {
            step = momentum * b[i] + step;
            b[i] = step;
        }
        w[i] -= lr * step;
    }
}

/* State v. */
KERNEL(adagrad_update)
{
    GLOBAL float *w = BUFFER(0, float);
    GLOBAL const float *g = BUFFER(1, const float);
    GLOBAL float *v = BUFFER(2, float);
    const unsigned n = (unsigned)INT(0);
    const float lr = REAL(0), epsilon = REAL(1), decay = REAL(2);
    const unsigned i = ELEMENT;
    if (i < n) {
        const float d = g[i] + decay * w[i];
        const float sum = v[i] + d * d;
        v[i] = sum;
        w[i] -= lr * d / (SQRT(sum) + epsilon);
    }
}

#endif
