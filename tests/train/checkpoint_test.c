/* Checkpoints: what comes back, on every backend, and what is refused. */
#include "train/checkpoint.h"

#include "base/os_thread.h"
#include "base/safetensors.h"
#include "ops/op_activation.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "graph/weights.h"
#include "train/trainer_internal.h"

#include "../graph/backends.h"
#include "update_reference.h"

#include <locale.h>
#include <unistd.h>

enum { BATCH = 8, IN = 3, CLASSES = 4, MOST = 256 };

static char path[256];

typedef struct model {
    dml_context *context;
    dml_trainer *trainer;
    dml_program *predict;
    size_t count, states; /* elements of w and of each state vector */
} model;

/* `hidden` units; negative: as many, with the first layer frozen. */
static model build_with(const dml_options *options, int hidden, dml_optimizer optimizer)
{
    model m;
    memset(&m, 0, sizeof m);
    m.context = open_here(options);
    dml_graph *graph = dml_graph_create(m.context);
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *t = dml_input(graph, "t", DML_I32);
    dml_node *logits = dml_dense(dml_tanh(dml_dense(x, abs(hidden))), CLASSES);
    if (hidden < 0) dml_parameter_train(dml_graph_find(graph, "dense_1.weight"), false);
    m.trainer = dml_trainer_create(dml_softmax_cross_entropy(logits, t),
                                   &(dml_trainer_options){ .batch = BATCH, .optimizer = optimizer });
    m.predict = dml_compile(logits, &(dml_program_options){ .batch = BATCH });
    m.count = dml_trainer_count(m.trainer, DML_PARAMETERS);
    m.states = dml_trainer_count(m.trainer, DML_OPTIMIZER_STATE);
    return m;
}

static model build(uint64_t seed, int hidden, float momentum)
{
    const dml_options options = { .threads = 1, .seed = seed };
    const model m = build_with(&options, hidden, dml_sgd(0.1f, momentum));
    CHECK_STRING(dml_error(m.context), "");
    return m;
}

static float step(model m, unsigned state)
{
    float x[BATCH * IN], loss = 0;
    int32_t t[BATCH];
    test_fill(&state, x, BATCH * IN);
    for (int i = 0; i < BATCH; i++) t[i] = (int32_t)(test_random(&state) % CLASSES);
    CHECK_INT(dml_trainer_step(m.trainer, BATCH, DML_INPUTS(x, t), &loss), DML_OK);
    return loss;
}

static void predict(model m, float y[BATCH * CLASSES])
{
    float x[BATCH * IN];
    unsigned state = 5;
    test_fill(&state, x, BATCH * IN);
    CHECK_INT(dml_program_run(m.predict, BATCH, DML_INPUTS(x), y), DML_OK);
}

/* ---- what comes back ---- */

static void training_goes_on_as_if_it_had_never_stopped(void)
{
    const int steps = slow_here() ? 2 : 5;
    for (int frozen = 0; frozen < 2; frozen++) {
        float y[2][BATCH * CLASSES];
        model a = build(1, frozen ? -5 : 5, 0.9f);
        for (int s = 1; s <= steps; s++) step(a, (unsigned)s);
        CHECK_INT(dml_trainer_save(a.trainer, path), DML_OK);
        model b = build(2, frozen ? -5 : 5, 0.9f); /* other initial values, all of which the file replaces */
        step(b, 77);
        CHECK_INT(dml_trainer_load(b.trainer, path), DML_OK);
        CHECK_INT(dml_trainer_steps(b.trainer), steps);
        CHECK(b.context->seed == 1);
        CHECK_INT(b.states, b.count - (frozen ? 15 : 0));
        predict(a, y[0]);
        predict(b, y[1]);
        CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0);
        for (unsigned s = 6; s < 6 + (unsigned)steps; s++) {
            const float in_a = step(a, s), in_b = step(b, s);
            CHECK_MESSAGE(memcmp(&in_a, &in_b, sizeof in_a) == 0, "step %u: %.9g, not %.9g", s, (double)in_b,
                          (double)in_a);
        }
        for (int v = 0; v < 3; v++)
            CHECK(memcmp(dml_trainer_get(a.trainer, v, 0, a.states),
                         dml_trainer_get(b.trainer, v, 0, b.states), a.states * sizeof(float)) == 0);
        CHECK(memcmp(dml_trainer_get(a.trainer, DML_PARAMETERS, 0, a.count),
                     dml_trainer_get(b.trainer, DML_PARAMETERS, 0, b.count), a.count * sizeof(float)) == 0);
        dml_close(a.context);
        dml_close(b.context);
    }
}
EACH_BACKEND(training_goes_on_as_if_it_had_never_stopped)

/* Nothing that g held counts after loading, nor does it wait for anything. */
static void loading_begins_anew(void)
{
    backend_here = find_backend("cpu");
    model m = build(1, 5, 0.9f);
    CHECK_INT(dml_trainer_save(m.trainer, path), DML_OK);
    m.trainer->held = 3;
    m.trainer->pending = true;
    m.trainer->spoiled = false;
    CHECK_INT(dml_trainer_load(m.trainer, path), DML_OK);
    CHECK(m.trainer->held == 0 && !m.trainer->pending);
    CHECK_INT(dml_trainer_update(m.trainer), DML_ERROR_STATE); /* g was of other weights */
    dml_clear_error(m.context);
    CHECK_INT(dml_graph_load(m.trainer->program->graph, path),
              DML_OK); /* the model alone, of the same file */
    dml_close(m.context);
}

static float float_of(unsigned bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void check_numbers(int runs)
{
    backend_here = find_backend("cpu");
    const dml_options options = { .threads = 1, .seed = UINT64_MAX }, others = { .threads = 1 };
    const dml_optimizer first = {
        .kind = DML_SGD, .lr = 0.1f / 3, .momentum = 0.9f, .weight_decay = 1e-3f / 7, .nesterov = true
    };
    model a = build_with(&options, 2, first), b = build_with(&others, 2, dml_sgd(1, 0.1f));
    unsigned random = 3;
    for (int i = 0; i < runs; i++) {
        dml_optimizer *o = &a.trainer->optimizer;
        if (i > 0) {
            o->nesterov = i % 2;
            o->momentum = float_of(1 + test_random(&random) % 0x3F7FFFFF); /* down to the smallest */
            o->weight_decay = float_of(test_random(&random) % 0x49000000);
            o->lr = float_of(test_random(&random) % 0x49742400);
        }
        if (i == 1) o->lr = 1e6f, o->weight_decay = 1e6f, o->momentum = float_of(0x3F7FFFFF);
        if (i == 2) o->lr = 0, o->weight_decay = 0, o->momentum = float_of(1);
        if (i == 3) o->lr = 16777215.0f / 32, o->weight_decay = 1e-5f, o->momentum = 0.123456789f;
        a.trainer->steps = i % 2 ? UINT64_MAX - (uint64_t)i : (uint64_t)i * 1000003;
        a.context->seed = i ? (uint64_t)random << 29 : UINT64_MAX;
        CHECK_INT(dml_trainer_save(a.trainer, path), DML_OK);
        CHECK_INT(dml_trainer_load(b.trainer, path), DML_OK);
        const dml_optimizer *got = &b.trainer->optimizer;
        CHECK_MESSAGE(memcmp(&got->lr, &o->lr, sizeof o->lr) == 0, "lr %.9g, not %.9g", (double)got->lr,
                      (double)o->lr);
        CHECK_MESSAGE(got->momentum == o->momentum, "momentum %.9g, not %.9g", (double)got->momentum,
                      (double)o->momentum);
        CHECK_MESSAGE(got->weight_decay == o->weight_decay, "weight decay %.9g, not %.9g",
                      (double)got->weight_decay, (double)o->weight_decay);
        CHECK(got->nesterov == o->nesterov && got->kind == DML_SGD);
        CHECK(b.context->seed == a.context->seed);
        CHECK(dml_trainer_steps(b.trainer) == dml_trainer_steps(a.trainer));
        if (dml_status_of(b.context)) break;
    }
    CHECK_STRING(dml_error(b.context), "");
    CHECK_NEAR(dml_trainer_lr(b.trainer), a.trainer->optimizer.lr, 0);
    dml_close(a.context);
    dml_close(b.context);
}

static void numbers_come_back_exactly(void)
{
    check_numbers(12);
}

/* Sets a locale, which is made here if the system has none like it but knows how. */
static bool use_locale(const char *name)
{
    char full[32], command[1000];
    snprintf(full, sizeof full, "%s.UTF-8", name);
    if (setlocale(LC_ALL, full)) return true;
    snprintf(command, sizeof command,
             "mkdir -p %s.locale && localedef -i %s -f UTF-8 %s.locale/%s >/dev/null 2>&1", path, name, path,
             full);
    const int made = system(command);
    snprintf(command, sizeof command, "%s.locale", path);
    setenv("LOCPATH", command, 1);
    const bool found = made == 0 && setlocale(LC_ALL, full);
    unsetenv("LOCPATH");
    snprintf(command, sizeof command, "rm -rf %s.locale", path);
    if (system(command) != 0) printf("can't remove %s.locale\n", path);
    return found;
}

/* Decimal points of a comma, and of a character of two bytes. */
static void numbers_in_other_locales(void)
{
    static const char *const names[] = { "de_DE", "ps_AF" };
    int tried = 0;
    for (int i = 0; i < 2; i++) {
        /* musl knows every name, and one decimal point */
        if (!use_locale(names[i]) || strcmp(localeconv()->decimal_point, ".") == 0) continue;
        tried++;
        check_numbers(5);
    }
    setlocale(LC_ALL, "C");
    if (!tried) SKIP("there are no locales de_DE.UTF-8 or ps_AF.UTF-8, nor a localedef to make them");
}

/* ---- what is refused ---- */

static size_t read_file(unsigned char *bytes, size_t capacity)
{
    FILE *file = fopen(path, "rb");
    const size_t n = file ? fread(bytes, 1, capacity, file) : 0;
    if (file) fclose(file);
    return n;
}

static void write_file(const unsigned char *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, n, file) == n);
    if (file) fclose(file);
}

/* All that loading could change. */
typedef struct remembered {
    float vector[3][MOST];
    dml_optimizer optimizer;
    uint64_t steps, seed;
    double held;
} remembered;

static void remember(model m, remembered *r)
{
    memset(r, 0, sizeof *r);
    for (int v = 0; v < dml_trainer_vectors(m.trainer); v++) {
        const size_t n = dml_trainer_count(m.trainer, v);
        CHECK(n <= MOST);
        memcpy(r->vector[v], dml_trainer_get(m.trainer, v, 0, n), n * sizeof(float));
    }
    r->optimizer.lr = m.trainer->optimizer.lr;
    r->optimizer.momentum = m.trainer->optimizer.momentum;
    r->optimizer.weight_decay = m.trainer->optimizer.weight_decay;
    r->optimizer.nesterov = m.trainer->optimizer.nesterov;
    r->steps = m.trainer->steps;
    r->seed = m.context->seed;
    r->held = m.trainer->held;
}

/* Loading must fail so, with a sentence that says `why`, and leave the trainer as it was. */
static void fails(model m, dml_status status, const char *why)
{
    static remembered before, after;
    dml_clear_error(m.context);
    m.trainer->held = 3;
    remember(m, &before);
    CHECK_INT(dml_trainer_load(m.trainer, path), status);
    CHECK_CONTAINS(dml_error(m.context), why);
    dml_clear_error(m.context);
    remember(m, &after);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    m.trainer->held = 0;
}

static void refuses(model m, const char *why)
{
    fails(m, DML_ERROR_FORMAT, why);
}

static void refuses_what_is_damaged(void)
{
    backend_here = find_backend("cpu");
    model m = build(1, 2, 0.9f);
    static unsigned char good[4096], bad[4097];
    step(m, 1);
    CHECK_INT(dml_trainer_save(m.trainer, path), DML_OK);
    step(m, 2);
    m.context->seed = 9;
    dml_trainer_set_lr(m.trainer, 0.7f);
    const size_t n = read_file(good, sizeof good);
    CHECK(n > 100 && n < sizeof good);

    for (size_t cut = 0; cut < n; cut++) { /* truncated anywhere */
        write_file(good, cut);
        refuses(m, path);
    }
    memcpy(bad, good, n);
    write_file(bad, n + 1);
    refuses(m, "damaged");
    for (size_t i = 0; i < n; i++) { /* any bit flipped is seen, whatever it hits */
        memcpy(bad, good, n);
        bad[i] ^= (unsigned char)(1u << (i % 8));
        write_file(bad, n);
        refuses(m, path);
    }
    write_file((const unsigned char *)"\x89PNG\r\n\x1a\n, an image", 18);
    refuses(m, "is no safetensors file");
    write_file(good, n);
    CHECK_INT(dml_trainer_load(m.trainer, path), DML_OK);
    CHECK_INT(dml_trainer_steps(m.trainer), 1);
    dml_close(m.context);
}

/* Every optimizer goes on as if it had never stopped, whatever numbers the trainer began with. */
static void every_optimizer_goes_on(void)
{
    for (int v = 0; v < UPDATE_VARIANTS; v++) {
        const dml_options options = { .threads = 1, .seed = 3 }, others = { .threads = 1, .seed = 4 };
        dml_optimizer other = update_variants[v];
        other.lr = 0.5f, other.weight_decay = 0.25f, other.beta1 = 0.25f, other.epsilon = 0.125f;
        model a = build_with(&options, 4, update_variants[v]), b = build_with(&others, 4, other);
        step(a, 1), step(a, 2);
        CHECK_INT(dml_trainer_save(a.trainer, path), DML_OK);
        CHECK_INT(dml_trainer_load(b.trainer, path), DML_OK);
        CHECK_MESSAGE(step(a, 3) == step(b, 3) && step(a, 4) == step(b, 4), "variant %d", v);
        for (int k = 0; k < dml_trainer_vectors(a.trainer); k++) {
            const size_t count = dml_trainer_count(a.trainer, k);
            CHECK_MESSAGE(memcmp(dml_trainer_get(a.trainer, k, 0, count),
                                 dml_trainer_get(b.trainer, k, 0, count), count * sizeof(float)) == 0,
                          "variant %d, vector %d", v, k);
        }
        model sgd = build(1, 4, 0.9f);
        if (update_variants[v].kind != DML_SGD) refuses(sgd, "this trainer's optimizer is sgd");
        dml_close(a.context), dml_close(b.context), dml_close(sgd.context);
    }
}
EACH_BACKEND(every_optimizer_goes_on)

static void refuses_another_model_or_optimizer(void)
{
    model m = build(1, 5, 0.9f), wider = build(1, 6, 0.9f), plain = build(1, 5, 0.0f),
          frozen = build(1, -5, 0.9f);
    CHECK_INT(dml_trainer_save(m.trainer, path), DML_OK);
    refuses(wider, "another model");
    refuses(plain, "trained by sgd with momentum 0.9");
    refuses(plain, "1 state vector, this trainer has momentum 0 and 0; is the momentum the same?");
    CHECK_INT(dml_trainer_load(frozen.trainer, path), DML_OK); /* it has all, and more */
    CHECK_INT(dml_trainer_save(frozen.trainer, path), DML_OK);
    refuses(m,
            "holds a run that trained other parameters: it has no 'dml.velocity.dense_1.weight', which this "
            "one keeps as 5 x 3; dml_graph_load takes the model without"); /* but not the other way round */
    CHECK_INT(dml_trainer_save(plain.trainer, path), DML_OK);
    refuses(m, "momentum 0 and 0 state vectors, this trainer has momentum 0.9");
    CHECK_INT(dml_graph_save(m.trainer->program->graph, path), DML_OK);
    refuses(m, "holds no training run; a model alone is loaded by dml_graph_load");
    dml_close(m.context);
    dml_close(wider.context);
    dml_close(plain.context);
    dml_close(frozen.context);
}
EACH_BACKEND(refuses_another_model_or_optimizer)

/* ---- files that hold anything ---- */

static model two_by_six(void)
{
    model m;
    memset(&m, 0, sizeof m);
    m.context = open_here(NULL);
    dml_node *p = dml_parameter(dml_graph_create(m.context), "p", dml_init_uniform(-1, 1), 2, 6);
    m.trainer = dml_trainer_create(dml_mean_squared_error(p, p),
                                   &(dml_trainer_options){ .batch = 1, .optimizer = dml_sgd(0.1f, 0.9f) });
    CHECK_MESSAGE(m.trainer, "%s", dml_error(m.context));
    return m;
}

/* A checkpoint for two_by_six, as before skipped steps were counted, but for one of its texts, `key`, which
   is `value`; NULL: it has none. */
static void write_run(model m, const dml__tensor *tensors, int count, const char *key, const char *value)
{
    static const dml__metadata usual[] = { { "dml.optimizer", "sgd" }, { "dml.lr", "0.5" },
                                           { "dml.momentum", "0.25" }, { "dml.weight_decay", "1e-05" },
                                           { "dml.nesterov", "1" },    { "dml.seed", "17" },
                                           { "dml.step", "29" } };
    dml__metadata pairs[8];
    int n = 0;
    for (int i = 0; i < 7; i++)
        if (!key || strcmp(usual[i].key, key) != 0) pairs[n++] = usual[i];
    if (value) {
        pairs[n].key = key;
        pairs[n++].value = value;
    }
    unsigned char bytes[2048]; /* not dml__safetensors_save, which waits for the disk */
    size_t size;
    CHECK_INT(dml__safetensors_store(&m.context->memory, bytes, sizeof bytes, &size, tensors, count, pairs, n,
                                     &m.context->error),
              DML_OK);
    write_file(bytes, size);
}

static void refuses_other_shapes(void)
{
    static const float data[12] = { 1, 2, 3 };
    static const int dims[][3] = { { 2, 6 }, { 3, 4 }, { 12 }, { 2, 2, 3 }, { 6, 2 }, { 1, 12 } };
    static const int ndims[] = { 2, 2, 1, 3, 2, 2 };
    model m = two_by_six();
    dml__tensor tensors[] = { { "p", DML_F32, 2, dims[0], data },
                              { "dml.velocity.p", DML_F32, 2, dims[0], data } };
    for (int i = 0; i < 12; i++) { /* the same number of elements, for each of the two */
        tensors[i % 2].ndim = ndims[i / 2];
        tensors[i % 2].dims = dims[i / 2];
        write_run(m, tensors, 2, NULL, NULL);
        if (i / 2 == 0) CHECK_INT(dml_trainer_load(m.trainer, path), DML_OK);
        if (i / 2 > 0) refuses(m, i % 2 ? "'dml.velocity.p' is " : "'p' is ");
        if (i / 2 == 1) refuses(m, "is 3 x 4, this model's is 2 x 6");
        tensors[i % 2].ndim = 2;
        tensors[i % 2].dims = dims[0];
    }
    for (int i = 0; i < 2; i++) {
        tensors[i].dtype = DML_I32;
        write_run(m, tensors, 2, NULL, NULL);
        refuses(m, "as I32; convert it to F32");
        tensors[i].dtype = DML_F32;
        write_run(m, tensors + 1 - i, 1, NULL, NULL);
        refuses(m, i ? "it has no 'dml.velocity.p'" : "it has no 'p'");
    }
    write_run(m, tensors, 2, "dml.skipped", "4");
    CHECK_INT(dml_trainer_load(m.trainer, path), DML_OK);
    CHECK_INT(dml_trainer_skipped(m.trainer), 4);
    write_run(m, tensors, 2, NULL, NULL);
    CHECK_INT(dml_trainer_load(m.trainer, path), DML_OK);
    CHECK_INT(dml_trainer_skipped(m.trainer), 0);
    CHECK(m.context->seed == 17 && dml_trainer_steps(m.trainer) == 29 && m.trainer->optimizer.nesterov);
    CHECK(m.trainer->optimizer.lr == 0.5f && m.trainer->optimizer.weight_decay == 1e-5f);
    for (int v = 0; v < 3; v += 2)
        CHECK(memcmp(dml_trainer_get(m.trainer, v, 0, 12), data, sizeof data) == 0);
    dml_close(m.context);
}
EACH_BACKEND(refuses_other_shapes)

static void refuses_numbers_that_are_none(void)
{
    static const struct {
        const char *key, *value, *part;
    } bad[] = {
        { "dml.optimizer", NULL, "holds no training run" },
        { "dml.optimizer", "adam", "was trained by adam, this trainer's optimizer is sgd" },
        { "dml.lr", NULL, "lacks one of the numbers" },
        { "dml.lr", "", "one that can't be" },
        { "dml.lr", "-0.1", "lacks" },
        { "dml.lr", "0.1.", "lacks" },
        { "dml.lr", "0,1", "lacks" },
        { "dml.lr", ".", "lacks" },
        { "dml.lr", "e5", "lacks" },
        { "dml.lr", "1e", "lacks" },
        { "dml.lr", "1e+-5", "lacks" },
        { "dml.lr", "1e100", "lacks" },
        { "dml.lr", "1:", "lacks" },
        { "dml.lr", "inf", "lacks" },
        { "dml.lr", "nan", "lacks" },
        { "dml.lr", "1e7", "lr 1e+07" },
        { "dml.lr", "00000000000000000000000000000000000000001", "lacks" }, /* 41 digits */
        { "dml.momentum", NULL, "lacks" },
        { "dml.momentum", "1", "below 1" },
        { "dml.momentum", "x", "lacks" },
        { "dml.momentum", "0", "momentum 0 and 0 state vectors" },
        { "dml.weight_decay", NULL, "lacks" },
        { "dml.weight_decay", "0x1", "lacks" },
        { "dml.nesterov", NULL, "lacks" },
        { "dml.nesterov", "2", "lacks" },
        { "dml.nesterov", "true", "lacks" },
        { "dml.seed", NULL, "lacks" },
        { "dml.seed", "18446744073709551616", "lacks" },
        { "dml.seed", "-1", "lacks" },
        { "dml.step", NULL, "lacks" },
        { "dml.step", "99999999999999999999", "lacks" },
        { "dml.step", "5 ", "lacks" },
        { "dml.step", "", "lacks" },
        { "dml.skipped", "", "lacks one of the numbers of a run, dml.skipped" },
        { "dml.skipped", "-1", "lacks" },
    };
    static const struct {
        const char *text;
        float lr;
    } good[] = { { "1e6", 1e6f },     { "0.1", 0.1f },   { "1E6", -1 },
                 { "1e+2", 100 },     { "10e-99", 0 },   { "2.50", 2.5f },
                 { ".5", 0.5f },      { "0", 0 },        { "5.", 5 },
                 { "1e-45", 1e-45f }, { "0.000e99", 0 }, { "0000000000000000000000000000000000000001", 1 } };
    static const float data[12];
    static const int dims[2] = { 2, 6 };
    const dml__tensor tensors[] = { { "p", DML_F32, 2, dims, data },
                                    { "dml.velocity.p", DML_F32, 2, dims, data } };
    backend_here = find_backend("cpu");
    model m = two_by_six();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_run(m, tensors, 2, bad[i].key, bad[i].value);
        refuses(m, bad[i].part);
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        write_run(m, tensors, 2, "dml.lr", good[i].text);
        if (good[i].lr < 0) refuses(m, "lacks");
        if (good[i].lr < 0) continue;
        CHECK_INT(dml_trainer_load(m.trainer, path), DML_OK);
        CHECK_MESSAGE(dml_trainer_lr(m.trainer) == good[i].lr, "%s: %.9g", good[i].text,
                      (double)dml_trainer_lr(m.trainer));
    }
    write_run(m, tensors, 2, "dml.step", "18446744073709551615");
    CHECK_INT(dml_trainer_load(m.trainer, path), DML_OK);
    CHECK(dml_trainer_steps(m.trainer) == UINT64_MAX);
    dml_close(m.context);
}

/* ---- the program's own texts ---- */

static void set_note(model m, const char *key, const char *value)
{
    CHECK_MESSAGE(dml_trainer_set_note(m.trainer, key, value) == DML_OK, "%s", dml_error(m.context));
}

static void notes_go_with_a_run(void)
{
    static const char odd[] = "\"quoted\" \\ \n\x01 caf\xc3\xa9";
    char longest[256];
    memset(longest, 'x', 255);
    longest[255] = '\0';
    backend_here = find_backend("cpu");
    model a = build(1, 2, 0.9f), b = build(2, 2, 0.9f), c = build(3, 2, 0.9f);
    set_note(a, "best", "0.5");
    set_note(a, "gone", "x");
    set_note(a, "best", "0.25"); /* in its place */
    set_note(a, "gone", NULL);
    set_note(a, "never", NULL);
    set_note(a, "odd", odd);
    set_note(a, "empty", "");
    set_note(a, "best", dml_trainer_note(a.trainer, "best"));
    set_note(a, "a name of forty-seven bytes, as long as may be.", longest);
    CHECK_INT(dml_trainer_save(a.trainer, path), DML_OK);
    set_note(b, "stale", "of the run before");
    CHECK_INT(dml_trainer_load(b.trainer, path), DML_OK);
    CHECK_INT(dml_trainer_save(b.trainer, path), DML_OK);
    CHECK_INT(dml_trainer_load(c.trainer, path), DML_OK);
    model all[] = { a, b, c };
    for (int i = 0; i < 3; i++) {
        const dml_trainer *t = all[i].trainer;
        CHECK_STRING(dml_trainer_note(t, "best"), "0.25");
        CHECK_STRING(dml_trainer_note(t, "odd"), odd);
        CHECK_STRING(dml_trainer_note(t, "empty"), "");
        CHECK_STRING(dml_trainer_note(t, "a name of forty-seven bytes, as long as may be."), longest);
        CHECK(!dml_trainer_note(t, "gone") && !dml_trainer_note(t, "stale") &&
              !dml_trainer_note(t, "dml.seed"));
        CHECK(!dml_trainer_note(t, "") && !dml_trainer_note(t, NULL) && !dml_trainer_note(NULL, "best"));
        dml_close(all[i].context);
    }
}

static void notes_that_cannot_be(void)
{
    char key[48], value[257];
    memset(key, 'k', sizeof key);
    memset(value, 'v', sizeof value);
    key[47] = value[256] = '\0';
    char too_long[49];
    snprintf(too_long, sizeof too_long, "%sk", key);
    const struct {
        const char *key, *value, *part;
    } bad[] = {
        { "", "x", "the note \"\" can't be kept: its name needs 1 to 47 bytes" },
        { too_long, "x", "its name needs 1 to 47 bytes" },
        { "dml.step", "9", "the note \"dml.step\" can't be kept: names that begin with \"dml.\"" },
        { "xml.crc32c", "x", "have \"crc32c\" in them are the library's own" },
        { "k", value, "it has more than 255 bytes" },
        { "k\xff", "x", "not UTF-8" },
        { "k", "\xff", "not UTF-8" },
    };
    backend_here = find_backend("cpu");
    model m = two_by_six();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_INT(dml_trainer_set_note(m.trainer, bad[i].key, bad[i].value), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(m.context), bad[i].part);
        dml_clear_error(m.context);
        CHECK(!dml_trainer_note(m.trainer, bad[i].key));
    }
    CHECK_INT(dml_trainer_set_note(NULL, "k", "x"), DML_ERROR_ARGUMENT);
    for (int i = 0; i < 17; i++) {
        snprintf(key, sizeof key, "note %d", i);
        CHECK_INT(dml_trainer_set_note(m.trainer, key, key), i < 16 ? DML_OK : DML_ERROR_ARGUMENT);
    }
    CHECK_CONTAINS(dml_error(m.context), "the note \"note 16\" can't be kept: there are 16 others");
    dml_clear_error(m.context);
    set_note(m, "note 3", NULL);
    set_note(m, "note 16", "in its place");
    CHECK_INT(dml_trainer_save(m.trainer, path), DML_OK);
    set_note(m, "note 5", "changed");
    CHECK_INT(dml_trainer_load(m.trainer, path), DML_OK);
    CHECK_STRING(dml_trainer_note(m.trainer, "note 5"), "note 5");
    CHECK_STRING(dml_trainer_note(m.trainer, "note 16"), "in its place");

    /* Other tools' texts count if they can; a file that is refused brings none. */
    static const float data[12];
    static const int dims[2] = { 2, 6 };
    const dml__tensor tensors[] = { { "p", DML_F32, 2, dims, data },
                                    { "dml.velocity.p", DML_F32, 2, dims, data } };
    write_run(m, tensors, 1, "format", "pt");
    refuses(m, "it has no 'dml.velocity.p'");
    CHECK(!dml_trainer_note(m.trainer, "format"));
    write_run(m, tensors, 2, "format", "pt");
    CHECK_INT(dml_trainer_load(m.trainer, path), DML_OK);
    CHECK_STRING(dml_trainer_note(m.trainer, "format"), "pt");
    CHECK(!dml_trainer_note(m.trainer, "note 5"));
    write_run(m, tensors, 2, "format", value); /* too long */
    CHECK_INT(dml_trainer_load(m.trainer, path), DML_OK);
    CHECK(!dml_trainer_note(m.trainer, "format"));
    dml_close(m.context);
}

/* ---- memory, company, files ---- */

/* Counts, and refuses the call number `fail_at` (from 1). */
typedef struct counter {
    int calls, alive, fail_at;
} counter;

static void *count_allocate(void *user, size_t bytes)
{
    counter *c = (counter *)user;
    if (++c->calls == c->fail_at) return NULL;
    void *memory = malloc(bytes);
    c->alive += memory != NULL;
    return memory;
}

static void count_release(void *user, void *memory)
{
    counter *c = (counter *)user;
    c->alive -= memory != NULL;
    free(memory);
}

static void every_allocation_may_fail(void)
{
    counter c = { 0, 0, 0 };
    static unsigned char good[4096], now[4096];
    const dml_options options = { .threads = 1, .allocator = { count_allocate, count_release, &c } };
    backend_here = find_backend("cpu");
    model m = build_with(&options, 3, dml_sgd(0.1f, 0.9f));
    CHECK_STRING(dml_error(m.context), "");
    step(m, 1);
    CHECK_INT(dml_trainer_save(m.trainer, path), DML_OK);
    const size_t n = read_file(good, sizeof good);
    step(m, 2);
    const int alive = c.alive;
    for (int loading = 0; loading < 2; loading++) {
        bool done = false;
        int failed = 0;
        for (int at = 1; !done && at < 100; at++) {
            c.calls = 0;
            c.fail_at = at;
            if (loading) {
                static remembered before, after;
                remember(m, &before);
                done = dml_trainer_load(m.trainer, path) == DML_OK;
                remember(m, &after);
                CHECK((memcmp(&before, &after, sizeof before) == 0) == !done);
            } else {
                done = dml_trainer_save(m.trainer, path) == DML_OK;
                if (!done) CHECK(read_file(now, sizeof now) == n && memcmp(now, good, n) == 0);
            }
            CHECK(done == (c.calls < at));
            CHECK_INT(dml_status_of(m.context), done ? DML_OK : DML_ERROR_MEMORY);
            if (!done) CHECK_CONTAINS(dml_error(m.context), "no memory");
            CHECK_INT(c.alive, alive);
            dml_clear_error(m.context);
            failed += !done;
        }
        CHECK(done && failed >= 2);
        if (!loading) write_file(good, n); /* of other steps than m has taken */
    }
    CHECK_INT(dml_trainer_steps(m.trainer), 1);
    c.fail_at = 0;
    dml_close(m.context);
    CHECK_INT(c.alive, 0);
}

static void others_are_at_work(void)
{
    backend_here = find_backend("cpu");
    model m = build(1, 5, 0.9f);
    CHECK_INT(dml_trainer_save(m.trainer, path), DML_OK);
    step(m, 1);
    m.context->inside = dml__thread_self() + 1;
    CHECK_INT(dml_trainer_save(m.trainer, path), DML_ERROR_STATE);
    CHECK_INT(dml_trainer_check_save(m.trainer, "/nowhere/run.dml"), DML_ERROR_STATE);
    fails(m, DML_ERROR_STATE, "");
    CHECK(m.context->inside == dml__thread_self() + 1);
    m.context->inside = 0;
    int *readers = &m.trainer->program->graph->readers;
    *readers = 1;
    fails(m, DML_ERROR_STATE, "while programs predict on other threads");
    CHECK_INT(*readers, 1);
    CHECK_INT(dml_trainer_check_save(m.trainer, path), DML_OK);
    CHECK_INT(dml_trainer_save(m.trainer, path), DML_OK); /* which only reads */
    *readers = 0;
    CHECK_INT(dml_trainer_load(m.trainer, path), DML_OK);
    CHECK(*readers == 0 && m.context->inside == 0);
    dml_close(m.context);
}

static void says_what_the_system_says(void)
{
    backend_here = find_backend("cpu");
    model m = build(1, 5, 0.9f);
    CHECK_INT(dml_trainer_load(m.trainer, "/nowhere/run.dml"), DML_ERROR_IO);
    CHECK_CONTAINS(dml_error(m.context), "/nowhere/run.dml\": No such file");
    CHECK_INT(dml_trainer_save(m.trainer, path), DML_ERROR_IO); /* until it is cleared */
    CHECK_INT(dml_trainer_load(m.trainer, path), DML_ERROR_IO);
    dml_clear_error(m.context);
    CHECK_INT(dml_trainer_save(m.trainer, "/nowhere/run.dml"), DML_ERROR_IO);
    CHECK_CONTAINS(dml_error(m.context), "/nowhere/run.dml\": No such file");
    dml_clear_error(m.context);
    CHECK_INT(dml_trainer_check_save(m.trainer, "/nowhere/run.dml"), DML_ERROR_IO);
    CHECK_CONTAINS(dml_error(m.context), "/nowhere/run.dml\": No such file");
    dml_clear_error(m.context);
    CHECK_INT(dml_trainer_load(m.trainer, "/"), DML_ERROR_IO);
    CHECK_CONTAINS(dml_error(m.context), "no plain file");
    CHECK_INT(dml_trainer_load(NULL, path), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_load(m.trainer, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_save(NULL, path), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_save(m.trainer, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_check_save(NULL, path), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_trainer_check_save(m.trainer, NULL), DML_ERROR_ARGUMENT);
    dml_close(m.context);
}

int main(void)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/dml_checkpoint_test.%ld", folder ? folder : "/tmp", (long)getpid());
    RUN_EACH(training_goes_on_as_if_it_had_never_stopped);
    RUN(loading_begins_anew);
    RUN(numbers_come_back_exactly);
    RUN(numbers_in_other_locales);
    RUN(refuses_what_is_damaged);
    RUN_EACH(every_optimizer_goes_on);
    RUN_EACH(refuses_another_model_or_optimizer);
    RUN_EACH(refuses_other_shapes);
    RUN(refuses_numbers_that_are_none);
    RUN(notes_go_with_a_run);
    RUN(notes_that_cannot_be);
    RUN(every_allocation_may_fail);
    RUN(others_are_at_work);
    RUN(says_what_the_system_says);
    remove(path);
    return test_report("train/checkpoint");
}
