#include "train/checkpoint.h"

#include "../test.h"
#include "graph/op_activation.h"
#include "graph/op_dense.h"
#include "graph/op_loss.h"

#include <unistd.h>

enum { BATCH = 8, IN = 3, CLASSES = 4 };

static char path[256];

typedef struct model {
    dml_context *context;
    dml_trainer *trainer;
} model;

static model build(uint64_t seed, int hidden, float momentum)
{
    model m;
    dml_options options;
    memset(&options, 0, sizeof options);
    options.threads = 1;
    options.seed = seed;
    m.context = dml_open(&options);
    dml_graph *graph = dml_graph_create(m.context);
    dml_node *x = dml_input(graph, "x", DML_F32, IN), *t = dml_input(graph, "t", DML_I32);
    dml_node *loss = dml_softmax_cross_entropy(dml_dense(dml_tanh(dml_dense(x, hidden)), CLASSES), t);
    dml_trainer_options trainer_options;
    memset(&trainer_options, 0, sizeof trainer_options);
    trainer_options.batch = BATCH;
    trainer_options.optimizer = dml_sgd(0.1f, momentum);
    m.trainer = dml_trainer_create(loss, &trainer_options);
    CHECK_STRING(dml_error(m.context), "");
    return m;
}

static float step(model m, unsigned state)
{
    float x[BATCH * IN], loss = 0;
    int32_t t[BATCH];
    test_fill(&state, x, BATCH * IN);
    for (int i = 0; i < BATCH; i++) t[i] = (int32_t)(test_random(&state) % CLASSES);
    const void *inputs[] = { x, t };
    CHECK_INT(dml_trainer_step(m.trainer, BATCH, inputs, 2, &loss), DML_OK);
    return loss;
}

static void training_goes_on_as_if_it_had_never_stopped(void)
{
    model a = build(1, 5, 0.9f);
    for (unsigned s = 1; s <= 5; s++) step(a, s);
    CHECK_INT(dml_trainer_save(a.trainer, path), DML_OK);
    model b = build(2, 5, 0.9f); /* other initial values, all of which the file replaces */
    CHECK_INT(dml_trainer_load(b.trainer, path), DML_OK);
    CHECK_INT(dml_trainer_steps(b.trainer), 5);
    for (unsigned s = 6; s <= 10; s++) {
        const float in_a = step(a, s), in_b = step(b, s);
        CHECK_MESSAGE(memcmp(&in_a, &in_b, sizeof in_a) == 0, "step %u: %.9g, not %.9g", s, (double)in_b,
                      (double)in_a);
    }
    dml_close(a.context);
    dml_close(b.context);
}

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

/* Loading must fail with DML_ERROR_FORMAT, a sentence that says `why`, and leave the trainer as it was. */
static void refuses(model m, const char *why)
{
    const size_t count = dml_trainer_count(m.trainer, DML_PARAMETERS);
    float *before = (float *)malloc(count * sizeof *before);
    memcpy(before, dml_trainer_get(m.trainer, DML_PARAMETERS, 0, count), count * sizeof *before);
    const uint64_t steps = dml_trainer_steps(m.trainer);
    CHECK_INT(dml_trainer_load(m.trainer, path), DML_ERROR_FORMAT);
    CHECK_CONTAINS(dml_error(m.context), why);
    CHECK_CONTAINS(dml_error(m.context), path);
    dml_clear_error(m.context);
    CHECK_INT(dml_trainer_steps(m.trainer), steps);
    CHECK(memcmp(before, dml_trainer_get(m.trainer, DML_PARAMETERS, 0, count), count * sizeof *before) == 0);
    free(before);
}

static void refuses_what_is_not_its_own(void)
{
    model m = build(1, 5, 0.9f);
    static unsigned char good[4096], bad[4097];
    CHECK_INT(dml_trainer_save(m.trainer, path), DML_OK);
    const size_t n = read_file(good, sizeof good);
    CHECK(n > 100 && n < sizeof good);

    for (size_t cut = 0; cut < n; cut++) { /* truncated anywhere */
        write_file(good, cut);
        refuses(m, "");
    }
    memcpy(bad, good, n);
    write_file(bad, n + 1);
    refuses(m, "damaged");
    for (size_t i = 0; i < n; i++) { /* any bit flipped is seen, whatever it hits */
        memcpy(bad, good, n);
        bad[i] ^= (unsigned char)(1u << (i % 8));
        write_file(bad, n);
        refuses(m, "");
    }
    write_file((const unsigned char *)"\x89PNG\r\n\x1a\n, an image", 18);
    refuses(m, "is no safetensors file");
    dml_close(m.context);
}

static void refuses_another_model(void)
{
    model m = build(1, 5, 0.9f), wider = build(1, 6, 0.9f), plain = build(1, 5, 0.0f);
    CHECK_INT(dml_trainer_save(m.trainer, path), DML_OK);
    refuses(wider, "another model");
    refuses(plain, "is the momentum the same?");
    dml_close(m.context);
    dml_close(wider.context);
    dml_close(plain.context);
}

static void says_what_the_system_says(void)
{
    model m = build(1, 5, 0.9f);
    CHECK_INT(dml_trainer_load(m.trainer, "/nowhere/run.dml"), DML_ERROR_IO);
    CHECK_CONTAINS(dml_error(m.context), "/nowhere/run.dml\": No such file");
    dml_clear_error(m.context);
    CHECK_INT(dml_trainer_save(m.trainer, "/nowhere/run.dml"), DML_ERROR_IO);
    CHECK_CONTAINS(dml_error(m.context), "/nowhere/run.dml\": No such file");
    dml_clear_error(m.context);
    CHECK_INT(dml_trainer_load(m.trainer, "/"), DML_ERROR_IO);
    CHECK_CONTAINS(dml_error(m.context), "no plain file");
    dml_close(m.context);
}

int main(void)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/dml_checkpoint_test.%ld", folder ? folder : "/tmp", (long)getpid());
    RUN(training_goes_on_as_if_it_had_never_stopped);
    RUN(refuses_what_is_not_its_own);
    RUN(refuses_another_model);
    RUN(says_what_the_system_says);
    remove(path);
    return test_report("train/checkpoint");
}
