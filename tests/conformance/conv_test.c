/* Convolutions and pooling against what PyTorch computed. */
#include "ops/op_conv2d.h"
#include "ops/op_conv_transpose2d.h"
#include "ops/op_local2d.h"
#include "ops/op_pool2d.h"

#include "conformance.h"
#include "conv_cases.h"
enum { CASES = sizeof conv_cases / sizeof conv_cases[0] };

static dml_node *build(const conformance_case *c, dml_node *const *tensor)
{
    dml_node *x = tensor[0], *w = c->tensors > 1 ? tensor[1] : NULL,
             *bias = c->tensors > 2 ? tensor[2] : NULL;
    int n[8];
    for (int i = 0; i < 8; i++) n[i] = (int)c->number[i];
    if (strcmp(c->name, "conv2d") == 0)
        return dml_conv2d_with(x, w, bias,
                               &(dml_conv2d_options){ .stride = { n[0], n[1] },
                                                      .padding = { n[2], n[3] },
                                                      .dilation = { n[4], n[5] },
                                                      .groups = n[6] });
    if (strcmp(c->name, "conv2d_sides") == 0)
        return dml_conv2d_with(
            x, w, bias,
            &(dml_conv2d_options){ .padding_sides = { n[0], n[1], n[2], n[3] }, .stride = { n[4], n[5] } });
    if (strcmp(c->name, "conv2d_same") == 0)
        return dml_conv2d_with(
            x, w, bias,
            &(dml_conv2d_options){
                .stride = { n[0], n[1] }, .dilation = { n[2], n[3] }, .groups = n[4], .same = true });
    if (strcmp(c->name, "conv1d") == 0)
        return dml_conv1d_with(
            x, w, bias,
            &(dml_conv1d_options){ .stride = n[0], .padding = n[1], .dilation = n[2], .groups = n[3] });
    if (strcmp(c->name, "conv1d_same") == 0)
        return dml_conv1d_with(
            x, w, bias,
            &(dml_conv1d_options){ .stride = n[0], .dilation = n[1], .groups = n[2], .same = true });
    if (strcmp(c->name, "conv1d_causal") == 0)
        return dml_conv1d_with(x, w, bias,
                               &(dml_conv1d_options){ .dilation = n[0], .groups = n[1], .causal = true });
    if (strcmp(c->name, "conv_transpose2d") == 0)
        return dml_conv_transpose2d_with(x, w, bias,
                                         &(dml_conv_transpose2d_options){ .stride = { n[0], n[1] },
                                                                          .padding = { n[2], n[3] },
                                                                          .output_padding = { n[4], n[5] },
                                                                          .dilation = { n[6], n[6] },
                                                                          .groups = n[7] });
    if (strcmp(c->name, "conv_transpose1d") == 0)
        return dml_conv_transpose1d_with(
            x, w, bias,
            &(dml_conv_transpose1d_options){
                .stride = n[0], .padding = n[1], .output_padding = n[2], .dilation = n[3], .groups = n[4] });
    if (strcmp(c->name, "local2d") == 0)
        return dml_local2d_with(x, w, bias,
                                &(dml_local2d_options){ .kernel = { n[0], n[1] }, .stride = { n[2], n[3] } });
    const dml_pool2d_options pool = { .kernel = { n[0], n[1] },
                                      .stride = { n[2], n[3] },
                                      .padding = { n[4], n[5] },
                                      .ceil_mode = n[6] != 0,
                                      .count_include_pad = n[7] != 0 };
    const dml_pool1d_options pool1 = { .kernel = n[0],
                                       .stride = n[1],
                                       .padding = n[2],
                                       .ceil_mode = n[3] != 0,
                                       .count_include_pad = n[4] != 0 };
    if (strcmp(c->name, "max_pool2d") == 0) return dml_max_pool2d(x, &pool);
    if (strcmp(c->name, "avg_pool2d") == 0) return dml_avg_pool2d(x, &pool);
    if (strcmp(c->name, "max_pool1d") == 0) return dml_max_pool1d(x, &pool1);
    if (strcmp(c->name, "avg_pool1d") == 0) return dml_avg_pool1d(x, &pool1);
    if (strcmp(c->name, "global_max_pool2d") == 0) return dml_global_max_pool2d(x);
    if (strcmp(c->name, "global_avg_pool1d") == 0) return dml_global_avg_pool1d(x);
    return NULL;
}

static void pytorch(void)
{
    for (int c = 0; c < CASES; c++) conformance_run(&conv_cases[c], c, build, 2e-6);
}
EACH_BACKEND(pytorch)

int main(void)
{
    RUN_EACH(pytorch);
    return test_report("conformance/conv");
}
