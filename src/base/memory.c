#ifndef DML_BASE_MEMORY_C
#define DML_BASE_MEMORY_C

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

/* A free block of the caller's buffer, or, in front of each block handed out, its size. Both take one
   alignment unit, so that everything stays aligned. */
typedef struct dml__block {
    size_t bytes; /* of the whole block, this header included; a multiple of DML__ALIGNMENT */
    struct dml__block *next;
} dml__block;

static void *dml__malloc(void *user, size_t bytes)
{
    (void)user;
    return malloc(bytes);
}

static void dml__free(void *user, void *memory)
{
    (void)user;
    free(memory);
}

DML__LOCAL void dml__memory_init(dml__memory *memory, const dml_allocator *allocator, void *buffer,
                                 size_t buffer_bytes)
{
    memset(memory, 0, sizeof *memory);
    if (buffer) {
        memory->from_buffer = true;
        memory->buffer = buffer;
        const size_t skip = (size_t)(-(intptr_t)buffer & (DML__ALIGNMENT - 1));
        const size_t usable =
            buffer_bytes > skip ? (buffer_bytes - skip) / DML__ALIGNMENT * DML__ALIGNMENT : 0;
        if (usable > DML__ALIGNMENT) {
            memory->free_list = (dml__block *)(void *)((char *)buffer + skip);
            memory->free_list->bytes = usable;
            memory->free_list->next = NULL;
        }
    } else if (allocator && allocator->allocate && allocator->release) {
        memory->allocator = *allocator;
    } else {
        memory->allocator.allocate = dml__malloc;
        memory->allocator.release = dml__free;
    }
}

/* First fit takes the lowest place there is, so a buffer that ends where the highest block ended would have
   been used in the same way. */
static void dml__note_use(dml__memory *memory, const char *end)
{
    const size_t used = (size_t)(end - (const char *)memory->buffer);
    if (used > memory->most) memory->most = used;
}

DML__LOCAL size_t dml__memory_needed(const dml__memory *memory)
{
    if (!memory->most) return 0;
    const size_t skipped = (size_t)(-(intptr_t)memory->buffer & (DML__ALIGNMENT - 1));
    return memory->most - skipped + DML__ALIGNMENT - 1;
}

static void *dml__take_block(dml__memory *memory, size_t bytes)
{
    /* No block is of a header alone: dml__memory_init and the rest below take one for too small. */
    const size_t need = dml__align_up(bytes ? bytes : 1) + DML__ALIGNMENT;
    for (dml__block **link = &memory->free_list; *link; link = &(*link)->next) {
        dml__block *block = *link;
        if (block->bytes < need) continue;
        if (block->bytes - need > DML__ALIGNMENT) {
            dml__block *rest = (dml__block *)(void *)((char *)block + need);
            rest->bytes = block->bytes - need;
            rest->next = block->next;
            block->bytes = need;
            *link = rest;
        } else {
            *link = block->next;
        }
        dml__note_use(memory, (char *)block + need);
        return (char *)block + DML__ALIGNMENT;
    }
    return NULL;
}

static void dml__merge_with_next(dml__block *block)
{
    if (block->next && (char *)block + block->bytes == (char *)block->next) {
        block->bytes += block->next->bytes;
        block->next = block->next->next;
    }
}

static void dml__return_block(dml__memory *memory, void *pointer)
{
    dml__block *block = (dml__block *)(void *)((char *)pointer - DML__ALIGNMENT);
    dml__block *before = NULL;
    dml__block *after = memory->free_list;
    while (after && after < block) {
        before = after;
        after = after->next;
    }
    block->next = after;
    dml__merge_with_next(block);
    if (before) {
        before->next = block;
        dml__merge_with_next(before);
    } else {
        memory->free_list = block;
    }
}

static bool dml__is_from_malloc(const dml__memory *memory)
{
    return !memory->from_buffer && memory->allocator.allocate == dml__malloc;
}

/* Over-allocated by so much; the caller's pointer is remembered just below the aligned one. */
#define DML__BESIDE_BLOCK (DML__ALIGNMENT + sizeof(void *))

static void *dml__align_block(void *raw)
{
    if (!raw) return NULL;
    char *start = (char *)raw + sizeof(void *);
    start += (size_t)(-(intptr_t)start & (DML__ALIGNMENT - 1));
    memcpy(start - sizeof(void *), &raw, sizeof raw);
    return start;
}

DML__LOCAL void *dml__allocate_unset(dml__memory *memory, size_t bytes)
{
    if (bytes > SIZE_MAX - 2 * DML__ALIGNMENT) return NULL;
    if (memory->from_buffer) return dml__take_block(memory, bytes);
    return dml__align_block(memory->allocator.allocate(memory->allocator.user, bytes + DML__BESIDE_BLOCK));
}

#if defined(__linux__) && defined(MADV_DONTNEED)
/* The first whole page of a block, and how many bytes of whole pages there are. */
static char *dml__pages_within(void *at, size_t bytes, size_t *whole)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t before = (size_t)(-(uintptr_t)at & (page - 1));
    *whole = bytes > before ? (bytes - before) & ~(page - 1) : 0;
    return (char *)at + before;
}
#endif

/* Blocks beyond what a processor's tables of 4 KiB pages reach are wanted in large pages: a step of ResNet-20
   is 1.04 to 1.16 times as fast on one thread of a Zen 3. The system gives them where it is set to
   (transparent_hugepage/enabled). */
#define DML__LARGE_PAGES_FROM ((size_t)8 << 20)
#if defined(__linux__) && defined(MADV_DONTNEED) && defined(MADV_HUGEPAGE)
static void dml__want_large_pages(void *at, size_t bytes)
{
    size_t whole;
    if (!at || bytes < DML__LARGE_PAGES_FROM) return;
    char *const first = dml__pages_within(at, bytes, &whole);
    (void)madvise(first, whole, MADV_HUGEPAGE);
}
#else
static void dml__want_large_pages(void *at, size_t bytes)
{
    (void)at, (void)bytes;
}
#endif

DML__LOCAL void *dml__allocate(dml__memory *memory, size_t bytes)
{
    if (dml__is_from_malloc(memory) && bytes <= SIZE_MAX - 2 * DML__ALIGNMENT) {
        void *block = dml__align_block(calloc(1, bytes + DML__BESIDE_BLOCK));
        dml__want_large_pages(block, bytes);
        return block;
    }
    void *pointer = dml__allocate_unset(memory, bytes);
    if (pointer) memset(pointer, 0, bytes);
    return pointer;
}

#if defined(__linux__) && defined(MADV_DONTNEED)
/* False where nothing was given back: emulators take the call for a hint and keep what was there. */
static bool dml__give_pages_back(char *first, size_t bytes)
{
    *first = 1;
    return madvise(first, bytes, MADV_DONTNEED) == 0 && *(volatile char *)first == 0;
}

DML__LOCAL void dml__zero_pages(const dml__memory *memory, void *at, size_t bytes)
{
    size_t whole;
    char *const first = dml__pages_within(at, bytes, &whole);
    const size_t before = (size_t)(first - (char *)at);
    if (!whole || !dml__is_from_malloc(memory) || !dml__give_pages_back(first, whole)) {
        memset(at, 0, bytes);
        return;
    }
    memset(at, 0, before);
    memset(first + whole, 0, bytes - before - whole);
}
#else
DML__LOCAL void dml__zero_pages(const dml__memory *memory, void *at, size_t bytes)
{
    (void)memory;
    memset(at, 0, bytes);
}
#endif

DML__LOCAL void *dml__allocate_array(dml__memory *memory, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size) return NULL;
    return dml__allocate(memory, count * size);
}

DML__LOCAL void dml__release(dml__memory *memory, void *pointer)
{
    if (!pointer) return;
    if (memory->from_buffer) {
        dml__return_block(memory, pointer);
        return;
    }
    void *raw;
    memcpy(&raw, (char *)pointer - sizeof(void *), sizeof raw);
    memory->allocator.release(memory->allocator.user, raw);
}

static void *dml__memory_allocate(void *user, size_t bytes)
{
    return dml__allocate((dml__memory *)user, bytes);
}

static void dml__memory_release(void *user, void *memory)
{
    dml__release((dml__memory *)user, memory);
}

DML__LOCAL dml_allocator dml__memory_allocator(dml__memory *memory)
{
    const dml_allocator allocator = { dml__memory_allocate, dml__memory_release, memory };
    return allocator;
}

#endif
