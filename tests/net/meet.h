/* meet.h: what the tests of the rendezvous share. */
#ifndef TESTS_NET_MEET_H
#define TESTS_NET_MEET_H

#include "../comm/ranks.h"

/* The defaults. */
#define SEGMENT_BYTES (256 << 10)
#define MAX_REQUESTS 256

RANKS_UNUSED static void late_rank_body(test_rank *me)
{
    me->bad += dml_comm_barrier(me->comm) != DML_OK;
}

RANKS_UNUSED static void receive_all(int fd, uint8_t *out, size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        const ssize_t n = recv(fd, out + got, bytes - got, 0);
        if (n <= 0) return;
        got += (size_t)n;
    }
}

#endif
