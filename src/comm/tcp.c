#ifndef DML_COMM_TCP_C
#define DML_COMM_TCP_C

#include "comm/comm_internal.h"

/* The TCP transport: two connections between each two ranks. rendezvous.c makes them. */

static ptrdiff_t dml__tcp_send(dml__transport *transport, int rank, dml__channel channel,
                               const dml__span *spans, int count)
{
    const dml__tcp *tcp = (const dml__tcp *)(void *)transport;
    const int fd = tcp->fd[channel][rank];
    return fd < 0 ? DML__GONE : dml__socket_send(tcp->calls, fd, spans, count);
}

static ptrdiff_t dml__tcp_receive(dml__transport *transport, int rank, dml__channel channel,
                                  const dml__span *spans, int count)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    const int fd = tcp->fd[channel][rank];
    if (fd < 0) return channel == DML__CHANNEL_CONTROL && !tcp->met ? 0 : DML__GONE;
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

static int dml__tcp_wait(dml__transport *transport, int to, int from, double seconds)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    const int world = tcp->comm->world;
    struct pollfd *data_out = &tcp->polls[world], *data_in = &tcp->polls[world + 1];
    dml__tcp_poll_entry(data_out, to < 0 ? -1 : tcp->fd[DML__CHANNEL_DATA][to], POLLOUT);
    dml__tcp_poll_entry(data_in, from < 0 ? -1 : tcp->fd[DML__CHANNEL_DATA][from], POLLIN);
    if (dml__socket_poll(tcp->calls, tcp->polls, (size_t)world + 2, seconds) < 0) return DML__GONE;
    int ready = 0;
    if (data_out->revents) ready |= DML__READY_SEND;
    if (data_in->revents) ready |= DML__READY_RECEIVE;
    for (int rank = 0; rank < world; rank++)
        if (tcp->polls[rank].revents) ready |= DML__READY_CONTROL;
    return ready;
}

DML__LOCAL void dml__tcp_connected(dml__tcp *tcp, int rank, dml__channel channel, int fd)
{
    tcp->fd[channel][rank] = fd;
    if (channel == DML__CHANNEL_CONTROL) dml__tcp_poll_entry(&tcp->polls[rank], fd, POLLIN);
}

/* What has come and was not read would turn the close into a reset, which could overtake what we sent last.
 */
static void dml__tcp_close_one(const dml__tcp *tcp, int fd)
{
    char dust[4096];
    dml__span span;
    span.data = dust;
    span.bytes = sizeof dust;
    for (int i = 0; i < 1024 && dml__socket_receive(tcp->calls, fd, &span, 1) > 0; i++) continue;
    tcp->calls->close(fd);
}

static void dml__tcp_release(dml__tcp *tcp)
{
    dml__memory *memory = &tcp->comm->memory;
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++) dml__release(memory, tcp->fd[channel]);
    dml__release(memory, tcp->polls);
    dml__release(memory, tcp);
}

static void dml__tcp_close(dml__transport *transport)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++)
        for (int rank = 0; tcp->fd[channel] && rank < tcp->comm->world; rank++)
            if (tcp->fd[channel][rank] >= 0) dml__tcp_close_one(tcp, tcp->fd[channel][rank]);
    dml__tcp_release(tcp);
}

/* Closes the descriptors and reads nothing: what has come is for the parent. */
static void dml__tcp_abandon(dml__transport *transport)
{
    dml__tcp *tcp = (dml__tcp *)(void *)transport;
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++)
        for (int rank = 0; rank < tcp->comm->world; rank++)
            if (tcp->fd[channel][rank] >= 0) tcp->calls->close(tcp->fd[channel][rank]);
    dml__tcp_release(tcp);
}

DML__LOCAL bool dml__tcp_open(dml_comm *comm, const dml__comm_settings *settings,
                              const dml__socket_calls *sockets)
{
    static const dml__transport_calls calls = { "tcp",         dml__tcp_send,  dml__tcp_receive,
                                                dml__tcp_wait, dml__tcp_close, dml__tcp_abandon };
    const size_t world = (size_t)comm->world;
    dml__tcp *tcp = (dml__tcp *)dml__allocate(&comm->memory, sizeof *tcp);
    if (!tcp)
        return dml__comm_fail(comm, comm->rank, DML_ERROR_MEMORY, "rank %d has no memory", comm->rank), false;
    tcp->transport.calls = &calls;
    tcp->comm = comm;
    tcp->calls = sockets;
    comm->transport = &tcp->transport;
    tcp->polls = (struct pollfd *)dml__allocate_array(&comm->memory, world + 2, sizeof *tcp->polls);
    for (int channel = 0; channel < DML__CHANNEL_COUNT; channel++) {
        tcp->fd[channel] = (int *)dml__allocate_array(&comm->memory, world, sizeof **tcp->fd);
        for (size_t rank = 0; tcp->fd[channel] && rank < world; rank++) tcp->fd[channel][rank] = -1;
    }
    if (!tcp->polls || !tcp->fd[DML__CHANNEL_CONTROL] || !tcp->fd[DML__CHANNEL_DATA]) {
        dml__tcp_close(&tcp->transport);
        comm->transport = NULL;
        return dml__comm_fail(comm, comm->rank, DML_ERROR_MEMORY, "rank %d has no memory", comm->rank), false;
    }
    for (size_t rank = 0; rank < world + 2; rank++) tcp->polls[rank].fd = -1;
    return dml__meet(tcp, settings);
}

#endif
