/* dml_all_reduce_sync across steps: every run is made twice, with the option and without, and has to give the
   same bits in all that anybody can look at, whatever comes between two steps. */
#include "dist/all_reduce_sync.h"

#include "../comm/ranks.h"
#include "../graph/backends.h"
#include "graph/weights.h"
#include "graph/weights_file.h"
#include "ops/op_activation.h"
#include "ops/op_dense.h"
#include "ops/op_embedding.h"
#include "ops/op_loss.h"
#include "ops/op_norm.h"
#include "train/checkpoint.h"
#include "train/lr_finder.h"
#include "train/parameter_group.h"
#include "train/trainer_internal.h"

enum { MAX_RANKS = 4, IN = 6, CLASSES = 3, STEPS = 9, BATCH = 23, WORDS = 11 };

typedef struct run run;
typedef struct side side;

/* What comes before a step; `me` makes it visible in its digest. */
typedef void (*between)(side *me, int step);

struct run {
    int ranks;
    bool across;
    dml_trainer_options trainer;
    dml_compression compression;
    size_t bucket_bytes;
    int batch;       /* global, at most BATCH */
    bool norms;      /* over all ranks */
    bool aside;      /* layers in the middle and at the end of w that the loss doesn't need */
    bool words;      /* the input are indices of a sparse table */
    between act;     /* NULL: nothing */
    int first, last; /* the ranks that do so */
    bool waits;      /* ends all steps as without the option */
    int fails_at;    /* every third step: the call of the strategy that fails; 0: none */
    bool refused;    /* each step is tried with bad input first */
    int leaves_at;   /* the last rank; -1: never */
};

struct side {
    const run *r;
    int rank;
    dml_comm *comm;
    dml_graph *graph;
    dml_node *logits, *loss;
    dml_trainer *trainer;
    dml_program *program; /* to predict */
    void *kept;           /* an act's own */
    float x[BATCH * IN];
    int32_t words[BATCH], labels[BATCH];
    unsigned long long digest, followed; /* of what was looked at; of w whenever the strategy was told */
    int updates;                         /* that it was told of */
    int attached, status;
    char error[512];
    uint64_t steps;
};

static void note_in(unsigned long long *digest, const void *data, size_t bytes)
{
    test_rank rank = { .digest = *digest };
    ranks_digest(&rank, data, bytes);
    *digest = rank.digest;
}

static void note(side *me, const void *data, size_t bytes)
{
    note_in(&me->digest, data, bytes);
}

static void note_vector(side *me, int vector)
{
    const size_t n = dml_trainer_count(me->trainer, vector);
    const float *from = dml_trainer_get(me->trainer, vector, 0, n);
    if (from) note(me, from, n * sizeof *from);
}

/* ---- the model ---- */

static void build(side *me, dml_context *context)
{
    const run *r = me->r;
    me->graph = dml_graph_create(context);
    dml_node *x = r->words ? dml_embedding(dml_input(me->graph, "x", DML_I32), WORDS, IN)
                           : dml_input(me->graph, "x", DML_F32, IN);
    if (r->words) dml_parameter_set_sparse(dml_graph_parameter(me->graph, 0), true);
    dml_node *h = dml_tanh(dml_dense(x, 16));
    if (r->aside) dml_dense(h, 40);
    if (r->norms) h = dml_batch_norm(h, &(dml_batch_norm_options){ .all_ranks = true, .momentum = 0.3f });
    h = dml_relu(dml_dense(h, 16));
    me->logits = dml_dense(h, CLASSES);
    if (r->aside) dml_dense(h, 9);
    me->loss = dml_softmax_cross_entropy(me->logits, dml_input(me->graph, "t", DML_I32));
    dml_parameter_set_lr_scale(dml_graph_find(me->graph, "dense_1.bias"), 0.5f);
}

/* The global batch of a step; this rank's share begins at *begin. Some get nothing of a small one. */
static int share(side *me, int step, int *begin)
{
    const run *r = me->r;
    const int batch = step % 4 == 3 ? 2 : r->batch;
    unsigned state = 77u + (unsigned)step;
    test_fill(&state, me->x, (size_t)(batch * IN));
    for (int i = 0; i < batch; i++) {
        me->labels[i] = me->x[i * IN] > 0.3f ? 2 : me->x[i * IN + 1] > 0 ? 1 : 0;
        me->words[i] = (step + i * i) % WORDS;
    }
    *begin = batch * me->rank * (me->rank + 1) / (r->ranks * (r->ranks + 1));
    return batch * (me->rank + 1) * (me->rank + 2) / (r->ranks * (r->ranks + 1)) - *begin;
}

static const void *inputs_at(side *me, int begin)
{
    return me->r->words ? (const void *)(me->words + begin) : (const void *)(me->x + begin * IN);
}

/* ---- the strategy, looked at from outside ---- */

typedef struct onlooker {
    dml_sync inner;
    side *me;
    int calls, fail_at;
} onlooker;

static dml_status looked(onlooker *o, dml_trainer *trainer, dml_status status)
{
    if (status != DML_OK) return status;
    return ++o->calls == o->fail_at ? dml_trainer_fail(trainer, DML_ERROR_DEVICE, "sabotage") : DML_OK;
}
static dml_status look_start(void *user, dml_trainer *trainer)
{
    onlooker *o = user;
    return o->inner.start(o->inner.state, trainer);
}
static dml_status look_begin(void *user, dml_trainer *trainer, double samples)
{
    onlooker *o = user;
    o->calls = 0;
    return looked(o, trainer, o->inner.begin(o->inner.state, trainer, samples));
}
static dml_status look_ready(void *user, dml_trainer *trainer, size_t begin, size_t end)
{
    onlooker *o = user;
    return looked(o, trainer, o->inner.ready(o->inner.state, trainer, begin, end));
}
static dml_status look_finish(void *user, dml_trainer *trainer, double *samples)
{
    onlooker *o = user;
    const dml_status status = looked(o, trainer, DML_OK);
    return status == DML_OK ? o->inner.finish(o->inner.state, trainer, samples) : status;
}
/* w has followed, and the step is counted. (Running statistics may be a forward pass ahead.) */
static dml_status look_updated(void *user, dml_trainer *trainer)
{
    onlooker *o = user;
    const size_t n = dml_trainer_count(trainer, DML_GRADIENTS);
    o->me->updates++;
    note_in(&o->me->followed, &trainer->steps, sizeof trainer->steps);
    note_in(&o->me->followed, dml_trainer_get(trainer, DML_PARAMETERS, 0, n), n * sizeof(float));
    return o->inner.updated(o->inner.state, trainer);
}
static dml_status look_sum(void *user, dml_trainer *trainer, double *values, size_t count)
{
    onlooker *o = user;
    return o->inner.all_reduce(o->inner.state, trainer, values, count);
}
static void look_failed(void *user, dml_trainer *trainer)
{
    onlooker *o = user;
    o->inner.failed(o->inner.state, trainer);
}
static void look_destroy(void *user, dml_trainer *trainer)
{
    onlooker *o = user;
    o->inner.destroy(o->inner.state, trainer);
}

static onlooker lookers[MAX_RANKS][4];

static dml_status attach(side *me)
{
    const dml_all_reduce_sync_options options = { .bucket_bytes = me->r->bucket_bytes,
                                                  .compression = me->r->compression,
                                                  .across_steps = me->r->across };
    onlooker *o = &lookers[me->rank][me->attached++];
    const dml_sync inner = dml_all_reduce_sync(me->comm, &options);
    dml_sync outer = { .state = o,
                       .start = look_start,
                       .begin = look_begin,
                       .ready = look_ready,
                       .finish = look_finish,
                       .failed = look_failed,
                       .updated = look_updated,
                       .destroy = look_destroy,
                       .ranks = inner.ranks,
                       .rank = inner.rank,
                       .all_reduce = look_sum };
    memset(o, 0, sizeof *o);
    o->inner = inner;
    o->me = me;
    return dml_trainer_sync(me->trainer, outer);
}

/* ---- a rank ---- */

static dml_status step_of(side *me, int step)
{
    int begin;
    float loss = 0;
    const int rows = share(me, step, &begin);
    const dml_status status = dml_trainer_step(
        me->trainer, rows, DML_INPUTS(inputs_at(me, begin), me->labels + begin), step % 2 ? &loss : NULL);
    note(me, &loss, sizeof loss);
    return status;
}

/* Whatever is wrong with a step is over after it; the one before has arrived. */
static void steps_that_fail(side *me, int step)
{
    const run *r = me->r;
    dml_context *context = dml_trainer_context(me->trainer);
    static const int32_t bad[] = { CLASSES };
    if (r->refused && me->rank == 0) {
        CHECK_INT(dml_trainer_step(me->trainer, 1, DML_INPUTS(inputs_at(me, 0), bad), NULL),
                  DML_ERROR_ARGUMENT);
        if (step % 2) note_vector(me, DML_PARAMETERS); /* which leaves the error alone */
        CHECK_CONTAINS(dml_error(context), "it must be in 0 .. 2");
        dml_clear_error(context);
    }
    if (!r->fails_at || step % 3 != 2) return;
    lookers[me->rank][0].fail_at = r->fails_at;
    CHECK_INT(step_of(me, step), DML_ERROR_DEVICE);
    CHECK_CONTAINS(dml_error(context), "sabotage");
    lookers[me->rank][0].fail_at = 0;
    dml_clear_error(context);
    note_vector(me, DML_PARAMETERS);
}

/* The last thing that a rank does: w is the graph's, and goes on without the trainer. */
static void end_of(side *me, dml_context *context)
{
    const size_t n = dml_graph_parameter_count(me->graph);
    if (me->rank % 2) {
        dml_trainer_destroy(me->trainer);
    } else {
        for (int v = 0; v < dml_trainer_vectors(me->trainer); v++) note_vector(me, v);
        const dml_trainer_run last = dml_trainer_get_run(me->trainer);
        note(me, &last.steps, sizeof last.steps);
        note(me, &last.optimizer.lr, sizeof last.optimizer.lr);
    }
    const float *w = dml_graph_get(me->graph, 0, n);
    if (w) note(me, w, n * sizeof *w);
    CHECK_STRING(dml_error(context), "");
}

static void train(side *me)
{
    const run *r = me->r;
    dml_context *context = open_here(&(dml_options){ .threads = 1, .seed = 5 });
    build(me, context);
    me->trainer = dml_trainer_create(me->loss, &r->trainer);
    me->program = dml_compile(me->logits, &(dml_program_options){ .batch = BATCH });
    me->status = (int)attach(me);
    for (int step = 0; step < STEPS && me->status == DML_OK; step++) {
        if (step == r->leaves_at && me->rank == r->ranks - 1) break;
        if (r->fails_at || r->refused) steps_that_fail(me, step);
        if (r->act && me->rank >= r->first && me->rank <= r->last) r->act(me, step);
        me->status = (int)step_of(me, step);
        const bool late = r->across && !r->waits;
        if (r->leaves_at < 0) CHECK_INT(me->trainer->late.take != NULL, late);
        const float lr = dml_trainer_lr(me->trainer);
        note(me, &lr, sizeof lr);
    }
    snprintf(me->error, sizeof me->error, "%s", dml_error(context));
    me->steps = dml_trainer_steps(me->trainer);
    if (me->status == DML_OK && r->leaves_at < 0) end_of(me, context);
    dml_close(context);
}

static void run_side(test_rank *rank)
{
    side *me = (side *)rank->user + rank->rank;
    me->comm = rank->comm;
    me->rank = rank->rank;
    train(me);
}

static side sides[2][MAX_RANKS];

static void run_world(const run *r, int which)
{
    test_rank ranks[MAX_RANKS];
    memset(sides[which], 0, sizeof sides[which]);
    for (int i = 0; i < r->ranks; i++) sides[which][i].r = r;
    ranks_prepare(ranks, r->ranks, 30, run_side, sides[which]);
    ranks_run_on(ranks, r->ranks, "local");
    if (r->leaves_at >= 0) return;
    for (int i = 0; i < r->ranks; i++) {
        CHECK_MESSAGE(!ranks[i].status, "rank %d: %s", i, ranks[i].error);
        CHECK_STRING(sides[which][i].error, "");
    }
}

static run usual(int ranks)
{
    run r;
    memset(&r, 0, sizeof r);
    backend_here = find_backend("cpu");
    r.ranks = ranks;
    r.trainer.batch = BATCH;
    r.trainer.optimizer = dml_sgd(0.1f, 0.9f);
    r.bucket_bytes = 100;
    r.batch = BATCH;
    r.last = MAX_RANKS;
    r.leaves_at = -1;
    return r;
}

static void compare(const run *like, const char *what)
{
    run with = *like, without = *like;
    with.across = true;
    run_world(&without, 0);
    run_world(&with, 1);
    for (int i = 0; i < like->ranks; i++) {
        CHECK_MESSAGE(sides[0][i].digest == sides[1][i].digest, "%s: rank %d of %d has other results", what,
                      i, like->ranks);
        CHECK_MESSAGE(sides[0][i].followed == sides[1][i].followed,
                      "%s: rank %d of %d has followed otherwise", what, i, like->ranks);
        CHECK_INT(sides[1][i].updates, sides[0][i].updates);
    }
}

/* ---- the tests ---- */

static void every_optimizer(void)
{
    const struct {
        const char *name;
        dml_optimizer optimizer;
        bool waits;
    } all[] = {
        { "sgd", dml_sgd(0.1f, 0), false },
        { "momentum", dml_sgd(0.1f, 0.9f), false },
        { "adam", dml_adam(0.01f), false },
        { "adamw", dml_adamw(0.01f, 0.1f), false },
        { "rmsprop", dml_rmsprop(0.01f), false },
        { "adagrad", dml_adagrad(0.1f), false },
        { "lars", dml_lars(0.1f, 0.9f), true },
        { "lamb", dml_lamb(0.01f, 0.1f), true },
        { "nesterov", { .kind = DML_SGD, .lr = 0.1f, .momentum = 0.9f, .nesterov = true }, false },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
            run r = usual(ranks);
            r.trainer.optimizer = all[i].optimizer;
            r.trainer.optimizer.weight_decay = 0.1f;
            r.trainer.schedule =
                dml_schedule_exponential(all[i].optimizer.lr, 0.7f); /* a rate for each step */
            r.trainer.average = ranks % 2 ? 0.5f : 0;
            r.waits = all[i].waits;
            compare(&r, all[i].name);
        }
}

static void every_model(void)
{
    for (int v = 0; v < 8; v++) {
        run r = usual(2 + v % 2);
        r.norms = v & 1;
        r.aside = v & 2;
        r.words = v & 4;
        compare(&r, "a model");
        r.trainer.optimizer = dml_adam(0.01f);
        r.batch = 3; /* some ranks get nothing */
        r.bucket_bytes = v & 1 ? 1 : 1000;
        compare(&r, "a model with few samples");
    }
}

static void every_compression(void)
{
    const dml_compression all[] = { { .kind = DML_COMPRESS_BF16 },
                                    { .kind = DML_COMPRESS_F16 },
                                    { .kind = DML_COMPRESS_QUANTISE, .bits = 4 },
                                    { .kind = DML_COMPRESS_TOP_K, .fraction = 0.2f, .warm_up = 5 },
                                    { .kind = DML_COMPRESS_POWER, .rank = 1 } };
    for (int i = 0; i < 5; i++) {
        run r = usual(3);
        r.compression = all[i];
        r.waits = all[i].kind == DML_COMPRESS_POWER;
        compare(&r, "compression");
    }
}

/* Where an update needs all of g, or something looks at w in passing, steps end as they always do. */
static void steps_that_wait(void)
{
    for (int v = 0; v < 4; v++) {
        run r = usual(2);
        r.waits = true;
        if (v == 0) r.trainer.clip_norm = 0.2f;
        if (v == 1) r.trainer.clip_value = 0.01f;
        if (v == 2) r.trainer.loss_scale = 128;
        if (v == 3) r.trainer.check = DML_CHECK_NAN;
        compare(&r, "a step that waits");
    }
    run r = usual(2);
    r.trainer.dtype = DML_BF16;
    compare(&r, "bf16");
}

/* -- what comes between -- */

static void predicts(side *me, int step)
{
    float out[BATCH * CLASSES];
    (void)step;
    memset(out, 0, sizeof out);
    CHECK_INT(dml_program_run(me->program, BATCH, DML_INPUTS(me->x), out), DML_OK);
    note(me, out, sizeof out);
    /* The one that trains, too. */
    float loss = 0;
    CHECK_INT(dml_program_run(dml_trainer_program(me->trainer), 5, DML_INPUTS(me->x, me->labels), &loss),
              DML_OK);
    note(me, &loss, sizeof loss);
}

static void gets(side *me, int step)
{
    const int v = step % dml_trainer_vectors(me->trainer);
    if (step) note_vector(me, v);
}

static void reads_a_parameter(side *me, int step)
{
    float values[16];
    dml_node *p = dml_graph_find(me->graph, step % 2 ? "dense_1.bias" : "dense_2.bias");
    CHECK_INT(dml_parameter_read(p, values, 16), DML_OK);
    note(me, values, sizeof values);
}

static void stores(side *me, int step)
{
    static unsigned char file[MAX_RANKS][1 << 16];
    size_t bytes = 0;
    (void)step;
    CHECK_INT(dml_graph_store(me->graph, file[me->rank], sizeof file[0], &bytes), DML_OK);
    note(me, file[me->rank], bytes);
}

static void reads_w(side *me, int step)
{
    const float *w = dml_graph_get(me->graph, 10, 60);
    (void)step;
    note(me, w, 50 * sizeof *w);
}

static void asks_for_the_norm(side *me, int step)
{
    const float norm = step ? dml_trainer_gradient_norm(me->trainer) : 0;
    note(me, &norm, sizeof norm);
}

static void gathers(side *me, int step)
{
    (void)step;
    CHECK_INT(dml_trainer_gather(me->trainer), DML_OK);
    CHECK(!me->trainer->late.take);
}

/* Of the step to come, not of the one that was. */
static void sets_the_rate(side *me, int step)
{
    dml_trainer_set_lr(me->trainer, step % 2 ? 0.3f : 0.01f);
}

static void sets_a_scale(side *me, int step)
{
    if (step == 6) CHECK_INT(dml_graph_decay_matrices_only(me->graph), DML_OK);
    if (step == 6) return;
    dml_parameter_set_lr_scale(dml_graph_find(me->graph, "dense_1.weight"), step % 2 ? 2.0f : 0.1f);
    dml_parameter_set_decay_scale(dml_graph_find(me->graph, "dense_2.weight"), step % 2 ? 2.0f : 0.1f);
}

static void sets_the_run(side *me, int step)
{
    dml_trainer_run last = dml_trainer_get_run(me->trainer);
    last.optimizer.lr = step % 2 ? 0.3f : 0.01f;
    last.steps += 3;
    CHECK_INT(dml_trainer_set_run(me->trainer, &last), DML_OK);
}

static void writes_w(side *me, int step)
{
    const float zeros[16] = { 0 };
    if (step % 2) {
        float *w = dml_trainer_get(me->trainer, DML_PARAMETERS, 3, 9);
        for (int i = 0; i < 6; i++) w[i] *= 0.5f;
        CHECK_INT(dml_trainer_put(me->trainer, DML_PARAMETERS, 3, 9), DML_OK);
    } else {
        CHECK_INT(dml_parameter_write(dml_graph_find(me->graph, "dense_1.bias"), zeros, 16), DML_OK);
    }
}

static void trains_in_pieces(side *me, int step)
{
    int begin;
    const int rows = share(me, step + 20, &begin), part = rows / 2;
    const void *x = inputs_at(me, begin), *rest = inputs_at(me, begin + part);
    CHECK_INT(dml_trainer_backward(me->trainer, part, DML_INPUTS(x, me->labels + begin), DML_MORE, NULL),
              DML_OK);
    CHECK_INT(dml_trainer_backward(me->trainer, rows - part, DML_INPUTS(rest, me->labels + begin + part),
                                   step % 2 ? DML_ADD : DML_OVERWRITE, NULL),
              DML_OK);
    CHECK_INT(dml_trainer_update(me->trainer), DML_OK);
}

static void updates_again(side *me, int step)
{
    if (step) CHECK_INT(dml_trainer_update(me->trainer), DML_OK); /* the same gradient */
}

static void attaches_again(side *me, int step)
{
    if (step % 4 == 2) CHECK_INT(attach(me), DML_OK);
}

static void another_trainer(side *me, int step)
{
    if (step == 1) {
        me->kept = dml_trainer_create(
            me->loss, &(dml_trainer_options){ .batch = BATCH, .optimizer = dml_sgd(0.05f, 0) });
        CHECK(me->kept);
    }
    if (step)
        CHECK_INT(dml_trainer_step(me->kept, 7, DML_INPUTS(inputs_at(me, 0), me->labels), NULL), DML_OK);
}

static void looks_for_a_rate(side *me, int step)
{
    if (step % 4 != 2) return;
    dml_lr_finder *finder = dml_lr_finder_begin(me->trainer, NULL);
    CHECK_INT(step_of(me, 30), DML_OK);
    CHECK(dml_lr_finder_step(finder, 1));
    CHECK_INT(step_of(me, 31), DML_OK);
    CHECK_INT(dml_lr_finder_end(finder), DML_OK);
}

static void swaps_the_average(side *me, int step)
{
    if (step == 0) return;
    CHECK_INT(dml_trainer_swap_average(me->trainer), DML_OK);
    predicts(me, step);
    CHECK_INT(dml_trainer_swap_average(me->trainer), DML_OK);
}

static const char *program; /* beside which there is room for files */

static void saves_and_loads(side *me, int step)
{
    char path[512];
    snprintf(path, sizeof path, "%s.checkpoint.%d", program, me->rank);
    if (step == 3) CHECK_INT(dml_trainer_save(me->trainer, path), DML_OK);
    if (step == 6) CHECK_INT(dml_trainer_load(me->trainer, path), DML_OK);
    if (step == 6) remove(path);
}

static void sums_of_its_own(side *me, int step)
{
    double sum = step;
    CHECK_INT(dml_comm_all_reduce(me->comm, &sum, 1, DML_F64, DML_SUM), DML_OK);
    note(me, &sum, sizeof sum);
}

static void whatever_comes_between(void)
{
    const struct {
        const char *name;
        between act;
        bool alone; /* one rank may do so by itself */
    } all[] = {
        { "predicts", predicts, true },
        { "gets", gets, true },
        { "reads_a_parameter", reads_a_parameter, true },
        { "stores", stores, true },
        { "reads_w", reads_w, true },
        { "asks_for_the_norm", asks_for_the_norm, true },
        { "gathers", gathers, true },
        { "sets_the_rate", sets_the_rate, false },
        { "sets_a_scale", sets_a_scale, false },
        { "sets_the_run", sets_the_run, false },
        { "writes_w", writes_w, false },
        { "trains_in_pieces", trains_in_pieces, false },
        { "updates_again", updates_again, false },
        { "attaches_again", attaches_again, false },
        { "another_trainer", another_trainer, false },
        { "looks_for_a_rate", looks_for_a_rate, false },
        { "swaps_the_average", swaps_the_average, true },
        { "saves_and_loads", saves_and_loads, false },
        { "sums_of_its_own", sums_of_its_own, false },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int who = 0; who < (all[i].alone ? 3 : 1); who++) {
            run r = usual(3);
            r.act = all[i].act;
            r.trainer.optimizer = dml_adam(0.01f);
            r.trainer.optimizer.weight_decay = 0.1f;
            if (all[i].act == swaps_the_average) r.trainer.average = 0.5f;
            if (who) r.first = r.last = who - 1;
            compare(&r, all[i].name);
        }
}

static void steps_that_fail_in_the_middle(void)
{
    for (int call = 1; call <= 5; call++) { /* begin, ready, finish */
        run r = usual(3);
        r.fails_at = call;
        compare(&r, "a step that fails");
    }
    run r = usual(3);
    r.refused = true;
    compare(&r, "a step that is refused");
}

/* w is not there yet, and whoever asks by a way of his own is told. */
static void a_program_with_a_thread_of_its_own(void)
{
    side *me = &sides[0][0];
    dml_comm *comm;
    run r = usual(1);
    r.across = true;
    memset(me, 0, sizeof *me);
    me->r = &r;
    CHECK_INT(dml_comm_open_local(&comm, 1, NULL), DML_OK);
    me->comm = comm;
    dml_context *context = open_here(&(dml_options){ .threads = 1 });
    build(me, context);
    me->trainer = dml_trainer_create(me->loss, &r.trainer);
    dml_program *own = dml_compile(me->logits, &(dml_program_options){ .batch = BATCH, .own_thread = true });
    CHECK_INT(attach(me), DML_OK);
    const float *w = dml_trainer_get(me->trainer, DML_PARAMETERS, 0, 1);
    float before = w[0], out[BATCH * CLASSES];
    CHECK_INT(step_of(me, 0), DML_OK);
    CHECK(w[0] == before); /* by an old pointer */
    CHECK_INT(dml_trainer_steps(me->trainer), 1);
    CHECK_INT(dml_program_run(own, 1, DML_INPUTS(me->x), out), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_program_error(own), "have its thread call dml_trainer_gather first");
    dml_program_clear_error(own);
    CHECK_INT(dml_trainer_gather(me->trainer), DML_OK);
    CHECK(w[0] != before);
    CHECK_INT(dml_program_run(own, 1, DML_INPUTS(me->x), out), DML_OK);
    const dml__entry entry = dml__enter(context); /* as whoever steps inside of another call */
    CHECK_INT(step_of(me, 1), DML_OK);
    CHECK(!me->trainer->late.take);
    dml__leave(context, entry);
    CHECK_INT(step_of(me, 2), DML_OK);
    dml_close(context);
    CHECK_INT(dml_comm_close(comm), DML_OK);
}

/* Whoever asks next is told who it was. */
static void a_rank_that_leaves_is_named(void)
{
    for (int who = 0; who < 2; who++) {
        run r = usual(3);
        r.across = true;
        r.leaves_at = 4;
        r.act = who ? predicts : NULL;
        r.last = 0;
        run_world(&r, 0);
        for (int i = 0; i < 2; i++) {
            CHECK(sides[0][i].status != DML_OK);
            CHECK_CONTAINS(sides[0][i].error, "rank 2");
            CHECK_INT(sides[0][i].steps, 4);
        }
    }
}

static void a_device_with_memory_of_its_own(void)
{
#ifdef HOST_C
    run r = usual(1); /* its kernels have static memory: one rank launches */
    backend_here = dml__host_backend();
    r.batch = 5;
    compare(&r, "shared kernels");
    r.act = gets;
    r.trainer.optimizer = dml_adam(0.01f);
    compare(&r, "shared kernels");
#else
    SKIP("no shared kernels as host C here");
#endif
}

int main(int argc, char **argv)
{
    program = argc > 0 ? argv[0] : "across_steps_test";
    RUN(every_optimizer);
    RUN(every_model);
    RUN(every_compression);
    RUN(steps_that_wait);
    RUN(whatever_comes_between);
    RUN(steps_that_fail_in_the_middle);
    RUN(a_program_with_a_thread_of_its_own);
    RUN(a_rank_that_leaves_is_named);
    RUN(a_device_with_memory_of_its_own);
    return test_report("dist/across_steps");
}
