#ifndef DML_TRAIN_LR_FINDER_C
#define DML_TRAIN_LR_FINDER_C

#include "train/lr_finder.h"

#include "base/json.h"
#include "base/memory.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <string.h>

#define DML__MOST_FINDER_STEPS 1000000
#define DML__FINDER_DEVIATIONS 4 /* of the noise, by which a loss must fall to tell anything */

struct dml_lr_finder {
    dml__owned owned; /* first: the context destroys through it */
    dml_trainer *trainer;
    dml_context *context;
    dml_lr_finder_options options;
    dml_lr_point *points; /* (options.steps) */
    int count;
    double average; /* of the losses, before it is freed from its beginning at 0 */
    float smallest; /* of the smoothed ones */
    /* What the trainer was. */
    float *vector[DML__MAX_VECTORS]; /* but for g */
    dml_trainer_run run;
    uint32_t passes;
};

static void dml__lr_finder_release(dml_lr_finder *finder)
{
    dml__memory *memory = &finder->context->memory;
    for (int v = 0; v < DML__MAX_VECTORS; v++) dml__release(memory, finder->vector[v]);
    dml__release(memory, finder->points);
    dml__release(memory, finder);
}

static void dml__lr_finder_destroy_owned(dml__owned *owned)
{
    dml_lr_finder *finder = (dml_lr_finder *)(void *)owned;
    dml__disown(finder->context, owned);
    dml__lr_finder_release(finder);
}

static dml_status dml__complete_finder(dml_lr_finder_options *o, dml__error *error)
{
    if (o->first == 0.0f) o->first = 1e-7f;
    if (o->last == 0.0f) o->last = 10.0f;
    if (o->steps == 0) o->steps = 100;
    if (o->smoothing == 0.0f) o->smoothing = 0.98f;
    if (o->diverges == 0.0f) o->diverges = 4.0f;
    if (!(o->first > 0.0f && o->first < o->last && o->last <= DML__MAX_LR))
        return dml__fail(
            error, DML_ERROR_ARGUMENT,
            "a search for learning rates from %g to %g asked for: they must grow, above 0, to %g "
            "at most",
            (double)o->first, (double)o->last, (double)DML__MAX_LR);
    if (o->steps < 2 || o->steps > DML__MOST_FINDER_STEPS)
        return dml__fail(error, DML_ERROR_ARGUMENT,
                         "a search for learning rates in %d steps asked for; it takes 2 to %d", o->steps,
                         DML__MOST_FINDER_STEPS);
    if (o->smoothing > 0.0f && o->smoothing < 1.0f && o->diverges > 1.0f) return DML_OK;
    return dml__fail(error, DML_ERROR_ARGUMENT,
                     "a search for learning rates with smoothing %g, that diverges at %g times the smallest "
                     "loss: the one must be below 1, the other above",
                     (double)o->smoothing, (double)o->diverges);
}

/* Rate number i. */
static float dml__finder_lr(const dml_lr_finder_options *o, int i)
{
    const double part = (double)i / (o->steps - 1);
    return (float)((double)o->first * pow((double)o->last / (double)o->first, part));
}

static dml_status dml__keep_trainer(dml_lr_finder *finder)
{
    dml_trainer *trainer = finder->trainer;
    dml_context *context = finder->context;
    for (int v = 0; v < trainer->vectors; v++) {
        const size_t n = dml_trainer_count(trainer, v);
        if (v == DML_GRADIENTS) continue;
        finder->vector[v] = (float *)dml__allocate_array(&context->memory, n, sizeof(float));
        if (!finder->vector[v])
            return dml__fail(&context->error, DML_ERROR_MEMORY,
                             "no memory left for a search for learning rates: a copy of %zu numbers", n);
        const bool whole = dml__check_whole_here(trainer, v) == DML_OK;
        const float *from = whole ? dml_trainer_get(trainer, v, 0, n) : NULL;
        if (!from) return context->error.status;
        memcpy(finder->vector[v], from, n * sizeof(float));
    }
    finder->run = dml_trainer_get_run(trainer);
    finder->passes = trainer->passes;
    return DML_OK;
}

static dml_lr_finder *dml__lr_finder_begin_in(dml_trainer *trainer, const dml_lr_finder_options *options)
{
    dml_context *context = trainer->context;
    dml_lr_finder_options o = *options;
    if (context->error.status != DML_OK || dml__complete_finder(&o, &context->error) != DML_OK ||
        dml__check_not_swapped(trainer) != DML_OK || dml__check_whole(trainer) != DML_OK)
        return NULL;
    if (trainer->sync.keeps) {
        dml__fail(
            &context->error, DML_ERROR_STATE,
            "a search for learning rates can't be taken back now, since the sync strategy keeps what it was "
            "given (on servers, or in an outer optimizer): search before the strategy is attached");
        return NULL;
    }
    if (trainer->searched) {
        dml__fail(&context->error, DML_ERROR_STATE,
                  "a second search for learning rates on a trainer: end the first with dml_lr_finder_end");
        return NULL;
    }
    dml_lr_finder *finder = (dml_lr_finder *)dml__allocate(&context->memory, sizeof *finder);
    if (!finder) {
        dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for a search for learning rates");
        return NULL;
    }
    finder->trainer = trainer;
    finder->context = context;
    finder->options = o;
    dml_status status = dml__keep_trainer(finder);
    finder->points =
        (dml_lr_point *)dml__allocate_array(&context->memory, (size_t)o.steps, sizeof(dml_lr_point));
    if (status == DML_OK && !finder->points)
        status =
            dml__fail(&context->error, DML_ERROR_MEMORY, "no memory left for %d learning rates", o.steps);
    if (status != DML_OK) {
        dml__lr_finder_release(finder);
        return NULL;
    }
    trainer->searched = true;
    dml__own(context, &finder->owned, dml__lr_finder_destroy_owned);
    trainer->optimizer.lr = dml__finder_lr(&o, 0);
    return finder;
}

DML_API dml_lr_finder *dml_lr_finder_begin(dml_trainer *trainer, const dml_lr_finder_options *options)
{
    if (!trainer) return NULL;
    const dml__entry entry = dml__enter(trainer->context);
    if (entry == DML__REFUSED) return NULL;
    dml_lr_finder_options none;
    memset(&none, 0, sizeof none);
    dml_lr_finder *finder = dml__lr_finder_begin_in(trainer, options ? options : &none);
    dml__leave(trainer->context, entry);
    return finder;
}

DML_API bool dml_lr_finder_step(dml_lr_finder *finder, float loss)
{
    if (!finder || finder->count == finder->options.steps || !isfinite(loss)) return false;
    const dml_lr_finder_options *o = &finder->options;
    const double keep = (double)o->smoothing;
    dml_lr_point *point = &finder->points[finder->count];
    finder->average = keep * finder->average + (1 - keep) * (double)loss;
    point->lr = dml__finder_lr(o, finder->count++);
    point->loss = loss;
    point->smoothed = (float)(finder->average / (1 - pow(keep, finder->count)));
    const bool diverges = finder->count > 1 && (double)point->smoothed - (double)finder->smallest >
                                                   ((double)o->diverges - 1) * fabs((double)finder->smallest);
    if (finder->count == 1 || point->smoothed < finder->smallest) finder->smallest = point->smoothed;
    if (diverges || finder->count == o->steps) return false;
    finder->trainer->optimizer.lr = dml__finder_lr(o, finder->count);
    return true;
}

DML_API const dml_lr_point *dml_lr_finder_points(const dml_lr_finder *finder, int *count)
{
    if (count) *count = finder ? finder->count : 0;
    return finder && finder->count ? finder->points : NULL;
}

/* How far apart smoothed losses may lie by chance: of the losses, the mean change from one to the next is
   2 / sqrt(pi) of their deviation, of which smoothing leaves sqrt((1 - k) / (1 + k)), and of the first few
   their root. The first half of the points counts, before rates are so high that losses jump by themselves.
 */
static double dml__finder_noise(const dml_lr_finder *finder)
{
    const double k = (double)finder->options.smoothing;
    const int half = finder->count / 2;
    double change = 0;
    for (int i = 1; i < half; i++)
        change += fabs((double)finder->points[i].loss - (double)finder->points[i - 1].loss);
    const double deviation = half > 1 ? change / (half - 1) * 0.886 : 0;
    const double left = sqrt((1 - k) / (1 + k)), few = sqrt(1.0 / (finder->count / 10 + 1));
    return deviation * (left > few ? left : few);
}

DML_API dml_status dml_lr_finder_suggest(const dml_lr_finder *finder, dml_lr_suggestion *suggestion)
{
    if (suggestion) memset(suggestion, 0, sizeof *suggestion);
    if (!finder) return DML_ERROR_ARGUMENT;
    dml__error *error = &finder->context->error;
    if (!suggestion) return dml__fail_null(error, "dml_lr_finder_suggest", "place for the suggestion");
    const int begin = finder->count / 10, end = finder->count >= 15 ? finder->count - 5 : finder->count;
    if (end - begin < 3)
        return dml__fail(error, DML_ERROR_STATE,
                         "a learning rate asked for after %d steps of the search, which are too few; did the "
                         "loss diverge at the first rate, %g?",
                         finder->count, (double)finder->options.first);
    const dml_lr_point *p = finder->points;
    int steepest = -1, smallest = begin;
    for (int i = begin; i < end; i++) {
        if (p[i].smoothed < p[smallest].smoothed) smallest = i;
        if (i + 1 == end || p[i + 1].smoothed >= p[i].smoothed) continue;
        if (steepest < 0 ||
            p[i + 1].smoothed - p[i].smoothed < p[steepest + 1].smoothed - p[steepest].smoothed)
            steepest = i;
    }
    double highest = 0;
    for (int i = begin; i <= smallest; i++)
        if ((double)p[i].smoothed > highest) highest = (double)p[i].smoothed;
    const double fall = highest - (double)p[smallest].smoothed, noise = dml__finder_noise(finder);
    if (steepest >= 0 && fall < DML__FINDER_DEVIATIONS * noise)
        return dml__fail(
            error, DML_ERROR_STATE,
            "a learning rate asked for, but over %d steps the smoothed loss falls by %.3g, which may "
            "be chance where single losses differ as these do (by chance %.3g): search with larger "
            "batches or more steps, or before the model is trained",
            finder->count, fall, noise);
    suggestion->steepest = steepest < 0 ? 0.0f : p[steepest].lr;
    suggestion->minimum = p[smallest].lr / 10;
    return DML_OK;
}

#ifndef DML_NO_STDIO
DML_API dml_status dml_lr_finder_log(const dml_lr_finder *finder, FILE *file)
{
    if (!finder) return DML_ERROR_ARGUMENT;
    dml__error *error = &finder->context->error;
    if (!file) return dml__fail_null(error, "dml_lr_finder_log", "file");
    for (int i = 0; i < finder->count; i++) {
        char loss[DML__NUMBER_BYTES], smoothed[DML__NUMBER_BYTES], lr[DML__NUMBER_BYTES];
        dml__write_real(finder->points[i].loss, loss);
        dml__write_real(finder->points[i].smoothed, smoothed);
        dml__write_real(finder->points[i].lr, lr);
        fprintf(file, "{\"step\":%d,\"loss\":%s,\"smoothed\":%s,\"lr\":%s}\n", i + 1, loss, smoothed, lr);
    }
    if (fflush(file) == 0 && !ferror(file)) return DML_OK;
    return dml__fail(error, DML_ERROR_IO, "can't write the log of a search for learning rates");
}
#endif

static dml_status dml__bring_back(dml_lr_finder *finder)
{
    dml_trainer *trainer = finder->trainer;
    dml_status status = DML_OK;
    for (int v = 0; v < trainer->vectors && status == DML_OK; v++) {
        const size_t n = dml_trainer_count(trainer, v);
        if (v == DML_GRADIENTS || n == 0) continue;
        memcpy(dml_trainer_host(trainer, v, 0, n), finder->vector[v], n * sizeof(float));
        status = dml_trainer_put(trainer, v, 0, n);
    }
    trainer->optimizer = finder->run.optimizer;
    trainer->runs++;
    trainer->steps = finder->run.steps;
    trainer->loss_scale = finder->run.loss_scale;
    trainer->scaled_steps = finder->run.scaled_steps;
    trainer->skipped = finder->run.skipped;
    trainer->passes = finder->passes;
    trainer->held = 0;
    trainer->pending = trainer->clipped = trainer->swapped = false;
    trainer->spoiled = true;
    return status;
}

DML_API dml_status dml_lr_finder_end(dml_lr_finder *finder)
{
    if (!finder) return DML_OK;
    dml_context *context = finder->context;
    dml_graph *graph = finder->trainer->program->graph;
    const dml__entry entry = dml__enter(context);
    if (entry == DML__REFUSED) return DML_ERROR_STATE;
    dml_status status = dml__graph_claim_writing(graph);
    if (status == DML_OK) {
        status = dml__bring_back(finder);
        dml__graph_release(graph, false);
        finder->trainer->searched = false;
        dml__lr_finder_destroy_owned(&finder->owned);
    }
    dml__leave(context, entry);
    return status;
}

#endif
