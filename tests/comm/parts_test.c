/* Reductions of parts that differ, of sizes around what the ranks have room for beside their arrays. */
#include "ranks.h"

enum { MOST = 5000, GUARD = 3000 };

static void reduce_scatter_parts(test_rank *me)
{
    static const size_t sizes[] = { 1, 500, 1000, 2047, 2048, 2049, MOST };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t counts[RANKS_MAX] = { 0 }, begin = 0, all = 0;
        for (int r = 0; r < me->world; r++) {
            counts[r] = r == 1 ? 0 : sizes[s] + (size_t)r;
            if (r < me->rank) begin += counts[r];
            all += counts[r];
        }
        double *in = (double *)malloc((all + 1) * sizeof *in);
        double *out = (double *)malloc((counts[me->rank] + GUARD) * sizeof *out);
        for (size_t i = 0; i < all; i++) in[i] = (double)(i % 100) * (me->rank + 1);
        for (size_t i = 0; i < counts[me->rank] + GUARD; i++) out[i] = -1;
        me->bad += dml_comm_reduce_scatterv(me->comm, in, counts, NULL, DML_F64, DML_SUM, out) != DML_OK;
        for (size_t i = 0; i < counts[me->rank]; i++)
            me->bad += out[i] != (double)((begin + i) % 100) * (me->world * (me->world + 1) / 2);
        for (size_t i = counts[me->rank]; i < counts[me->rank] + GUARD; i++) me->bad += out[i] != -1;
        free(in);
        free(out);
    }
}

static void parts(void)
{
    for (int world = 1; world <= 5; world++) {
        test_rank ranks[RANKS_MAX];
        ranks_prepare(ranks, world, 20, reduce_scatter_parts, NULL);
        ranks_run(ranks, world);
        check_ranks(ranks, world);
    }
}

int main(void)
{
    RUN(parts);
    return test_report("comm/parts");
}
