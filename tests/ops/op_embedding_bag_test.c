/* What a bag of embeddings refuses, and what it makes of places without an index. Its values and gradients
   are ops_test's. */
#include "ops/op_embedding_bag.h"

#include "graph/node.h"
#include "graph/program.h"
#include "graph/weights.h"
#include "ops/op_arithmetic.h"
#include "ops/op_embedding.h"
#include "ops/op_loss.h"
#include "train/trainer.h"

#include "../graph/backends.h"
#include "../graph/refused.h"

static void bad_bags(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *words = dml_input(graph, "words", DML_I32, 4), *word = dml_input(graph, "word", DML_I32);
    dml_node *x = dml_input(graph, "x", DML_F32, 4), *y = dml_input(graph, "y", DML_F32, 4, 1);
    dml_node *row = dml_parameter(graph, "row", dml_init_constant(0), 4);
    dml_node *table = dml_parameter(graph, "table", dml_init_constant(0), 3, 2);
    const dml_embedding_bag_options mean = { .mode = DML_BAG_MEAN }, bad = { .mode = (dml_bag_mode)7 };
    const char *bag = "embedding_bag 'embedding_bag_1': ";
    CHECK(!dml_embedding_bag(NULL, NULL, 3, 2, NULL));
    REFUSED(dml_embedding_bag_with(words, NULL, NULL, NULL), DML_ERROR_ARGUMENT, "input 2 of 2 is NULL");
    REFUSED(dml_embedding_bag(x, NULL, 3, 2, NULL), DML_ERROR_SHAPE,
            "its indices are f32 4; they must be an input");
    REFUSED(dml_embedding_bag(word, NULL, 3, 2, NULL), DML_ERROR_SHAPE, "with at least one dimension");
    REFUSED(dml_embedding_bag(words, NULL, 0, 2, NULL), DML_ERROR_ARGUMENT, "a table of 0 x 2");
    REFUSED(dml_embedding_bag(words, NULL, 3, -1, NULL), DML_ERROR_ARGUMENT, "a table of 3 x -1");
    REFUSED(
        dml_embedding_bag(words, y, 3, 2, NULL), DML_ERROR_SHAPE,
        "its indices are 4 a sample and its weights f32 4 x 1 a sample; they must be f32 of the same shape");
    REFUSED(dml_embedding_bag(words, words, 3, 2, NULL), DML_ERROR_SHAPE, "its weights i32 4");
    REFUSED(dml_embedding_bag(words, row, 3, 2, NULL), DML_ERROR_SHAPE, "its weights f32 4;");
    REFUSED(dml_embedding_bag(words, x, 3, 2, &mean), DML_ERROR_ARGUMENT, "weights are of a sum");
    REFUSED(dml_embedding_bag(words, x, 3, 2, &bad), DML_ERROR_ARGUMENT, "no mode 7");
    REFUSED(dml_embedding_bag_with(words, NULL, row, NULL), DML_ERROR_SHAPE,
            "its table is f32 4; it must be");
    REFUSED(dml_embedding_bag_with(words, NULL, y, NULL), DML_ERROR_SHAPE, "its table is f32 4 x 1 a sample");
    REFUSED(dml_embedding_bag(words, row, 3, 2, NULL), DML_ERROR_SHAPE, bag);
    CHECK(!dml_parameter_sparse(table) && !dml_parameter_sparse(NULL));
    CHECK_INT(dml_parameter_set_sparse(NULL, true), DML_ERROR_ARGUMENT);
    CHECK_INT(dml_parameter_set_sparse(x, true), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "only a parameter that has rows can be sparse");
    dml_clear_error(context);
    CHECK_INT(dml_parameter_set_sparse(table, true), DML_OK);
    CHECK(dml_parameter_sparse(table));
    char text[32];
    dml_node *y1 = dml_embedding_bag(words, NULL, 9, 2, &(dml_embedding_bag_options){ .sparse = true });
    CHECK(dml_parameter_sparse(dml_graph_find(graph, "embedding_bag_1.weight")));
    CHECK_STRING(dml_node_describe(y1, text, sizeof text), "sum");
    CHECK_STRING(dml_node_describe(dml_embedding_bag_with(words, NULL, table, &mean), text, sizeof text),
                 "mean");
    dml_close(context);
}

/* Places without an index, whatever their weight; bags without any; and indices that there aren't, which are
   found before anything is written. */
static void indices_in_and_out_of_range(void)
{
    enum { ROWS = 2, L = 3 };
    dml_context *context = open_here(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *at = dml_input(graph, "at", DML_I32, L), *by = dml_input(graph, "by", DML_F32, L);
    dml_node *table = dml_parameter(graph, "table", dml_init_constant(3), 5, 1);
    dml_parameter_set_sparse(table, true);
    dml_node *y = dml_embedding_bag_with(at, by, table, NULL);
    dml_trainer *trainer = dml_trainer_create(dml_mean_squared_error(y, dml_input(graph, "t", DML_F32, 1)),
                                              &(dml_trainer_options){ .batch = ROWS });
    dml_program *p = dml_compile(y, &(dml_program_options){ .batch = ROWS });
    dml_program *single = dml_compile(dml_embedding_with(at, table), &(dml_program_options){ .batch = ROWS });
    CHECK_STRING(dml_error(context), "");
    int32_t index[ROWS * L] = { -1, 4, 0, -1, -1, -1 };
    const float value[ROWS * L] = { NAN, 2, 0.5f, INFINITY, 1, -1 }, t[ROWS] = { 0, 0 };
    float out[ROWS * L] = { 7, 7 };
    CHECK_INT(dml_program_run(p, ROWS, DML_INPUTS(index, value), out), DML_OK);
    CHECK(out[0] == 7.5f && out[1] == 0);
    CHECK_INT(dml_program_run(single, ROWS, DML_INPUTS(index), out), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "input 'at': sample 0 of the batch is -1, it must be in 0 .. 4");
    dml_clear_error(context);
    static const int32_t bad[] = { 5, -2, INT32_MAX, INT32_MIN };
    for (int i = 0; i < 4; i++) {
        index[4] = bad[i];
        out[0] = 9;
        CHECK_INT(dml_program_run(p, ROWS, DML_INPUTS(index, value), out), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "input 'at': sample 1 of the batch is ");
        CHECK_CONTAINS(dml_error(context), "it must be in -1 .. 4");
        dml_clear_error(context);
        CHECK_INT(dml_trainer_step(trainer, ROWS, DML_INPUTS(index, value, t), NULL), DML_ERROR_ARGUMENT);
        dml_clear_error(context);
        float w[5];
        CHECK_INT(dml_parameter_read(table, w, 5), DML_OK);
        for (int k = 0; k < 5; k++) CHECK(w[k] == 3);
        CHECK(out[0] == 9);
    }
    dml_close(context);
}
EACH_BACKEND(indices_in_and_out_of_range)

int main(void)
{
    RUN(bad_bags);
    RUN_EACH(indices_in_and_out_of_range);
    return test_report("ops/op_embedding_bag");
}
