/* allocator.h: where the host program wants the library's memory to come from. */
#ifndef DML_BASE_ALLOCATOR_H
#define DML_BASE_ALLOCATOR_H

#include "base/platform.h"

/* An allocator of the host program. `allocate` returns at least `bytes` bytes aligned for any C type, or
   NULL; `release` takes back what `allocate` gave. Both are called only by threads that are in one of the
   library's calls, and by none of its own but those of dml_mirrored: an allocator that is given to several
   contexts or communicators, which several threads use, has to be thread-safe. All-zero means malloc and
   free. */
typedef struct dml_allocator {
    void *(*allocate)(void *user, size_t bytes);
    void (*release)(void *user, void *memory);
    void *user;
} dml_allocator;

#endif
