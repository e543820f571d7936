/* frame.h: what goes over a data stream: frames of a header and, of some kinds, a payload. */
#ifndef DML_COMM_FRAME_H
#define DML_COMM_FRAME_H

#include "base/platform.h"
#include "comm/call.h"

/* Messages are what steps send and receive; frames are how they travel. Frames between two ranks arrive in
   the order in which they were sent; those of several operations mix. */
typedef enum dml__frame_kind {
    DML__FRAME_EAGER = 1, /* a whole message that nobody may have asked for yet: it fits into what the
                             receiver keeps for such */
    DML__FRAME_ANNOUNCE,  /* there is a message, which waits for a grant. No payload */
    DML__FRAME_GRANT,     /* from the receiver: messages before `message` may come, and that one up to
                             `offset` bytes. No payload */
    DML__FRAME_DATA,      /* bytes of a message that was granted, from `offset` on */
    DML__FRAME_CREDIT     /* only for its `consumed`. No payload */
} dml__frame_kind;

/* With its payload and what the ring says of both, a frame of 64 bytes takes two lines of shared memory. */
#define DML__FRAME_BYTES 56
#define DML__MOST_PAYLOAD (1u << 30) /* bytes of a frame: as large as a segment may be */
#define DML__MOST_OFFSET ((uint64_t)1 << 48)

typedef struct dml__frame {
    dml__frame_kind kind;
    dml__signature signature; /* of the sender's call */
    int algorithm;            /* below 255; -1: none */
    int tag;
    uint32_t communicator;
    uint64_t message;  /* counted between these two ranks in this operation, in this direction; below 2^48 */
    uint64_t sequence; /* of the operation in its communicator; of sends: between these two ranks */
    uint64_t offset;   /* bytes; below DML__MOST_OFFSET */
    uint32_t bytes;    /* of payload, which is padded to a multiple of 8 */
    uint32_t consumed; /* bytes of eager frames and announcements from the other side that have been taken;
                          goes round */
} dml__frame;

DML__LOCAL void dml__encode_frame(const dml__frame *frame, uint8_t out[DML__FRAME_BYTES]);
DML__LOCAL bool dml__decode_frame(const uint8_t in[DML__FRAME_BYTES], dml__frame *frame);

/* Whether a frame that came is the expected one but for what it says of `consumed`. */
DML__LOCAL bool dml__same_frame(const uint8_t expected[DML__FRAME_BYTES],
                                const uint8_t come[DML__FRAME_BYTES], uint32_t *consumed);

/* Bytes that a payload of `bytes` takes in the stream. */
static inline size_t dml__padded(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* Elements are little-endian on the wire, as they are in the memory of most machines; on the others they are
   turned round, by the same function each way. `to` and `from` may be the same. */
DML__LOCAL bool dml__wire_is_native(void);
DML__LOCAL void dml__swap_elements(void *to, const void *from, size_t count, dml_dtype dtype);

/* A signature in 20 bytes, for frames and control messages. */
#define DML__SIGNATURE_BYTES 20
DML__LOCAL void dml__encode_signature(const dml__signature *signature, uint8_t out[DML__SIGNATURE_BYTES]);
DML__LOCAL bool dml__decode_signature(const uint8_t in[DML__SIGNATURE_BYTES], dml__signature *signature);

#endif
