/* logger.h: saying something to the caller's log callback. */
#ifndef DML_BASE_LOGGER_H
#define DML_BASE_LOGGER_H

#include "base/log.h"
#include "base/platform.h"

typedef struct dml__logger {
    dml_log_callback callback; /* NULL: silence */
    void *user;
} dml__logger;

DML__LOCAL void dml__log(const dml__logger *logger, dml_log_level level, const char *format, ...)
    DML__PRINTF(3, 4);

#endif
