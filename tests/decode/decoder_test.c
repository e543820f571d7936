/* Nets of many kinds, position by position: the rows of the whole net, however they are fed. */
#include "decode/decoder.h"

#include "base/os_thread.h"
#include "device/context.h"
#include "graph/clone.h"
#include "graph/node.h"
#include "graph/print.h"
#include "graph/program.h"
#include "graph/weights.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_attention.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_dropout.h"
#include "ops/op_embedding.h"
#include "ops/op_matmul.h"
#include "ops/op_reduce.h"
#include "ops/op_rotary.h"
#include "ops/op_sample_norm.h"
#include "ops/op_shape.h"
#include "ops/op_softmax.h"

#include "../graph/backends.h"

#include <limits.h>
#include <math.h>

enum { LETTERS = 13, HEADS = 4, WIDTH = 6, CHANNELS = HEADS * WIDTH, TEXTS = 3 };

/* ---- nets ---- */

static unsigned state;

static unsigned any(unsigned below)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

/* Attention of one of the kinds there are, on projections of h. */
static dml_node *attend(dml_node *h, int length)
{
    const int window = any(3) ? 0 : 1 + (int)any((unsigned)length);
    const bool shared = any(2);
    dml_node *q, *k, *v;
    const int kv = shared ? CHANNELS / 2 : CHANNELS;
    const dml_attention_options o = {
        .causal = true, .window = window, .kv_heads = shared ? HEADS / 2 : 0, .scale = any(2) ? 0 : 0.3f
    };
    const dml_multi_head_attention_options m = {
        .causal = true, .window = window, .kv_heads = shared ? HEADS / 2 : 0, .rotary = any(2)
    };
    const unsigned kind = any(5);
    if (kind < 2) return dml_multi_head_attention(h, HEADS, &m);
    if (kind == 2 && any(2)) { /* queries and keys of a norm of their own */
        const dml_shape heads = dml_shape_of(length, HEADS, WIDTH), rows = dml_shape_of(length, CHANNELS);
        q = dml_reshape(dml_rms_norm(dml_reshape(dml_dense(h, CHANNELS), heads), NULL), rows);
        k = dml_reshape(
            dml_permute(dml_permute(dml_reshape(dml_dense(h, CHANNELS), heads), dml_shape_of(0, 2, 1)),
                        dml_shape_of(0, 2, 1)),
            rows);
        return dml_attention(q, k, dml_dense(h, CHANNELS), HEADS, &(dml_attention_options){ .causal = true });
    }
    if (kind == 2) return dml_attention_packed(dml_dense(h, CHANNELS + 2 * kv), HEADS, &o);
    q = dml_rotary(dml_dense(h, CHANNELS), HEADS,
                   &(dml_rotary_options){ .offset = 3, .interleaved = any(2) });
    k = dml_dense(h, kv);
    v = any(2) ? k : dml_tanh(dml_dense(h, kv));
    return dml_attention(q, k, v, HEADS, &o);
}

static dml_node *norm(dml_node *h)
{
    return any(2) ? dml_layer_norm(h, NULL) : dml_rms_norm(h, NULL);
}

static dml_node *block(dml_node *h, int length)
{
    h = dml_add(h, dml_dropout(attend(norm(h), length), 0.1f));
    dml_node *m = dml_dense(norm(h), 2 * CHANNELS);
    m = any(2) ? dml_gelu(m)
               : dml_mul(dml_slice(m, 1, 0, CHANNELS), dml_silu(dml_slice(m, -1, CHANNELS, 2 * CHANNELS)));
    return dml_add(h, dml_mul(dml_dense(m, CHANNELS),
                              dml_constant(dml_node_graph(h), (float[]){ 0.5f }, dml_shape_of(1))));
}

/* letters (T), or numbers (T, 3), -> scores (T, LETTERS) */
static dml_node *net(dml_graph *g, int length, bool letters)
{
    dml_node *table = NULL, *h;
    if (letters) {
        dml_node *x = dml_input(g, "x", DML_I32, length);
        table = dml_parameter(g, "table", dml_init_normal(0, 1), LETTERS, CHANNELS);
        h = dml_embedding_with(x, table);
    } else {
        h = dml_dense(dml_input(g, "x", DML_F32, length, 3), CHANNELS);
    }
    if (any(2)) h = dml_learned_positions(h);
    if (any(3) == 0) /* a parameter under a function is a table of positions, too */
        h = dml_mul(h, dml_tanh(dml_parameter(g, "gates", dml_init_normal(0, 1), length, 1)));
    for (unsigned layers = 1 + any(2), i = 0; i < layers; i++) h = block(h, length);
    if (letters && any(3) == 0)
        h = dml_add(h, dml_embedding(dml_graph_find(g, "x"), LETTERS, CHANNELS)); /* of one row */
    if (any(4) == 0) /* positions that only the row which is wanted has to know */
        h = dml_add(dml_learned_positions(dml_dense(h, CHANNELS)), dml_rotary(h, HEADS, NULL));
    if (any(3) == 0)
        h = dml_concat((dml_node *[]){ dml_slice(h, 1, 1, CHANNELS), dml_mean(h, dml_shape_of(1), true) }, 2,
                       1);
    if (any(6) == 0) /* the output is an attention, of one head */
        return dml_attention(dml_dense(h, LETTERS), dml_dense(h, LETTERS), dml_dense(h, LETTERS), 1,
                             &(dml_attention_options){ .causal = true });
    h = norm(h);
    if (letters && any(2)) return dml_dense_with(h, table, NULL);
    if (any(2)) return dml_matmul(h, dml_parameter(g, "out", dml_init_normal(0, 1), CHANNELS, LETTERS));
    h = dml_dense(h, LETTERS);
    return any(2) ? dml_log_softmax(h, -1) : h;
}

/* ---- comparisons ---- */

typedef struct texts {
    int length;
    bool letters;
    int32_t *letter; /* (TEXTS, length) */
    float *number;   /* (TEXTS, length, 3) */
    float *want;     /* (TEXTS, length, LETTERS) */
} texts;

static texts texts_create(dml_context *context, dml_node *y, int length, bool letters)
{
    texts t = { length, letters, NULL, NULL, NULL };
    const size_t count = (size_t)TEXTS * (size_t)length;
    t.letter = (int32_t *)calloc(count, sizeof *t.letter);
    t.number = (float *)calloc(3 * count, sizeof *t.number);
    t.want = (float *)calloc(LETTERS * count, sizeof *t.want);
    for (size_t i = 0; i < count; i++) t.letter[i] = (int32_t)any(LETTERS);
    for (size_t i = 0; i < 3 * count; i++) t.number[i] = (float)any(2001) / 1000 - 1;
    dml_program *whole = dml_compile(y, &(dml_program_options){ .batch = TEXTS });
    const void *inputs[] = { letters ? (const void *)t.letter : t.number };
    CHECK_MESSAGE(dml_program_run(whole, TEXTS, inputs, 1, t.want) == DML_OK, "%s", dml_error(context));
    dml_program_destroy(whole);
    return t;
}

static void texts_destroy(texts *t)
{
    free(t->letter), free(t->number), free(t->want);
}

/* The next `count` positions of `rows` texts, as dml_decoder_feed takes them, and the last of their rows. */
static void check_row(const texts *t, int text, int position, const float *row)
{
    for (int c = 0; c < LETTERS; c++) {
        const float want = t->want[(text * t->length + position) * LETTERS + c];
        CHECK_MESSAGE(fabsf(row[c] - want) <= 2e-5f * (1 + fabsf(want)),
                      "text %d, position %d, letter %d: %g, the whole net has %g", text, position, c,
                      (double)row[c], (double)want);
    }
}

/* The rows of all positions; the last ones are what dml_decoder_feed gives. */
static dml_status feed_rows(dml_decoder *d, const texts *t, int rows, const void *x, int count, float *last)
{
    float *all = (float *)malloc((size_t)rows * (size_t)count * LETTERS * sizeof *all);
    const dml_status status = dml_decoder_feed_rows(d, rows, x, count, all);
    for (int r = 0; r < rows && status == DML_OK; r++) {
        for (int i = 0; i < count; i++)
            check_row(t, r, dml_decoder_place(d, r) - count + i, all + (r * count + i) * LETTERS);
        memcpy(last + r * LETTERS, all + (r * count + count - 1) * LETTERS, LETTERS * sizeof *last);
    }
    free(all);
    return status;
}

static dml_status feed(dml_decoder *d, const texts *t, int rows, int count, float *last)
{
    const size_t each = t->letters ? sizeof(int32_t) : 3 * sizeof(float);
    const char *from = t->letters ? (const char *)t->letter : (const char *)t->number;
    char *x = (char *)malloc((size_t)rows * (size_t)count * each);
    for (int r = 0; r < rows; r++)
        memcpy(x + (size_t)(r * count) * each,
               from + (size_t)(r * t->length + dml_decoder_place(d, r)) * each, (size_t)count * each);
    const bool all = last && any(3) == 0;
    const dml_status status =
        all ? feed_rows(d, t, rows, x, count, last) : dml_decoder_feed(d, rows, x, count, last);
    free(x);
    return status;
}

static void check_rows(const dml_decoder *d, const texts *t, int rows, const float *last)
{
    for (int r = 0; r < rows; r++) check_row(t, r, dml_decoder_place(d, r) - 1, last + r * LETTERS);
}

static int furthest(const dml_decoder *d, int rows)
{
    int most = 0;
    for (int r = 0; r < rows; r++)
        if (dml_decoder_place(d, r) > most) most = dml_decoder_place(d, r);
    return most;
}

/* In pieces of any size, several times, each from anywhere in the one before: all texts at one place, or each
   at its own. */
static void feed_all(dml_context *context, dml_decoder *d, const texts *t, int rows)
{
    float last[TEXTS * LETTERS];
    for (int again = 0; again < 3; again++) {
        while (furthest(d, rows) < t->length) {
            const int left = t->length - furthest(d, rows);
            const int count = any(2) ? 1 : 1 + (int)any((unsigned)left);
            CHECK_MESSAGE(feed(d, t, rows, count, last) == DML_OK, "%s", dml_error(context));
            check_rows(d, t, rows, last);
        }
        if (again == 0)
            CHECK_INT(dml_decoder_rewind(d, DML_ALL_TEXTS, (int)any((unsigned)t->length)), DML_OK);
        for (int r = 0; r < rows && again; r++)
            CHECK_INT(dml_decoder_rewind(d, r, (int)any((unsigned)dml_decoder_place(d, r) + 1)), DML_OK);
    }
}

/* A text that is copied goes on as the one it was copied of. */
static void copy_texts(dml_context *context, dml_decoder *d, texts *t)
{
    float last[TEXTS * LETTERS];
    const size_t letters = (size_t)t->length, scores = letters * LETTERS;
    CHECK_INT(dml_decoder_rewind(d, DML_ALL_TEXTS, 0), DML_OK);
    CHECK_INT(feed(d, t, 1, 1 + (int)any((unsigned)t->length - 1), NULL), DML_OK);
    for (int to = 0; to < TEXTS; to++) {
        CHECK_INT(dml_decoder_copy(d, 0, to), DML_OK);
        memcpy(t->letter + (size_t)to * letters, t->letter, letters * sizeof *t->letter);
        memcpy(t->number + (size_t)to * 3 * letters, t->number, 3 * letters * sizeof *t->number);
        memmove(t->want + (size_t)to * scores, t->want, scores * sizeof *t->want);
        CHECK_INT(dml_decoder_place(d, to), dml_decoder_place(d, 0));
    }
    CHECK_MESSAGE(feed(d, t, TEXTS, 1, last) == DML_OK, "%s", dml_error(context));
    check_rows(d, t, TEXTS, last);
}

static void one_net(unsigned seed, int longest)
{
    state = seed;
    dml_context *context = open_here(&(dml_options){ .threads = 1 + (int)any(3), .seed = seed });
    dml_graph *g = dml_graph_create(context);
    const int length = 2 + (int)any((unsigned)longest - 1);
    const bool letters = any(3) > 0;
    dml_node *y = net(g, length, letters);
    const size_t parameters = dml_graph_parameter_count(g);
    const dml_decoder_options o = { .batch = TEXTS,
                                    .chunk = (int)any(3) ? 1 + (int)any((unsigned)length + 4) : 0 };
    const dml_node *before = g->last;
    dml_decoder *d = dml_decoder_create(y, dml_graph_find(g, "x"), &o);
    CHECK_MESSAGE(d, "net %u: %s", seed, dml_error(context));
    CHECK(dml_graph_parameter_count(g) == parameters);
    texts t = texts_create(context, y, length, letters);
    feed_all(context, d, &t, 1 + (int)any(TEXTS));
    CHECK_INT(dml_decoder_rewind(d, DML_ALL_TEXTS, 0), DML_OK);
    feed_all(context, d, &t, TEXTS);
    copy_texts(context, d, &t);
    texts_destroy(&t);
    dml_decoder_destroy(d);
    CHECK(g->last == before);
    dml_close(context);
}

static void random_nets(void)
{
    const unsigned nets = slow_here() ? 3 : cpu_here() ? 60 : 12;
    for (unsigned seed = 1; seed <= nets; seed++) one_net(seed, slow_here() ? 12 : seed % 8 ? 40 : 300);
}
EACH_BACKEND(random_nets)

/* ---- what it promises beside ---- */

static void new_values_are_used(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    state = 5;
    dml_node *y = net(g, 9, true);
    dml_decoder *d = dml_decoder_create(y, dml_graph_find(g, "x"), NULL);
    texts t = texts_create(context, y, 9, true);
    feed_all(context, d, &t, 1);
    texts_destroy(&t);
    dml_node *table = dml_graph_find(g, "table");
    float values[LETTERS * CHANNELS];
    for (int i = 0; i < LETTERS * CHANNELS; i++) values[i] = (float)any(100) / 50 - 1;
    CHECK_INT(dml_parameter_write(table, values, LETTERS * CHANNELS), DML_OK);
    CHECK_INT(dml_decoder_rewind(d, DML_ALL_TEXTS, 0), DML_OK);
    t = texts_create(context, y, 9, true);
    feed_all(context, d, &t, 1);
    texts_destroy(&t);
    dml_decoder_destroy(d);
    dml_decoder_destroy(NULL);
    dml_close(context);
}

/* Tables of the model don't have what decoders make again. */
static void tables_leave_it_out(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    char *table[2];
    state = 5;
    dml_node *y = net(g, 9, true);
    for (int i = 0; i < 2; i++) {
        FILE *file = test_file();
        CHECK_INT(dml_graph_print(g, file), DML_OK);
        CHECK_INT(dml_graph_to_dot(g, file), DML_OK);
        const size_t bytes = (size_t)ftell(file);
        table[i] = (char *)calloc(bytes + 1, 1);
        rewind(file);
        CHECK(fread(table[i], 1, bytes, file) == bytes);
        fclose(file);
        CHECK(dml_decoder_create(y, dml_graph_find(g, "x"), NULL));
    }
    CHECK_STRING(table[1], table[0]);
    free(table[0]), free(table[1]);
    dml_close(context);
}

/* Two of one graph keep each what is their own; nothing is left of one that is refused. */
static void two_at_once(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    state = 7;
    dml_node *y = net(g, 20, true), *x = dml_graph_find(g, "x");
    dml_decoder *d[2] = { dml_decoder_create(y, x, NULL), dml_decoder_create(y, x, NULL) };
    texts t[2] = { texts_create(context, y, 20, true), texts_create(context, y, 20, true) };
    float last[LETTERS];
    for (int i = 0; i < 20; i++)
        for (int k = 0; k < 2; k++) {
            CHECK_INT(feed(d[k], &t[k], 1, 1, last), DML_OK);
            check_rows(d[k], &t[k], 1, last);
        }
    dml_decoder_destroy(d[0]);
    CHECK_INT(dml_decoder_rewind(d[1], 0, 0), DML_OK);
    feed_all(context, d[1], &t[1], 1);
    texts_destroy(&t[0]), texts_destroy(&t[1]);
    dml_close(context);
}

static void check_feed(dml_context *context, dml_status got, dml_status want, const char *part)
{
    CHECK_INT(got, want);
    CHECK_CONTAINS(dml_error(context), part);
    dml_clear_error(context);
}

static void wrong_calls(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    state = 9;
    dml_node *y = net(g, 6, true);
    dml_decoder *d = dml_decoder_create(y, dml_graph_find(g, "x"), &(dml_decoder_options){ .batch = 2 });
    const int32_t x[8] = { 0 }, wrong[4] = { 1, 2, 0, LETTERS };
    float last[2 * LETTERS];
    check_feed(context, dml_decoder_feed(d, 3, x, 1, last), DML_ERROR_ARGUMENT,
               "3 texts given; it takes 1 to 2");
    check_feed(context, dml_decoder_feed(d, INT_MAX, x, 1, last), DML_ERROR_ARGUMENT,
               "2147483647 texts given");
    check_feed(context, dml_decoder_feed(d, 0, x, 1, last), DML_ERROR_ARGUMENT, "0 texts given");
    check_feed(context, dml_decoder_feed(d, 1, x, 0, last), DML_ERROR_ARGUMENT, "0 positions given");
    check_feed(context, dml_decoder_feed(d, 1, NULL, 1, last), DML_ERROR_ARGUMENT, "no positions (NULL)");
    check_feed(context, dml_decoder_feed(d, 1, x, 7, last), DML_ERROR_STATE, "7 positions given behind 0");
    check_feed(context, dml_decoder_rewind(d, 0, 1), DML_ERROR_ARGUMENT,
               "place 1 asked for; it must be in 0 .. 0");
    check_feed(context, dml_decoder_feed_rows(d, 1, x, 1, NULL), DML_ERROR_ARGUMENT,
               "dml_decoder_feed_rows was given no rows to write (NULL)");
    CHECK_INT(dml_decoder_feed(d, 1, x, 2, NULL), DML_OK);
    check_feed(context, dml_decoder_feed(d, 2, wrong, 2, last), DML_ERROR_ARGUMENT,
               "position 1 of text 1 is 13; of 'x' they must be in 0 .. 12");
    check_feed(context, dml_decoder_feed_rows(d, 1, wrong + 3, 1, last), DML_ERROR_ARGUMENT,
               "dml_decoder_feed_rows: position 0 of text 0 is 13");
    CHECK_INT(dml_decoder_place(d, 0), 2);
    CHECK_INT(dml_decoder_place(d, 1), 0);
    check_feed(context, dml_decoder_feed(d, 2, x, 5, last), DML_ERROR_STATE,
               "5 positions given behind 2, but the net has 6");
    check_feed(context, dml_decoder_rewind(d, 0, 3), DML_ERROR_ARGUMENT,
               "place 3 asked for; it must be in 0 .. 2");
    check_feed(context, dml_decoder_rewind(d, DML_ALL_TEXTS, -1), DML_ERROR_ARGUMENT, "place -1");
    check_feed(context, dml_decoder_rewind(d, 2, 0), DML_ERROR_ARGUMENT,
               "dml_decoder_rewind: text 2 asked for, of 2");
    check_feed(context, dml_decoder_copy(d, 0, 2), DML_ERROR_ARGUMENT, "dml_decoder_copy: text 2 asked for");
    check_feed(context, dml_decoder_copy(d, -1, 0), DML_ERROR_ARGUMENT, "text -1 asked for");
    CHECK_INT(dml_decoder_feed(d, 1, x, 4, last), DML_OK);
    CHECK_INT(dml_decoder_place(d, 0), 6);
    CHECK_INT(dml_decoder_feed(NULL, 1, x, 1, last), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_decoder_feed_rows(NULL, 1, x, 1, last), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_decoder_rewind(NULL, 0, 0), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_decoder_copy(NULL, 0, 0), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_decoder_place(NULL, 0), 0);
    CHECK_INT(dml_decoder_place(d, 2), 0);
    CHECK(!dml_decoder_create(NULL, y, NULL) && !dml_decoder_create(y, NULL, NULL));
    dml_close(context);
}

/* Of rows alone nothing is kept, and the last of several is all that counts; but what is wrong is found. */
static void without_attention(void)
{
    dml_context *context = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "x", DML_I32, 8), *y = dml_dense(dml_embedding(x, LETTERS, 4), LETTERS);
    dml_decoder *d = dml_decoder_create(y, x, NULL);
    const int32_t wrong[4] = { 0, 1, LETTERS, 2 };
    check_feed(context, dml_decoder_feed(d, 1, wrong, 4, NULL), DML_ERROR_ARGUMENT,
               "position 2 of text 0 is 13");
    CHECK_INT(dml_decoder_place(d, 0), 0);
    texts t = texts_create(context, y, 8, true);
    feed_all(context, d, &t, 1);
    texts_destroy(&t);
    dml_close(context);
}

/* What stays in the graph of a decoder that is gone, or is cloned, doesn't run. */
static void gone(void)
{
    dml_context *context = dml_open(NULL), *other = dml_open(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "x", DML_F32, 8, 4);
    dml_node *y = dml_attention(x, x, x, 1, &(dml_attention_options){ .causal = true });
    dml_decoder *d = dml_decoder_create(y, x, NULL);
    dml_node *behind = dml_tanh(y), *kept = dml_graph_find(g, "decoder.1.1.attention_kept_1");
    dml_graph *clone = dml_graph_clone(g, other);
    CHECK(behind && kept && clone);
    CHECK(dml_node_flops(kept) == 8 * (4 * 4 + 3)); /* of one query and all keys */
    dml_decoder_destroy(d);
    CHECK(dml_graph_find(g, "decoder.1.1.attention_kept_1") == kept);
    for (int i = 0; i < 2; i++) {
        dml_node *node = i ? dml_graph_find(clone, "decoder.1.1.attention_kept_1") : kept;
        dml_program *program = dml_compile(node, &(dml_program_options){ .batch = 1 });
        const float input[4] = { 0 };
        const int32_t past = 0;
        float out[4];
        CHECK_INT(dml_program_run(program, 1, DML_INPUTS(input, &past), out), DML_ERROR_STATE);
        CHECK_CONTAINS(dml_error(i ? other : context),
                       "'decoder.1.1.attention_kept_1' is a decoder's, which is gone");
    }
    dml_close(other);
    dml_close(context);
}

/* A thread that finds another in the context changes nothing. */
typedef struct intruder {
    dml_decoder *decoder;
    int refused, took;
} intruder;

static void intrude(void *argument)
{
    intruder *i = (intruder *)argument;
    const int32_t letters[2] = { 1, 2 };
    for (int k = 0; k < 300; k++) {
        const dml_status status = dml_decoder_feed(i->decoder, 2, letters, 1, NULL); /* of texts 0 and 1 */
        if (status == DML_OK)
            i->took++;
        else
            i->refused += status == DML_ERROR_STATE;
        dml_decoder_rewind(i->decoder, 1, 0);
    }
}

static void two_threads(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *g = dml_graph_create(context);
    state = 11;
    dml_node *y = net(g, 700, true);
    dml_decoder *d =
        dml_decoder_create(y, dml_graph_find(g, "x"), &(dml_decoder_options){ .batch = 2, .chunk = 1 });
    intruder i = { d, 0, 0 };
    dml__thread thread;
    if (!dml__thread_start(&thread, intrude, &i)) {
        SKIP("no threads here");
        dml_close(context);
        return;
    }
    const int32_t letter = 3;
    int fed = 0;
    for (int k = 0; k < 300; k++) fed += dml_decoder_feed(d, 1, &letter, 1, NULL) == DML_OK;
    dml__thread_join(&thread);
    CHECK_INT(dml_decoder_place(d, 0) - i.took, fed);
    CHECK_INT(i.took + i.refused, 300);
    CHECK_INT(dml_decoder_rewind(d, DML_ALL_TEXTS, 0), DML_OK); /* who was refused last isn't any more */
    CHECK_MESSAGE(dml_status_of(context) == DML_OK, "%s", dml_error(context));
    dml_close(context);
}

/* Nothing is left of what fails, and as many as one likes can come one behind the other. */
static int32_t calls_left;
static void *allocate_some(void *user, size_t bytes)
{
    (void)user;
    return calls_left-- > 0 ? malloc(bytes) : NULL;
}
static void release_some(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static void no_memory_for_rows(dml_context *context, dml_decoder *d)
{
    const int32_t x[5] = { 0 };
    float all[5 * LETTERS];
    for (int32_t calls = 0; dml_decoder_place(d, 0) == 0 && calls < 2000; calls++) {
        calls_left = calls;
        const dml_status status = dml_decoder_feed_rows(d, 1, x, 5, all);
        calls_left = INT32_MAX;
        CHECK(status == (dml_decoder_place(d, 0) ? DML_OK : DML_ERROR_MEMORY));
        dml_clear_error(context);
    }
    CHECK_INT(dml_decoder_place(d, 0), 5);
}

static void no_memory(void)
{
    bool done = false;
    for (int32_t calls = 0; !done && calls < 3000; calls++) {
        calls_left = INT32_MAX;
        dml_context *context =
            dml_open(&(dml_options){ .threads = 1, .allocator = { allocate_some, release_some, NULL } });
        dml_graph *g = dml_graph_create(context);
        state = 3;
        dml_node *y = net(g, 40, true), *x = dml_graph_find(g, "x");
        dml_program_destroy(dml_compile(y, &(dml_program_options){ .batch = 1 }));
        const dml_node *last = g->last;
        calls_left = calls;
        dml_decoder *d = dml_decoder_create(y, x, NULL);
        calls_left = INT32_MAX;
        done = d != NULL;
        CHECK(done || (g->last == last && dml_status_of(context) == DML_ERROR_MEMORY));
        if (d) no_memory_for_rows(context, d);
        dml_decoder_destroy(d);
        CHECK(g->last == last);
        dml_close(context);
    }
    CHECK(done);
}

/* ---- what it refuses ---- */

static dml_node *of_all(dml_graph *g, dml_node *h)
{
    (void)g;
    return dml_multi_head_attention(h, 2, NULL);
}
static dml_node *of_lengths(dml_graph *g, dml_node *h)
{
    return dml_multi_head_attention(
        h, 2,
        &(dml_multi_head_attention_options){ .causal = true, .lengths = dml_input(g, "lengths", DML_I32) });
}
static dml_node *of_memory(dml_graph *g, dml_node *h)
{
    dml_node *memory = dml_dense(dml_input(g, "memory", DML_F32, 5, 3), 8);
    return dml_multi_head_attention(h, 2,
                                    &(dml_multi_head_attention_options){ .causal = true, .memory = memory });
}
static dml_node *of_sum(dml_graph *g, dml_node *h)
{
    (void)g;
    return dml_sub(h, dml_mean(h, dml_shape_of(0), true));
}
static dml_node *of_softmax(dml_graph *g, dml_node *h)
{
    (void)g;
    return dml_softmax(h, 0);
}
static dml_node *of_slice(dml_graph *g, dml_node *h)
{
    (void)g;
    return dml_slice(h, 0, 1, 3);
}
static dml_node *of_conv(dml_graph *g, dml_node *h)
{
    (void)g;
    return dml_conv1d(h, &(dml_conv1d_options){ .filters = 8, .kernel = 3, .causal = true });
}
static dml_node *of_product(dml_graph *g, dml_node *h)
{
    (void)g;
    return dml_matmul(h, dml_tanh(h));
}
static dml_node *of_transposed(dml_graph *g, dml_node *h)
{
    dml_node *w = dml_parameter(g, "w", dml_init_constant(1), 8, 5);
    return dml_matmul_with(h, w, &(dml_matmul_options){ .transpose_a = true });
}
static dml_node *of_last_axes(dml_graph *g, dml_node *h)
{
    (void)g;
    return dml_softmax(h, -2);
}
/* Of one number a position. */
static dml_node *of_numbers(dml_graph *g)
{
    return dml_input(g, "numbers", DML_F32, 8);
}
static dml_node *of_dense(dml_graph *g, dml_node *h)
{
    (void)h;
    return dml_dense(of_numbers(g), 8);
}
static dml_node *of_norm(dml_graph *g, dml_node *h)
{
    (void)h;
    return dml_layer_norm(of_numbers(g), NULL);
}
/* Rows of columns: number t is added to column t of each position. */
static dml_node *of_broadcast(dml_graph *g, dml_node *h)
{
    dml_node *numbers = of_numbers(g);
    (void)h;
    return dml_add(dml_mul(numbers, dml_parameter(g, "rows", dml_init_constant(1), 8, 8)), numbers);
}
static dml_node *of_itself(dml_graph *g, dml_node *h)
{
    (void)h;
    return dml_dense(dml_parameter(g, "h", dml_init_constant(1), 8, 8), 4);
}

static const struct {
    dml_node *(*build)(dml_graph *g, dml_node *h);
    dml_status status;
    const char *part;
} refusals[] = {
    { of_all, DML_ERROR_UNSUPPORTED, "lets a position see later ones; it has to be causal" },
    { of_lengths, DML_ERROR_UNSUPPORTED, "is made of input 'lengths', too; it takes one of 'x' alone" },
    { of_memory, DML_ERROR_UNSUPPORTED, "is made of input 'memory', too" },
    { of_sum, DML_ERROR_UNSUPPORTED, "decoder: mean 'mean_1' hasn't one row for each position" },
    { of_softmax, DML_ERROR_UNSUPPORTED, "decoder: softmax 'softmax_1' works along the positions" },
    { of_slice, DML_ERROR_UNSUPPORTED, "decoder: slice 'slice_1' hasn't one row for each position" },
    { of_conv, DML_ERROR_UNSUPPORTED, "decoder: conv1d 'conv1d_1' is none of those that work position by" },
    { of_product, DML_ERROR_UNSUPPORTED, "decoder: matmul 'matmul_1' takes more than its first input" },
    { of_transposed, DML_ERROR_UNSUPPORTED, "decoder: matmul 'matmul_1' is none of those that work" },
    { of_last_axes, DML_ERROR_UNSUPPORTED, "decoder: softmax 'softmax_1' works along the positions" },
    { of_dense, DML_ERROR_UNSUPPORTED, "decoder: dense 'dense_2' works along the positions" },
    { of_norm, DML_ERROR_UNSUPPORTED, "decoder: layer_norm 'layer_norm_1' works along the positions" },
    { of_broadcast, DML_ERROR_UNSUPPORTED,
      "decoder: mul 'mul_1' takes the positions of 'numbers' for another" },
    { of_itself, DML_ERROR_ARGUMENT, "isn't made of 'x'" },
};

static void other_nets(void)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        dml_context *context = dml_open(NULL);
        dml_graph *g = dml_graph_create(context);
        dml_node *x = dml_input(g, "x", DML_F32, 8, 3), *y = refusals[i].build(g, dml_dense(x, 8));
        dml_node *numbers = dml__graph_find(g, "numbers");
        CHECK_MESSAGE(y, "%zu: %s", i, dml_error(context));
        CHECK(!dml_decoder_create(y, numbers ? numbers : x, NULL));
        CHECK_INT(dml_status_of(context), refusals[i].status);
        CHECK_CONTAINS(dml_error(context), refusals[i].part);
        dml_clear_error(context);
        CHECK(dml_relu(y) && dml_graph_find(g, "relu_1")); /* nothing is in the way of what follows */
        dml_close(context);
    }
}

static void wrong_options(void)
{
    static const dml_decoder_options wrong[] = { { .batch = -1 }, { .chunk = -5 } };
    for (int i = 0; i < 5; i++) {
        dml_context *context = dml_open(NULL);
        dml_graph *g = dml_graph_create(context), *other = dml_graph_create(context);
        dml_node *x = dml_input(g, "x", DML_F32, 8, 3), *y = dml_dense(x, 4);
        dml_node *short_x = dml_input(g, "short", DML_F32, 1, 3),
                 *elsewhere = dml_input(other, "x", DML_F32, 8, 3);
        if (i < 2) {
            CHECK(!dml_decoder_create(y, x, &wrong[i]));
            CHECK_CONTAINS(dml_error(context), i ? "a chunk of -5 asked for" : "a batch of -1");
        } else if (i == 2) {
            CHECK(!dml_decoder_create(dml_dense(short_x, 2), short_x, NULL));
            CHECK_CONTAINS(dml_error(context),
                           "'short' is f32 1 x 3; it takes an input whose first dimension");
        } else if (i == 3) {
            CHECK(!dml_decoder_create(y, elsewhere, NULL));
            CHECK_CONTAINS(dml_error(context), "of different graphs");
        } else {
            CHECK(!dml_decoder_create(dml_tanh(y), y, NULL));
            CHECK_CONTAINS(dml_error(context), "is no input; the output comes first");
        }
        CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
        dml_close(context);
    }
}

int main(void)
{
    RUN_EACH(random_nets);
    RUN(new_values_are_used);
    RUN(tables_leave_it_out);
    RUN(two_at_once);
    RUN(wrong_calls);
    RUN(without_attention);
    RUN(gone);
    RUN(two_threads);
    RUN(no_memory);
    RUN(other_nets);
    RUN(wrong_options);
    return test_report("decode/decoder");
}
