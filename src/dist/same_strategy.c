#ifndef DML_DIST_SAME_STRATEGY_C
#define DML_DIST_SAME_STRATEGY_C

#include "dist/same_strategy.h"

#include <stdio.h>
#include <string.h>

enum { DML__STRATEGY_NAME_BYTES = 40 };

DML__LOCAL dml_status dml__same_strategy(dml_comm *comm, const char *strategy, char *sentence)
{
    char first[DML__STRATEGY_NAME_BYTES], other[DML__STRATEGY_NAME_BYTES];
    const double ranks = dml_comm_world_size(comm);
    double rank = ranks; /* the lowest that differs */
    sentence[0] = '\0';
    memset(first, 0, sizeof first);
    snprintf(first, sizeof first, "%s", strategy);
    memcpy(other, first, sizeof other);
    if (dml_comm_broadcast(comm, first, sizeof first, DML_U8, 0) != DML_OK) return dml_comm_status(comm);
    if (strcmp(first, other) != 0) rank = dml_comm_rank(comm);
    if (dml_comm_all_reduce(comm, &rank, 1, DML_F64, DML_MIN) != DML_OK) return dml_comm_status(comm);
    if (rank == ranks) return DML_OK;
    if (dml_comm_broadcast(comm, other, sizeof other, DML_U8, (int)rank) != DML_OK)
        return dml_comm_status(comm);
    snprintf(sentence, DML__SAME_STRATEGY_BYTES,
             "rank %d was given %s and rank 0 %s; all ranks need the same strategy", (int)rank, other, first);
    return DML_ERROR_MISMATCH;
}

#endif
