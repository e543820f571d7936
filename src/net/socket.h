/* socket.h: stream sockets that never block, and the addresses they have. */
#ifndef DML_NET_SOCKET_H
#define DML_NET_SOCKET_H

#include "base/platform.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "net/transport.h"
#include "net/wire.h"

struct addrinfo;

/* Every call that this library makes on the network, as a table, so that a test can make the Nth one fail. */
typedef struct dml__socket_calls {
    int (*open)(int family);
    int (*set_option)(int fd, int level, int option, int value);
    int (*bind)(int fd, const struct sockaddr *address, socklen_t bytes);
    int (*listen)(int fd, int backlog);
    int (*accept)(int fd, struct sockaddr *address, socklen_t *bytes);
    int (*connect)(int fd, const struct sockaddr *address, socklen_t bytes);
    int (*error)(int fd); /* SO_ERROR: of a connect that has ended; -1 if it can't be had */
    int (*own_address)(int fd, struct sockaddr *address, socklen_t *bytes);
    int (*poll)(struct pollfd *polls, nfds_t count, int milliseconds);
    /* How many seconds ago the other end's system last confirmed anything, while something is on its way to
       it; -1: nothing is (what can't go since the other end takes nothing isn't on its way), or nobody knows.
     */
    double (*confirmed)(int fd);
    ssize_t (*send)(int fd, const struct msghdr *message, int flags);
    ssize_t (*receive)(int fd, struct msghdr *message, int flags);
    int (*shutdown)(int fd); /* nothing more will be sent: the other end is told after what has been */
    int (*close)(int fd);
    int (*pair)(int fds[2]); /* two sockets connected to each other, which don't block either */
    int (*random)(void *out, size_t bytes);
    int (*resolve)(const char *host, struct addrinfo **list); /* as getaddrinfo; for freeaddrinfo */
} dml__socket_calls;

/* The operating system's. `open` and `accept` give sockets that don't block and aren't inherited by exec. */
DML__LOCAL const dml__socket_calls *dml__system_sockets(void);

typedef struct dml__address {
    struct sockaddr_storage storage;
    socklen_t bytes;
} dml__address;

/* Up to `capacity` addresses of a name; 0 and getaddrinfo's error when there are none (and 0 where those that
   it has are neither IPv4 nor IPv6). May wait for a name server. */
DML__LOCAL int dml__resolve_host(const dml__socket_calls *calls, const char *host, uint16_t port,
                                 dml__address *out, int capacity, int *error);

/* Of the addresses that a network interface of this host has, that which is most like the given one: the
   same, or of its family and, where there is a choice, link-local if it is. False: none is of its family. */
DML__LOCAL bool dml__interface_address(const char *name, const dml__address *like, dml__address *out);

DML__LOCAL bool dml__is_loopback(const dml__address *address);
DML__LOCAL void dml__any_address(int family, dml__address *out);
DML__LOCAL uint16_t dml__address_port(const dml__address *address);
DML__LOCAL void dml__set_address_port(dml__address *address, uint16_t port);
DML__LOCAL void dml__to_endpoint(const dml__address *address, dml__endpoint *endpoint);
DML__LOCAL void dml__from_endpoint(const dml__endpoint *endpoint, dml__address *address);

/* Completes an address that has come from another host: a link-local one (fe80::...) means something on one
   link only, for which each host has a number of its own. It is that of the connection `fd` to `to`. */
DML__LOCAL void dml__complete_address(const dml__socket_calls *calls, int fd, const dml__address *to,
                                      dml__address *address);

/* "127.0.0.1:29500", "[::1]:29500"; returns the buffer. */
#define DML__ADDRESS_TEXT 80
DML__LOCAL const char *dml__address_text(const dml__address *address, char text[DML__ADDRESS_TEXT]);

/* A listening socket; a port of 0 becomes the one that was picked. -1 and errno. */
DML__LOCAL int dml__socket_listen(const dml__socket_calls *calls, dml__address *address);

/* A socket on its way to `to`, from the address `from` (NULL: any). -1 and errno. */
DML__LOCAL int dml__socket_connect(const dml__socket_calls *calls, const dml__address *to,
                                   const dml__address *from);

/* Why a connect that has ended has failed; 0 if it hasn't. */
DML__LOCAL int dml__socket_connect_error(const dml__socket_calls *calls, int fd, const dml__address *to);

/* The next who came; -1 if there is nobody now. */
DML__LOCAL int dml__socket_accept(const dml__socket_calls *calls, int listener, dml__address *from);

/* As many bytes as go without waiting, or DML__GONE (errno 0: the other end closed it). At most 4 spans. */
DML__LOCAL ptrdiff_t dml__socket_send(const dml__socket_calls *calls, int fd, const dml__span *spans,
                                      int count);
DML__LOCAL ptrdiff_t dml__socket_receive(const dml__socket_calls *calls, int fd, const dml__span *spans,
                                         int count);

/* poll(), resumed after signals with the time that is left. */
DML__LOCAL int dml__socket_poll(const dml__socket_calls *calls, struct pollfd *polls, size_t count,
                                double seconds);

#endif
