/* loss.cl: losses and their gradients. */
#ifndef DML_GPU_LOSS_CL
#define DML_GPU_LOSS_CL

#define CLASSES_AHEAD 8 /* of a row, which an item reads before it computes */

/* What the classes c of a row weigh, but for a label's own part (kernels/cross_entropy.h). */
HELPER float dml__class_weight(GLOBAL const float *target, GLOBAL const float *weights, int c, int classes,
                               float smoothing)
{
    float weight = smoothing / (float)classes;
    if (target) weight += (1.0f - smoothing) * target[c];
    return weights ? weight * weights[c] : weight;
}

/* Both kernels are helpers with the lanes as a constant: the items that do a row, of which a group does 256 /
   lanes. */
#define CROSS_ENTROPY_PARAMETERS HERE_PARAMETER const int lanes, SHARED float *part
#define CROSS_ENTROPY_ROW                                                                                    \
    (GROUP_X * (int)(DML__GROUP_ITEMS / (unsigned)lanes) + (int)((unsigned)ITEM / (unsigned)lanes))

HELPER void dml__cross_entropy_forward_as(CROSS_ENTROPY_PARAMETERS, GLOBAL const float *logits,
                                          GLOBAL const float *target, GLOBAL const int *labels,
                                          GLOBAL const float *class_weights, GLOBAL const float *row_weights,
                                          GLOBAL float *kept, const dml__kernel_arguments arguments)
{
    const int rows = INT(0), classes = INT(1), all = INT(8) ? INT(8) : classes;
    const float smoothing = REAL(0);
    const int lane = ITEM & (lanes - 1), team = ITEM - lane, row = CROSS_ENTROPY_ROW, inside = row < rows;
    float largest = MINUS_INFINITY, sum = 0.0f, whole = 0.0f, product = 0.0f;
    float weight = inside && row_weights ? row_weights[row / INT(2)] : 1.0f;
    if (inside && labels && INT(4) && labels[row] == INT(5)) weight = 0.0f;
    if (inside && labels && class_weights && smoothing == 0.0f && weight != 0.0f && labels[row] >= 0 &&
        labels[row] < classes && class_weights[labels[row]] == 0.0f)
        weight = 0.0f;
    const int counts = inside && weight != 0.0f;
    logits += (WIDE)row * classes;
    if (counts)
        for (int from = lane; from < classes; from += EXPONENTIALS_AHEAD * lanes) {
            float value[EXPONENTIALS_AHEAD];
            GLOBAL const float *piece = logits + from;
            EACH_IN_REGISTERS(EXPONENTIALS_AHEAD, k) value[k] = MINUS_INFINITY;
            EACH_LEFT(EXPONENTIALS_AHEAD, k, classes - from) value[k] = piece[k * lanes];
            ADD_EXPONENTIALS(value, EXPONENTIALS_AHEAD, largest, sum);
        }
    const float own_largest = largest;
    TEAM_MOST(largest, part, team, lane, lanes, 1);
    if (own_largest < largest) sum *= EXP(own_largest - largest);
    TEAM_SUM(sum, part, team, lane, lanes, 1);
    if (counts && (target || smoothing != 0.0f))
        for (int c = lane; c < classes; c += lanes) {
            const float of_class = dml__class_weight(target ? target + (WIDE)row * classes : 0, class_weights,
                                                     c, all, smoothing);
            whole += of_class;
            product += of_class * (largest - logits[c]);
        }
    if (target || smoothing != 0.0f) {
        TEAM_SUM(whole, part, team, lane, lanes, 1);
        TEAM_SUM(product, part, team, lane, lanes, 1);
    }
    if (lane == 0 && inside) {
        float share = weight;
        if (counts && labels) {
            const int label = labels[row], known = label >= 0 && label < all;
            const int place = label - INT(7), here = known && place >= 0 && place < classes;
            const float own = !known ? NOT_A_NUMBER : class_weights ? class_weights[label] : 1.0f;
            if (here || !known) {
                whole += (1.0f - smoothing) * own;
                product += (1.0f - smoothing) * own * (here ? largest - logits[place] : 0.0f);
            }
            share *= own;
        }
        kept[row] = counts ? largest : 0.0f;
        kept[(WIDE)rows + row] = !counts ? 1.0f : INT(8) ? sum : 1.0f / sum;
        kept[(WIDE)rows * 2 + row] = whole;
        kept[(WIDE)rows * 3 + row] = !counts  ? 0.0f
                                     : INT(8) ? (largest > MINUS_INFINITY ? product : 0.0f)
                                              : weight * (whole * LOG(sum) + product);
        kept[(WIDE)rows * 4 + row] = share;
        kept[(WIDE)rows * 5 + row] = weight;
    }
}

/* For each row, kept (6, rows) = the largest logit, 1 / sum(exp(logit - largest)), the sum of what the
   classes weigh, its loss, what it counts in the divisor, its weight. A label outside 0 .. classes - 1 that
   isn't the ignored one gives a loss of NaN and reads nothing. Buffers logits, labels (int) or the target,
   class weights, row weights (NULL: 1), kept; ints rows, classes, rows of a row weight, whether there are
   labels, whether one is ignored, which, lanes (16, 64 or 256), and, of a part of the classes, its first one
   and how many all are (0: it is all of them); floats smoothing; size{groups}. Of a part the sum itself is
   kept, and the sum of weight x (largest - logit) (kernels/cross_entropy.h). */
KERNEL(cross_entropy_forward)
{
    LOCAL float part[DML__GROUP_ITEMS];
#define CROSS_ENTROPY_FORWARD(lanes)                                                                         \
    dml__cross_entropy_forward_as(HERE lanes, part, BUFFER(0, const float),                                  \
                                  INT(3) ? 0 : BUFFER(1, const float), INT(3) ? BUFFER(1, const int) : 0,    \
                                  BUFFER(2, const float), BUFFER(3, const float), BUFFER(4, float),          \
                                  arguments)
    BY_LANES(INT(6), CROSS_ENTROPY_FORWARD);
#undef CROSS_ENTROPY_FORWARD
}

HELPER void dml__cross_entropy_backward_as(HERE_PARAMETER const int lanes, GLOBAL const float *logits,
                                           GLOBAL const float *target, GLOBAL const int *labels,
                                           GLOBAL const float *class_weights, GLOBAL const float *kept,
                                           GLOBAL const float *dloss, GLOBAL float *dlogits,
                                           const dml__kernel_arguments arguments)
{
    const int rows = INT(0), classes = INT(1), all = INT(5) ? INT(5) : classes;
    const int row = CROSS_ENTROPY_ROW, inside = row < rows;
    const int from = GROUP_Y * CLASSES_AHEAD * lanes + (ITEM & (lanes - 1)),
              left = inside ? classes - from : 0;
    const float smoothing = REAL(0), beta = REAL(1);
    const WIDE first = (WIDE)row * classes + from;
    float logit[CLASSES_AHEAD], old[CLASSES_AHEAD];
    logits += first, dlogits += first;
    EACH_IN_REGISTERS(CLASSES_AHEAD, k) logit[k] = old[k] = 0.0f;
    EACH_LEFT(CLASSES_AHEAD, k, left) logit[k] = logits[k * lanes];
    if (beta != 0.0f) EACH_LEFT(CLASSES_AHEAD, k, left) old[k] = dlogits[k * lanes];
    const float weight = inside ? kept[(WIDE)rows * 5 + row] : 0.0f, largest = inside ? kept[row] : 0.0f;
    const float factor = inside ? kept[(WIDE)rows + row] * kept[(WIDE)rows * 2 + row] : 0.0f;
    const float scale = dloss[0] * kept[(WIDE)rows * 6] * weight;
    const int label = inside && labels ? labels[row] - INT(4) - from : -1; /* of this item's classes */
    if (labels && !class_weights) {
        const float of_each = smoothing / (float)all, of_label = of_each + (1.0f - smoothing);
        EACH_IN_REGISTERS(CLASSES_AHEAD, k)
        {
            const float of_class = label == k * lanes ? of_label : of_each;
            logit[k] = (EXP(logit[k] - largest) * factor - of_class) * scale;
        }
    } else {
        EACH_LEFT(CLASSES_AHEAD, k, left)
        {
            float of_class = dml__class_weight(target ? target + (WIDE)row * classes : 0, class_weights,
                                               from + k * lanes, all, smoothing);
            if (label == k * lanes)
                of_class += (1.0f - smoothing) * (class_weights ? class_weights[from + k * lanes] : 1.0f);
            logit[k] = (EXP(logit[k] - largest) * factor - of_class) * scale;
        }
    }
    EACH_IN_REGISTERS(CLASSES_AHEAD, k) logit[k] = (weight != 0.0f ? logit[k] : 0.0f) + beta * old[k];
    EACH_LEFT(CLASSES_AHEAD, k, left) dlogits[k * lanes] = logit[k];
}

/* dlogits = dloss[0] scale[0] x the gradient of each row's loss + beta dlogits, which may be the logits.
   Buffers logits, labels (int) or the target, class weights (NULL: 1), kept (6, rows) with the scale behind
   it, dloss, dlogits; ints rows, classes, whether there are labels, lanes (16, 64 or 256), and of a part the
   same two as forward's; floats smoothing, beta; size{groups of rows, classes / lanes, rounded up}. */
KERNEL(cross_entropy_backward)
{
#define CROSS_ENTROPY_BACKWARD(lanes)                                                                        \
    dml__cross_entropy_backward_as(HERE lanes, BUFFER(0, const float), INT(2) ? 0 : BUFFER(1, const float),  \
                                   INT(2) ? BUFFER(1, const int) : 0, BUFFER(2, const float),                \
                                   BUFFER(3, const float), BUFFER(4, const float), BUFFER(5, float),         \
                                   arguments)
    BY_LANES(INT(3), CROSS_ENTROPY_BACKWARD);
#undef CROSS_ENTROPY_BACKWARD
}

/* dtarget = the same for the target. Buffers logits, class weights (NULL: 1), kept as above, dloss, dtarget;
   ints rows, classes; floats smoothing, beta; size{rows * classes}. */
KERNEL(cross_entropy_backward_target)
{
    GLOBAL const float *logits = BUFFER(0, const float);
    GLOBAL const float *class_weights = BUFFER(1, const float);
    GLOBAL const float *kept = BUFFER(2, const float);
    GLOBAL const float *dloss = BUFFER(3, const float);
    GLOBAL float *dtarget = BUFFER(4, float);
    const unsigned rows = (unsigned)INT(0), classes = (unsigned)INT(1);
    const float beta = REAL(1);
    const unsigned i = ELEMENT;
    if (i < rows * classes) {
        const unsigned row = i / classes;
        const float weight = kept[(WIDE)rows * 5 + row];
        float value = 0.0f;
        if (weight != 0.0f) {
            value = kept[row] - logits[i] - LOG(kept[rows + row]);
            value *= dloss[0] * kept[(WIDE)rows * 6] * weight * (1.0f - REAL(0));
            if (class_weights) value *= class_weights[i - row * classes];
        }
        dtarget[i] = dml__with_beta(value, beta, dtarget + i);
    }
}

/* scale[0] = 1, or for a mean 1 / (factor x the sum of shares), 0 where that is 0; y[0] = scale[0] x the sum
   of x[i] weights[i / each]. Buffers x, weights (NULL: 1), shares (NULL: 1 each), y, scale; ints n, each, how
   many shares, whether it is a mean; floats factor; size{1}: one group does it all. */
KERNEL(loss_total)
{
    GLOBAL const float *x = BUFFER(0, const float);
    GLOBAL const float *weights = BUFFER(1, const float);
    GLOBAL const float *shares = BUFFER(2, const float);
    GLOBAL float *y = BUFFER(3, float);
    GLOBAL float *scale = BUFFER(4, float);
    const unsigned n = (unsigned)INT(0), each = (unsigned)INT(1), count = (unsigned)INT(2);
    LOCAL float part[DML__GROUP_ITEMS];
    float sum = 0.0f, divisor = 0.0f;
    for (unsigned i = (unsigned)ITEM; i < n; i += DML__GROUP_ITEMS)
        sum += weights ? x[i] * weights[i / each] : x[i];
    part[ITEM] = sum;
    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);
    sum = part[0];
    BARRIER(); /* all have read it before its place is used again */
    if (shares)
        for (unsigned i = (unsigned)ITEM; i < count; i += DML__GROUP_ITEMS) divisor += shares[i];
    part[ITEM] = divisor;
    REDUCE_SUM(part, ITEM, DML__GROUP_ITEMS, 1);
    if (ITEM == 0) {
        divisor = INT(3) ? REAL(0) * (shares ? part[0] : (float)count) : 1.0f;
        scale[0] = divisor != 0.0f ? 1.0f / divisor : 0.0f;
        y[0] = divisor != 0.0f ? sum / divisor : 0.0f;
    }
}

/* dx[i] = dloss[0] scale[0] weights[i / each] + beta dx[i]. Buffers weights (NULL: 1), scale, dloss, dx; ints
   n, each; floats beta; size{n}. */
KERNEL(loss_spread)
{
    GLOBAL const float *weights = BUFFER(0, const float);
    GLOBAL const float *scale = BUFFER(1, const float);
    GLOBAL const float *dloss = BUFFER(2, const float);
    GLOBAL float *dx = BUFFER(3, float);
    const unsigned n = (unsigned)INT(0), each = (unsigned)INT(1);
    const float beta = REAL(0);
    const unsigned i = ELEMENT;
    if (i < n) {
        const float value = dloss[0] * scale[0] * (weights ? weights[i / each] : 1.0f);
        dx[i] = dml__with_beta(value, beta, dx + i);
    }
}

#endif
