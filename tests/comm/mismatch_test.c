/* Ranks whose calls don't match: every rank ends in time, by its close at the latest, with an error that
   prints both calls, whatever their size. */
#include "jobs.h"

/* More than any buffer on the way holds: 4 MB of f32. */
enum { LARGE = 1000000, MOST_CALLS = 2, SIDE_BY_SIDE = 6 };

/* All ranks but one make `common`, that one `other`; then a barrier, and close. */
typedef struct mismatch {
    const char *name;
    int world, odd; /* who makes the other calls */
    job_call common[MOST_CALLS], other[MOST_CALLS];
    bool either; /* one of the two calls is named beside what a rank was in when it came out */
} mismatch;

static void mismatch_body(job_rank *me)
{
    const mismatch *m = (const mismatch *)me->user;
    const job_call *calls = me->rank == m->odd ? m->other : m->common;
    char *in = (char *)calloc(8 * (size_t)me->world, LARGE + 1);
    char *out = (char *)calloc(8 * (size_t)me->world, LARGE + 1);
    for (int i = 0; i < MOST_CALLS && calls[i].operation; i++) {
        const dml_status status = job_make_call(me->comm, &calls[i], in, out);
        if (i == 0) me->notes[0] = status;
        /* What comes after an error is that error. */
        if (me->notes[1]) me->bad += status != (dml_status)me->notes[1];
        if (status) me->notes[1] = status;
    }
    const dml_status status = dml_comm_barrier(me->comm);
    if (me->notes[1]) me->bad += status != (dml_status)me->notes[1];
    me->notes[2] = status ? dml_comm_culprit(me->comm) : -1;
    free(in);
    free(out);
}

/* The odd one is to blame; of two, rank 1. Who hears of it at its close is told no culprit. */
static void check_culprits(const job *job, const mismatch *m)
{
    const int odd = m->world == 2 ? 1 : m->odd;
    for (int rank = 0; rank < m->world; rank++)
        CHECK_MESSAGE(job->ranks[rank].notes[2] == odd || !job->ranks[rank].status,
                      "%s, rank %d of %d: rank %d blames %lld: %s", m->name, m->odd, m->world, rank,
                      job->ranks[rank].notes[2], job_error(&job->ranks[rank]));
}

/* Both first calls are printed. */
static void check_texts(const job *job, const mismatch *m)
{
    char name[128], common[96], other[96];
    job_call_text(&m->common[0], common);
    job_call_text(&m->other[0], other);
    snprintf(name, sizeof name, "%s, rank %d of %d", m->name, m->odd, m->world);
    check_job_fails(job, name, DML_ERROR_MISMATCH, m->either ? NULL : common, m->either ? NULL : other);
    for (int rank = 0; rank < m->world; rank++) {
        const char *error = job_error(&job->ranks[rank]);
        CHECK_MESSAGE(strstr(error, common) || strstr(error, other), "%s: rank %d: \"%s\"", name, rank,
                      error);
        CHECK_MESSAGE(!job->ranks[rank].bad, "%s: rank %d: an error did not stick", name, rank);
    }
}

static void check_mismatches(const mismatch *all, int count)
{
    for (int begin = 0; begin < count; begin += SIDE_BY_SIDE) {
        job jobs[SIDE_BY_SIDE];
        const int some = count - begin < SIDE_BY_SIDE ? count - begin : SIDE_BY_SIDE;
        for (int i = 0; i < some; i++) {
            job_prepare(&jobs[i], all[begin + i].world, 2, mismatch_body, &all[begin + i]);
            job_start(&jobs[i]);
        }
        for (int i = 0; i < some; i++) {
            job_wait(&jobs[i], 15);
            check_texts(&jobs[i], &all[begin + i]);
            check_culprits(&jobs[i], &all[begin + i]);
            job_release(&jobs[i]);
        }
    }
}

/* Of both sizes, in worlds of 2 and 4, where the first, the last, or one between is the odd one. */
static void check_pair(const char *name, job_call common, job_call other)
{
    static const int worlds[][2] = { { 2, 1 }, { 4, 0 }, { 4, 2 } };
    mismatch all[6];
    memset(all, 0, sizeof all);
    for (int i = 0; i < 6; i++) {
        const size_t scale = i < 3 ? 1 : LARGE / 10;
        all[i].name = name;
        all[i].world = worlds[i % 3][0];
        all[i].odd = worlds[i % 3][1];
        all[i].common[0] = common;
        all[i].other[0] = other;
        all[i].common[0].count *= scale;
        all[i].other[0].count *= scale;
        all[i].either = !other.count; /* who has nothing to send is gone before anyone knows */
    }
    if (JOB_SLOW > 1) { /* one small, one large */
        all[1] = all[4];
        check_mismatches(all, 2);
        return;
    }
    check_mismatches(all, 6);
}

static void counts(void)
{
    check_pair("counts of all_reduce", (job_call){ JOB_ALL_REDUCE, 10, DML_F32, DML_SUM, 0 },
               (job_call){ JOB_ALL_REDUCE, 9, DML_F32, DML_SUM, 0 });
    check_pair("counts of broadcast", (job_call){ JOB_BROADCAST, 10, DML_F32, DML_SUM, 1 },
               (job_call){ JOB_BROADCAST, 9, DML_F32, DML_SUM, 1 });
    check_pair("counts of all_gather", (job_call){ JOB_ALL_GATHER, 10, DML_I32, DML_SUM, 0 },
               (job_call){ JOB_ALL_GATHER, 9, DML_I32, DML_SUM, 0 });
    check_pair("counts of reduce_scatter", (job_call){ JOB_REDUCE_SCATTER, 10, DML_F32, DML_MEAN, 0 },
               (job_call){ JOB_REDUCE_SCATTER, 9, DML_F32, DML_MEAN, 0 });
    check_pair("a count of nothing", (job_call){ JOB_ALL_REDUCE, 10, DML_F32, DML_SUM, 0 },
               (job_call){ JOB_ALL_REDUCE, 0, DML_F32, DML_SUM, 0 });
}

static void types(void)
{
    check_pair("types of all_reduce", (job_call){ JOB_ALL_REDUCE, 10, DML_F32, DML_SUM, 0 },
               (job_call){ JOB_ALL_REDUCE, 10, DML_I32, DML_SUM, 0 });
    check_pair("types of broadcast", (job_call){ JOB_BROADCAST, 10, DML_F16, DML_SUM, 0 },
               (job_call){ JOB_BROADCAST, 10, DML_BF16, DML_SUM, 0 });
    check_pair("types of all_gather", (job_call){ JOB_ALL_GATHER, 10, DML_F64, DML_SUM, 0 },
               (job_call){ JOB_ALL_GATHER, 10, DML_I64, DML_SUM, 0 });
}

static void reductions(void)
{
    check_pair("reductions of all_reduce", (job_call){ JOB_ALL_REDUCE, 10, DML_F32, DML_SUM, 0 },
               (job_call){ JOB_ALL_REDUCE, 10, DML_F32, DML_MEAN, 0 });
    check_pair("reductions of reduce_scatter", (job_call){ JOB_REDUCE_SCATTER, 10, DML_F64, DML_MIN, 0 },
               (job_call){ JOB_REDUCE_SCATTER, 10, DML_F64, DML_MAX, 0 });
}

static void operations(void)
{
    check_pair("all_reduce and broadcast", (job_call){ JOB_ALL_REDUCE, 10, DML_F32, DML_SUM, 0 },
               (job_call){ JOB_BROADCAST, 10, DML_F32, DML_SUM, 0 });
    check_pair("broadcast and all_reduce", (job_call){ JOB_BROADCAST, 10, DML_F32, DML_SUM, 0 },
               (job_call){ JOB_ALL_REDUCE, 10, DML_F32, DML_SUM, 0 });
    check_pair("all_gather and reduce_scatter", (job_call){ JOB_ALL_GATHER, 10, DML_F32, DML_SUM, 0 },
               (job_call){ JOB_REDUCE_SCATTER, 10, DML_F32, DML_SUM, 0 });
    check_pair("barrier and all_reduce", (job_call){ JOB_BARRIER, 0, DML_F32, DML_SUM, 0 },
               (job_call){ JOB_ALL_REDUCE, 10, DML_F32, DML_SUM, 0 });
    check_pair("all_reduce and barrier", (job_call){ JOB_ALL_REDUCE, 10, DML_F32, DML_SUM, 0 },
               (job_call){ JOB_BARRIER, 0, DML_F32, DML_SUM, 0 });
}

/* Also where each takes itself for the root, and nobody waits; or nobody does, and all wait: of 4 MB no less
   than of 10 elements. It isn't the network that is slow. */
static void roots(void)
{
    mismatch all[10];
    memset(all, 0, sizeof all);
    for (int i = 0; i < 10; i++) {
        const bool two = i % 5 < 2;
        all[i].name = i % 5 == 0 ? "each the root" : i % 5 == 1 ? "none the root" : "roots of broadcast";
        all[i].world = two ? 2 : 4;
        all[i].odd = two ? 1 : i % 5 - 2;
        all[i].common[0] = (job_call){ JOB_BROADCAST, i < 5 ? 10 : LARGE, DML_F32, DML_SUM, i % 5 == 1 };
        all[i].other[0] = all[i].common[0];
        all[i].other[0].root = !all[i].common[0].root;
        all[i].either = !two; /* some have sent and received all that is theirs; by a tree long ones too */
    }
    check_mismatches(all, 10);
}

/* Rank 1 has another root, and the last barrier is left out: who has done its part, and waits in its close,
   must learn it there. */
static void two_roots_body(job_rank *me)
{
    job_call call = *(const job_call *)me->user;
    char in[64] = { 0 }, out[64] = { 0 };
    call.root = me->rank == 1;
    me->notes[0] = job_make_call(me->comm, &call, in, out);
}

static void two_roots_and_nothing_more(void)
{
    static const job_call calls[] = { { JOB_BROADCAST, 10, DML_F32, DML_SUM, 0 },
                                      { JOB_REDUCE, 10, DML_F32, DML_SUM, 0 } };
    static const int worlds[] = { 2, 4 };
    for (int i = 0; i < 2; i++) {
        job job;
        job_call other = calls[i];
        char texts[2][96];
        other.root = 1;
        job_prepare(&job, worlds[i], 2, two_roots_body, &calls[i]);
        job_start(&job);
        job_wait(&job, 10);
        check_job_fails(&job, "two roots", DML_ERROR_MISMATCH, job_call_text(&calls[i], texts[0]),
                        job_call_text(&other, texts[1]));
        job_release(&job);
    }
}

/* One of the two will do: who has found out may be in a later call. */
static void orders(void)
{
    static const job_call sum = { JOB_ALL_REDUCE, 100, DML_F32, DML_SUM, 0 },
                          sums = { JOB_ALL_REDUCE, LARGE, DML_F32, DML_SUM, 0 },
                          barrier = { JOB_BARRIER, 0, DML_F32, DML_SUM, 0 },
                          from_0 = { JOB_BROADCAST, 100, DML_F32, DML_SUM, 0 },
                          from_1 = { JOB_BROADCAST, 100, DML_F32, DML_SUM, 1 },
                          gather = { JOB_ALL_GATHER, 100, DML_F32, DML_SUM, 0 };
    const mismatch all[] = {
        { "orders of sums and barriers", 3, 1, { sum, barrier }, { barrier, sum }, true },
        { "orders of sums", 3, 0, { sum, sums }, { sums, sum }, true },
        { "orders of broadcasts", 2, 1, { from_0, from_1 }, { from_1, from_0 }, true },
        { "orders of broadcasts", 2, 0, { from_0, from_1 }, { from_1, from_0 }, true },
        { "orders of broadcasts", 4, 3, { from_0, from_1 }, { from_1, from_0 }, true },
        { "orders of gathers and sums", 4, 2, { gather, sum }, { sum, gather }, true },
        { "orders of broadcasts and sums", 4, 0, { from_0, sum }, { sum, from_0 }, true },
        /* The first of them is left out. */
        { "a sum left out", 4, 2, { sum, barrier }, { barrier }, true },
        { "a barrier too many", 4, 2, { sum }, { barrier, sum }, true },
        { "a broadcast left out", 3, 0, { from_0, sum }, { sum }, true },
    };
    check_mismatches(all, (int)(sizeof all / sizeof *all));
}

/* The first has done its part and closes; it is the odd one that waits for something else of it. */
typedef struct leaver {
    int first, root, odd;
} leaver;

static void closed_body(job_rank *me)
{
    const leaver *l = (const leaver *)me->user;
    float x[10] = { 0 };
    if (me->rank != l->odd) {
        dml_comm_reduce(me->comm, x, 10, DML_F32, DML_SUM, l->root);
    } else {
        job_sleep(0.3);
        dml_comm_broadcast(me->comm, x, 10, DML_F32, l->first);
    }
    me->notes[0] = dml_comm_culprit(me->comm);
}

static void who_closes_is_asked_too(void)
{
    static const leaver leavers[] = { { 0, 1, 2 }, { 1, 2, 0 } };
    for (int i = 0; i < 2; i++) {
        const leaver *l = &leavers[i];
        job job;
        char wrong[96], right[96];
        snprintf(wrong, sizeof wrong, "rank %d called broadcast(f32, 10, root %d) while rank ", l->odd,
                 l->first);
        snprintf(right, sizeof right, "called reduce(f32, 10, sum, root %d)", l->root);
        job_prepare(&job, 3, 4, closed_body, l);
        job_start(&job);
        job_wait(&job, 15);
        for (int rank = 0; rank < 3; rank++) {
            if (rank == l->first) continue;
            check_rank_fails(&job.ranks[rank], "closed", DML_ERROR_MISMATCH, wrong, right);
            CHECK_INT(job.ranks[rank].notes[0], l->odd);
        }
        job_release(&job);
    }
}

/* All ranks make a call in a group, which they close before its parent; rank 0 makes another one, and the
   root comes late: who has closed the group still says what it called there. */
typedef struct grouped {
    const char *name;
    int world;
    job_call common, other;
} grouped;

static void grouped_body(job_rank *me)
{
    const grouped *g = (const grouped *)me->user;
    static char in[8 * 4096], out[8 * 4096];
    dml_comm *group = dml_comm_split(me->comm, 0, me->rank);
    const job_call *call = me->rank ? &g->common : &g->other;
    if (me->rank == g->common.root) job_sleep(0.2);
    job_make_call(group, call, in, out);
    me->notes[0] = dml_comm_culprit(me->comm);
    dml_comm_close(group);
    me->bad += dml_comm_barrier(group) != DML_ERROR_STATE; /* it is closed, and is still to be told so */
    me->bad += strstr(dml_comm_error(group), "closed") == NULL;
    me->bad += dml_comm_close(group) != DML_ERROR_STATE;
}

static void groups_closed_before(void)
{
    static const grouped all[] = {
        { "reduce of none",
          3,
          { JOB_REDUCE, 10, DML_F32, DML_SUM, 2 },
          { JOB_REDUCE, 0, DML_F32, DML_SUM, 2 } },
        { "counts of gather",
          3,
          { JOB_GATHER, 11, DML_F32, DML_SUM, 1 },
          { JOB_GATHER, 10, DML_F32, DML_SUM, 1 } },
        { "types of gather",
          3,
          { JOB_GATHER, 10, DML_F32, DML_SUM, 1 },
          { JOB_GATHER, 10, DML_I32, DML_SUM, 1 } },
        { "roots", 4, { JOB_BROADCAST, 5, DML_F32, DML_SUM, 1 }, { JOB_BROADCAST, 5, DML_F32, DML_SUM, 0 } },
        { "none of two",
          2,
          { JOB_ALL_REDUCE, 5, DML_F32, DML_SUM, 1 },
          { JOB_ALL_REDUCE, 0, DML_F32, DML_SUM, 1 } },
    };
    enum { CASES = sizeof all / sizeof *all };
    job jobs[CASES];
    for (int i = 0; i < CASES; i++) {
        job_prepare(&jobs[i], all[i].world, 2, grouped_body, &all[i]);
        job_start(&jobs[i]);
    }
    for (int i = 0; i < CASES; i++) {
        const grouped *g = &all[i];
        char common[96], other[96];
        job_call_text(&g->common, common);
        job_call_text(&g->other, other);
        job_wait(&jobs[i], 15);
        check_job_fails(&jobs[i], g->name, DML_ERROR_MISMATCH, common, other);
        for (int rank = 0; rank < g->world; rank++) {
            const job_rank *me = &jobs[i].ranks[rank];
            CHECK_INT(me->bad, 0);
            CHECK_MESSAGE(g->world == 2 || me->notes[0] == 0 || me->notes[0] == -1, "%s: rank %d blames %lld",
                          g->name, rank, me->notes[0]);
        }
        job_release(&jobs[i]);
    }
}

/* ---- sends and receives ---- */

typedef struct pair {
    const char *name;
    job_call calls[3];        /* of ranks 0, 1 and 2 of 3 */
    const char *part, *other; /* what ranks 0 and 1 say */
    dml_status status;        /* DML_OK: any error */
} pair;

static void pair_body(job_rank *me)
{
    const pair *p = (const pair *)me->user;
    char *data = (char *)calloc(8, LARGE + 1);
    me->notes[0] = job_make_call(me->comm, &p->calls[me->rank], data, data);
    dml_comm_barrier(me->comm);
    free(data);
}

static void sends_and_receives(void)
{
    static const pair all[] = {
        { "counts of a pair",
          { { JOB_SEND, 10, DML_I32, DML_SUM, 1 }, { JOB_RECEIVE, 9, DML_I32, DML_SUM, 0 } },
          "send(i32, 10, to 1)",
          "receive(i32, 9, from 0)",
          DML_ERROR_MISMATCH },
        { "counts of a large pair",
          { { JOB_SEND, LARGE, DML_I32, DML_SUM, 1 }, { JOB_RECEIVE, LARGE - 1, DML_I32, DML_SUM, 0 } },
          "send(i32, 1000000, to 1)",
          "receive(i32, 999999, from 0)",
          DML_ERROR_MISMATCH },
        { "types of a pair",
          { { JOB_SEND, 10, DML_I32, DML_SUM, 1 }, { JOB_RECEIVE, 10, DML_F32, DML_SUM, 0 } },
          "send(i32, 10, to 1)",
          "receive(f32, 10, from 0)",
          DML_ERROR_MISMATCH },
        { "types of a large pair",
          { { JOB_RECEIVE, LARGE, DML_F64, DML_SUM, 1 }, { JOB_SEND, LARGE, DML_I64, DML_SUM, 0 } },
          "send(i64, 1000000, to 0)",
          "receive(f64, 1000000, from 1)",
          DML_ERROR_MISMATCH },
        { "two that receive",
          { { JOB_RECEIVE, 10, DML_F32, DML_SUM, 1 }, { JOB_RECEIVE, 10, DML_F32, DML_SUM, 0 } },
          "receive(f32, 10, from",
          NULL,
          DML_OK },
        { "two long sends",
          { { JOB_SEND, LARGE, DML_F32, DML_SUM, 1 }, { JOB_SEND, LARGE, DML_F32, DML_SUM, 0 } },
          "send(f32, 1000000, to",
          NULL,
          DML_OK },
        { "a receive from another",
          { { JOB_SEND, 10, DML_F32, DML_SUM, 1 }, { JOB_RECEIVE, 10, DML_F32, DML_SUM, 2 } },
          "receive(f32, 10, from 2)",
          "barrier()",
          DML_OK },
        { "a long send that nobody takes",
          { { JOB_SEND, LARGE, DML_F32, DML_SUM, 1 } },
          "send(f32, 1000000, to 1)",
          "barrier()",
          DML_OK },
        { "a receive that nobody sends to",
          { { JOB_NOTHING, 0, DML_F32, DML_SUM, 0 }, { JOB_RECEIVE, 10, DML_F32, DML_SUM, 0 } },
          "receive(f32, 10, from 0)",
          "barrier()",
          DML_OK },
    };
    enum { COUNT = sizeof all / sizeof *all };
    job jobs[COUNT];
    for (int i = 0; i < COUNT; i++) {
        job_prepare(&jobs[i], 3, 2, pair_body, &all[i]);
        job_start(&jobs[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        job_wait(&jobs[i], 15);
        check_job_fails(&jobs[i], all[i].name, all[i].status, all[i].part, all[i].other);
        job_release(&jobs[i]);
    }
}

/* ---- options that must be the same ---- */

static void idle_body(job_rank *me)
{
    dml_comm_barrier(me->comm);
}

static void options(void)
{
    static const char *const unlike[] = { "algorithms (.algorithm, DML_COMM_ALGO)",
                                          ".deterministic (DML_COMM_DETERMINISTIC)",
                                          "wishes for a timeline (.trace, DML_TRACE)" };
    for (int i = 0; i < 9; i++) {
        const int world = i < 6 ? 3 : 2, odd = i % 3;
        job job;
        char text[128];
        job_prepare(&job, world, 5, idle_body, NULL);
        for (int rank = 0; rank < world; rank++) {
            dml_comm_options *o = &job.ranks[rank].options;
            const bool given = (rank == odd % world) == (i >= 3);
            if (i % 3 == 0 && given) o->algorithm = "all_gather=ring";
            if (i % 3 == 1) o->deterministic = given;
            if (i % 3 == 2 && given) o->trace = "/nowhere/trace";
        }
        job_start(&job);
        job_wait(&job, 10);
        const int wrong = world == 2 ? 1 : odd, right = wrong ? 0 : 1;
        snprintf(text, sizeof text,
                 "rank %d and rank %d were opened with different %s: give all ranks the same", wrong, right,
                 unlike[i % 3]);
        for (int rank = 0; rank < world; rank++) {
            CHECK_INT(job.ranks[rank].status, DML_ERROR_MISMATCH);
            CHECK_STRING(job.ranks[rank].error, text);
        }
        job_release(&job);
    }
}

/* ---- after an error ---- */

static void use_after_error_body(job_rank *me)
{
    float x[8] = { 0 }, y[8];
    const dml_status first = dml_comm_all_reduce(me->comm, x, 3 + (size_t)me->rank, DML_F32, DML_SUM);
    char said[JOB_TEXT];
    snprintf(said, sizeof said, "%s", dml_comm_error(me->comm));
    me->bad += first != DML_ERROR_MISMATCH;
    me->bad += dml_comm_all_reduce(me->comm, x, 3, DML_F32, DML_SUM) != first;
    me->bad += dml_comm_broadcast(me->comm, x, 3, DML_F32, 0) != first;
    me->bad += dml_comm_all_gather(me->comm, x, 3, DML_F32, y) != first;
    me->bad += dml_comm_reduce_scatter(me->comm, x, 3, DML_F32, DML_SUM, y) != first;
    me->bad += dml_comm_barrier(me->comm) != first;
    me->bad += JOB_SEND_NOW(me->comm, x, 3, DML_F32, !me->rank) != first;
    me->bad += JOB_RECEIVE_NOW(me->comm, x, 3, DML_F32, !me->rank) != first;
    /* Bad arguments don't replace it. */
    me->bad += dml_comm_broadcast(me->comm, NULL, 3, DML_F32, 77) != first;
    me->bad += dml_comm_all_reduce_start(me->comm, x, 3, DML_F32, DML_SUM) != NULL;
    me->bad += !dml_comm_done(me->comm, NULL);
    me->bad += dml_comm_wait(me->comm, NULL) != first;
    me->bad += dml_comm_wait_all(me->comm) != first;
    me->bad += strcmp(said, dml_comm_error(me->comm)) != 0;
}

static void use_after_an_error(void)
{
    job job;
    job_prepare(&job, 2, 20, use_after_error_body, NULL);
    job_start(&job);
    job_wait(&job, 10);
    check_job_fails(&job, "use after an error", DML_ERROR_MISMATCH, "all_reduce(f32, 3, sum)",
                    "all_reduce(f32, 4, sum)");
    for (int rank = 0; rank < 2; rank++) CHECK_INT(job.ranks[rank].bad, 0);
    job_release(&job);
}

int main(void)
{
    RUN(counts);
    RUN(types);
    RUN(reductions);
    RUN(operations);
    RUN(roots);
    RUN(two_roots_and_nothing_more);
    RUN(orders);
    RUN(who_closes_is_asked_too);
    RUN(groups_closed_before);
    RUN(sends_and_receives);
    RUN(options);
    RUN(use_after_an_error);
    return test_report("comm/mismatch");
}
