/* half.cl: floats in 16 bits, bf16 or f16, as kernels/half.c has them. */
#ifndef DML_GPU_HALF_CL
#define DML_GPU_HALF_CL

HELPER unsigned dml__bf16_from(unsigned x)
{
    if ((x & 0x7FFFFFFFu) > 0x7F800000u) return x >> 16 | 0x40u;
    return (x + 0x7FFFu + (x >> 16 & 1u)) >> 16;
}

/* On the bits, since a device may take denormals for 0: 2^-24 is the last bit of what is from 0.5 to 1. */
HELPER unsigned dml__f16_from(unsigned x)
{
    const unsigned size = x & 0x7FFFFFFFu, sign = x >> 16 & 0x8000u;
    if (size > 0x7F800000u) return sign | 0x7E00u | (size >> 13 & 0x3FFu);
    if (size >= 0x477FF000u) return sign | 0x7C00u;
    if (size < 0x38800000u) return sign | (BITS_OF(FLOAT_OF(size) + 0.5f) - 0x3F000000u);
    return sign | (((size + 0xFFFu + (size >> 13 & 1u)) >> 13) - (112u << 10));
}

HELPER float dml__f16_to(unsigned x)
{
    const unsigned size = x & 0x7FFFu, sign = (x & 0x8000u) << 16;
    if (size < 0x400u) return FLOAT_OF(BITS_OF(FLOAT_OF(size | 0x3F000000u) - 0.5f) | sign);
    return FLOAT_OF(((size << 13) + ((size >= 0x7C00u ? 224u : 112u) << 23)) | sign);
}

/* y = x in 16 bits, to nearest, ties to even. Buffers x, y; ints n, whether it is f16, whether what is beyond
   f16's largest number becomes that; size{n}. */
KERNEL(half_narrow)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL unsigned short *y = BUFFER(1, unsigned short);
    const unsigned n = (unsigned)INT(0);
    RUN_BEGINS(n);
    unsigned bits[RUN];
    EACH_OF_RUN(k, i, n) bits[k] = BITS_OF(x[i]);
    if (INT(1)) {
        EACH_OF_RUN(k, i, n)
        {
            const unsigned size = bits[k] & 0x7FFFFFFFu, narrow = dml__f16_from(bits[k]);
            const int beyond = INT(2) && size >= 0x477FF000u && size < 0x7F800000u;
            y[i] = (unsigned short)(beyond ? narrow - 1u : narrow);
        }
    } else {
        EACH_OF_RUN(k, i, n) y[i] = (unsigned short)dml__bf16_from(bits[k]);
    }
}

/* y = x of 16 bits. Buffers x, y; ints n, whether it is f16; size{n}. */
KERNEL(half_widen)
{
    GLOBAL const unsigned short *x = BUFFER(0, const unsigned short);
    GLOBAL float *y = BUFFER(1, float);
    const unsigned n = (unsigned)INT(0);
    RUN_BEGINS(n);
    unsigned bits[RUN];
    EACH_OF_RUN(k, i, n) bits[k] = x[i];
    if (INT(1)) {
        EACH_OF_RUN(k, i, n) y[i] = dml__f16_to(bits[k]);
    } else {
        EACH_OF_RUN(k, i, n) y[i] = FLOAT_OF(bits[k] << 16);
    }
}

#endif
