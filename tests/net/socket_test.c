/* The system's sockets: what becomes of them in a program that starts others. */
#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "net/socket.h"

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../test.h"

extern char **environ;

static const char *program;
static int stop; /* atomic */

static int count_sockets(void)
{
    int count = 0;
    struct stat about;
    for (int fd = 3; fd < 100; fd++) count += fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode);
    return count;
}

/* Starts this program again; how many sockets it finds open. */
static int inherited_sockets(void)
{
    char count[] = "count", *arguments[] = { (char *)(uintptr_t)program, count, NULL };
    pid_t pid = -1;
    int status = -1;
    CHECK_INT(posix_spawn(&pid, program, NULL, NULL, arguments, environ), 0);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int listen_on_loopback(dml__address *at)
{
    dml__endpoint loopback;
    memset(&loopback, 0, sizeof loopback);
    loopback.family = 4;
    loopback.ip[0] = 127;
    loopback.ip[3] = 1;
    dml__from_endpoint(&loopback, at);
    return dml__socket_listen(dml__system_sockets(), at);
}

static void *open_and_close(void *argument)
{
    const dml__socket_calls *calls = dml__system_sockets();
    dml__address at, from;
    const int listener = listen_on_loopback(&at);
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
        int ends[2];
        const int connected = dml__socket_connect(calls, &at, NULL);
        struct pollfd come = { listener, POLLIN, 0 };
        if (calls->pair(ends) == 0) {
            calls->close(ends[0]);
            calls->close(ends[1]);
        }
        poll(&come, 1, 1000);
        const int accepted = dml__socket_accept(calls, listener, &from);
        if (accepted >= 0) calls->close(accepted);
        if (connected >= 0) calls->close(connected);
    }
    calls->close(listener);
    return argument;
}

/* A program that another thread starts in the very moment would keep a connection open for as long as it
 * runs. */
static void sockets_are_not_inherited(void)
{
#if defined(__linux__)
    pthread_t thread;
    const int before = inherited_sockets(); /* from who started this */
    int more = 0;
    stop = 0;
    CHECK_INT(pthread_create(&thread, NULL, open_and_close, NULL), 0);
    for (int i = 0; i < (TEST_SLOW ? 50 : 300); i++) more += inherited_sockets() > before;
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    CHECK_INT(more, 0);
#else
    (void)inherited_sockets, (void)open_and_close;
    SKIP("this system makes no sockets that are close-on-exec from the start");
#endif
}

/* On every system, and they don't block. */
static void sockets_have_their_flags(void)
{
    const dml__socket_calls *calls = dml__system_sockets();
    dml__address at, from;
    int fds[5];
    CHECK_INT(calls->pair(fds), 0);
    fds[2] = listen_on_loopback(&at);
    fds[3] = dml__socket_connect(calls, &at, NULL);
    struct pollfd come = { fds[2], POLLIN, 0 };
    CHECK_INT(poll(&come, 1, 5000), 1);
    fds[4] = dml__socket_accept(calls, fds[2], &from);
    for (int i = 0; i < 5; i++) {
        CHECK(fcntl(fds[i], F_GETFL) & O_NONBLOCK);
        CHECK(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
        calls->close(fds[i]);
    }
}

int main(int count, char **arguments)
{
    if (count > 1) return count_sockets();
    program = arguments[0];
    RUN(sockets_are_not_inherited);
    RUN(sockets_have_their_flags);
    return test_report("net/socket");
}
