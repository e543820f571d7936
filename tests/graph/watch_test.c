/* Watched nodes: their values are there after a run, as a program has them whose blocks share nothing, and
   the run's other numbers are, bit for bit, those of a program that nobody watches. */
#include "graph/program.h"

#include "graph/weights.h"
#include "train/trainer.h"

#include "ops_cases.h"
#include "random_graph.h"

enum { MOST_WATCHED = 256 };

static bool can_be_watched(const dml_node *node)
{
    while (node->op->view) node = node->input[0];
    return node->op != dml__input_op() && node->op != dml__parameter_op();
}

/* One in `of` of those before `end`, at random, and the last of them. */
static int choose_watched(dml_graph *g, const dml_node *end, unsigned of, unsigned *random,
                          dml_node *watch[MOST_WATCHED])
{
    int count = 0;
    dml_node *last = NULL;
    for (dml_node *node = dml_graph_first(g); node && node != end; node = dml_node_next(node)) {
        if (!can_be_watched(node)) continue;
        last = node;
        *random = *random * 1664525u + 1013904223u;
        if ((*random >> 16) % of == 0 && count < MOST_WATCHED - 1) watch[count++] = node;
    }
    if (last) watch[count++] = last;
    return count;
}

static void compare_values(dml_program *p, dml_program *like, int rows, dml_node *const *watch, int count,
                           const char *name)
{
    for (int i = 0; i < count; i++) {
        const size_t bytes = reference_count(watch[i], rows) * sizeof(float);
        char *got = (char *)malloc(bytes), *want = (char *)malloc(bytes);
        CHECK_INT(dml_program_read(p, watch[i], got), DML_OK);
        CHECK_INT(dml_program_read(like, watch[i], want), DML_OK);
        CHECK_MESSAGE(memcmp(got, want, bytes) == 0, "%s, %d rows: the value of '%s' differs", name, rows,
                      watch[i]->name);
        free(got);
        free(want);
    }
}

/* Loss and gradient of a step on an arena full of NaN. */
static void train_poisoned(subject *s, dml_program *p, int rows, void *const *inputs, float *out)
{
    poison(s->context, p->arena);
    reset_parameters(s);
    CHECK_INT(program_train(p, rows, (const void *const *)inputs, 2.0f, NULL, out), DML_OK);
    read_floats(s->context, out + 1, p->g, s->count);
}

static void watch_some(const model *which, dml_dtype dtype, unsigned of)
{
    subject s;
    if (open_subject(&s, which)) {
        dml_node *watch[MOST_WATCHED];
        dml_graph *g = s.loss->graph;
        const int batch = which->batch;
        dml_program_options options = { .batch = batch, .training = true, .dtype = dtype };
        dml_program *plain = dml_compile(s.loss, &options);
        options.watch = watch;
        options.watch_count = choose_watched(g, s.loss, of, &s.random, watch);
        dml_program *p = dml_compile(s.loss, &options), *apart = dml__compile_disjoint(s.loss, &options);
        const size_t n = 1 + s.count;
        float *got = (float *)malloc(3 * n * sizeof *got);
        void *inputs[MAX_INPUTS] = { NULL };
        reference r;
        reference_open(&r, g, batch, s.w64);
        make_inputs(&s, s.training, batch, &r, inputs);
        if (p->inputs == s.training->inputs) { /* else what is watched takes others, too */
            train_poisoned(&s, plain, batch, inputs, got);
            train_poisoned(&s, p, batch, inputs, got + n);
            train_poisoned(&s, apart, batch, inputs, got + 2 * n);
            CHECK_MESSAGE(memcmp(got, got + n, n * sizeof *got) == 0, "%s: who watches changes numbers",
                          which->name);
            compare_values(p, apart, batch, watch, options.watch_count, which->name);
        }
        for (int i = 0; i < MAX_INPUTS; i++) free(inputs[i]);
        reference_close(&r);
        free(got);
    }
    close_subject(&s);
}

static void every_case(void)
{
    for (int c = 0; c < CASES; c += slow_here() || TEST_EMULATOR ? 12 : cpu_here() ? 1 : 6)
        watch_some(&cases[c].model, DML_F32, 1);
}
EACH_BACKEND(every_case)

static void random_graphs(void)
{
    const model m = { "random graph", random_graph, 3 };
    const unsigned most = slow_here() || TEST_EMULATOR ? 1 : cpu_here() ? 40 : 4;
    for (graph_seed = 1; graph_seed <= most; graph_seed++) {
        watch_some(&m, DML_F32, 1 + graph_seed % 4);
        watch_some(&m, graph_seed % 2 ? DML_BF16 : DML_F16, 1 + graph_seed % 4);
        if (!test__ok) printf("that was graph %u\n", graph_seed);
    }
}
EACH_BACKEND(random_graphs)

/* ---- what it is for ---- */

enum { IN = 4, CLASSES = 3, BATCH = 4 };
static const float rows_in[BATCH * IN] = { 1, 0.5f, -1, 0.25f, 0.5f, -2,   0, 1,
                                           2, 1,    0,  -1,    0.5f, 0.5f, 1, -0.5f };
static const int32_t targets[BATCH] = { 0, 2, 1, 1 };

typedef struct heads {
    dml_context *context;
    dml_node *hidden, *scores, *best, *first, *second, *loss, *after;
} heads;

static heads build_heads(void)
{
    heads h;
    h.context = open_here(&(dml_options){ .threads = 1, .seed = 3 });
    dml_graph *g = dml_graph_create(h.context);
    dml_node *x = dml_input(g, "x", DML_F32, IN), *t = dml_input(g, "t", DML_I32);
    h.hidden = dml_dense(x, 5);
    dml_node *active = dml_relu(h.hidden);
    h.scores = dml_dense(active, CLASSES);
    h.best = dml_argmax(h.scores, -1, false);
    h.first = dml_softmax_cross_entropy(h.scores, t);
    h.second =
        dml_batch_mean(dml_mean(dml_square(dml_sub(dml_dense(active, IN), x)), dml_all_axes(), false), NULL);
    h.loss = dml_add(h.first, dml_affine(h.second, 0.5f, 0));
    h.after = dml_affine(h.loss, 2, 0);
    return h;
}

/* The terms of a loss, scores, and what the loss doesn't need, of each step. */
static void terms_of_a_loss(void)
{
    heads h = build_heads();
    dml_node *watch[] = { h.hidden, h.scores, h.best, h.first, h.second, h.after };
    dml_trainer_options options = {
        .batch = BATCH, .optimizer = dml_sgd(0.1f, 0), .watch = watch, .watch_count = 6
    };
    dml_trainer *t = dml_trainer_create(h.loss, &options);
    dml_program *scores = dml_compile(h.scores, &(dml_program_options){ .batch = BATCH });
    CHECK_MESSAGE(t && scores, "%s", dml_error(h.context));
    for (int step = 0; step < 3; step++) {
        const int rows = BATCH - step;
        float want[BATCH * CLASSES], got[BATCH * CLASSES], loss, first, second, after;
        int32_t best[BATCH];
        CHECK_INT(dml_program_run(scores, rows, DML_INPUTS(rows_in), want), DML_OK);
        CHECK_INT(dml_trainer_step(t, rows, DML_INPUTS(rows_in, targets), &loss), DML_OK);
        dml_program *p = dml_trainer_program(t);
        CHECK_INT(dml_program_read(p, h.scores, got), DML_OK);
        CHECK_INT(dml_program_read(p, h.first, &first), DML_OK);
        CHECK_INT(dml_program_read(p, h.second, &second), DML_OK);
        CHECK_INT(dml_program_read(p, h.after, &after), DML_OK);
        CHECK_INT(dml_program_read(p, h.best, best), DML_OK);
        for (int i = 0; i < rows * CLASSES; i++) CHECK_NEAR(got[i], want[i], 1e-6);
        CHECK_NEAR(first + 0.5f * second, loss, 1e-6);
        CHECK_NEAR(after, 2 * loss, 1e-6);
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < CLASSES; c++) CHECK(got[r * CLASSES + best[r]] >= got[r * CLASSES + c]);
        CHECK_INT(dml_program_read(p, h.loss, &after), DML_OK); /* the output, too */
        CHECK(after == loss);
    }
    dml_close(h.context);
}
EACH_BACKEND(terms_of_a_loss)

static void other_outputs(void)
{
    heads h = build_heads();
    dml_node *watch[] = { h.scores, h.hidden };
    float hidden[BATCH * 5], alone[BATCH * 5], scores[BATCH * CLASSES];
    int32_t best[BATCH];
    dml_program *p =
        dml_compile(h.best, &(dml_program_options){ .batch = BATCH, .watch = watch, .watch_count = 2 });
    dml_program *q = dml_compile(h.hidden, &(dml_program_options){ .batch = BATCH });
    CHECK_INT(dml_program_inputs(p), 1);
    CHECK_INT(dml_program_run(p, BATCH, DML_INPUTS(rows_in), best), DML_OK);
    CHECK_INT(dml_program_run(q, BATCH, DML_INPUTS(rows_in), alone), DML_OK);
    CHECK_INT(dml_program_read(p, h.hidden, hidden), DML_OK);
    CHECK_INT(dml_program_read(p, h.scores, scores), DML_OK);
    for (int i = 0; i < BATCH * 5; i++) CHECK(hidden[i] == alone[i]);
    for (int r = 0; r < BATCH; r++)
        for (int c = 0; c < CLASSES; c++) CHECK(scores[r * CLASSES + best[r]] >= scores[r * CLASSES + c]);
    if (cpu_here()) {
        dml_program *own = dml_compile(
            h.best,
            &(dml_program_options){ .batch = BATCH, .own_thread = true, .watch = watch, .watch_count = 2 });
        CHECK_INT(dml_program_read(own, h.hidden, hidden), DML_ERROR_STATE);
        dml_program_clear_error(own);
        CHECK_INT(dml_program_run(own, BATCH, DML_INPUTS(rows_in), NULL), DML_OK);
        CHECK_INT(dml_program_read(own, h.hidden, hidden), DML_OK);
        for (int i = 0; i < BATCH * 5; i++) CHECK(hidden[i] == alone[i]);
    }
    dml_close(h.context);
}
EACH_BACKEND(other_outputs)

/* A rank whose share of a step is no samples has nothing to read, nor what it read before. */
static dml_status finish_with_one_more(void *state, dml_trainer *trainer, double *samples)
{
    (void)state, (void)trainer;
    *samples += 1; /* another rank's */
    return DML_OK;
}

static void a_step_without_samples(void)
{
    backend_here = find_backend("cpu");
    heads h = build_heads();
    dml_node *watch[] = { h.first };
    float first;
    dml_trainer *t = dml_trainer_create(
        h.loss, &(dml_trainer_options){ .batch = BATCH, .watch = watch, .watch_count = 1 });
    CHECK_INT(dml_trainer_sync(t, (dml_sync){ .finish = finish_with_one_more, .ranks = 2 }), DML_OK);
    for (int rows = BATCH; rows >= 0; rows -= BATCH) {
        CHECK_INT(dml_trainer_step(t, rows, DML_INPUTS(rows_in, targets), NULL), DML_OK);
        CHECK_INT(dml_program_read(dml_trainer_program(t), h.first, &first), rows ? DML_OK : DML_ERROR_STATE);
    }
    CHECK_CONTAINS(dml_error(h.context), "no run of samples that ended well");
    dml_close(h.context);
}

/* ---- what is refused ---- */

#define REFUSED(call, status, sentence)                                                                      \
    do {                                                                                                     \
        CHECK_INT(call, status);                                                                             \
        CHECK_CONTAINS(dml_error(h.context), sentence);                                                      \
        dml_clear_error(h.context);                                                                          \
    } while (0)

static void refused(void)
{
    backend_here = find_backend("cpu");
    heads h = build_heads(), other = build_heads();
    dml_graph *g = dml_node_graph(h.loss);
    dml_node *x = dml_graph_find(g, "x"), *w = dml_graph_find(g, "dense_1.weight");
    dml_node *shaped = dml_reshape(x, dml_shape_of(2, 2)), *of_w = dml_flatten(w);
    float values[BATCH * IN];
    const struct {
        dml_node *node;
        const char *sentence;
    } bad[] = { { NULL, "node 2 of the 2 to watch is NULL" },
                { other.hidden, "node 2 of the 2 to watch is of another graph" },
                { x, "'x' can't be watched: it is what the caller gives as an input" },
                { shaped, "can't be watched: it is what the caller gives" },
                { w, "'dense_1.weight' can't be watched: dml_parameter_read reads a parameter" },
                { of_w, "can't be watched: dml_parameter_read" } };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dml_node *watch[] = { h.scores, bad[i].node };
        dml_program_options options = { .batch = BATCH, .watch = watch, .watch_count = 2 };
        REFUSED(dml_compile(h.scores, &options) != NULL, false, bad[i].sentence);
        REFUSED(dml_trainer_create(
                    h.loss, &(dml_trainer_options){ .batch = BATCH, .watch = watch, .watch_count = 2 }) !=
                    NULL,
                false, bad[i].sentence);
    }
    REFUSED(dml_compile(h.scores, &(dml_program_options){ .batch = 1, .watch_count = 2 }) != NULL, false,
            "2 nodes to watch were named, in an array that is NULL");
    REFUSED(dml_compile(h.scores, &(dml_program_options){ .batch = 1, .watch_count = -1 }) != NULL, false,
            "-1 nodes to watch were named");
    dml_node *watch[] = { h.scores };
    dml_trainer *t = dml_trainer_create(
        h.loss, &(dml_trainer_options){ .batch = BATCH, .watch = watch, .watch_count = 1 });
    dml_program *p = dml_trainer_program(t);
    CHECK_INT(dml_program_read(NULL, h.scores, values), DML_ERROR_ARGUMENT);
    REFUSED(dml_program_read(p, h.scores, values), DML_ERROR_STATE,
            "the value of 'dense_2' asked for, but there was no run");
    CHECK_INT(dml_trainer_step(t, BATCH, DML_INPUTS(rows_in, targets), NULL), DML_OK);
    CHECK_INT(dml_program_read(p, h.scores, values), DML_OK);
    REFUSED(dml_program_read(p, h.hidden, values), DML_ERROR_ARGUMENT,
            "the value of 'dense_1' asked for, which this program doesn't keep: name it in .watch");
    REFUSED(dml_program_read(p, h.after, values), DML_ERROR_ARGUMENT, "doesn't keep");
    REFUSED(dml_program_read(p, NULL, values), DML_ERROR_ARGUMENT, "of a node that is NULL");
    REFUSED(dml_program_read(p, h.scores, NULL), DML_ERROR_ARGUMENT, "with NULL for its place");
    REFUSED(dml_program_read(p, other.scores, values), DML_ERROR_ARGUMENT, "of a node of another graph");
    CHECK_INT(dml_trainer_step(t, 99, DML_INPUTS(rows_in, targets), NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_program_read(p, h.scores, values), DML_ERROR_ARGUMENT); /* an error sticks */
    dml_clear_error(h.context);
    CHECK_INT(dml_program_read(p, h.scores, values), DML_OK); /* a run that was refused left all as it was */
    dml_close(h.context);
    dml_close(other.context);
}

int main(void)
{
    RUN_EACH(every_case);
    RUN_EACH(random_graphs);
    RUN_EACH(terms_of_a_loss);
    RUN_EACH(other_outputs);
    RUN(a_step_without_samples);
    RUN(refused);
    return test_report("graph/watch");
}
