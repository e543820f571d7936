/* embedding_bag.h: sums of rows of a table, by number, on raw arrays. */
#ifndef DML_KERNELS_EMBEDDING_BAG_H
#define DML_KERNELS_EMBEDDING_BAG_H

#include "thread/pool.h"

/* A bag is `length` places of `indices` (bags, length), each a row's number, 0 .. rows - 1, or -1 for none.
   The row counts as much as `weights` (bags, length) says; where they are NULL once, or with `mean` by its
   part of the bag's places that have one. table (rows, width); y and dy (bags, width). Added in the order of
   the places; bitwise the same for any number of threads. */

/* y = the sum of each bag's rows; zeros for an empty one. */
DML_API void dml_embedding_bag_forward(dml_pool *pool, size_t bags, size_t length, size_t width, bool mean,
                                       const int32_t *indices, const float *weights, const float *table,
                                       float *y);

/* Adds to dtable; no row that isn't in a bag is touched. */
DML_API void dml_embedding_bag_backward(dml_pool *pool, size_t bags, size_t length, size_t width, bool mean,
                                        const int32_t *indices, const float *weights, const float *dy,
                                        float *dtable);

/* dweights = beta dweights + for each place the product of its row and its bag's dy; 0 where it has none.
   With beta = 0 dweights is not read. */
DML_API void dml_embedding_bag_backward_weights(dml_pool *pool, size_t bags, size_t length, size_t width,
                                                const int32_t *indices, const float *table, const float *dy,
                                                float beta, float *dweights);

#endif
