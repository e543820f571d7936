#include "base/philox.h"

#include "../../samples/digits.h"
#include "../test.h"

static void the_same_numbers_draw_the_same(void)
{
    unsigned char a[DIGITS_PIXELS], b[DIGITS_PIXELS];
    int label_a, label_b, seeds_differ = 0, neighbours_differ = 0;
    for (uint64_t i = 0; i < 100; i++) {
        digits_draw(5, i, a, &label_a);
        memset(b, 0xAA, sizeof b);
        digits_draw(5, i, b, &label_b);
        CHECK(label_a == label_b && memcmp(a, b, sizeof a) == 0);
        digits_draw(6, i, b, &label_b);
        seeds_differ += memcmp(a, b, sizeof a) != 0;
        digits_draw(5, i + ((uint64_t)1 << 32), b, &label_b);
        neighbours_differ += memcmp(a, b, sizeof a) != 0;
    }
    CHECK_INT(seeds_differ, 100);
    CHECK_INT(neighbours_differ, 100);
}

/* Each digit comes about as often as any other, has ink, and leaves most of the paper free. */
static void the_digits_are_balanced_and_visible(void)
{
    enum { COUNT = 20000 };
    int seen[10] = { 0 };
    for (uint64_t i = 0; i < COUNT; i++) {
        unsigned char image[DIGITS_PIXELS];
        int label = -1, dark = 0;
        digits_draw(1, i, image, &label);
        if (label < 0 || label > 9) {
            CHECK_MESSAGE(false, "label %d", label);
            return;
        }
        seen[label]++;
        for (int p = 0; p < DIGITS_PIXELS; p++) dark += image[p] > 100;
        CHECK_MESSAGE(dark >= 8 && dark < 400, "digit %d, number %d: %d pixels of ink", label, (int)i, dark);
    }
    for (int d = 0; d < 10; d++) CHECK_NEAR(seen[d], COUNT / 10, 200);
}

/* What can be told from the labels alone is what the strokes say: digits of a kind are nearer to each other's
   mean than to other means, far more often than by chance. */
static void means_tell_the_digits_apart(void)
{
    static double mean[10][DIGITS_PIXELS];
    int seen[10] = { 0 }, right = 0;
    unsigned char image[DIGITS_PIXELS];
    int label;
    for (uint64_t i = 0; i < 5000; i++) {
        digits_draw(1, i, image, &label);
        seen[label]++;
        for (int p = 0; p < DIGITS_PIXELS; p++) mean[label][p] += image[p];
    }
    for (int d = 0; d < 10; d++)
        for (int p = 0; p < DIGITS_PIXELS; p++) mean[d][p] /= seen[d];
    for (uint64_t i = 0; i < 1000; i++) {
        digits_draw(2, i, image, &label);
        int best = 0;
        double least = HUGE_VAL;
        for (int d = 0; d < 10; d++) {
            double distance = 0;
            for (int p = 0; p < DIGITS_PIXELS; p++) distance += pow(image[p] - mean[d][p], 2);
            if (distance < least) least = distance, best = d;
        }
        right += best == label;
    }
    CHECK_MESSAGE(right > 500 && right < 950, "%d of 1000", right); /* and it isn't too easy either */
}

int main(void)
{
    RUN(the_same_numbers_draw_the_same);
    RUN(the_digits_are_balanced_and_visible);
    RUN(means_tell_the_digits_apart);
    return test_report("samples/digits");
}
