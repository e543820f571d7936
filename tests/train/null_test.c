/* Every public function of graphs, programs and trainers that takes a path, an array or a place, given NULL
   for it: a status, and a sentence that says which call lacks what. */
#include "train/checkpoint.h"
#include "train/idx.h"
#include "train/metrics.h"
#include "graph/print.h"
#include "graph/weights.h"
#include "ops/op_shape.h"

#include "small_model.h"

#include <stdio.h>

#define LACKS(call, says)                                                                                    \
    do {                                                                                                     \
        CHECK_INT(call, DML_ERROR_ARGUMENT);                                                                 \
        CHECK_INT(dml_status_of(context), DML_ERROR_ARGUMENT);                                               \
        CHECK_CONTAINS(dml_error(context), says);                                                            \
        CHECK_CONTAINS(dml_error(context), "NULL");                                                          \
        dml_clear_error(context);                                                                            \
    } while (0)

static void graphs(void)
{
    backend_here = find_backend("cpu");
    context = open_here(NULL);
    dml_node *loss = small_loss();
    dml_graph *g = dml_node_graph(loss);
    dml_node *weight = dml_graph_find(g, "dense_1.weight");
    dml_program *p = dml_compile(loss, &(dml_program_options){ .batch = BATCH });
    const void *one_lacks[] = { rows, NULL };
    LACKS(dml_graph_save(g, NULL), "dml_graph_save was given no path");
    LACKS(dml_graph_load(g, NULL), "dml_graph_load was given no path");
    LACKS(dml_graph_load_matching(g, NULL), "dml_graph_load_matching was given no path");
    LACKS(dml_graph_load_memory(g, NULL, NULL, 1), "dml_graph_load_memory was given no bytes");
    LACKS(dml_graph_store(g, NULL, 0, NULL), "dml_graph_store was given no place for the number of bytes");
    LACKS(dml_graph_print(g, NULL), "dml_graph_print was given no file");
    LACKS(dml_graph_to_dot(g, NULL), "dml_graph_to_dot was given no file");
    LACKS(dml_parameter_read(weight, NULL, 2 * WIDTH), "'dense_1.weight': there is no array");
    LACKS(dml_parameter_write(weight, NULL, 2 * WIDTH), "'dense_1.weight': there is no array");
    LACKS(dml_push_scope(g, NULL), "dml_push_scope was given no name");
    LACKS(dml_program_run(p, 1, NULL, 2, NULL), "input 'x': input 1 of 2 is NULL");
    LACKS(dml_program_run(p, 1, one_lacks, 2, NULL), "input 'label': input 2 of 2 is NULL");
    CHECK(!dml_graph_find(g, NULL));
    CHECK_CONTAINS(dml_error(context), "NULL");
    dml_clear_error(context);
    CHECK_INT(dml_split(dml_node_input(loss, 0), 0, 3, NULL), DML_ERROR_ARGUMENT);
    CHECK_CONTAINS(dml_error(context), "there is no array for its 3 parts");
    dml_close(context);
}

static void trainers(void)
{
    backend_here = find_backend("cpu");
    dml_trainer *t = small_trainer(0.1f, 0.9f);
    dml_idx idx;
    const void *one_lacks[] = { NULL, labels };
    LACKS(dml_trainer_save(t, NULL), "dml_trainer_save was given no path");
    LACKS(dml_trainer_load(t, NULL), "dml_trainer_load was given no path");
    LACKS(dml_trainer_check_save(t, NULL), "dml_trainer_check_save was given no path");
    LACKS(dml_trainer_set_note(t, NULL, ""), "dml_trainer_set_note was given no name");
    LACKS(dml_trainer_set_run(t, NULL), "dml_trainer_set_run was given no run");
    LACKS(dml_trainer_step(t, 1, NULL, 2, NULL), "input 'x': input 1 of 2 is NULL");
    LACKS(dml_trainer_backward(t, 1, one_lacks, 2, DML_OVERWRITE, NULL), "input 'x': input 1 of 2 is NULL");
    LACKS(dml_idx_load(context, NULL, &idx), "dml_idx_load was given no path");
    LACKS(dml_idx_load(context, "x", NULL), "dml_idx_load was given no place");
    LACKS(dml_idx_parse(context, NULL, NULL, 8, &idx), "dml_idx_parse was given no bytes");
    LACKS(dml_idx_parse(context, NULL, rows, 8, NULL), "dml_idx_parse was given no place");
    CHECK_INT(dml_trainer_step(t, 1, inputs, 2, NULL), DML_OK); /* nothing is lost */
    dml_close(context);
}

int main(void)
{
    RUN(graphs);
    RUN(trainers);
    return test_report("train/null");
}
