/* wire.h: what goes over a connection, byte by byte. Everything is little-endian and of fixed size. Encoders
   fill exactly the bytes given; decoders take any bytes at all and say false to what can't be ours. */
#ifndef DML_NET_WIRE_H
#define DML_NET_WIRE_H

#include "base/platform.h"
#include "base/status.h"

#include <string.h>

#define DML__WIRE_VERSION 1

/* ---- messages: "dml", a letter that says of what kind, a version; then whatever the kind has ---- */

/* A place in a message; each put or get moves it on. */
typedef struct dml__wire_writer {
    uint8_t *at;
} dml__wire_writer;
typedef struct dml__wire_reader {
    const uint8_t *at;
} dml__wire_reader;

static inline void dml__wire_put(dml__wire_writer *writer, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) *writer->at++ = (uint8_t)(value >> (8 * i));
}

static inline void dml__wire_put_bytes(dml__wire_writer *writer, const void *data, size_t bytes)
{
    memcpy(writer->at, data, bytes);
    writer->at += bytes;
}

static inline uint64_t dml__wire_get(dml__wire_reader *reader, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)*reader->at++ << (8 * i);
    return value;
}

/* A 32-bit signed number. */
static inline int dml__wire_get_int(dml__wire_reader *reader)
{
    const uint32_t value = (uint32_t)dml__wire_get(reader, 4);
    return value <= 0x7fffffffu ? (int)value : -(int)(0xffffffffu - value) - 1;
}

static inline void dml__wire_get_bytes(dml__wire_reader *reader, void *data, size_t bytes)
{
    memcpy(data, reader->at, bytes);
    reader->at += bytes;
}

/* Clears the message (bytes) and begins it: 6 bytes. */
DML__LOCAL dml__wire_writer dml__begin_message(uint8_t *out, size_t bytes, char kind, int version);

/* The version, or -1 if this isn't such a message; at least 6 bytes. */
DML__LOCAL int dml__open_message(const uint8_t *in, char kind, dml__wire_reader *reader);

/* ---- on the control channel ---- */

/* Of the kinds of messages one is the rendezvous' own; the others, and what is in them, are the business of
   the floor above. */
#define DML__ADDRESSES 1     /* of ranks rank, rank + 1, ... */
#define DML__CONTROL_KINDS 2 /* the first of the others', up to 255 */

#define DML__CONTROL_BYTES 512
#define DML__CONTROL_BODY 480
typedef struct dml__control {
    int kind; /* from 1 */
    int rank;
    dml_status status;
    int bytes; /* of the body */
    uint8_t body[DML__CONTROL_BODY];
} dml__control;
DML__LOCAL void dml__encode_control(const dml__control *control, uint8_t out[DML__CONTROL_BYTES]);
DML__LOCAL bool dml__decode_control(const uint8_t in[DML__CONTROL_BYTES], dml__control *control);

/* A sentence as the body, cut to its size less one, and back: without anything that a terminal would obey. */
DML__LOCAL void dml__set_control_text(dml__control *control, const char *text);
DML__LOCAL void dml__control_text(const dml__control *control, char text[DML__CONTROL_BODY]);

/* Addresses as the body, at most DML__ADDRESSES_AT_ONCE of them. */
#define DML__ADDRESSES_AT_ONCE 20
typedef struct dml__endpoint {
    uint8_t ip[16]; /* of IPv4, the first 4 */
    uint16_t port;
    uint8_t family; /* 4 or 6 */
} dml__endpoint;
DML__LOCAL void dml__set_control_addresses(dml__control *control, const dml__endpoint *endpoints, int count);

/* How many they are, or -1 if these are none. */
DML__LOCAL int dml__control_addresses(const dml__control *control,
                                      dml__endpoint endpoints[DML__ADDRESSES_AT_ONCE]);

/* ---- the handshake ---- */

/* The handshake of each connection: the accepting side sends a challenge, the connecting side a hello, the
   accepting side a welcome, or a refusal in its form. With a key, hello and welcome end in HMACs over
   everything so far, so that either side proves that it has the key, that it speaks now, to whom, and in
   which role; and so does a refusal of one that has proved itself. */
#define DML__NONCE_BYTES 32
#define DML__SESSION_BYTES 16
#define DML__MAC_BYTES 32

#define DML__CHALLENGE_BYTES 48
typedef struct dml__challenge {
    uint8_t nonce[DML__NONCE_BYTES];
} dml__challenge;
DML__LOCAL void dml__encode_challenge(const dml__challenge *challenge, uint8_t out[DML__CHALLENGE_BYTES]);
DML__LOCAL bool dml__decode_challenge(const uint8_t in[DML__CHALLENGE_BYTES], dml__challenge *challenge);

#define DML__HELLO_BYTES 128
typedef struct dml__hello {
    int version;
    bool has_key;
    int channel;  /* a dml__channel */
    int from, to; /* ranks */
    int world;
    uint16_t port; /* where `from` listens; 0: nowhere */
    uint32_t segment_bytes, max_requests;
    uint8_t session[DML__SESSION_BYTES]; /* zero in the first connection to rank 0, which answers with it */
    uint8_t nonce[DML__NONCE_BYTES];
    uint8_t mac[DML__MAC_BYTES];
} dml__hello;
DML__LOCAL void dml__encode_hello(const dml__hello *hello, uint8_t out[DML__HELLO_BYTES]);
DML__LOCAL bool dml__decode_hello(const uint8_t in[DML__HELLO_BYTES], dml__hello *hello);

/* X(NAME, its hello was authentic: the job is at fault, not a stranger). Up to WRONG_KEY nobody has proved
   anything. */
#define DML__VERDICT_LIST(X)                                                                                 \
    X(WELCOME, true)                                                                                         \
    X(WRONG_VERSION, false)                                                                                  \
    X(NEEDS_KEY, false)                                                                                      \
    X(HAS_NO_KEY, false)                                                                                     \
    X(WRONG_KEY, false)                                                                                      \
    X(WRONG_SESSION, false)                                                                                  \
    X(WRONG_WORLD, true)                                                                                     \
    X(WRONG_RANK, true)                                                                                      \
    X(RANK_TAKEN, true)                                                                                      \
    X(WRONG_SEGMENT, true)                                                                                   \
    X(WRONG_REQUESTS, true)

typedef enum dml__verdict {
#define DML__VERDICT_ENUM(NAME, authentic) DML__VERDICT_##NAME,
    DML__VERDICT_LIST(DML__VERDICT_ENUM)
#undef DML__VERDICT_ENUM
        DML__VERDICT_COUNT
} dml__verdict;

#define DML__WELCOME_BYTES 96
typedef struct dml__welcome {
    int version;
    dml__verdict verdict;
    int rank, world; /* of the accepting side */
    uint32_t segment_bytes, max_requests;
    uint8_t session[DML__SESSION_BYTES];
    uint8_t mac[DML__MAC_BYTES];
} dml__welcome;
DML__LOCAL void dml__encode_welcome(const dml__welcome *welcome, uint8_t out[DML__WELCOME_BYTES]);
DML__LOCAL bool dml__decode_welcome(const uint8_t in[DML__WELCOME_BYTES], dml__welcome *welcome);

/* The MACs, over the encoded messages; the mac fields at their ends are left out where they are the result.
 */
DML__LOCAL void dml__hello_mac(const char *key, const uint8_t challenge[DML__CHALLENGE_BYTES],
                               const uint8_t hello[DML__HELLO_BYTES], uint8_t mac[DML__MAC_BYTES]);
DML__LOCAL void dml__welcome_mac(const char *key, const uint8_t challenge[DML__CHALLENGE_BYTES],
                                 const uint8_t hello[DML__HELLO_BYTES],
                                 const uint8_t welcome[DML__WELCOME_BYTES], uint8_t mac[DML__MAC_BYTES]);

#endif
