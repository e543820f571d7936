/* embedding.cl: rows of a table (rows, width) by number. Indices are (count), in range: the host sees to it.

   Ints of all: count, width; and where a table is a part of one, the number of its first row there and how
   many it has (0: it is all of the table): the rows of other parts are zeros, and left alone. */
#ifndef DML_GPU_EMBEDDING_CL
#define DML_GPU_EMBEDDING_CL

/* Where a row is in such a part, -1 where it isn't. */
HELPER int dml__row_here(int index, int first, int rows)
{
    const int row = index - first;
    return rows > 0 && (row < 0 || row >= rows) ? -1 : row;
}

/* y[i] = table[indices[i]]. Buffers indices (int), table, y; size{count * width}. */
KERNEL(embedding_forward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const float *table = BUFFER(1, const float);
    GLOBAL float *y = BUFFER(2, float);
    const unsigned width = (unsigned)INT(1), n = (unsigned)INT(0) * width;
    RUN_BEGINS(n);
    int row[RUN];
    unsigned column[RUN];
    float value[RUN];
    EACH_PLACE_OF_RUN(k, place, c, width)
    {
        row[k] = place < (unsigned)INT(0) ? dml__row_here(indices[place], INT(2), INT(3)) : -1;
        column[k] = c;
    }
    EACH_OF_RUN(k, i, n) value[k] = row[k] < 0 ? 0.0f : table[(WIDE)row[k] * INT(1) + column[k]];
    EACH_OF_RUN(k, i, n) y[i] = value[k];
}

/* For each place the next one with the same index, or -1; and, behind these, whether it is the first. So the
   sum of each row can be made by one item, in order. Buffers indices (int), links (int); size{count}.

   A group does LINKED places: each item looks through its share of all others, for all of these at once. */
#define LINKED 16
KERNEL(embedding_links_team)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL int *links = BUFFER(1, int);
    const int count = INT(0), begin = GROUP_X * LINKED;
    LOCAL int
        nexts[LINKED * DML__GROUP_ITEMS]; /* what each item found: twice the next, less 1 if one is before */
    int mine[LINKED], found[LINKED];
    UNROLL for (int l = 0; l < LINKED; l++)
    {
        mine[l] = begin + l < count ? indices[begin + l] : -1;
        found[l] = count;
    }
    unsigned befores = 0;
    for (int first = ITEM; first < count; first += ROW_AHEAD * DML__GROUP_ITEMS) {
        int index[ROW_AHEAD];
        UNROLL for (int k = 0; k < ROW_AHEAD; k++) index[k] = mine[0];
        EACH_AHEAD(ROW_AHEAD, k, at, first, DML__GROUP_ITEMS, count) index[k] = indices[at];
        EACH_AHEAD(ROW_AHEAD, k, at, first, DML__GROUP_ITEMS, count)
        {
            int any = 0;
            UNROLL for (int l = 0; l < LINKED; l++) any |= index[k] == mine[l];
            if (any) {
                UNROLL for (int l = 0; l < LINKED; l++)
                {
                    if (index[k] != mine[l]) continue;
                    if (at < begin + l) befores |= 1u << l;
                    if (at > begin + l && at < found[l]) found[l] = at;
                }
            }
        }
    }
    UNROLL for (int l = 0; l < LINKED; l++) nexts[l * DML__GROUP_ITEMS + ITEM] =
        2 * found[l] + (int)(befores >> l & 1u);
    BARRIER();
    const int l = ITEM / (DML__GROUP_ITEMS / LINKED), lane = ITEM % (DML__GROUP_ITEMS / LINKED);
    int next = count, before = 0;
    for (int of = lane; of < DML__GROUP_ITEMS; of += DML__GROUP_ITEMS / LINKED) {
        const int other = nexts[l * DML__GROUP_ITEMS + of];
        if (other / 2 < next) next = other / 2;
        before |= other & 1;
    }
    BARRIER(); /* all have read them before their places are used again */
    nexts[ITEM] = 2 * next + before;
    BARRIER();
    if (lane == 0 && begin + l < count) {
        for (int of = 1; of < DML__GROUP_ITEMS / LINKED; of++) {
            const int other = nexts[ITEM + of];
            if (other / 2 < next) next = other / 2;
            before |= other & 1;
        }
        links[begin + l] = next < count ? next : -1;
        links[(WIDE)count + begin + l] = !before;
    }
}

#ifdef SOLO_KERNEL
/* The same, where an item is a whole processor core: it looks from each place to the nearest. */
SOLO_KERNEL(embedding_links_solo)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL int *links = BUFFER(1, int);
    const int count = INT(0), begin = GROUP_X * 256, end = count - begin < 256 ? count : begin + 256;
    for (int i = begin; i < end; i++) {
        const int mine = indices[i];
        int next = i + 1, before = i - 1;
        while (next < count && indices[next] != mine) next++;
        while (before >= 0 && indices[before] != mine) before--;
        links[i] = next < count ? next : -1;
        links[(WIDE)count + i] = before < 0;
    }
}
#endif

/* dtable[r] += the sum of those dy[i] whose index is r. Buffers indices (int), links (int), dy, dtable;
   size{count * width}. */
#ifdef DML__RUN
#define LINKS_AHEAD 1
#else
#define LINKS_AHEAD 4
#endif
KERNEL(embedding_backward)
{
    GLOBAL const int *indices = BUFFER(0, const int);
    GLOBAL const int *links = BUFFER(1, const int);
    GLOBAL const float *dy = BUFFER(2, const float);
    GLOBAL float *dtable = BUFFER(3, float);
    const unsigned width = (unsigned)INT(1), n = (unsigned)INT(0) * width;
    RUN_BEGINS(n);
    int next[RUN], row[RUN];
    unsigned column[RUN];
    float sum[RUN], d[RUN];
    EACH_OF_RUN(k, i, n) d[k] = dy[i];
    EACH_PLACE_OF_RUN(k, place, c, width)
    {
        const int inside = place < (unsigned)INT(0);
        row[k] = inside && links[(WIDE)INT(0) + place] ? dml__row_here(indices[place], INT(2), INT(3)) : -1;
        next[k] = inside ? links[place] : -1;
        column[k] = c;
    }
    EACH_OF_RUN(k, i, n) if (row[k] >= 0) sum[k] = dtable[(WIDE)row[k] * INT(1) + column[k]];
    EACH_OF_RUN(k, i, n)
    {
        if (row[k] < 0) continue;
        sum[k] += d[k];
        for (int at = next[k]; at >= 0;) { /* so many of them are read before the first is added */
            float more[LINKS_AHEAD];
            UNROLL for (int of = 0; of < LINKS_AHEAD; of++)
            {
                more[of] = at >= 0 ? dy[(WIDE)at * INT(1) + column[k]] : 0.0f;
                at = at >= 0 ? links[at] : -1;
            }
            UNROLL for (int of = 0; of < LINKS_AHEAD; of++) sum[k] += more[of];
        }
        dtable[(WIDE)row[k] * INT(1) + column[k]] = sum[k];
    }
}

#endif
