/* buckets.h: gradients are sent in buckets: ranges of g that have become final are put together until they
   are worth a message. */
#ifndef DML_DIST_BUCKETS_H
#define DML_DIST_BUCKETS_H

#include "base/platform.h"
#include "comm/price.h"
#include "train/trainer.h"

/* Of the bucket that is being filled. */
typedef struct dml__filling {
    size_t elements; /* that make it full */
    size_t from, to; /* g[from, to) is final and in no bucket yet */
} dml__filling;

/* How many elements, of so many bytes each, should travel at once over such links, so that their latencies
   are a tenth of the time of an all-reduce in as few steps as there can be. Between hosts (`wires`) at least
   eight messages make up all `count`: their latencies overlap. Within a host, where the processors do all the
   work, less than 1 MiB gains nothing. */
DML__LOCAL size_t dml__bucket_elements(const dml__price_link *link, bool wires, int ranks, double bytes_each,
                                       size_t count);

/* Buckets of this trainer's g become as large as they must for there to be no more than `most`. */
DML__LOCAL void dml__bound_buckets(dml__filling *filling, const dml_trainer *trainer, int most);

/* Before backward. */
DML__LOCAL void dml__begin_filling(dml__filling *filling, const dml_trainer *trainer);

/* For dml_sync.ready. True: [from, to) is to be sent, and then dml__bucket_sent. */
DML__LOCAL bool dml__fill_bucket(dml__filling *filling, size_t begin, size_t end);
DML__LOCAL void dml__bucket_sent(dml__filling *filling);

#endif
