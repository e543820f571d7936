/* sample_norm.cl: layer, RMS and group norm: numbers of a sample that are normalized together. x is (rows,
   channels); a row is a pixel, `pixels` of them a sample, and `width` neighbouring channels a group. A
   work-group does a group of a sample.

   Ints of all: rows, channels, pixels, width, whether by square (no mean is subtracted), rows of a part,
   parts. Statistics are (samples, groups, 2): the mean, and 1 / sqrt(variance + epsilon). */
#ifndef DML_GPU_SAMPLE_NORM_CL
#define DML_GPU_SAMPLE_NORM_CL

/* Element i of a group that begins at `first`; its channel is at[0] % channels. */
HELPER WIDE dml__sample_norm_at(WIDE first, unsigned i, unsigned width, int channels)
{
    return first + (WIDE)(i / width) * channels + i % width;
}

/* y = weight (x - mean) inverse + bias. Buffers x, weight or NULL, bias or NULL, statistics, y; floats
   epsilon; size{samples * groups}. y may be x. */
KERNEL(sample_norm_forward_team)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *weight = BUFFER(1, const float);
    GLOBAL const float *bias = BUFFER(2, const float);
    GLOBAL float *statistics = BUFFER(3, float);
    GLOBAL float *y = BUFFER(4, float);
    const int channels = INT(1), pixels = INT(2), groups = channels / INT(3);
    const unsigned width = (unsigned)INT(3), n = width * (unsigned)pixels;
    const int channel = GROUP_X % groups * INT(3);
    const WIDE first = (WIDE)(GROUP_X / groups) * pixels * channels + channel;
    const float epsilon = REAL(0);
    LOCAL float part[DML__GROUP_ITEMS];
    float mean = 0.0f, sum = 0.0f;
    if (!INT(4))
        for (unsigned i = (unsigned)ITEM; i < n; i += DML__GROUP_ITEMS)
            sum += x[dml__sample_norm_at(first, i, width, channels)];
    part[ITEM] = sum;
    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);
    mean = part[0] / (float)n;
    BARRIER(); /* all have read the sum before its place is used again */
    sum = 0.0f;
    for (unsigned i = (unsigned)ITEM; i < n; i += DML__GROUP_ITEMS) {
        const float distance = x[dml__sample_norm_at(first, i, width, channels)] - mean;
        sum += distance * distance;
    }
    part[ITEM] = sum;
    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);
    const float inverse = 1.0f / SQRT(part[0] / (float)n + epsilon);
    if (ITEM == 0) {
        statistics[(WIDE)2 * GROUP_X] = mean;
        statistics[(WIDE)2 * GROUP_X + 1] = inverse;
    }
    for (unsigned i = (unsigned)ITEM; i < n; i += DML__GROUP_ITEMS) {
        const WIDE at = dml__sample_norm_at(first, i, width, channels);
        const int c = channel + (int)(i % width);
        const float value = (x[at] - mean) * inverse;
        y[at] = (weight ? value * weight[c] : value) + (bias ? bias[c] : 0.0f);
    }
}

/* dx = inverse (g - mean of g - (x - mean) inverse^2 mean of g (x - mean)) + beta dx for g = weight dy, by
   square without the mean of g. Buffers x, dy, weight or NULL, statistics, dx; floats beta;
   size{samples * groups}. dx may be dy. */
KERNEL(sample_norm_backward_team)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL const float *weight = BUFFER(2, const float);
    GLOBAL const float *statistics = BUFFER(3, const float);
    GLOBAL float *dx = BUFFER(4, float);
    const int channels = INT(1), pixels = INT(2), groups = channels / INT(3);
    const unsigned width = (unsigned)INT(3), n = width * (unsigned)pixels;
    const int channel = GROUP_X % groups * INT(3);
    const WIDE first = (WIDE)(GROUP_X / groups) * pixels * channels + channel;
    const float beta = REAL(0);
    const float mean = statistics[(WIDE)2 * GROUP_X], inverse = statistics[(WIDE)2 * GROUP_X + 1];
    LOCAL float part[DML__GROUP_ITEMS];
    LOCAL float product_part[DML__GROUP_ITEMS];
    float sum = 0.0f, products = 0.0f;
    for (unsigned i = (unsigned)ITEM; i < n; i += DML__GROUP_ITEMS) {
        const WIDE at = dml__sample_norm_at(first, i, width, channels);
        const float g = weight ? dy[at] * weight[channel + (int)(i % width)] : dy[at];
        sum += g;
        products += g * (x[at] - mean);
    }
    part[ITEM] = sum;
    product_part[ITEM] = products;
    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);
    REDUCE_SUM(product_part, ITEM, DML__GROUP_ITEMS, 1);
    const float level = INT(4) ? 0.0f : part[0] / (float)n;
    const float along = inverse * inverse * (product_part[0] / (float)n);
    for (unsigned i = (unsigned)ITEM; i < n; i += DML__GROUP_ITEMS) {
        const WIDE at = dml__sample_norm_at(first, i, width, channels);
        const float g = weight ? dy[at] * weight[channel + (int)(i % width)] : dy[at];
        dx[at] = dml__with_beta(inverse * ((g - level) - (x[at] - mean) * along), beta, dx + at);
    }
}

/* The sums of dy and of dy (x - mean) inverse of each channel over the rows of a part: parts (2, parts,
   channels). Buffers x, dy, statistics, parts; size{channels, parts}. A group does 16 columns of a part. */
KERNEL(sample_norm_products)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL const float *statistics = BUFFER(2, const float);
    GLOBAL float *parts = BUFFER(3, float);
    const int rows = INT(0), channels = INT(1), pixels = INT(2), groups = channels / INT(3);
    const int from = GROUP_Y * INT(5), to = rows - from < INT(5) ? rows : from + INT(5);
    const int column = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;
    LOCAL float part[DML__GROUP_ITEMS];
    LOCAL float product_part[DML__GROUP_ITEMS];
    float sum = 0.0f, products = 0.0f;
    if (column < channels) {
        for (int row = from + lane; row < to; row += 16) {
            const WIDE at = (WIDE)row * channels + column;
            const WIDE group = (WIDE)(row / pixels) * groups + column / INT(3);
            sum += dy[at];
            products += dy[at] * ((x[at] - statistics[2 * group]) * statistics[2 * group + 1]);
        }
    }
    part[ITEM] = sum;
    product_part[ITEM] = products;
    REDUCE_SUM(part, lane, 16, 16);
    REDUCE_SUM(product_part, lane, 16, 16);
    if (lane == 0 && column < channels && GROUP_Y < INT(6)) { /* groups may be more than parts */
        parts[(WIDE)GROUP_Y * channels + column] = part[ITEM];
        parts[(WIDE)(INT(6) + GROUP_Y) * channels + column] = product_part[ITEM];
    }
}

#endif
