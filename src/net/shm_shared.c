#ifndef DML_NET_SHM_SHARED_C
#define DML_NET_SHM_SHARED_C

#include "net/shm_internal.h"

#include "base/bytes.h"

/* Memory of several ranks, behind a line with a token: whoever finds it by process and descriptor knows by
   that that it is the one. */

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
    if (!shm->host->random(place + 16, DML__SHM_TOKEN)) return NULL;
    const int fd = shm->host->create(DML__SHM_SHARED_AT + bytes);
    if (fd < 0) return NULL;
    uint8_t *memory = (uint8_t *)shm->host->map(fd, DML__SHM_SHARED_AT + bytes);
    if (!memory) {
        shm->host->close(fd);
        return NULL;
    }
    shm->offered = true;
    shm->offered_fd = fd;
    dml__store64(place, (uint64_t)shm->host->process());
    dml__store64(place + 8, (uint64_t)fd);
    memcpy(memory, place + 16, DML__SHM_TOKEN);
    return memory + DML__SHM_SHARED_AT;
}

DML__LOCAL void *dml__shm_find_shared(dml__transport *transport, size_t bytes,
                                      const uint8_t place[DML__SHARED_PLACE])
{
    const dml__host_calls *host = dml__shm_of(transport)->host;
    const uint64_t process = dml__load64(place), fd = dml__load64(place + 8);
    if (process > INT32_MAX || fd > INT32_MAX) return NULL;
    const int opened = host->open((long)process, (int)fd, DML__SHM_SHARED_AT + bytes);
    if (opened < 0) return NULL;
    uint8_t *memory = (uint8_t *)host->map(opened, DML__SHM_SHARED_AT + bytes);
    host->close(opened);
    if (memory && memcmp(memory, place + 16, DML__SHM_TOKEN) == 0) return memory + DML__SHM_SHARED_AT;
    if (memory) host->unmap(memory, DML__SHM_SHARED_AT + bytes);
    return NULL;
}

DML__LOCAL void dml__shm_drop_shared(dml__transport *transport, void *memory, size_t bytes)
{
    dml__shm_of(transport)->host->unmap((uint8_t *)memory - DML__SHM_SHARED_AT, DML__SHM_SHARED_AT + bytes);
}

#endif
