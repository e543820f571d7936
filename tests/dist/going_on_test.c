/* When a rank dies the others go on without it, in the same process: they close the communicator, open a
   smaller one, load the last checkpoint and attach the strategy again, and end where a run ends that was
   never disturbed. */
#include "dist/all_reduce_sync.h"
#include "dist/zero_sync.h"

#include "../comm/jobs.h"
#include "device/context.h"
#include "ops/op_activation.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "train/checkpoint.h"

#include <math.h>

enum { RANKS = 3, IN = 5, BATCH = 12, STEPS = 12, SAVED = 4, DIES = 7, COUNT = 57 };

typedef struct plan {
    int stage;  /* of ZeRO; 0: all-reduce */
    int victim; /* who dies at step DIES */
    int port;   /* of the second job */
    char path[300];
    float w[RANKS][COUNT]; /* that each ends with */
} plan;

static void make_batch(int step, float x[BATCH * IN], int32_t t[BATCH])
{
    unsigned state = 7u + (unsigned)step;
    test_fill(&state, x, BATCH * IN);
    for (int i = 0; i < BATCH; i++) t[i] = x[i * IN] > 0.3f ? 2 : x[i * IN + 1] > 0;
}

static dml_status attach(const plan *p, dml_trainer *trainer, dml_comm *comm)
{
    const dml_zero_options zero = { .stage = p->stage };
    return dml_trainer_sync(trainer, p->stage ? dml_zero_sync(comm, &zero) : dml_all_reduce_sync(comm, NULL));
}

static dml_status step_of(dml_trainer *trainer, const dml_comm *comm)
{
    const int ranks = dml_comm_world_size(comm), rank = dml_comm_rank(comm);
    const int begin = BATCH * rank / ranks, end = BATCH * (rank + 1) / ranks;
    float x[BATCH * IN];
    int32_t t[BATCH];
    make_batch((int)dml_trainer_steps(trainer), x, t);
    return dml_trainer_step(trainer, end - begin, DML_INPUTS(x + begin * IN, t + begin), NULL);
}

static dml_status save(const plan *p, dml_trainer *trainer, const dml_comm *comm)
{
    const dml_status status = dml_trainer_gather(trainer);
    return status == DML_OK && dml_comm_rank(comm) == 0 ? dml_trainer_save(trainer, p->path) : status;
}

/* The smaller job, in which the ranks behind the one that is gone have moved up. */
static bool go_on(const plan *p, job_rank *me, dml_trainer *trainer)
{
    const int culprit = dml_comm_culprit(me->comm), rank = dml_comm_rank(me->comm);
    dml_comm_options options = me->options;
    me->bad += culprit != p->victim;
    dml_comm_close(me->comm);
    dml_clear_error(dml_trainer_context(trainer));
    options.rank = rank - (rank > culprit);
    options.world_size = RANKS - 1;
    options.master_port = p->port;
    me->comm = dml_comm_open(&options);
    return dml_comm_status(me->comm) == DML_OK && dml_trainer_load(trainer, p->path) == DML_OK &&
           dml_trainer_steps(trainer) == SAVED && attach(p, trainer, me->comm) == DML_OK;
}

static dml_trainer *open_trainer(void)
{
    dml_graph *graph = dml_graph_create(dml_open(&(dml_options){ .threads = 1, .seed = 3 }));
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *t = dml_input(graph, "t", DML_I32);
    dml_node *loss = dml_softmax_cross_entropy(dml_dense(dml_tanh(dml_dense(x, 6)), 3), t);
    dml_trainer_options options = { .batch = BATCH, .optimizer = dml_adam(0.01f) };
    options.optimizer.epsilon = 1e-3f;
    return dml_trainer_create(loss, &options);
}

static void body(job_rank *me)
{
    plan *p = (plan *)(uintptr_t)me->user;
    dml_trainer *trainer = open_trainer();
    dml_context *context = dml_trainer_context(trainer);
    dml_status status = attach(p, trainer, me->comm);
    bool again = false;
    while (dml_trainer_steps(trainer) < STEPS) {
        if (dml_trainer_steps(trainer) == DIES && !again && me->rank == p->victim) raise(SIGKILL);
        if (status == DML_OK) status = step_of(trainer, me->comm);
        if (status == DML_OK && dml_trainer_steps(trainer) == SAVED) status = save(p, trainer, me->comm);
        if (status == DML_OK) continue;
        if (again || !go_on(p, me, trainer)) {
            snprintf(me->logged, sizeof me->logged, "%s %s", dml_error(context), dml_comm_error(me->comm));
            me->bad++;
            break;
        }
        again = true;
        status = DML_OK;
    }
    me->bad += !again || dml_trainer_gather(trainer) != DML_OK;
    const float *w = dml_trainer_get(trainer, DML_PARAMETERS, 0, COUNT);
    if (w) memcpy(p->w[dml_comm_rank(me->comm)], w, sizeof p->w[0]);
    me->bad += dml_comm_culprit(me->comm) != -1;
    dml_close(context);
}

static void train_alone(float w[COUNT])
{
    dml_trainer *trainer = open_trainer();
    CHECK_INT(dml_trainer_count(trainer, DML_PARAMETERS), COUNT);
    for (int step = 0; step < STEPS; step++) CHECK_INT(step_of(trainer, NULL), DML_OK);
    memcpy(w, dml_trainer_get(trainer, DML_PARAMETERS, 0, COUNT), COUNT * sizeof *w);
    dml_close(dml_trainer_context(trainer));
}

static void without_the_dead(void)
{
    float want[COUNT];
    const char *folder = getenv("TMPDIR");
    train_alone(want);
    for (int stage = 0; stage <= 3; stage++) {
        plan *p = (plan *)mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        job job;
        p->stage = stage;
        p->victim = stage % RANKS;
        p->port = test_port();
        snprintf(p->path, sizeof p->path, "%s/dml_going_on.%ld", folder ? folder : "/tmp", (long)getpid());
        job_prepare(&job, RANKS, 20, body, p);
        job_start(&job);
        job_wait(&job, 60);
        for (int r = 0; r < RANKS; r++) {
            const job_rank *me = &job.ranks[r];
            if (r == p->victim) continue;
            CHECK_ENDED("going on", me);
            CHECK_MESSAGE(!me->bad && !job_status(me), "stage %d: rank %d: %d wrong: %s", stage, r, me->bad,
                          job_error(me));
        }
        for (int r = 0; r < RANKS - 1; r++)
            for (int k = 0; k < COUNT; k++) CHECK_NEAR(p->w[r][k], want[k], 1e-5);
        remove(p->path);
        job_release(&job);
        munmap(p, sizeof *p);
    }
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    RUN(without_the_dead);
    return test_report("dist/going_on");
}
