/* The TCP transport by itself: two ranks of one process. */
#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "net/net.h"
#include "net/wire.h"

#include <errno.h>
#include <pthread.h>

#include "../comm/port.h"
#include "../test.h"

typedef struct end {
    dml__net_settings settings;
    dml__socket_calls sockets;
    dml__memory memory;
    dml_allocator allocator;
    dml__net_user user;
    dml__transport *transport;
    int strangers;
    char error[DML__NET_TEXT];
    /* What has come of a message. */
    uint8_t bytes[DML__CONTROL_BYTES];
    size_t come;
    int bad; /* messages that make no sense */
    bool gone;
} end;

static void end_fails(void *user, dml__transport *transport, int culprit, dml_status status, const char *text)
{
    (void)transport, (void)culprit, (void)status;
    snprintf(((end *)user)->error, DML__NET_TEXT, "%s", text);
}

/* The next message from the other end; false: not all of it has come. */
static bool hear(end *e, dml__control *control)
{
    while (e->come < sizeof e->bytes && !e->gone) {
        dml__span span = { e->bytes + e->come, sizeof e->bytes - e->come };
        const ptrdiff_t got =
            e->transport->calls->receive(e->transport, 1 - e->settings.rank, DML__CHANNEL_CONTROL, &span, 1);
        if (got == 0) return false;
        if (got == DML__GONE)
            e->gone = true;
        else
            e->come += (size_t)got;
    }
    if (e->come < sizeof e->bytes) return false;
    e->come = 0;
    e->bad += !dml__decode_control(e->bytes, control);
    return true;
}

static bool end_control(void *user, dml__transport *transport, dml__meeting *meeting)
{
    end *e = (end *)user;
    dml__control control;
    e->transport = transport;
    return !hear(e, &control) || dml__take_addresses(meeting, 1 - e->settings.rank, &control);
}

static void *end_thread(void *argument)
{
    end *e = (end *)argument;
    e->transport = dml__tcp_open(&e->settings, &e->sockets, &e->user);
    return NULL;
}

/* Two ranks that have met. */
static void open_ends(end ends[2], const dml__socket_calls *sockets)
{
    pthread_t threads[2];
    const int port = test_port();
    memset(ends, 0, 2 * sizeof *ends);
    for (int rank = 0; rank < 2; rank++) {
        end *e = &ends[rank];
        e->settings.rank = rank;
        e->settings.world = 2;
        e->settings.master_addr = "127.0.0.1";
        e->settings.master_port = port;
        e->settings.timeout = 20;
        e->settings.grace = 1;
        e->sockets = *sockets;
        dml__memory_init(&e->memory, &e->allocator, NULL, 0);
        e->user.memory = &e->memory;
        e->user.strangers = &e->strangers;
        e->user.user = e;
        e->user.fail = end_fails;
        e->user.control = end_control;
        pthread_create(&threads[rank], NULL, end_thread, e);
    }
    for (int rank = 0; rank < 2; rank++) pthread_join(threads[rank], NULL);
    for (int rank = 0; rank < 2; rank++) CHECK_STRING(ends[rank].error, "");
}

static void close_end(end *e)
{
    if (e->transport) e->transport->calls->close(e->transport);
    e->transport = NULL;
}

static bool say(end *e, int number)
{
    dml__control control;
    memset(&control, 0, sizeof control);
    control.kind = DML__CONTROL_KINDS;
    control.rank = number;
    control.bytes = DML__CONTROL_BODY;
    for (int i = 0; i < DML__CONTROL_BODY; i++) control.body[i] = (uint8_t)(number + i);
    return dml__send_control(e->transport, 1 - e->settings.rank, &control, 0);
}

/* That message comes next, whole, within a second or so. */
static bool comes(end *e, int number)
{
    dml__control control;
    for (int tries = 0; tries < 1000; tries++) {
        if (hear(e, &control))
            return control.rank == number && control.bytes == DML__CONTROL_BODY &&
                   control.body[DML__CONTROL_BODY - 1] == (uint8_t)(number + DML__CONTROL_BODY - 1);
        if (e->gone) return false;
        e->transport->calls->wait(e->transport, NULL, 1e-2);
    }
    return false;
}

/* ---- a socket that takes a part ---- */

static int room = -1; /* bytes that it takes before it is full; -1: it isn't */

static ssize_t send_to_full(int fd, const struct msghdr *message, int flags)
{
    struct msghdr part = *message;
    struct iovec first = message->msg_iov[0];
    if (room < 0) return sendmsg(fd, message, flags);
    if (first.iov_len > (size_t)room) first.iov_len = (size_t)room;
    part.msg_iov = &first;
    part.msg_iovlen = 1;
    if (!first.iov_len) {
        errno = EAGAIN;
        return -1;
    }
    const ssize_t sent = sendmsg(fd, &part, flags);
    if (sent > 0) room -= (int)sent;
    return sent;
}

/* What finishes a message that has been begun. */
static void send_next(end ends[2])
{
    CHECK(say(&ends[0], 102));
}
static void wait_for_room(end ends[2])
{
    ends[0].transport->calls->wait(ends[0].transport, NULL, 0);
}
static void receive_something(end ends[2])
{
    dml__control control;
    CHECK(!hear(&ends[0], &control));
}
static void close_it(end ends[2])
{
    close_end(&ends[0]);
}

static void a_message_that_was_begun_is_finished(void)
{
    static void (*const ways[])(end ends[2]) = { send_next, wait_for_room, receive_something, close_it };
    static const int parts[] = { 1, 300, DML__CONTROL_BYTES - 1 };
    dml__socket_calls sockets = *dml__system_sockets();
    sockets.send = send_to_full;
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            end ends[2];
            room = -1;
            open_ends(ends, &sockets);
            if (!ends[0].transport || !ends[1].transport) return;
            CHECK(say(&ends[0], 99));
            CHECK(comes(&ends[1], 99));
            room = parts[i];
            CHECK(say(&ends[0], 100));
            CHECK(!say(&ends[0], 101)); /* not a byte of it: there is no room */
            wait_for_room(ends);
            room = -1;
            ways[way](ends);
            CHECK(comes(&ends[1], 100));
            if (ends[0].transport && ways[way] != send_next) CHECK(say(&ends[0], 102));
            CHECK(comes(&ends[1], 102) || !ends[0].transport);
            close_end(&ends[0]);
            CHECK(!comes(&ends[1], 0) && ends[1].gone && ends[1].come == 0);
            CHECK_INT(ends[1].bad, 0);
            close_end(&ends[1]);
        }
}

/* Of a rank that reads too little, through small buffers which take any part: whatever went comes, in its
 * order.
 */
static int open_small(int family)
{
    const int fd = dml__system_sockets()->open(family), bytes = 4096;
    if (fd < 0) return fd;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    return fd;
}

static ssize_t send_some(int fd, const struct msghdr *message, int flags)
{
    static unsigned state = 3;
    struct msghdr part = *message;
    struct iovec first = message->msg_iov[0];
    if (test_random(&state) % 2) first.iov_len = 1 + test_random(&state) % first.iov_len;
    part.msg_iov = &first;
    part.msg_iovlen = 1;
    return sendmsg(fd, &part, flags);
}

static void a_rank_that_reads_too_little(void)
{
    enum { MESSAGES = 4000 };
    static int went[MESSAGES];
    dml__socket_calls sockets = *dml__system_sockets();
    dml__control control;
    end ends[2];
    unsigned state = 5;
    int count = 0, heard = 0, wrong = 0;
    sockets.open = open_small;
    open_ends(ends, &sockets);
    ends[0].sockets.send = send_some;
    if (!ends[0].transport || !ends[1].transport) return;
    for (int number = 0; number < MESSAGES; number++) {
        if (say(&ends[0], number)) went[count++] = number;
        if (test_random(&state) % 300 == 0)
            for (int i = 0; i < 40 && heard < count && hear(&ends[1], &control); i++)
                wrong += control.rank != went[heard++];
    }
    for (int tries = 0; heard < count && tries < 10000; tries++) {
        if (hear(&ends[1], &control)) {
            wrong += control.rank != went[heard++];
            continue;
        }
        wait_for_room(ends);
        ends[1].transport->calls->wait(ends[1].transport, NULL, 1e-3);
    }
    CHECK(count > 10 && count < MESSAGES);
    CHECK_INT(heard, count);
    CHECK_INT(wrong, 0);
    CHECK_INT(ends[1].bad, 0);
    for (int rank = 0; rank < 2; rank++) close_end(&ends[rank]);
}

int main(void)
{
    RUN(a_message_that_was_begun_is_finished);
    RUN(a_rank_that_reads_too_little);
    return test_report("net/tcp");
}
