/* idx.h: reads IDX files, the format of MNIST: one array of bytes.

   A file is: two zero bytes, the element type (8: unsigned bytes, the only one read here), the number of
   dimensions, each dimension as a big-endian 32-bit number, then the elements, the last dimension fastest.
   Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database", http://yann.lecun.com/exdb/mnist */
#ifndef DML_TRAIN_IDX_H
#define DML_TRAIN_IDX_H

#include "base/platform.h"
#include "base/status.h"
#include "device/context.h"

enum { DML_IDX_DIMS = 4 };

typedef struct dml_idx {
    int ndim;                  /* 1 .. DML_IDX_DIMS */
    int dims[DML_IDX_DIMS];    /* each at least 1; those past ndim are 1 */
    const unsigned char *data; /* (dims[0], ..., dims[ndim - 1]) */
    void *block;               /* private: what dml_idx_free gives back */
} dml_idx;

/* Reads a file into memory of the context. On failure the sentence on the context names the file, and *out
   is empty. DML_ERROR_IO: it can't be read; DML_ERROR_FORMAT: it is no such file, is cut short, goes on after
   its end, or is still packed (.gz); DML_ERROR_MEMORY. */
#ifndef DML_NO_STDIO
DML_API dml_status dml_idx_load(dml_context *context, const char *path, dml_idx *out);
#endif

/* The same for `size` bytes in memory, called `name` in a failure's sentence. Nothing is copied: out->data
   points into `bytes`. */
DML_API dml_status dml_idx_parse(dml_context *context, const char *name, const void *bytes, size_t size,
                                 dml_idx *out);

/* Gives the memory back and empties *idx; an empty one, or a parsed one, is fine. Call it before dml_close.
 */
DML_API void dml_idx_free(dml_context *context, dml_idx *idx);

#endif
