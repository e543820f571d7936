/* Products of matrices, and bags of a table's rows, against what PyTorch computed; and training steps of a
   sparse table. */
#include "ops/op_embedding_bag.h"
#include "ops/op_matmul.h"
#include "train/trainer.h"

#include "conformance.h"

/* A table of SPARSE_COUNT elements, and for each step indices and values (batch, places), targets (batch,
   width) and the table after it. */
typedef struct sparse_case {
    int width;
    dml_optimizer optimizer;
    const int32_t *index;
    const float *value, *target, *start, *after;
} sparse_case;

#include "matmul_cases.h"
enum { CASES = sizeof matmul_cases / sizeof matmul_cases[0] };

static dml_node *build(const conformance_case *c, dml_node *const *tensor)
{
    const dml_matmul_options options = { c->number[0] != 0, c->number[1] != 0, c->number[2] };
    const dml_embedding_bag_options bag = { .mode = c->number[0] != 0 ? DML_BAG_MEAN : DML_BAG_SUM };
    if (strcmp(c->name, "matmul") == 0) return dml_matmul_with(tensor[0], tensor[1], &options);
    if (strcmp(c->name, "bag_values") == 0)
        return dml_embedding_bag_with(tensor[0], tensor[1], tensor[2], &bag);
    return dml_embedding_bag_with(tensor[0], NULL, tensor[1], &bag);
}

static void pytorch(void)
{
    for (int c = 0; c < CASES; c++) conformance_run(&matmul_cases[c], c, build, 2e-6);
}
EACH_BACKEND(pytorch)

/* PyTorch's SparseAdam has its epsilon at another place than Adam, so it is a little off where a gradient is
 * small. */
static void check_sparse(const sparse_case *c)
{
    dml_context *context = open_here(&(dml_options){ .threads = 2 });
    dml_graph *g = dml_graph_create(context);
    dml_node *table = dml_parameter(g, "table", dml_init_constant(0), SPARSE_COUNT / c->width, c->width);
    dml_parameter_set_sparse(table, true);
    dml_node *index = dml_input(g, "index", DML_I32, SPARSE_PLACES);
    dml_node *y = dml_embedding_bag_with(index, dml_input(g, "value", DML_F32, SPARSE_PLACES), table, NULL);
    dml_node *loss = dml_mean_squared_error(y, dml_input(g, "target", DML_F32, c->width));
    dml_trainer *t =
        dml_trainer_create(loss, &(dml_trainer_options){ .batch = SPARSE_BATCH, .optimizer = c->optimizer });
    CHECK_MESSAGE(t, "%s", dml_error(context));
    CHECK_INT(dml_parameter_write(table, c->start, SPARSE_COUNT), DML_OK);
    for (int step = 0; step < SPARSE_STEPS; step++) {
        const int places = SPARSE_BATCH * SPARSE_PLACES, targets = SPARSE_BATCH * c->width;
        float w[SPARSE_COUNT];
        CHECK_INT(dml_trainer_step(t, SPARSE_BATCH,
                                   DML_INPUTS(c->index + step * places, c->value + step * places,
                                              c->target + step * targets),
                                   NULL),
                  DML_OK);
        CHECK_INT(dml_parameter_read(table, w, SPARSE_COUNT), DML_OK);
        for (int i = 0; i < SPARSE_COUNT; i++) {
            const double want = (double)c->after[step * SPARSE_COUNT + i];
            CHECK_MESSAGE(fabs((double)w[i] - want) <= 2e-6 * fmax(1, fabs(want)),
                          "optimizer %d, step %d: [%d] is %.9g, PyTorch's is %.9g", (int)c->optimizer.kind,
                          step, i, (double)w[i], want);
        }
    }
    dml_close(context);
}

static void sparse(void)
{
    for (size_t i = 0; i < sizeof sparse_cases / sizeof sparse_cases[0]; i++) check_sparse(&sparse_cases[i]);
}
EACH_BACKEND(sparse)

int main(void)
{
    RUN_EACH(pytorch);
    RUN_EACH(sparse);
    return test_report("conformance/matmul");
}
