/* random_graph.h: models of random ops on random earlier nodes. */
#ifndef DML_TESTS_GRAPH_RANDOM_GRAPH_H
#define DML_TESTS_GRAPH_RANDOM_GRAPH_H

#include "ops/op_activation.h"
#include "ops/op_arithmetic.h"
#include "ops/op_dense.h"

#include "subject.h"

static const dml_initializer normal = { DML_INIT_NORMAL, 0, 0.5f };

static unsigned graph_seed;

/* Rows of six, each from one or two of the earlier ones, over a few shared parameters. */
static dml_node *random_graph(dml_graph *g)
{
    enum { NODES = 14 };
    unsigned random = graph_seed * 7919 + 1;
    dml_node *w[3], *bias[2], *node[NODES];
    for (int i = 0; i < 3; i++) w[i] = dml_parameter(g, NULL, normal, 6, 6);
    for (int i = 0; i < 2; i++) bias[i] = dml_parameter(g, NULL, normal, 2, 3);
    node[0] = dml_dense(dml_input(g, "x", DML_F32, 2), 6);
    node[1] = dml_input(g, "y", DML_F32, 6);
    for (int i = 2; i < NODES; i++) {
        dml_node *a = node[test_random(&random) % (unsigned)i],
                 *b = node[i - 1 - (int)(test_random(&random) % 2)];
        switch (test_random(&random) % 12) {
        case 7: node[i] = dml_gelu(b); break;
        case 8: node[i] = dml_sub(a, dml_silu(b)); break;
        case 9: node[i] = dml_mul(dml_tanh(a), b); break;
        case 10: node[i] = dml_div(a, dml_affine(dml_sigmoid(b), 1, 1)); break;
        case 11: node[i] = dml_mul(a, dml_parameter(g, NULL, normal, 1)); break;
        case 0: node[i] = dml_tanh(a); break;
        case 1: node[i] = dml_sigmoid(b); break;
        case 2: node[i] = dml_relu(b); break;
        case 3: node[i] = dml_flatten(a); break;
        case 4: node[i] = dml_add(a, b); break;
        case 5: node[i] = dml_dense_with(b, w[test_random(&random) % 3], NULL); break;
        default:
            node[i] =
                dml_dense_with(b, w[test_random(&random) % 3], dml_flatten(bias[test_random(&random) % 2]));
        }
    }
    dml_node *last = dml_add(dml_tanh(node[NODES - 1]), dml_flatten(node[NODES - 2]));
    return dml_dense_with(dml_tanh(dml_add(last, node[0])), w[0], dml_flatten(bias[0]));
}

#endif
