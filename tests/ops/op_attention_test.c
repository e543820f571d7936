/* What attention, its layer and rotary positions refuse, and how the layer's parameters are named and begin.
   Their values and gradients are ops_test's and the conformance test's. */
#include "ops/op_attention.h"

#include "graph/node.h"
#include "graph/program.h"
#include "graph/weights.h"
#include "ops/op_loss.h"
#include "ops/op_rotary.h"

#include "../graph/backends.h"
#include "../graph/refused.h"

static void bad_attention(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *q = dml_input(graph, "q", DML_F32, 3, 12), *k = dml_input(graph, "k", DML_F32, 5, 12);
    dml_node *v = dml_input(graph, "v", DML_F32, 4, 12), *wide = dml_input(graph, "wide", DML_F32, 5, 24);
    dml_node *line = dml_input(graph, "line", DML_F32, 12), *n = dml_input(graph, "n", DML_I32);
    dml_node *two = dml_input(graph, "two", DML_I32, 2), *whole = dml_input(graph, "whole", DML_I32, 3, 12);
    dml_node *p = dml_parameter(graph, "p", dml_init_constant(0), 5, 12);
    CHECK(!dml_attention(NULL, NULL, NULL, 2, NULL) && !dml_attention_packed(NULL, 2, NULL));
    CHECK_STRING(dml_error(context), "");
    REFUSED(dml_attention(q, NULL, k, 2, NULL), DML_ERROR_ARGUMENT, "attention: its input 2 of 3 is NULL");
    REFUSED(dml_attention(q, k, k, 0, NULL), DML_ERROR_ARGUMENT, "0 heads asked for");
    REFUSED(dml_attention(q, k, k, -2, NULL), DML_ERROR_ARGUMENT, "-2 heads asked for, with -2");
    REFUSED(dml_attention(q, k, k, 4, &(dml_attention_options){ .kv_heads = 3 }), DML_ERROR_ARGUMENT,
            "4 heads asked for, with 3 of keys and values");
    REFUSED(dml_attention(q, k, k, 2, &(dml_attention_options){ .window = -1 }), DML_ERROR_ARGUMENT,
            "a window of -1");
    REFUSED(dml_attention(q, k, k, 2, &(dml_attention_options){ .scale = INFINITY }), DML_ERROR_ARGUMENT,
            "a scale of inf");
    REFUSED(dml_attention(q, k, k, 5, NULL), DML_ERROR_SHAPE,
            "attention 'attention_1': its queries are f32 3 x 12; they must be f32 positions x 5 heads");
    REFUSED(dml_attention(line, k, k, 2, NULL), DML_ERROR_SHAPE, "its queries are f32 12;");
    REFUSED(dml_attention(whole, k, k, 2, NULL), DML_ERROR_SHAPE, "its queries are i32 3 x 12;");
    REFUSED(dml_attention(q, wide, k, 2, NULL), DML_ERROR_SHAPE,
            "its keys are 5 x 24, 2 heads of 12 numbers, and its queries 3 x 12, 2 heads of 6");
    REFUSED(dml_attention(q, k, wide, 2, NULL), DML_ERROR_SHAPE, "its values are 5 x 24");
    REFUSED(dml_attention(q, k, v, 2, NULL), DML_ERROR_SHAPE, "its keys are 5 x 12 and its values 4 x 12");
    REFUSED(dml_attention(q, p, p, 2, NULL), DML_ERROR_SHAPE,
            "its queries are of each sample and its keys are the same for each");
    REFUSED(dml_attention_packed(q, 5, NULL), DML_ERROR_SHAPE,
            "its queries, keys and values are f32 3 x 12; they must be f32 positions x 15 heads");
    REFUSED(dml_attention_packed(q, INT32_MAX, NULL), DML_ERROR_SHAPE, "6442450941 heads");
    REFUSED(dml_attention(q, k, k, 2, &(dml_attention_options){ .lengths = two }), DML_ERROR_SHAPE,
            "its lengths are i32 2; they must be an input of i32, one number a sample");
    REFUSED(dml_attention(q, k, k, 2, &(dml_attention_options){ .lengths = line }), DML_ERROR_SHAPE,
            "its lengths are f32 12");
    REFUSED(dml_attention(p, p, p, 2, &(dml_attention_options){ .lengths = n }), DML_ERROR_SHAPE,
            "its lengths are i32");
    REFUSED(dml_rotary(q, 5, NULL), DML_ERROR_SHAPE, "rotary 'rotary_1': its input is f32 3 x 12; it takes");
    REFUSED(dml_rotary(q, 4, NULL), DML_ERROR_SHAPE, "4 heads beside each other, each of an even width");
    REFUSED(dml_rotary(q, 0, NULL), DML_ERROR_SHAPE, "0 heads");
    REFUSED(dml_rotary(line, 2, NULL), DML_ERROR_SHAPE, "its input is f32 12");
    REFUSED(dml_rotary(whole, 2, NULL), DML_ERROR_SHAPE, "its input is i32 3 x 12");
    REFUSED(dml_rotary(q, 2, &(dml_rotary_options){ .rotated = 3 }), DML_ERROR_ARGUMENT, "3 of 2 heads");
    REFUSED(dml_rotary(q, 2, &(dml_rotary_options){ .rotated = -1 }), DML_ERROR_ARGUMENT, "-1 of 2 heads");
    REFUSED(dml_rotary(q, 2, &(dml_rotary_options){ .base = -1 }), DML_ERROR_ARGUMENT, "a base of -1");
    CHECK(!dml_rotary(NULL, 2, NULL));
    dml_close(context);
}

static void bad_layers(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 3, 12), *other = dml_input(graph, "other", DML_F32, 5, 8);
    dml_node *line = dml_input(graph, "line", DML_F32, 12), *n = dml_input(graph, "n", DML_I32, 2);
    dml_node *w = dml_parameter(graph, "w", dml_init_constant(0), 36, 12);
    dml_node *small = dml_parameter(graph, "small", dml_init_constant(0), 12, 12);
    dml_node *bias = dml_parameter(graph, "bias", dml_init_constant(0), 12);
    typedef dml_multi_head_attention_options options;
    CHECK(!dml_multi_head_attention(NULL, 2, NULL) && !dml_learned_positions(NULL));
    CHECK(!dml_multi_head_attention_with(NULL, 2, w, NULL, small, NULL, NULL));
    CHECK_STRING(dml_error(context), "");
    REFUSED(dml_multi_head_attention(line, 2, NULL), DML_ERROR_SHAPE,
            "multi_head_attention: its input is f32 12; it takes f32 positions x channels");
    REFUSED(dml_multi_head_attention(x, 5, NULL), DML_ERROR_ARGUMENT, "12 channels, 5 heads and 5 of keys");
    REFUSED(dml_multi_head_attention(x, 0, NULL), DML_ERROR_ARGUMENT, "12 channels, 0 heads");
    REFUSED(dml_multi_head_attention(x, 4, &(options){ .kv_heads = 3 }), DML_ERROR_ARGUMENT,
            "12 channels, 4 heads and 3 of keys");
    REFUSED(dml_multi_head_attention(x, 4, &(options){ .rotary = true }), DML_ERROR_ARGUMENT,
            "rotary positions in heads of width 3");
    REFUSED(dml_multi_head_attention(x, 2, &(options){ .rotary_base = 50 }), DML_ERROR_ARGUMENT,
            "a rotary_base of 50 asked for, but rotary is false; set rotary too, or leave both out");
    REFUSED(dml_multi_head_attention(x, 2, &(options){ .window = -2 }), DML_ERROR_ARGUMENT, "a window of -2");
    REFUSED(dml_multi_head_attention(x, 2, &(options){ .memory = other }), DML_ERROR_SHAPE,
            "its memory is f32 5 x 8 a sample; it must be f32 positions x 12");
    REFUSED(dml_multi_head_attention(x, 2, &(options){ .lengths = n }), DML_ERROR_SHAPE,
            "its lengths are i32 2;");
    REFUSED(dml_multi_head_attention_with(x, 2, small, NULL, small, NULL, NULL), DML_ERROR_SHAPE,
            "its in_proj_weight is f32 12 x 12; it must be f32 36 x channels");
    REFUSED(dml_multi_head_attention_with(x, 2, w, bias, small, NULL, NULL), DML_ERROR_SHAPE,
            "its in_proj_bias is f32 12; it must be f32 36");
    REFUSED(dml_multi_head_attention_with(x, 2, w, NULL, w, NULL, NULL), DML_ERROR_SHAPE,
            "its out_proj.weight is f32 36 x 12");
    REFUSED(dml_multi_head_attention_with(x, 2, w, NULL, small, line, NULL), DML_ERROR_SHAPE,
            "its out_proj.bias is f32 12 a sample");
    REFUSED(dml_multi_head_attention_with(x, 2, w, NULL, NULL, NULL, NULL), DML_ERROR_ARGUMENT, "is NULL");
    dml_close(context);
}

/* Lengths are checked before anything is run. */
static void lengths_out_of_range(void)
{
    dml_context *context = open_here(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_input(graph, "x", DML_F32, 3, 2), *n = dml_input(graph, "n", DML_I32);
    dml_node *y = dml_attention(x, x, x, 1, &(dml_attention_options){ .lengths = n });
    dml_program *program = dml_compile(y, &(dml_program_options){ .batch = 2 });
    const float values[12] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3 };
    float out[12];
    for (int bad = -1; bad <= 4; bad += 5) {
        const int32_t lengths[] = { 3, bad };
        for (int i = 0; i < 12; i++) out[i] = -7;
        CHECK(dml_program_run(program, 2, DML_INPUTS(values, lengths), out) != DML_OK);
        CHECK_CONTAINS(dml_error(context), "must be in 0 .. 3");
        for (int i = 0; i < 12; i++) CHECK(out[i] == -7);
        dml_clear_error(context);
    }
    const int32_t lengths[] = { 1, 0 };
    CHECK_INT(dml_program_run(program, 2, DML_INPUTS(values, lengths), out), DML_OK);
    for (int i = 0; i < 12; i++) CHECK(out[i] == (i < 6 ? values[i % 2] : 0));
    dml_close(context);
}
EACH_BACKEND(lengths_out_of_range)

static void check_parameter(dml_graph *graph, const char *name, int a, int b, float least, float most)
{
    dml_node *p = dml_graph_find(graph, name);
    float values[256], low = INFINITY, high = -INFINITY;
    CHECK_MESSAGE(p, "%s: %s", name, dml_error(dml_graph_context(graph)));
    if (!p) return;
    const dml_shape shape = dml_node_shape(p);
    CHECK(shape.ndim == (b ? 2 : 1) && shape.dims[0] == a && (!b || shape.dims[1] == b));
    const size_t count = dml_shape_count(&shape);
    CHECK_INT(dml_parameter_read(p, values, count), DML_OK);
    for (size_t i = 0; i < count; i++) low = fminf(low, values[i]), high = fmaxf(high, values[i]);
    CHECK(low >= least && high <= most && low <= 0.9f * least && high >= 0.9f * most);
}

/* Names and first values are PyTorch's, in its order. */
static void parameters(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *x = dml_learned_positions(dml_input(graph, "x", DML_F32, 3, 8));
    dml_push_scope(graph, "block");
    x = dml_multi_head_attention(x, 4, &(dml_multi_head_attention_options){ .kv_heads = 2 });
    x = dml_multi_head_attention(x, 2, &(dml_multi_head_attention_options){ .no_bias = true });
    dml_pop_scope(graph);
    CHECK(dml_compile(x, &(dml_program_options){ .batch = 1 }));
    CHECK_STRING(dml_error(context), "");
    check_parameter(graph, "block.attention_1.in_proj_weight", 16, 8, -0.5f, 0.5f);
    check_parameter(graph, "block.attention_1.in_proj_bias", 16, 0, 0, 0);
    check_parameter(graph, "block.attention_1.out_proj.weight", 8, 8, -0.354f, 0.354f);
    check_parameter(graph, "block.attention_1.out_proj.bias", 8, 0, 0, 0);
    CHECK(dml_graph_find(graph, "block.attention_2.in_proj_weight"));
    CHECK(dml_graph_find(graph, "add_1.positions"));
    CHECK(!dml_graph_find(graph, "block.attention_2.in_proj_bias"));
    dml_close(context);
}

int main(void)
{
    RUN(bad_attention);
    RUN(bad_layers);
    RUN_EACH(lengths_out_of_range);
    RUN(parameters);
    return test_report("ops/op_attention");
}
