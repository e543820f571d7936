/* Names, scopes, and walking a graph: what each node is called, where it stands, and what it says of itself.
 */
#include "graph/graph.h"

#include "graph/node.h"
#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_attention.h"
#include "ops/op_conv2d.h"
#include "ops/op_conv_transpose2d.h"
#include "ops/op_dense.h"
#include "ops/op_dropout.h"
#include "ops/op_embedding.h"
#include "ops/op_local2d.h"
#include "ops/op_gather.h"
#include "ops/op_embedding_bag.h"
#include "ops/op_loss.h"
#include "ops/op_matmul.h"
#include "ops/op_norm.h"
#include "ops/op_pool2d.h"
#include "ops/op_custom.h"
#include "ops/op_reduce.h"
#include "ops/op_rotary.h"
#include "ops/op_recurrent.h"
#include "ops/op_sample_norm.h"
#include "ops/op_shape.h"
#include "ops/op_slice2d.h"
#include "ops/op_softmax.h"
#include "ops/table.h"
#include "graph/weights.h"

#include "../test.h"

static dml_context *context;
static dml_graph *graph;

static void open_graph(void)
{
    context = dml_open(&(dml_options){ .threads = 1 });
    graph = dml_graph_create(context);
}

static void close_graph(void)
{
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

static dml_node *row(const char *name)
{
    return dml_input(graph, name, DML_F32, 3);
}

/* `call` must fail with this, and leave the nodes and the scope as they were. */
#define REFUSED(call, status, part)                                                                          \
    do {                                                                                                     \
        const dml_node *test__last = graph->last;                                                            \
        const int test__nodes = graph->nodes;                                                                \
        char test__scope[DML_NAME_BYTES];                                                                    \
        memcpy(test__scope, graph->scope, sizeof test__scope);                                               \
        CHECK(!(call));                                                                                      \
        CHECK_INT(dml_status_of(context), status);                                                           \
        CHECK_CONTAINS(dml_error(context), part);                                                            \
        CHECK(graph->last == test__last && (!test__last || !test__last->next));                              \
        CHECK_INT(graph->nodes, test__nodes);                                                                \
        CHECK_STRING(graph->scope, test__scope);                                                             \
        dml_clear_error(context);                                                                            \
    } while (0)

static void check_name(const dml_node *node, const char *name)
{
    CHECK_STRING(dml_node_name(node), name);
    CHECK(node && dml_graph_find(graph, name) == node);
}

/* ---- names ---- */

static void numbers_count_each_op_by_itself(void)
{
    open_graph();
    dml_node *x = row(NULL), *a = dml_dense(x, 4), *b = dml_dense(a, 4);
    check_name(x, "input_1");
    check_name(row(""), "input_2");
    check_name(a, "dense_1");
    check_name(b, "dense_2");
    check_name(dml_node_input(b, 1), "dense_2.weight");
    check_name(dml_node_input(b, 2), "dense_2.bias");
    check_name(dml_relu(a), "relu_1");
    check_name(dml_tanh(a), "tanh_1");
    check_name(dml_relu(b), "relu_2");
    check_name(dml_add(a, b), "add_1");
    check_name(dml_parameter(graph, NULL, dml_init_constant(0), 2), "parameter_1");
    check_name(dml_parameter(graph, "", dml_init_constant(0), 2), "parameter_2");
    check_name(dml_conv2d(dml_input(graph, "image", DML_F32, 4, 4, 1), &(dml_conv2d_options){ .filters = 1 }),
               "conv2d_1");
    close_graph();
}

/* A number that the caller took is passed over, also by the parameters of the layer. */
static void numbers_step_around_names(void)
{
    open_graph();
    dml_node *x = row("relu_1");
    check_name(dml_relu(x), "relu_2");
    check_name(dml_relu(x), "relu_3");
    row("dense_1"), row("dense_2");
    dml_node *y = dml_dense(x, 2);
    check_name(y, "dense_3");
    check_name(dml_node_input(y, 1), "dense_3.weight");
    check_name(dml_node_input(y, 2), "dense_3.bias");
    row("tanh_2");
    check_name(dml_tanh(x), "tanh_1");
    check_name(dml_tanh(x), "tanh_3");
    close_graph();
}

static void names_with_dots(void)
{
    open_graph();
    dml_node *a = row("block.relu_1"), *b = row("a.b.c");
    check_name(b, "a.b.c");
    CHECK_INT(dml_push_scope(graph, "block"), DML_OK);
    check_name(dml_relu(a), "block.relu_2");
    check_name(row("x.y"), "block.x.y");
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    check_name(dml_relu(a), "relu_1");
    REFUSED(row("block.relu_2"), DML_ERROR_ARGUMENT, "the graph has a node of that name");
    CHECK_INT(dml_push_scope(graph, "a.b"), DML_OK); /* a scope may have dots too */
    REFUSED(row("c"), DML_ERROR_ARGUMENT, "input 'a.b.c'");
    check_name(row("d"), "a.b.d");
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    CHECK_STRING(graph->scope, "");
    close_graph();
}

static void names_that_are_refused(void)
{
    const dml_initializer zero = dml_init_constant(0);
    open_graph();
    dml_node *x = row("x");
    REFUSED(
        row("x"), DML_ERROR_ARGUMENT,
        "input 'x': the graph has a node of that name; give another one, or tell repeated blocks apart with "
        "dml_push_scope");
    REFUSED(dml_parameter(graph, "x", zero, 3), DML_ERROR_ARGUMENT, "parameter 'x': the graph has a node");
    REFUSED(row("dml.w"), DML_ERROR_ARGUMENT,
            "input 'dml.w': names that begin with 'dml.', and '__metadata__', are the files' own");
    REFUSED(dml_parameter(graph, "dml.", zero, 3), DML_ERROR_ARGUMENT, "parameter 'dml.'");
    REFUSED(dml_parameter(graph, "__metadata__", zero, 3), DML_ERROR_ARGUMENT, "'__metadata__'");
    check_name(row("dml"), "dml");
    check_name(row("dmlx.w"), "dmlx.w");
    check_name(row("__metadata__2"), "__metadata__2");
    CHECK_INT(dml_push_scope(graph, "dml"), DML_OK);
    REFUSED(row("x"), DML_ERROR_ARGUMENT, "input 'dml.x'");
    REFUSED(dml_relu(x), DML_ERROR_ARGUMENT, "relu 'dml.relu_1'");
    REFUSED(dml_dense(x, 2), DML_ERROR_ARGUMENT, "dense 'dml.dense_1'");
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    CHECK_INT(dml_push_scope(graph, "a"), DML_OK);
    check_name(row("dml.x"), "a.dml.x"); /* only what the whole name begins with counts */
    check_name(row("__metadata__"), "a.__metadata__");
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    close_graph();
}

/* What a layer had built by then goes with it, and its name is free again. */
/* A file could not hold it, which would be found out after the training. */
static void names_are_utf8(void)
{
    open_graph();
    CHECK(dml_input(graph, "caf\xc3\xa9", DML_F32));
    CHECK(!dml_input(graph, "caf\xe9", DML_F32));
    CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "UTF-8");
    dml_clear_error(context);
    CHECK_INT(dml_push_scope(graph, "\xff"), DML_OK);
    CHECK(!dml_input(graph, "x", DML_F32));
    CHECK_CONTAINS(dml_error(context), "UTF-8");
    dml_clear_error(context);
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    close_graph();
}

/* Tables, logs and sentences show names as they are. */
static void names_fit_on_a_line(void)
{
    open_graph();
    REFUSED(row("two\nlines"), DML_ERROR_ARGUMENT, "input 'two?lines': a name with control characters");
    REFUSED(row("\t"), DML_ERROR_ARGUMENT, "control characters");
    REFUSED(row("\x7f"), DML_ERROR_ARGUMENT, "control characters");
    CHECK_INT(dml_push_scope(graph, "a\r"), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "a scope 'a?': a name with control characters");
    dml_clear_error(context);
    CHECK_STRING(graph->scope, "");
    CHECK(!dml_graph_find(graph, "no\nsuch"));
    CHECK_CONTAINS(dml_error(context), "'no?such'");
    dml_clear_error(context);
    check_name(row("caf\xc3\xa9 ~"), "caf\xc3\xa9 ~");
    close_graph();
}

/* Named ones count too, and those of other scopes don't, many of which share a place in the table. */
static void numbers_count_in_a_scope(void)
{
    open_graph();
    for (int i = 0; i < 100; i++) {
        char want[32];
        CHECK_INT(dml_push_scope(graph, "s%02d", i), DML_OK);
        snprintf(want, sizeof want, "s%02d.input_1", i);
        check_name(row(NULL), want);
        row("x");
        snprintf(want, sizeof want, "s%02d.input_3", i);
        check_name(row(NULL), want);
        CHECK_INT(dml_pop_scope(graph), DML_OK);
    }
    close_graph();
}

static void refused_layers_leave_nothing(void)
{
    open_graph();
    dml_node *x = row("x"), *image = dml_input(graph, "image", DML_F32, 4, 4, 2);
    dml_node *labels = dml_input(graph, "labels", DML_I32, 4);
    const dml_conv2d_options large = { .filters = 2, .kernel = { 9, 9 } };
    REFUSED(dml_dense(labels, 3), DML_ERROR_SHAPE, "dense 'dense_1': its input is i32 4");
    REFUSED(dml_conv2d(x, &(dml_conv2d_options){ .filters = 2 }), DML_ERROR_SHAPE, "conv2d 'conv2d_1'");
    REFUSED(dml_conv2d(image, &large), DML_ERROR_SHAPE, "a kernel of 9 x 9");
    CHECK(!dml__graph_find(graph, "dense_1.weight") && !dml__graph_find(graph, "conv2d_1.weight"));
    CHECK_INT(dml_graph_parameters(graph), 0);
    row("dense_1.bias"); /* the weight can be named, the bias can't */
    REFUSED(dml_dense(x, 3), DML_ERROR_ARGUMENT,
            "parameter 'dense_1.bias': the graph has a node of that name");
    row("conv2d_1.bias");
    REFUSED(dml_conv2d(image, &(dml_conv2d_options){ .filters = 2 }), DML_ERROR_ARGUMENT, "'conv2d_1.bias'");
    check_name(dml_conv2d(image, &(dml_conv2d_options){ .filters = 2, .no_bias = true }), "conv2d_1");

    close_graph();
}

/* A name that a layer's parameters no longer fit into is refused as a whole. */
static void layers_with_long_names(void)
{
    char name[DML_NAME_BYTES];
    memset(name, 's', sizeof name);
    open_graph();
    dml_node *x = row("x"), *shared = dml_parameter(graph, "w", dml_init_constant(0), 2, 3);
    name[DML_NAME_BYTES - 1 - strlen(".dense_1.bias")] = '\0'; /* ".dense_1.weight" is two too many */
    CHECK_INT(dml_push_scope(graph, "%s", name), DML_OK);
    REFUSED(dml_dense(x, 2), DML_ERROR_ARGUMENT, "the whole name may have 127 bytes");
    dml_node *y = dml_dense_with(x, shared, NULL);
    CHECK(y && strlen(dml_node_name(y)) == DML_NAME_BYTES - 1 - strlen(".bias"));
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    close_graph();
}

/* ---- scopes ---- */

static void scopes_nest(void)
{
    open_graph();
    dml_node *x = row("x"), *h = x;
    for (int i = 0; i < 3; i++) {
        char name[64];
        CHECK_INT(dml_push_scope(graph, "block.%d", i), DML_OK);
        h = dml_dense(h, 3);
        snprintf(name, sizeof name, "block.%d.dense_1", i);
        check_name(h, name);
        CHECK_INT(dml_push_scope(graph, "attn"), DML_OK);
        h = dml_relu(dml_dense(h, 3));
        snprintf(name, sizeof name, "block.%d.attn.relu_1", i);
        check_name(h, name);
        CHECK_INT(dml_pop_scope(graph), DML_OK);
        h = dml_dense(h, 3); /* what is inside "attn" isn't counted here */
        snprintf(name, sizeof name, "block.%d.dense_2", i);
        check_name(h, name);
        CHECK_INT(dml_pop_scope(graph), DML_OK);
    }
    check_name(dml_dense(h, 3), "dense_1");
    CHECK_INT(dml_push_scope(graph, "block.%d", 1), DML_OK); /* the same scope again goes on counting */
    check_name(dml_dense(x, 3), "block.1.dense_3");
    CHECK_INT(dml_push_scope(graph, "attn"), DML_OK);
    check_name(dml_dense(x, 3), "block.1.attn.dense_2");
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    CHECK_INT(dml_push_scope(graph, "block"), DML_OK); /* a scope around the others has none of theirs */
    check_name(dml_dense(x, 3), "block.dense_1");
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    CHECK(dml_graph_find(graph, "block.2.attn.dense_1.weight") && !dml__graph_find(graph, "attn.dense_1"));
    CHECK(!dml__graph_find(graph, "block.2.attn.dense_1.") && !dml__graph_find(graph, ""));
    close_graph();
}

static void scopes_that_are_refused(void)
{
    open_graph();
    REFUSED(dml_pop_scope(graph) == DML_OK, DML_ERROR_STATE, "a scope is popped, but none has been pushed");
    REFUSED(dml_push_scope(graph, "%s", "") == DML_OK, DML_ERROR_ARGUMENT, "names are of 1 to 127 bytes");
    for (int i = 0; i < DML_MAX_SCOPES; i++) CHECK_INT(dml_push_scope(graph, "s%d", i % 10), DML_OK);
    REFUSED(dml_push_scope(graph, "deep") == DML_OK, DML_ERROR_ARGUMENT,
            "a scope 'deep' inside 's0.s1.s2.s3.s4.s5.s6.s7.s8.s9.s0.s1.s2.s3.s4.s5.': they nest at most 16 "
            "deep; is a pop missing?");
    for (int i = 0; i < DML_MAX_SCOPES; i++) CHECK_INT(dml_pop_scope(graph), DML_OK);
    CHECK_STRING(graph->scope, "");
    REFUSED(dml_pop_scope(graph) == DML_OK, DML_ERROR_STATE, "popped");

    char name[DML_NAME_BYTES + 10];
    memset(name, 'n', sizeof name);
    name[100] = '\0';
    CHECK_INT(dml_push_scope(graph, "%s", name), DML_OK); /* 101 bytes with its dot; 26 are left */
    name[26] = '\0';
    REFUSED(dml_push_scope(graph, "%s", name) == DML_OK, DML_ERROR_ARGUMENT, "scopes included");
    name[25] = '\0';
    CHECK_INT(dml_push_scope(graph, "%s", name), DML_OK);
    CHECK_INT(strlen(graph->scope), DML_NAME_BYTES - 1);
    REFUSED(row("x"), DML_ERROR_ARGUMENT, "input 'x' in the scope");
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    CHECK_INT(strlen(graph->scope), 101);
    name[25] = 'n', name[26] = '\0';
    CHECK_INT(strlen(dml_node_name(row(name))), DML_NAME_BYTES - 1);
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    CHECK_INT(dml_push_scope(NULL, "x"), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_pop_scope(NULL), DML_ERROR_ARGUMENT);
    close_graph();
}

/* What a layer is made of counts among its own, so that it doesn't move what comes after. */
static void layers_inside_of_layers(void)
{
    open_graph();
    dml_node *x = dml_input(graph, "x", DML_F32, 4, 6), *m = dml_input(graph, "m", DML_F32, 3, 6);
    dml_node *a = dml_multi_head_attention(x, 2, NULL);
    check_name(a, "attention_1.dense_2");
    check_name(dml_node_input(a, 1), "attention_1.out_proj.weight");
    check_name(dml_node_input(a, 0), "attention_1");
    check_name(dml_dense(a, 6), "dense_1");
    CHECK_INT(dml_push_scope(graph, "block"), DML_OK);
    dml_node *b =
        dml_multi_head_attention(a, 3, &(dml_multi_head_attention_options){ .memory = m, .rotary = true });
    check_name(b, "block.attention_1.dense_3");
    check_name(dml_rotary(dml_slice(dml_dense(b, 6), 0, 0, 2), 3, NULL), "block.rotary_1");
    CHECK(dml_graph_find(graph, "block.dense_1.weight") && dml_graph_find(graph, "block.slice_1"));
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    check_name(dml_multi_head_attention(x, 2, NULL), "attention_2.dense_2");
    for (int i = 0; i < DML_MAX_SCOPES; i++) CHECK_INT(dml_push_scope(graph, "s"), DML_OK);
    REFUSED(dml_multi_head_attention(x, 2, NULL), DML_ERROR_ARGUMENT, "a scope 'attention_1' inside");
    for (int i = 0; i < DML_MAX_SCOPES; i++) CHECK_INT(dml_pop_scope(graph), DML_OK);
    CHECK_STRING(graph->scope, "");
    close_graph();
}

/* ---- walking ---- */

static void walking_sees_each_node_after_its_inputs(void)
{
    enum { MOST = 32 };
    const dml_node *seen[MOST];
    int count = 0;
    open_graph();
    CHECK(!dml_graph_first(graph));
    dml_node *x = dml_input(graph, "x", DML_F32, 6, 6, 2), *t = dml_input(graph, "t", DML_I32);
    dml_node *c = dml_relu(dml_conv2d(x, &(dml_conv2d_options){ .filters = 3 }));
    CHECK(!dml_conv2d(c, &(dml_conv2d_options){ .filters = -1 }) && !dml_relu(t)); /* none of these */
    dml_clear_error(context);
    CHECK(dml_softmax_cross_entropy(dml_dense(dml_flatten(c), 4), t));
    for (dml_node *n = dml_graph_first(graph); n && count < MOST; n = dml_node_next(n)) {
        CHECK(dml_node_graph(n) == graph && dml_graph_find(graph, dml_node_name(n)) == n);
        for (int i = 0; i < dml_node_inputs(n); i++) {
            bool before = false;
            for (int k = 0; k < count; k++) before = before || seen[k] == dml_node_input(n, i);
            CHECK_MESSAGE(before, "input %d of '%s' comes after it", i, dml_node_name(n));
        }
        CHECK(!dml_node_input(n, dml_node_inputs(n)) && !dml_node_input(n, -1));
        CHECK_INT(dml_node_batched(n), strcmp(dml_node_op(n), "parameter") != 0 &&
                                           strcmp(dml_node_op(n), "softmax_cross_entropy") != 0);
        seen[count++] = n;
    }
    CHECK_INT(count, 11);
    CHECK(seen[0] == x && seen[count - 1] == graph->last);
    close_graph();
}

static void nothing_of_no_node(void)
{
    char text[8] = "unused";
    CHECK(!dml_node_next(NULL) && !dml_graph_first(NULL) && !dml_node_graph(NULL) &&
          !dml_node_input(NULL, 0));
    CHECK_STRING(dml_node_name(NULL), "");
    CHECK_STRING(dml_node_op(NULL), "");
    CHECK_INT(dml_node_shape(NULL).ndim, 0);
    CHECK_INT(dml_node_dtype(NULL), DML_F32);
    CHECK(!dml_node_batched(NULL) && dml_node_inputs(NULL) == 0);
    CHECK_STRING(dml_node_describe(NULL, text, sizeof text), "");
    CHECK_STRING(dml_node_describe(NULL, NULL, 0), "");
    CHECK_NEAR(dml_node_flops(NULL), 0, 0);
    CHECK(!dml_parameter_trained(NULL));
}

/* ---- what ops say of themselves ---- */

static dml_status nothing(const dml_custom_call *call)
{
    (void)call;
    return DML_OK;
}

static void check_says(const dml_node *node, const char *words, double flops)
{
    char text[128];
    CHECK_STRING(dml_node_describe(node, text, sizeof text), words);
    CHECK_MESSAGE(dml_node_flops(node) == flops, "%s: %.0f flops, not %.0f", dml_node_name(node),
                  dml_node_flops(node), flops);
}

static void descriptions_and_flops(void)
{
    open_graph();
    dml_node *x = dml_input(graph, "x", DML_F32, 8, 7, 3), *r = row("r"), *t = dml_input(graph, "t", DML_I32);
    const dml_conv2d_options uneven = {
        .filters = 5, .kernel = { 3, 2 }, .stride = { 2, 1 }, .padding = { 1, 0 }
    };
    const dml_pool2d_options window = { .kernel = { 3, 2 }, .stride = { 2, 1 }, .padding = { 1, 0 } };
    check_says(x, "", 0);
    dml_node *c = dml_conv2d(x, &uneven); /* 4 x 6 x 5 outputs of 3 x 2 x 3 products, and a bias each */
    check_says(c, "5 filters, kernel 3 x 2, stride 2 x 1, padding 1 x 0", 4 * 6 * 5 * (2 * 18 + 1));
    check_says(dml_node_input(c, 1), "", 0);
    check_says(dml_conv2d(x, &(dml_conv2d_options){ .filters = 2, .no_bias = true }),
               "2 filters, kernel 3 x 3, stride 1 x 1, padding 0 x 0, no bias", 6 * 5 * 2 * 2 * 27);
    check_says(dml_max_pool2d(x, &window), "kernel 3 x 2, stride 2 x 1, padding 1 x 0", 0);
    check_says(dml_avg_pool2d(x, &window), "kernel 3 x 2, stride 2 x 1, padding 1 x 0", 4 * 6 * 3 * 6);
    check_says(dml_avg_pool2d(x, NULL), "kernel 2 x 2, stride 2 x 2, padding 0 x 0", 4 * 3 * 3 * 4);
    check_says(dml_node_input(dml_global_avg_pool2d(x), 0), "kernel 8 x 7, stride 8 x 7, padding 0 x 0",
               3 * 8 * 7);
    check_says(dml_batch_norm(x, NULL), "epsilon 1e-05, momentum 0.1", 4 * 8 * 7 * 3);
    check_says(dml_batch_norm(x, &(dml_batch_norm_options){ .all_ranks = true }),
               "epsilon 1e-05, momentum 0.1, over all ranks", 4 * 8 * 7 * 3);
    check_says(dml_batch_norm(r, &(dml_batch_norm_options){ .epsilon = 0.5f, .frozen = true }),
               "epsilon 0.5, frozen", 4 * 3);
    check_says(dml_layer_norm(x, NULL), "epsilon 1e-05", 7 * 8 * 7 * 3);
    check_says(dml_rms_norm(r, &(dml_sample_norm_options){ .epsilon = 0.5f }), "epsilon 0.5", 4 * 3);
    check_says(dml_group_norm(x, 3, NULL), "3 groups, epsilon 1e-05", 7 * 8 * 7 * 3);
    check_says(dml_embedding(t, 5, 2), "", 0);
    dml_node *words = dml_input(graph, "words", DML_I32, 4, 6);
    check_says(dml_embedding_bag(words, NULL, 5, 2, NULL), "sum", 4 * 6 * 2);
    check_says(dml_matmul(x, dml_swap_axes(x, -1, -2)), "", 2 * 8 * 7 * 3 * 7);
    dml_node *s = dml_input(graph, "s", DML_F32, 6, 4);
    const dml_recurrent_options masked = { .reverse = true, .lengths = t, .last_only = true };
    check_says(dml_lstm(s, 5, NULL), "hidden 5", 6 * (2 * 20 * (4 + 5) + 2 * 20 + 5 * 5));
    check_says(dml_gru(s, 5, &masked), "hidden 5, reverse, lengths, last state",
               6 * (2 * 15 * (4 + 5) + 2 * 15 + 3 * 5));
    check_says(dml_rnn(s, 3, &(dml_recurrent_options){ .relu = true, .h0 = r }),
               "hidden 3, relu, from given states", 6 * (2 * 3 * (4 + 3) + 2 * 3 + 3 * 3));
    check_says(dml_dropout(x, 0.25f), "p 0.25", 0);
    check_says(dml_reshape(x, dml_shape_of(7, -1)), "", 0);
    check_says(dml_stop_gradient(x), "", 0);
    check_says(dml_permute(x, dml_shape_of(2, 0, 1)), "axes 2 0 1", 0);
    check_says(dml_slice(x, -1, 1, 3), "axis 2, 1 to 2", 0);
    check_says(dml_pad(x, 0, 1, 2), "axis 0, 1 before, 2 after", 0);
    check_says(dml_concat(&x, 1, 1), "axis 1", 0);
    check_says(dml_slice2d(x, &(dml_slice2d_options){ .begin = { 1 }, .step = { 2 }, .after = { 0, 0, 4 } }),
               "height 1 to 7 by 2, width 0 to 6, channels 0 to 2 in 0 + 4 zeros", 0);
    check_says(dml_sum(x, dml_shape_of(0, 1), false), "axes 0 to 1", 8 * 7 * 3);
    check_says(dml_mean(x, dml_shape_of(-1), true), "axis 2, kept", 8 * 7 * 3);
    check_says(dml_max(x, dml_shape_of(1), false), "axis 1", 0);
    check_says(dml_min(x, dml_shape_of(1), false), "axis 1", 0);
    check_says(dml_norm(r, 2, dml_all_axes(), false), "order 2, axis 0", 2 * 3);
    check_says(dml_argmax(x, -1, false), "axis 2", 0);
    check_says(dml_take(x, t, -1), "axis 2", 0);
    check_says(dml_gather(r, dml_reshape(t, dml_shape_of(1)), 0), "axis 0", 0);
    check_says(dml_softmax(x, -1), "axis 2", 4 * 8 * 7 * 3);
    check_says(dml_log_softmax(x, 0), "axis 0", 4 * 8 * 7 * 3);
    check_says(dml_dense(r, 7), "", 2 * 3 * 7 + 7);
    dml_node *line = dml_input(graph, "line", DML_F32, 9, 2);
    check_says(dml_conv1d(line, &(dml_conv1d_options){ .filters = 3, .stride = 2 }),
               "3 filters, kernel 3, stride 2, padding 0", 4 * 3 * (2 * 3 * 2 + 1));
    check_says(dml_max_pool1d(line, NULL), "kernel 2, stride 2, padding 0", 0);
    check_says(dml_avg_pool1d(line, &(dml_pool1d_options){ .kernel = 3, .ceil_mode = true }),
               "kernel 3, stride 3, padding 0, rounded up", 3 * 2 * 3);
    check_says(dml_avg_pool2d(x, &(dml_pool2d_options){ .padding = { 1, 0 }, .count_include_pad = true }),
               "kernel 2 x 2, stride 2 x 2, padding 1 x 0, padding counts", 5 * 3 * 3 * 4);
    check_says(dml_max_pool2d(x, &(dml_pool2d_options){ .same = true }),
               "kernel 2 x 2, stride 2 x 2, padding same", 0);
    check_says(dml_local2d(x, &(dml_local2d_options){ .filters = 2, .stride = { 2, 1 } }),
               "2 filters, kernel 3 x 3, stride 2 x 1", 3 * 5 * 2 * (2 * 3 * 3 * 3 + 1));
    const dml_conv_transpose2d_options wider = {
        .filters = 4, .stride = { 2, 1 }, .output_padding = { 1, 0 }, .dilation = { 1, 2 }, .groups = 2
    };
    dml_node *h = dml_conv2d(x, &(dml_conv2d_options){ .filters = 6, .same = true }); /* 8 x 7 x 6 */
    check_says(
        dml_conv_transpose2d(h, &wider),
        "4 filters, kernel 3 x 3, stride 2 x 1, padding 0 x 0, output padding 1 x 0, dilation 1 x 2, 2 "
        "groups",
        8 * 7 * 6 * 2 * 3 * 3 * 2 + 18 * 11 * 4);
    check_says(dml_conv_transpose1d(line, &(dml_conv_transpose1d_options){ .filters = 3, .no_bias = true }),
               "3 filters, kernel 3, stride 1, padding 0, no bias", 9 * 2 * 2 * 3 * 3);
    dml_node *w = dml_parameter(graph, "w", dml_init_constant(0), 4, 3);
    check_says(dml_dense_with(r, w, NULL), "", 2 * 3 * 4);
    dml_node *lines = dml_input(graph, "lines", DML_F32, 5, 12);
    const dml_attention_options near = { .causal = true, .window = 2, .kv_heads = 1 }; /* 1 + 4 * 2 pairs */
    check_says(dml_attention(lines, lines, lines, 3, NULL), "3 heads", 5 * 5 * 3 * (4 * 4 + 3));
    check_says(dml_attention_packed(lines, 4, &near), "4 heads on 1, causal, window 2", 9 * 4 * (4 * 2 + 3));
    check_says(dml_rotary(lines, 3, &(dml_rotary_options){ .rotated = 2, .base = 50, .interleaved = true }),
               "2 of 3 heads, base 50, interleaved", 3 * 5 * 8);
    check_says(dml_relu(x), "", 8 * 7 * 3);
    check_says(dml_tanh(r), "", 3);
    check_says(dml_sigmoid(w), "", 12);
    check_says(dml_add(x, x), "", 8 * 7 * 3);
    check_says(dml_flatten(x), "", 0);
    check_says(dml_leaky_relu(r, 0.125f), "slope 0.125", 3);
    check_says(dml_elu(r, 1.5f), "alpha 1.5", 3);
    check_says(dml_pow(r, 3), "exponent 3", 3);
    check_says(dml_clamp(r, -1, 6), "-1 .. 6", 3);
    check_says(dml_affine(r, 2, -1), "times 2, plus -1", 3);
    dml_node *const functions[] = { dml_gelu(r),   dml_gelu_tanh(r), dml_silu(r), dml_softplus(r),
                                    dml_exp(r),    dml_log(r),       dml_sqrt(r), dml_abs(r),
                                    dml_square(r), dml_sin(r),       dml_cos(r) };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) check_says(functions[i], "", 3);
    dml_node *one = dml_parameter(graph, "one", dml_init_constant(0), 1);
    dml_node *const pairs[] = { dml_sub(x, one),      dml_mul(one, x),   dml_div(x, x),
                                dml_maximum(x, one),  dml_minimum(x, x), dml_where(x, one, one),
                                dml_equal(x, one),    dml_less(x, x),    dml_less_equal(x, one),
                                dml_not_equal(one, x) };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) check_says(pairs[i], "", 8 * 7 * 3);
    check_says(dml_softmax_cross_entropy(r, t), "", 3 * 3);
    const float of_class[3] = { 1, 2, 3 };
    check_says(dml_softmax_cross_entropy_with(r, t,
                                              &(dml_cross_entropy_options){ .reduction = DML_LOSS_SUM,
                                                                            .label_smoothing = 0.5f,
                                                                            .class_weights = of_class,
                                                                            .ignores = true,
                                                                            .ignore_index = -1 }),
               "sum, weighted classes, smoothing 0.5, ignores -1", 6 * 3);
    check_says(dml_mean_squared_error(x, x), "mean", 2 * 8 * 7 * 3);
    const dml_loss_options sum = { .reduction = DML_LOSS_SUM, .sample_weights = row("weights") };
    check_says(dml_mean_absolute_error(r, r, &sum), "sum, weighted", 2 * 3);
    check_says(dml_huber(r, r, &(dml_loss_options){ .delta = 2 }), "mean, delta 2", 2 * 3);
    check_says(dml_smooth_l1(r, r, &(dml_loss_options){ .beta = 2 }), "mean, delta 2, smooth L1", 2 * 3);
    check_says(dml_binary_cross_entropy(r, r, &(dml_loss_options){ .pos_weight = 2 }), "mean, pos_weight 2",
               2 * 3);
    check_says(dml_hinge(r, r, NULL), "mean", 2 * 3);
    check_says(dml_hinge(r, r, &(dml_loss_options){ .squared = true }), "mean", 2 * 3);
    check_says(dml_kl_divergence(r, r, NULL), "mean", 2 * 3);
    check_says(dml_batch_mean(r, NULL), "mean", 2 * 3);
    const dml_custom_options own = { .shape = dml_shape_of(4), .forward = nothing, .backward = nothing };
    check_says(dml_custom(&r, 1, &own), "", 4);
    const dml__op *op;
    for (int i = 0; (op = dml__op_at(i)) != NULL; i++) { /* none was left out */
        bool found = false;
        for (const dml_node *n = dml_graph_first(graph); n; n = dml_node_next(n))
            found = found || n->op == op;
        CHECK_MESSAGE(found, "the flops of '%s' are not checked", op->name);
    }
    char small[8];
    CHECK_STRING(dml_node_describe(c, small, sizeof small), "5 filte"); /* cut, with an end */
    CHECK_STRING(dml_node_describe(c, small, 1), "");
    close_graph();
}

int main(void)
{
    RUN(numbers_count_each_op_by_itself);
    RUN(numbers_step_around_names);
    RUN(names_with_dots);
    RUN(names_that_are_refused);
    RUN(names_are_utf8);
    RUN(names_fit_on_a_line);
    RUN(numbers_count_in_a_scope);
    RUN(refused_layers_leave_nothing);
    RUN(layers_with_long_names);
    RUN(scopes_nest);
    RUN(scopes_that_are_refused);
    RUN(layers_inside_of_layers);
    RUN(walking_sees_each_node_after_its_inputs);
    RUN(nothing_of_no_node);
    RUN(descriptions_and_flops);
    return test_report("graph/names");
}
