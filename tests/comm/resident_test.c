/* What an open communicator costs: memory that isn't used isn't touched. */
#include "jobs.h"

#include <sys/resource.h>

/* Bytes in RAM; 0 where nobody says. */
static size_t resident(void)
{
    long long pages = 0, all = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return 0;
    if (fscanf(file, "%lld %lld", &all, &pages) != 2) pages = 0;
    fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void resident_body(job_rank *me)
{
    me->notes[1] = (long long)resident();
    float x[1000];
    for (int i = 0; i < 1000; i++) x[i] = 1;
    dml_comm_all_reduce(me->comm, x, 1000, DML_F32, DML_SUM);
    me->bad += x[999] != (float)me->world;
    me->notes[2] = (long long)resident();
}

/* Megabytes on top of what this process has, at the most, with a segment of a gigabyte. */
static void check_segment(size_t bytes, int world, long long most)
{
    job job;
    job_prepare(&job, world, 10, resident_body, NULL);
    for (int rank = 0; rank < world; rank++) job.ranks[rank].options.segment_bytes = bytes;
    const long long before = (long long)resident();
    job_start(&job);
    job_wait(&job, 20);
    check_job(&job, "a large segment");
    for (int rank = 0; rank < world; rank++)
        for (int i = 1; i <= 2; i++) {
            const long long more = (job.ranks[rank].notes[i] - before) >> 20;
            CHECK_MESSAGE(more <= most, "rank %d of %d has %lld MB more in RAM %s with a segment of %zu MB",
                          rank, world, more, i == 1 ? "after opening" : "after a small sum", bytes >> 20);
        }
    job_release(&job);
}

static void a_segment_of_a_gigabyte(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("sanitizers have memory of their own");
#else
    if (!resident() || sizeof(void *) < 8 || TEST_EMULATOR) {
        SKIP("no /proc/self/statm, an emulator, or not that much memory in reach");
        return;
    }
    check_segment((size_t)1 << 30, 1, 32);
    if (test__ok) check_segment((size_t)1 << 30, 2, 32); /* else it would be several gigabytes */
#endif
}

static void a_usual_segment(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("sanitizers have memory of their own");
#else
    if (!resident() || TEST_EMULATOR) {
        SKIP("no /proc/self/statm, or an emulator");
        return;
    }
    check_segment(0, 5, 16);
#endif
}

/* `ulimit -f`: who grows what it shares beyond that would be killed. */
static void a_limit_of_files(void)
{
    struct rlimit before, low;
    job job;
    CHECK_INT(getrlimit(RLIMIT_FSIZE, &before), 0);
    low = before;
    low.rlim_cur = 100000;
    job_prepare(&job, 3, 10, resident_body, NULL);
    CHECK_INT(setrlimit(RLIMIT_FSIZE, &low), 0);
    job_start(&job);
    setrlimit(RLIMIT_FSIZE, &before);
    job_wait(&job, 20);
    check_job(&job, "a limit of files");
    job_release(&job);
}

int main(void)
{
    RUN(a_segment_of_a_gigabyte);
    RUN(a_usual_segment);
    RUN(a_limit_of_files);
    return test_report("comm/resident");
}
