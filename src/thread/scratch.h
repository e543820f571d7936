/* scratch.h: arithmetic of needs for scratch. */
#ifndef DML_THREAD_SCRATCH_H
#define DML_THREAD_SCRATCH_H

#include "thread/pool.h"

/* The larger of two needs, part by part. */
static inline dml_scratch dml__larger_scratch(dml_scratch a, dml_scratch b)
{
    if (b.worker > a.worker) a.worker = b.worker;
    if (b.shared > a.shared) a.shared = b.shared;
    return a;
}

#endif
