/* What a product of matrices refuses, and what it says of itself. Its values and gradients are ops_test's. */
#include "ops/op_matmul.h"

#include "graph/node.h"

#include "../graph/backends.h"
#include "../graph/refused.h"

static void bad_products(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context), *other = dml_graph_create(context);
    dml_node *a = dml_input(graph, "a", DML_F32, 2, 3, 4), *i = dml_input(graph, "i", DML_I32, 3, 4);
    dml_node *row = dml_input(graph, "row", DML_F32, 4), *b = dml_input(graph, "b", DML_F32, 4, 5);
    dml_node *w = dml_parameter(graph, "w", dml_init_constant(0), 3, 4, 5);
    dml_node *far = dml_input(other, "far", DML_F32, 4, 5);
    REFUSED(dml_matmul(NULL, b), DML_ERROR_ARGUMENT, "input 1 of 2 is NULL");
    REFUSED(dml_matmul(a, NULL), DML_ERROR_ARGUMENT, "input 2 of 2 is NULL");
    CHECK(!dml_matmul(NULL, NULL));
    REFUSED(dml_matmul(i, b), DML_ERROR_ARGUMENT, "matmul 'matmul_1': its input 1 is i32, it takes f32");
    REFUSED(dml_matmul(row, b), DML_ERROR_SHAPE,
            "its inputs are 4 and 4 x 5: both need two dimensions or more (dml_dense takes rows)");
    REFUSED(dml_matmul(b, a), DML_ERROR_SHAPE,
            "its inputs are 4 x 5 and 2 x 3 x 4: the first's columns must be as many as the second's rows");
    REFUSED(dml_matmul(a, w), DML_ERROR_SHAPE,
            "its inputs are 2 x 3 x 4 and 3 x 4 x 5, the second for the whole batch: before the last two");
    REFUSED(dml_matmul_with(a, b, &(dml_matmul_options){ .transpose_b = true }), DML_ERROR_SHAPE,
            "2 x 3 x 4 and 4 x 5 transposed");
    REFUSED(dml_matmul_with(a, b, &(dml_matmul_options){ .scale = NAN }), DML_ERROR_ARGUMENT,
            "a scale of nan asked for");
    REFUSED(dml_matmul_with(a, b, &(dml_matmul_options){ .scale = -INFINITY }), DML_ERROR_ARGUMENT, "-inf");
    REFUSED(dml_matmul(a, far), DML_ERROR_ARGUMENT, "");
    char text[64];
    dml_node *y = dml_matmul_with(dml_matmul(a, b), dml_input(graph, "c", DML_F32, 7, 3),
                                  &(dml_matmul_options){ true, true, 0.5f });
    CHECK_STRING(dml_error(context), "");
    CHECK_STRING(dml_node_describe(y, text, sizeof text), "a transposed, b transposed, scale 0.5");
    CHECK_STRING(dml_shape_format(&y->shape, text), "2 x 5 x 7");
    CHECK_NEAR(dml_node_flops(y), 2.0 * 2 * 5 * 7 * 3, 0);
    dml_close(context);
}

int main(void)
{
    RUN(bad_products);
    return test_report("ops/op_matmul");
}
