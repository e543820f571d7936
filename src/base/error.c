#ifndef DML_BASE_ERROR_C
#define DML_BASE_ERROR_C

#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Names of files, nodes and devices are in sentences as they were given, and a sentence is one line. */
static void dml__make_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f) *text = '?';
}

DML__LOCAL dml_status dml__fail(dml__error *error, dml_status status, const char *format, ...)
{
    if (!error || error->status != DML_OK) return status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    const size_t used = strlen(error->text);
    if (status == DML_ERROR_MEMORY && error->buffer_bytes)
        snprintf(error->text + used, sizeof error->text - used,
                 "; all memory comes from the caller's buffer of %zu bytes", error->buffer_bytes);
    dml__make_one_line(error->text);
    error->status = status;
    return status;
}

DML__LOCAL dml_status dml__fail_null(dml__error *error, const char *call, const char *what)
{
    return dml__fail(error, DML_ERROR_ARGUMENT, "%s was given no %s (NULL)", call, what);
}

#endif
