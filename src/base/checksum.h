/* checksum.h: whether bytes are still what they were. */
#ifndef DML_BASE_CHECKSUM_H
#define DML_BASE_CHECKSUM_H

#include "base/platform.h"

/* CRC-32C (Castagnoli: polynomial 0x1EDC6F41, as in RFC 3720) of `bytes` bytes that follow those of which
   `sum` is the checksum; 0 to begin. */
DML__LOCAL uint32_t dml__checksum(uint32_t sum, const void *data, size_t bytes);

#endif
