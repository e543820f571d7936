/* Reductions, softmax and gather against what PyTorch computed. */
#include "ops/op_embedding.h"
#include "ops/op_gather.h"
#include "ops/op_reduce.h"
#include "ops/op_softmax.h"

#include "conformance.h"
#include "reduce_cases.h"
enum { CASES = sizeof reduce_cases / sizeof reduce_cases[0] };

static dml_shape axes_of(const conformance_case *c)
{
    dml_shape axes = { (int)c->number[2], { 0 } };
    for (int i = 0; i < axes.ndim; i++) axes.dims[i] = (int)c->number[3 + i];
    return axes;
}

static dml_node *build(const conformance_case *c, dml_node *const *tensor)
{
    dml_node *x = tensor[0];
    const bool keep = c->number[0] != 0;
    const float order = c->number[1] != 0 ? c->number[1] : INFINITY;
    const dml_shape axes = axes_of(c);
    if (strcmp(c->name, "sum") == 0) return dml_sum(x, axes, keep);
    if (strcmp(c->name, "mean") == 0) return dml_mean(x, axes, keep);
    if (strcmp(c->name, "max") == 0) return dml_max(x, axes, keep);
    if (strcmp(c->name, "min") == 0) return dml_min(x, axes, keep);
    if (strcmp(c->name, "norm") == 0) return dml_norm(x, order, axes, keep);
    if (strcmp(c->name, "take") == 0) return dml_take(x, tensor[1], axes.dims[0]);
    if (strcmp(c->name, "gather") == 0) return dml_gather(x, tensor[1], axes.dims[0]);
    if (strcmp(c->name, "softmax") == 0) return dml_softmax(x, axes.dims[0]);
    if (strcmp(c->name, "log_softmax") == 0) return dml_log_softmax(x, axes.dims[0]);
    if (strcmp(c->name, "argmax") == 0)
        return dml_embedding_with(dml_argmax(x, axes.dims[0], keep), tensor[1]);
    if (strcmp(c->name, "argmin") == 0)
        return dml_embedding_with(dml_argmin(x, axes.dims[0], keep), tensor[1]);
    return NULL;
}

static void pytorch(void)
{
    for (int c = 0; c < CASES; c++) conformance_run(&reduce_cases[c], c, build, 2e-6);
}
EACH_BACKEND(pytorch)

int main(void)
{
    RUN_EACH(pytorch);
    return test_report("conformance/reduce");
}
