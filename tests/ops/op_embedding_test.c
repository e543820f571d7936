/* What an embedding refuses: when it is built, and of indices before anything is run. Its values and
   gradients are ops_test's. */
#include "ops/op_embedding.h"

#include "graph/node.h"
#include "graph/program.h"
#include "graph/weights.h"
#include "ops/op_arithmetic.h"
#include "ops/op_loss.h"
#include "train/trainer.h"

#include "../graph/backends.h"
#include "../graph/refused.h"

static void bad_embeddings(void)
{
    dml_context *context = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *words = dml_input(graph, "words", DML_I32, 4), *x = dml_input(graph, "x", DML_F32, 4);
    dml_node *many = dml_input(graph, "many", DML_I32, 1, 1, 1, 1, 1);
    dml_node *row = dml_parameter(graph, "row", dml_init_constant(0), 4);
    CHECK(!dml_embedding(NULL, 3, 2));
    REFUSED(dml_embedding(x, 3, 2), DML_ERROR_SHAPE, "embedding 'embedding_1': its indices are f32 4;");
    REFUSED(dml_embedding(many, 3, 2), DML_ERROR_SHAPE, "at most 4 dimensions");
    REFUSED(dml_embedding(words, 0, 2), DML_ERROR_ARGUMENT, "a table of 0 x 2");
    REFUSED(dml_embedding(words, 3, -1), DML_ERROR_ARGUMENT, "a table of 3 x -1");
    REFUSED(dml_embedding(words, 65536, 65536), DML_ERROR_SHAPE, "more than");
    REFUSED(dml_embedding_with(words, row), DML_ERROR_SHAPE,
            "its table is f32 4; it must be f32 count x width");
    REFUSED(dml_embedding_with(words, x), DML_ERROR_SHAPE, "its table is f32 4 a sample");
    dml_close(context);
}

static void indices_out_of_range(void)
{
    enum { ROWS = 3, WORDS = 2, COUNT = 5, WIDTH = 2 };
    dml_context *context = open_here(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_node *words = dml_input(graph, "words", DML_I32, WORDS);
    dml_node *y = dml_embedding(dml_flatten(words), COUNT, WIDTH);
    dml_node *loss = dml_mean_squared_error(y, dml_input(graph, "t", DML_F32, WORDS, WIDTH));
    dml_trainer *trainer =
        dml_trainer_create(loss, &(dml_trainer_options){ .batch = ROWS, .optimizer = dml_sgd(0.1f, 0) });
    dml_program *p = dml_compile(y, &(dml_program_options){ .batch = ROWS });
    CHECK_STRING(dml_error(context), "");
    int32_t index[ROWS * WORDS] = { 0, 4, 2, 2, 1, 3 };
    float t[ROWS * WORDS * WIDTH] = { 0 }, out[ROWS * WORDS * WIDTH];
    float before[COUNT * WIDTH];
    dml_node *table = dml_graph_find(graph, "embedding_1.weight");
    CHECK_INT(dml_parameter_read(table, before, COUNT * WIDTH), DML_OK);
    CHECK_INT(dml_program_run(p, ROWS, DML_INPUTS(index), out), DML_OK);
    for (int i = 0; i < ROWS * WORDS * WIDTH; i++)
        CHECK(out[i] == before[index[i / WIDTH] * WIDTH + i % WIDTH]);
    static const int32_t bad[] = { 5, -1, INT32_MAX, INT32_MIN };
    for (int i = 0; i < 4; i++) {
        index[3] = bad[i];
        for (int k = 0; k < ROWS * WORDS * WIDTH; k++) out[k] = 7;
        CHECK_INT(dml_program_run(p, ROWS, DML_INPUTS(index), out), DML_ERROR_ARGUMENT);
        CHECK_CONTAINS(dml_error(context), "input 'words': sample 1 of the batch is ");
        CHECK_CONTAINS(dml_error(context), "it must be in 0 .. 4");
        for (int k = 0; k < ROWS * WORDS * WIDTH; k++) CHECK(out[k] == 7);
        dml_clear_error(context);
        CHECK_INT(dml_trainer_step(trainer, ROWS, DML_INPUTS(index, t), NULL), DML_ERROR_ARGUMENT);
        dml_clear_error(context);
        float after[COUNT * WIDTH];
        CHECK_INT(dml_parameter_read(table, after, COUNT * WIDTH), DML_OK);
        CHECK(memcmp(before, after, sizeof before) == 0);
    }
    dml_close(context);
}
EACH_BACKEND(indices_out_of_range)

int main(void)
{
    RUN(bad_embeddings);
    RUN_EACH(indices_out_of_range);
    return test_report("ops/op_embedding");
}
