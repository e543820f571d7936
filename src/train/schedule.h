/* schedule.h: learning rates that change during training. */
#ifndef DML_TRAIN_SCHEDULE_H
#define DML_TRAIN_SCHEDULE_H

#include "base/platform.h"
#include "base/status.h"

typedef enum dml_schedule_kind {
    DML_SCHEDULE_NONE, /* a trainer that follows none keeps the learning rate it is told */
    DML_SCHEDULE_CONSTANT,
    DML_SCHEDULE_STEP,
    DML_SCHEDULE_EXPONENTIAL,
    DML_SCHEDULE_COSINE,
    DML_SCHEDULE_POLYNOMIAL,
    DML_SCHEDULE_ONE_CYCLE
} dml_schedule_kind;

/* A schedule is a function of the step alone, so nothing of it is in a checkpoint. Fields that a kind doesn't
   name are ignored; warm-up goes before any. */
typedef struct dml_schedule {
    dml_schedule_kind kind;
    float lr;           /* where it begins, after the warm-up; one-cycle: the highest */
    uint64_t steps;     /* step: between drops; cosine, polynomial, one-cycle: how many until its end */
    float factor;       /* step, exponential: what each drop, or each step, leaves of it */
    float minimum;      /* cosine, polynomial: where it ends, and stays */
    float power;        /* polynomial; 0: 1, a straight line */
    float rise;         /* one-cycle: the part of its steps that goes up; 0: 0.3 */
    float start, end;   /* one-cycle: it begins at lr / start and ends at lr / start / end; 0: 25 and 10000 */
    uint64_t warm_up;   /* so many steps go up in a line from warm_up_from times the first learning rate, then
                           the rest begins */
    float warm_up_from; /* 0 .. 1 */
} dml_schedule;

/* With the step s counted from 0, after any warm-up, and S = steps:
       constant      lr
       step          lr factor^(s / S rounded down)
       exponential   lr factor^s
       cosine        minimum + (lr - minimum) (1 + cos(pi s / S)) / 2
       polynomial    minimum + (lr - minimum) (1 - s / S)^power
       one-cycle     from lr / start up to lr in rise S - 1 steps, and down to lr / start / end at step S - 1,
                     each along half a cosine
   as PyTorch's StepLR, ExponentialLR, CosineAnnealingLR (once), PolynomialLR and OneCycleLR, and SequentialLR
   with LinearLR before them, have it. Sources: Loshchilov, Hutter, "SGDR", ICLR 2017, without restarts;
   Smith, Topin, "Super-convergence", 2018. */
DML_API dml_schedule dml_schedule_constant(float lr);
DML_API dml_schedule dml_schedule_step(float lr, uint64_t every, float factor);
DML_API dml_schedule dml_schedule_exponential(float lr, float factor);
DML_API dml_schedule dml_schedule_cosine(float lr, uint64_t steps, float minimum);
DML_API dml_schedule dml_schedule_linear(float lr, uint64_t steps, float minimum);
DML_API dml_schedule dml_schedule_polynomial(float lr, uint64_t steps, float power);
DML_API dml_schedule dml_schedule_one_cycle(float highest, uint64_t steps);

/* The same with a warm-up of that many steps in front, which replaces one that it has already. */
DML_API dml_schedule dml_schedule_warm_up(dml_schedule schedule, uint64_t steps, float from);

/* The learning rate of a step, from 0 on, and never above 1e6; NaN for a schedule that can't be. */
DML_API float dml_schedule_lr(const dml_schedule *schedule, uint64_t step);

/* A learning rate that drops when a measure, such as a validation loss, gets no better; for
   dml_trainer_set_lr. The fields but `lr` may be 0; the last two are its memory, and begin as 0. */
typedef struct dml_plateau {
    float lr;        /* now */
    float factor;    /* what a drop leaves of it; 0: 0.1 */
    float minimum;   /* it doesn't drop below */
    int patience;    /* so many bad measures in a row are let pass; 0: none */
    float threshold; /* better by this part of the best, at least, is better; 0: any is */
    bool rises;      /* larger measures are better, as of an accuracy */
    int measures, bad;
    float best;
} dml_plateau;

/* Takes a measure into account and returns the learning rate from then on. One that isn't finite is bad.
   Source: PyTorch's ReduceLROnPlateau with a relative threshold and no cooldown. Of several
   ranks each must be given the same measure: the mean of theirs. */
DML_API float dml_plateau_lr(dml_plateau *plateau, float measure);

#endif
