/* strided.cl: dense arrays to and from parts of others. Element (i0, ..., i5) of a dense array lies in the
   other at i0 step[0] + ... + i5 step[5].

   Ints of both: elements, the counts along dimensions 1 to 5, the steps along 0 to 5; floats beta;
   size{elements}. */
#ifndef DML_GPU_STRIDED_CL
#define DML_GPU_STRIDED_CL

/* Where the dense array's element i lies in the other. */
#define STRIDED_PLACE(place, i)                                                                              \
    do {                                                                                                     \
        unsigned rest = (i);                                                                                 \
        for (int d = 5; d > 0; d--) {                                                                        \
            const unsigned count = (unsigned)INT(d), before = rest / count;                                  \
            (place) += (WIDE)(rest - before * count) * INT(6 + d);                                           \
            rest = before;                                                                                   \
        }                                                                                                    \
        (place) += (WIDE)rest * INT(6);                                                                      \
    } while (0)

/* dense = part + beta dense. Buffers part, dense. */
KERNEL(strided_pack)
{
    GLOBAL const float *part = BUFFER(0, const float);
    GLOBAL float *dense = BUFFER(1, float);
    const float beta = REAL(0);
    const unsigned i = ELEMENT;
    WIDE place = 0;
    if (i < (unsigned)INT(0)) {
        STRIDED_PLACE(place, i);
        dense[i] = dml__with_beta(part[place], beta, dense + i);
    }
}

/* part = dense + beta part. Buffers dense, part. */
KERNEL(strided_unpack)
{
    GLOBAL const float *dense = BUFFER(0, const float);
    GLOBAL float *part = BUFFER(1, float);
    const float beta = REAL(0);
    const unsigned i = ELEMENT;
    WIDE place = 0;
    if (i < (unsigned)INT(0)) {
        STRIDED_PLACE(place, i);
        part[place] = dml__with_beta(dense[i], beta, part + place);
    }
}

#endif
