/* Random graphs over the whole op table against float64 and central differences, on every backend. GRAPH=n
   runs that one alone. */
#include "graph/print.h"
#include "ops/table.h"

#include "../graph/random_graph.h"

/* Of each op of the table, how many graphs had it. */
static int graphs_with[256];

static void note_ops(const subject *s)
{
    const dml__op *op;
    for (int i = 0; i < 256 && (op = dml__op_at(i)) != NULL; i++) graphs_with[i] += has_op(s, op->name);
}

static void one_graph(void)
{
    const model m = { "random graph", random_graph, 3 };
    const bool ok = test__ok;
    subject s;
    test__ok = true;
    if (open_subject(&s, &m)) {
        s.kinks = true;
        s.tolerance *= 30; /* through 30 ops */
        s.gradient_tolerance *= 30;
        /* Other devices round exp and tanh otherwise, and so choose another side where both sides of a
           comparison are the same numbers by two ways. What is wrong is so by more, in some of the graphs. */
        if (!cpu_here()) s.gradient_tolerance = 5e-3;
        check_rows(&s, 3);
        note_ops(&s);
    }
    if (!test__ok) printf("that was GRAPH=%u\n", graph_seed), dml_graph_print(s.loss->graph, stdout);
    close_subject(&s);
    test__ok = test__ok && ok;
}

static void random_graphs(void)
{
    const char *only = getenv("GRAPH");
    const unsigned graphs = TEST_EMULATOR ? 10 : !cpu_here() ? 30 : TEST_SLOW ? 100 : 500;
    if (only) {
        graph_seed = (unsigned)strtoul(only, NULL, 10);
        one_graph();
        return;
    }
    memset(graphs_with, 0, sizeof graphs_with);
    for (graph_seed = 1; graph_seed <= graphs; graph_seed++) one_graph();
    const dml__op *op;
    for (int i = 0; i < 256 && graphs == 500 && (op = dml__op_at(i)) != NULL; i++)
        CHECK_MESSAGE(graphs_with[i] >= 10, "only %d of %u graphs have the op '%s'", graphs_with[i], graphs,
                      op->name);
}
EACH_BACKEND(random_graphs)

int main(void)
{
    RUN_EACH(random_graphs);
    return test_report("ops/random_graphs");
}
