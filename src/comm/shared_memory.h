/* shared_memory.h: memory that all ranks of a communicator read and write, and whose turn it is to use it. */
#ifndef DML_COMM_SHARED_MEMORY_H
#define DML_COMM_SHARED_MEMORY_H

#include "comm/job.h"

/* Collective: gives the communicator memory of all its ranks if they have one host, and all of them can have
   it. After an error the communicator has failed. */
DML__LOCAL dml_status dml__share_memory(dml_comm *comm);

/* Lets go of it, before the transport is closed. */
DML__LOCAL void dml__unshare_memory(dml_comm *comm);

/* Gives the round that begins the half of it that the one before it doesn't have, which others may be
   reading; if the algorithm takes any. */
DML__LOCAL void dml__lay_shared(dml_request *request, const dml__algorithm_info *info);

/* Calls of a communicator use it one after the other, in the order in which they were started, which is the
   same at all ranks. False: this one's turn comes when dml__pass_shared returns it. */
DML__LOCAL bool dml__take_shared(dml_request *request);

/* The request has ended: whose turn it is now, if it was this one's; NULL: nobody's. */
DML__LOCAL dml_request *dml__pass_shared(const dml_request *request);

#endif
