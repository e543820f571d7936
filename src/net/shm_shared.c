#ifndef DML_NET_SHM_SHARED_C
#define DML_NET_SHM_SHARED_C

#include "net/shm_internal.h"

#include "base/bytes.h"

/* Memory that is found by a process and its descriptor, and known by the token that it begins with.

   A place: 0 process:8 8 descriptor:4 12 the maker's:4 16 token:16 */

DML__LOCAL uint8_t *dml__shm_make_memory(const dml__host_calls *host, size_t bytes,
                                         uint8_t place[DML__SHARED_PLACE], int *fd)
{
    uint8_t token[DML__SHM_TOKEN];
    *fd = host->create(bytes);
    if (*fd < 0) return NULL;
    uint8_t *memory = (uint8_t *)host->map(*fd, bytes);
    if (memory && host->random(token, sizeof token)) {
        memcpy(memory, token, sizeof token);
        dml__store64(place, (uint64_t)host->process());
        dml__store32(place + 8, (uint32_t)*fd);
        memcpy(place + 16, token, sizeof token);
        return memory;
    }
    if (memory) host->unmap(memory, bytes);
    host->close(*fd);
    return NULL;
}

DML__LOCAL uint8_t *dml__shm_find_memory(const dml__host_calls *host, size_t bytes,
                                         const uint8_t place[DML__SHARED_PLACE])
{
    const uint64_t process = dml__load64(place);
    const uint32_t fd = dml__load32(place + 8);
    if (process > INT32_MAX || fd > INT32_MAX) return NULL;
    const int opened = host->open((long)process, (int)fd, bytes);
    if (opened < 0) return NULL;
    uint8_t *memory = (uint8_t *)host->map(opened, bytes);
    host->close(opened);
    if (!memory || memcmp(memory, place + 16, DML__SHM_TOKEN) == 0) return memory;
    host->unmap(memory, bytes);
    return NULL;
}

/* ---- that of several ranks begins behind a line with the token ---- */

#define DML__SHM_SHARED_AT 64u

DML__LOCAL void dml__shm_end_offer(dml__shm *shm)
{
    if (shm->offered) shm->host->close(shm->offered_fd);
    shm->offered = false;
}

DML__LOCAL void *dml__shm_make_shared(dml__transport *transport, size_t bytes,
                                      uint8_t place[DML__SHARED_PLACE])
{
    dml__shm *shm = dml__shm_of(transport);
    dml__shm_end_offer(shm);
    uint8_t *memory = dml__shm_make_memory(shm->host, DML__SHM_SHARED_AT + bytes, place, &shm->offered_fd);
    shm->offered = memory != NULL;
    return memory ? memory + DML__SHM_SHARED_AT : NULL;
}

DML__LOCAL void *dml__shm_find_shared(dml__transport *transport, size_t bytes,
                                      const uint8_t place[DML__SHARED_PLACE])
{
    uint8_t *memory = dml__shm_find_memory(dml__shm_of(transport)->host, DML__SHM_SHARED_AT + bytes, place);
    return memory ? memory + DML__SHM_SHARED_AT : NULL;
}

DML__LOCAL void dml__shm_drop_shared(dml__transport *transport, void *memory, size_t bytes)
{
    dml__shm_of(transport)->host->unmap((uint8_t *)memory - DML__SHM_SHARED_AT, DML__SHM_SHARED_AT + bytes);
}

#endif
