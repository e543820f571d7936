/* host_device.h: the shared kernels on the host, one group at a time: slow, and open to the sanitizers. It is
   for the tests; no product holds it. */
#ifndef DML_GPU_HOST_DEVICE_H
#define DML_GPU_HOST_DEVICE_H

#include "device/backend.h"
#include "gpu/arguments.h"

/* A backend named "host-c", of one device whose memory is hidden as a GPU's is (host_memory is false). */
DML__LOCAL const dml_backend *dml__host_backend(void);

/* Runs groups_x * groups_y groups of kernel number `kernel` (gpu/kernel_list.h). Not from two threads at
   once: a group's local memory is static. */
DML__LOCAL void dml__host_run(int kernel, size_t groups_x, size_t groups_y, void *const buffers[6],
                              const dml__kernel_arguments *arguments);

#endif
