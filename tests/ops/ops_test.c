/* Every op of the table on every backend: forward against a float64 reference, backward against central
   finite differences of that reference. An op without a case fails the tests. */
#include "ops/table.h"

#include "../graph/ops_cases.h"

/* Where it is slow, functions of one element are checked by their kernels' test, and these stand for all of
   their ops, which have the same code. */
static bool skipped_here(const char *op)
{
    static const char *const stand_for_all[] = { "relu", "add", "mul", "where" };
    bool stands = !formula_named(op);
    for (int i = 0; i < 4; i++) stands = stands || strcmp(op, stand_for_all[i]) == 0;
    return (slow_here() || TEST_EMULATOR) && !stands;
}

static void every_op(void)
{
    for (int c = 0; c < CASES; c++) {
        subject s;
        if (skipped_here(cases[c].op)) continue;
        if (TEST_EMULATOR && c % 3 && strcmp(cases[c - 1].op, cases[c].op) == 0)
            continue; /* one more of it */
        const int batch = cases[c].model.batch;
        if (open_subject(&s, &cases[c].model)) {
            CHECK_MESSAGE(has_op(&s, cases[c].op), "%s is no case of '%s'", cases[c].model.name, cases[c].op);
            if (batch > 2 && (!TEST_SLOW || c % 4 == 0)) check_rows(&s, batch - 1);
            if (batch > 1 && !slow_here() && !TEST_EMULATOR) check_rows(&s, 1);
            if (batch <= 2 || (TEST_EMULATOR ? c % 4 != 0 : !slow_here())) check_rows(&s, batch);
        }
        close_subject(&s);
    }
}
EACH_BACKEND(every_op)

static void the_table_has_cases(void)
{
    const dml__op *op;
    for (int i = 0; (op = dml__op_at(i)) != NULL; i++) {
        bool found = false;
        for (int c = 0; c < CASES; c++) found = found || strcmp(cases[c].op, op->name) == 0;
        CHECK_MESSAGE(found, "the op '%s' has no case", op->name);
        CHECK_MESSAGE(reference_of(op->name), "the op '%s' has no float64 reference", op->name);
    }
    CHECK(dml__op_at(-1) == NULL);
}

/* Logits near 1e4, which float holds exactly here: exp of them is infinite, their differences are not. */
static void large_logits(void)
{
    enum { CLASSES = 5, ROWS = 3 };
    static const float w[CLASSES] = { 10000, 9999.25f, -10000, 10000.5f, 9990 };
    static const float x[ROWS] = { 1, -1, 0.5f };
    static const int32_t label[ROWS] = { 1, 2, 4 };
    dml_context *context = open_here(NULL);
    dml_graph *g = dml_graph_create(context);
    dml_node *weight = dml_parameter(g, "w", dml_init_constant(0), CLASSES, 1);
    dml_node *logits = dml_dense_with(dml_input(g, "x", DML_F32, 1), weight, NULL);
    dml_node *loss = dml_softmax_cross_entropy(logits, dml_input(g, "label", DML_I32));
    dml_program *p = dml_compile(loss, &(dml_program_options){ .batch = ROWS, .training = true });
    CHECK_MESSAGE(p, "%s", dml_error(context));
    write_floats(context, g->w, w, CLASSES);
    double want = 0, gradient[CLASSES] = { 0 };
    for (int r = 0; r < ROWS; r++) {
        double largest = -HUGE_VAL, sum = 0;
        for (int c = 0; c < CLASSES; c++) largest = fmax(largest, (double)x[r] * w[c]);
        for (int c = 0; c < CLASSES; c++) sum += exp((double)x[r] * w[c] - largest);
        want += (log(sum) + largest - (double)x[r] * w[label[r]]) / ROWS;
        for (int c = 0; c < CLASSES; c++)
            gradient[c] += (exp((double)x[r] * w[c] - largest) / sum - (c == label[r])) * x[r] / ROWS;
    }
    const void *const inputs[] = { x, label };
    float got, got_gradient[CLASSES];
    CHECK_INT(program_train(p, ROWS, inputs, 1.0f, NULL, &got), DML_OK);
    read_floats(context, got_gradient, p->g, CLASSES);
    CHECK_NEAR(got, want, 1e-6 * want);
    for (int c = 0; c < CLASSES; c++) CHECK_NEAR(got_gradient[c], gradient[c], 2e-7);
    dml_close(context);
}
EACH_BACKEND(large_logits)

int main(void)
{
    RUN(the_table_has_cases);
    RUN_EACH(every_op);
    RUN_EACH(large_logits);
    return test_report("ops/ops");
}
