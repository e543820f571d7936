/* choice.h: which algorithm a call gets; the same at every rank. */
#ifndef DML_COMM_CHOICE_H
#define DML_COMM_CHOICE_H

#include "base/platform.h"
#include "comm/job.h"

/* By name, as dml_comm_options.algorithm has it, for the calls that begin from here on, at every rank; "":
 * none. */
DML__LOCAL void dml__ask_for_algorithm(dml__comm_job *job, const char *name);

/* Index in dml__algorithms: the one that was asked for by name, else the cheapest (choice_table.h) that can
   run the call. In a deterministic job only one that sums in the order of the ranks. */
DML__LOCAL int dml__choose_algorithm(const dml_comm *comm, const dml__comm_call *call);

/* What a communicator has before anything is known: enough to find out. */
DML__LOCAL void dml__first_choice(dml_comm *comm);

/* Collectives of the whole communicator: the world's when it has just been opened; a group's, whose parent
   has its own. `tune`: rank 0's seconds of trials, 0 for none. After an error the communicator has failed. */
DML__LOCAL dml_status dml__agree_in_world(dml_comm *comm, double tune);
DML__LOCAL dml_status dml__agree_in_group(dml_comm *group, const dml_comm *parent);

/* The same without a message, by a model of threads: ranks that one thread opens. False: no memory. */
DML__LOCAL bool dml__choose_alone(dml_comm *comm);

/* Elements of the largest part, where there are parts. */
DML__LOCAL uint64_t dml__largest_part(const dml_comm *comm, const dml__comm_call *call);

/* Whether `text` ("ring", or "all_reduce=ring,broadcast=chain") names algorithms that there are; if not, the
   first that there isn't. */
#define DML__ALGORITHM_NAME 32
#define DML__ALGORITHM_NAMES 256 /* of the whole text */
DML__LOCAL bool dml__check_algorithm_names(const char *text, char unknown[DML__ALGORITHM_NAME]);

#endif
