/* traffic.h: ranks that send each other streams of spans of random sizes at random addresses, over any
   transport, and look at every byte, and at every address that is lent. */
#ifndef DML_TESTS_NET_TRAFFIC_H
#define DML_TESTS_NET_TRAFFIC_H

#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "net/transport.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../test.h"

enum { TRAFFIC_RANKS = 8, TRAFFIC_SPANS = 4 };

typedef struct traffic {
    size_t data, control; /* bytes from each rank to each other one */
    size_t most;          /* bytes of a span */
    unsigned seed;
} traffic;

/* The spans of a stream, which both ends work out: sizes and addresses modulo 64. */
typedef struct traffic_stream {
    unsigned random;
    size_t at, end, align; /* of the span: its begin and end in the stream, its address modulo 64 */
} traffic_stream;

typedef struct traffic_peer {
    traffic_stream out, in;
    uint8_t *memory; /* (TRAFFIC_SPANS, most + 128) */
    dml__span spans[TRAFFIC_SPANS];
    int count, offered; /* spans made; of them offered so far */
    bool offer;         /* by `offer` rather than `send` */
    size_t sent, got, control_sent, control_got;
} traffic_peer;

TEST__UNUSED static uint8_t traffic_byte(int from, int to, dml__channel channel, size_t at)
{
    const uint32_t x = (uint32_t)at * 2654435761u + (uint32_t)(from * 64 + to * 2 + (int)channel) * 40503u;
    return (uint8_t)(x >> 24 ^ x >> 11);
}

TEST__UNUSED static void traffic_fill(uint8_t *to, int sender, int receiver, dml__channel channel, size_t at,
                                      size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) to[i] = traffic_byte(sender, receiver, channel, at + i);
}

TEST__UNUSED static bool traffic_is(const uint8_t *x, int sender, int receiver, dml__channel channel,
                                    size_t at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (x[i] != traffic_byte(sender, receiver, channel, at + i)) return false;
    return true;
}

TEST__UNUSED static void traffic_next(traffic_stream *s, const traffic *t)
{
    const unsigned shape = test_random(&s->random) % 4;
    const size_t most = shape == 0 ? 64 : shape == 1 && t->most > 64 ? 64 + t->most / 8 : t->most;
    size_t bytes = 1 + test_random(&s->random) % (most < t->most ? most : t->most);
    if (shape == 3) bytes = t->most;
    s->at = s->end;
    if (bytes > t->data - s->at) bytes = t->data - s->at;
    s->end = s->at + bytes;
    s->align = test_random(&s->random) % 64;
}

/* Makes spans when all have gone, offers them (sometimes the first of them only, at first), and counts what
   has gone. False: the other end is gone. */
TEST__UNUSED static bool traffic_send(dml__transport *transport, int me, int peer, traffic_peer *p,
                                      const traffic *t, unsigned *random, bool *progress)
{
    if (p->count == 0) {
        while (p->count < TRAFFIC_SPANS && p->out.end < t->data) {
            uint8_t *slot = p->memory + (size_t)p->count * (t->most + 128);
            traffic_next(&p->out, t);
            slot += 64 - ((uintptr_t)slot & 63) + p->out.align;
            traffic_fill(slot, me, peer, DML__CHANNEL_DATA, p->out.at, p->out.end - p->out.at);
            p->spans[p->count].data = slot;
            p->spans[p->count++].bytes = p->out.end - p->out.at;
        }
        p->offered = 0;
        p->offer = transport->calls->offer && test_random(random) % 2;
    }
    if (p->count == 0) return true;
    if (p->offered < p->count)
        p->offered += 1 + (int)(test_random(random) % (unsigned)(p->count - p->offered));
    const ptrdiff_t gone =
        p->offer ? transport->calls->offer(transport, peer, p->spans, p->offered)
                 : transport->calls->send(transport, peer, DML__CHANNEL_DATA, p->spans, p->offered);
    if (gone < 0) return false;
    *progress |= gone > 0 || p->offered < p->count;
    p->sent += (size_t)gone;
    size_t left = (size_t)gone;
    while (p->offered > 0 && left >= p->spans[0].bytes) {
        left -= p->spans[0].bytes;
        p->count--, p->offered--;
        memset(p->spans[0].data, 0xee, p->spans[0].bytes); /* it has gone: the memory is ours */
        memmove(p->spans, p->spans + 1, (size_t)p->count * sizeof *p->spans);
    }
    if (left) {
        memset(p->spans[0].data, 0xee, left);
        p->spans[0].data = (uint8_t *)p->spans[0].data + left;
        p->spans[0].bytes -= left;
    }
    return true;
}

/* What has come, by lend or by receive: NULL, or what is wrong with it. */
TEST__UNUSED static const char *traffic_receive(dml__transport *transport, int me, int peer, traffic_peer *p,
                                                const traffic *t, unsigned *random, bool *progress)
{
    uint8_t into[3][700];
    const void *lent = NULL;
    ptrdiff_t got = DML__LENDS_NOTHING;
    if (p->got == t->data) return NULL;
    if (transport->calls->lend && test_random(random) % 4) {
        got = transport->calls->lend(transport, peer, &lent);
        if (got == DML__GONE) return "gone too early";
        if (got == 0) return NULL;
    }
    if (got > 0) {
        size_t bytes = test_random(random) % 2 ? (size_t)got : 1 + test_random(random) % (size_t)got;
        if (p->got + (size_t)got > t->data) return "more than was sent";
        while (p->got >= p->in.end) traffic_next(&p->in, t);
        const uintptr_t mask = got > 440 ? 63 : 7;
        if (((uintptr_t)lent & mask) != ((p->in.align + p->got - p->in.at) & mask))
            return "a shifted address";
        if (!traffic_is((const uint8_t *)lent, peer, me, DML__CHANNEL_DATA, p->got, bytes))
            return "wrong data";
        transport->calls->consume(transport, peer, bytes);
        p->got += bytes;
        *progress = true;
        return NULL;
    }
    dml__span spans[3];
    for (int i = 0; i < 3; i++)
        spans[i].data = into[i], spans[i].bytes = test_random(random) % sizeof into[i];
    got = transport->calls->receive(transport, peer, DML__CHANNEL_DATA, spans, 3);
    if (got < 0) return "gone too early";
    *progress |= got > 0;
    for (int i = 0; i < 3 && got > 0; i++) {
        const size_t bytes = (size_t)got < spans[i].bytes ? (size_t)got : spans[i].bytes;
        if (!traffic_is(into[i], peer, me, DML__CHANNEL_DATA, p->got, bytes)) return "wrong data received";
        p->got += bytes;
        got -= (ptrdiff_t)bytes;
    }
    return NULL;
}

TEST__UNUSED static const char *traffic_control(dml__transport *transport, int me, int peer, traffic_peer *p,
                                                const traffic *t, bool *progress)
{
    uint8_t into[512];
    dml__span span = { into, sizeof into };
    if (p->control_got < t->control) {
        const ptrdiff_t got = transport->calls->receive(transport, peer, DML__CHANNEL_CONTROL, &span, 1);
        if (got < 0) return "control gone too early";
        if (!traffic_is(into, peer, me, DML__CHANNEL_CONTROL, p->control_got, (size_t)got))
            return "wrong control";
        p->control_got += (size_t)got;
        *progress |= got > 0;
    }
    if (p->control_sent == t->control) return NULL;
    const size_t left = t->control - p->control_sent;
    span.bytes = left < sizeof into ? left : sizeof into;
    traffic_fill(into, me, peer, DML__CHANNEL_CONTROL, p->control_sent, span.bytes);
    const ptrdiff_t sent = transport->calls->send(transport, peer, DML__CHANNEL_CONTROL, &span, 1);
    if (sent < 0) return "control gone while sending";
    p->control_sent += (size_t)sent;
    *progress |= sent > 0;
    return NULL;
}

/* One rank's part, with every other one: NULL, or what went wrong. The transport stays open. */
TEST__UNUSED static const char *traffic_run(dml__transport *transport, int me, int world, const traffic *t)
{
    static const char *const nowhere = "nothing comes any more";
    traffic_peer peers[TRAFFIC_RANKS];
    uint8_t wishes[TRAFFIC_RANKS];
    unsigned random = t->seed * 31 + (unsigned)me + 1;
    const char *wrong = NULL;
    memset(peers, 0, sizeof peers);
    for (int r = 0; r < world; r++) {
        peers[r].memory = (uint8_t *)malloc(TRAFFIC_SPANS * (t->most + 128));
        peers[r].out.random = t->seed * 977 + (unsigned)(me * 64 + r);
        peers[r].in.random = t->seed * 977 + (unsigned)(r * 64 + me);
    }
    for (bool done = false; !done && !wrong;) {
        bool progress = false, control = false;
        done = true;
        for (int r = 0; r < world && !wrong; r++) {
            traffic_peer *p = &peers[r];
            wishes[r] = 0;
            if (r == me) continue;
            wrong = traffic_control(transport, me, r, p, t, &progress);
            if (!wrong && p->sent < t->data && !traffic_send(transport, me, r, p, t, &random, &progress))
                wrong = "gone while sending";
            if (!wrong) wrong = traffic_receive(transport, me, r, p, t, &random, &progress);
            if (p->sent < t->data) wishes[r] |= DML__WISH_SEND;
            if (p->got < t->data) wishes[r] |= DML__WISH_RECEIVE;
            control |= p->control_sent < t->control;
            if (wishes[r] || p->control_got < t->control || p->control_sent < t->control) done = false;
        }
        /* There is no wish for room for control. */
        if (!done && !wrong && !progress &&
            transport->calls->wait(transport, wishes, control ? 1e-3 : 60) == 0 && !control)
            wrong = nowhere;
    }
    for (int r = 0; r < world; r++) free(peers[r].memory);
    return wrong;
}

/* Two ranks that one thread plays, wherever it is put: each says where it is when it looks. */
TEST__UNUSED static void traffic_crowd(dml__transport *a, dml__transport *b)
{
#if defined(__linux__)
    cpu_set_t all, one;
    int processors[2] = { -1, -1 }, count = 0;
    CPU_ZERO(&all);
    sched_getaffinity(0, sizeof all, &all);
    for (int i = 0; i < CPU_SETSIZE && count < 2; i++)
        if (CPU_ISSET(i, &all)) processors[count++] = i;
    for (int i = 0; i < 2 * count; i++) {
        CPU_ZERO(&one);
        CPU_SET(processors[i / 2], &one);
        CHECK_INT(sched_setaffinity(0, sizeof one, &one), 0);
        /* b is where it was until it looks itself. */
        CHECK_INT((i % 2 ? b : a)->calls->crowded(i % 2 ? b : a), i % 2);
    }
    sched_setaffinity(0, sizeof all, &all);
#else
    CHECK(!a->calls->crowded(a) && !b->calls->crowded(b));
#endif
}

#endif
