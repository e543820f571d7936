#ifndef DML_TRAIN_SCHEDULE_C
#define DML_TRAIN_SCHEDULE_C

#include "train/schedule.h"

#include "train/schedule_internal.h"

#include <math.h>
#include <string.h>

static dml_schedule dml__schedule_of(dml_schedule_kind kind, float lr, uint64_t steps)
{
    dml_schedule schedule;
    memset(&schedule, 0, sizeof schedule);
    schedule.kind = kind;
    schedule.lr = lr;
    schedule.steps = steps;
    return schedule;
}

DML_API dml_schedule dml_schedule_constant(float lr)
{
    return dml__schedule_of(DML_SCHEDULE_CONSTANT, lr, 0);
}

DML_API dml_schedule dml_schedule_step(float lr, uint64_t every, float factor)
{
    dml_schedule schedule = dml__schedule_of(DML_SCHEDULE_STEP, lr, every);
    schedule.factor = factor;
    return schedule;
}

DML_API dml_schedule dml_schedule_exponential(float lr, float factor)
{
    dml_schedule schedule = dml__schedule_of(DML_SCHEDULE_EXPONENTIAL, lr, 0);
    schedule.factor = factor;
    return schedule;
}

DML_API dml_schedule dml_schedule_cosine(float lr, uint64_t steps, float minimum)
{
    dml_schedule schedule = dml__schedule_of(DML_SCHEDULE_COSINE, lr, steps);
    schedule.minimum = minimum;
    return schedule;
}

DML_API dml_schedule dml_schedule_linear(float lr, uint64_t steps, float minimum)
{
    dml_schedule schedule = dml__schedule_of(DML_SCHEDULE_POLYNOMIAL, lr, steps);
    schedule.minimum = minimum;
    return schedule;
}

DML_API dml_schedule dml_schedule_polynomial(float lr, uint64_t steps, float power)
{
    dml_schedule schedule = dml__schedule_of(DML_SCHEDULE_POLYNOMIAL, lr, steps);
    schedule.power = power;
    return schedule;
}

DML_API dml_schedule dml_schedule_one_cycle(float highest, uint64_t steps)
{
    return dml__schedule_of(DML_SCHEDULE_ONE_CYCLE, highest, steps);
}

DML_API dml_schedule dml_schedule_warm_up(dml_schedule schedule, uint64_t steps, float from)
{
    schedule.warm_up = steps;
    schedule.warm_up_from = from;
    return schedule;
}

static bool dml__in_range(float value, float most)
{
    return value >= 0.0f && value <= most; /* a NaN isn't */
}

DML__LOCAL dml_status dml__check_schedule(const dml_schedule *s, dml__error *error)
{
    const struct {
        const char *name;
        float value, most;
    } numbers[] = { { "lr", s->lr, 1e6f },           { "factor", s->factor, 1e6f },
                    { "minimum", s->minimum, 1e6f }, { "power", s->power, 1e6f },
                    { "rise", s->rise, 1.0f },       { "start", s->start, 1e9f },
                    { "end", s->end, 1e9f },         { "warm_up_from", s->warm_up_from, 1.0f } };
    if ((unsigned)s->kind > DML_SCHEDULE_ONE_CYCLE)
        return dml__fail(error, DML_ERROR_ARGUMENT, "no schedule of kind %d", (int)s->kind);
    if (s->kind == DML_SCHEDULE_NONE) return DML_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!dml__in_range(numbers[i].value, numbers[i].most))
            return dml__fail(error, DML_ERROR_ARGUMENT, "a schedule with %s %g: it must be in 0 .. %g",
                             numbers[i].name, (double)numbers[i].value, (double)numbers[i].most);
    const bool counts = s->kind != DML_SCHEDULE_CONSTANT && s->kind != DML_SCHEDULE_EXPONENTIAL;
    if (counts && s->steps == 0)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a schedule over 0 steps; say in `steps` how many it has%s",
                         s->kind == DML_SCHEDULE_STEP ? " between drops" : "");
    return DML_OK;
}

/* Half a cosine from `from` to `to`. */
static double dml__half_cosine(double from, double to, double part)
{
    const double pi = 3.14159265358979323846;
    return to + (from - to) * (1 + cos(pi * part)) / 2;
}

static double dml__one_cycle_lr(const dml_schedule *s, double step)
{
    const double highest = (double)s->lr, last = (double)s->steps - 1;
    const double start = highest / (s->start > 0 ? (double)s->start : 25);
    const double end = start / (s->end > 0 ? (double)s->end : 1e4);
    const double rise = s->rise > 0 ? (double)s->rise : 0.3;
    const double top = rise * (double)s->steps - 1;
    if (step >= last) return end;
    if (step <= top) return top > 0 ? dml__half_cosine(start, highest, step / top) : highest;
    return dml__half_cosine(highest, end, (step - top) / (last - top));
}

/* 0 stays 0 under an infinite power. */
static double dml__scaled_lr(double lr, double factor, double times)
{
    return lr == 0 ? 0 : lr * pow(factor, times);
}

static double dml__schedule_at(const dml_schedule *s, uint64_t step)
{
    const double lr = (double)s->lr, minimum = (double)s->minimum;
    const double part = step < s->steps ? (double)step / (double)s->steps : 1;
    switch (s->kind) {
    case DML_SCHEDULE_STEP: return dml__scaled_lr(lr, (double)s->factor, (double)(step / s->steps));
    case DML_SCHEDULE_EXPONENTIAL: return dml__scaled_lr(lr, (double)s->factor, (double)step);
    case DML_SCHEDULE_COSINE: return dml__half_cosine(lr, minimum, part);
    case DML_SCHEDULE_POLYNOMIAL:
        return minimum + (lr - minimum) * pow(1 - part, s->power > 0 ? (double)s->power : 1);
    case DML_SCHEDULE_ONE_CYCLE: return dml__one_cycle_lr(s, (double)step);
    default: return lr;
    }
}

DML_API float dml_schedule_lr(const dml_schedule *s, uint64_t step)
{
    if (!s || s->kind == DML_SCHEDULE_NONE || dml__check_schedule(s, NULL) != DML_OK) return NAN;
    double lr;
    if (step < s->warm_up) {
        const double from = (double)s->warm_up_from;
        lr = dml__schedule_at(s, 0) * (from + (1 - from) * ((double)step / (double)s->warm_up));
    } else {
        lr = dml__schedule_at(s, step - s->warm_up);
    }
    return lr < (double)DML__MOST_SCHEDULED_LR ? (float)lr : DML__MOST_SCHEDULED_LR;
}

DML_API float dml_plateau_lr(dml_plateau *p, float measure)
{
    if (!p) return NAN;
    const float margin = p->threshold * (p->best < 0.0f ? -p->best : p->best);
    const bool better = p->rises ? measure > p->best + margin : measure < p->best - margin;
    if (isfinite(measure) && (p->measures == 0 || better)) {
        p->best = measure;
        p->bad = 0;
        p->measures = 1;
    } else if (++p->bad > p->patience) {
        const float lr = p->lr * (p->factor > 0.0f ? p->factor : 0.1f);
        if (p->lr > p->minimum) p->lr = lr > p->minimum ? lr : p->minimum;
        p->bad = 0;
    }
    return p->lr;
}

#endif
