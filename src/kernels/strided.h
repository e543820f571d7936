/* strided.h: dense arrays to and from parts of others, on raw arrays: what permute, slice, concat and pad are
   made of. */
#ifndef DML_KERNELS_STRIDED_H
#define DML_KERNELS_STRIDED_H

#include "thread/pool.h"

/* Where the elements of a dense array of count[0] x ... x count[5] lie in another: element (i0, ..., i5) at
   i0 step[0] + ... + i5 step[5]. Two may not lie at the same place. */
#define DML_STRIDED_DIMS 6
typedef struct dml_strided {
    size_t count[DML_STRIDED_DIMS], step[DML_STRIDED_DIMS];
} dml_strided;

/* dense = the elements of `part` + beta dense, and the other way round. What is written isn't read with
   beta = 0. Bitwise the same for any number of threads. */
DML_API void dml_strided_pack(dml_pool *pool, const dml_strided *strided, const float *part, float beta,
                              float *dense);
DML_API void dml_strided_unpack(dml_pool *pool, const dml_strided *strided, const float *dense, float beta,
                                float *part);

#endif
