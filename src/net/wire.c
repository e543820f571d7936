#ifndef DML_NET_WIRE_C
#define DML_NET_WIRE_C

#include "net/wire.h"

#include <string.h>

#include "net/sha256.h"

/* The fourth byte of a message; the first three never change, so that any two versions can tell that they are
   two versions. */
#define DML__WIRE_CONTROL 'c'
#define DML__WIRE_CHALLENGE 'C'
#define DML__WIRE_HELLO 'H'
#define DML__WIRE_WELCOME 'W'

DML__LOCAL dml__wire_writer dml__begin_message(uint8_t *out, size_t bytes, char kind, int version)
{
    dml__wire_writer writer;
    memset(out, 0, bytes);
    writer.at = out;
    dml__wire_put_bytes(&writer, "dml", 3);
    dml__wire_put(&writer, (uint8_t)kind, 1);
    dml__wire_put(&writer, (uint64_t)version, 2);
    return writer;
}

DML__LOCAL int dml__open_message(const uint8_t *in, char kind, dml__wire_reader *reader)
{
    reader->at = in + 4;
    if (memcmp(in, "dml", 3) != 0 || in[3] != (uint8_t)kind) return -1;
    return (int)dml__wire_get(reader, 2);
}

/* ---- control ----
   0 "dml" 3 'c' 4 version:2 6 kind:1 7 status:1 8 rank:4 12 bytes:4 16 zero:16 32 body:480 */

DML__LOCAL void dml__encode_control(const dml__control *control, uint8_t out[DML__CONTROL_BYTES])
{
    dml__wire_writer writer =
        dml__begin_message(out, DML__CONTROL_BYTES, DML__WIRE_CONTROL, DML__WIRE_VERSION);
    DML_ASSERT(control->bytes >= 0 && control->bytes <= DML__CONTROL_BODY);
    dml__wire_put(&writer, (uint64_t)control->kind, 1);
    dml__wire_put(&writer, (uint64_t)control->status, 1);
    dml__wire_put(&writer, (uint64_t)(uint32_t)control->rank, 4);
    dml__wire_put(&writer, (uint64_t)control->bytes, 4);
    memcpy(out + DML__CONTROL_BYTES - DML__CONTROL_BODY, control->body, (size_t)control->bytes);
}

DML__LOCAL bool dml__decode_control(const uint8_t in[DML__CONTROL_BYTES], dml__control *control)
{
    dml__wire_reader reader;
    dml__endpoint endpoints[DML__ADDRESSES_AT_ONCE];
    memset(control, 0, sizeof *control);
    if (dml__open_message(in, DML__WIRE_CONTROL, &reader) != DML__WIRE_VERSION) return false;
    const uint64_t kind = dml__wire_get(&reader, 1), status = dml__wire_get(&reader, 1);
    control->rank = dml__wire_get_int(&reader);
    const uint64_t bytes = dml__wire_get(&reader, 4);
    if (kind < DML__ADDRESSES || status >= DML__STATUS_COUNT || bytes > DML__CONTROL_BODY) return false;
    control->kind = (int)kind;
    control->status = (dml_status)status;
    control->bytes = (int)bytes;
    memcpy(control->body, in + DML__CONTROL_BYTES - DML__CONTROL_BODY, (size_t)bytes);
    return kind != DML__ADDRESSES || dml__control_addresses(control, endpoints) >= 0;
}

DML__LOCAL void dml__set_control_text(dml__control *control, const char *text)
{
    const size_t bytes = strlen(text);
    control->bytes = bytes < DML__CONTROL_BODY ? (int)bytes : DML__CONTROL_BODY - 1;
    memcpy(control->body, text, (size_t)control->bytes);
}

DML__LOCAL void dml__control_text(const dml__control *control, char text[DML__CONTROL_BODY])
{
    const size_t bytes =
        (size_t)(control->bytes < DML__CONTROL_BODY ? control->bytes : DML__CONTROL_BODY - 1);
    memcpy(text, control->body, bytes);
    text[bytes] = 0;
    /* Ends up in somebody's terminal. */
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
}

/* Of an address: family:1 zero:1 port:2 ip:16. */
#define DML__ENDPOINT_BYTES 20

DML__LOCAL void dml__set_control_addresses(dml__control *control, const dml__endpoint *endpoints, int count)
{
    dml__wire_writer writer;
    DML_ASSERT(count <= DML__ADDRESSES_AT_ONCE);
    writer.at = control->body;
    for (int i = 0; i < count; i++) {
        dml__wire_put(&writer, endpoints[i].family, 2);
        dml__wire_put(&writer, endpoints[i].port, 2);
        dml__wire_put_bytes(&writer, endpoints[i].ip, 16);
    }
    control->bytes = DML__ENDPOINT_BYTES * count;
}

DML__LOCAL int dml__control_addresses(const dml__control *control,
                                      dml__endpoint endpoints[DML__ADDRESSES_AT_ONCE])
{
    const int count = control->bytes / DML__ENDPOINT_BYTES;
    dml__wire_reader reader;
    if (control->bytes % DML__ENDPOINT_BYTES || count > DML__ADDRESSES_AT_ONCE) return -1;
    reader.at = control->body;
    for (int i = 0; i < count; i++) {
        const uint64_t family = dml__wire_get(&reader, 2);
        if (family != 4 && family != 6) return -1;
        endpoints[i].family = (uint8_t)family;
        endpoints[i].port = (uint16_t)dml__wire_get(&reader, 2);
        dml__wire_get_bytes(&reader, endpoints[i].ip, 16);
    }
    return count;
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
   24 segment_bytes:4 28 max_requests:4 32 session:16 48 nonce:32 80 zero:16 96 mac:32 */
DML__LOCAL void dml__encode_hello(const dml__hello *hello, uint8_t out[DML__HELLO_BYTES])
{
    dml__wire_writer writer = dml__begin_message(out, DML__HELLO_BYTES, DML__WIRE_HELLO, hello->version);
    dml__wire_put(&writer, hello->has_key, 1);
    dml__wire_put(&writer, (uint64_t)hello->channel, 1);
    dml__wire_put(&writer, (uint64_t)(uint32_t)hello->from, 4);
    dml__wire_put(&writer, (uint64_t)(uint32_t)hello->to, 4);
    dml__wire_put(&writer, (uint64_t)(uint32_t)hello->world, 4);
    dml__wire_put(&writer, hello->port, 4);
    dml__wire_put(&writer, hello->segment_bytes, 4);
    dml__wire_put(&writer, hello->max_requests, 4);
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
    hello->segment_bytes = (uint32_t)dml__wire_get(&reader, 4);
    hello->max_requests = (uint32_t)dml__wire_get(&reader, 4);
    dml__wire_get_bytes(&reader, hello->session, DML__SESSION_BYTES);
    dml__wire_get_bytes(&reader, hello->nonce, DML__NONCE_BYTES);
    memcpy(hello->mac, in + DML__HELLO_BYTES - DML__MAC_BYTES, DML__MAC_BYTES);
    return true;
}

/* 0 "dml" 3 'W' 4 version:2 6 verdict:2 8 rank:4 12 world:4 16 segment_bytes:4 20 max_requests:4
   24 session:16 40 zero:24 64 mac:32 */
DML__LOCAL void dml__encode_welcome(const dml__welcome *welcome, uint8_t out[DML__WELCOME_BYTES])
{
    dml__wire_writer writer =
        dml__begin_message(out, DML__WELCOME_BYTES, DML__WIRE_WELCOME, welcome->version);
    dml__wire_put(&writer, (uint64_t)welcome->verdict, 2);
    dml__wire_put(&writer, (uint64_t)(uint32_t)welcome->rank, 4);
    dml__wire_put(&writer, (uint64_t)(uint32_t)welcome->world, 4);
    dml__wire_put(&writer, welcome->segment_bytes, 4);
    dml__wire_put(&writer, welcome->max_requests, 4);
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
    welcome->segment_bytes = (uint32_t)dml__wire_get(&reader, 4);
    welcome->max_requests = (uint32_t)dml__wire_get(&reader, 4);
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
