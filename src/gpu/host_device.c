#ifndef DML_GPU_HOST_DEVICE_C
#define DML_GPU_HOST_DEVICE_C

#include "gpu/host_device.h"

#include "base/clock.h"
#include "gpu/kernel_list.h"
#include "gpu/launch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SANITIZE_THREAD__)
#include <pthread.h>
#else
#include <ucontext.h>
#endif

/* Where one item is: it is one of every group in turn. */
typedef struct dml__host_item {
    int item, group_x, group_y;
    struct dml__host_grid *grid;
} dml__host_item;

static void dml__host_barrier(const dml__host_item *self);

static float dml__host_other(const dml__host_item *self, float x, int reach)
{
    static float given[DML__GROUP_ITEMS];
    given[self->item] = x;
    dml__host_barrier(self);
    x = given[self->item ^ reach];
    dml__host_barrier(self);
    return x;
}

static unsigned dml__host_bits(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float dml__host_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum { DML__HOST_LANES = 8 };
typedef struct dml__host_quad {
    float x, y, z, w;
} dml__host_quad;

typedef struct dml__host_vector {
    float lane[DML__HOST_LANES];
} dml__host_vector;

static dml__host_vector dml__host_vector_of(float x)
{
    dml__host_vector v;
    for (int i = 0; i < DML__HOST_LANES; i++) v.lane[i] = x;
    return v;
}

static dml__host_vector dml__host_vector_load(const float *from)
{
    dml__host_vector v;
    memcpy(v.lane, from, sizeof v.lane);
    return v;
}

static void dml__host_vector_store(float *to, dml__host_vector v)
{
    memcpy(to, v.lane, sizeof v.lane);
}

static dml__host_vector dml__host_vector_add_product(dml__host_vector sum, float x, dml__host_vector v)
{
    for (int i = 0; i < DML__HOST_LANES; i++) sum.lane[i] += x * v.lane[i];
    return sum;
}

static dml__host_vector dml__host_vector_add_products(dml__host_vector sum, dml__host_vector u,
                                                      dml__host_vector v)
{
    for (int i = 0; i < DML__HOST_LANES; i++) sum.lane[i] += u.lane[i] * v.lane[i];
    return sum;
}

static dml__host_vector dml__host_vector_most(dml__host_vector u, dml__host_vector v)
{
    for (int i = 0; i < DML__HOST_LANES; i++) u.lane[i] = fmaxf(u.lane[i], v.lane[i]);
    return u;
}

static dml__host_vector dml__host_vector_exp(dml__host_vector v)
{
    for (int i = 0; i < DML__HOST_LANES; i++) v.lane[i] = expf(v.lane[i]);
    return v;
}

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* every kernel takes all six buffers */
#endif
#include "gpu/kernels.cl"
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

typedef void (*dml__host_kernel)(const dml__host_item *self, char *buffer0, char *buffer1, char *buffer2,
                                 char *buffer3, char *buffer4, char *buffer5,
                                 const dml__kernel_arguments arguments);

typedef struct dml__host_grid {
    dml__host_kernel kernel;
    size_t groups_x, groups_y;
    int items; /* of a group */
    char *buffers[6];
    dml__kernel_arguments arguments;
#if defined(__SANITIZE_THREAD__)
    pthread_barrier_t inside, between; /* two, so that a barrier some items skip in a kernel is a hang */
#else
    size_t x, y;        /* the group that runs */
    int begun, waiting; /* its items that have begun, and that wait at a barrier */
#endif
} dml__host_grid;

static void dml__host_item_run(const dml__host_item *self)
{
    const dml__host_grid *grid = self->grid;
    grid->kernel(self, grid->buffers[0], grid->buffers[1], grid->buffers[2], grid->buffers[3],
                 grid->buffers[4], grid->buffers[5], grid->arguments);
}

#if defined(__SANITIZE_THREAD__)

/* A thread an item, so that the sanitizer sees the races between them. */
static void dml__host_barrier(const dml__host_item *self)
{
    pthread_barrier_wait(&self->grid->inside);
}

typedef struct dml__host_thread {
    pthread_t thread;
    int item;
    dml__host_grid *grid;
} dml__host_thread;

static void *dml__host_thread_main(void *argument)
{
    const dml__host_thread *thread = (const dml__host_thread *)argument;
    dml__host_grid *grid = thread->grid;
    dml__host_item self = { thread->item, 0, 0, grid };
    for (size_t y = 0; y < grid->groups_y; y++) {
        for (size_t x = 0; x < grid->groups_x; x++) {
            self.group_x = (int)x, self.group_y = (int)y;
            dml__host_item_run(&self);
            pthread_barrier_wait(&grid->between);
        }
    }
    return NULL;
}

static void dml__host_grid_run(dml__host_grid *grid)
{
    static dml__host_thread threads[DML__GROUP_ITEMS];
    pthread_barrier_init(&grid->inside, NULL, (unsigned)grid->items);
    pthread_barrier_init(&grid->between, NULL, (unsigned)grid->items);
    /* Small stacks, which the C library keeps for the next launch; of large ones it gives most back. */
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 * 1024);
    for (int i = 0; i < grid->items; i++) {
        threads[i].item = i;
        threads[i].grid = grid;
        if (pthread_create(&threads[i].thread, &attributes, dml__host_thread_main, &threads[i]) == 0)
            continue;
        fprintf(stderr, "host-c: thread %d of %d can't be started\n", i, grid->items);
        abort(); /* the threads before it wait at a barrier for good */
    }
    for (int i = 0; i < grid->items; i++) pthread_join(threads[i].thread, NULL);
    pthread_attr_destroy(&attributes);
    pthread_barrier_destroy(&grid->inside);
    pthread_barrier_destroy(&grid->between);
}

#else

/* The caller alone, on a stack for each item that waits: where nobody waits one stack is enough for all of
   them, and 256 threads take a hundred times as long. */
enum { DML__HOST_STACK = 64 * 1024 };
static ucontext_t dml__host_caller, dml__host_item_context[DML__GROUP_ITEMS];
static dml__host_grid *dml__host_running; /* since makecontext takes no pointer */

static void dml__host_barrier(const dml__host_item *self)
{
    self->grid->waiting++;
    swapcontext(&dml__host_item_context[self->item], &dml__host_caller);
}

/* Items one after another; once one has waited here, no other begins here. */
static void dml__host_stack_main(void)
{
    dml__host_grid *grid = dml__host_running;
    while (grid->begun < grid->items) {
        const dml__host_item self = { grid->begun++, (int)grid->x, (int)grid->y, grid };
        dml__host_item_run(&self);
    }
}

static void dml__host_group_run(dml__host_grid *grid)
{
    static char stacks[DML__GROUP_ITEMS][DML__HOST_STACK];
    grid->begun = 0;
    grid->waiting = 0;
    while (grid->begun < grid->items) {
        ucontext_t *context = &dml__host_item_context[grid->begun];
        getcontext(context);
        context->uc_stack.ss_sp = stacks[grid->begun];
        context->uc_stack.ss_size = DML__HOST_STACK;
        context->uc_link = &dml__host_caller;
        makecontext(context, dml__host_stack_main, 0);
        swapcontext(&dml__host_caller, context);
    }
    while (grid->waiting == grid->items) {
        grid->waiting = 0;
        for (int i = 0; i < grid->items; i++) swapcontext(&dml__host_caller, &dml__host_item_context[i]);
    }
    if (grid->waiting == 0) return;
    fprintf(stderr, "host-c: %d of %d items wait at a barrier\n", grid->waiting, grid->items);
    abort();
}

static void dml__host_grid_run(dml__host_grid *grid)
{
    dml__host_running = grid;
    for (grid->y = 0; grid->y < grid->groups_y; grid->y++)
        for (grid->x = 0; grid->x < grid->groups_x; grid->x++) dml__host_group_run(grid);
    dml__host_running = NULL;
}

#endif

DML__LOCAL void dml__host_run(int kernel, size_t groups_x, size_t groups_y, void *const buffers[6],
                              const dml__kernel_arguments *arguments)
{
    static const dml__host_kernel kernels[] = {
#define DML__KERNEL_FUNCTION(name, covers_x, covers_y) dml__kernel_##name,
        DML__KERNEL_LIST(DML__KERNEL_FUNCTION) DML__SOLO_LIST(DML__KERNEL_FUNCTION)
#undef DML__KERNEL_FUNCTION
    };
    dml__host_grid grid;
    memset(&grid, 0, sizeof grid);
    grid.kernel = kernels[kernel];
    grid.items = (int)dml__kernel_items(kernel);
    grid.groups_x = groups_x, grid.groups_y = groups_y;
    for (int i = 0; i < 6; i++) grid.buffers[i] = (char *)buffers[i];
    grid.arguments = *arguments;
    dml__host_grid_run(&grid);
}

static int dml__host_count(void)
{
    return 1;
}

static void dml__host_describe(int index, dml_device_info *info)
{
    (void)index;
    snprintf(info->name, sizeof info->name, "the shared kernels as host C");
    info->compute_units = 1;
}

static dml_status dml__host_open(dml_device *device)
{
    if (device->index != 0)
        return dml_device_fail(device, DML_ERROR_DEVICE, "no device host-c:%d: there is one", device->index);
    dml__kernel_index *index = (dml__kernel_index *)dml_device_allocate(device, sizeof *index);
    if (!index) return dml_device_fail(device, DML_ERROR_MEMORY, "no memory left to open host-c:0");
    dml__fill_kernel_index(index);
    device->state = index;
    device->host_memory = false;
    return DML_OK;
}

static void dml__host_close(dml_device *device)
{
    dml_device_release(device, device->state);
    device->state = NULL;
}

static dml_status dml__host_buffer_create(dml_device *device, dml_buffer *buffer)
{
    buffer->host = NULL;
    buffer->handle = malloc(buffer->bytes);
    if (buffer->handle) return DML_OK;
    return dml_device_fail(device, DML_ERROR_MEMORY, "host-c: no memory left for a buffer of %llu bytes",
                           (unsigned long long)buffer->bytes);
}

static void dml__host_buffer_destroy(dml_device *device, dml_buffer *buffer)
{
    (void)device;
    free(buffer->handle);
    buffer->handle = NULL;
}

static char *dml__host_address(dml_ref ref)
{
    return (char *)ref.buffer->handle + ref.offset;
}

static dml_status dml__host_write(dml_device *device, dml_ref to, const void *from, size_t bytes)
{
    const dml_status status = dml__check_ref(device, to, bytes, "write");
    if (status == DML_OK && bytes) memcpy(dml__host_address(to), from, bytes);
    return status;
}

static dml_status dml__host_read(dml_device *device, void *to, dml_ref from, size_t bytes)
{
    const dml_status status = dml__check_ref(device, from, bytes, "read");
    if (status == DML_OK && bytes) memcpy(to, dml__host_address(from), bytes);
    return status;
}

static dml_status dml__host_copy(dml_device *device, dml_ref to, dml_ref from, size_t bytes)
{
    const dml_status status = dml__check_ref(device, from, bytes, "copy from");
    if (status != DML_OK) return status;
    const dml_status into = dml__check_ref(device, to, bytes, "copy to");
    if (into == DML_OK && bytes) memcpy(dml__host_address(to), dml__host_address(from), bytes);
    return into;
}

static dml_status dml__host_zero(dml_device *device, dml_ref to, size_t bytes)
{
    const dml_status status = dml__check_ref(device, to, bytes, "zero");
    if (status == DML_OK && bytes) memset(dml__host_address(to), 0, bytes);
    return status;
}

static dml_status dml__host_launch(dml_device *device, const dml_launch *launch)
{
    static const dml__choice choice = { DML__SOLO_BY_NAME, 1, false, { { 0 } } };
    dml__kernel_launch ready;
    const dml_status status =
        dml__prepare_launch(device, launch, (const dml__kernel_index *)device->state, &choice, &ready);
    if (status != DML_OK || ready.groups[0] == 0 || ready.groups[1] == 0) return status;
    void *buffers[DML_LAUNCH_BUFFERS];
    for (int i = 0; i < DML_LAUNCH_BUFFERS; i++)
        buffers[i] = launch->buffer[i].buffer ? launch->buffer[i].buffer->handle : NULL;
    const int event = dml_device_begin_event(device, dml__kernel_row_at(ready.kernel)->name);
    const double begin = dml_seconds();
    dml__host_run(ready.kernel, ready.groups[0], ready.groups[1], buffers, &ready.arguments);
    dml_device_end_event(device, event, begin, dml_seconds());
    return DML_OK;
}

static dml_status dml__host_finish(dml_device *device)
{
    (void)device;
    return DML_OK;
}

DML__LOCAL const dml_backend *dml__host_backend(void)
{
    static const dml_backend backend = {
        "host-c",
        dml__host_count,
        dml__host_describe,
        dml__host_open,
        dml__host_close,
        dml__host_buffer_create,
        dml__host_buffer_destroy,
        dml__host_write,
        dml__host_read,
        dml__host_copy,
        dml__host_zero,
        dml__host_launch,
        dml__host_finish,
        NULL,
        NULL,
        NULL,
        NULL,
        NULL,
        NULL,
        NULL,
    };
    return &backend;
}

#endif
