/* gather.cl: places along an axis by number: x (outer, n, inner) -> y (outer, m, inner). Of whole rows,
   `group` of the outer share a list of indices (outer / group, m); of single elements, indices are (outer, m,
   inner). They are in range: the host sees to it.

   Ints of both: n, inner, m, group, elements (0 or 1), count of what is written. */
#ifndef DML_GPU_GATHER_CL
#define DML_GPU_GATHER_CL

/* The index for y[o][j][i]. */
HELPER WIDE dml__gather_place(int o, int j, int i, int m, int inner, int group, int elements)
{
    return elements ? ((WIDE)o * m + j) * inner + i : (WIDE)(o / group) * m + j;
}

/* Buffers indices (int), x, y; size{outer * m * inner}. */
KERNEL(gather_forward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const float *x = BUFFER(1, const float);
    GLOBAL float *y = BUFFER(2, float);
    const int n = INT(0), inner = INT(1), m = INT(2);
    const unsigned at = ELEMENT;
    if (at < (unsigned)INT(5)) {
        const int i = (int)(at % (unsigned)inner), row = (int)(at / (unsigned)inner), j = row % m,
                  o = row / m;
        const int k = indices[dml__gather_place(o, j, i, m, inner, INT(3), INT(4))];
        y[at] = x[((WIDE)o * n + k) * inner + i];
    }
}

/* dx = the sum of those dy that were taken from it, in the order of j, + beta dx. Buffers indices (int), dy,
   dx; floats beta; size{outer * n * inner}: an item looks for what is its own. */
KERNEL(gather_backward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const float *dy = BUFFER(1, const float);
    GLOBAL float *dx = BUFFER(2, float);
    const int n = INT(0), inner = INT(1), m = INT(2);
    const unsigned at = ELEMENT;
    if (at < (unsigned)INT(5)) {
        const int i = (int)(at % (unsigned)inner), row = (int)(at / (unsigned)inner), k = row % n,
                  o = row / n;
        float sum = 0.0f;
        for (int j = 0; j < m; j++)
            if (indices[dml__gather_place(o, j, i, m, inner, INT(3), INT(4))] == k)
                sum += dy[((WIDE)o * m + j) * inner + i];
        dx[at] = dml__with_beta(sum, REAL(0), dx + at);
    }
}

#endif
