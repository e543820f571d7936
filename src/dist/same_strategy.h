/* same_strategy.h: the first word of all strategies: which one this rank was given. */
#ifndef DML_DIST_SAME_STRATEGY_H
#define DML_DIST_SAME_STRATEGY_H

#include "base/platform.h"
#include "base/status.h"
#include "comm/comm.h"

enum { DML__SAME_STRATEGY_BYTES = 160 };

/* Collective: ranks with other strategies would make other calls. DML_ERROR_MISMATCH on all of them where one
   has another: then `sentence` (DML__SAME_STRATEGY_BYTES) names the lowest that differs from rank 0, and
   both; the communicator's own errors leave it empty. */
DML__LOCAL dml_status dml__same_strategy(dml_comm *comm, const char *strategy, char *sentence);

#endif
