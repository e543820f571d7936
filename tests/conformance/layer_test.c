/* Layers against what PyTorch computed. */
#include "ops/op_embedding.h"
#include "ops/op_sample_norm.h"

#include "conformance.h"
#include "layer_cases.h"
enum { CASES = sizeof layer_cases / sizeof layer_cases[0] };

static dml_node *build(const conformance_case *c, dml_node *const *tensor)
{
    dml_node *x = tensor[0], *p0 = c->tensors > 1 ? tensor[1] : NULL, *p1 = c->tensors > 2 ? tensor[2] : NULL;
    const int n[] = { (int)c->number[0], (int)c->number[1], (int)c->number[2] };
    const dml_sample_norm_options norm = { .epsilon = c->number[0] };
    if (strcmp(c->name, "layer_norm") == 0) return dml_layer_norm_with(x, p0, p1, &norm);
    if (strcmp(c->name, "rms_norm") == 0) return dml_rms_norm_with(x, p0, &norm);
    if (strcmp(c->name, "group_norm") == 0) return dml_group_norm_with(x, n[1], p0, p1, &norm);
    if (strcmp(c->name, "dense") == 0) return dml_dense_with(x, p0, p1);
    if (strcmp(c->name, "permute") == 0) return dml_permute(x, conformance_shape(c->tensor[0].dims, n));
    if (strcmp(c->name, "transpose") == 0) return dml_swap_axes(x, -1, -2);
    if (strcmp(c->name, "slice") == 0) return dml_slice(x, n[0], n[1], n[2]);
    if (strcmp(c->name, "pad") == 0) return dml_pad(x, n[0], n[1], n[2]);
    if (strcmp(c->name, "embedding") == 0) return dml_embedding_with(x, p0);
    if (strcmp(c->name, "concat") == 0) {
        const int size = c->tensor[0].shape[0];
        dml_node *const parts[] = { x, dml_slice(x, n[0], 1, size), dml_slice(x, n[0], 0, 1) };
        return dml_concat(parts, 3, n[0]);
    }
    return NULL;
}

/* A mean of 100 is a float whose rounding is two digits more of a distance from it, one of 30 more than one.
 */
static double allowed(const conformance_case *c)
{
    const double size = fabs((double)c->tensor[0].value[0]);
    if (strcmp(c->name, "layer_norm") == 0 && size > 50) return 1e-4;
    return strcmp(c->name, "group_norm") == 0 && size > 20 ? 2e-5 : 2e-6;
}

static void pytorch(void)
{
    for (int c = 0; c < CASES; c++) conformance_run(&layer_cases[c], c, build, allowed(&layer_cases[c]));
}
EACH_BACKEND(pytorch)

int main(void)
{
    RUN_EACH(pytorch);
    return test_report("conformance/layer");
}
