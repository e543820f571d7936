/* bare.h: as many bytes between processes as a collective moves, with no order, headers or sums: what it
   could reach at best. Each sends to its neighbour and takes from the other one, over TCP connections or
   through rings in shared memory. */
#ifndef DML_BENCH_BARE_H
#define DML_BENCH_BARE_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BARE_PIECE = 65536, BARE_PIECES = 8 };

/* From one rank to the next, in memory that both have. */
typedef struct bare_pipe {
    uint32_t sent, space_behind[31];
    uint32_t taken, space_at_end[31];
    char pieces[BARE_PIECES][BARE_PIECE];
} bare_pipe;

typedef struct bare_ring {
    int to, from;        /* sockets to the next rank and from the one before */
    bare_pipe *out, *in; /* the same through memory */
    bool through_memory; /* which of both */
    bool yields;         /* more ranks than processors: who waits gives way at once */
} bare_ring;

static void bare_die(const char *what)
{
    fprintf(stderr, "allreduce: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* A TCP connection of this process with itself over loopback. */
static void bare_connect(int *sender, int *receiver)
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, bytes) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) < 0)
        bare_die("can't listen on loopback");
    *sender = socket(AF_INET, SOCK_STREAM, 0);
    if (*sender < 0 || connect(*sender, (struct sockaddr *)&address, bytes) < 0)
        bare_die("can't connect on loopback");
    *receiver = accept(listener, NULL, NULL);
    if (*receiver < 0) bare_die("can't accept on loopback");
    close(listener);
    setsockopt(*sender, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(*sender, F_SETFL, O_NONBLOCK);
    fcntl(*receiver, F_SETFL, O_NONBLOCK);
}

/* The rings of all ranks, before they become processes of their own. */
static void bare_open(bare_ring *rings, int ranks, bool through_memory)
{
    const bool yields = ranks > (int)sysconf(_SC_NPROCESSORS_ONLN);
    bare_pipe *pipes = NULL;
    if (through_memory) {
        pipes = mmap(NULL, (size_t)ranks * sizeof *pipes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                     -1, 0);
        if (pipes == MAP_FAILED) bare_die("can't share memory");
    }
    for (int rank = 0; rank < ranks; rank++) {
        bare_ring *ring = &rings[rank];
        ring->through_memory = through_memory;
        ring->yields = yields;
        ring->out = pipes ? &pipes[rank] : NULL;
        ring->in = pipes ? &pipes[(rank + ranks - 1) % ranks] : NULL;
        if (!through_memory) bare_connect(&ring->to, &rings[(rank + 1) % ranks].from);
    }
}

static void bare_close(bare_ring *ring)
{
    if (ring->through_memory) return;
    close(ring->to);
    close(ring->from);
}

static size_t bare_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Sends `out_bytes` and takes `in_bytes`, from and to buffers of `buffer_bytes` over and over. */
static void bare_exchange_sockets(const bare_ring *ring, const char *out, char *in, size_t buffer_bytes,
                                  size_t out_bytes, size_t in_bytes)
{
    size_t sent = 0, got = 0;
    while (sent < out_bytes || got < in_bytes) {
        ssize_t moved_out = 0, moved_in = 0;
        if (sent < out_bytes) {
            const size_t at = sent % buffer_bytes;
            moved_out =
                send(ring->to, out + at, bare_least(buffer_bytes - at, out_bytes - sent), MSG_NOSIGNAL);
            if (moved_out > 0) sent += (size_t)moved_out;
        }
        if (got < in_bytes) {
            const size_t at = got % buffer_bytes;
            moved_in = recv(ring->from, in + at, bare_least(buffer_bytes - at, in_bytes - got), 0);
            if (moved_in > 0) got += (size_t)moved_in;
            if (moved_in == 0) exit(1); /* the rank before has failed, and says so itself */
        }
        if (moved_out > 0 || moved_in > 0) continue;
        struct pollfd polls[2] = { { sent < out_bytes ? ring->to : -1, POLLOUT, 0 },
                                   { got < in_bytes ? ring->from : -1, POLLIN, 0 } };
        poll(polls, 2, -1);
    }
}

static void bare_exchange_memory(const bare_ring *ring, const char *out, char *in, size_t buffer_bytes,
                                 size_t out_bytes, size_t in_bytes)
{
    size_t sent = 0, got = 0;
    for (int idle = 0; sent < out_bytes || got < in_bytes; idle++) {
        const uint32_t taken = __atomic_load_n(&ring->out->taken, __ATOMIC_ACQUIRE), put = ring->out->sent;
        if (sent < out_bytes && put - taken < BARE_PIECES) {
            const size_t at = sent % buffer_bytes;
            const size_t bytes = bare_least(bare_least(BARE_PIECE, buffer_bytes - at), out_bytes - sent);
            memcpy(ring->out->pieces[put % BARE_PIECES], out + at, bytes);
            __atomic_store_n(&ring->out->sent, put + 1, __ATOMIC_RELEASE);
            sent += bytes;
            idle = 0;
        }
        const uint32_t came = __atomic_load_n(&ring->in->sent, __ATOMIC_ACQUIRE), had = ring->in->taken;
        if (got < in_bytes && came != had) {
            const size_t at = got % buffer_bytes;
            const size_t bytes = bare_least(bare_least(BARE_PIECE, buffer_bytes - at), in_bytes - got);
            memcpy(in + at, ring->in->pieces[had % BARE_PIECES], bytes);
            __atomic_store_n(&ring->in->taken, had + 1, __ATOMIC_RELEASE);
            got += bytes;
            idle = 0;
        }
        if (ring->yields ? idle > 0 : idle > 10000) sched_yield();
    }
}

static void bare_exchange(const bare_ring *ring, const char *out, char *in, size_t buffer_bytes,
                          size_t out_bytes, size_t in_bytes)
{
    if (ring->through_memory)
        bare_exchange_memory(ring, out, in, buffer_bytes, out_bytes, in_bytes);
    else
        bare_exchange_sockets(ring, out, in, buffer_bytes, out_bytes, in_bytes);
}

#endif
