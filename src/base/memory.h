/* memory.h: where every byte comes from: the caller's allocator, the caller's buffer, or malloc. */
#ifndef DML_BASE_MEMORY_H
#define DML_BASE_MEMORY_H

#include "base/allocator.h"
#include "base/platform.h"

/* Every block that the library hands itself is aligned to this, enough for any vector instruction set. */
#define DML__ALIGNMENT 64

/* The library's own view of an allocator: always usable, 64-byte aligned, with an optional caller's buffer
   behind it (first fit over an address-ordered free list; neighbours merge when freed). */
typedef struct dml__memory {
    dml_allocator allocator;
    struct dml__block *free_list; /* of the caller's buffer; unused in allocator mode */
    bool from_buffer;
    /* The caller's buffer: where it begins, and how far it has ever been in use. */
    const void *buffer;
    size_t most;
} dml__memory;

/* `allocator` may be NULL or all-zero (malloc). With `buffer`, nothing but these `buffer_bytes` is used. */
DML__LOCAL void dml__memory_init(dml__memory *memory, const dml_allocator *allocator, void *buffer,
                                 size_t buffer_bytes);

/* `bytes` zeroed bytes aligned to DML__ALIGNMENT, or NULL. Zero bytes gives a valid pointer. Of malloc's,
   pages that are never written never become the process's. */
DML__LOCAL void *dml__allocate(dml__memory *memory, size_t bytes);

/* The same with whatever was there before: pages that are never written then never become the process's. */
DML__LOCAL void *dml__allocate_unset(dml__memory *memory, size_t bytes);

/* Makes bytes of a block zero. Whole pages go back to the system where that is safe, with malloc on Linux,
   and come again when they are written. */
DML__LOCAL void dml__zero_pages(const dml__memory *memory, void *at, size_t bytes);

/* `count` elements of `size` bytes each; NULL also when the product doesn't fit a size_t. */
DML__LOCAL void *dml__allocate_array(dml__memory *memory, size_t count, size_t size);

/* Takes back what dml__allocate gave; NULL is fine. */
DML__LOCAL void dml__release(dml__memory *memory, void *pointer);

/* How large a buffer, wherever it begins, would have been enough for all that was asked of this one so far; 0
   without a buffer. */
DML__LOCAL size_t dml__memory_needed(const dml__memory *memory);

/* This memory as an allocator, for a part that keeps a view of its own; `memory` must outlive it. */
DML__LOCAL dml_allocator dml__memory_allocator(dml__memory *memory);

/* `bytes` rounded up to a multiple of DML__ALIGNMENT. */
static inline size_t dml__align_up(size_t bytes)
{
    return (bytes + (DML__ALIGNMENT - 1)) & ~(size_t)(DML__ALIGNMENT - 1);
}

#endif
