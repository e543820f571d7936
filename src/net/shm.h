/* shm.h: the transport between ranks that are processes of one host: data goes through memory that they
   share, all else through the transport below. */
#ifndef DML_NET_SHM_H
#define DML_NET_SHM_H

#include "base/memory.h"
#include "base/platform.h"
#include "net/host_memory.h"
#include "net/transport.h"

typedef struct dml__shm_settings {
    int rank, world;
    bool off;           /* no memory is shared with this rank */
    size_t ring_bytes;  /* on their way between two ranks, a power of two from 4 KiB to 1 GiB; 0: 2 MiB, or
                           256 KiB where there are more ranks than processors; 128 KiB on Intel's; of many
                           ranks less */
    int spin;           /* microseconds that a wait spins before it sleeps; 0: 50, or none when there are more
                           ranks on this host than processors; -1: none */
    bool no_reads;      /* nobody reads another's own memory: all bytes go through the rings */
    bool reads_if_fast; /* this rank reads it only if that takes less than two copies */
    double seconds;     /* until every rank has to have answered */
    /* Takes in what has come on the control channels meanwhile; false: that has ended the job. NULL: it stays
       where it is. */
    bool (*control)(void *user);
    void *user;
} dml__shm_settings;

/* Finds out with every other rank what lies between them, over the data channel of `below`, which nobody has
   used before: all ranks call this, those that share nothing (`off`, another system) too. Returns the
   transport for all of it, which closes `below` with itself, or `below` where no memory is shared. Where a
   pair can't share (no memory, no /proc, another namespace), it stays below, and that is no error.

   NULL: `below` is the caller's still, and *culprit the rank that is gone, that has said nothing in time or
   nothing that makes sense; this rank: it has no memory; -1: `control` was false.

   What is lent ends where a span ends, at the latest after 64 KiB, or at an address that is a multiple of 64;
   so no element is cut that didn't lie across such an address. A loan ends with consume. From ranks that are
   not "shm" (medium), lend says what `below` says, or DML__LENDS_NOTHING.

   Where the system allows it (process_vm_readv), and the rank wants it so, a rank reads what is large
   straight from the memory of the rank that sends it, once it knows where; it has gone when it was read.
   `receive` then copies it once, `lend` lends copies of parts of it.

   Below, the data channel of a pair that shares memory carries bells: single bytes, that wake who sleeps. */
DML__LOCAL dml__transport *dml__shm_open(dml__transport *below, const dml__shm_settings *settings,
                                         const dml__host_calls *host, dml__memory *memory, int *culprit);

#endif
