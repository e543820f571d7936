/* embedding.h: rows of a table, by number, on raw arrays. */
#ifndef DML_KERNELS_EMBEDDING_H
#define DML_KERNELS_EMBEDDING_H

#include "thread/pool.h"

/* indices (count), all in 0 .. rows - 1; table (rows, width); y and dy (count, width). Bitwise the same for
   any number of threads. */

/* y[i] = table[indices[i]] */
DML_API void dml_embedding_forward(dml_pool *pool, size_t count, size_t width, const int32_t *indices,
                                   const float *table, float *y);

/* dtable = beta dtable + for each row the sum of those dy[i] with its index, added in the order of i. With
   beta = 0 dtable is not read. */
DML_API void dml_embedding_backward(dml_pool *pool, size_t count, size_t width, const int32_t *indices,
                                    const float *dy, size_t rows, float beta, float *dtable);

#endif
