/* embedding_bag.cl: sums of rows of a table (rows, width) by number. A bag is `length` places of indices, in
   range or -1 for none: the host sees to it. Weights are like the indices, or NULL.

   Ints of all: places (of all bags), width, length, mean. */
#ifndef DML_GPU_EMBEDDING_BAG_CL
#define DML_GPU_EMBEDDING_BAG_CL

/* How much each place of a bag counts that has no weight. */
HELPER float dml__bag_share(GLOBAL const int *indices, int length, int mean)
{
    int count = 0;
    if (!mean) return 1.0f;
    for (int i = 0; i < length; i++) count += indices[i] >= 0;
    return count ? 1.0f / (float)count : 0.0f;
}

/* y[bag] = the sum of its rows. Buffers indices (int), weights, table, y; size{bags * width}. */
KERNEL(embedding_bag_forward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const float *weights = BUFFER(1, const float);
    GLOBAL const float *table = BUFFER(2, const float);
    GLOBAL float *y = BUFFER(3, float);
    const int length = INT(2);
    const unsigned width = (unsigned)INT(1), n = (unsigned)(INT(0) / length) * width;
    const unsigned i = ELEMENT;
    if (i < n) {
        const WIDE first = (WIDE)(i / width) * length;
        const float part = dml__bag_share(indices + first, length, weights ? 0 : INT(3));
        float sum = 0.0f;
        for (int k = 0; k < length; k++) {
            const int row = indices[first + k];
            if (row >= 0)
                sum += (weights ? weights[first + k] : part) * table[(WIDE)row * INT(1) + i % width];
        }
        y[i] = sum;
    }
}

/* dtable[r] += the sum of the dy of r's bags, each place as much as it counts. Buffers indices (int), links
   (int, of embedding_links), weights, dy, dtable; size{places * width}. */
KERNEL(embedding_bag_backward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const int *links = BUFFER(1, const int);
    GLOBAL const float *weights = BUFFER(2, const float);
    GLOBAL const float *dy = BUFFER(3, const float);
    GLOBAL float *dtable = BUFFER(4, float);
    const int length = INT(2);
    const unsigned width = (unsigned)INT(1), n = (unsigned)INT(0) * width;
    const unsigned i = ELEMENT;
    if (i < n) {
        const int first = (int)(i / width), column = (int)(i % width);
        if (indices[first] >= 0 && links[(WIDE)INT(0) + first]) {
            GLOBAL float *to = dtable + (WIDE)indices[first] * INT(1) + column;
            float sum = *to;
            for (int at = first; at >= 0; at = links[at]) {
                const int bag = at / length;
                const float scale =
                    weights ? weights[at] : dml__bag_share(indices + (WIDE)bag * length, length, INT(3));
                sum += scale * dy[(WIDE)bag * INT(1) + column];
            }
            *to = sum;
        }
    }
}

/* dweights = beta dweights + each place's row times its bag's dy. Buffers indices (int), table, dy, dweights;
   floats beta; size{places}. */
KERNEL(embedding_bag_weights)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const float *table = BUFFER(1, const float);
    GLOBAL const float *dy = BUFFER(2, const float);
    GLOBAL float *dweights = BUFFER(3, float);
    const int width = INT(1), row = (int)ELEMENT < INT(0) ? indices[ELEMENT] : -1;
    const unsigned i = ELEMENT;
    if (i < (unsigned)INT(0)) {
        const WIDE bag = (WIDE)(i / (unsigned)INT(2)) * width;
        float sum = 0.0f;
        for (int c = 0; c < width && row >= 0; c++) sum += table[(WIDE)row * width + c] * dy[bag + c];
        dweights[i] = dml__with_beta(sum, REAL(0), dweights + i);
    }
}

#endif
