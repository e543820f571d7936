/* dropout.cl: leaving elements out at random, by the numbers of base/philox.h. */
#ifndef DML_GPU_DROPOUT_CL
#define DML_GPU_DROPOUT_CL

/* y = what is kept of x times scale, else 0, + beta y. An item makes one block of four numbers, and does
   elements that lie a group's items apart: neighbours read neighbours. Buffers x, y; ints n, the two halves
   of the seed, stream, step, the bits below which an element is left out, which 2^32 blocks these are; floats
   scale, beta; size{n / 4, rounded up}. y may be x. */
KERNEL(dropout)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0), threshold = (unsigned)INT(5);
    const float scale = REAL(0), beta = REAL(1);
    LOCAL unsigned kept[DML__GROUP_ITEMS]; /* of each block a bit for each of its elements */
    unsigned c[4] = { ELEMENT, (unsigned)INT(6), (unsigned)INT(3), (unsigned)INT(4) };
    unsigned k0 = (unsigned)INT(1), k1 = (unsigned)INT(2);
    UNROLL for (int turn = 0; turn < 10; turn++)
    {
        const unsigned high0 = MULTIPLY_HIGH(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
        const unsigned high1 = MULTIPLY_HIGH(0xCD9E8D57u, c[2]), low1 = 0xCD9E8D57u * c[2];
        c[0] = high1 ^ c[1] ^ k0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ k1;
        c[3] = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    kept[ITEM] = (unsigned)(c[0] >= threshold) | (unsigned)(c[1] >= threshold) << 1 |
                 (unsigned)(c[2] >= threshold) << 2 | (unsigned)(c[3] >= threshold) << 3;
    BARRIER();
    const unsigned begin = 4u * (ELEMENT - (unsigned)ITEM) + (unsigned)ITEM;
    float value[4], old[4];
    EACH_OF(4, begin, k, i, n)
    {
        value[k] = x[i];
        old[k] = dml__old(beta, y + i);
    }
    EACH_OF(4, begin, k, i, n)
    {
        const unsigned keeps = kept[i % (4u * DML__GROUP_ITEMS) / 4u] >> i % 4u & 1u;
        y[i] = (keeps ? value[k] * scale : 0.0f) + beta * old[k];
    }
}

#endif
