/* Who is named where calls that don't match look alike, or send nothing into their place: the same rank by
   all, and the one that erred. */
#include "jobs.h"

#include "comm/job.h"

enum { MOST = 20000 };

/* `odd` of `world` ranks errs. */
typedef struct error {
    const char *name;
    int world, odd;
    size_t count; /* of its calls */
    void (*body)(job_rank *);
    const char *wrong, *right; /* what both calls are called; NULL: isn't asked */
    const char *what;          /* and what differs where that is the same; NULL: it isn't */
} error;

static float *numbers(size_t count)
{
    return (float *)calloc(count, sizeof(float));
}

static void note_culprit(job_rank *me)
{
    me->notes[0] = dml_comm_status(me->comm) ? dml_comm_culprit(me->comm) : -2;
}

static void check_errors(const error *all, int count)
{
    enum { SIDE_BY_SIDE = 4 };
    for (int begin = 0; begin < count; begin += SIDE_BY_SIDE) {
        job jobs[SIDE_BY_SIDE];
        const int some = count - begin < SIDE_BY_SIDE ? count - begin : SIDE_BY_SIDE;
        for (int i = 0; i < some; i++) {
            job_prepare(&jobs[i], all[begin + i].world, 2, all[begin + i].body, &all[begin + i]);
            job_start(&jobs[i]);
        }
        for (int i = 0; i < some; i++) {
            const error *e = &all[begin + i];
            char wrong[128], right[128], name[128];
            snprintf(name, sizeof name, "%s, rank %d of %d, %zu", e->name, e->odd, e->world, e->count);
            if (e->wrong) snprintf(wrong, sizeof wrong, "rank %d called %s", e->odd, e->wrong);
            if (e->right) snprintf(right, sizeof right, "called %s%s", e->right, e->what ? e->what : "");
            job_wait(&jobs[i], 15);
            check_job_fails(&jobs[i], name, DML_ERROR_MISMATCH, e->wrong ? wrong : NULL,
                            e->right ? right : NULL);
            for (int rank = 0; rank < e->world; rank++)
                CHECK_MESSAGE(jobs[i].ranks[rank].notes[0] == e->odd || jobs[i].ranks[rank].notes[0] == -2,
                              "%s: rank %d blames %lld: %s", name, rank, jobs[i].ranks[rank].notes[0],
                              job_error(&jobs[i].ranks[rank]));
            job_release(&jobs[i]);
        }
    }
}

/* ---- counts for each rank that are others of the same sum ---- */

/* All have one more for the last rank than for the others, the odd one for the first. */
static void set_counts(const job_rank *me, size_t *counts)
{
    const error *e = (const error *)me->user;
    for (int r = 0; r < me->world; r++) counts[r] = e->count;
    counts[me->rank == e->odd ? 0 : me->world - 1]++;
}

#define PARTS_BODY(name, call)                                                                               \
    static void name(job_rank *me)                                                                           \
    {                                                                                                        \
        size_t counts[8];                                                                                    \
        set_counts(me, counts);                                                                              \
        float *in = numbers(8 * MOST), *out = numbers(8 * MOST);                                             \
        call;                                                                                                \
        dml_comm_barrier(me->comm);                                                                          \
        note_culprit(me);                                                                                    \
        free(in);                                                                                            \
        free(out);                                                                                           \
    }
PARTS_BODY(all_gatherv_body, dml_comm_all_gatherv(me->comm, in, counts, NULL, DML_F32, out))
PARTS_BODY(reduce_scatterv_body, dml_comm_reduce_scatterv(me->comm, in, counts, NULL, DML_F32, DML_SUM, out))
PARTS_BODY(scatterv_body, dml_comm_scatterv(me->comm, in, counts, NULL, DML_F32, out, 1))
PARTS_BODY(gatherv_body, dml_comm_gatherv(me->comm, in, counts, NULL, DML_F32, out, 1))

static void counts_of_the_same_sum(void)
{
    static const struct {
        void (*body)(job_rank *);
        const char *name, *format;
    } calls[] = { { all_gatherv_body, "all_gatherv", "all_gatherv(f32, %zu)" },
                  { reduce_scatterv_body, "reduce_scatterv", "reduce_scatterv(f32, %zu, sum)" },
                  { scatterv_body, "scatterv", "scatterv(f32, %zu, root 1)" },
                  { gatherv_body, "gatherv", "gatherv(f32, %zu, root 1)" } };
    static const struct {
        int world, odd;
    } who[] = { { 2, 1 }, { 4, 0 }, { 4, 1 }, { 5, 3 } };
    for (int c = 0; c < 4; c++) {
        error all[8];
        char texts[8][96], what[8][128];
        for (int i = 0; i < 8; i++) {
            error *e = &all[i];
            e->name = calls[c].name;
            e->world = who[i % 4].world;
            e->odd = who[i % 4].odd;
            e->count = i < 4 ? 3 : MOST - 1;
            e->body = calls[c].body;
            /* (The sums are printed, of which all are the same.) */
            snprintf(texts[i], sizeof texts[i], calls[c].format, e->count * (size_t)e->world + 1);
            e->wrong = texts[i];
            e->right = texts[i];
            snprintf(what[i], sizeof what[i],
                     " with other counts for the ranks (counts[0] is %zu at rank %d and %zu at rank %d)",
                     e->count + 1, e->odd, e->count, e->odd ? 0 : 1);
            e->what = what[i];
        }
        check_errors(all, 8);
    }
}

/* Where so many ranks' counts begin alike, that is said. */
enum { MANY = DML__SAID_COUNTS + 2 };

static void *many_body(void *of)
{
    dml_comm *comm = (dml_comm *)of;
    size_t counts[MANY];
    float out[MANY + 1], in[2] = { 0, 0 };
    for (int r = 0; r < MANY; r++) counts[r] = 1;
    counts[dml_comm_rank(comm) == 3 ? MANY - 1 : MANY - 2]++;
    dml_comm_all_gatherv(comm, in, counts, NULL, DML_F32, out);
    return NULL;
}

static void counts_that_are_too_many_to_say(void)
{
    static dml_comm *comms[MANY];
    pthread_t threads[MANY];
    char alike[64];
    CHECK_INT(dml_comm_open_local(comms, MANY, &(dml_comm_options){ .timeout_s = 10 }), DML_OK);
    for (int r = 0; r < MANY; r++) CHECK_INT(pthread_create(&threads[r], NULL, many_body, comms[r]), 0);
    for (int r = 0; r < MANY; r++) pthread_join(threads[r], NULL);
    snprintf(alike, sizeof alike, "other counts for the ranks (the first %d are the same)", DML__SAID_COUNTS);
    for (int r = 0; r < MANY; r++) {
        CHECK_INT(dml_comm_status(comms[r]), DML_ERROR_MISMATCH);
        CHECK_INT(dml_comm_culprit(comms[r]), 3);
        CHECK_CONTAINS(dml_comm_error(comms[r]), alike);
        dml_comm_close(comms[r]);
    }
}

/* ---- calls that are left out, of nothing, or another group's ---- */

static void leaves_out_gather_body(job_rank *me)
{
    const error *e = (const error *)me->user;
    float *in = numbers(MOST), *out = numbers(4 * MOST);
    if (me->rank != e->odd) dml_comm_gather(me->comm, in, e->count, DML_F32, out, 1);
    dml_comm_barrier(me->comm);
    dml_comm_all_reduce(me->comm, in, 5, DML_F32, DML_SUM);
    note_culprit(me);
    free(in);
    free(out);
}

static void reduces_nothing_body(job_rank *me)
{
    const error *e = (const error *)me->user;
    float *x = numbers(MOST);
    dml_comm_reduce(me->comm, x, me->rank == e->odd ? 0 : e->count, DML_F32, DML_SUM, 1);
    dml_comm_reduce(me->comm, x, 7, DML_F32, DML_SUM, 0);
    dml_comm_barrier(me->comm);
    note_culprit(me);
    free(x);
}

/* Rank `odd` and the next one are a group. */
static void other_group_body(job_rank *me)
{
    const error *e = (const error *)me->user;
    float *x = numbers(MOST);
    dml_comm *group = dml_comm_split(me->comm, me->rank == e->odd || me->rank == e->odd + 1, me->rank);
    if (me->rank == e->odd)
        dml_comm_all_reduce(group, x, e->count, DML_F32, DML_SUM);
    else
        dml_comm_barrier(me->comm);
    note_culprit(me);
    free(x);
    dml_comm_close(group);
}

/* Three of six are a group, of which one leaves out what the two others are in, and waits for the world like
   the rest. */
static void leaves_out_group_body(job_rank *me)
{
    const error *e = (const error *)me->user;
    float *x = numbers(MOST);
    dml_comm *group = dml_comm_split(me->comm, me->rank > 1 && me->rank < 5 ? 0 : -1, 0);
    if (group && me->rank != e->odd) dml_comm_all_reduce(group, x, e->count, DML_F32, DML_SUM);
    dml_comm_barrier(me->comm);
    note_culprit(me);
    free(x);
    dml_comm_close(group);
}

/* All but the last rank are a group; the last one only knows that it waits for the first. */
static void group_leaves_out_body(job_rank *me)
{
    const error *e = (const error *)me->user;
    float *in = numbers(MOST), *out = numbers(8 * MOST);
    dml_comm *group = dml_comm_split(me->comm, me->rank < me->world - 1 ? 0 : -1, me->rank);
    if (group && me->rank != e->odd) dml_comm_gather(group, in, e->count, DML_F32, out, 1);
    if (group) dml_comm_barrier(group);
    if (!me->rank) dml_comm_send(me->comm, in, 1, DML_F32, me->world - 1, 0);
    if (!group) dml_comm_receive(me->comm, in, 1, DML_F32, 0, 0, NULL);
    note_culprit(me);
    free(in);
    free(out);
    dml_comm_close(group);
}

static void splits_body(job_rank *me)
{
    const error *e = (const error *)me->user;
    dml_comm *group = NULL;
    if (me->rank == e->odd)
        group = dml_comm_split(me->comm, 0, 0);
    else
        dml_comm_barrier(me->comm);
    note_culprit(me);
    dml_comm_close(group);
}

static void tunes_body(job_rank *me)
{
    const error *e = (const error *)me->user;
    double x = 0;
    if (me->rank == e->odd)
        dml_comm_tune(me->comm, 0.1);
    else
        dml_comm_all_reduce(me->comm, &x, 1, DML_F64, DML_MAX);
    dml_comm_barrier(me->comm);
    note_culprit(me);
}

static void in_place_body(job_rank *me)
{
    const error *e = (const error *)me->user;
    float *in = numbers(8 * MOST), *out = numbers(8 * MOST);
    dml_comm_all_to_all(me->comm, in, e->count, DML_F32, me->rank == e->odd ? in : out);
    dml_comm_barrier(me->comm);
    note_culprit(me);
    free(in);
    free(out);
}

/* Rank 1 leaves out the first call, of which rank 3 gets nothing, and sends nothing into its place; the
   second of rank 3 and the third of rank 1 meet. */
static void leaves_out_scatterv_body(job_rank *me)
{
    const error *e = (const error *)me->user;
    float *in = numbers(8 * MOST), *out = numbers(8 * MOST);
    const size_t n = e->count, first[4] = { n, n, n, 0 }, second[4] = { n, 0, n, n };
    if (me->rank != e->odd) dml_comm_scatterv(me->comm, in, first, NULL, DML_F32, out, 1);
    dml_comm_gatherv(me->comm, in, second, NULL, DML_F32, out, 0);
    dml_comm_all_to_all(me->comm, in, 1, DML_F32, out);
    note_culprit(me);
    free(in);
    free(out);
}

/* A gather is left out, and then all but its root wait in another communicator. */
static void leaves_out_before_group_body(job_rank *me)
{
    const error *e = (const error *)me->user;
    float *in = numbers(MOST), *out = numbers(4 * MOST);
    dml_comm *group = dml_comm_split(me->comm, 0, 0);
    if (me->rank != e->odd) dml_comm_gather(me->comm, in, e->count, DML_F32, out, 1);
    dml_comm_barrier(group);
    note_culprit(me);
    free(in);
    free(out);
    dml_comm_close(group);
}

/* One call more than the others, as the last. */
static void one_more_body(job_rank *me)
{
    const error *e = (const error *)me->user;
    float x[10] = { 0 };
    dml_comm_barrier(me->comm);
    me->notes[0] = -2;
    if (me->rank != e->odd) return;
    dml_comm_all_reduce(me->comm, x, 10, DML_F32, DML_SUM);
    note_culprit(me);
}

static void one_call_too_many(void)
{
    for (int odd = 0; odd < 4; odd++) {
        const error e = { "a call too many", 4, odd, 0, one_more_body, NULL, NULL, NULL };
        char sentence[96];
        job job;
        job_prepare(&job, e.world, 4, e.body, &e);
        job_start(&job);
        job_wait(&job, 15);
        snprintf(sentence, sizeof sentence,
                 "rank %d called all_reduce(f32, 10, sum), while more ranks, rank ", odd);
        check_rank_fails(&job.ranks[odd], e.name, DML_ERROR_PEER, sentence, NULL);
        CHECK_INT(job.ranks[odd].notes[0], odd);
        job_release(&job);
    }
}

static void calls_that_send_nothing(void)
{
    static const error all[] = {
        { "a gather left out", 4, 0, 10, leaves_out_gather_body, "barrier()", "gather(f32, 10, root 1)",
          NULL },
        { "a gather left out", 4, 3, 10, leaves_out_gather_body, "barrier()", "gather(f32, 10, root 1)",
          NULL },
        { "a gather left out", 4, 2, MOST, leaves_out_gather_body, "barrier()", NULL, NULL },
        { "a gather left out", 3, 0, 10, leaves_out_gather_body, "barrier()", "gather(f32, 10, root 1)",
          NULL },
        { "a reduce of nothing", 4, 0, 10, reduces_nothing_body, "reduce(f32, 0, sum, root 1)", NULL, NULL },
        { "a reduce of nothing", 4, 3, MOST, reduces_nothing_body, "reduce(f32, 0, sum, root 1)", NULL,
          NULL },
        { "a reduce of nothing", 3, 2, 10, reduces_nothing_body, "reduce(f32, 0, sum, root 1)", NULL, NULL },
        { "another group's sum", 4, 0, 10, other_group_body, "all_reduce(f32, 10, sum) in communicator 1",
          "barrier()", NULL },
        { "another group's sum", 4, 2, 10, other_group_body, "all_reduce(f32, 10, sum) in communicator 1",
          "barrier()", NULL },
        { "another group's sum", 3, 1, MOST, other_group_body, NULL, "barrier()", NULL },
        { "a group's gather left out", 5, 0, 10, group_leaves_out_body, "barrier()",
          "gather(f32, 10, root 1)", NULL },
        { "a group's gather left out", 4, 0, 10, group_leaves_out_body, "barrier()",
          "gather(f32, 10, root 1)", NULL },
        { "a group's gather left out", 5, 3, MOST, group_leaves_out_body, "barrier()", "gather(f32, ", NULL },
        { "a group's sum left out", 6, 2, 10, leaves_out_group_body, "barrier()", "all_reduce(f32, 10, sum)",
          NULL },
        { "a group's sum left out", 6, 3, MOST, leaves_out_group_body, "barrier()", "all_reduce(f32, ",
          NULL },
        { "a group's sum left out", 6, 4, 10, leaves_out_group_body, "barrier()", "all_reduce(f32, 10, sum)",
          NULL },
        { "a scatterv left out", 4, 1, 1, leaves_out_scatterv_body, "gatherv(f32, 3, root 0)",
          "scatterv(f32, 3, root 1)", NULL },
        { "a scatterv left out", 4, 1, MOST, leaves_out_scatterv_body, "gatherv(f32, ", "scatterv(f32, ",
          NULL },
        { "a gather left out before a group's barrier", 4, 0, 10, leaves_out_before_group_body, "barrier()",
          "gather(f32, 10, root 1)", NULL },
        { "a gather left out before a group's barrier", 4, 3, MOST, leaves_out_before_group_body, "barrier()",
          "gather(f32, ", NULL },
        { "one in place", 4, 0, 10, in_place_body, "all_to_all(f32, 10) in place", "all_to_all(f32, 10)",
          NULL },
        { "one in place", 4, 2, MOST, in_place_body, "all_to_all(f32, 20000) in place",
          "all_to_all(f32, 20000)", NULL },
        { "a split", 3, 0, 0, splits_body, "all_gather(i64, 3) in dml_comm_split", "barrier()", NULL },
        { "a split", 3, 1, 0, splits_body, "all_gather(i64, 3) in dml_comm_split", "barrier()", NULL },
        { "a tune", 3, 2, 0, tunes_body, "all_reduce(f64, 1, max) in dml_comm_tune",
          "all_reduce(f64, 1, max)", NULL },
    };
    check_errors(all, (int)(sizeof all / sizeof *all));
}

int main(void)
{
    RUN(counts_of_the_same_sum);
    RUN(counts_that_are_too_many_to_say);
    RUN(calls_that_send_nothing);
    RUN(one_call_too_many);
    return test_report("comm/blame");
}
