/* local.h: the transport between ranks that are threads of one process. Data is never copied on its way: a
   sender offers spans of its memory, and the receiver reads them there. */
#ifndef DML_NET_LOCAL_H
#define DML_NET_LOCAL_H

#include "base/memory.h"
#include "base/platform.h"
#include "net/transport.h"

/* What the ranks of one process share. */
typedef struct dml__local_world dml__local_world;

/* For `world` ranks, at least 1; about 5 KiB for each two of them. NULL: no memory, or no mutex. A rank that
   waits spins for `spin` microseconds before it sleeps; 0: 50, or none when there are more ranks than
   processors; -1: none. `memory` is used here and in destroy only. */
DML__LOCAL dml__local_world *dml__local_world_create(dml__memory *memory, int world, int spin);

/* Once every rank that was opened has been closed; NULL is fine. */
DML__LOCAL void dml__local_world_destroy(dml__local_world *world);

/* The transport of one rank, to be opened once; it belongs to the world. May be called by the rank's thread.
   A rank that hasn't been opened yet is one that says nothing.

   `send` on the data channel offers up to DML__LOCAL_OFFERS spans at a time and returns how many bytes the
   receiver has consumed since the last call: 0 the first time. The rest has to be offered again, all of it,
   and more may follow. Between lend and consume the receiver must not wait for anything, since a sender that
   withdraws or closes waits for it, without a deadline: it would get memory back that is being read. consume
   ends a loan, also where it gives only a part of it back (or none): the rest has to be lent anew. So does
   the receiver's next wait. */
#define DML__LOCAL_OFFERS 16
DML__LOCAL dml__transport *dml__local_open(dml__local_world *world, int rank);

#endif
