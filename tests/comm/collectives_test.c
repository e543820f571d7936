/* Every collective, at 1 to 9 ranks, over all dtypes, ops and awkward counts, against float64 sums. */
#include "ranks.h"

#define LARGEST 65537

static const size_t counts[] = { 0, 1, 2, 7, 8, 9, 1000, LARGEST };
#define COUNTS (sizeof counts / sizeof *counts)

/* Element i of rank r: small whole and half numbers, so that every order of summing is exact in float64. */
static double element(int rank, size_t i, dml_dtype dtype, dml_reduce_op op)
{
    const unsigned mix = (unsigned)((size_t)rank * 2654435761u + i * 40503u + 12345u);
    if (op == DML_PROD) return (mix >> 7) % 3 == 0 ? -2 : 1;
    const double whole = (double)((mix >> 5) % 201) - 100;
    return dtype == DML_F32 || dtype == DML_F64 ? whole / 2 : whole;
}

static double expected(int world, size_t i, dml_dtype dtype, dml_reduce_op op)
{
    double result = element(0, i, dtype, op);
    for (int rank = 1; rank < world; rank++) {
        const double x = element(rank, i, dtype, op);
        if (op == DML_SUM || op == DML_MEAN) result += x;
        if (op == DML_PROD) result *= x;
        if (op == DML_MIN && x < result) result = x;
        if (op == DML_MAX && x > result) result = x;
    }
    if (op != DML_MEAN) return result;
    result /= world;
    if (dtype == DML_F32) return (double)(float)result;
    return dtype == DML_F64 ? result : trunc(result);
}

static void store(void *data, size_t i, dml_dtype dtype, double value)
{
    switch (dtype) {
    case DML_F32: ((float *)data)[i] = (float)value; break;
    case DML_F64: ((double *)data)[i] = value; break;
    case DML_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case DML_I64: ((int64_t *)data)[i] = (int64_t)value; break;
    case DML_BF16:
    case DML_F16: ((uint16_t *)data)[i] = (uint16_t)(int)value; break; /* bits, which are only moved */
    default: ((uint8_t *)data)[i] = (uint8_t)(int)value; break;
    }
}

static double load(const void *data, size_t i, dml_dtype dtype)
{
    switch (dtype) {
    case DML_F32: return (double)((const float *)data)[i];
    case DML_F64: return ((const double *)data)[i];
    case DML_I32: return (double)((const int32_t *)data)[i];
    case DML_I64: return (double)((const int64_t *)data)[i];
    case DML_BF16:
    case DML_F16: return (double)((const uint16_t *)data)[i];
    default: return (double)((const uint8_t *)data)[i];
    }
}

/* What is left of a value in an array of the type. */
static double load_stored(dml_dtype dtype, double value)
{
    double element[1];
    store(element, 0, dtype, value);
    return load(element, 0, dtype);
}

static void fill(void *data, size_t at, size_t from, size_t count, int rank, dml_dtype dtype,
                 dml_reduce_op op)
{
    for (size_t i = 0; i < count; i++) store(data, at + i, dtype, element(rank, from + i, dtype, op));
}

static void check_reduced(test_rank *me, const void *data, size_t from, size_t count, dml_dtype dtype,
                          dml_reduce_op op)
{
    for (size_t i = 0; i < count; i++)
        me->bad += load(data, i, dtype) != expected(me->world, from + i, dtype, op);
}

/* The largest count only with some combinations, for the sake of time. */
static bool skipped(size_t count, dml_dtype dtype, dml_reduce_op op)
{
    return count == LARGEST && !(dtype == DML_F32 && op == DML_SUM) && !(dtype == DML_I64 && op == DML_MEAN);
}

static void all_reduce_body(test_rank *me)
{
    double *data = (double *)malloc(LARGEST * sizeof *data);
    for (int dtype = DML_F32; dtype <= DML_I64; dtype++)
        for (int op = DML_SUM; op < DML__REDUCE_OP_COUNT; op++)
            for (size_t c = 0; c < COUNTS; c++) {
                if (skipped(counts[c], (dml_dtype)dtype, (dml_reduce_op)op)) continue;
                fill(data, 0, 0, counts[c], me->rank, (dml_dtype)dtype, (dml_reduce_op)op);
                me->bad += dml_comm_all_reduce(me->comm, data, counts[c], (dml_dtype)dtype,
                                               (dml_reduce_op)op) != DML_OK;
                check_reduced(me, data, 0, counts[c], (dml_dtype)dtype, (dml_reduce_op)op);
                ranks_digest(me, data, counts[c] * dml_dtype_size((dml_dtype)dtype));
            }
    free(data);
}

static void reduce_scatter_body(test_rank *me)
{
    double *in = (double *)malloc((size_t)me->world * 1000 * sizeof *in),
           *out = (double *)malloc(1000 * sizeof *out);
    for (int dtype = DML_F32; dtype <= DML_I64; dtype++)
        for (int op = DML_SUM; op < DML__REDUCE_OP_COUNT; op++)
            for (size_t c = 0; c < COUNTS - 1; c++) {
                const size_t count = counts[c], all = count * (size_t)me->world,
                             mine = count * (size_t)me->rank;
                fill(in, 0, 0, all, me->rank, (dml_dtype)dtype, (dml_reduce_op)op);
                me->bad += dml_comm_reduce_scatter(me->comm, in, count, (dml_dtype)dtype, (dml_reduce_op)op,
                                                   out) != DML_OK;
                check_reduced(me, out, mine, count, (dml_dtype)dtype, (dml_reduce_op)op);
                if (op != DML_SUM) continue;
                /* In place: into this rank's row. */
                void *row = (char *)in + mine * dml_dtype_size((dml_dtype)dtype);
                fill(in, 0, 0, all, me->rank, (dml_dtype)dtype, (dml_reduce_op)op);
                me->bad += dml_comm_reduce_scatter(me->comm, in, count, (dml_dtype)dtype, (dml_reduce_op)op,
                                                   row) != DML_OK;
                check_reduced(me, row, mine, count, (dml_dtype)dtype, (dml_reduce_op)op);
            }
    free(in);
    free(out);
}

static void all_gather_body(test_rank *me)
{
    double *in = (double *)malloc(1000 * sizeof *in),
           *out = (double *)malloc((size_t)me->world * 1000 * sizeof *out);
    for (int dtype = DML_F32; dtype < DML__DTYPE_COUNT; dtype++)
        for (size_t c = 0; c < COUNTS - 1; c++)
            for (int in_place = 0; in_place < 2; in_place++) {
                const size_t count = counts[c], mine = count * (size_t)me->rank;
                const size_t size = dml_dtype_size((dml_dtype)dtype);
                void *from = in_place ? (void *)((char *)out + mine * size) : (void *)in;
                memset(out, 0xee, (size_t)me->world * 1000 * sizeof *out);
                fill(from, 0, mine, count, me->rank, (dml_dtype)dtype, DML_SUM);
                me->bad += dml_comm_all_gather(me->comm, from, count, (dml_dtype)dtype, out) != DML_OK;
                for (int rank = 0; rank < me->world; rank++)
                    for (size_t i = (size_t)rank * count; i < (size_t)(rank + 1) * count; i++) {
                        const double sent = element(rank, i, (dml_dtype)dtype, DML_SUM);
                        me->bad += load(out, i, (dml_dtype)dtype) != load_stored((dml_dtype)dtype, sent);
                    }
                ranks_digest(me, out, (size_t)me->world * count * size);
            }
    free(in);
    free(out);
}

static void broadcast_body(test_rank *me)
{
    double *data = (double *)malloc(LARGEST * sizeof *data);
    for (int root = 0; root < me->world; root++)
        for (size_t c = 0; c < COUNTS; c++) {
            const dml_dtype dtype = (dml_dtype)((c + (size_t)root) % DML__DTYPE_COUNT);
            fill(data, 0, 0, counts[c], me->rank, dtype, DML_SUM);
            me->bad += dml_comm_broadcast(me->comm, data, counts[c], dtype, root) != DML_OK;
            for (size_t i = 0; i < counts[c]; i++) {
                const double sent = element(root, i, dtype, DML_SUM);
                me->bad += load(data, i, dtype) != load_stored(dtype, sent);
            }
            ranks_digest(me, data, counts[c] * dml_dtype_size(dtype));
        }
    free(data);
}

/* Each rank to the next, even ranks sending first; the largest count doesn't fit into socket buffers at once.
 */
static void send_receive_body(test_rank *me)
{
    if (me->world == 1) return;
    const int to = (me->rank + 1) % me->world, from = (me->rank + me->world - 1) % me->world;
    float *data = (float *)malloc(LARGEST * sizeof *data), *got = (float *)malloc(LARGEST * sizeof *got);
    for (size_t c = 0; c < COUNTS; c++) {
        fill(data, 0, 0, counts[c], me->rank, DML_F32, DML_SUM);
        for (int turn = 0; turn < 2; turn++) {
            const bool sends = (me->rank % 2 == 0) == (turn == 0);
            const dml_status status =
                sends ? dml_comm_send(me->comm, data, counts[c], DML_F32, to, 0)
                      : dml_comm_receive(me->comm, got, counts[c], DML_F32, from, 0, NULL);
            me->bad += status != DML_OK;
        }
        for (size_t i = 0; i < counts[c]; i++) me->bad += got[i] != (float)element(from, i, DML_F32, DML_SUM);
    }
    free(data);
    free(got);
}

static int barrier_arrived; /* atomic */

static void barrier_body(test_rank *me)
{
    for (int round = 1; round <= 20; round++) {
        if ((me->rank + round) % me->world == 0) ranks_sleep(0.0005);
        __atomic_fetch_add(&barrier_arrived, 1, __ATOMIC_SEQ_CST);
        me->bad += dml_comm_barrier(me->comm) != DML_OK;
        me->bad += __atomic_load_n(&barrier_arrived, __ATOMIC_SEQ_CST) < round * me->world;
    }
}

/* Started all at once, waited for in another order, with a synchronous call in between that must come after.
 */
static void started_body(test_rank *me)
{
    enum { REQUESTS = 12, N = 5000 };
    float *data = (float *)malloc(REQUESTS * N * sizeof *data), after[3];
    dml_request *requests[REQUESTS];
    for (int round = 0; round < 3; round++) {
        for (int r = 0; r < REQUESTS; r++) {
            fill(data, (size_t)r * N, (size_t)r, N, me->rank, DML_F32, DML_MEAN);
            requests[r] = dml_comm_all_reduce_start(me->comm, data + r * N, N, DML_F32, DML_MEAN);
            me->bad += !requests[r];
        }
        fill(after, 0, 0, 3, me->rank, DML_F32, DML_MAX);
        if (round < 2) {
            me->bad += dml_comm_all_reduce(me->comm, after, 3, DML_F32, DML_MAX) != DML_OK;
            check_reduced(me, after, 0, 3, DML_F32, DML_MAX);
            for (int r = 0; r < REQUESTS; r++)
                while (!dml_comm_done(me->comm, requests[r])) continue;
        }
        for (int r = REQUESTS - 1; r >= 0; r--) me->bad += dml_comm_wait(me->comm, requests[r]) != DML_OK;
        for (int r = 0; r < REQUESTS; r++) check_reduced(me, data + r * N, (size_t)r, N, DML_F32, DML_MEAN);
        ranks_digest(me, data, REQUESTS * N * sizeof *data);
    }
    free(data);
}

/* Started and never waited for: closing finishes them. */
static void abandoned_body(test_rank *me)
{
    float *data = (float *)me->user + me->rank * 1000;
    fill(data, 0, 0, 1000, me->rank, DML_F32, DML_SUM);
    me->bad += !dml_comm_all_reduce_start(me->comm, data, 1000, DML_F32, DML_SUM);
}

static void special_body(test_rank *me)
{
    /* NaN wins on whichever rank it is; integers wrap around. */
    float x[2] = { me->rank == me->world - 1 ? NAN : 1.0f, me->rank == 0 ? NAN : -1.0f };
    me->bad += dml_comm_all_reduce(me->comm, x, 2, DML_F32, DML_MIN) || !isnan(x[0]) || !isnan(x[1]);
    float y[2] = { me->rank == me->world - 1 ? NAN : 1.0f, me->rank == 0 ? NAN : -1.0f };
    me->bad += dml_comm_all_reduce(me->comm, y, 2, DML_F32, DML_MAX) || !isnan(y[0]) || !isnan(y[1]);
    int32_t i = me->rank < 2 ? INT32_MAX : 0;
    me->bad +=
        dml_comm_all_reduce(me->comm, &i, 1, DML_I32, DML_SUM) || i != (me->world == 1 ? INT32_MAX : -2);
    int64_t p = INT64_MIN;
    me->bad +=
        dml_comm_all_reduce(me->comm, &p, 1, DML_I64, DML_PROD) || p != (me->world == 1 ? INT64_MIN : 0);
}

/* A NaN on any one rank, at any place, makes the minimum and the maximum NaN, even beside infinities. */
static void nan_body(test_rank *me)
{
    enum { EACH = 37, MOST = EACH * RANKS_MAX }; /* whole vectors and a rest, in each rank's chunk */
    double data[MOST];
    const size_t count = EACH * (size_t)me->world;
    for (int dtype = DML_F32; dtype <= DML_F64; dtype++)
        for (int op = DML_MIN; op <= DML_MAX; op++)
            for (int round = 0; round < me->world; round++) {
                for (size_t i = 0; i < count; i++) {
                    const int victim = (int)((i / 2 + (size_t)round) % (size_t)me->world);
                    const double other = i % 5 == 0 ? INFINITY : i % 5 == 1 ? -INFINITY : (double)me->rank;
                    store(data, i, (dml_dtype)dtype, i % 2 && me->rank == victim ? NAN : other);
                }
                me->bad +=
                    dml_comm_all_reduce(me->comm, data, count, (dml_dtype)dtype, (dml_reduce_op)op) != DML_OK;
                for (size_t i = 0; i < count; i++) {
                    const double got = load(data, i, (dml_dtype)dtype);
                    const double extreme = op == DML_MIN ? 0 : me->world - 1;
                    const double want = i % 5 == 0 ? INFINITY : i % 5 == 1 ? -INFINITY : extreme;
                    me->bad += i % 2 ? !isnan(got) : got != want;
                }
                ranks_digest(me, data, count * dml_dtype_size((dml_dtype)dtype));
            }
}

static void nothing_body(test_rank *me)
{
    for (int dtype = DML_F32; dtype < DML__DTYPE_COUNT; dtype++) {
        me->bad += dml_comm_broadcast(me->comm, NULL, 0, (dml_dtype)dtype, me->world - 1) != DML_OK;
        me->bad += dml_comm_all_gather(me->comm, NULL, 0, (dml_dtype)dtype, NULL) != DML_OK;
        if (dtype > DML_I64) continue;
        for (int op = DML_SUM; op < DML__REDUCE_OP_COUNT; op++) {
            me->bad += dml_comm_all_reduce(me->comm, NULL, 0, (dml_dtype)dtype, (dml_reduce_op)op) != DML_OK;
            me->bad += dml_comm_reduce_scatter(me->comm, NULL, 0, (dml_dtype)dtype, (dml_reduce_op)op,
                                               NULL) != DML_OK;
        }
    }
    if (me->world > 1 && me->rank < 2)
        me->bad += (me->rank ? dml_comm_receive(me->comm, NULL, 0, DML_U8, 0, 0, NULL)
                             : dml_comm_send(me->comm, NULL, 0, DML_U8, 1, 0)) != DML_OK;
    dml_request *request = dml_comm_all_reduce_start(me->comm, NULL, 0, DML_F32, DML_SUM);
    me->bad += !request || dml_comm_wait(me->comm, request) != DML_OK;
}

/* Every collective, in pieces so small that there are hundreds, and so that they don't come out even. */
static void small_pieces_body(test_rank *me)
{
    static const size_t few[] = { 1, 3, 67, 331 };
    enum { MOST = 331 };
    double *in = (double *)malloc((size_t)me->world * MOST * sizeof *in),
           *out = (double *)malloc((size_t)me->world * MOST * sizeof *out);
    const int to = (me->rank + 1) % me->world, from = (me->rank + me->world - 1) % me->world;
    for (int d = DML_F32; d < DML__DTYPE_COUNT; d++)
        for (size_t c = 0; c < sizeof few / sizeof *few; c++) {
            const dml_dtype dtype = (dml_dtype)d;
            const size_t count = few[c], all = count * (size_t)me->world, mine = count * (size_t)me->rank;
            double want;
            fill(in, 0, mine, count, me->rank, dtype, DML_SUM);
            me->bad += dml_comm_all_gather(me->comm, in, count, dtype, out) != DML_OK;
            for (size_t i = 0; i < all; i++) {
                store(in, 0, dtype, element((int)(i / count), i, dtype, DML_SUM));
                want = load(in, 0, dtype);
                me->bad += load(out, i, dtype) != want;
            }
            fill(out, 0, 0, count, me->rank, dtype, DML_SUM);
            fill(in, 0, 0, count, me->world - 1, dtype, DML_SUM);
            me->bad += dml_comm_broadcast(me->comm, out, count, dtype, me->world - 1) != DML_OK;
            me->bad += memcmp(in, out, count * dml_dtype_size(dtype)) != 0;
            for (int turn = 0; turn < 2 && me->world > 1; turn++) {
                fill(in, 0, 0, count, me->rank, dtype, DML_SUM);
                me->bad += ((me->rank % 2 == 0) == (turn == 0)
                                ? dml_comm_send(me->comm, in, count, dtype, to, 0)
                                : dml_comm_receive(me->comm, out, count, dtype, from, 0, NULL)) != DML_OK;
            }
            fill(in, 0, 0, count, from, dtype, DML_SUM);
            me->bad += me->world > 1 && memcmp(in, out, count * dml_dtype_size(dtype)) != 0;
            if (dtype > DML_I64) continue;
            fill(in, 0, 0, count, me->rank, dtype, DML_MEAN);
            me->bad += dml_comm_all_reduce(me->comm, in, count, dtype, DML_MEAN) != DML_OK;
            check_reduced(me, in, 0, count, dtype, DML_MEAN);
            ranks_digest(me, in, count * dml_dtype_size(dtype));
            fill(in, 0, 0, all, me->rank, dtype, DML_MAX);
            me->bad += dml_comm_reduce_scatter(me->comm, in, count, dtype, DML_MAX, out) != DML_OK;
            check_reduced(me, out, mine, count, dtype, DML_MAX);
        }
    free(in);
    free(out);
}

/* A message that is there before anybody asks for it, as large as such may be. */
static void stored_body(test_rank *me)
{
    const size_t count = me->comm->job->eager_bytes / sizeof(float);
    float *x = (float *)calloc(count, sizeof *x);
    for (size_t i = 0; me->rank == 0 && i < count; i++) x[i] = (float)i;
    if (me->rank == 0 && me->world > 1) me->bad += dml_comm_send(me->comm, x, count, DML_F32, 1, 3) != DML_OK;
    me->bad += dml_comm_barrier(me->comm) != DML_OK;
    if (me->rank == 1) me->bad += dml_comm_receive(me->comm, x, count, DML_F32, 0, 3, NULL) != DML_OK;
    for (size_t i = 0; me->rank < 2 && i < count; i++) me->bad += me->world > 1 && x[i] != (float)i;
    free(x);
}

/* As on a machine whose numbers are not little-endian: everything goes through the conversion. */
static void converted_body(test_rank *me)
{
    dml__comm_job *job = me->comm->job;
    for (int rank = 0; rank < me->world; rank++)
        if (rank != me->rank)
            job->links[rank].swapped = (uint8_t *)dml__allocate(&job->memory, dml__swap_room(job));
    small_pieces_body(me);
    all_reduce_body(me);
    stored_body(me);
}

static void run_worlds_of(void (*body)(test_rank *), size_t segment_bytes, const char *key)
{
    for (int world = 1; world <= RANKS_MAX; world += world > 2 && TEST_SLOW ? 2 : 1) {
        test_rank ranks[RANKS_MAX];
        ranks_prepare(ranks, world, 60, body, NULL);
        for (int rank = 0; rank < world; rank++) {
            ranks[rank].options.segment_bytes = segment_bytes;
            ranks[rank].options.key = key;
        }
        __atomic_store_n(&barrier_arrived, 0, __ATOMIC_SEQ_CST);
        ranks_run(ranks, world);
        /* What reduce_scatter and receive give differs from rank to rank; they leave the digest alone. */
        check_ranks(ranks, world);
    }
}

static void all_reduce(void)
{
    run_worlds_of(all_reduce_body, 0, NULL);
}

static void all_reduce_in_many_pieces(void)
{
    run_worlds_of(all_reduce_body, 4000, "a key");
}

/* Of two halves one goes at once and one when it is granted: the first may still be coming in, unasked, when
   the second is granted. Rank 0 waits for a message all the time, so that it takes what comes early. */
static void halves_body(test_rank *me)
{
    enum { COUNT = 65537, CALLS = 200 };
    float *data = (float *)malloc(COUNT * sizeof *data), last = 1;
    dml_request *message = me->rank == 0 ? dml_comm_receive_start(me->comm, &last, 1, DML_F32, 1, 0) : NULL;
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < COUNT; i++) data[i] = (float)(i % 1000 + me->rank);
        for (int i = 0; me->rank == 0 && i < call % 20; i++) me->bad += dml_comm_done(me->comm, message);
        me->bad += dml_comm_all_reduce(me->comm, data, COUNT, DML_F32, DML_SUM) != DML_OK;
        for (int i = 0; i < COUNT; i++) me->bad += data[i] != (float)(2 * (i % 1000) + 1);
    }
    if (me->rank == 1) me->bad += dml_comm_send(me->comm, &last, 1, DML_F32, 0, 0) != DML_OK;
    if (me->rank == 0) me->bad += dml_comm_wait(me->comm, message) != DML_OK;
    free(data);
}

static void early_halves(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 60, halves_body, NULL);
    for (int rank = 0; rank < 2; rank++) {
        ranks[rank].options.segment_bytes = 4000;
        ranks[rank].options.algorithm = "tree";
    }
    ranks_run(ranks, 2);
    check_ranks(ranks, 2);
}

static void reduce_scatter(void)
{
    run_worlds_of(reduce_scatter_body, 1000, NULL);
}

static void all_gather(void)
{
    run_worlds_of(all_gather_body, 1000, NULL);
}

static void broadcast(void)
{
    run_worlds_of(broadcast_body, 4096, NULL);
}

static void send_receive(void)
{
    run_worlds_of(send_receive_body, 0, NULL);
}

static void barrier(void)
{
    run_worlds_of(barrier_body, 0, NULL);
}

static void started(void)
{
    run_worlds_of(started_body, 0, NULL);
}

static void nan_wins(void)
{
    run_worlds_of(nan_body, 0, NULL);
    run_worlds_of(nan_body, 40, NULL);
}

static void nothing_at_all(void)
{
    run_worlds_of(nothing_body, 0, NULL);
    run_worlds_of(nothing_body, 8, NULL);
}

static void small_pieces(void)
{
    static const size_t sizes[] = { 8, 15, 16, 24, 1000 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int world = 1; world <= 5; world++) {
            test_rank ranks[5];
            ranks_prepare(ranks, world, 60, small_pieces_body, NULL);
            for (int rank = 0; rank < world; rank++) ranks[rank].options.segment_bytes = sizes[i];
            ranks_run(ranks, world);
            check_ranks(ranks, world);
        }
}

static void converted(void)
{
    for (int world = 2; world <= 3; world++) {
        test_rank ranks[3];
        ranks_prepare(ranks, world, 60, converted_body, NULL);
        for (int rank = 0; rank < world; rank++) ranks[rank].options.segment_bytes = 1000;
        ranks_run(ranks, world);
        check_ranks(ranks, world);
    }
}

/* ---- what is on the wire ---- */

static __thread bool tapped;
static uint8_t tap[1024];
static size_t tap_bytes;

static ssize_t tapping_send(int fd, const struct msghdr *message, int flags)
{
    const ssize_t sent = sendmsg(fd, message, flags);
    if (!tapped || sent < 0) return sent;
    size_t left = (size_t)sent;
    for (size_t part = 0; part < (size_t)message->msg_iovlen && left; part++) {
        const size_t n = message->msg_iov[part].iov_len < left ? message->msg_iov[part].iov_len : left;
        if (tap_bytes + n <= sizeof tap) memcpy(tap + tap_bytes, message->msg_iov[part].iov_base, n);
        tap_bytes += n;
        left -= n;
    }
    return sent;
}

static void wire_body(test_rank *me)
{
    static const uint8_t f32[] = { 0, 0, 0xc0, 0x3f, 0, 0, 0x80, 0xc0 }; /* 1.5, -4 */
    static const uint8_t f64[] = { 0, 0, 0, 0, 0, 0, 0xf8, 0x3f };
    static const uint8_t i32[] = { 0x04, 0x03, 0x02, 0x01, 0xfe, 0xff, 0xff, 0xff };
    static const uint8_t i64[] = { 8, 7, 6, 5, 4, 3, 2, 1 };
    static const uint8_t u8[] = { 3, 2, 1 }, bf16[] = { 0xc0, 0x3f, 0x80, 0xc0 }; /* 1.5, -4 */
    const uint16_t as_bf16[] = { 0x3fc0, 0xc080 };
    const float as_f32[] = { 1.5f, -4 };
    const double as_f64[] = { 1.5 };
    const int32_t as_i32[] = { 0x01020304, -2 };
    const int64_t as_i64[] = { 0x0102030405060708 };
    const struct {
        dml_dtype dtype;
        size_t count;
        const void *data;
        const uint8_t *want;
    } cases[] = { { DML_F32, 2, as_f32, f32 }, { DML_F64, 1, as_f64, f64 }, { DML_I32, 2, as_i32, i32 },
                  { DML_I64, 1, as_i64, i64 }, { DML_U8, 3, u8, u8 },       { DML_BF16, 2, as_bf16, bf16 } };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const size_t bytes = cases[c].count * dml_dtype_size(cases[c].dtype);
        uint8_t got[8] = { 0 };
        double aligned = 0;
        if (me->rank == 1) {
            me->bad +=
                dml_comm_receive(me->comm, &aligned, cases[c].count, cases[c].dtype, 0, 0, NULL) != DML_OK;
            memcpy(got, &aligned, sizeof got);
            me->bad += memcmp(got, cases[c].data, bytes) != 0;
            continue;
        }
        tapped = true;
        tap_bytes = 0;
        me->bad += dml_comm_send(me->comm, cases[c].data, cases[c].count, cases[c].dtype, 1, 0) != DML_OK;
        tapped = false;
        me->bad += tap_bytes != DML__FRAME_BYTES + dml__padded(bytes);
        me->bad += memcmp(tap, "dm\1", 3) != 0;
        me->bad += memcmp(tap + DML__FRAME_BYTES, cases[c].want, bytes) != 0;
    }
}

static void little_endian_on_the_wire(void)
{
    dml__socket_calls sockets = *dml__system_sockets();
    sockets.send = tapping_send;
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 30, wire_body, NULL);
    ranks[0].options.transport = ranks[1].options.transport = "tcp";
    ranks[0].sockets = &sockets;
    ranks_run(ranks, 2);
    check_ranks(ranks, 2);
}

static void special_values(void)
{
    run_worlds_of(special_body, 0, NULL);
}

static void close_finishes_what_was_started(void)
{
    static float data[3 * 1000];
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 30, abandoned_body, data);
    ranks_run(ranks, 3);
    check_ranks(ranks, 3);
    for (int rank = 0; rank < 3; rank++) {
        check_reduced(&ranks[rank], data + rank * 1000, 0, 1000, DML_F32, DML_SUM);
        CHECK_INT(ranks[rank].bad, 0);
    }
}

static int allocations, live; /* atomic */

static void *counting_allocate(void *user, size_t bytes)
{
    (void)user;
    __atomic_fetch_add(&allocations, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&live, 1, __ATOMIC_SEQ_CST);
    return malloc(bytes);
}

static void counting_release(void *user, void *memory)
{
    (void)user;
    if (memory) __atomic_fetch_sub(&live, 1, __ATOMIC_SEQ_CST);
    free(memory);
}

static void steady_body(test_rank *me)
{
    static float all[2][3000];
    float *data = all[me->rank];
    dml_comm_barrier(me->comm);
    const int before = __atomic_load_n(&allocations, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 10; i++) {
        dml_request *request = dml_comm_all_reduce_start(me->comm, data, 1000, DML_F32, DML_SUM);
        me->bad += dml_comm_all_gather(me->comm, data + 1000 * me->rank, 1000, DML_F32, data) != DML_OK;
        me->bad += dml_comm_wait(me->comm, request) != DML_OK;
    }
    me->bad += __atomic_load_n(&allocations, __ATOMIC_SEQ_CST) != before;
}

static void nothing_is_allocated_after_opening(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 30, steady_body, NULL);
    for (int rank = 0; rank < 2; rank++) {
        ranks[rank].options.allocator.allocate = counting_allocate;
        ranks[rank].options.allocator.release = counting_release;
    }
    ranks_run(ranks, 2);
    check_ranks(ranks, 2);
    CHECK(allocations > 0);
    CHECK_INT(live, 0);
}

static void ipv6(void)
{
    test_rank ranks[3];
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 address;
    memset(&address, 0, sizeof address);
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    const bool have = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0) close(fd);
    if (!have) {
        SKIP("this machine has no ::1");
        return;
    }
    ranks_prepare(ranks, 3, 30, barrier_body, NULL);
    for (int rank = 0; rank < 3; rank++) ranks[rank].options.master_addr = "::1";
    __atomic_store_n(&barrier_arrived, 0, __ATOMIC_SEQ_CST);
    ranks_run(ranks, 3);
    check_ranks(ranks, 3);
}

int main(void)
{
    RUN(all_reduce);
    RUN(all_reduce_in_many_pieces);
    RUN(early_halves);
    RUN(reduce_scatter);
    RUN(all_gather);
    RUN(broadcast);
    RUN(send_receive);
    RUN(barrier);
    RUN(started);
    RUN(special_values);
    RUN(nan_wins);
    RUN(nothing_at_all);
    RUN(small_pieces);
    RUN(converted);
    RUN(little_endian_on_the_wire);
    RUN(close_finishes_what_was_started);
    RUN(nothing_is_allocated_after_opening);
    RUN(ipv6);
    return test_report("comm/collectives");
}
