/* Draws against a sorted copy, and how often each class is drawn. */
#include "decode/sample.h"

#include "base/philox.h"

#include "../test.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 3000 };

typedef struct ranked {
    float logit;
    int at;
} ranked;

static int larger_first(const void *a, const void *b)
{
    const ranked *x = (const ranked *)a, *y = (const ranked *)b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : x->at - y->at;
}

/* The probabilities by the definition: NaN and -infinity are out, the k largest are left, and of those the
   largest until they have top_p. `border`: the sum that the last of them reached is so near to top_p that
   rounding decides. */
static void exact(const float *logits, int count, const dml_sample_options *o, double *p, bool *border)
{
    ranked *order = (ranked *)calloc((size_t)count + 1, sizeof *order);
    const double temperature = o->temperature > 0 ? (double)o->temperature : 1;
    int left = 0;
    for (int i = 0; i < count; i++) {
        p[i] = 0;
        if (logits[i] > -HUGE_VALF) order[left].logit = logits[i], order[left++].at = i;
    }
    qsort(order, (size_t)left, sizeof *order, larger_first);
    if (o->top_k && left > o->top_k) left = o->top_k;
    double sum = 0, part = 0;
    for (int i = 0; i < left; i++) {
        p[order[i].at] = order[i].logit == order[0].logit
                             ? 1
                             : exp(((double)order[i].logit - (double)order[0].logit) / temperature);
        sum += p[order[i].at];
    }
    *border = false;
    for (int i = 0; i < left && o->top_p > 0 && o->top_p < 1; i++) {
        if (part >= (double)o->top_p * sum) p[order[i].at] = 0;
        part += p[order[i].at];
        *border = *border || fabs(part - (double)o->top_p * sum) < 1e-9 * sum;
    }
    sum = 0;
    for (int i = 0; i < count; i++) sum += p[i];
    for (int i = 0; i < count; i++) p[i] /= sum;
    free(order);
}

/* Of equal ones many, and some that are never drawn. */
static void fill(const dml_random *random, float *logits, int count, int kind)
{
    for (int i = 0; i < count; i++) {
        const float normal = dml_random_normal(random, (uint64_t)i);
        logits[i] = kind == 0   ? normal
                    : kind == 1 ? floorf(2 * normal)
                    : kind == 2 ? 20 * normal
                                : -0.0f * (float)(i % 2);
        if (kind == 2 && i % 7 == 3) logits[i] = i % 2 ? -HUGE_VALF : NAN;
    }
}

static void as_by_sorting(void)
{
    static float logits[MOST];
    static double p[MOST];
    static const float temperatures[] = { 0, 0.3f, 2, 1 }, tops[] = { 0, 0.9f, 0.5f, 1e-3f, 1, 0.999f };
    for (unsigned seed = 0; seed < 2000; seed++) {
        const dml_random random = { seed, 1001, 0 };
        const int count = 1 + (int)(dml_random_bits(&random, 1) % (seed % 10 ? 40 : MOST));
        const dml_sample_options o = { temperatures[dml_random_bits(&random, 2) % 4],
                                       dml_random_bits(&random, 3) % 2
                                           ? 0
                                           : 1 + (int)(dml_random_bits(&random, 4) % ((unsigned)count + 3)),
                                       tops[dml_random_bits(&random, 5) % 6] };
        bool border;
        fill(&(dml_random){ seed, 1002, 0 }, logits, count, (int)(seed % 4));
        exact(logits, count, &o, p, &border);
        for (int k = 0; k < 20 && !border; k++) {
            const float number = k == 0   ? 0
                                 : k == 1 ? 0.99999994f
                                          : dml_random_uniform(&random, 10 + (uint64_t)k);
            const int drawn = dml_sample(logits, count, &o, number);
            double before = 0;
            CHECK_MESSAGE(drawn >= 0 && drawn < count && p[drawn] > 0, "seed %u: %d of %d was drawn", seed,
                          drawn, count);
            for (int i = 0; i < drawn; i++) before += p[i];
            CHECK_MESSAGE((double)number >= before - 1e-6 && (double)number <= before + p[drawn] + 1e-6,
                          "seed %u: %d was drawn by %g, it has %g from %g on", seed, drawn, (double)number,
                          p[drawn], before);
        }
    }
}

static void the_largest(void)
{
    const float logits[] = { 1, 3, -2, 3, NAN };
    for (int i = 0; i < 10; i++) {
        const float number = (float)i / 10;
        CHECK_INT(dml_sample(logits, 5, &(dml_sample_options){ .top_k = 1 }, number), 1);
        CHECK_INT(dml_sample(logits, 5, &(dml_sample_options){ .top_p = 1e-6f }, number), 1);
        CHECK_INT(dml_sample(logits, 5, &(dml_sample_options){ .temperature = 1e-30f }, number),
                  i < 5 ? 1 : 3);
        CHECK_INT(dml_sample(logits, 5, &(dml_sample_options){ .top_k = 2, .top_p = 0.5f }, number), 1);
    }
}

static void infinities(void)
{
    const float logits[] = { 1, HUGE_VALF, -HUGE_VALF, HUGE_VALF }, none[] = { -HUGE_VALF, NAN };
    CHECK_INT(dml_sample(logits, 4, NULL, 0.25f), 1);
    CHECK_INT(dml_sample(logits, 4, NULL, 0.75f), 3);
    CHECK_INT(dml_sample(logits, 4, &(dml_sample_options){ .top_k = 3, .top_p = 0.4f }, 0.75f), 1);
    CHECK_INT(dml_sample(none, 2, NULL, 0.5f), -1);
    CHECK_INT(dml_sample(logits, 4, &(dml_sample_options){ .temperature = HUGE_VALF }, 0.75f), 3);
    CHECK_INT(dml_sample(logits, 4, NULL, -1), 1);
    CHECK_INT(dml_sample(logits, 4, NULL, 2), 3);
}

static void what_cant_be(void)
{
    const float logits[] = { 1, 2 };
    CHECK_INT(dml_sample(NULL, 2, NULL, 0), -1);
    CHECK_INT(dml_sample(logits, 0, NULL, 0), -1);
    CHECK_INT(dml_sample(logits, -3, NULL, 0), -1);
    CHECK_INT(dml_sample(logits, 2, &(dml_sample_options){ .temperature = -1 }, 0), -1);
    CHECK_INT(dml_sample(logits, 2, &(dml_sample_options){ .temperature = NAN }, 0), -1);
    CHECK_INT(dml_sample(logits, 2, &(dml_sample_options){ .top_p = -0.1f }, 0), -1);
    CHECK_INT(dml_sample(logits, 2, &(dml_sample_options){ .top_k = -1 }, 0), -1);
}

int main(void)
{
    RUN(as_by_sorting);
    RUN(the_largest);
    RUN(infinities);
    RUN(what_cant_be);
    return test_report("decode/sample");
}
