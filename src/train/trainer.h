/* trainer.h: a training program, an optimizer, and a sync strategy. */
#ifndef DML_TRAIN_TRAINER_H
#define DML_TRAIN_TRAINER_H

#include "base/platform.h"
#include "base/status.h"
#include "graph/graph.h"
#include "graph/program.h"
#include "train/optimizer.h"
#include "train/schedule.h"

typedef struct dml_trainer dml_trainer;

typedef struct dml_trainer_options {
    int batch;               /* the most samples of one step, at least 1: there is no default */
    dml_optimizer optimizer; /* zero: dml_sgd(0.01, 0) */
    /* What the first update after a backward pass does to g, the mean over the global batch: cuts each
       element to -clip_value .. clip_value; then scales g so that its Euclidean norm is at most clip_norm. 0:
       nothing. A gradient that isn't finite is not made so; on a GPU, whose sums of squares are f32, a norm
       beyond 1.8e19 counts as infinite, and becomes zeros. */
    float clip_norm, clip_value;
    dml_schedule schedule; /* which the learning rate follows, step by step, instead of staying as it is */
    /* Keeps a moving average of the trained parameters as one more vector, the last: after each update
       average = this times average + the rest of 1 times w, after the first w itself; of a checkpoint that
       has none it begins with w. 0: none. */
    float average;
    dml_check check; /* which numbers end a step that computes them (graph/program.h); zero: none */
    /* DML_F32 (0), DML_BF16 or DML_F16: mixed precision, as in dml_program_options. w, g and the optimizer's
       state are f32 in each. */
    dml_dtype dtype;
    /* The loss that backward starts from is multiplied by this, and g, before anybody sees it, divided by it,
       so that gradients aren't too small for 16 bits. A step whose g isn't finite then is skipped: it changes
       nothing but running statistics (and what a strategy's compression keeps), isn't one of
       dml_trainer_steps, and halves the scale, which doubles after 2,000 steps that were not. Powers of 2
       change no bit of g. 0: 65536 for DML_F16, none for the others; -1: none. On a device with memory of its
       own an update with one waits for the device. */
    float loss_scale;
    /* Nodes beside the loss, such as its terms and the scores that it is made of, whose values steps leave
       for dml_program_read(dml_trainer_program(trainer), node, values): as in dml_program_options. */
    dml_node *const *watch; /* (watch_count), read while the trainer is created */
    int watch_count;
} dml_trainer_options;

/* Compiles the loss for training. NULL, with the error on the context, when dml_compile refuses, the
   optimizer's numbers are out of range, or memory is short. After this, a step allocates nothing. */
DML_API dml_trainer *dml_trainer_create(dml_node *loss, const dml_trainer_options *options);
DML_API void dml_trainer_destroy(dml_trainer *trainer);

/* One step on `rows` samples, 1 .. batch (0 too under a sync strategy, for a rank that got none of the global
   batch): dml_trainer_backward and dml_trainer_update. inputs[i] holds `rows` samples for
   dml_program_input(program, i), the inputs in the order of dml_input, and `count` is how many inputs there
   are; DML_INPUTS(images, labels) stands for both. `loss`, when not NULL, receives the mean loss of these
   samples before the update; asking for it waits for the device. Input that is refused (DML_ERROR_ARGUMENT)
   is so before anything is sent to other ranks, so that the step can be made again, after dml_clear_error.
   DML_ERROR_STATE, with nothing done, while another thread is in the context or programs predict on other
   threads. */
DML_API dml_status dml_trainer_step(dml_trainer *trainer, int rows, const void *const *inputs, int count,
                                    float *loss);

/* What dml_trainer_backward does with g, joined by |. */
enum {
    DML_OVERWRITE = 0,
    DML_ADD = 1, /* to the samples that g holds since the last update (none: as DML_OVERWRITE) */
    DML_MORE = 2 /* more will be added before an update; a sync strategy waits for it, and until then g is
                    this rank's own */
};

/* Forward and backward on `rows` samples; w stays, but for running statistics (ops/op_norm.h), because of
   which it may then be refused as an update is. g is then the mean, over all samples that it holds, of the
   gradient of their loss: of this call's, and with DML_ADD of earlier ones' too, however many each had; under
   a sync strategy of every rank's. So one large batch may come in pieces:

       for (int i = 0; i < pieces; i++)
           dml_trainer_backward(t, rows, DML_INPUTS(x[i], y[i]),
                                DML_ADD | (i < pieces - 1 ? DML_MORE : 0), NULL);
       dml_trainer_update(t);

   Exactly so for losses that are plain means; for those with weights or ignored labels see ops/op_loss.h.
   `loss` is the mean over the samples of this call alone. Whatever the caller does to g between the two
   (clipping, a regulariser) is done to the gradient that will be applied, alone and under every strategy:
   reach it by dml_trainer_get and dml_trainer_put. Under a strategy every rank makes the same calls. */
DML_API dml_status dml_trainer_backward(dml_trainer *trainer, int rows, const void *const *inputs, int count,
                                        int flags, float *loss);

/* The optimizer's step: w follows g. The step is then counted, and what is added to g next begins anew.
   (A second update without a backward between applies the same gradient again.) DML_ERROR_STATE while g waits
   for more (DML_MORE), before any backward, after one that failed, and while programs predict on other
   threads. */
DML_API dml_status dml_trainer_update(dml_trainer *trainer);

/* Its two halves, for optimizers of the caller's own and for ones that treat parts of w in other ways: the
   optimizer's step for elements [begin, end) of the trained parameters alone; and, once in a step, counting
   it. (An optimizer of one's own changes w by dml_trainer_get and dml_trainer_put, then calls the second.)
   Errors are as for the whole, but the second doesn't ask for a gradient. LARS and LAMB take whole parameters
   (DML_ERROR_ARGUMENT for a range that cuts one), each once in a step (DML_ERROR_STATE), since they use up
   its gradient. Under a strategy that updates w itself the first is DML_ERROR_UNSUPPORTED. */
DML_API dml_status dml_trainer_update_range(dml_trainer *trainer, size_t begin, size_t end);
DML_API dml_status dml_trainer_advance(dml_trainer *trainer);

/* The Euclidean norm of g: after an update with clip_norm, what it was before it was scaled. Summed in a
   fixed order, so the same for any number of threads. NaN, with the error recorded, where a step would be
   refused, and where there is no gradient: after a backward pass that failed, and, without clip_norm, after
   an update by LARS or LAMB, which use it up, and after dml_trainer_swap_average. It waits for the device,
   and, under a strategy where each rank owns a range of g, for the other ranks, which all ask too. */
DML_API float dml_trainer_gradient_norm(dml_trainer *trainer);

/* Exchanges the trained parameters with their moving average (options.average), to evaluate or save the model
   with it; the next call exchanges them back. In between an update, a checkpoint and a strategy are refused
   with DML_ERROR_STATE, and so is this before the first update. g is used on the way and lost.
   DML_ERROR_ARGUMENT for a trainer without an average. */
DML_API dml_status dml_trainer_swap_average(dml_trainer *trainer);

DML_API dml_program *dml_trainer_program(dml_trainer *trainer);
DML_API dml_context *dml_trainer_context(const dml_trainer *trainer);

/* Steps taken, those before a checkpoint included. */
DML_API uint64_t dml_trainer_steps(const dml_trainer *trainer);

/* The loss scale of the steps to come, 1 where there is none; and how many steps have been skipped for it,
   those before a checkpoint included: dml_trainer_steps and they together are what the run has had of its
   data. */
DML_API float dml_trainer_loss_scale(const dml_trainer *trainer);
DML_API uint64_t dml_trainer_skipped(const dml_trainer *trainer);

/* The learning rate of the steps to come: 0 or more, else DML_ERROR_ARGUMENT is recorded. A trainer that
   follows a schedule can't be told one: DML_ERROR_STATE is recorded. Under a strategy that combines gradients
   it is the same on all ranks, else their next step is DML_ERROR_MISMATCH. */
DML_API float dml_trainer_lr(const dml_trainer *trainer);
DML_API void dml_trainer_set_lr(dml_trainer *trainer, float lr);

/* The flat vectors. Every parameter lies in one vector, the graph's w (graph/weights.h). The gradient of each
   trained one lies at the same place of another, and the optimizer's state in vectors of that length. */
enum {
    DML_PARAMETERS,
    DML_GRADIENTS,
    DML_OPTIMIZER_STATE /* the first; + i for the next; then the average */
};

/* How many elements a vector has, and how many vectors there are. */
DML_API size_t dml_trainer_count(const dml_trainer *trainer, int vector);
DML_API int dml_trainer_vectors(const dml_trainer *trainer);

/* Elements [begin, end) of a vector, on the host: the vector itself where the device shares the host's
   memory, else a copy that dml_trainer_put brings back to the device after a change. dml_trainer_get brings
   the copy up to date first; dml_trainer_host gives it as it was left. Both return NULL, with the error
   recorded, for a range or vector that isn't there, and dml_trainer_get for what only other ranks have
   (dml_trainer_gather). None of them allocates. */
DML_API float *dml_trainer_get(dml_trainer *trainer, int vector, size_t begin, size_t end);
DML_API float *dml_trainer_host(dml_trainer *trainer, int vector, size_t begin, size_t end);
DML_API dml_status dml_trainer_put(dml_trainer *trainer, int vector, size_t begin, size_t end);

/* A sync strategy: what happens to ranges of g and w at the moments of a distributed step. Each function may
   be NULL and returns a status; the first that is not DML_OK ends the step. A strategy records its own error
   sentence with dml_trainer_fail. After a failure the next step may come all the same. */
typedef struct dml_sync {
    void *state;
    /* Once, when dml_trainer_sync attaches it: make all ranks' parameters the same. */
    dml_status (*start)(void *state, dml_trainer *trainer);
    /* Before forward. A strategy that combines gradients (`ready` or `finish`) sees in g sums over samples,
       not means, times a factor if there is a loss scale, so that shards of any sizes add up; `samples` is
       how many this rank's part of the sum stands for (not whole when ranks share what was summed before). */
    dml_status (*begin)(void *state, dml_trainer *trainer, double samples);
    /* During backward, from the end of g towards its start: g[begin, end) is final, this rank's sum. The
       ranges depend on the model alone: ranks without samples see them too. */
    dml_status (*ready)(void *state, dml_trainer *trainer, size_t begin, size_t end);
    /* After backward: when it returns, g holds the sum over all ranks, and *samples, which begins as this
       rank's, how many samples that stands for. The trainer makes their mean of it. */
    dml_status (*finish)(void *state, dml_trainer *trainer, double *samples);
    /* Instead of the rest, when anything has failed from begin to finish, these included: when it returns,
       nothing of the strategy's reads or writes g any more. */
    void (*failed)(void *state, dml_trainer *trainer);
    /* After the update of w, and after the step is counted. */
    dml_status (*updated)(void *state, dml_trainer *trainer);
    /* When the trainer is destroyed or another strategy is attached. */
    void (*destroy)(void *state, dml_trainer *trainer);
    int ranks, rank; /* how many combine their gradients, 0: 1; which of them this is, from 0 */
    /* During forward and backward, between the calls of `ready`: values[i] = the sum of values[i] over all
       ranks, the same bits on each. All of them call it in the same places, also those without samples. For
       layers that ask for it, such as a batch norm over all ranks; NULL: a model with one is refused where
       there are several ranks. */
    dml_status (*all_reduce)(void *state, dml_trainer *trainer, double *values, size_t count);
    /* Instead of the optimizer's step over the whole of w, when g is the mean, and clipped: the strategy
       makes w follow it, by dml_trainer_update_range for what is this rank's to update, or elsewhere (on a
       server) and dml_trainer_put. The caller's own dml_trainer_update_range is then refused. Not called for
       a step that is skipped for its loss scale. NULL: the optimizer's step. */
    dml_status (*update)(void *state, dml_trainer *trainer);
    /* Before and after an op of the model runs, in forward and again in backward, for each range of w with
       trained parameters that it reads: w[begin, end) has to be right in between. The calls depend on the
       model alone: ranks without samples get them too, and so do passes with DML_MORE. A step fails in
       between without `used`. Frozen parameters are never among them. */
    dml_status (*use)(void *state, dml_trainer *trainer, size_t begin, size_t end);
    dml_status (*used)(void *state, dml_trainer *trainer, size_t begin, size_t end);
    /* For dml_trainer_gather: makes every vector but g whole on this rank. A strategy that calls
       dml_trainer_own or dml_trainer_forget has one. */
    dml_status (*gather)(void *state, dml_trainer *trainer);
    /* The strategy goes on from what the trainer had in `start`, which it keeps elsewhere: dml_trainer_load
       and dml_lr_finder_begin are refused as long as it is attached. */
    bool keeps;
} dml_sync;

/* Attaches a strategy, which the trainer then owns, in the place of the one it has, and starts it; g is no
   gradient any more until the next backward pass. On failure the strategy is destroyed. DML_ERROR_STATE
   during a search for learning rates, or while the average is in w's place. When the call can't begin (the
   context has an error, or another thread is in it), the one that was attached stays. */
DML_API dml_status dml_trainer_sync(dml_trainer *trainer, dml_sync sync);

/* Under a strategy that spreads vectors over the ranks (dml_zero_sync), no rank has all of them, and what
   would need them is refused with DML_ERROR_STATE, also on a rank whose part happens to be everything:
   predicting, reading and saving w, checkpoints, dml_trainer_swap_average, dml_lr_finder_begin. This makes
   all but g whole, on every rank, until the next step; all ranks call it, between steps. Under any other
   strategy: waits for what the last step has left on its way (dml_all_reduce_sync_options.across_steps), if
   anything. */
DML_API dml_status dml_trainer_gather(dml_trainer *trainer);

/* For strategies, in `start`: of the combined gradient this rank will have the range [begin, end) alone.
   After `finish`, g need hold the sum over all ranks only there; what the trainer does to g (the mean,
   clipping, adding to it) it does there, and what it looks for in all of g (its norm, an overflow) it adds up
   by `all_reduce`. Updates are of parts of this range, and so are then the optimizer's state and the average
   right only there. DML_ERROR_ARGUMENT for a range that isn't there, and for one that cuts a parameter under
   LARS or LAMB; DML_ERROR_UNSUPPORTED without `all_reduce` or `gather`. The ranges of all ranks make up g.
   Until this is called, and for the next strategy, it is everything. */
DML_API dml_status dml_trainer_own(dml_trainer *trainer, size_t begin, size_t end);

/* That range; either place may be NULL. */
DML_API void dml_trainer_owned(const dml_trainer *trainer, size_t *begin, size_t *end);

/* For strategies: elements [begin, end) of a vector's trained part are other ranks' from now on, and 0 here.
   Where ranks own parts all of them call it together, one that owns everything with an empty range.
   On the CPU, with memory by malloc on Linux, they take none until they are written again; elsewhere they
   take what they took. */
DML_API dml_status dml_trainer_forget(dml_trainer *trainer, int vector, size_t begin, size_t end);

/* For strategies: records the error on the trainer's context if it has none; returns `status`. */
DML_API dml_status dml_trainer_fail(dml_trainer *trainer, dml_status status, const char *format, ...)
    DML__PRINTF(3, 4);

/* For strategies and checkpoints: what of a run has to be the same on all ranks, and to come back, beside its
   vectors. */
typedef struct dml_trainer_run {
    dml_optimizer optimizer;
    uint64_t seed, steps;  /* the context's; taken */
    float loss_scale;      /* of a trainer that scales, else 0; */
    uint64_t scaled_steps; /* steps with it since it changed or one was skipped */
    uint64_t skipped;      /* steps, for it */
} dml_trainer_run;

DML_API dml_trainer_run dml_trainer_get_run(const dml_trainer *trainer);

/* DML_ERROR_ARGUMENT for an optimizer that can't be, or that keeps other state than the trainer's, and for a
   loss scale that can't be: nothing is changed then. A loss scale of 0, or one for a trainer that doesn't
   scale, leaves that as it is. */
DML_API dml_status dml_trainer_set_run(dml_trainer *trainer, const dml_trainer_run *run);

#endif
