/* Building graphs: shapes, parameters, and what is said to those who ask for the impossible. */
#include "graph/graph.h"

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_embedding.h"
#include "ops/op_embedding_bag.h"
#include "ops/op_loss.h"
#include "ops/op_pool2d.h"
#include "ops/op_reduce.h"
#include "ops/op_shape.h"
#include "graph/program.h"
#include "graph/weights.h"
#include "train/trainer.h"

#include "../test.h"

#include <limits.h>

static const dml_initializer zero = { DML_INIT_CONSTANT, 0, 0 };

static dml_context *context;
static dml_graph *graph;

static dml_node *input(int ndim, int a, int b, int c)
{
    return dml_input_shaped(graph, NULL, DML_F32, (dml_shape){ ndim, { a, b, c } });
}
static dml_node *parameter(int ndim, int a, int b)
{
    return dml_parameter_shaped(graph, NULL, zero, (dml_shape){ ndim, { a, b } });
}

/* `call` must give NULL (or false) and record `status` and a sentence with `part`; what comes after is NULL
   until the error is cleared. */
#define REFUSED(call, status, part)                                                                          \
    do {                                                                                                     \
        CHECK(!(call));                                                                                      \
        CHECK_INT(dml_status_of(context), status);                                                           \
        CHECK_CONTAINS(dml_error(context), part);                                                            \
        CHECK(!input(1, 3, 0, 0));                                                                           \
        dml_clear_error(context);                                                                            \
        CHECK_INT(dml_status_of(context), DML_OK);                                                           \
    } while (0)

static void open_graph(void)
{
    context = dml_open(&(dml_options){ .threads = 1 });
    graph = dml_graph_create(context);
    CHECK(graph && dml_graph_context(graph) == context);
}

static void check_shape(const dml_node *node, const char *want)
{
    char text[DML_SHAPE_TEXT];
    const dml_shape shape = dml_node_shape(node);
    CHECK(node);
    CHECK_STRING(dml_shape_format(&shape, text), want);
}

static void shapes(void)
{
    open_graph();
    dml_node *x = input(3, 28, 27, 3);
    check_shape(x, "28 x 27 x 3");
    check_shape(dml_conv2d(x, &(dml_conv2d_options){ .filters = 8 }), "26 x 25 x 8");
    check_shape(dml_conv2d(x, &(dml_conv2d_options){ .filters = 8, .stride = { 2, 3 } }), "13 x 9 x 8");
    check_shape(dml_conv2d(x, &(dml_conv2d_options){ .filters = 1, .kernel = { 5, 1 }, .padding = { 2, 0 } }),
                "28 x 27 x 1");
    check_shape(dml_max_pool2d(x, NULL), "14 x 13 x 3");
    check_shape(dml_avg_pool2d(x, &(dml_pool2d_options){ .kernel = { 3, 3 } }), "9 x 9 x 3");
    check_shape(dml_max_pool2d(x, &(dml_pool2d_options){ .kernel = { 3, 3 }, .stride = { 1, 1 } }),
                "26 x 25 x 3");
    check_shape(dml_flatten(x), "2268");
    dml_node *y = dml_dense(dml_flatten(x), 10);
    check_shape(y, "10");
    check_shape(dml_dense(x, 10), "28 x 27 x 10");
    CHECK(dml_node_flops(dml_dense(x, 10)) == 28.0 * 27 * 10 * (2 * 3 + 1));
    check_shape(dml_softmax_cross_entropy(y, dml_input(graph, "label", DML_I32)), "scalar");
    check_shape(dml_flatten(dml_input(graph, "s", DML_F32)), "1");
    check_shape(dml_input(graph, "five", DML_F32, 1, 2, 3, 4, 5), "1 x 2 x 3 x 4 x 5");
    CHECK_STRING(dml_node_op(x), "input");
    CHECK_STRING(dml_node_name(x), "input_1");
    CHECK_STRING(dml_node_op(y), "dense");
    CHECK_STRING(dml_node_name(y), "dense_1");
    CHECK_INT(dml_node_dtype(dml_input(graph, NULL, DML_I32)), DML_I32);
    CHECK(dml_node_graph(y) == graph);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

/* Only parameters that some op uses have a place in w, in the order of first use. */
static void parameters(void)
{
    open_graph();
    dml_node *w = parameter(2, 2, 3);
    CHECK_INT(dml_graph_parameter_count(graph), 0);
    dml_node *y = dml_dense_with(input(1, 3, 0, 0), w, NULL);
    CHECK_INT(dml_graph_parameter_count(graph), 6);
    CHECK(dml_dense_with(input(1, 3, 0, 0), w, parameter(1, 2, 0)));
    CHECK_INT(dml_graph_parameter_count(graph), 8);
    dml_conv2d(input(3, 5, 5, 2), &(dml_conv2d_options){ .filters = 3, .no_bias = true });
    CHECK_INT(dml_graph_parameter_count(graph), 8 + 3 * 3 * 3 * 2);
    CHECK(y);
    dml_close(context);
}

static void initial_values(void)
{
    enum { N = 4000 };
    const dml_initializer kinds[3] = { { DML_INIT_CONSTANT, 2.5f, 0 },
                                       { DML_INIT_UNIFORM, -1, 3 },
                                       { DML_INIT_NORMAL, 1, 2 } };
    static float values[2][3 * N];
    for (int round = 0; round < 2; round++) {
        open_graph();
        dml_node *sum = NULL;
        for (int i = 0; i < 3; i++) {
            dml_node *p = dml_parameter(graph, NULL, kinds[i], N);
            sum = i ? dml_add(sum, p) : p;
        }
        dml_trainer *t =
            dml_trainer_create(dml_mean_squared_error(sum, sum), &(dml_trainer_options){ .batch = 1 });
        CHECK(t);
        memcpy(values[round], dml_trainer_get(t, DML_PARAMETERS, 0, 3 * N), sizeof values[round]);
        dml_close(context);
    }
    CHECK(memcmp(values[0], values[1], sizeof values[0]) == 0);
    const double means[] = { 2.5, 1, 1 }, deviations[] = { 0, 4 / sqrt(12), 2 };
    for (int i = 0; i < 3; i++) {
        double mean = 0, square = 0;
        for (int k = 0; k < N; k++) mean += values[0][i * N + k] / N;
        for (int k = 0; k < N; k++) square += pow(values[0][i * N + k] - mean, 2) / N;
        CHECK_NEAR(mean, means[i], 0.15);
        CHECK_NEAR(sqrt(square), deviations[i], 0.1);
    }
    CHECK_NEAR(dml_init_he(8).b, 0.5, 1e-6);
    CHECK(dml_init_he(0).b > 0 && isfinite(dml_init_he(-3).b));
}

/* Where the range is narrow beside its numbers, many of a million are rounded to its upper end. */
static void uniform_values_stay_below_high(void)
{
    enum { N = 1000000 };
    static const float range[][2] = { { 1000, 1001 }, { -1001, -1000 }, { 3, 3 } };
    for (int i = 0; i < 3; i++) {
        open_graph();
        const float low = range[i][0], high = range[i][1];
        dml_node *p = dml_parameter(graph, NULL, dml_init_uniform(low, high), N);
        CHECK(dml_tanh(p));
        const float *w = dml_graph_get(graph, 0, N);
        int outside = 0, last = 0;
        for (int k = 0; k < N; k++)
            outside += !(w[k] >= low && (w[k] < high || (low == high && w[k] == low)));
        for (int k = 0; k < N; k++) last += w[k] == nextafterf(high, low);
        CHECK_INT(outside, 0);
        CHECK(last > 0);
        dml_close(context);
    }
}

static void bad_leaves(void)
{
    open_graph();
    REFUSED(input(1, 0, 0, 0), DML_ERROR_SHAPE, "input 'input_1': dimension 0 is 0");
    REFUSED(input(3, 2, 3, -4), DML_ERROR_SHAPE, "dimension 2 is -4");
    REFUSED(input(-1, 1, 1, 1), DML_ERROR_SHAPE, "-1 dimensions");
    REFUSED(dml_input(graph, "y", DML_F32, 1, 1, 1, 1, 1, 1), DML_ERROR_SHAPE, "6 dimensions");
    REFUSED(input(2, 65536, 65536, 0), DML_ERROR_SHAPE, "more than 2147483647");
    REFUSED(dml_input(graph, "y", DML_F64), DML_ERROR_UNSUPPORTED, "input 'y': dtype f64");
    REFUSED(dml_input(graph, "y", (dml_dtype)99), DML_ERROR_UNSUPPORTED, "input 'y'");
    REFUSED(parameter(1, -1, 0), DML_ERROR_SHAPE, "parameter 'parameter_1': dimension 0 is -1");
    REFUSED(dml_parameter_shaped(graph, "p", ((dml_initializer){ (dml_initializer_kind)7, 0, 0 }),
                                 (dml_shape){ 0 }),
            DML_ERROR_ARGUMENT, "initializer of kind 7");
    const dml_initializer bad[] = { dml_init_normal(NAN, 1), dml_init_normal(0, -1), dml_init_uniform(2, 1),
                                    dml_init_uniform(-3e38f, 3e38f), dml_init_constant(INFINITY) };
    for (int i = 0; i < 5; i++)
        REFUSED(dml_parameter_shaped(graph, "p", bad[i], (dml_shape){ 0 }), DML_ERROR_ARGUMENT,
                "parameter 'p': initial values by ");
    dml_close(context);
}

static void bad_shapes(void)
{
    open_graph();
    dml_node *row = input(1, 6, 0, 0), *image = input(3, 5, 4, 2), *t = dml_input(graph, "t", DML_I32);
    dml_node *w = parameter(2, 3, 6), *bias = parameter(1, 4, 0);
    REFUSED(dml_add(row, image), DML_ERROR_SHAPE, "add 'add_1': its inputs are 6 and 5 x 4 x 2");
    REFUSED(dml_mul(row, parameter(1, 5, 0)), DML_ERROR_SHAPE,
            "mul 'mul_1': its inputs are 6 and 5 for the whole batch: counted from the last");
    REFUSED(dml_where(row, image, image), DML_ERROR_SHAPE, "6 and 5 x 4 x 2 and 5 x 4 x 2");
    REFUSED(dml_add(t, t), DML_ERROR_ARGUMENT, "its input 1 is i32, it takes f32");
    REFUSED(dml_sub(row, t), DML_ERROR_ARGUMENT, "its input 2 is i32, it takes f32");
    REFUSED(dml_relu(t), DML_ERROR_ARGUMENT, "relu 'relu_1': its input 1 is i32");
    REFUSED(dml_clamp(row, 1, 0.5f), DML_ERROR_ARGUMENT, "from 1 to 0.5 asked for");
    REFUSED(dml_clamp(row, NAN, 1), DML_ERROR_ARGUMENT, "clamp");
    REFUSED(dml_leaky_relu(row, NAN), DML_ERROR_ARGUMENT, "they must be finite");
    REFUSED(dml_affine(row, 1, INFINITY), DML_ERROR_ARGUMENT, "1 and inf, they must be finite");
    REFUSED(dml_maximum(row, NULL), DML_ERROR_ARGUMENT, "input 2 of 2 is NULL");
    {
        const dml_shape shape = dml_node_shape(dml_add(parameter(2, 4, 1), image));
        CHECK(shape.ndim == 3 && shape.dims[0] == 5 && shape.dims[1] == 4 && shape.dims[2] == 2);
        CHECK(!dml_node_batched(dml_add(w, parameter(1, 1, 0))) && dml_node_batched(dml_add(row, w)));
        dml_clear_error(context);
        CHECK(dml_clamp(row, -INFINITY, 0) != NULL);
    }
    REFUSED(dml_tanh(t), DML_ERROR_ARGUMENT, "tanh");
    REFUSED(dml_sigmoid(t), DML_ERROR_ARGUMENT, "sigmoid");
    REFUSED(dml_dense(dml_input(graph, NULL, DML_F32), 3), DML_ERROR_SHAPE, "at least one dimension");
    REFUSED(dml_dense(row, 0), DML_ERROR_ARGUMENT, "dense: 0 units");
    REFUSED(dml_dense(t, 2), DML_ERROR_SHAPE, "dense");
    REFUSED(dml_dense(row, INT_MAX), DML_ERROR_SHAPE, "more than");
    REFUSED(dml_dense_with(input(1, 5, 0, 0), w, NULL), DML_ERROR_SHAPE, "units x 5");
    REFUSED(dml_dense_with(row, w, bias), DML_ERROR_SHAPE, "its bias is f32 4, it must be f32 3");
    REFUSED(dml_dense_with(row, row, NULL), DML_ERROR_SHAPE, "its weights f32 6");
    REFUSED(dml_dense_with(image, w, NULL), DML_ERROR_SHAPE, "must be f32 units x 2, for the input's last");
    REFUSED(dml_softmax_cross_entropy(image, t), DML_ERROR_SHAPE,
            "its target is i32 scalar; for logits of 5 x 4 x 2 it must be an input of i32 labels, one a row");
    REFUSED(dml_softmax_cross_entropy(dml_input(graph, NULL, DML_F32), t), DML_ERROR_SHAPE,
            "one row or more");
    REFUSED(dml_softmax_cross_entropy(w, t), DML_ERROR_SHAPE, "logits");
    REFUSED(dml_softmax_cross_entropy(row, bias), DML_ERROR_SHAPE, "its target is f32 4 for the whole batch");
    REFUSED(dml_softmax_cross_entropy(row, dml_input(graph, "t2", DML_I32, 2)), DML_ERROR_SHAPE,
            "target is i32 2");
    REFUSED(dml_softmax_cross_entropy(t, t), DML_ERROR_SHAPE, "logits");
    REFUSED(dml_softmax_cross_entropy(NULL, t), DML_ERROR_ARGUMENT, "input 1 of 2 is NULL");
    REFUSED(dml_mean_squared_error(row, image), DML_ERROR_SHAPE, "f32 6 and f32 5 x 4 x 2");
    REFUSED(dml_mean_squared_error(w, row), DML_ERROR_SHAPE, "for the whole batch");
    REFUSED(dml_mean_squared_error(t, t), DML_ERROR_SHAPE, "i32");
    REFUSED(dml_mean_squared_error(row, NULL), DML_ERROR_ARGUMENT, "input 2 of 2 is NULL");
    dml_close(context);
}

#define REFUSED_LOSS(builder, a, b, status, words, ...)                                                      \
    REFUSED(builder(a, b, &(dml_loss_options){ __VA_ARGS__ }), status, words)
#define REFUSED_ENTROPY(a, b, status, words, ...)                                                            \
    REFUSED(dml_softmax_cross_entropy_with(a, b, &(dml_cross_entropy_options){ __VA_ARGS__ }), status, words)

static void bad_losses(void)
{
    static const float of_class[6] = { 1, 1, 0, 1, 1, -1 }, nan_class[6] = { 0, NAN, 0, 0, 0, 0 };
    open_graph();
    dml_node *image = input(3, 5, 4, 2), *row = input(1, 6, 0, 0), *t = dml_input(graph, "t", DML_I32);
    dml_node *t5 = dml_input(graph, "t5", DML_I32, 5, 4), *five = input(1, 5, 0, 0),
             *four = input(1, 4, 0, 0);
    REFUSED_LOSS(dml_huber, row, row, DML_ERROR_ARGUMENT, "huber: its delta is -1", .delta = -1);
    REFUSED_LOSS(dml_huber, row, row, DML_ERROR_ARGUMENT, "huber: its delta is inf", .delta = INFINITY);
    REFUSED_LOSS(dml_huber, row, row, DML_ERROR_ARGUMENT, "no option 'beta'", .beta = 1);
    REFUSED_LOSS(dml_smooth_l1, row, row, DML_ERROR_ARGUMENT, "no option 'delta'", .delta = 1);
    REFUSED_LOSS(dml_smooth_l1, row, row, DML_ERROR_ARGUMENT,
                 "its beta is 1e-39; it must be finite and above 0, and so must 1 / beta", .beta = 1e-39f);
    REFUSED_LOSS(dml_binary_cross_entropy, row, row, DML_ERROR_ARGUMENT, "pos_weight is nan",
                 .pos_weight = NAN);
    REFUSED_LOSS(dml_mean_absolute_error, row, row, DML_ERROR_ARGUMENT, "no option 'squared'",
                 .squared = true);
    REFUSED_LOSS(dml_hinge, row, row, DML_ERROR_ARGUMENT, "its reduction is 7",
                 .reduction = (dml_loss_reduction)7);
    REFUSED_LOSS(dml_kl_divergence, image, image, DML_ERROR_SHAPE,
                 "its sample weights are f32 4; of losses of 5 x 4 x 2", .sample_weights = four);
    REFUSED_LOSS(dml_kl_divergence, image, image, DML_ERROR_SHAPE, "f32 5 x 4 x 2", .sample_weights = image);
    REFUSED_LOSS(dml_hinge, row, row, DML_ERROR_SHAPE, "its sample weights are i32", .sample_weights = t);
    REFUSED_LOSS(dml_hinge, row, row, DML_ERROR_SHAPE, "for the whole batch",
                 .sample_weights = parameter(1, 6, 0));
    REFUSED_ENTROPY(row, t, DML_ERROR_ARGUMENT, "label smoothing is 1.5", .label_smoothing = 1.5f);
    REFUSED_ENTROPY(row, t, DML_ERROR_ARGUMENT, "label smoothing is nan", .label_smoothing = NAN);
    REFUSED_ENTROPY(row, t, DML_ERROR_ARGUMENT, "weight of class 5 is -1", .class_weights = of_class);
    REFUSED_ENTROPY(row, t, DML_ERROR_ARGUMENT, "weight of class 1 is nan", .class_weights = nan_class);
    REFUSED_ENTROPY(row, row, DML_ERROR_ARGUMENT, "label 3 is to be ignored", .ignores = true,
                    .ignore_index = 3);
    REFUSED_ENTROPY(row, t, DML_ERROR_ARGUMENT, "its reduction is -1", .reduction = (dml_loss_reduction)-1);
    REFUSED_ENTROPY(image, t5, DML_ERROR_SHAPE, "its sample weights are f32 4", .sample_weights = four);
    REFUSED_ENTROPY(row, t, DML_ERROR_SHAPE, "its sample weights are f32 6", .sample_weights = row);
    REFUSED_ENTROPY(NULL, t, DML_ERROR_ARGUMENT, "input 1 of 2", .class_weights = of_class);
    REFUSED_ENTROPY(parameter(0, 0, 0), t, DML_ERROR_SHAPE, "one row or more", .class_weights = of_class);
    dml_clear_error(context);
    CHECK(dml_softmax_cross_entropy_with(image, t5, &(dml_cross_entropy_options){ .sample_weights = five }));
    CHECK(dml_kl_divergence(NULL, NULL, NULL) == NULL &&
          dml_softmax_cross_entropy_with(NULL, NULL, NULL) == NULL);
    CHECK_INT(dml_status_of(context), DML_OK);
    dml_close(context);
}

static dml_node *conv(dml_node *x, int filters, int kernel, int stride, int padding)
{
    return dml_conv2d(x, &(dml_conv2d_options){ .filters = filters,
                                                .kernel = { kernel, kernel },
                                                .stride = { stride, stride },
                                                .padding = { padding, padding } });
}

static dml_node *pool(dml_node *x, int kernel, int stride, int padding)
{
    return dml_max_pool2d(x, &(dml_pool2d_options){ .kernel = { kernel, kernel },
                                                    .stride = { stride, stride },
                                                    .padding = { padding, padding } });
}

static void bad_windows(void)
{
    open_graph();
    dml_node *image = input(3, 5, 4, 2), *row = input(1, 6, 0, 0), *t = dml_input(graph, "t", DML_I32);
    REFUSED(dml_conv2d(image, NULL), DML_ERROR_ARGUMENT, "conv2d: 0 filters");
    REFUSED(conv(image, -2, 3, 1, 0), DML_ERROR_ARGUMENT, "-2 filters");
    REFUSED(conv(image, 1, -3, 1, 0), DML_ERROR_ARGUMENT, "-3 x -3");
    REFUSED(conv(image, 1, 3, -1, 0), DML_ERROR_ARGUMENT, "stride -1");
    REFUSED(conv(image, 1, 3, 1, -1), DML_ERROR_ARGUMENT, "padding -1");
    REFUSED(conv(image, 1, 5, 1, 0), DML_ERROR_SHAPE, "a kernel of 5 x 5 doesn't fit an input of 5 x 4 x 2");
    REFUSED(conv(image, 1, 100000, 1, 0), DML_ERROR_SHAPE, "more than 2147483647");
    REFUSED(conv(image, 1, 1, 1, INT_MAX), DML_ERROR_SHAPE, "conv2d");
    REFUSED(conv(image, 1, 1, 1, 30000), DML_ERROR_SHAPE, "more than 2147483647");
    REFUSED(conv(row, 1, 1, 1, 0), DML_ERROR_SHAPE, "height x width x channels");
    REFUSED(conv(t, 1, 1, 1, 0), DML_ERROR_SHAPE, "conv2d 'conv2d_1': its input is i32 scalar");
    REFUSED(pool(image, -1, 1, 0), DML_ERROR_ARGUMENT, "kernel -1");
    REFUSED(pool(image, 2, -1, 0), DML_ERROR_ARGUMENT, "stride -1");
    REFUSED(pool(image, 2, 1, 2), DML_ERROR_ARGUMENT, "padding 2");
    REFUSED(pool(image, 2, 1, -1), DML_ERROR_ARGUMENT, "padding -1");
    REFUSED(pool(image, 5, 1, 0), DML_ERROR_SHAPE, "a window of 5 x 5 doesn't fit");
    REFUSED(pool(image, INT_MAX, 1, INT_MAX - 1), DML_ERROR_SHAPE, "max_pool2d");
    REFUSED(pool(row, 2, 2, 0), DML_ERROR_SHAPE, "max_pool2d");
    REFUSED(dml_avg_pool2d(row, NULL), DML_ERROR_SHAPE, "avg_pool2d");
    dml_close(context);
}

/* Parameters of the caller's that don't fit. */
static void bad_weights(void)
{
    open_graph();
    const dml_conv2d_options filters = { .filters = 4 }, kernel = { .kernel = { 3, 1 } },
                             negative = { .kernel = { -3, 0 } },
                             fitting = { .filters = 3, .kernel = { 3, 2 }, .stride = { 1, 1 } };
    dml_node *image = input(3, 5, 4, 2), *row = input(1, 6, 0, 0), *matrix = parameter(2, 3, 6);
    dml_node *w = dml_parameter(graph, "w", zero, 3, 3, 2, 2), *bias = parameter(1, 3, 0);
    dml_node *five = dml_parameter(graph, "five", zero, 3, 3, 2, 2, 1), *scalar = parameter(0, 0, 0);
    REFUSED(dml_dense_with(row, bias, NULL), DML_ERROR_SHAPE,
            "its input is 6 and its weights f32 3; they must be");
    REFUSED(dml_dense_with(row, w, NULL), DML_ERROR_SHAPE, "its weights f32 3 x 3 x 2 x 2");
    REFUSED(dml_dense_with(row, scalar, NULL), DML_ERROR_SHAPE, "its weights f32 scalar");
    REFUSED(dml_dense_with(row, dml_input(graph, "rows", DML_F32, 3, 6), NULL), DML_ERROR_SHAPE,
            "its weights f32 3 x 6 a sample; they must be f32 units x 6");
    REFUSED(dml_dense_with(row, dml_input(graph, "labels", DML_I32, 3, 6), NULL), DML_ERROR_SHAPE,
            "a sample");
    REFUSED(dml_dense_with(row, matrix, matrix), DML_ERROR_SHAPE, "its bias is f32 3 x 6, it must be f32 3");
    REFUSED(dml_dense_with(row, matrix, dml_input(graph, "b", DML_F32, 3)), DML_ERROR_SHAPE,
            "its bias is f32 3 a sample, it must be f32 3");
    REFUSED(dml_conv2d_with(image, matrix, NULL, NULL), DML_ERROR_SHAPE,
            "conv2d 'conv2d_1': its weights are 3 x 6");
    REFUSED(dml_conv2d_with(image, five, NULL, NULL), DML_ERROR_SHAPE, "3 x 3 x 2 x 2 x 1");
    REFUSED(dml_conv2d_with(image, scalar, NULL, NULL), DML_ERROR_SHAPE, "its weights are scalar");
    REFUSED(
        dml_conv2d_with(image, dml_parameter(graph, NULL, zero, 3, 3, 2, 5), NULL, NULL), DML_ERROR_SHAPE,
        "its weights are 3 x 3 x 2 x 5; for 3 filters of 3 x 2 over 2 channels they must be 3 x 3 x 2 x 2");
    REFUSED(dml_conv2d_with(image, dml_input(graph, "ws", DML_F32, 3, 3, 2, 2), NULL, NULL), DML_ERROR_SHAPE,
            "its weights are 3 x 3 x 2 x 2 a sample");
    REFUSED(dml_conv2d_with(image, w, bias, &filters), DML_ERROR_SHAPE,
            "for 4 filters of 3 x 2 over 2 channels");
    REFUSED(dml_conv2d_with(image, w, bias, &kernel), DML_ERROR_SHAPE,
            "for 3 filters of 3 x 1 over 2 channels");
    REFUSED(dml_conv2d_with(image, w, bias, &negative), DML_ERROR_SHAPE, "for 3 filters of -3 x 2");
    REFUSED(dml_conv2d_with(image, w, matrix, NULL), DML_ERROR_SHAPE, "its bias is 3 x 6, it must be 3");
    REFUSED(dml_conv2d_with(image, w, parameter(1, 4, 0), NULL), DML_ERROR_SHAPE,
            "its bias is 4, it must be 3");
    REFUSED(dml_conv2d_with(image, w, dml_input(graph, "bs", DML_F32, 3), NULL), DML_ERROR_SHAPE,
            "its bias is 3 a sample");
    REFUSED(dml_conv2d_with(row, w, bias, NULL), DML_ERROR_SHAPE, "height x width x channels");
    REFUSED(dml_conv2d_with(image, NULL, bias, NULL), DML_ERROR_ARGUMENT, "input 2 of 3 is NULL");
    REFUSED(dml_conv2d_with(NULL, w, bias, NULL), DML_ERROR_ARGUMENT, "input 1 of 3 is NULL");
    CHECK_INT(dml_graph_parameter_count(graph), 0); /* nothing of that was used */
    check_shape(dml_conv2d_with(image, w, bias, &fitting), "3 x 3 x 3");
    check_shape(dml_conv2d_with(image, w, NULL, NULL), "3 x 3 x 3");
    CHECK_INT(dml_graph_parameter_count(graph), 36 + 3); /* shared: counted once */
    dml_node *all = dml_parameter(graph, "all", zero, 3, 6, 2);
    REFUSED(dml_dense_with(row, dml_argmax(all, -1, false), NULL), DML_ERROR_SHAPE,
            "its weights i32 3 x 6; they must be f32 units x 6");
    REFUSED(dml_dense_with(row, matrix, dml_argmax(matrix, -1, false)), DML_ERROR_SHAPE,
            "its bias is i32 3, it must be f32 3");
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

/* Layers on parameters of the caller's begin as those do. */
static void initial_values_of_the_callers(void)
{
    open_graph();
    dml_node *x = input(3, 2, 2, 1), *w = dml_parameter(graph, "w", dml_init_constant(0.5f), 3, 2, 2, 1);
    dml_node *c = dml_conv2d_with(x, w, dml_parameter(graph, "b", dml_init_constant(10), 3), NULL);
    dml_node *v = dml_parameter(graph, "v", dml_init_constant(-1), 1, 3);
    dml_node *y = dml_dense_with(dml_flatten(c), v, dml_parameter(graph, "d", dml_init_constant(2), 1));
    const float image[4] = { 1, 2, 3, 4 };
    float got = 0;
    CHECK_INT(
        dml_program_run(dml_compile(y, &(dml_program_options){ .batch = 1 }), 1, DML_INPUTS(image), &got),
        DML_OK);
    CHECK_NEAR(got, 2 - 3 * (10 + 0.5 * 10), 0);
    dml_close(context);
}

/* NULL runs through a whole model; a refused node leaves the others as they were. */
static void null_goes_through(void)
{
    open_graph();
    dml_node *y = dml_dense(dml_flatten(dml_max_pool2d(dml_relu(dml_conv2d(NULL, NULL)), NULL)), 3);
    dml_node *l = dml_add(dml_softmax_cross_entropy(dml_tanh(y), NULL), dml_mean_squared_error(NULL, y));
    CHECK(!l && !dml_sigmoid(dml_avg_pool2d(NULL, NULL)) && !dml_dense_with(NULL, NULL, NULL));
    CHECK(!dml_compile(l, NULL) && !dml_trainer_create(l, NULL) && !dml_input(NULL, "x", DML_F32) &&
          !dml_parameter(NULL, "p", zero) && !dml_graph_create(NULL));
    CHECK_INT(dml_program_run(NULL, 1, NULL, 0, NULL), DML_ERROR_ARGUMENT);
    CHECK_STRING(dml_node_name(NULL), "");
    CHECK_STRING(dml_node_op(NULL), "");
    CHECK_INT(dml_node_shape(NULL).ndim, 0);
    CHECK(!dml_node_graph(NULL) && !dml_graph_context(NULL) && dml_graph_parameter_count(NULL) == 0);
    dml_graph_destroy(NULL);
    CHECK_STRING(dml_error(context), ""); /* nothing was asked of this context */

    CHECK(!dml_relu(dml_add(input(1, 2, 0, 0), input(1, 3, 0, 0))));
    CHECK_CONTAINS(dml_error(context), "2 and 3"); /* the first error stays */
    CHECK(!dml_dense(input(1, 2, 0, 0), -5));
    CHECK_CONTAINS(dml_error(context), "2 and 3");
    CHECK(!dml_graph_create(context));
    dml_clear_error(context);
    CHECK_STRING(dml_error(context), "");
    CHECK(dml_compile(dml_dense(input(1, 2, 0, 0), 3), &(dml_program_options){ .batch = 1 }));
    dml_close(context);
}

static void other_graphs_and_late_parameters(void)
{
    open_graph();
    dml_graph *other = dml_graph_create(context);
    dml_node *x = input(1, 3, 0, 0), *w = parameter(2, 2, 3), *early = parameter(1, 2, 0);
    dml_node *foreign = dml_input(other, "x", DML_F32, 3);
    REFUSED(dml_add(x, foreign), DML_ERROR_ARGUMENT, "different graphs");
    REFUSED(dml_dense_with(foreign, w, NULL), DML_ERROR_ARGUMENT, "different graphs");
    dml_node *y = dml_dense_with(x, w, NULL);
    CHECK(dml_compile(y, &(dml_program_options){ .batch = 1 }));
    REFUSED(parameter(1, 2, 0), DML_ERROR_STATE, "parameter 'parameter_3': a new parameter");
    REFUSED(dml_dense(y, 2), DML_ERROR_STATE, "first compile");
    REFUSED(dml_dense_with(x, w, early), DML_ERROR_STATE, "new parameter");
    CHECK(dml_compile(dml_tanh(dml_dense_with(x, w, NULL)),
                      &(dml_program_options){ .batch = 1 })); /* old ones may */
    CHECK(dml_dense(foreign, 2));
    CHECK(!dml_dense(y, 2)); /* a layer that is refused leaves no half of it behind */
    dml_clear_error(context);
    CHECK(!dml_dense(y, 2));
    CHECK_CONTAINS(dml_error(context), "new parameter");
    dml_clear_error(context);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

static void bad_programs(void)
{
    open_graph();
    dml_node *x = input(1, 3, 0, 0), *y = dml_dense(x, 2), *unused = parameter(2, 100, 100);
    dml_node *loss = dml_mean_squared_error(y, dml_input(graph, "t", DML_F32, 2));
    dml_node *no_parameters = dml_mean_squared_error(x, x);
    dml_node *p = dml_parameter(graph, "p", zero, 1), *scalar = dml_reshape(p, (dml_shape){ 0 });
    const dml_program_options train = { .batch = 2, .training = true };
    REFUSED(dml_compile(y, NULL), DML_ERROR_ARGUMENT, "a batch of 0");
    REFUSED(dml_compile(y, &(dml_program_options){ .batch = -3 }), DML_ERROR_ARGUMENT, "a batch of -3");
    REFUSED(dml_compile(y, &train), DML_ERROR_SHAPE, "dense 'dense_1': it is 2 a sample of f32");
    dml_node *s = dml_input(graph, "s", DML_F32);
    REFUSED(dml_compile(s, &train), DML_ERROR_SHAPE,
            "it is scalar a sample of f32; what is trained is one scalar loss for the batch: dml_batch_mean "
            "makes it one");
    REFUSED(dml_compile(dml_input(graph, "v", DML_F32, 2), &train), DML_ERROR_SHAPE,
            "dml_mean or dml_sum over its axes and then dml_batch_mean make it one");
    REFUSED(dml_compile(dml_tanh(p), &train), DML_ERROR_SHAPE, "over its axes makes it one");
    REFUSED(dml_concat((dml_node *[]){ s, s }, 2, 0), DML_ERROR_ARGUMENT, "dml_reshape to (1) gives it one");
    REFUSED(dml_compile(no_parameters, &train), DML_ERROR_ARGUMENT, "depends on no trained parameter");
    REFUSED(dml_compile(unused, &(dml_program_options){ .batch = 1 }), DML_ERROR_ARGUMENT,
            "parameter 'parameter_1': no op uses it");
    REFUSED(dml_compile(scalar, &train), DML_ERROR_ARGUMENT,
            "it is the parameter 'p', whose gradient is 1 whatever its samples are");
    CHECK(dml_compile(scalar, &(dml_program_options){ .batch = 1 }));
    dml_node *large = dml_input(graph, "large", DML_F32, INT_MAX);
    REFUSED(dml_compile(dml_tanh(large), &(dml_program_options){ .batch = INT_MAX }), DML_ERROR_MEMORY,
            "memory");
    CHECK(dml_compile(loss, &train));
    dml_close(context);
}

static void bad_runs(void)
{
    open_graph();
    dml_node *x = input(1, 4, 0, 0), *label = dml_input(graph, "label", DML_I32);
    dml_program *p = dml_compile(dml_softmax_cross_entropy(x, label), &(dml_program_options){ .batch = 3 });
    const float rows[12] = { 0 };
    const int32_t good[3] = { 0, 3, 1 }, high[3] = { 0, 1, 4 }, low[3] = { -1, 0, 0 };
    float loss = 7;
    const void *inputs[] = { rows, good };
    CHECK_INT(dml_program_run(p, 3, inputs, 2, &loss), DML_OK);
    CHECK_NEAR(loss, log(4), 1e-6);
    loss = 7;
    REFUSED(dml_program_run(p, 0, inputs, 2, &loss) == DML_OK, DML_ERROR_ARGUMENT, "0 samples");
    REFUSED(dml_program_run(p, 4, inputs, 2, &loss) == DML_OK, DML_ERROR_ARGUMENT, "1 to 3");
    REFUSED(dml_program_run(p, -1, inputs, 2, &loss) == DML_OK, DML_ERROR_ARGUMENT, "-1 samples");
    REFUSED(dml_program_run(p, 3, NULL, 2, &loss) == DML_OK, DML_ERROR_ARGUMENT,
            "input 'input_1': input 1 of 2 is NULL");
    inputs[0] = (const char *)rows + 2;
    REFUSED(dml_program_run(p, 2, inputs, 2, &loss) == DML_OK, DML_ERROR_ARGUMENT,
            "input 'input_1': its array must be aligned to 4 bytes, as an array of f32 is");
    inputs[0] = rows;
    inputs[1] = NULL;
    REFUSED(dml_program_run(p, 3, inputs, 2, &loss) == DML_OK, DML_ERROR_ARGUMENT,
            "input 'label': input 2 of 2");
    inputs[1] = high;
    REFUSED(dml_program_run(p, 3, inputs, 2, &loss) == DML_OK, DML_ERROR_ARGUMENT,
            "input 'label': sample 2 of the batch is 4, it must be in 0 .. 3");
    CHECK_INT(dml_program_run(p, 2, inputs, 2, &loss), DML_OK); /* the third isn't looked at */
    inputs[1] = low;
    REFUSED(dml_program_run(p, 1, inputs, 2, NULL) == DML_OK, DML_ERROR_ARGUMENT,
            "sample 0 of the batch is -1");

    inputs[1] = good;
    CHECK(!dml_dense(x, 0)); /* a run is refused while an error stands */
    loss = 7;
    CHECK_INT(dml_program_run(p, 3, inputs, 2, &loss), DML_ERROR_ARGUMENT);
    CHECK(loss == 7);
    dml_clear_error(context);
    CHECK_INT(dml_program_run(p, 3, inputs, 2, &loss), DML_OK);
    dml_close(context);
}

/* A NULL that no error explains is one: the model would be nothing, and nobody would say why. */
static void a_missing_input_is_told(void)
{
    open_graph();
    dml_node *x = input(1, 3, 0, 0), *w = parameter(2, 2, 3);
    REFUSED(dml_dense_with(x, NULL, NULL), DML_ERROR_ARGUMENT, "dense: its input 2 of 2 is NULL");
    REFUSED(dml_dense_with(NULL, w, NULL), DML_ERROR_ARGUMENT, "dense: its input 1 of 2 is NULL");
    REFUSED(dml_conv2d_with(x, NULL, NULL, NULL), DML_ERROR_ARGUMENT, "conv2d: its input 2 of 2");
    REFUSED(dml_add(x, NULL), DML_ERROR_ARGUMENT, "add: its input 2 of 2 is NULL");
    REFUSED(dml_relu(dml_graph_find(graph, "wieght")), DML_ERROR_ARGUMENT, "no node 'wieght'");
    dml_close(context);
}

/* A shape may have been made by anybody. */
static void shapes_that_nobody_has_checked(void)
{
    const dml_shape nine = dml_shape_of(2, 2, 2, 2, 2, 2, 2, 2, 2), negative = dml_shape_of(3, -4);
    const dml_shape below = { -3, { 7, 7, 7, 7, 7 } };
    char text[DML_SHAPE_TEXT];
    CHECK_INT(nine.ndim, 9);
    CHECK_INT(dml_shape_count(&nine), 32);
    CHECK_STRING(dml_shape_format(&nine, text), "2 x 2 x 2 x 2 x 2");
    CHECK(dml_shape_equal(&nine, &nine) && !dml_shape_equal(&nine, &negative));
    CHECK(!dml_shape_equal(NULL, &nine) && !dml_shape_equal(&nine, NULL) && !dml_shape_equal(NULL, NULL));
    CHECK_INT(dml_shape_count(&negative), 0);
    CHECK_INT(dml_shape_count(&below), 1);
    CHECK_STRING(dml_shape_format(&below, text), "scalar");
}

static void a_graph_in_use_stays(void)
{
    open_graph();
    dml_node *y = dml_dense(input(1, 3, 0, 0), 2);
    dml_program *p = dml_compile(y, &(dml_program_options){ .batch = 1 });
    const float row[3] = { 1, 2, 3 };
    float out[2];
    dml_graph_destroy(graph);
    CHECK_INT(dml_status_of(context), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "other programs made of it (left: 1)");
    dml_clear_error(context);
    CHECK_INT(dml_program_run(p, 1, DML_INPUTS(row), out), DML_OK);
    dml_program_destroy(p);
    dml_graph_destroy(graph);
    CHECK_STRING(dml_error(context), "");
    dml_close(context);
}

/* Labels that two heads share are held to the smaller one's classes where both are asked for, else to their
 * own. */
static void heads_that_share_labels(void)
{
    open_graph();
    dml_node *x = input(1, 7, 0, 0), *label = dml_input(graph, "label", DML_I32);
    dml_node *seven = dml_softmax_cross_entropy(x, label);
    dml_program *first = dml_compile(seven, &(dml_program_options){ .batch = 1 });
    dml_node *three = dml_softmax_cross_entropy(dml_dense(x, 3), label);
    CHECK(!three); /* parameters after the first compile */
    dml_clear_error(context);
    dml_node *x3 = input(1, 3, 0, 0);
    three = dml_softmax_cross_entropy(x3, label);
    dml_program *both = dml_compile(dml_add(seven, three), &(dml_program_options){ .batch = 1 });
    const float row[7] = { 0 };
    const int32_t five = 5, two = 2;
    float loss;
    CHECK_INT(dml_program_run(first, 1, DML_INPUTS(row, &five), &loss), DML_OK);
    CHECK_INT(dml_program_run(both, 1, DML_INPUTS(row, &two, row), &loss), DML_OK);
    CHECK_INT(dml_program_run(both, 1, DML_INPUTS(row, &five, row), &loss), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "is 5, it must be in 0 .. 2");
    dml_close(context);
}

/* An op that takes the values of `label`: an embedding's 5 rows (0), a bag's of 6, where -1 is no index (1),
   labels of 4 (2) or 7 (3) classes where -1 is ignored, of 4 where 5 is (4) and -7 (5). */
static dml_node *indexing(int which, dml_node *label, dml_node *x4, dml_node *x7)
{
    static const int ignored[] = { 0, 0, -1, -1, 5, -7 };
    const dml_cross_entropy_options options = { .ignores = true, .ignore_index = ignored[which] };
    dml_node *y;
    if (which == 0)
        y = dml_embedding(label, 5, 1);
    else if (which == 1)
        y = dml_embedding_bag(label, NULL, 6, 1, NULL);
    else
        return dml_softmax_cross_entropy_with(which == 3 ? x7 : x4, label, &options);
    return dml_batch_mean(y, NULL);
}

static bool takes_index(int which, int value)
{
    static const int from[] = { 0, -1, 0, 0, 0, 0 }, to[] = { 5, 6, 4, 7, 4, 4 },
                     ignored[] = { 0, 0, -1, -1, 5, -7 };
    return (value >= from[which] && value < to[which]) || value == ignored[which];
}

/* Of two ops, and of three, that index with the same values each of those is taken which all of them take. */
static void ops_that_share_indices(void)
{
    static const float zeros[7] = { 0 };
    for (int i = 0; i < 6 * 6 * 6; i++) {
        const int which[3] = { i % 6, i / 6 % 6, i / 36 };
        open_graph();
        dml_node *label = dml_input(graph, "label", DML_I32, 1), *sum = NULL;
        dml_node *x4 = dml_input(graph, "x4", DML_F32, 1, 4), *x7 = dml_input(graph, "x7", DML_F32, 1, 7);
        for (int k = 0; k < 3; k++) {
            dml_node *y = indexing(which[k], label, x4, x7);
            sum = sum ? dml_add(sum, y) : y;
        }
        dml_program *p = dml_compile(sum, &(dml_program_options){ .batch = 1 });
        CHECK_STRING(dml_error(context), "");
        for (int32_t value = -8; value < 9; value++) {
            const void *inputs[3] = { &value, zeros, zeros };
            const bool want =
                takes_index(which[0], value) && takes_index(which[1], value) && takes_index(which[2], value);
            const dml_status status = dml_program_run(p, 1, inputs, dml_program_inputs(p), NULL);
            CHECK_MESSAGE((status == DML_OK) == want, "%d in ops %d, %d and %d: %s", value, which[0],
                          which[1], which[2], dml_error(context));
            dml_clear_error(context);
        }
        dml_close(context);
    }
}

/* What a refused call built for itself used no parameter. */
static void a_refused_call_uses_no_parameter(void)
{
    open_graph();
    dml_node *kept = parameter(2, 4, 3), *other = parameter(2, 4, 3), *p = parameter(2, 4, 3);
    dml_node *sum = dml_add(kept, other);
    REFUSED(dml_argmin(p, 7, false), DML_ERROR_ARGUMENT, "argm");
    CHECK_INT(dml_graph_parameters(graph), 2);
    CHECK_INT(dml_graph_parameter_count(graph), 24);
    CHECK(dml_graph_parameter(graph, 0) == kept && dml_graph_parameter(graph, 1) == other);
    float values[12];
    CHECK_INT(dml_parameter_read(p, values, 12), DML_ERROR_STATE);
    CHECK_CONTAINS(dml_error(context), "no op uses it");
    dml_clear_error(context);
    CHECK(dml_add(sum, p)); /* and then it has the next place */
    CHECK_INT(dml_graph_parameter_count(graph), 36);
    CHECK_INT(dml_parameter_read(p, values, 12), DML_OK);
    CHECK_INT(dml_parameter_offset(p), 24);
    REFUSED(dml_argmin(p, 7, false), DML_ERROR_ARGUMENT, "argm"); /* also once w is laid out */
    CHECK_INT(dml_graph_parameter_count(graph), 36);
    dml_close(context);
}

/* Long names are refused, and no sentence overflows. */
static void long_names(void)
{
    char name[2000];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    open_graph();
    REFUSED(dml_input(graph, name, DML_F32), DML_ERROR_ARGUMENT, "may have 127 bytes");
    REFUSED(dml_input(graph, name, DML_U8), DML_ERROR_UNSUPPORTED, "nnn");
    REFUSED(dml_input(graph, "x", DML_I8), DML_ERROR_UNSUPPORTED, "dtype i8 asked for, f32 and i32 are");
    REFUSED(dml_push_scope(graph, "%s", name) == DML_OK, DML_ERROR_ARGUMENT, "scopes included");
    name[DML_NAME_BYTES - 1] = '\0';
    CHECK(dml_graph_find(graph, dml_node_name(dml_input(graph, name, DML_F32))));
    CHECK_INT(strlen(dml_node_name(dml_graph_first(graph))), DML_NAME_BYTES - 1);
    name[DML_NAME_BYTES - 1] = 'n';
    name[DML_NAME_BYTES] = '\0';
    REFUSED(dml_input(graph, name, DML_F32), DML_ERROR_ARGUMENT, "nnnn");
    name[DML_NAME_BYTES - 2] = '\0'; /* with its point, 127 bytes: no room for more */
    CHECK_INT(dml_push_scope(graph, "%s", name), DML_OK);
    REFUSED(dml_input(graph, "x", DML_F32), DML_ERROR_ARGUMENT, "may have 127 bytes");
    REFUSED(dml_relu(dml_graph_first(graph)), DML_ERROR_ARGUMENT, "may have 127 bytes");
    CHECK_INT(dml_pop_scope(graph), DML_OK);
    dml_close(context);
}

int main(void)
{
    RUN(shapes);
    RUN(parameters);
    RUN(initial_values);
    RUN(uniform_values_stay_below_high);
    RUN(bad_leaves);
    RUN(bad_shapes);
    RUN(bad_losses);
    RUN(bad_windows);
    RUN(bad_weights);
    RUN(initial_values_of_the_callers);
    RUN(null_goes_through);
    RUN(other_graphs_and_late_parameters);
    RUN(bad_programs);
    RUN(bad_runs);
    RUN(a_missing_input_is_told);
    RUN(shapes_that_nobody_has_checked);
    RUN(a_graph_in_use_stays);
    RUN(heads_that_share_labels);
    RUN(ops_that_share_indices);
    RUN(a_refused_call_uses_no_parameter);
    RUN(long_names);
    return test_report("graph/graph");
}
