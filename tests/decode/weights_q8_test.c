/* Decoders whose weights are in 8 bits: the rows of a net that has these numbers as its parameters. */
#include "decode/decoder.h"

#include "device/context.h"
#include "graph/graph.h"
#include "graph/node.h"
#include "graph/program.h"
#include "graph/weights.h"
#include "kernels/q8.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_attention.h"
#include "ops/op_dense.h"
#include "ops/op_embedding.h"
#include "ops/op_matmul.h"
#include "ops/op_sample_norm.h"
#include "ops/op_shape.h"

#include "../graph/backends.h"

#include <math.h>

enum { LETTERS = 41, WIDTH = 72, NARROW = 24, LENGTH = 40, TEXTS = 2, HEADS = 3 };

typedef enum head { TIED, DENSE, ACROSS, SCALED, HEAD_COUNT } head;

/* Of every way to a matrix: dense layers, of which one has too few columns for 8 bits; a table that is looked
   up and is the last matrix, too; a product with a parameter as it lies. */
static dml_node *net(dml_graph *g, head kind)
{
    dml_node *x = dml_input(g, "x", DML_I32, LENGTH);
    dml_node *table = dml_parameter(g, "table", dml_init_normal(0, 1), LETTERS, WIDTH);
    dml_node *h = dml_learned_positions(dml_embedding_with(x, table));
    h = dml_add(h, dml_multi_head_attention(dml_layer_norm(h, NULL), HEADS,
                                            &(dml_multi_head_attention_options){ .causal = true }));
    dml_node *m = dml_dense(dml_relu(dml_dense(dml_layer_norm(h, NULL), 3 * WIDTH)), NARROW);
    h = dml_layer_norm(dml_add(h, dml_dense(m, WIDTH)), NULL);
    if (kind == TIED) return dml_matmul_with(h, table, &(dml_matmul_options){ .transpose_b = true });
    if (kind == DENSE) return dml_dense(h, LETTERS);
    dml_node *out = dml_parameter(g, "out", dml_init_normal(0, 1), WIDTH, LETTERS);
    return kind == ACROSS ? dml_matmul(h, out)
                          : dml_matmul_with(h, out, &(dml_matmul_options){ .scale = 0.25f });
}

/* What a decoder has in 8 bits becomes what that stands for. */
static void round_parameter(dml_node *parameter, bool transposed)
{
    const int n = dml_node_shape(parameter).dims[!transposed], k = dml_node_shape(parameter).dims[transposed];
    const size_t count = (size_t)n * (size_t)k;
    float *w = (float *)malloc(count * sizeof *w), *rounded = (float *)malloc(count * sizeof *w);
    void *q8 = malloc(dml_q8_bytes(n, k));
    CHECK_INT(dml_parameter_read(parameter, w, count), DML_OK);
    CHECK_INT(dml_q8_from_f32(NULL, transposed ? DML_TRANS : DML_NO_TRANS, n, k, w, transposed ? k : n, q8),
              DML_OK);
    CHECK_INT(dml_q8_to_f32(n, k, q8, rounded), DML_OK);
    for (int j = 0; j < n; j++)
        for (int p = 0; p < k; p++) w[transposed ? j * k + p : p * n + j] = rounded[j * k + p];
    CHECK_INT(dml_parameter_write(parameter, w, count), DML_OK);
    free(w), free(rounded), free(q8);
}

/* All but the table, which is looked up as it is. */
static void round_all(dml_graph *g, head kind)
{
    for (int i = 0; i < dml_graph_parameters(g); i++) {
        dml_node *p = dml_graph_parameter(g, i);
        const char *name = dml_node_name(p);
        const dml_shape shape = dml_node_shape(p);
        if (shape.ndim != 2 || strstr(name, "positions") || strcmp(name, "table") == 0) continue;
        if (strcmp(name, "out") == 0) {
            if (kind == ACROSS) round_parameter(p, false);
        } else if (shape.dims[1] >= DML_Q8_BLOCK) {
            round_parameter(p, true);
        }
    }
}

typedef struct writer {
    dml_context *context;
    dml_graph *graph;
    dml_node *output;
    dml_decoder *decoder;
} writer;

static writer writer_create(head kind, dml_dtype weights, int threads, int batch, int chunk)
{
    writer w;
    w.context = dml_open(&(dml_options){ .threads = threads, .seed = 3 });
    w.graph = dml_graph_create(w.context);
    w.output = net(w.graph, kind);
    w.decoder =
        dml_decoder_create(w.output, dml_graph_find(w.graph, "x"),
                           &(dml_decoder_options){ .batch = batch, .chunk = chunk, .weights = weights });
    CHECK_MESSAGE(w.decoder, "%s", dml_error(w.context));
    return w;
}

/* The same by the rows of all positions, of which these are the last. */
static void feed_rows(const writer *w, const int32_t *x, int count, float *scores)
{
    float *all = (float *)malloc(sizeof *all * TEXTS * LETTERS * (size_t)count);
    CHECK_MESSAGE(dml_decoder_feed_rows(w->decoder, TEXTS, x, count, all) == DML_OK, "%s",
                  dml_error(w->context));
    for (int r = 0; r < TEXTS; r++)
        memcpy(scores + r * LETTERS, all + ((r + 1) * count - 1) * LETTERS, sizeof *all * LETTERS);
    free(all);
}

static void feed(const writer *w, const int32_t *x, int count, float *scores)
{
    CHECK_MESSAGE(dml_decoder_feed(w->decoder, TEXTS, x, count, scores) == DML_OK, "%s",
                  dml_error(w->context));
}

static double largest(const float *x, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++) most = fmax(most, fabs((double)x[i]));
    return most;
}

/* No score is further off than `most` of the largest one. */
static void compare(const writer *a, const writer *b, double most)
{
    int32_t x[TEXTS * LENGTH];
    float got[TEXTS * LETTERS], want[TEXTS * LETTERS];
    for (int i = 0; i < TEXTS * LENGTH; i++) x[i] = i * 29 % LETTERS;
    for (int all = 0; all < 2; all++) {
        dml_decoder_rewind(a->decoder, DML_ALL_TEXTS, 0), dml_decoder_rewind(b->decoder, DML_ALL_TEXTS, 0);
        for (int done = 0, now; done < LENGTH; done += now) {
            now = done == 0 ? 20 : 1; /* a prompt, of more rows than few, and one by one */
            (all ? feed_rows : feed)(a, x + TEXTS * done, now, got);
            feed(b, x + TEXTS * done, now, want);
            for (int i = 0; i < TEXTS * LETTERS && test__ok; i++)
                CHECK_MESSAGE(fabs((double)got[i] - (double)want[i]) <= most * largest(want, TEXTS * LETTERS),
                              "position %d, score %d: %g, not %g", done + now - 1, i, (double)got[i],
                              (double)want[i]);
        }
    }
}

/* The table is looked up in f32, so that a net of rounded parameters is another one where it is tied: then it
   is near, as it is to the net as it was. */
static void rows_of_the_rounded_net(void)
{
    for (int kind = 0; kind < HEAD_COUNT; kind++)
        for (int threads = 1; threads < 3; threads++) {
            writer q8 = writer_create((head)kind, DML_I8, threads, TEXTS, threads == 1 ? 16 : 0);
            writer f32 = writer_create((head)kind, DML_F32, 1, TEXTS, 0);
            compare(&q8, &f32, 0.03);
            round_all(f32.graph, (head)kind);
            compare(&q8, &f32, kind == TIED ? 0.03 : 5e-6);
            dml_close(q8.context), dml_close(f32.context);
        }
}

/* Loaded or trained after the first position, parameters count when they are taken. */
static void weights_are_taken(void)
{
    const int32_t x[TEXTS] = { 3, 4 };
    float first[TEXTS * LETTERS], again[TEXTS * LETTERS], bias[LETTERS];
    writer w = writer_create(DENSE, DML_I8, 1, TEXTS, 0);
    dml_node *last = dml_graph_parameter(w.graph, dml_graph_parameters(w.graph) - 2);
    dml_node *last_bias = dml_graph_parameter(w.graph, dml_graph_parameters(w.graph) - 1);
    enum { COUNT = LETTERS * WIDTH };
    static float zeros[COUNT];
    /* Before the first position there is nothing to take. */
    CHECK_INT(dml_parameter_write(last, zeros, COUNT), DML_OK);
    feed(&w, x, 1, first);
    for (int i = 0; i < LETTERS; i++) bias[i] = 0;
    CHECK_INT(dml_parameter_read(last_bias, bias, LETTERS), DML_OK);
    for (int i = 0; i < TEXTS * LETTERS; i++) CHECK(first[i] == bias[i % LETTERS]);
    for (int i = 0; i < COUNT; i++) zeros[i] = 0.5f;
    CHECK_INT(dml_parameter_write(last, zeros, COUNT), DML_OK);
    dml_decoder_rewind(w.decoder, DML_ALL_TEXTS, 0);
    feed(&w, x, 1, again);
    CHECK(memcmp(first, again, sizeof first) == 0);
    dml_decoder_take_weights(w.decoder);
    dml_decoder_rewind(w.decoder, DML_ALL_TEXTS, 0);
    feed(&w, x, 1, again);
    CHECK(memcmp(first, again, sizeof first) != 0);
    dml_decoder_take_weights(NULL);
    dml_close(w.context);
}

/* Two decoders of one graph, of which one reads it as it is; and the same bits on any threads. */
static void beside_another(void)
{
    const int32_t x[TEXTS] = { 3, 4 };
    float scores[3][TEXTS * LETTERS];
    writer one = writer_create(TIED, DML_I8, 1, TEXTS, 0), two = writer_create(TIED, DML_I8, 3, TEXTS, 0);
    feed(&one, x, 1, scores[0]), feed(&two, x, 1, scores[1]);
    CHECK(memcmp(scores[0], scores[1], sizeof scores[0]) == 0);
    dml_decoder *plain = dml_decoder_create(one.output, dml_graph_find(one.graph, "x"),
                                            &(dml_decoder_options){ .batch = TEXTS });
    CHECK_MESSAGE(plain, "%s", dml_error(one.context));
    CHECK_INT(dml_decoder_feed(plain, TEXTS, x, 1, scores[2]), DML_OK);
    CHECK(memcmp(scores[0], scores[2], sizeof scores[0]) != 0);
    for (int i = 0; i < TEXTS * LETTERS; i++)
        CHECK(fabs((double)scores[0][i] - (double)scores[2][i]) < 0.03 * largest(scores[2], TEXTS * LETTERS));
    dml_close(one.context), dml_close(two.context);
}

static void refused(void)
{
    dml_context *context = open_here(&(dml_options){ .threads = 1 });
    dml_graph *g = dml_graph_create(context);
    dml_node *y = net(g, DENSE), *x = dml_graph_find(g, "x"), *last = g->last;
    CHECK(!dml_decoder_create(y, x, &(dml_decoder_options){ .weights = DML_BF16 }));
    CHECK_CONTAINS(dml_error(context), "asked for; there are f32 and i8");
    dml_clear_error(context);
    dml_decoder *d = dml_decoder_create(y, x, &(dml_decoder_options){ .weights = DML_I8 });
    CHECK(cpu_here() ? d != NULL : d == NULL);
    if (!cpu_here()) CHECK_CONTAINS(dml_error(context), "weights in i8 are for the CPU");
    dml_decoder_destroy(d);
    CHECK(g->last == last);
    dml_close(context);
}
EACH_BACKEND(refused)

int main(void)
{
    RUN(rows_of_the_rounded_net);
    RUN(weights_are_taken);
    RUN(beside_another);
    RUN_EACH(refused);
    return test_report("decode/weights_q8");
}
