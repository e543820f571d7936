/* transport: what do the transports of src/net/ cost between two ranks of this machine, beside bare sockets
   and memcpy? It uses what the library keeps to itself, so it is built with the sources of src/. */
#include "base/clock.h" /* first: it asks the system headers for POSIX */
#include "base/copy.h"
#include "base/memory.h"
#include "net/local.h"
#include "net/shm.h"

#include "../tests/net/sockets.h"
#include "loopback.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>

/* Latency is half the time of 64 bytes there and back; its limit the same by blocking calls on a bare socket.
   Bandwidth is 64 MiB, offered in spans of 256 KiB and copied or added to memory of the receiver's own, by
   the time until the receiver has said that it has all; its limit one memcpy, or one addition, of as much.
   The connections are of the tests' (tests/net/sockets.h), over TCP: what they do is what the TCP transport
   does. */
enum {
    SMALL = 64,
    SEGMENT = 256 * 1024,
    LARGE = 64 * 1024 * 1024,
    SAMPLES_MAX = 31,
    SOCKETS_MAX = 4,
    TURNS = 200
};

static const char usage[] =
    "usage: transport [--ring BYTES] [--spin US] [--samples N]\n"
    "  --ring BYTES  of shared memory's rings, a power of two; otherwise what the library takes\n"
    "  --spin US     how long a wait spins; -1: not at all; otherwise what the library takes\n"
    "  --samples N   of each row, up to 31; 9\n"
    "Prints for tcp, shm and local what 64 bytes take to the other rank, and what 64 MiB come with: copied\n"
    "(what=copy) and added to floats (what=add). Limits: a bare socket's latency, memcpy or the\n"
    "addition alone. At last what bare sockets (one, two, and one or two each way at once,\n"
    "each with a thread at both ends) and process_vm_readv come with; and, to a target 16 bytes further into "
    "its\n"
    "page than the source, process_vm_readv and copies of 4 KiB to 1 MiB, whose limit is memcpy there.\n";

static struct {
    int ring, spin, samples;
    float *from, *to;          /* (LARGE / 4) each */
    double latency, copy, add; /* the limits */
} bench = { 0, 0, 9, NULL, NULL, 0, 0, 0 };

static void die(const char *what)
{
    fprintf(stderr, "transport: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *samples)
{
    qsort(samples, (size_t)bench.samples, sizeof *samples, compare);
    return samples[bench.samples / 2];
}

static void row(const char *what, const char *medium, double ours, double limit, bool rate)
{
    printf("name=transport what=%s medium=%s threads=2 ours=%.4g limit=%.4g ratio_limit=%.3f unit=%s\n", what,
           medium, ours, limit, limit > 0 ? (rate ? ours / limit : limit / ours) : 0, rate ? "GB/s" : "us");
    fflush(stdout);
}

/* ---- over a transport ---- */

static void wait_for(dml__transport *t, int peer, int wish)
{
    uint8_t wishes[2] = { 0, 0 };
    wishes[peer] = (uint8_t)wish;
    if (t->calls->wait(t, wishes, 20) <= 0) die("nothing moves any more");
}

static void push(dml__transport *t, int peer, void *data, size_t bytes)
{
    dml__span span = { data, bytes };
    while (span.bytes > 0) {
        const ptrdiff_t sent = t->calls->send(t, peer, DML__CHANNEL_DATA, &span, 1);
        if (sent < 0) die("the other rank is gone");
        span.data = (char *)span.data + sent;
        span.bytes -= (size_t)sent;
        if (sent == 0) wait_for(t, peer, DML__WISH_SEND);
    }
}

#if defined(__GNUC__) && !defined(__clang__)
__attribute__((optimize("O3"))) /* as the kernels do: by vectors */
#endif
static void
add(float *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] += from[i];
}

/* Takes so many bytes in, and adds them to what is there if that is asked. */
static void pull(dml__transport *t, int peer, void *into, size_t bytes, bool sum)
{
    static char piece[SEGMENT]; /* what nobody lends is received here before it is added */
    for (size_t done = 0; done < bytes;) {
        const void *lent = NULL;
        ptrdiff_t got = DML__LENDS_NOTHING;
        if (t->calls->lend) got = t->calls->lend(t, peer, &lent);
        if (got > 0) {
            if ((size_t)got > bytes - done) got = (ptrdiff_t)(bytes - done);
            if (sum)
                add((float *)into + done / 4, (const float *)lent, (size_t)got / 4);
            else
                memcpy((char *)into + done, lent, (size_t)got);
            t->calls->consume(t, peer, (size_t)got);
        } else if (got == DML__LENDS_NOTHING) {
            const size_t part = sum ? done % SEGMENT : 0, left = bytes - done;
            const size_t most = sum && left > SEGMENT - part ? SEGMENT - part : left;
            const dml__span span = { sum ? piece + part : (char *)into + done, most };
            got = t->calls->receive(t, peer, DML__CHANNEL_DATA, &span, 1);
            if (got > 0 && sum && ((size_t)got + part == SEGMENT || (size_t)got == left))
                add((float *)into + (done - part) / 4, (const float *)(void *)piece,
                    (part + (size_t)got) / 4);
        }
        if (got < 0) die("the other rank is gone");
        if (got == 0) wait_for(t, peer, DML__WISH_RECEIVE);
        done += (size_t)got;
    }
}

/* The second rank's part of everything. */
static void answer(dml__transport *t)
{
    static char small[SMALL] __attribute__((aligned(64)));
    for (int i = 0; i < (bench.samples + 1) * TURNS; i++) {
        pull(t, 0, small, SMALL, false);
        push(t, 0, small, SMALL);
    }
    for (int sum = 0; sum < 2; sum++)
        for (int i = 0; i <= bench.samples; i++) {
            pull(t, 0, bench.to, LARGE, sum == 1);
            push(t, 0, small, SMALL);
        }
}

static void ask(dml__transport *t, const char *medium)
{
    static char small[SMALL] __attribute__((aligned(64)));
    double samples[SAMPLES_MAX + 1];
    for (int i = 0; i <= bench.samples; i++) { /* the first warms up */
        const double begin = dml_seconds();
        for (int turn = 0; turn < TURNS; turn++) {
            push(t, 1, small, SMALL);
            pull(t, 1, small, SMALL, false);
        }
        samples[i ? i - 1 : 0] = (dml_seconds() - begin) / TURNS / 2;
    }
    row("latency", medium, 1e6 * median(samples), 1e6 * bench.latency, false);
    for (int sum = 0; sum < 2; sum++) {
        for (int i = 0; i <= bench.samples; i++) {
            const double begin = dml_seconds();
            for (size_t at = 0; at < LARGE; at += SEGMENT) push(t, 1, (char *)bench.from + at, SEGMENT);
            pull(t, 1, small, SMALL, false);
            samples[i ? i - 1 : 0] = dml_seconds() - begin;
        }
        row(sum ? "add" : "copy", medium, LARGE / median(samples) / 1e9, sum ? bench.add : bench.copy, true);
    }
}

static void *answer_thread(void *argument)
{
    answer((dml__transport *)argument);
    return NULL;
}

static void measure_local(void)
{
    dml__memory memory;
    pthread_t thread;
    dml__memory_init(&memory, NULL, NULL, 0);
    dml__local_world *world = dml__local_world_create(&memory, 2, bench.spin);
    if (!world) die("no memory");
    dml__transport *one = dml__local_open(world, 0), *two = dml__local_open(world, 1);
    if (pthread_create(&thread, NULL, answer_thread, two)) die("no thread");
    ask(one, "local");
    pthread_join(thread, NULL);
    one->calls->close(one);
    two->calls->close(two);
    dml__local_world_destroy(world);
}

/* ---- processes ---- */

static dml__transport *open_shm(dml__transport *below, int rank, dml__memory *memory)
{
    dml__shm_settings settings;
    int culprit;
    dml__memory_init(memory, NULL, NULL, 0);
    memset(&settings, 0, sizeof settings);
    settings.rank = rank;
    settings.world = 2;
    settings.ring_bytes = (size_t)bench.ring;
    settings.spin = bench.spin;
    settings.seconds = 20;
    dml__transport *t = dml__shm_open(below, &settings, dml__system_host(), memory, &culprit);
    if (!t) die("the ranks don't meet");
    return t;
}

static void measure_processes(bool shm)
{
    dml__transport *t[2];
    dml__memory memory;
    sockets_open(t, 2, loopback_pair);
    const pid_t child = fork();
    const int me = child == 0;
    t[1 - me]->calls->abandon(t[1 - me]);
    if (shm) t[me] = open_shm(t[me], me, &memory);
    if (me) {
        answer(t[1]);
        _exit(0);
    }
    if (child < 0) die("no process");
    if (shm && strcmp(t[0]->calls->medium(t[0], 1), "shm") != 0)
        printf("# transport: no memory can be shared here\n");
    else
        ask(t[0], shm ? "shm" : "tcp");
    t[0]->calls->close(t[0]);
    waitpid(child, NULL, 0);
}

/* ---- limits ---- */

static void transfer(int fd, void *data, size_t bytes, bool out)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n =
            out ? write(fd, (char *)data + done, bytes - done) : read(fd, (char *)data + done, bytes - done);
        if (n <= 0) die("a bare socket");
        done += (size_t)n;
    }
}

/* Its bandwidth. */
static double bare_socket(void)
{
    char small[SMALL] = "";
    int ends[2];
    double samples[2][SAMPLES_MAX + 1];
    loopback_pair(ends);
    const pid_t child = fork();
    if (child < 0) die("no process");
    for (int i = 0; i <= bench.samples; i++) {
        const double begin = dml_seconds();
        for (int turn = 0; turn < TURNS; turn++)
            for (int half = 0; half < 2; half++)
                transfer(ends[child == 0], small, SMALL, (half == 0) == (child != 0));
        samples[0][i ? i - 1 : 0] = (dml_seconds() - begin) / TURNS / 2;
    }
    for (int i = 0; i <= bench.samples; i++) {
        const double begin = dml_seconds();
        transfer(ends[child == 0], child ? bench.from : bench.to, LARGE, child != 0);
        transfer(ends[child == 0], small, SMALL, child == 0);
        samples[1][i ? i - 1 : 0] = dml_seconds() - begin;
    }
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
    close(ends[0]);
    close(ends[1]);
    bench.latency = median(samples[0]);
    return LARGE / median(samples[1]) / 1e9;
}

static double alone(bool sum)
{
    double samples[SAMPLES_MAX + 1];
    for (int i = 0; i <= bench.samples; i++) {
        const double begin = dml_seconds();
        if (sum)
            add(bench.to, bench.from, LARGE / 4);
        else
            memcpy(bench.to, bench.from, LARGE);
        samples[i ? i - 1 : 0] = dml_seconds() - begin;
    }
    return LARGE / median(samples) / 1e9;
}

/* One of several sockets between two processes, and its part of the bytes. */
typedef struct stream {
    int fd;
    char *data;
    size_t bytes;
    bool out;
} stream;

static void *run_stream(void *argument)
{
    stream *s = (stream *)argument;
    transfer(s->fd, s->data, s->bytes, s->out);
    return NULL;
}

static void run_streams(stream *streams, int count)
{
    pthread_t thread[SOCKETS_MAX];
    for (int k = 1; k < count; k++)
        if (pthread_create(&thread[k], NULL, run_stream, &streams[k])) die("no thread");
    run_stream(&streams[0]);
    for (int k = 1; k < count; k++) pthread_join(thread[k], NULL);
}

/* The bandwidth of `count` sockets, each with a thread at both ends; `both_ways`, as between ranks that
   reduce: of half of them, while the others carry as much the other way. */
static double bare_sockets(int count, bool both_ways)
{
    const size_t each = LARGE / (size_t)(both_ways ? count / 2 : count);
    int ends[SOCKETS_MAX][2];
    stream streams[SOCKETS_MAX];
    double samples[SAMPLES_MAX + 1];
    char end = 0;
    for (int k = 0; k < count; k++) loopback_pair(ends[k]);
    const pid_t child = fork();
    if (child < 0) die("no process");
    for (int i = 0; i <= bench.samples; i++) {
        const double begin = dml_seconds();
        for (int k = 0; k < count; k++) {
            streams[k].fd = ends[k][child == 0];
            streams[k].bytes = each;
            streams[k].out = (child != 0) != (both_ways && k % 2);
            streams[k].data =
                (char *)(streams[k].out ? bench.from : bench.to) + (size_t)(both_ways ? k / 2 : k) * each;
        }
        run_streams(streams, count);
        transfer(streams[0].fd, &end, 1, child == 0);
        samples[i ? i - 1 : 0] = dml_seconds() - begin;
    }
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
    for (int k = 0; k < count; k++)
        for (int side = 0; side < 2; side++) close(ends[k][side]);
    return LARGE / median(samples) / 1e9;
}

/* One copy by the system, straight out of the other process, with no talk about it at all. */
static double read_other_process(size_t ahead)
{
    double samples[SAMPLES_MAX + 1];
    bool ok = true;
#if defined(__linux__)
    const pid_t child = fork();
    if (child == 0) {
        memset(bench.from, 1, LARGE);
        pause();
    }
    usleep(200000);
    for (int i = 0; child > 0 && i <= bench.samples; i++) {
        const double begin = dml_seconds();
        for (size_t at = 0; at < LARGE; at += SEGMENT) {
            const struct iovec to = { (char *)bench.to + at + ahead, SEGMENT },
                               from = { (char *)bench.from + at, SEGMENT };
            ok &= process_vm_readv(child, &to, 1, &from, 1, 0) == SEGMENT;
        }
        samples[i ? i - 1 : 0] = dml_seconds() - begin;
    }
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
#else
    ok = false;
#endif
    return ok ? LARGE / median(samples) / 1e9 : 0;
}

/* The rate of copies of `bytes` within the caches by memcpy, or by the library. */
static double copies(size_t bytes, bool ours)
{
    enum { AHEAD = 16 };
    const size_t times = SEGMENT * 16 / bytes;
    double samples[SAMPLES_MAX];
    for (int i = 0; i < bench.samples; i++) {
        const double begin = dml_seconds();
        for (size_t k = 0; k < times; k++) {
            char *const to = (char *)bench.to + AHEAD, *const from = (char *)bench.from;
            if (ours)
                dml__copy_bytes(to, from, bytes);
            else
                memcpy(to, from, bytes);
            __asm__ volatile("" : : "r"(to) : "memory"); /* so that each is done */
        }
        samples[i] = dml_seconds() - begin;
    }
    return (double)(times * bytes) / median(samples) / 1e9;
}

static void copies_to_slow_places(void)
{
    static const size_t sizes[] = { 4096, 8192, 32768, 131072, 524288, 1048576 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char medium[32];
        snprintf(medium, sizeof medium, "copy_of_%zu", sizes[i]);
        row("16_ahead", medium, copies(sizes[i], true), copies(sizes[i], false), true);
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int *value = strcmp(argv[i], "--ring") == 0      ? &bench.ring
                     : strcmp(argv[i], "--spin") == 0    ? &bench.spin
                     : strcmp(argv[i], "--samples") == 0 ? &bench.samples
                                                         : NULL;
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return 0;
        }
        if (!value || i + 1 == argc) {
            fprintf(stderr, "transport: \"%s\" is no option, or has no value: see --help\n", argv[i]);
            return 2;
        }
        *value = atoi(argv[++i]);
    }
    if (bench.samples < 1 || bench.samples > SAMPLES_MAX) {
        fprintf(stderr, "transport: --samples takes a whole number from 1 to %d\n", SAMPLES_MAX);
        return 2;
    }
    bench.from = (float *)aligned_alloc(4096, LARGE);
    bench.to = (float *)aligned_alloc(4096, LARGE + 4096);
    if (!bench.from || !bench.to) die("no memory");
    memset(bench.from, 0, LARGE);
    memset(bench.to, 0, LARGE);
    const double socket_rate = bare_socket();
    bench.copy = alone(false);
    bench.add = alone(true);
    measure_processes(false);
    measure_processes(true);
    measure_local();
    row("bare", "tcp", socket_rate, bench.copy, true);
    row("bare", "tcp_by_2_sockets", bare_sockets(2, false), bench.copy, true);
    row("bare", "tcp_both_ways", bare_sockets(2, true), bench.copy, true);
    row("bare", "tcp_both_ways_by_2_sockets", bare_sockets(4, true), bench.copy, true);
    row("bare", "process_vm_readv", read_other_process(0), bench.copy, true);
    row("16_ahead", "process_vm_readv", read_other_process(16), bench.copy, true);
    copies_to_slow_places();
    free(bench.from);
    free(bench.to);
    return 0;
}
