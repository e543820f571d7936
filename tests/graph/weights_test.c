/* Weights belong to their graph: reached, frozen, saved and loaded without a trainer. */
#include "graph/weights.h"

#include "base/float16.h"
#include "base/safetensors.h"
#include "graph/node.h"

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "graph/program.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

#include "backends.h"

#include <unistd.h>

static char path[256];

/* ---- a model for prediction alone: rows of 4 into 3 scores through a scope ---- */

enum { IN = 4, HIDDEN = 6, OUT = 3, COUNT = IN * HIDDEN + HIDDEN + HIDDEN * OUT + OUT };

typedef struct net {
    dml_context *context;
    dml_graph *graph;
    dml_node *x, *y;
} net;

static net build(uint64_t seed)
{
    net n;
    n.context = open_here(&(dml_options){ .threads = 2, .seed = seed });
    n.graph = dml_graph_create(n.context);
    n.x = dml_input(n.graph, "x", DML_F32, IN);
    dml_push_scope(n.graph, "block.%d", 3);
    dml_push_scope(n.graph, "attn");
    dml_node *h = dml_tanh(dml_dense(n.x, HIDDEN));
    dml_pop_scope(n.graph);
    dml_pop_scope(n.graph);
    n.y = dml_dense(h, OUT);
    return n;
}

static const float rows[5 * IN] = { 1,  -0.5f, 2,      0.25f,  -1, 0, 0.5f, 1, 3,
                                    -2, 1,     0.125f, -0.75f, 1,  1, 1,    0, 0 };

static void predict(net n, float out[5 * OUT])
{
    dml_program *p = dml_compile(n.y, &(dml_program_options){ .batch = 5 });
    CHECK_MESSAGE(dml_program_run(p, 5, DML_INPUTS(rows), out) == DML_OK, "%s", dml_error(n.context));
    dml_program_destroy(p);
}

/* ---- looking ---- */

static void parameters_are_found(void)
{
    static const char *const names[] = { "block.3.attn.dense_1.weight", "block.3.attn.dense_1.bias",
                                         "dense_1.weight", "dense_1.bias" };
    static const size_t offsets[] = { 0, IN * HIDDEN, IN * HIDDEN + HIDDEN,
                                      IN * HIDDEN + HIDDEN + HIDDEN * OUT };
    net n = build(1);
    CHECK_INT(dml_graph_parameters(n.graph), 4);
    CHECK_INT(dml_graph_parameter_count(n.graph), COUNT);
    CHECK_INT(dml_graph_trained_count(n.graph), COUNT);
    CHECK(dml_graph_get(n.graph, 0, 1)); /* lays w out */
    for (int i = 0; i < 4; i++) {
        dml_node *p = dml_graph_parameter(n.graph, i);
        CHECK_STRING(dml_node_name(p), names[i]);
        CHECK(dml_graph_find(n.graph, names[i]) == p);
        CHECK_INT(dml_parameter_offset(p), offsets[i]);
        CHECK(dml_parameter_trained(p));
    }
    CHECK(!dml_graph_parameter(n.graph, 4) && !dml_graph_parameter(n.graph, -1));
    CHECK(!dml_graph_parameter(NULL, 0) && !dml__graph_find(n.graph, "dense_2.weight"));
    CHECK(!dml_graph_find(NULL, "x"));
    CHECK(!dml_graph_find(n.graph, NULL));
    CHECK_CONTAINS(dml_error(n.context), "no node 'NULL'");
    dml_clear_error(n.context);
    CHECK(!dml_graph_find(n.graph, "dense_2.weight"));
    CHECK_CONTAINS(dml_error(n.context), "no node 'dense_2.weight'");
    dml_clear_error(n.context);
    CHECK(dml_graph_find(n.graph, "x") == n.x && !dml_parameter_trained(n.x));
    CHECK_INT(dml_graph_parameters(NULL), 0);
    CHECK_INT(dml_graph_trained_count(NULL), 0);
    CHECK_INT(dml_parameter_offset(NULL), 0);
    CHECK_STRING(dml_error(n.context), "");
    dml_close(n.context);
}

static void values_go_in_and_out(void)
{
    net n = build(1);
    dml_node *w = dml_graph_parameter(n.graph, 2), *bias = dml_graph_parameter(n.graph, 3);
    float set[HIDDEN * OUT], got[HIDDEN * OUT], out[5 * OUT];
    for (int i = 0; i < HIDDEN * OUT; i++) set[i] = 0;
    CHECK_INT(dml_parameter_write(w, set, HIDDEN * OUT), DML_OK);
    const float three[OUT] = { 7, 8, 9 };
    CHECK_INT(dml_parameter_write(bias, three, OUT), DML_OK);
    CHECK_INT(dml_parameter_read(w, got, HIDDEN * OUT), DML_OK);
    CHECK(memcmp(got, set, sizeof got) == 0);
    predict(n, out);
    for (int i = 0; i < 5 * OUT; i++) CHECK(out[i] == three[i % OUT]);
    float *host = dml_graph_get(n.graph, COUNT - OUT, COUNT);
    CHECK(memcmp(host, three, sizeof three) == 0);
    host[1] = -1;
    CHECK_INT(dml_graph_put(n.graph, COUNT - OUT, COUNT), DML_OK);
    predict(n, out);
    CHECK(out[0] == 7 && out[1] == -1 && out[2] == 9);
    CHECK(dml_graph_get(n.graph, COUNT, COUNT) && dml_graph_put(n.graph, 3, 3) == DML_OK); /* empty ranges */

    CHECK(!dml_graph_get(n.graph, 0, COUNT + 1));
    CHECK_CONTAINS(dml_error(n.context), "there are 51");
    dml_clear_error(n.context);
    CHECK_INT(dml_graph_put(n.graph, 2, 1), DML_ERROR_ARGUMENT);
    dml_clear_error(n.context);
    CHECK_INT(dml_parameter_read(w, got, HIDDEN * OUT - 1), DML_ERROR_SHAPE);
    CHECK_CONTAINS(dml_error(n.context),
                   "parameter 'dense_1.weight': 17 values given or asked for, it has 3 x 6");
    dml_clear_error(n.context);
    CHECK_INT(dml_parameter_write(w, set, HIDDEN * OUT + 1), DML_ERROR_SHAPE);
    dml_clear_error(n.context);
    CHECK_INT(dml_parameter_read(n.x, got, IN), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(n.context), "only a parameter");
    dml_clear_error(n.context);
    CHECK_INT(dml_parameter_write(NULL, set, 1), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_parameter_read(w, NULL, 1), DML_ERROR_ARGUMENT);
    CHECK(!dml_graph_get(NULL, 0, 0));
    CHECK_INT(dml_graph_put(NULL, 0, 0), DML_ERROR_ARGUMENT);
    dml_close(n.context);
}
EACH_BACKEND(values_go_in_and_out)

static void a_parameter_that_no_op_uses(void)
{
    net n = build(1);
    dml_node *p = dml_parameter(n.graph, "alone", dml_init_constant(1), 2);
    float two[2];
    CHECK_INT(dml_parameter_read(p, two, 2), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(n.context), "no op uses it");
    dml_close(n.context);
}

/* ---- initial values ---- */

static void initial_weights_scale_with_what_comes_in(void)
{
    enum { A = 20, B = 500, UNITS = 400 };
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *a = dml_dense(dml_input(g, "a", DML_F32, A), UNITS),
             *b = dml_dense(dml_input(g, "b", DML_F32, B), UNITS);
    dml_node *c = dml_conv2d(dml_input(g, "c", DML_F32, 9, 9, 30),
                             &(dml_conv2d_options){ .filters = 60, .kernel = { 3, 2 } });
    dml_node *again = dml_dense(dml_input(g, "d", DML_F32, A), UNITS);
    CHECK(a && b && c && again);
    const int fan_in[] = { A, B, 3 * 2 * 30, A };
    const float *w[4];
    size_t count[4];
    for (int layer = 0; layer < 4; layer++) {
        const dml_node *weight = dml_graph_parameter(g, 2 * layer),
                       *bias = dml_graph_parameter(g, 2 * layer + 1);
        const dml_shape shape = dml_node_shape(weight), bias_shape = dml_node_shape(bias);
        double mean = 0, square = 0;
        count[layer] = dml_shape_count(&shape);
        CHECK(dml_graph_get(g, 0, 1));
        w[layer] =
            dml_graph_get(g, dml_parameter_offset(weight), dml_parameter_offset(weight) + count[layer]);
        for (size_t i = 0; i < count[layer]; i++) mean += w[layer][i] / (double)count[layer];
        for (size_t i = 0; i < count[layer]; i++)
            square += w[layer][i] * (double)w[layer][i] / (double)count[layer];
        CHECK_NEAR(mean * sqrt(fan_in[layer]), 0, 0.06);
        CHECK_NEAR(square * fan_in[layer] / 2, 1, 0.06);
        const float *zeros = dml_graph_get(g, dml_parameter_offset(bias),
                                           dml_parameter_offset(bias) + dml_shape_count(&bias_shape));
        for (size_t i = 0; i < dml_shape_count(&bias_shape); i++) CHECK(zeros[i] == 0);
    }
    for (int p = 0; p < 4; p++) /* no two begin alike, nor does one repeat itself */
        for (int q = 0; q < p; q++) {
            size_t same = 0;
            for (size_t i = 0; i < count[p] && i < count[q]; i++) same += w[p][i] == w[q][i];
            CHECK_MESSAGE(same < 3, "parameters %d and %d share %zu values", p, q, same);
        }
    size_t repeats = 0;
    for (size_t i = 1; i < count[1]; i++)
        repeats += w[1][i] == w[1][i - 1] || (i >= B && w[1][i] == w[1][i - B]);
    CHECK(repeats < 3);
    dml_close(context);
}

/* ---- frozen parameters ---- */

static void frozen_parameters_stay(void)
{
    net n = build(1);
    dml_node *first = dml_graph_parameter(n.graph, 0), *last = dml_graph_parameter(n.graph, 3);
    CHECK_INT(dml_parameter_train(first, false), DML_OK);
    CHECK_INT(dml_parameter_train(last, false), DML_OK);
    CHECK_INT(dml_parameter_train(last, true), DML_OK);
    CHECK_INT(dml_parameter_train(n.x, false), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(n.context), "input 'x': only a parameter");
    dml_clear_error(n.context);
    CHECK_INT(dml_parameter_train(NULL, false), DML_ERROR_ARGUMENT);
    CHECK(!dml_parameter_trained(first) && dml_parameter_trained(last));
    dml_node *t = dml_input(n.graph, "t", DML_I32);
    dml_optimizer decaying = dml_sgd(0.1f, 0.9f);
    decaying.weight_decay = 0.1f;
    dml_trainer *trainer = dml_trainer_create(dml_softmax_cross_entropy(n.y, t),
                                              &(dml_trainer_options){ .batch = 5, .optimizer = decaying });
    CHECK_MESSAGE(trainer, "%s", dml_error(n.context));
    const size_t trained = COUNT - IN * HIDDEN;
    CHECK_INT(dml_graph_trained_count(n.graph), trained);
    CHECK_INT(dml_parameter_offset(first), trained); /* behind all that are trained */
    CHECK_INT(dml_parameter_offset(dml_graph_parameter(n.graph, 1)), 0);
    CHECK_INT(dml_trainer_count(trainer, DML_PARAMETERS), COUNT);
    CHECK_INT(dml_trainer_count(trainer, DML_GRADIENTS), trained);
    CHECK_INT(dml_trainer_count(trainer, DML_OPTIMIZER_STATE), trained);
    float before[COUNT];
    memcpy(before, dml_graph_get(n.graph, 0, COUNT), sizeof before);
    const int32_t labels[5] = { 0, 1, 2, 0, 1 };
    float loss[2];
    for (int step = 0; step < 30; step++)
        CHECK_INT(dml_trainer_step(trainer, 5, DML_INPUTS(rows, labels), &loss[step > 0]), DML_OK);
    CHECK(loss[1] < loss[0]);
    const float *after = dml_graph_get(n.graph, 0, COUNT);
    CHECK(memcmp(after + trained, before + trained, IN * HIDDEN * sizeof(float)) == 0);
    for (size_t i = 0; i < trained; i++) CHECK(after[i] != before[i]);

    CHECK_INT(dml_parameter_train(first, false), DML_OK); /* as it is */
    CHECK_INT(dml_parameter_train(first, true), DML_ERROR_STATE);
    CHECK_CONTAINS(
        dml_error(n.context),
        "before the parameters are laid out, by the first compile or the first use of their values");
    CHECK(!strstr(dml_error(n.context), "lr_scale"));
    dml_clear_error(n.context);
    CHECK_INT(dml_parameter_train(dml_graph_parameter(n.graph, 1), false), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(n.context), "their values; dml_parameter_set_lr_scale of 0 holds it");
    dml_close(n.context);
}
EACH_BACKEND(frozen_parameters_stay)

/* The initial values of a model don't depend on what of it is frozen. */
static void freezing_changes_no_initial_value(void)
{
    float out[2][5 * OUT];
    for (int frozen = 0; frozen < 2; frozen++) {
        net n = build(9);
        if (frozen) CHECK_INT(dml_parameter_train(dml_graph_parameter(n.graph, 0), false), DML_OK);
        predict(n, out[frozen]);
        dml_close(n.context);
    }
    CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
}

static void all_frozen(void)
{
    net n = build(1);
    for (int i = 0; i < 4; i++) dml_parameter_train(dml_graph_parameter(n.graph, i), false);
    dml_node *loss = dml_softmax_cross_entropy(n.y, dml_input(n.graph, "t", DML_I32));
    CHECK(!dml_trainer_create(loss, &(dml_trainer_options){ .batch = 5 }));
    CHECK_CONTAINS(dml_error(n.context), "depends on no trained parameter");
    dml_close(n.context);
}

/* ---- files ---- */

static void saved_and_loaded(void)
{
    net from = build(1), to = build(2), third = build(3);
    float want[5 * OUT], got[5 * OUT];
    static unsigned char image[4096];
    size_t bytes, again;
    predict(from, want);
    predict(to, got);
    CHECK(memcmp(want, got, sizeof want) != 0);
    CHECK_INT(dml_graph_save(from.graph, path), DML_OK);
    CHECK_MESSAGE(dml_graph_load(to.graph, path) == DML_OK, "%s", dml_error(to.context));
    predict(to, got);
    CHECK(memcmp(want, got, sizeof want) == 0);

    CHECK_INT(dml_graph_store(from.graph, NULL, 0, &bytes), DML_OK);
    CHECK(bytes > COUNT * sizeof(float) && bytes < sizeof image);
    image[bytes] = 42;
    CHECK_INT(dml_graph_store(from.graph, image, bytes, &again), DML_OK);
    CHECK_INT(again, bytes);
    CHECK_INT(image[bytes], 42);
    CHECK_INT(dml_graph_store(from.graph, image, bytes - 1, &again), DML_ERROR_MEMORY);
    CHECK_INT(again, bytes);
    dml_clear_error(from.context);
    CHECK_INT(dml_graph_store(from.graph, image, bytes, &bytes), DML_OK);
    CHECK_INT(dml_graph_load_memory(third.graph, "image", image, bytes), DML_OK);
    predict(third, got);
    CHECK(memcmp(want, got, sizeof want) == 0);
    FILE *file = fopen(path, "rb"); /* the same bytes in the file */
    static unsigned char on_disk[4096];
    CHECK(file && fread(on_disk, 1, sizeof on_disk, file) == bytes && memcmp(on_disk, image, bytes) == 0);
    if (file) fclose(file);
    dml_close(from.context);
    dml_close(to.context);
    dml_close(third.context);
}
EACH_BACKEND(saved_and_loaded)

/* Loading must fail with `status` and a sentence that says `why`, and leave w as it was. */
static void refuses(net n, const void *bytes, size_t size, dml_status status, const char *why)
{
    float before[COUNT];
    memcpy(before, dml_graph_get(n.graph, 0, COUNT), sizeof before);
    CHECK_INT(dml_graph_load_memory(n.graph, "the bytes", bytes, size), status);
    CHECK_CONTAINS(dml_error(n.context), why);
    CHECK_CONTAINS(dml_error(n.context), "the bytes");
    dml_clear_error(n.context);
    CHECK(memcmp(before, dml_graph_get(n.graph, 0, COUNT), sizeof before) == 0);
}

static void another_model_is_refused(void)
{
    static unsigned char image[8192];
    size_t bytes = 0;
    net n = build(1);
    for (int other = 0; other < 4; other++) {
        dml_context *context = dml_open(NULL);
        dml_graph *g = dml_graph_create(context);
        dml_node *x = dml_input(g, "x", DML_F32, IN);
        if (other != 1) dml_push_scope(g, "block.3.attn");
        dml_node *h = dml_dense(x, other == 2 ? HIDDEN + 1 : HIDDEN);
        if (other == 3) /* one more */
            h = dml_dense_with(x, dml_parameter(g, "w", dml_init_constant(0), HIDDEN, IN), NULL);
        if (other != 1) dml_pop_scope(g);
        CHECK(dml_dense(h, OUT));
        if (other == 0) CHECK(dml_dense(h, 2));
        CHECK_INT(dml_graph_store(g, image, sizeof image, &bytes), DML_OK);
        static const char *const why[] = {
            "its 'dense_2.weight' is no parameter of this one",
            "it has no 'block.3.attn.dense_1.weight', which this model has as 6 x 4",
            "its 'block.3.attn.dense_1.weight' is 7 x 4, this model's is 6 x 4",
            "its 'block.3.attn.w' is no parameter of this one"
        };
        refuses(n, image, bytes, DML_ERROR_FORMAT, why[other]);
        dml_close(context);
    }
    CHECK_INT(dml_graph_store(n.graph, image, sizeof image, &bytes), DML_OK);
    for (size_t cut = 0; cut < bytes; cut++) refuses(n, image, cut, DML_ERROR_FORMAT, "");
    for (size_t i = 0; i < bytes; i++) {
        image[i] ^= (unsigned char)(1u << (i % 8));
        refuses(n, image, bytes, DML_ERROR_FORMAT, "");
        image[i] ^= (unsigned char)(1u << (i % 8));
    }
    CHECK_INT(dml_graph_load(n.graph, "/nowhere/model"), DML_ERROR_IO);
    CHECK_CONTAINS(dml_error(n.context), "/nowhere/model");
    CHECK_INT(dml_graph_load(n.graph, path), DML_ERROR_IO); /* an error stands */
    dml_clear_error(n.context);
    CHECK_INT(dml_graph_save(n.graph, "/nowhere/model"), DML_ERROR_IO);
    CHECK_INT(dml_graph_save(NULL, path), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_graph_save(n.graph, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_graph_load(n.graph, NULL), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_graph_load_memory(n.graph, NULL, NULL, 3), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_graph_store(n.graph, image, 0, NULL), DML_ERROR_ARGUMENT);
    dml_close(n.context);
}

/* As most weights are published; the parameters are floats. */
static void weights_of_16_bits(void)
{
    static const int sizes[] = { 1, 2, 3, 255, 256, 257, 511, 512, 513, 3001 };
    static const dml_dtype types[] = { DML_BF16, DML_F16 };
    enum { MOST = 3001 };
    static float values[MOST];
    static uint16_t narrow[MOST];
    dml__memory memory;
    dml__memory_init(&memory, NULL, NULL, 0);
    for (size_t c = 0; c < 2 * sizeof sizes / sizeof *sizes; c++) {
        const int n = sizes[c / 2];
        const dml_dtype dtype = types[c % 2];
        dml__error error = { DML_OK, "", 0 };
        for (int i = 0; i < n; i++) values[i] = (float)(i - n / 2) * 0.37f;
        values[n - 1] = INFINITY;
        dml__narrow_line(DML_ISA_SCALAR, dtype, (size_t)n, values, narrow);
        dml__widen_line(DML_ISA_SCALAR, dtype, (size_t)n, narrow, values);
        const dml__tensor tensors[] = { { "w", dtype, 1, &n, narrow } };
        CHECK_INT(dml__safetensors_save(&memory, path, tensors, 1, NULL, 0, &error), DML_OK);
        dml_context *context = dml_open(NULL);
        dml_graph *g = dml_graph_create(context);
        dml_node *w = dml_parameter(g, "w", dml_init_constant(5), n);
        CHECK(dml_add(w, w));
        CHECK_MESSAGE(dml_graph_load(g, path) == DML_OK, "%s", dml_error(context));
        CHECK(memcmp(dml_graph_get(g, 0, (size_t)n), values, (size_t)n * sizeof(float)) == 0);
        dml_close(context);
    }
}

/* Another dtype of the right name and shape, by hand. */
static void another_dtype_is_refused(void)
{
    unsigned char image[256];
    const char *header = "{\"w\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *w = dml_parameter(g, "w", dml_init_constant(5), 2);
    CHECK(dml_add(w, w));
    memset(image, 0, sizeof image);
    image[0] = (unsigned char)strlen(header);
    memcpy(image + 8, header, strlen(header));
    CHECK_INT(dml_graph_load_memory(g, "bytes", image, 8 + strlen(header) + 8), DML_ERROR_FORMAT);
    CHECK_CONTAINS(dml_error(context), "has 'w' as I32; convert it to F32");
    dml_clear_error(context);
    char *dtype = strstr((char *)image + 8, "I32");
    memcpy(dtype, "F32", 3);
    CHECK_INT(dml_graph_load_memory(g, "bytes", image, 8 + strlen(header) + 8), DML_OK);
    CHECK(dml_graph_get(g, 0, 2)[0] == 0);
    dml_close(context);
}

/* A model is loaded from a trainer's checkpoint too. */
static void from_a_checkpoint(void)
{
    net n = build(1), to = build(2);
    float want[5 * OUT], got[5 * OUT];
    const int32_t labels[5] = { 0, 1, 2, 0, 1 };
    dml_node *t = dml_input(n.graph, "t", DML_I32);
    dml_trainer *trainer =
        dml_trainer_create(dml_softmax_cross_entropy(n.y, t),
                           &(dml_trainer_options){ .batch = 5, .optimizer = dml_sgd(0.1f, 0.9f) });
    for (int step = 0; step < 3; step++)
        CHECK_INT(dml_trainer_step(trainer, 5, DML_INPUTS(rows, labels), NULL), DML_OK);
    CHECK_INT(dml_trainer_save(trainer, path), DML_OK);
    CHECK_MESSAGE(dml_graph_load(to.graph, path) == DML_OK, "%s", dml_error(to.context));
    predict(n, want);
    predict(to, got);
    CHECK(memcmp(want, got, sizeof want) == 0);
    dml_close(n.context);
    dml_close(to.context);
}
EACH_BACKEND(from_a_checkpoint)

/* ---- a file that fits in part ---- */

enum { BODY = IN * HIDDEN + HIDDEN };

/* As another tool has it: the body of build(), a head of 5 scores, and something that counted batches. */
static void save_pretrained(dml_dtype dtype, const char *scope)
{
    static float values[5 * HIDDEN];
    static const int64_t batches[1] = { 1000 };
    static const int dims[][2] = { { HIDDEN, IN }, { HIDDEN }, { 5, HIDDEN }, { 5 } };
    char names[2][64];
    dml__memory memory;
    dml__error error = { DML_OK, "", 0 };
    for (int i = 0; i < 5 * HIDDEN; i++) values[i] = 100 + (float)i;
    snprintf(names[0], sizeof names[0], "%s.dense_1.weight", scope);
    snprintf(names[1], sizeof names[1], "%s.dense_1.bias", scope);
    const dml__tensor tensors[] = { { "batch_norm_1.num_batches_tracked", DML_I64, 0, NULL, batches },
                                    { names[0], dtype, 2, dims[0], values },
                                    { names[1], DML_F32, 1, dims[1], values },
                                    { "dense_1.weight", DML_F32, 2, dims[2], values },
                                    { "dense_1.bias", DML_F32, 1, dims[3], values } };
    dml__memory_init(&memory, NULL, NULL, 0);
    CHECK_MESSAGE(dml__safetensors_save(&memory, path, tensors, 5, NULL, 0, &error) == DML_OK, "%s",
                  error.text);
}

static void cannot_match(net n, dml_status status, const char *why)
{
    float before[COUNT];
    memcpy(before, dml_graph_get(n.graph, 0, COUNT), sizeof before);
    CHECK_INT(dml_graph_load_matching(n.graph, path), status);
    CHECK_CONTAINS(dml_error(n.context), why);
    dml_clear_error(n.context);
    CHECK(memcmp(before, dml_graph_get(n.graph, 0, COUNT), sizeof before) == 0);
    for (int i = 0; i < 4; i++) CHECK(!dml_parameter_loaded(dml_graph_parameter(n.graph, i)));
}

static void a_body_is_loaded_under_another_head(void)
{
    const int32_t labels[5] = { 0, 1, 2, 0, 1 };
    net n = build(1);
    dml_parameter_train(dml_graph_parameter(n.graph, 1), false); /* so it lies at the end */
    dml_node *loss = dml_softmax_cross_entropy(n.y, dml_input(n.graph, "t", DML_I32));
    dml_trainer *trainer = dml_trainer_create(loss, &(dml_trainer_options){ .batch = 5 });
    save_pretrained(DML_F32, "block.3.attn");
    CHECK_INT(dml_graph_load(n.graph, path), DML_ERROR_FORMAT);
    CHECK_CONTAINS(dml_error(n.context), "its 'dense_1.weight' is 5 x 6, this model's is 3 x 6; "
                                         "dml_graph_load_matching takes what fits");
    dml_clear_error(n.context);
    for (int i = 0; i < 4; i++) CHECK(!dml_parameter_loaded(dml_graph_parameter(n.graph, i)));
    CHECK_MESSAGE(dml_graph_load_matching(n.graph, path) == DML_OK, "%s", dml_error(n.context));
    float head[HIDDEN * OUT], values[IN * HIDDEN];
    for (int i = 0; i < 4; i++) {
        dml_node *q = dml_graph_parameter(n.graph, i);
        const dml_shape shape = dml_node_shape(q);
        const size_t count = dml_shape_count(&shape);
        CHECK(dml_parameter_loaded(q) == (i < 2));
        CHECK_INT(dml_parameter_read(q, i < 2 ? values : head, count), DML_OK);
        for (size_t k = 0; k < count && i < 2; k++) CHECK(values[k] == 100 + (float)k);
        for (size_t k = 0; k < count && i >= 2; k++) CHECK(isfinite(head[k]) && fabsf(head[k]) < 10);
    }
    CHECK_INT(dml_trainer_step(trainer, 5, DML_INPUTS(rows, labels), NULL), DML_OK);

    CHECK_INT(dml_graph_save(n.graph, path), DML_OK);
    CHECK_INT(dml_graph_load(n.graph, path), DML_OK); /* everything fits */
    for (int i = 0; i < 4; i++) CHECK(dml_parameter_loaded(dml_graph_parameter(n.graph, i)));
    CHECK(!dml_parameter_loaded(NULL) && !dml_parameter_loaded(n.x));
    dml_close(n.context);
}
EACH_BACKEND(a_body_is_loaded_under_another_head)

/* What isn't taken is as the last step left it, also where the host's copy is older. */
static void the_rest_stays(void)
{
    float before[HIDDEN * OUT], after[HIDDEN * OUT];
    const int32_t labels[5] = { 0, 1, 2, 0, 1 };
    net n = build(1);
    dml_node *head = dml_graph_parameter(n.graph, 2);
    dml_node *loss = dml_softmax_cross_entropy(n.y, dml_input(n.graph, "t", DML_I32));
    dml_trainer *trainer = dml_trainer_create(loss, &(dml_trainer_options){ .batch = 5 });
    CHECK(dml_graph_get(n.graph, 0, COUNT));
    CHECK_INT(dml_trainer_step(trainer, 5, DML_INPUTS(rows, labels), NULL), DML_OK);
    CHECK_INT(dml_parameter_read(head, before, HIDDEN * OUT), DML_OK); /* not into that copy */
    save_pretrained(DML_F32, "block.3.attn");
    CHECK_INT(dml_graph_load_matching(n.graph, path), DML_OK);
    CHECK_INT(dml_parameter_read(head, after, HIDDEN * OUT), DML_OK);
    CHECK(memcmp(before, after, sizeof before) == 0);
    dml_close(n.context);
}
EACH_BACKEND(the_rest_stays)

static void matching_bytes(void)
{
    static char image[65536];
    float before[IN * HIDDEN];
    net n = build(1);
    save_pretrained(DML_F32, "block.3.attn");
    FILE *file = fopen(path, "rb");
    CHECK(file);
    const size_t size = fread(image, 1, sizeof image, file);
    fclose(file);
    CHECK_INT(dml_graph_load_matching_memory(n.graph, "image", image, size), DML_OK);
    CHECK(dml_parameter_loaded(dml_graph_parameter(n.graph, 0)));
    CHECK_INT(dml_parameter_read(dml_graph_parameter(n.graph, 0), before, IN * HIDDEN), DML_OK);
    net other = build(2);
    CHECK_INT(dml_graph_load_matching(other.graph, path), DML_OK);
    float after[IN * HIDDEN];
    CHECK_INT(dml_parameter_read(dml_graph_parameter(other.graph, 0), after, IN * HIDDEN), DML_OK);
    CHECK(memcmp(before, after, sizeof before) == 0);
    CHECK_INT(dml_graph_load_matching_memory(n.graph, "image", image, size / 2), DML_ERROR_FORMAT);
    CHECK_CONTAINS(dml_error(n.context), "image");
    dml_clear_error(n.context);
    CHECK_INT(dml_graph_load_matching_memory(n.graph, "image", "\2\0\0\0\0\0\0\0{}", 10), DML_ERROR_FORMAT);
    CHECK_CONTAINS(dml_error(n.context), "\"image\" has no tensors at all");
    dml_clear_error(n.context);
    CHECK_INT(dml_graph_load_matching_memory(n.graph, NULL, NULL, 3), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(n.context), "dml_graph_load_matching_memory");
    CHECK_INT(dml_graph_load_matching_memory(NULL, NULL, image, size), DML_ERROR_ARGUMENT);
    dml_close(n.context), dml_close(other.context);
}

static void what_cannot_match(void)
{
    net n = build(1);
    save_pretrained(DML_I32, "block.3.attn"); /* which nobody would leave out silently */
    cannot_match(n, DML_ERROR_FORMAT, "has 'block.3.attn.dense_1.weight' as I32; convert it to F32");
    save_pretrained(DML_F32, "model.block.3.attn");
    cannot_match(n, DML_ERROR_FORMAT,
                 "has none of this model's parameters by name and shape: its first tensor is "
                 "'batch_norm_1.num_batches_tracked', this model's first parameter "
                 "'block.3.attn.dense_1.weight' of 6 x 4");
    save_pretrained(DML_F32, "block.3.attn");
    n.graph->spread = true;
    CHECK_INT(dml_graph_load_matching(n.graph, path), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(n.context), "call dml_trainer_gather on all ranks");
    dml_clear_error(n.context);
    n.graph->spread = false;
    remove(path);
    cannot_match(n, DML_ERROR_IO, "No such file");
    CHECK_INT(dml_graph_load_matching(NULL, path), DML_ERROR_ARGUMENT);
    dml_close(n.context);
}

/* ---- memory ---- */

typedef struct counter {
    size_t now, peak;
} counter;

static void *count_allocate(void *user, size_t bytes)
{
    counter *c = (counter *)user;
    size_t *memory = (size_t *)malloc(bytes + 16);
    *memory = bytes;
    c->now += bytes;
    if (c->now > c->peak) c->peak = c->now;
    return (char *)memory + 16;
}
static void count_release(void *user, void *memory)
{
    counter *c = (counter *)user;
    if (!memory) return;
    c->now -= *(size_t *)((char *)memory - 16);
    free((char *)memory - 16);
}

/* Who only predicts pays for the weights, the activations, and little more. */
static void predicting_takes_little_more_than_the_weights(void)
{
    counter c = { 0, 0 };
    for (int round = 0; round < 2; round++) {
        dml_context *context =
            dml_open(&(dml_options){ .threads = 1, .allocator = { count_allocate, count_release, &c } });
        c.peak = c.now;
        const size_t before = c.now;
        dml_graph *g = dml_graph_create(context);
        dml_node *y = dml_dense(dml_relu(dml_dense(dml_input(g, "x", DML_F32, 784), 256)), 128);
        if (round == 0)
            CHECK_INT(dml_graph_save(g, path), DML_OK);
        else
            CHECK_INT(dml_graph_load(g, path), DML_OK);
        dml_program *p = dml_compile(y, &(dml_program_options){ .batch = 1 });
        CHECK(p);
        const size_t weights = dml_graph_parameter_count(g) * sizeof(float);
        CHECK_MESSAGE(c.peak - before < weights + 2 * dml_program_bytes(p) + 64 * 1024,
                      "%zu bytes for %zu of weights and %zu of activations", c.peak - before, weights,
                      dml_program_bytes(p));
        dml_close(context);
        CHECK_INT(c.now, 0);
    }
}

int main(void)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/dml_weights_test.%ld", folder ? folder : "/tmp", (long)getpid());
    backend_here = find_backend("cpu");
    RUN(parameters_are_found);
    RUN_EACH(values_go_in_and_out);
    backend_here = find_backend("cpu");
    RUN(a_parameter_that_no_op_uses);
    RUN(initial_weights_scale_with_what_comes_in);
    RUN_EACH(frozen_parameters_stay);
    backend_here = find_backend("cpu");
    device_here = 0;
    RUN(freezing_changes_no_initial_value);
    RUN(all_frozen);
    RUN_EACH(saved_and_loaded);
    backend_here = find_backend("cpu");
    device_here = 0;
    RUN(another_model_is_refused);
    RUN(weights_of_16_bits);
    RUN(another_dtype_is_refused);
    RUN_EACH(from_a_checkpoint);
    RUN_EACH(a_body_is_loaded_under_another_head);
    RUN_EACH(the_rest_stays);
    backend_here = find_backend("cpu");
    device_here = 0;
    RUN(matching_bytes);
    RUN(what_cannot_match);
    RUN(predicting_takes_little_more_than_the_weights);
    remove(path);
    return test_report("graph/weights");
}
