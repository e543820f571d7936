/* lr_finder.h: which learning rates a model learns by: a short run in which the rate grows until it diverges.
 */
#ifndef DML_TRAIN_LR_FINDER_H
#define DML_TRAIN_LR_FINDER_H

#include "base/platform.h"
#include "base/status.h"
#include "train/trainer.h"

#ifndef DML_NO_STDIO
#include <stdio.h>
#endif

typedef struct dml_lr_finder_options {
    float first, last; /* the learning rate grows between these, to 1e6 at most; 0: 1e-7 and 10 */
    int steps;         /* in so many steps, each by the same factor, at least 2; 0: 100 */
    float smoothing;   /* what the moving average of the loss keeps of itself, below 1; 0: 0.98 */
    float diverges; /* it ends when the average is above its smallest by diverges - 1 times the size of that,
                       with 0 by 3 times */
} dml_lr_finder_options;

typedef struct dml_lr_point {
    float lr, loss, smoothed; /* the loss of the step by that rate; the average up to it */
} dml_lr_point;

typedef struct dml_lr_suggestion {
    float steepest; /* where the smoothed loss falls fastest in log(lr); 0 where it never falls */
    float minimum;  /* a tenth of where it is smallest: the largest that is safe, for a schedule's highest */
} dml_lr_suggestion;

typedef struct dml_lr_finder dml_lr_finder;

/* Begins a search on a trainer, whose parameters, optimizer's state, steps and learning rate it keeps, and
   sets the first rate. The caller then trains as always, on other samples at each step, and tells the losses:

       dml_lr_finder *finder = dml_lr_finder_begin(trainer, NULL);
       do {
           next_batch(x, t);
           if (dml_trainer_step(trainer, rows, DML_INPUTS(x, t), &loss) != DML_OK) break;
       } while (dml_lr_finder_step(finder, loss));
       dml_lr_suggestion found;
       if (dml_lr_finder_suggest(finder, &found) != DML_OK)
           dml_clear_error(context); // no rate tells; else each later call returns that error
       dml_lr_finder_end(finder);

   A trainer's schedule rests meanwhile. Under a sync strategy every rank does the same, with the same losses
   (their mean over ranks). NULL, with the error on the context: DML_ERROR_ARGUMENT for options out of range,
   DML_ERROR_STATE while another search is on, while the gradient waits for more or the average is in the
   parameters' place, and under a strategy that keeps the parameters elsewhere (servers, an outer optimizer);
   DML_ERROR_MEMORY: it copies w, the optimizer's state and the average. Source: Smith,
   "Cyclical learning rates for training neural networks", WACV 2017, section 3.3; smoothing, end and
   suggestions: Howard, Gugger, "fastai: a layered API for deep learning", Information 11, 2020. */
DML_API dml_lr_finder *dml_lr_finder_begin(dml_trainer *trainer, const dml_lr_finder_options *options);

/* Takes down the loss of the step that was just made and sets the next rate. False when the search has ended:
   the rates are through, the loss diverges or isn't finite, or finder is NULL. */
DML_API bool dml_lr_finder_step(dml_lr_finder *finder, float loss);

/* The points so far, *count of them, in order; the finder's. NULL: none. */
DML_API const dml_lr_point *dml_lr_finder_points(const dml_lr_finder *finder, int *count);

/* By the points but for the first tenth and, of 15 or more, the last 5, which have begun to diverge.
   DML_ERROR_STATE for fewer than 3 of them, and where the smoothed loss falls by so little that it may be the
   noise of the batches. */
DML_API dml_status dml_lr_finder_suggest(const dml_lr_finder *finder, dml_lr_suggestion *suggestion);

#ifndef DML_NO_STDIO
/* Writes the points as a training log, a JSON object a line: {"step":, "loss":, "smoothed":, "lr":}. What
   tools/plot draws of it, over equal steps, is the loss over log(lr). DML_ERROR_IO. */
DML_API dml_status dml_lr_finder_log(const dml_lr_finder *finder, FILE *file);
#endif

/* Brings the trainer back to where it was, bitwise, running statistics included (g is lost: an update needs a
   backward pass first), and releases the finder. It must come before the trainer is destroyed; closing the
   context releases a finder too. NULL is fine. DML_ERROR_STATE, with nothing done, while programs predict on
   other threads. */
DML_API dml_status dml_lr_finder_end(dml_lr_finder *finder);

#endif
