/* dmlrun_environment.h: the environment variables by which ranks find each other, the same for all of them.
   Linux's fcntl needs _GNU_SOURCE. */
#ifndef DMLRUN_ENVIRONMENT_H
#define DMLRUN_ENVIRONMENT_H

#include "dmlrun_options.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* Binds a socket to a port of loopback; of 0, to one that the system hands out. 0: it is taken. */
static int bind_port(int fd, int port)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)port);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        return 0;
    return ntohs(address.sin_port);
}

/* The first of those that the system hands out to connections, among which a program that counts on from
   MASTER_PORT would find its own. */
static int first_handed_out(void)
{
    int first = 0;
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
    if (file && fscanf(file, "%d", &first) != 1) first = 0;
    if (file) fclose(file);
    return first > 0 ? first : 32768;
}

/* A port that nobody has now. On Linux it stays taken by a socket that doesn't listen, so that no other
   program gets it before rank 0 listens there, which it may as both let others use the address. */
static int free_port(void)
{
    enum { LEAST = 10000, TRIES = 64 };
    const int one = 1, room = first_handed_out() - LEAST;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    unsigned at = (unsigned)getpid() * 7919u + (unsigned)time(NULL);
    int port = 0;
    for (int i = 0; fd >= 0 && room > 0 && !port && i < TRIES; i++, at += 37)
        port = bind_port(fd, LEAST + (int)(at % (unsigned)room));
    if (fd >= 0 && !port) port = bind_port(fd, 0);
    if (!port || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0)
        die(1, "can't find a free port: %s", strerror(errno));
#ifdef __linux__
    fcntl(fd, F_SETFD, FD_CLOEXEC);
#else
    close(fd);
#endif
    return port;
}

static void set_random_key(void)
{
    unsigned char bytes[32];
    char hex[65];
    FILE *file = fopen("/dev/urandom", "rb");
    if (!file || fread(bytes, 1, sizeof bytes, file) != sizeof bytes)
        die(1, "can't read /dev/urandom for a key; set DML_KEY yourself");
    fclose(file);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    setenv("DML_KEY", hex, 1);
}

/* What is the same for every rank goes into our own environment, which they inherit. How many threads a rank
   has the library knows best, by LOCAL_WORLD_SIZE and what its control group may use. */
static void set_environment(const options *o)
{
    set_number("WORLD_SIZE", o->ranks);
    set_number("LOCAL_WORLD_SIZE", o->ranks);
    if (o->servers > 0) set_number("DML_PS", o->servers);
    setenv("MASTER_ADDR", o->master_address, 1);
    set_number("MASTER_PORT", o->master_port ? o->master_port : free_port());
    if (!getenv("DML_KEY")) set_random_key();
    if (o->threads > 0) set_number("DML_THREADS", o->threads);
}

#endif
