/* shm_internal.h: the shared memory transport's own files between themselves. */
#ifndef DML_NET_SHM_INTERNAL_H
#define DML_NET_SHM_INTERNAL_H

#include "net/shm.h"
#include "net/shm_ring.h"

#define DML__SHM_TOKEN 16 /* bytes by which both ends know that they have the same memory */

/* Where a process's own memory can be read: by the seal at this address there one knows that it is the right
   process still, and that what was read before the seal was still on offer. */
typedef struct dml__shm_reach {
    uint64_t process, address; /* 0: nobody reads it */
    uint8_t seal[DML__SHM_TOKEN];
} dml__shm_reach;

/* What is shared begins with this; then, for each direction, the lower rank's first, a way and its ring. */
typedef struct dml__shm_head {
    uint8_t token[DML__SHM_TOKEN] DML__OWN_LINE;
    dml__shm_reach reach[2]; /* the lower rank's first */
} dml__shm_head;

#define DML__SHM_SENT 1
#define DML__SHM_TAKEN 2

typedef struct dml__shm_pair {
    uint8_t *memory; /* NULL: this pair is as it is below */
    size_t bytes;
    bool gone;  /* its connection below has ended, or what it wrote makes no sense */
    int untold; /* DML__SHM_SENT, DML__SHM_TAKEN: since anybody looked whether the other end sleeps for it */
    dml__shm_sender out;
    dml__shm_receiver in;
    dml__shm_reach reach; /* the other rank's, while in.reads */
} dml__shm_pair;

typedef struct dml__shm {
    dml__transport transport;
    dml__transport *below;
    dml__memory *memory;
    const dml__host_calls *host;
    int rank, world;
    int spin;             /* microseconds */
    double looked_below;  /* when */
    dml__shm_pair *pairs; /* (world) */
    uint8_t *wishes;      /* (world): those for below */
    bool defers;          /* see dml__transport_calls.defer */
    bool reads;           /* this rank reads others' memory, where it can */
    bool sealed;          /* others may read this rank's memory, as long as this is here: */
    uint8_t seal[DML__SHM_TOKEN];
    uint8_t *stage; /* (DML__SHM_STAGE + 64): a part of a remote piece that is lent */
    bool offered;   /* memory for several ranks can be found by this descriptor: */
    int offered_fd;
} dml__shm;

#define DML__SHM_STAGE (32u * 1024)

static inline dml__shm *dml__shm_of(const dml__transport *transport)
{
    return (dml__shm *)(uintptr_t)transport;
}

static inline size_t dml__shm_bytes(uint32_t ring)
{
    return sizeof(dml__shm_head) + 2 * (sizeof(dml__shm_way) + (size_t)ring);
}

/* The pair has this memory, with rings of that size, from now on. */
DML__LOCAL void dml__shm_connect(dml__shm *shm, int rank, uint8_t *memory, uint32_t ring);

/* Says in the pair's memory where this rank's own can be read; at the end of the way that comes in, whether
   the other's can, which has said so. */
DML__LOCAL void dml__shm_tell_reach(const dml__shm *shm, int rank, uint8_t *memory);
DML__LOCAL void dml__shm_try_reach(dml__shm *shm, int rank);

/* Zeroed memory but for its token, of which `place` says where it is; *fd, by which it is found, is the
   caller's. NULL: it can't be had. */
DML__LOCAL uint8_t *dml__shm_make_memory(const dml__host_calls *host, size_t bytes,
                                         uint8_t place[DML__SHARED_PLACE], int *fd);

/* The memory at that place, if it can be had and is the one. */
DML__LOCAL uint8_t *dml__shm_find_memory(const dml__host_calls *host, size_t bytes,
                                         const uint8_t place[DML__SHARED_PLACE]);

/* See dml__shared_calls. */
DML__LOCAL void *dml__shm_make_shared(dml__transport *transport, size_t bytes,
                                      uint8_t place[DML__SHARED_PLACE]);
DML__LOCAL void *dml__shm_find_shared(dml__transport *transport, size_t bytes,
                                      const uint8_t place[DML__SHARED_PLACE]);
DML__LOCAL void dml__shm_drop_shared(dml__transport *transport, void *memory, size_t bytes);

/* What was made can't be found any more. */
DML__LOCAL void dml__shm_end_offer(dml__shm *shm);

/* Fills in the pairs; false: as dml__shm_open says NULL. */
DML__LOCAL bool dml__shm_meet(dml__shm *shm, const dml__shm_settings *settings, int *culprit);

#endif
