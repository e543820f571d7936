/* peers.h: other libraries, timed beside ours: each in a process of its own, since the spinning workers of
   one spoil the figures of another, and turn by turn with ours, since a machine's speed changes.

   A peer is an executable in the folder of peers (`make bench-peers` fills build/peers/run; --peers DIR or
   DML_PEERS name another), called as the library is. It is started with the number of threads as its
   argument, and answers each line on its standard input by one on its standard output:

     (its start)     ready VERSION | no REASON
     case WORDS      ok [WORDS]    | no REASON    from now on this is timed
     case compute KERNEL FILE SIZES    ok | no REASON    reads the inputs, floats, and leaves the result
     time SECONDS    the median seconds of one call, of as many as the seconds allow | no REASON

   It ends when its input ends. While it isn't asked anything it is stopped (SIGSTOP), so it may spin as it
   likes. */
#ifndef DML_BENCH_PEERS_H
#define DML_BENCH_PEERS_H

#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

enum { BENCH_PEERS_MAX = 12, BENCH_ROUNDS = 5 };

typedef struct bench_peer {
    const char *name;
    pid_t process; /* 0: not there */
    int to, from;
    bool takes_case;
    double seconds;   /* of one call of the current case */
    char answer[256]; /* the last, without its end of line */
    char said[256];   /* the answer to the current case */
} bench_peer;

typedef struct bench_peers {
    const char *program; /* who asks, for messages */
    int count;
    bench_peer list[BENCH_PEERS_MAX];
    /* What the machine can do at best, timed turn by turn too; NULL: nothing. */
    bench_stream *limit;
    double limit_rate; /* bytes/s, of the current case */
} bench_peers;

/* Whether this program has said which peers there are: it starts them again for each number of threads. */
static bool bench_peers_told;

/* Who is missing, and who leaves, is named among the rows, as who is there: the report lists both. */
BENCH__UNUSED static void bench__peer_gone(const bench_peers *peers, bench_peer *peer, const char *why)
{
    printf("# %s: left out the peer %s: %s\n", peers->program, peer->name, why);
    if (peer->process > 0) {
        kill(-peer->process, SIGKILL);
        waitpid(peer->process, NULL, 0);
        close(peer->to);
        close(peer->from);
    }
    peer->process = 0;
}

/* Writes the line and reads the answer to it; NULL: only reads. False: the peer has gone. */
BENCH__UNUSED static bool bench__peer_ask(const bench_peers *peers, bench_peer *peer, const char *line)
{
    enum { PATIENCE_MS = 300000 };
    size_t length = 0;
    if (line && write(peer->to, line, strlen(line)) != (ssize_t)strlen(line)) {
        bench__peer_gone(peers, peer, "it has ended");
        return false;
    }
    for (;;) {
        struct pollfd wait = { peer->from, POLLIN, 0 };
        char c;
        if (poll(&wait, 1, PATIENCE_MS) == 0) {
            bench__peer_gone(peers, peer, "it doesn't answer");
            return false;
        }
        const ssize_t got = read(peer->from, &c, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            bench__peer_gone(peers, peer, line ? "it has ended" : "it doesn't start");
            return false;
        }
        if (c == '\n') break;
        if (length + 1 < sizeof peer->answer) peer->answer[length++] = c;
    }
    peer->answer[length] = '\0';
    return true;
}

BENCH__UNUSED static void bench__peer_stop(bench_peer *peer)
{
    int status;
    kill(-peer->process, SIGSTOP);
    waitpid(peer->process, &status, WUNTRACED);
}

/* What the peer's process becomes. */
BENCH__UNUSED static void bench__peer_run(const char *path, int threads)
{
    char count[16];
    static const char *const variables[] = { "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS",
                                             "MKL_NUM_THREADS", "BENCH_PEER_THREADS" };
    setpgid(0, 0);
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a stopped process would outlive a benchmark that is killed */
#endif
    snprintf(count, sizeof count, "%d", threads);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) setenv(variables[i], count, 1);
    execl(path, path, count, (char *)NULL);
    _exit(127);
}

/* Starts those of `names` (ends in NULL) that are there, each with that many threads, on as many processors,
   which are this program's, too. Before its own threads. */
BENCH__UNUSED static void bench_peers_start(bench_peers *peers, const char *program, const char *folder,
                                            const char *const *names, int threads)
{
    memset(peers, 0, sizeof *peers);
    peers->program = program;
    if (!folder) folder = getenv("DML_PEERS");
    if (!folder) folder = "build/peers/run";
    signal(SIGPIPE, SIG_IGN);
    bench_take_processors(threads);
    for (; *names && peers->count < BENCH_PEERS_MAX; names++) {
        bench_peer *peer = &peers->list[peers->count++];
        char path[1024];
        int in[2] = { -1, -1 }, out[2] = { -1, -1 };
        peer->name = *names;
        snprintf(path, sizeof path, "%s/%s", folder, *names);
        if (access(path, X_OK) != 0) {
            char why[1100];
            if (bench_peers_told) continue;
            snprintf(why, sizeof why, "there is no %s (make bench-peers)", path);
            bench__peer_gone(peers, peer, why);
            continue;
        }
        fflush(NULL);
        if (pipe(in) != 0 || pipe(out) != 0 || (peer->process = fork()) < 0) {
            bench__peer_gone(peers, peer, strerror(errno));
            continue;
        }
        if (peer->process == 0) {
            dup2(in[0], 0), dup2(out[1], 1);
            close(in[0]), close(in[1]), close(out[0]), close(out[1]);
            bench__peer_run(path, threads);
        }
        setpgid(peer->process, peer->process);
        close(in[0]), close(out[1]);
        peer->to = in[1], peer->from = out[0];
        fcntl(peer->to, F_SETFD, FD_CLOEXEC), fcntl(peer->from, F_SETFD, FD_CLOEXEC);
        if (!bench__peer_ask(peers, peer, NULL)) continue;
        if (strncmp(peer->answer, "ready", 5) != 0) {
            bench__peer_gone(peers, peer, peer->answer[0] ? peer->answer : "it says nothing");
            continue;
        }
        if (!bench_peers_told)
            printf("# %s: peer %s:%s\n", program, peer->name, peer->answer + strcspn(peer->answer, " "));
        bench__peer_stop(peer);
    }
    bench_peers_told = true;
}

BENCH__UNUSED static void bench_peers_end(bench_peers *peers)
{
    for (int i = 0; i < peers->count; i++) {
        bench_peer *peer = &peers->list[i];
        if (!peer->process) continue;
        kill(-peer->process, SIGKILL);
        waitpid(peer->process, NULL, 0);
        close(peer->to), close(peer->from);
        peer->process = 0;
    }
}

/* Continues a peer, asks it, and stops it again. */
BENCH__UNUSED static bool bench_peer_ask(const bench_peers *peers, bench_peer *peer, const char *line)
{
    kill(-peer->process, SIGCONT);
    if (!bench__peer_ask(peers, peer, line)) return false;
    bench__peer_stop(peer);
    return true;
}

#endif
