#ifndef DML_BASE_LOGGER_C
#define DML_BASE_LOGGER_C

#include "base/logger.h"

#include <stdarg.h>
#include <stdio.h>

DML__LOCAL void dml__log(const dml__logger *logger, dml_log_level level, const char *format, ...)
{
    if (!logger->callback) return;
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    logger->callback(logger->user, level, message);
}

#endif
