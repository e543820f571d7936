#ifndef DML_DIST_MIRRORED_CLOCK_C
#define DML_DIST_MIRRORED_CLOCK_C

#include "dist/mirrored_clock.h"

#include "base/clock.h"

#include <string.h>

static dml_status dml__timed_start(void *user, dml_trainer *trainer)
{
    const dml_sync *inner = &((const dml__timed_sync *)user)->inner;
    return inner->start ? inner->start(inner->state, trainer) : DML_OK;
}

static dml_status dml__timed_begin(void *user, dml_trainer *trainer, double samples)
{
    dml__timed_sync *timed = (dml__timed_sync *)user;
    const dml_sync *inner = &timed->inner;
    const dml_status status = inner->begin ? inner->begin(inner->state, trainer, samples) : DML_OK;
    timed->seconds = timed->waited = 0;
    timed->begun = dml_seconds();
    return status;
}

static dml_status dml__timed_ready(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    const dml_sync *inner = &((const dml__timed_sync *)user)->inner;
    return inner->ready ? inner->ready(inner->state, trainer, begin, end) : DML_OK;
}

static dml_status dml__timed_finish(void *user, dml_trainer *trainer, double *samples)
{
    dml__timed_sync *timed = (dml__timed_sync *)user;
    const dml_sync *inner = &timed->inner;
    timed->seconds = dml_seconds() - timed->begun - timed->waited;
    return inner->finish ? inner->finish(inner->state, trainer, samples) : DML_OK;
}

static void dml__timed_failed(void *user, dml_trainer *trainer)
{
    const dml_sync *inner = &((const dml__timed_sync *)user)->inner;
    if (inner->failed) inner->failed(inner->state, trainer);
}

static dml_status dml__timed_updated(void *user, dml_trainer *trainer)
{
    const dml_sync *inner = &((const dml__timed_sync *)user)->inner;
    return inner->updated ? inner->updated(inner->state, trainer) : DML_OK;
}

static void dml__timed_destroy(void *user, dml_trainer *trainer)
{
    const dml_sync *inner = &((const dml__timed_sync *)user)->inner;
    if (inner->destroy) inner->destroy(inner->state, trainer);
}

static dml_status dml__timed_all_reduce(void *user, dml_trainer *trainer, double *values, size_t count)
{
    dml__timed_sync *timed = (dml__timed_sync *)user;
    const double before = dml_seconds();
    const dml_status status = timed->inner.all_reduce(timed->inner.state, trainer, values, count);
    timed->waited += dml_seconds() - before;
    return status;
}

static dml_status dml__timed_update(void *user, dml_trainer *trainer)
{
    const dml_sync *inner = &((const dml__timed_sync *)user)->inner;
    return inner->update(inner->state, trainer);
}

DML__LOCAL dml_sync dml__time_sync(dml__timed_sync *timed, dml_sync inner)
{
    dml_sync sync;
    memset(&sync, 0, sizeof sync);
    sync.state = timed;
    sync.start = dml__timed_start;
    sync.begin = dml__timed_begin;
    sync.ready = dml__timed_ready;
    sync.finish = dml__timed_finish;
    sync.failed = dml__timed_failed;
    sync.updated = dml__timed_updated;
    sync.destroy = dml__timed_destroy;
    sync.ranks = inner.ranks;
    sync.rank = inner.rank;
    sync.all_reduce = inner.all_reduce ? dml__timed_all_reduce : NULL;
    sync.update = inner.update ? dml__timed_update : NULL;
    timed->inner = inner;
    timed->begun = timed->waited = timed->seconds = 0;
    return sync;
}

#endif
