/* shm_internal.h: the shared memory transport's own files between themselves. */
#ifndef DML_NET_SHM_INTERNAL_H
#define DML_NET_SHM_INTERNAL_H

#include "net/shm.h"
#include "net/shm_ring.h"

#define DML__SHM_TOKEN 16 /* bytes by which both ends know that they have the same memory */

/* What is shared begins with this; then, for each direction, the lower rank's first, a way and its ring. */
typedef struct dml__shm_head {
    uint8_t token[DML__SHM_TOKEN] DML__OWN_LINE;
} dml__shm_head;

typedef struct dml__shm_pair {
    uint8_t *memory; /* NULL: this pair is as it is below */
    size_t bytes;
    bool gone; /* its connection below has ended, or what it wrote makes no sense */
    dml__shm_sender out;
    dml__shm_receiver in;
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
} dml__shm;

static inline size_t dml__shm_bytes(uint32_t ring)
{
    return sizeof(dml__shm_head) + 2 * (sizeof(dml__shm_way) + (size_t)ring);
}

/* The pair has this memory, with rings of that size, from now on. */
DML__LOCAL void dml__shm_connect(dml__shm *shm, int rank, uint8_t *memory, uint32_t ring);

/* Fills in the pairs; false: as dml__shm_open says NULL. */
DML__LOCAL bool dml__shm_meet(dml__shm *shm, const dml__shm_settings *settings, int *culprit);

#endif
