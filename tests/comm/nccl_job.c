/* One rank (RANK, WORLD_SIZE) of a job whose arrays lie in a GPU's memory: nccl_job WHAT. On no GPU it runs
   over fake_nccl.c; on several, with NCCL_JOB_DEVICE set for each rank, over NCCL. Exits with 0 when
   everything was right, and with 3 when the communicator failed, after saying how. */
#define DML_IMPLEMENTATION
#include "dml_comm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 5003, WORLD = 8 };

static int rank, world, wrong;
static int (*set_device)(int);
static int (*allocate)(void **, size_t);
static int (*copy)(void *, const void *, size_t, int);

#define EXPECT(condition)                                                                                    \
    do {                                                                                                     \
        if (!(condition) && wrong++ < 20)                                                                    \
            printf("rank %d of %d, line %d: %s\n", rank, world, __LINE__, #condition);                       \
    } while (0)

static void load(void *runtime, const char *name, void *function)
{
    void *const address = dlsym(runtime, name);
    if (!address) exit(2);
    memcpy(function, &address, sizeof address);
}

static void take_device(void)
{
    const char *device = getenv("NCCL_JOB_DEVICE");
    void *runtime = dlopen("libcudart.so.13", RTLD_NOW);
    if (!runtime) runtime = dlopen("libcudart.so.12", RTLD_NOW);
    if (!runtime) exit(2);
    load(runtime, "cudaSetDevice", &set_device);
    load(runtime, "cudaMalloc", &allocate);
    load(runtime, "cudaMemcpy", &copy);
    if (set_device(device ? atoi(device) : 3)) exit(2);
}

/* ---- arrays: of rank r, element i is i % 17 + r ---- */

static float *device_array(size_t count)
{
    void *data = NULL;
    if (allocate(&data, count * sizeof(float))) exit(2);
    return (float *)data;
}

static float value(int of, size_t i)
{
    return (float)(i % 17) + (float)of;
}

static void fill(float *device, size_t count, int of)
{
    static float host[COUNT * WORLD];
    for (size_t i = 0; i < count; i++) host[i] = value(of, i);
    copy(device, host, count * sizeof(float), 4);
}

static const float *fetch(const float *device, size_t count)
{
    static float host[COUNT * WORLD];
    copy(host, device, count * sizeof(float), 4);
    return host;
}

static float combined(size_t i, dml_reduce_op op, int size)
{
    float x = value(0, i);
    for (int r = 1; r < size; r++) {
        const float y = value(r, i);
        x = op == DML_MIN    ? (x < y ? x : y)
            : op == DML_MAX  ? (x > y ? x : y)
            : op == DML_PROD ? x * y
                             : x + y;
    }
    return op == DML_MEAN ? x / (float)size : x;
}

static bool near(float a, float b)
{
    const float d = a > b ? a - b : b - a;
    return d <= 1e-5f * (b < 0 ? -b : b) + 1e-6f;
}

/* ---- the calls ---- */

static void reductions(dml_comm *comm, float *a, float *b)
{
    const int me = dml_comm_rank(comm), size = dml_comm_world_size(comm), root = size - 1;
    static const dml_reduce_op ops[] = { DML_SUM, DML_MEAN, DML_MIN, DML_MAX, DML_PROD };
    for (int o = 0; o < 5; o++) {
        fill(a, COUNT, me);
        EXPECT(!dml_comm_all_reduce(comm, a, COUNT, DML_F32, ops[o]));
        const float *x = fetch(a, COUNT);
        for (size_t i = 0; i < COUNT; i++) EXPECT(near(x[i], combined(i, ops[o], size)));
    }
    fill(a, COUNT, me);
    EXPECT(!dml_comm_reduce(comm, a, COUNT, DML_F32, DML_SUM, root));
    const float *x = fetch(a, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        EXPECT(x[i] == (me == root ? combined(i, DML_SUM, size) : value(me, i)));
    for (int in_place = 0; in_place < 2; in_place++) {
        const size_t part = 300;
        float *out = in_place ? a + part * (size_t)me : b;
        fill(a, part * (size_t)size, me);
        EXPECT(!dml_comm_reduce_scatter(comm, a, part, DML_F32, DML_SUM, out));
        x = fetch(out, part);
        for (size_t i = 0; i < part; i++) EXPECT(x[i] == combined(part * (size_t)me + i, DML_SUM, size));
    }
}

static void moves(dml_comm *comm, float *a, float *b)
{
    const int me = dml_comm_rank(comm), size = dml_comm_world_size(comm), root = size / 2;
    const size_t part = 501, all = part * (size_t)size;
    fill(a, COUNT, me);
    EXPECT(!dml_comm_broadcast(comm, a, COUNT, DML_F32, root));
    const float *x = fetch(a, COUNT);
    for (size_t i = 0; i < COUNT; i++) EXPECT(x[i] == value(root, i));
    fill(a, all, me);
    EXPECT(!dml_comm_scatter(comm, me == root ? a : NULL, part, DML_F32, b, root));
    x = fetch(b, part);
    for (size_t i = 0; i < part; i++) EXPECT(x[i] == value(root, part * (size_t)me + i));
    fill(a, part, me);
    EXPECT(!dml_comm_gather(comm, a, part, DML_F32, me == root ? b : NULL, root));
    x = fetch(b, all);
    for (size_t i = 0; me == root && i < all; i++) EXPECT(x[i] == value((int)(i / part), i % part));
    for (int in_place = 0; in_place < 2; in_place++) {
        float *in = in_place ? b + part * (size_t)me : a;
        fill(in, part, me);
        EXPECT(!dml_comm_all_gather(comm, in, part, DML_F32, b));
        x = fetch(b, all);
        for (size_t i = 0; i < all; i++) EXPECT(x[i] == value((int)(i / part), i % part));
    }
    fill(a, all, me);
    EXPECT(!dml_comm_all_to_all(comm, a, part, DML_F32, b));
    x = fetch(b, all);
    for (size_t i = 0; i < all; i++) EXPECT(x[i] == value((int)(i / part), part * (size_t)me + i % part));
}

/* Parts of r * 10 elements, some of none, with holes between them. */
static void parts(dml_comm *comm, float *a, float *b)
{
    const int me = dml_comm_rank(comm), size = dml_comm_world_size(comm), root = 0;
    size_t counts[WORLD], offsets[WORLD], own = (size_t)me * 10;
    for (int r = 0; r < size; r++) counts[r] = (size_t)r * 10, offsets[r] = (size_t)r * 100 + 1;
    const float *x;
    fill(a, COUNT, me);
    EXPECT(!dml_comm_scatterv(comm, a, counts, offsets, DML_F32, b, root));
    x = fetch(b, own);
    for (size_t i = 0; i < own; i++) EXPECT(x[i] == value(root, offsets[me] + i));
    fill(b, COUNT, 100);
    EXPECT(!dml_comm_gatherv(comm, a, counts, offsets, DML_F32, b, root));
    x = fetch(b, COUNT);
    for (size_t i = 0; me == root && i < (size_t)size * 100; i++) {
        const size_t r = i / 100;
        const bool inside = i >= offsets[r] && i < offsets[r] + counts[r];
        EXPECT(x[i] == (inside ? value((int)r, i - offsets[r]) : value(100, i)));
    }
    EXPECT(!dml_comm_all_gatherv(comm, a, counts, offsets, DML_F32, b));
    x = fetch(b, COUNT);
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < counts[r]; i++) EXPECT(x[offsets[r] + i] == value(r, i));
    /* Rank r has r * 10 elements for each, its parts 100 apart. */
    size_t in_counts[WORLD];
    for (int r = 0; r < size; r++) in_counts[r] = own;
    EXPECT(!dml_comm_all_to_allv(comm, a, in_counts, offsets, DML_F32, b, counts, offsets));
    x = fetch(b, COUNT);
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < counts[r]; i++) EXPECT(x[offsets[r] + i] == value(r, offsets[me] + i));
    EXPECT(!dml_comm_reduce_scatterv(comm, a, counts, offsets, DML_F32, DML_SUM, b));
    x = fetch(b, own);
    for (size_t i = 0; i < own; i++) EXPECT(x[i] == combined(offsets[me] + i, DML_SUM, size));
}

/* Of a device and of the host under way together, and a thread that has made another device current. */
static void together(dml_comm *comm, float *a, float *b)
{
    const int me = dml_comm_rank(comm), size = dml_comm_world_size(comm);
    float host[100];
    double one = 1;
    for (int i = 0; i < 100; i++) host[i] = value(me, (size_t)i);
    fill(a, COUNT, me);
    fill(b, COUNT, me);
    set_device(getenv("NCCL_JOB_DEVICE") ? atoi(getenv("NCCL_JOB_DEVICE")) : 0);
    dml_request *first = dml_comm_all_reduce_start(comm, a, COUNT, DML_F32, DML_SUM);
    dml_request *second = dml_comm_all_reduce_start(comm, host, 100, DML_F32, DML_SUM);
    dml_request *third = dml_comm_broadcast_start(comm, b, COUNT, DML_F32, 0);
    EXPECT(!dml_comm_all_reduce(comm, &one, 1, DML_F64, DML_SUM));
    EXPECT(one == size);
    EXPECT(!dml_comm_wait(comm, third));
    EXPECT(!dml_comm_wait(comm, first));
    EXPECT(!dml_comm_wait(comm, second));
    EXPECT(!dml_comm_barrier(comm));
    EXPECT(!dml_comm_all_reduce(comm, NULL, 0, DML_F32, DML_SUM));
    const float *x = fetch(a, COUNT);
    for (size_t i = 0; i < COUNT; i++) EXPECT(x[i] == combined(i, DML_SUM, size));
    for (size_t i = 0; i < 100; i++) EXPECT(host[i] == combined(i, DML_SUM, size));
    x = fetch(b, COUNT);
    for (size_t i = 0; i < COUNT; i++) EXPECT(x[i] == value(0, i));
    set_device(getenv("NCCL_JOB_DEVICE") ? atoi(getenv("NCCL_JOB_DEVICE")) : 3);
}

static void groups(dml_comm *comm, float *a, float *b)
{
    dml_comm *half = dml_comm_split(comm, rank % 2, -rank), *none = dml_comm_split(comm, -1, 0);
    EXPECT(half && !none);
    reductions(half, a, b);
    moves(half, a, b);
    dml_comm_close(half);
    reductions(comm, a, b);
}

static void all_calls(dml_comm *comm, float *a, float *b)
{
    reductions(comm, a, b);
    moves(comm, a, b);
    parts(comm, a, b);
    together(comm, a, b);
    groups(comm, a, b);
}

/* ---- what fails ---- */

static void on_host(void *into, const void *from, size_t count, dml_dtype dtype, void *user)
{
    (void)into, (void)from, (void)count, (void)dtype, (void)user;
}

static void what_fails(dml_comm *comm, const char *what, float *a, float *b)
{
    static float host[COUNT];
    if (!strcmp(what, "send")) {
        if (rank == 0) dml_comm_send(comm, a, 5, DML_F32, 1, 0);
        if (rank == 1) dml_comm_receive(comm, a, 5, DML_F32, 0, 0, NULL);
    }
    if (!strcmp(what, "in_place")) dml_comm_all_to_all(comm, a, 5, DML_F32, a);
    if (!strcmp(what, "function"))
        dml_comm_all_reduce(comm, a, 5, DML_F32, dml_comm_add_reduce(comm, on_host, NULL));
    if (!strcmp(what, "integers")) dml_comm_all_reduce(comm, a, 5, DML_I32, DML_MEAN);
    if (!strcmp(what, "leaves") ||
        !strcmp(what, "leaves_to_host")) { /* each rank has the one of its number */
        void *leaves[WORLD] = { NULL };
        int64_t owners[WORLD];
        leaves[rank] = a;
        dml_comm_all_reduce_leaves(comm, leaves, owners, (size_t)world, strcmp(what, "leaves") ? host : b, 5,
                                   DML_F32, DML_SUM);
    }
    if (!strcmp(what, "both")) dml_comm_all_gather(comm, a, 5, DML_F32, host);
    if (!strcmp(what, "host")) dml_comm_all_reduce(comm, rank == 1 ? host : a, COUNT, DML_F32, DML_SUM);
    if (!strcmp(what, "sum")) dml_comm_all_reduce(comm, a, COUNT, DML_F32, DML_SUM);
    if (!strcmp(what, "missing") && rank != 1) dml_comm_all_reduce(comm, a, COUNT, DML_F32, DML_SUM);
    if (!strcmp(what, "missing") && rank == 1) sleep(30);
    if (!strcmp(what, "dies") && rank == 1) _exit(0);
    if (!strcmp(what, "dies")) dml_comm_all_reduce(comm, a, COUNT, DML_F32, DML_SUM);
    (void)b;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    dml_comm_options options;
    memset(&options, 0, sizeof options);
    options.engine = "nccl";
    options.progress_thread = !strcmp(what, "thread");
    take_device();
    dml_comm *comm = dml_comm_open(&options);
    rank = dml_comm_rank(comm);
    world = dml_comm_world_size(comm);
    if (!dml_comm_status(comm)) {
        float *a = device_array(COUNT * WORLD), *b = device_array(COUNT * WORLD);
        if (!strcmp(what, "all") || !strcmp(what, "thread"))
            all_calls(comm, a, b);
        else
            what_fails(comm, what, a, b);
    }
    const bool failed = dml_comm_status(comm) != DML_OK;
    if (failed) printf("%s; culprit %d\n", dml_comm_error(comm), dml_comm_culprit(comm));
    const bool closed = dml_comm_close(comm) == DML_OK;
    return wrong ? 1 : failed ? 3 : !closed;
}
