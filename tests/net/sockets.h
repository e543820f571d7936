/* sockets.h: a transport over connected sockets that are made beforehand, to stand below the one that is
   tested: for ranks that are threads, or processes that fork makes. */
#ifndef DML_TESTS_NET_SOCKETS_H
#define DML_TESTS_NET_SOCKETS_H

#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "net/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SOCKETS_RANKS = 8 };

typedef struct sockets_transport {
    dml__transport transport;
    int rank, world;
    int fd[DML__CHANNEL_COUNT][SOCKETS_RANKS]; /* -1: none */
    bool ended[SOCKETS_RANKS];                 /* control has */
    int wake[2];
} sockets_transport;

#define SOCKETS_UNUSED __attribute__((unused))

static ptrdiff_t sockets_move(int fd, const dml__span *spans, int count, bool out)
{
    size_t moved = 0;
    for (int i = 0; i < count; i++) {
        if (!spans[i].bytes) continue;
        const ssize_t n = out ? send(fd, spans[i].data, spans[i].bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : recv(fd, spans[i].data, spans[i].bytes, MSG_DONTWAIT);
        if (n <= 0 && moved) break;
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return DML__GONE;
        if (n < 0) return 0;
        moved += (size_t)n;
        if ((size_t)n < spans[i].bytes) break;
    }
    return (ptrdiff_t)moved;
}

static ptrdiff_t sockets_send(dml__transport *transport, int rank, dml__channel channel,
                              const dml__span *spans, int count)
{
    return sockets_move(((sockets_transport *)transport)->fd[channel][rank], spans, count, true);
}

static ptrdiff_t sockets_receive(dml__transport *transport, int rank, dml__channel channel,
                                 const dml__span *spans, int count)
{
    sockets_transport *t = (sockets_transport *)transport;
    const ptrdiff_t got = sockets_move(t->fd[channel][rank], spans, count, false);
    if (got < 0 && channel == DML__CHANNEL_CONTROL) t->ended[rank] = true;
    return got;
}

static int sockets_wait(dml__transport *transport, const uint8_t *wishes, double seconds)
{
    sockets_transport *t = (sockets_transport *)transport;
    struct pollfd polls[2 * SOCKETS_RANKS + 1];
    memset(polls, 0, sizeof polls);
    for (int r = 0; r < t->world; r++) {
        const int wish = wishes ? wishes[r] : 0;
        polls[r].fd = t->ended[r] ? -1 : t->fd[DML__CHANNEL_CONTROL][r];
        polls[r].events = POLLIN;
        polls[t->world + r].fd = wish ? t->fd[DML__CHANNEL_DATA][r] : -1;
        polls[t->world + r].events =
            (short)((wish & DML__WISH_SEND ? POLLOUT : 0) | (wish & DML__WISH_RECEIVE ? POLLIN : 0));
    }
    polls[2 * t->world].fd = t->wake[0];
    polls[2 * t->world].events = POLLIN;
    poll(polls, (nfds_t)(2 * t->world + 1), (int)(seconds * 1e3 + 0.999));
    int ready = 0;
    for (int r = 0; r < t->world; r++) {
        if (polls[r].revents) ready |= DML__READY_CONTROL;
        if (polls[t->world + r].revents) ready |= DML__READY_DATA;
    }
    char dust[64];
    if (polls[2 * t->world].revents && read(t->wake[0], dust, sizeof dust) > 0) ready |= DML__READY_WOKEN;
    return ready;
}

static void sockets_wake(dml__transport *transport)
{
    (void)!write(((sockets_transport *)transport)->wake[1], "", 1);
}

static const char *sockets_medium(const dml__transport *transport, int rank)
{
    (void)transport, (void)rank;
    return "sockets";
}

static void sockets_close(dml__transport *transport)
{
    sockets_transport *t = (sockets_transport *)transport;
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++)
        for (int r = 0; r < t->world; r++)
            if (t->fd[channel][r] >= 0) close(t->fd[channel][r]);
    close(t->wake[0]);
    close(t->wake[1]);
    free(t);
}

/* Two connected ends: TCP over loopback, or of the Unix kind. */
SOCKETS_UNUSED static void sockets_pair(int ends[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) abort();
}

/* The transports of all ranks of a world, by a function that makes two connected ends. */
SOCKETS_UNUSED static void sockets_open(dml__transport **transports, int world, void (*pair)(int ends[2]))
{
    static const dml__transport_calls calls = {
        "sockets",      sockets_send,  sockets_receive, NULL, NULL, NULL, sockets_wait, sockets_wake,
        sockets_medium, sockets_close, sockets_close,   NULL, NULL, NULL, NULL,         NULL,
        NULL,
    };
    sockets_transport *made[SOCKETS_RANKS];
    for (int r = 0; r < world; r++) {
        made[r] = (sockets_transport *)calloc(1, sizeof *made[r]);
        made[r]->transport.calls = &calls;
        made[r]->rank = r;
        made[r]->world = world;
        if (pipe(made[r]->wake) != 0) abort();
        fcntl(made[r]->wake[0], F_SETFL, O_NONBLOCK);
        for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++) made[r]->fd[channel][r] = -1;
        transports[r] = &made[r]->transport;
        for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++)
            for (int other = 0; other < r; other++) {
                int ends[2];
                pair(ends);
                made[r]->fd[channel][other] = ends[0];
                made[other]->fd[channel][r] = ends[1];
            }
    }
}

#endif
