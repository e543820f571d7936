/* Random collectives while something happens to one rank at a random moment: never a wrong result with
   DML_OK, never a hang past the deadline, and no error where nothing happened that the job can't live with.

       FAULT_ROUNDS=200 FAULT_SEED=7 faults_test     more of them; or one again: FAULT_ROUNDS=1, its seed */
#include "jobs.h"

#include <limits.h>

enum { SIDE_BY_SIDE = JOB_SLOW > 1 ? 3 : 6, MOST = 30000 };
static const double TIMEOUT = 1.5, PATIENCE = 1.5 * JOB_SLOW; /* of a job; what it comes to here */

/* The last three leave the job whole. */
typedef enum fault {
    KILLED,
    CRASHED,
    STOPPED,
    STOPPED_LONG,
    STOPPED_SHORTLY,
    CONTINUED,
    INTERRUPTED,
    FAULTS
} fault;
static const char *const fault_names[] = {
    "SIGKILL", "SIGSEGV", "SIGSTOP", "SIGSTOP for long, SIGCONT", "a short SIGSTOP", "SIGCONT", "SIGUSR1s"
};

typedef struct round_of {
    unsigned seed;
    int world, victim;
    fault fault;
    double after; /* s after all have begun */
    bool started; /* sums are started, and other calls made before they are waited for */
    volatile int *end;
} round_of;

static double unit(unsigned *state)
{
    return (double)(test_random(state) >> 8) / 16777216.0;
}

/* ---- what the ranks do ---- */

/* Element i of a rank's data in call `call`: small whole numbers, so that sums are exact in every dtype. */
static int element(unsigned call, int rank, size_t i)
{
    return (int)((call * 7u + (unsigned)rank * 13u + (unsigned)i * 3u) % 11u) - 5;
}

static void put(void *data, size_t i, dml_dtype dtype, int value)
{
    if (dtype == DML_F32) ((float *)data)[i] = (float)value;
    if (dtype == DML_F64) ((double *)data)[i] = value;
    if (dtype == DML_I32) ((int32_t *)data)[i] = value;
    if (dtype == DML_I64) ((int64_t *)data)[i] = value;
}
static bool holds(const void *data, size_t i, dml_dtype dtype, int value)
{
    if (dtype == DML_F32) return ((const float *)data)[i] == (float)value;
    if (dtype == DML_F64) return ((const double *)data)[i] == value;
    if (dtype == DML_I32) return ((const int32_t *)data)[i] == value;
    return ((const int64_t *)data)[i] == value;
}

static int reduced(unsigned call, int world, size_t i, dml_reduce_op op)
{
    int sum = 0, least = INT_MAX, most = INT_MIN;
    for (int rank = 0; rank < world; rank++) {
        const int value = element(call, rank, i);
        sum += value;
        least = value < least ? value : least;
        most = value > most ? value : most;
    }
    return op == DML_SUM ? sum : op == DML_MIN ? least : most;
}

/* The next call of the job's program: drawn from the same numbers on all ranks. */
static job_call draw_call(unsigned *state, int world)
{
    static const dml_dtype dtypes[] = { DML_F32, DML_F64, DML_I32, DML_I64 };
    static const dml_reduce_op ops[] = { DML_SUM, DML_MIN, DML_MAX };
    job_call call;
    call.operation = (job_operation)(JOB_ALL_REDUCE + (int)(test_random(state) % 6));
    call.dtype = dtypes[test_random(state) % 4];
    call.op = ops[test_random(state) % 3];
    call.root = (int)(test_random(state) % (unsigned)world);
    const unsigned size = test_random(state) % 8;
    call.count = size == 0 ? 0 : size < 6 ? test_random(state) % 200 : test_random(state) % MOST;
    return call;
}

/* Wrong elements of what a call has left; `first` is the element that stands at 0. */
static int check_row(const void *data, size_t first, size_t count, const job_call *call, unsigned number,
                     int world, int of_rank)
{
    int bad = 0;
    for (size_t i = 0; i < count; i++) {
        const int want =
            of_rank < 0 ? reduced(number, world, first + i, call->op) : element(number, of_rank, first + i);
        bad += !holds(data, i, call->dtype, want);
    }
    return bad;
}

/* One call, its data, its results. */
static dml_status make_and_check(job_rank *me, const job_call *drawn, unsigned number, void *in, void *out)
{
    job_call call = *drawn;
    const size_t size = dml_dtype_size(call.dtype), n = call.count;
    const bool rows = call.operation == JOB_REDUCE_SCATTER;
    /* A pair: the rank after the root gets what the root sends. */
    const bool sends = call.operation == JOB_SEND && me->rank == call.root;
    const bool receives = call.operation == JOB_SEND && me->rank == (call.root + 1) % me->world;
    if (call.operation == JOB_SEND && !sends && !receives) return DML_OK;
    if (sends) call.root = (me->rank + 1) % me->world;
    if (receives) call.operation = JOB_RECEIVE;
    for (size_t i = 0; i < n * (rows ? (size_t)me->world : 1); i++)
        put(in, i, call.dtype, element(number, me->rank, i));
    const dml_status status = job_make_call(me->comm, &call, in, out);
    if (status) return status;
    if (call.operation == JOB_ALL_REDUCE) me->bad += check_row(in, 0, n, &call, number, me->world, -1);
    if (call.operation == JOB_BROADCAST) me->bad += check_row(in, 0, n, &call, number, me->world, call.root);
    if (receives) me->bad += check_row(in, 0, n, &call, number, me->world, call.root);
    if (rows) me->bad += check_row(out, (size_t)me->rank * n, n, &call, number, me->world, -1);
    if (call.operation == JOB_ALL_GATHER)
        for (int rank = 0; rank < me->world; rank++)
            me->bad +=
                check_row((const char *)out + (size_t)rank * n * size, 0, n, &call, number, me->world, rank);
    return DML_OK;
}

/* Four sums under way while other calls are made. */
static dml_status start_and_check(job_rank *me, unsigned *state, unsigned number, void *in, void *out)
{
    static float sums[4][2000];
    dml_request *requests[4];
    const size_t count = 1 + test_random(state) % 2000;
    const job_call between = draw_call(state, me->world);
    for (unsigned s = 0; s < 4; s++) {
        for (size_t i = 0; i < count; i++) sums[s][i] = (float)element(number + s, me->rank, i);
        requests[s] = dml_comm_all_reduce_start(me->comm, sums[s], count, DML_F32, DML_SUM);
        if (!requests[s]) return dml_comm_status(me->comm);
    }
    dml_status status = make_and_check(me, &between, number + 4, in, out);
    const job_call sum = { JOB_ALL_REDUCE, count, DML_F32, DML_SUM, 0 };
    for (unsigned s = 0; s < 4; s++) {
        const dml_status waited = dml_comm_wait(me->comm, requests[3 - s]);
        if (!waited) me->bad += check_row(sums[3 - s], 0, count, &sum, number + 3 - s, me->world, -1);
        status = status ? status : waited;
    }
    return status;
}

static void nothing(int number)
{
    (void)number;
}

/* Until an error, or until the ranks agree that it is the end. */
static void fault_body(job_rank *me)
{
    const round_of *round = (const round_of *)me->user;
    unsigned state = round->seed | 1u;
    void *in = malloc(8 * (size_t)MOST * (size_t)me->world),
         *out = malloc(8 * (size_t)MOST * (size_t)me->world);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = nothing; /* and no SA_RESTART */
    sigaction(SIGUSR1, &action, NULL);
    dml_status status = DML_OK;
    int32_t end = 0;
    for (unsigned number = 0; !status && !end; number += 5) {
        if (round->started && test_random(&state) % 3 == 0) {
            status = start_and_check(me, &state, number, in, out);
        } else {
            const job_call call = draw_call(&state, me->world);
            status = make_and_check(me, &call, number, in, out);
        }
        if (!status && number % 80 == 0) {
            end = *round->end;
            status = dml_comm_all_reduce(me->comm, &end, 1, DML_I32, DML_MAX);
            if (status) end = 0;
        }
        me->notes[0]++;
    }
    me->notes[1] = status;
    free(in);
    free(out);
}

/* ---- what happens to them ---- */

static void strike(const job *job, const round_of *round)
{
    const pid_t victim = job->ranks[round->victim].pid;
    switch (round->fault) {
    case KILLED: kill(victim, SIGKILL); break;
    case CRASHED: kill(victim, SIGSEGV); break;
    case CONTINUED: kill(victim, SIGCONT); break;
    case INTERRUPTED: kill(victim, SIGUSR1); break;
    default: kill(victim, SIGSTOP); break;
    }
}

/* Called every few milliseconds from then on. */
static void strike_on(const job *job, const round_of *round, double since)
{
    const pid_t victim = job->ranks[round->victim].pid;
    if (round->fault == INTERRUPTED) kill(victim, SIGUSR1);
    if (round->fault == STOPPED_SHORTLY && since > PATIENCE / 4) kill(victim, SIGCONT);
    if (round->fault == STOPPED_LONG && since > 2.5 * PATIENCE) kill(victim, SIGCONT);
}

static void check_round(job *job, const round_of *round)
{
    char name[128];
    snprintf(name, sizeof name, "seed %u: %s for rank %d of %d", round->seed, fault_names[round->fault],
             round->victim, round->world);
    for (int rank = 0; rank < round->world; rank++) {
        const job_rank *me = &job->ranks[rank];
        CHECK_MESSAGE(!me->bad, "%s: rank %d: %d wrong elements with DML_OK", name, rank, me->bad);
        if (round->fault >= STOPPED_SHORTLY) {
            CHECK_ENDED(name, me);
            CHECK_MESSAGE(!job_status(me), "%s: rank %d: %s", name, rank, job_error(me));
        } else if (rank != round->victim) {
            char part[32];
            snprintf(part, sizeof part, "rank %d", round->victim);
            check_rank_fails(me, name, DML_OK, part, NULL);
        } else if (round->fault == STOPPED_LONG) {
            check_rank_fails(me, name, DML_OK, NULL, NULL);
        }
    }
}

static void draw_round(round_of *round, unsigned seed, volatile int *end)
{
    unsigned state = seed * 2654435761u + 1;
    for (int i = 0; i < 8; i++) test_random(&state);
    round->seed = seed;
    round->world = 2 + (int)(test_random(&state) % 4);
    round->victim = (int)(test_random(&state) % (unsigned)round->world);
    round->fault = (fault)(seed % FAULTS);
    round->after = 0.2 * unit(&state);
    round->started = test_random(&state) % 2;
    round->end = end;
}

/* Several at a time, each struck at its own moment. */
static void run_rounds(const round_of *rounds, job *jobs, int count)
{
    double struck[SIDE_BY_SIDE] = { 0 };
    for (int i = 0; i < count; i++) {
        job_prepare(&jobs[i], rounds[i].world, TIMEOUT, fault_body, &rounds[i]);
        for (int rank = 0; rank < rounds[i].world; rank++) /* of sizes that cut in odd places too */
            if (rounds[i].seed % 2) jobs[i].ranks[rank].options.segment_bytes = 4096;
        job_start(&jobs[i]);
    }
    for (int i = 0; i < count; i++)
        CHECK_MESSAGE(job_reached(&jobs[i], JOB_OPENED, 10), "seed %u: not opened", rounds[i].seed);
    const double begin = dml_seconds();
    for (double now = 0; now < 3.2 * PATIENCE; now = dml_seconds() - begin) {
        for (int i = 0; i < count; i++) {
            if (!struck[i] && now >= rounds[i].after) {
                struck[i] = now + 1e-9;
                strike(&jobs[i], &rounds[i]);
            } else if (struck[i]) {
                strike_on(&jobs[i], &rounds[i], now - struck[i]);
            }
        }
        job_sleep(0.003);
    }
    for (int i = 0; i < count; i++) {
        *rounds[i].end = 1;
        if (rounds[i].fault == STOPPED) kill(jobs[i].ranks[rounds[i].victim].pid, SIGKILL);
    }
    for (int i = 0; i < count; i++) {
        /* What the ranks have to notice they have noticed by now: these seconds are for a machine that is
         * busy. */
        job_wait(&jobs[i], 5);
        check_round(&jobs[i], &rounds[i]);
        job_release(&jobs[i]);
    }
}

static int setting(const char *name, int otherwise)
{
    const char *value = getenv(name);
    return value && *value ? atoi(value) : otherwise;
}

static void something_happens_to_one_rank(void)
{
    const int rounds = setting("FAULT_ROUNDS", JOB_SLOW > 1 ? 6 : 12);
    const unsigned first = (unsigned)setting("FAULT_SEED", (int)(time(NULL) % 100000));
    volatile int *ends = (volatile int *)mmap(NULL, SIDE_BY_SIDE * sizeof(int), PROT_READ | PROT_WRITE,
                                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    printf("FAULT_SEED=%u FAULT_ROUNDS=%d\n", first, rounds);
    for (int begin = 0; begin < rounds; begin += SIDE_BY_SIDE) {
        round_of some[SIDE_BY_SIDE];
        job jobs[SIDE_BY_SIDE];
        const int count = rounds - begin < SIDE_BY_SIDE ? rounds - begin : SIDE_BY_SIDE;
        for (int i = 0; i < count; i++) {
            ends[i] = 0;
            draw_round(&some[i], first + (unsigned)(begin + i), &ends[i]);
        }
        run_rounds(some, jobs, count);
    }
    munmap((void *)(uintptr_t)ends, SIDE_BY_SIDE * sizeof(int));
}

int main(void)
{
    RUN(something_happens_to_one_rank);
    return test_report("comm/faults");
}
