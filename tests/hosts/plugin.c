/* plugin.c: a shared library that keeps all of dml to itself. Its host, or another plugin in the same
   process, may have a dml of another version, or a second copy of this one. */
#define DML_STATIC
#define DML_IMPLEMENTATION
#include "dml.h"

/* Learns y = 2 x from `seed` and returns the last loss; below 0 when something failed. */
double plugin_learn(unsigned seed);

double plugin_learn(unsigned seed)
{
    static const float x[4] = { -1, 0, 1, 2 }, y[4] = { -2, 0, 2, 4 };
    float loss = -1;
    dml_context *ctx = dml_open(&(dml_options){ .threads = 2, .seed = seed });
    dml_graph *g = dml_graph_create(ctx);
    dml_node *in = dml_input(g, "x", DML_F32, 1), *want = dml_input(g, "y", DML_F32, 1);
    dml_trainer *t = dml_trainer_create(dml_mean_squared_error(dml_dense(in, 1), want),
                                        &(dml_trainer_options){ .batch = 4, .optimizer = dml_sgd(0.1f, 0) });
    for (int i = 0; i < 50; i++)
        if (dml_trainer_step(t, 4, DML_INPUTS(x, y), &loss) != DML_OK) loss = -1;
    dml_close(ctx);
    return (double)loss;
}
