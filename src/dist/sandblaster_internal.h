/* sandblaster_internal.h: what Sandblaster's workers (sandblaster.c) and the first of them, which hands out
   the work (sandblaster_coordinator.c), have in common. */
#ifndef DML_DIST_SANDBLASTER_INTERNAL_H
#define DML_DIST_SANDBLASTER_INTERNAL_H

#include "base/memory.h"
#include "base/platform.h"
#include "dist/parameter_server.h"
#include "dist/sandblaster.h"

/* A worker reports, and waits for the order that answers it. */
enum { DML__SB_READY, DML__SB_RESULT };              /* reports */
enum { DML__SB_COMPUTE, DML__SB_PUSH, DML__SB_END }; /* orders */
enum { DML__SB_TAG_REPORT = 11, DML__SB_TAG_ORDER };

/* The numbers of both, as DML_F64. */
enum {
    DML__SB_KIND,
    DML__SB_EVALUATION, /* counted from 1, each attempt by itself */
    DML__SB_PORTION,
    DML__SB_PORTIONS,
    DML__SB_X, /* vectors of the servers */
    DML__SB_GRADIENT,
    DML__SB_LOSS, /* of a result */
    DML__SB_SAMPLES,
    DML__SB_WORDS = 10 /* of an end, too: the whole result */
};

#define DML__SB_MOST_PORTIONS (1 << 20)

typedef enum dml__helper_state {
    DML__HELPER_BUSY, /* what it reports next may be a result */
    DML__HELPER_PUSHING,
    DML__HELPER_IDLE, /* waits for an order */
    DML__HELPER_GONE
} dml__helper_state;

typedef struct dml__helper {
    dml__helper_state state;
    int evaluation, portion; /* that it was given last */
    bool silent;             /* when it was asked last, in this wait */
    double report[DML__SB_WORDS];
} dml__helper;

typedef struct dml__portion {
    int holders; /* how many compute it */
    bool accepted, given;
} dml__portion;

typedef struct dml__sandblaster {
    dml__memory memory;
    dml_trainer *trainer;
    dml_comm *comm, *peers;
    dml_ps *ps;
    dml_portion_function portion;
    void *user;
    size_t n;
    int portions;
    int fetched; /* the evaluation whose x is in w */
    dml_sandblaster_result result;
    /* The coordinator's. */
    int workers, helping;   /* worker 0 counts; doesn't */
    dml__helper *helpers;   /* (workers): 0 is not one */
    dml_request **reports;  /* (workers) */
    bool *answered;         /* (workers) */
    dml__portion *progress; /* (portions): of the evaluation */
    int evaluation, x, gradient;
    int accepted, pushing;
    bool spoilt; /* part of a dead worker's push may be in the gradient */
    double loss, samples;
    dml_status status;
} dml__sandblaster;

DML__LOCAL dml_status dml__sandblaster_fetch(dml__sandblaster *s, int vector);

/* What one portion comes to, at the x of that evaluation, a vector of the servers; its gradient is the
   trainer's. */
DML__LOCAL dml_status dml__sandblaster_compute(dml__sandblaster *s, int evaluation, int portion, int x,
                                               double *loss, double *samples);

/* To the servers' sum, of samples' gradients. */
DML__LOCAL dml_status dml__sandblaster_push(dml__sandblaster *s, int gradient, double samples);

/* Worker 0's part of it; the others do what it orders. */
DML__LOCAL dml_status dml__sandblaster_coordinate(dml__sandblaster *s, const dml_lbfgs_options *o);

/* Into the order to end. */
DML__LOCAL void dml__sandblaster_write_result(const dml_sandblaster_result *r, double words[DML__SB_WORDS]);

#endif
