/* Tensor parallelism: a model that is cut over ranks is the model that isn't. */
#include "dist/tensor_parallel.h"

#include "../comm/ranks.h"
#include "../graph/backends.h"
#include "cut_models.h"
#include "cut_outcome.h"
#include "dist/all_reduce_sync.h"
#include "dist/mirrored.h"
#include "dist/zero_sync.h"
#include "graph/apply.h"
#include "graph/clone.h"
#include "graph/part.h"
#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_dropout.h"
#include "ops/op_loss.h"
#include "ops/op_norm.h"
#include "ops/op_reduce.h"
#include "ops/op_sample_norm.h"
#include "ops/op_shape.h"
#include "train/gradient_check.h"
#include "train/trainer_internal.h"

#include <math.h>

enum { T = 5, C = 24, CLASSES = 3, BATCH = 8 };

/* ---- a block of a transformer, whole or cut ---- */

typedef struct job {
    int parts, replicas; /* ranks that share a model; models */
    int steps, kv_heads;
    bool rotary, no_bias, shared_copy, dropout, own_layer, applied;
    int stage; /* of ZeRO between the replicas; 0: all-reduce; only where there are several */
    dml_trainer_options trainer;
} job;

static job now;

/* A layer of one's own: a convolution over positions, cut by its filters, a scale that all ranks train, a
   scale of each filter's, and the sum of filters' shares by parts along the second axis of a product. */
static dml_node *own_layer(dml_node *h, dml_comm *comm)
{
    dml_graph *g = dml_node_graph(h);
    dml_node *p[4], *x = dml_reshape(h, dml_shape_of(T, 1, C));
    const dml_initializer normal = dml_init_normal(0, 0.1f), one = dml_init_constant(1);
    if (comm) {
        p[0] = dml_parallel_parameter(g, "own.filters", normal, dml_shape_of(12, 3, 1, C), 0, comm);
        p[1] = dml_parallel_parameter(g, "own.each", one, dml_shape_of(12), 0, comm);
        p[2] = dml_parameter(g, "own.scale", one, 1);
        p[3] = dml_parallel_parameter(g, "own.back", normal, dml_shape_of(C, 12), 1, comm);
        x = dml_parallel_copy(x, comm);
    } else {
        p[0] = dml_parameter(g, "own.filters", normal, 12, 3, 1, C);
        p[1] = dml_parameter(g, "own.each", one, 12);
        p[2] = dml_parameter(g, "own.scale", one, 1);
        p[3] = dml_parameter(g, "own.back", normal, C, 12);
    }
    x = dml_conv2d_with(x, p[0], NULL, &(dml_conv2d_options){ .padding = { 1, 0 } });
    x = dml_mul(x, p[1]);
    x = dml_mul(x, comm ? dml_parallel_copy(p[2], comm) : p[2]); /* (copied where it is first used) */
    x = dml_dense_with(dml_reshape(x, dml_shape_of(T, comm ? 12 / dml_comm_world_size(comm) : 12)), p[3],
                       NULL);
    return dml_add(h, comm ? dml_parallel_sum(x, comm) : x);
}

static dml_node *build(dml_context *context, dml_comm *comm)
{
    const dml_multi_head_attention_options attention = {
        .kv_heads = now.kv_heads, .causal = true, .rotary = now.rotary, .no_bias = now.no_bias
    };
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, T, C), *t = dml_input(graph, "t", DML_I32);
    dml_node *h = dml_learned_positions(x);
    dml_node *n = dml_layer_norm(h, NULL);
    h = dml_add(h, comm ? dml_parallel_attention(n, 12, &attention, comm)
                        : dml_multi_head_attention(n, 12, &attention));
    n = dml_layer_norm(h, NULL);
    dml_node *gate = NULL, *m;
    if (comm) {
        if (now.shared_copy) n = dml_parallel_copy(n, comm);
        m = dml_gelu(dml_column_parallel_dense(n, 36, comm));
        if (now.shared_copy) gate = dml_column_parallel_dense(n, 36, comm);
        if (gate) m = dml_mul(m, gate);
        m = dml_row_parallel_dense(m, C, comm);
        if (now.dropout)
            m = dml_dropout(dml_learned_positions(m), 0.3f); /* whose key and name are the whole's */
    } else {
        m = dml_gelu(dml_dense(n, 36));
        if (now.shared_copy) m = dml_mul(m, dml_dense(n, 36));
        m = dml_dense(m, C);
        if (now.dropout) m = dml_dropout(dml_learned_positions(m), 0.3f);
    }
    h = dml_add(h, m);
    if (now.own_layer) h = own_layer(h, comm);
    if (now.applied) h = dml_add(h, dml_apply(h, x, dml_affine(x, 0.5f, 0)));
    h = dml_layer_norm(h, NULL);
    return dml_softmax_cross_entropy(dml_dense(dml_flatten(h), CLASSES), t);
}

static void make_batch(int step, float *x, int32_t *t)
{
    unsigned state = 33u + (unsigned)step;
    test_fill(&state, x, (size_t)(BATCH * T * C));
    for (int i = 0; i < BATCH; i++) t[i] = x[i * T * C] > 0.2f ? 2 : x[i * T * C + 1] > 0 ? 1 : 0;
}

/* One rank of the job, or all of it alone (comm NULL). */
static void train(test_rank *me, dml_comm *model, dml_comm *replicas, int replica, outcome *to)
{
    float x[BATCH * T * C];
    int32_t t[BATCH];
    dml_context *context = open_here(&(dml_options){ .threads = 1, .seed = 9 });
    dml_node *loss = build(context, model);
    dml_trainer *trainer = dml_trainer_create(loss, &now.trainer);
    CHECK_MESSAGE(trainer, "%s", dml_error(context));
    if (!trainer) {
        dml_close(context);
        return;
    }
    if (replicas && now.stage)
        dml_trainer_sync(trainer, dml_zero_sync(replicas, &(dml_zero_options){ .stage = now.stage }));
    else if (replicas)
        dml_trainer_sync(trainer, dml_all_reduce_sync(replicas, NULL));
    const int rows = replicas ? BATCH / now.replicas : BATCH, first = replicas ? replica * rows : 0;
    for (int step = 0; step < now.steps && dml_status_of(context) == DML_OK; step++) {
        make_batch(step, x, t);
        dml_trainer_backward(trainer, rows, DML_INPUTS(x + first * T * C, t + first), 0, &to->loss[step]);
        if (now.trainer.clip_norm > 0) to->norm[step] = (float)dml_trainer_gradient_norm(trainer);
        dml_trainer_update(trainer);
    }
    dml_trainer_gather(trainer);
    CHECK_MESSAGE(!dml_status_of(context), "%s", dml_error(context));
    to->skipped = (int)trainer->skipped;
    put_weights(me, dml_node_graph(loss), to);
    dml_close(context);
}

/* Consecutive ranks share a model. */
static void train_rank(test_rank *me)
{
    const int part = me->rank % now.parts, replica = me->rank / now.parts;
    dml_comm *model = dml_comm_split(me->comm, replica, part);
    dml_comm *replicas = dml_comm_split(me->comm, part, replica);
    train(me, model, now.replicas > 1 ? replicas : NULL, replica, &got[me->rank]);
    dml_comm_close(replicas);
    dml_comm_close(model);
}

static void check_job(const char *transport, double tolerance)
{
    test_rank ranks[RANKS_MAX], alone;
    memset(got, 0, sizeof got);
    memset(&want, 0, sizeof want);
    memset(&alone, 0, sizeof alone);
    train(&alone, NULL, NULL, 0, &want);
    ranks_prepare(ranks, now.parts * now.replicas, 60, train_rank, NULL);
    ranks_run_on(ranks, now.parts * now.replicas, transport);
    check_ranks(ranks, now.parts * now.replicas);
    check_outcomes(now.parts, now.replicas, now.steps, tolerance);
}

static job usual(int parts)
{
    job j;
    memset(&j, 0, sizeof j);
    j.parts = parts;
    j.replicas = 1;
    j.steps = 5;
    j.trainer.batch = BATCH;
    j.trainer.optimizer = dml_sgd(0.05f, 0.9f);
    return j;
}

/* 12 heads and 36 units: 1, 2, 3, 4 and 6 ranks divide both. */
static void follow_one_rank(void)
{
    static const int parts[] = { 2, 1, 3, 4, 6 };
    for (int i = 0; i < 5; i++) {
        now = usual(parts[i]);
        if (now.parts < 3) now.steps = MOST_STEPS;
        check_job("local", 1e-5);
    }
    now = usual(2);
    now.kv_heads = 4;
    now.rotary = now.no_bias = now.shared_copy = true;
    check_job("tcp", 1e-5);
    now.parts = now.kv_heads = 1;
    check_job("local", 1e-5);
    now = usual(3);
    now.dropout = true;
    check_job("local", 1e-5);
    now = usual(2);
    now.dropout = now.own_layer = now.applied = true;
    check_job("local", 1e-5);
    now = usual(4);
    now.own_layer = true;
    now.trainer.clip_norm = 0.5f;
    check_job("local", 1e-5);
}

/* What is about the whole gradient: its norm, clipping, overflow. */
static void about_the_whole_gradient(void)
{
    now = usual(3);
    now.trainer.clip_norm = 0.5f;
    now.trainer.optimizer = dml_adam(0.003f);
    check_job("local", 1e-4);
    now = usual(2);
    now.steps = 12;
    now.trainer.dtype = DML_F16;
    now.trainer.loss_scale = 1e7f; /* too large at first */
    check_job("local", 1e-2);
    CHECK_MESSAGE(want.skipped > 0 && want.skipped < now.steps, "%d steps skipped", want.skipped);
}

static void replicas_of_models(void)
{
    now = usual(2);
    now.replicas = 2;
    check_job("local", 1e-5);
    for (now.stage = 1; now.stage <= 3; now.stage++) {
        now.trainer.clip_norm = now.stage == 2 ? 0.5f : 0;
        check_job("local", 1e-5);
    }
    now = usual(4);
    now.replicas = 2;
    now.trainer.clip_norm = 0.5f;
    now.trainer.average = 0.9f;
    check_job("shm", 1e-5);
}

/* All of it at once, where a launch takes long. */
static void on_a_device_with_memory_of_its_own(void)
{
    now = usual(2);
    now.replicas = slow_here() ? 1 : 2;
    now.steps = slow_here() ? 1 : 3;
    now.kv_heads = 4;
    now.rotary = now.shared_copy = true;
    now.trainer.clip_norm = 0.5f;
    check_job("local", 1e-4);
}

/* ---- the two nodes ---- */

/* own = copy(v) * rank + 1 and y = (sum(own) + sum(-own)) + (sum(own) + v): all that is copied and summed has
   other readers, so nothing is done in place, and gradients are added to. Odd sizes, several pieces. */
enum { MANY = (1 << 18) + 7 };
static void two_nodes(test_rank *me)
{
    static const int sizes[] = { 1, 7, MANY };
    for (int s = slow_here(); s < 3 - slow_here(); s++) {
        const int n = sizes[s];
        float *y = malloc(2 * (size_t)n * sizeof *y), *x = y + n, loss;
        for (int i = 0; i < n; i++) x[i] = (float)(i % 13) - 6;
        dml_context *context = open_here(&(dml_options){ .threads = 1 });
        dml_graph *graph = dml_graph_create(context);
        dml_node *w = dml_parameter(graph, "w", dml_init_constant(2), n);
        dml_node *v = dml_mul(dml_input(graph, "x", DML_F32, n), w);
        dml_node *own = dml_affine(dml_parallel_copy(v, me->comm), (float)me->rank, 1);
        dml_node *zero =
            dml_add(dml_parallel_sum(own, me->comm), dml_parallel_sum(dml_affine(own, -1, 0), me->comm));
        dml_node *sum = dml_add(zero, dml_add(dml_parallel_sum(own, me->comm), v));
        dml_trainer *trainer =
            dml_trainer_create(dml_batch_mean(dml_sum(sum, dml_shape_of(0), false), NULL),
                               &(dml_trainer_options){ .batch = 3, .optimizer = dml_sgd(1, 0) });
        dml_program *program = dml_compile(sum, &(dml_program_options){ .batch = 3 });
        dml_program_run(program, 1, DML_INPUTS(x), y);
        const int all = me->world * (me->world - 1) / 2;
        const float slope = (float)(all + 1), pull = slope;
        for (int i = 0; i < n; i++) me->bad += y[i] != slope * 2 * x[i] + (float)me->world;
        dml_trainer_step(trainer, 1, DML_INPUTS(x), &loss);
        const float *got_w = dml_graph_get(graph, 0, (size_t)n);
        for (int i = 0; i < n && got_w; i++) me->bad += got_w[i] != 2 - pull * x[i];
        CHECK_MESSAGE(!dml_status_of(context), "%s", dml_error(context));
        dml_close(context);
        free(y);
    }
}

static void copies_and_sums(void)
{
    test_rank ranks[RANKS_MAX];
    for (int world = 1; world <= (cpu_here() ? RANKS_MAX : 2); world += 1 + (world > 4)) {
        ranks_prepare(ranks, world, 60, two_nodes, NULL);
        ranks_run_on(ranks, world, "local");
        check_ranks(ranks, world);
    }
}

/* What each rank has alone is left out by random numbers of its own: here 600 of each of two ranks. */
static void dropout_between(test_rank *me)
{
    enum { N = 600 };
    float x[N], y[N], theirs[2 * N], loss;
    for (int i = 0; i < N; i++) x[i] = 1;
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *w = dml_parameter(graph, "w", dml_init_constant(1), N);
    dml_node *v = dml_mul(dml_input(graph, "x", DML_F32, N), w);
    dml_node *left = dml_dropout(dml_affine(dml_parallel_copy(v, me->comm), 2, 0), 0.5f);
    dml_node *end = dml_parallel_sum(left, me->comm);
    dml_trainer *trainer = dml_trainer_create(
        dml_batch_mean(dml_sum(end, dml_shape_of(0), false), NULL),
        &(dml_trainer_options){ .batch = 1, .optimizer = dml_sgd(0, 0), .watch = &left, .watch_count = 1 });
    CHECK_INT(dml_trainer_step(trainer, 1, DML_INPUTS(x), &loss), DML_OK);
    CHECK_INT(dml_program_read(dml_trainer_program(trainer), left, y), DML_OK);
    CHECK_INT(dml_comm_all_gather(me->comm, y, N, DML_F32, theirs), DML_OK);
    int unlike = 0;
    for (int i = 0; i < N; i++) unlike += theirs[i] != theirs[N + i];
    CHECK_MESSAGE(unlike > N / 3 && unlike < 2 * N / 3, "%d of %d differ", unlike, N);
    dml_close(context);
}

static void ranks_leave_out_by_themselves(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 20, dropout_between, NULL);
    ranks_run_on(ranks, 2, "local");
    check_ranks(ranks, 2);
}

/* A strategy is for ranks with the same part: over the others parameters would become rank 0's. */
static void strategy_over_parts(test_rank *me)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_trainer *trainer = dml_trainer_create(build(context, me->comm), &now.trainer);
    CHECK(dml_trainer_sync(trainer, dml_all_reduce_sync(me->comm, NULL)) != DML_OK);
    CHECK_MESSAGE(strstr(dml_error(context), "its part of a model that is cut"), "%s", dml_error(context));
    dml_close(context);
}

static void strategies_over_parts_are_refused(void)
{
    test_rank ranks[2];
    now = usual(2);
    ranks_prepare(ranks, 2, 20, strategy_over_parts, NULL);
    ranks_run_on(ranks, 2, "local");
}

/* Ranks of one model that were told otherwise. */
typedef struct told {
    const char *says;
    uint64_t seed;
    dml_trainer_options how;
    bool loads;
} told;
static told otherwise;

static void told_otherwise(test_rank *me)
{
    float x[BATCH * T * C], loss;
    int32_t t[BATCH];
    make_batch(0, x, t);
    const bool other = me->rank == 1;
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = other ? otherwise.seed : 9 });
    dml_trainer *trainer =
        dml_trainer_create(build(context, me->comm), other ? &otherwise.how : &now.trainer);
    if (other && otherwise.loads) {
        dml_trainer_run run = dml_trainer_get_run(trainer);
        run.steps = 20;
        dml_trainer_set_run(trainer, &run);
    }
    CHECK_INT(dml_trainer_step(trainer, 2, DML_INPUTS(x, t), &loss), DML_ERROR_MISMATCH);
    CHECK_MESSAGE(strstr(dml_error(context), otherwise.says), "%s", dml_error(context));
    dml_close(context);
}

static void ranks_told_otherwise(void)
{
    test_rank ranks[2];
    now = usual(2);
    told ways[] = { { "the seed, from 9 to 10", 10, now.trainer, false },
                    { "the steps that were taken, from 0 to 20", 9, now.trainer, true },
                    { "lr, from 0.05 to 0.5", 9, now.trainer, false },
                    { "clip_norm, from 0 to 3", 9, now.trainer, false },
                    { "the batch that the trainer is for, from 8 to 9", 9, now.trainer, false },
                    { "the optimizer's kind", 9, now.trainer, false },
                    { "the schedule's kind", 9, now.trainer, false },
                    { "the dtype, from f32 to bf16", 9, now.trainer, false } };
    ways[2].how.optimizer.lr = 0.5f;
    ways[3].how.clip_norm = 3;
    ways[4].how.batch = 9;
    ways[5].how.optimizer = dml_adagrad(0.05f);
    ways[6].how.schedule = dml_schedule_constant(0.05f);
    ways[7].how.dtype = DML_BF16;
    for (int i = 0; i < 8; i++) {
        otherwise = ways[i];
        ranks_prepare(ranks, 2, 20, told_otherwise, NULL);
        ranks_run_on(ranks, 2, "local");
        CHECK_MESSAGE(!ranks[0].status && !ranks[1].status, "%s", ranks[0].error);
    }
}

/* A pass that fails on one rank ends the others' at once, who are told why. */
static void failing_pass(test_rank *me)
{
    float x[C] = { me->rank == 1 ? NAN : 1 }, y[2];
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *h = dml_column_parallel_dense(dml_input(graph, "x", DML_F32, C), 6, me->comm);
    dml_program *program = dml_compile(dml_row_parallel_dense(h, 2, me->comm),
                                       &(dml_program_options){ .batch = 4, .check = DML_CHECK_FINITE });
    const double begin = dml_seconds();
    CHECK(dml_program_run(program, 1, DML_INPUTS(x), y) != DML_OK);
    CHECK(dml_seconds() - begin < 10);
    CHECK_MESSAGE(strstr(dml_error(context), "nan") || strstr(dml_error(context), "NaN"), "%s",
                  dml_error(context));
    CHECK((strstr(dml_error(context), "rank 1 of 2 gave up") != NULL) == (me->rank == 0));
    dml_close(context);
}

static void passes_that_fail(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 30, failing_pass, NULL);
    ranks_run_on(ranks, 2, "local");
}

/* ---- files ---- */

/* Saved by three ranks, as by one, and read again by one, two and three. */
static char whole_path[64], plain_path[64];

static void check_weights(test_rank *me, dml_graph *graph)
{
    memset(&got[me->rank], 0, sizeof got[0]);
    put_weights(me, graph, &got[me->rank]);
    for (size_t i = 0; i < want.count; i++)
        me->bad += got[me->rank].found[i] && got[me->rank].w[i] != want.w[i];
}

static void save_whole(test_rank *me)
{
    dml_context *context = dml_open(
        &(dml_options){ .threads = 1, .seed = 9, .allocator = { allocate_until, release_anything, NULL } });
    dml_graph *graph = dml_node_graph(build(context, me->comm));
    CHECK_MESSAGE(!dml_parallel_save(graph, whole_path), "%s", dml_error(context));
    check_weights(me, graph);
    CHECK_INT(dml_parallel_save(graph, "/no such folder/w"), DML_ERROR_IO);
    CHECK_MESSAGE(strstr(dml_error(context), "no such folder"), "%s", dml_error(context));
    CHECK((strstr(dml_error(context), "rank 0 says") != NULL) == (me->rank > 0));
    dml_clear_error(context);
    CHECK_INT(dml_parallel_save(graph, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_parallel_save(NULL, whole_path), DML_ERROR_ARGUMENT);
    dml_clear_error(context);
    for (int at = 1; at <= 4; at++) { /* of rank 0's four allocations for the whole */
        if (me->rank == 0) fail_after = at;
        CHECK_INT(dml_parallel_save(graph, whole_path), DML_ERROR_MEMORY);
        dml_clear_error(context);
    }
    graph->spread = me->rank == 1; /* as under a strategy */
    CHECK_INT(dml_parallel_save(graph, whole_path), DML_ERROR_STATE);
    graph->spread = false;
    dml_clear_error(context);
    CHECK_INT(dml_parallel_save(graph, whole_path), DML_OK);

    char part_path[2][96];
    for (int i = 0; i < 2; i++)
        snprintf(part_path[i], sizeof part_path[i], "%s.%d", whole_path, (me->rank + i) % 3);
    CHECK_INT(dml_graph_save(graph, part_path[0]), DML_OK);
    CHECK_INT(dml_graph_load(graph, part_path[0]), DML_OK);
    CHECK_INT(dml_comm_barrier(me->comm), DML_OK);
    CHECK_INT(dml_graph_load(graph, part_path[1]), DML_ERROR_FORMAT);
    CHECK_MESSAGE(strstr(dml_error(context), "holds part "), "%s", dml_error(context));
    dml_clear_error(context);
    CHECK_INT(dml_parallel_load(graph, part_path[0]), DML_ERROR_FORMAT);
    CHECK_MESSAGE(strstr(dml_error(context), "dml_graph_load reads it on the rank"), "%s",
                  dml_error(context));
    dml_comm_barrier(me->comm);
    remove(part_path[0]);
    dml_close(context);
}

static void load_whole(test_rank *me)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 10 }); /* which begins otherwise */
    dml_graph *graph = dml_node_graph(build(context, me->comm));
    CHECK_INT(dml_parallel_load(NULL, whole_path), DML_ERROR_ARGUMENT);
    if (me->world > 1) {
        CHECK_INT(dml_graph_load(graph, whole_path), DML_ERROR_FORMAT);
        CHECK_MESSAGE(strstr(dml_error(context), "dml_parallel_load takes"), "%s", dml_error(context));
        dml_clear_error(context);
        CHECK_INT(dml_graph_load_matching(graph, whole_path), DML_ERROR_FORMAT);
        dml_clear_error(context);
    }
    graph->spread = true; /* as a strategy that is gone has left it */
    CHECK_MESSAGE(!dml_parallel_load(graph, whole_path), "%s", dml_error(context));
    CHECK(!graph->spread);
    check_weights(me, graph);
    CHECK_INT(dml_parallel_load(graph, NULL), DML_ERROR_ARGUMENT);
    dml_clear_error(context);
    CHECK(dml_parameter_loaded(dml_graph_parameter(graph, 0)));
    CHECK(dml_parallel_load(graph, "/no such file") != DML_OK);
    dml_clear_error(context);
    dml_graph *other = dml_graph_create(context);
    dml_parallel_sum(dml_dense(dml_input(other, "x", DML_F32, 3), 2), me->comm);
    CHECK_INT(dml_parallel_load(other, whole_path), DML_ERROR_FORMAT);
    dml_close(context);
}

static bool same_files(const char *a, const char *b)
{
    FILE *first = fopen(a, "rb"), *second = fopen(b, "rb");
    int one = 0, two = 1;
    while (first && second && (one = fgetc(first)) == (two = fgetc(second)) && one != EOF) continue;
    if (first) fclose(first);
    if (second) fclose(second);
    return one == two;
}

static void files_are_of_whole_models(void)
{
    test_rank ranks[3], alone;
    memset(&alone, 0, sizeof alone);
    memset(&want, 0, sizeof want);
    snprintf(whole_path, sizeof whole_path, "/tmp/dml_tensor_parallel_%ld.w", (long)getpid());
    snprintf(plain_path, sizeof plain_path, "/tmp/dml_tensor_parallel_%ld.p", (long)getpid());
    now = usual(1);
    now.kv_heads = 6;
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 9 });
    dml_graph *graph = dml_node_graph(build(context, NULL));
    put_weights(&alone, graph, &want);
    CHECK_INT(dml_graph_save(graph, plain_path), DML_OK);
    dml_close(context);
    ranks_prepare(ranks, 3, 60, save_whole, NULL);
    ranks_run_on(ranks, 3, "local");
    check_ranks(ranks, 3);
    CHECK(same_files(whole_path, plain_path));
    for (int world = 1; world <= 3; world++) {
        ranks_prepare(ranks, world, 60, load_whole, NULL);
        ranks_run_on(ranks, world, "local");
        check_ranks(ranks, world);
    }
    remove(whole_path);
    remove(plain_path);
}

/* ---- what is refused ---- */

static void refusals(test_rank *me)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, T, C), *t = dml_input(graph, "t", DML_I32);
    dml_multi_head_attention_options cross = { .memory = x };
    REFUSED(dml_parallel_copy(x, NULL), "NULL");
    REFUSED(dml_column_parallel_dense(x, 0, me->comm), "0 units");
    REFUSED(dml_column_parallel_dense(x, 5, me->comm), "5 units asked for over 2 ranks");
    REFUSED(dml_column_parallel_dense(t, 4, me->comm), "i32");
    REFUSED(dml_row_parallel_dense(x, 0, me->comm), "0 units");
    REFUSED(dml_row_parallel_dense(x, 3, me->comm), "'x' is alike on all ranks");
    const dml_initializer zero = dml_init_constant(0);
    REFUSED(dml_parallel_parameter(graph, "p", zero, dml_shape_of(3, 4), 0, me->comm), "3 x 4 asked for");
    REFUSED(dml_parallel_parameter(graph, "p", zero, dml_shape_of(3, 4), 2, me->comm), "along axis 2");
    REFUSED(dml_parallel_parameter(graph, "p", zero, dml_shape_of(3, 4), -1, me->comm), "along axis -1");
    dml_node *split = dml_column_parallel_dense(x, 4, me->comm), *all = dml_dense(x, 2);
    REFUSED(dml_dense(split, 3), "it reads 'dense_3.weight'");
    REFUSED(dml_layer_norm(split, NULL), "dml_parallel_parameter");
    REFUSED(dml_mul(split, all), "give it dml_parallel_copy of that");
    REFUSED(
        dml_dense_with(all, dml_parallel_parameter(graph, "q", zero, dml_shape_of(4, 2), 0, me->comm), NULL),
        "give it dml_parallel_copy of that");
    dml_node *own_loss = dml_batch_mean(dml_sum(split, dml_shape_of(0, 1), false), NULL);
    REFUSED(dml_trainer_create(own_loss, &(dml_trainer_options){ .batch = 2, .optimizer = dml_sgd(0.1f, 0) }),
            "each rank has a value of its own");
    REFUSED(dml_parallel_sum(t, me->comm), "f32");
    REFUSED(dml_parallel_attention(t, 2, NULL, me->comm), "positions x channels");
    REFUSED(dml_parallel_attention(x, 3, NULL, me->comm), "3 heads");
    REFUSED(dml_parallel_attention(x, 0, NULL, me->comm), "0 heads");
    REFUSED(dml_parallel_attention(x, 5, NULL, me->comm), "5 heads");
    REFUSED(dml_parallel_attention(x, 4, &cross, me->comm), "cross");
    REFUSED(dml_parallel_attention(dml_input(graph, "wide", DML_F32, 1, 800000000), 4, NULL, me->comm),
            "800000000 channels");
    REFUSED(dml_parallel_attention(x, 4, &(dml_multi_head_attention_options){ .rotary_base = 5 }, me->comm),
            "without rotary");
    REFUSED(dml_parallel_attention(x, 4, &(dml_multi_head_attention_options){ .kv_heads = 1 }, me->comm),
            "1 of keys and values");
    dml_node *h = dml_row_parallel_dense(dml_column_parallel_dense(x, 4, me->comm), 3, me->comm);
    dml_comm *other = dml_comm_split(me->comm, 0, -me->rank);
    REFUSED(dml_parallel_copy(x, other), "another one");
    dml_comm_close(other);
    dml_comm *alone = dml_comm_split(me->comm, me->rank, 0); /* whose one rank would have all of it */
    REFUSED(dml_parallel_parameter(graph, "all", zero, dml_shape_of(4, 2), 0, alone), "another one");
    REFUSED(dml_column_parallel_dense(x, 4, alone), "another one");
    dml_node *first = dml_input(dml_graph_create(context), "x", DML_F32, C);
    CHECK(dml_column_parallel_dense(first, 4, alone) && dml_column_parallel_dense(first, 3, alone));
    REFUSED(dml_column_parallel_dense(first, 4, me->comm), "another one");
    dml_comm_close(alone);
    dml_node *loss = dml_softmax_cross_entropy(dml_dense(dml_flatten(h), CLASSES), t);
    static const float values[T * C];
    const int32_t label = 0;
    dml_gradient_check check;
    REFUSED(dml_graph_clone(graph, context), "cut over 2 ranks");
    REFUSED(dml_trainer_create(loss, &(dml_trainer_options){ .batch = 2, .optimizer = dml_lars(0.1f, 0.9f) }),
            "lars");
    REFUSED(dml_compile(h, &(dml_program_options){ .batch = 1, .own_thread = true }), "own");
    REFUSED(!dml_check_gradients(loss, 1, DML_INPUTS(values, &label), NULL, &check), "cut over 2 ranks");
    const char *const cpu = "cpu*1";
    const dml_mirrored_options mirrored = { .trainer = { .batch = 2, .optimizer = dml_sgd(0.1f, 0) } };
    REFUSED(dml_mirrored_create(loss, &cpu, 1, &mirrored), "cut over 2 ranks");
    dml_close(context);

    context = dml_open(&(dml_options){ .threads = 1 });
    graph = dml_graph_create(context);
    h = dml_dense(dml_input(graph, "x", DML_F32, C), 4);
    dml_program *early = dml_compile(h, &(dml_program_options){ .batch = 1 });
    REFUSED(dml_parallel_sum(h, me->comm), "after the graph was compiled");
    dml_program_destroy(early);
    dml_close(context);
}

static void what_is_refused(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 60, refusals, NULL);
    ranks_run_on(ranks, 2, "local");
    check_ranks(ranks, 2);
}

/* Rank 1 runs fewer samples, or leaves. Whoever is left says whose layer it was, and what became of it. */
static bool leaves;
static char sentence[RANKS_MAX][512];
static void unlike(test_rank *me)
{
    static const float x[4 * C];
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *h = dml_column_parallel_dense(dml_input(graph, "x", DML_F32, C), 6, me->comm);
    dml_program *program =
        dml_compile(dml_row_parallel_dense(h, 2, me->comm), &(dml_program_options){ .batch = 4 });
    float y[8];
    if (me->rank == 0 || !leaves) {
        CHECK(dml_program_run(program, me->rank == 1 ? 3 : 4, DML_INPUTS(x), y) != DML_OK);
        snprintf(sentence[me->rank], sizeof sentence[0], "%s", dml_error(context));
        CHECK_MESSAGE(strstr(dml_error(context), "parallel_sum_1"), "%s", dml_error(context));
    }
    dml_close(context);
}

static void ranks_that_differ_or_leave(void)
{
    test_rank ranks[2];
    leaves = false;
    ranks_prepare(ranks, 2, 5, unlike, NULL);
    ranks_run_on(ranks, 2, "local");
    CHECK_MESSAGE(strstr(sentence[0], "8") && strstr(sentence[0], "6"), "%s", sentence[0]);
    leaves = true;
    ranks_prepare(ranks, 2, 5, unlike, NULL);
    ranks_run_on(ranks, 2, "local");
    CHECK_MESSAGE(strstr(sentence[0], "rank 1"), "%s", sentence[0]);
}

/* ---- places ---- */

/* Blocks of (6 + 2 + 4) x 3 between two ranks: each has the like half of each. */
static void parts_are_places_of_the_whole(void)
{
    const dml__shard rows = { 1, 2, 0, 1, 3, { 6, 2, 4 } };
    static const size_t want_rows[] = { 3, 4, 5, 7, 10, 11 };
    CHECK_INT(dml__part_whole(&rows), 36);
    for (size_t i = 0; i < 18; i++) CHECK_INT(dml__part_element(&rows, i), want_rows[i / 3] * 3 + i % 3);
    const dml__shard columns = { 2, 3, 1, 4, 1, { 6, 0, 0 } };
    CHECK_INT(dml__part_whole(&columns), 24);
    for (size_t i = 0; i < 8; i++) CHECK_INT(dml__part_element(&columns, i), i / 2 * 6 + 4 + i % 2);
}

/* Ranks that are threads launch one at a time. */
#ifdef HOST_C
#define FOR_THREADS()                                                                                        \
    do {                                                                                                     \
        if (slow_here()) backend_here = host_c_for_threads();                                                \
    } while (0)
#else
#define FOR_THREADS() (void)0
#endif

static void models_that_are_cut(void)
{
    FOR_THREADS();
    if (!cpu_here()) on_a_device_with_memory_of_its_own();
    copies_and_sums();
}
EACH_BACKEND(models_that_are_cut)

int main(void)
{
    RUN(parts_are_places_of_the_whole);
    RUN(files_are_of_whole_models);
    RUN(strategies_over_parts_are_refused);
    RUN(ranks_leave_out_by_themselves);
    RUN(ranks_told_otherwise);
    RUN(passes_that_fail);
    RUN(what_is_refused);
    RUN(ranks_that_differ_or_leave);
    backend_here = find_backend("cpu");
    RUN(follow_one_rank);
    RUN(about_the_whole_gradient);
    RUN(replicas_of_models);
    RUN_EACH(models_that_are_cut);
    return test_report("dist/tensor_parallel");
}
