/* Ranks that read each other's memory (process_vm_readv): one of them is killed while another reads, or is
   about to. */
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

int main(void)
{
    setenv("DML_COMM_CMA", "1", 1);
    RUN(killed_with_memory_on_offer);
    RUN(killed_while_it_is_read);
    return test_report("comm/single_copy");
}
