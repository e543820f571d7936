/* backend.h: what a device can do for the graph. Everything above speaks to this interface alone.

   A backend is memory plus launches. On a device that shares the host's memory (`host_memory`), the ops call
   the CPU kernels directly; on any other they launch the shared kernels of src/gpu/kernels.cl by name. So a
   new backend implements the table below and no op. */
#ifndef DML_DEVICE_BACKEND_H
#define DML_DEVICE_BACKEND_H

#include "base/platform.h"
#include "base/status.h"

/* A piece of a device's memory. The device that made it owns it. */
typedef struct dml_buffer {
    size_t bytes;
    void *host;   /* its address where host_memory is true, else NULL */
    void *handle; /* the backend's own: a cl_mem, a device pointer */
} dml_buffer;

/* A place in a buffer. */
typedef struct dml_ref {
    dml_buffer *buffer;
    size_t offset; /* in bytes, a multiple of the element size */
} dml_ref;

/* One launch of a shared kernel. Every shared kernel takes the same arguments: buffers with their offsets,
   then a block of integers and floats; what each means is written at the kernel. */
#define DML_LAUNCH_BUFFERS 6
#define DML_LAUNCH_INTS 16
#define DML_LAUNCH_FLOATS 8
typedef struct dml_launch {
    const char *kernel; /* its name in src/gpu/kernels.cl */
    size_t size[2];     /* how much there is to do along x and y: elements, rows, outputs; how much of it a
                           work-group does is in the kernel's row of src/gpu/kernel_list.h. 0: nothing to do */
    dml_ref buffer[DML_LAUNCH_BUFFERS]; /* a NULL buffer is a NULL pointer in the kernel */
    int32_t integer[DML_LAUNCH_INTS];
    float real[DML_LAUNCH_FLOATS];
} dml_launch;

typedef struct dml_device dml_device;

typedef struct dml_device_info {
    char id[32];       /* what dml_open takes: "cpu", "opencl:1", "cuda:0" */
    char name[128];    /* what its maker calls it */
    uint64_t memory;   /* bytes, 0 where unknown */
    int compute_units; /* cores or multiprocessors */
    bool gpu;          /* not a CPU that speaks OpenCL */
    int clock;         /* in MHz at most, 0 where unknown */
    char
        features[96]; /* of its instructions: "avx512", "compute capability 9.0", "cl_khr_fp16", ...; or "" */
    char driver[64];  /* its driver and version, "" where there is none */
} dml_device_info;

/* The table a backend fills. Calls on one device come from one thread at a time. Work is in order: a launch
   sees what earlier writes and launches did; `read` and `finish` wait, nothing else need, but the caller may
   reuse what `write` was given once it returns. A function that fails says why with dml_device_fail and
   returns the status. */
typedef struct dml_backend {
    const char *name; /* "cpu", "opencl", "cuda" */
    /* How many devices there are; 0 when there is no driver. */
    int (*count)(void);
    /* Fills `info` for device `index`, 0 .. count - 1. */
    void (*describe)(int index, dml_device_info *info);
    /* Opens device->index: sets device->state and device->host_memory. */
    dml_status (*open)(dml_device *device);
    void (*close)(dml_device *device);
    /* Sets buffer->host or buffer->handle for buffer->bytes > 0 bytes. The content is zero on a host_memory
       device (dml_device_allocate), else undefined. */
    dml_status (*buffer_create)(dml_device *device, dml_buffer *buffer);
    void (*buffer_destroy)(dml_device *device, dml_buffer *buffer);
    dml_status (*write)(dml_device *device, dml_ref to, const void *from, size_t bytes);
    dml_status (*read)(dml_device *device, void *to, dml_ref from, size_t bytes);
    dml_status (*copy)(dml_device *device, dml_ref to, dml_ref from, size_t bytes); /* they don't overlap */
    dml_status (*zero)(dml_device *device, dml_ref to, size_t bytes);
    dml_status (*launch)(dml_device *device, const dml_launch *launch);
    dml_status (*finish)(dml_device *device);
    /* Starts what was queued, and doesn't wait: until then a backend may keep launches, copies and zeros
       back, to start them together. NULL: it never does. */
    dml_status (*flush)(dml_device *device);
    /* Begins or ends the timing of launches and transfers, each of which is then told to
       dml_device_begin_event and, at the latest when `finish` returns, to dml_device_end_event. NULL: it has
       no clock of its own. */
    dml_status (*profile)(dml_device *device, bool on);
    /* A read that nobody waits for yet: queued behind what was, and started. Until it has ended `to` is the
       device's, and nobody is to write what is read. *ticket is for read_end; NULL: it has ended. On failure
       nothing was queued. NULL: there are only reads that wait. */
    dml_status (*read_start)(dml_device *device, void *to, dml_ref from, size_t bytes, void **ticket);
    /* Whether a started read has ended; with `wait` it has. The ticket is used up then, and on failure, after
       which the device doesn't write `to` either. NULL where read_start is. */
    dml_status (*read_end)(dml_device *device, void *ticket, bool wait, bool *ended);
    /* Holds memory of the host's where it is, so that started reads to it needn't wait; false: it can't be,
       and they may. `unpin` is called with its begin before it is released. NULL: that changes nothing. */
    bool (*pin)(dml_device *device, void *memory, size_t bytes);
    void (*unpin)(dml_device *device, void *memory);
    /* Where libraries of the device's maker find what lies there, and what they queue behind to see all that
       the device was given to do so far: an address and a cudaStream_t. Whoever lent it waits for them before
       the device is given what comes after. NULL: there are no such libraries. */
    dml_status (*lend)(dml_device *device, dml_ref ref, void **address, void **stream);
} dml_backend;

struct dml_device {
    const dml_backend *backend;
    int index;
    bool host_memory;
    int factors; /* a dml_dtype: what it may round the factors of products to, for the program that runs */
    bool allow_tf32; /* where that is f32: to TF32, of products on tensor cores */
    void *state;     /* the backend's own */
    struct dml_context *context;
    const char *node;             /* the layer whose op runs, and in which pass; NULL: none does */
    const char *pass;             /* "forward" or "backward" */
    struct dml__profile *profile; /* NULL: nothing is timed (device/profile.h) */
};

/* For backends: the first failure sticks to the context, with the layer that runs; returns `status`. */
DML_API dml_status dml_device_fail(dml_device *device, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);

/* For backends, while they open: takes back a failure that the device can do without; and tells of it in the
   context's log. */
DML_API void dml_device_forgive(dml_device *device);
DML_API void dml_device_warn(dml_device *device, const char *format, ...) DML__PRINTF(2, 3);

/* For backends: zeroed memory from the context's allocator, NULL when there is none left. */
DML_API void *dml_device_allocate(dml_device *device, size_t bytes);
DML_API void dml_device_release(dml_device *device, void *memory);

/* For backends: what is about to run ("write", a kernel's name) in the layer of now, -1 where nothing is
   timed; and when it ran, in seconds of dml_seconds. */
DML_API int dml_device_begin_event(dml_device *device, const char *what);
DML_API void dml_device_end_event(dml_device *device, int event, double begin, double end);

/* The backends of this build: the CPU always; OpenCL and CUDA where the implementation was compiled with
   DML_OPENCL or DML_CUDA defined and linked with dml_opencl.c or dml_cuda.cu. NULL past the last. */
DML_API const dml_backend *dml_backend_at(int i);

/* What dml_opencl.c and dml_cuda.cu define. */
#define dml_opencl_backend DML__ABI(dml_opencl_backend)
#define dml_cuda_backend DML__ABI(dml_cuda_backend)
DML__EXTERN_C const dml_backend *dml_opencl_backend(void);
DML__EXTERN_C const dml_backend *dml_cuda_backend(void);

/* Fills up to `capacity` infos with every device of every backend, best first ("auto" takes the first: a GPU
   before an OpenCL CPU, the CPU backend before an OpenCL CPU), and returns how many there are in all. */
DML_API int dml_devices(dml_device_info *infos, int capacity);

/* The address behind a reference on a host_memory device. */
static inline void *dml__host(dml_ref ref)
{
    return DML__CAST(char *, ref.buffer->host) + ref.offset;
}

#endif
