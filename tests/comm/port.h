/* port.h: a port of loopback for the rank 0 of a job that a test is about to start. */
#ifndef DML_TESTS_COMM_PORT_H
#define DML_TESTS_COMM_PORT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A free port. On Linux it stays taken by a socket that doesn't listen, so that no other test gets it in
   between; rank 0 may still listen there, as both let others use the address. */
__attribute__((unused)) static int test_port(void)
{
    enum { HELD = 16 }; /* the last ones: the jobs of those before have ended */
    static int held[HELD], count;
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) < 0) {
        perror("a port of loopback");
        exit(1);
    }
#ifdef __linux__
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one); /* after bind: nobody else has it */
    if (count >= HELD) close(held[count % HELD]);
    held[count++ % HELD] = fd;
#else
    (void)held, (void)count, (void)one;
    close(fd);
#endif
    return ntohs(address.sin_port);
}

#endif
