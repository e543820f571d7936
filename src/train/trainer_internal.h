/* trainer_internal.h: what a trainer is made of, for checkpoints. */
#ifndef DML_TRAIN_TRAINER_INTERNAL_H
#define DML_TRAIN_TRAINER_INTERNAL_H

#include "device/context_internal.h"
#include "graph/node.h"
#include "graph/program_internal.h"
#include "train/optimizer_internal.h"
#include "train/trainer.h"

#define DML__MAX_VECTORS (DML_OPTIMIZER_STATE + DML__MAX_STATES + 1)
#define DML__MOST_CLIP 1e30f

/* A strategy's: brings the sums over the ranks of g[begin, end), of which some may have come before, and what
   of g comes along with them, and gives each range to dml__follow_range. */
typedef dml_status (*dml__take_late)(void *state, dml_trainer *trainer, double samples, size_t begin,
                                     size_t end);

/* The update of a step that has ended, while its gradient is still on its way (train/trainer_late.c). */
typedef struct dml__late_update {
    dml__take_late take; /* NULL: there is none */
    void *state;         /* the strategy's */
    size_t left;         /* elements of w that haven't followed */
    double samples;      /* that g is the sum over */
    uint64_t steps;      /* the step's numbers, which the trainer has left behind */
    dml_optimizer optimizer;
} dml__late_update;

enum { DML__MOST_NOTES = 16, DML__NOTE_NAME_BYTES = 48, DML__NOTE_BYTES = 256 };

typedef struct dml__note {
    char name[DML__NOTE_NAME_BYTES], text[DML__NOTE_BYTES]; /* no name: there is none in this place */
} dml__note;

/* What an optimizer that a strategy runs elsewhere (on servers, by other rules than the trainer's) keeps,
   while it is here: gathered for a checkpoint, or read from one and not given back yet. The next step makes
   it out of date. */
typedef struct dml__away {
    const dml__optimizer_row *row; /* NULL: there is nothing */
    int states;
    uint64_t steps; /* updates that it has made */
    float *state;   /* (states, trained parameters) */
} dml__away;

struct dml_trainer {
    dml__owned owned; /* first: the context destroys through it */
    dml_context *context;
    dml_program *program;
    dml_optimizer optimizer;
    const dml__optimizer_row *row;
    dml_buffer *vector[DML__MAX_VECTORS]; /* w is the graph's, g the program's, the states are its own */
    float *mirror[DML__MAX_VECTORS];      /* host copies, where the device has memory of its own; w's is the
                                             graph's */
    bool pin_asked, pinned; /* that of g: whether the device was asked to hold it where it is; does so */
    int states, vectors;    /* the optimizer's; all, with the average, which is the last if there is one */
    uint64_t steps;
    uint64_t runs;   /* how often a run was taken up, or gone back to, which isn't the last step's */
    uint32_t passes; /* of backward, since the last step, or the last that was skipped */
    bool searched;   /* a search for learning rates is on */
    dml_sync sync;
    bool in_sync_update; /* sync.update is running: it may update ranges */
    bool compared;       /* with the other ranks of a model that is cut, since the run was taken up */
    bool begun;          /* between dml__trainer_begin_in and dml__trainer_end_in */
    /* Of the combined gradient this rank has g[own_begin, own_end) alone; and which vectors are right only
       there (w: graph->spread). */
    size_t own_begin, own_end;
    bool has_owners; /* the strategy has said so, on every rank */
    bool spread[DML__MAX_VECTORS];
    /* What g holds: the mean over this many samples of all ranks, or, while `pending`, the sum over this
       rank's. 0: nothing that could be added to. */
    double held;
    bool pending;
    bool spoiled; /* nothing to apply, until a backward pass (that doesn't fail) or dml_trainer_put */
    /* What the first update after a backward pass does to g. */
    float clip_norm, clip_value; /* 0: nothing */
    bool clipped;                /* done */
    float loss_scale;            /* 0: none (train/loss_scale.h) */
    float sum_unit;              /* that strategies count samples in where there is one; 0: 1 */
    bool overflowed;             /* g isn't finite: found out when it would be clipped */
    uint64_t scaled_steps, skipped;
    double norm; /* of g before clip_norm; NaN while only the device knows */
    dml_schedule schedule;
    float average; /* what the moving average keeps; 0: there is none */
    bool *spent; /* (parameters): by an optimizer that uses g up, since it was written; NULL: it is another */
    bool stepping; /* in dml_trainer_step: an update follows */
    bool alone;    /* which nobody has called who is in the context himself */
    bool followed; /* w has followed ranges of g in this step, and the strategy sees to the rest */
    dml__late_update late;
    bool swapped; /* it lies in w, and w in its place */
    dml__away away;
    dml__note *notes;    /* (DML__MOST_NOTES): the program's own, for checkpoints; NULL: none yet */
    dml_buffer *squares; /* partial sums of squares, where the device has memory of its own */
};

static inline dml_ref dml__trainer_ref(const dml_trainer *trainer, int vector, size_t begin)
{
    const dml_ref ref = { trainer->vector[vector], begin * sizeof(float) };
    return ref;
}

/* The weight decay of a parameter is the optimizer's times this: none of one that the loss doesn't depend on,
   whose gradient is zero and which nobody trains here. */
static inline float dml__decay_scale(const dml_trainer *trainer, const dml_node *parameter)
{
    return dml__trains(trainer->program, parameter) ? parameter->decay_scale : 0.0f;
}

/* Steps taken and skipped: what of the data, and of random numbers, the run has had. */
static inline uint64_t dml__trainer_tried(const dml_trainer *trainer)
{
    return trainer->steps + trainer->skipped;
}

/* "velocity", "average": what a vector after w and g is called in files. */
static inline const char *dml__vector_name(const dml_trainer *trainer, int vector)
{
    const int state = vector - DML_OPTIMIZER_STATE;
    return state < trainer->states ? trainer->row->state[state] : "average";
}

/* DML_ERROR_STATE while the average is in the parameters' place, where nothing may count on w. */
DML__LOCAL dml_status dml__check_not_swapped(const dml_trainer *trainer);

/* Exchanges w and its average. */
DML__LOCAL dml_status dml__swap_average_in(dml_trainer *trainer);

/* Whether its ranks' gradients become one: it sees sums over samples, and never a mean. */
static inline bool dml__sync_combines(const dml_sync *sync)
{
    return sync->ready || sync->finish;
}

/* Whether there is one. */
static inline bool dml__sync_attached(const dml_sync *sync)
{
    return dml__sync_combines(sync) || sync->begin || sync->updated || sync->update;
}

/* Whether ranks own parts of the gradient, of which this one's may be all or nothing. */
static inline bool dml__owns_a_part(const dml_trainer *trainer)
{
    return trainer->has_owners;
}

/* Everything is owned. */
DML__LOCAL void dml__own_all(dml_trainer *trainer);

/* DML_ERROR_STATE where elements [begin, end) of the vector are on other ranks alone. */
DML__LOCAL dml_status dml__check_here(const dml_trainer *trainer, int vector, size_t begin, size_t end);

/* The same for the trained part of a vector as a whole, for calls that all ranks must be able to make: also
   where this rank has all of it and others none. */
DML__LOCAL dml_status dml__check_whole_here(dml_trainer *trainer, int vector);

/* DML_ERROR_STATE where a strategy that is gone has left vectors spread. */
DML__LOCAL dml_status dml__check_not_left(const dml_trainer *trainer);

/* DML_ERROR_UNSUPPORTED where the model needs sums over ranks and its strategy has none. */
DML__LOCAL dml_status dml__check_over_ranks(dml_trainer *trainer);

/* Makes the place for notes, if there is none yet; false: no memory. */
DML__LOCAL bool dml__have_notes(dml_trainer *trainer);

/* Memory for away->state, not cleared; false: there is none. And makes `away` (NULL: nothing) the trainer's,
   whose was there is released. */
DML__LOCAL bool dml__away_make(dml_trainer *trainer, dml__away *away);
DML__LOCAL void dml__away_put(dml_trainer *trainer, const dml__away *away);

/* Every vector but g is whole again. */
DML__LOCAL void dml__have_gathered(dml_trainer *trainer);

/* values[i] = the sum over the owners of parts; nothing where this rank owns all. */
DML__LOCAL dml_status dml__sum_over_owners(dml_trainer *trainer, double *values, size_t count);

/* g[begin, end) = 0, without memory if that can be. */
DML__LOCAL dml_status dml__forget_gradient(dml_trainer *trainer, size_t begin, size_t end);

/* g[begin, end) = factor g */
DML__LOCAL dml_status dml__scale_gradient(dml_trainer *trainer, size_t begin, size_t end, double factor);

/* g[begin, end) is a gradient again, which an update may use. */
DML__LOCAL void dml__gradient_written(dml_trainer *trainer, size_t begin, size_t end);

/* The same of values that no backward pass has written. */
DML__LOCAL void dml__gradient_replaced(dml_trainer *trainer, size_t begin, size_t end);

/* dml_trainer_backward, for who is in the context (trainer_backward.c). */
DML__LOCAL dml_status dml__trainer_backward_in(dml_trainer *trainer, int rows, const void *const *inputs,
                                               int count, int flags, float *loss);

/* Around the passes of a step that have their forward halves before: the strategy's `begin`, for all their
   samples, and, where they didn't end well, its `failed`. The passes leave both out. */
DML__LOCAL dml_status dml__trainer_begin_in(dml_trainer *trainer, double samples);
DML__LOCAL void dml__trainer_end_in(dml_trainer *trainer, dml_status status);

/* The forward half of the backward pass that will be the `ahead`-th from now on (0: the next), on inputs that
   dml__program_check has passed. */
DML__LOCAL dml_status dml__trainer_forward_in(dml_trainer *trainer, int rows, const void *const *inputs,
                                              uint32_t ahead);

/* For backward passes that are somebody else's to make: `work` has the context to itself, as
   dml_trainer_backward has. `what` failed where it does so without a word. */
DML__LOCAL dml_status dml__trainer_part(dml_trainer *trainer, dml_status (*work)(void *user), void *user,
                                        const char *what);

/* The norm of g, before it was clipped. DML_ERROR_STATE where g isn't a gradient any more. */
DML__LOCAL dml_status dml__gradient_norm_in(dml_trainer *trainer, double *norm);

/* DML_ERROR_STATE while g waits for more. */
DML__LOCAL dml_status dml__check_whole(const dml_trainer *trainer);

/* Whether g is still a gradient in [begin, end). DML_ERROR_STATE, with what wanted one, where it isn't. */
DML__LOCAL dml_status dml__has_gradient(const dml_trainer *trainer, size_t begin, size_t end,
                                        const char *what);

/* Makes g what an update applies: once after each backward pass, before the first range is updated. Then
   trainer->overflowed says whether the step is skipped. */
DML__LOCAL dml_status dml__begin_update(dml_trainer *trainer, size_t begin, size_t end);

/* DML_ERROR_ARGUMENT where [begin, end) cuts a parameter and the optimizer looks at whole ones. */
DML__LOCAL dml_status dml__check_cuts(const dml_trainer *trainer, size_t begin, size_t end);

/* The optimizer's step for elements [begin, end). */
DML__LOCAL dml_status dml__trainer_update_in(dml_trainer *trainer, size_t begin, size_t end);

/* For strategies, in `finish`: whether w may follow ranges of g before the others have arrived, since this is
   a whole step and nothing looks at all of g first. */
DML__LOCAL bool dml__may_follow(const dml_trainer *trainer);

/* g[begin, end) is where the device has it, a sum over `samples`: makes it the mean, and w follows it. Who
   has begun so goes through all of g before `finish` returns, or later (below). */
DML__LOCAL dml_status dml__follow_range(dml_trainer *trainer, size_t begin, size_t end, double samples);

/* Where w may follow: whether the step may end before it has, and says that it does. `take` is then called
   for what the next step's forward pass is about to read, or for all of g, before anybody but that step can
   tell. */
DML__LOCAL bool dml__may_follow_later(const dml_trainer *trainer);
DML__LOCAL void dml__follow_later(dml_trainer *trainer, double samples, dml__take_late take, void *state);

/* w[begin, end) is what the last step makes of it; an error ends the step. */
DML__LOCAL dml_status dml__take_late_range(dml_trainer *trainer, size_t begin, size_t end);

/* All of w is, or what was left is given up, with the error recorded unless there is one. */
DML__LOCAL void dml__settle_trainer(dml_trainer *trainer);

/* Whether libraries of the device's maker can work on its vectors; where they find what begins with element
   `begin`, and the stream that they queue behind (dml_backend.lend). */
DML__LOCAL bool dml__can_lend(const dml_trainer *trainer);
DML__LOCAL dml_status dml__lend(dml_trainer *trainer, int vector, size_t begin, float **data, void **stream);

/* Elements of g that are final, on their way to the host. */
typedef struct dml__fetch {
    size_t begin, end;
    float *data;  /* (end - begin) they, when they have come: on the host, or where they were lent */
    void *ticket; /* the device's; NULL: they have */
} dml__fetch;

/* For strategies, in `ready`: has g[begin, end) brought to the host behind what the device was given to do.
   It has come at once where the device shares the host's memory, or can only be waited for. */
DML__LOCAL dml_status dml__fetch_start(dml_trainer *trainer, size_t begin, size_t end, dml__fetch *fetch);

/* Whether it has come; with `wait` it has. After a failure the device doesn't write there any more. Nobody
   writes that part of g, on the device or the host, before this says one or the other. */
DML__LOCAL dml_status dml__fetch_end(dml_trainer *trainer, dml__fetch *fetch, bool wait, bool *come);

/* Before its host copy is released. */
DML__LOCAL void dml__unpin_gradient(dml_trainer *trainer);

/* What the program tells the trainer and its strategy while it trains. */
DML__LOCAL void dml__hook_ranks(dml_trainer *trainer);

#endif
