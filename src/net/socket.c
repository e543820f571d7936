#ifndef DML_NET_SOCKET_C
#define DML_NET_SOCKET_C

#include "net/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"

#ifdef MSG_NOSIGNAL
#define DML__NO_SIGNAL MSG_NOSIGNAL
#else
#define DML__NO_SIGNAL 0 /* SO_NOSIGPIPE, below */
#endif

/* A socket has to be born close-on-exec: a program that another thread starts before it is told so would keep
   the connection open for as long as it runs. */
#if defined(SOCK_CLOEXEC) && defined(SOCK_NONBLOCK)
#define DML__SOCKET_TYPE (SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK)
#else
#define DML__SOCKET_TYPE SOCK_STREAM
#endif
#if defined(__linux__) && (defined(__USE_GNU) || !defined(__GLIBC__)) /* (where accept4 is declared) */
#define DML__ACCEPT(fd, address, bytes) accept4(fd, address, bytes, SOCK_CLOEXEC | SOCK_NONBLOCK)
#else
#define DML__ACCEPT(fd, address, bytes) accept(fd, address, bytes)
#endif

/* ---- the operating system's calls ---- */

/* What isn't born so. */
static int dml__prepare_socket(int fd)
{
    if (fd < 0) return fd;
    const int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) >= 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) >= 0)
        return fd;
    close(fd);
    return -1;
}

static int dml__system_open(int family)
{
    return dml__prepare_socket(socket(family, DML__SOCKET_TYPE, 0));
}

static int dml__system_set_option(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

static int dml__system_bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return bind(fd, address, bytes);
}

static int dml__system_accept(int fd, struct sockaddr *address, socklen_t *bytes)
{
    return dml__prepare_socket(DML__ACCEPT(fd, address, bytes));
}

static int dml__system_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return connect(fd, address, bytes);
}

static int dml__system_error(int fd)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : -1;
}

static int dml__system_own_address(int fd, struct sockaddr *address, socklen_t *bytes)
{
    return getsockname(fd, address, bytes);
}

static double dml__system_confirmed(int fd)
{
#if defined(__linux__) && defined(TCPI_OPT_TIMESTAMPS) /* (where struct tcp_info is) */
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    const bool in_flight = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 && info.tcpi_unacked > 0;
    return in_flight ? info.tcpi_last_ack_recv * 1e-3 : -1;
#else
    (void)fd;
    return -1;
#endif
}

static int dml__system_shutdown(int fd)
{
    return shutdown(fd, SHUT_WR);
}

static int dml__system_pair(int fds[2])
{
    if (socketpair(AF_UNIX, DML__SOCKET_TYPE, 0, fds) < 0) return -1;
    const bool first = dml__prepare_socket(fds[0]) >= 0, second = dml__prepare_socket(fds[1]) >= 0;
    if (first && second) return 0;
    if (first) close(fds[0]);
    if (second) close(fds[1]);
    return -1;
}

static int dml__system_random(void *out, size_t bytes)
{
    const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    size_t got = 0;
    while (got < bytes) {
        const ssize_t n = read(fd, (char *)out + got, bytes - got);
        if (n > 0)
            got += (size_t)n;
        else if (n == 0 || errno != EINTR)
            break;
    }
    close(fd);
    return got == bytes ? 0 : -1;
}

static int dml__system_resolve(const char *host, struct addrinfo **list)
{
    struct addrinfo hints;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    return getaddrinfo(host, NULL, &hints, list);
}

DML__LOCAL const dml__socket_calls *dml__system_sockets(void)
{
    static const dml__socket_calls calls = {
        dml__system_open,
        dml__system_set_option,
        dml__system_bind,
        listen,
        dml__system_accept,
        dml__system_connect,
        dml__system_error,
        dml__system_own_address,
        poll,
        dml__system_confirmed,
        sendmsg,
        recvmsg,
        dml__system_shutdown,
        close,
        dml__system_pair,
        dml__system_random,
        dml__system_resolve,
    };
    return &calls;
}

/* ---- addresses ---- */

/* Through a copy, since a sockaddr_storage may not be read as another struct. */
static struct sockaddr_in dml__as_ipv4(const dml__address *address)
{
    struct sockaddr_in ipv4;
    memcpy(&ipv4, &address->storage, sizeof ipv4);
    return ipv4;
}

static struct sockaddr_in6 dml__as_ipv6(const dml__address *address)
{
    struct sockaddr_in6 ipv6;
    memcpy(&ipv6, &address->storage, sizeof ipv6);
    return ipv6;
}

static void dml__set_address(dml__address *address, const void *from, size_t bytes)
{
    memset(address, 0, sizeof *address);
    memcpy(&address->storage, from, bytes);
    address->bytes = (socklen_t)bytes;
}

static const struct sockaddr *dml__raw_address(const dml__address *address)
{
    return (const struct sockaddr *)(const void *)&address->storage;
}

DML__LOCAL int dml__resolve_host(const dml__socket_calls *calls, const char *host, uint16_t port,
                                 dml__address *out, int capacity, int *error)
{
    struct addrinfo *list = NULL;
    int count = 0;
    *error = calls->resolve(host, &list);
    if (*error) return 0;
    for (const struct addrinfo *info = list; info && count < capacity; info = info->ai_next) {
        if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
        dml__set_address(&out[count], info->ai_addr, (size_t)info->ai_addrlen);
        dml__set_address_port(&out[count], port);
        count++;
    }
    freeaddrinfo(list);
    return count;
}

DML__LOCAL bool dml__is_loopback(const dml__address *address)
{
    if (address->storage.ss_family == AF_INET)
        return ntohl(dml__as_ipv4(address).sin_addr.s_addr) >> 24 == 127;
    const struct sockaddr_in6 ipv6 = dml__as_ipv6(address);
    if (IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr)) return ipv6.sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&ipv6.sin6_addr);
}

DML__LOCAL void dml__any_address(int family, dml__address *out)
{
    dml__endpoint endpoint;
    memset(&endpoint, 0, sizeof endpoint); /* 0.0.0.0 or :: */
    endpoint.family = family == AF_INET ? 4 : 6;
    dml__from_endpoint(&endpoint, out);
}

DML__LOCAL uint16_t dml__address_port(const dml__address *address)
{
    return ntohs(address->storage.ss_family == AF_INET ? dml__as_ipv4(address).sin_port
                                                       : dml__as_ipv6(address).sin6_port);
}

DML__LOCAL void dml__set_address_port(dml__address *address, uint16_t port)
{
    if (address->storage.ss_family == AF_INET) {
        struct sockaddr_in ipv4 = dml__as_ipv4(address);
        ipv4.sin_port = htons(port);
        memcpy(&address->storage, &ipv4, sizeof ipv4);
    } else {
        struct sockaddr_in6 ipv6 = dml__as_ipv6(address);
        ipv6.sin6_port = htons(port);
        memcpy(&address->storage, &ipv6, sizeof ipv6);
    }
}

DML__LOCAL void dml__to_endpoint(const dml__address *address, dml__endpoint *endpoint)
{
    memset(endpoint, 0, sizeof *endpoint);
    endpoint->port = dml__address_port(address);
    if (address->storage.ss_family == AF_INET) {
        const struct sockaddr_in ipv4 = dml__as_ipv4(address);
        endpoint->family = 4;
        memcpy(endpoint->ip, &ipv4.sin_addr, 4);
    } else {
        const struct sockaddr_in6 ipv6 = dml__as_ipv6(address);
        const bool mapped = IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr); /* IPv4 on a socket of both */
        endpoint->family = mapped ? 4 : 6;
        memcpy(endpoint->ip, ipv6.sin6_addr.s6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
    }
}

DML__LOCAL void dml__from_endpoint(const dml__endpoint *endpoint, dml__address *address)
{
    if (endpoint->family == 4) {
        struct sockaddr_in ipv4;
        memset(&ipv4, 0, sizeof ipv4);
        ipv4.sin_family = AF_INET;
        memcpy(&ipv4.sin_addr, endpoint->ip, 4);
        dml__set_address(address, &ipv4, sizeof ipv4);
    } else {
        struct sockaddr_in6 ipv6;
        memset(&ipv6, 0, sizeof ipv6);
        ipv6.sin6_family = AF_INET6;
        memcpy(&ipv6.sin6_addr, endpoint->ip, 16);
        dml__set_address(address, &ipv6, sizeof ipv6);
    }
    dml__set_address_port(address, endpoint->port);
}

static bool dml__same_ip(const dml__address *a, const dml__address *b)
{
    dml__endpoint one, other;
    dml__to_endpoint(a, &one);
    dml__to_endpoint(b, &other);
    return one.family == other.family && memcmp(one.ip, other.ip, sizeof one.ip) == 0;
}

static bool dml__is_link_local(const dml__address *address)
{
    const struct sockaddr_in6 ipv6 = dml__as_ipv6(address);
    return address->storage.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&ipv6.sin6_addr);
}

/* The address of an entry of getifaddrs; false: it has none that is of any use. */
static bool dml__take_interface(const struct ifaddrs *entry, dml__address *out)
{
    const int family = entry->ifa_addr ? entry->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) return false;
    dml__set_address(out, entry->ifa_addr,
                     family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    return true;
}

DML__LOCAL bool dml__interface_address(const char *name, const dml__address *like, dml__address *out)
{
    struct ifaddrs *list = NULL;
    int best = 0;
    if (getifaddrs(&list) != 0) return false;
    for (const struct ifaddrs *at = list; at; at = at->ifa_next) {
        dml__address have;
        if (strcmp(at->ifa_name, name) != 0 || !dml__take_interface(at, &have)) continue;
        if (have.storage.ss_family != like->storage.ss_family) continue;
        const int likeness = dml__same_ip(&have, like)                               ? 3
                             : dml__is_link_local(&have) == dml__is_link_local(like) ? 2
                                                                                     : 1;
        if (likeness <= best) continue;
        best = likeness;
        *out = have;
    }
    freeifaddrs(list);
    return best > 0;
}

/* The number of the interface that has this address; 0: none. */
static uint32_t dml__interface_number(const dml__address *address)
{
    struct ifaddrs *list = NULL;
    uint32_t number = 0;
    if (getifaddrs(&list) != 0) return 0;
    for (const struct ifaddrs *at = list; at && !number; at = at->ifa_next) {
        dml__address have;
        if (dml__take_interface(at, &have) && dml__same_ip(&have, address))
            number = if_nametoindex(at->ifa_name);
    }
    freeifaddrs(list);
    return number;
}

static uint32_t dml__address_scope(const dml__address *address)
{
    return address->storage.ss_family == AF_INET6 ? dml__as_ipv6(address).sin6_scope_id : 0;
}

DML__LOCAL void dml__complete_address(const dml__socket_calls *calls, int fd, const dml__address *to,
                                      dml__address *address)
{
    if (!dml__is_link_local(address)) return;
    struct sockaddr_in6 ipv6 = dml__as_ipv6(address);
    dml__address own;
    own.bytes = sizeof own.storage;
    const bool known = calls->own_address(fd, (struct sockaddr *)(void *)&own.storage, &own.bytes) == 0;
    ipv6.sin6_scope_id = known ? dml__address_scope(&own) : 0;
    /* Either end of the connection may have a global address, or both. */
    if (!ipv6.sin6_scope_id) ipv6.sin6_scope_id = dml__address_scope(to);
    if (!ipv6.sin6_scope_id && known) ipv6.sin6_scope_id = dml__interface_number(&own);
    memcpy(&address->storage, &ipv6, sizeof ipv6);
}

DML__LOCAL const char *dml__address_text(const dml__address *address, char text[DML__ADDRESS_TEXT])
{
    char ip[INET6_ADDRSTRLEN] = "?";
    dml__endpoint endpoint;
    dml__to_endpoint(address, &endpoint);
    inet_ntop(endpoint.family == 4 ? AF_INET : AF_INET6, endpoint.ip, ip, sizeof ip);
    snprintf(text, DML__ADDRESS_TEXT, endpoint.family == 4 ? "%s:%d" : "[%s]:%d", ip, endpoint.port);
    return text;
}

/* ---- sockets ---- */

/* Closes a socket that something failed on, keeping that something's errno. */
static int dml__discard_socket(const dml__socket_calls *calls, int fd)
{
    const int error = errno;
    if (fd >= 0) calls->close(fd);
    errno = error;
    return -1;
}

static void dml__tune_socket(const dml__socket_calls *calls, int fd)
{
    /* Without them all works too, only slower: so what they return doesn't matter. */
    calls->set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
#ifdef SO_NOSIGPIPE
    calls->set_option(fd, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
}

DML__LOCAL int dml__socket_listen(const dml__socket_calls *calls, dml__address *address)
{
    const int fd = calls->open(address->storage.ss_family);
    if (fd < 0) return -1;
    calls->set_option(fd, SOL_SOCKET, SO_REUSEADDR,
                      1); /* so that a job can follow another on the same port */
    if (address->storage.ss_family == AF_INET6) calls->set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (calls->bind(fd, dml__raw_address(address), address->bytes) < 0 || calls->listen(fd, SOMAXCONN) < 0)
        return dml__discard_socket(calls, fd);
    address->bytes = sizeof address->storage;
    if (calls->own_address(fd, (struct sockaddr *)(void *)&address->storage, &address->bytes) < 0)
        return dml__discard_socket(calls, fd);
    return fd;
}

DML__LOCAL int dml__socket_connect(const dml__socket_calls *calls, const dml__address *to,
                                   const dml__address *from)
{
    const int fd = calls->open(to->storage.ss_family);
    if (fd < 0) return -1;
    dml__tune_socket(calls, fd);
    if (from && calls->bind(fd, dml__raw_address(from), from->bytes) < 0)
        return dml__discard_socket(calls, fd);
    if (calls->connect(fd, dml__raw_address(to), to->bytes) < 0 && errno != EINPROGRESS && errno != EINTR)
        return dml__discard_socket(calls, fd);
    return fd;
}

DML__LOCAL int dml__socket_connect_error(const dml__socket_calls *calls, int fd, const dml__address *to)
{
    const int error = calls->error(fd);
    if (error) return error < 0 ? EIO : error;
    /* Where nobody listens yet, and the port is one that the system also picks from for the connecting side,
       a socket can end up connected to itself. */
    dml__address own;
    own.bytes = sizeof own.storage;
    if (calls->own_address(fd, (struct sockaddr *)(void *)&own.storage, &own.bytes) < 0) return errno;
    return dml__address_port(&own) == dml__address_port(to) && dml__same_ip(&own, to) ? ECONNREFUSED : 0;
}

DML__LOCAL int dml__socket_accept(const dml__socket_calls *calls, int listener, dml__address *from)
{
    int fd;
    do {
        from->bytes = sizeof from->storage;
        fd = calls->accept(listener, (struct sockaddr *)(void *)&from->storage, &from->bytes);
    } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (fd >= 0) dml__tune_socket(calls, fd);
    return fd;
}

/* The spans as a message of sendmsg and recvmsg; how many bytes they are. */
static size_t dml__span_message(const dml__span *spans, int count, struct iovec parts[4],
                                struct msghdr *message)
{
    size_t bytes = 0;
    memset(message, 0, sizeof *message);
    DML_ASSERT(count <= 4);
    message->msg_iov = parts;
    for (int i = 0; i < count; i++) {
        if (!spans[i].bytes) continue;
        struct iovec *part = &parts[message->msg_iovlen++];
        part->iov_base = spans[i].data;
        part->iov_len = spans[i].bytes;
        bytes += spans[i].bytes;
    }
    return bytes;
}

static bool dml__would_block(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK;
}

DML__LOCAL ptrdiff_t dml__socket_send(const dml__socket_calls *calls, int fd, const dml__span *spans,
                                      int count)
{
    struct iovec parts[4];
    struct msghdr message;
    if (!dml__span_message(spans, count, parts, &message)) return 0;
    ssize_t sent;
    do sent = calls->send(fd, &message, DML__NO_SIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0) return dml__would_block() ? 0 : DML__GONE;
    return sent;
}

DML__LOCAL ptrdiff_t dml__socket_receive(const dml__socket_calls *calls, int fd, const dml__span *spans,
                                         int count)
{
    struct iovec parts[4];
    struct msghdr message;
    if (!dml__span_message(spans, count, parts, &message)) return 0;
    ssize_t got;
    do got = calls->receive(fd, &message, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0) return dml__would_block() ? 0 : DML__GONE;
    if (got == 0) errno = 0;
    return got ? got : DML__GONE;
}

DML__LOCAL int dml__socket_poll(const dml__socket_calls *calls, struct pollfd *polls, size_t count,
                                double seconds)
{
    const double until = dml_seconds() + seconds;
    for (;;) {
        const double left = until - dml_seconds();
        /* Rounded up, or the last millisecond would be spun away. */
        const int milliseconds = left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1e3) + 1;
        const int ready = calls->poll(polls, (nfds_t)count, milliseconds);
        if (ready >= 0 || errno != EINTR) return ready;
    }
}

#endif
