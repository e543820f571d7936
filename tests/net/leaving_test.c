/* A rank that leaves a rendezvous tells why to those who count it in already, though it doesn't know that
   yet. Rank 3's welcome by rank 1 is held up; meanwhile its connection to rank 2 ends, which it alone sees,
   and the ranks that could tell rank 1 of it, 0 and 2, do nothing for a while. */
#include "../comm/ranks.h"

#include <errno.h>

enum { RANKS = 4 };

static int ports[2], held = -1, ended = -1; /* of ranks 1 and 2; rank 3's descriptors to them */
static double hello_sent;                   /* by rank 3 to rank 1 */
static int master_port;
static int frozen; /* atomic */

static double since_hello(void)
{
    return hello_sent > 0 ? dml_seconds() - hello_sent : 0;
}

/* The ranks below in their order, control before data. */
static int note_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    struct sockaddr_in to;
    memcpy(&to, address, sizeof to);
    const int port = ntohs(to.sin_port);
    if (port != master_port && !ports[0]) {
        ports[0] = port;
        held = fd;
    } else if (port != master_port && port != ports[0] && !ports[1]) {
        ports[1] = port;
        ended = fd;
    }
    return dml__system_sockets()->connect(fd, address, bytes);
}

static ssize_t note_hello(int fd, const struct msghdr *message, int flags)
{
    const ssize_t sent = dml__system_sockets()->send(fd, message, flags);
    if (fd == held && sent > 0 && !(hello_sent > 0)) hello_sent = dml_seconds();
    return sent;
}

static ssize_t hold_or_end(int fd, struct msghdr *message, int flags)
{
    if (fd == ended && since_hello() > 0.2) {
        __atomic_store_n(&frozen, 1, __ATOMIC_SEQ_CST);
        return 0;
    }
    if (fd == held && since_hello() > 0 && since_hello() < 0.4) {
        errno = EAGAIN;
        return -1;
    }
    return dml__system_sockets()->receive(fd, message, flags);
}

static int say_that_it_ended(struct pollfd *polls, nfds_t count, int milliseconds)
{
    int ready = dml__system_sockets()->poll(polls, count, milliseconds);
    for (nfds_t i = 0; i < count && since_hello() > 0.2; i++) {
        if (polls[i].fd != ended || polls[i].revents) continue;
        polls[i].revents = POLLIN;
        ready++;
    }
    return ready;
}

static int freeze(struct pollfd *polls, nfds_t count, int milliseconds)
{
    const int ready = dml__system_sockets()->poll(polls, count, milliseconds);
    if (__atomic_load_n(&frozen, __ATOMIC_SEQ_CST)) ranks_sleep(0.7);
    return ready;
}

static void who_leaves_says_why(void)
{
    dml__socket_calls leaving = *dml__system_sockets(), silent = leaving;
    leaving.connect = note_connect;
    leaving.send = note_hello;
    leaving.receive = hold_or_end;
    leaving.poll = say_that_it_ended;
    silent.poll = freeze;
    test_rank ranks[RANKS];
    ranks_prepare(ranks, RANKS, 8, NULL, NULL);
    master_port = ranks[0].options.master_port;
    ranks[0].sockets = ranks[2].sockets = &silent;
    ranks[3].sockets = &leaving;
    ranks_run(ranks, RANKS);
    CHECK_CONTAINS(ranks[3].error, "rank 2 of 4 died");
    CHECK_CONTAINS(ranks[1].error, "rank 2 of 4 died");
    CHECK_INT(ranks[1].status, DML_ERROR_PEER);
    CHECK_MESSAGE(ranks[3].seconds < 4, "rank 3 took %g s to leave", ranks[3].seconds);
}

int main(void)
{
    RUN(who_leaves_says_why);
    return test_report("net/leaving");
}
