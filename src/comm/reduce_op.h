/* reduce_op.h: what a collective does to the elements of two ranks. */
#ifndef DML_COMM_REDUCE_OP_H
#define DML_COMM_REDUCE_OP_H

#include "base/cpu.h"
#include "base/dtype.h"
#include "base/platform.h"
#include "comm/comm.h"

typedef struct dml__reduction {
    dml_dtype dtype;
    dml_reduce_op op;
    dml_isa isa;                  /* to be used: dml_cpu_isa's word when the communicator was opened */
    dml_reduce_function function; /* the user's, which takes op's place; NULL: op */
    void *user;
} dml__reduction;

/* out[i] = op(a[i], b[i]); the mean only sums, until dml__finish_mean divides. `out` is a or b, or overlaps
   neither. All need the alignment of their dtype only. By the calling thread; each instruction set gives the
   same bits, but for which of two NaNs a sum or product of floats is. The minimum and the maximum are exact
   in any order, bit by bit: -0 lies below 0, and of NaNs one and the same wins. */
DML__LOCAL void dml__reduce_elements(const dml__reduction *how, void *out, const void *a, const void *b,
                                     size_t count);

/* data[i] = data[i] / ranks: of floats to nearest, of 16-bit floats by way of f32, of integers towards 0. */
DML__LOCAL void dml__finish_mean(const dml__reduction *how, void *data, size_t count, int ranks);

#endif
