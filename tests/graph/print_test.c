/* A graph printed as a table and as a drawing: exactly what is written, and what can't be. */
#include "graph/print.h"

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_conv2d.h"
#include "ops/op_dense.h"
#include "ops/op_loss.h"
#include "ops/op_pool2d.h"
#include "graph/weights.h"

#include "../test.h"

#include <unistd.h>

static char path[256];
static char written[16384]; /* what the last call of `write_with` wrote */

typedef dml_status writer(const dml_graph *graph, FILE *file);

static void write_with(writer *write, const dml_graph *graph)
{
    FILE *file = fopen(path, "w+");
    CHECK(file);
    if (!file) return;
    CHECK_INT(write(graph, file), DML_OK);
    rewind(file);
    const size_t bytes = fread(written, 1, sizeof written - 1, file);
    written[bytes] = '\0';
    fclose(file);
}

/* A convolution, a pool, a frozen and a shared parameter, one that no op uses, and a loss. */
static dml_graph *build(dml_context *context)
{
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "image", DML_F32, 6, 6, 1), *t = dml_input(g, "label", DML_I32);
    dml_push_scope(g, "stem");
    dml_node *c = dml_relu(dml_conv2d(x, &(dml_conv2d_options){ .filters = 2 }));
    dml_pop_scope(g);
    dml_node *h = dml_flatten(dml_max_pool2d(c, NULL));
    dml_node *w = dml_parameter(g, "w", dml_init_constant(1), 8, 8);
    dml_parameter_train(w, false);
    CHECK(dml_parameter(g, "alone", dml_init_constant(1), 1000));
    h = dml_dense_with(h, w, dml_parameter(g, "bias", dml_init_constant(0), 8));
    h = dml_dense_with(h, w, NULL);
    h = dml_dense_with(h, dml_relu(w), NULL);
    CHECK(dml_softmax_cross_entropy(dml_dense(h, 3), t));
    CHECK_STRING(dml_error(context), "");
    return g;
}

/* ---- the table ---- */

static void the_table(void)
{
    /* clang-format off */
    static const char want[] =
        "node                     does                                                          output       parameters           flops         bytes         saved\n"
        "image                    input f32                                                     6 x 6 x 1             0               0           144             0\n"
        "label                    input i32                                                     scalar                0               0             4             0\n"
        "stem.conv2d_1            conv2d, 2 filters, kernel 3 x 3, stride 1 x 1, padding 0 x 0  4 x 4 x 2            20             608           128             0\n"
        "stem.relu_1              relu                                                          4 x 4 x 2             0              32           128             0\n"
        "max_pool2d_1             max_pool2d, kernel 2 x 2, stride 2 x 2, padding 0 x 0         2 x 2 x 2             0               0            32            32\n"
        "flatten_1                flatten                                                       8                     0               0             0             0\n"
        "dense_1                  dense                                                         8                    72             136            32             0\n"
        "dense_2                  dense                                                         8                     0             128            32             0\n"
        "relu_1                   relu                                                          8 x 8                 0              64           256             0\n"
        "dense_3                  dense                                                         8                     0             128            32             0\n"
        "dense_4                  dense                                                         3                    27              51            12             0\n"
        "softmax_cross_entropy_1  softmax_cross_entropy                                         scalar                0               9             4            28\n"
        "119 parameters, 55 of them trained; 1156 flops forward for one sample, 804 bytes of values and 60 saved for backward\n";
    /* clang-format on */
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    write_with(dml_graph_print, build(context));
    CHECK_STRING(written, want);
    write_with(dml_graph_print, dml_graph_create(context));
    CHECK_STRING(written,
                 "node  does  output    parameters           flops         bytes         saved\n"
                 "0 parameters, 0 of them trained; 0 flops forward for one sample, 0 bytes of values "
                 "and 0 saved for backward\n");
    dml_close(context);
}

/* Totals are what the graph itself says, whatever shares what. */
static void totals(void)
{
    char last[128];
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "x", DML_F32, 5), *p = dml_parameter(g, "p", dml_init_constant(0), 5, 5);
    dml_node *bias = dml_parameter(g, "b", dml_init_constant(0), 5);
    dml_node *twice = dml_add(dml_flatten(bias), bias), *both = dml_add(twice, twice);
    dml_node *y = dml_dense_with(dml_dense_with(x, dml_add(p, p), both), p, bias);
    CHECK(dml_dense(y, 2));
    double flops = 0;
    for (const dml_node *n = dml_graph_first(g); n; n = dml_node_next(n)) flops += dml_node_flops(n);
    CHECK_INT(dml_graph_parameter_count(g), 25 + 5 + 12);
    write_with(dml_graph_print, g);
    snprintf(last, sizeof last, "\n42 parameters, 42 of them trained; %.0f flops forward for one sample, ",
             flops);
    CHECK_CONTAINS(written, last);
    dml_close(context);
}

/* ---- of a program ---- */

static dml_status print_program(const dml_graph *graph, FILE *file);
static dml_program *printed;

/* A dense layer of 3 x 4 with a tanh and another of 4 x 2 that shares nothing, and a branch that isn't run.
 */
static void programs(void)
{
    /* clang-format off */
    static const char want[] =
        "node                     does                   output    parameters   forward flops  backward flops         bytes          kept\n"
        "x                        input f32              3                  0               0               0             0             0\n"
        "t                        input i32              scalar             0               0               0             0             0\n"
        "dense_1                  dense                  4                 16             140             140            80             0\n"
        "tanh_1                   tanh                   4                  0              20              20             0            80\n"
        "dense_3                  dense                  2                 10              90             180            40            40\n"
        "softmax_cross_entropy_1  softmax_cross_entropy  scalar             0              30              30             4           124\n"
        "batch=5 training=1 parameters=26 trained=26 frozen=0\n"
        "forward_flops=280 backward_flops=370\n";
    /* clang-format on */
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *g = dml_graph_create(context);
    dml_node *x = dml_input(g, "x", DML_F32, 3), *t = dml_input(g, "t", DML_I32);
    dml_node *h = dml_dense(x, 4);
    CHECK(dml_dense(h, 7)); /* not run */
    h = dml_dense_with(dml_tanh(h), dml_parameter(g, "w", dml_init_constant(1), 2, 4),
                       dml_parameter(g, "b", dml_init_constant(1), 2));
    dml_node *loss = dml_softmax_cross_entropy(h, t);
    dml_program *train = dml_compile(loss, &(dml_program_options){ .batch = 5, .training = true });
    dml_program *predict = dml_compile(h, &(dml_program_options){ .batch = 5 });
    CHECK_MESSAGE(train && predict, "%s", dml_error(context));
    printed = train;
    write_with(print_program, g);
    const dml_program_totals all = dml_program_summary(train), some = dml_program_summary(predict);
    CHECK_CONTAINS(written, want);
    CHECK(all.batch == 5 && all.training && all.parameters == 26 && all.trained == 26);
    CHECK(all.arena_bytes == dml_program_bytes(train) && all.arena_bytes >= all.kept_bytes);
    CHECK(all.kept_bytes == 80 + 40 + 124 && all.backward_flops == 370);
    CHECK(all.weight_bytes == dml_graph_parameter_count(g) * 4);
    CHECK(all.gradient_bytes == dml_graph_trained_count(g) * 4);
    CHECK(!some.training && some.parameters == 26 && some.backward_flops == 0 && some.kept_bytes == 0);
    CHECK(some.gradient_bytes == 0 && some.forward_flops == all.forward_flops - 30);
    /* What is kept in 16 bits counts as such. */
    const dml_program_totals narrow = dml_program_summary(
        dml_compile(loss, &(dml_program_options){ .batch = 5, .training = true, .dtype = DML_BF16 }));
    CHECK_INT(narrow.kept_bytes, all.kept_bytes - 40);
    CHECK(narrow.arena_bytes >= narrow.kept_bytes);
    CHECK(dml_program_summary(NULL).batch == 0);
    printed = predict;
    write_with(print_program, g);
    CHECK_CONTAINS(
        written,
        "batch=5 training=0 parameters=26 trained=26 frozen=0\nforward_flops=250 backward_flops=0\n");
    CHECK_INT(dml_program_print(NULL, stdout), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_program_print(predict, NULL), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "dml_program_print was given no file");
    dml_close(context);
}

static dml_status print_program(const dml_graph *graph, FILE *file)
{
    (void)graph;
    return dml_program_print(printed, file);
}

/* ---- the drawing ---- */

static void the_drawing(void)
{
    /* clang-format off */
    static const char want[] =
        "digraph model {\n"
        "    rankdir=TB;\n"
        "    n0 [shape=ellipse, label=\"image\\ninput f32\\n6 x 6 x 1\"];\n"
        "    n1 [shape=ellipse, label=\"label\\ninput i32\\nscalar\"];\n"
        "    n2 [shape=ellipse, label=\"stem.conv2d_1.weight\\nparameter\\n2 x 3 x 3 x 1\", style=dashed];\n"
        "    n3 [shape=ellipse, label=\"stem.conv2d_1.bias\\nparameter\\n2\", style=dashed];\n"
        "    n4 [shape=box, label=\"stem.conv2d_1\\nconv2d, 2 filters, kernel 3 x 3, stride 1 x 1, padding 0 x 0\\n4 x 4 x 2\"];\n"
        "    n0 -> n4;\n"
        "    n2 -> n4;\n"
        "    n3 -> n4;\n"
        "    n5 [shape=box, label=\"stem.relu_1\\nrelu\\n4 x 4 x 2\"];\n"
        "    n4 -> n5;\n"
        "    n6 [shape=box, label=\"max_pool2d_1\\nmax_pool2d, kernel 2 x 2, stride 2 x 2, padding 0 x 0\\n2 x 2 x 2\"];\n"
        "    n5 -> n6;\n"
        "    n7 [shape=box, label=\"flatten_1\\nflatten\\n8\"];\n"
        "    n6 -> n7;\n"
        "    n8 [shape=ellipse, label=\"w\\nparameter\\n8 x 8, frozen\", style=dashed];\n"
        "    n9 [shape=ellipse, label=\"alone\\nparameter\\n1000\", style=dashed];\n"
        "    n10 [shape=ellipse, label=\"bias\\nparameter\\n8\", style=dashed];\n"
        "    n11 [shape=box, label=\"dense_1\\ndense\\n8\"];\n"
        "    n7 -> n11;\n"
        "    n8 -> n11;\n"
        "    n10 -> n11;\n"
        "    n12 [shape=box, label=\"dense_2\\ndense\\n8\"];\n"
        "    n11 -> n12;\n"
        "    n8 -> n12;\n"
        "    n13 [shape=box, label=\"relu_1\\nrelu\\n8 x 8\"];\n"
        "    n8 -> n13;\n"
        "    n14 [shape=box, label=\"dense_3\\ndense\\n8\"];\n"
        "    n12 -> n14;\n"
        "    n13 -> n14;\n"
        "    n15 [shape=ellipse, label=\"dense_4.weight\\nparameter\\n3 x 8\", style=dashed];\n"
        "    n16 [shape=ellipse, label=\"dense_4.bias\\nparameter\\n3\", style=dashed];\n"
        "    n17 [shape=box, label=\"dense_4\\ndense\\n3\"];\n"
        "    n14 -> n17;\n"
        "    n15 -> n17;\n"
        "    n16 -> n17;\n"
        "    n18 [shape=box, label=\"softmax_cross_entropy_1\\nsoftmax_cross_entropy\\nscalar\"];\n"
        "    n17 -> n18;\n"
        "    n1 -> n18;\n"
        "}\n";
    /* clang-format on */
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    write_with(dml_graph_to_dot, build(context));
    CHECK_STRING(written, want);
    write_with(dml_graph_to_dot, dml_graph_create(context));
    CHECK_STRING(written, "digraph model {\n    rankdir=TB;\n}\n");
    dml_close(context);
}

/* Outside of quotes braces and brackets close; a quote ends what a quote began; no line ends inside. */
static void check_dot_syntax(const char *text)
{
    char open[8];
    int depth = 0;
    bool quoted = false;
    for (const char *c = text; *c; c++) {
        if (quoted) {
            CHECK(*c != '\n' && (unsigned char)*c >= ' ');
            if (*c == '\\') CHECK(*++c != '\0');
            if (*c == '"' && c[-1] != '\\') quoted = false;
            if (*c == '"' && c[-1] == '\\' && c[-2] == '\\') CHECK_MESSAGE(false, "an unclear quote");
        } else if (*c == '"') {
            quoted = true;
        } else if (*c == '{' || *c == '[') {
            CHECK(depth < (int)sizeof open);
            open[depth++] = *c;
        } else if (*c == '}' || *c == ']') {
            CHECK(depth > 0 && open[--depth] == (*c == '}' ? '{' : '['));
        }
    }
    CHECK(!quoted && depth == 0);
}

static dml_graph *build_odd_names(dml_context *context)
{
    dml_graph *g = dml_graph_create(context);
    CHECK(dml_input(g, "say \"x\"", DML_F32, 2));
    CHECK(dml_input(g, "back\\slash", DML_F32, 2) && dml_input(g, "{[<|>]}", DML_F32, 2));
    dml_node *x = dml_input(g, "\xc3\xa9t\xc3\xa9", DML_F32, 2);
    dml_push_scope(g, "q\"");
    CHECK(dml_dense(x, 2));
    return g;
}

static void odd_names(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    write_with(dml_graph_to_dot, build_odd_names(context));
    check_dot_syntax(written);
    CHECK_CONTAINS(written, "label=\"say \\\"x\\\"\\ninput f32\\n2\"");
    CHECK_CONTAINS(written, "label=\"back\\\\slash\\n");
    CHECK_CONTAINS(written, "label=\"{[<|>]}\\n");
    CHECK_CONTAINS(written, "label=\"\xc3\xa9t\xc3\xa9\\n");
    CHECK_CONTAINS(written, "label=\"q\\\".dense_1.weight\\nparameter\\n2 x 2\", style=dashed];");
    write_with(dml_graph_to_dot, build(context));
    check_dot_syntax(written);
    dml_close(context);
}

static void graphviz_takes_it(void)
{
    char command[600];
    if (system("dot -V >/dev/null 2>&1") != 0) {
        SKIP("dot (Graphviz) is not installed");
        return;
    }
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    snprintf(command, sizeof command, "dot -Tsvg -o /dev/null '%s'", path);
    write_with(dml_graph_to_dot, build(context));
    CHECK_INT(system(command), 0);
    write_with(dml_graph_to_dot, build_odd_names(context));
    CHECK_INT(system(command), 0);
    dml_close(context);
}

/* ---- what can't be written ---- */

static void files_that_fail(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *g = build(context);
    CHECK_INT(dml_graph_print(NULL, stdout), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_graph_to_dot(NULL, stdout), DML_ERROR_ARGUMENT);
    CHECK_STRING(dml_error(context), "");
    FILE *full = fopen("/dev/full", "w");
    if (!full) {
        SKIP("no /dev/full here");
    } else {
        CHECK_INT(dml_graph_print(g, full), DML_ERROR_IO);
        CHECK_CONTAINS(dml_error(context), "can't write a table of the graph");
        dml_clear_error(context);
        CHECK_INT(dml_graph_to_dot(g, full), DML_ERROR_IO);
        CHECK_CONTAINS(dml_error(context), "can't write a drawing of the graph");
        dml_clear_error(context);
        fclose(full);
    }
    FILE *closed =
        fopen(path, "r"); /* for reading: nothing can be written, and a flush finds nothing to do */
    CHECK(closed);
    if (closed) {
        CHECK_INT(dml_graph_print(g, closed), DML_ERROR_IO);
        dml_clear_error(context);
        CHECK_INT(dml_graph_to_dot(g, closed), DML_ERROR_IO);
        fclose(closed);
    }
    dml_close(context);
}

int main(void)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/dml_print_test.%ld", folder ? folder : "/tmp", (long)getpid());
    RUN(the_table);
    RUN(totals);
    RUN(programs);
    RUN(the_drawing);
    RUN(odd_names);
    RUN(graphviz_takes_it);
    RUN(files_that_fail);
    remove(path);
    return test_report("graph/print");
}
