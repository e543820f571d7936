/* A vocabulary that is cut over ranks: the table and the loss are those of a model that isn't. */
#include "dist/vocabulary_parallel.h"

#include "../comm/ranks.h"
#include "../graph/backends.h"
#include "cut_models.h"
#include "cut_outcome.h"
#include "dist/all_reduce_sync.h"
#include "dist/tensor_parallel.h"
#include "dist/zero_sync.h"
#include "graph/part.h"
#include "graph/program_internal.h"
#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_dropout.h"
#include "ops/op_embedding.h"
#include "ops/op_reduce.h"
#include "ops/op_sample_norm.h"
#include "ops/op_shape.h"
#include "train/trainer_internal.h"

#include <math.h>

enum { T = 5, C = 8, V = 24, BATCH = 8, IGNORED = -100 };

/* ---- a language model, whole or cut ---- */

typedef struct job {
    int parts, replicas, steps;
    int stage; /* of ZeRO between the replicas; 0: all-reduce */
    bool tied, sparse, twice, dropout, computed_weights, loud;
    bool weighs; /* rows, by an input */
    dml_cross_entropy_options loss;
    dml_trainer_options trainer;
} job;

static job now;

typedef struct model {
    dml_graph *graph;
    dml_node *loss, *scores, *looked_up;
} model;

static model build(dml_context *context, dml_comm *comm)
{
    model m = { dml_graph_create(context), NULL, NULL, NULL };
    dml_node *words = dml_input(m.graph, "words", DML_I32, T), *next = dml_input(m.graph, "next", DML_I32, T);
    const dml_initializer normal = dml_init_normal(0, 0.3f);
    dml_cross_entropy_options options = now.loss;
    dml_node *table = NULL;
    if (now.tied && comm)
        table = dml_parallel_parameter(m.graph, "table", normal, dml_shape_of(V, C), 0, comm);
    else if (now.tied)
        table = dml_parameter(m.graph, "table", normal, V, C);
    if (now.tied)
        m.looked_up =
            comm ? dml_parallel_embedding_with(words, table, comm) : dml_embedding_with(words, table);
    else
        m.looked_up = comm ? dml_parallel_embedding(words, V, C, comm) : dml_embedding(words, V, C);
    dml_node *h = m.looked_up;
    if (now.twice)
        h = dml_add(h, comm ? dml_parallel_embedding(next, V / 2, C, comm) : dml_embedding(next, V / 2, C));
    h = dml_layer_norm(dml_learned_positions(h), NULL);
    if (now.dropout) h = dml_dropout(h, 0.3f);
    h = dml_add(h, dml_gelu(dml_dense(h, C)));
    if (now.loud) h = dml_affine(h, 200, 0);
    if (now.weighs) options.sample_weights = dml_input(m.graph, "weights", DML_F32, T);
    if (now.computed_weights) options.sample_weights = dml_square(options.sample_weights);
    if (now.tied)
        m.scores = dml_dense_with(comm ? dml_parallel_copy(h, comm) : h, table, NULL);
    else
        m.scores = comm ? dml_column_parallel_dense(h, V, comm) : dml_dense(h, V);
    m.loss = comm ? dml_parallel_softmax_cross_entropy_with(m.scores, next, &options, comm)
                  : dml_softmax_cross_entropy_with(m.scores, next, &options);
    if (now.sparse)
        for (int i = 0; i < dml_graph_parameters(m.graph); i++) {
            dml_node *p = dml_graph_parameter(m.graph, i);
            if (strstr(p->name, "embedding_")) dml_parameter_set_sparse(p, true);
        }
    return m;
}

typedef struct batch {
    int32_t words[BATCH * T], next[BATCH * T];
    float weights[BATCH * T];
} batch;

/* The next word is three behind, and some are to be ignored; half of the words only are ever met. */
static void make_batch(int step, batch *b)
{
    unsigned state = 7u + 31u * (unsigned)step;
    for (int i = 0; i < BATCH * T; i++) {
        b->words[i] = (int32_t)(test_random(&state) % (V / 2)) * (now.twice ? 1 : 2);
        b->next[i] = (b->words[i] + 3) % (now.twice ? V / 2 : V);
        b->weights[i] = (float)(test_random(&state) % 5) / 2;
        if (now.loss.ignores && (step + i) % 3 == 0) b->next[i] = IGNORED;
    }
}

/* One rank of the job, or all of it alone (comm NULL). */
static void train(test_rank *me, dml_comm *comm, dml_comm *replicas, int replica, outcome *to)
{
    batch b;
    dml_context *context = open_here(&(dml_options){ .threads = 1, .seed = 9 });
    const model m = build(context, comm);
    dml_trainer *trainer = dml_trainer_create(m.loss, &now.trainer);
    CHECK_MESSAGE(trainer, "%s", dml_error(context));
    if (!trainer) {
        dml_close(context);
        return;
    }
    if (replicas && now.stage)
        dml_trainer_sync(trainer, dml_zero_sync(replicas, &(dml_zero_options){ .stage = now.stage }));
    else if (replicas)
        dml_trainer_sync(trainer, dml_all_reduce_sync(replicas, NULL));
    const int rows = replicas ? BATCH / now.replicas : BATCH, first = replica * rows * T;
    for (int step = 0; step < now.steps && dml_status_of(context) == DML_OK; step++) {
        make_batch(step, &b);
        const void *const inputs[] = { b.words + first, b.next + first, b.weights + first };
        dml_trainer_backward(trainer, rows, inputs, now.weighs ? 3 : 2, 0, &to->loss[step]);
        if (now.trainer.clip_norm > 0) to->norm[step] = (float)dml_trainer_gradient_norm(trainer);
        dml_trainer_update(trainer);
    }
    dml_trainer_gather(trainer);
    CHECK_MESSAGE(!dml_status_of(context), "%s", dml_error(context));
    to->skipped = (int)trainer->skipped;
    put_weights(me, m.graph, to);
    dml_close(context);
}

/* Consecutive ranks share a model. */
static void train_rank(test_rank *me)
{
    const int part = me->rank % now.parts, replica = me->rank / now.parts;
    dml_comm *comm = dml_comm_split(me->comm, replica, part);
    dml_comm *replicas = dml_comm_split(me->comm, part, replica);
    train(me, comm, now.replicas > 1 ? replicas : NULL, replica, &got[me->rank]);
    dml_comm_close(replicas);
    dml_comm_close(comm);
}

static void check_job(double tolerance)
{
    test_rank ranks[RANKS_MAX], alone;
    const int world = now.parts * now.replicas;
    memset(got, 0, sizeof got);
    memset(&want, 0, sizeof want);
    memset(&alone, 0, sizeof alone);
    train(&alone, NULL, NULL, 0, &want);
    ranks_prepare(ranks, world, 60, train_rank, NULL);
    ranks_run_on(ranks, world, "local");
    check_ranks(ranks, world);
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

static void follow_one_rank(void)
{
    for (int parts = 1; parts <= 4; parts++) {
        now = usual(parts);
        if (parts < 4) now.steps = MOST_STEPS;
        check_job(1e-5);
        now.tied = true;
        now.steps = 12;
        check_job(1e-5);
        CHECK(want.loss[11] < want.loss[0]);
    }
    now = usual(3);
    now.dropout = true; /* whose key is the whole model's */
    check_job(1e-5);
    now = usual(2);
    now.twice = true; /* names are those of the whole model */
    check_job(1e-5);
    now.trainer.clip_norm = 0.05f;
    now.trainer.optimizer = dml_adamw(0.01f, 0.1f);
    check_job(1e-4);
    for (int stage = 0; stage <= 3; stage++) {
        now = usual(2);
        now.replicas = 2;
        now.stage = stage;
        now.tied = stage % 2;
        now.trainer.clip_norm = stage == 2 ? 0.05f : 0;
        check_job(1e-5);
    }
}

/* Every option that is supported, alone and together. */
static void options_of_the_loss(void)
{
    for (int which = 0; which < 32; which++) {
        now = usual(2 + which % 3);
        now.tied = which % 5 == 0;
        now.loud = which % 7 == 3; /* scores of some hundreds, of which exp is infinite */
        if (now.loud) now.trainer.optimizer = dml_sgd(1e-5f, 0);
        if (which & 1) now.loss.ignores = true, now.loss.ignore_index = IGNORED;
        if (which & 2) now.loss.label_smoothing = 0.2f;
        if (which & 4) now.weighs = true;
        if (which & 8) now.loss.reduction = DML_LOSS_SUM, now.trainer.optimizer.lr /= BATCH * T;
        now.computed_weights = (which & 16) && now.weighs;
        check_job(1e-5);
    }
}

/* Rows of a table that aren't met stay as they are, on each rank. */
static void sparse_tables(void)
{
    now = usual(3);
    now.sparse = true;
    now.trainer.optimizer = dml_adam(0.01f);
    now.trainer.optimizer.weight_decay = 0.1f;
    check_job(1e-4);
    now = usual(2);
    now.sparse = now.twice = true;
    now.steps = 20;
    check_job(1e-5);
}

static void mixed_precision(void)
{
    for (int tied = 0; tied < 2; tied++) {
        now = usual(2 + tied);
        now.tied = tied;
        now.steps = 20;
        now.trainer.dtype = DML_BF16;
        check_job(3e-2);
        CHECK(want.loss[19] < want.loss[0]);
    }
    now.trainer.dtype = DML_F16;
    now.trainer.loss_scale = 1e8f; /* too large at first */
    check_job(3e-2);
    CHECK_MESSAGE(want.skipped > 0 && want.skipped < now.steps, "%d steps skipped", want.skipped);
}

/* ---- the gradients themselves ---- */

/* Of what was looked up, of all logits, and of the table, beside those of the model that isn't cut. */
enum { WORDS = 7 };
static float want_scores[BATCH * WORDS * V], want_table[V * C];
static const int32_t some_words[BATCH * WORDS] = { 0, 23, 5, 5, 12, 11, 0, 8, 9, 10, 23, 6, 17, 18 };
static const int32_t some_next[BATCH * WORDS] = { 23, 0, IGNORED, 7, 8, 15, 16, 3, 3, 3, IGNORED, 22, 12, 1 };

static void gradients(test_rank *me)
{
    dml_context *context = open_here(&(dml_options){ .threads = 1, .seed = 4 });
    dml_graph *graph = dml_graph_create(context);
    dml_comm *comm = me ? me->comm : NULL;
    const int ranks = comm ? me->world : 1, own = V / ranks;
    dml_cross_entropy_options options = { .ignores = true, .ignore_index = IGNORED, .label_smoothing = 0.1f };
    dml_node *words = dml_input(graph, "words", DML_I32, WORDS),
             *next = dml_input(graph, "next", DML_I32, WORDS);
    const dml_initializer normal = dml_init_normal(0, 1), zero = dml_init_constant(0);
    dml_node *table = comm ? dml_parallel_parameter(graph, "table", normal, dml_shape_of(V, C), 0, comm)
                           : dml_parameter(graph, "table", normal, V, C);
    /* (a parameter that is added to all scores has their gradient) */
    dml_node *beside = comm ? dml_parallel_parameter(graph, "beside", zero, dml_shape_of(WORDS, V), 1, comm)
                            : dml_parameter(graph, "beside", zero, WORDS, V);
    dml_node *h = comm ? dml_parallel_embedding_with(words, table, comm) : dml_embedding_with(words, table);
    dml_node *scores = dml_add(dml_dense_with(comm ? dml_parallel_copy(h, comm) : h, table, NULL), beside);
    dml_node *loss = comm ? dml_parallel_softmax_cross_entropy_with(scores, next, &options, comm)
                          : dml_softmax_cross_entropy_with(scores, next, &options);
    dml_trainer *trainer =
        dml_trainer_create(loss, &(dml_trainer_options){ .batch = 2, .optimizer = dml_sgd(0, 0) });
    CHECK_MESSAGE(trainer, "%s", dml_error(context));
    if (trainer) {
        float value[2];
        CHECK_INT(dml_trainer_backward(trainer, 2, DML_INPUTS(some_words, some_next), 0, &value[0]), DML_OK);
        CHECK_INT(dml_trainer_backward(trainer, 1, DML_INPUTS(some_words, some_next), DML_ADD, &value[1]),
                  DML_OK);
        const float *g =
            dml_trainer_get(trainer, DML_GRADIENTS, 0, dml_trainer_count(trainer, DML_GRADIENTS));
        const int rank = me ? me->rank : 0;
        for (int i = 0; i < own * C && g; i++) {
            const float is = g[table->offset + (size_t)i], was = want_table[rank * own * C + i];
            if (!comm) want_table[i] = is;
            if (comm) CHECK_NEAR(is, was, 2e-6);
        }
        for (int i = 0; i < WORDS * own && g; i++) {
            const float is = g[beside->offset + (size_t)i],
                        was = want_scores[i / own * V + rank * own + i % own];
            if (!comm) want_scores[i] = is;
            if (comm) CHECK_NEAR(is, was, 1e-6);
        }
    }
    dml_close(context);
}

static void gradients_of_parts(void)
{
    test_rank ranks[4];
    gradients(NULL);
    for (int world = 2; world <= (slow_here() ? 2 : 4); world++) {
        ranks_prepare(ranks, world, 60, gradients, NULL);
        ranks_run_on(ranks, world, "local");
        check_ranks(ranks, world);
    }
}

/* All labels ignored: a mean over nothing. */
static void nothing_to_learn(test_rank *me)
{
    int32_t words[T] = { 0 }, next[T];
    float loss = 5;
    for (int i = 0; i < T; i++) next[i] = IGNORED;
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    const model m = build(context, me->comm);
    dml_trainer *trainer = dml_trainer_create(m.loss, &now.trainer);
    CHECK_INT(dml_trainer_backward(trainer, 1, DML_INPUTS(words, next), 0, &loss), DML_OK);
    CHECK(loss == 0);
    CHECK(dml_trainer_gradient_norm(trainer) == 0);
    dml_close(context);
}

static void all_labels_ignored(void)
{
    test_rank ranks[2];
    now = usual(2);
    now.loss.ignores = true;
    now.loss.ignore_index = IGNORED;
    ranks_prepare(ranks, 2, 20, nothing_to_learn, NULL);
    ranks_run_on(ranks, 2, "local");
    check_ranks(ranks, 2);
}

/* ---- predicting ---- */

/* What was looked up is the table's rows, on all ranks; a program of the loss alone predicts, too. */
static void predict(test_rank *me)
{
    batch b;
    float y[BATCH * T * C], loss = NAN;
    make_batch(0, &b);
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 9 });
    const model m = build(context, me->comm);
    const dml_program_options options = { .batch = BATCH };
    dml_program *lookup = dml_compile(m.looked_up, &options), *program = dml_compile(m.loss, &options);
    CHECK_INT(dml_program_run(lookup, BATCH, DML_INPUTS(b.words), y), DML_OK);
    CHECK_INT(dml_program_run(program, BATCH, DML_INPUTS(b.words, b.next), &loss), DML_OK);
    CHECK(loss == got[me->rank].loss[0]);
    for (int i = 0; i < BATCH * T * C; i++) me->bad += y[i] != want.w[b.words[i / C] * C + i % C];
    dml_close(context);
}

static void what_is_looked_up(void)
{
    test_rank ranks[3];
    for (int world = 1; world <= 3; world++) {
        now = usual(world);
        now.steps = 1;
        now.trainer.optimizer = dml_sgd(1e-30f, 0) /* which changes nothing */;
        check_job(1e-5);
        ranks_prepare(ranks, world, 20, predict, NULL);
        ranks_run_on(ranks, world, "local");
        check_ranks(ranks, world);
    }
}

/* ---- words and labels that aren't there ---- */

static char sentence[RANKS_MAX][512];
static int32_t bad_word, bad_label;

/* Rank 1 alone is given them, and is refused them before anything runs. */
static void bad_words(test_rank *me)
{
    batch b;
    float loss;
    make_batch(0, &b);
    if (me->rank == 1) b.words[T + 1] = bad_word, b.next[2 * T + 1] = bad_label;
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    const model m = build(context, me->comm);
    dml_trainer *trainer = dml_trainer_create(m.loss, &now.trainer);
    const dml_status status = dml_trainer_step(trainer, BATCH, DML_INPUTS(b.words, b.next), &loss);
    CHECK(status != DML_OK);
    CHECK((status == DML_ERROR_ARGUMENT) == (me->rank == 1));
    snprintf(sentence[me->rank], sizeof sentence[0], "%s", dml_error(context));
    dml_close(context);
}

static void words_that_are_not_there(void)
{
    static const struct {
        int32_t word, label;
        bool ignores;
        const char *says;
    } cases[] = { { V, 0, false, "input 'words': sample 1 of the batch is 24, it must be in 0 .. 23" },
                  { -1, 0, false, "input 'words': sample 1 of the batch is -1, it must be in 0 .. 23" },
                  { 0, V, false, "input 'next': sample 2 of the batch is 24, it must be in 0 .. 23" },
                  { 0, -1, true,
                    "input 'next': sample 2 of the batch is -1, it must be in 0 .. 23, or -100" } };
    test_rank ranks[2];
    for (int i = 0; i < 4; i++) {
        now = usual(2);
        now.loss.ignores = cases[i].ignores;
        now.loss.ignore_index = cases[i].ignores ? IGNORED : 0;
        bad_word = cases[i].word;
        bad_label = cases[i].label;
        ranks_prepare(ranks, 2, 2, bad_words, NULL);
        ranks_run_on(ranks, 2, "local");
        CHECK_MESSAGE(strcmp(sentence[1], cases[i].says) == 0, "%s", sentence[1]);
        CHECK_MESSAGE(strstr(sentence[0], "rank 1"), "%s", sentence[0]);
    }
}

/* Rank 1 runs fewer samples: whoever is at the loss, or the table, says so. */
static void fewer_samples(test_rank *me)
{
    batch b;
    float loss;
    make_batch(0, &b);
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    const model m = build(context, me->comm);
    dml_program *program = dml_compile(m.loss, &(dml_program_options){ .batch = BATCH });
    CHECK(dml_program_run(program, me->rank == 1 ? 3 : 4, DML_INPUTS(b.words, b.next), &loss) != DML_OK);
    CHECK_MESSAGE(strstr(dml_error(context), "parallel_sum_1"), "%s", dml_error(context));
    dml_close(context);
}

/* The loss alone, of inputs that are each rank's own. */
static void fewer_rows(test_rank *me)
{
    float loss, x[4] = { 1, 2, 3, 4 };
    int32_t t[4] = { 0, 1, 2, 3 };
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *scores = dml_column_parallel_dense(dml_input(graph, "x", DML_F32, 1), 4, me->comm);
    dml_node *end = dml_parallel_softmax_cross_entropy(scores, dml_input(graph, "t", DML_I32), me->comm);
    dml_program *program = dml_compile(end, &(dml_program_options){ .batch = 4 });
    CHECK(dml_program_run(program, me->rank == 1 ? 3 : 4, DML_INPUTS(x, t), &loss) != DML_OK);
    CHECK_MESSAGE(strstr(dml_error(context), "parallel_softmax_cross_entropy_1' in forward"), "%s",
                  dml_error(context));
    dml_close(context);
}

/* Rank 1 was told otherwise of the loss. */
static const char *wanted;
static void another_loss(test_rank *me)
{
    float loss, x[4] = { 1, 2, 3, 4 };
    int32_t t[4] = { 0, 1, 2, 3 };
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *scores = dml_column_parallel_dense(dml_input(graph, "x", DML_F32, 1), 4, me->comm);
    dml_node *labels = dml_input(graph, "t", DML_I32);
    dml_cross_entropy_options how = now.loss;
    if (me->rank == 0) memset(&how, 0, sizeof how);
    dml_node *end = dml_parallel_softmax_cross_entropy_with(scores, labels, &how, me->comm);
    if (now.tied && me->rank == 1)
        end = dml_add(end, dml_parallel_softmax_cross_entropy(scores, labels, me->comm));
    dml_trainer *trainer =
        dml_trainer_create(end, &(dml_trainer_options){ .batch = 4, .optimizer = dml_sgd(0.1f, 0) });
    CHECK_INT(dml_trainer_step(trainer, 4, DML_INPUTS(x, t), &loss), DML_ERROR_MISMATCH);
    CHECK_MESSAGE(strstr(dml_error(context), wanted), "%s", dml_error(context));
    dml_close(context);
}

static void losses_that_differ(void)
{
    static const char *const says[] = { "the smoothing of a loss, from 0 to 0.5",
                                        "the reduction of a loss, from 0 to 1",
                                        "the label that a loss ignores, from 3 to inf",
                                        "how many losses there are whose classes are cut, from 1 to 2" };
    test_rank ranks[2];
    for (int i = 0; i < 4; i++) {
        now = usual(2);
        memset(&now.loss, 0, sizeof now.loss);
        wanted = says[i];
        if (i == 0) now.loss.label_smoothing = 0.5f;
        if (i == 1) now.loss.reduction = (dml_loss_reduction)1;
        if (i == 2) now.loss.ignores = true, now.loss.ignore_index = 3;
        now.tied = i == 3;
        ranks_prepare(ranks, 2, 20, another_loss, NULL);
        ranks_run_on(ranks, 2, "local");
    }
}

static void ranks_that_differ(void)
{
    test_rank ranks[2];
    now = usual(2);
    ranks_prepare(ranks, 2, 5, fewer_samples, NULL);
    ranks_run_on(ranks, 2, "local");
    ranks_prepare(ranks, 2, 5, fewer_rows, NULL);
    ranks_run_on(ranks, 2, "local");
}

/* ---- files ---- */

static char whole_path[64];

static void save_whole(test_rank *me)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 9 });
    const model m = build(context, me->comm);
    CHECK_MESSAGE(!dml_parallel_save(m.graph, whole_path), "%s", dml_error(context));
    dml_close(context);
}

static void load_whole(test_rank *me)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 10 }); /* which begins otherwise */
    const model m = build(context, me->comm);
    CHECK_MESSAGE(!dml_parallel_load(m.graph, whole_path), "%s", dml_error(context));
    put_weights(me, m.graph, &got[me->rank]);
    for (size_t i = 0; i < want.count; i++)
        me->bad += got[me->rank].found[i] && got[me->rank].w[i] != want.w[i];
    dml_close(context);
}

/* Written by any number of ranks, and read by any other, with the first values of one. */
static void files_are_of_whole_models(void)
{
    test_rank ranks[4], alone;
    snprintf(whole_path, sizeof whole_path, "/tmp/dml_vocabulary_parallel_%ld.w", (long)getpid());
    for (int saved = 0; saved <= 4; saved += saved ? 2 : 1) {
        now = usual(1);
        now.tied = saved == 2;
        now.twice = !now.tied;
        memset(&alone, 0, sizeof alone);
        memset(&want, 0, sizeof want);
        memset(got, 0, sizeof got);
        dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 9 });
        const model m = build(context, NULL);
        put_weights(&alone, m.graph, &want);
        if (!saved) CHECK_INT(dml_graph_save(m.graph, whole_path), DML_OK);
        dml_close(context);
        if (saved) {
            ranks_prepare(ranks, saved, 60, save_whole, NULL);
            ranks_run_on(ranks, saved, "local");
            check_ranks(ranks, saved);
        }
        for (int world = 1; world <= 4; world++) {
            memset(got, 0, sizeof got);
            ranks_prepare(ranks, world, 60, load_whole, NULL);
            ranks_run_on(ranks, world, "local");
            check_ranks(ranks, world);
        }
    }
    remove(whole_path);
}

/* ---- what is refused ---- */

static void refusals(test_rank *me)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *words = dml_input(graph, "words", DML_I32, T), *x = dml_input(graph, "x", DML_F32, T, C);
    dml_node *t = dml_input(graph, "t", DML_I32, T), *single = dml_input(graph, "single", DML_I32);
    const dml_initializer zero = dml_init_constant(0);
    dml_cross_entropy_options options = { .reduction = DML_LOSS_MEAN };
    static const float of_class[6] = { 1, 1, 1, 1, 1, 1 };
    REFUSED(dml_parallel_embedding(words, 7, C, me->comm), "a table of 7 x 8 asked for over 2 ranks");
    CHECK(dml_parallel_embedding(NULL, 8, C, me->comm) == NULL);
    REFUSED(dml_parallel_embedding(words, 0, C, me->comm), "a table of 0 x 8");
    REFUSED(dml_parallel_embedding(words, 8, 0, me->comm), "a table of 8 x 0");
    REFUSED(dml_parallel_embedding(words, 8, C, NULL), "NULL");
    REFUSED(dml_parallel_embedding(x, 8, C, me->comm), "they must be an input of i32");
    CHECK_INT(dml_graph_parameters(graph), 0);
    CHECK(graph->last == single); /* what was refused has left nothing */
    CHECK(dml_parallel_embedding(words, 2, 1, me->comm) != NULL);
    dml_node *whole = dml_parameter(graph, "whole", zero, 8, C);
    dml_node *columns = dml_parallel_parameter(graph, "columns", zero, dml_shape_of(8, C), 1, me->comm);
    REFUSED(dml_parallel_embedding_with(words, whole, me->comm), "its table 'whole' isn't cut by rows");
    REFUSED(dml_parallel_embedding_with(words, columns, me->comm), "its table 'columns' isn't cut by rows");
    CHECK(dml_parallel_embedding_with(NULL, NULL, me->comm) == NULL);
    CHECK(dml_status_of(context) == DML_OK);
    REFUSED(dml_parallel_embedding_with(NULL, whole, me->comm), "its input 1 of 2 is NULL");
    REFUSED(dml_parallel_embedding_with(words, NULL, me->comm), "its input 2 of 2 is NULL");

    dml_node *scores = dml_column_parallel_dense(x, 6, me->comm), *all = dml_dense(x, 6);
    REFUSED(dml_parallel_softmax_cross_entropy(scores, t, NULL), "NULL");
    CHECK(dml_parallel_softmax_cross_entropy(NULL, t, me->comm) == NULL);
    REFUSED(dml_parallel_softmax_cross_entropy(scores, NULL, me->comm), "its input 2 of 2 is NULL");
    REFUSED(dml_parallel_softmax_cross_entropy(all, t, me->comm), "'dense_2' are alike on all ranks");
    REFUSED(dml_parallel_softmax_cross_entropy(scores, single, me->comm), "one a row");
    REFUSED(dml_parallel_softmax_cross_entropy(scores, dml_input(graph, "p", DML_F32, T, 3), me->comm),
            "where classes are cut it takes i32 labels");
    dml_node *own = dml_argmax(scores, 1, false);
    REFUSED(dml_parallel_softmax_cross_entropy(scores, own, me->comm), "of its own; labels and weights");
    dml_node *table = dml_parallel_parameter(graph, "rows", zero, dml_shape_of(8, C), 0, me->comm);
    REFUSED(dml_parallel_embedding_with(own, table, me->comm), "of its own; indices are alike on all");
    options.class_weights = of_class;
    REFUSED(dml_parallel_softmax_cross_entropy_with(scores, t, &options, me->comm),
            "class weights asked for");
    options.class_weights = NULL;
    options.sample_weights = dml_max(scores, dml_shape_of(1), false);
    REFUSED(dml_parallel_softmax_cross_entropy_with(scores, t, &options, me->comm), "labels and weights");
    options.sample_weights = NULL;
    options.label_smoothing = 2;
    REFUSED(dml_parallel_softmax_cross_entropy_with(scores, t, &options, me->comm), "smoothing is 2");
    options.label_smoothing = 0;
    options.ignore_index = 3;
    REFUSED(dml_parallel_softmax_cross_entropy_with(scores, t, &options, me->comm), "ignores is false");
    dml_close(context);
}

static void what_is_refused(void)
{
    test_rank ranks[2];
    ranks_prepare(ranks, 2, 60, refusals, NULL);
    ranks_run_on(ranks, 2, "local");
    check_ranks(ranks, 2);
}

/* On one rank all is as without: also what several refuse. */
static void one_rank(test_rank *me)
{
    static const float of_class[3] = { 1, 2, 3 };
    const dml_cross_entropy_options options = { .class_weights = of_class };
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *words = dml_input(graph, "words", DML_I32, T);
    dml_node *h = dml_parallel_embedding(words, 7, 3, me->comm);
    dml_node *end = dml_parallel_softmax_cross_entropy_with(h, words, &options, me->comm);
    CHECK_MESSAGE(end && strcmp(h->op->name, "embedding") == 0, "%s", dml_error(context));
    CHECK(end && strcmp(end->op->name, "softmax_cross_entropy") == 0);
    CHECK(dml_parallel_embedding(words, 1, 1, me->comm) != NULL);
    dml_node *target = dml_input(graph, "p", DML_F32, T, 3);
    CHECK(dml_parallel_softmax_cross_entropy(h, target, me->comm) != NULL);
    dml_close(context);
}

static void as_without_on_one(void)
{
    test_rank ranks[1];
    ranks_prepare(ranks, 1, 20, one_rank, NULL);
    ranks_run_on(ranks, 1, "local");
    check_ranks(ranks, 1);
}

/* ---- a device with memory of its own ---- */

#ifdef HOST_C
#define FOR_THREADS()                                                                                        \
    do {                                                                                                     \
        if (slow_here()) backend_here = host_c_for_threads();                                                \
    } while (0)
#else
#define FOR_THREADS() (void)0
#endif

static void vocabularies_that_are_cut(void)
{
    FOR_THREADS();
    gradients_of_parts();
    for (int which = 0; which < 4 && !cpu_here(); which++) {
        if (slow_here() && which % 3) continue;
        now = usual(2);
        now.steps = slow_here() ? 1 : 3;
        now.tied = which & 1;
        now.weighs = now.loss.ignores = (which & 2) != 0;
        now.loss.ignore_index = now.loss.ignores ? IGNORED : 0;
        now.loss.label_smoothing = which & 2 ? 0.2f : 0;
        check_job(1e-4);
    }
}
EACH_BACKEND(vocabularies_that_are_cut)

int main(void)
{
    RUN(what_is_refused);
    RUN(as_without_on_one);
    RUN(files_are_of_whole_models);
    RUN(words_that_are_not_there);
    RUN(ranks_that_differ);
    RUN(losses_that_differ);
    RUN(all_labels_ignored);
    backend_here = find_backend("cpu");
    RUN(follow_one_rank);
    RUN(options_of_the_loss);
    RUN(sparse_tables);
    RUN(mixed_precision);
    RUN(what_is_looked_up);
    RUN_EACH(vocabularies_that_are_cut);
    return test_report("dist/vocabulary_parallel");
}
