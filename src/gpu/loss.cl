/* loss.cl: losses and their gradients. */
#ifndef DML_GPU_LOSS_CL
#define DML_GPU_LOSS_CL

/* What the classes c of a row weigh, but for a label's own part (kernels/cross_entropy.h). */
HELPER float dml__class_weight(GLOBAL const float *target, GLOBAL const float *weights, int c, int classes,
                               float smoothing)
{
    float weight = smoothing / (float)classes;
    if (target) weight += (1.0f - smoothing) * target[c];
    return weights ? weight * weights[c] : weight;
}

/* For each row, kept (6, rows) = the largest logit, 1 / sum(exp(logit - largest)), the sum of what the
   classes weigh, its loss, what it counts in the divisor, its weight. A label outside 0 .. classes - 1 that
   isn't the ignored one gives a loss of NaN and reads nothing. Buffers logits, labels (int) or the target,
   class weights, row weights (NULL: 1), kept; ints rows, classes, rows of a row weight, whether there are
   labels, whether one is ignored, which, lanes (16 to 256, a power of two), which items do a row; floats
   smoothing; size{groups}. */
KERNEL(cross_entropy_forward)
{
    GLOBAL const float *logits = BUFFER(0, const float);
    GLOBAL const float *class_weights = BUFFER(2, const float);
    GLOBAL const float *row_weights = BUFFER(3, const float);
    GLOBAL float *kept = BUFFER(4, float);
    const int rows = INT(0), classes = INT(1), labelled = INT(3);
    const float smoothing = REAL(0);
    const int lanes = INT(6), lane = ITEM % lanes, team = ITEM - lane;
    const int row = GROUP_X * (DML__GROUP_ITEMS / lanes) + ITEM / lanes, inside = row < rows;
    const WIDE first = (WIDE)row * classes;
    GLOBAL const float *target = labelled ? 0 : BUFFER(1, const float);
    GLOBAL const int *labels = labelled ? BUFFER(1, const int) : 0;
    LOCAL float part[DML__GROUP_ITEMS];
    float largest = MINUS_INFINITY, sum = 0.0f, whole = 0.0f, product = 0.0f;
    float weight = inside && row_weights ? row_weights[row / INT(2)] : 1.0f;
    if (inside && labelled && INT(4) && labels[row] == INT(5)) weight = 0.0f;
    if (inside && labelled && class_weights && smoothing == 0.0f && weight != 0.0f && labels[row] >= 0 &&
        labels[row] < classes && class_weights[labels[row]] == 0.0f)
        weight = 0.0f;
    const int counts = inside && weight != 0.0f;
    if (counts)
        for (int from = lane; from < classes; from += EXPONENTIALS_AHEAD * lanes) {
            float value[EXPONENTIALS_AHEAD];
            UNROLL for (int k = 0; k < EXPONENTIALS_AHEAD; k++) value[k] = MINUS_INFINITY;
            EACH_AHEAD(EXPONENTIALS_AHEAD, k, c, from, lanes, classes) value[k] = logits[first + c];
            ADD_EXPONENTIALS(value, EXPONENTIALS_AHEAD, largest, sum);
        }
    const float own_largest = largest;
    TEAM_MOST(largest, part, team, lane, lanes, 1);
    if (own_largest < largest) sum *= EXP(own_largest - largest);
    TEAM_SUM(sum, part, team, lane, lanes, 1);
    if (counts && (target || smoothing != 0.0f))
        for (int c = lane; c < classes; c += lanes) {
            const float of_class =
                dml__class_weight(target ? target + first : 0, class_weights, c, classes, smoothing);
            whole += of_class;
            product += of_class * (largest - logits[first + c]);
        }
    if (target || smoothing != 0.0f) {
        TEAM_SUM(whole, part, team, lane, lanes, 1);
        TEAM_SUM(product, part, team, lane, lanes, 1);
    }
    if (lane == 0 && inside) {
        float share = weight;
        if (counts && labelled) {
            const int label = labels[row], known = label >= 0 && label < classes;
            const float own = !known ? NOT_A_NUMBER : class_weights ? class_weights[label] : 1.0f;
            whole += (1.0f - smoothing) * own;
            product += (1.0f - smoothing) * own * (known ? largest - logits[first + label] : 0.0f);
            share *= own;
        }
        kept[row] = counts ? largest : 0.0f;
        kept[(WIDE)rows + row] = counts ? 1.0f / sum : 1.0f;
        kept[(WIDE)rows * 2 + row] = whole;
        kept[(WIDE)rows * 3 + row] = counts ? weight * (whole * LOG(sum) + product) : 0.0f;
        kept[(WIDE)rows * 4 + row] = share;
        kept[(WIDE)rows * 5 + row] = weight;
    }
}

/* dlogits = dloss[0] scale[0] x the gradient of each row's loss + beta dlogits, which may be the logits.
   Buffers logits, labels (int) or the target, class weights (NULL: 1), kept (6, rows) with the scale behind
   it, dloss, dlogits; ints rows, classes, whether there are labels; floats smoothing, beta;
   size{rows * classes}. */
KERNEL(cross_entropy_backward)
{
    GLOBAL const float *logits = BUFFER(0, const float);
    GLOBAL const float *class_weights = BUFFER(2, const float);
    GLOBAL const float *kept = BUFFER(3, const float);
    GLOBAL const float *dloss = BUFFER(4, const float);
    GLOBAL float *dlogits = BUFFER(5, float);
    const unsigned rows = (unsigned)INT(0), classes = (unsigned)INT(1);
    const float smoothing = REAL(0), beta = REAL(1);
    GLOBAL const float *target = INT(2) ? 0 : BUFFER(1, const float);
    GLOBAL const int *labels = INT(2) ? BUFFER(1, const int) : 0;
    const unsigned n = rows * classes;
    const dml__gpu_divisor by_classes = dml__gpu_divisor_of(INT(1));
    const float scale = dloss[0] * kept[(WIDE)rows * 6];
    RUN_BEGINS(n);
    float logit[RUN], old[RUN], weight = 0.0f, largest = 0.0f, factor = 0.0f;
    unsigned last = 0xffffffffu; /* the row that these are of */
    int label = 0;
    EACH_OF_RUN(k, i, n)
    {
        logit[k] = logits[i];
        old[k] = dml__old(beta, dlogits + i);
    }
    EACH_OF_RUN(k, i, n)
    {
        const unsigned row = dml__gpu_divide(i, by_classes), c = i - row * classes;
        float value = 0.0f;
        if (row != last) {
            last = row;
            weight = kept[(WIDE)rows * 5 + row];
            largest = kept[row];
            factor = kept[rows + row] * kept[(WIDE)rows * 2 + row];
            label = labels ? labels[row] : -1;
        }
        if (weight != 0.0f) {
            float of_class = dml__class_weight(target ? target + (WIDE)row * classes : 0, class_weights,
                                               (int)c, (int)classes, smoothing);
            if (labels && (unsigned)label == c)
                of_class += (1.0f - smoothing) * (class_weights ? class_weights[c] : 1.0f);
            value = (EXP(logit[k] - largest) * factor - of_class) * (scale * weight);
        }
        dlogits[i] = value + beta * old[k];
    }
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
