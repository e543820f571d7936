/* A job that is stopped as a whole (Ctrl-Z) and continued later, or whose host slept: nobody is to blame, it
   goes on. And one of which a part is stopped: that part is to blame. */
#include "jobs.h"

enum { WORLD = 3, JOBS = 4 };
static const double TIMEOUT = 1, PAUSE = 1.6 * JOB_SLOW;

/* Busy in one way or another until all have been told to end; every sum is checked. */
typedef struct work {
    const char *name;
    size_t count;
    double computes; /* between two collectives, on rank 0 */
    volatile int *end;
} work;

static void working_body(job_rank *me)
{
    const work *w = (const work *)me->user;
    float *x = (float *)malloc(w->count * sizeof *x);
    int end = 0;
    while (!end && !dml_comm_status(me->comm)) {
        for (size_t i = 0; i < w->count; i++) x[i] = (float)(me->rank + (int)(i % 5));
        if (me->rank == 0 && w->computes > 0) job_sleep(w->computes);
        if (dml_comm_all_reduce(me->comm, x, w->count, DML_F32, DML_SUM)) break;
        for (size_t i = 0; i < w->count; i++) me->bad += x[i] != (float)(3 + WORLD * (int)(i % 5));
        end = *w->end;
        dml_comm_broadcast(me->comm, &end, 1, DML_I32, 0);
        me->notes[0]++;
    }
    free(x);
}

static void prepare_work(job jobs[JOBS], work all[JOBS], volatile int *end)
{
    static const work kinds[JOBS] = { { "small sums", 10, 0, NULL },
                                      { "large sums", 3000000, 0, NULL },
                                      { "a rank that computes", 10, 0.2, NULL },
                                      { "a rank that computes, and large sums", 300000, 0.2, NULL } };
    for (int i = 0; i < JOBS; i++) {
        all[i] = kinds[i];
        all[i].end = end;
        job_prepare(&jobs[i], WORLD, TIMEOUT, working_body, &all[i]);
        job_start(&jobs[i]);
    }
    for (int i = 0; i < JOBS; i++) job_reached(&jobs[i], JOB_OPENED, 10);
    job_sleep(0.3);
}

static volatile int *shared_flag(void)
{
    return (volatile int *)mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* `number` stops all ranks of each job, as a shell does; twice. */
static void check_stopped(int number)
{
    job jobs[JOBS];
    work all[JOBS];
    volatile int *end = shared_flag();
    prepare_work(jobs, all, end);
    for (int times = 0; times < 2; times++) {
        for (int i = 0; i < JOBS; i++) job_signal(&jobs[i], number);
        job_sleep(PAUSE);
        for (int i = 0; i < JOBS; i++) job_signal(&jobs[i], SIGCONT);
        job_sleep(0.3);
    }
    *end = 1;
    for (int i = 0; i < JOBS; i++) {
        job_wait(&jobs[i], 10);
        check_job(&jobs[i], all[i].name);
        CHECK(jobs[i].ranks[0].notes[0] > 1);
        job_release(&jobs[i]);
    }
    munmap((void *)(uintptr_t)end, sizeof(int));
}

static void a_job_that_is_stopped_and_continued(void)
{
    check_stopped(SIGTSTP);
}

/* One rank of each: the rest must notice at their deadline, and it when it is continued. */
static void a_rank_that_is_stopped(void)
{
    job jobs[JOBS];
    work all[JOBS];
    volatile int *end = shared_flag();
    prepare_work(jobs, all, end);
    for (int i = 0; i < JOBS; i++) kill(jobs[i].ranks[1].pid, SIGTSTP);
    job_sleep(1.4 * PAUSE);
    for (int i = 0; i < JOBS; i++) kill(jobs[i].ranks[1].pid, SIGCONT);
    for (int i = 0; i < JOBS; i++) {
        job_wait(&jobs[i], 10);
        check_rank_fails(&jobs[i].ranks[0], all[i].name, DML_ERROR_TIMEOUT, "rank 1 of 3", NULL);
        check_rank_fails(&jobs[i].ranks[1], all[i].name, DML_OK, NULL, NULL);
        check_rank_fails(&jobs[i].ranks[2], all[i].name, DML_ERROR_TIMEOUT, "rank 1 of 3", NULL);
        job_release(&jobs[i]);
    }
    munmap((void *)(uintptr_t)end, sizeof(int));
}

/* For less than the timeout, again and again, each in turn, with time to get on between: nobody minds. */
static void ranks_that_are_stopped_shortly(void)
{
    job jobs[JOBS];
    work all[JOBS];
    volatile int *end = shared_flag();
    prepare_work(jobs, all, end);
    for (int times = 0; times < 6; times++) {
        for (int i = 0; i < JOBS; i++) kill(jobs[i].ranks[(times + i) % WORLD].pid, SIGSTOP);
        job_sleep(TIMEOUT / 4);
        for (int i = 0; i < JOBS; i++) kill(jobs[i].ranks[(times + i) % WORLD].pid, SIGCONT);
        job_sleep(TIMEOUT / 4);
    }
    *end = 1;
    for (int i = 0; i < JOBS; i++) {
        job_wait(&jobs[i], 10);
        check_job(&jobs[i], all[i].name);
        job_release(&jobs[i]);
    }
    munmap((void *)(uintptr_t)end, sizeof(int));
}

/* ---- a rank that comes back when it has just been asked for ---- */

typedef enum back_kind { BACK_WAITS, BACK_LOOKS, BACK_HELPED, BACK_LOOKS_HELPED, BACK_COUNT } back_kind;

static void back_body(job_rank *me)
{
    const back_kind kind = *(const back_kind *)me->user;
    float x[10] = { 0 };
    if (kind >= BACK_HELPED) dml_comm_start_progress_thread(me->comm);
    dml_comm_barrier(me->comm);
    me->notes[0] = 1;
    if (me->rank == 0) {
        job_sleep(0.3);
        dml_comm_send(me->comm, x, 10, DML_F32, 1, 0);
        me->notes[0] = 2;
        dml_comm_receive(me->comm, x, 10, DML_F32, 1, 1, NULL);
    } else {
        dml_request *request = dml_comm_receive_start(me->comm, x, 10, DML_F32, 0, 0);
        while (kind % 2 && !dml_comm_done(me->comm, request)) job_sleep(0.001);
        dml_comm_wait(me->comm, request);
        job_sleep(0.2); /* what it says of itself comes first */
        dml_comm_send(me->comm, x, 10, DML_F32, 0, 1);
    }
    dml_comm_barrier(me->comm);
    me->notes[1] = dml_comm_culprit(me->comm);
}

static void wait_for_note(const job_rank *me, long long note)
{
    const double until = dml_seconds() + 10 * JOB_SLOW;
    while (*(volatile long long *)&me->notes[0] < note && dml_seconds() < until) job_sleep(0.001);
}

/* It hasn't waited for all that time, and says so: the others don't take it for one that waits for them. */
static void a_rank_that_comes_back_late(void)
{
    static const back_kind kinds[] = { BACK_WAITS, BACK_LOOKS, BACK_HELPED, BACK_LOOKS_HELPED };
    job jobs[BACK_COUNT];
    for (int i = 0; i < BACK_COUNT; i++) {
        job_prepare(&jobs[i], 2, TIMEOUT, back_body, &kinds[i]);
        job_start(&jobs[i]);
    }
    for (int i = 0; i < BACK_COUNT; i++) wait_for_note(&jobs[i].ranks[1], 1);
    job_sleep(0.05);
    for (int i = 0; i < BACK_COUNT; i++) kill(jobs[i].ranks[1].pid, SIGSTOP);
    for (int i = 0; i < BACK_COUNT; i++) wait_for_note(&jobs[i].ranks[0], 2);
    job_sleep(1.1 * TIMEOUT * JOB_SLOW);
    for (int i = 0; i < BACK_COUNT; i++) kill(jobs[i].ranks[1].pid, SIGCONT);
    for (int i = 0; i < BACK_COUNT; i++) {
        job_wait(&jobs[i], 10);
        for (int rank = 0; rank < 2; rank++) {
            const job_rank *me = &jobs[i].ranks[rank];
            CHECK_ENDED("comes back", me);
            CHECK_MESSAGE(!job_status(me) || me->notes[1] == 1, "%d: rank %d blames %lld: %s", i, rank,
                          me->notes[1], job_error(me));
        }
        job_release(&jobs[i]);
    }
}

/* ---- a rank that has just had what it waited for ---- */

/* Rank 1 sends late what rank 0 waits for, since it has to hear from rank 2 first, which its progress thread
   does: while it looks for that, or computes. */
static void had_body(job_rank *me)
{
    const bool looks = *(const int *)me->user;
    const double tenth = TIMEOUT * JOB_SLOW / 10;
    float x = 0;
    if (me->rank == 1) dml_comm_start_progress_thread(me->comm);
    dml_comm_barrier(me->comm);
    if (me->rank == 0) dml_comm_receive(me->comm, &x, 1, DML_F32, 1, 1, NULL);
    if (me->rank == 1) {
        dml_request *request = dml_comm_receive_start(me->comm, &x, 1, DML_F32, 2, 0);
        while (looks && !dml_comm_done(me->comm, request)) job_sleep(0.001);
        job_sleep((looks ? 4 : 8) * tenth);
        if (looks) /* it has been in a call just now, */
            dml_comm_done(me->comm, request);
        else /* which is this one */
            dml_comm_wait(me->comm, request);
        job_sleep(3 * tenth);
        if (looks) dml_comm_wait(me->comm, request);
        dml_comm_send(me->comm, &x, 1, DML_F32, 0, 1);
    }
    if (me->rank == 2) {
        job_sleep(5 * tenth);
        dml_comm_send(me->comm, &x, 1, DML_F32, 1, 0);
    }
}

/* It says when that came: less than the timeout ago, so nobody is to blame yet. */
static void a_rank_that_has_just_had_it(void)
{
    static const int looks[] = { 0, 1 };
    job jobs[2];
    for (int i = 0; i < 2; i++) {
        job_prepare(&jobs[i], WORLD, TIMEOUT, had_body, &looks[i]);
        job_start(&jobs[i]);
    }
    for (int i = 0; i < 2; i++) {
        job_wait(&jobs[i], 10);
        check_job(&jobs[i], i ? "looks" : "computes");
        job_release(&jobs[i]);
    }
}

/* ---- a rank that is stopped while another waits for any ---- */

typedef enum any_wait {
    ANY_RECEIVE,
    ANY_OF_TWO,
    ANY_WAITS,
    ANY_BEHIND_ANOTHER,
    BESIDE_A_SUM,
    BEHIND_A_SUM,
    ANY_OF_TWO_GROUPS,
    ANY_WAIT_COUNT
} any_wait;

/* Ranks 0 and 1 have a group, in which rank 1 has started something that rank 0 doesn't come to before it has
   heard of rank 1, which waits for rank 2: outside of the group. */
static void waits_beside_a_group(job_rank *me, any_wait kind)
{
    int x[3] = { 1, 1, 1 };
    dml_comm *group = dml_comm_split(me->comm, me->rank == 2 ? -1 : 0, 0);
    if (me->rank == 2) {
        raise(SIGSTOP);
        dml_comm_send(me->comm, x, 1, DML_I32, 1, 5);
    }
    if (me->rank == 1 && kind == ANY_OF_TWO_GROUPS) {
        dml_request *two[2];
        two[0] = dml_comm_receive_start(group, &x[1], 1, DML_I32, 0, 6);
        two[1] = dml_comm_receive_start(me->comm, &x[2], 1, DML_I32, 2, 5);
        dml_comm_wait_any(me->comm, two, 2);
    } else if (me->rank == 1) {
        dml_request *sum = dml_comm_all_reduce_start(group, x, 1, DML_I32, DML_SUM);
        if (kind == BEHIND_A_SUM) job_sleep(TIMEOUT / 2);
        dml_comm_receive(me->comm, &x[1], 1, DML_I32, 2, 5, NULL);
        dml_comm_send(me->comm, &x[1], 1, DML_I32, 0, 7);
        dml_comm_wait(group, sum);
    }
    if (me->rank == 0) {
        dml_comm_receive(me->comm, &x[1], 1, DML_I32, 1, 7, NULL);
        dml_comm_all_reduce(group, x, 1, DML_I32, DML_SUM);
    }
    dml_comm_close(group);
}

/* Rank 2 is stopped before it sends. All calls match. */
static void waits_for_any_body(job_rank *me)
{
    const any_wait kind = *(const any_wait *)me->user;
    int x[3] = { 1, 1, 1 };
    dml_message message;
    if (kind >= BESIDE_A_SUM) {
        waits_beside_a_group(me, kind);
        return;
    }
    if (me->rank == 2) {
        raise(SIGSTOP);
        dml_comm_send(me->comm, x, 1, DML_I32, kind == ANY_BEHIND_ANOTHER, 5);
    }
    if (me->rank == 0 && kind == ANY_RECEIVE)
        dml_comm_receive(me->comm, x, 1, DML_I32, DML_ANY_SOURCE, 5, &message);
    if (me->rank == 0 && kind == ANY_OF_TWO) {
        dml_request *two[2];
        two[0] = dml_comm_receive_start(me->comm, &x[1], 1, DML_I32, 1, 6);
        two[1] = dml_comm_receive_start(me->comm, &x[2], 1, DML_I32, 2, 5);
        dml_comm_wait_any_message(me->comm, two, 2, &message);
    }
    if (me->rank == 0 && kind == ANY_WAITS && dml_comm_probe(me->comm, 2, 5, 100, &message))
        dml_comm_receive(me->comm, x, 1, DML_I32, 2, 5, NULL);
    if (kind == ANY_BEHIND_ANOTHER && me->rank == 0) dml_comm_receive(me->comm, x, 1, DML_I32, 1, 7, NULL);
    if (kind == ANY_BEHIND_ANOTHER && me->rank == 1) {
        dml_comm_receive(me->comm, x, 1, DML_I32, DML_ANY_SOURCE, 5, NULL);
        dml_comm_send(me->comm, x, 1, DML_I32, 0, 7);
    }
    if (kind == ANY_OF_TWO && me->rank == 1) dml_comm_receive(me->comm, x, 1, DML_I32, 0, 8, NULL);
    dml_comm_all_reduce(me->comm, x, 1, DML_I32, DML_SUM);
}

static void a_rank_that_is_stopped_while_others_wait_for_any(void)
{
    static const any_wait kinds[] = { ANY_RECEIVE,  ANY_OF_TWO,   ANY_WAITS,        ANY_BEHIND_ANOTHER,
                                      BESIDE_A_SUM, BEHIND_A_SUM, ANY_OF_TWO_GROUPS };
    static const char *const names[] = { "a receive from any",
                                         "a wait for one of two",
                                         "a probe",
                                         "behind a receive from any",
                                         "beside a group's sum",
                                         "later than a group's sum",
                                         "a wait for one of two in two groups" };
    job jobs[ANY_WAIT_COUNT];
    for (int i = 0; i < ANY_WAIT_COUNT; i++) {
        job_prepare(&jobs[i], WORLD, TIMEOUT, waits_for_any_body, &kinds[i]);
        job_start(&jobs[i]);
    }
    for (int i = 0; i < ANY_WAIT_COUNT; i++) job_reached(&jobs[i], JOB_OPENED, 10);
    job_sleep(2 * PAUSE);
    for (int i = 0; i < ANY_WAIT_COUNT; i++) kill(jobs[i].ranks[2].pid, SIGCONT);
    for (int i = 0; i < ANY_WAIT_COUNT; i++) {
        job_wait(&jobs[i], 10);
        for (int rank = 0; rank < 2; rank++)
            check_rank_fails(&jobs[i].ranks[rank], names[i], DML_ERROR_TIMEOUT, "rank 2 of 3", NULL);
        job_release(&jobs[i]);
    }
}

int main(void)
{
    RUN(a_rank_that_comes_back_late);
    RUN(a_rank_that_has_just_had_it);
    RUN(a_rank_that_is_stopped_while_others_wait_for_any);
    RUN(a_job_that_is_stopped_and_continued);
    RUN(a_rank_that_is_stopped);
    RUN(ranks_that_are_stopped_shortly);
    return test_report("comm/paused");
}
