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
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
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
    double largest, temperature;
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
    const double x_of_largest = (double)x - scores->largest; /* NaN: both are infinite */
    return x_of_largest < 0 ? exp(x_of_largest / scores->temperature) : 1;
}

/* Leaves the largest of what is left until they add up to `enough`: of numbers, or of weights. */
static void dml__cut_scores(dml__scores *scores, bool by_weight, double enough)
{
    uint32_t key = 0, known = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        double sum[256] = { 0 };
        int equal = 0, lowest = 255;
        for (int i = 0; i < scores->count; i++) {
            if (!dml__is_left(scores, i, &equal)) continue;
            const uint32_t of_i = dml__score_key(scores->at[i]);
            if ((of_i & known) != key) continue;
            sum[of_i >> shift & 255] += by_weight ? dml__score_weight(scores, scores->at[i]) : 1;
        }
        while (lowest > 0 && (sum[lowest] == 0 || sum[lowest] < enough)) {
            /* (Rounding, and weights of 0, may leave too little: then all are wanted.) */
            bool more = false;
            for (int b = 0; b < lowest; b++) more = more || sum[b] > 0;
            if (!more) break;
            enough -= sum[lowest--];
        }
        key |= (uint32_t)lowest << shift;
        known |= (uint32_t)255 << shift;
    }
    const double each = by_weight ? dml__score_weight(scores, dml__score_of_key(key)) : 1;
    const double equal = each > 0 ? ceil(enough / each) : 1;
    scores->cut.equal = equal < 1 ? 1 : equal < INT_MAX ? (int)equal : INT_MAX;
    scores->cut.key = key;
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
        if ((left -= weight) < 0) break;
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
    scores.largest = -HUGE_VAL;
    scores.temperature = o.temperature > 0 ? (double)o.temperature : 1;
    for (int i = 0; i < count; i++)
        if ((double)logits[i] > scores.largest) scores.largest = (double)logits[i];
    if (!(scores.largest > -HUGE_VAL)) return -1;
    if (o.top_k > 0 && o.top_k < count) dml__cut_scores(&scores, false, o.top_k);
    if (o.top_p > 0 && o.top_p < 1) {
        double all = 0;
        int equal = 0;
        for (int i = 0; i < count; i++)
            if (dml__is_left(&scores, i, &equal)) all += dml__score_weight(&scores, logits[i]);
        dml__cut_scores(&scores, true, (double)o.top_p * all);
    }
    return dml__draw_score(&scores, (double)number);
}

#endif
