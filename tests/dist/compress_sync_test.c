/* Compressed gradients between ranks, which are threads of this process: every rank gets the same bits,
   nothing is lost, fewer bytes are sent, and models learn as well. */
#include "dist/all_reduce_sync.h"

#include "../comm/ranks.h"
#include "dist/compress_sum.h"
#include "graph/node.h"
#include "graph/program_internal.h"
#include "ops/op_activation.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "train/checkpoint.h"
#include "train/lr_finder.h"

enum { MOST_RANKS = 4, IN = 12, HIDDEN = 50, CLASSES = 4, PARAMETERS = 6000, STEPS = 6 };

static const struct {
    const char *name;
    dml_compression how;
    double error; /* of a sum, by its size: what is lost for good */
} kinds[] = {
    { "none", { .kind = DML_COMPRESS_NONE }, 1e-6 },
    { "bf16", { .kind = DML_COMPRESS_BF16 }, 0.03 },
    { "f16", { .kind = DML_COMPRESS_F16 }, 0.004 },
    { "8 bits", { .kind = DML_COMPRESS_QUANTISE }, 1e-5 },
    { "4 bits", { .kind = DML_COMPRESS_QUANTISE, .bits = 4 }, 1e-5 },
    { "1 bit", { .kind = DML_COMPRESS_QUANTISE, .bits = 1 }, 1e-5 },
    { "top k", { .kind = DML_COMPRESS_TOP_K, .fraction = 0.05f }, 1e-5 },
    { "top k that warms up", { .kind = DML_COMPRESS_TOP_K, .fraction = 0.02f, .warm_up = 4 }, 1e-5 },
    { "rank 2", { .kind = DML_COMPRESS_POWER, .rank = 2 }, 1e-5 },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static dml_trainer *make_trainer(dml_context *context, int batch, float lr, float momentum, dml_node **logits)
{
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *t = dml_input(graph, "t", DML_I32);
    dml_node *h = dml_tanh(dml_dense(dml_tanh(dml_dense(x, HIDDEN)), HIDDEN));
    h = dml_dense(h, CLASSES);
    if (logits) *logits = h;
    dml_node *loss = dml_softmax_cross_entropy(h, t);
    return dml_trainer_create(loss,
                              &(dml_trainer_options){ .batch = batch, .optimizer = dml_sgd(lr, momentum) });
}

/* ---- sums of ranges ---- */

static float came[MOST_RANKS][PARAMETERS];
static double put_in[MOST_RANKS][PARAMETERS], kept[MOST_RANKS][PARAMETERS], arrived[PARAMETERS];

/* What one rank's g is in a step. The sums stand for as many samples as there are steps before it, plus 5. */
static void fill_gradient(int rank, int step, float *g, size_t n)
{
    unsigned seed = 100u * (unsigned)step + (unsigned)rank + 1;
    test_fill(&seed, g, n);
    for (size_t i = 0; i < n; i++) g[i] *= (float)(5 + step);
}

static void sum_ranges(test_rank *me)
{
    static const dml_compression zero;
    const int kind = *(const int *)me->user;
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_trainer *trainer = make_trainer(context, 1, 0.1f, 0, NULL);
    dml__memory memory;
    dml__compressor c;
    dml__coded_sum sums[8];
    memset(sums, 0, sizeof sums);
    dml__memory_init(&memory, NULL, NULL, 0);
    me->bad += dml__compressor_open(&c, &memory, me->comm, trainer, kind < 0 ? &zero : &kinds[kind].how, 8);
    const size_t n = c.count;
    /* Whole parameters, from the end; and one range of nothing. */
    const size_t last = n - CLASSES, second = IN * HIDDEN + HIDDEN;
    const size_t cuts[] = { n, last, last, second, 0 };
    float *g = came[me->rank];
    for (int step = 0; step < STEPS; step++) {
        fill_gradient(me->rank, step, g, n);
        for (size_t i = 0; i < n; i++) put_in[me->rank][i] += (double)g[i] / (5 + step);
        dml__compressor_begin(&c, trainer, 5 + step);
        for (int r = 0; r < 4; r++)
            me->bad += dml__coded_sum_start(&c, g + cuts[r + 1], cuts[r + 1], cuts[r], &sums[r]);
        for (int r = 0; r < 4; r++) me->bad += dml__coded_sum_take(&c, g + cuts[r + 1], &sums[r]);
        ranks_digest(me, g, n * sizeof *g);
        if (me->rank == 0)
            for (size_t i = 0; i < n; i++) arrived[i] += (double)g[i] / (5 + step);
    }
    for (size_t i = 0; i < n && c.kept; i++) kept[me->rank][i] = c.kept[i];
    dml__compressor_close(&c);
    me->bad += dml_status_of(context);
    dml_close(context);
}

static void what_arrives_and_what_is_kept_is_all(void)
{
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
        for (int kind = 0; kind < KINDS; kind++) {
            test_rank rank[MOST_RANKS];
            double worst = 0;
            memset(put_in, 0, sizeof put_in);
            memset(kept, 0, sizeof kept);
            memset(arrived, 0, sizeof arrived);
            ranks_prepare(rank, ranks, 20, sum_ranges, &kind);
            ranks_run_on(rank, ranks, "local");
            check_ranks(rank, ranks);
            for (int i = 0; i < PARAMETERS; i++) {
                double want = 0, got = arrived[i];
                for (int r = 0; r < ranks; r++) want += put_in[r][i], got += kept[r][i];
                worst = fmax(worst, fabs(got - want));
            }
            CHECK_MESSAGE(worst <= kinds[kind].error * ranks * STEPS / 2, "%s, %d ranks: off by %g",
                          kinds[kind].name, ranks, worst);
        }
}

/* ---- training ---- */

typedef struct training {
    const dml_compression *how;
    int steps;
    float momentum;
    bool in_pieces;
    /* results */
    double accuracy;                                       /* rank 0's */
    uint64_t bytes[MOST_RANKS], bytes_between[MOST_RANKS]; /* sent in all steps; while g waited for more */
    char error[MOST_RANKS][512];
} training;

enum { BATCH = 16, TESTED = 400 };

/* Where everything takes long, that it runs is enough. */
#if defined(__SANITIZE_THREAD__)
enum { TRAINED = 20 };
#else
enum { TRAINED = TEST_EMULATOR ? 20 : 600 };
#endif

/* Four classes that no line separates: the quarters of a plane, turned by a third number. */
static void make_samples(unsigned seed, int count, float *x, int32_t *t)
{
    test_fill(&seed, x, (size_t)count * IN);
    for (int i = 0; i < count; i++, x += IN) t[i] = (x[0] > 0) * 2 + ((x[1] > 0) != (x[2] > 0.4f));
}

static uint64_t bytes_so_far(dml_comm *comm)
{
    dml_comm_stats stats;
    dml_comm_get_stats(comm, &stats);
    return stats.local.bytes_sent;
}

/* Of samples that nobody was trained with. */
static double accuracy_of(dml_node *logits)
{
    static float x[TESTED * IN], out[TESTED * CLASSES];
    static int32_t t[TESTED];
    int right = 0;
    dml_program *program = dml_compile(logits, &(dml_program_options){ .batch = TESTED });
    make_samples(12345, TESTED, x, t);
    CHECK_INT(dml_program_run(program, TESTED, (const void *const[]){ x }, 1, out), DML_OK);
    for (int i = 0; i < TESTED; i++) {
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            if (out[i * CLASSES + c] > out[i * CLASSES + best]) best = c;
        right += best == t[i];
    }
    return (double)right / TESTED;
}

static void train(test_rank *me)
{
    training *all = (training *)me->user;
    float x[BATCH * IN];
    int32_t t[BATCH];
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 3 });
    dml_node *logits;
    dml_trainer *trainer = make_trainer(context, BATCH, 0.2f, all->momentum, &logits);
    const dml_all_reduce_sync_options options = { .compression = *all->how, .bucket_bytes = 4000 };
    dml_status status = dml_trainer_sync(trainer, dml_all_reduce_sync(me->comm, &options));
    const uint64_t before = bytes_so_far(me->comm);
    for (int step = 0; step < all->steps && status == DML_OK; step++) {
        make_samples(7u + (unsigned)(step * MOST_RANKS + me->rank), BATCH, x, t);
        /* Small steps at the end: with large ones the accuracy is another for each processor's rounding. */
        if (3 * step >= 2 * all->steps) dml_trainer_set_lr(trainer, 0.02f);
        if (all->in_pieces) {
            dml_comm_barrier(me->comm);
            const uint64_t then = bytes_so_far(me->comm);
            status = dml_trainer_backward(trainer, BATCH, DML_INPUTS(x, t), DML_MORE, NULL);
            all->bytes_between[me->rank] += bytes_so_far(me->comm) - then;
            if (status == DML_OK)
                status = dml_trainer_backward(trainer, BATCH, DML_INPUTS(x, t), DML_ADD, NULL);
            if (status == DML_OK) status = dml_trainer_update(trainer);
        } else {
            status = dml_trainer_step(trainer, BATCH, DML_INPUTS(x, t), NULL);
        }
    }
    all->bytes[me->rank] = bytes_so_far(me->comm) - before;
    if (me->rank == 0 && status == DML_OK) all->accuracy = accuracy_of(logits);
    snprintf(all->error[me->rank], sizeof all->error[0], "%s", dml_error(context));
    if (status == DML_OK) {
        const size_t n = dml_trainer_count(trainer, DML_PARAMETERS);
        ranks_digest(me, dml_trainer_get(trainer, DML_PARAMETERS, 0, n), n * sizeof(float));
    }
    dml_close(context);
}

static void run_training(training *all, int ranks)
{
    test_rank rank[MOST_RANKS];
    ranks_prepare(rank, ranks, 20, train, all);
    ranks_run_on(rank, ranks, "local");
    check_ranks(rank, ranks);
}

/* With momentum in the optimizer, but for the one that brings its own: of the largest elements alone,
   momentum that isn't corrected costs up to a tenth of the accuracy. */
static void compressed_models_learn_as_well(void)
{
    static const dml_compression corrected = {
        .kind = DML_COMPRESS_TOP_K, .fraction = 0.05f, .momentum = 0.9f, .warm_up = 50
    };
    double plain = 0;
    for (int kind = 0; kind <= KINDS; kind++) {
        training all = { .how = kind < KINDS ? &kinds[kind].how : &corrected, .steps = TRAINED };
        all.momentum = kind == KINDS ? 0 : 0.9f;
        run_training(&all, 2);
        CHECK_STRING(all.error[0], "");
        if (kind == 0) plain = all.accuracy;
        if (TRAINED < 600) continue;
        CHECK_MESSAGE(all.accuracy > 0.8 && all.accuracy > plain - 0.12, "%s: %g of the tests right, not %g",
                      kind < KINDS ? kinds[kind].name : "top k with momentum", all.accuracy, plain);
    }
}

/* What a rank of two sends for each element and step, over what a step sends that has no compression. */
static double bytes_of(const dml_compression *how, bool in_pieces)
{
    training all = { .how = how, .steps = 10, .in_pieces = in_pieces };
    run_training(&all, 2);
    CHECK_STRING(all.error[0], "");
    CHECK_INT(all.bytes[0], all.bytes[1]);
    CHECK_INT(all.bytes_between[0] + all.bytes_between[1], 0);
    return (double)all.bytes[0] / all.steps;
}

static void fewer_bytes_are_sent(void)
{
    const double n = IN * HIDDEN + HIDDEN + HIDDEN * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES;
    const double whole = bytes_of(&kinds[0].how, false), samples = whole - 4 * n; /* an all-reduce of two */
    CHECK_MESSAGE(samples >= 0 && samples <= 48, "%g bytes for %g elements", whole, n);
    CHECK_NEAR(bytes_of(&kinds[1].how, false) - samples, 2 * n, 0);
    CHECK_NEAR(bytes_of(&kinds[2].how, false) - samples, 2 * n, 0);
    for (int b = 3; b <= 5; b++) { /* two ranges end in the middle of a block */
        const double bits = kinds[b].how.bits ? kinds[b].how.bits : 8, each = bits / 8 + 2.0 / 256;
        CHECK_NEAR(bytes_of(&kinds[b].how, false) - samples, each * n, each * 512);
    }
    CHECK_NEAR(bytes_of(&kinds[6].how, false) - samples, 8 * 0.05 * n, 16);
    CHECK(bytes_of(&kinds[8].how, false) < whole / 5);
    CHECK_NEAR(bytes_of(&kinds[1].how, true) - samples, 2 * n, 0); /* once for both pieces */
    CHECK_NEAR(bytes_of(&kinds[0].how, true), whole, 0);
}

/* ---- another run is taken up ---- */

enum { LOADED_BEFORE, LOADED, PUT, SEARCHED, TAKE_UPS };

typedef struct take_up {
    const dml_compression *how;
    int way; /* in which the run comes to the trainer */
    float w[TAKE_UPS][PARAMETERS];
} take_up;

static char checkpoint_path[300]; /* which ranks that are threads only read */

static void steps_of(test_rank *me, dml_trainer *trainer, unsigned seed, int steps)
{
    float x[BATCH * IN];
    int32_t t[BATCH];
    for (int step = 0; step < steps; step++) {
        make_samples(seed + (unsigned)(step * MOST_RANKS + me->rank), BATCH, x, t);
        me->bad += dml_trainer_step(trainer, BATCH, DML_INPUTS(x, t), NULL);
    }
}

/* The run has come as far as two steps, as a run of one's own has that is given up for it. */
static void take_up_a_run(test_rank *me)
{
    take_up *all = (take_up *)me->user;
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 3 });
    dml_trainer *trainer = make_trainer(context, BATCH, 0.2f, 0, NULL);
    const dml_all_reduce_sync_options options = { .compression = *all->how, .bucket_bytes = 4000 };
    if (all->way != LOADED) me->bad += dml_trainer_load(trainer, checkpoint_path);
    me->bad += dml_trainer_sync(trainer, dml_all_reduce_sync(me->comm, &options));
    const size_t n = dml_trainer_count(trainer, DML_PARAMETERS);
    CHECK(n <= PARAMETERS);
    if (all->way == LOADED) {
        steps_of(me, trainer, 900, 2);
        me->bad += dml_trainer_load(trainer, checkpoint_path);
    } else if (all->way == PUT) {
        float *w = dml_trainer_get(trainer, DML_PARAMETERS, 0, n);
        static float copy[MOST_RANKS][PARAMETERS];
        memcpy(copy[me->rank], w, n * sizeof *w);
        const dml_trainer_run run = dml_trainer_get_run(trainer);
        steps_of(me, trainer, 900, 2);
        memcpy(dml_trainer_host(trainer, DML_PARAMETERS, 0, n), copy[me->rank], n * sizeof *w);
        me->bad += dml_trainer_put(trainer, DML_PARAMETERS, 0, n);
        me->bad += dml_trainer_set_run(trainer, &run);
    } else if (all->way == SEARCHED) {
        dml_lr_finder *finder = dml_lr_finder_begin(trainer, NULL);
        steps_of(me, trainer, 900, 2);
        me->bad += dml_lr_finder_end(finder);
    }
    steps_of(me, trainer, 7, 4);
    me->bad += dml_trainer_steps(trainer) != 6;
    const float *w = dml_trainer_get(trainer, DML_PARAMETERS, 0, n);
    if (w) ranks_digest(me, w, n * sizeof *w);
    if (w && me->rank == 0) memcpy(all->w[all->way], w, n * sizeof *w);
    me->bad += dml_status_of(context);
    CHECK_MESSAGE(!dml_status_of(context), "rank %d, way %d: %s", me->rank, all->way, dml_error(context));
    dml_close(context);
}

/* Nothing of the run that was given up comes into the one that is taken up. */
static void a_run_that_is_taken_up_begins_with_nothing_kept(void)
{
    static const dml_compression moves = { .kind = DML_COMPRESS_TOP_K, .fraction = 0.05f, .momentum = 0.9f };
    static take_up all;
    dml_context *context = dml_open(&(dml_options){ .threads = 1, .seed = 5 });
    dml_trainer *trainer = make_trainer(context, BATCH, 0.2f, 0, NULL);
    test_rank alone;
    memset(&alone, 0, sizeof alone);
    steps_of(&alone, trainer, 300, 2);
    CHECK_INT(alone.bad, 0);
    CHECK_INT(dml_trainer_save(trainer, checkpoint_path), DML_OK);
    dml_close(context);
    for (int kind = 0; kind <= KINDS; kind++) {
        all.how = kind < KINDS ? &kinds[kind].how : &moves;
        for (all.way = 0; all.way < TAKE_UPS; all.way++) {
            test_rank rank[MOST_RANKS];
            ranks_prepare(rank, 2, 20, take_up_a_run, &all);
            ranks_run_on(rank, 2, "local");
            check_ranks(rank, 2);
            CHECK_MESSAGE(memcmp(all.w[all.way], all.w[0], sizeof all.w[0]) == 0, "%s, way %d",
                          kind < KINDS ? kinds[kind].name : "top k with momentum", all.way);
        }
    }
    remove(checkpoint_path);
}

static void options_that_cannot_be(void)
{
    static const struct {
        dml_compression how;
        const char *says;
    } bad[] = {
        { { .kind = (dml_compression_kind)17 }, "compression of kind 17 asked for" },
        { { .kind = DML_COMPRESS_QUANTISE, .bits = 2 },
          "gradients of 2 bits asked for, it must be 8, 4 or 1" },
        { { .kind = DML_COMPRESS_TOP_K, .fraction = -0.1f }, "it must be above 0 and at most 1" },
        { { .kind = DML_COMPRESS_TOP_K, .fraction = 1.5f }, "a fraction of 1.5 of the gradients" },
        { { .kind = DML_COMPRESS_TOP_K, .fraction = NAN }, "it must be above 0 and at most 1" },
        { { .kind = DML_COMPRESS_TOP_K, .momentum = 1 }, "a momentum of 1 asked for" },
        { { .kind = DML_COMPRESS_TOP_K, .warm_up = -1 }, "warms up for -1 steps" },
        { { .kind = DML_COMPRESS_POWER, .rank = -1 }, "gradients of rank -1 asked for" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dml_comm *comm;
        dml_context *context = dml_open(&(dml_options){ .threads = 1 });
        dml_trainer *trainer = make_trainer(context, 1, 0.1f, 0, NULL);
        const dml_all_reduce_sync_options options = { .compression = bad[i].how };
        CHECK_INT(dml_comm_open_local(&comm, 1, NULL), DML_OK);
        CHECK_INT(dml_trainer_sync(trainer, dml_all_reduce_sync(comm, &options)), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), bad[i].says);
        dml_close(context);
        dml_comm_close(comm);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    snprintf(checkpoint_path, sizeof checkpoint_path, "%s.checkpoint", argv[0]);
    RUN(what_arrives_and_what_is_kept_is_all);
    RUN(fewer_bytes_are_sent);
    RUN(a_run_that_is_taken_up_begins_with_nothing_kept);
    RUN(options_that_cannot_be);
    RUN(compressed_models_learn_as_well);
    return test_report("dist/compress_sync");
}
