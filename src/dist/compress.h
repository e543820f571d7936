/* compress.h: gradients that take fewer bytes on their way to the other ranks. */
#ifndef DML_DIST_COMPRESS_H
#define DML_DIST_COMPRESS_H

#include "base/platform.h"

typedef enum dml_compression_kind {
    DML_COMPRESS_NONE,     /* f32, summed as it is */
    DML_COMPRESS_BF16,     /* 16 bits of either type, summed by an all-reduce, which adds in f32 and rounds */
    DML_COMPRESS_F16,      /* at each rank; without a memory of what was rounded away */
    DML_COMPRESS_QUANTISE, /* `bits` for an element, and a scale for each 256 */
    DML_COMPRESS_TOP_K,    /* the `fraction` of the elements that is largest, with their places */
    DML_COMPRESS_POWER     /* of each matrix the best approximation of that `rank` that is cheaply found */
} dml_compression_kind;

/* An option of the sync strategies: how ranges of g are coded before they are sent, the same on all ranks.
   All kinds give every rank the same bits (POWER: ranks whose processors multiply alike). Those after F16
   keep what was not sent and add it to the gradient of the next step (error feedback: Seide, Fu, Droppo, Li,
   Yu, "1-bit stochastic gradient descent", 2014; Karimireddy, Rebjock, Stich, Jaggi, "Error feedback fixes
   SignSGD", ICML 2019): what has arrived over the steps and what is still kept add up to all gradients, up to
   rounding. That memory is as large as g, is each rank's own, and isn't in checkpoints: a run that goes on
   begins with none, and so does what comes after dml_trainer_load, a dml_trainer_set_run to other steps and
   dml_lr_finder_end. A step that fails, or is skipped for its loss scale, takes what it had sent along. A
   range with a number that isn't finite arrives as NaN or infinity, and is not remembered.

   QUANTISE. Blocks of 256 elements, each with its scale, its largest magnitude as the largest level: 8 bits
   give 255 levels, 4 bits 15 (the levels of Alistarh et al., "QSGD", 2017, with rounding to the nearest, for
   which the memory makes up, instead of random rounding); 1 bit gives signs, the scale being the mean
   magnitude (Karimireddy et al., algorithm 1). To a quarter, an eighth and a 30th of f32's bytes.

   TOP_K. 8 bytes for each element sent, of each range that is sent by itself at least one. With `momentum`
   what is kept is not the gradient but its velocity, and an element that was sent begins anew (Lin, Han,
   Mao, Wang, Dally, "Deep gradient compression", ICLR 2018, sections 3.1 and 3.3, momentum correction and
   factor masking): the optimizer is then dml_sgd without a momentum of its own. During the first `warm_up`
   steps the fraction falls exponentially from a quarter (section 3.3, warm-up training).

   POWER. Of a parameter's gradient, as a matrix M of its first dimension by all others, P = M Q and then Q =
   M^T P are sent, with P's columns made orthonormal between: one step of a power iteration, which goes on
   from the last step's Q (Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, algorithms 1 and 2).
   Vectors, and matrices that P and Q would not make smaller, are sent as they are.

   QUANTISE and TOP_K send each rank's code to all others (all-gather), so their bytes grow with the ranks
   where those of an all-reduce don't: at N ranks each receives N - 1 codes, instead of twice its gradient. */
typedef struct dml_compression {
    dml_compression_kind kind;
    int bits;       /* QUANTISE: 8, 4 or 1; 0: 8 */
    float fraction; /* TOP_K: above 0 and at most 1; 0: 0.01 */
    float momentum; /* TOP_K: of the velocity, at least 0 and below 1; 0: none */
    int warm_up;    /* TOP_K: steps; 0: none */
    int rank;       /* POWER: at least 1; 0: 4 */
} dml_compression;

#endif
