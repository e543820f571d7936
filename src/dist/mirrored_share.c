#ifndef DML_DIST_MIRRORED_SHARE_C
#define DML_DIST_MIRRORED_SHARE_C

#include "dist/mirrored_share.h"

/* Steps that compile kernels and touch memory for the first time say nothing of those to come. */
#define DML__WARM_UP_STEPS 2

#define DML__SPEED_KEEPS 0.95 /* of what was known, at each step */

/* Fewer steps than about this many say too little of a device. */
#define DML__SPEED_LEAST 3

/* Times what was to be expected, that a step counts as: another program that took the processor for a while
   moves no samples, and a device that has become slower is believed after a few steps. One that was that much
   faster is believed at once, since nothing makes it so by accident. */
#define DML__SPEED_MOST 2

/* While a device always gets about as many samples, what of its time is fixed can't be told, and noise would
   decide. So a share of the weight stands for a step of no rows that took no time: it decides then, and says
   that all time goes with the rows; samples that vary by more than about its root soon outweigh it. */
#define DML__SPEED_PRIOR 0.01

/* Least squares. */
DML__LOCAL bool dml__speed_line(const dml__speed *speed, double *fixed, double *each)
{
    const double weight = (1 + DML__SPEED_PRIOR) * speed->weight;
    if (!(speed->weight > 0)) return false;
    *each = (weight * speed->rows_seconds - speed->rows * speed->seconds) /
            (weight * speed->rows_rows - speed->rows * speed->rows);
    *fixed = (speed->seconds - *each * speed->rows) / weight;
    if (*each > 0 && *fixed >= 0) return true;
    *each = speed->seconds / speed->rows;
    *fixed = 0;
    return true;
}

static double dml__seconds_for(const dml__speed *speed, int rows)
{
    double fixed, each;
    return rows > 0 && dml__speed_line(speed, &fixed, &each) ? fixed + each * rows : 0;
}

DML__LOCAL void dml__speed_note(dml__speed *speed, int rows, double seconds)
{
    if (rows < 1 || !(seconds > 0)) return;
    if (++speed->seen <= DML__WARM_UP_STEPS) return;
    const double expected = dml__seconds_for(speed, rows), weight = speed->weight;
    if (expected > 0 && seconds > DML__SPEED_MOST * expected) seconds = DML__SPEED_MOST * expected;
    double *const sums[5] = { &speed->weight, &speed->rows, &speed->seconds, &speed->rows_rows,
                              &speed->rows_seconds };
    const double b = rows, add[5] = { 1, b, seconds, b * b, b * seconds };
    const bool anew = seconds * DML__SPEED_MOST < expected;
    for (int i = 0; i < 5; i++) *sums[i] = DML__SPEED_KEEPS * (anew ? weight * add[i] : *sums[i]) + add[i];
    speed->seen = DML__WARM_UP_STEPS + 1;
}

static void dml__divide_evenly(int rows, int devices, const int *most, int *share)
{
    for (int i = 0; i < devices; i++) {
        const int left = devices - i, part = rows / left + (rows % left != 0);
        share[i] = part < most[i] ? part : most[i];
        rows -= share[i];
    }
    for (int i = 0; i < devices && rows > 0; i++) { /* what had no room further on */
        const int room = most[i] - share[i], more = rows < room ? rows : room;
        share[i] += more;
        rows -= more;
    }
}

/* How many samples a device has done at `time`. */
static int dml__rows_until(const dml__speed *speed, double time, int least, int most)
{
    double fixed, each;
    if (!dml__speed_line(speed, &fixed, &each)) return least;
    const double rows = (time - fixed) / each;
    return rows <= least ? least : rows >= most ? most : (int)rows;
}

/* All end at one time, which is found by halving; the few samples that whole numbers leave over go to whoever
   then ends first. */
static void dml__divide_by_speed(int rows, int devices, const dml__speed *speeds, const int *most, int *share)
{
    const int least = rows >= devices ? 1 : 0;
    double early = 0, late = 0;
    for (int i = 0; i < devices; i++) {
        const double end = dml__seconds_for(&speeds[i], most[i]);
        if (end > late) late = end;
    }
    for (int turn = 0; turn < 50; turn++) {
        const double time = (early + late) / 2;
        int64_t done = 0;
        for (int i = 0; i < devices; i++) done += dml__rows_until(&speeds[i], time, least, most[i]);
        if (done > rows)
            late = time;
        else
            early = time;
    }
    for (int i = 0; i < devices; i++) {
        share[i] = dml__rows_until(&speeds[i], early, least, most[i]);
        rows -= share[i];
    }
    for (; rows > 0; rows--) {
        int first = -1;
        for (int i = 0; i < devices; i++)
            if (share[i] < most[i] && (first < 0 || dml__seconds_for(&speeds[i], share[i] + 1) <
                                                        dml__seconds_for(&speeds[first], share[first] + 1)))
                first = i;
        DML_ASSERT(first >= 0);
        share[first]++;
    }
}

DML__LOCAL void dml__share_rows(int rows, int devices, const dml__speed *speeds, const int *most, int *share)
{
    bool known = speeds != NULL;
    for (int i = 0; i < devices && known; i++) known = speeds[i].weight > DML__SPEED_LEAST;
    if (known)
        dml__divide_by_speed(rows, devices, speeds, most, share);
    else
        dml__divide_evenly(rows, devices, most, share);
}

DML__LOCAL double dml__share_seconds(int devices, const dml__speed *speeds, const int *share)
{
    double last = 0;
    for (int i = 0; i < devices; i++) {
        const double end = dml__seconds_for(&speeds[i], share[i]);
        if (end > last) last = end;
    }
    return last;
}

#endif
