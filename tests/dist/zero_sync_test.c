/* Ranks are threads of this process, each with a context and a communicator of its own, and compared with a
   trainer that knows no strategy. */
#include "dist/zero_sync.h"

#include "../comm/ranks.h"
#include "../graph/backends.h"
#include "dist/all_reduce_sync.h"
#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_embedding.h"
#include "ops/op_loss.h"
#include "ops/op_norm.h"
#include "ops/op_reduce.h"
#include "ops/op_shape.h"
#include "train/checkpoint.h"
#include "train/lr_finder.h"

enum { MAX_RANKS = 5, IN = 6, CLASSES = 3, MAX_STEPS = 50, BATCH = 12, MOST = 2048, MOST_FILE = 65536 };

typedef enum model { PLAIN, RICH, TINY, ONE } model;

/* What the ranks are to do, and what came of it on each. */
typedef struct job {
    int ranks; /* 0: alone, without a strategy */
    int stage; /* 0: all_reduce_sync */
    int steps;
    size_t bucket_bytes;
    model model;
    dml_trainer_options options;
    bool uneven;  /* and in a few steps some ranks get nothing */
    bool pieces;  /* with DML_MORE, and then added to what was combined */
    bool empty;   /* each third step is tried first without a sample anywhere */
    bool looks;   /* gathers and looks at w, and exchanges the average, in between */
    bool strays;  /* the last rank makes a step of its own */
    bool unlike;  /* the last rank has another stage and other buckets */
    int bad_step; /* a sample is NaN; 0: in none */
    bool fails;   /* each third step is tried first with samples of NaN, which checks find on all ranks */
} job;

typedef struct outcome {
    double loss[MAX_STEPS]; /* of this rank's samples, summed */
    size_t trained, count;
    float w[MOST], state[3][MOST];
    char file[MOST_FILE];
    size_t file_bytes;
    uint64_t skipped;
    dml_status status;
    char error[512];
} outcome;

static dml_node *build(dml_context *context, model model)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *t = dml_input(graph, "t", DML_I32);
    if (model >= TINY) {
        dml_node *scale = dml_parameter(graph, "scale", dml_init_constant(0.5f), model == ONE ? 1 : IN / 2);
        return dml_softmax_cross_entropy(dml_mul(dml_tanh(dml_reshape(x, dml_shape_of(2, IN / 2))), scale),
                                         dml_input(graph, "u", DML_I32, 2));
    }
    if (model == PLAIN) {
        dml_node *h = dml_relu(dml_dense(dml_tanh(dml_dense(x, 16)), 16));
        return dml_softmax_cross_entropy(dml_dense(h, CLASSES), t);
    }
    /* A frozen layer, a table with few rows in use, shared weights, a norm over all ranks. */
    const dml_batch_norm_options all_ranks = { .all_ranks = true, .momentum = 0.3f };
    dml_node *h = dml_tanh(dml_dense(x, 8));
    CHECK_INT(dml_parameter_train(dml_graph_find(graph, "dense_1.bias"), false), DML_OK);
    dml_node *table = dml_parameter(graph, "table", dml_init_uniform(-1, 1), 9, 8);
    CHECK_INT(dml_parameter_set_sparse(table, true), DML_OK);
    h = dml_add(h, dml_embedding_with(t, table));
    h = dml_relu(dml_batch_norm(dml_dense(h, 8), &all_ranks));
    dml_node *weight = dml_parameter(graph, "shared", dml_init_uniform(-0.5f, 0.5f), 8, 8);
    h = dml_dense_with(dml_tanh(dml_dense_with(h, weight, NULL)), weight, NULL);
    return dml_softmax_cross_entropy(dml_dense(h, CLASSES), t);
}

static void make_batch(int step, float *x, int32_t *t)
{
    unsigned state = 77u + (unsigned)step;
    test_fill(&state, x, BATCH * IN);
    for (int i = 0; i < BATCH; i++) t[i] = x[i * IN] > 0.3f ? 2 : x[i * IN + 1] > 0 ? 1 : 0;
}

/* Where rank r's share of n samples begins. */
static int first_row(const job *j, int step, int n, int r)
{
    const int ranks = j->ranks ? j->ranks : 1;
    if (!j->uneven) return n * r / ranks;
    if (step % 5 == 4) return r == 0 ? 0 : n; /* all of it is rank 0's */
    return n * r * (r + 1) / (ranks * (ranks + 1));
}

static dml_status backward(const job *j, dml_trainer *t, int r, int step, int from, int to, int flags,
                           outcome *out)
{
    float x[BATCH * IN], loss = 0;
    int32_t labels[BATCH], pairs[BATCH * 2];
    make_batch(step, x, labels);
    if (j->bad_step && step == j->bad_step) x[0] = NAN;
    for (int i = 0; i < BATCH; i++) pairs[2 * i] = labels[i], pairs[2 * i + 1] = labels[(i + 1) % BATCH];
    const int begin = from + first_row(j, step, to - from, r);
    const int rows = from + first_row(j, step, to - from, r + 1) - begin;
    const void *const inputs[] = { x + begin * IN, j->model >= TINY ? pairs + 2 * begin : labels + begin };
    const dml_status status = dml_trainer_backward(t, rows, inputs, 2, flags, &loss);
    out->loss[step] += (double)loss * rows;
    return status;
}

/* With or without more to come. */
static void fail(dml_trainer *t, int step)
{
    float x[BATCH * IN];
    int32_t labels[BATCH] = { 0 };
    for (int i = 0; i < BATCH * IN; i++) x[i] = NAN;
    const int flags = step % 2 ? DML_MORE : 0;
    CHECK_INT(dml_trainer_backward(t, 2, DML_INPUTS(x, labels), flags, NULL), DML_ERROR_NUMBER);
    dml_clear_error(dml_trainer_context(t));
}

static dml_status one_step(const job *j, dml_trainer *t, int r, int step, outcome *out)
{
    dml_status status = DML_OK;
    if (j->pieces) {
        status = backward(j, t, r, step, 0, 3, DML_ADD | DML_MORE, out);
        if (status == DML_OK) status = backward(j, t, r, step, 3, 7, DML_ADD, out);
    }
    if (status == DML_OK) status = backward(j, t, r, step, j->pieces ? 7 : 0, BATCH, DML_ADD, out);
    return status == DML_OK ? dml_trainer_update(t) : status;
}

static void look(dml_trainer *t)
{
    CHECK_INT(dml_trainer_gather(t), DML_OK);
    CHECK(dml_graph_get(dml_node_graph(dml_program_input(dml_trainer_program(t), 0)), 0, 1));
    for (int i = 0; i < 2; i++) CHECK_INT(dml_trainer_swap_average(t), DML_OK);
}

static void read_file(const char *path, outcome *out)
{
    FILE *f = fopen(path, "rb");
    CHECK(f);
    if (f) out->file_bytes = fread(out->file, 1, MOST_FILE, f);
    CHECK(out->file_bytes && out->file_bytes < MOST_FILE);
    if (f) fclose(f);
    remove(path);
}

static void keep(const job *j, dml_trainer *t, int r, outcome *out)
{
    char path[64];
    CHECK_INT(dml_trainer_gather(t), DML_OK);
    out->count = dml_trainer_count(t, DML_PARAMETERS);
    out->trained = dml_trainer_count(t, DML_GRADIENTS);
    out->skipped = dml_trainer_skipped(t);
    CHECK(out->count <= MOST);
    memcpy(out->w, dml_trainer_get(t, DML_PARAMETERS, 0, out->count), out->count * sizeof(float));
    for (int v = DML_OPTIMIZER_STATE; v < dml_trainer_vectors(t); v++)
        memcpy(out->state[v - DML_OPTIMIZER_STATE], dml_trainer_get(t, v, 0, out->trained),
               out->trained * sizeof(float));
    snprintf(path, sizeof path, "zero_%d_%d_%d.safetensors", (int)getpid(), j->stage, r);
    CHECK_INT(dml_trainer_save(t, path), DML_OK);
    read_file(path, out);
}

static void train(const job *j, int r, dml_comm *comm, outcome *out)
{
    dml_options options = { .threads = 1, .seed = 5 + (uint64_t)r };
    dml_context *context = open_here(&options);
    memset(out, 0, sizeof *out);
    dml_trainer_options trainer_options = j->options;
    trainer_options.batch = BATCH;
    dml_trainer *t = dml_trainer_create(build(context, j->model), &trainer_options);
    CHECK_MESSAGE(t, "%s", dml_error(context));
    if (comm) {
        const bool other = j->unlike && r == j->ranks - 1;
        const dml_zero_options zero = { .stage = j->stage - other,
                                        .bucket_bytes = j->bucket_bytes * (other ? 2 : 1) };
        out->status =
            dml_trainer_sync(t, j->stage ? dml_zero_sync(comm, &zero) : dml_all_reduce_sync(comm, NULL));
    }
    for (int step = 0; step < j->steps && out->status == DML_OK; step++) {
        if (j->looks && step % 7 == 3) look(t);
        if (j->empty && step % 3 == 0) {
            CHECK_INT(comm ? dml_trainer_step(t, 0, NULL, 0, NULL) : DML_ERROR_ARGUMENT, DML_ERROR_ARGUMENT);
            if (comm) CHECK_CONTAINS(dml_error(context), "a global batch of 0 samples");
            dml_clear_error(context);
        }
        if (j->fails && step % 3 == 1) fail(t, step);
        if (j->strays && step == 3 && r == j->ranks - 1) CHECK_INT(dml_trainer_advance(t), DML_OK);
        out->status = one_step(j, t, r, step, out);
    }
    if (out->status == DML_OK) keep(j, t, r, out);
    snprintf(out->error, sizeof out->error, "%s", dml_error(context));
    dml_close(context);
}

static outcome alone, of[MAX_RANKS];

static void run_rank(test_rank *me)
{
    train((const job *)me->user, me->rank, me->comm, &of[me->rank]);
}

static void run_ranks(const job *j)
{
    test_rank ranks[MAX_RANKS];
    ranks_prepare(ranks, j->ranks, 30, run_rank, (void *)(uintptr_t)j);
    ranks_run_on(ranks, j->ranks, "local");
}

static void check_near(const job *j, const char *what, const float *got, const float *want, size_t n,
                       double tolerance)
{
    size_t worst = 0;
    for (size_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= fabs(got[worst] - want[worst]))) worst = i;
    CHECK_MESSAGE(n == 0 || fabs(got[worst] - want[worst]) <= tolerance,
                  "stage %d, %d ranks: %s[%d] is %.9g, not %.9g", j->stage, j->ranks, what, (int)worst,
                  (double)got[worst], (double)want[worst]);
}

/* The same on so many ranks and on one without a strategy. */
static void compare(const job *like, double tolerance)
{
    job one = *like;
    one.ranks = one.stage = 0;
    train(&one, 0, NULL, &alone);
    CHECK_STRING(alone.error, "");
    run_ranks(like);
    for (int r = 0; r < like->ranks; r++) {
        CHECK_MESSAGE(!of[r].error[0], "stage %d, rank %d of %d: %s", like->stage, r, like->ranks,
                      of[r].error);
        CHECK_MESSAGE(of[r].file_bytes == of[0].file_bytes &&
                          memcmp(of[r].file, of[0].file, of[0].file_bytes) == 0,
                      "rank %d of %d has another checkpoint", r, like->ranks);
        CHECK_INT(of[r].skipped, alone.skipped);
    }
    CHECK_INT(of[0].file_bytes, alone.file_bytes);
    for (int s = 0; s < like->steps; s++) {
        double loss = 0;
        for (int r = 0; r < like->ranks; r++) loss += of[r].loss[s];
        CHECK_MESSAGE((isnan(loss) && s == like->bad_step) ||
                          fabs(loss - alone.loss[s]) <= tolerance * alone.loss[s],
                      "stage %d, %d ranks: the loss of step %d is %.9g, not %.9g", like->stage, like->ranks,
                      s, loss / BATCH, alone.loss[s] / BATCH);
    }
    check_near(like, "w", of[0].w, alone.w, alone.count, 30 * tolerance);
    for (int v = 0; v < 3; v++)
        check_near(like, "state", of[0].state[v], alone.state[v], alone.trained, 30 * tolerance);
}

static job plain(int ranks, int stage)
{
    const job j = { .ranks = ranks,
                    .stage = stage,
                    .steps = MAX_STEPS,
                    .bucket_bytes = 200,
                    .options = { .optimizer = dml_sgd(0.05f, 0.9f) } };
    backend_here = find_backend("cpu");
    return j;
}

/* ---- the tests ---- */

static void any_stage_trains_like_one_rank(void)
{
    for (int ranks = 1; ranks <= 4; ranks += TEST_SLOW ? 2 : 1)
        for (int stage = 1; stage <= 3; stage++) {
            job j = plain(ranks, stage);
            compare(&j, 1e-5);
            CHECK(alone.loss[MAX_STEPS - 1] < 0.5 * alone.loss[0]);
            j.options.optimizer = dml_adam(1e-3f);
            j.options.optimizer.epsilon = 1e-3f;
            j.bucket_bytes = stage == 1 ? 0 : 1;
            j.uneven = true;
            compare(&j, 1e-5);
        }
}

static void all_that_a_step_can_do(void)
{
    for (int ranks = 2; ranks <= 4; ranks += TEST_SLOW ? 2 : 1)
        for (int stage = 1; stage <= 3; stage++) {
            job j = plain(ranks, stage);
            j.model = RICH;
            j.uneven = j.empty = j.looks = true;
            j.pieces = ranks == 3;
            j.options = (dml_trainer_options){ .optimizer = dml_adamw(1e-3f, 0.1f),
                                               .clip_norm = 0.2f,
                                               .clip_value = 0.1f,
                                               .average = 0.9f,
                                               .loss_scale = 256 };
            j.options.optimizer.epsilon = 1e-2f;
            j.steps = 20;
            compare(&j, 1e-5);
        }
}

/* Parameters that come before the op that needs them, as few or as many at a time as there is room for. */
static void parameters_come_ahead(void)
{
    for (int ranks = 1; ranks <= 4; ranks += TEST_SLOW ? 2 : 1)
        for (size_t bytes = 400; bytes <= 6400; bytes *= 2) {
            job j = plain(ranks, 3);
            j.model = bytes == 800 ? PLAIN : RICH;
            j.bucket_bytes = bytes;
            j.uneven = j.looks = true;
            j.pieces = ranks == 3;
            j.options.average = 0.9f;
            j.steps = 10;
            compare(&j, 1e-5);
        }
}

/* Some of them are on their way then. */
static void goes_on_after_a_pass_that_failed(void)
{
    for (int stage = 1; stage <= 3; stage++)
        for (size_t bytes = 200; bytes <= 20000; bytes *= 100) {
            job j = plain(3, stage);
            j.bucket_bytes = bytes;
            j.fails = j.pieces = true;
            j.options.check = DML_CHECK_FINITE;
            j.steps = 12;
            compare(&j, 1e-5);
        }
}

/* A sum of two has no order: the same bits, in the files too. */
static void two_ranks_are_those_of_an_all_reduce(void)
{
    static outcome usual;
    for (int stage = 0; stage <= 3; stage++) {
        job j = plain(2, stage);
        j.options.optimizer = dml_adam(1e-2f);
        j.options.average = 0.5f;
        run_ranks(&j);
        CHECK_STRING(of[1].error, "");
        if (stage == 0) usual = of[0];
        CHECK_INT(of[1].file_bytes, usual.file_bytes);
        CHECK_MESSAGE(memcmp(of[1].file, usual.file, usual.file_bytes) == 0, "stage %d", stage);
    }
}

static void more_ranks_than_parameters(void)
{
    for (int stage = 1; stage <= 3; stage++) {
        job j = plain(MAX_RANKS, stage);
        j.model = TINY;
        j.options.clip_norm = 0.05f;
        compare(&j, 1e-5);
        CHECK_INT(alone.trained, 3);
    }
}

/* One rank has all of g, and the others none of it. */
static void one_rank_owns_all(void)
{
    for (int stage = 1; stage <= 3; stage++)
        for (int pieces = 0; pieces < 2; pieces++) {
            job j = plain(2, stage);
            j.model = ONE;
            j.pieces = pieces;
            j.options.clip_norm = pieces ? 0 : 0.05f;
            compare(&j, 1e-5);
            CHECK_INT(alone.trained, 1);
        }
}

/* What each rank is told of calls that need whole vectors, before all have gathered them and then. */
static void whole_body(test_rank *me)
{
    const int stage = *(int *)me->user;
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_trainer_options options = { .batch = 1,
                                    .optimizer = { .kind = DML_LAMB, .lr = 1e-3f },
                                    .average = 0.5f };
    dml_trainer *t = dml_trainer_create(build(context, TINY), &options);
    dml_graph *graph = dml_node_graph(dml_program_input(dml_trainer_program(t), 0));
    dml_trainer_sync(t, dml_zero_sync(me->comm, &(dml_zero_options){ .stage = stage }));
    const float x[IN] = { 1, 2, 3, 4, 5, 6 };
    const int32_t labels[2] = { 1, 2 };
    char path[64];
    snprintf(path, sizeof path, "zero_%d_whole_%d.safetensors", (int)getpid(), me->rank);
    me->bad += dml_trainer_step(t, 1, DML_INPUTS(x, labels), NULL) != DML_OK;
    for (int gathered = 0; gathered < 2; gathered++) {
        const dml_status want = gathered ? DML_OK : DML_ERROR_STATE;
        if (gathered) me->bad += dml_trainer_gather(t) != DML_OK;
        me->bad += dml_trainer_save(t, path) != want;
        dml_clear_error(context);
        for (int i = 0; i < 2; i++) {
            me->bad += dml_trainer_swap_average(t) != want;
            dml_clear_error(context);
        }
        me->bad += !dml_graph_get(graph, 0, 1) != (!gathered && stage == 3);
        dml_clear_error(context);
        dml_lr_finder *finder = dml_lr_finder_begin(t, &(dml_lr_finder_options){ .steps = 3 });
        me->bad += !finder != !gathered;
        dml_clear_error(context);
        dml_lr_finder_end(finder);
    }
    me->bad += dml_trainer_step(t, 1, DML_INPUTS(x, labels), NULL) != DML_OK;
    remove(path);
    dml_close(context);
}

/* Also a rank that owns every parameter there is. */
static void all_ranks_are_refused_alike(void)
{
    for (int stage = 1; stage <= 3; stage++) {
        test_rank ranks[2];
        ranks_prepare(ranks, 2, 20, whole_body, &stage);
        ranks_run_on(ranks, 2, "local");
        for (int r = 0; r < 2; r++)
            CHECK_MESSAGE(!ranks[r].bad && !ranks[r].status, "stage %d: rank %d: %d wrong: %s", stage, r,
                          ranks[r].bad, ranks[r].error);
    }
}

static void optimizers_of_whole_parameters(void)
{
    for (int ranks = 2; ranks <= MAX_RANKS; ranks += 3)
        for (int stage = 1; stage <= 3; stage++) {
            job j = plain(ranks, stage);
            j.options.optimizer = (dml_optimizer){ .kind = DML_LAMB, .lr = 1e-3f, .epsilon = 1e-2f };
            compare(&j, 1e-5);
        }
}

static void a_step_that_overflows_is_skipped_by_all(void)
{
    for (int stage = 1; stage <= 3; stage++) {
        job j = plain(3, stage);
        j.options.loss_scale = 1024;
        j.steps = 10;
        j.uneven = true;
        j.bad_step = 4;
        compare(&j, 1e-5);
        CHECK_INT(alone.skipped, 1);
    }
}

/* Sums over samples have no larger numbers in 16 bits than one rank's mean has. */
static void in_f16_ranks_skip_the_steps_that_one_rank_skips(void)
{
    for (int ranks = 1; ranks <= 4; ranks += TEST_SLOW ? 2 : 1)
        for (int stage = 0; stage <= 3; stage++) {
            job j = plain(ranks, stage);
            j.options.dtype = DML_F16;
            j.options.loss_scale = 131072;
            j.steps = 10;
            j.uneven = ranks == 3;
            j.pieces = ranks == 4;
            compare(&j, 1e-2);
            CHECK_INT(alone.skipped, 0);
        }
}

static void a_device_with_memory_of_its_own(void)
{
#ifdef HOST_C
    for (int stage = 1; stage <= 3; stage++) {
        job j = plain(2, stage);
        j.steps = 3;
        j.options.clip_norm = 0.1f;
        backend_here = host_c_for_threads();
        if (stage < 3) {
            compare(&j, 1e-5);
            continue;
        }
        run_ranks(&j);
        CHECK_INT(of[0].status, DML_ERROR_UNSUPPORTED);
        CHECK_CONTAINS(of[0].error, "take stage 1 or 2");
    }
#else
    SKIP("no shared kernels as host C here");
#endif
}

static void what_is_told(void)
{
    job j = plain(2, 4);
    run_ranks(&j);
    CHECK_INT(of[0].status, DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(of[0].error, "stage 4 of ZeRO");
    j = plain(3, 2);
    j.strays = true;
    run_ranks(&j);
    for (int r = 0; r < 3; r++) {
        CHECK_INT(of[r].status, DML_ERROR_MISMATCH);
        CHECK_CONTAINS(of[r].error, "and others aren't");
    }
    j = plain(3, 2);
    j.unlike = true;
    run_ranks(&j);
    for (int r = 0; r < 3; r++) {
        CHECK_INT(of[r].status, DML_ERROR_MISMATCH);
        CHECK_CONTAINS(of[r].error, "rank 2 differs from rank 0 in the strategy's stage (1, where rank 0 has "
                                    "2); all ranks need the same. This one has dml_zero_sync");
    }
}

/* A border between two ranks would cut the second of three rows, whose gradient is once zero in the first
   rank's part of it alone. */
static void rows_body(test_rank *me)
{
    static const float met[3][3] = { { 1, 1, 1 }, { 0, 0, 1 }, { 1, 1, 1 } };
    static const float want[9] = { -1, -1, -1, -1.5f, -1.5f, -2.5f, 0, 0, 0 };
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *i = dml_input(graph, "i", DML_I32), *v = dml_input(graph, "v", DML_F32, 3);
    dml_node *table = dml_parameter(graph, "table", dml_init_constant(0), 3, 3);
    me->bad += dml_parameter_set_sparse(table, true) != DML_OK;
    dml_node *sum = dml_sum(dml_mul(dml_embedding_with(i, table), v), dml_all_axes(), false);
    dml_trainer *trainer = dml_trainer_create(
        dml_batch_mean(sum, NULL), &(dml_trainer_options){ .batch = 1, .optimizer = dml_sgd(1, 0.5f) });
    dml_trainer_sync(trainer, dml_zero_sync(me->comm, &(dml_zero_options){ .stage = *(int *)me->user }));
    for (int step = 0; step < 3; step++) {
        const int32_t row = step < 2;
        me->bad += dml_trainer_step(trainer, 1, DML_INPUTS(&row, met[step]), NULL) != DML_OK;
    }
    float w[9];
    me->bad += dml_trainer_gather(trainer) != DML_OK || dml_parameter_read(table, w, 9) != DML_OK;
    for (int k = 0; k < 9; k++) me->bad += w[k] != want[k];
    dml_close(context);
}

static void rows_of_sparse_tables_are_whole(void)
{
    for (int stage = 1; stage <= 3; stage++) {
        test_rank ranks[2];
        ranks_prepare(ranks, 2, 20, rows_body, &stage);
        ranks_run_on(ranks, 2, "local");
        for (int r = 0; r < 2; r++)
            CHECK_MESSAGE(!ranks[r].bad && !ranks[r].status, "stage %d: rank %d: %d wrong: %s", stage, r,
                          ranks[r].bad, ranks[r].error);
    }
}

int main(void)
{
    RUN(any_stage_trains_like_one_rank);
    RUN(all_that_a_step_can_do);
    RUN(parameters_come_ahead);
    RUN(goes_on_after_a_pass_that_failed);
    RUN(two_ranks_are_those_of_an_all_reduce);
    RUN(more_ranks_than_parameters);
    RUN(one_rank_owns_all);
    RUN(all_ranks_are_refused_alike);
    RUN(optimizers_of_whole_parameters);
    RUN(a_step_that_overflows_is_skipped_by_all);
    RUN(in_f16_ranks_skip_the_steps_that_one_rank_skips);
    RUN(a_device_with_memory_of_its_own);
    RUN(rows_of_sparse_tables_are_whole);
    RUN(what_is_told);
    return test_report("dist/zero_sync");
}
