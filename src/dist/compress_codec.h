/* compress_codec.h: the codes of ranges of g that every rank sends to all: what they add up to is computed
   from the same bytes in the order of the ranks, by operations that no instruction set rounds otherwise. */
#ifndef DML_DIST_COMPRESS_CODEC_H
#define DML_DIST_COMPRESS_CODEC_H

#include "base/platform.h"
#include "thread/pool.h"

/* kept + unit g as levels of blocks; kept becomes what the code leaves out. A block with a number that isn't
   finite is sent as NaN, and nothing of it is kept. `bits` is 8, 4 or 1. */
DML__LOCAL size_t dml__quantised_bytes(int bits, size_t n);
DML__LOCAL void dml__quantise(dml_pool *pool, int bits, size_t n, const float *g /* (n) */, float unit,
                              float *kept /* (n) */, unsigned char *code);

/* sum = factor times what `ranks` codes, one behind the other, add up to. */
DML__LOCAL void dml__quantised_sum(dml_pool *pool, int bits, size_t n, const unsigned char *codes, int ranks,
                                   float factor, float *sum /* (n) */);

/* How many of n elements are sent. */
DML__LOCAL size_t dml__sparse_count(double fraction, size_t n);

/* velocity = momentum velocity + unit g, kept += velocity (NULL velocity: kept += unit g); the k elements of
   kept of the largest magnitude, of equal ones the first, become the code of 8 k bytes, places below 2^32 and
   values; there both begin anew at 0. If g has a number that isn't finite, NaNs are sent and nothing is kept.
 */
DML__LOCAL void dml__sparsify(size_t n, size_t k, const float *g /* (n) */, float unit, float momentum,
                              float *velocity /* (n) */, float *kept /* (n) */, unsigned char *code);
DML__LOCAL void dml__sparse_sum(size_t n, size_t k, const unsigned char *codes, int ranks, float factor,
                                float *sum /* (n) */);

#endif
