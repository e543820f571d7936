/* Whole handshakes without a network: against random bytes, and with one that knows the protocol. */
#include "net/handshake.h"
#include "net/wire.h"

#include <errno.h>

#include "../test.h"

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

/* ---- handshakes with one that knows the protocol ---- */

static uint8_t inbox[256], outbox[512];
static size_t inbox_bytes, inbox_read, outbox_bytes;
static int stingy; /* every other call moves nothing, the others one byte */

static ssize_t script_receive(int fd, struct msghdr *message, int flags)
{
    (void)fd, (void)flags;
    size_t n = message->msg_iov[0].iov_len;
    if (stingy && stingy++ % 2) {
        errno = EAGAIN;
        return -1;
    }
    if (stingy) n = 1;
    if (n > inbox_bytes - inbox_read) n = inbox_bytes - inbox_read;
    if (!n) {
        errno = EAGAIN;
        return -1;
    }
    memcpy(message->msg_iov[0].iov_base, inbox + inbox_read, n);
    inbox_read += n;
    return (ssize_t)n;
}

static ssize_t script_send(int fd, const struct msghdr *message, int flags)
{
    (void)fd, (void)flags;
    size_t n = message->msg_iov[0].iov_len;
    if (stingy && stingy++ % 2) {
        errno = EAGAIN;
        return -1;
    }
    if (stingy) n = 1;
    memcpy(outbox + outbox_bytes, message->msg_iov[0].iov_base, n);
    outbox_bytes += n;
    return (ssize_t)n;
}

static bool is_taken, asked_taken;

static bool script_taken(void *user, int rank, int channel)
{
    const dml__identity *me = (const dml__identity *)user;
    CHECK(rank > me->rank && rank < me->world && channel >= 0 && channel < DML__CHANNEL_COUNT);
    asked_taken = true;
    return is_taken;
}

static int own_port;

static int script_port(void *user, int fd)
{
    (void)user, (void)fd;
    errno = EBADF;
    return own_port;
}

/* Steps until nothing moves any more: one step goes as far as it can; otherwise, how much moves at a time
   makes no difference. */
static void step_through(dml__handshake *shake, const dml__identity *me)
{
    for (int i = 0; i < (stingy ? 2000 : 1); i++) dml__handshake_step(shake, me);
}

static dml__identity identity(const dml__socket_calls *calls, int rank)
{
    dml__identity me = { .calls = calls,
                         .key = "a key",
                         .rank = rank,
                         .world = 4,
                         .segment_bytes = 4096,
                         .max_requests = 16,
                         .has_session = true };
    for (int i = 0; i < DML__SESSION_BYTES; i++) me.session[i] = (uint8_t)(7 + i);
    me.taken = script_taken;
    me.port = script_port;
    inbox_bytes = inbox_read = outbox_bytes = 0;
    is_taken = asked_taken = false;
    own_port = 1234;
    return me;
}

static dml__hello good_hello(const dml__identity *me)
{
    dml__hello hello;
    memset(&hello, 0, sizeof hello);
    hello.version = DML__WIRE_VERSION;
    hello.has_key = me->key != NULL;
    hello.from = me->rank + 1;
    hello.to = me->rank;
    hello.world = me->world;
    hello.segment_bytes = me->segment_bytes;
    hello.max_requests = me->max_requests;
    memcpy(hello.session, me->session, sizeof hello.session);
    return hello;
}

/* Comes to `me` with such a hello, proved with `key`; the verdict, which must be the one in the answer. */
static dml__verdict come_with(dml__identity *me, dml__hello hello, const char *key, char *text)
{
    dml__handshake shake;
    dml__address nowhere;
    dml__welcome welcome;
    memset(&nowhere, 0, sizeof nowhere);
    inbox_bytes = inbox_read = outbox_bytes = 0;
    me->user = me;
    dml__begin_accepted(&shake, me, 0, &nowhere, 0);
    dml__encode_hello(&hello, inbox);
    if (key) {
        dml__hello_mac(key, shake.challenge, inbox, hello.mac);
        dml__encode_hello(&hello, inbox);
    }
    inbox_bytes = DML__HELLO_BYTES;
    step_through(&shake, me);
    CHECK_INT(outbox_bytes, DML__CHALLENGE_BYTES + DML__WELCOME_BYTES);
    CHECK(dml__decode_welcome(outbox + DML__CHALLENGE_BYTES, &welcome));
    CHECK_INT(welcome.version, DML__WIRE_VERSION);
    CHECK_INT(welcome.rank, me->rank);
    CHECK_INT(welcome.world, me->world);
    CHECK(welcome.segment_bytes == me->segment_bytes && welcome.max_requests == me->max_requests);
    uint8_t mac[DML__MAC_BYTES] = { 0 };
    const bool let_in = shake.stage == DML__SHAKE_DONE;
    CHECK(let_in == (welcome.verdict == DML__VERDICT_WELCOME) &&
          (let_in || shake.stage == DML__SHAKE_REFUSED));
    /* Whoever is turned away doesn't learn the session, and only who has the key gets a proof. */
    CHECK((memcmp(welcome.session, me->session, DML__SESSION_BYTES) == 0) == let_in);
    if (me->key && (let_in || welcome.verdict >= DML__VERDICT_WRONG_SESSION))
        dml__welcome_mac(me->key, shake.challenge, shake.hello, outbox + DML__CHALLENGE_BYTES, mac);
    CHECK(memcmp(welcome.mac, mac, sizeof mac) == 0);
    if (let_in) CHECK(shake.rank == hello.from && shake.channel == hello.channel);
    CHECK_INT(dml__handshake_events(&shake), 0);
    dml__refusal_text(&shake, me, true, text, 256);
    return welcome.verdict;
}

static void every_verdict(void)
{
    dml__socket_calls calls = *dml__system_sockets();
    char text[256];
    calls.receive = script_receive;
    calls.send = script_send;
    calls.random = fake_random;
    for (stingy = 0; stingy < 2; stingy++)
        for (int rank = 0; rank < 3; rank++) {
            dml__identity me = identity(&calls, rank);
            dml__hello hello = good_hello(&me);
            CHECK_INT(come_with(&me, hello, "a key", text), DML__VERDICT_WELCOME);
            CHECK(asked_taken);
            hello.channel = DML__CHANNEL_DATA;
            hello.from = me.world - 1;
            CHECK_INT(come_with(&me, hello, "a key", text), DML__VERDICT_WELCOME);
            hello.version = DML__WIRE_VERSION + 1;
            CHECK_INT(come_with(&me, hello, NULL, text), DML__VERDICT_WRONG_VERSION);
            CHECK_CONTAINS(text, "rank 3 speaks version 2 of the protocol, but rank ");

            /* The key. */
            hello = good_hello(&me);
            CHECK_INT(come_with(&me, hello, "a kez", text), DML__VERDICT_WRONG_KEY);
            CHECK_CONTAINS(text, "has another key than");
            CHECK_INT(come_with(&me, hello, NULL, text), DML__VERDICT_WRONG_KEY);
            hello.has_key = false;
            CHECK_INT(come_with(&me, hello, "a key", text), DML__VERDICT_NEEDS_KEY);
            CHECK_CONTAINS(text, "has no key, but");
            me.key = NULL;
            CHECK_INT(come_with(&me, hello, NULL, text), DML__VERDICT_WELCOME);
            hello.has_key = true;
            CHECK_INT(come_with(&me, hello, "a key", text), DML__VERDICT_HAS_NO_KEY);
            CHECK_CONTAINS(text, "has a key, but");

            /* The session: each byte counts, and only the first connection to rank 0 may come without. */
            for (int keyed = 0; keyed < 2; keyed++) {
                me.key = keyed ? "a key" : NULL;
                for (int i = 0; i < DML__SESSION_BYTES; i++) {
                    hello = good_hello(&me);
                    hello.session[i] ^= 0x10;
                    CHECK_INT(come_with(&me, hello, me.key, text), DML__VERDICT_WRONG_SESSION);
                    CHECK_CONTAINS(text, "belongs to another job than");
                }
                memset(hello.session, 0, sizeof hello.session);
                CHECK_INT(come_with(&me, hello, me.key, text),
                          rank ? DML__VERDICT_WRONG_SESSION : DML__VERDICT_WELCOME);
                hello.channel = DML__CHANNEL_DATA;
                CHECK_INT(come_with(&me, hello, me.key, text), DML__VERDICT_WRONG_SESSION);
                me.has_session = false;
                hello = good_hello(&me);
                CHECK_INT(come_with(&me, hello, me.key, text), DML__VERDICT_WRONG_SESSION);
                me.has_session = true;
            }

            /* The world and the ranks. */
            for (int off = -1; off <= 1; off += 2) {
                hello = good_hello(&me);
                hello.world += off;
                CHECK_INT(come_with(&me, hello, "a key", text), DML__VERDICT_WRONG_WORLD);
                CHECK_CONTAINS(text, off < 0 ? "has a world size of 3, but" : "has a world size of 5, but");
                hello = good_hello(&me);
                hello.to += off;
                CHECK_INT(come_with(&me, hello, "a key", text), DML__VERDICT_WRONG_RANK);
                CHECK_CONTAINS(text, "can't join through");
                hello = good_hello(&me);
                hello.segment_bytes += (uint32_t)off;
                CHECK_INT(come_with(&me, hello, "a key", text), DML__VERDICT_WRONG_SEGMENT);
                CHECK_CONTAINS(text, off < 0 ? "has segment_bytes 4095, but" : "has segment_bytes 4097, but");
                CHECK_CONTAINS(text, "has 4096");
                hello = good_hello(&me);
                hello.max_requests += (uint32_t)off;
                CHECK_INT(come_with(&me, hello, "a key", text), DML__VERDICT_WRONG_REQUESTS);
                CHECK_CONTAINS(text, off < 0 ? "has max_requests 15, but" : "has max_requests 17, but");
                CHECK_CONTAINS(text, "has 16");
            }
            const int wrong[] = { me.rank, me.rank - 1, me.world, -1, 0x7fffffff, -0x7fffffff - 1 };
            for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
                hello = good_hello(&me);
                hello.from = wrong[i];
                asked_taken = false;
                CHECK_INT(come_with(&me, hello, "a key", text), DML__VERDICT_WRONG_RANK);
                CHECK(!asked_taken);
            }
            hello = good_hello(&me);
            hello.channel = DML__CHANNEL_COUNT;
            CHECK_INT(come_with(&me, hello, "a key", text), DML__VERDICT_WRONG_RANK);
            hello.channel = DML__CHANNEL_DATA;
            is_taken = true;
            CHECK_INT(come_with(&me, hello, "a key", text), DML__VERDICT_RANK_TAKEN);
            CHECK_CONTAINS(text, "came twice to");
        }
    stingy = 0;
    for (int verdict = -1; verdict <= DML__VERDICT_COUNT; verdict++)
        CHECK_INT(dml__is_job_fault((dml__verdict)verdict),
                  verdict == DML__VERDICT_WELCOME ||
                      (verdict >= DML__VERDICT_WRONG_WORLD && verdict < DML__VERDICT_COUNT));
}

/* Goes to a rank 0 that answers so; `spoil` of the welcome's bytes is changed, -1: none. */
static dml__handshake go_to(dml__identity *me, dml__welcome welcome, const char *key, int spoil)
{
    dml__handshake shake;
    dml__hello hello;
    dml__challenge challenge;
    memset(&shake, 0, sizeof shake);
    memset(&challenge, 9, sizeof challenge);
    me->user = me;
    inbox_read = outbox_bytes = 0;
    dml__begin_connecting(&shake, 0);
    CHECK_INT(dml__handshake_events(&shake), POLLOUT);
    shake.stage = DML__SHAKE_GET_CHALLENGE;
    shake.channel = DML__CHANNEL_DATA;
    dml__encode_challenge(&challenge, inbox);
    inbox_bytes = DML__CHALLENGE_BYTES;
    CHECK_INT(dml__handshake_events(&shake), POLLIN);
    step_through(&shake, me);
    CHECK_INT(shake.stage, DML__SHAKE_GET_WELCOME);
    CHECK_INT(dml__handshake_events(&shake), POLLIN);
    CHECK_INT(outbox_bytes, DML__HELLO_BYTES);
    CHECK(dml__decode_hello(outbox, &hello));
    CHECK(hello.version == DML__WIRE_VERSION && hello.from == me->rank && hello.to == 0);
    CHECK(hello.world == me->world && hello.segment_bytes == me->segment_bytes && hello.port == 1234);
    CHECK(hello.max_requests == me->max_requests);
    CHECK(hello.channel == DML__CHANNEL_DATA && hello.has_key == (me->key != NULL));
    static const uint8_t none[DML__SESSION_BYTES] = { 0 };
    CHECK(memcmp(hello.session, me->has_session ? me->session : none, DML__SESSION_BYTES) == 0);
    CHECK_INT(hello.nonce[0], 5);
    uint8_t mac[DML__MAC_BYTES] = { 0 };
    if (me->key) dml__hello_mac(me->key, inbox, outbox, mac);
    CHECK(memcmp(hello.mac, mac, sizeof mac) == 0);
    dml__encode_challenge(&challenge, inbox);
    uint8_t bytes[DML__WELCOME_BYTES];
    dml__encode_welcome(&welcome, bytes);
    if (key) {
        dml__welcome_mac(key, inbox, outbox, bytes, welcome.mac);
        dml__encode_welcome(&welcome, bytes);
    }
    if (spoil >= 0) bytes[spoil] ^= 1;
    memcpy(inbox, bytes, sizeof bytes);
    inbox_bytes = DML__WELCOME_BYTES;
    inbox_read = 0;
    step_through(&shake, me);
    return shake;
}

static void every_answer(void)
{
    static const char *const parts[DML__VERDICT_COUNT] = {
        "was refused by",
        "rank 2 speaks version 1 of the protocol, but rank 0 version 1",
        "rank 2 has no key, but rank 0 has",
        "rank 2 has a key, but rank 0 has none",
        "rank 2 has another key than rank 0",
        "rank 2 belongs to another job than rank 0",
        "rank 2 has a world size of 4, but rank 0 one of 9",
        "rank 2 of 4 can't join through rank 0",
        "rank 2 came twice to rank 0",
        "rank 2 has segment_bytes 4096, but rank 0 has 99",
        "rank 2 has max_requests 16, but rank 0 has 98",
    };
    dml__socket_calls calls = *dml__system_sockets();
    calls.receive = script_receive;
    calls.send = script_send;
    calls.random = fake_random;
    for (stingy = 0; stingy < 2; stingy++)
        for (int keyed = 0; keyed < 2; keyed++) {
            dml__identity me = identity(&calls, 2);
            char text[256];
            me.key = keyed ? "a key" : NULL;
            me.has_session = keyed;
            dml__welcome welcome;
            memset(&welcome, 0, sizeof welcome);
            welcome.version = DML__WIRE_VERSION;
            welcome.world = 9;
            welcome.segment_bytes = 99;
            welcome.max_requests = 98;
            CHECK_INT(go_to(&me, welcome, me.key, -1).stage, DML__SHAKE_DONE);
            for (int i = 0; i < DML__WELCOME_BYTES && keyed; i++) {
                const dml__handshake shake = go_to(&me, welcome, me.key, i);
                CHECK_INT(shake.stage, i == 6 ? DML__SHAKE_REFUSED : DML__SHAKE_BROKEN);
                CHECK_INT(shake.error, 0);
            }
            if (keyed) CHECK_INT(go_to(&me, welcome, "a kez", -1).stage, DML__SHAKE_BROKEN);
            for (int verdict = 1; verdict < DML__VERDICT_COUNT; verdict++) {
                welcome.verdict = (dml__verdict)verdict;
                /* What is said after a look at the key is believed only of one who has it. */
                const bool proven = keyed && verdict >= DML__VERDICT_WRONG_SESSION;
                const dml__handshake shake = go_to(&me, welcome, proven ? me.key : NULL, -1);
                CHECK_INT(shake.stage, DML__SHAKE_REFUSED);
                if (proven) {
                    CHECK_INT(go_to(&me, welcome, NULL, -1).stage, DML__SHAKE_BROKEN);
                    CHECK_INT(go_to(&me, welcome, "a kez", -1).stage, DML__SHAKE_BROKEN);
                    CHECK_INT(go_to(&me, welcome, me.key, 20).stage, DML__SHAKE_BROKEN);
                }
                CHECK_INT(shake.verdict, verdict);
                dml__refusal_text(&shake, &me, false, text, sizeof text);
                CHECK_CONTAINS(text, parts[verdict]);
            }
            welcome.verdict = DML__VERDICT_WELCOME;
            welcome.version = DML__WIRE_VERSION + 1;
            const dml__handshake shake = go_to(&me, welcome, me.key, -1);
            CHECK_INT(shake.stage, DML__SHAKE_REFUSED);
            dml__refusal_text(&shake, &me, false, text, sizeof text);
            CHECK_CONTAINS(text, "rank 2 speaks version 1 of the protocol, but rank 0 version 2");
        }
    stingy = 0;
}

static int no_random(void *out, size_t bytes)
{
    (void)out, (void)bytes;
    errno = ENOSYS;
    return -1;
}

/* What this machine can't do breaks a handshake, with the reason. */
static void handshakes_that_break(void)
{
    dml__socket_calls calls = *dml__system_sockets();
    calls.receive = script_receive;
    calls.send = script_send;
    calls.random = no_random;
    dml__identity me = identity(&calls, 1);
    dml__handshake shake;
    dml__address nowhere;
    memset(&nowhere, 0, sizeof nowhere);
    dml__begin_accepted(&shake, &me, 0, &nowhere, 0);
    CHECK_INT(shake.stage, DML__SHAKE_BROKEN);
    CHECK_INT(shake.error, ENOSYS);
    for (int what = 0; what < 3; what++) {
        dml__challenge challenge;
        me = identity(&calls, 1);
        memset(&challenge, 9, sizeof challenge);
        memset(&shake, 0, sizeof shake);
        dml__begin_connecting(&shake, 0);
        shake.stage = DML__SHAKE_GET_CHALLENGE;
        dml__encode_challenge(&challenge, inbox);
        if (what == 0) inbox[0] = 'D';
        if (what == 1) own_port = -1;
        inbox_bytes = DML__CHALLENGE_BYTES;
        step_through(&shake, &me);
        CHECK_INT(shake.stage, DML__SHAKE_BROKEN);
        CHECK_INT(shake.error, what == 0 ? 0 : what == 1 ? EBADF : ENOSYS);
        CHECK_INT(outbox_bytes, 0);
    }
    calls.random = fake_random;
    me = identity(&calls, 1);
    dml__begin_accepted(&shake, &me, 0, &nowhere, 0);
    CHECK_INT(dml__handshake_events(&shake), POLLOUT);
    inbox_bytes = DML__HELLO_BYTES;
    memset(inbox, 'x', sizeof inbox);
    step_through(&shake, &me);
    CHECK_INT(shake.stage, DML__SHAKE_BROKEN);
    CHECK_INT(outbox_bytes, DML__CHALLENGE_BYTES);
}
int main(void)
{
    RUN(handshakes_with_noise);
    RUN(every_verdict);
    RUN(every_answer);
    RUN(handshakes_that_break);
    return test_report("net/handshake");
}
