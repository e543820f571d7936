/* loopback.h: sockets of this host, for benchmarks that run several processes on it. */
#ifndef DML_BENCH_LOOPBACK_H
#define DML_BENCH_LOOPBACK_H

#include "options.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in loopback_address(void)
{
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* A socket at a port that the system chose, which `address` then names. Ends the program where there is none.
 */
static int loopback_bound(struct sockaddr_in *address)
{
    socklen_t bytes = sizeof *address;
    *address = loopback_address();
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)address, bytes) == 0 &&
        getsockname(fd, (struct sockaddr *)address, &bytes) == 0)
        return fd;
    fprintf(stderr, "no port of this host can be had: %s\n", strerror(errno));
    exit(1);
}

/* A port for a rank 0 that is about to listen. On Linux the socket stays, so that nobody else gets it before.
 */
BENCH__UNUSED static int loopback_free_port(void)
{
    struct sockaddr_in address;
    const int fd = loopback_bound(&address), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
#ifndef __linux__
    close(fd);
#endif
    return ntohs(address.sin_port);
}

/* Two ends of a TCP connection that sends at once. */
BENCH__UNUSED static void loopback_pair(int ends[2])
{
    struct sockaddr_in address;
    const int listener = loopback_bound(&address), one = 1;
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (listen(listener, 1) < 0 || ends[0] < 0 ||
        connect(ends[0], (struct sockaddr *)&address, sizeof address) < 0 ||
        (ends[1] = accept(listener, NULL, NULL)) < 0) {
        fprintf(stderr, "no connection of this host with itself: %s\n", strerror(errno));
        exit(1);
    }
    close(listener);
    for (int i = 0; i < 2; i++) setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

#endif
