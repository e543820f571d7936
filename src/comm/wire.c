#ifndef DML_COMM_WIRE_C
#define DML_COMM_WIRE_C

#include "comm/wire.h"

#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "comm/sha256.h"

/* What the first four bytes of each kind of message are; the first three never change, so that any two
   versions can tell that they are two versions. */
typedef enum dml__wire_kind {
    DML__WIRE_HEADER = 'h',
    DML__WIRE_CONTROL = 'c',
    DML__WIRE_CHALLENGE = 'C',
    DML__WIRE_HELLO = 'H',
    DML__WIRE_WELCOME = 'W'
} dml__wire_kind;

/* A place in a message; each put or get moves it on. */
typedef struct dml__wire_writer {
    uint8_t *at;
} dml__wire_writer;
typedef struct dml__wire_reader {
    const uint8_t *at;
} dml__wire_reader;

static void dml__wire_put(dml__wire_writer *writer, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) *writer->at++ = (uint8_t)(value >> (8 * i));
}

static void dml__wire_put_bytes(dml__wire_writer *writer, const void *data, size_t bytes)
{
    memcpy(writer->at, data, bytes);
    writer->at += bytes;
}

static uint64_t dml__wire_get(dml__wire_reader *reader, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)*reader->at++ << (8 * i);
    return value;
}

/* A 32-bit signed number. */
static int dml__wire_get_int(dml__wire_reader *reader)
{
    const uint32_t value = (uint32_t)dml__wire_get(reader, 4);
    return value <= 0x7fffffffu ? (int)value : -(int)(0xffffffffu - value) - 1;
}

static void dml__wire_get_bytes(dml__wire_reader *reader, void *data, size_t bytes)
{
    memcpy(data, reader->at, bytes);
    reader->at += bytes;
}

/* Clears the message and begins it: "dml", its kind, the version. */
static dml__wire_writer dml__begin_message(uint8_t *out, size_t bytes, dml__wire_kind kind, int version)
{
    dml__wire_writer writer;
    memset(out, 0, bytes);
    writer.at = out;
    dml__wire_put_bytes(&writer, "dml", 3);
    dml__wire_put(&writer, (uint64_t)kind, 1);
    dml__wire_put(&writer, (uint64_t)version, 2);
    return writer;
}

/* The version, or -1 if this isn't such a message. */
static int dml__open_message(const uint8_t *in, dml__wire_kind kind, dml__wire_reader *reader)
{
    reader->at = in + 4;
    if (memcmp(in, "dml", 3) != 0 || in[3] != (uint8_t)kind) return -1;
    return (int)dml__wire_get(reader, 2);
}

/* ---- signatures: 16 bytes ---- */

static void dml__put_signature(dml__wire_writer *writer, const dml__signature *signature)
{
    dml__wire_put(writer, (uint64_t)signature->operation, 1);
    dml__wire_put(writer, (uint64_t)signature->dtype, 1);
    dml__wire_put(writer, (uint64_t)signature->reduce, 2);
    dml__wire_put(writer, (uint64_t)(uint32_t)signature->root, 4);
    dml__wire_put(writer, signature->count, 8);
}

static bool dml__get_signature(dml__wire_reader *reader, dml__signature *signature)
{
    const uint64_t operation = dml__wire_get(reader, 1), dtype = dml__wire_get(reader, 1),
                   reduce = dml__wire_get(reader, 2);
    signature->root = dml__wire_get_int(reader);
    signature->count = dml__wire_get(reader, 8);
    if (operation >= DML__COMM_OPERATION_COUNT || dtype >= DML__DTYPE_COUNT || reduce >= DML__REDUCE_OP_COUNT)
        return false;
    signature->operation = (dml__comm_operation)operation;
    signature->dtype = (dml_dtype)dtype;
    signature->reduce = (dml_reduce_op)reduce;
    return true;
}

DML__LOCAL const char *dml__signature_text(const dml__signature *signature, char text[DML__SIGNATURE_TEXT])
{
    static const char *const reduce_names[] = { "sum", "mean", "min", "max", "prod" };
    static const struct {
        const char *name;
        bool data, reduce;
        const char *root;
    } operations[] = {
#define DML__COMM_OPERATION_TEXT(NAME, name, data, reduce, root) { name, data, reduce, root },
        DML__COMM_OPERATION_LIST(DML__COMM_OPERATION_TEXT)
#undef DML__COMM_OPERATION_TEXT
    };
    const unsigned operation = (unsigned)signature->operation, reduce = (unsigned)signature->reduce;
    if (operation >= DML__COMM_OPERATION_COUNT) {
        snprintf(text, DML__SIGNATURE_TEXT, "?()");
    } else if (!operations[operation].data) {
        snprintf(text, DML__SIGNATURE_TEXT, "%s()", operations[operation].name);
    } else {
        char last[32] = "";
        if (operations[operation].reduce)
            snprintf(last, sizeof last, ", %s", reduce < DML__REDUCE_OP_COUNT ? reduce_names[reduce] : "?");
        else if (operations[operation].root)
            snprintf(last, sizeof last, ", %s %d", operations[operation].root, signature->root);
        snprintf(text, DML__SIGNATURE_TEXT, "%s(%s, %llu%s)", operations[operation].name,
                 dml_dtype_name(signature->dtype), (unsigned long long)signature->count, last);
    }
    return text;
}

/* ---- headers ----
   0 "dml" 3 'h' 4 version:2 6 algorithm:2 8 signature:16 24 sequence:8 32 piece:8 40 bytes:4 44 zero:4 */

DML__LOCAL void dml__encode_piece_header(const dml__piece_header *header,
                                         uint8_t out[DML__PIECE_HEADER_BYTES])
{
    dml__wire_writer writer =
        dml__begin_message(out, DML__PIECE_HEADER_BYTES, DML__WIRE_HEADER, DML__WIRE_VERSION);
    dml__wire_put(&writer, (uint64_t)header->algorithm, 2);
    dml__put_signature(&writer, &header->signature);
    dml__wire_put(&writer, header->sequence, 8);
    dml__wire_put(&writer, header->piece, 8);
    dml__wire_put(&writer, header->bytes, 4);
}

DML__LOCAL bool dml__decode_piece_header(const uint8_t in[DML__PIECE_HEADER_BYTES], dml__piece_header *header)
{
    dml__wire_reader reader;
    if (dml__open_message(in, DML__WIRE_HEADER, &reader) != DML__WIRE_VERSION) return false;
    const uint64_t algorithm = dml__wire_get(&reader, 2);
    if (algorithm > DML__BY_DISSEMINATION) return false;
    header->algorithm = (dml__comm_algorithm)algorithm;
    if (!dml__get_signature(&reader, &header->signature)) return false;
    header->sequence = dml__wire_get(&reader, 8);
    header->piece = dml__wire_get(&reader, 8);
    header->bytes = (uint32_t)dml__wire_get(&reader, 4);
    return true;
}

/* ---- elements ---- */

DML__LOCAL void dml__to_wire(void *to, const void *from, size_t count, dml_dtype dtype)
{
    const size_t size = dml_dtype_size(dtype);
    uint8_t *out = (uint8_t *)to;
    const uint8_t *in = (const uint8_t *)from;
    DML_ASSERT(size == 1 || size == 2 || size == 4 || size == 8);
    for (size_t i = 0; i < count; i++, in += size, out += size) {
        uint16_t quarter;
        uint32_t half;
        uint64_t whole;
        switch (size) {
        case 2:
            memcpy(&quarter, in, 2);
            dml__store16(out, quarter);
            break;
        case 4:
            memcpy(&half, in, 4);
            dml__store32(out, half);
            break;
        case 8:
            memcpy(&whole, in, 8);
            dml__store64(out, whole);
            break;
        default: *out = *in; break;
        }
    }
}

DML__LOCAL void dml__from_wire(void *to, const void *from, size_t count, dml_dtype dtype)
{
    const size_t size = dml_dtype_size(dtype);
    uint8_t *out = (uint8_t *)to;
    const uint8_t *in = (const uint8_t *)from;
    DML_ASSERT(size == 1 || size == 2 || size == 4 || size == 8);
    for (size_t i = 0; i < count; i++, in += size, out += size) {
        uint16_t quarter;
        uint32_t half;
        uint64_t whole;
        switch (size) {
        case 2:
            quarter = dml__load16(in);
            memcpy(out, &quarter, 2);
            break;
        case 4:
            half = dml__load32(in);
            memcpy(out, &half, 4);
            break;
        case 8:
            whole = dml__load64(in);
            memcpy(out, &whole, 8);
            break;
        default: *out = *in; break;
        }
    }
}

/* ---- control ----
   0 "dml" 3 'c' 4 version:2 6 kind:1 7 status:1 8 rank:4 12 endpoints:4 16 signature:16
   32 text:480, or endpoints of family:1 zero:1 port:2 ip:16 */

DML__LOCAL void dml__encode_control(const dml__control *control, uint8_t out[DML__CONTROL_BYTES])
{
    dml__wire_writer writer =
        dml__begin_message(out, DML__CONTROL_BYTES, DML__WIRE_CONTROL, DML__WIRE_VERSION);
    dml__wire_put(&writer, (uint64_t)control->kind, 1);
    dml__wire_put(&writer, (uint64_t)control->status, 1);
    dml__wire_put(&writer, (uint64_t)(uint32_t)control->rank, 4);
    dml__wire_put(&writer, (uint64_t)control->endpoints, 4);
    dml__put_signature(&writer, &control->signature);
    if (control->kind == DML__ADDRESSES) {
        for (int i = 0; i < control->endpoints; i++) {
            dml__wire_put(&writer, control->endpoint[i].family, 2);
            dml__wire_put(&writer, control->endpoint[i].port, 2);
            dml__wire_put_bytes(&writer, control->endpoint[i].ip, 16);
        }
    } else {
        dml__wire_put_bytes(&writer, control->text, strlen(control->text));
    }
}

DML__LOCAL bool dml__decode_control(const uint8_t in[DML__CONTROL_BYTES], dml__control *control)
{
    dml__wire_reader reader;
    memset(control, 0, sizeof *control);
    if (dml__open_message(in, DML__WIRE_CONTROL, &reader) != DML__WIRE_VERSION) return false;
    const uint64_t kind = dml__wire_get(&reader, 1), status = dml__wire_get(&reader, 1);
    control->rank = dml__wire_get_int(&reader);
    const uint64_t endpoints = dml__wire_get(&reader, 4);
    if (kind < DML__ABORT || kind > DML__ADDRESSES || status >= DML__STATUS_COUNT ||
        endpoints > DML__ADDRESSES_AT_ONCE || !dml__get_signature(&reader, &control->signature))
        return false;
    control->kind = (dml__control_kind)kind;
    control->status = (dml_status)status;
    control->endpoints = (int)endpoints;
    if (kind != DML__ADDRESSES) {
        dml__wire_get_bytes(&reader, control->text, DML__CONTROL_TEXT - 1);
        /* Ends up in somebody's terminal. */
        for (char *c = control->text; *c; c++)
            if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
        return true;
    }
    for (int i = 0; i < control->endpoints; i++) {
        const uint64_t family = dml__wire_get(&reader, 2);
        if (family != 4 && family != 6) return false;
        control->endpoint[i].family = (uint8_t)family;
        control->endpoint[i].port = (uint16_t)dml__wire_get(&reader, 2);
        dml__wire_get_bytes(&reader, control->endpoint[i].ip, 16);
    }
    return true;
}

/* ---- handshake ---- */

/* 0 "dml" 3 'C' 4 version:2 6 zero:10 16 nonce:32 */
DML__LOCAL void dml__encode_challenge(const dml__challenge *challenge, uint8_t out[DML__CHALLENGE_BYTES])
{
    dml__begin_message(out, DML__CHALLENGE_BYTES, DML__WIRE_CHALLENGE, DML__WIRE_VERSION);
    memcpy(out + 16, challenge->nonce, DML__NONCE_BYTES);
}

/* Any version will do: the hello tells the accepting side ours, and it answers which is wrong. */
DML__LOCAL bool dml__decode_challenge(const uint8_t in[DML__CHALLENGE_BYTES], dml__challenge *challenge)
{
    dml__wire_reader reader;
    if (dml__open_message(in, DML__WIRE_CHALLENGE, &reader) < 0) return false;
    memcpy(challenge->nonce, in + 16, DML__NONCE_BYTES);
    return true;
}

/* 0 "dml" 3 'H' 4 version:2 6 has_key:1 7 channel:1 8 from:4 12 to:4 16 world:4 20 port:2 22 zero:2
   24 segment_bytes:8 32 session:16 48 nonce:32 80 zero:16 96 mac:32 */
DML__LOCAL void dml__encode_hello(const dml__hello *hello, uint8_t out[DML__HELLO_BYTES])
{
    dml__wire_writer writer = dml__begin_message(out, DML__HELLO_BYTES, DML__WIRE_HELLO, hello->version);
    dml__wire_put(&writer, hello->has_key, 1);
    dml__wire_put(&writer, (uint64_t)hello->channel, 1);
    dml__wire_put(&writer, (uint64_t)(uint32_t)hello->from, 4);
    dml__wire_put(&writer, (uint64_t)(uint32_t)hello->to, 4);
    dml__wire_put(&writer, (uint64_t)(uint32_t)hello->world, 4);
    dml__wire_put(&writer, hello->port, 4);
    dml__wire_put(&writer, hello->segment_bytes, 8);
    dml__wire_put_bytes(&writer, hello->session, DML__SESSION_BYTES);
    dml__wire_put_bytes(&writer, hello->nonce, DML__NONCE_BYTES);
    memcpy(out + DML__HELLO_BYTES - DML__MAC_BYTES, hello->mac, DML__MAC_BYTES);
}

DML__LOCAL bool dml__decode_hello(const uint8_t in[DML__HELLO_BYTES], dml__hello *hello)
{
    dml__wire_reader reader;
    memset(hello, 0, sizeof *hello);
    hello->version = dml__open_message(in, DML__WIRE_HELLO, &reader);
    if (hello->version < 0) return false;
    hello->has_key = dml__wire_get(&reader, 1) != 0;
    hello->channel = (int)dml__wire_get(&reader, 1);
    hello->from = dml__wire_get_int(&reader);
    hello->to = dml__wire_get_int(&reader);
    hello->world = dml__wire_get_int(&reader);
    hello->port = (uint16_t)dml__wire_get(&reader, 4);
    hello->segment_bytes = dml__wire_get(&reader, 8);
    dml__wire_get_bytes(&reader, hello->session, DML__SESSION_BYTES);
    dml__wire_get_bytes(&reader, hello->nonce, DML__NONCE_BYTES);
    memcpy(hello->mac, in + DML__HELLO_BYTES - DML__MAC_BYTES, DML__MAC_BYTES);
    return true;
}

/* 0 "dml" 3 'W' 4 version:2 6 verdict:2 8 rank:4 12 world:4 16 segment_bytes:8 24 session:16 40 zero:24
   64 mac:32 */
DML__LOCAL void dml__encode_welcome(const dml__welcome *welcome, uint8_t out[DML__WELCOME_BYTES])
{
    dml__wire_writer writer =
        dml__begin_message(out, DML__WELCOME_BYTES, DML__WIRE_WELCOME, welcome->version);
    dml__wire_put(&writer, (uint64_t)welcome->verdict, 2);
    dml__wire_put(&writer, (uint64_t)(uint32_t)welcome->rank, 4);
    dml__wire_put(&writer, (uint64_t)(uint32_t)welcome->world, 4);
    dml__wire_put(&writer, welcome->segment_bytes, 8);
    dml__wire_put_bytes(&writer, welcome->session, DML__SESSION_BYTES);
    memcpy(out + DML__WELCOME_BYTES - DML__MAC_BYTES, welcome->mac, DML__MAC_BYTES);
}

DML__LOCAL bool dml__decode_welcome(const uint8_t in[DML__WELCOME_BYTES], dml__welcome *welcome)
{
    dml__wire_reader reader;
    memset(welcome, 0, sizeof *welcome);
    welcome->version = dml__open_message(in, DML__WIRE_WELCOME, &reader);
    if (welcome->version < 0) return false;
    const uint64_t verdict = dml__wire_get(&reader, 2);
    if (verdict >= DML__VERDICT_COUNT) return false;
    welcome->verdict = (dml__verdict)verdict;
    welcome->rank = dml__wire_get_int(&reader);
    welcome->world = dml__wire_get_int(&reader);
    welcome->segment_bytes = dml__wire_get(&reader, 8);
    dml__wire_get_bytes(&reader, welcome->session, DML__SESSION_BYTES);
    memcpy(welcome->mac, in + DML__WELCOME_BYTES - DML__MAC_BYTES, DML__MAC_BYTES);
    return true;
}

DML__LOCAL void dml__hello_mac(const char *key, const uint8_t challenge[DML__CHALLENGE_BYTES],
                               const uint8_t hello[DML__HELLO_BYTES], uint8_t mac[DML__MAC_BYTES])
{
    dml__hmac hmac;
    dml__hmac_begin(&hmac, key, strlen(key));
    dml__hmac_add(&hmac, "dml: I connect", 14);
    dml__hmac_add(&hmac, challenge, DML__CHALLENGE_BYTES);
    dml__hmac_add(&hmac, hello, DML__HELLO_BYTES - DML__MAC_BYTES);
    dml__hmac_end(&hmac, mac);
}

DML__LOCAL void dml__welcome_mac(const char *key, const uint8_t challenge[DML__CHALLENGE_BYTES],
                                 const uint8_t hello[DML__HELLO_BYTES],
                                 const uint8_t welcome[DML__WELCOME_BYTES], uint8_t mac[DML__MAC_BYTES])
{
    dml__hmac hmac;
    dml__hmac_begin(&hmac, key, strlen(key));
    dml__hmac_add(&hmac, "dml: I accept.", 14);
    dml__hmac_add(&hmac, challenge, DML__CHALLENGE_BYTES);
    dml__hmac_add(&hmac, hello, DML__HELLO_BYTES);
    dml__hmac_add(&hmac, welcome, DML__WELCOME_BYTES - DML__MAC_BYTES);
    dml__hmac_end(&hmac, mac);
}

#endif
