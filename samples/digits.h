/* digits.h: draws handwritten-looking digits, so that a sample can train where there is no data set.

   A digit is a few strokes of a pen through points on a 40 x 40 grid. Each point is moved a little, the whole
   is turned, slanted, stretched and shifted, and drawn with a pen of random width into 28 x 28 pixels with
   noise: ink is 255, paper 0, as in MNIST. Include dml.h first. */
#ifndef DIGITS_H
#define DIGITS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { DIGITS_SIDE = 28, DIGITS_PIXELS = DIGITS_SIDE * DIGITS_SIDE };

/* Points x, y; UP lifts the pen, and so makes a corner when the next stroke goes on where the last ended. */
enum { DIGITS_UP = -1, DIGITS_END = -2, DIGITS_LONGEST = 48 };
typedef struct digits_glyph {
    int label;
    signed char points[DIGITS_LONGEST];
} digits_glyph;

#define UP DIGITS_UP
#define END DIGITS_END
static const digits_glyph digits_glyphs[] = {
    { 0, { 20, 2, 11, 7, 8, 20, 11, 33, 20, 38, 29, 33, 32, 20, 29, 7, 20, 2, END } },
    { 0, { 24, 3, 13, 4, 7, 15, 9, 30, 18, 38, 29, 33, 33, 18, 27, 6, 18, 5, END } },
    { 1, { 20, 2, 20, 38, END } },
    { 1, { 11, 11, 20, 2, UP, 20, 2, 20, 38, END } },
    { 1, { 12, 10, 20, 2, UP, 20, 2, 20, 38, UP, 11, 38, 29, 38, END } },
    { 2, { 8, 10, 14, 3, 25, 2, 31, 10, 26, 19, 17, 28, 8, 38, UP, 8, 38, 32, 38, END } },
    { 2, { 9, 8, 17, 2, 28, 5, 29, 14, 22, 25, 12, 36, 7, 34, 11, 29, 20, 34, 33, 38, END } },
    { 3, { 8, 7, 17, 2, 28, 6, 28, 14, 17, 19, UP, 17, 19, 30, 23, 31, 32, 20, 38, 8, 34, END } },
    { 3, { 8, 2, 31, 2, UP, 31, 2, 18, 16, UP, 18, 16, 29, 20, 32, 28, 26, 36, 16, 38, 8, 34, END } },
    { 4, { 10, 3, 8, 22, UP, 8, 22, 33, 22, UP, 26, 5, 26, 38, END } },
    { 4, { 26, 2, 6, 26, UP, 6, 26, 34, 26, UP, 26, 2, 26, 38, END } },
    { 4, { 10, 3, 8, 17, 14, 22, 26, 20, UP, 29, 3, 27, 20, 25, 38, END } },
    { 5, { 30, 2, 12, 2, UP, 12, 2, 10, 18, UP, 10, 18, 20, 14, 30, 20, 30, 31, 20, 38, 8, 34, END } },
    { 5, { 11, 4, 32, 2, UP, 11, 4, 9, 16, 19, 17, 29, 23, 29, 33, 18, 38, 8, 35, END } },
    { 6, { 28, 2, 16, 8, 8, 22, 10, 34, 20, 38, 30, 32, 28, 22, 18, 20, 10, 26, END } },
    { 6, { 21, 2, 12, 16, 10, 30, 17, 38, 28, 34, 28, 24, 18, 22, 11, 29, END } },
    { 7, { 8, 2, 32, 2, UP, 32, 2, 16, 38, END } },
    { 7, { 8, 3, 32, 2, UP, 32, 2, 24, 16, 18, 38, UP, 14, 20, 29, 20, END } },
    { 7, { 8, 9, 9, 3, UP, 9, 3, 31, 3, UP, 31, 3, 23, 18, 20, 38, END } },
    { 8, { 20, 20, 10, 14, 12, 4,  20, 2,  28, 4,  30, 12, 20, 20,
           9,  27, 9,  35, 20, 38, 31, 35, 31, 27, 20, 20, END } },
    { 8, { 30, 8, 20, 2, 10, 8, 14, 16, 26, 22, 30, 31, 20, 38, 10, 32, 14, 22, 26, 15, 30, 8, END } },
    { 9, { 30, 12, 26, 20, 14, 20, 8, 12, 14, 3, 26, 3, 30, 12, UP, 30, 12, 28, 26, 22, 38, END } },
    { 9, { 29, 7, 19, 2, 10, 8, 11, 18, 20, 21, 29, 14, UP, 30, 3, 29, 38, END } },
    { 9, { 29, 12, 24, 19, 13, 19, 9, 11, 15, 3, 25, 4, 29, 12, 30, 27, 25, 36, 12, 37, END } },
};
#undef UP
#undef END
enum { DIGITS_GLYPHS = sizeof digits_glyphs / sizeof digits_glyphs[0] };

/* Random numbers in order, all from (seed, index). */
typedef struct digits_random {
    uint32_t counter[4], key[2], words[4];
    int left;
} digits_random;

static uint32_t digits_bits(digits_random *random)
{
    if (random->left == 0) {
        dml_philox4x32(random->counter, random->key, random->words);
        random->counter[0]++;
        random->left = 4;
    }
    return random->words[--random->left];
}

static float digits_between(digits_random *random, float low, float high)
{
    return low + (high - low) * (float)(digits_bits(random) >> 8) * (1.0f / 16777216.0f);
}

/* The pen's way over the pixels: for each, the smallest square of a distance to it. */
typedef struct digits_pen {
    float reach; /* farther from the pen than this is paper */
    float square[DIGITS_PIXELS];
} digits_pen;

static int digits_clamp(float position)
{
    return position < 0 ? 0 : position > DIGITS_SIDE - 1 ? DIGITS_SIDE - 1 : (int)position;
}

static void digits_segment(digits_pen *pen, float x0, float y0, float x1, float y1)
{
    const float dx = x1 - x0, dy = y1 - y0, length = dx * dx + dy * dy;
    const float scale = length > 0 ? 1 / length : 0;
    const int left = digits_clamp(fminf(x0, x1) - pen->reach),
              right = digits_clamp(fmaxf(x0, x1) + pen->reach + 1);
    const int top = digits_clamp(fminf(y0, y1) - pen->reach),
              bottom = digits_clamp(fmaxf(y0, y1) + pen->reach + 1);
    for (int y = top; y <= bottom; y++) {
        for (int x = left; x <= right; x++) {
            const float px = (float)x - x0, py = (float)y - y0;
            float along = (px * dx + py * dy) * scale;
            along = along < 0 ? 0 : along > 1 ? 1 : along;
            const float ex = px - along * dx, ey = py - along * dy, square = ex * ex + ey * ey;
            float *best = &pen->square[y * DIGITS_SIDE + x];
            if (square < *best) *best = square;
        }
    }
}

/* One stroke: a Catmull-Rom spline, which goes through its points (E. Catmull, R. Rom, 1974). */
static void digits_stroke(digits_pen *pen, float (*points)[2], int count)
{
    enum { PIECES = 4 };
    for (int i = 0; i + 1 < count; i++) {
        const float *a = points[i > 0 ? i - 1 : 0], *b = points[i], *c = points[i + 1];
        const float *d = points[i + 2 < count ? i + 2 : count - 1];
        float from[2] = { b[0], b[1] };
        for (int piece = 1; piece <= PIECES; piece++) {
            const float t = (float)piece / PIECES;
            float to[2];
            for (int k = 0; k < 2; k++)
                to[k] =
                    b[k] +
                    0.5f * t *
                        (c[k] - a[k] +
                         t * (2 * a[k] - 5 * b[k] + 4 * c[k] - d[k] + t * (3 * (b[k] - c[k]) + d[k] - a[k])));
            digits_segment(pen, from[0], from[1], to[0], to[1]);
            memcpy(from, to, sizeof from);
        }
    }
}

/* Draws digit number `index` of the endless series named by `seed`: the same image and label for the same
   two numbers, on every machine up to the rounding of sinf and cosf. */
static void digits_draw(uint64_t seed, uint64_t index, unsigned char image[DIGITS_PIXELS], int *label)
{
    digits_random random = { { 0, 0x64696769, (uint32_t)index, (uint32_t)(index >> 32) },
                             { (uint32_t)seed, (uint32_t)(seed >> 32) },
                             { 0 },
                             0 };
    *label = (int)(((uint64_t)digits_bits(&random) * 10) >> 32);
    int first = 0, variants = 0;
    while (digits_glyphs[first].label != *label) first++;
    while (first + variants < DIGITS_GLYPHS && digits_glyphs[first + variants].label == *label) variants++;
    const int variant = (int)(((uint64_t)digits_bits(&random) * (uint64_t)variants) >> 32);
    const signed char *glyph = digits_glyphs[first + variant].points;

    const float angle = digits_between(&random, -0.3f, 0.3f), slant = digits_between(&random, -0.35f, 0.35f);
    const float wide = digits_between(&random, 0.3f, 0.52f), high = digits_between(&random, 0.38f, 0.54f);
    const float shift_x = digits_between(&random, -2.5f, 2.5f),
                shift_y = digits_between(&random, -2.5f, 2.5f);
    const float radius = digits_between(&random, 0.6f, 1.9f), soft = digits_between(&random, 0.5f, 1.0f);
    const float ink = digits_between(&random, 150, 255), noise = digits_between(&random, 0, 60);
    const float tremble = digits_between(&random, 0.5f, 2.5f);
    const float c = cosf(angle), s = sinf(angle), middle = 0.5f * (DIGITS_SIDE - 1);

    digits_pen pen;
    pen.reach = radius + soft;
    for (int i = 0; i < DIGITS_PIXELS; i++) pen.square[i] = 1e9f;
    float points[DIGITS_LONGEST / 2][2];
    int count = 0;
    for (;; glyph += 2) {
        if (*glyph < 0) {
            digits_stroke(&pen, points, count);
            count = 0;
            if (*glyph == DIGITS_END) break;
            glyph++;
        }
        const float gx = (float)glyph[0] - 20 + digits_between(&random, -tremble, tremble);
        const float gy = (float)glyph[1] - 20 + digits_between(&random, -tremble, tremble);
        const float x = wide * (gx - slant * gy), y = high * gy;
        points[count][0] = middle + shift_x + c * x - s * y;
        points[count][1] = middle + shift_y + s * x + c * y;
        count++;
    }
    for (int i = 0; i < DIGITS_PIXELS; i += 2) {
        uint32_t bits = digits_bits(&random);
        for (int k = 0; k < 2; k++, bits >>= 16) {
            float cover = (radius + soft - sqrtf(pen.square[i + k])) / (2 * soft);
            cover = cover < 0 ? 0 : cover > 1 ? 1 : cover;
            const float grain = (float)((int)(bits & 255) - (int)(bits >> 8 & 255)) * (1.0f / 256);
            const float value = ink * cover + noise * grain;
            image[i + k] = (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value);
        }
    }
}

#endif
