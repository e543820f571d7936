/* norm.cl: batch normalization of x (rows, channels). What belongs to a channel is summed in parts of the
   rows, so that few channels keep a whole GPU busy; the parts depend on the shape alone.

   Ints of all: rows, channels, rows of a part, parts. Parts are (parts, 2, channels). */
#ifndef DML_GPU_NORM_CL
#define DML_GPU_NORM_CL

/* How many numbers, their mean, and the sum of their squared distances from it. */
typedef struct dml__moments {
    int count;
    float mean, squares;
} dml__moments;

/* Those of all numbers of two; the second has some. (From none, its mean's square might be infinite.)
   Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
   1979. */
HELPER dml__moments dml__moments_of_both(dml__moments a, const dml__moments b)
{
    if (a.count == 0) return b;
    const float share = (float)b.count / ((float)a.count + (float)b.count), distance = b.mean - a.mean;
    a.mean += distance * share;
    a.squares += b.squares + distance * distance * (float)a.count * share;
    a.count += b.count;
    return a;
}

/* The mean of each part and the sum of squared distances from it. Buffers x, parts; size{channels, parts}.
   A group does 16 columns of a part; neighbouring items do neighbouring columns. */
KERNEL(batch_norm_moments)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL float *parts = BUFFER(1, float);
    const int rows = INT(0), channels = INT(1), from = GROUP_Y * INT(2);
    const int to = rows - from < INT(2) ? rows : from + INT(2);
    const int column = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;
    LOCAL float means[DML__GROUP_ITEMS];
    LOCAL float squares_part[DML__GROUP_ITEMS];
    LOCAL int counts[DML__GROUP_ITEMS];
    /* Means are those of distances from one of the numbers, so that what they differ in isn't rounded off. */
    const float pivot = column < channels && from < rows ? x[(WIDE)from * channels + column] : 0.0f;
    dml__moments all;
    all.count = 0, all.mean = 0.0f, all.squares = 0.0f;
#ifdef DML__RUN /* once more from the cache */
    if (column < channels) {
        for (int row = from + lane; row < to; row += 16) {
            all.mean += x[(WIDE)row * channels + column] - pivot;
            all.count++;
        }
        if (all.count) all.mean /= (float)all.count;
        for (int row = from + lane; row < to; row += 16) {
            const float distance = x[(WIDE)row * channels + column] - pivot - all.mean;
            all.squares += distance * distance;
        }
    }
#else
    if (column < channels)
        for (int first = from + lane; first < to; first += ROW_KEPT * 16) {
            float value[ROW_KEPT], sum = 0.0f;
            dml__moments more;
            const int left = (to - first + 15) / 16; /* rows of this item */
            more.count = left < ROW_KEPT ? left : ROW_KEPT, more.squares = 0.0f;
            GLOBAL const float *x_from = x + (WIDE)first * channels + column;
            EACH_AHEAD(ROW_KEPT, k, row, first, 16, to)
            {
                value[k] = *x_from;
                x_from += (WIDE)16 * channels;
            }
            EACH_AHEAD(ROW_KEPT, k, row, first, 16, to)
            {
                value[k] -= pivot;
                sum += value[k];
            }
            more.mean = sum / (float)more.count;
            EACH_AHEAD(ROW_KEPT, k, row, first, 16, to)
            {
                const float distance = value[k] - more.mean;
                more.squares += distance * distance;
            }
            all = dml__moments_of_both(all, more);
        }
#endif
    means[ITEM] = all.mean;
    squares_part[ITEM] = all.squares;
    counts[ITEM] = all.count;
    BARRIER();
    if (lane == 0 && column < channels && GROUP_Y < INT(3)) { /* groups may be more than parts */
        GLOBAL float *to_part = parts + (WIDE)GROUP_Y * 2 * channels + column;
        for (int other = ITEM + 16; other < DML__GROUP_ITEMS && counts[other]; other += 16) {
            dml__moments more;
            more.count = counts[other], more.mean = means[other], more.squares = squares_part[other];
            all = dml__moments_of_both(all, more);
        }
        to_part[0] = pivot + all.mean;
        to_part[channels] = all.squares;
    }
}

/* Mean and variance from the parts, and the running ones moved towards them. Buffers parts, mean, variance,
   running mean, running variance; floats: the shares of the new mean and variance in the running ones, and
   the factor of the variance there; size{channels}. A group does 16 channels. */
KERNEL(batch_norm_statistics)
{
    GLOBAL const float *parts = BUFFER(0, const float);
    GLOBAL float *mean = BUFFER(1, float);
    GLOBAL float *variance = BUFFER(2, float);
    GLOBAL float *running_mean = BUFFER(3, float);
    GLOBAL float *running_variance = BUFFER(4, float);
    const int rows = INT(0), channels = INT(1), part_rows = INT(2), count = INT(3);
    const float mean_share = REAL(0), variance_share = REAL(1), unbiased = REAL(2);
    const int c = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;
    LOCAL float means[DML__GROUP_ITEMS];
    LOCAL float squares_part[DML__GROUP_ITEMS];
    LOCAL int counts[DML__GROUP_ITEMS];
    dml__moments all, more;
    all.count = 0, all.mean = 0.0f, all.squares = 0.0f;
    if (c < channels)
        for (int i = lane; i < count; i += 16) {
            more.count = rows - i * part_rows < part_rows ? rows - i * part_rows : part_rows;
            more.mean = parts[(WIDE)2 * i * channels + c];
            more.squares = parts[((WIDE)2 * i + 1) * channels + c];
            all = dml__moments_of_both(all, more);
        }
    means[ITEM] = all.mean;
    squares_part[ITEM] = all.squares;
    counts[ITEM] = all.count;
    BARRIER();
    if (lane == 0 && c < channels) {
        for (int other = ITEM + 16; other < DML__GROUP_ITEMS && counts[other]; other += 16) {
            more.count = counts[other], more.mean = means[other], more.squares = squares_part[other];
            all = dml__moments_of_both(all, more);
        }
        const float middle = all.mean, v = all.squares / (float)rows;
        mean[c] = middle;
        variance[c] = v;
        if (ABS(middle) <= 3.40282347e38f && ABS(unbiased * v) <= 3.40282347e38f) { /* finite */
            running_mean[c] = (1.0f - mean_share) * running_mean[c] + mean_share * middle;
            running_variance[c] =
                (1.0f - variance_share) * running_variance[c] + variance_share * (unbiased * v);
        }
    }
}

/* y = scale (x - mean) / sqrt(variance + epsilon) + shift. Buffers x, scale, shift, mean, variance, y; floats
   epsilon; size{rows * channels}. */
KERNEL(batch_norm_forward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *scale = BUFFER(1, const float);
    GLOBAL const float *shift = BUFFER(2, const float);
    GLOBAL const float *mean = BUFFER(3, const float);
    GLOBAL const float *variance = BUFFER(4, const float);
    GLOBAL float *y = BUFFER(5, float);
    const unsigned channels = (unsigned)INT(1), n = (unsigned)INT(0) * channels;
    const float epsilon = REAL(0);
    RUN_BEGINS(n);
    float value[RUN], level[RUN], factor[RUN], bias[RUN];
    EACH_OF_RUN(k, i, n) value[k] = x[i];
    EACH_PLACE_OF_RUN(k, row, c, channels)
    {
        level[k] = mean[c];
        factor[k] = scale[c] * RECIPROCAL_ROOT(variance[c] + epsilon);
        bias[k] = shift[c];
    }
    EACH_OF_RUN(k, i, n) y[i] = (value[k] - level[k]) * factor[k] + bias[k];
}

/* The sums of dy and of dy (x - mean) of each part. Buffers x, dy, mean, parts; size{channels, parts}. */
KERNEL(batch_norm_products)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL const float *mean = BUFFER(2, const float);
    GLOBAL float *parts = BUFFER(3, float);
    const int rows = INT(0), channels = INT(1), from = GROUP_Y * INT(2);
    const int to = rows - from < INT(2) ? rows : from + INT(2);
    const int column = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f, products = 0.0f;
    if (column < channels) {
        const float middle = mean[column];
        const WIDE on = (WIDE)16 * channels;
        for (int first = from + lane; first < to; first += ROW_AHEAD * 16) {
            float value[ROW_AHEAD], d[ROW_AHEAD];
            GLOBAL const float *x_from = x + (WIDE)first * channels + column;
            GLOBAL const float *dy_from = dy + (WIDE)first * channels + column;
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = d[k] = 0.0f;
            EACH_AHEAD(ROW_AHEAD, k, row, first, 16, to)
            {
                value[k] = *x_from - middle;
                d[k] = *dy_from;
                x_from += on, dy_from += on;
            }
            EACH_IN_REGISTERS(ROW_AHEAD, k)
            {
                sum += d[k];
                products += d[k] * value[k];
            }
        }
    }
    TEAM_SUM(sum, part, ITEM % 16, lane, 16, 16);
    TEAM_SUM(products, part, ITEM % 16, lane, 16, 16);
    if (lane == 0 && column < channels && GROUP_Y < INT(3)) { /* groups may be more than parts */
        GLOBAL float *to_part = parts + (WIDE)GROUP_Y * 2 * channels + column;
        to_part[0] = sum;
        to_part[channels] = products;
    }
}

/* The gradients of scale and shift from those sums, and what dx is made of. Buffers parts, scale, mean,
   variance, and six rows of channels: dscale, dshift, then the mean and the factors of dy, of x - mean and of
   1. Ints also: whether mean and variance are those of x; floats epsilon; size{channels}. A group does 16
   channels. */
KERNEL(batch_norm_gradients)
{
    GLOBAL const float *parts = BUFFER(0, const float);
    GLOBAL const float *scale = BUFFER(1, const float);
    GLOBAL const float *mean = BUFFER(2, const float);
    GLOBAL const float *variance = BUFFER(3, const float);
    GLOBAL float *out = BUFFER(4, float);
    const int rows = INT(0), channels = INT(1), count = INT(3), by_batch = INT(4);
    const float epsilon = REAL(0);
    const int c = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16;
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f, products = 0.0f;
    if (c < channels)
        for (int i = lane; i < count; i += 16) {
            sum += parts[(WIDE)2 * i * channels + c];
            products += parts[((WIDE)2 * i + 1) * channels + c];
        }
    TEAM_SUM(sum, part, ITEM % 16, lane, 16, 16);
    TEAM_SUM(products, part, ITEM % 16, lane, 16, 16);
    if (lane == 0 && c < channels) {
        const float inverse = 1.0f / SQRT(variance[c] + epsilon), factor = scale[c] * inverse;
        out[c] = products * inverse;
        out[(WIDE)channels + c] = sum;
        out[(WIDE)2 * channels + c] = mean[c];
        out[(WIDE)3 * channels + c] = factor;
        out[(WIDE)4 * channels + c] = by_batch ? -factor * inverse * inverse * products / (float)rows : 0.0f;
        out[(WIDE)5 * channels + c] = by_batch ? -factor * sum / (float)rows : 0.0f;
    }
}

/* dx = what follows from the last four of those rows + beta dx. Buffers x, dy, the rows, dx; floats beta;
   size{rows * channels}. */
KERNEL(batch_norm_backward)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL const float *by_channel = BUFFER(2, const float);
    GLOBAL float *dx = BUFFER(3, float);
    const unsigned channels = (unsigned)INT(1), n = (unsigned)INT(0) * channels;
    const float beta = REAL(0);
    RUN_BEGINS(n);
    float value[RUN], d[RUN], old[RUN], level[RUN], of_dy[RUN], of_x[RUN], rest[RUN];
    EACH_OF_RUN(k, i, n)
    {
        value[k] = x[i];
        d[k] = dy[i];
        old[k] = dml__old(beta, dx + i);
    }
    EACH_PLACE_OF_RUN(k, row, c, channels)
    {
        level[k] = by_channel[c];
        of_dy[k] = by_channel[channels + c];
        of_x[k] = by_channel[2 * channels + c];
        rest[k] = by_channel[3 * channels + c];
    }
    EACH_OF_RUN(k, i, n)
    dx[i] = of_dy[k] * d[k] + of_x[k] * (value[k] - level[k]) + rest[k] + beta * old[k];
}

#endif
