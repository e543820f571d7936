/* Sends, receives and requests: tags, any source, probes, messages that pass each other, and any order. */
#include "ranks.h"

#include "comm/job.h"

static const char *const transports[] = { "tcp", "shm", "local" };

enum { LARGE = 100000 };

typedef struct setup {
    int max_requests, timeout;
    bool helper;
    size_t segment;
} setup;

static void run_with(int world, void (*body)(test_rank *), const setup *how)
{
    for (int t = 0; t < 3; t++) {
        test_rank ranks[RANKS_MOST];
        ranks_prepare(ranks, world, how->timeout ? how->timeout : 20, body, (void *)(uintptr_t)transports[t]);
        for (int rank = 0; rank < world; rank++) {
            ranks[rank].options.max_requests = how->max_requests;
            ranks[rank].options.progress_thread = how->helper;
            ranks[rank].options.segment_bytes = how->segment;
        }
        ranks_run_on(ranks, world, transports[t]);
        for (int rank = 0; rank < world; rank++)
            CHECK_MESSAGE(!ranks[rank].bad && !ranks[rank].status, "%s: rank %d of %d: %d wrong: %s",
                          transports[t], rank, world, ranks[rank].bad, ranks[rank].error);
    }
}

static void run_on_all(int world, void (*body)(test_rank *))
{
    setup how;
    memset(&how, 0, sizeof how);
    run_with(world, body, &how);
    how.helper = true;
    how.segment = 4096;
    run_with(world, body, &how);
}

static void fill(float *data, size_t count, int of)
{
    for (size_t i = 0; i < count; i++) data[i] = (float)((i * 7 + (size_t)of * 131) % 1009);
}

static int wrong(const float *data, size_t count, int of)
{
    int bad = 0;
    for (size_t i = 0; i < count; i++) bad += data[i] != (float)((i * 7 + (size_t)of * 131) % 1009);
    return bad;
}

/* Every rank to rank 0, which takes them as they come; then by tag, in the opposite order. */
static void any_body(test_rank *me)
{
    static const size_t sizes[] = { 0, 1, 1000, 30000 };
    float *data = (float *)malloc(30000 * sizeof *data);
    for (int round = 0; round < 4; round++) {
        if (me->rank) {
            fill(data, sizes[round], me->rank);
            me->bad += dml_comm_send(me->comm, data, sizes[round], DML_F32, 0, me->rank * 10) != DML_OK;
        }
        unsigned seen = 0;
        for (int k = 1; k < me->world && !me->rank; k++) {
            dml_message message;
            memset(&message, 0, sizeof message);
            const int tag = round % 2 ? (me->world - k) * 10 : DML_ANY_TAG;
            me->bad +=
                dml_comm_receive(me->comm, data, 30000, DML_F32, DML_ANY_SOURCE, tag, &message) != DML_OK;
            me->bad += message.tag != message.source * 10 || message.count != sizes[round];
            me->bad += message.dtype != DML_F32 || (round % 2 && message.source != me->world - k);
            me->bad += wrong(data, message.count, message.source);
            seen |= 1u << message.source;
        }
        me->bad += !me->rank && seen != (1u << me->world) - 2;
        dml_comm_barrier(me->comm);
    }
    free(data);
}

static void any_source_and_tag(void)
{
    run_on_all(5, any_body);
}

/* Many small ones that nobody has asked for, then taken from the last to the first. */
static void unreceived_body(test_rank *me)
{
    enum { COUNT = 300 };
    const int other = 1 - me->rank;
    for (int i = 0; i < COUNT; i++) {
        const int32_t x[3] = { i, i * i, me->rank };
        me->bad += dml_comm_send(me->comm, x, 3, DML_I32, other, i) != DML_OK;
    }
    me->bad += dml_comm_barrier(me->comm) != DML_OK;
    for (int i = COUNT - 1; i >= 0; i--) {
        int32_t x[3] = { 0, 0, 0 };
        me->bad += dml_comm_receive(me->comm, x, 3, DML_I32, other, i, NULL) != DML_OK;
        me->bad += x[0] != i || x[1] != i * i || x[2] != other;
    }
}

static void three_hundred_unreceived(void)
{
    run_on_all(2, unreceived_body);
}

/* Messages of one tag keep their order, whatever their sizes; large ones are asked for in the opposite order.
 */
static void order_body(test_rank *me)
{
    enum { COUNT = 12 };
    static const size_t sizes[COUNT] = { 3, LARGE, 0, 5000, 4, LARGE, 4096, 4097, 1, 20000, 2, 7 };
    float *data = (float *)malloc((size_t)COUNT * LARGE * sizeof *data);
    dml_request *requests[COUNT];
    for (int pass = 0; pass < 2; pass++) {
        const int from = pass, to = 1 - pass;
        for (int i = 0; i < COUNT; i++) {
            float *at = data + (size_t)i * LARGE;
            if (me->rank == from) {
                fill(at, sizes[i], i);
                requests[i] = dml_comm_send_start(me->comm, at, sizes[i], DML_F32, to, 5);
            } else {
                /* With room for more; either as they come or by a number of their own. */
                requests[i] = dml_comm_receive_start(me->comm, at, LARGE, DML_F32, from, 5);
            }
        }
        for (int i = COUNT - 1; i >= 0; i--) {
            dml_message message;
            me->bad += dml_comm_wait_message(me->comm, requests[i], &message) != DML_OK;
            if (me->rank != to) continue;
            me->bad += message.count != sizes[i] || message.source != from || message.tag != 5;
            me->bad += wrong(data + (size_t)i * LARGE, sizes[i], i);
        }
        for (int i = 0; i < COUNT; i++) {
            float *at = data + (size_t)i * LARGE;
            const int number = me->rank == from ? i : COUNT - 1 - i;
            if (me->rank == from) {
                fill(at, sizes[number], number);
                requests[i] = dml_comm_send_start(me->comm, at, sizes[number], DML_F32, to, number);
            } else if (number % 2) {
                requests[i] = dml_comm_receive_start(me->comm, at, LARGE, DML_F32, from, number);
            } else { /* blocking: all others go on meanwhile */
                requests[i] = NULL;
                me->bad += dml_comm_receive(me->comm, at, LARGE, DML_F32, from, number, NULL) != DML_OK;
            }
            if (me->rank == to && !requests[i]) me->bad += wrong(at, sizes[number], number);
        }
        int done;
        while ((done = dml_comm_wait_any(me->comm, requests, COUNT)) >= 0)
            if (me->rank == to)
                me->bad += wrong(data + (size_t)done * LARGE, sizes[COUNT - 1 - done], COUNT - 1 - done);
    }
    free(data);
}

static void in_order_and_in_any_order(void)
{
    run_on_all(2, order_body);
}

/* Both send first. What is short is over before the other has asked; what is long passes the other's. */
static void crossing_body(test_rank *me)
{
    const int other = 1 - me->rank;
    float *out = (float *)malloc(LARGE * sizeof *out), *in = (float *)malloc(LARGE * sizeof *in);
    for (size_t count = 1; count <= 4096; count *= 4) {
        fill(out, count, me->rank);
        me->bad += dml_comm_send(me->comm, out, count, DML_F32, other, 0) != DML_OK;
        me->bad += dml_comm_receive(me->comm, in, count, DML_F32, other, 0, NULL) != DML_OK;
        me->bad += wrong(in, count, other);
    }
    for (size_t count = 4097; count <= LARGE; count = count * 3 + 1) {
        fill(out, count, me->rank);
        dml_request *request = dml_comm_receive_start(me->comm, in, count, DML_F32, other, 0);
        me->bad += dml_comm_send(me->comm, out, count, DML_F32, other, 0) != DML_OK;
        me->bad += dml_comm_wait(me->comm, request) != DML_OK;
        me->bad += wrong(in, count, other);
    }
    free(out);
    free(in);
}

static void both_send_first(void)
{
    run_on_all(2, crossing_body);
}

static void probe_body(test_rank *me)
{
    dml_message message;
    float data[50];
    if (me->rank == 1) {
        fill(data, 50, 3);
        ranks_sleep(0.05);
        me->bad += dml_comm_send(me->comm, data, 50, DML_F32, 0, 8) != DML_OK;
    }
    if (me->rank == 0) {
        const double begin = dml_seconds();
        me->bad += dml_comm_probe(me->comm, 2, DML_ANY_TAG, 0.01, &message);
        me->bad += dml_seconds() - begin < 0.009;
        me->bad += !dml_comm_probe(me->comm, DML_ANY_SOURCE, 8, 10, &message);
        me->bad += message.source != 1 || message.tag != 8 || message.count != 50 || message.dtype != DML_F32;
        me->bad += dml_comm_probe(me->comm, DML_ANY_SOURCE, 9, 0, NULL);
        me->bad += dml_comm_probe(me->comm, DML_ANY_SOURCE, 9, (double)NAN, NULL);
        me->bad += dml_comm_probe(me->comm, DML_ANY_SOURCE, 9, -1e30, NULL);
        me->bad += !dml_comm_probe(me->comm, 1, DML_ANY_TAG, 0, NULL); /* still there */
        me->bad += dml_comm_receive(me->comm, data, 50, DML_F32, 1, 8, NULL) != DML_OK || wrong(data, 50, 3);
        me->bad += dml_comm_probe(me->comm, DML_ANY_SOURCE, DML_ANY_TAG, 0, NULL);
    }
    me->bad += dml_comm_barrier(me->comm) != DML_OK;
}

static void probes(void)
{
    run_on_all(3, probe_body);
}

/* Who looks in vain counts that, since from some number on it gives the processor up, until something comes.
 */
static void poll_body(test_rank *me)
{
    const dml__comm_job *job = me->comm->job;
    float got = 0, one = 1;
    if (me->rank) {
        me->bad += dml_comm_receive(me->comm, &got, 1, DML_F32, 0, 1, NULL) != DML_OK;
        me->bad += dml_comm_send(me->comm, &one, 1, DML_F32, 0, 2) != DML_OK;
    } else {
        dml_request *request = dml_comm_receive_start(me->comm, &got, 1, DML_F32, 1, 2);
        for (int look = 1; look <= 100; look++) {
            me->bad += look % 2 ? dml_comm_done(me->comm, request) : dml_comm_probe(me->comm, 1, 2, 0, NULL);
            me->bad += !job->yields && look < 10 && job->vain_looks != look;
        }
        const int most = job->vain_looks;
        me->bad += !job->yields && (most < 10 || most > 50);
        me->bad += dml_comm_probe(me->comm, 1, 2, 1e-3, NULL) || job->vain_looks != most; /* waited */
        me->bad += dml_comm_send(me->comm, &one, 1, DML_F32, 1, 1) != DML_OK;
        while (!dml_comm_done(me->comm, request)) continue;
        me->bad += job->vain_looks != 0;
        me->bad += dml_comm_wait(me->comm, request) != DML_OK || got != 1;
    }
    me->bad += dml_comm_barrier(me->comm) != DML_OK;
}

static void looks_in_vain(void)
{
    run_on_all(2, poll_body);
}

static void cancel_body(test_rank *me)
{
    float data[10], other[10];
    dml_request *request = dml_comm_receive_start(me->comm, data, 10, DML_F32, DML_ANY_SOURCE, 77);
    dml_request *second = dml_comm_receive_start(me->comm, other, 10, DML_F32, DML_ANY_SOURCE, 78);
    me->bad += dml_comm_done(me->comm, request);
    me->bad += !dml_comm_cancel(me->comm, request);
    me->bad += dml_comm_barrier(me->comm) != DML_OK;
    fill(data, 10, me->rank);
    const int to = (me->rank + 1) % me->world, from = (me->rank + me->world - 1) % me->world;
    me->bad += dml_comm_send(me->comm, data, 10, DML_F32, to, 78) != DML_OK;
    while (!dml_comm_done(me->comm, second)) ranks_sleep(1e-4);
    me->bad += dml_comm_cancel(me->comm, second); /* too late */
    me->bad += dml_comm_wait(me->comm, second) != DML_OK || wrong(other, 10, from);
    request = dml_comm_all_reduce_start(me->comm, data, 10, DML_F32, DML_SUM);
    me->bad += dml_comm_cancel(me->comm, request);
    me->bad += dml_comm_wait(me->comm, request) != DML_OK;
}

static void cancelled(void)
{
    run_on_all(3, cancel_body);
}

/* All requests that there are, at every rank, in flight at once; and once more after wait_all. Some reach a
   rank that starts its own late: what it keeps for the others is as large as it can get. */
static void most_body(test_rank *me)
{
    enum { REQUESTS = 64, N = 6000 };
    float *data = (float *)malloc((size_t)REQUESTS * N * sizeof *data);
    float *parts = (float *)malloc((size_t)me->world * REQUESTS * 50 * sizeof *parts);
    dml_request *requests[REQUESTS];
    for (int round = 0; round < 6; round++) {
        if (me->rank == round % me->world) ranks_sleep(0.02);
        for (int i = 0; i < REQUESTS; i++) {
            float *at = data + (size_t)i * N;
            const size_t count = round % 2 ? N : i % 3 == 0 ? 4000 : 100;
            fill(at, count, 0);
            if (round == 2) {
                requests[i] = dml_comm_all_gather_start(me->comm, at, 50, DML_F32,
                                                        parts + (size_t)(me->world * i * 50));
            } else if (round < 4) {
                requests[i] = dml_comm_all_reduce_start(me->comm, at, count, DML_F32, DML_MAX);
            } else { /* in pairs of ranks; each receives what it asks for last first */
                const int other = me->rank ^ 1;
                const size_t size = i % 5 == 0 ? 6000 : i % 5 == 1 ? 3000 : 10;
                requests[i] = i < REQUESTS / 2
                                  ? dml_comm_send_start(me->comm, at, size, DML_F32, other, i)
                                  : dml_comm_receive_start(me->comm, at, N, DML_F32, other, REQUESTS - 1 - i);
            }
            me->bad += !requests[i];
        }
        if (round % 2) {
            me->bad += dml_comm_wait_all(me->comm) != DML_OK;
        } else {
            for (int k = 0; k < REQUESTS; k++)
                me->bad += dml_comm_wait(me->comm, requests[(k * 37 + me->rank) % REQUESTS]) != DML_OK;
        }
        for (int i = 0; i < REQUESTS && round < 4 && round != 2; i++)
            me->bad += wrong(data + (size_t)i * N, round % 2 ? N : i % 3 == 0 ? 4000 : 100, 0);
        if (me->bad) break;
    }
    free(parts);
    free(data);
}

static void as_many_as_there_are(void)
{
    setup how;
    memset(&how, 0, sizeof how);
    how.max_requests = 64;
    run_with(4, most_body, &how);
    how.segment = 4096;
    how.helper = true;
    run_with(4, most_body, &how);
}

/* What a rank keeps for another is never more than it has room for, however late it is: everything that is
   allowed comes before it looks. */
static void early_body(test_rank *me)
{
    enum { REQUESTS = 16, N = 4000 };
    float *data = (float *)malloc((size_t)REQUESTS * N * sizeof *data);
    dml_request *requests[REQUESTS];
    const dml__comm_job *job = me->comm->job;
    size_t most = 0;
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < REQUESTS * N; i++) data[i] = 1;
        if (me->rank == 0) {
            /* Late, but it hears what comes; later on a busy machine, where the other sends late, too. */
            for (int looks = 0; looks < 10 && (looks == 0 || most < job->store_bytes / 4); looks++) {
                dml_comm_probe(me->comm, 1, 12345, 0.02, NULL);
                if (job->links[1].store_used > most) most = job->links[1].store_used;
            }
        }
        for (int i = 0; i < REQUESTS; i++) {
            const size_t count = round % 3 == 0 ? N : round % 3 == 1 ? 5 : (size_t)(i % 2 ? N : 3);
            requests[i] = me->rank ? dml_comm_send_start(me->comm, data + (size_t)i * N, count, DML_F32, 0, i)
                                   : dml_comm_receive_start(me->comm, data + (size_t)i * N, N, DML_F32, 1,
                                                            REQUESTS - 1 - i);
            me->bad += !requests[i];
        }
        for (int i = 0; i < REQUESTS; i++) me->bad += dml_comm_wait(me->comm, requests[i]) != DML_OK;
        /* The same with collectives, whose grants come early too. */
        if (me->rank == 0) dml_comm_probe(me->comm, 1, 12345, 0.02, NULL);
        for (int i = 0; i < REQUESTS; i++)
            requests[i] = i % 2
                              ? dml_comm_all_reduce_start(me->comm, data + (size_t)i * N, N, DML_F32, DML_MAX)
                              : dml_comm_reduce_start(me->comm, data + (size_t)i * N, (size_t)(i + 1),
                                                      DML_F32, DML_MAX, 0);
        for (int i = 0; i < REQUESTS; i++) me->bad += dml_comm_wait(me->comm, requests[i]) != DML_OK;
    }
    if (me->rank == 0) me->bad += most < job->store_bytes / 4 || most > job->store_bytes;
    free(data);
}

static void a_late_rank_keeps_all(void)
{
    setup how;
    memset(&how, 0, sizeof how);
    how.max_requests = 16;
    run_with(2, early_body, &how);
}

/* With a thread of its own a started call ends while the caller computes and calls nothing. */
static void helper_body(test_rank *me)
{
    float *data = (float *)malloc(LARGE * sizeof *data);
    for (int i = 0; i < LARGE; i++) data[i] = 1;
    me->bad += dml_comm_start_progress_thread(me->comm) != DML_OK;
    me->bad += dml_comm_start_progress_thread(me->comm) != DML_OK; /* nothing more */
    dml_request *request = dml_comm_all_reduce_start(me->comm, data, LARGE, DML_F32, DML_SUM);
    const double until = dml_seconds() + 10;
    /* Looks without a call: what the helper sees under its lock. */
    bool done = false;
    while (!done && dml_seconds() < until) {
        ranks_sleep(1e-3);
        dml__mutex_lock(&me->comm->job->mutex);
        done = request->state == DML__REQUEST_DONE;
        dml__mutex_unlock(&me->comm->job->mutex);
    }
    me->bad += !done;
    me->bad += dml_comm_wait(me->comm, request) != DML_OK || data[LARGE - 1] != (float)me->world;
    free(data);
}

static void a_helper_goes_on(void)
{
    setup how;
    memset(&how, 0, sizeof how);
    run_with(3, helper_body, &how);
}

/* Several threads of a rank wait in calls at once, beside its helper: each takes over from the others. */
enum { SHARING = 3, SHARED_ROUNDS = 300 };

typedef struct sharing {
    dml_comm *comm;
    int bad;
} sharing;

static void *share_a_rank(void *argument)
{
    sharing *me = (sharing *)argument;
    const int rank = dml_comm_rank(me->comm), world = dml_comm_world_size(me->comm);
    const int next = (rank + 1) % world, before = (rank + world - 1) % world;
    for (int i = 0; i < SHARED_ROUNDS && !dml_comm_status(me->comm); i++) {
        int32_t x = rank, out = i * world + rank, in = -1;
        dml_message message;
        dml_request *sent = dml_comm_send_start(me->comm, &out, 1, DML_I32, next, i);
        if (i % 7 == rank) ranks_sleep(2e-4);
        me->bad += dml_comm_all_reduce(me->comm, &x, 1, DML_I32, DML_SUM) || x != world * (world - 1) / 2;
        me->bad += !dml_comm_probe(me->comm, before, i, 30, &message) || message.count != 1;
        me->bad += dml_comm_receive(me->comm, &in, 1, DML_I32, before, i, NULL) || in != i * world + before;
        me->bad += dml_comm_wait(me->comm, sent) != DML_OK;
    }
    return NULL;
}

static void sharing_body(test_rank *me)
{
    sharing all[SHARING];
    pthread_t threads[SHARING];
    memset(all, 0, sizeof all);
    me->bad += dml_comm_start_progress_thread(me->comm) != DML_OK;
    for (int i = 0; i < SHARING; i++) all[i].comm = dml_comm_split(me->comm, 0, me->rank);
    for (int i = 0; i < SHARING; i++) pthread_create(&threads[i], NULL, share_a_rank, &all[i]);
    for (int i = 0; i < SHARING; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < SHARING; i++) {
        me->bad += all[i].bad;
        dml_comm_close(all[i].comm);
    }
}

static void threads_share_a_rank(void)
{
    setup how;
    memset(&how, 0, sizeof how);
    run_with(3, sharing_body, &how);
}

static double processor_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* A rank that waits sleeps: for a collective, a message, a probe. */
static void idle_body(test_rank *me)
{
    if (me->rank == 1) {
        for (int i = 0; i < 3; i++) {
            ranks_sleep(0.2);
            float x = 1;
            if (i == 0) me->bad += dml_comm_barrier(me->comm) != DML_OK;
            if (i > 0) me->bad += dml_comm_send(me->comm, &x, 1, DML_F32, 0, i) != DML_OK;
        }
        return;
    }
    const double before = processor_seconds();
    float x = 0;
    me->bad += dml_comm_barrier(me->comm) != DML_OK;
    me->bad += dml_comm_receive(me->comm, &x, 1, DML_F32, 1, 1, NULL) != DML_OK;
    me->bad += !dml_comm_probe(me->comm, 1, 2, 10, NULL);
    me->bad += processor_seconds() - before > 0.1;
    me->bad += dml_comm_receive(me->comm, &x, 1, DML_F32, 1, 2, NULL) != DML_OK;
}

static void waiting_takes_no_processor(void)
{
    setup how;
    memset(&how, 0, sizeof how);
    run_with(2, idle_body, &how);
}

/* Many rounds: their number wraps around in the frames. */
static void rounds_body(test_rank *me)
{
    enum { COUNT = 66000 * 2 };
    float *data = (float *)malloc(COUNT * sizeof *data);
    fill(data, COUNT, 1);
    me->comm->job->scratch_bytes = 8; /* on all ranks: two elements a round */
    me->bad += dml_comm_all_reduce(me->comm, data, COUNT, DML_F32, DML_MIN) != DML_OK;
    me->bad += wrong(data, COUNT, 1);
    free(data);
}

static void more_rounds_than_numbers(void)
{
#ifdef __SANITIZE_THREAD__
    SKIP("66000 rounds take a minute");
    return;
#endif
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, rounds_body, NULL);
    ranks[0].options.algorithm = ranks[1].options.algorithm = "all_reduce=butterfly";
    ranks_run_on(ranks, 2, "local");
    check_ranks(ranks, 2);
}

/* Asking again and again is enough to hear that another rank has failed, or is frozen. */
static void asking_body(test_rank *me)
{
    float data[4];
    if (me->rank == 1 && me->user) ranks_sleep(0.05);
    if (me->rank == 1 && me->user) dml_comm_broadcast(me->comm, NULL, 3, DML_F32, 0);
    if (me->rank == 0) {
        dml_request *request = dml_comm_receive_start(me->comm, data, 4, DML_F32, 2, 0);
        const double until = dml_seconds() + 5;
        while (!dml_comm_done(me->comm, request) && dml_seconds() < until) ranks_sleep(1e-4);
        me->bad += dml_seconds() >= until;
        me->bad += dml_comm_wait(me->comm, request) == DML_OK;
        me->bad += !strstr(dml_comm_error(me->comm), me->user ? "rank 1 called broadcast" : "rank 2");
    } else {
        ranks_sleep(1.5); /* calls nothing */
    }
}

static void asking_ends_too(void)
{
    for (int t = 0; t < 6; t++) {
        test_rank ranks[3];
        ranks_prepare(ranks, 3, t < 3 ? 20 : 0.5, asking_body, t < 3 ? ranks : NULL);
        ranks_run_on(ranks, 3, transports[t % 3]);
        CHECK_MESSAGE(!ranks[0].bad, "%s: %d wrong: %s", transports[t % 3], ranks[0].bad, ranks[0].error);
    }
}

/* Behind a long line of others, the second of two at a higher priority. */
static void in_turn_body(test_rank *me)
{
    enum { OTHERS = 40, LONG = 20000 };
    static float others[2][OTHERS][LONG];
    dml_request *all[OTHERS];
    float x[2] = { 1, 2 }, got[2] = { 0, 0 };
    for (int i = 0; i < OTHERS; i++)
        all[i] = me->rank ? dml_comm_send_start(me->comm, others[1][i], LONG, DML_F32, 0, 5)
                          : dml_comm_receive_start(me->comm, others[0][i], LONG, DML_F32, 1, 5);
    dml_request *pair[2];
    for (int i = 0; i < 2; i++) {
        dml_comm_set_priority(me->comm, 3 * i);
        pair[i] = me->rank ? dml_comm_send_start(me->comm, &x[i], 1, DML_F32, 0, 1)
                           : dml_comm_receive_start(me->comm, &got[i], 1, DML_F32, 1, 1);
    }
    for (int i = 0; i < 2; i++) me->bad += dml_comm_wait(me->comm, pair[i]) != DML_OK;
    for (int i = 0; i < OTHERS; i++) me->bad += dml_comm_wait(me->comm, all[i]) != DML_OK;
    me->bad += !me->rank && (got[0] != 1 || got[1] != 2);
}

static void priorities_keep_the_order(void)
{
    run_on_all(2, in_turn_body);
}

static void bad_probe_body(test_rank *me)
{
    const int tag = me->rank ? -2 : 0, from = me->rank ? 0 : 7;
    dml_message message;
    me->bad += dml_comm_probe(me->comm, from, tag, 1, &message);
    dml_comm_barrier(me->comm);
}

static void probes_that_make_no_sense(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 3, bad_probe_body, NULL);
    ranks_run(ranks, 2);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(ranks[rank].status, DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(ranks[rank].error, "there are ranks 0 to 1 and no tags below 0");
        CHECK_INT(ranks[rank].bad, 0);
    }
}

static void alone_body(test_rank *me)
{
    float x;
    const double begin = dml_seconds();
    me->bad += dml_comm_receive(me->comm, &x, 1, DML_F32, DML_ANY_SOURCE, 0, NULL) != DML_ERROR_ARGUMENT;
    me->bad += dml_seconds() - begin > 1;
}

static void nobody_to_receive_from(void)
{
    test_rank ranks[1];
    ranks_prepare(ranks, 1, 3, alone_body, NULL);
    ranks_run(ranks, 1);
    CHECK_INT(ranks[0].bad, 0);
}

int main(void)
{
    RUN(any_source_and_tag);
    RUN(three_hundred_unreceived);
    RUN(in_order_and_in_any_order);
    RUN(both_send_first);
    RUN(probes);
    RUN(looks_in_vain);
    RUN(cancelled);
    RUN(as_many_as_there_are);
    RUN(a_late_rank_keeps_all);
    RUN(a_helper_goes_on);
    RUN(threads_share_a_rank);
    RUN(waiting_takes_no_processor);
    RUN(more_rounds_than_numbers);
    RUN(asking_ends_too);
    RUN(priorities_keep_the_order);
    RUN(nobody_to_receive_from);
    RUN(probes_that_make_no_sense);
    return test_report("comm/messages");
}
