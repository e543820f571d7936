/* compress_sum.h: sums of ranges of g over the ranks, coded on the way as dist/compress.h says, for the
   strategies. */
#ifndef DML_DIST_COMPRESS_SUM_H
#define DML_DIST_COMPRESS_SUM_H

#include "base/memory.h"
#include "base/platform.h"
#include "comm/comm.h"
#include "dist/compress.h"
#include "dist/compress_low_rank.h"
#include "train/trainer.h"

/* A range whose sum is under way; zeros: none. */
typedef struct dml__coded_sum {
    size_t begin, end; /* of g, in elements */
    size_t sent;       /* TOP_K: elements */
    unsigned char *code;
    dml_request *request;
    bool expands; /* POWER: Q is under way, before it P */
} dml__coded_sum;

typedef struct dml__compressor {
    dml__memory *memory;
    dml_comm *comm;
    dml_pool *pool;
    dml_compression how;
    int ranks, rank;
    uint64_t runs;       /* the trainer's: what is kept is of that one */
    size_t count;        /* of g */
    float *kept;         /* (count) what was not sent, of means over the global batch; NULL: none */
    float *velocity;     /* (count) NULL: none */
    unsigned char *code; /* (code_bytes) of the ranges under way */
    size_t code_bytes, code_used;
    float unit, factor; /* g times unit is coded, sums are decoded times factor */
    double fraction;    /* of this step */
    dml__low_rank low;
    dml__coded_sum *before; /* POWER: whose Q is still to be sent */
} dml__compressor;

/* Collective of nothing. Whether the options can be, with a sentence on the trainer; completes them. */
DML__LOCAL dml_status dml__check_compression(dml_trainer *trainer, dml_compression *how);

/* For g of the trainer, of which at most `ranges` are under way at once. `memory` stays in use. On failure,
   with a sentence on the trainer, nothing is left behind. */
DML__LOCAL dml_status dml__compressor_open(dml__compressor *c, dml__memory *memory, dml_comm *comm,
                                           dml_trainer *trainer, const dml_compression *how, int ranges);
DML__LOCAL void dml__compressor_close(dml__compressor *c);

/* What an element of g takes in a message, about. */
DML__LOCAL double dml__compressor_bytes(const dml__compressor *c);

/* Before the first range of a step: how many samples the sum of g will stand for, over all ranks. Kinds
   that keep nothing and need no range don't ask (dml__compressor_asks). */
DML__LOCAL bool dml__compressor_asks(const dml__compressor *c);
DML__LOCAL void dml__compressor_begin(dml__compressor *c, const dml_trainer *trainer, double samples);

/* Codes and sends `g`, the host's elements [begin, end) (that cut no parameter), which isn't to be written
   until dml__coded_sum_take has left the sum in it. All ranks start the same ranges in the same order and
   take them in that order. Returns what became of the communicator. */
DML__LOCAL dml_status dml__coded_sum_start(dml__compressor *c, float *g /* (end - begin) */, size_t begin,
                                           size_t end, dml__coded_sum *sum);
DML__LOCAL dml_status dml__coded_sum_take(dml__compressor *c, float *g, dml__coded_sum *sum);

/* Waits for what is under way and forgets it; then what is kept, since nobody knows what arrived. */
DML__LOCAL void dml__coded_sum_drop(dml__compressor *c, dml__coded_sum *sum);
DML__LOCAL void dml__compressor_forget(dml__compressor *c);

#endif
