/* ranks.h: the ranks of a job as threads of one process, each with a communicator of its own. */
#ifndef DML_TESTS_COMM_RANKS_H
#define DML_TESTS_COMM_RANKS_H

#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "comm/comm.h"
#include "comm/job.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../test.h"
#include "port.h"

#define RANKS_MAX 9   /* of most tests */
#define RANKS_MOST 32 /* of any */

typedef struct test_rank {
    int rank, world;
    dml_comm_options options;
    const dml__socket_calls *sockets; /* NULL: the system's */
    void (*body)(struct test_rank *);
    void *user;
    /* What came of it. */
    dml_comm *comm; /* closed when the test looks */
    dml_status status;
    char error[512];
    int strangers, bad, culprit; /* the last one only where the body asks */
    unsigned long long digest;
    double seconds;
} test_rank;

#define RANKS_UNUSED __attribute__((unused))

RANKS_UNUSED static int ranks_connect(int port)
{
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((unsigned short)port);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

RANKS_UNUSED static void ranks_sleep(double seconds)
{
    struct timespec time;
    time.tv_sec = (time_t)seconds;
    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    nanosleep(&time, NULL);
}

/* Opens, runs the body, keeps what the communicator says, closes. */
RANKS_UNUSED static void *ranks_thread(void *argument)
{
    test_rank *me = (test_rank *)argument;
    const double begin = dml_seconds();
    if (!me->comm)
        me->comm = dml__comm_open_on(&me->options, me->sockets ? me->sockets : dml__system_sockets());
    if (me->comm && me->body && !dml_comm_status(me->comm)) me->body(me);
    me->status = dml_comm_status(me->comm);
    snprintf(me->error, sizeof me->error, "%s", dml_comm_error(me->comm));
    me->strangers = dml_comm_strangers(me->comm);
    me->seconds = dml_seconds() - begin;
    dml_comm_close(me->comm);
    me->comm = NULL;
    return NULL;
}

/* Fills in ranks 0 .. world - 1 of a job on a port of its own. */
RANKS_UNUSED static void ranks_prepare(test_rank *ranks, int world, double timeout, void (*body)(test_rank *),
                                       void *user)
{
    const int port = test_port();
    for (int rank = 0; rank < world; rank++) {
        test_rank *me = &ranks[rank];
        memset(me, 0, sizeof *me);
        me->rank = rank;
        me->world = world;
        me->body = body;
        me->user = user;
        me->options.rank = rank;
        me->options.world_size = world;
        me->options.master_port = port;
        me->options.timeout_s = timeout;
    }
}

/* Runs some of them, the last one first, and waits for all. */
RANKS_UNUSED static void ranks_run(test_rank *ranks, int count)
{
    pthread_t threads[RANKS_MOST];
    for (int i = count - 1; i >= 0; i--) pthread_create(&threads[i], NULL, ranks_thread, &ranks[i]);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

/* The same over "tcp", "shm" or "local": communicators of one process, with rank 0's options. */
RANKS_UNUSED static void ranks_run_on(test_rank *ranks, int world, const char *transport)
{
    dml_comm *comms[RANKS_MOST];
    const bool local = strcmp(transport, "local") == 0;
    if (local) CHECK_INT(dml_comm_open_local(comms, world, &ranks[0].options), DML_OK);
    for (int rank = 0; rank < world; rank++) {
        ranks[rank].comm = local ? comms[rank] : NULL;
        if (!local) ranks[rank].options.transport = transport;
    }
    ranks_run(ranks, world);
}

/* FNV-1a, to compare what ranks got without sharing it. */
RANKS_UNUSED static void ranks_digest(test_rank *me, const void *data, size_t bytes)
{
    const unsigned char *in = (const unsigned char *)data;
    if (!me->digest) me->digest = 14695981039346656037ull;
    for (size_t i = 0; i < bytes; i++) me->digest = (me->digest ^ in[i]) * 1099511628211ull;
}

/* Every rank ended well, with the same digest. */
RANKS_UNUSED static void check_ranks(const test_rank *ranks, int world)
{
    for (int rank = 0; rank < world; rank++) {
        const test_rank *me = &ranks[rank];
        CHECK_MESSAGE(!me->status, "rank %d of %d: %s", rank, world, me->error);
        CHECK_MESSAGE(!me->bad, "rank %d of %d: %d wrong results", rank, world, me->bad);
        CHECK_MESSAGE(me->digest == ranks[0].digest, "rank %d of %d has other results than rank 0", rank,
                      world);
    }
}

#endif
