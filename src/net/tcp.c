#ifndef DML_NET_TCP_C
#define DML_NET_TCP_C

#include "net/tcp.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The TCP transport: two connections between each two ranks. rendezvous.c makes them. */

/* Sends what is left of a message that has been begun; whether another may go now. */
static ptrdiff_t dml__tcp_finish(dml__tcp *tcp, int rank)
{
    dml__tcp_rest *rest = &tcp->rests[rank];
    dml__span span;
    if (!rest->bytes) return true;
    span.data = rest->data + sizeof rest->data - rest->bytes;
    span.bytes = rest->bytes;
    const ptrdiff_t sent = dml__socket_send(tcp->calls, tcp->fd[DML__CHANNEL_CONTROL][rank], &span, 1);
    rest->bytes = sent == DML__GONE ? 0 : rest->bytes - (size_t)sent;
    if (!rest->bytes) tcp->polls[rank].events = POLLIN;
    return sent == DML__GONE ? DML__GONE : !rest->bytes;
}

/* A message that has been begun counts as gone: what follows has to begin where the other end expects it. */
static ptrdiff_t dml__tcp_send_control(dml__tcp *tcp, int rank, int fd, const dml__span *message)
{
    dml__tcp_rest *rest = &tcp->rests[rank];
    const ptrdiff_t finished = dml__tcp_finish(tcp, rank);
    if (finished <= 0) return finished;
    const ptrdiff_t sent = dml__socket_send(tcp->calls, fd, message, 1);
    if (sent <= 0 || (size_t)sent == message->bytes) return sent;
    DML_ASSERT(message->bytes <= sizeof rest->data);
    rest->bytes = message->bytes - (size_t)sent;
    memcpy(rest->data + sizeof rest->data - rest->bytes, (const uint8_t *)message->data + sent, rest->bytes);
    tcp->polls[rank].events = POLLIN | POLLOUT;
    return (ptrdiff_t)message->bytes;
}

static ptrdiff_t dml__tcp_send(dml__transport *transport, int rank, dml__channel channel,
                               const dml__span *spans, int count)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    const int fd = tcp->fd[channel][rank];
    if (fd < 0) return DML__GONE;
    if (channel == DML__CHANNEL_DATA) return dml__socket_send(tcp->calls, fd, spans, count);
    DML_ASSERT(count == 1);
    return dml__tcp_send_control(tcp, rank, fd, spans);
}

static ptrdiff_t dml__tcp_receive(dml__transport *transport, int rank, dml__channel channel,
                                  const dml__span *spans, int count)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    const int fd = tcp->fd[channel][rank];
    if (fd < 0) return channel == DML__CHANNEL_CONTROL && !tcp->met ? 0 : DML__GONE;
    if (channel == DML__CHANNEL_CONTROL) dml__tcp_finish(tcp, rank);
    const ptrdiff_t got = dml__socket_receive(tcp->calls, fd, spans, count);
    /* An ended connection is always ready to be read: it must not be waited on again. */
    if (got == DML__GONE && channel == DML__CHANNEL_CONTROL) tcp->polls[rank].fd = -1;
    return got;
}

static void dml__tcp_poll_entry(struct pollfd *entry, int fd, short events)
{
    entry->fd = fd;
    entry->events = events;
    entry->revents = 0;
}

/* Fills in the data connections that are wished for; how many. */
static int dml__tcp_poll_wishes(dml__tcp *tcp, const uint8_t *wishes)
{
    struct pollfd *const polls = tcp->polls + tcp->world + 1;
    int count = 0;
    for (int rank = 0; wishes && rank < tcp->world; rank++) {
        const int fd = tcp->fd[DML__CHANNEL_DATA][rank];
        if (!wishes[rank] || fd < 0) continue;
        const int events =
            (wishes[rank] & DML__WISH_SEND ? POLLOUT : 0) | (wishes[rank] & DML__WISH_RECEIVE ? POLLIN : 0);
        dml__tcp_poll_entry(&polls[count++], fd, (short)events);
    }
    return count;
}

/* Takes in what wake has sent; whether there was anything. */
static bool dml__tcp_take_wakes(const dml__tcp *tcp)
{
    char dust[64];
    dml__span span;
    span.data = dust;
    span.bytes = sizeof dust;
    if (!tcp->polls[tcp->world].revents) return false;
    while (dml__socket_receive(tcp->calls, tcp->wake[0], &span, 1) == (ptrdiff_t)sizeof dust) continue;
    return true;
}

static int dml__tcp_wait(dml__transport *transport, const uint8_t *wishes, double seconds)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    const int world = tcp->world, wished = dml__tcp_poll_wishes(tcp, wishes);
    const size_t count = (size_t)world + 1 + (size_t)wished;
    if (dml__socket_poll(tcp->calls, tcp->polls, count, seconds) < 0) return DML__GONE;
    int ready = dml__tcp_take_wakes(tcp) ? DML__READY_WOKEN : 0;
    for (int i = 0; i < wished; i++)
        if (tcp->polls[world + 1 + i].revents) ready |= DML__READY_DATA;
    for (int rank = 0; rank < world; rank++) {
        if (tcp->polls[rank].revents & POLLOUT) dml__tcp_finish(tcp, rank);
        if (tcp->polls[rank].revents & ~POLLOUT) ready |= DML__READY_CONTROL;
    }
    return ready;
}

/* Where there is no room for one more byte, there are enough. */
static void dml__tcp_wake(dml__transport *transport)
{
    const dml__tcp *tcp = (const dml__tcp *)(void *)transport;
    char byte = 0;
    dml__span span;
    span.data = &byte;
    span.bytes = 1;
    dml__socket_send(tcp->calls, tcp->wake[1], &span, 1);
}

static const char *dml__tcp_medium(const dml__transport *transport, int rank)
{
    (void)rank;
    return transport->calls->name;
}

static double dml__tcp_confirmed(const dml__transport *transport, int rank)
{
    const dml__tcp *tcp = (const dml__tcp *)(const void *)transport;
    double latest = -1;
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++) {
        const int fd = tcp->fd[channel][rank];
        const double seconds = fd < 0 ? -1 : tcp->calls->confirmed(fd);
        if (seconds >= 0 && (latest < 0 || seconds < latest)) latest = seconds;
    }
    return latest;
}

DML__LOCAL void dml__tcp_connected(dml__tcp *tcp, int rank, dml__channel channel, int fd)
{
    tcp->fd[channel][rank] = fd;
    if (channel == DML__CHANNEL_CONTROL) dml__tcp_poll_entry(&tcp->polls[rank], fd, POLLIN);
}

/* Says that nothing follows what was sent, since the close alone doesn't where a fork's child has the
   connection too. What has come and was not read would turn the close into a reset, which could overtake what
   we sent last. */
static void dml__tcp_close_one(const dml__tcp *tcp, int fd)
{
    char dust[4096];
    dml__span span;
    span.data = dust;
    span.bytes = sizeof dust;
    tcp->calls->shutdown(fd);
    for (int i = 0; i < 1024 && dml__socket_receive(tcp->calls, fd, &span, 1) > 0; i++) continue;
    tcp->calls->close(fd);
}

static void dml__tcp_release(dml__tcp *tcp)
{
    dml__memory *memory = tcp->memory;
    for (int end = 0; end < 2; end++)
        if (tcp->wake[end] >= 0) tcp->calls->close(tcp->wake[end]);
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++) dml__release(memory, tcp->fd[channel]);
    dml__release(memory, tcp->rests);
    dml__release(memory, tcp->polls);
    dml__release(memory, tcp);
}

static void dml__tcp_close(dml__transport *transport)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    for (int rank = 0; tcp->rests && rank < tcp->world; rank++) dml__tcp_finish(tcp, rank);
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++)
        for (int rank = 0; tcp->fd[channel] && rank < tcp->world; rank++)
            if (tcp->fd[channel][rank] >= 0) dml__tcp_close_one(tcp, tcp->fd[channel][rank]);
    dml__tcp_release(tcp);
}

/* Closes the descriptors and reads nothing: what has come is for the parent. */
static void dml__tcp_abandon(dml__transport *transport)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++)
        for (int rank = 0; rank < tcp->world; rank++)
            if (tcp->fd[channel][rank] >= 0) tcp->calls->close(tcp->fd[channel][rank]);
    dml__tcp_release(tcp);
}

/* The transport, without a connection yet. NULL: no memory for it. */
static dml__tcp *dml__tcp_create(const dml__net_settings *settings, const dml__socket_calls *sockets,
                                 dml__memory *memory)
{
    static const dml__transport_calls calls = {
        "tcp",
        dml__tcp_send,
        dml__tcp_receive,
        NULL,
        NULL,
        NULL,
        dml__tcp_wait,
        dml__tcp_wake,
        dml__tcp_medium,
        dml__tcp_close,
        dml__tcp_abandon,
        NULL,
        NULL,
        NULL,
        dml__tcp_confirmed,
        NULL,
        NULL,
    };
    const size_t world = (size_t)settings->world;
    dml__tcp *tcp = (dml__tcp *)dml__allocate(memory, sizeof *tcp);
    if (!tcp) return NULL;
    tcp->transport.calls = &calls;
    tcp->calls = sockets;
    tcp->memory = memory;
    tcp->rank = settings->rank;
    tcp->world = settings->world;
    tcp->wake[0] = tcp->wake[1] = -1;
    tcp->polls = (struct pollfd *)dml__allocate_array(memory, 2 * world + 1, sizeof *tcp->polls);
    for (size_t i = 0; tcp->polls && i < 2 * world + 1; i++) tcp->polls[i].fd = -1;
    tcp->rests = (dml__tcp_rest *)dml__allocate_array(memory, world, sizeof *tcp->rests);
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++) {
        tcp->fd[channel] = (int *)dml__allocate_array(memory, world, sizeof **tcp->fd);
        for (size_t rank = 0; tcp->fd[channel] && rank < world; rank++) tcp->fd[channel][rank] = -1;
    }
    if (tcp->polls && tcp->rests && tcp->fd[DML__CHANNEL_CONTROL] && tcp->fd[DML__CHANNEL_DATA]) return tcp;
    dml__tcp_close(&tcp->transport);
    return NULL;
}

DML__LOCAL void dml__tcp_fail(dml__tcp *tcp, int culprit, dml_status status, const char *format, ...)
{
    char text[DML__NET_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    tcp->user->fail(tcp->user->user, &tcp->transport, culprit, status, text);
}

/* What `wake` works with. */
static bool dml__tcp_make_wake(dml__tcp *tcp)
{
    if (tcp->calls->pair(tcp->wake) < 0) {
        tcp->wake[0] = tcp->wake[1] = -1;
        dml__tcp_fail(tcp, tcp->rank, DML_ERROR_NETWORK, "rank %d can't wait on its connections: %s",
                      tcp->rank, strerror(errno));
        return false;
    }
    dml__tcp_poll_entry(&tcp->polls[tcp->world], tcp->wake[0], POLLIN);
    return true;
}

DML__LOCAL dml__transport *dml__tcp_open(const dml__net_settings *settings, const dml__socket_calls *sockets,
                                         const dml__net_user *user)
{
    dml__tcp *tcp = dml__tcp_create(settings, sockets, user->memory);
    if (!tcp) {
        char text[DML__NET_TEXT];
        snprintf(text, sizeof text, "rank %d has no memory", settings->rank);
        user->fail(user->user, NULL, settings->rank, DML_ERROR_MEMORY, text);
        return NULL;
    }
    tcp->user = user;
    const bool met = dml__tcp_make_wake(tcp) && dml__meet(tcp, settings);
    tcp->user = NULL;
    if (met) return &tcp->transport;
    dml__tcp_close(&tcp->transport);
    return NULL;
}

#endif
