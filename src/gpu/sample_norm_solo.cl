/* sample_norm_solo.cl: the teams of sample_norm.cl where an item is a whole processor core: it does
   SAMPLES_SOLO groups of samples, one after the other, with vectors. A group is a run of `width` numbers a
   pixel. */
#ifndef DML_GPU_SAMPLE_NORM_SOLO_CL
#define DML_GPU_SAMPLE_NORM_SOLO_CL
#ifdef SOLO_KERNEL

#define SAMPLES_SOLO 8

/* One group of a sample: where its numbers are, and its place in the parameters. */
typedef struct dml__solo_sample {
    int pixels, width, channel;
    WIDE first, step; /* of the first pixel, and between pixels */
    float count;
} dml__solo_sample;

HELPER dml__solo_sample dml__solo_sample_at(int number, const dml__kernel_arguments arguments)
{
    const int groups = INT(8);
    dml__solo_sample s;
    s.pixels = INT(2), s.width = INT(3), s.step = INT(1);
    s.channel = number % groups * s.width;
    s.first = (WIDE)(number / groups) * s.pixels * s.step + s.channel;
    s.count = (float)s.pixels * (float)s.width;
    return s;
}

HELPER float dml__solo_total(VECTOR v)
{
    float lane[VECTOR_LANES], total = 0.0f;
    VECTOR_STORE(lane, v);
    for (int i = 0; i < VECTOR_LANES; i++) total += lane[i];
    return total;
}

/* The sum of the distances from `middle`, or of their squares. */
HELPER float dml__solo_distances(GLOBAL const float *x, const dml__solo_sample s, float middle, int squares)
{
    const VECTOR middles = VECTOR_OF(middle);
    VECTOR total = VECTOR_OF(0.0f);
    float rest = 0.0f;
    for (int pixel = 0; pixel < s.pixels; pixel++) {
        GLOBAL const float *from = x + s.first + pixel * s.step;
        int i = 0;
        for (; i + VECTOR_LANES <= s.width; i += VECTOR_LANES) {
            const VECTOR distance = VECTOR_ADD_PRODUCT(VECTOR_READ(from + i), -1.0f, middles);
            total = squares ? VECTOR_ADD_PRODUCTS(total, distance, distance)
                            : VECTOR_ADD_PRODUCT(total, 1.0f, distance);
        }
        for (; i < s.width; i++) {
            const float distance = from[i] - middle;
            rest += squares ? distance * distance : distance;
        }
    }
    return dml__solo_total(total) + rest;
}

/* What sample_norm_forward_team computes, of the same arguments. */
SOLO_KERNEL(sample_norm_forward_solo)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *weight = BUFFER(1, const float);
    GLOBAL const float *bias = BUFFER(2, const float);
    GLOBAL float *statistics = BUFFER(3, float);
    GLOBAL float *y = BUFFER(4, float);
    const int all = GROUP_Y ? 0 : INT(9); /* along y there are teams only */
    const int end = all - GROUP_X * SAMPLES_SOLO > SAMPLES_SOLO ? (GROUP_X + 1) * SAMPLES_SOLO : all;
    for (int number = GROUP_X * SAMPLES_SOLO; number < end; number++) {
        const dml__solo_sample s = dml__solo_sample_at(number, arguments);
        const float origin = x[s.first]; /* a sum of distances from it loses less */
        const float mean = INT(4) ? 0.0f : origin + dml__solo_distances(x, s, origin, 0) / s.count;
        const float inverse = 1.0f / SQRT(dml__solo_distances(x, s, mean, 1) / s.count + REAL(0));
        statistics[(WIDE)2 * number] = mean;
        statistics[(WIDE)2 * number + 1] = inverse;
        for (int pixel = 0; pixel < s.pixels; pixel++) {
            const WIDE at = s.first + pixel * s.step;
            int i = 0, c = s.channel;
            for (; i + VECTOR_LANES <= s.width; i += VECTOR_LANES, c += VECTOR_LANES) {
                const VECTOR distance = VECTOR_ADD_PRODUCT(VECTOR_READ(x + at + i), -1.0f, VECTOR_OF(mean));
                const VECTOR scale = weight ? VECTOR_READ(weight + c) : VECTOR_OF(1.0f);
                const VECTOR shift = bias ? VECTOR_READ(bias + c) : VECTOR_OF(0.0f);
                const VECTOR value = VECTOR_ADD_PRODUCT(VECTOR_OF(0.0f), inverse, distance);
                VECTOR_WRITE(y + at + i, VECTOR_ADD_PRODUCTS(shift, value, scale));
            }
            for (; i < s.width; i++, c++) {
                const float value = (x[at + i] - mean) * inverse;
                y[at + i] = (weight ? value * weight[c] : value) + (bias ? bias[c] : 0.0f);
            }
        }
    }
}

/* The sums of g = weight dy, and of g (x - mean). */
typedef struct dml__solo_slopes {
    float sum, products;
} dml__solo_slopes;

HELPER dml__solo_slopes dml__solo_slopes_of(GLOBAL const float *x, GLOBAL const float *dy,
                                            GLOBAL const float *weight, const dml__solo_sample s, float mean)
{
    VECTOR sum = VECTOR_OF(0.0f), products = VECTOR_OF(0.0f);
    dml__solo_slopes rest;
    rest.sum = 0.0f, rest.products = 0.0f;
    for (int pixel = 0; pixel < s.pixels; pixel++) {
        const WIDE at = s.first + pixel * s.step;
        int i = 0, c = s.channel;
        for (; i + VECTOR_LANES <= s.width; i += VECTOR_LANES, c += VECTOR_LANES) {
            const VECTOR distance = VECTOR_ADD_PRODUCT(VECTOR_READ(x + at + i), -1.0f, VECTOR_OF(mean));
            const VECTOR scale = weight ? VECTOR_READ(weight + c) : VECTOR_OF(1.0f);
            const VECTOR g = VECTOR_ADD_PRODUCTS(VECTOR_OF(0.0f), VECTOR_READ(dy + at + i), scale);
            sum = VECTOR_ADD_PRODUCT(sum, 1.0f, g);
            products = VECTOR_ADD_PRODUCTS(products, g, distance);
        }
        for (; i < s.width; i++, c++) {
            const float g = weight ? dy[at + i] * weight[c] : dy[at + i];
            rest.sum += g;
            rest.products += g * (x[at + i] - mean);
        }
    }
    rest.sum += dml__solo_total(sum);
    rest.products += dml__solo_total(products);
    return rest;
}

/* What sample_norm_backward_team computes, of the same arguments. */
SOLO_KERNEL(sample_norm_backward_solo)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL const float *weight = BUFFER(2, const float);
    GLOBAL const float *statistics = BUFFER(3, const float);
    GLOBAL float *dx = BUFFER(4, float);
    const float beta = REAL(0);
    const int all = GROUP_Y ? 0 : INT(9); /* along y there are teams only */
    const int end = all - GROUP_X * SAMPLES_SOLO > SAMPLES_SOLO ? (GROUP_X + 1) * SAMPLES_SOLO : all;
    for (int number = GROUP_X * SAMPLES_SOLO; number < end; number++) {
        const dml__solo_sample s = dml__solo_sample_at(number, arguments);
        const float mean = statistics[(WIDE)2 * number], inverse = statistics[(WIDE)2 * number + 1];
        const dml__solo_slopes slopes = dml__solo_slopes_of(x, dy, weight, s, mean);
        const float level = INT(4) ? 0.0f : slopes.sum / s.count;
        const float along = inverse * inverse * (slopes.products / s.count);
        for (int pixel = 0; pixel < s.pixels; pixel++) {
            const WIDE at = s.first + pixel * s.step;
            int i = 0, c = s.channel;
            for (; i + VECTOR_LANES <= s.width; i += VECTOR_LANES, c += VECTOR_LANES) {
                const VECTOR distance = VECTOR_ADD_PRODUCT(VECTOR_READ(x + at + i), -1.0f, VECTOR_OF(mean));
                const VECTOR scale = weight ? VECTOR_READ(weight + c) : VECTOR_OF(1.0f);
                const VECTOR g = VECTOR_ADD_PRODUCTS(VECTOR_OF(-level), VECTOR_READ(dy + at + i), scale);
                const VECTOR old = beta == 0.0f ? VECTOR_OF(0.0f) : VECTOR_READ(dx + at + i);
                const VECTOR slope = VECTOR_ADD_PRODUCT(g, -along, distance);
                VECTOR_WRITE(dx + at + i, VECTOR_ADD_PRODUCT(VECTOR_ADD_PRODUCT(VECTOR_OF(0.0f), beta, old),
                                                             inverse, slope));
            }
            for (; i < s.width; i++, c++) {
                const float g = weight ? dy[at + i] * weight[c] : dy[at + i];
                const float slope = (g - level) - (x[at + i] - mean) * along;
                dx[at + i] = dml__with_beta(inverse * slope, beta, dx + at + i);
            }
        }
    }
}

#endif
#endif
