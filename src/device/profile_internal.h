/* profile_internal.h: what the files that run ops tell the profile. */
#ifndef DML_DEVICE_PROFILE_INTERNAL_H
#define DML_DEVICE_PROFILE_INTERNAL_H

#include "device/backend.h"
#include "device/context.h"

/* Beside an op, or the optimizer's step, on a host_memory device: dml_seconds() as it begins, where that is
   measured, and when it has ended. */
DML__LOCAL double dml__profile_now(const dml_device *device);
DML__LOCAL void dml__profile_ran(dml_device *device, const char *what, double begin);

/* After the device has been closed. */
DML__LOCAL void dml__profile_release(dml_context *context);

#endif
