/* error.h: the first error of an object, which sticks to it. */
#ifndef DML_BASE_ERROR_H
#define DML_BASE_ERROR_H

#include "base/platform.h"
#include "base/status.h"

/* The first error of an object, kept until somebody clears it: a status and a sentence that says what was
   asked, what was found and what to do. */
typedef struct dml__error {
    dml_status status;
    char text[512];
    size_t buffer_bytes; /* of the caller's buffer that all memory comes from; 0: it comes from elsewhere */
} dml__error;

/* Records the error if none is recorded yet, and returns `status` either way. `error` may be NULL. Of
   DML_ERROR_MEMORY the sentence ends in how large the caller's buffer is, if there is one. */
DML__LOCAL dml_status dml__fail(dml__error *error, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);

/* The same for a NULL where a call needs something: DML_ERROR_ARGUMENT, "dml_x was given no path (NULL)". */
DML__LOCAL dml_status dml__fail_null(dml__error *error, const char *call, const char *what);

#endif
