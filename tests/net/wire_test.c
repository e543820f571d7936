/* The wire format and its cryptography: published vectors, round trips, and bytes that make no sense. */
#include "net/handshake.h"
#include "net/sha256.h"
#include "net/wire.h"

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

static void control_round_trips(void)
{
    dml__control control, back;
    dml__endpoint endpoints[DML__ADDRESSES_AT_ONCE], endpoints_back[DML__ADDRESSES_AT_ONCE];
    uint8_t bytes[DML__CONTROL_BYTES];
    char text[DML__CONTROL_BODY];
    memset(&control, 0, sizeof control);
    control.kind = DML__CONTROL_KINDS;
    control.rank = 3;
    control.status = DML_ERROR_PEER;
    dml__set_control_text(&control, "rank 3 of 4 died\x1b[2J");
    dml__encode_control(&control, bytes);
    CHECK(dml__decode_control(bytes, &back));
    CHECK_INT(back.rank, 3);
    CHECK_INT(back.status, DML_ERROR_PEER);
    dml__control_text(&back, text);
    CHECK_STRING(text, "rank 3 of 4 died?[2J"); /* nothing that a terminal would obey */
    bytes[12] = DML__CONTROL_BODY & 255;
    bytes[13] = DML__CONTROL_BODY >> 8;
    memset(bytes + 32, 'x', DML__CONTROL_BODY);
    CHECK(dml__decode_control(bytes, &back));
    dml__control_text(&back, text);
    CHECK_INT(strlen(text), DML__CONTROL_BODY - 1);
    bytes[12]++;
    CHECK(!dml__decode_control(bytes, &back));

    memset(&control, 0, sizeof control);
    memset(endpoints, 0, sizeof endpoints);
    control.kind = DML__ADDRESSES;
    control.rank = 1;
    for (int i = 0; i < DML__ADDRESSES_AT_ONCE; i++) {
        endpoints[i].family = (uint8_t)(i % 2 ? 6 : 4);
        endpoints[i].port = (uint16_t)(60000 + i);
        endpoints[i].ip[i % 16] = (uint8_t)i;
    }
    dml__set_control_addresses(&control, endpoints, DML__ADDRESSES_AT_ONCE);
    dml__encode_control(&control, bytes);
    CHECK(dml__decode_control(bytes, &back));
    memset(endpoints_back, 0, sizeof endpoints_back);
    CHECK_INT(dml__control_addresses(&back, endpoints_back), DML__ADDRESSES_AT_ONCE);
    CHECK(memcmp(endpoints_back, endpoints, sizeof endpoints) == 0);
    bytes[12] = (20 * (DML__ADDRESSES_AT_ONCE + 1)) & 255;
    CHECK(!dml__decode_control(bytes, &back)); /* one too many */
    bytes[13] = 0;
    bytes[12] = 21;
    CHECK(!dml__decode_control(bytes, &back)); /* and a bit */
    bytes[12] = 20;
    CHECK(dml__decode_control(bytes, &back));
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

static void control_bounds(void)
{
    static const struct {
        int at, low, high;
    } fields[] = { { 6, DML__CONTROL_KINDS, 255 }, { 7, 0, DML__STATUS_COUNT - 1 }, { 13, 0, 1 } };
    dml__control control, back;
    uint8_t bytes[DML__CONTROL_BYTES];
    char text[DML__CONTROL_BODY];
    memset(&control, 0, sizeof control);
    control.kind = DML__CONTROL_KINDS;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (int value = 0; value < 256; value++) {
            dml__encode_control(&control, bytes);
            bytes[12] = 1; /* too few for an address */
            bytes[fields[i].at] = (uint8_t)value;
            const bool fits = value >= fields[i].low && value <= fields[i].high;
            CHECK_MESSAGE(dml__decode_control(bytes, &back) == fits, "byte %d: %d", fields[i].at, value);
        }
    dml__encode_control(&control, bytes);
    bytes[4] = DML__WIRE_VERSION + 1;
    CHECK(!dml__decode_control(bytes, &back));
    dml__endpoint endpoint;
    memset(&endpoint, 0, sizeof endpoint);
    control.kind = DML__ADDRESSES;
    dml__set_control_addresses(&control, &endpoint, 1);
    for (int family = 0; family < 256; family++) {
        dml__encode_control(&control, bytes);
        bytes[32] = (uint8_t)family;
        CHECK_MESSAGE(dml__decode_control(bytes, &back) == (family == 4 || family == 6), "family %d", family);
    }
    /* Every character that a terminal might obey, and none that it shows. */
    memset(&control, 0, sizeof control);
    control.kind = DML__CONTROL_KINDS;
    for (int c = 1; c < 256; c++) {
        const char one[2] = { (char)c, 0 };
        dml__set_control_text(&control, one);
        dml__encode_control(&control, bytes);
        CHECK(dml__decode_control(bytes, &back));
        dml__control_text(&back, text);
        CHECK_INT((unsigned char)text[0], c < 32 || c == 127 ? '?' : c);
        CHECK_INT(strlen(text), 1);
    }
    char longest[DML__CONTROL_BODY + 10];
    memset(longest, 'y', sizeof longest);
    longest[sizeof longest - 1] = 0;
    dml__set_control_text(&control, longest);
    dml__encode_control(&control, bytes);
    CHECK_INT(bytes[DML__CONTROL_BYTES - 2], 'y');
    CHECK_INT(bytes[DML__CONTROL_BYTES - 1], 0);
}

/* The formats are fixed: these bytes, on any machine. */
static void control_bytes(void)
{
    static const uint8_t want[52] = { 'd', 'm',  'l',  'c',  1,    0,    1,    12,   0xfd, 0xff, 0xff,
                                      255, 20,   0,    0,    0,    0,    0,    0,    0,    0,    0,
                                      0,   0,    0,    0,    0,    0,    0,    0,    0,    0,    6,
                                      0,   0x34, 0x12, 0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7,
                                      168, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf };
    dml__control control, back;
    dml__endpoint endpoint, endpoints[DML__ADDRESSES_AT_ONCE];
    uint8_t bytes[DML__CONTROL_BYTES];
    memset(&control, 0, sizeof control);
    control.kind = DML__ADDRESSES;
    control.status = DML_ERROR_STATE;
    control.rank = -3;
    endpoint.family = 6;
    endpoint.port = 0x1234;
    for (int i = 0; i < 16; i++) endpoint.ip[i] = (uint8_t)(0xa0 + i);
    dml__set_control_addresses(&control, &endpoint, 1);
    dml__encode_control(&control, bytes);
    CHECK(memcmp(bytes, want, sizeof want) == 0);
    for (size_t i = sizeof want; i < sizeof bytes; i++) CHECK_INT(bytes[i], 0);
    CHECK(dml__decode_control(bytes, &back));
    CHECK_INT(back.kind, DML__ADDRESSES);
    CHECK_INT(back.status, DML_ERROR_STATE);
    CHECK_INT(back.rank, -3);
    CHECK_INT(back.bytes, 20);
    CHECK_INT(dml__control_addresses(&back, endpoints), 1);
    CHECK_INT(endpoints[0].port, 0x1234);
}

static void number(uint8_t *bytes, int count, int from)
{
    for (int i = 0; i < count; i++) bytes[i] = (uint8_t)(from + i);
}

static void handshake_bytes(void)
{
    uint8_t bytes[DML__HELLO_BYTES], want[DML__HELLO_BYTES] = { 'd', 'm', 'l', 'C', 1 };
    dml__challenge challenge, challenge_back;
    number(challenge.nonce, 32, 100);
    number(want + 16, 32, 100);
    dml__encode_challenge(&challenge, bytes);
    CHECK(memcmp(bytes, want, DML__CHALLENGE_BYTES) == 0);
    CHECK(dml__decode_challenge(bytes, &challenge_back));
    CHECK(memcmp(&challenge, &challenge_back, sizeof challenge) == 0);
    bytes[5] = 9; /* any version */
    CHECK(dml__decode_challenge(bytes, &challenge_back));
    for (int i = 0; i < 4; i++) {
        bytes[i] ^= 1;
        CHECK(!dml__decode_challenge(bytes, &challenge_back));
        bytes[i] ^= 1;
    }

    static const uint8_t hello_begins[] = { 'd', 'm',  'l',  'H',  2,    3, 1,    1,    2, 0, 0,
                                            0,   0xfe, 0xff, 0xff, 0xff, 3, 0x10, 0x20, 0, 1, 2,
                                            0,   0,    8,    7,    6,    5, 4,    3,    2, 1 };
    dml__hello hello, hello_back;
    memset(&hello, 0, sizeof hello);
    hello.version = 0x302;
    hello.has_key = true;
    hello.channel = 1;
    hello.from = 2;
    hello.to = -2;
    hello.world = 0x201003;
    hello.port = 0x201;
    hello.segment_bytes = 0x05060708;
    hello.max_requests = 0x01020304;
    number(hello.session, 16, 50);
    number(hello.nonce, 32, 100);
    number(hello.mac, 32, 200);
    memset(want, 0, sizeof want);
    memcpy(want, hello_begins, sizeof hello_begins);
    number(want + 32, 16, 50);
    number(want + 48, 32, 100);
    number(want + 96, 32, 200);
    dml__encode_hello(&hello, bytes);
    CHECK(memcmp(bytes, want, DML__HELLO_BYTES) == 0);
    CHECK(dml__decode_hello(bytes, &hello_back));
    CHECK(hello_back.version == 0x302 && hello_back.has_key && hello_back.channel == 1);
    CHECK(hello_back.from == 2 && hello_back.to == -2 && hello_back.world == 0x201003);
    CHECK(hello_back.port == 0x201 && hello_back.segment_bytes == hello.segment_bytes);
    CHECK(hello_back.max_requests == hello.max_requests);
    CHECK(memcmp(hello_back.session, hello.session, 16) == 0 &&
          memcmp(hello_back.nonce, hello.nonce, 32) == 0);
    CHECK(memcmp(hello_back.mac, hello.mac, 32) == 0);
    for (int i = 0; i < 4; i++) {
        bytes[i] ^= 1;
        CHECK(!dml__decode_hello(bytes, &hello_back));
        bytes[i] ^= 1;
    }

    static const uint8_t welcome_begins[] = { 'd', 'm', 'l', 'W', 2, 3, 9, 0, 0xff, 0xff, 0xff, 0x7f,
                                              0,   0,   0,   128, 8, 7, 6, 5, 4,    3,    2,    1 };
    dml__welcome welcome, welcome_back;
    memset(&welcome, 0, sizeof welcome);
    welcome.version = 0x302;
    welcome.verdict = DML__VERDICT_WRONG_SEGMENT;
    welcome.rank = 0x7fffffff;
    welcome.world = -0x7fffffff - 1;
    welcome.segment_bytes = 0x05060708;
    welcome.max_requests = 0x01020304;
    number(welcome.session, 16, 50);
    number(welcome.mac, 32, 200);
    memset(want, 0, sizeof want);
    memcpy(want, welcome_begins, sizeof welcome_begins);
    number(want + 24, 16, 50);
    number(want + 64, 32, 200);
    dml__encode_welcome(&welcome, bytes);
    CHECK(memcmp(bytes, want, DML__WELCOME_BYTES) == 0);
    CHECK(dml__decode_welcome(bytes, &welcome_back));
    CHECK(welcome_back.version == 0x302 && welcome_back.verdict == DML__VERDICT_WRONG_SEGMENT);
    CHECK(welcome_back.rank == 0x7fffffff && welcome_back.world == -0x7fffffff - 1);
    CHECK(welcome_back.segment_bytes == welcome.segment_bytes);
    CHECK(welcome_back.max_requests == welcome.max_requests);
    CHECK(memcmp(welcome_back.session, welcome.session, 16) == 0);
    CHECK(memcmp(welcome_back.mac, welcome.mac, 32) == 0);
    bytes[6] = DML__VERDICT_COUNT;
    CHECK(!dml__decode_welcome(bytes, &welcome_back));
    bytes[6] = 0;
    bytes[7] = 1;
    CHECK(!dml__decode_welcome(bytes, &welcome_back));
    bytes[7] = 0;
    for (int i = 0; i < 4; i++) {
        bytes[i] ^= 1;
        CHECK(!dml__decode_welcome(bytes, &welcome_back));
        bytes[i] ^= 1;
    }
}

/* Random bytes, and real messages with a few random bytes in them: under the sanitizers nothing happens. What
   is taken for valid can be encoded again. */
static void random_bytes(void)
{
    unsigned state = 1;
    static const char kinds[] = "cCHW";
    for (int round = 0; round < 50000; round++) {
        uint8_t bytes[DML__CONTROL_BYTES], again[DML__CONTROL_BYTES];
        for (size_t i = 0; i < sizeof bytes; i += 4) {
            const unsigned word = test_random(&state);
            memcpy(bytes + i, &word, 4);
        }
        if (round % 4)
            memcpy(bytes, "dml", 3), bytes[3] = (uint8_t)kinds[round / 4 % 4], bytes[4] = 1, bytes[5] = 0;
        if (round % 8 > 3)
            for (size_t i = 6; i < sizeof bytes; i++)
                if (bytes[i] > 7) bytes[i] = 0;
        dml__control control;
        dml__challenge challenge;
        dml__hello hello;
        dml__welcome welcome;
        if (dml__decode_control(bytes, &control)) {
            char text[DML__CONTROL_BODY];
            dml__encode_control(&control, again);
            CHECK(memcmp(bytes, again, 16) == 0 &&
                  memcmp(bytes + 32, again + 32, (size_t)control.bytes) == 0);
            dml__control_text(&control, text);
            CHECK(strlen(text) <= (size_t)control.bytes);
        }
        if (dml__decode_challenge(bytes, &challenge)) dml__encode_challenge(&challenge, again);
        if (dml__decode_hello(bytes, &hello)) dml__encode_hello(&hello, again);
        if (dml__decode_welcome(bytes, &welcome)) dml__encode_welcome(&welcome, again);
    }
}
int main(void)
{
    RUN(sha256_vectors);
    RUN(hmac_vectors);
    RUN(constant_time_comparison);
    RUN(control_round_trips);
    RUN(control_bounds);
    RUN(control_bytes);
    RUN(handshake_bytes);
    RUN(macs_cover_everything);
    RUN(random_bytes);
    return test_report("net/wire");
}
