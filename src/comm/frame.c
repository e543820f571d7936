#ifndef DML_COMM_FRAME_C
#define DML_COMM_FRAME_C

#include "comm/frame.h"

#include <string.h>

#include "base/bytes.h"

/* Headers are written in words of 64 bits, and copied and compared so: what is read in larger pieces than it
   was written in has to wait until it is in the cache. */
static uint64_t dml__two_words(uint32_t low, uint32_t high)
{
    return low | (uint64_t)high << 32;
}

/* 0 operation:1 1 dtype:1 2 reduce:2 4 root:4 8 count:8 16 variant:4 */
DML__LOCAL void dml__encode_signature(const dml__signature *signature, uint8_t out[DML__SIGNATURE_BYTES])
{
    const uint32_t what = (uint32_t)(uint8_t)signature->operation | (uint32_t)(uint8_t)signature->dtype << 8 |
                          (uint32_t)(uint16_t)signature->reduce << 16;
    dml__store64(out, dml__two_words(what, (uint32_t)signature->root));
    dml__store64(out + 8, signature->count);
    dml__store32(out + 16, signature->variant);
}

static int dml__as_int(uint32_t value)
{
    return value <= 0x7fffffffu ? (int)value : -(int)(0xffffffffu - value) - 1;
}

DML__LOCAL bool dml__decode_signature(const uint8_t in[DML__SIGNATURE_BYTES], dml__signature *signature)
{
    const uint16_t reduce = dml__load16(in + 2);
    if (in[0] >= DML__COMM_OPERATION_COUNT || in[1] >= DML__DTYPE_COUNT ||
        reduce >= DML__REDUCE_OP_COUNT + DML__MOST_FUNCTIONS)
        return false;
    signature->operation = (dml__comm_operation)in[0];
    signature->dtype = (dml_dtype)in[1];
    signature->reduce = (dml_reduce_op)reduce;
    signature->root = dml__as_int(dml__load32(in + 4));
    signature->count = dml__load64(in + 8);
    signature->variant = dml__load32(in + 16);
    return true;
}

/* 0 "dm" 2 kind:1 3 algorithm:1 4 communicator:4 8 signature:20, of sends and receives with the tag for the
   variant 28 message's lower bytes:4 32 sequence:8 40 offset:6 46 message's upper bytes:2 48 bytes:4
   52 consumed:4 */
DML__LOCAL void dml__encode_frame(const dml__frame *frame, uint8_t out[DML__FRAME_BYTES])
{
    const uint32_t magic =
        'd' | 'm' << 8 | (uint32_t)frame->kind << 16 | ((uint32_t)frame->algorithm % 256) << 24;
    dml__store64(out, dml__two_words(magic, frame->communicator));
    dml__encode_signature(&frame->signature, out + 8);
    const bool pair = dml__is_pair(frame->signature.operation);
    dml__store64(out + 24, dml__two_words(pair ? (uint32_t)frame->tag : frame->signature.variant,
                                          (uint32_t)frame->message));
    dml__store64(out + 32, frame->sequence);
    dml__store64(out + 40, frame->offset | frame->message >> 32 << 48);
    dml__store64(out + 48, dml__two_words(frame->bytes, frame->consumed));
}

DML__LOCAL bool dml__decode_frame(const uint8_t in[DML__FRAME_BYTES], dml__frame *frame)
{
    if (in[0] != 'd' || in[1] != 'm' || in[2] < DML__FRAME_EAGER || in[2] > DML__FRAME_CREDIT) return false;
    frame->kind = (dml__frame_kind)in[2];
    frame->algorithm = in[3] == 255 ? -1 : in[3];
    frame->communicator = dml__load32(in + 4);
    if (!dml__decode_signature(in + 8, &frame->signature)) return false;
    frame->tag = 0;
    if (dml__is_pair(frame->signature.operation)) {
        frame->tag = dml__as_int(frame->signature.variant);
        frame->signature.variant = DML__PLAIN;
    }
    frame->sequence = dml__load64(in + 32);
    frame->offset = dml__load64(in + 40) & (DML__MOST_OFFSET - 1);
    frame->message = dml__load32(in + 28) | (dml__load64(in + 40) >> 48) << 32;
    frame->bytes = dml__load32(in + 48);
    frame->consumed = dml__load32(in + 52);
    if (frame->bytes == 0) return true;
    return frame->bytes <= DML__MOST_PAYLOAD &&
           (frame->kind == DML__FRAME_EAGER || frame->kind == DML__FRAME_DATA);
}

DML__LOCAL bool dml__same_frame(const uint8_t expected[DML__FRAME_BYTES],
                                const uint8_t come[DML__FRAME_BYTES], uint32_t *consumed)
{
    uint64_t differs = 0;
    for (int at = 0; at < 48; at += 8) differs |= dml__load64(expected + at) ^ dml__load64(come + at);
    const uint64_t last = dml__load64(come + 48);
    *consumed = (uint32_t)(last >> 32);
    return !(differs | (uint32_t)(dml__load64(expected + 48) ^ last));
}

DML__LOCAL bool dml__wire_is_native(void)
{
    const uint16_t one = 1;
    return *(const uint8_t *)&one == 1;
}

DML__LOCAL void dml__swap_elements(void *to, const void *from, size_t count, dml_dtype dtype)
{
    const size_t size = dml_dtype_size(dtype);
    uint8_t *out = (uint8_t *)to;
    const uint8_t *in = (const uint8_t *)from;
    uint8_t turned[8];
    for (size_t i = 0; i < count; i++, in += size, out += size) {
        for (size_t b = 0; b < size; b++) turned[b] = in[size - 1 - b];
        memcpy(out, turned, size);
    }
}

#endif
