/* One rank of a job that an MPI launcher started: mpi_job WHAT. Compiled with -DDML_MPI it goes through MPI,
   without through our own sockets. Exits with 0 when everything was right, and with 3 when the communicator
   failed, after saying how. */
#ifdef DML_MPI
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#endif

#define DML_IMPLEMENTATION
#include "dml_comm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 70000, WORLD = 8 };

static int rank, world, wrong;

#define EXPECT(condition)                                                                                    \
    do {                                                                                                     \
        if (!(condition) && wrong++ < 20)                                                                    \
            printf("rank %d of %d, line %d: %s\n", rank, world, __LINE__, #condition);                       \
    } while (0)

/* ---- elements: small whole numbers, of which every sum of products here is exact ---- */

static uint16_t to_f16(double x)
{
    int exponent;
    const double part = frexp(fabs(x), &exponent);
    const unsigned sign = signbit(x) ? 0x8000u : 0;
    if (x == 0) return (uint16_t)sign;
    return (uint16_t)(sign | (unsigned)(exponent + 14) << 10 | ((unsigned)lrint(ldexp(part, 11)) & 0x3ffu));
}

static void store(void *data, size_t i, dml_dtype dtype, double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    switch (dtype) {
    case DML_F32: ((float *)data)[i] = f; break;
    case DML_F64: ((double *)data)[i] = x; break;
    case DML_I32: ((int32_t *)data)[i] = (int32_t)x; break;
    case DML_I64: ((int64_t *)data)[i] = (int64_t)x; break;
    case DML_BF16: ((uint16_t *)data)[i] = (uint16_t)(bits >> 16); break;
    case DML_F16: ((uint16_t *)data)[i] = to_f16(x); break;
    case DML_I8: ((int8_t *)data)[i] = (int8_t)x; break;
    default: ((uint8_t *)data)[i] = (uint8_t)(int)x; break;
    }
}

static bool same(const void *data, size_t i, dml_dtype dtype, double x)
{
    uint64_t want = 0;
    const size_t bytes = dml_dtype_size(dtype);
    store(&want, 0, dtype, x);
    return memcmp((const char *)data + i * bytes, &want, bytes) == 0;
}

static double element(int of, size_t i)
{
    return (double)((i * 7 + (size_t)of * 3) % 5) + (i % 11 == 0 && of == 1 ? 4 : 0);
}

static void fill(void *data, size_t count, dml_dtype dtype, int of)
{
    for (size_t i = 0; i < count; i++) store(data, i, dtype, element(of, i));
}

static void larger(void *into, const void *from, size_t count, dml_dtype dtype, void *user)
{
    ++*(long *)user;
    if (dtype != DML_I32) return;
    for (size_t i = 0; i < count; i++)
        if (((const int32_t *)from)[i] > ((int32_t *)into)[i])
            ((int32_t *)into)[i] = ((const int32_t *)from)[i];
}

static double reduced(size_t i, dml_dtype dtype, int op)
{
    double x = element(0, i);
    for (int r = 1; r < world; r++) {
        const double y = element(r, i);
        if (op == DML_SUM || op == DML_MEAN) x += y;
        if (op == DML_PROD) x *= y;
        if (op == DML_MIN) x = fmin(x, y);
        if (op == DML_MAX || op >= DML__REDUCE_OP_COUNT) x = fmax(x, y);
    }
    if (op != DML_MEAN) return x;
    x /= world;
    return dtype == DML_I32 || dtype == DML_I64 || dtype == DML_I8 || dtype == DML_U8 ? trunc(x) : x;
}

static char *array(size_t elements)
{
    char *made = (char *)malloc((elements + 1) * 8);
    if (!made) exit(2);
    memset(made, 0x77, (elements + 1) * 8);
    return made;
}

/* ---- collectives ---- */

static bool is_exact(dml_dtype dtype, int op)
{
    return (op != DML_MEAN || (dtype != DML_F16 && dtype != DML_BF16) || world == 1 || world == 2 ||
            world == 4);
}

static void try_reductions(dml_comm *comm, size_t count, dml_dtype dtype, int op)
{
    char *x = array(count * (size_t)world), *out = array(count);
    const size_t own = count * (size_t)rank;
    if (!is_exact(dtype, op)) op = DML_SUM;
    fill(x, count, dtype, rank);
    EXPECT(!dml_comm_all_reduce(comm, x, count, dtype, (dml_reduce_op)op));
    for (size_t i = 0; i < count; i++) EXPECT(same(x, i, dtype, reduced(i, dtype, op)));
    fill(x, count, dtype, rank);
    EXPECT(!dml_comm_reduce(comm, x, count, dtype, (dml_reduce_op)op, world - 1));
    for (size_t i = 0; i < count && rank == world - 1; i++) EXPECT(same(x, i, dtype, reduced(i, dtype, op)));
    for (int in_place = 0; in_place < 2; in_place++) {
        char *to = in_place ? x + own * dml_dtype_size(dtype) : out;
        fill(x, count * (size_t)world, dtype, rank);
        EXPECT(!dml_comm_reduce_scatter(comm, x, count, dtype, (dml_reduce_op)op, to));
        for (size_t i = 0; i < count; i++) EXPECT(same(to, i, dtype, reduced(own + i, dtype, op)));
    }
    free(x);
    free(out);
}

static void try_moves(dml_comm *comm, size_t count, dml_dtype dtype)
{
    const size_t all = count * (size_t)world, own = count * (size_t)rank, bytes = dml_dtype_size(dtype);
    const int root = world / 2;
    char *x = array(all), *y = array(all);
    fill(x, count, dtype, rank);
    EXPECT(!dml_comm_broadcast(comm, x, count, dtype, root));
    for (size_t i = 0; i < count; i++) EXPECT(same(x, i, dtype, element(root, i)));
    for (int in_place = 0; in_place < 2; in_place++) {
        char *part = in_place && rank == root ? x + own * bytes : y;
        fill(x, all, dtype, rank);
        EXPECT(!dml_comm_scatter(comm, x, count, dtype, part, root));
        for (size_t i = 0; i < count; i++) EXPECT(same(part, i, dtype, element(root, own + i)));
        fill(part, count, dtype, rank);
        EXPECT(!dml_comm_gather(comm, part, count, dtype, x, root));
        for (size_t i = 0; i < all && rank == root; i++)
            EXPECT(same(x, i, dtype, element((int)(i / count), i % count)));
        part = in_place ? x + own * bytes : y;
        fill(part, count, dtype, rank);
        EXPECT(!dml_comm_all_gather(comm, part, count, dtype, x));
        for (size_t i = 0; i < all; i++) EXPECT(same(x, i, dtype, element((int)(i / count), i % count)));
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        char *from = in_place ? y : x;
        fill(from, all, dtype, rank);
        EXPECT(!dml_comm_all_to_all(comm, from, count, dtype, y));
        for (size_t i = 0; i < all; i++)
            EXPECT(same(y, i, dtype, element((int)(i / count), own + i % count)));
    }
    EXPECT(!dml_comm_barrier(comm));
    free(x);
    free(y);
}

/* Parts of different sizes, one behind the other or with gaps. */
static void try_parts(dml_comm *comm, size_t count, dml_dtype dtype, size_t gap)
{
    size_t counts[WORLD], offsets[WORLD], all = 0;
    for (int r = 0; r < world; r++) {
        counts[r] = r == 1 ? 0 : count + (size_t)r;
        offsets[r] = all;
        all += counts[r] + gap;
    }
    const int root = world - 1;
    const size_t *at = gap ? offsets : NULL;
    char *x = array(all), *y = array(all);
    fill(x, all, dtype, rank);
    EXPECT(!dml_comm_scatterv(comm, x, counts, at, dtype, y, root));
    for (size_t i = 0; i < counts[rank]; i++) EXPECT(same(y, i, dtype, element(root, offsets[rank] + i)));
    fill(y, counts[rank], dtype, rank);
    EXPECT(!dml_comm_gatherv(comm, y, counts, at, dtype, x, root));
    for (int r = 0; r < world && rank == root; r++)
        for (size_t i = 0; i < counts[r]; i++) EXPECT(same(x, offsets[r] + i, dtype, element(r, i)));
    fill(y, counts[rank], dtype, rank);
    EXPECT(!dml_comm_all_gatherv(comm, y, counts, at, dtype, x));
    for (int r = 0; r < world; r++)
        for (size_t i = 0; i < counts[r]; i++) EXPECT(same(x, offsets[r] + i, dtype, element(r, i)));
    for (int in_place = 0; in_place < 2; in_place++) {
        char *to = in_place ? x + offsets[rank] * dml_dtype_size(dtype) : y;
        fill(x, all, dtype, rank);
        size_t given[2][WORLD];
        memcpy(given[0], counts, sizeof counts);
        memcpy(given[1], offsets, sizeof offsets);
        dml_request *request =
            dml_comm_reduce_scatterv_start(comm, x, given[0], at ? given[1] : NULL, dtype, DML_MAX, to);
        memset(given, 0x11, sizeof given); /* they were read before that returned */
        EXPECT(!dml_comm_wait(comm, request));
        for (size_t i = 0; i < counts[rank]; i++)
            EXPECT(same(to, i, dtype, reduced(offsets[rank] + i, dtype, DML_MAX)));
    }
    free(x);
    free(y);
}

/* What only the two ranks know: r + s + count elements from r to s, from 1 to others nothing. */
static size_t between(size_t count, int from, int to)
{
    return from == 1 && to != 1 ? 0 : count + (size_t)from + (size_t)to;
}

static void try_exchange(dml_comm *comm, size_t count, dml_dtype dtype, size_t gap)
{
    size_t in[WORLD], out[WORLD], from[WORLD], to[WORLD], in_all = 0, out_all = 0;
    for (int r = 0; r < world; r++) {
        in[r] = between(count, rank, r);
        out[r] = between(count, r, rank);
        from[r] = in_all;
        to[r] = out_all;
        in_all += in[r] + gap;
        out_all += out[r] + gap;
    }
    char *x = array(in_all), *y = array(out_all);
    fill(x, in_all, dtype, rank);
    EXPECT(!dml_comm_all_to_allv(comm, x, in, gap ? from : NULL, dtype, y, out, gap ? to : NULL));
    for (int r = 0; r < world; r++) {
        size_t begin = 0;
        for (int s = 0; s < rank; s++) begin += between(count, r, s) + gap;
        for (size_t i = 0; i < out[r]; i++) EXPECT(same(y, to[r] + i, dtype, element(r, begin + i)));
    }
    free(x);
    free(y);
}

static void try_collectives(dml_comm *comm)
{
    static const size_t counts[] = { 0, 1, 1000, 2503 }; /* a call of MPI takes 1000 at most here */
    long calls = 0;
    const dml_reduce_op own = dml_comm_add_reduce(comm, larger, &calls);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int d = 0; d < DML__DTYPE_COUNT; d++) {
            for (int op = 0; op < DML__REDUCE_OP_COUNT; op++)
                try_reductions(comm, counts[c], (dml_dtype)d, op);
            try_moves(comm, counts[c], (dml_dtype)d);
            try_parts(comm, counts[c], (dml_dtype)d, 0);
            try_parts(comm, counts[c], (dml_dtype)d, 5);
            try_exchange(comm, counts[c], (dml_dtype)d, 0);
            try_exchange(comm, counts[c], (dml_dtype)d, 5);
        }
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        try_reductions(comm, counts[c], DML_I32, (int)own);
    EXPECT(world == 1 || calls > 0);
    /* What MPI's own minimum says nothing of. */
    float x = rank == world / 2 ? NAN : (float)rank;
    EXPECT(!dml_comm_all_reduce(comm, &x, 1, DML_F32, DML_MIN) && isnan(x));
    x = rank == world / 2 ? -0.0f : 0.0f;
    EXPECT(!dml_comm_all_reduce(comm, &x, 1, DML_F32, DML_MIN) && signbit(x));
}

/* ---- requests, messages, groups ---- */

static void try_requests(dml_comm *comm)
{
    enum { MANY = 40, COUNT = 3000 };
    static float x[MANY][COUNT], all[WORLD * COUNT], mine[COUNT];
    dml_request *requests[MANY], *gather;
    fill(mine, COUNT, DML_F32, rank);
    for (int i = 0; i < MANY; i++) fill(x[i], COUNT - (size_t)i, DML_F32, rank);
    for (int i = 0; i < MANY; i++)
        requests[i] = i % 3 ? dml_comm_all_reduce_start(comm, x[i], COUNT - (size_t)i, DML_F32, DML_SUM)
                            : dml_comm_broadcast_start(comm, x[i], COUNT - (size_t)i, DML_F32, i % world);
    gather = dml_comm_all_gather_start(comm, mine, COUNT, DML_F32, all);
    for (int i = MANY - 1; i >= MANY / 2; i--) EXPECT(!dml_comm_wait(comm, requests[i]));
    for (int left = MANY / 2; left > 0; left--) EXPECT(dml_comm_wait_any(comm, requests, MANY / 2) >= 0);
    while (!dml_comm_done(comm, gather)) {
    }
    EXPECT(!dml_comm_wait(comm, gather));
    EXPECT(dml_comm_barrier_start(comm) != NULL && !dml_comm_wait_all(comm));
    for (int k = 0; k < MANY; k++)
        for (size_t i = 0; i < COUNT - (size_t)k; i++)
            EXPECT(x[k][i] == (k % 3 ? reduced(i, DML_F32, DML_SUM) : element(k % world, i)));
    for (size_t i = 0; i < (size_t)(COUNT * world); i++)
        EXPECT(all[i] == element((int)(i / COUNT), i % COUNT));
}

static void try_messages(dml_comm *comm)
{
    enum { COUNT = 50000 };
    static int32_t out[COUNT], in[COUNT];
    const int next = (rank + 1) % world, before = (rank + world - 1) % world;
    dml_message message;
    if (world == 1) return;
    for (int i = 0; i < COUNT; i++) out[i] = rank * COUNT + i;
    /* By tag, not in the order of sending; of any tag, in that order; fewer than there is room for. */
    dml_request *a = dml_comm_send_start(comm, out, 100, DML_I32, next, 1);
    dml_request *b = dml_comm_send_start(comm, out, COUNT, DML_I32, next, 2);
    dml_request *c = dml_comm_send_start(comm, out + 7, 0, DML_I32, next, 3);
    EXPECT(!dml_comm_receive(comm, in, COUNT, DML_I32, before, 2, &message));
    EXPECT(message.source == before && message.tag == 2 && message.count == COUNT &&
           message.dtype == DML_I32);
    EXPECT(in[COUNT - 1] == before * COUNT + COUNT - 1);
    EXPECT(dml_comm_probe(comm, before, 1, 10, &message) && message.tag == 1 && message.count == 100);
    EXPECT(message.dtype == DML_I32 && message.source == before);
    EXPECT(!dml_comm_probe(comm, before, 9, 0.01, NULL));
    EXPECT(!dml_comm_receive(comm, in, COUNT, DML_I32, before, DML_ANY_TAG, &message));
    EXPECT(message.tag == 1 && message.count == 100 && in[99] == before * COUNT + 99);
    EXPECT(!dml_comm_receive(comm, in, 0, DML_I32, DML_ANY_SOURCE, 3, &message) && message.source == before);
    EXPECT(!dml_comm_wait(comm, a) && !dml_comm_wait(comm, b) && !dml_comm_wait(comm, c));
    /* Taken back before anything came; and started before it was sent. */
    dml_request *never = dml_comm_receive_start(comm, in, COUNT, DML_I32, DML_ANY_SOURCE, 77);
    dml_request *early = dml_comm_receive_start(comm, in, COUNT, DML_I32, DML_ANY_SOURCE, 78);
    EXPECT(dml_comm_cancel(comm, never));
    EXPECT(!dml_comm_barrier(comm));
    EXPECT(!dml_comm_send(comm, out, 10, DML_I32, next, 78));
    EXPECT(!dml_comm_wait_message(comm, early, &message) && message.count == 10 && message.source == before);
    EXPECT(!dml_comm_cancel(comm, early));
}

static void try_groups(dml_comm *comm)
{
    dml_comm *none = dml_comm_split(comm, -1, 0);
    EXPECT(!none && !dml_comm_status(comm));
    /* Even and odd ranks, each the other way round. */
    dml_comm *group = dml_comm_split(comm, rank % 2, -rank);
    const int size = (world + 1 - rank % 2) / 2;
    EXPECT(group && dml_comm_world_size(group) == size && dml_comm_rank(group) == size - 1 - rank / 2);
    int64_t x = rank, sum = 0;
    for (int r = rank % 2; r < world; r += 2) sum += r;
    dml_request *whole = dml_comm_barrier_start(comm);
    EXPECT(!dml_comm_all_reduce(group, &x, 1, DML_I64, DML_SUM) && x == sum);
    EXPECT(!dml_comm_wait(comm, whole));
    x = rank;
    EXPECT(!dml_comm_broadcast(group, &x, 1, DML_I64, 0) && x == rank % 2 + 2 * (size - 1));
    EXPECT(!dml_comm_close(group));
}

static void try_all(dml_comm *comm)
{
    try_collectives(comm);
    try_requests(comm);
    try_messages(comm);
    try_groups(comm);
}

/* ---- what must fail ---- */

static void try_wrong(dml_comm *comm, const char *what)
{
    static float x[MOST];
    if (strcmp(what, "argument") == 0) dml_comm_broadcast(comm, x, 1, DML_F32, rank == 1 ? 99 : 0);
    if (strcmp(what, "frozen") == 0) {
        if (rank == world - 1) sleep(4);
        dml_comm_all_reduce(comm, x, 100, DML_F32, DML_SUM);
    }
    if (strcmp(what, "closes") == 0 && rank != world - 1) dml_comm_all_reduce(comm, x, 100, DML_F32, DML_SUM);
    if (strcmp(what, "calls") == 0) {
        if (rank == 1)
            dml_comm_barrier(comm);
        else
            dml_comm_all_reduce(comm, x, 100, DML_F32, DML_SUM);
    }
    if (strcmp(what, "counts") == 0) dml_comm_all_reduce(comm, x, rank == 1 ? 101 : 100, DML_F32, DML_SUM);
    if (strcmp(what, "longer") == 0) {
        if (rank == 1) dml_comm_send(comm, x, 20, DML_F32, 0, 4);
        if (rank == 0) dml_comm_receive(comm, x, 10, DML_F32, 1, 4, NULL);
    }
    if (strcmp(what, "dtype") == 0) {
        if (rank == 1) dml_comm_send(comm, x, 10, DML_F64, 0, 4);
        if (rank == 0) dml_comm_receive(comm, x, 10, DML_F32, 1, DML_ANY_TAG, NULL);
    }
    if (strcmp(what, "unreceived") == 0 && rank == 1) dml_comm_send(comm, x, 10, DML_F32, 0, 4);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    dml_comm_options options;
    memset(&options, 0, sizeof options);
    options.timeout_s = argc > 2 ? atof(argv[2]) : 30;
    options.progress_thread = strcmp(what, "thread") == 0;
#ifdef DML_MPI
    const bool own = strcmp(what, "mine") == 0;
    if (own) MPI_Init(NULL, NULL);
#endif
    dml_comm *comm = dml_comm_open(&options);
    rank = dml_comm_rank(comm);
    world = dml_comm_world_size(comm);
    if (!dml_comm_status(comm)) {
        if (strcmp(what, "all") == 0 || strcmp(what, "thread") == 0 || strcmp(what, "mine") == 0)
            try_all(comm);
        else
            try_wrong(comm, what);
    }
    char error[600];
    dml_status status = dml_comm_status(comm);
    snprintf(error, sizeof error, "%s", dml_comm_error(comm));
    const dml_status closed = dml_comm_close(comm);
    if (status || closed) {
        printf("rank %d: %s\n", rank, status ? error : dml_status_string(closed));
        return 3;
    }
#ifdef DML_MPI
    int finalised = 0;
    if (own) { /* still there */
        MPI_Barrier(MPI_COMM_WORLD);
        dml_comm *again = dml_comm_open(&options);
        EXPECT(!dml_comm_barrier(again) && !dml_comm_close(again));
        MPI_Finalized(&finalised);
        EXPECT(!finalised);
        MPI_Finalize();
    } else if (!getenv("DML_COMM_ENGINE")) {
        MPI_Finalized(&finalised);
        EXPECT(finalised);
        comm = dml_comm_open(&options);
        EXPECT(dml_comm_status(comm) == DML_ERROR_STATE && strstr(dml_comm_error(comm), "finalised"));
        dml_comm_close(comm);
    }
#endif
    if (wrong) printf("rank %d of %d: %d wrong\n", rank, world, wrong);
    return wrong ? 1 : 0;
}
