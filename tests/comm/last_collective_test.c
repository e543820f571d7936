/* Ranks that return from main after their last collective, without closing. What has completed on one rank
   can be completed by the others: it must not be lost with the process that sent it, nor be taken for a
   death. */
#include "jobs.h"

enum { WORLD = 4, SIDE_BY_SIDE = 4, JOBS = JOB_SLOW > 1 ? 8 : 100 };

typedef struct last {
    job_operation operation;
    size_t count;
    int jobs;
    bool closes; /* at once */
} last;

static void last_body(job_rank *me)
{
    const last *l = (const last *)me->user;
    float *x = (float *)malloc((l->count + 1) * sizeof *x), *all = NULL;
    if (l->operation == JOB_ALL_GATHER) all = (float *)malloc((l->count * WORLD + 1) * sizeof *all);
    for (size_t i = 0; i < l->count; i++) x[i] = (float)(me->rank + 1 + (int)(i % 7));
    const job_call call = { l->operation, l->count, DML_F32, DML_SUM, 0 };
    job_make_call(me->comm, &call, x, all);
    for (size_t i = 0; i < l->count; i++) {
        const float from_0 = (float)(1 + (int)(i % 7));
        if (l->operation == JOB_ALL_REDUCE) me->bad += x[i] != WORLD * from_0 + 6;
        if (l->operation == JOB_BROADCAST) me->bad += x[i] != from_0;
        if (l->operation == JOB_ALL_GATHER)
            for (int rank = 0; rank < WORLD; rank++)
                me->bad += all[(size_t)rank * l->count + i] != from_0 + (float)rank;
    }
    free(x);
    free(all);
    me->leaves = !l->closes;
}

static void check_last(job_operation operation, size_t count, int count_of_jobs, bool closes)
{
    const last l = { operation, count, count_of_jobs, closes };
    int failed = 0;
    for (int begin = 0; begin < l.jobs && failed < 3; begin += SIDE_BY_SIDE) {
        job jobs[SIDE_BY_SIDE];
        const int some = l.jobs - begin < SIDE_BY_SIDE ? l.jobs - begin : SIDE_BY_SIDE;
        for (int i = 0; i < some; i++) {
            job_prepare(&jobs[i], WORLD, 5, last_body, &l);
            job_start(&jobs[i]);
        }
        for (int i = 0; i < some; i++) {
            char name[96];
            snprintf(name, sizeof name, "job %d, operation %d of %zu elements", begin + i, (int)operation,
                     count);
            job_wait(&jobs[i], 20);
            if (failed < 3) check_job(&jobs[i], name); /* a few of them tell enough */
            for (int rank = 0; rank < WORLD; rank++)
                if (job_status(&jobs[i].ranks[rank]) || jobs[i].ranks[rank].hung) {
                    failed++;
                    break;
                }
            job_release(&jobs[i]);
        }
    }
}

static void sums_of_one(void)
{
    check_last(JOB_ALL_REDUCE, 1, JOBS, false);
}
static void sums_of_a_thousand(void)
{
    check_last(JOB_ALL_REDUCE, 1000, JOBS, false);
}
static void sums_of_a_million(void)
{
    check_last(JOB_ALL_REDUCE, 1000000, JOBS, false);
}

/* Whoever sends only is gone first. */
static void other_collectives(void)
{
    check_last(JOB_BARRIER, 0, JOBS / 4, false);
    check_last(JOB_BROADCAST, 1, JOBS / 4, false);
    check_last(JOB_BROADCAST, 1000000, JOBS / 4, false);
    check_last(JOB_ALL_GATHER, 100000, JOBS / 4, false);
}

static void ranks_that_close(void)
{
    check_last(JOB_ALL_REDUCE, 1, JOBS / 4, true);
    check_last(JOB_ALL_REDUCE, 1000000, JOBS / 4, true);
    check_last(JOB_BROADCAST, 1000000, JOBS / 4, true);
    check_last(JOB_BARRIER, 0, JOBS / 4, true);
}

/* The last message of a pair, small and large: the sender is gone before it is received. */
static void last_send_body(job_rank *me)
{
    const size_t count = *(const size_t *)me->user;
    int *x = (int *)malloc(count * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = me->rank ? -1 : (int)i;
    if (me->rank == 1) job_sleep(0.1);
    if (me->rank == 0)
        JOB_SEND_NOW(me->comm, x, count, DML_I32, 1);
    else
        JOB_RECEIVE_NOW(me->comm, x, count, DML_I32, 0);
    for (size_t i = 0; i < count; i++) me->bad += x[i] != (int)i;
    free(x);
    me->leaves = true;
}

static void last_sends(void)
{
    static const size_t counts[] = { 1, 1000, 20000, 1000000 };
    job jobs[4];
    for (int i = 0; i < 4; i++) {
        job_prepare(&jobs[i], 2, 5, last_send_body, &counts[i]);
        job_start(&jobs[i]);
    }
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "a last send of %zu elements", counts[i]);
        job_wait(&jobs[i], 20);
        check_job(&jobs[i], name);
        job_release(&jobs[i]);
    }
}

int main(void)
{
    RUN(sums_of_one);
    RUN(sums_of_a_thousand);
    RUN(sums_of_a_million);
    RUN(other_collectives);
    RUN(ranks_that_close);
    RUN(last_sends);
    return test_report("comm/last_collective");
}
