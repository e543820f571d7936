/* lines: what do two processes' exchanges through memory that they share take, by what is done to each line
   of it? A line that one processor writes, another reads and the first writes again is the slowest where the
   two are far from each other (parts of a chip with caches of their own, sockets): see docs/performance.md.
 */
#include "bench.h"

#include <sched.h>

#include "net/shm_copy.h"

/* Each process has a ring, which it fills piece by piece and the other empties into memory of its own: what
   the pieces hold goes both ways at once. The limit is memcpy of as much, in both processes at once. */
enum { PIECE = 64 * 1024, ROUNDS = 9, WORDS_OF_LINE = 64 / sizeof(unsigned) };

typedef enum way { READ, WRITTEN, ATOMIC, PAST, COPY_ALONE, WAYS } way;

static const char *const names[WAYS] = { "read", "written", "atomic", "past", "" };

static const char usage[] =
    "usage: lines [--bytes B] [--ring B] [--seconds S]\n"
    "  --bytes B    what each process sends the other, in pieces of 64 KiB; 1 MiB\n"
    "  --ring B     of the memory through which it goes, each way; 2 MiB\n"
    "  --seconds S  how long to time each row; 0.5\n"
    "Prints a row for each way that lines go: what=read, as memcpy writes and reads them;\n"
    "written, where the reader has stored the first word of each again; atomic, where it has\n"
    "done so in one step; past, written past the caches. ours is GB/s each way, limit those of\n"
    "memcpy within both processes at once.\n";

/* A process's words that the other reads, each in lines of its own. */
typedef struct words {
    unsigned filled, padding[31];  /* pieces that are in the ring, all in all */
    unsigned emptied, behind[31];  /* pieces of the other's that this one has taken */
    unsigned arrived, between[31]; /* at how many meetings */
} words;

typedef struct side {
    words *mine, *others;
    char *to, *from; /* (ring) each: this side's, and the other's */
    char *out, *in;  /* (bytes) each */
    size_t ring, bytes;
    pid_t other;
    bool parent;
    unsigned looks;
} side;

static void die(const char *what)
{
    fprintf(stderr, "lines: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Nobody waits for one that has gone. */
static void look_again(side *s)
{
    if (++s->looks % 1024) return;
    sched_yield();
    if (s->parent ? waitpid(s->other, NULL, WNOHANG) != 0 : getppid() != s->other) {
        fprintf(stderr, "lines: the other process has gone\n");
        exit(1);
    }
}

static void meet(side *s)
{
    const unsigned count = s->mine->arrived + 1;
    __atomic_store_n(&s->mine->arrived, count, __ATOMIC_RELEASE);
    while ((int)(__atomic_load_n(&s->others->arrived, __ATOMIC_ACQUIRE) - count) < 0) look_again(s);
}

static void fill(way by, char *to, const char *from)
{
    if (by == PAST)
        dml__shm_copy_past((uint8_t *)to, (const uint8_t *)from, PIECE);
    else
        memcpy(to, from, PIECE);
}

static void empty(way by, char *to, char *from)
{
    volatile unsigned *const word = (volatile unsigned *)(void *)from;
    memcpy(to, from, PIECE);
    for (size_t i = 0; by == WRITTEN && i < PIECE / sizeof *word; i += WORDS_OF_LINE) word[i] = word[i];
    for (size_t i = 0; by == ATOMIC && i < PIECE / sizeof *word; i += WORDS_OF_LINE)
        __atomic_fetch_or(&word[i], 0, __ATOMIC_RELAXED);
}

static void exchange(side *s, way by)
{
    const unsigned pieces = (unsigned)(s->bytes / PIECE), room = (unsigned)(s->ring / PIECE);
    const unsigned first = s->mine->filled;
    for (unsigned sent = 0, taken = 0; sent < pieces || taken < pieces;) {
        const unsigned emptied = __atomic_load_n(&s->others->emptied, __ATOMIC_ACQUIRE);
        const bool may_fill = sent < pieces && first + sent - emptied < room;
        if (may_fill) {
            fill(by, s->to + (first + sent) % room * (size_t)PIECE, s->out + sent * (size_t)PIECE);
            __atomic_store_n(&s->mine->filled, first + ++sent, __ATOMIC_RELEASE);
        }
        const unsigned filled = __atomic_load_n(&s->others->filled, __ATOMIC_ACQUIRE);
        const bool may_empty = taken < pieces && filled != first + taken;
        if (may_empty) {
            empty(by, s->in + taken * (size_t)PIECE, s->from + (first + taken) % room * (size_t)PIECE);
            __atomic_store_n(&s->mine->emptied, first + ++taken, __ATOMIC_RELEASE);
        }
        if (!may_fill && !may_empty) look_again(s);
    }
}

static double timed(side *s, way by, int times)
{
    meet(s);
    const double begin = dml_seconds();
    for (int i = 0; i < times; i++)
        if (by == COPY_ALONE)
            memcpy(s->in, s->out, s->bytes);
        else
            exchange(s, by);
    meet(s);
    return (dml_seconds() - begin) / times;
}

/* Turn by turn, since processors may change places meanwhile. */
static void measure(side *s, double seconds)
{
    double samples[WAYS][ROUNDS];
    /* As many as both make, which is not for one's clock to say. */
    const int times = (int)(seconds * 2e9 / ROUNDS / (double)s->bytes) + 1;
    for (int by = 0; by < WAYS; by++) timed(s, (way)by, 2);
    for (int round = 0; round < ROUNDS; round++)
        for (int by = 0; by < WAYS; by++) samples[by][round] = timed(s, (way)by, times);
    if (!s->parent) return;
    const double limit = 1e-9 * (double)s->bytes / bench_median(samples[COPY_ALONE], ROUNDS);
    for (int by = 0; by < COPY_ALONE; by++) {
        printf("name=lines what=%s bytes=%zu ring=%zu", names[by], s->bytes, s->ring);
        bench_row_end(2, 1e-9 * (double)s->bytes / bench_median(samples[by], ROUNDS), limit, "GB/s");
    }
}

int main(int argc, char **argv)
{
    int bytes = 1 << 20, ring = 2 << 20;
    double seconds = 0.5;
    const bench_option options[] = { { "--bytes", BENCH_INT, &bytes, PIECE, 1 << 30 },
                                     { "--ring", BENCH_INT, &ring, PIECE, 1 << 30 },
                                     { "--seconds", BENCH_NUMBER, &seconds, 1e-4, 60 },
                                     { NULL, BENCH_FLAG, NULL, 0, 0 } };
    side s;
    memset(&s, 0, sizeof s);
    bench_parse(argc, argv, "lines", usage, options);
    s.bytes = (size_t)bytes / PIECE * PIECE;
    s.ring = (size_t)ring / PIECE * PIECE;
    const size_t all = 2 * (sizeof(words) + s.ring);
    char *const memory = (char *)mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("no memory to share");
    memset(memory, 0, all);
    words *const both = (words *)(void *)(memory + 2 * s.ring);
    const pid_t parent = getpid(), child = fork();
    if (child < 0) die("no process");
    s.parent = child != 0;
    s.other = s.parent ? child : parent;
    s.mine = &both[s.parent];
    s.others = &both[!s.parent];
    s.to = memory + (s.parent ? s.ring : 0);
    s.from = memory + (s.parent ? 0 : s.ring);
    s.out = (char *)bench_floats("lines", s.bytes / sizeof(float));
    s.in = (char *)bench_floats("lines", s.bytes / sizeof(float));
    measure(&s, seconds);
    while (!s.parent && getppid() == parent) usleep(1000); /* else it would be taken for gone too soon */
    free(s.out);
    free(s.in);
    if (s.parent) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    return 0;
}
