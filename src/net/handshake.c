#ifndef DML_NET_HANDSHAKE_C
#define DML_NET_HANDSHAKE_C

#include "net/handshake.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "net/sha256.h"

DML__LOCAL bool dml__is_job_fault(dml__verdict verdict)
{
    static const bool authentic[] = {
#define DML__VERDICT_AUTHENTIC(NAME, authentic) authentic,
        DML__VERDICT_LIST(DML__VERDICT_AUTHENTIC)
#undef DML__VERDICT_AUTHENTIC
    };
    return (unsigned)verdict < DML__VERDICT_COUNT && authentic[verdict];
}

/* The others are given only to who has shown that it has the key, if there is one: such a one is proved in
   turn. Nobody else gets a proof, from which a weak key could be guessed. */
DML__LOCAL bool dml__is_unproved(dml__verdict verdict)
{
    return verdict != DML__VERDICT_WELCOME && verdict <= DML__VERDICT_WRONG_KEY;
}

DML__LOCAL void dml__begin_accepted(dml__handshake *shake, const dml__identity *me, int fd,
                                    const dml__address *from, double deadline)
{
    memset(shake, 0, sizeof *shake);
    shake->stage = DML__SHAKE_SEND_CHALLENGE;
    shake->fd = fd;
    shake->rank = -1;
    shake->address = *from;
    shake->deadline = deadline;
    dml__challenge challenge;
    if (me->calls->random(challenge.nonce, sizeof challenge.nonce) < 0) {
        shake->stage = DML__SHAKE_BROKEN;
        shake->error = errno;
        return;
    }
    dml__encode_challenge(&challenge, shake->challenge);
}

DML__LOCAL void dml__begin_connecting(dml__handshake *shake, int fd)
{
    shake->stage = DML__SHAKE_CONNECTING;
    shake->fd = fd;
    shake->done = 0;
}

DML__LOCAL short dml__handshake_events(const dml__handshake *shake)
{
    switch (shake->stage) {
    case DML__SHAKE_CONNECTING:
    case DML__SHAKE_SEND_CHALLENGE:
    case DML__SHAKE_SEND_HELLO:
    case DML__SHAKE_SEND_WELCOME: return POLLOUT;
    case DML__SHAKE_GET_CHALLENGE:
    case DML__SHAKE_GET_HELLO:
    case DML__SHAKE_GET_WELCOME: return POLLIN;
    default: return 0;
    }
}

/* Moves on with the stage's message; true when all of it has moved. */
static bool dml__shake_message(dml__handshake *shake, const dml__identity *me, uint8_t *message, size_t bytes,
                               bool sending)
{
    dml__span span;
    span.data = message + shake->done;
    span.bytes = bytes - shake->done;
    const ptrdiff_t moved = sending ? dml__socket_send(me->calls, shake->fd, &span, 1)
                                    : dml__socket_receive(me->calls, shake->fd, &span, 1);
    if (moved == DML__GONE) {
        shake->stage = DML__SHAKE_BROKEN;
        shake->error = errno;
        return false;
    }
    shake->done += (size_t)moved;
    if (shake->done < bytes) return false;
    shake->done = 0;
    return true;
}

static void dml__shake_nonsense(dml__handshake *shake)
{
    shake->stage = DML__SHAKE_BROKEN;
    shake->error = 0;
}

/* ---- the connecting side ---- */

static void dml__write_hello(dml__handshake *shake, const dml__identity *me)
{
    dml__challenge challenge;
    if (!dml__decode_challenge(shake->challenge, &challenge)) {
        dml__shake_nonsense(shake);
        return;
    }
    dml__hello hello;
    memset(&hello, 0, sizeof hello);
    hello.version = DML__WIRE_VERSION;
    hello.has_key = me->key != NULL;
    hello.channel = shake->channel;
    hello.from = me->rank;
    hello.to = shake->rank;
    hello.world = me->world;
    hello.segment_bytes = me->segment_bytes;
    hello.max_requests = me->max_requests;
    if (me->has_session) memcpy(hello.session, me->session, sizeof hello.session);
    const int port = me->port(me->user, shake->fd);
    hello.port = (uint16_t)(port < 0 ? 0 : port);
    if (port < 0 || me->calls->random(hello.nonce, sizeof hello.nonce) < 0) {
        shake->stage = DML__SHAKE_BROKEN;
        shake->error = errno;
        return;
    }
    dml__encode_hello(&hello, shake->hello);
    if (me->key) {
        dml__hello_mac(me->key, shake->challenge, shake->hello, hello.mac);
        dml__encode_hello(&hello, shake->hello);
    }
    shake->stage = DML__SHAKE_SEND_HELLO;
}

static void dml__read_welcome(dml__handshake *shake, const dml__identity *me)
{
    dml__welcome *welcome = &shake->welcome_in;
    if (!dml__decode_welcome(shake->welcome, welcome)) {
        dml__shake_nonsense(shake);
        return;
    }
    shake->verdict = welcome->verdict;
    if (welcome->verdict == DML__VERDICT_WELCOME && welcome->version != DML__WIRE_VERSION)
        shake->verdict = DML__VERDICT_WRONG_VERSION;
    if (me->key && !dml__is_unproved(welcome->verdict)) {
        uint8_t mac[DML__MAC_BYTES];
        dml__welcome_mac(me->key, shake->challenge, shake->hello, shake->welcome, mac);
        /* An impostor listens there: as good as nobody. */
        if (!dml__equal_in_constant_time(mac, welcome->mac, sizeof mac)) {
            dml__shake_nonsense(shake);
            return;
        }
    }
    shake->stage = shake->verdict == DML__VERDICT_WELCOME ? DML__SHAKE_DONE : DML__SHAKE_REFUSED;
}

/* ---- the accepting side ---- */

static dml__verdict dml__judge(const dml__handshake *shake, const dml__identity *me)
{
    static const uint8_t no_session[DML__SESSION_BYTES] = { 0 };
    const dml__hello *hello = &shake->hello_in;
    if (hello->version != DML__WIRE_VERSION) return DML__VERDICT_WRONG_VERSION;
    if (me->key && !hello->has_key) return DML__VERDICT_NEEDS_KEY;
    if (!me->key && hello->has_key) return DML__VERDICT_HAS_NO_KEY;
    if (me->key) {
        uint8_t mac[DML__MAC_BYTES];
        dml__hello_mac(me->key, shake->challenge, shake->hello, mac);
        if (!dml__equal_in_constant_time(mac, hello->mac, sizeof mac)) return DML__VERDICT_WRONG_KEY;
    }
    /* Only the first connection to rank 0 may come without the session, which it asks for. */
    const bool first = me->rank == 0 && hello->channel == DML__CHANNEL_CONTROL &&
                       memcmp(hello->session, no_session, sizeof no_session) == 0;
    if (!first && (!me->has_session || memcmp(hello->session, me->session, sizeof me->session) != 0))
        return DML__VERDICT_WRONG_SESSION;
    if (hello->world != me->world) return DML__VERDICT_WRONG_WORLD;
    if (hello->to != me->rank || hello->from <= me->rank || hello->from >= me->world ||
        hello->channel >= DML__CHANNEL_COUNT)
        return DML__VERDICT_WRONG_RANK;
    if (hello->segment_bytes != me->segment_bytes) return DML__VERDICT_WRONG_SEGMENT;
    if (hello->max_requests != me->max_requests) return DML__VERDICT_WRONG_REQUESTS;
    if (me->taken(me->user, hello->from, hello->channel)) return DML__VERDICT_RANK_TAKEN;
    return DML__VERDICT_WELCOME;
}

static void dml__answer(dml__handshake *shake, const dml__identity *me)
{
    dml__welcome welcome;
    memset(&welcome, 0, sizeof welcome);
    welcome.version = DML__WIRE_VERSION;
    welcome.verdict = shake->verdict;
    welcome.rank = me->rank;
    welcome.world = me->world;
    welcome.segment_bytes = me->segment_bytes;
    welcome.max_requests = me->max_requests;
    if (welcome.verdict == DML__VERDICT_WELCOME) {
        shake->rank = shake->hello_in.from;
        shake->channel = shake->hello_in.channel;
        memcpy(welcome.session, me->session, sizeof welcome.session);
    }
    dml__encode_welcome(&welcome, shake->welcome);
    if (me->key && !dml__is_unproved(welcome.verdict)) {
        dml__welcome_mac(me->key, shake->challenge, shake->hello, shake->welcome, welcome.mac);
        dml__encode_welcome(&welcome, shake->welcome);
    }
    shake->stage = DML__SHAKE_SEND_WELCOME;
}

static void dml__write_welcome(dml__handshake *shake, const dml__identity *me)
{
    if (!dml__decode_hello(shake->hello, &shake->hello_in)) {
        dml__shake_nonsense(shake);
        return;
    }
    shake->verdict = dml__judge(shake, me);
    if (shake->verdict != DML__VERDICT_WELCOME && me->hold && me->hold(me->user, shake))
        shake->stage = DML__SHAKE_HELD;
    else
        dml__answer(shake, me);
}

/* ---- both ---- */

/* One stage; true when it is behind us. */
static bool dml__shake_stage(dml__handshake *shake, const dml__identity *me)
{
    switch (shake->stage) {
    case DML__SHAKE_CONNECTING:
        shake->error = dml__socket_connect_error(me->calls, shake->fd, &shake->address);
        shake->stage = shake->error ? DML__SHAKE_BROKEN : DML__SHAKE_GET_CHALLENGE;
        return true;
    case DML__SHAKE_GET_CHALLENGE:
        if (!dml__shake_message(shake, me, shake->challenge, sizeof shake->challenge, false)) return false;
        dml__write_hello(shake, me);
        return true;
    case DML__SHAKE_SEND_HELLO:
        if (!dml__shake_message(shake, me, shake->hello, sizeof shake->hello, true)) return false;
        shake->stage = DML__SHAKE_GET_WELCOME;
        return true;
    case DML__SHAKE_GET_WELCOME:
        if (!dml__shake_message(shake, me, shake->welcome, sizeof shake->welcome, false)) return false;
        dml__read_welcome(shake, me);
        return true;
    case DML__SHAKE_SEND_CHALLENGE:
        if (!dml__shake_message(shake, me, shake->challenge, sizeof shake->challenge, true)) return false;
        shake->stage = DML__SHAKE_GET_HELLO;
        return true;
    case DML__SHAKE_GET_HELLO:
        if (!dml__shake_message(shake, me, shake->hello, sizeof shake->hello, false)) return false;
        dml__write_welcome(shake, me);
        return true;
    case DML__SHAKE_SEND_WELCOME:
        if (!dml__shake_message(shake, me, shake->welcome, sizeof shake->welcome, true)) return false;
        shake->stage = shake->verdict == DML__VERDICT_WELCOME ? DML__SHAKE_DONE : DML__SHAKE_REFUSED;
        return true;
    default: return false;
    }
}

DML__LOCAL void dml__handshake_step(dml__handshake *shake, const dml__identity *me)
{
    while (dml__shake_stage(shake, me)) continue;
}

DML__LOCAL void dml__answer_held(dml__handshake *shake, const dml__identity *me)
{
    shake->verdict = DML__VERDICT_WELCOME;
    dml__answer(shake, me);
    dml__handshake_step(shake, me);
}

DML__LOCAL void dml__refusal_text(const dml__handshake *shake, const dml__identity *me, bool accepting,
                                  char *text, size_t bytes)
{
    const dml__hello *hello = &shake->hello_in;
    const dml__welcome *welcome = &shake->welcome_in;
    /* The rank that came and the one it came to. */
    const int comer = accepting ? hello->from : me->rank, host = accepting ? me->rank : shake->rank;
    switch (shake->verdict) {
    case DML__VERDICT_WRONG_VERSION:
        snprintf(text, bytes, "rank %d speaks version %d of the protocol, but rank %d version %d", comer,
                 accepting ? hello->version : DML__WIRE_VERSION, host,
                 accepting ? DML__WIRE_VERSION : welcome->version);
        break;
    case DML__VERDICT_NEEDS_KEY:
        snprintf(text, bytes, "rank %d has no key, but rank %d has: give both the same DML_KEY", comer, host);
        break;
    case DML__VERDICT_HAS_NO_KEY:
        snprintf(text, bytes, "rank %d has a key, but rank %d has none: give both the same DML_KEY", comer,
                 host);
        break;
    case DML__VERDICT_WRONG_KEY:
        snprintf(text, bytes, "rank %d has another key than rank %d: give both the same DML_KEY", comer,
                 host);
        break;
    case DML__VERDICT_WRONG_SESSION:
        snprintf(text, bytes, "rank %d belongs to another job than rank %d", comer, host);
        break;
    case DML__VERDICT_WRONG_WORLD:
        snprintf(text, bytes, "rank %d has a world size of %d, but rank %d one of %d", comer,
                 accepting ? hello->world : me->world, host, accepting ? me->world : welcome->world);
        break;
    case DML__VERDICT_WRONG_RANK:
        snprintf(text, bytes, "rank %d of %d can't join through rank %d", comer, me->world, host);
        break;
    case DML__VERDICT_RANK_TAKEN:
        snprintf(text, bytes,
                 "rank %d came twice to rank %d: two processes have the same rank, or two jobs the "
                 "same port",
                 comer, host);
        break;
    case DML__VERDICT_WRONG_SEGMENT:
        snprintf(text, bytes, "rank %d has segment_bytes %u, but rank %d has %u", comer,
                 (unsigned)(accepting ? hello->segment_bytes : me->segment_bytes), host,
                 (unsigned)(accepting ? me->segment_bytes : welcome->segment_bytes));
        break;
    case DML__VERDICT_WRONG_REQUESTS:
        snprintf(text, bytes, "rank %d has max_requests %u, but rank %d has %u", comer,
                 (unsigned)(accepting ? hello->max_requests : me->max_requests), host,
                 (unsigned)(accepting ? me->max_requests : welcome->max_requests));
        break;
    default: snprintf(text, bytes, "rank %d was refused by rank %d", comer, host); break;
    }
}

#endif
