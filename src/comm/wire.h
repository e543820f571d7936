/* wire.h: what goes over a connection, byte by byte. Everything is little-endian and of fixed size. Encoders
   fill exactly the bytes given; decoders take any bytes at all and say false to what can't be ours. */
#ifndef DML_COMM_WIRE_H
#define DML_COMM_WIRE_H

#include "base/dtype.h"
#include "base/platform.h"
#include "base/status.h"
#include "comm/comm.h"

#define DML__WIRE_VERSION 1

/* The operations. X(NAME, "name", takes data, takes a reduce op, what its root is called or NULL). The
   numbers go over the wire: append, never reorder. */
#define DML__COMM_OPERATION_LIST(X)                                                                          \
    X(ALL_REDUCE, "all_reduce", true, true, NULL)                                                            \
    X(BROADCAST, "broadcast", true, false, "root")                                                           \
    X(ALL_GATHER, "all_gather", true, false, NULL)                                                           \
    X(REDUCE_SCATTER, "reduce_scatter", true, true, NULL)                                                    \
    X(BARRIER, "barrier", false, false, NULL)                                                                \
    X(SEND, "send", true, false, "to")                                                                       \
    X(RECEIVE, "receive", true, false, "from")                                                               \
    X(RENDEZVOUS, "dml_comm_open", false, false, NULL)

typedef enum dml__comm_operation {
#define DML__COMM_OPERATION_ENUM(NAME, name, data, reduce, root) DML__CALL_##NAME,
    DML__COMM_OPERATION_LIST(DML__COMM_OPERATION_ENUM)
#undef DML__COMM_OPERATION_ENUM
        DML__COMM_OPERATION_COUNT
} dml__comm_operation;

/* How a collective goes about it; part of what ranks must agree on. */
typedef enum dml__comm_algorithm {
    DML__BY_DIRECT,
    DML__BY_RING,
    DML__BY_CHAIN,
    DML__BY_DISSEMINATION
} dml__comm_algorithm;

/* One call, as every rank that takes part in it sees it. */
typedef struct dml__signature {
    dml__comm_operation operation;
    dml_dtype dtype;
    dml_reduce_op reduce;
    int root; /* or the other rank of a send or receive */
    uint64_t count;
} dml__signature;

/* "all_reduce(f32, 100, sum)", cut to the size of the buffer; returns it. */
#define DML__SIGNATURE_TEXT 96
DML__LOCAL const char *dml__signature_text(const dml__signature *signature, char text[DML__SIGNATURE_TEXT]);

/* In front of each piece of a collective. */
#define DML__PIECE_HEADER_BYTES 48
typedef struct dml__piece_header {
    dml__signature signature;
    dml__comm_algorithm algorithm;
    uint64_t sequence; /* how many collectives came before */
    uint64_t piece;    /* of this collective, between these two ranks */
    uint32_t bytes;    /* that follow */
} dml__piece_header;
DML__LOCAL void dml__encode_piece_header(const dml__piece_header *header,
                                         uint8_t out[DML__PIECE_HEADER_BYTES]);
DML__LOCAL bool dml__decode_piece_header(const uint8_t in[DML__PIECE_HEADER_BYTES],
                                         dml__piece_header *header);

/* Elements are little-endian on the wire, as they are in the memory of most machines; on the others they are
   converted, each way. `to` and `from` may be the same. */
static inline bool dml__wire_is_native(void)
{
#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__)
    return __BYTE_ORDER__ != __ORDER_BIG_ENDIAN__;
#else
    const uint16_t one = 1;
    return *(const uint8_t *)&one == 1;
#endif
}
DML__LOCAL void dml__to_wire(void *to, const void *from, size_t count, dml_dtype dtype);
DML__LOCAL void dml__from_wire(void *to, const void *from, size_t count, dml_dtype dtype);

/* On the control channel. */
typedef enum dml__control_kind {
    DML__ABORT = 1, /* the job is over: rank is to blame, status and text say why */
    DML__WAITING,   /* gave up waiting for rank, in the call of signature */
    DML__GOODBYE,   /* closes its communicator in good order */
    DML__ADDRESSES  /* of ranks rank, rank + 1, ... */
} dml__control_kind;

#define DML__CONTROL_BYTES 512
#define DML__CONTROL_TEXT 480
#define DML__ADDRESSES_AT_ONCE 20
typedef struct dml__endpoint {
    uint8_t ip[16]; /* of IPv4, the first 4 */
    uint16_t port;
    uint8_t family; /* 4 or 6 */
} dml__endpoint;
typedef struct dml__control {
    dml__control_kind kind;
    int rank;
    dml_status status;
    dml__signature signature;
    char text[DML__CONTROL_TEXT];
    int endpoints;
    dml__endpoint endpoint[DML__ADDRESSES_AT_ONCE];
} dml__control;
DML__LOCAL void dml__encode_control(const dml__control *control, uint8_t out[DML__CONTROL_BYTES]);
DML__LOCAL bool dml__decode_control(const uint8_t in[DML__CONTROL_BYTES], dml__control *control);

/* The handshake of each connection: the accepting side sends a challenge, the connecting side a hello, the
   accepting side a welcome. With a key, hello and welcome end in HMACs over everything so far, so that either
   side proves that it has the key, that it speaks now, to whom, and in which role. */
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
    uint64_t segment_bytes;
    uint8_t session[DML__SESSION_BYTES]; /* zero in the first connection to rank 0, which answers with it */
    uint8_t nonce[DML__NONCE_BYTES];
    uint8_t mac[DML__MAC_BYTES];
} dml__hello;
DML__LOCAL void dml__encode_hello(const dml__hello *hello, uint8_t out[DML__HELLO_BYTES]);
DML__LOCAL bool dml__decode_hello(const uint8_t in[DML__HELLO_BYTES], dml__hello *hello);

/* X(NAME, its hello was authentic: the job is at fault, not a stranger) */
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
    X(WRONG_SEGMENT, true)

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
    uint64_t segment_bytes;
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
