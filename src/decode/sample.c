#ifndef DML_DECODE_SAMPLE_C
#define DML_DECODE_SAMPLE_C

#include "decode/sample.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* Without memory for a sorted copy: the smallest that is left is found by four passes over the scores, each
   of which finds eight more bits of it. */

/* In the order of the numbers. */
static uint32_t dml__score_key(float x)
{
    const float plain = x + 0.0f; /* -0 is 0 */
    uint32_t bits;
    memcpy(&bits, &plain, sizeof bits);
    return bits ^ ((0u - (bits >> 31)) | 0x80000000u); /* no branch, since no processor foresees signs */
}

static float dml__score_of_key(uint32_t key)
{
    const uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* What is left: scores above a key, and the first so many of those that have it. */
typedef struct dml__score_cut {
    uint32_t key;
    int equal;
} dml__score_cut;

typedef struct dml__scores {
    const float *at; /* (count) */
    int count;
    float largest, temperature;
    dml__score_cut cut;
} dml__scores;

/* Whether score i is left, for who asks in their order: of `equal` ones it has met. */
static bool dml__is_left(const dml__scores *scores, int i, int *equal)
{
    const float x = scores->at[i];
    if (!(x > -HUGE_VALF)) return false;
    const uint32_t key = dml__score_key(x);
    return key > scores->cut.key || (key == scores->cut.key && (*equal)++ < scores->cut.equal);
}

static double dml__score_weight(const dml__scores *scores, float x)
{
    const float behind = x - scores->largest; /* NaN: both are infinite */
    if (behind == -HUGE_VALF) return 0;
    return behind < 0 ? (double)expf(behind / scores->temperature) : 1;
}

/* The bits of the last key that is left, as far as they are known; and how much there is of each value of the
   next eight. */
typedef struct dml__score_digit {
    uint32_t key, known;
    int shift;
    double sum[256];
} dml__score_digit;

static void dml__sum_scores(const dml__scores *scores, bool by_weight, dml__score_digit *digit)
{
    int equal = 0;
    memset(digit->sum, 0, sizeof digit->sum);
    for (int i = 0; i < scores->count; i++) {
        const uint32_t key = dml__score_key(scores->at[i]);
        if ((key & digit->known) != digit->key || !dml__is_left(scores, i, &equal)) continue;
        digit->sum[key >> digit->shift & 255] += by_weight ? dml__score_weight(scores, scores->at[i]) : 1;
    }
}

/* Leaves the largest of what is left until they add up to `enough`: numbers, or this part of all weights. */
static void dml__cut_scores(dml__scores *scores, bool by_weight, double enough)
{
    dml__score_digit digit = { 0, 0, 24, { 0 } };
    for (; digit.shift >= 0; digit.shift -= 8) {
        int first = 0, at = 255;
        dml__sum_scores(scores, by_weight, &digit);
        if (by_weight && digit.shift == 24) {
            double all = 0;
            for (int i = 0; i < 256; i++) all += digit.sum[i];
            enough *= all;
        }
        while (first < 255 && !(digit.sum[first] > 0)) first++;
        /* (Rounding may leave too little: then all are wanted.) */
        while (at > first && digit.sum[at] < enough) enough -= digit.sum[at--];
        digit.key |= (uint32_t)at << digit.shift;
        digit.known |= (uint32_t)255 << digit.shift;
    }
    const double each = by_weight ? dml__score_weight(scores, dml__score_of_key(digit.key)) : 1;
    const double equal = each > 0 ? ceil(enough / each) : 1;
    scores->cut.equal = equal < 1 ? 1 : equal < INT_MAX ? (int)equal : INT_MAX;
    scores->cut.key = digit.key;
}

/* Where `number` of all that is left falls. */
static int dml__draw_score(const dml__scores *scores, double number)
{
    double sum = 0;
    int equal = 0, drawn = -1;
    for (int i = 0; i < scores->count; i++)
        if (dml__is_left(scores, i, &equal)) sum += dml__score_weight(scores, scores->at[i]);
    double left = number * sum;
    equal = 0;
    for (int i = 0; i < scores->count; i++) {
        if (!dml__is_left(scores, i, &equal)) continue;
        const double weight = dml__score_weight(scores, scores->at[i]);
        if (weight > 0) drawn = i;
        if ((left -= weight) < 0 && drawn >= 0) break;
    }
    return drawn;
}

DML_API int dml_sample(const float *logits, int count, const dml_sample_options *options, float number)
{
    dml_sample_options o;
    dml__scores scores;
    memset(&o, 0, sizeof o);
    memset(&scores, 0, sizeof scores);
    if (options) o = *options;
    if (!logits || !(o.temperature >= 0) || !(o.top_p >= 0) || o.top_k < 0) return -1;
    scores.at = logits;
    scores.count = count;
    scores.largest = -HUGE_VALF;
    scores.temperature = o.temperature > 0 ? o.temperature : 1;
    int best = -1;
    for (int i = 0; i < count; i++)
        if (logits[i] > scores.largest) scores.largest = logits[best = i];
    if (best < 0 || o.top_k == 1) return best;
    if (o.top_k > 0 && o.top_k < count) dml__cut_scores(&scores, false, o.top_k);
    if (o.top_p > 0 && o.top_p < 1) dml__cut_scores(&scores, true, (double)o.top_p);
    return dml__draw_score(&scores, (double)number);
}

#endif
