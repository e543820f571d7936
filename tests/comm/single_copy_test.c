/* Ranks that read each other's memory (process_vm_readv): from wherever it lies; one of them is killed while
   another reads, or is about to. */
#include "jobs.h"

#include <stdlib.h>

enum { PART = 192 * 1024, MANY = 12 }; /* floats; jobs side by side */

/* When rank 0 is killed, in milliseconds from when its call begins. */
typedef struct moment {
    int after, sleeps; /* the others, meanwhile: before they wait */
} moment;

static void *killer(void *argument)
{
    const moment *when = (const moment *)argument;
    job_sleep(1e-3 * when->after);
    raise(SIGKILL);
    return NULL;
}

/* Rank 1 has said that it is ready to receive, so rank 0's memory is on offer when it dies, and is read when
   it is gone. */
static void offered_body(job_rank *me)
{
    const moment *when = (const moment *)me->user;
    pthread_t thread;
    float *in = (float *)calloc(3 * PART, sizeof *in), *out = (float *)calloc(PART, sizeof *out);
    dml_comm_barrier(me->comm);
    if (me->rank == 0) {
        job_sleep(0.1);
        pthread_create(&thread, NULL, killer, (void *)(uintptr_t)when);
        dml_comm_scatter(me->comm, in, PART, DML_F32, out, 0);
    } else {
        dml_request *request = dml_comm_scatter_start(me->comm, NULL, PART, DML_F32, out, 0);
        job_sleep(1e-3 * when->sleeps);
        dml_comm_wait(me->comm, request);
    }
    dml_comm_barrier(me->comm);
}

/* Each reads the others' all the time. */
static void exchanged_body(job_rank *me)
{
    const moment *when = (const moment *)me->user;
    pthread_t thread;
    const size_t all = (size_t)me->world * PART;
    float *in = (float *)malloc(all * sizeof *in), *out = (float *)malloc(all * sizeof *out);
    dml_comm_barrier(me->comm);
    if (me->rank == 0) pthread_create(&thread, NULL, killer, (void *)(uintptr_t)when);
    for (int i = 0; !dml_comm_status(me->comm); i++) {
        for (size_t k = 0; k < all; k++) in[k] = (float)(i + me->rank);
        if (dml_comm_all_to_all(me->comm, in, PART, DML_F32, out)) break;
        for (size_t k = 0; k < all; k++) me->bad += out[k] != (float)(i + (int)(k / PART));
    }
}

static void kill_at(void (*body)(job_rank *), const moment *moments, int count, int world, const char *name)
{
    job jobs[MANY];
    for (int i = 0; i < count; i++) {
        job_prepare(&jobs[i], world, 8, body, &moments[i]);
        job_start(&jobs[i]);
    }
    for (int i = 0; i < count; i++) {
        job_wait(&jobs[i], 30);
        CHECK_MESSAGE(jobs[i].ranks[0].exit_code == -1, "%s: rank 0 lives", name);
        for (int rank = 1; rank < world; rank++) {
            check_rank_fails(&jobs[i].ranks[rank], name, DML_ERROR_PEER, "rank 0", NULL);
            CHECK_INT(jobs[i].ranks[rank].bad, 0);
        }
        job_release(&jobs[i]);
    }
}

static void killed_with_memory_on_offer(void)
{
    const moment moments[2] = { { 100, 500 }, { 10, 300 } };
    kill_at(offered_body, moments, 2, 3, "killed while its memory was on offer");
}

static void killed_while_it_is_read(void)
{
    moment moments[MANY];
    for (int i = 0; i < MANY; i++) moments[i].after = 5 + 17 * i, moments[i].sleeps = 0;
    kill_at(exchanged_body, moments, MANY / 2, 2, "killed while others read");
    kill_at(exchanged_body, moments + MANY / 2, MANY / 2, 3, "killed while others read");
}

/* Parts that lie anywhere in a page, of the sender and of the receiver. */
static void distances_body(job_rank *me)
{
    enum { PAGE = 4096, MOST = 300003, DISTANCES = 7 };
    static const size_t distances[DISTANCES] = { 0, 1, 16, 31, 32, 48, PAGE - 16 },
                        counts[] = { 1 << 18, MOST };
    const size_t world = (size_t)me->world;
    void *memory[2] = { NULL, NULL };
    for (int i = 0; i < 2; i++)
        if (posix_memalign(&memory[i], PAGE, world * MOST + 2 * PAGE)) return;
    uint8_t *in = (uint8_t *)memory[0];
    for (int i = 0; i < 2 * DISTANCES && !dml_comm_status(me->comm); i++) {
        const size_t count = counts[i % 2], all = world * count;
        uint8_t *out = (uint8_t *)memory[1] + distances[i / 2];
        for (size_t k = 0; k < all; k++) in[k] = (uint8_t)(k * 7 + k / 251 + (size_t)me->rank * 31);
        memset(memory[1], 0xee, all + 2 * PAGE);
        if (dml_comm_all_to_all(me->comm, in, count, DML_U8, out)) break;
        for (size_t r = 0; r < world; r++)
            for (size_t k = 0; k < count; k++) {
                const size_t from = (size_t)me->rank * count + k;
                me->bad += out[r * count + k] != (uint8_t)(from * 7 + from / 251 + r * 31);
            }
        me->bad += out[all] != 0xee;
        me->notes[0]++;
    }
    me->bad += me->notes[0] != 2 * DISTANCES;
    for (int i = 0; i < 2; i++) free(memory[i]);
}

static void read_at_every_distance(void)
{
    for (int world = 2; world <= 3; world++) {
        job j;
        job_prepare(&j, world, 8, distances_body, NULL);
        job_start(&j);
        job_wait(&j, 30);
        check_job(&j, "distances");
        job_release(&j);
    }
}

int main(void)
{
    setenv("DML_COMM_CMA", "1", 1);
    RUN(killed_with_memory_on_offer);
    RUN(killed_while_it_is_read);
    RUN(read_at_every_distance);
    return test_report("comm/single_copy");
}
