#ifndef DML_NET_NET_C
#define DML_NET_NET_C

#include "net/net.h"

#include "base/clock.h"

DML__LOCAL bool dml__send_control(dml__transport *transport, int rank, const dml__control *control,
                                  double until)
{
    uint8_t bytes[DML__CONTROL_BYTES];
    dml__span span;
    dml__encode_control(control, bytes);
    span.data = bytes;
    span.bytes = sizeof bytes;
    for (;;) {
        const ptrdiff_t sent = transport->calls->send(transport, rank, DML__CHANNEL_CONTROL, &span, 1);
        if (sent) return sent != DML__GONE;
        /* No room for 512 bytes: the other end hasn't read for long. Looked at again every millisecond. */
        if (dml_seconds() >= until) return false;
        transport->calls->wait(transport, NULL, 1e-3);
    }
}

#endif
