/* context_internal.h: what a context is made of, for the files that build on it. */
#ifndef DML_DEVICE_CONTEXT_INTERNAL_H
#define DML_DEVICE_CONTEXT_INTERNAL_H

#include "base/error.h"
#include "base/logger.h"
#include "base/memory.h"
#include "device/backend.h"
#include "device/context.h"
#include "thread/pool.h"

/* Things that live until the context closes, newest first. */
typedef struct dml__owned {
    struct dml__owned *previous, *next;
    void (*destroy)(struct dml__owned *self);
} dml__owned;

/* What a call has left undone for a while (train/trainer_late.c). */
typedef struct dml__late {
    void (*settle)(void *user); /* does it, and clears this; NULL: there is nothing */
    void *user;
} dml__late;

struct dml_context {
    dml__memory memory;
    dml__error error;
    dml__logger logger;
    dml_pool *pool;
    dml_device device;
    bool device_open;
    uint64_t seed;
    dml__owned *owned; /* the newest, or NULL */
    uintptr_t inside;  /* the thread that is in a call now; 0: none */
    uintptr_t refused; /* the thread that found another there last, and hasn't been in since; 0: none */
    long process;      /* that opened it */
    dml__late late;    /* whoever enters next settles it first */
};

/* One thread at a time is in a context: calls that compute or change what others see enter it, and calls that
   those make again find it theirs. REFUSED: another thread is in it; nothing may be touched then, not even
   the context's error: dml_error has a sentence for the refused thread. Whatever else came of it is given to
   dml__leave. */
typedef enum dml__entry { DML__REFUSED, DML__ENTERED, DML__ENTERED_AGAIN } dml__entry;
DML__LOCAL dml__entry dml__enter(dml_context *context);
DML__LOCAL void dml__leave(dml_context *context, dml__entry entry);

/* The same for the one call that goes on with what it left undone as `user`: that stays so. */
DML__LOCAL dml__entry dml__enter_late(dml_context *context, const void *user);

/* The same for calls that use the device but run no op on it: false, with the error recorded or the thread
   refused, where they may not now. True: dml__leave ends it. */
DML__LOCAL bool dml__begin_transfer(dml_context *context, dml__entry *entry);

/* For calls that don't enter, and look at or change what somebody may have left undone. */
DML__LOCAL void dml__settle(dml_context *context);

/* dml_open on a device of a backend that need not be in dml_backend_at's list, as the test devices aren't;
   NULL backend: the one that options->device names. */
DML__LOCAL dml_context *dml__open_on(const dml_backend *backend, int index, const dml_options *options);

/* After a fork() a driver's device is the parent's alone: the child may not so much as release what it has
   there. The CPU goes on working: see the pool. */
DML__LOCAL bool dml__lost_by_fork(const dml_context *context);

/* Links a thing to the context, which destroys it on close if nobody did before. */
DML__LOCAL void dml__own(dml_context *context, dml__owned *thing, void (*destroy)(dml__owned *self));
DML__LOCAL void dml__disown(dml_context *context, dml__owned *thing);

/* At the end of a call that queued work: has the device start it. Gives `status`, that of the call so far, or
   what came of the start. */
DML__LOCAL dml_status dml__flush(dml_context *context, dml_status status);

/* A buffer of `bytes` on the context's device, or NULL with the error recorded. NULL may be destroyed. */
DML__LOCAL dml_buffer *dml__buffer_create(dml_context *context, size_t bytes);

/* The same full of zeros. */
DML__LOCAL dml_buffer *dml__buffer_create_zeroed(dml_context *context, size_t bytes);

DML__LOCAL void dml__buffer_destroy(dml_context *context, dml_buffer *buffer);

#endif
