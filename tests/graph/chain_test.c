/* Ops on elements that run as one loop: which do, and that it changes no bit, whatever lies where in memory.
 */
#include "device/profile.h"
#include "graph/program.h"

#include "kernels/formula.h"

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"
#include "ops/op_reduce.h"
#include "thread/pool.h"

#include "subject.h"

enum { WIDTH = 3000, BATCH = 17 }; /* rows: several blocks and a rest */

/* ---- which ops are one loop ---- */

/* The lengths of the chains in a half of a program, in the order of slots, as digits: 2 and 3 are 23. */
static int chains_of(const dml_program *p, bool backward)
{
    int digits = 0, length = 0;
    for (int k = 0; k < p->slots; k++) {
        const dml__slot *slot = &p->slot[backward ? p->slots - 1 - k : k];
        length += slot->chained[backward];
        if (!slot->chain_ends[backward]) continue;
        digits = 10 * digits + length;
        length = 0;
    }
    CHECK_INT(length, 0);
    return digits;
}

typedef struct chains {
    dml_node *(*build)(dml_graph *g);
    int forward, backward;
} chains;

static dml_node *rows_of(dml_graph *g)
{
    return dml_dense(dml_input(g, NULL, DML_F32, 4), 8);
}
static dml_node *one_op(dml_graph *g)
{
    return dml_tanh(rows_of(g));
}
static dml_node *three_ops(dml_graph *g)
{
    return dml_sigmoid(dml_square(dml_tanh(rows_of(g))));
}
static dml_node *gated(dml_graph *g)
{
    dml_node *x = dml_input(g, NULL, DML_F32, 4);
    dml_node *gate = dml_dense(x, 8), *up = dml_dense(x, 8);
    return dml_dense(dml_mul(dml_silu(gate), up), 4);
}
static dml_node *around_a_dense(dml_graph *g)
{
    return dml_tanh(dml_tanh(dml_dense(dml_tanh(dml_tanh(rows_of(g))), 8)));
}
static dml_node *with_a_relu_in_passing(dml_graph *g)
{
    dml_node *h = rows_of(g);
    return dml_tanh(dml_relu(dml_add(h, dml_tanh(h))));
}
static dml_node *with_a_view(dml_graph *g)
{
    return dml_tanh(dml_flatten(dml_tanh(rows_of(g))));
}
static dml_node *with_what_is_repeated(dml_graph *g)
{
    dml_node *h = rows_of(g), *one = dml_mean(h, dml_shape_of(-1), true);
    return dml_tanh(dml_mul(h, one)); /* whose gradient is summed */
}
static dml_node *repeating_what_it_made(dml_graph *g)
{
    dml_node *x = dml_input(g, NULL, DML_F32, 8), *row = dml_input(g, NULL, DML_F32, 1);
    dml_node *made = dml_tanh(dml_tanh(row)), *h = dml_dense(x, 8);
    return dml_add(h, dml_mul(x, made));
}
static dml_node *with_a_parameter(dml_graph *g)
{
    const dml_initializer ones = { DML_INIT_CONSTANT, 1, 0 };
    dml_node *scale = dml_parameter(g, "scale", ones, 8);
    return dml_tanh(dml_tanh(dml_mul(rows_of(g), scale)));
}
static dml_node *eleven_ops(dml_graph *g)
{
    dml_node *h = rows_of(g);
    for (int i = 0; i < 11; i++) h = dml_tanh(h);
    return h;
}

static void which_are_one_loop(void)
{
    static const chains all[] = { { one_op, 0, 0 },
                                  { three_ops, 3, 3 },
                                  { gated, 2, 2 },
                                  { around_a_dense, 22, 22 },
                                  { with_a_relu_in_passing, 3, 4 },
                                  { with_a_view, 2, 2 },
                                  { with_what_is_repeated, 2, 0 },
                                  { repeating_what_it_made, 22, 0 },
                                  { with_a_parameter, 2, 2 },
                                  { eleven_ops, 83, 83 } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dml_context *context = dml_open(NULL);
        dml_node *loss = loss_of(all[i].build(dml_graph_create(context)));
        dml_program *p = dml_compile(loss, &(dml_program_options){ .batch = 3, .training = true });
        CHECK_MESSAGE(p, "%s", dml_error(context));
        CHECK_MESSAGE(chains_of(p, false) == all[i].forward, "case %zu: forward %d", i, chains_of(p, false));
        CHECK_MESSAGE(chains_of(p, true) == all[i].backward, "case %zu: backward %d", i, chains_of(p, true));
        CHECK((p->chain != NULL) == (all[i].forward || all[i].backward));
        dml_program *narrow =
            dml_compile(loss, &(dml_program_options){ .batch = 3, .training = true, .dtype = DML_BF16 });
        dml_program *checked = dml_compile(
            loss, &(dml_program_options){ .batch = 3, .training = true, .check = DML_CHECK_FINITE });
        CHECK(!narrow->chain && !checked->chain);
        dml_close(context);
    }
}

/* ---- the same bits ---- */

static unsigned drawn; /* of the graph that is built */

static dml_node *drawn_op(dml_node *const *node, int count)
{
    dml_node *a = node[test_random(&drawn) % (unsigned)count];
    dml_node *b = node[count - 1 - (int)(test_random(&drawn) % (count < 3 ? (unsigned)count : 3u))];
    switch (test_random(&drawn) % 10) {
    case 0: return dml_add(b, a);
    case 1: return dml_sub(a, b);
    case 2: return dml_mul(b, a);
    case 3: return dml_maximum(b, a);
    case 4: return dml_where(dml_less(a, b), a, b);
    case 5: return dml_relu(b);
    case 6: return dml_sigmoid(b);
    case 7: return dml_mul(b, dml_mean(a, dml_shape_of(-1), true));
    case 8: return dml_relu(dml_add(a, b));
    default: return dml_tanh(b);
    }
}

static dml_node *drawn_graph(dml_graph *g)
{
    dml_node *node[24];
    int count = 0;
    node[count++] = dml_dense(dml_input(g, "x", DML_F32, 2), WIDTH);
    node[count++] = dml_input(g, "y", DML_F32, WIDTH);
    while (count < 24) {
        node[count] = drawn_op(node, count);
        count++;
    }
    for (int i = 0; i < count - 1; i += 5) node[count - 1] = dml_add(node[count - 1], node[i]);
    return dml_tanh(node[count - 1]);
}

/* What a program of the loss leaves: the loss and the gradient, of an arena full of NaN. */
static void run_apart(dml_context *context, dml_program *p, int rows, const void *const *inputs, float *out)
{
    poison(context, p->arena);
    CHECK_INT(program_train(p, rows, inputs, 1.0f, NULL, out), DML_OK);
    read_floats(context, out + 1, p->g, p->graph->trained_count);
}

static void bits_are_the_same(void)
{
    const int graphs = TEST_EMULATOR ? 4 : 40;
    int chained = 0;
    for (int i = 0; i < graphs; i++) {
        dml_context *context = dml_open(&(dml_options){ .threads = 1 + i % 3 });
        drawn = 1000 + (unsigned)i;
        dml_node *loss = loss_of(drawn_graph(dml_graph_create(context)));
        const dml_program_options options = { .batch = BATCH, .training = true };
        dml_program *p = dml_compile(loss, &options), *apart = dml__compile_disjoint(loss, &options);
        CHECK_MESSAGE(p && apart, "%s", dml_error(context));
        const size_t n = 1 + loss->graph->trained_count;
        float *x = (float *)malloc(BATCH * 2 * sizeof *x), *y = (float *)malloc(BATCH * WIDTH * sizeof *y);
        float *got = (float *)malloc(n * sizeof *got), *want = (float *)malloc(n * sizeof *want);
        const void *const inputs[] = { x, y, y };
        test_fill(&drawn, x, BATCH * 2);
        test_fill(&drawn, y, BATCH * WIDTH);
        for (int rows = BATCH; rows > 0; rows -= 8) {
            run_apart(context, p, rows, inputs, got);
            run_apart(context, apart, rows, inputs, want);
            CHECK_MESSAGE(memcmp(got, want, n * sizeof *got) == 0, "graph %d, %d rows", i, rows);
            CHECK_MESSAGE(isfinite(got[0]), "graph %d: loss %g", i, (double)got[0]);
        }
        chained += chains_of(p, false) > 0 && chains_of(p, true) > 0;
        free(x);
        free(y);
        free(got);
        free(want);
        dml_close(context);
    }
    CHECK(chained >= graphs / 2);
}

/* A profile tells of each op, which then runs by itself. */
static void a_profile_sees_each_op(void)
{
    dml_context *context = dml_open(NULL);
    dml_node *h = three_ops(dml_graph_create(context));
    dml_program *p = dml_compile(h, &(dml_program_options){ .batch = 1 });
    float x[4] = { 1, 2, 3, 4 }, apart[8], together[8];
    const void *const inputs[] = { x };
    CHECK(p->chain);
    CHECK_INT(dml_program_run(p, 1, inputs, 1, together), DML_OK);
    CHECK_INT(dml_profile_begin(context, 64), DML_OK);
    CHECK_INT(dml_program_run(p, 1, inputs, 1, apart), DML_OK);
    CHECK_INT(p->chain->count, 0);
    CHECK(memcmp(apart, together, sizeof apart) == 0);
    dml_close(context);
}

int main(void)
{
    RUN(which_are_one_loop);
    RUN(bits_are_the_same);
    RUN(a_profile_sees_each_op);
    return test_report("graph/chain");
}
