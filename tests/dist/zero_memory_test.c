/* What a rank takes of the memory under each stage of ZeRO, with ranks as processes. */
#include "dist/zero_sync.h"

#include "../comm/jobs.h"
#include "dist/all_reduce_sync.h"
#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"

#ifdef __linux__
#include <sys/prctl.h>
#endif

enum { WIDTH = 256, LAYERS = 16, ROWS = 2, STEPS = 3 };

#define LAYER ((WIDTH + 1.0) * WIDTH)
#define PARAMETERS (LAYERS * LAYER)
#define MIB 1048576.0
#define BESIDE 2.0 /* MiB: scratch, the arena, the communicator's buffers, pages at the ends of ranges */
#define CODE 1.0   /* MiB: what of it gets mapped meanwhile */
#define LIMIT 9.0

/* A line of /proc/self/status, in bytes; 0 where nobody says. */
static double status_line(const char *name)
{
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0) sscanf(line + strlen(name), "%lf", &kib);
    if (file) fclose(file);
    return kib * 1024;
}

static dml_trainer *trainer_of(dml_context *context)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *h = dml_input(graph, "x", DML_F32, WIDTH);
    for (int i = 0; i < LAYERS; i++) h = dml_tanh(dml_dense(h, WIDTH));
    const dml_trainer_options options = { .batch = ROWS, .optimizer = dml_adam(1e-4f), .clip_norm = 1 };
    return dml_trainer_create(dml_mean_squared_error(h, dml_input(graph, "y", DML_F32, WIDTH)), &options);
}

/* Notes, in bytes: what it has more after a few steps than before it had a model, and at the most. Code isn't
   counted, except at the most: how much of it is mapped depends on what else the machine reads. */
static void train(job_rank *me)
{
    const int stage = *(const int *)me->user;
    static float x[ROWS * WIDTH], y[ROWS * WIDTH];
    float loss[2] = { 0, 0 };
#ifdef __linux__
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* pages of 2 MiB would hide what is measured */
#endif
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    unsigned random = 5u + (unsigned)me->rank;
    test_fill(&random, x, ROWS * WIDTH);
    const double before = status_line("RssAnon:"), resident = status_line("VmRSS:");
    dml_trainer *t = trainer_of(context);
    const dml_zero_options options = { .stage = stage, .bucket_bytes = 1 << 16 };
    if (me->world > 1)
        me->bad += dml_trainer_sync(t, stage ? dml_zero_sync(me->comm, &options)
                                             : dml_all_reduce_sync(me->comm, NULL)) != DML_OK;
    for (int s = 0; s < STEPS && !me->bad; s++)
        me->bad += dml_trainer_step(t, ROWS, DML_INPUTS(x, y), &loss[s > 0]) != DML_OK;
    me->bad += !(loss[1] < loss[0]);
    me->notes[0] = (long long)(status_line("RssAnon:") - before);
    me->notes[1] = (long long)(status_line("VmHWM:") - resident);
    if (me->bad) fprintf(stderr, "rank %d: %s\n", me->rank, dml_error(context));
    dml_close(context);
}

/* The most of any rank, in MiB. */
static void measure(int ranks, int stage, double *after, double *peak)
{
    job job;
    job_prepare(&job, ranks, 20, train, &stage);
    job_start(&job);
    job_wait(&job, 60);
    check_job(&job, "training");
    *after = *peak = 0;
    for (int r = 0; r < ranks; r++) {
        if ((double)job.ranks[r].notes[0] > *after) *after = (double)job.ranks[r].notes[0];
        if ((double)job.ranks[r].notes[1] > *peak) *peak = (double)job.ranks[r].notes[1];
    }
    *after /= MIB;
    *peak /= MIB;
    job_release(&job);
}

/* In bytes of P parameters: w, g, the two states of Adam. */
static double formula(int ranks, int stage)
{
    const double p = 4 * PARAMETERS, part = p / ranks;
    return ((stage == 3 ? part : p) + (stage >= 2 ? part : p) + (stage >= 1 ? 2 * part : 2 * p)) / MIB;
}

static void ranks_take_what_the_formula_says(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("sanitizers have memory of their own");
#else
    if (status_line("RssAnon:") == 0 || TEST_EMULATOR) {
        SKIP("no /proc/self/status, or an emulator");
        return;
    }
    for (int stage = 0; stage <= 3; stage++)
        for (int ranks = stage ? 2 : 1; ranks <= (stage ? 4 : 1); ranks += 2) {
            double after, peak;
            const double kept = formula(ranks, stage),
                         more = (stage == 3 ? 6 : 5) * LAYER * sizeof(float) / MIB; /* buckets, w */
            measure(ranks, stage, &after, &peak);
            CHECK_MESSAGE(after > kept - 0.25 && after < kept + BESIDE,
                          "stage %d, %d ranks: %.2f MiB, not %.2f", stage, ranks, after, kept);
            CHECK_MESSAGE(peak < kept + more + BESIDE + CODE,
                          "stage %d, %d ranks: at the most %.2f MiB, not %.2f", stage, ranks, peak,
                          kept + more);
            /* What one rank can't train in so much memory, four can. */
            if (stage == 0) CHECK(peak > LIMIT);
            if (stage == 3 && ranks == 4) CHECK(peak < LIMIT);
        }
#endif
}

int main(void)
{
    RUN(ranks_take_what_the_formula_says);
    return test_report("dist/zero_memory");
}
