/* dropout.cl: leaving elements out at random, by the numbers of base/philox.h. */
#ifndef DML_GPU_DROPOUT_CL
#define DML_GPU_DROPOUT_CL

/* y = what is kept of x times scale, else 0, + beta y; an item does the four elements of one block of
   numbers. Buffers x, y; ints n, the two halves of the seed, stream, step, the bits below which an element is
   left out, which 2^32 blocks these are; floats scale, beta; size{n / 4, rounded up}. y may be x. */
KERNEL(dropout)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0), threshold = (unsigned)INT(5), block = ELEMENT;
    const float scale = REAL(0), beta = REAL(1);
    unsigned c[4] = { block, (unsigned)INT(6), (unsigned)INT(3), (unsigned)INT(4) };
    unsigned k0 = (unsigned)INT(1), k1 = (unsigned)INT(2);
    for (int turn = 0; turn < 10; turn++) {
        const unsigned high0 = MULTIPLY_HIGH(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
        const unsigned high1 = MULTIPLY_HIGH(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];
        c[0] = high1 ^ c[1] ^ k0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ k1;
        c[3] = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (unsigned k = 0; k < 4; k++) {
        const unsigned i = 4u * block + k;
        if (block <= n / 4u && i < n)
            y[i] = dml__with_beta(c[k] < threshold ? 0.0f : x[i] * scale, beta, y + i);
    }
}

#endif
