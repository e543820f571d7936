/* Pipelines: the stages of a model on ranks of their own are the model on one. */
#include "dist/pipeline.h"

#include "../comm/ranks.h"
#include "../graph/backends.h"
#include "cut_models.h"
#include "dist/all_reduce_sync.h"
#include "dist/local_sgd.h"
#include "dist/mirrored.h"
#include "dist/tensor_parallel.h"
#include "dist/zero_sync.h"
#include "graph/apply.h"
#include "graph/clone.h"
#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_dropout.h"
#include "ops/op_loss.h"
#include "ops/op_norm.h"
#include "ops/op_sample_norm.h"
#include "train/gradient_check.h"
#include "train/trainer_alike.h"
#include "train/trainer_internal.h"

#include <math.h>

enum { IN = 6, WIDE = 12, CLASSES = 3, LAYERS = 8, ROWS = 23, MOST_STEPS = 6, MOST = 4096 };

typedef struct job {
    int stages, replicas, parts; /* of each stage, in ranks */
    int micro, rows, steps;
    int stage;     /* of ZeRO between the replicas; 0: all-reduce */
    bool averages; /* local SGD instead */
    bool dropout, plain;
    bool labels_first; /* declared before the layers, where they are */
    bool frozen;       /* the first three layers */
    bool norm;         /* a batch norm over all replicas' ranks */
    bool idle;         /* the last replica has no samples */
    dml_trainer_options trainer;
} job;

typedef struct outcome {
    float loss[MOST_STEPS], norm[MOST_STEPS], w[MOST];
    size_t begin, count; /* of w, in the whole model's */
    int skipped;
} outcome;

static job now;
static outcome got[RANKS_MAX], want;

/* Layer l of the whole, of which stage s of n has those with l n / LAYERS == s. */
static dml_node *layer(dml_node *h, int l, dml_comm *parts)
{
    dml_node *y;
    if (parts && l % 2 == 0)
        y = dml_row_parallel_dense(dml_tanh(dml_column_parallel_dense(h, 2 * WIDE, parts)), WIDE, parts);
    else
        y = dml_dense(l % 2 == 0 ? dml_tanh(dml_dense(h, 2 * WIDE)) : dml_relu(h), WIDE);
    if (l == 3) y = dml_layer_norm(y, NULL);
    if (now.dropout && l % 3 == 1) y = dml_dropout(y, 0.3f);
    if (now.norm && l == 5) y = dml_batch_norm(y, &(dml_batch_norm_options){ .all_ranks = true });
    return l > 0 ? dml_add(h, y) : y;
}

/* A stage; all of it is stage 0 of 1, without a communicator. */
static dml_node *build(dml_context *context, dml_comm *comm, dml_comm *parts)
{
    const int stage = comm ? dml_comm_rank(comm) : 0, stages = comm ? dml_comm_world_size(comm) : 1;
    dml_graph *graph = dml_graph_create(context);
    const bool last = stage == stages - 1;
    /* (The trainer's inputs are in the order in which they are declared.) */
    dml_node *x = stage == 0 ? dml_input(graph, "x", DML_F32, IN) : NULL;
    dml_node *t = last && now.labels_first ? dml_input(graph, "t", DML_I32) : NULL;
    dml_node *h = x ? x : dml_pipeline_input(graph, comm);
    for (int l = 0; l < LAYERS; l++) {
        if (l * stages / LAYERS == stage) h = layer(h, l, parts);
        for (int i = 0; now.frozen && l == 2 && i < dml_graph_parameters(graph); i++)
            if (l * stages / LAYERS >= stage) dml_parameter_train(dml_graph_parameter(graph, i), false);
    }
    if (!last) return dml_pipeline_output(h, comm);
    if (!t) t = dml_input(graph, "t", DML_I32);
    return dml_softmax_cross_entropy(dml_dense(h, CLASSES), t);
}

static void make_batch(int step, float *x, int32_t *t)
{
    unsigned state = 5u + (unsigned)step;
    test_fill(&state, x, (size_t)(ROWS * IN));
    for (int i = 0; i < ROWS; i++) t[i] = x[i * IN] > 0.3f ? 2 : x[i * IN + 1] > 0 ? 1 : 0;
}

/* The same micro-batches on one rank. */
static void accumulate(dml_trainer *trainer, const float *x, const int32_t *t, int rows, float *loss)
{
    double sum = 0;
    for (int at = 0; at < rows; at += now.micro) {
        const int n = rows - at < now.micro ? rows - at : now.micro;
        const int flags = (at ? DML_ADD : 0) | (at + n < rows ? DML_MORE : 0);
        float mean = 0;
        dml_trainer_backward(trainer, n, DML_INPUTS(x + at * IN, t + at), flags, &mean);
        sum += (double)mean * n;
    }
    *loss = (float)(sum / rows);
}

static void read_weights(dml_graph *graph, outcome *to)
{
    to->begin = graph->place_before;
    to->count = graph->parameter_count;
    const float *w = dml_graph_get(graph, 0, to->count);
    if (w && to->count <= MOST) memcpy(to->w, w, to->count * sizeof *w);
}

/* A rank of the job, whose samples begin with `first`; or all of it alone, without communicators. */
static void train(dml_comm *stages, dml_comm *replicas, dml_comm *parts, int first, outcome *to)
{
    float x[ROWS * IN];
    int32_t t[ROWS];
    const int stage = stages ? dml_comm_rank(stages) : 0;
    const bool idle = now.idle && replicas && first > 0;
    const int rows = idle ? 0 : now.rows / (replicas && !now.idle ? now.replicas : 1);
    const bool last = !stages || stage == dml_comm_world_size(stages) - 1;
    dml_context *context = open_here(&(dml_options){ .threads = 1, .seed = 4 });
    dml_trainer *trainer = dml_trainer_create(build(context, stages, parts), &now.trainer);
    dml_pipeline *pipeline = trainer && stages && !now.plain ? dml_pipeline_create(trainer, stages) : NULL;
    if (replicas && now.averages)
        dml_trainer_sync(trainer, dml_local_sgd_sync(replicas, &(dml_local_sgd_options){ .tau = 1 }));
    else if (replicas && now.stage)
        dml_trainer_sync(trainer, dml_zero_sync(replicas, &(dml_zero_options){ .stage = now.stage }));
    else if (replicas)
        dml_trainer_sync(trainer, dml_all_reduce_sync(replicas, NULL));
    for (int step = 0; step < now.steps && dml_status_of(context) == DML_OK; step++) {
        make_batch(step, x, t);
        const void *inputs[2] = { x + first * IN, t + first };
        const void *const *mine = stage == 0 ? inputs : inputs + 1;
        const int count = stages ? (stage == 0) + last : 2;
        /* A stage that is all is a trainer like any other in between. */
        if (pipeline && (now.stages > 1 || step % 2 == 0))
            dml_pipeline_backward(pipeline, rows, count ? mine : NULL, count, &to->loss[step]);
        else if (stages && now.plain)
            dml_trainer_backward(trainer, rows, mine, count, 0, &to->loss[step]);
        else
            accumulate(trainer, x, t, rows, &to->loss[step]);
        if (now.trainer.clip_norm > 0) to->norm[step] = dml_trainer_gradient_norm(trainer);
        dml_trainer_update(trainer);
    }
    dml_trainer_gather(trainer);
    CHECK_MESSAGE(!dml_status_of(context), "%s", dml_error(context));
    if (trainer) {
        to->skipped = (int)trainer->skipped;
        read_weights(trainer->program->graph, to);
    }
    dml_close(context);
}

/* Consecutive ranks are stages, those after them replicas of these, or parts. */
static void train_rank(test_rank *me)
{
    const int stage = me->rank % now.stages, which = me->rank / now.stages;
    dml_comm *stages = dml_comm_split(me->comm, which, stage);
    dml_comm *others = dml_comm_split(me->comm, stage, which);
    const bool replicas = now.replicas > 1, parts = now.parts > 1;
    train(stages, replicas ? others : NULL, parts ? others : NULL,
          replicas ? which * now.rows / now.replicas : 0, &got[me->rank]);
    dml_comm_close(others);
    dml_comm_close(stages);
}

/* tolerance 0: the same bits. */
static void check_job(const char *transport, double tolerance)
{
    test_rank ranks[RANKS_MAX];
    const int world = now.stages * now.replicas * now.parts;
    memset(got, 0, sizeof got);
    memset(&want, 0, sizeof want);
    train(NULL, NULL, NULL, 0, &want);
    ranks_prepare(ranks, world, 60, train_rank, NULL);
    ranks_run_on(ranks, world, transport);
    check_ranks(ranks, world);
    for (int r = 0; r < world; r++) {
        const outcome *mine = &got[r];
        for (int step = 0; step < now.steps; step++) {
            double mean = 0;
            for (int replica = 0; replica < now.replicas; replica++)
                mean += (double)got[replica * now.stages + r % now.stages].loss[step] /
                        (now.idle ? 1 : now.replicas);
            const bool told = !now.plain || r % now.stages == now.stages - 1;
            if (told) CHECK_NEAR(mean, want.loss[step], tolerance);
            CHECK_NEAR(mine->norm[step], want.norm[step], (tolerance + 1e-6) * (1 + want.norm[step]));
        }
        CHECK_INT(mine->skipped, want.skipped);
        if (now.parts > 1) continue;
        CHECK(mine->count > 0 && mine->begin + mine->count <= want.count);
        for (size_t i = 0; i < mine->count && !now.frozen && !now.norm; i++) /* (else w has another order) */
            CHECK_NEAR(mine->w[i], want.w[mine->begin + i], tolerance);
    }
}

static job usual(int stages)
{
    job j;
    memset(&j, 0, sizeof j);
    j.stages = stages;
    j.replicas = j.parts = 1;
    j.micro = 4;
    j.rows = ROWS;
    j.steps = MOST_STEPS;
    j.trainer.batch = j.micro;
    j.trainer.optimizer = dml_sgd(0.01f, 0.9f);
    return j;
}

/* Any number of stages and micro-batches, more and fewer than each other, the last one smaller. */
static void follow_one_rank(void)
{
    static const int micro[] = { 1, 4, 5, 12, 23 };
    for (int stages = 1; stages <= 8; stages += 1 + (stages > 4))
        for (int i = 0; i < 5; i++) {
            now = usual(stages);
            now.micro = now.trainer.batch = micro[i];
            now.steps = 2;
            now.dropout = i != 2;
            now.labels_first = i == 1;
            check_job(i == 3 ? "tcp" : i == 4 ? "shm" : "local", 0);
        }
}

/* Also all of the first stage, which then has nothing to train and sends no gradient on. */
static void stages_that_are_frozen(void)
{
    for (int stages = 2; stages <= 4; stages++) {
        now = usual(stages);
        now.frozen = true;
        check_job("local", 0);
    }
}

static void a_single_sample(void)
{
    now = usual(3);
    now.rows = 1;
    check_job("local", 0);
}

/* A communicator that is closed first stays until the pipeline and the graph are gone. */
static void a_communicator_closed_first(void)
{
    dml_comm *alone;
    CHECK_INT(dml_comm_open_local(&alone, 1, NULL), DML_OK);
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    memset(&now, 0, sizeof now);
    dml_trainer *trainer = dml_trainer_create(
        build(context, NULL, alone), &(dml_trainer_options){ .batch = 2, .optimizer = dml_sgd(0.1f, 0) });
    CHECK(dml_pipeline_create(trainer, alone));
    CHECK_INT(dml_comm_close(alone), DML_OK);
    dml_close(context);
}

static void without_a_pipeline(void)
{
    now = usual(3);
    now.plain = true;
    now.micro = now.trainer.batch = now.rows;
    check_job("local", 0);
}

static void about_the_whole_gradient(void)
{
    now = usual(3);
    now.trainer.clip_norm = 0.3f;
    now.trainer.optimizer = dml_adam(0.01f);
    check_job("local", 1e-5);
    now.trainer.optimizer = dml_lamb(0.01f, 0.1f);
    check_job("local", 1e-5);
    now = usual(2);
    now.trainer.dtype = DML_F16;
    now.trainer.loss_scale = 3e5f; /* too large at first */
    check_job("local", 0);
    CHECK_MESSAGE(want.skipped > 0 && want.skipped < now.steps, "%d steps skipped", want.skipped);
}

static void replicas_and_parts(void)
{
    now = usual(2);
    now.replicas = 2;
    now.rows = 20;
    check_job("local", 1e-5);
    for (now.stage = 1; now.stage <= 2; now.stage++) check_job("local", 1e-5);
    now.stage = 0;
    now.averages = true; /* of each step's parameters: the same, without momentum */
    now.trainer.optimizer.momentum = 0;
    check_job("local", 1e-5);
    now = usual(2);
    now.replicas = 2;
    now.micro = now.trainer.batch = now.rows; /* as many for all, or none */
    now.idle = now.norm = true;
    check_job("local", 1e-5);
    now = usual(2);
    now.parts = 2;
    now.trainer.clip_norm = 0.3f;
    check_job("local", 1e-5);
    now.stages = 4;
    check_job("tcp", 1e-5);
}

/* On a device with memory of its own, with what its norm and its losses take. */
static void on_a_device(void)
{
    now = usual(3);
    now.steps = 1 + !slow_here();
    now.dropout = true;
    now.trainer.clip_norm = 0.3f;
    check_job("local", 1e-6);
}
static void devices(void)
{
#ifdef HOST_C
    if (slow_here()) backend_here = host_c_for_threads(); /* ranks that are threads launch one at a time */
#endif
    on_a_device();
}
EACH_BACKEND(devices)

/* ---- a strategy's moments ---- */

/* What `begin` does to w is there before forward, as under a trainer alone. */
typedef struct zeroing {
    int begun, failed;
} zeroing;

static dml_status zero_weights(void *state, dml_trainer *trainer, double samples)
{
    zeroing *z = state;
    const size_t n = dml_trainer_count(trainer, DML_PARAMETERS);
    float *w = dml_trainer_get(trainer, DML_PARAMETERS, 0, n);
    if (w) memset(w, 0, n * sizeof *w);
    CHECK_NEAR(samples, ROWS, 0);
    z->begun++;
    return dml_trainer_put(trainer, DML_PARAMETERS, 0, n);
}
static void note_failure(void *state, dml_trainer *trainer)
{
    (void)trainer;
    ((zeroing *)state)->failed++;
}

static void begin_first(test_rank *me)
{
    float x[ROWS * IN], loss = 0;
    int32_t t[ROWS];
    zeroing z = { 0, 0 };
    make_batch(0, x, t);
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_trainer *trainer = dml_trainer_create(
        build(context, me->comm, NULL), &(dml_trainer_options){ .batch = 4, .optimizer = dml_sgd(0.1f, 0) });
    dml_pipeline *pipeline = dml_pipeline_create(trainer, me->comm);
    const dml_sync sync = { .state = &z, .begin = zero_weights, .failed = note_failure };
    dml_trainer_sync(trainer, sync);
    const bool last = me->rank == me->world - 1;
    const void *const inputs[] = { me->rank == 0 ? (const void *)x : t, t };
    const int count = (me->rank == 0) + last;
    CHECK_INT(dml_pipeline_backward(pipeline, ROWS, count ? inputs : NULL, count, &loss), DML_OK);
    CHECK_NEAR(loss, log(CLASSES), 1e-6);
    CHECK_INT(z.begun, 1);
    CHECK_INT(z.failed, 0);
    dml_close(context);
}

static void strategies_begin_first(void)
{
    test_rank ranks[3];
    memset(&now, 0, sizeof now);
    for (int world = 1; world <= 3; world++) {
        ranks_prepare(ranks, world, 20, begin_first, NULL);
        ranks_run_on(ranks, world, "local");
        check_ranks(ranks, world);
    }
}

/* ---- predicting ---- */

/* A value of several pieces between two stages, and back. */
enum { VALUES = (1 << 17) + 3, SAMPLES = 5 };
static void run_programs(test_rank *me)
{
    const size_t n = (size_t)VALUES * SAMPLES;
    float *x = malloc(2 * n * sizeof *x), *y = x + n;
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    const int stage = me->rank, last = me->world - 1;
    for (size_t i = 0; i < n; i++) x[i] = (float)(i % 1000);
    dml_node *h = stage == 0 ? dml_input(graph, "x", DML_F32, VALUES) : dml_pipeline_input(graph, me->comm);
    CHECK_INT(dml_shape_count(&(dml_shape){ 1, { dml_node_shape(h).dims[0] } }), VALUES);
    h = dml_affine(h, 2, 1);
    if (stage < last) h = dml_pipeline_output(h, me->comm);
    dml_program *program = dml_compile(h, &(dml_program_options){ .batch = SAMPLES });
    CHECK_MESSAGE(program, "%s", dml_error(context));
    for (int rows = SAMPLES; rows > 0; rows -= 2) {
        memset(y, 0, n * sizeof *y);
        const void *inputs[] = { x };
        dml_program_run(program, rows, stage ? NULL : inputs, stage == 0, y);
        for (size_t i = 0; i < (size_t)VALUES * (size_t)rows && stage == last; i++)
            me->bad += y[i] != x[i] * (float)(1 << me->world) + (float)((1 << me->world) - 1);
        if (stage < last) me->bad += y[0] != 0;
    }
    CHECK_MESSAGE(!dml_status_of(context), "%s", dml_error(context));
    dml_close(context);
    free(x);
}

static void programs_predict(void)
{
    test_rank ranks[3];
    for (int world = 2; world <= 3; world++) {
        ranks_prepare(ranks, world, 60, run_programs, NULL);
        ranks_run_on(ranks, world, world == 2 ? "tcp" : "local");
        check_ranks(ranks, world);
    }
}

/* ---- files ---- */

/* A whole model's file, whose layers have their scopes' names, for stages that are cut. */
static char whole_path[64];
static dml_node *named(dml_context *context, dml_comm *stages, dml_comm *parts)
{
    const int stage = stages ? dml_comm_rank(stages) : 0, last = stages ? dml_comm_world_size(stages) - 1 : 0;
    dml_graph *graph = dml_graph_create(context);
    dml_node *h = stage == 0 ? dml_input(graph, "x", DML_F32, IN) : dml_pipeline_input(graph, stages);
    for (int l = 0; l < 4; l++) {
        if (l * (last + 1) / 4 != stage) continue;
        dml_push_scope(graph, "layer.%d", l);
        h = dml_layer_norm(h, NULL);
        h = dml_row_parallel_dense(dml_tanh(dml_column_parallel_dense(h, WIDE, parts)), IN, parts);
        dml_pop_scope(graph);
    }
    return stage < last ? dml_pipeline_output(h, stages) : h;
}

static float read_whole[IN];
static void read_stages(test_rank *me)
{
    dml_comm *stages = dml_comm_split(me->comm, me->rank % 2, me->rank / 2);
    dml_comm *parts = dml_comm_split(me->comm, me->rank / 2, me->rank % 2);
    float x[IN] = { 1, -1, 2, 0, 0.5f, 3 }, y[IN];
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 77 });
    dml_node *end = named(context, stages, parts);
    dml_program *program = dml_compile(end, &(dml_program_options){ .batch = 1 });
    CHECK_MESSAGE(!dml_parallel_load(dml_node_graph(end), whole_path), "%s", dml_error(context));
    const void *const inputs[] = { x };
    CHECK_MESSAGE(!dml_program_run(program, 1, me->rank < 2 ? inputs : NULL, me->rank < 2, y), "%s",
                  dml_error(context));
    for (int i = 0; i < IN && me->rank >= 2; i++) CHECK_NEAR(y[i], read_whole[i], 1e-6);
    dml_close(context);
    dml_comm_close(parts);
    dml_comm_close(stages);
}

static void whole_files_for_stages(void)
{
    test_rank ranks[4];
    dml_comm *alone;
    const float x[IN] = { 1, -1, 2, 0, 0.5f, 3 };
    snprintf(whole_path, sizeof whole_path, "/tmp/dml_pipeline_test_%ld.w", (long)getpid());
    CHECK_INT(dml_comm_open_local(&alone, 1, NULL), DML_OK);
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 4 });
    dml_node *end = named(context, NULL, alone);
    dml_program *program = dml_compile(end, &(dml_program_options){ .batch = 1 });
    CHECK_INT(dml_program_run(program, 1, DML_INPUTS(x), read_whole), DML_OK);
    CHECK_INT(dml_graph_save(dml_node_graph(end), whole_path), DML_OK);
    dml_close(context);
    dml_comm_close(alone);
    ranks_prepare(ranks, 4, 20, read_stages, NULL);
    ranks_run_on(ranks, 4, "local");
    check_ranks(ranks, 4);
    remove(whole_path);
}

/* ---- what is refused ---- */

static void refusals(test_rank *me)
{
    float x[2 * IN] = { 0 };
    int32_t t[2] = { 0, 0 };
    const int first = me->rank == 0;
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *number = dml_parameter(graph, "p", dml_init_constant(0), 3);
    REFUSED(dml_pipeline_input(graph, me->comm), first ? "none before it" : "after other nodes");
    if (first) {
        REFUSED(dml_pipeline_output(number, me->comm), "for the whole batch");
        REFUSED(dml_pipeline_output(dml_input(graph, "i", DML_I32, 3), me->comm), "i32 3");
    } else {
        REFUSED(dml_pipeline_output(number, me->comm), "none behind it");
    }
    REFUSED(dml_pipeline_input(graph, NULL), "NULL");
    graph = dml_graph_create(context);
    dml_node *in = first ? dml_input(graph, "x", DML_F32, IN) : dml_pipeline_input(graph, me->comm);
    if (!first) REFUSED(dml_pipeline_input(graph, me->comm), "a second one");
    dml_node *h = dml_dense(in, CLASSES);
    dml_node *loss = dml_softmax_cross_entropy(h, dml_input(graph, "t", DML_I32));
    dml_node *end = first ? dml_pipeline_output(h, me->comm) : loss;
    if (first) REFUSED(dml_pipeline_output(h, me->comm), "a second one");
    if (first) REFUSED(dml_apply(end, in, in), "'pipeline_output_1' is part of, which ends a stage");
    const dml_trainer_options how = { .batch = 1, .optimizer = dml_sgd(0.1f, 0) };
    dml_trainer *trainer = dml_trainer_create(end, &how);
    REFUSED(dml_pipeline_create(trainer, NULL), "NULL");
    dml_comm *other = dml_comm_split(me->comm, 0, me->rank);
    REFUSED(dml_pipeline_create(trainer, other), "another communicator");
    if (first) {
        dml_trainer *wrong = dml_trainer_create(loss, &how);
        REFUSED(dml_pipeline_create(wrong, me->comm), "its node must be dml_pipeline_output");
        dml_trainer_destroy(wrong);
    }
    dml_trainer_options watches = how;
    watches.watch = &h;
    watches.watch_count = 1;
    dml_trainer *watching = dml_trainer_create(end, &watches);
    REFUSED(dml_pipeline_create(watching, me->comm), "watches");
    dml_trainer_destroy(watching);
    dml_gradient_check check;
    const void *const inputs[] = { first ? (const void *)x : t }, *const nothing[] = { NULL };
    REFUSED(!dml_check_gradients(end, 1, inputs, 1, NULL, &check), "cut over 2 ranks");
    const char *const cpu = "cpu*1";
    const dml_mirrored_options mirrored = { .trainer = how };
    REFUSED(dml_mirrored_create(end, &cpu, 1, &mirrored), "cut over 2 ranks");
    REFUSED(dml_compile(end, &(dml_program_options){ .batch = 1, .own_thread = true }), "own");
    REFUSED(dml_graph_clone(graph, context), "cut over 2 ranks");

    /* What is refused before others wait can be tried again. */
    dml_pipeline *pipeline = dml_pipeline_create(trainer, me->comm);
    CHECK_MESSAGE(pipeline, "%s", dml_error(context));
    float loss_of_step = 0;
    REFUSED(!dml_pipeline_step(pipeline, -1, inputs, 1, NULL), "-1 samples");
    REFUSED(!dml_pipeline_step(pipeline, 0, inputs, 1, NULL), "0 samples");
    REFUSED(!dml_pipeline_step(pipeline, 2, inputs, 0, NULL), "0 inputs");
    REFUSED(!dml_pipeline_step(pipeline, 2, NULL, 1, NULL), "NULL");
    REFUSED(!dml_pipeline_step(pipeline, 2, nothing, 1, NULL), "NULL");
    for (int i = 0; i < 2; i++) {
        t[i] = CLASSES;
        REFUSED(!dml_pipeline_step(pipeline, 2, inputs, 1, NULL),
                first ? "stage 1 of 2 refused" : "is 3, it must be in 0 .. 2");
        t[i] = 0;
    }
    REFUSED(!dml_pipeline_step(pipeline, 1 + first, inputs, 1, NULL), "1 to 2 samples");
    REFUSED(!dml_pipeline_step(pipeline, 2, first ? NULL : inputs, 1, NULL),
            first ? "NULL" : "stage 0 of 2 refused");
    CHECK_MESSAGE(!dml_pipeline_step(pipeline, 2, inputs, 1, &loss_of_step), "%s", dml_error(context));
    CHECK_NEAR(loss_of_step, log(CLASSES), 1e-6);
    CHECK_INT(dml_pipeline_step(NULL, 2, inputs, 1, NULL), DML_ERROR_ARGUMENT);
    CHECK(!dml_pipeline_create(NULL, me->comm));
    dml_pipeline_destroy(pipeline);
    dml_pipeline_destroy(NULL);
    dml_trainer_sync(trainer, dml_zero_sync(other, &(dml_zero_options){ .stage = 3 }));
    pipeline = dml_pipeline_create(trainer, me->comm);
    dml_clear_error(context); /* other parameters on the other stage, of which the strategy has told */
    dml_close(context);
    dml_comm_close(other);
}

static void what_is_refused(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, refusals, NULL);
    ranks_run_on(ranks, 2, "local");
    CHECK_MESSAGE(!ranks[0].bad && !ranks[1].bad, "%s", ranks[0].error);
}

static void without_memory(test_rank *me)
{
    dml_context *context =
        dml_open(&(dml_options){ .threads = 1, .allocator = { allocate_until, release_anything, NULL } });
    dml_trainer *trainer = dml_trainer_create(
        build(context, me->comm, NULL), &(dml_trainer_options){ .batch = 2, .optimizer = dml_sgd(0.1f, 0) });
    dml_pipeline *pipeline = NULL;
    int tries = 0;
    while (!pipeline && tries < 40) {
        fail_after = ++tries;
        pipeline = dml_pipeline_create(trainer, me->comm);
        CHECK(pipeline || dml_status_of(context) == DML_ERROR_MEMORY);
        dml_clear_error(context);
    }
    fail_after = 0;
    CHECK_MESSAGE(tries > 5 && tries < 40, "%d tries", tries);
    float x[4 * IN] = { 0 }, loss;
    const int32_t t[4] = { 0 };
    const void *const inputs[] = { me->rank == 0 ? (const void *)x : t };
    CHECK_MESSAGE(!dml_pipeline_step(pipeline, 4, me->rank == 1 ? NULL : inputs, me->rank != 1, &loss), "%s",
                  dml_error(context));
    dml_close(context);
}

static void memory_that_ends(void)
{
    test_rank ranks[3];
    ranks_prepare(ranks, 3, 20, without_memory, NULL);
    ranks_run_on(ranks, 3, "local");
    check_ranks(ranks, 3);
}

/* Stages whose trainers were told otherwise say so at their first step, and which number it is. */
static void told_otherwise(test_rank *me)
{
    float x[4 * IN] = { 0 }, loss;
    const int32_t t[4] = { 0 };
    const bool first = me->rank == 0;
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    const dml_trainer_options how = { .batch = 2, .optimizer = dml_sgd(0.1f, 0), .clip_norm = first ? 1 : 0 };
    dml_trainer *trainer = dml_trainer_create(build(context, me->comm, NULL), &how);
    dml_pipeline *pipeline = dml_pipeline_create(trainer, me->comm);
    const void *const inputs[] = { first ? (const void *)x : t };
    CHECK_INT(dml_pipeline_step(pipeline, 4, inputs, 1, &loss), DML_ERROR_MISMATCH);
    CHECK_MESSAGE(strstr(dml_error(context), "clip_norm, from 0 to 1"), "%s", dml_error(context));
    dml_close(context);
}

static void stages_told_otherwise(void)
{
    test_rank ranks[2];
    memset(&now, 0, sizeof now);
    ranks_prepare(ranks, 2, 20, told_otherwise, NULL);
    ranks_run_on(ranks, 2, "local");
    CHECK(!ranks[0].status && !ranks[1].status);
}

/* A stage that fails, or leaves, before or after its passes, or is given other rows, between other stages. */
typedef enum fault { FAILS, LEAVES, LEAVES_LATE, LEAVES_PROGRAMS, OTHER_ROWS } fault;
static fault kind;
static int bad_rank(void)
{
    return kind == LEAVES_LATE ? 2 : 1; /* the last, which has the loss */
}
static char sentence[3][512];

static dml_backend failing_cpu;
static int writes_left;
static dml_status failing_zero(dml_device *device, dml_ref at, size_t bytes)
{
    if (writes_left-- <= 0) return dml_device_fail(device, DML_ERROR_DEVICE, "out of order");
    memset(dml__host(at), 0, bytes);
    return DML_OK;
}

static void faulty(test_rank *me)
{
    float x[9 * IN] = { 0 }, loss;
    const int32_t t[9] = { 0 };
    const bool bad = me->rank == bad_rank();
    if (bad) failing_cpu = *find_backend("cpu");
    dml_context *context = bad && kind == FAILS
                               ? dml__open_on(&failing_cpu, 0, &(dml_options){ .threads = 1 })
                               : dml_open(&(dml_options){ .threads = 1 });
    dml_trainer *trainer = dml_trainer_create(
        build(context, me->comm, NULL), &(dml_trainer_options){ .batch = 2, .optimizer = dml_sgd(0.1f, 0) });
    dml_pipeline *pipeline = dml_pipeline_create(trainer, me->comm);
    CHECK_MESSAGE(pipeline, "%s", dml_error(context));
    if (bad && kind == FAILS) failing_cpu.zero = failing_zero;
    if (bad) writes_left = 3;
    const void *const inputs[] = { me->rank == 0 ? (const void *)x : t };
    const int rows = kind == LEAVES_LATE ? 2 : bad && kind == OTHER_ROWS ? 7 : 9, count = me->rank != 1;
    if (kind == LEAVES_LATE && bad) { /* a step's passes, after which no loss is told */
        int64_t agreed[3] = { rows, -rows, 0 };
        CHECK_INT(dml__check_model_alike(trainer), DML_OK);
        CHECK_INT(dml_comm_all_reduce(me->comm, agreed, 3, DML_I64, DML_MAX), DML_OK);
        CHECK_INT(dml_trainer_backward(trainer, rows, inputs, 1, 0, NULL), DML_OK);
    } else if (kind == LEAVES_PROGRAMS && me->rank < 2) { /* one sends what nobody takes, or waits for it */
        dml_program *program =
            dml_compile(dml_trainer_program(trainer)->output, &(dml_program_options){ .batch = 1 });
        if (me->rank == 0) {
            for (int i = 0; i < 100000 && !dml_program_run(program, 1, inputs, 1, &loss);) i++;
            snprintf(sentence[0], sizeof sentence[0], "%s", dml_error(context));
        }
    } else if (!bad || kind != LEAVES) {
        const double begin = dml_seconds();
        CHECK(dml_pipeline_step(pipeline, rows, count ? inputs : NULL, count, &loss) != DML_OK);
        CHECK_MESSAGE(kind >= LEAVES_PROGRAMS || dml_seconds() - begin < 4, "rank %d took %g s", me->rank,
                      dml_seconds() - begin);
        snprintf(sentence[me->rank], sizeof sentence[0], "%s", dml_error(context));
        CHECK(trainer->spoiled);
    }
    dml_close(context);
}

static void stages_that_fail(void)
{
    static const char *const says[] = { "out of order", "rank 1", "a pipeline's loss: rank 2", "rank 1",
                                        "of 7 to 9 samples" };
    test_rank ranks[3];
    for (int k = FAILS; k <= OTHER_ROWS; k++) {
        kind = (fault)k;
        ranks_prepare(ranks, 3, 5, faulty, NULL);
        ranks_run_on(ranks, 3, "local");
        for (int r = 0; r < 3; r++)
            if (r != bad_rank() || kind == FAILS)
                CHECK_MESSAGE(strstr(sentence[r], says[k]), "kind %d, rank %d: %s", k, r, sentence[r]);
    }
}

int main(void)
{
    backend_here = find_backend("cpu");
    RUN(follow_one_rank);
    RUN(a_single_sample);
    RUN(a_communicator_closed_first);
    RUN(without_a_pipeline);
    RUN(about_the_whole_gradient);
    RUN(replicas_and_parts);
    RUN(stages_that_are_frozen);
    RUN(strategies_begin_first);
    RUN(programs_predict);
    RUN(whole_files_for_stages);
    RUN(what_is_refused);
    RUN(stages_told_otherwise);
    RUN(memory_that_ends);
    RUN(stages_that_fail);
    RUN_EACH(devices);
    return test_report("dist/pipeline");
}
