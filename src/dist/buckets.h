/* buckets.h: gradients are sent in buckets: ranges of g that have become final are put together until they
   are worth a message. */
#ifndef DML_DIST_BUCKETS_H
#define DML_DIST_BUCKETS_H

#include "base/platform.h"
#include "comm/price.h"
#include "train/trainer.h"
#include "train/trainer_internal.h"

/* Has the sum of g[begin, end) over the ranks begun, from `g` on the host, or, where it is lent, on the
   device; all start the same, in the same order. */
typedef dml_status (*dml__send_bucket)(void *user, dml_trainer *trainer, float *g, size_t begin, size_t end);

/* Buckets on their way from a device with memory of its own, at most. */
#define DML__MOST_FETCHES 64

/* Of the bucket that is being filled, and those that are full and have not been sent. */
typedef struct dml__filling {
    size_t asked;    /* bytes, by the caller; 0: whatever suits */
    size_t elements; /* that make it full */
    size_t from, to; /* g[from, to) is final and in no bucket yet */
    dml__send_bucket send;
    void *user;
    bool lends;          /* they stay where they are (dist/lent.h) */
    void *stream;        /* then: behind which what is sent is there */
    int fetches, oldest; /* on their way to the host; the first of them, in a ring */
    dml__fetch fetch[DML__MOST_FETCHES];
} dml__filling;

/* How many elements, of so many bytes each, should travel at once over such links, so that their latencies
   are a tenth of the time of an all-reduce in as few steps as there can be. Between hosts (`wires`) at least
   eight messages make up all `count`: their latencies overlap. Within a host, where the processors do all the
   work, less than 1 MiB gains nothing. */
DML__LOCAL size_t dml__bucket_elements(const dml__price_link *link, bool wires, int ranks, double bytes_each,
                                       size_t count);

/* Buckets of at least so many bytes, as the caller asked; 0: of `usual` elements. */
DML__LOCAL void dml__ask_buckets(dml__filling *filling, size_t bytes, size_t usual);

/* Buckets of this trainer's g become as large as they must for there to be no more than `most`. */
DML__LOCAL void dml__bound_buckets(dml__filling *filling, const dml_trainer *trainer, int most);

/* Before backward. */
DML__LOCAL void dml__begin_filling(dml__filling *filling, const dml_trainer *trainer);

/* For dml_sync.ready: a bucket that is full is fetched from the device, and sent when it has come. Backward
   goes on meanwhile, until all of it is queued: then this waits. */
DML__LOCAL dml_status dml__fill_bucket(dml__filling *filling, dml_trainer *trainer, size_t begin, size_t end);

/* g[begin, end) has been summed where it was sent from: now it is the trainer's. */
DML__LOCAL dml_status dml__put_bucket(const dml__filling *filling, dml_trainer *trainer, size_t begin,
                                      size_t end);

/* Waits for the full buckets and sends them. When each comes is every device's own affair, so whoever starts
   another collective on the same communicator calls this first, and then all ranks have started the same; a
   strategy does in `failed`, too: after a step that failed on all ranks alike nothing of it is missing on
   one. On failure nothing is on its way. */
DML__LOCAL dml_status dml__send_buckets(dml__filling *filling, dml_trainer *trainer);

#endif
