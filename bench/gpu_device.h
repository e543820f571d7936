/* gpu_device.h: for bench/gpu: a device, memory of it, and what is timed there: queued many times, then
   waited for once, turn by turn with what it is compared with. */
#ifndef DML_BENCH_GPU_DEVICE_H
#define DML_BENCH_GPU_DEVICE_H

#include "bench.h"

/* What was asked for. */
typedef struct gpu_asked {
    bench_common common;
    const char *device, *parts, *kernel, *dtype, *profile;
    int m, n, k, trans_a, trans_b; /* of one product; m 0: all of them */
    int mib;                       /* of an array; 0: the usual ones */
    int layers, width, context, vocabulary, batch, steps;
} gpu_asked;

typedef struct gpu {
    const gpu_asked *asked;
    const dml_backend *backend;
    int index;
    dml_device_info info;
    dml_device device; /* open while a part needs it */
    int threads;       /* of the host, that the rows name */
    double peak;       /* FLOP/s of f32; 0: unknown */
} gpu;

/* How many multiply-adds a CUDA multiprocessor does in a cycle. */
static int gpu__lanes(const char *features)
{
    int major = 0, minor = 0;
    if (sscanf(features, "compute capability %d.%d", &major, &minor) != 2) return 0;
    return major < 8 || (major == 8 && minor == 0) ? 64 : 128;
}

/* What products and attention may round their factors to. */
typedef struct gpu_precision {
    const char *name;
    dml_dtype dtype;
    bool allow_tf32;
} gpu_precision;

static const gpu_precision gpu_precisions[] = { { "f32", DML_F32, false },
                                                { "tf32", DML_F32, true },
                                                { "bf16", DML_BF16, false },
                                                { "f16", DML_F16, false } };
enum { GPU_PRECISIONS = sizeof gpu_precisions / sizeof *gpu_precisions };

/* --dtype, or else f32; NULL: it names none. */
static const gpu_precision *gpu_precision_of(const gpu_asked *asked)
{
    for (int i = 0; i < GPU_PRECISIONS; i++)
        if (!asked->dtype || strcmp(asked->dtype, gpu_precisions[i].name) == 0) return &gpu_precisions[i];
    return NULL;
}

/* The card's seconds for so much work at its peak, which is known of f32 alone; 0: it isn't. */
static double gpu_limit(const gpu *g, double work)
{
    return g->peak > 0 && gpu_precision_of(g->asked) == gpu_precisions ? work / g->peak : 0;
}

/* False, with a note among the rows, where there is no such device. */
static bool gpu_find(gpu *g, const gpu_asked *asked)
{
    dml_device_info all[64];
    char wanted[32];
    const int count = dml_devices(all, 64);
    memset(g, 0, sizeof *g);
    g->asked = asked;
    snprintf(wanted, sizeof wanted, "%.31s", asked->device ? asked->device : "");
    for (int i = 0; i < count && i < 64 && !asked->device && strcmp(all[i].id, "cpu") != 0; i++)
        if (!wanted[0]) memcpy(wanted, all[i].id, sizeof wanted); /* a GPU: they come first */
    if (!wanted[0]) snprintf(wanted, sizeof wanted, "opencl:0");
    if (!strchr(wanted, ':')) strncat(wanted, ":0", sizeof wanted - strlen(wanted) - 1);
    for (int i = 0; i < count && i < 64; i++) {
        const dml_backend *backend;
        if (strcmp(all[i].id, wanted) != 0) continue;
        for (int b = 0; (backend = dml_backend_at(b)) != NULL; b++)
            if (strncmp(backend->name, wanted, strlen(backend->name)) == 0) g->backend = backend;
        g->index = atoi(strchr(wanted, ':') + 1);
        g->info = all[i];
        g->threads = asked->common.threads ? asked->common.threads : g->info.gpu ? 1 : dml_cpu_count();
        g->peak = 2e6 * gpu__lanes(g->info.features) * g->info.compute_units * g->info.clock;
        return true;
    }
    printf("# gpu: there is no device %s: this finds", wanted);
    for (int i = 0; i < count && i < 64; i++) printf(" %s", all[i].id);
    printf("\n");
    return false;
}

static void gpu_stop(const gpu *g)
{
    fprintf(stderr, "gpu: %s\n", dml_error(g->device.context));
    exit(1);
}

static void gpu_open(gpu *g)
{
    const dml_options options = { .threads = 1 };
    memset(&g->device, 0, sizeof g->device);
    g->device.backend = g->backend;
    g->device.index = g->index;
    g->device.context = dml_open(&options);
    if (!g->device.context || g->backend->open(&g->device) != DML_OK) gpu_stop(g);
    g->device.factors = (int)gpu_precision_of(g->asked)->dtype;
    g->device.allow_tf32 = gpu_precision_of(g->asked)->allow_tf32;
}

static void gpu_close(gpu *g)
{
    g->backend->close(&g->device);
    dml_close(g->device.context);
    g->device.context = NULL;
}

/* A buffer of those bytes; NULL, with the error on the context, when there is no room. */
static dml_buffer *gpu_buffer(gpu *g, size_t bytes)
{
    dml_buffer *buffer = (dml_buffer *)calloc(1, sizeof *buffer);
    if (!buffer) exit(1);
    buffer->bytes = bytes;
    if (g->backend->buffer_create(&g->device, buffer) == DML_OK) return buffer;
    free(buffer);
    return NULL;
}

static void gpu_release(gpu *g, dml_buffer *buffer)
{
    if (buffer) g->backend->buffer_destroy(&g->device, buffer);
    free(buffer);
}

static dml_ref gpu_at(dml_buffer *buffer, size_t floats)
{
    const dml_ref ref = { buffer, floats * sizeof(float) };
    return ref;
}

/* Numbers from -1 to 1 for `count` buffers of that many floats. */
static void gpu_fill(gpu *g, dml_buffer *const *buffers, int count, size_t floats)
{
    float *numbers = bench_floats("gpu", floats);
    for (int i = 0; i < count; i++)
        if (g->backend->write(&g->device, gpu_at(buffers[i], 0), numbers, floats * sizeof(float)) != DML_OK)
            gpu_stop(g);
    if (g->backend->finish(&g->device) != DML_OK) gpu_stop(g);
    free(numbers);
}

/* --- timing --- */

/* Launches that together are what is timed. */
typedef struct gpu_work {
    gpu *g;
    const dml_launch *launches;
    int count;
} gpu_work;

/* Queues what is timed that many times, and waits; false: it failed, and said why on the context. */
typedef bool (*gpu_run)(void *argument, int times);

static bool gpu_run_work(void *argument, int times)
{
    const gpu_work *w = (const gpu_work *)argument;
    const dml_backend *backend = w->g->backend;
    for (int i = 0; i < times; i++)
        for (int l = 0; l < w->count; l++)
            if (backend->launch(&w->g->device, &w->launches[l]) != DML_OK) return false;
    return backend->finish(&w->g->device) == DML_OK;
}

typedef struct gpu_turn {
    gpu_run run;
    void *argument;
    int times;
    double seconds; /* of one, the median of the rounds; 0: it failed */
    double sample[BENCH_ROUNDS];
} gpu_turn;

/* Each in turn, so that a clock that changes is all of theirs. */
static void gpu_beside(gpu_turn *turns, int count, double seconds)
{
    enum { TIMES_MAX = 2000 };
    int rounds = BENCH_ROUNDS;
    for (int i = 0; i < count; i++) {
        gpu_turn *t = &turns[i];
        t->seconds = 0, t->times = 0;
        if (!t->run || !t->run(t->argument, 1)) continue;
        double start = dml_seconds();
        if (!t->run(t->argument, 1)) continue;
        double once = dml_seconds() - start + 1e-9;
        if (once < 1e-3) { /* of which waiting is a part: as the queue has it */
            start = dml_seconds();
            if (!t->run(t->argument, 16)) continue;
            once = (dml_seconds() - start) / 16 + 1e-9;
        }
        const double times = seconds / BENCH_ROUNDS / once;
        t->times = times < 1 ? 1 : times > TIMES_MAX ? TIMES_MAX : (int)times;
        if (once > 4 * seconds) rounds = 1; /* slow: what it took is enough */
    }
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < count; i++) {
            gpu_turn *t = &turns[i];
            const double start = dml_seconds();
            if (t->times && !t->run(t->argument, t->times)) t->times = 0;
            if (t->times) t->sample[round] = (dml_seconds() - start) / t->times;
        }
    for (int i = 0; i < count; i++)
        if (turns[i].times) turns[i].seconds = bench_median(turns[i].sample, rounds);
}

/* Of one after the other; 0: a launch failed, which is noted. */
static double gpu_time(gpu *g, const char *what, const dml_launch *launches, int count)
{
    gpu_work work = { g, launches, count };
    gpu_turn turn = { gpu_run_work, &work, 0, 0, { 0 } };
    gpu_beside(&turn, 1, g->asked->common.seconds);
    if (turn.seconds > 0) return turn.seconds;
    printf("# gpu: left out %s: %s\n", what, dml_error(g->device.context));
    dml_clear_error(g->device.context);
    return 0;
}

#endif
