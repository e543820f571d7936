/* cpu.h: the CPU as a device: memory is the host's, and the ops call the kernels themselves. */
#ifndef DML_DEVICE_CPU_H
#define DML_DEVICE_CPU_H

#include "base/platform.h"
#include "device/backend.h"

DML__LOCAL const dml_backend *dml__cpu_backend(void);

#endif
