/* A clone is told from its graph by its context alone: same names, same words, same bits. */
#include "graph/clone.h"

#include "train/parameter_group.h"
#include "train/trainer.h"

#include "random_graph.h"

enum { ROWS = 3, STEPS = 2 };

static void check_same_nodes(const dml_graph *graph, const dml_graph *clone)
{
    const dml_node *a = graph->first, *b = clone->first;
    for (; a && b; a = a->next, b = b->next) {
        char mine[256], other[256];
        CHECK_STRING(b->name, a->name);
        CHECK_STRING(dml_node_describe(b, mine, sizeof mine), dml_node_describe(a, other, sizeof other));
        CHECK(b->graph == clone && b->op == a->op && b->index == a->index && b->inputs == a->inputs);
        CHECK(b->frozen == a->frozen && b->kept == a->kept && b->sparse == a->sparse);
        CHECK(b->lr_scale == a->lr_scale && b->decay_scale == a->decay_scale && b->place == a->place);
        for (int i = 0; i < a->inputs; i++) CHECK(b->input[i]->index == a->input[i]->index);
        for (int i = 0; i < a->inputs; i++) CHECK(b->input[i]->graph == clone);
    }
    CHECK(!a && !b);
    CHECK_INT(clone->nodes, graph->nodes);
    CHECK_INT(dml_graph_parameters(clone), dml_graph_parameters(graph));
    for (int i = 0; i < dml_graph_parameters(graph); i++)
        CHECK_STRING(dml_node_name(dml_graph_parameter(clone, i)),
                     dml_node_name(dml_graph_parameter(graph, i)));
}

/* What a model is like from outside: its output, then a few steps' losses, and what became of w. */
typedef struct behaviour {
    size_t outputs, parameters;
    float output[ROWS * 64], loss[STEPS], *w;
} behaviour;

static void observe(dml_node *output, dml_node *loss, behaviour *seen)
{
    dml_context *context = dml_graph_context(dml_node_graph(loss));
    dml_program *forward = dml_compile(output, &(dml_program_options){ .batch = ROWS });
    dml_trainer *trainer = dml_trainer_create(
        loss, &(dml_trainer_options){ .batch = ROWS, .optimizer = dml_adamw(0.01f, 0.1f) });
    const dml_shape shape = dml_node_shape(output);
    memset(seen, 0, sizeof *seen);
    CHECK_MESSAGE(forward && trainer, "%s", dml_error(context));
    if (!forward || !trainer) return;
    seen->outputs = dml_shape_count(&shape) * (dml_node_batched(output) ? ROWS : 1);
    CHECK(seen->outputs <= sizeof seen->output / sizeof *seen->output);
    void *in[MAX_INPUTS], *in_training[MAX_INPUTS];
    const int inputs = dml_program_inputs(forward), all = dml_program_inputs(dml_trainer_program(trainer));
    fill_inputs(forward, ROWS, in);
    fill_inputs(dml_trainer_program(trainer), ROWS, in_training);
    CHECK_INT(dml_program_run(forward, ROWS, (const void *const *)in, inputs, seen->output), DML_OK);
    for (int s = 0; s < STEPS; s++)
        CHECK_INT(dml_trainer_step(trainer, ROWS, (const void *const *)in_training, all, &seen->loss[s]),
                  DML_OK);
    seen->parameters = dml_trainer_count(trainer, DML_PARAMETERS);
    seen->w = (float *)malloc(seen->parameters * sizeof(float));
    memcpy(seen->w, dml_trainer_get(trainer, DML_PARAMETERS, 0, seen->parameters),
           seen->parameters * sizeof(float));
    for (int i = 0; i < inputs; i++) free(in[i]);
    for (int i = 0; i < all; i++) free(in_training[i]);
}

static void one_clone(void)
{
    const bool ok = test__ok;
    const dml_options options = { .threads = 2, .seed = graph_seed };
    dml_context *one = open_here(&options), *other = open_here(&options);
    dml_graph *graph = dml_graph_create(one);
    dml_node *output = random_graph(graph), *loss = loss_of(output);
    unsigned random = graph_seed;
    test__ok = true;
    for (dml_node *p = graph->first_parameter; p; p = p->next_parameter) {
        if (!p->frozen && test_random(&random) % 5 == 0) dml_parameter_train(p, false);
        if (test_random(&random) % 3 == 0) dml_parameter_set_lr_scale(p, 0.5f);
        if (test_random(&random) % 3 == 0) dml_parameter_set_decay_scale(p, 0);
    }
    if (graph_seed % 2) { /* with values that no seed gives */
        float *w = dml_graph_get(graph, 0, dml_graph_parameter_count(graph));
        test_fill(&random, w, dml_graph_trained_count(graph));
        dml_graph_put(graph, 0, dml_graph_parameter_count(graph));
    }
    dml_graph *clone = dml_graph_clone(graph, other);
    CHECK_MESSAGE(clone, "%s", dml_error(other));
    static behaviour a, b;
    if (clone) {
        CHECK_INT(clone->w != NULL, graph_seed % 2);
        check_same_nodes(graph, clone);
        dml_node *output_there = dml_graph_find(clone, output->name);
        dml_node *loss_there = dml_graph_find(clone, loss->name);
        observe(output, loss, &a);
        dml_close(one); /* nothing of it is the clone's */
        one = NULL;
        observe(output_there, loss_there, &b);
    }
    dml_close(one);
    dml_close(other);
    CHECK(a.outputs == b.outputs && memcmp(a.output, b.output, a.outputs * sizeof *a.output) == 0);
    CHECK(memcmp(a.loss, b.loss, sizeof a.loss) == 0);
    CHECK(a.parameters == b.parameters && memcmp(a.w, b.w, a.parameters * sizeof *a.w) == 0);
    free(a.w);
    free(b.w);
    if (!test__ok) printf("that was graph %u\n", graph_seed);
    test__ok = test__ok && ok;
}

static void random_graphs_and_their_clones(void)
{
    const unsigned graphs = TEST_EMULATOR ? 10 : !cpu_here() ? 4 : TEST_SLOW ? 20 : 100;
    for (graph_seed = 1; graph_seed <= graphs; graph_seed++) one_clone();
}
EACH_BACKEND(random_graphs_and_their_clones)

/* A clone is a graph to build on, and neither knows of the other. */
static void a_clone_goes_its_own_way(void)
{
    backend_here = find_backend("cpu");
    dml_context *context = open_here(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(context);
    dml_push_scope(graph, "block.%d", 3);
    dml_dense(dml_input(graph, "x", DML_F32, 2), 3);
    dml_graph *clone = dml_graph_clone(graph, context); /* on the same context */
    dml_node *more = dml_dense(dml_graph_find(clone, "block.3.dense_1"), 4);
    CHECK_STRING(dml_node_name(more), "block.3.dense_2");
    CHECK_INT(dml_pop_scope(clone), DML_OK);
    CHECK_INT(dml_graph_parameters(graph), 2);
    CHECK_INT(dml_graph_parameters(clone), 4);
    /* What is new there begins as it would have in the graph. */
    dml_graph *whole = dml_graph_create(context);
    dml_push_scope(whole, "block.%d", 3);
    dml_dense(dml_dense(dml_input(whole, "x", DML_F32, 2), 3), 4);
    float first[12], again[12];
    CHECK_INT(dml_parameter_read(dml_graph_find(clone, "block.3.dense_2.weight"), first, 12), DML_OK);
    CHECK_INT(dml_parameter_read(dml_graph_find(whole, "block.3.dense_2.weight"), again, 12), DML_OK);
    for (int i = 0; i < 12; i++) CHECK_NEAR(first[i], again[i], 0);
    const float ones[] = { 1, 1, 1 };
    float got[3] = { 2, 2, 2 };
    CHECK_INT(dml_parameter_write(dml_graph_find(clone, "block.3.dense_1.bias"), ones, 3), DML_OK);
    CHECK_INT(dml_parameter_read(dml_graph_find(graph, "block.3.dense_1.bias"), got, 3), DML_OK);
    CHECK(got[0] == 0 && got[1] == 0 && got[2] == 0);
    dml_close(context);
}

static void what_cannot_be_cloned(void)
{
    dml_context *good = dml_open(&(dml_options){ .threads = 1 });
    dml_context *bad = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *graph = dml_graph_create(bad);
    CHECK(!dml_graph_clone(graph, NULL));
    CHECK(!dml_graph_clone(NULL, good));
    CHECK_CONTAINS(dml_error(good), "dml_graph_clone was given no graph (NULL)");
    dml_clear_error(good);
    CHECK(!dml_input(graph, "x", DML_F32, 0));
    CHECK(!dml_graph_clone(graph, good));
    CHECK_CONTAINS(dml_error(good), "the graph to clone has an error: input 'x'");
    CHECK_INT(dml_status_of(good), DML_ERROR_SHAPE);
    dml_close(bad);
    dml_close(good);
    /* No room, from none at all to nearly enough: nothing is left of it. */
    static char room[1 << 17];
    dml_context *from = dml_open(&(dml_options){ .threads = 1 });
    dml_graph *large = dml_graph_create(from);
    dml_node *x = dml_input(large, "x", DML_F32, 100);
    for (int i = 0; i < 5; i++) x = dml_dense(x, 20 + i);
    dml_graph_get(large, 0, 1);
    int refused = 0;
    for (size_t bytes = 8192; bytes < sizeof room; bytes += 1024) {
        dml_context *to = dml_open(&(dml_options){ .threads = 1, .memory = room, .memory_bytes = bytes });
        if (!dml_graph_clone(large, to)) {
            CHECK(!to || dml_status_of(to) == DML_ERROR_MEMORY);
            CHECK(!to || !to->owned);
            refused++;
        }
        dml_close(to);
    }
    CHECK(refused > 5 && refused < 100);
    dml_close(from);
}

int main(void)
{
    RUN_EACH(random_graphs_and_their_clones);
    RUN(a_clone_goes_its_own_way);
    RUN(what_cannot_be_cloned);
    return test_report("graph/clone");
}
