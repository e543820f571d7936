/* Arguments that can't be: an error on the rank that gives them, and on all the others, that names the rank
   and prints its call; nothing hangs. And those that look as if they couldn't, but may. */
#include "jobs.h"

enum { N = 8, WORLD = 3 };

/* What the odd rank does while the others are in the call as it should be. */
typedef struct wrong {
    const char *name, *part; /* of every rank's sentence */
    void (*call)(dml_comm *comm, float *x, int right);
} wrong;

/* x: (3 * WORLD * N). `right`: as it should be called. */
static void no_data(dml_comm *comm, float *x, int right)
{
    dml_comm_all_reduce(comm, right ? x : NULL, N, DML_F32, DML_SUM);
}
static void data_at_an_odd_address(dml_comm *comm, float *x, int right)
{
    dml_comm_all_reduce(comm, (char *)x + !right, N, DML_F32, DML_SUM);
}
static void no_broadcast_data(dml_comm *comm, float *x, int right)
{
    dml_comm_broadcast(comm, right ? x : NULL, N, DML_F32, 0);
}
static void no_gather_in(dml_comm *comm, float *x, int right)
{
    dml_comm_all_gather(comm, right ? x : NULL, N, DML_F32, x + N);
}
static void no_gather_out(dml_comm *comm, float *x, int right)
{
    dml_comm_all_gather(comm, x, N, DML_F32, right ? x + N : NULL);
}
static void no_scatter_out(dml_comm *comm, float *x, int right)
{
    dml_comm_reduce_scatter(comm, x, N, DML_F32, DML_SUM, right ? x + WORLD * N : NULL);
}
static void gather_from_anothers_place(dml_comm *comm, float *x, int right)
{
    const int rank = dml_comm_rank(comm);
    dml_comm_all_gather(comm, x + N * (right ? rank : (rank + 1) % WORLD), N, DML_F32, x);
}
static void gather_from_half_its_place(dml_comm *comm, float *x, int right)
{
    const int rank = dml_comm_rank(comm);
    dml_comm_all_gather(comm, x + N * (1 + rank) + (right ? 0 : N / 2), N, DML_F32, x + N);
}
static void gather_from_across_the_end(dml_comm *comm, float *x, int right)
{
    dml_comm_all_gather(comm, x + WORLD * N - (right ? 0 : 1), N, DML_F32, x);
}
static void gather_from_across_the_beginning(dml_comm *comm, float *x, int right)
{
    dml_comm_all_gather(comm, x, N, DML_F32, x + N - (right ? 0 : 1));
}
static void scatter_to_half_a_row(dml_comm *comm, float *x, int right)
{
    dml_comm_reduce_scatter(comm, x, N, DML_F32, DML_SUM, x + dml_comm_rank(comm) * N + (right ? 0 : N / 2));
}
static void scatter_to_across_the_end(dml_comm *comm, float *x, int right)
{
    dml_comm_reduce_scatter(comm, x, N, DML_F32, DML_SUM, x + WORLD * N - (right ? 0 : 1));
}
static void scatter_to_across_the_beginning(dml_comm *comm, float *x, int right)
{
    dml_comm_reduce_scatter(comm, x + N - (right ? 0 : 1), N, DML_F32, DML_SUM, x);
}
static void root_past_the_last(dml_comm *comm, float *x, int right)
{
    dml_comm_broadcast(comm, x, N, DML_F32, right ? 0 : WORLD);
}
static void root_below_the_first(dml_comm *comm, float *x, int right)
{
    dml_comm_broadcast(comm, x, N, DML_F32, right ? 0 : -2);
}
static void send_past_the_last(dml_comm *comm, float *x, int right)
{
    if (!right) JOB_SEND_NOW(comm, x, N, DML_F32, WORLD);
}
static void send_to_itself(dml_comm *comm, float *x, int right)
{
    if (!right) JOB_SEND_NOW(comm, x, N, DML_F32, dml_comm_rank(comm));
}
static void receive_from_below_the_first(dml_comm *comm, float *x, int right)
{
    if (!right) JOB_RECEIVE_NOW(comm, x, N, DML_F32, -2);
}
static void no_such_type(dml_comm *comm, float *x, int right)
{
    dml_comm_all_gather(comm, x, N, right ? DML_F32 : (dml_dtype)99, x + N);
}
static void no_such_reduction(dml_comm *comm, float *x, int right)
{
    dml_comm_all_reduce(comm, x, N, DML_F32, right ? DML_SUM : (dml_reduce_op)77);
}
static void more_than_memory(dml_comm *comm, float *x, int right)
{
    dml_comm_all_gather(comm, x, right ? N : SIZE_MAX / 8, DML_F32, x + N);
}
static void gather_over_the_part_before(dml_comm *comm, float *x, int right)
{
    const size_t counts[WORLD] = { 1, 3, 2 }, apart[WORLD] = { 0, 1, 4 }, over[WORLD] = { 0, 1, 3 };
    dml_comm_all_gatherv(comm, x, counts, right ? apart : over, DML_F32, x + N);
}
static void gather_over_an_earlier_part(dml_comm *comm, float *x, int right)
{
    const size_t counts[WORLD] = { 2, 3, 2 }, apart[WORLD] = { 6, 0, 3 }, over[WORLD] = { 6, 0, 5 };
    dml_comm_all_gatherv(comm, x, counts, right ? apart : over, DML_F32, x + N);
}
/* Elsewhere than at the root they mean nothing. */
static void gather_all_to_one_place(dml_comm *comm, float *x, int right)
{
    const size_t counts[WORLD] = { 2, 2, 2 }, over[WORLD] = { 4, 4, 4 };
    (void)right;
    dml_comm_gatherv(comm, x, counts, over, DML_F32, x + N, 1);
}
static void scatter_sums_of_one_place(dml_comm *comm, float *x, int right)
{
    const size_t counts[WORLD] = { 2, 0, 2 }, apart[WORLD] = { 2, 0, 0 }, over[WORLD] = { 1, 0, 0 };
    dml_comm_reduce_scatterv(comm, x, counts, right ? apart : over, DML_F32, DML_SUM, x + N);
}
static void exchange_to_one_place(dml_comm *comm, float *x, int right)
{
    const size_t counts[WORLD] = { 1, 1, 1 }, apart[WORLD] = { 0, 1, 2 }, over[WORLD] = { 0, 1, 1 };
    dml_comm_all_to_allv(comm, x, counts, over, DML_F32, x + N, counts, right ? apart : over);
}
static void no_data_started(dml_comm *comm, float *x, int right)
{
    dml_comm_wait(comm, dml_comm_all_reduce_start(comm, right ? x : NULL, N, DML_F32, DML_SUM));
}

static const wrong wrongs[] = {
    { "no data", "all_reduce(f32, 8, sum)", no_data },
    { "data at an odd address", "must begin at a multiple of the element", data_at_an_odd_address },
    { "no data of a broadcast", "broadcast(f32, 8, root 0)", no_broadcast_data },
    { "no input of a gather", "all_gather(f32, 8)", no_gather_in },
    { "no output of a gather", "all_gather(f32, 8)", no_gather_out },
    { "no output of a scatter", "reduce_scatter(f32, 8, sum)", no_scatter_out },
    { "a gather from another's place", "all_gather(f32, 8)", gather_from_anothers_place },
    { "a gather from half its place", "all_gather(f32, 8)", gather_from_half_its_place },
    { "a gather from across the end", "all_gather(f32, 8)", gather_from_across_the_end },
    { "a gather from across the beginning", "all_gather(f32, 8)", gather_from_across_the_beginning },
    { "a scatter to half a row", "reduce_scatter(f32, 8, sum)", scatter_to_half_a_row },
    { "a scatter to across the end", "reduce_scatter(f32, 8, sum)", scatter_to_across_the_end },
    { "a scatter to across the beginning", "reduce_scatter(f32, 8, sum)", scatter_to_across_the_beginning },
    { "a root past the last", "broadcast(f32, 8, root 3)", root_past_the_last },
    { "a root below the first", "broadcast(f32, 8, root -2)", root_below_the_first },
    { "a send past the last", "send(f32, 8, to 3)", send_past_the_last },
    { "a send to itself", "send(f32, 8, to 1)", send_to_itself },
    { "a receive from below the first", "receive(f32, 8, from -2)", receive_from_below_the_first },
    { "no such type", "all_gather(", no_such_type },
    { "no such reduction", "all_reduce(f32, 8", no_such_reduction },
    { "more than memory", "all_gather(f32, ", more_than_memory },
    { "a gather over the part before",
      "all_gatherv(f32, 6): parts 1 (3 elements from 1 on) and 2 (2 from 3 on) of its output overlap",
      gather_over_the_part_before },
    { "a gather over an earlier part", "parts 0 (2 elements from 6 on) and 2 (2 from 5 on) of its output",
      gather_over_an_earlier_part },
    { "a gather of all to one place", "parts 0 (2 elements from 4 on) and 1 (2 from 4 on) of its output",
      gather_all_to_one_place },
    { "a scatter of sums of one place", "parts 0 (2 elements from 1 on) and 2 (2 from 0 on) of its input",
      scatter_sums_of_one_place },
    { "an exchange to one place", "parts 1 (1 elements from 1 on) and 2 (1 from 1 on) of its output",
      exchange_to_one_place },
    { "no data of what is started", "all_reduce(f32, 8, sum)", no_data_started },
};
enum { WRONGS = sizeof wrongs / sizeof *wrongs, ODD = 1 };

static void wrong_body(job_rank *me)
{
    const wrong *w = (const wrong *)me->user;
    float *x = (float *)calloc(3 * WORLD * N, sizeof *x);
    w->call(me->comm, x, me->rank != ODD);
    dml_comm_barrier(me->comm);
    free(x);
}

static void wrong_on_one_rank(void)
{
    job jobs[WRONGS];
    for (int i = 0; i < WRONGS; i++) {
        job_prepare(&jobs[i], WORLD, 20, wrong_body, &wrongs[i]);
        job_start(&jobs[i]);
    }
    for (int i = 0; i < WRONGS; i++) {
        job_wait(&jobs[i], 15);
        check_job_fails(&jobs[i], wrongs[i].name, DML_ERROR_ARGUMENT, wrongs[i].part, "rank 1 ");
        job_release(&jobs[i]);
    }
}

static void wrong_everywhere_body(job_rank *me)
{
    const wrong *w = (const wrong *)me->user;
    float *x = (float *)calloc(3 * WORLD * N, sizeof *x);
    w->call(me->comm, x, 0);
    dml_comm_barrier(me->comm);
    free(x);
}

/* As a mistake in a program is. */
static void wrong_on_all_ranks(void)
{
    job jobs[WRONGS];
    for (int i = 0; i < WRONGS; i++) {
        job_prepare(&jobs[i], WORLD, 20, wrong_everywhere_body, &wrongs[i]);
        job_start(&jobs[i]);
    }
    for (int i = 0; i < WRONGS; i++) {
        job_wait(&jobs[i], 15);
        check_job_fails(&jobs[i], wrongs[i].name, DML_ERROR_ARGUMENT, NULL, NULL);
        job_release(&jobs[i]);
    }
}

/* Parts in any order, and the same elements for all. */
static void right_parts(job_rank *me, float *x)
{
    static const size_t counts[5] = { 2, 1, 0, 2, 1 }, at[5] = { 5, 2, 6, 0, 3 };
    static const size_t all[5] = { N, N, N, N, N }, nowhere[5] = { 0 };
    for (int i = 0; i < N; i++) x[i] = (float)me->rank;
    dml_comm_all_gatherv(me->comm, x, counts, at, DML_F32, x + N);
    for (int r = 0; r < me->world; r++)
        for (size_t i = 0; i < counts[r]; i++) me->bad += x[N + at[r] + i] != (float)r;
    dml_comm_scatterv(me->comm, x, all, nowhere, DML_F32, x + N, 1);
    for (int i = 0; i < N; i++) me->bad += x[N + i] != 1;
}

/* In place where the reference says so; pointers to nothing for nothing. */
static void right_body(job_rank *me)
{
    const int rank = me->rank, world = me->world;
    float x[6 * N];
    for (int i = 0; i < 6 * N; i++) x[i] = (float)(rank + 1);
    dml_comm_all_gather(me->comm, x + rank * N, N, DML_F32, x);
    for (int i = 0; i < world * N; i++) me->bad += x[i] != (float)(i / N + 1);
    for (int i = 0; i < world * N; i++) x[i] = (float)(i / N * 10 + rank);
    dml_comm_reduce_scatter(me->comm, x, N, DML_F32, DML_SUM, x + rank * N);
    for (int i = 0; i < N; i++)
        me->bad += x[rank * N + i] != (float)(rank * 10 * world + world * (world - 1) / 2);
    /* Next to each other isn't over each other. */
    for (int i = 0; i < N; i++) x[i] = (float)rank;
    dml_comm_all_gather(me->comm, x, N, DML_F32, x + N);
    for (int i = 0; i < world * N; i++) me->bad += x[N + i] != (float)(i / N);
    right_parts(me, x);
    dml_comm_all_reduce(me->comm, NULL, 0, DML_F32, DML_SUM);
    dml_comm_broadcast(me->comm, NULL, 0, DML_U8, world - 1);
    dml_comm_all_gather(me->comm, NULL, 0, DML_F32, NULL);
    dml_comm_reduce_scatter(me->comm, NULL, 0, DML_F32, DML_MAX, NULL);
    if (rank == 0) JOB_SEND_NOW(me->comm, NULL, 0, DML_F32, world - 1);
    if (rank == world - 1) JOB_RECEIVE_NOW(me->comm, NULL, 0, DML_F32, 0);
}

static void right(void)
{
    job jobs[4];
    for (int i = 0; i < 4; i++) {
        job_prepare(&jobs[i], i + 2, 20, right_body, NULL);
        job_start(&jobs[i]);
    }
    for (int i = 0; i < 4; i++) {
        job_wait(&jobs[i], 15);
        check_job(&jobs[i], "in place");
        job_release(&jobs[i]);
    }
}

int main(void)
{
    RUN(wrong_on_one_rank);
    RUN(wrong_on_all_ranks);
    RUN(right);
    return test_report("comm/arguments");
}
