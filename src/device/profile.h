/* profile.h: which layer takes how long, on request. On a GPU these are the times of its kernels, as the
   device took them; on the CPU, of the ops. */
#ifndef DML_DEVICE_PROFILE_H
#define DML_DEVICE_PROFILE_H

#include "device/context.h"

/* What ran for one purpose, added up. The strings last as long as the profile does. */
typedef struct dml_profile_row {
    /* The layer's name in the graph; "" for what is no layer's: copies, the optimizer's step. */
    const char *node;
    const char *pass; /* "forward", "backward", or "step" outside of both */
    const char *what; /* a kernel, "write", "read", "copy" or "zero"; on the CPU the layer's op */
    int64_t calls;
    double seconds;
} dml_profile_row;

/* Begins to measure, anew if that was done before, and keeps the first `events` for the timeline (0: 65536);
   what comes later is only added up. That costs a GPU's queue two marks a launch, so nothing is measured
   unless it is asked for. DML_ERROR_MEMORY; DML_ERROR_ARGUMENT for less than 0; a program with a thread of
   its own isn't measured. */
DML_API dml_status dml_profile_begin(dml_context *context, int events);

/* Waits for the device, fills up to `capacity` rows, those that took longest first, and returns how many
   there are in all; 0 where nothing is measured. */
DML_API int dml_profile_rows(dml_context *context, dml_profile_row *rows, int capacity);

#ifndef DML_NO_STDIO
/* Waits for the device and writes the timeline in the format of Chrome's tracing (chrome://tracing,
   ui.perfetto.dev), which a communicator's is in too. DML_ERROR_STATE where nothing is measured. */
DML_API dml_status dml_profile_write(dml_context *context, const char *path);
#endif

/* Measures no longer and releases what was measured; dml_close does the same. */
DML_API void dml_profile_end(dml_context *context);

#endif
