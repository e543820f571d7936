/* Buckets of gradients from devices with memory of their own, whose copies come when they come: the same bits
   as from a device that is waited for each time. */
#include "dist/buckets.h"

#include "../comm/ranks.h"
#include "../graph/backends.h"
#include "dist/all_reduce_sync.h"
#include "dist/zero_sync.h"
#include "ops/op_activation.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_norm.h"

enum { MAX_RANKS = 4, IN = 6, CLASSES = 3, STEPS = 3, BATCH = 8, MOST = 2048 };

/* What the ranks are to do. */
typedef struct job {
    const dml_backend *backend;
    int world, stage; /* of ZeRO; 0: dml_all_reduce_sync */
    size_t bucket_bytes;
    bool norms;   /* over all ranks */
    bool uneven;  /* rank 0 gets nothing */
    bool without; /* nobody asks for the loss */
    bool across;
    dml_compression_kind compression;
    /* A call that fails in the first try of step 1, on all ranks alike, from 1; 0: none. */
    int fail_call, fail_start, fail_end, fail_launch;
} job;

typedef struct outcome {
    float w[MOST], loss[STEPS];
    size_t count;
    dml_status status;
    char error[512];
    int tries;      /* of steps */
    int bad;        /* waits while there was something to go on with, and reads left on their way */
    int overlapped; /* launches while a bucket was on its way */
} outcome;

static job now;
static outcome got[MAX_RANKS], want[MAX_RANKS];

/* ---- devices ---- */

#ifdef HOST_C
/* Of a rank's device, whose calls are all its thread's. */
static __thread struct {
    unsigned random;
    int out;      /* reads on their way */
    bool tried;   /* this step is to fail */
    bool passes;  /* then, between the strategy's begin and its finish: what may fail is counted */
    bool goes_on; /* in `ready`, with more of backward to come */
    int starts, ends, launches, overlapped, bad;
    char *pinned; /* the memory that its reads go to */
    size_t pinned_bytes;
} side;

typedef struct ticket {
    void *to, *bytes;
    size_t count;
    int asks; /* until it says that it has come */
} ticket;

static bool fails(int *count, int at)
{
    return side.passes && ++*count == at;
}

static dml_status away_launch(dml_device *device, const dml_launch *launch)
{
    if (fails(&side.launches, now.fail_launch))
        return dml_device_fail(device, DML_ERROR_DEVICE, "a launch that fails");
    side.overlapped += side.out > 0;
    return launch_alone(device, launch);
}

static dml_status away_read(dml_device *device, void *to, dml_ref from, size_t bytes)
{
    side.bad += side.goes_on;
    return dml__host_backend()->read(device, to, from, bytes);
}

static bool away_pin(dml_device *device, void *memory, size_t bytes)
{
    (void)device;
    side.bad += side.pinned != NULL;
    side.pinned = memory;
    side.pinned_bytes = bytes;
    return true;
}

static void away_unpin(dml_device *device, void *memory)
{
    (void)device;
    side.bad += memory != side.pinned || side.out > 0;
    side.pinned = NULL;
}

/* Until it has come there are NaNs in its place. */
static dml_status away_read_start(dml_device *device, void *to, dml_ref from, size_t bytes, void **at)
{
    char *begin = to;
    *at = NULL;
    side.bad += begin < side.pinned || begin + bytes > side.pinned + side.pinned_bytes;
    if (fails(&side.starts, now.fail_start))
        return dml_device_fail(device, DML_ERROR_DEVICE, "a read that can't be started");
    ticket *t = malloc(sizeof *t);
    *t = (ticket){ to, malloc(bytes), bytes, (int)(test_random(&side.random) % 5) };
    const dml_status status = dml__host_backend()->read(device, t->bytes, from, bytes);
    memset(to, 0xff, bytes);
    side.out++;
    *at = t;
    return status;
}

static dml_status away_read_end(dml_device *device, void *at, bool wait, bool *ended)
{
    ticket *t = at;
    const bool lost = fails(&side.ends, now.fail_end);
    side.bad += wait && side.goes_on;
    side.goes_on = side.goes_on && !lost; /* then what is left is waited for */
    *ended = wait || lost || t->asks-- == 0;
    if (!*ended) return DML_OK;
    if (!lost) memcpy(t->to, t->bytes, t->count);
    side.out--;
    free(t->bytes);
    free(t);
    return lost ? dml_device_fail(device, DML_ERROR_DEVICE, "a read that is lost") : DML_OK;
}

static dml_backend away, waited_for;
static void make_backends(void)
{
    away = *dml__host_backend();
    away.launch = away_launch;
    away.read = away_read;
    waited_for = away;
    waited_for.read = dml__host_backend()->read;
    away.read_start = away_read_start;
    away.read_end = away_read_end;
    away.pin = away_pin;
    away.unpin = away_unpin;
}

/* ---- a strategy around the strategy, which knows when backward has more to queue, and fails on command ----
 */

typedef struct watch {
    dml_sync inner;
    int calls;
} watch;

static dml_status watched(watch *w, dml_trainer *trainer, dml_status status)
{
    if (status != DML_OK || !fails(&w->calls, now.fail_call)) return status;
    return dml_trainer_fail(trainer, DML_ERROR_DEVICE, "a strategy that fails");
}
static dml_status watch_start(void *state, dml_trainer *trainer)
{
    watch *w = state;
    return w->inner.start(w->inner.state, trainer);
}
static dml_status watch_begin(void *state, dml_trainer *trainer, double samples)
{
    watch *w = state;
    side.passes = side.tried;
    side.starts = side.ends = side.launches = w->calls = 0;
    return watched(w, trainer, w->inner.begin(w->inner.state, trainer, samples));
}
static dml_status watch_ready(void *state, dml_trainer *trainer, size_t begin, size_t end)
{
    watch *w = state;
    side.goes_on = begin > 0;
    const dml_status status = w->inner.ready(w->inner.state, trainer, begin, end);
    side.goes_on = false;
    return watched(w, trainer, status);
}
static dml_status watch_finish(void *state, dml_trainer *trainer, double *samples)
{
    watch *w = state;
    side.bad += side.out > 0; /* the loss, if it was read, was read behind what others wait for */
    const dml_status status = watched(w, trainer, DML_OK);
    side.passes = false;
    return status == DML_OK ? w->inner.finish(w->inner.state, trainer, samples) : status;
}
static void watch_failed(void *state, dml_trainer *trainer)
{
    watch *w = state;
    side.passes = false;
    w->inner.failed(w->inner.state, trainer);
    side.bad += side.out > 0;
}
static void watch_destroy(void *state, dml_trainer *trainer)
{
    watch *w = state;
    w->inner.destroy(w->inner.state, trainer);
}
static dml_status watch_all_reduce(void *state, dml_trainer *trainer, double *values, size_t count)
{
    watch *w = state;
    return w->inner.all_reduce(w->inner.state, trainer, values, count);
}
static dml_status watch_updated(void *state, dml_trainer *trainer)
{
    watch *w = state;
    return w->inner.updated(w->inner.state, trainer);
}
static dml_status watch_update(void *state, dml_trainer *trainer)
{
    watch *w = state;
    return w->inner.update(w->inner.state, trainer);
}
static dml_status watch_gather(void *state, dml_trainer *trainer)
{
    watch *w = state;
    return w->inner.gather(w->inner.state, trainer);
}
static dml_sync watching(watch *w, dml_sync inner)
{
    dml_sync outer = inner;
    w->inner = inner;
    outer.state = w;
    outer.start = watch_start, outer.begin = watch_begin, outer.ready = watch_ready;
    outer.finish = watch_finish, outer.failed = watch_failed, outer.destroy = watch_destroy;
    outer.all_reduce = watch_all_reduce;
    outer.updated = inner.updated ? watch_updated : NULL;
    outer.update = inner.update ? watch_update : NULL;
    outer.gather = inner.gather ? watch_gather : NULL;
    return outer;
}
#endif

static void set_tried(bool tried)
{
#ifdef HOST_C
    side.tried = tried;
#else
    (void)tried;
#endif
}

/* ---- a rank ---- */

static dml_node *build_loss(dml_context *context)
{
    const dml_batch_norm_options all_ranks = { .all_ranks = true, .momentum = 0.3f };
    dml_graph *graph = dml_graph_create(context);
    dml_node *h = dml_tanh(dml_dense(dml_input(graph, "x", DML_F32, IN), 16));
    if (now.norms) h = dml_batch_norm(h, &all_ranks);
    h = dml_relu(dml_dense(h, 16));
    if (now.norms) h = dml_batch_norm(h, &all_ranks);
    h = dml_dense(dml_tanh(dml_dense(h, 16)), CLASSES);
    return dml_softmax_cross_entropy(h, dml_input(graph, "t", DML_I32));
}

static dml_sync make_sync(dml_comm *comm)
{
    const dml_zero_options zero = { .stage = now.stage, .bucket_bytes = now.bucket_bytes };
    const dml_all_reduce_sync_options usual = { .bucket_bytes = now.bucket_bytes,
                                                .across_steps = now.across,
                                                .compression.kind = now.compression };
    return now.stage ? dml_zero_sync(comm, &zero) : dml_all_reduce_sync(comm, &usual);
}

static dml_status one_step(const test_rank *me, dml_trainer *trainer, int step, outcome *out)
{
    float x[BATCH * IN];
    int32_t t[BATCH];
    unsigned random = 77u + (unsigned)step;
    const int parts = now.uneven ? me->world - 1 : me->world, part = now.uneven ? me->rank - 1 : me->rank;
    const int first = part < 0 ? 0 : BATCH * part / parts, last = BATCH * (part + 1) / parts;
    test_fill(&random, x, BATCH * IN);
    for (int i = 0; i < BATCH; i++) t[i] = x[i * IN] > 0.3f ? 2 : x[i * IN + 1] > 0 ? 1 : 0;
    out->tries++;
    return dml_trainer_step(trainer, last - first, DML_INPUTS(x + first * IN, t + first),
                            now.without ? NULL : &out->loss[step]);
}

static void run_rank(test_rank *me)
{
    outcome *out = (outcome *)me->user + me->rank;
    dml_context *context = dml__open_on(now.backend, 0, &(dml_options){ .threads = 1, .seed = 5 });
    const dml_trainer_options options = { .batch = BATCH, .optimizer = dml_sgd(0.1f, 0.9f) };
    dml_trainer *trainer = dml_trainer_create(build_loss(context), &options);
    dml_sync sync = make_sync(me->comm);
#ifdef HOST_C
    watch w = { .calls = 0 };
    memset(&side, 0, sizeof side);
    side.random = 1000u * (unsigned)me->rank + 1;
    if (now.backend->launch == away_launch) sync = watching(&w, sync);
#endif
    out->status = dml_trainer_sync(trainer, sync);
    for (int step = 0; step < STEPS && out->status == DML_OK; step++) {
        set_tried(step == 1);
        out->status = one_step(me, trainer, step, out);
        set_tried(false);
        if (step != 1 || out->status != DML_ERROR_DEVICE) continue;
        CHECK_CONTAINS(dml_error(context), "that");
        dml_clear_error(context);
        CHECK_INT(dml_trainer_update(trainer), DML_ERROR_STATE); /* whatever of g has been put */
        dml_clear_error(context);
        out->status = one_step(me, trainer, step, out);
    }
    if (out->status == DML_OK) out->status = dml_trainer_gather(trainer);
    out->count = dml_trainer_count(trainer, DML_PARAMETERS);
    CHECK(out->count <= MOST);
    const float *data = dml_trainer_get(trainer, DML_PARAMETERS, 0, out->count);
    if (data) memcpy(out->w, data, out->count * sizeof *data);
    snprintf(out->error, sizeof out->error, "%s", dml_error(context));
    dml_close(context);
#ifdef HOST_C
    out->bad = side.bad + side.out + (side.pinned != NULL);
    out->overlapped = side.overlapped;
#endif
}

static void run_ranks(const job *j, outcome *out)
{
    test_rank ranks[MAX_RANKS];
    now = *j;
    memset(out, 0, MAX_RANKS * sizeof *out);
    ranks_prepare(ranks, now.world, 20, run_rank, out);
    for (int r = 0; r < now.world; r++) {
        ranks[r].options.deterministic = true;
        ranks[r].options.link_latency_us = 10, ranks[r].options.link_bandwidth_gbit = 10; /* unmeasured */
    }
    ranks_run_on(ranks, now.world, "local");
}

/* On the second device the same bits, of everything, as on the first, which is waited for and has left
 * `want`. */
static void compare_again(const char *what, const job *j, const dml_backend *late)
{
    job like = *j;
    like.backend = late;
    run_ranks(&like, got);
    for (int r = 0; r < j->world; r++) {
        CHECK_MESSAGE(want[r].status == DML_OK && got[r].status == DML_OK,
                      "%s, stage %d: rank %d of %d: %s%s", what, j->stage, r, j->world, want[r].error,
                      got[r].error);
        CHECK_MESSAGE(got[r].count > 0 && memcmp(got[r].w, want[r].w, sizeof got[r].w) == 0 &&
                          memcmp(got[r].loss, want[r].loss, sizeof got[r].loss) == 0,
                      "%s, stage %d: rank %d of %d has other numbers", what, j->stage, r, j->world);
        CHECK_MESSAGE(got[r].bad == 0, "%s, stage %d: rank %d of %d waits %d times too often", what, j->stage,
                      r, j->world, got[r].bad);
    }
}

static void compare(const char *what, const job *j, const dml_backend *waited, const dml_backend *late)
{
    job like = *j;
    like.backend = waited;
    run_ranks(&like, want);
    compare_again(what, j, late);
}

/* ---- the tests ---- */

static job usual(int world, int stage)
{
    job j;
    memset(&j, 0, sizeof j);
    j.world = world;
    j.stage = stage;
    j.bucket_bytes = 200;
    return j;
}

/* Every way that buckets go, on one device and the other. */
static void every_way(const dml_backend *waited, const dml_backend *late, int most)
{
    for (int world = 1; world <= most; world += most - 1)
        for (int stage = 0; stage <= 2; stage++) {
            job j = usual(world, stage);
            compare("buckets", &j, waited, late);
            j.without = j.norms = true;
            compare("norms", &j, waited, late);
            j.without = false;
            j.uneven = world > 1;
            j.bucket_bytes = 1;
            compare("a rank without samples", &j, waited, late);
        }
    for (int kind = DML_COMPRESS_NONE; kind <= DML_COMPRESS_POWER; kind++) {
        job j = usual(most, 0);
        j.compression = (dml_compression_kind)kind;
        j.norms = j.across = true;
        compare("compressed, across steps", &j, waited, late);
    }
}

static void late_copies_give_the_same(void)
{
#ifdef HOST_C
    make_backends();
    every_way(&waited_for, &away, 3);
#else
    SKIP("no shared kernels as host C here");
#endif
}

static void backward_goes_on(void)
{
#ifdef HOST_C
    make_backends();
    for (int stage = 0; stage <= 2; stage++) {
        job j = usual(2, stage);
        compare("buckets", &j, &waited_for, &away);
        for (int r = 0; r < 2; r++) CHECK(want[r].overlapped == 0 && got[r].overlapped > STEPS);
    }
#else
    SKIP("no shared kernels as host C here");
#endif
}

#ifdef HOST_C
/* Step 1 fails at each of these calls in turn, until there are no more of them, and is made again. */
static void fail_at_each(const char *what, const job *like, int *at, int least)
{
    int n = 0;
    job j = *like;
    int *field = (int *)(void *)((char *)&j + ((const char *)at - (const char *)like));
    j.backend = &waited_for;
    run_ranks(&j, want);
    do {
        *field = ++n;
        compare_again(what, &j, &away);
    } while (test__ok && got[0].tries > STEPS && n < 200);
    CHECK_MESSAGE(n > least && n < 200, "%s: %d calls", what, n);
}
#endif

/* On all ranks alike, though not the same buckets have come on each: the next step meets nothing of it. */
static void steps_that_fail(void)
{
#ifdef HOST_C
    make_backends();
    job j = usual(2, 0);
    fail_at_each("a launch fails", &j, &j.fail_launch, 10);
    j = usual(1, 0);
    fail_at_each("a read is lost", &j, &j.fail_end, 5);
    for (int stage = 0; stage <= 1; stage++) {
        j = usual(3 - stage, stage);
        fail_at_each("the strategy fails", &j, &j.fail_call, 5);
        fail_at_each("a read doesn't start", &j, &j.fail_start, 3);
    }
#else
    SKIP("no shared kernels as host C here");
#endif
}

/* A driver's own reads. */
static void on_device(const char *name)
{
    const dml_backend *driver = find_backend(name);
    static dml_backend waited;
    if (!driver || driver->count() == 0) {
        SKIP(strcmp(name, "cuda") == 0 ? "no CUDA device here" : "no OpenCL device here");
        return;
    }
    waited = *driver;
    CHECK(waited.read_start && waited.read_end);
    waited.read_start = NULL;
    every_way(&waited, driver, 2);
    for (int stage = 0; stage <= 2; stage++) {
        job j = usual(4, stage);
        j.norms = true;
        compare("four ranks", &j, &waited, driver);
    }
}

static void on_opencl(void)
{
    on_device("opencl");
}

static void on_cuda(void)
{
    on_device("cuda");
}

int main(void)
{
    RUN(late_copies_give_the_same);
    RUN(backward_goes_on);
    RUN(steps_that_fail);
    RUN(on_opencl);
    RUN(on_cuda);
    return test_report("dist/buckets");
}
