/* The wire format and its cryptography: published vectors, round trips, and bytes that make no sense. */
#include "comm/handshake.h"
#include "comm/sha256.h"
#include "comm/wire.h"

#include "../test.h"

static void to_hex(const uint8_t *bytes, char hex[65])
{
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
}

static void check_hash(const char *text, size_t times, const char *want)
{
    dml__sha256 hash;
    uint8_t digest[32];
    char hex[65];
    dml__sha256_begin(&hash);
    for (size_t i = 0; i < times; i++) dml__sha256_add(&hash, text, strlen(text));
    dml__sha256_end(&hash, digest);
    to_hex(digest, hex);
    CHECK_STRING(hex, want);
}

/* NIST: FIPS 180-2 appendix B, and the empty message. */
static void sha256_vectors(void)
{
    check_hash("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_hash("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
               "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check_hash("a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void check_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes, const char *want)
{
    dml__hmac hmac;
    uint8_t mac[32];
    char hex[65];
    dml__hmac_begin(&hmac, key, key_bytes);
    dml__hmac_add(&hmac, data, bytes / 2);
    dml__hmac_add(&hmac, (const char *)data + bytes / 2, bytes - bytes / 2);
    dml__hmac_end(&hmac, mac);
    to_hex(mac, hex);
    CHECK_STRING(hex, want);
}

/* RFC 4231, test cases 1 to 4, 6 and 7. */
static void hmac_vectors(void)
{
    uint8_t key[131], data[50];
    memset(key, 0x0b, 20);
    check_hmac(key, 20, "Hi There", 8, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check_hmac("Jefe", 4, "what do ya want for nothing?", 28,
               "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    memset(data, 0xdd, sizeof data);
    check_hmac(key, 20, data, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    check_hmac(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
               "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    static const char text[] =
        "This is a test using a larger than block-size key and a larger than block-size data. The "
        "key needs to be hashed before being used by the HMAC algorithm.";
    check_hmac(key, 131, text, sizeof text - 1,
               "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
    for (int i = 0; i < 25; i++) key[i] = (uint8_t)(i + 1);
    memset(data, 0xcd, sizeof data);
    check_hmac(key, 25, data, 50, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
}

static void constant_time_comparison(void)
{
    uint8_t a[32] = { 0 }, b[32] = { 0 };
    CHECK(dml__equal_in_constant_time(a, b, 32));
    for (int i = 0; i < 32; i++) {
        b[i] = 0x80;
        CHECK(!dml__equal_in_constant_time(a, b, 32));
        b[i] = 0;
    }
}

static void header_bytes(void)
{
    dml__piece_header header, back;
    memset(&header, 0, sizeof header);
    header.signature.operation = DML__CALL_BROADCAST;
    header.signature.dtype = DML_I64;
    header.signature.reduce = DML_MAX;
    header.signature.root = -2;
    header.signature.count = 0x0123456789abcdefull;
    header.algorithm = DML__BY_CHAIN;
    header.sequence = 7;
    header.piece = 0x1122334455667788ull;
    header.bytes = 0xfedcba98u;
    /* The format is fixed: these bytes, on any machine. */
    static const uint8_t want[DML__PIECE_HEADER_BYTES] = {
        'd',  'm',  'l',  'h',  1,    0,    2,    0,    1,    3,    3,    0,    0xfe, 0xff, 0xff, 0xff,
        0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 7,    0,    0,    0,    0,    0,    0,    0,
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x98, 0xba, 0xdc, 0xfe, 0,    0,    0,    0,
    };
    uint8_t bytes[DML__PIECE_HEADER_BYTES];
    dml__encode_piece_header(&header, bytes);
    CHECK(memcmp(bytes, want, sizeof want) == 0);
    CHECK(dml__decode_piece_header(bytes, &back));
    CHECK_INT(back.signature.root, -2);
    CHECK(back.signature.count == header.signature.count && back.piece == header.piece);
    CHECK(back.bytes == header.bytes && back.sequence == 7 && back.algorithm == DML__BY_CHAIN);
    static const int spoil[][2] = { { 0, 'x' }, { 3, 'c' }, { 4, 2 },  { 6, 99 },
                                    { 8, 99 },  { 9, 99 },  { 10, 99 } };
    for (size_t i = 0; i < sizeof spoil / sizeof *spoil; i++) {
        memcpy(bytes, want, sizeof want);
        bytes[spoil[i][0]] = (uint8_t)spoil[i][1];
        CHECK_MESSAGE(!dml__decode_piece_header(bytes, &back), "byte %d", spoil[i][0]);
    }
}

static void control_round_trips(void)
{
    dml__control control, back;
    uint8_t bytes[DML__CONTROL_BYTES];
    memset(&control, 0, sizeof control);
    control.kind = DML__ABORT;
    control.rank = 3;
    control.status = DML_ERROR_PEER;
    snprintf(control.text, sizeof control.text, "rank 3 of 4 died\x1b[2J");
    dml__encode_control(&control, bytes);
    CHECK(dml__decode_control(bytes, &back));
    CHECK_INT(back.rank, 3);
    CHECK_INT(back.status, DML_ERROR_PEER);
    CHECK_STRING(back.text, "rank 3 of 4 died?[2J"); /* nothing that a terminal would obey */
    memset(bytes + 32, 'x', DML__CONTROL_TEXT);
    CHECK(dml__decode_control(bytes, &back));
    CHECK_INT(strlen(back.text), DML__CONTROL_TEXT - 1);

    memset(&control, 0, sizeof control);
    control.kind = DML__ADDRESSES;
    control.rank = 1;
    control.endpoints = DML__ADDRESSES_AT_ONCE;
    for (int i = 0; i < control.endpoints; i++) {
        control.endpoint[i].family = (uint8_t)(i % 2 ? 6 : 4);
        control.endpoint[i].port = (uint16_t)(60000 + i);
        control.endpoint[i].ip[i % 16] = (uint8_t)i;
    }
    dml__encode_control(&control, bytes);
    CHECK(dml__decode_control(bytes, &back));
    CHECK_INT(back.endpoints, DML__ADDRESSES_AT_ONCE);
    CHECK(memcmp(back.endpoint, control.endpoint, sizeof control.endpoint) == 0);
    bytes[12] = DML__ADDRESSES_AT_ONCE + 1;
    CHECK(!dml__decode_control(bytes, &back));
    bytes[12] = 1;
    bytes[32] = 5;
    CHECK(!dml__decode_control(bytes, &back));
}

/* Whoever changes a bit of the handshake changes the MAC. */
static void macs_cover_everything(void)
{
    uint8_t challenge[DML__CHALLENGE_BYTES] = { 0 }, hello[DML__HELLO_BYTES] = { 0 };
    uint8_t welcome[DML__WELCOME_BYTES] = { 0 }, mac[32], other[32];
    dml__hello_mac("key", challenge, hello, mac);
    for (int i = 0; i < DML__CHALLENGE_BYTES + DML__HELLO_BYTES - 32; i++) {
        uint8_t *byte = i < DML__CHALLENGE_BYTES ? &challenge[i] : &hello[i - DML__CHALLENGE_BYTES];
        *byte ^= 1;
        dml__hello_mac("key", challenge, hello, other);
        CHECK(memcmp(mac, other, 32) != 0);
        *byte ^= 1;
    }
    dml__hello_mac("kez", challenge, hello, other);
    CHECK(memcmp(mac, other, 32) != 0);
    dml__welcome_mac("key", challenge, hello, welcome, mac);
    hello[DML__HELLO_BYTES - 1] ^= 1; /* the connecting side's own MAC */
    dml__welcome_mac("key", challenge, hello, welcome, other);
    CHECK(memcmp(mac, other, 32) != 0);
    hello[DML__HELLO_BYTES - 1] ^= 1;
    welcome[6] ^= 1; /* the verdict */
    dml__welcome_mac("key", challenge, hello, welcome, other);
    CHECK(memcmp(mac, other, 32) != 0);
}

/* Random bytes, and real messages with a few random bytes in them: under the sanitizers nothing happens. What
   is taken for valid can be encoded again. */
static void random_bytes(void)
{
    unsigned state = 1;
    static const char kinds[] = "hcCHW";
    for (int round = 0; round < 50000; round++) {
        uint8_t bytes[DML__CONTROL_BYTES], again[DML__CONTROL_BYTES];
        for (size_t i = 0; i < sizeof bytes; i += 4) {
            const unsigned word = test_random(&state);
            memcpy(bytes + i, &word, 4);
        }
        if (round % 4)
            memcpy(bytes, "dml", 3), bytes[3] = (uint8_t)kinds[round % 5], bytes[4] = 1, bytes[5] = 0;
        if (round % 8 > 3)
            for (size_t i = 6; i < sizeof bytes; i++)
                if (bytes[i] > 7) bytes[i] = 0;
        dml__piece_header header;
        dml__control control;
        dml__challenge challenge;
        dml__hello hello;
        dml__welcome welcome;
        char text[DML__SIGNATURE_TEXT];
        if (dml__decode_piece_header(bytes, &header)) {
            dml__encode_piece_header(&header, again);
            CHECK(strlen(dml__signature_text(&header.signature, text)) > 2);
            CHECK(memcmp(bytes, again, 44) == 0);
        }
        if (dml__decode_control(bytes, &control)) dml__encode_control(&control, again);
        if (dml__decode_challenge(bytes, &challenge)) dml__encode_challenge(&challenge, again);
        if (dml__decode_hello(bytes, &hello)) dml__encode_hello(&hello, again);
        if (dml__decode_welcome(bytes, &welcome)) dml__encode_welcome(&welcome, again);
    }
}

/* ---- a whole handshake against random bytes, without a network ---- */

static unsigned fake_state;

static ssize_t fake_receive(int fd, struct msghdr *message, int flags)
{
    (void)fd, (void)flags;
    size_t bytes = 0;
    for (size_t part = 0; part < (size_t)message->msg_iovlen; part++) {
        uint8_t *out = (uint8_t *)message->msg_iov[part].iov_base;
        for (size_t i = 0; i < message->msg_iov[part].iov_len; i++)
            out[i] = (uint8_t)(test_random(&fake_state) % 3 ? 0 : test_random(&fake_state) >> 8);
        bytes += message->msg_iov[part].iov_len;
        if (message->msg_iov[part].iov_len > 100) memcpy(out, "dmlH\1", 6);
        if (message->msg_iov[part].iov_len == 48) memcpy(out, "dmlC\1", 6);
        if (message->msg_iov[part].iov_len == 96) memcpy(out, "dmlW\1", 6);
    }
    return (ssize_t)bytes;
}

static ssize_t fake_send(int fd, const struct msghdr *message, int flags)
{
    (void)fd, (void)flags;
    return (ssize_t)message->msg_iov[0].iov_len;
}

static int fake_random(void *out, size_t bytes)
{
    memset(out, 5, bytes);
    return 0;
}

static bool fake_taken(void *user, int rank, int channel)
{
    const dml__identity *me = (const dml__identity *)user;
    CHECK(rank > me->rank && rank < me->world && channel >= 0 && channel < DML__CHANNEL_COUNT);
    return false;
}

static int fake_port(void *user, int fd)
{
    (void)user, (void)fd;
    return 1;
}

static void handshakes_with_noise(void)
{
    dml__socket_calls calls = *dml__system_sockets();
    calls.receive = fake_receive;
    calls.send = fake_send;
    calls.random = fake_random;
    fake_state = 99;
    for (int round = 0; round < 20000; round++) {
        dml__identity me = {
            .calls = &calls, .key = "a key", .rank = round % 2, .world = 3, .segment_bytes = 8
        };
        me.has_session = true;
        me.session[0] = 1;
        me.taken = fake_taken;
        me.port = fake_port;
        me.user = &me;
        dml__handshake shake;
        dml__address nowhere;
        memset(&nowhere, 0, sizeof nowhere);
        memset(&shake, 0, sizeof shake);
        char text[256];
        if (round % 4 < 2) {
            dml__begin_accepted(&shake, &me, 0, &nowhere, 0);
        } else {
            dml__begin_connecting(&shake, 0);
            shake.stage = DML__SHAKE_GET_CHALLENGE;
        }
        dml__handshake_step(&shake, &me);
        /* Nobody gets in without the key. */
        CHECK(shake.stage == DML__SHAKE_REFUSED || shake.stage == DML__SHAKE_BROKEN);
        dml__refusal_text(&shake, &me, round % 4 < 2, text, sizeof text);
    }
}

int main(void)
{
    RUN(sha256_vectors);
    RUN(hmac_vectors);
    RUN(constant_time_comparison);
    RUN(header_bytes);
    RUN(control_round_trips);
    RUN(macs_cover_everything);
    RUN(random_bytes);
    RUN(handshakes_with_noise);
    return test_report("comm/wire");
}
