/* fork.c: a program that forks while it trains. The children predict with what they inherited and let go of
   it; the parent's training, alone or among other ranks, takes no notice.

       fork alone          a trainer of its own
       dmlrun -n 2 fork    ranks that share a gradient; their children can't take part in that */
#define _POSIX_C_SOURCE 200112L
#include "dml.h"
#include "dml_comm.h"
#include "expect.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 32, IN = 24, CLASSES = 4, STEPS = 10, CHILDREN = 10 /* before each step */ };
static float point[BATCH * IN], score[BATCH * CLASSES], again[BATCH * CLASSES];
static int label[BATCH];

typedef struct job {
    dml_context *ctx;
    dml_comm *comm; /* NULL: alone */
    dml_graph *g;
    dml_trainer *trainer;
    dml_program *predict;
} job;

static void begin(job *j)
{
    j->ctx = dml_open(&(dml_options){ .threads = 4, .seed = 3 });
    j->g = dml_graph_create(j->ctx);
    dml_node *x = dml_input(j->g, "x", DML_F32, IN), *t = dml_input(j->g, "t", DML_I32);
    dml_node *y = dml_dense(dml_relu(dml_dense(x, 64)), CLASSES);
    j->trainer =
        dml_trainer_create(dml_softmax_cross_entropy(y, t),
                           &(dml_trainer_options){ .batch = BATCH, .optimizer = dml_sgd(0.1f, 0.9f) });
    j->predict = dml_compile(y, &(dml_program_options){ .batch = BATCH });
    EXPECT_NO_ERROR(j->ctx);
    if (j->comm) dml_trainer_sync(j->trainer, dml_all_reduce_sync(j->comm, NULL));
    EXPECT_NO_ERROR(j->ctx);
}

/* The child predicts what its parent did. It can make the parent's next step too, unless that is the work of
   several processes: then it is told so. */
static void in_child(const job *j)
{
    EXPECT(dml_program_run(j->predict, BATCH, DML_INPUTS(point), again) == DML_OK);
    EXPECT(memcmp(score, again, sizeof score) == 0);
    const dml_status status = dml_trainer_step(j->trainer, BATCH, DML_INPUTS(point, label), NULL);
    EXPECT(status == (j->comm ? DML_ERROR_STATE : DML_OK));
    EXPECT(!j->comm || strstr(dml_error(j->ctx), "fork"));
    dml_close(j->ctx);
    dml_comm_close(j->comm);
    job own = { 0 }; /* and what it opens itself works in every way, threads included */
    begin(&own);
    EXPECT(dml_trainer_step(own.trainer, BATCH, DML_INPUTS(point, label), NULL) == DML_OK);
    dml_close(own.ctx);
    exit(0);
}

static void fork_children(const job *j)
{
    pid_t child[CHILDREN];
    int status;
    EXPECT(dml_program_run(j->predict, BATCH, DML_INPUTS(point), score) == DML_OK);
    for (int i = 0; i < CHILDREN; i++) {
        child[i] = fork();
        EXPECT(child[i] >= 0);
        if (child[i] == 0) in_child(j);
        if (i % 2 == 0) continue; /* two at a time, the one may outlive the parent's next step */
        EXPECT(waitpid(child[i], &status, 0) == child[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        EXPECT(waitpid(child[i - 1], &status, 0) == child[i - 1] && WIFEXITED(status) &&
               !WEXITSTATUS(status));
    }
}

static size_t train(job *j, bool forks, float weights[4000])
{
    begin(j);
    for (int i = 0; i < STEPS; i++) {
        if (forks) fork_children(j);
        dml_trainer_step(j->trainer, BATCH, DML_INPUTS(point, label), NULL);
        EXPECT_NO_ERROR(j->ctx);
    }
    const size_t count = dml_graph_parameter_count(j->g);
    EXPECT(count <= 4000);
    memcpy(weights, dml_graph_get(j->g, 0, count), count * sizeof *weights);
    dml_close(j->ctx);
    return count;
}

int main(int argc, char **argv)
{
    static float weights[4000], same[4000];
    job j = { 0 };
    if (argc < 2 || strcmp(argv[1], "alone") != 0) EXPECT((j.comm = dml_comm_open(NULL)) != NULL);
    for (int i = 0; i < BATCH * IN; i++) point[i] = (float)((i + dml_comm_rank(j.comm)) * 29 % 97) / 97;
    for (int i = 0; i < BATCH; i++) label[i] = i % CLASSES;
    const size_t count = train(&j, false, weights);
    EXPECT(train(&j, true, same) == count);
    EXPECT(memcmp(weights, same, count * sizeof *weights) == 0);
    EXPECT(dml_comm_world_size(j.comm) == 1 || dml_comm_barrier(j.comm) == DML_OK);
    printf("rank %d: the same weights after %d children\n", dml_comm_rank(j.comm), STEPS * CHILDREN);
    dml_comm_close(j.comm);
    return 0;
}
