#ifndef DML_BASE_STATUS_C
#define DML_BASE_STATUS_C

#include "base/status.h"

DML_API const char *dml_status_string(dml_status status)
{
    static const char *const meaning[] = {
#define DML__STATUS_MEANING(name, text) text,
        DML__STATUS_LIST(DML__STATUS_MEANING)
#undef DML__STATUS_MEANING
    };
    return (unsigned)status < DML__STATUS_COUNT ? meaning[status] : "unknown status";
}

#endif
