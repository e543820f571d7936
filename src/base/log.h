/* log.h: what the library has to say, said only to a callback that the caller gave. */
#ifndef DML_BASE_LOG_H
#define DML_BASE_LOG_H

#include "base/platform.h"

typedef enum dml_log_level { DML_LOG_DEBUG, DML_LOG_INFO, DML_LOG_WARNING, DML_LOG_ERROR } dml_log_level;

/* `message` has no newline and is the callee's only during the call. */
typedef void (*dml_log_callback)(void *user, dml_log_level level, const char *message);

#endif
