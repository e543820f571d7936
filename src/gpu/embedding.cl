/* embedding.cl: rows of a table (rows, width) by number. Indices are (count), in range: the host sees to it.

   Ints of all: count, width. */
#ifndef DML_GPU_EMBEDDING_CL
#define DML_GPU_EMBEDDING_CL

/* y[i] = table[indices[i]]. Buffers indices (int), table, y; size{count * width}. */
KERNEL(embedding_forward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const float *table = BUFFER(1, const float);
    GLOBAL float *y = BUFFER(2, float);
    const unsigned width = (unsigned)INT(1), n = (unsigned)INT(0) * width;
    const dml__gpu_divisor by_width = dml__gpu_divisor_of(INT(1));
    int row[RUN];
    float value[RUN];
    EACH_OF_RUN(k, i, n) row[k] = indices[dml__gpu_divide(i, by_width)];
    EACH_OF_RUN(k, i, n)
    value[k] = table[(WIDE)row[k] * INT(1) + (i - dml__gpu_divide(i, by_width) * width)];
    EACH_OF_RUN(k, i, n) y[i] = value[k];
}

/* For each place the next one with the same index, or -1; and, behind these, whether it is the first. So the
   sum of each row can be made by one item, in order. Buffers indices (int), links (int); size{count}. */
KERNEL(embedding_links)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL int *links = BUFFER(1, int);
    const int count = INT(0), i = (int)ELEMENT;
    if (i < count) {
        const int mine = indices[i];
        int next = i + 1, before = i - 1;
        while (next < count && indices[next] != mine) next++;
        while (before >= 0 && indices[before] != mine) before--;
        links[i] = next < count ? next : -1;
        links[(WIDE)count + i] = before < 0;
    }
}

/* dtable[r] += the sum of those dy[i] whose index is r. Buffers indices (int), links (int), dy, dtable;
   size{count * width}. */
KERNEL(embedding_backward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const int *links = BUFFER(1, const int);
    GLOBAL const float *dy = BUFFER(2, const float);
    GLOBAL float *dtable = BUFFER(3, float);
    const unsigned width = (unsigned)INT(1), n = (unsigned)INT(0) * width;
    const unsigned i = ELEMENT;
    if (i < n) {
        const int first = (int)(i / width), column = (int)(i % width);
        if (links[(WIDE)INT(0) + first]) {
            GLOBAL float *to = dtable + (WIDE)indices[first] * INT(1) + column;
            float sum = *to;
            for (int at = first; at >= 0; at = links[at]) sum += dy[(WIDE)at * INT(1) + column];
            *to = sum;
        }
    }
}

#endif
