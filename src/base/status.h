/* status.h: how the library says that something went wrong. */
#ifndef DML_BASE_STATUS_H
#define DML_BASE_STATUS_H

#include "base/platform.h"

/* X(name, what it means) */
#define DML__STATUS_LIST(X)                                                                                  \
    X(OK, "ok")                                                                                              \
    X(ERROR_ARGUMENT, "an argument is out of range or doesn't fit the others")                               \
    X(ERROR_SHAPE, "tensor shapes don't fit each other")                                                     \
    X(ERROR_MEMORY, "no memory left")                                                                        \
    X(ERROR_DEVICE, "the device is missing or failed")                                                       \
    X(ERROR_IO, "a file can't be read or written")                                                           \
    X(ERROR_FORMAT, "a file or message is not what it should be")                                            \
    X(ERROR_NETWORK, "a connection failed")                                                                  \
    X(ERROR_TIMEOUT, "a deadline passed")                                                                    \
    X(ERROR_PEER, "another rank failed or left")                                                             \
    X(ERROR_MISMATCH, "ranks made calls that don't match")                                                   \
    X(ERROR_UNSUPPORTED, "this build or device can't do that")                                               \
    X(ERROR_STATE, "the call came at the wrong time")                                                        \
    X(ERROR_NUMBER, "a number that was computed is not finite")

typedef enum dml_status {
#define DML__STATUS_ENUM(name, meaning) DML_##name,
    DML__STATUS_LIST(DML__STATUS_ENUM)
#undef DML__STATUS_ENUM
        DML__STATUS_COUNT
} dml_status;

/* A static sentence for a status, such as "no memory left". */
DML_API const char *dml_status_string(dml_status status);

#endif
