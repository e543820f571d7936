/* sample_norm.cl: layer, RMS and group norm: numbers of a sample that are normalized together. x is (rows,
   channels); a row is a pixel, `pixels` of them a sample, and `width` neighbouring channels a group.

   Ints of all: rows, channels, pixels, width, whether by square (no mean is subtracted), rows of a part,
   parts, whether groups of samples are long, groups, samples * groups. Statistics are (samples, groups, 2):
   the mean, and 1 / sqrt(variance + epsilon).

   A work-group does four groups of samples with 64 items each, or a long one with all, where size{, 4} is
   launched. A sample of one row that fits into ROW_KEPT numbers an item is read once. */
#ifndef DML_GPU_SAMPLE_NORM_CL
#define DML_GPU_SAMPLE_NORM_CL

/* Both kernels are helpers with constants: lanes, and whether a sample is one row, which is `flat`. */
#define SAMPLE_PARAMETERS HERE_PARAMETER const int flat, const int lanes, SHARED float *part

/* The item's place, for the statements behind it: it has numbers lane, lane + lanes, ... below most. What is
   kept is flat. */
#define SAMPLE_BEGIN()                                                                                       \
    const int channels = INT(1), width = INT(3), groups = INT(8), n = width * INT(2);                        \
    const int lane = ITEM & (lanes - 1), team = ITEM - lane;                                                 \
    const int number = GROUP_X * 4 + (lanes > 64 ? GROUP_Y : ITEM / 64);                                     \
    const int inside = number < INT(9) && GROUP_Y < (lanes > 64 ? 4 : 1), most = inside ? n : 0;             \
    const dml__gpu_divisor by_width = dml__gpu_divisor_of(width);                                            \
    const int kept = flat && n <= lanes * ROW_KEPT, sample = groups == 1 ? number : number / groups;         \
    const int channel = (number - sample * groups) * width + (flat ? lane : 0);                              \
    const WIDE first = (WIDE)sample * INT(2) * channels + channel

/* From number `from` on: where that is, of an array or of a parameter at `first` or `channel`; and how far
   behind it, and for how many channels, number k * lanes further. */
#define SAMPLE_PIECE(p) ((p) + (flat ? from - lane : 0))
#define SAMPLE_ON(k)                                                                                         \
    (flat ? (WIDE)((k)*lanes) : (WIDE)SAMPLE_PIXEL(from + (k)*lanes) * channels + SAMPLE_CHANNEL_ON(k))
#define SAMPLE_CHANNEL_ON(k) (flat ? (k)*lanes : from + (k)*lanes - SAMPLE_PIXEL(from + (k)*lanes) * width)
#define SAMPLE_PIXEL(i) ((int)dml__gpu_divide((unsigned)(i), by_width))

HELPER void dml__sample_norm_forward_as(SAMPLE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *weight,
                                        GLOBAL const float *bias, GLOBAL float *statistics, GLOBAL float *y,
                                        const dml__kernel_arguments arguments)
{
    SAMPLE_BEGIN();
    const float epsilon = REAL(0);
    float value[ROW_KEPT], mean = 0.0f, sum = 0.0f, squares = 0.0f;
    x += first, y += first;
    if (weight) weight += channel;
    if (bias) bias += channel;
    EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = 0.0f;
    if (kept) {
        EACH_LEFT(ROW_KEPT, k, most - lane) value[k] = x[k * lanes];
        EACH_IN_REGISTERS(ROW_KEPT, k) sum += value[k];
    } else if (!INT(4)) {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            GLOBAL const float *piece = SAMPLE_PIECE(x);
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = 0.0f;
            EACH_LEFT(ROW_AHEAD, k, most - from) value[k] = piece[SAMPLE_ON(k)];
            EACH_IN_REGISTERS(ROW_AHEAD, k) sum += value[k];
        }
    }
    if (!INT(4)) {
        TEAM_SUM(sum, part, team, lane, lanes, 1);
        mean = sum / (float)n;
    }
    if (kept) {
        EACH_LEFT(ROW_KEPT, k, most - lane)
        {
            value[k] -= mean;
            squares += value[k] * value[k];
        }
    } else {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            GLOBAL const float *piece = SAMPLE_PIECE(x);
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = mean;
            EACH_LEFT(ROW_AHEAD, k, most - from) value[k] = piece[SAMPLE_ON(k)];
            EACH_IN_REGISTERS(ROW_AHEAD, k) squares += (value[k] - mean) * (value[k] - mean);
        }
    }
    TEAM_SUM(squares, part, team, lane, lanes, 1);
    const float inverse = 1.0f / SQRT(squares / (float)n + epsilon);
    if (lane == 0 && inside) {
        statistics[(WIDE)2 * number] = mean;
        statistics[(WIDE)2 * number + 1] = inverse;
    }
    if (kept) {
        EACH_IN_REGISTERS(ROW_KEPT, k) value[k] *= inverse;
        if (weight) EACH_LEFT(ROW_KEPT, k, most - lane) value[k] *= weight[k * lanes];
        if (bias) EACH_LEFT(ROW_KEPT, k, most - lane) value[k] += bias[k * lanes];
        EACH_LEFT(ROW_KEPT, k, most - lane) y[k * lanes] = value[k];
    } else {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            GLOBAL const float *piece = SAMPLE_PIECE(x), *scale = SAMPLE_PIECE(weight);
            GLOBAL const float *shift = SAMPLE_PIECE(bias);
            GLOBAL float *to = SAMPLE_PIECE(y);
            EACH_LEFT(ROW_AHEAD, k, most - from) value[k] = (piece[SAMPLE_ON(k)] - mean) * inverse;
            if (weight) EACH_LEFT(ROW_AHEAD, k, most - from) value[k] *= scale[SAMPLE_CHANNEL_ON(k)];
            if (bias) EACH_LEFT(ROW_AHEAD, k, most - from) value[k] += shift[SAMPLE_CHANNEL_ON(k)];
            EACH_LEFT(ROW_AHEAD, k, most - from) to[SAMPLE_ON(k)] = value[k];
        }
    }
}

HELPER void dml__sample_norm_backward_as(SAMPLE_PARAMETERS, GLOBAL const float *x, GLOBAL const float *dy,
                                         GLOBAL const float *weight, GLOBAL const float *statistics,
                                         GLOBAL float *dx, const dml__kernel_arguments arguments)
{
    SAMPLE_BEGIN();
    const float beta = REAL(0);
    const float mean = inside ? statistics[(WIDE)2 * number] : 0.0f;
    const float inverse = inside ? statistics[(WIDE)2 * number + 1] : 0.0f;
    float value[ROW_KEPT], g[ROW_KEPT], sum = 0.0f, products = 0.0f;
    x += first, dy += first, dx += first;
    if (weight) weight += channel;
    EACH_IN_REGISTERS(ROW_KEPT, k) value[k] = g[k] = 0.0f;
    if (kept) {
        EACH_LEFT(ROW_KEPT, k, most - lane)
        {
            value[k] = x[k * lanes];
            g[k] = dy[k * lanes];
        }
        if (weight) EACH_LEFT(ROW_KEPT, k, most - lane) g[k] *= weight[k * lanes];
        EACH_LEFT(ROW_KEPT, k, most - lane)
        {
            value[k] -= mean;
            sum += g[k];
            products += g[k] * value[k];
        }
    } else {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            GLOBAL const float *x_piece = SAMPLE_PIECE(x), *dy_piece = SAMPLE_PIECE(dy);
            GLOBAL const float *scale = SAMPLE_PIECE(weight);
            EACH_LEFT(ROW_AHEAD, k, most - from)
            {
                value[k] = x_piece[SAMPLE_ON(k)];
                g[k] = dy_piece[SAMPLE_ON(k)];
            }
            if (weight) EACH_LEFT(ROW_AHEAD, k, most - from) g[k] *= scale[SAMPLE_CHANNEL_ON(k)];
            EACH_LEFT(ROW_AHEAD, k, most - from)
            {
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
        EACH_IN_REGISTERS(ROW_KEPT, k) g[k] = inverse * ((g[k] - level) - value[k] * along);
        if (beta != 0.0f) EACH_LEFT(ROW_KEPT, k, most - lane) g[k] += beta * dx[k * lanes];
        EACH_LEFT(ROW_KEPT, k, most - lane) dx[k * lanes] = g[k];
    } else {
        for (int from = lane; from < most; from += ROW_AHEAD * lanes) {
            GLOBAL const float *x_piece = SAMPLE_PIECE(x), *dy_piece = SAMPLE_PIECE(dy);
            GLOBAL const float *scale = SAMPLE_PIECE(weight);
            GLOBAL float *to = SAMPLE_PIECE(dx);
            EACH_LEFT(ROW_AHEAD, k, most - from)
            {
                value[k] = x_piece[SAMPLE_ON(k)];
                g[k] = dy_piece[SAMPLE_ON(k)];
            }
            if (weight) EACH_LEFT(ROW_AHEAD, k, most - from) g[k] *= scale[SAMPLE_CHANNEL_ON(k)];
            EACH_LEFT(ROW_AHEAD, k, most - from)
            g[k] = inverse * ((g[k] - level) - (value[k] - mean) * along);
            if (beta != 0.0f) EACH_LEFT(ROW_AHEAD, k, most - from) g[k] += beta * to[SAMPLE_ON(k)];
            EACH_LEFT(ROW_AHEAD, k, most - from) to[SAMPLE_ON(k)] = g[k];
        }
    }
}

/* Which of them a launch is for. */
#ifdef DML__RUN
#define SAMPLE_CHOICE(call) call(INT(2) == 1, INT(7) ? 256 : 64)
#else
#define SAMPLE_CHOICE(call)                                                                                  \
    do {                                                                                                     \
        if (INT(2) == 1 && !INT(7))                                                                          \
            call(1, 64);                                                                                     \
        else if (INT(2) == 1)                                                                                \
            call(1, 256);                                                                                    \
        else if (!INT(7))                                                                                    \
            call(0, 64);                                                                                     \
        else                                                                                                 \
            call(0, 256);                                                                                    \
    } while (0)
#endif

/* y = weight (x - mean) inverse + bias. Buffers x, weight or NULL, bias or NULL, statistics, y; floats
   epsilon; size{samples * groups}, of long ones also 4. y may be x. */
KERNEL(sample_norm_forward_team)
{
    LOCAL float part[DML__GROUP_ITEMS];
#define SAMPLE_FORWARD(flat, lanes)                                                                          \
    dml__sample_norm_forward_as(HERE flat, lanes, part, BUFFER(0, const float), BUFFER(1, const float),      \
                                BUFFER(2, const float), BUFFER(3, float), BUFFER(4, float), arguments)
    SAMPLE_CHOICE(SAMPLE_FORWARD);
#undef SAMPLE_FORWARD
}

/* dx = inverse (g - mean of g - (x - mean) inverse^2 mean of g (x - mean)) + beta dx for g = weight dy, by
   square without the mean of g. Buffers x, dy, weight or NULL, statistics, dx; floats beta;
   size{samples * groups}, of long ones also 4. dx may be dy. */
KERNEL(sample_norm_backward_team)
{
    LOCAL float part[DML__GROUP_ITEMS];
#define SAMPLE_BACKWARD(flat, lanes)                                                                         \
    dml__sample_norm_backward_as(HERE flat, lanes, part, BUFFER(0, const float), BUFFER(1, const float),     \
                                 BUFFER(2, const float), BUFFER(3, const float), BUFFER(4, float),           \
                                 arguments)
    SAMPLE_CHOICE(SAMPLE_BACKWARD);
#undef SAMPLE_BACKWARD
}

/* The sums of dy and of dy (x - mean) inverse of each channel over the rows of a part: parts (2, parts,
   channels). Buffers x, dy, statistics, parts; size{channels, parts}. A group does 16 columns of a part. */
KERNEL(sample_norm_products)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL const float *statistics = BUFFER(2, const float);
    GLOBAL float *parts = BUFFER(3, float);
    const int rows = INT(0), channels = INT(1), pixels = INT(2), groups = INT(8);
    const int from = GROUP_Y * INT(5), to = rows - from < INT(5) ? rows : from + INT(5);
    const int column = GROUP_X * 16 + ITEM % 16, lane = ITEM / 16, group = column / INT(3);
    const dml__gpu_divisor by_pixels = dml__gpu_divisor_of(pixels);
    LOCAL float part[DML__GROUP_ITEMS];
    const WIDE on = (WIDE)16 * channels;
    float sum = 0.0f, products = 0.0f;
    if (column < channels) {
        for (int first = from + lane; first < to; first += ROW_AHEAD * 16) {
            float value[ROW_AHEAD], d[ROW_AHEAD], mean[ROW_AHEAD], inverse[ROW_AHEAD];
            GLOBAL const float *x_from = x + (WIDE)first * channels + column;
            GLOBAL const float *dy_from = dy + (WIDE)first * channels + column;
            EACH_IN_REGISTERS(ROW_AHEAD, k) value[k] = d[k] = mean[k] = inverse[k] = 0.0f;
            EACH_AHEAD(ROW_AHEAD, k, row, first, 16, to)
            {
                const int sample = pixels == 1 ? row : (int)dml__gpu_divide((unsigned)row, by_pixels);
                GLOBAL const float *of = statistics + 2 * ((WIDE)sample * groups + group);
                mean[k] = of[0], inverse[k] = of[1];
                value[k] = *x_from, d[k] = *dy_from;
                x_from += on, dy_from += on;
            }
            EACH_IN_REGISTERS(ROW_AHEAD, k)
            {
                sum += d[k];
                products += d[k] * ((value[k] - mean[k]) * inverse[k]);
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
