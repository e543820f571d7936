#ifndef DML_TRAIN_UPDATE_ROWS_C
#define DML_TRAIN_UPDATE_ROWS_C

#include "train/update_rows.h"

#include "kernels/blocks.h"

#include <string.h>

#define DML__UPDATE_STRIP 256   /* elements of short rows that are updated together */
#define DML__UPDATE_LONG_ROW 16 /* one by itself */
#define DML__UPDATE_AHEAD 16    /* rows that are asked for: they are anywhere in memory */

typedef struct dml__update_strip {
    size_t count, at[DML__UPDATE_STRIP]; /* elements of the parameter */
} dml__update_strip;

static void dml__update_strip_of(const dml__rows_update *update, dml__update_strip *strip)
{
    float w[DML__UPDATE_STRIP], g[DML__UPDATE_STRIP], kept[DML__UPDATE_STATES][DML__UPDATE_STRIP];
    float *state[DML__UPDATE_STATES];
    for (int s = 0; s < DML__UPDATE_STATES; s++) {
        state[s] = update->state[s] ? kept[s] : NULL;
        for (size_t i = 0; state[s] && i < strip->count; i++) kept[s][i] = update->state[s][strip->at[i]];
    }
    for (size_t i = 0; i < strip->count; i++) {
        w[i] = update->w[strip->at[i]];
        g[i] = update->g[strip->at[i]];
    }
    dml__update_by(update->rule, NULL, strip->count, w, g, state, update->number);
    for (size_t i = 0; i < strip->count; i++) update->w[strip->at[i]] = w[i];
    for (int s = 0; s < DML__UPDATE_STATES; s++)
        for (size_t i = 0; state[s] && i < strip->count; i++) update->state[s][strip->at[i]] = kept[s][i];
    strip->count = 0;
}

static bool dml__row_is_zero(const float *g, size_t width)
{
    size_t i = 0;
    while (i < width && g[i] == 0.0f) i++;
    return i == width;
}

static void dml__update_long_row(const dml__rows_update *update, size_t begin, size_t end)
{
    float *state[DML__UPDATE_STATES];
    for (int s = 0; s < DML__UPDATE_STATES; s++)
        state[s] = update->state[s] ? update->state[s] + begin : NULL;
    dml__update_by(update->rule, NULL, end - begin, update->w + begin, update->g + begin, state,
                   update->number);
}

static void dml__ask_for_row(const dml__rows_update *update, size_t row)
{
    const size_t at = row * update->width;
    DML__PREFETCH(update->g + at);
    DML__PREFETCH(update->w + at);
    for (int s = 0; s < DML__UPDATE_STATES; s++)
        if (update->state[s]) DML__PREFETCH(update->state[s] + at);
}

static void dml__update_rows_task(void *argument, int task, int worker)
{
    const dml__rows_update *update = (const dml__rows_update *)argument;
    const size_t each = dml__items_per_task(update->width), width = update->width;
    const size_t first = (size_t)task * each, last = dml__minimum(first + each, update->count);
    dml__update_strip strip;
    strip.count = 0;
    (void)worker;
    for (size_t r = first; r < last; r++) {
        const size_t row = update->row ? (size_t)update->row[r] : r;
        size_t at = row * width;
        if (update->row && r + DML__UPDATE_AHEAD < last)
            dml__ask_for_row(update, (size_t)update->row[r + DML__UPDATE_AHEAD]);
        const size_t end = dml__minimum(at + width, update->end);
        if (dml__row_is_zero(update->g + at, width)) continue;
        if (at < update->begin) at = update->begin;
        if (at >= end) continue;
        if (width >= DML__UPDATE_LONG_ROW) {
            dml__update_long_row(update, at, end);
            continue;
        }
        if (strip.count + width > DML__UPDATE_STRIP) dml__update_strip_of(update, &strip);
        while (at < end) strip.at[strip.count++] = at++;
    }
    if (strip.count) dml__update_strip_of(update, &strip);
}

DML__LOCAL void dml__update_rows(dml_pool *pool, const dml__rows_update *update)
{
    dml__rows_update copy = *update;
    const size_t tasks = dml__divide_up(update->count, dml__items_per_task(update->width));
    dml_pool_run(tasks > 1 ? pool : NULL, (int)tasks, dml__update_rows_task, &copy);
}

#endif
