/* unlike.h: ranks that come to rank 0 with other settings than its own, or as a rank that has come already.
 */
#ifndef DML_NET_UNLIKE_H
#define DML_NET_UNLIKE_H

#include "base/platform.h"

enum { DML__COMER_WORLD, DML__COMER_SEGMENT, DML__COMER_REQUESTS, DML__COMER_SETTINGS };

/* Who has come, and with what. */
typedef struct dml__comer {
    int rank;
    uint32_t settings[DML__COMER_SETTINGS];
} dml__comer;

/* Sorts the comers (count) by rank, of which there is rank 0, and writes what is wrong with them: in what
   they differ, and who has what; or else which rank came twice. Most are right, of as many each the first,
   mostly rank 0. Returns the first rank that isn't, or -1 and "": all is as it should be. */
DML__LOCAL int dml__judge_comers(dml__comer *comers, int count, char *text, size_t bytes);

#endif
