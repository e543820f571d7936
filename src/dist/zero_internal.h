/* zero_internal.h: what ZeRO is made of: who owns what of a vector (zero_share.c), gradients and updates
   (zero_sync.c), and parameters that come ahead of their use (zero_ahead.c). */
#ifndef DML_DIST_ZERO_INTERNAL_H
#define DML_DIST_ZERO_INTERNAL_H

#include "base/memory.h"
#include "base/platform.h"
#include "comm/comm.h"
#include "dist/buckets.h"
#include "dist/replicas.h"
#include "train/trainer.h"

/* No more are on their way at once: that bounds what of g is in memory. */
#define DML__ZERO_BUCKETS 4

/* Elements of a vector, and what is on its way of them. */
typedef struct dml__zero_range {
    size_t begin, end;
    dml_request *request; /* NULL: nothing, or nobody has asked for it yet */
} dml__zero_range;

typedef struct dml__zero_state {
    dml__memory memory;
    dml_comm *comm;
    int stage, ranks, rank;
    bool drops;     /* the vectors lie where memory can be given back */
    bool whole;     /* stage 3: by dml_trainer_gather; the next op that uses some of w forgets the rest */
    size_t *border; /* (ranks + 1): rank r owns elements [border[r], border[r + 1]) */
    size_t *counts, *offsets; /* (ranks): of the collective that is being started */
    dml__filling filling;
    int buckets, oldest; /* on their way; the first of them, in a ring */
    dml__zero_range bucket[DML__ZERO_BUCKETS];
    dml__roll_call call;
    /* Stage 3: what a pass uses of w, forward and then backward, in its order, which is the same on all
       ranks. Of it [held, next) is in use, and [next, ahead) has been asked for. */
    dml__zero_range *use; /* (uses) */
    size_t uses, held, next, ahead;
    uint64_t pass; /* which one that is of */
} dml__zero_state;

/* ---- who owns what ---- */

/* Before the rest; then the same on all ranks, which tells the trainer. */
DML__LOCAL dml_status dml__zero_make_room(dml__zero_state *state, dml_trainer *trainer);
DML__LOCAL dml_status dml__zero_share_out(dml__zero_state *state, dml_trainer *trainer);

/* What of [begin, end) rank r owns. */
DML__LOCAL dml__zero_range dml__zero_part(const dml__zero_state *state, int r, size_t begin, size_t end);

/* Fills in counts and offsets for a collective over [begin, end); returns this rank's part. */
DML__LOCAL dml__zero_range dml__zero_parts(dml__zero_state *state, size_t begin, size_t end);

/* What of [begin, end) is other ranks'. */
DML__LOCAL dml_status dml__zero_forget(dml__zero_state *state, dml_trainer *trainer, int vector, size_t begin,
                                       size_t end);

/* Each rank gets what of [begin, end) is others'. NULL, with the error recorded. */
DML__LOCAL dml_request *dml__zero_collect_start(dml__zero_state *state, dml_trainer *trainer, int vector,
                                                size_t begin, size_t end);
DML__LOCAL dml_status dml__zero_collect_end(dml__zero_state *state, dml_trainer *trainer, int vector,
                                            size_t begin, size_t end, dml_request *request);
DML__LOCAL dml_status dml__zero_collect(dml__zero_state *state, dml_trainer *trainer, int vector,
                                        size_t begin, size_t end);

/* ---- parameters that come ahead: stage 3 ---- */

/* Before the rest: lists what a pass will use. */
DML__LOCAL dml_status dml__zero_foresee(dml__zero_state *state, dml_trainer *trainer);

/* dml_sync.use and used. */
DML__LOCAL dml_status dml__zero_use_range(void *user, dml_trainer *trainer, size_t begin, size_t end);
DML__LOCAL dml_status dml__zero_used_range(void *user, dml_trainer *trainer, size_t begin, size_t end);

/* What was asked for and nobody will use is waited for and forgotten; with `trainer` NULL only waited for. */
DML__LOCAL dml_status dml__zero_drop_ahead(dml__zero_state *state, dml_trainer *trainer);

#endif
