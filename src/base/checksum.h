/* checksum.h: whether bytes are still what they were. */
#ifndef DML_BASE_CHECKSUM_H
#define DML_BASE_CHECKSUM_H

#include "base/platform.h"

/* CRC-32C of `bytes` bytes that follow those whose checksum is `crc` (0: none yet), so that
   dml__crc32c(dml__crc32c(0, a), b) is the checksum of a and b joined. Against accidents, not against
   forgers. Source: Castagnoli et al., IEEE Trans. Communications 41(6), 1993; bits and start as in RFC 3720,
   B.4. */
DML__LOCAL uint32_t dml__crc32c(uint32_t crc, const void *data, size_t bytes);

#endif
