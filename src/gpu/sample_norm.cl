/* sample_norm.cl: layer, RMS and group norm: numbers of a sample that are normalized together. x is (rows,
   channels); a row is a pixel, `pixels` of them a sample, and `width` neighbouring channels a group.

   Ints of all: rows, channels, pixels, width, whether by square (no mean is subtracted), rows of a part,
   parts, whether groups of samples are long. Statistics are (samples, groups, 2): the mean, and
   1 / sqrt(variance + epsilon).

   A work-group does four groups of samples with 64 items each, or a long one with all, where size{, 4} is
   launched. What fits into ROW_KEPT numbers an item is read once. */
#ifndef DML_GPU_SAMPLE_NORM_CL
#define DML_GPU_SAMPLE_NORM_CL

/* Where number i of a group of a sample lies behind its first; and which of its channels that is of. */
#define SAMPLE_AT(i) ((WIDE)dml__gpu_divide(i, by_width) * channels + SAMPLE_CHANNEL(i))
#define SAMPLE_CHANNEL(i) ((i)-dml__gpu_divide(i, by_width) * by_width.number)

/* The item's place, for the statements behind it: it has numbers lane, lane + lanes, ... below most. */
#define SAMPLE_BEGIN()                                                                                       \
    const int channels = INT(1), groups = channels / INT(3), lanes = INT(7) ? DML__GROUP_ITEMS : 64;         \
    const int lane = ITEM % lanes, team = ITEM - lane;                                                       \
    const int sample = GROUP_X * 4 + (INT(7) ? GROUP_Y : ITEM / 64);                                         \
    const int inside = sample < INT(0) / INT(2) * groups && GROUP_Y < (INT(7) ? 4 : 1);                      \
    const dml__gpu_divisor by_width = dml__gpu_divisor_of(INT(3));                                           \
    const unsigned n = by_width.number * (unsigned)INT(2), most = inside ? n : 0;                            \
    const unsigned begin = (unsigned)lane, step = (unsigned)lanes;                                           \
    const int kept = n <= step * ROW_KEPT, channel = sample % groups * INT(3);                               \
    const WIDE first = (WIDE)(sample / groups) * INT(2) * channels + channel

/* Before a statement for each k below `count`, of number i of these, from `from` on. */
#define EACH_OF_SAMPLE(count, k, i, from)                                                                    \
    UNROLL for (unsigned k = 0, i = (from); k < (count); k++, i += step) if (i < most)

/* y = weight (x - mean) inverse + bias. Buffers x, weight or NULL, bias or NULL, statistics, y; floats
   epsilon; size{samples * groups}, of long ones also 4. y may be x. */
KERNEL(sample_norm_forward_team)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *weight = BUFFER(1, const float);
    GLOBAL const float *bias = BUFFER(2, const float);
    GLOBAL float *statistics = BUFFER(3, float);
    GLOBAL float *y = BUFFER(4, float);
    SAMPLE_BEGIN();
    const float epsilon = REAL(0);
    LOCAL float part[DML__GROUP_ITEMS];
    float value[ROW_KEPT], mean = 0.0f, sum = 0.0f, squares = 0.0f;
    if (kept) {
        EACH_OF_SAMPLE(ROW_KEPT, k, i, begin) value[k] = x[first + SAMPLE_AT(i)];
        EACH_OF_SAMPLE(ROW_KEPT, k, i, begin) sum += value[k];
    } else if (!INT(4)) {
        for (unsigned from = begin; from < most; from += ROW_AHEAD * step) {
            EACH_OF_SAMPLE(ROW_AHEAD, k, i, from) value[k] = x[first + SAMPLE_AT(i)];
            EACH_OF_SAMPLE(ROW_AHEAD, k, i, from) sum += value[k];
        }
    }
    if (!INT(4)) {
        TEAM_SUM(sum, part, team, lane, lanes, 1);
        mean = sum / (float)n;
    }
    if (kept) {
        EACH_OF_SAMPLE(ROW_KEPT, k, i, begin)
        {
            value[k] -= mean;
            squares += value[k] * value[k];
        }
    } else {
        for (unsigned from = begin; from < most; from += ROW_AHEAD * step) {
            EACH_OF_SAMPLE(ROW_AHEAD, k, i, from) value[k] = x[first + SAMPLE_AT(i)] - mean;
            EACH_OF_SAMPLE(ROW_AHEAD, k, i, from) squares += value[k] * value[k];
        }
    }
    TEAM_SUM(squares, part, team, lane, lanes, 1);
    const float inverse = 1.0f / SQRT(squares / (float)n + epsilon);
    if (lane == 0 && inside) {
        statistics[(WIDE)2 * sample] = mean;
        statistics[(WIDE)2 * sample + 1] = inverse;
    }
    if (kept) {
        EACH_OF_SAMPLE(ROW_KEPT, k, i, begin)
        {
            const int c = channel + (int)SAMPLE_CHANNEL(i);
            const float level = value[k] * inverse;
            y[first + SAMPLE_AT(i)] = (weight ? level * weight[c] : level) + (bias ? bias[c] : 0.0f);
        }
    } else {
        for (unsigned from = begin; from < most; from += ROW_AHEAD * step) {
            EACH_OF_SAMPLE(ROW_AHEAD, k, i, from) value[k] = x[first + SAMPLE_AT(i)];
            EACH_OF_SAMPLE(ROW_AHEAD, k, i, from)
            {
                const int c = channel + (int)SAMPLE_CHANNEL(i);
                const float level = (value[k] - mean) * inverse;
                y[first + SAMPLE_AT(i)] = (weight ? level * weight[c] : level) + (bias ? bias[c] : 0.0f);
            }
        }
    }
}

/* dx = inverse (g - mean of g - (x - mean) inverse^2 mean of g (x - mean)) + beta dx for g = weight dy, by
   square without the mean of g. Buffers x, dy, weight or NULL, statistics, dx; floats beta;
   size{samples * groups}, of long ones also 4. dx may be dy. */
KERNEL(sample_norm_backward_team)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL const float *weight = BUFFER(2, const float);
    GLOBAL const float *statistics = BUFFER(3, const float);
    GLOBAL float *dx = BUFFER(4, float);
    SAMPLE_BEGIN();
    const float beta = REAL(0);
    const float mean = inside ? statistics[(WIDE)2 * sample] : 0.0f;
    const float inverse = inside ? statistics[(WIDE)2 * sample + 1] : 0.0f;
    LOCAL float part[DML__GROUP_ITEMS];
    float value[ROW_KEPT], g[ROW_KEPT], sum = 0.0f, products = 0.0f;
    if (kept) {
        EACH_OF_SAMPLE(ROW_KEPT, k, i, begin)
        {
            value[k] = x[first + SAMPLE_AT(i)];
            g[k] = dy[first + SAMPLE_AT(i)];
        }
        EACH_OF_SAMPLE(ROW_KEPT, k, i, begin)
        {
            if (weight) g[k] *= weight[channel + (int)SAMPLE_CHANNEL(i)];
            value[k] -= mean;
            sum += g[k];
            products += g[k] * value[k];
        }
    } else {
        for (unsigned from = begin; from < most; from += ROW_AHEAD * step) {
            EACH_OF_SAMPLE(ROW_AHEAD, k, i, from)
            {
                value[k] = x[first + SAMPLE_AT(i)];
                g[k] = dy[first + SAMPLE_AT(i)];
            }
            EACH_OF_SAMPLE(ROW_AHEAD, k, i, from)
            {
                if (weight) g[k] *= weight[channel + (int)SAMPLE_CHANNEL(i)];
                sum += g[k];
                products += g[k] * (value[k] - mean);
            }
        }
    }
    TEAM_SUM(sum, part, team, lane, lanes, 1);
    TEAM_SUM(products, part, team, lane, lanes, 1);
    const float level = INT(4) ? 0.0f : sum / (float)n;
    const float along = inverse * inverse * (products / (float)n);
    if (kept) {
        EACH_OF_SAMPLE(ROW_KEPT, k, i, begin)
        {
            const WIDE at = first + SAMPLE_AT(i);
            dx[at] = dml__with_beta(inverse * ((g[k] - level) - value[k] * along), beta, dx + at);
        }
    } else {
        for (unsigned from = begin; from < most; from += ROW_AHEAD * step) {
            EACH_OF_SAMPLE(ROW_AHEAD, k, i, from)
            {
                value[k] = x[first + SAMPLE_AT(i)];
                g[k] = dy[first + SAMPLE_AT(i)];
            }
            EACH_OF_SAMPLE(ROW_AHEAD, k, i, from)
            {
                const WIDE at = first + SAMPLE_AT(i);
                if (weight) g[k] *= weight[channel + (int)SAMPLE_CHANNEL(i)];
                dx[at] =
                    dml__with_beta(inverse * ((g[k] - level) - (value[k] - mean) * along), beta, dx + at);
            }
        }
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
    const int column = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16, group = column / INT(3);
    const dml__gpu_divisor by_pixels = dml__gpu_divisor_of(pixels);
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f, products = 0.0f;
    if (column < channels) {
        for (int first = from + lane; first < to; first += ROW_AHEAD * 16) {
            float value[ROW_AHEAD], d[ROW_AHEAD];
            EACH_AHEAD(ROW_AHEAD, k, row, first, 16, to)
            {
                value[k] = x[(WIDE)row * channels + column];
                d[k] = dy[(WIDE)row * channels + column];
            }
            EACH_AHEAD(ROW_AHEAD, k, row, first, 16, to)
            {
                const WIDE of = 2 * ((WIDE)dml__gpu_divide((unsigned)row, by_pixels) * groups + group);
                sum += d[k];
                products += d[k] * ((value[k] - statistics[of]) * statistics[of + 1]);
            }
        }
    }
    TEAM_SUM(sum, part, ITEM % 16, lane, 16, 16);
    TEAM_SUM(products, part, ITEM % 16, lane, 16, 16);
    if (lane == 0 && column < channels && GROUP_Y < INT(6)) { /* groups may be more than parts */
        parts[(WIDE)GROUP_Y * channels + column] = sum;
        parts[(WIDE)(INT(6) + GROUP_Y) * channels + column] = products;
    }
}

#endif
