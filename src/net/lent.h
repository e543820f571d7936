/* lent.h: receiving, for a transport that lends: a copy of what is lent. */
#ifndef DML_NET_LENT_H
#define DML_NET_LENT_H

#include "base/copy.h"
#include "net/transport.h"

/* The `receive` of the data channel, by the transport's own lend and consume. */
static inline ptrdiff_t dml__receive_lent(dml__transport *transport, int rank, const dml__span *spans,
                                          int count)
{
    size_t got = 0, filled = 0; /* the second: of the span */
    for (int i = 0; i < count;) {
        const void *data = NULL;
        const size_t room = spans[i].bytes - filled;
        const ptrdiff_t lent = room ? transport->calls->lend(transport, rank, &data) : 0;
        if (room && lent <= 0) return got ? (ptrdiff_t)got : lent;
        const size_t bytes = (size_t)lent < room ? (size_t)lent : room;
        if (bytes) {
            dml__copy_bytes((uint8_t *)spans[i].data + filled, data, bytes);
            transport->calls->consume(transport, rank, bytes);
        }
        got += bytes;
        filled += bytes;
        if (filled == spans[i].bytes) i++, filled = 0;
    }
    return (ptrdiff_t)got;
}

#endif
