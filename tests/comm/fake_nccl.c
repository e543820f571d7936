/* fake_nccl: what the engine over NCCL calls of libnccl and libcudart, in one library, on no GPU: memory of
   the host, of which it is known what cudaMalloc gave; a queue for each stream and a thread that works it
   off; and files in $FAKE_NCCL_DIR for what goes from rank to rank. $FAKE_NCCL_FAULT, "RANK:WHAT", makes a
   rank misbehave. Every fault of use (a config that isn't one, a call after an abort) ends the program. In
   one that has the cards of tests/gpu/fake_cuda, these are what it works on. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OK,
    CUDA_ERROR,
    SYSTEM_ERROR,
    REMOTE_ERROR = 6,
    IN_PROGRESS = 7,
    NOT_READY = 600,
    LAUNCH_FAILED = 719
};
enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE, KINDS };
enum { TASKS = 4096, BLOCKS = 256, RANKS = 16, GROUP = 256, STREAMS = 16, PATH = 512 };

typedef struct stream stream;

typedef struct comm {
    stream *used; /* by its last call */
    char id[128];
    int rank, size;
    int calls, steps; /* so far; of these, collectives */
    int sent[RANKS], received[RANKS];
    volatile int aborted, asked;
} comm;

typedef struct event {
    volatile int recorded, passed;
} event;

typedef struct task {
    comm *of;
    event *mark; /* NULL: a collective's */
    int kind, type, op, root, step, number;
    const char *in;
    char *out;
    size_t count;
} task;

struct stream {
    int device;
    int begin, end, over;
    task queue[TASKS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static stream *streams[STREAMS];
static __thread task group[GROUP];
static __thread stream *group_stream[GROUP];
static __thread int group_depth, group_count;
static struct {
    char *begin;
    size_t bytes;
} blocks[BLOCKS];

static void die(const char *what)
{
    fprintf(stderr, "fake_nccl: %s\n", what);
    abort();
}

/* Whether this rank is to do that. */
static int fault(const char *what)
{
    const char *text = getenv("FAKE_NCCL_FAULT"), *rank = getenv("RANK");
    return text && rank && atoi(text) == atoi(rank) && strchr(text, ':') &&
           !strcmp(strchr(text, ':') + 1, what);
}

/* ---- files ---- */

static void path_of(const comm *of, const char *what, int a, int b, int c, char path[PATH])
{
    const char *folder = getenv("FAKE_NCCL_DIR");
    if (!folder) die("no FAKE_NCCL_DIR");
    snprintf(path, PATH, "%s/%.100s-%s-%d-%d-%d", folder, of->id, what, a, b, c);
}

static void put(const char *path, const void *data, size_t bytes)
{
    char other[PATH + 8];
    snprintf(other, sizeof other, "%s.new", path);
    FILE *file = fopen(other, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) || rename(other, path))
        die("can't write a file");
}

/* Waits for it; 0: the communicator was aborted. */
static int get(const comm *of, const char *path, void *data, size_t bytes)
{
    FILE *file = NULL;
    while (!of->aborted && !(file = fopen(path, "rb"))) usleep(200);
    if (!file) return 0;
    if (fread(data, 1, bytes, file) != bytes || fgetc(file) != EOF) die("ranks disagree on a size");
    fclose(file);
    return 1;
}

/* ---- work ---- */

static size_t size_of(int type)
{
    static const size_t sizes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2 };
    return sizes[type];
}

static double load(const char *data, int type)
{
    if (type == 2) return *(const int *)(const void *)data;
    if (type == 4) return (double)*(const long long *)(const void *)data;
    if (type == 7) return *(const float *)(const void *)data;
    if (type == 8) return *(const double *)(const void *)data;
    die("no such type is added here");
    return 0;
}

static void keep(char *data, int type, double x)
{
    if (type == 2) *(int *)(void *)data = (int)x;
    if (type == 4) *(long long *)(void *)data = (long long)x;
    if (type == 7) *(float *)(void *)data = (float)x;
    if (type == 8) *(double *)(void *)data = x;
}

static double combine(double a, double b, int op)
{
    switch (op) {
    case 1: return a * b;
    case 2: return a > b ? a : b;
    case 3: return a < b ? a : b;
    default: return a + b;
    }
}

/* All ranks' arrays, one behind the other; NULL: aborted. */
static char *gather(const task *t, size_t bytes)
{
    char path[PATH];
    char *all = malloc(bytes * (size_t)t->of->size + 1);
    if (!all) die("no memory");
    path_of(t->of, "step", t->step, t->kind, t->of->rank, path);
    put(path, t->in, bytes);
    for (int r = 0; r < t->of->size; r++) {
        path_of(t->of, "step", t->step, t->kind, r, path);
        if (get(t->of, path, all + (size_t)r * bytes, bytes)) continue;
        free(all);
        return NULL;
    }
    return all;
}

static void reduce(const task *t, const char *all, size_t stride, size_t begin)
{
    const size_t size = size_of(t->type);
    for (size_t i = 0; i < t->count; i++) {
        double x = load(all + (begin + i) * size, t->type);
        for (int r = 1; r < t->of->size; r++)
            x = combine(x, load(all + (size_t)r * stride + (begin + i) * size, t->type), t->op);
        keep(t->out + i * size, t->type, t->op == 4 ? x / t->of->size : x);
    }
}

static void run(const task *t)
{
    const size_t bytes = t->count * size_of(t->type), size = (size_t)t->of->size;
    const int rank = t->of->rank;
    char path[PATH];
    if (t->of->aborted) return;
    if (t->kind == SEND) {
        path_of(t->of, "message", rank, t->root, t->number, path);
        put(path, t->in, bytes);
        return;
    }
    if (t->kind == RECEIVE) {
        path_of(t->of, "message", t->root, rank, t->number, path);
        get(t->of, path, t->out, bytes);
        return;
    }
    char *all = gather(t, t->kind == REDUCE_SCATTER ? bytes * size : bytes);
    if (!all) return;
    if (t->kind == ALL_REDUCE || (t->kind == REDUCE && rank == t->root)) reduce(t, all, bytes, 0);
    if (t->kind == REDUCE_SCATTER) reduce(t, all, bytes * size, t->count * (size_t)rank);
    if (t->kind == BROADCAST) memcpy(t->out, all + bytes * (size_t)t->root, bytes);
    if (t->kind == ALL_GATHER) memcpy(t->out, all, bytes * size);
    free(all);
}

static void *work(void *of)
{
    stream *s = of;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (s->begin == s->end && !s->over) pthread_cond_wait(&more, &lock);
        const int over = s->begin == s->end;
        const task t = s->queue[s->begin % TASKS];
        pthread_mutex_unlock(&lock);
        if (over) break;
        if (t.mark) {
            __atomic_fetch_add(&t.mark->passed, 1, __ATOMIC_SEQ_CST);
        } else {
            while ((fault("hang") || fault("async")) && !t.of->aborted) usleep(200);
            run(&t);
        }
        pthread_mutex_lock(&lock);
        s->begin++;
        pthread_mutex_unlock(&lock);
    }
    free(s);
    return NULL;
}

static void enqueue(stream *s, const task *t)
{
    pthread_mutex_lock(&lock);
    if (s->end - s->begin == TASKS) die("too many tasks");
    s->queue[s->end++ % TASKS] = *t;
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&lock);
}

/* ---- CUDA ---- */

static int device = 0; /* the current one */
static int (*cards_current)(int), (*cards_device_of)(const void *);
static bool (*cards_finish)(void *);

static void look(const char *name, void *function)
{
    void *const address = dlsym(RTLD_DEFAULT, name);
    memcpy(function, &address, sizeof address);
}

/* Whether the program has cards of its own. */
static bool has_cards(void)
{
    if (cards_current) return true;
    look("fake_cuda_current", &cards_current);
    look("fake_cuda_device_of", &cards_device_of);
    look("fake_cuda_finish", &cards_finish);
    return cards_current != NULL;
}

static int current(void)
{
    return has_cards() ? cards_current(-1) : device;
}

int cudaGetDevice(int *out);
int cudaSetDevice(int number);
int cudaMalloc(void **out, size_t bytes);
int cudaFree(void *data);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
const char *cudaGetErrorString(int code);
int cudaPointerGetAttributes(void *attributes, const void *data);
int cudaStreamCreateWithFlags(void **out, unsigned flags);
int cudaStreamDestroy(void *of);
int cudaStreamWaitEvent(void *in, void *of, unsigned flags);
int cudaEventCreateWithFlags(void **out, unsigned flags);
int cudaEventDestroy(void *of);
int cudaEventRecord(void *of, void *in);
int cudaEventQuery(void *of);

int cudaGetDevice(int *out)
{
    *out = current();
    return OK;
}

int cudaSetDevice(int number)
{
    device = number;
    if (has_cards()) cards_current(number);
    return OK;
}

int cudaMalloc(void **out, size_t bytes)
{
    int i = 0;
    while (i < BLOCKS && blocks[i].begin) i++;
    if (i == BLOCKS) return 2;
    *out = blocks[i].begin = malloc(bytes + 1);
    blocks[i].bytes = bytes;
    return *out ? OK : 2;
}

int cudaFree(void *data)
{
    for (int i = 0; i < BLOCKS; i++)
        if (data && blocks[i].begin == data) blocks[i].begin = NULL;
    free(data);
    return OK;
}

int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    if (kind != 4) die("cudaMemcpy is asked for by default only");
    memmove(to, from, bytes);
    return OK;
}

const char *cudaGetErrorString(int code)
{
    return code == LAUNCH_FAILED ? "unspecified launch failure" : "another error";
}

int cudaPointerGetAttributes(void *attributes, const void *data)
{
    int found[2] = { 0, has_cards() ? cards_device_of(data) : -1 }; /* kind, device */
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].begin && (const char *)data >= blocks[i].begin &&
            (const char *)data < blocks[i].begin + blocks[i].bytes)
            found[1] = 3;
    found[0] = found[1] < 0 ? 0 : 2;
    memset(attributes, 0, 64); /* CUDA 13's has that many */
    memcpy(attributes, found, sizeof found);
    return OK;
}

int cudaStreamCreateWithFlags(void **out, unsigned flags)
{
    if (flags != 1) die("a stream that waits for the default stream");
    pthread_t thread;
    stream *s = calloc(1, sizeof *s);
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < STREAMS && streams[i]) i++;
    if (i == STREAMS || !s || pthread_create(&thread, NULL, work, s)) die("too many streams");
    pthread_detach(thread);
    s->device = current();
    *out = streams[i] = s;
    pthread_mutex_unlock(&lock);
    return OK;
}

int cudaStreamDestroy(void *of)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < STREAMS; i++)
        if (streams[i] == of) streams[i] = NULL;
    ((stream *)of)->over = 1;
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&lock);
    return OK;
}

int cudaStreamWaitEvent(void *in, void *of, unsigned flags)
{
    if (!in || !((event *)of)->recorded || flags) die("a stream waits for nothing");
    return OK;
}

int cudaEventCreateWithFlags(void **out, unsigned flags)
{
    if (flags != 2) die("an event that takes the time");
    *out = calloc(1, sizeof(event));
    return OK;
}

int cudaEventDestroy(void *of)
{
    if (((event *)of)->recorded == __atomic_load_n(&((event *)of)->passed, __ATOMIC_SEQ_CST)) free(of);
    return OK;
}

/* In another's stream, and in the default one, what it comes behind is done. */
int cudaEventRecord(void *of, void *in)
{
    task t;
    int i = 0;
    memset(&t, 0, sizeof t);
    t.mark = of;
    t.mark->recorded++;
    pthread_mutex_lock(&lock);
    while (i < STREAMS && (!in || streams[i] != in)) i++;
    pthread_mutex_unlock(&lock);
    if (i < STREAMS && ((stream *)in)->device != current()) die("another device is current");
    if (in && i == STREAMS && !(has_cards() && cards_finish(in)))
        die("an event in a stream that there isn't");
    if (i < STREAMS)
        enqueue(in, &t);
    else
        t.mark->passed++;
    return OK;
}

int cudaEventQuery(void *of)
{
    const event *e = of;
    if (fault("event")) return LAUNCH_FAILED;
    return __atomic_load_n(&e->passed, __ATOMIC_SEQ_CST) == e->recorded ? OK : NOT_READY;
}

/* ---- NCCL ---- */

typedef struct id {
    char text[128];
} id;

typedef struct config {
    size_t size;
    unsigned magic, version;
    int blocking, numbers[3];
    const char *name;
    int split;
} config;

int ncclGetUniqueId(id *out);
int ncclCommInitRankConfig(void **out, int size, id of, int rank, config *how);
int ncclCommDestroy(void *of);
int ncclCommAbort(void *of);
int ncclCommGetAsyncError(void *of, int *state);
const char *ncclGetErrorString(int code);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, void *of, void *on);
int ncclReduce(const void *in, void *out, size_t count, int type, int op, int root, void *of, void *on);
int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, void *of, void *on);
int ncclAllGather(const void *in, void *out, size_t count, int type, void *of, void *on);
int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op, void *of, void *on);
int ncclSend(const void *in, size_t count, int type, int to, void *of, void *on);
int ncclRecv(void *out, size_t count, int type, int from, void *of, void *on);

int ncclGetUniqueId(id *out)
{
    static int number;
    memset(out, 0, sizeof *out);
    snprintf(out->text, sizeof out->text, "%ld.%d", (long)getpid(), number++);
    return OK;
}

int ncclCommInitRankConfig(void **out, int size, id of, int rank, config *how)
{
    char path[PATH];
    comm *c = calloc(1, sizeof *c);
    if (!c || how->size != sizeof *how || how->magic != 0xcafebeefu || how->version < 21400 ||
        how->blocking || how->numbers[0] != INT_MIN || how->name || how->split != INT_MIN ||
        !(has_cards() || current() == 3))
        die("a communicator's configuration is none");
    memcpy(c->id, of.text, sizeof c->id);
    c->rank = rank, c->size = size;
    *out = c;
    path_of(c, "init", rank, 0, 0, path);
    if (!fault("init")) put(path, "", 0);
    return IN_PROGRESS;
}

static int all_there(const comm *c)
{
    char path[PATH];
    for (int r = 0; r < c->size; r++) {
        path_of(c, "init", r, 0, 0, path);
        if (access(path, R_OK)) return 0;
    }
    return 1;
}

int ncclCommGetAsyncError(void *of, int *state)
{
    comm *c = of;
    if (c->aborted) die("an aborted communicator is asked");
    *state = !all_there(c) || ++c->asked % 3 == 1 ? IN_PROGRESS : OK;
    if (fault("async") && c->calls) *state = REMOTE_ERROR;
    return OK;
}

int ncclCommDestroy(void *of)
{
    if (((comm *)of)->aborted) die("an aborted communicator is destroyed");
    free(of);
    return OK;
}

int ncclCommAbort(void *of)
{
    comm *c = of;
    char path[PATH];
    if (c->aborted++) die("aborted twice");
    path_of(c, "aborted", c->rank, 0, 0, path);
    put(path, "", 0);
    for (int left = 1; left; usleep(200)) { /* what is under way ends */
        pthread_mutex_lock(&lock);
        left = c->used && c->used->begin != c->used->end;
        pthread_mutex_unlock(&lock);
    }
    return OK;
}

const char *ncclGetErrorString(int code)
{
    return code == REMOTE_ERROR ? "remote process exited" : "unhandled system error";
}

int ncclGroupStart(void)
{
    group_depth++;
    return OK;
}

/* What is sent goes first: nobody waits for a rank that waits for him. */
int ncclGroupEnd(void)
{
    if (--group_depth) return OK;
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < group_count; i++)
            if (group[i].kind == kind) enqueue(group_stream[i], &group[i]);
    group_count = 0;
    return IN_PROGRESS;
}

static int add(int kind, const void *in, void *out, size_t count, int type, int op, int root, void *of,
               void *on)
{
    comm *c = of;
    task t;
    memset(&t, 0, sizeof t);
    if (!group_depth || group_count == GROUP || c->aborted || !all_there(c)) die("a call out of its place");
    if (fault("fail")) return SYSTEM_ERROR;
    t.of = c, t.kind = kind, t.type = type, t.op = op, t.root = root;
    t.in = in, t.out = out, t.count = count;
    t.step = kind < SEND ? c->steps++ : 0;
    c->calls++;
    t.number = kind == SEND ? c->sent[root]++ : kind == RECEIVE ? c->received[root]++ : 0;
    c->used = on;
    group_stream[group_count] = on;
    group[group_count++] = t;
    return OK;
}

int ncclAllReduce(const void *in, void *out, size_t count, int type, int op, void *of, void *on)
{
    return add(ALL_REDUCE, in, out, count, type, op, 0, of, on);
}

int ncclReduce(const void *in, void *out, size_t count, int type, int op, int root, void *of, void *on)
{
    return add(REDUCE, in, out, count, type, op, root, of, on);
}

int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, void *of, void *on)
{
    return add(BROADCAST, in, out, count, type, 0, root, of, on);
}

int ncclAllGather(const void *in, void *out, size_t count, int type, void *of, void *on)
{
    return add(ALL_GATHER, in, out, count, type, 0, 0, of, on);
}

int ncclReduceScatter(const void *in, void *out, size_t count, int type, int op, void *of, void *on)
{
    return add(REDUCE_SCATTER, in, out, count, type, op, 0, of, on);
}

int ncclSend(const void *in, size_t count, int type, int to, void *of, void *on)
{
    return add(SEND, in, NULL, count, type, 0, to, of, on);
}

int ncclRecv(void *out, size_t count, int type, int from, void *of, void *on)
{
    return add(RECEIVE, NULL, out, count, type, 0, from, of, on);
}
