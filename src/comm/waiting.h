/* waiting.h: what ranks tell each other when something goes wrong, and who waits for whom. */
#ifndef DML_COMM_WAITING_H
#define DML_COMM_WAITING_H

#include "comm/job.h"

typedef enum dml__control_kind {
    DML__ABORT = DML__CONTROL_KINDS, /* the job is over: rank is to blame, status and text say why */
    DML__ASK,                        /* what do you wait for? With what the asking rank waits for */
    DML__ANSWER,                     /* rank is waited for, or -1 */
    DML__GOODBYE,                    /* closes its communicator in good order: it starts nothing any more */
    DML__FAREWELL,                   /* has heard everybody's goodbye, and nothing was left over */
    DML__ASK_CALL,                   /* what did you call in this place of a communicator? */
    DML__SAY_CALL                    /* that */
} dml__control_kind;

DML__LOCAL dml__control dml__control_message(dml__control_kind kind);
DML__LOCAL void dml__tell_all(dml__comm_job *job, const dml__control *control);

#define DML__ALL_COMMUNICATORS UINT32_MAX /* none has that number */

/* The first operation that a call waits for by itself; NULL: none. */
DML__LOCAL dml_request *dml__waited(const dml__comm_job *job);

/* Whether a call waits for any of operations that wait for different ranks. */
DML__LOCAL bool dml__waits_for_any(const dml__comm_job *job);

/* What a rank says that it waits for (NULL: for nothing). */
DML__LOCAL dml__waiting dml__waiting_of(const dml__comm_job *job, const dml_request *request);

/* The call with its tag and communicator, and what lies there with another tag. */
#define DML__WAITING_TEXT (DML__SIGNATURE_TEXT + 160)
DML__LOCAL const char *dml__waiting_text(const dml__waiting *waiting, char text[DML__WAITING_TEXT]);

/* Whether all who could send what a receive from any waits for have said goodbye, and all that they sent has
   come. */
DML__LOCAL bool dml__nobody_sends(const dml__comm_job *job, const dml_request *request);

/* Whether the progress thread is all there is of this rank. A call that looks for what has ended may come
   again, so for a while after one it isn't. */
DML__LOCAL bool dml__is_away(const dml__comm_job *job);

/* Takes in what a rank asks or answers, and answers what it asks. False: it makes no sense. */
DML__LOCAL bool dml__take_waiting(dml__comm_job *job, int rank, const dml__control *control);

/* Takes in what a rank asks or says of a call (mismatch.c), and says what it asks. False: it makes no sense.
 */
DML__LOCAL bool dml__take_call(dml__comm_job *job, int rank, const dml__control *control);

/* All have answered who will (judge.c): DML_OK after the request's deadline has been put off, since nobody
   can be blamed yet, or the error that ends the job. */
DML__LOCAL dml_status dml__judge_waits(dml__comm_job *job, dml_request *request);

#endif
