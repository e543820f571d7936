/* Every strategy with its ranks on devices with memory of their own, whose parameters and gradients come to
   the host and go back: what is learnt is what ranks on the CPU learn. */
#include "../comm/ranks.h"
#include "../graph/backends.h"
#include "dist/all_reduce_sync.h"
#include "dist/downpour_sync.h"
#include "dist/local_sgd.h"
#include "dist/parameter_server_sync.h"
#include "dist/sandblaster.h"
#include "dist/zero_sync.h"
#include "graph/graph.h"
#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_embedding.h"
#include "ops/op_loss.h"
#include "ops/op_shape.h"

enum {
    MOST_RANKS = 3,
    WORDS = 12,
    WORD = 4,
    SEEN = 2,
    HIDDEN = 9,
    CLASSES = 3,
    BATCH = 4,
    MOST = 512,
    STEPS = 5
};

typedef enum strategy {
    ALL_REDUCE,
    ZERO,
    LOCAL_SGD,
    SIMU_PARALLEL,
    PARAMETER_SERVER, /* these with servers */
    DOWNPOUR,
    SANDBLASTER
} strategy;

typedef struct job {
    const char *name;
    strategy strategy;
    int workers, servers;
    dml_compression compression;
    bool across, sparse, average_state;
    int stage;
    dml_ps_options ps;
    dml_dtype dtype;  /* what training keeps */
    double tolerance; /* between devices, whose sums are rounded otherwise */
} job;

/* Where a difference in a last bit may be one of a code's levels, or of a line search's steps, there is room.
 */
static const job jobs[] = {
    { .name = "all_reduce", .workers = 3, .tolerance = 1e-5 },
    { .name = "across steps", .workers = 3, .across = true, .tolerance = 1e-5 },
    { .name = "bf16", .workers = 3, .compression = { .kind = DML_COMPRESS_BF16 }, .tolerance = 1e-3 },
    { .name = "f16", .workers = 2, .compression = { .kind = DML_COMPRESS_F16 }, .tolerance = 1e-3 },
    { .name = "8 bits", .workers = 3, .compression = { .kind = DML_COMPRESS_QUANTISE }, .tolerance = 1e-3 },
    { .name = "4 bits",
      .workers = 2,
      .compression = { .kind = DML_COMPRESS_QUANTISE, .bits = 4 },
      .tolerance = 1e-3 },
    { .name = "1 bit",
      .workers = 3,
      .compression = { .kind = DML_COMPRESS_QUANTISE, .bits = 1 },
      .tolerance = 1e-3 },
    { .name = "top k",
      .workers = 3,
      .compression = { .kind = DML_COMPRESS_TOP_K, .fraction = 0.2f },
      .tolerance = 1e-4 },
    { .name = "top k with momentum",
      .workers = 2,
      .compression = { .kind = DML_COMPRESS_TOP_K, .fraction = 0.1f, .momentum = 0.9f, .warm_up = 3 },
      .tolerance = 1e-4 },
    { .name = "rank 2",
      .workers = 3,
      .compression = { .kind = DML_COMPRESS_POWER, .rank = 2 },
      .tolerance = 1e-4 },
    { .name = "zero 1", .strategy = ZERO, .stage = 1, .workers = 3, .tolerance = 1e-5 },
    { .name = "zero 2", .strategy = ZERO, .stage = 2, .workers = 3, .tolerance = 1e-5 },
    { .name = "local_sgd", .strategy = LOCAL_SGD, .workers = 3, .average_state = true, .tolerance = 1e-5 },
    { .name = "simu_parallel", .strategy = SIMU_PARALLEL, .workers = 3, .tolerance = 1e-5 },
    { .name = "parameter server",
      .strategy = PARAMETER_SERVER,
      .workers = 2,
      .servers = 1,
      .tolerance = 1e-5 },
    { .name = "parameter server of sparse rows",
      .strategy = PARAMETER_SERVER,
      .workers = 1,
      .servers = 2,
      .sparse = true,
      .tolerance = 1e-5 },
    { .name = "asynchronous parameter server",
      .strategy = PARAMETER_SERVER,
      .workers = 1,
      .servers = 2,
      .ps = { .consistency = DML_PS_ASYNCHRONOUS,
              .push_dtype = DML_BF16,
              .pull_dtype = DML_F16,
              .threshold = 1e-4f },
      .tolerance = 2e-3 },
    { .name = "stale parameter server",
      .strategy = PARAMETER_SERVER,
      .workers = 1,
      .servers = 2,
      .ps = { .consistency = DML_PS_STALE, .staleness = 2 },
      .tolerance = 1e-5 },
    { .name = "downpour", .strategy = DOWNPOUR, .workers = 1, .servers = 2, .tolerance = 1e-4 },
    { .name = "sandblaster", .strategy = SANDBLASTER, .workers = 2, .servers = 1, .tolerance = 2e-3 },
    { .name = "all_reduce of what is kept in bf16", .workers = 2, .dtype = DML_BF16, .tolerance = 2e-2 },
};
enum { JOBS = sizeof jobs / sizeof *jobs };

typedef struct outcome {
    float w[MOST], velocity[MOST], loss[STEPS];
    size_t count, trained;
    char error[512];
} outcome;

typedef struct run {
    const job *job;
    const dml_backend *backend; /* the workers' */
    int device;
    outcome worker[MOST_RANKS];
} run;

/* ---- a rank ---- */

/* Words, of which a sample has two, into classes. */
static dml_trainer *make_trainer(const run *r, int rank)
{
    const job *j = r->job;
    dml_options options;
    memset(&options, 0, sizeof options);
    options.threads = 1;
    options.seed = 11 + (uint64_t)rank; /* rank 0's parameters must win */
    dml_context *context = dml__open_on(r->backend, r->device, &options);
    dml_graph *graph = dml_graph_create(context);
    dml_node *words = dml_input(graph, "words", DML_I32, SEEN), *t = dml_input(graph, "t", DML_I32);
    dml_node *table = dml_parameter(graph, "table", dml_init_normal(0, 0.5f), WORDS, WORD);
    if (j->sparse) dml_parameter_set_sparse(table, true);
    dml_node *x = dml_flatten(dml_embedding_with(words, table));
    dml_node *loss = dml_softmax_cross_entropy(dml_dense(dml_tanh(dml_dense(x, HIDDEN)), CLASSES), t);
    dml_trainer_options how;
    memset(&how, 0, sizeof how);
    how.batch = BATCH;
    how.dtype = j->dtype;
    how.optimizer = dml_sgd(0.2f, j->compression.momentum > 0 || j->sparse ? 0 : 0.9f);
    return dml_trainer_create(loss, &how);
}

/* Sample i of all there are. */
static void make_samples(int begin, int count, int32_t *words, int32_t *t)
{
    for (int i = begin; i < begin + count; i++, words += SEEN, t++) {
        unsigned state = 1000u + 7u * (unsigned)i;
        words[0] = (int32_t)(test_random(&state) % (WORDS - 2)); /* some words never come */
        words[1] = (int32_t)(test_random(&state) % (WORDS - 2));
        t[0] = (words[0] + 2 * words[1]) % CLASSES;
    }
}

static dml_status portion(void *user, dml_trainer *trainer, int index, int portions, double *sum,
                          double *samples)
{
    int32_t words[BATCH * SEEN], t[BATCH];
    float loss = 0;
    (void)user, (void)portions;
    make_samples(BATCH * index, BATCH, words, t);
    const dml_status status = dml_trainer_backward(trainer, BATCH, DML_INPUTS(words, t), 0, &loss);
    *samples = BATCH;
    *sum = (double)loss * BATCH;
    return status;
}

static dml_sync sync_of(const job *j, dml_comm *comm, const dml_cluster *cluster)
{
    dml_all_reduce_sync_options all;
    dml_zero_options zero;
    dml_local_sgd_options local;
    dml_downpour_options downpour;
    memset(&all, 0, sizeof all);
    memset(&zero, 0, sizeof zero);
    memset(&local, 0, sizeof local);
    memset(&downpour, 0, sizeof downpour);
    all.compression = j->compression;
    all.across_steps = j->across;
    all.bucket_bytes = zero.bucket_bytes = 100;
    zero.stage = j->stage;
    local.tau = 2;
    local.average_state = j->average_state;
    downpour.fetch_every = 2;
    downpour.push_every = 2;
    switch (j->strategy) {
    case ZERO: return dml_zero_sync(comm, &zero);
    case LOCAL_SGD: return dml_local_sgd_sync(comm, &local);
    case SIMU_PARALLEL: return dml_simu_parallel_sync(comm, &local);
    case PARAMETER_SERVER: return dml_parameter_server_sync(comm, cluster, &j->ps);
    case DOWNPOUR: return dml_downpour_sync(comm, cluster, &downpour);
    default: return dml_all_reduce_sync(comm, &all);
    }
}

static dml_status train(run *r, test_rank *me, dml_trainer *trainer, const dml_cluster *cluster)
{
    const job *j = r->job;
    outcome *out = &r->worker[me->rank];
    if (j->strategy == SANDBLASTER) {
        dml_sandblaster_options options;
        memset(&options, 0, sizeof options);
        options.portion = portion;
        options.portions = 3;
        options.lbfgs.iterations = STEPS;
        return dml_sandblaster_minimize(trainer, me->comm, cluster, &options, NULL);
    }
    dml_status status = dml_trainer_sync(trainer, sync_of(j, me->comm, cluster));
    for (int s = 0; s < STEPS && status == DML_OK; s++) {
        int32_t words[BATCH * SEEN], t[BATCH];
        make_samples(BATCH * (s * j->workers + me->rank), BATCH, words, t);
        status = dml_trainer_step(trainer, BATCH, DML_INPUTS(words, t), &out->loss[s]);
    }
    if (status == DML_OK && (j->strategy == LOCAL_SGD || j->strategy == SIMU_PARALLEL))
        status = dml_local_sgd_average(trainer);
    return status == DML_OK ? dml_trainer_gather(trainer) : status;
}

static void keep(outcome *out, dml_trainer *trainer)
{
    out->count = dml_trainer_count(trainer, DML_PARAMETERS);
    const float *w = dml_trainer_get(trainer, DML_PARAMETERS, 0, out->count);
    if (w && out->count <= MOST) memcpy(out->w, w, out->count * sizeof *w);
    if (dml_trainer_vectors(trainer) <= DML_OPTIMIZER_STATE) return;
    out->trained = dml_trainer_count(trainer, DML_OPTIMIZER_STATE);
    const float *velocity = dml_trainer_get(trainer, DML_OPTIMIZER_STATE, 0, out->trained);
    if (velocity && out->trained <= MOST) memcpy(out->velocity, velocity, out->trained * sizeof *velocity);
}

static void body(test_rank *me)
{
    run *r = (run *)me->user;
    const job *j = r->job;
    const dml_cluster cluster = dml_cluster_of(me->rank, j->workers, j->servers ? j->servers : 1);
    if (me->rank >= j->workers) {
        if (j->strategy == SANDBLASTER)
            dml_ps_serve(me->comm, &cluster, NULL, NULL);
        else
            dml_parameter_server_serve(me->comm, &cluster, NULL);
        return;
    }
    outcome *out = &r->worker[me->rank];
    dml_trainer *trainer = make_trainer(r, me->rank);
    dml_context *context = dml_trainer_context(trainer);
    if (train(r, me, trainer, &cluster) == DML_OK) keep(out, trainer);
    snprintf(out->error, sizeof out->error, "%s", dml_error(context));
    dml_close(context);
}

/* ---- jobs ---- */

static void run_job(run *r, const job *j, const dml_backend *backend, int device)
{
    test_rank ranks[MOST_RANKS];
    memset(r, 0, sizeof *r);
    r->job = j;
    r->backend = backend;
    r->device = device;
    ranks_prepare(ranks, j->workers + j->servers, 30, body, r);
    ranks_run_on(ranks, j->workers + j->servers, "local");
    check_ranks(ranks, j->workers + j->servers);
}

static void check_near(const job *j, const char *what, const float *got, const float *want, size_t count)
{
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        const double error = fabs((double)got[i] - want[i]);
        if (!(error <= worst)) worst = error;
    }
    CHECK_MESSAGE(worst <= j->tolerance, "%s: %s differs by %.3g", j->name, what, worst);
}

static void check_learns(const job *j, const run *cpu, const float *begin)
{
    double moved = 0;
    for (size_t i = 0; i < cpu->worker[0].count; i++) moved += fabs((double)cpu->worker[0].w[i] - begin[i]);
    CHECK_MESSAGE(moved > 0.1, "%s: nothing was learnt", j->name);
}

/* What rank 0 begins with, as every run does. */
static void initial_parameters(const job *j, float *w)
{
    static run none;
    none.job = j;
    none.backend = find_backend("cpu");
    dml_trainer *trainer = make_trainer(&none, 0);
    dml_context *context = dml_trainer_context(trainer);
    const size_t count = dml_trainer_count(trainer, DML_PARAMETERS);
    memcpy(w, dml_trainer_get(trainer, DML_PARAMETERS, 0, count), count * sizeof *w);
    dml_close(context);
}

static void on_the_device(const dml_backend *backend, int device)
{
    static run cpu, here;
    for (int i = 0; i < JOBS; i++) {
        const job *j = &jobs[i];
        float begin[MOST];
        run_job(&cpu, j, find_backend("cpu"), 0);
        run_job(&here, j, backend, device);
        initial_parameters(j, begin);
        check_learns(j, &cpu, begin);
        for (int k = 0; k < j->workers; k++) {
            const outcome *got = &here.worker[k], *want = &cpu.worker[k];
            CHECK_STRING(want->error, "");
            CHECK_STRING(got->error, "");
            CHECK(got->count && got->count == want->count && got->trained == want->trained);
            CHECK(got->count <= MOST && got->trained <= MOST);
            check_near(j, "w", got->w, want->w, want->count);
            check_near(j, "velocity", got->velocity, want->velocity, want->trained);
            check_near(j, "a loss", got->loss, want->loss, STEPS);
        }
    }
}

static void on_host_c(void)
{
#ifdef HOST_C
    on_the_device(host_c_for_threads(), 0);
#else
    SKIP("no shared kernels as host C here");
#endif
}

static void on_driver(const char *name)
{
    const dml_backend *backend = find_backend(name);
    const int count = backend ? backend->count() : 0;
    if (count == 0) SKIP("no %s device here", name);
    for (int device = 0; device < count; device++) on_the_device(backend, device);
}

static void on_opencl(void)
{
    on_driver("opencl");
}

static void on_cuda(void)
{
    on_driver("cuda");
}

int main(void)
{
    RUN(on_host_c);
    RUN(on_opencl);
    RUN(on_cuda);
    return test_report("dist/devices");
}
